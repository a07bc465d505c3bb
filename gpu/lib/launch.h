/* launch.h: macros for the differences between the two backends of a .cu file. nvcc compiles it for cuda. The host
 * compiler, with simt's cuda.h force-included, compiles it for simt. Kernels and everything they include live in
 * namespace ASSAY_NS, because both compilations are linked into one executable.
 *
 *   ASSAY_SHARED(float, tile, 128);            static shared memory: float (&tile)[128], 16-byte aligned
 *   ASSAY_DYNAMIC_SHARED(float, scratch);      the launch's shared_bytes: float *scratch, 128-byte aligned
 *   ASSAY_DYNAMIC_SHARED_1024(char, tiles);    the same, 1024-byte aligned, for swizzled tiles
 *
 *   status = ASSAY_LAUNCH(error, (kernel<float, 64>), grid, block, shared_bytes, env->stream, arguments...);
 *   status = ASSAY_LAUNCH_WITH(error, kernel, grid, block, shared_bytes, options, env->stream, arguments...);
 *
 *   ASSAY_UNROLL                               before a loop: #pragma unroll, which host compilers warn about
 *   ASSAY_ROLLED                               before a loop: the compiler must not unroll it
 *   ASSAY_VARIANTS(gate_attention, row, row);  last in the file: the variant table, or the plug-in's entry
 *
 * grid and block are extents of int64_t: launch_extent{splits, heads, rows}, a dim3, or one number. */
#ifndef ASSAY_GPU_LAUNCH_H
#define ASSAY_GPU_LAUNCH_H

#include <stdint.h>

#include <tuple>

#include <assay/plugin.h>
#include <assay/variant.h>

#ifdef ASSAY_SIMT
#define ASSAY_NS          assay_simt_device
#define ASSAY_DEVICE_NAME "simt"
#define ASSAY_UNROLL
#define ASSAY_ROLLED
#else
#include <cuda_runtime.h>
#define ASSAY_NS          assay_cuda_device
#define ASSAY_DEVICE_NAME "cuda"
#define ASSAY_UNROLL      _Pragma("unroll")
#define ASSAY_ROLLED      _Pragma("unroll 1")
#endif

/* Suffix of the names of variants. Kernels that are wrong on purpose set it to "@<id>". */
#ifndef ASSAY_VARIANT_SUFFIX
#define ASSAY_VARIANT_SUFFIX ""
#endif

