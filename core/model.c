/* model.c: names, limits and the production width of a model's configuration. */
#include <math.h>

#include "assay/model.h"

static const char *const arch_names[ASSAY_ARCH_COUNT] = {"gpt2", "qwen3", "asynct"};
static const char *const rope_names[ASSAY_ROPE_COUNT] = {"neox", "interleaved"};

const char *assay_model_arch_name(assay_model_arch arch) {
  return (unsigned)arch < ASSAY_ARCH_COUNT ? arch_names[arch] : "unknown";
}

const char *assay_rope_style_name(assay_rope_style style) {
  return (unsigned)style < ASSAY_ROPE_COUNT ? rope_names[style] : "unknown";
}

void assay_taps_from_sigma(double sigma, int64_t F, double *taps) {
  for (int64_t j = 0; j < F; ++j)
    taps[j] = (j == 0 ? 1 : 0) - sigma / (double)F;
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
  } size[] = {{"layers", c->layers, 1, 1024},      {"hidden", c->hidden, 1, 65536},
              {"heads", c->heads, 1, 1024},        {"kv_heads", c->kv_heads, 1, 1024},
              {"head_size", c->head_size, 8, 256}, {"intermediate", c->intermediate, 1, 262144},
              {"vocab", c->vocab, 1, 1048576},     {"max_pos", c->max_pos, 1, 1048576}};
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

assay_status assay_model_check(const assay_model_config *c, assay_error *error) {
  if ((unsigned)c->arch >= ASSAY_ARCH_COUNT)
    return assay_fail(error, ASSAY_ERR_INPUT, "arch: found %d, allowed gpt2, qwen3, asynct", (int)c->arch);
  assay_status status = check_sizes(c, error);
  if (status == ASSAY_OK) status = check_dtypes(c, error);
  if (status == ASSAY_OK && c->arch == ASSAY_ASYNCT) status = check_gate(c, error);
  if (status != ASSAY_OK) return status;
  if (c->arch != ASSAY_ASYNCT && !(c->eps > 0 && c->eps <= 1))
    return assay_fail(error, ASSAY_ERR_INPUT, "eps: found %g, allowed above 0, at most 1", c->eps);
  if (c->arch == ASSAY_GPT2 && (c->qk_norm || c->rotated != 0))
    return assay_fail(error, ASSAY_ERR_INPUT, "%s: gpt2 has none", c->qk_norm ? "qk_norm" : "rotated");
  if (c->arch == ASSAY_QWEN3 && c->norm_bias) return assay_fail(error, ASSAY_ERR_INPUT, "norm_bias: rms_norm has none");
  if (c->rotated < 0 || c->rotated > c->head_size || c->rotated % 2 != 0)
    return assay_fail(error, ASSAY_ERR_INPUT, "rotated: found %lld, allowed even numbers from 0 to head_size (%lld)",
                      (long long)c->rotated, (long long)c->head_size);
  if (c->rotated > 0 && !(c->rope_base > 0 && c->rope_base <= 1e12))
    return assay_fail(error, ASSAY_ERR_INPUT, "rope_base: found %g, allowed above 0, at most 1e12", c->rope_base);
  if ((unsigned)c->rope_style >= ASSAY_ROPE_COUNT)
    return assay_fail(error, ASSAY_ERR_INPUT, "rope_style: found %d, allowed neox, interleaved", (int)c->rope_style);
  return ASSAY_OK;
}
