/* gate_attention: attention without a softmax (HP1). Each score is rectified, filtered along the keys and clipped to a
 * gate between lo and hi. It then multiplies V; nothing is normalised. For row n of request i at position last = P_i +
 * n, head h reading kv head h / G, and visible keys t = first .. last:
 *
 *   s_t = scale · (q · k_t)                r_t = max(s_t, 0)   (or s_t: relu_pre off),   r_t = 0 where not visible
 *   z_t = sum_{j < F} w_j r_{t-j}          p_t = gamma_h · min(max(z_t, lo), hi)          out = sum_t p_t v_t
 *
 * The window keeps t > last - w. Source: docs/definitions.md, section 2.2. */
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

enum { ARG_TAPS = ARG_OWN, ARG_GAMMA, ARG_OUT, ARG_COUNT };
enum { PARAM_LO = PARAM_OWN, PARAM_HI, PARAM_RELU_PRE, PARAM_COUNT };
enum { P_BITS = 8 };

const assay_op *assay_op_gate_attention(void);

static const double kappa_element = 7;

/* The gate's own parameters, and the values of one row: [keys] arrays over the row's visible keys. */
typedef struct gate {
  double scale, lo, hi, tap[PAGED_MAX_TAPS];
  int64_t F;
  bool relu_pre;
} gate;

typedef struct gate_row {
  int64_t keys, D, first; /* first: the key at t = 0 */
  double gamma;
  const double *q, *k, *v; /* [D], [keys, D], [keys, D] */
  double *s, *r, *z, *p;   /* [keys] */
  double *y;               /* [D] */
} gate_row;

/* ---- the definition ---------------------------------------------------------------------------------- */

ASSAY_WIDE static void gate_attention(const gate *g, const gate_row *row) {
  const int64_t D = row->D;
  for (int64_t t = 0; t < row->keys; ++t) {
    row->s[t] = g->scale * vector_dot(row->q, row->k + t * D, D);
    row->r[t] = g->relu_pre && row->s[t] < 0 ? 0 : row->s[t];
  }
  vector_zero(row->y, D);
  for (int64_t t = 0; t < row->keys; ++t) {
    double z = 0;
    for (int64_t j = 0; j < g->F && j <= t; ++j)
      z += g->tap[j] * row->r[t - j];
    row->z[t] = z;
    row->p[t] = row->gamma * (z < g->lo ? g->lo : z > g->hi ? g->hi : z);
    if (row->p[t] != 0) vector_add(row->y, row->p[t], row->v + t * D, D);
  }
}

/* ---- the error model --------------------------------------------------------------------------------- */

/* Variances of one row. score: of r_t. filter: of the rounding inside z_t alone. slope: a_t. It is gamma where z_t lies
 * between the clip edges, widened by kappa times the deviation of z_t; else it is 0. */
typedef struct gate_error {
  double *score, *filter, *slope; /* [keys] */
  double *mix;                    /* [D] */
  key_sum sum;                    /* the sum of p v */
  bool k_rounded, v_rounded;
  const assay_contract *contract;
  assay_dtype out;
} gate_error;

static double z_variance(const gate *g, const gate_error *e, int64_t t) {
  double variance = e->filter[t];
  for (int64_t j = 0; j < g->F && j <= t; ++j)
    variance += g->tap[j] * g->tap[j] * e->score[t - j];
  return variance;
}

/* Bounds the errors. A rectified score that is surely negative has none. The scale itself is one rounding, its product
 * another. */
