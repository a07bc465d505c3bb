/* ref_linear_test.c: gemm, lm_head, lm_head_argmax, embedding, bias_gelu_new, bias_residual, reglu and swiglu against
 * another library's matrix product, closed forms, and identities; and what their kernels make of contents that are out
 * of range. */
#include <cblas.h>
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>

#include "assay/variant.h"
#include "core/dtype.h"
#include "linear_fixture.h"

const assay_op *assay_op_gemm(void);
const assay_op *assay_op_lm_head(void);
const assay_op *assay_op_lm_head_argmax(void);
const assay_op *assay_op_embedding(void);
const assay_op *assay_op_bias_gelu_new(void);
const assay_op *assay_op_bias_residual(void);
const assay_op *assay_op_reglu(void);
const assay_op *assay_op_swiglu(void);

static const assay_contract contract = {.exp_ulp = 2, .lanes = 1};

/* All elements of a tensor, dense, as f64. */
static double *dense(linear_call *c, const char *name) {
  const int64_t count = linear_count(linear_arg(c, name));
  double *value = malloc((size_t)count * sizeof *value);
  cr_assert_not_null(value);
  for (int64_t i = 0; i < count; ++i)
    value[i] = linear_get(c, name, i);
  return value;
}

/* out [M, N] = a [M, K] b [N, K]^T */
static void matrix_product(const double *a, const double *b, int M, int N, int K, double *out) {
  cblas_dgemm(CblasRowMajor, CblasNoTrans, CblasTrans, M, N, K, 1, a, K, b, K, 0, out, N);
}

/* ---- gemm -------------------------------------------------------------------------------------------- */

static void open_gemm(linear_call *c, assay_dtype dtype, int64_t M, int64_t N, int64_t K, int64_t pad) {
  linear_open(c, assay_op_gemm());
  linear_tensor(c, "a", dtype, pad, M, K, 0);
  linear_tensor(c, "b", dtype, 0, N, K, 0);
  linear_tensor(c, "c", dtype, 0, M, N, 0);
}

/* cuBLASLt multiplies alpha into a in f32. A factor of 1.5e-44 then has no bits left, and a weight of 63 shows it. */
Test(gemm, alpha_may_be_multiplied_into_a_factor) {
  const float a[2] = {-2.9531175e-37F, 1.5414283e-44F}, b[2] = {-0.48464665F, -63.331818F};
  for (int scaled = 0; scaled < 2; ++scaled) {
    const float alpha = scaled ? 0.0625F : 1;
    linear_call c;
    open_gemm(&c, ASSAY_F32, 1, 1, 2, 0);
    linear_param(&c, "alpha", (double)alpha);
    for (int k = 0; k < 2; ++k) {
      linear_set(&c, "a", k, (double)a[k]);
      linear_set(&c, "b", k, (double)b[k]);
    }
    linear_run(&c, &contract, false);
    const assay_expected *y = linear_result(&c, "c");
    const double limit = assay_op_gemm()->kappa_element * y->sigma[0];
    const float first = alpha * a[0], second = alpha * a[1];
    const float found = fmaf(second, b[1], first * b[0]);
    cr_expect(fabs((double)found - y->value[0]) <= limit, "alpha %g: off by %g", (double)alpha,
              (double)found - y->value[0]);
    cr_expect(!scaled || fabs((double)found - y->value[0]) > 12 * 0x1p-149, "the case shows nothing");
    cr_expect(limit < (scaled ? 200 * 0x1p-149 : 0x1p-142), "limit %g", limit);
    linear_close(&c);
  }
}

Test(gemm, equals_another_librarys_product) {
  static const assay_dtype dtypes[] = {ASSAY_F32, ASSAY_F16, ASSAY_BF16};
  for (int d = 0; d < 3; ++d)
    for (int64_t pad = 0; pad < 6; pad += 5) {
      enum { M = 7, N = 13, K = 37 };
      linear_call c;
      double product[M * N];
      open_gemm(&c, dtypes[d], M, N, K, pad);
      linear_tensor(&c, "bias", dtypes[d], 0, N, 0, 0);
      linear_param(&c, "alpha", 0.7);
      linear_param(&c, "beta", -1.3);
      linear_normals(&c, "a", 1);
      linear_normals(&c, "b", 2);
      linear_normals(&c, "c", 3);
      linear_normals(&c, "bias", 4);
      linear_run(&c, &contract, false);
      double *a = dense(&c, "a"), *b = dense(&c, "b");
      matrix_product(a, b, M, N, K, product);
      for (int i = 0; i < M * N; ++i) {
        const double wanted = 0.7 * product[i] - 1.3 * linear_get(&c, "c", i) + linear_get(&c, "bias", i % N);
        cr_assert(linear_close_to(linear_result(&c, "c")->value[i], wanted), "element %d", i);
      }
      free(a);
      free(b);
      linear_close(&c);
    }
}

