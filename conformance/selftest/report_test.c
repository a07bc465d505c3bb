/* report_test.c: escapes, files that appear whole, the summary and the exit code. */
#include <criterion/criterion.h>
#include <math.h>
#include <sys/stat.h>
#include <unistd.h>

#include "conformance/report.h"
#include "conformance/report_text.h"
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
    v[i] = (verdict)(i % 7);
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
  cr_expect_not_null(strstr(all, "tests=\"60\" failures=\"17\" errors=\"18\" skipped=\"8\""), "%.200s", all);
  cr_expect_not_null(strstr(all, "</testsuite>\n"));
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
