/* model_naive_test.c: the forward passes against a second one that shares nothing with them. It takes one prompt at a
 * time, without cache or tiles, in whole matrices of long double. Each formula has another form than the reference's.
 */
#include <complex.h>
#undef I
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/dtype.h"
#include "model_driver.h"
#include "model_small.h"

typedef long double real;
enum { N = 40, WIDEST = 400 };

static assay_error error;
static const assay_model_config *c;
static const assay_model_weights *w;
static int layer;

static const assay_tensor *find(const char *name) {
  char full[ASSAY_MODEL_NAME];
  if (layer < 0)
    (void)snprintf(full, sizeof full, "%s", name);
  else
    (void)snprintf(full, sizeof full, "layers.%d.%s", layer, name);
  const int32_t i = assay_model_weight_index(c, full);
  return i < 0 ? NULL : &w->tensor[i];
}

/* Returns element i of a weight. A scalar is every element, and an absent weight is `otherwise`. */
static real element(const assay_tensor *t, int64_t i, real otherwise) {
  if (t == NULL) return otherwise;
  return (real)assay_load_f64(t->data, t->dtype, t->rank == 1 && t->shape[0] == 1 ? 0 : i);
}

static real at(const char *name, int64_t i, real otherwise) {
  return element(find(name), i, otherwise);
}

static const char *dotted(const char *name, const char *part) {
  static char text[2][64];
  static int turn;
  turn = !turn;
  (void)snprintf(text[turn], sizeof text[turn], "%s.%s", name, part);
  return text[turn];
}

typedef struct grid {
  real v[N][WIDEST];
} grid;

/* From the last input to the first, so that sums run the other way. */
static void linear(const char *name, const grid *x, int64_t in, int64_t out, grid *y) {
  const assay_tensor *weight = find(dotted(name, "w")), *bias = find(dotted(name, "b"));
  for (int64_t o = 0; o < out; ++o)
    for (int64_t n = 0; n < N; ++n) {
      real sum = element(bias, o, 0);
      for (int64_t i = in - 1; i >= 0; --i)
        sum += element(weight, o * in + i, 0) * x->v[n][i];
      y->v[n][o] = sum;
    }
}

/* Norm of `width` channels; RMS through the 2-norm, variance through the second moment, clip through fmin and fmax. */
static void norm(const char *name, real *x, int64_t width) {
  real mean = 0, moment = 0;
  for (int64_t i = 0; i < width; ++i) {
    mean += x[i] / (real)width;
    moment += x[i] * x[i] / (real)width;
  }
  for (int64_t i = 0; i < width; ++i) {
    if (c->arch == ASSAY_ASYNCT)
      x[i] = at(dotted(name, "beta"), i, 0) +
             at(dotted(name, "gamma"), i, 1) * fminl(1, fmaxl(-1, at(dotted(name, "alpha"), i, 1) * x[i]));
    else if (c->arch == ASSAY_GPT2)
      x[i] = at(dotted(name, "b"), i, 0) +
             at(dotted(name, "g"), i, 1) * (x[i] - mean) * powl(moment - mean * mean + (real)c->eps, -0.5L);
    else
      x[i] *= at(dotted(name, "g"), i, 1) * powl(moment + (real)c->eps, -0.5L);
  }
}

static void norms(const char *name, const grid *x, grid *y) {
  *y = *x;
  for (int64_t n = 0; n < N; ++n)
    norm(name, y->v[n], c->hidden);
}

/* Pairs as complex numbers, times e^(i angle). */
static void rotate(real *x, int64_t position) {
  const int64_t R = c->rotated;
  for (int64_t i = 0; i < R / 2; ++i) {
    const real angle = (real)position * expl(-2 * (real)i / (real)R * logl((real)c->rope_base));
    const int64_t a = c->rope_style == ASSAY_ROPE_NEOX ? i : 2 * i,
                  b = c->rope_style == ASSAY_ROPE_NEOX ? i + R / 2 : 2 * i + 1;
    const long double complex turned =
        (x[a] + x[b] * (long double complex)_Complex_I) * cexpl(angle * (long double complex)_Complex_I);
    x[a] = creall(turned);
    x[b] = cimagl(turned);
  }
}

/* Weights p of one row's keys 0 .. n. Gate: each score spreads over the F gates it takes part in. */
static void weights_of(const real *s, int64_t n, int64_t head, real *p) {
  real sum = 0;
  memset(p, 0, sizeof *p * N);
  for (int64_t t = 0; t <= n && c->arch == ASSAY_ASYNCT; ++t)
    for (int64_t j = 0; j < c->gate_taps && t + j <= n; ++j)
      p[t + j] += at("attn.taps", j, 0) * (c->gate_relu_pre ? fmaxl(s[t], 0) : s[t]);
  for (int64_t t = 0; t <= n; ++t) {
    if (c->arch == ASSAY_ASYNCT)
      p[t] = at("attn.gamma", head, 1) * fminl((real)c->gate_hi, fmaxl((real)c->gate_lo, p[t]));
    else
      sum += p[t] = expl(s[t]);
  }
  for (int64_t t = 0; t <= n && c->arch != ASSAY_ASYNCT; ++t)
    p[t] /= sum;
}

