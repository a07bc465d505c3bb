/* device_cuda.cu: memory and order on an NVIDIA GPU of compute capability 9.0. Device 0 is opened on first
 * use; all work goes through one non-blocking stream. */
#include <assay/device.h>

#include <cuda_runtime.h>

#include "gpu/lib/device_cuda.h"

static cudaStream_t stream; /* NULL: not open */
static cudaDeviceProp properties;

static assay_status fail_with(cudaError_t code, assay_status status, const char *doing, assay_error *error) {
  (void)cudaGetLastError();
  return assay_fail(error, status, "cuda: %s: %s (%s)", doing, cudaGetErrorName(code), cudaGetErrorString(code));
}

/* ASSAY_ERR_UNSUPPORTED: no driver, no device, or another architecture. */
static assay_status open_device(assay_error *error) {
  if (stream != nullptr) return ASSAY_OK;
  int count = 0;
  cudaError_t code = cudaGetDeviceCount(&count);
  if (code != cudaSuccess) return fail_with(code, ASSAY_ERR_UNSUPPORTED, "looking for a device", error);
  if (count < 1) return assay_fail(error, ASSAY_ERR_UNSUPPORTED, "cuda: no device found");
  code = cudaGetDeviceProperties(&properties, 0);
  if (code != cudaSuccess) return fail_with(code, ASSAY_ERR_UNSUPPORTED, "asking device 0 what it is", error);
  if (properties.major != 9 || properties.minor != 0)
    return assay_fail(error, ASSAY_ERR_UNSUPPORTED,
                      "cuda: device 0 is %s with compute capability %d.%d; the kernels are built for 9.0",
                      properties.name, properties.major, properties.minor);
  code = cudaSetDevice(0);
  if (code != cudaSuccess) return fail_with(code, ASSAY_ERR_DEVICE, "setting device 0", error);
  code = cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
  if (code != cudaSuccess) {
    stream = nullptr;
    return fail_with(code, ASSAY_ERR_DEVICE, "creating a stream", error);
  }
  return ASSAY_OK;
}

static void close_device(void) {
  if (stream != nullptr) (void)cudaStreamDestroy(stream);
  stream = nullptr;
}

static assay_status describe(assay_device_info *info, assay_error *error) {
  assay_status status = open_device(error);
  if (status != ASSAY_OK) return status;
  int driver = 0;
  const cudaError_t code = cudaDriverGetVersion(&driver);
  if (code != cudaSuccess) return fail_with(code, ASSAY_ERR_DEVICE, "asking for the driver's version", error);
  (void)snprintf(info->name, sizeof info->name, "%.127s", properties.name);
  (void)snprintf(info->driver, sizeof info->driver, "CUDA %d.%d", driver / 1000, driver % 1000 / 10);
  (void)snprintf(info->toolkit, sizeof info->toolkit, "%d.%d", CUDART_VERSION / 1000, CUDART_VERSION % 1000 / 10);
  /* The version users know, as in "580.159.04". */
  FILE *file = fopen("/sys/module/nvidia/version", "r");
  if (file != nullptr) {
    char version[64] = "";
    if (fscanf(file, "%63s", version) == 1) (void)snprintf(info->driver, sizeof info->driver, "%s", version);
    (void)fclose(file);
  }
  info->multiprocessors = properties.multiProcessorCount;
  return ASSAY_OK;
}

static assay_status allocate(int64_t bytes, void **memory, assay_error *error) {
  *memory = nullptr;
  assay_status status = open_device(error);
  if (status != ASSAY_OK) return status;
  if (bytes < 0) return assay_fail(error, ASSAY_ERR_INPUT, "cuda: alloc of %lld bytes", static_cast<long long>(bytes));
  /* cudaMalloc of 0 bytes gives NULL, which would read as "argument absent". */
  const cudaError_t code = cudaMalloc(memory, static_cast<size_t>(bytes > 0 ? bytes : 1));
  if (code == cudaSuccess) return ASSAY_OK;
  *memory = nullptr;
  char doing[64];
  (void)snprintf(doing, sizeof doing, "alloc of %lld bytes", static_cast<long long>(bytes));
  return fail_with(code, code == cudaErrorMemoryAllocation ? ASSAY_ERR_MEMORY : ASSAY_ERR_DEVICE, doing, error);
}

static void release(void *memory) {
  (void)cudaFree(memory);
}

static assay_status synchronize(assay_error *error) {
  assay_status status = open_device(error);
  if (status != ASSAY_OK) return status;
  const cudaError_t code = cudaStreamSynchronize(stream);
  return code == cudaSuccess ? ASSAY_OK : fail_with(code, ASSAY_ERR_DEVICE, "running kernels", error);
}

static assay_status copy(void *to, const void *from, int64_t bytes, cudaMemcpyKind kind, assay_error *error) {
  assay_status status = open_device(error);
  if (status != ASSAY_OK || bytes == 0) return status;
  const cudaError_t code = cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), kind, stream);
  return code == cudaSuccess ? ASSAY_OK : fail_with(code, ASSAY_ERR_DEVICE, "copying", error);
}

static assay_status upload(void *to, const void *from, int64_t bytes, assay_error *error) {
  return copy(to, from, bytes, cudaMemcpyHostToDevice, error);
}

static assay_status download(void *to, const void *from, int64_t bytes, assay_error *error) {
  return copy(to, from, bytes, cudaMemcpyDeviceToHost, error);
}

static void *get_stream(void) {
  return stream;
}

static void schedule(uint64_t) {}

extern "C" const assay_device *assay_device_cuda(void) {
  static const assay_device device = {"cuda",
                                      open_device,
                                      close_device,
                                      describe,
                                      allocate,
                                      release,
                                      upload,
                                      download,
                                      get_stream,
                                      synchronize,
                                      schedule,
                                      assay_cuda_host::guarded_alloc,
                                      assay_cuda_host::guarded_release,
                                      assay_cuda_host::graph_capture_begin,
                                      assay_cuda_host::graph_capture_end,
                                      assay_cuda_host::graph_replay,
                                      assay_cuda_host::graph_release,
                                      assay_cuda_host::side_stream,
                                      assay_cuda_host::keep_busy,
                                      assay_cuda_host::side_synchronize};
  return &device;
}
