/* list_ops.c: assay list ops: every operator by its contract (assay/op.h) alone, as text or as docs/operators.md. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"
#include "conformance/case/case.h"
#include "conformance/text/text.h"
#include "core/registry.h"

/* ---- pieces of text ---------------------------------------------------------------------------------- */

/* Copies a text with every `from` replaced by `to`. */
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

/* Writes "=q,e4m3" as "as q, e4m3". */
static void types_text(const char *types, char *text, size_t size) {
  const bool same = types[0] == '=';
  (void)snprintf(text, size, "%s", same ? "as " : "");
  const size_t used = strlen(text);
  replace(types + same, ',', ", ", text + used, size - used);
}

static void print_types(const char *types) {
  char text[1024];
  types_text(types, text, sizeof text);
  (void)fputs(text, stdout);
}

/* Writes "N,H,D" as "[N, H, D]", with " or " between layouts. */
static void shape_text(const char *shape, char *text, size_t size) {
  char parted[400], spaced[790];
  replace(shape, '|', "] or [", parted, sizeof parted);
  replace(parted, ',', ", ", spaced, sizeof spaced);
  (void)snprintf(text, size, "[%s]", spaced);
}

static void print_shape(const char *shape) {
  char text[800];
  shape_text(shape, text, sizeof text);
  (void)fputs(text, stdout);
}

static const char *form_of(const assay_op *op) {
  if (op->form == ASSAY_PLAIN) return "plain";
  for (int32_t i = 0; i < op->arg_count; ++i)
    if (op->args[i].content == ASSAY_SLOTS) return "paged, writes the cache";
  return "paged";
}

static void tiers_text(const assay_op *op, char *text, size_t size) {
  if (op->inexact)
    (void)snprintf(text, size, "calibrated");
  else if (op->exact_with != NULL)
    (void)snprintf(text, size, "exact (with %s), calibrated", op->exact_with);
  else
    (void)snprintf(text, size, "exact, calibrated");
}

static void print_tiers(const assay_op *op) {
  char text[80];
  tiers_text(op, text, sizeof text);
  (void)fputs(text, stdout);
}

static void print_range(const case_key *key) {
  char text[256];
  key_allowed(key, false, text, sizeof text);
  (void)fputs(text, stdout);
}

static void fallback_text(const case_key *key, char *text, size_t size) {
  if (key->kind == KEY_BOOL)
    (void)snprintf(text, size, "%s", key->fallback > 0 ? "true" : "false");
  else if (key->kind == KEY_ENUM)
    (void)snprintf(text, size, "%s", key_name_of(key, (int64_t)key->fallback));
  else
    key_print_real(key->fallback, text, size);
}

static void print_fallback(const case_key *key) {
  char text[64];
  fallback_text(key, text, sizeof text);
  (void)fputs(text, stdout);
}

static case_key key_of(const assay_op *op, const char *name) {
  return key_at(op, key_find(op, name));
}

/* ---- text -------------------------------------------------------------------------------------------- */

