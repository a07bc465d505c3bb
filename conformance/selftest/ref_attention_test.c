/* ref_attention_test.c: the attention references against closed forms and a second formulation. The latter works on
 * whole matrices (BLAS, explicit mask and filter matrices) and shares nothing with them. */
#include <cblas.h>
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>

#include "attention_fixture.h"
#include "core/dtype.h"

const assay_op *assay_op_gate_attention(void);
const assay_op *assay_op_softmax_attention(void);

static const assay_contract contract = {.k = ASSAY_F32, .v = ASSAY_F32, .qk_lanes = 4, .pv_lanes = 1, .exp_ulp = 2};

static void run(fixture *f, const assay_contract *c, bool exact) {
  assay_error error = {0};
  const assay_status status = fixture_reference(f, c, exact, &error);
  cr_assert(status == ASSAY_OK, "%s", error.text);
}

static double *out_of(const fixture *f, int64_t row, int64_t head) {
  return f->out + (row * f->spec.H + head) * f->spec.D;
}

static bool close_to(double a, double b) {
  return a == b || fabs(a - b) <= 1e-11 * (1 + fabs(a) + fabs(b));
}

/* Position of each row, and its request. */
static int64_t position(const fixture *f, int64_t row, int64_t *request) {
  for (*request = 0; f->first_row[*request + 1] <= row; ++*request)
    ;
  const int64_t T = f->first_row[*request + 1] - f->first_row[*request];
  return f->spec.kv_len[*request] - T + row - f->first_row[*request];
}

/* ---- the second formulation ---- */

typedef struct matrix_options {
  double scale; /* 0: default */
  int64_t window, sparse_block, local, stride, slide, rank, chunk;
  double softcap;
} matrix_options;

/* Masks as the definition states them, row by row: 1 where kept. M [T, L]. */
static void make_mask(const fixture *f, const matrix_options *o, int64_t request, int64_t h, double *M) {
  const int64_t L = f->spec.kv_len[request], T = f->first_row[request + 1] - f->first_row[request];
  for (int64_t n = 0; n < T; ++n)
    for (int64_t t = 0; t < L; ++t) {
      const int64_t last = L - T + n;
      bool keep = t <= last;
      if (o->window > 0 && t <= last - o->window) keep = false;
      if (o->chunk > 0 && t / o->chunk != last / o->chunk) keep = false;
      if (o->sparse_block > 0) {
        const int64_t kb = t / o->sparse_block, qb = last / o->sparse_block;
        int64_t off = (o->rank * f->spec.H + h) * o->slide + 1;
        if (o->slide < 0) off = (o->rank * f->spec.H_kv + h / f->G) * (-o->slide) + 1;
        if (!(kb > qb - o->local) && (kb + off) % o->stride != 0) keep = false;
      }
      M[n * L + t] = keep;
    }
}

/* S = scale Q Kᵀ of one request and head, as matrices. Returns [T, L]; caller frees. */
static double *scores(const fixture *f, const matrix_options *o, int64_t request, int64_t h) {
  const int64_t L = f->spec.kv_len[request], T = f->first_row[request + 1] - f->first_row[request], D = f->spec.D;
  const double scale = (double)(float)(o->scale > 0 ? o->scale : 1 / sqrt((double)D));
  double *S = malloc((size_t)(T * L) * sizeof *S);
  cblas_dgemm(CblasRowMajor, CblasNoTrans, CblasTrans, (int)T, (int)L, (int)D, scale,
              f->q + (f->first_row[request] * f->spec.H + h) * D, (int)(f->spec.H * D),
              fixture_k(f, request, 0, h / f->G), (int)(f->spec.H_kv * D), 0, S, (int)L);
  return S;
}

