/* ref_norm_test.c: the norms' references against values by hand, against second formulations that share nothing with
 * them, and against each other; what the error model says against f32 arithmetic done here. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>

#include "assay/op.h"
#include "core/dtype.h"
#include "core/rng.h"

const assay_op *assay_op_rms_norm(void);
const assay_op *assay_op_layer_norm(void);
const assay_op *assay_op_uclip_norm(void);
const assay_op *assay_op_add_rms_norm(void);
const assay_op *assay_op_add_layer_norm(void);
const assay_op *assay_op_add_uclip_norm(void);
const assay_op *assay_op_qk_norm(void);
const assay_op *assay_op_post_attn_pre_mlp_uclip(void);

/* ---- a call ------------------------------------------------------------------------------------------ */

typedef struct rig {
  const assay_op *op;
  assay_dtype dtype;
  assay_tensor arg[ASSAY_MAX_ARGS];
  double param[ASSAY_MAX_PARAMS];
  double *value[ASSAY_MAX_ARGS], *sigma[ASSAY_MAX_ARGS]; /* for output arguments */
} rig;

static const assay_contract contract = {.exp_ulp = 1.5, .lanes = 32};

static rig rig_of(const assay_op *op, assay_dtype dtype) {
  rig r = {.op = op, .dtype = dtype};
  for (int32_t i = 0; i < op->param_count; ++i)
    r.param[i] = op->params[i].fallback;
  return r;
}

static int32_t find(const rig *r, const char *name) {
  for (int32_t i = 0; i < r->op->arg_count; ++i)
    if (strcmp(r->op->args[i].name, name) == 0) return i;
  cr_assert(false, "%s has no argument %s", r->op->name, name);
  return -1;
}

static void set(rig *r, const char *name, double value) {
  for (int32_t i = 0; i < r->op->param_count; ++i)
    if (strcmp(r->op->params[i].name, name) == 0) r->param[i] = value;
}

/* An argument of shape [rows, middle, C] without the axes that are 0; value NULL: zeros. */
static void give(rig *r, const char *name, int64_t rows, int64_t middle, int64_t C, const double *value) {
  const int64_t wanted[] = {rows, middle, C};
  assay_tensor *t = &r->arg[find(r, name)];
  int64_t count = 1;
  *t = (assay_tensor){.dtype = r->dtype};
  for (int i = 0; i < 3; ++i)
    if (wanted[i] > 0) t->shape[t->rank++] = wanted[i];
  for (int32_t a = t->rank - 1; a >= 0; --a) {
    t->stride[a] = count;
    count *= t->shape[a];
  }
  t->data = calloc((size_t)count, 8);
  if (value != NULL) assay_store_f64_row(t->data, t->dtype, 0, 1, count, value);
}

static int64_t size_of(const assay_tensor *t) {
  int64_t count = 1;
  for (int32_t a = 0; a < t->rank; ++a)
    count *= t->shape[a];
  return count;
}

static assay_status try_run(rig *r, bool exact, assay_error *error) {
  *error = (assay_error){""};
  const assay_call call = {r->op, r->arg, r->param};
  const assay_status legal = r->op->check(&call, error);
  if (legal != ASSAY_OK) return legal;
  assay_expected expected[ASSAY_MAX_OUTPUTS];
  int32_t outputs = 0;
  for (int32_t i = 0; i < r->op->arg_count; ++i) {
    if (r->op->args[i].role == ASSAY_IN || r->arg[i].data == NULL) continue;
    r->value[i] = calloc((size_t)size_of(&r->arg[i]), sizeof(double));
    r->sigma[i] = calloc((size_t)size_of(&r->arg[i]), sizeof(double));
    expected[outputs++] = (assay_expected){r->value[i], r->sigma[i]};
  }
  const assay_rows all = {size_of(&r->arg[0]) / r->arg[0].stride[0], NULL};
  return r->op->reference(&call, &contract, &all, exact, expected, NULL, error);
}

static void run(rig *r) {
  assay_error error = {""};
  cr_assert(try_run(r, false, &error) == ASSAY_OK, "%s: %s", r->op->name, error.text);
}

static const double *value_of(const rig *r, const char *name) {
  return r->value[find(r, name)];
}

static const double *sigma_of(const rig *r, const char *name) {
  return r->sigma[find(r, name)];
}

