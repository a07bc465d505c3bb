/* block_gemm.c: a product of e4m3 matrices with scales of 128 channels, one element at a time. The scales of a are of
 * one row, those of b of 128 columns:
 *
 *   y = sum_κ sfa_κ · sfb_κ · (sum_{i in κ} a_i · b_i) + bias
 *
 * A sum over a piece κ is scaled, then added in f32. Source: docs/definitions.md, section 13. */
#include "ref/lib/block_gemm.h"

#include <math.h>

#include "core/dtype.h"
#include "core/rng.h"
#include "ref/lib/error_model.h"
#include "ref/lib/gemm.h"
#include "ref/lib/lattice.h"
#include "ref/lib/plain.h"
#include "ref/lib/rowwise.h"

/* ---- the definition ---------------------------------------------------------------------------------- */

int64_t block_pieces(int64_t K) {
  return (K + BLOCK_PIECE - 1) / BLOCK_PIECE;
}

static int64_t piece_size(int64_t K, int64_t piece) {
  return K - piece * BLOCK_PIECE < BLOCK_PIECE ? K - piece * BLOCK_PIECE : BLOCK_PIECE;
}

double block_gemm(const block_element *e) {
  double sum = 0;
  for (int64_t p = 0; p < block_pieces(e->K); ++p)
    sum += e->sfa[p] * e->sfb[p] * gemm_dot(e->a + p * BLOCK_PIECE, e->b + p * BLOCK_PIECE, piece_size(e->K, p));
  return sum + e->bias;
}

/* ---- the error model --------------------------------------------------------------------------------- */

/* Returns the largest power of two that is at most |x|; 0 for 0. */
static double binade(double x) {
  int exponent;
  return x != 0 ? ldexp(0.5, (frexp(x, &exponent), exponent)) : 0;
}

/* The loss of a sum of 8-bit products in tensor cores: a variance, and what terms of one sign lose alike. */
typedef struct cut_loss {
  double variance, loss;
} cut_loss;

/* Returns the loss of a piece. A step adds `cut` products to the running sum, and cuts all of them towards zero at g =
 * 2^-13 of the largest. A term with digits below g loses g / 2, give or take g^2 / 12. The sum is cut to 14 bits. */
static cut_loss eight_bit_loss(const double *a, const double *b, int64_t count, int64_t cut) {
  cut_loss lost = {0, 0};
  double running = 0;
  for (int64_t first = 0; first < count; first += cut) {
    const int64_t end = first + cut < count ? first + cut : count;
    double top = binade(running);
    for (int64_t k = first; k < end; ++k)
      if (a[k] != 0 && b[k] != 0) top = fmax(top, fmax(binade(a[k]), 0x1p-6) * fmax(binade(b[k]), 0x1p-6));
    const double g = 0x1p-13 * top;
    double term = running, next = 0;
    for (int64_t k = first - 1; k < end; ++k, next += term) {
      if (k >= first) term = a[k] * b[k];
      if (g == 0 || fmod(term, g) == 0) continue;
      lost.variance += g * g / 12;
      lost.loss += copysign(g / 2, term);
    }
    running = next;
    const double digit = 0x1p-13 * binade(running);
    lost.variance += digit * digit / 6;
    lost.loss += copysign(digit / 2, running);
  }
  return lost;
}

double block_variance(const block_element *e, const assay_contract *contract, assay_dtype out) {
  const double start = gemm_start(contract, 1, e->bias);
  double sum = start, total = 0, loss = 0;
  for (int64_t p = 0; p < block_pieces(e->K); ++p) {
    const double *a = e->a + p * BLOCK_PIECE, *b = e->b + p * BLOCK_PIECE, scale = e->sfa[p] * e->sfb[p];
    const int64_t count = piece_size(e->K, p);
    const gemm_sum s = gemm_walk(a, b, count);
    double of_piece = 0;
    if (contract->cut > 0) {
      const cut_loss lost = eight_bit_loss(a, b, count, contract->cut);
      of_piece = lost.variance;
      loss += scale * lost.loss;
    } else {
      of_piece = gemm_variance(&s, contract, a, b, count, ASSAY_E4M3);
    }
    sum += scale * s.sum;
    total += scale * scale * of_piece + rounding_variance(scale, ASSAY_F32) * s.sum * s.sum;
    total += rounding_variance(scale * s.sum, ASSAY_F32) + storing_variance(sum, ASSAY_F32);
  }
  const double y = start != 0 ? sum : sum + e->bias;
  if (e->bias != 0 && start == 0) total += storing_variance(y, ASSAY_F32);
  return total + loss * loss + storing_variance(y, out);
}

/* ---- the exact tier ---------------------------------------------------------------------------------- */

