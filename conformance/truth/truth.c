/* truth.c: makes comparisons and prints their lines. */
#include "truth_internal.h"

#include <stdarg.h>
#include <string.h>

#include "conformance/report/report.h"
#include "conformance/text/text.h"
#include "core/dtype.h"

typedef long long ll; /* for messages */

/* Writes a member; null: no finite number. */
static void put_number(FILE *to, const char *name, double value) {
  (void)fprintf(to, ",\"%s\":", name);
  if (assay_is_finite(value))
    (void)fprintf(to, "%.17g", value);
  else
    (void)fputs("null", to);
}

static void put_figures(const truth_log *log) {
  const foreign_verdict *v = log->figures;
  (void)fputs(",\"output\":", log->jsonl);
  text_json(log->jsonl, log->output != NULL ? log->output : "");
  (void)fprintf(log->jsonl, ",\"elements\":%lld,\"wrong_elements\":%lld,\"first\":%lld", (ll)v->elements,
                (ll)v->wrong_elements, (ll)v->first);
  put_number(log->jsonl, "first_got", v->first_got);
  put_number(log->jsonl, "first_expected", v->first_expected);
  put_number(log->jsonl, "first_allowed", v->first_allowed);
  put_number(log->jsonl, "largest", v->largest);
  put_number(log->jsonl, "ratio_element", v->ratio_element);
  put_number(log->jsonl, "ratio_row", v->ratio_row);
  put_number(log->jsonl, "ratio_request", v->ratio_request);
}

static void put_jsonl(const truth_log *log, const char *word, const char *name, const char *text) {
  const char *const member[][2] = {
      {"judge", log->folder != NULL ? log->folder : ""}, {"name", name}, {"verdict", word}, {"message", text}};
  for (size_t i = 0; i < sizeof member / sizeof *member; ++i) {
    (void)fprintf(log->jsonl, "%s\"%s\":", i > 0 ? "," : "{", member[i][0]);
    text_json(log->jsonl, member[i][1]);
  }
  if (log->figures != NULL) put_figures(log);
  (void)fputs("}\n", log->jsonl);
}

static void line(truth_log *log, const char *word, const char *name, const char *format, va_list list) {
  char text[2048];
  (void)vsnprintf(text, sizeof text, format, list);
  (void)fprintf(log->to, "%-11s %s%s%s: %s\n", word, log->several ? text_shown(log->folder) : "",
                log->several ? ": " : "", text_shown(name), text_shown(text));
  if (log->jsonl != NULL) put_jsonl(log, word, name, text);
  const verdict v = word[0] == 'P' ? VERDICT_PASS : word[0] == 'F' ? VERDICT_FAIL : VERDICT_UNSUPPORTED;
  if (log->junit != NULL) junit_line(log->junit, log->folder != NULL ? log->folder : "judge", name, v, text);
}

void truth_planted(truth_log *log, const char *name, const double tolerance[2], int32_t effective, int32_t passed,
                   const char *passed_names, int32_t unseen, const char *unseen_names) {
  (void)fprintf(log->to,
                "tolerance   %s%s%s: rtol %g, atol %g: %d of %d planted errors pass%s%s; our limits miss %d%s%s\n",
                log->several ? text_shown(log->folder) : "", log->several ? ": " : "", text_shown(name), tolerance[0],
                tolerance[1], passed, effective, passed > 0 ? ": " : "", passed_names, unseen, unseen > 0 ? ": " : "",
                unseen_names);
  if (log->jsonl == NULL) return;
  (void)fputs("{\"judge\":", log->jsonl);
  text_json(log->jsonl, log->folder != NULL ? log->folder : "");
  (void)fputs(",\"name\":", log->jsonl);
  text_json(log->jsonl, name);
  (void)fprintf(log->jsonl, ",\"rtol\":%.17g,\"atol\":%.17g,\"planted\":%d,\"passed\":", tolerance[0], tolerance[1],
                effective);
  text_json(log->jsonl, passed_names);
  (void)fputs(",\"missed\":", log->jsonl);
  text_json(log->jsonl, unseen_names);
  (void)fputs("}\n", log->jsonl);
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
  foreign_verdict found;
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
  if (status == ASSAY_OK) status = foreign_judge(f, o, bits.arg[f->output[o]].data, false, &found, &error);
  foreign_free(&bits);
  if (status != ASSAY_OK) {
    truth_failed(r, &error);
    return;
  }
  ++r->covered;
  r->elements += found.elements;
  if (!(found.largest <= r->largest)) r->largest = found.largest;
  const bool rows = !r->elements_only && found.ratio_row > found.ratio_element;
  const double ratio = rows ? found.ratio_row : found.ratio_element;
  if (!(ratio <= r->ratio)) r->ratio = ratio;
  if (!found.wrong || (r->elements_only && found.wrong_elements == 0) || r->failed) return;
  r->failed = true;
  (void)snprintf(r->message, sizeof r->message, "%s %s; %lld of %lld elements", f->op->name, found.message,
                 (ll)found.wrong_elements, (ll)found.elements);
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