Test(gemm, identity_matrices) {
  enum { S = 19 };
  linear_call c;
  open_gemm(&c, ASSAY_BF16, S, S, S, 3);
  linear_normals(&c, "a", 5);
  for (int i = 0; i < S; ++i)
    linear_set(&c, "b", i * S + i, 1);
  linear_run(&c, &contract, false);
  for (int i = 0; i < S * S; ++i)
    cr_assert(linear_result(&c, "c")->value[i] == linear_get(&c, "a", i));
  linear_all(&c, "a", 0);
  for (int i = 0; i < S; ++i)
    linear_set(&c, "a", i * S + i, 1);
  linear_normals(&c, "b", 6);
  linear_run(&c, &contract, false);
  for (int m = 0; m < S; ++m)
    for (int n = 0; n < S; ++n)
      cr_assert(linear_result(&c, "c")->value[m * S + n] == linear_get(&c, "b", n * S + m));
  linear_close(&c);
}

Test(gemm, linear_in_a) {
  enum { M = 3, N = 5, K = 40 };
  double sum[M * N] = {0};
  for (int part = 0; part < 3; ++part) { /* x, y, x + y of whole numbers, which every type here holds */
    linear_call c;
    open_gemm(&c, ASSAY_F32, M, N, K, 0);
    linear_normals(&c, "b", 7);
    for (int i = 0; i < M * K; ++i) {
      const double x = i * 7 % 23 - 11, y = i * 5 % 17 - 8;
      linear_set(&c, "a", i, part == 0 ? x : part == 1 ? y : x + y);
    }
    linear_run(&c, &contract, false);
    for (int i = 0; i < M * N; ++i) {
      const double value = linear_result(&c, "c")->value[i];
      if (part == 2) cr_assert(linear_close_to(sum[i], value));
      sum[i] += value;
    }
    linear_close(&c);
  }
}

Test(gemm, beta_0_never_reads_c) {
  for (int exact = 0; exact < 2; ++exact) {
    linear_call c;
    open_gemm(&c, ASSAY_F32, 2, 3, 8, 0);
    linear_integers(&c, "a", 8, 3);
    linear_integers(&c, "b", 9, 3);
    linear_all(&c, "c", (double)NAN);
    linear_run(&c, &contract, exact != 0);
    for (int i = 0; i < 6; ++i)
      cr_assert(assay_is_finite(linear_result(&c, "c")->value[i]) && linear_result(&c, "c")->sigma[i] >= 0);
    linear_close(&c);
  }
}

/* An f32 accumulation, forwards and backwards, stays inside the error model, and the model is not far above it. */
Test(gemm, f32_sums_lie_inside_sigma) {
  enum { M = 4, N = 64, K = 1000 };
  linear_call c;
  open_gemm(&c, ASSAY_F32, M, N, K, 0);
  linear_normals(&c, "a", 10);
  linear_normals(&c, "b", 11);
  linear_run(&c, &contract, false);
  for (int backwards = 0; backwards < 2; ++backwards) {
    double error2 = 0, sigma2 = 0;
    for (int i = 0; i < M * N; ++i) {
      volatile float sum = 0;
      for (int k = 0; k < K; ++k) {
        const int at = backwards != 0 ? K - 1 - k : k;
        volatile float product =
            (float)linear_get(&c, "a", i / N * K + at) * (float)linear_get(&c, "b", i % N * K + at);
        sum = sum + product;
      }
      const double error = (double)sum - linear_result(&c, "c")->value[i], sigma = linear_result(&c, "c")->sigma[i];
      cr_assert(fabs(error) <= assay_op_gemm()->kappa_element * sigma);
      error2 += error * error;
      sigma2 += sigma * sigma;
    }
    cr_assert(error2 < sigma2 && error2 > 0.2 * sigma2, "RMS %g of sigma", sqrt(error2 / sigma2));
  }
  linear_close(&c);
}

Test(gemm, exact_tier_is_proven) {
  linear_call c;
  assay_error error = {""};
  open_gemm(&c, ASSAY_BF16, 2, 2, 16, 0);
  linear_integers(&c, "a", 12, 9);
  linear_integers(&c, "b", 13, 9);
  linear_run(&c, &contract, true);
  linear_set(&c, "a", 3, 0x1p20);
  linear_set(&c, "b", 3, 0x1p20 + 0x1p13);
  cr_assert_eq(linear_try(&c, &contract, true, &error), ASSAY_ERR_INPUT);
  cr_assert(strstr(error.text, "sum |a b|") != NULL, "%s", error.text);
  linear_set(&c, "a", 3, 1);
  linear_param(&c, "alpha", 0.1);
  cr_assert_eq(linear_try(&c, &contract, true, &error), ASSAY_ERR_INPUT);
  cr_assert(strstr(error.text, "alpha") != NULL, "%s", error.text);
  linear_close(&c);
}

/* tanh u = u / (1 + u^2 / (3 + u^2 / (5 + ...))) */
static double tanh_by_fraction(double u) {
  double tail = 0;
  for (int n = 199; n >= 1; n -= 2)
    tail = u * u / (n + tail);
  return u == 0 ? 0 : tail / u;
}

/* ---- lm_head ----------------------------------------------------------------------------------------- */

