/* ref_norm_rope_append_test.c: norm_rope_append's reference against those of qk_norm and then rope_append. Its kernels
 * against those of the two operators, bit for bit; some contents are out of range. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>

#include "append_set.h"

const assay_op *assay_op_qk_norm(void);
const assay_op *assay_op_rope_append(void);
const assay_op *assay_op_norm_rope_append(void);

static const assay_contract contract = {.lanes = 8, .exp_ulp = 1.5, .rescales = true};

/* Makes set `number`, of every kind in turn. Returns false after the last one. */
static bool next_set(set *s, int number) {
  if (number >= 144) return false;
  choose_set(s, number);
  s->uclip = number >= 72;
  s->one = number % 7 == 0;
  open_set(s, (uint64_t)(10 * number + 1), 1, 40);
  return true;
}

/* ---- the reference --------------------------------------------------------------------------------------- */

/* Runs qk_norm's reference and stores its results in q and k. Says in `stored` which of them are what a correct kernel
 * stores. */
static void store_norms(set *s, bool (*stored)[MOST]) {
  assay_error error;
  make_call(s, assay_op_qk_norm(), s->k.byte);
  s->arg[8].data = NULL; /* q_out and k_out */
  s->arg[9].data = NULL;
  cr_assert_eq(refer(s, &contract, false, &error), ASSAY_OK, "%s", error.text);
  for (int t = 0; t < 2; ++t) {
    const int count = N * D * (t == 0 ? H : H_KV);
    for (int i = 0; i < count; ++i)
      stored[t][i] = assay_round_f64(s->value[t][i], s->dtype) == s->value[t][i] && s->sigma[t][i] == 0;
    assay_store_f64_row(t == 0 ? s->q.byte : s->k.byte, s->dtype, 0, 1, count, s->value[t]);
  }
}

/* Tells whether both channels of a pair are what a correct kernel stores. */
static bool pair_stored(const set *s, const bool *stored, int i) {
  const int d = i % D, at = i - d;
  if (d >= R) return stored[i];
  const int pair = s->interleaved ? d / 2 : d % (R / 2), a = s->interleaved ? 2 * pair : pair;
  return stored[at + a] && stored[at + (s->interleaved ? a + 1 : a + R / 2)];
}

static bool near(double a, double b) {
  return fabs(a - b) <= 0x1p-20 * (1 + fabs(b));
}

Test(norm_rope_append, is_qk_norm_then_rope_append) {
  static set s, fused;
  static bool stored[2][MOST];
  int64_t exact = 0;
  for (int number = 0; next_set(&s, number); ++number) {
    assay_error error;
    fused = s;
    make_call(&fused, assay_op_norm_rope_append(), fused.k.byte);
    cr_assert_eq(refer(&fused, &contract, false, &error), ASSAY_OK, "%s", error.text);
    store_norms(&s, stored);
    make_call(&s, assay_op_rope_append(), s.k.byte);
    cr_assert_eq(refer(&s, &contract, false, &error), ASSAY_OK, "%s", error.text);
    const int q = s.q_apart ? 3 : 0, k_out = s.q_apart ? 4 : 3;
    for (int i = 0; i < N * H * D; ++i) {
      const bool same = pair_stored(&s, stored[0], i);
      cr_assert(same ? fused.value[q][i] == s.value[q][i] && fused.sigma[q][i] == s.sigma[q][i]
                     : s.dtype != ASSAY_F32 || near(fused.value[q][i], s.value[q][i]));
      cr_assert(same || fused.sigma[q][i] > s.sigma[q][i] || positions[i / (H * D)] == 0);
      if (s.q_apart) cr_assert(fused.sigma[0][i] == ASSAY_UNCHANGED);
      exact += same;
    }
    for (int i = 0; i < N * H_KV * D; ++i) {
      cr_assert(fused.value[2][i] == s.value[2][i] && fused.sigma[2][i] == 0);
      if (!pair_stored(&s, stored[1], i)) continue;
      cr_assert(fused.value[1][i] == s.value[1][i] && fused.sigma[1][i] == s.sigma[1][i]);
      if (s.k_apart) cr_assert(fused.value[k_out][i] == s.value[k_out][i]);
    }
  }
  cr_expect_gt(exact, 40000);
}

/* Weights of either tensor for the other, and a weight that is neither one nor one per channel. */
Test(norm_rope_append, refuses_weights) {
  static set s;
  assay_error error;
  cr_assert(next_set(&s, 1));
  make_call(&s, assay_op_norm_rope_append(), s.k.byte);
  give(&s, "k_alpha", s.k_alpha.byte, s.dtype, 1, (const int64_t[1]){D});
  cr_expect_eq(refer(&s, &contract, false, &error), ASSAY_ERR_INPUT);
  cr_expect_str_eq(error.text, "k_alpha: found a tensor, allowed none with kind rms");
  give(&s, "k_alpha", NULL, s.dtype, 1, (const int64_t[1]){D});
  give(&s, "q_gamma", s.q_gamma.byte, s.dtype, 1, (const int64_t[1]){2});
  cr_expect_eq(refer(&s, &contract, false, &error), ASSAY_ERR_INPUT);
  cr_expect(strstr(error.text, "q_gamma") == error.text, "%s", error.text);
}

