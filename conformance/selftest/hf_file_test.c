/* hf_file_test.c: a model's folder as the transformers library writes it: where each tensor goes, older names, parts,
 * and what is refused. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "conformance/models/models.h"
#include "core/dtype.h"
#include "core/files/hf_config.h"
#include "files_fixture.h"

enum { MOST = 64, V = 5, C = 8, D = 8, H = 2, KV = 1, I = 4, E = 3, QKV = (H + 2 * KV) * D };

static assay_error error;

TestSuite(hf_file, .fini = files_gone, .timeout = 100);

/* ---- files ------------------------------------------------------------------------------------------- */

/* A tensor to be written. Its element i is base + i. */
typedef struct written {
  const char *name, *dtype;
  int64_t shape[3], base;
} written;

static int64_t count_of(const written *t) {
  int64_t count = 1;
  for (int a = 0; a < 3 && t->shape[a] > 0; ++a)
    count *= t->shape[a];
  return count;
}

/* Writes tensors whose names are not NULL. Values are whole numbers below 256, which every type holds. */
static void put_tensors(const char *file, const written *t, int count) {
  static char text[1 << 15];
  static unsigned char data[1 << 16];
  size_t used = 8;
  int64_t at = 0;
  used += (size_t)snprintf(text + used, sizeof text - used, "{\"__metadata__\":{\"format\":\"pt\"}");
  for (int i = 0; i < count; ++i) {
    const assay_dtype type = strcmp(t[i].dtype, "F32") == 0    ? ASSAY_F32
                             : strcmp(t[i].dtype, "BF16") == 0 ? ASSAY_BF16
                                                               : ASSAY_F16;
    const int64_t n = count_of(&t[i]), begin = at;
    for (int64_t e = 0; e < n; ++e, at += assay_dtype_size(type))
      assay_store_f64(data + begin, type, e, (double)((t[i].base + e) % 251));
    used += (size_t)snprintf(text + used, sizeof text - used, ",\"%s\":{\"dtype\":\"%s\",\"shape\":[%d", t[i].name,
                             t[i].dtype, (int)t[i].shape[0]);
    for (int a = 1; a < 3 && t[i].shape[a] > 0; ++a)
      used += (size_t)snprintf(text + used, sizeof text - used, ",%d", (int)t[i].shape[a]);
    used += (size_t)snprintf(text + used, sizeof text - used, "],\"data_offsets\":[%d,%d]}", (int)begin, (int)at);
  }
  used += (size_t)snprintf(text + used, sizeof text - used, "}");
  const uint64_t header = used - 8;
  memcpy(text, &header, sizeof header);
  test_bytes all = {malloc(used + (size_t)at + 1), used + (size_t)at};
  memcpy(all.at, text, used);
  memcpy(all.at + used, data, (size_t)at);
  (void)files_put(file, all.at, all.size);
  files_free(&all);
}

static const char sizes[] = "\"hidden_size\": 8, \"num_hidden_layers\": 1, \"num_attention_heads\": 2, "
                            "\"num_key_value_heads\": 1, \"head_dim\": 8, \"intermediate_size\": 4, \"vocab_size\": 5, "
                            "\"max_position_embeddings\": 64, \"rms_norm_eps\": 1e-05, \"rope_theta\": 10000.0";

static void put_config(const char *rest) {
  char text[1200];
  (void)snprintf(text, sizeof text, "{%s, %s}", sizes, rest);
  (void)files_put("config.json", text, strlen(text));
}

static void taken(model_file *m) {
  error.text[0] = '\0';
  cr_assert_eq(model_file_hf(files_folder(), m, &error), ASSAY_OK, "%s", error.text);
  cr_expect_eq(assay_model_weights_check(&m->config, &m->weights, &error), ASSAY_OK, "%s", error.text);
}

static void refused(const char *says) {
  model_file m;
  error.text[0] = '\0';
  cr_expect_neq(model_file_hf(files_folder(), &m, &error), ASSAY_OK, "%s: taken", says);
  cr_expect_not_null(strstr(error.text, says), "wanted %s: %s", says, error.text);
  cr_expect(m.weights.tensor == NULL && m.weights.memory == NULL, "%s: something was handed out", says);
}

