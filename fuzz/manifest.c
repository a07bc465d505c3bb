/* manifest.c: any text as the manifest of a flat file with 4 KiB of data; and as that of a model. Every byte of every
 * tensor that is handed out is read. */
#include <stdlib.h>

#include "core/files/model_file.h"
#include "target.h"

enum { DATA = 4096 };

static void read_all(const tensor_file *f) {
  static volatile unsigned char sink;
  for (int32_t i = 0; i < f->count; ++i)
    for (int64_t n = 0; n < f->tensor[i].count * assay_dtype_size(f->tensor[i].dtype); ++n)
      sink = (unsigned char)(sink + f->tensor[i].data[n]);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count) {
  assay_error error = {""};
  static uint8_t data[DATA];
  tensor_file file;
  model_file model;
  const char *path = fuzz_file("manifest.json", bytes, count), *beside = fuzz_beside("weights_f32.bin", data, DATA);
  if (tensor_file_flat(path, beside, &file, &error) == ASSAY_OK) {
    read_all(&file);
    tensor_file_free(&file);
  } else if (error.text[0] == '\0' || file.bytes != NULL) {
    fuzz_found("refused without a message, or not wholly", error.text);
  }
  error.text[0] = '\0';
  if (model_file_flat(path, &model, &error) == ASSAY_OK)
    model_file_free(&model);
  else if (error.text[0] == '\0' || model.weights.tensor != NULL)
    fuzz_found("refused without a message, or not wholly", error.text);
  return 0;
}
