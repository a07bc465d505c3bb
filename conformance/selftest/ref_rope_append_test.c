/* ref_rope_append_test.c: rope_append against complex numbers and a search over all codes; against rope's reference and
 * then kv_append's; which stored numbers rounding may give; what is refused; and its kernels against those of the two
 * operators, bit for bit, contents that are out of range among them. */
#include <complex.h>
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>

#include "append_set.h"

const assay_op *assay_op_rope(void);
const assay_op *assay_op_kv_append(void);
const assay_op *assay_op_rope_append(void);

static const assay_contract contract = {.lanes = 1};

/* Makes set `number`, of every kind in turn. Returns false after the last one. */
static bool next_set(set *s, int number) {
  if (number >= 72) return false;
  choose_set(s, number);
  open_set(s, (uint64_t)(10 * number + 1), 40, 1);
  return true;
}

/* ---- second formulations -------------------------------------------------------------------------------- */

static double turned(const set *s, const void *x, int n, int h, int heads, int d) {
  const int at = (n * heads + h) * D;
  if (d >= R) return assay_load_f64(x, s->dtype, at + d);
  const int pair = s->interleaved ? d / 2 : d % (R / 2), a = s->interleaved ? 2 * pair : pair;
  const int b = s->interleaved ? a + 1 : a + R / 2;
  const double _Complex z = assay_load_f64(x, s->dtype, at + a) + assay_load_f64(x, s->dtype, at + b) * I;
  const int angle = positions[n] * (R / 2) + pair;
  const double _Complex y = z * ((double)s->cosine[angle] + (double)s->sine[angle] * I);
  return d == a ? creal(y) : cimag(y);
}

/* The finite code nearest to the quotient, the even one of two; other types: rounded. */
static double searched(const set *s, double value, float scale) {
  double best = 0, distance = (double)INFINITY;
  int best_code = 1;
  if (!is_fp8(s)) return assay_round_f64(value, s->cache);
  const double quotient = (double)((float)value / scale);
  for (int code = 0; code < 256; ++code) {
    const float number = s->cache == ASSAY_E4M3 ? assay_e4m3_to_f32((uint8_t)code) : assay_e5m2_to_f32((uint8_t)code);
    if (!isfinite(number)) continue;
    const double away = fabs((double)number - quotient);
    if (away < distance || (away == distance && code % 2 == 0 && best_code % 2 != 0)) {
      best = (double)number;
      distance = away;
      best_code = code;
    }
  }
  return best;
}

static bool near(double a, double b) {
  return fabs(a - b) <= 1e-14 * (1 + fabs(b));
}

Test(rope_append, complex_numbers_and_the_nearest_code) {
  static set s;
  for (int number = 0; next_set(&s, number); ++number) {
    assay_error error;
    make_call(&s, assay_op_rope_append(), s.k.byte);
    cr_assert_eq(refer(&s, &contract, false, &error), ASSAY_OK, "%s", error.text);
    const int q = s.q_apart ? 3 : 0, k_out = s.q_apart ? 4 : 3;
    for (int i = 0; i < N * H * D; ++i) {
      cr_assert(near(s.value[q][i], turned(&s, s.q.byte, i / (H * D), i / D % H, H, i % D)));
      if (s.q_apart) cr_assert(s.sigma[0][i] == ASSAY_UNCHANGED);
    }
    for (int i = 0; i < N * H_KV * D; ++i) {
      const int n = i / (H_KV * D), h = i / D % H_KV;
      const double y = turned(&s, s.k.byte, n, h, H_KV, i % D), v = assay_load_f64(s.v.byte, s.dtype, i);
      if (s.k_apart) cr_assert(near(s.value[k_out][i], y));
      if (slots[n] < 0) {
        cr_assert(s.value[1][i] == 0 && s.value[2][i] == 0 && s.sigma[1][i] == 0 && s.sigma[2][i] == 0);
        continue;
      }
      const double stored = searched(&s, assay_round_f64(y, s.dtype), s.k_scale[h]);
      /* An f32 cache is expected to hold the result of the arithmetic: sigma has the rounding. */
      cr_assert(s.cache == ASSAY_F32 ? near(s.value[1][i], y) : s.value[1][i] == stored);
      cr_assert(s.value[2][i] == searched(&s, v, s.v_scale[h]) && s.sigma[2][i] == 0);
      cr_assert_eq(s.sigma[1][i] > 0, s.cache == ASSAY_F32 && positions[n] != 0 && i % D < R);
    }
  }
}

