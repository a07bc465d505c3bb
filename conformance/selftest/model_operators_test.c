/* model_operators_test.c: a forward pass in mirror mode is its operators. Every stage's stored result is the operator's
 * own reference over the stage before, rounded, bit for bit. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "conformance/trial/foreign.h"
#include "core/dtype.h"
#include "core/registry_add.h"
#include "model_driver.h"
#include "model_small.h"

#define ASSAY_OP(stem) const assay_op *assay_op_##stem(void);
#include "assay/ops.def"
#undef ASSAY_OP

enum { N = 21, TAPS = 64, PICKED = 3 };

static assay_error error;
static assay_model_config c;
static assay_model_weights w;
static int layer;
static foreign_call call;
static int32_t ids[N];
static const int32_t picked[PICKED] = {20, 3, 3};

static void setup(void) {
#define ASSAY_OP(stem) cr_assert_eq(assay_registry_add_op(assay_op_##stem(), &error), ASSAY_OK, "%s", error.text);
#include "assay/ops.def"
#undef ASSAY_OP
}

TestSuite(operators, .init = setup);

/* ---- taps and weights by name, of the layer at hand ---- */

static struct tap {
  char name[ASSAY_MODEL_NAME];
  double *value;
} taps[TAPS];
static int64_t tap_count;

static void keep(void *context, const char *name, int64_t rows, int64_t width, const double *value) {
  (void)context;
  if (strstr(name, ".biased") != NULL) return;
  cr_assert_lt(tap_count, TAPS);
  struct tap *t = &taps[tap_count++];
  (void)snprintf(t->name, sizeof t->name, "%s", name);
  t->value = malloc(sizeof(double) * (size_t)(rows * width));
  memcpy(t->value, value, sizeof(double) * (size_t)(rows * width));
}

static const char *full(const char *name) {
  static char text[ASSAY_MODEL_NAME];
  if (layer < 0)
    (void)snprintf(text, sizeof text, "%s", name);
  else
    (void)snprintf(text, sizeof text, "layers.%d.%s", layer, name);
  return text;
}

static const double *tap(const char *name) {
  for (int64_t i = 0; i < tap_count; ++i)
    if (strcmp(taps[i].name, full(name)) == 0) return taps[i].value;
  cr_assert_fail("no tap %s", full(name));
  return NULL;
}

/* ---- one call of an operator ---- */

static void begin(const char *op) {
  cr_assert_eq(foreign_begin(&call, op, &error), ASSAY_OK, "%s", error.text);
}

static void set(const char *param, double value) {
  cr_assert_eq(foreign_set(&call, param, value, &error), ASSAY_OK, "%s", error.text);
}

static void values(const char *arg, assay_dtype dtype, int32_t rank, const int64_t *shape, const double *value) {
  cr_assert_eq(foreign_values(&call, arg, dtype, rank, shape, value, &error), ASSAY_OK, "%s: %s", arg, error.text);
}

static void rows(const char *arg, int64_t count, int64_t width, const double *value) {
  values(arg, c.act_dtype, 2, (const int64_t[]){count, width}, value);
}

/* A weight as it is; `missing` is left out. */
static void weight(const char *arg, const char *name) {
  const int32_t i = assay_model_weight_index(&c, full(name));
  if (i < 0) return;
  const assay_tensor *t = &w.tensor[i];
  cr_assert_eq(foreign_tensor(&call, arg, t->dtype, t->rank, t->shape, t->data, &error), ASSAY_OK, "%s: %s", name,
               error.text);
}

static void integers(const char *arg, int64_t count, const int32_t *value) {
  cr_assert_eq(foreign_tensor(&call, arg, ASSAY_I32, 1, &count, value, &error), ASSAY_OK, "%s: %s", arg, error.text);
}

/* Where a result goes. */
static void room(const char *arg, assay_dtype dtype, int32_t rank, const int64_t *shape) {
  cr_assert_eq(foreign_tensor(&call, arg, dtype, rank, shape, NULL, &error), ASSAY_OK, "%s: %s", arg, error.text);
}

static void reference(void) {
  cr_assert_eq(foreign_reference(&call, &error), ASSAY_OK, "%s: %s", call.op->name, error.text);
}

