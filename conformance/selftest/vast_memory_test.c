/* vast_memory_test.c: a range of the law `vast` waits for memory that other workers hold. */
#include <criterion/criterion.h>

#include "conformance/laws/far_internal.h"
#include "conformance/laws/vast_internal.h"

static int refusals; /* how many calls find no memory */
static unsigned char memory[64];

static assay_status alloc_filled(int64_t bytes, int64_t before, const assay_piece *piece, int32_t count, void **made,
                                 assay_error *error) {
  (void)bytes, (void)before, (void)piece, (void)count;
  if (refusals-- > 0) return assay_fail(error, ASSAY_ERR_MEMORY, "no memory");
  *made = memory;
  return ASSAY_OK;
}

static void release(void *made) {
  cr_assert_eq(made, (void *)memory);
}

static assay_status take(int refuse, vast_range *range) {
  static const assay_sparse sparse = {.alloc_filled = alloc_filled, .release = release};
  static const assay_device device = {.name = "short of memory"};
  const trial t = {.device = &device};
  const assay_piece all = {0, sizeof memory};
  assay_error error = {""};
  refusals = refuse;
  far_memory(device.name, &sparse);
  *range = (vast_range){.bytes = sizeof memory};
  const assay_status status = vast_take(&t, range, &all, 1, &error);
  if (status == ASSAY_OK) vast_give(&t, range);
  return status;
}

Test(vast_memory, waits_for_memory_of_others) {
  vast_range range;
  cr_assert_eq(take(0, &range), ASSAY_OK);
  cr_assert_eq(take(3, &range), ASSAY_OK);
}

Test(vast_memory, gives_up, .timeout = 60) {
  vast_range range;
  cr_assert_eq(take(1 << 20, &range), ASSAY_ERR_MEMORY);
  cr_assert_null(range.memory);
}