static void attention(const grid *qkv, grid *out) {
  const int64_t D = c->head_size, H = c->heads, G = H / c->kv_heads;
  for (int64_t h = 0; h < H; ++h)
    for (int64_t n = 0; n < N; ++n) {
      real s[N], p[N];
      for (int64_t t = 0; t <= n; ++t) {
        s[t] = 0;
        for (int64_t d = 0; d < D; ++d)
          s[t] += qkv->v[n][h * D + d] * qkv->v[t][(H + h / G) * D + d] * powl((real)D, -0.5L);
      }
      weights_of(s, n, h, p);
      for (int64_t d = 0; d < D; ++d) {
        out->v[n][h * D + d] = 0;
        for (int64_t t = n; t >= 0; --t)
          out->v[n][h * D + d] += p[t] * qkv->v[t][(H + c->kv_heads + h / G) * D + d];
      }
    }
}

static real activation(real g) {
  if (c->arch == ASSAY_ASYNCT) return (g + fabsl(g)) / 2;
  if (c->arch == ASSAY_QWEN3) return g / 2 * (1 + tanhl(g / 2)); /* g · sigmoid(g) */
  const real t = sqrtl(2 / acosl(-1)) * (g + 0.044715L * g * g * g);
  return g / (1 + expl(-2 * t)); /* (1 + tanh t) / 2 = sigmoid(2 t) */
}

static void add_sublayer(const char *post, grid *y, grid *x) {
  if (c->arch == ASSAY_ASYNCT) norms(post, y, y);
  for (int64_t n = 0; n < N; ++n)
    for (int64_t i = 0; i < c->hidden; ++i)
      x->v[n][i] += y->v[n][i];
}

static void naive(const int32_t *ids, double *logits) {
  static grid x, h, qkv, out, up;
  const int64_t C = c->hidden, D = c->head_size, I = c->intermediate, heads = c->heads + 2 * c->kv_heads;
  layer = -1;
  for (int64_t n = 0; n < N; ++n)
    for (int64_t i = 0; i < C; ++i)
      x.v[n][i] = at("embed.w", ids[n] * C + i, 0) + at("embed_pos.w", n * C + i, 0);
  for (layer = 0; layer < c->layers; ++layer) {
    norms("attn.pre", &x, &h);
    linear("attn.qkv", &h, C, heads * D, &qkv);
    for (int64_t n = 0; n < N; ++n)
      for (int64_t i = 0; i < c->heads + c->kv_heads; ++i) {
        if (c->qk_norm) norm(i < c->heads ? "attn.q_norm" : "attn.k_norm", qkv.v[n] + i * D, D);
        rotate(qkv.v[n] + i * D, n);
      }
    attention(&qkv, &out);
    linear("attn.proj", &out, c->heads * D, C, &h);
    add_sublayer("attn.post", &h, &x);
    norms("mlp.pre", &x, &h);
    linear("mlp.up", &h, C, c->arch == ASSAY_GPT2 ? I : 2 * I, &up);
    for (int64_t n = 0; n < N; ++n)
      for (int64_t i = 0; i < I; ++i)
        up.v[n][i] = activation(up.v[n][i]) * (c->arch == ASSAY_GPT2 ? 1 : up.v[n][I + i]);
    linear("mlp.down", &up, I, C, &h);
    add_sublayer("mlp.post", &h, &x);
  }
  layer = -1;
  norms("final", &x, &h);
  linear(c->tied_head ? "embed" : "head", &h, C, c->vocab, &out);
  for (int64_t n = 0; n < N; ++n)
    for (int64_t i = 0; i < c->vocab; ++i)
      logits[n * c->vocab + i] = (double)out.v[n][i];
}

Test(naive, forward_passes) {
  for (int number = 0; number < SMALL_MODELS; ++number) {
    const assay_model_config config = small_model(number);
    assay_model_weights weights;
    cr_assert_eq(assay_model_weights_alloc(&config, &weights, &error), ASSAY_OK);
    cr_assert_eq(assay_model_seed(&config, 11, &weights, &error), ASSAY_OK, "%s", error.text);
    c = &config;
    w = &weights;
    static int32_t ids[N];
    static double wanted[N * WIDEST], got[N * WIDEST];
    assay_model_prompt(c, 11, 0, N, ids);
    naive(ids, wanted);
    model_driver d;
    driver_open(&d, c, w, 16, N, 1, ASSAY_MODEL_EXACT);
    driver_prompt(&d, ids, N, 9, got);
    double most = 0, size = 0;
    for (int64_t i = 0; i < N * c->vocab; ++i) {
      if (!(fabs(got[i] - wanted[i]) <= most)) most = fabs(got[i] - wanted[i]);
      size += wanted[i] * wanted[i] / (double)(N * c->vocab);
    }
    cr_expect(most <= 1e-12 && size > 0.1, "model %d: off by %g, size %g", number, most, sqrt(size));
    driver_close(&d);
    assay_model_weights_free(&weights);
  }
}
