/* simt_far_table_test.c: rows of an embedding table beyond 2^31 elements. The table has no row stride, and no case can
 * have its rows apart. Here it is whole, 2^32 elements and more, and only the rows that are asked for are memory. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "assay/device.h"
#include "conformance/builtin.h"
#include "core/registry.h"

enum { TOKENS = 5, CHANNELS = 4104, ROWS = 1 << 20 };

static const int32_t ids[TOKENS] = {0, 1, (1 << 19) + 3, ROWS - 1, 1 << 18};

static uint16_t element_of(int token, int64_t c) {
  return (uint16_t)(0x3F80u + (uint32_t)(token * 61 + c % 59)); /* bf16 */
}

/* Reserved addresses, of which the pages of those rows can be written. */
static uint16_t *make_table(size_t bytes) {
  const int64_t page = sysconf(_SC_PAGESIZE);
  unsigned char *table = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  cr_assert(table != MAP_FAILED);
  for (int t = 0; t < TOKENS; ++t) {
    const int64_t from = (int64_t)ids[t] * CHANNELS * 2, begin = from / page * page, end = from + CHANNELS * 2;
    cr_assert_eq(mprotect(table + begin, (size_t)(end - begin), PROT_READ | PROT_WRITE), 0);
    for (int64_t c = 0; c < CHANNELS; ++c)
      ((uint16_t *)(void *)table)[(int64_t)ids[t] * CHANNELS + c] = element_of(t, c);
  }
  return (uint16_t *)(void *)table;
}

static void look_up(const char *name, uint16_t *table) {
  static uint16_t y[TOKENS * CHANNELS];
  static int32_t own[TOKENS];
  assay_error error = {""};
  const assay_device *device = assay_device_find("simt");
  const assay_variant *variant = assay_variant_find("embedding", name, "simt");
  cr_assert(device != NULL && variant != NULL, "%s", name);
  assay_tensor arg[ASSAY_MAX_ARGS] = {{0}};
  memcpy(own, ids, sizeof own);
  memset(y, 0xFF, sizeof y);
  arg[0] =
      (assay_tensor){.data = table, .dtype = ASSAY_BF16, .rank = 2, .shape = {ROWS, CHANNELS}, .stride = {CHANNELS, 1}};
  arg[1] = (assay_tensor){.data = own, .dtype = ASSAY_I32, .rank = 1, .shape = {TOKENS}, .stride = {1}};
  arg[4] =
      (assay_tensor){.data = y, .dtype = ASSAY_BF16, .rank = 2, .shape = {TOKENS, CHANNELS}, .stride = {CHANNELS, 1}};
  const double param[ASSAY_MAX_PARAMS] = {0};
  const assay_call call = {assay_op_find("embedding"), arg, param};
  assay_env env = {.stream = device->stream(), .multiprocessors = 4};
  cr_assert_eq(variant->launch(&call, &env, &error), ASSAY_OK, "%s: %s", name, error.text);
  cr_assert_eq(device->synchronize(&error), ASSAY_OK, "%s: %s", name, error.text);
  for (int t = 0; t < TOKENS; ++t)
    for (int64_t c = 0; c < CHANNELS; ++c)
      cr_assert_eq(y[t * CHANNELS + c], element_of(t, c), "%s: token %d, channel %d", name, t, (int)c);
}

Test(simt_far_table, rows_beyond_2_31_elements) {
  const size_t bytes = (size_t)ROWS * CHANNELS * 2;
  assay_error error = {""};
  cr_assert_eq(builtin_register(&error), ASSAY_OK, "%s", error.text);
  cr_assert_eq(assay_device_find("simt")->open(&error), ASSAY_OK, "%s", error.text);
  uint16_t *table = make_table(bytes);
  look_up("vectors", table);
  look_up("channels", table);
  cr_assert_eq(munmap(table, bytes), 0);
}
