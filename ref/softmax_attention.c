/* softmax_attention: scaled dot-product attention over a paged cache. For row n of request i at position last = P_i +
 * n, head h reading kv head h / G, and the keys t that the mask leaves:
 *
 *   s_t = scale · (q · k_t)     s_t <- cap · tanh(s_t / cap)  (soft cap)     s_t <- s_t + slope_h · (t - last)  (ALiBi)
 *   m = max s_t      l = sum_t exp(s_t - m)      p_t = exp(s_t - m) / (l + exp(sink_h - m))      out = sum_t p_t v_t
 *   lse = m + ln l
 *
 * in this order. The sink is a term of the denominator alone: no score, no mask, no V and no part of lse. The mask is
 * t <= last, t > last - window, t / chunk = last / chunk, and the block-sparse rule (attention_sees). A row without
 * keys has out = 0, lse = -inf. q and k have D channels, v and out D_v. Packed bits may take the place of t <= last.
 * Source: Vaswani et al. 2017, equation 1. The soft cap is as in Gemma 2, ALiBi as in Press et al. 2022, and the sink
 * as in gpt-oss. Corners are as in docs/definitions.md, section 2.1. */
#include <float.h>
#include <math.h>
#include <stdlib.h>

#include "core/dtype.h"
#include "core/wide.h"
#include "ref/lib/attention.h"
#include "ref/lib/attention_inputs.h"
#include "ref/lib/attention_spoil.h"
#include "ref/lib/error_model.h"
#include "ref/lib/lattice.h"
#include "ref/lib/paged_tables.h"
#include "ref/lib/vector.h"

enum { ARG_SLOPES = ARG_OWN, ARG_OUT, ARG_LSE, ARG_SINK, ARG_PARENT, ARG_MASK, ARG_MASK_PTR, ARG_COUNT };
enum {
  PARAM_SOFTCAP = PARAM_OWN,
  PARAM_SPARSE_BLOCK,
  PARAM_SPARSE_LOCAL,
  PARAM_SPARSE_STRIDE,
  PARAM_SPARSE_SLIDE,
  PARAM_TP_RANK,
  PARAM_CHUNK,
  PARAM_COUNT
};

/* On the exact tier every other score lies this far below the maximum: exp is surely 0 in f32. */
static const double far_below = -800;
static const double least_normal = 0x1p-126; /* smallest normal f32 number */

const assay_op *assay_op_softmax_attention(void);

/* One row. `key` numbers the keys that its mask leaves; s, p and e are indexed by the place in that list. */
typedef struct softmax_row {
  int64_t keys, D, D_v, own, last;    /* own: the row's own key; last: its position */
  const int64_t *key;                 /* [keys] ascending */
  const int64_t *position;            /* [keys] */
  double scale, softcap, slope, sink; /* sink -inf: none */
  const double *q, *k, *v;            /* [D]; key t at (t - origin)·D of k and (t - origin)·D_v of v */
  int64_t origin;
  double *dot, *s, *e, *p;     /* [keys] scaled dot product, final score, exp(s - m), e / whole */
  double max, sum, whole, lse; /* sum: of e; whole: with the sink's term */
  double *y;                   /* [D_v] */
} softmax_row;

/* In a tree (parent) the keys of the new tokens that a row sees are its own and its ancestors'. Positions count
 * ancestors. */

/* ---- the definition ---------------------------------------------------------------------------------- */

ASSAY_WIDE static void softmax_attention(softmax_row *row) {
  const int64_t D = row->D, D_v = row->D_v;
  row->max = -(double)INFINITY;
  row->sum = 0;
  vector_zero(row->y, D_v);
  for (int64_t i = 0; i < row->keys; ++i) {
    const int64_t t = row->key[i];
    double s = row->scale * vector_dot(row->q, row->k + (t - row->origin) * D, D);
    row->dot[i] = s;
    if (row->softcap > 0) s = row->softcap * tanh(s / row->softcap);
    s += row->slope * (double)(row->position[i] - row->last);
    row->s[i] = s;
    if (!(s <= row->max)) row->max = s; /* a NaN stays */
  }
  for (int64_t i = 0; i < row->keys; ++i) {
    row->e[i] = exp(row->s[i] - row->max);
    row->sum += row->e[i];
  }
  row->whole = row->sum + exp(row->sink - row->max);
  for (int64_t i = 0; i < row->keys; ++i) {
    row->p[i] = row->e[i] / row->whole;
    vector_add(row->y, row->p[i], row->v + (row->key[i] - row->origin) * D_v, D_v);
  }
  row->lse = row->keys > 0 ? row->max + log(row->sum) : -(double)INFINITY;
}

/* ---- the error model --------------------------------------------------------------------------------- */

typedef struct softmax_error {
  double
      *weight; /* [keys] relative variance of p before normalising: of the score, of exp's argument and of its value */
  double *split; /* [D_v] */
  key_sum sum;   /* the sum of exp(s - m) v */
  key_sum total; /* the sum of exp(s - m): one channel */
  equal_terms equal;
  void *slots; /* the memory of `equal` */
  bool k_rounded, v_rounded;
  const assay_contract *contract;
  assay_dtype out;
} softmax_error;

/* Computes the weights' variances. The score has the dot product, the scale and its product. The soft cap follows; its
 * slope shrinks the errors before it. slope·distance and its sum follow. Then come s - m and its conversion for a power
 * of two, each a rounding of its size, and exp itself. */
