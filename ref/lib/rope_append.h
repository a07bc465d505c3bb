/* rope_append.h: what operators share that rotate q and k and append k and v to the paged cache: refusals, costs and
 * contents. Arguments and parameters are found by their names, which are those of rope_append. */
#ifndef ASSAY_REF_ROPE_APPEND_H
#define ASSAY_REF_ROPE_APPEND_H

#include "assay/op.h"

/* Returns the number of slots of the pool. */
int64_t rope_append_slots(const assay_call *call);

assay_status rope_append_check(const assay_call *call, assay_error *error);
assay_cost rope_append_cost(const assay_call *call, const assay_seen *seen);

/* Fill keys and values of the pool and of the rows: no key of the pool is read. */
void rope_append_fill_k(const assay_fill *fill, int64_t content, int64_t kv_head, double *value);
void rope_append_fill_v(const assay_fill *fill, int64_t content, int64_t kv_head, double *value);
bool rope_append_visible(const assay_call *call, int64_t request, int64_t length, int64_t first_position,
                         int64_t token);

#endif