Test(lm_head, selected_rows_of_the_whole_product) {
  enum { T = 9, R = 5, V = 17, C = 29 };
  static const int selected[R] = {8, 0, 3, 3, 7};
  linear_call c;
  double product[T * V];
  linear_open(&c, assay_op_lm_head());
  linear_tensor(&c, "x", ASSAY_BF16, 3, T, C, 0);
  linear_tensor(&c, "w", ASSAY_BF16, 0, V, C, 0);
  linear_tensor(&c, "row_index", ASSAY_I32, 0, R, 0, 0);
  linear_tensor(&c, "logits", ASSAY_F32, 0, R, V, 0);
  linear_normals(&c, "x", 1);
  linear_normals(&c, "w", 2);
  for (int r = 0; r < R; ++r)
    linear_set(&c, "row_index", r, selected[r]);
  linear_run(&c, &contract, false);
  double *x = dense(&c, "x"), *w = dense(&c, "w");
  matrix_product(x, w, T, V, C, product);
  for (int i = 0; i < R * V; ++i)
    cr_assert(linear_close_to(linear_result(&c, "logits")->value[i], product[selected[i / V] * V + i % V]));
  free(x);
  free(w);
  /* A one-hot row picks a column of the weights. */
  linear_all(&c, "x", 0);
  linear_set(&c, "x", 8 * C + 5, 1);
  linear_run(&c, &contract, true);
  for (int v = 0; v < V; ++v)
    cr_assert(linear_result(&c, "logits")->value[v] == linear_get(&c, "w", v * C + 5));

  /* A cap bends every logit by tanh. */
  linear_normals(&c, "x", 1);
  linear_param(&c, "softcap", 3);
  linear_run(&c, &contract, false);
  for (int i = 0; i < R * V; ++i) {
    const double logit = product[selected[i / V] * V + i % V];
    cr_assert(linear_close_to(linear_result(&c, "logits")->value[i], 3 * tanh_by_fraction(logit / 3)), "%g", logit);
  }

  assay_error error = {""};
  linear_set(&c, "row_index", 4, T);
  cr_assert_eq(linear_try(&c, &contract, false, &error), ASSAY_ERR_INPUT);
  cr_assert_str_eq(error.text, "row_index: found 9 at 4, allowed 0 to 8");
  linear_close(&c);
}

/* ---- lm_head_argmax ---------------------------------------------------------------------------------- */

static void open_argmax(linear_call *c, assay_dtype dtype, int64_t pad, int64_t T, int64_t R, int64_t V, int64_t C) {
  linear_open(c, assay_op_lm_head_argmax());
  linear_tensor(c, "x", dtype, pad, T, C, 0);
  linear_tensor(c, "w", dtype, 0, V, C, 0);
  linear_tensor(c, "row_index", ASSAY_I32, 0, R, 0, 0);
  linear_tensor(c, "token", ASSAY_I32, 0, R, 0, 0);
  linear_tensor(c, "status", ASSAY_I32, 0, R, 0, 0);
  linear_tensor(c, "logit", ASSAY_F32, 0, R, 0, 0);
}

Test(lm_head_argmax, first_largest_of_the_whole_product) {
  enum { T = 9, R = 5, V = 17, C = 29 };
  static const int selected[R] = {8, 0, 3, 3, 7};
  linear_call c;
  double product[T * V];
  open_argmax(&c, ASSAY_BF16, 3, T, R, V, C);
  linear_normals(&c, "x", 1);
  linear_normals(&c, "w", 2);
  for (int r = 0; r < R; ++r)
    linear_set(&c, "row_index", r, selected[r]);
  linear_run(&c, &contract, false);
  double *x = dense(&c, "x"), *w = dense(&c, "w");
  matrix_product(x, w, T, V, C, product);
  for (int r = 0; r < R; ++r) {
    const double *row = product + selected[r] * V;
    int best = V - 1;
    for (int v = V - 2; v >= 0; --v)
      if (row[v] >= row[best]) best = v;
    cr_assert(linear_result(&c, "token")->value[r] == best);
    cr_assert(linear_result(&c, "status")->value[r] == 0);
    cr_assert(linear_close_to(linear_result(&c, "logit")->value[r], row[best]));
    cr_assert(linear_result(&c, "logit")->sigma[r] > 0);
    cr_assert(!c.op->accepts(&c.call, &contract, 0, r, (best + 1) % V), "another id, far below");
  }
  free(x);
  free(w);
  assay_error error = {""};
  linear_set(&c, "row_index", 4, T);
  cr_assert_eq(linear_try(&c, &contract, false, &error), ASSAY_ERR_INPUT);
  cr_assert_str_eq(error.text, "row_index: found 9 at 4, allowed 0 to 8");
  linear_close(&c);
}

/* Logits are the weights: x is 1 in one channel. */
Test(lm_head_argmax, ties_bans_and_what_is_not_finite) {
  enum { V = 4 };
  static const struct {
    double w[V], token, status, logit;
  } rows[] = {{{1, 3, 3, 2}, 1, 0, 3},
              {{-5, -2, -3, -2}, 1, 0, -2},
              {{-INFINITY, -INFINITY, -7, -INFINITY}, 2, 0, -7},
              {{-INFINITY, -INFINITY, -INFINITY, -INFINITY}, -1, 2, 0},
              {{1, INFINITY, 2, 3}, -1, 1, 0},
              {{1, 2, -INFINITY, NAN}, -1, 1, 0}};
  for (size_t i = 0; i < sizeof rows / sizeof *rows; ++i) {
    linear_call c;
    open_argmax(&c, ASSAY_F32, 0, 1, 1, V, 1);
    linear_all(&c, "x", 1);
    for (int v = 0; v < V; ++v)
      linear_set(&c, "w", v, rows[i].w[v]);
    linear_run(&c, &contract, false);
    cr_assert(linear_result(&c, "token")->value[0] == rows[i].token, "row %zu", i);
    cr_assert(linear_result(&c, "status")->value[0] == rows[i].status, "row %zu", i);
    cr_assert(linear_result(&c, "logit")->value[0] == rows[i].logit, "row %zu", i);
    cr_assert(!c.op->accepts(&c.call, &contract, 0, 0, 3), "row %zu: exact logits are not near each other", i);
    linear_close(&c);
  }
}

