/* kv_parts.h: declarations shared by the block manager's files. Private to core/kv*.c. */
#ifndef ASSAY_CORE_KV_PARTS_H
#define ASSAY_CORE_KV_PARTS_H

#include <stdbool.h>

#include "core/kv.h"

/* Where a block with count 0 waits: until it is allocated, until it is evicted, or until a step is done. */
typedef enum kv_list { LIST_FREE, LIST_IDLE, LIST_HELD, LISTS, LIST_NONE = LISTS } kv_list;

/* A block. -1 stands for no block in every field. */
typedef struct kv_block {
  int32_t count;          /* tables that name it */
  int32_t previous, next; /* in its list */
  int32_t bucket_next;    /* in its bucket of the index */
  int32_t parent;         /* indexed block whose prefix is one block shorter */
  int32_t child;          /* first of the indexed blocks whose prefix is one block longer */
  int32_t elder, younger; /* the other children of the same parent */
  int8_t list;            /* kv_list */
  bool indexed;
  uint64_t hash;   /* chained, hash_bits wide; set once the block is full and its tokens are known */
  uint64_t serial; /* serial number of its key; no two keys share one */
  int64_t taken;   /* last step begun when its count became 1 */
  int64_t ready;   /* not reused until this step is done */
  uint64_t left;   /* time when its count became 0: the order of eviction */
} kv_block;

typedef struct kv_request {
  int32_t *table;
  bool open;
  int64_t length;    /* tokens with slots */
  int64_t committed; /* tokens with ids */
  /* The last step begun at the last reservation, and the length before that round's first reservation. */
  int64_t round, before;
  /* The block with the key of the prefix of committed / block_size blocks, valid while its serial is chain_serial. */
  int32_t chain;
  uint64_t chain_serial;
  int32_t state; /* its slot of the pool of states */
  /* The slot that keeps its state at promised_length tokens, as soon as their ids are known; -1: none does. */
  int32_t promised;
  int64_t promised_length;
} kv_request;

/* A slot of the pool of states. */
typedef struct kv_state {
  int32_t block; /* it keeps the state at the end of this block, as long as its key has that serial; -1: it does not */
  uint64_t serial; /* the key's serial number */
  bool taken;      /* an open request has it */
  bool promised;   /* an open request waits for ids, so that its block gets a key */
  int64_t held;    /* not given away until this step has begun */
  uint64_t used;   /* time of the last use of what is kept: the order of eviction */
} kv_state;

struct assay_kv {
  int64_t num_blocks, block_size, max_requests, max_blocks;
  uint64_t hash_mask; /* 0: no prefix index */
  kv_block *block;
  int32_t *tokens; /* [num_blocks, block_size] */
  int32_t *bucket; /* heads of the index */
  uint64_t bucket_mask;
  kv_request *request;
  int32_t *tables; /* [max_requests, max_blocks] */
  int32_t *closed; /* stack of request numbers */
  int32_t first[LISTS], last[LISTS];
  int64_t size[LISTS];
  int64_t begun, done; /* steps */
  uint64_t clock, serial;
  assay_kv_stats stats;
  int64_t num_states, state_copies;
  kv_state *state;           /* [num_states] */
  assay_kv_copy *state_copy; /* [num_states] pairs before the next step */
};

static inline int32_t *kv_tokens(const assay_kv *kv, int32_t block) {
  return kv->tokens + block * kv->block_size;
}
static inline int64_t kv_blocks_for(const assay_kv *kv, int64_t tokens) {
  return (tokens + kv->block_size - 1) / kv->block_size;
}
/* Returns the tokens whose slots belong to steps that have begun. */
static inline int64_t kv_queued(const assay_kv *kv, const kv_request *r) {
  return r->round == kv->begun ? r->before : r->length;
}

/* kv_lists.c */
kv_request *kv_find_request(const assay_kv *kv, const char *call, int32_t request, assay_error *error); /* or NULL */
kv_request *kv_new_request(assay_kv *kv, const char *call, assay_error *error); /* NULL: all are open */
void kv_close_request(assay_kv *kv, kv_request *r);
void kv_link(assay_kv *kv, int32_t block, kv_list list);
void kv_unlink(assay_kv *kv, int32_t block);
void kv_place(assay_kv *kv, int32_t block); /* takes a block with count 0 that is in no list */
void kv_take(assay_kv *kv, int32_t block);  /* counts one more table that names the block */

/* kv_states.c */
int32_t kv_state_of_block(const assay_kv *kv, int32_t block); /* the slot that keeps the state at its end; -1: none */
/* Gives a new request a slot, to be copied from `source` unless that is -1. false: no slot is left. */
bool kv_state_take(assay_kv *kv, kv_request *r, int32_t source);
void kv_state_leave(assay_kv *kv, const kv_request *r);
/* Gives a promised slot to `block`, which has the key of the request's first `blocks` blocks, if it is for that end. */
void kv_state_bind(assay_kv *kv, kv_request *r, int64_t blocks, int32_t block);

/* kv_prefix.c */
void kv_erase_key(assay_kv *kv, int32_t block); /* and the keys after it; idle blocks become free */

#endif
