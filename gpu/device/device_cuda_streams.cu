/* device_cuda_streams.cu: graphs, further streams besides the device's own, and work that keeps the GPU busy. */
#include <cuda_runtime.h>

#include "gpu/device/device_cuda.h"

namespace assay_cuda_host {

constexpr int busy_threads = 256, busy_words = 1 << 14; /* 64 KiB per block */
constexpr int32_t busy_blocks_max = 1024;

/* Each thread has its own. */
static thread_local cudaStream_t capture_stream; /* default flags: ordered with the legacy default stream */
static thread_local cudaStream_t side[3];        /* non-blocking; the last one is for work that keeps the device busy */
static thread_local unsigned *busy_memory;       /* [blocks][busy_words] */
static thread_local int32_t busy_blocks, clock_khz = 0; /* busy_blocks: the blocks for which busy_memory has room */

static assay_status fail_with(cudaError_t code, const char *doing, assay_error *error) {
  (void)cudaGetLastError();
  return assay_fail(error, status_of(code), "cuda: %s: %s (%s)", doing, cudaGetErrorName(code),
                    cudaGetErrorString(code));
}

/* ---- graphs ----------------------------------------------------------------------------------------- */

/* The capture mode is thread-local: it watches what the launcher does on this thread. The launcher has no part in what
 * other threads do meanwhile. */

assay_status graph_capture_begin(void **stream, assay_error *error) {
  const assay_status status = open_device(error);
  if (status != ASSAY_OK) return status;
  cudaError_t code = cudaSuccess;
  lock_for(true);
  if (capture_stream == nullptr) code = cudaStreamCreate(&capture_stream);
  if (code == cudaSuccess) code = cudaStreamBeginCapture(capture_stream, cudaStreamCaptureModeThreadLocal);
  *stream = capture_stream;
  if (code == cudaSuccess) return ASSAY_OK;
  unlock();
  return fail_with(code, "begin of a capture", error);
}

assay_status graph_capture_end(void **graph, assay_error *error) {
  cudaGraph_t captured = nullptr;
  cudaGraphExec_t ready = nullptr;
  *graph = nullptr;
  cudaError_t code = cudaStreamEndCapture(capture_stream, &captured);
  const bool whole = code == cudaSuccess && captured != nullptr;
  unlock();
  if (whole) {
    lock_for(false);
    code = cudaGraphInstantiate(&ready, captured, 0);
    (void)cudaGraphDestroy(captured);
    unlock();
  }
  if (!whole)
    return fail_with(code != cudaSuccess ? code : cudaErrorStreamCaptureInvalidated, "end of a capture", error);
  if (code != cudaSuccess) return fail_with(code, "instantiating a graph", error);
  *graph = ready;
  return ASSAY_OK;
}

assay_status graph_replay(void *graph, assay_error *error) {
  const cudaError_t code = cudaGraphLaunch(static_cast<cudaGraphExec_t>(graph), own_stream());
  return code == cudaSuccess ? ASSAY_OK : fail_with(code, "launching a graph", error);
}

void graph_release(void *graph) {
  lock_for(false);
  if (graph != nullptr) (void)cudaGraphExecDestroy(static_cast<cudaGraphExec_t>(graph));
  unlock();
}

/* ---- streams ---------------------------------------------------------------------------------------- */

static assay_status open_side(int32_t number, assay_error *error) {
  const assay_status status = open_device(error);
  if (status != ASSAY_OK || side[number] != nullptr) return status;
  lock_for(false);
  const cudaError_t code = cudaStreamCreateWithFlags(&side[number], cudaStreamNonBlocking);
  unlock();
  if (code == cudaSuccess) return ASSAY_OK;
  side[number] = nullptr;
  return fail_with(code, "creating a stream", error);
}

assay_status side_stream(int32_t number, void **stream, assay_error *error) {
  *stream = nullptr;
  if (number < 0 || number > 1)
    return assay_fail(error, ASSAY_ERR_INPUT, "cuda: side stream: found %d, allowed 0, 1", number);
  const assay_status status = open_side(number, error);
  if (status == ASSAY_OK) *stream = side[number];
  return status;
}

/* stay_busy: writes its own memory until `cycles` of its multiprocessor's clock are over.
 * Grid: any. Block: busy_threads. Shared: none. Arch: any. Limit: L2, one word per thread and turn. */
static __global__ void __launch_bounds__(busy_threads) stay_busy(unsigned *memory, long long cycles) {
  const long long begin = clock64();
  unsigned *own = memory + static_cast<size_t>(blockIdx.x) * busy_words;
  unsigned turn = 0;
  do {
    for (int i = threadIdx.x; i < busy_words; i += busy_threads * 16)
      own[i] += ++turn;
  } while (clock64() - begin < cycles);
}

assay_status keep_busy(void *stream, int32_t blocks, int32_t microseconds, assay_error *error) {
  if (blocks < 1 || blocks > busy_blocks_max)
    return assay_fail(error, ASSAY_ERR_INPUT, "cuda: busy blocks: found %d, allowed 1 to %d", blocks, busy_blocks_max);
  const assay_status status = open_side(2, error);
  if (status != ASSAY_OK) return status;
  cudaError_t code = cudaSuccess;
  if (clock_khz == 0) code = cudaDeviceGetAttribute(&clock_khz, cudaDevAttrClockRate, 0);
  if (code == cudaSuccess && busy_blocks < blocks) {
    lock_for(false);
    (void)cudaFree(busy_memory);
    busy_memory = nullptr;
    busy_blocks = 0;
    const size_t bytes = static_cast<size_t>(blocks) * busy_words * sizeof *busy_memory;
    code = cudaMalloc(&busy_memory, bytes);
    unlock();
    /* stay_busy reads the words it adds to. Without this memset an initcheck of everything reports them, millions of
     * times. */
    if (code == cudaSuccess) code = cudaMemsetAsync(busy_memory, 0, bytes, side[2]);
    if (code == cudaSuccess) code = cudaStreamSynchronize(side[2]);
    if (code == cudaSuccess) busy_blocks = blocks;
  }
  if (code != cudaSuccess) return fail_with(code, "preparing busy work", error);
  const long long cycles = static_cast<long long>(microseconds) * clock_khz / 1000;
  stay_busy<<<blocks, busy_threads, 0, stream != nullptr ? static_cast<cudaStream_t>(stream) : side[2]>>>(busy_memory,
                                                                                                          cycles);
  code = cudaGetLastError();
  return code == cudaSuccess ? ASSAY_OK : fail_with(code, "launching busy work", error);
}

assay_status side_synchronize(assay_error *error) {
  cudaError_t code = cudaSuccess;
  for (int i = 0; i < 3 && code == cudaSuccess; ++i)
    if (side[i] != nullptr) code = cudaStreamSynchronize(side[i]);
  return code == cudaSuccess ? ASSAY_OK : fail_with(code, "running kernels on several streams", error);
}

} // namespace assay_cuda_host
