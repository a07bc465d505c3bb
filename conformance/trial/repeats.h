/* repeats.h: which rows of an expected result repeat an earlier one. They come from the same inputs, as where two
 * indices name one row, and a kernel makes the same error in each. */
#ifndef ASSAY_CONFORMANCE_TRIAL_REPEATS_H
#define ASSAY_CONFORMANCE_TRIAL_REPEATS_H

#include <stdbool.h>
#include <stdint.h>

typedef struct repeats {
  int64_t *place;   /* [mask + 1] number of a row plus 1; 0: free */
  int64_t *request; /* [mask + 1] of that row */
  uint64_t mask;
} repeats;

/* Makes room for `rows` rows. Returns false without memory. */
bool repeats_open(repeats *r, int64_t rows);
/* Forgets all rows. */
void repeats_clear(repeats *r);
/* Tells whether an earlier row of this request had the same values and the same sigmas, bit for bit. value, sigma:
 * [rows, width]. Rows of other requests do not count. */
bool repeats_row(repeats *r, const double *value, const double *sigma, int64_t width, int64_t row, int64_t request);
void repeats_close(repeats *r);

#endif
