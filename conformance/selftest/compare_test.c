/* compare_test.c: results read back; joins; verdicts of a comparison; shards. */
#include <criterion/criterion.h>
#include <math.h>
#include <unistd.h>

#include "conformance/campaign.h"
#include "conformance/compare.h"
#include "conformance/results_group.h"
#include "fake.h"

enum { CASES = 60 };

/* A run of CASES cases; ratio and verdict of each by its number. */
static void write_run(char *path, double (*ratio)(int), const char *(*verdict_of)(int)) {
  const int fd = mkstemp(path);
  cr_assert_geq(fd, 0);
  FILE *to = fdopen(fd, "w");
  fprintf(to, "{\"assay\":\"1\",\"device\":\"simt\",\"commit\":\"c\",\"seed\":1,\"cases\":%d,\"whole\":false}\n",
          CASES);
  for (int i = 0; i < CASES; ++i)
    fprintf(
        to,
        "{\"case\":\"op suite=s%d variant=v kv_len=%d,3 seed=%d\",\"op\":\"op\",\"variant\":\"v\",\"device\":\"simt\","
        "\"verdict\":\"%s\",\"check\":\"element\",\"ratio_element\":%.9g,\"seed\":%d}\n",
        (int)(fd % 2), i, i, verdict_of(i), ratio(i), i);
  fprintf(to, "{\"end\":%d,\"unclaimed\":0,\"seconds\":2}\n", CASES);
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