ASSAY_WIDE static void softmax_weights(const softmax_row *row, const softmax_error *e) {
  const assay_contract *c = e->contract;
  const int64_t D = row->D;
  for (int64_t i = 0; i < row->keys; ++i) {
    const double *k = row->k + (row->key[i] - row->origin) * D, s = row->s[i];
    const double dot = dot_variance(c, D, row->q, k, e->out, e->k_rounded);
    double variance = row->scale * row->scale * dot + 2 * f32_variance * row->dot[i] * row->dot[i];
    if (row->softcap > 0) {
      const double h = tanh(row->dot[i] / row->softcap), capped = row->softcap * h, rest = 1 - h * h;
      variance += f32_variance * row->dot[i] * row->dot[i];
      variance = variance * rest * rest + capped * capped * (function_variance(c->exp_ulp) + f32_variance);
    }
    const double bias = row->slope * (double)(row->position[i] - row->last);
    if (bias != 0) variance += f32_variance * (bias * bias + s * s);
    if (c->score != ASSAY_NONE) variance += storing_variance(s, c->score);
    const double argument = s - row->max;
    e->weight[i] = variance + 2 * f32_variance * argument * argument + function_variance(c->exp_ulp);
  }
}

/* Returns the variance of stored split partials o_b and lse_b. y = sum_b W_b o_b with W_b = share_b sum / whole and
 * share_b = exp(lse_b - lse). The weight's error moves y by W_b (o_b - y). split[D_v] = Y_b = W_b o_b. */
ASSAY_WIDE static double softmax_splits(const softmax_row *row, const softmax_error *e, double *variance) {
  const assay_contract *c = e->contract;
  const int64_t D = row->D_v;
  double lse_variance = 0;
  for (int64_t i = 0; i < row->keys;) {
    const int64_t b = row->key[i] / c->keys_per_split;
    double W = 0, share = 0;
    vector_zero(e->split, D);
    for (; i < row->keys && row->key[i] / c->keys_per_split == b; ++i) {
      W += row->p[i];
      share += row->e[i] / row->sum;
      vector_add(e->split, row->p[i], row->v + (row->key[i] - row->origin) * D, D);
    }
    if (!(share > 0)) continue;
    const double lse = row->lse + log(share), argument = lse - row->lse;
    const double weight = storing_variance(lse, ASSAY_F32) + storing_variance(row->lse, ASSAY_F32) +
                          2 * f32_variance * argument * argument + 2 * function_variance(c->exp_ulp);
    lse_variance += share * share * weight;
    if (!(W > 0)) continue; /* the sink is all of the sum */
    for (int64_t d = 0; d < D; ++d) {
      const double Y = e->split[d], moved = Y - W * row->y[d];
      double stored = f32_variance * Y * Y; /* o_b normalised, then weighted */
      if (c->partial != ASSAY_NONE && c->partial != ASSAY_F32) stored += W * W * rounding_variance(Y / W, c->partial);
      variance[d] += weight * moved * moved + 2 * stored;
    }
  }
  return lse_variance;
}

/* Returns the relative variance of the sink's term: s - m and exp, as for a score, and the conversions of both to
 * another base. The sink is not rounded to the type of the weights. */
static double sink_weight(const softmax_row *row, const assay_contract *c) {
  const double argument = row->sink - row->max;
  return f32_variance * (2 * argument * argument + row->sink * row->sink + row->max * row->max) +
         function_variance(c->exp_ulp);
}

/* Adds the variance that a sink brings to sigma[D_v]: its term moves y towards 0. The sums are rescaled to the larger
 * of sink and maximum, and the term is added. A subnormal factor exp(m - sink) errs by units of the least subnormal. */
static void sink_sigma(const softmax_row *row, softmax_error *e, double *sigma) {
  const double p = 1 - row->sum / row->whole; /* also where exp(sink - m) is infinite */
  const double relative = 3 * f32_variance + sink_weight(row, e->contract) * p * p;
  for (int64_t d = 0; d < row->D_v && p > 0; ++d)
    sigma[d] += relative * row->y[d] * row->y[d];
  if (!(exp(row->max - row->sink) < least_normal)) return;
  const double shrink = exp(row->max - row->sink), units = e->contract->exp_ulp * 0x1p-149;
  const double variance = exp_may_flush(e->contract) ? shrink * shrink : units * units / 3;
  vector_zero(e->split, row->D_v);
  for (int64_t i = 0; i < row->keys; ++i)
    vector_add(e->split, row->e[i], row->v + (row->key[i] - row->origin) * row->D_v, row->D_v);
  for (int64_t d = 0; d < row->D_v; ++d)
    sigma[d] += variance * (e->split[d] * e->split[d] + 1);
}

/* Computes
 *   sigma^2 = sum_t weight_t p_t^2 (v_t - y)^2 + sum_t (r(p_t)^2 + p_t^2 r(v)^2) v_t^2 + A
 *           + y^2 (denominator: its sum, its reciprocal, a constant added) + sink + splits + r(y)^2
 *
 * Sums are those of a kernel, of exp(s - m): terms are lost at that sum's ulp. Below the normal numbers exp errs by
 * units of the least subnormal, or is 0 (exp_may_flush). Equal weights (a soft cap) err alike, in the denominator's
 * additions and in exp. lse has the relative variance of the sum, the logarithm, and two roundings. */
