/* model.c: names, limits and the production width of a model's configuration. */
#include <math.h>

#include "assay/model.h"

static const char *const arch_names[ASSAY_ARCH_COUNT] = {"gpt2",    "qwen3",  "asynct",      "qwen3_moe",
                                                         "gpt_oss", "gemma2", "deepseek_v3", "qwen3_next"};
static const char *const rope_names[ASSAY_ROPE_COUNT] = {"neox", "interleaved"};
static const char *const kind_names[ASSAY_ROPE_KINDS] = {"plain", "yarn", "llama3"};

const char *assay_model_arch_name(assay_model_arch arch) {
  return (unsigned)arch < ASSAY_ARCH_COUNT ? arch_names[arch] : "unknown";
}

const char *assay_rope_style_name(assay_rope_style style) {
  return (unsigned)style < ASSAY_ROPE_COUNT ? rope_names[style] : "unknown";
}

const char *assay_rope_kind_name(assay_rope_kind kind) {
  return (unsigned)kind < ASSAY_ROPE_KINDS ? kind_names[kind] : "unknown";
}

static bool has_experts(const assay_model_config *c) {
  return c->arch == ASSAY_QWEN3_MOE || c->arch == ASSAY_GPT_OSS || c->arch == ASSAY_DEEPSEEK_V3 ||
         c->arch == ASSAY_QWEN3_NEXT;
}

bool assay_model_is_linear(const assay_model_config *c, int64_t layer) {
  return c->arch == ASSAY_QWEN3_NEXT && assay_model_layer_in(&c->linear, layer);
}

bool assay_model_has_states(const assay_model_config *c) {
  return c->arch == ASSAY_QWEN3_NEXT;
}

/* One head multiplies, with K = kv_rank and a row's keys counted by their mean:
 *
 *   by keys and values   length (P + V) K to make them, then tokens · keys (P + R + V)
 *   by entries           tokens (P + V) K for q and the results, then tokens · keys (2 K + R) */
bool assay_model_expands(const assay_model_config *c, int64_t tokens, int64_t length) {
  const double P = (double)(c->head_size - c->rotated), R = (double)c->rotated, V = (double)c->value_size;
  const double K = (double)c->kv_rank, T = (double)tokens, L = (double)length, keys = L - (T - 1) / 2;
  return tokens > 1 && L * (P + V) * K + T * keys * (P + R + V) < T * (P + V) * K + T * keys * (2 * K + R);
}

bool assay_model_is_sparse(const assay_model_config *c, int64_t layer) {
  return has_experts(c) && layer >= 0 && layer < c->layers && assay_model_layer_in(&c->sparse, layer);
}

int64_t assay_model_window(const assay_model_config *c, int64_t layer) {
  return assay_model_layer_in(&c->windowed, layer) ? c->window : 0;
}

void assay_taps_from_sigma(double sigma, int64_t F, double *taps) {
  for (int64_t j = 0; j < F; ++j)
    taps[j] = (j == 0 ? 1 : 0) - sigma / (double)F;
}

/* Returns every step-th layer below `layers`, from layer 0 on. */
static assay_model_layers every(int64_t layers, int64_t step) {
  assay_model_layers set = {{0}};
  for (int64_t l = 0; l < layers; l += step)
    set.bits[l / 64] |= (uint64_t)1 << (l % 64);
  return set;
}

