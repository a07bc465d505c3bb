/* report.c: assay report RUN.jsonl… -o report.html: one page and one verdict over all files of a campaign. */
#include <signal.h>
#include <stdio.h>

#include "bench/page.h"
#include "cli.h"
#include "conformance/report/report.h"
#include "conformance/text/text.h"
#include "core/registry.h"

/* The gaps that keep the files from being whole runs. They are asked once: two answers might differ. */
typedef struct missing {
  int32_t count;
  char text[1 << 16];
} missing;

/* Says which runs were given twice, which cases were run twice, and which verdicts are not known here. */
static void print_repeated(const results *r) {
  for (int64_t i = 0; i < r->copy_count; ++i)
    printf("%s: the same run as in %s: counts once\n", text_shown(r->copies[i].file), text_shown(r->copies[i].of));
  for (int64_t i = 0; i < r->run_count; ++i)
    for (int64_t j = 0; j < i; ++j) {
      const results_run *run = &r->runs[i], *first = &r->runs[j];
      if (run->plan[0] == '\0' || run->shard[0] != '\0' || run->plan != first->plan || run->shard != first->shard ||
          run->seed != first->seed || run->device != first->device)
        continue;
      printf("%s: the cases of %s, run again: they count twice\n", text_shown(run->file), text_shown(first->file));
      break;
    }
  if (r->strange > 0)
    printf("%lld cases have a verdict that is not known here, such as '%s': they count as FAIL\n",
           (long long)r->strange, text_shown(r->strange_names));
}

/* 0, 1, 3: as for a run. */
static int summary(const results *r, const results_groups *g, const missing *gap) {
  static char text[1 << 16];
  const int32_t gaps = gap->count;
  int64_t bad = r->note_count;
  print_repeated(r);
  if (gaps > 0) printf("%s\nplanted errors are not judged: these files are no whole run\n", gap->text);
  const int64_t unclaimed = groups_unclaimed(r, g, text, sizeof text);
  if (unclaimed > 0) printf("claims without a PASS:\n%s\n", text);
  for (int v = 0; v <= VERDICT_WEAK; ++v) {
    const int64_t count = results_count(r, (verdict)v);
    if (count == 0 && verdict_is_rare((verdict)v)) continue;
    printf("%s%lld %s", v > 0 ? ", " : "", (long long)count, verdict_name((verdict)v));
  }
  for (int64_t i = 0; i < r->case_count; ++i)
    bad += !results_good(&r->cases[i]);
  for (int64_t i = 0; i < r->mutant_count; ++i)
    bad += !r->mutants[i].good;
  if (r->mutant_count > 0) printf(", %lld mutants", (long long)r->mutant_count);
  printf("; %lld files of runs, %d gaps, %lld claims without a PASS\n", (long long)r->run_count, gaps,
         (long long)unclaimed);
  if (bad + gaps + unclaimed > 0) return EXIT_BAD;
  return results_count(r, VERDICT_PASS) + results_count(r, VERDICT_REFUSED) + r->mutant_count > 0 ? EXIT_GOOD
                                                                                                  : EXIT_NOTHING;
}

/* Prints what a run says of planted errors, for all files together. Prints nothing if the files have gaps. */
static assay_status power(results *all, const missing *gap, assay_error *error) {
  report *out = NULL;
  const report_options options = {.text = stdout};
  if (gap->count > 0) return ASSAY_OK;
  assay_status status = report_open(&options, &out, error);
  if (status != ASSAY_OK) return status;
  status = results_power_join(all, out, error);
  report_print(out, false);
  (void)report_close(out, error);
  return status;
}

assay_status cli_write_page(const char *jsonl, const char *html, assay_error *error) {
  results all = {0};
  assay_status status = results_read(jsonl, &all, error);
  if (status == ASSAY_OK) status = report_html_write(&all, html, error);
  results_free(&all);
  return status;
}

int cli_report_command(int argc, char **argv) {
  int code = EXIT_BAD;
  assay_error error = {""};
  cli_options options;
  results all = {0};
  results_groups groups = {0};
  static missing gap;
  (void)signal(SIGXFSZ, SIG_IGN); /* a file that may not grow is a failed write */
  assay_status status = cli_parse(argc, argv, "report", &options, &error);
  const char *page = options.output != NULL ? options.output : "report.html";
  if (status == ASSAY_OK && options.words.count == 0)
    status = assay_fail(&error, ASSAY_ERR_INPUT, "report: needs at least one file of results (run --jsonl)");
  if (status == ASSAY_OK) status = cli_load_plugins(&options, &error);
  if (status == ASSAY_OK && page_is_bench(options.words.item[0])) { /* files of assay bench have a page of their own */
    status = page_write(options.words.item, options.words.count, page, &error);
    if (status != ASSAY_OK) return cli_leave(status, &error);
    printf("%s: page of assay bench, %d files\n", page, options.words.count);
    return EXIT_GOOD;
  }
  for (int32_t i = 0; i < options.words.count && status == ASSAY_OK; ++i)
    status = results_read(options.words.item[i], &all, &error);
  if (status == ASSAY_OK) status = groups_make(&all, &groups, &error);
  if (status == ASSAY_OK) gap.count = groups_gaps(&all, gap.text, sizeof gap.text);
  if (status == ASSAY_OK && gap.count < 0) status = assay_fail(&error, ASSAY_ERR_MEMORY, "report: out of memory");
  if (status == ASSAY_OK) status = power(&all, &gap, &error);
  if (status == ASSAY_OK) status = report_html_write(&all, page, &error);
  code = status == ASSAY_OK ? summary(&all, &groups, &gap) : cli_leave(status, &error);
  if (status == ASSAY_ERR_MEMORY) code = EXIT_INPUT; /* no answer is better than a shorter one */
  groups_free(&groups);
  results_free(&all);
  return code;
}
