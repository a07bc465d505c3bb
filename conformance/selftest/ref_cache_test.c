/* ref_cache_test.c: kv_append, copy_blocks, merge_states and gate_reduce against second formulations: a search over all
 * codes, memcpy, attention over all keys at once, plain sums. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>

#include "assay/op.h"
#include "core/dtype.h"
#include "core/rng.h"

const assay_op *assay_op_kv_append(void);
const assay_op *assay_op_copy_blocks(void);
const assay_op *assay_op_merge_states(void);
const assay_op *assay_op_gate_reduce(void);

static const assay_contract contract = {.exp_ulp = 2, .lanes = 1};

/* A call made by hand: tensors dense, by place in the operator's table. */
typedef struct hand_call {
  assay_tensor arg[ASSAY_MAX_ARGS];
  double param[ASSAY_MAX_PARAMS];
  assay_call call;
} hand_call;

static void make(hand_call *m, const assay_op *op) {
  memset(m, 0, sizeof *m);
  m->call = (assay_call){op, m->arg, m->param};
  for (int32_t i = 0; i < op->param_count; ++i)
    m->param[i] = op->params[i].fallback;
}

static assay_tensor *dense(hand_call *m, const char *name, assay_dtype dtype, int32_t rank, const int64_t *shape,
                           void *data) {
  for (int32_t i = 0; i < m->call.op->arg_count; ++i) {
    if (strcmp(m->call.op->args[i].name, name) != 0) continue;
    assay_tensor *t = &m->arg[i];
    *t = (assay_tensor){.data = data, .dtype = dtype, .rank = rank};
    int64_t stride = 1;
    for (int32_t a = rank - 1; a >= 0; --a) {
      t->shape[a] = shape[a];
      t->stride[a] = stride;
      stride *= shape[a];
    }
    return t;
  }
  abort();
}

static void set_param(hand_call *m, const char *name, double value) {
  for (int32_t i = 0; i < m->call.op->param_count; ++i)
    if (strcmp(m->call.op->params[i].name, name) == 0) m->param[i] = value;
}

static assay_status ask(hand_call *m, bool exact, assay_expected *expected, char *text) {
  assay_error error = {0};
  assay_seen seen = {0};
  assay_status status = m->call.op->check(&m->call, &error);
  if (status == ASSAY_OK) status = m->call.op->reference(&m->call, &contract, NULL, exact, expected, &seen, &error);
  (void)snprintf(text, sizeof error.text, "%s", error.text);
  return status;
}

/* ---- kv_append ---- */

/* Appends x[rows, 1, 8] of f32 to a cache of the type; stored[rows, 8]. */
static void append_rows(const float *x, int64_t rows, float scale, assay_dtype cache, double *stored) {
  hand_call m;
  char text[2048];
  const int64_t shape[3] = {rows, 1, 8}, blocks = (rows + 7) / 8, pool[4] = {blocks, 8, 1, 8}, one = 1;
  int64_t *slots = malloc((size_t)rows * sizeof *slots);
  void *memory = calloc((size_t)(blocks * 64), 4);
  double *v = malloc((size_t)(rows * 8) * sizeof *v), *sigma = malloc((size_t)(rows * 8) * sizeof *sigma);
  for (int64_t n = 0; n < rows; ++n)
    slots[n] = rows - 1 - n;
  make(&m, assay_op_kv_append());
  dense(&m, "k", ASSAY_F32, 3, shape, (void *)(uintptr_t)x);
  dense(&m, "v", ASSAY_F32, 3, shape, (void *)(uintptr_t)x);
  dense(&m, "slots", ASSAY_I64, 1, &rows, slots);
  dense(&m, "k_cache", cache, 4, pool, memory);
  dense(&m, "v_cache", cache, 4, pool, memory);
  if (cache != ASSAY_F32) {
    dense(&m, "k_scale", ASSAY_F32, 1, &one, &scale);
    dense(&m, "v_scale", ASSAY_F32, 1, &one, &scale);
  }
  assay_expected expected[2] = {{stored, sigma}, {v, sigma}};
  cr_assert(ask(&m, false, expected, text) == ASSAY_OK, "%s", text);
  for (int64_t i = 0; i < rows * 8; ++i)
    cr_assert(sigma[i] == 0 && (v[i] == stored[i] || isnan(v[i])));
  free(slots);
  free(memory);
  free(v);
  free(sigma);
}

