/* model_weights.c: the weights of a configuration, in their order, and memory for them. */
#include <stdlib.h>
#include <string.h>

#include "assay/model.h"

enum { WEIGHT_ALIGNMENT = 256 };
enum {
  GPT2 = 1 << ASSAY_GPT2,
  ASYNCT = 1 << ASSAY_ASYNCT,
  MOE = 1 << ASSAY_QWEN3_MOE,
  OSS = 1 << ASSAY_GPT_OSS,
  GEMMA2 = 1 << ASSAY_GEMMA2,
  LATENT = 1 << ASSAY_DEEPSEEK_V3,
  NEXT = 1 << ASSAY_QWEN3_NEXT,
  RMS = 1 << ASSAY_QWEN3 | MOE | OSS | GEMMA2 | LATENT | NEXT, /* the families with rms_norm */
  ALL = GPT2 | ASYNCT | RMS,
  FUSED = ALL & ~LATENT /* q, k and v are one product */
};
typedef enum when {
  ALWAYS,
  QKV_BIAS,
  PROJ_BIAS,
  NORM_BIAS,
  QK_NORM,
  SEPARATE_HEAD,
  FP8_CACHE,
  DENSE,      /* a layer without experts */
  DENSE_BIAS, /* the same, with mlp_bias */
  SPARSE,     /* a layer with experts */
  SPARSE_BIAS,
  TWO_STEPS, /* q is two products */
  SHARED,    /* a layer with experts, one of them for all rows */
  LINEAR     /* a layer with the gated delta rule */
} when;
typedef enum size {
  NO_SIZE,
  ONE,
  SIZE_V,
  SIZE_P,
  SIZE_C,
  SIZE_QKV,
  SIZE_HD,
  SIZE_D,
  SIZE_F,
  SIZE_H,
  SIZE_KV,
  SIZE_UP,
  SIZE_I,
  SIZE_ALPHA,
  SIZE_GAMMA,
  SIZE_E,
  SIZE_E_UP, /* E · 2 I of one expert */
  SIZE_E_C,  /* E · C */
  SIZE_E_I,  /* I of one expert */
  SIZE_Q_A,  /* q_rank */
  SIZE_Q_IN, /* q_rank; without it C */
  SIZE_Q,    /* H · D */
  SIZE_KV_A, /* kv_rank + R */
  SIZE_KV_R, /* kv_rank */
  SIZE_KV_B, /* H · (D - R + V) */
  SIZE_S_UP, /* 2 S */
  SIZE_S,
  SIZE_D_IN,   /* 2 H_k D_k + 2 H_v D_v + 2 H_v */
  SIZE_D_CONV, /* 2 H_k D_k + H_v D_v */
  SIZE_D_TAPS, /* J + 1 */
  SIZE_D_H,    /* H_v */
  SIZE_D_V,    /* D_v */
  SIZE_D_OUT   /* H_v D_v */
} size;

/* How a weight is stored. */
typedef enum kind {
  PLAIN,   /* weight_dtype */
  IN_F32,  /* f32 in every model */
  PRODUCT, /* weight_dtype, or e4m3 with fp8_weights */
  SCALES   /* with fp8_weights alone: the scales of the product before, in f32 */
} kind;

typedef struct weight_row {
  const char *name;
  int arch;
  when when;
  size rows, columns; /* columns NO_SIZE: a vector; those of scales are of what they scale */
  kind kind;
} weight_row;

static const weight_row head_rows[] = {
    {"embed.w", ALL, ALWAYS, SIZE_V, SIZE_C, PLAIN},
    {"embed_pos.w", GPT2, ALWAYS, SIZE_P, SIZE_C, PLAIN},
};

