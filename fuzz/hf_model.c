/* hf_model.c: any bytes as a folder of the transformers library: config.json, a NUL byte, model.safetensors. A folder
 * that is taken has every weight of its configuration. */
#include <string.h>

#include "core/files/model_file.h"
#include "target.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count) {
  assay_error error = {""};
  model_file model;
  char folder[400];
  const uint8_t *end = count > 0 ? memchr(bytes, 0, count) : NULL;
  const size_t config = end != NULL ? (size_t)(end - bytes) : count, rest = end != NULL ? count - config - 1 : 0;
  (void)snprintf(folder, sizeof folder, "%s", fuzz_beside("config.json", NULL, 0));
  FILE *file = fopen(folder, "wb");
  if (file == NULL || fwrite(bytes, 1, config, file) != config || fclose(file) != 0) fuzz_found("cannot write", folder);
  (void)fuzz_file("model.safetensors", end != NULL ? end + 1 : bytes, rest);
  *strrchr(folder, '/') = '\0';
  if (model_file_hf(folder, &model, &error) != ASSAY_OK) {
    if (error.text[0] == '\0') fuzz_found("refused without a message", "");
    if (model.weights.tensor != NULL || model.weights.memory != NULL) fuzz_found("weights of what was refused", "");
    return 0;
  }
  if (assay_model_check(&model.config, &error) != ASSAY_OK) fuzz_found("taken, though illegal", error.text);
  if (assay_model_weights_check(&model.config, &model.weights, &error) != ASSAY_OK)
    fuzz_found("taken with wrong weights", error.text);
  model_file_free(&model);
  return 0;
}
