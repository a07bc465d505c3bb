/* html_plot.c: plots as inline SVG. */
#include <math.h>
#include <stdlib.h>

#include "html_internal.h"

/* Buckets of the size (results.h): 0, 1-4, 5-16, 17-64, … by factors of 4. */
enum { BUCKETS = 12, COLOURS = 6, WIDTH = 1100, HEIGHT = 330, LEFT = 58, RIGHT = 10, TOP = 12, BOTTOM = 40 };
static const double DECADE_LOW = -2, DECADE_HIGH = 1; /* the axis: 0.01 to 10 */

static int bucket_of(int64_t size) {
  int b = 0;
  for (int64_t top = 1; size >= top && b < BUCKETS - 1; top = b == 1 ? 5 : 4 * (top - 1) + 1)
    ++b;
  return b;
}

static void bucket_name(int b, char *text, size_t size) {
  int64_t top = 1;
  for (int i = 1; i <= b; ++i)
    top *= 4;
  if (b == 0)
    (void)snprintf(text, size, "0");
  else if (b == BUCKETS - 1)
    (void)snprintf(text, size, "> %lld", (long long)top / 4);
  else
    (void)snprintf(text, size, "%lld–%lld", (long long)(b == 1 ? 1 : top / 4 + 1), (long long)top);
}

static double place_y(double ratio) {
  double at = log10(ratio > 0 ? ratio : 1e-12);
  if (!(at > DECADE_LOW)) at = DECADE_LOW;
  if (!(at < DECADE_HIGH)) at = DECADE_HIGH;
  return TOP + (DECADE_HIGH - at) / (DECADE_HIGH - DECADE_LOW) * (HEIGHT - TOP - BOTTOM);
}

