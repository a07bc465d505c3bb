/* simt_sums_test.cpp: simt's tensor cores against the predictor, which shares no code with them: drawn steps, bit for
 * bit. ASSAY_SUM_STEPS: how many (1,000,000). ASSAY_SUM_COUNTS: a file that gets a line of counts per type. */
#include <criterion/criterion.h>

#include <array>
#include <chrono>
#include <cstdlib>
#include <string>

#include "ref/lib/sums.h"
#include "simt/products.h"
#include "simt_fixture.h"
#include "sum_counts.h"

extern "C" {
#include "core/dtype.h"
#include "core/rng.h"
}

TestSuite(simt_sums, .init = open_simt, .timeout = 280);

constexpr int64_t depth = 16, rows = 4, columns = 8;

/* How the operands of a batch of steps are drawn. */
enum Mode { NARROW, ANY_CODE, LEAST, ZEROS, SPECIAL, CANCELS, LARGEST, TINY, ALIKE, MODES };

/* One batch: rows · columns steps. Operands are codes, sums are f32 bits. */
struct Batch {
  std::array<uint16_t, rows * depth> a;
  std::array<uint16_t, columns * depth> b; /* [columns, depth] */
  std::array<uint32_t, rows * columns> c;
};

struct Type {
  assay_dtype dtype;
  uint32_t exponent_bits, fraction_bits, bias;
};

static constexpr Type types[2] = {{ASSAY_BF16, 8, 7, 127}, {ASSAY_F16, 5, 10, 15}};

static int64_t between(assay_rng *rng, int64_t low, int64_t high) {
  return assay_rng_range(rng, low, high);
}

static uint32_t code_of(const Type &t, int64_t field, uint64_t random) {
  const uint32_t fraction = static_cast<uint32_t>(random) & ((1u << t.fraction_bits) - 1);
  const uint32_t sign = static_cast<uint32_t>(random >> 32 & 1) << (t.exponent_bits + t.fraction_bits);
  return sign | static_cast<uint32_t>(field) << t.fraction_bits | fraction;
}

static uint16_t factor(assay_rng *rng, const Type &t, Mode mode, int64_t base) {
  const int64_t top = (1 << t.exponent_bits) - 1; /* the field of ±Inf and NaN */
  const auto clipped = [&](int64_t field) { return field < 0 ? 0 : field > top - 1 ? top - 1 : field; };
  const uint64_t random = assay_rng_u64(rng);
  int64_t field = between(rng, 0, top - 1);
  if (mode == ALIKE) return static_cast<uint16_t>(code_of(t, clipped(base), UINT32_MAX)); /* sums are largest */
  if (mode == NARROW || mode == CANCELS || mode == TINY) field = clipped(base + between(rng, -6, 6));
  if (mode == LEAST) field = between(rng, 0, 3) == 0 ? clipped(base + between(rng, -4, 4)) : between(rng, 0, 2);
  if (mode == ZEROS && between(rng, 0, 2) != 0) return static_cast<uint16_t>(code_of(t, 0, random & (1ull << 32)));
  if (mode == LARGEST) field = top - 1 - between(rng, 0, 2);
  if (mode == SPECIAL && between(rng, 0, 40) == 0)
    return static_cast<uint16_t>(code_of(t, top, between(rng, 0, 4) == 0 ? random : random & (1ull << 32)));
  return static_cast<uint16_t>(code_of(t, field, random));
}

/* A sum near the products, or anything. */
static uint32_t start_sum(assay_rng *rng, Mode mode, int64_t exponent) {
  const uint64_t random = assay_rng_u64(rng);
  const uint32_t fraction = static_cast<uint32_t>(random) & 0x807FFFFFu;
  int64_t field = exponent + 127 + between(rng, -30, 30);
  if (mode == ALIKE && exponent > -127 && exponent < 128) return static_cast<uint32_t>(exponent + 127) << 23 | 0x7FFFFF;
  switch (between(rng, 0, mode == SPECIAL ? 11 : 9)) {
  case 0:
    return fraction & 0x80000000u;
  case 1:
    field = 0;
    break;
  case 2:
    field = between(rng, 0, 254);
    break;
  case 10:
    return (fraction & 0x80000000u) | 0x7F800000u;
  case 11:
    return fraction | 0x7F800000u;
  default:
    break;
  }
  field = field < 0 ? 0 : field > 254 ? 254 : field;
  return fraction | static_cast<uint32_t>(field) << 23;
}