static const assay_tensor *weight(const model_file *m, const char *name) {
  const int32_t i = assay_model_weight_index(&m->config, name);
  cr_assert_geq(i, 0, "%s", name);
  return &m->weights.tensor[i];
}

/* `count` elements of a weight from `first` on are base, base + 1, ... */
static void holds(const model_file *m, const char *name, int64_t first, int64_t count, int64_t base) {
  const assay_tensor *t = weight(m, name);
  for (int64_t i = 0; i < count; ++i)
    cr_assert_eq(assay_load_f64(t->data, t->dtype, first + i), (double)((base + i) % 251), "%s, element %lld", name,
                 (long long)(first + i));
}

/* ---- models ------------------------------------------------------------------------------------------ */

#define LAYER "model.layers.0."

/* Every model has all of these but the last three, which are those of a dense MLP. */
static const written common[] = {{"model.embed_tokens.weight", "F32", {V, C}, 1},
                                 {"model.norm.weight", "F32", {C}, 2},
                                 {"lm_head.weight", "F32", {V, C}, 3},
                                 {LAYER "input_layernorm.weight", "F32", {C}, 4},
                                 {LAYER "post_attention_layernorm.weight", "F32", {C}, 5},
                                 {LAYER "self_attn.q_proj.weight", "F32", {H * D, C}, 6},
                                 {LAYER "self_attn.k_proj.weight", "F32", {KV * D, C}, 7},
                                 {LAYER "self_attn.v_proj.weight", "F32", {KV * D, C}, 8},
                                 {LAYER "self_attn.o_proj.weight", "F32", {C, H *D}, 9},
                                 {LAYER "mlp.gate_proj.weight", "F32", {I, C}, 10},
                                 {LAYER "mlp.up_proj.weight", "F32", {I, C}, 11},
                                 {LAYER "mlp.down_proj.weight", "F32", {C, I}, 12}};
enum { COMMON = sizeof common / sizeof *common, NO_MLP = COMMON - 3 };

static int start(written *t, int count) {
  memcpy(t, common, (size_t)count * sizeof *t);
  return count;
}

static void put_llama(const char *dtype) {
  written t[MOST];
  const int n = start(t, COMMON);
  for (int i = 0; i < n; ++i)
    t[i].dtype = dtype;
  put_tensors("model.safetensors", t, n);
  put_config("\"model_type\": \"llama\"");
}

Test(hf_file, llama) {
  static const struct {
    const char *name;
    assay_dtype type;
  } types[] = {{"F32", ASSAY_F32}, {"BF16", ASSAY_BF16}, {"F16", ASSAY_F16}};
  for (int i = 0; i < 3; ++i) {
    model_file m;
    put_llama(types[i].name);
    taken(&m);
    cr_expect(m.config.weight_dtype == types[i].type && m.config.act_dtype == types[i].type);
    cr_expect(m.config.arch == ASSAY_QWEN3 && !m.config.qk_norm && !m.config.tied_head &&
              m.config.rope_style == ASSAY_ROPE_NEOX && m.config.rope_kind == ASSAY_ROPE_PLAIN);
    holds(&m, "embed.w", 0, V * C, 1);
    holds(&m, "final.g", 0, C, 2);
    holds(&m, "head.w", 0, V * C, 3);
    holds(&m, "layers.0.attn.pre.g", 0, C, 4);
    holds(&m, "layers.0.mlp.pre.g", 0, C, 5);
    holds(&m, "layers.0.attn.qkv.w", 0, H * D * C, 6);
    holds(&m, "layers.0.attn.qkv.w", H * D * C, KV * D * C, 7);
    holds(&m, "layers.0.attn.qkv.w", (H + KV) * D * C, KV * D * C, 8);
    holds(&m, "layers.0.attn.proj.w", 0, C * H * D, 9);
    holds(&m, "layers.0.mlp.up.w", 0, I * C, 10);
    holds(&m, "layers.0.mlp.up.w", I * C, I * C, 11);
    holds(&m, "layers.0.mlp.down.w", 0, C * I, 12);
    model_file_free(&m);
  }
}

