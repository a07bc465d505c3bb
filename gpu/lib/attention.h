/* attention.h: what every attention kernel gets (typed, by value), filled once from a call by names, and what every
 * attention launcher refuses. Host code only looks at what the host can see: shapes, strides, types, parameters.
 * Lengths, tables, scales, taps and slopes live on the device and are never read here. */
#ifndef ASSAY_GPU_LIB_ATTENTION_H
#define ASSAY_GPU_LIB_ATTENTION_H

#include <stdint.h>

#include "assay/variant.h"
#include "gpu/lib/launch.h"
#include "gpu/lib/read.h"

namespace ASSAY_NS {

/* The paged cache. A request's key t lies in slot t mod block_size of the block that entry t / block_size of its row of
 * the table names. Contiguous keys are the same with one block a request, as long as a request can be: its number is
 * that of the request's first row, cu_k is the table, with rows of one entry, block_size is 2^contiguous_shift, and a
 * block is as far from the next as a token.
 * Channel d of token slot (block, offset), kv head h, in elements:
 *   K: block * k_block + h * k_head + offset * k_token + (d >> chunk_shift) * k_chunk + (d mod 2^chunk_shift)
 *   V: block * v_block + h * v_head + offset * v_token + d * v_channel
 * Layout x has k_chunk of its own; elsewhere k_chunk = 2^chunk_shift, and the last two terms are d. */
struct paged_cache {
  const void *k, *v;
  int64_t k_block, k_head, k_token, k_chunk;
  int64_t v_block, v_head, v_token, v_channel;
  const float *k_scale, *v_scale; /* NULL: no scale */
  const int32_t *table;           /* B rows of max_blocks entries; contiguous: cu_k */
  int64_t table_row;
  int64_t blocks;      /* of the pools */
  int32_t scale_step;  /* 0: one scale; 1: one a kv head */
  int32_t block_shift; /* block_size = 2^block_shift; contiguous_shift: contiguous */
  int32_t chunk_shift;
  bool quads; /* every quad of K channels is aligned to its own size */
};

constexpr int attention_max_D = 256;
constexpr int contiguous_shift = 30; /* keys of a request, and rows of K and V: at most 2^30 */

struct attention_params {
  paged_cache cache;
  const void *q; /* (row, head, d) at row * q_row + head * D + d */
  void *out;     /* dense */
  const int32_t *length, *cu_q;
  const int32_t *row_request, *row_last; /* request and last key of each row, where they are expanded; else NULL */
  int64_t q_row;
  int64_t N, capacity; /* rows; keys a table row can name, contiguous: rows of K and V */
  int32_t B, H, H_kv, G, D;
  int32_t window; /* 0: off */
  float scale;
};

/* What the host needs besides. */
struct attention_types {
  assay_dtype q, kv;
};

constexpr int64_t contiguous_most_splits = 1 << 18; /* of all rows and heads */

/* Are K and V without a block table? */
__host__ __device__ inline bool is_contiguous(const attention_params &a) {
  return a.cache.block_shift == contiguous_shift;
}

/* What a path ends with. */
inline const char *form_of(const attention_params &a) {
  return is_contiguous(a) ? " contiguous" : " paged";
}

/* Fills p and types, or refuses: ASSAY_ERR_INPUT and the parameter, what was found, what is allowed. */
inline assay_status attention_read(const assay_call *call, attention_params *p, attention_types *types,
                                   assay_error *error);

/* An f32 or i32 vector of `count` elements, contiguous. optional: absent is NULL. */
inline assay_status attention_vector(const assay_call *call, const char *name, assay_dtype dtype, int64_t count,
                                     bool optional, const void **data, assay_error *error);

/* A parameter that must be finite and lie in [min, max]. */
inline assay_status attention_real(const assay_call *call, const char *name, double min, double max, double *value,
                                   assay_error *error);
inline assay_status attention_integer(const assay_call *call, const char *name, int64_t min, int64_t max,
                                      int64_t *value, assay_error *error);

/* Threads, and keys of a tile, where a thread takes a key: multiples of a warp up to `most`, and no more than a table
 * row can name. */
inline int32_t attention_tile(const attention_params &p, int32_t most);

/* Splits of the table's capacity, at least one, and the bytes of `floats` f32 for each (row, head, split). */
inline assay_status attention_splits(const attention_params &p, int32_t keys_per_split, int32_t floats, int32_t *splits,
                                     int64_t *bytes, assay_error *error);

} // namespace ASSAY_NS

#include "gpu/lib/attention_read.h"
#endif
