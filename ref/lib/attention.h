/* attention.h: shared parts of both attention operators. They are the call as named sizes and pointers, the keys that a
 * row sees, and validation. The walk over (row, head) gives K and V of its request in f64. */
#ifndef ASSAY_REF_ATTENTION_H
#define ASSAY_REF_ATTENTION_H

#include "assay/op.h"
#include "ref/lib/paged.h"
#include "ref/lib/paged_check.h"
#include "ref/lib/plain.h"

/* The first arguments and parameters of both operators, in table order. */
enum { ARG_Q, ARG_K, ARG_V, ARG_K_SCALE, ARG_V_SCALE, ARG_TABLE, ARG_KV_LEN, ARG_CU_Q, ARG_CU_K, ARG_OWN };
enum { PARAM_LAYOUT, PARAM_SCALE, PARAM_WINDOW, PARAM_SCALE_PER_HEAD, PARAM_OWN };

/* One call, by name. Real parameters reach every kernel as f32, so their f32 value is the definition. */
typedef struct attention {
  int64_t B, N, H, H_kv, D, block_size, num_blocks, max_blocks;
  int64_t D_v; /* channels of V and of the output */
  paged_layout layout;
  double scale; /* the parameter, or 1/sqrt(D); rounded to f32 */
  bool fp8;
  const assay_tensor *q, *k, *v, *k_scale, *v_scale, *kv_len, *cu_q; /* NULL: absent */
  const assay_tensor *table, *cu_k;    /* cu_k not NULL: K and V are contiguous, and there is no table */
  const assay_tensor *parent;          /* the new tokens are trees; NULL: rows in turn */
  const assay_tensor *mask, *mask_ptr; /* packed bits in place of the causal rule; NULL: none */
  /* the mask */
  int64_t window, chunk;                                                    /* 0: off */
  int64_t sparse_block, sparse_local, sparse_stride, sparse_slide, tp_rank; /* sparse_block 0: off */
  /* planted errors (attention_spoil.h) */
  int reach;                      /* keys seen after the row's own; 0 without a planted error */
  bool neighbour;                 /* contiguous: a request's last key lies in the row before it */
  bool by_index;                  /* trees: positions are those of rows in turn */
  bool prefix;                    /* trees: window and chunk do not hide new tokens */
  int mask_error;                 /* attention_mask_error */
  bool v_token_by_D, v_head_by_D; /* V's tokens, or its heads, lie as far apart as if V had D channels */
} attention;

/* The place of a query row: its own key, its position, and the tree of its request's new tokens. */
typedef struct attention_place {
  int64_t cached;        /* P_i */
  int64_t own;           /* its own key, P_i + n; below 0: it sees no key */
  int64_t last;          /* its position: own, or P_i + the number of its ancestors */
  const int32_t *parent; /* rows of the request: an earlier one, or -1; NULL: rows in turn */
  /* With a mask: the row's bit of key t is number first_bit + t of `bits`. Bits from end_bit on count as 0. */
  const uint8_t *bits;              /* NULL: no mask */
  int64_t first_bit, end_bit, keys; /* keys: of the request */
} attention_place;

attention attention_of(const assay_call *call);
/* Planted errors of the mask. */
typedef enum attention_mask_error {
  MASK_RIGHT,
  MASK_BITS_REVERSED,  /* the first key is the highest bit of a byte */
  MASK_ROW_PADDED,     /* every row begins with a byte of its own */
  MASK_REQUEST_BEFORE, /* a request reads the bits of the one before it */
  MASK_LAST_BYTE_LOST  /* the last byte of a request counts only if it is full */
} attention_mask_error;

/* Return, from the call alone, the scale, and the keys that a row of the block table can name, or the rows of K. */
double attention_scale(const assay_call *call);
int64_t attention_capacity(const assay_call *call);
int64_t attention_block(const assay_call *call); /* keys of a block */
double attention_real(double parameter);         /* returns its f32 value */

