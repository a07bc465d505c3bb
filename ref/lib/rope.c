/* rope.c: rotary position embedding of one head, and its table. */
#include "ref/lib/rope.h"

#include <math.h>

void rope_rotate(const double *x, const double *cosine, const double *sine, int64_t R, int64_t D, bool interleaved,
                 double *y) {
  for (int64_t i = 0; i < R / 2; ++i) {
    int64_t a, b;
    rope_pair(i, R, interleaved, &a, &b);
    y[a] = x[a] * cosine[i] - x[b] * sine[i];
    y[b] = x[b] * cosine[i] + x[a] * sine[i];
  }
  for (int64_t d = R; d < D; ++d)
    y[d] = x[d];
}

void rope_table(double base, int64_t max_pos, int64_t R, float *cosine, float *sine) {
  for (int64_t i = 0; i < R / 2; ++i) {
    const double frequency = pow(base, -2 * (double)i / (double)R);
    for (int64_t position = 0; position < max_pos; ++position) {
      const double angle = (double)position * frequency;
      cosine[position * (R / 2) + i] = (float)cos(angle);
      sine[position * (R / 2) + i] = (float)sin(angle);
    }
  }
}
