/* onnx.c: any text as an index of ONNX cases over 16 KiB of numbers. */
#include <string.h>

#include "conformance/truth/truth.h"
#include "target.h"

enum { FLOATS = 4096 };

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count) {
  static float data[FLOATS];
  static FILE *nowhere;
  char folder[256];
  assay_error error = {""};
  const char *path = fuzz_file("index.json", bytes, count);
  (void)snprintf(folder, sizeof folder, "%s", path);
  *strrchr(folder, '/') = '\0';
  if (nowhere == NULL) {
    nowhere = fopen("/dev/null", "w");
    for (int i = 0; i < FLOATS; ++i)
      data[i] = (float)(i % 31) / 16 - 1;
    static const int64_t whole[8] = {0, 1, 2, 3, 2, 1, 0, 1}; /* k, indices, positions: the last 64 bytes */
    memcpy(data + FLOATS - 2 * 8, whole, sizeof whole);
    (void)fuzz_beside("packed.bin", (const uint8_t *)data, sizeof data);
  }
  truth_log log = {.to = nowhere};
  if (truth_onnx(folder, &log, &error) != ASSAY_OK && error.text[0] == '\0')
    fuzz_found("refused without a message", "");
  return 0;
}
