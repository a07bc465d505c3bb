/* simt_eight_test.cpp: simt's tensor cores of e4m3 and e5m2 against the predictor, which shares no code with them.
 * Steps are drawn, and products go through a warpgroup and a warp. ASSAY_SUM_STEPS: how many steps (500,000).
 * ASSAY_SUM_COUNTS: a file that gets a line of counts per unit and types. */
#include <criterion/criterion.h>

#include <chrono>
#include <cstdlib>
#include <string>

#include "ref/lib/sums.h"
#include "simt/products.h"
#include "simt_fixture.h"
#include "sum_counts.h"

extern "C" {
#include "core/dtype.h"
#include "core/rng.h"
}

TestSuite(simt_eight, .init = open_simt, .timeout = 280);

constexpr int64_t depth = 32, rows = 16, columns = 8;

/* Near exponents, any code, codes near zero, sparse ones, products that cancel. */
enum Mode { NARROW, ANY_CODE, LEAST, ZEROS, CANCELS, MODES };

struct Batch {
  assay_dtype type_a, type_b;
  uint8_t a[rows * depth], b[columns * depth]; /* b: [columns, depth] */
  uint32_t c[rows * columns];
};

static uint8_t code(assay_rng *rng, assay_dtype type, Mode mode, int64_t base) {
  const uint64_t random = assay_rng_u64(rng);
  const int fraction = type == ASSAY_E4M3 ? 3 : 2;
  const int64_t top = type == ASSAY_E4M3 ? 14 : 30;
  if (mode == ANY_CODE) return static_cast<uint8_t>(random);
  if (mode == ZEROS && random % 3 != 0) return static_cast<uint8_t>(random >> 8 & 0x80);
  int64_t field = mode == LEAST ? assay_rng_range(rng, 0, 2) : base + assay_rng_range(rng, -3, 3);
  field = field < 0 ? 0 : field > top ? top : field;
  return static_cast<uint8_t>(static_cast<uint64_t>(field) << fraction | (random & ((1u << fraction) - 1)) |
                              (random >> 16 & 0x80));
}

static void draw(assay_rng *rng, Mode mode, Batch &batch) {
  const int64_t base_a = assay_rng_range(rng, 0, 15), base_b = assay_rng_range(rng, 0, 15);
  batch.type_a = assay_rng_range(rng, 0, 1) != 0 ? ASSAY_E4M3 : ASSAY_E5M2;
  batch.type_b = assay_rng_range(rng, 0, 1) != 0 ? ASSAY_E4M3 : ASSAY_E5M2;
  for (uint8_t &x : batch.a)
    x = code(rng, batch.type_a, mode, base_a);
  for (uint8_t &x : batch.b)
    x = code(rng, batch.type_b, mode, base_b);
  for (size_t i = 0; mode == CANCELS && i < sizeof batch.a; i += 2)
    batch.a[i + 1] = static_cast<uint8_t>(batch.a[i] ^ 0x80u ^ (assay_rng_range(rng, 0, 3) == 0 ? 1u : 0u));
  for (size_t i = 0; mode == CANCELS && i < sizeof batch.b; i += 2)
    batch.b[i + 1] = batch.b[i];
  for (uint32_t &x : batch.c) {
    const uint64_t random = assay_rng_u64(rng);
    const int64_t field =
        assay_rng_range(rng, 0, 9) == 0 ? assay_rng_range(rng, 0, 255) : assay_rng_range(rng, 90, 160);
    x = random % 8 == 0 ? 0u : static_cast<uint32_t>(random & 0x807FFFFFu) | static_cast<uint32_t>(field) << 23;
  }
}

static int32_t least(assay_dtype type) {
  return type == ASSAY_E4M3 ? -6 : -14;
}

static void by_simt(bool wgmma, const Batch &batch, uint32_t (&sum)[rows * columns]) {
  float a[rows * depth], b[depth * columns], d[rows * columns];
  for (int64_t i = 0; i < rows * depth; ++i)
    a[i] = static_cast<float>(assay_load_f64(batch.a, batch.type_a, i));
  for (int64_t n = 0; n < columns; ++n)
    for (int64_t k = 0; k < depth; ++k)
      b[k * columns + n] = static_cast<float>(assay_load_f64(batch.b, batch.type_b, n * depth + k));
  memcpy(d, batch.c, sizeof d);
  if (wgmma)
    assay_simt_host::tensor_products_eight(rows, columns, a, b, least(batch.type_a), least(batch.type_b), d);
  else
    assay_simt_host::tensor_products_eight_by_f16(a, b, d);
  memcpy(sum, d, sizeof d);
}

