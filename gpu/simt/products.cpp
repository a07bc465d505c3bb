/* products.cpp: what a tensor core of Hopper adds, bit for bit:
 *
 *   e   = the largest exponent among d and the 16 products
 *   d'  = cut_24(sum of cut(x · 2^(25 - e)) · 2^(e - 25)) over d and the products
 *
 * The exponent of a product is taken as exponent(a) + exponent(b), whatever its significand. Subnormals have the least
 * exponent of their type; zeros have none, and e is at least -133. A sum of zero is +0.
 *
 * cut drops the digits after the point, cut_24 those after 24 bits; both cut towards zero. A term therefore loses what
 * is below 2^-25 of the largest term, and a sum is never rounded up. If an operand is not finite, the sum is infinite
 * or NaN; products of finite operands do not overflow.
 *
 * Source: bench/evidence/2026-11-21-h200-fuzz-tensor-cores.jsonl. An H200 printed 76 wrong elements. These rules give
 * 74 of them to the last bit; the others are also summed over splits. The rules give 19 of the first 20. With 2^-24,
 * with 2^-23, with 8 products at a time, and with exponents of the products themselves it is 2, 1, 7 and 0. */
#include "simt/products.h"

#include <math.h>
#include <string.h>

#include "core/wide.h"
#include "simt/fibers.h"

namespace assay_simt_host {

constexpr int32_t no_exponent = -4096, not_a_number = 16384, kept = 25, least_top = -133;
constexpr int64_t most_columns = 256;

static inline int32_t exponent_of(float x, int32_t least) {
  uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  const int32_t biased = static_cast<int32_t>(bits >> 23 & 0xFFu);
  if ((bits << 1) == 0) return no_exponent;
  if (biased == 0xFF) return not_a_number;
  return biased - 127 > least ? biased - 127 : least;
}

/* Returns 2^e for -1022 <= e <= 1023. */
static inline double power_of_two(int32_t e) {
  const uint64_t bits = static_cast<uint64_t>(e + 1023) << 52;
  double x;
  memcpy(&x, &bits, sizeof x);
  return x;
}

/* Rounds towards zero. */
static inline float cut_to_float(double x) {
  const float near = static_cast<float>(x);
  if (!(fabs(static_cast<double>(near)) > fabs(x))) return near;
  if (!(fabs(x) < 0x1p128)) return near;
  uint32_t bits;
  memcpy(&bits, &near, sizeof bits);
  --bits; /* one step towards zero; from infinity, to the largest number */
  float below;
  memcpy(&below, &bits, sizeof below);
  return below;
}

/* Marks the engine's own arithmetic, which took a fifth of AddressSanitizer's time. Every index is below n <=
 * most_columns or product_depth * n. */
#ifdef ASSAY_SIMT_ASAN
#define ASSAY_UNCHECKED __attribute__((no_sanitize("address", "undefined")))
#else
#define ASSAY_UNCHECKED
#endif

/* The largest exponent in each column of one row. Returns whether all are of numbers. */
ASSAY_INLINE ASSAY_UNCHECKED bool find_top(int64_t n, const int32_t *a_exponent, const int32_t *b_exponent,
                                           const float *to, int32_t *top) {
  for (int64_t i = 0; i < n; ++i)
    top[i] = exponent_of(to[i], -126);
  for (int64_t k = 0; k < product_depth; ++k)
    for (int64_t i = 0; i < n; ++i) {
      const int32_t e = a_exponent[k] + b_exponent[k * n + i];
      top[i] = e > top[i] ? e : top[i];
    }
  int32_t largest = no_exponent;
  for (int64_t i = 0; i < n; ++i)
    largest = top[i] > largest ? top[i] : largest;
  return largest < not_a_number / 2;
}

/* to[i] += a[0] b[i] + ... + a[15] b[15 · pitch + i]. All columns are alike, so that they go side by side. `sum` and
 * `unit` are room for n numbers each. */
ASSAY_INLINE ASSAY_UNCHECKED void add_row(int64_t n, const float *a, const float *b, int64_t pitch, const int32_t *top,
                                          float *to, double *sum, double *unit) {
  for (int64_t i = 0; i < n; ++i) {
    unit[i] = power_of_two(kept - (top[i] < least_top ? least_top : top[i]));
    sum[i] = static_cast<double>(static_cast<int32_t>(static_cast<double>(to[i]) * unit[i]));
  }
  for (int64_t k = 0; k < product_depth; ++k) {
    const double x = static_cast<double>(a[k]);
    for (int64_t i = 0; i < n; ++i)
      sum[i] += static_cast<double>(static_cast<int32_t>(x * static_cast<double>(b[k * pitch + i]) * unit[i]));
  }
  for (int64_t i = 0; i < n; ++i)
    to[i] = cut_to_float(sum[i] * power_of_two((top[i] < least_top ? least_top : top[i]) - kept)) + 0.0f; /* no -0 */
}

/* Returns the sum of 17 terms of which one is not finite. In f64 no product of finite operands overflows. */
ASSAY_INLINE ASSAY_UNCHECKED float sum_not_finite(const float *a, const float *b, int64_t pitch, float to) {
  double sum = static_cast<double>(to);
  for (int64_t k = 0; k < product_depth; ++k)
    sum += static_cast<double>(a[k]) * static_cast<double>(b[k * pitch]);
  const uint32_t canonical = 0x7FFFFFFFu;
  float nan;
  memcpy(&nan, &canonical, sizeof nan);
  return sum != sum ? nan : static_cast<float>(sum);
}

/* Adds the products of all rows. `room`, a compile-time constant, is at least n. */
template <int64_t room>
ASSAY_UNCHECKED inline __attribute__((always_inline)) void add_rows(int64_t rows, int64_t n, const float *a,
                                                                    const float *b, int32_t least, float *d) {
  int32_t b_exponent[product_depth * room];
  for (int64_t i = 0; i < product_depth * n; ++i)
    b_exponent[i] = exponent_of(b[i], least);
  for (int64_t r = 0; r < rows; ++r) {
    const float *const x = a + r * product_depth;
    float *const to = d + r * n;
    int32_t a_exponent[product_depth], top[room];
    double sum[room], unit[room];
    for (int64_t k = 0; k < product_depth; ++k)
      a_exponent[k] = exponent_of(x[k], least);
    if (find_top(n, a_exponent, b_exponent, to, top)) {
      add_row(n, x, b, n, top, to, sum, unit);
      continue;
    }
    for (int64_t i = 0; i < n; ++i) {
      if (top[i] < not_a_number / 2)
        add_row(1, x, b + i, n, top + i, to + i, sum, unit);
      else
        to[i] = sum_not_finite(x, b + i, n, to[i]);
    }
  }
}

/* The 8 columns of mma fill one register of AVX-512. Their number is known to the compiler, so sums stay in it. */
ASSAY_WIDE ASSAY_UNCHECKED static void add_rows_of_8(int64_t rows, const float *a, const float *b, int32_t least,
                                                     float *d) {
  add_rows<8>(rows, 8, a, b, least, d);
}

ASSAY_WIDE ASSAY_UNCHECKED static void add_rows_of_any(int64_t rows, int64_t n, const float *a, const float *b,
                                                       int32_t least, float *d) {
  add_rows<most_columns>(rows, n, a, b, least, d);
}

void tensor_products(int64_t rows, int64_t n, const float *a, const float *b, bool half, float *d) {
  const int32_t least = half ? -14 : -126;
  if (n == 8)
    add_rows_of_8(rows, a, b, least, d);
  else
    add_rows_of_any(rows, n, a, b, least, d);
}

} /* namespace assay_simt_host */
