/* neighbours.h: sum contracts beside a declared one, and the one of them that gives the bits found. Private to this
 * folder. */
#ifndef ASSAY_CONFORMANCE_TRIAL_NEIGHBOURS_H
#define ASSAY_CONFORMANCE_TRIAL_NEIGHBOURS_H

#include <stddef.h>
#include <stdint.h>

#include "assay/sums.h"

enum { NEIGHBOUR_MOST = 12 };

/* An element of a product, and its bits as they were found. */
typedef struct neighbour_element {
  int64_t m, n;
  uint32_t bits; /* in the width of the output's type */
} neighbour_element;

/* Looks for a contract beside `sums` that gives all elements. Writes "as if K were cut into 2 parts", or nothing. */
void neighbours_explain(const assay_sums *sums, const assay_product *product, const neighbour_element *element,
                        int32_t count, char *text, size_t size);

#endif
