/* attention_read.h: the bodies of attention.h, inline so that a kernel file is complete by itself (plug-ins). */
#ifndef ASSAY_GPU_LIB_ATTENTION_READ_H
#define ASSAY_GPU_LIB_ATTENTION_READ_H

#include <inttypes.h>
#include <limits.h>

#include "gpu/lib/attention_params.h"

namespace ASSAY_NS {

inline assay_status attention_vector(const assay_call *call, const char *name, assay_dtype dtype, int64_t count,
                                     bool optional, const void **data, assay_error *error) {
  const assay_tensor *tensor;
  *data = NULL;
  ASSAY_TRY(find_tensor(call, name, 1, optional, &tensor, error));
  if (tensor == NULL) return ASSAY_OK;
  ASSAY_TRY(expect_dtype(tensor, name, dtype, error));
  ASSAY_TRY(expect_extent(tensor, name, 0, count, error));
  ASSAY_TRY(expect_stride(tensor, name, 0, 1, error));
  *data = tensor->data;
  return ASSAY_OK;
}

inline assay_status attention_real(const assay_call *call, const char *name, double min, double max, double *value,
                                   assay_error *error) {
  *value = assay_find_param(call, name);
  if (*value >= min && *value <= max) return ASSAY_OK;
  return assay_fail(error, ASSAY_ERR_INPUT, "%s: found %.9g, allowed %.9g to %.9g", name, *value, min, max);
}

inline assay_status attention_integer(const assay_call *call, const char *name, int64_t min, int64_t max,
                                      int64_t *value, assay_error *error) {
  const double found = assay_find_param(call, name);
  *value = 0;
  if (found >= static_cast<double>(min) && found <= static_cast<double>(max)) {
    *value = static_cast<int64_t>(found);
    if (static_cast<double>(*value) - found == 0.0) return ASSAY_OK;
  }
  return assay_fail(error, ASSAY_ERR_INPUT, "%s: found %.17g, allowed integers from %" PRId64 " to %" PRId64, name,
                    found, min, max);
}

/* Reads q: type, shape, strides. Sets the sizes. */
inline assay_status read_rows(const assay_call *call, attention_params *p, attention_types *types, assay_error *error) {
  const assay_tensor *q;
  ASSAY_TRY(find_tensor(call, "q", 3, false, &q, error));
  if (q->dtype != ASSAY_F32 && q->dtype != ASSAY_F16 && q->dtype != ASSAY_BF16)
    return assay_fail(error, ASSAY_ERR_INPUT, "q: found dtype %s, allowed f32, f16, bf16", assay_dtype_name(q->dtype));
  const int64_t N = q->shape[0], H = q->shape[1], D = q->shape[2];
  ASSAY_TRY(expect_range("N", N, 0, INT32_MAX, 1, error));
  ASSAY_TRY(expect_range("H", H, 1, 256, 1, error));
  ASSAY_TRY(expect_range("D", D, 8, attention_max_D, 8, error));
  ASSAY_TRY(expect_stride(q, "q", 2, 1, error));
  ASSAY_TRY(expect_stride(q, "q", 1, D, error));
  ASSAY_TRY(expect_row_stride(q, "q", H * D, error));
  types->q = q->dtype;
  p->q = q->data;
  p->q_row = q->stride[0];
  p->N = N;
  p->H = static_cast<int32_t>(H);
  p->D = static_cast<int32_t>(D);
  return ASSAY_OK;
}

/* Reads out, which is dense and has the channels of V. */
inline assay_status read_out(const assay_call *call, attention_params *p, const attention_types *types,
                             assay_error *error) {
  const assay_tensor *out;
  ASSAY_TRY(find_tensor(call, "out", 3, false, &out, error));
  ASSAY_TRY(expect_dtype(out, "out", types->q, error));
  ASSAY_TRY(expect_extent(out, "out", 0, p->N, error));
  ASSAY_TRY(expect_extent(out, "out", 1, p->H, error));
  ASSAY_TRY(expect_extent(out, "out", 2, p->D_v, error));
  ASSAY_TRY(expect_stride(out, "out", 2, 1, error));
  ASSAY_TRY(expect_stride(out, "out", 1, p->D_v, error));
  ASSAY_TRY(expect_stride(out, "out", 0, static_cast<int64_t>(p->H) * p->D_v, error));
  p->out = out->data;
  return ASSAY_OK;
}

/* The axes of k_cache and v_cache in a layout. */
struct cache_axes {
  int32_t rank;                     /* rank of K; V has rank 4 */
  int32_t k_head, k_token, k_chunk; /* k_chunk -1: no chunks */
  int32_t v_head, v_token, v_channel;
};

inline cache_axes axes_of_layout(int64_t layout) {
  if (layout == 0) return {4, 2, 1, -1, 2, 1, 3}; /* nhd */
  if (layout == 1) return {4, 1, 2, -1, 1, 2, 3}; /* hnd */
  return {5, 1, 3, 2, 1, 3, 2};                   /* x */
}

/* Refuses a call with both block_table and cu_k, for an operator that takes both forms. Having neither is allowed only
 * if a table would have no entries. */
inline assay_status expect_form(const assay_call *call, assay_error *error) {
  const assay_tensor *const table = named_tensor(call, "block_table"), *const cu_k = named_tensor(call, "cu_k");
  if (table == NULL || cu_k == NULL) return ASSAY_OK;
  if (table->data != NULL && cu_k->data != NULL)
    return assay_fail(error, ASSAY_ERR_INPUT, "block_table, cu_k: found both, allowed one of them");
  if (table->data == NULL && cu_k->data == NULL && !(table->rank == 2 && is_empty(table)))
    return assay_fail(error, ASSAY_ERR_INPUT,
                      "block_table, cu_k: found no data (NULL) for either, allowed one of them");
  return ASSAY_OK;
}

/* Returns whether the operator's table has blocks of one token. */
inline bool takes_block_of_1(const assay_op *op) {
  for (int32_t i = 0; i < op->dim_count; ++i)
    if (strcmp(op->dims[i].name, "block_size") == 0) return op->dims[i].min == 1;
  return false;
}

/* Returns whether V may have another number of channels than K: the operator's table has D_v. */
inline bool takes_D_v(const assay_op *op) {
  for (int32_t i = 0; i < op->dim_count; ++i)
    if (strcmp(op->dims[i].name, "D_v") == 0) return true;
  return false;
}

inline assay_status read_cache(const assay_call *call, attention_params *p, attention_types *types,
                               assay_error *error) {
  const assay_tensor *k, *v;
  int64_t layout;
  ASSAY_TRY(attention_integer(call, "layout", 0, 2, &layout, error));
  const cache_axes axis = axes_of_layout(layout);
  ASSAY_TRY(find_tensor(call, "k_cache", axis.rank, false, &k, error));
  ASSAY_TRY(find_tensor(call, "v_cache", 4, false, &v, error));
  if (k->dtype != types->q && k->dtype != ASSAY_E4M3 && k->dtype != ASSAY_E5M2)
    return assay_fail(error, ASSAY_ERR_INPUT, "k_cache: found dtype %s, allowed %s, e4m3, e5m2",
                      assay_dtype_name(k->dtype), assay_dtype_name(types->q));
  ASSAY_TRY(expect_dtype(v, "v_cache", k->dtype, error));
  const int64_t x = 16 / assay_dtype_size(k->dtype);
  const int64_t blocks = k->shape[0], heads = k->shape[axis.k_head], block_size = k->shape[axis.k_token];
  const bool contiguous = assay_find_arg(call, "cu_k") != NULL;
  if (contiguous && layout == 2)
    return assay_fail(error, ASSAY_ERR_INPUT, "layout: found x, allowed nhd, hnd with cu_k");
  ASSAY_TRY(expect_range("num_blocks", blocks, 0, INT64_C(1) << 31, 1, error));
  if (contiguous && blocks > INT64_C(1) << contiguous_shift)
    return assay_fail(error, ASSAY_ERR_UNSUPPORTED, "num_blocks: found %" PRId64 " rows, allowed up to %" PRId64,
                      blocks, INT64_C(1) << contiguous_shift);
  ASSAY_TRY(expect_range("H_kv", heads, 1, 256, 1, error));
  if (p->H % heads != 0)
    return assay_fail(error, ASSAY_ERR_INPUT, "H_kv: found %" PRId64 ", allowed divisors of H = %" PRId32, heads, p->H);
  if (contiguous)
    ASSAY_TRY(expect_range("block_size", block_size, 1, 1, 1, error));
  else if (block_size != 1 || layout == 2 || !takes_block_of_1(call->op))
    ASSAY_TRY(expect_range("block_size", block_size, 8, 256, 8, error));
  if ((block_size & (block_size - 1)) != 0)
    return assay_fail(error, ASSAY_ERR_INPUT, "block_size: found %" PRId64 ", allowed 8, 16, 32, 64, 128, 256",
                      block_size);
  if (axis.k_chunk < 0) {
    ASSAY_TRY(expect_extent(k, "k_cache", 3, p->D, error));
  } else {
    if (p->D % x != 0)
      return assay_fail(error, ASSAY_ERR_INPUT, "D: found %" PRId32 ", allowed multiples of %" PRId64 " in layout x",
                        p->D, x);
    ASSAY_TRY(expect_extent(k, "k_cache", 4, x, error));
    ASSAY_TRY(expect_extent(k, "k_cache", axis.k_chunk, p->D / x, error));
  }
  ASSAY_TRY(expect_extent(v, "v_cache", 0, blocks, error));
  ASSAY_TRY(expect_extent(v, "v_cache", axis.v_head, heads, error));
  ASSAY_TRY(expect_extent(v, "v_cache", axis.v_token, block_size, error));
  const int64_t D_v = takes_D_v(call->op) ? v->shape[axis.v_channel] : p->D;
  ASSAY_TRY(expect_range("D_v, v_cache", D_v, 8, attention_max_D, 8, error));
  ASSAY_TRY(expect_extent(v, "v_cache", axis.v_channel, D_v, error));
  ASSAY_TRY(expect_stride(k, "k_cache", axis.rank - 1, 1, error));
  ASSAY_TRY(expect_stride(v, "v_cache", 3, 1, error));

  types->kv = k->dtype;
  p->D_v = static_cast<int32_t>(D_v);
  p->H_kv = static_cast<int32_t>(heads);
  p->G = p->H / p->H_kv;
  paged_cache *cache = &p->cache;
  cache->k = k->data;
  cache->v = v->data;
  cache->blocks = blocks;
  cache->k_block = k->stride[0];
  cache->k_head = k->stride[axis.k_head];
  cache->k_token = k->stride[axis.k_token];
  cache->block_shift = contiguous ? contiguous_shift : __builtin_ctzll(static_cast<unsigned long long>(block_size));
  cache->chunk_shift = axis.k_chunk < 0 ? 2 : __builtin_ctzll(static_cast<unsigned long long>(x));
  cache->k_chunk = axis.k_chunk < 0 ? 4 : k->stride[axis.k_chunk];
  cache->v_block = v->stride[0];
  cache->v_head = v->stride[axis.v_head];
  cache->v_token = v->stride[axis.v_token];
  cache->v_channel = v->stride[axis.v_channel];
  if (contiguous) { /* a block of the tensors is a token */
    cache->k_token = cache->k_block;
    cache->v_token = cache->v_block;
  }
  const uintptr_t quad = static_cast<uintptr_t>(4 * assay_dtype_size(k->dtype));
  cache->quads = reinterpret_cast<uintptr_t>(cache->k) % quad == 0 && cache->k_block % 4 == 0 &&
                 cache->k_head % 4 == 0 && cache->k_token % 4 == 0 && cache->k_chunk % 4 == 0;
  return ASSAY_OK;
}

/* Reads the dequantisation factors, which are given exactly if the cache is fp8. */
inline assay_status read_scales(const assay_call *call, attention_params *p, const attention_types *types,
                                assay_error *error) {
  int64_t per_head;
  const void *k, *v;
  const bool fp8 = types->kv == ASSAY_E4M3 || types->kv == ASSAY_E5M2;
  ASSAY_TRY(attention_integer(call, "scale_per_head", 0, 1, &per_head, error));
  const int64_t count = per_head != 0 ? p->H_kv : 1;
  const char *const names[] = {"k_scale", "v_scale"};
  for (const char *name : names)
    if (!fp8 && assay_find_arg(call, name) != NULL)
      return assay_fail(error, ASSAY_ERR_INPUT, "%s: found a tensor, allowed none with a cache of %s", name,
                        assay_dtype_name(types->kv));
  ASSAY_TRY(attention_vector(call, "k_scale", ASSAY_F32, count, !fp8, &k, error));
  ASSAY_TRY(attention_vector(call, "v_scale", ASSAY_F32, count, !fp8, &v, error));
  p->cache.k_scale = static_cast<const float *>(k);
  p->cache.v_scale = static_cast<const float *>(v);
  p->cache.scale_step = per_head != 0 ? 1 : 0;
  return ASSAY_OK;
}

/* Reads block_table and sets B. */
inline assay_status read_table(const assay_call *call, attention_params *p, assay_error *error) {
  const assay_tensor *table;
  ASSAY_TRY(find_tensor(call, "block_table", 2, false, &table, error));
  ASSAY_TRY(expect_dtype(table, "block_table", ASSAY_I32, error));
  const int64_t B = table->shape[0], max_blocks = table->shape[1];
  ASSAY_TRY(expect_range("B", B, 0, INT32_MAX - 1, 1, error));
  ASSAY_TRY(expect_stride(table, "block_table", 1, 1, error));
  ASSAY_TRY(expect_row_stride(table, "block_table", max_blocks, error));
  /* Positions are 32-bit in the kernels. */
  ASSAY_TRY(expect_range("max_blocks", max_blocks, 0, (INT32_MAX - 512) >> p->cache.block_shift, 1, error));
  p->B = static_cast<int32_t>(B);
  p->capacity = max_blocks << p->cache.block_shift;
  p->cache.table = static_cast<const int32_t *>(table->data);
  p->cache.table_row = table->stride[0];
  return ASSAY_OK;
}

/* Reads cu_k in the table's place and sets B. */
inline assay_status read_starts(const assay_call *call, attention_params *p, assay_error *error) {
  const assay_tensor *length;
  const void *cu_k;
  ASSAY_TRY(find_tensor(call, "kv_len", 1, false, &length, error));
  const int64_t B = length->shape[0];
  ASSAY_TRY(expect_range("B", B, 0, INT32_MAX - 1, 1, error));
  ASSAY_TRY(attention_vector(call, "cu_k", ASSAY_I32, B + 1, false, &cu_k, error));
  p->B = static_cast<int32_t>(B);
  p->capacity = p->cache.blocks;
  p->cache.table = static_cast<const int32_t *>(cu_k);
  p->cache.table_row = 1;
  return ASSAY_OK;
}

/* Reads block_table or cu_k, kv_len and cu_q. */
inline assay_status read_requests(const assay_call *call, attention_params *p, assay_error *error) {
  const void *length, *cu_q;
  ASSAY_TRY(is_contiguous(*p) ? read_starts(call, p, error) : read_table(call, p, error));
  const int64_t B = p->B;
  ASSAY_TRY(attention_vector(call, "kv_len", ASSAY_I32, B, false, &length, error));
  ASSAY_TRY(attention_vector(call, "cu_q", ASSAY_I32, B + 1, true, &cu_q, error));
  if (cu_q == NULL) ASSAY_TRY(expect_range("N", p->N, B, B, 1, error)); /* one row per request */
  p->length = static_cast<const int32_t *>(length);
  p->cu_q = static_cast<const int32_t *>(cu_q);
  return ASSAY_OK;
}

inline assay_status attention_read(const assay_call *call, attention_params *p, attention_types *types,
                                   assay_error *error) {
  double scale;
  int64_t window;
  if (call == NULL || call->op == NULL || call->arg == NULL || call->param == NULL)
    return assay_fail(error, ASSAY_ERR_INPUT, "call: found no operator, arguments or parameters, allowed all three");
  *p = attention_params();
  ASSAY_TRY(read_rows(call, p, types, error));
  ASSAY_TRY(expect_form(call, error));
  ASSAY_TRY(read_cache(call, p, types, error));
  ASSAY_TRY(read_out(call, p, types, error));
  ASSAY_TRY(read_scales(call, p, types, error));
  ASSAY_TRY(read_requests(call, p, error));
  ASSAY_TRY(attention_real(call, "scale", 0.0, 3e38, &scale, error));
  ASSAY_TRY(attention_integer(call, "window", 0, INT32_MAX, &window, error));
  p->scale = static_cast<float>(scale == 0.0 ? 1.0 / sqrt(static_cast<double>(p->D)) : scale);
  p->window = window >= p->capacity ? 0 : static_cast<int32_t>(window);
  return ASSAY_OK;
}

inline int32_t attention_tile(const attention_params &p, int32_t most) {
  const int64_t tile = (p.capacity + 31) / 32 * 32;
  if (tile >= most) return most;
  return tile <= 32 ? 32 : static_cast<int32_t>(tile);
}

inline assay_status attention_splits(const attention_params &p, int32_t keys, int32_t floats, int32_t *splits,
                                     int64_t *bytes, assay_error *error) {
  int64_t count = (p.capacity + keys - 1) / keys;
  if (count < 1) count = 1;
  if (count > launch_max_grid_yz)
    return assay_fail(error, ASSAY_ERR_UNSUPPORTED, "%s: found %" PRId64 " keys a row, allowed up to %" PRId64,
                      is_contiguous(p) ? "num_blocks" : "max_blocks", p.capacity, launch_max_grid_yz * keys);
  /* With contiguous keys the splits are those of all requests' rows, and most hold no key of a row. */
  if (is_contiguous(p) && count > 1 && count * p.H > contiguous_most_splits / (p.N > 0 ? p.N : 1))
    return assay_fail(error, ASSAY_ERR_UNSUPPORTED,
                      "num_blocks: found %" PRId64 " rows of K in %" PRId64 " splits for %" PRId64
                      " rows of %d heads, allowed %" PRId64 " splits in all",
                      p.capacity, count, p.N, p.H, contiguous_most_splits);
  *splits = static_cast<int32_t>(count);
  *bytes = static_cast<int64_t>(sizeof(float)) * floats;
  if (!multiply(bytes, p.N) || !multiply(bytes, p.H) || !multiply(bytes, count))
    return assay_fail(error, ASSAY_ERR_UNSUPPORTED,
                      "N: found %" PRId64 " rows with %" PRId64 " splits, allowed what a 63-bit workspace size holds",
                      p.N, count);
  return ASSAY_OK;
}

} // namespace ASSAY_NS
#endif
