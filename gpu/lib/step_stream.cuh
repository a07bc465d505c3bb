/* step_stream.cuh: one decode step that writes its own key and value to the cache and attends by the streamed walk, in
 * two launches: the step's token, then attention over the cache as it is then, and what joins splits, if there are any.
 * Where the rows are made (mmha), the first launch also rounds the queries to bf16 and leaves them in the workspace. */
#ifndef ASSAY_GPU_LIB_STEP_STREAM_CUH
#define ASSAY_GPU_LIB_STEP_STREAM_CUH

#include "gpu/lib/gate_stream.cuh"
#include "gpu/lib/softmax_stream.cuh"
#include "gpu/lib/step.cuh"

namespace ASSAY_NS {

/* ---- the step's token -------------------------------------------------------------------------------- */

/* append_token: the stored form of the step's k and v to their slots; and q, where `query` is there. A pad row writes
 * nothing to the cache and its rows are not read; its queries are 0. A slot outside the pool is not written.
 * Grid:   (N rows, H heads of q if wanted + H_kv). Block: D threads, a channel each. Shared: none.
 * Align:  by element, neighbours side by side. Arch: any.
 * Limit:  bytes: a row of q, k and v read, and what is stored of it written.
 */
template <class Q, class KV, class Source>
__global__ void __launch_bounds__(128) append_token(step_params p, Source source, Q *query) {
  take_turn();
  const attention_params &a = p.a;
  const int64_t row = blockIdx.x;
  const int32_t d = static_cast<int32_t>(threadIdx.x), heads = query != nullptr ? a.H : 0;
  const int32_t head = static_cast<int32_t>(blockIdx.y), kv_head = head - heads;
  const bool pad = a.length[row] <= 0;
  if (head < heads) {
    query[(row * a.H + head) * a.D + d] = from_float<Q>(pad ? 0.0f : source.q(row, head, d));
    return;
  }
  const slot_place at = place_of_slot(a.cache, p.slots[row], p.pool_slots);
  if (pad || at.block < 0) return;
  const KV k = stored<KV>(source.k(row, kv_head, d), k_scale_of(a.cache, kv_head));
  const KV v = stored<KV>(source.v(row, kv_head, d), v_scale_of(a.cache, kv_head));
  *element_to<KV>(a.cache.k, k_offset(a.cache, at.block, at.offset, kv_head) + d) = k;
  *element_to<KV>(a.cache.v, v_offset(a.cache, at.block, at.offset, kv_head) + d) = v;
}

/* ---- launcher ---------------------------------------------------------------------------------------- */

/* What the walk is told. */
inline void gate_of_step(const step_params &p, gate_plan *plan) {
  *plan = gate_plan();
  plan->p.a = p.a;
  plan->p.taps = p.taps;
  plan->p.gamma = p.gamma;
  plan->p.lo = p.lo;
  plan->p.hi = p.hi;
  plan->p.F = p.F;
  plan->p.relu_pre = p.relu_pre;
  gate_stream_plan(plan);
}

inline assay_status softmax_of_step(const step_params &p, softmax_plan *plan, assay_error *error) {
  *plan = softmax_plan();
  plan->p.a = p.a;
  return softmax_stream_plan(plan, error);
}

/* Bytes of the queries that the first launch makes; a multiple of 128. */
inline int64_t step_query_bytes(const step_params &p) {
  return p.a.N * p.a.H * p.a.D * static_cast<int64_t>(sizeof(bf16));
}

/* Refuses what a streamed step does not take. query: the argument with the queries; NULL: the first launch makes them.
 * Workspace: the queries, then what splits leave. */
inline assay_status plan_step_stream(const assay_call *call, const step_params &p, const attention_types &types,
                                     const char *query, int64_t *workspace, assay_error *error) {
  if (types.q != ASSAY_BF16)
    return assay_fail(error, ASSAY_ERR_UNSUPPORTED, "%s: found dtype %s, allowed bf16", query != NULL ? query : "qkv",
                      assay_dtype_name(types.q));
  ASSAY_TRY(expect_stream(call, p.a, error, query));
  *workspace = query != NULL ? 0 : step_query_bytes(p);
  gate_plan gate;
  softmax_plan softmax;
  if (p.softmax) {
    ASSAY_TRY(softmax_of_step(p, &softmax, error));
    *workspace += softmax.workspace;
  } else {
    gate_of_step(p, &gate);
    *workspace += gate.workspace;
  }
  return ASSAY_OK;
}

/* Source<bf16> is made from `rows`. */
template <template <class> class Source, class Rows>
assay_status launch_step_stream(step_params p, const attention_types &types, const Rows &rows, bool makes_queries,
                                assay_env *env, assay_error *error) {
  gate_plan gate;
  softmax_plan softmax;
  bf16 *const query = makes_queries ? static_cast<bf16 *>(env->workspace) : nullptr;
  char *const rest = static_cast<char *>(env->workspace) + (makes_queries ? step_query_bytes(p) : 0);
  if (p.softmax) {
    ASSAY_TRY(softmax_of_step(p, &softmax, error));
    softmax_stream_path(softmax.p, env, "stream softmax");
  } else {
    gate_of_step(p, &gate);
    gate_stream_path(gate.p, env, "stream gate");
  }
  if (p.a.N == 0) return ASSAY_OK;
  launch_options first = in_turn();
  first.followed = true;
  const launch_extent grid(p.a.N, p.a.H_kv + (makes_queries ? p.a.H : 0));
  const Source<bf16> source = {rows};
  ASSAY_TRY(stream_bf16::of(types, [&](auto, auto cached) {
    using KV = typename decltype(cached)::type;
    return ASSAY_LAUNCH_WITH(error, (append_token<bf16, KV, Source<bf16>>), grid, p.a.D, 0, first, env->stream, p,
                             source, query);
  }));
  attention_params &a = p.softmax ? softmax.p.a : gate.p.a;
  if (makes_queries) {
    a.q = query;
    a.q_row = static_cast<int64_t>(a.H) * a.D;
  }
  if (p.softmax) {
    softmax_stream_place(&softmax.p, rest);
    return softmax_stream_launch<stream_bf16>(softmax.p, types, env, error);
  }
  gate.p.partial = reinterpret_cast<float *>(rest);
  return gate_stream_launch<stream_bf16>(gate.p, types, env, error);
}

/* dtype | kv_dtype | layout | mode. */
#ifdef ASSAY_FEW_TYPES
#define STEP_STREAM_CLAIMS "bf16|same,e4m3|nhd,hnd|decode"
#else
#define STEP_STREAM_CLAIMS "bf16|same,e4m3,e5m2|nhd,hnd|decode"
#endif

} // namespace ASSAY_NS
#endif
