/* around.h: the work before and after a call, in the call's stream: copies, and logarithms to another base. Private to
 * this folder. */
#ifndef ASSAY_CONFORMANCE_FFI_AROUND_H
#define ASSAY_CONFORMANCE_FFI_AROUND_H

#include "plans.h"

/* Fills what the function reads and we hold in another form. */
assay_status around_before(const ffi_plan *p, const assay_call *call, void *stream, assay_error *error);
/* Brings what it wrote into our form; copies a tensor that it returned. */
assay_status around_after(const ffi_plan *p, const assay_call *call, const abi_value *result, void *stream,
                          assay_error *error);

#endif
