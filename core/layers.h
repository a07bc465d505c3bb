/* layers.h: a device's kernel that has all layers of a decode step in one launch. It is no operator, but what a form of
 * a model stands for (gpu/models/one_launch.c). conformance/builtin.c registers it. */
#ifndef ASSAY_CORE_LAYERS_H
#define ASSAY_CORE_LAYERS_H

#include "assay/model.h"
#include "assay/variant.h"

#define ASSAY_LAYERS_ROWS 32 /* most rows of a step */

/* Weights of a norm that clips, one number or one per channel (assay_model_config). */
typedef struct assay_layers_clip {
  const void *alpha, *gamma, *beta; /* beta: NULL where the model has none */
} assay_layers_clip;

/* One layer's weights in device memory, as the model names them. */
typedef struct assay_layers_weights {
  const void *qkv, *proj, *up, *down; /* [out, in] */
  const void *q_norm, *k_norm;        /* g, of asynct alpha: [head_size] */
  const void *pre, *post;             /* qwen3: g of attn.pre and mlp.pre, [hidden] */
  assay_layers_clip clip[4];          /* asynct: attn.pre, attn.post, mlp.pre, mlp.post */
  const void *q_gamma, *k_gamma;      /* asynct: one number each */
  const void *taps, *gate;            /* asynct: f32, [gate_taps] and [heads] */
} assay_layers_weights;

/* A step of one token per request, all in device memory. */
typedef struct assay_layers_step {
  int64_t rows; /* 1 to ASSAY_LAYERS_ROWS */
  void *x;      /* [rows, hidden]: the stream, before the first layer and after the last */
  const float *cosine, *sine;
  const int32_t *positions, *kv_len, *table; /* kv_len 0: the row has no request */
  const int64_t *slots;
  int64_t table_stride;
  void *k_pool, *v_pool; /* [layers, blocks, block_size, kv_heads, head_size] */
  int64_t pool_layer;    /* elements of a layer */
} assay_layers_step;

/* fixed: the form in which a row's bits depend on that row alone. Its memory is of its own kind. */
typedef struct assay_layers {
  const char *device;
  const assay_variant *row; /* for counts of calls; it has no functions */
  /* Refuses with ASSAY_ERR_UNSUPPORTED and a reason a model that no instance is for, or blocks that do not fit. */
  assay_status (*supports)(const assay_model_config *config, bool fixed, int32_t multiprocessors, assay_error *error);
  /* Bytes that the kernel needs for a model: weights in its order, and words. Before the first use all bits are set.
   * The model is one that it supports, here and below. */
  int64_t (*bytes)(const assay_model_config *config, bool fixed);
  assay_status (*pack)(const assay_model_config *config, bool fixed, int64_t layer, const assay_layers_weights *weights,
                       void *memory, void *stream, assay_error *error);
  /* Launches of the same memory must follow each other, and nothing else may run beside them. */
  assay_status (*launch)(const assay_model_config *config, bool fixed, void *memory, const assay_layers_step *step,
                         assay_env *env, assay_error *error);
} assay_layers;

/* Returns the device's kernel, or NULL if it has none. */
const assay_layers *assay_layers_find(const char *device);

#endif
