/* report_html.c: the page: what ran, what came out, what was worst, and the sections of the other files. */
#include "report_html.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "report_html_parts.h"

enum { WORST_SHOWN = 25, BAD_SHOWN = 200, NOTES_SHOWN = 100 };

void html_cell(FILE *to, const char *kind, const char *text) {
  (void)fputs("<td", to);
  if (kind != NULL) (void)fprintf(to, " class=\"%s\"", kind);
  (void)fputc('>', to);
  text_xml(to, text);
  (void)fputs("</td>", to);
}

void html_number_cell(FILE *to, int64_t count) {
  (void)fputs("<td class=\"n\">", to);
  text_count(to, count);
  (void)fputs("</td>", to);
}

void html_ratio(FILE *to, double value) {
  if (value > 1e300)
    (void)fputs("∞", to);
  else if (value == 0)
    (void)fputs("–", to);
  else
    (void)fprintf(to, "%.3g", value);
}

void html_time(FILE *to, double ms) {
  if (ms >= 60e3)
    (void)fprintf(to, "%d min %d s", (int)(ms / 60e3), (int)(ms / 1e3) % 60);
  else if (ms >= 1e3)
    (void)fprintf(to, "%.1f s", ms * 1e-3);
  else
    (void)fprintf(to, "%.3g ms", ms);
}

/* ---- the head ---------------------------------------------------------------------------------------- */

static void fact(FILE *to, const char *name, const char *value) {
  if (value[0] == '\0') return;
  (void)fputs("<dt>", to);
  text_xml(to, name);
  (void)fputs("</dt><dd>", to);
  text_xml(to, value);
  (void)fputs("</dd>", to);
}

static void tile(FILE *to, const char *name, int64_t count, bool bad) {
  (void)fprintf(to, "<div class=\"tile\"><b%s>", bad && count > 0 ? " class=\"bad\"" : "");
  text_count(to, count);
  (void)fputs("</b><span>", to);
  text_xml(to, name);
  (void)fputs("</span></div>", to);
}

static int64_t bad_cases(const results *r) {
  int64_t bad = 0;
  for (int64_t i = 0; i < r->case_count; ++i)
    bad += !results_good(&r->cases[i]);
  return bad;
}

static void notes(FILE *to, const char *text) {
  if (text[0] == '\0') return;
  (void)fputs("<p class=\"note\">", to);
  text_xml(to, text);
  (void)fputs("</p>", to);
}

static void head(FILE *to, const results *r, const results_groups *g) {
  static char gaps[1 << 14], claims[1 << 16];
  char text[64];
  double seconds = 0;
  const int32_t holes = groups_gaps(r, gaps, sizeof gaps);
  const int64_t unclaimed = groups_unclaimed(r, g, claims, sizeof claims);
  int64_t survivors = 0;
  for (int64_t i = 0; i < r->mutant_count; ++i)
    survivors += !r->mutants[i].good;
  const bool bad = bad_cases(r) + unclaimed + holes + r->note_count + survivors > 0;
  for (int64_t i = 0; i < r->run_count; ++i)
    seconds += r->runs[i].seconds;
  (void)fprintf(to, "<h1>assay report</h1><p><span id=\"verdict\" class=\"verdict %s\">%s</span></p>",
                bad ? "bad" : "good",
                bad                                                         ? "FAIL"
                : results_count(r, VERDICT_PASS) > 0 || r->mutant_count > 0 ? "PASS"
                                                                            : "NOTHING RAN");
  (void)fputs("<div class=\"tiles\">", to);
  tile(to, "cases", r->case_count, false);
  for (int v = 0; v <= VERDICT_WEAK; ++v)
    tile(to, verdict_name((verdict)v), results_count(r, (verdict)v), !verdict_is_good((verdict)v));
  tile(to, "claims without a PASS", unclaimed, true);
  if (r->mutant_count > 0) tile(to, "mutants alive", survivors, true);
  (void)fputs("</div><dl>", to);
  if (r->run_count > 0) {
    const results_run *run = &r->runs[0];
    fact(to, "device", run->device);
    fact(to, "device name", run->device_name);
    fact(to, "driver", run->driver);
    fact(to, "toolkit", run->toolkit);
    fact(to, "commit", run->commit);
    fact(to, "binary", run->binary);
    (void)snprintf(text, sizeof text, "%llu", (unsigned long long)run->seed);
    fact(to, "seed", text);
    (void)snprintf(text, sizeof text, "%.1f s%s", seconds, r->run_count > 1 ? " (sum of all files)" : "");
    fact(to, "wall time", text);
  }
  (void)fputs("</dl>", to);
  notes(to, gaps);
  notes(to, claims);
  for (int64_t i = 0; i < r->note_count && i < NOTES_SHOWN; ++i) {
    (void)snprintf(claims, sizeof claims, "%s: %s", r->notes[i].subject, r->notes[i].text);
    notes(to, claims);
  }
}