static void done(rig *r) {
  for (int32_t i = 0; i < r->op->arg_count; ++i) {
    free(r->arg[i].data);
    free(r->value[i]);
    free(r->sigma[i]);
  }
}

static double *normals(uint64_t stream, int64_t count, double scale, double offset) {
  double *value = malloc((size_t)count * sizeof *value);
  assay_rng_normals(17, stream, value, count);
  for (int64_t i = 0; i < count; ++i)
    value[i] = scale * value[i] + offset;
  return value;
}

/* Returns an argument's values as f64. */
static double *stored(const rig *r, const char *name) {
  const assay_tensor *t = &r->arg[find(r, name)];
  double *value = malloc((size_t)size_of(t) * sizeof *value);
  assay_load_f64_row(t->data, t->dtype, 0, 1, size_of(t), value);
  return value;
}

static void give_normals(rig *r, const char *name, int64_t rows, int64_t middle, int64_t C, double scale,
                         double offset) {
  const int64_t count = (rows > 0 ? rows : 1) * (middle > 0 ? middle : 1) * C;
  double *value = normals((uint64_t)find(r, name), count, scale, offset);
  give(r, name, rows, middle, C, value);
  free(value);
}

static void assert_near(double found, double expected, double relative, const char *what) {
  cr_assert(fabs(found - expected) <= relative * (1 + fabs(expected)), "%s: found %.17g, expected %.17g", what, found,
            expected);
}

static const assay_dtype types[] = {ASSAY_F32, ASSAY_F16, ASSAY_BF16};

/* ---- by hand ----------------------------------------------------------------------------------------- */

Test(ref_norm, rms_by_hand) {
  const double x[] = {3, 4, 0, 0}, g[] = {1, 1.5, 1, 1}; /* the mean square is 25 / 4 */
  rig r = rig_of(assay_op_rms_norm(), ASSAY_F32);
  set(&r, "eps", 1e-12);
  give(&r, "x", 1, 0, 4, x);
  give(&r, "g", 0, 0, 4, g);
  give(&r, "y", 1, 0, 4, NULL);
  run(&r);
  assert_near(value_of(&r, "y")[0], 1.2, 1e-12, "3 / 2.5");
  assert_near(value_of(&r, "y")[1], 2.4, 1e-12, "4 / 2.5 * 1.5");
  cr_assert(value_of(&r, "y")[2] == 0);
  done(&r);
}

/* 4 / sqrt(25 / 2) = 1.1314 is 145 / 128 in bf16, and 1.75 times that 1.9824, between 253 / 128 and 254 / 128: 253.75;
 * without the rounding in the middle 1.9799: 253.43. */
Test(ref_norm, rms_rounds_in_the_middle) {
  const double x[] = {3, 4}, g[] = {1, 1.75};
  for (int inner = 0; inner < 2; ++inner) {
    rig r = rig_of(assay_op_rms_norm(), ASSAY_BF16);
    set(&r, "eps", 1e-12);
    set(&r, "round_inner", inner);
    give(&r, "x", 1, 0, 2, x);
    give(&r, "g", 0, 0, 2, g);
    give(&r, "y", 1, 0, 2, NULL);
    run(&r);
    cr_assert_eq(value_of(&r, "y")[1], inner != 0 ? 254.0 / 128 : 253.0 / 128);
    cr_assert_eq(sigma_of(&r, "y")[1], 0);
    done(&r);
  }
}

Test(ref_norm, layer_by_hand) {
  const double x[] = {1, 2, 3, 4}, g[] = {2, 2, 2, 2}, b[] = {1, 1, 1, 1};
  rig r = rig_of(assay_op_layer_norm(), ASSAY_F32);
  set(&r, "eps", 1e-12);
  give(&r, "x", 1, 0, 4, x);
  give(&r, "g", 0, 0, 4, g);
  give(&r, "b", 0, 0, 4, b);
  give(&r, "y", 1, 0, 4, NULL);
  run(&r);
  const double root = 1.1180339887498949; /* the root of 5 / 4 */
  for (int c = 0; c < 4; ++c)
    assert_near(value_of(&r, "y")[c], (x[c] - 2.5) / root * 2 + 1, 1e-11, "layer_norm of 1, 2, 3, 4");
  done(&r);
}

