/* judge_plain_test.c: laws on in-out arguments, moved rows, integer and fp8 outputs, special values and written caches.
 * A right kernel passes, and each fault of fake_plain.h gets its name. */
#include <criterion/criterion.h>

#include "conformance/judge/judge.h"
#include "conformance/trial/trial.h"
#include "conformance/planted/power.h"
#include "fake.h"
#include "fake_plain.h"

static case_result judged(const char *descriptor, plain_fault fault) {
  assay_case one = plain_case(descriptor);
  const assay_variant *variant = assay_variant_find(one.op->name, "loops", "simt");
  case_result result;
  plain_broken = fault;
  judge_case(&one, variant, &fake_device, &result);
  plain_broken = PLAIN_NONE;
  case_free(&one);
  return result;
}

static void expect(const char *descriptor, plain_fault fault, const char *check, const char *text) {
  const case_result right = judged(descriptor, PLAIN_NONE), r = judged(descriptor, fault);
  cr_expect_eq(right.verdict, VERDICT_PASS, "%s: %s: %s", descriptor, right.check, right.message);
  cr_expect_eq(r.verdict, VERDICT_FAIL, "%s: fault %d: %s", descriptor, (int)fault, verdict_name(r.verdict));
  cr_expect_str_eq(r.check, check, "%s: fault %d: %s: %s", descriptor, (int)fault, r.check, r.message);
  cr_expect_not_null(strstr(r.message, text), "fault %d: %s", (int)fault, r.message);
}

#define EXACT "fake_mix section=check tier=exact dtype=f16 seed=3 "
#define REAL  "fake_mix section=check tier=calibrated dtype=bf16 seed=4 "

Test(judge_plain, right_passes_in_every_shape) {
  static const char *const sizes[] = {"", "N=1 ", "C=4 M=1 ", "row_pad=8 ", "N=1 C=4 row_pad=4 ", "N=33 rows=7 "};
  static const char *const options[] = {"", "y_out=true ", "top=true ", "y_out=true top=true negate=true "};
  static const char *const dead[] = {"nan", "inf", "largest", "stale", "zero"};
  for (int i = 0; i < 6 * 4 * 5 * 3 * 2; ++i) {
    char text[256];
    const int tier = i / 120 % 2;
    (void)snprintf(text, sizeof text, "%s dtype=%s %s%s dead=%s seed=%d", tier ? "fake_mix tier=exact" : "fake_mix",
                   (const char *[]){"f32", "f16", "bf16"}[i / 240], sizes[i % 6], options[i / 6 % 4], dead[i / 24 % 5],
                   i);
    const case_result r = judged(text, PLAIN_NONE);
    cr_assert_eq(r.verdict, VERDICT_PASS, "%s: %s: %s", text, r.check, r.message);
  }
}

static const char *noted, *noted_by_launches;

static const char *take_noted(void) {
  const char *text = noted;
  noted = NULL;
  return text;
}

static void schedule_noting(uint64_t seed) {
  fake_device.schedule(seed);
  if (noted_by_launches != NULL) noted = noted_by_launches;
}

static case_result judged_noting(plain_fault fault, const char *before, const char *launches) {
  assay_device device = fake_device;
  assay_case one = plain_case(EXACT);
  case_result result;
  device.note = take_noted;
  device.schedule = schedule_noting;
  noted = before;
  noted_by_launches = launches;
  plain_broken = fault;
  judge_case(&one, assay_variant_find(one.op->name, "loops", "simt"), &device, &result);
  plain_broken = PLAIN_NONE;
  case_free(&one);
  return result;
}

/* A note of the device stands beside a wrong result alone, and not beside that of the next case. */
Test(judge_plain, what_the_device_noticed_is_said) {
  const case_result wrong = judged_noting(PLAIN_MOVES_NEIGHBOUR, NULL, "7 threads ended");
  const case_result right = judged_noting(PLAIN_NONE, NULL, "7 threads ended");
  const case_result stale = judged_noting(PLAIN_MOVES_NEIGHBOUR, "7 threads ended", NULL);
  cr_expect_eq(wrong.verdict, VERDICT_FAIL);
  cr_expect_not_null(strstr(wrong.message, "; 7 threads ended"), "%s", wrong.message);
  cr_expect_eq(right.verdict, VERDICT_PASS);
  cr_expect_str_eq(right.message, "");
  cr_expect_eq(stale.verdict, VERDICT_FAIL);
  cr_expect_null(strstr(stale.message, "7 threads"), "%s", stale.message);
}