/* Output `arg` is the tap `name`, from element `first` on. */
static void expect_at(const char *arg, const char *name, int64_t first, int64_t count, assay_dtype dtype) {
  const int32_t place = foreign_output(&call, arg);
  cr_assert_geq(place, 0, "%s", arg);
  const double *got = tap(name) + first, *value = call.expected[place].value;
  for (int64_t i = 0; i < count; ++i)
    cr_assert_eq(got[i], assay_round_f64(value[i], dtype), "model of %s, %s by %s: element %lld is %.17g, not %.17g",
                 assay_model_arch_name(c.arch), full(name), call.op->name, (long long)i, got[i],
                 assay_round_f64(value[i], dtype));
}

static void expect(const char *arg, const char *name, int64_t count, assay_dtype dtype) {
  expect_at(arg, name, 0, count, dtype);
}

static void finish(const char *arg, const char *name, int64_t count) {
  reference();
  expect(arg, name, count, c.act_dtype);
  foreign_free(&call);
}

/* ---- the stages ---- */

static void norm(const char *name, const double *x, int64_t count) {
  static const char *const op[] = {"layer_norm", "rms_norm", "uclip_norm"};
  static const char *const part[][2] = {{"g", "b"}, {"g", ""}, {"gamma", "beta"}};
  const int family = c.arch > ASSAY_ASYNCT ? ASSAY_QWEN3 : (int)c.arch;
  begin(op[family]);
  rows("x", count, c.hidden, x);
  for (int i = 0; i < 2; ++i) {
    char of[ASSAY_MODEL_NAME];
    (void)snprintf(of, sizeof of, "%s.%s", name, part[family][i]);
    weight(part[family][i], of);
  }
  if (c.arch == ASSAY_GPT_OSS) set("round_inner", 0);
  if (c.arch == ASSAY_ASYNCT) {
    char of[ASSAY_MODEL_NAME];
    (void)snprintf(of, sizeof of, "%s.alpha", name);
    weight("alpha", of);
  } else {
    set("eps", c.eps);
  }
  room("y", c.act_dtype, 2, (const int64_t[]){count, c.hidden});
  finish("y", name, count * c.hidden);
}

static void linear(const char *name, const double *x, int64_t in, int64_t out, bool biased) {
  char of[2][ASSAY_MODEL_NAME];
  (void)snprintf(of[0], sizeof of[0], "%s.w", name);
  (void)snprintf(of[1], sizeof of[1], "%s.b", name);
  begin("gemm");
  rows("a", N, in, x);
  weight("b", of[0]);
  if (biased) weight("bias", of[1]);
  room("c", c.act_dtype, 2, (const int64_t[]){N, out});
  finish("c", name, N * out);
}

static double *part_of(const double *from, int64_t width, int64_t first, int64_t count) {
  double *part = malloc(sizeof(double) * (size_t)(N * count));
  for (int64_t n = 0; n < N; ++n)
    memcpy(part + n * count, from + n * width + first, sizeof(double) * (size_t)count);
  return part;
}

static void two_heads(const char *op, const double *q, const double *k) {
  begin(op);
  values("q", c.act_dtype, 3, (const int64_t[]){N, c.heads, c.head_size}, q);
  values("k", c.act_dtype, 3, (const int64_t[]){N, c.kv_heads, c.head_size}, k);
}

static void expect_heads(const char *q, const char *k) {
  reference();
  expect("q", q, N * c.heads * c.head_size, c.act_dtype);
  expect("k", k, N * c.kv_heads * c.head_size, c.act_dtype);
  foreign_free(&call);
}

/* The table of rotation, [N, R / 2] each. */
static void table_of(double *cosine, double *sine) {
  const int64_t half = c.rotated / 2;
  for (int64_t n = 0; n < N; ++n)
    for (int64_t i = 0; i < half; ++i) {
      const double angle = (double)n * pow(c.rope_base, -2 * (double)i / (double)c.rotated);
      cosine[n * half + i] = cos(angle);
      sine[n * half + i] = sin(angle);
    }
  if (c.rope_kind == ASSAY_ROPE_PLAIN) return;
  begin("rope_table");
  set("kind", c.rope_kind);
  set("base", c.rope_base);
  set("factor", c.rope_factor);
  set("original", c.rope_original);
  set("beta_fast", c.rope_beta_fast);
  set("truncate", c.rope_truncate);
  room("cos", ASSAY_F32, 2, (const int64_t[]){N, half});
  room("sin", ASSAY_F32, 2, (const int64_t[]){N, half});
  reference();
  memcpy(cosine, call.expected[foreign_output(&call, "cos")].value, sizeof(double) * (size_t)(N * half));
  memcpy(sine, call.expected[foreign_output(&call, "sin")].value, sizeof(double) * (size_t)(N * half));
  foreign_free(&call);
}

