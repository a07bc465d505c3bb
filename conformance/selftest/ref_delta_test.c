/* ref_delta_test.c: gated_delta_rule against its form in chunks, which shares no code with the recurrence. It is
 * also held to itself cut into two calls, and to a memory of unit keys. delta_gates against two identities. */
#include <criterion/criterion.h>
#include <math.h>

#include "linear_fixture.h"

const assay_op *assay_op_gated_delta_rule(void);
const assay_op *assay_op_delta_gates(void);

static const assay_contract contract = {.exp_ulp = 2, .qk_lanes = 1, .pv_lanes = 1, .lanes = 1};

enum { ROWS = 150, D_K = 5, D_V = 3, SLOTS = 2, MOST_CHUNK = 128 };

typedef double state_of[D_K][D_V];

/* Rows that depend on their number in the whole sequence alone. */
static double number(int64_t row, int64_t channel, int64_t of) {
  return sin(0.7 * (double)row + 1.3 * (double)channel * (double)(row % 7 + 1) + 2.1 * (double)of);
}

static double g_of(int64_t row) {
  return row % 40 == 17 ? -800 : -0.3 * (1 + number(row, 0, 5));
}

static double beta_of(int64_t row) {
  return 0.5 + 0.5 * number(row, 0, 6);
}

static void open_rule(linear_call *c, int64_t first, int64_t rows, bool fresh, const double *state) {
  linear_open(c, assay_op_gated_delta_rule());
  linear_tensor(c, "q", ASSAY_F32, 2, rows, 1, D_K);
  linear_tensor(c, "k", ASSAY_F32, 0, rows, 1, D_K);
  linear_tensor(c, "v", ASSAY_F32, 0, rows, 1, D_V);
  linear_tensor(c, "g", ASSAY_F32, 0, rows, 1, 0);
  linear_tensor(c, "beta", ASSAY_F32, 0, rows, 1, 0);
  linear_tensor(c, "cu", ASSAY_I32, 0, 2, 0, 0);
  linear_tensor(c, "slots", ASSAY_I32, 0, 1, 0, 0);
  linear_tensor(c, "fresh", ASSAY_I32, 0, 1, 0, 0);
  linear_tensor(c, "state", ASSAY_F32, 0, SLOTS, 1, D_K * D_V);
  linear_tensor(c, "o", ASSAY_F32, 0, rows, 1, D_V);
  assay_tensor *s = linear_arg(c, "state"); /* the fixture has three axes at most */
  s->rank = 4;
  s->shape[2] = D_K;
  s->shape[3] = D_V;
  s->stride[2] = D_V;
  s->stride[3] = 1;
  linear_set(c, "cu", 1, (double)rows);
  linear_set(c, "slots", 0, 1);
  linear_set(c, "fresh", 0, fresh);
  for (int64_t n = 0; n < rows; ++n) {
    linear_set(c, "g", n, g_of(first + n));
    linear_set(c, "beta", n, beta_of(first + n));
    for (int64_t i = 0; i < D_K; ++i) {
      linear_set(c, "q", n * D_K + i, number(first + n, i, 1));
      linear_set(c, "k", n * D_K + i, number(first + n, i, 2));
    }
    for (int64_t j = 0; j < D_V; ++j)
      linear_set(c, "v", n * D_V + j, number(first + n, j, 3));
  }
  for (int64_t i = 0; i < SLOTS * D_K * D_V; ++i)
    linear_set(c, "state", i, state != NULL ? state[i] : number(i, 0, 4));
}

/* The rows of a chunk as the recurrence reads them, divided by their lengths. */
typedef struct chunk {
  int64_t rows;
  double q[MOST_CHUNK][D_K], k[MOST_CHUNK][D_K], u[MOST_CHUNK][D_V], G[MOST_CHUNK], beta[MOST_CHUNK];
} chunk;