/* Two logits that differ by less than what f32 may err: either id is right, and no third one is. */
Test(lm_head_argmax, rounding_may_decide) {
  linear_call c;
  open_argmax(&c, ASSAY_F32, 0, 1, 1, 3, 64);
  linear_normals(&c, "x", 1);
  linear_normals(&c, "w", 2);
  for (int i = 0; i < 64; ++i) {
    linear_set(&c, "w", i, fabs(linear_get(&c, "w", i)) * (linear_get(&c, "x", i) < 0 ? -1 : 1));
    linear_set(&c, "w", 64 + i, linear_get(&c, "w", i));
    linear_set(&c, "w", 128 + i, 0.5 * linear_get(&c, "w", i));
  }
  linear_set(&c, "w", 64, linear_get(&c, "w", 64) * (1 + 0x1p-23));
  linear_run(&c, &contract, false);
  cr_assert(linear_result(&c, "token")->value[0] == 1);
  cr_assert(c.op->accepts(&c.call, &contract, 0, 0, 0));
  cr_assert(!c.op->accepts(&c.call, &contract, 0, 0, 2));
  cr_assert(!c.op->accepts(&c.call, &contract, 0, 0, -1));
  cr_assert(!c.op->accepts(&c.call, &contract, 0, 0, NAN));
  cr_assert(!c.op->accepts(&c.call, &contract, 1, 0, 0), "the status is no matter of rounding");
  linear_close(&c);
}

/* ---- embedding --------------------------------------------------------------------------------------- */

static void open_embedding(linear_call *c, assay_dtype dtype, int64_t N, int64_t V, int64_t C, int64_t P) {
  linear_open(c, assay_op_embedding());
  linear_tensor(c, "table", dtype, 0, V, C, 0);
  linear_tensor(c, "ids", ASSAY_I32, 0, N, 0, 0);
  linear_tensor(c, "y", dtype, 0, N, C, 0);
  linear_normals(c, "table", 1);
  if (P == 0) return;
  linear_tensor(c, "position_table", dtype, 0, P, C, 0);
  linear_tensor(c, "positions", ASSAY_I32, 0, N, 0, 0);
  linear_normals(c, "position_table", 2);
}

Test(embedding, equals_the_product_with_one_hot_rows) {
  enum { N = 6, V = 11, C = 13, P = 4 };
  static const int ids[N] = {10, 0, 3, 3, 9, 1}, positions[N] = {3, 0, 1, 2, 0, 3};
  linear_call c;
  double hot[N * V] = {0}, where[N * P] = {0}, token[N * C], place[N * C];
  open_embedding(&c, ASSAY_BF16, N, V, C, P);
  for (int n = 0; n < N; ++n) {
    linear_set(&c, "ids", n, ids[n]);
    linear_set(&c, "positions", n, positions[n]);
    hot[n * V + ids[n]] = where[n * P + positions[n]] = 1;
  }
  linear_run(&c, &contract, false);
  double *table = dense(&c, "table"), *learned = dense(&c, "position_table");
  cblas_dgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, N, C, V, 1, hot, V, table, C, 0, token, C);
  cblas_dgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, N, C, P, 1, where, P, learned, C, 0, place, C);
  for (int i = 0; i < N * C; ++i)
    cr_assert(linear_result(&c, "y")->value[i] == token[i] + place[i]);
  free(table);
  free(learned);
  linear_close(&c);
}

Test(embedding, copies_bits_and_refuses_ids) {
  linear_call c;
  assay_error error = {""};
  open_embedding(&c, ASSAY_F16, 3, 5, 4, 0);
  linear_set(&c, "table", 7, (double)NAN);
  for (int n = 0; n < 3; ++n)
    linear_set(&c, "ids", n, 1);
  linear_run(&c, &contract, false);
  for (int i = 0; i < 12; ++i) {
    const double value = linear_result(&c, "y")->value[i], stored = linear_get(&c, "table", 4 + i % 4);
    cr_assert(value == stored || (assay_is_nan(value) && assay_is_nan(stored)));
    cr_assert(linear_result(&c, "y")->sigma[i] == 0);
  }
  for (int bad = -1; bad <= 5; bad += 6) {
    linear_set(&c, "ids", 2, bad);
    cr_assert_eq(linear_try(&c, &contract, false, &error), ASSAY_ERR_INPUT);
    cr_assert(strstr(error.text, "ids: found") == error.text && strstr(error.text, "row 2, allowed 0 to 4") != NULL,
              "%s", error.text);
  }
  linear_close(&c);
  open_embedding(&c, ASSAY_F16, 3, 5, 4, 2);
  linear_set(&c, "positions", 1, 2);
  cr_assert_eq(linear_try(&c, &contract, false, &error), ASSAY_ERR_INPUT);
  cr_assert_str_eq(error.text, "positions: found 2 in row 1, allowed 0 to 1");
  free(linear_arg(&c, "positions")->data);
  linear_arg(&c, "positions")->data = NULL;
  cr_assert_eq(linear_try(&c, &contract, false, &error), ASSAY_ERR_INPUT);
  cr_assert(strstr(error.text, "positions: found no data") == error.text, "%s", error.text);
  linear_close(&c);
}