/* Sets what differs in Qwen3-30B-A3B, gpt-oss-120b, Gemma 2 9B, DeepSeek-V3, and Qwen3-Next-80B-A3B. */
static void published(assay_model_config *c) {
  if (c->arch == ASSAY_QWEN3_MOE) {
    c->layers = 48;
    c->hidden = 2048;
    c->heads = 32;
    c->intermediate = 6144;
    c->tied_head = false;
    c->experts = 128;
    c->experts_used = 8;
    c->expert_size = 768;
    c->renormalise = true;
    c->sparse = every(c->layers, 1);
  }
  if (c->arch == ASSAY_GPT_OSS) {
    c->layers = 36;
    c->hidden = c->intermediate = c->expert_size = 2880;
    c->heads = 64;
    c->kv_heads = 8;
    c->head_size = c->rotated = 64;
    c->vocab = 201088;
    c->max_pos = 131072;
    c->eps = 1e-5;
    c->rope_base = 150000;
    c->rope_kind = ASSAY_ROPE_YARN;
    c->rope_factor = 32;
    c->rope_original = 4096;
    c->rope_truncate = c->qk_norm = c->tied_head = false;
    c->qkv_bias = c->proj_bias = c->mlp_bias = c->renormalise = true;
    c->experts = 128;
    c->experts_used = 4;
    c->act_limit = 7;
    c->sparse = every(c->layers, 1);
    c->window = 128;
    c->windowed = every(c->layers, 2);
  }
  if (c->arch == ASSAY_GEMMA2) {
    c->layers = 42;
    c->hidden = 3584;
    c->heads = 16;
    c->kv_heads = 8;
    c->head_size = c->rotated = 256;
    c->intermediate = 14336;
    c->vocab = 256000;
    c->max_pos = 8192;
    c->rope_base = 10000;
    c->qk_norm = false;
    c->window = 4096;
    c->windowed = every(c->layers, 2);
    c->score_scale = 0.0625; /* query_pre_attn_scalar 256 */
    c->score_cap = 50;
    c->logit_cap = 30;
  }
  if (c->arch == ASSAY_DEEPSEEK_V3) {
    const double m = 0.1 * log(40.0) + 1;
    c->layers = 61;
    c->hidden = 7168;
    c->heads = 128;
    c->kv_heads = 1;
    c->head_size = 192;
    c->rotated = 64;
    c->q_rank = 1536;
    c->kv_rank = 512;
    c->value_size = 128;
    c->intermediate = 18432;
    c->vocab = 129280;
    c->max_pos = 163840;
    c->qk_norm = c->tied_head = false;
    c->rope_style = ASSAY_ROPE_INTERLEAVED;
    c->rope_base = 10000;
    c->rope_kind = ASSAY_ROPE_YARN;
    c->rope_factor = 40;
    c->rope_concentration = 1;
    c->score_scale = m * m / sqrt(192.0);
    c->experts = 256;
    c->experts_used = 8;
    c->expert_size = c->shared_size = 2048;
    c->renormalise = true;
    c->groups = 8;
    c->groups_used = 4;
    c->route_scale = 2.5;
    c->sparse = every(c->layers, 1);
    c->sparse.bits[0] &= ~(uint64_t)7;
  }
  if (c->arch == ASSAY_QWEN3_NEXT) {
    c->layers = 48;
    c->hidden = 2048;
    c->heads = 16;
    c->kv_heads = 2;
    c->head_size = 256;
    c->rotated = 64;
    c->intermediate = 5120;
    c->max_pos = 262144;
    c->rope_base = 1e7;
    c->tied_head = false;
    c->linear_key_heads = 16;
    c->linear_value_heads = 32;
    c->linear_key_size = c->linear_value_size = 128;
    c->conv_taps = 4;
    for (int64_t l = 0; l < c->layers; ++l)
      if ((l + 1) % 4 != 0) c->linear.bits[l / 64] |= (uint64_t)1 << (l % 64);
    c->experts = 512;
    c->experts_used = 10;
    c->expert_size = c->shared_size = 512;
    c->renormalise = true;
    c->sparse = every(c->layers, 1);
  }
}

