/* mla_append.cu: entries of latent attention, written to their slots of a cache.
 *
 *   cache[slot] = (c, pe)                                              bit for bit
 *   words[slot] = (e4m3(c / s_g), s_0 ... s_3, bf16(pe))               s_g = 2^ceil(log2(max(a_g / 448, 1e-4)))
 *
 * A slot outside [-1, P S) writes nothing.
 * tiles: a block per row, a warp per 128 channels. docs/kernels/mla_append.md has the arithmetic. */
#include "gpu/lib/plain.h"
#include "gpu/lib/vec.cuh"
#include "gpu/lib/warp.cuh"

namespace ASSAY_NS {
namespace {

constexpr int32_t latent_channels = 512, latent_pe = 64, latent_tiles = 4, append_threads = 128;
constexpr int32_t scale_word = latent_channels / 4, pe_word = scale_word + latent_tiles;
constexpr int32_t entry_words = pe_word + latent_pe / 2, entry_elements = latent_channels + latent_pe;

struct mla_append_params {
  const void *c, *pe;
  const int64_t *slots;
  void *cache;     /* NULL: words */
  uint32_t *words; /* NULL: cache */
  int64_t c_row, pe_row, block_row, count, N;
  int32_t S;
  bool quads;
  assay_dtype type;
};

/* Returns the element or word of the pool where the entry of a slot begins. */
__device__ __forceinline__ int64_t entry_begin(const mla_append_params &p, int64_t slot, int32_t width) {
  return slot / p.S * p.block_row + slot % p.S * width;
}

/* Returns the least power of two that is not below max(amax / 448, 2^-13). */
__device__ __forceinline__ float latent_scale(float amax) {
  const uint32_t bits = bits_of(fmaxf(amax / 448.0f, 1e-4f));
  return float_of(((bits >> 23) + ((bits & 0x7FFFFFu) != 0 ? 1u : 0u)) << 23);
}

__device__ __forceinline__ float finite_size(float x) {
  const float size = fabsf(x);
  return size < INFINITY ? size : 0.0f;
}

/* mla_append_copies: an entry of the pool's own type.
 * Grid:   N. Block: 128 threads.
 * Shared: none.
 * Align:  quads: bases and distances are multiples of four elements; else by element.
 * Arch:   any.
 * Limit:  bytes: c and pe read once, the entry written once. */
template <class T> __global__ void __launch_bounds__(append_threads) mla_append_copies(mla_append_params p) {
  const int64_t row = blockIdx.x, slot = p.slots[row];
  if (slot < 0 || slot >= p.count) return;
  const T *const c = static_cast<const T *>(p.c) + row * p.c_row;
  const T *const pe = static_cast<const T *>(p.pe) + row * p.pe_row;
  T *const entry = static_cast<T *>(p.cache) + entry_begin(p, slot, entry_elements);
  for (int32_t i = 4 * static_cast<int32_t>(threadIdx.x); i < entry_elements; i += 4 * append_threads) {
    const T *const from = i < latent_channels ? c + i : pe + (i - latent_channels);
    store_quad(entry + i, load_quad(from, p.quads), p.quads);
  }
}

/* mla_append_tiles: an entry of 656 bytes. A warp has one scale; a lane makes the word of four codes.
 * Grid:   N. Block: 128 threads: a warp per 128 channels.
 * Shared: none.
 * Align:  quads: bases and distances of c and pe are multiples of four elements; else by element. Words by word.
 * Arch:   any.
 * Limit:  bytes: c and pe read once, 656 bytes written. */
template <class T> __global__ void __launch_bounds__(append_threads) mla_append_tiles(mla_append_params p) {
  const int64_t row = blockIdx.x, slot = p.slots[row];
  if (slot < 0 || slot >= p.count) return;
  const int32_t thread = static_cast<int32_t>(threadIdx.x), tile = thread / 32, lane = thread % 32;
  uint32_t *const entry = p.words + entry_begin(p, slot, entry_words);
  const T *const c = static_cast<const T *>(p.c) + row * p.c_row;
  const quad<T> four = load_quad(c + 4 * thread, p.quads);
  float x[4], amax = 0.0f;
  ASSAY_UNROLL
  for (int i = 0; i < 4; ++i) {
    x[i] = to_float(four.element[i]);
    amax = fmaxf(amax, finite_size(x[i]));
  }
  const float s = latent_scale(warp_max(amax));
  entry[thread] = e4m3_pair(x[0] / s, x[1] / s) | e4m3_pair(x[2] / s, x[3] / s) << 16;
  if (lane == 0) entry[scale_word + tile] = bits_of(s);
  if (thread >= latent_pe / 4) return;
  const quad<T> rotated = load_quad(static_cast<const T *>(p.pe) + row * p.pe_row + 4 * thread, p.quads);
  ASSAY_UNROLL
  for (int i = 0; i < 2; ++i) {
    uint32_t half[2];
    ASSAY_UNROLL
    for (int k = 0; k < 2; ++k) {
      const float value = to_float(rotated.element[2 * i + k]);
      half[k] = value == value ? from_float<bf16>(value).bits : 0x7FFFu;
    }
    entry[pe_word + 2 * thread + i] = half[0] | half[1] << 16;
  }
}

/* Returns whether rows of c, pe and cache begin at multiples of four elements. */
bool rows_of_quads(const mla_append_params &p) {
  const uintptr_t bytes = static_cast<uintptr_t>(4 * assay_dtype_size(p.type));
  const auto whole = [&](const void *base, int64_t row) {
    return reinterpret_cast<uintptr_t>(base) % bytes == 0 && row % 4 == 0;
  };
  return whole(p.c, p.c_row) && whole(p.pe, p.pe_row) && (p.cache == nullptr || whole(p.cache, p.block_row));
}

assay_status read_call(const assay_call *call, mla_append_params *p, assay_error *error) {
  plain_call c;
  *p = mla_append_params();
  ASSAY_TRY(plain_read(call, &c, error));
  const int32_t given = (c.has("cache") ? 1 : 0) + (c.has("words") ? 1 : 0);
  if (given != 1)
    return assay_fail(error, ASSAY_ERR_INPUT, "cache: found %d of cache, words, allowed exactly one", given);
  p->c = c.data<const void>("c");
  p->pe = c.data<const void>("pe");
  p->slots = c.data<const int64_t>("slots");
  p->cache = c.data<void>("cache");
  p->words = c.data<uint32_t>("words");
  p->c_row = c.row("c");
  p->pe_row = c.row("pe");
  p->block_row = c.row(p->cache != nullptr ? "cache" : "words");
  p->N = c.dim("N");
  p->S = c.dim32("S");
  p->count = c.dim("P") * p->S;
  p->type = c.type("c");
  p->quads = rows_of_quads(*p);
  return expect_type("c", p->type, error);
}

assay_status launch(const assay_call *call, assay_env *env, assay_error *error) {
  mla_append_params p;
  ASSAY_TRY(read_call(call, &p, error));
  (void)snprintf(env->path, sizeof env->path, "%s%s", p.cache != nullptr ? "copies" : "tiles", p.quads ? " quads" : "");
  if (p.N == 0) return ASSAY_OK;
  return with_type(p.type, [&](auto type) {
    using T = typename decltype(type)::type;
    if (p.cache != nullptr) return ASSAY_LAUNCH(error, mla_append_copies<T>, p.N, append_threads, 0, env->stream, p);
    return ASSAY_LAUNCH(error, mla_append_tiles<T>, p.N, append_threads, 0, env->stream, p);
  });
}

constexpr assay_contract contract = {
    .qk_lanes = 1, .pv_lanes = 1, .run_to_run = true, .renumbering = true, .alone = true};

} // namespace
} // namespace ASSAY_NS

#define TILES                                                                                                          \
  PLAIN_VARIANT("mla_append", "tiles", "a block for each row, a warp for each scale", PLAIN_TYPE_CLAIMS "|false,true", \
                contract, mla_append_params, read_call, launch)

ASSAY_VARIANTS(mla_append, TILES)
