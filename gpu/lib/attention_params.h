/* attention_params.h: the parameters that every attention kernel gets, typed and by value. attention.h fills them. */
#ifndef ASSAY_GPU_LIB_ATTENTION_PARAMS_H
#define ASSAY_GPU_LIB_ATTENTION_PARAMS_H

#include <stdint.h>

#include "gpu/lib/launch.h"
#include "gpu/lib/read.h"

namespace ASSAY_NS {

/* The paged cache. A request's key t lies in slot t mod block_size of a block. The block's number is entry t /
 * block_size of the request's row of the table. Contiguous keys are handled as one block per request, as long as a
 * request can be. The block's number is that of the request's first row. cu_k is the table, with rows of one entry.
 * block_size is 2^contiguous_shift, and the distance between blocks equals the distance between tokens.
 *
 * Channel d of token slot (block, offset), kv head h, in elements:
 *
 *   K: block * k_block + h * k_head + offset * k_token + (d >> chunk_shift) * k_chunk + (d mod 2^chunk_shift)
 *   V: block * v_block + h * v_head + offset * v_token + d * v_channel
 *
 * Layout x has its own k_chunk. In other layouts k_chunk = 2^chunk_shift, and the last two terms are d. */
struct paged_cache {
  const void *k, *v;
  int64_t k_block, k_head, k_token, k_chunk;
  int64_t v_block, v_head, v_token, v_channel;
  const float *k_scale, *v_scale; /* NULL: no scale */
  const int32_t *table;           /* B rows of max_blocks entries; contiguous keys: cu_k */
  int64_t table_row;
  int64_t blocks;      /* blocks in the pools */
  int32_t scale_step;  /* 0: one scale; 1: one per kv head */
  int32_t block_shift; /* block_size = 2^block_shift; contiguous_shift: contiguous keys */
  int32_t chunk_shift;
  bool quads; /* every quad of K channels is aligned to its own size */
};

constexpr int attention_max_D = 256;
constexpr int contiguous_shift = 30; /* the keys of a request, and the rows of K and V, are at most 2^30 */

struct attention_params {
  paged_cache cache;
  const void *q; /* (row, head, d) at row * q_row + head * D + d */
  void *out;     /* dense */
  const int32_t *length, *cu_q;
  const int32_t *row_request, *row_last; /* request and last key of each row if rows are expanded, else NULL */
  int64_t q_row;
  int64_t N, capacity; /* rows; keys that a table row can name, or, with contiguous keys, rows of K and V */
  int32_t B, H, H_kv, G, D;
  int32_t D_v;    /* channels of V and of the output; D where the operator has no other */
  int32_t window; /* 0: off */
  float scale;
  bool settled; /* lengths and the table may be read before it is the launch's turn (assay_env) */
};

/* The types, which only the host needs. */
struct attention_types {
  assay_dtype q, kv;
};

constexpr int64_t contiguous_most_splits = 1 << 18; /* over all rows and heads */

/* Returns whether K and V are without a block table. */
__host__ __device__ inline bool is_contiguous(const attention_params &a) {
  return a.cache.block_shift == contiguous_shift;
}

/* Returns the word with which a path ends: how K and V are stored. */
inline const char *cache_word(const attention_params &a) {
  return is_contiguous(a) ? " contiguous" : " paged";
}

} // namespace ASSAY_NS
#endif
