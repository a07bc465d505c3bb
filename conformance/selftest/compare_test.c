/* compare_test.c: results read back; joins; verdicts of a comparison; shards. */
#include <criterion/criterion.h>
#include <math.h>
#include <unistd.h>

#include "conformance/run/campaign.h"
#include "conformance/report/compare.h"
#include "conformance/report/results_group.h"
#include "fake.h"

enum { CASES = 60 };

static const char *header_more = "", *end_more = ""; /* further keys */

/* A run of CASES cases; ratio and verdict of each by its number. */
static void write_run(char *path, double (*ratio)(int), const char *(*verdict_of)(int)) {
  const int fd = mkstemp(path);
  cr_assert_geq(fd, 0);
  FILE *to = fdopen(fd, "w");
  fprintf(to, "{\"assay\":\"1\",\"device\":\"simt\",\"commit\":\"c\",\"seed\":1,\"cases\":%d,\"whole\":false%s}\n",
          CASES, header_more);
  for (int i = 0; i < CASES; ++i)
    fprintf(
        to,
        "{\"case\":\"op suite=s%d variant=v kv_len=%d,3 seed=%d\",\"op\":\"op\",\"variant\":\"v\",\"device\":\"simt\","
        "\"verdict\":\"%s\",\"check\":\"%s\",\"ratio_element\":%.9g,\"seed\":%d}\n",
        (int)(fd % 2), i, i, verdict_of(i), strcmp(verdict_of(i), "PASS") == 0 ? "" : "element", ratio(i), i);
  fprintf(to, "{\"end\":%d,\"unclaimed\":0,\"seconds\":2%s}\n", CASES, end_more);
  (void)fclose(to);
}

static double plain(int i) {
  return 0.5 + 0.001 * i;
}
static double up(int i) {
  return 1.1 * plain(i);
}
static double down(int i) {
  return plain(i) / 1.1;
}
static double noise(int i) {
  return plain(i) * (i % 2 != 0 ? 1.05 : 0.95);
}
static const char *pass(int i) {
  return (void)i, "PASS";
}
static const char *one_fails(int i) {
  return i == 7 ? "FAIL" : "PASS";
}

static const char *melts(int i) {
  return i == 7 ? "MELT" : "PASS";
}

static compare_group compared(double (*a)(int), const char *(*va)(int), double (*b)(int), const char *(*vb)(int)) {
  char x[] = "/tmp/assay-compare-XXXXXX", y[] = "/tmp/assay-compare-XXXXXX";
  assay_error error = {""};
  results first = {0}, second = {0};
  comparison c;
  write_run(x, a, va);
  write_run(y, b, vb);
  cr_assert_eq(results_read(x, &first, &error), ASSAY_OK, "%s", error.text);
  cr_assert_eq(results_read(y, &second, &error), ASSAY_OK, "%s", error.text);
  cr_assert_eq(compare_make(&first, &second, &c, &error), ASSAY_OK);
  cr_assert_eq(c.group_count, 1);
  const compare_group g = c.groups[0];
  cr_expect_eq(g.joined, CASES);
  compare_free(&c);
  results_free(&first);
  results_free(&second);
  (void)unlink(x);
  (void)unlink(y);
  return g;
}

Test(compare, verdicts) {
  cr_expect_eq(compared(plain, pass, plain, pass).verdict, COMPARE_SAME);
  cr_expect_eq(compared(plain, pass, noise, pass).verdict, COMPARE_SAME);
  cr_expect_eq(compared(plain, pass, up, pass).verdict, COMPARE_WORSE);
  cr_expect_eq(compared(plain, pass, down, pass).verdict, COMPARE_BETTER);
  cr_expect_eq(compared(plain, pass, down, one_fails).verdict, COMPARE_WORSE, "a new failure outweighs accuracy");
  cr_expect_eq(compared(plain, pass, plain, one_fails).new_failures, 1);
  cr_expect_eq(compared(plain, one_fails, plain, pass).fixed, 1);
  cr_expect_eq(compared(plain, one_fails, plain, pass).verdict, COMPARE_BETTER);
  cr_expect_float_eq(compared(plain, pass, up, pass).shift, 1.1, 1e-6);
}

