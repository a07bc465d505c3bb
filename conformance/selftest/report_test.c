/* report_test.c: escapes, files that appear whole, what a run prints, and the exit code. */
#include <criterion/criterion.h>
#include <math.h>
#include <sys/stat.h>
#include <unistd.h>

#include "conformance/report/console.h"
#include "conformance/report/replay.h"
#include "conformance/report/run_report.h"
#include "conformance/text/print.h"
#include "fake.h"

static char text[1 << 16];

static const char *written(void (*write)(FILE *, const char *), const char *value) {
  FILE *to = fmemopen(text, sizeof text, "w");
  write(to, value);
  (void)fclose(to);
  return text;
}

Test(report, escapes) {
  cr_expect_str_eq(written(text_json, "a\"b\\c\nd\x01\x7F"), "\"a\\\"b\\\\c\\nd\\u0001\\u007f\"");
  cr_expect_str_eq(written(text_json, "σ \xFF|\xC0\xAF|\xED\xA0\x80"),
                   "\"σ \xEF\xBF\xBD|\xEF\xBF\xBD\xEF\xBF\xBD|\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD\"");
  cr_expect_str_eq(written(text_json, "cut \xE2\x82"), "\"cut \xEF\xBF\xBD\xEF\xBF\xBD\"");
  cr_expect_str_eq(written(text_xml, "<a & 'b' \"c\">\n\x02"),
                   "&lt;a &amp; &apos;b&apos; &quot;c&quot;&gt;&#10;\xEF\xBF\xBD");
  cr_expect_str_eq(written(text_shell, "it's"), "'it'\\''s'");
}

Test(report, numbers) {
  FILE *to = fmemopen(text, sizeof text, "w");
  text_json_number(to, NAN);
  text_json_number(to, INFINITY);
  text_json_number(to, 0.5);
  (void)fputc(' ', to);
  text_count(to, 0), (void)fputc(' ', to), text_count(to, 999), (void)fputc(' ', to);
  text_count(to, 4812), (void)fputc(' ', to), text_count(to, 1234567);
  (void)fclose(to);
  cr_expect_str_eq(text, "nullnull0.5 0 999 4,812 1,234,567");
}

static const assay_device_info info = {.name = "fake \"device\"", .multiprocessors = 2};

/* One run of the report over the given verdicts; the text is left in `text`. */
static int close_code(const verdict *verdicts, int count, const char *jsonl, const char *junit) {
  assay_error error = {""};
  report *r = NULL;
  FILE *to = fmemopen(text, sizeof text, "w");
  const report_options options = {
      .text = to, .jsonl = jsonl, .junit = junit, .device = "simt", .info = &info, .total = count};
  fake_register();
  cr_assert_eq(report_open(&options, &r, &error), ASSAY_OK, "%s", error.text);
  for (int i = 0; i < count; ++i) {
    assay_case one = fake_case(TIER_EXACT);
    one.seed = (uint64_t)i;
    case_result result = {.verdict = verdicts[i], .ratio_element = INFINITY, .laws = "guard,input"};
    (void)snprintf(result.check, sizeof result.check, "element");
    (void)snprintf(result.message, sizeof result.message, "got \"<nan>\"\tand \x03 it's & bad");
    report_add(r, &one, &result);
    case_free(&one);
  }
  const int code = report_close(r, &error);
  (void)fclose(to);
  return code;
}

Test(report, exit_codes) {
  const verdict good[] = {VERDICT_PASS, VERDICT_REFUSED, VERDICT_UNSUPPORTED};
  cr_expect_eq(close_code(good, 3, NULL, NULL), 0);
  cr_expect_eq(close_code(good + 2, 1, NULL, NULL), 3, "nothing but unsupported is nothing");
  cr_expect_eq(close_code(good, 0, NULL, NULL), 3);
  const verdict bad[] = {VERDICT_FAIL, VERDICT_HANG, VERDICT_CRASH, VERDICT_WEAK};
  for (int i = 0; i < 4; ++i) {
    const verdict both[] = {VERDICT_PASS, bad[i]};
    cr_expect_eq(close_code(both, 2, NULL, NULL), 1);
    cr_expect_not_null(strstr(text, "assay replay '"), "%s", text);
    cr_expect_not_null(strstr(text, verdict_name(bad[i])), "%s", text);
  }
}

