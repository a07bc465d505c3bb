/* power_test.c: planted errors that are seen, unseen or void; suites in which they would pass. */
#include <criterion/criterion.h>
#include <math.h>

#include "conformance/trial/trial.h"
#include "conformance/planted/power.h"
#include "conformance/report/power_sum.h"
#include "core/dtype.h"
#include "fake.h"

enum { TRIPLED, NOTHING, BELOW_EVERYTHING, ONE_ULP, ONE_NAN, SPOILS };

/* Spoils of fake_gate: what the reference says, and then some. */
static assay_status spoil(const assay_call *call, const assay_contract *contract, const assay_rows *rows, int32_t index,
                          assay_expected *expected, assay_error *error) {
  const assay_tensor *out = &call->arg[FAKE_ARG_OUT];
  const int64_t count = rows->count * out->shape[1] * out->shape[2];
  double *sigma = malloc(((size_t)count + 1) * sizeof *sigma), more[64], unused[64];
  assay_expected all[2] = {{expected[0].value, sigma}, {expected[1].value != NULL ? expected[1].value : more, unused}};
  const assay_status status = call->op->reference(call, contract, rows, false, all, NULL, error);
  for (int64_t i = 0; status == ASSAY_OK && i < count; ++i) {
    double *y = &expected[0].value[i];
    if (index == TRIPLED) *y *= 3;
    if (index == BELOW_EVERYTHING) *y += *y * 0x1p-40;
    if (index == ONE_ULP) *y += *y != 0 ? assay_ulp(*y, out->dtype) : 0;
    if (index == ONE_NAN && i == count / 2) *y = (double)NAN;
  }
  free(sigma);
  return status;
}

static assay_op spoiled_op(void) {
  assay_op op = fake_op;
  op.spoils = "tripled,nothing,below_everything,one_ulp,one_nan";
  op.spoil = spoil;
  return op;
}

static case_result judged(const assay_op *op, case_tier tier, power_mode mode) {
  case_result result;
  assay_case one = fake_case(tier);
  one.op = op;
  power_set(mode);
  judge_case(&one, &fake_variant, &fake_device, &result);
  case_free(&one);
  return result;
}

Test(power, seen_unseen_and_void) {
  const assay_op op = spoiled_op();
  const uint32_t lost = 1u << BELOW_EVERYTHING, light = 1u << ONE_ULP;
  for (int exact = 0; exact < 2; ++exact) {
    const case_result r = judged(&op, exact ? TIER_EXACT : TIER_CALIBRATED, POWER_ALL);
    cr_assert_eq(r.verdict, VERDICT_PASS, "%s: %s", r.check, r.message);
    cr_expect_eq(r.spoils_void, 1u << NOTHING);
    cr_expect_eq(r.spoils_seen, 1u << TRIPLED | 1u << ONE_NAN | (exact ? light : 0), "NaN is never right");
    cr_expect_eq(r.spoils_unseen, lost | (exact ? 0 : light));
    cr_expect_eq(r.spoils_weak, lost, "the exact tier sees one ulp, and not what no type holds");
  }
}

Test(power, only_cases_that_pass_are_asked) {
  const assay_op op = spoiled_op();
  fake_broken = FAULT_LAST_KEY;
  case_result r = judged(&op, TIER_EXACT, POWER_ALL);
  fake_broken = FAULT_NONE;
  cr_expect_eq(r.verdict, VERDICT_FAIL);
  cr_expect_eq(r.spoils_seen | r.spoils_unseen | r.spoils_void, 0u);
  r = judged(&op, TIER_EXACT, POWER_OFF);
  cr_expect_eq(r.spoils_seen | r.spoils_unseen | r.spoils_void, 0u);
  r = judged(&fake_op, TIER_EXACT, POWER_ALL);
  cr_expect_eq(r.spoils_seen | r.spoils_unseen | r.spoils_void, 0u, "an operator without spoils");
}

Test(power, a_sample_is_about_a_quarter) {
  const assay_op op = spoiled_op();
  int asked = 0;
  power_set(POWER_SAMPLED);
  for (uint64_t seed = 0; seed < 200; ++seed) {
    case_result r;
    assay_case one = fake_case(TIER_EXACT);
    one.op = &op;
    one.seed = seed;
    judge_case(&one, &fake_variant, &fake_device, &r);
    for (uint32_t all = r.spoils_seen | r.spoils_unseen | r.spoils_void; all != 0; all &= all - 1)
      ++asked;
    case_free(&one);
  }
  cr_expect(asked > 190 && asked < 310, "%d of 1000", asked);
}

static assay_status refuse(const assay_call *call, const assay_contract *contract, const assay_rows *rows,
                           int32_t index, assay_expected *expected, assay_error *error) {
  (void)call, (void)contract, (void)rows, (void)index, (void)expected;
  return assay_fail(error, ASSAY_ERR_INPUT, "cannot");
}

