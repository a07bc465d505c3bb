/* bench_stats_test.c: medians, their intervals, and what a difference is worth. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <unistd.h>

#include "bench/compare.h"
#include "bench/stats.h"
#include "bench_fixture.h"
#include "core/rng.h"

Test(bench_stats, known_samples) {
  double odd[] = {5, 1, 4, 2, 3}, even[] = {4, 1, 3, 2};
  bench_spread s;
  bench_spread_of(odd, 5, &s);
  cr_expect_eq(s.median, 3);
  cr_expect_eq(s.low, 1);
  cr_expect_eq(s.high, 5);
  cr_expect_eq(bench_half_width(&s), HUGE_VAL);
  bench_spread_of(even, 4, &s);
  cr_expect_eq(s.median, 2.5);
  cr_expect_eq(s.min, 1);
  cr_expect_eq(s.max, 4);
  bench_spread_of(even, 0, &s);
  cr_expect_eq(s.count, 0);
}

/* Ranks from a table of the sign test: the interval of n samples is from the k-th smallest to the k-th largest. */
Test(bench_stats, ranks_of_the_interval) {
  const int64_t n[] = {5, 6, 8, 9, 10, 15, 20, 25, 30, 50, 100}, k[] = {0, 1, 1, 2, 2, 4, 6, 8, 10, 18, 40};
  for (size_t i = 0; i < sizeof n / sizeof *n; ++i)
    cr_expect_eq(bench_interval_rank(n[i]), k[i] - 1, "n %lld: rank %lld", (long long)n[i],
                 (long long)bench_interval_rank(n[i]));
}

/* The true median lies in the interval of 95 % of the experiments, whatever the distribution. */
Test(bench_stats, coverage) {
  int hits = 0;
  enum { EXPERIMENTS = 2000, SAMPLES = 25 };
  for (int e = 0; e < EXPERIMENTS; ++e) {
    double value[SAMPLES];
    bench_spread s;
    assay_rng_normals((uint64_t)e, 3, value, SAMPLES);
    for (int i = 0; i < SAMPLES; ++i)
      value[i] = exp(value[i]); /* median 1, long tail */
    bench_spread_of(value, SAMPLES, &s);
    hits += s.low <= 1 && 1 <= s.high;
  }
  cr_expect_geq(hits, EXPERIMENTS * 94 / 100, "%d", hits);
  cr_expect_leq(hits, EXPERIMENTS * 98 / 100, "%d", hits);
}

Test(bench_stats, halves) {
  double value[20];
  for (int i = 0; i < 20; ++i)
    value[i] = i < 10 ? 100 : 103;
  cr_expect_float_eq(bench_halves(value, 20), 1.03, 1e-12);
  cr_expect_eq(bench_halves(value, 7), 1);
}

Test(bench_stats, decisions) {
  cr_expect_eq(bench_decide(1.05, 1.03, 1.07, 0.02), BENCH_SLOWER);
  cr_expect_eq(bench_decide(0.95, 0.93, 0.97, 0.02), BENCH_FASTER);
  cr_expect_eq(bench_decide(1.01, 0.99, 1.03, 0.02), BENCH_SAME);
  cr_expect_eq(bench_decide(1.04, 1.01, 1.07, 0.02), BENCH_AMBIGUOUS);
  cr_expect_eq(bench_decide(1.00, 0.80, 1.20, 0.02), BENCH_AMBIGUOUS);
  cr_expect_eq(bench_decide((double)NAN, (double)NAN, (double)NAN, 0.02), BENCH_AMBIGUOUS);
}

/* ---- files ------------------------------------------------------------------------------------------- */

static const assay_device_info info = {.name = "clocked", .multiprocessors = 2};
static const bench_limits limits = {.there = true, .rate = {1e9, 1e12, 1e12}};

/* `rows` cases timed anew, as assay bench would write them. */
static void write_run(const char *path, int rows, double slower) {
  static bench_result r;
  const bench_options options = bench_usual();
  const bench_head head = {"clocked", "abc", &info, &options, 1};
  assay_case one = bench_fixture_case();
  FILE *to = fopen(path, "w");
  cr_assert_not_null(to);
  rows_head(to, &head);
  rows_limits(to, &limits);
  for (int i = 0; i < rows; ++i) {
    char descriptor[64];
    (void)snprintf(descriptor, sizeof descriptor, "fake_mix variant=late number=%d", i);
    bench_launch_us = 10 * slower;
    bench_jitter = 0.05;
    bench_fixture_time(&r);
    cr_assert_eq(r.judged.verdict, VERDICT_PASS, "%s", r.judged.message);
    rows_case(to, &one, descriptor, &r, &limits);
  }
  rows_end(to, rows, 0, 0, 1);
  cr_assert_eq(fclose(to), 0);
  case_free(&one);
}

