/* rms_norm.cu: divides every row by its root mean square, then multiplies it by a weight. y = round(x / sqrt(mean(x^2)
 * + eps)) g. The kernel is norm_rows of gpu/lib/norm.cuh. docs/kernels/rms_norm.md has the arithmetic. */
#include "gpu/lib/norm_vectors.cuh"

ASSAY_VARIANTS(rms_norm, NORM_VECTORS("rms_norm", false, false), NORM_VARIANTS("rms_norm", false, false))