static void run_table(FILE *to, const results *r) {
  if (r->run_count < 2) return;
  (void)fputs("<h2 id=\"files\">Files</h2><div class=\"wide\"><table><tr><th>file</th><th>device</th><th>commit</th>"
              "<th class=\"n\">seed</th><th>shard</th><th class=\"n\">cases</th><th>ended</th><th class=\"n\">wall</th>"
              "</tr>",
              to);
  for (int64_t i = 0; i < r->run_count; ++i) {
    const results_run *run = &r->runs[i];
    (void)fputs("<tr>", to);
    html_cell(to, NULL, run->file);
    html_cell(to, NULL, run->device_name);
    html_cell(to, NULL, run->commit);
    (void)fprintf(to, "<td class=\"n\">%llu</td>", (unsigned long long)run->seed);
    html_cell(to, NULL, run->shard);
    html_number_cell(to, run->cases);
    html_cell(to, run->ended ? "good" : "bad", run->ended ? "yes" : "no");
    (void)fprintf(to, "<td class=\"n\">%.1f s</td></tr>", run->seconds);
  }
  (void)fputs("</table></div>", to);
}

static void variant_table(FILE *to, const results_groups *g) {
  (void)fputs("<h2 id=\"variants\">Variants</h2><div class=\"wide\"><table><tr><th>operator</th><th>variant</th>"
              "<th>device</th><th class=\"n\">cases</th>",
              to);
  for (int v = 0; v <= VERDICT_WEAK; ++v)
    (void)fprintf(to, "<th class=\"n\">%s</th>", verdict_name((verdict)v));
  (void)fputs("<th class=\"n\">worst ratio</th></tr>", to);
  for (int64_t i = 0; i < g->count; ++i) {
    (void)fputs("<tr>", to);
    html_cell(to, NULL, g->list[i].op);
    html_cell(to, NULL, g->list[i].variant);
    html_cell(to, NULL, g->list[i].device);
    html_number_cell(to, g->list[i].cases);
    for (int v = 0; v <= VERDICT_WEAK; ++v) {
      const bool bad = g->list[i].verdicts[v] > 0 && !verdict_is_good((verdict)v);
      (void)fprintf(to, "<td class=\"n%s\">", bad ? " bad" : "");
      text_count(to, g->list[i].verdicts[v]);
      (void)fputs("</td>", to);
    }
    (void)fprintf(to, "<td class=\"n%s\">", g->list[i].worst > 1 ? " bad" : "");
    html_ratio(to, g->list[i].worst);
    (void)fputs("</td></tr>", to);
  }
  (void)fputs("</table></div>", to);
}

/* ---- single cases ------------------------------------------------------------------------------------ */

/* A row of its own below the case: descriptors are long. */
static void replay(FILE *to, int columns, const char *before, const char *descriptor, const char *after) {
  (void)fprintf(to, "</tr><tr class=\"again\"><td colspan=\"%d\"><code class=\"replay\" title=\"click to copy\">%s",
                columns, before);
  text_xml(to, descriptor);
  (void)fprintf(to, "%s</code></td></tr>", after);
}

