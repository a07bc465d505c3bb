/* model_seed.c: weights and prompts from a seed, near-normal with a mean and a deviation for each kind of weight.
 *
 * e = 2 / sqrt(C) is the deviation of an embedding. A normalised row times the head then has deviation 2, so logits
 * spread like those of a model. Linear layers keep the variance: 1 / sqrt(in). A sublayer's contribution to the
 * residual stream is scaled by e / sqrt(2 layers). The stream thus stays near the embedding's size at any depth.
 *
 * Live keys of asynct. With lo = 0 a key is live where z_t > 0. That depends on the distribution of the scores, not on
 * their size. For independent, symmetric, near-normal scores and F = 3 the share depends on sigma alone. It is
 * P(z > 0) = 1/8 + 1/2 P(a r > b r') + ..., with a = 1 - sigma/3, b = sigma/3 and r, r' half-normal:
 *
 *     sigma 1.00  1.20  1.30  1.35  1.40
 *     share 0.359 0.326 0.309 0.301 0.293
 *
 * A prompt of n ids has slightly more, about 0.6 / (n + 1), because its first key has no earlier key. sigma 1.375 gives
 * 0.31 at 48 ids, 0.30 at 256, 0.295 at 2048. Scores are near independent as long as the hidden rows of different
 * tokens are. Therefore no weight has a mean that all tokens share, except those of the norms. Over all layers the
 * sublayers add no more to the residual stream than the embedding brings (post gamma). Measured over 35 layers, the
 * last layer has the share of the first. */
#define _POSIX_C_SOURCE 200809L
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "assay/model.h"
#include "core/dtype.h"
#include "core/model_narrow.h"
#include "core/rng.h"

enum { CHUNK = 4096, LARGE = 1 << 20, MOST_THREADS = 64 };

static const uint64_t prompt_stream = (uint64_t)1 << 63;

typedef struct spread {
  double mean, deviation;
} spread;

static bool ends_with(const char *name, const char *end) {
  const size_t n = strlen(name), m = strlen(end);
  return n >= m && strcmp(name + n - m, end) == 0;
}

static spread norm_spread(const assay_model_config *c, const char *name, double e) {
  const double residual = e / sqrt(2 * (double)c->layers);
  const bool post = strstr(name, ".post.") != NULL;
  /* qwen3_next multiplies by 1 + g, except after the delta rule. */
  if (c->arch == ASSAY_QWEN3_NEXT) return (spread){strstr(name, "delta.norm") != NULL ? 1 : 0.1, 0.1};
  if (strstr(name, "_norm.") != NULL) {
    if (ends_with(name, ".alpha")) return (spread){0.8, 0.08};
    return ends_with(name, ".gamma") ? (spread){1.5, 0} : (spread){1.25, 0.125};
  }
  if (ends_with(name, ".alpha")) return post ? (spread){0.5, 0.05} : (spread){0.8 / e, 0.08 / e};
  if (ends_with(name, ".gamma")) return post ? (spread){2 * residual, 0.2 * residual} : (spread){1.4, 0.14};
  /* gemma2 multiplies by 1 + g, and its stream by sqrt(C): an embedding has deviation 2 there. */
  if (c->arch == ASSAY_GEMMA2 && ends_with(name, ".g"))
    return (spread){post ? 2 / sqrt(2 * (double)c->layers) - 1 : 0, post ? 0.02 : 0.1};
  if (ends_with(name, ".beta")) return (spread){0, post ? 0.1 * residual : 0.05};
  return ends_with(name, ".g") ? (spread){1, 0.1} : (spread){0, 0.1};
}

static spread spread_of(const assay_model_config *c, const assay_weight_spec *spec) {
  const char *name = spec->name;
  const double e = 2 / sqrt((double)c->hidden), in = sqrt((double)spec->shape[1]);
  const double residual = c->arch == ASSAY_ASYNCT ? 1 : e / sqrt(2 * (double)c->layers);
  if (strcmp(name, "embed.w") == 0 || strcmp(name, "head.w") == 0) return (spread){0, e};
  if (strcmp(name, "embed_pos.w") == 0) return (spread){0, 0.5 * e};
  if (ends_with(name, ".qkv.w") || ends_with(name, ".up.w")) return (spread){0, 1 / in};
  if (ends_with(name, ".qkv.b") || ends_with(name, ".up.b")) return (spread){0, 0.1};
  if (ends_with(name, ".proj.w") || ends_with(name, ".down.w")) return (spread){0, 2 * residual / in};
  if (ends_with(name, ".proj.b") || ends_with(name, ".down.b")) return (spread){0, 0.1 * residual};
  if (ends_with(name, "router.w")) return (spread){0, 1 / in};
  if (ends_with(name, "router.b")) return (spread){0, 0.1};
  /* Below every score: a group that was dropped with a 0 would come first. */
  if (ends_with(name, "router.bias")) return (spread){-1.5, 0.1};
  if (ends_with(name, "_a.w") || ends_with(name, "_b.w")) return (spread){0, 1 / in};
  /* exp(A_log) and ln(1 + exp(dt_bias)) are near 1/3: a state keeps a part of what is dozens of rows old. */
  if (ends_with(name, ".A_log")) return (spread){-2, 0.7};
  if (ends_with(name, ".dt_bias")) return (spread){-1, 0.5};
  if (ends_with(name, "conv.w")) return (spread){0, 1 / in};
  if (ends_with(name, ".in.w") || ends_with(name, ".gate.w")) return (spread){0, 1 / in};
  if (ends_with(name, ".attn.sinks")) return (spread){0, 1};
  if (ends_with(name, ".attn.gamma")) return (spread){0.25, 0.03};
  return norm_spread(c, name, e);
}

