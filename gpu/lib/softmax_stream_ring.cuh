/* softmax_stream_ring.cuh: the streamed decode with a softmax (softmax_stream.cuh) for heads of any size, whose K and V
 * pass through shared memory (stream_ring.cuh). */
#ifndef ASSAY_GPU_LIB_SOFTMAX_STREAM_RING_CUH
#define ASSAY_GPU_LIB_SOFTMAX_STREAM_RING_CUH

#include "gpu/lib/softmax_stream.cuh"
#include "gpu/lib/stream_any_plan.h"
#include "gpu/lib/stream_ring.cuh"

namespace ASSAY_NS {

/* Return the warps per multiprocessor, and the blocks of keys that a warp's ring has room for. In small heads, two
 * blocks of eight warps are 1 to 3 % faster than one block of twelve. Registers or shared memory do not hold twelve
 * warps of many large heads. */
__host__ __device__ constexpr int softmax_ring_warps(int D, int heads) {
  return D <= 112 || (D == 192 && heads == 16) || (D == 256 && heads > 2) ? 8 : 12;
}
__host__ __device__ constexpr int softmax_ring_depth(int D) {
  return D == 80 || D == 112 ? 2 : 1;
}

/* Shared memory in floats: of a warp, and of the thread block's q, which comes first. */
template <int D, int heads> constexpr int softmax_ring_floats = ring_floats<D, heads, softmax_ring_depth(D), 2 * heads>;
template <int D, int heads>
constexpr int softmax_ring_query = ring_shares_query<heads> ? 64 * ring_fragments<D, heads> : 0;

/* softmax_stream_ring: does what softmax_stream does, with another walk.
 * Grid:   as softmax_stream. Block: 12, 6, 4 or 3 warps, or 8, 4 or 2, each with a run of its own.
 * Shared: q of sixteen heads; then per warp the weights of a block of 16 keys and the ring, and later the warp's sums,
 * peaks, totals. In a cluster, what the splits send comes after them.
 * Align:  16 bytes for q, K, V and all their strides. Arch: sm_80 and above, with clusters sm_90.
 * Limit:  bytes: 2 * L * D * sizeof(T) per row and kv head. */
template <class T, int D, int heads>
__global__ void __launch_bounds__(32 * softmax_ring_warps(D, heads), 1) softmax_stream_ring(softmax_params p) {
  ASSAY_DYNAMIC_SHARED(float, of_block);
  ASSAY_SHARED(int32_t, all_blocks, 1);
  constexpr int floats = softmax_ring_floats<D, heads>, depth = softmax_ring_depth(D);
  float *const shared = of_block + softmax_ring_query<D, heads>;
  const attention_params &a = p.a;
  const stream_place at = stream_place_of(a, p.cluster);
  if (p.cluster > 1) cluster_arrive();
  const bool early = stream_is_first();
  if (early) stream_ask(a, at);
  dependents_launch();
  if (early) stream_ask_first<T, D, true>(a, at);
  if (p.block_ns > 0.0f && threadIdx.x < 32) {
    const int32_t blocks = stream_all_blocks(a, at);
    if (threadIdx.x == 0) all_blocks[0] = blocks;
  }
  stream_run run = {};
  int64_t block = 0, next = 0; /* physical blocks of the run's first two blocks */
  const auto look = [&] {
    const stream_entries entries = stream_entries_of<true>(a, at);
    run = stream_run_of<true>(keys_of_row(a, at.row), at);
    const bool known = entries.begin >= 0;
    block = known ? entries.block : stream_block_of(a.cache, run, run.begin, run.begin);
    next = known ? entries.next : stream_block_of(a.cache, run, run.begin + run.step, run.begin);
  };
  if (a.settled) look();
  dependency_wait();
  if (!a.settled) look();
  float *const own = shared + static_cast<int32_t>(threadIdx.x) / 32 * floats;
  ring_walk<T, D, heads, depth> walk;
  walk.ask_first(a, run, block, reinterpret_cast<char *>(own + stream_keys * heads));
  walk.ask_rest(a, run, block, next);
  ring_queries<T, D, heads> query;
  query.load(a, at.row, at.kv_head, reinterpret_cast<uint2 *>(of_block), static_cast<int32_t>(threadIdx.x) / 32,
             static_cast<int32_t>(blockDim.x) / 32);
  if constexpr (ring_shares_query<heads>) __syncthreads(); /* q is stored */
  softmax_weigher<T, heads> weigher;
  weigher.begin(p, run);
  ring_sums<D, heads> sum = {};
  stream_pace pace;
  pace.begin(run, all_blocks, p.block_ns, p.round_ns);
  walk.walk(a, run, query, own, weigher, sum, pace);
  ring_put_sums<T, D, heads>(sum, own, a.D);
  weigher.put(own + stream_shared_floats<D, heads>);
  __syncthreads(); /* the warps' sums are written */
  softmax_stream_end<T, T, D, heads>(p, at, shared, floats);
}

/* ---- launcher ---------------------------------------------------------------------------------------- */

/* Return the head size and the number of heads that the kernel of a call is compiled for. */
inline int32_t softmax_ring_size(int32_t D) {
  return D <= 80 ? 80 : D <= 112 ? 112 : D <= 192 ? 192 : 256;
}
inline int32_t softmax_ring_heads(int32_t G, int32_t size) {
  if (stream_few_shapes && (size == 80 || size == 256)) return G <= 2 ? 2 : 16;
  if (stream_few_shapes) return G <= 8 ? 8 : 16;
  return G <= 2 ? 2 : G <= 8 ? 8 : 16;
}

inline stream_shape softmax_ring_shape(const softmax_params &p) {
  const int32_t size = softmax_ring_size(p.a.D);
  return stream_shape_of(p.a, softmax_ring_warps(size, softmax_ring_heads(p.a.G, size)));
}

/* Calls use(size, heads), with both as `number`. */
template <class Size, class Use> assay_status softmax_ring_columns(Size size, int32_t G, Use use) {
  constexpr int of = Size::is;
  const int32_t heads = softmax_ring_heads(G, of);
  if constexpr (!stream_few_shapes || of == 80 || of == 256)
    if (heads == 2) return use(size, number<2>());
  if constexpr (!stream_few_shapes || of == 112 || of == 192)
    if (heads == 8) return use(size, number<8>());
  return use(size, number<16>());
}

/* The same for heads of D channels, and for heads of up to 112 channels. */
template <class Use> assay_status softmax_ring_112(int32_t D, int32_t G, Use use) {
  return softmax_ring_size(D) == 80 ? softmax_ring_columns(number<80>(), G, use)
                                    : softmax_ring_columns(number<112>(), G, use);
}
template <class Use> assay_status softmax_ring_with(int32_t D, int32_t G, Use use) {
  const int32_t size = softmax_ring_size(D);
  if (size <= 112) return softmax_ring_112(D, G, use);
  return size == 192 ? softmax_ring_columns(number<192>(), G, use) : softmax_ring_columns(number<256>(), G, use);
}

/* Launches the kernel of one size, and the merge if splits need one. */
template <class T, int D, int heads>
assay_status softmax_ring_start(const softmax_params &p, assay_env *env, assay_error *error) {
  const stream_shape shape = stream_shape_of(p.a, softmax_ring_warps(D, heads));
  const int64_t sent = p.cluster > 1 ? 8 * p.cluster * softmax_sent_words(p.a.G, p.a.D) : 0;
  const int64_t floats = softmax_ring_query<D, heads> + shape.warps * softmax_ring_floats<D, heads>;
  const int64_t shared = 4 * floats + sent;
  softmax_params paced = p;
  const stream_speed speed = stream_speed_of(p.a, shape, sizeof(T), env->memory_rate);
  paced.block_ns = speed.block_ns;
  paced.round_ns = speed.round_ns;
  ASSAY_TRY(ASSAY_LAUNCH_WITH(error, (softmax_stream_ring<T, D, heads>), stream_grid(p.a, shape), 32 * shape.warps,
                              shared, stream_options(shape, shared), env->stream, paced));
  if (!stream_merges(shape)) return ASSAY_OK;
  return ASSAY_LAUNCH_WITH(error, (softmax_stream_merge<T, T>), stream_merge_grid(p.a), stream_merge_block(p.splits), 0,
                           in_turn(), env->stream, p);
}

template <class T>
assay_status softmax_stream_ring_launch(const softmax_params &p, assay_env *env, assay_error *error) {
  return softmax_ring_with(p.a.D, p.a.G, [&](auto channels, auto columns) {
    return softmax_ring_start<T, decltype(channels)::is, decltype(columns)::is>(p, env, error);
  });
}

} // namespace ASSAY_NS
#endif
