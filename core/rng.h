/* rng.h: counter-based random numbers, Philox4x32-10 (Salmon et al., SC 2011). Integer arithmetic only. */
#ifndef ASSAY_CORE_RNG_H
#define ASSAY_CORE_RNG_H

#include <stdint.h>

typedef struct assay_philox {
  uint32_t x[4];
} assay_philox;

/* Returns one block. key = seed (low word first), counter = {c0, c1, c2, c3}. */
assay_philox assay_philox4x32(uint64_t seed, uint32_t c0, uint32_t c1, uint32_t c2, uint32_t c3);

/* A stream under one key and a 64-bit stream number. It is for draws whose number is not known beforehand. */
typedef struct assay_rng {
  uint64_t seed, stream, index;
} assay_rng;

uint64_t assay_rng_u64(assay_rng *rng);
/* Draws uniformly from [low, high], both included; low <= high. */
int64_t assay_rng_range(assay_rng *rng, int64_t low, int64_t high);
/* Draws uniformly from [0, 1): a multiple of 2^-53. */
double assay_rng_unit(assay_rng *rng);
/* Makes `count` near-normal draws (sum of four uniforms, mean 0, variance 1, full f64 mantissa), without libm. */
void assay_rng_normals(uint64_t seed, uint64_t stream, double *value, int64_t count);

#endif