Test(report, no_device_is_77) {
  assay_error error = {""};
  report *r = NULL;
  const report_options options = {.device = "cuda"};
  cr_assert_eq(report_open(&options, &r, &error), ASSAY_OK);
  cr_expect_eq(report_close(r, &error), 77);
}

Test(report, what_nothing_confirmed_is_a_failure) {
  for (int what = 0; what < 3; ++what) {
    assay_error error = {""};
    report *r = NULL;
    const report_options options = {.device = "simt", .info = &info};
    cr_assert_eq(report_open(&options, &r, &error), ASSAY_OK);
    if (what == 0) report_unclaimed(r, "fake_gate/sum", "f32|e4m3|nhd|decode");
    if (what == 1) report_unasked(r, "fake_gate", "fake_gate on simt: law pages");
    if (what == 2) report_untaken(r, "fake_gate", "sum");
    cr_expect_eq(report_close(r, &error), 1, "%d", what);
  }
}

Test(report, summary) {
  const verdict v[] = {VERDICT_PASS, VERDICT_PASS, VERDICT_FAIL};
  (void)close_code(v, 3, NULL, NULL);
  cr_expect_not_null(strstr(text, "2 PASS, 1 FAIL, 0 HANG, 0 CRASH, 0 REFUSED, 0 UNSUPPORTED, 0 WEAK in "), "%s", text);
  cr_expect_not_null(strstr(text, " cases/s) on simt\n"), "%s", text);
}

/* ---- the text ---------------------------------------------------------------------------------------- */

/* One result of a run that is described by a few words. */
typedef struct said {
  verdict verdict;
  const char *check, *kind, *message;
} said;

static int64_t occurrences(const char *in, const char *what) {
  int64_t count = 0;
  for (const char *at = in; (at = strstr(at, what)) != NULL; at += strlen(what))
    ++count;
  return count;
}

/* A run of these results; its text is left in `text`. */
static int run_of(const said *list, int count, report_options options) {
  assay_error error = {""};
  report *r = NULL;
  FILE *to = fmemopen(text, sizeof text, "w");
  options.text = to;
  options.device = "simt";
  options.info = &info;
  fake_register();
  cr_assert_eq(report_open(&options, &r, &error), ASSAY_OK, "%s", error.text);
  for (int i = 0; i < count; ++i) {
    assay_case one = fake_case(TIER_EXACT);
    one.seed = (uint64_t)i;
    case_result result = {.verdict = list[i].verdict};
    (void)snprintf(result.check, sizeof result.check, "%s", list[i].check);
    (void)snprintf(result.kind, sizeof result.kind, "%s", list[i].kind);
    (void)snprintf(result.message, sizeof result.message, "%s", list[i].message);
    report_add(r, &one, &result);
    case_free(&one);
  }
  const int code = report_close(r, &error);
  (void)fclose(to);
  return code;
}

static const said failures[] = {
    {VERDICT_FAIL, "element", "value", "a"}, {VERDICT_FAIL, "element", "value", "b"},
    {VERDICT_FAIL, "element", "nan", "c"},   {VERDICT_FAIL, "element", "value", "d"},
    {VERDICT_FAIL, "row", "value", "e"},     {VERDICT_PASS, "", "", ""},
};

