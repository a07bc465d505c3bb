/* ref_quant_test.c: group_quant against a nearest search over all codes, powers of two by frexp, and shifted inputs. */
#include <criterion/criterion.h>
#include <float.h>
#include <math.h>

#include "core/dtype.h"
#include "linear_fixture.h"

const assay_op *assay_op_group_quant(void);

static const assay_contract contract = {.qk_lanes = 1, .pv_lanes = 1};

enum { M = 5, C = 300, S = 3 };

/* Returns the code whose value is nearest to y, by a search in f64; of two, the even one. */
static int nearest(double y) {
  int best = -1;
  double least = INFINITY;
  for (int code = 0; code < 127; ++code) {
    const uint8_t byte = (uint8_t)code;
    const double away = fabs(assay_load_f64(&byte, ASSAY_E4M3, 0) - fabs(y));
    if (away > least || (away >= least && code % 2 != 0)) continue;
    least = away;
    best = code;
  }
  return best;
}

static void open_call(linear_call *c, bool ue8m0, double eps) {
  linear_open(c, assay_op_group_quant());
  linear_tensor(c, "x", ASSAY_F32, 0, M, C, 0);
  linear_tensor(c, "q", ASSAY_E4M3, 0, M, C, 0);
  linear_tensor(c, "scale", ASSAY_F32, 0, M, S, 0);
  linear_param(c, "ue8m0", ue8m0);
  linear_param(c, "eps", eps);
  linear_normals(c, "x", 3);
}

Test(group_quant, codes_are_the_nearest_of_all) {
  for (int ue8m0 = 0; ue8m0 < 2; ++ue8m0) {
    linear_call c;
    open_call(&c, ue8m0 != 0, 1e-4);
    linear_set(&c, "x", 7, 0);
    linear_run(&c, &contract, false);
    for (int m = 0; m < M; ++m)
      for (int g = 0; g < S; ++g) {
        double amax = 1e-4f;
        const int end = (g + 1) * 128 < C ? (g + 1) * 128 : C;
        for (int i = g * 128; i < end; ++i)
          amax = fmax(amax, fabs(linear_get(&c, "x", m * C + i)));
        double s = (double)(float)(amax / 448);
        int e = 0;
        if (ue8m0 != 0) s = frexp(s, &e) > 0.5 ? ldexp(1, e) : ldexp(1, e - 1);
        cr_assert(linear_result(&c, "scale")->value[m * S + g] == s, "scale of row %d, group %d", m, g);
        for (int i = g * 128; i < end; ++i) {
          const double x = linear_get(&c, "x", m * C + i), found = linear_result(&c, "q")->value[m * C + i];
          const uint8_t code = (uint8_t)nearest((double)(float)(x / s));
          cr_assert(fabs(found) == assay_load_f64(&code, ASSAY_E4M3, 0), "row %d, channel %d", m, i);
          cr_assert(found == 0 || (found < 0) == (x < 0), "sign at row %d, channel %d", m, i);
        }
      }
    linear_close(&c);
  }
}

Test(group_quant, a_shift_of_x_shifts_the_scale_alone) {
  linear_call c, shifted;
  open_call(&c, false, 1e-30);
  open_call(&shifted, false, 1e-30);
  for (int i = 0; i < M * C; ++i)
    linear_set(&shifted, "x", i, ldexp(linear_get(&c, "x", i), -40));
  linear_run(&c, &contract, false);
  linear_run(&shifted, &contract, false);
  for (int i = 0; i < M * C; ++i)
    cr_assert(linear_result(&c, "q")->value[i] == linear_result(&shifted, "q")->value[i], "%d", i);
  for (int i = 0; i < M * S; ++i)
    cr_assert(ldexp(linear_result(&c, "scale")->value[i], -40) == linear_result(&shifted, "scale")->value[i], "%d", i);
  linear_close(&c);
  linear_close(&shifted);
}

Test(group_quant, special_values_and_zeros) {
  linear_call c;
  open_call(&c, false, 1e-4);
  for (int i = 0; i < 128; ++i)
    linear_set(&c, "x", i, i == 0 ? (double)NAN : i == 1 ? (double)INFINITY : i == 2 ? -(double)INFINITY : 0.5);
  for (int i = 128; i < 256; ++i)
    linear_set(&c, "x", i, 0);
  linear_run(&c, &contract, false);
  const double *q = linear_result(&c, "q")->value, *s = linear_result(&c, "scale")->value;
  cr_expect(assay_is_nan(q[0]) && q[1] == 448 && q[2] == -448 && q[3] == 448);
  cr_expect(s[0] == (double)(0.5f / 448.0f) && s[1] == (double)(1e-4f / 448.0f) && q[130] == 0);
  linear_close(&c);
}

/* Codes on the other side of a tie are right where the chain is not declared, and nowhere else. */
Test(group_quant, accepts_both_sides_of_a_tie) {
  const assay_op *op = assay_op_group_quant();
  assay_contract any = contract;
  any.quotient = ASSAY_QUOTIENT_ANY;
  linear_call c;
  open_call(&c, false, 1e-4);
  linear_set(&c, "x", 0, 448);
  linear_set(&c, "x", 1, 17);
  linear_set(&c, "x", 2, 17.001);
  linear_run(&c, &contract, false);
  cr_expect(linear_result(&c, "q")->value[1] == 16);
  cr_expect(op->accepts(&c.call, &any, 0, 1, 16) && op->accepts(&c.call, &any, 0, 1, 18));
  cr_expect(!op->accepts(&c.call, &any, 0, 1, 20) && !op->accepts(&c.call, &any, 0, 2, 16));
  cr_expect(!op->accepts(&c.call, &contract, 0, 1, 18) && !op->accepts(&c.call, &any, 1, 0, 2));
  linear_close(&c);
}

/* Where the scale is a power of two, the chains agree in every bit. */
Test(group_quant, chains_agree_with_powers_of_two) {
  linear_call c;
  open_call(&c, true, 1e-4);
  double first[M * C];
  for (int chain = 0; chain <= ASSAY_QUOTIENT_INVERSE_AMAX; ++chain) {
    assay_contract declared = contract;
    declared.quotient = (assay_quotient)chain;
    linear_run(&c, &declared, false);
    for (int i = 0; i < M * C; ++i) {
      if (chain == 0) first[i] = linear_result(&c, "q")->value[i];
      cr_assert(linear_result(&c, "q")->value[i] == first[i], "chain %d, %d", chain, i);
    }
  }
  linear_close(&c);
}