Test(judge_plain, laws_of_a_plain_call) {
  const case_result r = judged(EXACT "y_out=true top=true row_pad=8", PLAIN_NONE);
  cr_expect_eq(r.verdict, VERDICT_PASS, "%s", r.message);
  cr_expect_str_eq(r.laws, "guard,input,unwritten,dead_bytes,run_to_run,permutation,batch");
  cr_expect_str_eq(r.path, "apart");
  cr_expect_eq(r.elements_judged, 6 * 16 + 5 * 8 + 6 * 16 + 6);
}

Test(judge_plain, what_lies_between_rows_stays) {
  expect(EXACT "row_pad=8", PLAIN_BETWEEN_ROWS, "guard", "x: the call changed what is between its rows");
  expect(EXACT "row_pad=8 y_out=true", PLAIN_BETWEEN_ROWS, "guard", "y_out: the call changed");
  expect(REAL "row_pad=3", PLAIN_BETWEEN_ROWS, "guard", "between its rows");
}

Test(judge_plain, what_must_stay_stays) {
  expect(EXACT "y_out=true", PLAIN_CHANGES_X, "exact", "x: N 5 of 6, C 2 of 16");
  expect(REAL "y_out=true", PLAIN_CHANGES_X, "exact", "expected exactly");
  expect(EXACT "y_out=true C=64", PLAIN_LOSES_NAN_BITS, "exact", "x: N 0 of 6");
}

Test(judge_plain, rows_are_moved_from_where_they_were) {
  expect(EXACT, PLAIN_MOVES_NEIGHBOUR, "exact", "pool: M 0 of 5");
  expect(REAL "row_pad=5", PLAIN_MOVES_NEIGHBOUR, "exact", "pool: M 0 of 5");
  expect(REAL, PLAIN_MOVES_LATE, "exact", "pool: M");
}

/* One ulp at one place is inside tier 2's bounds: the law alone sees it. */
Test(judge_plain, the_order_of_rows_does_not_show) {
  expect("fake_mix section=check tier=calibrated dtype=f32 seed=9 C=4 N=2 M=1", PLAIN_PLACE_SHOWS, "permutation",
         "another order");
  expect(EXACT, PLAIN_ROWS_IN_PLACE, "exact", "N 1 of 6");
}

Test(judge_plain, integers_and_what_else_is_accepted) {
  expect(EXACT "top=true", PLAIN_WRONG_TOP, "exact", "top: N 5 of 6: got");
  expect(REAL "top=true y_out=true", PLAIN_WRONG_TOP, "exact", "top: N 5 of 6");
  expect(EXACT "top=true", PLAIN_TOP_UNWRITTEN, "unwritten", "top: N 5 of 6: never written");
  const case_result r = judged(EXACT "top=true", PLAIN_OTHER_TOP);
  cr_expect_eq(r.verdict, VERDICT_PASS, "the other one of two equal channels: %s", r.message);
}

Test(judge_plain, wrong_values) {
  expect(EXACT, PLAIN_GAIN_LOST, "exact", "x: N 0 of 6");
  expect(REAL "y_out=true", PLAIN_GAIN_LOST, "element", "y_out: N 0 of 6");
  expect(REAL "y_out=true", PLAIN_LAST_DROPPED, "element", "C 15 of 16");
}

#define SPECIAL "fake_code section=check values=special dtype=f32 seed=5 "

Test(judge_plain, special_values) {
  for (int i = 0; i < 60; ++i) {
    char text[128];
    (void)snprintf(text, sizeof text, "fake_code values=%s dtype=%s N=%d C=%d seed=%d row_pad=%d",
                   i % 2 == 0 ? "special" : "normal", (const char *[]){"f32", "f16", "bf16"}[i % 3], 1 + i % 5,
                   1 + i % 31, i, i % 4);
    const case_result r = judged(text, PLAIN_NONE);
    cr_assert_eq(r.verdict, VERDICT_PASS, "%s: %s: %s", text, r.check, r.message);
  }
  expect(SPECIAL, PLAIN_NUMBER_FOR_NAN, "element", "got 0, expected exactly nan");
  expect(SPECIAL, PLAIN_NAN_FOR_NUMBER, "element", "got nan");
  expect(SPECIAL, PLAIN_NAN_SIGN, "element", "nan, expected exactly nan");
  expect(SPECIAL, PLAIN_WRAPS, "element", "got nan");
  expect("fake_code section=check values=normal dtype=f16 N=9 C=64 seed=7", PLAIN_ROW_BEFORE, "element",
         " ulp of e4m3; ");
}

#define APPEND "fake_append section=check dtype=f32 kv_dtype=same seed=6 "