static void name_file(char *path, size_t size, const char *what) {
  (void)snprintf(path, size, "/tmp/assay_bench_%ld_%s.jsonl", (long)getpid(), what);
}

static bench_comparison compared(const char *a, const char *b, bench_rows_list list[2]) {
  assay_error error = {""};
  bench_comparison comparison;
  bool is_bench = false;
  cr_assert_eq(rows_read(a, &list[0], &is_bench, &error), ASSAY_OK, "%s", error.text);
  cr_assert(is_bench);
  cr_assert_eq(rows_read(b, &list[1], &is_bench, &error), ASSAY_OK, "%s", error.text);
  cr_assert_eq(bench_compare(&list[0], &list[1], BENCH_ONE_CARD, &comparison, &error), ASSAY_OK, "%s", error.text);
  return comparison;
}

Test(bench_stats, same_is_same_and_five_percent_is_slower) {
  enum { ROWS = 20 };
  char path[3][64];
  bench_rows_list list[2];
  name_file(path[0], sizeof path[0], "a");
  name_file(path[1], sizeof path[1], "again");
  name_file(path[2], sizeof path[2], "slower");
  write_run(path[0], ROWS, 1);
  write_run(path[1], ROWS, 1);
  write_run(path[2], ROWS, 1.05);
  bench_comparison comparison = compared(path[0], path[1], list);
  cr_expect_eq(comparison.joined, 2 * ROWS);
  cr_expect_geq(comparison.count[BENCH_SAME], 2 * ROWS * 95 / 100, "%lld", (long long)comparison.count[BENCH_SAME]);
  cr_expect_lt(comparison.noise[BENCH_COLD], 0.02);
  cr_expect_geq(comparison.noise[BENCH_WARM], 0.02); /* from process to process */
  cr_expect_lt(comparison.noise[BENCH_WARM], 0.04);
  bench_compare_free(&comparison);
  rows_free(&list[0]);
  rows_free(&list[1]);
  comparison = compared(path[0], path[2], list);
  cr_expect_eq(comparison.count[BENCH_SLOWER], 2 * ROWS, "%lld", (long long)comparison.count[BENCH_SLOWER]);
  bench_compare_free(&comparison);
  rows_free(&list[0]);
  rows_free(&list[1]);
  comparison = compared(path[2], path[0], list);
  cr_expect_eq(comparison.count[BENCH_FASTER], 2 * ROWS, "%lld", (long long)comparison.count[BENCH_FASTER]);
  bench_compare_free(&comparison);
  rows_free(&list[0]);
  rows_free(&list[1]);
  for (int i = 0; i < 3; ++i)
    (void)remove(path[i]);
}

/* A failure in B that had a figure in A is worse than any time. */
Test(bench_stats, a_figure_that_is_gone) {
  const char *mode[] = {"cold", "warm"};
  bench_row before[2] = {{.descriptor = "x", .median = 1, .low = 1, .high = 1, .halves = 1},
                         {.descriptor = "x", .median = 1, .low = 1, .high = 1, .halves = 1}};
  bench_row now = {.descriptor = "x", .failed = true}, other = {.descriptor = "y", .median = 1, .low = 1, .high = 1};
  for (int i = 0; i < 2; ++i)
    (void)snprintf(before[i].mode, sizeof before[i].mode, "%s", mode[i]);
  bench_row later[2] = {now, other};
  const bench_rows_list a = {.row = before, .count = 2}, b = {.row = later, .count = 2};
  assay_error error = {""};
  bench_comparison comparison;
  cr_assert_eq(bench_compare(&a, &b, BENCH_ONE_CARD, &comparison, &error), ASSAY_OK, "%s", error.text);
  cr_expect_eq(comparison.broken, 2);
  cr_expect_eq(comparison.joined, 0);
  cr_expect_eq(comparison.pairs, 3);
  bench_compare_free(&comparison);
  bench_rows_list elsewhere = b;
  (void)snprintf(elsewhere.device, sizeof elsewhere.device, "cuda");
  cr_expect_eq(bench_compare(&a, &elsewhere, BENCH_ONE_CARD, &comparison, &error), ASSAY_ERR_INPUT);
}

/* A file of another card: 2 % is no difference there, 5 % is. */
Test(bench_stats, cards_of_one_name_differ) {
  for (int i = 0; i < 2; ++i) {
    const double than = i == 0 ? 1.02 : 1.05;
    bench_row before = {.descriptor = "x", .median = 1, .low = 0.999, .high = 1.001, .halves = 1}, now = before;
    now.median *= than;
    now.low *= than;
    now.high *= than;
    const bench_rows_list a = {.row = &before, .count = 1}, b = {.row = &now, .count = 1};
    for (int cards = 0; cards < 2; ++cards) {
      assay_error error = {""};
      bench_comparison comparison;
      cr_assert_eq(bench_compare(&a, &b, cards ? BENCH_CARDS : BENCH_ONE_CARD, &comparison, &error), ASSAY_OK);
      cr_expect_eq(comparison.count[cards && i == 0 ? BENCH_SAME : BENCH_SLOWER], 1, "%g", than);
      bench_compare_free(&comparison);
    }
  }
}