/* Returns the production width; gpt2 has the shape of GPT-2 medium. gate_sigma: see core/model_seed.c. */
assay_model_config assay_model_production(assay_model_arch arch) {
  assay_model_config c = {.arch = arch,
                          .layers = 28,
                          .hidden = 1024,
                          .heads = 8,
                          .kv_heads = 4,
                          .head_size = 128,
                          .intermediate = 3072,
                          .vocab = 151936,
                          .max_pos = 40960,
                          .eps = 1e-6,
                          .rope_base = 1e6,
                          .rotated = 128,
                          .rope_factor = 1,
                          .rope_original = 4096,
                          .rope_beta_fast = 32,
                          .rope_beta_slow = 1,
                          .rope_truncate = true,
                          .rope_low = 1,
                          .rope_high = 4,
                          .qk_norm = true,
                          .tied_head = true,
                          .weight_dtype = ASSAY_BF16,
                          .act_dtype = ASSAY_BF16,
                          .kv_dtype = ASSAY_BF16,
                          .block_size = 16};
  if (arch == ASSAY_ASYNCT) {
    c.layers = 35;
    c.norm_bias = c.gamma_per_channel = c.gate_relu_pre = true;
    c.gate_taps = 3;
    c.gate_sigma = 1.375;
    c.gate_hi = 1;
  }
  if (arch == ASSAY_GPT2) {
    c.layers = 24;
    c.heads = c.kv_heads = 16;
    c.head_size = 64;
    c.intermediate = 4096;
    c.vocab = 50257;
    c.max_pos = 1024;
    c.eps = 1e-5;
    c.rope_base = 0;
    c.rotated = 0;
    c.qk_norm = false;
    c.qkv_bias = c.proj_bias = c.mlp_bias = c.norm_bias = true;
  }
  published(&c);
  return c;
}

static assay_status in_range(const char *name, int64_t value, int64_t min, int64_t max, assay_error *error) {
  if (value >= min && value <= max) return ASSAY_OK;
  return assay_fail(error, ASSAY_ERR_INPUT, "%s: found %lld, allowed %lld to %lld", name, (long long)value,
                    (long long)min, (long long)max);
}

static assay_status check_sizes(const assay_model_config *c, assay_error *error) {
  const struct {
    const char *name;
    int64_t value, min, max;
  } size[] = {{"layers", c->layers, 1, ASSAY_MODEL_MAX_LAYERS},
              {"hidden", c->hidden, 1, 65536},
              {"heads", c->heads, 1, 1024},
              {"kv_heads", c->kv_heads, 1, 1024},
              {"head_size", c->head_size, 8, 256},
              {"intermediate", c->intermediate, 1, 262144},
              {"vocab", c->vocab, 1, 1048576},
              {"max_pos", c->max_pos, 1, 1048576}};
  for (size_t i = 0; i < sizeof size / sizeof size[0]; ++i) {
    const assay_status status = in_range(size[i].name, size[i].value, size[i].min, size[i].max, error);
    if (status != ASSAY_OK) return status;
  }
  if (c->head_size % 8 != 0)
    return assay_fail(error, ASSAY_ERR_INPUT, "head_size: found %lld, allowed multiples of 8", (long long)c->head_size);
  if (c->heads % c->kv_heads != 0)
    return assay_fail(error, ASSAY_ERR_INPUT, "heads: found %lld, allowed multiples of kv_heads (%lld)",
                      (long long)c->heads, (long long)c->kv_heads);
  const int64_t block = c->block_size;
  if (block < 8 || block > 256 || (block & (block - 1)) != 0)
    return assay_fail(error, ASSAY_ERR_INPUT, "block_size: found %lld, allowed 8, 16, 32, 64, 128, 256",
                      (long long)block);
  return ASSAY_OK;
}

