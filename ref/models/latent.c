/* latent.c: attention over a latent cache. A token has one row of R_kv + R numbers in the cache, for all heads: c,
 * which is normed, and k_pe, which is rotated. A head's query has D = P + R channels, and its values have V. W_UK [P,
 * R_kv] and W_UV [V, R_kv] of a head are its rows of kv_b. Two forms compute the same:
 *
 *   plain      k_t = (W_UK c_t, k_pe_t) and v_t = W_UV c_t
 *              s_t = scale · q·k_t and out = sum_t p_t v_t
 *   absorbed   q' = (q_P W_UK, q_R)
 *              s_t = scale · q'·(c_t, k_pe_t) and out = W_UV sum_t p_t c_t
 *
 * with p = softmax(s). A request with one new token takes the absorbed form, and all others take the plain one. In
 * mirror mode all take the absorbed form, as a device does. The form mla_expand says otherwise, for both modes.
 *
 * Source: docs/definitions.md, section 7; DeepSeek-AI, "DeepSeek-V2", 2024, section 2.1. */
#include <math.h>
#include <string.h>

#include "core/dtype.h"
#include "ref/lib/rope.h"
#include "ref/lib/vector.h"
#include "ref/models/model.h"
#include "ref/models/rows.h"

enum { MAX_ROTATED = 256 };

/* Both inner norms have an eps of their own, whatever the configuration's is. */
static const double inner_eps = 1e-6;

/* ---- queries and entries ----------------------------------------------------------------------------- */

static void inner_norm(model *m, const char *name, const matrix *x, matrix *y) {
  norm f = model_norm_of(m, name, y->width);
  f.eps = inner_eps;
  for (int64_t n = 0; n < y->rows; ++n)
    norm_apply(&f, norm_measure(&f, x->value + n * x->width), x->value + n * x->width, y->value + n * y->width);
  model_finish(m, name, y, m->act);
}

/* Rotates the R channels at x of row n. */
static void rotate_row(const model *m, int64_t n, const double *x, double *y) {
  const int64_t R = m->config.rotated;
  double before[MAX_ROTATED];
  memcpy(before, x, (size_t)R * sizeof *before);
  rope_rotate(before, m->cosine + n * (R / 2), m->sine + n * (R / 2), R, R,
              m->config.rope_style == ASSAY_ROPE_INTERLEAVED, y);
}

void model_latent_query(model *m, const matrix *x, matrix *q) {
  if (m->config.q_rank > 0) {
    model_linear(m, "attn.q_a", x, &m->q_a, false);
    inner_norm(m, "attn.q_norm", &m->q_a, &m->q_a);
  }
  model_linear(m, "attn.q_b", m->config.q_rank > 0 ? &m->q_a : x, q, false);
}

void model_latent_entry(model *m, const matrix *x) {
  model_linear(m, "attn.kv_a", x, &m->kv_a, false);
  inner_norm(m, "attn.kv_norm", &m->kv_a, &m->latent);
}

void model_latent_rotate(model *m, matrix *q) {
  const int64_t H = m->config.heads, D = m->config.head_size, K = m->config.kv_rank, R = m->config.rotated, P = D - R;
  for (int64_t i = 0; i < q->rows * H; ++i)
    rotate_row(m, i / H, q->value + i * D + P, q->value + i * D + P);
  model_finish(m, "attn.q", q, m->act);
  for (int64_t n = 0; n < q->rows; ++n)
    rotate_row(m, n, m->kv_a.value + n * (K + R) + K, m->k_pe.value + n * R);
  model_finish(m, "attn.k_pe", &m->k_pe, m->act);
}

void model_latent_append(model *m) {
  const int64_t K = m->config.kv_rank, R = m->config.rotated;
  for (int64_t n = 0; n < m->latent.rows; ++n) {
    if (m->batch->slots[n] < 0) continue;
    double *entry = model_slot(m, m->batch->slots[n]);
    memcpy(entry, m->latent.value + n * K, (size_t)K * sizeof *entry);
    memcpy(entry + K, m->k_pe.value + n * R, (size_t)R * sizeof *entry);
  }
}

/* ---- attention --------------------------------------------------------------------------------------- */

/* Gathers the latent rows of a request, and its rotated keys, from the cache. */
static void gather(model *m, int64_t request, int64_t length, matrix *c, double *pe) {
  const int64_t K = m->config.kv_rank, R = m->config.rotated, size = m->config.block_size;
  const int32_t *table = m->batch->block_table + request * m->batch->max_blocks;
  *c = (matrix){m->gathered, length, K};
  for (int64_t t = 0; t < length; ++t) {
    const double *entry = model_slot(m, table[t / size] * size + t % size);
    memcpy(c->value + t * K, entry, (size_t)K * sizeof *entry);
    memcpy(pe + t * R, entry + K, (size_t)R * sizeof *entry);
  }
}

