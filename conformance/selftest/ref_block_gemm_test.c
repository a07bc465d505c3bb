/* ref_block_gemm_test.c: fp8_block_gemm against dgemm on matrices that are multiplied by their scales, and its parts.
 */
#include <cblas.h>
#include <criterion/criterion.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>

#include "linear_fixture.h"

const assay_op *assay_op_fp8_block_gemm(void);

static const assay_contract contract = {.qk_lanes = 1, .pv_lanes = 1, .lanes = 1};

enum { M = 5, N = 150, K = 300, PIECES = 3, BLOCKS = 2 };

static void open_call(linear_call *c, bool turned) {
  linear_open(c, assay_op_fp8_block_gemm());
  linear_tensor(c, "c", ASSAY_F32, 0, M, N, 0);
  linear_tensor(c, "a", ASSAY_E4M3, 0, M, K, 0);
  linear_tensor(c, "b", ASSAY_E4M3, 0, N, K, 0);
  linear_tensor(c, turned ? "sfa_t" : "sfa", ASSAY_F32, 0, turned ? PIECES : M, turned ? M : PIECES, 0);
  linear_tensor(c, turned ? "sfb_t" : "sfb", ASSAY_F32, 0, turned ? PIECES : BLOCKS, turned ? BLOCKS : PIECES, 0);
  linear_tensor(c, "bias", ASSAY_F32, 0, N, 0, 0);
  linear_integers(c, "a", 1, 8);
  linear_integers(c, "b", 2, 8);
  linear_normals(c, "bias", 3);
  for (int m = 0; m < M; ++m)
    for (int p = 0; p < PIECES; ++p)
      linear_set(c, turned ? "sfa_t" : "sfa", turned ? p * M + m : m * PIECES + p, 0.5 + 0.1 * m + 0.03 * p);
  for (int j = 0; j < BLOCKS; ++j)
    for (int p = 0; p < PIECES; ++p)
      linear_set(c, turned ? "sfb_t" : "sfb", turned ? p * BLOCKS + j : j * PIECES + p, 0.7 - 0.2 * j + 0.05 * p);
}

Test(fp8_block_gemm, equals_the_product_of_dequantised_matrices) {
  for (int turned = 0; turned < 2; ++turned) {
    linear_call c;
    static double a[M * K], b[N * K], wanted[M * N];
    open_call(&c, turned != 0);
    const char *const sfa = turned != 0 ? "sfa_t" : "sfa", *const sfb = turned != 0 ? "sfb_t" : "sfb";
    for (int i = 0; i < M * K; ++i) {
      const int m = i / K, p = i % K / 128;
      a[i] = linear_get(&c, "a", i) * linear_get(&c, sfa, turned != 0 ? p * M + m : m * PIECES + p);
    }
    for (int i = 0; i < N * K; ++i) {
      const int j = i / K / 128, p = i % K / 128;
      b[i] = linear_get(&c, "b", i) * linear_get(&c, sfb, turned != 0 ? p * BLOCKS + j : j * PIECES + p);
    }
    cblas_dgemm(CblasRowMajor, CblasNoTrans, CblasTrans, M, N, K, 1, a, K, b, K, 0, wanted, N);
    linear_run(&c, &contract, false);
    for (int i = 0; i < M * N; ++i)
      cr_assert(linear_close_to(linear_result(&c, "c")->value[i], wanted[i] + linear_get(&c, "bias", i % N)), "%d", i);
    linear_close(&c);
  }
}

