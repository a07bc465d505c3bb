/* results_plain_test.c: results of operators whose claims have other axes than attention's, and no lengths. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "conformance/run/campaign.h"
#include "conformance/report/compare.h"
#include "conformance/report/html.h"
#include "conformance/report/results_group.h"
#include "fake_plain.h"

static const char header[] = "{\"assay\":\"0\",\"device\":\"simt\",\"device_name\":\"simt\",\"commit\":\"c\","
                             "\"seed\":1,\"cases\":4,\"whole\":true%s}\n";

static const char *header_plugins = "", *verdict_of_lines = "PASS";

static void read_lines(const char *const *line, int count, results *r) {
  char path[] = "/tmp/assay-results-XXXXXX";
  assay_error error = {""};
  const int file = mkstemp(path);
  cr_assert_geq(file, 0);
  FILE *to = fdopen(file, "w");
  (void)fprintf(to, header, header_plugins);
  for (int i = 0; i < count; ++i)
    (void)fprintf(to,
                  "{\"case\":\"%s\",\"op\":\"fake_mix\",\"variant\":\"loops\",\"device\":\"simt\",\"suite\":"
                  "\"fake_mix\",\"section\":\"check\",\"name\":\"n\",\"tier\":\"calibrated\",\"verdict\":\"%s\","
                  "\"ratio_element\":0.%d,\"ratio_row\":0.1,\"ratio_request\":0.2,\"seed\":%d}\n",
                  line[i], verdict_of_lines, i + 1, i);
  (void)fprintf(to, "{\"end\":%d,\"seconds\":1}\n", count);
  cr_assert_eq(fclose(to), 0);
  *r = (results){NULL};
  cr_assert_eq(results_read(path, r, &error), ASSAY_OK, "%s", error.text);
  (void)unlink(path);
}

/* A page of what was read. */
static const char *page_of(const results *r) {
  static char page[1 << 18];
  char path[] = "/tmp/assay-page-XXXXXX";
  assay_error error = {""};
  const int file = mkstemp(path);
  cr_assert_geq(file, 0);
  cr_assert_eq(report_html_write(r, path, &error), ASSAY_OK, "%s", error.text);
  FILE *from = fopen(path, "r");
  cr_assert_not_null(from);
  page[fread(page, 1, sizeof page - 1, from)] = '\0';
  (void)fclose(from);
  (void)unlink(path);
  (void)close(file);
  return page;
}

static const char *const lines[] = {
    "fake_mix suite=fake_mix section=check name=n variant=loops device=simt tier=calibrated dtype=f32 values=normal "
    "N=6 C=16 M=5 seed=0x1",
    "fake_mix suite=fake_mix section=check name=n variant=loops device=simt tier=calibrated dtype=f32 values=normal "
    "N=6 C=16 M=5 y_out=true seed=0x2",
    "fake_mix suite=fake_mix section=check name=n variant=loops device=simt tier=calibrated dtype=f16 values=normal "
    "N=1 C=4 M=1 y_out=true top=true seed=0x3",
    "fake_mix suite=fake_mix section=check name=n variant=loops device=simt tier=calibrated dtype=bf16 values=normal "
    "N=64 C=64 M=1 seed=0x4",
};

Test(results_plain, axes_and_sizes_by_the_operator) {
  results r;
  results_groups g;
  assay_error error = {""};
  char text[1024];
  plain_register();
  read_lines(lines, 4, &r);
  cr_assert_eq(r.case_count, 4);
  cr_expect_str_eq(r.cases[0].axis[0], "f32");
  cr_expect_str_eq(r.cases[0].axis[1], "false", "what a descriptor leaves out is at its default");
  cr_expect_str_eq(r.cases[1].axis[1], "true");
  cr_expect_str_eq(r.cases[1].axis[2], "");
  cr_expect_eq(r.cases[0].size, 6 * 16 + 16 + 5 + 5 * 8);
  cr_expect_eq(r.cases[1].size, 2 * 6 * 16 + 16 + 5 + 5 * 8);
  cr_expect_eq(r.cases[2].size, 2 * 4 + 4 + 1 + 2 + 1);
  cr_assert_eq(groups_make(&r, &g, &error), ASSAY_OK, "%s", error.text);
  cr_assert_eq(g.count, 1);
  cr_expect_eq(g.list[0].axes, 2);
  cr_expect_eq(groups_unclaimed(&r, &g, text, sizeof text), 2);
  cr_expect_str_eq(text, "fake_mix/loops on simt: f16 false\nfake_mix/loops on simt: bf16 true");
  groups_free(&g);
  results_free(&r);
}