static void by_predictor(bool wgmma, const Batch &batch, uint32_t (&sum)[rows * columns]) {
  int16_t significand[2][rows * depth], exponent[2][rows * depth];
  uint8_t kind[2][rows * depth];
  sum_factors a = {significand[0], exponent[0], kind[0], 0, false},
              b = {significand[1], exponent[1], kind[1], 0, false};
  sum_factors_take(&a, batch.a, batch.type_a, !wgmma, 1, rows * depth);
  sum_factors_take(&b, batch.b, batch.type_b, !wgmma, 1, columns * depth);
  for (int64_t m = 0; m < rows; ++m)
    for (int64_t n = 0; n < columns; ++n) {
      const sum_factors x = sum_factors_from(&a, m * depth), y = sum_factors_from(&b, n * depth);
      sum[m * columns + n] =
          sum_chain(wgmma ? ASSAY_SUM_WGMMA_8 : ASSAY_SUM_MMA_8, &x, &y, depth, batch.c[m * columns + n]);
    }
}

Test(simt_eight, every_drawn_step_has_the_bits_of_the_predictor) {
  const char *const wanted = getenv("ASSAY_SUM_STEPS");
  const int64_t steps = wanted != nullptr ? atoll(wanted) : 500000;
  assay_rng rng = {20261127, 1, 0};
  int64_t of_form[2][2][2] = {}, differs[2][2][2] = {}; /* by unit and the types of a and b */
  double seconds[2][2][2] = {};
  int64_t differ = 0, zeros = 0, nans = 0, infinities = 0, done = 0;
  for (int64_t round = 0; done < steps; ++round) {
    const Mode mode = static_cast<Mode>(round / 2 % MODES);
    const bool wgmma = round % 2 == 0;
    Batch batch;
    draw(&rng, mode, batch);
    uint32_t simt[rows * columns], predicted[rows * columns];
    by_simt(wgmma, batch, simt);
    const bool a = batch.type_a == ASSAY_E4M3, b = batch.type_b == ASSAY_E4M3;
    const auto begun = std::chrono::steady_clock::now();
    by_predictor(wgmma, batch, predicted);
    seconds[wgmma][a][b] += std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count();
    of_form[wgmma][a][b] += rows * columns;
    for (size_t i = 0; i < rows * columns; ++i, ++done) {
      const uint32_t size = predicted[i] & 0x7FFFFFFFu;
      zeros += size == 0;
      infinities += size == 0x7F800000u;
      nans += size > 0x7F800000u;
      if (simt[i] == predicted[i]) continue;
      ++differs[wgmma][a][b];
      if (++differ <= 3)
        cr_expect_fail("mode %d, wgmma %d, types %d %d: c %08x, simt %08x, predicted %08x", mode, wgmma, batch.type_a,
                       batch.type_b, batch.c[i], simt[i], predicted[i]);
    }
  }
  for (int form = 0; form < 8; ++form) {
    const int wgmma = form >> 2, a = form >> 1 & 1, b = form & 1;
    const std::string type_names = std::string(a != 0 ? "e4m3" : "e5m2") + (b != 0 ? ", e4m3" : ", e5m2");
    sum_counts_add(wgmma != 0 ? "wgmma_8" : "mma_8", type_names.c_str(), of_form[wgmma][a][b], differs[wgmma][a][b],
                   seconds[wgmma][a][b], depth);
  }
  cr_expect_eq(differ, 0, "%lld of %lld steps differ", static_cast<long long>(differ), static_cast<long long>(done));
  cr_expect(zeros > 0 && nans > 0 && infinities > 0, "%lld zeros, %lld NaN, %lld infinities",
            static_cast<long long>(zeros), static_cast<long long>(nans), static_cast<long long>(infinities));
}

/* ---- through the instructions -------------------------------------------------------------------------- */

constexpr uint32_t tile_k = 128;

/* d [64, N] = a [64, 128] · b [N, 128]ᵀ, both swizzled by 128 bytes. */
template <class A, class B, int N>
__global__ static void warpgroup_product(const unsigned char *a, const unsigned char *b, float *out) {
  ASSAY_DYNAMIC_SHARED_1024(unsigned char, tiles);
  unsigned char *const sa = tiles, *const sb = tiles + 64 * tile_k;
  const uint32_t t = threadIdx.x;
  for (uint32_t i = t; i < 64 * tile_k; i += 128)
    sa[i ^ ((i >> 7 & 7) << 4)] = a[i];
  for (uint32_t i = t; i < N * tile_k; i += 128)
    sb[i ^ ((i >> 7 & 7) << 4)] = b[i];
  fence_proxy_async();
  __syncthreads();
  const uint64_t da = wgmma_descriptor(sa, 1024, 0, swizzle_128), db = wgmma_descriptor(sb, 1024, 0, swizzle_128);
  float d[N / 2];
  wgmma_fence();
  for (uint32_t s = 0; s < tile_k / 32; ++s)
    wgmma_m64k32<A, B, N>(d, da + 2 * s, db + 2 * s, s > 0);
  wgmma_commit();
  wgmma_wait<0>();
  wgmma_order(d);
  const uint32_t row = t / 32 * 16 + t % 32 / 4, column = t % 4 * 2;
  for (uint32_t i = 0; i < N / 2; ++i)
    out[(row + i / 2 % 2 * 8) * N + i / 4 * 8 + column + i % 2] = d[i];
}

