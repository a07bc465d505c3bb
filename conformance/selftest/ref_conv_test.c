/* ref_conv_test.c: causal_conv1d against products of polynomials, against itself cut into two calls, and what it
 * refuses. */
#include <criterion/criterion.h>
#include <math.h>

#include "core/dtype.h"
#include "linear_fixture.h"

const assay_op *assay_op_causal_conv1d(void);

static const assay_contract contract = {.qk_lanes = 1, .pv_lanes = 1, .lanes = 1};

enum { ROWS = 9, J = 3, C = 2, SLOTS = 3 };

static double number(int row, int c) {
  return (row * 7 + c * 5) % 11 - 5;
}

static double tap(int j, int c) {
  return 1 + j + 4 * c;
}

/* Opens a call of one request with `rows` rows of the sequence, from `first` on, in slot 1. */
static void open_conv(linear_call *c, int first, int rows, bool fresh, const double *state) {
  linear_open(c, assay_op_causal_conv1d());
  linear_tensor(c, "x", ASSAY_F32, 3, rows, C, 0);
  linear_tensor(c, "w", ASSAY_F32, 0, C, J + 1, 0);
  linear_tensor(c, "cu", ASSAY_I32, 0, 2, 0, 0);
  linear_tensor(c, "slots", ASSAY_I32, 0, 1, 0, 0);
  linear_tensor(c, "fresh", ASSAY_I32, 0, 1, 0, 0);
  linear_tensor(c, "state", ASSAY_F32, 0, SLOTS, J, C);
  linear_tensor(c, "y", ASSAY_F32, 0, rows, C, 0);
  linear_param(c, "silu", 0);
  linear_set(c, "cu", 1, rows);
  linear_set(c, "slots", 0, 1);
  linear_set(c, "fresh", 0, fresh);
  for (int i = 0; i < rows * C; ++i)
    linear_set(c, "x", i, number(first + i / C, i % C));
  for (int i = 0; i < C * (J + 1); ++i)
    linear_set(c, "w", i, tap(i % (J + 1), i / (J + 1)));
  for (int i = 0; i < SLOTS * J * C; ++i)
    linear_set(c, "state", i, state != NULL ? state[i] : (double)NAN);
}

/* y of a fresh request is the product of two polynomials: its rows, and its taps from the last one down. */
Test(causal_conv1d, is_a_product_of_polynomials) {
  double product[ROWS + J][C] = {{0}};
  linear_call c;
  for (int row = 0; row < ROWS; ++row)
    for (int j = 0; j <= J; ++j)
      for (int k = 0; k < C; ++k)
        product[row + j][k] += number(row, k) * tap(J - j, k);
  open_conv(&c, 0, ROWS, true, NULL);
  linear_run(&c, &contract, true);
  for (int i = 0; i < ROWS * C; ++i)
    cr_assert_eq(linear_result(&c, "y")->value[i], product[i / C][i % C], "element %d", i);
  linear_close(&c);
}

/* A request cut anywhere gives the rows and the state of the whole. Slots that no request names stay. */
Test(causal_conv1d, pieces_are_the_whole) {
  linear_call whole;
  open_conv(&whole, 0, ROWS, true, NULL);
  linear_run(&whole, &contract, true);
  const double *y = linear_result(&whole, "y")->value, *state = linear_result(&whole, "state")->value;
  for (int cut = 1; cut < ROWS; ++cut) {
    double between[SLOTS * J * C];
    linear_call a, b;
    open_conv(&a, 0, cut, true, NULL);
    linear_run(&a, &contract, true);
    for (int i = 0; i < SLOTS * J * C; ++i)
      between[i] = linear_result(&a, "state")->value[i];
    open_conv(&b, cut, ROWS - cut, false, between);
    linear_run(&b, &contract, true);
    for (int i = 0; i < ROWS * C; ++i) {
      const linear_call *from = i / C < cut ? &a : &b;
      const int at = i / C < cut ? i : i - cut * C;
      cr_assert_eq(linear_result((linear_call *)from, "y")->value[at], y[i], "cut at %d, element %d", cut, i);
    }
    for (int i = J * C; i < 2 * J * C; ++i)
      cr_assert_eq(linear_result(&b, "state")->value[i], state[i], "cut at %d, state %d", cut, i);
    for (int i = 0; i < J * C; ++i)
      cr_assert(linear_result(&b, "state")->sigma[i] == ASSAY_UNCHANGED);
    linear_close(&a);
    linear_close(&b);
  }
  linear_close(&whole);
}

