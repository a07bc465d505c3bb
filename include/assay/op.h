/* op.h: an operator, declared once. The YAML checker, the generator, the judge, the roofline and the docs read this
 * struct and nothing else. The struct is defined beside the operator's reference in ref/<op>.c. */
#ifndef ASSAY_OP_H
#define ASSAY_OP_H

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "status.h"
#include "sums.h"
#include "tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { ASSAY_MAX_ARGS = 24, ASSAY_MAX_PARAMS = 24, ASSAY_MAX_DIMS = 16, ASSAY_MAX_OUTPUTS = 5 };

typedef struct assay_op assay_op;

/* ---- dimensions, arguments, parameters ------------------------------------------------------------- */

/* A dimension of an operator. */
typedef struct assay_dim {
  const char *name;
  /* fallback: the value where a case gives none. With fallback 0 and max 0 the dimension is derived and cannot be
   * set. */
  int64_t min, max, fallback;
  int64_t multiple; /* legal values are multiples of this (1: any) */
  const char *doc;
} assay_dim;

typedef enum assay_role { ASSAY_IN, ASSAY_OUT, ASSAY_INOUT } assay_role;

/* The contents of an argument. The generator has one recipe for each content. */
typedef enum assay_content {
  ASSAY_QUERY,       /* values, rows grouped by request */
  ASSAY_K_CACHE,     /* paged keys; bytes that no visible token owns are dead */
  ASSAY_V_CACHE,     /* paged values, likewise */
  ASSAY_KV_SCALE,    /* fp8 dequantisation factors, only present for fp8 caches */
  ASSAY_BLOCK_TABLE, /* entries past ceil(L / block_size) are dead; optional: absent where cu_k is present */
  ASSAY_KV_LEN,      /* L_i */
  ASSAY_CU_Q,        /* prefix sums of T_i; absent in decode mode, which has one row per request */
  ASSAY_TAPS,        /* filter taps, f32 */
  ASSAY_GAMMA,       /* per-head factor, f32, never 0 */
  ASSAY_SLOPES,      /* ALiBi slopes, f32, optional */
  ASSAY_RESULT,      /* written by the kernel; poisoned before the call */
  ASSAY_VALUES,      /* contents that the operator's fill() makes: values, ids, positions, weights, tables */
  ASSAY_K_NEW,       /* keys of the new tokens, one row each; the cache does not hold them yet */
  ASSAY_V_NEW,       /* values, likewise */
  ASSAY_QKV_NEW,     /* q, k and v of the new tokens in one row of H + 2 H_kv heads */
  ASSAY_SLOTS,       /* i64: the slot of each new token, -1 for a pad row */
  ASSAY_CU_K         /* first row of each request in K and V without a block table; the table is absent then */
} assay_content;

/* The form of an operator: the parts of which its cases consist.
 * ASSAY_PAGED: a batch of requests with lengths over a paged cache. Keys: mode, kv_dtype, kv_len, new, share, tables …
 * ASSAY_PLAIN: tensors, without requests. Their sizes are the operator's dimensions, each of which is a key. Contents
 * are ASSAY_VALUES and ASSAY_RESULT only. The rows of a case run along the dimension row_dim. */
typedef enum assay_form { ASSAY_PAGED, ASSAY_PLAIN } assay_form;

/* An argument of an operator. `shape` holds dimension names separated by commas. '|' separates alternatives for the
 * values of the enum parameter "layout", in its order. "D/x" divides by x = 16 / sizeof(element), "R/2" divides by a
 * number, "C^128" divides and rounds up, "2*I" and "B+1" mean what they say. An ASSAY_INOUT argument is one more
 * output: its bits after the call are judged against expected[]. `strided`: the argument's rows (axis 0) may lie apart,
 * as in a fused buffer; the key q_pad (plain: row_pad) sets how far. */
typedef struct assay_arg {
  const char *name;
  assay_role role;
  assay_content content;
  bool optional;
  /* "f32,f16,bf16" (the key dtype) | "=q" (the dtype of another argument) | "=q,e4m3,e5m2" (the key kv_dtype) | one
   * name. Plain operators: "=x,f32" is the key out_dtype, which is the same dtype or one of the others. Two types in a
   * later list: the seed chooses. */
  const char *dtypes;
  const char *shape;
  const char *doc;
  bool strided;
} assay_arg;

