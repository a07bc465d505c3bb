/* ref_mxfp4_test.c: mxfp4_gemm against dgemm on weights of a table of its own, and every scale alone. */
#include <cblas.h>
#include <criterion/criterion.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

#include "linear_fixture.h"

const assay_op *assay_op_mxfp4_gemm(void);

static const assay_contract contract = {.qk_lanes = 1, .pv_lanes = 1, .lanes = 1};
static const double table[16] = {0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6};

enum { M = 3, N = 11, K = 160, WORDS = K / 8, SCALE_WORDS = 2 };

static void open_call(linear_call *c) {
  linear_open(c, assay_op_mxfp4_gemm());
  linear_tensor(c, "c", ASSAY_F32, 0, M, N, 0);
  linear_tensor(c, "a", ASSAY_BF16, 0, M, K, 0);
  linear_tensor(c, "codes", ASSAY_I32, 0, N, WORDS, 0);
  linear_tensor(c, "scales", ASSAY_I32, 0, N, SCALE_WORDS, 0);
}

/* The bytes of a row of codes or scales, as a file of weights holds them. */
static uint8_t *bytes_of(linear_call *c, const char *name, int row, int words) {
  return (uint8_t *)linear_arg(c, name)->data + (size_t)4 * (size_t)(row * words);
}

Test(mxfp4_gemm, equals_the_product_of_dequantised_weights) {
  linear_call c;
  static double a[M * K], w[N * K], wanted[M * N];
  open_call(&c);
  linear_tensor(&c, "bias", ASSAY_F32, 0, N, 0, 0);
  linear_integers(&c, "a", 1, 8);
  linear_normals(&c, "bias", 3);
  for (int n = 0; n < N; ++n)
    for (int k = 0; k < K; ++k) {
      const int code = (7 * k + 3 * n + k / 16) % 16, scale = 120 + (n + 5 * (k / 32)) % 13;
      uint8_t *const byte = bytes_of(&c, "codes", n, WORDS) + k / 2;
      *byte = (uint8_t)(k % 2 == 0 ? code : *byte + 16 * code);
      bytes_of(&c, "scales", n, SCALE_WORDS)[k / 32] = (uint8_t)scale;
      w[n * K + k] = table[code] * exp2(scale - 127);
    }
  for (int i = 0; i < M * K; ++i)
    a[i] = linear_get(&c, "a", i);
  cblas_dgemm(CblasRowMajor, CblasNoTrans, CblasTrans, M, N, K, 1, a, K, w, K, 0, wanted, N);
  linear_run(&c, &contract, false);
  for (int i = 0; i < M * N; ++i)
    cr_assert(linear_close_to(linear_result(&c, "c")->value[i], wanted[i] + linear_get(&c, "bias", i % N)), "%d", i);
  linear_close(&c);
}

/* One weight is not 0: a is 1 there, so that the result is the weight. */
Test(mxfp4_gemm, every_code_with_every_scale) {
  linear_call c;
  open_call(&c);
  linear_set(&c, "a", 33, 1);
  for (int scale = 0; scale < 256; ++scale)
    for (int code = 0; code < 16; ++code) {
      bytes_of(&c, "codes", 4, WORDS)[16] = (uint8_t)(16 * code);
      bytes_of(&c, "scales", 4, SCALE_WORDS)[1] = (uint8_t)scale;
      linear_run(&c, &contract, false);
      const double got = linear_result(&c, "c")->value[4], exact = table[code] * exp2(scale - 127);
      if (scale == 255)
        cr_assert(isnan(got), "%d %d: %g", scale, code, got);
      else if (fabs(exact) >= exp2(128))
        cr_assert_eq(got, copysign((double)INFINITY, exact), "%d %d: %g", scale, code, got);
      else
        cr_assert_eq(got, exact, "%d %d: %g", scale, code, got);
    }
  linear_close(&c);
}

/* One more in every scale of a channel doubles its results. */
Test(mxfp4_gemm, a_scale_more_is_twice_the_result) {
  linear_call c;
  double before[M * N];
  open_call(&c);
  linear_integers(&c, "a", 1, 8);
  for (int n = 0; n < N; ++n)
    for (int i = 0; i < K / 2; ++i)
      bytes_of(&c, "codes", n, WORDS)[i] = (uint8_t)(37 * i + 11 * n);
  for (int more = 0; more < 2; ++more) {
    for (int n = 0; n < N; ++n)
      for (int j = 0; j < K / 32; ++j)
        bytes_of(&c, "scales", n, SCALE_WORDS)[j] = (uint8_t)(100 + 3 * j + n + more);
    linear_run(&c, &contract, false);
    for (int i = 0; i < M * N; ++i) {
      if (more == 0) before[i] = linear_result(&c, "c")->value[i];
      if (more == 1) cr_assert_eq(linear_result(&c, "c")->value[i], 2 * before[i], "%d", i);
    }
  }
  linear_close(&c);
}

Test(mxfp4_gemm, refuses_a_K_that_is_no_multiple_of_32) {
  linear_call c;
  assay_error error = {0};
  linear_open(&c, assay_op_mxfp4_gemm());
  linear_tensor(&c, "c", ASSAY_F32, 0, M, N, 0);
  linear_tensor(&c, "a", ASSAY_BF16, 0, M, 48, 0);
  linear_tensor(&c, "codes", ASSAY_I32, 0, N, 6, 0);
  linear_tensor(&c, "scales", ASSAY_I32, 0, N, 1, 0);
  cr_assert_eq(linear_try(&c, &contract, false, &error), ASSAY_ERR_INPUT);
  cr_assert_not_null(strstr(error.text, "K"), "%s", error.text);
  linear_close(&c);
}