namespace ASSAY_NS {

constexpr int32_t tensor_core_terms = 16; /* assay_contract.cut of mma and wgmma */

struct launch_extent {
  int64_t x, y, z;
  constexpr launch_extent(int64_t x_, int64_t y_ = 1, int64_t z_ = 1) : x(x_), y(y_), z(z_) {}
  constexpr launch_extent(dim3 v) : x(v.x), y(v.y), z(v.z) {}
};

/* Options of a launch in addition to its extents. */
struct launch_options {
  int32_t cluster = 1;    /* blocks per cluster, along x: 1 to 8, a divisor of grid.x */
  bool dependent = false; /* may begin before the previous launch is over: dependency_wait() in the kernel */
  /* The next launch of the stream is a dependent one. simt delays this launch until then, so that anything that the
   * next launch reads before its dependency_wait() is wrong. */
  bool followed = false;
  /* Percentage of the 228 KB of a multiprocessor that becomes shared memory. The rest is L1, for loads in flight.
   * Without it, launches that follow each other without a pause keep the split that another kernel needed. If it is
   * less than all the blocks that could be resident need, fewer blocks are resident. -1: leaves the choice to the
   * driver. */
  int32_t shared_percent = -1;
  /* Number of blocks that must run at the same time because they wait for each other. simt switches between the threads
   * of that many blocks. On cuda the launcher guarantees that so many fit. */
  int32_t resident = 1;
};

/* Returns the options of a launch whose kernel waits at its start, by take_turn() or dependency_wait()
 * (ptx_async.cuh). */
inline launch_options in_turn() {
  launch_options options;
  options.dependent = true;
  return options;
}

/* Hopper's limits. */
constexpr int64_t launch_max_grid_x = 2147483647, launch_max_grid_yz = 65535;
constexpr int64_t launch_max_threads = 1024, launch_max_block_z = 64, launch_max_shared = 227 * 1024;

inline assay_status launch_check_extent(const char *kernel, const char *name, int64_t found, int64_t allowed,
                                        assay_error *error) {
  if (found >= 1 && found <= allowed) return ASSAY_OK;
  return assay_fail(error, ASSAY_ERR_DEVICE, "launch of %s: %s: found %lld, allowed 1 to %lld", kernel, name,
                    static_cast<long long>(found), static_cast<long long>(allowed));
}

inline assay_status launch_check(const char *kernel, launch_extent grid, launch_extent block, int64_t shared_bytes,
                                 assay_error *error) {
  assay_status status = launch_check_extent(kernel, "grid.x", grid.x, launch_max_grid_x, error);
  if (status == ASSAY_OK) status = launch_check_extent(kernel, "grid.y", grid.y, launch_max_grid_yz, error);
  if (status == ASSAY_OK) status = launch_check_extent(kernel, "grid.z", grid.z, launch_max_grid_yz, error);
  if (status == ASSAY_OK) status = launch_check_extent(kernel, "block.x", block.x, launch_max_threads, error);
  if (status == ASSAY_OK) status = launch_check_extent(kernel, "block.y", block.y, launch_max_threads, error);
  if (status == ASSAY_OK) status = launch_check_extent(kernel, "block.z", block.z, launch_max_block_z, error);
  if (status == ASSAY_OK)
    status = launch_check_extent(kernel, "threads a block", block.x * block.y * block.z, launch_max_threads, error);
  if (status == ASSAY_OK && !(shared_bytes >= 0 && shared_bytes <= launch_max_shared))
    status = assay_fail(error, ASSAY_ERR_DEVICE, "launch of %s: shared memory: found %lld bytes, allowed 0 to %lld",
                        kernel, static_cast<long long>(shared_bytes), static_cast<long long>(launch_max_shared));
  return status;
}

inline assay_status launch_check_options(const char *kernel, launch_extent grid, const launch_options &options,
                                         assay_error *error) {
  assay_status status = launch_check_extent(kernel, "cluster", options.cluster, 8, error);
  if (status == ASSAY_OK && grid.x % options.cluster != 0)
    status =
        assay_fail(error, ASSAY_ERR_DEVICE, "launch of %s: grid.x: found %lld, allowed multiples of %d, the cluster",
                   kernel, static_cast<long long>(grid.x), static_cast<int>(options.cluster));
  return status;
}

#ifdef ASSAY_SIMT

#define ASSAY_SHARED(type, name, count)                                                                                \
  static assay_simt_site name##_site = {                                                                               \
      #name, __FILE__, __LINE__, sizeof(type[count]), alignof(type) < 16 ? 16 : alignof(type), 0, nullptr};            \
  type(&name)[count] = *static_cast<type(*)[count]>(assay_simt_shared(&name##_site))
#define ASSAY_DYNAMIC_SHARED(type, name)      type *name = static_cast<type *>(assay_simt->now->dynamic_shared)
#define ASSAY_DYNAMIC_SHARED_1024(type, name) type *name = static_cast<type *>(assay_simt->dynamic_shared_1024())

/* Runs the grid. Returns when its last thread has finished, unless options.followed. */
template <class... P, class... A>
assay_status launch_kernel_with(assay_error *error, const char *name, void (*kernel)(P...), launch_extent grid,
                                launch_extent block, int64_t shared_bytes, const launch_options &options, void *,
                                A... arguments) {
  assay_status status = launch_check(name, grid, block, shared_bytes, error);
  if (status == ASSAY_OK) status = launch_check_options(name, grid, options, error);
  if (status != ASSAY_OK) return status;
  const assay_simt_closure<P...> closure = {kernel, std::tuple<P...>(arguments...)};
  const assay_simt_launch request = {name,
                                     {grid.x, grid.y, grid.z},
                                     {block.x, block.y, block.z},
                                     shared_bytes,
                                     &assay_simt_closure<P...>::run,
                                     &closure,
                                     sizeof closure,
                                     options.cluster,
                                     options.resident,
                                     options.dependent,
                                     options.followed};
  return assay_simt->launch(&request, error);
}

#else

#define ASSAY_SHARED(type, name, count) __shared__ __align__(16) type name[count]
#define ASSAY_DYNAMIC_SHARED(type, name)                                                                               \
  extern __shared__ __align__(128) unsigned char assay_dynamic_shared[];                                               \
  type *name = reinterpret_cast<type *>(assay_dynamic_shared)
#define ASSAY_DYNAMIC_SHARED_1024(type, name)                                                                          \
  extern __shared__ __align__(1024) unsigned char assay_dynamic_shared_1024[];                                         \
  type *name = reinterpret_cast<type *>(assay_dynamic_shared_1024)

/* Allows a kernel as much dynamic shared memory as there is. The limit is always the same, because the kernel may be
 * launched by threads with different amounts. With different limits they could lower each other's limit between this
 * call and the launch. */
inline cudaError_t launch_allow_shared(const void *kernel, int64_t shared_bytes) {
  cudaFuncAttributes attributes;
  const cudaError_t code = cudaFuncGetAttributes(&attributes, kernel);
  if (code != cudaSuccess || attributes.maxDynamicSharedSizeBytes >= shared_bytes) return code;
  const int64_t most = launch_max_shared - static_cast<int64_t>(attributes.sharedSizeBytes);
  return cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(most));
}

/* Puts the kernel into the stream. Static and dynamic shared memory of more than 48 KB together need the opt-in. */
template <class... P, class... A>
assay_status launch_kernel_with(assay_error *error, const char *name, void (*kernel)(P...), launch_extent grid,
                                launch_extent block, int64_t shared_bytes, const launch_options &options, void *stream,
                                A... arguments) {
  assay_status status = launch_check(name, grid, block, shared_bytes, error);
  if (status == ASSAY_OK) status = launch_check_options(name, grid, options, error);
  if (status != ASSAY_OK) return status;
  cudaError_t code = cudaSuccess;
  if (shared_bytes > 0) code = launch_allow_shared(reinterpret_cast<const void *>(kernel), shared_bytes);
  if (code == cudaSuccess) {
    std::tuple<P...> parameters(arguments...);
    std::apply(
        [&](P &...parameter) {
          void *pointers[] = {static_cast<void *>(&parameter)..., nullptr};
          const dim3 g(static_cast<unsigned>(grid.x), static_cast<unsigned>(grid.y), static_cast<unsigned>(grid.z));
          const dim3 b(static_cast<unsigned>(block.x), static_cast<unsigned>(block.y), static_cast<unsigned>(block.z));
          cudaLaunchAttribute attributes[3] = {};
          unsigned count = 0;
          if (options.cluster > 1) {
            attributes[count].id = cudaLaunchAttributeClusterDimension;
            attributes[count].val.clusterDim.x = static_cast<unsigned>(options.cluster);
            attributes[count].val.clusterDim.y = attributes[count].val.clusterDim.z = 1;
            ++count;
          }
          if (options.dependent) {
            attributes[count].id = cudaLaunchAttributeProgrammaticStreamSerialization;
            attributes[count].val.programmaticStreamSerializationAllowed = 1;
            ++count;
          }
          if (options.shared_percent >= 0) {
            attributes[count].id = cudaLaunchAttributePreferredSharedMemoryCarveout;
            attributes[count].val.sharedMemCarveout = static_cast<unsigned>(options.shared_percent);
            ++count;
          }
          cudaLaunchConfig_t config = {};
          config.gridDim = g;
          config.blockDim = b;
          config.dynamicSmemBytes = static_cast<size_t>(shared_bytes);
          config.stream = static_cast<cudaStream_t>(stream);
          config.attrs = attributes;
          config.numAttrs = count;
          code = cudaLaunchKernelExC(&config, reinterpret_cast<const void *>(kernel), pointers);
        },
        parameters);
  }
  const cudaError_t last = cudaGetLastError(); /* also clears the error for the next launch */
  if (code == cudaSuccess) code = last;
  if (code == cudaSuccess) return ASSAY_OK;
  return assay_fail(error, ASSAY_ERR_DEVICE, "launch of %s: %s", name, cudaGetErrorName(code));
}

#endif

/* Returns whether the plug-in accepts its host, for assay_plugin(). If it returns false, the reason is in
 * host->refusal. */
inline bool plugin_accepts(const assay_host *host) {
  if (host == nullptr || host->struct_size < sizeof(assay_host)) return false;
  const char *why = nullptr;
  if (host->abi != ASSAY_ABI) why = "the host's plug-in ABI is not the one this plug-in was built for";
#ifdef ASSAY_SIMT
  if (why == nullptr && host->simt == nullptr) why = "the host was built without simt";
  if (why == nullptr && (host->simt->abi != ASSAY_SIMT_ABI || host->simt->struct_size < sizeof(assay_simt_api)))
    why = "the host's simt ABI is not the one this plug-in was built for";
  if (why == nullptr) assay_simt = host->simt;
#endif
  if (why != nullptr && host->refusal != nullptr && host->refusal_size > 0)
    (void)snprintf(host->refusal, host->refusal_size, "%s (host ABI %u, plug-in ABI %d)", why, host->abi, ASSAY_ABI);
  return why == nullptr;
}

} /* namespace ASSAY_NS */

#define ASSAY_LAUNCH(error, kernel, grid, block, shared_bytes, ...)                                                    \
  ::ASSAY_NS::launch_kernel_with(error, #kernel, kernel, grid, block, shared_bytes, ::ASSAY_NS::launch_options(),      \
                                 __VA_ARGS__)
#define ASSAY_LAUNCH_WITH(error, kernel, grid, block, shared_bytes, options, ...)                                      \
  ::ASSAY_NS::launch_kernel_with(error, #kernel, kernel, grid, block, shared_bytes, options, __VA_ARGS__)

#define ASSAY_PASTE_(a, b) a##b
#define ASSAY_PASTE(a, b)  ASSAY_PASTE_(a, b)
#ifdef ASSAY_SIMT
#define ASSAY_VARIANTS_SYMBOL assay_variants_simt_
#define ASSAY_CONNECT_SIMT()  (void)assay_simt_host_api()
#else
#define ASSAY_VARIANTS_SYMBOL assay_variants_cuda_
#define ASSAY_CONNECT_SIMT()  (void)0
#endif

#ifdef ASSAY_AS_PLUGIN
#define ASSAY_VARIANTS(op_stem, ...)                                                                                   \
  extern "C" __attribute__((visibility("default"))) const assay_plugin_table *assay_plugin(const assay_host *host) {   \
    static const assay_variant variants[] = {__VA_ARGS__};                                                             \
    static const assay_plugin_table table = {ASSAY_ABI, sizeof(assay_plugin_table), ASSAY_AS_PLUGIN, variants,         \
                                             static_cast<int32_t>(sizeof variants / sizeof variants[0])};              \
    return ::ASSAY_NS::plugin_accepts(host) ? &table : nullptr;                                                        \
  }
#else
#define ASSAY_VARIANTS(op_stem, ...)                                                                                   \
  extern "C" const assay_variant *ASSAY_PASTE(ASSAY_VARIANTS_SYMBOL, op_stem)(int32_t * count) {                       \
    static const assay_variant variants[] = {__VA_ARGS__};                                                             \
    ASSAY_CONNECT_SIMT();                                                                                              \
    *count = static_cast<int32_t>(sizeof variants / sizeof variants[0]);                                               \
    return variants;                                                                                                   \
  }
#endif

#endif
