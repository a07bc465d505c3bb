/* append_call.cuh: the parameters of every kernel of attention_append, filled once from a call, and the source of its
 * rows. */
#ifndef ASSAY_GPU_LIB_APPEND_CALL_CUH
#define ASSAY_GPU_LIB_APPEND_CALL_CUH

#include "gpu/lib/step.cuh"

namespace ASSAY_NS {

struct step_rows {
  new_rows q, k, v;
  int32_t D;
};

/* A source of rows as they are given. */
template <class Q> struct row_source {
  step_rows rows;
  __device__ __forceinline__ Q at(const new_rows &from, int64_t row, int32_t head, int32_t d) const {
    return *element_at<Q>(from.data, row * from.apart + static_cast<int64_t>(head) * rows.D + d);
  }
  __device__ __forceinline__ float q(int64_t row, int32_t head, int32_t d) const {
    return to_float(at(rows.q, row, head, d));
  }
  __device__ __forceinline__ Q k(int64_t row, int32_t head, int32_t d) const { return at(rows.k, row, head, d); }
  __device__ __forceinline__ Q v(int64_t row, int32_t head, int32_t d) const { return at(rows.v, row, head, d); }
};

/* The plan that a launcher reads from a call. */
struct append_plan {
  step_params p;
  step_rows rows;
  attention_types types;
  int64_t workspace; /* bytes */
};

inline assay_status append_read(const assay_call *call, append_plan *plan, assay_error *error) {
  *plan = append_plan();
  attention_params *const a = &plan->p.a;
  step_rows *const rows = &plan->rows;
  ASSAY_TRY(attention_read(call, a, &plan->types, error));
  ASSAY_TRY(read_new_rows(call, "k_new", plan->types.q, a->N, a->H_kv, a->D, &rows->k, error));
  ASSAY_TRY(read_new_rows(call, "v_new", plan->types.q, a->N, a->H_kv, a->D, &rows->v, error));
  ASSAY_TRY(read_step(call, plan->types, &plan->p, error));
  rows->q = {a->q, a->q_row};
  rows->D = a->D;
  return ASSAY_OK;
}

/* The operator, as step.cuh and step_stream.cuh ask for it. */
struct append_step {
  using plan = append_plan;
  template <class Q> using source = row_source<Q>;
  static constexpr const char *query = "q"; /* read as it is */
  static assay_status read(const assay_call *call, plan *made, assay_error *error) {
    return append_read(call, made, error);
  }
};

} // namespace ASSAY_NS
#endif
