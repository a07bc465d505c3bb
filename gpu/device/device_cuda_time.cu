/* device_cuda_time.cu: events, the last-level cache, the GPU's highest rates, and its clocks. */
#include <cuda_runtime.h>
#include <dlfcn.h>
#include <mma.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "gpu/device/device_cuda.h"
#include "gpu/lib/ptx_mma.cuh"
#if __has_include(<cublasLt.h>)
#include "gpu/lib/cublaslt.h"
#define ASSAY_HAVE_CUBLASLT
#endif

namespace assay_cuda_host {

constexpr int rate_threads = 256, rate_samples = 11, rate_chains = 8, flush_times = 3;
constexpr int64_t copy_bytes = int64_t{1} << 30, smallest_flush = int64_t{64} << 20;
constexpr int fma_turns = 4096, mma_turns = 2048, blocks_per_multiprocessor = 4;
constexpr int64_t gemm_size = 8192, gemm_bytes = gemm_size * gemm_size * 2;

/* Each thread has its own. */
static thread_local cudaEvent_t event[2];
static thread_local unsigned char *sweep; /* the memory that flush() reads */
static thread_local int64_t sweep_bytes;

static assay_status fail_with(cudaError_t code, const char *doing, assay_error *error) {
  (void)cudaGetLastError();
  return assay_fail(error, status_of(code), "cuda: %s: %s (%s)", doing, cudaGetErrorName(code),
                    cudaGetErrorString(code));
}

/* ---- kernels ---------------------------------------------------------------------------------------- */

/* do_nothing: an empty kernel. Grid and block: one thread. Shared: none. Arch: any. Limit: the launch. */
static __global__ void do_nothing() {}

/* read_all: reads all 16-byte words. Their bits, or-ed, are stored only if they have a value that flush() never puts
 * there.
 * Grid: any. Block: rate_threads. Shared: none. Arch: any. Limit: bytes, 16 per word. */
static __global__ void __launch_bounds__(rate_threads) read_all(const uint4 *word, int64_t words, unsigned *out) {
  unsigned sum = 0;
  const int64_t step = static_cast<int64_t>(gridDim.x) * rate_threads;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * rate_threads + threadIdx.x; i < words; i += step) {
    const uint4 w = word[i];
    sum |= w.x | w.y | w.z | w.w;
  }
  if (sum == 0x5EED5EEDu) *out = sum;
}

/* copy_words: to[i] = from[i], four words in flight per thread.
 * Grid: any. Block: rate_threads. Shared: none. Alignment: 16. Arch: any. Limit: bytes, 32 per word. */
static __global__ void __launch_bounds__(rate_threads) copy_words(uint4 *to, const uint4 *from, int64_t words) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * rate_threads * 4;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * rate_threads * 4 + threadIdx.x; i < words; i += step) {
    uint4 w[4];
#pragma unroll
    for (int k = 0; k < 4; ++k)
      if (i + k * rate_threads < words) w[k] = from[i + k * rate_threads];
#pragma unroll
    for (int k = 0; k < 4; ++k)
      if (i + k * rate_threads < words) to[i + k * rate_threads] = w[k];
  }
}

/* fma_chains: rate_chains independent sums per thread, fma_turns multiply-adds each.
 * Grid: any. Block: rate_threads. Shared: none. Arch: any. Limit: f32 multiply-adds, 2 operations each. */
static __global__ void __launch_bounds__(rate_threads) fma_chains(float *out, float a, float b) {
  float sum[rate_chains];
#pragma unroll
  for (int i = 0; i < rate_chains; ++i)
    sum[i] = static_cast<float>(threadIdx.x + i);
  for (int t = 0; t < fma_turns; ++t)
#pragma unroll
    for (int i = 0; i < rate_chains; ++i)
      sum[i] = fmaf(sum[i], a, b);
  float all = 0;
#pragma unroll
  for (int i = 0; i < rate_chains; ++i)
    all += sum[i];
  if (all == -1.0f) *out = all;
}

