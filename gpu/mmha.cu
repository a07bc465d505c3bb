/* mmha.cu: a decode step on the fused projection: bias, rotation of q and k, append, attention.
 *
 * One variant, `row_and_head`: one block per row and head, which makes its own q and the group's k and v from qkv. The
 * kernels are in gpu/lib/step.cuh; docs/kernels/mmha.md has the arithmetic. */
#include "gpu/lib/launch.h"
#include "gpu/lib/mmha_call.cuh"

#define ROW_AND_HEAD                                                                                                   \
  ATTENTION_VARIANT("mmha", "row_and_head", "one block a row and head, from the projection to the result", "any",      \
                    ROW_AND_HEAD_CLAIMS, step_contract, row_and_head<::ASSAY_NS::mmha_step>)

ASSAY_VARIANTS(mmha, ROW_AND_HEAD)