ASSAY_WIDE static void softmax_sigma(const softmax_row *row, softmax_error *e, double *sigma, double *lse_sigma) {
  const assay_contract *c = e->contract;
  const int64_t D = row->D_v;
  const double one = 1, whole = row->whole < 0x1p1000 ? row->whole : 0x1p1000; /* infinite far below a sink */
  vector_zero(sigma, D);
  key_sum_start(&e->sum, row->y, whole);
  key_sum_start(&e->total, &one, row->sum);
  equal_terms_start(&e->equal, row->keys, e->slots);
  if (lse_sigma != NULL) *lse_sigma = 0;
  if (row->keys == 0) return;
  const double v_variance = e->v_rounded ? f32_variance * ldexp(1, 2 * (24 - lattice_width(c->v))) : 0;
  const double least = c->exp_ulp * 0x1p-149 / whole, subnormal = least * least / 3;
  const double share = row->sum / whole; /* 1 without a sink */
  double sum_variance = 0;
  for (int64_t i = 0; i < row->keys; ++i) {
    const double p = row->p[i], of_keys = row->e[i] / row->sum, *v = row->v + (row->key[i] - row->origin) * D;
    if (!(of_keys != 0)) continue;
    const double moves = e->weight[i] * p * p;
    double own = p * p * v_variance;
    if (row->e[i] < least_normal) own += exp_may_flush(c) ? row->e[i] * row->e[i] / (whole * whole) : subnormal;
    /* The largest weight is 1, which rounding keeps, only where the running maximum is exact. A kernel may raise it
     * late. A row of one key has its maximum at once. */
    if (c->p != ASSAY_NONE)
      own += (row->keys > 1 ? storing_variance(row->e[i], c->p) : rounding_variance(row->e[i], c->p)) / (whole * whole);
    else
      own += c->p_step * c->p_step / 12 / (whole * whole); /* parts of f32 weights, the last of which ends there */
    sum_variance += e->weight[i] * of_keys * of_keys;
    for (int64_t d = 0; d < D; ++d) {
      const double from_mean = v[d] - row->y[d];
      sigma[d] += moves * (from_mean * from_mean) + own * (v[d] * v[d]);
    }
    key_sum_add(&e->sum, row->key[i], row->e[i], v);
    key_sum_add(&e->total, row->key[i], row->e[i], &one);
    equal_terms_add(&e->equal, row->e[i], key_sum_running(&e->total));
  }
  const double added = c->denominator_add / whole;
  double total = 0; /* relative variance of the sum by which all channels are divided */
  key_sum_finish(&e->total, row->keys, &total);
  total += equal_terms_additions(&e->equal) / (row->sum * row->sum);
  sum_variance += function_variance(c->exp_ulp) * equal_terms_shared(&e->equal) / (row->sum * row->sum);
  const double denominator = total * share * share + 2 * f32_variance + added * added;
  double split_variance = 0;
  if (c->keys_per_split > 0 && row->own >= c->keys_per_split) split_variance = softmax_splits(row, e, sigma);
  key_sum_finish(&e->sum, row->keys, sigma);
  if (row->sink > -(double)INFINITY) sink_sigma(row, e, sigma);
  for (int64_t d = 0; d < D; ++d) {
    const double y = row->y[d];
    if (e->sum.abs[d] != 0) sigma[d] += y * y * denominator + storing_variance(y, e->out);
    sigma[d] = sqrt(sigma[d]);
  }
  if (lse_sigma == NULL) return;
  const double logarithm = row->lse - row->max;
  const double of_sum = c->denominator_add / row->sum;
  *lse_sigma = sqrt(sum_variance + split_variance + total + of_sum * of_sum +
                    function_variance(c->exp_ulp) * logarithm * logarithm + storing_variance(logarithm, ASSAY_F32) +
                    2 * storing_variance(row->lse, ASSAY_F32));
}

/* Writes lse as the contract gives it, and its sigma. The definition's is natural, without the sink, and -inf for a row
 * without keys. */
static void give_lse(const softmax_row *row, const assay_contract *c, double *value, double *sigma) {
  static const double log2_e = 1.4426950408889634;
  double lse = row->lse, variance = sigma != NULL ? *sigma * *sigma : 0;
  if (c->lse_sink == ASSAY_LSE_WITH_SINK && row->sink > -(double)INFINITY) {
    const double top = lse > row->sink ? lse : row->sink, p = exp(row->sink - top), of_keys = exp(lse - top);
    const double share = of_keys / (of_keys + p);
    lse = top + log(of_keys + p);
    if (row->keys > 0)
      variance = variance * share * share + sink_weight(row, c) * (1 - share) * (1 - share) +
                 2 * storing_variance(lse, ASSAY_F32) + f32_variance;
    else
      variance = 2 * storing_variance(lse, ASSAY_F32);
  }
  if (c->lse_base == ASSAY_LSE_BASE_2) {
    lse *= log2_e;
    variance = variance * log2_e * log2_e + 2 * storing_variance(lse, ASSAY_F32);
  }
  const bool empty = lse == -(double)INFINITY;
  *value = empty && c->lse_empty == ASSAY_LSE_EMPTY_PLUS ? (double)INFINITY : lse;
  if (sigma != NULL) *sigma = empty ? 0 : sqrt(variance);
}

/* ---- the exact tier ---------------------------------------------------------------------------------- */

