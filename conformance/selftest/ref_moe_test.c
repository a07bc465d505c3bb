/* ref_moe_test.c: moe_router, moe_align, moe_permute and moe_combine against sorts by qsort, closed forms and matrix
 * products of another library. */
#include <cblas.h>
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/dtype.h"
#include "core/rng.h"
#include "core/row_rule.h"
#include "linear_fixture.h"
#include "ref/lib/plain.h"

const assay_op *assay_op_moe_router(void);
const assay_op *assay_op_moe_align(void);
const assay_op *assay_op_moe_permute(void);
const assay_op *assay_op_moe_combine(void);

static const assay_contract contract = {.qk_lanes = 1, .pv_lanes = 1, .lanes = 1};

/* ---- moe_router -------------------------------------------------------------------------------------- */

static void open_router(linear_call *c, int64_t T, int64_t E, int64_t k) {
  linear_open(c, assay_op_moe_router());
  linear_tensor(c, "x", ASSAY_F32, 0, T, E, 0);
  linear_tensor(c, "ids", ASSAY_I32, 0, T, k, 0);
  linear_tensor(c, "weights", ASSAY_F32, 0, T, k, 0);
  linear_normals(c, "x", 1);
}

typedef struct ranked {
  double b;
  int id;
} ranked;

static int by_rank(const void *left, const void *right) {
  const ranked *a = left, *b = right;
  if (a->b > b->b) return -1;
  if (a->b < b->b) return 1;
  return a->id - b->id;
}

Test(moe_router, two_experts_have_a_closed_form) {
  linear_call c;
  open_router(&c, 1, 2, 2);
  linear_set(&c, "x", 0, 1.5);
  linear_set(&c, "x", 1, -0.25);
  linear_run(&c, &contract, false);
  const double *w = linear_result(&c, "weights")->value;
  cr_assert(linear_close_to(w[0], 0.5 * (1 + tanh(0.875))), "%g", w[0]);
  cr_assert(linear_close_to(w[1], 0.5 * (1 - tanh(0.875))), "%g", w[1]);
  linear_param(&c, "score", 1);
  linear_run(&c, &contract, false);
  cr_assert(linear_close_to(linear_result(&c, "weights")->value[0], 0.5 * (1 + tanh(0.75))));
  linear_param(&c, "score", 2);
  linear_run(&c, &contract, false);
  const double s = linear_result(&c, "weights")->value[0];
  cr_assert(linear_close_to(exp(s * s), 1 + exp(1.5)));
  linear_close(&c);
}

Test(moe_router, choices_are_those_of_a_sort) {
  enum { T = 7, E = 40, k = 5, G = 4, KEPT = 2, SIZE = E / G };
  linear_call c;
  open_router(&c, T, E, k);
  linear_tensor(&c, "bias", ASSAY_F32, 0, E, 0, 0);
  linear_integers(&c, "bias", 3, 1);
  linear_param(&c, "score", 1);
  linear_param(&c, "groups", G);
  linear_param(&c, "topk_groups", KEPT);
  linear_param(&c, "renormalise", 1);
  linear_param(&c, "route_scale", 2.5);
  linear_run(&c, &contract, false);
  for (int t = 0; t < T; ++t) {
    ranked group[G], all[E];
    double s[E], sum = 0;
    for (int e = 0; e < E; ++e) {
      s[e] = 0.5 * (1 + tanh(0.5 * linear_get(&c, "x", t * E + e)));
      all[e] = (ranked){s[e] + linear_get(&c, "bias", e), e};
    }
    for (int g = 0; g < G; ++g) {
      ranked own[SIZE];
      memcpy(own, all + g * SIZE, sizeof own);
      qsort(own, SIZE, sizeof *own, by_rank);
      group[g] = (ranked){own[0].b + own[1].b, g};
    }
    qsort(group, G, sizeof *group, by_rank);
    for (int e = 0; e < E; ++e)
      if (e / SIZE != group[0].id && e / SIZE != group[1].id) all[e].b = -INFINITY;
    qsort(all, E, sizeof *all, by_rank);
    for (int j = 0; j < k; ++j)
      sum += s[all[j].id];
    for (int j = 0; j < k; ++j) {
      cr_assert_eq((int)linear_result(&c, "ids")->value[t * k + j], all[j].id, "token %d, place %d", t, j);
      cr_assert(linear_close_to(linear_result(&c, "weights")->value[t * k + j], 2.5 * s[all[j].id] / sum));
    }
  }
  linear_close(&c);
}