/* mma_chains: 16 x 16 x 16 products of bf16, four independent sums per warp, mma_turns each. Operands stay in registers
 * and differ from lane to lane.
 * Grid: any. Block: rate_threads. Shared: none. Arch: sm_80 and later. Limit: tensor cores, 2 · 16^3 operations each.
 */
static __global__ void __launch_bounds__(rate_threads) mma_chains(float *out, float scale) {
  namespace w = nvcuda::wmma;
  w::fragment<w::matrix_a, 16, 16, 16, __nv_bfloat16, w::row_major> a[2];
  w::fragment<w::matrix_b, 16, 16, 16, __nv_bfloat16, w::col_major> b[2];
  w::fragment<w::accumulator, 16, 16, 16, float> sum[4];
#pragma unroll
  for (int k = 0; k < 2; ++k) {
#pragma unroll
    for (int i = 0; i < a[0].num_elements; ++i)
      a[k].x[i] = __float2bfloat16(scale * static_cast<float>((threadIdx.x * 7 + i * 5 + k * 3) % 31 - 15));
#pragma unroll
    for (int i = 0; i < b[0].num_elements; ++i)
      b[k].x[i] = __float2bfloat16(scale * static_cast<float>((threadIdx.x * 11 + i * 3 + k * 5) % 29 - 14));
  }
#pragma unroll
  for (int k = 0; k < 4; ++k)
    w::fill_fragment(sum[k], 0.0f);
  for (int t = 0; t < mma_turns; ++t)
#pragma unroll
    for (int k = 0; k < 4; ++k)
      w::mma_sync(sum[k], a[k & 1], b[k >> 1], sum[k]);
  float all = 0;
#pragma unroll
  for (int k = 0; k < 4; ++k)
#pragma unroll
    for (int i = 0; i < sum[0].num_elements; ++i)
      all += sum[k].x[i];
  if (all == -1.0f) *out = all;
}

/* mma8_chains: 16 x 8 x 32 products of e4m3, eight independent sums per warp, mma_turns each. Operands stay in
 * registers and differ from lane to lane; no code is NaN. Grid: any. Block: rate_threads. Shared: none. Arch: sm_89 and
 * later. Limit: tensor cores, 2 · 16 · 8 · 32 operations each. */
static __global__ void __launch_bounds__(rate_threads) mma8_chains(float *out, unsigned mask) {
  uint32_t a[2][4], b[4][2];
  float sum[8][4];
#pragma unroll
  for (int i = 0; i < 8; ++i)
    a[i / 4][i % 4] = (threadIdx.x * 0x9E3779B9u + static_cast<unsigned>(i) * 0x85EBCA6Bu) & mask;
#pragma unroll
  for (int i = 0; i < 8; ++i)
    b[i / 2][i % 2] = (threadIdx.x * 0xC2B2AE35u + static_cast<unsigned>(i) * 0x27D4EB2Fu) & mask;
#pragma unroll
  for (int i = 0; i < 32; ++i)
    sum[i / 4][i % 4] = 0;
  for (int t = 0; t < mma_turns; ++t)
#pragma unroll
    for (int i = 0; i < 8; ++i)
      ASSAY_NS::mma_m16n8k32<ASSAY_NS::e4m3, ASSAY_NS::e4m3>(sum[i], a[i / 4], b[i % 4]);
  float all = 0;
#pragma unroll
  for (int i = 0; i < 32; ++i)
    all += sum[i / 4][i % 4];
  if (all == -1.0f) *out = all;
}

/* fill_codes: writes e4m3 from -448 to 448, no code of NaN. Grid, block: any. Shared: none. Arch: any. Limit: bytes. */
static __global__ void fill_codes(unsigned char *to, int64_t count, uint64_t seed) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += step) {
    uint64_t x = (static_cast<uint64_t>(i) + seed) * 0x9E3779B97F4A7C15u;
    x = (x ^ x >> 31) * 0xBF58476D1CE4E5B9u;
    const unsigned code = static_cast<unsigned>(x >> 56);
    to[i] = static_cast<unsigned char>((code & 0x7Fu) == 0x7Fu ? code & 0x80u : code);
  }
}