/* The command that runs a case again has the plug-in of its variant, as the header of its own run names it. */
Test(compare, replay_lines_have_their_plugin) {
  static char text[1 << 14];
  char x[] = "/tmp/assay-compare-XXXXXX", y[] = "/tmp/assay-compare-XXXXXX";
  assay_error error = {""};
  results first = {0}, second = {0};
  comparison c;
  header_more = ",\"plugins\":{\"op/u\":\"./u.so\",\"op/v\":\"./it's.so\"},\"deadline_s\":3";
  write_run(x, plain, pass);
  write_run(y, down, one_fails);
  header_more = "";
  cr_assert_eq(results_read(x, &first, &error), ASSAY_OK, "%s", error.text);
  cr_assert_eq(results_read(y, &second, &error), ASSAY_OK, "%s", error.text);
  cr_assert_eq(compare_make(&first, &second, &c, &error), ASSAY_OK);
  FILE *to = fmemopen(text, sizeof text, "w");
  compare_print(&c, to);
  (void)fclose(to);
  const char *line = strstr(text, "NEW: PASS -> FAIL: element\n  assay replay 'op suite=");
  cr_assert_not_null(line, "%s", text);
  line = strchr(line, '\n') + 1;
  cr_expect_not_null(strstr(line, " kv_len=7,3 seed=7' --plugin './it'\\''s.so'\n"), "%s", text);
  cr_expect_null(strstr(text, "u.so"), "%s", text);
  line = strstr(text, "largest drifts");
  cr_assert_not_null(line, "%s", text);
  cr_expect_not_null(strstr(line, "  assay replay 'op suite="), "%s", text);
  compare_free(&c);
  results_free(&first);
  results_free(&second);
  (void)unlink(x);
  (void)unlink(y);
}

Test(results, a_run_that_was_stopped_is_not_whole) {
  char path[] = "/tmp/assay-compare-XXXXXX", text[1024];
  assay_error error = {""};
  results r = {0};
  end_more = ",\"stopped\":true";
  write_run(path, plain, one_fails);
  end_more = "";
  cr_assert_eq(results_read(path, &r, &error), ASSAY_OK, "%s", error.text);
  cr_expect_eq(groups_gaps(&r, text, sizeof text), 1);
  cr_expect_not_null(strstr(text, "was stopped by --maxfail: 60 of 60 cases"), "%s", text);
  results_free(&r);
  (void)unlink(path);
}

/* ---- results that are not whole ----------------------------------------------------------------------- */

/* Copies the lines of a file that `keep` takes, `times` times. */
static void copy_lines(const char *from, char *to, bool (*keep)(int64_t number, const char *line), int times) {
  static char line[4096];
  const int fd = mkstemp(to);
  FILE *out = fdopen(fd, "w");
  for (int i = 0; i < times; ++i) {
    FILE *in = fopen(from, "r");
    for (int64_t number = 1; fgets(line, sizeof line, in) != NULL; ++number)
      if (keep(number, line)) (void)fputs(line, out);
    (void)fclose(in);
  }
  (void)fclose(out);
}

static bool no_end(int64_t number, const char *line) {
  return (void)number, strncmp(line, "{\"end\"", 6) != 0;
}
static bool no_tenth(int64_t number, const char *line) {
  return (void)line, number != 11;
}
static bool every(int64_t number, const char *line) {
  return (void)line, number > 0;
}
static bool first_twenty(int64_t number, const char *line) {
  return (void)line, number <= 20;
}

Test(compare, refuses_what_is_not_whole) {
  static const struct {
    bool (*keep)(int64_t number, const char *line);
    const char *says;
  } bad[] = {{no_end, "did not end, it has no end line: 60 of 60 cases"},
             {no_tenth, "lacks 1 cases: it has 59 of 60"},
             {first_twenty, "did not end, it has no end line: 19 of 60 cases"}};
  char whole[] = "/tmp/assay-compare-XXXXXX";
  assay_error error = {""};
  write_run(whole, plain, pass);
  for (size_t i = 0; i < sizeof bad / sizeof *bad; ++i) {
    char part[] = "/tmp/assay-compare-XXXXXX", text[1024];
    results side = {0};
    copy_lines(whole, part, bad[i].keep, 1);
    error.text[0] = '\0';
    cr_assert_eq(results_read(part, &side, &error), ASSAY_OK, "%s", error.text);
    cr_expect_eq(compare_check(&side, "B", &error), ASSAY_ERR_INPUT, "%s: taken", bad[i].says);
    cr_expect_not_null(strstr(error.text, bad[i].says), "wanted %s: %s", bad[i].says, error.text);
    cr_expect_eq(groups_gaps(&side, text, sizeof text), 1, "%s", text);
    cr_expect_not_null(strstr(text, bad[i].says), "wanted %s: %s", bad[i].says, text);
    results_free(&side);
    (void)unlink(part);
  }
  (void)unlink(whole);
}

