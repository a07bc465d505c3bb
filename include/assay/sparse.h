/* sparse.h: a range of addresses in which only a few pieces are memory; an access outside them faults. It models a pool
 * of cache blocks whose numbers are far apart, or rows with a huge stride. It is for devices whose memory is not the
 * host's. */
#ifndef ASSAY_SPARSE_H
#define ASSAY_SPARSE_H

#include "device.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Largest number of pieces of a range. */
#define ASSAY_SPARSE_PIECES 8

typedef struct assay_sparse {
  /* Reserves `bytes` addresses, which begin at *memory. The pieces must not overlap. Their addresses are mapped,
   * rounded outwards to whole pages. */
  assay_status (*alloc)(int64_t bytes, const assay_piece *piece, int32_t count, void **memory, assay_error *error);
  /* The same, but all addresses of the range are mapped: those beside the pieces to one small memory, seen again and
   * again. `before` addresses in front of the range are not mapped. All of it holds 0. The pieces ascend; there may be
   * any number. */
  assay_status (*alloc_filled)(int64_t bytes, int64_t before, const assay_piece *piece, int32_t count, void **memory,
                               assay_error *error);
  void (*release)(void *memory); /* waits until the memory is not in use, then frees it */
} assay_sparse;

#ifdef __cplusplus
}
#endif
#endif