static assay_status check_dtypes(const assay_model_config *c, assay_error *error) {
  if (c->weight_dtype < ASSAY_F32 || c->weight_dtype > ASSAY_BF16)
    return assay_fail(error, ASSAY_ERR_INPUT, "weight_dtype: found %s, allowed f32, f16, bf16",
                      assay_dtype_name(c->weight_dtype));
  if (c->act_dtype < ASSAY_F32 || c->act_dtype > ASSAY_BF16)
    return assay_fail(error, ASSAY_ERR_INPUT, "act_dtype: found %s, allowed f32, f16, bf16",
                      assay_dtype_name(c->act_dtype));
  if (c->kv_dtype != c->act_dtype && c->kv_dtype != ASSAY_E4M3 && c->kv_dtype != ASSAY_E5M2)
    return assay_fail(error, ASSAY_ERR_INPUT, "kv_dtype: found %s, allowed %s (act_dtype), e4m3, e5m2",
                      assay_dtype_name(c->kv_dtype), assay_dtype_name(c->act_dtype));
  return ASSAY_OK;
}

static assay_status check_gate(const assay_model_config *c, assay_error *error) {
  const assay_status status = in_range("gate_taps", c->gate_taps, 1, ASSAY_MODEL_MAX_TAPS, error);
  if (status != ASSAY_OK) return status;
  if (!(fabs(c->gate_sigma) <= 1024))
    return assay_fail(error, ASSAY_ERR_INPUT, "gate_sigma: found %g, allowed -1024 to 1024", c->gate_sigma);
  if (!(c->gate_lo >= 0 && c->gate_lo <= c->gate_hi && c->gate_hi <= 1024))
    return assay_fail(error, ASSAY_ERR_INPUT, "gate_lo, gate_hi: found %g and %g, allowed 0 <= lo <= hi <= 1024",
                      c->gate_lo, c->gate_hi);
  return ASSAY_OK;
}

static assay_status check_rope(const assay_model_config *c, assay_error *error) {
  if ((unsigned)c->rope_kind >= ASSAY_ROPE_KINDS)
    return assay_fail(error, ASSAY_ERR_INPUT, "rope_kind: found %d, allowed plain, yarn, llama3", (int)c->rope_kind);
  if (c->rope_kind == ASSAY_ROPE_PLAIN || c->rotated == 0) return ASSAY_OK;
  const struct {
    const char *name;
    double value, min, max; /* as the operator rope_table has them */
  } number[] = {{"rope_base", c->rope_base, 2, 1e9},
                {"rope_factor", c->rope_factor, 1, 1024},
                {"rope_original", c->rope_original, 1, 1 << 24},
                {"rope_beta_fast", c->rope_beta_fast, 0.01, 1024},
                {"rope_beta_slow", c->rope_beta_slow, 0.01, 1024},
                {"rope_concentration", c->rope_concentration, 0, 16},
                {"rope_low", c->rope_low, 0.01, 1024},
                {"rope_high", c->rope_high, 0.01, 1024}};
  for (size_t i = 0; i < sizeof number / sizeof number[0]; ++i)
    if (!(number[i].value >= number[i].min && number[i].value <= number[i].max))
      return assay_fail(error, ASSAY_ERR_INPUT, "%s: found %g, allowed %g to %g", number[i].name, number[i].value,
                        number[i].min, number[i].max);
  if (c->rope_kind == ASSAY_ROPE_LLAMA3 && !(c->rope_low < c->rope_high))
    return assay_fail(error, ASSAY_ERR_INPUT, "rope_high: found %g, allowed more than rope_low = %g", c->rope_high,
                      c->rope_low);
  if (c->rope_kind == ASSAY_ROPE_YARN && !(c->rope_beta_slow <= c->rope_beta_fast))
    return assay_fail(error, ASSAY_ERR_INPUT, "rope_beta_fast: found %g, allowed from rope_beta_slow = %g on",
                      c->rope_beta_fast, c->rope_beta_slow);
  return ASSAY_OK;
}

