/* ref_spec_test.c: spec_verify against what rejection sampling must give: over all drafts and coins the first token is
 * distributed as p. Also what statuses and refusals say. */
#include <criterion/criterion.h>
#include <math.h>

#include "linear_fixture.h"

const assay_op *assay_op_spec_verify(void);

static const assay_contract contract = {.qk_lanes = 1, .pv_lanes = 1, .lanes = 1};

enum { V = 4, COINS = 64 };

static void open_spec(linear_call *c, bool with_q) {
  linear_open(c, assay_op_spec_verify());
  linear_tensor(c, "draft", ASSAY_I32, 0, 1, 1, 0);
  if (with_q) linear_tensor(c, "q", ASSAY_F32, 0, 1, 1, V);
  linear_tensor(c, "p", ASSAY_F32, 0, 1, 2, V);
  linear_tensor(c, "coins", ASSAY_F32, 0, 1, 2, 0);
  linear_tensor(c, "seed", ASSAY_I64, 0, 1, 0, 0);
  linear_tensor(c, "step", ASSAY_I32, 0, 1, 0, 0);
  linear_tensor(c, "request", ASSAY_I64, 0, 1, 0, 0);
  linear_tensor(c, "tokens", ASSAY_I32, 0, 1, 2, 0);
  linear_tensor(c, "accepted", ASSAY_I32, 0, 1, 0, 0);
  linear_tensor(c, "status", ASSAY_I32, 0, 1, 0, 0);
}

static double result(linear_call *c, const char *name, int64_t i) {
  return linear_result(c, name)->value[i];
}

/* Counts the first token over all coins, weighted with q of the draft, in units of 2^-15. */
static void count_first(const double *p, const double *q, double *count) {
  for (int v = 0; v < V; ++v)
    count[v] = 0;
  for (int run = 0; run < V * COINS * COINS; ++run) {
    const int x = run % V, first = run / V % COINS, second = run / V / COINS;
    linear_call c;
    open_spec(&c, true);
    linear_set(&c, "draft", 0, x);
    for (int v = 0; v < V; ++v) {
      linear_set(&c, "q", v, q[v]);
      linear_set(&c, "p", v, p[v]);
      linear_set(&c, "p", V + v, v == 0);
    }
    linear_set(&c, "coins", 0, (double)first / COINS);
    linear_set(&c, "coins", 1, (double)second / COINS);
    linear_run(&c, &contract, true);
    cr_assert_eq(result(&c, "status", 0), 0);
    count[(int)result(&c, "tokens", 0)] += q[x] / COINS / COINS;
    linear_close(&c);
  }
}

Test(spec_verify, the_first_token_is_distributed_as_p) {
  static const double p[][V] = {{0.5, 0.25, 0.125, 0.125}, {0.25, 0.25, 0.25, 0.25}};
  static const double q[][V] = {{0.25, 0.25, 0.25, 0.25}, {0.5, 0.125, 0.125, 0.25}};
  for (int pair = 0; pair < 2; ++pair) {
    double count[V];
    count_first(p[pair], q[pair], count);
    for (int v = 0; v < V; ++v)
      cr_assert_eq(count[v], p[pair][v], "pair %d, token %d: %g of %g", pair, v, count[v], p[pair][v]);
  }
}

/* A draft without q whose p is 0 is rejected, and never drawn; one whose p is 1 is accepted. */
Test(spec_verify, one_hot_drafts) {
  for (int x = 0; x < V; ++x)
    for (int coin = 0; coin < COINS; ++coin) {
      linear_call c;
      open_spec(&c, false);
      linear_set(&c, "draft", 0, x);
      for (int v = 0; v < V; ++v) {
        linear_set(&c, "p", v, v == x ? 0 : v == (x + 1) % V ? 0.5 : 0.25);
        linear_set(&c, "p", V + v, (double)NAN);
      }
      linear_set(&c, "coins", 0, (double)coin / COINS);
      linear_set(&c, "coins", 1, (double)coin / COINS);
      linear_run(&c, &contract, true);
      cr_assert_eq(result(&c, "accepted", 0), 0);
      cr_assert_neq(result(&c, "tokens", 0), x);
      cr_assert_eq(result(&c, "tokens", 1), -1);
      linear_close(&c);
    }
}

/* A number that is read and is no probability, or a draft that is no id, is the request's own error. */
Test(spec_verify, statuses) {
  static const struct {
    double draft, p, last, status;
  } wrong[] = {{V, 0.5, 0.5, 4}, {-1, 0.5, 0.5, 4}, {1, (double)NAN, 0.5, 1}, {1, -0.5, 0.5, 1}, {1, 1, (double)NAN, 1},
               {1, 1, 0, 1},     {1, 1, 0.5, 0}};
  for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; ++i) {
    linear_call c;
    open_spec(&c, false);
    linear_set(&c, "draft", 0, wrong[i].draft);
    linear_set(&c, "p", 1, wrong[i].p);
    for (int v = 0; v < V; ++v)
      linear_set(&c, "p", V + v, wrong[i].last);
    linear_run(&c, &contract, false);
    cr_assert_eq(result(&c, "status", 0), wrong[i].status, "row %zu", i);
    cr_assert_eq(result(&c, "tokens", 0), wrong[i].status != 0 ? -1 : 1);
    cr_assert_eq(result(&c, "accepted", 0), wrong[i].status == 0);
    linear_close(&c);
  }
}
