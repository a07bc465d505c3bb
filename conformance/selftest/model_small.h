/* model_small.h: small models of the three families, with every option somewhere. */
#ifndef ASSAY_SELFTEST_MODEL_SMALL_H
#define ASSAY_SELFTEST_MODEL_SMALL_H

#include "assay/model.h"

enum { SMALL_MODELS = 5 };

static inline assay_model_config small_model(int number) {
  static const assay_model_arch arch[SMALL_MODELS] = {ASSAY_GPT2, ASSAY_QWEN3, ASSAY_ASYNCT, ASSAY_QWEN3, ASSAY_ASYNCT};
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