static const weight_row layer_rows[] = {
    {"attn.pre.g", GPT2 | RMS, ALWAYS, SIZE_C, NO_SIZE, PLAIN},
    {"attn.pre.b", GPT2, NORM_BIAS, SIZE_C, NO_SIZE, PLAIN},
    {"attn.pre.alpha", ASYNCT, ALWAYS, SIZE_ALPHA, NO_SIZE, PLAIN},
    {"attn.pre.gamma", ASYNCT, ALWAYS, SIZE_GAMMA, NO_SIZE, PLAIN},
    {"attn.pre.beta", ASYNCT, NORM_BIAS, SIZE_C, NO_SIZE, PLAIN},
    {"attn.q_a.w", LATENT, TWO_STEPS, SIZE_Q_A, SIZE_C, PRODUCT},
    {"attn.q_a.s", LATENT, TWO_STEPS, SIZE_Q_A, SIZE_C, SCALES},
    {"attn.q_norm.g", LATENT, TWO_STEPS, SIZE_Q_A, NO_SIZE, PLAIN},
    {"attn.q_b.w", LATENT, ALWAYS, SIZE_Q, SIZE_Q_IN, PRODUCT},
    {"attn.q_b.s", LATENT, ALWAYS, SIZE_Q, SIZE_Q_IN, SCALES},
    {"attn.kv_a.w", LATENT, ALWAYS, SIZE_KV_A, SIZE_C, PRODUCT},
    {"attn.kv_a.s", LATENT, ALWAYS, SIZE_KV_A, SIZE_C, SCALES},
    {"attn.kv_norm.g", LATENT, ALWAYS, SIZE_KV_R, NO_SIZE, PLAIN},
    {"attn.kv_b.w", LATENT, ALWAYS, SIZE_KV_B, SIZE_KV_R, PLAIN},
    {"attn.qkv.w", FUSED, ALWAYS, SIZE_QKV, SIZE_C, PRODUCT},
    {"attn.qkv.s", FUSED, ALWAYS, SIZE_QKV, SIZE_C, SCALES},
    {"attn.qkv.b", FUSED, QKV_BIAS, SIZE_QKV, NO_SIZE, PLAIN},
    {"attn.q_norm.g", RMS, QK_NORM, SIZE_D, NO_SIZE, PLAIN},
    {"attn.k_norm.g", RMS, QK_NORM, SIZE_D, NO_SIZE, PLAIN},
    {"attn.q_norm.alpha", ASYNCT, QK_NORM, SIZE_D, NO_SIZE, PLAIN},
    {"attn.q_norm.gamma", ASYNCT, QK_NORM, ONE, NO_SIZE, PLAIN},
    {"attn.k_norm.alpha", ASYNCT, QK_NORM, SIZE_D, NO_SIZE, PLAIN},
    {"attn.k_norm.gamma", ASYNCT, QK_NORM, ONE, NO_SIZE, PLAIN},
    {"attn.gate.w", NEXT, ALWAYS, SIZE_Q, SIZE_C, PRODUCT},
    {"attn.gate.s", NEXT, ALWAYS, SIZE_Q, SIZE_C, SCALES},
    {"attn.taps", ASYNCT, ALWAYS, SIZE_F, NO_SIZE, IN_F32},
    {"attn.gamma", ASYNCT, ALWAYS, SIZE_H, NO_SIZE, IN_F32},
    {"attn.sinks", OSS, ALWAYS, SIZE_H, NO_SIZE, IN_F32},
    {"attn.k_scale", ALL, FP8_CACHE, SIZE_KV, NO_SIZE, IN_F32},
    {"attn.v_scale", ALL, FP8_CACHE, SIZE_KV, NO_SIZE, IN_F32},
    {"attn.proj.w", ALL, ALWAYS, SIZE_C, SIZE_HD, PRODUCT},
    {"attn.proj.s", ALL, ALWAYS, SIZE_C, SIZE_HD, SCALES},
    {"attn.proj.b", ALL, PROJ_BIAS, SIZE_C, NO_SIZE, PLAIN},
    {"attn.post.g", GEMMA2, ALWAYS, SIZE_C, NO_SIZE, PLAIN},
    {"attn.post.alpha", ASYNCT, ALWAYS, SIZE_ALPHA, NO_SIZE, PLAIN},
    {"attn.post.gamma", ASYNCT, ALWAYS, SIZE_GAMMA, NO_SIZE, PLAIN},
    {"attn.post.beta", ASYNCT, NORM_BIAS, SIZE_C, NO_SIZE, PLAIN},
    {"delta.in.w", NEXT, LINEAR, SIZE_D_IN, SIZE_C, PRODUCT},
    {"delta.in.s", NEXT, LINEAR, SIZE_D_IN, SIZE_C, SCALES},
    {"delta.conv.w", NEXT, LINEAR, SIZE_D_CONV, SIZE_D_TAPS, PLAIN},
    {"delta.A_log", NEXT, LINEAR, SIZE_D_H, NO_SIZE, IN_F32},
    {"delta.dt_bias", NEXT, LINEAR, SIZE_D_H, NO_SIZE, IN_F32},
    {"delta.norm.g", NEXT, LINEAR, SIZE_D_V, NO_SIZE, PLAIN},
    {"delta.proj.w", NEXT, LINEAR, SIZE_C, SIZE_D_OUT, PRODUCT},
    {"delta.proj.s", NEXT, LINEAR, SIZE_C, SIZE_D_OUT, SCALES},
    {"mlp.pre.g", GPT2 | RMS, ALWAYS, SIZE_C, NO_SIZE, PLAIN},
    {"mlp.pre.b", GPT2, NORM_BIAS, SIZE_C, NO_SIZE, PLAIN},
    {"mlp.pre.alpha", ASYNCT, ALWAYS, SIZE_ALPHA, NO_SIZE, PLAIN},
    {"mlp.pre.gamma", ASYNCT, ALWAYS, SIZE_GAMMA, NO_SIZE, PLAIN},
    {"mlp.pre.beta", ASYNCT, NORM_BIAS, SIZE_C, NO_SIZE, PLAIN},
    {"mlp.up.w", ALL, DENSE, SIZE_UP, SIZE_C, PRODUCT},
    {"mlp.up.s", ALL, DENSE, SIZE_UP, SIZE_C, SCALES},
    {"mlp.up.b", ALL, DENSE_BIAS, SIZE_UP, NO_SIZE, PLAIN},
    {"mlp.down.w", ALL, DENSE, SIZE_C, SIZE_I, PRODUCT},
    {"mlp.down.s", ALL, DENSE, SIZE_C, SIZE_I, SCALES},
    {"mlp.down.b", ALL, DENSE_BIAS, SIZE_C, NO_SIZE, PLAIN},
    {"router.w", MOE | OSS | LATENT | NEXT, SPARSE, SIZE_E, SIZE_C, PLAIN},
    {"router.bias", LATENT, SPARSE, SIZE_E, NO_SIZE, IN_F32},
    {"router.b", OSS, SPARSE_BIAS, SIZE_E, NO_SIZE, PLAIN},
    {"experts.up.w", MOE | OSS | LATENT | NEXT, SPARSE, SIZE_E_UP, SIZE_C, PRODUCT},
    {"experts.up.s", MOE | OSS | LATENT | NEXT, SPARSE, SIZE_E_UP, SIZE_C, SCALES},
    {"experts.up.b", OSS, SPARSE_BIAS, SIZE_E_UP, NO_SIZE, PLAIN},
    {"experts.down.w", MOE | OSS | LATENT | NEXT, SPARSE, SIZE_E_C, SIZE_E_I, PRODUCT},
    {"experts.down.s", MOE | OSS | LATENT | NEXT, SPARSE, SIZE_E_C, SIZE_E_I, SCALES},
    {"experts.down.b", OSS, SPARSE_BIAS, SIZE_E_C, NO_SIZE, PLAIN},
    {"shared.up.w", LATENT | NEXT, SHARED, SIZE_S_UP, SIZE_C, PRODUCT},
    {"shared.up.s", LATENT | NEXT, SHARED, SIZE_S_UP, SIZE_C, SCALES},
    {"shared.down.w", LATENT | NEXT, SHARED, SIZE_C, SIZE_S, PRODUCT},
    {"shared.down.s", LATENT | NEXT, SHARED, SIZE_C, SIZE_S, SCALES},
    {"shared.gate.w", NEXT, SHARED, ONE, SIZE_C, PLAIN},
    {"mlp.post.g", GEMMA2, ALWAYS, SIZE_C, NO_SIZE, PLAIN},
    {"mlp.post.alpha", ASYNCT, ALWAYS, SIZE_ALPHA, NO_SIZE, PLAIN},
    {"mlp.post.gamma", ASYNCT, ALWAYS, SIZE_GAMMA, NO_SIZE, PLAIN},
    {"mlp.post.beta", ASYNCT, NORM_BIAS, SIZE_C, NO_SIZE, PLAIN},
};