/* fill_random: writes bf16 between -1 and 1. Grid, block: any. Shared: none. Arch: any. Limit: bytes. */
static __global__ void fill_random(uint16_t *to, int64_t count, uint64_t seed) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += step) {
    uint64_t x = (static_cast<uint64_t>(i) + seed) * 0x9E3779B97F4A7C15u;
    x = (x ^ x >> 31) * 0xBF58476D1CE4E5B9u;
    x ^= x >> 29;
    to[i] = __bfloat16_as_ushort(__float2bfloat16(static_cast<float>(x >> 40) * 0x1p-23f - 1.0f));
  }
}

/* ---- events and the cache --------------------------------------------------------------------------- */

static assay_status cache(int64_t *bytes, assay_error *error) {
  int found = 0;
  *bytes = 0;
  const assay_status status = open_device(error);
  if (status != ASSAY_OK) return status;
  const cudaError_t code = cudaDeviceGetAttribute(&found, cudaDevAttrL2CacheSize, 0);
  if (code != cudaSuccess) return fail_with(code, "asking for the size of the cache", error);
  *bytes = found;
  return ASSAY_OK;
}

/* Reads several times what the cache holds, from memory that no kernel uses: no dirty line stays in the cache. */
static assay_status flush(assay_error *error) {
  int64_t bytes = 0;
  const assay_status status = cache(&bytes, error);
  if (status != ASSAY_OK) return status;
  const int64_t wanted = flush_times * bytes > smallest_flush ? flush_times * bytes : smallest_flush;
  cudaError_t code = cudaSuccess;
  if (sweep == nullptr) {
    lock_for(false);
    code = cudaMalloc(&sweep, static_cast<size_t>(wanted));
    if (code == cudaSuccess) code = cudaMemsetAsync(sweep, 0x11, static_cast<size_t>(wanted), own_stream());
    unlock();
    sweep_bytes = wanted;
    if (code != cudaSuccess) {
      (void)cudaFree(sweep);
      sweep = nullptr;
      return fail_with(code, "memory to flush the cache with", error);
    }
  }
  read_all<<<1024, rate_threads, 0, own_stream()>>>(reinterpret_cast<const uint4 *>(sweep), sweep_bytes / 16,
                                                    reinterpret_cast<unsigned *>(sweep));
  code = cudaGetLastError();
  return code == cudaSuccess ? ASSAY_OK : fail_with(code, "flushing the cache", error);
}

static assay_status mark(int32_t number, assay_error *error) {
  const assay_status status = open_device(error);
  if (status != ASSAY_OK) return status;
  if (number != 0 && number != 1)
    return assay_fail(error, ASSAY_ERR_INPUT, "cuda: mark: found %d, allowed 0, 1", number);
  cudaError_t code = cudaSuccess;
  if (event[number] == nullptr) code = cudaEventCreate(&event[number]);
  if (code == cudaSuccess) code = cudaEventRecord(event[number], own_stream());
  return code == cudaSuccess ? ASSAY_OK : fail_with(code, "recording an event", error);
}

static assay_status between(double *us, assay_error *error) {
  float ms = 0;
  *us = 0;
  if (event[0] == nullptr || event[1] == nullptr)
    return assay_fail(error, ASSAY_ERR_INTERNAL, "cuda: time between marks that were not made");
  const cudaError_t code = cudaEventElapsedTime(&ms, event[0], event[1]);
  if (code != cudaSuccess) return fail_with(code, "reading events", error);
  *us = static_cast<double>(ms) * 1e3;
  return ASSAY_OK;
}

static assay_status wait_all(assay_error *error) {
  const assay_status status = open_device(error);
  if (status != ASSAY_OK) return status;
  const cudaError_t code = cudaDeviceSynchronize();
  return code == cudaSuccess ? ASSAY_OK : fail_with(code, "waiting for the device", error);
}

static assay_status empty(void *stream, assay_error *error) {
  do_nothing<<<1, 1, 0, static_cast<cudaStream_t>(stream)>>>();
  const cudaError_t code = cudaGetLastError();
  return code == cudaSuccess ? ASSAY_OK : fail_with(code, "launching an empty kernel", error);
}

/* ---- rates ------------------------------------------------------------------------------------------ */

