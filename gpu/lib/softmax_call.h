/* softmax_call.h: the parameters of every kernel of softmax_attention, filled once from a call. */
#ifndef ASSAY_GPU_LIB_SOFTMAX_CALL_H
#define ASSAY_GPU_LIB_SOFTMAX_CALL_H

#include "gpu/lib/attention.h"
#include "gpu/lib/schedules.cuh"

namespace ASSAY_NS {

struct softmax_params {
  attention_params a;
  const float *slopes; /* ALiBi; NULL: none */
  const void *sink;    /* f32 or bf16; NULL: none */
  bool sink_is_bf16;
  const int32_t *parent;   /* trees of new tokens; NULL: rows in turn */
  const uint8_t *mask;     /* packed bits in place of the causal rule; NULL: none */
  const int64_t *mask_ptr; /* [B + 1] the first byte of each request */
  float *lse;              /* NULL: not wanted */
  float *partial;          /* split_keys: [N, H, splits, D_v], each split's own result */
  float *partial_lse;      /* split_keys: [N, H, splits] */
  float softcap;           /* 0: off */
  int32_t sparse_block;    /* tokens; 0: off */
  int32_t sparse_local, sparse_stride, sparse_slide;
  int64_t tp_rank;
  int32_t chunk; /* 0: off */
  int32_t splits;
  int32_t cluster;          /* stream: thread blocks per cluster, which merges the splits; 1: none */
  float block_ns, round_ns; /* stream: as in stream_speed */
};

using softmax_plan = attention_plan<softmax_params>;

/* Reads the parameters of the block-sparse mask. */
inline assay_status softmax_read_mask(const assay_call *call, softmax_params *p, assay_error *error) {
  int64_t block, local, stride, slide, rank;
  const int64_t block_size = is_contiguous(p->a) ? 1 : INT64_C(1) << p->a.cache.block_shift;
  ASSAY_TRY(attention_integer(call, "sparse_block", 0, INT32_MAX, &block, error));
  ASSAY_TRY(expect_range("sparse_block", block, 0, INT32_MAX, block_size, error));
  ASSAY_TRY(attention_integer(call, "sparse_local", 0, INT32_MAX, &local, error));
  ASSAY_TRY(attention_integer(call, "sparse_stride", 1, INT32_MAX, &stride, error));
  ASSAY_TRY(attention_integer(call, "sparse_slide", -INT32_MAX, INT32_MAX, &slide, error));
  ASSAY_TRY(attention_integer(call, "tp_rank", 0, INT64_C(1) << 20, &rank, error));
  p->sparse_block = static_cast<int32_t>(block);
  p->sparse_local = static_cast<int32_t>(local);
  p->sparse_stride = static_cast<int32_t>(stride);
  p->sparse_slide = static_cast<int32_t>(slide);
  p->tp_rank = rank;
  return ASSAY_OK;
}

/* Reads chunk. A chunk that no row fills is off. */
inline assay_status softmax_read_chunk(const assay_call *call, softmax_params *p, assay_error *error) {
  int64_t chunk;
  ASSAY_TRY(attention_integer(call, "chunk", 0, INT32_MAX, &chunk, error));
  p->chunk = chunk >= p->a.capacity ? 0 : static_cast<int32_t>(chunk);
  return ASSAY_OK;
}

/* Reads lse [N, H], which is dense and optional. */
inline assay_status softmax_read_lse(const assay_call *call, softmax_params *p, assay_error *error) {
  const assay_tensor *lse;
  ASSAY_TRY(find_tensor(call, "lse", 2, true, &lse, error));
  if (lse == NULL) return ASSAY_OK;
  ASSAY_TRY(expect_dtype(lse, "lse", ASSAY_F32, error));
  ASSAY_TRY(expect_extent(lse, "lse", 0, p->a.N, error));
  ASSAY_TRY(expect_extent(lse, "lse", 1, p->a.H, error));
  ASSAY_TRY(expect_stride(lse, "lse", 1, 1, error));
  ASSAY_TRY(expect_stride(lse, "lse", 0, p->a.H, error));
  p->lse = static_cast<float *>(lse->data);
  return ASSAY_OK;
}

/* Reads sink [H], which is dense and optional, f32 or bf16. */
inline assay_status softmax_read_sink(const assay_call *call, softmax_params *p, assay_error *error) {
  const assay_tensor *sink;
  ASSAY_TRY(find_tensor(call, "sink", 1, true, &sink, error));
  if (sink == NULL) return ASSAY_OK;
  if (sink->dtype != ASSAY_F32 && sink->dtype != ASSAY_BF16)
    return assay_fail(error, ASSAY_ERR_INPUT, "sink: found dtype %s, allowed f32, bf16", assay_dtype_name(sink->dtype));
  ASSAY_TRY(expect_extent(sink, "sink", 0, p->a.H, error));
  ASSAY_TRY(expect_stride(sink, "sink", 0, 1, error));
  p->sink = sink->data;
  p->sink_is_bf16 = sink->dtype == ASSAY_BF16;
  return ASSAY_OK;
}

/* Reads parent [N], which is optional. */
inline assay_status softmax_read_trees(const assay_call *call, softmax_params *p, assay_error *error) {
  const void *parent;
  ASSAY_TRY(attention_vector(call, "parent", ASSAY_I32, p->a.N, true, &parent, error));
  p->parent = static_cast<const int32_t *>(parent);
  if (p->parent == NULL || p->sparse_block == 0) return ASSAY_OK;
  return assay_fail(error, ASSAY_ERR_INPUT, "sparse_block: found %d, allowed 0: off, with parent", p->sparse_block);
}

/* Reads mask [mask_words] and mask_ptr [B + 1], which are optional together. */
inline assay_status softmax_read_bits(const assay_call *call, softmax_params *p, assay_error *error) {
  const assay_tensor *const mask = named_tensor(call, "mask"), *const starts = named_tensor(call, "mask_ptr");
  const void *bits, *first;
  if (mask == NULL || starts == NULL || (mask->data == NULL && starts->data == NULL)) return ASSAY_OK;
  ASSAY_TRY(attention_vector(call, "mask", ASSAY_I32, mask->shape[0], false, &bits, error));
  ASSAY_TRY(attention_vector(call, "mask_ptr", ASSAY_I64, p->a.B + 1, false, &first, error));
  ASSAY_TRY(expect_range("mask_words, mask", mask->shape[0], 0, INT64_C(1) << 40, 1, error));
  if (p->parent != NULL) return assay_fail(error, ASSAY_ERR_INPUT, "parent: found a tensor, allowed none with mask");
  if (p->sparse_block != 0)
    return assay_fail(error, ASSAY_ERR_INPUT, "sparse_block: found %d, allowed 0: off, with mask", p->sparse_block);
  p->mask = static_cast<const uint8_t *>(bits);
  p->mask_ptr = static_cast<const int64_t *>(first);
  return ASSAY_OK;
}

inline assay_status softmax_read(const assay_call *call, softmax_plan *plan, assay_error *error) {
  const void *slopes;
  double softcap;
  *plan = softmax_plan();
  softmax_params *const p = &plan->p;
  ASSAY_TRY(attention_read(call, &p->a, &plan->types, error));
  ASSAY_TRY(expect_types(plan->types.q, plan->types.kv, error));
  ASSAY_TRY(attention_vector(call, "slopes", ASSAY_F32, p->a.H, true, &slopes, error));
  ASSAY_TRY(attention_real(call, "softcap", 0.0, 3e38, &softcap, error));
  ASSAY_TRY(softmax_read_mask(call, p, error));
  ASSAY_TRY(softmax_read_chunk(call, p, error));
  ASSAY_TRY(softmax_read_lse(call, p, error));
  ASSAY_TRY(softmax_read_sink(call, p, error));
  ASSAY_TRY(softmax_read_trees(call, p, error));
  ASSAY_TRY(softmax_read_bits(call, p, error));
  p->slopes = static_cast<const float *>(slopes);
  p->softcap = static_cast<float>(softcap);
  return ASSAY_OK;
}

/* Refuses V of another width than K. */
inline assay_status softmax_expect_D_v(const softmax_params &p, assay_error *error) {
  if (p.a.D_v == p.a.D) return ASSAY_OK;
  return assay_fail(error, ASSAY_ERR_UNSUPPORTED, "D_v: found %d, allowed D = %d", p.a.D_v, p.a.D);
}

/* The part that the strategies of the operator which need V as wide as K have in common. */
struct softmax_operator {
  using plan = softmax_plan;
  static assay_status read(const assay_call *call, plan *made, assay_error *error) {
    ASSAY_TRY(softmax_read(call, made, error));
    return softmax_expect_D_v(made->p, error);
  }
};

/* Refuses trees and masks of bits. */
inline assay_status softmax_expect_no_trees(const softmax_params &p, assay_error *error) {
  if (p.mask != NULL)
    return assay_fail(error, ASSAY_ERR_UNSUPPORTED, "mask: found a tensor, allowed none: the causal rule");
  if (p.parent == NULL) return ASSAY_OK;
  return assay_fail(error, ASSAY_ERR_UNSUPPORTED, "parent: found a tensor, allowed none: rows in turn");
}

inline assay_status softmax_expect_dense(const softmax_params &p, assay_error *error) {
  if (p.sparse_block != 0)
    return assay_fail(error, ASSAY_ERR_UNSUPPORTED, "sparse_block: found %d, allowed 0: off", p.sparse_block);
  if (p.chunk != 0) return assay_fail(error, ASSAY_ERR_UNSUPPORTED, "chunk: found %d, allowed 0: off", p.chunk);
  return softmax_expect_no_trees(p, error);
}

} // namespace ASSAY_NS
#endif
