/* device_cuda_memory.cu: memory and order on an NVIDIA GPU of compute capability 9.0.
 *
 * Device 0 is opened on first use. All work of a thread goes through one non-blocking stream of its own, so that
 * several threads keep the device busy. While one thread captures a graph, the others may not allocate. */
#include <assay/device.h>

#include <cuda_runtime.h>
#include <pthread.h>
#include <string.h>

#include "gpu/device/device_cuda.h"

namespace assay_cuda_host {

static pthread_rwlock_t capture_lock = PTHREAD_RWLOCK_INITIALIZER;

void lock_for(bool capture) {
  (void)(capture ? pthread_rwlock_wrlock(&capture_lock) : pthread_rwlock_rdlock(&capture_lock));
}
void unlock(void) {
  (void)pthread_rwlock_unlock(&capture_lock);
}

/* A guard against captures: no thread captures a graph while one lives, because an allocation may wait for the whole
 * device. */
struct no_capture {
  no_capture() { lock_for(false); }
  ~no_capture() { unlock(); }
};

static thread_local cudaStream_t stream; /* NULL: not open */
static thread_local cudaDeviceProp properties;

/* Copies go through pinned memory, so that they neither wait nor hold up the caller. The bytes [0, staged) are under
 * way until the next synchronize(), which hands out the downloads among them. A copy that does not fit goes directly.
 */
enum { STAGING_BYTES = 8 << 20, STAGING_ALIGNMENT = 256, MAX_DOWNLOADS = 64, MAX_PINNED = 256 };
static thread_local unsigned char *staging; /* NULL: no pinned memory could be had */
static thread_local int64_t staged;
static thread_local struct {
  void *to;
  const void *from;
  size_t bytes;
} downloads[MAX_DOWNLOADS];
static thread_local int download_count;

/* Host memory that the device copies from in place. */
static thread_local struct {
  unsigned char *begin;
  int64_t bytes;
} pinned[MAX_PINNED];

static bool is_pinned(const void *memory, int64_t bytes) {
  const uintptr_t from = reinterpret_cast<uintptr_t>(memory);
  for (int i = 0; i < MAX_PINNED; ++i) {
    const uintptr_t begin = reinterpret_cast<uintptr_t>(pinned[i].begin);
    if (begin != 0 && from >= begin &&
        from + static_cast<uintptr_t>(bytes) <= begin + static_cast<uintptr_t>(pinned[i].bytes))
      return true;
  }
  return false;
}

/* Returns room for `bytes` until the next synchronize(), or NULL. */
static unsigned char *stage(int64_t bytes) {
  if (staging == nullptr || bytes > STAGING_BYTES - staged) return nullptr;
  unsigned char *room = staging + staged;
  staged += (bytes + STAGING_ALIGNMENT - 1) / STAGING_ALIGNMENT * STAGING_ALIGNMENT;
  return room;
}

static void forget_stage(void) {
  staged = 0;
  download_count = 0;
}

static assay_status fail_with(cudaError_t code, assay_status status, const char *doing, assay_error *error) {
  (void)cudaGetLastError();
  return assay_fail(error, status, "cuda: %s: %s (%s)", doing, cudaGetErrorName(code), cudaGetErrorString(code));
}

assay_status open_device(assay_error *error) {
  if (stream != nullptr) return ASSAY_OK;
  const no_capture lock;
  int count = 0;
  cudaError_t code = cudaGetDeviceCount(&count);
  if (code != cudaSuccess) return fail_with(code, ASSAY_ERR_NO_DEVICE, "looking for a device", error);
  if (count < 1) return assay_fail(error, ASSAY_ERR_NO_DEVICE, "cuda: no device found");
  code = cudaGetDeviceProperties(&properties, 0);
  if (code != cudaSuccess) return fail_with(code, ASSAY_ERR_NO_DEVICE, "asking device 0 what it is", error);
  if (properties.major != 9 || properties.minor != 0)
    return assay_fail(error, ASSAY_ERR_NO_DEVICE,
                      "cuda: device 0 is %s with compute capability %d.%d; the kernels are built for 9.0",
                      properties.name, properties.major, properties.minor);
  code = cudaSetDevice(0);
  if (code != cudaSuccess) return fail_with(code, status_of(code), "setting device 0", error);
  code = cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
  if (code != cudaSuccess) {
    stream = nullptr;
    return fail_with(code, status_of(code), "creating a stream", error);
  }
  void *memory = nullptr;
  if (cudaHostAlloc(&memory, STAGING_BYTES, cudaHostAllocDefault) != cudaSuccess) (void)cudaGetLastError();
  staging = static_cast<unsigned char *>(memory);
  forget_stage();
  return ASSAY_OK;
}

void close_device(void) {
  if (staging != nullptr) (void)cudaFreeHost(staging);
  staging = nullptr;
  forget_stage();
  if (stream != nullptr) (void)cudaStreamDestroy(stream);
  stream = nullptr;
}

assay_status describe(assay_device_info *info, assay_error *error) {
  assay_status status = open_device(error);
  if (status != ASSAY_OK) return status;
  int driver = 0;
  const cudaError_t code = cudaDriverGetVersion(&driver);
  if (code != cudaSuccess) return fail_with(code, status_of(code), "asking for the driver's version", error);
  (void)snprintf(info->name, sizeof info->name, "%.127s", properties.name);
  (void)snprintf(info->driver, sizeof info->driver, "CUDA %d.%d", driver / 1000, driver % 1000 / 10);
  (void)snprintf(info->toolkit, sizeof info->toolkit, "%d.%d", CUDART_VERSION / 1000, CUDART_VERSION % 1000 / 10);
  /* The version that users know, as in "580.159.04". */
  FILE *file = fopen("/sys/module/nvidia/version", "r");
  if (file != nullptr) {
    char version[64] = "";
    if (fscanf(file, "%63s", version) == 1) (void)snprintf(info->driver, sizeof info->driver, "%s", version);
    (void)fclose(file);
  }
  info->multiprocessors = properties.multiProcessorCount;
  int khz = 0, bits = 0; /* the memory moves data twice per cycle */
  const bool known = cudaDeviceGetAttribute(&khz, cudaDevAttrMemoryClockRate, 0) == cudaSuccess &&
                     cudaDeviceGetAttribute(&bits, cudaDevAttrGlobalMemoryBusWidth, 0) == cudaSuccess;
  (void)cudaGetLastError();
  info->memory_rate = known ? static_cast<int32_t>(2.0 * khz * bits / 8.0 / 1e6) : 0;
  return ASSAY_OK;
}

assay_status allocate(int64_t bytes, void **memory, assay_error *error) {
  *memory = nullptr;
  assay_status status = open_device(error);
  if (status != ASSAY_OK) return status;
  if (bytes < 0) return assay_fail(error, ASSAY_ERR_INPUT, "cuda: alloc of %lld bytes", static_cast<long long>(bytes));
  /* cudaMalloc of 0 bytes gives NULL, which would read as "argument absent". */
  const no_capture lock;
  const cudaError_t code = cudaMalloc(memory, static_cast<size_t>(bytes > 0 ? bytes : 1));
  if (code == cudaSuccess) return ASSAY_OK;
  *memory = nullptr;
  char doing[64];
  (void)snprintf(doing, sizeof doing, "alloc of %lld bytes", static_cast<long long>(bytes));
  return fail_with(code, status_of(code), doing, error);
}

void release(void *memory) {
  const no_capture lock;
  (void)cudaFree(memory);
}

assay_status synchronize(assay_error *error) {
  assay_status status = open_device(error);
  if (status != ASSAY_OK) return status;
  const cudaError_t code = cudaStreamSynchronize(stream);
  for (int i = 0; i < download_count && code == cudaSuccess; ++i)
    memcpy(downloads[i].to, downloads[i].from, downloads[i].bytes);
  forget_stage();
  return code == cudaSuccess ? ASSAY_OK : fail_with(code, status_of(code), "running kernels", error);
}

static assay_status copy(void *to, const void *from, int64_t bytes, cudaMemcpyKind kind, assay_error *error) {
  const cudaError_t code = cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), kind, stream);
  return code == cudaSuccess ? ASSAY_OK : fail_with(code, status_of(code), "copying", error);
}

