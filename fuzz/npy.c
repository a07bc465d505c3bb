/* npy.c: any bytes as a .npy file. Every element that is handed out is read. */
#include "conformance/text/text.h"
#include "target.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count) {
  assay_error error = {""};
  npy_tensor tensor;
  static volatile double sink;
  if (npy_read(fuzz_file("a.npy", bytes, count), NULL, NULL, &tensor, &error) != ASSAY_OK) {
    if (error.text[0] == '\0' || tensor.data != NULL)
      fuzz_found("refused without a message, or not wholly", error.text);
    return 0;
  }
  for (int64_t i = 0; i < tensor.count; ++i)
    sink += npy_load(&tensor, i);
  (void)sink;
  npy_free(&tensor);
  return 0;
}
