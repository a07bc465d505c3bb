/* html_failures.c: failures by kind and the worst cases, each with the command that runs it again. */
#include <stdlib.h>
#include <string.h>

#include "html_internal.h"

enum { KINDS_SHOWN = 400, ALIKE_SHOWN = 20, WORST_SHOWN = 25 };

/* ---- kinds ------------------------------------------------------------------------------------------- */

/* Returns the kind of a failure's wrong values: 1 NaN, 2 Inf, 0 another. */
static int wrong_values(const results_case *one) {
  const char *got = strstr(one->message, ": got ");
  if (got == NULL) return 0;
  got += got[6] == '-' ? 7 : 6;
  return strncmp(got, "nan", 3) == 0 ? 1 : strncmp(got, "inf", 3) == 0 ? 2 : 0;
}

/* Strings that are equal have one address. */
static bool alike(const results_case *a, const results_case *b) {
  return a->op == b->op && a->variant == b->variant && a->device == b->device && a->verdict == b->verdict &&
         a->check == b->check && wrong_values(a) == wrong_values(b);
}

void html_kinds_make(const results *r, const results_groups *g, html_kinds *made) {
  *made = (html_kinds){.list = NULL};
  for (int64_t i = 0; i < r->case_count; ++i)
    made->cases += !results_good(&r->cases[i]);
  made->list = malloc((size_t)made->cases * sizeof *made->list + 1);
  made->of_case = malloc((size_t)r->case_count * sizeof *made->of_case + 1);
  if (made->list == NULL || made->of_case == NULL) {
    html_miss();
    return;
  }
  for (int64_t i = 0; i < r->case_count; ++i) {
    int64_t k = 0;
    made->of_case[i] = -1;
    if (results_good(&r->cases[i])) continue;
    while (k < made->count && !alike(&r->cases[made->list[k].first], &r->cases[i]))
      ++k;
    if (k == made->count) made->list[made->count++] = (html_kind){i, 0, g->of_case[i]};
    ++made->list[k].count;
    made->of_case[i] = (int32_t)k;
  }
}

void html_kinds_free(html_kinds *k) {
  free(k->list);
  free(k->of_case);
  *k = (html_kinds){.list = NULL};
}

/* ---- tables ------------------------------------------------------------------------------------------ */

static void command(FILE *to, const results *r, const results_case *one) {
  char file[3 * 4096 + 8]; /* an origin has up to three paths */
  replay again;
  results_replay(r, one, file, sizeof file, &again);
  char *text = replay_text(&again);
  if (text == NULL) html_miss();
  (void)fputs("<code class=\"replay\" title=\"click to copy\">", to);
  text_xml(to, text != NULL ? text : "");
  (void)fputs("</code>", to);
  free(text);
}

/* A cell that leads to the row of the variant. */
static void variant_cell(FILE *to, const results_case *one, int32_t group) {
  char name[256];
  (void)snprintf(name, sizeof name, "%s/%s on %s", one->op, one->variant, one->device);
  (void)fprintf(to, "<td class=\"msg\"><a href=\"#v%d\">", (int)group);
  text_xml(to, name);
  (void)fputs("</a></td>", to);
}

static void case_cell(FILE *to, const results_case *one) {
  char name[256];
  (void)snprintf(name, sizeof name, "%s/%s/%s", one->suite, one->section, one->name);
  html_cell(to, "msg", name);
}

static void others(FILE *to, const results *r, const html_kinds *k, int64_t kind) {
  const int64_t more = k->list[kind].count - 1;
  if (more == 0) return;
  (void)fputs("<details><summary>and ", to);
  text_count(to, more);
  (void)fprintf(to, " more like it%s</summary>", more > ALIKE_SHOWN ? ", the first 20 of them here" : "");
  int64_t shown = 0;
  for (int64_t i = k->list[kind].first + 1; i < r->case_count && shown < ALIKE_SHOWN; ++i) {
    if (k->of_case[i] != kind) continue;
    ++shown;
    command(to, r, &r->cases[i]);
  }
  (void)fputs("</details>", to);
}

void html_failures(FILE *to, const results *r, const html_kinds *k) {
  static const html_column column[] = {{"verdict", 0}, {"check", 0}, {"variant", 0},
                                       {"case", 0},    {"what", 0},  {"cases", 1}};
  if (k->cases == 0) return;
  (void)fputs("<h2 id=\"failures\">Failures</h2><p class=\"dim\">", to);
  text_count(to, k->cases);
  (void)fputs(" in all, of ", to);
  text_count(to, k->count);
  (void)fprintf(to, " kinds%s; the first of each kind is shown.</p>",
                k->count > KINDS_SHOWN ? ", the first 400 of them here" : "");
  html_table(to, "failures", "rows", column, sizeof column / sizeof *column);
  for (int64_t i = 0; i < k->count && i < KINDS_SHOWN; ++i) {
    const results_case *one = &r->cases[k->list[i].first];
    (void)fprintf(to, "<tbody id=\"f%lld\" data-v=\"%s\"><tr class=\"lead\">", (long long)i,
                  verdict_name(one->verdict));
    html_cell(to, "bad", verdict_name(one->verdict));
    html_cell(to, NULL, one->check);
    variant_cell(to, one, k->list[i].group);
    case_cell(to, one);
    html_cell(to, "msg", one->message);
    html_number_cell(to, k->list[i].count);
    (void)fputs("</tr><tr class=\"again\"><td colspan=\"6\">", to);
    command(to, r, one);
    others(to, r, k, i);
    (void)fputs("</td></tr></tbody>", to);
  }
  html_table_end(to);
}

void html_worst(FILE *to, const results *r, const results_groups *g) {
  static const html_column column[] = {{"verdict", 0}, {"element", 1}, {"row", 1},
                                       {"request", 1}, {"variant", 0}, {"case", 0}};
  int64_t index[WORST_SHOWN];
  int count = 0;
  for (int64_t i = 0; i < r->case_count; ++i) {
    const double ratio = group_ratio(&r->cases[i]);
    if (!(ratio > 0) || (count == WORST_SHOWN && !(ratio > group_ratio(&r->cases[index[count - 1]])))) continue;
    int at = count < WORST_SHOWN ? count++ : count - 1;
    for (; at > 0 && ratio > group_ratio(&r->cases[index[at - 1]]); --at)
      index[at] = index[at - 1];
    index[at] = i;
  }
  if (count == 0) return;
  (void)fputs("<h2 id=\"worst\">Worst cases</h2><p class=\"dim\">Largest error ratios; 1 is the limit.</p>", to);
  html_table(to, "worst", "rows", column, sizeof column / sizeof *column);
  for (int i = 0; i < count; ++i) {
    const results_case *one = &r->cases[index[i]];
    const double ratio[3] = {one->ratio_element, one->ratio_row, one->ratio_request};
    (void)fprintf(to, "<tbody data-v=\"%s\"><tr class=\"lead\">", verdict_name(one->verdict));
    html_cell(to, results_good(one) ? "good" : "bad", verdict_name(one->verdict));
    for (int k = 0; k < 3; ++k) {
      (void)fprintf(to, "<td class=\"n%s\">", ratio[k] > 1 ? " bad" : "");
      html_ratio(to, ratio[k]);
      (void)fputs("</td>", to);
    }
    variant_cell(to, one, g->of_case[index[i]]);
    case_cell(to, one);
    (void)fputs("</tr><tr class=\"again\"><td colspan=\"6\">", to);
    command(to, r, one);
    (void)fputs("</td></tr></tbody>", to);
  }
  html_table_end(to);
}
