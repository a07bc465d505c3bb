/* mla.cuh: a call of mla_attention for its launchers, and how its kernels find entries. */
#ifndef ASSAY_GPU_LIB_MLA_CUH
#define ASSAY_GPU_LIB_MLA_CUH

#include "gpu/lib/plain.h"
#include "gpu/lib/vec.cuh"

namespace ASSAY_NS {

constexpr int32_t mla_c = 512, mla_pe = 64, mla_entry = mla_c + mla_pe, mla_tile = 128;
constexpr int32_t mla_scale_word = mla_c / 4, mla_pe_word = mla_scale_word + mla_c / mla_tile;
constexpr int32_t mla_words = mla_pe_word + mla_pe / 2;

struct mla_params {
  const void *q, *cache; /* cache NULL: words */
  const uint32_t *words;
  const int32_t *cu, *table, *kv_len;
  void *out;
  float *lse;                        /* NULL: none */
  int64_t q_row, out_row, block_row; /* between rows; between blocks, in elements or words */
  int32_t N, B, H, S, W;
  float scale;
  assay_dtype type;
};

/* Returns L of a request, at most what its table can name. */
__device__ __forceinline__ int32_t mla_length(const mla_params &p, int32_t request) {
  return static_cast<int32_t>(
      min(max(static_cast<int64_t>(p.kv_len[request]), static_cast<int64_t>(0)), static_cast<int64_t>(p.W) * p.S));
}

/* The rows of a request: T of them, from row `first` of q on. */
struct mla_chunk {
  int32_t request, first, T;
};

__device__ __forceinline__ int32_t mla_begin(const mla_params &p, int32_t request) {
  return min(max(p.cu[request], 0), p.N);
}

/* Returns the rows of a request, inside q whatever cu_q says. */
__device__ __forceinline__ mla_chunk mla_chunk_of(const mla_params &p, int32_t request) {
  const int32_t first = mla_begin(p, request);
  return {request, first, max(mla_begin(p, request + 1) - first, 0)};
}

/* Returns the request of a row: the last one that begins at the row or before it. */
__device__ __forceinline__ int32_t mla_request_of(const mla_params &p, int32_t row) {
  int32_t low = 0, high = p.B; /* cu[low] <= row < cu[high] */
  while (high - low > 1) {
    const int32_t middle = low + (high - low) / 2;
    if (p.cu[middle] <= row)
      low = middle;
    else
      high = middle;
  }
  return low;
}

/* Returns the number of keys that row `row` of T rows sees, in a request with L keys. */
__device__ __forceinline__ int32_t mla_seen(int32_t length, int32_t T, int32_t row) {
  return max(length - T + row + 1, 0);
}

/* Returns where the entry of key t begins, in elements or words of the pool. */
__device__ __forceinline__ int64_t mla_entry_begin(const mla_params &p, int32_t request, int32_t t, int32_t width) {
  const int64_t block = p.table[static_cast<int64_t>(request) * p.W + t / p.S];
  return block * p.block_row + static_cast<int64_t>(t % p.S) * width;
}

inline assay_status mla_read(const assay_call *call, mla_params *p, assay_error *error) {
  plain_call c;
  *p = mla_params();
  ASSAY_TRY(plain_read(call, &c, error));
  const int32_t given = (c.has("cache") ? 1 : 0) + (c.has("words") ? 1 : 0);
  if (given != 1)
    return assay_fail(error, ASSAY_ERR_INPUT, "cache: found %d of cache, words, allowed exactly one", given);
  p->q = c.data<const void>("q");
  p->cache = c.data<const void>("cache");
  p->words = c.data<const uint32_t>("words");
  p->cu = c.data<const int32_t>("cu_q");
  p->table = c.data<const int32_t>("table");
  p->kv_len = c.data<const int32_t>("kv_len");
  p->out = c.data<void>("out");
  p->lse = c.data<float>("lse");
  p->q_row = c.row("q");
  p->out_row = c.row("out");
  p->block_row = c.row(p->cache != nullptr ? "cache" : "words");
  p->N = c.dim32("N");
  p->B = c.dim32("B");
  p->H = c.dim32("H");
  p->S = c.dim32("S");
  p->W = c.dim32("W");
  p->scale = c.real("scale");
  p->type = c.type("q");
  if (static_cast<int64_t>(p->W) * p->S > INT32_MAX)
    return assay_fail(error, ASSAY_ERR_UNSUPPORTED, "W: found %d blocks of %d keys, taken here: fewer than 2^31 keys",
                      p->W, p->S);
  return expect_type("q", p->type, error);
}

} // namespace ASSAY_NS
#endif