Test(report, failures_that_are_alike_are_printed_once) {
  cr_expect_eq(run_of(failures, 6, (report_options){.total = 6}), 1);
  cr_expect_eq(occurrences(text, "  assay replay '"), 3, "%s", text);
  cr_expect_eq(occurrences(text, "more like it"), 1, "%s", text);
  cr_expect_not_null(strstr(text, ": element: and 2 more like it\n    --all prints each"), "%s", text);
  cr_expect_not_null(strstr(text, ": element: a\n"), "the first of a kind: %s", text);
  cr_expect_null(strstr(text, ": element: b\n"), "%s", text);
  cr_expect_not_null(strstr(text, "1 PASS, 5 FAIL, "), "all are counted: %s", text);
  cr_expect_eq(run_of(failures, 6, (report_options){.total = 6, .all = true}), 1);
  cr_expect_eq(occurrences(text, "  assay replay '"), 5, "%s", text);
  cr_expect_eq(occurrences(text, "more like it"), 0, "%s", text);
}

Test(report, a_run_ends_after_so_many_failures) {
  cr_expect_eq(run_of(failures, 6, (report_options){.total = 6, .maxfail = 3}), 1);
  cr_expect_not_null(strstr(text, "stopped by --maxfail 3 after 3 of 6 cases: the others were not run"), "%s", text);
  cr_expect_not_null(strstr(text, "0 PASS, 3 FAIL, "), "%s", text);
  cr_expect_eq(run_of(failures, 6, (report_options){.total = 6, .maxfail = 6}), 1);
  cr_expect_null(strstr(text, "stopped"), "%s", text);
  cr_expect_eq(run_of(failures, 5, (report_options){.total = 5, .maxfail = 5}), 1);
  cr_expect_null(strstr(text, "stopped"), "the last case was the last failure: %s", text);
}

Test(report, unsupported_is_summed_by_reason) {
  static said list[64];
  static char message[64][64];
  for (int i = 0; i < 64; ++i) {
    (void)snprintf(message[i], sizeof message[i], i < 40 ? "D: found %d, allowed 64 for bf16" : "reason %c",
                   i < 40 ? i : 'a' + i % 24);
    list[i] = (said){VERDICT_UNSUPPORTED, "", "", message[i]};
  }
  cr_expect_eq(run_of(list, 64, (report_options){.total = 64}), 3);
  cr_expect_not_null(strstr(text, "UNSUPPORTED by reason:\n"), "%s", text);
  cr_expect_not_null(strstr(text, "          40  fake_gate/sum  D: found N, allowed N for bf16\n"), "%s", text);
  cr_expect_eq(occurrences(text, "fake_gate/sum"), 8, "short in a pipe: %s", text);
  cr_expect_not_null(strstr(text, "          17  for 17 other reasons (--all prints them)\n"), "%s", text);
  (void)run_of(list, 64, (report_options){.total = 64, .all = true});
  cr_expect_eq(occurrences(text, "fake_gate/sum"), 25, "%s", text);
  cr_expect_null(strstr(text, "other reasons"), "%s", text);
}

Test(report, colours_are_asked_for) {
  (void)run_of(failures, 6, (report_options){.total = 6});
  cr_expect_null(strchr(text, '\033'), "%s", text);
  (void)run_of(failures, 6, (report_options){.total = 6, .colour = true});
  cr_expect_not_null(strstr(text, "\033[1;31mFAIL\033[0m fake_gate/sum"), "%s", text);
  cr_expect_not_null(strstr(text, "\033[32m1 PASS\033[0m, \033[1;31m5 FAIL\033[0m, 0 HANG"), "%s", text);
  cr_expect_eq(occurrences(text, "\n  \033[2massay replay '"), 3, "%s", text);
  cr_expect_eq(occurrences(text, "'\033[0m\n"), 3, "%s", text);
  const said weak = {VERDICT_WEAK, "admission", "", "off the lattice"};
  (void)run_of(&weak, 1, (report_options){.total = 1, .colour = true});
  cr_expect_not_null(strstr(text, "\033[1;33mWEAK\033[0m fake_gate/sum"), "%s", text);
  cr_expect_not_null(strstr(text, ", \033[1;33m1 WEAK\033[0m in "), "%s", text);
}

