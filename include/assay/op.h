/* op.h: an operator, declared once. The YAML checker, the generator, the judge, the roofline and the docs
 * read this struct and nothing else; it stands beside the operator's reference in ref/<op>.c. */
#ifndef ASSAY_OP_H
#define ASSAY_OP_H

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "status.h"
#include "tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { ASSAY_MAX_ARGS = 24, ASSAY_MAX_PARAMS = 24, ASSAY_MAX_DIMS = 16, ASSAY_MAX_OUTPUTS = 5 };

typedef struct assay_op assay_op;

/* ---- dimensions, arguments, parameters ------------------------------------------------------------- */

typedef struct assay_dim {
  const char *name;
  int64_t min, max, fallback; /* fallback: the value where a case is silent; 0 with max 0: derived, not settable */
  int64_t multiple;           /* legal values are multiples of this (1: any) */
  const char *doc;
} assay_dim;

typedef enum assay_role { ASSAY_IN, ASSAY_OUT, ASSAY_INOUT } assay_role;

/* What an argument holds; the generator has one recipe for each. */
typedef enum assay_content {
  ASSAY_QUERY,       /* values, rows grouped by request */
  ASSAY_K_CACHE,     /* paged keys; bytes no visible token owns are dead */
  ASSAY_V_CACHE,     /* paged values, likewise */
  ASSAY_KV_SCALE,    /* fp8 dequantisation factors, present for fp8 caches only */
  ASSAY_BLOCK_TABLE, /* entries past ceil(L / block_size) are dead; optional: absent where cu_k is there */
  ASSAY_KV_LEN,      /* L_i */
  ASSAY_CU_Q,        /* prefix sums of T_i; absent in decode mode: one row per request */
  ASSAY_TAPS,        /* filter taps, f32 */
  ASSAY_GAMMA,       /* per-head factor, f32, never 0 */
  ASSAY_SLOPES,      /* ALiBi slopes, f32, optional */
  ASSAY_RESULT,      /* written by the kernel: poisoned before the call */
  ASSAY_VALUES,      /* whatever the operator's fill() says: values, ids, positions, weights, tables */
  ASSAY_K_NEW,       /* keys of the new tokens, one row each; the cache does not hold them yet */
  ASSAY_V_NEW,       /* values, likewise */
  ASSAY_QKV_NEW,     /* q, k and v of the new tokens in one row: H + 2 H_kv heads */
  ASSAY_SLOTS,       /* i64: the slot of each new token, -1 for a pad row */
  ASSAY_CU_K         /* first row of each request in K and V without a block table; that is absent then */
} assay_content;

/* What a case of the operator is made of.
 * ASSAY_PAGED: a batch of requests with lengths over a paged cache. Keys: mode, kv_dtype, kv_len, new, share, tables …
 * ASSAY_PLAIN: tensors whose sizes are the operator's dimensions, all of them keys; no requests. Contents are
 * ASSAY_VALUES and ASSAY_RESULT only. The rows of a case run along the dimension row_dim. */
typedef enum assay_form { ASSAY_PAGED, ASSAY_PLAIN } assay_form;

/* shape: dimension names separated by commas; alternatives for the values of the enum parameter "layout",
 * in its order, are separated by '|'. "D/x" divides by x = 16 / sizeof(element), "R/2" by a number, "2*I" and "B+1" are
 * what they say. An ASSAY_INOUT argument is one more output: its bits after the call are judged against expected[].
 * strided: its rows (axis 0) may lie apart, as in a fused buffer; the key q_pad (plain: row_pad) sets how far. */
typedef struct assay_arg {
  const char *name;
  assay_role role;
  assay_content content;
  bool optional;
  /* "f32,f16,bf16" (the key dtype) | "=q" (that of another argument) | "=q,e4m3,e5m2" (the key kv_dtype) | one name.
   * Plain operators: "=x,f32" is the key out_dtype: same or one of the others. */
  const char *dtypes;
  const char *shape;
  const char *doc;
  bool strided;
} assay_arg;

typedef enum assay_kind { ASSAY_REAL, ASSAY_INTEGER, ASSAY_BOOL, ASSAY_ENUM } assay_kind;

typedef struct assay_param {
  const char *name;
  assay_kind kind;
  double min, max, fallback;
  const char *names; /* ASSAY_ENUM: "nhd,hnd,x"; the value is the index */
  const char *doc;
} assay_param;

/* One call: tensors and parameters in the operator's order. Parameters are doubles (exact up to 2^53);
 * booleans are 0 or 1, enums an index. */
typedef struct assay_call {
  const assay_op *op;
  const assay_tensor *arg;
  const double *param;
} assay_call;

/* ---- contract: where an implementation rounds, and what it promises --------------------------------- */

