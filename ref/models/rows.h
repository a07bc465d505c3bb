/* rows.h: the operators of a forward pass on one row of doubles: the formulas alone (docs/definitions.md, sections 2 to
 * 5). `inner` is the type to which a definition rounds in the middle; ASSAY_NONE: it does not. */
#ifndef ASSAY_REF_MODELS_ROWS_H
#define ASSAY_REF_MODELS_ROWS_H

#include <stdbool.h>

#include "assay/tensor.h"

/* Computes act = x/2 · (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))). */
void gelu_new_row(const double *x, int64_t I, double *act);
/* gated [2 I]: g, then u. They compute act = g · sigmoid(g) · u, and act = max(g, 0) · u. */
void swiglu_row(const double *gated, int64_t I, double *act);
void reglu_row(const double *gated, int64_t I, double *act);
/* Computes act = gelu_new(g) · u. */
void geglu_row(const double *gated, int64_t I, double *act);
/* gated [2 I]: g, u, g, u ... It computes act = g sigmoid(1.702 g) (u + 1), with g cut from above and u on both sides
 * at `limit`; 0: neither is cut. */
void clamped_swiglu_row(const double *gated, int64_t I, double limit, double *act);

/* One head of one query row over the paged cache. Token t's key starts at k + slot(t) · stride. */
typedef struct paged_keys {
  const double *k, *v; /* keys and values of this head */
  int64_t stride;      /* between slots */
  const int32_t *table;
  int block_shift; /* block_size = 1 << block_shift */
  int64_t first;   /* the first visible key, 0 without a window */
  int64_t keys;    /* visible: first .. keys - 1 */
  int64_t D;
} paged_keys;

typedef struct gate_shape {
  int64_t F;
  double lo, hi, tap[8];
  bool relu_pre;
} gate_shape;

/* How a row's scores become weights. */
typedef struct softmax_shape {
  double scale;
  double cap;  /* s <- cap · tanh(s / cap); 0: off */
  double sink; /* the denominator gains e^sink; -Inf: no sink */
} softmax_shape;

/* Computes out = sum_t p_t v_t, p = softmax(s), s_t = scale (q · k_t). s and p [keys] keep their values for the
 * caller; keys that are not visible have -Inf and 0. */
void softmax_attention_row(const paged_keys *at, const double *q, const softmax_shape *shape, double *s, double *p,
                           double *out);
/* Computes p_t = gamma · clip(sum_j w_j r_{t-j}, lo, hi), r = max(s, 0); r [keys] is scratch. */
void gate_attention_row(const paged_keys *at, const double *q, double scale, const gate_shape *gate, double gamma,
                        double *s, double *r, double *p, double *out);

#endif