static const weight_row tail_rows[] = {
    {"final.g", GPT2 | RMS, ALWAYS, SIZE_C, NO_SIZE, PLAIN},
    {"final.b", GPT2, NORM_BIAS, SIZE_C, NO_SIZE, PLAIN},
    {"final.alpha", ASYNCT, ALWAYS, SIZE_ALPHA, NO_SIZE, PLAIN},
    {"final.gamma", ASYNCT, ALWAYS, SIZE_GAMMA, NO_SIZE, PLAIN},
    {"final.beta", ASYNCT, NORM_BIAS, SIZE_C, NO_SIZE, PLAIN},
    {"head.w", ALL, SEPARATE_HEAD, SIZE_V, SIZE_C, PLAIN},
};

enum {
  HEAD_ROWS = sizeof head_rows / sizeof head_rows[0],
  LAYER_ROWS = sizeof layer_rows / sizeof layer_rows[0],
  TAIL_ROWS = sizeof tail_rows / sizeof tail_rows[0]
};

/* Says what a layer is made of. */
typedef struct layer_kind {
  bool sparse, linear;
} layer_kind;
static const layer_kind outside = {false, false};

static layer_kind kind_of(const assay_model_config *c, int64_t layer) {
  return (layer_kind){assay_model_is_sparse(c, layer), assay_model_is_linear(c, layer)};
}

