/* block_gemm.cuh: what the kernels of fp8_block_gemm share: the call, its scales, and the last step of an element. The
 * bits of a sum are declared, so each rounding is written out. */
#ifndef ASSAY_GPU_LIB_BLOCK_GEMM_CUH
#define ASSAY_GPU_LIB_BLOCK_GEMM_CUH

#include "gpu/lib/plain.h"

namespace ASSAY_NS {

constexpr int32_t block_piece = 128; /* channels of K, and columns of b, that share a scale */

struct block_gemm_params {
  const e4m3 *a, *b;
  const float *sfa, *sfb;
  const void *bias; /* NULL: none */
  void *c;
  int64_t M, N, K, a_row, b_row, c_row;
  int64_t sfa_row, sfa_piece, sfb_row, sfb_piece; /* elements between rows, and between pieces of K */
  assay_dtype out;
  bool packed_a, packed_b; /* scales are four exponents a word of 32 bits */
};

/* Returns the scale of a piece, of a row or block of columns that begins at `from`. Packed ones are 2^(e - 127), with
 * NaN for e = 255, four in a word from the lowest byte on. */
__device__ __forceinline__ float block_scale(const float *from, bool packed, int64_t piece, int64_t apart) {
  if (!packed) return from[piece * apart];
  const uint32_t word = reinterpret_cast<const uint32_t *>(from)[piece / 4 * apart];
  const uint32_t e = word >> (8 * static_cast<uint32_t>(piece % 4)) & 255u;
  return float_of(e == 0 ? 0x400000u : e == 255 ? 0x7FC00000u : e << 23);
}

__device__ __forceinline__ float block_sfa(const block_gemm_params &p, int64_t m, int64_t piece) {
  return block_scale(p.sfa + m * p.sfa_row, p.packed_a, piece, p.sfa_piece);
}

__device__ __forceinline__ float block_sfb(const block_gemm_params &p, int64_t block, int64_t piece) {
  return block_scale(p.sfb + block * p.sfb_row, p.packed_b, piece, p.sfb_piece);
}

/* Adds the bias, rounds and stores one element. */
template <class Out>
__device__ __forceinline__ void block_store(const block_gemm_params &p, int64_t m, int64_t n, float value) {
  if (p.bias != nullptr) value = __fadd_rn(value, to_float(static_cast<const Out *>(p.bias)[n]));
  static_cast<Out *>(p.c)[m * p.c_row + n] = from_float<Out>(value);
}

/* Where the scales of one operand go. */
struct block_scales_read {
  const float **data;
  int64_t *row, *piece;
  bool *packed;
};

/* Reads whichever of three arguments has the scales. Without `needed` there may be none. */
inline assay_status block_gemm_read_scales(const plain_call &c, const char *rows, const char *columns,
                                           const char *packed, bool needed, const block_scales_read &to,
                                           assay_error *error) {
  const int given = c.has(rows) + c.has(columns) + c.has(packed);
  if (given != 1 && (needed || given > 0))
    return assay_fail(error, ASSAY_ERR_INPUT, "%s: found %d of %s, %s, %s, allowed exactly one", rows, given, rows,
                      columns, packed);
  const char *const name = c.has(columns) ? columns : c.has(packed) ? packed : rows;
  *to.data = static_cast<const float *>(c.data<const void>(name));
  *to.row = name == rows ? c.row(name) : 1;
  *to.piece = name == rows ? 1 : c.row(name);
  *to.packed = name == packed;
  return ASSAY_OK;
}

inline assay_status block_gemm_read(const assay_call *call, block_gemm_params *p, assay_error *error) {
  plain_call c;
  *p = block_gemm_params();
  ASSAY_TRY(plain_read(call, &c, error));
  p->M = c.dim("M");
  p->N = c.dim("N");
  p->K = c.dim("K");
  ASSAY_TRY(block_gemm_read_scales(c, "sfa", "sfa_t", "sfa_packed", p->M > 0,
                                   {&p->sfa, &p->sfa_row, &p->sfa_piece, &p->packed_a}, error));
  ASSAY_TRY(block_gemm_read_scales(c, "sfb", "sfb_t", "sfb_packed", true,
                                   {&p->sfb, &p->sfb_row, &p->sfb_piece, &p->packed_b}, error));
  p->a = c.data<const e4m3>("a");
  p->b = c.data<const e4m3>("b");
  p->bias = c.data<const void>("bias");
  p->c = c.data<void>("c");
  p->a_row = c.row("a");
  p->b_row = c.row("b");
  p->c_row = c.row("c");
  p->out = c.type("c");
  return expect_type("c", p->out, error);
}

/* Declares what all kernels do with the sum over a piece: one FMA with the product of the scales. */
inline void block_gemm_scales(assay_sums *sums) {
  sums->promote = block_piece;
  sums->scale = ASSAY_SCALE_FMA_PRODUCT;
  sums->after[0] = ASSAY_AFTER_BIAS;
}

} // namespace ASSAY_NS
#endif