/* Makes one launch and returns how much it does, in bytes or operations. */
static double launch_rate(assay_rate which, unsigned char *memory, int multiprocessors) {
  const int blocks = multiprocessors * blocks_per_multiprocessor;
  const double threads = static_cast<double>(blocks) * rate_threads;
  uint4 *from = reinterpret_cast<uint4 *>(memory), *to = reinterpret_cast<uint4 *>(memory + copy_bytes);
  float *out = reinterpret_cast<float *>(memory);
  if (which == ASSAY_RATE_COPY) {
    copy_words<<<multiprocessors * 8, rate_threads, 0, own_stream()>>>(to, from, copy_bytes / 16);
    return 2.0 * static_cast<double>(copy_bytes);
  }
  if (which == ASSAY_RATE_FMA) {
    fma_chains<<<blocks, rate_threads, 0, own_stream()>>>(out, 0.999f, 0.001f);
    return threads * 2.0 * rate_chains * fma_turns;
  }
  if (which == ASSAY_RATE_MMA8) {
    mma8_chains<<<blocks, rate_threads, 0, own_stream()>>>(out, 0xBFBFBFBFu); /* exponents below the largest */
    return threads / 32 * mma_turns * 8 * 2.0 * 16 * 8 * 32;
  }
  mma_chains<<<blocks, rate_threads, 0, own_stream()>>>(out, 0.01f);
  return threads / 32 * mma_turns * 4 * 2.0 * 16 * 16 * 16;
}

/* Sets *per_second to the best of several launches of `run`: a limit, not an average. */
template <class Run> static assay_status best_rate(Run run, double *per_second, assay_error *error) {
  assay_status status = ASSAY_OK;
  for (int i = 0; i < rate_samples && status == ASSAY_OK; ++i) {
    double us = 0, work = 0;
    status = mark(0, error);
    if (status == ASSAY_OK) status = run(&work);
    const cudaError_t code = cudaGetLastError();
    if (status == ASSAY_OK && code != cudaSuccess) status = fail_with(code, "measuring a rate", error);
    if (status == ASSAY_OK) status = mark(1, error);
    if (status == ASSAY_OK) status = wait_all(error);
    if (status == ASSAY_OK) status = between(&us, error);
    if (status == ASSAY_OK && i > 0 && us > 0 && work / us * 1e6 > *per_second) *per_second = work / us * 1e6;
  }
  return status;
}

/* Measures products of random bf16 or e4m3 by cuBLASLt. *per_second is 0 where the library or its product is missing.
 */
static assay_status gemm_rate(assay_dtype type, double *per_second, assay_error *error) {
  *per_second = 0;
#ifdef ASSAY_HAVE_CUBLASLT
  const blas_product product = {gemm_size, gemm_size, gemm_size, gemm_size, type, ASSAY_BF16, false, false};
  blas_found found;
  assay_error why = {""};
  void *allocated = nullptr;
  if (blas_find(product, &found, &why) != ASSAY_OK) return ASSAY_OK;
  const assay_status got = allocate(3 * gemm_bytes + found.workspace_bytes, &allocated, error);
  if (got != ASSAY_OK) return got;
  unsigned char *const memory = static_cast<unsigned char *>(allocated);
  if (type == ASSAY_E4M3)
    fill_codes<<<1024, rate_threads, 0, own_stream()>>>(memory, 2 * gemm_bytes, 1);
  else
    fill_random<<<1024, rate_threads, 0, own_stream()>>>(reinterpret_cast<uint16_t *>(memory), gemm_bytes, 1);
  const blas_operands operands = {memory, memory + gemm_bytes, nullptr, memory + 2 * gemm_bytes, 1.0f, 0.0f};
  const assay_status status = best_rate(
      [&](double *work) {
        *work = 2.0 * gemm_size * gemm_size * gemm_size;
        return blas_launch(found, operands, memory + 3 * gemm_bytes, own_stream(), error);
      },
      per_second, error);
  release(allocated);
  return status;
#else
  (void)error;
  return ASSAY_OK;
#endif
}

