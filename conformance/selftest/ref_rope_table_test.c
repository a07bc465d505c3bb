/* ref_rope_table_test.c: rope_table against powers of a complex number, and frequencies of two models worked out by
 * hand. */
#include <complex.h>
#include <criterion/criterion.h>
#include <math.h>

#include "linear_fixture.h"

const assay_op *assay_op_rope_table(void);

static const assay_contract contract = {.qk_lanes = 1, .pv_lanes = 1, .lanes = 1};

static void open_table(linear_call *c, int64_t positions, int64_t R, int kind, double base, double factor,
                       double original) {
  linear_open(c, assay_op_rope_table());
  linear_tensor(c, "cos", ASSAY_F32, 0, positions, R / 2, 0);
  linear_tensor(c, "sin", ASSAY_F32, 0, positions, R / 2, 0);
  linear_param(c, "kind", kind);
  linear_param(c, "base", base);
  linear_param(c, "factor", factor);
  linear_param(c, "original", original);
}

/* Returns the inverse frequency i, from position 1 of a table whose factor is `c`. */
static double inverse_of(linear_call *call, int64_t half, int64_t i, double c) {
  const double x = linear_result(call, "cos")->value[half + i], y = linear_result(call, "sin")->value[half + i];
  cr_assert(fabs(sqrt(x * x + y * y) - c) < 1e-9, "frequency %d: %g", (int)i, sqrt(x * x + y * y));
  return atan2(y, x);
}

Test(rope_table, rows_are_powers_of_a_complex_number) {
  enum { N = 40, R = 10, HALF = R / 2 };
  linear_call c;
  open_table(&c, N, R, 0, 1024, 1, 4096);
  linear_run(&c, &contract, false);
  for (int i = 0; i < HALF; ++i) {
    const double angle = pow(2, -2.0 * i); /* 1024^(2 i / 10) = 4^i */
    const double complex step = cos(angle) + I * sin(angle);
    double complex power = 1;
    for (int n = 0; n < N; ++n, power *= step) {
      cr_expect(fabs(linear_result(&c, "cos")->value[n * HALF + i] - creal(power)) < 1e-13, "row %d", n);
      cr_expect(fabs(linear_result(&c, "sin")->value[n * HALF + i] - cimag(power)) < 1e-13, "row %d", n);
    }
  }
  linear_close(&c);
}

/* gpt-oss: base 150000, 64 channels, 32 times 4096 tokens. The ramp goes from 8.0928 to 17.3980. */
Test(rope_table, yarn_has_the_ramp_of_gpt_oss) {
  linear_call c;
  open_table(&c, 2, 64, 1, 150000, 32, 4096);
  linear_param(&c, "truncate", 0);
  linear_run(&c, &contract, false);
  const double factor = 1.3465735903, p12 = 87.2935; /* 0.1 ln 32 + 1; 150000^(24 / 64) */
  cr_expect(fabs(inverse_of(&c, 32, 8, factor) * pow(150000, 0.25) - 1) < 1e-6);
  cr_expect(fabs(inverse_of(&c, 32, 18, factor) * pow(150000, 36.0 / 64) * 32 - 1) < 1e-6);
  const double share = inverse_of(&c, 32, 12, factor) * p12, r = (1 - share) / (1 - 1.0 / 32);
  cr_expect(fabs(r - 0.4199) < 1e-3, "%g", r);
  linear_param(&c, "truncate", 1); /* from 8 to 18 */
  linear_run(&c, &contract, false);
  const double whole = inverse_of(&c, 32, 12, factor) * p12, q = (1 - whole) / (1 - 1.0 / 32);
  cr_expect(fabs(q - 0.4) < 1e-3, "%g", q);
  linear_close(&c);
}

/* Llama 3.1: base 500000, 128 channels, 8 times 8192 tokens. Frequencies to 28 stay, those from 35 on are divided. */
Test(rope_table, llama3_has_the_bands_of_llama_3_1) {
  linear_call c;
  open_table(&c, 2, 128, 2, 500000, 8, 8192);
  linear_run(&c, &contract, false);
  cr_expect(fabs(inverse_of(&c, 64, 28, 1) * pow(500000, 56.0 / 128) - 1) < 1e-9);
  cr_expect(fabs(inverse_of(&c, 64, 35, 1) * pow(500000, 70.0 / 128) * 8 - 1) < 1e-9);
  cr_expect(fabs(inverse_of(&c, 64, 30, 1) - 1.372e-3) < 2e-6, "%g", inverse_of(&c, 64, 30, 1));
  linear_close(&c);
}

Test(rope_table, has_no_exact_tier_and_exact_first_rows) {
  linear_call c;
  assay_error error = {""};
  open_table(&c, 2, 64, 1, 10000, 40, 4096);
  linear_run(&c, &contract, false);
  for (int i = 0; i < 32; ++i) {
    cr_expect(linear_result(&c, "sin")->value[i] == 0 && linear_result(&c, "sin")->sigma[i] == 0);
    cr_expect(linear_close_to(linear_result(&c, "cos")->value[i], 0.1 * log(40) + 1));
  }
  cr_expect_eq(linear_try(&c, &contract, true, &error), ASSAY_ERR_INPUT);
  linear_close(&c);
}