/* The chunks first, first + step, ... of one tensor. Values depend on the chunk's number alone. */
typedef struct filling {
  const assay_tensor *tensor;
  const spread *like;
  uint64_t seed, number;
  int64_t count, first, step;
} filling;

static void *fill_chunks(void *context) {
  const filling *f = context;
  double value[CHUNK];
  for (int64_t chunk = f->first; chunk * CHUNK < f->count; chunk += f->step) {
    const int64_t at = chunk * CHUNK, n = f->count - at < CHUNK ? f->count - at : CHUNK;
    assay_rng_normals(f->seed, f->number << 32 | (uint64_t)chunk, value, n);
    for (int64_t i = 0; i < n; ++i)
      value[i] = f->like->mean + f->like->deviation * value[i];
    assay_store_f64_row(f->tensor->data, f->tensor->dtype, at, 1, n, value);
  }
  return NULL;
}

/* Fills a large tensor with one thread per processor. This thread does the work for which no thread could be
 * started. */
static void fill(const assay_tensor *tensor, const spread *like, uint64_t seed, uint64_t number) {
  const int64_t count = tensor->shape[0] * (tensor->rank == 2 ? tensor->shape[1] : 1);
  const long processors = count >= LARGE ? sysconf(_SC_NPROCESSORS_ONLN) : 1;
  const int64_t step = processors < 1 ? 1 : processors > MOST_THREADS ? MOST_THREADS : processors;
  filling part[MOST_THREADS];
  pthread_t thread[MOST_THREADS];
  bool running[MOST_THREADS] = {false};
  for (int64_t t = 0; t < step; ++t) {
    part[t] = (filling){tensor, like, seed, number, count, t, step};
    running[t] = t + 1 < step && pthread_create(&thread[t], NULL, fill_chunks, &part[t]) == 0;
    if (!running[t]) (void)fill_chunks(&part[t]);
  }
  for (int64_t t = 0; t < step; ++t)
    if (running[t]) (void)pthread_join(thread[t], NULL);
}

/* Gives neighbouring blocks other sizes, so that it matters which block a scale belongs to. */
static void vary_blocks(const assay_tensor *w) {
  static const float factor[] = {0.5f, 1, 1.25f};
  float *const value = w->data;
  for (int64_t r = 0; r < w->shape[0]; ++r)
    for (int64_t c = 0; c < w->shape[1]; ++c)
      value[r * w->shape[1] + c] *= factor[(r / ASSAY_MODEL_FP8_BLOCK + 2 * (c / ASSAY_MODEL_FP8_BLOCK)) % 3];
}

/* Fills a product's codes and scales. */
static assay_status fill_narrow(const assay_tensor *codes, const assay_tensor *scales, const spread *like,
                                uint64_t seed, uint64_t number, assay_error *error) {
  assay_tensor wide = *codes;
  wide.dtype = ASSAY_F32;
  wide.data = malloc((size_t)(codes->shape[0] * codes->shape[1]) * sizeof(float));
  if (wide.data == NULL) return assay_fail(error, ASSAY_ERR_MEMORY, "weights: out of memory");
  fill(&wide, like, seed, number);
  vary_blocks(&wide);
  (void)model_narrow_matrix(&wide, codes, scales);
  free(wide.data);
  return ASSAY_OK;
}

assay_status assay_model_seed(const assay_model_config *config, uint64_t seed, assay_model_weights *weights,
                              assay_error *error) {
  assay_status status = assay_model_weights_check(config, weights, error);
  assay_weight_spec spec;
  int32_t scales = 0; /* passed so far: they change no other weight's values */
  for (int32_t i = 0; status == ASSAY_OK && assay_model_weight_spec(config, i, &spec); ++i) {
    const assay_tensor *tensor = &weights->tensor[i];
    if (ends_with(spec.name, ".taps")) {
      double taps[ASSAY_MODEL_MAX_TAPS];
      assay_taps_from_sigma(config->gate_sigma, config->gate_taps, taps);
      assay_store_f64_row(tensor->data, tensor->dtype, 0, 1, config->gate_taps, taps);
    } else if (ends_with(spec.name, "_scale")) {
      /* Powers of two: keys and values of this size stay inside e4m3. Neighbours differ: heads, layers, k and v. */
      int layer = 0;
      (void)sscanf(spec.name, "layers.%d.", &layer);
      for (int64_t h = 0; h < config->kv_heads; ++h) {
        const bool larger = (h + layer + ends_with(spec.name, "v_scale")) % 2 == 0;
        assay_store_f64(tensor->data, tensor->dtype, h, larger ? 0x1p-4 : 0x1p-5);
      }
    } else {
      const spread like = spread_of(config, &spec);
      const uint64_t number = (uint64_t)(i - scales);
      if (spec.dtype != ASSAY_E4M3) {
        fill(tensor, &like, seed, number);
        continue;
      }
      status = fill_narrow(tensor, &weights->tensor[++i], &like, seed, number, error);
      ++scales;
    }
  }
  return status;
}

void assay_model_prompt(const assay_model_config *config, uint64_t seed, int64_t number, int64_t n, int32_t *ids) {
  assay_rng rng = {.seed = seed, .stream = prompt_stream | (uint64_t)number};
  for (int64_t i = 0; i < n; ++i)
    ids[i] = (int32_t)assay_rng_range(&rng, 0, config->vocab - 1);
}
