/* ref_gemm_glu_test.c: gemm_glu against another library's product with an activation of another form; against the
 * references of gemm and of swiglu or reglu, one after the other; and its kernels against theirs. */
#include <cblas.h>
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "assay/variant.h"
#include "core/dtype.h"
#include "linear_fixture.h"

#undef I /* a macro of complex numbers */

const assay_op *assay_op_gemm_glu(void);
const assay_op *assay_op_gemm(void);
const assay_op *assay_op_reglu(void);
const assay_op *assay_op_swiglu(void);

static const assay_contract contract = {.exp_ulp = 2, .lanes = 1};

typedef struct glu_shape {
  int M, I, K;
} glu_shape;

static void open_glu(linear_call *c, assay_dtype dtype, bool reglu, glu_shape s, int64_t pad) {
  linear_open(c, assay_op_gemm_glu());
  linear_tensor(c, "a", dtype, pad, s.M, s.K, 0);
  linear_tensor(c, "b", dtype, 0, 2 * s.I, s.K, 0);
  linear_tensor(c, "y", dtype, 0, s.M, s.I, 0);
  linear_param(c, "act", reglu);
  linear_normals(c, "a", 1);
  for (int i = 0; i < 2 * s.I * s.K; ++i) { /* weights that keep the sums near 1 */
    const double w = (i * 7919 % 4001 - 2000) / 1000.0;
    linear_set(c, "b", i, w / sqrt(s.K));
  }
}

/* Another form of the activation. */
static double activated(bool reglu, double g) {
  return reglu ? (g + fabs(g)) / 2 : g * (1 + tanh(g / 2)) / 2;
}

Test(gemm_glu, equals_another_librarys_product_activated) {
  static const assay_dtype dtypes[] = {ASSAY_F32, ASSAY_F16, ASSAY_BF16};
  enum { M = 7, I = 13, K = 37 };
  for (int run = 0; run < 12; ++run) {
    const bool reglu = run % 2 != 0;
    linear_call c;
    double a[M * K], b[2 * I * K], product[M * 2 * I];
    open_glu(&c, dtypes[run / 4], reglu, (glu_shape){M, I, K}, run / 2 % 2 * 5);
    linear_run(&c, &contract, false);
    for (int i = 0; i < M * K; ++i)
      a[i] = linear_get(&c, "a", i);
    for (int i = 0; i < 2 * I * K; ++i)
      b[i] = linear_get(&c, "b", i);
    cblas_dgemm(CblasRowMajor, CblasNoTrans, CblasTrans, M, 2 * I, K, 1, a, K, b, K, 0, product, 2 * I);
    for (int i = 0; i < M * I; ++i) {
      const double *row = product + i / I * 2 * I, wanted = activated(reglu, row[i % I]) * row[I + i % I];
      cr_assert(linear_close_to(linear_result(&c, "y")->value[i], wanted), "element %d", i);
    }
    linear_close(&c);
  }
}

/* Gives the gate of `x` [M, 2 I] the numbers of `from`, and runs the activation's reference over them. */
static void activate(linear_call *act, bool reglu, glu_shape s, const double *from) {
  linear_open(act, reglu ? assay_op_reglu() : assay_op_swiglu());
  linear_tensor(act, "x", ASSAY_F32, 0, s.M, 2 * s.I, 0);
  linear_tensor(act, "y", ASSAY_F32, 0, s.M, s.I, 0);
  for (int i = 0; i < s.M * 2 * s.I; ++i)
    linear_set(act, "x", i, from[i]);
}

static void open_product(linear_call *gemm, linear_call *glu, assay_dtype dtype, glu_shape s) {
  linear_open(gemm, assay_op_gemm());
  linear_tensor(gemm, "a", dtype, 0, s.M, s.K, 0);
  linear_tensor(gemm, "b", dtype, 0, 2 * s.I, s.K, 0);
  linear_tensor(gemm, "c", ASSAY_F32, 0, s.M, 2 * s.I, 0);
  for (int i = 0; i < s.M * s.K; ++i)
    linear_set(gemm, "a", i, linear_get(glu, "a", i));
  for (int i = 0; i < 2 * s.I * s.K; ++i)
    linear_set(gemm, "b", i, linear_get(glu, "b", i));
}

/* The sums in between are rounded to f32, which both error models know. */
Test(gemm_glu, equals_the_references_of_its_parts) {
  const glu_shape s = {5, 20, 64};
  for (int reglu = 0; reglu < 2; ++reglu) {
    linear_call whole, gemm, act;
    open_glu(&whole, ASSAY_F32, reglu != 0, s, 0);
    linear_run(&whole, &contract, false);
    open_product(&gemm, &whole, ASSAY_F32, s);
    linear_run(&gemm, &contract, false);
    activate(&act, reglu != 0, s, linear_result(&gemm, "c")->value);
    linear_run(&act, &contract, false);
    for (int i = 0; i < s.M * s.I; ++i) {
      const double *sigma = linear_result(&whole, "y")->sigma;
      const double apart = linear_result(&whole, "y")->value[i] - linear_result(&act, "y")->value[i];
      cr_assert(fabs(apart) <= 3 * sigma[i], "act %d, element %d: apart %g, sigma %g", reglu, i, apart, sigma[i]);
    }
    linear_close(&whole);
    linear_close(&gemm);
    linear_close(&act);
  }
}

