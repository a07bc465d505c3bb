/* moves.c: edits of a case that keep it whole: everything that follows from a change is changed with it. */
#include <stdlib.h>

#include "conformance/generate/generate.h"
#include "shrink_internal.h"

static int32_t dim_index(const assay_case *one, const char *name) {
  for (int32_t i = 0; i < one->op->dim_count; ++i)
    if (strcmp(one->op->dims[i].name, name) == 0 && one->op->dims[i].max > 0) return i;
  return -1;
}

static void set_dim(assay_case *one, const char *name, int64_t value) {
  const int32_t i = dim_index(one, name);
  if (i >= 0) one->dim[i] = value;
}

void mend_shares(assay_case *one) {
  const int64_t block_size = logical_dim(one, "block_size", 1);
  for (int32_t i = 0; i < one->batch; ++i) {
    const int32_t j = one->share_with[i];
    if (j < 0) continue;
    const int64_t most = case_shareable(one, i, j);
    if (one->share_tokens[i] > most) one->share_tokens[i] = (int32_t)(most / block_size * block_size);
    if (one->share_tokens[i] > 0) continue;
    one->share_with[i] = -1;
    one->share_tokens[i] = 0;
  }
}

/* ---- requests ---------------------------------------------------------------------------------------- */

void drop_requests(assay_case *one, int32_t first, int32_t count) {
  int32_t *const lists[] = {one->kv_len, one->new_len, one->share_with, one->share_tokens};
  const size_t rest = (size_t)(one->batch - first - count);
  for (int32_t i = 0; i < one->batch; ++i) {
    int32_t *with = &one->share_with[i];
    if (*with >= first && *with < first + count) {
      *with = -1;
      one->share_tokens[i] = 0;
    } else if (*with >= first + count) {
      *with -= count;
    }
  }
  for (int32_t i = 0; i < 4; ++i)
    memmove(lists[i] + first, lists[i] + first + count, rest * sizeof *lists[i]);
  one->batch -= count;
}

static void set_length(assay_case *one, int32_t i, int64_t L) {
  one->kv_len[i] = (int32_t)L;
  if (one->mode == MODE_PREFILL) one->new_len[i] = (int32_t)L;
  if (one->mode == MODE_CHUNKED && one->new_len[i] > L) one->new_len[i] = (int32_t)L;
  if (one->mode == MODE_MIXED && one->new_len[i] > L) one->new_len[i] = (int32_t)(L > 1 ? L : 1);
}

void set_mode(assay_case *one, case_mode mode) {
  one->mode = mode;
  for (int32_t i = 0; i < one->batch; ++i) {
    if (mode == MODE_DECODE) one->new_len[i] = 1;
    if (mode == MODE_PREFILL) one->new_len[i] = one->kv_len[i];
    if (mode == MODE_CHUNKED && one->kv_len[i] < 1) one->kv_len[i] = 1;
    if (mode == MODE_CHUNKED && one->new_len[i] < 1) one->new_len[i] = 1;
    if (mode == MODE_CHUNKED && one->new_len[i] > one->kv_len[i]) one->new_len[i] = one->kv_len[i];
  }
  mend_shares(one);
}

/* ---- numbers ----------------------------------------------------------------------------------------- */

int64_t quantity_get(const assay_case *one, const quantity *what) {
  int64_t most = 0;
  switch (what->kind) {
  case QUANTITY_LENGTHS:
    for (int32_t i = 0; i < one->batch; ++i)
      if (one->kv_len[i] > most) most = one->kv_len[i];
    return most;
  case QUANTITY_LENGTH:
    return one->kv_len[what->index];
  case QUANTITY_NEW:
    return one->new_len[what->index];
  case QUANTITY_HEADS:
    return logical_dim(one, "H_kv", 1);
  case QUANTITY_GROUP:
    return logical_dim(one, "H", 1) / logical_dim(one, "H_kv", 1);
  case QUANTITY_DIM:
    return one->dim[what->index];
  case QUANTITY_PARAM:
    return (int64_t)one->param[what->index];
  }
  return 0;
}

void quantity_set(assay_case *one, const quantity *what, int64_t value) {
  const int64_t group = logical_dim(one, "H", 1) / logical_dim(one, "H_kv", 1);
  switch (what->kind) {
  case QUANTITY_LENGTHS: /* no request grows, and none without keys gets some */
    for (int32_t i = 0; i < one->batch; ++i)
      if (one->kv_len[i] > value) set_length(one, i, value);
    break;
  case QUANTITY_LENGTH:
    set_length(one, what->index, value);
    break;
  case QUANTITY_NEW:
    one->new_len[what->index] = (int32_t)value;
    break;
  case QUANTITY_HEADS:
    set_dim(one, "H", value * group);
    set_dim(one, "H_kv", value);
    break;
  case QUANTITY_GROUP:
    set_dim(one, "H", value * logical_dim(one, "H_kv", 1));
    break;
  case QUANTITY_DIM:
    one->dim[what->index] = value;
    break;
  case QUANTITY_PARAM:
    one->param[what->index] = (double)value;
    break;
  }
  mend_shares(one);
}

static bool has_heads(const assay_case *one) {
  return dim_index(one, "H") >= 0 && dim_index(one, "H_kv") >= 0 &&
         logical_dim(one, "H", 1) % logical_dim(one, "H_kv", 1) == 0;
}

