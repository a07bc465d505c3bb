/* attention_check.c: refuses calls that no implementation can run. check() reads shapes, types, strides and parameters,
 * and whether pointers are present and aligned. Lengths and tables may live on a device, so only the reference checks
 * their contents. */
#include "core/dtype.h"
#include "ref/lib/attention.h"

typedef long long ll; /* for messages */

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

static assay_status check_table(const assay_call *call, int64_t B, assay_error *error) {
  const assay_tensor *table = &call->arg[ARG_TABLE];
  assay_status status = check_dtype(call, ARG_TABLE, ASSAY_I32, error);
  if (status == ASSAY_OK) status = check_pointer(call, ARG_TABLE, error);
  if (status == ASSAY_OK) status = check_rank(call, ARG_TABLE, 2, error);
  if (status == ASSAY_OK) status = check_extent(call, ARG_TABLE, 0, B, error);
  if (status == ASSAY_OK) status = check_range("max_blocks", table->shape[1], 0, INT32_MAX, 1, error);
  if (status == ASSAY_OK) status = check_stride(call, ARG_TABLE, 1, 1, 1, error);
  if (status == ASSAY_OK) status = check_stride(call, ARG_TABLE, 0, table->shape[1], INT64_MAX, error);
  return status;
}

/* Checks that K and V are paged, by block_table, or contiguous, by cu_k. A table without entries needs no data. */
static assay_status check_form(const assay_call *call, assay_error *error) {
  const assay_tensor *table = &call->arg[ARG_TABLE], *cu_k = &call->arg[ARG_CU_K];
  if (table->data != NULL && cu_k->data != NULL)
    return assay_fail(error, ASSAY_ERR_INPUT, "block_table, cu_k: found both, allowed one of them");
  const bool empty = table->rank == 2 && (table->shape[0] == 0 || table->shape[1] == 0);
  if (table->data == NULL && cu_k->data == NULL && !empty)
    return assay_fail(error, ASSAY_ERR_INPUT,
                      "block_table, cu_k: found no data (NULL) for either, allowed one of them");
  return ASSAY_OK;
}

static assay_status check_indices(const assay_call *call, assay_error *error) {
  const assay_tensor *length = &call->arg[ARG_KV_LEN], *cu_q = &call->arg[ARG_CU_Q];
  const int64_t N = call->arg[ARG_Q].shape[0];
  assay_status status = check_rank(call, ARG_KV_LEN, 1, error);
  if (status != ASSAY_OK) return status;
  const int64_t B = length->shape[0];
  const int64_t bounds = B + 1;
  status = check_range("B", B, 0, INT32_MAX - 1, 1, error);
  if (status == ASSAY_OK) status = check_dense(call, ARG_KV_LEN, ASSAY_I32, 1, &B, error);
  if (status == ASSAY_OK)
    status = call->arg[ARG_CU_K].data != NULL ? check_dense(call, ARG_CU_K, ASSAY_I32, 1, &bounds, error)
                                              : check_table(call, B, error);
  if (status != ASSAY_OK) return status;
  if (cu_q->data != NULL) return check_dense(call, ARG_CU_Q, ASSAY_I32, 1, &bounds, error);
  if (N != B)
    return assay_fail(error, ASSAY_ERR_INPUT, "q: found %lld rows, allowed %lld: without cu_q every request has one",
                      (ll)N, (ll)B);
  return ASSAY_OK;
}

assay_status attention_check(const assay_call *call, assay_error *error) {
  assay_status status = check_params(call, error);
  if (status == ASSAY_OK) status = check_query(call, error);
  if (status == ASSAY_OK) status = check_form(call, error);
  if (status != ASSAY_OK) return status;
  const check_cache cache = {.rows = ARG_Q,
                             .k = ARG_K,
                             .v = ARG_V,
                             .k_scale = ARG_K_SCALE,
                             .v_scale = ARG_V_SCALE,
                             .layout = (paged_layout)(int)call->param[PARAM_LAYOUT],
                             .scale_per_head = call->param[PARAM_SCALE_PER_HEAD] != 0,
                             .contiguous = call->arg[ARG_CU_K].data != NULL};
  status = check_pools(call, &cache, error);
  if (status == ASSAY_OK) status = check_scales(call, &cache, error);
  if (status == ASSAY_OK) status = check_indices(call, error);
  return status;
}

