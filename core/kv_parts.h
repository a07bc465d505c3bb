/* kv_parts.h: what the block manager's files share. Private to core/kv*.c. */
#ifndef ASSAY_CORE_KV_PARTS_H
#define ASSAY_CORE_KV_PARTS_H

#include <stdbool.h>

#include "core/kv.h"

/* Mistakes that the tests plant, one at a time, to see them found; a build without ASSAY_KV_MUTANT has none. */
#ifdef ASSAY_KV_MUTANT
enum {
  KV_NO_MISTAKE,
  KV_TOKENS_NOT_COMPARED,
  KV_PREFIX_NOT_COMPARED,
  KV_HIT_WHOLE_PROMPT,
  KV_KEY_SURVIVES_EVICTION,
  KV_KEYS_BEHIND_SURVIVE,
  KV_INDEXED_GOES_FREE,
  KV_MOST_RECENT_EVICTED,
  KV_IDLE_BEFORE_FREE,
  KV_DUPLICATE_FREED,
  KV_NO_CLONE,
  KV_CLONE_ABOVE_TWO,
  KV_CLONE_NOT_TOLD,
  KV_FORK_NOT_COUNTED,
  KV_LEAK_ON_FAILURE,
  KV_LENGTH_ON_FAILURE,
  KV_SHARED_BLOCK_FREED,
  KV_REUSED_WHILE_READ,
  KV_COPIED_BLOCK_REUSED,
  KV_HIT_IN_SAME_STEP,
  KV_HELD_FOR_EVER,
  KV_SLOT_OFF_BY_ONE,
  KV_MISTAKES
};
#define MISTAKE(which) (ASSAY_KV_MUTANT == (which))
/* These two keep a key for too long; it goes at last when other tokens take its place. */
#define LATE_ERASURE (MISTAKE(KV_KEY_SURVIVES_EVICTION) || MISTAKE(KV_INDEXED_GOES_FREE))
#else
#define MISTAKE(which) 0
#define LATE_ERASURE   0
#endif

/* Where a block with count 0 waits: to be allocated, to be evicted, or for a step to be done. */
typedef enum kv_list { LIST_FREE, LIST_IDLE, LIST_HELD, LISTS, LIST_NONE = LISTS } kv_list;

/* -1 is no block, everywhere. */
typedef struct kv_block {
  int32_t count;          /* tables that name it */
  int32_t previous, next; /* in its list */
  int32_t bucket_next;    /* in its bucket of the index */
  int32_t parent;         /* indexed block of the prefix one block shorter */
  int32_t child;          /* first of the indexed blocks one block longer; */
  int32_t elder, younger; /* the others of the same parent */
  int8_t list;            /* kv_list */
  bool indexed;
  uint64_t hash;   /* chained, hash_bits wide; once the block is full and its tokens are known */
  uint64_t serial; /* of its key; no two keys ever have the same */
  int64_t taken;   /* last step begun when its count became 1 */
  int64_t ready;   /* not reused until this step is done */
  uint64_t left;   /* when its count became 0: the order of eviction */
} kv_block;

typedef struct kv_request {
  int32_t *table;
  bool open;
  int64_t length;        /* tokens with slots */
  int64_t committed;     /* tokens with ids */
  int64_t round, before; /* last step begun at the last reservation, and the length before that round's first */
  int32_t chain;         /* block that has the key of the prefix of committed / block_size blocks, */
  uint64_t chain_serial; /* as long as its serial is this one */
} kv_request;

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
};

static inline int32_t *kv_tokens(const assay_kv *kv, int32_t block) {
  return kv->tokens + block * kv->block_size;
}
static inline int64_t kv_blocks_for(const assay_kv *kv, int64_t tokens) {
  return (tokens + kv->block_size - 1) / kv->block_size;
}
/* Tokens whose slots belong to steps that have begun. */
static inline int64_t kv_queued(const assay_kv *kv, const kv_request *r) {
  return r->round == kv->begun ? r->before : r->length;
}

/* kv.c */
kv_request *kv_find_request(const assay_kv *kv, const char *call, int32_t request, assay_error *error); /* or NULL */
kv_request *kv_new_request(assay_kv *kv, const char *call, assay_error *error); /* NULL: all are open */
void kv_unlink(assay_kv *kv, int32_t block);
void kv_place(assay_kv *kv, int32_t block); /* a block with count 0 and in no list */
void kv_take(assay_kv *kv, int32_t block);  /* one more table names it */

/* kv_prefix.c */
void kv_erase_key(assay_kv *kv, int32_t block); /* and the keys behind it; idle blocks become free */

#endif
