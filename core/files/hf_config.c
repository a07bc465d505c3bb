/* hf_config.c: fields of config.json, translated one by one. A field that would change the result and that nothing here
 * follows is refused; all others are not looked at. */
#include "hf_config.h"

#include <math.h>
#include <string.h>

typedef long long ll; /* for messages */

static const char *const kinds[HF_KINDS] = {"llama",   "qwen3",  "qwen3_moe",   "mixtral",
                                            "gpt_oss", "gemma2", "deepseek_v3", "qwen3_next"};

/* ---- values ------------------------------------------------------------------------------------------ */

/* Returns a member; NULL where it is missing or null. */
static const json_value *given(const json_value *object, const char *name) {
  const json_value *value = json_member(object, name);
  return value == NULL || value->kind == JSON_NULL ? NULL : value;
}

static const char *shown(const json_value *value) {
  static const char *const names[] = {"null", "false", "a number", "a text", "a list", "an object"};
  if (value == NULL) return "none";
  if (value->kind == JSON_BOOL && value->number != 0) return "true";
  return value->text != NULL ? value->text : names[value->kind];
}

static assay_status refuse(const char *name, const json_value *value, const char *allowed, assay_error *error) {
  return assay_fail(error, ASSAY_ERR_INPUT, "%s: found '%.60s', allowed %s", name, shown(value), allowed);
}

/* Reads a whole number; a missing one is `fallback`, which is below 1 where the field is needed. */
static assay_status whole(const json_value *object, const char *name, int64_t fallback, int64_t *to,
                          assay_error *error) {
  const json_value *value = given(object, name);
  *to = fallback;
  if (value == NULL && fallback >= 1) return ASSAY_OK;
  if (!json_whole(value, to) || *to < 1 || *to > INT32_MAX)
    return refuse(name, value, "a whole number from 1 on", error);
  return ASSAY_OK;
}

/* Reads a number; a missing one is `fallback`, which is NaN where the field is needed. */
static assay_status real(const json_value *object, const char *name, double fallback, double *to, assay_error *error) {
  const json_value *value = given(object, name);
  *to = fallback;
  if (value == NULL && fallback == fallback) return ASSAY_OK;
  if (value == NULL || value->kind != JSON_NUMBER || !(fabs(value->number) <= 1e300))
    return refuse(name, value, "a number", error);
  *to = value->number;
  return ASSAY_OK;
}

static assay_status flag(const json_value *object, const char *name, bool fallback, bool *to, assay_error *error) {
  const json_value *value = given(object, name);
  *to = fallback;
  if (value == NULL) return ASSAY_OK;
  if (value->kind != JSON_BOOL) return refuse(name, value, "true, false", error);
  *to = value->number != 0;
  return ASSAY_OK;
}

/* Refuses a flag that is true. */
static assay_status never(const json_value *object, const char *name, assay_error *error) {
  bool found = false;
  const assay_status status = flag(object, name, false, &found, error);
  return status == ASSAY_OK && found ? refuse(name, given(object, name), "false", error) : status;
}

static void put_layer(assay_model_layers *set, int64_t layer) {
  set->bits[layer / 64] |= (uint64_t)1 << (layer % 64);
}

/* ---- rope -------------------------------------------------------------------------------------------- */

/* Reads the two factors of latent attention's table: m(x) = 0.1 x ln(factor) + 1. The concentration is m(mscale) over
 * m(mscale_all_dim), and scores have m(mscale_all_dim) squared. */
static assay_status read_mscale(const json_value *rope, assay_model_config *c, double mscale, double all,
                                assay_error *error) {
  /* Sources differ on what a missing one means. */
  if (!(mscale > 0 && mscale <= 16)) return refuse("mscale", given(rope, "mscale"), "above 0, at most 16", error);
  if (!(all > 0 && all <= 16))
    return refuse("mscale_all_dim", given(rope, "mscale_all_dim"), "above 0, at most 16", error);
  if (!(c->rope_factor >= 1)) return refuse("factor", given(rope, "factor"), "1 and more", error);
  const double m = 0.1 * all * log(c->rope_factor) + 1;
  if (!(c->rope_concentration > 0)) c->rope_concentration = (0.1 * mscale * log(c->rope_factor) + 1) / m;
  c->score_scale = m * m / sqrt((double)c->head_size);
  return ASSAY_OK;
}

