/* kv_mutant_test.c: the block manager with one planted mistake at a time. The model finds every mistake, and every rule
 * of the model finds one. plant.sh copies the manager's sources and plants the mistakes of kv_mistakes.def. The copies
 * are compiled in here, in place of the library's. */
#include "kv_mistakes.h"

#include "planted/core/kv.c"
#include "planted/core/kv_lists.c"
#include "planted/core/kv_prefix.c"
#include "core/kv_check.c"

#include <criterion/criterion.h>

#include "kv_model.h"

static const struct {
  int mistake;
  const char *name;
  uint32_t found_by; /* rules each of which finds it alone */
} mistakes[] = {
#define BY(rule) (1u << RULE_##rule)
    {KV_TOKENS_NOT_COMPARED, "only hashes are compared", BY(HIT) | BY(CONTENT)},
    {KV_PREFIX_NOT_COMPARED, "tokens of the block compared, not of its prefix", BY(HIT) | BY(CONTENT)},
    {KV_HIT_WHOLE_PROMPT, "a hit covers the whole prompt", BY(HIT_BOUND) | BY(HIT)},
    {KV_KEY_SURVIVES_EVICTION, "an evicted block stays in the index", BY(STATES) | BY(HIT) | BY(CONTENT) | BY(CHECK)},
    {KV_KEYS_BEHIND_SURVIVE, "keys behind an evicted one stay", BY(STATES) | BY(HIT) | BY(CONTENT) | BY(CHECK)},
    {KV_INDEXED_GOES_FREE, "an indexed block is left as a free one", BY(FREE_FIRST) | BY(CHECK) | BY(HIT)},
    {KV_MOST_RECENT_EVICTED, "the most recently used block is evicted", BY(LRU)},
    {KV_IDLE_BEFORE_FREE, "idle blocks are evicted while others are free", BY(FREE_FIRST)},
    {KV_DUPLICATE_FREED, "a duplicate is freed, and its table keeps it", BY(COUNTS) | BY(PARTITION)},
    {KV_NO_CLONE, "a shared last block is written", BY(SHARED_WRITE) | BY(CONTENT)},
    {KV_CLONE_ABOVE_TWO, "a last block is cloned from three tables on", BY(SHARED_WRITE) | BY(CONTENT)},
    {KV_CLONE_NOT_TOLD, "the pair of a clone is not given", BY(CONTENT)},
    {KV_FORK_NOT_COUNTED, "a fork does not count", BY(COUNTS)},
    {KV_LEAK_ON_FAILURE, "a failed reservation keeps a block", BY(UNCHANGED) | BY(COUNTS)},
    {KV_LENGTH_ON_FAILURE, "a failed reservation advances the length", BY(UNCHANGED) | BY(TABLES)},
    {KV_SHARED_BLOCK_FREED, "one release of a shared block frees it", BY(COUNTS) | BY(PARTITION)},
    {KV_REUSED_WHILE_READ, "a block of a queued step is reused", BY(STATUS) | BY(IN_FLIGHT)},
    {KV_COPIED_BLOCK_REUSED, "a block is reused in the step that copies it", BY(IN_FLIGHT) | BY(COPIES)},
    {KV_HIT_IN_SAME_STEP, "blocks can be hit before the step that writes them", BY(STATUS)},
    {KV_HELD_FOR_EVER, "a step that is done keeps its blocks", BY(STATES) | BY(CHECK)},
    {KV_SLOT_OFF_BY_ONE, "a slot off by one", BY(SLOTS) | BY(CONTENT)},
#undef BY
};

/* How many of 120 runs end because one of the rules finds something. */
static int runs_ended(int mistake, uint32_t rules) {
  int ended = 0;
  kv_mistake = mistake;
  for (uint64_t seed = 0; seed < 120; ++seed) {
    const assay_kv_config config = {.num_blocks = 3 + (int64_t)seed % 6,
                                    .block_size = 2 + (int64_t)(seed / 6) % 3,
                                    .max_requests = 3 + (int64_t)seed % 3,
                                    .max_blocks = 3 + (int64_t)seed % 3,
                                    .hash_bits = seed % 2 == 0 ? 64 : 8};
    kv_run run;
    kv_model_run(&config, 2, seed, 2000, rules, &run);
    ended += run.broken != 0;
  }
  return ended;
}

Test(kv_mutants, every_mistake_is_found_and_every_rule_finds, .timeout = 120) {
  uint32_t shown = 0;
  cr_assert_eq(runs_ended(KV_NO_MISTAKE, ALL_RULES), 0, "without a mistake");
  cr_assert_eq(sizeof mistakes / sizeof *mistakes, KV_MISTAKES - 1, "a mistake is not in the table");
  for (size_t i = 0; i < sizeof mistakes / sizeof *mistakes; ++i) {
    char text[256];
    int used = snprintf(text, sizeof text, "all %d", runs_ended(mistakes[i].mistake, ALL_RULES));
    for (int rule = 0; rule < RULES; ++rule) {
      if ((mistakes[i].found_by >> rule & 1) == 0) continue;
      const int ended = runs_ended(mistakes[i].mistake, 1u << rule);
      cr_expect_gt(ended, 0, "%s: rule %s alone does not find it", mistakes[i].name, kv_rule_names[rule]);
      used += snprintf(text + used, sizeof text - (size_t)used, ", %s %d", kv_rule_names[rule], ended);
    }
    cr_log_info("%s: found in runs of 120: %s", mistakes[i].name, text);
    shown |= mistakes[i].found_by;
  }
  for (int rule = 0; rule < RULES; ++rule)
    cr_expect(shown >> rule & 1, "no mistake shows that %s finds anything", kv_rule_names[rule]);
}
