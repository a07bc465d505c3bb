/* merge_states.cu: results of splits merged by their logarithms.
 *
 *   max = max_s lse_s,  w_s = exp(lse_s - max),  out = sum_s w_s o_s / sum_s w_s,  lse = max + ln sum_s w_s
 *
 * A split with lse -inf has weight 0 and its o is not read; where all are empty out is 0 and lse -inf. One variant: a
 * block a state (states). docs/kernels/merge_states.md has the arithmetic. */
#include "gpu/lib/launch.h"
#include "gpu/lib/plain.h"

namespace ASSAY_NS {
namespace {

struct merge_params {
  const void *o;
  const float *lse;
  void *out;
  float *lse_out; /* NULL: not wanted */
  int64_t states; /* N * H */
  int32_t splits, D;
  assay_dtype type, out_type;
};

constexpr int merge_threads = 128;

/* exp(x - peak) for x <= peak; 0 for x = -inf. expf: 2 ulp. */
__device__ __forceinline__ float weight_of(float x, float peak) {
  return x == -INFINITY ? 0.0f : expf(x - peak);
}

/* merge_one: one row and head.
 * Grid:   (N * H). Block: 32, 64, 96 or 128 threads: one a channel, + blockDim.x, ...; each makes every weight itself.
 * Shared: none.
 * Align:  by element.
 * Arch:   any.
 * Limit:  bytes: splits * (D * sizeof(o) + 4) a state. */
template <class T, class Out> __global__ void __launch_bounds__(merge_threads) merge_one(merge_params p) {
  const int64_t state = blockIdx.x;
  float peak = -INFINITY, total = 0.0f;
  for (int32_t s = 0; s < p.splits; ++s)
    peak = fmaxf(peak, p.lse[s * p.states + state]);
  for (int32_t s = 0; s < p.splits; ++s)
    total += weight_of(p.lse[s * p.states + state], peak);
  for (int32_t d = static_cast<int32_t>(threadIdx.x); d < p.D; d += static_cast<int32_t>(blockDim.x)) {
    float sum = 0.0f;
    for (int32_t s = 0; s < p.splits; ++s) {
      const float w = weight_of(p.lse[s * p.states + state], peak);
      if (w == 0.0f) continue; /* an empty split: its o may be anything */
      sum += w * to_float(static_cast<const T *>(p.o)[(s * p.states + state) * p.D + d]);
    }
    static_cast<Out *>(p.out)[state * p.D + d] = from_float<Out>(total == 0.0f ? 0.0f : sum / total);
  }
  if (p.lse_out != nullptr && threadIdx.x == 0) p.lse_out[state] = total == 0.0f ? -INFINITY : peak + logf(total);
}

assay_status read_call(const assay_call *call, merge_params *p, assay_error *error) {
  plain_call c;
  ASSAY_TRY(plain_read(call, &c, error));
  ASSAY_TRY(expect_type("o", c.type("o"), error));
  ASSAY_TRY(expect_type("out", c.type("out"), error));
  p->o = c.data<const void>("o");
  p->lse = c.data<const float>("lse");
  p->out = c.data<void>("out");
  p->lse_out = c.data<float>("lse_out");
  p->states = c.dim("N") * c.dim("H");
  p->splits = c.dim32("splits");
  p->D = c.dim32("D");
  p->type = c.type("o");
  p->out_type = c.type("out");
  return ASSAY_OK;
}

assay_status launch(const assay_call *call, assay_env *env, assay_error *error) {
  merge_params p;
  ASSAY_TRY(read_call(call, &p, error));
  const int32_t threads = p.D >= merge_threads ? merge_threads : (p.D + 31) / 32 * 32;
  (void)snprintf(env->path, sizeof env->path, "states threads=%d", threads);
  return with_type(p.type, [&](auto type) {
    return with_type(p.out_type, [&](auto out) {
      using T = typename decltype(type)::type;
      using Out = typename decltype(out)::type;
      return ASSAY_LAUNCH(error, (merge_one<T, Out>), p.states, threads, 0, env->stream, p);
    });
  });
}

/* f32 throughout, one running sum a channel; expf and logf: 2 ulp. */
constexpr assay_contract contract = {ASSAY_NONE, ASSAY_NONE, ASSAY_NONE, ASSAY_NONE, ASSAY_NONE,         2.0,
                                     1,          1,          0,          0.0,        ASSAY_V_MULTIPLIED, true,
                                     true,       true,       1,          ASSAY_NONE};

} // namespace
} // namespace ASSAY_NS

#ifdef ASSAY_FEW_TYPES
#define MERGE_CLAIMS "f32,bf16|same,f32,bf16"
#else
#define MERGE_CLAIMS "f32,f16,bf16|same,f32,f16,bf16"
#endif

ASSAY_VARIANTS(merge_states, PLAIN_VARIANT("merge_states", "states", "the plainest: one block a row and head",
                                           MERGE_CLAIMS, contract, merge_params, read_call, launch))
