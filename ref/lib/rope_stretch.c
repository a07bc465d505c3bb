/* rope_stretch.c: frequencies of rotary positions (docs/definitions.md, section 4; ref/rope_table.c has the formulas).
 */
#include "ref/lib/rope_stretch.h"

#include <math.h>

static const double pi = 3.14159265358979323846;

static double within(double value, double least, double most) {
  return value < least ? least : value > most ? most : value;
}

static double ramp_end(const rope_stretch *f, double beta) {
  return (double)f->R * log(f->original / (2 * pi * beta)) / (2 * log(f->base));
}

static double ramp(const rope_stretch *f, int64_t i) {
  double lo = ramp_end(f, f->beta_fast), hi = ramp_end(f, f->beta_slow);
  if (f->truncate) {
    lo = floor(lo);
    hi = ceil(hi);
  }
  lo = within(lo, 0, (double)f->R - 1);
  hi = within(hi, 0, (double)f->R - 1);
  if (lo == hi) hi += 0.001;
  return within(((double)i - lo) / (hi - lo), 0, 1);
}

double rope_stretch_inverse(const rope_stretch *f, int64_t i) {
  const double p = pow(f->base, 2 * (double)i / (double)f->R), wave = 2 * pi * p;
  if (f->kind == STRETCH_YARN) {
    const double r = f->turned ? 1 - ramp(f, i) : ramp(f, i);
    return (1 - r) / p + r / (f->factor * p);
  }
  if (f->kind == STRETCH_PLAIN || wave < f->original / f->high) return 1 / p;
  if (wave > f->original / f->low) return 1 / (f->factor * p);
  const double s = (f->original / wave - f->low) / (f->high - f->low);
  return (1 - s) / (f->factor * p) + s / p;
}

double rope_stretch_concentration(const rope_stretch *f) {
  if (f->kind != STRETCH_YARN) return 1;
  return f->concentration > 0 ? f->concentration : 0.1 * log(f->factor) + 1;
}