/* Admits a row to the exact tier. q·k is exact. Scores are exactly 0, or at -800 or below. The sink is 0 as well, or
 * 800 above, or as far below, or absent. It is above all scores, or else 2^m of the scores and the sink are 0. V > 0 is
 * summed exactly. The mean is representable in the output's type. */
ASSAY_WIDE static assay_status softmax_admit(const softmax_row *row, const attention_row *at, const softmax_error *e,
                                             assay_error *error) {
  const int64_t D = row->D, D_v = row->D_v;
  const assay_contract *c = e->contract;
  const int q_low = lattice_low_row(row->q, D);
  int v_low = LATTICE_ZERO;
  int64_t matches = 0;
  vector_zero(e->sum.abs, D_v);
  const bool alone = row->sink >= -far_below, counts = row->sink == 0;
  if (!alone && !counts && !(row->sink <= far_below)) return attention_refuse(at, "sink", row->sink, 0, error);
  if (row->keys > 0 && row->max != 0 && !alone && !counts)
    return attention_refuse(at, "largest score", row->max, 0, error);
  for (int64_t i = 0; i < row->keys; ++i) {
    const int64_t place = row->key[i] - row->origin;
    const double sum = vector_dot_abs(row->q, row->k + place * D, D), *v = row->v + place * D_v;
    const int low = q_low + at->k_low[place];
    if (!lattice_admits(sum, low, 24)) return attention_refuse(at, "sum |q k|", sum, ldexp(1, 24 + low), error);
    if (row->s[i] != 0 && !(row->s[i] <= far_below))
      return attention_refuse(at, "score below the largest", row->s[i], far_below, error);
    int64_t outside = 0;
    for (int64_t d = 0; d < D_v; ++d)
      outside |= !(v[d] > 0) | !(v[d] <= DBL_MAX);
    for (int64_t d = 0; d < D_v && outside != 0; ++d)
      if (!(v[d] > 0) || !assay_is_finite(v[d])) return attention_refuse(at, "least V", v[d], 0, error);
    if (row->s[i] != 0) continue;
    ++matches;
    if (at->v_low[place] < v_low) v_low = at->v_low[place];
    vector_add_abs(e->sum.abs, 1, v, D_v);
  }
  if (alone) return ASSAY_OK;
  const int64_t terms = matches + counts;
  if ((terms & (terms - 1)) != 0)
    return attention_refuse(at, "keys at the maximum, and the sink (allowed: a power of two)", (double)terms, 1, error);
  for (int64_t d = 0; d < D_v && matches > 0; ++d) {
    if (!lattice_admits(e->sum.abs[d], v_low, lattice_width(c->partial)))
      return attention_refuse(at, "sum of V", e->sum.abs[d], ldexp(1, lattice_width(c->partial) + v_low), error);
    const double stored = assay_round_f64(row->y[d], e->out);
    if (stored != row->y[d]) return attention_refuse(at, "out in its type", row->y[d], stored, error);
  }
  return ASSAY_OK;
}

/* ---- adapter ----------------------------------------------------------------------------------------- */

typedef struct softmax_run {
  attention a;
  softmax_error error;
  const float *slopes;      /* NULL: none */
  const assay_tensor *sink; /* NULL: none */
  double softcap;
  bool exact;
  assay_expected *expected;
  bool lse;
  assay_seen *seen;
  const attention_spoil *planted; /* NULL: no planted error */
  double *memory;
  int64_t *key, *position;
  int64_t capacity;
  softmax_row row;
} softmax_run;

static assay_status reserve(softmax_run *run, int64_t keys, assay_error *error) {
  if (run->memory != NULL && keys <= run->capacity) return ASSAY_OK;
  const int64_t D = run->a.D_v;
  free(run->memory);
  free(run->key);
  free(run->error.slots);
  const assay_contract *c = run->error.contract;
  run->capacity = keys;
  run->memory = malloc((size_t)(5 * keys + D + key_sum_room(c, D) + key_sum_room(c, 1)) * sizeof *run->memory);
  run->key = malloc((size_t)(2 * keys + 1) * sizeof *run->key);
  run->error.slots = malloc((size_t)equal_terms_room(keys));
  if (run->memory == NULL || run->key == NULL || run->error.slots == NULL)
    return assay_fail(error, ASSAY_ERR_MEMORY, "softmax_attention reference: %lld scores do not fit in memory",
                      (long long)keys);
  double *at = run->memory;
  double **const array[] = {&run->row.dot, &run->row.s, &run->row.e, &run->row.p, &run->error.weight};
  for (size_t i = 0; i < sizeof array / sizeof array[0]; ++i, at += keys)
    *array[i] = at;
  run->error.split = at;
  key_sum_place(&run->error.sum, c, D, at + D);
  run->error.sum.bits = cut_bits(run->error.out);
  key_sum_place(&run->error.total, c, 1, at + D + key_sum_room(c, D));
  run->row.key = run->key;
  run->row.position = run->position = run->key + keys;
  return ASSAY_OK;
}

/* Applies a planted error: averages the splits' results as if they had the same weight. lse is that of the last
 * split. */
