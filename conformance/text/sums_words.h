/* sums_words.h: the fields of a sum contract (assay/sums.h) by name, for bind files and manifests. */
#ifndef ASSAY_CONFORMANCE_TEXT_SUMS_WORDS_H
#define ASSAY_CONFORMANCE_TEXT_SUMS_WORDS_H

#include <stdbool.h>
#include <stdint.h>

#include "assay/sums.h"

/* Sets a field: unit, parts, pad, tile, join, promote, scale, after. `after` is a list with commas: "alpha, old, bias".
 * Refuses other names and values with ASSAY_ERR_INPUT, by the field's name. */
assay_status sums_set(assay_sums *sums, const char *field, const char *value, assay_error *error);
/* Writes name and value of field number `index` as sums_set takes them. Returns false after the last. */
bool sums_field(const assay_sums *sums, int32_t index, const char **name, char *value, size_t size);
/* Tells whether the fields say all: the contract has no order and no ends of its own. */
bool sums_is_plain(const assay_sums *sums);

#endif
