/* tensor.h: a strided view of memory. Shapes and strides are in elements, all 64-bit. */
#ifndef ASSAY_TENSOR_H
#define ASSAY_TENSOR_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { ASSAY_MAX_RANK = 6 };

typedef enum assay_dtype {
  ASSAY_NONE = 0, /* absent; in a contract: not rounded */
  ASSAY_F32,
  ASSAY_F16,
  ASSAY_BF16,
  ASSAY_E4M3, /* fp8 e4m3fn: no infinity, NaN is 0x7F and 0xFF, largest 448 */
  ASSAY_E5M2, /* fp8 e5m2: IEEE-like, largest 57344 */
  ASSAY_I32,
  ASSAY_I64,
  ASSAY_DTYPE_COUNT
} assay_dtype;

/* A strided view. data == NULL: the optional argument is absent. The data pointer may be biased: it need not point into
 * an allocation. Only the addresses that the operator's definition reaches are valid. */
typedef struct assay_tensor {
  void *data;
  assay_dtype dtype;
  int32_t rank;
  int64_t shape[ASSAY_MAX_RANK];
  int64_t stride[ASSAY_MAX_RANK];
} assay_tensor;

/* Returns the bytes of one element; 0 for ASSAY_NONE and unknown values. */
static inline int64_t assay_dtype_size(assay_dtype dtype) {
  switch (dtype) {
  case ASSAY_F32:
  case ASSAY_I32:
    return 4;
  case ASSAY_F16:
  case ASSAY_BF16:
    return 2;
  case ASSAY_E4M3:
  case ASSAY_E5M2:
    return 1;
  case ASSAY_I64:
    return 8;
  case ASSAY_NONE:
  case ASSAY_DTYPE_COUNT:
    break;
  }
  return 0;
}

/* Returns the name as in the YAML; "none" for ASSAY_NONE and unknown values. */
static inline const char *assay_dtype_name(assay_dtype dtype) {
  switch (dtype) {
  case ASSAY_F32:
    return "f32";
  case ASSAY_F16:
    return "f16";
  case ASSAY_BF16:
    return "bf16";
  case ASSAY_E4M3:
    return "e4m3";
  case ASSAY_E5M2:
    return "e5m2";
  case ASSAY_I32:
    return "i32";
  case ASSAY_I64:
    return "i64";
  case ASSAY_NONE:
  case ASSAY_DTYPE_COUNT:
    break;
  }
  return "none";
}

#ifdef __cplusplus
}
#endif
#endif