/* A folder is a model wherever a file is. */
Test(hf_file, is_opened_by_its_folder) {
  model_file m;
  put_llama("F32");
  cr_assert_eq(model_open(files_folder(), &m, &error), ASSAY_OK, "%s", error.text);
  cr_expect_str_eq(m.type, "llama");
  model_file_free(&m);
}

Test(hf_file, in_parts) {
  static const char index[] = "{\"metadata\": {}, \"weight_map\": {\"a\": \"a.safetensors\", \"b\": \"b.safetensors\", "
                              "\"c\": \"a.safetensors\"}}";
  model_file m;
  put_tensors("a.safetensors", common, 6);
  put_tensors("b.safetensors", common + 6, COMMON - 6);
  (void)files_put("model.safetensors.index.json", index, strlen(index));
  put_config("\"model_type\": \"llama\"");
  taken(&m);
  holds(&m, "layers.0.attn.qkv.w", (H + KV) * D * C, KV * D * C, 8);
  model_file_free(&m);
  (void)unlink(files_path("b.safetensors"));
  refused("b.safetensors: cannot be read");
  (void)files_put("model.safetensors.index.json", "{}", 2);
  refused("model.safetensors.index.json: weight_map: found none");
  static const char outside[] = "{\"weight_map\": {\"a\": \"../a.safetensors\"}}";
  (void)files_put("model.safetensors.index.json", outside, strlen(outside));
  refused("found file name '../a.safetensors', allowed names in this folder");
}

/* Experts by the newer names and the older ones: the same weights. */
static void both_names(const char *config, const char *router, const char *gate, const char *up, const char *down,
                       bool norms) {
  char name[3 * E][80];
  written t[MOST];
  model_file newer, older;
  put_config(config);
  for (int old = 0; old < 2; ++old) {
    int n = start(t, NO_MLP);
    if (norms) t[n++] = (written){LAYER "self_attn.q_norm.weight", "F32", {D}, 20};
    if (norms) t[n++] = (written){LAYER "self_attn.k_norm.weight", "F32", {D}, 21};
    t[n++] = (written){old ? router : LAYER "mlp.gate.weight", "F32", {E, C}, 22};
    if (!old) t[n++] = (written){LAYER "mlp.experts.gate_up_proj", "F32", {E, 2 * I, C}, 23};
    if (!old) t[n++] = (written){LAYER "mlp.experts.down_proj", "F32", {E, C, I}, 24};
    for (int e = 0; e < E && old; ++e) {
      (void)snprintf(name[3 * e], sizeof name[0], gate, e);
      (void)snprintf(name[3 * e + 1], sizeof name[0], up, e);
      (void)snprintf(name[3 * e + 2], sizeof name[0], down, e);
      t[n++] = (written){name[3 * e], "F32", {I, C}, 23 + e * 2 * I * C};
      t[n++] = (written){name[3 * e + 1], "F32", {I, C}, 23 + (e * 2 + 1) * I * C};
      t[n++] = (written){name[3 * e + 2], "F32", {C, I}, 24 + e * C * I};
    }
    put_tensors("model.safetensors", t, n);
    taken(old ? &older : &newer);
  }
  cr_expect_eq((int)newer.config.arch, (int)ASSAY_QWEN3_MOE);
  holds(&newer, "layers.0.router.w", 0, E * C, 22);
  holds(&newer, "layers.0.experts.up.w", 0, E * 2 * I * C, 23);
  holds(&newer, "layers.0.experts.down.w", 0, E * C * I, 24);
  for (int32_t i = 0; i < newer.weights.count; ++i) {
    const assay_tensor *a = &newer.weights.tensor[i], *b = &older.weights.tensor[i];
    const size_t bytes = (size_t)(a->shape[0] * (a->rank == 2 ? a->shape[1] : 1)) * sizeof(float);
    cr_expect_eq(memcmp(a->data, b->data, bytes), 0, "weight %d", (int)i);
  }
  model_file_free(&newer);
  model_file_free(&older);
}

