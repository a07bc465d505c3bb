/* checkpoint.c: any bytes as a llama2.c checkpoint. A file that is taken has every weight of its header. */
#include "core/files/model_file.h"
#include "target.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count) {
  assay_error error = {""};
  model_file model;
  if (model_file_llama2c(fuzz_file("model.bin", bytes, count), &model, &error) != ASSAY_OK) {
    if (error.text[0] == '\0') fuzz_found("refused without a message", "");
    if (model.weights.tensor != NULL || model.weights.memory != NULL) fuzz_found("weights of what was refused", "");
    return 0;
  }
  if (assay_model_weights_check(&model.config, &model.weights, &error) != ASSAY_OK)
    fuzz_found("taken with wrong weights", error.text);
  model_file_free(&model);
  return 0;
}
