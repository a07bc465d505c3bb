/* gate_call.h: the parameters of every kernel of gate_attention, filled once from a call. */
#ifndef ASSAY_GPU_LIB_GATE_CALL_H
#define ASSAY_GPU_LIB_GATE_CALL_H

#include "gpu/lib/attention.h"
#include "gpu/lib/schedules.cuh"

namespace ASSAY_NS {

constexpr int max_taps = 8;

struct gate_params {
  attention_params a;
  const float *taps, *gamma;
  float *partial; /* split_keys: [N, H, splits, D] */
  float lo, hi;
  int32_t F, splits;
  int32_t cluster; /* stream: thread blocks per cluster, which merges the splits; 1: none */
  bool relu_pre;
};

using gate_plan = attention_plan<gate_params>;

inline assay_status gate_read(const assay_call *call, gate_plan *plan, assay_error *error) {
  const void *taps, *gamma;
  double lo, hi;
  int64_t relu_pre;
  *plan = gate_plan();
  gate_params *const p = &plan->p;
  ASSAY_TRY(attention_read(call, &p->a, &plan->types, error));
  ASSAY_TRY(expect_types(plan->types.q, plan->types.kv, error));
  const assay_tensor *const tensor = named_tensor(call, "taps");
  const int64_t F = tensor != NULL && tensor->data != NULL ? tensor->shape[0] : 1; /* absent: refused below */
  ASSAY_TRY(expect_range("F", F, 1, max_taps, 1, error));
  ASSAY_TRY(attention_vector(call, "taps", ASSAY_F32, F, false, &taps, error));
  ASSAY_TRY(attention_vector(call, "gamma", ASSAY_F32, p->a.H, false, &gamma, error));
  ASSAY_TRY(attention_real(call, "lo", 0.0, 3e38, &lo, error));
  ASSAY_TRY(attention_real(call, "hi", lo, 3e38, &hi, error));
  ASSAY_TRY(attention_integer(call, "relu_pre", 0, 1, &relu_pre, error));
  p->taps = static_cast<const float *>(taps);
  p->gamma = static_cast<const float *>(gamma);
  p->F = static_cast<int32_t>(F);
  p->lo = static_cast<float>(lo);
  p->hi = static_cast<float>(hi);
  p->relu_pre = relu_pre != 0;
  return ASSAY_OK;
}

/* The part that all strategies of the operator have in common. */
struct gate_operator {
  using plan = gate_plan;
  static assay_status read(const assay_call *call, plan *made, assay_error *error) {
    return gate_read(call, made, error);
  }
};

/* Refuses bounds of p / gamma that the type which p / gamma is rounded to does not have. */
inline assay_status gate_expect_bounds(const gate_params &p, assay_dtype dtype, assay_error *error) {
  const float most = fmaxf(fabsf(p.lo), fabsf(p.hi));
  if (dtype != ASSAY_F16 || most <= 65504.0f) return ASSAY_OK;
  return assay_fail(error, ASSAY_ERR_UNSUPPORTED, "lo, hi: found %.9g, allowed up to 65504, the largest f16",
                    static_cast<double>(most));
}

} // namespace ASSAY_NS
#endif