/* Return L_i, P_i = L_i - T_i, and the rows cu_q[i] .. cu_q[i + 1] of request i. Contents must have been checked. */
int64_t attention_length(const attention *a, int64_t request);
int64_t attention_first_row(const attention *a, int64_t request);
/* Returns the slot of key t of a request: block · block_size + offset. Contiguous: row cu_k[request] + t, in blocks of
 * one token. */
int64_t attention_slot(const attention *a, int64_t request, int64_t t);

/* Tells whether the row at position `last`, head h, sees key t. */
bool attention_sees(const attention *a, int64_t h, int64_t last, int64_t t);
/* Returns the place of row n of a request's new tokens. */
attention_place attention_place_of(const attention *a, int64_t request, int64_t n);
/* Returns the position of key t. In a tree that of a new token is that of its own row. */
int64_t attention_position(const attention *a, const attention_place *place, int64_t t);
/* Does the same as attention_sees for rows of trees too: a row sees the old keys, its own and those of its ancestors.
 * Window and chunk go by position. */
bool attention_place_sees(const attention *a, const attention_place *place, int64_t h, int64_t t);
/* Returns the last key that a row at this place may see, before any mask and window. */
int64_t attention_last_key(const attention *a, const attention_place *place, int64_t length);
/* Returns the number of ancestors of row n. */
int64_t attention_depth(const int32_t *parent, int64_t n);
/* Returns the first key that window, chunk and causality leave; last + 1 if there is none. Later keys may fall into
 * block-sparse gaps. */
int64_t attention_first_key(const attention *a, int64_t last);
/* Implements assay_op.visible for both operators. */
bool attention_visible(const assay_call *call, int64_t request, int64_t length, int64_t first_position, int64_t token);

/* Checks the shapes, types, strides and parameters of both operators. Each operator then checks its own ones. */
assay_status attention_check(const assay_call *call, assay_error *error);
/* Checks contents in host memory: lengths, prefix sums and the table entries that keys need. */
assay_status attention_check_contents(const attention *a, assay_error *error);

/* K and V of one request and kv head, and one query row of one head that reads them. */
typedef struct attention_row {
  int64_t output; /* (index in the row subset) · H + head */
  int64_t request, head, kv_head;
  int64_t last;  /* the row's own position; -1: it sees no key, and all fields below are void */
  int64_t first; /* first key in the window; first >= end: it sees no key */
  int64_t end;   /* one past the last key that causality leaves: last + 1 */
  attention_place place;
  int64_t origin;           /* key t of the request is row t - origin of k and v */
  int64_t keys;             /* rows of k and v */
  const double *q;          /* [D] */
  const double *k, *v;      /* [keys, D], [keys, D_v] */
  const int64_t *slot;      /* [keys] physical slots */
  const int *k_low, *v_low; /* [keys] lattice_low of the rows; only if asked for */
} attention_row;

typedef assay_status (*attention_visit)(void *context, const attention_row *row, assay_error *error);
/* Visits rows in ascending order, with the heads of a kv head together. `lattice`: fills k_low and v_low. */
assay_status attention_walk(const attention *a, const assay_rows *rows, bool lattice, attention_visit visit,
                            void *context, assay_error *error);

/* Tells whether all fp8 factors (NULL: none) are powers of two, so that code · scale is exact in f32. */
bool attention_scales_exact(const assay_tensor *scale);
/* Refuses the exact tier: names a condition that does not hold. */
assay_status attention_refuse(const attention_row *row, const char *what, double found, double allowed,
                              assay_error *error);

/* Marks V of the key as needed. */
void attention_need(const attention *a, const attention_row *row, int64_t t, assay_seen *seen);

/* Returns the fewest bytes and the flops of one call, for both operators; `taps` flops more for every visible key. */
assay_cost attention_cost(const assay_call *call, const assay_seen *seen, double flops_per_key);

#endif