Test(judge_plain, caches_that_are_written) {
  static const char *const shapes[] = {"mode=decode kv_len=5,16,0,37 ", "mode=chunked kv_len=9,24 new=9,5 ",
                                       "mode=chunked kv_len=9,24 new=2,3 kv_pad=interleaved ",
                                       "mode=decode kv_len=1 kv_pad=24 tables=huge "};
  for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; ++i) {
    char text[256];
    (void)snprintf(text, sizeof text, "%s%s", APPEND, shapes[i]);
    const case_result r = judged(text, PLAIN_NONE);
    cr_assert_eq(r.verdict, VERDICT_PASS, "%s: %s: %s", text, r.check, r.message);
    expect(text, PLAIN_KEYS_AS_VALUES, "exact", "v_cache: request 0");
    expect(text, PLAIN_HEADS_SWAPPED, "exact", "k_cache: request 0");
    /* Among new tokens of one request the slot beside the last one is another new token's. */
    expect(text, PLAIN_SECOND_SLOT, i == 1 || i == 2 ? "exact" : "guard", "k_cache: ");
    expect(text, PLAIN_OTHER_SLOT, i == 1 || i == 2 ? "exact" : "guard", "k_cache: ");
  }
  expect(APPEND "mode=decode kv_len=5,0,37", PLAIN_PAD_WRITTEN, "guard", "the call changed what is no new token's");
}

/* ---- planted errors ---------------------------------------------------------------------------------- */

static case_result planted(const char *descriptor) {
  power_set(POWER_ALL);
  const case_result r = judged(descriptor, PLAIN_NONE);
  power_set(POWER_OFF);
  cr_assert_eq(r.verdict, VERDICT_PASS, "%s: %s", descriptor, r.message);
  return r;
}

Test(judge_plain, planted_errors_are_seen_or_void) {
  case_result r = planted(EXACT "y_out=true top=true");
  cr_expect_eq(r.spoils_seen, 7u);
  r = planted(REAL "row_pad=8");
  cr_expect_eq(r.spoils_seen, 7u);

  r = planted("fake_append dtype=f32 mode=decode kv_len=0 seed=1");
  cr_expect_eq(r.spoils_void, 1u);
  r = planted(APPEND "mode=decode kv_len=5,16");
  cr_expect_eq(r.spoils_seen, 1u);
}

/* Nothing but gains of 1: the gain lost changes nothing, although x and the pool are outputs as well. */
Test(judge_plain, what_stays_is_not_seen_as_spoiled) {
  const char *line = "fake_mix tier=calibrated dtype=f32 N=1 M=1 C=4 y_out=true seed=2";
  assay_case one = plain_case(line);
  trial t = {.one = &one, .variant = &plain_mix, .device = &fake_device};
  case_result r = {.verdict = VERDICT_PASS};
  cr_assert(trial_shape(&t, &r) && trial_reference(&t, &r), "%s", r.message);
  float *g = t.first.arg[1].data;
  const float *x = t.first.arg[0].data;
  for (int c = 0; c < 4; ++c) {
    g[c] = 1.0f;
    t.expected[2].value[c] = (double)x[c];
  }
  power_set(POWER_ALL);
  power_judge(&t, &r);
  power_set(POWER_OFF);
  cr_expect_eq(r.spoils_void, 7u, "seen %x, unseen %x", r.spoils_seen, r.spoils_unseen);
  trial_free(&t);
  case_free(&one);
}

/* ---- sum contracts ------------------------------------------------------------------------------------- */

static assay_status declared; /* the status that sums() returns */

static assay_status sums(const assay_call *call, const assay_env *env, assay_sums *to, assay_error *error) {
  (void)call;
  cr_expect(env->multiprocessors > 0);
  to->unit = ASSAY_SUM_FMA;
  return declared == ASSAY_OK ? ASSAY_OK : assay_fail(error, declared, "sums: not known");
}

/* The fake operator is no product of matrices. A variant may decline to say, but it may not declare. */
Test(judge_plain, sums_of_what_is_no_product) {
  static const struct {
    assay_status status;
    verdict verdict;
    const char *check, *says;
  } cases[] = {{ASSAY_OK, VERDICT_FAIL, "predicted", "the operator is no product"},
               {ASSAY_ERR_UNSUPPORTED, VERDICT_PASS, "", ""},
               {ASSAY_ERR_INTERNAL, VERDICT_FAIL, "predicted", "sums() of a legal call: sums: not known"},
               {ASSAY_ERR_MEMORY, VERDICT_HOST, "host", "not known"}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i) {
    assay_case one = plain_case(EXACT);
    assay_variant variant = *assay_variant_find(one.op->name, "loops", "simt");
    case_result r;
    variant.sums = sums;
    declared = cases[i].status;
    judge_case(&one, &variant, &fake_device, &r);
    cr_expect_eq(r.verdict, cases[i].verdict, "%s: %s", verdict_name(r.verdict), r.message);
    cr_expect_str_eq(r.check, cases[i].check);
    cr_expect_not_null(strstr(r.message, cases[i].says), "wanted %s: %s", cases[i].says, r.message);
    case_free(&one);
  }
}
