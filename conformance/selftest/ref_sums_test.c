/* ref_sums_test.c: the predictor of tensor-core sums against an H100's own bits, and against closed forms. */
#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#include "bits_fixture.h"
#include "core/dtype.h"
#include "ref/lib/sums.h"

#define BITS ASSAY_SOURCE_DIR "/fixtures/bits"

static assay_error error;

TestSuite(ref_sums, .timeout = 60);

/* ---- the card's bits ----------------------------------------------------------------------------------- */

Test(ref_sums, every_bit_of_an_h100) {
  bits_result result[BITS_PRODUCTS];
  const int32_t count = bits_compare(BITS, NULL, result, &error);
  cr_assert_eq(count, 16, "%d products: %s", count, error.text);
  int64_t elements = 0;
  for (int32_t i = 0; i < count; ++i) {
    cr_expect_eq(result[i].differ, 0, "%s: %d of %d elements differ", result[i].name, (int)result[i].differ,
                 (int)result[i].elements);
    elements += result[i].elements;
  }
  cr_expect_eq(elements, 445, "%d elements", (int)elements);
}

/* Single steps with NaN, infinities, subnormal numbers, zeros, and sums that cancel or overflow. */
Test(ref_sums, every_step_of_an_h100) {
  bits_result result[BITS_PRODUCTS];
  const int32_t count = bits_steps(BITS, result, &error);
  cr_assert_eq(count, 6, "%d files: %s", count, error.text);
  for (int32_t i = 0; i < count; ++i) {
    cr_expect_eq(result[i].elements, 30, "%s", result[i].name);
    cr_expect_eq(result[i].differ, 0, "%s: %d of %d steps differ", result[i].name, (int)result[i].differ,
                 (int)result[i].elements);
  }
}

static void one_part(assay_sums *sums) {
  sums->parts = 1;
}

static void never_promoted(assay_sums *sums) {
  if (sums->scale == ASSAY_SCALE_NONE) sums->promote = 0;
}

static void two_roundings(assay_sums *sums) {
  if (sums->scale != ASSAY_SCALE_NONE) sums->scale = ASSAY_SCALE_PRODUCT_THEN_ADD;
}

static void by_wgmma(assay_sums *sums) {
  if (sums->unit == ASSAY_SUM_MMA_8) sums->unit = ASSAY_SUM_WGMMA_8;
}

static void by_fma(assay_sums *sums) {
  sums->unit = ASSAY_SUM_FMA;
}

/* Each wrong contract gives other bits for the products that it concerns. */
Test(ref_sums, a_wrong_contract_is_seen) {
  static const struct {
    void (*change)(assay_sums *);
    int32_t products; /* that differ, at least */
  } wrong[] = {{one_part, 2}, {never_promoted, 2}, {two_roundings, 2}, {by_wgmma, 2}, {by_fma, 16}};
  for (size_t w = 0; w < sizeof wrong / sizeof *wrong; ++w) {
    bits_result result[BITS_PRODUCTS];
    int32_t differ = 0;
    const int32_t count = bits_compare(BITS, wrong[w].change, result, &error);
    for (int32_t i = 0; i < count; ++i)
      differ += result[i].differ > 0;
    cr_expect_geq(differ, wrong[w].products, "contract %d: %d of %d products: %s", (int)w, differ, count, error.text);
  }
}

/* ---- closed forms: specials ---------------------------------------------------------------------------- */

typedef struct pair {
  double a, b;
} pair;

static uint32_t bits_of(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  return bits;
}