Test(ref_norm, uclip_by_hand) {
  const double x[] = {-4, -1, 0, 1, 5}, alpha = 0.5, gamma = 3, beta[] = {0.25, 0.25, 0.25, 0.25, 0.25};
  const double y[] = {-2.75, -1.25, 0.25, 1.75, 3.25};
  rig r = rig_of(assay_op_uclip_norm(), ASSAY_BF16);
  give(&r, "x", 1, 0, 5, x);
  give(&r, "alpha", 0, 0, 1, &alpha);
  give(&r, "gamma", 0, 0, 1, &gamma);
  give(&r, "beta", 0, 0, 5, beta);
  give(&r, "y", 1, 0, 5, NULL);
  run(&r);
  for (int c = 0; c < 5; ++c)
    cr_assert(value_of(&r, "y")[c] == y[c] && sigma_of(&r, "y")[c] == 0, "channel %d: %g", c, value_of(&r, "y")[c]);
  assay_error error = {""};
  cr_assert(try_run(&r, true, &error) == ASSAY_OK, "%s", error.text);
  done(&r);
}

/* y = 0.75 · 129 / 128 lies half way between two numbers of bf16 and goes to the even one, 194 / 256. */
Test(ref_norm, seam_by_hand) {
  const double a = 0.75, res = 1, one = 1, gamma = 1.0078125, half = 0.5, two = 2;
  rig r = rig_of(assay_op_post_attn_pre_mlp_uclip(), ASSAY_BF16);
  give(&r, "a", 1, 0, 1, &a);
  give(&r, "res", 1, 0, 1, &res);
  give(&r, "post_alpha", 0, 0, 1, &one);
  give(&r, "post_gamma", 0, 0, 1, &gamma);
  give(&r, "pre_alpha", 0, 0, 1, &half);
  give(&r, "pre_gamma", 0, 0, 1, &two);
  give(&r, "out", 1, 0, 1, NULL);
  run(&r);
  cr_assert_eq(value_of(&r, "res")[0], 1 + 194.0 / 256);
  cr_assert_eq(value_of(&r, "out")[0], 1 + 194.0 / 256);
  cr_assert_eq(sigma_of(&r, "res")[0], 0);
  done(&r);
}

/* ---- properties -------------------------------------------------------------------------------------- */

Test(ref_norm, constant_rows) {
  enum { C = 96 };
  for (int layer = 0; layer < 2; ++layer) {
    rig r = rig_of(layer != 0 ? assay_op_layer_norm() : assay_op_rms_norm(), ASSAY_F32);
    set(&r, "eps", 1e-12);
    give_normals(&r, "x", 2, 0, C, 0, 3);
    give_normals(&r, "g", 0, 0, C, 1, 0);
    give(&r, "y", 2, 0, C, NULL);
    run(&r);
    double *g = stored(&r, "g");
    for (int64_t i = 0; i < 2 * C; ++i) /* a multiple of the row of ones; nothing is left without its mean */
      assert_near(value_of(&r, "y")[i], layer != 0 ? 0 : g[i % C], 1e-9, r.op->name);
    free(g);
    done(&r);
  }
}

/* y does not change with the row's scale, nor layer_norm's with an offset; powers of two keep the stored x exact. */
Test(ref_norm, scale_and_offset) {
  enum { C = 200 };
  for (int layer = 0; layer < 2; ++layer) {
    double *first = NULL, *x = normals(3, C, 1, 0);
    for (int64_t i = 0; i < C; ++i)
      x[i] = (double)(int)(x[i] * 64); /* whole numbers: the sum with an offset is exact, too */
    for (int turn = 0; turn < 3; ++turn) {
      rig r = rig_of(layer != 0 ? assay_op_layer_norm() : assay_op_rms_norm(), ASSAY_F32);
      double *moved = malloc(C * sizeof *moved);
      const double scale = turn == 1 ? 0x1p-4 : 1, offset = turn == 2 && layer != 0 ? 1000 : 0;
      for (int64_t i = 0; i < C; ++i)
        moved[i] = (turn == 2 && layer == 0 ? 0x1p20 : scale) * x[i] + offset;
      set(&r, "eps", 1e-12);
      give(&r, "x", 1, 0, C, moved);
      give_normals(&r, "g", 0, 0, C, 1, 0);
      give(&r, "y", 1, 0, C, NULL);
      run(&r);
      if (first == NULL) {
        first = malloc(C * sizeof *first);
        memcpy(first, value_of(&r, "y"), C * sizeof *first);
      }
      for (int64_t i = 0; i < C; ++i)
        assert_near(value_of(&r, "y")[i], first[i], 1e-11, r.op->name);
      free(moved);
      done(&r);
    }
    free(first);
    free(x);
  }
}

