/* list_ops.c: assay list ops: every operator by its contract (assay/op.h) alone, as text or as docs/operators.md. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"
#include "conformance/keys.h"
#include "core/registry.h"

/* ---- pieces of text ---------------------------------------------------------------------------------- */

/* `from` in all places becomes `to`. */
static void replace(const char *text, char from, const char *to, char *made, size_t size) {
  size_t used = 0;
  if (size > 0) made[0] = '\0';
  for (; *text != '\0' && used + strlen(to) + 2 < size; ++text)
    used += (size_t)(*text == from ? snprintf(made + used, size - used, "%s", to)
                                   : snprintf(made + used, size - used, "%c", *text));
}

static void print_list(const char *list) {
  char text[1024];
  replace(list, ',', ", ", text, sizeof text);
  (void)fputs(text, stdout);
}

/* "=q,e4m3" is "as q, e4m3". */
static void print_types(const char *types) {
  if (types[0] == '=') (void)fputs("as ", stdout);
  print_list(types + (types[0] == '='));
}

/* "N,H,D" is "[N, H, D]"; layouts are told apart by " or ". */
static void print_shape(const char *shape) {
  char parted[400], text[800];
  replace(shape, '|', "] or [", parted, sizeof parted);
  replace(parted, ',', ", ", text, sizeof text);
  (void)printf("[%s]", text);
}

static const char *form_of(const assay_op *op) {
  if (op->form == ASSAY_PLAIN) return "plain";
  for (int32_t i = 0; i < op->arg_count; ++i)
    if (op->args[i].content == ASSAY_SLOTS) return "paged, writes the cache";
  return "paged";
}

static void print_tiers(const assay_op *op) {
  if (!op->inexact) (void)fputs("exact", stdout);
  if (!op->inexact && op->exact_with != NULL) (void)printf(" (with %s)", op->exact_with);
  (void)printf("%scalibrated", op->inexact ? "" : ", ");
}

static void print_range(const case_key *key) {
  char text[256];
  key_allowed(key, false, text, sizeof text);
  (void)fputs(text, stdout);
}

static void print_fallback(const case_key *key) {
  char text[40];
  if (key->kind == KEY_BOOL)
    (void)fputs(key->fallback > 0 ? "true" : "false", stdout);
  else if (key->kind == KEY_ENUM)
    (void)fputs(key_name_of(key, (int64_t)key->fallback), stdout);
  else
    key_print_real(key->fallback, text, sizeof text), (void)fputs(text, stdout);
}

static case_key key_of(const assay_op *op, const char *name) {
  return key_at(op, key_find(op, name));
}

/* ---- text -------------------------------------------------------------------------------------------- */

/* The sections of the operator's own suite, from the lines that begin one. */
static void print_sections(const assay_op *op) {
  static const char *const sections[] = {"check", "edge", "refuse", "bench"};
  char path[4096], line[512];
  bool there[4] = {false}, any = false;
  (void)snprintf(path, sizeof path, "%s/%s.yaml", cli_suites_dir(), op->name);
  FILE *from = fopen(path, "r");
  while (from != NULL && fgets(line, sizeof line, from) != NULL)
    for (int s = 0; s < 4; ++s)
      if (strncmp(line, sections[s], strlen(sections[s])) == 0 && line[strlen(sections[s])] == ':') there[s] = true;
  if (from != NULL) (void)fclose(from);
  (void)fputs("    suite ", stdout);
  for (int s = 0; s < 4; ++s)
    if (there[s]) {
      (void)printf("%s%s", any ? ", " : "", sections[s]);
      any = true;
    }
  (void)printf("%s\n", any ? "" : "none");
}

static void print_line(const char *name, const char *list) {
  (void)printf("    %s ", name);
  print_list(list != NULL && list[0] != '\0' ? list : "none");
  (void)printf("\n");
}

static void text_of(const assay_op *op) {
  (void)printf("%-20s %s\n    form %s%s%s\n", op->name, op->title, form_of(op),
               op->row_dim != NULL ? "; rows along " : "", op->row_dim != NULL ? op->row_dim : "");
  for (int32_t d = 0; d < op->dim_count; ++d)
    (void)printf("    dim   %-16s %s\n", op->dims[d].name, op->dims[d].doc);
  for (int32_t a = 0; a < op->arg_count; ++a) {
    const assay_arg *arg = &op->args[a];
    (void)printf("    %-5s %-16s ", arg->role == ASSAY_IN ? "in" : arg->role == ASSAY_OUT ? "out" : "inout", arg->name);
    print_types(arg->dtypes);
    (void)putchar(' ');
    print_shape(arg->shape);
    (void)printf("%s\n", arg->optional ? " optional" : "");
  }
  for (int32_t p = 0; p < op->param_count; ++p)
    (void)printf("    param %-16s %s\n", op->params[p].name, op->params[p].doc);
  print_line("laws", op->laws);
  if (op->parts != NULL) print_line("parts", op->parts);
  (void)fputs("    tiers ", stdout);
  print_tiers(op);
  (void)printf("%s\n", op->takes_special ? "; special values" : "");
  print_line("claims", case_axes(op));
  print_line("planted errors", op->spoils);
  print_sections(op);
}

