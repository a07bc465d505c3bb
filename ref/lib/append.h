/* append.h: what operators that write new tokens into the paged cache share: slots, the form in which a number is
 * stored, and attention over the cache as it is after the append, as a call of the attention operator itself. */
#ifndef ASSAY_REF_APPEND_H
#define ASSAY_REF_APPEND_H

#include "assay/op.h"
#include "ref/lib/paged.h"

const assay_op *assay_op_gate_attention(void);
const assay_op *assay_op_softmax_attention(void);

/* ---- slots and stored numbers -------------------------------------------------------------------------- */

/* The number that a cache of that type holds for `value`, which f32 holds exactly. fp8: value / scale in f32, then the
 * nearest code, saturating; NaN is NaN. Other types: rounded, the scale is not used. */
double append_stored(double value, float scale, assay_dtype cache);
/* Factor of a kv head; 1 where the cache has none (NULL). */
float append_scale(const assay_tensor *scale, int64_t kv_head);
/* Slot of a row, slots checked; -1: the row is not written. */
int64_t append_slot(const assay_tensor *slots, int64_t row);
/* i64 [N], dense. */
assay_status append_check_slots(const assay_call *call, int64_t N, assay_error *error);
/* New tokens [N, H, D]: type, shape, dense but for the distance of rows. */
assay_status append_check_rows(const assay_call *call, const char *name, assay_dtype dtype, int64_t N, int64_t H,
                               int64_t D, assay_error *error);
/* Contents: every slot -1 or inside the pool, none twice. */
assay_status append_check_distinct(const assay_tensor *slots, int64_t pool_slots, assay_error *error);
/* Place of an argument in the operator's table, -1: there is none. */
int32_t append_arg(const assay_call *call, const char *name);

/* ---- attention inside ---------------------------------------------------------------------------------- */

/* The parameter "kind" of the operators that attend. */
enum { KIND_GATE, KIND_SOFTMAX };

/* A call of gate_attention or softmax_attention with the arguments and parameters of the outer call, by name. Without
 * an argument q, the first heads of qkv are the queries. */
typedef struct append_attention {
  const assay_op *op;
  assay_call call;
  assay_tensor arg[ASSAY_MAX_ARGS];
  double param[ASSAY_MAX_PARAMS];
} append_attention;

/* made->call points into *made. */
void append_attention_of(const assay_call *outer, append_attention *made);

/* Lengths, tables, slots: each row's slot is that of its request's last token by the table, -1 where the length is 0;
 * nobody else reads a block that is written. One row a request. */
assay_status append_check_contents(const assay_call *outer, assay_error *error);

/* The cache as the requests of some rows see it after the append, blocks in the order of the rows, layout nhd; and
 * the call that attends over it, one row a request. Queries and new tokens are put in by the caller. */
typedef struct append_cache {
  append_attention inner;
  const assay_call *outer;
  const assay_rows *rows; /* NULL index: all */
  int64_t count;          /* rows of the call */
  int64_t H, H_kv, D, block_size;
  unsigned char *k, *v, *q, *v_needed;
  int32_t *table, *length;
  int64_t *first_block; /* [count + 1] */
} append_cache;

assay_status append_cache_make(const assay_call *outer, const assay_rows *rows, assay_dtype q_dtype, append_cache *made,
                               assay_error *error);
void append_cache_free(append_cache *c);
/* Row i of the call: row number of the outer call, its request. */
int64_t append_cache_row(const append_cache *c, int64_t i);
/* Queries of row i and head, and the last token of row i, as stored numbers; nothing for a row of length 0. */
void append_cache_put_q(append_cache *c, int64_t i, int64_t head, const double *q);
void append_cache_put_k(append_cache *c, int64_t i, int64_t kv_head, const double *k);
void append_cache_put_v(append_cache *c, int64_t i, int64_t kv_head, const double *v);
/* The attention's reference over all rows of the call (only: that one, -1: all), seen in slots of the outer call. */
assay_status append_cache_reference(append_cache *c, const assay_contract *contract, bool exact, int64_t only,
                                    assay_expected *out, assay_seen *seen, assay_error *error);
/* A planted error of the attention, by name. *known: whether it has one of that name. */
assay_status append_cache_spoil(append_cache *c, const assay_contract *contract, const char *name, assay_expected *out,
                                bool *known, assay_error *error);

/* Name number `index` of a comma list, in `name`. */
void append_spoil_name(const char *list, int32_t index, char *name, size_t size);

#endif
