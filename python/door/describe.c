/* describe.c: a call as JSON, and a text that grows. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "door.h"

void door_put(door_text *to, const char *format, ...) {
  for (;;) {
    va_list list;
    va_start(list, format);
    const int needs = vsnprintf(to->at != NULL ? to->at + to->size : NULL, to->room - to->size, format, list);
    va_end(list);
    if (needs < 0 || to->full) {
      to->full = true;
      return;
    }
    if (to->size + (size_t)needs < to->room) {
      to->size += (size_t)needs;
      return;
    }
    const size_t room = 2 * to->room + (size_t)needs + 256;
    char *grown = realloc(to->at, room);
    if (grown == NULL) {
      to->full = true;
      return;
    }
    to->at = grown;
    to->room = room;
  }
}

static void put_list(door_text *to, const char *name, int32_t count, const int64_t *value) {
  door_put(to, ",\"%s\":[", name);
  for (int32_t i = 0; i < count; ++i)
    door_put(to, "%s%lld", i > 0 ? "," : "", (long long)value[i]);
  door_put(to, "]");
}

void door_describe(const assay_call *call, const door_image *image, const char *what, int32_t row, door_text *to) {
  static const char *const role[] = {[ASSAY_IN] = "in", [ASSAY_OUT] = "out", [ASSAY_INOUT] = "inout"};
  const assay_op *op = call->op;
  door_put(to, "{\"what\":\"%s\",\"row\":%d,\"bytes\":%lld,\"args\":[", what, row,
           (long long)(image != NULL ? image->bytes : 0));
  for (int32_t i = 0; i < op->arg_count; ++i) {
    const assay_tensor *t = &call->arg[i];
    door_put(to, "%s{\"name\":\"%s\",\"role\":\"%s\"", i > 0 ? "," : "", op->args[i].name, role[op->args[i].role]);
    if (t->data != NULL) {
      door_put(to, ",\"dtype\":\"%s\",\"offset\":%lld", assay_dtype_name(t->dtype),
               (long long)(image != NULL ? image->offset[i] : 0));
      put_list(to, "shape", t->rank, t->shape);
      put_list(to, "stride", t->rank, t->stride);
    }
    door_put(to, "}");
  }
  door_put(to, "],\"params\":{");
  for (int32_t i = 0; i < op->param_count; ++i)
    door_put(to, "%s\"%s\":%.17g", i > 0 ? "," : "", op->params[i].name, call->param[i]);
  door_put(to, "}}");
}