static void round_all(double *x, int64_t count, assay_dtype dtype) {
  for (int64_t i = 0; i < count && dtype != ASSAY_NONE; ++i)
    x[i] = assay_round_f64(x[i], dtype);
}

/* Computes one head of one request: rows first .. first + rows - 1, whose last one sees all of c. */
typedef struct head_of {
  const matrix *c;  /* [L, R_kv] */
  const double *pe; /* [L, R] */
  int64_t head, first, rows;
  double scale;
} head_of;

static void absorbed(model *m, const head_of *h, const matrix *q, matrix *out) {
  const int64_t H = m->config.heads, D = m->config.head_size, R = m->config.rotated, P = D - R;
  const int64_t K = m->config.kv_rank, V = m->config.value_size;
  const assay_tensor *w = model_weight(m, "attn.kv_b", "w");
  double *w_uk = m->head_weight, *w_uv = w_uk + P * K, *wide = w_uv + V * K, *u = wide + K;
  assay_load_f64_row(w->data, w->dtype, h->head * (P + V) * K, 1, (P + V) * K, w_uk);
  for (int64_t n = h->first; n < h->first + h->rows; ++n) {
    const double *row = q->value + (n * H + h->head) * D;
    vector_zero(wide, K);
    for (int64_t i = 0; i < P; ++i)
      vector_add(wide, row[i], w_uk + i * K, K);
    round_all(wide, K, m->act);
    latent_attention_row(h->c->value, K, h->pe, R, h->c->value, K, m->step.position[n] + 1, wide, row + P, h->scale,
                         model_scratch(m), u);
    round_all(u, K, m->act);
    for (int64_t v = 0; v < V; ++v)
      out->value[(n * H + h->head) * V + v] = vector_dot(w_uv + v * K, u, K);
  }
}

static void plain(model *m, const head_of *h, const matrix *q, matrix *out) {
  const int64_t H = m->config.heads, D = m->config.head_size, R = m->config.rotated, P = D - R;
  const int64_t V = m->config.value_size, L = h->c->rows;
  double *k = m->expanded, *v = k + L * P;
  const assay_tensor *w = model_weight(m, "attn.kv_b", "w");
  model_product(m, w, h->head * (P + V), P, h->c, k);
  model_product(m, w, h->head * (P + V) + P, V, h->c, v);
  round_all(k, L * (P + V), m->act);
#pragma omp parallel for num_threads(m->threads) schedule(dynamic, 4) if (h->rows * L * D > 16 * ALONE)
  for (int64_t n = h->first; n < h->first + h->rows; ++n) {
    const double *row = q->value + (n * H + h->head) * D;
    latent_attention_row(k, P, h->pe, R, v, V, m->step.position[n] + 1, row, row + P, h->scale, model_scratch(m),
                         out->value + (n * H + h->head) * V);
  }
}

/* Tells whether a request attends over keys and values of every head. */
static bool is_plain(const model *m, int64_t tokens, int64_t length) {
  if (m->latent_form == LATENT_BY_THE_COST) return assay_model_expands(&m->config, tokens, length);
  return tokens > 1 && (m->latent_form == LATENT_USUAL ? m->act == ASSAY_NONE : m->latent_form == LATENT_EXPANDED);
}

void model_latent_attention(model *m, const matrix *q, matrix *out) {
  const assay_model_batch *b = m->batch;
  const double scale = m->config.score_scale > 0 ? m->config.score_scale : 1 / sqrt((double)m->config.head_size);
  vector_zero(out->value, out->rows * out->width);
  for (int64_t i = 0; i < b->requests; ++i) {
    matrix c;
    const int64_t rows = b->cu_q[i + 1] - b->cu_q[i];
    if (rows == 0 || b->kv_len[i] == 0) continue;
    gather(m, i, b->kv_len[i], &c, m->gathered_pe);
    for (int64_t head = 0; head < m->config.heads; ++head) {
      const head_of h = {&c, m->gathered_pe, head, b->cu_q[i], rows, scale};
      (is_plain(m, rows, b->kv_len[i]) ? plain : absorbed)(m, &h, q, out);
    }
  }
  model_finish(m, "attn.out", out, m->act);
}
