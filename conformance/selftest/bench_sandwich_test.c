/* bench_sandwich_test.c: a kernel that is right when it is judged and wrong when it is timed has no figure. */
#include <criterion/criterion.h>
#include <math.h>

#include "bench/limit.h"
#include "bench/run.h"
#include "bench_fixture.h"

static void expect_none(late_fault fault, int64_t late, const char *check, bool after, const char *text) {
  static bench_result r;
  bench_fault = fault;
  bench_late = late;
  bench_fixture_time(&r);
  bench_fault = LATE_NONE;
  cr_expect_neq(r.judged.verdict, VERDICT_PASS, "fault %d", (int)fault);
  cr_expect_str_eq(r.judged.check, check, "fault %d: %s: %s", (int)fault, r.judged.check, r.judged.message);
  cr_expect_not_null(strstr(r.judged.message, text), "fault %d: %s", (int)fault, r.judged.message);
  cr_expect_eq(r.after, after, "fault %d: %s", (int)fault, r.judged.message);
  for (int mode = 0; mode < BENCH_MODES; ++mode)
    cr_expect(!r.figure[mode].there, "fault %d has a figure", (int)fault);
}

Test(bench_sandwich, right_has_figures) {
  static bench_result r;
  bench_fixture_time(&r);
  cr_assert_eq(r.judged.verdict, VERDICT_PASS, "%s: %s", r.judged.check, r.judged.message);
  cr_assert(r.figure[BENCH_COLD].there && r.figure[BENCH_WARM].there && !r.figure[BENCH_HOST].there);
  const bench_figure *cold = &r.figure[BENCH_COLD];
  cr_expect_float_eq(cold->us.median, 10, 0.1, "%g", cold->us.median);
  cr_expect_leq(cold->us.low, cold->us.median);
  cr_expect_geq(cold->us.high, cold->us.median);
  cr_expect_geq(cold->us.count, 20);
  cr_expect_eq(cold->launches, BENCH_MAX_SETS, "%d", (int)cold->launches);
  cr_expect_eq(r.before.core_mhz, 1000);
  cr_expect_float_eq(r.cost.flops, 12 * 16, 1e-9);
}

Test(bench_sandwich, wrong_from_the_start) {
  expect_none(LATE_ALWAYS, 1, "element", false, "times the allowed");
}

Test(bench_sandwich, large_cases_are_judged) {
  static bench_result r;
  bench_large = true;
  bench_fixture_time(&r);
  cr_expect_eq(r.judged.verdict, VERDICT_PASS, "%s: %s", r.judged.check, r.judged.message);
  cr_expect(r.figure[BENCH_COLD].there);
  /* Four sets are more than the cache holds; a replay has as many launches as make it long. */
  cr_expect_eq(r.figure[BENCH_COLD].launches, BENCH_GRAPH_SETS, "%d", (int)r.figure[BENCH_COLD].launches);
  for (int i = 0; i < 2; ++i) {
    bench_launch_us = i == 0 ? 130 : 2000;
    bench_fixture_time(&r);
    cr_expect_eq(r.figure[BENCH_COLD].launches, i == 0 ? 8 : BENCH_MIN_SETS, "%d", (int)r.figure[BENCH_COLD].launches);
  }
  bench_launch_us = 10;
  bench_fixture_time(&r);
  cr_expect_str_eq(r.judged.laws, "guard,input,unwritten,dead_bytes,run_to_run");
  expect_none(LATE_ALWAYS, 1, "element", false, "times the allowed");
  expect_none(LATE_AFTER, BENCH_GRAPH_SETS * 8, "element", true, "cold, sample ");
  expect_none(LATE_GUARD, 175, "guard", true, "wrote");
  bench_large = false;
}

/* A second variant of a case finds the contents of the first: they are what they were. */
Test(bench_sandwich, contents_are_kept) {
  static bench_result r[2];
  const assay_case one = bench_fixture_case();
  assay_case copy = one;
  bench_options options = bench_usual();
  options.large_bytes = 0;
  options.max_samples = 20;
  bench_case(&one, &bench_variant, &bench_device, &options, &r[0]);
  (void)snprintf(copy.variant, sizeof copy.variant, "another name");
  bench_case(&copy, &bench_variant, &bench_device, &options, &r[1]);
  for (int i = 0; i < 2; ++i)
    cr_expect_eq(r[i].judged.verdict, VERDICT_PASS, "%d: %s: %s", i, r[i].judged.check, r[i].judged.message);
  cr_expect_eq(r[0].judged.rows_judged, r[1].judged.rows_judged);
  bench_release();
}

Test(bench_sandwich, wrong_after_warm_up) {
  expect_none(LATE_AFTER, 64 * 8, "element", true, "cold, sample ");
  expect_none(LATE_AFTER, 64 * 2, "element", true, "cold, warm-up ");
}

