/* page.c: the head, the tables, and the order of the sections. */
#include "page.h"

#include <stdlib.h>
#include <string.h>

#include "conformance/report/report.h"
#include "conformance/text/text.h"
#include "page_parts.h"

/* Fifteen columns need the whole window; a heading may break, a figure may not. No label of a bar is cut: a grid makes
 * names and figures as wide as the longest. On a phone they stand above their bar. */
static const char page_style[] =
    "body{max-width:1600px}td.n.p{white-space:normal}.bars{display:grid;grid-auto-flow:row dense;grid-template-columns:"
    "max-content minmax(6rem,1fr) max-content;gap:.2rem .6rem;align-items:center;font-size:13px;max-width:1000px}"
    ".bars div{display:contents}.bars .name{grid-column:1;text-align:right}.bars .figure{grid-column:3}"
    ".bars .track{grid-column:2;position:relative;height:.85rem}.bars .s0 .track{color:var(--s0)}"
    ".bars .s1 .track{color:var(--s1)}.track i{position:absolute;inset:0 auto 0 0;background:currentColor;"
    "print-color-adjust:exact;-webkit-print-color-adjust:exact}.track b{position:absolute;top:-.2rem;bottom:-.2rem;"
    "border-left:2px dashed var(--bad)}@media screen and (max-width:640px){.bars{grid-template-columns:1fr max-content}"
    ".bars .name{text-align:left;overflow-wrap:anywhere}.bars .figure{grid-column:2}.bars .track{grid-column:1/-1;"
    "margin-bottom:.4rem}}";

static void number(FILE *to, int decimals, const char *unit, double value) {
  (void)fputs("<td class=\"n\">", to);
  if (value > 0)
    (void)fprintf(to, "%.*f%s", decimals, value, unit);
  else
    (void)fputs("–", to);
  (void)fputs("</td>", to);
}

static void tile(FILE *to, const char *name, double value, const char *unit) {
  if (!(value > 0)) return;
  (void)fprintf(to, "<div class=\"tile\"><b>%.4g %s</b><span>%s</span></div>", value, unit, name);
}

static void head(FILE *to, const page_data *d) {
  const page_run *run = &d->run[d->runs - 1];
  (void)fputs("<h1>assay bench</h1><p class=\"dim\">", to);
  text_xml(to, run->device_name);
  (void)fputs(", driver ", to);
  text_xml(to, run->driver[0] != '\0' ? run->driver : "none");
  (void)fputs(", CUDA ", to);
  text_xml(to, run->toolkit[0] != '\0' ? run->toolkit : "none");
  (void)fputs(", commit ", to);
  text_xml(to, run->commit);
  (void)fputs("</p><div class=\"tiles\">", to);
  for (int64_t i = d->runs - 1; i >= 0; --i) {
    if (!(d->run[i].copy > 0)) continue;
    tile(to, "copy", d->run[i].copy * 1e-12, "TB/s");
    tile(to, "f32 multiply-add", d->run[i].fma * 1e-12, "TFLOP/s");
    tile(to, "bf16 mma.sync", d->run[i].mma * 1e-12, "TFLOP/s");
    tile(to, "bf16 GEMM of the library", d->run[i].gemm * 1e-12, "TFLOP/s");
    tile(to, "e4m3 GEMM of the library", d->run[i].gemm8 * 1e-12, "TFLOP/s");
    break;
  }
  (void)fputs("</div>", to);
  for (int64_t i = 0; i < d->missings; ++i) {
    (void)fputs("<p class=\"note\">peer ", to);
    text_xml(to, d->missing[i].peer);
    (void)fputs(" is missing: ", to);
    text_xml(to, d->missing[i].why);
    (void)fputs("</p>", to);
  }
}

static void no_figures(FILE *to, const page_data *d) {
  static const html_column column[] = {{"operator", 0}, {"who", 0}, {"case", 0}, {"why", 0}};
  bool any = false;
  for (int64_t i = 0; i < d->rows; ++i) {
    const page_row *r = &d->row[i];
    if (r->median > 0 || r->message[0] == '\0') continue;
    if (!any) {
      (void)fputs("<h2 id=\"none\">Without a figure</h2><details><summary>unsupported, wrong, or failed</summary>", to);
      html_table(to, "none", "", column, 4);
    }
    any = true;
    (void)fputs("<tr>", to);
    html_cell(to, NULL, r->op);
    html_cell(to, NULL, r->variant);
    html_cell(to, NULL, r->name);
    html_cell(to, "msg", r->message);
    (void)fputs("</tr>", to);
  }
  if (!any) return;
  html_table_end(to);
  (void)fputs("</details>", to);
}

