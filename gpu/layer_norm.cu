/* layer_norm.cu: every row shifted to mean 0 and scaled to variance 1, then weight and bias. y = (x - mean) / sqrt(var
 * + eps) g + b, the variance from the centred row. The kernel is norm_rows of gpu/lib/norm.cuh.
 * docs/kernels/layer_norm.md has the arithmetic. */
#include "gpu/lib/norm_vectors.cuh"

ASSAY_VARIANTS(layer_norm, NORM_VECTORS("layer_norm", true, false), NORM_VARIANTS("layer_norm", true, false))
