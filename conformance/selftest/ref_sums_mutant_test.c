/* ref_sums_mutant_test.c: the predictor with a mistake planted, one at a time: the bits of an H100 show each of them.
 * Copies of its sources, which plant.sh makes by sums_mistakes.def, are compiled in here, in place of the library's. */
#include <stdlib.h>

#include "sums_mistakes.h"

#include "planted/ref/lib/sums.c"
#include "planted/ref/lib/sums_predict.c"

#include <criterion/criterion.h>

#include "bits_fixture.h"

#define BITS ASSAY_SOURCE_DIR "/fixtures/bits"

/* The recorded bits that show a mistake: whole products, single steps with special and extreme values, or steps of f16
 * sums with a small c. */
enum { PRODUCTS = 1, STEPS = 2, SMALL = 4 };

static const struct {
  int mistake;
  const char *name;
  int shown_by; /* each alone */
} mistakes[] = {
    {SUM_KEPT_ONE_LESS, "terms are cut one bit too high", PRODUCTS | STEPS},
    {SUM_KEPT_ONE_MORE, "terms are cut one bit too low", PRODUCTS | STEPS},
    {SUM_ONE_BIT_LESS, "a sum has one bit less", PRODUCTS | STEPS},
    {SUM_ONE_BIT_MORE, "a sum has one bit more", PRODUCTS | STEPS},
    {SUM_ROUNDED, "a sum is rounded to nearest", PRODUCTS | STEPS},
    {SUM_TERMS_ROUNDED, "terms are rounded to nearest", PRODUCTS | STEPS},
    {SUM_TERMS_CUT_DOWN, "negative terms are cut away from zero", PRODUCTS | STEPS},
    {SUM_C_NOT_CUT, "the sum so far is not cut", PRODUCTS | STEPS},
    {SUM_STEP_OF_8, "8 products a step", PRODUCTS | STEPS},
    {SUM_STEP_OF_32, "32 products of 16 bits a step", PRODUCTS},
    {SUM_FP8_STEP_OF_16, "16 products of fp8 a step", PRODUCTS | STEPS},
    {SUM_PRODUCTS_OWN_EXPONENT, "the exponent of 1.5 · 1.5 is 1", PRODUCTS | STEPS},
    {SUM_SUBNORMAL_OWN_EXPONENT, "a subnormal factor has its own exponent", STEPS},
    {SUM_C_HAS_NO_EXPONENT, "the sum so far has no exponent", PRODUCTS | STEPS},
    {SUM_ZERO_HAS_NO_EXPONENT, "a sum of 0 has no exponent", STEPS},
    {SUM_ZERO_KEEPS_SIGN, "a negative sum that is cut to 0 gives -0", STEPS},
    {SUM_PRODUCTS_OF_ZERO_COUNT, "a zero factor has the exponent 0", PRODUCTS | STEPS},
    {SUM_OTHER_NAN, "NaN is 0x7FC00000", STEPS},
    {SUM_INFINITY_TIMES_ZERO, "Inf · 0 is Inf", STEPS},
    {SUM_INFINITIES_CANCEL, "Inf - Inf is Inf", STEPS},
    {SUM_LARGEST_NOT_INFINITE, "overflow gives the largest number", STEPS},
    {SUM_SUBNORMALS_FLUSHED, "subnormal sums become 0", STEPS},
    {SUM_MMA_HALVES, "mma.sync of fp8 takes k below 16 first", PRODUCTS | STEPS},
    {SUM_MMA_OTHER_HALF_FIRST, "mma.sync of fp8 takes k mod 4 of 2, 3 first", PRODUCTS | STEPS},
    {SUM_MMA_FROM_C, "mma.sync of fp8 starts from C", PRODUCTS | STEPS},
    {SUM_F16_CUT, "a sum of f16 is cut, not rounded", STEPS},
    {SUM_F16_SUBNORMAL_AS_IN_F32, "a subnormal sum of f16 has its own exponent", SMALL},
    {SUM_F16_ZERO_AS_IN_F32, "a sum of f16 that is 0 has the exponent of f32 sums", SMALL},
    {SUM_TF32_ROUNDED, "tf32 factors are rounded, not cut", STEPS},
    {SUM_TF32_STEP_OF_4, "4 products of tf32 a step", STEPS},
    {SUM_PARTS_CONTINUE, "a part starts from the sum of the one before", PRODUCTS},
    {SUM_JOIN_DESCENDS, "the last part comes first", PRODUCTS},
    {SUM_JOIN_PAIRWISE, "parts are joined in pairs", PRODUCTS},
    {SUM_PROMOTED_CONTINUES, "no promotion", PRODUCTS},
    {SUM_SCALE_TWO_ROUNDINGS, "a scaled sum is rounded, then added", PRODUCTS},
    {SUM_SCALE_OF_FIRST_GROUP, "every promoted sum has the first scale", PRODUCTS},
};