typedef enum assay_kind { ASSAY_REAL, ASSAY_INTEGER, ASSAY_BOOL, ASSAY_ENUM } assay_kind;

/* A parameter of an operator. */
typedef struct assay_param {
  const char *name;
  assay_kind kind;
  double min, max, fallback;
  const char *names; /* ASSAY_ENUM: "nhd,hnd,x"; the value is the index */
  const char *doc;
} assay_param;

/* A call: tensors and parameters in the operator's order. Parameters are doubles (exact up to 2^53). Booleans are 0 or
 * 1, enums an index. */
typedef struct assay_call {
  const assay_op *op;
  const assay_tensor *arg;
  const double *param;
} assay_call;

/* ---- contract: where an implementation rounds, and what it promises --------------------------------- */

/* How lse is given: the base of the logarithm, a row without terms, and whether the sink is one of the terms. */
typedef enum assay_lse_base { ASSAY_LSE_BASE_E, ASSAY_LSE_BASE_2 } assay_lse_base;
typedef enum assay_lse_empty { ASSAY_LSE_EMPTY_MINUS, ASSAY_LSE_EMPTY_PLUS } assay_lse_empty;
typedef enum assay_lse_sink { ASSAY_LSE_WITHOUT_SINK, ASSAY_LSE_WITH_SINK } assay_lse_sink;

typedef enum assay_zero_p_v { ASSAY_V_MULTIPLIED, ASSAY_V_SKIPPED, ASSAY_V_SKIPPED_FOR_GROUP } assay_zero_p_v;

/* Quantisation: how a number is divided by its scale s = fl(a/448), and how the scale that is stored is computed. */
typedef enum assay_quotient {
  ASSAY_QUOTIENT_DIVIDE,       /* fl(x / s) */
  ASSAY_QUOTIENT_RECIPROCAL,   /* fl(x · fl(1 / s)) */
  ASSAY_QUOTIENT_INVERSE_AMAX, /* fl(x · fl(448 / a)) */
  ASSAY_QUOTIENT_ANY           /* not declared: codes on both sides of a tie are right */
} assay_quotient;
typedef enum assay_stored_scale {
  ASSAY_STORED_QUOTIENT, /* fl(a / 448) */
  ASSAY_STORED_PRODUCT,  /* fl(a · fl(1 / 448)) */
  ASSAY_STORED_INVERSE   /* fl(1 / fl(448 / a)) */
} assay_stored_scale;

/* How a sampler draws: by the Philox numbers of the definition, or by a generator of its own. Its tokens are then
 * judged by the kept set and, over many rows, by their distribution. */
typedef enum assay_generator { ASSAY_GENERATOR_PHILOX, ASSAY_GENERATOR_OWN } assay_generator;

/* Where a product's bias comes. ZERO: running sums start from zero, and bias and beta · c are added to the sum. BIAS:
 * one running sum starts from beta · c + bias. Each addition to it then rounds at a sum that holds the bias. */
typedef enum assay_start { ASSAY_START_ZERO, ASSAY_START_BIAS } assay_start;

