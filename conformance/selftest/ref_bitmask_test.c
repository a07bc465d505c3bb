/* ref_bitmask_test.c: token_bitmask against strings of '0' and '1', and what it refuses. */
#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#include "linear_fixture.h"

const assay_op *assay_op_token_bitmask(void);

static const assay_contract contract = {.qk_lanes = 1, .pv_lanes = 1, .lanes = 1};

enum { N = 3, V = 70, M = 2, W = 4 };

static void open_bitmask(linear_call *c, const char *const *text) {
  linear_open(c, assay_op_token_bitmask());
  linear_tensor(c, "logits", ASSAY_BF16, 0, N, V, 0);
  linear_tensor(c, "mask", ASSAY_I32, 0, M, W, 0);
  linear_tensor(c, "rows", ASSAY_I32, 0, M, 0, 0);
  linear_normals(c, "logits", 1);
  for (int m = 0; m < M; ++m)
    for (int w = 0; w < W; ++w) {
      int64_t word = 0;
      for (int bit = 0; bit < 32; ++bit)
        if (32 * w + bit < (int)strlen(text[m]) && text[m][32 * w + bit] == '1') word += INT64_C(1) << bit;
      linear_set(c, "mask", m * W + w, (double)(word >= INT64_C(1) << 31 ? word - (INT64_C(1) << 32) : word));
    }
}

Test(token_bitmask, equals_a_string_of_digits) {
  static const char *const text[M] = {
      "1100101010011110101000101111010100101011110010100101010010111010001011",
      "0000000000000000000000000000000100000000000000000000000000000000000001",
  };
  static const int rows[M] = {2, 0};
  for (int tail = 0; tail < 2; ++tail) {
    const int limit = tail == 0 ? V : 65;
    linear_call c;
    open_bitmask(&c, text);
    linear_param(&c, "V_m", limit);
    linear_param(&c, "tail", tail);
    for (int m = 0; m < M; ++m)
      linear_set(&c, "rows", m, rows[m]);
    linear_run(&c, &contract, false);
    for (int n = 0; n < N; ++n)
      for (int v = 0; v < V; ++v) {
        const char *const own = n == 2 ? text[0] : n == 0 ? text[1] : NULL;
        const bool banned = own != NULL && (v < limit ? own[v] == '0' : tail == 1);
        const double value = linear_result(&c, "logits")->value[n * V + v];
        const double wanted = banned ? -(double)INFINITY : linear_get(&c, "logits", n * V + v);
        cr_assert(value == wanted, "row %d, token %d", n, v);
        cr_assert_eq(linear_result(&c, "logits")->sigma[n * V + v] == ASSAY_UNCHANGED, !banned);
      }
    linear_close(&c);
  }
}

Test(token_bitmask, refuses_rows_and_words) {
  static const char *const text[M] = {"1", "1"};
  linear_call c;
  assay_error error = {""};
  open_bitmask(&c, text);
  linear_set(&c, "rows", 0, 1);
  linear_set(&c, "rows", 1, 1);
  cr_assert_eq(linear_try(&c, &contract, false, &error), ASSAY_ERR_INPUT);
  cr_assert_str_eq(error.text, "rows: found 1 in mask row 1 again, allowed once");
  linear_set(&c, "rows", 1, 3);
  cr_assert_eq(linear_try(&c, &contract, false, &error), ASSAY_ERR_INPUT);
  cr_assert_str_eq(error.text, "rows: found 3 in mask row 1, allowed -1 to 2");
  linear_param(&c, "V_m", 71);
  cr_assert_eq(linear_try(&c, &contract, false, &error), ASSAY_ERR_INPUT);
  cr_assert_str_eq(error.text, "V_m: found 71, allowed up to V = 70");
  linear_close(&c);
}
