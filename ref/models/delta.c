/* delta.c: a layer with the gated delta rule. A request has a state in it: the last J rows that the convolution has
 * read, and one matrix S [D_k, D_v] for each value head. With e the J rows of the state, followed by the request's rows
 * of (q, k, v), and s(x) = 1 / (1 + exp(-x)):
 *
 *   c_t  = silu(sum_j w_j e_{t+j})             channel by channel; J + 1 taps, the last one on the row itself
 *   g    = -exp(A_log) ln(1 + exp(a + dt_bias)), beta = s(b)
 *   S   <- exp(g) S, then S + k (beta (v - S^T k))^T
 *   S   <- exp(g) S, then S <- S + k (beta (v - S^T k))^T
 *   o    = S^T q / sqrt(D_k)
 *   out  = norm(o) silu(z), head by head
 *
 * q, k and v are those of c, with q and k divided by their lengths. Value head h reads key head h / (H_v / H_k). The
 * rows of delta.in are all of q, k, v, z, b and a, in this order. A request whose tokens are its first ones starts from
 * zeros.
 *
 * Source: docs/definitions.md, sections 7 and 12; Yang, Kautz, Hatamizadeh, "Gated delta networks", 2024. */
#include <math.h>
#include <string.h>

#include "core/dtype.h"
#include "ref/lib/vector.h"
#include "ref/models/model.h"
#include "ref/models/rows.h"

enum { MAX_TAPS = 4, MAX_SIZE = 256 };

static const double length_eps = 1e-6;

/* Returns the layer's place among those with states. */
static int64_t state_layer(const model *m) {
  int64_t before = 0;
  for (int64_t l = 0; l < m->layer; ++l)
    before += assay_model_is_linear(&m->config, l);
  return before;
}

static double *conv_state(const model *m, int64_t slot) {
  const int64_t width = (m->config.conv_taps - 1) * m->conv.width;
  return m->conv_pool + (state_layer(m) * m->limits.num_states + slot) * width;
}

static double *matrix_state(const model *m, int64_t slot) {
  const int64_t width = m->config.linear_key_size * m->delta_out.width;
  return m->matrix_pool + (state_layer(m) * m->limits.num_states + slot) * width;
}

void model_copy_states(model *m) {
  const assay_model_batch *b = m->batch;
  const size_t rows = (size_t)((m->config.conv_taps - 1) * m->conv.width) * sizeof(double);
  const size_t matrices = (size_t)(m->config.linear_key_size * m->delta_out.width) * sizeof(double);
  for (m->layer = 0; m->layer < m->config.layers; ++m->layer)
    for (int64_t i = 0; i < b->state_copy_count && assay_model_is_linear(&m->config, m->layer); ++i) {
      const int64_t source = b->state_copies[2 * i], target = b->state_copies[2 * i + 1];
      memcpy(conv_state(m, target), conv_state(m, source), rows);
      memcpy(matrix_state(m, target), matrix_state(m, source), matrices);
    }
  m->layer = -1;
}

/* ---- one request ------------------------------------------------------------------------------------- */

typedef struct span {
  int64_t first, rows;
  int64_t slot; /* -1: a pad row, which has no state */
  bool fresh;
} span;

static span span_of(const model *m, int64_t request) {
  const assay_model_batch *b = m->batch;
  const int64_t first = b->cu_q[request], rows = b->cu_q[request + 1] - first;
  const int64_t slot = b->kv_len[request] > 0 ? b->states[request] : -1;
  return (span){first, rows, slot, b->kv_len[request] <= rows};
}

/* ---- the convolution --------------------------------------------------------------------------------- */

/* Convolves one request. `e` has J rows more than the request. */
static void convolve(model *m, const span *r, const matrix *in, const double *w, double *e, matrix *y) {
  const int64_t C = y->width, J = m->config.conv_taps - 1;
  if (r->fresh)
    vector_zero(e, J * C);
  else
    memcpy(e, conv_state(m, r->slot), (size_t)(J * C) * sizeof *e);
  for (int64_t t = 0; t < r->rows; ++t)
    memcpy(e + (J + t) * C, in->value + (r->first + t) * in->width, (size_t)C * sizeof *e);
  for (int64_t t = 0; t < r->rows; ++t)
    conv_silu_row(e + t * C, w, J + 1, C, y->value + (r->first + t) * C);
  if (r->slot >= 0) memcpy(conv_state(m, r->slot), e + r->rows * C, (size_t)(J * C) * sizeof *e);
}

void model_conv(model *m, const char *name, const matrix *in, matrix *y) {
  const assay_tensor *w = model_weight(m, name, "w");
  assay_load_f64_row(w->data, w->dtype, 0, 1, w->shape[0] * w->shape[1], m->taps_of);
  for (int64_t i = 0; i < m->batch->requests; ++i) {
    const span r = span_of(m, i);
    if (r.rows > 0) convolve(m, &r, in, m->taps_of, m->convolved, y);
  }
  model_finish(m, name, y, m->act);
}