static double number_of(uint8_t code, assay_dtype dtype) {
  return (double)(dtype == ASSAY_E4M3 ? assay_e4m3_to_f32(code) : assay_e5m2_to_f32(code));
}

/* Returns the finite code nearest to the quotient. A tie goes to the code whose last bit is 0, a zero keeps its sign.
 */
static double nearest(double quotient, assay_dtype dtype) {
  double best = 0, distance = (double)INFINITY;
  int best_code = 1;
  if (isnan(quotient)) return quotient;
  for (int code = 0; code < 256; ++code) {
    const double number = number_of((uint8_t)code, dtype);
    if (isnan(number) || isinf(number) || (signbit(number) != 0) != (signbit(quotient) != 0)) continue;
    const double away = fabs(quotient) > 1e6 ? -fabs(number) : fabs(number - quotient);
    if (away < distance || (away == distance && code % 2 == 0 && best_code % 2 != 0)) {
      best = number;
      distance = away;
      best_code = code;
    }
  }
  return best;
}

Test(kv_append, every_code_comes_back) {
  float x[256];
  double stored[256];
  const assay_dtype types[] = {ASSAY_E4M3, ASSAY_E5M2};
  const float scales[] = {1, 0.25F, 8};
  for (int t = 0; t < 2; ++t)
    for (int s = 0; s < 3; ++s) {
      for (int code = 0; code < 256; ++code)
        x[code] = (float)number_of((uint8_t)code, types[t]) * scales[s];
      append_rows(x, 32, scales[s], types[t], stored);
      for (int code = 0; code < 256; ++code) {
        const double number = number_of((uint8_t)code, types[t]);
        if (isinf(number))
          cr_assert(stored[code] == copysign(57344, number), "Inf saturates");
        else if (isnan(number))
          cr_assert(isnan(stored[code]));
        else
          cr_assert(stored[code] == number && signbit(stored[code]) == signbit(number), "code %d", code);
      }
    }
}

Test(kv_append, nearest_of_all_codes) {
  enum { COUNT = 8 * 1024 };
  static float x[COUNT];
  static double stored[COUNT];
  const assay_dtype types[] = {ASSAY_E4M3, ASSAY_E5M2};
  const float scales[] = {1, 0.37F, 3.1e-3F, 1.7F};
  assay_rng rng = {.seed = 5, .stream = 1};
  for (int t = 0; t < 2; ++t)
    for (int s = 0; s < 4; ++s) {
      for (int i = 0; i < COUNT; ++i) {
        const uint64_t word = assay_rng_u64(&rng);
        const double code = number_of((uint8_t)(word >> 8), types[t]),
                     next = number_of((uint8_t)((word >> 8) + 1), types[t]);
        /* a half between two codes, next to one, a code, anything */
        double q = (word & 3) == 0 ? (code + next) / 2 : (word & 3) == 1 ? (code + next) / 2 * (1 + 0x1p-22) : code;
        if ((word & 3) == 3) q = ldexp((double)(int64_t)(word >> 20) * 0x1p-44, (int)(word >> 4 & 15) * 3 - 20);
        if ((word >> 16 & 511) == 0) q = (word >> 25 & 1) != 0 ? 1e9 : -1e30;
        x[i] = (float)(q * (double)scales[s]);
      }
      append_rows(x, COUNT / 8, scales[s], types[t], stored);
      for (int i = 0; i < COUNT; ++i) {
        const double wanted = nearest((double)(x[i] / scales[s]), types[t]);
        cr_assert((isnan(wanted) && isnan(stored[i])) || stored[i] == wanted, "%a / %a: %a, not %a", (double)x[i],
                  (double)scales[s], stored[i], wanted);
      }
    }
}

