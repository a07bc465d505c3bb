/* safetensors.c: any bytes as a safetensors file. Every byte of every tensor that is handed out is read. */
#include "core/files/tensor_file.h"
#include "target.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count) {
  assay_error error = {""};
  tensor_file made;
  static volatile unsigned char sink;
  if (tensor_file_safetensors(fuzz_file("a.safetensors", bytes, count), &made, &error) != ASSAY_OK) {
    if (error.text[0] == '\0' || made.bytes != NULL) fuzz_found("refused without a message, or not wholly", error.text);
    return 0;
  }
  for (int32_t i = 0; i < made.count; ++i)
    for (int64_t n = 0; n < made.tensor[i].count * assay_dtype_size(made.tensor[i].dtype); ++n)
      sink = (unsigned char)(sink + made.tensor[i].data[n]);
  tensor_file_free(&made);
  return 0;
}
