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
enum { N = 40, WIDEST = 1040, EXPERTS = 32 };

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
  const bool inner = c->arch == ASSAY_DEEPSEEK_V3 && strstr(name, "_norm") != NULL;
  const bool plus_one = c->arch == ASSAY_GEMMA2 || (c->arch == ASSAY_QWEN3_NEXT && strncmp(name, "delta", 5) != 0);
  const real eps = inner ? 1e-6 : (real)c->eps;
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
      x[i] *= (at(dotted(name, "g"), i, 1) + plus_one) * powl(moment + eps, -0.5L);
  }
}

static void norms(const char *name, const grid *x, grid *y) {
  *y = *x;
  for (int64_t n = 0; n < N; ++n)
    norm(name, y->v[n], c->hidden);
}

/* Returns what is left of the angle of frequency i in a longer context: the share 1 / factor in full, or less. */
static real slower(int64_t i) {
  const real turns =
      (real)c->rope_original / (2 * acosl(-1)) * powl((real)c->rope_base, -2 * (real)i / (real)c->rotated);
  real kept = 1; /* share that keeps its speed */
  if (c->rope_kind == ASSAY_ROPE_LLAMA3) kept = (turns - (real)c->rope_low) / (real)(c->rope_high - c->rope_low);
  if (c->rope_kind == ASSAY_ROPE_YARN) { /* the frequencies that turn beta times over the original context */
    const real per = 2 * logl((real)c->rope_base) / (real)c->rotated;
    const real lo = logl((real)(c->rope_original / c->rope_beta_fast) / (2 * acosl(-1))) / per;
    const real hi = logl((real)(c->rope_original / c->rope_beta_slow) / (2 * acosl(-1))) / per;
    kept = 1 - ((real)i - fmaxl(lo, 0)) / (hi - fmaxl(lo, 0));
  }
  kept = fminl(1, fmaxl(0, kept));
  return kept + (1 - kept) / (c->rope_kind == ASSAY_ROPE_PLAIN ? 1 : (real)c->rope_factor);
}