Test(kv_append, other_types_are_copied) {
  float x[64];
  double stored[64];
  assay_rng rng = {.seed = 6, .stream = 1};
  for (int i = 0; i < 64; ++i)
    x[i] = (float)(assay_rng_unit(&rng) - 0.5);
  append_rows(x, 8, 3, ASSAY_F32, stored);
  for (int i = 0; i < 64; ++i)
    cr_assert(stored[i] == (double)x[i]);
}

Test(kv_append, bad_slots_are_refused) {
  hand_call m;
  char text[2048];
  const int64_t shape[3] = {3, 1, 8}, pool[4] = {2, 8, 1, 8}, three = 3;
  float x[24] = {0}, memory[128] = {0};
  double out[24], sigma[24];
  int64_t slots[3] = {4, -1, 4};
  make(&m, assay_op_kv_append());
  dense(&m, "k", ASSAY_F32, 3, shape, x);
  dense(&m, "v", ASSAY_F32, 3, shape, x);
  dense(&m, "slots", ASSAY_I64, 1, &three, slots);
  dense(&m, "k_cache", ASSAY_F32, 4, pool, memory);
  dense(&m, "v_cache", ASSAY_F32, 4, pool, memory);
  assay_expected expected[2] = {{out, sigma}, {out, sigma}};
  cr_assert(ask(&m, false, expected, text) == ASSAY_ERR_INPUT);
  cr_assert(strstr(text, "slots: found 4 for rows 0 and 2") != NULL, "%s", text);
  slots[2] = 16;
  cr_assert(ask(&m, false, expected, text) == ASSAY_ERR_INPUT);
  cr_assert(strstr(text, "slots: found 16 for row 2, allowed -1 to 15") != NULL, "%s", text);
  slots[2] = -2;
  cr_assert(ask(&m, false, expected, text) == ASSAY_ERR_INPUT);
  slots[2] = 15;
  cr_assert(ask(&m, false, expected, text) == ASSAY_OK, "%s", text);
  set_param(&m, "layout", 3);
  cr_assert(ask(&m, false, expected, text) == ASSAY_ERR_INPUT);
}

/* ---- copy_blocks ---- */

enum { LAYERS = 3, BLOCKS = 6, BLOCK = 8 * 2 * 8, POOL = LAYERS * BLOCKS * BLOCK, PAIRS = 3 };

static void copy_call(hand_call *m, uint16_t *k, uint16_t *v, int64_t *pairs) {
  const int64_t pool[5] = {LAYERS, BLOCKS, 8, 2, 8}, list[2] = {PAIRS, 2};
  make(m, assay_op_copy_blocks());
  dense(m, "k_cache", ASSAY_F16, 5, pool, k);
  dense(m, "v_cache", ASSAY_F16, 5, pool, v);
  dense(m, "pairs", ASSAY_I64, 2, list, pairs);
}

Test(copy_blocks, is_memcpy) {
  static uint16_t k[POOL], v[POOL], after[2][POOL];
  static double value[2][POOL], sigma[2][POOL];
  int64_t pairs[2 * PAIRS] = {4, 1, 4, 0, 2, 5};
  char text[2048];
  hand_call m;
  for (int i = 0; i < POOL; ++i) {
    k[i] = (uint16_t)(i * 31);
    v[i] = (uint16_t)(i * 57 + 9);
  }
  memcpy(after[0], k, sizeof k);
  memcpy(after[1], v, sizeof v);
  for (int which = 0; which < 2; ++which)
    for (int l = 0; l < LAYERS; ++l)
      for (int p = 0; p < PAIRS; ++p)
        memcpy(&after[which][(l * BLOCKS + pairs[2 * p + 1]) * BLOCK],
               &after[which][(l * BLOCKS + pairs[2 * p]) * BLOCK], BLOCK * 2);
  copy_call(&m, k, v, pairs);
  assay_expected expected[2] = {{value[0], sigma[0]}, {value[1], sigma[1]}};
  cr_assert(ask(&m, true, expected, text) == ASSAY_OK, "%s", text);
  for (int which = 0; which < 2; ++which)
    for (int i = 0; i < POOL; ++i) {
      const uint16_t *before = which == 0 ? k : v;
      cr_assert(sigma[which][i] == ASSAY_MOVED || sigma[which][i] == ASSAY_UNCHANGED);
      const int64_t from = sigma[which][i] == ASSAY_MOVED ? (int64_t)value[which][i] : i;
      cr_assert(after[which][i] == before[from], "element %d", i);
    }
}

