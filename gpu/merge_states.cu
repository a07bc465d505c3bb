/* merge_states.cu: results of splits merged by their logarithms.
 *
 *   max = max_s lse_s,  w_s = exp(lse_s - max),  out = sum_s w_s o_s / sum_s w_s,  lse = max + ln sum_s w_s
 *
 * With sink the denominator has one more term, exp(sink_h - max). A split with lse -inf has weight 0 and its o is not
 * read. Where all splits are empty, out is 0 and lse -inf. vectors: four warps share the splits of a state; states: one
 * block per state, by element. docs/kernels/merge_states.md has the arithmetic. */
#include "gpu/lib/launch.h"
#include "gpu/lib/plain.h"
#include "gpu/lib/vectors.cuh"
#include "gpu/lib/warp.cuh"

namespace ASSAY_NS {
namespace {

struct merge_params {
  const void *o;
  const float *lse, *sink; /* sink NULL: none */
  void *out;
  float *lse_out; /* NULL: not wanted */
  int64_t states; /* N * H */
  int32_t splits, D, H;
  assay_dtype type, out_type;
};

constexpr int merge_threads = 128;

/* Returns exp(x - peak) for x <= peak, and 0 for x = -inf. expf: 2 ulp. */
__device__ __forceinline__ float weight_of(float x, float peak) {
  return x == -INFINITY ? 0.0f : expf(x - peak);
}

/* Returns the denominator: the sum of the weights, and the term of the head's sink. It is infinite where exp is. */
__device__ __forceinline__ float whole_of(const merge_params &p, int64_t state, float total, float peak) {
  if (p.sink == nullptr || total == 0.0f) return total;
  return total + expf(p.sink[state % p.H] - peak);
}

/* merge_one: one row and head.
 * Grid:   (N * H). Block: 32, 64, 96 or 128 threads: one per channel, + blockDim.x, ...; each thread computes all
 * weights. Shared: none. Align:  by element. Arch:   any. Limit:  bytes: splits * (D * sizeof(o) + 4) per state. */
template <class T, class Out> __global__ void __launch_bounds__(merge_threads) merge_one(merge_params p) {
  const int64_t state = blockIdx.x;
  float peak = -INFINITY, total = 0.0f;
  for (int32_t s = 0; s < p.splits; ++s)
    peak = fmaxf(peak, p.lse[s * p.states + state]);
  for (int32_t s = 0; s < p.splits; ++s)
    total += weight_of(p.lse[s * p.states + state], peak);
  const float whole = whole_of(p, state, total, peak);
  for (int32_t d = static_cast<int32_t>(threadIdx.x); d < p.D; d += static_cast<int32_t>(blockDim.x)) {
    float sum = 0.0f;
    for (int32_t s = 0; s < p.splits; ++s) {
      const float w = weight_of(p.lse[s * p.states + state], peak);
      if (w == 0.0f) continue; /* an empty split: its o may be anything */
      sum += w * to_float(static_cast<const T *>(p.o)[(s * p.states + state) * p.D + d]);
    }
    static_cast<Out *>(p.out)[state * p.D + d] = from_float<Out>(total == 0.0f ? 0.0f : sum / whole);
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
  p->sink = c.data<const float>("sink");
  p->H = c.dim32("H");
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

/* ---- whole vectors ----------------------------------------------------------------------------------- */

constexpr int share_warps = 4, in_flight = 4;

/* merge_shared: a state. Warp w adds the splits w, w + 4, ...; each warp computes all weights, one per lane, 32 at a
 * time. A lane has `parts` vectors of channels, 32 apart. The four sums meet in shared memory. Grid:   (N * H). Block:
 * 128 threads. Shared: 1.5 KB per part (f32), 3 KB (16-bit types). Align:  bases are multiples of 16 bytes, D of whole
 * vectors. Arch:   any. Limit:  bytes: splits * (D * sizeof(o) + 4) per state. */
template <class T, class Out, int parts>
__global__ void __launch_bounds__(32 * share_warps) merge_shared(merge_params p) {
  constexpr int width = vector_width<T>;
  take_turn();
  ASSAY_SHARED(float, sums, (share_warps - 1) * parts * width * 32);
  const int64_t state = blockIdx.x;
  const int32_t warp = static_cast<int32_t>(threadIdx.x) / 32, lane = static_cast<int32_t>(threadIdx.x) % 32;
  float peak = -INFINITY, total = 0.0f, sum[parts][width] = {}, v[width];
  for (int32_t s = lane; s < p.splits; s += 32)
    peak = fmaxf(peak, p.lse[s * p.states + state]);
  peak = warp_max(peak);

  for (int32_t base = 0; base < p.splits; base += 32) {
    const float own = base + lane < p.splits ? weight_of(p.lse[(base + lane) * p.states + state], peak) : 0.0f;
    total += own;
    const int32_t end = min(p.splits - base, 32);
    for (int32_t j = warp; j < end; j += share_warps * in_flight) {
      uint4 o[in_flight][parts] = {};
      float w[in_flight];
      ASSAY_UNROLL
      for (int i = 0; i < in_flight; ++i) {
        const int32_t s = j + share_warps * i;
        w[i] = __shfl_sync(0xffffffffu, own, s & 31);
        if (s >= end) w[i] = 0.0f;
        if (w[i] == 0.0f) continue; /* an empty split: its o may be anything */
        const T *const from = static_cast<const T *>(p.o) + ((base + s) * p.states + state) * p.D;
        ASSAY_UNROLL
        for (int part = 0; part < parts; ++part)
          if (width * (lane + 32 * part) < p.D) o[i][part] = load_vector(from + width * (lane + 32 * part));
      }
      ASSAY_UNROLL
      for (int i = 0; i < in_flight; ++i) {
        ASSAY_UNROLL
        for (int part = 0; part < parts; ++part) {
          split_vector<T>(o[i][part], v);
          ASSAY_UNROLL
          for (int e = 0; e < width; ++e)
            sum[part][e] += w[i] * v[e];
        }
      }
    }
  }
  total = warp_sum(total);

  if (warp > 0) {
    ASSAY_UNROLL
    for (int part = 0; part < parts; ++part) {
      ASSAY_UNROLL
      for (int e = 0; e < width; ++e)
        sums[(((warp - 1) * parts + part) * width + e) * 32 + lane] = sum[part][e];
    }
  }
  __syncthreads(); /* the other warps' sums are written */
  if (warp > 0) return;
  const float whole = whole_of(p, state, total, peak);
  ASSAY_UNROLL
  for (int part = 0; part < parts; ++part) {
    const int32_t d = width * (lane + 32 * part);
    if (d >= p.D) break;
    ASSAY_UNROLL
    for (int e = 0; e < width; ++e) {
      ASSAY_UNROLL
      for (int w = 0; w < share_warps - 1; ++w)
        sum[part][e] += sums[((w * parts + part) * width + e) * 32 + lane];
      sum[part][e] = total == 0.0f ? 0.0f : sum[part][e] / whole;
    }
    store_rounded(static_cast<Out *>(p.out) + state * p.D + d, sum[part]);
  }
  if (p.lse_out != nullptr && lane == 0) p.lse_out[state] = total == 0.0f ? -INFINITY : peak + logf(total);
}

assay_status read_vectors(const assay_call *call, merge_params *p, assay_error *error) {
  ASSAY_TRY(read_call(call, p, error));
  const void *const bases[] = {p->o, p->out};
  for (const void *base : bases)
    if (reinterpret_cast<uintptr_t>(base) % 16 != 0)
      return assay_fail(error, ASSAY_ERR_UNSUPPORTED,
                        "o, out: found a base that is no multiple of 16 bytes, taken here: multiples");
  return ASSAY_OK; /* D is a multiple of 8 */
}

assay_status launch_vectors(const assay_call *call, assay_env *env, assay_error *error) {
  merge_params p;
  ASSAY_TRY(read_vectors(call, &p, error));
  const int32_t parts = p.D > 32 * static_cast<int32_t>(16 / assay_dtype_size(p.type)) ? 2 : 1;
  (void)snprintf(env->path, sizeof env->path, "vectors parts=%d", parts);
  return with_type(p.type, [&](auto type) {
    return with_type(p.out_type, [&](auto out) {
      using T = typename decltype(type)::type;
      using Out = typename decltype(out)::type;
      if constexpr (sizeof(T) == 4)
        if (parts == 2)
          return ASSAY_LAUNCH_WITH(error, (merge_shared<T, Out, 2>), p.states, 32 * share_warps, 0, in_turn(),
                                   env->stream, p);
      return ASSAY_LAUNCH_WITH(error, (merge_shared<T, Out, 1>), p.states, 32 * share_warps, 0, in_turn(), env->stream,
                               p);
    });
  });
}

/* f32 throughout, four running sums per channel; expf and logf: 2 ulp. */
constexpr assay_contract vectors_contract = {.exp_ulp = 2.0,
                                             .qk_lanes = 1,
                                             .pv_lanes = 1,
                                             .zero_p_v = ASSAY_V_MULTIPLIED,
                                             .run_to_run = true,
                                             .renumbering = true,
                                             .permutation = true,
                                             .lanes = 4,
                                             .alone = true};

/* f32 throughout, one running sum per channel; expf and logf: 2 ulp. */
constexpr assay_contract contract = {.exp_ulp = 2.0,
                                     .qk_lanes = 1,
                                     .pv_lanes = 1,
                                     .zero_p_v = ASSAY_V_MULTIPLIED,
                                     .run_to_run = true,
                                     .renumbering = true,
                                     .permutation = true,
                                     .lanes = 1,
                                     .alone = true};

} // namespace
} // namespace ASSAY_NS

#ifdef ASSAY_FEW_TYPES
#define MERGE_CLAIMS "f32,bf16|same,f32,bf16"
#else
#define MERGE_CLAIMS "f32,f16,bf16|same,f32,f16,bf16"
#endif

#define VECTORS                                                                                                        \
  PLAIN_VARIANT("merge_states", "vectors", "16 bytes a load, splits shared by four warps", MERGE_CLAIMS,               \
                vectors_contract, merge_params, read_vectors, launch_vectors)
#define STATES                                                                                                         \
  PLAIN_VARIANT("merge_states", "states", "the plainest: one block a row and head", MERGE_CLAIMS, contract,            \
                merge_params, read_call, launch)

ASSAY_VARIANTS(merge_states, VECTORS, STATES)