static const char *progress_of(const console_state *state, double seconds) {
  console c;
  FILE *to = fmemopen(text, sizeof text, "w");
  const report_options options = {.text = to, .progress = true};
  console_open(&c, &options);
  c.started_ms -= 1e3 * seconds;
  console_progress(&c, state);
  console_free(&c);
  (void)fclose(to);
  return text;
}

Test(report, progress_says_how_long_it_will_take) {
  const console_state count = {.done = 25, .total = 100}, work = {.done = 25, .total = 100, .work = 8, .work_done = 4},
                      resumed = {.done = 75, .total = 100, .past = 50}, open = {.done = 25};
  cr_expect_not_null(strstr(progress_of(&count, 100), "25 of 100 cases, 0 failed, "), "%s", text);
  cr_expect_not_null(strstr(progress_of(&count, 100), ", about 5 min 0 s left"), "%s", text);
  cr_expect_not_null(strstr(progress_of(&work, 100), ", about 1 min 40 s left"), "%s", text);
  cr_expect_not_null(strstr(progress_of(&resumed, 30), ", about 30 s left"), "%s", text);
  cr_expect_not_null(strstr(progress_of(&resumed, 30), "75 of 100 cases, 0 failed, 0.8 cases/s"), "%s", text);
  cr_expect_null(strstr(progress_of(&open, 100), "left"), "%s", text);
  cr_expect_null(strstr(progress_of(&count, 0.5), "left"), "too early to say: %s", text);
}

Test(report, a_weak_verdict_is_explained) {
  const said weak[] = {{VERDICT_WEAK, "admission", "", "off the lattice"}, {VERDICT_PASS, "", "", ""}};
  (void)run_of(weak, 2, (report_options){.total = 2});
  cr_expect_not_null(strstr(text, "WEAK: the case could not be judged"), "%s", text);
  (void)run_of(weak + 1, 1, (report_options){.total = 1});
  cr_expect_null(strstr(text, "could not be judged"), "%s", text);
}

Test(report, a_replay_line_has_what_it_needs) {
  replay again = {.descriptor = "op it's",
                  .op = "op",
                  .variant = "v",
                  .device = "simt",
                  .suite = "s",
                  .name = "n",
                  .check = "element",
                  .verdict = VERDICT_FAIL,
                  .plugins = "./a b.so\n./c.so\n",
                  .forced = "x=y\n",
                  .deadline_s = 2.5};
  const struct {
    const char *op, *check;
    verdict verdict;
    const char *line;
  } expected[] = {
      {"op", "element", VERDICT_FAIL, "assay replay 'op it'\\''s' --plugin './a b.so' --plugin './c.so'"},
      {"op", "hang", VERDICT_HANG, "assay replay 'op it'\\''s' --plugin './a b.so' --plugin './c.so' --deadline 2.5"},
      {"op", "power", VERDICT_WEAK, "assay replay 'op it'\\''s' --plugin './a b.so' --plugin './c.so' --power all"},
      {"model", "element", VERDICT_FAIL,
       "assay run conformance/suites/s.yaml --device simt --filter n/v --variant 'x=y' --plugin './a b.so' --plugin "
       "'./c.so'"}};
  for (size_t i = 0; i < sizeof expected / sizeof *expected; ++i) {
    again.op = expected[i].op;
    again.check = expected[i].check;
    again.verdict = expected[i].verdict;
    char *line = replay_text(&again);
    cr_assert_not_null(line);
    cr_expect_str_eq(line, expected[i].line);
    free(line);
  }
}

/* ---- files ------------------------------------------------------------------------------------------- */

static char *slurp(const char *path) {
  FILE *from = fopen(path, "rb");
  cr_assert_not_null(from, "%s", path);
  char *all = calloc(1, 1 << 20);
  (void)fread(all, 1, (1 << 20) - 1, from);
  (void)fclose(from);
  return all;
}

