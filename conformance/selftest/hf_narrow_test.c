/* hf_narrow_test.c: a folder of the transformers library with weights of e4m3, as DeepSeek stores them. It has tests of
 * where codes and scales go, what is widened, and what is refused. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "core/dtype.h"
#include "core/files/model_file.h"
#include "files_fixture.h"

static assay_error error;

TestSuite(hf_narrow, .fini = files_gone, .timeout = 100);

/* ---- files ------------------------------------------------------------------------------------------- */

/* A tensor that a test changes, and what becomes of it. */
typedef struct change {
  const char *name;
  enum { NOTHING, LEFT_OUT, OTHER_TYPE, OTHER_SHAPE, NEGATIVE, NOT_A_NUMBER } what;
} change;

static char text[1 << 15];
static unsigned char data[1 << 20];
static size_t used;
static int64_t at;
static change changed;

/* Element i of a tensor of codes, and of one of scales. */
static double code_of(int64_t i) {
  return (double)(i % 13 - 6);
}
static double scale_of(const char *name, int64_t i) {
  return (double)(strlen(name) % 4 + 1) * (double)(i + 1);
}

static void put(const char *name, assay_dtype type, int64_t rows, int64_t columns) {
  static const char *const names[] = {[ASSAY_F32] = "F32", [ASSAY_BF16] = "BF16", [ASSAY_E4M3] = "F8_E4M3"};
  const bool here = changed.name != NULL && strcmp(changed.name, name) == 0;
  if (here && changed.what == LEFT_OUT) return;
  if (here && changed.what == OTHER_TYPE) type = ASSAY_BF16;
  if (here && changed.what == OTHER_SHAPE) ++rows;
  const int64_t begin = at, count = rows * (columns > 0 ? columns : 1);
  const bool scales = strstr(name, "_scale_inv") != NULL;
  for (int64_t i = 0; i < count; ++i) {
    double value = scales ? scale_of(name, i) : code_of(i);
    if (here && i == 0 && changed.what == NEGATIVE) value = -1;
    if (here && i == 0 && changed.what == NOT_A_NUMBER) value = (double)__builtin_nanf("");
    assay_store_f64(data + begin, type, i, value);
  }
  at += count * assay_dtype_size(type);
  used += (size_t)snprintf(text + used, sizeof text - used, ",\"%s\":{\"dtype\":\"%s\",\"shape\":[%d", name,
                           names[type], (int)rows);
  if (columns > 0) used += (size_t)snprintf(text + used, sizeof text - used, ",%d", (int)columns);
  used += (size_t)snprintf(text + used, sizeof text - used, "],\"data_offsets\":[%d,%d]}", (int)begin, (int)at);
}

/* Puts a product's codes and scales. */
static void product(const char *name, int64_t rows, int64_t columns) {
  char full[160];
  (void)snprintf(full, sizeof full, "%s.weight", name);
  put(full, ASSAY_E4M3, rows, columns);
  (void)snprintf(full, sizeof full, "%s.weight_scale_inv", name);
  put(full, ASSAY_F32, (rows + 127) / 128, (columns + 127) / 128);
}

static void mlp(const char *prefix, int64_t size) {
  char full[160];
  (void)snprintf(full, sizeof full, "%s.gate_proj", prefix);
  product(full, size, 128);
  (void)snprintf(full, sizeof full, "%s.up_proj", prefix);
  product(full, size, 128);
  (void)snprintf(full, sizeof full, "%s.down_proj", prefix);
  product(full, 128, size);
}

#define LAYER "model.layers.%d."
static void put_layer(int layer) {
  static const struct {
    const char *name;
    int64_t rows, columns;
  } vectors[] = {{LAYER "input_layernorm.weight", 128, 0},
                 {LAYER "post_attention_layernorm.weight", 128, 0},
                 {LAYER "self_attn.q_a_layernorm.weight", 128, 0},
                 {LAYER "self_attn.kv_a_layernorm.weight", 32, 0}},
    products[] = {{LAYER "self_attn.q_a_proj", 128, 128},
                  {LAYER "self_attn.q_b_proj", 192, 128},
                  {LAYER "self_attn.kv_a_proj_with_mqa", 40, 128},
                  {LAYER "self_attn.kv_b_proj", 256, 32},
                  {LAYER "self_attn.o_proj", 128, 128}};
  char name[160];
  for (int i = 0; i < 4; ++i) {
    (void)snprintf(name, sizeof name, vectors[i].name, layer);
    put(name, ASSAY_BF16, vectors[i].rows, 0);
  }
  for (int i = 0; i < 5; ++i) {
    (void)snprintf(name, sizeof name, products[i].name, layer);
    product(name, products[i].rows, products[i].columns);
  }
}