/* On another machine a launch may cost more, in the figure as in the empty one: what is left is the kernel's. */
Test(bench_stats, launches_that_cost_more) {
  const struct {
    double now, empty;
    bench_verdict verdict;
  } expected[] = {{4.166, 1.299, BENCH_SAME},   {4.166, 0.986, BENCH_SLOWER}, {4.166, 0, BENCH_SLOWER},
                  {4.366, 1.299, BENCH_SLOWER}, {3.834, 1.299, BENCH_FASTER}, {3.834, 0.986, BENCH_SAME}};
  for (size_t i = 0; i < sizeof expected / sizeof *expected; ++i) {
    bench_row before = {.descriptor = "x", .mode = "warm", .median = 3.834, .low = 3.83, .high = 3.84, .halves = 1};
    bench_row now = before;
    before.empty = 0.986;
    now.median = expected[i].now;
    now.low = expected[i].now - 0.006;
    now.high = expected[i].now + 0.006;
    now.empty = expected[i].empty;
    const bench_rows_list a = {.row = &before, .count = 1}, b = {.row = &now, .count = 1};
    assay_error error = {""};
    bench_comparison comparison;
    cr_assert_eq(bench_compare(&a, &b, BENCH_CARDS, &comparison, &error), ASSAY_OK);
    cr_expect_eq(comparison.pair[0].verdict, expected[i].verdict, "%g us, %g of them an empty launch", expected[i].now,
                 expected[i].empty);
    bench_compare_free(&comparison);
  }
}

/* From process to process a warm figure moves by more than its interval says: 1.5 % is no difference there, 5 % is. */
Test(bench_stats, each_mode_has_its_noise) {
  const struct {
    const char *mode;
    double than;
    bench_verdict verdict;
  } expected[] = {{"cold", 1.015, BENCH_SLOWER},
                  {"warm", 1.015, BENCH_SAME},
                  {"host", 1.015, BENCH_SLOWER},
                  {"cold", 1.05, BENCH_SLOWER},
                  {"warm", 1.05, BENCH_SLOWER}};
  for (size_t i = 0; i < sizeof expected / sizeof *expected; ++i) {
    bench_row before = {.descriptor = "x", .median = 1, .low = 0.999, .high = 1.001, .halves = 1};
    (void)snprintf(before.mode, sizeof before.mode, "%s", expected[i].mode);
    bench_row now = before;
    now.median *= expected[i].than;
    now.low *= expected[i].than;
    now.high *= expected[i].than;
    const bench_rows_list a = {.row = &before, .count = 1}, b = {.row = &now, .count = 1};
    assay_error error = {""};
    bench_comparison comparison;
    cr_assert_eq(bench_compare(&a, &b, BENCH_ONE_CARD, &comparison, &error), ASSAY_OK);
    cr_expect_eq(comparison.count[expected[i].verdict], 1, "%s %g", expected[i].mode, expected[i].than);
    bench_compare_free(&comparison);
  }
}

static void expect_refused(const char *text, const char *message) {
  char path[64];
  bench_rows_list list;
  bool is_bench = false;
  assay_error error = {""};
  name_file(path, sizeof path, "bad");
  FILE *to = fopen(path, "w");
  cr_assert_not_null(to);
  (void)fputs(text, to);
  (void)fclose(to);
  cr_expect_eq(rows_read(path, &list, &is_bench, &error), ASSAY_ERR_INPUT, "%s", text);
  cr_expect_not_null(strstr(error.text, message), "%s: %s", text, error.text);
  (void)remove(path);
}

Test(bench_stats, files_that_lie) {
#define RUN "{\"bench\":\"run\",\"schema\":1,\"device\":\"d\"}\n"
  expect_refused("{\"bench\":\"run\",\"schema\":9}\n", "schema");
  expect_refused(RUN, "not whole");
  expect_refused(RUN "{\"bench\":\"case\",\"case\":\"x\",\"mode\":\"cold\",\"median_us\":0}\n", "0 < low");
  expect_refused(RUN
                 "{\"bench\":\"case\",\"case\":\"x\",\"mode\":\"cold\",\"median_us\":2,\"low_us\":3,\"high_us\":4}\n",
                 "0 < low");
  expect_refused(RUN "{\"bench\":\"case\",\"mode\":\"cold\",\"median_us\":2,\"low_us\":1,\"high_us\":4}\n",
                 "descriptor");
  expect_refused(RUN "{oops\n", ":2:");
}