/* Balanced outside of strings, and no control character: enough to see a broken escape. */
static void look_at_json_line(const char *line, size_t size) {
  int depth = 0;
  bool quoted = false;
  for (size_t i = 0; i < size; ++i) {
    const char c = line[i];
    cr_assert_geq((unsigned char)c, 0x20, "control character in %.*s", (int)size, line);
    if (quoted && c == '\\')
      ++i;
    else if (c == '"')
      quoted = !quoted;
    else if (!quoted && (c == '{' || c == '['))
      ++depth;
    else if (!quoted && (c == '}' || c == ']'))
      --depth;
    cr_assert(depth > 0 || i == size - 1);
  }
  cr_assert(!quoted && depth == 0, "%.*s", (int)size, line);
}

Test(report, files_appear_whole) {
  char folder[] = "/tmp/assay-report-XXXXXX", jsonl[128], junit[128];
  cr_assert_not_null(mkdtemp(folder));
  (void)snprintf(jsonl, sizeof jsonl, "%s/r.jsonl", folder);
  (void)snprintf(junit, sizeof junit, "%s/r.xml", folder);
  verdict v[60];
  for (int i = 0; i < 60; ++i)
    v[i] = (verdict)(i % (VERDICT_WEAK + 1));
  cr_expect_eq(close_code(v, 60, jsonl, junit), 1);

  char *all = slurp(jsonl);
  int lines = 0;
  for (char *line = all, *end; (end = strchr(line, '\n')) != NULL; line = end + 1, ++lines)
    look_at_json_line(line, (size_t)(end - line));
  cr_expect_eq(lines, 62);
  cr_expect_eq(strncmp(all, "{\"assay\":\"", 10), 0);
  cr_expect_not_null(strstr(all, "\"verdict\":\"CRASH\""));
  cr_expect_not_null(strstr(all, "\"ratio_element\":null"));
  cr_expect_not_null(strstr(all, "\"laws\":[\"guard\",\"input\"]"));
  free(all);

  all = slurp(junit);
  cr_expect_not_null(strstr(all, "tests=\"60\" failures=\"13\" errors=\"28\" skipped=\"6\""), "%.200s", all);
  cr_expect_not_null(strstr(all, "</testsuite>\n</testsuites>\n"));
  int opened = 0, closed = 0;
  for (const char *at = all; (at = strstr(at, "<testcase ")) != NULL; ++at)
    ++opened;
  for (const char *at = all; (at = strstr(at, "</testcase>")) != NULL; ++at)
    ++closed;
  cr_expect_eq(opened, 60);
  cr_expect_eq(closed, 60);
  for (const char *at = all; *at != '\0'; ++at)
    cr_assert(*at == '\n' || (unsigned char)*at >= 0x20);
  free(all);
  (void)remove(jsonl);
  (void)remove(junit);
  cr_expect_eq(rmdir(folder), 0, "nothing else was left in the folder");
}

/* Returns the value of an attribute after `from`, as a number. */
static long attribute(const char *from, const char *name) {
  char key[40];
  (void)snprintf(key, sizeof key, " %s=\"", name);
  const char *at = strstr(from, key);
  cr_assert_not_null(at, "%s", name);
  return strtol(at + strlen(key), NULL, 10);
}

