/* rounding_test.c: a stored 16-bit value is one rounding of a number near the expected one, in runs and in judge. */
#include <criterion/criterion.h>
#include <math.h>

#include "conformance/judge/judge.h"
#include "conformance/text/npy.h"
#include "conformance/trial/tier2.h"
#include "conformance/trial/trial.h"
#include "conformance/truth/truth.h"
#include "core/dtype.h"
#include "core/registry_add.h"
#include "fake.h"
#include "files_fixture.h"

#define ASSAY_OP(stem) const assay_op *assay_op_##stem(void);
#include "assay/ops.def"
#undef ASSAY_OP

static assay_error error;

static void start(void) {
#define ASSAY_OP(stem) cr_assert_eq(assay_registry_add_op(assay_op_##stem(), &error), ASSAY_OK, "%s", error.text);
#include "assay/ops.def"
#undef ASSAY_OP
}

TestSuite(rounding, .init = start, .fini = files_gone, .timeout = 60);

/* Returns the sigma of a 16-bit result whose f32 arithmetic is off by `before`. */
static double sigma_of(double value, double before, assay_dtype dtype) {
  const double ulp = assay_ulp(value, dtype);
  return sqrt(before * before + ulp * ulp / 12);
}

/* Every neighbour of an expected value passes exactly if some number within reach rounds to it. */
Test(rounding, what_some_number_in_reach_rounds_to) {
  const assay_dtype type[] = {ASSAY_F16, ASSAY_BF16};
  const double kappa = 3.2;
  int64_t right = 0, wrong = 0;
  for (int d = 0; d < 2; ++d)
    for (int64_t i = -3999; i < 4000; i += 2) {
      const double expected = (double)i * 0x1.234567p-9, before = 0x1p-14 * (fabs(expected) + 0x1p-20);
      const double sigma = sigma_of(expected, before, type[d]), ulp = assay_ulp(expected, type[d]);
      for (int step = -3; step <= 3; ++step) {
        const double got = assay_round_f64(expected + step * ulp, type[d]);
        const double last = assay_ulp(expected, ASSAY_F32), reach = kappa * sqrt(before * before + last * last / 12);
        bool reached = false;
        for (int k = -200; k <= 200; ++k)
          reached = reached || assay_round_f64(expected + reach * k / 200, type[d]) == got;
        const double ratio = tier2_rounding(got, expected, sigma, kappa, type[d]);
        cr_expect_eq(ratio <= 1, reached, "%s: %g for %.17g: %g", assay_dtype_name(type[d]), got, expected, ratio);
        right += reached;
        wrong += !reached;
      }
    }
  cr_expect(right > 8000 && wrong > 40000, "%lld %lld", (long long)right, (long long)wrong);
}

Test(rounding, corners) {
  const double own = sigma_of(257, 0, ASSAY_BF16), ulp = 0x1p-7;
  /* A sum that is exact in f32 has one rounding: the even one of two. */
  cr_expect(tier2_rounding(256, 257, own, 2.5, ASSAY_BF16) <= 1);
  cr_expect(!(tier2_rounding(258, 257, own, 2.5, ASSAY_BF16) <= 1));
  cr_expect(tier2_rounding(258, 257, sigma_of(257, 0.01, ASSAY_BF16), 2.5, ASSAY_BF16) <= 1, "off by a tie's width");
  /* A value that is off by one ulp or none, and no more. */
  cr_expect(tier2_rounding(1 + ulp, 1, ulp, 2.5, ASSAY_BF16) <= 1);
  cr_expect(!(tier2_rounding(1 + 2 * ulp, 1, ulp, 2.5, ASSAY_BF16) <= 1));
  /* f16 ends at 65504; infinity begins at 65520. */
  cr_expect(tier2_rounding((double)INFINITY, 65519.9, sigma_of(65519.9, 0.1, ASSAY_F16), 2.5, ASSAY_F16) <= 1);
  cr_expect(!(tier2_rounding((double)INFINITY, 65510, sigma_of(65510, 0.1, ASSAY_F16), 2.5, ASSAY_F16) <= 1));
  cr_expect(!(tier2_rounding((double)NAN, 3, sigma_of(3, 0.1, ASSAY_F16), 2.5, ASSAY_F16) <= 1));
  /* Other types have no such rounding, nor have values that are known exactly. */
  cr_expect_eq(tier2_rounding(9, 3, 1, 2.5, ASSAY_F32), 0);
  cr_expect_eq(tier2_rounding(9, 3, 0, 2.5, ASSAY_BF16), 0);
}

