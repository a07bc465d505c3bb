/* gate_stream_k.cuh: the streamed decode with the gate's weights (gate_stream.cuh), in even shares (stream_k.cuh).
 *
 * The filter needs the keys before a run. The warps of a piece therefore have adjacent blocks, not every n-th one, and
 * each reads the last keys before its run once more. These may lie in another piece of the same row, in another share.
 * Shares merge by adding, so a record is nothing but sums. */
#ifndef ASSAY_GPU_LIB_GATE_STREAM_K_CUH
#define ASSAY_GPU_LIB_GATE_STREAM_K_CUH

#include "gpu/lib/gate_stream.cuh"
#include "gpu/lib/stream_k.cuh"

namespace ASSAY_NS {

/* A walker (stream_k_body) that loads V one block after K, and only V of keys that some head needs. */
template <class T, class KV, int D, int heads> struct stream_k_sparse {
  stream_fragment<KV, D, heads> k;
  uint4 q[stream_query_loads<KV, D, heads>];

  __device__ __forceinline__ void load(const attention_params &a, const stream_run &run, int64_t block) {
    stream_load_query<T, KV, D, heads>(a, run.request, run.kv_head, q);
    stream_first_keys<KV, D, heads>(a.cache, run, block, k);
  }
  __device__ __forceinline__ void begin(const attention_params &, const stream_run &, int64_t, int64_t, float *) {}
  template <class Weigher, class Follow>
  __device__ __forceinline__ void walk(const attention_params &a, const stream_run &run, int64_t left, int64_t block,
                                       int64_t next, float *shared, Weigher &weigher, stream_sums<D, heads> &sum,
                                       Follow follow) {
    if (run.begin >= run.end) return;
    stream_walk_edge<T, KV, D, heads>(a, run, run.begin > run.origin, q, left, weigher, [] {});
    stream_walk_sparse<T, KV, D, heads>(a, run, q, k, block, next, shared, weigher, sum, follow);
  }
};

/* Returns the number of warps per thread block. Two thread blocks are on a multiprocessor. With six warps, 16 heads of
 * 64 channels spill 16 bytes. */
__host__ __device__ constexpr int gate_stream_k_warps(int D, int heads, int taps) {
  return (D == 96 && taps > 3) || (D == 64 && heads == 16) ? 4 : gate_stream_warps(D, heads, taps) / 2;
}

/* Sums of two channels over keys. */
struct gate_sums {
  float first, second;
};

/* The gate as stream_k_body asks for it. A record has the sums of two channels, [G][D / 2]. */
template <class T_, class KV_, int D_, int heads_, int taps> struct gate_shares {
  using T = T_;
  using KV = KV_;
  using params = gate_params;
  using sums = gate_sums;
  using weigher = gate_weigher<KV, heads_, taps>;
  using walker = stream_k_sparse<T, KV, D_, heads_>;
  static constexpr int D = D_, heads = heads_, warps = gate_stream_k_warps(D, heads, taps),
                       floats = stream_shared_floats<D, heads>, halo = weigher::halo;
  static constexpr bool apart = false, dense = false;

  using sums_of_warp = stream_sums<D, heads>;
  __device__ __forceinline__ static void put_sums(sums_of_warp &sum, float *shared, int32_t channels) {
    stream_put_sums<T, KV, D, heads>(sum, shared, channels);
  }
  __device__ __forceinline__ static void put(weigher &, float *) {}
  __device__ __forceinline__ static int32_t threads_of_head(int32_t half) { return half; }
  __device__ __forceinline__ static sums none() { return {0.0f, 0.0f}; }
  __device__ __forceinline__ static sums joined(const float *area, const stream_k_pair &at, int32_t half) {
    sums all = none();
    ASSAY_UNROLL
    for (int32_t w = 0; w < warps; ++w) {
      all.first += area[w * floats + at.channel];
      all.second += area[w * floats + at.channel + half];
    }
    return all;
  }
  __device__ __forceinline__ static void add(sums *all, const sums &more) {
    all->first += more.first;
    all->second += more.second;
  }
  __device__ __forceinline__ static void write(const params &p, int64_t segment, int32_t kv_head, int32_t pair,
                                               const sums &of) {
    const attention_params &a = p.a;
    const int32_t channels = stream_channels<D>(a), half = channels / 2, head = pair / half;
    T *const to = static_cast<T *>(a.out) + (segment * a.G + head) * channels + pair % half;
    const float gamma = p.gamma[kv_head * a.G + head];
    to[0] = from_float<T>(gamma * stream_value<KV>(of.first, a, kv_head));
    to[half] = from_float<T>(gamma * stream_value<KV>(of.second, a, kv_head));
  }

  __device__ __forceinline__ static void put_record(int32_t, uint64_t *record, int32_t, int32_t pair, const sums &of) {
    stream_k_put(record + pair, of.first, of.second);
  }
  /* Reads the first `there_are` of `count` records, as softmax_shares does. */
  template <int count>
  __device__ __forceinline__ static bool get_records(int32_t, const uint64_t *record, int32_t apart_by,
                                                     uint32_t there_are, int32_t, int32_t pair, sums (&of)[count]) {
    const uint64_t *from[count];
    uint64_t word[count];
    ASSAY_UNROLL
    for (int n = 0; n < count; ++n)
      from[n] = record + static_cast<int64_t>(min(static_cast<uint32_t>(n), there_are - 1)) * apart_by + pair;
    const bool there = stream_k_get(from, word);
    ASSAY_UNROLL
    for (int n = 0; n < count; ++n)
      of[n] = {float_of(static_cast<uint32_t>(word[n])), float_of(static_cast<uint32_t>(word[n] >> 32))};
    return there;
  }
};

/* gate_stream_k: handles an even share of the keys of all rows and kv heads.
 * Grid:   one block per share, two shares per multiprocessor. Block: 6 warps, or 4.
 * Shared: stream_shared_floats per warp, twice, used in turn: the weights of two blocks of 16 keys, and later the
 * warp's sums. Align:  16 bytes for q, K, V and all their strides. Arch: sm_80 and above. Limit:  bytes: as
 * gate_stream. */
template <class T, class KV, int D, int heads, int taps>
__global__ void __launch_bounds__(32 * gate_stream_k_warps(D, heads, taps), 2)
    gate_stream_k(gate_params p, stream_k_memory memory) {
  ASSAY_DYNAMIC_SHARED(float, shared);
  stream_k_body<gate_shares<T, KV, D, heads, taps>>(p, memory, shared);
}

/* ---- launcher ---------------------------------------------------------------------------------------- */

inline int64_t gate_stream_k_words(const attention_params &a) {
  return static_cast<int64_t>(a.G) * a.D / 2;
}

/* Launches with the workspace that p.partial points to. */
template <class Types>
assay_status gate_stream_k_launch(const gate_params &p, const attention_types &types, assay_env *env,
                                  assay_error *error) {
  const int64_t shares = stream_k_shares(env);
  const stream_k_memory memory = stream_k_places(p.partial, shares, gate_stream_k_words(p.a));
  return stream_with<Types>(types, p.a.D, p.a.G, [&](auto type, auto cached, auto channels, auto columns) {
    using T = typename decltype(type)::type;
    using KV = typename decltype(cached)::type;
    constexpr int D = decltype(channels)::is, heads = decltype(columns)::is;
    constexpr int most_taps = heads == 16 ? 3 : max_taps;
    const auto launch = [&](auto taps) {
      constexpr int of = decltype(taps)::is;
      using kind = gate_shares<T, KV, D, heads, of>;
      constexpr int64_t shared = 4 * 2 * kind::warps * kind::floats;
      return ASSAY_LAUNCH_WITH(error, (gate_stream_k<T, KV, D, heads, of>), shares, 32 * kind::warps, shared,
                               stream_k_options(shares, shared), env->stream, p, memory);
    };
    return p.F <= 3 ? launch(number<3>()) : launch(number<most_taps>());
  });
}

inline void gate_stream_k_path(const gate_params &p, assay_env *env, const char *name = "stream_k") {
  (void)snprintf(env->path, sizeof env->path, "%s shares=%d D=%d G=%d taps=%s%s", name,
                 static_cast<int>(stream_k_shares(env)), p.a.D, p.a.G, p.F <= 3 ? "3" : "8", cache_word(p.a));
}

/* The strategy of gate_attention over the cache's Types: stream_same or stream_fp8. */
template <class Types> struct gate_streamed_k {
  using plan = gate_plan;
  static assay_status read(const assay_call *call, plan *made, assay_error *error) {
    ASSAY_TRY(gate_read(call, made, error));
    ASSAY_TRY(Types::expect(made->types, error));
    ASSAY_TRY(expect_stream(call, made->p.a, error));
    ASSAY_TRY(gate_expect_taps(made->p, error));
    ASSAY_TRY(gate_expect_cut(*made, error));
    ASSAY_TRY(expect_stream_k(made->p.a, error));
    made->workspace = stream_k_workspace(gate_stream_k_words(made->p.a));
    return ASSAY_OK;
  }
  static void path(const plan &made, assay_env *env) { gate_stream_k_path(made.p, env); }
  static assay_status start(plan &made, assay_env *env, assay_error *error) {
    made.p.partial = static_cast<float *>(env->workspace);
    return gate_stream_k_launch<Types>(made.p, made.types, env, error);
  }
};

} // namespace ASSAY_NS
#endif
