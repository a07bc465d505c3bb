/* paged.c: addresses and values of a paged K or V pool. */
#include "ref/lib/paged.h"

#include "core/dtype.h"

static paged_pool token_rows(const assay_tensor *t, paged_layout layout, int64_t D) {
  const int token = layout == LAYOUT_NHD ? 1 : 2, head = layout == LAYOUT_NHD ? 2 : 1;
  return (paged_pool){.data = t->data,
                      .dtype = t->dtype,
                      .s_block = t->stride[0],
                      .s_head = t->stride[head],
                      .s_token = t->stride[token],
                      .s_chunk = 0,
                      .s_element = t->stride[3],
                      .x = D};
}

/* Layout x, K: [num_blocks, H_kv, D/x, block_size, x]. */
paged_pool paged_k_pool(const assay_tensor *k, paged_layout layout, int64_t D) {
  if (layout != LAYOUT_X) return token_rows(k, layout, D);
  return (paged_pool){.data = k->data,
                      .dtype = k->dtype,
                      .s_block = k->stride[0],
                      .s_head = k->stride[1],
                      .s_token = k->stride[3],
                      .s_chunk = k->stride[2],
                      .s_element = k->stride[4],
                      .x = k->shape[4]};
}

/* Layout x, V: [num_blocks, H_kv, D, block_size]. One chunk of D channels, which are far apart. */
paged_pool paged_v_pool(const assay_tensor *v, paged_layout layout, int64_t D) {
  if (layout != LAYOUT_X) return token_rows(v, layout, D);
  return (paged_pool){.data = v->data,
                      .dtype = v->dtype,
                      .s_block = v->stride[0],
                      .s_head = v->stride[1],
                      .s_token = v->stride[3],
                      .s_chunk = 0,
                      .s_element = v->stride[2],
                      .x = D};
}

void paged_load(const paged_pool *pool, int64_t block, int64_t offset, int64_t head, int64_t D, double factor,
                double *value) {
  const int64_t row = block * pool->s_block + head * pool->s_head + offset * pool->s_token;
  for (int64_t d = 0; d < D; d += pool->x)
    assay_load_f64_row(pool->data, pool->dtype, row + (d / pool->x) * pool->s_chunk, pool->s_element, pool->x,
                       value + d);
  if (factor != 1.0)
    for (int64_t d = 0; d < D; ++d)
      value[d] *= factor;
}