static void failures(FILE *to, const results *r) {
  const int64_t bad = bad_cases(r);
  int64_t shown = 0;
  if (bad == 0) return;
  (void)fputs("<h2 id=\"failures\">Failures</h2><p class=\"dim\">", to);
  text_count(to, bad);
  (void)fprintf(to,
                " in all%s.</p><div class=\"wide\"><table><tr><th>verdict</th><th>check</th><th>case</th>"
                "<th>what</th></tr>",
                bad > BAD_SHOWN ? ", the first 200 of them here" : "");
  for (int64_t i = 0; i < r->case_count && shown < BAD_SHOWN; ++i) {
    const results_case *one = &r->cases[i];
    char name[256];
    if (results_good(one)) continue;
    ++shown;
    (void)snprintf(name, sizeof name, "%s/%s on %s, %s/%s/%s", one->op, one->variant, one->device, one->suite,
                   one->section, one->name);
    (void)fputs("<tr class=\"lead\">", to);
    html_cell(to, "bad", verdict_name(one->verdict));
    html_cell(to, NULL, one->check);
    html_cell(to, "msg", name);
    html_cell(to, "msg", one->message);
    replay(to, 4, "assay replay &apos;", one->descriptor, "&apos;");
  }
  (void)fputs("</table></div>", to);
}

static void worst(FILE *to, const results *r) {
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
  (void)fputs("<h2 id=\"worst\">Worst cases</h2><p class=\"dim\">Largest error ratios; 1 is the limit.</p>"
              "<div class=\"wide\"><table><tr><th>verdict</th><th class=\"n\">element</th><th class=\"n\">row</th>"
              "<th class=\"n\">request</th><th>variant</th><th>case</th></tr>",
              to);
  for (int i = 0; i < count; ++i) {
    const results_case *one = &r->cases[index[i]];
    char name[256];
    const double ratio[3] = {one->ratio_element, one->ratio_row, one->ratio_request};
    (void)fputs("<tr class=\"lead\">", to);
    html_cell(to, results_good(one) ? "good" : "bad", verdict_name(one->verdict));
    for (int k = 0; k < 3; ++k) {
      (void)fprintf(to, "<td class=\"n%s\">", ratio[k] > 1 ? " bad" : "");
      html_ratio(to, ratio[k]);
      (void)fputs("</td>", to);
    }
    (void)snprintf(name, sizeof name, "%s/%s on %s", one->op, one->variant, one->device);
    html_cell(to, NULL, name);
    (void)snprintf(name, sizeof name, "%s/%s/%s", one->suite, one->section, one->name);
    html_cell(to, NULL, name);
    replay(to, 6, "assay replay &apos;", one->descriptor, "&apos;");
  }
  (void)fputs("</table></div>", to);
}

/* ---- mutants ----------------------------------------------------------------------------------------- */

/* Names of the judges that a mutants file compares with, from its first row that has some. */
static const char *judges(const results *r) {
  for (int64_t i = 0; i < r->mutant_count; ++i)
    if (r->mutants[i].allclose[0] != '\0') return r->mutants[i].allclose;
  return "";
}

