/* attention_append.cu: one decode step of attention that writes the step's key and value to the cache.
 *
 * One variant: a block a row and head, which sees the step's token in its stored form without reading it back
 * (row_and_head). The kernels are those of gpu/lib/step.cuh; docs/kernels/attention_append.md has the arithmetic. */
#include "gpu/lib/append_call.cuh"
#include "gpu/lib/launch.h"

namespace ASSAY_NS {
namespace {

assay_status supports(const assay_call *call, assay_error *error) {
  append_plan plan;
  return append_read(call, &plan, error);
}

assay_status workspace(const assay_call *call, int64_t *bytes, assay_error *error) {
  *bytes = 0;
  return supports(call, error);
}

assay_status launch(const assay_call *call, assay_env *env, assay_error *error) {
  append_plan plan;
  ASSAY_TRY(append_read(call, &plan, error));
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
