/* softmax_trees.cuh: the question that kernels of CUDA cores ask before they take rows in turn. */
#ifndef ASSAY_GPU_LIB_SOFTMAX_TREES_CUH
#define ASSAY_GPU_LIB_SOFTMAX_TREES_CUH

#include "gpu/lib/softmax_score.cuh"

namespace ASSAY_NS {

/* Returns whether rows have trees or masks. place_of then tells which keys a row sees. */
__device__ __forceinline__ bool has_trees(const softmax_params &p) {
  return p.mask != nullptr || p.parent != nullptr;
}

} // namespace ASSAY_NS
#endif