/* ---- second formulations ----------------------------------------------------------------------------- */

/* In f32 the formula's value; in 16 bits that value rounded, unless the reference says it may go either way. */
static void assert_formula(const rig *r, int64_t i, double formula) {
  const double value = value_of(r, "y")[i], sigma = sigma_of(r, "y")[i];
  if (r->dtype == ASSAY_F32) {
    assert_near(value, formula, 1e-11, r->op->name);
    return;
  }
  const double rounded = assay_round_f64(formula, r->dtype);
  if (sigma == 0)
    cr_assert(value == rounded, "%s: found %.9g, expected %.9g", r->op->name, value, rounded);
  else
    cr_assert(fabs(value - formula) <= sigma + 0.51 * assay_ulp(value, r->dtype), "%s: found %.9g +- %.3g for %.9g",
              r->op->name, value, sigma, formula);
}

/* Sums from the end, and takes the root through logarithms. */
Test(ref_norm, rms_second_formulation) {
  enum { N = 5, C = 333 };
  for (int t = 0; t < 6; ++t) {
    rig r = rig_of(assay_op_rms_norm(), types[t / 2]);
    set(&r, "round_inner", t % 2);
    set(&r, "eps", 1e-3);
    give_normals(&r, "x", N, 0, C, 0.5, 0.1);
    give_normals(&r, "g", 0, 0, C, 1, 0);
    give(&r, "y", N, 0, C, NULL);
    run(&r);
    double *x = stored(&r, "x"), *g = stored(&r, "g");
    for (int64_t n = 0; n < N; ++n) {
      long double sum = 0;
      for (int64_t c = C - 1; c >= 0; --c)
        sum += (long double)x[n * C + c] * (long double)x[n * C + c];
      const double root = exp(0.5 * log((double)(sum / C) + (double)1e-3F));
      for (int64_t c = 0; c < C; ++c) {
        const double normed = x[n * C + c] / root;
        const bool rounds = t % 2 == 1 && r.dtype != ASSAY_F32;
        assert_formula(&r, n * C + c, (rounds ? assay_round_f64(normed, r.dtype) : normed) * g[c]);
      }
    }
    free(x);
    free(g);
    done(&r);
  }
}

/* The variance as the difference of moments, one multiplication and one addition a channel. */
Test(ref_norm, layer_second_formulation) {
  enum { N = 5, C = 333 };
  for (int t = 0; t < 6; ++t) {
    rig r = rig_of(assay_op_layer_norm(), types[t / 2]);
    give_normals(&r, "x", N, 0, C, 2, -1.5);
    give_normals(&r, "g", 0, 0, C, 1, 0);
    if (t % 2 == 1) give_normals(&r, "b", 0, 0, C, 1, 0);
    give(&r, "y", N, 0, C, NULL);
    run(&r);
    double *x = stored(&r, "x"), *g = stored(&r, "g"), *b = t % 2 == 1 ? stored(&r, "b") : NULL;
    for (int64_t n = 0; n < N; ++n) {
      long double sum = 0, square = 0;
      for (int64_t c = C - 1; c >= 0; --c) {
        sum += (long double)x[n * C + c];
        square += (long double)x[n * C + c] * (long double)x[n * C + c];
      }
      const long double mean = sum / C, variance = square / C - mean * mean;
      for (int64_t c = 0; c < C; ++c) {
        const double slope = g[c] / sqrt((double)variance + (double)1e-5F);
        assert_formula(&r, n * C + c, slope * x[n * C + c] + ((b != NULL ? b[c] : 0) - (double)mean * slope));
      }
    }
    free(x);
    free(g);
    free(b);
    done(&r);
  }
}

