/* attention_append.cu: one decode step of attention that writes the step's key and value to the cache.
 *
 * One variant, `row_and_head`: one block per row and head, which sees the step's token in its stored form without
 * reading it back. The kernels are in gpu/lib/step.cuh; docs/kernels/attention_append.md has the arithmetic. */
#include "gpu/lib/append_call.cuh"
#include "gpu/lib/launch.h"

#define ROW_AND_HEAD                                                                                                   \
  ATTENTION_VARIANT("attention_append", "row_and_head", "one block a row and head, the step's token kept on chip",     \
                    "any", ROW_AND_HEAD_CLAIMS, step_contract, row_and_head<::ASSAY_NS::append_step>)

ASSAY_VARIANTS(attention_append, ROW_AND_HEAD)
