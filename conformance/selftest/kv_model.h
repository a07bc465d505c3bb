/* kv_model.h: random operations on a block manager, next to a naive one. The naive one has whole prefixes as keys,
 * looks for them in a row, and has a pool of its own. Every slot of that pool names the prefix that was written to it.
 */
#ifndef ASSAY_SELFTEST_KV_MODEL_H
#define ASSAY_SELFTEST_KV_MODEL_H

#include "core/kv.h"

typedef enum kv_rule {
  RULE_STATUS,       /* a call succeeds just when it should, and fails with the right status */
  RULE_UNCHANGED,    /* a call that failed has changed nothing */
  RULE_PARTITION,    /* free, used, idle: used are those that a table names, together they are the pool */
  RULE_STATES,       /* idle are those with a key, by the naive map; as many keys and held blocks as there */
  RULE_COUNTS,       /* a count is the number of tables that name the block */
  RULE_TABLES,       /* lengths and tables change only by what was asked for */
  RULE_HIT,          /* a hit is the longest prefix in the naive map, in its blocks */
  RULE_HIT_BOUND,    /* at most floor((n - 1) / block_size) blocks */
  RULE_CONTENT,      /* every token of every request reads what was written for its prefix */
  RULE_SHARED_WRITE, /* no slot is in a block with count above 1 */
  RULE_SLOTS,        /* slots are the table's */
  RULE_FREE_FIRST,   /* no eviction while a block is free */
  RULE_LRU,          /* the least recently used idle block is evicted */
  RULE_IN_FLIGHT,    /* a block of a queued step is not reused */
  RULE_COPIES,       /* pairs of one step can be copied in any order */
  RULE_CHECK,        /* assay_kv_check */
  RULES
} kv_rule;

extern const char *const kv_rule_names[RULES];

typedef struct kv_run {
  int64_t operations;
  uint32_t broken; /* bit r: rule r, at the last operation; the run ends there */
  char text[256];  /* the first one, in words */
  /* Counts of the events met, to see that the run was worth something. */
  int64_t hit_blocks, clones, evictions, refused, exhausted, revived, held, fork_at[3];
  int64_t collisions, duplicates;
} kv_run;

enum { ALL_RULES = (1 << RULES) - 1 };

/* num_blocks <= 8, block_size <= 4, max_requests <= 6. Ids are drawn from [0, vocabulary). Rules outside `rules`
 * (bit r: rule r) are not checked. A planted mistake breaks several, and the first one would end the run. */
void kv_model_run(const assay_kv_config *config, int32_t vocabulary, uint64_t seed, int64_t operations, uint32_t rules,
                  kv_run *run);

#endif
