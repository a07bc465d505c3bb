/* device_cuda_door.cu: work around calls of other people's code, in the stream of the call. */
#include <cuda_runtime.h>

#include "gpu/device/device_cuda.h"

namespace assay_cuda_host {

constexpr int scale_threads = 256, scale_blocks = 1024;

/* scale_rounded: to[i] = from[i] · factor in f64, rounded once. Grid: any. Block: scale_threads. Shared: none. Arch:
 * any. Limit: HBM, every number of both once. */
static __global__ void __launch_bounds__(scale_threads)
    scale_rounded(float *to, const float *from, int64_t count, double factor) {
  const int64_t threads = static_cast<int64_t>(gridDim.x) * scale_threads;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * scale_threads + threadIdx.x; i < count; i += threads)
    to[i] = static_cast<float>(from[i] * factor);
}

static assay_status answer(cudaError_t code, const char *doing, assay_error *error) {
  if (code == cudaSuccess) return ASSAY_OK;
  (void)cudaGetLastError(); /* else the next launch on this thread seems to fail */
  return assay_fail(error, status_of(code), "cuda: %s: %s (%s)", doing, cudaGetErrorName(code),
                    cudaGetErrorString(code));
}

/* Rows that lie further apart than so many bytes are copied one by one. */
constexpr int64_t most_pitch = INT64_C(1) << 26;

/* Copies rows. A copy in two dimensions has pitches up to 2^31 - 1 bytes. It also refuses rows of a huge range of which
 * only parts have memory, whatever their pitch. */
static assay_status copy_rows(void *stream, const assay_device_rows *rows, assay_error *error) {
  const size_t width = static_cast<size_t>(rows->width), count = static_cast<size_t>(rows->count);
  if (count == 1 || rows->to_pitch > most_pitch || rows->from_pitch > most_pitch) {
    assay_status status = ASSAY_OK;
    for (int64_t r = 0; r < rows->count && status == ASSAY_OK; ++r)
      status = answer(cudaMemcpyAsync(static_cast<char *>(rows->to) + r * rows->to_pitch,
                                      static_cast<const char *>(rows->from) + r * rows->from_pitch, width,
                                      cudaMemcpyDeviceToDevice, static_cast<cudaStream_t>(stream)),
                      "copying a row", error);
    return status;
  }
  return answer(cudaMemcpy2DAsync(rows->to, static_cast<size_t>(rows->to_pitch), rows->from,
                                  static_cast<size_t>(rows->from_pitch), width, count, cudaMemcpyDeviceToDevice,
                                  static_cast<cudaStream_t>(stream)),
                "copying rows", error);
}

static assay_status scale(void *stream, float *to, const float *from, int64_t count, double factor,
                          assay_error *error) {
  const int64_t blocks = (count + scale_threads - 1) / scale_threads;
  if (count == 0) return ASSAY_OK;
  scale_rounded<<<static_cast<unsigned>(blocks < scale_blocks ? blocks : scale_blocks), scale_threads, 0,
                  static_cast<cudaStream_t>(stream)>>>(to, from, count, factor);
  return answer(cudaGetLastError(), "scaling", error);
}

const assay_device_door door = {copy_rows, scale};

} // namespace assay_cuda_host