/* Two products that an H200 added to a small f16 sum, and what it gave (docs/last-bit.md). */
static const struct {
  float c, a[2], b[2], sum;
} small_steps[] = {{0x1p-23f, {0x1p-12f, 0x1p-24f}, {0x1p-13f, 0x1p-21f}, 0x1p-23f},
                   {0, {0x1p-12f, 0x1p-24f}, {0x1p-13f, 0x1p-24f}, 0},
                   {0, {0x1p-12f, 0x1p-24f}, {0x1p-13f, 0x1p-22f}, 0x1p-24f}};

static int64_t small_differing(void) {
  const int64_t count = sizeof small_steps / sizeof *small_steps;
  int64_t differ = 0;
  for (int64_t i = 0; i < count; ++i) {
    uint16_t a[2], b[2];
    uint32_t out = 0;
    assay_error error = {.text = ""};
    for (int64_t k = 0; k < 2; ++k) {
      assay_store_f64(a, ASSAY_F16, k, (double)small_steps[i].a[k]);
      assay_store_f64(b, ASSAY_F16, k, (double)small_steps[i].b[k]);
    }
    const assay_sums sums = {.unit = ASSAY_SUM_MMA_16_F16};
    const assay_product product = {
        .a = {.data = a, .dtype = ASSAY_F16, .rank = 2, .shape = {1, 2}, .stride = {2, 1}},
        .b = {.data = b, .dtype = ASSAY_F16, .rank = 2, .shape = {1, 2}, .stride = {2, 1}},
        .start = {.data = (void *)&small_steps[i].c, .dtype = ASSAY_F32, .rank = 2, .shape = {1, 1}, .stride = {1, 1}}};
    if (assay_sums_predict(&sums, &product, &out, &error) != ASSAY_OK) return -1;
    differ += memcmp(&out, &small_steps[i].sum, sizeof out) != 0;
  }
  return differ;
}

/* Elements or steps that have other bits than the card's; -1: a file could not be read. */
static int64_t differing(int mistake, int judge) {
  assay_error error = {.text = ""};
  bits_result result[BITS_PRODUCTS];
  sum_mistake = mistake;
  if (judge == SMALL) {
    const int64_t small = small_differing();
    sum_mistake = SUM_NO_MISTAKE;
    return small;
  }
  const int32_t count = judge == PRODUCTS ? bits_compare(BITS, NULL, result, &error) : bits_steps(BITS, result, &error);
  int64_t differ = 0;
  for (int32_t i = 0; i < count; ++i)
    differ += result[i].differ;
  sum_mistake = SUM_NO_MISTAKE;
  return count > 0 ? differ : -1;
}

Test(sums_mutants, the_bits_of_an_h100_show_every_mistake, .timeout = 120) {
  cr_assert_eq(differing(SUM_NO_MISTAKE, PRODUCTS), 0, "without a mistake");
  cr_assert_eq(differing(SUM_NO_MISTAKE, STEPS), 0, "without a mistake");
  cr_assert_eq(differing(SUM_NO_MISTAKE, SMALL), 0, "without a mistake");
  cr_assert_eq(sizeof mistakes / sizeof *mistakes, SUM_MISTAKES - 1, "a mistake is not in the table");
  for (size_t i = 0; i < sizeof mistakes / sizeof *mistakes; ++i) {
    const int64_t products = differing(mistakes[i].mistake, PRODUCTS), steps = differing(mistakes[i].mistake, STEPS);
    cr_log_info("%s: %d elements, %d steps", mistakes[i].name, (int)products, (int)steps);
    if ((mistakes[i].shown_by & PRODUCTS) != 0) cr_expect_gt(products, 0, "%s: no product shows it", mistakes[i].name);
    if ((mistakes[i].shown_by & STEPS) != 0) cr_expect_gt(steps, 0, "%s: no step shows it", mistakes[i].name);
    if ((mistakes[i].shown_by & SMALL) != 0)
      cr_expect_gt(differing(mistakes[i].mistake, SMALL), 0, "%s: no small sum shows it", mistakes[i].name);
  }
}