static void kill_matrix(FILE *to, const results *r) {
  int columns = 0;
  if (r->mutant_count == 0) return;
  (void)fputs(
      "<h2 id=\"mutants\">Kill matrix</h2><p class=\"dim\">Kernels wrong on purpose; beside each, whether plain "
      "tolerances of other projects catch it.</p><div class=\"wide\"><table><tr><th>mutant</th><th>stands for</th>"
      "<th>operator</th><th>killed by</th><th class=\"n\">cases</th><th class=\"n\">s</th>",
      to);
  for (const char *at = judges(r); *at != '\0'; at += strcspn(at, ","), at += *at == ',') {
    char name[64];
    (void)snprintf(name, sizeof name, "%.*s", (int)strcspn(at, "=,"), at);
    ++columns;
    (void)fputs("<th>", to);
    text_xml(to, name);
    (void)fputs("</th>", to);
  }
  (void)fputs("</tr>", to);
  for (int64_t i = 0; i < r->mutant_count; ++i) {
    const results_mutant *m = &r->mutants[i];
    (void)fputs(m->replay[0] != '\0' ? "<tr class=\"lead\">" : "<tr>", to);
    html_cell(to, NULL, m->id);
    html_cell(to, "msg", m->control ? "control: an unchanged copy" : m->ids);
    html_cell(to, NULL, m->op);
    html_cell(to, m->good ? "good" : "bad", m->killed ? m->check : m->control ? "passes" : "SURVIVES");
    html_number_cell(to, m->cases);
    (void)fprintf(to, "<td class=\"n\">%.2f</td>", m->seconds);
    for (const char *at = judges(r); *at != '\0'; at += strcspn(at, ","), at += *at == ',') {
      char yes[80], no[80];
      (void)snprintf(yes, sizeof yes, "%.*s=1", (int)strcspn(at, "=,"), at);
      (void)snprintf(no, sizeof no, "%.*s=0", (int)strcspn(at, "=,"), at);
      const bool caught = results_listed(m->allclose, yes), missed = results_listed(m->allclose, no);
      html_cell(to, caught ? "c" : missed ? "hole" : "off", caught ? "seen" : missed ? "missed" : "–");
    }
    if (m->replay[0] != '\0')
      replay(to, 6 + columns, "", m->replay, "");
    else
      (void)fputs("</tr>", to);
  }
  (void)fputs("</table></div>", to);
}

static void page(FILE *to, const results *r, const results_groups *g) {
  (void)fprintf(to,
                "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" "
                "content=\"width=device-width,initial-scale=1\"><meta http-equiv=\"Content-Security-Policy\" "
                "content=\"default-src 'none';style-src 'unsafe-inline';script-src 'unsafe-inline'\">"
                "<title>assay report</title><style>%s</style></head><body>",
                html_style);
  head(to, r, g);
  (void)fputs("<nav>", to);
  static const char *const section[][2] = {{"failures", "failures"}, {"variants", "variants"}, {"ratio", "error ratio"},
                                           {"worst", "worst cases"}, {"claims", "claims"},     {"laws", "laws"},
                                           {"reach", "boundaries"},  {"paths", "paths"},       {"power", "power"},
                                           {"mutants", "mutants"},   {"time", "time"}};
  for (size_t i = 0; i < sizeof section / sizeof *section; ++i) {
    if (strcmp(section[i][0], "failures") == 0 && bad_cases(r) == 0) continue;
    if (strcmp(section[i][0], "mutants") == 0 ? r->mutant_count == 0 : r->case_count == 0) continue;
    (void)fprintf(to, "<a href=\"#%s\">%s</a>", section[i][0], section[i][1]);
  }
  (void)fputs("</nav>", to);
  run_table(to, r);
  if (r->case_count > 0) {
    failures(to, r);
    variant_table(to, g);
    html_ratio_plots(to, r, g);
    worst(to, r);
    html_coverage(to, g);
    html_laws(to, r, g);
    html_reach(to, r);
    html_paths(to, r, g);
    html_power(to, r);
  }
  kill_matrix(to, r);
  if (r->case_count > 0) html_time_bars(to, r, g);
  (void)fprintf(to, "<script>%s</script></body></html>\n", html_script);
}

assay_status report_html_write(const results *r, const char *path, assay_error *error) {
  results_groups g;
  text_file file;
  assay_status status = groups_make(r, &g, error);
  if (status != ASSAY_OK) return status;
  status = text_open(&file, path, error);
  if (status == ASSAY_OK) {
    page(file.stream, r, &g);
    status = text_close(&file, error);
  }
  groups_free(&g);
  return status;
}
