/* report.c: results to a terminal and to files. */
#include "report.h"

#include <stdlib.h>

#include "core/registry.h"
#include "judge_parts.h"
#include "report_file.h"
#include "report_text.h"

enum { HEADER_ROOM = 320 };

struct report {
  report_options options;
  report_totals totals;
  int64_t added;
  double started_ms, shown_ms;
  bool line_open; /* a running line is on the terminal */
  bool silent;
  const char *expected; /* the reason, while an expected failure is added */
  text_file jsonl, junit;
  char descriptor[CASE_MAX_LINE];
};

static bool prints(const report *r) {
  return r->options.text != NULL && !r->silent;
}

/* Spaces after the header keep room for its final numbers. */
static void junit_header(report *r) {
  const long start = ftell(r->junit.stream);
  file_junit_header(r->junit.stream, &r->totals);
  for (long written = ftell(r->junit.stream) - start; written < HEADER_ROOM; ++written)
    (void)fputc(' ', r->junit.stream);
}

assay_status report_open(const report_options *options, report **made, assay_error *error) {
  assay_status status = ASSAY_OK;
  *made = NULL;
  report *r = calloc(1, sizeof *r);
  if (r == NULL) return assay_fail(error, ASSAY_ERR_MEMORY, "report: out of memory");
  r->options = *options;
  r->started_ms = judge_now_ms();
  if (options->jsonl != NULL)
    status = text_open_partial(&r->jsonl, options->jsonl, options->past > 0 ? options->past_bytes : -1, error);
  if (status == ASSAY_OK && options->junit != NULL) status = text_open(&r->junit, options->junit, error);
  if (status != ASSAY_OK) {
    text_discard(&r->jsonl);
    free(r);
    return status;
  }
  if (r->jsonl.stream != NULL && options->past == 0) file_jsonl_header(r->jsonl.stream, options);
  if (r->junit.stream != NULL) junit_header(r);
  *made = r;
  return ASSAY_OK;
}

/* ---- text -------------------------------------------------------------------------------------------- */

static void clear_line(report *r) {
  if (r->line_open) (void)fputs("\r\033[K", r->options.text);
  r->line_open = false;
}

static int64_t bad_count(const report *r) {
  int64_t bad = r->totals.unclaimed + r->totals.weak;
  for (int v = 0; v <= VERDICT_WEAK; ++v)
    if (!verdict_is_good((verdict)v)) bad += r->totals.verdicts[v];
  return bad;
}

static void show_progress(report *r) {
  const double now = judge_now_ms();
  if (!prints(r) || !r->options.progress || now - r->shown_ms < 100.0) return;
  clear_line(r);
  text_count(r->options.text, r->added);
  if (r->options.total > 0) {
    (void)fputs(" of ", r->options.text);
    text_count(r->options.text, r->options.total);
  }
  (void)fprintf(r->options.text, " cases, %lld failed, %.1f cases/s", (long long)bad_count(r),
                1e3 * (double)r->added / (now - r->started_ms + 1.0));
  (void)fflush(r->options.text);
  r->line_open = true;
  r->shown_ms = now;
}

static const char *plugin_of(const assay_case *one) {
  for (int32_t i = 0; i < assay_variant_count(); ++i) {
    const assay_variant *v = assay_variant_at(i);
    if (strcmp(v->op, one->op->name) != 0 || strcmp(v->name, one->variant) != 0 || strcmp(v->device, one->device) != 0)
      continue;
    return strcmp(assay_variant_origin(i), "built-in") != 0 ? assay_variant_origin(i) : NULL;
  }
  return NULL;
}

static void print_result(report *r, const assay_case *one, const case_result *result) {
  FILE *to = r->options.text;
  const char *plugin = plugin_of(one);
  clear_line(r);
  (void)fprintf(to, "%s %s/%s on %s, %s %s/%s: %s: %s\n", verdict_name(result->verdict), one->op->name, one->variant,
                one->device, one->suite, file_section_name(one->section), one->name, result->check, result->message);
  if (strcmp(one->op->name, "model") == 0) {
    (void)fprintf(to, "  assay run conformance/suites/%s.yaml --device %s --filter %s/%s\n", one->suite, one->device,
                  one->name, one->variant);
    (void)fflush(to);
    return;
  }
  (void)fputs("  assay replay ", to);
  text_shell(to, r->descriptor);
  if (plugin != NULL) {
    (void)fputs(" --plugin ", to);
    text_shell(to, plugin);
  }
  (void)fputc('\n', to);
  (void)fflush(to);
}

void report_add(report *r, const assay_case *one, const case_result *result) {
  assay_error error = {""};
  ++r->added;
  for (uint32_t all = result->spoils_seen | result->spoils_unseen | result->spoils_void; all != 0; all &= all - 1)
    ++r->totals.spoils;
  if (r->expected != NULL)
    ++r->totals.expected;
  else if ((unsigned)result->verdict <= VERDICT_WEAK)
    ++r->totals.verdicts[result->verdict];
  if (case_print(one, r->descriptor, sizeof r->descriptor, &error) != ASSAY_OK)
    (void)snprintf(r->descriptor, sizeof r->descriptor, "(%s)", error.text);
  /* After a failed write nothing is added: the file ends in a line cut off, which a continued run writes again. */
  if (r->jsonl.stream != NULL && r->added > r->options.past && !ferror(r->jsonl.stream))
    file_jsonl_case(r->jsonl.stream, one, result, r->descriptor, r->expected);
  text_note(&r->jsonl);
  if (r->junit.stream != NULL) file_junit_case(r->junit.stream, one, result, r->descriptor, r->expected);
  if (prints(r) && !verdict_is_good(result->verdict) && r->expected == NULL) print_result(r, one, result);
  show_progress(r);
}