/* By pieces: the line between its edges, constants outside. */
Test(ref_norm, uclip_second_formulation) {
  enum { N = 5, C = 333 };
  for (int t = 0; t < 6; ++t) {
    rig r = rig_of(assay_op_uclip_norm(), types[t / 2]);
    const bool vectors = t % 2 == 1;
    give_normals(&r, "x", N, 0, C, 2, 0);
    give_normals(&r, "alpha", 0, 0, vectors ? C : 1, 0.1, 0.7);
    give_normals(&r, "gamma", 0, 0, vectors ? C : 1, 1, 0);
    give_normals(&r, "beta", 0, 0, C, 1, 0);
    give(&r, "y", N, 0, C, NULL);
    run(&r);
    double *x = stored(&r, "x"), *alpha = stored(&r, "alpha"), *gamma = stored(&r, "gamma"), *beta = stored(&r, "beta");
    for (int64_t i = 0; i < N * C; ++i) {
      const int64_t c = i % C, w = vectors ? c : 0;
      const double edge = 1 / alpha[w], line = gamma[w] * alpha[w] * x[i];
      assert_formula(&r, i, (x[i] >= edge ? gamma[w] : x[i] <= -edge ? -gamma[w] : line) + beta[c]);
    }
    free(x);
    free(alpha);
    free(gamma);
    free(beta);
    done(&r);
  }
}

/* ---- against each other ------------------------------------------------------------------------------ */

typedef struct form {
  const assay_op *(*plain)(void), *(*added)(void);
  const char *weights[4];
} form;

static const form forms[] = {
    {assay_op_rms_norm, assay_op_add_rms_norm, {"g"}},
    {assay_op_layer_norm, assay_op_add_layer_norm, {"g", "b"}},
    {assay_op_uclip_norm, assay_op_add_uclip_norm, {"alpha", "gamma", "beta"}},
};

/* add_x is the addition, rounded, and x of it; in place and out of place: the same bits. */
Test(ref_norm, added_forms) {
  enum { N = 4, C = 130 };
  for (int t = 0; t < 9; ++t) {
    const form *f = &forms[t % 3];
    double *sum = NULL;
    rig in = rig_of(f->added(), types[t / 3]), out = rig_of(f->added(), types[t / 3]);
    rig alone = rig_of(f->plain(), types[t / 3]);
    for (int i = 0; i < 3; ++i) {
      rig *r = i == 0 ? &in : i == 1 ? &out : &alone;
      for (int w = 0; w < 4 && f->weights[w] != NULL; ++w) {
        double *value = normals(40 + (uint64_t)w, C, 0.2, 0.8);
        give(r, f->weights[w], 0, 0, C, value);
        free(value);
      }
      give(r, "y", N, 0, C, NULL);
      if (r == &alone) continue;
      double *x = normals(50, N * C, 1, 0), *res = normals(51, N * C, 3, 0);
      give(r, "x", N, 0, C, x);
      give(r, "res", N, 0, C, res);
      free(x);
      free(res);
    }
    give(&out, "res_out", N, 0, C, NULL);
    run(&in);
    run(&out);
    double *x = stored(&in, "x"), *res = stored(&in, "res");
    sum = malloc(N * C * sizeof *sum);
    for (int64_t i = 0; i < N * C; ++i)
      sum[i] = assay_round_f64(x[i] + res[i], types[t / 3]);
    give(&alone, "x", N, 0, C, sum);
    run(&alone);
    for (int64_t i = 0; i < N * C; ++i) {
      cr_assert(value_of(&in, "res")[i] == sum[i] && sigma_of(&in, "res")[i] == 0, "%s: sum", in.op->name);
      cr_assert(value_of(&out, "res_out")[i] == sum[i] && sigma_of(&out, "res_out")[i] == 0, "%s: sum", in.op->name);
      cr_assert(sigma_of(&out, "res")[i] == ASSAY_UNCHANGED, "%s: res keeps its bits", in.op->name);
      cr_assert_eq(value_of(&in, "y")[i], value_of(&alone, "y")[i], "%s", in.op->name);
      cr_assert_eq(sigma_of(&in, "y")[i], sigma_of(&alone, "y")[i], "%s", in.op->name);
      cr_assert_eq(value_of(&out, "y")[i], value_of(&alone, "y")[i], "%s", in.op->name);
    }
    free(x);
    free(res);
    free(sum);
    done(&in);
    done(&out);
    done(&alone);
  }
}

