/* ref_block_grouped_test.c: grouped e4m3 products against fp8_block_gemm of each row's group alone, and what they
 * refuse. */
#include <criterion/criterion.h>

#include "linear_fixture.h"

const assay_op *assay_op_fp8_block_gemm(void);
const assay_op *assay_op_fp8_grouped_gemm(void);
const assay_op *assay_op_fp8_grouped_gemm_masked(void);

static assay_contract contract = {.qk_lanes = 1, .pv_lanes = 1, .lanes = 1};

enum { E = 3, R = 4, N = 150, K = 300, PIECES = 3, BLOCKS = 2 };

static void copy(linear_call *to, linear_call *from, const char *name, int first, int count) {
  for (int i = 0; i < count; ++i)
    linear_set(to, name, i, linear_get(from, name, first + i));
}

/* Computes row `row` of `from` by fp8_block_gemm, with the weights, scales and bias of one group. `scales` has the
 * places of the row's scales. */
static void expect_alone(linear_call *c, int row, int group, const char *sfa, int first, int apart) {
  linear_call alone;
  linear_open(&alone, assay_op_fp8_block_gemm());
  linear_tensor(&alone, "c", ASSAY_F32, 0, 1, N, 0);
  linear_tensor(&alone, "a", ASSAY_E4M3, 0, 1, K, 0);
  linear_tensor(&alone, "sfa", ASSAY_F32, 0, 1, PIECES, 0);
  linear_tensor(&alone, "b", ASSAY_E4M3, 0, N, K, 0);
  linear_tensor(&alone, "sfb", ASSAY_F32, 0, BLOCKS, PIECES, 0);
  linear_tensor(&alone, "bias", ASSAY_F32, 0, N, 0, 0);
  copy(&alone, c, "a", row * K, K);
  copy(&alone, c, "b", group * N * K, N * K);
  copy(&alone, c, "sfb", group * BLOCKS * PIECES, BLOCKS * PIECES);
  copy(&alone, c, "bias", group * N, N);
  for (int p = 0; p < PIECES; ++p)
    linear_set(&alone, "sfa", p, linear_get(c, sfa, first + p * apart));
  linear_run(&alone, &contract, false);
  for (int n = 0; n < N; ++n) {
    const assay_expected *got = linear_result(c, "c"), *want = linear_result(&alone, "c");
    cr_assert_eq(got->value[row * N + n], want->value[n], "row %d, channel %d", row, n);
    cr_assert_eq(got->sigma[row * N + n], want->sigma[n], "sigma of row %d, channel %d", row, n);
  }
  linear_close(&alone);
}

static void fill(linear_call *c, const char *sfa) {
  linear_tensor(c, "b", ASSAY_E4M3, 0, E, N, K);
  linear_tensor(c, "sfb", ASSAY_F32, 0, E, BLOCKS, PIECES);
  linear_tensor(c, "bias", ASSAY_F32, 0, E, N, 0);
  linear_integers(c, "a", 1, 8);
  linear_integers(c, "b", 2, 8);
  linear_normals(c, "bias", 3);
  for (int i = 0; i < linear_count(linear_arg(c, sfa)); ++i)
    linear_set(c, sfa, i, 0.5 + 0.03 * i);
  for (int i = 0; i < E * BLOCKS * PIECES; ++i)
    linear_set(c, "sfb", i, 1.7 - 0.05 * i);
  linear_all(c, "c", 9);
}

static const int group_of[] = {2, 0, -1, 2, 0};
enum { ROWS = sizeof group_of / sizeof *group_of };

static void open_rows(linear_call *c, bool turned, double pad) {
  linear_open(c, assay_op_fp8_grouped_gemm());
  linear_tensor(c, "c", ASSAY_F32, 3, ROWS, N, 0);
  linear_tensor(c, "a", ASSAY_E4M3, 2, ROWS, K, 0);
  linear_tensor(c, turned ? "sfa_t" : "sfa", ASSAY_F32, 1, turned ? PIECES : ROWS, turned ? ROWS : PIECES, 0);
  linear_tensor(c, "group", ASSAY_I32, 0, ROWS, 0, 0);
  fill(c, turned ? "sfa_t" : "sfa");
  linear_param(c, "pad", pad);
  for (int m = 0; m < ROWS; ++m)
    linear_set(c, "group", m, group_of[m]);
}

