/* rope_append.cuh: shared parts of operators that rotate q and k and append k and v to the paged cache. They are the
 * parameters, the stores of keys and values, and the readers of calls. */
#ifndef ASSAY_GPU_LIB_ROPE_APPEND_CUH
#define ASSAY_GPU_LIB_ROPE_APPEND_CUH

#include "gpu/lib/append.cuh"
#include "gpu/lib/append_vectors.cuh"
#include "gpu/lib/launch.h"
#include "gpu/lib/rope.cuh"
#include "gpu/lib/schedules.cuh"
#include "gpu/lib/vectors.cuh"

namespace ASSAY_NS {

struct rope_append_params {
  rope_angles angles;
  paged_cache cache;
  new_rows q, k, v;
  new_rows q_to; /* q, or q_out */
  void *k_out;   /* [N, H_kv, D]; NULL: nowhere */
  const int64_t *slots;
  int64_t N, pool_slots;
  int32_t H, H_kv, D;
  bool q_apart; /* q_to is not q */
};

/* Returns the place of channel 0 of (row, head). */
template <class T>
__device__ __forceinline__ T *head_of(const rope_append_params &p, const new_rows &rows, int64_t row, int32_t head) {
  return element_to<T>(rows.data, row * rows.apart + static_cast<int64_t>(head) * p.D);
}

template <class T> __device__ __forceinline__ T *k_out_of(const rope_append_params &p, int64_t row, int32_t head) {
  return static_cast<T *>(p.k_out) + (row * p.H_kv + head) * p.D;
}

/* ---- stores ------------------------------------------------------------------------------------------ */

template <class T, class KV>
__device__ __forceinline__ void store_k(const rope_append_params &p, int64_t row, const slot_place &to, int32_t head,
                                        int32_t d, T k) {
  if (p.k_out != nullptr) k_out_of<T>(p, row, head)[d] = k;
  if (to.block < 0) return;
  const int64_t channel = k_channel(p.cache, d & ~3) + (d & 3);
  *element_to<KV>(p.cache.k, k_offset(p.cache, to.block, to.offset, head) + channel) =
      stored<KV>(k, k_scale_of(p.cache, head));
}

template <class T, class KV>
__device__ __forceinline__ void store_k_vector(const rope_append_params &p, int64_t row, const slot_place &to,
                                               int32_t head, int32_t d, const uint4 &k) {
  if (p.k_out != nullptr) store_vector(k_out_of<T>(p, row, head) + d, k);
  if (to.block < 0) return;
  const int64_t at = k_offset(p.cache, to.block, to.offset, head) + k_channel(p.cache, d);
  store_channels<T>(element_to<KV>(p.cache.k, at), k, k_scale_of(p.cache, head));
}

/* Writes channels of V: as neighbours where they are, else one by one. */
template <class T, class KV>
__device__ __forceinline__ void store_v_vector(const rope_append_params &p, const slot_place &to, int32_t head,
                                               int32_t d, const T *from, const uint4 &v) {
  const int64_t at = v_offset(p.cache, to.block, to.offset, head) + d * p.cache.v_channel;
  const float scale = v_scale_of(p.cache, head);
  if (p.cache.v_channel == 1) {
    store_channels<T>(element_to<KV>(p.cache.v, at), v, scale);
    return;
  }
  ASSAY_UNROLL
  for (int e = 0; e < vector_width<T>; ++e)
    *element_to<KV>(p.cache.v, at + e * p.cache.v_channel) = stored<KV>(from[e], scale);
}

/* ---- launchers --------------------------------------------------------------------------------------- */

struct rope_append_plan {
  rope_append_params p;
  attention_types types;
};

/* Reads q_out or k_out, which is absent or dense. */
inline assay_status read_heads_out(const assay_call *call, const char *name, assay_dtype dtype, int64_t N,
                                   int64_t heads, int64_t D, void **data, assay_error *error) {
  const assay_tensor *tensor;
  *data = nullptr;
  ASSAY_TRY(find_tensor(call, name, 3, true, &tensor, error));
  if (tensor == NULL) return ASSAY_OK;
  ASSAY_TRY(expect_dtype(tensor, name, dtype, error));
  const int64_t shape[3] = {N, heads, D}, stride[3] = {heads * D, D, 1};
  for (int32_t i = 0; i < 3; ++i) {
    ASSAY_TRY(expect_extent(tensor, name, i, shape[i], error));
    ASSAY_TRY(expect_stride(tensor, name, i, stride[i], error));
  }
  *data = tensor->data;
  return ASSAY_OK;
}

/* Reads q, k and v, and the sizes that they give. */
inline assay_status read_append_heads(const assay_call *call, rope_append_plan *plan, assay_error *error) {
  rope_append_params *const p = &plan->p;
  const assay_tensor *q, *k;
  ASSAY_TRY(find_tensor(call, "q", 3, false, &q, error));
  if (q->dtype != ASSAY_F32 && q->dtype != ASSAY_F16 && q->dtype != ASSAY_BF16)
    return assay_fail(error, ASSAY_ERR_INPUT, "q: found dtype %s, allowed f32, f16, bf16", assay_dtype_name(q->dtype));
  ASSAY_TRY(find_tensor(call, "k", 3, false, &k, error));
  ASSAY_TRY(expect_range("N", q->shape[0], 0, INT32_MAX, 1, error));
  ASSAY_TRY(expect_range("H", q->shape[1], 1, 256, 1, error));
  ASSAY_TRY(expect_range("H_kv", k->shape[1], 1, 256, 1, error));
  ASSAY_TRY(expect_range("D", q->shape[2], 8, attention_max_D, 8, error));
  plan->types.q = q->dtype;
  p->N = q->shape[0];
  p->H = static_cast<int32_t>(q->shape[1]);
  p->H_kv = static_cast<int32_t>(k->shape[1]);
  p->D = static_cast<int32_t>(q->shape[2]);
  ASSAY_TRY(read_new_rows(call, "q", q->dtype, p->N, p->H, p->D, &p->q, error));
  ASSAY_TRY(read_new_rows(call, "k", q->dtype, p->N, p->H_kv, p->D, &p->k, error));
  return read_new_rows(call, "v", q->dtype, p->N, p->H_kv, p->D, &p->v, error);
}

inline assay_status read_rope_append(const assay_call *call, rope_append_plan *plan, assay_error *error) {
  if (call == NULL || call->op == NULL || call->arg == NULL || call->param == NULL)
    return assay_fail(error, ASSAY_ERR_INPUT, "call: found no operator, arguments or parameters, allowed all three");
  *plan = rope_append_plan();
  rope_append_params *const p = &plan->p;
  attention_params a = attention_params(); /* the part that knows the cache */
  void *q_out;
  ASSAY_TRY(read_append_heads(call, plan, error));
  ASSAY_TRY(read_angles(call, p->D, &p->angles, error));
  ASSAY_TRY(read_positions(call, p->N, &p->angles, error));
  a.N = p->N;
  a.H = p->H_kv;
  a.D = p->D;
  ASSAY_TRY(read_cache(call, &a, &plan->types, error));
  ASSAY_TRY(expect_range("H_kv", a.H_kv, p->H_kv, p->H_kv, 1, error)); /* the cache has the heads of k */
  ASSAY_TRY(read_scales(call, &a, &plan->types, error));
  ASSAY_TRY(expect_types(plan->types.q, plan->types.kv, error));
  ASSAY_TRY(read_slots(call, p->N, a.cache, &p->slots, &p->pool_slots, error));
  ASSAY_TRY(read_heads_out(call, "q_out", plan->types.q, p->N, p->H, p->D, &q_out, error));
  ASSAY_TRY(read_heads_out(call, "k_out", plan->types.q, p->N, p->H_kv, p->D, &p->k_out, error));
  p->cache = a.cache;
  p->q_apart = q_out != nullptr;
  p->q_to = p->q_apart ? new_rows{q_out, static_cast<int64_t>(p->H) * p->D} : p->q;
  return ASSAY_OK;
}

/* Declines bases and distances of rows that are no whole vectors. */
inline assay_status expect_append_vectors(const rope_append_plan &plan, assay_error *error) {
  const rope_append_params &p = plan.p;
  const assay_dtype type = plan.types.q, kv = plan.types.kv;
  const bool outs = reinterpret_cast<uintptr_t>(p.k_out) % 16 == 0 && rows_in_vectors(p.q_to, type);
  const bool tables =
      reinterpret_cast<uintptr_t>(p.angles.cosine) % 16 == 0 && reinterpret_cast<uintptr_t>(p.angles.sine) % 16 == 0;
  const bool v = p.cache.v_channel != 1 || v_in_vectors(p.cache, type, kv);
  if (outs && tables && v && rows_in_vectors(p.q, type) && rows_in_vectors(p.k, type) && rows_in_vectors(p.v, type) &&
      k_in_vectors(p.cache, type, kv))
    return ASSAY_OK;
  return assay_fail(error, ASSAY_ERR_UNSUPPORTED,
                    "call: found a base or a distance of rows that is no whole vector, taken here: multiples");
}

/* The arithmetic is that of rope, of which the contract says nothing. Division and rounding are as in the definition.
 */
constexpr assay_contract rope_append_contract = {.qk_lanes = 1,
                                                 .pv_lanes = 1,
                                                 .zero_p_v = ASSAY_V_MULTIPLIED,
                                                 .run_to_run = true,
                                                 .renumbering = true,
                                                 .permutation = true,
                                                 .lanes = 1,
                                                 .alone = true};

} // namespace ASSAY_NS
#endif
