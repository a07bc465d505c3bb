/* attention_check.c: refuses what no implementation can do. check() reads shapes, types, strides, parameters and
 * whether pointers are there and aligned; lengths and tables may live on a device, so their contents are checked
 * by the reference only. */
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
  if (status == ASSAY_OK) status = check_extent(call, ARG_TABLE, 0, B, error);
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
  if (status != ASSAY_OK) return status;
  const check_cache cache = {.rows = ARG_Q,
                             .k = ARG_K,
                             .v = ARG_V,
                             .k_scale = ARG_K_SCALE,
                             .v_scale = ARG_V_SCALE,
                             .layout = (paged_layout)(int)call->param[PARAM_LAYOUT],
                             .scale_per_head = call->param[PARAM_SCALE_PER_HEAD] != 0};
  status = check_pools(call, &cache, error);
  if (status == ASSAY_OK) status = check_scales(call, &cache, error);
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
