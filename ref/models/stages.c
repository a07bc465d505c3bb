/* stages.c: the calls of a forward pass that work on whole rows: embedding, norms, activations, residuals. */
#ifdef _OPENMP
#include <omp.h>
#endif
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/dtype.h"
#include "ref/lib/vector.h"
#include "ref/models/model.h"
#include "ref/models/rows.h"

/* ---- weights, taps, threads ---- */

static void full_name(const model *m, const char *name, const char *part, char full[ASSAY_MODEL_NAME]) {
  const char *dot = part[0] != '\0' ? "." : "";
  if (m->layer < 0)
    (void)snprintf(full, ASSAY_MODEL_NAME, "%s%s%s", name, dot, part);
  else
    (void)snprintf(full, ASSAY_MODEL_NAME, "layers.%d.%s%s%s", (int)m->layer, name, dot, part);
}

const assay_tensor *model_weight(const model *m, const char *name, const char *part) {
  char full[ASSAY_MODEL_NAME];
  full_name(m, name, part, full);
  const int32_t index = assay_model_weight_index(&m->config, full);
  return index < 0 ? NULL : &m->weights->tensor[index];
}

const double *model_vector(model *m, int place, const char *name, const char *part) {
  const assay_tensor *weight = model_weight(m, name, part);
  if (weight == NULL) return NULL;
  assay_load_f64_row(weight->data, weight->dtype, 0, 1, weight->shape[0], m->vector[place]);
  return m->vector[place];
}

bool model_wants(const model *m, const char *name) {
  if (m->taps == NULL) return false;
  char full[ASSAY_MODEL_NAME];
  full_name(m, name, "", full);
  return m->taps->wants == NULL || m->taps->wants(m->taps->context, full);
}

void model_replace(const model *m, const char *name, int64_t rows, int64_t k, int32_t *ids) {
  if (m->taps == NULL || m->taps->choose == NULL) return;
  char full[ASSAY_MODEL_NAME];
  full_name(m, name, "", full);
  m->taps->choose(m->taps->context, full, rows, k, ids);
}

void model_take(model *m, const char *name, const matrix *y) {
  if (!model_wants(m, name)) return;
  char full[ASSAY_MODEL_NAME];
  full_name(m, name, "", full);
  m->taps->take(m->taps->context, full, y->rows, y->width, y->value);
}

void model_finish(model *m, const char *name, matrix *y, assay_dtype dtype) {
  if (dtype != ASSAY_NONE) {
#pragma omp parallel for num_threads(m->threads) if (y->rows * y->width > ALONE)
    for (int64_t n = 0; n < y->rows; ++n)
      for (int64_t c = 0; c < y->width; ++c)
        y->value[n * y->width + c] = assay_round_f64(y->value[n * y->width + c], dtype);
  }
  model_take(m, name, y);
}

double *model_scratch(const model *m) {
#ifdef _OPENMP
  return m->scratch + omp_get_thread_num() * m->scratch_size;
#else
  return m->scratch;
#endif
}

/* ---- embedding, and the rows that want logits ---- */

void model_embed(model *m, matrix *x) {
  const assay_tensor *token = model_weight(m, "embed", "w"), *place = model_weight(m, "embed_pos", "w");
  const int64_t C = x->width;
  for (int64_t n = 0; n < x->rows; ++n) {
    double *row = x->value + n * C;
    assay_load_f64_row(token->data, token->dtype, m->batch->ids[n] * C, 1, C, row);
    for (int64_t c = 0; c < C && m->config.arch == ASSAY_GEMMA2; ++c)
      row[c] *= sqrt((double)C);
    if (place == NULL) continue;
    const int64_t position = m->step.position[n] < 0 ? 0 : m->step.position[n];
    assay_load_f64_row(place->data, place->dtype, position * C, 1, C, m->vector[0]);
    vector_add(row, 1, m->vector[0], C);
  }
  model_finish(m, "embed", x, m->act);
}

void model_pick(model *m, const matrix *x, matrix *picked) {
  for (int64_t i = 0; i < picked->rows; ++i)
    memcpy(picked->value + i * x->width, x->value + m->batch->logit_rows[i] * x->width,
           (size_t)x->width * sizeof *x->value);
}

/* ---- norms ---- */