/* Opens a row whose b is 0.75 up to rounding for experts 0 and 1: 0.5 + 0.25, and the sigmoid of ln 3. Expert 2 has
 * 0.5. */
static void open_near_tie(linear_call *c, int64_t k) {
  const double x[] = {0, (double)logf(3), 0}, b[] = {0.25, 0, 0};
  open_router(c, 1, 3, k);
  linear_param(c, "score", 1);
  linear_param(c, "renormalise", 0);
  linear_tensor(c, "bias", ASSAY_F32, 0, 3, 0, 0);
  for (int64_t e = 0; e < 3; ++e) {
    linear_set(c, "x", e, x[e]);
    linear_set(c, "bias", e, b[e]);
  }
  linear_run(c, &contract, false);
}

Test(moe_router, rounding_may_exchange_experts) {
  linear_call c;
  open_near_tie(&c, 1);
  const assay_op *const op = c.call.op;
  cr_expect(op->accepts(&c.call, &contract, 0, 0, 0) && op->accepts(&c.call, &contract, 0, 0, 1));
  cr_expect(!op->accepts(&c.call, &contract, 0, 0, 2) && !op->accepts(&c.call, &contract, 0, 0, 3));
  cr_expect(!op->accepts(&c.call, &contract, 0, 0, -1) && !op->accepts(&c.call, &contract, 0, 0, (double)NAN));
  cr_expect(op->accepts(&c.call, &contract, 1, 0, 0.5) && op->accepts(&c.call, &contract, 1, 0, 0.75));
  cr_expect(!op->accepts(&c.call, &contract, 1, 0, 0.625) && !op->accepts(&c.call, &contract, 1, 0, (double)NAN));
  linear_set(&c, "x", 1, 0); /* the same bits as expert 0: the lower id comes first */
  linear_set(&c, "bias", 1, 0.25);
  cr_expect(op->accepts(&c.call, &contract, 0, 0, 0) && !op->accepts(&c.call, &contract, 0, 0, 1));
  linear_set(&c, "x", 1, 0x1p-18); /* b is 2^-20 more */
  cr_expect(!op->accepts(&c.call, &contract, 0, 0, 0) && op->accepts(&c.call, &contract, 0, 0, 1));
  linear_close(&c);
}

/* b of experts 0 and 1 is 0.75 up to rounding, and their scores are 0.5 and 0.75. Either may come first, each with its
 * own weight, and none may come twice. */
Test(moe_router, what_is_exchanged_fits_together) {
  linear_call c;
  open_near_tie(&c, 2);
  const struct {
    double ids[2], weights[2];
    const char *why; /* NULL: it fits */
  } rows[] = {{{0, 1}, {0.5, 0.75}, NULL},
              {{1, 0}, {0.75, 0.5}, NULL},
              {{0, 0}, {0.5, 0.5}, "expert 0 stands in places 0 and 1"},
              {{1, 1}, {0.75, 0.75}, "expert 1 stands in places 0 and 1"},
              {{1, 0}, {0.5, 0.75}, "place 0 has expert 1, whose weight is 0.75"},
              {{0, 1}, {0.5, (double)NAN}, "place 1 has expert 1, whose weight is 0.75"}};
  for (size_t i = 0; i < sizeof rows / sizeof *rows; ++i) {
    char why[200] = "";
    const double *const got[] = {rows[i].ids, rows[i].weights};
    const bool fits = assay_row_rule_moe_router.fits(&c.call, &contract, 0, got, why, sizeof why);
    cr_expect_eq(fits, rows[i].why == NULL, "row %zu: %s", i, why);
    cr_expect(rows[i].why == NULL || strstr(why, rows[i].why) != NULL, "row %zu: %s", i, why);
  }
  linear_close(&c);
}