/* O = P V [T, D]; compares with the reference's rows. */
static void compare(const fixture *f, int64_t request, int64_t h, const double *P) {
  const int64_t L = f->spec.kv_len[request], T = f->first_row[request + 1] - f->first_row[request], D = f->spec.D;
  double *O = calloc((size_t)(T * D), sizeof *O);
  cblas_dgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, (int)T, (int)D, (int)L, 1, P, (int)L,
              fixture_v(f, request, 0, h / f->G), (int)(f->spec.H_kv * D), 0, O, (int)D);
  for (int64_t n = 0; n < T; ++n)
    for (int64_t d = 0; d < D; ++d) {
      const double got = out_of(f, f->first_row[request] + n, h)[d];
      cr_assert(close_to(got, O[n * D + d]), "request %d row %d head %d channel %d: %.17g, matrices say %.17g",
                (int)request, (int)n, (int)h, (int)d, got, O[n * D + d]);
    }
  free(O);
}

static void compare_gate(const fixture *f, const matrix_options *o, double lo, double hi, bool relu) {
  for (int64_t i = 0; i < f->spec.batch; ++i) {
    const int64_t L = f->spec.kv_len[i], T = f->first_row[i + 1] - f->first_row[i];
    if (T == 0 || L == 0) continue;
    double *M = malloc((size_t)(T * L) * sizeof *M), *Z = malloc((size_t)(T * L) * sizeof *Z);
    double *W = calloc((size_t)(L * L), sizeof *W); /* W[s, t] = w_{t-s}: Z = R W */
    const float *tap = f->call.arg[9].data, *gamma = f->call.arg[10].data;
    for (int64_t t = 0; t < L; ++t)
      for (int64_t j = 0; j < f->spec.F && j <= t; ++j)
        W[(t - j) * L + t] = (double)tap[j];
    for (int64_t h = 0; h < f->spec.H; ++h) {
      double *R = scores(f, o, i, h);
      make_mask(f, o, i, h, M);
      for (int64_t e = 0; e < T * L; ++e)
        R[e] = M[e] != 0 ? (relu ? fmax(R[e], 0) : R[e]) : 0;
      cblas_dgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, (int)T, (int)L, (int)L, 1, R, (int)L, W, (int)L, 0, Z,
                  (int)L);
      for (int64_t e = 0; e < T * L; ++e)
        Z[e] = M[e] * (double)gamma[h] * fmin(fmax(Z[e], lo), hi);
      compare(f, i, h, Z);
      free(R);
    }
    free(M);
    free(Z);
    free(W);
  }
}

static void compare_softmax(const fixture *f, const matrix_options *o) {
  for (int64_t i = 0; i < f->spec.batch; ++i) {
    const int64_t L = f->spec.kv_len[i], T = f->first_row[i + 1] - f->first_row[i];
    if (T == 0 || L == 0) continue;
    double *M = malloc((size_t)(T * L) * sizeof *M);
    const float *slope = f->spec.slopes ? f->call.arg[9].data : NULL;
    for (int64_t h = 0; h < f->spec.H; ++h) {
      double *S = scores(f, o, i, h);
      make_mask(f, o, i, h, M);
      for (int64_t n = 0; n < T; ++n) {
        double sum = 0;
        for (int64_t t = 0; t < L; ++t) {
          double *s = &S[n * L + t];
          if (o->softcap > 0) *s = o->softcap * tanh(*s / o->softcap);
          if (slope != NULL) *s += (double)slope[h] * (double)(t - (L - T + n));
          *s = M[n * L + t] * exp(*s); /* scores of these tests are small: no maximum taken away */
          sum += *s;
        }
        const assay_tensor *sink = assay_find_arg(&f->call, "sink");
        const double whole = sum + (sink != NULL ? exp((double)((const float *)sink->data)[h]) : 0);
        for (int64_t t = 0; t < L; ++t)
          S[n * L + t] = sum > 0 ? S[n * L + t] / whole : 0;
        if (f->spec.lse)
          cr_assert(close_to(f->lse[(f->first_row[i] + n) * f->spec.H + h], log(sum)), "lse %.17g, matrices say %.17g",
                    f->lse[(f->first_row[i] + n) * f->spec.H + h], log(sum));
      }
      compare(f, i, h, S);
      free(S);
    }
    free(M);
  }
}

