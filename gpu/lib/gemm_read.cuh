/* gemm_read.cuh: how the variants of `gemm` on Hopper's tensor cores read a call. Host code alone. */
#ifndef ASSAY_GPU_LIB_GEMM_READ_CUH
#define ASSAY_GPU_LIB_GEMM_READ_CUH

#include "gpu/lib/gemm_wgmma.cuh"

namespace ASSAY_NS {

struct gemm_plan {
  wide_params p;
  assay_dtype type;
};

/* Reads a call of `gemm`, and refuses it by the operator's table. Limits of a variant come after it. */
inline assay_status gemm_read(const assay_call *call, gemm_plan *plan, assay_error *error) {
  plain_call c;
  ASSAY_TRY(plain_read(call, &c, error));
  *plan = gemm_plan();
  plan->type = c.type("a");
  wide_params *const p = &plan->p;
  wide_read(c, "c", p);
  p->bias = c.data<const void>("bias");
  p->alpha = c.real("alpha");
  p->beta = c.real("beta");
  p->wide = c.type("c") != plan->type;
  p->quads = wide_quads(p->c, p->c_row, c.type("c"));
  return ASSAY_OK;
}

} // namespace ASSAY_NS

/* Makes a row of the variant table. `read` fills a gemm_plan or refuses the call; `sums` tells how it is summed. */
#define GEMM_VARIANT(name, why, contract, read, launch, sums)                                                          \
  {                                                                                                                    \
    sizeof(assay_variant), "gemm", name ASSAY_VARIANT_SUFFIX, why, ASSAY_DEVICE_NAME, "sm_90a", WIDE_TYPE_CLAIMS,      \
        ::ASSAY_NS::contract, ::ASSAY_NS::plain_supports<::ASSAY_NS::gemm_plan, ::ASSAY_NS::read>,                     \
        ::ASSAY_NS::plain_no_workspace<::ASSAY_NS::gemm_plan, ::ASSAY_NS::read>, ::ASSAY_NS::launch, ::ASSAY_NS::sums  \
  }

#endif