typedef enum assay_zero_p_v { ASSAY_V_MULTIPLIED, ASSAY_V_SKIPPED, ASSAY_V_SKIPPED_FOR_GROUP } assay_zero_p_v;

typedef struct assay_contract {
  assay_dtype k, v;        /* rounding of K and V after dequantisation (fp8 caches only); NONE: exact */
  assay_dtype score;       /* rounding of a stored score beyond f32 accumulation; NONE: stays in f32 */
  assay_dtype p;           /* rounding of p before it multiplies V; NONE: p stays in f32 */
  assay_dtype partial;     /* rounding of split partials; NONE: f32 (exact on the lattice) */
  double exp_ulp;          /* error bound of exp, tanh, sigmoid, rsqrt and division, in ulp of f32 */
  int32_t qk_lanes;        /* partial sums a q·k is spread over */
  int32_t pv_lanes;        /* partial sums that Σ p v is spread over, inside one split */
  int32_t keys_per_split;  /* 0: the key axis is not split */
  double denominator_add;  /* constant added to the softmax denominator */
  assay_zero_p_v zero_p_v; /* may V of a key with p = 0 hold NaN? */
  bool run_to_run;         /* the same call gives the same bits */
  bool renumbering;        /* physical block numbers do not show in the bits */
  bool permutation;        /* the order of requests (plain: of rows) does not show in the bits */
  int32_t lanes;           /* partial sums that a reduction (norm, dot product) is spread over; 0: one */
  assay_dtype rotated;     /* mmha: rounding of q after bias and rotation; NONE: f32 */
  bool alone;  /* which other rows (paged: requests) a call holds, and how many, does not show in the bits */
  int32_t cut; /* terms that tensor cores add to a sum of 16-bit products at a time, all cut where the largest has its
                * 2^-25; 0: sums are f32 additions, rounded to nearest */
} assay_contract;

/* ---- reference -------------------------------------------------------------------------------------- */

/* Output rows to compute; index == NULL: all of them. A row is one query token. Ascending. */
typedef struct assay_rows {
  int64_t count;
  const int64_t *index;
} assay_rows;

/* What the reference says of one output: value[i] and sigma[i] for i over rows.count × row_elements, dense; outputs
 * without the row dimension whole. Buffers belong to the caller; sigma may be NULL.
 * sigma 0: exactly value, rounded to the output's type. Of an ASSAY_INOUT argument also: ASSAY_UNCHANGED: the bits it
 * had before the call; ASSAY_MOVED: the bits that element number value[i] of the same argument had.
 * Caches (ASSAY_K_CACHE, ASSAY_V_CACHE as ASSAY_INOUT) are not judged whole: their rows are the new tokens, [H_kv, D]
 * each, where slots say, 0 for slot -1; everything else in the pool must keep its bits. */
#define ASSAY_UNCHANGED (-1.0)
#define ASSAY_MOVED     (-2.0)
typedef struct assay_expected {
  double *value;
  double *sigma;
} assay_expected;

/* Facts the reference saw on its way. Optional pointers may be NULL.
 * v_needed: one byte per (physical slot - first_slot, kv head) [slots × H_kv]: 1 where some computed row of
 * some head has p that is not surely 0 (z above -bound; exact tier: z > 0). Softmax: 1 where visible. */
typedef struct assay_seen {
  int64_t visible_keys; /* (row, head, key) triples inside the mask */
  int64_t live_keys;    /* of these, p != 0 */
  unsigned char *v_needed;
  int64_t first_slot, slots;
} assay_seen;

typedef struct assay_cost {
  double flops, bytes; /* bytes: the fewest that must move, outputs included */
} assay_cost;

/* ---- values for the generator ----------------------------------------------------------------------- */

/* SPECIAL: NaN, Inf, largest, subnormals, ties of rounding, both zeros among the others; only operators that say what
 * becomes of them take it (takes_special). */
typedef enum assay_values {
  ASSAY_NORMAL,
  ASSAY_HEAVY_TAILED,
  ASSAY_LATTICE,
  ASSAY_NEEDLES,
  ASSAY_SPECIAL
} assay_values;

/* How the generator asks an operator for values in logical coordinates. Token content is named by
 * `content` = logical block identity · block_size + offset: shared prefix blocks have one identity, and
 * renumbering physical blocks or permuting requests changes no value. `request` is an identity too. */
typedef struct assay_fill {
  const assay_call *call; /* lengths, cu_q and tables filled; q, k, v not yet; host memory */
  assay_values values;
  double density;  /* wanted share of live keys; negative: leave it to chance */
  int64_t cluster; /* with a density: so many neighbouring contents live or die together; below 2: each its own way */
  uint64_t seed;
  int64_t H, H_kv, D; /* copies of the dimensions, for convenience */
  assay_dtype q_dtype, kv_dtype;
  double k_scale, v_scale; /* of kv head 0; heads may differ by powers of two */
  void *context;
  int64_t (*content)(void *context, int64_t request, int64_t token); /* token → content */
  int64_t (*kv_length)(void *context, int64_t request);              /* L */
  int64_t (*first_position)(void *context, int64_t request);         /* P = L - T */
  bool (*important)(void *context, int64_t content);                 /* last key, split and block edges */
} assay_fill;