/* Tells whether a weight belongs to attention, and is not the norm before it. */
static bool is_of_attention(const weight_row *row) {
  return strncmp(row->name, "attn.", 5) == 0 && strcmp(row->name, "attn.pre.g") != 0;
}

static bool row_is_there(const assay_model_config *c, const weight_row *row, layer_kind layer) {
  const bool sparse = layer.sparse;
  if ((row->arch & 1 << c->arch) == 0 || (layer.linear && is_of_attention(row))) return false;
  if (row->kind == SCALES && !c->fp8_weights) return false;
  switch (row->when) {
  case QKV_BIAS:
    return c->qkv_bias;
  case PROJ_BIAS:
    return c->proj_bias;
  case NORM_BIAS:
    return c->norm_bias;
  case QK_NORM:
    return c->qk_norm;
  case SEPARATE_HEAD:
    return !c->tied_head;
  case FP8_CACHE:
    return c->kv_dtype == ASSAY_E4M3 || c->kv_dtype == ASSAY_E5M2;
  case DENSE:
    return !sparse;
  case DENSE_BIAS:
    return !sparse && c->mlp_bias;
  case SPARSE:
    return sparse;
  case SPARSE_BIAS:
    return sparse && c->mlp_bias;
  case TWO_STEPS:
    return c->q_rank > 0;
  case SHARED:
    return sparse && c->shared_size > 0;
  case LINEAR:
    return layer.linear;
  case ALWAYS:
    break;
  }
  return true;
}

static int64_t size_of(const assay_model_config *c, size which) {
  switch (which) {
  case SIZE_V:
    return c->vocab;
  case SIZE_P:
    return c->max_pos;
  case SIZE_C:
    return c->hidden;
  case SIZE_QKV:
    return (c->heads + 2 * c->kv_heads) * c->head_size;
  case SIZE_HD:
    return c->heads * (c->arch == ASSAY_DEEPSEEK_V3 ? c->value_size : c->head_size);
  case SIZE_D:
    return c->head_size;
  case SIZE_F:
    return c->gate_taps;
  case SIZE_H:
    return c->heads;
  case SIZE_KV:
    return c->kv_heads;
  case SIZE_UP:
    return c->arch == ASSAY_GPT2 ? c->intermediate : 2 * c->intermediate;
  case SIZE_I:
    return c->intermediate;
  case SIZE_ALPHA:
    return c->alpha_per_channel ? c->hidden : 1;
  case SIZE_GAMMA:
    return c->gamma_per_channel ? c->hidden : 1;
  case SIZE_E:
    return c->experts;
  case SIZE_E_UP:
    return c->experts * 2 * c->expert_size;
  case SIZE_E_C:
    return c->experts * c->hidden;
  case SIZE_E_I:
    return c->expert_size;
  case SIZE_Q_A:
    return c->q_rank;
  case SIZE_Q_IN:
    return c->q_rank > 0 ? c->q_rank : c->hidden;
  case SIZE_Q:
    return c->heads * c->head_size;
  case SIZE_KV_A:
    return c->kv_rank + c->rotated;
  case SIZE_KV_R:
    return c->kv_rank;
  case SIZE_KV_B:
    return c->heads * (c->head_size - c->rotated + c->value_size);
  case SIZE_S_UP:
    return 2 * c->shared_size;
  case SIZE_S:
    return c->shared_size;
  case SIZE_D_IN:
    return 2 * c->linear_key_heads * c->linear_key_size + 2 * c->linear_value_heads * (c->linear_value_size + 1);
  case SIZE_D_CONV:
    return 2 * c->linear_key_heads * c->linear_key_size + c->linear_value_heads * c->linear_value_size;
  case SIZE_D_TAPS:
    return c->conv_taps;
  case SIZE_D_H:
    return c->linear_value_heads;
  case SIZE_D_V:
    return c->linear_value_size;
  case SIZE_D_OUT:
    return c->linear_value_heads * c->linear_value_size;
  case ONE:
  case NO_SIZE:
    break;
  }
  return 1;
}

