/* model_narrow.c: weights of products as e4m3, with a scale for every block of 128 x 128. For a block with the largest
 * absolute value a: s = fl32(a / 448), code = e4m3(w / s), to the nearest, ties to even.
 *
 * Source: DeepSeek-AI, "DeepSeek-V3 technical report", 2024, section 3.3. */
#include "core/model_narrow.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/dtype.h"

enum { BLOCK = ASSAY_MODEL_FP8_BLOCK };
static const double largest_code = 448;

static int64_t smaller(int64_t a, int64_t b) {
  return a < b ? a : b;
}

/* Stores one block, whose first element is at row r and column c. */
static int64_t narrow_block(const assay_tensor *from, int64_t r, int64_t c, const assay_tensor *codes,
                            const assay_tensor *scales) {
  const int64_t columns = from->shape[1], rows = smaller(BLOCK, from->shape[0] - r),
                width = smaller(BLOCK, columns - c);
  double value[BLOCK], most = 0;
  for (int64_t i = 0; i < rows; ++i) {
    assay_load_f64_row(from->data, from->dtype, (r + i) * columns + c, 1, width, value);
    for (int64_t j = 0; j < width; ++j) {
      if (!isfinite(value[j])) return (r + i) * columns + c + j;
      if (fabs(value[j]) > most) most = fabs(value[j]);
    }
  }
  const float scale = (float)(most / largest_code);
  const double divisor = scale > 0 ? (double)scale : 1;
  for (int64_t i = 0; i < rows; ++i) {
    assay_load_f64_row(from->data, from->dtype, (r + i) * columns + c, 1, width, value);
    for (int64_t j = 0; j < width; ++j)
      value[j] = fmax(-largest_code, fmin(largest_code, value[j] / divisor));
    assay_store_f64_row(codes->data, codes->dtype, (r + i) * columns + c, 1, width, value);
  }
  assay_store_f64(scales->data, scales->dtype, r / BLOCK * scales->shape[1] + c / BLOCK, divisor);
  return -1;
}

int64_t model_narrow_matrix(const assay_tensor *from, const assay_tensor *codes, const assay_tensor *scales) {
  for (int64_t r = 0; r < from->shape[0]; r += BLOCK)
    for (int64_t c = 0; c < from->shape[1]; c += BLOCK) {
      const int64_t wrong = narrow_block(from, r, c, codes, scales);
      if (wrong >= 0) return wrong;
    }
  return -1;
}

int64_t model_narrow_width(const assay_model_config *config) {
  assay_weight_spec spec;
  int64_t width = 0;
  for (int32_t i = 0; config->fp8_weights && assay_model_weight_spec(config, i, &spec); ++i)
    if (spec.dtype == ASSAY_E4M3 && spec.shape[1] > width) width = spec.shape[1];
  return width;
}

assay_status assay_model_narrow(const assay_model_config *config, const assay_model_weights *weights,
                                assay_model_config *narrow_config, assay_model_weights *narrow, assay_error *error) {
  assay_weight_spec spec;
  *narrow_config = *config;
  *narrow = (assay_model_weights){0};
  if (config->fp8_weights)
    return assay_fail(error, ASSAY_ERR_INPUT, "fp8_weights: found true, allowed false: the weights are e4m3 already");
  narrow_config->fp8_weights = true;
  assay_status status = assay_model_weights_check(config, weights, error);
  if (status == ASSAY_OK) status = assay_model_check(narrow_config, error);
  if (status == ASSAY_OK) status = assay_model_weights_alloc(narrow_config, narrow, error);
  for (int32_t i = 0, from = 0; status == ASSAY_OK && assay_model_weight_spec(narrow_config, i, &spec); ++i, ++from) {
    const assay_tensor *const wide = &weights->tensor[from], *const to = &narrow->tensor[i];
    if (spec.dtype != ASSAY_E4M3) {
      const int64_t count = spec.shape[0] * spec.shape[1];
      memcpy(to->data, wide->data, (size_t)(count * assay_dtype_size(spec.dtype)));
      continue;
    }
    const int64_t wrong = model_narrow_matrix(wide, to, &narrow->tensor[++i]);
    if (wrong >= 0)
      status =
          assay_fail(error, ASSAY_ERR_INPUT, "weight %s: found a number at %lld that is not finite, allowed finite",
                     spec.name, (long long)wrong);
  }
  if (status != ASSAY_OK) assay_model_weights_free(narrow);
  return status;
}