/* qk_norm is rms_norm or uclip_norm of every head as a row of its own. */
Test(ref_norm, heads) {
  enum { N = 3, H = 4, H_kv = 2, D = 40 };
  for (int t = 0; t < 6; ++t) {
    const bool uclip = t % 2 == 1;
    rig r = rig_of(assay_op_qk_norm(), types[t / 2]);
    set(&r, "kind", uclip);
    give_normals(&r, "q", N, H, D, 1, 0);
    give_normals(&r, "k", N, H_kv, D, 1, 0);
    give_normals(&r, "q_gamma", 0, 0, D, 0.5, 1);
    give_normals(&r, "k_gamma", 0, 0, D, 0.5, 1);
    if (uclip) give_normals(&r, "q_alpha", 0, 0, 1, 0, 0.625);
    if (uclip) give_normals(&r, "k_alpha", 0, 0, 1, 0, 1.75);
    give(&r, "k_out", N, H_kv, D, NULL);
    run(&r);
    for (int k = 0; k < 2; ++k) {
      const int64_t rows = N * (k != 0 ? H_kv : H);
      rig alone = rig_of(uclip ? assay_op_uclip_norm() : assay_op_rms_norm(), types[t / 2]);
      double *x = stored(&r, k != 0 ? "k" : "q"), *g = stored(&r, k != 0 ? "k_gamma" : "q_gamma");
      const double alpha = k != 0 ? 1.75 : 0.625;
      give(&alone, "x", rows, 0, D, x);
      give(&alone, uclip ? "gamma" : "g", 0, 0, D, g);
      if (uclip) give(&alone, "alpha", 0, 0, 1, &alpha);
      give(&alone, "y", rows, 0, D, NULL);
      run(&alone);
      for (int64_t i = 0; i < rows * D; ++i)
        cr_assert_eq(value_of(&r, k != 0 ? "k_out" : "q")[i], value_of(&alone, "y")[i]);
      free(x);
      free(g);
      done(&alone);
    }
    cr_assert_eq(sigma_of(&r, "k")[0], ASSAY_UNCHANGED);
    done(&r);
  }
}

/* post_attn_pre_mlp_uclip is uclip_norm, its stored result added, uclip_norm of the stored sum. */
Test(ref_norm, seam) {
  enum { N = 3, C = 200 };
  static const char *const own[] = {"post_alpha", "post_gamma", "post_beta", "pre_alpha", "pre_gamma", "pre_beta"};
  static const char *const name[] = {"alpha", "gamma", "beta"};
  for (int t = 1; t < 3; ++t) {
    rig r = rig_of(assay_op_post_attn_pre_mlp_uclip(), types[t]);
    give_normals(&r, "a", N, 0, C, 1, 0);
    give_normals(&r, "res", N, 0, C, 2, 0);
    for (int w = 0; w < 6; ++w)
      give_normals(&r, own[w], 0, 0, C, 0.2, 0.9);
    give(&r, "out", N, 0, C, NULL);
    run(&r);
    rig step[2] = {rig_of(assay_op_uclip_norm(), types[t]), rig_of(assay_op_uclip_norm(), types[t])};
    double *in = stored(&r, "a"), *res = stored(&r, "res");
    for (int s = 0; s < 2; ++s) {
      give(&step[s], "x", N, 0, C, in);
      for (int w = 0; w < 3; ++w) {
        double *value = stored(&r, own[3 * s + w]);
        give(&step[s], name[w], 0, 0, C, value);
        free(value);
      }
      give(&step[s], "y", N, 0, C, NULL);
      run(&step[s]);
      for (int64_t i = 0; s == 0 && i < N * C; ++i) {
        in[i] = assay_round_f64(assay_round_f64(value_of(&step[0], "y")[i], types[t]) + res[i], types[t]);
        cr_assert_eq(value_of(&r, "res")[i], in[i]);
      }
    }
    for (int64_t i = 0; i < N * C; ++i)
      cr_assert_eq(value_of(&r, "out")[i], value_of(&step[1], "y")[i]);
    free(in);
    free(res);
    done(&step[0]);
    done(&step[1]);
    done(&r);
  }
}

