/* kappa.c: the one table of tier 2's limits. An element's limit is the operator's kappa_element.
 *
 * A mean over n independent errors scatters by about 1 / √(2n) around 1, so narrow rows need more room; with
 * some 10^6 rows the largest of n = 8 lies near 2.3. Values: widths of 64 and more are the starting value 2.0,
 * narrower ones that value over the scatter of their width. Not yet from a calibration run. */
#include "kappa.h"

#include <stddef.h>
#include <string.h>

const kappa_limit kappa_table[] = {
    {NULL, 1, 7.0}, {NULL, 2, 5.0}, {NULL, 4, 3.8}, {NULL, 8, 3.0}, {NULL, 16, 2.6}, {NULL, 32, 2.3}, {NULL, 64, 2.0},
};
const int32_t kappa_count = (int32_t)(sizeof kappa_table / sizeof kappa_table[0]);

double kappa_rms(const char *op, int64_t elements) {
  double limit = 0;
  for (int own = 1; own >= 0 && !(limit > 0); --own) {
    int64_t best = 0;
    for (int32_t i = 0; i < kappa_count; ++i) {
      const kappa_limit *row = &kappa_table[i];
      const int matches = own ? row->op != NULL && strcmp(row->op, op) == 0 : row->op == NULL;
      if (matches && row->elements <= elements && row->elements > best) {
        best = row->elements;
        limit = row->rms;
      }
    }
  }
  return limit > 0 ? limit : 7.0;
}