/* d [16, 8] = a [16, 128] · b [8, 128]ᵀ. */
template <class A, class B>
__global__ static void warp_product(const unsigned char *a, const unsigned char *b, float *out) {
  const uint32_t lane = threadIdx.x, row = lane / 4;
  float d[4] = {0.0f, 0.0f, 0.0f, 0.0f};
  for (uint32_t k = 0; k < tile_k; k += 32) {
    uint32_t x[4], y[2];
    for (uint32_t i = 0; i < 4; ++i)
      memcpy(&x[i], a + (row + i % 2 * 8) * tile_k + k + i / 2 * 16 + lane % 4 * 4, 4);
    for (uint32_t i = 0; i < 2; ++i)
      memcpy(&y[i], b + row * tile_k + k + i * 16 + lane % 4 * 4, 4);
    mma_m16n8k32<A, B>(d, x, y);
  }
  for (uint32_t i = 0; i < 4; ++i)
    out[(row + i / 2 * 8) * 8 + lane % 4 * 2 + i % 2] = d[i];
}

static void expect_predicted(assay_sum_unit unit, assay_dtype type_a, assay_dtype type_b, int64_t M, int64_t N,
                             std::vector<unsigned char> &a, std::vector<unsigned char> &b, const floats &got) {
  const assay_sums sums = {.unit = unit};
  assay_product p = {};
  p.a = {.data = a.data(), .dtype = type_a, .rank = 2, .shape = {M, tile_k}, .stride = {tile_k, 1}};
  p.b = {.data = b.data(), .dtype = type_b, .rank = 2, .shape = {N, tile_k}, .stride = {tile_k, 1}};
  floats wanted(got.size());
  cr_assert_eq(assay_sums_predict(&sums, &p, wanted.data(), &message), ASSAY_OK, "%s", message.text);
  cr_expect_eq(memcmp(got.data(), wanted.data(), 4 * got.size()), 0, "unit %d, types %d %d, N %d", unit, type_a, type_b,
               static_cast<int>(N));
}

template <class T> constexpr assay_dtype type_of = std::is_same_v<T, e4m3> ? ASSAY_E4M3 : ASSAY_E5M2;

template <class A, class B, int N> static void check() {
  assay_rng rng = {7, N, 0};
  std::vector<unsigned char> a(64 * tile_k), b(N * tile_k);
  for (unsigned char &x : a)
    x = code(&rng, type_of<A>, NARROW, 7);
  for (unsigned char &x : b)
    x = code(&rng, type_of<B>, NARROW, 7);
  floats out(64 * N), small(16 * 8);
  RUN((warpgroup_product<A, B, N>), 1, 128, (64 + N) * tile_k, a.data(), b.data(), out.data());
  expect_predicted(ASSAY_SUM_WGMMA_8, type_of<A>, type_of<B>, 64, N, a, b, out);
  RUN((warp_product<A, B>), 1, 32, 0, a.data(), b.data(), small.data());
  expect_predicted(ASSAY_SUM_MMA_8, type_of<A>, type_of<B>, 16, 8, a, b, small);
}

Test(simt_eight, instructions_have_the_bits_of_the_predictor) {
  check<e4m3, e4m3, 128>();
  check<e4m3, e5m2, 16>();
  check<e5m2, e4m3, 64>();
  check<e5m2, e5m2, 256>();
}

/* A tile past whose last row and last column everything is zero, as at the end of a matrix. Its sums may be anything.
 */
Test(simt_eight, a_tile_that_is_partly_zeros_has_the_bits_of_the_predictor) {
  assay_rng rng = {20261127, 2, 0};
  int64_t differ = 0, live = 0;
  for (int64_t round = 0; round < 4000; ++round) {
    const int64_t last_row = assay_rng_range(&rng, 0, rows), last_column = assay_rng_range(&rng, 0, columns);
    Batch batch;
    draw(&rng, static_cast<Mode>(round % MODES), batch);
    for (int64_t i = last_row * depth; i < rows * depth; ++i)
      batch.a[i] = static_cast<uint8_t>(assay_rng_range(&rng, 0, 1) << 7);
    for (int64_t i = last_column * depth; i < columns * depth; ++i)
      batch.b[i] = static_cast<uint8_t>(assay_rng_range(&rng, 0, 1) << 7);
    for (uint32_t &sum : batch.c)
      if (round % 3 == 0 || (round % 3 == 1 && assay_rng_range(&rng, 0, 3) == 0)) sum = 0;
    uint32_t simt[rows * columns], predicted[rows * columns];
    by_simt(true, batch, simt);
    by_predictor(true, batch, predicted);
    for (int64_t i = 0; i < rows * columns; ++i) {
      live += i / columns < last_row && i % columns < last_column;
      if (simt[i] != predicted[i] && ++differ <= 3)
        cr_expect_fail("row %d of %d, column %d of %d: c %08x, simt %08x, predicted %08x",
                       static_cast<int>(i / columns), static_cast<int>(last_row), static_cast<int>(i % columns),
                       static_cast<int>(last_column), batch.c[i], simt[i], predicted[i]);
    }
  }
  cr_expect_eq(differ, 0, "%lld sums differ", static_cast<long long>(differ));
  cr_expect(live > 20000, "%lld sums of rows and columns before the end", static_cast<long long>(live));
}
