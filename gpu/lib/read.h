/* read.h: reads the arguments of a call one by one, for launchers. It finds them by name, and refuses them with the
 * parameter, what was found and what is allowed. All functions are inline, so that a kernel file is complete by itself
 * (plug-ins). */
#ifndef ASSAY_GPU_LIB_READ_H
#define ASSAY_GPU_LIB_READ_H

#include <inttypes.h>
#include <limits.h>
#include <stdio.h>

#include "assay/variant.h"

#include "gpu/lib/launch.h"

namespace ASSAY_NS {

#define ASSAY_TRY(call)                                                                                                \
  do {                                                                                                                 \
    const assay_status try_status = (call);                                                                            \
    if (try_status != ASSAY_OK) return try_status;                                                                     \
  } while (0)

/* Computes product *= factor. Returns false if the product needs more than 63 bits or the factor is negative. */
inline bool multiply(int64_t *product, int64_t factor) {
  return factor >= 0 && !__builtin_mul_overflow(*product, factor, product);
}

/* Returns the argument whether or not it has data, or NULL for an unknown name. */
inline const assay_tensor *named_tensor(const assay_call *call, const char *name) {
  for (int32_t i = 0; i < call->op->arg_count; ++i)
    if (strcmp(call->op->args[i].name, name) == 0) return &call->arg[i];
  return NULL;
}

/* Returns whether the named argument may be read before a dependent launch waits (assay_env). */
inline bool is_settled(const assay_call *call, const assay_env &env, const char *name) {
  const assay_tensor *const found = named_tensor(call, name);
  return found != NULL && (env.settled >> (found - call->arg) & 1) != 0;
}

/* Returns whether a tensor has no elements; it then needs no data. */
inline bool is_empty(const assay_tensor *tensor) {
  for (int32_t i = 0; i < tensor->rank && i < ASSAY_MAX_RANK; ++i)
    if (tensor->shape[i] == 0) return true;
  return false;
}

/* Finds an argument and checks its rank and base alignment. *found is NULL if an optional argument is absent. */
inline assay_status find_tensor(const assay_call *call, const char *name, int32_t rank, bool optional,
                                const assay_tensor **found, assay_error *error) {
  const assay_tensor *tensor = named_tensor(call, name);
  const bool absent = tensor == NULL || tensor->data == NULL;
  *found = NULL;
  if (absent && optional) return ASSAY_OK;
  if (tensor == NULL || (absent && !is_empty(tensor)))
    return assay_fail(error, ASSAY_ERR_INPUT, "%s: found no data (NULL), allowed a tensor", name);
  *found = tensor;
  if (tensor->rank != rank)
    return assay_fail(error, ASSAY_ERR_INPUT, "%s: found rank %" PRId32 ", allowed %" PRId32, name, tensor->rank, rank);
  const int64_t size = assay_dtype_size(tensor->dtype);
  if (size == 0) return assay_fail(error, ASSAY_ERR_INPUT, "%s: found no dtype, allowed a storage type", name);
  if (reinterpret_cast<uintptr_t>(tensor->data) % static_cast<uintptr_t>(size) != 0)
    return assay_fail(error, ASSAY_ERR_INPUT, "%s: found a pointer aligned to %d bytes, allowed multiples of %d", name,
                      1 << __builtin_ctzll(reinterpret_cast<uintptr_t>(tensor->data)), static_cast<int>(size));
  /* 63 bits must suffice for the byte offset of the farthest element. */
  int64_t reach = 0;
  for (int32_t i = 0; i < rank; ++i) {
    if (tensor->shape[i] < 0)
      return assay_fail(error, ASSAY_ERR_INPUT, "%s: found shape[%" PRId32 "] = %" PRId64 ", allowed 0 and above", name,
                        i, tensor->shape[i]);
    if (tensor->shape[i] <= 1) continue;
    if (tensor->stride[i] <= 0)
      return assay_fail(error, ASSAY_ERR_INPUT, "%s: found stride[%" PRId32 "] = %" PRId64 ", allowed 1 and above",
                        name, i, tensor->stride[i]);
    int64_t step = tensor->shape[i] - 1;
    if (!multiply(&step, tensor->stride[i]) || !multiply(&step, size) || __builtin_add_overflow(reach, step, &reach))
      return assay_fail(error, ASSAY_ERR_INPUT,
                        "%s: found shape[%" PRId32 "] = %" PRId64 " with stride %" PRId64
                        ", allowed what 63-bit byte offsets reach",
                        name, i, tensor->shape[i], tensor->stride[i]);
  }
  return ASSAY_OK;
}

inline assay_status expect_dtype(const assay_tensor *tensor, const char *name, assay_dtype dtype, assay_error *error) {
  if (tensor->dtype == dtype) return ASSAY_OK;
  return assay_fail(error, ASSAY_ERR_INPUT, "%s: found dtype %s, allowed %s", name, assay_dtype_name(tensor->dtype),
                    assay_dtype_name(dtype));
}

inline assay_status expect_extent(const assay_tensor *tensor, const char *name, int32_t axis, int64_t extent,
                                  assay_error *error) {
  if (tensor->shape[axis] == extent) return ASSAY_OK;
  return assay_fail(error, ASSAY_ERR_INPUT, "%s: found shape[%" PRId32 "] = %" PRId64 ", allowed %" PRId64, name, axis,
                    tensor->shape[axis], extent);
}

inline assay_status expect_stride(const assay_tensor *tensor, const char *name, int32_t axis, int64_t stride,
                                  assay_error *error) {
  if (tensor->shape[axis] <= 1 || tensor->stride[axis] == stride) return ASSAY_OK;
  return assay_fail(error, ASSAY_ERR_INPUT, "%s: found stride[%" PRId32 "] = %" PRId64 ", allowed %" PRId64, name, axis,
                    tensor->stride[axis], stride);
}

/* Refuses row strides below `stride`, so that rows do not overlap. */
inline assay_status expect_row_stride(const assay_tensor *tensor, const char *name, int64_t stride,
                                      assay_error *error) {
  if (tensor->shape[0] <= 1 || tensor->stride[0] >= stride) return ASSAY_OK;
  return assay_fail(error, ASSAY_ERR_INPUT, "%s: found stride[0] = %" PRId64 ", allowed %" PRId64 " and above", name,
                    tensor->stride[0], stride);
}

inline assay_status expect_range(const char *name, int64_t found, int64_t min, int64_t max, int64_t multiple,
                                 assay_error *error) {
  if (found >= min && found <= max && found % multiple == 0) return ASSAY_OK;
  if (multiple == 1)
    return assay_fail(error, ASSAY_ERR_INPUT, "%s: found %" PRId64 ", allowed %" PRId64 " to %" PRId64, name, found,
                      min, max);
  return assay_fail(error, ASSAY_ERR_INPUT,
                    "%s: found %" PRId64 ", allowed multiples of %" PRId64 " from %" PRId64 " to %" PRId64, name, found,
                    multiple, min, max);
}

inline assay_status expect_workspace(const assay_env *env, int64_t bytes, assay_error *error) {
  const int64_t found = env->workspace != NULL ? env->workspace_bytes : 0;
  if (found >= bytes) return ASSAY_OK;
  return assay_fail(error, ASSAY_ERR_INPUT, "workspace: found %" PRId64 " bytes, allowed %" PRId64 " and above", found,
                    bytes);
}

} // namespace ASSAY_NS
#endif
