/* ref_norm_rope_append_test.c: norm_rope_append's reference against those of qk_norm and then rope_append. Its kernels
 * against those of the two operators, bit for bit; some contents are out of range. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>

#include "assay/variant.h"
#include "core/dtype.h"
#include "core/rng.h"
#include "ref/lib/rope.h"

const assay_op *assay_op_qk_norm(void);
const assay_op *assay_op_rope_append(void);
const assay_op *assay_op_norm_rope_append(void);

static const assay_contract contract = {.lanes = 8, .exp_ulp = 1.5, .rescales = true};

enum { N = 6, H = 4, H_KV = 2, D = 24, R = 16, P = 9, BLOCK = 8, BLOCKS = 3, MOST = N * H * D, POOL = 2048 };
static const int positions[N] = {0, 8, 3, 3, 5, 7};
static const int64_t slots[N] = {3, -1, 23, 8, -1, 7};

/* ---- one set of tensors, of which each operator takes those that it knows ------------------------------- */

typedef struct set {
  assay_dtype dtype, cache;
  bool interleaved, q_apart, k_apart, wide, uclip, one;
  int layout;
  _Alignas(16) union {
    float f32[MOST];
    uint8_t byte[4 * MOST];
  } q, k, v, q_out, k_out;
  _Alignas(16) union {
    float f32[POOL];
    uint8_t byte[4 * POOL];
  } k_pool, v_pool;
  _Alignas(16) union {
    float f32[D];
    uint8_t byte[4 * D];
  } q_gamma, k_gamma, q_alpha, k_alpha;
  _Alignas(16) float cosine[P * R / 2], sine[P * R / 2];
  float k_scale[H_KV], v_scale[H_KV];
  int32_t narrow[N];
  int64_t position[N], slot[N];
  /* The call of one of the operators. */
  assay_tensor arg[ASSAY_MAX_ARGS];
  double param[ASSAY_MAX_PARAMS];
  assay_call call;
  double value[ASSAY_MAX_OUTPUTS][MOST], sigma[ASSAY_MAX_OUTPUTS][MOST];
  assay_expected expected[ASSAY_MAX_OUTPUTS];
} set;

static void draw(void *to, assay_dtype dtype, uint64_t seed, double size, int count) {
  double value[MOST];
  assay_rng_normals(seed, 1, value, count);
  for (int i = 0; i < count; ++i)
    value[i] *= size;
  assay_store_f64_row(to, dtype, 0, 1, count, value);
}

static bool is_fp8(const set *s) {
  return s->cache == ASSAY_E4M3 || s->cache == ASSAY_E5M2;
}

static void open_set(set *s, uint64_t seed) {
  rope_table(10000, P, R, s->cosine, s->sine);
  draw(s->q.byte, s->dtype, seed, 1, N * H * D);
  draw(s->k.byte, s->dtype, seed + 1, 1, N * H_KV * D);
  draw(s->v.byte, s->dtype, seed + 2, is_fp8(s) ? 40 : 1, N * H_KV * D);
  draw(s->q_gamma.byte, s->dtype, seed + 3, 1, D);
  draw(s->k_gamma.byte, s->dtype, seed + 4, is_fp8(s) ? 40 : 1, D);
  draw(s->q_alpha.byte, s->dtype, seed + 5, 1, D);
  draw(s->k_alpha.byte, s->dtype, seed + 6, 1, D);
  memset(&s->q_out, 0x55, sizeof s->q_out);
  memset(&s->k_out, 0x55, sizeof s->k_out);
  memset(&s->k_pool, 0x2A, sizeof s->k_pool);
  memset(&s->v_pool, 0x2A, sizeof s->v_pool);
  for (int n = 0; n < N; ++n) {
    s->narrow[n] = positions[n];
    s->position[n] = positions[n];
    s->slot[n] = slots[n];
  }
  for (int h = 0; h < H_KV; ++h) {
    s->k_scale[h] = 0.37F * (float)(h + 1);
    s->v_scale[h] = 1.7F / (float)(h + 1);
  }
}

static void give(set *s, const char *name, void *data, assay_dtype dtype, int32_t rank, const int64_t *shape) {
  for (int32_t i = 0; i < s->call.op->arg_count; ++i) {
    if (strcmp(s->call.op->args[i].name, name) != 0) continue;
    int64_t stride = 1;
    s->arg[i] = (assay_tensor){.data = data, .dtype = dtype, .rank = rank};
    for (int32_t a = rank - 1; a >= 0; --a) {
      s->arg[i].shape[a] = shape[a];
      s->arg[i].stride[a] = stride;
      stride *= shape[a];
    }
  }
}

