/* safetensors.c: any bytes as a safetensors file. Every byte of every tensor that is handed out is read. */
#include "core/files/tensor_file.h"
#include "target.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count) {
  assay_error error = {""};
  tensor_file file;
  static volatile unsigned char sink;
  if (tensor_file_safetensors(fuzz_file("a.safetensors", bytes, count), &file, &error) != ASSAY_OK) {
    if (error.text[0] == '\0' || file.bytes != NULL) fuzz_found("refused without a message, or not wholly", error.text);
    return 0;
  }
  for (int32_t i = 0; i < file.count; ++i)
    for (int64_t n = 0; n < file.tensor[i].count * assay_dtype_size(file.tensor[i].dtype); ++n)
      sink = (unsigned char)(sink + file.tensor[i].data[n]);
  tensor_file_free(&file);
  return 0;
}