/* Takes every layout, type, batch form and window, and the rest of the parameters by turns. */
Test(ref_attention, gate_equals_matrices) {
  static const assay_dtype caches[] = {ASSAY_NONE, ASSAY_E4M3, ASSAY_E5M2};
  for (int turn = 0; turn < 54; ++turn) {
    fixture_spec spec = fixture_default(assay_op_gate_attention());
    spec.layout = turn % 3;
    spec.dtype = (assay_dtype)(ASSAY_F32 + turn / 3 % 3);
    spec.kv_dtype = caches[turn / 9 % 3] != ASSAY_NONE ? caches[turn / 9 % 3] : spec.dtype;
    spec.ragged = turn / 27 % 2;
    spec.per_head = turn % 2;
    spec.F = 1 + turn % 8;
    spec.seed = (uint64_t)turn;
    spec.values = turn % 5 == 0 ? ASSAY_HEAVY_TAILED : ASSAY_NORMAL;
    spec.k_scale = 0.037;
    fixture f;
    fixture_make(&spec, &f);
    const matrix_options o = {.window = turn % 4 == 3 ? 1 + turn % 11 : 0, .scale = turn % 7 == 6 ? 0.3 : 0};
    const double lo = turn % 6 == 5 ? 0.125 : 0, hi = turn % 6 == 5 ? 0.75 : 1;
    fixture_param(&f, "window", (double)o.window);
    fixture_param(&f, "scale", o.scale);
    fixture_param(&f, "lo", lo);
    fixture_param(&f, "hi", hi);
    fixture_param(&f, "relu_pre", turn % 2);
    fixture_fill(&f);
    run(&f, &contract, false);
    compare_gate(&f, &o, lo, hi, turn % 2);
    fixture_free(&f);
  }
}

Test(ref_attention, softmax_equals_matrices) {
  static const assay_dtype caches[] = {ASSAY_NONE, ASSAY_E4M3, ASSAY_E5M2};
  for (int turn = 0; turn < 108; ++turn) {
    fixture_spec spec = fixture_default(assay_op_softmax_attention());
    spec.layout = turn % 3;
    spec.dtype = (assay_dtype)(ASSAY_F32 + turn / 3 % 3);
    spec.kv_dtype = caches[turn / 9 % 3] != ASSAY_NONE ? caches[turn / 9 % 3] : spec.dtype;
    spec.ragged = turn / 27 % 2;
    spec.kv_len[2] = 61;
    spec.new_len[2] = 9;
    spec.per_head = turn % 2;
    spec.slopes = turn % 5 == 4;
    spec.lse = turn % 2;
    spec.sink = turn % 8 > 4;
    spec.seed = (uint64_t)turn;
    fixture f;
    fixture_make(&spec, &f);
    matrix_options o = {.window = turn % 4 == 3 ? 1 + turn % 11 : 0,
                        .softcap = turn % 7 == 6 ? 2.5 : 0,
                        .chunk = turn % 9 > 6 ? 1 + turn % 17 : 0};
    if (turn % 3 == 1) {
      o.sparse_block = turn % 2 ? 8 : 16;
      o.local = turn % 5;
      o.stride = 1 + turn % 4;
      o.slide = turn % 7 - 3;
      o.rank = turn % 2;
    } else {
      o.stride = 1;
    }
    fixture_param(&f, "window", (double)o.window);
    fixture_param(&f, "softcap", o.softcap);
    fixture_param(&f, "chunk", (double)o.chunk);
    fixture_param(&f, "sparse_block", (double)o.sparse_block);
    fixture_param(&f, "sparse_local", (double)o.local);
    fixture_param(&f, "sparse_stride", (double)o.stride);
    fixture_param(&f, "sparse_slide", (double)o.slide);
    fixture_param(&f, "tp_rank", (double)o.rank);
    fixture_fill(&f);
    run(&f, &contract, false);
    compare_softmax(&f, &o);
    fixture_free(&f);
  }
}

/* ---- closed forms ---- */

typedef enum q_kind { Q_RANDOM, Q_ZERO } q_kind;

