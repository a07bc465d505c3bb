/* device_simt.cpp: the CPU as a device. Memory is the host's. A launch has run when it returns. Work that is put into
 * lanes runs in an order that may be chosen (flow.cpp). */
#include <stdlib.h>

#include <assay/device.h>

#include "simt/scheduler.h"

#if defined(__has_feature)
#if __has_feature(memory_sanitizer)
/* MemorySanitizer's own 77 would be taken for a device that is not present. */
extern "C" const char *__msan_default_options(void);
extern "C" const char *__msan_default_options(void) {
  return "exitcode=86:print_stats=0";
}
#endif
#endif

/* A static fact, like the count of a GPU. Variants may size their grids by it. */
static constexpr int32_t multiprocessors = 4;

static assay_status open_device(assay_error *) {
  (void)assay_simt_host_api();
  return ASSAY_OK;
}

static void close_device() {}

static assay_status describe(assay_device_info *info, assay_error *) {
  *info = assay_device_info{};
  info->multiprocessors = multiprocessors;
  (void)snprintf(info->name, sizeof info->name, "CPU");
  FILE *file = fopen("/proc/cpuinfo", "r");
  if (file == nullptr) return ASSAY_OK;
  char line[256];
  while (fgets(line, sizeof line, file) != nullptr) {
    const char *colon = strchr(line, ':');
    if (strncmp(line, "model name", 10) != 0 || colon == nullptr) continue;
    line[strcspn(line, "\n")] = '\0';
    (void)snprintf(info->name, sizeof info->name, "%.127s", colon + strspn(colon, ": \t"));
    break;
  }
  (void)fclose(file);
  return ASSAY_OK;
}

static assay_status allocate(int64_t bytes, void **memory, assay_error *error) {
  *memory = nullptr;
  ++assay_simt_host::waits.allocated;
  if (bytes < 0) return assay_fail(error, ASSAY_ERR_INPUT, "simt: alloc of %lld bytes", static_cast<long long>(bytes));
  /* Exactly `bytes`, so that AddressSanitizer sees the first byte after them. */
  if (posix_memalign(memory, 256, static_cast<size_t>(bytes > 0 ? bytes : 1)) == 0) return ASSAY_OK;
  *memory = nullptr;
  return assay_fail(error, ASSAY_ERR_MEMORY, "simt: alloc of %lld bytes", static_cast<long long>(bytes));
}

static void release(void *memory) {
  (void)assay_simt_host::flow_drain(nullptr);
  (void)assay_simt_host::launch_flush(nullptr);
  free(memory);
}

static assay_status copy(void *to, const void *from, int64_t bytes, assay_error *error) {
  assay_status status = assay_simt_host::flow_drain_own(error);
  if (status == ASSAY_OK) status = assay_simt_host::launch_flush(error);
  if (status != ASSAY_OK) return status;
  if (bytes > 0) memcpy(to, from, static_cast<size_t>(bytes));
  return ASSAY_OK;
}

static assay_status download(void *to, const void *from, int64_t bytes, assay_error *error) {
  ++assay_simt_host::waits.copied;
  return copy(to, from, bytes, error);
}

static assay_status upload(void *to, const void *from, int64_t bytes, assay_error *error) {
  ++assay_simt_host::waits.copied;
  if (!assay_simt_host::launch_is_late()) return copy(to, from, bytes, error);
  /* The upload comes after a launch that was put off, which runs now. Other uploads may still wait before this one. */
  const assay_status status = assay_simt_host::launch_settle(error);
  if (status != ASSAY_OK || assay_simt_host::upload_put_off(to, from, bytes)) return status;
  return copy(to, from, bytes, error);
}

static void *get_stream() {
  return nullptr;
}

static assay_status synchronize(assay_error *error) {
  ++assay_simt_host::waits.synchronized;
  const assay_status status = assay_simt_host::flow_drain_own(error);
  return status == ASSAY_OK ? assay_simt_host::launch_flush(error) : status;
}

extern "C" const assay_device *assay_device_simt(void) {
  static const assay_device device = {.name = "simt",
                                      .open = open_device,
                                      .close = close_device,
                                      .info = describe,
                                      .alloc = allocate,
                                      .release = release,
                                      .upload = upload,
                                      .download = download,
                                      .stream = get_stream,
                                      .synchronize = synchronize,
                                      .schedule = assay_simt_schedule,
                                      .alloc_guarded = assay_simt_host::guarded_alloc,
                                      .release_guarded = assay_simt_host::guarded_release,
                                      .graph_capture_begin = assay_simt_host::graph_capture_begin,
                                      .graph_capture_end = assay_simt_host::graph_capture_end,
                                      .graph_replay = assay_simt_host::graph_replay,
                                      .graph_release = assay_simt_host::graph_release,
                                      .side_stream = nullptr, /* a launch has run when it returns */
                                      .keep_busy = nullptr,
                                      .side_synchronize = nullptr,
                                      .copy = nullptr, /* its memory is the host's, which compares as fast */
                                      .compare = nullptr,
                                      .alloc_host = nullptr,
                                      .release_host = nullptr,
                                      .late = assay_simt_host::launch_late,
                                      .window = assay_simt_window,
                                      .note = assay_simt_host::launch_note,
                                      .timing = nullptr, /* the host's clock */
                                      .flow = &assay_simt_host::flow,
                                      .door = nullptr}; /* its memory is the host's */
  return &device;
}
