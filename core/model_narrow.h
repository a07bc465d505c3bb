/* model_narrow.h: weights of e4m3 with a scale for every 128 x 128 of them. */
#ifndef ASSAY_CORE_MODEL_NARROW_H
#define ASSAY_CORE_MODEL_NARROW_H

#include "assay/model.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Stores a matrix [rows, columns] as codes and scales. Returns the number of the first element that is not finite, and
 * -1 if all are. */
int64_t model_narrow_matrix(const assay_tensor *from, const assay_tensor *codes, const assay_tensor *scales);
/* Returns the most channels of a row that a product with weights of e4m3 takes; 0: there is no such product. */
int64_t model_narrow_width(const assay_model_config *config);

#ifdef __cplusplus
}
#endif

#endif
