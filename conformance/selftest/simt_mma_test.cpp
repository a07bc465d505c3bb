/* simt_mma_test.cpp: what a warp computes together, cp.async, named barriers. */
#include <criterion/criterion.h>

#include "simt/products.h"
#include "simt_fixture.h"

TestSuite(simt_mma, .init = open_simt, .timeout = 60);

/* ---- kernels ------------------------------------------------------------------------------------------- */

/* c (16 x 8) = a (16 x 16) · b; b is 16 x 8 row-major (trans) or 8 x 16: columns of b. */
template <class T, bool trans> __global__ static void product(const T *a, const T *b, float *c) {
  ASSAY_SHARED(T, sa, 16 * 16);
  ASSAY_SHARED(T, sb, 16 * 8);
  const unsigned l = threadIdx.x;
  for (unsigned i = l; i < 256; i += 32)
    sa[i] = a[i];
  for (unsigned i = l; i < 128; i += 32)
    sb[i] = b[i];
  __syncwarp();
  uint32_t fa[4], fb[2];
  ldmatrix_x4(fa, &sa[(l % 16) * 16 + l / 16 * 8]);
  if (trans)
    ldmatrix_x2_trans(fb, &sb[l % 16 * 8]);
  else
    ldmatrix_x2(fb, &sb[l % 8 * 16 + l / 8 % 2 * 8]);
  float d[4] = {1.0f, 1.0f, 1.0f, 1.0f};
  mma_m16n8k16<T>(d, fa, fb);
  const unsigned r = l / 4, col = l % 4 * 2;
  c[r * 8 + col] = d[0];
  c[r * 8 + col + 1] = d[1];
  c[(r + 8) * 8 + col] = d[2];
  c[(r + 8) * 8 + col + 1] = d[3];
}

__global__ static void matrices_there_and_back(const uint16_t *in, uint16_t *out, uint16_t *turned) {
  ASSAY_SHARED(uint16_t, from, 256);
  ASSAY_SHARED(uint16_t, to, 256);
  const unsigned l = threadIdx.x;
  for (unsigned i = l; i < 256; i += 32)
    from[i] = in[i];
  __syncwarp();
  uint32_t r[4];
  ldmatrix_x4(r, &from[l * 8]);
  stmatrix_x4(&to[l * 8], r);
  __syncwarp();
  for (unsigned i = l; i < 256; i += 32)
    out[i] = to[i];
  __syncwarp();
  ldmatrix_x4_trans(r, &from[l * 8]);
  stmatrix_x4(&to[l * 8], r);
  __syncwarp();
  for (unsigned i = l; i < 256; i += 32)
    turned[i] = to[i];
}

__global__ static void half_a_warp_multiplies(float *out) {
  float d[4] = {0.0f, 0.0f, 0.0f, 0.0f};
  const uint32_t a[4] = {0, 0, 0, 0}, b[2] = {0, 0};
  if (threadIdx.x < 16) mma_m16n8k16<bf16>(d, a, b);
  out[threadIdx.x] = d[0];
}

/* Two stages. pending: groups that may be on their way when a stage is read (right is 1, then 0). */
template <int pending, bool barrier> __global__ static void stages(const float *in, float *out, int count) {
  ASSAY_SHARED(float, stage, 2 * 128);
  const int t = static_cast<int>(threadIdx.x);
  const auto load = [&](int i) {
    if (i < count) cp_async_16(&stage[i % 2 * 128 + t * 4], in + i * 128 + t * 4, t < 31 ? 16 : 4);
    cp_async_commit();
  };
  load(0);
  for (int i = 0; i < count; ++i) {
    load(i + 1);
    cp_async_wait<pending>();
    if (barrier) __syncwarp();
    for (int k = 0; k < 4; ++k) /* the neighbour's */
      out[i * 128 + t * 4 + k] = stage[i % 2 * 128 + (t + 1) % 32 * 4 + k];
    __syncwarp();
  }
}