int32_t quantity_list(const assay_case *one, quantity *list, int32_t room) {
  const assay_op *op = one->op;
  int32_t count = 0;
#define ADD(...)                                                                                                       \
  do {                                                                                                                 \
    if (count < room) list[count++] = (quantity){__VA_ARGS__};                                                         \
  } while (0)
  const bool requests = op->form == ASSAY_PAGED;
  if (one->batch > 1) ADD(QUANTITY_LENGTHS, 0, 1, KEY_MAX_LENGTH, 1, "the longest kv_len");
  for (int32_t i = 0; requests && i < one->batch; ++i) {
    ADD(QUANTITY_LENGTH, i, one->mode == MODE_CHUNKED ? 1 : 0, KEY_MAX_LENGTH, 1, "kv_len");
    if (one->batch > 1 && count > 0)
      (void)snprintf(list[count - 1].name, sizeof list[count - 1].name, "kv_len of request %d", i);
  }
  for (int32_t i = 0; requests && i < one->batch && (one->mode == MODE_CHUNKED || one->mode == MODE_MIXED); ++i) {
    ADD(QUANTITY_NEW, i, one->mode == MODE_CHUNKED ? 1 : 0, one->kv_len[i] > 1 ? one->kv_len[i] : 1, 1, "new");
    if (one->batch > 1 && count > 0)
      (void)snprintf(list[count - 1].name, sizeof list[count - 1].name, "new of request %d", i);
  }
  const bool heads = requests && has_heads(one); /* elsewhere heads need not be multiples of each other */
  if (heads) {
    ADD(QUANTITY_HEADS, 0, 1, 256, 1, "H_kv");
    ADD(QUANTITY_GROUP, 0, 1, 256, 1, "H / H_kv");
  }
  for (int32_t i = 0; i < op->dim_count; ++i) {
    const assay_dim *dim = &op->dims[i];
    if (dim->max == 0 || (heads && (strcmp(dim->name, "H") == 0 || strcmp(dim->name, "H_kv") == 0))) continue;
    const int64_t step = dim->multiple > 0 ? dim->multiple : 1;
    ADD(QUANTITY_DIM, i, (dim->min + step - 1) / step * step, dim->max, step, "");
    if (count > 0) (void)snprintf(list[count - 1].name, sizeof list[count - 1].name, "%s", dim->name);
  }
  for (int32_t i = 0; i < op->param_count; ++i) {
    const assay_param *param = &op->params[i];
    const bool plain = !(one->param[i] < param->fallback) && !(one->param[i] > param->fallback);
    if (param->kind != ASSAY_INTEGER || plain) continue;
    ADD(QUANTITY_PARAM, i, (int64_t)param->min, (int64_t)param->max, 1, "");
    if (count > 0) (void)snprintf(list[count - 1].name, sizeof list[count - 1].name, "%s", param->name);
  }
#undef ADD
  return count;
}

static int compare_numbers(const void *a, const void *b) {
  const int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
  return (x > y) - (x < y);
}

/* Sorts a list and removes repetitions; returns the count. */
static int32_t unique(int64_t *list, int32_t count) {
  int32_t kept = 0;
  qsort(list, (size_t)count, sizeof *list, compare_numbers);
  for (int32_t i = 0; i < count; ++i)
    if (i == 0 || list[i] != list[i - 1]) list[kept++] = list[i];
  return kept;
}

int32_t quantity_steps(const assay_case *one, const quantity *what, int64_t value, int64_t split, int64_t *steps,
                       int32_t room) {
  const int64_t block_size = logical_dim(one, "block_size", 1);
  const bool lengths = what->kind == QUANTITY_LENGTHS || what->kind == QUANTITY_LENGTH || what->kind == QUANTITY_NEW;
  const int64_t least = lengths && what->least < 1 ? 1 : what->least; /* a case without keys is tried on its own */
  int64_t all[48];
  int32_t count = 0, kept = 0;
  const int64_t plain[] = {least, least + what->step, 4, 8, 16, 32, 64, 128, value / 2};
  const int64_t units[] = {lengths ? block_size : 0, lengths ? split : 0, lengths ? 128 : 0};
  for (size_t i = 0; i < sizeof plain / sizeof plain[0]; ++i)
    all[count++] = plain[i];
  for (int32_t u = 0; u < 3; ++u)
    for (int64_t k = 1; k <= 2 && units[u] > 0; ++k)
      for (int64_t d = -1; d <= 1; ++d)
        all[count++] = k * units[u] + d;
  count = unique(all, count);
  for (int32_t i = 0; i < count && kept < room; ++i)
    if (all[i] >= least && all[i] < value && all[i] % what->step == 0) steps[kept++] = all[i];
  return kept;
}

/* ---- keys -------------------------------------------------------------------------------------------- */

bool plain_value(const assay_case *one, const case_key *key, double *value) {
  static const char *const kept[] = {"section", "tier", "mode", "break", "argument"};
  if (key->kind > KEY_ENUM || key->store == STORE_DIM) return false;
  for (size_t i = 0; i < sizeof kept / sizeof kept[0]; ++i)
    if (strcmp(key->name, kept[i]) == 0) return false;
  *value = key->fallback;
  if (strcmp(key->name, "values") == 0) *value = one->tier == TIER_EXACT ? ASSAY_LATTICE : ASSAY_NORMAL;
  if (strcmp(key->name, "tables") == 0) *value = TABLES_IDENTITY;
  if (strcmp(key->name, "dead") == 0) *value = DEAD_ZERO;
  if (strcmp(key->name, "dtype") == 0) *value = 0; /* f32: nothing is lost */
  return true;
}
