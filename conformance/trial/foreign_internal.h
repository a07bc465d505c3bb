/* foreign_internal.h: functions that foreign.c and foreign_judge.c share. */
#ifndef ASSAY_CONFORMANCE_TRIAL_FOREIGN_PARTS_H
#define ASSAY_CONFORMANCE_TRIAL_FOREIGN_PARTS_H

#include "foreign.h"

/* Returns the new tokens' slots, or NULL where the operator has none. */
const assay_tensor *foreign_slots(const foreign_call *f);

/* The extents of a dense pool. */
typedef struct pool_axes {
  int64_t block_size, heads, channels, x; /* x: channels of a chunk; 0: layouts without chunks */
  bool token_first;                       /* nhd */
} pool_axes;

/* Returns the extents of a pool argument. */
pool_axes foreign_pool(const foreign_call *f, int32_t arg);
/* Returns the element of a dense pool at which a slot's channel lies. */
int64_t foreign_pool_place(const pool_axes *p, int64_t slot, int64_t head, int64_t channel);

#endif
