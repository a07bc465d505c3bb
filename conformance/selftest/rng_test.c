/* rng_test.c: Philox against its published answers (Random123, kat_vectors), and what is built on it. */
#include <criterion/criterion.h>
#include <math.h>

#include "core/rng.h"

static void expect(assay_philox r, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
  cr_assert(r.x[0] == a && r.x[1] == b && r.x[2] == c && r.x[3] == d, "%08x %08x %08x %08x", r.x[0], r.x[1], r.x[2],
            r.x[3]);
}

Test(rng, philox_known_answers) {
  expect(assay_philox4x32(0, 0, 0, 0, 0), 0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8);
  expect(assay_philox4x32(0xFFFFFFFFFFFFFFFFu, 0xFFFFFFFFu, 0xFFFFFFFFu, 0xFFFFFFFFu, 0xFFFFFFFFu), 0x408f276d,
         0x41c83b0e, 0xa20bc7c6, 0x6d5451fd);
  expect(assay_philox4x32(0x299f31d0a4093822u, 0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344), 0xd16cfe09, 0x94fdcceb,
         0x5001e420, 0x24126ea1);
}

/* The formula of near-normal draws once more, from the blocks. */
static double by_definition(uint64_t seed, uint64_t stream, uint64_t i) {
  const assay_philox r = assay_philox4x32(seed, (uint32_t)(i / 2), (uint32_t)(i / 2 >> 32) | 0x80000000u,
                                          (uint32_t)stream, (uint32_t)(stream >> 32));
  const uint64_t word = (uint64_t)r.x[i % 2 * 2 + 1] << 32 | r.x[i % 2 * 2];
  double sum = 0;
  for (int field = 0; field < 64; field += 16)
    sum += (double)(word >> field & 0xFFFF);
  const double fill = ldexp((double)(word * 0x9E3779B97F4A7C15u >> 29), -35);
  return (sum + fill - 131070.5) * sqrt(3) / 65536;
}

Test(rng, normals_by_their_definition) {
  double value[37];
  for (uint64_t stream = 0; stream < 64; ++stream) {
    const uint64_t far = stream << 58 | stream;
    const int64_t count = 1 + (int64_t)stream % 37;
    assay_rng_normals(0x123456789ABCDEFu * (stream + 1), far, value, count);
    for (int64_t i = 0; i < count; ++i) {
      const double wanted = by_definition(0x123456789ABCDEFu * (stream + 1), far, (uint64_t)i);
      cr_assert(fabs(value[i] - wanted) < 1e-14, "stream %d draw %d: %.17g, not %.17g", (int)stream, (int)i, value[i],
                wanted);
    }
  }
}

Test(rng, moments_of_normals) {
  enum { COUNT = 1 << 18 };
  static double value[COUNT];
  assay_rng_normals(42, 1, value, COUNT);
  double mean = 0, square = 0, fourth = 0, neighbour = 0, widest = 0;
  for (int i = 0; i < COUNT; ++i) {
    mean += value[i];
    square += value[i] * value[i];
    fourth += value[i] * value[i] * value[i] * value[i];
    neighbour += i > 0 ? value[i] * value[i - 1] : 0;
    widest = fmax(widest, fabs(value[i]));
  }
  cr_assert(fabs(mean / COUNT) < 0.01, "mean %g", mean / COUNT);
  cr_assert(fabs(square / COUNT - 1) < 0.015, "variance %g", square / COUNT);
  cr_assert(fabs(fourth / COUNT - 2.7) < 0.08, "fourth moment %g: 3 - 6/5/4 for a sum of four", fourth / COUNT);
  cr_assert(fabs(neighbour / COUNT) < 0.01, "neighbours correlate: %g", neighbour / COUNT);
  cr_assert(widest > 3 && widest < 2 * sqrt(3), "widest %g", widest);
}

Test(rng, ranges_hold_both_ends) {
  assay_rng rng = {.seed = 3, .stream = 9};
  int seen[7] = {0};
  for (int i = 0; i < 7000; ++i) {
    const int64_t draw = assay_rng_range(&rng, -3, 3);
    cr_assert(draw >= -3 && draw <= 3);
    ++seen[draw + 3];
  }
  for (int i = 0; i < 7; ++i)
    cr_assert(seen[i] > 850 && seen[i] < 1150, "value %d: %d of 7000", i - 3, seen[i]);
  cr_assert(assay_rng_range(&rng, 5, 5) == 5);
  (void)assay_rng_range(&rng, INT64_MIN, INT64_MAX);
  for (int i = 0; i < 1000; ++i) {
    const double unit = assay_rng_unit(&rng);
    cr_assert(unit >= 0 && unit < 1 && unit * 0x1p53 == floor(unit * 0x1p53));
  }
}

Test(rng, streams_are_their_own) {
  assay_rng a = {.seed = 1, .stream = 2}, b = {.seed = 1, .stream = 3}, c = {.seed = 1, .stream = 2};
  int equal = 0;
  for (int i = 0; i < 100; ++i) {
    const uint64_t x = assay_rng_u64(&a);
    equal += x == assay_rng_u64(&b);
    cr_assert(x == assay_rng_u64(&c));
  }
  cr_assert(equal == 0 && a.index == 100);
}
