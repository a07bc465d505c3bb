/* sampler_bound.h: the tokens that a correct f32 implementation may draw from a row.
 *
 * The order of the definition holds. Only numbers move, each by its own error bound:
 *   - a penalised logit by the roundings of its penalties (0 where they round nothing);
 *   - a scaled logit, which top-k ranks, by the rounding of the division as well (0 for a power of two);
 *   - a mass exp(z - z_max) by these, by the subtraction and by exp; sums of masses by their additions (contract:
 *     exp_ulp for exp and division, lanes).
 * Two tokens with equal logit and equal history have equal numbers whatever the rounding, so the one with the lower id
 * comes first. A token is possible if it may be in the kept set and the drawn number may fall on it. */
#ifndef ASSAY_REF_SAMPLER_BOUND_H
#define ASSAY_REF_SAMPLER_BOUND_H

#include "ref/lib/sampler.h"

/* Marks the possible tokens. scratch: after sampler_count or sampler_token of the row, whose code must be SAMPLER_OK.
 * out: one byte per token, 1 where it is possible. */
assay_status sampler_possible(const sampler_row *row, const sampler_scratch *scratch, const assay_contract *contract,
                              unsigned char *possible, assay_error *error);

/* Marks the tokens that a correct implementation may keep, whatever number it draws. Returns ASSAY_ERR_INPUT with no
 * message where `sure` is asked and rounding decides whether some token is kept. For a temperature of 0 it marks the
 * greedy choice. scratch, out: as above. */
assay_status sampler_kept(const sampler_row *row, const sampler_scratch *scratch, const assay_contract *contract,
                          bool sure, unsigned char *kept, assay_error *error);

/* Checks that every number that any implementation may form is exact, so that one token alone is right. Returns NULL if
 * all are; else the name of the inexact one, for a message, with the number found. Penalties must round nothing, and
 * temperature must be a power of two (or 0). Each scaled logit must be the largest, or at least 800 below it. The
 * number of tokens that top-k keeps at the maximum must be a power of two, and likewise the number that top-p keeps of
 * them. scratch: after sampler_token of the row. */
const char *sampler_inexact(const sampler_row *row, const sampler_scratch *scratch, double *found);

#endif
