/* rng.c: Philox4x32-10, streams, and near-normal draws. Integer arithmetic up to the last conversion, so that
 * every machine draws the same numbers.
 *
 * Source: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011. */
#include "core/rng.h"

/* The high half of c1 keeps the normals apart from the 64-bit draws of the same (seed, stream). */
static const uint32_t normal_domain = 0x80000000u;

static inline assay_philox philox(uint64_t seed, uint32_t c0, uint32_t c1, uint32_t c2, uint32_t c3) {
  uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = (uint64_t)c0 * 0xD2511F53u, b = (uint64_t)c2 * 0xCD9E8D57u;
    c0 = (uint32_t)(b >> 32) ^ c1 ^ k0;
    c1 = (uint32_t)b;
    c2 = (uint32_t)(a >> 32) ^ c3 ^ k1;
    c3 = (uint32_t)a;
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return (assay_philox){{c0, c1, c2, c3}};
}

assay_philox assay_philox4x32(uint64_t seed, uint32_t c0, uint32_t c1, uint32_t c2, uint32_t c3) {
  return philox(seed, c0, c1, c2, c3);
}

/* Draw i is half (i & 1) of block i / 2; the counter is (block low, block high, stream low, stream high). */
uint64_t assay_rng_u64(assay_rng *rng) {
  const uint64_t i = rng->index++, block = i >> 1;
  const assay_philox r =
      philox(rng->seed, (uint32_t)block, (uint32_t)(block >> 32), (uint32_t)rng->stream, (uint32_t)(rng->stream >> 32));
  const int half = (int)(i & 1) * 2;
  return (uint64_t)r.x[half + 1] << 32 | r.x[half];
}

/* Draws below 2^64 mod span are thrown away, so that every value is equally likely. */
int64_t assay_rng_range(assay_rng *rng, int64_t low, int64_t high) {
  const uint64_t span = (uint64_t)high - (uint64_t)low + 1;
  uint64_t draw = assay_rng_u64(rng);
  if (span == 0) return (int64_t)draw;
  const uint64_t reject = (0 - span) % span;
  while (draw < reject)
    draw = assay_rng_u64(rng);
  return (int64_t)((uint64_t)low + draw % span);
}

double assay_rng_unit(assay_rng *rng) {
  return (double)(assay_rng_u64(rng) >> 11) * 0x1p-53;
}

/* One draw from 64 random bits: the sum s of the four 16-bit fields, and below it 35 more bits (a hash of the
 * same word), so that the mantissa is full and roundings in the storage types are not all the same.
 * t = s·2^35 + fill has 53 bits; its mean is (131070 + 1/2)·2^35, its deviation 2^16/sqrt(3)·2^35. */
static inline double near_normal(uint64_t word) {
  const uint64_t pairs = (word & 0x0000FFFF0000FFFFu) + (word >> 16 & 0x0000FFFF0000FFFFu);
  const uint64_t sum = (pairs & 0xFFFFFFFFu) + (pairs >> 32);
  const uint64_t fill = word * 0x9E3779B97F4A7C15u >> 29;
  return ((double)(int64_t)(sum << 35 | fill) - 131070.5 * 0x1p35) * (1.7320508075688772 * 0x1p-51);
}

void assay_rng_normals(uint64_t seed, uint64_t stream, double *value, int64_t count) {
  const uint32_t s0 = (uint32_t)stream, s1 = (uint32_t)(stream >> 32);
  for (int64_t i = 0; i < count; i += 2) {
    const uint64_t block = (uint64_t)i >> 1;
    const assay_philox r = philox(seed, (uint32_t)block, (uint32_t)(block >> 32) | normal_domain, s0, s1);
    value[i] = near_normal((uint64_t)r.x[1] << 32 | r.x[0]);
    if (i + 1 < count) value[i + 1] = near_normal((uint64_t)r.x[3] << 32 | r.x[2]);
  }
}
