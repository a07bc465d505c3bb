/* add_uclip_norm.cu: res <- round(x + res), then uclip_norm of what was stored. The kernel is uclip_quads of
 * gpu/lib/uclip.cuh. docs/kernels/add_uclip_norm.md has the arithmetic. */
#include "gpu/lib/uclip.cuh"

ASSAY_VARIANTS(add_uclip_norm, UCLIP_VECTORS("add_uclip_norm", true), UCLIP_VARIANT("add_uclip_norm", true))