/* ---- activations ------------------------------------------------------------------------------------- */

Test(bias_gelu_new, even_and_odd_parts) {
  enum { C = 801 };
  linear_call c;
  linear_open(&c, assay_op_bias_gelu_new());
  linear_tensor(&c, "x", ASSAY_F32, 0, 2, C, 0);
  linear_tensor(&c, "b", ASSAY_F32, 0, C, 0, 0);
  for (int i = 0; i < C; ++i) {
    const double v = (i - 400) * 0x1p-6;
    linear_set(&c, "b", i, 0.5);
    linear_set(&c, "x", i, v - 0.5);
    linear_set(&c, "x", C + i, -v - 0.5);
  }
  linear_run(&c, &contract, false);
  const double *y = linear_result(&c, "x")->value;
  for (int i = 0; i < C; ++i) {
    const double v = (i - 400) * 0x1p-6, u = sqrt(2 / acos(-1.0)) * (v + 0.044715 * v * v * v);
    cr_assert(linear_close_to(y[i] - y[C + i], v));
    cr_assert(linear_close_to(y[i] + y[C + i], v * tanh_by_fraction(u)), "v = %g: %.17g, %.17g", v, y[i] + y[C + i],
              v * tanh_by_fraction(u));
  }
  cr_assert(y[400] == 0);
  linear_close(&c);
}

/* f32 as the definition stands lies inside the error model. */
Test(bias_gelu_new, f32_lies_inside_sigma) {
  enum { C = 4000 };
  linear_call c;
  linear_open(&c, assay_op_bias_gelu_new());
  linear_tensor(&c, "x", ASSAY_F32, 0, 1, C, 0);
  linear_tensor(&c, "b", ASSAY_F32, 0, C, 0, 0);
  linear_normals(&c, "x", 1);
  linear_normals(&c, "b", 2);
  linear_run(&c, &contract, false);
  for (int i = 0; i < C; ++i) {
    const float v = (float)linear_get(&c, "x", i) + (float)linear_get(&c, "b", i);
    const float y = 0.5F * v * (1.0F + tanhf(0.7978845608F * (v + 0.044715F * v * v * v)));
    const double error = (double)y - linear_result(&c, "x")->value[i];
    cr_assert(fabs(error) <= assay_op_bias_gelu_new()->kappa_element * linear_result(&c, "x")->sigma[i]);
  }
  linear_close(&c);
}

static void open_gated(linear_call *c, const assay_op *op, int64_t rows, int64_t width) {
  linear_open(c, op);
  linear_tensor(c, "x", ASSAY_F32, 0, rows, 2 * width, 0);
  linear_tensor(c, "y", ASSAY_F32, 0, rows, width, 0);
}

/* Rows: (g, u), (-g, u), (g, 2 u). f(g) = g for both plus an even part: |g|, or g tanh(g / 2). */
static void even_and_odd(const assay_op *op) {
  enum { width = 500 };
  linear_call c;
  open_gated(&c, op, 3, width);
  for (int i = 0; i < width; ++i) {
    const double g = (i - 250) * 0x1p-5, u = (i * 37 % 101 - 50) * 0.25;
    for (int row = 0; row < 3; ++row) {
      linear_set(&c, "x", row * 2 * width + i, row == 1 ? -g : g);
      linear_set(&c, "x", row * 2 * width + width + i, row == 2 ? 2 * u : u);
    }
  }
  linear_run(&c, &contract, false);
  const double *y = linear_result(&c, "y")->value;
  for (int i = 0; i < width; ++i) {
    const double g = (i - 250) * 0x1p-5, u = (i * 37 % 101 - 50) * 0.25;
    const double even = op == assay_op_reglu() ? fabs(g) : g * tanh_by_fraction(g / 2);
    cr_assert(linear_close_to(y[i] - y[width + i], g * u));
    cr_assert(linear_close_to(y[i] + y[width + i], even * u));
    cr_assert(y[2 * width + i] == 2 * y[i]);
  }
  linear_close(&c);
}

Test(gated, even_and_odd_parts) {
  even_and_odd(assay_op_reglu());
  even_and_odd(assay_op_swiglu());
}

enum { forms_width = 300 };

static double form_gate(int i) {
  return (i - 150) * 0x1p-4;
}

static double form_up(int row, int i) {
  return (i * 37 % 101 - 50) * 0.25 + row;
}

/* Holds the parameters of a run, and how its gates and ups are made. */
typedef struct swiglu_run {
  double limit, alpha, beta, weight; /* weight 0: none */
  bool interleaved, limited_by_hand, sigmoid;
  double gate_factor, up_shift;
} swiglu_run;

