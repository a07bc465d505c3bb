/* list_json.c: assay list ops --json: the table of an operator (assay/op.h), for programs. */
#include <stdio.h>

#include "cli.h"
#include "conformance/case/case.h"
#include "conformance/text/text.h"
#include "core/registry.h"

/* Writes `"name":"text"`, or null without a text, after a comma if `more`. */
static void put_text(bool more, const char *name, const char *text) {
  (void)printf("%s\"%s\":", more ? "," : "", name);
  if (text != NULL)
    text_json(stdout, text);
  else
    (void)fputs("null", stdout);
}

static void put_args(const assay_op *op) {
  static const char *const role[] = {[ASSAY_IN] = "in", [ASSAY_OUT] = "out", [ASSAY_INOUT] = "inout"};
  (void)fputs(",\"args\":[", stdout);
  for (int32_t i = 0; i < op->arg_count; ++i) {
    const assay_arg *a = &op->args[i];
    (void)fputs(i > 0 ? ",{" : "{", stdout);
    put_text(false, "name", a->name);
    put_text(true, "role", role[a->role]);
    put_text(true, "dtypes", a->dtypes);
    put_text(true, "shape", a->shape);
    (void)printf(",\"optional\":%s,\"cache\":%s}", a->optional ? "true" : "false",
                 a->content == ASSAY_K_CACHE || a->content == ASSAY_V_CACHE ? "true" : "false");
  }
  (void)fputs("]", stdout);
}

static void put_params(const assay_op *op) {
  static const char *const kind[] = {
      [ASSAY_REAL] = "real", [ASSAY_INTEGER] = "integer", [ASSAY_BOOL] = "bool", [ASSAY_ENUM] = "enum"};
  (void)fputs(",\"params\":[", stdout);
  for (int32_t i = 0; i < op->param_count; ++i) {
    const assay_param *p = &op->params[i];
    (void)fputs(i > 0 ? ",{" : "{", stdout);
    put_text(false, "name", p->name);
    put_text(true, "kind", kind[p->kind]);
    (void)printf(",\"min\":%.17g,\"max\":%.17g,\"default\":%.17g", p->min, p->max, p->fallback);
    put_text(true, "names", p->names);
    (void)fputs("}", stdout);
  }
  (void)fputs("]", stdout);
}

void cli_list_op_json(const assay_op *op) {
  (void)fputs("{", stdout);
  put_text(false, "name", op->name);
  put_text(true, "title", op->title);
  put_text(true, "form", op->form == ASSAY_PAGED ? "paged" : "plain");
  put_text(true, "axes", case_axes(op));
  put_text(true, "laws", op->laws);
  (void)fputs(",\"dims\":[", stdout);
  for (int32_t i = 0; i < op->dim_count; ++i) {
    (void)fputs(i > 0 ? "," : "", stdout);
    text_json(stdout, op->dims[i].name);
  }
  (void)fputs("]", stdout);
  put_args(op);
  put_params(op);
  (void)fputs("}\n", stdout);
}
