/* lattice.c: proof that a sum is exact in f32 whatever its order. */
#include "ref/lib/lattice.h"

#include <math.h>
#include <string.h>

#include "core/dtype.h"
#include "core/wide.h"

int lattice_low(double value) {
  uint64_t bits;
  memcpy(&bits, &value, sizeof bits);
  const int field = (int)(bits >> 52 & 0x7FF);
  const uint64_t fraction = bits & 0xFFFFFFFFFFFFFu;
  if (field == 0x7FF) return -LATTICE_ZERO;
  if (field == 0 && fraction == 0) return LATTICE_ZERO;
  const uint64_t mantissa = field == 0 ? fraction : fraction | 1ull << 52;
  /* The lowest set bit alone, as a double, has the number of trailing zeros as its exponent. */
  const double lowest = (double)(mantissa & (0 - mantissa));
  uint64_t lowest_bits;
  memcpy(&lowest_bits, &lowest, sizeof lowest_bits);
  return (int)(lowest_bits >> 52) - 1023 + (field == 0 ? 1 : field) - 1075;
}

/* Tells whether all are multiples of 2^low, and less than 2^51 times as large. Adding 1.5·2^52 rounds to a whole
 * number. */
ASSAY_WIDE static int all_multiples(const double *value, int64_t count, int low) {
  const double step = ldexp(1, -low), magic = 0x1.8p52;
  int64_t other = 0;
  for (int64_t i = 0; i < count; ++i) {
    const double times = value[i] * step;
    other |= (times + magic) - magic != times;
  }
  return other == 0;
}

/* Looks at the first few values first: most rows have their lowest bit there. The others then need not be examined one
 * by one. */
int lattice_low_row(const double *value, int64_t count) {
  enum { FEW = 8 };
  int low = LATTICE_ZERO;
  for (int64_t i = 0; i < count; ++i) {
    if (i == FEW && low > -1000 && low < 1000 && all_multiples(value + i, count - i, low)) return low;
    if (value[i] == 0) continue;
    const int e = lattice_low(value[i]);
    if (e < low) low = e;
  }
  return low;
}

int lattice_bits(double value) {
  if (value == 0) return 0;
  if (!assay_is_finite(value)) return LATTICE_ZERO;
  int exponent = 0;
  frexp(value, &exponent);
  return exponent - lattice_low(value);
}

int lattice_admits(double sum, int low, int bits) {
  if (sum == 0) return 1;
  return low >= -126 && sum <= ldexp(1.0, bits + low);
}

int lattice_width(assay_dtype dtype) {
  switch (dtype) {
  case ASSAY_F16:
    return 11;
  case ASSAY_BF16:
    return 8;
  case ASSAY_E4M3:
    return 4;
  case ASSAY_E5M2:
    return 3;
  case ASSAY_NONE:
  case ASSAY_F32:
  case ASSAY_I32:
  case ASSAY_I64:
  case ASSAY_DTYPE_COUNT:
    break;
  }
  return 24;
}