static void average_splits(softmax_run *run) {
  softmax_row part = run->row;
  const int64_t D = part.D_v, split = run->planted->split;
  double *sum = run->error.split, parts = 0;
  vector_zero(sum, D);
  for (int64_t i = 0; i < run->row.keys; part.key += part.keys, part.position += part.keys, parts += 1) {
    const int64_t begin = i;
    while (i < run->row.keys && run->key[i] / split == run->key[begin] / split)
      ++i;
    part.keys = i - begin;
    if (part.keys == run->row.keys) return;
    softmax_attention(&part);
    vector_add(sum, 1, part.y, D);
  }
  if (parts == 0) return;
  for (int64_t d = 0; d < D; ++d)
    run->row.y[d] = sum[d] / parts;
  run->row.lse = part.lse;
}

/* Applies a planted error. The sink is counted once in every split of the row, or its term has V of the first key. A
 * sink that was scaled may be so far above all scores that exp is subnormal, which counts as 0. */
static void spoil_sink(softmax_run *run, const attention_row *at) {
  softmax_row *row = &run->row;
  const attention_spoil *s = run->planted;
  if (row->keys == 0 || !(row->sink > -(double)INFINITY)) return;
  const double p = exp(row->sink - row->max) / row->whole;
  if (s->kind == SPOIL_SINK_PER_SPLIT) {
    const int64_t splits = (at->end - 1) / s->split - at->first / s->split + 1;
    if (splits == 1) return;
    row->sink += log((double)splits);
    softmax_attention(row);
  } else if (s->kind == SPOIL_SINK_ON_KEY_0 && p > 0) {
    vector_add(row->y, p < 1 ? p : 1, row->v + (row->key[0] - row->origin) * row->D_v, row->D_v);
  } else if (s->kind == SPOIL_SINK_SCALED && exp(row->max - row->sink) < least_normal) {
    vector_zero(row->y, row->D_v);
  }
}

static assay_status visit(void *context, const attention_row *at, assay_error *error) {
  softmax_run *run = context;
  const int64_t D = run->a.D_v;
  const int64_t most = at->first < at->end ? at->end - at->first : 0;
  assay_status status = reserve(run, run->planted != NULL ? 2 * most : most, error);
  if (status != ASSAY_OK) return status;
  run->row.keys = 0;
  for (int64_t t = at->first; t < at->end; ++t)
    for (int times = attention_spoil_times(run->planted, at, t); times > 0; --times)
      if (attention_place_sees(&run->a, &at->place, at->head, t)) run->key[run->row.keys++] = t;
  for (int64_t i = 0; i < run->row.keys; ++i)
    run->position[i] = attention_position(&run->a, &at->place, run->key[i]);
  run->row.own = attention_last_key(&run->a, &at->place, at->place.keys);
  run->row.last = at->last;
  run->row.slope = run->slopes != NULL ? (double)run->slopes[at->head] : 0;
  run->row.sink = run->sink != NULL ? assay_load_f64(run->sink->data, run->sink->dtype, at->head) : -(double)INFINITY;
  run->row.q = at->q;
  run->row.k = at->k;
  run->row.v = at->v;
  run->row.origin = at->origin;
  run->row.y = run->expected[0].value + at->output * D;
  softmax_attention(&run->row);
  if (run->planted != NULL && run->planted->kind == SPOIL_LSE_NOT_MERGED) average_splits(run);
  if (run->planted != NULL) spoil_sink(run, at);
  if (run->exact) status = softmax_admit(&run->row, at, &run->error, error);
  if (status != ASSAY_OK) return status;
  double *sigma = run->expected[0].sigma, *lse_sigma = run->lse ? run->expected[1].sigma : NULL;
  if (sigma != NULL) {
    softmax_weights(&run->row, &run->error);
    softmax_sigma(&run->row, &run->error, sigma + at->output * D, lse_sigma != NULL ? lse_sigma + at->output : NULL);
  }
  if (run->lse)
    give_lse(&run->row, run->error.contract, run->expected[1].value + at->output,
             lse_sigma != NULL ? lse_sigma + at->output : NULL);
  if (run->seen == NULL) return ASSAY_OK;
  run->seen->visible_keys += run->row.keys;
  for (int64_t i = 0; i < run->row.keys; ++i) {
    run->seen->live_keys += run->row.p[i] != 0;
    attention_need(&run->a, at, run->row.key[i], run->seen);
  }
  return ASSAY_OK;
}

/* Refuses sinks that are no terms of a sum. */
static assay_status check_sink(const assay_tensor *sink, assay_error *error) {
  for (int64_t h = 0; sink != NULL && h < sink->shape[0]; ++h) {
    const double value = assay_load_f64(sink->data, sink->dtype, h);
    if (!(value < (double)INFINITY))
      return assay_fail(error, ASSAY_ERR_INPUT, "sink: found %g for head %lld, allowed finite numbers and -inf", value,
                        (long long)h);
  }
  return ASSAY_OK;
}

/* Refuses parameters that only tier 2 can judge. */
static assay_status admit_call(const assay_call *call, const attention *a, assay_error *error) {
  if (a->q->dtype != ASSAY_F16 && a->q->dtype != ASSAY_BF16)
    return assay_fail(error, ASSAY_ERR_INPUT, "exact tier: out: found type %s, allowed f16, bf16",
                      assay_dtype_name(a->q->dtype));
  if (call->param[PARAM_SOFTCAP] > 0)
    return assay_fail(error, ASSAY_ERR_INPUT, "exact tier: softcap: found %g, allowed 0 (off)",
                      call->param[PARAM_SOFTCAP]);
  for (int32_t arg = ARG_SLOPES; arg <= ARG_LSE; arg += ARG_LSE - ARG_SLOPES)
    if (call->arg[arg].data != NULL)
      return assay_fail(error, ASSAY_ERR_INPUT, "exact tier: %s: found one, allowed none", call->op->args[arg].name);
  if (!attention_scales_exact(a->k_scale) || !attention_scales_exact(a->v_scale))
    return assay_fail(error, ASSAY_ERR_INPUT, "exact tier: k_scale, v_scale: found a factor that is no power of two");
  return ASSAY_OK;
}

