/* flush_test.c: how far a contract that says ftz moves a limit. */
#include "conformance/trial/flush.h"

#include <criterion/criterion.h>

/* Returns sigma after flush_widen, of one value that subnormal inputs do not move. */
static double widened(double value, double sigma) {
  assay_expected expected = {&value, &sigma};
  const assay_expected other = {&value, NULL};
  flush_widen(&expected, &other, 1);
  return sigma;
}

/* x_a cos - x_b sin = -1.317e-36 in f64. FlashInfer flushes x_b sin, and stores -1.30479873e-36. */
Test(flush, a_flushed_term_of_a_sum_is_allowed) {
  const double term = 1.1110682728796316e-38, value = -1.3170556304947761e-36;
  const double limit = 6 * widened(value, 0x1p-130) + 0x1p-127; /* half an ulp of bf16 there: 2^-127 */
  cr_expect(term < limit, "%g is not below %g", term, limit);
  cr_expect(term > 6 * 0x1p-130, "the term is within sigma without flushing");
}

Test(flush, a_limit_widens_by_one_least_number_only) {
  cr_expect_eq(widened(0x1p-103, 0x1p-130), 0x1p-130 + 0x1p-126);
  cr_expect_eq(widened(-0x1p-121, 0), 0x1p-126);
}

Test(flush, numbers_that_are_copied_or_larger_keep_their_limit) {
  cr_expect_eq(widened(0x1p-119, 0), 0);
  cr_expect_eq(widened(0x1p-102, 0x1p-130), 0x1p-130);
  cr_expect_eq(widened(1, 0x1p-24), 0x1p-24);
  cr_expect_eq(widened(0x1p-119, ASSAY_MOVED), ASSAY_MOVED);
}

Test(flush, subnormal_inputs_move_a_result) {
  double value = 1, sigma = 0x1p-30;
  double moved = 1 - 0x1p-20;
  assay_expected expected = {&value, &sigma};
  const assay_expected other = {&moved, NULL};
  flush_widen(&expected, &other, 1);
  cr_expect_eq(sigma, 0x1p-30 + 0x1p-20 + 0x1p-126);
}
