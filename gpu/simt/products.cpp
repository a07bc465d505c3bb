/* products.cpp: what a tensor core of Hopper adds, bit for bit. f16 and bf16 have this rule:
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
 * wgmma of e4m3 and e5m2 adds 32 products at a time. It cuts them and d at 2^(e - 13), and the sum after 14 bits.
 * mma.sync of these types is two steps of f16 from zero, whose sum one f32 addition joins to d (docs/last-bit.md).
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
constexpr int32_t near_limit = 90; /* 2^-90 squared is no f32, but 2^-25 of a term of 2^-90 is one */
constexpr int64_t most_columns = 256, columns_at_once = 16;

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

/* Returns the number of columns up to the last one of `depth` rows that has a number other than 0. */
ASSAY_INLINE ASSAY_UNCHECKED int64_t live_columns(int64_t depth, int64_t n, const int32_t *exponent) {
  int64_t live = 0;
  for (int64_t k = 0; k < depth; ++k)
    for (int64_t i = n; i > live; --i)
      if (exponent[k * n + i - 1] != no_exponent) live = i;
  return live;
}

/* Returns whether all of them are finite, and in *live whether one of them is not 0. */
ASSAY_INLINE ASSAY_UNCHECKED bool all_finite(int64_t count, const int32_t *exponent, bool *live) {
  int32_t largest = no_exponent;
  for (int64_t i = 0; i < count; ++i)
    largest = exponent[i] > largest ? exponent[i] : largest;
  *live = largest != no_exponent;
  return largest != not_a_number;
}

