/* page_plot.c: roofline, and time against the share of live keys. */
#include <math.h>
#include <string.h>

#include "conformance/text/text.h"
#include "page_parts.h"

enum { W = 900, H = 420, LEFT = 70, RIGHT = 20, TOP = 14, BOTTOM = 46 };

typedef struct axis {
  double low, high;
  bool log;
} axis;

static double along(const axis *a, double value) {
  if (a->log) return (log10(value) - log10(a->low)) / (log10(a->high) - log10(a->low));
  return (value - a->low) / (a->high - a->low);
}
static double px(const axis *x, double value) {
  return LEFT + along(x, value) * (W - LEFT - RIGHT);
}
static double py(const axis *y, double value) {
  return H - BOTTOM - along(y, value) * (H - TOP - BOTTOM);
}

/* Returns a step that divides the axis into about five: 1, 2 or 5 times a power of ten. */
static double step_of(const axis *a) {
  const double wanted = (a->high - a->low) / 5, power = pow(10, floor(log10(wanted)));
  const double share = wanted / power;
  return power * (share < 1.5 ? 1 : share < 3.5 ? 2 : share < 7.5 ? 5 : 10);
}

static void frame(FILE *to, const axis *x, const axis *y, const char *label, const char *below, const char *beside) {
  (void)fprintf(to, "<svg class=\"plot\" viewBox=\"0 0 %d %d\" role=\"img\" aria-label=\"%s\">", W, H, label);
  for (int side = 0; side < 2; ++side) {
    const axis *a = side == 0 ? x : y;
    const double step = a->log ? 10 : step_of(a);
    for (double v = a->low; v <= a->high * 1.0001; v = a->log ? v * step : v + step) {
      if (side == 0)
        (void)fprintf(
            to,
            "<line class=\"grid\" x1=\"%.1f\" x2=\"%.1f\" y1=\"%d\" y2=\"%d\"/><text class=\"dim\" x=\"%.1f\" "
            "y=\"%d\" text-anchor=\"middle\">%g</text>",
            px(x, v), px(x, v), TOP, H - BOTTOM, px(x, v), H - BOTTOM + 15, v);
      else
        (void)fprintf(to,
                      "<line class=\"grid\" x1=\"%d\" x2=\"%d\" y1=\"%.1f\" y2=\"%.1f\"/><text class=\"dim\" x=\"%d\" "
                      "y=\"%.1f\" text-anchor=\"end\">%g</text>",
                      LEFT, W - RIGHT, py(y, v), py(y, v), LEFT - 6, py(y, v) + 4, v);
    }
  }
  (void)fprintf(
      to,
      "<text x=\"%d\" y=\"%d\" text-anchor=\"middle\">%s</text><text x=\"14\" y=\"%d\" text-anchor=\"middle\" "
      "transform=\"rotate(-90 14 %d)\">%s</text>",
      (W + LEFT) / 2, H - 10, below, H / 2, H / 2, beside);
}

static void titled(FILE *to, const page_row *r, double x, double y, int kind) {
  (void)fprintf(to, "<circle class=\"s%d dot\" cx=\"%.1f\" cy=\"%.1f\" r=\"4\"><title>", kind, x, y);
  text_xml(to, r->op);
  (void)fputc('/', to);
  text_xml(to, r->variant);
  (void)fputc(' ', to);
  text_xml(to, r->name);
  (void)fprintf(to, ": %.2f µs</title></circle>", r->median);
}

/* Returns the colour of an operator; six operators in turn have one of their own. */
static int colour(const page_data *d, const char *op) {
  const char *seen[64];
  int count = 0;
  for (int64_t i = 0; i < d->rows; ++i) {
    bool known = d->row[i].peer;
    for (int k = 0; k < count && !known; ++k)
      known = strcmp(seen[k], d->row[i].op) == 0;
    if (known) continue;
    if (strcmp(d->row[i].op, op) == 0) break;
    if (count < 64) seen[count++] = d->row[i].op;
  }
  return count % 6;
}

