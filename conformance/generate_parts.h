/* generate_parts.h: the generator's own pieces. */
#ifndef ASSAY_CONFORMANCE_GENERATE_PARTS_H
#define ASSAY_CONFORMANCE_GENERATE_PARTS_H

#include "generate.h"
#include "generate_logical.h"

/* Where element (block, token, head, channel d) of a cache lies, in elements from element 0:
 * block·s_block + token·s_token + head·s_head + (d / x)·s_chunk + (d % x)·s_channel; without chunks x = D. */
typedef struct cache_strides {
  int64_t block, token, head, chunk, channel, x;
} cache_strides;

/* generate_place.c: requests' order, blocks' places, shapes, strides, allocations. */
assay_status place_image(image *made, assay_error *error);
cache_strides place_strides(const image *made, int32_t arg);
/* Place in the pool of every block identity under a placement; `physical` [identities]. */
assay_status place_blocks(const logical *l, uint64_t placement, int64_t pool_blocks, int32_t *physical,
                          assay_error *error);

/* generate_bytes.c: what the arena holds. */
void bytes_guards(image *made);
void bytes_small(image *made);
assay_status bytes_values(image *made, const unsigned char *v_needed, assay_error *error);

#endif