static int32_t rows_there(const assay_model_config *c, const weight_row *row, int32_t rows, layer_kind layer) {
  int32_t count = 0;
  for (int32_t i = 0; i < rows; ++i)
    count += row_is_there(c, &row[i], layer);
  return count;
}

static int32_t of_layer(const assay_model_config *c, int64_t layer) {
  return rows_there(c, layer_rows, LAYER_ROWS, kind_of(c, layer));
}

/* Returns the number of weights of the layers before `layer`. */
static int32_t before_layer(const assay_model_config *c, int64_t layer) {
  int32_t of[2][2], count = 0;
  for (int i = 0; i < 4; ++i)
    of[i / 2][i % 2] = rows_there(c, layer_rows, LAYER_ROWS, (layer_kind){i / 2 != 0, i % 2 != 0});
  for (int64_t l = 0; l < layer; ++l)
    count += of[assay_model_is_sparse(c, l)][assay_model_is_linear(c, l)];
  return count;
}

/* Returns the index-th row that the configuration has; index is below rows_there(). */
static const weight_row *row_at(const assay_model_config *c, const weight_row *row, int32_t index, layer_kind layer) {
  while (!row_is_there(c, row, layer) || index-- > 0)
    ++row;
  return row;
}

int32_t assay_model_weight_count(const assay_model_config *c) {
  return rows_there(c, head_rows, HEAD_ROWS, outside) + before_layer(c, c->layers) +
         rows_there(c, tail_rows, TAIL_ROWS, outside);
}

bool assay_model_weight_spec(const assay_model_config *c, int32_t index, assay_weight_spec *spec) {
  if (index < 0 || index >= assay_model_weight_count(c)) return false;
  const int32_t head = rows_there(c, head_rows, HEAD_ROWS, outside), layers = before_layer(c, c->layers);
  const int32_t behind = index - head;
  const weight_row *row = NULL;
  if (behind < 0) {
    row = row_at(c, head_rows, index, outside);
    (void)snprintf(spec->name, sizeof spec->name, "%s", row->name);
  } else if (behind < layers) {
    int64_t layer = 0;
    int32_t left = behind;
    for (int32_t here; left >= (here = of_layer(c, layer)); left -= here)
      ++layer;
    row = row_at(c, layer_rows, left, kind_of(c, layer));
    (void)snprintf(spec->name, sizeof spec->name, "layers.%d.%s", (int)layer, row->name);
  } else {
    row = row_at(c, tail_rows, behind - layers, outside);
    (void)snprintf(spec->name, sizeof spec->name, "%s", row->name);
  }
  const bool narrow = row->kind == PRODUCT && c->fp8_weights;
  const int64_t block = row->kind == SCALES ? ASSAY_MODEL_FP8_BLOCK : 1;
  spec->dtype = row->kind == IN_F32 || row->kind == SCALES ? ASSAY_F32 : narrow ? ASSAY_E4M3 : c->weight_dtype;
  spec->rank = row->columns == NO_SIZE ? 1 : 2;
  spec->shape[0] = (size_of(c, row->rows) + block - 1) / block;
  spec->shape[1] = (size_of(c, row->columns) + block - 1) / block;
  return true;
}

/* Returns the place of `name` among the rows that the configuration has; -1 if it has none. */
static int32_t place_of(const assay_model_config *c, const weight_row *row, int32_t rows, layer_kind layer,
                        const char *name) {
  int32_t place = 0;
  for (int32_t i = 0; i < rows; ++i) {
    if (!row_is_there(c, &row[i], layer)) continue;
    if (strcmp(row[i].name, name) == 0) return place;
    ++place;
  }
  return -1;
}

int32_t assay_model_weight_index(const assay_model_config *c, const char *name) {
  const int32_t head = rows_there(c, head_rows, HEAD_ROWS, outside);
  int32_t place = place_of(c, head_rows, HEAD_ROWS, outside, name);
  if (place >= 0) return place;
  place = place_of(c, tail_rows, TAIL_ROWS, outside, name);
  if (place >= 0) return head + before_layer(c, c->layers) + place;
  static const char prefix[] = "layers.";
  if (strncmp(name, prefix, sizeof prefix - 1) != 0) return -1;
  name += sizeof prefix - 1;
  if (name[0] < '0' || name[0] > '9' || (name[0] == '0' && name[1] != '.')) return -1;
  char *rest = NULL;
  const long number = strtol(name, &rest, 10);
  if (rest[0] != '.' || number < 0 || number >= c->layers) return -1;
  place = place_of(c, layer_rows, LAYER_ROWS, kind_of(c, number), rest + 1);
  return place < 0 ? -1 : head + before_layer(c, number) + place;
}