#define MIXTRAL                                                                                                        \
  "\"model_type\": \"mixtral\", \"num_local_experts\": 3, \"num_experts_per_tok\": 2, \"sliding_window\": null"
#define QWEN                                                                                                           \
  "\"model_type\": \"qwen3_moe\", \"num_experts\": 3, \"num_experts_per_tok\": 2, \"moe_intermediate_size\": 4"

Test(hf_file, mixtral) {
  both_names(MIXTRAL, LAYER "block_sparse_moe.gate.weight", LAYER "block_sparse_moe.experts.%d.w1.weight",
             LAYER "block_sparse_moe.experts.%d.w3.weight", LAYER "block_sparse_moe.experts.%d.w2.weight", false);
}

Test(hf_file, qwen3_moe) {
  both_names(QWEN, LAYER "mlp.gate.weight", LAYER "mlp.experts.%d.gate_proj.weight",
             LAYER "mlp.experts.%d.up_proj.weight", LAYER "mlp.experts.%d.down_proj.weight", true);
}

static void gpt_oss(const char *dtype) {
  written t[MOST];
  model_file m;
  int n = start(t, NO_MLP);
  static const written rest[] = {{LAYER "self_attn.q_proj.bias", "F32", {H * D}, 30},
                                 {LAYER "self_attn.k_proj.bias", "F32", {KV * D}, 31},
                                 {LAYER "self_attn.v_proj.bias", "F32", {KV * D}, 32},
                                 {LAYER "self_attn.o_proj.bias", "F32", {C}, 33},
                                 {LAYER "self_attn.sinks", "F32", {H}, 34},
                                 {LAYER "mlp.router.weight", "F32", {E, C}, 35},
                                 {LAYER "mlp.router.bias", "F32", {E}, 36},
                                 {LAYER "mlp.experts.gate_up_proj", "F32", {E, C, 2 * I}, 37},
                                 {LAYER "mlp.experts.gate_up_proj_bias", "F32", {E, 2 * I}, 38},
                                 {LAYER "mlp.experts.down_proj", "F32", {E, I, C}, 39},
                                 {LAYER "mlp.experts.down_proj_bias", "F32", {E, C}, 40}};
  for (size_t i = 0; i < sizeof rest / sizeof *rest; ++i)
    t[n++] = rest[i];
  for (int i = 0; i < n; ++i)
    t[i].dtype = dtype;
  put_tensors("model.safetensors", t, n);
  put_config(
      "\"model_type\": \"gpt_oss\", \"num_local_experts\": 3, \"num_experts_per_tok\": 2, \"sliding_window\": 4, "
      "\"attention_bias\": true");
  taken(&m);
  cr_expect(m.config.act_limit == 7 && m.config.window == 4 && assay_model_window(&m.config, 0) == 4);
  holds(&m, "layers.0.attn.qkv.b", (H + KV) * D, KV * D, 32);
  holds(&m, "layers.0.attn.sinks", 0, H, 34);
  holds(&m, "layers.0.router.b", 0, E, 36);
  holds(&m, "layers.0.experts.up.b", 0, E * 2 * I, 38);
  holds(&m, "layers.0.experts.down.b", 0, E * C, 40);
  for (int64_t e = 0; e < E; ++e)
    for (int64_t c = 0; c < C; ++c) {
      for (int64_t o = 0; o < 2 * I; ++o)
        holds(&m, "layers.0.experts.up.w", (e * 2 * I + o) * C + c, 1, 37 + (e * C + c) * 2 * I + o);
      for (int64_t i = 0; i < I; ++i)
        holds(&m, "layers.0.experts.down.w", (e * C + c) * I + i, 1, 39 + (e * I + i) * C + c);
    }
  model_file_free(&m);
}

/* Sinks are f32 whatever the file has. */
Test(hf_file, gpt_oss) {
  gpt_oss("F32");
  gpt_oss("BF16");
}

#define GEMMA "\"model_type\": \"gemma2\", \"sliding_window\": 4, \"query_pre_attn_scalar\": 16"

