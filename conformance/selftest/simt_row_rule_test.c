/* simt_row_rule_test.c: results of a row that may each stand where they do, and do not fit together, are wrong. */
#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#include "conformance/builtin.h"
#include "conformance/case/case.h"
#include "conformance/trial/trial.h"

static assay_error error;

static void fill(void) {
  cr_assert_eq(builtin_register(&error), ASSAY_OK, "%s", error.text);
}

TestSuite(row_rule, .init = fill, .timeout = 60);

/* Two rows of three experts. b of experts 0 and 1 is 0.75 up to rounding in both. Their scores are 0.5 and 0.75. */
static void set_near_ties(const image *img) {
  const float x[] = {0, logf(3), 0, 0, logf(3), 0}, bias[] = {0.25f, 0, 0};
  memcpy(img->arg[0].data, x, sizeof x);
  memcpy(img->arg[1].data, bias, sizeof bias);
}

Test(row_rule, ids_that_stand_twice_and_weights_of_others_are_wrong) {
  assay_case one;
  const assay_variant variant = {
      .op = "moe_router", .name = "none", .device = "simt", .contract = {.exp_ulp = 2, .lanes = 1}};
  const struct {
    int32_t ids[2];
    float weights[2];
    const char *why; /* NULL: right */
  } rows[] = {{{0, 1}, {0.5f, 0.75f}, NULL},
              {{1, 0}, {0.75f, 0.5f}, NULL},
              {{0, 0}, {0.5f, 0.5f}, "expert 0 stands in places 0 and 1"},
              {{1, 1}, {0.75f, 0.75f}, "expert 1 stands in places 0 and 1"},
              {{1, 0}, {0.5f, 0.75f}, "place 0 has expert 1, whose weight is 0.75"},
              {{0, 1}, {0.75f, 0.5f}, "place 0 has expert 0, whose weight is 0.5"}};
  cr_assert_eq(case_parse("moe_router section=check tier=calibrated dtype=f32 T=2 E=3 k=2 bias=true score=sigmoid "
                          "renormalise=false seed=5",
                          &one, &error),
               ASSAY_OK, "%s", error.text);
  trial t = {.one = &one, .variant = &variant};
  case_result said = {.verdict = VERDICT_PASS};
  cr_assert(trial_shape(&t, &said) && trial_reference(&t, &said), "%s", said.message);
  set_near_ties(&t.first);
  cr_assert(trial_again(&t, &said), "%s", said.message);
  outputs got;
  cr_assert(outputs_make(&t, &got));
  for (size_t i = 0; i < sizeof rows / sizeof *rows; ++i) {
    finding found;
    memcpy(got.bits[0], rows[0].ids, sizeof rows[0].ids); /* the first row is the expected one */
    memcpy(got.bits[1], rows[0].weights, sizeof rows[0].weights);
    memcpy(got.bits[0] + sizeof rows[0].ids, rows[i].ids, sizeof rows[i].ids);
    memcpy(got.bits[1] + sizeof rows[0].weights, rows[i].weights, sizeof rows[i].weights);
    values_judge(&t, &got, &found);
    cr_expect_eq(found.wrong, rows[i].why != NULL, "row %zu: %s", i, found.message);
    if (rows[i].why == NULL) continue;
    cr_expect_str_eq(found.check, "exact");
    cr_expect_not_null(strstr(found.message, "ids: T 1 of 2, k 0 of 2: each result may stand there"), "%s",
                       found.message);
    cr_expect_not_null(strstr(found.message, rows[i].why), "%s", found.message);
  }
  outputs_free(&got);
  trial_free(&t);
  case_free(&one);
}
