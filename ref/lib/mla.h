/* mla.h: the entry of a cache of multi-head latent attention. An entry is 512 channels c and 64 rotated channels pe. A
 * pool has entries of one type [P, S, 576], or of 656 bytes, as 164 words of 32 bits [P, S, 164]:
 *
 *   words 0 ... 127     512 e4m3 codes, the first in the lowest byte
 *   words 128 ... 131   4 f32 scales: scale g is that of channels 128 g to 128 g + 127
 *   words 132 ... 163   64 bf16 pe, the first in the lower half */
#ifndef ASSAY_REF_MLA_H
#define ASSAY_REF_MLA_H

#include "assay/op.h"

enum { MLA_C = 512, MLA_PE = 64, MLA_ENTRY = MLA_C + MLA_PE, MLA_TILE = 128, MLA_TILES = MLA_C / MLA_TILE };
enum { MLA_SCALE_WORD = MLA_C / 4, MLA_PE_WORD = MLA_SCALE_WORD + MLA_TILES, MLA_WORDS = MLA_PE_WORD + MLA_PE / 2 };

/* Returns the element where an entry begins in a pool [P, S, width], whose blocks may lie apart. */
int64_t mla_entry(const assay_tensor *pool, int64_t slot);

/* Returns the least power of two s, 2^-13 or more, with 448 s >= amax. */
double mla_scale(double amax);
/* Returns the largest |x| among the finite numbers. */
double mla_amax(const double *x, int64_t count);

/* Packs an entry: codes of c / scale, the scales, and pe rounded to bf16. NaN has the code 0x7F, and 0x7FFF in pe. */
void mla_pack(const double *c, const double *scale, const double *pe, uint32_t *word);
/* Unpacks an entry into 576 numbers. scale_turn: scale (g + scale_turn) mod 4 stands for scale g; 0 by definition. */
void mla_unpack(const uint32_t *word, int scale_turn, double *entry);

/* ---- the call of mla_attention ------------------------------------------------------------------------ */

enum { MLA_Q, MLA_CACHE, MLA_WORDS_ARG, MLA_TABLE, MLA_LENGTHS, MLA_CU, MLA_OUT, MLA_LSE, MLA_ARGS };
enum { MLA_SCALE, MLA_PARAMS };

/* Returns the pool of a call: words where they are given, else cache. */
static inline const assay_tensor *mla_pool(const assay_call *call) {
  return &call->arg[call->arg[MLA_WORDS_ARG].data != NULL ? MLA_WORDS_ARG : MLA_CACHE];
}

/* Implements fill() of the operator. */
assay_status mla_fill(const assay_fill *fill, int32_t arg, double *value, int64_t count, assay_error *error);

#endif