/* ---- docs/operators.md ------------------------------------------------------------------------------- */

/* In a table a bar would end the cell. */
static void print_cell(const char *text) {
  char cell[1200];
  replace(text != NULL ? text : "", '|', "\\|", cell, sizeof cell);
  (void)fputs(cell, stdout);
}

static void markdown_dim(const assay_op *op, const assay_dim *dim) {
  (void)printf("| `%s` | dimension | ", dim->name);
  if (dim->max == 0) {
    (void)fputs("by the tensors", stdout);
  } else {
    const case_key key = key_of(op, dim->name);
    print_range(&key);
    (void)fputs("; ", stdout);
    print_fallback(&key);
  }
  (void)fputs(" | ", stdout);
  print_cell(dim->doc);
  (void)fputs(" |\n", stdout);
}

static void markdown_arg(const assay_arg *arg) {
  static const char *const role[] = {[ASSAY_IN] = "in", [ASSAY_OUT] = "out", [ASSAY_INOUT] = "in, out"};
  (void)printf("| `%s` | %s%s | ", arg->name, role[arg->role], arg->optional ? ", optional" : "");
  print_types(arg->dtypes);
  (void)putchar(' ');
  print_shape(arg->shape);
  (void)printf("%s | ", arg->strided ? ", rows may lie apart" : "");
  print_cell(arg->doc);
  (void)fputs(" |\n", stdout);
}

static void markdown_param(const assay_op *op, const assay_param *param) {
  const case_key key = key_of(op, param->name);
  (void)printf("| `%s` | parameter | ", param->name);
  print_range(&key);
  (void)fputs("; ", stdout);
  print_fallback(&key);
  (void)fputs(" | ", stdout);
  print_cell(param->doc);
  (void)fputs(" |\n", stdout);
}

static void markdown_of(const assay_op *op) {
  (void)printf("\n## %s\n\n%s. Source: %s. Form: %s%s%s.\n\n", op->name, op->title, op->source, form_of(op),
               op->row_dim != NULL ? ", rows along " : "", op->row_dim != NULL ? op->row_dim : "");
  (void)fputs("| name | is | allowed; default | meaning |\n| --- | --- | --- | --- |\n", stdout);
  for (int32_t d = 0; d < op->dim_count; ++d)
    markdown_dim(op, &op->dims[d]);
  for (int32_t a = 0; a < op->arg_count; ++a)
    markdown_arg(&op->args[a]);
  for (int32_t p = 0; p < op->param_count; ++p)
    markdown_param(op, &op->params[p]);
  (void)fputs("\nLaws: ", stdout);
  print_list(op->laws);
  if (op->parts != NULL) (void)fputs(". Parts: ", stdout), print_list(op->parts);
  (void)fputs(". Tiers: ", stdout);
  print_tiers(op);
  (void)printf("%s. κ of an element: %g. Claims: ", op->takes_special ? "; special values" : "", op->kappa_element);
  print_list(case_axes(op));
  (void)fputs(". Planted errors: ", stdout);
  print_list(op->spoils);
  (void)printf(". Confirmed by: %s.\n", op->confirmed_by != NULL ? op->confirmed_by : "nothing");
}

static int by_name(const void *a, const void *b) {
  return strcmp((*(const assay_op *const *)a)->name, (*(const assay_op *const *)b)->name);
}

static void print_markdown(void) {
  const int32_t count = assay_op_count();
  const assay_op **list = calloc((size_t)count + 1, sizeof *list);
  if (list == NULL) return;
  for (int32_t i = 0; i < count; ++i)
    list[i] = assay_op_at(i);
  qsort(list, (size_t)count, sizeof *list, by_name);
  (void)printf(
      "# Operators\n\nWritten by `assay list ops --markdown` from the tables in `ref/`; a test compares the two. "
      "Words: [adding.md](adding.md), [suites.md](suites.md), [judging.md](judging.md).\n\n");
  (void)fputs("| operator | form | tiers | what it is |\n| --- | --- | --- | --- |\n", stdout);
  for (int32_t i = 0; i < count; ++i) {
    (void)printf("| [%s](#%s) | %s | ", list[i]->name, list[i]->name, form_of(list[i]));
    print_tiers(list[i]);
    (void)printf(" | %s |\n", list[i]->title);
  }
  for (int32_t i = 0; i < count; ++i)
    markdown_of(list[i]);
  free(list);
}

void cli_list_ops(bool markdown) {
  if (markdown) {
    print_markdown();
    return;
  }
  for (int32_t i = 0; i < assay_op_count(); ++i)
    text_of(assay_op_at(i));
}