static double by_hand(const swiglu_run *run, double value, bool both) {
  if (!run->limited_by_hand) return value;
  return value > 7 ? 7 : both && value < -7 ? -7 : value;
}

/* Runs two rows and writes their results to y. */
static void run_swiglu(const swiglu_run *run, double *y) {
  linear_call c;
  const assay_op *op = assay_op_swiglu();
  open_gated(&c, op, 2, forms_width);
  if (run->weight != 0) linear_tensor(&c, "w", ASSAY_F32, 0, 2, 0, 0);
  for (int row = 0; row < 2; ++row) {
    if (run->weight != 0) linear_set(&c, "w", row, run->weight * (row + 1));
    for (int i = 0; i < forms_width; ++i) {
      const int64_t at = row * 2 * forms_width;
      const double g = by_hand(run, form_gate(i), false) * run->gate_factor;
      linear_set(&c, "x", at + (run->interleaved ? 2 * i : i), g);
      linear_set(&c, "x", at + (run->interleaved ? 2 * i + 1 : forms_width + i),
                 by_hand(run, form_up(row, i), true) + run->up_shift);
    }
  }
  linear_param(&c, "limit", run->limit);
  linear_param(&c, "alpha", run->alpha);
  linear_param(&c, "beta", run->beta);
  linear_param(&c, "layout", run->interleaved);
  linear_param(&c, "sigmoid", run->sigmoid);
  linear_run(&c, &contract, false);
  for (int i = 0; i < 2 * forms_width; ++i)
    y[i] = linear_result(&c, "y")->value[i];
  linear_close(&c);
}

/* silu(2^-126) is subnormal. A kernel that flushes it loses a result of 1.5e-32, as FlashInfer's does, and no other. */
Test(swiglu, a_flushed_silu_is_allowed_by_ftz_alone) {
  static const assay_contract flushing = {.exp_ulp = 2, .lanes = 1, .ftz = true};
  for (int flushes = 0; flushes < 2; ++flushes) {
    linear_call c;
    open_gated(&c, assay_op_swiglu(), 1, 2);
    linear_set(&c, "x", 0, 0x1p-126);
    linear_set(&c, "x", 1, 0x1p-124);
    linear_set(&c, "x", 2, -2539520);
    linear_set(&c, "x", 3, -2539520);
    linear_run(&c, flushes ? &flushing : &contract, false);
    const assay_expected *y = linear_result(&c, "y");
    const double kappa = assay_op_swiglu()->kappa_element;
    cr_expect_eq(fabs(y->value[0]) <= kappa * y->sigma[0], flushes != 0, "sigma %g", y->sigma[0]);
    cr_expect(fabs(y->value[1]) > kappa * y->sigma[1], "sigma %g", y->sigma[1]);
    linear_close(&c);
  }
}

/* Each parameter gives the plain form of other inputs: limited ones, gates times alpha, shifted ups, another order. The
 * weight is a factor of the result. A sigmoid alone, times the gate, is the plain form. */
Test(swiglu, forms_are_the_plain_form_of_changed_inputs) {
  static const swiglu_run form[] = {
      {.limit = 7, .alpha = 1, .gate_factor = 1},  {.alpha = 2, .gate_factor = 1},
      {.alpha = 1, .beta = 1, .gate_factor = 1},   {.alpha = 1, .gate_factor = 1, .interleaved = true},
      {.alpha = 1, .gate_factor = 1, .weight = 3}, {.alpha = 1, .gate_factor = 1, .sigmoid = true}};
  static const swiglu_run plain[] = {{.alpha = 1, .gate_factor = 1, .limited_by_hand = true},
                                     {.alpha = 1, .gate_factor = 2},
                                     {.alpha = 1, .gate_factor = 1, .up_shift = 1},
                                     {.alpha = 1, .gate_factor = 1},
                                     {.alpha = 1, .gate_factor = 1},
                                     {.alpha = 1, .gate_factor = 1}};
  static double a[2 * forms_width], b[2 * forms_width];
  for (size_t f = 0; f < sizeof form / sizeof form[0]; ++f) {
    run_swiglu(&form[f], a);
    run_swiglu(&plain[f], b);
    for (int i = 0; i < 2 * forms_width; ++i) {
      const double factor = f == 1 ? 0.5 : f == 4 ? 3.0 * (1 + i / forms_width) : 1;
      if (f == 5) a[i] *= form_gate(i % forms_width);
      cr_assert(linear_close_to(a[i], factor * b[i]), "form %zu, element %d: %g and %g", f, i, a[i], factor * b[i]);
    }
  }
}

/* With a cubic term and alpha = sqrt(8 / pi) the gate is GELU by tanh: g / 2 (1 + tanh(alpha / 2 (g + c g^3))). */
Test(swiglu, a_cubic_term_makes_gelu) {
  const double alpha = (double)1.5957691F, cubic = (double)0.044715F;
  linear_call c;
  open_gated(&c, assay_op_swiglu(), 1, forms_width);
  linear_param(&c, "alpha", alpha);
  linear_param(&c, "cubic", cubic);
  for (int i = 0; i < forms_width; ++i) {
    linear_set(&c, "x", i, form_gate(i) / 4);
    linear_set(&c, "x", forms_width + i, form_up(0, i));
  }
  linear_run(&c, &contract, false);
  for (int i = 0; i < forms_width; ++i) {
    const double g = form_gate(i) / 4, gelu = g / 2 * (1 + tanh_by_fraction(alpha / 2 * (g + cubic * g * g * g)));
    cr_assert(linear_close_to(linear_result(&c, "y")->value[i], gelu * form_up(0, i)), "g = %g", g);
  }
  linear_close(&c);
}