static assay_status rate(assay_rate which, double *per_second, assay_error *error) {
  assay_device_info info;
  void *memory = nullptr;
  *per_second = 0;
  assay_status status = describe(&info, error);
  if (status == ASSAY_OK && which == ASSAY_RATE_GEMM) return gemm_rate(ASSAY_BF16, per_second, error);
  if (status == ASSAY_OK && which == ASSAY_RATE_GEMM8) return gemm_rate(ASSAY_E4M3, per_second, error);
  if (status == ASSAY_OK) status = allocate(which == ASSAY_RATE_COPY ? 2 * copy_bytes : 256, &memory, error);
  if (status != ASSAY_OK) return status;
  if (which == ASSAY_RATE_COPY) (void)cudaMemsetAsync(memory, 0x3C, static_cast<size_t>(copy_bytes), own_stream());
  status = best_rate(
      [&](double *work) {
        *work = launch_rate(which, static_cast<unsigned char *>(memory), info.multiprocessors);
        return ASSAY_OK;
      },
      per_second, error);
  release(memory);
  return status;
}

/* ---- clocks ----------------------------------------------------------------------------------------- */

/* The functions used of NVML, which comes with the driver; constants are its documented numbers. Clocks are read, never
 * set. */
struct nvml {
  void *library;
  int (*init)();
  int (*handle)(const char *, void **);
  int (*clock)(void *, int, unsigned *);
  int (*temperature)(void *, int, unsigned *);
  int (*power)(void *, unsigned *);
  int (*reasons)(void *, unsigned long long *);
  void *device;
};

constexpr int nvml_clock_sm = 1, nvml_clock_memory = 2, nvml_temperature_gpu = 0;

template <typename Function> static bool find(void *library, const char *name, Function *function) {
  void *found = dlsym(library, name);
  memcpy(function, &found, sizeof found);
  return found != nullptr;
}

static bool open_nvml(nvml *n) {
  char bus[32] = "";
  if (n->device != nullptr) return true;
  if (n->library == nullptr) n->library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
  if (n->library == nullptr || cudaDeviceGetPCIBusId(bus, sizeof bus, 0) != cudaSuccess) return false;
  const bool whole = find(n->library, "nvmlInit_v2", &n->init) &&
                     find(n->library, "nvmlDeviceGetHandleByPciBusId_v2", &n->handle) &&
                     find(n->library, "nvmlDeviceGetClockInfo", &n->clock) &&
                     find(n->library, "nvmlDeviceGetTemperature", &n->temperature) &&
                     find(n->library, "nvmlDeviceGetPowerUsage", &n->power) &&
                     find(n->library, "nvmlDeviceGetCurrentClocksThrottleReasons", &n->reasons);
  if (!whole || n->init() != 0 || n->handle(bus, &n->device) != 0) n->device = nullptr;
  return n->device != nullptr;
}

static assay_status state(assay_device_state *state, assay_error *error) {
  static thread_local nvml n;
  unsigned value = 0;
  unsigned long long reasons = 0;
  (void)error;
  *state = {-1, -1, -1, -1, -1};
  if (!open_nvml(&n)) return ASSAY_OK; /* not knowing the clocks is no failure */
  if (n.clock(n.device, nvml_clock_sm, &value) == 0) state->core_mhz = static_cast<int32_t>(value);
  if (n.clock(n.device, nvml_clock_memory, &value) == 0) state->memory_mhz = static_cast<int32_t>(value);
  if (n.temperature(n.device, nvml_temperature_gpu, &value) == 0) state->celsius = static_cast<int32_t>(value);
  if (n.power(n.device, &value) == 0) state->milliwatts = static_cast<int32_t>(value);
  if (n.reasons(n.device, &reasons) == 0) state->slowed = static_cast<int64_t>(reasons);
  return ASSAY_OK;
}

void timing_close(void) {
  for (int i = 0; i < 2; ++i) {
    if (event[i] != nullptr) (void)cudaEventDestroy(event[i]);
    event[i] = nullptr;
  }
  if (sweep != nullptr) (void)cudaFree(sweep);
  sweep = nullptr;
}

const assay_device_timing timing = {cache, flush, mark, between, wait_all, empty, rate, state};

} // namespace assay_cuda_host
