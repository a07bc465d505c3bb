/* ref_grouped_test.c: grouped products against gemm of each row's group alone, and what they refuse. */
#include <criterion/criterion.h>

#include "linear_fixture.h"

const assay_op *assay_op_gemm(void);
const assay_op *assay_op_grouped_gemm(void);
const assay_op *assay_op_grouped_gemm_masked(void);

static assay_contract contract = {.qk_lanes = 1, .pv_lanes = 1, .lanes = 1};

enum { E = 3, R = 4, N = 5, K = 7 };

/* Computes row `row` of `from` by gemm, with the weights and the bias of one group. */
static void open_alone(linear_call *c, linear_call *from, int row, int group) {
  linear_open(c, assay_op_gemm());
  linear_tensor(c, "a", ASSAY_F32, 0, 1, K, 0);
  linear_tensor(c, "b", ASSAY_F32, 0, N, K, 0);
  linear_tensor(c, "bias", ASSAY_F32, 0, N, 0, 0);
  linear_tensor(c, "c", ASSAY_F32, 0, 1, N, 0);
  for (int k = 0; k < K; ++k)
    linear_set(c, "a", k, linear_get(from, "a", row * K + k));
  for (int i = 0; i < N * K; ++i)
    linear_set(c, "b", i, linear_get(from, "b", group * N * K + i));
  for (int n = 0; n < N; ++n)
    linear_set(c, "bias", n, linear_get(from, "bias", group * N + n));
  linear_run(c, &contract, false);
}

static void expect_alone(linear_call *c, int row, int group) {
  linear_call alone;
  open_alone(&alone, c, row, group);
  for (int n = 0; n < N; ++n) {
    cr_assert(linear_close_to(linear_result(c, "c")->value[row * N + n], linear_result(&alone, "c")->value[n]),
              "row %d, channel %d", row, n);
    /* gemm has an addition more: that of the old c. */
    const double sigma = linear_result(c, "c")->sigma[row * N + n];
    cr_assert(sigma > 0 && sigma <= linear_result(&alone, "c")->sigma[n], "sigma of row %d, channel %d", row, n);
    if (contract.start == ASSAY_START_BIAS) cr_assert_eq(sigma, linear_result(&alone, "c")->sigma[n]);
  }
  linear_close(&alone);
}

static void open_weights(linear_call *c) {
  linear_tensor(c, "b", ASSAY_F32, 0, E, N, K);
  linear_tensor(c, "bias", ASSAY_F32, 0, E, N, 0);
  linear_normals(c, "a", 1);
  linear_normals(c, "b", 2);
  linear_normals(c, "bias", 3);
}

static const int group_of[] = {2, 0, -1, 2, 0};
enum { ROWS = sizeof group_of / sizeof *group_of };

static void open_rows(linear_call *c, double pad) {
  linear_open(c, assay_op_grouped_gemm());
  linear_tensor(c, "a", ASSAY_F32, 2, ROWS, K, 0);
  linear_tensor(c, "group", ASSAY_I32, 0, ROWS, 0, 0);
  linear_tensor(c, "c", ASSAY_F32, 0, ROWS, N, 0);
  open_weights(c);
  linear_all(c, "c", 9);
  linear_param(c, "pad", pad);
  for (int m = 0; m < ROWS; ++m)
    linear_set(c, "group", m, group_of[m]);
}

Test(grouped_gemm, rows_are_gemm_of_their_group) {
  for (int pad = 0; pad < 2; ++pad) {
    linear_call c;
    open_rows(&c, pad);
    linear_run(&c, &contract, false);
    for (int m = 0; m < ROWS; ++m) {
      if (group_of[m] >= 0) expect_alone(&c, m, group_of[m]);
      for (int n = 0; n < N && group_of[m] < 0; ++n) {
        cr_assert_eq(linear_result(&c, "c")->value[m * N + n], pad != 0 ? 9 : 0);
        cr_assert(linear_result(&c, "c")->sigma[m * N + n] == (pad != 0 ? ASSAY_UNCHANGED : 0));
      }
    }
    linear_close(&c);
  }
}

/* A sum that starts from the bias has the limits of gemm's. */
Test(grouped_gemm, starts_from_the_bias_as_gemm_does) {
  double zero[ROWS * N];
  linear_call c;
  open_rows(&c, 0);
  linear_run(&c, &contract, false);
  memcpy(zero, linear_result(&c, "c")->sigma, sizeof zero);
  contract.start = ASSAY_START_BIAS;
  linear_run(&c, &contract, false);
  for (int m = 0; m < ROWS; ++m) {
    if (group_of[m] < 0) continue;
    expect_alone(&c, m, group_of[m]);
    for (int n = 0; n < N; ++n)
      cr_assert(linear_result(&c, "c")->sigma[m * N + n] != zero[m * N + n], "row %d, channel %d", m, n);
  }
  linear_close(&c);
}

static void open_masked(linear_call *c) {
  static const int rows[E] = {2, 0, R};
  linear_open(c, assay_op_grouped_gemm_masked());
  linear_tensor(c, "a", ASSAY_F32, 0, E, R, K);
  linear_tensor(c, "rows", ASSAY_I32, 0, E, 0, 0);
  linear_tensor(c, "c", ASSAY_F32, 0, E, R, N);
  open_weights(c);
  for (int g = 0; g < E; ++g)
    linear_set(c, "rows", g, rows[g]);
}

Test(grouped_gemm_masked, live_rows_are_gemm_of_their_group) {
  linear_call c;
  open_masked(&c);
  linear_run(&c, &contract, false);
  for (int row = 0; row < E * R; ++row) {
    if (row % R < linear_get(&c, "rows", row / R))
      expect_alone(&c, row, row / R);
    else
      cr_assert(linear_result(&c, "c")->sigma[row * N] == ASSAY_UNCHANGED);
  }
  linear_close(&c);
}

Test(grouped_gemm, refuses_groups_and_rows) {
  for (int masked = 0; masked < 2; ++masked)
    for (int high = 0; high < 2; ++high) {
      const char *const name = masked ? "rows" : "group";
      linear_call c;
      assay_error error = {""};
      if (masked)
        open_masked(&c);
      else
        open_rows(&c, 0);
      linear_set(&c, name, 1, masked ? (high ? R + 1 : -1) : (high ? E : -2));
      cr_assert(linear_try(&c, &contract, false, &error) == ASSAY_ERR_INPUT);
      cr_assert(strncmp(error.text, name, strlen(name)) == 0, "%s", error.text);
      linear_close(&c);
    }
}