void page_roofline(FILE *to, const page_data *d) {
  const page_run *run = NULL;
  for (int32_t i = 0; i < d->runs; ++i)
    if (d->run[i].copy > 0) run = &d->run[i];
  if (run == NULL) return;
  const double unit = run->gemm > run->mma ? run->gemm : run->mma;
  axis x = {0.01, 1e4, true}, y = {1e-3, 1000, true};
  (void)fputs(
      "<h2 id=\"roofline\">Roofline</h2><p class=\"dim\">A point is a kernel on a case: operations per byte that must "
      "move, and operations per second. The roofs are the rates measured in the run.</p><div class=\"wide\">",
      to);
  frame(to, &x, &y, "roofline", "operations per byte", "TFLOP/s");
  const double corner = unit / run->copy;
  (void)fprintf(to, "<polyline class=\"limit\" fill=\"none\" points=\"%.1f,%.1f %.1f,%.1f %.1f,%.1f\"/>", px(&x, x.low),
                py(&y, x.low * run->copy * 1e-12), px(&x, corner), py(&y, unit * 1e-12), px(&x, x.high),
                py(&y, unit * 1e-12));
  (void)fprintf(to,
                "<line class=\"limit\" x1=\"%.1f\" x2=\"%.1f\" y1=\"%.1f\" y2=\"%.1f\"/><text class=\"dim\" x=\"%d\" "
                "y=\"%.1f\" text-anchor=\"end\">f32 on plain cores</text>",
                px(&x, run->fma / run->copy), px(&x, x.high), py(&y, run->fma * 1e-12), py(&y, run->fma * 1e-12),
                W - RIGHT - 4, py(&y, run->fma * 1e-12) - 4);
  for (int64_t i = 0; i < d->rows; ++i) {
    const page_row *r = &d->row[i];
    if (r->peer || !(r->median > 0) || !(r->bytes > 0) || strcmp(r->mode, "cold") != 0) continue;
    double intensity = r->flops / r->bytes, rate = r->flops / r->median * 1e-6;
    if (!(intensity > x.low)) intensity = x.low;
    if (!(rate > y.low)) rate = y.low;
    titled(to, r, px(&x, intensity < x.high ? intensity : x.high), py(&y, rate < y.high ? rate : y.high),
           colour(d, r->op));
  }
  (void)fputs("</svg></div>", to);
}

/* ---- density ----------------------------------------------------------------------------------------- */

static const char *const family[] = {"scattered_", "runs_", "chance_"};

static bool is_density(const page_row *r, int which) {
  return !r->peer && r->median > 0 && r->live >= 0 && strcmp(r->mode, "warm") != 0 &&
         strncmp(r->name, family[which], strlen(family[which])) == 0;
}

bool page_is_density(const page_row *r) {
  return is_density(r, 0) || is_density(r, 1) || is_density(r, 2);
}

/* Draws a variant's points, joined in the order of their share of live keys. */
static void curve(FILE *to, const page_data *d, int which, const char *variant, const axis *x, const axis *y,
                  int kind) {
  double last = -1;
  (void)fprintf(to, "<polyline class=\"s%d mark\" fill=\"none\"%s points=\"", kind,
                which == 0   ? ""
                : which == 1 ? " stroke-dasharray=\"6 3\""
                             : " stroke-dasharray=\"2 3\"");
  for (;;) { /* ascending */
    const page_row *next = NULL;
    for (int64_t i = 0; i < d->rows; ++i) {
      const page_row *r = &d->row[i];
      if (is_density(r, which) && strcmp(r->variant, variant) == 0 && r->live > last &&
          (next == NULL || r->live < next->live))
        next = r;
    }
    if (next == NULL) break;
    last = next->live;
    (void)fprintf(to, "%.1f,%.1f ", px(x, last), py(y, next->median));
  }
  (void)fputs("\"/>", to);
  for (int64_t i = 0; i < d->rows; ++i)
    if (is_density(&d->row[i], which) && strcmp(d->row[i].variant, variant) == 0)
      titled(to, &d->row[i], px(x, d->row[i].live), py(y, d->row[i].median), kind);
}

void page_density(FILE *to, const page_data *d) {
  const char *variant[6];
  int count = 0;
  double most = 0;
  for (int64_t i = 0; i < d->rows; ++i)
    for (int w = 0; w < 3; ++w) {
      const page_row *r = &d->row[i];
      bool known = !is_density(r, w);
      if (!known && r->median > most) most = r->median;
      for (int k = 0; k < count && !known; ++k)
        known = strcmp(variant[k], r->variant) == 0;
      if (!known && count < 6) variant[count++] = r->variant;
    }
  if (count == 0) return;
  axis x = {0, 1, false}, y = {0, most * 1.05, false};
  (void)fputs(
      "<h2 id=\"density\">Gate density</h2><p class=\"dim\">Time of a decode against the share of live keys. Full "
      "lines: each key by itself, the same for the heads that share it; dashed: runs of 64 keys; dotted: each head "
      "has zeros of its own. A kernel that reads every V has a level line.</p><div class=\"legend\">",
      to);
  for (int k = 0; k < count; ++k) {
    (void)fprintf(to, "<span class=\"s%d\"><i></i>", k);
    text_xml(to, variant[k]);
    (void)fputs("</span>", to);
  }
  (void)fputs("</div><div class=\"wide\">", to);
  frame(to, &x, &y, "time by density", "share of live keys", "µs");
  for (int k = 0; k < count; ++k)
    for (int w = 0; w < 3; ++w)
      curve(to, d, w, variant[k], &x, &y, k);
  (void)fputs("</svg></div>", to);
}
