/* device_cuda.h: the parts of the CUDA device that stand in files of their own. */
#ifndef ASSAY_GPU_LIB_DEVICE_CUDA_H
#define ASSAY_GPU_LIB_DEVICE_CUDA_H

#include <assay/device.h>

extern "C" const assay_device *assay_device_cuda(void);

namespace assay_cuda_host {

/* device_cuda.cu: several threads may allocate at once, or one may capture. */
void lock_for(bool capture);
void unlock(void);

/* device_cuda_compare.cu. differ: memory of the host that the device can write; set to 1 or left alone. */
assay_status compare_pieces(const void *a, const void *b, const assay_piece *piece, int32_t count, int32_t *differ,
                            assay_error *error);

/* device_cuda_pages.cu */
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

/* device_cuda_time.cu. timing_close: gives back what measuring has taken. */
extern const assay_device_timing timing;
void timing_close(void);

} // namespace assay_cuda_host

#endif
