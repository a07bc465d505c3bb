/* append_set.h: tensors of the operators that rotate and append, for the tests of their references. There are sets of
 * every type, layout and kind, and calls of any of these operators on them. */
#ifndef ASSAY_CONFORMANCE_SELFTEST_APPEND_SET_H
#define ASSAY_CONFORMANCE_SELFTEST_APPEND_SET_H

#include <stdio.h>
#include <string.h>

#include "assay/variant.h"
#include "core/dtype.h"
#include "core/rng.h"
#include "ref/lib/rope.h"

enum { N = 6, H = 4, H_KV = 2, D = 24, R = 16, P = 9, BLOCK = 8, BLOCKS = 3, MOST = N * H * D, POOL = 2048 };
static const int positions[N] = {0, 8, 3, 3, 5, 7};
static const int64_t slots[N] = {3, -1, 23, 8, -1, 7};

/* One set of tensors, of which each operator takes those that it knows. */
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

/* Fills `count` elements with normals. */
static inline void draw(void *to, assay_dtype dtype, uint64_t seed, double size, int count) {
  double value[MOST];
  assay_rng_normals(seed, 1, value, count);
  for (int i = 0; i < count; ++i)
    value[i] *= size;
  assay_store_f64_row(to, dtype, 0, 1, count, value);
}

static inline bool is_fp8(const set *s) {
  return s->cache == ASSAY_E4M3 || s->cache == ASSAY_E5M2;
}

/* Fills the set. k_size, gamma_size: how large keys and the weights of their norm are in fp8. */
static inline void open_set(set *s, uint64_t seed, double k_size, double gamma_size) {
  rope_table(10000, P, R, s->cosine, s->sine);
  draw(s->q.byte, s->dtype, seed, 1, N * H * D);
  draw(s->k.byte, s->dtype, seed + 1, is_fp8(s) ? k_size : 1, N * H_KV * D);
  draw(s->v.byte, s->dtype, seed + 2, is_fp8(s) ? 40 : 1, N * H_KV * D);
  draw(s->q_gamma.byte, s->dtype, seed + 3, 1, D);
  draw(s->k_gamma.byte, s->dtype, seed + 4, is_fp8(s) ? gamma_size : 1, D);
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

/* Gives an argument, where the operator has one of that name. */
static inline void give(set *s, const char *name, void *data, assay_dtype dtype, int32_t rank, const int64_t *shape) {
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
static inline void make_call(set *s, const assay_op *op, void *k) {
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

/* Asks the operator's reference, after its check. */
static inline assay_status refer(set *s, const assay_contract *contract, bool exact, assay_error *error) {
  for (int o = 0; o < ASSAY_MAX_OUTPUTS; ++o)
    s->expected[o] = (assay_expected){s->value[o], s->sigma[o]};
  error->text[0] = '\0';
  const assay_status status = s->call.op->check(&s->call, error);
  if (status != ASSAY_OK) return status;
  return s->call.op->reference(&s->call, contract, NULL, exact, s->expected, NULL, error);
}

/* Chooses types, layout and kind of set `number`, of 72 in turn. */
static inline void choose_set(set *s, int number) {
  static const assay_dtype dtypes[] = {ASSAY_F32, ASSAY_F16, ASSAY_BF16};
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
}

/* Launches the call. Returns false if the variant does not take it; a failed launch is written to `error`. */
static inline bool launch_set(set *s, const assay_variant *variant, assay_error *error) {
  assay_env env = {.multiprocessors = 4};
  error->text[0] = '\0';
  if (variant->supports(&s->call, error) != ASSAY_OK) return false;
  error->text[0] = '\0';
  if (variant->launch(&s->call, &env, error) != ASSAY_OK && error->text[0] == '\0')
    (void)snprintf(error->text, sizeof error->text, "the launch failed without a word");
  return true;
}

#endif