assay_status upload(void *to, const void *from, int64_t bytes, assay_error *error) {
  assay_status status = open_device(error);
  if (status != ASSAY_OK || bytes == 0) return status;
  unsigned char *room = is_pinned(from, bytes) ? nullptr : stage(bytes);
  if (room != nullptr) memcpy(room, from, static_cast<size_t>(bytes));
  return copy(to, room != nullptr ? room : from, bytes, cudaMemcpyHostToDevice, error);
}

/* Notes a download that the next synchronize() hands out. */
static void note_download(void *to, const void *from, int64_t bytes) {
  downloads[download_count].to = to;
  downloads[download_count].from = from;
  downloads[download_count++].bytes = static_cast<size_t>(bytes);
}

assay_status download(void *to, const void *from, int64_t bytes, assay_error *error) {
  assay_status status = open_device(error);
  if (status != ASSAY_OK || bytes == 0) return status;
  unsigned char *room = download_count < MAX_DOWNLOADS ? stage(bytes) : nullptr;
  if (room == nullptr) return copy(to, from, bytes, cudaMemcpyDeviceToHost, error);
  status = copy(room, from, bytes, cudaMemcpyDeviceToHost, error);
  if (status != ASSAY_OK) {
    download_count = 0; /* the callers of the earlier downloads are not going to wait for them */
    return status;
  }
  note_download(to, room, bytes);
  return ASSAY_OK;
}

