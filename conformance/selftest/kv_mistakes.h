/* kv_mistakes.h: mistakes that kv_mutant_test plants in the block manager, one at a time. kv_mistakes.def says where.
 */
#ifndef ASSAY_SELFTEST_KV_MISTAKES_H
#define ASSAY_SELFTEST_KV_MISTAKES_H

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

/* The mistake that is planted now. */
static int kv_mistake;
#define MISTAKE(which) (kv_mistake == (which))
/* These two mistakes keep a key for too long. It is erased at last when other tokens take its block. */
#define LATE_ERASURE (MISTAKE(KV_KEY_SURVIVES_EVICTION) || MISTAKE(KV_INDEXED_GOES_FREE))

#endif