/* The same run is counted once, in one file as in two, and what is only similar is not the same. */
Test(results, a_run_given_twice_counts_once) {
  char whole[] = "/tmp/assay-compare-XXXXXX", both[] = "/tmp/assay-compare-XXXXXX",
       other[] = "/tmp/assay-compare-XXXXXX";
  assay_error error = {""};
  results r = {0};
  write_run(whole, plain, pass);
  copy_lines(whole, both, every, 2);
  write_run(other, up, pass);
  cr_assert_eq(results_read(both, &r, &error), ASSAY_OK, "%s", error.text);
  cr_expect(r.run_count == 1 && r.case_count == CASES && r.copy_count == 1);
  cr_expect(strcmp(r.copies[0].file, both) == 0 && strcmp(r.copies[0].of, both) == 0);
  cr_assert_eq(results_read(whole, &r, &error), ASSAY_OK, "%s", error.text);
  cr_expect(r.run_count == 1 && r.case_count == CASES && r.copy_count == 2);
  cr_assert_eq(results_read(other, &r, &error), ASSAY_OK, "%s", error.text);
  cr_expect(r.run_count == 2 && r.case_count == 2 * CASES && r.copy_count == 2);
  cr_expect(r.runs[1].ended && r.runs[1].cases == CASES);
  results_free(&r);
  (void)unlink(whole);
  (void)unlink(both);
  (void)unlink(other);
}

Test(results, shards_that_are_none, .timeout = 10) {
  static const char *const bad[] = {"0/0",  "0/2",  "3/2",  "1/2147483648", "1/1000000000", "1/",
                                    "/2",   "1",    "",     "01/2",         "1/2x",         " 1/2",
                                    "-1/2", "1/-2", "1 /2", "1/4294967298", "x/y",          "1/2/3"};
  int32_t shard = 0, shards = 0;
  for (size_t i = 0; i < sizeof bad / sizeof *bad; ++i) {
    char path[] = "/tmp/assay-compare-XXXXXX", key[64];
    assay_error error = {""};
    results r = {0};
    cr_expect(!results_shard(bad[i], &shard, &shards), "%s", bad[i]);
    (void)snprintf(key, sizeof key, ",\"shard\":\"%s\"", bad[i]);
    header_more = key;
    write_run(path, plain, pass);
    header_more = "";
    cr_expect_eq(results_read(path, &r, &error), ASSAY_ERR_INPUT, "%s: taken", bad[i]);
    cr_expect_not_null(strstr(error.text, ":1: shard: found '"), "%s", error.text);
    results_free(&r);
    (void)unlink(path);
  }
  cr_expect(results_shard("1/1", &shard, &shards) && shard == 1 && shards == 1);
  cr_expect(results_shard("12/999999", &shard, &shards) && shard == 12 && shards == 999999);
  char path[] = "/tmp/assay-compare-XXXXXX", text[4096];
  assay_error error = {""};
  results r = {0};
  header_more = ",\"shard\":\"3/999999\"";
  write_run(path, plain, pass);
  header_more = "";
  cr_assert_eq(results_read(path, &r, &error), ASSAY_OK, "%s", error.text);
  cr_expect_eq(groups_gaps(&r, text, sizeof text), 999998);
  cr_expect_not_null(strstr(text, "shards 1/999999 to 2/999999 are missing"), "%s", text);
  cr_expect_not_null(strstr(text, "shards 4/999999 to 999999/999999 are missing"), "%s", text);
  results_free(&r);
  (void)unlink(path);
}