static void put_gemma(void) {
  written t[MOST];
  int n = start(t, COMMON);
  t[n++] = (written){LAYER "pre_feedforward_layernorm.weight", "F32", {C}, 50};
  t[n++] = (written){LAYER "post_feedforward_layernorm.weight", "F32", {C}, 51};
  put_tensors("model.safetensors", t, n); /* with a head, which is tied: it is not read */
}

Test(hf_file, gemma2) {
  model_file m;
  put_gemma();
  put_config(GEMMA ", \"attn_logit_softcapping\": null, \"layer_types\": [\"full_attention\"]");
  taken(&m);
  holds(&m, "layers.0.attn.post.g", 0, C, 5);
  holds(&m, "layers.0.mlp.pre.g", 0, C, 50);
  holds(&m, "layers.0.mlp.post.g", 0, C, 51);
  cr_expect(m.config.tied_head && m.config.score_scale == 0.25 && m.config.score_cap == 0 && m.config.logit_cap == 30);
  cr_expect_eq(assay_model_window(&m.config, 0), 0);
  model_file_free(&m);
}

#define NEXT                                                                                                           \
  "\"model_type\": \"qwen3_next\", \"num_experts\": 3, \"num_experts_per_tok\": 2, \"moe_intermediate_size\": 4, "     \
  "\"shared_expert_intermediate_size\": 4, \"linear_num_key_heads\": 2, \"linear_num_value_heads\": 4, "               \
  "\"linear_key_head_dim\": 2, \"linear_value_head_dim\": 3, \"linear_conv_kernel_dim\": 4, "                          \
  "\"partial_rotary_factor\": 0.25"

static int put_next(written *t) {
  static const written mlp[] = {{LAYER "mlp.gate.weight", "F32", {E, C}, 60},
                                {LAYER "mlp.experts.gate_up_proj", "F32", {E, 2 * I, C}, 61},
                                {LAYER "mlp.experts.down_proj", "F32", {E, C, I}, 62},
                                {LAYER "mlp.shared_expert.gate_proj.weight", "F32", {I, C}, 63},
                                {LAYER "mlp.shared_expert.up_proj.weight", "F32", {I, C}, 64},
                                {LAYER "mlp.shared_expert.down_proj.weight", "F32", {C, I}, 65},
                                {LAYER "mlp.shared_expert_gate.weight", "F32", {1, C}, 66}};
  enum { HEAD = 5 }; /* embedding, two norms of the model and its layer, head */
  int n = start(t, HEAD);
  for (size_t i = 0; i < sizeof mlp / sizeof *mlp; ++i)
    t[n++] = mlp[i];
  return n;
}

/* A key head has 16 rows of in_proj_qkvz: 2 of q, 2 of k, 6 of v, 6 of z. It has 4 of in_proj_ba: 2 of b, 2 of a. */
Test(hf_file, qwen3_next_linear) {
  static const written rest[] = {{LAYER "linear_attn.in_proj_qkvz.weight", "F32", {32, C}, 70},
                                 {LAYER "linear_attn.in_proj_ba.weight", "F32", {8, C}, 71},
                                 {LAYER "linear_attn.conv1d.weight", "F32", {20, 1, 4}, 72},
                                 {LAYER "linear_attn.A_log", "F32", {4}, 73},
                                 {LAYER "linear_attn.dt_bias", "F32", {4}, 74},
                                 {LAYER "linear_attn.norm.weight", "F32", {3}, 75},
                                 {LAYER "linear_attn.out_proj.weight", "F32", {C, 12}, 76}};
  static const struct {
    int64_t ours, count, theirs, base; /* rows */
  } piece[] = {{0, 2, 0, 70},   {2, 2, 16, 70},  {4, 2, 2, 70},  {6, 2, 18, 70}, {8, 6, 4, 70},  {14, 6, 20, 70},
               {20, 6, 10, 70}, {26, 6, 26, 70}, {32, 2, 0, 71}, {34, 2, 4, 71}, {36, 2, 2, 71}, {38, 2, 6, 71}};
  written t[MOST];
  model_file m;
  int n = put_next(t);
  for (size_t i = 0; i < sizeof rest / sizeof *rest; ++i)
    t[n++] = rest[i];
  put_tensors("model.safetensors", t, n);
  put_config(NEXT);
  taken(&m); /* without layer_types: the only layer is no multiple of 4 */
  cr_expect(m.config.arch == ASSAY_QWEN3_NEXT && m.config.qk_norm && m.config.rotated == 2 && m.config.renormalise);
  for (size_t i = 0; i < sizeof piece / sizeof *piece; ++i)
    holds(&m, "layers.0.delta.in.w", piece[i].ours * C, piece[i].count * C, piece[i].base + piece[i].theirs * C);
  holds(&m, "layers.0.delta.conv.w", 0, 80, 72);
  holds(&m, "layers.0.delta.A_log", 0, 4, 73);
  holds(&m, "layers.0.delta.dt_bias", 0, 4, 74);
  holds(&m, "layers.0.delta.norm.g", 0, 3, 75);
  holds(&m, "layers.0.delta.proj.w", 0, C * 12, 76);
  holds(&m, "layers.0.shared.up.w", I * C, I * C, 64);
  holds(&m, "layers.0.shared.gate.w", 0, C, 66);
  model_file_free(&m);
  t[n - 5].shape[1] = 4;
  t[n - 5].shape[2] = 0;
  put_tensors("model.safetensors", t, n);
  refused("linear_attn.conv1d.weight: shape: found [20, 4], allowed [20, 1, 4]");
}