static assay_status read_stretch(const json_value *rope, assay_model_config *c, assay_error *error) {
  const double none = (double)NAN;
  double mscale = 0, mscale_all = 0;
  assay_status status = real(rope, "factor", none, &c->rope_factor, error);
  if (status == ASSAY_OK)
    status = real(rope, "original_max_position_embeddings", c->rope_kind == ASSAY_ROPE_YARN ? (double)c->max_pos : none,
                  &c->rope_original, error);
  if (status == ASSAY_OK && c->rope_kind == ASSAY_ROPE_LLAMA3) {
    status = real(rope, "low_freq_factor", none, &c->rope_low, error);
    if (status == ASSAY_OK) status = real(rope, "high_freq_factor", none, &c->rope_high, error);
    return status;
  }
  if (status == ASSAY_OK) status = real(rope, "beta_fast", 32, &c->rope_beta_fast, error);
  if (status == ASSAY_OK) status = real(rope, "beta_slow", 1, &c->rope_beta_slow, error);
  if (status == ASSAY_OK) status = flag(rope, "truncate", true, &c->rope_truncate, error);
  if (status == ASSAY_OK) status = real(rope, "attention_factor", 0, &c->rope_concentration, error);
  if (status == ASSAY_OK) status = real(rope, "mscale", 0, &mscale, error);
  if (status == ASSAY_OK) status = real(rope, "mscale_all_dim", 0, &mscale_all, error);
  if (c->arch == ASSAY_DEEPSEEK_V3)
    return status == ASSAY_OK ? read_mscale(rope, c, mscale, mscale_all, error) : status;
  if (status == ASSAY_OK && mscale != 0) return refuse("mscale", given(rope, "mscale"), "0", error);
  if (status == ASSAY_OK && mscale_all != 0) return refuse("mscale_all_dim", given(rope, "mscale_all_dim"), "0", error);
  return status;
}

/* Reads rope_parameters, or the older rope_theta and rope_scaling. */
static assay_status read_rope(const json_value *root, hf_kind kind, assay_model_config *c, assay_error *error) {
  const json_value *rope = given(root, "rope_parameters");
  const json_value *theta = rope != NULL ? rope : root;
  if (rope == NULL) rope = given(root, "rope_scaling");
  if (rope != NULL && rope->kind != JSON_OBJECT)
    return refuse(given(root, "rope_parameters") != NULL ? "rope_parameters" : "rope_scaling", rope, "an object",
                  error);
  const char *type = json_text(rope, "rope_type", json_text(rope, "type", "default"));
  double partial = 1;
  assay_status status = real(theta, "rope_theta", kind == HF_LLAMA ? 10000 : (double)NAN, &c->rope_base, error);
  if (status == ASSAY_OK)
    status =
        real(given(rope, "partial_rotary_factor") != NULL ? rope : root, "partial_rotary_factor", 1, &partial, error);
  if (status != ASSAY_OK) return status;
  if (!(partial > 0 && partial <= 1))
    return assay_fail(error, ASSAY_ERR_INPUT, "partial_rotary_factor: found %g, allowed above 0, at most 1", partial);
  if (c->arch != ASSAY_DEEPSEEK_V3) c->rotated = (int64_t)((double)c->head_size * partial);
  c->rope_kind = strcmp(type, "yarn") == 0     ? ASSAY_ROPE_YARN
                 : strcmp(type, "llama3") == 0 ? ASSAY_ROPE_LLAMA3
                                               : ASSAY_ROPE_PLAIN;
  if (c->rope_kind == ASSAY_ROPE_PLAIN && strcmp(type, "default") != 0)
    return assay_fail(error, ASSAY_ERR_INPUT, "rope_type: found '%.40s', allowed default, llama3, yarn", type);
  if (c->arch == ASSAY_DEEPSEEK_V3 && c->rope_kind == ASSAY_ROPE_LLAMA3)
    return assay_fail(error, ASSAY_ERR_INPUT, "rope_type: found '%.40s', allowed default, yarn", type);
  return c->rope_kind == ASSAY_ROPE_PLAIN ? ASSAY_OK : read_stretch(rope, c, error);
}

/* ---- layers ------------------------------------------------------------------------------------------ */

