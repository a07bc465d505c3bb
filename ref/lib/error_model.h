/* error_model.h: how far a correct implementation may be off, as standard deviations (docs/verification.md, tier 2).
 *
 * One rounding to nearest with spacing ulp has variance ulp^2 / 12. Averaged over a binade of f32 that is
 * (0.41 · 2^-24)^2 of the value's square. A sum of n terms is spread over `lanes` running sums of `chain` = n / lanes
 * terms each. It has at most the variance (0.41 · 2^-24 · sum |term|)^2 · (chain / (3 · lanes) + 2). */
#ifndef ASSAY_REF_ERROR_MODEL_H
#define ASSAY_REF_ERROR_MODEL_H

#include "assay/op.h"

/* The variance of one f32 rounding, relative to the value's square. */
static const double f32_variance = 0.41 * 0.41 * 0x1p-48;

/* Returns the variance of rounding `value` to the type; 0 if the type holds `value`, and for ASSAY_NONE. */
double rounding_variance(double value, assay_dtype dtype);
/* Returns the same for a result that is only near `value`: never 0 except for ASSAY_NONE. */
double storing_variance(double value, assay_dtype dtype);

/* Returns how far rounding to the type may move `value`: half an ulp; 0 if the type holds `value`. */
double rounding_bound(double value, assay_dtype dtype);

/* Returns, relative to (sum |term|)^2, the variance of an f32 sum of `terms` terms on `lanes` running sums. */
double accumulation_variance(double terms, double lanes);
/* Returns the variance for the sum of these terms, with `square` = sum term^2 and `size` = sum |term|. Running sums are
 * combined at the ulp of the whole. If they are alike, the sums on the way stand as high above a power of two as the
 * whole does. The variance is thus not less than the ulp says. It is also not less than an outlying term contributes.
 * That term is rounded at the ulp of the whole with every later addition of its running sum. It is rounded once more
 * per step that combines running sums. */
double outlier_variance(double size, double square, double terms, double lanes);
/* Returns the variance of a sum over `keys` keys of which `terms` are not 0 (adding 0 rounds nothing). The key axis may
 * be split into pieces of keys_per_split, each on pv_lanes running sums. */
double key_sum_variance(const assay_contract *contract, int64_t keys, int64_t terms);

/* A of sum_t x_t, x_t = p_t v_t, for D channels at once. It is the larger of the formula above and of the variance that
 * these very terms give, plus what is lost (docs/judging.md, "Sums in f32"). An addition rounds at the ulp of its
 * running sum S_k.
 *   these terms   sum_k ulp(S_k)^2 / 12, for the keys in order on the contract's splits and lanes. The mean over all
 *                 orders, chain · ((S^2 - Q) / (3 lanes) + Q / 2) with Q = sum x^2, where that is larger.
 *   lost          Terms below half an ulp of their running sum leave no trace: an error of up to their sum. Terms of up
 *                 to eight ulps count as a multiple of it, and small ones of one size as the same multiple. Their error
 *                 is at most the sum of what that adds or leaves out. */
typedef struct key_sum {
  double *abs, *walk, *square; /* [D] sum |x|, sum of 4^e where 2^e <= |S_k| < 2^(e + 1), Q */
  double *lost;                /* [D] sum of the lost terms */
  double *away;                /* [D] terms below this may be lost, wherever they stand */
  double *running;             /* [lanes, D] S_k so far */
  const assay_contract *contract;
  int bits;            /* significant bits of v; 0: tensor cores never make the sum */
  const double *whole; /* [D] the sum itself, divided by `factor` */
  double factor;
  int64_t D, lanes, terms, split;
} key_sum;

