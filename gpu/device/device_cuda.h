/* device_cuda.h: the parts of the CUDA device that have files of their own. Private to gpu/device. */
#ifndef ASSAY_GPU_DEVICE_DEVICE_CUDA_H
#define ASSAY_GPU_DEVICE_DEVICE_CUDA_H

#include <assay/device.h>

#include <cuda_runtime.h>

extern "C" const assay_device *assay_device_cuda(void);

namespace assay_cuda_host {

/* Returns what a failure means. Memory that the device lacks is no error of a kernel: other processes have it. */
inline assay_status status_of(cudaError_t code) {
  return code == cudaErrorMemoryAllocation ? ASSAY_ERR_MEMORY : ASSAY_ERR_DEVICE;
}

/* device_cuda_compare.cu. Sets *differ to 1 if a piece has other bytes in `a` than in `b`, and leaves it alone else.
 * `differ` is host memory that the device can write. The work is queued into `stream`. */
assay_status compare_pieces(const void *a, const void *b, const assay_piece *piece, int32_t count, int32_t *differ,
                            cudaStream_t stream, assay_error *error);

/* device_cuda_memory.cu. Takes the lock between allocation and capture: several threads may allocate at once, or one
 * thread may capture a graph. unlock() gives it back. */
void lock_for(bool capture);
void unlock(void);
/* Returns ASSAY_ERR_NO_DEVICE without a driver, without a device, and for another architecture. */
assay_status open_device(assay_error *error);
/* Returns the thread's stream; NULL if the device is not open. */
cudaStream_t own_stream(void);
/* The following do what assay_device says of its members. */
void close_device(void);
assay_status describe(assay_device_info *info, assay_error *error);
assay_status allocate(int64_t bytes, void **memory, assay_error *error);
void release(void *memory);
assay_status upload(void *to, const void *from, int64_t bytes, assay_error *error);
assay_status download(void *to, const void *from, int64_t bytes, assay_error *error);
assay_status copy_within(void *to, const void *from, int64_t bytes, assay_error *error);
assay_status synchronize(assay_error *error);
assay_status allocate_host(int64_t bytes, void **memory, assay_error *error);
void release_host(void *memory);
/* Compares the pieces of `a` and `b`. Where no memory is left for the answer, the answer is "not known". */
assay_status compare(const void *a, const void *b, const assay_piece *piece, int32_t count, int32_t *differ,
                     assay_error *error);

/* device_cuda_pages.cu. Allocates memory between unmapped addresses; *capacity is what is mapped. The release waits
 * until the device is done. */
assay_status guarded_alloc(int64_t bytes, void **memory, int64_t *capacity, assay_error *error);
void guarded_release(void *memory);

/* device_cuda_streams.cu */
assay_status graph_capture_begin(void **stream, assay_error *error);
assay_status graph_capture_end(void **graph, assay_error *error);
assay_status graph_replay(void *graph, assay_error *error);
void graph_release(void *graph);
assay_status side_stream(int32_t number, void **stream, assay_error *error);
assay_status keep_busy(void *stream, int32_t blocks, int32_t microseconds, assay_error *error);
assay_status side_synchronize(assay_error *error);

/* device_cuda_flow.cu */
extern const assay_device_flow flow;

/* device_cuda_door.cu */
extern const assay_device_door door;

/* device_cuda_time.cu. timing_close frees the memory and events that measuring has taken. */
extern const assay_device_timing timing;
void timing_close(void);

} // namespace assay_cuda_host

#endif