/* A sum in f32 and the activation in f32 lie inside the error model, which is not far above them. */
Test(gemm_glu, f32_lies_inside_sigma) {
  const glu_shape s = {4, 64, 300};
  for (int reglu = 0; reglu < 2; ++reglu) {
    linear_call c;
    double error2 = 0, sigma2 = 0;
    open_glu(&c, ASSAY_F32, reglu != 0, s, 0);
    linear_run(&c, &contract, false);
    for (int i = 0; i < s.M * s.I; ++i) {
      volatile float g = 0, u = 0;
      for (int k = 0; k < s.K; ++k) {
        const float a = (float)linear_get(&c, "a", i / s.I * s.K + k);
        volatile float of_g = a * (float)linear_get(&c, "b", i % s.I * s.K + k);
        volatile float of_u = a * (float)linear_get(&c, "b", (s.I + i % s.I) * s.K + k);
        g = g + of_g;
        u = u + of_u;
      }
      volatile float h = reglu != 0 ? fmaxf(g, 0) : g / (1 + expf(-g));
      volatile float y = h * u;
      const double sigma = linear_result(&c, "y")->sigma[i], error = (double)y - linear_result(&c, "y")->value[i];
      cr_assert(fabs(error) <= assay_op_gemm_glu()->kappa_element * sigma, "act %d, element %d", reglu, i);
      error2 += error * error;
      sigma2 += sigma * sigma;
    }
    cr_assert(error2 < sigma2 && error2 > 0.1 * sigma2, "RMS %g of sigma", sqrt(error2 / sigma2));
    linear_close(&c);
  }
}

Test(gemm_glu, exact_tier_is_proven) {
  linear_call c;
  assay_error error = {""};
  open_glu(&c, ASSAY_F32, false, (glu_shape){1, 1, 2}, 0);
  linear_all(&c, "a", 1);
  linear_all(&c, "b", 256);
  cr_expect_eq(linear_try(&c, &contract, true, &error), ASSAY_OK, "%s", error.text);
  cr_expect_eq(linear_result(&c, "y")->value[0], 512 * 512);
  linear_set(&c, "b", 0, 3);
  linear_set(&c, "b", 1, 4);
  cr_expect_eq(linear_try(&c, &contract, true, &error), ASSAY_ERR_INPUT);
  cr_expect(strstr(error.text, "g between -200 and 200") != NULL, "%s", error.text);
  linear_set(&c, "b", 0, 0x1p12 + 1);
  linear_set(&c, "b", 1, 0x1p12);
  linear_set(&c, "b", 2, 0x1p12 + 1);
  cr_expect_eq(linear_try(&c, &contract, true, &error), ASSAY_ERR_INPUT);
  cr_expect(strstr(error.text, "bits of g and u") != NULL, "%s", error.text);
  linear_close(&c);
}

#ifdef ASSAY_HAVE_SIMT
const assay_variant *assay_variants_simt_gemm_glu(int32_t *count);
const assay_variant *assay_variants_simt_gemm(int32_t *count);
const assay_variant *assay_variants_simt_gemm_skinny(int32_t *count);
const assay_variant *assay_variants_simt_swiglu(int32_t *count);
const assay_variant *assay_variants_simt_reglu(int32_t *count);

static void launch(const assay_variant *variant, linear_call *c) {
  assay_env env = {.multiprocessors = 4};
  assay_error error = {""};
  const assay_status status = variant->launch(&c->call, &env, &error);
  cr_assert(status == ASSAY_OK, "%s %s: %s", variant->op, variant->name, error.text);
}

/* Runs gemm into f32, then the activation in f32, and compares with one launch of gemm_glu. */
static void against_parts(const assay_variant *whole, const assay_variant *product, assay_dtype dtype, bool reglu,
                          glu_shape s) {
  linear_call c, gemm, act;
  int32_t count = 0;
  double *between = malloc((size_t)(2 * s.M * s.I) * sizeof *between);
  cr_assert_not_null(between);
  open_glu(&c, dtype, reglu, s, 0);
  linear_run(&c, &whole->contract, false);
  launch(whole, &c);
  open_product(&gemm, &c, dtype, s);
  launch(product, &gemm);
  for (int i = 0; i < 2 * s.M * s.I; ++i)
    between[i] = linear_get(&gemm, "c", i);
  activate(&act, reglu, s, between);
  const assay_variant *const last = reglu ? assay_variants_simt_reglu(&count) : assay_variants_simt_swiglu(&count);
  launch(last + count - 1, &act); /* the one for all widths */
  for (int i = 0; i < s.M * s.I; ++i) {
    const double apart = linear_get(&c, "y", i) - linear_get(&act, "y", i);
    cr_assert(fabs(apart) <= 5 * linear_result(&c, "y")->sigma[i], "%s, dtype %d, act %d, I %d, element %d: apart %g",
              whole->name, (int)dtype, reglu, s.I, i, apart);
  }
  free(between);
  linear_close(&c);
  linear_close(&gemm);
  linear_close(&act);
}

Test(gemm_glu, kernels_agree_with_those_of_the_parts) {
  int32_t count = 0;
  const assay_variant *const skinny = assay_variants_simt_gemm_glu(&count), *const dots = skinny + 1;
  cr_assert_eq(count, 2);
  const assay_variant *const few = assay_variants_simt_gemm_skinny(&count), *const any =
                                                                                assay_variants_simt_gemm(&count);
  for (int reglu = 0; reglu < 2; ++reglu) {
    against_parts(dots, any, ASSAY_F32, reglu != 0, (glu_shape){3, 19, 70});
    against_parts(dots, any, ASSAY_BF16, reglu != 0, (glu_shape){3, 20, 72});
    against_parts(skinny, few, ASSAY_BF16, reglu != 0, (glu_shape){9, 40, 136});
    against_parts(skinny, few, ASSAY_F16, reglu != 0, (glu_shape){17, 120, 72});
  }
}
#endif