Test(bench_sandwich, wrong_once) {
  for (int64_t call = 200; call < 2000; call += 299)
    expect_none(LATE_ONCE, call, "element", true, "launch ");
}

Test(bench_sandwich, wrong_on_cold_inputs) {
  expect_none(LATE_COLD, 1, "element", true, "launch 1 of 64");
}

Test(bench_sandwich, last_result_given_again) {
  expect_none(LATE_CACHED, 1, "element", true, "cold, ");
  expect_none(LATE_CACHED, 64 * 12, "element", true, "cold, sample ");
}

Test(bench_sandwich, work_on_another_stream) {
  expect_none(LATE_SLOW_STREAM, 1, "stream", true, "work on another stream");
}

Test(bench_sandwich, results_on_another_stream) {
  static bench_result r;
  bench_fault = LATE_OTHER_STREAM;
  bench_fixture_time(&r);
  bench_fault = LATE_NONE;
  cr_expect_eq(r.judged.verdict, VERDICT_FAIL, "%s", r.judged.message);
  cr_expect_str_eq(r.judged.check, "stream", "%s: %s", r.judged.check, r.judged.message);
  cr_expect(!r.figure[BENCH_COLD].there);
}

Test(bench_sandwich, what_it_may_not_touch) {
  expect_none(LATE_GUARD, 700, "guard", true, "wrote");
  expect_none(LATE_INPUT, 700, "input", true, "g: the call changed an input");
}

Test(bench_sandwich, a_device_that_faults) {
  expect_none(LATE_FAULT, 500, "crash", true, "illegal address");
}

/* ---- cases in a worker ------------------------------------------------------------------------------- */

typedef struct seen {
  int64_t begun, done;
  int64_t at[4];
  verdict verdicts[4];
} seen;

static void on_begun(void *context, const bench_limits *limits) {
  seen *s = context;
  ++s->begun;
  cr_expect_float_eq(limits->rate[ASSAY_RATE_COPY], 1e9, 1);
}

static void on_done(void *context, int64_t index, const bench_result *result) {
  seen *s = context;
  cr_assert_eq(index, s->done);
  s->verdicts[s->done++] = result->judged.verdict;
}

Test(bench_sandwich, a_worker_that_dies_is_replaced) {
  assay_error error = {""};
  seen s = {0};
  assay_case all[2] = {bench_fixture_case(), bench_fixture_case()};
  const bench_job job = {.cases = all,
                         .count = 2,
                         .options = bench_usual(),
                         .deadline_s = 60,
                         .begun = on_begun,
                         .done = on_done,
                         .context = &s};
  bench_fault = LATE_CRASH;
  cr_assert_eq(bench_run(&job, &error), ASSAY_OK, "%s", error.text);
  bench_fault = LATE_NONE;
  cr_expect_eq(s.done, 2);
  cr_expect_eq(s.begun, 2);
  cr_expect_eq(s.verdicts[0], VERDICT_CRASH);
  cr_expect_eq(s.verdicts[1], VERDICT_CRASH);
  s = (seen){0};
  cr_assert_eq(bench_run(&job, &error), ASSAY_OK, "%s", error.text);
  cr_expect_eq(s.begun, 1);
  cr_expect_eq(s.verdicts[1], VERDICT_PASS);
  case_free(&all[0]);
  case_free(&all[1]);
}

static void on_chosen(void *context, int64_t index, const bench_result *result) {
  seen *s = context;
  s->at[s->done] = index;
  s->verdicts[s->done++] = result->judged.verdict;
}

/* The first of the cases with one number is timed, and no other, also where its worker dies of it. */
Test(bench_sandwich, the_first_of_a_group) {
  static const int64_t group[4] = {7, 7, 7, 8};
  assay_error error = {""};
  seen s = {0};
  assay_case all[4];
  for (int32_t i = 0; i < 4; ++i)
    all[i] = bench_fixture_case();
  bench_job job = {.cases = all,
                   .group = group,
                   .count = 4,
                   .options = bench_usual(),
                   .deadline_s = 60,
                   .begun = on_begun,
                   .done = on_chosen,
                   .context = &s};
  for (int32_t how = 0; how < 3; ++how) {
    s = (seen){0};
    bench_fault = how == 1 ? LATE_CRASH : LATE_NONE;
    job.in_process = how == 2;
    cr_assert_eq(bench_run(&job, &error), ASSAY_OK, "%s", error.text);
    cr_assert_eq(s.done, 2);
    cr_expect(s.at[0] == 0 && s.at[1] == 3, "%lld, %lld", (long long)s.at[0], (long long)s.at[1]);
    cr_expect_eq(s.verdicts[1], how == 1 ? VERDICT_CRASH : VERDICT_PASS);
  }
  bench_fault = LATE_NONE;
  for (int32_t i = 0; i < 4; ++i)
    case_free(&all[i]);
}