Test(results_plain, page) {
  results a;
  plain_register();
  read_lines(lines, 4, &a);
  const char *page = page_of(&a);
  cr_expect_not_null(strstr(page, "elements of the case"));
  cr_expect_null(strstr(page, "longest kv_len of the case"));
  cr_expect_null(strstr(page, "requests with kv_len"));
  cr_expect_not_null(strstr(page, "<th>dtype</th><th>y_out</th><th colspan=\"1\">PASS</th>"));
  cr_expect_not_null(strstr(page, "6 combinations claimed, 2 without a PASS"));
  /* The page has the search bar, with each verdict, and the script that fills it. report.browser uses both. */
  const char *bar = strstr(page, "<form id=\"find\""), *script = strstr(page, "<script>");
  cr_assert(bar != NULL && script != NULL);
  cr_expect_not_null(strstr(bar, "<input id=\"find-text\" type=\"search\""));
  cr_expect_not_null(
      strstr(bar, "<option value=\"\">every verdict</option><option>PASS</option><option>FAIL</option>"));
  cr_expect_not_null(strstr(bar, "<option>WEAK</option></select><output id=\"find-count\">"));
  static const char *const used[] = {"getElementById('find-text')",
                                     "getElementById('find-verdict')",
                                     "words.every(function(w){return text[i].indexOf(w)>=0})",
                                     "b.hidden=!ok",
                                     "q.addEventListener('input',show)",
                                     "v.addEventListener('change',show)"};
  for (size_t i = 0; i < sizeof used / sizeof *used; ++i)
    cr_expect_not_null(strstr(script, used[i]), "%s", used[i]);
  cr_expect_not_null(strstr(page, " class=\"stack rows\">"), "the script looks for rows in such tables");
  results_free(&a);
}

/* Failures that are alike are one row, which leads to its variant, and its variant to it. */
Test(results_plain, page_of_failures) {
  results a;
  plain_register();
  header_plugins = ",\"plugins\":{\"fake_mix/loops\":\"./my loops.so\"}";
  verdict_of_lines = "FAIL";
  read_lines(lines, 4, &a);
  header_plugins = "";
  verdict_of_lines = "PASS";
  const char *page = page_of(&a);
  cr_expect_not_null(strstr(page, "4 in all, of 1 kinds"));
  const char *row = strstr(page, "<tbody id=\"f0\" data-v=\"FAIL\">"), *other = strstr(page, "<tbody id=\"f1\"");
  cr_assert_not_null(row);
  cr_expect_null(other);
  cr_expect_not_null(strstr(row, "<a href=\"#v0\">fake_mix/loops on simt</a>"));
  cr_expect_not_null(strstr(row, "seed=0x1&apos; --plugin &apos;./my loops.so&apos;</code><details><summary>and 3 more "
                                 "like it</summary>"));
  row = strstr(page, "<tbody id=\"v0\" data-v=\"FAIL \">");
  cr_assert_not_null(row);
  cr_expect_not_null(strstr(row, "<td class=\"n bad\"><a href=\"#f0\">4</a></td>"));
  results_free(&a);
}

Test(results_plain, comparison) {
  results a, b;
  comparison c;
  assay_error error = {""};
  plain_register();
  read_lines(lines, 4, &a);
  read_lines(lines, 3, &b);
  cr_assert_eq(compare_make(&a, &b, &c, &error), ASSAY_OK, "%s", error.text);
  compare_free(&c);
  results_free(&a);
  results_free(&b);
}

/* Shards are balanced by what a case has to move. */
Test(results_plain, large_cases_cost_more) {
  assay_case small = plain_case(lines[2]), large = plain_case(lines[3]);
  cr_expect_geq(campaign_cost(&small), 1.0);
  cr_expect_gt(campaign_cost(&large), 1.3 * campaign_cost(&small));
  case_free(&small);
  case_free(&large);
}
