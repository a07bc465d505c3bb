/* attention_check.c: refuses what no implementation can do. check() reads shapes, types, strides, parameters and
 * whether pointers are there and aligned; lengths and tables may live on a device, so their contents are checked
 * by the reference only. */
#include "core/dtype.h"
#include "ref/lib/attention.h"

typedef long long ll; /* for messages */

static const char *arg_name(const assay_call *call, int32_t arg) {
  return call->op->args[arg].name;
}

static assay_status check_pointer(const assay_call *call, int32_t arg, assay_error *error) {
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
  return ASSAY_OK;
}

static assay_status check_dtype(const assay_call *call, int32_t arg, assay_dtype wanted, assay_error *error) {
  if (call->arg[arg].dtype == wanted) return ASSAY_OK;
  return assay_fail(error, ASSAY_ERR_INPUT, "%s: found type %s, allowed %s", arg_name(call, arg),
                    assay_dtype_name(call->arg[arg].dtype), assay_dtype_name(wanted));
}

static assay_status check_rank(const assay_call *call, int32_t arg, int32_t rank, assay_error *error) {
  if (call->arg[arg].rank == rank) return ASSAY_OK;
  return assay_fail(error, ASSAY_ERR_INPUT, "%s: found rank %d, allowed %d: [%s]", arg_name(call, arg),
                    call->arg[arg].rank, rank, call->op->args[arg].shape);
}

static assay_status check_shape(const assay_call *call, int32_t arg, int32_t axis, int64_t wanted, assay_error *error) {
  if (call->arg[arg].shape[axis] == wanted) return ASSAY_OK;
  return assay_fail(error, ASSAY_ERR_INPUT, "%s: found %lld at axis %d of its shape, allowed %lld: [%s]",
                    arg_name(call, arg), (ll)call->arg[arg].shape[axis], axis, (ll)wanted, call->op->args[arg].shape);
}

/* The stride of an axis with one element or none is never used. */
static assay_status check_stride(const assay_call *call, int32_t arg, int32_t axis, int64_t least, int64_t most,
                                 assay_error *error) {
  const assay_tensor *t = &call->arg[arg];
  if (t->shape[axis] <= 1 || (t->stride[axis] >= least && t->stride[axis] <= most)) return ASSAY_OK;
  if (least == most)
    return assay_fail(error, ASSAY_ERR_INPUT, "%s: found stride %lld at axis %d, allowed %lld", arg_name(call, arg),
                      (ll)t->stride[axis], axis, (ll)least);
  return assay_fail(error, ASSAY_ERR_INPUT, "%s: found stride %lld at axis %d, allowed %lld or more",
                    arg_name(call, arg), (ll)t->stride[axis], axis, (ll)least);
}

static assay_status check_range(const char *name, int64_t value, int64_t low, int64_t high, int64_t multiple,
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
    status = check_shape(call, arg, axis, shape[axis], error);
    if (status == ASSAY_OK) status = check_stride(call, arg, axis, stride, stride, error);
    stride *= shape[axis];
  }
  return status;
}

static assay_status check_query(const assay_call *call, assay_error *error) {
  const assay_tensor *q = &call->arg[ARG_Q];
  if (q->dtype != ASSAY_F32 && q->dtype != ASSAY_F16 && q->dtype != ASSAY_BF16)
    return assay_fail(error, ASSAY_ERR_INPUT, "q: found type %s, allowed f32, f16, bf16", assay_dtype_name(q->dtype));
  assay_status status = check_pointer(call, ARG_Q, error);
  if (status == ASSAY_OK) status = check_rank(call, ARG_Q, 3, error);
  if (status == ASSAY_OK) status = check_range("N", q->shape[0], 0, INT32_MAX, 1, error);
  if (status == ASSAY_OK) status = check_range("H", q->shape[1], 1, 256, 1, error);
  if (status == ASSAY_OK) status = check_range("D", q->shape[2], 8, 256, 8, error);
  if (status == ASSAY_OK) status = check_stride(call, ARG_Q, 2, 1, 1, error);
  if (status == ASSAY_OK) status = check_stride(call, ARG_Q, 1, q->shape[2], q->shape[2], error);
  if (status == ASSAY_OK) status = check_stride(call, ARG_Q, 0, q->shape[1] * q->shape[2], INT64_MAX, error);
  return status;
}