/* Scores of 0 divided by a floor of 0 are NaN, and so are right weights. */
Test(moe_router, weights_without_a_sum_fit) {
  linear_call c;
  char why[200] = "";
  open_router(&c, 1, 2, 1);
  linear_param(&c, "score", 1);
  linear_param(&c, "renormalise", 1);
  linear_param(&c, "floor", 0);
  linear_set(&c, "x", 0, -500);
  linear_set(&c, "x", 1, -500);
  const double id = 0, nan = (double)NAN, none = 0;
  const double *const right[] = {&id, &nan}, *const wrong[] = {&id, &none};
  cr_expect(assay_row_rule_moe_router.fits(&c.call, &contract, 0, right, why, sizeof why), "%s", why);
  cr_expect(!assay_row_rule_moe_router.fits(&c.call, &contract, 0, wrong, why, sizeof why));
  linear_close(&c);
}

Test(moe_router, rows_without_a_choice_and_refusals) {
  linear_call c;
  assay_error error = {""};
  open_router(&c, 4, 6, 2);
  linear_set(&c, "x", 3, (double)NAN);
  linear_set(&c, "x", 6, (double)INFINITY);
  for (int e = 0; e < 6; ++e)
    linear_set(&c, "x", 12 + e, -(double)INFINITY);
  linear_run(&c, &contract, false);
  for (int i = 0; i < 8; ++i) {
    cr_expect_eq(linear_result(&c, "ids")->value[i] >= 0, i >= 6, "slot %d", i);
    cr_expect_eq(linear_result(&c, "weights")->value[i] > 0, i >= 6, "slot %d", i);
  }
  linear_param(&c, "groups", 4);
  cr_assert_eq(linear_try(&c, &contract, false, &error), ASSAY_ERR_INPUT);
  cr_assert_str_eq(error.text, "groups: found 4, allowed a divisor of E = 6");
  linear_close(&c);
}

/* ---- moe_align --------------------------------------------------------------------------------------- */

typedef struct slot {
  int expert, number;
} slot;

static int by_expert(const void *left, const void *right) {
  const slot *a = left, *b = right;
  return a->expert != b->expert ? a->expert - b->expert : a->number - b->number;
}

Test(moe_align, segments_are_those_of_a_stable_sort) {
  enum { T = 23, K = 3, E = 9, HERE = 4, A = 4, P = T * K + HERE * (A - 1) };
  static const int map[E] = {-1, 2, -1, 0, 3, -1, -1, 1, -1};
  linear_call c;
  slot slots[T * K];
  int used = 0;
  linear_open(&c, assay_op_moe_align());
  linear_tensor(&c, "ids", ASSAY_I32, 0, T, K, 0);
  linear_tensor(&c, "expert_map", ASSAY_I32, 0, E, 0, 0);
  linear_tensor(&c, "counts", ASSAY_I32, 0, HERE, 0, 0);
  linear_tensor(&c, "offsets", ASSAY_I32, 0, HERE + 1, 0, 0);
  linear_tensor(&c, "order", ASSAY_I32, 0, P, 0, 0);
  linear_tensor(&c, "row_expert", ASSAY_I32, 0, P, 0, 0);
  linear_tensor(&c, "pos", ASSAY_I32, 0, T, K, 0);
  linear_param(&c, "align", A);
  assay_rng rng = {5, 6, 0};
  for (int e = 0; e < E; ++e)
    linear_set(&c, "expert_map", e, map[e]);
  for (int f = 0; f < T * K; ++f) {
    const int id = (int)assay_rng_range(&rng, -1, E - 1);
    linear_set(&c, "ids", f, id);
    if (id >= 0 && map[id] >= 0) slots[used++] = (slot){map[id], f};
  }
  linear_run(&c, &contract, false);
  qsort(slots, (size_t)used, sizeof *slots, by_expert);
  int row = 0, at = 0;
  for (int e = 0; e < HERE; ++e) {
    cr_assert_eq((int)linear_result(&c, "offsets")->value[e], row);
    for (; at < used && slots[at].expert == e; ++at, ++row) {
      cr_assert_eq((int)linear_result(&c, "order")->value[row], slots[at].number);
      cr_assert_eq((int)linear_result(&c, "row_expert")->value[row], e);
      cr_assert_eq((int)linear_result(&c, "pos")->value[slots[at].number], row);
    }
    for (; row % A != 0; ++row)
      cr_assert_eq((int)linear_result(&c, "order")->value[row], -1);
  }
  for (; row < P; ++row)
    cr_assert_eq((int)linear_result(&c, "row_expert")->value[row], -1);
  linear_close(&c);
}

