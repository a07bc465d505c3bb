/* sparse.h: a range of addresses of which only a few pieces are memory; an access beside them faults. What a pool of
 * cache blocks looks like whose numbers are far apart, or rows with a huge stride. For devices whose memory is not the
 * host's. */
#ifndef ASSAY_SPARSE_H
#define ASSAY_SPARSE_H

#include "device.h"

#ifdef __cplusplus
extern "C" {
#endif

/* So many pieces a range may have, at most. */
#define ASSAY_SPARSE_PIECES 8

typedef struct assay_sparse {
  /* `bytes` addresses from *memory on; those of the pieces, which do not overlap, are mapped, rounded outwards to whole
   * pages. */
  assay_status (*alloc)(int64_t bytes, const assay_piece *piece, int32_t count, void **memory, assay_error *error);
  void (*release)(void *memory); /* waits until nothing uses it */
} assay_sparse;

#ifdef __cplusplus
}
#endif
#endif
