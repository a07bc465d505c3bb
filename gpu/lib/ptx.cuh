/* ptx.cuh: wrappers of inline PTX, each with a second body for simt. Tensor cores are in ptx_mma.cuh and ptx_wgmma.cuh;
 * copies, barriers and clusters are in ptx_async.cuh. */
#ifndef ASSAY_GPU_PTX_CUH
#define ASSAY_GPU_PTX_CUH

#include "gpu/lib/launch.h"

/* Last parameter of a wrapper about which simt may complain: the caller's line. ASSAY_AT_ALONE: for a wrapper without
 * other parameters. */
#ifdef ASSAY_SIMT
#define ASSAY_AT_ALONE const char *file = __builtin_FILE(), int32_t line = __builtin_LINE()
#define ASSAY_AT       , ASSAY_AT_ALONE
#else
#define ASSAY_AT_ALONE
#define ASSAY_AT
#endif

namespace ASSAY_NS {

/* Returns the number of the thread within its warp, for blocks of every shape. */
__device__ __forceinline__ unsigned lane_id() {
#ifdef ASSAY_SIMT
  return assay_simt->now->thread->lane;
#else
  unsigned lane;
  asm("mov.u32 %0, %%laneid;" : "=r"(lane));
  return lane;
#endif
}

#ifndef ASSAY_SIMT
__device__ __forceinline__ uint32_t shared_address(const void *shared) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(shared));
}
#endif

/* Loads 16 bytes that no thread writes during the launch and that this block reads once. They are not kept in L1. The
 * address must be a multiple of 16. */
__device__ __forceinline__ uint4 load_once(const uint4 *address) {
#ifdef ASSAY_SIMT
  if (reinterpret_cast<uintptr_t>(address) % 16 != 0)
    assay_simt->fault("load_once: address is not a multiple of 16", __FILE__, __LINE__);
  return *address;
#else
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(address));
  return v;
#endif
}

/* Loads 16 bytes that an earlier launch wrote and many blocks read. They come from L2, bypassing L1, and the load keeps
 * its place among the other volatile instructions. The address must be a multiple of 16. */
__device__ __forceinline__ uint4 load_l2_16(const void *address) {
#ifdef ASSAY_SIMT
  if (reinterpret_cast<uintptr_t>(address) % 16 != 0)
    assay_simt->fault("load_l2_16: address is not a multiple of 16", __FILE__, __LINE__);
  return *static_cast<const uint4 *>(address);
#else
  uint4 v;
  asm volatile("ld.global.cg.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(address)
               : "memory");
  return v;
#endif
}

/* Returns 2^x. On cuda it is accurate to 2 ulp over the whole range, and results below 2^-126 become 0. */
__device__ __forceinline__ float exp2_approx(float x) {
#ifdef ASSAY_SIMT
  const float y = exp2f(x);
  return y < 0x1p-126f ? 0.0f : y;
#else
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#endif
}

/* Returns condition ? a : b, and never branches. For a select whose result is shuffled, the compiler otherwise splits
 * the warp and computes what follows twice. */
__device__ __forceinline__ float select_float(bool condition, float a, float b) {
#ifdef ASSAY_SIMT
  return condition ? a : b;
#else
  float y;
  asm("{\n.reg .pred p;\nsetp.ne.u32 p, %3, 0;\nselp.f32 %0, %1, %2, p;\n}"
      : "=f"(y)
      : "f"(a), "f"(b), "r"(static_cast<uint32_t>(condition)));
  return y;
#endif
}

} /* namespace ASSAY_NS */

#endif