/* ---- the error model --------------------------------------------------------------------------------- */

/* rms_norm in f32, on 32 partial sums, as a kernel does it. */
static void rms_in_f32(const double *x, const double *g, int64_t C, assay_dtype dtype, bool inner, double *y) {
  float lane[32] = {0}, sum = 0;
  for (int64_t c = 0; c < C; ++c)
    lane[c % 32] += (float)x[c] * (float)x[c];
  for (int i = 0; i < 32; ++i)
    sum += lane[i];
  const float factor = 1.0F / sqrtf(sum / (float)C + 1e-6F);
  for (int64_t c = 0; c < C; ++c) {
    float n = (float)x[c] * factor;
    if (inner) n = (float)assay_round_f64((double)n, dtype);
    y[c] = assay_round_f64((double)(n * (float)g[c]), dtype);
  }
}

/* A result that the reference calls known is what f32 arithmetic stores; what it leaves open is rare, and is met on
 * either side. In f32 the errors are as large as sigma says. */
Test(ref_norm, what_f32_stores) {
  enum { N = 400, C = 256 };
  for (int t = 0; t < 6; ++t) {
    const bool inner = t % 2 == 1;
    rig r = rig_of(assay_op_rms_norm(), types[t / 2]);
    set(&r, "round_inner", inner);
    give_normals(&r, "x", N, 0, C, 1, 0);
    give_normals(&r, "g", 0, 0, C, 0.3, 1);
    give(&r, "y", N, 0, C, NULL);
    run(&r);
    double *x = stored(&r, "x"), *g = stored(&r, "g"), y[C], error2 = 0, sigma2 = 0;
    int64_t open = 0, other = 0;
    for (int64_t n = 0; n < N; ++n) {
      rms_in_f32(x + n * C, g, C, r.dtype, inner, y);
      for (int64_t c = 0; c < C; ++c) {
        const double error = fabs(y[c] - value_of(&r, "y")[n * C + c]), sigma = sigma_of(&r, "y")[n * C + c];
        cr_assert(error <= (r.dtype == ASSAY_F32 ? 7 : 1) * sigma, "error %g, sigma %g", error, sigma);
        open += sigma > 0;
        other += error > 0;
        error2 += error * error;
        sigma2 += sigma * sigma;
      }
    }
    const double share = (double)open / (N * C);
    if (r.dtype == ASSAY_F32)
      cr_assert(error2 > 0.05 * sigma2 && error2 < 1.2 * sigma2, "RMS ratio %g", sqrt(error2 / sigma2));
    else
      cr_assert(share > 0 && share < (r.dtype == ASSAY_F16 ? 0.01 : 0.001), "%g of the results are left open", share);
    cr_assert(r.dtype == ASSAY_BF16 || other > 0, "no result ever fell on the other side");
    free(x);
    free(g);
    done(&r);
  }
}

/* ---- refusals ---------------------------------------------------------------------------------------- */

Test(ref_norm, refusals) {
  assay_error error = {""};
  rig r = rig_of(assay_op_qk_norm(), ASSAY_F32);
  give(&r, "q", 1, 1, 8, NULL);
  give(&r, "k", 1, 1, 8, NULL);
  give(&r, "q_alpha", 0, 0, 1, NULL);
  cr_assert(try_run(&r, false, &error) == ASSAY_ERR_INPUT && strstr(error.text, "q_alpha") != NULL, "%s", error.text);
  done(&r);

  r = rig_of(assay_op_qk_norm(), ASSAY_F32);
  give(&r, "q", 1, 1, 8, NULL);
  give(&r, "k", 1, 1, 8, NULL);
  cr_assert(try_run(&r, true, &error) == ASSAY_ERR_INPUT && strstr(error.text, "kind") != NULL, "%s", error.text);
  done(&r);

  const double third = 1.0 / 3; /* 24 bits: its product with another such number is not exact */
  r = rig_of(assay_op_uclip_norm(), ASSAY_F32);
  give(&r, "x", 1, 0, 1, &third);
  give(&r, "alpha", 0, 0, 1, &third);
  give(&r, "gamma", 0, 0, 1, &third);
  give(&r, "y", 1, 0, 1, NULL);
  cr_assert(try_run(&r, true, &error) == ASSAY_ERR_INPUT && strstr(error.text, "exact tier") != NULL, "%s", error.text);
  done(&r);

  r = rig_of(assay_op_uclip_norm(), ASSAY_F32);
  give(&r, "x", 1, 0, 4, NULL);
  give(&r, "alpha", 0, 0, 2, NULL);
  give(&r, "gamma", 0, 0, 4, NULL);
  give(&r, "y", 1, 0, 4, NULL);
  cr_assert(try_run(&r, false, &error) == ASSAY_ERR_INPUT && strstr(error.text, "alpha: found 2") != NULL, "%s",
            error.text);
  done(&r);
}