static const char config[] =
    "{\"model_type\": \"deepseek_v3\", \"hidden_size\": 128, \"num_hidden_layers\": 2, \"num_attention_heads\": 8, "
    "\"num_key_value_heads\": 8, \"intermediate_size\": 256, \"vocab_size\": 5, \"max_position_embeddings\": 64, "
    "\"rms_norm_eps\": 1e-06, \"rope_theta\": 10000.0, \"q_lora_rank\": 128, \"kv_lora_rank\": 32, "
    "\"qk_nope_head_dim\": 16, \"qk_rope_head_dim\": 8, \"v_head_dim\": 16, \"n_routed_experts\": 2, "
    "\"num_experts_per_tok\": 1, \"moe_intermediate_size\": 128, \"n_shared_experts\": 1, \"n_group\": 1, "
    "\"topk_group\": 1, \"first_k_dense_replace\": 1, \"routed_scaling_factor\": 2.5, \"norm_topk_prob\": true, "
    "\"quantization_config\": {\"quant_method\": \"fp8\", \"fmt\": \"e4m3\", \"activation_scheme\": \"dynamic\", "
    "\"weight_block_size\": [128, 128]}}";

/* Writes the folder, with one word of the configuration exchanged. */
static void put_folder(const char *from, const char *to) {
  char shown[2000];
  const char *found = from != NULL ? strstr(config, from) : config;
  cr_assert_not_null(found, "%s", from);
  (void)snprintf(shown, sizeof shown, "%.*s%s%s", (int)(found - config), config, from != NULL ? to : "",
                 found + (from != NULL ? strlen(from) : 0));
  (void)files_put("config.json", shown, strlen(shown));
  used = 8;
  at = 0;
  used += (size_t)snprintf(text + used, sizeof text - used, "{\"__metadata__\":{\"format\":\"pt\"}");
  put("model.embed_tokens.weight", ASSAY_BF16, 5, 128);
  put("model.norm.weight", ASSAY_BF16, 128, 0);
  put("lm_head.weight", ASSAY_BF16, 5, 128);
  put_layer(0);
  mlp("model.layers.0.mlp", 256);
  put_layer(1);
  put("model.layers.1.mlp.gate.weight", ASSAY_BF16, 2, 128);
  put("model.layers.1.mlp.gate.e_score_correction_bias", ASSAY_F32, 2, 0);
  mlp("model.layers.1.mlp.experts.0", 128);
  mlp("model.layers.1.mlp.experts.1", 128);
  mlp("model.layers.1.mlp.shared_experts", 128);
  used += (size_t)snprintf(text + used, sizeof text - used, "}");
  const uint64_t header = used - 8;
  memcpy(text, &header, sizeof header);
  unsigned char *const all = malloc(used + (size_t)at);
  cr_assert_not_null(all);
  memcpy(all, text, used);
  memcpy(all + used, data, (size_t)at);
  (void)files_put("model.safetensors", all, used + (size_t)at);
  free(all);
}

/* ---- what is read ------------------------------------------------------------------------------------ */

static const assay_tensor *weight(const model_file *m, const char *name) {
  const int32_t i = assay_model_weight_index(&m->config, name);
  cr_assert_geq(i, 0, "%s", name);
  return &m->weights.tensor[i];
}

/* Codes from element `first` on are those of a tensor from its beginning on, and so are scales. */
static void holds(const model_file *m, const char *name, int64_t first, int64_t count, const char *from) {
  const assay_tensor *t = weight(m, name);
  for (int64_t i = 0; i < count; ++i)
    cr_assert_eq(assay_load_f64(t->data, t->dtype, first + i), t->dtype == ASSAY_E4M3 ? code_of(i) : scale_of(from, i),
                 "%s, element %d", name, (int)(first + i));
}