/* Suites that take turns, as those of drawn cases do: each is one element with counts of its own. */
Test(report, a_testsuite_for_each_suite) {
  assay_error error = {""};
  report *r = NULL;
  char path[] = "/tmp/assay-junit-XXXXXX";
  const int fd = mkstemp(path);
  cr_assert_geq(fd, 0);
  (void)close(fd);
  fake_register();
  const report_options options = {.junit = path, .device = "simt", .info = &info, .total = 9};
  cr_assert_eq(report_open(&options, &r, &error), ASSAY_OK, "%s", error.text);
  for (int i = 0; i < 9; ++i) {
    static const verdict turn[] = {VERDICT_PASS, VERDICT_FAIL, VERDICT_UNSUPPORTED, VERDICT_CRASH};
    assay_case one = fake_case(TIER_EXACT);
    (void)snprintf(one.suite, sizeof one.suite, "%s", i % 2 == 0 ? "even<" : "odd");
    case_result result = {.verdict = turn[i % 4], .run_ms = 500};
    report_add(r, &one, &result);
    case_free(&one);
  }
  report_weak(r, "odd", "spoil", "is not seen");
  report_unclaimed(r, "fake_gate/sum", "f32");
  cr_expect_eq(report_close(r, &error), 1);
  char *all = slurp(path);
  const char *even = strstr(all, "<testsuite name=\"even&lt;\""), *odd = strstr(all, "<testsuite name=\"odd\""),
             *claims = strstr(all, "<testsuite name=\"claims\"");
  cr_assert(even != NULL && odd != NULL && claims != NULL, "%s", all);
  cr_expect_eq(occurrences(all, "<testsuite "), 3);
  cr_expect_eq(occurrences(all, "</testsuite>"), 3);
  static const char *const key[] = {"tests", "failures", "errors", "skipped"};
  static const long of[4][4] = {{11, 4, 2, 2}, {5, 0, 0, 2}, {5, 3, 2, 0}, {1, 1, 0, 0}};
  const char *const at[4] = {strstr(all, "<testsuites "), even, odd, claims};
  for (int s = 0; s < 4; ++s)
    for (int k = 0; k < 4; ++k)
      cr_expect_eq(attribute(at[s], key[k]), of[s][k], "%s of suite %d: %s", key[k], s, all);
  cr_expect_not_null(strstr(even, " time=\"2.500\" timestamp=\"20"));
  /* Each case stands in the element of its suite. */
  const char *const end_of[2] = {strstr(even, "</testsuite>"), strstr(odd, "</testsuite>")};
  cr_expect_eq(occurrences(all, " name=\"even&lt;/check/"), 5, "%s", all);
  cr_expect_eq(occurrences(all, " name=\"odd/check/"), 4, "%s", all);
  for (const char *c = all; (c = strstr(c, " name=\"even&lt;/check/")) != NULL; ++c)
    cr_expect(c > even && c < end_of[0], "%s", all);
  for (const char *c = all; (c = strstr(c, " name=\"odd/check/")) != NULL; ++c)
    cr_expect(c > odd && c < end_of[1], "%s", all);
  char host[256] = "", said_host[300];
  cr_assert_eq(gethostname(host, sizeof host - 1), 0);
  (void)snprintf(said_host, sizeof said_host, " hostname=\"%s\">", host);
  cr_expect_eq(occurrences(all, said_host), 3);
  cr_expect_lt(attribute(even, "timestamp"), 3000);
  cr_expect_eq(even[strcspn(even, "T")], 'T');
  free(all);
  (void)remove(path);
}

Test(report, a_place_that_cannot_be_written) {
  assay_error error = {""};
  report *r = NULL;
  const report_options options = {.jsonl = "/nonexistent/r.jsonl", .device = "simt", .info = &info};
  cr_expect_eq(report_open(&options, &r, &error), ASSAY_ERR_IO);
  cr_expect_not_null(strstr(error.text, "/nonexistent/r.jsonl"), "%s", error.text);
}

Test(report, a_full_disk_is_reported) {
  text_file file;
  assay_error error = {""};
  char path[] = "/tmp/assay-full-XXXXXX";
  const int fd = mkstemp(path);
  cr_assert_geq(fd, 0);
  (void)close(fd);
  cr_assert_eq(text_open(&file, path, &error), ASSAY_OK);
  FILE *full = freopen("/dev/full", "w", file.stream);
  if (full == NULL) cr_skip_test("no /dev/full");
  for (int i = 0; i < 100000; ++i)
    (void)fputs("a line\n", file.stream);
  cr_expect_eq(text_close(&file, &error), ASSAY_ERR_IO);
  cr_expect_not_null(strstr(error.text, path), "%s", error.text);
  (void)remove(path);
}
