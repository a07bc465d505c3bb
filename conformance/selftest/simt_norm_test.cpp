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

/* Runs a batch by blocks and by warps with `parts` vectors per lane. Returns whether both have the same bits. */
template <bool centred, bool add, int parts> static bool same(int32_t C) {
  batch by_block = drawn_batch(C), by_warp = drawn_batch(C);
  assay_error error = {""};
  const int32_t vectors = C / vector_width<bf16>, threads = (vectors + 31) / 32 * 32;
  cr_assert_eq(ASSAY_LAUNCH(&error, (norm_vectors<bf16, centred, add, 1>), N, threads, 0, nullptr,
                            params_of(by_block, C, centred, add)),
               ASSAY_OK, "%s", error.text);
  cr_assert_eq(ASSAY_LAUNCH(&error, (norm_many<bf16, centred, add, parts>), (N + 3) / 4, 128, 0, nullptr,
                            params_of(by_warp, C, centred, add)),
               ASSAY_OK, "%s", error.text);
  const double error_of_block = error_of(by_block, C, centred, add);
  cr_assert(error_of_block <= 0x1p-8, "C=%d: a block's row is off by %g", C, error_of_block);
  return alike(by_block.y, by_warp.y) && alike(by_block.sum, by_warp.sum);
}

Test(simt_norm, rows_of_a_warp_have_the_bits_of_a_block) {
  cr_expect((same<false, false, 16>(4096)));
  cr_expect((same<false, false, 16>(2056)));
  cr_expect((same<false, false, 8>(2048)));
  cr_expect((same<true, false, 16>(4096)));
  cr_expect((same<true, false, 16>(3208)));
  cr_expect((same<true, false, 8>(1032)));
  cr_expect((same<false, true, 8>(2048)));
  cr_expect((same<true, true, 8>(1800)));
  cr_expect((same<true, true, 4>(1024)));
}

Test(simt_norm, a_row_of_more_vectors_than_lanes_hold_differs) {
  cr_expect_not((same<false, false, 8>(4096)));
  cr_expect_not((same<true, true, 8>(2056)));
}