Test(fp8_grouped_gemm, rows_are_products_of_their_group) {
  for (int pad = 0; pad < 2; ++pad)
    for (int turned = 0; turned < 2; ++turned) {
      linear_call c;
      open_rows(&c, turned != 0, pad);
      linear_run(&c, &contract, false);
      for (int m = 0; m < ROWS; ++m) {
        if (group_of[m] >= 0)
          expect_alone(&c, m, group_of[m], turned ? "sfa_t" : "sfa", turned ? m : m * PIECES, turned ? ROWS : 1);
        for (int n = 0; n < N && group_of[m] < 0; ++n) {
          cr_assert_eq(linear_result(&c, "c")->value[m * N + n], pad != 0 ? 9 : 0);
          cr_assert(linear_result(&c, "c")->sigma[m * N + n] == (pad != 0 ? ASSAY_UNCHANGED : 0));
        }
      }
      linear_close(&c);
    }
}

/* A sum that starts from the bias has the limits of fp8_block_gemm's. */
Test(fp8_grouped_gemm, starts_from_the_bias_as_fp8_block_gemm_does) {
  double zero[ROWS * N];
  linear_call c;
  open_rows(&c, false, 0);
  linear_run(&c, &contract, false);
  memcpy(zero, linear_result(&c, "c")->sigma, sizeof zero);
  contract.start = ASSAY_START_BIAS;
  linear_run(&c, &contract, false);
  for (int m = 0; m < ROWS; ++m) {
    if (group_of[m] < 0) continue;
    expect_alone(&c, m, group_of[m], "sfa", m * PIECES, 1);
    cr_assert(memcmp(&zero[m * N], &linear_result(&c, "c")->sigma[m * N], N * sizeof *zero) != 0, "row %d", m);
  }
  linear_close(&c);
}

static void open_masked(linear_call *c, bool turned) {
  static const int rows[E] = {2, 0, R};
  linear_open(c, assay_op_fp8_grouped_gemm_masked());
  linear_tensor(c, "c", ASSAY_F32, 0, E, R, N);
  linear_tensor(c, "a", ASSAY_E4M3, 5, E, R, K);
  linear_tensor(c, turned ? "sfa_t" : "sfa", ASSAY_F32, 2, E, turned ? PIECES : R, turned ? R : PIECES);
  linear_tensor(c, "rows", ASSAY_I32, 0, E, 0, 0);
  fill(c, turned ? "sfa_t" : "sfa");
  for (int g = 0; g < E; ++g)
    linear_set(c, "rows", g, rows[g]);
}

Test(fp8_grouped_gemm_masked, live_rows_are_products_of_their_group) {
  for (int turned = 0; turned < 2; ++turned) {
    linear_call c;
    open_masked(&c, turned != 0);
    linear_run(&c, &contract, false);
    for (int row = 0; row < E * R; ++row) {
      const int g = row / R, r = row % R;
      if (r < linear_get(&c, "rows", g))
        expect_alone(&c, row, g, turned ? "sfa_t" : "sfa", turned ? g * PIECES * R + r : row * PIECES, turned ? R : 1);
      else
        cr_assert(linear_result(&c, "c")->sigma[row * N] == ASSAY_UNCHANGED);
    }
    linear_close(&c);
  }
}

Test(fp8_grouped_gemm, refuses_groups_and_rows) {
  for (int masked = 0; masked < 2; ++masked)
    for (int high = 0; high < 2; ++high) {
      const char *const name = masked ? "rows" : "group";
      linear_call c;
      assay_error error = {""};
      if (masked)
        open_masked(&c, false);
      else
        open_rows(&c, false, 0);
      linear_set(&c, name, 1, masked ? (high ? R + 1 : -1) : (high ? E : -2));
      cr_assert(linear_try(&c, &contract, false, &error) == ASSAY_ERR_INPUT);
      cr_assert(strncmp(error.text, name, strlen(name)) == 0, "%s", error.text);
      linear_close(&c);
    }
}
