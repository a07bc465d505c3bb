/* bind.c: any bytes as a bind file: read whole, or refused with file:line:column. */
#include <string.h>

#include "conformance/ffi/ffi.h"
#include "target.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count) {
  assay_error error = {""};
  const char *path = fuzz_file("bind.yaml", bytes, count);
  if (ffi_check(path, &error) != ASSAY_OK && strstr(error.text, "bind.yaml:") == NULL)
    fuzz_found("no place named", error.text);
  return 0;
}
