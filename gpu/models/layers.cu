/* layers.cu: all layers of a decode step of qwen3 or asynct in one launch (gpu/lib/layers.cuh), as core/layers.h has
 * it. There is an instance for each model that it takes: the production width, and small ones for tests. */
#include <math.h>

extern "C" {
#include "core/layers.h"
}
#include "gpu/lib/launch_together.h"
#include "gpu/lib/layers_kernel.cuh"

namespace ASSAY_NS {
namespace {

using production = layers_shape<1024, 8, 4, 128, 3072, 128, 8, 4, 16384, 10>;
using production_gate = layers_shape<1024, 8, 4, 128, 3072, 128, 8, 4, 16384, 10, true>;
using small = layers_shape<64, 4, 2, 16, 128, 8, 2, 2, 1024, 6>;
using small_gate = layers_shape<64, 4, 2, 16, 128, 8, 2, 2, 1024, 6, true>;
/* The fixed forms of the same. */
using production_fixed = layers_shape<1024, 8, 4, 128, 3072, 128, 8, 4, 16384, 10, false, true>;
using production_gate_fixed = layers_shape<1024, 8, 4, 128, 3072, 128, 8, 4, 16384, 10, true, true>;
using small_fixed = layers_shape<64, 4, 2, 16, 128, 8, 2, 2, 1024, 6, false, true>;
using small_gate_fixed = layers_shape<64, 4, 2, 16, 128, 8, 2, 2, 1024, 6, true, true>;

template <class S> bool is_of(const assay_model_config *c, bool fixed) {
  return fixed == S::fixed && c->arch == (S::gate ? ASSAY_ASYNCT : ASSAY_QWEN3) && c->hidden == S::hidden &&
         c->heads == S::heads && c->kv_heads == S::kv_heads && c->head_size == S::channels &&
         c->intermediate == S::intermediate;
}

/* Calls f with the instance for the model. */
template <class F> assay_status with_shape(const assay_model_config *c, bool fixed, assay_error *error, F f) {
  if (is_of<small>(c, fixed)) return f(small());
  if (is_of<small_gate>(c, fixed)) return f(small_gate());
  if (is_of<small_fixed>(c, fixed)) return f(small_fixed());
  if (is_of<small_gate_fixed>(c, fixed)) return f(small_gate_fixed());
#ifndef ASSAY_SIMT /* simt has no room for so many blocks at once */
  if (is_of<production>(c, fixed)) return f(production());
  if (is_of<production_gate>(c, fixed)) return f(production_gate());
  if (is_of<production_fixed>(c, fixed)) return f(production_fixed());
  if (is_of<production_gate_fixed>(c, fixed)) return f(production_gate_fixed());
#endif
  return assay_fail(
      error, ASSAY_ERR_UNSUPPORTED,
      "hidden, heads, kv_heads, head_size, intermediate: found %lld, %lld, %lld, %lld, %lld, allowed those "
      "that the kernel is compiled for on %s",
      static_cast<long long>(c->hidden), static_cast<long long>(c->heads), static_cast<long long>(c->kv_heads),
      static_cast<long long>(c->head_size), static_cast<long long>(c->intermediate), ASSAY_DEVICE_NAME);
}

/* Refuses a model whose layers are not those of the kernel, whatever their sizes. */
assay_status expect_layers(const assay_model_config *c, assay_error *error) {
  const struct {
    const char *name;
    bool found, allowed;
  } flags[] = {{"qk_norm", c->qk_norm, true},
               {"qkv_bias", c->qkv_bias, false},
               {"proj_bias", c->proj_bias, false},
               {"mlp_bias", c->mlp_bias, false},
               {"fp8_weights", c->fp8_weights, false}};
  if (c->arch != ASSAY_QWEN3 && c->arch != ASSAY_ASYNCT)
    return assay_fail(error, ASSAY_ERR_UNSUPPORTED, "arch: found %s, allowed qwen3, asynct",
                      assay_model_arch_name(c->arch));
  for (const auto &flag : flags)
    if (flag.found != flag.allowed)
      return assay_fail(error, ASSAY_ERR_UNSUPPORTED, "%s: found %s, allowed %s", flag.name,
                        flag.found ? "true" : "false", flag.allowed ? "true" : "false");
  if (c->weight_dtype != ASSAY_BF16 || c->act_dtype != ASSAY_BF16 || c->kv_dtype != ASSAY_BF16)
    return assay_fail(error, ASSAY_ERR_UNSUPPORTED, "weight_dtype, act_dtype, kv_dtype: found %s, %s, %s, allowed bf16",
                      assay_dtype_name(c->weight_dtype), assay_dtype_name(c->act_dtype), assay_dtype_name(c->kv_dtype));
  if (c->rope_style != ASSAY_ROPE_NEOX || c->rotated != c->head_size)
    return assay_fail(error, ASSAY_ERR_UNSUPPORTED,
                      "rope_style, rotated: found %s, %lld, allowed neox and head_size's %lld",
                      c->rope_style == ASSAY_ROPE_NEOX ? "neox" : "interleaved", static_cast<long long>(c->rotated),
                      static_cast<long long>(c->head_size));
  if (c->arch == ASSAY_ASYNCT && (c->gate_taps > 3 || !c->gate_relu_pre))
    return assay_fail(error, ASSAY_ERR_UNSUPPORTED, "gate_taps, gate_relu_pre: found %lld, %s, allowed up to 3, true",
                      static_cast<long long>(c->gate_taps), c->gate_relu_pre ? "true" : "false");
  if (c->score_scale != 0 || c->score_cap != 0)
    return assay_fail(error, ASSAY_ERR_UNSUPPORTED, "score_scale, score_cap: found %g, %g, allowed 0", c->score_scale,
                      c->score_cap);
  return ASSAY_OK;
}

/* Refuses if the blocks do not all fit at once. */
template <class S>
assay_status expect_fit(int32_t multiprocessors, const void *kernel, int64_t shared_bytes, assay_error *error) {
  int each = 1;
#ifdef ASSAY_SIMT
  (void)kernel, (void)shared_bytes;
  if (multiprocessors < S::blocks) multiprocessors = S::blocks;
#else
  cudaError_t code = launch_allow_shared(kernel, shared_bytes);
  if (code == cudaSuccess)
    code = cudaOccupancyMaxActiveBlocksPerMultiprocessor(&each, kernel, S::threads, static_cast<size_t>(shared_bytes));
  if (code != cudaSuccess) return assay_fail(error, ASSAY_ERR_DEVICE, "all_layers: %s", cudaGetErrorName(code));
#endif
  const int64_t fit = static_cast<int64_t>(each) * multiprocessors;
  if (fit >= S::blocks) return ASSAY_OK;
  return assay_fail(error, ASSAY_ERR_UNSUPPORTED, "blocks at once: found room for %lld, allowed %d and more",
                    static_cast<long long>(fit), S::blocks);
}

template <class S, int tiles> assay_status expect_tiles(int32_t multiprocessors, assay_error *error) {
  return expect_fit<S>(multiprocessors, reinterpret_cast<const void *>(&all_layers<S, tiles>),
                       static_cast<int64_t>(sizeof(layers_memory<S, tiles>)), error);
}

assay_status supports(const assay_model_config *c, bool fixed, int32_t multiprocessors, assay_error *error) {
  const assay_status status = expect_layers(c, error);
  if (status != ASSAY_OK) return status;
  return with_shape(c, fixed, error, [&](auto shape) {
    using S = decltype(shape);
    assay_status one = ASSAY_OK;
    if constexpr (!S::fixed) one = expect_tiles<S, 1>(multiprocessors, error);
    return one == ASSAY_OK ? expect_tiles<S, 2>(multiprocessors, error) : one;
  });
}

/* The parts of the memory. */
struct parts {
  int64_t packed, norms, words, done, bytes; /* offsets; of a layer of packed weights: packed_layer */
  int64_t packed_layer;
};

template <class S> parts parts_of(const assay_model_config *c) {
  const auto whole = [](int64_t bytes) { return (bytes + 255) / 256 * 256; };
  parts p = {};
  p.packed_layer = static_cast<int64_t>(S::blocks) * S::block_bytes;
  p.norms = whole(c->layers * p.packed_layer);
  p.words = p.norms + whole(c->layers * S::norms * 2);
  p.done = p.words + whole(static_cast<int64_t>(layers_sets) * S::set_units * 16);
  p.bytes = p.done + whole(S::blocks * 4);
  return p;
}

int64_t bytes(const assay_model_config *c, bool fixed) {
  int64_t count = 0;
  (void)with_shape(c, fixed, nullptr, [&](auto shape) {
    count = parts_of<decltype(shape)>(c).bytes;
    return ASSAY_OK;
  });
  return count;
}

assay_status pack(const assay_model_config *c, bool fixed, int64_t layer, const assay_layers_weights *w, void *memory,
                  void *stream, assay_error *error) {
  return with_shape(c, fixed, error, [&](auto shape) {
    using S = decltype(shape);
    const parts at = parts_of<S>(c);
    unsigned char *const base = static_cast<unsigned char *>(memory);
    const auto as_bf16 = [](const void *from) { return static_cast<const bf16 *>(from); };
    layers_pack_params p = {};
    p.qkv = as_bf16(w->qkv);
    p.proj = as_bf16(w->proj);
    p.up = as_bf16(w->up);
    p.down = as_bf16(w->down);
    p.pre = as_bf16(w->pre);
    p.post = as_bf16(w->post);
    p.q = as_bf16(w->q_norm);
    p.k = as_bf16(w->k_norm);
    for (int i = 0; i < 4; ++i) {
      p.clip[3 * i] = as_bf16(w->clip[i].alpha);
      p.clip[3 * i + 1] = as_bf16(w->clip[i].gamma);
      p.clip[3 * i + 2] = as_bf16(w->clip[i].beta);
    }
    p.per_channel[0] = c->alpha_per_channel;
    p.per_channel[1] = c->gamma_per_channel;
    p.per_channel[2] = true;
    p.q_gamma = as_bf16(w->q_gamma);
    p.k_gamma = as_bf16(w->k_gamma);
    p.taps = static_cast<const float *>(w->taps);
    p.gate = static_cast<const float *>(w->gate);
    p.taps_count = static_cast<int32_t>(c->gate_taps);
    p.packed = reinterpret_cast<uint4 *>(base + at.packed + layer * at.packed_layer);
    p.norms = reinterpret_cast<bf16 *>(base + at.norms) + layer * S::norms;
    const int64_t units = at.packed_layer / 16;
    return ASSAY_LAUNCH(error, (layers_pack<S>), (units + 255) / 256, 256, 0, stream, p);
  });
}

template <class S, int tiles>
assay_status launch_tiles(const layers_maps &maps, const layers_params &p, const assay_env *env, assay_error *error) {
  return launch_together(error, "all_layers", &all_layers<S, tiles>, S::blocks, S::threads,
                         static_cast<int64_t>(sizeof(layers_memory<S, tiles>)), env->stream, maps, p);
}

assay_status launch(const assay_model_config *c, bool fixed, void *memory, const assay_layers_step *step,
                    assay_env *env, assay_error *error) {
  if (step->rows < 1 || step->rows > ASSAY_LAYERS_ROWS)
    return assay_fail(error, ASSAY_ERR_UNSUPPORTED, "rows: found %lld, allowed 1 to %d",
                      static_cast<long long>(step->rows), ASSAY_LAYERS_ROWS);
  return with_shape(c, fixed, error, [&](auto shape) {
    using S = decltype(shape);
    const parts at = parts_of<S>(c);
    unsigned char *const base = static_cast<unsigned char *>(memory);
    layers_params p = {};
    p.packed = reinterpret_cast<const uint4 *>(base + at.packed);
    p.norms = reinterpret_cast<const bf16 *>(base + at.norms);
    p.words = reinterpret_cast<uint4 *>(base + at.words);
    p.done = reinterpret_cast<uint32_t *>(base + at.done);
    p.x = p.y = static_cast<bf16 *>(step->x);
    p.cosine = step->cosine;
    p.sine = step->sine;
    p.positions = step->positions;
    p.kv_len = step->kv_len;
    p.table = step->table;
    p.slots = step->slots;
    p.k_pool = static_cast<bf16 *>(step->k_pool);
    p.v_pool = static_cast<bf16 *>(step->v_pool);
    p.pool_layer = step->pool_layer;
    const int64_t tokens = step->pool_layer / (S::kv_heads * S::channels);
    if (tokens > INT32_MAX)
      return assay_fail(error, ASSAY_ERR_UNSUPPORTED, "tokens of the cache: found %lld, allowed 2^31 - 1",
                        static_cast<long long>(tokens));
    p.table_stride = step->table_stride;
    p.block_size = static_cast<int32_t>(c->block_size);
    p.M = static_cast<int32_t>(step->rows);
    p.layers = static_cast<int32_t>(c->layers);
    p.eps = static_cast<float>(c->eps);
    p.scale = static_cast<float>((S::gate ? 1.0 : 1.4426950408889634) / sqrt(static_cast<double>(c->head_size)));
    p.low = static_cast<float>(c->gate_lo);
    p.high = static_cast<float>(c->gate_hi);
    const bool one = step->rows <= 16 && !S::fixed; /* fixed: one kernel for all rows */
    (void)snprintf(env->path, sizeof env->path, "%d rows%s", one ? 16 : layers_rows, S::fixed ? ", fixed" : "");
    layers_maps maps; /* a box of 8 tokens is in one block: block_size is a multiple of 8 */
    assay_status status = layers_map<S>(&maps.k, p.k_pool, p.pool_layer, p.layers, error);
    if (status == ASSAY_OK) status = layers_map<S>(&maps.v, p.v_pool, p.pool_layer, p.layers, error);
    if (status != ASSAY_OK) return status;
    if constexpr (!S::fixed)
      if (one) return launch_tiles<S, 1>(maps, p, env, error);
    return launch_tiles<S, 2>(maps, p, env, error);
  });
}

constexpr assay_variant counted = {sizeof(assay_variant),
                                   "one_launch",
                                   "words",
                                   "all layers of a decode step, whose stages wait for words",
                                   ASSAY_DEVICE_NAME,
                                   "sm_90a",
                                   "",
                                   {},
                                   nullptr,
                                   nullptr,
                                   nullptr};

} // namespace
} // namespace ASSAY_NS

#if !defined(LAYERS_SYMBOL) && defined(ASSAY_SIMT)
#define LAYERS_SYMBOL assay_layers_simt
#elif !defined(LAYERS_SYMBOL)
#define LAYERS_SYMBOL assay_layers_cuda
#endif
extern "C" const assay_layers *LAYERS_SYMBOL(void) {
  using namespace ASSAY_NS;
  static const assay_layers layers = {ASSAY_DEVICE_NAME, &counted, supports, bytes, pack, launch};
  ASSAY_CONNECT_SIMT();
  return &layers;
}
