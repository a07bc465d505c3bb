/* tensor_map.h: a tensor in global memory as the copy engine sees it, and the box that one copy moves between it and
 * shared memory. The tensor has 2 to 5 dimensions, with dimension 0 contiguous. In shared memory the box is dense, with
 * dimension 0 fastest. Elements outside the tensor are read as 0 and not written. The host makes the map
 * (tensor_map_make) and passes it to a kernel as `const __grid_constant__ tensor_map`.
 *
 * Swizzle: 16-byte chunks are permuted within the box so that columns can be read without bank conflicts. The xor is on
 * the address in shared memory: bits 4..6 with bits 7..9 (128), bits 4..5 with 7..8 (64), bit 4 with 7 (32). A box with
 * swizzle has exactly 128, 64 or 32 bytes in dimension 0. Shared addresses are multiples of 128. Code that computes
 * chunks as (row mod 8) xor chunk must align to 1024. */
#ifndef ASSAY_GPU_TENSOR_MAP_H
#define ASSAY_GPU_TENSOR_MAP_H

#include "gpu/lib/launch.h"

#ifndef ASSAY_SIMT
#include <cuda.h>
#endif

namespace ASSAY_NS {

enum tensor_swizzle { swizzle_none, swizzle_32, swizzle_64, swizzle_128 };

struct tensor_shape {
  int32_t rank;          /* 2 to 5 */
  int32_t element_bytes; /* 1, 2 or 4 */
  int64_t extent[5];     /* elements, dimension 0 first */
  int64_t stride[5];     /* bytes between elements of dimensions 1 and up, multiples of 16; [0] is not used */
  int32_t box[5];        /* elements, at most 256 each */
  tensor_swizzle swizzle;
};

#ifdef ASSAY_SIMT
struct tensor_map {
  char *base = nullptr;
  tensor_shape shape = {};
  uint64_t made = 0; /* tensor_map_made, set by tensor_map_make */
};
constexpr uint64_t tensor_map_made = 0x70616d726f736e65u;
#else
struct tensor_map {
  CUtensorMap handle; /* aligned to 64 */
};
#endif

inline assay_status tensor_map_check(const tensor_shape &shape, const void *base, assay_error *error) {
  const auto refuse = [&](const char *what, int64_t found) {
    return assay_fail(error, ASSAY_ERR_INPUT, "tensor map: %s: found %lld", what, static_cast<long long>(found));
  };
  if (shape.rank < 2 || shape.rank > 5) return refuse("rank is not 2 to 5", shape.rank);
  if (shape.element_bytes != 1 && shape.element_bytes != 2 && shape.element_bytes != 4)
    return refuse("bytes of an element are not 1, 2 or 4", shape.element_bytes);
  if (reinterpret_cast<uintptr_t>(base) % 16 != 0 || base == nullptr)
    return refuse("address is not a multiple of 16", static_cast<int64_t>(reinterpret_cast<uintptr_t>(base) % 16));
  for (int32_t i = 0; i < shape.rank; ++i) {
    if (shape.extent[i] < 1 || shape.extent[i] > INT64_C(4294967296)) return refuse("extent", shape.extent[i]);
    if (shape.box[i] < 1 || shape.box[i] > 256) return refuse("box is not 1 to 256", shape.box[i]);
    if (i > 0 && (shape.stride[i] < 0 || shape.stride[i] % 16 != 0 || shape.stride[i] >= INT64_C(1) << 40))
      return refuse("stride is no multiple of 16 below 2^40", shape.stride[i]);
  }
  const int32_t inner = shape.box[0] * shape.element_bytes;
  if (inner % 16 != 0) return refuse("bytes of a box's row are no multiple of 16", inner);
  const int32_t span = shape.swizzle == swizzle_128 ? 128 : shape.swizzle == swizzle_64 ? 64 : 32;
  if (shape.swizzle != swizzle_none && inner != span)
    return refuse("bytes of a box's row are not the swizzle's", inner);
  return ASSAY_OK;
}

#ifdef ASSAY_SIMT

inline assay_status tensor_map_make(tensor_map *map, void *base, const tensor_shape &shape, assay_error *error) {
  const assay_status status = tensor_map_check(shape, base, error);
  if (status == ASSAY_OK) *map = tensor_map{static_cast<char *>(base), shape, tensor_map_made};
  return status;
}

#else

using tensor_map_encode_call = CUresult(CUtensorMap *, CUtensorMapDataType, cuuint32_t, void *, const cuuint64_t *,
                                        const cuuint64_t *, const cuuint32_t *, const cuuint32_t *,
                                        CUtensorMapInterleave, CUtensorMapSwizzle, CUtensorMapL2promotion,
                                        CUtensorMapFloatOOBfill);

/* Returns the driver's function, found at run time, so that nothing links against the driver. Returns NULL if there is
 * none. */
inline tensor_map_encode_call *tensor_map_encoder() {
  static tensor_map_encode_call *const found = []() -> tensor_map_encode_call * {
    void *entry = nullptr;
    cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSymbolNotFound;
#if CUDART_VERSION >= 12050
    const cudaError_t code =
        cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &entry, 12000, cudaEnableDefault, &result);
#else
    const cudaError_t code = cudaGetDriverEntryPoint("cuTensorMapEncodeTiled", &entry, cudaEnableDefault, &result);
#endif
    if (code != cudaSuccess || result != cudaDriverEntryPointSuccess) return nullptr;
    return reinterpret_cast<tensor_map_encode_call *>(entry);
  }();
  return found;
}

inline assay_status tensor_map_make(tensor_map *map, void *base, const tensor_shape &shape, assay_error *error) {
  const assay_status status = tensor_map_check(shape, base, error);
  if (status != ASSAY_OK) return status;
  tensor_map_encode_call *const encode = tensor_map_encoder();
  if (encode == nullptr)
    return assay_fail(error, ASSAY_ERR_UNSUPPORTED, "tensor map: the driver has no cuTensorMapEncodeTiled");
  cuuint64_t extent[5], stride[4] = {0, 0, 0, 0};
  cuuint32_t box[5], step[5] = {1, 1, 1, 1, 1};
  for (int32_t i = 0; i < shape.rank; ++i) {
    extent[i] = static_cast<cuuint64_t>(shape.extent[i]);
    box[i] = static_cast<cuuint32_t>(shape.box[i]);
    if (i > 0) stride[i - 1] = static_cast<cuuint64_t>(shape.stride[i]);
  }
  const CUtensorMapDataType type = shape.element_bytes == 1   ? CU_TENSOR_MAP_DATA_TYPE_UINT8
                                   : shape.element_bytes == 2 ? CU_TENSOR_MAP_DATA_TYPE_UINT16
                                                              : CU_TENSOR_MAP_DATA_TYPE_UINT32;
  const CUtensorMapSwizzle swizzles[] = {CU_TENSOR_MAP_SWIZZLE_NONE, CU_TENSOR_MAP_SWIZZLE_32B,
                                         CU_TENSOR_MAP_SWIZZLE_64B, CU_TENSOR_MAP_SWIZZLE_128B};
  const CUresult result = encode(&map->handle, type, static_cast<cuuint32_t>(shape.rank), base, extent, stride, box,
                                 step, CU_TENSOR_MAP_INTERLEAVE_NONE, swizzles[shape.swizzle],
                                 CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result == CUDA_SUCCESS) return ASSAY_OK;
  return assay_fail(error, ASSAY_ERR_DEVICE, "tensor map: the driver's error %d", static_cast<int>(result));
}

#endif

} /* namespace ASSAY_NS */

#endif