/* ---- moe_permute, moe_combine ------------------------------------------------------------------------ */

/* Returns all elements of a tensor, which the caller frees. */
static double *dense(linear_call *c, const char *name) {
  const int64_t count = linear_count(linear_arg(c, name));
  double *value = malloc((size_t)count * sizeof *value);
  cr_assert(value != NULL);
  for (int64_t i = 0; i < count; ++i)
    value[i] = linear_get(c, name, i);
  return value;
}

Test(moe_permute, equals_the_product_with_one_hot_rows) {
  enum { T = 5, K = 2, C = 7, P = 12 };
  static const int order[P] = {9, -1, 0, 3, 3, -1, 8, 1, 2, 7, 4, 6};
  linear_call c;
  double hot[P * T] = {0}, product[P * C];
  linear_open(&c, assay_op_moe_permute());
  linear_tensor(&c, "x", ASSAY_BF16, 0, T, C, 0);
  linear_tensor(&c, "order", ASSAY_I32, 0, P, 0, 0);
  linear_tensor(&c, "y", ASSAY_BF16, 0, P, C, 0);
  linear_param(&c, "k", K);
  linear_normals(&c, "x", 1);
  for (int p = 0; p < P; ++p) {
    linear_set(&c, "order", p, order[p]);
    if (order[p] >= 0) hot[p * T + order[p] / K] = 1;
  }
  double *x = dense(&c, "x");
  cblas_dgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, P, C, T, 1, hot, T, x, C, 0, product, C);
  linear_run(&c, &contract, false);
  for (int i = 0; i < P * C; ++i)
    cr_assert(linear_result(&c, "y")->value[i] == product[i], "element %d", i);
  free(x);
  linear_close(&c);
}

Test(moe_combine, equals_the_product_with_a_sparse_matrix) {
  enum { T = 4, K = 3, C = 9, P = 8 };
  static const int pos[T * K] = {0, 5, -1, 7, 7, 2, -1, -1, -1, 3, 1, 6};
  linear_call c;
  double weights[T * P] = {0}, product[T * C];
  linear_open(&c, assay_op_moe_combine());
  linear_tensor(&c, "z", ASSAY_F16, 0, P, C, 0);
  linear_tensor(&c, "pos", ASSAY_I32, 0, T, K, 0);
  linear_tensor(&c, "w", ASSAY_F32, 0, T, K, 0);
  linear_tensor(&c, "shared", ASSAY_F16, 0, T, C, 0);
  linear_tensor(&c, "y", ASSAY_F16, 0, T, C, 0);
  linear_normals(&c, "z", 1);
  linear_normals(&c, "w", 2);
  linear_normals(&c, "shared", 3);
  for (int i = 0; i < T * K; ++i) {
    linear_set(&c, "pos", i, pos[i]);
    if (pos[i] >= 0) weights[i / K * P + pos[i]] += linear_get(&c, "w", i);
  }
  double *z = dense(&c, "z");
  cblas_dgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, T, C, P, 1, weights, P, z, C, 0, product, C);
  linear_run(&c, &contract, false);
  for (int i = 0; i < T * C; ++i)
    cr_assert(linear_close_to(linear_result(&c, "y")->value[i], product[i] + linear_get(&c, "shared", i)), "%d", i);
  /* Seven rows of z have a slot, and two slots name one of them. With shared and y there are 15 rows of 18 bytes. */
  cr_expect_float_eq(assay_op_moe_combine()->cost(&c.call, NULL).bytes, 15 * 18 + T * K * 8, 1e-9);
  free(z);
  linear_close(&c);
}

