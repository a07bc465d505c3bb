/* narrow_test.c: the search for a contract, over kernels whose errors are known. */
#include <criterion/criterion.h>
#include <math.h>

#include "conformance/run/narrow.h"
#include "core/dtype.h"

/* A kernel: its own error, and limits that follow from a contract by a rule. A second case sees the score alone, and a
 * third one where sums start. */
typedef struct kernel {
  double error, score_error, start_error;
  bool nan;
  int32_t calls;
} kernel;

static double weight(assay_dtype dtype) {
  return dtype == ASSAY_NONE ? 0 : assay_ulp(1.0, dtype);
}

static double limit_of(const assay_contract *c) {
  return 1e-8 * c->exp_ulp + 1e-7 / c->lanes + weight(c->p) + 2 * weight(c->score);
}

static assay_status ask(void *context, const assay_contract *list, int32_t count, narrow_seen *seen,
                        assay_error *error) {
  kernel *k = context;
  (void)error;
  ++k->calls;
  for (int32_t i = 0; i < count; ++i) {
    const double first = k->nan ? (double)INFINITY : k->error / limit_of(&list[i]);
    const double second = k->score_error / (1e-7 + 2 * weight(list[i].score));
    const double started = list[i].start == ASSAY_START_BIAS ? 1e-6 / list[i].lanes : 1e-10;
    const double third = k->start_error / (started + weight(list[i].partial));
    seen[i] = (narrow_seen){fmax(fmax(first, second), third), (first + second + third) / 2};
  }
  return ASSAY_OK;
}

static narrow_result search(kernel k, const assay_contract *declared) {
  narrow_result result;
  assay_error error = {""};
  cr_assert_eq(narrow_search(declared, ask, &k, &result, &error), ASSAY_OK, "%s", error.text);
  cr_expect_gt(k.calls, 1);
  return result;
}

static const assay_contract plain = {
    .exp_ulp = 2, .lanes = 4, .qk_lanes = 1, .pv_lanes = 1, .keys_per_split = 256, .run_to_run = true};

Test(narrow, a_kernel_of_f32_needs_nothing) {
  const narrow_result r = search((kernel){.error = 0.9e-8}, &plain);
  cr_expect(r.found);
  cr_expect_leq(r.declared.largest, 1);
  cr_expect_eq(r.contract.p, ASSAY_NONE);
  cr_expect_leq(r.contract.exp_ulp, 1);
  cr_expect_eq(r.contract.lanes, 1024);
  cr_expect_eq(r.contract.keys_per_split, 256, "what is no limit of rounding stays as declared");
  cr_expect(r.contract.run_to_run);
}

Test(narrow, a_rounding_that_is_not_declared_is_found) {
  const narrow_result r = search((kernel){.error = 0.9 * assay_ulp(1.0, ASSAY_BF16)}, &plain);
  cr_expect_gt(r.declared.largest, 1);
  cr_expect(r.found);
  cr_expect_eq(r.contract.p, ASSAY_BF16);
  cr_expect_eq(r.contract.score, ASSAY_NONE);
  cr_expect_leq(r.seen.largest, 1);
  cr_expect_gt(r.seen.largest, 0.85, "no wider than it must be");
}

/* Two fields are needed, and a single one of each would not do. */
Test(narrow, two_roundings_are_found) {
  const narrow_result r = search(
      (kernel){.error = 0.9 * assay_ulp(1.0, ASSAY_BF16) + assay_ulp(1.0, ASSAY_F16), .score_error = 1e-4}, &plain);
  cr_expect(r.found);
  cr_expect_eq(r.contract.score, ASSAY_F16);
  cr_expect_neq(r.contract.p, ASSAY_NONE);
  cr_expect_leq(r.seen.largest, 1);
}

/* A rounding of partial sums would do as well, with far wider limits. */
Test(narrow, a_sum_that_starts_from_the_bias_is_found) {
  const narrow_result r = search((kernel){.error = 1e-9, .start_error = 0.9e-6}, &plain);
  cr_expect_gt(r.declared.largest, 1);
  cr_expect(r.found);
  cr_expect_eq(r.contract.start, ASSAY_START_BIAS);
  cr_expect_eq(r.contract.lanes, 1);
  cr_expect_eq(r.contract.partial, ASSAY_NONE);
  cr_expect(r.seen.largest > 0.85 && r.seen.largest <= 1);
}

Test(narrow, a_declared_contract_that_is_too_wide_is_narrowed) {
  assay_contract wide = plain;
  wide.p = ASSAY_BF16;
  wide.score = ASSAY_BF16;
  wide.exp_ulp = 4096;
  const narrow_result r = search((kernel){.error = 3e-7}, &wide);
  cr_expect_leq(r.declared.largest, 1);
  cr_expect_eq(r.contract.p, ASSAY_NONE);
  cr_expect_eq(r.contract.score, ASSAY_NONE);
  cr_expect_leq(r.contract.exp_ulp, 256);
  cr_expect_gt(r.seen.mean, r.declared.mean);
}

Test(narrow, what_is_no_rounding_has_no_contract) {
  narrow_result r = search((kernel){.error = 3}, &plain);
  cr_expect_not(r.found);
  cr_expect_gt(r.seen.largest, 1);
  cr_expect_eq(r.contract.p, ASSAY_E5M2, "the widest is shown");
  r = search((kernel){.nan = true}, &plain);
  cr_expect_not(r.found);
}

/* A field without effect on any ratio is not named. */
Test(narrow, fields_that_matter) {
  const narrow_result r = search((kernel){.error = 1e-7}, &plain);
  for (int32_t i = 0; i < NARROW_FIELDS; ++i) {
    const char *name = narrow_field(i);
    const bool used = strcmp(name, "p") == 0 || strcmp(name, "score") == 0 || strcmp(name, "exp_ulp") == 0 ||
                      strcmp(name, "lanes") == 0;
    cr_expect_eq(r.matters[i], used, "%s", name);
  }
}