/* q_proj has 8 rows of q, then 8 of the gate, for each head. */
Test(hf_file, qwen3_next_full) {
  static const written rest[] = {{LAYER "self_attn.q_proj.weight", "F32", {2 * H * D, C}, 80},
                                 {LAYER "self_attn.k_proj.weight", "F32", {KV * D, C}, 81},
                                 {LAYER "self_attn.v_proj.weight", "F32", {KV * D, C}, 82},
                                 {LAYER "self_attn.q_norm.weight", "F32", {D}, 83},
                                 {LAYER "self_attn.k_norm.weight", "F32", {D}, 84},
                                 {LAYER "self_attn.o_proj.weight", "F32", {C, H * D}, 85}};
  written t[MOST];
  model_file m;
  int n = put_next(t);
  for (size_t i = 0; i < sizeof rest / sizeof *rest; ++i)
    t[n++] = rest[i];
  put_tensors("model.safetensors", t, n);
  put_config(NEXT ", \"layer_types\": [\"full_attention\"]");
  taken(&m);
  for (int64_t h = 0; h < H; ++h) {
    holds(&m, "layers.0.attn.qkv.w", h * D * C, D * C, 80 + h * 2 * D * C);
    holds(&m, "layers.0.attn.gate.w", h * D * C, D * C, 80 + (2 * h + 1) * D * C);
  }
  holds(&m, "layers.0.attn.qkv.w", H * D * C, KV * D * C, 81);
  model_file_free(&m);
  put_config(NEXT ", \"full_attention_interval\": 1");
  taken(&m);
  cr_expect_not(assay_model_is_linear(&m.config, 0));
  model_file_free(&m);
}

/* ---- configurations ---------------------------------------------------------------------------------- */

Test(hf_file, rotations) {
  model_file m;
  put_llama("F32");
  put_config("\"model_type\": \"llama\", \"rope_parameters\": {\"rope_theta\": 500000, \"rope_type\": \"llama3\", "
             "\"factor\": 8, \"low_freq_factor\": 1.5, \"high_freq_factor\": 5, "
             "\"original_max_position_embeddings\": 32, \"partial_rotary_factor\": 0.5}");
  taken(&m);
  cr_expect(m.config.rope_kind == ASSAY_ROPE_LLAMA3 && m.config.rope_base == 500000 && m.config.rope_factor == 8 &&
            m.config.rope_low == 1.5 && m.config.rope_high == 5 && m.config.rope_original == 32 &&
            m.config.rotated == 4);
  model_file_free(&m);
  put_config("\"model_type\": \"llama\", \"rope_scaling\": {\"type\": \"yarn\", \"factor\": 4, \"beta_slow\": 2, "
             "\"attention_factor\": 1.5, \"truncate\": false}");
  taken(&m);
  cr_expect(m.config.rope_kind == ASSAY_ROPE_YARN && m.config.rope_base == 10000 && m.config.rope_factor == 4 &&
            m.config.rope_original == 64 && m.config.rope_beta_fast == 32 && m.config.rope_beta_slow == 2 &&
            m.config.rope_concentration == 1.5 && !m.config.rope_truncate && m.config.rotated == 8);
  model_file_free(&m);
}