static void load_unit(linear_call *c, const char *name, int64_t n, double *to) {
  double sum = 1e-6;
  for (int64_t i = 0; i < D_K; ++i) {
    to[i] = linear_get(c, name, n * D_K + i);
    sum += to[i] * to[i];
  }
  for (int64_t i = 0; i < D_K; ++i)
    to[i] /= sqrt(sum);
}

static double dot(const double *a, const double *b) {
  double sum = 0;
  for (int64_t i = 0; i < D_K; ++i)
    sum += a[i] * b[i];
  return sum;
}

/* Returns exp of a difference of running sums of g. */
static double between(const chunk *t, int64_t i, int64_t j) {
  return exp(t->G[i] - t->G[j]);
}

/* Solves (I + L) U = beta (V - exp(G) K S), L_ij = beta_i k_i k_j exp(G_i - G_j) below the diagonal. */
static void solve(chunk *t, linear_call *c, int64_t first, double (*S)[D_V]) {
  for (int64_t i = 0; i < t->rows; ++i)
    for (int64_t j = 0; j < D_V; ++j) {
      double value = linear_get(c, "v", (first + i) * D_V + j);
      for (int64_t d = 0; d < D_K; ++d)
        value -= exp(t->G[i]) * t->k[i][d] * S[d][j];
      for (int64_t l = 0; l < i; ++l)
        value -= dot(t->k[i], t->k[l]) * between(t, i, l) * t->u[l][j];
      t->u[i][j] = t->beta[i] * value;
    }
}

static void take_chunk(chunk *t, linear_call *c, int64_t first, double (*S)[D_V], double *o) {
  double sum = 0;
  for (int64_t i = 0; i < t->rows; ++i) {
    load_unit(c, "q", first + i, t->q[i]);
    load_unit(c, "k", first + i, t->k[i]);
    t->G[i] = sum += linear_get(c, "g", first + i);
    t->beta[i] = linear_get(c, "beta", first + i);
  }
  solve(t, c, first, S);
  for (int64_t i = 0; i < t->rows; ++i)
    for (int64_t j = 0; j < D_V; ++j) {
      double value = 0;
      for (int64_t d = 0; d < D_K; ++d)
        value += exp(t->G[i]) * t->q[i][d] * S[d][j];
      for (int64_t l = 0; l <= i; ++l)
        value += dot(t->q[i], t->k[l]) * between(t, i, l) * t->u[l][j];
      o[(first + i) * D_V + j] = value / sqrt((double)D_K);
    }
  for (int64_t d = 0; d < D_K; ++d)
    for (int64_t j = 0; j < D_V; ++j) {
      S[d][j] *= exp(t->G[t->rows - 1]);
      for (int64_t i = 0; i < t->rows; ++i)
        S[d][j] += between(t, t->rows - 1, i) * t->k[i][d] * t->u[i][j];
    }
}

Test(gated_delta_rule, is_its_form_in_chunks) {
  static const int64_t sizes[] = {1, 16, 64, 128};
  linear_call c;
  open_rule(&c, 0, ROWS, false, NULL);
  linear_run(&c, &contract, false);
  for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; ++s) {
    static chunk t;
    static double o[ROWS * D_V];
    state_of S;
    for (int64_t i = 0; i < D_K * D_V; ++i)
      S[i / D_V][i % D_V] = linear_get(&c, "state", D_K * D_V + i);
    for (int64_t first = 0; first < ROWS; first += sizes[s]) {
      t.rows = ROWS - first < sizes[s] ? ROWS - first : sizes[s];
      take_chunk(&t, &c, first, S, o);
    }
    for (int64_t i = 0; i < ROWS * D_V; ++i)
      cr_assert(fabs(linear_result(&c, "o")->value[i] - o[i]) <= 1e-13, "chunks of %d, element %d", (int)sizes[s],
                (int)i);
    for (int64_t i = 0; i < D_K * D_V; ++i)
      cr_assert(fabs(linear_result(&c, "state")->value[D_K * D_V + i] - S[i / D_V][i % D_V]) <= 1e-13,
                "chunks of %d, state %d", (int)sizes[s], (int)i);
  }
  linear_close(&c);
}

