/* vector.h: loops over one row of D channels, in f64. D is a multiple of 8: eight running sums let the compiler use
 * vector registers without reordering anything written here. */
#ifndef ASSAY_REF_VECTOR_H
#define ASSAY_REF_VECTOR_H

#include <math.h>
#include <stdint.h>

enum { VECTOR_LANES = 8 };

static inline double vector_fold(const double lane[VECTOR_LANES]) {
  return ((lane[0] + lane[4]) + (lane[2] + lane[6])) + ((lane[1] + lane[5]) + (lane[3] + lane[7]));
}

/* Returns sum_d a_d b_d. */
static inline double vector_dot(const double *restrict a, const double *restrict b, int64_t D) {
  double lane[VECTOR_LANES] = {0};
  for (int64_t d = 0; d < D; d += VECTOR_LANES)
    for (int i = 0; i < VECTOR_LANES; ++i)
      lane[i] += a[d + i] * b[d + i];
  return vector_fold(lane);
}

/* Returns sum_d |a_d b_d|. */
static inline double vector_dot_abs(const double *restrict a, const double *restrict b, int64_t D) {
  double lane[VECTOR_LANES] = {0};
  for (int64_t d = 0; d < D; d += VECTOR_LANES)
    for (int i = 0; i < VECTOR_LANES; ++i)
      lane[i] += fabs(a[d + i] * b[d + i]);
  return vector_fold(lane);
}

/* Returns sum_d (a_d b_d)^2. */
static inline double vector_dot_square(const double *restrict a, const double *restrict b, int64_t D) {
  double lane[VECTOR_LANES] = {0};
  for (int64_t d = 0; d < D; d += VECTOR_LANES)
    for (int i = 0; i < VECTOR_LANES; ++i)
      lane[i] += a[d + i] * b[d + i] * (a[d + i] * b[d + i]);
  return vector_fold(lane);
}

/* Adds y_d += a x_d. */
static inline void vector_add(double *restrict y, double a, const double *restrict x, int64_t D) {
  for (int64_t d = 0; d < D; ++d)
    y[d] += a * x[d];
}

/* Adds y_d += a |x_d|. */
static inline void vector_add_abs(double *restrict y, double a, const double *restrict x, int64_t D) {
  for (int64_t d = 0; d < D; ++d)
    y[d] += a * fabs(x[d]);
}

/* Adds y_d += a x_d^2. */
static inline void vector_add_square(double *restrict y, double a, const double *restrict x, int64_t D) {
  for (int64_t d = 0; d < D; ++d)
    y[d] += a * (x[d] * x[d]);
}

static inline void vector_zero(double *y, int64_t D) {
  for (int64_t d = 0; d < D; ++d)
    y[d] = 0;
}

#endif
