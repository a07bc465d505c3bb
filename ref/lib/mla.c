/* mla.c: see mla.h. */
#include "ref/lib/mla.h"

#include <float.h>
#include <math.h>

#include "core/dtype.h"

int64_t mla_entry(const assay_tensor *pool, int64_t slot) {
  const int64_t S = pool->shape[1], width = pool->shape[2], block = slot / S;
  return block * (pool->shape[0] > 1 ? pool->stride[0] : 0) + slot % S * width;
}

double mla_scale(double amax) {
  double s = 0x1p-13;
  while (448 * s < amax)
    s *= 2;
  return s;
}

double mla_amax(const double *x, int64_t count) {
  double a = 0;
  for (int64_t i = 0; i < count; ++i)
    if (assay_is_finite(x[i])) a = fmax(a, fabs(x[i]));
  return a;
}

static uint32_t bits_of_scale(double scale) {
  const float value = (float)scale;
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  return bits;
}

static uint32_t bits_of_pe(double pe) {
  return assay_is_nan(pe) ? 0x7FFF : assay_bf16_from_f64(pe);
}

void mla_pack(const double *c, const double *scale, const double *pe, uint32_t *word) {
  memset(word, 0, MLA_WORDS * sizeof *word);
  for (int i = 0; i < MLA_C; ++i)
    word[i / 4] |= (uint32_t)assay_e4m3_from_f64(c[i] / scale[i / MLA_TILE]) << 8 * (i % 4);
  for (int g = 0; g < MLA_TILES; ++g)
    word[MLA_SCALE_WORD + g] = bits_of_scale(scale[g]);
  for (int i = 0; i < MLA_PE; ++i)
    word[MLA_PE_WORD + i / 2] |= bits_of_pe(pe[i]) << 16 * (i % 2);
}

void mla_unpack(const uint32_t *word, int scale_turn, double *entry) {
  for (int i = 0; i < MLA_C; ++i) {
    float scale;
    memcpy(&scale, &word[MLA_SCALE_WORD + (i / MLA_TILE + scale_turn) % MLA_TILES], sizeof scale);
    entry[i] = (double)assay_e4m3_to_f32((uint8_t)(word[i / 4] >> 8 * (i % 4))) * (double)scale;
  }
  for (int i = 0; i < MLA_PE; ++i)
    entry[MLA_C + i] = (double)assay_bf16_to_f32((uint16_t)(word[MLA_PE_WORD + i / 2] >> 16 * (i % 2)));
}