/* A request cut anywhere gives the rows and the state of the whole, except for the state's rounding to f32. */
Test(gated_delta_rule, pieces_are_the_whole) {
  linear_call whole;
  open_rule(&whole, 0, 40, true, NULL);
  linear_run(&whole, &contract, false);
  for (int64_t cut = 1; cut < 40; cut += 3) {
    linear_call a, b;
    open_rule(&a, 0, cut, true, NULL);
    linear_run(&a, &contract, false);
    open_rule(&b, cut, 40 - cut, false, linear_result(&a, "state")->value);
    linear_run(&b, &contract, false);
    for (int64_t i = 0; i < 40 * D_V; ++i) {
      const double got = linear_result(i / D_V < cut ? &a : &b, "o")->value[i / D_V < cut ? i : i - cut * D_V];
      cr_assert(fabs(got - linear_result(&whole, "o")->value[i]) <= 1e-6, "cut at %d, element %d", (int)cut, (int)i);
    }
    for (int64_t i = 0; i < D_K * D_V; ++i)
      cr_assert(linear_result(&b, "state")->sigma[i] == ASSAY_UNCHANGED);
    linear_close(&a);
    linear_close(&b);
  }
  linear_close(&whole);
}

/* With g 0, beta 1 and unit keys, reading a key gives what was last written under it. */
Test(gated_delta_rule, is_a_memory) {
  linear_call c;
  open_rule(&c, 0, 20, true, NULL);
  linear_param(&c, "l2", 0);
  linear_param(&c, "scale", 1);
  linear_all(&c, "g", 0);
  linear_all(&c, "beta", 1);
  linear_all(&c, "q", 0);
  linear_all(&c, "k", 0);
  linear_integers(&c, "v", 3, 8);
  for (int64_t n = 0; n < 20; ++n) {
    linear_set(&c, "k", n * D_K + n * n % D_K, 1);
    linear_set(&c, "q", n * D_K + n * n % D_K, 1);
  }
  linear_run(&c, &contract, true);
  for (int64_t i = 0; i < 20 * D_V; ++i)
    cr_assert_eq(linear_result(&c, "o")->value[i], linear_get(&c, "v", i), "element %d", (int)i);
  linear_close(&c);
}

/* One row that leaves S as it is: S holds `state`, and q holds `query`, in every element. */
static void open_constant(linear_call *c, double state, double query, double scale) {
  open_rule(c, 0, 1, false, NULL);
  linear_param(c, "l2", 0);
  linear_param(c, "scale", scale);
  linear_all(c, "g", 0);
  linear_all(c, "beta", 0);
  linear_all(c, "v", 0);
  linear_all(c, "state", state);
  linear_all(c, "q", query);
  linear_run(c, &contract, false);
}

typedef enum scale_place { SCALE_ON_Q, SCALE_ON_STATE, SCALE_ON_PRODUCT, SCALE_ON_SUM, SCALE_PLACES } scale_place;

/* Returns the row's result in f32, with scale multiplied in at a place. */
static float result_of(float state, float query, float scale, scale_place place) {
  float sum = 0;
  for (int64_t i = 0; i < D_K; ++i) {
    float product = state * query;
    if (place == SCALE_ON_Q) product = state * (scale * query);
    if (place == SCALE_ON_STATE) product = scale * state * query;
    if (place == SCALE_ON_PRODUCT) product *= scale;
    sum += product;
  }
  return place == SCALE_ON_SUM ? scale * sum : sum;
}

/* scale may be multiplied into q, S, a product or the sum. Below 2^-126 each place rounds other numbers. In every row
 * one place errs by nearly half a step per term. A whole step per term, and one more, is beyond the limit. */
