/* model_yaml.c: any text as a model's configuration. A file that is taken passes the model's own check. */
#include "conformance/models/models.h"
#include "target.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count) {
  assay_error error = {""};
  assay_model_config config;
  uint64_t seed = 0;
  if (model_open_config(fuzz_file("model.yaml", bytes, count), &config, &seed, &error) != ASSAY_OK) {
    if (error.text[0] == '\0') fuzz_found("refused without a message", "");
    return 0;
  }
  if (assay_model_check(&config, &error) != ASSAY_OK) fuzz_found("taken, though illegal", error.text);
  if (assay_model_weight_count(&config) < 1) fuzz_found("taken, without weights", "");
  return 0;
}