/* Returns the number of doubles that key_sum_place needs. */
int64_t key_sum_room(const assay_contract *contract, int64_t D);
void key_sum_place(key_sum *sum, const assay_contract *contract, int64_t D, double *memory);
/* Starts a sum that will be whole · factor. */
void key_sum_start(key_sum *sum, const double *whole, double factor);
/* Adds one more term p v_d in every channel. Keys ascend. */
void key_sum_add(key_sum *sum, int64_t key, double p, const double *v);
/* Returns the running sum that took the last term, in channel 0. */
static inline double key_sum_running(const key_sum *sum) {
  return sum->running[(sum->terms + sum->lanes - 1) % sum->lanes * sum->D];
}
/* Adds A / factor^2 to variance[D]. */
void key_sum_finish(const key_sum *sum, int64_t keys, double *variance);

/* Equal terms of one sign err alike: adding x to a multiple of ulp(S_k) errs by x mod ulp(S_k), whatever S_k is. Values
 * that agree in 16 bits count as equal. */
typedef struct equal_slot {
  uint32_t code;        /* code of the value; 0: free */
  double ulps, ulps2;   /* sum of ulp(S_k), of ulp(S_k)^2 */
  double value, value2; /* sum of the terms, of their squares */
} equal_slot;

typedef struct equal_terms {
  equal_slot *slot; /* hashed */
  int64_t slots;
} equal_terms;

/* Returns the bytes for `terms` terms. */
int64_t equal_terms_room(int64_t terms);
void equal_terms_start(equal_terms *equal, int64_t terms, void *memory);
/* Adds a term. running: the sum after x was added. */
void equal_terms_add(equal_terms *equal, double x, double running);
/* Returns the addition to the variance of the sum for its additions. */
double equal_terms_additions(const equal_terms *equal);
/* Returns the same for an error of the terms themselves that equal terms share, of relative variance 1. */
double equal_terms_shared(const equal_terms *equal);

/* Tells whether exp may give 0 where its result is below the normal numbers. The hardware's approximation does, and
 * kernels with it declare 2 ulp or more. */
static inline bool exp_may_flush(const assay_contract *c) {
  return c->exp_ulp >= 2;
}

/* Returns the relative variance of exp and tanh whose error bound is `ulp` units in the last place. The error is
 * uniform between the bounds; an ulp is 1.44 · 2^-24 of the value on average. */
static inline double function_variance(double ulp) {
  const double bound = ulp * 1.44 * 0x1p-24;
  return bound * bound / 3;
}

/* A sum of products x_k = a_k b_k of two numbers of `bits` significant bits each. top: the largest of 2^(e(a_k) +
 * e(b_k)), as tensor cores take exponents; 0 where the largest |x_k| gives the same. */
typedef struct product_sum {
  double whole, abs, square, top; /* sum x, sum |x|, sum x^2 */
  double terms, lanes;
  int bits;
  double drift; /* sum over k of +-2^e(S_k), with the sign of the running sum S_k; 0 where it is not followed */
  double start; /* one running sum starts from it; drift holds it, the numbers before do not */
} product_sum;

/* Returns the variance that tensor cores add to a sum by cutting (contract->cut; docs/judging.md, "Sums of tensor
 * cores"). */
double cut_variance(const assay_contract *contract, const product_sum *sum);
/* Returns the significant bits of a type that tensor cores multiply into f32 sums; 0 for others. */
int cut_bits(assay_dtype dtype);
/* Returns top of sum_k a_k b_k; both are of the type, and size is the sum of |a_k b_k|. */
double cut_top(const double *a, const double *b, int64_t count, assay_dtype dtype, double size);

/* Returns the variance of one score's dot product of D channels: accumulation, and the rounding of dequantised keys. q
 * and k are stored in `dtype`. */
double dot_variance(const assay_contract *contract, int64_t D, const double *q, const double *k, assay_dtype dtype,
                    bool k_is_rounded);

/* The contract assumed where the caller has none. */
extern const assay_contract default_contract;

/* Returns what rounding below the normal numbers of f32 adds to a product of `count` factors. They may be multiplied in
 * any order, so that a product of some of them may lie there. A kernel that flushes makes such a product 0, and the
 * result with it, whatever the other factors are. */
double below_normal_variance(const double *factor, int32_t count, bool flushes);

#endif