/* ---- the operator ----------------------------------------------------------------------------------- */

struct assay_op {
  const char *name, *title, *source; /* source: where the definition comes from */
  const assay_dim *dims;
  int32_t dim_count;
  const assay_arg *args;
  int32_t arg_count;
  const assay_param *params;
  int32_t param_count;
  const char *laws;     /* "renumbering,permutation,run_to_run,dead_bytes,in_place,parts" */
  const char *spoils;   /* planted errors the suite must notice; names, at most 32 */
  double kappa_element; /* element limit in σ: one rounding 2.5, two 3.2, sums 7 */
  assay_form form;
  const char
      *row_dim; /* plain: rows of the case run along it; NULL: rows of each output are its axis 0, and stay in place */
  bool inexact; /* no exact tier: no inputs make every correct implementation agree in all bits */
  const char *exact_with;   /* "kind=uclip": an exact tier only with this value of an enum parameter; NULL: with all */
  bool takes_special;       /* values: special */
  const char *axes;         /* keys that claims are made over, in order; NULL: paged "dtype,kv_dtype,layout,mode",
                             * plain "dtype". At most 4 */
  const char *confirmed_by; /* what the reference is held against that shares no code with it; for docs/operators.md */

  /* Refuses what no implementation can do; names the parameter, what was found, what is allowed. */
  assay_status (*check)(const assay_call *call, assay_error *error);
  /* The definition in f64, and σ under the contract. expected[i] belongs to the i-th output argument that is
   * present. `exact` additionally proves that the case is on the lattice (verification.md, tier 1) and fails
   * with ASSAY_ERR_INPUT and the violated condition if it is not. All pointers in host memory. */
  assay_status (*reference)(const assay_call *call, const assay_contract *contract, const assay_rows *rows, bool exact,
                            assay_expected *expected, assay_seen *seen, assay_error *error);
  assay_cost (*cost)(const assay_call *call, const assay_seen *seen);
  /* Values of D channels; q by (request, position in the request's new tokens, head). */
  void (*fill_q)(const assay_fill *fill, int64_t request, int64_t position, int64_t head, double *value);
  void (*fill_k)(const assay_fill *fill, int64_t content, int64_t kv_head, double *value);
  void (*fill_v)(const assay_fill *fill, int64_t content, int64_t kv_head, double *value);
  /* Contents of an ASSAY_VALUES argument: `count` numbers, dense, rows in the case's own order; integer types get
   * integers. Depends on fill->seed and the shapes and parameters of fill->call alone. No libm. */
  assay_status (*fill)(const assay_fill *fill, int32_t arg, double *value, int64_t count, assay_error *error);
  /* May output number `output` be `got` at `element` (row · width + element in the row) although expected says
   * something else? For results that rounding may move from one discrete answer to another (sampler). NULL: never. */
  bool (*accepts)(const assay_call *call, const assay_contract *contract, int32_t output, int64_t element, double got);
  /* Is key `token` of the request inside some row's mask? (request's new tokens start at P.) */
  bool (*visible)(const assay_call *call, int64_t request, int64_t length, int64_t first_position, int64_t token);
  /* What an implementation with planted error number `spoil` of `spoils` would compute, in f64: as reference(), values
   * only. NULL where the operator lists none. */
  assay_status (*spoil)(const assay_call *call, const assay_contract *contract, const assay_rows *rows, int32_t spoil,
                        assay_expected *expected, assay_error *error);
  /* Law parts: "rope,kv_append": operators that make the same bits, called one after the other. Arguments go by name;
   * what a part gives as X_out is X to those behind it, where X is an input. NULL: none. */
  const char *parts;
};

/* ---- look-ups by name: the names are the interface, so arguments can be added without breaking callers -- */

static inline const assay_tensor *assay_find_arg(const assay_call *call, const char *name) {
  for (int32_t i = 0; i < call->op->arg_count; ++i)
    if (strcmp(call->op->args[i].name, name) == 0) return call->arg[i].data != NULL ? &call->arg[i] : NULL;
  return NULL;
}

/* NaN for an unknown name. */
static inline double assay_find_param(const assay_call *call, const char *name) {
  for (int32_t i = 0; i < call->op->param_count; ++i)
    if (strcmp(call->op->params[i].name, name) == 0) return call->param[i];
  return (double)NAN;
}

#ifdef __cplusplus
}
#endif
#endif
