/* rows.c: the operators of a forward pass, each as one loop nest over doubles. */
#include <math.h>

#include "core/dtype.h"
#include "ref/lib/vector.h"
#include "ref/models/rows.h"

void rms_norm_row(const double *x, const double *g, int64_t C, double eps, assay_dtype inner, double *y) {
  double square = 0;
  for (int64_t c = 0; c < C; ++c)
    square += x[c] * x[c];
  const double root = sqrt(square / (double)C + eps);
  for (int64_t c = 0; c < C; ++c)
    y[c] = assay_round_f64(x[c] / root, inner) * g[c];
}

void layer_norm_row(const double *x, const double *g, const double *b, int64_t C, double eps, double *y) {
  double mean = 0, variance = 0;
  for (int64_t c = 0; c < C; ++c)
    mean += x[c];
  mean /= (double)C;
  for (int64_t c = 0; c < C; ++c)
    variance += (x[c] - mean) * (x[c] - mean);
  variance /= (double)C;
  const double root = sqrt(variance + eps);
  for (int64_t c = 0; c < C; ++c)
    y[c] = (x[c] - mean) / root * g[c] + (b != NULL ? b[c] : 0);
}

void uclip_norm_row(const double *x, const double *alpha, const double *gamma, const double *beta, int64_t C,
                    double *y) {
  for (int64_t c = 0; c < C; ++c) {
    const double t = alpha[c] * x[c];
    y[c] = gamma[c] * (t < -1 ? -1 : t > 1 ? 1 : t) + (beta != NULL ? beta[c] : 0);
  }
}

void rope_row(double *x, const double *cosine, const double *sine, int64_t R, bool interleaved) {
  for (int64_t i = 0; i < R / 2; ++i) {
    double *a = interleaved ? x + 2 * i : x + i, *b = interleaved ? x + 2 * i + 1 : x + i + R / 2;
    const double real = *a, imaginary = *b;
    *a = real * cosine[i] - imaginary * sine[i];
    *b = real * sine[i] + imaginary * cosine[i];
  }
}

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

/* ---- attention --------------------------------------------------------------------------------------- */

static inline int64_t slot_of(const paged_keys *at, int64_t t) {
  const int64_t block = (int64_t)at->table[t >> at->block_shift] << at->block_shift;
  return block | (t & (((int64_t)1 << at->block_shift) - 1));
}

void softmax_attention_row(const paged_keys *at, const double *q, double scale, double *s, double *p, double *out) {
  const int64_t D = at->D;
  double largest = -INFINITY, sum = 0;
  for (int64_t t = 0; t < at->keys; ++t) {
    s[t] = scale * vector_dot(q, at->k + slot_of(at, t) * at->stride, D);
    if (s[t] > largest) largest = s[t];
  }
  for (int64_t t = 0; t < at->keys; ++t) {
    p[t] = exp(s[t] - largest);
    sum += p[t];
  }
  vector_zero(out, D);
  for (int64_t t = 0; t < at->keys; ++t) {
    p[t] /= sum;
    vector_add(out, p[t], at->v + slot_of(at, t) * at->stride, D);
  }
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
