/* flush.c: see flush.h. */
#include "flush.h"

#include "core/dtype.h"

void flush_numbers(assay_dtype dtype, void *data, int64_t bytes) {
  const double least = dtype == ASSAY_F32 || dtype == ASSAY_BF16 ? 0x1p-126 : 0;
  const int64_t size = assay_dtype_size(dtype);
  for (int64_t i = 0; least > 0 && i < bytes / size; ++i) {
    const double value = assay_load_f64(data, dtype, i);
    if (value > -least && value < least) assay_store_f64(data, dtype, i, 0);
  }
}

void flush_widen(assay_expected *expected, const assay_expected *other, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    double *sigma = &expected->sigma[i];
    const double value = expected->value[i], moved = value - other->value[i];
    /* A flushed term of a sum moves it by up to 2^-126. The f32 arithmetic of larger sums allows that anyway. A number
     * that is copied has no terms. */
    const double below = *sigma > 0 ? 0x1p-102 : 0x1p-120;
    const bool touched = (moved < 0 || moved > 0) || (value > -below && value < below);
    if (*sigma < 0 || !assay_is_finite(moved) || !touched) continue;
    *sigma += (moved < 0 ? -moved : moved) + 0x1p-126;
  }
}
