/* rows.h: the operators of a forward pass on one row of doubles: the formulas alone (docs/definitions.md, sections 2 to
 * 5). `inner` is the type to which a definition rounds in the middle; ASSAY_NONE: it does not. */
#ifndef ASSAY_REF_MODELS_ROWS_H
#define ASSAY_REF_MODELS_ROWS_H

#include <math.h>
#include <stdbool.h>

#include "assay/tensor.h"

static inline double sigmoid(double x) {
  return 1 / (1 + exp(-x));
}
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

/* Computes y_c = silu(sum_j w_cj e_jc) of rows e [K, C], w [C, K]. */
void conv_silu_row(const double *e, const double *w, int64_t K, int64_t C, double *y);
/* Moves S [D_k, D_v] on by one row, and computes o = scale · S^T q: S <- alpha S, then S <- S + k (beta (v - S^T k))^T.
 */
void delta_rule_row(const double *q, const double *k, const double *v, double alpha, double beta, double scale,
                    int64_t D_k, int64_t D_v, double *S, double *o);

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
/* Computes out = sum_t p_t v_t over keys 0 .. keys - 1, p = softmax(s), s_t = scale (q · k_t + q_pe · pe_t). k [keys,
 * P], pe [keys, R] and v [keys, V] are dense. s [keys] is scratch. */
void latent_attention_row(const double *k, int64_t P, const double *pe, int64_t R, const double *v, int64_t V,
                          int64_t keys, const double *q, const double *q_pe, double scale, double *s, double *out);
/* Computes p_t = gamma · clip(sum_j w_j r_{t-j}, lo, hi), r = max(s, 0); r [keys] is scratch. */
void gate_attention_row(const paged_keys *at, const double *q, double scale, const gate_shape *gate, double gamma,
                        double *s, double *r, double *p, double *out);

#endif
