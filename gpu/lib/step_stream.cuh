/* step_stream.cuh: one decode step that writes its own key and value to the cache and attends by the streamed walk. It
 * takes two launches: one for the step's token, one for attention over the cache as it is then. If there are splits
 * that no cluster merges, a third launch merges them. Where the rows are made by the step (mmha), the first launch also
 * rounds the queries to bf16 and leaves them in the workspace. */
#ifndef ASSAY_GPU_LIB_STEP_STREAM_CUH
#define ASSAY_GPU_LIB_STEP_STREAM_CUH

#include "gpu/lib/gate_stream.cuh"
#include "gpu/lib/softmax_stream_start.cuh"
#include "gpu/lib/step.cuh"

namespace ASSAY_NS {

/* Both operators that take a step launch the kernels of the attention's own streams. Where all are linked into one
 * program for simt, the attention's sources compile the kernels (gpu/CMakeLists.txt). */
#ifdef ASSAY_STEP_STREAMS_ONCE
template <>
assay_status gate_stream_launch<stream_bf16>(const gate_params &, const attention_types &, assay_env *, assay_error *);
template <>
assay_status softmax_stream_launch<stream_bf16>(const softmax_params &, const attention_types &, assay_env *,
                                                assay_error *);
#endif

/* ---- the step's token -------------------------------------------------------------------------------- */

/* append_token: writes the stored form of the step's k and v to their slots, and q if `query` is given. A pad row
 * writes nothing to the cache, and its rows are not read; its queries are 0. A slot outside the pool is not written.
 * Grid:   (N rows, H heads of q if wanted + H_kv). Block: D threads, one channel each. Shared: none.
 * Align:  by element, with neighbours side by side. Arch: any.
 * Limit:  bytes: a row of q, k and v is read, and the part that is stored is written. */
template <class Q, class KV, class Source>
__global__ void __launch_bounds__(attention_max_D) append_token(step_params p, Source source, Q *query) {
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

/* The streamed decodes of 64, 96 and 128 channels, as step_stream asks for them. */
struct step_forms {
  static assay_status expect(const assay_call *call, const step_params &p, const char *query, assay_error *error) {
    return expect_stream(call, p.a, error, query);
  }
  static assay_status plan(gate_plan *made, assay_error *error) {
    ASSAY_TRY(gate_expect_taps(made->p, error));
    gate_stream_plan(made);
    return ASSAY_OK;
  }
  static assay_status plan(softmax_plan *made, assay_error *error) { return softmax_stream_plan(made, error); }
  static void path(const gate_params &p, assay_env *env) { gate_stream_path(p, env, "stream gate"); }
  static void path(const softmax_plan &made, assay_env *env) { softmax_stream_path(made.p, env, "stream softmax"); }
  static assay_status launch(const gate_params &p, const attention_types &types, assay_env *env, assay_error *error) {
    return gate_stream_launch<stream_bf16>(p, types, env, error);
  }
  static assay_status launch(const softmax_params &p, const attention_types &types, assay_env *env,
                             assay_error *error) {
    return softmax_stream_launch<stream_bf16>(p, types, env, error);
  }
};

/* Fill the plan of the walk from a step. */
template <class Forms> assay_status gate_of_step(const step_params &p, gate_plan *plan, assay_error *error) {
  *plan = gate_plan();
  plan->p.a = p.a;
  plan->p.taps = p.taps;
  plan->p.gamma = p.gamma;
  plan->p.lo = p.lo;
  plan->p.hi = p.hi;
  plan->p.F = p.F;
  plan->p.relu_pre = p.relu_pre;
  return Forms::plan(plan, error);
}

template <class Forms>
assay_status softmax_of_step(const step_params &p, const attention_types &types, softmax_plan *plan,
                             assay_error *error) {
  *plan = softmax_plan();
  plan->p.a = p.a;
  plan->types = types;
  return Forms::plan(plan, error);
}

/* Returns the bytes of the queries that the first launch makes. They are a multiple of 32. */
inline int64_t step_query_bytes(const step_params &p) {
  return p.a.N * p.a.H * p.a.D * static_cast<int64_t>(sizeof(bf16));
}

/* The plan of the strategy below: the operator's own plan, and that of the walk, gate or softmax. */
template <class Plan> struct step_stream_plan : Plan {
  gate_plan gate;
  softmax_plan softmax;
};

/* The strategy `stream` (gpu/lib/variant.cuh) of a step operator: append_step or mmha_step. Step::query is the argument
 * with the queries; where it is NULL the first launch makes them. Forms: step_forms, or another struct like it.
 * Workspace: these queries, then what splits leave. */
template <class Step, class Forms = step_forms> struct step_stream {
  using plan = step_stream_plan<typename Step::plan>;
  static constexpr bool makes_queries = Step::query == nullptr;

  static assay_status read(const assay_call *call, plan *made, assay_error *error) {
    ASSAY_TRY(Step::read(call, made, error));
    const step_params &p = made->p;
    if (made->types.q != ASSAY_BF16)
      return assay_fail(error, ASSAY_ERR_UNSUPPORTED, "%s: found dtype %s, allowed bf16",
                        makes_queries ? "qkv" : Step::query, assay_dtype_name(made->types.q));
    ASSAY_TRY(Forms::expect(call, p, Step::query, error));
    if (p.softmax)
      ASSAY_TRY(softmax_of_step<Forms>(p, made->types, &made->softmax, error));
    else
      ASSAY_TRY(gate_of_step<Forms>(p, &made->gate, error));
    made->workspace =
        (makes_queries ? step_query_bytes(p) : 0) + (p.softmax ? made->softmax.workspace : made->gate.workspace);
    return ASSAY_OK;
  }

  static void path(const plan &made, assay_env *env) {
    if (made.p.softmax)
      Forms::path(made.softmax, env);
    else
      Forms::path(made.gate.p, env);
  }

  static assay_status start(plan &made, assay_env *env, assay_error *error) {
    const step_params &p = made.p;
    bf16 *const query = makes_queries ? static_cast<bf16 *>(env->workspace) : nullptr;
    char *const rest = static_cast<char *>(env->workspace) + (makes_queries ? step_query_bytes(p) : 0);
    launch_options first = in_turn();
    first.followed = true;
    const launch_extent grid(p.a.N, p.a.H_kv + (makes_queries ? p.a.H : 0));
    using Source = typename Step::template source<bf16>;
    const Source source = {made.rows};
    ASSAY_TRY(stream_bf16::of(made.types, [&](auto, auto cached) {
      using KV = typename decltype(cached)::type;
      return ASSAY_LAUNCH_WITH(error, (append_token<bf16, KV, Source>), grid, p.a.D, 0, first, env->stream, p, source,
                               query);
    }));
    attention_params &a = p.softmax ? made.softmax.p.a : made.gate.p.a;
    a.settled = p.a.settled;
    if (makes_queries) {
      a.q = query;
      a.q_row = static_cast<int64_t>(a.H) * a.D;
    }
    if (p.softmax) {
      softmax_stream_place(&made.softmax.p, rest);
      return Forms::launch(made.softmax.p, made.types, env, error);
    }
    made.gate.p.partial = reinterpret_cast<float *>(rest);
    return Forms::launch(made.gate.p, made.types, env, error);
  }
};

/* The claims, in the order dtype | kv_dtype | layout | mode. */
#ifdef ASSAY_FEW_TYPES
#define STEP_STREAM_CLAIMS "bf16|same,e4m3|nhd,hnd|decode"
#else
#define STEP_STREAM_CLAIMS "bf16|same,e4m3,e5m2|nhd,hnd|decode"
#endif

} // namespace ASSAY_NS
#endif