/* Reads which layers have a window. Without layer_types these are the even ones. */
static assay_status read_windows(const json_value *root, bool windows, assay_model_config *c, assay_error *error) {
  const json_value *types = given(root, "layer_types"), *at = types != NULL ? types->child : NULL;
  int64_t count = 0;
  memset(&c->windowed, 0, sizeof c->windowed);
  for (int64_t l = 0; l < c->layers && windows && types == NULL; l += 2)
    put_layer(&c->windowed, l);
  for (; at != NULL; at = at->next, ++count) {
    const bool sliding = at->kind == JSON_STRING && strcmp(at->text, "sliding_attention") == 0;
    const bool full = at->kind == JSON_STRING && strcmp(at->text, "full_attention") == 0;
    if (!full && !(sliding && windows))
      return refuse("layer_types", at, windows ? "full_attention, sliding_attention" : "full_attention", error);
    if (sliding && count < c->layers) put_layer(&c->windowed, count);
  }
  if (types != NULL && count != c->layers)
    return assay_fail(error, ASSAY_ERR_INPUT, "layer_types: found %lld, allowed num_hidden_layers = %lld", (ll)count,
                      (ll)c->layers);
  return windows ? whole(root, "sliding_window", 0, &c->window, error) : ASSAY_OK;
}

static assay_status read_experts(const json_value *root, hf_kind kind, assay_model_config *c, assay_error *error) {
  static const char *const names[] = {"num_experts", "num_local_experts", "n_routed_experts"};
  const char *first = NULL;
  const bool steps = kind == HF_QWEN3_MOE || kind == HF_QWEN3_NEXT, own_size = steps || kind == HF_DEEPSEEK_V3;
  int64_t number, step;
  assay_status status = ASSAY_OK;
  for (int i = 0; i < 3 && status == ASSAY_OK; ++i) {
    if (given(root, names[i]) == NULL) continue;
    status = whole(root, names[i], 0, &number, error);
    if (status == ASSAY_OK && first != NULL && number != c->experts)
      return assay_fail(error, ASSAY_ERR_INPUT, "%s: found %lld, allowed %s's %lld", names[i], (ll)number, first,
                        (ll)c->experts);
    c->experts = number;
    first = names[i];
  }
  if (status == ASSAY_OK && first == NULL)
    return assay_fail(error, ASSAY_ERR_INPUT, "num_experts: found none, allowed a whole number from 1 on");
  if (status == ASSAY_OK) status = whole(root, "num_experts_per_tok", 0, &c->experts_used, error);
  if (status == ASSAY_OK)
    status = whole(root, own_size ? "moe_intermediate_size" : "intermediate_size", 0, &c->expert_size, error);
  c->renormalise = true;
  memset(&c->sparse, 0, sizeof c->sparse);
  if (status == ASSAY_OK && steps) status = flag(root, "norm_topk_prob", true, &c->renormalise, error);
  if (status == ASSAY_OK) status = whole(root, "decoder_sparse_step", 1, &step, error);
  for (int64_t l = 0; l < c->layers && status == ASSAY_OK; ++l)
    if (!steps || (l + 1) % step == 0) put_layer(&c->sparse, l);
  const json_value *dense = steps ? given(root, "mlp_only_layers") : NULL;
  for (const json_value *at = dense != NULL ? dense->child : NULL; at != NULL && status == ASSAY_OK; at = at->next) {
    if (!json_whole(at, &number) || number < 0) return refuse("mlp_only_layers", at, "layers from 0 on", error);
    if (number < c->layers) c->sparse.bits[number / 64] &= ~((uint64_t)1 << (number % 64));
  }
  return status;
}

/* ---- the rest ---------------------------------------------------------------------------------------- */

static assay_status read_sizes(const json_value *root, hf_kind kind, assay_model_config *c, assay_error *error) {
  assay_status status = ASSAY_OK;
  const struct {
    const char *name;
    int64_t *to;
  } needed[] = {{"num_hidden_layers", &c->layers},  {"hidden_size", &c->hidden},
                {"num_attention_heads", &c->heads}, {"intermediate_size", &c->intermediate},
                {"vocab_size", &c->vocab},          {"max_position_embeddings", &c->max_pos}};
  for (size_t i = 0; i < sizeof needed / sizeof needed[0] && status == ASSAY_OK; ++i)
    status = whole(root, needed[i].name, 0, needed[i].to, error);
  if (status == ASSAY_OK && c->layers > ASSAY_MODEL_MAX_LAYERS)
    return assay_fail(error, ASSAY_ERR_INPUT, "num_hidden_layers: found %lld, allowed 1 to %d", (ll)c->layers,
                      ASSAY_MODEL_MAX_LAYERS);
  if (kind == HF_DEEPSEEK_V3) return status;
  if (status == ASSAY_OK)
    status = whole(root, "num_key_value_heads", kind == HF_LLAMA ? c->heads : 0, &c->kv_heads, error);
  if (status == ASSAY_OK && given(root, "head_dim") == NULL && c->hidden % c->heads != 0)
    return assay_fail(error, ASSAY_ERR_INPUT,
                      "hidden_size: found %lld, allowed multiples of num_attention_heads = %lld", (ll)c->hidden,
                      (ll)c->heads);
  if (status == ASSAY_OK) status = whole(root, "head_dim", c->hidden / c->heads, &c->head_size, error);
  return status;
}