/* Returns c and the products of `count` pairs that follow each other in K. */
static uint32_t sum_of(assay_sum_unit unit, assay_dtype dtype, uint32_t c, const pair *pairs, int64_t count) {
  uint16_t a[2][64] = {{0}}, b[2][64] = {{0}};
  uint32_t out = 0;
  for (int64_t k = 0; k < count; ++k) {
    assay_store_f64(a, dtype, k, pairs[k].a);
    assay_store_f64(b, dtype, k, pairs[k].b);
  }
  const assay_sums sums = {.unit = unit};
  const assay_product product = {
      .a = {.data = a, .dtype = dtype, .rank = 2, .shape = {1, count}, .stride = {count, 1}},
      .b = {.data = b, .dtype = dtype, .rank = 2, .shape = {1, count}, .stride = {count, 1}},
      .start = {.data = &c, .dtype = ASSAY_F32, .rank = 2, .shape = {1, 1}, .stride = {1, 1}}};
  cr_assert_eq(assay_sums_predict(&sums, &product, &out, &error), ASSAY_OK, "%s", error.text);
  return out;
}

#define SUM(unit, dtype, c, ...)                                                                                       \
  sum_of(unit, dtype, c, (const pair[]){__VA_ARGS__}, (int64_t)(sizeof((pair[]){__VA_ARGS__}) / sizeof(pair)))
