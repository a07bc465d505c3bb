/* paged_check.c: checks tensors and the paged cache against the rules for a call. */
#include "ref/lib/paged_check.h"

#include "ref/lib/plain.h"

typedef long long ll; /* for messages */

static const char *arg_name(const assay_call *call, int32_t arg) {
  return call->op->args[arg].name;
}

assay_status check_pointer(const assay_call *call, int32_t arg, assay_error *error) {
  const assay_tensor *t = &call->arg[arg];
  bool empty = false;
  for (int32_t r = 0; r < t->rank && r < ASSAY_MAX_RANK; ++r)
    empty = empty || t->shape[r] == 0;
  if (t->data == NULL && !empty)
    return assay_fail(error, ASSAY_ERR_INPUT, "%s: found no data (NULL), allowed a valid pointer", arg_name(call, arg));
  const int64_t size = assay_dtype_size(t->dtype);
  if (size > 0 && (uintptr_t)t->data % (uintptr_t)size != 0)
    return assay_fail(error, ASSAY_ERR_INPUT,
                      "%s: found data %lld bytes off, allowed multiples of its %lld-byte element", arg_name(call, arg),
                      (ll)((uintptr_t)t->data % (uintptr_t)size), (ll)size);
  return check_reach(call, arg, error);
}

assay_status check_dtype(const assay_call *call, int32_t arg, assay_dtype wanted, assay_error *error) {
  if (call->arg[arg].dtype == wanted) return ASSAY_OK;
  return assay_fail(error, ASSAY_ERR_INPUT, "%s: found type %s, allowed %s", arg_name(call, arg),
                    assay_dtype_name(call->arg[arg].dtype), assay_dtype_name(wanted));
}

assay_status check_rank(const assay_call *call, int32_t arg, int32_t rank, assay_error *error) {
  if (call->arg[arg].rank == rank) return ASSAY_OK;
  return assay_fail(error, ASSAY_ERR_INPUT, "%s: found rank %d, allowed %d: [%s]", arg_name(call, arg),
                    call->arg[arg].rank, rank, call->op->args[arg].shape);
}

assay_status check_extent(const assay_call *call, int32_t arg, int32_t axis, int64_t wanted, assay_error *error) {
  if (call->arg[arg].shape[axis] == wanted) return ASSAY_OK;
  return assay_fail(error, ASSAY_ERR_INPUT, "%s: found %lld at axis %d of its shape, allowed %lld: [%s]",
                    arg_name(call, arg), (ll)call->arg[arg].shape[axis], axis, (ll)wanted, call->op->args[arg].shape);
}

/* The stride of an axis with one element or none is never used. */
assay_status check_stride(const assay_call *call, int32_t arg, int32_t axis, int64_t least, int64_t most,
                          assay_error *error) {
  const assay_tensor *t = &call->arg[arg];
  if (t->shape[axis] <= 1 || (t->stride[axis] >= least && t->stride[axis] <= most)) return ASSAY_OK;
  if (least == most)
    return assay_fail(error, ASSAY_ERR_INPUT, "%s: found stride %lld at axis %d, allowed %lld", arg_name(call, arg),
                      (ll)t->stride[axis], axis, (ll)least);
  return assay_fail(error, ASSAY_ERR_INPUT, "%s: found stride %lld at axis %d, allowed %lld or more",
                    arg_name(call, arg), (ll)t->stride[axis], axis, (ll)least);
}

assay_status check_range(const char *name, int64_t value, int64_t low, int64_t high, int64_t multiple,
                         assay_error *error) {
  if (value >= low && value <= high && value % multiple == 0) return ASSAY_OK;
  if (multiple > 1)
    return assay_fail(error, ASSAY_ERR_INPUT, "%s: found %lld, allowed %lld to %lld, a multiple of %lld", name,
                      (ll)value, (ll)low, (ll)high, (ll)multiple);
  return assay_fail(error, ASSAY_ERR_INPUT, "%s: found %lld, allowed %lld to %lld", name, (ll)value, (ll)low, (ll)high);
}

assay_status check_dense(const assay_call *call, int32_t arg, assay_dtype dtype, int32_t rank, const int64_t *shape,
                         assay_error *error) {
  assay_status status = check_dtype(call, arg, dtype, error);
  if (status == ASSAY_OK) status = check_pointer(call, arg, error);
  if (status == ASSAY_OK) status = check_rank(call, arg, rank, error);
  int64_t stride = 1;
  for (int32_t axis = rank - 1; axis >= 0 && status == ASSAY_OK; --axis) {
    status = check_extent(call, arg, axis, shape[axis], error);
    if (status == ASSAY_OK) status = check_stride(call, arg, axis, stride, stride, error);
    stride *= shape[axis];
  }
  return status;
}

/* Tells whether the operator's table has blocks of one token. */
static bool takes_block_of_1(const assay_op *op) {
  for (int32_t i = 0; i < op->dim_count; ++i)
    if (strcmp(op->dims[i].name, "block_size") == 0) return op->dims[i].min == 1;
  return false;
}

bool check_takes_D_v(const assay_op *op) {
  for (int32_t i = 0; i < op->dim_count; ++i)
    if (strcmp(op->dims[i].name, "D_v") == 0) return true;
  return false;
}

