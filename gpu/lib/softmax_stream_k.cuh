/* softmax_stream_k.cuh: the streamed decode with a softmax (softmax_stream.cuh), in even shares (stream_k.cuh). */
#ifndef ASSAY_GPU_LIB_SOFTMAX_STREAM_K_CUH
#define ASSAY_GPU_LIB_SOFTMAX_STREAM_K_CUH

#include "gpu/lib/softmax_stream_ring.cuh"
#include "gpu/lib/stream_any_plan.h"
#include "gpu/lib/stream_k.cuh"
#include "gpu/lib/stream_pace.cuh"

namespace ASSAY_NS {

/* Returns the number of warps per thread block. Two thread blocks are on a multiprocessor. The rings of sixteen heads
 * leave room for three warps each. */
__host__ __device__ constexpr int stream_k_warps(int D, int heads) {
  if (D == 80 || D == 112) return heads == 16 ? 3 : softmax_ring_warps(D, heads) / 2;
  return D == 128 && heads >= 8 ? 4 : 6;
}

/* A walker (stream_k_body) that has K and V of a block in registers of their own. */
template <class T, class KV, int D, int heads> struct stream_k_apart {
  stream_fragment<KV, D, heads> k;
  uint4 q[stream_query_loads<KV, D, heads>];
  stream_share<KV, D> v;

  __device__ __forceinline__ void load(const attention_params &a, const stream_run &run, int64_t block) {
    stream_load_query<T, KV, D, heads>(a, run.request, run.kv_head, q);
    stream_first_keys<KV, D, heads>(a.cache, run, block, k);
  }
  __device__ __forceinline__ void begin(const attention_params &a, const stream_run &run, int64_t block, int64_t,
                                        float *) {
    v = stream_first_values<KV, D>(a.cache, run, block);
  }
  template <class Weigher, class Follow>
  __device__ __forceinline__ void walk(const attention_params &a, const stream_run &run, int64_t, int64_t, int64_t next,
                                       float *shared, Weigher &weigher, stream_sums<D, heads> &sum, Follow follow) {
    stream_walk_dense<T, KV, D, heads>(a, run, q, k, v, next, shared, weigher, sum, stream_no_pace(), follow);
  }
};

/* Shared memory of a warp's ring, in floats. */
template <int D, int heads>
constexpr int stream_k_ring_floats = ring_alone_floats<D, softmax_ring_depth(D)> + softmax_ring_query<D, heads>;

/* The same with a ring in shared memory (stream_ring.cuh). The rings of the warps lie after all that stream_k_body
 * uses, each with q of sixteen heads after it. */
template <class T, int D, int heads> struct stream_k_ring {
  static constexpr int depth = softmax_ring_depth(D), warps = stream_k_warps(D, heads);
  static constexpr int before = 2 * warps * softmax_shared_floats<D, heads>;
  static constexpr int floats = stream_k_ring_floats<D, heads>;
  ring_walk<T, D, heads, depth> ring;
  ring_queries<T, D, heads> query;

  __device__ __forceinline__ static float *place() {
    ASSAY_DYNAMIC_SHARED(float, all);
    return all + before + static_cast<int32_t>(threadIdx.x) / 32 * floats;
  }
  __device__ __forceinline__ void load(const attention_params &a, const stream_run &run, int64_t block) {
    cp_async_wait<0>(); /* keys that were asked for by lengths that were not final */
    ring.ask_first(a, run, block, reinterpret_cast<char *>(place()));
  }
  __device__ __forceinline__ void begin(const attention_params &a, const stream_run &run, int64_t block, int64_t next,
                                        float *) {
    ring.ask_rest(a, run, block, next);
    query.load(a, run.request, run.kv_head, reinterpret_cast<uint2 *>(place() + ring_alone_floats<D, depth>), 0, 1);
  }
  template <class Weigher, class Follow>
  __device__ __forceinline__ void walk(const attention_params &a, const stream_run &run, int64_t, int64_t, int64_t,
                                       float *shared, Weigher &weigher, ring_sums<D, heads> &sum, Follow follow) {
    ring.walk(a, run, query, shared, weigher, sum, stream_no_pace());
    if (run.begin < run.end) follow();
  }
};

/* The softmax as stream_k_body asks for it. A record has the sums of two channels, [G][D / 2], then peak and total,
 * [G]. */
template <class T_, class KV_, int D_, int heads_> struct softmax_shares {
  using T = T_;
  using KV = KV_;
  using params = softmax_params;
  using sums = softmax_sums;
  static constexpr int D = D_, heads = heads_, warps = stream_k_warps(D, heads),
                       floats = softmax_shared_floats<D, heads>, halo = 0;
  static constexpr bool apart = true, dense = true;
  using walker = std::conditional_t<stream_any<D>, stream_k_ring<T, D, heads>, stream_k_apart<T, KV, D, heads>>;
  using weigher = softmax_weigher<KV, heads>;
  using sums_of_warp = std::conditional_t<stream_any<D>, ring_sums<D, heads>, stream_sums<D, heads>>;

  __device__ __forceinline__ static void put_sums(sums_of_warp &sum, float *shared, int32_t channels) {
    if constexpr (stream_any<D>)
      ring_put_sums<T, D, heads>(sum, shared, channels);
    else
      stream_put_sums<T, KV, D, heads>(sum, shared, channels);
  }

  __device__ __forceinline__ static void put(weigher &own, float *shared) {
    own.put(shared + stream_shared_floats<D, heads>);
  }
  /* A warp joins pairs of one head at a time. */
  __device__ __forceinline__ static int32_t threads_of_head(int32_t half) { return softmax_threads_of_head(2 * half); }
  __device__ __forceinline__ static sums none() { return {{-INFINITY, 0.0f, 0.0f}, 0.0f}; }
  __device__ __forceinline__ static sums joined(const float *area, const stream_k_pair &at, int32_t half) {
    const float *const peaks = area + stream_shared_floats<D, heads>;
    return ASSAY_NS::joined<warps>(peaks + at.head, peaks + heads + at.head, area + at.channel, warps, floats, half);
  }
  __device__ __forceinline__ static void add(sums *all, const sums &more) { add_sums(all, more); }
  __device__ __forceinline__ static void write(const params &p, int64_t segment, int32_t kv_head, int32_t pair,
                                               const sums &of) {
    softmax_write<T, KV, D>(p, segment, kv_head, pair, of);
  }

  /* Writes a pair of a record. pair: index among the sums. */
  __device__ __forceinline__ static void put_record(int32_t half, uint64_t *record, int32_t pairs, int32_t pair,
                                                    const sums &of) {
    stream_k_put(record + pair, of.first.sum, of.second);
    if (pair % half == 0) stream_k_put(record + pairs + pair / half, of.first.peak, of.first.total);
  }
  /* Reads the first `there_are` of `count` records that are `apart_by` words from each other, all at once. Entries of
   * `of` after them have no meaning. Returns false if a record has not arrived. */
  template <int count>
  __device__ __forceinline__ static bool get_records(int32_t half, const uint64_t *record, int32_t apart_by,
                                                     uint32_t there_are, int32_t pairs, int32_t pair,
                                                     sums (&of)[count]) {
    const uint64_t *from[2 * count];
    uint64_t word[2 * count];
    ASSAY_UNROLL
    for (int n = 0; n < count; ++n) {
      const uint64_t *const one =
          record + static_cast<int64_t>(min(static_cast<uint32_t>(n), there_are - 1)) * apart_by;
      from[2 * n] = one + pair;
      from[2 * n + 1] = one + pairs + pair / half;
    }
    const bool there = stream_k_get(from, word);
    const auto low = [](uint64_t x) { return float_of(static_cast<uint32_t>(x)); };
    const auto high = [](uint64_t x) { return float_of(static_cast<uint32_t>(x >> 32)); };
    ASSAY_UNROLL
    for (int n = 0; n < count; ++n)
      of[n] = {{low(word[2 * n + 1]), high(word[2 * n + 1]), low(word[2 * n])}, high(word[2 * n])};
    return there;
  }
};

/* softmax_stream_k: handles an even share of the keys of all rows and kv heads.
 * Grid:   one block per share, two shares per multiprocessor. Block: 6 warps, or 4.
 * Shared: softmax_shared_floats per warp, twice, used in turn: the weights of two blocks of 16 keys, and later the
 * warp's sums, peaks, totals. For heads of any size, stream_k_ring_floats per warp after them.
 * Align:  16 bytes for q, K, V and all their strides. Arch: sm_80 and above.
 * Limit:  bytes: 2 * L * D * sizeof(KV) per row and kv head. */
template <class T, class KV, int D, int heads>
__global__ void __launch_bounds__(32 * stream_k_warps(D, heads), 2)
    softmax_stream_k(softmax_params p, stream_k_memory memory) {
  ASSAY_DYNAMIC_SHARED(float, shared);
  stream_k_body<softmax_shares<T, KV, D, heads>>(p, memory, shared);
}

/* ---- launcher ---------------------------------------------------------------------------------------- */

inline int64_t softmax_stream_k_words(const attention_params &a) {
  return softmax_sent_words(a.G, a.D);
}

/* Launches with the workspace that p.partial points to. any: whether the kernels are those of heads of any size. */
template <class Types, bool any = false>
assay_status softmax_stream_k_launch(const softmax_params &p, const attention_types &types, assay_env *env,
                                     assay_error *error) {
  const int64_t shares = stream_k_shares(env);
  const stream_k_memory memory = stream_k_places(p.partial, shares, softmax_stream_k_words(p.a));
  const auto launch = [&](auto type, auto cached, auto channels, auto columns) {
    using T = typename decltype(type)::type;
    using KV = typename decltype(cached)::type;
    constexpr int D = decltype(channels)::is, heads = decltype(columns)::is;
    constexpr int64_t warps = stream_k_warps(D, heads);
    constexpr int64_t rings = any ? stream_k_ring_floats<D, heads> : 0;
    constexpr int64_t shared = 4 * warps * (2 * softmax_shared_floats<D, heads> + rings);
    return ASSAY_LAUNCH_WITH(error, (softmax_stream_k<T, KV, D, heads>), shares, 32 * warps, shared,
                             stream_k_options(shares, shared), env->stream, p, memory);
  };
  if constexpr (any)
    return Types::of(types, [&](auto type, auto cached) {
      return softmax_ring_112(p.a.D, p.a.G,
                              [&](auto channels, auto columns) { return launch(type, cached, channels, columns); });
    });
  else
    return stream_with<Types>(types, p.a.D, p.a.G, launch);
}

inline void softmax_stream_k_path(const attention_params &a, assay_env *env, const char *name = "stream_k") {
  (void)snprintf(env->path, sizeof env->path, "%s shares=%d D=%d G=%d%s", name, static_cast<int>(stream_k_shares(env)),
                 a.D, a.G, cache_word(a));
}

/* The strategy of softmax_attention over the cache's Types: stream_same or stream_fp8. */
template <class Types> struct softmax_streamed_k {
  using plan = softmax_plan;
  static assay_status read(const assay_call *call, plan *made, assay_error *error) {
    ASSAY_TRY(softmax_read(call, made, error));
    ASSAY_TRY(softmax_expect_D_v(made->p, error));
    ASSAY_TRY(Types::expect(made->types, error));
    ASSAY_TRY(expect_stream(call, made->p.a, error));
    ASSAY_TRY(expect_stream_k(made->p.a, error));
    ASSAY_TRY(softmax_expect_dense(made->p, error));
    made->workspace = stream_k_workspace(softmax_stream_k_words(made->p.a));
    return ASSAY_OK;
  }
  static void path(const plan &made, assay_env *env) { softmax_stream_k_path(made.p.a, env); }
  static assay_status start(plan &made, assay_env *env, assay_error *error) {
    made.p.partial = static_cast<float *>(env->workspace);
    return softmax_stream_k_launch<Types>(made.p, made.types, env, error);
  }
};

} // namespace ASSAY_NS
#endif