Test(results, another_schema_and_an_unknown_verdict) {
  char path[] = "/tmp/assay-compare-XXXXXX", strange[] = "/tmp/assay-compare-XXXXXX";
  assay_error error = {""};
  results r = {0};
  header_more = ",\"schema\":2";
  write_run(path, plain, pass);
  header_more = "";
  cr_expect_eq(results_read(path, &r, &error), ASSAY_ERR_INPUT);
  cr_expect_not_null(strstr(error.text, ":1: schema: found '2', allowed 1"), "%s", error.text);
  error.text[0] = '\0';
  write_run(strange, plain, melts);
  cr_assert_eq(results_read(strange, &r, &error), ASSAY_OK, "%s", error.text);
  cr_expect(r.strange == 1 && strcmp(r.strange_names, "MELT") == 0);
  cr_expect_eq(results_count(&r, VERDICT_FAIL), 1, "what is not known is no PASS");
  results_free(&r);
  (void)unlink(path);
  (void)unlink(strange);
}

/* Cases of one side alone, and other plans, are said. */
Test(compare, other_plans) {
  static char text[1 << 14];
  char x[] = "/tmp/assay-compare-XXXXXX", y[] = "/tmp/assay-compare-XXXXXX";
  assay_error error = {""};
  results first = {0}, second = {0};
  comparison c;
  header_more = ",\"plan\":\"a\"";
  write_run(x, plain, pass);
  header_more = ",\"plan\":\"b\"";
  write_run(y, plain, pass);
  header_more = "";
  cr_assert_eq(results_read(x, &first, &error), ASSAY_OK, "%s", error.text);
  cr_assert_eq(results_read(y, &second, &error), ASSAY_OK, "%s", error.text);
  second.cases[3].descriptor = "op variant=v kv_len=9999";
  cr_assert_eq(compare_make(&first, &second, &c, &error), ASSAY_OK);
  cr_expect(c.other_plan && c.lost == 1 && c.gained == 1);
  FILE *to = fmemopen(text, sizeof text, "w");
  compare_print(&c, to);
  (void)fclose(to);
  cr_expect_not_null(strstr(text, "A and B are of different plans"), "%s", text);
  cr_expect_not_null(strstr(text, "B lacks 1 cases of A\n"), "%s", text);
  cr_expect_not_null(strstr(text, "A lacks 1 cases of B\n"), "%s", text);
  compare_free(&c);
  results_free(&first);
  results_free(&second);
  (void)unlink(x);
  (void)unlink(y);
}

Test(compare, sign_test) {
  cr_expect_float_eq(compare_sign_test(0, 10), 2.0 / 1024, 1e-12);
  cr_expect_float_eq(compare_sign_test(1, 9), 2 * 11.0 / 1024, 1e-12);
  cr_expect_eq(compare_sign_test(5, 5), 1);
  cr_expect_eq(compare_sign_test(0, 0), 1);
}

Test(results, a_file_cut_off_has_not_ended) {
  char path[] = "/tmp/assay-compare-XXXXXX", text[1024];
  assay_error error = {""};
  results r = {0};
  write_run(path, plain, pass);
  cr_assert_eq(truncate(path, 5000), 0);
  cr_assert_eq(results_read(path, &r, &error), ASSAY_OK, "%s", error.text);
  cr_expect_lt(r.case_count, CASES);
  cr_expect(!r.runs[0].ended);
  cr_expect_eq(groups_gaps(&r, text, sizeof text), 1);
  cr_expect_not_null(strstr(text, "did not end"), "%s", text);
  cr_expect_eq(r.cases[4].size, 4, "the longest kv_len of \"4,3\"");
  results_free(&r);
  (void)unlink(path);
}

