/* prefill_variant.cuh: the launcher skeleton of the strategies that take ragged prompts: query_tile, mma and wgmma.
 *
 * An operator's file has a type with static members only, over the operator's own type (gate_operator,
 * softmax_operator), which has `plan` and `read`. For mma and wgmma:
 *
 *   plain, general               the weights of the kernels for plain calls, and for any call
 *   is_plain(params)             says whether a call is plain
 *   expect(params, dtype, error) refuses what the weights cannot do
 *   path(params, env)            writes the strategy and its sizes to env->path
 *
 * A schedule for them has:
 *
 *   expect(attention_params, types, dtype, error)  refuses calls that the schedule cannot run
 *   start<T, Weights>(params, env, error)          launches the kernel for the call's head size */
#ifndef ASSAY_GPU_LIB_PREFILL_VARIANT_CUH
#define ASSAY_GPU_LIB_PREFILL_VARIANT_CUH

#include "gpu/lib/attention.h"
#include "gpu/lib/variant.cuh"

namespace ASSAY_NS {

/* ---- refusals that the schedules share --------------------------------------------------------------- */

inline assay_status expect_prompts(const attention_params &a, assay_error *error) {
  if (a.cu_q != NULL) return ASSAY_OK;
  return assay_fail(error, ASSAY_ERR_UNSUPPORTED, "cu_q: found no data, allowed a tensor: a prefill of ragged rows");
}

/* Refuses other types than the schedule's in q, K and V. */
inline assay_status expect_storage(const attention_types &types, assay_dtype dtype, assay_error *error) {
  if (types.q == dtype && types.kv == dtype) return ASSAY_OK;
  return assay_fail(error, ASSAY_ERR_UNSUPPORTED, "k_cache: found dtype %s with q %s, allowed %s for both",
                    assay_dtype_name(types.kv), assay_dtype_name(types.q), assay_dtype_name(dtype));
}

/* Refuses layout x, whose V is not in rows. */
inline assay_status expect_value_rows(const attention_params &a, assay_error *error) {
  if (a.cache.v_channel == 1) return ASSAY_OK;
  return assay_fail(error, ASSAY_ERR_UNSUPPORTED, "layout: found x, allowed nhd, hnd");
}

/* Refuses rows of 16-bit elements that cannot be copied 16 bytes at a time. */
inline assay_status expect_rows_of_16(const attention_params &a, assay_error *error) {
  const paged_cache &cache = a.cache;
  const int64_t strides =
      a.q_row | cache.k_block | cache.k_head | cache.k_token | cache.v_block | cache.v_head | cache.v_token;
  const uintptr_t bases = reinterpret_cast<uintptr_t>(a.q) | reinterpret_cast<uintptr_t>(a.out) |
                          reinterpret_cast<uintptr_t>(cache.k) | reinterpret_cast<uintptr_t>(cache.v);
  if (strides % 8 == 0 && bases % 16 == 0) return ASSAY_OK;
  return assay_fail(error, ASSAY_ERR_UNSUPPORTED,
                    "q: found rows of q, K or V that do not begin at a multiple of 16 bytes, allowed those that do");
}

/* ---- mma and wgmma ------------------------------------------------------------------------------------ */

/* The strategy of an operator over a schedule, for q, K and V of type T. */
template <class Op, class Schedule, class T, assay_dtype dtype> struct prefill_strategy {
  using plan = typename Op::plan;
  static assay_status read(const assay_call *call, plan *made, assay_error *error) {
    ASSAY_TRY(Op::read(call, made, error));
    ASSAY_TRY(Schedule::expect(made->p.a, made->types, dtype, error));
    return Op::expect(made->p, dtype, error);
  }
  static void path(const plan &made, assay_env *env) { Op::path(made.p, env); }
  static assay_status start(plan &made, assay_env *env, assay_error *error) {
    if (Op::is_plain(made.p)) return Schedule::template start<T, typename Op::plain>(made.p, env, error);
    return Schedule::template start<T, typename Op::general>(made.p, env, error);
  }
};

/* Returns the contract of mma and wgmma. S is f32; weights, which are at most 1 or a common factor of it, are rounded
 * to the storage type `p`. Tail rows of V are multiplied by 0. */
constexpr assay_contract prefill_contract(assay_dtype p, double exp_ulp) {
  return {.p = p,
          .exp_ulp = exp_ulp,
          .qk_lanes = 1,
          .pv_lanes = 1,
          .zero_p_v = ASSAY_V_MULTIPLIED,
          .run_to_run = true,
          .renumbering = true,
          .permutation = true,
          .lanes = 1,
          .alone = true,
          .cut = tensor_core_terms};
}

/* A row of the variant table for prompts of the type T, whose dtype is `dtype`. Op and Schedule make the strategy. */
#define PREFILL_VARIANT(op, name, why, arch, T, dtype, exp_ulp, Op, Schedule)                                          \
  ATTENTION_VARIANT(op, name, why, arch, #T "|same|nhd,hnd|prefill,chunked,mixed", prefill_contract(dtype, exp_ulp),   \
                    prefill_strategy<::ASSAY_NS::Op, ::ASSAY_NS::Schedule, ::ASSAY_NS::T, dtype>)

/* Last in the file: the table with ROW(name, T, dtype) for each type. */
#ifdef ASSAY_FEW_TYPES
#define PREFILL_VARIANTS(stem, ROW, name) ASSAY_VARIANTS(stem, ROW(name, bf16, ASSAY_BF16))
#else
#define PREFILL_VARIANTS(stem, ROW, name)                                                                              \
  ASSAY_VARIANTS(stem, ROW(name, bf16, ASSAY_BF16), ROW(name "_f16", f16, ASSAY_F16))
#endif

} // namespace ASSAY_NS
#endif