/* Pairs as complex numbers, times e^(i angle). */
static void rotate(real *x, int64_t position) {
  const real own = (real)c->rope_concentration,
             other = c->rope_kind == ASSAY_ROPE_YARN ? 1 + logl((real)c->rope_factor) / 10 : 1;
  const real size = own > 0 ? own : other;
  const int64_t R = c->rotated;
  for (int64_t i = 0; i < R / 2; ++i) {
    const real angle = (real)position * expl(-2 * (real)i / (real)R * logl((real)c->rope_base)) * slower(i);
    const int64_t a = c->rope_style == ASSAY_ROPE_NEOX ? i : 2 * i,
                  b = c->rope_style == ASSAY_ROPE_NEOX ? i + R / 2 : 2 * i + 1;
    const long double complex turned =
        size * (x[a] + x[b] * (long double complex)_Complex_I) * cexpl(angle * (long double complex)_Complex_I);
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
  if (c->arch == ASSAY_GPT_OSS) sum = expl(at("attn.sinks", head, 0));
  for (int64_t t = 0; t <= n; ++t) {
    if (c->arch == ASSAY_ASYNCT)
      p[t] = at("attn.gamma", head, 1) * fminl((real)c->gate_hi, fmaxl((real)c->gate_lo, p[t]));
    else
      sum += p[t] = c->window > 0 && layer % 2 == 0 && n - t >= c->window ? 0 : expl(s[t]);
  }
  for (int64_t t = 0; t <= n && c->arch != ASSAY_ASYNCT; ++t)
    p[t] /= sum;
}

static real cap(real s, real most) {
  return most * (1 - 2 / (1 + expl(2 * s / most)));
}

static void attention(const grid *qkv, grid *out) {
  const int64_t D = c->head_size, H = c->heads, G = H / c->kv_heads;
  for (int64_t h = 0; h < H; ++h)
    for (int64_t n = 0; n < N; ++n) {
      real s[N], p[N];
      for (int64_t t = 0; t <= n; ++t) {
        s[t] = 0;
        for (int64_t d = 0; d < D; ++d)
          s[t] += qkv->v[n][h * D + d] * qkv->v[t][(H + h / G) * D + d] *
                  (c->arch == ASSAY_GEMMA2 ? (real)c->score_scale : powl((real)D, -0.5L));
        if (c->score_cap > 0) s[t] = cap(s[t], (real)c->score_cap);
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
  if (c->arch == ASSAY_QWEN3 || c->arch == ASSAY_QWEN3_MOE || c->arch == ASSAY_DEEPSEEK_V3 ||
      c->arch == ASSAY_QWEN3_NEXT)
    return g / 2 * (1 + tanhl(g / 2)); /* g · sigmoid(g) */
  const real t = sqrtl(2 / acosl(-1)) * (g + 0.044715L * g * g * g);
  return g / (1 + expl(-2 * t)); /* (1 + tanh t) / 2 = sigmoid(2 t) */
}

/* Multiplies one row by `out` rows of a weight from row `first` on. */
static void rows_of(const char *name, int64_t first, int64_t out, int64_t in, const real *x, real *y) {
  const assay_tensor *weight = find(dotted(name, "w")), *bias = find(dotted(name, "b"));
  for (int64_t o = 0; o < out; ++o) {
    y[o] = element(bias, first + o, 0);
    for (int64_t i = in - 1; i >= 0; --i)
      y[o] += element(weight, (first + o) * in + i, 0) * x[i];
  }
}

/* Returns the weights of all experts of one row: 0 for those that are not chosen. An expert is chosen if fewer than k
 * in kept groups have a larger score. A group is kept if fewer than groups_used groups are better. */
static void grouped(const real *logit, real *weight) {
  const int64_t E = c->experts, size = E / c->groups;
  real b[EXPERTS], best[EXPERTS], sum = 0;
  for (int64_t e = 0; e < E; ++e)
    b[e] = (1 + tanhl(logit[e] / 2)) / 2 + at("router.bias", e, 0);
  for (int64_t g = 0; g < c->groups; ++g) { /* the largest sum of two */
    best[g] = -1e30L;
    for (int64_t i = g * size; i < (g + 1) * size; ++i)
      for (int64_t j = i + 1; j < (g + 1) * size; ++j)
        best[g] = fmaxl(best[g], b[i] + b[j]);
  }
  for (int64_t e = 0; e < E; ++e) {
    int64_t better = 0, rank = 0;
    for (int64_t f = 0; f < E; ++f) {
      int64_t above = 0;
      for (int64_t g = 0; g < c->groups; ++g)
        above += best[g] > best[f / size];
      rank += above < c->groups_used && b[f] > b[e];
    }
    for (int64_t g = 0; g < c->groups; ++g)
      better += best[g] > best[e / size];
    weight[e] = better < c->groups_used && rank < c->experts_used ? b[e] - at("router.bias", e, 0) : 0;
    sum += weight[e];
  }
  for (int64_t e = 0; e < E; ++e)
    weight[e] *= (real)c->route_scale / (c->renormalise ? sum : 1);
}

/* Every expert on one row; those of a lower rank than k have weight 0. A rank is the number of larger logits. */
static void experts(const real *x, real *y) {
  const int64_t C = c->hidden, E = c->experts, I = c->expert_size, k = c->experts_used;
  real logit[EXPERTS], up[WIDEST], act[WIDEST], out[WIDEST], all = 0, chosen = 0;
  const bool oss = c->arch == ASSAY_GPT_OSS;
  bool in[EXPERTS];
  rows_of("router", 0, E, C, x, logit);
  for (int64_t e = 0; e < E; ++e) {
    int64_t rank = 0;
    for (int64_t f = 0; f < E; ++f)
      rank += logit[f] > logit[e];
    in[e] = rank < k;
    all += expl(logit[e]);
    chosen += in[e] ? expl(logit[e]) : 0;
  }
  const bool latent = c->arch == ASSAY_DEEPSEEK_V3;
  real share[EXPERTS];
  if (latent) grouped(logit, share);
  for (int64_t i = 0; i < C; ++i)
    y[i] = 0;
  if (c->shared_size > 0) {
    rows_of("shared.up", 0, 2 * c->shared_size, C, x, up);
    for (int64_t i = 0; i < c->shared_size; ++i)
      act[i] = activation(up[i]) * up[c->shared_size + i];
    rows_of("shared.down", 0, C, c->shared_size, act, y);
    if (c->arch == ASSAY_QWEN3_NEXT) {
      rows_of("shared.gate", 0, 1, C, x, act);
      for (int64_t i = 0; i < C; ++i)
        y[i] *= (1 + tanhl(act[0] / 2)) / 2;
    }
  }
  for (int64_t e = 0; e < E; ++e) {
    const real weight = latent  ? share[e]
                        : in[e] ? expl(logit[e]) / (c->renormalise ? chosen : all)
                                : 0,
               most = (real)c->act_limit;
    rows_of("experts.up", e * 2 * I, 2 * I, C, x, up);
    for (int64_t i = 0; i < I; ++i) {
      const real g = fminl(up[2 * i], most), u = fmaxl(-most, fminl(up[2 * i + 1], most));
      act[i] = oss ? g / 2 * (1 + tanhl(1.702L * g / 2)) * (1 + u) : activation(up[i]) * up[I + i];
    }
    rows_of("experts.down", e * C, C, I, act, out);
    for (int64_t i = 0; i < C; ++i)
      y[i] += weight * out[i];
  }
}

static void mlp(const grid *h, grid *up, grid *y) {
  const int64_t C = c->hidden, I = c->intermediate;
  if (assay_model_is_sparse(c, layer)) {
    for (int64_t n = 0; n < N; ++n)
      experts(h->v[n], y->v[n]);
    return;
  }
  linear("mlp.up", h, C, c->arch == ASSAY_GPT2 ? I : 2 * I, up);
  for (int64_t n = 0; n < N; ++n)
    for (int64_t i = 0; i < I; ++i)
      up->v[n][i] = activation(up->v[n][i]) * (c->arch == ASSAY_GPT2 ? 1 : up->v[n][I + i]);
  linear("mlp.down", up, I, C, y);
}

/* Latent attention with every key and value in full: [P, R] and V channels of each head. */
static void latent(const grid *h, grid *out) {
  static grid a, q, kv, wide;
  const int64_t H = c->heads, D = c->head_size, R = c->rotated, P = D - R, V = c->value_size, K = c->kv_rank;
  a = *h;
  if (c->q_rank > 0) {
    linear("attn.q_a", h, c->hidden, c->q_rank, &a);
    for (int64_t n = 0; n < N; ++n)
      norm("attn.q_norm", a.v[n], c->q_rank);
  }
  linear("attn.q_b", &a, c->q_rank > 0 ? c->q_rank : c->hidden, H * D, &q);
  linear("attn.kv_a", h, c->hidden, K + R, &kv);
  for (int64_t n = 0; n < N; ++n) {
    norm("attn.kv_norm", kv.v[n], K);
    rotate(kv.v[n] + K, n);
    for (int64_t head = 0; head < H; ++head)
      rotate(q.v[n] + head * D + P, n);
  }
  linear("attn.kv_b", &kv, K, H * (P + V), &wide);
  for (int64_t i = 0; i < N * H; ++i) {
    const int64_t n = i / H, head = i % H;
    real p[N], sum = 0;
    for (int64_t t = 0; t <= n; ++t) {
      real s = 0;
      for (int64_t d = 0; d < D; ++d)
        s += q.v[n][head * D + d] * (d < P ? wide.v[t][head * (P + V) + d] : kv.v[t][K + d - P]);
      sum += p[t] = expl(s * (real)c->score_scale);
    }
    for (int64_t v = 0; v < V; ++v) {
      out->v[n][head * V + v] = 0;
      for (int64_t t = n; t >= 0; --t)
        out->v[n][head * V + v] += p[t] / sum * wide.v[t][head * (P + V) + P + v];
    }
  }
}

/* A delta rule without a state: what row n reads follows from all rows before it.
 * under another key what the later rows have not taken away. u_t = beta_t (v_t - the reading of k_t from u_0 .. u_t-1),
 * and what row s has written counts by the product of the decays since. */
static void delta(const grid *h, grid *out) {
  static grid in, act;
  const int64_t H = c->linear_value_heads, K = c->linear_key_heads, D = c->linear_key_size, V = c->linear_value_size;
  const int64_t wide = 2 * K * D + H * V, J = c->conv_taps;
  linear("delta.in", h, c->hidden, wide + H * V + 2 * H, &in);
  for (int64_t n = 0; n < N; ++n)
    for (int64_t i = 0; i < wide; ++i) {
      real sum = 0;
      for (int64_t back = 0; back < J && back <= n; ++back)
        sum += at("delta.conv.w", i * J + J - 1 - back, 0) * in.v[n - back][i];
      act.v[n][i] = sum / 2 * (1 + tanhl(sum / 2));
    }
  for (int64_t n = 0; n < N; ++n)
    for (int64_t head = 0; head < 2 * K; ++head) {
      real square = 1e-6L;
      for (int64_t d = 0; d < D; ++d)
        square += powl(act.v[n][head * D + d], 2);
      for (int64_t d = 0; d < D; ++d)
        act.v[n][head * D + d] *= powl(square, -0.5L) * (head < K ? powl((real)D, -0.5L) : 1);
    }
  for (int64_t head = 0; head < H; ++head) {
    real u[N][WIDEST], g[N + 1];
    const int64_t key = head * K / H, of_q = key * D, of_k = (K + key) * D, of_v = 2 * K * D + head * V;
    g[0] = 0; /* running sum of the decays' logarithms */
    for (int64_t n = 0; n < N; ++n) {
      const real *row = in.v[n] + wide + H * V, a = row[H + head] + at("delta.dt_bias", head, 0);
      const real beta = (1 + tanhl(row[head] / 2)) / 2;
      g[n + 1] = g[n] - expl(at("delta.A_log", head, 0)) * logl(1 + expl(a));
      for (int64_t v = 0; v < V; ++v)
        u[n][v] = beta * act.v[n][of_v + v];
      for (int64_t s = 0; s < n; ++s) {
        real match = 0;
        for (int64_t d = 0; d < D; ++d)
          match += act.v[n][of_k + d] * act.v[s][of_k + d];
        for (int64_t v = 0; v < V; ++v)
          u[n][v] -= beta * match * expl(g[n + 1] - g[s + 1]) * u[s][v];
      }
      for (int64_t v = 0; v < V; ++v)
        out->v[n][head * V + v] = 0;
      for (int64_t s = n; s >= 0; --s) {
        real match = 0;
        for (int64_t d = 0; d < D; ++d)
          match += act.v[n][of_q + d] * act.v[s][of_k + d];
        for (int64_t v = 0; v < V; ++v)
          out->v[n][head * V + v] += match * expl(g[n + 1] - g[s + 1]) * u[s][v];
      }
      norm("delta.norm", out->v[n] + head * V, V);
      for (int64_t v = 0; v < V; ++v)
        out->v[n][head * V + v] *= activation(in.v[n][wide + head * V + v]);
    }
  }
}

static void heads_of(const grid *h, grid *qkv, grid *out) {
  const int64_t D = c->head_size;
  linear("attn.qkv", h, c->hidden, (c->heads + 2 * c->kv_heads) * D, qkv);
  for (int64_t n = 0; n < N; ++n)
    for (int64_t i = 0; i < c->heads + c->kv_heads; ++i) {
      if (c->qk_norm) norm(i < c->heads ? "attn.q_norm" : "attn.k_norm", qkv->v[n] + i * D, D);
      rotate(qkv->v[n] + i * D, n);
    }
  attention(qkv, out);
  if (c->arch != ASSAY_QWEN3_NEXT) return;
  linear("attn.gate", h, c->hidden, c->heads * D, qkv);
  for (int64_t n = 0; n < N; ++n)
    for (int64_t i = 0; i < c->heads * D; ++i)
      out->v[n][i] *= (1 + tanhl(qkv->v[n][i] / 2)) / 2;
}

static void add_sublayer(const char *post, grid *y, grid *x) {
  if (c->arch == ASSAY_ASYNCT || c->arch == ASSAY_GEMMA2) norms(post, y, y);
  for (int64_t n = 0; n < N; ++n)
    for (int64_t i = 0; i < c->hidden; ++i)
      x->v[n][i] += y->v[n][i];
}

static void naive(const int32_t *ids, double *logits) {
  static grid x, h, qkv, out, up;
  const int64_t C = c->hidden;
  layer = -1;
  for (int64_t n = 0; n < N; ++n)
    for (int64_t i = 0; i < C; ++i)
      x.v[n][i] = at("embed.w", ids[n] * C + i, 0) * (c->arch == ASSAY_GEMMA2 ? powl((real)C, 0.5L) : 1) +
                  at("embed_pos.w", n * C + i, 0);
  for (layer = 0; layer < c->layers; ++layer) {
    norms("attn.pre", &x, &h);
    if (c->arch == ASSAY_DEEPSEEK_V3)
      latent(&h, &out);
    else if (assay_model_is_linear(c, layer))
      delta(&h, &out);
    else
      heads_of(&h, &qkv, &out);
    if (assay_model_is_linear(c, layer))
      linear("delta.proj", &out, c->linear_value_heads * c->linear_value_size, C, &h);
    else
      linear("attn.proj", &out, c->heads * (c->value_size > 0 ? c->value_size : c->head_size), C, &h);
    add_sublayer("attn.post", &h, &x);
    norms("mlp.pre", &x, &h);
    mlp(&h, &up, &out);
    add_sublayer("mlp.post", &out, &x);
  }
  layer = -1;
  norms("final", &x, &h);
  linear(c->tied_head ? "embed" : "head", &h, C, c->vocab, &out);
  for (int64_t n = 0; n < N; ++n)
    for (int64_t i = 0; i < c->vocab; ++i)
      logits[n * c->vocab + i] = (double)(c->logit_cap > 0 ? cap(out.v[n][i], (real)c->logit_cap) : out.v[n][i]);
}

Test(naive, forward_passes) {
  for (int number = 0; number < REF_MODELS; ++number) {
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
    driver_prompt(&d, ids, N, 13, got); /* the last chunk has one token */
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