static void start(fixture *f, fixture_spec spec, q_kind kind) {
  fixture_make(&spec, f);
  fixture_fill(f);
  const double zero[256] = {0};
  if (kind == Q_ZERO)
    for (int64_t n = 0; n < f->N; ++n)
      for (int64_t h = 0; h < spec.H; ++h)
        fixture_set_q(f, n, h, zero);
}

/* v(token) for every request, token and kv head; channel d. */
static void set_v(fixture *f, double (*value)(int64_t token, int64_t d)) {
  double v[256];
  for (int64_t i = 0; i < f->spec.batch; ++i)
    for (int64_t t = 0; t < f->spec.kv_len[i]; ++t)
      for (int64_t h = 0; h < f->spec.H_kv; ++h) {
        for (int64_t d = 0; d < f->spec.D; ++d)
          v[d] = value(t, d);
        fixture_set_v(f, i, t, h, v);
      }
}

static double ones(int64_t token, int64_t d) {
  return 1 + 0 * (double)(token + d);
}
static double one_hot(int64_t token, int64_t d) {
  return token % 32 == d ? (double)(token + 1) : 0;
}

static fixture_spec softmax_spec(void) {
  fixture_spec spec = fixture_default(assay_op_softmax_attention());
  spec.ragged = true;
  spec.lse = true;
  return spec;
}

Test(ref_attention, zero_query_takes_the_mean) {
  fixture f;
  start(&f, softmax_spec(), Q_ZERO);
  run(&f, &contract, false);
  for (int64_t n = 0; n < f.N; ++n) {
    int64_t i;
    const int64_t last = position(&f, n, &i);
    for (int64_t h = 0; h < f.spec.H; ++h) {
      cr_assert(close_to(f.lse[n * f.spec.H + h], log((double)last + 1)));
      for (int64_t d = 0; d < f.spec.D; ++d) {
        double mean = 0;
        for (int64_t t = 0; t <= last; ++t)
          mean += fixture_v(&f, i, t, h / f.G)[d] / (double)(last + 1);
        cr_assert(close_to(out_of(&f, n, h)[d], mean));
      }
    }
  }
  fixture_free(&f);
}

Test(ref_attention, zero_query_closes_the_gate) {
  fixture f;
  fixture_spec spec = fixture_default(assay_op_gate_attention());
  spec.ragged = true;
  start(&f, spec, Q_ZERO);
  run(&f, &contract, true);
  run(&f, &contract, false);
  for (int64_t e = 0; e < f.N * f.spec.H * f.spec.D; ++e)
    cr_assert(f.out[e] == 0 && f.sigma[e] == 0);
  cr_assert(f.seen.live_keys == 0 && f.seen.visible_keys > 0);
  fixture_free(&f);
}

/* V carries the token's number in its own channel. Keys that a row must not see leave their channel at 0. With q = 0
 * every visible key shows its number over their count. */
Test(ref_attention, causal_alignment_shows_in_one_hot_values) {
  fixture f;
  start(&f, softmax_spec(), Q_ZERO);
  set_v(&f, one_hot);
  run(&f, &contract, false);
  for (int64_t n = 0; n < f.N; ++n) {
    int64_t i;
    const int64_t last = position(&f, n, &i);
    for (int64_t d = 0; d < f.spec.D; ++d)
      cr_assert(close_to(out_of(&f, n, 0)[d], d <= last ? (double)(d + 1) / (double)(last + 1) : 0),
                "row %d (position %d) channel %d: %g", (int)n, (int)last, (int)d, out_of(&f, n, 0)[d]);
  }
  fixture_free(&f);
}

Test(ref_attention, weights_sum_to_one) {
  fixture f;
  start(&f, softmax_spec(), Q_RANDOM);
  set_v(&f, ones);
  run(&f, &contract, false);
  for (int64_t e = 0; e < f.N * f.spec.H * f.spec.D; ++e)
    cr_assert(close_to(f.out[e], 1));
  fixture_free(&f);
}

