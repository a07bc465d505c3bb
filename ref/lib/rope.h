/* rope.h: rotary position embedding of one head, and its table. */
#ifndef ASSAY_REF_ROPE_H
#define ASSAY_REF_ROPE_H

#include <stdbool.h>
#include <stdint.h>

/* y = x rotated. x, y: [D], not the same; cosine, sine: [R / 2], the table's row of the position. The first R channels
 * are rotated in pairs (i, i + R/2), or interleaved (2i, 2i + 1); the others are copied. */
void rope_rotate(const double *x, const double *cosine, const double *sine, int64_t R, int64_t D, bool interleaved,
                 double *y);

/* The channels of pair i. */
static inline void rope_pair(int64_t i, int64_t R, bool interleaved, int64_t *first, int64_t *second) {
  *first = interleaved ? 2 * i : i;
  *second = interleaved ? 2 * i + 1 : i + R / 2;
}

/* cos and sin of position · base^(-2i/R) for positions 0 .. max_pos - 1, in f64, then rounded to f32. [max_pos, R/2] */
void rope_table(double base, int64_t max_pos, int64_t R, float *cosine, float *sine);

#endif
