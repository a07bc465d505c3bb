/* attention_append.cu: one decode step of attention that writes the step's key and value to the cache.
 *
 * One variant: a block a row and head, which sees the step's token in its stored form without reading it back
 * (row_and_head). The kernels are those of gpu/lib/step.cuh; docs/kernels/attention_append.md has the arithmetic. */
#include "gpu/lib/launch.h"
#include "gpu/lib/step.cuh"

namespace ASSAY_NS {
namespace {

struct step_rows {
  new_rows q, k, v;
  int32_t D;
};

/* Rows as they are. */
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

struct append_plan {
  step_params p;
  step_rows rows;
  attention_types types;
};

assay_status read_call(const assay_call *call, append_plan *plan, assay_error *error) {
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

assay_status supports(const assay_call *call, assay_error *error) {
  append_plan plan;
  return read_call(call, &plan, error);
}

assay_status workspace(const assay_call *call, int64_t *bytes, assay_error *error) {
  *bytes = 0;
  return supports(call, error);
}

assay_status launch(const assay_call *call, assay_env *env, assay_error *error) {
  append_plan plan;
  ASSAY_TRY(read_call(call, &plan, error));
  return launch_step<row_source>(plan.p, plan.types, plan.rows, env, error);
}

} // namespace
} // namespace ASSAY_NS

#define ROW_AND_HEAD                                                                                                   \
  {                                                                                                                    \
    sizeof(assay_variant), "attention_append", "row_and_head" ASSAY_VARIANT_SUFFIX,                                    \
        "one block a row and head, the step's token kept on chip", ASSAY_DEVICE_NAME, "any",                           \
        ASSAY_TYPE_CLAIMS "|nhd,hnd,x|decode", ::ASSAY_NS::step_contract, ::ASSAY_NS::supports, ::ASSAY_NS::workspace, \
        ::ASSAY_NS::launch                                                                                             \
  }

ASSAY_VARIANTS(attention_append, ROW_AND_HEAD)
