/* attention_inputs.h: values of q, k and v for generated cases, in logical coordinates (op.h, assay_fill).
 *
 * normal        N(0, 1). Gate: where a density is wanted or important keys exist, channel 0 of q is positive. Channel 0
 *               of k is then the key's own choice, so that a live key has a clearly positive z.
 * heavy_tailed  the same with one value in sixteen 8 to 32 times as large
 * needles       keys near zero except the important ones, which stand out: losing one is a large error lattice
 * exact tier. Gate: s is a small multiple of a power of two. Softmax: every key carries a code; a row
 *               asks for the code of one key, whose score is 0; all other scores are far below.
 *
 * The exact tier's requirements on a case.
 * Gate: scale is a power of two (0 means 1/sqrt(D): D = 16, 64, 256). Taps are multiples of 1/16 (sigma / F and
 * tap_skew). gamma and the fp8 scales are powers of two. lo and hi are multiples of 1/16 below 2.
 * Softmax: f16 or bf16, fp8 scales powers of two, any scale of 2^-6 or more, no slopes, soft cap or lse. Scales down to
 * 2^-10 need a cache of 16 bits. D = 8 has only 128 codes, so at most about 1,000 keys. */
#ifndef ASSAY_REF_ATTENTION_INPUTS_H
#define ASSAY_REF_ATTENTION_INPUTS_H

#include "assay/op.h"

void gate_fill_q(const assay_fill *fill, int64_t request, int64_t position, int64_t head, double *value);
void gate_fill_k(const assay_fill *fill, int64_t content, int64_t kv_head, double *value);
void softmax_fill_q(const assay_fill *fill, int64_t request, int64_t position, int64_t head, double *value);
void softmax_fill_k(const assay_fill *fill, int64_t content, int64_t kv_head, double *value);
/* Fill values of a key. Gate lattice: whole numbers from -7 to 7 (-2 to 2 above 32 Ki keys), never 0. Softmax lattice:
 * 1 to 7. */
void gate_fill_v(const assay_fill *fill, int64_t content, int64_t kv_head, double *value);
void softmax_fill_v(const assay_fill *fill, int64_t content, int64_t kv_head, double *value);
/* Returns the sink of a head. It is near the logarithm of the number of keys that a row of one request sees. It is
 * clearly not 0. Both its loss and its scaling then show. Lattice: 0, -800 or 800. */
/* Fills the words of a mask: the bits of each request begin with a byte, and requests follow each other without gaps.
 */
void softmax_fill_mask(const assay_fill *fill, double *value, int64_t count);
/* Fills the parents of all rows of the batch: trees with chains, forks and several roots. */
void softmax_fill_parents(const assay_fill *fill, double *value, int64_t count);
double softmax_fill_sink(const assay_fill *fill, int64_t head);

#endif