/* Makes the operator's call on the set; its own k is `k`. */
static void make_call(set *s, const assay_op *op, void *k) {
  const int64_t x = 16 / assay_dtype_size(s->cache), tokens[1] = {N}, heads[1] = {H_KV}, weights[1] = {s->one ? 1 : D},
                table[2] = {P, R / 2};
  const int64_t q_rows[3] = {N, H, D}, k_rows[3] = {N, H_KV, D};
  const int64_t pools[3][5] = {{BLOCKS, BLOCK, H_KV, D}, {BLOCKS, H_KV, BLOCK, D}, {BLOCKS, H_KV, D / x, BLOCK, x}};
  const int64_t v_x[4] = {BLOCKS, H_KV, D, BLOCK};
  memset(s->arg, 0, sizeof s->arg);
  s->call = (assay_call){op, s->arg, s->param};
  give(s, "q", s->q.byte, s->dtype, 3, q_rows);
  give(s, "k", k, s->dtype, 3, k_rows);
  give(s, "v", s->v.byte, s->dtype, 3, k_rows);
  give(s, "q_gamma", s->q_gamma.byte, s->dtype, 1, weights);
  give(s, "k_gamma", s->k_gamma.byte, s->dtype, 1, weights);
  if (s->uclip) give(s, "q_alpha", s->q_alpha.byte, s->dtype, 1, weights);
  if (s->uclip) give(s, "k_alpha", s->k_alpha.byte, s->dtype, 1, weights);
  give(s, "cos", s->cosine, ASSAY_F32, 2, table);
  give(s, "sin", s->sine, ASSAY_F32, 2, table);
  give(s, "positions", s->wide ? (void *)s->position : (void *)s->narrow, s->wide ? ASSAY_I64 : ASSAY_I32, 1, tokens);
  give(s, "slots", s->slot, ASSAY_I64, 1, tokens);
  give(s, "k_cache", s->k_pool.byte, s->cache, s->layout == 2 ? 5 : 4, pools[s->layout]);
  give(s, "v_cache", s->v_pool.byte, s->cache, 4, s->layout == 2 ? v_x : pools[s->layout]);
  if (is_fp8(s)) give(s, "k_scale", s->k_scale, ASSAY_F32, 1, heads);
  if (is_fp8(s)) give(s, "v_scale", s->v_scale, ASSAY_F32, 1, heads);
  if (s->q_apart) give(s, "q_out", s->q_out.byte, s->dtype, 3, q_rows);
  if (s->k_apart) give(s, "k_out", s->k_out.byte, s->dtype, 3, k_rows);
  for (int32_t i = 0; i < op->param_count; ++i) {
    const char *name = op->params[i].name;
    s->param[i] = op->params[i].fallback;
    if (strcmp(name, "layout") == 0) s->param[i] = s->layout;
    if (strcmp(name, "style") == 0) s->param[i] = s->interleaved;
    if (strcmp(name, "scale_per_head") == 0) s->param[i] = 1;
    if (strcmp(name, "kind") == 0) s->param[i] = s->uclip;
  }
}

static assay_status refer(set *s, assay_error *error) {
  for (int o = 0; o < ASSAY_MAX_OUTPUTS; ++o)
    s->expected[o] = (assay_expected){s->value[o], s->sigma[o]};
  error->text[0] = '\0';
  const assay_status status = s->call.op->check(&s->call, error);
  if (status != ASSAY_OK) return status;
  return s->call.op->reference(&s->call, &contract, NULL, false, s->expected, NULL, error);
}

/* Makes set `number`, of every kind in turn. Returns false after the last one. */
static bool next_set(set *s, int number) {
  static const assay_dtype dtypes[] = {ASSAY_F32, ASSAY_F16, ASSAY_BF16};
  if (number >= 144) return false;
  const assay_dtype dtype = dtypes[number / 24 % 3], caches[] = {dtype, ASSAY_E4M3, ASSAY_E5M2, dtype};
  memset(s, 0, sizeof *s);
  s->dtype = dtype;
  s->cache = caches[number % 4];
  s->layout = number / 4 % 2 + (number % 4 == 3);
  if (s->layout == 2 && D % (16 / assay_dtype_size(s->cache)) != 0) s->layout = 1;
  s->interleaved = number / 8 % 3 == 1;
  s->q_apart = number / 8 % 3 == 2;
  s->k_apart = number % 3 != 0;
  s->wide = number % 2 == 1;
  s->uclip = number >= 72;
  s->one = number % 7 == 0;
  open_set(s, (uint64_t)(10 * number + 1));
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
  cr_assert_eq(refer(s, &error), ASSAY_OK, "%s", error.text);
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
    cr_assert_eq(refer(&fused, &error), ASSAY_OK, "%s", error.text);
    store_norms(&s, stored);
    make_call(&s, assay_op_rope_append(), s.k.byte);
    cr_assert_eq(refer(&s, &error), ASSAY_OK, "%s", error.text);
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
  cr_expect_eq(refer(&s, &error), ASSAY_ERR_INPUT);
  cr_expect_str_eq(error.text, "k_alpha: found a tensor, allowed none with kind rms");
  give(&s, "k_alpha", NULL, s.dtype, 1, (const int64_t[1]){D});
  give(&s, "q_gamma", s.q_gamma.byte, s.dtype, 1, (const int64_t[1]){2});
  cr_expect_eq(refer(&s, &error), ASSAY_ERR_INPUT);
  cr_expect(strstr(error.text, "q_gamma") == error.text, "%s", error.text);
}

/* A head whose squares leave the range of f32: zeros are accepted of kernels that do not rescale, and of no others. */
Test(norm_rope_append, accepts_zeros_of_an_overflow) {
  static set s;
  assay_error error;
  cr_assert(next_set(&s, 0) && s.dtype == ASSAY_F32 && !s.q_apart);
  s.q.f32[3] = 0x1p100F;
  make_call(&s, assay_op_norm_rope_append(), s.k.byte);
  cr_assert_eq(refer(&s, &error), ASSAY_OK, "%s", error.text);
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
  assay_env env = {.multiprocessors = 4};
  assay_error error = {""};
  if (variant->supports(&s->call, &error) != ASSAY_OK) return false;
  const assay_status status = variant->launch(&s->call, &env, &error);
  cr_assert_eq(status, ASSAY_OK, "%s", error.text);
  return true;
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
