/* generate_parts.h: the generator's own pieces. */
#ifndef ASSAY_CONFORMANCE_GENERATE_PARTS_H
#define ASSAY_CONFORMANCE_GENERATE_PARTS_H

#include "generate.h"
#include "generate_logical.h"

/* Where element (block, token, head, channel d) of a cache lies, in elements from element 0:
 * block·s_block + token·s_token + head·s_head + (d / x)·s_chunk + (d % x)·s_channel; without chunks x = D.
 * Contiguous: block is the row of the block's first token, and s_token = s_block. */
typedef struct cache_strides {
  int64_t block, token, head, chunk, channel, x;
} cache_strides;

/* generate_place.c: requests' order, blocks' places, shapes, strides, allocations. */
assay_status place_image(image *made, assay_error *error);
cache_strides place_strides(const image *made, int32_t arg);
/* Place in the pool of every block identity under the first draw's placement and order; `physical` [identities]. */
assay_status place_home(const image *made, int32_t *physical, assay_error *error);
/* Slots of the pool, and that of a token of a block that lies at `place`, both from the pool's first. */
int64_t place_slots(const image *made);
static inline int64_t place_slot_at(const image *made, int64_t place, int64_t token) {
  return (made->contiguous ? place : place * made->logical->block_size) + token;
}

/* Slot of a row's token under this draw's numbering of blocks; -1 for a pad row. */
int64_t place_slot(const image *made, int64_t row);
/* The axis of an argument that the rows of the case run along; -1: none does. */
int32_t place_row_axis(const image *made, int32_t arg);
/* Calls visit for every run of elements that lie side by side: `at` in elements from the tensor's element 0, `dense`
 * the same in a dense tensor whose rows are in the case's own order. Not for caches. */
typedef void (*run_visit)(void *context, int64_t at, int64_t dense, int64_t count);
void place_runs(const image *made, int32_t arg, run_visit visit, void *context);

/* generate_bytes.c: what the arena holds. */
void bytes_guards(image *made);
void bytes_small(image *made);
assay_status bytes_values(image *made, const unsigned char *v_needed, assay_error *error);

#endif