Test(rope_append, is_rope_then_kv_append) {
  static set s, fused_set;
  for (int number = 0; next_set(&s, number); ++number) {
    assay_error error;
    const bool k_apart = s.k_apart;
    fused_set = s;
    s.k_apart = true;
    make_call(&fused_set, assay_op_rope_append(), fused_set.k.byte);
    cr_assert_eq(refer(&fused_set, &contract, false, &error), ASSAY_OK, "%s", error.text);
    make_call(&s, assay_op_rope(), s.k.byte);
    cr_assert_eq(refer(&s, &contract, false, &error), ASSAY_OK, "%s", error.text);
    const int q = s.q_apart ? 2 : 0, k = s.q_apart ? 3 : 2, one_q = s.q_apart ? 3 : 0, one_k = s.q_apart ? 4 : 3;
    for (int i = 0; i < N * H * D; ++i)
      cr_assert(s.value[q][i] == fused_set.value[one_q][i] && s.sigma[q][i] == fused_set.sigma[one_q][i]);
    for (int i = 0; i < N * H_KV * D && k_apart; ++i)
      cr_assert(s.value[k][i] == fused_set.value[one_k][i] && s.sigma[k][i] == fused_set.sigma[one_k][i]);
    assay_store_f64_row(s.k_out.byte, s.dtype, 0, 1, N * H_KV * D, s.value[k]);
    make_call(&s, assay_op_kv_append(), s.k_out.byte);
    cr_assert_eq(refer(&s, &contract, false, &error), ASSAY_OK, "%s", error.text);
    for (int i = 0; i < N * H_KV * D; ++i)
      cr_assert(assay_round_f64(fused_set.value[1][i], s.cache) == s.value[0][i] &&
                fused_set.value[2][i] == s.value[1][i]);
  }
}

/* ---- what rounding may give ------------------------------------------------------------------------------ */

/* Arithmetic in f32, each product rounded or one of them not, is accepted; the codes beyond are not. */
Test(rope_append, accepts_what_f32_gives_and_no_more) {
  static set s;
  int64_t exact = 0;
  for (int number = 0; next_set(&s, number); ++number) {
    assay_error error;
    make_call(&s, assay_op_rope_append(), s.k.byte);
    cr_assert_eq(refer(&s, &contract, false, &error), ASSAY_OK, "%s", error.text);
    for (int i = 0; i < N * H_KV * D; ++i) {
      const int n = i / (H_KV * D), h = i / D % H_KV, d = i % D, at = i - d;
      if (s.cache == ASSAY_F32 || slots[n] < 0 || d >= R) {
        cr_assert(s.cache != ASSAY_F32 || !s.call.op->accepts(&s.call, &contract, 1, i, s.value[1][i]));
        continue;
      }
      const int pair = s.interleaved ? d / 2 : d % (R / 2), a = s.interleaved ? 2 * pair : pair;
      const int b = s.interleaved ? a + 1 : a + R / 2, angle = positions[n] * (R / 2) + pair;
      const float own = (float)assay_load_f64(s.k.byte, s.dtype, at + d);
      const float mate = (float)assay_load_f64(s.k.byte, s.dtype, at + (d == a ? b : a));
      const float c = s.cosine[angle], z = d == a ? -s.sine[angle] : s.sine[angle];
      const float products = own * c, sum[3] = {products + mate * z, fmaf(own, c, mate * z), fmaf(mate, z, products)};
      for (int way = 0; way < 3; ++way) {
        const double stored = searched(&s, assay_round_f64((double)sum[way], s.dtype), s.k_scale[h]);
        cr_assert(stored == s.value[1][i] || s.call.op->accepts(&s.call, &contract, 1, i, stored));
      }
      const double step = assay_ulp(s.value[1][i], s.cache);
      cr_assert(!s.call.op->accepts(&s.call, &contract, 1, i, s.value[1][i] + 2 * step) || step < 0x1p-13);
      exact += !s.call.op->accepts(&s.call, &contract, 1, i, s.value[1][i] + step) &&
               !s.call.op->accepts(&s.call, &contract, 1, i, s.value[1][i] - step);
      cr_assert(!s.call.op->accepts(&s.call, &contract, 2, i, s.value[2][i]));
      cr_assert(!s.call.op->accepts(&s.call, &contract, 1, i, (double)NAN));
    }
  }
  cr_expect_gt(exact, 5000);
}