static void heads(void) {
  const int64_t D = c.head_size, width = (c.heads + 2 * c.kv_heads) * D;
  double *q = part_of(tap("attn.qkv"), width, 0, c.heads * D);
  double *k = part_of(tap("attn.qkv"), width, c.heads * D, c.kv_heads * D);
  const double *q_in = q, *k_in = k;
  if (c.qk_norm) {
    two_heads("qk_norm", q, k);
    const bool uclip = c.arch == ASSAY_ASYNCT;
    set("kind", uclip);
    if (!uclip) set("eps", c.eps);
    weight("q_gamma", uclip ? "attn.q_norm.gamma" : "attn.q_norm.g");
    weight("k_gamma", uclip ? "attn.k_norm.gamma" : "attn.k_norm.g");
    weight("q_alpha", "attn.q_norm.alpha");
    weight("k_alpha", "attn.k_norm.alpha");
    expect_heads("attn.q_norm", "attn.k_norm");
    q_in = tap("attn.q_norm");
    k_in = tap("attn.k_norm");
  }
  if (c.rotated > 0) {
    double cosine[N * 128], sine[N * 128];
    int32_t positions[N];
    for (int32_t n = 0; n < N; ++n)
      positions[n] = n;
    table_of(cosine, sine);
    two_heads("rope", q_in, k_in);
    values("cos", ASSAY_F32, 2, (const int64_t[]){N, c.rotated / 2}, cosine);
    values("sin", ASSAY_F32, 2, (const int64_t[]){N, c.rotated / 2}, sine);
    integers("positions", N, positions);
    set("style", c.rope_style);
    expect_heads("attn.q", "attn.k");
  }
  free(q);
  free(k);
}

/* The cache in logical order; fp8: codes of x / scale. */
static void cache(const char *arg, const char *name, const char *scale, int64_t blocks) {
  const int64_t bs = c.block_size, heads = c.kv_heads, D = c.head_size;
  const bool fp8 = c.kv_dtype != c.act_dtype;
  double *stored = calloc((size_t)(blocks * bs * heads * D), sizeof *stored);
  const double *from = tap(name);
  const float *factor = fp8 ? w.tensor[assay_model_weight_index(&c, full(scale))].data : NULL;
  for (int64_t i = 0; i < N * heads * D; ++i)
    stored[i] = fp8 ? (double)((float)from[i] / factor[i / D % heads]) : from[i];
  values(arg, c.kv_dtype, 4, (const int64_t[]){blocks, bs, heads, D}, stored);
  free(stored);
}

static void attention(void) {
  const int64_t bs = c.block_size, blocks = (N + bs - 1) / bs;
  int32_t table[N];
  for (int32_t i = 0; i < blocks; ++i)
    table[i] = i;
  begin(c.arch == ASSAY_ASYNCT ? "gate_attention" : "softmax_attention");
  values("q", c.act_dtype, 3, (const int64_t[]){N, c.heads, c.head_size}, tap("attn.q"));
  cache("k_cache", "attn.k", "attn.k_scale", blocks);
  cache("v_cache", "attn.v", "attn.v_scale", blocks);
  if (c.kv_dtype != c.act_dtype) {
    weight("k_scale", "attn.k_scale");
    weight("v_scale", "attn.v_scale");
    set("scale_per_head", 1);
  }
  cr_assert_eq(foreign_tensor(&call, "block_table", ASSAY_I32, 2, (const int64_t[]){1, blocks}, table, &error),
               ASSAY_OK);
  integers("kv_len", 1, (const int32_t[]){N});
  integers("cu_q", 2, (const int32_t[]){0, N});
  if (c.arch == ASSAY_ASYNCT) {
    weight("taps", "attn.taps");
    weight("gamma", "attn.gamma");
    set("lo", c.gate_lo);
    set("hi", c.gate_hi);
    set("relu_pre", c.gate_relu_pre);
  }
  if (c.arch == ASSAY_GPT_OSS) {
    weight("sink", "attn.sinks");
    set("window", (double)assay_model_window(&c, layer));
  }
  room("out", c.act_dtype, 3, (const int64_t[]){N, c.heads, c.head_size});
  finish("out", "attn.out", N * c.heads * c.head_size);
}

static void residual(const char *name, const double *stream, const char *sublayer, const char *bias) {
  begin("bias_residual");
  rows("res", N, c.hidden, stream);
  rows("y", N, c.hidden, tap(sublayer));
  if (c.arch == ASSAY_GPT2) weight("b", bias);
  finish("res", name, N * c.hidden);
}