static int by_ratio(const void *a, const void *b) {
  const double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

static double quantile(const double *sorted, int64_t count, double at) {
  const double place = at * (double)(count - 1);
  const int64_t low = (int64_t)place;
  const double part = place - (double)low;
  if (low + 1 >= count || sorted[low] > 1e300 || sorted[low + 1] > 1e300) return sorted[low];
  return sorted[low] + part * (sorted[low + 1] - sorted[low]);
}

/* Draws whiskers at 5 % and 95 %, a box at the quartiles, a line at the median, a dot at the largest ratio. */
static void draw_box(FILE *to, double *ratio, int64_t count, double x, double width, int colour, const char *variant,
                     const char *size, const char *bucket) {
  qsort(ratio, (size_t)count, sizeof *ratio, by_ratio);
  const double q05 = quantile(ratio, count, 0.05), q25 = quantile(ratio, count, 0.25);
  const double q50 = quantile(ratio, count, 0.5), q75 = quantile(ratio, count, 0.75);
  const double q95 = quantile(ratio, count, 0.95), top = ratio[count - 1], middle = x + width / 2;
  (void)fprintf(to, "<g class=\"s%d\"><title>", colour);
  text_xml(to, variant);
  (void)fprintf(to, ", %s %s: %lld cases, median ", size, bucket, (long long)count);
  html_ratio(to, q50);
  (void)fputs(", 95 % ", to);
  html_ratio(to, q95);
  (void)fputs(", largest ", to);
  html_ratio(to, top);
  /* Elements are printed one at a time. For many numbers at once the C library takes memory, and the stream does not
   * show a lack of it. */
  (void)fprintf(to, "</title><line class=\"wisk\" x1=\"%.1f\" x2=\"%.1f\" y1=\"%.1f\" y2=\"%.1f\"/>", middle, middle,
                place_y(q05), place_y(q95));
  (void)fprintf(to, "<rect class=\"box\" x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\"/>", x, place_y(q75),
                width, place_y(q25) - place_y(q75) + 0.5);
  (void)fprintf(to, "<line class=\"mark\" x1=\"%.1f\" x2=\"%.1f\" y1=\"%.1f\" y2=\"%.1f\"/>", x, x + width,
                place_y(q50), place_y(q50));
  (void)fprintf(to, "<circle class=\"dot\" cx=\"%.1f\" cy=\"%.1f\" r=\"%s\"/></g>", middle, place_y(top),
                top > 1 ? "4" : "2");
}

static void draw_axes(FILE *to, const char *op, const char *device) {
  (void)fprintf(to, "<svg class=\"plot\" viewBox=\"0 0 %d %d\" role=\"img\" aria-label=\"error ratio by size, ", WIDTH,
                HEIGHT);
  text_xml(to, op);
  (void)fputs(" on ", to);
  text_xml(to, device);
  (void)fputs("\">", to);
  for (int decade = (int)DECADE_LOW; decade <= (int)DECADE_HIGH; ++decade) {
    const double y = place_y(pow(10, decade));
    (void)fprintf(to,
                  "<line class=\"%s\" x1=\"%d\" x2=\"%d\" y1=\"%.1f\" y2=\"%.1f\"/><text class=\"dim\" x=\"%d\" "
                  "y=\"%.1f\" text-anchor=\"end\">%g%s</text>",
                  decade == 0 ? "limit" : "grid", LEFT, WIDTH - RIGHT, y, y, LEFT - 6, y + 4, pow(10, decade),
                  decade == (int)DECADE_HIGH ? "+" : "");
  }
}

/* Draws the groups of one operator on one device. */
static void plot(FILE *to, const results *r, const results_groups *g, int64_t first, double *scratch) {
  const results_group *lead = &g->list[first];
  int64_t member[COLOURS], count = 0, hidden = 0;
  const bool plain = lead->about != NULL && lead->about->form == ASSAY_PLAIN;
  bool used[BUCKETS] = {false};
  for (int64_t i = first; i < g->count; ++i)
    if (g->list[i].op == lead->op && g->list[i].device == lead->device) {
      if (count < COLOURS)
        member[count++] = i;
      else
        ++hidden;
    }
  for (int64_t i = 0; i < r->case_count; ++i)
    if (r->cases[i].op == lead->op && r->cases[i].device == lead->device && group_ratio(&r->cases[i]) > 0)
      used[bucket_of(r->cases[i].size)] = true;
  int columns = 0;
  for (int b = 0; b < BUCKETS; ++b)
    columns += used[b];
  if (columns == 0) return;
  (void)fputs("<h3>", to);
  text_xml(to, lead->op);
  (void)fputs(" on ", to);
  text_xml(to, lead->device);
  (void)fputs("</h3><div class=\"legend\">", to);
  for (int64_t m = 0; m < count; ++m) {
    (void)fprintf(to, "<span class=\"s%d\"><i></i>", (int)m);
    text_xml(to, g->list[member[m]].variant);
    (void)fputs("</span>", to);
  }
  if (hidden > 0) (void)fprintf(to, "<span class=\"dim\">and %lld variants not drawn</span>", (long long)hidden);
  (void)fputs("</div><div class=\"wide\">", to);
  draw_axes(to, lead->op, lead->device);
  const double step = (double)(WIDTH - LEFT - RIGHT) / columns;
  int column = 0;
  for (int b = 0; b < BUCKETS; ++b) {
    if (!used[b]) continue;
    const double x = LEFT + step * column++, room = step * 0.72 / (double)count, width = room > 34 ? 34 : room;
    char name[48];
    bucket_name(b, name, sizeof name);
    (void)fprintf(to, "<text x=\"%.1f\" y=\"%d\" text-anchor=\"middle\">%s</text>", x + step / 2, HEIGHT - BOTTOM + 18,
                  name);
    for (int64_t m = 0; m < count; ++m) {
      int64_t found = 0;
      for (int64_t i = 0; i < r->case_count; ++i)
        if (g->of_case[i] == member[m] && bucket_of(r->cases[i].size) == b && group_ratio(&r->cases[i]) > 0)
          scratch[found++] = group_ratio(&r->cases[i]);
      const double left = x + step / 2 + ((double)m - (double)count / 2) * width;
      if (found > 0)
        draw_box(to, scratch, found, left + width * 0.12, width * 0.76, (int)m, g->list[member[m]].variant,
                 plain ? "elements" : "kv_len", name);
    }
  }
  (void)fprintf(to, "<text class=\"dim\" x=\"%d\" y=\"%d\" text-anchor=\"end\">%s of the case</text>", WIDTH - RIGHT,
                HEIGHT - 6, plain ? "elements" : "longest kv_len");
  (void)fputs("</svg></div>", to);
}

void html_ratio_plots(FILE *to, const results *r, const results_groups *g) {
  double *scratch = malloc((size_t)r->case_count * sizeof *scratch + 1);
  if (scratch == NULL) html_miss();
  (void)fputs(
      "<h2 id=\"ratio\">Error ratio</h2><p class=\"dim\">Observed over allowed error of the calibrated tier: the "
      "largest of element, row and request of each case, by the longest kv_len (plain operators: the number of "
      "elements). Box: quartiles and median; "
      "line: 5 to 95 %; dot: the largest. Dashed: the limit.</p>",
      to);
  for (int64_t i = 0; i < g->count && scratch != NULL; ++i) {
    bool first = true;
    for (int64_t j = 0; j < i; ++j)
      first = first && !(g->list[j].op == g->list[i].op && g->list[j].device == g->list[i].device);
    if (first) plot(to, r, g, i, scratch);
  }
  free(scratch);
}

/* ---- time -------------------------------------------------------------------------------------------- */

void html_time_bars(FILE *to, const results *r, const results_groups *g) {
  enum { ROW = 26, BAR_LEFT = 330, BAR_RIGHT = 190 };
  double most = 1e-9, wall = 0, reference = 0, first_runs = 0;
  for (int64_t i = 0; i < g->count; ++i) {
    const double sum = g->list[i].reference_ms + g->list[i].run_ms;
    most = sum > most ? sum : most;
    reference += g->list[i].reference_ms;
    first_runs += g->list[i].run_ms;
  }
  for (int64_t i = 0; i < r->run_count; ++i)
    wall += r->runs[i].seconds * 1e3;
  (void)fputs("<h2 id=\"time\">Time</h2><p>Wall ", to);
  html_time(to, wall);
  (void)fputs(", over all workers: reference ", to);
  html_time(to, reference);
  (void)fputs(", first run of the variants ", to);
  html_time(to, first_runs);
  (void)fputs(". The rest is making inputs, the further runs that the laws need, comparing, and starting workers.</p>"
              "<div class=\"legend\"><span class=\"s0\"><i></i>reference</span><span class=\"s1\"><i></i>first run"
              "</span></div><div class=\"wide\">",
              to);
  (void)fprintf(to, "<svg class=\"plot\" viewBox=\"0 0 %d %d\" role=\"img\" aria-label=\"time by variant\">", WIDTH,
                (int)(g->count * ROW + 8));
  for (int64_t i = 0; i < g->count; ++i) {
    const results_group *one = &g->list[i];
    const double scale = (WIDTH - BAR_LEFT - BAR_RIGHT) / most, y = (double)(i * ROW) + 6;
    const double first = one->reference_ms * scale, second = one->run_ms * scale;
    (void)fprintf(to, "<text x=\"%d\" y=\"%.1f\" text-anchor=\"end\">", BAR_LEFT - 8, y + 12);
    text_xml(to, one->op);
    (void)fputc('/', to);
    text_xml(to, one->variant);
    (void)fputs(" on ", to);
    text_xml(to, one->device);
    (void)fprintf(to,
                  "</text><g class=\"s0\"><rect class=\"bar\" x=\"%d\" y=\"%.1f\" width=\"%.1f\" height=\"15\"/></g>"
                  "<g class=\"s1\"><rect class=\"bar\" x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"15\"/></g>"
                  "<text class=\"dim\" x=\"%.1f\" y=\"%.1f\">",
                  BAR_LEFT, y, first, BAR_LEFT + first, y, second, BAR_LEFT + first + second + 6, y + 12);
    html_time(to, one->reference_ms);
    (void)fputs(" + ", to);
    html_time(to, one->run_ms);
    (void)fputs(", ", to);
    text_count(to, one->cases);
    (void)fputs(" cases</text>", to);
  }
  (void)fputs("</svg></div>", to);
}
