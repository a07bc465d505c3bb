/* simt_norm_test.cpp: a row that a warp keeps has the bits of a row that a block keeps, and both are right. The
 * launcher gives a warp long rows only where there are a million vectors, more than simt runs in suites. */
#include <criterion/criterion.h>

#include <math.h>
#include <string.h>

#include <vector>

#include "simt/cuda.h"

#include <assay/device.h>

#include "gpu/lib/norm_vectors.cuh"

extern "C" const assay_device *assay_device_simt(void);

using namespace ASSAY_NS;

static void open_simt() {
  assay_error error = {""};
  cr_assert_eq(assay_device_simt()->open(&error), ASSAY_OK, "%s", error.text);
}

TestSuite(simt_norm, .init = open_simt, .timeout = 60);

static const int32_t N = 5;
static const float eps = 1e-5f;

struct batch {
  std::vector<bf16> x, res, g, b, sum, y;
};

static std::vector<bf16> drawn(size_t count, uint64_t seed) {
  std::vector<bf16> made(count);
  uint64_t state = seed;
  for (bf16 &number : made) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    number = from_float<bf16>(static_cast<float>(static_cast<int32_t>(state >> 32)) * 0x1p-30f);
  }
  return made;
}

/* Draws rows. The squares of the last row leave the range of f32. */
static batch drawn_batch(int32_t C) {
  const size_t count = static_cast<size_t>(N) * static_cast<size_t>(C);
  batch made = {drawn(count, 1),
                drawn(count, 2),
                drawn(static_cast<size_t>(C), 3),
                drawn(static_cast<size_t>(C), 4),
                std::vector<bf16>(count),
                std::vector<bf16>(count)};
  for (size_t i = count - static_cast<size_t>(C); i < count; ++i)
    made.x[i] = from_float<bf16>(to_float(made.x[i]) * 0x1p100f);
  return made;
}

static norm_params params_of(batch &rows, int32_t C, bool centred, bool add) {
  norm_params p = norm_params();
  p.x = rows.x.data();
  p.res = add ? rows.res.data() : nullptr;
  p.sum = rows.sum.data();
  p.y = rows.y.data();
  p.x_row = p.res_row = p.sum_row = p.y_row = C;
  p.g = rows.g.data();
  p.b = centred ? rows.b.data() : nullptr;
  p.N = N;
  p.C = C;
  p.eps = eps;
  p.type = ASSAY_BF16;
  return p;
}

static bool alike(const std::vector<bf16> &one, const std::vector<bf16> &other) {
  return memcmp(one.data(), other.data(), one.size() * sizeof one[0]) == 0;
}

/* Returns the largest error of y, by the largest number of its row. */
static double error_of(const batch &rows, int32_t C, bool centred, bool add) {
  double worst = 0;
  for (int32_t n = 0; n < N; ++n) {
    std::vector<double> v(static_cast<size_t>(C));
    double mean = 0, square = 0, most = 0, off = 0;
    for (int32_t c = 0; c < C; ++c) {
      const size_t at = static_cast<size_t>(n) * static_cast<size_t>(C) + static_cast<size_t>(c);
      double number = static_cast<double>(to_float(rows.x[at]));
      if (add) number = static_cast<double>(to_float(rows.sum[at]));
      v[static_cast<size_t>(c)] = number;
      mean += number / C;
    }
    if (!centred) mean = 0;
    for (const double number : v)
      square += (number - mean) * (number - mean) / C;
    for (int32_t c = 0; c < C; ++c) {
      const size_t at = static_cast<size_t>(n) * static_cast<size_t>(C) + static_cast<size_t>(c);
      const size_t of = static_cast<size_t>(c);
      double want =
          (v[of] - mean) / sqrt(square + static_cast<double>(eps)) * static_cast<double>(to_float(rows.g[of]));
      if (centred) want += static_cast<double>(to_float(rows.b[of]));
      most = fmax(most, fabs(want));
      const double error = fabs(static_cast<double>(to_float(rows.y[at])) - want);
      if (!(error <= off)) off = isnan(error) ? static_cast<double>(INFINITY) : error; /* NaN is never near */
    }
    worst = fmax(worst, off / most);
  }
  return worst;
}

/* Runs a batch by blocks of a thread per vector, and by another kernel. Returns whether both have the same bits. */
template <bool centred, bool add, class Other> static bool same(int32_t C, const Other &other) {
  batch by_block = drawn_batch(C), by_other = drawn_batch(C);
  assay_error error = {""};
  const int32_t vectors = C / vector_width<bf16>, threads = (vectors + 31) / 32 * 32;
  cr_assert_eq(ASSAY_LAUNCH(&error, (norm_vectors<bf16, centred, add, 1, false>), N, threads, 0, nullptr,
                            params_of(by_block, C, centred, add)),
               ASSAY_OK, "%s", error.text);
  cr_assert_eq(other(&error, params_of(by_other, C, centred, add)), ASSAY_OK, "%s", error.text);
  const double error_of_block = error_of(by_block, C, centred, add);
  cr_assert(error_of_block <= 0x1p-8, "C=%d: a block's row is off by %g", C, error_of_block);
  return alike(by_block.y, by_other.y) && alike(by_block.sum, by_other.sum);
}

/* A warp per row, `parts` vectors per lane. */
template <bool centred, bool add, int parts> static bool same_by_warps(int32_t C) {
  return same<centred, add>(C, [](assay_error *error, const norm_params &p) {
    return ASSAY_LAUNCH(error, (norm_many<bf16, centred, add, parts>), (N + 3) / 4, 128, 0, nullptr, p);
  });
}

/* A small block per row, `parts` vectors per thread. */
template <bool centred, bool add, int parts> static bool same_by_small_blocks(int32_t C, int32_t threads) {
  return same<centred, add>(C, [threads](assay_error *error, const norm_params &p) {
    return ASSAY_LAUNCH(error, (norm_vectors<bf16, centred, add, parts, true>), N, threads, 0, nullptr, p);
  });
}

Test(simt_norm, rows_of_a_warp_have_the_bits_of_a_block) {
  cr_expect((same_by_warps<false, false, 4>(1024)));
  cr_expect((same_by_warps<true, false, 4>(520)));
  cr_expect((same_by_warps<true, true, 4>(1024)));
  cr_expect((same_by_warps<false, true, 1>(256)));
}

Test(simt_norm, rows_of_a_small_block_have_the_bits_of_a_block) {
  cr_expect((same_by_small_blocks<false, false, 4>(4096, 128)));
  cr_expect((same_by_small_blocks<true, false, 4>(4096, 128)));
  cr_expect((same_by_small_blocks<true, false, 4>(2056, 96)));
  cr_expect((same_by_small_blocks<false, true, 2>(2048, 128)));
  cr_expect((same_by_small_blocks<true, true, 2>(1032, 96)));
  cr_expect((same_by_small_blocks<true, true, 4>(3208, 128)));
}

Test(simt_norm, a_row_of_more_vectors_than_are_held_differs) {
  cr_expect_not((same_by_warps<false, false, 1>(1024)));
  cr_expect_not((same_by_small_blocks<false, false, 2>(4096, 128)));
  cr_expect_not((same_by_small_blocks<true, true, 2>(2056, 96)));
}
