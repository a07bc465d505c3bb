/* ref_gemm_norm_test.c: gemm_residual and rms_gemm against another library's product, and one after the other against
 * the references of the operators that they stand for; their kernels against those of gemm, bit for bit. */
#include <cblas.h>
#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#include "assay/variant.h"
#include "core/dtype.h"
#include "linear_fixture.h"

const assay_op *assay_op_gemm_residual(void);
const assay_op *assay_op_rms_gemm(void);
const assay_op *assay_op_gemm(void);
const assay_op *assay_op_gemm_glu(void);
const assay_op *assay_op_add_rms_norm(void);

static const assay_contract contract = {.lanes = 1};

enum { M = 6, N = 19, K = 29, PARTS = (N + 7) / 8 };

/* Opens a call of gemm_residual. g is a dyadic number by a rule of this test. */
static void open_residual(linear_call *c, assay_dtype dtype, int m, int n, int k, int64_t pad) {
  linear_open(c, assay_op_gemm_residual());
  linear_tensor(c, "a", dtype, pad, m, k, 0);
  linear_tensor(c, "b", dtype, 0, n, k, 0);
  linear_tensor(c, "res", dtype, pad, m, n, 0);
  linear_tensor(c, "g", dtype, 0, n, 0, 0);
  linear_tensor(c, "out", dtype, pad, m, n, 0);
  linear_tensor(c, "squares", ASSAY_F32, 0, m, (n + 7) / 8, 0);
  linear_normals(c, "a", 1);
  linear_normals(c, "res", 3);
  for (int i = 0; i < n * k; ++i)
    linear_set(c, "b", i, (i * 7919 % 4001 - 2000) / 1000.0 / sqrt(k));
  for (int i = 0; i < n; ++i)
    linear_set(c, "g", i, 0.25 + 0.125 * (i * 5 % 11));
}

static void open_rms(linear_call *c, assay_dtype dtype, int m, int n, int k, bool biased) {
  linear_open(c, assay_op_rms_gemm());
  linear_tensor(c, "a", dtype, 0, m, k, 0);
  linear_tensor(c, "b", dtype, 0, n, k, 0);
  linear_tensor(c, "squares", ASSAY_F32, 0, m, (k + 7) / 8, 0);
  linear_tensor(c, "c", dtype, 0, m, n, 0);
  linear_normals(c, "a", 5);
  linear_normals(c, "b", 6);
  for (int i = 0; i < m * ((k + 7) / 8); ++i)
    linear_set(c, "squares", i, 1 + 0.25 * (i * 7 % 23));
  if (!biased) return;
  linear_tensor(c, "bias", dtype, 0, n, 0, 0);
  linear_normals(c, "bias", 7);
}

static void copy(linear_call *from, const char *name, linear_call *to, const char *as, int count) {
  for (int i = 0; i < count; ++i)
    linear_set(to, as, i, linear_get(from, name, i));
}

/* Copies what the reference says of an output. */
static void copy_result(linear_call *from, const char *name, linear_call *to, const char *as, int count) {
  for (int i = 0; i < count; ++i)
    linear_set(to, as, i, linear_result(from, name)->value[i]);
}

static void another_librarys(linear_call *c, int m, int n, int k, double *product) {
  double a[M * K], b[N * K];
  for (int i = 0; i < m * k; ++i)
    a[i] = linear_get(c, "a", i);
  for (int i = 0; i < n * k; ++i)
    b[i] = linear_get(c, "b", i);
  cblas_dgemm(CblasRowMajor, CblasNoTrans, CblasTrans, m, n, k, 1, a, k, b, k, 0, product, n);
}

Test(gemm_residual, equals_another_librarys_product_added_and_squared) {
  for (int run = 0; run < 2; ++run) {
    linear_call c;
    double product[M * N];
    open_residual(&c, ASSAY_F32, M, N, K, run * 5);
    linear_run(&c, &contract, false);
    another_librarys(&c, M, N, K, product);
    for (int m = 0; m < M; ++m) {
      double part[PARTS] = {0};
      for (int n = 0; n < N; ++n) {
        const double r = product[m * N + n] + linear_get(&c, "res", m * N + n);
        part[n / 8] += r * r;
        cr_assert(linear_close_to(linear_result(&c, "res")->value[m * N + n], r), "res, row %d, channel %d", m, n);
        cr_assert(linear_close_to(linear_result(&c, "out")->value[m * N + n], r * linear_get(&c, "g", n)),
                  "out, row %d, channel %d", m, n);
      }
      for (int j = 0; j < PARTS; ++j)
        cr_assert(linear_close_to(linear_result(&c, "squares")->value[m * PARTS + j], part[j]), "row %d, part %d", m,
                  j);
    }
    linear_close(&c);
  }
}