/* A run names an element in bounds that no number near the expected one rounds to. */
Test(rounding, in_a_run) {
  assay_case one = fake_case(TIER_CALIBRATED);
  const draw choice = {.poison = 1};
  trial t = {.one = &one, .variant = &fake_variant, .device = &fake_device};
  cr_assert_eq(image_make(&one, &choice, NULL, &t.first, &error), ASSAY_OK, "%s", error.text);
  double value[2] = {257, 3}, sigma[2] = {sigma_of(257, 0, ASSAY_BF16), sigma_of(3, 0, ASSAY_BF16)};
  t.count = 1;
  t.output[0] = (trial_output){.arg = 9, .width = 1, .group = 1, .dtype = ASSAY_BF16};
  t.rows.count = 2;
  t.expected[0] = (assay_expected){value, sigma};
  uint16_t got[2];
  const outputs seen = {{(unsigned char *)got}};
  finding f;
  for (int wrong = 0; wrong < 2; ++wrong) {
    assay_store_f64(got, ASSAY_BF16, 0, wrong ? 258 : 256);
    assay_store_f64(got, ASSAY_BF16, 1, 3);
    values_judge(&t, &seen, &f);
    cr_expect_eq(f.wrong, wrong != 0, "%s", f.message);
    cr_expect_eq(f.ratio_element > 1, wrong != 0, "%g", f.ratio_element);
    if (!wrong) continue;
    cr_expect_str_eq(f.check, "rounding");
    cr_expect_eq(f.wrong_elements, 1);
    cr_expect_not_null(strstr(f.message, "got 258, expected 257 rounded once to bf16, which is 256"), "%s", f.message);
  }
  image_free(&t.first);
  case_free(&one);
}

/* ---- one dumped call of 131,072 elements, judged again ------------------------------------------------------ */

enum { ROWS = 32, WIDTH = 4096 };
typedef enum factor { FACTOR_F32, FACTOR_16_BITS, STORE_TO_ZERO, STORE_AT_RANDOM } factor;

/* Rounds to bf16 as a kernel with another rounding mode does. */
static float stored(float value, factor how) {
  union {
    float value;
    uint32_t bits;
  } u = {value};
  if (how == STORE_AT_RANDOM) u.bits += u.bits * 2654435761u >> 16;
  if (how == STORE_AT_RANDOM || how == STORE_TO_ZERO) {
    u.bits &= 0xFFFF0000u;
    return u.value;
  }
  return (float)assay_round_f64((double)value, ASSAY_BF16);
}

static void judge_swiglu(factor how, const char *contract, int64_t wrong, const char *says) {
  static uint16_t x[ROWS * 2 * WIDTH], y[ROWS * WIDTH];
  const int64_t x_shape[2] = {ROWS, 2 * WIDTH}, y_shape[2] = {ROWS, WIDTH};
  char text[400];
  truth_log log;
  test_output lines;
  for (int64_t i = 0; i < ROWS * 2 * WIDTH; ++i) {
    const uint64_t mixed = (uint64_t)i * 0x9E3779B97F4A7C15u;
    assay_store_f64(x, ASSAY_BF16, i, (double)(int64_t)(mixed >> 40) * 0x1p-22 - 2);
  }
  for (int64_t i = 0; i < ROWS * WIDTH; ++i) {
    const int64_t row = i / WIDTH, c = i % WIDTH;
    const float g = (float)assay_load_f64(x, ASSAY_BF16, row * 2 * WIDTH + c);
    const float u = (float)assay_load_f64(x, ASSAY_BF16, row * 2 * WIDTH + WIDTH + c);
    float silu = g / (1 + expf(-g));
    if (how == FACTOR_16_BITS) silu = stored(silu, FACTOR_F32);
    assay_store_f64(y, ASSAY_BF16, i, (double)stored(silu * u, how));
  }
  cr_assert_eq(npy_write(files_path("x.bf16.npy"), ASSAY_BF16, 2, x_shape, x, &error), ASSAY_OK, "%s", error.text);
  cr_assert_eq(npy_write(files_path("y.bf16.npy"), ASSAY_BF16, 2, y_shape, y, &error), ASSAY_OK, "%s", error.text);
  (void)snprintf(text, sizeof text,
                 "{\"operator\": \"swiglu\", \"contract\": %s, \"inputs\": {\"x\": \"x.bf16.npy\"}, \"outputs\": "
                 "{\"y\": \"y.bf16.npy\"}}",
                 contract);
  (void)files_put("manifest.json", text, strlen(text));
  output_open(&lines);
  log = (truth_log){.to = lines.stream};
  cr_assert_eq(judge_dir(files_folder(), &log, &error), ASSAY_OK, "%s", error.text);
  output_close(&lines);
  cr_expect(log.failed == wrong && log.passed == 1 - wrong, "%d: %s", (int)how, lines.text);
  cr_expect_not_null(strstr(lines.text, says), "wanted %s: %s", says, lines.text);
  output_free(&lines);
}

Test(rounding, one_call_of_another_engine) {
  judge_swiglu(FACTOR_F32, "{\"exp_ulp\": 4}", 0, "131072 elements; of the allowed: element 0.");
  judge_swiglu(FACTOR_16_BITS, "{\"exp_ulp\": 4}", 1, "rounded once to bf16, which is");
  judge_swiglu(STORE_AT_RANDOM, "{\"exp_ulp\": 4}", 1, "rounded once to bf16, which is");
  judge_swiglu(STORE_TO_ZERO, "{\"exp_ulp\": 4}", 1, "rounded once to bf16, which is");
}