/* ---- scenarios --------------------------------------------------------------------------------------- */

static const page_scenario *other_model(const page_data *d, const page_scenario *s, const char *model) {
  const page_scenario *found = NULL;
  for (int64_t i = 0; i < d->scenarios; ++i)
    if (strcmp(d->scenario[i].name, s->name) == 0 && strcmp(d->scenario[i].model, model) == 0 &&
        d->scenario[i].file == s->file && d->scenario[i].wall > 0)
      found = &d->scenario[i];
  return found;
}

static void scenario_row(FILE *to, const page_data *d, const page_scenario *s) {
  (void)fputs("<tr>", to);
  html_cell(to, NULL, s->name);
  html_cell(to, NULL, s->model);
  if (!(s->wall > 0)) {
    (void)fputs("<td colspan=\"13\" class=\"bad\">", to);
    text_xml(to, s->message);
    (void)fputs("</td></tr>", to);
    return;
  }
  number(to, 2, "", s->wall);
  (void)fprintf(to, "<td class=\"n dim\">%.2f – %.2f</td>", s->low, s->high);
  number(to, 2, "", s->prefill);
  number(to, 3, "", s->step);
  number(to, 2, "", s->layer);
  number(to, 1, "", s->span);
  number(to, 0, "", s->rate);
  number(to, 0, "", (double)s->calls);
  number(to, 2, "", s->limit);
  number(to, 2, "", s->limit > 0 ? s->wall / s->limit : 0);
  number(to, 1, " %", 100 * s->live);
  number(to, 0, "", s->published);
  const page_scenario *qwen3 = strcmp(s->model, "asynct") == 0 ? other_model(d, s, "qwen3") : NULL;
  number(to, 3, "", qwen3 != NULL ? s->wall / qwen3->wall : 0);
  (void)fputs("</tr>", to);
}

/* Writes the walls of peers beside those of the same scenario and model in the same file. */
static void scenario_peers(FILE *to, const page_data *d) {
  static const html_column column[] = {{"scenario", 0},        {"model", 0}, {"peer", 0},        {"peer ms", 1},
                                       {"this project ms", 1}, {"ratio", 1}, {"peer / limit", 1}};
  if (d->scenario_peers == 0) return;
  html_table(to, "scenario-peers", "", column, sizeof column / sizeof *column);
  for (int64_t i = 0; i < d->scenario_peers; ++i) {
    const page_scenario_peer *p = &d->scenario_peer[i];
    const page_scenario *s = NULL;
    for (int64_t k = 0; k < d->scenarios; ++k)
      if (strcmp(d->scenario[k].name, p->name) == 0 && strcmp(d->scenario[k].model, p->model) == 0 &&
          d->scenario[k].file == p->file && d->scenario[k].wall > 0)
        s = &d->scenario[k];
    (void)fputs("<tr>", to);
    html_cell(to, NULL, p->name);
    html_cell(to, NULL, p->model);
    html_cell(to, NULL, p->peer);
    if (p->wall > 0) {
      number(to, 2, "", p->wall);
      number(to, 2, "", s != NULL ? s->wall : 0);
      number(to, 3, "", s != NULL ? s->wall / p->wall : 0);
      number(to, 2, "", s != NULL && s->limit > 0 ? p->wall / s->limit : 0);
    } else {
      (void)fputs("<td colspan=\"4\" class=\"bad\">", to);
      text_xml(to, p->message);
      (void)fputs("</td>", to);
    }
    (void)fputs("</tr>", to);
  }
  html_table_end(to);
}