Test(hf_file, sparse_layers) {
  assay_model_config c;
  hf_kind kind;
  static const char text[] = "{\"model_type\": \"qwen3_moe\", \"num_experts\": 4, \"num_local_experts\": 4, "
                             "\"num_experts_per_tok\": 2, \"moe_intermediate_size\": 4, \"decoder_sparse_step\": 2, "
                             "\"mlp_only_layers\": [3], \"norm_topk_prob\": false, \"hidden_size\": 8, "
                             "\"num_hidden_layers\": 6, \"num_attention_heads\": 2, \"num_key_value_heads\": 2, "
                             "\"intermediate_size\": 4, \"vocab_size\": 5, \"max_position_embeddings\": 64, "
                             "\"rms_norm_eps\": 1e-6, \"rope_theta\": 1000}";
  const json_value *root = NULL;
  json_reader *reader = json_open();
  cr_assert_eq(json_parse(reader, text, strlen(text), &root, &error), ASSAY_OK, "%s", error.text);
  cr_assert_eq(hf_config_read(root, &kind, &c, &error), ASSAY_OK, "%s", error.text);
  for (int64_t l = 0; l < 6; ++l)
    cr_expect_eq(assay_model_is_sparse(&c, l), l == 1 || l == 5, "layer %lld", (long long)l);
  cr_expect(!c.renormalise && c.head_size == 4 && c.qk_norm);
  json_close(reader);
}

