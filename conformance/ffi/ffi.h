/* ffi.h: variants from libraries of the tvm-ffi ABI (docs/doors/ffi.md). This is the only header of this folder that
 * other folders include. */
#ifndef ASSAY_CONFORMANCE_FFI_FFI_H
#define ASSAY_CONFORMANCE_FFI_FFI_H

#include "assay/status.h"

/* Reads a bind file alone. Fails with ASSAY_ERR_INPUT and the place of a mistake. */
assay_status ffi_check(const char *bind, assay_error *error);

/* Does the same, looks at the library in a child process, and registers the variant of the file for each of its
 * devices. `runtime`: the file of libtvm_ffi, or NULL. Fails as assay_plugin_load does, too. */
assay_status ffi_load(const char *library, const char *bind, const char *runtime, assay_error *error);

#endif