ASSAY_WIDE static void gate_bounds(const gate *g, const gate_row *row, gate_error *e) {
  const int64_t D = row->D;
  for (int64_t t = 0; t < row->keys; ++t) {
    const double *k = row->k + t * D, s = row->s[t];
    const double dot = dot_variance(e->contract, D, row->q, k, e->out, e->k_rounded);
    double variance = g->scale * g->scale * dot + 2 * f32_variance * s * s;
    if (e->contract->score != ASSAY_NONE) variance += storing_variance(s, e->contract->score);
    e->score[t] = g->relu_pre && s < -kappa_element * sqrt(variance) ? 0 : variance;

    double size = 0;
    for (int64_t j = 0; j < g->F && j <= t; ++j)
      size += fabs(g->tap[j] * row->r[t - j]);
    e->filter[t] = size * size * accumulation_variance((double)g->F, 1);
  }
  for (int64_t t = 0; t < row->keys; ++t) {
    const double bound = kappa_element * sqrt(z_variance(g, e, t));
    const bool between = g->lo < g->hi && row->z[t] > g->lo - bound && row->z[t] < g->hi + bound;
    e->slope[t] = between ? row->gamma : 0;
  }
}

/* Adds the variance of split partials that are stored in a narrow type. */
static void add_partials(const gate_row *row, const gate_error *e, double *variance) {
  const int64_t D = row->D, split = e->contract->keys_per_split;
  for (int64_t begin = 0; begin < row->keys; begin += split) {
    vector_zero(e->mix, D);
    for (int64_t t = begin; t < row->keys && t < begin + split; ++t)
      if (row->p[t] != 0) vector_add(e->mix, row->p[t], row->v + t * D, D);
    for (int64_t d = 0; d < D; ++d)
      variance[d] += rounding_variance(e->mix[d], e->contract->partial);
  }
}

/* Computes
 *   sigma^2 = sum_s score_s (sum_j w_j a_{s+j} v_{s+j})^2 + sum_t (a_t^2 filter_t + r(p_t)^2 + p_t^2 r(v)^2) v_t^2
 *           + A + r(partial)^2 + r(y)^2 */
ASSAY_WIDE static void gate_sigma(const gate *g, const gate_row *row, gate_error *e, double *sigma) {
  const int64_t D = row->D;
  vector_zero(sigma, D);
  key_sum_start(&e->sum, row->y, 1);
  const double v_variance = e->v_rounded ? f32_variance * ldexp(1, 2 * (24 - lattice_width(e->contract->v))) : 0;
  for (int64_t t = 0; t < row->keys; ++t) {
    const double p = row->p[t], a = e->slope[t], *v = row->v + t * D;
    double own = a * a * e->filter[t];
    if (p != 0) {
      own += rounding_variance(p, ASSAY_F32) + p * p * v_variance;
      if (e->contract->p != ASSAY_F32) own += rounding_variance(p, e->contract->p);
      own += e->contract->p_step * e->contract->p_step / 12;
      key_sum_add(&e->sum, row->first + t, p, v);
    }
    if (own > 0) vector_add_square(sigma, own, v, D);
    if (!(e->score[t] > 0)) continue;
    bool any = false;
    for (int64_t j = 0; j < g->F && t + j < row->keys; ++j) {
      if (!(e->slope[t + j] != 0)) continue;
      if (!any) vector_zero(e->mix, D);
      any = true;
      vector_add(e->mix, g->tap[j] * e->slope[t + j], row->v + (t + j) * D, D);
    }
    if (any) vector_add_square(sigma, e->score[t], e->mix, D);
  }
  key_sum_finish(&e->sum, row->keys, sigma);
  const bool split = e->contract->keys_per_split > 0 && e->contract->keys_per_split < row->keys;
  if (split && e->contract->partial != ASSAY_NONE && e->contract->partial != ASSAY_F32) add_partials(row, e, sigma);
  for (int64_t d = 0; d < D; ++d) {
    if (e->sum.abs[d] != 0) sigma[d] += storing_variance(row->y[d], e->out);
    sigma[d] = sqrt(sigma[d]);
  }
}

/* ---- the exact tier ---------------------------------------------------------------------------------- */

/* Admits a row to the exact tier. Checks every sum that a kernel may form, in the order of the definition: q·k (scaled
 * before or after), the filter, p, p·v. */
