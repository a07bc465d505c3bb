/* attention_spoil.c: planted errors, made as other calls, other keys, other rows. */
#include "ref/lib/attention_spoil.h"

#include <stdlib.h>

static const int64_t usual_split = 256;

static const char *const names[SPOIL_COUNT] = {
    [SPOIL_LAST_KEY_DROPPED] = "last_key_dropped",
    [SPOIL_CAUSAL_ONE_OFF] = "causal_one_off",
    [SPOIL_WINDOW_ONE_SHORT] = "window_one_short",
    [SPOIL_WRONG_KV_HEAD] = "wrong_kv_head",
    [SPOIL_NEIGHBOUR_BLOCK] = "neighbour_block",
    [SPOIL_SPLIT_FIRST_DOUBLED] = "split_first_doubled",
    [SPOIL_SPLIT_SKIPPED] = "split_skipped",
    [SPOIL_SCALE_LOST] = "scale_lost",
    [SPOIL_K_SCALE_LOST] = "k_scale_lost",
    [SPOIL_V_SCALE_LOST] = "v_scale_lost",
    [SPOIL_HEAD_SCALE_LOST] = "head_scale_lost",
    [SPOIL_ROW_SWAPPED] = "row_swapped",
    [SPOIL_LSE_NOT_MERGED] = "lse_not_merged",
    [SPOIL_SOFTCAP_LOST] = "softcap_lost",
    [SPOIL_SLOPES_LOST] = "slopes_lost",
    [SPOIL_FILTER_ACROSS_ROWS] = "filter_across_rows",
    [SPOIL_SPLIT_HALO_LOST] = "split_halo_lost",
    [SPOIL_RELU_LOST] = "relu_lost",
    [SPOIL_CLIP_LOST] = "clip_lost",
    [SPOIL_TAPS_REVERSED] = "taps_reversed",
    [SPOIL_GAMMA_LOST] = "gamma_lost",
    [SPOIL_SINK_SCALED] = "sink_scaled",
    [SPOIL_SINK_PER_SPLIT] = "sink_per_split",
    [SPOIL_SINK_ON_KEY_0] = "sink_on_key_0",
    [SPOIL_SINK_LOST] = "sink_lost",
    [SPOIL_CHUNK_FROM_ROW] = "chunk_from_row",
    [SPOIL_DEPTH_IS_INDEX] = "depth_is_index",
    [SPOIL_WINDOW_ON_PREFIX_ONLY] = "window_on_prefix_only",
};

/* Returns the error at that place of the operator's list, which is one text with names separated by commas. */
static attention_spoil_kind kind_of(const char *list, int32_t index) {
  for (; index > 0 && *list != '\0'; --index)
    list += strcspn(list, ",") + (list[strcspn(list, ",")] == ',');
  const size_t length = strcspn(list, ",");
  for (int kind = 1; kind < SPOIL_COUNT; ++kind)
    if (strlen(names[kind]) == length && strncmp(names[kind], list, length) == 0) return (attention_spoil_kind)kind;
  return SPOIL_NONE;
}

void *attention_spoil_copy(attention_spoil *s, int32_t arg) {
  assay_tensor *tensor = &s->arg[arg];
  if (tensor->data == NULL) return NULL;
  /* the last axis is dense, the first may be padded */
  const int64_t last = tensor->shape[tensor->rank - 1];
  const int64_t elements = tensor->rank == 1 ? last : (tensor->shape[0] - 1) * tensor->stride[0] + last;
  const size_t bytes = 4 * (size_t)(elements > 0 ? elements : 1);
  void *copy = malloc(bytes);
  if (copy == NULL) return NULL;
  if (elements > 0) memcpy(copy, tensor->data, 4 * (size_t)elements);
  s->copy[s->copies++] = copy;
  tensor->data = copy;
  return copy;
}

static void reverse_heads(attention_spoil *s, int32_t arg, int32_t axis) {
  assay_tensor *t = &s->arg[arg];
  const int64_t bytes = (t->shape[axis] - 1) * t->stride[axis] * assay_dtype_size(t->dtype);
  t->data = (void *)((uintptr_t)t->data + (uintptr_t)bytes);
  t->stride[axis] = -t->stride[axis];
}

static bool reverse_factors(attention_spoil *s, int32_t arg) {
  const int64_t count = s->arg[arg].shape[0];
  if (s->arg[arg].data == NULL || count < 2) return true;
  const float *from = s->arg[arg].data;
  float *to = attention_spoil_copy(s, arg);
  for (int64_t h = 0; to != NULL && h < count; ++h)
    to[h] = from[count - 1 - h];
  return to != NULL;
}

