/* model_small.h: small models of all families, with every option somewhere. */
#ifndef ASSAY_SELFTEST_MODEL_SMALL_H
#define ASSAY_SELFTEST_MODEL_SMALL_H

#include "assay/model.h"

/* The first five run on a device too. */
enum { SMALL_MODELS = 5, REF_MODELS = 15 };

static inline assay_model_config small_model(int number) {
  static const assay_model_arch arch[REF_MODELS] = {
      ASSAY_GPT2,        ASSAY_QWEN3,       ASSAY_ASYNCT,     ASSAY_QWEN3,      ASSAY_ASYNCT,
      ASSAY_QWEN3,       ASSAY_QWEN3_MOE,   ASSAY_QWEN3_MOE,  ASSAY_GPT_OSS,    ASSAY_GEMMA2,
      ASSAY_DEEPSEEK_V3, ASSAY_DEEPSEEK_V3, ASSAY_QWEN3_NEXT, ASSAY_QWEN3_NEXT, ASSAY_DEEPSEEK_V3};
  assay_model_config c = assay_model_production(arch[number]);
  c.layers = 3;
  c.hidden = 64;
  c.heads = 4;
  c.kv_heads = c.arch == ASSAY_GPT2 ? 4 : 2;
  c.head_size = 16;
  c.rotated = c.arch == ASSAY_GPT2 ? 0 : 16;
  c.intermediate = 96;
  c.vocab = 300;
  c.max_pos = 256;
  c.block_size = 8;
  if (c.experts > 0) {
    c.experts = 6;
    c.experts_used = 2;
    c.expert_size = 40;
  }
  if (c.window > 0) c.window = 8;
  if (number == 3) { /* the Llama family, and what else the configuration allows */
    c.qk_norm = c.tied_head = false;
    c.rope_style = ASSAY_ROPE_INTERLEAVED;
    c.rope_base = 1e4;
    c.rotated = 8;
    c.head_size = 24; /* H · D is not C */
    c.qkv_bias = c.proj_bias = c.mlp_bias = true;
    c.weight_dtype = ASSAY_F32;
    c.act_dtype = c.kv_dtype = ASSAY_F16;
    c.block_size = 16;
  }
  if (number == 5) { /* Llama 3.1's table, with bands inside what 40 positions see */
    c.qk_norm = false;
    c.rope_kind = ASSAY_ROPE_LLAMA3;
    c.rope_base = 1e4;
    c.rope_factor = 8;
    c.rope_original = 64;
    c.head_size = 24;
    c.rotated = 16;
    c.weight_dtype = c.act_dtype = c.kv_dtype = ASSAY_F32;
  }
  if (number == 7) { /* dense layers between sparse ones, weights that are not divided by their sum */
    c.qk_norm = c.renormalise = false;
    c.sparse = (assay_model_layers){{5}}; /* layers 0 and 2 */
    c.experts_used = 3;
    c.weight_dtype = c.act_dtype = c.kv_dtype = ASSAY_F32;
  }
  if (number == 8) {
    c.rope_factor = 4;
    c.rope_original = 32;
    c.rope_beta_fast = 4;
    c.act_limit = 0.5;
  }
  if (number == 9) {
    c.score_scale = 0.3;
    c.score_cap = 2;
    c.logit_cap = 3;
  }
  if (c.arch == ASSAY_DEEPSEEK_V3) { /* m squared is 1.3 over the root of D */
    c.kv_heads = 1;
    c.rotated = 8;
    c.q_rank = number == 10 ? 48 : 0;
    c.kv_rank = 32;
    c.value_size = 12;
    c.experts = 8;
    c.experts_used = 3;
    c.shared_size = number == 10 ? 24 : 0;
    c.groups = number == 10 ? 4 : 1;
    c.groups_used = number == 10 ? 2 : 1;
    c.sparse = (assay_model_layers){{6}}; /* the first layer is dense */
    c.rope_original = 64;
    c.rope_truncate = false;
    c.rope_concentration = 1.1;
    c.score_scale = 1.3 / 4;
    c.eps = 0.01;
    c.renormalise = number == 10;
    c.weight_dtype = c.act_dtype = c.kv_dtype = number == 10 ? ASSAY_BF16 : ASSAY_F32;
  }
  if (number == 14) { /* Kimi K2: 64 heads, one group of many experts, a table of YaRN without a ramp */
    c.heads = 64;
    c.head_size = 16;
    c.rotated = 8;
    c.q_rank = 48;
    c.value_size = 8;
    c.experts = 24;
    c.experts_used = 8;
    c.expert_size = c.shared_size = 24;
    c.route_scale = 2.827;
    c.renormalise = true;
    c.rope_base = 5e4;
    c.rope_factor = 32;
    c.rope_beta_fast = c.rope_beta_slow = 1;
    c.rope_concentration = 1;
    c.rope_truncate = true;
  }
  if (c.arch == ASSAY_QWEN3_NEXT) { /* sizes that differ, and three value heads for a key head, or one */
    c.rotated = number == 12 ? 8 : 16;
    c.linear_key_heads = 2;
    c.linear_value_heads = number == 12 ? 6 : 2;
    c.linear_key_size = 8;
    c.linear_value_size = 12;
    c.conv_taps = number == 12 ? 4 : 2;
    c.linear = (assay_model_layers){{number == 12 ? 5 : 3}};
    c.sparse = (assay_model_layers){{number == 12 ? 7 : 6}};
    c.experts_used = 3;
    c.shared_size = number == 12 ? 24 : 0;
    c.renormalise = number == 12;
    c.weight_dtype = c.act_dtype = c.kv_dtype = number == 12 ? ASSAY_BF16 : ASSAY_F32;
  }
  if (number == 4) {
    c.alpha_per_channel = true;
    c.gamma_per_channel = c.norm_bias = false;
    c.gate_taps = 5;
    c.gate_sigma = 1;
    c.gate_lo = 0.01;
    c.qkv_bias = true;
    c.kv_dtype = ASSAY_E4M3;
    c.kv_heads = 1;
  }
  return c;
}

#endif