static void draw(assay_rng *rng, const Type &t, Mode mode, Batch &batch) {
  const int64_t top = (1 << t.exponent_bits) - 1, base_a = mode == TINY ? top / 4 : between(rng, 0, top);
  const int64_t base_b = mode == TINY ? top / 5 - between(rng, 0, 8) : between(rng, 0, top);
  for (uint16_t &x : batch.a)
    x = factor(rng, t, mode, base_a);
  for (uint16_t &x : batch.b)
    x = factor(rng, t, mode, base_b);
  for (size_t i = 0; mode == CANCELS && i < batch.a.size();
       i += 2) /* the next product is this one with the other sign */
    batch.a[i + 1] = static_cast<uint16_t>(batch.a[i] ^ (1u << 15) ^ (between(rng, 0, 3) == 0 ? 1u : 0u));
  for (size_t i = 0; mode == CANCELS && i < batch.b.size(); i += 2)
    batch.b[i + 1] = batch.b[i];
  const int64_t middle =
      mode == LARGEST || mode == LEAST || mode == ANY_CODE ? between(rng, -150, 127) : base_a + base_b - 2 * t.bias;
  for (uint32_t &x : batch.c)
    x = mode == TINY ? 0 : start_sum(rng, mode, middle);
}

/* Returns what simt adds. */
static void by_simt(const Type &t, const Batch &batch, std::array<uint32_t, rows * columns> &sum) {
  float a[rows * depth], b[depth * columns], d[rows * columns];
  for (size_t i = 0; i < batch.a.size(); ++i)
    a[i] = static_cast<float>(assay_load_f64(batch.a.data(), t.dtype, static_cast<int64_t>(i)));
  for (int64_t n = 0; n < columns; ++n)
    for (int64_t k = 0; k < depth; ++k)
      b[k * columns + n] = static_cast<float>(assay_load_f64(batch.b.data(), t.dtype, n * depth + k));
  memcpy(d, batch.c.data(), sizeof d);
  assay_simt_host::tensor_products(rows, columns, a, b, t.dtype == ASSAY_F16, d);
  memcpy(sum.data(), d, sizeof d);
}

static void by_predictor(const Type &t, const Batch &batch, std::array<uint32_t, rows * columns> &sum) {
  int16_t significand[2][columns * depth], exponent[2][columns * depth];
  uint8_t kind[2][columns * depth];
  sum_factors a = {significand[0], exponent[0], kind[0], 0, false},
              b = {significand[1], exponent[1], kind[1], 0, false};
  sum_factors_take(&a, batch.a.data(), t.dtype, false, 1, rows * depth);
  sum_factors_take(&b, batch.b.data(), t.dtype, false, 1, columns * depth);
  for (int64_t m = 0; m < rows; ++m)
    for (int64_t n = 0; n < columns; ++n) {
      const sum_factors x = sum_factors_from(&a, m * depth), y = sum_factors_from(&b, n * depth);
      const size_t at = static_cast<size_t>(m * columns + n);
      sum[at] = sum_chain(ASSAY_SUM_WGMMA_16, &x, &y, depth, batch.c[at]);
    }
}

static std::string shown(const Type &t, const Batch &batch, size_t at) {
  std::string text = assay_dtype_name(t.dtype);
  char part[64];
  (void)snprintf(part, sizeof part, ", c %08x:", batch.c[at]);
  text += part;
  for (size_t k = 0; k < depth; ++k) {
    (void)snprintf(part, sizeof part, " %04x*%04x", batch.a[at / columns * depth + k],
                   batch.b[at % columns * depth + k]);
    text += part;
  }
  return text;
}

/* Counts of kinds of results: a draw that has lost its purpose is seen. */
struct Reach {
  int64_t subnormal_sums, zeros, infinities, nans;
};