Test(hf_narrow, codes_and_scales_have_their_places) {
  static const char of[] = "model.layers.0.";
  char from[160];
  model_file m;
  changed = (change){.name = NULL};
  put_folder(NULL, NULL);
  error.text[0] = '\0';
  cr_assert_eq(model_file_hf(files_folder(), &m, &error), ASSAY_OK, "%s", error.text);
  cr_expect_eq(assay_model_weights_check(&m.config, &m.weights, &error), ASSAY_OK, "%s", error.text);
  cr_expect(m.config.fp8_weights && m.config.weight_dtype == ASSAY_BF16);
  holds(&m, "layers.0.attn.q_b.w", 0, 192 * 128, "");
  (void)snprintf(from, sizeof from, "%sself_attn.q_b_proj.weight_scale_inv", of);
  holds(&m, "layers.0.attn.q_b.s", 0, 2, from);
  (void)snprintf(from, sizeof from, "%smlp.gate_proj.weight_scale_inv", of);
  holds(&m, "layers.0.mlp.up.s", 0, 2, from);
  (void)snprintf(from, sizeof from, "%smlp.up_proj.weight_scale_inv", of);
  holds(&m, "layers.0.mlp.up.w", 256 * 128, 256 * 128, "");
  holds(&m, "layers.0.mlp.up.s", 2, 2, from);
  holds(&m, "layers.1.experts.up.s", 3, 1, "model.layers.1.mlp.experts.1.up_proj.weight_scale_inv");
  holds(&m, "layers.1.experts.up.s", 2, 1, "model.layers.1.mlp.experts.1.gate_proj.weight_scale_inv");
  holds(&m, "layers.1.experts.down.w", 128 * 128, 128 * 128, "");
  holds(&m, "layers.1.shared.down.s", 0, 1, "model.layers.1.mlp.shared_experts.down_proj.weight_scale_inv");
  /* kv_b has the type of the others: attention absorbs it. Its second block of rows begins at 128. */
  const assay_tensor *kv_b = weight(&m, "layers.1.attn.kv_b.w");
  const char *const scales = "model.layers.1.self_attn.kv_b_proj.weight_scale_inv";
  cr_expect_eq((int)kv_b->dtype, (int)ASSAY_BF16);
  for (int64_t i = 0; i < 256 * 32; ++i)
    cr_assert_eq(assay_load_f64(kv_b->data, ASSAY_BF16, i), code_of(i) * scale_of(scales, i / (128 * 32)), "%d",
                 (int)i);
  model_file_free(&m);
}

static void refused(const char *says) {
  model_file m;
  error.text[0] = '\0';
  cr_expect_neq(model_file_hf(files_folder(), &m, &error), ASSAY_OK, "%s: taken", says);
  cr_expect_not_null(strstr(error.text, says), "wanted %s: %s", says, error.text);
  cr_expect(m.weights.tensor == NULL && m.weights.memory == NULL, "%s: something was handed out", says);
}

Test(hf_narrow, tensors_that_are_refused) {
  static const struct {
    change change;
    const char *says;
  } wrong[] = {
      {{"model.layers.0.mlp.down_proj.weight_scale_inv", LEFT_OUT},
       "tensor model.layers.0.mlp.down_proj.weight_scale_inv: found none, allowed one"},
      {{"model.layers.0.mlp.down_proj.weight", OTHER_TYPE}, "down_proj.weight: dtype: found bf16, allowed e4m3"},
      {{"model.layers.0.mlp.up_proj.weight_scale_inv", OTHER_TYPE}, "dtype: found bf16, allowed f32"},
      {{"model.layers.1.mlp.experts.1.up_proj.weight_scale_inv", OTHER_SHAPE}, "shape: found [2, 1], allowed [1, 1]"},
      {{"model.layers.1.self_attn.o_proj.weight_scale_inv", NEGATIVE}, "found -1, allowed numbers from 0 on"},
      {{"model.layers.1.self_attn.o_proj.weight_scale_inv", NOT_A_NUMBER}, "nan, allowed numbers from 0 on"},
      {{"model.layers.1.self_attn.kv_b_proj.weight_scale_inv", LEFT_OUT}, "kv_b_proj.weight_scale_inv: found none"},
      {{"model.layers.1.self_attn.kv_b_proj.weight_scale_inv", NEGATIVE}, "found -1, allowed numbers from 0 on"}};
  for (size_t i = 0; i < sizeof wrong / sizeof *wrong; ++i) {
    changed = wrong[i].change;
    put_folder(NULL, NULL);
    refused(wrong[i].says);
  }
}

Test(hf_narrow, configurations_that_are_refused) {
  static const struct {
    const char *from, *to, *says;
  } wrong[] = {{"\"fp8\"", "\"awq\"", "quantization_config: found 'an object', allowed none, or an object with"},
               {"\"e4m3\"", "\"e5m2\"", "fmt: found 'e5m2', allowed e4m3"},
               {"\"dynamic\"", "\"static\"", "activation_scheme: found 'static', allowed dynamic"},
               {"[128, 128]", "[128, 64]", "weight_block_size: found '64', allowed 128 twice"},
               {"[128, 128]", "[128]", "weight_block_size: found 'a list', allowed [128, 128]"},
               {", \"weight_block_size\": [128, 128]", "", "weight_block_size: found 'none', allowed [128, 128]"},
               {"\"intermediate_size\": 256", "\"intermediate_size\": 192",
                "intermediate: found 192, allowed with fp8_weights: multiples of 128"}};
  changed = (change){.name = NULL};
  for (size_t i = 0; i < sizeof wrong / sizeof *wrong; ++i) {
    put_folder(wrong[i].from, wrong[i].to);
    refused(wrong[i].says);
  }
}