Test(copy_blocks, bad_pairs_are_refused) {
  static uint16_t k[POOL], v[POOL];
  static double value[POOL], sigma[POOL];
  const int64_t bad[][2 * PAIRS] = {{4, 1, 3, 1, 2, 5}, {4, 1, 1, 0, 2, 5},  {4, 4, 1, 0, 2, 5},
                                    {4, 1, 6, 0, 2, 5}, {4, 1, 3, 0, 2, -1}, {1, 4, 4, 0, 2, 5}};
  char text[2048];
  hand_call m;
  assay_expected expected[2] = {{value, sigma}, {value, sigma}};
  for (size_t i = 0; i < sizeof bad / sizeof bad[0]; ++i) {
    int64_t pairs[2 * PAIRS];
    memcpy(pairs, bad[i], sizeof pairs);
    copy_call(&m, k, v, pairs);
    cr_assert(ask(&m, true, expected, text) == ASSAY_ERR_INPUT, "list %zu", i);
    cr_assert(strncmp(text, "pairs: found block ", 19) == 0, "%s", text);
  }
}

/* ---- merge_states, gate_reduce ---- */

enum { KEYS = 60, D = 8, SPLITS = 4, HEADS = 3 };

/* Scores and V of a head; results of splits of 15 keys, and of all keys at once. Head 1 has an empty second split, head
 * 2 has nothing. */
typedef struct states {
  float o[SPLITS * HEADS * D], lse[SPLITS * HEADS];
  double out[HEADS * D], total[HEADS];
} states;

static bool in_split(int64_t head, int64_t key, int64_t split) {
  if (head == 2 || (head == 1 && split == 1)) return false;
  return key / 15 == split;
}

static void make_states(states *s) {
  double score[KEYS], v[KEYS * D];
  for (int64_t h = 0; h < HEADS; ++h) {
    assay_rng_normals(11, (uint64_t)h, score, KEYS);
    assay_rng_normals(12, (uint64_t)h, v, KEYS * D);
    double all[D] = {0}, sum = 0;
    for (int64_t b = 0; b < SPLITS; ++b) {
      double part[D] = {0}, part_sum = 0;
      for (int64_t t = 0; t < KEYS; ++t) {
        if (!in_split(h, t, b)) continue;
        const double e = exp(4 * score[t]);
        part_sum += e;
        for (int64_t d = 0; d < D; ++d)
          part[d] += e * v[t * D + d];
      }
      s->lse[b * HEADS + h] = (float)log(part_sum);
      for (int64_t d = 0; d < D; ++d) {
        s->o[(b * HEADS + h) * D + d] = part_sum > 0 ? (float)(part[d] / part_sum) : d % 2 == 0 ? NAN : INFINITY;
        all[d] += part[d];
      }
      sum += part_sum;
    }
    s->total[h] = log(sum);
    for (int64_t d = 0; d < D; ++d)
      s->out[h * D + d] = sum > 0 ? all[d] / sum : 0;
  }
}

