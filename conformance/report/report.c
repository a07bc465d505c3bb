/* report.c: results to a terminal and to files. */
#include "run_report.h"

#include <stdlib.h>
#include <string.h>

#include "conformance/run/run.h"
#include "conformance/text/text.h"
#include "console.h"
#include "core/registry.h"
#include "file.h"
#include "junit.h"

struct report {
  report_options options;
  report_totals totals;
  console text;
  int64_t added;
  double work_done;
  double started_ms;
  const char *expected; /* the reason, while an expected failure is added */
  text_file jsonl;
  junit *junit;
  char *plugins; /* every plug-in file, one per line: a case of a model may need any of them */
  char descriptor[CASE_MAX_LINE];
};

/* Returns the plug-in files of all variants, one per line, each once; NULL: out of memory. */
static char *all_plugins(void) {
  size_t size = 1;
  for (int32_t i = 0; i < assay_variant_count(); ++i)
    size += strlen(assay_variant_origin(i)) + 1;
  char *list = calloc(size, 1);
  const char *last = "built-in"; /* variants of one file follow each other */
  for (int32_t i = 0; list != NULL && i < assay_variant_count(); ++i) {
    const char *origin = assay_variant_origin(i);
    if (strcmp(origin, "built-in") == 0 || strcmp(origin, last) == 0) continue;
    (void)strcat(strcat(list, origin), "\n");
    last = origin;
  }
  return list;
}

static void free_report(report *r) {
  console_free(&r->text);
  free(r->plugins);
  free(r);
}

assay_status report_open(const report_options *options, report **made, assay_error *error) {
  assay_status status = ASSAY_OK;
  *made = NULL;
  report *r = calloc(1, sizeof *r);
  if (r == NULL) return assay_fail(error, ASSAY_ERR_MEMORY, "report: out of memory");
  r->options = *options;
  r->started_ms = device_now_ms();
  console_open(&r->text, options);
  r->plugins = all_plugins();
  if (r->plugins == NULL) status = assay_fail(error, ASSAY_ERR_MEMORY, "report: out of memory");
  if (status == ASSAY_OK && options->jsonl != NULL)
    status = text_open_partial(&r->jsonl, options->jsonl, options->past > 0 ? options->past_bytes : -1, error);
  if (status == ASSAY_OK && options->junit != NULL) status = junit_open(options->junit, &r->junit, error);
  if (status != ASSAY_OK) {
    text_discard(&r->jsonl);
    free_report(r);
    return status;
  }
  if (r->jsonl.stream != NULL && options->past == 0) file_jsonl_header(r->jsonl.stream, options);
  *made = r;
  return ASSAY_OK;
}

/* ---- results ----------------------------------------------------------------------------------------- */

static int64_t bad_cases(const report *r) {
  int64_t bad = 0;
  for (int v = 0; v <= VERDICT_WEAK; ++v)
    if (!verdict_is_good((verdict)v)) bad += r->totals.verdicts[v];
  return bad;
}

bool report_is_full(const report *r) {
  return r->options.maxfail > 0 && r->added >= r->options.past && bad_cases(r) >= r->options.maxfail;
}

bool report_is_stopped(const report *r) {
  return report_is_full(r) && (r->options.total == 0 || r->added < r->options.total);
}

static replay replay_of(const report *r, const assay_case *one, const case_result *result) {
  const bool model = strcmp(one->op->name, "model") == 0;
  const char *plugin = model ? r->plugins : replay_plugin(one->op->name, one->variant, one->device);
  return (replay){.descriptor = r->descriptor,
                  .op = one->op->name,
                  .variant = one->variant,
                  .device = one->device,
                  .suite = one->suite,
                  .name = one->name,
                  .check = result->check,
                  .verdict = result->verdict,
                  .plugins = plugin != NULL ? plugin : "",
                  .forced = r->options.forced != NULL ? r->options.forced : "",
                  .deadline_s = r->options.deadline_s};
}

static void show_progress(report *r) {
  console_progress(&r->text, &(console_state){.done = r->added,
                                              .total = r->options.total,
                                              .work = r->options.work,
                                              .work_done = r->work_done,
                                              .past = r->options.past,
                                              .failed = bad_cases(r) + r->totals.unclaimed + r->totals.weak});
}