static int64_t entry_of(const assay_tensor *t, int64_t index) {
  return ((const int32_t *)t->data)[index];
}

/* Checks a paged cache: lengths fit the table, and the entries that they need name blocks. */
static assay_status check_entries(const attention *a, assay_error *error) {
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

/* Checks contiguous K and V: rows of the requests follow each other inside the tensors, and lengths fit them. */
static assay_status check_starts(const attention *a, assay_error *error) {
  const int32_t *start = a->cu_k->data;
  for (int64_t i = 0; i <= a->B; ++i) {
    const int32_t least = i > 0 ? start[i - 1] : 0;
    if (start[i] < least || start[i] > a->num_blocks)
      return assay_fail(error, ASSAY_ERR_INPUT, "cu_k: found %d at %lld, allowed %d to the %lld rows of k_cache",
                        start[i], (ll)i, least, (ll)a->num_blocks);
  }
  for (int64_t i = 0; i < a->B; ++i) {
    const int64_t L = attention_length(a, i), rows = (int64_t)start[i + 1] - start[i];
    if (L < 0 || L > rows)
      return assay_fail(error, ASSAY_ERR_INPUT, "kv_len: found %lld for request %lld, allowed 0 to %lld, its rows",
                        (ll)L, (ll)i, (ll)rows);
  }
  return ASSAY_OK;
}

/* Checks trees: the parent of a row is an earlier row of its request, or -1. */
static assay_status check_trees(const attention *a, assay_error *error) {
  for (int64_t i = 0; i < a->B; ++i) {
    const int64_t first = attention_first_row(a, i), end = a->cu_q != NULL ? attention_first_row(a, i + 1) : i + 1;
    for (int64_t row = first; row < end; ++row) {
      const int64_t parent = entry_of(a->parent, row);
      if (parent < -1 || parent >= row - first)
        return assay_fail(error, ASSAY_ERR_INPUT, "parent: found %lld for row %lld of request %lld, allowed -1 to %lld",
                          (ll)parent, (ll)(row - first), (ll)i, (ll)(row - first - 1));
    }
  }
  return ASSAY_OK;
}

/* Checks a mask: every request has bytes enough for its bits, inside the tensor. */
static assay_status check_mask(const attention *a, assay_error *error) {
  const int64_t *start = a->mask_ptr->data, bytes = 4 * a->mask->shape[0];
  if (start[0] < 0)
    return assay_fail(error, ASSAY_ERR_INPUT, "mask_ptr: found %lld first, allowed 0 or more", (ll)start[0]);
  for (int64_t i = 0; i < a->B; ++i) {
    const int64_t first = attention_first_row(a, i), end = a->cu_q != NULL ? attention_first_row(a, i + 1) : i + 1;
    const int64_t least = ((end - first) * attention_length(a, i) + 7) / 8;
    if (start[i + 1] < start[i] || start[i + 1] - start[i] < least || start[i + 1] > bytes)
      return assay_fail(error, ASSAY_ERR_INPUT,
                        "mask_ptr: found %lld to %lld for request %lld, allowed %lld bytes or more of the mask's %lld",
                        (ll)start[i], (ll)start[i + 1], (ll)i, (ll)least, (ll)bytes);
  }
  return ASSAY_OK;
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
  assay_status status = a->cu_k != NULL ? check_starts(a, error) : check_entries(a, error);
  if (status == ASSAY_OK && a->mask != NULL) status = check_mask(a, error);
  return status == ASSAY_OK && a->parent != NULL ? check_trees(a, error) : status;
}
