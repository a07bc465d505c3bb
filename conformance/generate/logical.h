/* logical.h: the contents of a case before they are placed in memory. These are the owner of each logical block, the
 * visible tokens, and the stored codes of q, K and V under logical names. All draws of one case share them, so that
 * values are made once. */
#ifndef ASSAY_CONFORMANCE_GENERATE_LOGICAL_H
#define ASSAY_CONFORMANCE_GENERATE_LOGICAL_H

#include "conformance/case/case.h"

/* The contents of a case. content = block identity * block_size + offset. A block shared by several requests has one
 * identity. */
typedef struct logical {
  const assay_case *origin;
  int32_t references;
  int64_t B, N, H, H_kv, D, D_v, block_size, F, kv_scales;
  assay_dtype q_dtype, kv_dtype, out_dtype;
  int32_t *length, *fresh; /* [B] L_i, T_i (decode: 1) */
  int64_t *row_start;      /* [B + 1] first row of each request, in the case's order */
  int64_t *block_start;    /* [B + 1] the first of each request's blocks in block_identity */
  int64_t *block_identity; /* [Σ ceil(L_i / block_size)] */
  int64_t identities;
  int64_t widest;                        /* the largest ceil(L_i / block_size) */
  float *k_scale, *v_scale;              /* [kv_scales]; all 1 where the cache is not fp8 */
  unsigned char *visible;                /* [identities * block_size] */
  unsigned char *important;              /* likewise */
  unsigned char *q;                      /* [N, H, D] codes, rows in the case's order */
  unsigned char *k, *v;                  /* [identities * block_size, H_kv, D] codes; v has D_v channels */
  unsigned char *k_new, *v_new;          /* [N, H_kv, D] codes of q's type; NULL where the operator has no new tokens */
  unsigned char *values[ASSAY_MAX_ARGS]; /* ASSAY_VALUES arguments: dense, rows in the case's order */
  bool filled;
} logical;

/* Makes the contents without values. The caller owns one reference and gives it back with logical_drop. Fails with
 * ASSAY_ERR_MEMORY. */
assay_status logical_make(const assay_case *one, logical **contents, assay_error *error);
/* Asks the operator for all values. `call` has the case's own order, any numbering of blocks, and q, k and v without
 * contents. Fails with ASSAY_ERR_MEMORY, or as the operator's fill() does. */
assay_status logical_fill(logical *l, const assay_call *call, assay_error *error);
/* Adds a reference; logical_drop takes one away and frees with the last. */
logical *logical_keep(logical *l);
void logical_drop(logical *l);

/* Tells whether the operator writes the new tokens' keys and values itself. If so, the cache lacks them before the
 * call. */
bool logical_appends(const assay_op *op);
/* Returns a settable dimension (or a parameter) of the case, or `fallback` where the operator has none of that name. */
int64_t logical_dim(const assay_case *one, const char *name, int64_t fallback);
double logical_param(const assay_case *one, const char *name, double fallback);
static inline bool logical_is_fp8(assay_dtype dtype) {
  return dtype == ASSAY_E4M3 || dtype == ASSAY_E5M2;
}
/* Returns the bytes that the bits of a request's mask fill: one bit for each of its rows and keys. */
static inline int64_t logical_mask_bytes(const logical *l, int64_t request) {
  return ((int64_t)l->fresh[request] * l->length[request] + 7) / 8;
}
/* Returns a number that depends on the case's seed and on `stream` alone. */
uint64_t logical_hash(const assay_case *one, uint64_t stream);

#endif