Test(power, a_spoil_that_cannot_be_made_is_weak) {
  assay_op op = spoiled_op();
  op.spoil = refuse;
  const case_result r = judged(&op, TIER_EXACT, POWER_ALL);
  cr_expect_eq(r.verdict, VERDICT_WEAK);
  cr_expect_str_eq(r.check, "power");
}

Test(power, names) {
  const assay_op op = spoiled_op();
  char name[32];
  cr_expect_eq(power_count(&op), SPOILS);
  cr_expect_eq(power_count(&fake_op), 0);
  power_name(&op, ONE_NAN, name, sizeof name);
  cr_expect_str_eq(name, "one_nan");
  power_name(&op, SPOILS, name, sizeof name);
  cr_expect_str_eq(name, "");
  cr_expect_eq(power_bits(&op, "one_nan,tripled,unheard_of"), 1u << ONE_NAN | 1u << TRIPLED);
  cr_expect_eq(power_bits(&op, ""), 0u);
}

/* ---- suites ---- */

static char text[1 << 14];

/* A run of `count` cases of the suite in which spoil 0 has this outcome; spoil 1 is always seen. */
static int run_of(const char *suite, int count, uint32_t seen, uint32_t unseen, uint32_t weak, power_level judge) {
  assay_op op = spoiled_op();
  assay_error error = {""};
  report *r = NULL;
  power_sum *sum = NULL;
  FILE *to = fmemopen(text, sizeof text, "w");
  const report_options options = {.text = to, .device = "simt"};
  op.spoils = "first,second";
  power_set(POWER_ALL);
  cr_assert_eq(report_open(&options, &r, &error), ASSAY_OK);
  cr_assert_eq(power_sum_open(&sum, &error), ASSAY_OK);
  for (int i = 0; i < 40; ++i) {
    assay_case one = fake_case(TIER_EXACT);
    one.op = &op;
    (void)snprintf(one.suite, sizeof one.suite, "%s", suite);
    case_result result = {.verdict = VERDICT_PASS, .spoils_seen = unseen == 3 ? 0 : 2};
    if (i < count) {
      result.spoils_seen |= seen;
      result.spoils_unseen = unseen;
      result.spoils_weak = weak;
    } else {
      result.spoils_void = 1;
    }
    report_add(r, &one, &result);
    power_sum_note(sum, &one, &result);
    case_free(&one);
  }
  power_sum_report(sum, POWER_ALL, judge, r);
  power_sum_close(sum);
  const int code = report_close(r, &error);
  (void)fclose(to);
  return code;
}

Test(power, suites_are_weak_or_not) {
  cr_expect_eq(run_of("fake_gate", 20, 1, 0, 0, true), 0, "%s", text);
  cr_expect_not_null(strstr(text, "power fake_gate: 2 spoils in 40 cases, 2 seen in every effective case"), "%s", text);
  cr_expect_eq(run_of("fake_gate", 19, 1, 0, 0, true), 1, "void ones do not count: %s", text);
  cr_expect_not_null(strstr(text, "WEAK suite fake_gate: power: first changed the result in 19 cases"), "%s", text);
  cr_expect_eq(run_of("fake_gate", 30, 0, 1, 0, true), 0, "unseen, but for the twins: %s", text);
  cr_expect_eq(run_of("fake_gate", 30, 0, 1, 1, true), 1, "%s", text);
  cr_expect_not_null(strstr(text, "first stays unseen in 30 cases"), "%s", text);
  cr_expect_not_null(strstr(text, "1 planted errors that a suite would miss"), "%s", text);
  cr_expect_eq(run_of("fake_gate", 30, 0, 1, 1, false), 0, "part of a suite says nothing of it: %s", text);
  cr_expect_eq(run_of("another", 30, 0, 1, 1, true), 0, "not the operator's own suite: %s", text);
  /* Variants chosen by name may take few calls, and must not hide a planted error. */
  cr_expect_eq(run_of("fake_gate", 19, 1, 0, 0, POWER_CHOSEN), 0, "%s", text);
  cr_expect_eq(run_of("fake_gate", 19, 1, 1, 1, POWER_CHOSEN), 0, "seen as often as not: %s", text);
  cr_expect_eq(run_of("fake_gate", 19, 0, 1, 1, POWER_CHOSEN), 1, "%s", text);
  cr_expect_not_null(strstr(text, "WEAK suite fake_gate: power: first stays unseen"), "%s", text);
  cr_expect_eq(run_of("another", 19, 0, 1, 1, POWER_CHOSEN), 0, "%s", text);
  cr_expect_eq(run_of("another", 40, 0, 3, 3, POWER_CHOSEN), 1, "wider than all of them: %s", text);
  cr_expect_not_null(strstr(text, "planted errors are unseen, all that change a result, 80 times"), "%s", text);
}