static void merge_with(float *o, float *lse, float *sink, double *out, double *sigma, double *total) {
  hand_call m;
  char text[2048];
  double total_sigma[HEADS];
  const int64_t shape[4] = {SPLITS, 1, HEADS, D};
  float memory[HEADS * D];
  make(&m, assay_op_merge_states());
  dense(&m, "o", ASSAY_F32, 4, shape, o);
  dense(&m, "lse", ASSAY_F32, 3, shape, lse);
  if (sink != NULL) dense(&m, "sink", ASSAY_F32, 1, shape + 2, sink);
  dense(&m, "out", ASSAY_F32, 3, shape + 1, memory);
  dense(&m, "lse_out", ASSAY_F32, 2, shape + 1, memory);
  assay_expected expected[2] = {{out, sigma}, {total, total_sigma}};
  cr_assert(ask(&m, false, expected, text) == ASSAY_OK, "%s", text);
  for (int h = 0; h < HEADS; ++h)
    cr_assert(isinf(total[h]) ? total_sigma[h] == 0 : total_sigma[h] > 0 && total_sigma[h] < 1e-5);
}

static void merge(float *o, float *lse, double *out, double *sigma, double *total) {
  merge_with(o, lse, NULL, out, sigma, total);
}

/* The sink takes its share of the result and of nothing else: out is the share that is left, lse stays. A sink of -Inf
 * changes nothing at all. */
Test(merge_states, a_sink_takes_its_share_once) {
  states s;
  float sink[HEADS] = {1.5F, -INFINITY, 3};
  double plain[HEADS * D], out[HEADS * D], sigma[HEADS * D], plain_total[HEADS], total[HEADS];
  make_states(&s);
  merge(s.o, s.lse, plain, sigma, plain_total);
  merge_with(s.o, s.lse, sink, out, sigma, total);
  for (int h = 0; h < HEADS; ++h) {
    const double left = isinf(plain_total[h]) ? 0 : 1 / (1 + exp((double)sink[h] - plain_total[h]));
    cr_assert_eq(total[h], plain_total[h]);
    for (int d = 0; d < D; ++d)
      cr_assert(fabs(out[h * D + d] - left * plain[h * D + d]) <= 1e-14, "head %d", h);
  }
  for (int d = 0; d < D; ++d)
    cr_assert_eq(out[D + d], plain[D + d]);
}

Test(merge_states, is_attention_over_all_keys) {
  states s;
  double out[HEADS * D], sigma[HEADS * D], total[HEADS];
  make_states(&s);
  merge(s.o, s.lse, out, sigma, total);
  for (int i = 0; i < HEADS * D; ++i)
    cr_assert(fabs(out[i] - s.out[i]) <= 1e-6, "%d: %g, not %g", i, out[i], s.out[i]);
  cr_assert(fabs(total[0] - s.total[0]) <= 1e-5 && fabs(total[1] - s.total[1]) <= 1e-5);
  cr_assert(isinf(total[2]) && total[2] < 0);
  for (int d = 0; d < D; ++d)
    cr_assert(out[2 * D + d] == 0 && sigma[2 * D + d] == 0 && sigma[d] > 0);
}

Test(merge_states, weights_add_up_and_order_is_nothing) {
  states s;
  double out[HEADS * D], sigma[HEADS * D], total[HEADS], again[HEADS * D], again_sigma[HEADS * D], again_total[HEADS];
  float o[SPLITS * HEADS * D], lse[SPLITS * HEADS];
  const int order[SPLITS] = {2, 0, 3, 1};
  make_states(&s);
  merge(s.o, s.lse, out, sigma, total);
  for (int b = 0; b < SPLITS; ++b) {
    memcpy(&o[b * HEADS * D], &s.o[order[b] * HEADS * D], sizeof *o * HEADS * D);
    memcpy(&lse[b * HEADS], &s.lse[order[b] * HEADS], sizeof *lse * HEADS);
  }
  merge(o, lse, again, again_sigma, again_total);
  for (int i = 0; i < HEADS * D; ++i) { /* sigma follows the sums in the order of the splits */
    cr_assert(fabs(out[i] - again[i]) <= 1e-14, "%d: %g, %g", i, out[i], again[i]);
    cr_assert(fabs(sigma[i] - again_sigma[i]) <= 0.02 * sigma[i], "%d: sigma %g, %g", i, sigma[i], again_sigma[i]);
  }
  for (int i = 0; i < SPLITS * HEADS * D; ++i)
    o[i] = 1;
  merge(o, lse, out, sigma, total);
  for (int i = 0; i < 2 * D; ++i)
    cr_assert(fabs(out[i] - 1) <= 1e-15);
}

