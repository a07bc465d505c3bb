/* uclip_norm.cu: y = gamma clip(alpha x, -1, 1) + beta, element by element. The kernel is uclip_quads of
 * gpu/lib/uclip.cuh. docs/kernels/uclip_norm.md has the arithmetic. */
#include "gpu/lib/uclip.cuh"

ASSAY_VARIANTS(uclip_norm, UCLIP_VECTORS("uclip_norm", false), UCLIP_VARIANT("uclip_norm", false))