Test(hf_file, configurations_that_are_refused) {
  static const struct {
    const char *config, *says;
  } bad[] = {
      {"\"model_type\": \"mamba\"", "config.json: model_type: found 'mamba', allowed llama, qwen3, qwen3_moe"},
      {"\"model_type\": 7", "model_type: found '7', allowed llama"},
      {"\"model_type\": \"llama\", \"hidden_act\": \"relu\"", "hidden_act: found 'relu', allowed silu"},
      {"\"model_type\": \"llama\", \"attention_bias\": true", "attention_bias: found 'true', allowed false"},
      {"\"model_type\": \"llama\", \"mlp_bias\": true", "mlp_bias: found 'true', allowed false"},
      {"\"model_type\": \"llama\", \"mlp_bias\": 1", "mlp_bias: found '1', allowed true, false"},
      {"\"model_type\": \"llama\", \"quantization_config\": {}",
       "quantization_config: found 'an object', allowed none"},
      {"\"model_type\": \"llama\", \"rope_scaling\": {\"type\": \"dynamic\"}", "rope_type: found 'dynamic', allowed"},
      {"\"model_type\": \"llama\", \"rope_scaling\": {\"type\": \"llama3\"}", "factor: found 'none', allowed a number"},
      {"\"model_type\": \"llama\", \"rope_scaling\": {\"type\": \"yarn\", \"factor\": 4, \"mscale\": 1}",
       "mscale: found '1', allowed 0"},
      {"\"model_type\": \"llama\", \"rope_scaling\": {\"type\": \"yarn\", \"factor\": 0.5}",
       "rope_factor: found 0.5, allowed 1 to 1024"},
      {"\"model_type\": \"llama\", \"rope_scaling\": 4", "rope_scaling: found '4', allowed an object"},
      {"\"model_type\": \"llama\", \"partial_rotary_factor\": 2", "partial_rotary_factor: found 2"},
      {"\"model_type\": \"llama\", \"layer_types\": [\"sliding_attention\"]",
       "layer_types: found 'sliding_attention', allowed full_attention"},
      {"\"model_type\": \"llama\", \"layer_types\": []", "layer_types: found 0, allowed num_hidden_layers = 1"},
      {MIXTRAL ", \"num_experts\": 4", "num_local_experts: found 3, allowed num_experts's 4"},
      {"\"model_type\": \"mixtral\", \"num_experts_per_tok\": 2", "num_experts: found none"},
      {"\"model_type\": \"mixtral\", \"num_local_experts\": 3, \"num_experts_per_tok\": 4",
       "experts_used: found 4, allowed 1 to 3"},
      {"\"model_type\": \"mixtral\", \"num_local_experts\": 3, \"num_experts_per_tok\": 2, \"sliding_window\": 8",
       "sliding_window: found '8', allowed null"},
      {QWEN ", \"use_sliding_window\": true", "use_sliding_window: found 'true', allowed false"},
      {QWEN ", \"mlp_only_layers\": [-1]", "mlp_only_layers: found '-1', allowed layers from 0 on"},
      {NEXT ", \"layer_types\": [\"sliding_attention\"]",
       "layer_types: found 'sliding_attention', allowed full_attention, linear_attention"},
      {NEXT ", \"layer_types\": []", "layer_types: found 0, allowed num_hidden_layers = 1"},
      {NEXT ", \"full_attention_interval\": 0", "full_attention_interval: found '0', allowed a whole number"},
      {"\"model_type\": \"qwen3_next\"", "linear_num_key_heads: found 'none', allowed a whole number"},
      {"\"model_type\": \"gemma2\"", "sliding_window: found 'none', allowed a whole number"},
      {GEMMA ", \"hidden_activation\": \"gelu\"", "hidden_activation: found 'gelu', allowed gelu_pytorch_tanh"},
      {GEMMA ", \"use_bidirectional_attention\": true", "use_bidirectional_attention: found 'true', allowed false"},
      {GEMMA ", \"final_logit_softcapping\": \"x\"", "final_logit_softcapping: found 'x', allowed a number"}};
  put_gemma();
  for (size_t i = 0; i < sizeof bad / sizeof *bad; ++i) {
    put_config(bad[i].config);
    refused(bad[i].says);
  }
  (void)files_put("config.json", "{\"model_type\": \"llama\"}", 23);
  refused("num_hidden_layers: found 'none', allowed a whole number from 1 on");
  (void)files_put("config.json", "[]", 2);
  refused("config.json: found no object");
  (void)files_put("config.json", "{", 1);
  refused("config.json: JSON");
  (void)unlink(files_path("config.json"));
  refused("config.json: cannot be read");
}

/* ---- tensors ----------------------------------------------------------------------------------------- */

Test(hf_file, tensors_that_are_refused) {
  written t[MOST];
  const struct {
    written changed; /* replaces the tensor of its number, or is added */
    int number;
    const char *says;
  } bad[] = {
      {{LAYER "self_attn.q_proj.weigh", "F32", {H * D, C}, 0}, 5, "self_attn.q_proj.weight: found none, allowed one"},
      {{LAYER "self_attn.q_proj.weight", "F32", {C, H * D}, 0},
       5,
       "model.safetensors: model.layers.0.self_attn.q_proj.weight: shape: found [8, 16], allowed [16, 8]"},
      {{LAYER "self_attn.q_proj.weight", "BF16", {H * D, C}, 0}, 5, "q_proj.weight: dtype: found bf16, allowed f32"},
      {{LAYER "self_attn.q_proj.bias", "F32", {H * D}, 0}, COMMON, "q_proj.bias: found a tensor that a qwen3 model"},
      {{"model.layers.1.input_layernorm.weight", "F32", {C}, 0}, COMMON, NULL},
      {{LAYER "self_attn.rotary_emb.inv_freq", "F32", {C}, 0}, COMMON, NULL}};
  put_config("\"model_type\": \"llama\"");
  for (size_t i = 0; i < sizeof bad / sizeof *bad; ++i) {
    model_file m;
    (void)start(t, COMMON);
    t[bad[i].number] = bad[i].changed;
    put_tensors("model.safetensors", t, bad[i].number == COMMON ? COMMON + 1 : COMMON);
    if (bad[i].says != NULL) {
      refused(bad[i].says);
      continue;
    }
    taken(&m);
    model_file_free(&m);
  }
}