/* A run of two cases, with one text of it changed, is refused with the line and the member. */
Test(results, lines_that_contradict_themselves) {
#define ONE                                                                                                            \
  "{\"case\":\"op variant=v device=simt "                                                                              \
  "k=1\",\"op\":\"op\",\"variant\":\"v\",\"device\":\"simt\",\"verdict\":\"PASS\","
  static const char run[] =
      "{\"assay\":\"1\",\"schema\":1,\"cases\":2}\n" ONE "\"ratio_row\":0.5}\n" ONE "\"ratio_row\":1}\n{\"end\":2}\n";
#undef ONE
  static const struct {
    const char *old, *fresh, *says;
  } bad[] = {{"k=1", "k=2", NULL}, /* the two are different cases: read */
             {"", "", "case: found 'op variant=v device=simt k=1' twice in one run"},
             {"k=1\"", "k=2\",\"case\":\"x\"", ":2: line 1: found key \"case\" twice"},
             {"\"op variant", "\"other variant", ":2: op: found 'op', allowed the operator that its case begins with"},
             {"variant=v", "variant=w", ":2: variant: found 'v', allowed w"},
             {"device=simt", "device=cuda", ":2: device: found 'simt', allowed cuda"},
             {"\"op variant=v device=simt k=1\"", "7", ":2: case: found 7, allowed a descriptor"},
             {"0.5", "1.5", ":2: ratio_row: found 1.5, allowed 0 to 1 of a PASS"},
             {"0.5", "0.5,\"check\":\"row\"", ":2: check: found 'row', allowed none of a PASS"},
             {"0.5", "\"nan\"", ":2: ratio_row: found 'nan'"},
             {"0.5", "null", ":2: ratio_row: found null"},
             {"\"cases\":2", "\"cases\":-2", ":1: cases: found -2, allowed a whole number from 0 on"},
             {",\"cases\":2", "", ":1: cases: found none"},
             {"{\"end\":2}", "{\"end\":\"2\"}", ":4: end: found '2', allowed a whole number from 0 on"},
             {"2}\n{", "2}\n{\"end\":2}\n{", ":3: case: found one after the end line"}};
  for (size_t i = 0; i < sizeof bad / sizeof *bad; ++i) {
    char path[] = "/tmp/assay-compare-XXXXXX", text[sizeof run + 64];
    assay_error error = {""};
    results all = {0};
    FILE *to = fdopen(mkstemp(path), "w");
    const char *at = strstr(run, bad[i].old);
    cr_assert(to != NULL && at != NULL);
    (void)snprintf(text, sizeof text, "%.*s%s%s", (int)(at - run), run, bad[i].fresh, at + strlen(bad[i].old));
    (void)fputs(text, to);
    (void)fclose(to);
    const assay_status status = results_read(path, &all, &error);
    cr_expect_eq(status, bad[i].says == NULL ? ASSAY_OK : ASSAY_ERR_INPUT, "%s: %s", text, error.text);
    if (bad[i].says != NULL)
      cr_expect_not_null(strstr(error.text, bad[i].says), "wanted %s: %s", bad[i].says, error.text);
    results_free(&all);
    (void)unlink(path);
  }
}

Test(results, nonsense_is_refused) {
  char path[] = "/tmp/assay-compare-XXXXXX";
  assay_error error = {""};
  results r = {0};
  const int fd = mkstemp(path);
  cr_assert_eq(write(fd, "{\"assay\":\"1\"}\n{oops}\n", 21), 21);
  (void)close(fd);
  cr_expect_eq(results_read(path, &r, &error), ASSAY_ERR_INPUT);
  cr_expect_not_null(strstr(error.text, ":2: column 2"), "%s", error.text);
  results_free(&r);
  (void)unlink(path);
}

Test(campaign, shards_are_a_balanced_partition) {
  enum { COUNT = 97, SHARDS = 5 };
  static assay_case all[COUNT], part[COUNT];
  static int seen[COUNT];
  double load[SHARDS] = {0}, most = 0, sum = 0;
  assay_error error = {""};
  for (int i = 0; i < COUNT; ++i) {
    all[i] = fake_case(TIER_EXACT);
    all[i].seed = (uint64_t)i;
    all[i].kv_len[1] = 1 + (i * 37) % 50 * 20;
  }
  for (int s = 1; s <= SHARDS; ++s) {
    int64_t count = COUNT;
    memcpy(part, all, sizeof all);
    cr_assert_eq(campaign_shard(part, &count, s, SHARDS, &error), ASSAY_OK);
    for (int64_t i = 0; i < count; ++i) {
      ++seen[part[i].seed];
      load[s - 1] += campaign_cost(&part[i]);
      cr_expect(i == 0 || part[i].seed > part[i - 1].seed, "the order of the list is kept");
    }
    sum += load[s - 1];
    most = load[s - 1] > most ? load[s - 1] : most;
  }
  for (int i = 0; i < COUNT; ++i) {
    cr_expect_eq(seen[i], 1);
    case_free(&all[i]);
  }
  cr_expect_lt(most, 1.1 * sum / SHARDS);
  int64_t none = 0;
  cr_expect_eq(campaign_shard(all, &none, 6, 5, &error), ASSAY_ERR_INPUT);
}