/* K and V: which axis is what depends on the layout. Axis numbers of block_size, H_kv, channels. */
static assay_status check_pools(const assay_call *call, assay_error *error) {
  const assay_tensor *q = &call->arg[ARG_Q], *k = &call->arg[ARG_K];
  const paged_layout layout = (paged_layout)(int)call->param[PARAM_LAYOUT];
  if (k->dtype != q->dtype && k->dtype != ASSAY_E4M3 && k->dtype != ASSAY_E5M2)
    return assay_fail(error, ASSAY_ERR_INPUT, "k_cache: found type %s, allowed %s (that of q), e4m3, e5m2",
                      assay_dtype_name(k->dtype), assay_dtype_name(q->dtype));
  assay_status status = check_dtype(call, ARG_V, k->dtype, error);
  if (status == ASSAY_OK) status = check_pointer(call, ARG_K, error);
  if (status == ASSAY_OK) status = check_pointer(call, ARG_V, error);
  if (status == ASSAY_OK) status = check_rank(call, ARG_K, layout == LAYOUT_X ? 5 : 4, error);
  if (status == ASSAY_OK) status = check_rank(call, ARG_V, 4, error);
  if (status != ASSAY_OK) return status;

  const int64_t D = q->shape[2], x = 16 / assay_dtype_size(k->dtype);
  const int64_t H_kv = k->shape[layout == LAYOUT_NHD ? 2 : 1];
  const int64_t block_size = k->shape[layout == LAYOUT_NHD ? 1 : layout == LAYOUT_HND ? 2 : 3];
  status = check_range("num_blocks", k->shape[0], 0, (int64_t)INT32_MAX + 1, 1, error);
  if (status == ASSAY_OK) status = check_range("H_kv", H_kv, 1, 256, 1, error);
  if (status != ASSAY_OK) return status;
  if (q->shape[1] % H_kv != 0)
    return assay_fail(error, ASSAY_ERR_INPUT, "H_kv: found %lld, allowed divisors of H = %lld", (ll)H_kv,
                      (ll)q->shape[1]);
  if (block_size < 8 || block_size > 256 || (block_size & (block_size - 1)) != 0)
    return assay_fail(error, ASSAY_ERR_INPUT, "block_size: found %lld, allowed 8, 16, 32, 64, 128, 256",
                      (ll)block_size);
  if (layout == LAYOUT_X && D % x != 0)
    return assay_fail(error, ASSAY_ERR_INPUT, "D: found %lld, allowed multiples of x = %lld in layout x with %s", (ll)D,
                      (ll)x, assay_dtype_name(k->dtype));

  const int64_t shape_nhd[4] = {k->shape[0], block_size, H_kv, D}, shape_hnd[4] = {k->shape[0], H_kv, block_size, D};
  const int64_t k_shape_x[5] = {k->shape[0], H_kv, D / x, block_size, x};
  const int64_t v_shape_x[4] = {k->shape[0], H_kv, D, block_size};
  const int64_t *k_shape = layout == LAYOUT_NHD ? shape_nhd : layout == LAYOUT_HND ? shape_hnd : k_shape_x;
  const int64_t *v_shape = layout == LAYOUT_NHD ? shape_nhd : layout == LAYOUT_HND ? shape_hnd : v_shape_x;
  for (int32_t arg = ARG_K; arg <= ARG_V; ++arg) {
    const int32_t rank = call->arg[arg].rank;
    for (int32_t axis = 0; axis < rank && status == ASSAY_OK; ++axis) {
      status = check_shape(call, arg, axis, arg == ARG_K ? k_shape[axis] : v_shape[axis], error);
      if (status == ASSAY_OK) status = check_stride(call, arg, axis, 1, axis == rank - 1 ? 1 : INT64_MAX, error);
    }
  }
  return status;
}

static assay_status check_scales(const assay_call *call, assay_error *error) {
  const assay_dtype kv = call->arg[ARG_K].dtype;
  const bool fp8 = kv == ASSAY_E4M3 || kv == ASSAY_E5M2;
  const int64_t H_kv = call->arg[ARG_K].shape[(int)call->param[PARAM_LAYOUT] == LAYOUT_NHD ? 2 : 1];
  const int64_t count = call->param[PARAM_SCALE_PER_HEAD] != 0 ? H_kv : 1;
  for (int32_t arg = ARG_K_SCALE; arg <= ARG_V_SCALE; ++arg) {
    if (!fp8 && call->arg[arg].data != NULL)
      return assay_fail(error, ASSAY_ERR_INPUT, "%s: found with a cache of %s, allowed with e4m3 and e5m2 only",
                        arg_name(call, arg), assay_dtype_name(kv));
    if (!fp8) continue;
    const assay_status status = check_dense(call, arg, ASSAY_F32, 1, &count, error);
    if (status != ASSAY_OK) return status;
  }
  return ASSAY_OK;
}

