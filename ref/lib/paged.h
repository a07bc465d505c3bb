/* paged.h: addresses and values of a paged K or V pool. All strides in elements, 64-bit.
 *
 * Element d of token slot (block, offset) and kv head h lies at
 *
 *   block·s_block + h·s_head + offset·s_token + (d / x)·s_chunk + (d mod x)·s_element
 *
 * This covers every layout: nhd and hnd have one chunk of x = D channels; in layout x, K has chunks of
 * x = 16 / sizeof(element) channels; V has one chunk whose channels are block_size apart. */
#ifndef ASSAY_REF_PAGED_H
#define ASSAY_REF_PAGED_H

#include "assay/tensor.h"

typedef enum paged_layout { LAYOUT_NHD, LAYOUT_HND, LAYOUT_X } paged_layout;

typedef struct paged_pool {
  const void *data;
  assay_dtype dtype;
  int64_t s_block, s_head, s_token, s_chunk, s_element, x;
} paged_pool;

paged_pool paged_k_pool(const assay_tensor *k, paged_layout layout, int64_t D);
paged_pool paged_v_pool(const assay_tensor *v, paged_layout layout, int64_t D);

/* Loads value [D]: the stored numbers times `factor` (the fp8 scale; 1 otherwise), exact in f64 for fp8. */
void paged_load(const paged_pool *pool, int64_t block, int64_t offset, int64_t head, int64_t D, double factor,
                double *value);

#endif