Test(rms_gemm, equals_another_librarys_product_divided_by_a_root) {
  for (int run = 0; run < 2; ++run) {
    linear_call c;
    double product[M * N];
    open_rms(&c, ASSAY_F32, M, N, K, run != 0);
    linear_param(&c, "eps", 0.375);
    linear_run(&c, &contract, false);
    another_librarys(&c, M, N, K, product);
    for (int i = 0; i < M * N; ++i) {
      double sum = 0;
      for (int j = 0; j < 4; ++j)
        sum += linear_get(&c, "squares", i / N * 4 + j);
      const double bias = run != 0 ? linear_get(&c, "bias", i % N) : 0;
      cr_assert(linear_close_to(linear_result(&c, "c")->value[i], product[i] / sqrt(sum / K + 0.375) + bias),
                "element %d", i);
    }
    linear_close(&c);
  }
}

/* The two operators, one after the other, are gemm, add_rms_norm without its inner rounding, and gemm. */
Test(rms_gemm, follows_gemm_residual_as_gemm_follows_add_rms_norm) {
  linear_call first, product, norm, second, third;
  open_residual(&first, ASSAY_F32, M, N, K, 0);
  linear_open(&product, assay_op_gemm());
  linear_tensor(&product, "a", ASSAY_F32, 0, M, K, 0);
  linear_tensor(&product, "b", ASSAY_F32, 0, N, K, 0);
  linear_tensor(&product, "c", ASSAY_F32, 0, M, N, 0);
  copy(&first, "a", &product, "a", M * K);
  copy(&first, "b", &product, "b", N * K);
  linear_run(&first, &contract, false);
  linear_run(&product, &contract, false);
  linear_open(&norm, assay_op_add_rms_norm());
  linear_tensor(&norm, "x", ASSAY_F32, 0, M, N, 0);
  linear_tensor(&norm, "res", ASSAY_F32, 0, M, N, 0);
  linear_tensor(&norm, "g", ASSAY_F32, 0, N, 0, 0);
  linear_tensor(&norm, "y", ASSAY_F32, 0, M, N, 0);
  copy_result(&product, "c", &norm, "x", M * N);
  copy(&first, "res", &norm, "res", M * N);
  copy(&first, "g", &norm, "g", N);
  linear_param(&norm, "eps", 0.125);
  linear_run(&norm, &contract, false);

  open_rms(&second, ASSAY_F32, M, K, N, false);
  linear_param(&second, "eps", 0.125);
  copy_result(&first, "out", &second, "a", M * N);
  copy_result(&first, "squares", &second, "squares", M * PARTS);
  linear_run(&second, &contract, false);
  linear_open(&third, assay_op_gemm());
  linear_tensor(&third, "a", ASSAY_F32, 0, M, N, 0);
  linear_tensor(&third, "b", ASSAY_F32, 0, K, N, 0);
  linear_tensor(&third, "c", ASSAY_F32, 0, M, K, 0);
  copy_result(&norm, "y", &third, "a", M * N);
  copy(&second, "b", &third, "b", K * N);
  linear_run(&third, &contract, false);
  for (int i = 0; i < M * K; ++i)
    cr_assert_float_eq(linear_result(&second, "c")->value[i], linear_result(&third, "c")->value[i], 2e-5, "element %d",
                       i);
  linear_close(&first), linear_close(&product), linear_close(&norm), linear_close(&second), linear_close(&third);
}

static void expect_admitted(linear_call *c, const char *says) {
  assay_error error = {""};
  const assay_status status = linear_try(c, &contract, true, &error);
  if (says == NULL)
    cr_expect_eq(status, ASSAY_OK, "%s", error.text);
  else
    cr_expect(status == ASSAY_ERR_INPUT && strstr(error.text, says) != NULL, "%s", error.text);
}

Test(gemm_residual, exact_tier_is_proven) {
  linear_call c;
  open_residual(&c, ASSAY_F32, 1, 2, 2, 0);
  linear_all(&c, "a", 1);
  linear_all(&c, "b", 0.25);
  linear_all(&c, "res", 3);
  expect_admitted(&c, NULL);
  linear_set(&c, "res", 0, 4097);
  expect_admitted(&c, "the squares of a part");
  linear_set(&c, "res", 0, 0x1p30 + 128);
  expect_admitted(&c, "the sum with res");
  linear_set(&c, "res", 0, 3);
  linear_set(&c, "b", 0, 0x1p26);
  expect_admitted(&c, "sum |a b|");
  linear_close(&c);
}