static void activation(void) {
  static const char *const op[] = {"bias_gelu_new", "swiglu", "reglu", "swiglu"};
  const bool gelu = c.arch == ASSAY_GPT2;
  begin(op[c.arch]);
  rows("x", N, gelu ? c.intermediate : 2 * c.intermediate, tap("mlp.up"));
  if (gelu)
    weight("b", "mlp.up.b");
  else
    room("y", c.act_dtype, 2, (const int64_t[]){N, c.intermediate});
  finish(gelu ? "x" : "y", "mlp.act", N * c.intermediate);
}

/* ---- a sparse layer ---- */

/* The product of each expert's rows, in the order of experts. */
static void expert_linear(const char *name, const double *x, int64_t in, int64_t out, const int64_t *first) {
  char of[2][40];
  (void)snprintf(of[0], sizeof of[0], "%.30s.w", name);
  (void)snprintf(of[1], sizeof of[1], "%.30s.b", name);
  const int32_t w_at = assay_model_weight_index(&c, full(of[0])), b_at = assay_model_weight_index(&c, full(of[1]));
  const int64_t size = assay_dtype_size(c.weight_dtype), shape[2] = {out, in};
  for (int64_t e = 0; e < c.experts; ++e) {
    const int64_t count = first[e + 1] - first[e];
    if (count == 0) continue;
    begin("gemm");
    rows("a", count, in, x + first[e] * in);
    cr_assert_eq(foreign_tensor(&call, "b", c.weight_dtype, 2, shape,
                                (unsigned char *)w.tensor[w_at].data + e * out * in * size, &error),
                 ASSAY_OK, "%s", error.text);
    if (b_at >= 0)
      cr_assert_eq(foreign_tensor(&call, "bias", c.weight_dtype, 1, shape,
                                  (unsigned char *)w.tensor[b_at].data + e * out * size, &error),
                   ASSAY_OK, "%s", error.text);
    room("c", c.act_dtype, 2, (const int64_t[]){count, out});
    reference();
    expect_at("c", name, first[e] * out, count * out, c.act_dtype);
    foreign_free(&call);
  }
}

static void experts(void) {
  const int64_t k = c.experts_used, I = c.expert_size, C = c.hidden;
  const bool oss = c.arch == ASSAY_GPT_OSS;
  int32_t pos[N * 4];
  int64_t first[16], next = 0;
  double *routed = malloc(sizeof(double) * (size_t)(N * k * C));
  linear("router", tap("mlp.pre"), C, c.experts, true);
  begin("moe_router");
  rows("x", N, c.experts, tap("router"));
  set("select_on", oss);
  set("renormalise", oss || c.renormalise);
  room("ids", ASSAY_I32, 2, (const int64_t[]){N, k});
  room("weights", ASSAY_F32, 2, (const int64_t[]){N, k});
  reference();
  expect("ids", "router.ids", N * k, ASSAY_F32);
  expect("weights", "router.weights", N * k, ASSAY_F32);
  foreign_free(&call);
  for (int64_t e = 0; e < c.experts; ++e) {
    first[e] = next;
    for (int64_t i = 0; i < N * k; ++i) {
      if (tap("router.ids")[i] != (double)e) continue;
      memcpy(routed + next * C, tap("mlp.pre") + i / k * C, sizeof(double) * (size_t)C);
      pos[i] = (int32_t)next++;
    }
  }
  first[c.experts] = next;
  expert_linear("experts.up", routed, C, 2 * I, first);
  begin("swiglu");
  rows("x", N * k, 2 * I, tap("experts.up"));
  if (oss) {
    set("limit", c.act_limit);
    set("alpha", 1.702);
    set("beta", 1);
    set("layout", 1);
  }
  room("y", c.act_dtype, 2, (const int64_t[]){N * k, I});
  finish("y", "experts.act", N * k * I);
  expert_linear("experts.down", tap("experts.act"), I, C, first);
  begin("moe_combine");
  rows("z", N * k, C, tap("experts.down"));
  cr_assert_eq(foreign_tensor(&call, "pos", ASSAY_I32, 2, (const int64_t[]){N, k}, pos, &error), ASSAY_OK);
  values("w", ASSAY_F32, 2, (const int64_t[]){N, k}, tap("router.weights"));
  room("y", c.act_dtype, 2, (const int64_t[]){N, C});
  finish("y", "moe.out", N * C);
  free(routed);
}