/* Packed scales give what the same powers of two give as numbers; 255 is NaN, and dead bytes are not read. */
Test(fp8_block_gemm, packed_scales_are_powers_of_two) {
  linear_call c, plain;
  open_call(&plain, false);
  linear_open(&c, assay_op_fp8_block_gemm());
  linear_tensor(&c, "c", ASSAY_F32, 0, M, N, 0);
  linear_tensor(&c, "a", ASSAY_E4M3, 0, M, K, 0);
  linear_tensor(&c, "b", ASSAY_E4M3, 0, N, K, 0);
  linear_tensor(&c, "sfa_packed", ASSAY_I32, 3, 1, M, 0);
  linear_tensor(&c, "sfb_packed", ASSAY_I32, 0, 1, BLOCKS, 0);
  linear_integers(&c, "a", 1, 8);
  linear_integers(&c, "b", 2, 8);
  linear_all(&plain, "bias", 0);
  for (int m = 0; m < M; ++m) {
    uint8_t *const byte = (uint8_t *)linear_arg(&c, "sfa_packed")->data + (size_t)4 * (size_t)m;
    for (int p = 0; p < 4; ++p)
      byte[p] = p < PIECES ? (uint8_t)(120 + 3 * m + p) : 255;
    for (int p = 0; p < PIECES; ++p)
      linear_set(&plain, "sfa", m * PIECES + p, exp2(3 * m + p - 7));
  }
  for (int j = 0; j < BLOCKS; ++j) {
    uint8_t *const byte = (uint8_t *)linear_arg(&c, "sfb_packed")->data + (size_t)4 * (size_t)j;
    for (int p = 0; p < 4; ++p)
      byte[p] = p < PIECES ? (uint8_t)(130 - 2 * j - p) : 255;
    for (int p = 0; p < PIECES; ++p)
      linear_set(&plain, "sfb", j * PIECES + p, exp2(3 - 2 * j - p));
  }
  linear_run(&c, &contract, false);
  linear_run(&plain, &contract, false);
  for (int i = 0; i < M * N; ++i)
    cr_assert_eq(linear_result(&c, "c")->value[i], linear_result(&plain, "c")->value[i], "%d", i);
  ((uint8_t *)linear_arg(&c, "sfa_packed")->data)[4 * 2 + 1] = 255;
  linear_run(&c, &contract, false);
  for (int i = 0; i < M * N; ++i)
    cr_assert_eq(isnan(linear_result(&c, "c")->value[i]) != 0, i / N == 2, "%d", i);
  linear_close(&c);
  linear_close(&plain);
}

Test(fp8_block_gemm, is_the_sum_of_its_pieces) {
  linear_call c;
  double whole[M * N], sum[M * N] = {0};
  open_call(&c, false);
  linear_all(&c, "bias", 0);
  linear_run(&c, &contract, false);
  for (int i = 0; i < M * N; ++i)
    whole[i] = linear_result(&c, "c")->value[i];
  for (int p = 0; p < PIECES; ++p) {
    linear_call one;
    open_call(&one, false);
    linear_all(&one, "bias", 0);
    for (int m = 0; m < M; ++m)
      for (int q = 0; q < PIECES; ++q)
        if (q != p) linear_set(&one, "sfa", m * PIECES + q, 0);
    linear_run(&one, &contract, false);
    for (int i = 0; i < M * N; ++i)
      sum[i] += linear_result(&one, "c")->value[i];
    linear_close(&one);
  }
  for (int i = 0; i < M * N; ++i)
    cr_assert(linear_close_to(whole[i], sum[i]), "%d", i);
  linear_close(&c);
}

/* Tensor cores lose more of a sum of 8-bit products than f32 additions do; of one product they lose nothing. */
Test(fp8_block_gemm, declared_cuts_widen_sigma) {
  assay_contract cut = contract;
  cut.cut = 32;
  linear_call c;
  double narrow[M * N];
  open_call(&c, false);
  for (int i = 0; i < M * K; ++i)
    linear_set(&c, "a", i, i % 7 + 0.125);
  linear_run(&c, &contract, false);
  for (int i = 0; i < M * N; ++i)
    narrow[i] = linear_result(&c, "c")->sigma[i];
  linear_run(&c, &cut, false);
  int wider = 0;
  for (int i = 0; i < M * N; ++i)
    wider += linear_result(&c, "c")->sigma[i] > 10 * narrow[i];
  cr_expect(wider > M * N / 2, "%d", wider);
  linear_close(&c);
}