/* Refuses what would change the result and is not followed. */
static assay_status read_refused(const json_value *root, hf_kind kind, assay_error *error) {
  const bool gemma = kind == HF_GEMMA2;
  const char *act = gemma ? "hidden_activation" : "hidden_act", *allowed = gemma ? "gelu_pytorch_tanh" : "silu";
  assay_status status = ASSAY_OK;
  if (kind != HF_GPT_OSS && strcmp(json_text(root, act, given(root, act) == NULL ? allowed : ""), allowed) != 0)
    return refuse(act, given(root, act), allowed, error);
  if (kind != HF_GPT_OSS) status = never(root, "attention_bias", error);
  if (status == ASSAY_OK) status = never(root, "mlp_bias", error);
  if (status == ASSAY_OK) status = never(root, "use_sliding_window", error);
  if (status == ASSAY_OK) status = never(root, "use_bidirectional_attention", error);
  if (status == ASSAY_OK && kind == HF_MIXTRAL && given(root, "sliding_window") != NULL)
    return refuse("sliding_window", given(root, "sliding_window"), "null", error);
  return status;
}

/* Reads how weights are stored in 8 bits: e4m3 with a scale for every 128 x 128, as DeepSeek's. */
static assay_status read_narrow(const json_value *root, hf_kind kind, assay_model_config *c, assay_error *error) {
  const json_value *q = given(root, "quantization_config");
  if (q == NULL) return ASSAY_OK;
  if (kind == HF_GPT_OSS || kind == HF_QWEN3_NEXT || q->kind != JSON_OBJECT ||
      strcmp(json_text(q, "quant_method", ""), "fp8") != 0)
    return refuse("quantization_config", q,
                  kind == HF_GPT_OSS || kind == HF_QWEN3_NEXT ? "none" : "none, or an object with quant_method fp8",
                  error);
  if (strcmp(json_text(q, "fmt", "e4m3"), "e4m3") != 0) return refuse("fmt", given(q, "fmt"), "e4m3", error);
  if (strcmp(json_text(q, "activation_scheme", "dynamic"), "dynamic") != 0)
    return refuse("activation_scheme", given(q, "activation_scheme"), "dynamic", error);
  const json_value *size = given(q, "weight_block_size");
  const bool pair = size != NULL && size->kind == JSON_ARRAY && size->child != NULL && size->child->next != NULL &&
                    size->child->next->next == NULL;
  for (const json_value *at = pair ? size->child : NULL; at != NULL; at = at->next)
    if (at->kind != JSON_NUMBER || strcmp(at->text, "128") != 0)
      return refuse("weight_block_size", at, "128 twice", error);
  if (!pair) return refuse("weight_block_size", size, "[128, 128]", error);
  c->fp8_weights = true;
  return ASSAY_OK;
}

/* Reads a soft cap. null: none; a missing one is the library's. */
static assay_status read_cap(const json_value *root, const char *name, double fallback, double *to,
                             assay_error *error) {
  return real(root, name, json_member(root, name) != NULL ? 0 : fallback, to, error);
}

static assay_status read_gemma(const json_value *root, assay_model_config *c, assay_error *error) {
  double scalar = 256;
  assay_status status = real(root, "query_pre_attn_scalar", 256, &scalar, error);
  if (status == ASSAY_OK && !(scalar > 0))
    return refuse("query_pre_attn_scalar", given(root, "query_pre_attn_scalar"), "a number above 0", error);
  c->score_scale = 1 / sqrt(scalar);
  if (status == ASSAY_OK) status = read_cap(root, "attn_logit_softcapping", 50, &c->score_cap, error);
  return status == ASSAY_OK ? read_cap(root, "final_logit_softcapping", 30, &c->logit_cap, error) : status;
}

/* Reads a whole number from 0 on; a missing one is 0. */
static assay_status whole_or_none(const json_value *root, const char *name, int64_t *to, assay_error *error) {
  const json_value *value = given(root, name);
  *to = 0;
  if (value != NULL && (!json_whole(value, to) || *to < 0 || *to > INT32_MAX))
    return refuse(name, value, "a whole number from 0 on", error);
  return ASSAY_OK;
}