/* Warp 0 fills, warp 1 empties. */
__global__ static void hand_over(int *out, int rounds, bool forget) {
  ASSAY_SHARED(int, box, 32);
  const unsigned l = threadIdx.x % 32;
  for (int i = 0; i < rounds; ++i) {
    if (threadIdx.x < 32) {
      if (i > 0) named_barrier_sync(2, 64);
      box[l] = i * 100 + static_cast<int>(l);
      named_barrier_arrive(1, 64);
    } else {
      named_barrier_sync(1, 64);
      out[static_cast<unsigned>(i) * 32 + l] = box[31 - l];
      if (i + 1 < rounds && !forget) named_barrier_arrive(2, 64);
    }
  }
}

__global__ static void counts_differ(int *out) {
  named_barrier_sync(3, threadIdx.x < 32 ? 64 : 96);
  out[threadIdx.x] = 1;
}

/* ---- tests --------------------------------------------------------------------------------------------- */

template <class T, bool trans> static void check_product() {
  const std::vector<T> a = small_values<T>(256, 1), b = small_values<T>(128, 2);
  floats c(128);
  RUN((product<T, trans>), 1, 32, 0, a.data(), b.data(), c.data());
  for (size_t m = 0; m < 16; ++m)
    for (size_t n = 0; n < 8; ++n) {
      float sum = 1.0f;
      for (size_t k = 0; k < 16; ++k)
        sum += to_float(a[m * 16 + k]) * to_float(trans ? b[k * 8 + n] : b[n * 16 + k]);
      cr_assert_eq(c[m * 8 + n], sum, "(%zu, %zu): %g, not %g", m, n, static_cast<double>(c[m * 8 + n]),
                   static_cast<double>(sum));
    }
}

Test(simt_mma, products) {
  for (uint64_t seed = 0; seed < 4; ++seed) {
    schedule(seed);
    check_product<bf16, false>();
    check_product<bf16, true>();
    check_product<f16, false>();
    check_product<f16, true>();
  }
}

/* One row, one column: c + a[0] b[0] + a[1] b[1] + ... */
static float sum_of(bool half, float c, std::initializer_list<std::pair<float, float>> terms) {
  float a[16] = {}, b[16] = {};
  size_t k = 0;
  for (const auto &[x, y] : terms) {
    a[k] = x;
    b[k++] = y;
  }
  assay_simt_host::tensor_products(1, 1, a, b, half, &c);
  return c;
}

/* The sum that a tensor core cuts. A sum in f32 gives the other number. */
Test(simt_mma, sums_are_cut) {
  for (const bool half : {false, true}) {
    cr_expect_eq(sum_of(half, 0x1p25f, {{1.0f, 3.0f}}), 0x1p25f, "not rounded up to 2^25 + 4");
    cr_expect_eq(sum_of(half, -0x1p25f, {{1.0f, -3.0f}}), -0x1p25f, "towards zero, not down");
    cr_expect_eq(sum_of(half, 0x1.8p-25f, {{1.5f, 1.5f}, {1.5f, -1.5f}}), 0x1p-25f,
                 "2^-25 of the largest stays, and the exponent of 1.5 · 1.5 is 0 + 0");
    cr_expect_eq(sum_of(half, -0x1.8p-25f, {{1.5f, 1.5f}, {1.5f, -1.5f}}), -0x1p-25f);
    cr_expect_eq(sum_of(half, 0x1.8p-26f, {{1.0f, 1.0f}, {1.0f, -1.0f}}), 0.0f);
    cr_expect_eq(sum_of(half, 3.0f, {{0.0f, 4096.0f}, {0.5f, 0.5f}}), 3.25f, "a product of 0 has no exponent");
  }
  cr_expect_eq(sum_of(true, 0x1p-40f, {{0x1p-24f, 1.0f}}), 0x1p-24f, "a subnormal has the least exponent");
  cr_expect_eq(sum_of(false, 0x1p-40f, {{0x1p-24f, 1.0f}}), 0x1p-24f + 0x1p-40f);
  cr_expect_eq(sum_of(false, 0.0f, {{0x1p100f, 0x1p100f}}), INFINITY);
}

Test(simt_mma, what_is_no_number_stays_in_its_column) {
  float a[2 * 16] = {}, b[16 * 3] = {}, d[2 * 3] = {1, 1, 1, 1, 1, 1};
  a[16] = 2.0f;
  b[0] = 0.5f;
  b[1] = NAN;
  b[2] = INFINITY;
  assay_simt_host::tensor_products(2, 3, a, b, false, d);
  cr_expect_eq(d[0], 1.0f);
  cr_expect(std::isnan(d[1]), "0 · NaN");
  cr_expect(std::isnan(d[2]), "0 · Inf");
  cr_expect_eq(d[3], 2.0f);
  cr_expect(std::isnan(d[4]));
  cr_expect_eq(d[5], INFINITY);
}

