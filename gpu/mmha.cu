/* mmha.cu: a decode step on the fused projection: bias, rotation of q and k, append, attention.
 *
 * One variant: a block a row and head, which makes its own q and the group's k and v from qkv (row_and_head). The
 * kernels are those of gpu/lib/step.cuh; docs/kernels/mmha.md has the arithmetic. */
#include "gpu/lib/launch.h"
#include "gpu/lib/mmha_call.cuh"

namespace ASSAY_NS {
namespace {

assay_status supports(const assay_call *call, assay_error *error) {
  mmha_plan plan;
  return mmha_read(call, &plan, error);
}

assay_status workspace(const assay_call *call, int64_t *bytes, assay_error *error) {
  *bytes = 0;
  return supports(call, error);
}

assay_status launch(const assay_call *call, assay_env *env, assay_error *error) {
  mmha_plan plan;
  ASSAY_TRY(mmha_read(call, &plan, error));
  return launch_step<fused_source>(plan.p, plan.types, plan.rows, env, error);
}

} // namespace
} // namespace ASSAY_NS

#define ROW_AND_HEAD                                                                                                   \
  {                                                                                                                    \
    sizeof(assay_variant), "mmha", "row_and_head" ASSAY_VARIANT_SUFFIX,                                                \
        "one block a row and head, from the projection to the result", ASSAY_DEVICE_NAME, "any",                       \
        ASSAY_TYPE_CLAIMS "|nhd,hnd,x|decode", ::ASSAY_NS::step_contract, ::ASSAY_NS::supports, ::ASSAY_NS::workspace, \
        ::ASSAY_NS::launch                                                                                             \
  }

ASSAY_VARIANTS(mmha, ROW_AND_HEAD)