/* The contract of an implementation. Rounding fields are the dtype that a value is rounded to. */
typedef struct assay_contract {
  assay_dtype k, v;        /* rounding of K and V after dequantisation (fp8 caches only); NONE: exact */
  assay_dtype score;       /* rounding of a stored score beyond f32 accumulation; NONE: stays in f32 */
  assay_dtype p;           /* rounding of p before it multiplies V; NONE: p stays in f32 */
  assay_dtype partial;     /* rounding of split partials; NONE: f32 (exact on the lattice) */
  double exp_ulp;          /* error bound of exp, tanh, sigmoid, rsqrt and division, in ulp of f32 */
  int32_t qk_lanes;        /* partial sums that q·k is spread over */
  int32_t pv_lanes;        /* partial sums that Σ p v of one split is spread over */
  int32_t keys_per_split;  /* 0: the key axis is not split */
  double denominator_add;  /* constant added to the softmax denominator */
  assay_zero_p_v zero_p_v; /* whether V of a key with p = 0 may hold NaN */
  bool run_to_run;         /* the same call gives the same bits */
  bool renumbering;        /* physical block numbers do not change the bits */
  bool permutation;        /* the order of requests (plain: of rows) does not change the bits */
  int32_t lanes;           /* partial sums that a reduction (norm, dot product) is spread over; 0: one */
  assay_dtype rotated;     /* mmha: rounding of q after bias and rotation; NONE: f32 */
  bool alone;              /* which other rows (paged: requests) a call holds, and how many, does not change the bits */
  /* Number of terms that tensor cores add to a sum of 16-bit products at a time. All of them are cut at 2^-25 of the
   * largest. 0: sums are f32 additions, rounded to nearest. */
  int32_t cut;
  /* Numbers below the least normal f32 may count as 0, wherever they are read, made or stored. */
  bool ftz;
  /* Norms: sums of squares are rescaled before they leave the range of f32, so that the definition holds for every row
   * of finite numbers. Otherwise a row whose sum of squares overflows may have a factor of 0. */
  bool rescales;
  /* Attention: weights become multiples of this step before they multiply V (a range that ends below). 0: they stay
   * f32. A softmax with `p` has the steps of that type instead. */
  double p_step;
  assay_lse_base lse_base;
  assay_lse_empty lse_empty;
  assay_lse_sink lse_sink;
  /* Delta rules: rounding of the state after each row; of q and k once they are normalised; of what a chunk multiplies;
   * of g and beta. NONE: f32. */
  assay_dtype state, qk, chunk, gates;
  assay_quotient quotient;
  assay_stored_scale stored_scale;
  assay_generator generator;
  assay_start start; /* gemm, grouped, mxfp4 and fp8 products; with another alpha than 1 a call counts as ZERO */
} assay_contract;

/* ---- reference -------------------------------------------------------------------------------------- */

/* The output rows to compute, in ascending order. index == NULL: all rows. A row is one query token. */
typedef struct assay_rows {
  int64_t count;
  const int64_t *index;
} assay_rows;

/* The expectation for one output, as the reference computed it: value[i] and sigma[i] for i over rows.count ×
 * row_elements, dense. An output without the row dimension is computed whole. The caller owns the buffers; sigma may be
 * NULL. sigma 0: exactly value, rounded to the output's type. An ASSAY_INOUT argument also knows two special sigmas.
 * ASSAY_UNCHANGED: the bits it had before the call. ASSAY_MOVED: the bits that element number value[i] of the same
 * argument had. Caches (ASSAY_K_CACHE, ASSAY_V_CACHE as ASSAY_INOUT) are not judged whole. Their rows are the new
 * tokens, [H_kv, D] each, at the places that the slots give, and 0 for slot -1. Everything else in the pool must keep
 * its bits. */
#define ASSAY_UNCHANGED (-1.0)
#define ASSAY_MOVED     (-2.0)
typedef struct assay_expected {
  double *value;
  double *sigma;
} assay_expected;

/* Facts that the reference found on its way. Optional pointers may be NULL.
 * v_needed: one byte per (physical slot - first_slot, kv head) [slots × H_kv]. It is 1 where some computed row of some
 * head has a p that is not surely 0 (z above -bound; exact tier: z > 0). Softmax: 1 where visible. */
typedef struct assay_seen {
  int64_t visible_keys; /* (row, head, key) triples inside the mask */
  int64_t live_keys;    /* those with p != 0 */
  unsigned char *v_needed;
  int64_t first_slot, slots;
} assay_seen;

typedef struct assay_cost {
  /* Cost of a call. bytes: the fewest that must move, outputs included. */
  double flops, bytes;
} assay_cost;

/* ---- values for the generator ----------------------------------------------------------------------- */

/* Kinds of values. SPECIAL: NaN, Inf, largest, subnormals, ties of rounding and both zeros among the others. Only
 * operators that define the results of such values take it (takes_special). */
typedef enum assay_values {
  ASSAY_NORMAL,
  ASSAY_HEAVY_TAILED,
  ASSAY_LATTICE,
  ASSAY_NEEDLES,
  ASSAY_SPECIAL
} assay_values;