/* The largest exponent in each column of one row. Returns whether all are of numbers. */
ASSAY_INLINE ASSAY_UNCHECKED bool find_top(int64_t n, const int32_t *a_exponent, const int32_t *b_exponent,
                                           int64_t pitch, const float *to, int32_t *top) {
  for (int64_t i = 0; i < n; ++i)
    top[i] = exponent_of(to[i], -126);
  for (int64_t k = 0; k < product_depth; ++k)
    for (int64_t i = 0; i < n; ++i) {
      const int32_t e = a_exponent[k] + b_exponent[k * pitch + i];
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

/* Returns whether every exponent is near 0, or that of a column of zeros, which becomes 0. */
ASSAY_INLINE ASSAY_UNCHECKED bool near_one(int64_t n, int32_t *top) {
  int32_t least = 0, largest = 0;
  for (int64_t i = 0; i < n; ++i) {
    top[i] = top[i] < no_exponent / 2 ? 0 : top[i];
    least = top[i] < least ? top[i] : least;
    largest = top[i] > largest ? top[i] : largest;
  }
  return least >= -near_limit && largest <= near_limit;
}

/* Returns 2^e for -126 <= e <= 127. */
static inline float small_power_of_two(int32_t e) {
  const uint32_t bits = static_cast<uint32_t>(e + 127) << 23;
  float x;
  memcpy(&x, &bits, sizeof x);
  return x;
}

/* The same as add_row where exponents are near 0. A product of two 16-bit factors is exact in f32, or too small to
 * leave anything after its cut. Terms are below 2^27 then, so that nine of them fit an int32_t. */
ASSAY_INLINE ASSAY_UNCHECKED void add_row_near_one(int64_t n, const float *a, const float *b, int64_t pitch,
                                                   const int32_t *top, float *to) {
  int32_t low[columns_at_once], high[columns_at_once];
  float unit[columns_at_once];
  for (int64_t i = 0; i < n; ++i) {
    unit[i] = small_power_of_two(kept - top[i]);
    low[i] = static_cast<int32_t>(to[i] * unit[i]);
    high[i] = 0;
  }
  for (int64_t k = 0; k < product_depth / 2; ++k)
    for (int64_t i = 0; i < n; ++i)
      low[i] += static_cast<int32_t>(a[k] * b[k * pitch + i] * unit[i]);
  for (int64_t k = product_depth / 2; k < product_depth; ++k)
    for (int64_t i = 0; i < n; ++i)
      high[i] += static_cast<int32_t>(a[k] * b[k * pitch + i] * unit[i]);
  for (int64_t i = 0; i < n; ++i) {
    const double sum = static_cast<double>(low[i]) + static_cast<double>(high[i]);
    to[i] = cut_to_float(sum * power_of_two(top[i] - kept)) + 0.0f; /* no -0 */
  }
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

/* Adds sixteen zeros to columns `first` and later of one row. Returns false where one of them is not finite. */
ASSAY_INLINE ASSAY_UNCHECKED bool add_zeros(int64_t first, int64_t n, float *to) {
  int32_t largest = no_exponent;
  for (int64_t i = first; i < n; ++i) {
    const int32_t e = exponent_of(to[i], -126);
    largest = e > largest ? e : largest;
  }
  const bool finite = largest != not_a_number;
  for (int64_t i = first; finite && i < n; ++i)
    to[i] += 0.0f; /* no -0 */
  return finite;
}

/* Adds 16 products to each of so many columns of one row. Their number is known to the compiler, so that sums stay in
 * registers: 16 columns are two of AVX2. */
template <int64_t count>
ASSAY_INLINE ASSAY_UNCHECKED void add_columns(const float *a, const int32_t *a_exponent, const float *b,
                                              const int32_t *b_exponent, int64_t pitch, float *to) {
  int32_t top[count];
  double sum[count], unit[count];
  if (!find_top(count, a_exponent, b_exponent, pitch, to, top)) {
    for (int64_t i = 0; i < count; ++i)
      if (top[i] < not_a_number / 2)
        add_row(1, a, b + i, pitch, top + i, to + i, sum, unit);
      else
        to[i] = sum_not_finite(a, b + i, pitch, to[i]);
    return;
  }
  if (near_one(count, top))
    add_row_near_one(count, a, b, pitch, top, to);
  else
    add_row(count, a, b, pitch, top, to, sum, unit);
}

/* Adds the products of all rows; n is a multiple of 8. Rows and columns past the end of a matrix are zeros, and may be
 * most of a tile. To add zeros leaves a finite sum as it is. */
ASSAY_WIDE ASSAY_UNCHECKED static void add_rows(int64_t rows, int64_t n, const float *a, const float *b, int32_t least,
                                                float *d) {
  int32_t b_exponent[product_depth * most_columns];
  for (int64_t i = 0; i < product_depth * n; ++i)
    b_exponent[i] = exponent_of(b[i], least);
  const int64_t columns = live_columns(product_depth, n, b_exponent);
  bool unused, live_row;
  const bool finite_b = all_finite(product_depth * n, b_exponent, &unused);
  for (int64_t r = 0; r < rows; ++r) {
    const float *const x = a + r * product_depth;
    float *const to = d + r * n;
    int32_t a_exponent[product_depth];
    for (int64_t k = 0; k < product_depth; ++k)
      a_exponent[k] = exponent_of(x[k], least);
    const bool finite_a = all_finite(product_depth, a_exponent, &live_row);
    int64_t own = !live_row && finite_b ? 0 : columns;
    if (!finite_a || !add_zeros(own, n, to)) own = n;
    int64_t i = 0;
    for (; i + 8 < own && i + 16 <= n; i += 16)
      add_columns<16>(x, a_exponent, b + i, b_exponent + i, n, to + i);
    for (; i < own; i += 8)
      add_columns<8>(x, a_exponent, b + i, b_exponent + i, n, to + i);
  }
}

void tensor_products(int64_t rows, int64_t n, const float *a, const float *b, bool half, float *d) {
  add_rows(rows, n, a, b, half ? -14 : -126, d);
}

/* ---- factors of 8 bits --------------------------------------------------------------------------------- */

constexpr int32_t kept_eight = 13;
constexpr uint32_t lost_digits = (1u << 10) - 1; /* those of an f32 after 14 bits */

/* Adds 32 products to each of eight columns of one row. A term is below 2^15 after its cut, so that sums fit an int32_t
 * and an f32. Where exponents are near 0, f32 holds every term or what its cut leaves of it. */
ASSAY_INLINE ASSAY_UNCHECKED void add_columns_eight(const float *a, const int32_t *a_exponent, const float *b,
                                                    const int32_t *b_exponent, int64_t pitch, float *to) {
  constexpr int64_t n = 8;
  int32_t top[n], sum[n];
  float small_unit[n];
  double unit[n];
  for (int64_t i = 0; i < n; ++i)
    top[i] = exponent_of(to[i], -126);
  for (int64_t k = 0; k < product_depth_eight; ++k)
    for (int64_t i = 0; i < n; ++i) {
      const int32_t e = a_exponent[k] + b_exponent[k * pitch + i];
      top[i] = e > top[i] ? e : top[i];
    }
  for (int64_t i = 0; i < n; ++i)
    top[i] = top[i] > not_a_number / 2 ? 0 : top[i];
  if (near_one(n, top)) {
    for (int64_t i = 0; i < n; ++i) {
      small_unit[i] = small_power_of_two(kept_eight - top[i]);
      sum[i] = static_cast<int32_t>(to[i] * small_unit[i]);
    }
    for (int64_t k = 0; k < product_depth_eight; ++k)
      for (int64_t i = 0; i < n; ++i)
        sum[i] += static_cast<int32_t>(a[k] * b[k * pitch + i] * small_unit[i]);
  } else {
    for (int64_t i = 0; i < n; ++i) {
      top[i] = top[i] < least_top ? least_top : top[i];
      unit[i] = power_of_two(kept_eight - top[i]);
      sum[i] = static_cast<int32_t>(static_cast<double>(to[i]) * unit[i]);
    }
    for (int64_t k = 0; k < product_depth_eight; ++k) {
      const double x = static_cast<double>(a[k]);
      for (int64_t i = 0; i < n; ++i)
        sum[i] += static_cast<int32_t>(x * static_cast<double>(b[k * pitch + i]) * unit[i]);
    }
  }
  for (int64_t i = 0; i < n; ++i) {
    const float whole = static_cast<float>(sum[i]);
    uint32_t bits;
    memcpy(&bits, &whole, sizeof bits);
    bits &= ~lost_digits;
    float cut;
    memcpy(&cut, &bits, sizeof cut);
    to[i] = static_cast<float>(static_cast<double>(cut) * power_of_two(top[i] - kept_eight));
  }
}

/* Adds the products of one row; n is a multiple of 8. */
ASSAY_WIDE ASSAY_UNCHECKED static void add_row_eight(int64_t n, const float *a, const int32_t *a_exponent,
                                                     const float *b, const int32_t *b_exponent, int64_t pitch,
                                                     float *to) {
  for (int64_t i = 0; i < n; i += 8)
    add_columns_eight(a, a_exponent, b + i, b_exponent + i, pitch, to + i);
}

/* Fills in the exponents of b, and returns whether one of its numbers is not finite. */
ASSAY_WIDE ASSAY_UNCHECKED static bool exponents_of(int64_t count, const float *b, int32_t least, int32_t *exponent) {
  int32_t largest = no_exponent;
  for (int64_t i = 0; i < count; ++i) {
    exponent[i] = exponent_of(b[i], least);
    largest = exponent[i] > largest ? exponent[i] : largest;
  }
  return largest == not_a_number;
}

/* Returns the sum of 33 terms in f64 if one of them is not finite; else `otherwise`. */
static float unless_finite(const float *a, const int32_t *a_exponent, const float *b, const int32_t *b_exponent,
                           int64_t n, float to, float otherwise) {
  bool finite = exponent_of(to, -126) != not_a_number;
  double sum = static_cast<double>(to);
  for (int64_t k = 0; k < product_depth_eight; ++k) {
    finite = finite && a_exponent[k] != not_a_number && b_exponent[k * n] != not_a_number;
    sum += static_cast<double>(a[k]) * static_cast<double>(b[k * n]);
  }
  const uint32_t canonical = 0x7FFFFFFFu;
  float nan;
  memcpy(&nan, &canonical, sizeof nan);
  return finite ? otherwise : sum != sum ? nan : static_cast<float>(sum);
}

/* Returns whether columns `first` and later of one row are +0. */
ASSAY_INLINE ASSAY_UNCHECKED bool all_plus_zero(int64_t first, int64_t n, const float *to) {
  uint32_t any = 0, bits;
  for (int64_t i = first; i < n; ++i) {
    memcpy(&bits, to + i, sizeof bits);
    any |= bits;
  }
  return any == 0;
}

void tensor_products_eight(int64_t rows, int64_t n, const float *a, const float *b, int32_t least_a, int32_t least_b,
                           float *d) {
  static thread_local int32_t b_exponent[product_depth_eight * most_columns];
  int32_t a_exponent[product_depth_eight];
  float before[most_columns];
  const bool special_b = exponents_of(product_depth_eight * n, b, least_b, b_exponent);
  const int64_t columns = live_columns(product_depth_eight, n, b_exponent);
  for (int64_t r = 0; r < rows; ++r) {
    const float *const x = a + r * product_depth_eight;
    float *const to = d + r * n;
    bool special = special_b, live_row = false;
    for (int64_t k = 0; k < product_depth_eight; ++k) {
      a_exponent[k] = exponent_of(x[k], least_a);
      special = special || a_exponent[k] == not_a_number;
      live_row = live_row || a_exponent[k] != no_exponent;
    }
    int32_t largest = no_exponent;
    for (int64_t i = 0; i < n; ++i) {
      const int32_t e = exponent_of(to[i], -126);
      before[i] = to[i];
      largest = e > largest ? e : largest;
    }
    special = special || largest == not_a_number;
    /* Sums of nothing but zeros stay +0. Others lose digits, or a sign, in any step. */
    const int64_t own = live_row ? (columns + 7) / 8 * 8 : 0;
    if (!all_plus_zero(own, n, to))
      add_row_eight(n, x, a_exponent, b, b_exponent, n, to);
    else if (own > 0)
      add_row_eight(own, x, a_exponent, b, b_exponent, n, to);
    for (int64_t i = 0; special && i < n; ++i)
      to[i] = unless_finite(x, a_exponent, b + i, b_exponent + i, n, before[i], to[i]);
  }
}

void tensor_products_eight_by_f16(const float *a, const float *b, float *d) {
  float half_a[16 * product_depth], half_b[product_depth * 8], sum[16 * 8] = {};
  for (int64_t step = 0; step < 2; ++step) {
    for (int64_t k = 0; k < product_depth; ++k) {
      const int64_t from = k / 2 * 4 + 2 * step + k % 2;
      for (int64_t r = 0; r < 16; ++r)
        half_a[r * product_depth + k] = a[r * product_depth_eight + from];
      for (int64_t i = 0; i < 8; ++i)
        half_b[k * 8 + i] = b[from * 8 + i];
    }
    tensor_products(16, 8, half_a, half_b, true, sum);
  }
  const uint32_t canonical = 0x7FFFFFFFu;
  for (int64_t i = 0; i < 16 * 8; ++i) {
    d[i] += sum[i];
    if (d[i] != d[i]) memcpy(d + i, &canonical, sizeof canonical);
  }
}

} /* namespace assay_simt_host */