ASSAY_WIDE static assay_status gate_admit(const gate *g, const gate_row *row, const attention_row *at,
                                          const gate_error *e, assay_error *error) {
  const int64_t D = row->D, skip = at->first - at->origin;
  const assay_contract *c = e->contract;
  const int q_low = lattice_low_row(row->q, D), scale_low = lattice_low(g->scale);
  const int tap_low = lattice_low_row(g->tap, g->F);
  int r_low = LATTICE_ZERO, p_low = LATTICE_ZERO, v_low = LATTICE_ZERO;
  for (int64_t t = 0; t < row->keys; ++t) {
    const double sum = g->scale * vector_dot_abs(row->q, row->k + t * D, D);
    const int low = q_low + at->k_low[skip + t] + scale_low;
    if (!lattice_admits(sum, low, 24))
      return attention_refuse(at, "scale · sum |q k| (is scale a power of two?)", sum, ldexp(1, 24 + low), error);
    if (assay_round_f64(row->s[t], c->score) != row->s[t])
      return attention_refuse(at, "score in the contract's type", row->s[t], assay_round_f64(row->s[t], c->score),
                              error);
    const int own = lattice_low(row->r[t]);
    if (own < r_low) r_low = own;
  }
  vector_zero(e->sum.abs, D);
  for (int64_t t = 0; t < row->keys; ++t) {
    double sum = 0;
    for (int64_t j = 0; j < g->F && j <= t; ++j)
      sum += fabs(g->tap[j] * row->r[t - j]);
    if (!lattice_admits(sum, tap_low + r_low, 24))
      return attention_refuse(at, "filter: sum |w r|", sum, ldexp(1, 24 + tap_low + r_low), error);
    const double p = row->p[t];
    if (lattice_bits(p) > P_BITS) return attention_refuse(at, "significant bits of p", lattice_bits(p), P_BITS, error);
    if (assay_round_f64(p, c->p) != p)
      return attention_refuse(at, "p in the contract's type", p, assay_round_f64(p, c->p), error);
    if (p == 0) continue;
    const int own = lattice_low(p);
    if (own < p_low) p_low = own;
    if (at->v_low[skip + t] < v_low) v_low = at->v_low[skip + t];
    vector_add_abs(e->sum.abs, fabs(p), row->v + t * D, D);
  }
  for (int64_t d = 0; d < D; ++d)
    if (!lattice_admits(e->sum.abs[d], p_low + v_low, lattice_width(c->partial)))
      return attention_refuse(at, "sum |p v|", e->sum.abs[d], ldexp(1, lattice_width(c->partial) + p_low + v_low),
                              error);
  return ASSAY_OK;
}

/* ---- adapter ----------------------------------------------------------------------------------------- */

typedef struct gate_run {
  attention a;
  gate g;
  gate_error error;
  const float *gamma;
  bool exact;
  assay_expected *expected;
  assay_seen *seen;
  const attention_spoil *planted; /* NULL: no planted error */
  double *halo; /* [H, PAGED_MAX_TAPS] for a planted error: the last r of the row before, newest first */
  double *memory;
  int64_t capacity;
  gate_row row;
} gate_run;

static assay_status reserve(gate_run *run, int64_t keys, assay_error *error) {
  if (run->memory != NULL && keys <= run->capacity) return ASSAY_OK;
  const int64_t D = run->a.D;
  free(run->memory);
  run->capacity = keys;
  run->memory = malloc((size_t)(7 * keys + D + key_sum_room(run->error.contract, D)) * sizeof *run->memory);
  if (run->memory == NULL)
    return assay_fail(error, ASSAY_ERR_MEMORY, "gate_attention reference: %lld scores do not fit in memory",
                      (long long)keys);
  double *at = run->memory;
  double **const array[] = {&run->row.s,       &run->row.r,        &run->row.z,      &run->row.p,
                            &run->error.score, &run->error.filter, &run->error.slope};
  for (size_t i = 0; i < sizeof array / sizeof array[0]; ++i, at += keys)
    *array[i] = at;
  run->error.mix = at;
  key_sum_place(&run->error.sum, run->error.contract, D, at + D);
  run->error.sum.bits = cut_bits(run->error.out);
  return ASSAY_OK;
}

