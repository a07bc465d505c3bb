/* truth.c: comparisons and their lines. */
#include "truth_parts.h"

#include <stdarg.h>
#include <string.h>

typedef long long ll; /* for messages */

static void line(truth_log *log, const char *verdict, const char *name, const char *format, va_list list) {
  (void)fprintf(log->to, "%-11s %s: ", verdict, name);
  (void)vfprintf(log->to, format, list);
  (void)fputc('\n', log->to);
}

void truth_pass(truth_log *log, const char *name, const char *format, ...) {
  va_list list;
  va_start(list, format);
  line(log, "PASS", name, format, list);
  va_end(list);
  ++log->passed;
}

void truth_fail(truth_log *log, const char *name, const char *format, ...) {
  va_list list;
  va_start(list, format);
  line(log, "FAIL", name, format, list);
  va_end(list);
  ++log->failed;
}

void truth_uncovered(truth_log *log, const char *name, const char *format, ...) {
  va_list list;
  va_start(list, format);
  line(log, "not covered", name, format, list);
  va_end(list);
  ++log->uncovered;
}

void truth_sum(const truth_log *log) {
  (void)fprintf(log->to, "%lld passed, %lld failed, %lld not covered\n", (long long)log->passed, (long long)log->failed,
                (long long)log->uncovered);
}

void truth_compare(truth_report *r, const foreign_call *f, const char *output, const double *value) {
  assay_error error = {""};
  foreign_verdict verdict;
  const int32_t o = foreign_output(f, output);
  if (o < 0) {
    (void)assay_fail(&error, ASSAY_ERR_INTERNAL, "%s has no output %s", f->op->name, output);
    truth_failed(r, &error);
    return;
  }
  /* The numbers in the argument's own type: theirs, so that storing loses nothing. */
  foreign_call bits = {.op = f->op};
  const assay_tensor *about = &f->arg[f->output[o]];
  assay_status status = foreign_values(&bits, output, about->dtype, about->rank, about->shape, value, &error);
  if (status == ASSAY_OK) status = foreign_judge(f, o, bits.arg[f->output[o]].data, false, &verdict, &error);
  foreign_free(&bits);
  if (status != ASSAY_OK) {
    truth_failed(r, &error);
    return;
  }
  ++r->covered;
  r->elements += verdict.elements;
  if (!(verdict.largest <= r->largest)) r->largest = verdict.largest;
  const double ratio = verdict.ratio_row > verdict.ratio_element ? verdict.ratio_row : verdict.ratio_element;
  if (!(ratio <= r->ratio)) r->ratio = ratio;
  if (!verdict.wrong || r->failed) return;
  r->failed = true;
  (void)snprintf(r->message, sizeof r->message, "%s %s; %lld of %lld elements", f->op->name, verdict.message,
                 (ll)verdict.wrong_elements, (ll)verdict.elements);
}

void truth_failed(truth_report *r, const assay_error *error) {
  if (!r->failed) (void)snprintf(r->message, sizeof r->message, "%.400s", error->text);
  r->failed = true;
}

void truth_line(truth_log *log, const char *name, const truth_report *r) {
  if (r->failed)
    truth_fail(log, name, "%s%s", r->message, r->left);
  else if (r->covered == 0)
    truth_uncovered(log, name, "%s", r->reason[0] != '\0' ? r->reason : "no part of it");
  else
    truth_pass(log, name, "%lld elements, largest error %.3g, %.2f of the allowed%s", (ll)r->elements, r->largest,
               r->ratio, r->left);
}
