/* judge_manifest.c: any text as the manifest of a folder with some small tensors: of kv_append, rms_norm and
 * attention. Its words about them may be wrong in every way. */
#include <string.h>

#include "conformance/trial/trial.h"
#include "conformance/truth/truth.h"
#include "conformance/text/text.h"
#include "target.h"

enum { HEADS = 2, D = 8, BLOCK = 8, BLOCKS = 2 };

static void put(const char *name, int type, int32_t rank, const int64_t *shape, const void *data) {
  assay_error error = {""};
  if (npy_write(fuzz_beside(name, NULL, 0), type, rank, shape, data, &error) != ASSAY_OK)
    fuzz_found("cannot write", error.text);
}

static void make_tensors(void) {
  static float values[BLOCKS * BLOCK * HEADS * D];
  static const int32_t table[2] = {1, 0}, length[1] = {11};
  static const int64_t slots[2] = {3, 9};
  const int64_t pool[4] = {BLOCKS, BLOCK, HEADS, D}, fresh[3] = {2, HEADS, D}, row[3] = {1, HEADS, D};
  const int64_t matrix[2] = {2, 16}, vector[1] = {16}, two[1] = {2}, single[1] = {1}, tables[2] = {1, 2};
  for (size_t i = 0; i < sizeof values / sizeof *values; ++i)
    values[i] = (float)(i % 13) / 8;
  put("pool.npy", ASSAY_F32, 4, pool, values);
  put("fresh.npy", ASSAY_F32, 3, fresh, values);
  put("row.npy", ASSAY_F32, 3, row, values);
  put("matrix.npy", ASSAY_F32, 2, matrix, values);
  put("vector.npy", ASSAY_F32, 1, vector, values);
  put("slots.npy", ASSAY_I64, 1, two, slots);
  put("table.npy", ASSAY_I32, 2, tables, table);
  put("length.npy", ASSAY_I32, 1, single, length);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count) {
  static bool written;
  static FILE *nowhere;
  char folder[256];
  assay_error error = {""};
  const char *path = fuzz_file(DUMP_MANIFEST, bytes, count);
  (void)snprintf(folder, sizeof folder, "%s", path);
  *strrchr(folder, '/') = '\0';
  if (!written) make_tensors();
  if (!written) nowhere = fopen("/dev/null", "w");
  written = true;
  truth_log log = {.to = nowhere};
  if (judge_dir(folder, &log, &error) != ASSAY_OK && error.text[0] == '\0') fuzz_found("refused without a message", "");
  return 0;
}