static assay_status compute(const assay_call *call, const attention_spoil *planted, const assay_contract *contract,
                            const assay_rows *rows, bool exact, assay_expected *expected, assay_seen *seen,
                            assay_error *error) {
  attention a = attention_of(call);
  if (planted != NULL) a.reach = planted->reach;
  a.by_index = planted != NULL && planted->kind == SPOIL_DEPTH_IS_INDEX;
  a.prefix = planted != NULL && planted->kind == SPOIL_WINDOW_ON_PREFIX_ONLY;
  a.neighbour = planted != NULL && planted->kind == SPOIL_NEIGHBOUR_BLOCK;
  if (planted != NULL && planted->kind >= SPOIL_MASK_BITS_REVERSED && planted->kind <= SPOIL_MASK_LAST_BYTE_LOST)
    a.mask_error = MASK_BITS_REVERSED + (int)(planted->kind - SPOIL_MASK_BITS_REVERSED);
  a.v_token_by_D = planted != NULL && planted->kind == SPOIL_V_TOKEN_BY_D;
  a.v_head_by_D = planted != NULL && planted->kind == SPOIL_V_HEAD_BY_D;
  softmax_run run = {.a = a,
                     .slopes = call->arg[ARG_SLOPES].data,
                     .sink = call->arg[ARG_SINK].data != NULL ? &call->arg[ARG_SINK] : NULL,
                     .softcap = attention_real(call->param[PARAM_SOFTCAP]),
                     .exact = exact,
                     .expected = expected,
                     .lse = call->arg[ARG_LSE].data != NULL,
                     .seen = seen,
                     .planted = planted};
  const assay_contract *c = contract != NULL ? contract : &default_contract;
  run.error.contract = c;
  run.error.out = a.q->dtype;
  /* f32 holds code · scale exactly if the scale is a power of two; a narrower type may not. */
  run.error.k_rounded = a.fp8 && c->k != ASSAY_NONE && (lattice_width(c->k) < 24 || !attention_scales_exact(a.k_scale));
  run.error.v_rounded = a.fp8 && c->v != ASSAY_NONE && (lattice_width(c->v) < 24 || !attention_scales_exact(a.v_scale));
  run.row.D = a.D;
  run.row.D_v = a.D_v;
  run.row.scale = a.scale;
  run.row.softcap = run.softcap;
  const assay_rows all = {.count = a.N, .index = NULL};
  if (seen != NULL) seen->visible_keys = seen->live_keys = 0;

  assay_status status = attention_check_contents(&a, error);
  if (status == ASSAY_OK) status = check_sink(run.sink, error);
  if (status == ASSAY_OK && exact) status = admit_call(call, &a, error);
  if (status == ASSAY_OK)
    status = attention_walk(&a, rows != NULL && rows->index != NULL ? rows : &all, exact, visit, &run, error);
  free(run.memory);
  free(run.key);
  free(run.error.slots);
  return status;
}

static assay_status reference(const assay_call *call, const assay_contract *contract, const assay_rows *rows,
                              bool exact, assay_expected *expected, assay_seen *seen, assay_error *error) {
  return compute(call, NULL, contract, rows, exact, expected, seen, error);
}

/* Applies a planted error: a row sees the last `chunk` keys, as if the chunk were a window. */
static void chunk_from_row(attention_spoil *s) {
  double *window = &s->param[PARAM_WINDOW], *chunk = &s->param[PARAM_CHUNK];
  if (*chunk > 0 && (*window == 0 || *window > *chunk)) *window = *chunk;
  *chunk = 0;
}

/* Applies a planted error: multiplies the sinks by the scale, as if they were q·k. */
static assay_status scale_sink(attention_spoil *s, assay_error *error) {
  assay_tensor *sink = &s->arg[ARG_SINK];
  if (sink->data == NULL) return ASSAY_OK;
  float *scaled = malloc((size_t)(sink->shape[0] + 1) * sizeof *scaled);
  if (scaled == NULL) return assay_fail(error, ASSAY_ERR_MEMORY, "spoil sink_scaled: out of memory");
  for (int64_t h = 0; h < sink->shape[0]; ++h)
    scaled[h] = (float)(assay_load_f64(sink->data, sink->dtype, h) * attention_scale(&s->call));
  s->copy[s->copies++] = scaled;
  sink->data = scaled;
  sink->dtype = ASSAY_F32;
  return ASSAY_OK;
}