static int64_t spec_bytes(const assay_weight_spec *spec) {
  const int64_t bytes = spec->shape[0] * spec->shape[1] * assay_dtype_size(spec->dtype);
  return (bytes + WEIGHT_ALIGNMENT - 1) / WEIGHT_ALIGNMENT * WEIGHT_ALIGNMENT;
}

assay_status assay_model_weights_alloc(const assay_model_config *config, assay_model_weights *weights,
                                       assay_error *error) {
  *weights = (assay_model_weights){.count = assay_model_weight_count(config)};
  assay_weight_spec spec;
  int64_t bytes = 0;
  for (int32_t i = 0; assay_model_weight_spec(config, i, &spec); ++i)
    bytes += spec_bytes(&spec);
  weights->tensor = calloc((size_t)weights->count, sizeof *weights->tensor);
  /* calloc's pages become memory only when they are written. Weights that come from a file are thus in memory once. */
  weights->memory = calloc(1, (size_t)bytes + WEIGHT_ALIGNMENT);
  if (weights->tensor == NULL || weights->memory == NULL) {
    assay_model_weights_free(weights);
    return assay_fail(error, ASSAY_ERR_MEMORY, "weights: %lld bytes do not fit in memory", (long long)bytes);
  }
  char *at = weights->memory;
  at += WEIGHT_ALIGNMENT - (int64_t)((uintptr_t)at % WEIGHT_ALIGNMENT);
  for (int32_t i = 0; assay_model_weight_spec(config, i, &spec); ++i, at += spec_bytes(&spec)) {
    assay_tensor *tensor = &weights->tensor[i];
    *tensor = (assay_tensor){.data = at, .dtype = spec.dtype, .rank = spec.rank};
    for (int32_t d = 0; d < spec.rank; ++d)
      tensor->shape[d] = spec.shape[d];
    tensor->stride[0] = spec.shape[1]; /* 1 for a vector */
    tensor->stride[1] = 1;
  }
  return ASSAY_OK;
}

void assay_model_weights_free(assay_model_weights *weights) {
  free(weights->tensor);
  free(weights->memory);
  *weights = (assay_model_weights){0};
}

static assay_status check_weight(const assay_weight_spec *spec, const assay_tensor *tensor, assay_error *error) {
  if (tensor->data == NULL) return assay_fail(error, ASSAY_ERR_INPUT, "weight %s: missing", spec->name);
  if (tensor->dtype != spec->dtype)
    return assay_fail(error, ASSAY_ERR_INPUT, "weight %s: dtype is %s, not %s", spec->name,
                      assay_dtype_name(tensor->dtype), assay_dtype_name(spec->dtype));
  if (tensor->rank != spec->rank)
    return assay_fail(error, ASSAY_ERR_INPUT, "weight %s: %d axes, not %d", spec->name, (int)tensor->rank,
                      (int)spec->rank);
  int64_t stride = 1;
  for (int32_t d = spec->rank - 1; d >= 0; --d) {
    if (tensor->shape[d] != spec->shape[d])
      return assay_fail(error, ASSAY_ERR_INPUT, "weight %s: axis %d has %lld elements, not %lld", spec->name, (int)d,
                        (long long)tensor->shape[d], (long long)spec->shape[d]);
    if (tensor->stride[d] != stride)
      return assay_fail(error, ASSAY_ERR_INPUT, "weight %s: axis %d has stride %lld; dense would be %lld", spec->name,
                        (int)d, (long long)tensor->stride[d], (long long)stride);
    stride *= spec->shape[d];
  }
  return ASSAY_OK;
}

assay_status assay_model_weights_check(const assay_model_config *config, const assay_model_weights *weights,
                                       assay_error *error) {
  const int32_t count = assay_model_weight_count(config);
  if (weights->count != count || weights->tensor == NULL)
    return assay_fail(error, ASSAY_ERR_INPUT, "weights: found %d tensors, expected %d", (int)weights->count,
                      (int)count);
  assay_weight_spec spec;
  for (int32_t i = 0; assay_model_weight_spec(config, i, &spec); ++i) {
    const assay_status status = check_weight(&spec, &weights->tensor[i], error);
    if (status != ASSAY_OK) return status;
  }
  return ASSAY_OK;
}
