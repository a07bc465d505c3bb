/* page.c: the head, the tables, the order of it all. */
#include "page.h"

#include <string.h>

#include "conformance/report_html_parts.h"
#include "page_parts.h"

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
  for (int32_t i = d->runs - 1; i >= 0; --i) {
    if (!(d->run[i].copy > 0)) continue;
    tile(to, "copy", d->run[i].copy * 1e-12, "TB/s");
    tile(to, "f32 multiply-add", d->run[i].fma * 1e-12, "TFLOP/s");
    tile(to, "bf16 mma.sync", d->run[i].mma * 1e-12, "TFLOP/s");
    tile(to, "bf16 GEMM of the library", d->run[i].gemm * 1e-12, "TFLOP/s");
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
  bool any = false;
  for (int64_t i = 0; i < d->rows; ++i) {
    const page_row *r = &d->row[i];
    if (r->median > 0 || r->message[0] == '\0') continue;
    if (!any)
      (void)fputs("<h2 id=\"none\">Without a figure</h2><details><summary>unsupported, wrong, or failed</summary>"
                  "<div class=\"wide\"><table><tr><th>operator</th><th>who</th><th>case</th><th>why</th></tr>",
                  to);
    any = true;
    (void)fputs("<tr>", to);
    html_cell(to, NULL, r->op);
    html_cell(to, NULL, r->variant);
    html_cell(to, NULL, r->name);
    html_cell(to, "msg", r->message);
    (void)fputs("</tr>", to);
  }
  if (any) (void)fputs("</table></div></details>", to);
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

static void calls(FILE *to, const page_scenario *s) {
  double sum = 0;
  for (int32_t i = 0; i < s->call_count; ++i)
    sum += s->call[i].us;
  if (!(sum > 0)) return;
  (void)fputs("<details><summary>", to);
  text_xml(to, s->model);
  (void)fputc(' ', to);
  text_xml(to, s->name);
  (void)fprintf(to,
                ": one decode step, call by call, %.0f µs</summary><table><tr><th>operator</th><th>variant</th><th "
                "class=\"n\">calls</th><th class=\"n\">µs</th><th class=\"n\">share</th><th class=\"n\">in the graph "
                "µs</th></tr>",
                sum);
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
  (void)fputs("</table></details>", to);
}

static void scenarios(FILE *to, const page_data *d) {
  static const char *const column[] = {"scenario", "model",        "wall ms",   "runs",         "prefill ms",
                                       "step ms",  "layer µs",     "span µs",   "tokens/s",     "calls a step",
                                       "limit ms", "wall / limit", "live keys", "published ms", "asynct / qwen3"};
  if (d->scenarios == 0) return;
  (void)fputs(
      "<h2 id=\"scenarios\">Scenarios</h2><p class=\"dim\">The whole batch at once, greedy. Span: a decode step by "
      "the device's clock. Checked: first tokens of two requests against the reference.</p><div "
      "class=\"wide\"><table><tr>",
      to);
  for (size_t i = 0; i < sizeof column / sizeof column[0]; ++i)
    (void)fprintf(to, "<th%s>%s</th>", i > 1 ? " class=\"n\"" : "", column[i]);
  (void)fputs("</tr>", to);
  for (int64_t i = 0; i < d->scenarios; ++i)
    scenario_row(to, d, &d->scenario[i]);
  (void)fputs("</table></div>", to);
  for (int64_t i = 0; i < d->scenarios; ++i)
    calls(to, &d->scenario[i]);
}

static void online(FILE *to, const page_data *d) {
  static const char *const column[] = {"trace",     "model",        "scale",        "requests", "offered /s",
                                       "served /s", "output tok/s", "prompt tok/s", "cache",    "preempted",
                                       "TTFT ms",   "TPOT ms",      "ITL ms",       "e2e ms"};
  if (d->onlines == 0) return;
  (void)fputs(
      "<h2 id=\"online\">Traces</h2><p class=\"dim\">Arrivals as recorded, so many times faster. Times: p50 / p90 / "
      "p99.</p><div class=\"wide\"><table><tr>",
      to);
  for (size_t i = 0; i < sizeof column / sizeof column[0]; ++i)
    (void)fprintf(to, "<th%s>%s</th>", i > 1 ? " class=\"n\"" : "", column[i]);
  (void)fputs("</tr>", to);
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
      (void)fprintf(to, "<td class=\"n\">%.1f / %.1f / %.1f</td>", point[p][0], point[p][1], point[p][2]);
    (void)fputs("</tr>", to);
  }
  (void)fputs("</table></div>", to);
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

/* Rows that more than one file has, a column for each file. */
static void history(FILE *to, const page_data *d) {
  if (d->runs < 2) return;
  (void)fputs(
      "<h2 id=\"history\">History</h2><p class=\"dim\">Medians in µs by commit; the last column is the last over the "
      "first.</p><div class=\"wide\"><table><tr><th>operator/variant</th><th>case</th>",
      to);
  for (int32_t f = 0; f < d->runs; ++f) {
    (void)fputs("<th class=\"n\">", to);
    text_xml(to, d->run[f].commit);
    (void)fputs("</th>", to);
  }
  (void)fputs("<th class=\"n\">ratio</th></tr>", to);
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
  (void)fputs("</table></div>", to);
}

static void page(FILE *to, const page_data *d) {
  (void)fprintf(to,
                "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" "
                "content=\"width=device-width,initial-scale=1\"><meta http-equiv=\"Content-Security-Policy\" "
                "content=\"default-src 'none';style-src 'unsafe-inline'\"><title>assay bench</title><style>%s"
                "svg.bars{max-width:1000px}</style></head><body>",
                html_style);
  head(to, d);
  scenarios(to, d);
  online(to, d);
  page_roofline(to, d);
  page_density(to, d);
  page_bars(to, d);
  history(to, d);
  no_figures(to, d);
  (void)fputs("</body></html>\n", to);
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
    page(out.stream, &data);
    text_note(&out);
    status = text_close(&out, error);
  }
  page_free(&data);
  return status;
}