/* ---- the gates --------------------------------------------------------------------------------------- */

static double softplus(double x) {
  return (x > 0 ? x : 0) + log1p(exp(-fabs(x)));
}

void model_delta_gates(model *m, const matrix *in, matrix *g, matrix *beta) {
  const int64_t H = g->width, at_b = in->width - 2 * H, at_a = in->width - H;
  const double *A_log = model_vector(m, 0, "delta", "A_log"), *dt_bias = model_vector(m, 1, "delta", "dt_bias");
  for (int64_t n = 0; n < in->rows; ++n)
    for (int64_t h = 0; h < H; ++h) {
      const double *row = in->value + n * in->width;
      g->value[n * H + h] = -exp(A_log[h]) * softplus(row[at_a + h] + dt_bias[h]);
      beta->value[n * H + h] = sigmoid(row[at_b + h]);
    }
  model_finish(m, "delta.g", g, m->logit);
  model_finish(m, "delta.beta", beta, m->logit);
}

/* ---- the rule ---------------------------------------------------------------------------------------- */

static void unit(const double *x, int64_t D, double *y) {
  double square = 0;
  for (int64_t d = 0; d < D; ++d)
    square += x[d] * x[d];
  const double length = sqrt(square + length_eps);
  for (int64_t d = 0; d < D; ++d)
    y[d] = x[d] / length;
}

/* Takes the rows of one request through value head h, whose state is S. */
static void follow(const model *m, const span *r, int64_t h, const matrix *c, const matrix *g, const matrix *beta,
                   double *S, matrix *out) {
  const int64_t H_k = m->config.linear_key_heads, H_v = m->config.linear_value_heads;
  const int64_t D_k = m->config.linear_key_size, D_v = m->config.linear_value_size, key = h / (H_v / H_k);
  const double scale = 1 / sqrt((double)D_k);
  double q[MAX_SIZE], k[MAX_SIZE];
  for (int64_t n = r->first; n < r->first + r->rows; ++n) {
    const double *row = c->value + n * c->width;
    unit(row + key * D_k, D_k, q);
    unit(row + (H_k + key) * D_k, D_k, k);
    delta_rule_row(q, k, row + 2 * H_k * D_k + h * D_v, exp(g->value[n * H_v + h]), beta->value[n * H_v + h], scale,
                   D_k, D_v, S, out->value + (n * H_v + h) * D_v);
  }
}

void model_delta_rule(model *m, const char *name, const matrix *c, const matrix *g, const matrix *beta, matrix *out) {
  const int64_t H = m->config.linear_value_heads, size = m->config.linear_key_size * m->config.linear_value_size;
  for (int64_t i = 0; i < m->batch->requests; ++i) {
    const span r = span_of(m, i);
    if (r.rows == 0) continue;
#pragma omp parallel for num_threads(m->threads) if (r.rows * H * size > ALONE)
    for (int64_t h = 0; h < H; ++h) {
      double *S = m->matrices + h * size, *kept = r.slot >= 0 ? matrix_state(m, r.slot) + h * size : NULL;
      if (r.fresh)
        vector_zero(S, size);
      else
        memcpy(S, kept, (size_t)size * sizeof *S);
      follow(m, &r, h, c, g, beta, S, out);
      for (int64_t e = 0; e < size && kept != NULL; ++e)
        kept[e] = assay_round_f64(S[e], m->logit);
    }
  }
  model_finish(m, name, out, m->act);
}

/* ---- gates of results -------------------------------------------------------------------------------- */

void model_delta_norm(model *m, const char *name, const matrix *in, matrix *out) {
  const int64_t D = m->config.linear_value_size, at_z = m->conv.width;
  const norm f = model_norm_of(m, name, D);
  for (int64_t n = 0; n < out->rows; ++n)
    for (int64_t i = 0; i < out->width; i += D) {
      double *o = out->value + n * out->width + i;
      const double *z = in->value + n * in->width + at_z + i;
      norm_apply(&f, norm_measure(&f, o), o, o);
      for (int64_t d = 0; d < D; ++d)
        o[d] *= z[d] * sigmoid(z[d]);
    }
  model_finish(m, name, out, m->act);
}

void model_sigmoid_gate(model *m, const char *name, const matrix *gate, matrix *out) {
  for (int64_t i = 0; i < out->rows * out->width; ++i)
    out->value[i] *= sigmoid(gate->value[i]);
  model_finish(m, name, out, m->act);
}

void model_weigh_shared(model *m, matrix *gate, matrix *shared) {
  for (int64_t n = 0; n < gate->rows; ++n)
    gate->value[n] = sigmoid(gate->value[n]);
  model_finish(m, "shared.weight", gate, m->logit);
  for (int64_t n = 0; n < shared->rows; ++n)
    for (int64_t c = 0; c < shared->width; ++c)
      shared->value[n * shared->width + c] *= gate->value[n];
  model_finish(m, "shared.weighted", shared, m->act);
}
