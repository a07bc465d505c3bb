/* launch_together.h: a launch whose blocks wait for each other. They start together, when there is room for all. A
 * block then never waits for one that other kernels of the device keep from starting.
 *
 *   status = launch_together(error, "kernel", kernel<float>, grid, block, shared_bytes, env->stream, arguments...);
 *
 * All blocks must fit at once. On cuda the launch is refused if they do not. */
#ifndef ASSAY_GPU_LIB_LAUNCH_TOGETHER_H
#define ASSAY_GPU_LIB_LAUNCH_TOGETHER_H

#include "gpu/lib/launch.h"

namespace ASSAY_NS {

#ifdef ASSAY_SIMT

template <class... P, class... A>
assay_status launch_together(assay_error *error, const char *name, void (*kernel)(P...), launch_extent grid,
                             launch_extent block, int64_t shared_bytes, void *stream, A... arguments) {
  launch_options options;
  options.resident = static_cast<int32_t>(grid.x);
  return launch_kernel_with(error, name, kernel, grid, block, shared_bytes, options, stream, arguments...);
}

#else

template <class... P, class... A>
assay_status launch_together(assay_error *error, const char *name, void (*kernel)(P...), launch_extent grid,
                             launch_extent block, int64_t shared_bytes, void *stream, A... arguments) {
  const assay_status status = launch_check(name, grid, block, shared_bytes, error);
  if (status != ASSAY_OK) return status;
  cudaError_t code = launch_allow_shared(reinterpret_cast<const void *>(kernel), shared_bytes);
  if (code == cudaSuccess) {
    std::tuple<P...> parameters(arguments...);
    std::apply(
        [&](P &...parameter) {
          void *pointers[] = {static_cast<void *>(&parameter)..., nullptr};
          cudaLaunchAttribute attribute = {};
          attribute.id = cudaLaunchAttributeCooperative;
          attribute.val.cooperative = 1;
          cudaLaunchConfig_t config = {};
          config.gridDim = dim3(static_cast<unsigned>(grid.x));
          config.blockDim = dim3(static_cast<unsigned>(block.x));
          config.dynamicSmemBytes = static_cast<size_t>(shared_bytes);
          config.stream = static_cast<cudaStream_t>(stream);
          config.attrs = &attribute;
          config.numAttrs = 1;
          code = cudaLaunchKernelExC(&config, reinterpret_cast<const void *>(kernel), pointers);
        },
        parameters);
  }
  const cudaError_t last = cudaGetLastError(); /* also clears the error for the next launch */
  if (code == cudaSuccess) code = last;
  if (code == cudaSuccess) return ASSAY_OK;
  return assay_fail(error, ASSAY_ERR_DEVICE, "launch of %s: %s", name, cudaGetErrorName(code));
}

#endif

} // namespace ASSAY_NS
#endif