Test(rms_gemm, exact_tier_is_proven) {
  linear_call c;
  open_rms(&c, ASSAY_F32, 1, 1, 16, true);
  linear_all(&c, "a", 1);
  linear_all(&c, "b", 2);
  linear_all(&c, "bias", 1);
  linear_all(&c, "squares", 0x1p26);
  expect_admitted(&c, "mean of squares, which is no power of 4");
  linear_all(&c, "squares", 0x1p29);
  expect_admitted(&c, NULL);
  cr_expect_eq(linear_result(&c, "c")->value[0], 0x1p-8 + 1);
  linear_all(&c, "squares", 8);
  expect_admitted(&c, "eps");
  linear_set(&c, "squares", 0, 0x1p29 + 64);
  expect_admitted(&c, "sum of squares");
  linear_close(&c);
}

#ifdef ASSAY_HAVE_SIMT
const assay_variant *assay_variants_simt_gemm_residual(int32_t *count);
const assay_variant *assay_variants_simt_rms_gemm(int32_t *count);
const assay_variant *assay_variants_simt_gemm_glu(int32_t *count);
const assay_variant *assay_variants_simt_gemm(int32_t *count);
const assay_variant *assay_variants_simt_gemm_skinny(int32_t *count);

static void launch(const assay_variant *variant, linear_call *c) {
  assay_env env = {.multiprocessors = 4};
  assay_error error = {""};
  const assay_status status = variant->launch(&c->call, &env, &error);
  cr_assert(status == ASSAY_OK, "%s %s: %s", variant->op, variant->name, error.text);
}

/* Compares one launch with gemm, which adds the residual as beta c, and with products and squares of what it stored. */
static void residual_against_parts(const assay_variant *whole, const assay_variant *gemm, assay_dtype dtype, int m,
                                   int n, int k) {
  linear_call c, parts;
  open_residual(&c, dtype, m, n, k, 0);
  linear_open(&parts, assay_op_gemm());
  linear_tensor(&parts, "a", dtype, 0, m, k, 0);
  linear_tensor(&parts, "b", dtype, 0, n, k, 0);
  linear_tensor(&parts, "c", dtype, 0, m, n, 0);
  linear_param(&parts, "beta", 1);
  copy(&c, "a", &parts, "a", m * k);
  copy(&c, "b", &parts, "b", n * k);
  copy(&c, "res", &parts, "c", m * n);
  launch(gemm, &parts);
  launch(whole, &c);
  for (int i = 0; i < m * n; ++i) {
    const double r = linear_get(&parts, "c", i), out = assay_round_f64(r * linear_get(&c, "g", i % n), dtype);
    cr_assert_eq(linear_get(&c, "res", i), r, "%s, element %d of res", whole->name, i);
    cr_assert_eq(linear_get(&c, "out", i), out, "%s, element %d of out", whole->name, i);
  }
  for (int i = 0; i < m * ((n + 7) / 8); ++i) {
    const int row = i / ((n + 7) / 8), first = i % ((n + 7) / 8) * 8;
    float square[8] = {0};
    for (int j = 0; j < 8 && first + j < n; ++j) {
      const float r = (float)linear_get(&parts, "c", row * n + first + j);
      square[j] = r * r;
    }
    const float lower = (square[0] + square[1]) + (square[2] + square[3]);
    const float upper = (square[4] + square[5]) + (square[6] + square[7]);
    cr_assert_eq((float)linear_get(&c, "squares", i), lower + upper, "%s, part %d", whole->name, i);
  }
  linear_close(&c), linear_close(&parts);
}

Test(gemm_residual, kernels_have_the_bits_of_the_parts) {
  int32_t count = 0;
  const assay_variant *const skinny = assay_variants_simt_gemm_residual(&count), *const dots = skinny + 1;
  cr_assert_eq(count, 2);
  const assay_variant *const few = assay_variants_simt_gemm_skinny(&count);
  const assay_variant *const any = assay_variants_simt_gemm(&count) + count - 1;
  cr_assert_str_eq(any->name, "dots");
  residual_against_parts(dots, any, ASSAY_F32, 3, 19, 70);
  residual_against_parts(dots, any, ASSAY_BF16, 3, 20, 72);
  residual_against_parts(skinny, few, ASSAY_BF16, 9, 43, 136);
  residual_against_parts(skinny, few, ASSAY_F16, 17, 200, 72); /* a stream */
}