Test(simt_mma, half_a_warp_hangs) {
  floats out(32);
  cr_expect_eq(LAUNCH(half_a_warp_multiplies, 1, 32, 0, out.data()), ASSAY_ERR_HANG);
  SAYS("mma");
  SAYS("simt_mma_test.cpp:");
}

Test(simt_mma, matrices) {
  std::vector<uint16_t> in(256), out(256), turned(256);
  for (size_t i = 0; i < 256; ++i)
    in[i] = static_cast<uint16_t>(i * 7);
  RUN(matrices_there_and_back, 1, 32, 0, in.data(), out.data(), turned.data());
  for (size_t m = 0; m < 4; ++m)
    for (size_t r = 0; r < 8; ++r)
      for (size_t k = 0; k < 8; ++k) {
        cr_assert_eq(out[m * 64 + r * 8 + k], in[m * 64 + r * 8 + k]);
        cr_assert_eq(turned[m * 64 + r * 8 + k], in[m * 64 + k * 8 + r]);
      }
}

Test(simt_mma, pairs_and_bytes) {
  float low, high;
  unpack_pair<bf16>(pack_pair<bf16>(1.5f, -2.0f), low, high);
  cr_expect(low == 1.5f && high == -2.0f);
  unpack_pair<f16>(pack_pair<f16>(0.25f, 3.0f), low, high);
  cr_expect(low == 0.25f && high == 3.0f);
  cr_expect_eq(byte_permute(0x33221100u, 0x77665544u, 0x7531u), 0x77553311u);
  cr_expect_eq(fma_saturate(2.0f, 3.0f, 1.0f), 1.0f);
  cr_expect_eq(fma_saturate(2.0f, -3.0f, 1.0f), 0.0f);
  cr_expect_eq(fma_saturate(NAN, 1.0f, 1.0f), 0.0f);
  cr_expect_eq(fma_saturate(0.5f, 0.5f, 0.25f), 0.5f);
}

template <int pending, bool barrier> static bool stages_right(uint64_t seed) {
  const int count = 5;
  floats in(count * 128), out(count * 128);
  for (size_t i = 0; i < in.size(); ++i)
    in[i] = static_cast<float>(i + 1);
  schedule(seed);
  RUN((stages<pending, barrier>), 1, 32, 0, in.data(), out.data(), count);
  for (size_t i = 0; i < count; ++i)
    for (size_t t = 0; t < 128; ++t) {
      const size_t from = (t + 4) % 128;
      if (out[i * 128 + t] != (from > 124 ? 0.0f : in[i * 128 + from])) return false;
    }
  return true;
}

Test(simt_mma, copies_arrive_at_their_wait) {
  int without_barrier = 0;
  for (uint64_t seed = 0; seed < 20; ++seed) {
    cr_assert((stages_right<1, true>(seed)));
    cr_assert((stages_right<0, true>(seed)));
    cr_assert_not((stages_right<2, true>(seed)), "a wait that leaves too many groups");
    without_barrier += stages_right<1, false>(seed);
  }
  cr_expect_eq(without_barrier, 0);
}

Test(simt_mma, named_barriers) {
  ints out(32 * 6);
  for (uint64_t seed = 0; seed < 50; ++seed) {
    schedule(seed);
    RUN(hand_over, 1, 64, 0, out.data(), 6, false);
    for (int i = 0; i < 6; ++i)
      for (int l = 0; l < 32; ++l)
        cr_assert_eq(out[static_cast<size_t>(i * 32 + l)], i * 100 + 31 - l);
  }
  cr_expect_eq(LAUNCH(hand_over, 1, 64, 0, out.data(), 2, true), ASSAY_ERR_HANG);
  SAYS("named_barrier_sync 2, where 32 of 64 threads are");
  cr_expect_eq(LAUNCH(counts_differ, 1, 96, 0, out.data()), ASSAY_ERR_HANG);
  SAYS("illegal barrier");
}
