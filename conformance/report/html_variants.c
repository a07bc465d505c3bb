/* html_variants.c: verdicts by variant; mutants and what killed them. */
#include <string.h>

#include "html_internal.h"

/* ---- variants ---------------------------------------------------------------------------------------- */

/* Returns the first kind of failure that the variant has with this verdict; -1: none. */
static int64_t kind_of(const html_kinds *k, const results *r, int32_t group, verdict v) {
  for (int64_t i = 0; i < k->count; ++i)
    if (k->list[i].group == group && r->cases[k->list[i].first].verdict == v) return i;
  return -1;
}

static void verdict_cell(FILE *to, int64_t count, bool bad, int64_t kind) {
  (void)fprintf(to, "<td class=\"n%s\">", bad ? " bad" : "");
  if (kind >= 0) (void)fprintf(to, "<a href=\"#f%lld\">", (long long)kind);
  text_count(to, count);
  (void)fputs(kind >= 0 ? "</a></td>" : "</td>", to);
}

/* Tells whether the verdict has a column: a rare one only where some case has it. */
static bool is_shown(const results *r, verdict v) {
  return !verdict_is_rare(v) || results_count(r, v) > 0;
}

void html_variants(FILE *to, const results *r, const results_groups *g, const html_kinds *k) {
  html_column column[5 + VERDICT_WEAK + 1] = {{"operator", 0}, {"variant", 0}, {"device", 0}, {"cases", 1}};
  int columns = 4;
  for (int v = 0; v <= VERDICT_WEAK; ++v)
    if (is_shown(r, (verdict)v)) column[columns++] = (html_column){verdict_name((verdict)v), 1};
  column[columns++] = (html_column){"worst ratio", 1};
  (void)fputs("<h2 id=\"variants\">Variants</h2>", to);
  html_table(to, "variants", "rows", column, columns);
  for (int64_t i = 0; i < g->count; ++i) {
    const results_group *group = &g->list[i];
    (void)fprintf(to, "<tbody id=\"v%lld\" data-v=\"", (long long)i);
    for (int v = 0; v <= VERDICT_WEAK; ++v)
      if (group->verdicts[v] > 0) (void)fprintf(to, "%s ", verdict_name((verdict)v));
    (void)fputs("\"><tr>", to);
    html_cell(to, NULL, group->op);
    html_cell(to, NULL, group->variant);
    html_cell(to, NULL, group->device);
    html_number_cell(to, group->cases);
    for (int v = 0; v <= VERDICT_WEAK; ++v) {
      if (!is_shown(r, (verdict)v)) continue;
      const bool bad = group->verdicts[v] > 0 && !verdict_is_good((verdict)v);
      verdict_cell(to, group->verdicts[v], bad, bad ? kind_of(k, r, (int32_t)i, (verdict)v) : -1);
    }
    (void)fprintf(to, "<td class=\"n%s\">", group->worst > 1 ? " bad" : "");
    html_ratio(to, group->worst);
    (void)fputs("</td></tr></tbody>", to);
  }
  html_table_end(to);
}

/* ---- mutants ----------------------------------------------------------------------------------------- */

enum { MAX_JUDGES = 16 };

/* Returns the names of the judges that a mutants file compares with, from its first row that has some. */
static const char *judges(const results *r) {
  for (int64_t i = 0; i < r->mutant_count; ++i)
    if (r->mutants[i].allclose[0] != '\0') return r->mutants[i].allclose;
  return "";
}

void html_mutants(FILE *to, const results *r) {
  html_column column[6 + MAX_JUDGES] = {{"mutant", 0},    {"stands for", 0}, {"operator", 0},
                                        {"killed by", 0}, {"cases", 1},      {"s", 1}};
  char name[MAX_JUDGES][64];
  int count = 0;
  if (r->mutant_count == 0) return;
  (void)fputs(
      "<h2 id=\"mutants\">Kill matrix</h2><p class=\"dim\">Kernels wrong on purpose; beside each, whether plain "
      "tolerances of other projects catch it.</p>",
      to);
  for (const char *at = judges(r); *at != '\0' && count < MAX_JUDGES; at += strcspn(at, ","), at += *at == ',') {
    (void)snprintf(name[count], sizeof name[count], "%.*s", (int)strcspn(at, "=,"), at);
    column[6 + count] = (html_column){name[count], 0};
    ++count;
  }
  html_table(to, "mutants", "rows", column, 6 + count);
  for (int64_t i = 0; i < r->mutant_count; ++i) {
    const results_mutant *m = &r->mutants[i];
    (void)fputs(m->replay[0] != '\0' ? "<tbody><tr class=\"lead\">" : "<tbody><tr>", to);
    html_cell(to, NULL, m->id);
    html_cell(to, "msg", m->control ? "control: an unchanged copy" : m->ids);
    html_cell(to, NULL, m->op);
    html_cell(to, m->good ? "good" : "bad", m->killed ? m->check : m->control ? "passes" : "SURVIVES");
    html_number_cell(to, m->cases);
    (void)fprintf(to, "<td class=\"n\">%.2f</td>", m->seconds);
    for (int j = 0; j < count; ++j) {
      char yes[80], no[80];
      (void)snprintf(yes, sizeof yes, "%.63s=1", name[j]);
      (void)snprintf(no, sizeof no, "%.63s=0", name[j]);
      const bool caught = results_listed(m->allclose, yes), missed = results_listed(m->allclose, no);
      html_cell(to, caught ? "c" : missed ? "hole" : "off", caught ? "seen" : missed ? "missed" : "–");
    }
    if (m->replay[0] != '\0') {
      (void)fprintf(to, "</tr><tr class=\"again\"><td colspan=\"%d\"><code class=\"replay\" title=\"click to copy\">",
                    6 + count);
      text_xml(to, m->replay);
      (void)fputs("</code></td>", to);
    }
    (void)fputs("</tr></tbody>", to);
  }
  html_table_end(to);
}
