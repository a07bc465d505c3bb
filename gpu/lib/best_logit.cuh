/* best_logit.cuh: the largest logit of each row and its id, while logits come and go.
 *
 * A thread keeps the best of the logits that it sees. The workspace keeps the best of all threads, as one key per row.
 * Larger logits have larger keys, and of equal logits the lowest id has the largest. The largest key does not depend on
 * the order in which blocks give theirs. */
#ifndef ASSAY_GPU_LIB_BEST_LOGIT_CUH
#define ASSAY_GPU_LIB_BEST_LOGIT_CUH

#include "gpu/lib/plain.h"
#include "gpu/lib/ptx_async.cuh"
#include "gpu/lib/sampler.cuh"
#include "gpu/lib/warp.cuh"

namespace ASSAY_NS {

/* Above every finite logit: NaN or +Inf is among the row's. */
constexpr uint32_t best_broken = 0xFFFFFFFFu;

/* The best logit that a thread has seen of a row. */
struct best_logit {
  float value = -INFINITY;
  int32_t id = -1; /* -1: nothing above -Inf */
  bool broken = false;

  /* Takes a logit whose id is above those before. */
  __device__ __forceinline__ void take(float logit, int32_t of) {
    broken = broken || !(logit <= 3.402823466e38f);
    if (logit > value) {
      value = logit;
      id = of;
    }
  }
  __device__ __forceinline__ wide key() const {
    const uint32_t high = broken ? best_broken : ordered(bits_of(value + 0.0f));
    return static_cast<wide>(high) << 32 | static_cast<uint32_t>(~id);
  }
};

/* Where the rows' keys are, and where the results go. */
struct best_params {
  wide *keys; /* [R], in the workspace; 0 before the first logit */
  int32_t *token, *status;
  float *logit;
  int64_t R;
};

constexpr int best_threads = 128;

/* best_end: writes the results of the rows.
 * Grid:   R in pieces of 128. Block: 128 threads.
 * Shared: none.
 * Align:  by element.
 * Arch:   any.
 * Limit:  the launch. */
static __global__ void __launch_bounds__(best_threads) best_end(best_params p) {
  take_turn();
  const int64_t r = static_cast<int64_t>(blockIdx.x) * best_threads + threadIdx.x;
  if (r >= p.R) return;
  const wide key = p.keys[r];
  const uint32_t high = static_cast<uint32_t>(key >> 32);
  const int32_t id = static_cast<int32_t>(~static_cast<uint32_t>(key));
  const int32_t status = high == best_broken ? status_not_finite : id < 0 ? status_all_banned : status_ok;
  p.token[r] = status == status_ok ? id : -1;
  p.status[r] = status;
  p.logit[r] = status == status_ok ? float_of(value_bits(high)) : 0.0f;
}

inline assay_status best_launch_end(const best_params &p, assay_env *env, assay_error *error) {
  return ASSAY_LAUNCH_WITH(error, best_end, (p.R + best_threads - 1) / best_threads, best_threads, 0, in_turn(),
                           env->stream, p);
}

inline best_params best_read(const plain_call &c) {
  return {nullptr, c.data<int32_t>("token"), c.data<int32_t>("status"), c.data<float>("logit"), c.dim("R")};
}

} // namespace ASSAY_NS
#endif