/* ---- forms of rms_norm ------------------------------------------------------------------------------- */

enum { form_rows = 3, form_channels = 48 };

/* Runs the plain norm in f32 of rows of `channels`, or a form of it. z is NULL for none. */
static void run_form(double plus_one, double gate, double group, const double *x, const double *g, const double *z,
                     int64_t channels, double *y) {
  rig r = rig_of(assay_op_rms_norm(), ASSAY_F32);
  const int64_t rows = form_rows * form_channels / channels;
  set(&r, "round_inner", 0);
  set(&r, "plus_one", plus_one);
  set(&r, "gate", gate);
  set(&r, "group", group);
  give(&r, "x", rows, 0, channels, x);
  give(&r, "g", 0, 0, channels, g);
  if (z != NULL) give(&r, "z", rows, 0, channels, z);
  give(&r, "y", rows, 0, channels, NULL);
  run(&r);
  memcpy(y, value_of(&r, "y"), sizeof(double) * form_rows * form_channels);
  done(&r);
}

/* silu(z) is z for z from 64 on, to more bits than f64 has. All numbers are short, so that x z and 1 + g are exact. */
Test(ref_norm, forms_are_the_plain_norm_of_changed_inputs) {
  enum { count = form_rows * form_channels, group = 16 };
  double x[count], z[count], gated[count], g[form_channels], one[form_channels], y[count], plain[count];
  for (int i = 0; i < count; ++i) {
    x[i] = (i * 29 % 97 - 48) * 0.125;
    z[i] = 64 * (1 + i * 7 % 3);
    gated[i] = x[i] * z[i];
  }
  for (int c = 0; c < form_channels; ++c) {
    g[c] = (c * 11 % 31 - 20) * 0.0625;
    one[c] = 1 + g[c];
  }
  run_form(1, 0, 0, x, g, NULL, form_channels, y);
  run_form(0, 0, 0, x, one, NULL, form_channels, plain);
  for (int i = 0; i < count; ++i)
    assert_near(y[i], plain[i], 1e-14, "plus_one");
  run_form(0, 0, 0, x, g, NULL, form_channels, plain);
  run_form(0, 0, 0, x, g, z, form_channels, y);
  for (int i = 0; i < count; ++i)
    assert_near(y[i], plain[i] * z[i], 1e-14, "gate after");
  run_form(0, 1, 0, x, g, z, form_channels, y);
  run_form(0, 0, 0, gated, g, NULL, form_channels, plain);
  for (int i = 0; i < count; ++i)
    assert_near(y[i], plain[i], 1e-14, "gate before");
  for (int c = 0; c < form_channels; ++c)
    one[c] = 1;
  run_form(0, 0, group, x, one, NULL, form_channels, y);
  run_form(0, 0, 0, x, one, NULL, group, plain);
  for (int i = 0; i < count; ++i)
    assert_near(y[i], plain[i], 1e-14, "group");
}

Test(ref_norm, forms_refused) {
  const double one[form_channels] = {1};
  assay_error error;
  for (int which = 0; which < 2; ++which) {
    rig r = rig_of(assay_op_rms_norm(), ASSAY_F32);
    give(&r, "x", 1, 0, form_channels, one);
    give(&r, "g", 0, 0, form_channels, one);
    give(&r, "y", 1, 0, form_channels, NULL);
    set(&r, which == 0 ? "group" : "plus_one", which == 0 ? 5 : 1);
    cr_assert(try_run(&r, false, &error) == ASSAY_ERR_INPUT);
    cr_assert(strncmp(error.text, which == 0 ? "group: found 5" : "plus_one: found true", 14) == 0, "%s", error.text);
    done(&r);
  }
}