/* All keys moved by one vector: every score of a row moves by the same amount, out stays, lse moves by it. */
Test(ref_attention, softmax_does_not_see_a_shift) {
  fixture a, b;
  fixture_spec spec = softmax_spec();
  start(&a, spec, Q_RANDOM);
  start(&b, spec, Q_RANDOM);
  double moved[256], shift[256];
  for (int64_t d = 0; d < spec.D; ++d)
    shift[d] = 0.25 * (double)(d % 5 - 2);
  for (int64_t i = 0; i < spec.batch; ++i)
    for (int64_t t = 0; t < spec.kv_len[i]; ++t)
      for (int64_t h = 0; h < spec.H_kv; ++h) {
        for (int64_t d = 0; d < spec.D; ++d)
          moved[d] = fixture_k(&a, i, t, h)[d];
        for (int64_t d = 0; d < spec.D; ++d)
          moved[d] = floor(moved[d] * 1024) / 1024; /* the shifted key is stored exactly */
        fixture_set_k(&a, i, t, h, moved);
        for (int64_t d = 0; d < spec.D; ++d)
          moved[d] += shift[d];
        fixture_set_k(&b, i, t, h, moved);
      }
  run(&a, &contract, false);
  run(&b, &contract, false);
  for (int64_t row = 0; row < a.N * spec.H; ++row) {
    double amount = 0;
    for (int64_t d = 0; d < spec.D; ++d) {
      amount += a.q[row * spec.D + d] * shift[d] * (double)(float)(1 / sqrt((double)spec.D));
      cr_assert(close_to(a.out[row * spec.D + d], b.out[row * spec.D + d]));
    }
    cr_assert(close_to(b.lse[row], a.lse[row] + amount));
  }
  fixture_free(&a);
  fixture_free(&b);
}

Test(ref_attention, linear_in_values) {
  for (int which = 0; which < 2; ++which) {
    fixture f;
    fixture_spec spec = which == 0 ? softmax_spec() : fixture_default(assay_op_gate_attention());
    start(&f, spec, Q_RANDOM);
    run(&f, &contract, false);
    const int64_t count = f.N * spec.H * spec.D;
    double *first = malloc((size_t)count * sizeof *first), v[256];
    memcpy(first, f.out, (size_t)count * sizeof *first);
    for (int64_t i = 0; i < spec.batch; ++i)
      for (int64_t t = 0; t < spec.kv_len[i]; ++t)
        for (int64_t h = 0; h < spec.H_kv; ++h) {
          for (int64_t d = 0; d < spec.D; ++d)
            v[d] = -4 * fixture_v(&f, i, t, h)[d];
          fixture_set_v(&f, i, t, h, v);
        }
    run(&f, &contract, false);
    for (int64_t e = 0; e < count; ++e)
      cr_assert(close_to(f.out[e], -4 * first[e]));
    free(first);
    fixture_free(&f);
  }
}

Test(ref_attention, single_key_and_pad_row) {
  fixture_spec spec = fixture_default(assay_op_softmax_attention());
  spec.lse = true;
  spec.kv_len[0] = 0; /* request 1 has one key */
  fixture f;
  start(&f, spec, Q_RANDOM);
  run(&f, &contract, false);
  for (int64_t h = 0; h < spec.H; ++h) {
    cr_assert(f.lse[h] == -INFINITY && f.lse_sigma[h] == 0, "a row without keys");
    double s = 0;
    for (int64_t d = 0; d < spec.D; ++d) {
      cr_assert(out_of(&f, 0, h)[d] == 0 && f.sigma[h * spec.D + d] == 0);
      cr_assert(out_of(&f, 1, h)[d] == fixture_v(&f, 1, 0, h / f.G)[d], "one key: its value");
      s += f.q[(spec.H + h) * spec.D + d] * fixture_k(&f, 1, 0, h / f.G)[d];
    }
    cr_assert(close_to(f.lse[spec.H + h], s * (double)(float)(1 / sqrt((double)spec.D))));
  }
  fixture_free(&f);
}

