/* place.h: the parts of the generator. */
#ifndef ASSAY_CONFORMANCE_GENERATE_PLACE_H
#define ASSAY_CONFORMANCE_GENERATE_PLACE_H

#include "image.h"
#include "logical.h"
#include "streams.h"

/* Strides of a cache. Element (block, token, head, channel d) lies, in elements from element 0, at
 * block·s_block + token·s_token + head·s_head + (d / x)·s_chunk + (d % x)·s_channel.
 * Without chunks x = D (V: D_v). Contiguous: block is the row of the block's first token, and s_token = s_block. */
typedef struct cache_strides {
  int64_t block, token, head, chunk, channel, x;
} cache_strides;

/* place.c: the order of requests, places of blocks, shapes, strides, allocations. */
assay_status place_image(image *img, assay_error *error);
cache_strides place_strides(const image *img, int32_t arg);
/* Returns the bytes after a request's bits of a mask that belong to it, and that no result depends on. */
static inline int64_t place_mask_spare(const logical *l, int64_t request) {
  return (int64_t)(logical_hash(l->origin, STREAM_MASK_SPARE + ((uint64_t)request << 16)) & 3);
}
/* Returns the channels of a head of an argument: D_v for V, else D. */
int64_t place_channels(const image *img, int32_t arg);
/* Writes the place in the pool of every block identity under the first draw's placement and order; `physical`
 * [identities]. */
assay_status place_home(const image *img, int32_t *physical, assay_error *error);
/* Return the number of slots of the pool, and the slot of a token of a block at `place`; slots count from the pool's
 * first. */
int64_t place_slots(const image *img);
static inline int64_t place_slot_at(const image *img, int64_t place, int64_t token) {
  return (img->contiguous ? place : place * img->logical->block_size) + token;
}

/* Returns the slot of a row's token under this draw's numbering of blocks; -1 for a pad row. */
int64_t place_slot(const image *img, int64_t row);
/* Returns the axis of an argument whose extent is the dimension of this name, or -1. */
int32_t place_axis(const image *img, int32_t arg, const char *dim);
/* Returns the axis of an argument along which the rows of the case run, or -1. */
int32_t place_row_axis(const image *img, int32_t arg);
/* Calls `visit` for every run of elements that lie side by side. `at` counts elements from the tensor's element 0.
 * `dense` counts them in a dense tensor whose rows are in the case's own order. Not for caches. */
typedef void (*run_visit)(void *context, int64_t at, int64_t dense, int64_t count);
void place_runs(const image *img, int32_t arg, run_visit visit, void *context);

/* bytes.c: the contents of the arena. */
void bytes_guards(image *img);
void bytes_small(image *img);
assay_status bytes_values(image *img, const unsigned char *v_needed, assay_error *error);

#endif