Test(swiglu, infinite_exponentials_are_in_sigma) {
  linear_call c;
  open_gated(&c, assay_op_swiglu(), 1, 3);
  static const double x[6] = {-95, -88, 95, 3, 3, 3};
  for (int i = 0; i < 6; ++i)
    linear_set(&c, "x", i, x[i]);
  linear_run(&c, &contract, false);
  for (int i = 0; i < 3; ++i) {
    const float g = (float)x[i], y = g / (1.0F + expf(-g)) * 3.0F;
    const double error = fabs((double)y - linear_result(&c, "y")->value[i]);
    cr_assert(error <= assay_op_swiglu()->kappa_element * linear_result(&c, "y")->sigma[i], "g = %g", (double)g);
  }
  linear_close(&c);
}

/* ---- bias_residual ----------------------------------------------------------------------------------- */

static void open_residual(linear_call *c, bool bias, bool apart) {
  linear_open(c, assay_op_bias_residual());
  linear_tensor(c, "res", ASSAY_BF16, 3, 4, 10, 0);
  linear_tensor(c, "y", ASSAY_BF16, 7, 4, 10, 0);
  if (bias) linear_tensor(c, "b", ASSAY_BF16, 0, 10, 0, 0);
  if (apart) linear_tensor(c, "res_out", ASSAY_BF16, 0, 4, 10, 0);
}

Test(bias_residual, sums_of_whole_numbers) {
  for (int form = 0; form < 4; ++form) {
    linear_call c;
    const bool bias = (form & 1) != 0, apart = (form & 2) != 0;
    open_residual(&c, bias, apart);
    linear_integers(&c, "res", 1, 100);
    linear_integers(&c, "y", 2, 100);
    if (bias) linear_integers(&c, "b", 3, 50);
    linear_run(&c, &contract, true);
    const assay_expected *to = linear_result(&c, apart ? "res_out" : "res");
    for (int i = 0; i < 40; ++i) {
      const int sum =
          (int)linear_get(&c, "res", i) + (int)linear_get(&c, "y", i) + (bias ? (int)linear_get(&c, "b", i % 10) : 0);
      cr_assert(to->value[i] == sum);
      cr_assert(to->sigma[i] == (assay_round_f64(sum, ASSAY_BF16) == sum ? 0 : to->sigma[i]));
      if (apart) cr_assert(linear_result(&c, "res")->sigma[i] == ASSAY_UNCHANGED);
    }
    linear_close(&c);
  }
}

Test(bias_residual, commutes_and_is_the_same_in_place) {
  linear_call a, b;
  open_residual(&a, true, false);
  open_residual(&b, true, true);
  linear_normals(&a, "res", 1);
  linear_normals(&a, "y", 2);
  linear_normals(&a, "b", 3);
  for (int i = 0; i < 40; ++i) {
    linear_set(&b, "res", i, linear_get(&a, "y", i));
    linear_set(&b, "y", i, linear_get(&a, "res", i));
    linear_set(&b, "b", i % 10, linear_get(&a, "b", i % 10));
  }
  linear_run(&a, &contract, false);
  linear_run(&b, &contract, false);
  for (int i = 0; i < 40; ++i) {
    cr_assert(linear_close_to(linear_result(&a, "res")->value[i], linear_result(&b, "res_out")->value[i]));
    cr_assert(linear_close_to(linear_result(&a, "res")->sigma[i], linear_result(&b, "res_out")->sigma[i]));
  }
  linear_close(&a);
  linear_close(&b);
}

/* ---- kernels and contents that are out of range ------------------------------------------------------ */

#ifdef ASSAY_HAVE_SIMT
const assay_variant *assay_variants_simt_embedding(int32_t *count);
const assay_variant *assay_variants_simt_lm_head(int32_t *count);
const assay_variant *assay_variants_simt_lm_head_wgmma(int32_t *count);
const assay_variant *assay_variants_simt_lm_head_argmax(int32_t *count);
const assay_variant *assay_variants_simt_lm_head_argmax_wgmma(int32_t *count);

/* The first that takes the call. */
static void launch(const assay_variant *variants, int32_t count, linear_call *c) {
  static uint64_t memory[4096];
  assay_env env = {.multiprocessors = 4, .workspace = memory, .workspace_bytes = sizeof memory};
  assay_error error = {""};
  int32_t i = 0;
  while (i + 1 < count && variants[i].supports(&c->call, &error) != ASSAY_OK)
    ++i;
  error.text[0] = '\0';
  const assay_status status = variants[i].launch(&c->call, &env, &error);
  cr_assert(status == ASSAY_OK, "%s", error.text);
}