norm model_norm_of(model *m, const char *name, int64_t C) {
  static const norm_kind kind[ASSAY_ARCH_COUNT] = {NORM_LAYER, NORM_RMS, NORM_UCLIP, NORM_RMS,
                                                   NORM_RMS,   NORM_RMS, NORM_RMS,   NORM_RMS};
  const assay_model_arch arch = m->config.arch;
  /* qwen3_next has one norm whose weight is g alone. */
  const bool plus_one = arch == ASSAY_GEMMA2 || (arch == ASSAY_QWEN3_NEXT && strcmp(name, "delta.norm") != 0);
  const bool uclip = arch == ASSAY_ASYNCT, in_f32 = arch == ASSAY_GPT_OSS || plus_one;
  const assay_tensor *weight = model_weight(m, name, uclip ? "gamma" : "g"), *alpha = model_weight(m, name, "alpha");
  const double *g = model_vector(m, 0, name, uclip ? "gamma" : "g");
  for (int64_t c = 0; c < C && plus_one; ++c)
    m->vector[0][c] += 1;
  return (norm){.kind = kind[arch],
                .C = C,
                .weight = g,
                .bias = model_vector(m, 1, name, uclip ? "beta" : "b"),
                .alpha = model_vector(m, 2, name, "alpha"),
                .weight_step = weight->shape[0] > 1,
                .alpha_step = alpha != NULL && alpha->shape[0] > 1,
                .eps = m->config.eps,
                .round_inner = !in_f32,
                .dtype = m->act};
}

void model_norm(model *m, const char *name, const matrix *x, matrix *y) {
  const int64_t C = x->width;
  const norm f = model_norm_of(m, name, C);
#pragma omp parallel for num_threads(m->threads) if (x->rows * C > ALONE)
  for (int64_t n = 0; n < x->rows; ++n)
    norm_apply(&f, norm_measure(&f, x->value + n * C), x->value + n * C, y->value + n * C);
  model_finish(m, name, y, m->act);
}

/* ---- MLP and residual stream ---- */

static void add_bias(model *m, const char *linear, matrix *y) {
  const double *b = model_vector(m, 0, linear, "b");
  if (b != NULL)
    for (int64_t n = 0; n < y->rows; ++n)
      vector_add(y->value + n * y->width, 1, b, y->width);
  char biased[ASSAY_MODEL_NAME];
  (void)snprintf(biased, sizeof biased, "%s.biased", linear);
  model_take(m, biased, y);
}

void model_residual(model *m, const char *name, matrix *y, const char *linear, matrix *x) {
  if (linear != NULL) add_bias(m, linear, y);
  vector_add(x->value, 1, y->value, x->rows * x->width);
  model_finish(m, name, x, m->act);
}

void model_bias_gelu_new(model *m, const char *name, matrix *up, const char *linear, matrix *act) {
  add_bias(m, linear, up);
#pragma omp parallel for num_threads(m->threads) if (up->rows * up->width > ALONE)
  for (int64_t n = 0; n < up->rows; ++n)
    gelu_new_row(up->value + n * up->width, act->width, act->value + n * act->width);
  model_finish(m, name, act, m->act);
}

static void gate(model *m, const char *name, const matrix *up, matrix *act,
                 void (*row)(const double *gated, int64_t I, double *act)) {
#pragma omp parallel for num_threads(m->threads) if (up->rows * up->width > ALONE)
  for (int64_t n = 0; n < up->rows; ++n)
    row(up->value + n * up->width, act->width, act->value + n * act->width);
  model_finish(m, name, act, m->act);
}

void model_swiglu(model *m, const char *name, const matrix *up, matrix *act) {
  gate(m, name, up, act, swiglu_row);
}

void model_geglu(model *m, const char *name, const matrix *up, matrix *act) {
  gate(m, name, up, act, geglu_row);
}

void model_clamped_swiglu(model *m, const char *name, const matrix *up, matrix *act) {
#pragma omp parallel for num_threads(m->threads) if (up->rows * up->width > ALONE)
  for (int64_t n = 0; n < up->rows; ++n)
    clamped_swiglu_row(up->value + n * up->width, act->width, m->config.act_limit, act->value + n * act->width);
  model_finish(m, name, act, m->act);
}

void model_reglu(model *m, const char *name, const matrix *up, matrix *act) {
  gate(m, name, up, act, reglu_row);
}
