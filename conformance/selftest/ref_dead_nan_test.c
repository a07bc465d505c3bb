/* ref_dead_nan_test.c: a NaN that the reference of a product has read has no sigma of 0 in output 0, the product. The
 * trial takes a NaN with sigma 0 of a later output for one that the reference says (conformance/trial/trial.c). */
#include <criterion/criterion.h>
#include <math.h>

#include "linear_fixture.h"

const assay_op *assay_op_gemm(void);
const assay_op *assay_op_lm_head(void);
const assay_op *assay_op_gemm_residual(void);
const assay_op *assay_op_rms_gemm(void);
const assay_op *assay_op_gemm_glu(void);

enum { M = 2, N = 8, K = 8 };

static const assay_dtype types[] = {ASSAY_F32, ASSAY_F16, ASSAY_BF16};

/* Opens a product of [M, K] by [N, K]. Element (0, 3) of its rows is NaN, as a dead byte would be. */
static void open_product(linear_call *c, const assay_op *op, const char *rows, const char *weights, assay_dtype type) {
  linear_open(c, op);
  linear_tensor(c, rows, type, 0, M, K, 0);
  linear_tensor(c, weights, type, 0, N, K, 0);
  linear_normals(c, rows, 1);
  linear_normals(c, weights, 2);
  linear_set(c, rows, 3, (double)NAN);
}

/* Runs the reference. The first `width` elements of the result are row 0: they are NaN, and without a sigma of 0. */
static void expect_no_word(linear_call *c, const char *result, int width) {
  linear_run(c, NULL, false);
  const assay_expected *e = linear_result(c, result);
  for (int i = 0; i < width; ++i)
    cr_expect(isnan(e->value[i]) && !(e->sigma[i] == 0), "%s, element %d: %g, sigma %g", result, i, e->value[i],
              e->sigma[i]);
  linear_close(c);
}

Test(dead_nan, products) {
  linear_call c;
  for (int t = 0; t < 3; ++t) {
    open_product(&c, assay_op_gemm(), "a", "b", types[t]);
    linear_tensor(&c, "c", types[t], 0, M, N, 0);
    expect_no_word(&c, "c", N);
    open_product(&c, assay_op_lm_head(), "x", "w", types[t]);
    linear_tensor(&c, "row_index", ASSAY_I32, 0, M, 0, 0);
    linear_tensor(&c, "logits", types[t], 0, M, N, 0);
    expect_no_word(&c, "logits", N);
    open_product(&c, assay_op_rms_gemm(), "a", "b", types[t]);
    linear_tensor(&c, "squares", ASSAY_F32, 0, M, K / 8, 0);
    linear_all(&c, "squares", 1);
    linear_tensor(&c, "c", types[t], 0, M, N, 0);
    expect_no_word(&c, "c", N);
    open_product(&c, assay_op_gemm_glu(), "a", "b", types[t]);
    linear_tensor(&c, "y", types[t], 0, M, N / 2, 0);
    expect_no_word(&c, "y", N / 2);
  }
}

/* The sum that becomes the residual stream tells dead bytes, whatever the weight of the norm after it. */
Test(dead_nan, residual) {
  for (int t = 0; t < 3; ++t)
    for (int weight = 0; weight < 2; ++weight) {
      linear_call c;
      open_product(&c, assay_op_gemm_residual(), "a", "b", types[t]);
      linear_tensor(&c, "res", types[t], 0, M, N, 0);
      linear_tensor(&c, "g", types[t], 0, N, 0, 0);
      linear_all(&c, "g", weight);
      linear_tensor(&c, "out", types[t], 0, M, N, 0);
      linear_tensor(&c, "squares", ASSAY_F32, 0, M, N / 8, 0);
      expect_no_word(&c, "res", N);
    }
}