static assay_status check_experts(const assay_model_config *c, assay_error *error) {
  if (!has_experts(c))
    return c->experts == 0 ? ASSAY_OK
                           : assay_fail(error, ASSAY_ERR_INPUT, "experts: found %lld, allowed 0 in %s",
                                        (long long)c->experts, assay_model_arch_name(c->arch));
  assay_status status = in_range("experts", c->experts, 1, 1024, error);
  if (status == ASSAY_OK)
    status = in_range("experts_used", c->experts_used, 1, c->experts < 32 ? c->experts : 32, error);
  if (status == ASSAY_OK) status = in_range("expert_size", c->expert_size, 1, 262144, error);
  for (int64_t l = 0; l < c->layers && status == ASSAY_OK && c->arch == ASSAY_GPT_OSS; ++l)
    if (!assay_model_is_sparse(c, l))
      status = assay_fail(error, ASSAY_ERR_INPUT, "sparse: found no layer %lld, allowed all layers in gpt_oss",
                          (long long)l);
  return status;
}

/* Checks the sizes of latent attention. */
static assay_status check_latent(const assay_model_config *c, assay_error *error) {
  const bool latent = c->arch == ASSAY_DEEPSEEK_V3;
  const struct {
    const char *name;
    int64_t value, min, max;
  } size[] = {{"q_rank", c->q_rank, 0, latent ? 65536 : 0},
              {"kv_rank", c->kv_rank, latent, latent ? 4096 : 0},
              {"value_size", c->value_size, latent, latent ? 256 : 0},
              {"groups", c->groups, latent, latent ? 1024 : 0},
              {"groups_used", c->groups_used, latent, latent ? c->groups : 0},
              {"shared_size", c->shared_size, 0, latent || c->arch == ASSAY_QWEN3_NEXT ? 262144 : 0}};
  for (size_t i = 0; i < sizeof size / sizeof size[0]; ++i) {
    const assay_status status = in_range(size[i].name, size[i].value, size[i].min, size[i].max, error);
    if (status != ASSAY_OK) return status;
  }
  if (!(latent ? c->route_scale > 0 && c->route_scale <= 1024 : c->route_scale == 0))
    return assay_fail(error, ASSAY_ERR_INPUT, "route_scale: found %g, allowed %s in %s", c->route_scale,
                      latent ? "above 0, at most 1024" : "0", assay_model_arch_name(c->arch));
  if (!latent) return ASSAY_OK;
  if (c->kv_heads != 1) return in_range("kv_heads", c->kv_heads, 1, 1, error);
  if (c->qk_norm || c->qkv_bias || c->proj_bias || c->mlp_bias)
    return assay_fail(error, ASSAY_ERR_INPUT, "%s: deepseek_v3 has none",
                      c->qk_norm     ? "qk_norm"
                      : c->qkv_bias  ? "qkv_bias"
                      : c->proj_bias ? "proj_bias"
                                     : "mlp_bias");
  if (c->rotated < 2 || c->rotated >= c->head_size)
    return assay_fail(error, ASSAY_ERR_INPUT,
                      "rotated: found %lld, allowed even numbers from 2 to below head_size %lld", (long long)c->rotated,
                      (long long)c->head_size);
  if (c->kv_dtype != c->act_dtype)
    return assay_fail(error, ASSAY_ERR_INPUT, "kv_dtype: found %s, allowed %s (act_dtype) in deepseek_v3",
                      assay_dtype_name(c->kv_dtype), assay_dtype_name(c->act_dtype));
  const int64_t of_group = c->experts / c->groups;
  if (c->experts % c->groups != 0 || of_group < 2 || c->groups_used * of_group < c->experts_used)
    return assay_fail(error, ASSAY_ERR_INPUT,
                      "groups: found %lld, of which %lld are used, allowed divisors of experts %lld with two experts a "
                      "group, and experts_used %lld in the groups used",
                      (long long)c->groups, (long long)c->groups_used, (long long)c->experts,
                      (long long)c->experts_used);
  return ASSAY_OK;
}