/* Tells whether V is needed. It is where z is not surely below 0. With lo > 0 every visible key has p != 0. */
static bool needs_v(const gate_run *run, int64_t t) {
  if (run->g.lo > 0) return true;
  if (run->exact) return run->row.z[t] > 0;
  return !(run->row.z[t] <= -kappa_element * sqrt(z_variance(&run->g, &run->error, t)));
}

/* Applies planted errors. The filter continues with r of the row before, or starts again at every split; or some keys
 * count never or twice. r stays right; z, p and y are computed again. */
static void gate_spoil(gate_run *run, const attention_row *at) {
  const gate *g = &run->g;
  const gate_row *row = &run->row;
  const attention_spoil *planted = run->planted;
  double *halo = run->halo + at->head * PAGED_MAX_TAPS;
  const bool across = planted->kind == SPOIL_FILTER_ACROSS_ROWS, anew = planted->kind == SPOIL_SPLIT_HALO_LOST;
  vector_zero(row->y, row->D);
  for (int64_t t = 0; t < row->keys; ++t) {
    const int64_t key = at->first + t;
    double z = 0;
    for (int64_t j = 0; j < g->F; ++j) {
      if (j > t && across) z += g->tap[j] * halo[j - t - 1];
      if (j <= t && !(anew && (key - j) / planted->split != key / planted->split)) z += g->tap[j] * row->r[t - j];
    }
    row->p[t] = row->gamma * (z < g->lo ? g->lo : z > g->hi ? g->hi : z);
    for (int times = attention_spoil_times(planted, at, key); times > 0 && row->p[t] != 0; --times)
      vector_add(row->y, row->p[t], row->v + t * row->D, row->D);
  }
  for (int64_t j = 0; j < PAGED_MAX_TAPS; ++j)
    halo[j] = j < row->keys ? row->r[row->keys - 1 - j] : 0;
}

/* Tells whether the error is one of gate_spoil. All others are errors of the call. */
static bool acts_on_rows(attention_spoil_kind kind) {
  return kind == SPOIL_FILTER_ACROSS_ROWS || kind == SPOIL_SPLIT_HALO_LOST || kind == SPOIL_SPLIT_FIRST_DOUBLED ||
         kind == SPOIL_SPLIT_SKIPPED;
}

static assay_status visit(void *context, const attention_row *at, assay_error *error) {
  gate_run *run = context;
  const int64_t D = run->a.D, keys = at->first < at->end ? at->end - at->first : 0;
  assay_status status = reserve(run, keys, error);
  if (status != ASSAY_OK) return status;
  double *sigma = run->expected->sigma != NULL ? run->expected->sigma + at->output * D : NULL;
  run->row.keys = keys;
  run->row.first = at->first;
  run->row.gamma = (double)run->gamma[at->head];
  run->row.q = at->q;
  run->row.k = keys > 0 ? at->k + (at->first - at->origin) * D : NULL;
  run->row.v = keys > 0 ? at->v + (at->first - at->origin) * D : NULL;
  run->row.y = run->expected->value + at->output * D;
  gate_attention(&run->g, &run->row);
  if (run->planted != NULL && acts_on_rows(run->planted->kind)) gate_spoil(run, at);

  const bool need = run->seen != NULL && run->seen->v_needed != NULL;
  if (run->exact) status = gate_admit(&run->g, &run->row, at, &run->error, error);
  if (status != ASSAY_OK) return status;
  if (sigma != NULL || (need && !run->exact)) gate_bounds(&run->g, &run->row, &run->error);
  if (sigma != NULL) gate_sigma(&run->g, &run->row, &run->error, sigma);
  if (run->seen == NULL) return ASSAY_OK;
  run->seen->visible_keys += keys;
  for (int64_t t = 0; t < keys; ++t) {
    run->seen->live_keys += run->row.p[t] != 0;
    if (need && needs_v(run, t)) attention_need(&run->a, at, at->first + t, run->seen);
  }
  return ASSAY_OK;
}