static void one_layer(const double *stream) {
  const bool own_bias = c.arch != ASSAY_GPT2, post = c.arch == ASSAY_ASYNCT;
  norm("attn.pre", stream, N);
  linear("attn.qkv", tap("attn.pre"), c.hidden, (c.heads + 2 * c.kv_heads) * c.head_size, true);
  heads();
  attention();
  linear("attn.proj", tap("attn.out"), c.heads * c.head_size, c.hidden, own_bias);
  if (post) norm("attn.post", tap("attn.proj"), N);
  residual("attn.residual", stream, post ? "attn.post" : "attn.proj", "attn.proj.b");
  norm("mlp.pre", tap("attn.residual"), N);
  if (assay_model_is_sparse(&c, layer)) {
    experts();
    residual("mlp.residual", tap("attn.residual"), "moe.out", "");
    return;
  }
  linear("mlp.up", tap("mlp.pre"), c.hidden, (own_bias ? 2 : 1) * c.intermediate, own_bias);
  activation();
  linear("mlp.down", tap("mlp.act"), c.intermediate, c.hidden, own_bias);
  if (post) norm("mlp.post", tap("mlp.down"), N);
  residual("mlp.residual", tap("attn.residual"), post ? "mlp.post" : "mlp.down", "mlp.down.b");
}

static void embedding(void) {
  int32_t positions[N];
  for (int32_t n = 0; n < N; ++n)
    positions[n] = n;
  begin("embedding");
  weight("table", "embed.w");
  integers("ids", N, ids);
  if (c.arch == ASSAY_GPT2) {
    weight("position_table", "embed_pos.w");
    integers("positions", N, positions);
  }
  room("y", c.act_dtype, 2, (const int64_t[]){N, c.hidden});
  finish("y", "embed", N * c.hidden);
}

static void head(const double *stream) {
  double rows_of[PICKED * 256];
  for (int i = 0; i < PICKED; ++i)
    memcpy(rows_of + i * c.hidden, stream + picked[i] * c.hidden, sizeof(double) * (size_t)c.hidden);
  norm("final", rows_of, PICKED);
  begin("lm_head");
  rows("x", PICKED, c.hidden, tap("final"));
  weight("w", c.tied_head ? "embed.w" : "head.w");
  integers("row_index", PICKED, (const int32_t[]){0, 1, 2});
  room("logits", ASSAY_F32, 2, (const int64_t[]){PICKED, c.vocab});
  reference();
  expect("logits", "logits", PICKED * c.vocab, ASSAY_F32);
  foreign_free(&call);
}

Test(operators, are_what_a_forward_pass_is_made_of) {
  for (int number = 0; number < REF_MODELS; ++number) {
    c = small_model(number);
    if (c.arch == ASSAY_DEEPSEEK_V3 || c.arch == ASSAY_QWEN3_NEXT)
      continue;                           /* its stages are held by model_naive_test */
    if (c.arch == ASSAY_GEMMA2) continue; /* it has operators of no name: a gated GELU, a cap of logits */
    c.layers = 2;
    /* An operator has its scale, 1 / sqrt(24), in f32, which only f32 shows. */
    if (c.act_dtype == ASSAY_F32) c.act_dtype = c.kv_dtype = ASSAY_F16;
    c.weight_dtype = c.act_dtype; /* operators take both in one type */
    cr_assert_eq(assay_model_weights_alloc(&c, &w, &error), ASSAY_OK, "%s", error.text);
    cr_assert_eq(assay_model_seed(&c, 5, &w, &error), ASSAY_OK, "%s", error.text);
    assay_model_prompt(&c, 5, 0, N, ids);
    model_driver d;
    driver_open(&d, &c, &w, 8, N, 1, ASSAY_MODEL_MIRROR);
    driver_add(&d, driver_request(&d, NULL, 0, NULL), ids, N, false);
    memcpy(d.logit_rows, picked, sizeof picked);
    d.logit_count = PICKED;
    const assay_model_taps all = {NULL, NULL, keep, NULL};
    (void)driver_step(&d, &all);
    layer = -1;
    embedding();
    const double *stream = tap("embed");
    for (layer = 0; layer < c.layers; ++layer) {
      one_layer(stream);
      stream = tap("mlp.residual");
    }
    layer = -1;
    head(stream);
    for (; tap_count > 0; free(taps[tap_count].value))
      --tap_count;
    driver_close(&d);
    assay_model_weights_free(&w);
  }
}