/* Checks the sizes of the gated delta rule. */
static assay_status check_linear(const assay_model_config *c, assay_error *error) {
  const bool next = c->arch == ASSAY_QWEN3_NEXT;
  const struct {
    const char *name;
    int64_t value, min, max;
  } size[] = {{"linear_key_heads", c->linear_key_heads, next, next ? 1024 : 0},
              {"linear_value_heads", c->linear_value_heads, next, next ? 1024 : 0},
              {"linear_key_size", c->linear_key_size, next, next ? 256 : 0},
              {"linear_value_size", c->linear_value_size, next, next ? 256 : 0},
              {"conv_taps", c->conv_taps, next ? 2 : 0, next ? 4 : 0}};
  for (size_t i = 0; i < sizeof size / sizeof size[0]; ++i) {
    const assay_status status = in_range(size[i].name, size[i].value, size[i].min, size[i].max, error);
    if (status != ASSAY_OK) return status;
  }
  for (size_t i = 0; i < sizeof c->linear.bits / sizeof c->linear.bits[0] && !next; ++i)
    if (c->linear.bits[i] != 0)
      return assay_fail(error, ASSAY_ERR_INPUT, "linear: found layers, allowed none in %s",
                        assay_model_arch_name(c->arch));
  if (!next) return ASSAY_OK;
  if (c->linear_value_heads % c->linear_key_heads != 0)
    return assay_fail(error, ASSAY_ERR_INPUT, "linear_value_heads: found %lld, allowed multiples of %lld",
                      (long long)c->linear_value_heads, (long long)c->linear_key_heads);
  if (c->qkv_bias || c->proj_bias || c->mlp_bias)
    return assay_fail(error, ASSAY_ERR_INPUT, "%s: qwen3_next has none",
                      c->qkv_bias    ? "qkv_bias"
                      : c->proj_bias ? "proj_bias"
                                     : "mlp_bias");
  if (!c->qk_norm) return assay_fail(error, ASSAY_ERR_INPUT, "qk_norm: found false, allowed true in qwen3_next");
  return c->rope_style == ASSAY_ROPE_NEOX
             ? ASSAY_OK
             : assay_fail(error, ASSAY_ERR_INPUT, "rope_style: found interleaved, allowed neox in qwen3_next");
}

/* Checks the numbers that only gpt_oss, gemma2 and deepseek_v3 have. */
static assay_status check_caps(const assay_model_config *c, assay_error *error) {
  const bool gemma = c->arch == ASSAY_GEMMA2, oss = c->arch == ASSAY_GPT_OSS;
  const struct {
    const char *name;
    double value;
    bool there;
  } number[] = {{"act_limit", c->act_limit, oss},
                {"window", (double)c->window, oss || gemma},
                {"score_scale", c->score_scale, gemma || c->arch == ASSAY_DEEPSEEK_V3},
                {"score_cap", c->score_cap, gemma},
                {"logit_cap", c->logit_cap, gemma}};
  for (size_t i = 0; i < sizeof number / sizeof number[0]; ++i)
    if (!(number[i].value >= 0 && number[i].value <= (number[i].there ? 1048576 : 0)))
      return assay_fail(error, ASSAY_ERR_INPUT, "%s: found %g, allowed %s in %s", number[i].name, number[i].value,
                        number[i].there ? "0 to 1048576" : "0", assay_model_arch_name(c->arch));
  return ASSAY_OK;
}