/* 1 + 2^-8 + 2^-30 lies above the middle of two bf16 numbers, and on it in f32: rounded up, or to even. */
Test(rope_append, accepts_the_other_side_of_a_tie) {
  static set s;
  assay_error error;
  cr_assert(next_set(&s, 48) && s.dtype == ASSAY_BF16 && s.cache == ASSAY_BF16 && !s.interleaved);
  const int n = 5, angle = positions[n] * (R / 2), a = n * H_KV * D;
  make_call(&s, assay_op_rope_append(), s.k.byte);
  s.cosine[angle] = 1 + 0x1p-8F;
  s.sine[angle] = -0x1p-30F;
  assay_store_f64(s.k.byte, s.dtype, a, 1);
  assay_store_f64(s.k.byte, s.dtype, a + R / 2, 1);
  cr_assert_eq(refer(&s, &contract, false, &error), ASSAY_OK, "%s", error.text);
  cr_expect(s.value[1][a] == 1 + 0x1p-7 && s.sigma[1][a] == 0);
  cr_expect(s.call.op->accepts(&s.call, &contract, 1, a, 1));
  cr_expect(!s.call.op->accepts(&s.call, &contract, 1, a, 1 - 0x1p-8));
  cr_expect(!s.call.op->accepts(&s.call, &contract, 1, a, 1 + 0x1p-6));
}

/* ---- refusals -------------------------------------------------------------------------------------------- */

Test(rope_append, refuses_contents) {
  static set s;
  assay_error error;
  cr_assert(next_set(&s, 1));
  make_call(&s, assay_op_rope_append(), s.k.byte);
  s.position[2] = P;
  cr_expect_eq(refer(&s, &contract, false, &error), ASSAY_ERR_INPUT);
  cr_expect(strstr(error.text, "positions: found 9 in row 2, allowed 0 to 8") == error.text, "%s", error.text);
  s.position[2] = 0;
  s.slot[1] = 23;
  cr_expect_eq(refer(&s, &contract, false, &error), ASSAY_ERR_INPUT);
  cr_expect(strstr(error.text, "slots: found 23 for rows 1 and 2") == error.text, "%s", error.text);
  s.slot[1] = BLOCK * BLOCKS;
  cr_expect_eq(refer(&s, &contract, false, &error), ASSAY_ERR_INPUT);
  cr_expect(strstr(error.text, "slots: found 24 for row 1") == error.text, "%s", error.text);
  s.slot[1] = -1;
  cr_expect_eq(refer(&s, &contract, false, &error), ASSAY_OK, "%s", error.text);
  cr_expect_eq(refer(&s, &contract, true, &error), ASSAY_ERR_INPUT); /* off the lattice */
  cr_expect(strstr(error.text, "exact tier") == error.text, "%s", error.text);
}

/* ---- kernels --------------------------------------------------------------------------------------------- */

#ifdef ASSAY_HAVE_SIMT
const assay_variant *assay_variants_simt_rope(int32_t *count);
const assay_variant *assay_variants_simt_kv_append(int32_t *count);
const assay_variant *assay_variants_simt_rope_append(int32_t *count);

/* Launches the call. Returns false if the variant does not take it. */
static bool launch(set *s, const assay_variant *variant) {
  assay_error error;
  const bool taken = launch_set(s, variant, &error);
  cr_assert(!taken || error.text[0] == '\0', "%s", error.text);
  return taken;
}

/* Positions beside the tables and slots beside the pool among them: nothing turns, nothing is written. */
Test(rope_append, kernels_make_the_bits_of_rope_and_kv_append) {
  static set s, apart, fused_set;
  int32_t ropes = 0, appends = 0, both = 0, taken[2] = {0};
  const assay_variant *rope = assay_variants_simt_rope(&ropes), *append = assay_variants_simt_kv_append(&appends);
  const assay_variant *fused = assay_variants_simt_rope_append(&both);
  cr_assert_eq(both, 2);
  for (int number = 0; next_set(&s, number); ++number) {
    s.narrow[3] = -5;
    s.position[3] = number % 5 == 0 ? INT64_MIN : 1000000000000;
    s.slot[5] = number % 5 == 0 ? INT64_MAX : BLOCK * BLOCKS;
    s.slot[4] = -7;
    for (int r = 0; r < ropes; ++r)
      for (int a = 0; a < appends; ++a) {
        apart = s;
        apart.k_apart = true;
        make_call(&apart, assay_op_rope(), apart.k.byte);
        if (!launch(&apart, &rope[r])) continue;
        make_call(&apart, assay_op_kv_append(), apart.k_out.byte);
        if (!launch(&apart, &append[a])) continue;
        for (int v = 0; v < both; ++v) {
          fused_set = s;
          make_call(&fused_set, assay_op_rope_append(), fused_set.k.byte);
          if (!launch(&fused_set, &fused[v])) continue;
          ++taken[v];
          cr_assert(memcmp(&fused_set.q, &apart.q, sizeof s.q) == 0 &&
                    memcmp(&fused_set.q_out, &apart.q_out, sizeof s.q) == 0);
          cr_assert_eq(memcmp(&fused_set.k, &s.k, sizeof s.k), 0, "k has changed");
          cr_assert_eq(memcmp(&fused_set.k_out, fused_set.k_apart ? &apart.k_out : &s.k_out, sizeof s.k), 0);
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
