/* mmha.h: one decode row before it is appended and attends: bias and rotation of q, k and v. */
#ifndef ASSAY_REF_MMHA_H
#define ASSAY_REF_MMHA_H

#include "assay/op.h"

/* Planted errors of bias and rotation. */
typedef enum mmha_spoil {
  MMHA_RIGHT,
  MMHA_BIAS_LOST,
  MMHA_POSITION_ONE_OFF, /* the position after the row's own */
  MMHA_OTHER_STYLE,      /* the other way of pairing channels */
  MMHA_TURNED_BACK,      /* rotated in the opposite direction */
  MMHA_Q_NOT_ROTATED,
  MMHA_K_NOT_ROTATED,
  MMHA_V_ROTATED,
  MMHA_BIAS_AFTER, /* bias added after the rotation */
  MMHA_ERROR_COUNT
} mmha_spoil;

typedef struct mmha {
  int64_t H, H_kv, D, R;
  bool interleaved;
  const assay_tensor *qkv, *bias, *cosine, *sine; /* bias NULL: none */
} mmha;

mmha mmha_of(const assay_call *call);
/* Computes the channels of one head of row n at its position in f64, from the stored numbers: value [D]. Heads are
 * numbered q heads first, then k, then v. bound and variance [D], or NULL: how far an f32 implementation may be off at
 * most, and the variance of that error. */
void mmha_head(const mmha *m, int64_t n, int64_t head, int64_t position, mmha_spoil spoil, double *value, double *bound,
               double *variance);

/* Gives the generator's cosine and sine of a position and pair, without libm; multiples of 90 degrees on the
 * lattice. */
void mmha_turn(const assay_fill *fill, int64_t position, int64_t pair, double *cosine, double *sine);

#endif