static assay_status check_indices(const assay_call *call, assay_error *error) {
  const assay_tensor *length = &call->arg[ARG_KV_LEN], *table = &call->arg[ARG_TABLE], *cu_q = &call->arg[ARG_CU_Q];
  const int64_t N = call->arg[ARG_Q].shape[0];
  assay_status status = check_rank(call, ARG_KV_LEN, 1, error);
  if (status != ASSAY_OK) return status;
  const int64_t B = length->shape[0];
  status = check_range("B", B, 0, INT32_MAX - 1, 1, error);
  if (status == ASSAY_OK) status = check_dense(call, ARG_KV_LEN, ASSAY_I32, 1, &B, error);
  if (status == ASSAY_OK) status = check_dtype(call, ARG_TABLE, ASSAY_I32, error);
  if (status == ASSAY_OK) status = check_pointer(call, ARG_TABLE, error);
  if (status == ASSAY_OK) status = check_rank(call, ARG_TABLE, 2, error);
  if (status == ASSAY_OK) status = check_shape(call, ARG_TABLE, 0, B, error);
  if (status == ASSAY_OK) status = check_range("max_blocks", table->shape[1], 0, INT32_MAX, 1, error);
  if (status == ASSAY_OK) status = check_stride(call, ARG_TABLE, 1, 1, 1, error);
  if (status == ASSAY_OK) status = check_stride(call, ARG_TABLE, 0, table->shape[1], INT64_MAX, error);
  if (status != ASSAY_OK) return status;
  if (cu_q->data != NULL) {
    const int64_t bounds = B + 1;
    return check_dense(call, ARG_CU_Q, ASSAY_I32, 1, &bounds, error);
  }
  if (N != B)
    return assay_fail(error, ASSAY_ERR_INPUT, "q: found %lld rows, allowed %lld: without cu_q every request has one",
                      (ll)N, (ll)B);
  return ASSAY_OK;
}

assay_status attention_check(const assay_call *call, assay_error *error) {
  assay_status status = check_params(call, error);
  if (status == ASSAY_OK) status = check_query(call, error);
  if (status == ASSAY_OK) status = check_pools(call, error);
  if (status == ASSAY_OK) status = check_scales(call, error);
  if (status == ASSAY_OK) status = check_indices(call, error);
  return status;
}

assay_status attention_check_contents(const attention *a, assay_error *error) {
  if (a->cu_q != NULL) {
    if (attention_first_row(a, 0) != 0)
      return assay_fail(error, ASSAY_ERR_INPUT, "cu_q: found %lld first, allowed 0", (ll)attention_first_row(a, 0));
    for (int64_t i = 0; i < a->B; ++i)
      if (attention_first_row(a, i + 1) < attention_first_row(a, i))
        return assay_fail(error, ASSAY_ERR_INPUT, "cu_q: found %lld behind %lld at request %lld, allowed no decrease",
                          (ll)attention_first_row(a, i + 1), (ll)attention_first_row(a, i), (ll)i);
    if (attention_first_row(a, a->B) != a->N)
      return assay_fail(error, ASSAY_ERR_INPUT, "cu_q: found %lld last, allowed the %lld rows of q",
                        (ll)attention_first_row(a, a->B), (ll)a->N);
  }
  for (int64_t i = 0; i < a->B; ++i) {
    const int64_t L = attention_length(a, i), capacity = a->max_blocks * a->block_size;
    if (L < 0 || L > capacity)
      return assay_fail(error, ASSAY_ERR_INPUT, "kv_len: found %lld for request %lld, allowed 0 to %lld", (ll)L, (ll)i,
                        (ll)capacity);
    const int32_t *table = (const int32_t *)a->table->data + i * a->table->stride[0];
    for (int64_t j = 0; j * a->block_size < L; ++j)
      if (table[j] < 0 || table[j] >= a->num_blocks)
        return assay_fail(error, ASSAY_ERR_INPUT, "block_table: found %d at [%lld, %lld], allowed 0 to %lld", table[j],
                          (ll)i, (ll)j, (ll)(a->num_blocks - 1));
  }
  return ASSAY_OK;
}
