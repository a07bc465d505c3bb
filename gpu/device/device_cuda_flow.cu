/* device_cuda_flow.cu: lanes of work are streams, marks are events. Each thread has its own, made on first use. */
#include <cuda_runtime.h>

#include "gpu/device/device_cuda.h"

namespace assay_cuda_host {

static thread_local cudaStream_t beside[ASSAY_LANES]; /* the own lane is the device's stream */
static thread_local cudaEvent_t event[ASSAY_MARKS];

static assay_status fail_with(cudaError_t code, const char *doing, assay_error *error) {
  (void)cudaGetLastError();
  return assay_fail(error, status_of(code), "cuda: %s: %s (%s)", doing, cudaGetErrorName(code),
                    cudaGetErrorString(code));
}

static assay_status stream_of(assay_lane lane, cudaStream_t *stream, assay_error *error) {
  const assay_status status = open_device(error);
  if (status != ASSAY_OK) return status;
  if (lane == ASSAY_LANE_OWN) {
    *stream = own_stream();
    return ASSAY_OK;
  }
  if (beside[lane] == nullptr) {
    lock_for(false);
    const cudaError_t code = cudaStreamCreateWithFlags(&beside[lane], cudaStreamNonBlocking);
    unlock();
    if (code != cudaSuccess) beside[lane] = nullptr;
    if (code != cudaSuccess) return fail_with(code, "creating a stream", error);
  }
  *stream = beside[lane];
  return ASSAY_OK;
}

static assay_status flow_copy(assay_lane lane, void *to, const void *from, int64_t bytes, assay_error *error) {
  cudaStream_t stream = nullptr;
  const assay_status status = stream_of(lane, &stream, error);
  if (status != ASSAY_OK || bytes == 0) return status;
  const cudaMemcpyKind kind = lane == ASSAY_LANE_UP ? cudaMemcpyHostToDevice : cudaMemcpyDeviceToHost;
  const cudaError_t code = cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), kind, stream);
  return code == cudaSuccess ? ASSAY_OK : fail_with(code, "copying in a lane", error);
}

static assay_status flow_mark(assay_lane lane, int32_t number, assay_error *error) {
  cudaStream_t stream = nullptr;
  const assay_status status = stream_of(lane, &stream, error);
  if (status != ASSAY_OK) return status;
  cudaError_t code = cudaSuccess;
  if (event[number] == nullptr) code = cudaEventCreateWithFlags(&event[number], cudaEventDisableTiming);
  if (code == cudaSuccess) code = cudaEventRecord(event[number], stream);
  return code == cudaSuccess ? ASSAY_OK : fail_with(code, "setting a mark", error);
}

static assay_status flow_after(assay_lane lane, int32_t number, assay_error *error) {
  cudaStream_t stream = nullptr;
  const assay_status status = stream_of(lane, &stream, error);
  if (status != ASSAY_OK || event[number] == nullptr) return status;
  const cudaError_t code = cudaStreamWaitEvent(stream, event[number], 0);
  return code == cudaSuccess ? ASSAY_OK : fail_with(code, "waiting for a mark in a lane", error);
}

static assay_status flow_reached(int32_t number, bool wait, bool *reached, assay_error *error) {
  *reached = true;
  if (event[number] == nullptr) return ASSAY_OK;
  const cudaError_t code = wait ? cudaEventSynchronize(event[number]) : cudaEventQuery(event[number]);
  *reached = code == cudaSuccess;
  if (code == cudaSuccess) return ASSAY_OK;
  if (code != cudaErrorNotReady) return fail_with(code, "waiting for a mark", error);
  (void)cudaGetLastError();
  return ASSAY_OK;
}

static void flow_lag(uint32_t) {}

const assay_device_flow flow = {graph_replay, flow_copy, flow_mark, flow_after, flow_reached, flow_lag, nullptr};

} // namespace assay_cuda_host
