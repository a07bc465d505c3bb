/* copy_blocks.cu: copies whole blocks of the paged cache inside their pool, K and V, in every layer.
 *
 * One variant, `by_block`: one thread block for 16 KB of one copy. docs/kernels/copy_blocks.md has the arithmetic. */
#include "gpu/lib/launch.h"
#include "gpu/lib/plain.h"

namespace ASSAY_NS {
namespace {

struct copy_params {
  void *pool[2];    /* K, V */
  int64_t apart[2]; /* bytes from layer to layer */
  const int64_t *pairs;
  int64_t num_blocks, block_bytes, layers;
  int64_t pair_count;
  int32_t pieces; /* bytes of a block */
};

constexpr int copy_threads = 256, words_a_thread = 4;
constexpr int64_t piece_words = copy_threads * words_a_thread; /* words of a piece */

/* copy_pieces: a piece of one block of one layer, of K or V, in words of type W: all loaded, then all stored.
 * Grid:   (pairs * pieces, layers, 2). Block: 256 threads. A pair that names a block outside the pool copies nothing.
 * Shared: none.
 * Align:  W = uint4 where bases and layer strides are multiples of 16 bytes, else 2-byte words.
 * Arch:   any.
 * Limit:  bytes: 4 * block_bytes per pair and layer. */
template <class W> __global__ void __launch_bounds__(copy_threads) copy_pieces(copy_params p) {
  const int64_t pair = blockIdx.x / static_cast<unsigned>(p.pieces),
                piece = blockIdx.x % static_cast<unsigned>(p.pieces);
  const int64_t from = p.pairs[2 * pair], to = p.pairs[2 * pair + 1];
  if (from < 0 || from >= p.num_blocks || to < 0 || to >= p.num_blocks) return;
  const int64_t words = p.block_bytes / static_cast<int64_t>(sizeof(W)), first = piece * piece_words;
  const int64_t end = first + piece_words < words ? first + piece_words : words;
  void *const pool = blockIdx.z == 0 ? p.pool[0] : p.pool[1]; /* an index would put p into local memory */
  const int64_t apart = blockIdx.z == 0 ? p.apart[0] : p.apart[1];
  char *const layer = static_cast<char *>(pool) + static_cast<int64_t>(blockIdx.y) * apart;
  const W *const source = reinterpret_cast<const W *>(layer + from * p.block_bytes);
  W *const destination = reinterpret_cast<W *>(layer + to * p.block_bytes);
  W word[words_a_thread] = {};
  ASSAY_UNROLL
  for (int i = 0; i < words_a_thread; ++i) {
    const int64_t at = first + threadIdx.x + i * copy_threads;
    if (at < end) word[i] = source[at];
  }
  ASSAY_UNROLL
  for (int i = 0; i < words_a_thread; ++i) {
    const int64_t at = first + threadIdx.x + i * copy_threads;
    if (at < end) destination[at] = word[i];
  }
}

assay_status read_call(const assay_call *call, copy_params *p, assay_error *error) {
  plain_call c;
  ASSAY_TRY(plain_read(call, &c, error));
  const char *const names[2] = {"k_cache", "v_cache"};
  const int64_t size = assay_dtype_size(c.type("k_cache"));
  for (int which = 0; which < 2; ++which) {
    p->pool[which] = c.data<void>(names[which]);
    p->apart[which] = c.row(names[which]) * size;
  }
  p->pairs = c.data<const int64_t>("pairs");
  p->pair_count = c.dim("pairs");
  p->layers = c.dim("layers");
  p->num_blocks = c.dim("num_blocks");
  p->block_bytes = c.dim("block_size") * c.dim("H_kv") * c.dim("D") * size;
  return ASSAY_OK;
}

bool in_words(const copy_params &p, int64_t bytes) {
  for (int which = 0; which < 2; ++which)
    if (reinterpret_cast<uintptr_t>(p.pool[which]) % static_cast<uintptr_t>(bytes) != 0 || p.apart[which] % bytes != 0)
      return false;
  return p.block_bytes % bytes == 0;
}

assay_status launch(const assay_call *call, assay_env *env, assay_error *error) {
  copy_params p;
  ASSAY_TRY(read_call(call, &p, error));
  const int64_t word = in_words(p, 16) ? 16 : 2;
  p.pieces = static_cast<int32_t>((p.block_bytes / word + piece_words - 1) / piece_words);
  (void)snprintf(env->path, sizeof env->path, "by_block word=%d pieces=%d", static_cast<int>(word), p.pieces);
  if (p.pair_count == 0) return ASSAY_OK;
  const launch_extent grid(p.pair_count * p.pieces, p.layers, 2);
  if (word == 16) return ASSAY_LAUNCH(error, copy_pieces<uint4>, grid, copy_threads, 0, env->stream, p);
  return ASSAY_LAUNCH(error, copy_pieces<uint16_t>, grid, copy_threads, 0, env->stream, p);
}

/* The kernel moves bits and computes nothing. */
constexpr assay_contract contract = {.qk_lanes = 1,
                                     .pv_lanes = 1,
                                     .zero_p_v = ASSAY_V_MULTIPLIED,
                                     .run_to_run = true,
                                     .renumbering = true,
                                     .permutation = true,
                                     .lanes = 1,
                                     .alone = true};

} // namespace
} // namespace ASSAY_NS

ASSAY_VARIANTS(copy_blocks, PLAIN_VARIANT("copy_blocks", "by_block", "16 bytes a thread, K and V in one launch",
                                          "f32,f16,bf16", contract, copy_params, read_call, launch))
