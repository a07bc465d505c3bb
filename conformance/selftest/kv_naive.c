/* kv_naive.c: the naive block manager, and what can be seen of the real one next to it. */
#include "kv_naive.h"

#include <stdarg.h>
#include <string.h>

const char *const kv_rule_names[RULES] = {"STATUS", "UNCHANGED", "PARTITION", "STATES",       "COUNTS", "TABLES",
                                          "HIT",    "HIT_BOUND", "CONTENT",   "SHARED_WRITE", "SLOTS",  "FREE_FIRST",
                                          "LRU",    "IN_FLIGHT", "COPIES",    "CHECK"};

void naive_broken(naive_model *m, kv_rule rule, const char *format, ...) {
  m->different = true;
  if ((m->rules >> rule & 1) == 0) {
    m->astray |= rule == RULE_STATUS;
    return;
  }
  if (m->run->broken == 0) {
    va_list list;
    va_start(list, format);
    const int used = snprintf(m->run->text, sizeof m->run->text, "%s: ", kv_rule_names[rule]);
    (void)vsnprintf(m->run->text + used, sizeof m->run->text - (size_t)used, format, list);
    va_end(list);
  }
  m->run->broken |= 1u << rule;
}

int64_t naive_draw(naive_model *m, int64_t low, int64_t high) {
  return assay_rng_range(&m->rng, low, high);
}
int64_t naive_blocks(const naive_model *m, int64_t tokens) {
  return (tokens + m->c.block_size - 1) / m->c.block_size;
}
int64_t naive_longest(const naive_model *m) {
  return m->c.max_blocks * m->c.block_size;
}

uint64_t naive_content(const int32_t *tokens, int64_t t) {
  uint64_t x = 1;
  for (int64_t i = 0; i <= t; ++i)
    x = (x + (uint64_t)tokens[i] + 1) * 0x2545F4914F6CDD1Du ^ x >> 31;
  return x;
}

bool naive_reusable(const naive_model *m, const naive_block *b) {
  return b->tables == 0 && b->busy <= m->done && !b->copied;
}

int naive_least_recent(const naive_model *m) {
  int oldest = -1;
  for (int b = 0; b < m->c.num_blocks; ++b)
    if (naive_reusable(m, &m->block[b]) && m->block[b].key_length > 0 &&
        (oldest < 0 || m->block[b].left < m->block[oldest].left))
      oldest = b;
  return oldest;
}

int64_t naive_reusable_count(const naive_model *m, bool free_only) {
  int64_t count = 0;
  for (int b = 0; b < m->c.num_blocks; ++b)
    count += naive_reusable(m, &m->block[b]) && !(free_only && m->block[b].key_length > 0);
  return count;
}

static void poison(naive_model *m, int b) {
  for (int i = 0; i < MAX_SIZE; ++i)
    m->block[b].content[i] = ~(uint64_t)0 - (uint64_t)b;
}

void naive_erase(naive_model *m, int b) {
  int32_t key[MAX_TOKENS];
  const int64_t length = m->block[b].key_length;
  memcpy(key, m->block[b].key, sizeof key);
  for (int i = 0; i < m->c.num_blocks; ++i) {
    naive_block *other = &m->block[i];
    if (other->key_length < length || memcmp(other->key, key, (size_t)length * sizeof *key) != 0) continue;
    other->key_length = 0;
    if (other->tables == 0) poison(m, i);
  }
}

int naive_holder(const naive_model *m, const int32_t *tokens, int64_t length) {
  for (int b = 0; b < m->c.num_blocks; ++b)
    if (m->block[b].key_length == length && memcmp(m->block[b].key, tokens, (size_t)length * sizeof *tokens) == 0)
      return b;
  return -1;
}

bool naive_has(const naive_model *m, int64_t b) {
  return b >= 0 && b < m->c.num_blocks;
}

