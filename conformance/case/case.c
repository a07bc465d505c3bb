#define _POSIX_C_SOURCE 200809L
/* case.c: making, copying and freeing a case, and its axes. */
#include "types.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

#include "core/registry.h"
#include "conformance/text/text.h"
#include "keys.h"

void case_init(assay_case *one, const assay_op *op) {
  *one = (assay_case){.op = op, .devices = CASE_ON_ANY};
  const int32_t count = key_count(op);
  for (int32_t i = 0; i < count; ++i) {
    const case_key key = key_at(op, i);
    if (key.kind <= KEY_ENUM) key_set(one, &key, key.fallback);
  }
}

void case_free(assay_case *one) {
  if (one == NULL) return;
  free(one->kv_len);
  free(one->new_len);
  free(one->share_with);
  free(one->share_tokens);
  one->kv_len = one->new_len = one->share_with = one->share_tokens = NULL;
  one->batch = 0;
}

assay_status case_plain_lists(assay_case *one, assay_error *error) {
  static const int32_t content[4] = {1, 1, -1, 0};
  int32_t **const list[4] = {&one->kv_len, &one->new_len, &one->share_with, &one->share_tokens};
  one->batch = 1;
  one->mode = MODE_PREFILL;
  for (int i = 0; i < 4; ++i) {
    free(*list[i]);
    *list[i] = malloc(sizeof **list[i]);
    if (*list[i] == NULL) return assay_fail(error, ASSAY_ERR_MEMORY, "case: out of memory");
    **list[i] = content[i];
  }
  return ASSAY_OK;
}

const char *case_axes(const assay_op *op) {
  if (op->axes != NULL) return op->axes;
  return op->form == ASSAY_PAGED ? "dtype,kv_dtype,layout,mode" : "dtype";
}

bool case_axis_name(const assay_op *op, int32_t index, char *name, size_t size) {
  const char *at = case_axes(op);
  for (; index > 0 && *at != '\0'; --index) {
    at += strcspn(at, ",");
    at += *at == ',';
  }
  (void)snprintf(name, size, "%.*s", (int)strcspn(at, ","), at);
  return name[0] != '\0';
}

void case_imply_expect(assay_case *one) {
  if (one->section == SECTION_REFUSE && one->argument > 0 && one->expect[0] == '\0')
    (void)snprintf(one->expect, sizeof one->expect, "%s", one->op->args[one->argument - 1].name);
}

static int32_t *copy_list(const int32_t *from, int32_t count, assay_status *status) {
  if (from == NULL) return NULL;
  const size_t bytes = (size_t)(count > 0 ? count : 1) * sizeof *from;
  int32_t *to = malloc(bytes);
  if (to == NULL)
    *status = ASSAY_ERR_MEMORY;
  else
    memcpy(to, from, (size_t)count * sizeof *from);
  return to;
}

assay_status case_copy(const assay_case *from, assay_case *to, assay_error *error) {
  assay_status status = ASSAY_OK;
  *to = *from;
  to->kv_len = copy_list(from->kv_len, from->batch, &status);
  to->new_len = copy_list(from->new_len, from->batch, &status);
  to->share_with = copy_list(from->share_with, from->batch, &status);
  to->share_tokens = copy_list(from->share_tokens, from->batch, &status);
  if (status == ASSAY_OK) return ASSAY_OK;
  case_free(to);
  return assay_fail(error, status, "case: out of memory for %d requests", from->batch);
}

bool case_runs_on(const assay_case *one, const char *device) {
  const uint32_t bit = strcmp(device, "simt") == 0 ? CASE_ON_SIMT : strcmp(device, "cuda") == 0 ? CASE_ON_CUDA : 0;
  return (one->devices & bit) != 0;
}

const char *case_axis(const assay_case *one, const char *axis) {
  const int32_t index = key_find(one->op, axis);
  if (index < 0) return NULL;
  const case_key key = key_at(one->op, index);
  if (key.kind == KEY_BOOL) return key_get(one, &key) != 0 ? "true" : "false";
  return key.kind == KEY_ENUM ? key_name_of(&key, (int64_t)key_get(one, &key)) : NULL;
}

void case_op_list(char *text, size_t size) {
  size_t used = 0;
  text[0] = '\0';
  for (int32_t i = 0; i < assay_op_count() && used < size; ++i)
    used += (size_t)snprintf(text + used, size - used, "%s%s", i > 0 ? ", " : "", assay_op_at(i)->name);
}
