/* paged_check.h: refusals shared by operators over a paged cache. Each message names the argument or the dimension,
 * what was found and what is allowed. */
#ifndef ASSAY_REF_PAGED_CHECK_H
#define ASSAY_REF_PAGED_CHECK_H

#include "assay/op.h"
#include "ref/lib/paged.h"

assay_status check_pointer(const assay_call *call, int32_t arg, assay_error *error);
assay_status check_dtype(const assay_call *call, int32_t arg, assay_dtype wanted, assay_error *error);
assay_status check_rank(const assay_call *call, int32_t arg, int32_t rank, assay_error *error);
assay_status check_extent(const assay_call *call, int32_t arg, int32_t axis, int64_t wanted, assay_error *error);
/* Checks a stride. The stride of an axis with one element or none is never used. */
assay_status check_stride(const assay_call *call, int32_t arg, int32_t axis, int64_t least, int64_t most,
                          assay_error *error);
assay_status check_range(const char *name, int64_t value, int64_t low, int64_t high, int64_t multiple,
                         assay_error *error);
/* Checks for a dense tensor of that type and shape. */
assay_status check_dense(const assay_call *call, int32_t arg, assay_dtype dtype, int32_t rank, const int64_t *shape,
                         assay_error *error);

/* The arguments that are the cache, and the checked argument [N, H, D] whose type and D it must match. */
typedef struct check_cache {
  int32_t rows, k, v, k_scale, v_scale;
  paged_layout layout;
  bool scale_per_head;
  bool contiguous; /* rows of tokens side by side, no blocks: block_size 1, not in layout x */
} check_cache;

/* Tells whether V may have another number of channels than K: the operator's table has D_v. */
bool check_takes_D_v(const assay_op *op);

/* Checks K and V: type, shape, strides; H_kv divides the heads of the rows. */
assay_status check_pools(const assay_call *call, const check_cache *at, assay_error *error);
/* Checks that factors are present with fp8 caches, and only with them. */
assay_status check_scales(const assay_call *call, const check_cache *at, assay_error *error);

#endif
