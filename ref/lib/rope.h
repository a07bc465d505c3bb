/* rope.h: rotary position embedding of one head, its table, and how far f32 arithmetic may be off. */
#ifndef ASSAY_REF_ROPE_H
#define ASSAY_REF_ROPE_H

#include <stdbool.h>
#include <stdint.h>

#include "assay/op.h"

/* Rotates x to y. x, y: [D], not the same; cosine, sine: [R / 2], the table's row of the position. The first R channels
 * are rotated in pairs (i, i + R/2), or interleaved (2i, 2i + 1); the others are copied. */
void rope_rotate(const double *x, const double *cosine, const double *sine, int64_t R, int64_t D, bool interleaved,
                 double *y);

/* Gives the channels of pair i. */
static inline void rope_pair(int64_t i, int64_t R, bool interleaved, int64_t *first, int64_t *second) {
  *first = interleaved ? 2 * i : i;
  *second = interleaved ? 2 * i + 1 : i + R / 2;
}

/* One head at one position. */
typedef struct rope_head {
  const double *x, *cosine, *sine; /* [D], [R / 2] */
  int64_t R, D;
  bool interleaved;
} rope_head;

/* Writes sigma [D] of the rotated head stored in `out`: both products and the sum in f32, then the type. */
void rope_sigma(const rope_head *h, assay_dtype out, double *sigma);
/* Writes bound [D]: how far the rotated head may be off in f32 at most, before it is stored. */
void rope_bound(const rope_head *h, double *bound);
/* Tells whether every product and sum is exact in f32. If not, *channel is the first channel of the first pair with an
 * inexact one, and *bits its bits. */
bool rope_exact(const rope_head *h, int64_t *channel, double *bits);

/* Checks contents: every position is in the table. */
assay_status rope_check_positions(const assay_tensor *positions, int64_t max_pos, assay_error *error);
/* Fill cosines or sines [max_pos, half], and positions of rows, for the generator. Row 0 of the table turns nothing.
 * The first and the last position are in a quarter of the rows. */
void rope_fill_table(const assay_fill *from, int64_t half, bool sine, double *value, int64_t count);
void rope_fill_positions(const assay_fill *from, int64_t max_pos, double *value, int64_t count);

/* Writes cos and sin of position · base^(-2i/R) for positions 0 .. max_pos - 1, computed in f64, then rounded to f32:
 * [max_pos, R/2]. */
void rope_table(double base, int64_t max_pos, int64_t R, float *cosine, float *sine);

#endif