static void calls(FILE *to, const page_scenario *s, int64_t number_of_it) {
  static const html_column column[] = {{"operator", 0}, {"variant", 0}, {"calls", 1},
                                       {"µs", 1},       {"share", 1},   {"in the graph µs", 1}};
  char id[32];
  double sum = 0;
  for (int32_t i = 0; i < s->call_count; ++i)
    sum += s->call[i].us;
  if (!(sum > 0)) return;
  (void)fputs("<details><summary>", to);
  text_xml(to, s->model);
  (void)fputc(' ', to);
  text_xml(to, s->name);
  (void)fprintf(to, ": one decode step, call by call, %.0f µs</summary>", sum);
  (void)snprintf(id, sizeof id, "calls-%lld", (long long)number_of_it);
  html_table(to, id, "", column, sizeof column / sizeof *column);
  for (int32_t i = 0; i < s->call_count; ++i) {
    (void)fputs("<tr>", to);
    html_cell(to, NULL, s->call[i].op);
    html_cell(to, NULL, s->call[i].variant);
    html_number_cell(to, s->call[i].calls);
    number(to, 2, "", s->call[i].us);
    number(to, 1, " %", 100 * s->call[i].us / sum);
    if (s->call[i].in_graph)
      (void)fprintf(to, "<td class=\"n\">%.2f</td></tr>", s->call[i].graph_us); /* below 0 too: launches overlap */
    else
      (void)fputs("<td class=\"n\">–</td></tr>", to);
  }
  html_table_end(to);
  (void)fputs("</details>", to);
}

static void scenarios(FILE *to, const page_data *d) {
  static const html_column column[] = {
      {"scenario", 0}, {"model", 0},        {"wall ms", 1},   {"runs", 1},         {"prefill ms", 1},
      {"step ms", 1},  {"layer µs", 1},     {"span µs", 1},   {"tokens/s", 1},     {"calls per step", 1},
      {"limit ms", 1}, {"wall / limit", 1}, {"live keys", 1}, {"published ms", 1}, {"asynct / qwen3", 1}};
  if (d->scenarios == 0) return;
  (void)fputs(
      "<h2 id=\"scenarios\">Scenarios</h2><p class=\"dim\">The whole batch at once, greedy. Span: a decode step by "
      "the device's clock. Checked: first tokens of two requests against the reference.</p>",
      to);
  html_table(to, "scenarios", "", column, sizeof column / sizeof *column);
  for (int64_t i = 0; i < d->scenarios; ++i)
    scenario_row(to, d, &d->scenario[i]);
  html_table_end(to);
  scenario_peers(to, d);
  for (int64_t i = 0; i < d->scenarios; ++i)
    calls(to, &d->scenario[i], i);
}

static void online(FILE *to, const page_data *d) {
  static const html_column column[] = {{"trace", 0},      {"model", 0},     {"scale", 1},        {"requests", 1},
                                       {"offered /s", 1}, {"served /s", 1}, {"output tok/s", 1}, {"prompt tok/s", 1},
                                       {"cache", 1},      {"preempted", 1}, {"TTFT ms", 1},      {"TPOT ms", 1},
                                       {"ITL ms", 1},     {"e2e ms", 1}};
  if (d->onlines == 0) return;
  (void)fputs("<h2 id=\"online\">Traces</h2><p class=\"dim\">Arrivals as recorded, faster by the scale. Times: p50 / "
              "p90 / p99.</p>",
              to);
  html_table(to, "online", "", column, sizeof column / sizeof *column);
  for (int64_t i = 0; i < d->onlines; ++i) {
    const page_online *o = &d->online[i];
    (void)fputs("<tr>", to);
    html_cell(to, NULL, o->trace);
    html_cell(to, NULL, o->model);
    number(to, 2, "", o->scale);
    if (o->message[0] != '\0') {
      (void)fputs("<td colspan=\"11\" class=\"bad\">", to);
      text_xml(to, o->message);
      (void)fputs("</td></tr>", to);
      continue;
    }
    html_number_cell(to, o->requests);
    number(to, 2, "", o->offered);
    number(to, 2, "", o->served);
    number(to, 0, "", o->output);
    number(to, 0, "", o->prompt);
    number(to, 1, " %", 100 * o->hit);
    html_number_cell(to, o->preempted);
    const double *const point[] = {o->ttft, o->tpot, o->itl, o->e2e};
    for (int p = 0; p < 4; ++p)
      (void)fprintf(to, "<td class=\"n p\">%.1f / %.1f / %.1f</td>", point[p][0], point[p][1], point[p][2]);
    (void)fputs("</tr>", to);
  }
  html_table_end(to);
}

