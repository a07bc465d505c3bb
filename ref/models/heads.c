/* heads.c: the work on heads: they are taken from the fused rows, normalised, rotated, cached, and attended over. The
 * cache holds f64 in every mode: the values that its storage type would hold. */
#include <math.h>
#include <string.h>

#include "core/dtype.h"
#include "ref/lib/rope.h"
#include "ref/models/model.h"
#include "ref/models/rows.h"

enum { MAX_HEAD = 256 };

static void take_heads(const matrix *qkv, int64_t first, matrix *part) {
  for (int64_t n = 0; n < part->rows; ++n)
    memcpy(part->value + n * part->width, qkv->value + n * qkv->width + first,
           (size_t)part->width * sizeof *part->value);
}

static void head_norm(model *m, const char *name, matrix *x) {
  const int64_t D = m->config.head_size, heads = x->rows * x->width / D;
  const norm f = model_norm_of(m, name, D);
#pragma omp parallel for num_threads(m->threads) if (x->rows * x->width > ALONE)
  for (int64_t i = 0; i < heads; ++i)
    norm_apply(&f, norm_measure(&f, x->value + i * D), x->value + i * D, x->value + i * D);
  model_finish(m, name, x, m->act);
}

static void rotate(model *m, const char *name, matrix *x) {
  const int64_t D = m->config.head_size, R = m->config.rotated, heads = x->width / D;
  const bool interleaved = m->config.rope_style == ASSAY_ROPE_INTERLEAVED;
#pragma omp parallel for num_threads(m->threads) if (x->rows * x->width > ALONE)
  for (int64_t i = 0; i < x->rows * heads; ++i) {
    const int64_t n = i / heads;
    double before[MAX_HEAD];
    memcpy(before, x->value + i * D, (size_t)D * sizeof *before);
    rope_rotate(before, m->cosine + n * (R / 2), m->sine + n * (R / 2), R, D, interleaved, x->value + i * D);
  }
  model_finish(m, name, x, m->act);
}

void model_heads(model *m, const matrix *qkv, matrix *q, matrix *k, matrix *v) {
  take_heads(qkv, 0, q);
  take_heads(qkv, q->width, k);
  take_heads(qkv, q->width + k->width, v);
  if (m->config.qk_norm) {
    head_norm(m, "attn.q_norm", q);
    head_norm(m, "attn.k_norm", k);
  }
  rotate(m, "attn.q", q);
  rotate(m, "attn.k", k);
  model_take(m, "attn.v", v);
  model_append(m, k, v);
}

/* ---- the cache ---- */

static double *pool_slot(const model *m, double *pool, int64_t slot) {
  const int64_t width = model_entry(m);
  return pool + (m->layer * m->limits.num_blocks * m->config.block_size + slot) * width;
}

double *model_slot(const model *m, int64_t slot) {
  return pool_slot(m, m->k_pool, slot);
}

/* Stores one head. fp8: code · scale, with the code from x / scale in f32. */
static void store_head(const double *x, int64_t D, assay_dtype cache, const assay_tensor *scale, int64_t head,
                       double *stored) {
  const float factor = scale != NULL ? ((const float *)scale->data)[head] : 1;
  for (int64_t d = 0; d < D; ++d)
    stored[d] = cache == ASSAY_NONE ? x[d] : assay_round_f64((double)((float)x[d] / factor), cache) * (double)factor;
}

void model_append(model *m, const matrix *k, const matrix *v) {
  const int64_t D = m->config.head_size;
  const assay_tensor *k_scale = model_weight(m, "attn", "k_scale"), *v_scale = model_weight(m, "attn", "v_scale");
  for (int64_t n = 0; n < k->rows; ++n) {
    if (m->batch->slots[n] < 0) continue;
    double *to_k = pool_slot(m, m->k_pool, m->batch->slots[n]), *to_v = pool_slot(m, m->v_pool, m->batch->slots[n]);
    for (int64_t h = 0; h < m->config.kv_heads; ++h) {
      store_head(k->value + n * k->width + h * D, D, m->cache, k_scale, h, to_k + h * D);
      store_head(v->value + n * v->width + h * D, D, m->cache, v_scale, h, to_v + h * D);
    }
  }
}

