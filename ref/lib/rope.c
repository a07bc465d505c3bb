/* rope.c: rotary position embedding of one head, its table, and how far f32 arithmetic may be off. */
#include "ref/lib/rope.h"

#include <math.h>

#include "core/dtype.h"
#include "core/rng.h"
#include "ref/lib/error_model.h"
#include "ref/lib/lattice.h"
#include "ref/lib/plain.h"
#include "ref/lib/rowwise.h"

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

/* ---- the error model --------------------------------------------------------------------------------- */

/* Returns the variance of a c + b s (with b or s negated): both products and the sum in f32, then the type. It is 0 if
 * all of them are exact. */
static double variance(double a, double c, double b, double s, assay_dtype out) {
  const double term[2] = {a * c, b * s}, y = term[0] + term[1];
  const double products = rounding_variance(term[0], ASSAY_F32) + rounding_variance(term[1], ASSAY_F32);
  if (products == 0) return few_terms_variance(term, 2, out);
  return products + (out != ASSAY_F32 ? rounding_variance(y, ASSAY_F32) : 0) + storing_variance(y, out);
}

void rope_sigma(const rope_head *h, assay_dtype out, double *sigma) {
  for (int64_t i = 0; i < h->R / 2; ++i) {
    int64_t a, b;
    rope_pair(i, h->R, h->interleaved, &a, &b);
    sigma[a] = sqrt(variance(h->x[a], h->cosine[i], -h->x[b], h->sine[i], out));
    sigma[b] = sqrt(variance(h->x[b], h->cosine[i], h->x[a], h->sine[i], out));
  }
  for (int64_t d = h->R; d < h->D; ++d)
    sigma[d] = 0;
}

static double bound_of(double a, double c, double b, double s) {
  return rounding_bound(a * c, ASSAY_F32) + rounding_bound(b * s, ASSAY_F32) + rounding_bound(a * c + b * s, ASSAY_F32);
}

void rope_bound(const rope_head *h, double *bound) {
  for (int64_t i = 0; i < h->R / 2; ++i) {
    int64_t a, b;
    rope_pair(i, h->R, h->interleaved, &a, &b);
    bound[a] = bound_of(h->x[a], h->cosine[i], -h->x[b], h->sine[i]);
    bound[b] = bound_of(h->x[b], h->cosine[i], h->x[a], h->sine[i]);
  }
  for (int64_t d = h->R; d < h->D; ++d)
    bound[d] = 0;
}

/* ---- the exact tier ---------------------------------------------------------------------------------- */

static bool sum_exact(double a, double c, double b, double s) {
  const double term[2] = {a * c, b * s};
  return lattice_admits(fabs(term[0]), lattice_low(a) + lattice_low(c), 24) &&
         lattice_admits(fabs(term[1]), lattice_low(b) + lattice_low(s), 24) && few_terms_exact(term, 2);
}

bool rope_exact(const rope_head *h, int64_t *channel, double *bits) {
  for (int64_t i = 0; i < h->R / 2; ++i) {
    int64_t a, b;
    rope_pair(i, h->R, h->interleaved, &a, &b);
    const double c = h->cosine[i], s = h->sine[i];
    if (sum_exact(h->x[a], c, h->x[b], s) && sum_exact(h->x[b], c, h->x[a], s)) continue;
    *channel = a;
    *bits = lattice_bits(h->x[a] * c) + lattice_bits(h->x[b] * s);
    return false;
  }
  return true;
}

/* ---- positions and tables ---------------------------------------------------------------------------- */

assay_status rope_check_positions(const assay_tensor *positions, int64_t max_pos, assay_error *error) {
  for (int64_t n = 0; n < positions->shape[0]; ++n) {
    const int64_t found = plain_integer(positions, n);
    if (found < 0 || found >= max_pos)
      return assay_fail(error, ASSAY_ERR_INPUT, "positions: found %lld in row %lld, allowed 0 to %lld",
                        (long long)found, (long long)n, (long long)(max_pos - 1));
  }
  return ASSAY_OK;
}

/* Fills a table. Lattice: right angles, and pairs of eighths that are no rotation at all. Else points of the unit
 * circle, ((1 - t^2) / (1 + t^2), 2 t / (1 + t^2)), in every quadrant. Position 0 turns nothing, but in every second
 * table it has a factor, as tables with a concentration have. */
void rope_fill_table(const assay_fill *from, int64_t half, bool sine, double *value, int64_t count) {
  static const double right[4][2] = {{1, 0}, {0, 1}, {-1, 0}, {0, -1}};
  assay_rng rng = {from->seed, 0x726F7065, 0}, own = {from->seed, 0x636F6E63, 0};
  const double factor = assay_rng_range(&own, 0, 1) == 0 ? 1 : 1.25;
  for (int64_t i = 0; i < count; ++i) {
    const uint64_t word = assay_rng_u64(&rng);
    double point[2] = {right[word & 3][0], right[word & 3][1]};
    if (from->values != ASSAY_LATTICE) {
      const double t = (double)(word >> 11) * 0x1p-53, size = 1 + t * t;
      const double c = (1 - t * t) / size, s = 2 * t / size;
      point[0] = c * right[word & 3][0] - s * right[word & 3][1];
      point[1] = s * right[word & 3][0] + c * right[word & 3][1];
    } else if ((word >> 2 & 1) != 0) {
      point[0] = ((double)(word >> 8 & 15) - 8) * 0x1p-3;
      point[1] = ((double)(word >> 12 & 15) - 8) * 0x1p-3;
    }
    value[i] = i < half ? (sine ? 0 : factor) : point[sine];
  }
}

void rope_fill_positions(const assay_fill *from, int64_t max_pos, double *value, int64_t count) {
  assay_rng rng = {from->seed, 0x706F7365, 0};
  for (int64_t i = 0; i < count; ++i) {
    const uint64_t word = assay_rng_u64(&rng);
    value[i] = (double)assay_rng_range(&rng, 0, max_pos - 1);
    if ((word & 7) == 0) value[i] = 0;
    if ((word & 7) == 1) value[i] = (double)(max_pos - 1);
  }
}