void report_expected(report *r, const assay_case *one, const case_result *result, const char *reason) {
  r->expected = reason;
  report_add(r, one, result);
  r->expected = NULL;
}

void report_print(report *r, bool on) {
  r->silent = !on;
}

static void without_a_pass(report *r, const char *subject, const char *what, const char *why) {
  ++r->totals.unclaimed;
  if (r->jsonl.stream != NULL) file_jsonl_unclaimed(r->jsonl.stream, subject, what, why);
  if (r->junit.stream != NULL) file_junit_unclaimed(r->junit.stream, subject, what, why);
}

void report_unclaimed(report *r, const char *variant, const char *combination) {
  without_a_pass(r, variant, combination, "claimed, but no case of it passed");
  if (!prints(r)) return;
  clear_line(r);
  (void)fprintf(r->options.text, "FAIL %s claims %s, but no case of it passed\n", variant, combination);
}

void report_unasked(report *r, const char *op, const char *law) {
  without_a_pass(r, op, law, "a law of the operator, but no case that passed was asked it");
  if (!prints(r)) return;
  clear_line(r);
  (void)fprintf(r->options.text, "FAIL %s: no case that passed was asked it\n", law);
}

void report_untaken(report *r, const char *op, const char *variant) {
  char combination[160];
  (void)snprintf(combination, sizeof combination, "%s/%s on %s: forced in a model", op, variant, r->options.device);
  without_a_pass(r, variant, combination, "forced, but no case that passed took it");
  if (!prints(r)) return;
  clear_line(r);
  (void)fprintf(r->options.text, "FAIL %s=%s is forced, but no case that passed took it\n", op, variant);
}

void report_line(report *r, const char *text) {
  if (!prints(r)) return;
  clear_line(r);
  (void)fprintf(r->options.text, "%s\n", text);
}

void report_power(report *r, const char *op, const char *spoil, int64_t seen, int64_t unseen, int64_t weak,
                  int64_t empty, bool shown) {
  char line[300];
  if (r->jsonl.stream != NULL) file_jsonl_power(r->jsonl.stream, op, spoil, seen, unseen, weak, empty);
  if (!shown) return;
  (void)snprintf(line, sizeof line,
                 "  %-20s seen in %lld of %lld cases it changes; %lld unseen by their exact twins too; void in %lld",
                 spoil, (long long)seen, (long long)(seen + unseen), (long long)weak, (long long)empty);
  report_line(r, line);
}

void report_weak(report *r, const char *suite, const char *spoil, const char *why) {
  char line[600];
  ++r->totals.weak;
  if (r->jsonl.stream != NULL) file_jsonl_weak(r->jsonl.stream, suite, spoil, why);
  if (r->junit.stream != NULL) file_junit_weak(r->junit.stream, suite, spoil, why);
  (void)snprintf(line, sizeof line, "WEAK suite %s: power: %s %s", suite, spoil, why);
  report_line(r, line);
}

/* ---- the end ----------------------------------------------------------------------------------------- */

static void print_summary(report *r) {
  FILE *to = r->options.text;
  clear_line(r);
  for (int v = 0; v <= VERDICT_WEAK; ++v) {
    if (v > 0) (void)fputs(", ", to);
    text_count(to, r->totals.verdicts[v]);
    (void)fprintf(to, " %s", verdict_name((verdict)v));
  }
  if (r->totals.expected > 0) {
    (void)fputs(", ", to);
    text_count(to, r->totals.expected);
    (void)fputs(" failed as expected", to);
  }
  if (r->totals.unclaimed > 0) {
    (void)fputs(", ", to);
    text_count(to, r->totals.unclaimed);
    (void)fputs(" claims or laws without a PASS", to);
  }
  if (r->totals.weak > 0) {
    (void)fputs(", ", to);
    text_count(to, r->totals.weak);
    (void)fputs(" planted errors that a suite would miss", to);
  }
  (void)fprintf(to, " in %.1f s (%.1f cases/s) on %s\n", r->totals.seconds,
                r->totals.seconds > 0 ? (double)r->added / r->totals.seconds : 0.0,
                r->options.device != NULL ? r->options.device : "no device");
  (void)fflush(to);
}

/* 77: nothing ran because the device that was asked for is not here. A file that cannot be written is bad
 * input, and hides no failure. */
static int exit_code(const report *r, bool files_written) {
  const int64_t *v = r->totals.verdicts;
  if (bad_count(r) > 0) return 1;
  if (!files_written) return 2;
  if (v[VERDICT_PASS] + v[VERDICT_REFUSED] + r->totals.expected > 0) return 0;
  return r->added == 0 && r->options.device != NULL && r->options.info == NULL ? 77 : 3;
}

int report_close(report *r, assay_error *error) {
  r->totals.seconds = 1e-3 * (judge_now_ms() - r->started_ms);
  if (prints(r)) print_summary(r);
  if (r->junit.stream != NULL) {
    file_junit_end(r->junit.stream);
    if (fseek(r->junit.stream, 0, SEEK_SET) == 0) file_junit_header(r->junit.stream, &r->totals);
  }
  if (r->jsonl.stream != NULL && !ferror(r->jsonl.stream)) file_jsonl_end(r->jsonl.stream, &r->totals, r->added);
  const assay_status lines = text_close(&r->jsonl, error), units = text_close(&r->junit, error);
  const int code = exit_code(r, lines == ASSAY_OK && units == ASSAY_OK);
  free(r);
  return code;
}

void report_abandon(report *r) {
  r->totals.seconds = 1e-3 * (judge_now_ms() - r->started_ms);
  if (prints(r)) print_summary(r);
  text_discard(&r->junit);
  text_keep(&r->jsonl);
  free(r);
}