#define GIVES(unit, dtype, c, bits, ...)                                                                               \
  do {                                                                                                                 \
    const uint32_t predicted = SUM(unit, dtype, c, __VA_ARGS__);                                                       \
    cr_expect_eq(predicted, bits, "%s: %08x, not %08x", #__VA_ARGS__, predicted, (uint32_t)(bits));                    \
  } while (0)

static const uint32_t plus_infinity = 0x7F800000u, minus_infinity = 0xFF800000u, minus_zero = 0x80000000u;

Test(ref_sums, numbers_that_are_none) {
  for (int wide = 0; wide < 2; ++wide) {
    const assay_sum_unit unit = wide ? ASSAY_SUM_WGMMA_16 : ASSAY_SUM_WGMMA_8;
    const assay_dtype dtype = wide ? ASSAY_BF16 : ASSAY_E5M2;
    GIVES(unit, dtype, 0, SUM_NAN, {NAN, 1});
    GIVES(unit, dtype, 0, SUM_NAN, {1, -NAN});
    GIVES(unit, dtype, 0, SUM_NAN, {NAN, 0});
    GIVES(unit, dtype, 0xFFC00001u, SUM_NAN, {1, 1});
  }
  GIVES(ASSAY_SUM_WGMMA_8, ASSAY_E4M3, 0, SUM_NAN, {NAN, 1});
  GIVES(ASSAY_SUM_MMA_8, ASSAY_E4M3, 0, SUM_NAN, {NAN, 1});
  GIVES(ASSAY_SUM_FMA, ASSAY_BF16, 0, SUM_NAN, {NAN, 1});
  for (int wide = 0; wide < 2; ++wide) {
    const assay_sum_unit unit = wide ? ASSAY_SUM_MMA_16 : ASSAY_SUM_MMA_8;
    const uint16_t infinity = wide ? 0x7C00 : 0x7C;
    const assay_dtype dtype = wide ? ASSAY_F16 : ASSAY_E5M2;
    const struct {
      uint16_t a[2], b[2];
      uint32_t c, bits;
    } cases[] = {
        {{infinity, 0}, {0, 0}, 0, SUM_NAN},
        {{0, 0}, {infinity, 0}, 0, SUM_NAN},
        {{infinity, infinity}, {wide ? 0x3C00 : 0x3C, wide ? 0xBC00 : 0xBC}, 0, SUM_NAN},
        {{infinity, 0}, {wide ? 0x3C00 : 0x3C, 0}, minus_infinity, SUM_NAN},
        {{infinity, 0}, {wide ? 0x3C00 : 0x3C, 0}, plus_infinity, plus_infinity},
        {{infinity, 0}, {wide ? 0xBC00 : 0xBC, 0}, 0x3F800000u, minus_infinity},
        {{infinity, 0}, {infinity, 0}, 0, plus_infinity},
        {{0, 0}, {0, 0}, plus_infinity, plus_infinity},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i) {
      uint8_t narrow[2][2];
      for (int k = 0; k < 2; ++k) {
        narrow[0][k] = (uint8_t)cases[i].a[k];
        narrow[1][k] = (uint8_t)cases[i].b[k];
      }
      const void *const a = wide ? (const void *)cases[i].a : narrow[0];
      const void *const b = wide ? (const void *)cases[i].b : narrow[1];
      int16_t significand[2][2], exponent[2][2];
      uint8_t kind[2][2];
      sum_factors x = {significand[0], exponent[0], kind[0], 0, false},
                  y = {significand[1], exponent[1], kind[1], 0, false};
      sum_factors_take(&x, a, dtype, !wide, 1, 2);
      sum_factors_take(&y, b, dtype, !wide, 1, 2);
      const uint32_t predicted = sum_chain(unit, &x, &y, 2, cases[i].c);
      cr_expect_eq(predicted, cases[i].bits, "%s, case %d: %08x", assay_dtype_name(dtype), (int)i, predicted);
    }
  }
}

/* Products alone do not overflow; sums do, and stay so. */
Test(ref_sums, the_end_of_the_range) {
  const assay_sum_unit unit = ASSAY_SUM_WGMMA_16;
  GIVES(unit, ASSAY_BF16, 0, plus_infinity, {0x1p64, 0x1p64}, {0x1p64, 0x1p64});
  GIVES(unit, ASSAY_BF16, 0, plus_infinity, {0x1p64, 0x1p64});
  GIVES(unit, ASSAY_BF16, 0, minus_infinity, {0x1p127, -0x1p127});
  GIVES(unit, ASSAY_BF16, 0, 0, {0x1p64, 0x1p64}, {0x1p64, -0x1p64});
  GIVES(unit, ASSAY_BF16, 0, 0x7F000000u, {0x1p64, 0x1p64}, {0x1p63, -0x1p64});
  const pair stays[] = {{0x1p64, 0x1p64}, {0, 0}, {0, 0}, {0, 0}, {0, 0}, {0, 0}, {0, 0}, {0, 0},           {0, 0},
                        {0, 0},           {0, 0}, {0, 0}, {0, 0}, {0, 0}, {0, 0}, {0, 0}, {0x1p64, -0x1p64}};
  cr_expect_eq(sum_of(unit, ASSAY_BF16, 0, stays, 17), plus_infinity, "the next step does not take it back");
  GIVES(unit, ASSAY_BF16, bits_of(0x1.fffffep127f), bits_of(0x1.fffffep127f), {0x1p51, 0x1p51});
}

Test(ref_sums, zeros_and_subnormal_sums) {
  const assay_sum_unit unit = ASSAY_SUM_WGMMA_16;
  GIVES(unit, ASSAY_BF16, 0, 0, {-0.0, 1}, {0, -3});
  GIVES(unit, ASSAY_BF16, 0, 0, {1, 1}, {1, -1});
  GIVES(unit, ASSAY_BF16, bits_of(0x1p-140f), bits_of(0x1p-140f), {0, 0});
  GIVES(unit, ASSAY_BF16, 0, bits_of(0x1p-140f), {0x1p-70, 0x1p-70});
  GIVES(unit, ASSAY_BF16, 0, bits_of(-0x1p-140f), {0x1p-70, -0x1p-70});
  GIVES(unit, ASSAY_BF16, 0, 0, {0x1p-75, 0x1p-75});
  GIVES(unit, ASSAY_BF16, 0, bits_of(0x1p-149f), {0x1p-75, 0x1p-75}, {0x1p-75, 0x1p-75});
  GIVES(unit, ASSAY_BF16, bits_of(0x1p-126f), bits_of(0x1.fffffcp-127f), {0x1p-75, -0x1p-74});
  GIVES(unit, ASSAY_BF16, minus_zero, 0, {-0.0, 1});
  GIVES(unit, ASSAY_BF16, 0, 0, {0x1p-75, -0x1p-75});
  GIVES(ASSAY_SUM_FMA, ASSAY_BF16, minus_zero, minus_zero, {-0.0, 1});
}

/* A sum of 0 has the exponent -133: terms are cut at 2^-158, however small all of them are. Seen on an H100. */
Test(ref_sums, the_exponent_of_zero) {
  const assay_sum_unit unit = ASSAY_SUM_MMA_16;
  GIVES(unit, ASSAY_BF16, 0, 0, {0x1p-70, 0x1p-79}, {0x1p-75, -0x1p-83});
  GIVES(unit, ASSAY_BF16, 0, 1, {0x1p-70, 0x1p-79}, {0x1p-75, -0x1p-84});
  GIVES(unit, ASSAY_BF16, 0, 0x1FF, {0x1p-70, 0x1p-70}, {0x1p-75, -0x1p-83});
  GIVES(unit, ASSAY_BF16, 0, 0x200, {0x1p-70, 0x1p-70}, {0x1p-75, -0x1p-84});
}

/* ---- closed forms: the cuts ---------------------------------------------------------------------------- */

Test(ref_sums, terms_are_cut) {
  const assay_sum_unit unit = ASSAY_SUM_MMA_16;
  for (int half = 0; half < 2; ++half) {
    const assay_dtype dtype = half ? ASSAY_F16 : ASSAY_BF16;
    GIVES(unit, dtype, bits_of(0x1p25f), bits_of(0x1p25f), {1, 3});
    GIVES(unit, dtype, bits_of(-0x1p25f), bits_of(-0x1p25f), {1, -3});
    GIVES(unit, dtype, bits_of(0x1.8p-25f), bits_of(0x1p-25f), {1.5, 1.5}, {1.5, -1.5});
    GIVES(unit, dtype, bits_of(0x1.8p-26f), 0, {1, 1}, {1, -1});
    GIVES(unit, dtype, bits_of(3), bits_of(3.25f), {0, 4096}, {0.5, 0.5});
  }
  GIVES(unit, ASSAY_F16, bits_of(0x1p-40f), bits_of(0x1p-24f), {0x1p-24, 1});
  GIVES(unit, ASSAY_BF16, bits_of(0x1p-40f), bits_of(0x1p-24f + 0x1p-40f), {0x1p-24, 1});
  /* fp8: 13 places below the largest, 14 bits. */
  GIVES(ASSAY_SUM_WGMMA_8, ASSAY_E4M3, bits_of(0x1p-13f), bits_of(0x1p-13f), {1, 1}, {1, -1});
  GIVES(ASSAY_SUM_WGMMA_8, ASSAY_E4M3, bits_of(0x1.8p-13f), bits_of(0x1p-13f), {1, 1}, {1, -1});
  GIVES(ASSAY_SUM_WGMMA_8, ASSAY_E4M3, bits_of(0x1.fp-14f), 0, {1, 1}, {1, -1});
  GIVES(ASSAY_SUM_WGMMA_8, ASSAY_E4M3, bits_of(0x1.fffffep0f), bits_of(0x1.fff8p0f), {0, 0});
  GIVES(ASSAY_SUM_WGMMA_8, ASSAY_E5M2, bits_of(0x1p-28f), bits_of(0x1p-16f), {0x1p-16, 1});
}

/* f16 sums are rounded to nearest, ties to even, once per step; subnormal ones too. */
Test(ref_sums, sums_of_f16) {
  const assay_sum_unit unit = ASSAY_SUM_MMA_16_F16;
  GIVES(unit, ASSAY_F16, bits_of(2048), bits_of(2048), {1, 1});
  GIVES(unit, ASSAY_F16, bits_of(2050), bits_of(2052), {1, 1});
  GIVES(unit, ASSAY_F16, bits_of(2048), bits_of(2050), {1, 1}, {0x1p-10, 0x1p-3});
  GIVES(unit, ASSAY_F16, bits_of(65504), bits_of(65504), {1, 15});
  GIVES(unit, ASSAY_F16, bits_of(65504), plus_infinity, {1, 16});
  GIVES(unit, ASSAY_F16, bits_of(-65504), minus_infinity, {-1, 16});
  GIVES(unit, ASSAY_F16, 0, 0, {0x1p-14, -0x1p-11});
  GIVES(unit, ASSAY_F16, 0, bits_of(-0x1p-24f), {0x1.8p-14, -0x1p-11});
  /* An H200's: a subnormal sum counts with -14, and 0 with -21. A term below the tie then is cut. */
  GIVES(unit, ASSAY_F16, bits_of(0x1p-23f), bits_of(0x1p-23f), {0x1p-12, 0x1p-13}, {0x1p-24, 0x1p-21});
  GIVES(unit, ASSAY_F16, 0, 0, {0x1p-12, 0x1p-13}, {0x1p-24, 0x1p-24});
  GIVES(unit, ASSAY_F16, 0, bits_of(0x1p-24f), {0x1p-12, 0x1p-13}, {0x1p-24, 0x1p-22});
}

/* The 17th product of 16 bits and the 33rd of 8 bits belong to the next step. */
Test(ref_sums, steps_end) {
  pair pairs[34] = {{1, 1}, {1, -1}};
  pairs[15] = (pair){0x1p-13, 0x1p-13};
  cr_expect_eq(sum_of(ASSAY_SUM_WGMMA_16, ASSAY_F16, 0, pairs, 16), 0);
  pairs[16] = pairs[15];
  pairs[15] = (pair){0, 0};
  cr_expect_eq(sum_of(ASSAY_SUM_WGMMA_16, ASSAY_F16, 0, pairs, 17), bits_of(0x1p-26f));
  pair narrow[34] = {{1, 1}, {1, -1}};
  narrow[31] = (pair){0x1p-7, 0x1p-7};
  cr_expect_eq(sum_of(ASSAY_SUM_WGMMA_8, ASSAY_E4M3, 0, narrow, 32), 0);
  narrow[32] = narrow[31];
  narrow[31] = (pair){0, 0};
  cr_expect_eq(sum_of(ASSAY_SUM_WGMMA_8, ASSAY_E4M3, 0, narrow, 33), bits_of(0x1p-14f));
}

/* ---- the contract -------------------------------------------------------------------------------------- */

/* Parts whose sums are 2^24, 1, 1, 1: f32 additions lose a 1 beside 2^24. The middle steps do not meet. */
static float joined(assay_sum_join join, const int64_t *ends, int64_t parts, int64_t tile) {
  static const float a[4] = {0x1p12f, 1, 1, 1}, b[4] = {0x1p12f, 1, 1, 1};
  const assay_sums sums = {.unit = ASSAY_SUM_FMA, .parts = parts, .tile = tile, .ends = ends, .join = join};
  const assay_product product = {
      .a = {.data = (void *)(uintptr_t)a, .dtype = ASSAY_F32, .rank = 2, .shape = {1, 4}, .stride = {4, 1}},
      .b = {.data = (void *)(uintptr_t)b, .dtype = ASSAY_F32, .rank = 2, .shape = {1, 4}, .stride = {4, 1}}};
  float out = 0;
  cr_assert_eq(assay_sums_predict(&sums, &product, &out, &error), ASSAY_OK, "%s", error.text);
  return out;
}

Test(ref_sums, parts_and_joins) {
  cr_expect_eq(joined(ASSAY_JOIN_ASCENDING, NULL, 0, 0), 0x1p24f);
  cr_expect_eq(joined(ASSAY_JOIN_ASCENDING, NULL, 4, 0), 0x1p24f);
  cr_expect_eq(joined(ASSAY_JOIN_DESCENDING, NULL, 4, 0), 0x1p24f + 4, "3 + 2^24 is a tie");
  cr_expect_eq(joined(ASSAY_JOIN_PAIRWISE, NULL, 4, 0), 0x1p24f + 2);
  cr_expect_eq(joined(ASSAY_JOIN_ASCENDING, NULL, 2, 0), 0x1p24f + 2);
  cr_expect_eq(joined(ASSAY_JOIN_ASCENDING, (const int64_t[]){1, 4}, 2, 0), 0x1p24f + 4);
  cr_expect_eq(joined(ASSAY_JOIN_ASCENDING, NULL, 2, 3), 0x1p24f, "3 and 1");
  cr_expect_eq(joined(ASSAY_JOIN_ASCENDING, NULL, 3, 1), 0x1p24f + 2, "2, 2 and none");
}

static int64_t backwards(int64_t i, int64_t K) {
  return K - 1 - i;
}

static int64_t outside(int64_t i, int64_t K) {
  return i + K;
}

Test(ref_sums, order_strides_start_and_output) {
  static const uint16_t ones[4] = {0x3F80, 0xAAAA, 0x3F80, 0xAAAA};
  static const float large[3] = {0x1p24f, 1, 1}, unit[3] = {1, 1, 1};
  assay_sums sums = {.unit = ASSAY_SUM_FMA, .order = backwards};
  assay_product product = {
      .a = {.data = (void *)(uintptr_t)large, .dtype = ASSAY_F32, .rank = 2, .shape = {1, 3}, .stride = {3, 1}},
      .b = {.data = (void *)(uintptr_t)unit, .dtype = ASSAY_F32, .rank = 2, .shape = {1, 3}, .stride = {3, 1}}};
  float out = 0;
  cr_assert_eq(assay_sums_predict(&sums, &product, &out, &error), ASSAY_OK, "%s", error.text);
  cr_expect_eq(out, 0x1p24f + 2, "the two ones first");
  float start = 0x1.01p8f; /* + 2: 259, a tie of bf16 */
  uint16_t stored = 0;
  sums = (assay_sums){.unit = ASSAY_SUM_WGMMA_16, .output = ASSAY_BF16};
  product.a = product.b = (assay_tensor){
      .data = (void *)(uintptr_t)ones, .dtype = ASSAY_BF16, .rank = 2, .shape = {1, 2}, .stride = {4, 2}};
  product.start = (assay_tensor){.data = &start, .dtype = ASSAY_F32, .rank = 2, .shape = {1, 1}, .stride = {1, 1}};
  cr_assert_eq(assay_sums_predict(&sums, &product, &stored, &error), ASSAY_OK, "%s", error.text);
  cr_expect_eq(stored, 0x4382, "%04x: 259 to even is 260", stored);
}

/* ---- after the sum: a factor of the row, and a second product ------------------------------------------ */

static assay_tensor row_of(const float *data, int64_t rows, int64_t columns) {
  return (assay_tensor){
      .data = (void *)(uintptr_t)data, .dtype = ASSAY_F32, .rank = 2, .shape = {rows, columns}, .stride = {columns, 1}};
}

Test(ref_sums, factors_and_rectified_gates) {
  static const float a[2] = {1, 3}, gates[4] = {2, 0.5f, -1, -1}, ups[4] = {5, 1, 7, 2}, factor = 0.25f,
                     bias[2] = {8, 9};
  const assay_sums scaled = {.unit = ASSAY_SUM_FMA, .after = {ASSAY_AFTER_FACTOR, ASSAY_AFTER_BIAS}};
  assay_product product = {.a = row_of(a, 1, 2), .b = row_of(gates, 2, 2), .factor = row_of(&factor, 1, 1)};
  float c[2];
  product.bias = row_of(bias, 1, 2);
  cr_assert_eq(assay_sums_predict(&scaled, &product, c, &error), ASSAY_OK, "%s", error.text);
  cr_expect(c[0] == 0.25f * 3.5f + 8 && c[1] == 0.25f * -4 + 9, "%g, %g", (double)c[0], (double)c[1]);
  const assay_sums gated = {.unit = ASSAY_SUM_FMA, .after = {ASSAY_AFTER_FACTOR, ASSAY_AFTER_RECTIFIED}};
  product.bias.data = NULL;
  product.second = row_of(ups, 2, 2);
  cr_assert_eq(assay_sums_predict(&gated, &product, c, &error), ASSAY_OK, "%s", error.text);
  cr_expect(c[0] == 0.25f * 3.5f * 0.25f * 8 && c[1] == 0, "%g, %g", (double)c[0], (double)c[1]);
  /* A gate that is NaN gives 0, and an up that is NaN gives NaN. */
  static const float none[4] = {NAN, 0, 1, 1}, lost[4] = {1, 1, NAN, 0};
  product.b = row_of(none, 2, 2);
  product.second = row_of(lost, 2, 2);
  cr_assert_eq(assay_sums_predict(&gated, &product, c, &error), ASSAY_OK, "%s", error.text);
  cr_expect(c[0] == 0 && isnan(c[1]), "%g, %g", (double)c[0], (double)c[1]);
}

Test(ref_sums, terms_without_a_step_are_refused) {
  static const float one[4] = {1, 1, 1, 1};
  const assay_tensor row = row_of(one, 1, 2), flat = row_of(one, 2, 2);
  const struct {
    assay_sums sums;
    assay_tensor factor, second;
    const char *says;
  } cases[] = {
      {{.unit = ASSAY_SUM_FMA}, row, {0}, "after, factor: found 0"},
      {{.unit = ASSAY_SUM_FMA, .after = {ASSAY_AFTER_FACTOR, ASSAY_AFTER_FACTOR}}, {0}, {0}, "after, factor: found 2"},
      {{.unit = ASSAY_SUM_FMA, .after = {ASSAY_AFTER_FACTOR}}, row, {0}, "factor: found [1, 2], allowed: [1, 1]"},
      {{.unit = ASSAY_SUM_FMA}, {0}, row, "after, rectified: found 0"},
      {{.unit = ASSAY_SUM_FMA, .after = {ASSAY_AFTER_RECTIFIED}}, {0}, {0}, "after, rectified: found 1"},
      {{.unit = ASSAY_SUM_FMA, .after = {ASSAY_AFTER_RECTIFIED}}, {0}, flat, "second: found other extents"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i) {
    const assay_product product = {.a = row, .b = row, .factor = cases[i].factor, .second = cases[i].second};
    uint32_t out = 0xABCDu;
    error.text[0] = '\0';
    cr_expect_eq(assay_sums_predict(&cases[i].sums, &product, &out, &error), ASSAY_ERR_INPUT, "%s", cases[i].says);
    cr_expect_not_null(strstr(error.text, cases[i].says), "wanted %s: %s", cases[i].says, error.text);
    cr_expect_eq(out, 0xABCDu, "%s: something was written", cases[i].says);
  }
}

Test(ref_sums, refusals_name_the_field) {
  static const uint16_t ones[4] = {0x3F80, 0x3F80, 0x3F80, 0x3F80};
  const assay_tensor bf16 = {
      .data = (void *)(uintptr_t)ones, .dtype = ASSAY_BF16, .rank = 2, .shape = {1, 4}, .stride = {4, 1}};
  assay_tensor f16 = bf16, i32 = bf16, shorter = bf16, flat = bf16, f32 = bf16;
  f16.dtype = ASSAY_F16;
  i32.dtype = ASSAY_I32;
  f32.dtype = ASSAY_F32;
  shorter.shape[1] = 3;
  flat.rank = 1;
  const struct {
    assay_sums sums;
    assay_tensor a, b, scale;
    const char *says;
  } cases[] = {
      {{.parts = 1}, bf16, bf16, {0}, "unit"},
      {{.unit = ASSAY_SUM_UNITS}, bf16, bf16, {0}, "unit"},
      {{.unit = ASSAY_SUM_WGMMA_8}, bf16, bf16, {0}, "e4m3, e5m2"},
      {{.unit = ASSAY_SUM_WGMMA_16}, f32, f32, {0}, "f16, bf16"},
      {{.unit = ASSAY_SUM_MMA_TF32}, bf16, bf16, {0}, "f32"},
      {{.unit = ASSAY_SUM_MMA_16_F16}, bf16, bf16, {0}, "f16"},
      {{.unit = ASSAY_SUM_FMA}, bf16, i32, {0}, "b: found i32"},
      {{.unit = ASSAY_SUM_MMA_16}, bf16, f16, {0}, "the type of a"},
      {{.unit = ASSAY_SUM_MMA_16}, bf16, shorter, {0}, "K of b"},
      {{.unit = ASSAY_SUM_MMA_16}, flat, bf16, {0}, "a, its rank"},
      {{.unit = ASSAY_SUM_MMA_16, .parts = 3}, bf16, bf16, {0}, "parts: found 3"},
      {{.unit = ASSAY_SUM_MMA_16, .parts = 5}, bf16, bf16, {0}, "parts: found 5"},
      {{.unit = ASSAY_SUM_MMA_16, .parts = -1}, bf16, bf16, {0}, "parts: found -1"},
      {{.unit = ASSAY_SUM_MMA_16, .tile = -1}, bf16, bf16, {0}, "tile: found -1"},
      {{.unit = ASSAY_SUM_MMA_16, .parts = 2, .ends = (const int64_t[]){2, 3}}, bf16, bf16, {0}, "ends, the last"},
      {{.unit = ASSAY_SUM_MMA_16, .parts = 2, .ends = (const int64_t[]){5, 4}}, bf16, bf16, {0}, "ends: found 5"},
      {{.unit = ASSAY_SUM_MMA_16, .join = ASSAY_JOINS}, bf16, bf16, {0}, "join"},
      {{.unit = ASSAY_SUM_MMA_16, .promote = 8}, bf16, bf16, {0}, "promote: found 8"},
      {{.unit = ASSAY_SUM_MMA_16, .order = outside}, bf16, bf16, {0}, "order: found 4"},
      {{.unit = ASSAY_SUM_MMA_16, .scale = ASSAY_SCALES}, bf16, bf16, {0}, "scale: found"},
      {{.unit = ASSAY_SUM_MMA_16, .scale = ASSAY_SCALE_FMA_PRODUCT}, bf16, bf16, f32, "promote: found 0"},
      {{.unit = ASSAY_SUM_MMA_16, .scale = ASSAY_SCALE_AFTER}, bf16, bf16, {0}, "scale_a: found none"},
      {{.unit = ASSAY_SUM_MMA_16, .scale = ASSAY_SCALE_AFTER}, bf16, bf16, f32, "scale_a: found [1, 4]"},
      {{.unit = ASSAY_SUM_MMA_16, .scale = ASSAY_SCALE_AFTER}, bf16, bf16, bf16, "scale_a: found bf16"},
      {{.unit = ASSAY_SUM_MMA_16}, bf16, bf16, f32, "scale_a: found a tensor"},
      {{.unit = ASSAY_SUM_MMA_16, .output = ASSAY_E4M3}, bf16, bf16, {0}, "output: found e4m3"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i) {
    const assay_product product = {
        .a = cases[i].a, .b = cases[i].b, .scale_a = cases[i].scale, .scale_b = cases[i].scale};
    uint32_t out = 0xABCDu;
    error.text[0] = '\0';
    cr_expect_eq(assay_sums_predict(&cases[i].sums, &product, &out, &error), ASSAY_ERR_INPUT, "%s", cases[i].says);
    cr_expect_not_null(strstr(error.text, cases[i].says), "wanted %s: %s", cases[i].says, error.text);
    cr_expect_eq(out, 0xABCDu, "%s: something was written", cases[i].says);
  }
}