void model_copy_blocks(model *m) {
  const int64_t size = m->config.block_size;
  const size_t bytes = (size_t)(size * model_entry(m)) * sizeof(double);
  for (m->layer = 0; m->layer < m->config.layers; ++m->layer)
    for (int64_t i = 0; i < m->batch->copy_count; ++i) {
      const int64_t source = m->batch->copies[2 * i] * size, target = m->batch->copies[2 * i + 1] * size;
      memcpy(pool_slot(m, m->k_pool, target), pool_slot(m, m->k_pool, source), bytes);
      if (!model_is_latent(m)) memcpy(pool_slot(m, m->v_pool, target), pool_slot(m, m->v_pool, source), bytes);
    }
  m->layer = -1;
}

/* ---- attention ---- */

static paged_keys keys_of(const model *m, int64_t n, int64_t head) {
  const assay_model_config *c = &m->config;
  const int64_t keys = m->step.position[n] + 1, window = assay_model_window(c, m->layer);
  const int64_t offset = head / (c->heads / c->kv_heads) * c->head_size;
  int shift = 0;
  while ((int64_t)1 << shift < c->block_size)
    ++shift;
  return (paged_keys){.k = pool_slot(m, m->k_pool, 0) + offset,
                      .v = pool_slot(m, m->v_pool, 0) + offset,
                      .stride = c->kv_heads * c->head_size,
                      .table = m->batch->block_table + m->step.request[n] * m->batch->max_blocks,
                      .block_shift = shift,
                      .first = window > 0 && keys > window ? keys - window : 0,
                      .keys = keys,
                      .D = c->head_size};
}

static void keep_scores(const model *m, int64_t row, int64_t keys, const double *s, const double *p) {
  if (m->scores == NULL) return;
  double *to_s = m->scores + row * m->step.longest, *to_p = to_s + m->q.rows * m->config.heads * m->step.longest;
  for (int64_t t = 0; t < m->step.longest; ++t) {
    to_s[t] = t < keys ? s[t] : -INFINITY;
    to_p[t] = t < keys ? p[t] : 0;
  }
}

static void finish_attention(model *m, matrix *out) {
  if (m->scores != NULL) {
    const int64_t rows = m->q.rows * m->config.heads;
    model_take(m, "attn.s", &(matrix){m->scores, rows, m->step.longest});
    model_take(m, "attn.p", &(matrix){m->scores + rows * m->step.longest, rows, m->step.longest});
  }
  model_finish(m, "attn.out", out, m->act);
}

void model_softmax_attention(model *m, const matrix *q, matrix *out) {
  const int64_t H = m->config.heads, D = m->config.head_size;
  const double scale = m->config.score_scale > 0 ? m->config.score_scale : 1 / sqrt((double)D);
  const assay_tensor *sinks = model_weight(m, "attn", "sinks");
#pragma omp parallel for num_threads(m->threads)                                                                       \
    schedule(dynamic, 4) if (q->rows * H * m->step.longest * D > 16 * ALONE)
  for (int64_t i = 0; i < q->rows * H; ++i) {
    const paged_keys at = keys_of(m, i / H, i % H);
    const double sink = sinks != NULL ? assay_load_f64(sinks->data, sinks->dtype, i % H) : -(double)INFINITY;
    const softmax_shape shape = {scale, m->config.score_cap, sink};
    double *s = model_scratch(m), *p = s + m->step.longest;
    softmax_attention_row(&at, q->value + i * D, &shape, s, p, out->value + i * D);
    keep_scores(m, i, at.keys, s, p);
  }
  finish_attention(m, out);
}

void model_gate_attention(model *m, const matrix *q, matrix *out) {
  const assay_model_config *c = &m->config;
  const int64_t H = c->heads, D = c->head_size;
  const double scale = 1 / sqrt((double)D);
  const assay_tensor *taps = model_weight(m, "attn", "taps"), *gamma = model_weight(m, "attn", "gamma");
  gate_shape gate = {.F = c->gate_taps, .lo = c->gate_lo, .hi = c->gate_hi, .relu_pre = c->gate_relu_pre};
  assay_load_f64_row(taps->data, ASSAY_F32, 0, 1, gate.F, gate.tap);
#pragma omp parallel for num_threads(m->threads)                                                                       \
    schedule(dynamic, 4) if (q->rows * H * m->step.longest * D > 16 * ALONE)
  for (int64_t i = 0; i < q->rows * H; ++i) {
    const paged_keys at = keys_of(m, i / H, i % H);
    double *s = model_scratch(m), *p = s + m->step.longest, *r = p + m->step.longest;
    gate_attention_row(&at, q->value + i * D, scale, &gate, (double)((const float *)gamma->data)[i % H], s, r, p,
                       out->value + i * D);
    keep_scores(m, i, at.keys, s, p);
  }
  finish_attention(m, out);
}