Test(embedding, kernel_makes_zeros_of_illegal_rows) {
  static const int ids[4] = {1, -7, 2000000000, 4}, positions[4] = {0, 0, 0, 99};
  int32_t count = 0;
  linear_call c;
  open_embedding(&c, ASSAY_BF16, 4, 5, 6, 2);
  linear_all(&c, "y", 17);
  for (int n = 0; n < 4; ++n) {
    linear_set(&c, "ids", n, ids[n]);
    linear_set(&c, "positions", n, positions[n]);
  }
  const assay_variant *const variants = assay_variants_simt_embedding(&count);
  launch(variants, count, &c);
  for (int i = 0; i < 24; ++i) {
    const double sum = linear_get(&c, "table", 6 + i % 6) + linear_get(&c, "position_table", i % 6);
    cr_assert(linear_get(&c, "y", i) == (i < 6 ? assay_round_f64(sum, ASSAY_BF16) : 0));
  }
  linear_close(&c);
}

Test(lm_head, kernel_takes_illegal_rows_for_zeros) {
  int32_t count = 0;
  linear_call c;
  linear_open(&c, assay_op_lm_head());
  linear_tensor(&c, "x", ASSAY_F32, 0, 2, 4, 0);
  linear_tensor(&c, "w", ASSAY_F32, 0, 3, 4, 0);
  linear_tensor(&c, "row_index", ASSAY_I32, 0, 3, 0, 0);
  linear_tensor(&c, "logits", ASSAY_F32, 0, 3, 3, 0);
  linear_all(&c, "x", 1);
  linear_all(&c, "w", 1);
  linear_set(&c, "row_index", 0, -1);
  linear_set(&c, "row_index", 1, 1);
  linear_set(&c, "row_index", 2, 2147483647);
  const assay_variant *const variants = assay_variants_simt_lm_head(&count);
  launch(variants, count, &c);
  for (int i = 0; i < 9; ++i)
    cr_assert(linear_get(&c, "logits", i) == (i / 3 == 1 ? 4 : 0));
  linear_close(&c);
}

Test(lm_head_argmax, kernels_take_illegal_rows_for_zeros) {
  int32_t count = 0;
  for (int kernel = 0; kernel < 2; ++kernel) {
    linear_call c;
    open_argmax(&c, ASSAY_BF16, 8, 2, 3, 3, 8);
    linear_all(&c, "x", 1);
    for (int i = 0; i < 24; ++i)
      linear_set(&c, "w", i, i / 8 + 1);
    linear_set(&c, "row_index", 0, -1);
    linear_set(&c, "row_index", 1, 1);
    linear_set(&c, "row_index", 2, 2147483647);
    const assay_variant *const variants =
        kernel == 0 ? assay_variants_simt_lm_head_argmax(&count) : assay_variants_simt_lm_head_argmax_wgmma(&count);
    launch(variants, count, &c);
    for (int r = 0; r < 3; ++r) {
      cr_assert(linear_get(&c, "token", r) == (r == 1 ? 2 : 0));
      cr_assert(linear_get(&c, "logit", r) == (r == 1 ? 24 : 0));
      cr_assert(linear_get(&c, "status", r) == 0);
    }
    linear_close(&c);
  }
}

/* Steps of an engine choose by either operator, whether their other rows draw or not (gpu/models/invariant.c). */
Test(lm_head_argmax, wgmma_has_the_sums_of_lm_head) {
  enum { V = 200, C = 72 };
  static const int rows[] = {5, 20, 40, 70};
  int32_t one = 0, two = 0;
  const assay_variant *const best = assay_variants_simt_lm_head_argmax_wgmma(&one);
  const assay_variant *const all = assay_variants_simt_lm_head_wgmma(&two);
  for (size_t i = 0; i < sizeof rows / sizeof *rows; ++i) {
    linear_call a, b;
    open_argmax(&a, ASSAY_BF16, 8, rows[i], rows[i], V, C);
    linear_open(&b, assay_op_lm_head());
    linear_tensor(&b, "x", ASSAY_BF16, 8, rows[i], C, 0);
    linear_tensor(&b, "w", ASSAY_BF16, 0, V, C, 0);
    linear_tensor(&b, "row_index", ASSAY_I32, 0, rows[i], 0, 0);
    linear_tensor(&b, "logits", ASSAY_F32, 0, rows[i], V, 0);
    for (int k = 0; k < 2; ++k) {
      linear_normals(k == 0 ? &a : &b, "x", 1);
      linear_normals(k == 0 ? &a : &b, "w", 2);
      for (int r = 0; r < rows[i]; ++r)
        linear_set(k == 0 ? &a : &b, "row_index", r, rows[i] - 1 - r);
    }
    launch(best, one, &a);
    launch(all, two, &b);
    for (int r = 0; r < rows[i]; ++r) {
      const int token = (int)linear_get(&a, "token", r);
      cr_assert(token >= 0 && token < V);
      cr_assert(linear_get(&a, "logit", r) == linear_get(&b, "logits", r * V + token), "row %d of %d", r, rows[i]);
      for (int v = 0; v < V; ++v)
        cr_assert(linear_get(&b, "logits", r * V + v) <= linear_get(&a, "logit", r));
    }
    linear_close(&a);
    linear_close(&b);
  }
}
#endif
