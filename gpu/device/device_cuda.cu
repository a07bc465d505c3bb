/* device_cuda.cu: the table of the CUDA device. It uses the other files of this folder, and none of them uses it. */
#include "gpu/device/device_cuda.h"

static void close_all(void) {
  assay_cuda_host::timing_close();
  assay_cuda_host::close_device();
}

static void *get_stream(void) {
  return assay_cuda_host::own_stream();
}

static void schedule(uint64_t) {}

extern "C" const assay_device *assay_device_cuda(void) {
  static const assay_device device = {"cuda",
                                      assay_cuda_host::open_device,
                                      close_all,
                                      assay_cuda_host::describe,
                                      assay_cuda_host::allocate,
                                      assay_cuda_host::release,
                                      assay_cuda_host::upload,
                                      assay_cuda_host::download,
                                      get_stream,
                                      assay_cuda_host::synchronize,
                                      schedule,
                                      assay_cuda_host::guarded_alloc,
                                      assay_cuda_host::guarded_release,
                                      assay_cuda_host::graph_capture_begin,
                                      assay_cuda_host::graph_capture_end,
                                      assay_cuda_host::graph_replay,
                                      assay_cuda_host::graph_release,
                                      assay_cuda_host::side_stream,
                                      assay_cuda_host::keep_busy,
                                      assay_cuda_host::side_synchronize,
                                      assay_cuda_host::copy_within,
                                      assay_cuda_host::compare,
                                      assay_cuda_host::allocate_host,
                                      assay_cuda_host::release_host,
                                      nullptr, /* late: launches overlap by themselves */
                                      nullptr, /* window: all blocks run */
                                      nullptr, /* note: a GPU notices nothing */
                                      &assay_cuda_host::timing,
                                      &assay_cuda_host::flow,
                                      &assay_cuda_host::door};
  return &device;
}