Test(bench_sandwich, limits) {
  const bench_limits limits = {.there = true, .rate = {1e12, 1e13, 1e15}};
  const assay_cost copy = {1e6, 1e6}, work = {1e12, 1e6};
  const bench_limits none = {.there = false};
  cr_expect_float_eq(bench_limit(&copy, &limits, ASSAY_BF16).us, 1, 1e-9);
  cr_expect_str_eq(bench_limit(&copy, &limits, ASSAY_BF16).by, "bytes");
  cr_expect_float_eq(bench_limit(&work, &limits, ASSAY_BF16).us, 1000, 1e-6);
  cr_expect_str_eq(bench_limit(&work, &limits, ASSAY_BF16).by, "mma");
  cr_expect_float_eq(bench_limit(&work, &limits, ASSAY_F32).us, 1e5, 1e-3);
  cr_expect_str_eq(bench_limit(&work, &limits, ASSAY_F32).by, "fma");
  cr_expect_eq(bench_limit(&work, &none, ASSAY_F32).us, 0);
}

/* Factors of 8 bits have the fastest unit of all; those of 16 bits never have one of 8 bits. */
Test(bench_sandwich, limits_of_eight_bits) {
  bench_limits limits = {.there = true, .rate = {1e12, 1e13, 1e14, 2e14, 3e14, 4e14}};
  const assay_cost work = {1e12, 1e6};
  cr_expect_float_eq(bench_limit(&work, &limits, ASSAY_BF16).us, 5000, 1e-6);
  cr_expect_str_eq(bench_limit(&work, &limits, ASSAY_BF16).by, "gemm");
  cr_expect_float_eq(bench_limit(&work, &limits, ASSAY_E4M3).us, 2500, 1e-6);
  cr_expect_str_eq(bench_limit(&work, &limits, ASSAY_E4M3).by, "gemm8");
  cr_expect_str_eq(bench_limit(&work, &limits, ASSAY_E5M2).by, "gemm8");
  cr_expect_str_eq(bench_limit(&work, &limits, ASSAY_F32).by, "fma");
  limits.rate[ASSAY_RATE_GEMM8] = limits.rate[ASSAY_RATE_GEMM] = 0; /* no library */
  cr_expect_str_eq(bench_limit(&work, &limits, ASSAY_E4M3).by, "mma8");
  cr_expect_str_eq(bench_limit(&work, &limits, ASSAY_BF16).by, "mma");
  limits.rate[ASSAY_RATE_MMA8] = 0; /* bf16 holds every e4m3 */
  cr_expect_str_eq(bench_limit(&work, &limits, ASSAY_E4M3).by, "mma");
}

const assay_op *assay_op_fp8_block_gemm(void);
const assay_op *assay_op_fp8_grouped_gemm(void);
const assay_op *assay_op_fp8_grouped_gemm_masked(void);
const assay_op *assay_op_rms_norm(void);

/* Both factors have 8 bits, or the case's type counts. */
Test(bench_sandwich, factors) {
  const assay_op *eight[] = {assay_op_fp8_block_gemm(), assay_op_fp8_grouped_gemm(),
                             assay_op_fp8_grouped_gemm_masked()};
  const assay_case one = {.dtype = ASSAY_BF16};
  char memory[1];
  for (size_t i = 0; i < sizeof eight / sizeof *eight; ++i) {
    assay_tensor arg[ASSAY_MAX_ARGS] = {{.dtype = ASSAY_NONE}};
    const assay_op *op = eight[i];
    const assay_call call = {.op = op, .arg = arg};
    for (int32_t a = 0; a < op->arg_count; ++a)
      arg[a] = (assay_tensor){
          .data = memory,
          .dtype = strchr("ab", op->args[a].name[0]) != NULL && op->args[a].name[1] == '\0' ? ASSAY_E4M3 : ASSAY_F32};
    cr_expect_eq(bench_factors(&one, &call), ASSAY_E4M3, "%s", op->name);
    for (int32_t a = 0; a < op->arg_count; ++a)
      if (strcmp(op->args[a].name, "b") == 0) arg[a].dtype = ASSAY_BF16;
    cr_expect_eq(bench_factors(&one, &call), ASSAY_BF16, "%s", op->name);
  }
  const assay_op *norm = assay_op_rms_norm();
  const assay_call call = {.op = norm, .arg = (assay_tensor[ASSAY_MAX_ARGS]){{.data = memory, .dtype = ASSAY_E4M3}}};
  cr_expect_eq(bench_factors(&one, &call), ASSAY_BF16);
}
