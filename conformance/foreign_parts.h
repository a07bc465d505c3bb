/* foreign_parts.h: what foreign.c and foreign_judge.c share. */
#ifndef ASSAY_CONFORMANCE_FOREIGN_PARTS_H
#define ASSAY_CONFORMANCE_FOREIGN_PARTS_H

#include "foreign.h"

/* The new tokens' slots; NULL: the operator has none. */
const assay_tensor *foreign_slots(const foreign_call *f);

/* Where a dense pool has what. */
typedef struct pool_axes {
  int64_t block_size, heads, channels, x; /* x: channels of a chunk; 0: layouts without chunks */
  bool token_first;                       /* nhd */
} pool_axes;

pool_axes foreign_pool(const foreign_call *f, int32_t arg);
int64_t foreign_pool_place(const pool_axes *p, int64_t slot, int64_t head, int64_t channel);

#endif
