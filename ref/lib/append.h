/* append.h: shared parts of the operators that write new tokens into the paged cache. They are slots, the stored form
 * of a number, and attention over the cache after the append, as a call of the attention operator itself. */
#ifndef ASSAY_REF_APPEND_H
#define ASSAY_REF_APPEND_H

#include "assay/op.h"
#include "ref/lib/paged.h"

const assay_op *assay_op_gate_attention(void);
const assay_op *assay_op_softmax_attention(void);

/* ---- slots and stored numbers -------------------------------------------------------------------------- */

/* Returns the number that a cache of that type holds for `value`, which f32 holds exactly. fp8: value / scale in f32,
 * then the nearest code, saturating; NaN is NaN. Other types: rounded; the scale is not used. */
double append_stored(double value, float scale, assay_dtype cache);
/* Returns the factor of a kv head; 1 if the cache has none (NULL). */
float append_scale(const assay_tensor *scale, int64_t kv_head);
/* Returns the slot of a row; -1: the row is not written. The slots must have been checked. */
int64_t append_slot(const assay_tensor *slots, int64_t row);
/* Checks that the slots are i64 [N], dense. */
assay_status append_check_slots(const assay_call *call, int64_t N, assay_error *error);
/* Checks new tokens [N, H, D]: type, shape, dense except for the distance of rows. */
assay_status append_check_rows(const assay_call *call, const char *name, assay_dtype dtype, int64_t N, int64_t H,
                               int64_t D, assay_error *error);
/* Checks contents: every slot is -1 or inside the pool, and none appears twice. */
assay_status append_check_distinct(const assay_tensor *slots, int64_t pool_slots, assay_error *error);
/* Returns the index of an argument in the operator's table; -1 if the operator has no such argument. */
int32_t append_arg(const assay_call *call, const char *name);

/* ---- attention inside ---------------------------------------------------------------------------------- */

/* The parameter "kind" of the operators that attend. */
enum { KIND_GATE, KIND_SOFTMAX };

/* A call of gate_attention or softmax_attention with the arguments and parameters of the outer call, by name. If the
 * outer call has no argument q, the first heads of qkv are the queries. */
typedef struct append_attention {
  const assay_op *op;
  assay_call call;
  assay_tensor arg[ASSAY_MAX_ARGS];
  double param[ASSAY_MAX_PARAMS];
} append_attention;

/* Makes the inner call. inner->call points into *inner. */
void append_attention_of(const assay_call *outer, append_attention *inner);

/* Checks lengths, tables and slots. Each row's slot is that of its request's last token by the table, or -1 if the
 * length is 0. No other row reads a written block. Each request has one row. */
assay_status append_check_contents(const assay_call *outer, assay_error *error);

/* The cache as the requests of some rows see it after the append, in layout nhd with blocks in the order of the rows.
 * It also holds the call that attends over it, with one row per request. The caller puts in queries and new tokens. */
typedef struct append_cache {
  append_attention inner;
  const assay_call *outer;
  const assay_rows *rows; /* NULL index: all rows */
  int64_t count;          /* rows of the call */
  int64_t H, H_kv, D, block_size;
  unsigned char *k, *v, *q, *v_needed;
  int32_t *table, *length;
  int64_t *first_block; /* [count + 1] first block of each row */
} append_cache;

assay_status append_cache_make(const assay_call *outer, const assay_rows *rows, assay_dtype q_dtype, append_cache *c,
                               assay_error *error);
void append_cache_free(append_cache *c);
/* Returns the outer call's number of row i of the call, which is its request. */
int64_t append_cache_row(const append_cache *c, int64_t i);
/* Put the queries of row i and a head, and the last token of row i, as stored numbers. A row of length 0 takes
 * nothing. */
void append_cache_put_q(append_cache *c, int64_t i, int64_t head, const double *q);
void append_cache_put_k(append_cache *c, int64_t i, int64_t kv_head, const double *k);
void append_cache_put_v(append_cache *c, int64_t i, int64_t kv_head, const double *v);
/* Runs the attention's reference over all rows of the call (only: over that one row; -1: over all). `seen` is in slots
 * of the outer call. */
assay_status append_cache_reference(append_cache *c, const assay_contract *contract, bool exact, int64_t only,
                                    assay_expected *out, assay_seen *seen, assay_error *error);
/* Computes a planted error of the attention, by name. *known tells whether the attention has one of that name. */
assay_status append_cache_spoil(append_cache *c, const assay_contract *contract, const char *name, assay_expected *out,
                                bool *known, assay_error *error);

/* Writes name number `index` of a comma list to `name`. */
void append_spoil_name(const char *list, int32_t index, char *name, size_t size);

#endif
