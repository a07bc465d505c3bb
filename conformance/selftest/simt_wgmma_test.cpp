/* simt_wgmma_test.cpp: products of a warpgroup: layouts, and what each forgotten step does. */
#include <criterion/criterion.h>

#include "simt_fixture.h"

TestSuite(simt_wgmma, .init = open_simt, .timeout = 60);

enum {
  RIGHT,
  NO_PROXY_FENCE,
  PROXY_FENCE_BY_ONE,
  NO_WGMMA_FENCE,
  NO_WAIT,
  READ_EARLY,
  WRITE_EARLY, /* accumulators */
  OVERWRITE_A, /* registers under way */
  OVERWRITE_B, /* shared memory under way */
  ONE_WARP_LESS,
  LANES_DIFFER,
};

struct Plan {
  uint32_t stride_a, leading_a, stride_b, leading_b;
  tensor_swizzle swizzle_a, swizzle_b;
  int steps, next_a, next_b; /* steps of k; bytes from one to the next */
};

constexpr int image = 32 * 1024;

/* d (64 x N) = a · b + 1; the operands come as images of shared memory. */
template <class T, int N, bool trans_b, bool registers>
__global__ static void product(const unsigned char *a, const unsigned char *b, const T *rows, Plan plan, float *out,
                               int wrong) {
  ASSAY_DYNAMIC_SHARED_1024(unsigned char, tiles);
  unsigned char *const sa = tiles, *const sb = tiles + image;
  const uint32_t t = threadIdx.x, lane = t % 32, row = t / 32 * 16 + lane / 4, column = lane % 4 * 2;
  for (uint32_t i = t; i < image; i += 128) {
    sa[i] = a[i];
    sb[i] = b[i];
  }
  if (wrong != NO_PROXY_FENCE && (wrong != PROXY_FENCE_BY_ONE || t == 0)) fence_proxy_async();
  __syncthreads();
  uint32_t fragment[16];
  for (int s = 0; registers && s < plan.steps; ++s)
    for (uint32_t i = 0; i < 4; ++i)
      memcpy(fragment + s * 4 + i,
             rows + (row + i % 2 * 8) * static_cast<uint32_t>(plan.steps) * 16 + static_cast<uint32_t>(s) * 16 +
                 column + i / 2 * 8,
             4);
  const uint64_t da = wgmma_descriptor(sa, plan.stride_a, plan.leading_a, plan.swizzle_a);
  const uint64_t db = wgmma_descriptor(sb, plan.stride_b, plan.leading_b, plan.swizzle_b);
  float d[N / 2];
  for (int i = 0; i < N / 2; ++i)
    d[i] = 1.0f;
  if (wrong != NO_WGMMA_FENCE) wgmma_fence();
  for (int s = 0; s < plan.steps; ++s) {
    if (wrong == ONE_WARP_LESS && t >= 96) break;
    const uint64_t ahead_a = static_cast<uint64_t>(s * plan.next_a >> 4);
    const uint64_t ahead_b = static_cast<uint64_t>(s * plan.next_b >> 4) + (wrong == LANES_DIFFER && t == 5 ? 1 : 0);
    if constexpr (registers)
      wgmma_m64k16<T, N, trans_b>(d, fragment, s * 4, db + ahead_b, true);
    else
      wgmma_m64k16<T, N, trans_b>(d, da + ahead_a, db + ahead_b, true);
  }
  wgmma_commit();
  if (wrong == OVERWRITE_A) fragment[0] = 0;
  if (wrong == OVERWRITE_B) {
    if (t == 0) sb[0] = static_cast<unsigned char>(sb[0] ^ 0x42u);
    if (t == 0) fence_proxy_async();
  }
  if (wrong == WRITE_EARLY) d[0] = 5.0f;
  float early = 0.0f;
  if (wrong == READ_EARLY) early = d[0] * 0.0f;
  if (wrong != NO_WAIT) wgmma_wait<0>();
  wgmma_order(d);
  d[0] += early;
  for (uint32_t i = 0; i < N / 2; ++i)
    out[(row + i / 2 % 2 * 8) * N + i / 4 * 8 + column + i % 2] = d[i];
}

static size_t swizzled(size_t at, tensor_swizzle s) {
  const size_t mask = s == swizzle_128 ? 7 : s == swizzle_64 ? 3 : s == swizzle_32 ? 1 : 0;
  return at ^ ((at >> 7 & mask) << 4);
}

static size_t width(tensor_swizzle s) {
  return s == swizzle_128 ? 128 : s == swizzle_64 ? 64 : s == swizzle_32 ? 32 : 16;
}

/* Byte of element (row, k), K-major. */
static size_t place_k(tensor_swizzle s, size_t row, size_t k) {
  if (s == swizzle_none) return row % 8 * 16 + row / 8 * 256 + k / 8 * 128 + k % 8 * 2;
  return swizzled(row * width(s) + k * 2, s);
}

/* Byte of element (k, n), MN-major, K of them. */
static size_t place_n(tensor_swizzle s, size_t K, size_t k, size_t n) {
  if (s == swizzle_none) return n / 8 * 256 + k / 8 * 128 + k % 8 * 16 + n % 8 * 2;
  const size_t across = width(s) / 2;
  return swizzled(n / across * K * width(s) + k * width(s) + n % across * 2, s);
}

