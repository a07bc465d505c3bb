/* say.c: words for one wrong element. */
#include "say.h"

#include <math.h>
#include <stdio.h>

#include "core/dtype.h"

/* Writes ", off by 3 ulp of f16": the distance in steps of the output's type at the expected value. Integers have no
 * ulp, NaN and Inf no distance. */
static void say_off(assay_dtype dtype, double got, double expected, char *text, size_t size) {
  const double distance = fabs(got - expected), ulp = assay_is_finite(expected) ? assay_ulp(expected, dtype) : 0;
  text[0] = '\0';
  if (!(distance > 0) || !assay_is_finite(distance) || !(ulp > 0)) return;
  if (dtype == ASSAY_I32 || dtype == ASSAY_I64)
    (void)snprintf(text, size, ", off by %.9g", distance);
  else
    (void)snprintf(text, size, ", off by %.4g ulp of %s", distance / ulp, assay_dtype_name(dtype));
}

void say_wrong(assay_dtype dtype, double got, double expected, double allowed, char *text, size_t size) {
  const double error = fabs(got - expected);
  char off[80];
  say_off(dtype, got, expected, off, sizeof off);
  if (!(allowed > 0.5 * assay_ulp(0.0, dtype)))
    (void)snprintf(text, size, "got %.9g, expected exactly %.9g%s", got, expected, off);
  else if (!assay_is_finite(error))
    (void)snprintf(text, size, "got %.9g, expected %.9g", got, expected);
  else
    (void)snprintf(text, size, "got %.9g, expected %.9g, error %.3g is %.3g times the allowed %.3g", got, expected,
                   error, error / allowed, allowed);
}
