/* kappa.c: the one table of tier 2's limits. An element's limit is the operator's kappa_element.
 *
 * Outputs of 16 bits: their own rounding, independent from element to element, is most of the error, so a mean
 * over a row is close to 1. Outputs in f32: the error of one score moves all channels of its row together, so a
 * mean over a row scatters like a single draw, most of all where few keys have weight (needles, heavy tails).
 *
 * Run: `ci/calibration.sh BUILD 1 2 … 24`: the suites of both operators on simt with 24 seeds, and 120,000 drawn cases
 * (assay fuzz, seed 11), three variants of each operator; and 90,000 drawn cases of seed 905. `clean` is the largest
 * that was seen, `rms` is `clean` over 0.80, rounded. Below 8 elements of 16 bits there are too few clean rows for a
 * limit of their own. What counts as how many elements: docs/judging.md. */
#include "kappa.h"

#include <stddef.h>
#include <string.h>

const kappa_limit kappa_table[] = {
    {"gate_attention", false, 8, 2.16, 1.73},
    {"gate_attention", false, 1024, 1.93, 1.54},
    {"gate_attention", true, 1, 3.79, 3.03},
    {"gate_attention", true, 1024, 1.39, 1.11},
    {"softmax_attention", false, 8, 2.16, 1.73},
    {"softmax_attention", false, 1024, 1.88, 1.50},
    {"softmax_attention", true, 1, 3.69, 2.95},
    {"softmax_attention", true, 1024, 1.38, 1.10},
    {NULL, false, 1, 7.00, 0},
    {NULL, false, 2, 5.00, 0},
    {NULL, false, 4, 3.80, 0},
    {NULL, false, 8, 2.10, 0},
    {NULL, true, 1, 7.00, 0},
};
const int32_t kappa_count = (int32_t)(sizeof kappa_table / sizeof kappa_table[0]);

/* The operator's own row for the most elements that are there, else that of all operators. */
int32_t kappa_row(const char *op, assay_dtype dtype, int64_t elements) {
  const bool f32 = dtype == ASSAY_F32;
  int32_t found = -1;
  for (int own = 1; own >= 0 && found < 0; --own) {
    int64_t best = 0;
    for (int32_t i = 0; i < kappa_count; ++i) {
      const kappa_limit *row = &kappa_table[i];
      const bool matches = own == 1 ? row->op != NULL && strcmp(row->op, op) == 0 : row->op == NULL;
      if (!matches || row->f32 != f32 || row->elements > elements || row->elements <= best) continue;
      best = row->elements;
      found = i;
    }
  }
  return found;
}
