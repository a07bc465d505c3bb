/* html_reach.c: the values that the cases took of each dimension and parameter: bounds, and how many in between. */
#include <stdlib.h>
#include <string.h>

#include "core/registry.h"
#include "html_internal.h"

enum { MAX_VALUES = 64 };

/* Counts of lengths next to an edge of a block or of 256 keys, where splits end. */
typedef struct edges {
  int64_t empty, one, block[3], split[3]; /* edge - 1, edge, edge + 1 */
} edges;

typedef struct reached {
  double value[MAX_VALUES];
  int64_t count[MAX_VALUES], low, high, fallback, cases;
  int32_t distinct;
} reached;

static void note(reached *to, double value, double min, double max, double fallback) {
  int32_t i = 0;
  ++to->cases;
  to->low += value == min;
  to->high += value == max;
  to->fallback += value == fallback;
  while (i < to->distinct && to->value[i] != value)
    ++i;
  if (i == MAX_VALUES) return;
  if (i == to->distinct) to->value[to->distinct++] = value;
  ++to->count[i];
}

static int64_t dim_value(const assay_case *one, const char *name, int64_t fallback) {
  for (int32_t i = 0; i < one->op->dim_count; ++i)
    if (strcmp(one->op->dims[i].name, name) == 0 && one->dim[i] > 0) return one->dim[i];
  return fallback;
}

static void note_edges(edges *e, const assay_case *one) {
  const int64_t sides[2] = {dim_value(one, "block_size", 16), CASE_SPLIT_KEYS};
  for (int32_t i = 0; i < one->batch; ++i) {
    const int64_t L = one->kv_len[i];
    e->empty += L == 0;
    e->one += L == 1;
    for (int s = 0; s < 2; ++s)
      for (int64_t off = -1; off <= 1; ++off)
        if (L - off > 0 && (L - off) % sides[s] == 0) ++(s == 0 ? e->block : e->split)[off + 1];
  }
}

static void row(FILE *to, const char *kind, const char *name, const reached *at, const char *names) {
  (void)fputs("<tr>", to);
  html_cell(to, "off", kind);
  html_cell(to, NULL, name);
  (void)fprintf(to, "<td class=\"n\">%d%s</td>", at->distinct, at->distinct == MAX_VALUES ? "+" : "");
  html_number_cell(to, at->low);
  html_number_cell(to, at->fallback);
  html_number_cell(to, at->high);
  (void)fputs("<td class=\"msg\">", to);
  for (int32_t i = 0; i < at->distinct && i < 24; ++i) {
    char text[64] = "";
    const char *item = names;
    for (int k = 0; item != NULL && k < (int)at->value[i]; ++k) {
      item = strchr(item, ',');
      item = item != NULL ? item + 1 : NULL;
    }
    if (item != NULL)
      (void)snprintf(text, sizeof text, "%.*s", (int)strcspn(item, ","), item);
    else
      (void)snprintf(text, sizeof text, "%g", at->value[i]);
    (void)fputs(i > 0 ? ", " : "", to);
    text_xml(to, text);
  }
  (void)fprintf(to, "%s</td></tr>", at->distinct > 24 ? ", …" : "");
}

static void edges_of(FILE *to, const edges *e) {
  (void)fputs("<div class=\"wide\"><table><tr><th>requests with kv_len</th><th class=\"n\">0</th><th class=\"n\">1"
              "</th><th class=\"n\">block − 1</th><th class=\"n\">block</th><th class=\"n\">block + 1</th>"
              "<th class=\"n\">256 − 1</th><th class=\"n\">256</th><th class=\"n\">256 + 1</th></tr><tr><td>"
              "multiples of block_size, of 256</td>",
              to);
  html_number_cell(to, e->empty);
  html_number_cell(to, e->one);
  for (int i = 0; i < 3; ++i)
    html_number_cell(to, e->block[i]);
  for (int i = 0; i < 3; ++i)
    html_number_cell(to, e->split[i]);
  (void)fputs("</tr></table></div>", to);
}

static void reach_of(FILE *to, const results *r, const assay_op *op, reached *dims, reached *params) {
  edges e = {0};
  int64_t read = 0;
  for (int64_t i = 0; i < r->case_count; ++i) {
    assay_case one;
    assay_error error = {""};
    if (strcmp(r->cases[i].op, op->name) != 0) continue;
    memset(&one, 0, sizeof one);
    const assay_status status = case_parse(r->cases[i].descriptor, &one, &error);
    if (status == ASSAY_ERR_MEMORY) html_miss();
    if (status != ASSAY_OK) continue;
    ++read;
    for (int32_t d = 0; d < op->dim_count; ++d)
      note(&dims[d], (double)one.dim[d], (double)op->dims[d].min, (double)op->dims[d].max,
           (double)op->dims[d].fallback);
    for (int32_t p = 0; p < op->param_count; ++p)
      note(&params[p], one.param[p], op->params[p].min, op->params[p].max, op->params[p].fallback);
    if (op->form == ASSAY_PAGED) note_edges(&e, &one);
    case_free(&one);
  }
  if (read == 0) return;
  (void)fputs("<h3>", to);
  text_xml(to, op->name);
  (void)fputs("</h3>", to);
  if (op->form == ASSAY_PAGED) edges_of(to, &e);
  (void)fputs(
      "<div class=\"wide\"><table><tr><th></th><th>name</th><th class=\"n\">values</th>"
      "<th class=\"n\">at min</th><th class=\"n\">at default</th><th class=\"n\">at max</th><th>which</th></tr>",
      to);
  for (int32_t d = 0; d < op->dim_count; ++d)
    if (op->dims[d].max > 0) row(to, "dim", op->dims[d].name, &dims[d], NULL);
  for (int32_t p = 0; p < op->param_count; ++p)
    row(to, "param", op->params[p].name, &params[p], op->params[p].kind == ASSAY_ENUM ? op->params[p].names : NULL);
  (void)fputs("</table></div>", to);
}

void html_reach(FILE *to, const results *r) {
  (void)fputs("<h2 id=\"reach\">Boundaries</h2>", to);
  for (int32_t o = 0; o < assay_op_count(); ++o) {
    reached *list = calloc(ASSAY_MAX_DIMS + ASSAY_MAX_PARAMS, sizeof *list);
    if (list == NULL) html_miss();
    if (list != NULL) reach_of(to, r, assay_op_at(o), list, list + ASSAY_MAX_DIMS);
    free(list);
  }
}