static assay_status compute(const assay_call *call, const attention_spoil *planted, double *halo,
                            const assay_contract *contract, const assay_rows *rows, bool exact,
                            assay_expected *expected, assay_seen *seen, assay_error *error) {
  attention a = attention_of(call);
  if (planted != NULL) a.reach = planted->reach;
  a.neighbour = planted != NULL && planted->kind == SPOIL_NEIGHBOUR_BLOCK;
  const assay_tensor *taps = &call->arg[ARG_TAPS];
  gate_run run = {.a = a, .gamma = call->arg[ARG_GAMMA].data, .exact = exact, .expected = expected, .seen = seen};
  run.planted = planted;
  run.halo = halo;
  run.g = (gate){.scale = a.scale,
                 .lo = attention_real(call->param[PARAM_LO]),
                 .hi = attention_real(call->param[PARAM_HI]),
                 .F = taps->shape[0],
                 .relu_pre = call->param[PARAM_RELU_PRE] != 0};
  assay_load_f64_row(taps->data, ASSAY_F32, 0, 1, run.g.F, run.g.tap);
  const assay_contract *c = contract != NULL ? contract : &default_contract;
  run.error.contract = c;
  run.error.out = a.q->dtype;
  /* f32 holds code · scale exactly if the scale is a power of two; a narrower type may not. */
  run.error.k_rounded = a.fp8 && c->k != ASSAY_NONE && (lattice_width(c->k) < 24 || !attention_scales_exact(a.k_scale));
  run.error.v_rounded = a.fp8 && c->v != ASSAY_NONE && (lattice_width(c->v) < 24 || !attention_scales_exact(a.v_scale));
  run.row.D = a.D;
  const assay_rows all = {.count = a.N, .index = NULL};
  if (seen != NULL) seen->visible_keys = seen->live_keys = 0;

  assay_status status = attention_check_contents(&a, error);
  if (status == ASSAY_OK && exact && !(attention_scales_exact(a.k_scale) && attention_scales_exact(a.v_scale)))
    status = assay_fail(error, ASSAY_ERR_INPUT, "exact tier: k_scale, v_scale: found a factor that is no power of two");
  if (status == ASSAY_OK)
    status = attention_walk(&a, rows != NULL && rows->index != NULL ? rows : &all, exact, visit, &run, error);
  free(run.memory);
  return status;
}

static assay_status reference(const assay_call *call, const assay_contract *contract, const assay_rows *rows,
                              bool exact, assay_expected *expected, assay_seen *seen, assay_error *error) {
  return compute(call, NULL, NULL, contract, rows, exact, expected, seen, error);
}

/* Makes the gate's own small arguments and parameters that a planted error changes. */
static bool spoil_call(attention_spoil *planted) {
  if (planted->kind == SPOIL_RELU_LOST) planted->param[PARAM_RELU_PRE] = 0;
  if (planted->kind == SPOIL_CLIP_LOST) planted->param[PARAM_HI] = 1e6;
  if (planted->kind == SPOIL_TAPS_REVERSED) {
    const int64_t F = planted->arg[ARG_TAPS].shape[0];
    const float *from = planted->arg[ARG_TAPS].data;
    float *tap = attention_spoil_copy(planted, ARG_TAPS);
    for (int64_t j = 0; tap != NULL && j < F; ++j)
      tap[j] = from[F - 1 - j];
    return tap != NULL;
  }
  if (planted->kind == SPOIL_GAMMA_LOST) {
    float *gamma = attention_spoil_copy(planted, ARG_GAMMA);
    for (int64_t h = 0; gamma != NULL && h < planted->arg[ARG_GAMMA].shape[0]; ++h)
      gamma[h] = 1;
    return gamma != NULL;
  }
  return true;
}

static assay_status spoil(const assay_call *call, const assay_contract *contract, const assay_rows *rows, int32_t index,
                          assay_expected *expected, assay_error *error) {
  attention_spoil planted;
  double *halo = calloc((size_t)(call->arg[ARG_Q].shape[1] * PAGED_MAX_TAPS), sizeof *halo);
  assay_status status = attention_spoil_make(call, contract, index, &planted, error);
  if (status == ASSAY_OK && (halo == NULL || !spoil_call(&planted)))
    status = assay_fail(error, ASSAY_ERR_MEMORY, "gate_attention spoil: out of memory");
  if (status == ASSAY_OK) status = attention_spoil_touch(&planted, call, rows, 1, error);
  if (status == ASSAY_OK && planted.rows.count > 0)
    status = compute(&planted.call, &planted, halo, contract, &planted.rows, false, planted.values, NULL, error);
  if (status == ASSAY_OK) attention_spoil_give(&planted, expected);
  attention_spoil_free(&planted);
  free(halo);
  return status;
}