/* Prints the sections of the operator's own suite, by the lines that begin one. */
static void print_sections(const assay_op *op) {
  char path[4096], line[512];
  bool there[4] = {false}, any = false;
  (void)snprintf(path, sizeof path, "%s/%s.yaml", cli_suites_dir(), op->name);
  FILE *from = fopen(path, "r");
  while (from != NULL && fgets(line, sizeof line, from) != NULL)
    for (int s = 0; s < 4; ++s)
      if (strncmp(line, section_name((case_section)s), strlen(section_name((case_section)s))) == 0 &&
          line[strlen(section_name((case_section)s))] == ':')
        there[s] = true;
  if (from != NULL) (void)fclose(from);
  (void)fputs("    suite ", stdout);
  for (int s = 0; s < 4; ++s)
    if (there[s]) {
      (void)printf("%s%s", any ? ", " : "", section_name((case_section)s));
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

enum { WIDTH = 120 };

/* A row of an operator's table. A row wider than WIDTH leaves cells to an item of the list after the table. */
typedef struct table_row {
  const char *name, *meaning;
  char is[32], allowed[1024];
  char brief[256], shape[1024]; /* an argument has these as well: types alone, and shape */
} table_row;

typedef enum row_cells {
  CELLS_ALL,
  CELLS_WITHOUT_SHAPE,   /* arguments only */
  CELLS_WITHOUT_MEANING, /* allowed values, or types and shape, stay */
  CELLS_NAME
} row_cells;

static void row_of_key(const assay_op *op, const char *name, table_row *row) {
  char range[256], fallback[64];
  const case_key key = key_of(op, name);
  key_allowed(&key, false, range, sizeof range);
  fallback_text(&key, fallback, sizeof fallback);
  (void)snprintf(row->allowed, sizeof row->allowed, "%s; %s", range, fallback);
}

static void row_of_arg(const assay_arg *arg, table_row *row) {
  static const char *const role[] = {[ASSAY_IN] = "in", [ASSAY_OUT] = "out", [ASSAY_INOUT] = "in, out"};
  char types[200], shape[800];
  types_text(arg->dtypes, types, sizeof types);
  shape_text(arg->shape, shape, sizeof shape);
  (void)snprintf(row->is, sizeof row->is, "%s%s", role[arg->role], arg->optional ? ", optional" : "");
  (void)snprintf(row->shape, sizeof row->shape, "%s%s", shape, arg->strided ? ", rows may lie apart" : "");
  (void)snprintf(row->allowed, sizeof row->allowed, "%.200s %.820s", types, row->shape);
  (void)snprintf(row->brief, sizeof row->brief, "%s; shape below", types);
}

/* Makes number `index` of the rows: dimensions, arguments, parameters. Returns false after the last. */
static bool row_at(const assay_op *op, int32_t index, table_row *row) {
  *row = (table_row){.name = NULL};
  if (index < op->dim_count) {
    const assay_dim *dim = &op->dims[index];
    row->name = dim->name, row->meaning = dim->doc;
    (void)snprintf(row->is, sizeof row->is, "dimension");
    if (dim->max == 0)
      (void)snprintf(row->allowed, sizeof row->allowed, "by the tensors");
    else
      row_of_key(op, dim->name, row);
    return true;
  }
  index -= op->dim_count;
  if (index < op->arg_count) {
    row->name = op->args[index].name, row->meaning = op->args[index].doc;
    row_of_arg(&op->args[index], row);
    return true;
  }
  index -= op->arg_count;
  if (index >= op->param_count) return false;
  row->name = op->params[index].name, row->meaning = op->params[index].doc;
  (void)snprintf(row->is, sizeof row->is, "parameter");
  row_of_key(op, row->name, row);
  return true;
}

/* Writes the row with these cells. A bar would end a cell. Returns the width in columns. */
static int row_line(const table_row *row, row_cells cells, char *text, size_t size) {
  const bool all = cells == CELLS_ALL || cells == CELLS_WITHOUT_MEANING;
  const char *allowed = all ? row->allowed : cells == CELLS_WITHOUT_SHAPE ? row->brief : "below";
  const bool meant = cells <= CELLS_WITHOUT_SHAPE && row->meaning != NULL;
  char cell[2][800];
  int columns = 0;
  replace(allowed, '|', "\\|", cell[0], sizeof cell[0]);
  replace(meant ? row->meaning : row->meaning != NULL ? "below" : "", '|', "\\|", cell[1], sizeof cell[1]);
  (void)snprintf(text, size, "| `%s` | %s | %s | %s |", row->name, row->is, cell[0], cell[1]);
  for (const char *at = text; *at != '\0'; ++at)
    columns += ((unsigned char)*at & 0xC0) != 0x80;
  return columns;
}

/* Chooses the cells that fit, and writes the row with them. */
static row_cells row_fit(const table_row *row, char *text, size_t size) {
  for (row_cells cells = CELLS_ALL; cells < CELLS_NAME; ++cells)
    if ((cells != CELLS_WITHOUT_SHAPE || row->brief[0] != '\0') && row_line(row, cells, text, size) <= WIDTH)
      return cells;
  (void)row_line(row, CELLS_NAME, text, size);
  return CELLS_NAME;
}

/* Prints an item of a list, in lines of up to 120 bytes. The title "" makes it a paragraph. */
static void markdown_item(const char *title, const char *text) {
  const int indent = title[0] != '\0' ? 2 : 0;
  int column = indent > 0 ? printf("- %s:", title) : 0;
  for (const char *word = text; *word != '\0';) {
    const int length = (int)strcspn(word, " ");
    if (column + 1 + length > WIDTH) {
      (void)printf("\n%*s", indent > 0 ? indent - 1 : 0, "");
      column = indent > 0 ? indent - 1 : 0;
    }
    column += printf("%s%.*s", column > 0 ? " " : "", length, word);
    word += length + (int)strspn(word + length, " ");
  }
  (void)putchar('\n');
}

/* Prints the cells that a row has no room for, as an item of a list. */
static void markdown_rest(const table_row *row, row_cells cells) {
  char title[64], text[2048];
  if (cells == CELLS_ALL) return;
  (void)snprintf(title, sizeof title, "`%s`", row->name);
  if (cells == CELLS_WITHOUT_SHAPE)
    (void)snprintf(text, sizeof text, "%s.", row->shape);
  else if (cells == CELLS_WITHOUT_MEANING)
    (void)snprintf(text, sizeof text, "%s.", row->meaning);
  else
    (void)snprintf(text, sizeof text, "%s. Meaning: %s.", row->allowed, row->meaning != NULL ? row->meaning : "none");
  markdown_item(title, text);
}

/* Prints names, which commas separate, as an item of a list. A sentence has at most 20 of them. */
static void markdown_list(const char *title, const char *list) {
  char parted[1024], text[1040];
  replace(list, ',', ", ", parted, sizeof parted);
  char *at = parted;
  for (int32_t names = 0; names < 20 && at != NULL; ++names)
    at = strstr(at + (names > 0), ", ");
  if (at != NULL) *at = '\0';
  (void)snprintf(text, sizeof text, "%s%s%s.", parted, at != NULL ? ". Also: " : "", at != NULL ? at + 2 : "");
  markdown_item(title, text);
}

static void markdown_of(const assay_op *op) {
  char text[2048], tiers[80], claims[256];
  (void)printf("\n## %s\n\n", op->name);
  (void)snprintf(text, sizeof text, "%s. Source: %s. Form: %s%s%s.", op->title, op->source, form_of(op),
                 op->row_dim != NULL ? ", rows along " : "", op->row_dim != NULL ? op->row_dim : "");
  markdown_item("", text);
  (void)putchar('\n');
  (void)fputs("| name | is | allowed; default | meaning |\n| --- | --- | --- | --- |\n", stdout);
  table_row row;
  for (int32_t i = 0; row_at(op, i, &row); ++i) {
    (void)row_fit(&row, text, sizeof text);
    (void)printf("%s\n", text);
  }
  (void)fputs("\n", stdout);
  for (int32_t i = 0; row_at(op, i, &row); ++i)
    markdown_rest(&row, row_fit(&row, text, sizeof text));
  markdown_list("Laws", op->laws);
  if (op->parts != NULL) markdown_list("Parts", op->parts);
  tiers_text(op, tiers, sizeof tiers);
  replace(case_axes(op), ',', ", ", claims, sizeof claims);
  (void)snprintf(text, sizeof text, "%s%s. κ of an element: %g. Claims: %s.", tiers,
                 op->takes_special ? ", and special values" : "", op->kappa_element, claims);
  markdown_item("Tiers", text);
  markdown_list("Planted errors", op->spoils);
  (void)snprintf(text, sizeof text, "%s.", op->confirmed_by != NULL ? op->confirmed_by : "nothing");
  markdown_item("Confirmed by", text);
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
      "# Operators\n\nWritten by `assay list ops --markdown` from the tables in `ref/`; a test compares the two.\n"
      "Words: [adding.md](adding.md), [suites.md](suites.md), [judging.md](judging.md).\n\n");
  for (int32_t i = 0; i < count; ++i) {
    char link[128], tiers[80], text[512];
    tiers_text(list[i], tiers, sizeof tiers);
    (void)snprintf(link, sizeof link, "[%s](operators/%s.md)", list[i]->name, list[i]->name);
    (void)snprintf(text, sizeof text, "%s. Form: %s. Tiers: %s.", list[i]->title, form_of(list[i]), tiers);
    markdown_item(link, text);
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

/* ---- one operator in full ---------------------------------------------------------------------------- */

enum { WIDE = 80, INDENT = 21 };

/* Writes words from column `column` on and ends the line. Lines that go on begin at `indent`. */
static void put_wrapped(int column, int indent, const char *text) {
  bool first = true;
  while (*text != '\0') {
    const int bytes = (int)strcspn(text, " ");
    int width = 0; /* bytes that begin a letter */
    for (int i = 0; i < bytes; ++i)
      width += ((unsigned char)text[i] & 0xc0) != 0x80;
    const bool breaks = !first && column + 1 + width > WIDE;
    (void)printf("%s%*s%.*s", breaks ? "\n" : "", breaks ? indent : !first, "", bytes, text);
    column = breaks ? indent + width : column + !first + width;
    first = false;
    text += bytes;
    text += strspn(text, " ");
  }
  (void)putchar('\n');
}

static void put_item(const char *name, const char *text) {
  const int length = (int)strlen(name);
  (void)printf("    %-16s ", name);
  put_wrapped(length > 16 ? length + 5 : INDENT, INDENT, text);
}

static void print_key(const assay_op *op, const char *name, const char *doc) {
  const case_key key = key_of(op, name);
  put_item(name, doc);
  (void)printf("    %-16s allowed: ", "");
  print_range(&key);
  (void)fputs("; default: ", stdout);
  print_fallback(&key);
  (void)putchar('\n');
}

static void full_arg(const assay_arg *arg) {
  static const char *const role[] = {[ASSAY_IN] = "input", [ASSAY_OUT] = "output", [ASSAY_INOUT] = "input and output"};
  put_item(arg->name, arg->doc);
  (void)printf("    %-16s %s%s, ", "", role[arg->role], arg->optional ? ", optional" : "");
  print_types(arg->dtypes);
  (void)putchar(' ');
  print_shape(arg->shape);
  (void)printf("%s\n", arg->strided ? ", rows may lie apart" : "");
}

static void full_variants(const assay_op *op) {
  for (int32_t i = 0; i < assay_variant_count(); ++i) {
    const assay_variant *v = assay_variant_at(i);
    if (strcmp(v->op, op->name) != 0) continue;
    char text[600];
    (void)snprintf(text, sizeof text, "on %s: %s", text_shown(v->device), text_shown(v->why != NULL ? v->why : ""));
    put_item(text_shown(v->name), text);
    (void)printf("    %-16s claims %s\n", "", text_shown(v->claims));
  }
}

static void full_list(const char *name, const char *list) {
  char text[1200];
  replace(list != NULL && list[0] != '\0' ? list : "none", ',', ", ", text, sizeof text);
  (void)printf("  %s: ", name);
  put_wrapped((int)strlen(name) + 4, 4, text);
}

void cli_list_op(const assay_op *op) {
  (void)printf("%s: %s\n  source: %s\n  form: %s%s%s\n  dimensions:\n", op->name, op->title, op->source, form_of(op),
               op->row_dim != NULL ? "; rows along " : "", op->row_dim != NULL ? op->row_dim : "");
  for (int32_t d = 0; d < op->dim_count; ++d)
    if (op->dims[d].max == 0)
      (void)printf("    %-16s %s\n    %-16s given by the tensors\n", op->dims[d].name, op->dims[d].doc, "");
    else
      print_key(op, op->dims[d].name, op->dims[d].doc);
  (void)fputs("  arguments:\n", stdout);
  for (int32_t a = 0; a < op->arg_count; ++a)
    full_arg(&op->args[a]);
  (void)fputs(op->param_count > 0 ? "  parameters:\n" : "  parameters: none\n", stdout);
  for (int32_t p = 0; p < op->param_count; ++p)
    print_key(op, op->params[p].name, op->params[p].doc);
  full_list("laws", op->laws);
  if (op->parts != NULL) full_list("parts", op->parts);
  (void)fputs("  tiers: ", stdout);
  print_tiers(op);
  (void)printf("%s; kappa of an element %g\n", op->takes_special ? "; special values" : "", op->kappa_element);
  full_list("axes of claims", case_axes(op));
  full_list("planted errors", op->spoils);
  (void)fputs("  reference confirmed by: ", stdout);
  put_wrapped(26, 4, op->confirmed_by != NULL ? op->confirmed_by : "nothing");
  (void)fputs("  variants of this build:\n", stdout);
  full_variants(op);
  print_sections(op);
  (void)printf("  further: assay list cases %s, assay run %s, docs/kernels/%s.md\n", op->name, op->name, op->name);
}