/* Magnitudes that the generator gives to floating arguments after their values are made. SMALL: around and below the
 * least normal number. LARGE: up to `largest` of the operator, or to the end of f16. MIXED: both signs of zero, small,
 * usual and larger numbers side by side. */
typedef enum assay_magnitude { ASSAY_USUAL, ASSAY_SMALL, ASSAY_LARGE, ASSAY_MIXED } assay_magnitude;

/* How the generator asks an operator for values in logical coordinates. `content` names a token's content: logical
 * block identity · block_size + offset. Shared prefix blocks have one identity. Renumbering physical blocks or
 * permuting requests therefore changes no value. `request` is an identity too. */
typedef struct assay_fill {
  const assay_call *call; /* host memory; lengths, cu_q and tables are filled, but q, k, v are not yet */
  assay_values values;
  double density; /* wanted share of live keys; negative: left to chance */
  /* With a density: the number of neighbouring contents that live or die together. Below 2: each content on its own. */
  int64_t cluster;
  uint64_t seed;
  int64_t H, H_kv, D; /* copies of the dimensions, for convenience */
  assay_dtype q_dtype, kv_dtype;
  double k_scale, v_scale; /* factors of kv head 0; heads may differ by powers of two */
  void *context;
  int64_t (*content)(void *context, int64_t request, int64_t token); /* token → content */
  int64_t (*kv_length)(void *context, int64_t request);              /* L */
  int64_t (*first_position)(void *context, int64_t request);         /* P = L - T */
  bool (*important)(void *context, int64_t content);                 /* last key, edges of splits and blocks */
  assay_magnitude magnitude; /* for arguments whose extremes the operator makes itself */
} assay_fill;

/* ---- the operator ----------------------------------------------------------------------------------- */

/* An operator. Its strings and tables are constants that live as long as the program. */
struct assay_op {
  const char *name, *title, *source; /* source: where the definition is written */
  const assay_dim *dims;
  int32_t dim_count;
  const assay_arg *args;
  int32_t arg_count;
  const assay_param *params;
  int32_t param_count;
  const char *laws;     /* "renumbering,permutation,run_to_run,dead_bytes,in_place,parts" */
  const char *spoils;   /* planted errors that the suite must notice: names, at most 32 */
  double kappa_element; /* element limit in σ: one rounding 2.5, two 3.2, sums 7 */
  assay_form form;
  const char *row_dim; /* plain: rows of the case run along it, and stay in place unless the law `permutation` is
                          listed; NULL: rows of each output are its axis 0, and stay in place */
  /* No exact tier: no inputs make every correct implementation agree in all bits. */
  bool inexact;
  /* "kind=uclip": the exact tier exists only with this value of an enum parameter. NULL: with all values. */
  const char *exact_with;
  bool takes_special; /* takes values: special */
  /* Keys that claims are made over, in order, at most 4. NULL: "dtype,kv_dtype,layout,mode" if paged, "dtype" if
   * plain. */
  const char *axes;
  /* The check of the reference against something that shares no code with it; printed in docs/operators.md. */
  const char *confirmed_by;

