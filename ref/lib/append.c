/* append.c: slots, stored numbers, and the attention call inside an operator that appends. */
#include "ref/lib/append.h"

#include <stdlib.h>

#include "core/dtype.h"
#include "ref/lib/attention.h"
#include "ref/lib/paged_check.h"

typedef long long ll; /* for messages */

double append_stored(double value, float scale, assay_dtype cache) {
  if (cache != ASSAY_E4M3 && cache != ASSAY_E5M2) return assay_round_f64(value, cache);
  return assay_round_f64((double)((float)value / scale), cache);
}

float append_scale(const assay_tensor *scale, int64_t kv_head) {
  if (scale == NULL || scale->data == NULL) return 1;
  return ((const float *)scale->data)[scale->shape[0] > 1 ? kv_head : 0];
}

int64_t append_slot(const assay_tensor *slots, int64_t row) {
  return ((const int64_t *)slots->data)[row];
}

int32_t append_arg(const assay_call *call, const char *name) {
  for (int32_t i = 0; i < call->op->arg_count; ++i)
    if (strcmp(call->op->args[i].name, name) == 0) return i;
  return -1;
}

void append_spoil_name(const char *list, int32_t index, char *name, size_t size) {
  for (; index > 0 && *list != '\0'; --index)
    list += strcspn(list, ",") + (list[strcspn(list, ",")] == ',');
  (void)snprintf(name, size, "%.*s", (int)strcspn(list, ","), list);
}

/* ---- checks ------------------------------------------------------------------------------------------ */

assay_status append_check_slots(const assay_call *call, int64_t N, assay_error *error) {
  return check_dense(call, append_arg(call, "slots"), ASSAY_I64, 1, &N, error);
}

assay_status append_check_rows(const assay_call *call, const char *name, assay_dtype dtype, int64_t N, int64_t H,
                               int64_t D, assay_error *error) {
  const int32_t arg = append_arg(call, name);
  assay_status status = check_dtype(call, arg, dtype, error);
  if (status == ASSAY_OK) status = check_pointer(call, arg, error);
  if (status == ASSAY_OK) status = check_rank(call, arg, 3, error);
  const int64_t shape[3] = {N, H, D};
  for (int32_t axis = 0; axis < 3 && status == ASSAY_OK; ++axis)
    status = check_extent(call, arg, axis, shape[axis], error);
  if (status == ASSAY_OK) status = check_stride(call, arg, 2, 1, 1, error);
  if (status == ASSAY_OK) status = check_stride(call, arg, 1, D, D, error);
  if (status == ASSAY_OK) status = check_stride(call, arg, 0, H * D, INT64_MAX, error);
  return status;
}

/* A number and the row to which it belongs. */
typedef struct owned {
  int64_t number, row;
} owned;

static int by_number(const void *a, const void *b) {
  const owned *x = a, *y = b;
  if (x->number != y->number) return x->number < y->number ? -1 : 1;
  return (x->row > y->row) - (x->row < y->row);
}

/* Returns the written slots divided by `per`, in ascending order. The caller frees the list. */
static owned *written(const assay_tensor *slots, int64_t per, int64_t *count) {
  const int64_t N = slots->shape[0];
  owned *list = malloc((size_t)(N > 0 ? N : 1) * sizeof *list);
  *count = 0;
  for (int64_t n = 0; list != NULL && n < N; ++n)
    if (append_slot(slots, n) >= 0) list[(*count)++] = (owned){append_slot(slots, n) / per, n};
  if (list != NULL) qsort(list, (size_t)*count, sizeof *list, by_number);
  return list;
}

assay_status append_check_distinct(const assay_tensor *slots, int64_t pool_slots, assay_error *error) {
  for (int64_t n = 0; n < slots->shape[0]; ++n)
    if (append_slot(slots, n) < -1 || append_slot(slots, n) >= pool_slots)
      return assay_fail(error, ASSAY_ERR_INPUT, "slots: found %lld for row %lld, allowed -1 to %lld",
                        (ll)append_slot(slots, n), (ll)n, (ll)(pool_slots - 1));
  int64_t count = 0;
  assay_status status = ASSAY_OK;
  owned *list = written(slots, 1, &count);
  if (list == NULL) return assay_fail(error, ASSAY_ERR_MEMORY, "slots: out of memory");
  for (int64_t i = 1; i < count && status == ASSAY_OK; ++i)
    if (list[i].number == list[i - 1].number)
      status = assay_fail(error, ASSAY_ERR_INPUT, "slots: found %lld for rows %lld and %lld, allowed once",
                          (ll)list[i].number, (ll)list[i - 1].row, (ll)list[i].row);
  free(list);
  return status;
}