/* Checks K and V. The layout decides which axis means block_size, H_kv and channels. */
assay_status check_pools(const assay_call *call, const check_cache *at, assay_error *error) {
  const assay_tensor *rows = &call->arg[at->rows], *k = &call->arg[at->k];
  if (k->dtype != rows->dtype && k->dtype != ASSAY_E4M3 && k->dtype != ASSAY_E5M2)
    return assay_fail(error, ASSAY_ERR_INPUT, "k_cache: found type %s, allowed %s (that of %s), e4m3, e5m2",
                      assay_dtype_name(k->dtype), assay_dtype_name(rows->dtype), arg_name(call, at->rows));
  const paged_layout layout = at->layout;
  assay_status status = check_dtype(call, at->v, k->dtype, error);
  if (status == ASSAY_OK) status = check_pointer(call, at->k, error);
  if (status == ASSAY_OK) status = check_pointer(call, at->v, error);
  if (status == ASSAY_OK) status = check_rank(call, at->k, layout == LAYOUT_X ? 5 : 4, error);
  if (status == ASSAY_OK) status = check_rank(call, at->v, 4, error);
  if (status != ASSAY_OK) return status;

  const int64_t D = rows->shape[2], x = 16 / assay_dtype_size(k->dtype);
  const int64_t H_kv = k->shape[layout == LAYOUT_NHD ? 2 : 1];
  const int64_t block_size = k->shape[layout == LAYOUT_NHD ? 1 : layout == LAYOUT_HND ? 2 : 3];
  status = check_range("num_blocks", k->shape[0], 0, (int64_t)INT32_MAX + 1, 1, error);
  if (status == ASSAY_OK) status = check_range("H_kv", H_kv, 1, 256, 1, error);
  if (status != ASSAY_OK) return status;
  if (rows->shape[1] % H_kv != 0)
    return assay_fail(error, ASSAY_ERR_INPUT, "H_kv: found %lld, allowed divisors of H = %lld", (ll)H_kv,
                      (ll)rows->shape[1]);
  if (at->contiguous && layout == LAYOUT_X)
    return assay_fail(error, ASSAY_ERR_INPUT, "layout: found x, allowed nhd, hnd with cu_k");
  if (at->contiguous && block_size != 1)
    return assay_fail(error, ASSAY_ERR_INPUT, "block_size: found %lld, allowed 1 with cu_k", (ll)block_size);
  if (block_size == 1 && layout == LAYOUT_X && takes_block_of_1(call->op))
    return assay_fail(error, ASSAY_ERR_INPUT, "block_size: found 1 in layout x, allowed 8, 16, 32, 64, 128, 256");
  const bool usual = block_size >= 8 && block_size <= 256 && (block_size & (block_size - 1)) == 0;
  if (!at->contiguous && !usual && !(block_size == 1 && takes_block_of_1(call->op)))
    return assay_fail(error, ASSAY_ERR_INPUT, "block_size: found %lld, allowed 8, 16, 32, 64, 128, 256",
                      (ll)block_size);
  if (layout == LAYOUT_X && D % x != 0)
    return assay_fail(error, ASSAY_ERR_INPUT, "D: found %lld, allowed multiples of x = %lld in layout x with %s", (ll)D,
                      (ll)x, assay_dtype_name(k->dtype));

  const int64_t D_v = check_takes_D_v(call->op) ? call->arg[at->v].shape[layout == LAYOUT_X ? 2 : 3] : D;
  const int64_t k_shape_nhd[4] = {k->shape[0], block_size, H_kv, D},
                k_shape_hnd[4] = {k->shape[0], H_kv, block_size, D};
  const int64_t v_shape_nhd[4] = {k->shape[0], block_size, H_kv, D_v};
  const int64_t v_shape_hnd[4] = {k->shape[0], H_kv, block_size, D_v};
  const int64_t k_shape_x[5] = {k->shape[0], H_kv, D / x, block_size, x};
  const int64_t v_shape_x[4] = {k->shape[0], H_kv, D_v, block_size};
  if (check_takes_D_v(call->op)) status = check_range("D_v, v_cache", D_v, 8, 256, 8, error);
  const int64_t *k_shape = layout == LAYOUT_NHD ? k_shape_nhd : layout == LAYOUT_HND ? k_shape_hnd : k_shape_x;
  const int64_t *v_shape = layout == LAYOUT_NHD ? v_shape_nhd : layout == LAYOUT_HND ? v_shape_hnd : v_shape_x;
  for (int32_t i = 0; i < 2; ++i) {
    const int32_t arg = i == 0 ? at->k : at->v;
    const int32_t rank = call->arg[arg].rank;
    for (int32_t axis = 0; axis < rank && status == ASSAY_OK; ++axis) {
      status = check_extent(call, arg, axis, i == 0 ? k_shape[axis] : v_shape[axis], error);
      if (status == ASSAY_OK) status = check_stride(call, arg, axis, 1, axis == rank - 1 ? 1 : INT64_MAX, error);
    }
  }
  return status;
}

assay_status check_scales(const assay_call *call, const check_cache *at, assay_error *error) {
  const assay_dtype kv = call->arg[at->k].dtype;
  const bool fp8 = kv == ASSAY_E4M3 || kv == ASSAY_E5M2;
  const int64_t H_kv = call->arg[at->k].shape[at->layout == LAYOUT_NHD ? 2 : 1];
  const int64_t count = at->scale_per_head ? H_kv : 1;
  for (int32_t i = 0; i < 2; ++i) {
    const int32_t arg = i == 0 ? at->k_scale : at->v_scale;
    if (!fp8 && call->arg[arg].data != NULL)
      return assay_fail(error, ASSAY_ERR_INPUT, "%s: found with a cache of %s, allowed with e4m3 and e5m2 only",
                        arg_name(call, arg), assay_dtype_name(kv));
    if (!fp8) continue;
    const assay_status status = check_dense(call, arg, ASSAY_F32, 1, &count, error);
    if (status != ASSAY_OK) return status;
  }
  return ASSAY_OK;
}