  /* Refuses a call that no implementation can run. Names the parameter, what was found and what is allowed. */
  assay_status (*check)(const assay_call *call, assay_error *error);
  /* Computes the definition in f64, and σ under the contract. expected[i] belongs to the i-th output argument that is
   * present. With `exact` it also proves that the case is on the lattice (docs/verification.md, tier 1). If the case is
   * not, it fails with ASSAY_ERR_INPUT and the violated condition. All pointers are host memory. */
  assay_status (*reference)(const assay_call *call, const assay_contract *contract, const assay_rows *rows, bool exact,
                            assay_expected *expected, assay_seen *seen, assay_error *error);
  assay_cost (*cost)(const assay_call *call, const assay_seen *seen);
  /* Fill the values of D channels. q goes by (request, position in the request's new tokens, head). */
  void (*fill_q)(const assay_fill *fill, int64_t request, int64_t position, int64_t head, double *value);
  void (*fill_k)(const assay_fill *fill, int64_t content, int64_t kv_head, double *value);
  void (*fill_v)(const assay_fill *fill, int64_t content, int64_t kv_head, double *value);
  /* Fills an ASSAY_VALUES argument: `count` numbers, dense, rows in the case's own order; integer types get integers.
   * The numbers depend on fill->seed and on the shapes and parameters of fill->call alone. No libm. */
  assay_status (*fill)(const assay_fill *fill, int32_t arg, double *value, int64_t count, assay_error *error);
  /* Tells whether output number `output` may be `got` at `element` (row · width + element in the row) although expected
   * differs. It is for results that rounding may move from one discrete answer to another (sampler). NULL: never. */
  bool (*accepts)(const assay_call *call, const assay_contract *contract, int32_t output, int64_t element, double got);
  /* Tells whether key `token` of the request is inside some row's mask. The request's new tokens start at P. */
  bool (*visible)(const assay_call *call, int64_t request, int64_t length, int64_t first_position, int64_t token);
  /* Gives values of an implementation with planted error number `spoil` of `spoils`, in f64. `expected` holds those of
   * reference(); untouched ones may stay. NULL where the operator lists no planted errors. */
  assay_status (*spoil)(const assay_call *call, const assay_contract *contract, const assay_rows *rows, int32_t spoil,
                        assay_expected *expected, assay_error *error);
  /* Law parts: "rope,kv_append" names operators that make the same bits when called one after the other. Arguments go
   * by name. The output X_out of one part is the input X of later parts. NULL: none. */
  const char *parts;
  /* Names of the arguments that take magnitudes, separated by commas. NULL: all floating arguments that fill() makes.
   */
  const char *extreme_args;
  /* The largest number of magnitude LARGE in f32 and bf16: every f32 intermediate result stays finite. 0: 2^100. */
  double largest;
  /* Fills an i64 argument whose numbers need all 64 bits. Returns false where fill()'s numbers do. NULL: they do. */
  bool (*fill_wide)(const assay_fill *fill, int32_t arg, int64_t *value, int64_t count);
  /* Tells whether an element of the rows of output number `output` is a copy of a stored number. The sign of a zero is
   * judged there too. NULL: never, the sign of a zero is free. */
  bool (*copies)(const assay_call *call, int32_t output, int64_t element);
  /* Describes row `row` of the one output as a product of matrices: a [1, K], b [N, K], and what follows the sum. a
   * without data stands for zeros. b without data: the row is no product, and is not compared. All pointers are host
   * memory. With it, a variant may declare its sums (variant.h). NULL: the operator is no such product. */
  void (*product)(const assay_call *call, int64_t row, assay_product *product);
  /* Returns the number of answers that row `row` of output number 0 has, and writes the chance of each to `chance`
   * (NULL: only the number). 0: the row is not drawn, or rounding decides which answers it has. With it, the operator
   * may list the law `distribution`. NULL: nothing is drawn. */
  int64_t (*chances)(const assay_call *call, const assay_contract *contract, int64_t row, double *chance);
  /* Names of the integer arguments by which rows that are alike draw apart, separated by commas. */
  const char *draw_args;
  /* Returns the f32 factor of row `row`, for ASSAY_AFTER_FACTOR, as `lanes` lanes sum its parts (sums.h). NaN stands
   * for itself. NULL: the operator has none. */
  float (*product_factor)(const assay_call *call, int64_t row, int64_t lanes);
  /* Writes row `column` of the weights of product() to `to`, [K] of the type that product() gives b. NULL: b has them.
   */
  void (*product_weights)(const assay_call *call, int64_t column, void *to);
};

/* ---- look-ups by name: the names are the interface, so new arguments do not break callers -------------- */

/* Returns the argument with this name; NULL if it is unknown or absent. */
static inline const assay_tensor *assay_find_arg(const assay_call *call, const char *name) {
  for (int32_t i = 0; i < call->op->arg_count; ++i)
    if (strcmp(call->op->args[i].name, name) == 0) return call->arg[i].data != NULL ? &call->arg[i] : NULL;
  return NULL;
}

/* Returns the parameter with this name; NaN if it is unknown. */
static inline double assay_find_param(const assay_call *call, const char *name) {
  for (int32_t i = 0; i < call->op->param_count; ++i)
    if (strcmp(call->op->params[i].name, name) == 0) return call->param[i];
  return (double)NAN;
}

#ifdef __cplusplus
}
#endif
#endif
