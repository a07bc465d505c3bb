/* attention_spoil.h: planted errors (docs/verification.md, "Power"): the call, the keys or the rows that a wrong
 * implementation would use in place of the right ones. The definition itself does not know them.
 *
 *   last_key_dropped     a row does not see its own key
 *   causal_one_off       a row sees the key after its own, where the request has one
 *   window_one_short     the window is one key short (windows of 2 and more)
 *   wrong_kv_head        kv heads in reverse order, and so are their fp8 factors
 *   neighbour_block      a request's last block is read through the table entry before it. If the request has one
 *                        block, it is the entry of the next request that is at least as long. Contiguous: its last key
 *                        lies in the row before it; if the request has one key, in the next request's first
 *   split_first_doubled  the first key of every split except the first counts twice
 *   split_skipped        the row's last split is missing, where the row has another one
 *   scale_lost           scores are not scaled
 *   k_scale_lost, v_scale_lost, head_scale_lost
 *                        an fp8 factor is 1; every head takes the factor of head 0
 *   row_swapped          two neighbouring output rows are exchanged
 * Tokens of V lie D channels apart in v_token_by_D, and heads in v_head_by_D. attention_mask_error has
 * mask_bits_reversed, mask_row_padded, mask_of_request_before, mask_last_byte_lost. The operators themselves do:
 * lse_not_merged, softcap_lost, slopes_lost, sink_scaled, sink_per_split, sink_on_key_0, sink_lost, chunk_from_row,
 * depth_is_index, window_on_prefix_only; filter_across_rows, split_halo_lost, relu_lost, clip_lost, taps_reversed,
 * gamma_lost. */
#ifndef ASSAY_REF_ATTENTION_SPOIL_H
#define ASSAY_REF_ATTENTION_SPOIL_H

#include "ref/lib/attention.h"

typedef enum attention_spoil_kind {
  SPOIL_NONE,
  SPOIL_LAST_KEY_DROPPED,
  SPOIL_CAUSAL_ONE_OFF,
  SPOIL_WINDOW_ONE_SHORT,
  SPOIL_WRONG_KV_HEAD,
  SPOIL_NEIGHBOUR_BLOCK,
  SPOIL_SPLIT_FIRST_DOUBLED,
  SPOIL_SPLIT_SKIPPED,
  SPOIL_SCALE_LOST,
  SPOIL_K_SCALE_LOST,
  SPOIL_V_SCALE_LOST,
  SPOIL_HEAD_SCALE_LOST,
  SPOIL_ROW_SWAPPED,
  SPOIL_LSE_NOT_MERGED,
  SPOIL_SOFTCAP_LOST,
  SPOIL_SLOPES_LOST,
  SPOIL_FILTER_ACROSS_ROWS,
  SPOIL_SPLIT_HALO_LOST,
  SPOIL_RELU_LOST,
  SPOIL_CLIP_LOST,
  SPOIL_TAPS_REVERSED,
  SPOIL_GAMMA_LOST,
  SPOIL_SINK_SCALED,
  SPOIL_SINK_PER_SPLIT,
  SPOIL_SINK_ON_KEY_0,
  SPOIL_SINK_LOST,
  SPOIL_CHUNK_FROM_ROW,
  SPOIL_DEPTH_IS_INDEX,
  SPOIL_WINDOW_ON_PREFIX_ONLY,
  SPOIL_V_TOKEN_BY_D,
  SPOIL_V_HEAD_BY_D,
  SPOIL_MASK_BITS_REVERSED,
  SPOIL_MASK_ROW_PADDED,
  SPOIL_MASK_OF_REQUEST_BEFORE,
  SPOIL_MASK_LAST_BYTE_LOST,
  SPOIL_COUNT
} attention_spoil_kind;

typedef struct attention_spoil {
  attention_spoil_kind kind;
  int64_t split; /* keys of a split: the contract's; 256 if the contract has no splits */
  int reach;     /* for attention.reach */
  assay_call call;
  assay_tensor arg[ASSAY_MAX_ARGS];
  double param[ASSAY_MAX_PARAMS];
  void *copy[4];    /* owned: the data that arg[] points to in place of the call's own tensors */
  size_t copied[4]; /* bytes that were copied; 0: the copy has another type */
  int copies;
  /* The rows that the error can touch. All others have the reference's values. */
  assay_rows rows;
  int64_t *place;           /* owned: [rows.count] places of these rows among the caller's; then the rows' index */
  assay_expected values[2]; /* owned: values of these rows alone */
  int64_t width[2], all;    /* all: rows of the caller */
} attention_spoil;

/* Makes planted error number `index` of the operator's list, and the call that is computed instead. Always free it. */
assay_status attention_spoil_make(const assay_call *call, const assay_contract *contract, int32_t index,
                                  attention_spoil *s, assay_error *error);
void attention_spoil_free(attention_spoil *s);
/* Returns a copy of a dense argument of 32-bit elements, to be changed. NULL: out of memory, or the argument is
 * absent. */
void *attention_spoil_copy(attention_spoil *s, int32_t arg);
/* Returns how often key t counts in this row: 0, 1 or 2. NULL: 1. */
int attention_spoil_times(const attention_spoil *s, const attention_row *row, int64_t t);
/* Finds the rows that the error can touch, after all changes of s->call. `call` is the right call. Makes room for the
 * values of `outputs` outputs, which are those of softmax_attention: [H, D_v] and [H] values for each row. */
assay_status attention_spoil_touch(attention_spoil *s, const assay_call *call, const assay_rows *rows, int outputs,
                                   assay_error *error);
/* Puts the values of the touched rows among the reference's, and exchanges rows where that is the error. */
void attention_spoil_give(const attention_spoil *s, assay_expected *expected);

#endif