/* A head whose squares leave the range of f32: zeros are accepted of kernels that do not rescale, and of no others. */
Test(norm_rope_append, accepts_zeros_of_an_overflow) {
  static set s;
  assay_error error;
  cr_assert(next_set(&s, 0) && s.dtype == ASSAY_F32 && !s.q_apart);
  s.q.f32[3] = 0x1p100F;
  make_call(&s, assay_op_norm_rope_append(), s.k.byte);
  cr_assert_eq(refer(&s, &contract, false, &error), ASSAY_OK, "%s", error.text);
  const assay_contract plain = {.lanes = 8, .exp_ulp = 1.5};
  cr_expect(s.call.op->accepts(&s.call, &plain, 0, 3, 0));
  cr_expect(!s.call.op->accepts(&s.call, &plain, 0, 3, 1));
  cr_expect(!s.call.op->accepts(&s.call, &plain, 0, D + 3, 0));
  cr_expect(!s.call.op->accepts(&s.call, &contract, 0, 3, 0));
}

/* ---- kernels --------------------------------------------------------------------------------------------- */

#ifdef ASSAY_HAVE_SIMT
const assay_variant *assay_variants_simt_norm_rope_append(int32_t *count);
const assay_variant *assay_variants_simt_qk_norm(int32_t *count);
const assay_variant *assay_variants_simt_rope_append(int32_t *count);

/* Launches the call. Returns false if the variant does not take it. */
static bool launch(set *s, const assay_variant *variant) {
  assay_error error;
  const bool taken = launch_set(s, variant, &error);
  cr_assert(!taken || error.text[0] == '\0', "%s", error.text);
  return taken;
}

/* Positions outside the tables and slots outside the pool are among them: nothing turns, nothing is written. */
Test(norm_rope_append, kernels_make_the_bits_of_qk_norm_and_rope_append) {
  static set s, apart, fused_set;
  int32_t norms = 0, appends = 0, both = 0, taken[2] = {0};
  const assay_variant *norm = assay_variants_simt_qk_norm(&norms), *append = assay_variants_simt_rope_append(&appends);
  const assay_variant *fused = assay_variants_simt_norm_rope_append(&both);
  cr_assert_eq(both, 2);
  for (int number = 0; next_set(&s, number); ++number) {
    s.narrow[3] = -5;
    s.position[3] = number % 5 == 0 ? INT64_MIN : 1000000000000;
    s.slot[5] = number % 5 == 0 ? INT64_MAX : BLOCK * BLOCKS;
    s.slot[4] = -7;
    for (int r = 0; r < norms; ++r)
      for (int a = 0; a < appends; ++a) {
        apart = s;
        make_call(&apart, assay_op_qk_norm(), apart.k.byte);
        apart.arg[8].data = NULL; /* q_out and k_out */
        apart.arg[9].data = NULL;
        if (!launch(&apart, &norm[r])) continue;
        make_call(&apart, assay_op_rope_append(), apart.k.byte);
        if (!launch(&apart, &append[a])) continue;
        for (int v = 0; v < both; ++v) {
          fused_set = s;
          make_call(&fused_set, assay_op_norm_rope_append(), fused_set.k.byte);
          if (!launch(&fused_set, &fused[v])) continue;
          ++taken[v];
          cr_assert_eq(
              memcmp(s.q_apart ? &fused_set.q_out : &fused_set.q, s.q_apart ? &apart.q_out : &apart.q, sizeof s.q), 0,
              "set %d, %s", number, fused[v].name);
          if (s.q_apart) cr_assert_eq(memcmp(&fused_set.q, &s.q, sizeof s.q), 0, "q has changed");
          cr_assert_eq(memcmp(&fused_set.k, &s.k, sizeof s.k), 0, "k has changed");
          cr_assert_eq(memcmp(&fused_set.k_out, &apart.k_out, sizeof s.k), 0, "set %d, %s", number, fused[v].name);
          cr_assert_eq(memcmp(&fused_set.k_pool, &apart.k_pool, sizeof s.k_pool), 0, "set %d, %s", number,
                       fused[v].name);
          cr_assert_eq(memcmp(&fused_set.v_pool, &apart.v_pool, sizeof s.v_pool), 0, "set %d, %s", number,
                       fused[v].name);
        }
      }
  }
  cr_expect(taken[0] > 50 && taken[1] > 100, "%d, %d", taken[0], taken[1]);
}
#endif