/* Compares one launch with gemm's sum in f32, times the factor. */
static void rms_against_parts(const assay_variant *whole, const assay_variant *gemm, assay_dtype dtype, int m, int n,
                              int k) {
  linear_call c, parts;
  const int count = (k + 7) / 8;
  open_rms(&c, dtype, m, n, k, true);
  linear_open(&parts, assay_op_gemm());
  linear_tensor(&parts, "a", dtype, 0, m, k, 0);
  linear_tensor(&parts, "b", dtype, 0, n, k, 0);
  linear_tensor(&parts, "c", ASSAY_F32, 0, m, n, 0);
  copy(&c, "a", &parts, "a", m * k);
  copy(&c, "b", &parts, "b", n * k);
  launch(gemm, &parts);
  launch(whole, &c);
  for (int i = 0; i < m * n; ++i) {
    float sum = 0; /* parts are multiples of 1/4: any order is exact */
    for (int j = 0; j < count; ++j)
      sum += (float)linear_get(&c, "squares", i / n * count + j);
    const float factor = 1.0F / sqrtf(sum / (float)k + 1e-6F), z = factor * (float)linear_get(&parts, "c", i);
    const double expected = assay_round_f64((double)(z + (float)linear_get(&c, "bias", i % n)), dtype);
    cr_assert_eq(linear_get(&c, "c", i), expected, "%s, element %d", whole->name, i);
  }
  linear_close(&c), linear_close(&parts);
}

Test(rms_gemm, kernels_have_the_bits_of_the_parts) {
  int32_t count = 0;
  const assay_variant *const skinny = assay_variants_simt_rms_gemm(&count), *const dots = skinny + 1;
  cr_assert_eq(count, 2);
  const assay_variant *const few = assay_variants_simt_gemm_skinny(&count);
  const assay_variant *const any = assay_variants_simt_gemm(&count) + count - 1;
  rms_against_parts(dots, any, ASSAY_F32, 3, 19, 70);
  rms_against_parts(dots, any, ASSAY_BF16, 3, 20, 72);
  rms_against_parts(skinny, few, ASSAY_BF16, 9, 43, 136);
  rms_against_parts(skinny, few, ASSAY_F16, 17, 200, 72); /* a stream */
}

/* Opens a call of gemm_glu. Where the norm is deferred, the mean square of every row is `mean`. */
static void open_glu(linear_call *c, assay_dtype dtype, int m, int i, int k, double mean) {
  linear_open(c, assay_op_gemm_glu());
  linear_tensor(c, "a", dtype, 0, m, k, 0);
  linear_tensor(c, "b", dtype, 0, 2 * i, k, 0);
  linear_tensor(c, "y", dtype, 0, m, i, 0);
  linear_param(c, "eps", 1e-12);
  linear_normals(c, "a", 8);
  linear_normals(c, "b", 9);
  if (mean == 0) return;
  linear_tensor(c, "squares", ASSAY_F32, 0, m, (k + 7) / 8, 0);
  linear_all(c, "squares", 8 * mean);
}

/* A factor that is a power of two multiplies the sums as it multiplies rows: the bits are the same. */
static void glu_against_scaled_rows(const assay_variant *variant, assay_dtype dtype, int m, int i, int k) {
  linear_call deferred, scaled;
  open_glu(&deferred, dtype, m, i, k, 16);
  open_glu(&scaled, dtype, m, i, k, 0);
  for (int at = 0; at < m * k; ++at)
    linear_set(&scaled, "a", at, linear_get(&deferred, "a", at) / 4);
  launch(variant, &deferred);
  launch(variant, &scaled);
  for (int at = 0; at < m * i; ++at)
    cr_assert_eq(linear_get(&deferred, "y", at), linear_get(&scaled, "y", at), "%s, element %d", variant->name, at);
  linear_close(&deferred), linear_close(&scaled);
}

Test(gemm_glu, a_power_of_two_may_multiply_rows_or_sums) {
  int32_t count = 0;
  const assay_variant *const skinny = assay_variants_simt_gemm_glu(&count), *const dots = skinny + 1;
  cr_assert_eq(count, 2);
  glu_against_scaled_rows(dots, ASSAY_F32, 3, 19, 72);
  glu_against_scaled_rows(skinny, ASSAY_BF16, 9, 21, 136);
  glu_against_scaled_rows(skinny, ASSAY_F16, 17, 130, 72); /* a stream */
}
#endif