Test(gated_delta_rule, limit_knows_every_place_of_scale) {
  static const struct {
    double state, query, scale, step; /* step: 2^-149 times the largest factor that a rounding is multiplied by */
    scale_place worst;
  } row[] = {
      {0x1p-60, 98.46875 * 0x1p-85, 0x1p-4, 0x1p-149, SCALE_ON_Q},
      {0x1p-60, 98.46875 * 0x1p-85, 0x1p-4, 0x1p-149, SCALE_ON_PRODUCT},
      {0x1p-60, 98.46875 * 0x1p-89, 0x1p10, 0x1p-139, SCALE_ON_SUM},
      {0x1p30, 98.46875 * 0x1p-109, 0x1p-40, 0x1p-119, SCALE_ON_Q},
      {98.46875 * 0x1p-109, 0x1p30, 0x1p-40, 0x1p-119, SCALE_ON_STATE},
  };
  for (size_t i = 0; i < sizeof row / sizeof row[0]; ++i) {
    linear_call c;
    open_constant(&c, row[i].state, row[i].query, row[i].scale);
    const double value = linear_result(&c, "o")->value[0];
    const double limit = c.op->kappa_element * linear_result(&c, "o")->sigma[0];
    for (scale_place place = 0; place < SCALE_PLACES; ++place) {
      const float found = result_of((float)row[i].state, (float)row[i].query, (float)row[i].scale, place);
      const double error = fabs(found - value);
      cr_assert(error <= limit, "row %zu, place %d: %.3g of the limit", i, (int)place, error / limit);
      if (place == row[i].worst)
        cr_assert(error > 0.4 * D_K * row[i].step, "row %zu: %.3g steps", i, error / row[i].step);
    }
    cr_assert(limit < (D_K + 1) * row[i].step, "row %zu: limit of %.3g steps", i, limit / row[i].step);
    linear_close(&c);
  }
}

Test(gated_delta_rule, refuses_gates_and_slots) {
  static const struct {
    const char *name;
    int64_t index;
    double value;
  } wrong[] = {{"g", 3, 0.5}, {"slots", 0, SLOTS}, {"slots", 0, -2}, {"cu", 0, 1}, {"cu", 1, 8}};
  for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; ++i) {
    linear_call c;
    assay_error error = {""};
    open_rule(&c, 0, 9, true, NULL);
    linear_set(&c, wrong[i].name, wrong[i].index, wrong[i].value);
    cr_assert(linear_try(&c, &contract, false, &error) == ASSAY_ERR_INPUT, "row %zu", i);
    cr_assert(strncmp(error.text, wrong[i].name, strlen(wrong[i].name)) == 0, "%s", error.text);
    linear_close(&c);
  }
}

/* softplus(x) - softplus(-x) = x, sigmoid(x) + sigmoid(-x) = 1. */
Test(delta_gates, keeps_two_identities) {
  linear_call c;
  linear_open(&c, assay_op_delta_gates());
  linear_tensor(&c, "a", ASSAY_F32, 0, 2, 9, 0);
  linear_tensor(&c, "b", ASSAY_F32, 0, 2, 9, 0);
  linear_tensor(&c, "A_log", ASSAY_F32, 0, 9, 0, 0);
  linear_tensor(&c, "dt_bias", ASSAY_F32, 0, 9, 0, 0);
  linear_tensor(&c, "g", ASSAY_F32, 0, 2, 9, 0);
  linear_tensor(&c, "beta", ASSAY_F32, 0, 2, 9, 0);
  for (int64_t i = 0; i < 9; ++i)
    for (int64_t n = 0; n < 2; ++n) {
      linear_set(&c, "a", n * 9 + i, (n == 0 ? 1 : -1) * 3.5 * (double)(i - 4));
      linear_set(&c, "b", n * 9 + i, (n == 0 ? 1 : -1) * 3.5 * (double)(i - 4));
    }
  linear_run(&c, &contract, false);
  const double *g = linear_result(&c, "g")->value, *beta = linear_result(&c, "beta")->value;
  for (int64_t i = 0; i < 9; ++i) {
    cr_assert(fabs(g[9 + i] - g[i] - 3.5 * (double)(i - 4)) <= 1e-12, "element %d", (int)i);
    cr_assert(fabs(beta[i] + beta[9 + i] - 1) <= 1e-15, "element %d", (int)i);
  }
  linear_close(&c);
}
