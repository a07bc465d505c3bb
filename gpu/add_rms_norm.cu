/* add_rms_norm.cu: res <- round(x + res), then rms_norm of what was stored. The kernel is norm_rows of
 * gpu/lib/norm.cuh. docs/kernels/add_rms_norm.md has the arithmetic. */
#include "gpu/lib/norm_vectors.cuh"

ASSAY_VARIANTS(add_rms_norm, NORM_VECTORS("add_rms_norm", false, true), NORM_VARIANTS("add_rms_norm", false, true))
