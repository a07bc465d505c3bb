/* layer_norm.cu: shifts every row to mean 0, scales it to variance 1, then applies weight and bias. y = (x - mean) /
 * sqrt(var
 * + eps) g + b, the variance from the centred row. The kernel is norm_rows of gpu/lib/norm.cuh.
 * docs/kernels/layer_norm.md has the arithmetic. */
#include "gpu/lib/norm_vectors.cuh"

ASSAY_VARIANTS(layer_norm, NORM_VECTORS("layer_norm", true, false), NORM_VARIANTS("layer_norm", true, false))