/* ---- draws ------------------------------------------------------------------------------------------- */

Test(moe_permute, drawn_places_are_an_order) {
  bool seen[61], moved = false;
  for (uint64_t seed = 0; seed < 20; ++seed)
    for (int64_t count = 1; count <= 60; ++count) {
      const assay_fill fill = {.seed = seed};
      memset(seen, 0, sizeof seen);
      for (int64_t i = 0; i < count; ++i) {
        const int64_t place = plain_place(&fill, 2, i, count);
        cr_assert(place >= 0 && place < count && !seen[place], "seed %d, count %d", (int)seed, (int)count);
        seen[place] = true;
        moved = moved || place != i;
      }
    }
  cr_assert(moved);
}

/* The result of the shared expert may be added first or last. Both are within the limit in f32. Half an ulp per
 * rounding, in the order that has larger sums, is beyond it. */
Test(moe_combine, limit_knows_both_places_of_shared) {
  enum { SLOTS = 32, WIDTH = 2000 };
  linear_call c;
  linear_open(&c, assay_op_moe_combine());
  linear_tensor(&c, "z", ASSAY_F32, 0, SLOTS, WIDTH, 0);
  linear_tensor(&c, "pos", ASSAY_I32, 0, 1, SLOTS, 0);
  linear_tensor(&c, "w", ASSAY_F32, 0, 1, SLOTS, 0);
  linear_tensor(&c, "shared", ASSAY_F32, 0, 1, WIDTH, 0);
  linear_tensor(&c, "y", ASSAY_F32, 0, 1, WIDTH, 0);
  linear_normals(&c, "z", 1);
  linear_normals(&c, "w", 2);
  linear_normals(&c, "shared", 3);
  for (int i = 0; i < SLOTS; ++i)
    linear_set(&c, "pos", i, i);
  for (int i = 0; i < WIDTH; ++i)
    linear_set(&c, "shared", i, 8 * linear_get(&c, "shared", i));
  linear_run(&c, &contract, false);
  for (int i = 0; i < WIDTH; ++i) {
    const double shared = linear_get(&c, "shared", i), value = linear_result(&c, "y")->value[i];
    const double limit = c.op->kappa_element * linear_result(&c, "y")->sigma[i];
    double bound[2] = {assay_ulp(value, ASSAY_F32) / 2, assay_ulp(value, ASSAY_F32) / 2}, sum[2] = {shared, 0};
    float first = (float)shared, last = 0;
    for (int j = 0; j < SLOTS; ++j) {
      const double term = linear_get(&c, "w", j) * linear_get(&c, "z", j * WIDTH + i);
      first += (float)term;
      last += (float)term;
      for (int order = 0; order < 2; ++order) {
        sum[order] += term;
        bound[order] += (assay_ulp(term, ASSAY_F32) + assay_ulp(sum[order], ASSAY_F32)) / 2;
      }
    }
    last += (float)shared;
    cr_assert(fabs(first - value) <= limit, "channel %d: %.3g of the limit", i, fabs(first - value) / limit);
    cr_assert(fabs(last - value) <= limit, "channel %d: %.3g of the limit", i, fabs(last - value) / limit);
    cr_assert(limit < fmax(bound[0], bound[1]), "channel %d: limit %.3g", i, limit);
  }
  linear_close(&c);
}
