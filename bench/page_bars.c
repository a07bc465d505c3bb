/* page_bars.c: the times of one case, the project's and the peers', as bars; the limit as a line. */
#include <string.h>

#include "conformance/text/text.h"
#include "page_parts.h"

enum { MOST = 16 };

static const char *kind_of(const page_row *r) {
  return r->peer ? "s1" : "s0";
}

/* Lists the rows of one case in one file, fastest first: same name, operator and suite, or a peer's of the same shape.
 */
static int32_t collect(const page_data *d, int64_t first, const page_row **list) {
  const page_row *of = &d->row[first];
  int32_t count = 0;
  for (int64_t i = 0; i < d->rows && count < MOST; ++i) {
    const page_row *r = &d->row[i];
    if (strcmp(r->mode, of->mode) != 0 || !(r->median > 0) || r->file != of->file) continue;
    const bool ours = !r->peer && strcmp(r->name, of->name) == 0 && strcmp(r->op, of->op) == 0 &&
                      strcmp(r->suite, of->suite) == 0 && strcmp(r->shape, of->shape) == 0;
    const bool theirs =
        r->peer && of->shape[0] != '\0' && strcmp(r->shape, of->shape) == 0 && strstr(of->op, "attention") != NULL;
    if (ours || theirs) list[count++] = r;
  }
  for (int32_t i = 1; i < count; ++i) /* by time */
    for (int32_t k = i; k > 0 && list[k]->median < list[k - 1]->median; --k) {
      const page_row *kept = list[k];
      list[k] = list[k - 1];
      list[k - 1] = kept;
    }
  return count;
}

static bool shown_before(const page_data *d, int64_t at) {
  const page_row *r = &d->row[at];
  for (int64_t i = 0; i < at; ++i) {
    const page_row *o = &d->row[i];
    if (!o->peer && o->median > 0 && o->file == r->file && strcmp(o->mode, r->mode) == 0 &&
        strcmp(o->name, r->name) == 0 && strcmp(o->op, r->op) == 0 && strcmp(o->suite, r->suite) == 0 &&
        strcmp(o->shape, r->shape) == 0)
      return true;
  }
  return false;
}

/* Returns true if a later file has this row, which is shown instead. */
static bool superseded(const page_data *d, const page_row *r) {
  for (int64_t i = 0; i < d->rows; ++i) {
    const page_row *o = &d->row[i];
    if (!o->peer && o->file > r->file && strcmp(o->mode, r->mode) == 0 && strcmp(o->name, r->name) == 0 &&
        strcmp(o->op, r->op) == 0 && strcmp(o->suite, r->suite) == 0 && strcmp(o->shape, r->shape) == 0)
      return true;
  }
  return false;
}

static void one_case(FILE *to, const page_row *of, const page_row *const *list, int32_t count) {
  double limit = 0;
  for (int32_t i = 0; i < count; ++i)
    if (list[i]->limit > limit) limit = list[i]->limit;
  /* The slowest may be many times slower: what is beyond eight times the fastest is cut. */
  double scale = list[count - 1]->median;
  if (scale > 8 * list[0]->median) scale = 8 * list[0]->median;
  if (limit > scale) scale = limit;
  (void)fputs("<h3>", to);
  text_xml(to, of->op);
  (void)fputc(' ', to);
  text_xml(to, of->name);
  (void)fprintf(to, " <span class=\"dim\">%s</span></h3><div class=\"bars\">", of->mode);
  for (int32_t i = 0; i < count; ++i) {
    const page_row *r = list[i];
    const double share = r->median < scale ? r->median / scale : 1;
    (void)fprintf(to, "<div class=\"%s\"><span class=\"name\">", kind_of(r));
    text_xml(to, r->variant);
    (void)fprintf(to, "</span><span class=\"figure\">%.2f µs%s", r->median, r->median > scale ? " (cut)" : "");
    if (r->limit > 0) (void)fprintf(to, ", %.0f %% of the limit", 100 * r->limit / r->median);
    (void)fprintf(to, "</span><span class=\"track\"><i style=\"width:%.1f%%\"></i>", 100 * share);
    if (limit > 0)
      (void)fprintf(to, "<b class=\"limit\" style=\"left:%.1f%%\"></b>", 100 * (limit < scale ? limit / scale : 1));
    (void)fputs("</span></div>", to);
  }
  (void)fputs("</div>", to);
}

void page_bars(FILE *to, const page_data *d) {
  const page_row *list[MOST];
  bool any = false;
  for (int64_t i = 0; i < d->rows; ++i) {
    const page_row *r = &d->row[i];
    if (r->peer || !(r->median > 0) || strcmp(r->mode, "warm") == 0 || page_is_density(r) || shown_before(d, i) ||
        superseded(d, r))
      continue;
    const int32_t count = collect(d, i, list);
    if (count == 0) continue;
    if (!any)
      (void)fputs(
          "<h2 id=\"kernels\">Kernels</h2><p class=\"dim\">Median of a launch, inputs in no cache unless it says "
          "otherwise. The dashed line is the limit: the larger of bytes over the copy rate and operations over "
          "the rate of the units, both measured in the run.</p><div class=\"legend\"><span "
          "class=\"s0\"><i></i>this project</span><span class=\"s1\"><i></i>peers</span></div>",
          to);
    any = true;
    one_case(to, r, list, count);
  }
}