/* Reads the sizes of latent attention. The fields head_dim and num_key_value_heads mean nothing here. */
static assay_status read_latent(const json_value *root, assay_model_config *c, assay_error *error) {
  bool interleaved = true;
  int64_t nope = 0;
  assay_status status = whole_or_none(root, "q_lora_rank", &c->q_rank, error);
  if (status == ASSAY_OK) status = whole(root, "kv_lora_rank", 0, &c->kv_rank, error);
  if (status == ASSAY_OK) status = whole(root, "qk_nope_head_dim", 0, &nope, error);
  if (status == ASSAY_OK) status = whole(root, "qk_rope_head_dim", 0, &c->rotated, error);
  if (status == ASSAY_OK) status = whole(root, "v_head_dim", 0, &c->value_size, error);
  if (status == ASSAY_OK) status = flag(root, "rope_interleave", true, &interleaved, error);
  if (status == ASSAY_OK && !interleaved)
    return refuse("rope_interleave", given(root, "rope_interleave"), "true", error);
  c->kv_heads = 1;
  c->head_size = nope + c->rotated;
  c->rope_style = ASSAY_ROPE_INTERLEAVED;
  c->rope_concentration = c->score_scale = 0;
  return status;
}

/* Reads the experts, those that all rows share, and how they are chosen. Older files name the score and the choice. */
static assay_status read_grouped(const json_value *root, assay_model_config *c, assay_error *error) {
  int64_t dense = 0, shared = 0, step = 1;
  assay_status status = whole_or_none(root, "first_k_dense_replace", &dense, error);
  if (status == ASSAY_OK) status = whole_or_none(root, "n_shared_experts", &shared, error);
  if (status == ASSAY_OK) status = whole(root, "moe_layer_freq", 1, &step, error);
  if (status == ASSAY_OK && step != 1) return refuse("moe_layer_freq", given(root, "moe_layer_freq"), "1", error);
  if (status == ASSAY_OK) status = whole(root, "n_group", 1, &c->groups, error);
  if (status == ASSAY_OK) status = whole(root, "topk_group", 1, &c->groups_used, error);
  if (status == ASSAY_OK) status = real(root, "routed_scaling_factor", (double)NAN, &c->route_scale, error);
  if (status == ASSAY_OK) status = flag(root, "norm_topk_prob", true, &c->renormalise, error);
  if (status == ASSAY_OK && strcmp(json_text(root, "scoring_func", "sigmoid"), "sigmoid") != 0)
    return refuse("scoring_func", given(root, "scoring_func"), "sigmoid", error);
  if (status == ASSAY_OK && strcmp(json_text(root, "topk_method", "noaux_tc"), "noaux_tc") != 0)
    return refuse("topk_method", given(root, "topk_method"), "noaux_tc", error);
  c->shared_size = shared * c->expert_size;
  memset(&c->sparse, 0, sizeof c->sparse);
  for (int64_t l = dense; l < c->layers; ++l)
    put_layer(&c->sparse, l);
  return status;
}

/* Reads which layers have the gated delta rule, and its sizes. Without layer_types, every layer whose number, counted
 * from 1, is a multiple of full_attention_interval has attention. */
static assay_status read_linear(const json_value *root, assay_model_config *c, assay_error *error) {
  const json_value *types = given(root, "layer_types"), *at = types != NULL ? types->child : NULL;
  int64_t count = 0, interval = 4;
  assay_status status = ASSAY_OK;
  const struct {
    const char *name;
    int64_t *to;
  } needed[] = {{"linear_num_key_heads", &c->linear_key_heads}, {"linear_num_value_heads", &c->linear_value_heads},
                {"linear_key_head_dim", &c->linear_key_size},   {"linear_value_head_dim", &c->linear_value_size},
                {"linear_conv_kernel_dim", &c->conv_taps},      {"shared_expert_intermediate_size", &c->shared_size}};
  for (size_t i = 0; i < sizeof needed / sizeof needed[0] && status == ASSAY_OK; ++i)
    status = whole(root, needed[i].name, 0, needed[i].to, error);
  if (status == ASSAY_OK) status = whole(root, "full_attention_interval", 4, &interval, error);
  if (status != ASSAY_OK) return status;
  memset(&c->linear, 0, sizeof c->linear);
  for (int64_t l = 0; l < c->layers && types == NULL; ++l)
    if ((l + 1) % interval != 0) put_layer(&c->linear, l);
  for (; at != NULL; at = at->next, ++count) {
    const bool linear = at->kind == JSON_STRING && strcmp(at->text, "linear_attention") == 0;
    if (!linear && !(at->kind == JSON_STRING && strcmp(at->text, "full_attention") == 0))
      return refuse("layer_types", at, "full_attention, linear_attention", error);
    if (linear && count < c->layers) put_layer(&c->linear, count);
  }
  if (types != NULL && count != c->layers)
    return assay_fail(error, ASSAY_ERR_INPUT, "layer_types: found %lld, allowed num_hidden_layers = %lld", (ll)count,
                      (ll)c->layers);
  return ASSAY_OK;
}

