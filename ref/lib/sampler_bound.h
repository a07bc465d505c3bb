/* sampler_bound.h: which tokens a correct f32 implementation may draw from a row.
 *
 * The order of the definition holds; what moves are numbers, each by its own error bound:
 *   - a penalised logit by the roundings of its penalties (0 where they round nothing);
 *   - a scaled logit, which top-k ranks, by the rounding of the division as well (0 for a power of two);
 *   - a mass exp(z - z_max) by these, by the subtraction and by exp; sums of masses by their additions (contract:
 *     exp_ulp for exp and division, lanes).
 * Two tokens with equal logit and equal history have equal numbers whatever the rounding, so of them the lower id comes
 * first. A token is possible if it may be in the kept set and the drawn number may fall on it. */
#ifndef ASSAY_REF_SAMPLER_BOUND_H
#define ASSAY_REF_SAMPLER_BOUND_H

#include "ref/lib/sampler.h"

/* scratch: after sampler_count or sampler_token of the row, whose code must be SAMPLER_OK. out: one byte a token, 1
 * where it is possible. */
assay_status sampler_possible(const sampler_row *row, const sampler_scratch *scratch, const assay_contract *contract,
                              unsigned char *possible, assay_error *error);

/* Is every number that any implementation may form exact, so that one token alone is right? NULL if so, else what is
 * not, for a message, with the number found. Penalties without a rounding; temperature a power of two (or 0); each
 * scaled logit the largest or at least 800 below it; the tokens that top-k keeps at the maximum, and those that top-p
 * keeps of them, a power of two many. scratch: after sampler_token of the row. */
const char *sampler_inexact(const sampler_row *row, const sampler_scratch *scratch, double *found);

#endif