static assay_status check(const assay_call *call, assay_error *error) {
  assay_status status = attention_check(call, error);
  if (status != ASSAY_OK) return status;
  const assay_tensor *q = &call->arg[ARG_Q];
  const int64_t F = call->arg[ARG_TAPS].shape[0];
  char lo[32], hi[32];
  if (call->arg[ARG_TAPS].rank == 1 && (F < 1 || F > PAGED_MAX_TAPS))
    return assay_fail(error, ASSAY_ERR_INPUT, "F: found %lld, allowed 1 to %d", (long long)F, PAGED_MAX_TAPS);
  status = check_dense(call, ARG_TAPS, ASSAY_F32, 1, &F, error);
  if (status == ASSAY_OK) status = check_dense(call, ARG_GAMMA, ASSAY_F32, 1, &q->shape[1], error);
  if (status == ASSAY_OK) status = check_dense(call, ARG_OUT, q->dtype, 3, q->shape, error);
  if (status == ASSAY_OK && !(call->param[PARAM_LO] <= call->param[PARAM_HI]))
    status = assay_fail(error, ASSAY_ERR_INPUT, "lo: found %s, allowed 0 to hi = %s",
                        assay_shortest(call->param[PARAM_LO], lo), assay_shortest(call->param[PARAM_HI], hi));
  return status;
}

/* Counts 2 F flops per key for the filter. */
static assay_cost cost(const assay_call *call, const assay_seen *seen) {
  return attention_cost(call, seen, 2 * (double)call->arg[ARG_TAPS].shape[0]);
}

/* ---- the table --------------------------------------------------------------------------------------- */

static const assay_dim dims[] = {
    ATTENTION_DIMS,
    GATE_F,
};

static const assay_arg args[ARG_COUNT] = {
    ATTENTION_ARGS,
    GATE_TAPS("", ""),
    GATE_GAMMA("", ", not 0"),
    PAGED_OUT("=q"),
};

static const assay_param params[PARAM_COUNT] = {
    PAGED_LAYOUT("; with cu_k nhd or hnd"),
    PAGED_ATTENTION_PARAMS,
    GATE_PARAMS(""),
};

static const assay_op op = {
    .name = "gate_attention",
    .title = "attention with a clipped, filtered gate in place of the softmax (HP1)",
    .source = "docs/definitions.md, section 2.2",
    .dims = dims,
    .dim_count = (int32_t)(sizeof dims / sizeof dims[0]),
    .args = args,
    .arg_count = ARG_COUNT,
    .params = params,
    .param_count = PARAM_COUNT,
    .laws = "run_to_run,dead_bytes,renumbering,permutation,contiguous",
    .spoils = "last_key_dropped,split_first_doubled,wrong_kv_head,neighbour_block,split_skipped,scale_lost,"
              "k_scale_lost,v_scale_lost,head_scale_lost,row_swapped,causal_one_off,window_one_short,"
              "filter_across_rows,split_halo_lost,relu_lost,clip_lost,taps_reversed,gamma_lost",
    .kappa_element = 7,
    .confirmed_by = "whole matrices, the filter as one, by another library; closed forms of zero queries, one key, "
                    "one-hot values; linearity in V (ref_attention_test)",
    .extreme_args = "",
    .check = check,
    .reference = reference,
    .cost = cost,
    .fill_q = gate_fill_q,
    .fill_k = gate_fill_k,
    .fill_v = gate_fill_v,
    .visible = attention_visible,
    .spoil = spoil,
};

const assay_op *assay_op_gate_attention(void) {
  return &op;
}
