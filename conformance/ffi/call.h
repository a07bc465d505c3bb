/* call.h: one call of an exported function over an operator's tensors. Private to this folder. */
#ifndef ASSAY_CONFORMANCE_FFI_CALL_H
#define ASSAY_CONFORMANCE_FFI_CALL_H

#include "plans.h"

/* A binding with its loaded functions. */
typedef struct ffi_function {
  const binding *b;
  const ffi_runtime *runtime;
  abi_function call, plan; /* plan NULL: none */
} ffi_function;

/* Declines a call that the bind file does not cover: ASSAY_ERR_UNSUPPORTED and the reason. Refuses an illegal one. */
assay_status call_supports(const ffi_function *f, const assay_call *call, assay_error *error);
/* Does the host's work for the call, and waits. */
assay_status call_plan(const ffi_function *f, const assay_device *device, const assay_call *call, assay_error *error);
/* Calls the function. The call must be planned. */
assay_status call_launch(const ffi_function *f, const assay_device *device, const assay_call *call, assay_env *env,
                         assay_error *error);

#endif