Test(ref_attention, window_of_the_whole_length_is_no_window) {
  for (int which = 0; which < 2; ++which) {
    fixture_spec spec = fixture_default(which == 0 ? assay_op_softmax_attention() : assay_op_gate_attention());
    spec.ragged = true;
    fixture a, b;
    start(&a, spec, Q_RANDOM);
    fixture_make(&spec, &b);
    fixture_param(&b, "window", 24);
    fixture_fill(&b);
    run(&a, &contract, false);
    run(&b, &contract, false);
    cr_assert(memcmp(a.out, b.out, (size_t)(a.N * spec.H * spec.D) * sizeof *a.out) == 0);
    cr_assert(a.seen.visible_keys == b.seen.visible_keys);
    fixture_free(&a);
    fixture_free(&b);
  }
}

/* ---- rows, sigma, NaN ---- */

Test(ref_attention, a_subset_of_rows_equals_the_whole) {
  for (int which = 0; which < 2; ++which) {
    fixture_spec spec = fixture_default(which == 0 ? assay_op_softmax_attention() : assay_op_gate_attention());
    spec.ragged = true;
    spec.lse = which == 0;
    fixture f;
    fixture_make(&spec, &f);
    fixture_param(&f, "window", 6);
    fixture_fill(&f);
    run(&f, &contract, false);
    const int64_t index[] = {0, 4, 5, 12, 13, 16, 18}, width = spec.H * spec.D;
    double *value = malloc(7 * (size_t)width * sizeof *value), *sigma = malloc(7 * (size_t)width * sizeof *sigma);
    double lse[7 * 4], lse_sigma[7 * 4];
    assay_expected expected[2] = {{value, sigma}, {lse, lse_sigma}};
    const assay_rows rows = {.count = 7, .index = index};
    assay_error error = {0};
    cr_assert(spec.op->reference(&f.call, &contract, &rows, false, expected, NULL, &error) == ASSAY_OK, "%s",
              error.text);
    for (int i = 0; i < 7; ++i) {
      cr_assert(memcmp(value + i * width, f.out + index[i] * width, (size_t)width * sizeof *value) == 0);
      cr_assert(memcmp(sigma + i * width, f.sigma + index[i] * width, (size_t)width * sizeof *value) == 0);
      for (int64_t h = 0; h < spec.H && which == 0; ++h)
        cr_assert(lse[i * spec.H + h] == f.lse[index[i] * spec.H + h] &&
                  lse_sigma[i * spec.H + h] == f.lse_sigma[index[i] * spec.H + h]);
    }
    free(value);
    free(sigma);
    fixture_free(&f);
  }
}

Test(ref_attention, sigma_is_there_and_grows_with_what_is_rounded) {
  for (int which = 0; which < 2; ++which) {
    fixture_spec spec = fixture_default(which == 0 ? assay_op_softmax_attention() : assay_op_gate_attention());
    spec.lse = which == 0;
    fixture f;
    start(&f, spec, Q_RANDOM);
    run(&f, &contract, false);
    const int64_t count = f.N * spec.H * spec.D;
    double plain = 0, rounded = 0, scored = 0, split = 0;
    for (int64_t e = 0; e < count; ++e) {
      cr_assert(f.sigma[e] > 0 || f.out[e] == 0, "no deviation at %d", (int)e);
      plain += f.sigma[e];
    }
    assay_contract c = contract;
    c.p = ASSAY_BF16;
    run(&f, &c, false);
    for (int64_t e = 0; e < count; ++e)
      rounded += f.sigma[e];
    c = contract;
    c.score = ASSAY_F16;
    run(&f, &c, false);
    for (int64_t e = 0; e < count; ++e)
      scored += f.sigma[e];
    c = contract;
    c.keys_per_split = 8;
    c.partial = ASSAY_BF16;
    run(&f, &c, false);
    for (int64_t e = 0; e < count; ++e)
      split += f.sigma[e];
    cr_assert(rounded > 100 * plain && scored > 100 * plain && split > 100 * plain, "%g %g %g %g", plain, rounded,
              scored, split);
    fixture_free(&f);
  }
}

/* One of two keys has a weight of e^-90, below the least normal number, and the other's value is 0. An exp of 2 ulp may
 * make that weight 0, and with it the result. An exp of less may not. */