void naive_allocated(naive_model *m, int64_t b) {
  if (!naive_has(m, b)) {
    naive_broken(m, RULE_TABLES, "block %lld of %lld", (long long)b, (long long)m->c.num_blocks);
    return;
  }
  naive_block *chosen = &m->block[b];
  if (chosen->tables > 0) naive_broken(m, RULE_COUNTS, "block %lld is used, and was allocated", (long long)b);
  if (chosen->tables == 0 && !naive_reusable(m, chosen))
    naive_broken(m, RULE_IN_FLIGHT, "block %lld is in step %lld, %lld are done", (long long)b,
                 (long long)(chosen->copied ? m->begun + 1 : chosen->busy), (long long)m->done);
  if (chosen->tables == 0 && chosen->key_length > 0) {
    if (naive_reusable_count(m, true) > 0) naive_broken(m, RULE_FREE_FIRST, "block %lld was evicted", (long long)b);
    if (naive_least_recent(m) >= 0 && naive_least_recent(m) != b)
      naive_broken(m, RULE_LRU, "block %lld was evicted, %d was left first", (long long)b, naive_least_recent(m));
    naive_erase(m, (int)b);
    ++m->run->evictions;
  }
  poison(m, (int)b);
  chosen->tables = 1;
}

void naive_left(naive_model *m, int b) {
  if (--m->block[b].tables > 0) return;
  m->block[b].left = ++m->clock;
  if (m->block[b].key_length == 0) poison(m, b);
}

void naive_compare(naive_model *m) {
  int64_t named[MAX_POOL] = {0}, state[3] = {0}, keys = 0, held = 0;
  for (int32_t i = 0; i < m->c.max_requests; ++i) {
    const naive_request *r = &m->request[i];
    int64_t blocks;
    const int32_t *table = assay_kv_table(m->kv, i, &blocks);
    if (assay_kv_length(m->kv, i) != (r->open ? r->length : -1) ||
        blocks != (r->open ? naive_blocks(m, r->length) : -1)) {
      naive_broken(m, RULE_TABLES, "request %d: length %lld, not %lld", i, (long long)assay_kv_length(m->kv, i),
                   (long long)r->length);
      continue;
    }
    for (int64_t j = 0; j < blocks; ++j) {
      if (table[j] != r->table[j]) naive_broken(m, RULE_TABLES, "request %d: block %lld", i, (long long)j);
      if (naive_has(m, table[j])) ++named[table[j]];
    }
    for (int64_t t = 0; r->open && t < r->length; ++t) {
      const int32_t b = table[t / m->c.block_size];
      if (!naive_has(m, b) || m->block[b].content[t % m->c.block_size] != r->written[t])
        naive_broken(m, RULE_CONTENT, "request %d, token %lld, block %d", i, (long long)t, b);
    }
  }
  for (int b = 0; b < m->c.num_blocks; ++b) {
    const naive_block *expected = &m->block[b];
    const assay_kv_state found = assay_kv_block_state(m->kv, b);
    ++state[found];
    keys += expected->key_length > 0;
    held += expected->tables == 0 && !naive_reusable(m, expected);
    if (assay_kv_count(m->kv, b) != named[b])
      naive_broken(m, RULE_COUNTS, "block %d: %lld, %lld tables name it", b, (long long)assay_kv_count(m->kv, b),
                   (long long)named[b]);
    if ((found == ASSAY_KV_USED) != (named[b] > 0))
      naive_broken(m, RULE_PARTITION, "block %d: state %d", b, (int)found);
    if (named[b] == 0 && found != (expected->key_length > 0 ? ASSAY_KV_IDLE : ASSAY_KV_FREE))
      naive_broken(m, RULE_STATES, "block %d: state %d, key of %lld tokens", b, (int)found,
                   (long long)expected->key_length);
  }
  assay_kv_stats stats;
  assay_error error = {""};
  assay_kv_get_stats(m->kv, &stats);
  if (stats.free != state[ASSAY_KV_FREE] || stats.used != state[ASSAY_KV_USED] || stats.idle != state[ASSAY_KV_IDLE] ||
      stats.free + stats.used + stats.idle != m->c.num_blocks)
    naive_broken(m, RULE_PARTITION, "free %lld, used %lld, idle %lld", (long long)stats.free, (long long)stats.used,
                 (long long)stats.idle);
  if (stats.keys != keys) naive_broken(m, RULE_STATES, "%lld keys, not %lld", (long long)stats.keys, (long long)keys);
  if (stats.held != held) naive_broken(m, RULE_STATES, "%lld held, not %lld", (long long)stats.held, (long long)held);
  m->run->held += held;
  if (assay_kv_check(m->kv, &error) != ASSAY_OK) naive_broken(m, RULE_CHECK, "%s", error.text);
  m->run->collisions = stats.collisions;
  m->run->duplicates = stats.duplicates;
}