/* Changes fp8 factors. `first`: all become that of head 0; else all become 1. */
static bool level_factors(attention_spoil *s, int32_t arg, bool first) {
  if (s->arg[arg].data == NULL) return true;
  float *to = attention_spoil_copy(s, arg);
  for (int64_t h = 0; to != NULL && h < s->arg[arg].shape[0]; ++h)
    to[h] = first ? to[0] : 1.0f;
  return to != NULL;
}

static bool swap_blocks(attention_spoil *s, const attention *a) {
  if (a->cu_k != NULL) return true; /* done by attention.neighbour */
  const int32_t *from = a->table->data;
  const int64_t stride = a->table->stride[0];
  int32_t *to = attention_spoil_copy(s, ARG_TABLE);
  for (int64_t i = 0; to != NULL && i < a->B; ++i) {
    const int64_t L = attention_length(a, i), blocks = (L + a->block_size - 1) / a->block_size;
    if (blocks >= 2) to[i * stride + blocks - 1] = from[i * stride + blocks - 2];
    for (int64_t step = 1; blocks == 1 && step < a->B; ++step) {
      const int64_t other = (i + step) % a->B;
      if (attention_length(a, other) < L || from[other * stride] == from[i * stride]) continue;
      to[i * stride] = from[other * stride];
      break;
    }
  }
  return to != NULL;
}

assay_status attention_spoil_make(const assay_call *call, const assay_contract *contract, int32_t index,
                                  attention_spoil *s, assay_error *error) {
  *s = (attention_spoil){.kind = kind_of(call->op->spoils, index)};
  memcpy(s->arg, call->arg, (size_t)call->op->arg_count * sizeof *call->arg);
  memcpy(s->param, call->param, (size_t)call->op->param_count * sizeof *call->param);
  s->call = (assay_call){call->op, s->arg, s->param};
  s->split = contract != NULL && contract->keys_per_split > 0 ? contract->keys_per_split : usual_split;
  const attention a = attention_of(call);
  bool good = true;
  switch (s->kind) {
  case SPOIL_NONE:
    return assay_fail(error, ASSAY_ERR_INPUT, "spoil: found number %d, which '%s' does not name", index,
                      call->op->spoils);
  case SPOIL_LAST_KEY_DROPPED:
    s->reach = -1;
    break;
  case SPOIL_CAUSAL_ONE_OFF:
    s->reach = 1;
    break;
  case SPOIL_WINDOW_ONE_SHORT:
    if (a.window >= 2) s->param[PARAM_WINDOW] = (double)(a.window - 1);
    break;
  case SPOIL_WRONG_KV_HEAD:
    reverse_heads(s, ARG_K, a.layout == LAYOUT_NHD ? 2 : 1);
    reverse_heads(s, ARG_V, a.layout == LAYOUT_NHD ? 2 : 1);
    good = reverse_factors(s, ARG_K_SCALE) && reverse_factors(s, ARG_V_SCALE);
    break;
  case SPOIL_NEIGHBOUR_BLOCK:
    good = swap_blocks(s, &a);
    break;
  case SPOIL_SCALE_LOST:
    s->param[PARAM_SCALE] = 1;
    break;
  case SPOIL_K_SCALE_LOST:
    good = level_factors(s, ARG_K_SCALE, false);
    break;
  case SPOIL_V_SCALE_LOST:
    good = level_factors(s, ARG_V_SCALE, false);
    break;
  case SPOIL_HEAD_SCALE_LOST:
    good = level_factors(s, ARG_K_SCALE, true) && level_factors(s, ARG_V_SCALE, true);
    break;
  default: /* errors of keys or rows, and the operator's own */
    break;
  }
  return good ? ASSAY_OK : assay_fail(error, ASSAY_ERR_MEMORY, "spoil %s: out of memory", names[s->kind]);
}

void attention_spoil_free(attention_spoil *s) {
  for (int i = 0; i < s->copies; ++i)
    free(s->copy[i]);
  s->copies = 0;
}

int attention_spoil_times(const attention_spoil *s, const attention_row *row, int64_t t) {
  if (s == NULL) return 1;
  const int64_t begin = row->first / s->split, end = (row->end - 1) / s->split;
  if (s->kind == SPOIL_SPLIT_FIRST_DOUBLED) return t >= s->split && t % s->split == 0 ? 2 : 1;
  if (s->kind == SPOIL_SPLIT_SKIPPED) return begin < end && t / s->split == end ? 0 : 1;
  return 1;
}

void attention_spoil_rows(const attention_spoil *s, int64_t rows, int64_t width, double *value) {
  if (s->kind != SPOIL_ROW_SWAPPED || rows < 2) return;
  double *a = value + (rows - 2) * width, *b = a + width;
  for (int64_t i = 0; i < width; ++i) {
    const double kept = a[i];
    a[i] = b[i];
    b[i] = kept;
  }
}
