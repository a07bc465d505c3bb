/* attention.h: fills attention_params, which every attention kernel gets, once from a call by names; and the checks of
 * every attention launcher. Host code looks only at what the host can see: shapes, strides, types,
 * parameters. Lengths, tables, scales, taps and slopes live on the device and are never read here. */
#ifndef ASSAY_GPU_LIB_ATTENTION_H
#define ASSAY_GPU_LIB_ATTENTION_H

#include <stdint.h>

#include "assay/variant.h"
#include "gpu/lib/attention_params.h"

namespace ASSAY_NS {

/* Fills p and types from the call. Refuses a call with ASSAY_ERR_INPUT and a message with the parameter, what was
 * found, and what is allowed. */
inline assay_status attention_read(const assay_call *call, attention_params *p, attention_types *types,
                                   assay_error *error);

/* Reads an f32 or i32 vector of `count` elements, which must be contiguous. Sets *data to NULL if it is absent; absence
 * is an error unless `optional`. */
inline assay_status attention_vector(const assay_call *call, const char *name, assay_dtype dtype, int64_t count,
                                     bool optional, const void **data, assay_error *error);

/* Read a parameter that must be finite and lie in [min, max]. */
inline assay_status attention_real(const assay_call *call, const char *name, double min, double max, double *value,
                                   assay_error *error);
inline assay_status attention_integer(const assay_call *call, const char *name, int64_t min, int64_t max,
                                      int64_t *value, assay_error *error);

/* Returns the number of threads, and of keys per tile, where each thread takes a key. It is a multiple of a warp up to
 * `most`, and no larger than the keys that a table row can name. */
inline int32_t attention_tile(const attention_params &p, int32_t most);

/* Counts the splits of `keys` keys in a row's capacity, at least one, and the bytes of `floats` f32 for each (row,
 * head, split). */
inline assay_status attention_splits(const attention_params &p, int32_t keys, int32_t floats, int32_t *splits,
                                     int64_t *bytes, assay_error *error);

} // namespace ASSAY_NS

#include "gpu/lib/attention_read.h"
#endif