/* Checks that the sizes of a configuration with fp8_weights go into blocks of 128. */
static assay_status check_narrow(const assay_model_config *c, assay_error *error) {
  const bool latent = c->arch == ASSAY_DEEPSEEK_V3, next = c->arch == ASSAY_QWEN3_NEXT;
  bool dense = false, sparse = false, linear = false;
  for (int64_t l = 0; l < c->layers; ++l) {
    dense |= !assay_model_is_sparse(c, l);
    sparse |= assay_model_is_sparse(c, l);
    linear |= assay_model_is_linear(c, l);
  }
  const struct {
    const char *name;
    int64_t size;
    bool there;
  } size[] = {{"hidden", c->hidden, true},
              {"q_rank", c->q_rank, latent},
              {"heads · value_size", c->heads * c->value_size, latent},
              {"heads · head_size", c->heads * c->head_size, !latent},
              {"linear_value_heads · linear_value_size", c->linear_value_heads * c->linear_value_size, next && linear},
              {"intermediate", c->intermediate, dense},
              {"expert_size", c->expert_size, sparse},
              {"shared_size", c->shared_size, sparse && c->shared_size > 0}};
  for (size_t i = 0; i < sizeof size / sizeof *size; ++i)
    if (size[i].there && size[i].size % ASSAY_MODEL_FP8_BLOCK != 0)
      return assay_fail(error, ASSAY_ERR_INPUT, "%s: found %lld, allowed with fp8_weights: multiples of %d",
                        size[i].name, (long long)size[i].size, ASSAY_MODEL_FP8_BLOCK);
  return ASSAY_OK;
}

assay_status assay_model_check(const assay_model_config *c, assay_error *error) {
  if ((unsigned)c->arch >= ASSAY_ARCH_COUNT)
    return assay_fail(
        error, ASSAY_ERR_INPUT,
        "arch: found %d, allowed gpt2, qwen3, asynct, qwen3_moe, gpt_oss, gemma2, deepseek_v3, qwen3_next",
        (int)c->arch);
  assay_status status = check_sizes(c, error);
  if (status == ASSAY_OK) status = check_dtypes(c, error);
  if (status == ASSAY_OK && c->arch == ASSAY_ASYNCT) status = check_gate(c, error);
  if (status != ASSAY_OK) return status;
  if (c->arch != ASSAY_ASYNCT && !(c->eps > 0 && c->eps <= 1))
    return assay_fail(error, ASSAY_ERR_INPUT, "eps: found %g, allowed above 0, at most 1", c->eps);
  if (c->arch == ASSAY_GPT2 && (c->qk_norm || c->rotated != 0))
    return assay_fail(error, ASSAY_ERR_INPUT, "%s: gpt2 has none", c->qk_norm ? "qk_norm" : "rotated");
  if ((c->arch == ASSAY_GPT_OSS || c->arch == ASSAY_GEMMA2) && c->qk_norm)
    return assay_fail(error, ASSAY_ERR_INPUT, "qk_norm: %s has none", assay_model_arch_name(c->arch));
  if (c->arch != ASSAY_GPT2 && c->arch != ASSAY_ASYNCT && c->norm_bias)
    return assay_fail(error, ASSAY_ERR_INPUT, "norm_bias: rms_norm has none");
  if (c->rotated < 0 || c->rotated > c->head_size || c->rotated % 2 != 0)
    return assay_fail(error, ASSAY_ERR_INPUT, "rotated: found %lld, allowed even numbers from 0 to head_size (%lld)",
                      (long long)c->rotated, (long long)c->head_size);
  if (c->rotated > 0 && !(c->rope_base > 0 && c->rope_base <= 1e12))
    return assay_fail(error, ASSAY_ERR_INPUT, "rope_base: found %g, allowed above 0, at most 1e12", c->rope_base);
  if ((unsigned)c->rope_style >= ASSAY_ROPE_COUNT)
    return assay_fail(error, ASSAY_ERR_INPUT, "rope_style: found %d, allowed neox, interleaved", (int)c->rope_style);
  status = check_rope(c, error);
  if (status == ASSAY_OK) status = check_experts(c, error);
  if (status == ASSAY_OK) status = check_latent(c, error);
  if (status == ASSAY_OK) status = check_linear(c, error);
  if (status == ASSAY_OK) status = check_caps(c, error);
  return status == ASSAY_OK && c->fp8_weights ? check_narrow(c, error) : status;
}
