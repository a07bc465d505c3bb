/* rows.c: activations and attention, each as one loop nest over doubles. */
#include <math.h>

#include "ref/lib/vector.h"
#include "ref/models/rows.h"

void gelu_new_row(const double *x, int64_t I, double *act) {
  static const double root = 0.79788456080286535588; /* sqrt(2 / pi) */
  for (int64_t i = 0; i < I; ++i)
    act[i] = 0.5 * x[i] * (1 + tanh(root * (x[i] + 0.044715 * x[i] * x[i] * x[i])));
}

void swiglu_row(const double *gated, int64_t I, double *act) {
  for (int64_t i = 0; i < I; ++i)
    act[i] = gated[i] / (1 + exp(-gated[i])) * gated[I + i];
}

void reglu_row(const double *gated, int64_t I, double *act) {
  for (int64_t i = 0; i < I; ++i)
    act[i] = gated[i] > 0 ? gated[i] * gated[I + i] : 0;
}

void geglu_row(const double *gated, int64_t I, double *act) {
  gelu_new_row(gated, I, act);
  for (int64_t i = 0; i < I; ++i)
    act[i] *= gated[I + i];
}

void clamped_swiglu_row(const double *gated, int64_t I, double limit, double *act) {
  for (int64_t i = 0; i < I; ++i) {
    double g = gated[2 * i], u = gated[2 * i + 1];
    if (limit > 0 && g > limit) g = limit;
    if (limit > 0 && u > limit) u = limit;
    if (limit > 0 && u < -limit) u = -limit;
    act[i] = g / (1 + exp(-1.702 * g)) * (u + 1);
  }
}

/* ---- a short convolution, and the gated delta rule ----------------------------------------------------- */

void conv_silu_row(const double *e, const double *w, int64_t K, int64_t C, double *y) {
  for (int64_t c = 0; c < C; ++c) {
    double s = 0;
    for (int64_t j = 0; j < K; ++j)
      s += w[c * K + j] * e[j * C + c];
    y[c] = s / (1 + exp(-s));
  }
}

void delta_rule_row(const double *q, const double *k, const double *v, double alpha, double beta, double scale,
                    int64_t D_k, int64_t D_v, double *S, double *o) {
  for (int64_t i = 0; i < D_k * D_v; ++i)
    S[i] *= alpha;
  for (int64_t j = 0; j < D_v; ++j) {
    double read = 0;
    for (int64_t i = 0; i < D_k; ++i)
      read += S[i * D_v + j] * k[i];
    const double change = beta * (v[j] - read);
    o[j] = 0;
    for (int64_t i = 0; i < D_k; ++i) {
      S[i * D_v + j] += k[i] * change;
      o[j] += S[i * D_v + j] * q[i];
    }
    o[j] *= scale;
  }
}

/* ---- attention --------------------------------------------------------------------------------------- */

static inline int64_t slot_of(const paged_keys *at, int64_t t) {
  const int64_t block = (int64_t)at->table[t >> at->block_shift] << at->block_shift;
  return block | (t & (((int64_t)1 << at->block_shift) - 1));
}

void softmax_attention_row(const paged_keys *at, const double *q, const softmax_shape *shape, double *s, double *p,
                           double *out) {
  const int64_t D = at->D;
  double largest = shape->sink, sum = 0;
  for (int64_t t = 0; t < at->first; ++t) {
    s[t] = -(double)INFINITY;
    p[t] = 0;
  }
  for (int64_t t = at->first; t < at->keys; ++t) {
    s[t] = shape->scale * vector_dot(q, at->k + slot_of(at, t) * at->stride, D);
    if (shape->cap > 0) s[t] = shape->cap * tanh(s[t] / shape->cap);
    if (s[t] > largest) largest = s[t];
  }
  for (int64_t t = at->first; t < at->keys; ++t) {
    p[t] = exp(s[t] - largest);
    sum += p[t];
  }
  if (shape->sink > -(double)INFINITY) sum += exp(shape->sink - largest);
  vector_zero(out, D);
  for (int64_t t = at->first; t < at->keys; ++t) {
    p[t] /= sum;
    vector_add(out, p[t], at->v + slot_of(at, t) * at->stride, D);
  }
}

void latent_attention_row(const double *k, int64_t P, const double *pe, int64_t R, const double *v, int64_t V,
                          int64_t keys, const double *q, const double *q_pe, double scale, double *s, double *out) {
  double largest = -(double)INFINITY, sum = 0;
  for (int64_t t = 0; t < keys; ++t) {
    s[t] = scale * (vector_dot(q, k + t * P, P) + vector_dot(q_pe, pe + t * R, R));
    if (s[t] > largest) largest = s[t];
  }
  for (int64_t t = 0; t < keys; ++t)
    sum += s[t] = exp(s[t] - largest);
  vector_zero(out, V);
  for (int64_t t = 0; t < keys; ++t)
    vector_add(out, s[t] / sum, v + t * V, V);
}

void gate_attention_row(const paged_keys *at, const double *q, double scale, const gate_shape *gate, double gamma,
                        double *s, double *r, double *p, double *out) {
  const int64_t D = at->D;
  for (int64_t t = 0; t < at->keys; ++t) {
    s[t] = scale * vector_dot(q, at->k + slot_of(at, t) * at->stride, D);
    r[t] = gate->relu_pre && s[t] < 0 ? 0 : s[t];
  }
  vector_zero(out, D);
  for (int64_t t = 0; t < at->keys; ++t) {
    double z = 0;
    for (int64_t j = 0; j < gate->F && j <= t; ++j)
      z += gate->tap[j] * r[t - j];
    p[t] = gamma * (z < gate->lo ? gate->lo : z > gate->hi ? gate->hi : z);
    if (p[t] != 0) vector_add(out, p[t], at->v + slot_of(at, t) * at->stride, D);
  }
}
