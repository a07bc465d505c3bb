/* gate_attention_stream.cu: decode of gate_attention at the speed of memory (gate_attention.cu has the arithmetic).
 *
 * One variant, `stream`: every warp walks alone over a run of keys of one (request, kv head), with the group's heads in
 * the columns of an mma (gpu/lib/stream.cuh). The filter is a shuffle a tap and block of 16 keys; lanes whose neighbour
 * lies in the block before keep its scores, and a run that begins inside a row reads the last keys before it once more.
 * V of a key that no head of the group needs is never read; a key that is dead for one head adds nothing to that head's
 * sum. Warps, then splits, are added in their order: the same call gives the same bits. The grid follows from the
 * capacity alone; lengths are read on the device. docs/kernels/gate_attention.md has what was measured. */
#include "gpu/lib/gate_call.h"
#include "gpu/lib/launch.h"
#include "gpu/lib/stream.cuh"
#include "gpu/lib/stream_plan.h"

namespace ASSAY_NS {
namespace {

/* ---- from scores to weights -------------------------------------------------------------------------- */

/* taps: F of them, 0 beyond. behind[i][k - 1]: for a lane whose key's k-th neighbour lies in the block before, that
 * neighbour's r, for the i-th head that the lane keeps. */
template <int heads, int taps_> struct gate_weigher {
  static constexpr int taps = taps_, halo = taps - 1;
  static constexpr int halves = stream_held<heads>::halves, width = stream_held<heads>::width;
  float scale, lo, hi, tap[taps], behind[width][halo];
  int32_t first, last, lane;
  bool relu_pre;

  __device__ __forceinline__ void begin(const gate_params &p, const stream_run &run) {
    scale = p.a.scale;
    lo = p.lo;
    hi = p.hi;
    relu_pre = p.relu_pre;
    first = run.first;
    last = run.last;
    lane = static_cast<int32_t>(threadIdx.x % 32);
    ASSAY_UNROLL
    for (int k = 0; k < taps; ++k)
      tap[k] = k < p.F ? p.taps[k] : 0.0f;
    ASSAY_UNROLL
    for (int i = 0; i < width; ++i)
      ASSAY_UNROLL
    for (int k = 0; k < halo; ++k)
      behind[i][k] = 0.0f;
  }

  /* r of the keys that this lane keeps; 0 outside the row's keys. */
  __device__ __forceinline__ void keep(const float (&score)[4], int32_t t, float (&r)[halves][width]) const {
    stream_keep<heads>(score, lane % 4, r);
    ASSAY_UNROLL
    for (int h = 0; h < halves; ++h) {
      const int32_t key = t + stream_kept_key<heads>(lane) + 8 * h;
      const bool visible = key >= first && key <= last;
      ASSAY_UNROLL
      for (int i = 0; i < width; ++i) {
        const float s = r[h][i] * scale;
        r[h][i] = visible ? (relu_pre ? fmaxf(s, 0.0f) : s) : 0.0f;
      }
    }
  }

  /* r of the k-th neighbour to the left, of head i; keeps what the next block needs. */
  __device__ __forceinline__ void left(const float (&r)[halves][width], int k, int i, float (&before)[halves]) {
    const int32_t g = lane / 4, j = lane % 4, from = 4 * ((g - k) & 7);
    const bool over = g < k; /* the neighbour lies in the other half */
    if constexpr (heads == 8) {
      const float low = __shfl_sync(all_lanes, r[0][i], from + j), high = __shfl_sync(all_lanes, r[1][i], from + j);
      before[0] = over ? behind[i][k - 1] : low;
      before[1] = over ? low : high;
      behind[i][k - 1] = high;
    } else {
      const float other = __shfl_sync(all_lanes, r[0][i], from + (over ? j ^ 2 : j));
      before[0] = over && j < 2 ? behind[i][k - 1] : other;
      behind[i][k - 1] = other;
    }
  }

  __device__ __forceinline__ void edge(const float (&score)[4], int32_t t) {
    float r[halves][width], before[halves];
    keep(score, t, r);
    ASSAY_UNROLL
    for (int i = 0; i < width; ++i) {
      ASSAY_UNROLL
      for (int k = 1; k < taps; ++k)
        left(r, k, i, before);
    }
  }

  template <class Sum>
  __device__ __forceinline__ uint32_t weigh(const float (&r)[halves][width], int32_t t, float *weight, Sum &) {
    float p[halves][width], before[halves];
    bool needed[halves] = {};
    ASSAY_UNROLL
    for (int i = 0; i < width; ++i) {
      ASSAY_UNROLL
      for (int h = 0; h < halves; ++h)
        p[h][i] = tap[0] * r[h][i];
      ASSAY_UNROLL
      for (int k = 1; k < taps; ++k) {
        left(r, k, i, before);
        ASSAY_UNROLL
        for (int h = 0; h < halves; ++h)
          p[h][i] += tap[k] * before[h];
      }
    }
    ASSAY_UNROLL
    for (int h = 0; h < halves; ++h) {
      const int32_t key = t + stream_kept_key<heads>(lane) + 8 * h;
      const bool visible = key >= first && key <= last;
      ASSAY_UNROLL
      for (int i = 0; i < width; ++i) {
        p[h][i] = visible ? fminf(fmaxf(p[h][i], lo), hi) : 0.0f;
        needed[h] = needed[h] || p[h][i] != 0.0f;
      }
    }
    stream_put_weights<heads>(p, lane, weight);
    return stream_mask<heads>(needed);
  }
};

/* ---- kernels ----------------------------------------------------------------------------------------- */

/* Warps of a multiprocessor that the registers allow: 12 with 168 a thread, 8 with 255. */
constexpr int gate_stream_warps(int D, int heads, int taps) {
  return D == 128 && (taps > 3 || heads == 8) ? 8 : 12;
}

/* gate_stream: the keys of one (row, kv head), or one split of them.
 * Grid:   (N rows * H_kv, splits). Block: 12, 6 or 3 warps, or 8, 4, 2, each with a run of its own.
 * Shared: stream_shared_floats a warp: q, the weights of two blocks of 16 keys; then its sums.
 * Align:  16 bytes: q, K, V, all their strides. Arch: sm_80 and above.
 * Limit:  bytes: L * D * sizeof(T) of K, as much of V as is live for any head of the group, a row and kv head. */
template <class T, int D, int heads, int taps>
__global__ void __launch_bounds__(32 * gate_stream_warps(D, heads, taps), 1) gate_stream(gate_params p) {
  ASSAY_SHARED(float, gamma, heads);
  ASSAY_DYNAMIC_SHARED(float, shared);
  dependents_launch();
  dependency_wait();
  const attention_params &a = p.a;
  const int32_t thread = static_cast<int32_t>(threadIdx.x), threads = static_cast<int32_t>(blockDim.x);
  const uint32_t H_kv = static_cast<uint32_t>(a.H_kv);
  const int32_t kv_head = static_cast<int32_t>(blockIdx.x % H_kv);
  const int64_t segment = blockIdx.x, row = blockIdx.x / H_kv;
  const float factor = thread < a.G ? p.gamma[kv_head * a.G + thread] : 0.0f;
  uint4 q[D / 32];
  stream_load_query<T, D, heads>(a, row, kv_head, q);
  const stream_run run = stream_run_of(a, row, kv_head);
  gate_weigher<heads, taps> weigher;
  weigher.begin(p, run);
  float sum[D / 16][4] = {};
  float *const own = shared + thread / 32 * stream_shared_floats<D, heads>;
  stream_walk<T, D, heads>(a, run, q, own, weigher, sum);
  stream_put_sums<T, D, heads>(sum, own);
  if (thread < a.G) gamma[thread] = factor;
  __syncthreads(); /* the warps' sums and gamma are there */

  const int32_t count = a.G * D;
  for (int32_t i = thread; i < count; i += threads) {
    float total = 0.0f;
    for (int32_t w = 0; w < threads / 32; ++w)
      total += shared[w * stream_shared_floats<D, heads> + i];
    if (p.splits > 1)
      p.partial[(segment * p.splits + blockIdx.y) * count + i] = total;
    else
      static_cast<T *>(a.out)[segment * count + i] = from_float<T>(gamma[i / D] * total);
  }
}

constexpr int merge_threads = 128;

/* gate_stream_merge: adds the sums of a (row, kv head), in the order of the splits.
 * Grid: (N rows * H_kv). Block: 128. Shared: none. Arch: any. Limit: bytes: 4 G D a split. */
template <class T> __global__ void __launch_bounds__(merge_threads) gate_stream_merge(gate_params p) {
  dependency_wait();
  const attention_params &a = p.a;
  const int64_t segment = blockIdx.x;
  const int32_t count = a.G * a.D;
  for (int32_t i = static_cast<int32_t>(threadIdx.x); i < count; i += merge_threads) {
    const float *const partial = p.partial + segment * p.splits * count + i;
    float total = 0.0f;
    for (int32_t b = 0; b < p.splits; ++b)
      total += partial[static_cast<int64_t>(b) * count];
    const int64_t head = segment % a.H_kv * a.G + i / a.D;
    static_cast<T *>(a.out)[segment * count + i] = from_float<T>(p.gamma[head] * total);
  }
}

/* ---- launcher ---------------------------------------------------------------------------------------- */

stream_shape shape_of(const gate_params &p) {
  return stream_shape_of(p.a, gate_stream_warps(p.a.D, stream_heads(p.a.G), p.F <= 3 ? 3 : max_taps));
}

assay_status plan_stream(const assay_call *call, gate_plan *plan, assay_error *error) {
  ASSAY_TRY(gate_read(call, plan, error));
  ASSAY_TRY(expect_stream(call, plan->p.a, plan->types, error));
  /* Weights lie between lo and hi; cut into parts of f16 they are multiplied by 128. */
  const float most = fmaxf(fabsf(plan->p.lo), fabsf(plan->p.hi));
  if (plan->types.q == ASSAY_F16 && most > 511.0f)
    return assay_fail(error, ASSAY_ERR_UNSUPPORTED, "lo, hi: found %.9g, allowed with f16 up to 511",
                      static_cast<double>(most));
  const stream_shape shape = shape_of(plan->p);
  plan->p.splits = shape.splits;
  plan->workspace = stream_workspace(plan->p.a, shape, plan->p.a.D);
  return ASSAY_OK;
}

assay_status launch_stream(const assay_call *call, assay_env *env, assay_error *error) {
  gate_plan plan;
  ASSAY_TRY(plan_stream(call, &plan, error));
  ASSAY_TRY(expect_workspace(env, plan.workspace, error));
  gate_params &p = plan.p;
  const stream_shape shape = shape_of(p);
  (void)snprintf(env->path, sizeof env->path, "stream warps=%d splits=%d D=%d G=%d taps=%s", shape.warps, shape.splits,
                 p.a.D, p.a.G, p.F <= 3 ? "3" : "8");
  if (p.a.N == 0) return ASSAY_OK;
  p.partial = static_cast<float *>(env->workspace);
  return stream_with(plan.types.q, p.a.D, p.a.G, [&](auto type, auto channels, auto columns) {
    using T = typename decltype(type)::type;
    constexpr int D = decltype(channels)::is, heads = decltype(columns)::is;
    const int64_t segments = p.a.N * p.a.H_kv, shared = 4 * shape.warps * stream_shared_floats<D, heads>;
    const launch_extent grid(segments, shape.splits);
    ASSAY_TRY(p.F <= 3
                  ? ASSAY_LAUNCH(error, (gate_stream<T, D, heads, 3>), grid, 32 * shape.warps, shared, env->stream, p)
                  : ASSAY_LAUNCH(error, (gate_stream<T, D, heads, max_taps>), grid, 32 * shape.warps, shared,
                                 env->stream, p));
    if (shape.splits == 1) return ASSAY_OK;
    return ASSAY_LAUNCH(error, (gate_stream_merge<T>), segments, merge_threads, 0, env->stream, p);
  });
}

/* Scores, p and sums stay in f32; q . k is two chains of mma, of 16 products a step; sum p v is spread over at least
 * two lanes of a warp. */
constexpr assay_contract stream_contract = {ASSAY_NONE,
                                            ASSAY_NONE,
                                            ASSAY_NONE,
                                            ASSAY_NONE,
                                            ASSAY_NONE,
                                            0.0,
                                            2,
                                            2,
                                            0,
                                            0.0,
                                            ASSAY_V_SKIPPED_FOR_GROUP,
                                            true,
                                            true,
                                            true,
                                            1,
                                            ASSAY_NONE,
                                            false,
                                            tensor_core_terms,
                                            false};

} // namespace
} // namespace ASSAY_NS

#define STREAM                                                                                                         \
  {                                                                                                                    \
    sizeof(assay_variant), "gate_attention", "stream" ASSAY_VARIANT_SUFFIX,                                            \
        "decode at the speed of memory: a warp a run of keys, K straight into tensor cores, live V only",              \
        ASSAY_DEVICE_NAME, "any", STREAM_CLAIMS, ::ASSAY_NS::stream_contract,                                          \
        ::ASSAY_NS::supports_by<::ASSAY_NS::gate_params, ::ASSAY_NS::plan_stream>,                                     \
        ::ASSAY_NS::workspace_by<::ASSAY_NS::gate_params, ::ASSAY_NS::plan_stream>, ::ASSAY_NS::launch_stream          \
  }

ASSAY_VARIANTS(gate_attention_stream, STREAM)