static assay_status spoil(const assay_call *call, const assay_contract *contract, const assay_rows *rows, int32_t index,
                          assay_expected *expected, assay_error *error) {
  attention_spoil planted;
  assay_status status = attention_spoil_make(call, contract, index, &planted, error);
  if (status == ASSAY_OK && planted.kind == SPOIL_SOFTCAP_LOST) planted.param[PARAM_SOFTCAP] = 0;
  if (status == ASSAY_OK && planted.kind == SPOIL_SLOPES_LOST) planted.arg[ARG_SLOPES].data = NULL;
  if (status == ASSAY_OK && planted.kind == SPOIL_CHUNK_FROM_ROW) chunk_from_row(&planted);
  if (status == ASSAY_OK && planted.kind == SPOIL_SINK_LOST) planted.arg[ARG_SINK].data = NULL;
  if (status == ASSAY_OK && planted.kind == SPOIL_SINK_SCALED) status = scale_sink(&planted, error);
  if (status == ASSAY_OK)
    status = attention_spoil_touch(&planted, call, rows, call->arg[ARG_LSE].data != NULL ? 2 : 1, error);
  if (status == ASSAY_OK && planted.rows.count > 0)
    status = compute(&planted.call, &planted, contract, &planted.rows, false, planted.values, NULL, error);
  if (status == ASSAY_OK) attention_spoil_give(&planted, expected);
  attention_spoil_free(&planted);
  return status;
}

/* Checks that mask and mask_ptr come together, and neither with trees nor with block-sparse masks. */
static assay_status check_mask(const assay_call *call, assay_error *error) {
  const assay_tensor *mask = &call->arg[ARG_MASK], *starts = &call->arg[ARG_MASK_PTR];
  if (mask->data == NULL && starts->data == NULL) return ASSAY_OK;
  const int64_t bounds = call->arg[ARG_KV_LEN].shape[0] + 1;
  assay_status status = check_rank(call, ARG_MASK, 1, error);
  if (status == ASSAY_OK) status = check_range("mask_words, mask", mask->shape[0], 0, INT64_C(1) << 40, 1, error);
  if (status == ASSAY_OK) status = check_dense(call, ARG_MASK, ASSAY_I32, 1, mask->shape, error);
  if (status == ASSAY_OK) status = check_dense(call, ARG_MASK_PTR, ASSAY_I64, 1, &bounds, error);
  if (status == ASSAY_OK && call->arg[ARG_PARENT].data != NULL)
    status = assay_fail(error, ASSAY_ERR_INPUT, "parent: found a tensor, allowed none with mask");
  if (status == ASSAY_OK && call->param[PARAM_SPARSE_BLOCK] != 0)
    status = assay_fail(error, ASSAY_ERR_INPUT, "sparse_block: found %g, allowed 0 (off) with mask",
                        call->param[PARAM_SPARSE_BLOCK]);
  return status;
}

static assay_status check(const assay_call *call, assay_error *error) {
  assay_status status = attention_check(call, error);
  if (status != ASSAY_OK) return status;
  const assay_tensor *q = &call->arg[ARG_Q], *k = &call->arg[ARG_K];
  if (call->arg[ARG_SLOPES].data != NULL) status = check_dense(call, ARG_SLOPES, ASSAY_F32, 1, &q->shape[1], error);
  const int64_t D_v = call->arg[ARG_V].shape[(int)call->param[PARAM_LAYOUT] == LAYOUT_X ? 2 : 3];
  const int64_t out[3] = {q->shape[0], q->shape[1], D_v};
  if (status == ASSAY_OK) status = check_dense(call, ARG_OUT, q->dtype, 3, out, error);
  if (status == ASSAY_OK && call->arg[ARG_LSE].data != NULL)
    status = check_dense(call, ARG_LSE, ASSAY_F32, 2, q->shape, error);
  const assay_tensor *sink = &call->arg[ARG_SINK];
  if (status == ASSAY_OK && sink->data != NULL && sink->dtype != ASSAY_F32 && sink->dtype != ASSAY_BF16)
    return assay_fail(error, ASSAY_ERR_INPUT, "sink: found type %s, allowed f32, bf16", assay_dtype_name(sink->dtype));
  if (status == ASSAY_OK && sink->data != NULL)
    status = check_dense(call, ARG_SINK, sink->dtype, 1, &q->shape[1], error);
  if (status == ASSAY_OK && call->arg[ARG_PARENT].data != NULL)
    status = check_dense(call, ARG_PARENT, ASSAY_I32, 1, &q->shape[0], error);
  if (status == ASSAY_OK) status = check_mask(call, error);
  if (status != ASSAY_OK) return status;
  const int64_t layout = (int64_t)call->param[PARAM_LAYOUT];
  const int64_t block_size = k->shape[layout == LAYOUT_NHD ? 1 : layout == LAYOUT_HND ? 2 : 3];
  const int64_t sparse = (int64_t)call->param[PARAM_SPARSE_BLOCK];
  if (sparse != 0 && call->arg[ARG_PARENT].data != NULL)
    return assay_fail(error, ASSAY_ERR_INPUT, "sparse_block: found %lld, allowed 0 (off) with parent",
                      (long long)sparse);
  if (sparse % block_size != 0)
    return assay_fail(error, ASSAY_ERR_INPUT,
                      "sparse_block: found %lld, allowed 0 (off) or multiples of block_size %lld", (long long)sparse,
                      (long long)block_size);
  return ASSAY_OK;
}