assay_status copy_within(void *to, const void *from, int64_t bytes, assay_error *error) {
  assay_status status = open_device(error);
  return status != ASSAY_OK || bytes == 0 ? status : copy(to, from, bytes, cudaMemcpyDeviceToDevice, error);
}

assay_status compare(const void *a, const void *b, const assay_piece *piece, int32_t count, int32_t *differ,
                     assay_error *error) {
  assay_status status = open_device(error);
  if (status != ASSAY_OK) return status;
  const int32_t none = 0;
  unsigned char *room = download_count < MAX_DOWNLOADS ? stage(sizeof none) : nullptr;
  *differ = -1;
  if (room == nullptr) return ASSAY_OK;
  memcpy(room, &none, sizeof none);
  status = compare_pieces(a, b, piece, count, reinterpret_cast<int32_t *>(room), stream, error);
  if (status == ASSAY_OK) note_download(differ, room, sizeof none);
  return status;
}

assay_status allocate_host(int64_t bytes, void **memory, assay_error *error) {
  *memory = nullptr;
  assay_status status = open_device(error);
  int free_place = 0;
  while (free_place < MAX_PINNED && pinned[free_place].begin != nullptr)
    ++free_place;
  if (status != ASSAY_OK) return status;
  if (free_place == MAX_PINNED)
    return assay_fail(error, ASSAY_ERR_MEMORY, "cuda: more than %d allocations of pinned memory", MAX_PINNED);
  const no_capture lock;
  const cudaError_t code = cudaHostAlloc(memory, static_cast<size_t>(bytes > 0 ? bytes : 1), cudaHostAllocDefault);
  if (code != cudaSuccess) return fail_with(code, ASSAY_ERR_MEMORY, "pinned memory", error);
  pinned[free_place].begin = static_cast<unsigned char *>(*memory);
  pinned[free_place].bytes = bytes;
  return ASSAY_OK;
}

void release_host(void *memory) {
  const no_capture lock;
  for (int i = 0; i < MAX_PINNED; ++i)
    if (pinned[i].begin == memory) pinned[i].begin = nullptr;
  (void)cudaFreeHost(memory);
}

cudaStream_t own_stream(void) {
  return stream;
}

} // namespace assay_cuda_host