Test(merge_states, bad_logarithms_are_refused) {
  states s;
  hand_call m;
  char text[2048];
  double out[HEADS * D], sigma[HEADS * D];
  float memory[HEADS * D];
  const int64_t shape[4] = {SPLITS, 1, HEADS, D};
  make_states(&s);
  make(&m, assay_op_merge_states());
  dense(&m, "o", ASSAY_F32, 4, shape, s.o);
  dense(&m, "lse", ASSAY_F32, 3, shape, s.lse);
  dense(&m, "out", ASSAY_F32, 3, shape + 1, memory);
  assay_expected expected = {out, sigma};
  cr_assert(ask(&m, false, &expected, text) == ASSAY_OK, "%s", text);
  s.lse[4] = NAN;
  cr_assert(ask(&m, false, &expected, text) == ASSAY_ERR_INPUT && strstr(text, "lse: found") != NULL, "%s", text);
  s.lse[4] = INFINITY;
  cr_assert(ask(&m, false, &expected, text) == ASSAY_ERR_INPUT);
  s.lse[4] = 0;
  cr_assert(ask(&m, true, &expected, text) == ASSAY_ERR_INPUT && strstr(text, "exact tier: out") != NULL, "%s", text);
}

Test(gate_reduce, parts_add_up_in_any_order) {
  enum { PARTS = 6, WIDTH = 16 };
  double p[KEYS], v[KEYS * WIDTH], whole[WIDTH] = {0}, out[WIDTH], sigma[WIDTH];
  float part[PARTS * WIDTH], memory[WIDTH];
  char text[2048];
  const int64_t shape[4] = {PARTS, 1, 2, 8};
  hand_call m;
  assay_rng_normals(13, 1, p, KEYS);
  assay_rng_normals(13, 2, v, KEYS * WIDTH);
  for (int b = 0; b < PARTS; ++b)
    for (int d = 0; d < WIDTH; ++d) {
      double sum = 0;
      for (int t = b * 10; t < b * 10 + 10; ++t)
        sum += p[t] * v[t * WIDTH + d];
      part[((b * 5 + 2) % PARTS) * WIDTH + d] = (float)sum; /* not in their order */
      whole[d] += sum;
    }
  make(&m, assay_op_gate_reduce());
  dense(&m, "partial", ASSAY_F32, 4, shape, part);
  dense(&m, "out", ASSAY_F32, 3, shape + 1, memory);
  assay_expected expected = {out, sigma};
  cr_assert(ask(&m, false, &expected, text) == ASSAY_OK, "%s", text);
  for (int d = 0; d < WIDTH; ++d) {
    float f32 = 0;
    for (int b = 0; b < PARTS; ++b)
      f32 += part[b * WIDTH + d];
    cr_assert(fabs(out[d] - whole[d]) <= 1e-5);
    cr_assert(sigma[d] > 0 && fabs((double)f32 - out[d]) <= 5 * sigma[d]);
  }
  cr_assert(ask(&m, true, &expected, text) == ASSAY_ERR_INPUT && strstr(text, "sum |partial|") != NULL, "%s", text);
  for (int i = 0; i < PARTS * WIDTH; ++i)
    part[i] = (float)(i % 17) * 0.125F;
  cr_assert(ask(&m, true, &expected, text) == ASSAY_OK, "%s", text);
}