static assay_status find_kind(const json_value *root, hf_kind *kind, assay_error *error) {
  const json_value *type = given(root, "model_type");
  if (type == NULL || type->kind != JSON_STRING)
    return refuse("model_type", type,
                  "llama, qwen3, qwen3_moe, mixtral, gpt_oss, gemma2, deepseek_v3, kimi_k2, qwen3_next", error);
  if (strcmp(type->text, "kimi_k2") == 0) { /* its fields, names and page are deepseek_v3's */
    *kind = HF_DEEPSEEK_V3;
    return ASSAY_OK;
  }
  for (int k = 0; k < HF_KINDS; ++k)
    if (strcmp(type->text, kinds[k]) == 0) {
      *kind = (hf_kind)k;
      return ASSAY_OK;
    }
  return assay_fail(error, ASSAY_ERR_UNSUPPORTED,
                    "model_type: found '%.60s', allowed llama, qwen3, qwen3_moe, mixtral, gpt_oss, gemma2, "
                    "deepseek_v3, kimi_k2, qwen3_next",
                    type->text);
}

assay_status hf_config_read(const json_value *root, hf_kind *kind, assay_model_config *c, assay_error *error) {
  static const assay_model_arch arch[HF_KINDS] = {ASSAY_QWEN3,   ASSAY_QWEN3,  ASSAY_QWEN3_MOE,   ASSAY_QWEN3_MOE,
                                                  ASSAY_GPT_OSS, ASSAY_GEMMA2, ASSAY_DEEPSEEK_V3, ASSAY_QWEN3_NEXT};
  if (root == NULL || root->kind != JSON_OBJECT)
    return assay_fail(error, ASSAY_ERR_INPUT, "found no object, allowed the fields of a model");
  assay_status status = find_kind(root, kind, error);
  if (status != ASSAY_OK) return status;
  *c = assay_model_production(arch[*kind]);
  c->rope_style = ASSAY_ROPE_NEOX;
  c->qk_norm = *kind == HF_QWEN3 || *kind == HF_QWEN3_MOE || *kind == HF_QWEN3_NEXT;
  const bool windows = *kind == HF_GPT_OSS || *kind == HF_GEMMA2;
  const bool experts = *kind == HF_QWEN3_MOE || *kind == HF_MIXTRAL || *kind == HF_GPT_OSS || *kind == HF_DEEPSEEK_V3 ||
                       *kind == HF_QWEN3_NEXT;
  status = read_refused(root, *kind, error);
  if (status == ASSAY_OK) status = read_narrow(root, *kind, c, error);
  if (status == ASSAY_OK) status = read_sizes(root, *kind, c, error);
  if (status == ASSAY_OK) status = real(root, "rms_norm_eps", (double)NAN, &c->eps, error);
  if (status == ASSAY_OK) status = flag(root, "tie_word_embeddings", *kind == HF_GEMMA2, &c->tied_head, error);
  if (status == ASSAY_OK && *kind == HF_DEEPSEEK_V3) status = read_latent(root, c, error);
  if (status == ASSAY_OK) status = read_rope(root, *kind, c, error);
  if (status == ASSAY_OK)
    status = *kind == HF_QWEN3_NEXT ? read_linear(root, c, error) : read_windows(root, windows, c, error);
  if (status == ASSAY_OK && experts) status = read_experts(root, *kind, c, error);
  if (status == ASSAY_OK && *kind == HF_DEEPSEEK_V3) status = read_grouped(root, c, error);
  if (status == ASSAY_OK && *kind == HF_GPT_OSS) status = real(root, "swiglu_limit", 7, &c->act_limit, error);
  return status == ASSAY_OK && *kind == HF_GEMMA2 ? read_gemma(root, c, error) : status;
}
