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
    [SPOIL_V_TOKEN_BY_D] = "v_token_by_D",
    [SPOIL_V_HEAD_BY_D] = "v_head_by_D",
    [SPOIL_MASK_BITS_REVERSED] = "mask_bits_reversed",
    [SPOIL_MASK_ROW_PADDED] = "mask_row_padded",
    [SPOIL_MASK_OF_REQUEST_BEFORE] = "mask_of_request_before",
    [SPOIL_MASK_LAST_BYTE_LOST] = "mask_last_byte_lost",
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
  s->copied[s->copies] = elements > 0 ? bytes : 0;
  s->copy[s->copies++] = copy;
  tensor->data = copy;
  return copy;
}

static void reverse_heads(attention_spoil *s, int32_t arg, int32_t axis) {
  assay_tensor *t = &s->arg[arg];
  if (t->shape[axis] < 2) return;
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
  free(s->place);
  free(s->values[0].value);
  free(s->values[1].value);
  s->place = NULL;
  s->values[0].value = s->values[1].value = NULL;
}

int attention_spoil_times(const attention_spoil *s, const attention_row *row, int64_t t) {
  if (s == NULL) return 1;
  const int64_t begin = row->first / s->split, end = (row->end - 1) / s->split;
  if (s->kind == SPOIL_SPLIT_FIRST_DOUBLED) return t >= s->split && t % s->split == 0 ? 2 : 1;
  if (s->kind == SPOIL_SPLIT_SKIPPED) return begin < end && t / s->split == end ? 0 : 1;
  return 1;
}

/* ---- the rows that an error can touch -------------------------------------------------------------- */

/* Tells whether two tensors hold the same numbers in the same places. `false` may also mean that this is not known. */
static bool same_tensor(const attention_spoil *s, const assay_tensor *now, const assay_tensor *was) {
  for (int32_t axis = 0; axis < was->rank; ++axis)
    if (now->stride[axis] != was->stride[axis]) return false;
  if (now->data == was->data) return true;
  for (int i = 0; i < s->copies; ++i)
    if (s->copy[i] == now->data) return s->copied[i] > 0 && memcmp(now->data, was->data, s->copied[i]) == 0;
  return false;
}

/* Tells whether the error leaves the arguments and parameters as they are. */
static bool same_call(const attention_spoil *s, const assay_call *call) {
  if (memcmp(s->param, call->param, (size_t)call->op->param_count * sizeof *call->param) != 0) return false;
  for (int32_t i = 0; i < call->op->arg_count; ++i)
    if (!same_tensor(s, &s->arg[i], &call->arg[i])) return false;
  return true;
}

static bool has_sink(const attention_spoil *s) {
  return assay_find_arg(&s->call, "sink") != NULL;
}

/* Tells whether the error can change the row at this place of a request of L keys. `same`: the call is the right one.
 * Where it is in doubt, the row is computed. */
static bool touches(const attention_spoil *s, const attention *a, const attention_place *place, int64_t L, bool same) {
  const int64_t own = place->own, first = attention_first_key(a, a->parent != NULL ? place->cached : own);
  const int64_t end = attention_last_key(a, place, L);
  const bool one_split = first / s->split == end / s->split;
  /* Each row hands its scores to the next, and one without a key hands none. */
  if (s->kind == SPOIL_FILTER_ACROSS_ROWS) return true;
  if (own < 0) return false; /* no key */
  switch (s->kind) {
  case SPOIL_ROW_SWAPPED: /* it exchanges rows that are right */
    return false;
  case SPOIL_LAST_KEY_DROPPED:
    return true;
  case SPOIL_CAUSAL_ONE_OFF:
    return own + 1 < L;
  case SPOIL_WINDOW_ONE_SHORT: /* a->window is the short one */
    return !same && place->last >= a->window;
  case SPOIL_NEIGHBOUR_BLOCK:
    return a->cu_k != NULL ? end + 1 >= L : !same && end >= (L - 1) / a->block_size * a->block_size;
  case SPOIL_SPLIT_FIRST_DOUBLED:
    return end >= s->split;
  case SPOIL_SPLIT_SKIPPED:
  case SPOIL_LSE_NOT_MERGED:
  case SPOIL_SPLIT_HALO_LOST:
    return !one_split;
  case SPOIL_SINK_PER_SPLIT:
    return !one_split && has_sink(s);
  case SPOIL_SINK_ON_KEY_0:
    return has_sink(s);
  case SPOIL_DEPTH_IS_INDEX:
  case SPOIL_WINDOW_ON_PREFIX_ONLY:
    return place->parent != NULL;
  case SPOIL_MASK_BITS_REVERSED:
  case SPOIL_MASK_ROW_PADDED:
  case SPOIL_MASK_OF_REQUEST_BEFORE:
  case SPOIL_MASK_LAST_BYTE_LOST:
    return place->bits != NULL;
  case SPOIL_V_TOKEN_BY_D:
    return a->D_v != a->D;
  case SPOIL_V_HEAD_BY_D:
    return a->D_v != a->D && a->H_kv > 1;
  default: /* an error of the call */
    return !same;
  }
}

assay_status attention_spoil_touch(attention_spoil *s, const assay_call *call, const assay_rows *rows, int outputs,
                                   assay_error *error) {
  const attention a = attention_of(&s->call);
  const bool same = same_call(s, call);
  const int64_t *index = rows != NULL ? rows->index : NULL;
  s->all = index != NULL ? rows->count : a.N;
  s->width[0] = a.H * a.D_v;
  s->width[1] = a.H;
  s->place = malloc((size_t)(2 * s->all + 1) * sizeof *s->place);
  if (s->place == NULL) return assay_fail(error, ASSAY_ERR_MEMORY, "spoil %s: out of memory", names[s->kind]);
  int64_t *chosen = s->place + s->all, request = 0;
  s->rows = (assay_rows){.count = 0, .index = chosen};
  for (int64_t i = 0; i < s->all; ++i) {
    const int64_t row = index != NULL ? index[i] : i;
    while (request + 1 < a.B && attention_first_row(&a, request + 1) <= row)
      ++request;
    const attention_place place = attention_place_of(&a, request, row - attention_first_row(&a, request));
    if (!touches(s, &a, &place, attention_length(&a, request), same)) continue;
    s->place[s->rows.count] = i;
    chosen[s->rows.count++] = row;
  }
  for (int o = 0; o < outputs; ++o) {
    s->values[o].value = malloc((size_t)(s->rows.count * s->width[o] + 1) * sizeof *s->values[o].value);
    if (s->values[o].value == NULL)
      return assay_fail(error, ASSAY_ERR_MEMORY, "spoil %s: out of memory", names[s->kind]);
  }
  return ASSAY_OK;
}

static void exchange(double *a, double *b, int64_t width) {
  for (int64_t i = 0; i < width; ++i) {
    const double kept = a[i];
    a[i] = b[i];
    b[i] = kept;
  }
}

void attention_spoil_give(const attention_spoil *s, assay_expected *expected) {
  for (int o = 0; o < 2 && s->values[o].value != NULL; ++o) {
    const int64_t width = s->width[o];
    double *to = expected[o].value;
    for (int64_t i = 0; i < s->rows.count; ++i)
      memcpy(to + s->place[i] * width, s->values[o].value + i * width, (size_t)width * sizeof *to);
    if (s->kind == SPOIL_ROW_SWAPPED && s->all >= 2)
      exchange(to + (s->all - 2) * width, to + (s->all - 1) * width, width);
  }
}
