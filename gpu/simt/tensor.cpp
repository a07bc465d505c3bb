/* tensor.cpp: what the lanes of a warp compute together: products of 16 x 8 x 16 and 16 x 8 x 32, moves of 8 x 8
 * matrices. gpu/lib/ptx_mma.cuh describes the fragments. */
#include "simt/scheduler.h"

#include "gpu/lib/types.cuh"
#include "simt/products.h"

namespace assay_simt_host {

using assay_simt_device::bf16;
using assay_simt_device::e4m3;
using assay_simt_device::e5m2;
using assay_simt_device::f16;
using assay_simt_device::to_float;

template <class T> static const T *of(const Warp *w, int lane) {
  return reinterpret_cast<const T *>(static_cast<uintptr_t>(w->value[lane]));
}

float factor_eight(uint32_t code, assay_simt_eight type) {
  const uint8_t bits = static_cast<uint8_t>(code);
  return type == ASSAY_SIMT_E4M3 ? to_float(e4m3{bits}) : to_float(e5m2{bits});
}

/* Computes products of 8-bit factors: a register has four of them. */
static void mma_eight(const Warp *w) {
  float a[16][32], b[32][8], d[16][8];
  for (int lane = 0; lane < 32; ++lane) {
    const assay_simt_mma *m = of<assay_simt_mma>(w, lane);
    const int r = lane / 4, c = lane % 4 * 4;
    for (int i = 0; i < 16; ++i)
      a[r + i / 4 % 2 * 8][c + i / 8 * 16 + i % 4] = factor_eight(m->a[i / 4] >> (8 * (i % 4)), m->eight_a);
    for (int i = 0; i < 8; ++i)
      b[c + i / 4 * 16 + i % 4][r] = factor_eight(m->b[i / 4] >> (8 * (i % 4)), m->eight_b);
    memcpy(&d[r][lane % 4 * 2], m->d, 8);
    memcpy(&d[r + 8][lane % 4 * 2], m->d + 2, 8);
  }
  tensor_products_eight_by_f16(&a[0][0], &b[0][0], &d[0][0]);
  for (int lane = 0; lane < 32; ++lane) {
    const assay_simt_mma *m = of<assay_simt_mma>(w, lane);
    memcpy(m->d, &d[lane / 4][lane % 4 * 2], 8);
    memcpy(m->d + 2, &d[lane / 4 + 8][lane % 4 * 2], 8);
  }
}

/* The factors of all lanes as the type's bits, a by rows and b by columns. */
struct Bits {
  uint16_t a[16][16], b[8][16];
};

template <class T> static void widen(const Bits &bits, float (*a)[16], float (*b)[8]) {
  float turned[8][16];
  for (int r = 0; r < 16; ++r)
    for (int k = 0; k < 16; ++k)
      a[r][k] = to_float(T{bits.a[r][k]});
  for (int c = 0; c < 8; ++c)
    for (int k = 0; k < 16; ++k)
      turned[c][k] = to_float(T{bits.b[c][k]});
  for (int k = 0; k < 16; ++k)
    for (int c = 0; c < 8; ++c)
      b[k][c] = turned[c][k];
}

static void mma(const Warp *w) {
  const assay_simt_mma *const first = of<assay_simt_mma>(w, 0);
  if (first->eight_a != ASSAY_SIMT_SIXTEEN) {
    mma_eight(w);
    return;
  }
  float a[16][16], b[16][8], d[16][8];
  Bits bits;
  for (int lane = 0; lane < 32; ++lane) {
    const assay_simt_mma *m = of<assay_simt_mma>(w, lane);
    const int r = lane / 4, c = lane % 4 * 2;
    memcpy(&bits.a[r][c], m->a, 4);
    memcpy(&bits.a[r + 8][c], m->a + 1, 4);
    memcpy(&bits.a[r][c + 8], m->a + 2, 4);
    memcpy(&bits.a[r + 8][c + 8], m->a + 3, 4);
    memcpy(&bits.b[r][c], m->b, 4);
    memcpy(&bits.b[r][c + 8], m->b + 1, 4);
    memcpy(&d[r][c], m->d, 8);
    memcpy(&d[r + 8][c], m->d + 2, 8);
  }
  if (first->half)
    widen<f16>(bits, a, b);
  else
    widen<bf16>(bits, a, b);
  tensor_products(16, 8, &a[0][0], &b[0][0], first->half, &d[0][0]);
  for (int lane = 0; lane < 32; ++lane) {
    const assay_simt_mma *m = of<assay_simt_mma>(w, lane);
    const int r = lane / 4, c = lane % 4 * 2;
    memcpy(m->d, &d[r][c], 8);
    memcpy(m->d + 2, &d[r + 8][c], 8);
  }
}

/* Returns element `at` (0 to 7) of row `row` of matrix `matrix`. */
static uint16_t *element(assay_simt_matrix *const *lane, int matrix, int row, int at) {
  return reinterpret_cast<uint16_t *>(lane[matrix * 8 + row]->row) + at;
}

/* Moves matrices. Lane l's register i holds, of matrix i, row l / 4, elements 2 (l mod 4) and the next, or, if
 * transposed, column l / 4. */
static void matrix(const Warp *w, bool load) {
  assay_simt_matrix *lane[32];
  for (int l = 0; l < 32; ++l)
    lane[l] = const_cast<assay_simt_matrix *>(of<assay_simt_matrix>(w, l));
  const int count = lane[0]->count;
  const bool transposed = lane[0]->transposed;
  for (int l = 0; l < 32; ++l)
    for (int i = 0; i < count; ++i) {
      const int r = l / 4, c = l % 4 * 2;
      if (!transposed) {
        uint16_t *const pair = element(lane, i, r, c);
        if (load)
          memcpy(&lane[l]->r[i], pair, 4);
        else
          memcpy(pair, &lane[l]->r[i], 4);
        continue;
      }
      uint16_t *const first = element(lane, i, c, r);
      uint16_t *const second = element(lane, i, c + 1, r);
      if (load) {
        lane[l]->r[i] = static_cast<uint32_t>(*first) | static_cast<uint32_t>(*second) << 16;
      } else {
        *first = static_cast<uint16_t>(lane[l]->r[i]);
        *second = static_cast<uint16_t>(lane[l]->r[i] >> 16);
      }
    }
}

void collective(const Warp *w, assay_simt_op op) {
  for (int lane = 1; lane < 32; ++lane) {
    const Thread *a = w->thread, *b = w->thread + lane;
    if (a->line == b->line && (a->file == b->file || strcmp(a->file, b->file) == 0)) continue;
    report(ASSAY_ERR_HANG, "illegal mask: the lanes of one %s come from %s:%d and %s:%d", op_name(op),
           base_name(a->file), a->line, base_name(b->file), b->line);
    fail();
  }
  if (op == ASSAY_SIMT_MMA)
    mma(w);
  else if (op == ASSAY_SIMT_WGMMA_WAIT)
    wgmma_finish(w);
  else
    matrix(w, op == ASSAY_SIMT_LDMATRIX);
}

} /* namespace assay_simt_host */
