/* sums.h: how a kernel sums its products, and the bits that follow (docs/last-bit.md). A product of matrices whose sums
 * are declared has one right result, whatever the values are. Compiles alone as C17 and as C++20. */
#ifndef ASSAY_SUMS_H
#define ASSAY_SUMS_H

#include "status.h"
#include "tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The instruction that sums. The number is the width of its factors in bits. Sums are f32, or f16 where the name says
 * so. */
typedef enum assay_sum_unit {
  ASSAY_SUM_NONE = 0,     /* not declared */
  ASSAY_SUM_WGMMA_16,     /* wgmma of f16 or bf16 */
  ASSAY_SUM_WGMMA_8,      /* wgmma of e4m3 and e5m2, in any mixture */
  ASSAY_SUM_MMA_16,       /* mma.sync of f16 or bf16; the same bits as wgmma */
  ASSAY_SUM_MMA_8,        /* mma.sync m16n8k32 of e4m3 and e5m2, as nvcc 13.0 compiles it for sm_90a */
  ASSAY_SUM_FMA,          /* one f32 FMA a product */
  ASSAY_SUM_WGMMA_16_F16, /* wgmma of f16 with f16 sums */
  ASSAY_SUM_MMA_16_F16,   /* mma.sync of f16 with f16 sums; the same bits as wgmma */
  ASSAY_SUM_WGMMA_TF32,   /* wgmma of tf32: f32 factors without their low 13 bits */
  ASSAY_SUM_MMA_TF32,     /* mma.sync m16n8k8 of tf32; the same bits as wgmma */
  ASSAY_SUM_MULTIPLY_ADD, /* one f32 product and one f32 addition a product: two roundings */
  ASSAY_SUM_UNITS
} assay_sum_unit;

/* How the sums of parts become one: by f32 additions. */
typedef enum assay_sum_join {
  ASSAY_JOIN_ASCENDING = 0, /* ((0 + 1) + 2) + 3 */
  ASSAY_JOIN_DESCENDING,    /* ((3 + 2) + 1) + 0 */
  ASSAY_JOIN_PAIRWISE,      /* (0 + 1) + (2 + 3); an odd one is carried on */
  ASSAY_JOINS
} assay_sum_join;

/* Where scales multiply. s = fl(scale_a · scale_b). */
typedef enum assay_sum_scale {
  ASSAY_SCALE_NONE = 0,
  ASSAY_SCALE_FMA_PRODUCT,      /* a promoted sum is added by one FMA with s */
  ASSAY_SCALE_PRODUCT_THEN_ADD, /* a promoted sum is multiplied by s, then added: two roundings */
  ASSAY_SCALE_AFTER,            /* fl(fl(sum · scale_a) · scale_b), after all of K */
  ASSAY_SCALE_PRODUCT_THEN_FMA, /* a promoted sum is multiplied by scale_a, then added by one FMA with scale_b */
  ASSAY_SCALES
} assay_sum_scale;

/* A step that follows the sum x. Each step rounds once, to f32. A step whose term the call does not
 * have does nothing: beta 0, no bias, no factor. */
typedef enum assay_sum_after {
  ASSAY_AFTER_NONE = 0,  /* the end */
  ASSAY_AFTER_ALPHA,     /* alpha · x */
  ASSAY_AFTER_OLD,       /* beta · c + x, in one FMA */
  ASSAY_AFTER_OLD_ADD,   /* x + fl(beta · c): two roundings */
  ASSAY_AFTER_BIAS,      /* x + bias */
  ASSAY_AFTER_ROUND,     /* x, rounded to the output's type */
  ASSAY_AFTER_FACTOR,    /* x · the factor of the row */
  ASSAY_AFTER_RECTIFIED, /* max(x, 0) · y, where y is the sum with the second weights, after the same steps; +0 where x
                            is NaN or -0 */
  ASSAY_AFTERS
} assay_sum_after;

enum { ASSAY_SUM_MOST_AFTER = 6 };

/* The sum contract. A field that is not named is 0: one part, never promoted, from zero, no scale, nothing after the
 * sum, f32 output. */
typedef struct assay_sums {
  assay_sum_unit unit;
  int64_t parts; /* pieces of K, each summed from zero; 0 and 1: one */
  int64_t pad;   /* K counts as rounded up to a multiple of this, with products 0 · 0 at its end; 0: as it is */
  int64_t tile;  /* 0: parts are equal. Else each part but the last has ceil(tiles / parts) tiles of so many; parts may
                    be empty */
  const int64_t *ends; /* [parts] where each part ends, the last at K; NULL: by parts and tile */
  /* Returns the place in K of the product that is summed as number i; NULL: ascending. K is the padded one. */
  int64_t (*order)(int64_t i, int64_t K);
  assay_sum_join join;
  int64_t promote; /* products after which the sum is added to another in f32, and starts from zero; 0: never */
  assay_sum_scale scale;
  assay_sum_after after[ASSAY_SUM_MOST_AFTER]; /* up to the first ASSAY_AFTER_NONE */
  assay_dtype output;   /* f32 (also ASSAY_NONE), f16, bf16: rounded to nearest even at the end */
  int64_t factor_lanes; /* lanes among which the parts of a row's factor go round, each a running f32 sum. Sums of
                           lanes far apart are added first. 0: the operator has no factor */
} assay_sums;

/* One product c = a · bᵀ, with strides in elements. scale_a and scale_b have one column per promoted sum, of all of K.
 * With ASSAY_SCALE_AFTER they have one column. Data NULL: absent. */
typedef struct assay_product {
  assay_tensor a;                /* [M, K] */
  assay_tensor b;                /* [N, K] */
  assay_tensor scale_a, scale_b; /* [M, groups], [N, groups] f32 */
  int64_t scale_b_columns;       /* neighbouring columns of c that share a row of scale_b; 0: each has its own */
  assay_tensor start;            /* [M, N] f32: the first part starts from it; absent: from zero. With f16 sums it holds
                                  * f16 values */
  float alpha, beta;             /* alpha counts where the contract names ASSAY_AFTER_ALPHA */
  assay_tensor old, bias;        /* [M, N] c before the call, and [1, N]; f32, f16 or bf16 */
  assay_tensor factor;           /* [M, 1] f32, for ASSAY_AFTER_FACTOR */
  assay_tensor second;           /* [N, K], like b, for ASSAY_AFTER_RECTIFIED */
} assay_product;

/* Returns the places of K with its padding. */
int64_t assay_sums_padded(const assay_sums *sums, int64_t K);
/* Returns the products that the unit adds in one step; 0 for no unit. */
int64_t assay_sum_step(assay_sum_unit unit);
/* Returns "wgmma_16" and so on, "none" for no unit. */
const char *assay_sum_unit_name(assay_sum_unit unit);

/* Writes the predicted bits of c to out, dense [M, N] of the output's type. Fails with ASSAY_ERR_INPUT and names the
 * field, what was found and what is allowed, or with ASSAY_ERR_MEMORY. */
assay_status assay_sums_predict(const assay_sums *sums, const assay_product *product, void *out, assay_error *error);

#ifdef __cplusplus
}
#endif
#endif