/* Admits an element: the sum of each piece in 14 bits if tensor cores add it, and all scaled sums with the bias. */
assay_status block_admit(const assay_call *call, int64_t m, int64_t n, const block_element *e,
                         const assay_contract *contract, assay_error *error) {
  const int bits = contract->cut > 0 ? 13 : 24;
  double size = fabs(e->bias);
  int low = lattice_low(e->bias);
  for (int64_t p = 0; p < block_pieces(e->K); ++p) {
    const int64_t count = piece_size(e->K, p);
    const double *a = e->a + p * BLOCK_PIECE, *b = e->b + p * BLOCK_PIECE, scale = e->sfa[p] * e->sfb[p];
    const gemm_sum s = gemm_walk(a, b, count);
    const int own = lattice_low_row(a, count) + lattice_low_row(b, count);
    if (s.abs == 0 || scale == 0) continue;
    if (!lattice_admits(s.abs, own, bits))
      return rowwise_refuse(call, m, n, "sum |a b| of a piece", s.abs, ldexp(1, bits + own), error);
    if (lattice_bits(scale) > 1) return rowwise_refuse(call, m, n, "bits of sfa sfb", lattice_bits(scale), 1, error);
    if (own + lattice_low(scale) < low) low = own + lattice_low(scale);
    size += scale * s.abs;
  }
  if (lattice_admits(size, low, 24)) return ASSAY_OK;
  return rowwise_refuse(call, m, n, "sum sfa sfb sum |a b| + |bias|", size, ldexp(1, 24 + low), error);
}

/* ---- planted errors ---------------------------------------------------------------------------------- */

double block_without_promotion(const block_element *e) {
  double sum = 0;
  for (int64_t p = 0; p < block_pieces(e->K); ++p) {
    sum += e->sfa[p] * e->sfb[p] * gemm_dot(e->a + p * BLOCK_PIECE, e->b + p * BLOCK_PIECE, piece_size(e->K, p));
    const double digit = 0x1p-13 * binade(sum);
    if (digit > 0 && e->K / BLOCK_PIECE >= 3) sum = trunc(sum / digit) * digit;
  }
  return sum + e->bias;
}

double block_power_of_two(double s) {
  int e;
  const double f = frexp(s, &e);
  return s > 0 ? ldexp(1, f > 0.5 ? e : e - 1) : s;
}

/* ---- values for the generator ------------------------------------------------------------------------ */

/* Draws a number for (stream, place): the same for every argument that asks. */
static int64_t drawn(const assay_fill *fill, uint64_t stream, int64_t place, int64_t most) {
  assay_rng rng = {fill->seed, 0x66703862 + (stream << 40), 4 * (uint64_t)place};
  return assay_rng_range(&rng, 0, most);
}

enum { STREAM_ROW, STREAM_COLUMN, STREAM_CODE, STREAM_SCALE = 10 };

/* Half of the rows and of the columns show a sum that is not promoted. The first piece is +2^9, and the last whole one
 * -2^9, both at a scale of 2^6 where sfb allows it. Each other piece is one product, 1, and the second one's scale
 * is 1.
 */
static bool shows_promotion(const assay_fill *fill, uint64_t stream, int64_t place) {
  return place == 0 || drawn(fill, stream, place, 1) == 0;
}

/* Fills codes 0, ±1, ±2, ±4. In a, one of each four neighbours is not 0: the sum over a piece is at most 2^9. */
static void fill_small(const assay_fill *fill, int32_t arg, bool of_a, int64_t K, double *value, int64_t count) {
  static const double some[] = {1, -1, 2, -2, 4, -4};
  const int64_t last = (K / BLOCK_PIECE - 1) * BLOCK_PIECE;
  assay_rng rng = {fill->seed, STREAM_CODE + (uint64_t)arg, 0};
  for (int64_t i = 0; i < count; ++i) {
    const int64_t row = i / K, k = i % K, in = k % BLOCK_PIECE;
    const bool shows = last >= 2 * BLOCK_PIECE && shows_promotion(fill, of_a ? STREAM_ROW : STREAM_COLUMN, row);
    const bool ends = k / BLOCK_PIECE == 0 || k / BLOCK_PIECE == last / BLOCK_PIECE;
    value[i] = some[assay_rng_range(&rng, 0, 5)];
    if (shows && ends) value[i] = of_a && k >= BLOCK_PIECE ? -4 : 4;
    if (shows && !ends && in == 0) value[i] = 1;
    if (!of_a) continue;
    if (shows ? !(ends ? k % 4 == 0 : in == 0) : drawn(fill, STREAM_CODE, i / 4, 3) != i % 4) value[i] = 0;
  }
}

void block_fill_codes(const assay_fill *fill, int32_t arg, bool of_a, int64_t K, double *value, int64_t count) {
  if (fill->values == ASSAY_LATTICE) {
    fill_small(fill, arg, of_a, K, value, count);
    return;
  }
  plain_fill(fill, (uint64_t)arg, value, count);
  for (int64_t i = 0; i < count; ++i)
    value[i] *= 64;
}

double block_fill_scale(const assay_fill *fill, bool of_a, int64_t row, int64_t piece, int64_t K) {
  const uint64_t stream = of_a ? STREAM_SCALE : STREAM_SCALE + 1;
  const int64_t number = drawn(fill, stream, row * block_pieces(K) + piece, 1 << 20);
  /* One scale in sixteen is 0, and one is negative: both are numbers like others. */
  const double sign = number / 5 % 16 == 0 ? 0 : number / 5 % 16 == 1 ? -1 : 1;
  if (fill->values != ASSAY_LATTICE) return sign * (1 + (double)number * 0x1p-20) * ldexp(1, (int)(number % 5) - 9);
  const int64_t whole = K / BLOCK_PIECE;
  const bool ends = whole >= 3 && (piece == 0 || piece == whole - 1);
  if (ends && (of_a ? shows_promotion(fill, STREAM_ROW, row) : row % 2 == 0)) return 8;
  if (whole >= 3 && (of_a ? shows_promotion(fill, STREAM_ROW, row) : row % 2 == 0 && piece == 1)) return 1;
  return ldexp(1, (int)(number % 4));
}