/* Refuses a call in which a written block is read by another row than its own, or not as that row's last block. */
static assay_status check_readers(const attention *a, const assay_tensor *slots, assay_error *error) {
  int64_t count = 0;
  assay_status status = ASSAY_OK;
  owned *list = written(slots, a->block_size, &count);
  if (list == NULL) return assay_fail(error, ASSAY_ERR_MEMORY, "slots: out of memory");
  for (int64_t i = 0; i < a->B && status == ASSAY_OK; ++i) {
    const int64_t L = attention_length(a, i), last = (L - 1) / a->block_size;
    const int32_t *table = (const int32_t *)a->table->data + i * a->table->stride[0];
    for (int64_t j = 0; j * a->block_size < L && status == ASSAY_OK; ++j) {
      int64_t low = 0, high = count;
      while (low < high) {
        const int64_t middle = low + (high - low) / 2;
        if (list[middle].number < table[j])
          low = middle + 1;
        else
          high = middle;
      }
      for (; low < count && list[low].number == table[j]; ++low)
        if (list[low].row != i || j != last)
          status = assay_fail(error, ASSAY_ERR_INPUT,
                              "block_table: found block %d at [%lld, %lld], which row %lld writes; allowed once",
                              table[j], (ll)i, (ll)j, (ll)list[low].row);
    }
  }
  free(list);
  return status;
}

assay_status append_check_contents(const assay_call *outer, assay_error *error) {
  append_attention inner;
  append_attention_of(outer, &inner);
  const attention a = attention_of(&inner.call);
  const assay_tensor *slots = &outer->arg[append_arg(outer, "slots")];
  assay_status status = attention_check_contents(&a, error);
  if (status == ASSAY_OK) status = append_check_distinct(slots, a.num_blocks * a.block_size, error);
  for (int64_t n = 0; n < a.N && status == ASSAY_OK; ++n) {
    const int64_t t = attention_length(&a, n) - 1, found = append_slot(slots, n);
    int64_t wanted = -1;
    if (t >= 0) {
      const int32_t *table = (const int32_t *)a.table->data + n * a.table->stride[0];
      wanted = table[t / a.block_size] * a.block_size + t % a.block_size;
    }
    if (found != wanted)
      status =
          assay_fail(error, ASSAY_ERR_INPUT, "slots: found %lld for row %lld, allowed %lld: that of its token %lld",
                     (ll)found, (ll)n, (ll)wanted, (ll)t);
  }
  if (status == ASSAY_OK) status = check_readers(&a, slots, error);
  return status;
}

/* ---- the attention call ------------------------------------------------------------------------------ */

void append_attention_of(const assay_call *outer, append_attention *inner) {
  const assay_op *op =
      assay_find_param(outer, "kind") == KIND_SOFTMAX ? assay_op_softmax_attention() : assay_op_gate_attention();
  *inner = (append_attention){.op = op};
  inner->call = (assay_call){op, inner->arg, inner->param};
  for (int32_t i = 0; i < op->arg_count; ++i) {
    const int32_t from = append_arg(outer, op->args[i].name);
    if (from >= 0) inner->arg[i] = outer->arg[from];
  }
  for (int32_t i = 0; i < op->param_count; ++i) {
    const double value = assay_find_param(outer, op->params[i].name);
    inner->param[i] = value == value ? value : op->params[i].fallback;
  }
  const int32_t qkv = append_arg(outer, "qkv");
  if (qkv < 0) return;
  const assay_tensor *k = &inner->arg[ARG_K];
  inner->arg[ARG_Q] = outer->arg[qkv];
  inner->arg[ARG_Q].shape[1] -= 2 * k->shape[(int)inner->param[PARAM_LAYOUT] == LAYOUT_NHD ? 2 : 1];
}
