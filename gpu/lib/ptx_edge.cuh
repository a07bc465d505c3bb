/* ptx_edge.cuh: wrappers of inline PTX that few kernels use, each with a second body for simt. They are apart from
 * ptx.cuh, which every kernel includes. */
#ifndef ASSAY_GPU_LIB_PTX_EDGE_CUH
#define ASSAY_GPU_LIB_PTX_EDGE_CUH

#include "gpu/lib/ptx_async.cuh"

namespace ASSAY_NS {

/* Returns 1 / x, accurate to 1 ulp. On cuda subnormal numbers count as 0, so that results below 2^-126 become 0. The
 * reciprocals of powers of two are exact; that of infinity is 0. */
__device__ __forceinline__ float reciprocal_approx(float x) {
#ifdef ASSAY_SIMT
  const float y = 1.0f / x;
  return fabsf(y) < 0x1p-126f ? 0.0f : y;
#else
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#endif
}

/* Returns 1 / sqrt(x), with a relative error of at most 2^-22. It is infinite for 0, and 0 for infinity. */
__device__ __forceinline__ float rsqrt_approx(float x) {
#ifdef ASSAY_SIMT
  return 1.0f / sqrtf(x);
#else
  float y;
  asm("rsqrt.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#endif
}

/* Returns the lower bits of the multiprocessor's clock. */
__device__ __forceinline__ uint32_t clock_cycles() {
#ifdef ASSAY_SIMT
  return unjudged_clock();
#else
  uint32_t now;
  asm volatile("mov.u32 %0, %%clock;" : "=r"(now));
  return now;
#endif
}

/* Returns the greater number, or NaN if either is NaN. */
__device__ __forceinline__ float max_or_nan(float a, float b) {
#ifdef ASSAY_SIMT
  return a != a || b != b ? a + b : fmaxf(a, b);
#else
  float greater;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(greater) : "f"(a), "f"(b));
  return greater;
#endif
}

/* Stores to shared memory on a condition, without a branch. */
__device__ __forceinline__ void store_if(bool condition, uint32_t *shared, uint32_t value) {
#ifdef ASSAY_SIMT
  if (condition) *shared = value;
#else
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.u32 p, %0, 0;\n@p st.shared.u32 [%1], %2;\n}" ::"r"(static_cast<uint32_t>(condition)),
      "r"(shared_address(shared)), "r"(value)
      : "memory");
#endif
}

/* Returns the value plus that of the lane `step` below, if the latter is one of the same `lanes` lanes. */
template <int lanes> __device__ __forceinline__ int32_t add_from_below(int32_t value, int step) {
#ifdef ASSAY_SIMT
  const int32_t other = __shfl_up_sync(0xffffffffu, value, static_cast<unsigned>(step), lanes);
  return static_cast<int>(lane_id() % lanes) >= step ? value + other : value;
#else
  int32_t sum;
  asm volatile("{\n.reg .s32 r;\n.reg .pred p;\nshfl.sync.up.b32 r|p, %1, %2, %3, 0xffffffff;\n"
               "@p add.s32 r, r, %1;\nmov.s32 %0, r;\n}"
               : "=r"(sum)
               : "r"(value), "r"(step), "n"((32 - lanes) << 8));
  return sum;
#endif
}

/* Take two bf16 in a word at once. The first returns the greater ones, or NaN; the second 0xffff where a >= b. */
__device__ __forceinline__ uint32_t bf16_pair_max_or_nan(uint32_t a, uint32_t b) {
#if defined(ASSAY_SIMT) || __CUDA_ARCH__ < 900
  const float low = max_or_nan(float_of(a << 16), float_of(b << 16));
  const float high = max_or_nan(float_of(a & 0xffff0000u), float_of(b & 0xffff0000u));
  return bits_of(low) >> 16 | (bits_of(high) & 0xffff0000u);
#else
  uint32_t greater;
  asm("max.NaN.bf16x2 %0, %1, %2;" : "=r"(greater) : "r"(a), "r"(b));
  return greater;
#endif
}
__device__ __forceinline__ uint32_t bf16_pair_reaches(uint32_t a, uint32_t b) {
#if defined(ASSAY_SIMT) || __CUDA_ARCH__ < 900
  return (float_of(a << 16) >= float_of(b << 16) ? 0xffffu : 0u) |
         (float_of(a & 0xffff0000u) >= float_of(b & 0xffff0000u) ? 0xffff0000u : 0u);
#else
  uint32_t mask;
  asm("set.ge.u32.bf16x2 %0, %1, %2;" : "=r"(mask) : "r"(a), "r"(b));
  return mask;
#endif
}

/* Stores 16 bytes that this launch does not read again. The cache gives them up first. The address must be a multiple
 * of 16. */
__device__ __forceinline__ void store_stream_16(void *address, const uint4 &v) {
#ifdef ASSAY_SIMT
  if (reinterpret_cast<uintptr_t>(address) % 16 != 0)
    assay_simt->fault("store_stream_16: address is not a multiple of 16", __FILE__, __LINE__);
  memcpy(address, &v, sizeof v);
#else
  asm volatile("st.global.cs.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(address), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w)
               : "memory");
#endif
}

} // namespace ASSAY_NS
#endif