template <class T, int N, bool trans_b, bool registers>
static assay_status run(tensor_swizzle s, tensor_swizzle said, int wrong, bool *right) {
  const uint32_t w = static_cast<uint32_t>(width(s));
  const int steps = s == swizzle_none ? 1 : static_cast<int>(w / 32);
  const size_t K = static_cast<size_t>(steps) * 16;
  const std::vector<T> a = small_values<T>(64 * K, 3), b = small_values<T>(K * N, 4);
  std::vector<unsigned char> ia(image, 0x3F), ib(image, 0x3F);
  for (size_t k = 0; k < K; ++k) {
    for (size_t m = 0; m < 64; ++m)
      memcpy(&ia[place_k(s, m, k)], &a[m * K + k], 2);
    for (size_t n = 0; n < N; ++n)
      memcpy(&ib[trans_b ? place_n(s, K, k, n) : place_k(s, n, k)], &b[k * N + n], 2);
  }
  const bool plain = s == swizzle_none;
  const Plan plan = {plain ? 256 : 8 * w,
                     plain ? 128u : 0u,
                     plain ? 256 : 8 * w,
                     plain ? 128u : static_cast<uint32_t>(K) * w,
                     s,
                     said,
                     steps,
                     32,
                     trans_b ? static_cast<int>(16 * w) : 32};
  floats out(64 * N);
  const assay_status status = LAUNCH((product<T, N, trans_b, registers>), 1, 128, 2 * image, ia.data(), ib.data(),
                                     a.data(), plan, out.data(), wrong);
  *right = true;
  for (size_t m = 0; m < 64; ++m)
    for (size_t n = 0; n < N; ++n) {
      float sum = 1.0f;
      for (size_t k = 0; k < K; ++k)
        sum += to_float(a[m * K + k]) * to_float(b[k * N + n]);
      *right = *right && out[m * N + n] == sum;
    }
  return status;
}

template <class T, int N, bool trans_b, bool registers> static void check() {
  for (tensor_swizzle s : {swizzle_none, swizzle_32, swizzle_64, swizzle_128}) {
    bool right;
    cr_assert_eq((run<T, N, trans_b, registers>(s, s, RIGHT, &right)), ASSAY_OK, "%s", message.text);
    cr_assert(right, "N %d, trans %d, registers %d, swizzle %d", N, trans_b, registers, s);
    const tensor_swizzle other = s == swizzle_none ? swizzle_128 : swizzle_none;
    const assay_status status = run<T, N, trans_b, registers>(s, other, RIGHT, &right);
    cr_assert(status != ASSAY_OK || !right, "another swizzle is right too");
  }
}

template <class T, int N> static void check_forms() {
  check<T, N, false, false>();
  check<T, N, true, false>();
  check<T, N, false, true>();
  check<T, N, true, true>();
}

Test(simt_wgmma, layouts) {
  check_forms<bf16, 16>();
  check_forms<f16, 32>();
  check_forms<bf16, 64>();
  check_forms<f16, 128>();
  check_forms<bf16, 256>();
}

static assay_status mistake(int wrong, bool *right) {
  return run<bf16, 64, false, true>(swizzle_128, swizzle_128, wrong, right);
}

Test(simt_wgmma, mistakes_give_wrong_numbers) {
  bool right;
  for (uint64_t seed = 0; seed < 5; ++seed)
    for (int wrong : {RIGHT, NO_PROXY_FENCE, PROXY_FENCE_BY_ONE, READ_EARLY, OVERWRITE_A, OVERWRITE_B}) {
      schedule(seed);
      cr_assert_eq(mistake(wrong, &right), ASSAY_OK, "%s", message.text);
      cr_assert_eq(right, wrong == RIGHT, "mistake %d, seed %d", wrong, static_cast<int>(seed));
    }
}

Test(simt_wgmma, mistakes_that_are_named) {
  bool right;
  cr_expect_eq(mistake(NO_WGMMA_FENCE, &right), ASSAY_ERR_DEVICE);
  SAYS("no wgmma_fence");
  SAYS("simt_wgmma_test.cpp:");
  cr_expect_eq(mistake(WRITE_EARLY, &right), ASSAY_ERR_DEVICE);
  SAYS("written before the wait");
  cr_expect_eq(mistake(NO_WAIT, &right), ASSAY_ERR_DEVICE);
  SAYS("without a wait");
  cr_expect_eq(mistake(ONE_WARP_LESS, &right), ASSAY_ERR_DEVICE);
  SAYS("different numbers of wgmma");
  cr_expect_eq(mistake(LANES_DIFFER, &right), ASSAY_ERR_DEVICE);
  SAYS("different products");
}

/* Two groups under way: the older one's accumulators are there after wait<1>, the younger one's are not. */
__global__ static void two_groups(const unsigned char *b, float *older, float *younger) {
  ASSAY_DYNAMIC_SHARED_1024(unsigned char, tile);
  for (uint32_t i = threadIdx.x; i < 4096; i += 128)
    tile[i] = b[i];
  fence_proxy_async();
  __syncthreads();
  const uint64_t db = wgmma_descriptor(tile, 256, 128, swizzle_none);
  float x[8], y[8];
  wgmma_fence();
  wgmma_m64k16<bf16, 16>(x, db, db, false);
  wgmma_commit();
  wgmma_m64k16<bf16, 16>(y, db, db, false);
  wgmma_commit();
  wgmma_wait<1>();
  older[threadIdx.x] = x[0];
  younger[threadIdx.x] = y[0];
  wgmma_wait<0>();
}

Test(simt_wgmma, groups) {
  std::vector<unsigned char> b(4096, 0x3F);
  floats older(128), younger(128);
  RUN(two_groups, 1, 128, 4096, b.data(), older.data(), younger.data());
  for (size_t i = 0; i < 128; ++i)
    cr_assert(std::isfinite(older[i]) && std::isnan(younger[i]));
}
