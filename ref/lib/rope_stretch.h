/* rope_stretch.h: frequencies of rotary positions, and how a longer context stretches them. The operator rope_table and
 * the forward passes take them from here. */
#ifndef ASSAY_REF_ROPE_STRETCH_H
#define ASSAY_REF_ROPE_STRETCH_H

#include <stdbool.h>
#include <stdint.h>

enum { STRETCH_PLAIN, STRETCH_YARN, STRETCH_LLAMA3 };

typedef struct rope_stretch {
  int64_t R;    /* rotated channels */
  int32_t kind; /* STRETCH_PLAIN, ... */
  double base, factor, original, beta_fast, beta_slow, concentration, low, high;
  bool truncate;
  bool turned; /* a planted error: the ramp goes the other way */
} rope_stretch;

/* Returns inv_i: the angle of frequency i per position. */
double rope_stretch_inverse(const rope_stretch *f, int64_t i);
/* Returns c, by which cosines and sines are multiplied. */
double rope_stretch_concentration(const rope_stretch *f);

#endif
