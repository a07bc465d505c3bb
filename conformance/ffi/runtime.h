/* runtime.h: libtvm_ffi and a library with exported functions, loaded into this process. Private to this folder. */
#ifndef ASSAY_CONFORMANCE_FFI_RUNTIME_H
#define ASSAY_CONFORMANCE_FFI_RUNTIME_H

#include <stdbool.h>

#include "abi.h"
#include "assay/device.h"
#include "assay/tensor.h"

/* The two objects. Zero-initialised. */
typedef struct ffi_runtime {
  void *runtime, *library; /* handles that dlopen gave */
  const char *name;        /* the library's path, for messages */
  int (*drop)(void *object);
  void (*take_error)(void **object);
  int (*set_stream)(int32_t device_type, int32_t device_id, void *stream, void **before);
  int (*set_allocator)(abi_allocator allocator, int global, abi_allocator *before);
} ffi_runtime;

/* Returns DLPack's code of a type; bytes for ASSAY_NONE. */
abi_dtype abi_dtype_of(assay_dtype dtype);

/* Loads libtvm_ffi with RTLD_GLOBAL, because libraries do not name it; then the library. `runtime`: the file of
 * libtvm_ffi. NULL: $ASSAY_FFI_RUNTIME, or libtvm_ffi.so beside the library, or what the loader finds. Fails with
 * ASSAY_ERR_IO. */
assay_status runtime_open(ffi_runtime *r, const char *library, const char *runtime, assay_error *error);
void runtime_close(ffi_runtime *r);

/* Finds an exported function. Fails with ASSAY_ERR_INPUT. Where the library has metadata of it, the number of its
 * arguments must be `count`. */
assay_status runtime_find(const ffi_runtime *r, const char *symbol, int32_t count, abi_function *made,
                          assay_error *error);
/* Calls it. The caller drops `result` if it is an object. An error that the function raises becomes ASSAY_ERR_INPUT
 * with its kind and message. */
assay_status runtime_call(const ffi_runtime *r, const char *symbol, abi_function function, const abi_value *args,
                          int32_t count, abi_value *result, assay_error *error);
void runtime_drop(const ffi_runtime *r, abi_value *value);

/* Tensors that functions make for themselves come from this device's memory from now on. */
assay_status runtime_allocate_on(const ffi_runtime *r, const assay_device *device, assay_error *error);

#endif
