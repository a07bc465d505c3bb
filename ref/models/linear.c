/* linear.c: y = x W^T (+ b) and the head. W [out, in] stays in its storage type. PANEL rows of it at a time are widened
 * to f64 and multiplied by one dgemm of one thread. Threads share the panels; which thread computes a panel does not
 * change it. */
#include <cblas.h>
#include <math.h>

#include "core/dtype.h"
#include "ref/lib/vector.h"
#include "ref/models/model.h"

/* Multiplies `rows` rows of codes, from row `first` of the weight on, by the scales of their blocks. */
static void scale_panel(const assay_tensor *codes, int64_t first, int64_t rows, double *panel) {
  const assay_tensor *scales = codes + 1;
  const int64_t in = codes->shape[1], B = ASSAY_MODEL_FP8_BLOCK;
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t i = 0; i < in; ++i)
      panel[r * in + i] *= assay_load_f64(scales->data, scales->dtype, (first + r) / B * scales->shape[1] + i / B);
}

/* Rounds 128 channels: s = fl(max(a, 1e-4) / 448), and x becomes s · e4m3(x / s), a being the largest |x|. Source:
 * docs/definitions.md, section 13. */
static void round_group(const double *x, int64_t count, double *rounded) {
  double a = 1e-4;
  for (int64_t i = 0; i < count; ++i)
    a = fmax(a, fabs(x[i]));
  const double s = assay_round_f64(a / 448, ASSAY_F32);
  for (int64_t i = 0; i < count; ++i)
    rounded[i] = s * assay_round_f64(fmax(-448, fmin(448, x[i] / s)), ASSAY_E4M3);
}

matrix model_factor(model *m, const assay_tensor *weight, const matrix *x) {
  if (weight->dtype != ASSAY_E4M3 || m->act == ASSAY_NONE) return *x;
  const matrix y = {m->narrowed.value, x->rows, x->width};
  const int64_t B = ASSAY_MODEL_FP8_BLOCK;
  for (int64_t n = 0; n < x->rows; ++n)
    for (int64_t i = 0; i < x->width; i += B)
      round_group(x->value + n * x->width + i, x->width - i < B ? x->width - i : B, y.value + n * x->width + i);
  return y;
}

void model_product(model *m, const assay_tensor *weight, int64_t first, int64_t out, const matrix *x, double *y) {
  const int64_t in = weight->shape[1], panels = (out + PANEL - 1) / PANEL;
  if (x->rows == 0) return;
  openblas_set_num_threads(1);
#pragma omp parallel for num_threads(m->threads) schedule(dynamic) if (out * in > 8 * ALONE)
  for (int64_t i = 0; i < panels; ++i) {
    const int64_t at = i * PANEL, rows = out - at < PANEL ? out - at : PANEL;
    double *panel = model_scratch(m);
    assay_load_f64_row(weight->data, weight->dtype, (first + at) * in, 1, rows * in, panel);
    if (weight->dtype == ASSAY_E4M3) scale_panel(weight, first + at, rows, panel);
    cblas_dgemm(CblasRowMajor, CblasNoTrans, CblasTrans, (int)x->rows, (int)rows, (int)in, 1.0, x->value, (int)in,
                panel, (int)in, 0.0, y + at, (int)out);
  }
}

void model_linear(model *m, const char *name, const matrix *x, matrix *y, bool biased) {
  const assay_tensor *w = model_weight(m, name, "w");
  const matrix factor = model_factor(m, w, x);
  model_product(m, w, 0, y->width, &factor, y->value);
  const double *b = biased ? model_vector(m, 0, name, "b") : NULL;
  if (b != NULL)
    for (int64_t n = 0; n < y->rows; ++n)
      vector_add(y->value + n * y->width, 1, b, y->width);
  model_finish(m, name, y, m->act);
}

void model_router(model *m, const char *name, const matrix *x, matrix *y) {
  model_product(m, model_weight(m, name, "w"), 0, y->width, x, y->value);
  model_finish(m, name, y, m->logit);
}

void model_head(model *m, const matrix *rows) {
  matrix logits = {m->logits, rows->rows, m->config.vocab};
  const double cap = m->config.logit_cap;
  model_product(m, model_weight(m, m->config.tied_head ? "embed" : "head", "w"), 0, logits.width, rows, logits.value);
  for (int64_t i = 0; i < logits.rows * logits.width && cap > 0; ++i)
    logits.value[i] = cap * tanh(logits.value[i] / cap);
  model_finish(m, "logits", &logits, m->logit);
}