Test(causal_conv1d, refuses_rows_and_slots) {
  static const struct {
    const char *name;
    int64_t index;
    double value;
  } wrong[] = {{"cu", 0, 1}, {"cu", 1, ROWS - 1}, {"cu", 1, ROWS + 1}, {"slots", 0, SLOTS}, {"slots", 0, -2}};
  for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; ++i) {
    linear_call c;
    assay_error error = {""};
    open_conv(&c, 0, ROWS, true, NULL);
    linear_set(&c, wrong[i].name, wrong[i].index, wrong[i].value);
    cr_assert(linear_try(&c, &contract, false, &error) == ASSAY_ERR_INPUT, "row %zu", i);
    cr_assert(strncmp(error.text, wrong[i].name, strlen(wrong[i].name)) == 0, "%s", error.text);
    linear_close(&c);
  }
}

enum { DRAWN = 2000, TERMS = J + 2, ORDERS = 120 };

/* Opens a call of one row and DRAWN channels, without silu. */
static void open_drawn(linear_call *c) {
  linear_open(c, assay_op_causal_conv1d());
  linear_tensor(c, "x", ASSAY_F32, 0, 1, DRAWN, 0);
  linear_tensor(c, "w", ASSAY_F32, 0, DRAWN, J + 1, 0);
  linear_tensor(c, "bias", ASSAY_F32, 0, DRAWN, 0, 0);
  linear_tensor(c, "cu", ASSAY_I32, 0, 2, 0, 0);
  linear_tensor(c, "slots", ASSAY_I32, 0, 1, 0, 0);
  linear_tensor(c, "fresh", ASSAY_I32, 0, 1, 0, 0);
  linear_tensor(c, "state", ASSAY_F32, 0, 1, J, DRAWN);
  linear_tensor(c, "y", ASSAY_F32, 0, 1, DRAWN, 0);
  linear_param(c, "silu", 0);
  linear_set(c, "cu", 1, 1);
  linear_normals(c, "x", 1);
  linear_normals(c, "w", 2);
  linear_normals(c, "bias", 3);
  linear_normals(c, "state", 4);
  linear_run(c, &contract, false);
}

/* Writes the terms of channel i as they are before any rounding: those of the taps, then the bias. */
static void drawn_terms(linear_call *c, int i, double *term) {
  for (int j = 0; j <= J; ++j)
    term[j] =
        linear_get(c, "w", i * (J + 1) + j) * (j < J ? linear_get(c, "state", j * DRAWN + i) : linear_get(c, "x", i));
  term[J + 1] = linear_get(c, "bias", i);
}

/* Writes the order with this number: each digit, in mixed radix, picks one of the terms that are left. */
static void order_of(int number_of_order, int *order) {
  int left[TERMS];
  for (int i = 0; i < TERMS; ++i)
    left[i] = i;
  for (int i = 0; i < TERMS; ++i) {
    const int radix = TERMS - i, at = number_of_order % radix;
    number_of_order /= radix;
    order[i] = left[at];
    left[at] = left[radix - 1];
  }
}

/* Adds in f32. fused: a product is rounded with its addition alone. */
static double added(const double *term, const int *order, bool fused) {
  float sum = 0;
  for (int i = 0; i < TERMS; ++i)
    sum = (float)(fused ? (double)sum + term[order[i]] : (double)(sum + (float)term[order[i]]));
  return sum;
}

/* The bias may come first, last or between: every order in f32 is within the limit. */
Test(causal_conv1d, limit_knows_every_order) {
  linear_call c;
  open_drawn(&c);
  const double kappa = c.op->kappa_element;
  for (int i = 0; i < DRAWN; ++i) {
    double term[TERMS];
    const double value = linear_result(&c, "y")->value[i], limit = kappa * linear_result(&c, "y")->sigma[i];
    drawn_terms(&c, i, term);
    for (int n = 0; n < 2 * ORDERS; ++n) {
      int order[TERMS];
      order_of(n / 2, order);
      const double error = fabs(added(term, order, n % 2 != 0) - value);
      cr_assert(error <= limit, "channel %d, order %d: %.3g of the limit", i, n, error / limit);
    }
  }
  linear_close(&c);
}

/* No order errs by more than half an ulp per rounding, with running sums of the terms of one sign. An error beyond that
 * is beyond the limit. */
Test(causal_conv1d, limit_is_no_wider_than_the_roundings) {
  linear_call c;
  open_drawn(&c);
  for (int i = 0; i < DRAWN; ++i) {
    double term[TERMS], above = 0, below = 0, bound = 0;
    const double limit = c.op->kappa_element * linear_result(&c, "y")->sigma[i];
    drawn_terms(&c, i, term);
    for (int j = 0; j < TERMS; ++j) {
      above += fmax(term[j], 0);
      below += fmax(-term[j], 0);
      bound += j <= J ? assay_ulp(term[j], ASSAY_F32) / 2 : 0;
    }
    bound += TERMS * assay_ulp(fmax(above, below), ASSAY_F32) / 2;
    bound += assay_ulp(linear_result(&c, "y")->value[i], ASSAY_F32) / 2;
    cr_assert(limit < bound, "channel %d: limit %.3g, roundings %.3g", i, limit, bound);
  }
  linear_close(&c);
}
