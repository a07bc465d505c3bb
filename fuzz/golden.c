/* golden.c: any text as recorded ids of a checkpoint with one layer, 11 ids and 8 positions. */
#include <string.h>

#include "conformance/truth/truth.h"
#include "target.h"

enum { HEADER = 7, C = 8, I = 8, V = 11, POSITIONS = 8 };

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count) {
  enum { FLOATS = V * C + C + 4 * C * C + C + 3 * I * C + C + POSITIONS * C };
  static struct {
    int32_t header[HEADER];
    float weight[FLOATS];
  } model = {{C, I, 1, 1, 1, V, POSITIONS}, {0}};
  static FILE *nowhere;
  static char path[256];
  assay_error error = {""};
  const char *golden = fuzz_file("golden.json", bytes, count);
  if (nowhere == NULL) {
    nowhere = fopen("/dev/null", "w");
    for (int i = 0; i < FLOATS; ++i)
      model.weight[i] = (float)(i % 29) / 16 - 1;
    (void)snprintf(path, sizeof path, "%s", fuzz_beside("model.bin", (const uint8_t *)&model, sizeof model));
  }
  truth_log log = {.to = nowhere};
  if (truth_llama2c(path, golden, "ref", &log, &error) != ASSAY_OK && error.text[0] == '\0')
    fuzz_found("refused without a message", "");
  return 0;
}
