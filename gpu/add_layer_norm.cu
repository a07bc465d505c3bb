/* add_layer_norm.cu: res <- round(x + res), then layer_norm of what was stored. The kernel is norm_rows of
 * gpu/lib/norm.cuh. docs/kernels/add_layer_norm.md has the arithmetic. */
#include "gpu/lib/norm_vectors.cuh"

ASSAY_VARIANTS(add_layer_norm, NORM_VECTORS("add_layer_norm", true, true), NORM_VARIANTS("add_layer_norm", true, true))