Test(ref_attention, weights_below_normal_numbers_may_be_0_from_2_ulp_on) {
  fixture_spec spec = fixture_default(assay_op_softmax_attention());
  spec.batch = 1;
  spec.kv_len[0] = 2;
  fixture f;
  start(&f, spec, Q_ZERO);
  double one[32] = {1}, far[32] = {-90 * sqrt(32)}, zero[32] = {0};
  for (int64_t h = 0; h < spec.H; ++h)
    fixture_set_q(&f, 0, h, one);
  for (int64_t h = 0; h < spec.H_kv; ++h) {
    fixture_set_k(&f, 0, 0, h, zero);
    fixture_set_k(&f, 0, 1, h, far);
    fixture_set_v(&f, 0, 0, h, zero);
    fixture_set_v(&f, 0, 1, h, one);
  }
  assay_contract narrow = contract;
  narrow.exp_ulp = 1.5;
  run(&f, &contract, false);
  cr_assert(f.out[0] > 1e-40 && f.out[0] < 1e-38, "%g", f.out[0]);
  cr_expect(f.sigma[0] >= f.out[0], "0 is within sigma: %g of %g", f.sigma[0], f.out[0]);
  run(&f, &narrow, false);
  cr_expect(10 * f.sigma[0] < f.out[0], "0 is out of reach: %g of %g", f.sigma[0], f.out[0]);
  fixture_free(&f);
}

/* NaN in a live key reaches the rows that see it and no other; NaN in V of a dead key reaches none. */
Test(ref_attention, nan_stays_where_it_is) {
  fixture_spec spec = fixture_default(assay_op_gate_attention());
  spec.batch = 1;
  spec.ragged = true;
  spec.density = 0.5;
  fixture f;
  start(&f, spec, Q_RANDOM);
  run(&f, &contract, false);
  const int64_t count = f.N * spec.H * spec.D, bs = spec.block_size;
  double *first = malloc((size_t)count * sizeof *first), nan[256];
  memcpy(first, f.out, (size_t)count * sizeof *first);
  for (int d = 0; d < 256; ++d)
    nan[d] = NAN;
  const int32_t *table = f.call.arg[5].data;
  int64_t dead = 0;
  for (int64_t t = 0; t < 13; ++t)
    for (int64_t h = 0; h < spec.H_kv; ++h)
      if (f.seen.v_needed[(table[t / bs] * bs + t % bs) * spec.H_kv + h] == 0) {
        fixture_set_v(&f, 0, t, h, nan);
        ++dead;
      }
  cr_assert(dead > 3 && dead < 23, "%d of 26 values are dead", (int)dead);
  run(&f, &contract, false);
  cr_assert(memcmp(first, f.out, (size_t)count * sizeof *first) == 0);
  for (int64_t e = 0; e < count; ++e)
    cr_assert(assay_is_finite(f.sigma[e]));
  fixture_set_k(&f, 0, 7, 1, nan);
  run(&f, &contract, false);
  for (int64_t n = 0; n < f.N; ++n)
    for (int64_t h = 0; h < spec.H; ++h)
      for (int64_t d = 0; d < spec.D; ++d) {
        const int64_t e = (n * spec.H + h) * spec.D + d;
        if (n >= 7 && h / f.G == 1)
          cr_assert(isnan(f.out[e]));
        else
          cr_assert(f.out[e] == first[e]);
      }
  free(first);
  fixture_free(&f);
}

Test(ref_attention, infinite_values_come_through) {
  fixture f;
  start(&f, softmax_spec(), Q_ZERO);
  double v[256];
  for (int64_t d = 0; d < f.spec.D; ++d)
    v[d] = d == 0 ? INFINITY : 1;
  fixture_set_v(&f, 1, 0, 0, v);
  run(&f, &contract, false);
  cr_assert(out_of(&f, f.first_row[1], 0)[0] == INFINITY && out_of(&f, f.first_row[1], 0)[1] == 1);
  cr_assert(assay_is_finite(out_of(&f, f.first_row[2], 0)[0]));
  fixture_free(&f);
}