/* ---- history ----------------------------------------------------------------------------------------- */

static const page_row *row_of(const page_data *d, const page_row *like, int32_t file) {
  for (int64_t i = 0; i < d->rows; ++i) {
    const page_row *r = &d->row[i];
    if (!r->peer && r->file == file && r->median > 0 && strcmp(r->name, like->name) == 0 &&
        strcmp(r->op, like->op) == 0 && strcmp(r->variant, like->variant) == 0 && strcmp(r->mode, like->mode) == 0 &&
        strcmp(r->suite, like->suite) == 0 && strcmp(r->shape, like->shape) == 0)
      return r;
  }
  return NULL;
}

/* Writes rows that more than one file has, one column per file. Returns false if there is no memory. */
static bool history(FILE *to, const page_data *d) {
  if (d->runs < 2) return true;
  html_column *column = calloc((size_t)d->runs + 3, sizeof *column);
  if (column == NULL) return false;
  column[0] = (html_column){"operator/variant", 0};
  column[1] = (html_column){"case", 0};
  (void)fputs(
      "<h2 id=\"history\">History</h2><p class=\"dim\">Medians in µs by commit; the last column is the last over "
      "the first.</p>",
      to);
  for (int32_t f = 0; f < d->runs; ++f)
    column[2 + f] = (html_column){d->run[f].commit, 1};
  column[2 + d->runs] = (html_column){"ratio", 1};
  html_table(to, "history", "", column, (int32_t)d->runs + 3);
  for (int64_t i = 0; i < d->rows; ++i) {
    const page_row *r = &d->row[i];
    const page_row *first = NULL, *last = NULL;
    if (r->peer || !(r->median > 0) || row_of(d, r, r->file) != r) continue;
    for (int32_t f = 0; f < d->runs; ++f) {
      const page_row *here = row_of(d, r, f);
      if (here != NULL && first == NULL) first = here;
      if (here != NULL) last = here;
    }
    if (first != r || first == last) continue;
    char who[112];
    (void)snprintf(who, sizeof who, "%s/%s", r->op, r->variant);
    (void)fputs("<tr>", to);
    html_cell(to, NULL, who);
    (void)snprintf(who, sizeof who, "%s, %s", r->name, r->mode);
    html_cell(to, NULL, who);
    for (int32_t f = 0; f < d->runs; ++f) {
      const page_row *here = row_of(d, r, f);
      number(to, 2, "", here != NULL ? here->median : 0);
    }
    number(to, 3, "", last->median / first->median);
    (void)fputs("</tr>", to);
  }
  html_table_end(to);
  free(column);
  return true;
}

/* Returns false if there is no memory; the page is then not whole. */
static bool page(FILE *to, const page_data *d) {
  (void)fprintf(to, "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" "
                    "content=\"width=device-width,initial-scale=1\"><meta http-equiv=\"Content-Security-Policy\" "
                    "content=\"default-src 'none';style-src 'unsafe-inline'\"><title>assay bench</title><style>");
  html_style(to);
  (void)fprintf(to, "%s</style></head><body>", page_style);
  head(to, d);
  scenarios(to, d);
  online(to, d);
  page_roofline(to, d);
  page_density(to, d);
  page_bars(to, d);
  const bool whole = history(to, d);
  no_figures(to, d);
  (void)fputs("</body></html>\n", to);
  return whole;
}

assay_status page_write(const char *const *file, int32_t files, const char *to, assay_error *error) {
  static page_data data;
  text_file out;
  memset(&data, 0, sizeof data);
  assay_status status = ASSAY_OK;
  for (int32_t i = 0; i < files && status == ASSAY_OK; ++i)
    status = page_read(file[i], &data, error);
  if (status == ASSAY_OK) status = text_open(&out, to, error);
  if (status == ASSAY_OK) {
    if (!page(out.stream, &data)) status = assay_fail(error, ASSAY_ERR_MEMORY, "report: out of memory");
    text_note(&out);
    if (status == ASSAY_OK)
      status = text_close(&out, error);
    else
      text_discard(&out);
  }
  page_free(&data);
  return status;
}
