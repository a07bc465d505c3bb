/* html.c: the page: what ran, what came out, and the sections of the other files. */
#include "html.h"

#include <string.h>

#include "html_internal.h"

enum { NOTES_SHOWN = 100 };

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

static void notes(FILE *to, const char *text) {
  if (text[0] == '\0') return;
  (void)fputs("<p class=\"note\">", to);
  text_xml(to, text);
  (void)fputs("</p>", to);
}

static void head(FILE *to, const results *r, const results_groups *g, const html_kinds *k) {
  static char gaps[1 << 14], claims[1 << 16];
  char text[64];
  double seconds = 0;
  const int32_t holes = groups_gaps(r, gaps, sizeof gaps);
  if (holes < 0) html_miss();
  const int64_t unclaimed = groups_unclaimed(r, g, claims, sizeof claims);
  int64_t survivors = 0;
  for (int64_t i = 0; i < r->mutant_count; ++i)
    survivors += !r->mutants[i].good;
  const bool bad = k->cases + unclaimed + holes + r->note_count + survivors > 0;
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
    if (results_count(r, (verdict)v) > 0 || !verdict_is_rare((verdict)v))
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
  for (int64_t i = 0; i < r->copy_count && i < NOTES_SHOWN; ++i) {
    (void)snprintf(claims, sizeof claims, "%s: the same run as in %s: counts once", r->copies[i].file, r->copies[i].of);
    notes(to, claims);
  }
  for (int64_t i = 0; i < r->note_count && i < NOTES_SHOWN; ++i) {
    (void)snprintf(claims, sizeof claims, "%s: %s", r->notes[i].subject, r->notes[i].text);
    notes(to, claims);
  }
}

static void run_table(FILE *to, const results *r) {
  static const html_column column[] = {{"file", 0},  {"device", 0}, {"commit", 0}, {"seed", 1},
                                       {"shard", 0}, {"cases", 1},  {"ended", 0},  {"wall", 1}};
  if (r->run_count < 2) return;
  (void)fputs("<h2 id=\"files\">Files</h2>", to);
  html_table(to, "files", "", column, sizeof column / sizeof *column);
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
  html_table_end(to);
}

/* A bar that the script shows: it searches and filters the rows of the tables whose class is `rows`. */
static void find_bar(FILE *to, const results *r) {
  (void)fputs("<form id=\"find\" class=\"find screen\" role=\"search\" hidden><input id=\"find-text\" type=\"search\" "
              "placeholder=\"operator, variant, check, case, message\" aria-label=\"search in all tables\"><select "
              "id=\"find-verdict\" aria-label=\"verdict\"><option value=\"\">every verdict</option>",
              to);
  for (int v = 0; v <= VERDICT_WEAK; ++v)
    if (results_count(r, (verdict)v) > 0 || !verdict_is_rare((verdict)v))
      (void)fprintf(to, "<option>%s</option>", verdict_name((verdict)v));
  (void)fputs("</select><output id=\"find-count\"></output></form>", to);
}

static void page(FILE *to, const results *r, const results_groups *g, const html_kinds *k) {
  (void)fprintf(to, "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" "
                    "content=\"width=device-width,initial-scale=1\"><meta http-equiv=\"Content-Security-Policy\" "
                    "content=\"default-src 'none';style-src 'unsafe-inline';script-src 'unsafe-inline'\">"
                    "<title>assay report</title><style>");
  html_style(to);
  (void)fputs("</style></head><body>", to);
  head(to, r, g, k);
  (void)fputs("<nav>", to);
  static const char *const section[][2] = {{"failures", "failures"}, {"variants", "variants"}, {"ratio", "error ratio"},
                                           {"worst", "worst cases"}, {"claims", "claims"},     {"laws", "laws"},
                                           {"reach", "boundaries"},  {"paths", "paths"},       {"power", "power"},
                                           {"mutants", "mutants"},   {"time", "time"}};
  for (size_t i = 0; i < sizeof section / sizeof *section; ++i) {
    if (strcmp(section[i][0], "failures") == 0 && k->cases == 0) continue;
    if (strcmp(section[i][0], "mutants") == 0 ? r->mutant_count == 0 : r->case_count == 0) continue;
    (void)fprintf(to, "<a href=\"#%s\">%s</a>", section[i][0], section[i][1]);
  }
  (void)fputs("</nav>", to);
  find_bar(to, r);
  run_table(to, r);
  if (r->case_count > 0) {
    html_failures(to, r, k);
    html_variants(to, r, g, k);
    html_ratio_plots(to, r, g);
    html_worst(to, r, g);
    html_coverage(to, g);
    html_laws(to, r, g);
    html_reach(to, r);
    html_paths(to, r, g);
    html_power(to, r);
  }
  html_mutants(to, r);
  if (r->case_count > 0) html_time_bars(to, r, g);
  (void)fprintf(to, "<script>%s</script></body></html>\n", html_script);
}

assay_status report_html_write(const results *r, const char *path, assay_error *error) {
  results_groups g;
  html_kinds kinds;
  text_file file;
  assay_status status = groups_make(r, &g, error);
  if (status != ASSAY_OK) return status;
  (void)html_missed();
  html_kinds_make(r, &g, &kinds);
  status = text_open(&file, path, error);
  if (status == ASSAY_OK) {
    page(file.stream, r, &g, &kinds);
    text_note(&file);
    if (html_missed()) {
      text_discard(&file);
      status = assay_fail(error, ASSAY_ERR_MEMORY, "%s: out of memory, nothing is written", path);
    } else {
      status = text_close(&file, error);
    }
  }
  html_kinds_free(&kinds);
  groups_free(&g);
  return status;
}