void report_add(report *r, const assay_case *one, const case_result *result) {
  assay_error error = {""};
  if (report_is_full(r)) return;
  ++r->added;
  if (r->options.work > 0 && r->added > r->options.past) r->work_done += campaign_cost(one);
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
  const replay again = replay_of(r, one, result);
  if (r->junit != NULL) junit_case(r->junit, one, result, &again, r->expected);
  if (r->expected == NULL) console_result(&r->text, one, result, &again);
  show_progress(r);
}

void report_expected(report *r, const assay_case *one, const case_result *result, const char *reason) {
  r->expected = reason;
  report_add(r, one, result);
  r->expected = NULL;
}

void report_print(report *r, bool on) {
  r->text.silent = !on;
}

/* ---- what belongs to no case ------------------------------------------------------------------------- */

void report_line(report *r, const char *text) {
  console_line(&r->text, text);
}

static void without_a_pass(report *r, const char *subject, const char *what, const char *why) {
  ++r->totals.unclaimed;
  if (r->jsonl.stream != NULL) file_jsonl_unclaimed(r->jsonl.stream, subject, what, why);
  if (r->junit != NULL) junit_unclaimed(r->junit, subject, what, why);
}

void report_unclaimed(report *r, const char *variant, const char *combination) {
  char line[400];
  without_a_pass(r, variant, combination, "claimed, but no case of it passed");
  (void)snprintf(line, sizeof line, "FAIL %s claims %s, but no case of it passed", variant, combination);
  report_line(r, line);
}

void report_unasked(report *r, const char *op, const char *law) {
  char line[400];
  without_a_pass(r, op, law, "a law of the operator, but no case that passed was asked it");
  (void)snprintf(line, sizeof line, "FAIL %s: no case that passed was asked it", law);
  report_line(r, line);
}

void report_untaken(report *r, const char *op, const char *variant) {
  char combination[160], line[400];
  (void)snprintf(combination, sizeof combination, "%s/%s on %s: forced in a model", op, variant, r->options.device);
  without_a_pass(r, variant, combination, "forced, but no case that passed took it");
  (void)snprintf(line, sizeof line, "FAIL %s=%s is forced, but no case that passed took it", op, variant);
  report_line(r, line);
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
  if (r->junit != NULL) junit_weak(r->junit, suite, spoil, why);
  (void)snprintf(line, sizeof line, "WEAK suite %s: power: %s %s", suite, spoil, why);
  report_line(r, line);
}

/* ---- the end ----------------------------------------------------------------------------------------- */

static void print_end(report *r) {
  char line[240];
  console_tables(&r->text);
  if (r->totals.stopped) {
    char of[32] = "";
    if (r->options.total > 0) (void)snprintf(of, sizeof of, " of %lld", (long long)r->options.total);
    (void)snprintf(line, sizeof line,
                   "stopped by --maxfail %lld after %lld%s cases: the others were not run, and claims, laws and "
                   "suites are not judged",
                   (long long)r->options.maxfail, (long long)r->added, of);
    report_line(r, line);
  }
  console_summary(&r->text, &r->totals, r->added, r->options.device);
}

/* A file that cannot be written is bad input, and hides no failure. */
static int exit_code(const report *r, bool files_written) {
  const int64_t *v = r->totals.verdicts;
  if (bad_cases(r) + r->totals.unclaimed + r->totals.weak > 0) return 1;
  if (!files_written) return 2;
  if (v[VERDICT_PASS] + v[VERDICT_REFUSED] + r->totals.expected > 0) return 0;
  return r->added == 0 && r->options.device != NULL && r->options.info == NULL ? 77 : 3;
}

int report_close(report *r, assay_error *error) {
  r->totals.seconds = 1e-3 * (device_now_ms() - r->started_ms);
  r->totals.stopped = report_is_stopped(r);
  print_end(r);
  if (r->jsonl.stream != NULL && !ferror(r->jsonl.stream)) file_jsonl_end(r->jsonl.stream, &r->totals, r->added);
  const assay_status lines = text_close(&r->jsonl, error), units = junit_close(r->junit, r->totals.seconds, error);
  const int code = exit_code(r, lines == ASSAY_OK && units == ASSAY_OK);
  free_report(r);
  return code;
}

void report_abandon(report *r) {
  r->totals.seconds = 1e-3 * (device_now_ms() - r->started_ms);
  print_end(r);
  junit_discard(r->junit);
  text_keep(&r->jsonl);
  free_report(r);
}