Test(simt_sums, every_drawn_step_has_the_bits_of_the_predictor) {
  const char *const wanted = getenv("ASSAY_SUM_STEPS");
  const int64_t steps = wanted != nullptr ? atoll(wanted) : 1000000;
  assay_rng rng = {20261126, 1, 0};
  int64_t differ[2][MODES] = {}, done = 0, of_type[2] = {};
  double seconds[2] = {};
  Reach reach = {};
  for (int64_t round = 0; done < steps; ++round) {
    const Type &t = types[round % 2];
    const Mode mode = static_cast<Mode>(round / 2 % MODES);
    Batch batch;
    draw(&rng, t, mode, batch);
    std::array<uint32_t, rows * columns> simt, predicted;
    by_simt(t, batch, simt);
    const auto begun = std::chrono::steady_clock::now();
    by_predictor(t, batch, predicted);
    seconds[round % 2] += std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count();
    of_type[round % 2] += rows * columns;
    for (size_t i = 0; i < simt.size(); ++i, ++done) {
      const uint32_t size = predicted[i] & 0x7FFFFFFFu;
      reach.subnormal_sums += size != 0 && size < 0x800000u;
      reach.zeros += size == 0;
      reach.infinities += size == 0x7F800000u;
      reach.nans += size > 0x7F800000u;
      if (simt[i] == predicted[i]) continue;
      if (++differ[round % 2][mode] <= 3)
        cr_expect_fail("mode %d: simt %08x, predicted %08x: %s", mode, simt[i], predicted[i],
                       shown(t, batch, i).c_str());
    }
  }
  for (int type = 0; type < 2; ++type) {
    int64_t all = 0;
    for (int mode = 0; mode < MODES; ++mode)
      all += differ[type][mode];
    sum_counts_add("wgmma_16", assay_dtype_name(types[type].dtype), of_type[type], all, seconds[type], depth);
  }
  for (int type = 0; type < 2; ++type)
    for (int mode = 0; mode < MODES; ++mode)
      cr_expect_eq(differ[type][mode], 0, "%s, mode %d: %lld of %lld steps differ", assay_dtype_name(types[type].dtype),
                   mode, static_cast<long long>(differ[type][mode]), static_cast<long long>(done / 2 / MODES));
  const int64_t least = steps / 200;
  cr_expect(reach.subnormal_sums > least && reach.zeros > least && reach.infinities > least && reach.nans > least,
            "of %lld steps %lld give subnormal sums, %lld zero, %lld infinity, %lld NaN", static_cast<long long>(done),
            static_cast<long long>(reach.subnormal_sums), static_cast<long long>(reach.zeros),
            static_cast<long long>(reach.infinities), static_cast<long long>(reach.nans));
}

/* A tile past whose last row and last column everything is zero, as at the end of a matrix. Its sums may be anything.
 */
Test(simt_sums, a_tile_that_is_partly_zeros_has_the_bits_of_the_predictor) {
  constexpr int64_t wide = 24;
  assay_rng rng = {20261127, 2, 0};
  int64_t differ = 0, live = 0;
  for (int64_t round = 0; round < 2000; ++round) {
    const Type &t = types[round % 2];
    const Mode mode = static_cast<Mode>(round / 2 % MODES);
    const int64_t last_row = between(&rng, 0, rows), last_column = between(&rng, 0, wide);
    uint16_t a[rows * depth], b[wide * depth];
    uint32_t c[rows * wide];
    float x[rows * depth], y[depth * wide], d[rows * wide];
    for (int64_t i = 0; i < rows * depth; ++i)
      a[i] = i / depth < last_row ? factor(&rng, t, mode, t.bias) : static_cast<uint16_t>(between(&rng, 0, 1) << 15);
    for (int64_t i = 0; i < wide * depth; ++i)
      b[i] = i / depth < last_column ? factor(&rng, t, mode, t.bias) : static_cast<uint16_t>(between(&rng, 0, 1) << 15);
    for (uint32_t &sum : c)
      sum = round % 3 == 0 ? 0u : start_sum(&rng, round % 3 == 1 ? SPECIAL : NARROW, 0);
    for (int64_t i = 0; i < rows * depth; ++i)
      x[i] = static_cast<float>(assay_load_f64(a, t.dtype, i));
    for (int64_t n = 0; n < wide; ++n)
      for (int64_t k = 0; k < depth; ++k)
        y[k * wide + n] = static_cast<float>(assay_load_f64(b, t.dtype, n * depth + k));
    memcpy(d, c, sizeof d);
    assay_simt_host::tensor_products(rows, wide, x, y, t.dtype == ASSAY_F16, d);
    int16_t significand[2][wide * depth], exponent[2][wide * depth];
    uint8_t kind[2][wide * depth];
    sum_factors of_a = {significand[0], exponent[0], kind[0], 0, false},
                of_b = {significand[1], exponent[1], kind[1], 0, false};
    sum_factors_take(&of_a, a, t.dtype, false, 1, rows * depth);
    sum_factors_take(&of_b, b, t.dtype, false, 1, wide * depth);
    for (int64_t i = 0; i < rows * wide; ++i) {
      const sum_factors u = sum_factors_from(&of_a, i / wide * depth), v = sum_factors_from(&of_b, i % wide * depth);
      const uint32_t wanted = sum_chain(ASSAY_SUM_WGMMA_16, &u, &v, depth, c[i]);
      uint32_t found;
      memcpy(&found, d + i, sizeof found);
      live += i / wide < last_row && i % wide < last_column;
      if (found != wanted && ++differ <= 3)
        cr_expect_fail("mode %d, row %d of %d, column %d of %d: c %08x, simt %08x, predicted %08x", mode,
                       static_cast<int>(i / wide), static_cast<int>(last_row), static_cast<int>(i % wide),
                       static_cast<int>(last_column), c[i], found, wanted);
    }
  }
  cr_expect_eq(differ, 0, "%lld sums differ", static_cast<long long>(differ));
  cr_expect(live > 20000, "%lld sums of rows and columns before the end", static_cast<long long>(live));
}