static assay_status fill(const assay_fill *f, int32_t arg, double *value, int64_t count, assay_error *error) {
  if (arg == ARG_PARENT) return softmax_fill_parents(f, value, count), ASSAY_OK;
  if (arg == ARG_MASK) return softmax_fill_mask(f, value, count), ASSAY_OK;
  if (arg == ARG_MASK_PTR) { /* the generator places the requests' bits, and knows where they begin */
    for (int64_t i = 0; i < count; ++i)
      value[i] = 0;
    return ASSAY_OK;
  }
  if (arg != ARG_SINK)
    return assay_fail(error, ASSAY_ERR_INTERNAL, "softmax_attention: no values for argument %d", arg);
  for (int64_t h = 0; h < count; ++h)
    value[h] = softmax_fill_sink(f, h);
  return ASSAY_OK;
}

/* Counts scale, maximum, exp and sum: about 5 flops per key. */
static assay_cost cost(const assay_call *call, const assay_seen *seen) {
  return attention_cost(call, seen, 5);
}

/* ---- the table --------------------------------------------------------------------------------------- */

static const assay_dim dims[] = {
    ATTENTION_DIMS_WITH(PAGED_BLOCK_SIZE_FROM_1("; in the tensors 1 with cu_k")),
    PAGED_D_V,
    {"mask_words", 0, 0, 0, 1, "words of the mask's bits"},
};

static const assay_arg args[ARG_COUNT] = {
    ATTENTION_ARGS_OF("D_v"),
    {"slopes", ASSAY_IN, ASSAY_SLOPES, true, "f32", "H", "ALiBi: slope · (t - last) is added to the score", false},
    PAGED_OUT_OF("=q", "D_v"),
    {"lse", ASSAY_OUT, ASSAY_RESULT, true, "f32", "N,H", "natural logarithm of the sum of exp(s), without the sink",
     false},
    {"sink", ASSAY_IN, ASSAY_VALUES, true, "f32,bf16", "H",
     "exp(sink) is added to the denominator, once per row; -inf: none", false},
    {"parent", ASSAY_IN, ASSAY_VALUES, true, "i32", "N",
     "trees: the earlier row, of the request's new ones, that a row follows; -1: the old keys", false},
    {"mask", ASSAY_IN, ASSAY_VALUES, true, "i32", "mask_words",
     "bits in place of the causal rule, lowest first: bit n·L_i + t of request i is row n's of key t", false},
    {"mask_ptr", ASSAY_IN, ASSAY_VALUES, true, "i64", "B+1", "with mask: the byte where each request's bits begin",
     false},
};

static const assay_param params[PARAM_COUNT] = {
    PAGED_LAYOUT("; with cu_k nhd or hnd"),
    PAGED_ATTENTION_PARAMS,
    {"softcap", ASSAY_REAL, 0, 1e6, 0, NULL, "cap · tanh(s / cap); 0: off"},
    {"sparse_block", ASSAY_INTEGER, 0, 1 << 20, 0, NULL, "tokens of a sparse block, a multiple of block_size; 0: off"},
    {"sparse_local", ASSAY_INTEGER, 0, 1 << 20, 1, NULL, "newest sparse blocks that are kept"},
    {"sparse_stride", ASSAY_INTEGER, 1, 1 << 20, 1, NULL, "every so many-th sparse block is kept"},
    {"sparse_slide", ASSAY_INTEGER, -(1 << 20), 1 << 20, 0, NULL,
     "shift of the kept blocks by head; below 0: by kv head"},
    {"tp_rank", ASSAY_INTEGER, 0, 1 << 10, 0, NULL, "rank whose heads these are, for the shift"},
    {"chunk", ASSAY_INTEGER, 0, INT32_MAX, 0, NULL, "keys seen are those of the row's own chunk of so many; 0: off"},
};

static const assay_op op = {
    .name = "softmax_attention",
    .title = "scaled dot-product attention over a paged cache, or contiguous keys and values",
    .source = "Vaswani et al. 2017, eq. 1; docs/definitions.md, section 2.1",
    .dims = dims,
    .dim_count = (int32_t)(sizeof dims / sizeof dims[0]),
    .args = args,
    .arg_count = ARG_COUNT,
    .params = params,
    .param_count = PARAM_COUNT,
    .laws = "run_to_run,dead_bytes,renumbering,permutation,contiguous,neutral,siblings",
    .spoils = "last_key_dropped,split_first_doubled,wrong_kv_head,neighbour_block,split_skipped,scale_lost,"
              "k_scale_lost,v_scale_lost,head_scale_lost,row_swapped,causal_one_off,window_one_short,lse_not_merged,"
              "softcap_lost,slopes_lost,sink_scaled,sink_per_split,sink_on_key_0,sink_lost,"
              "chunk_from_row,depth_is_index,window_on_prefix_only,v_token_by_D,v_head_by_D,"
              "mask_bits_reversed,mask_row_padded,mask_of_request_before,mask_last_byte_lost",
    .kappa_element = 7,
    .confirmed_by =
        "whole matrices by another library; weights that add up to 1; closed forms of zero queries, one "
        "key, one-hot values; shifted scores; linearity in V (ref_attention_test); masks written out as zeros "
        "and ones, with V of another width (ref_mask_test)",
    .extreme_args = "",
    .check = check,
    .reference = reference,
    .cost = cost,
    .fill_q = softmax_fill_q,
    .fill_k = softmax_fill_k,
    .fill_v = softmax_fill_v,
    .fill = fill,
    .visible = attention_visible,
    .spoil = spoil,
};

const assay_op *assay_op_softmax_attention(void) {
  return &op;
}
