/* kv_model.c: random operations on both block managers; every answer and every failure is foretold. */
#include <string.h>

#include "kv_naive.h"

static naive_request *any_request(naive_model *m, int32_t *number) {
  *number = (int32_t)naive_draw(m, 0, m->c.max_requests - 1);
  for (int i = 0; i < 3 && !m->request[*number].open; ++i)
    *number = (int32_t)naive_draw(m, 0, m->c.max_requests - 1);
  return &m->request[*number];
}

/* `wanted` is what the model expects of the call. */
static bool status_is(naive_model *m, const char *call, assay_status found, assay_status wanted) {
  if (found != wanted) naive_broken(m, RULE_STATUS, "%s: status %d, not %d", call, found, wanted);
  m->run->refused += found != ASSAY_OK;
  return found == ASSAY_OK && wanted == ASSAY_OK;
}

/* A few prompts come again and again, whole or cut, and go on in different ways. */
static int64_t make_prompt(naive_model *m, int32_t *prompt) {
  const int64_t n = naive_draw(m, 0, naive_longest(m)), from = naive_draw(m, 0, REMEMBERED - 1);
  const int64_t kept = naive_draw(m, 0, 4) == 0   ? 0
                       : naive_draw(m, 0, 1) == 0 ? naive_longest(m)
                                                  : naive_draw(m, 0, naive_longest(m));
  for (int64_t t = 0; t < n; ++t)
    prompt[t] =
        t < kept && t < m->prompt_length[from] ? m->prompt[from][t] : (int32_t)naive_draw(m, 0, m->vocabulary - 1);
  return n;
}

static void open_request(naive_model *m) {
  int32_t prompt[MAX_TOKENS + 1], number = -1;
  int64_t hit = -1, n = make_prompt(m, prompt), wanted = 0, blocks, open = 0;
  if (naive_draw(m, 0, 99) == 0) n = naive_draw(m, 0, 1) == 0 ? -1 : naive_longest(m) + 1;
  for (int i = 0; i < m->c.max_requests; ++i)
    open += m->request[i].open;
  const assay_status status = assay_kv_open(m->kv, prompt, n, &number, &hit, NULL);
  if (!status_is(m, "open", status,
                 n < 0 || n > naive_longest(m) ? ASSAY_ERR_INPUT
                 : open == m->c.max_requests   ? ASSAY_ERR_MEMORY
                                               : ASSAY_OK))
    return;
  if (number < 0 || number >= m->c.max_requests || m->request[number].open || hit < 0 || hit > n) {
    naive_broken(m, RULE_STATUS, "open: request %d, hit %lld of %lld", number, (long long)hit, (long long)n);
    return;
  }
  if (n > 0 && hit > (n - 1) / m->c.block_size * m->c.block_size)
    naive_broken(m, RULE_HIT_BOUND, "%lld of %lld tokens, block size %lld", (long long)hit, (long long)n,
                 (long long)m->c.block_size);
  while (m->c.hash_bits > 0 && wanted + m->c.block_size < n && naive_holder(m, prompt, wanted + m->c.block_size) >= 0)
    wanted += m->c.block_size;
  if (hit != wanted) naive_broken(m, RULE_HIT, "%lld tokens, not %lld", (long long)hit, (long long)wanted);
  const int32_t *table = assay_kv_table(m->kv, number, &blocks);
  naive_request *r = &m->request[number];
  *r = (naive_request){.open = true, .length = hit, .queued = hit, .committed = hit};
  memcpy(r->token, prompt, (size_t)n * sizeof *prompt);
  for (int64_t t = 0; t < hit; ++t)
    r->written[t] = naive_content(prompt, t);
  for (int64_t j = 0; j < blocks && j < m->c.max_blocks; ++j) {
    const int32_t b = r->table[j] = table[j];
    if (b != naive_holder(m, prompt, (j + 1) * m->c.block_size))
      naive_broken(m, RULE_HIT, "block %d does not hold the prefix", b);
    if (!naive_has(m, b)) continue;
    m->run->revived += m->block[b].tables == 0;
    ++m->run->hit_blocks;
    ++m->block[b].tables;
  }
}

/* Pairs of one step: a target once, and never a source. */
static void check_copies(naive_model *m) {
  for (int64_t i = 0; i < m->copy_count; ++i)
    for (int64_t j = 0; j < m->copy_count; ++j)
      if ((i != j && m->copies[i].target == m->copies[j].target) || m->copies[i].target == m->copies[j].source)
        naive_broken(m, RULE_COPIES, "block %d is written and copied, or written twice", m->copies[i].target);
}

static void reserve(naive_model *m) {
  int32_t number;
  naive_request *r = any_request(m, &number);
  const int64_t size = m->c.block_size, n = naive_draw(m, 0, 2) == 0 ? naive_draw(m, -1, 3 * size) : 1, at = r->length;
  const int64_t have = naive_blocks(m, at), want = naive_blocks(m, at + n), copies_before = m->copy_count;
  const bool clone = r->open && n > 0 && at % size != 0 && m->block[r->table[have - 1]].tables > 1;
  const assay_status wanted = !r->open || n < 0 || at + n > naive_longest(m)                  ? ASSAY_ERR_INPUT
                              : n > 0 && want - have + clone > naive_reusable_count(m, false) ? ASSAY_ERR_MEMORY
                                                                                              : ASSAY_OK;
  int64_t slots[3 * MAX_SIZE], blocks;
  if (m->copy_count == MAX_COPIES) return;
  const assay_status status = assay_kv_reserve_append(m->kv, number, n, slots, m->copies, &m->copy_count, NULL);
  m->run->exhausted += status == ASSAY_ERR_MEMORY;
  if (!status_is(m, "reserve_append", status, wanted)) {
    if (status != ASSAY_OK && m->copy_count != copies_before) naive_broken(m, RULE_UNCHANGED, "a pair was given");
    return;
  }
  const int32_t *table = assay_kv_table(m->kv, number, &blocks);
  if (blocks != want) {
    naive_broken(m, RULE_TABLES, "%lld blocks, not %lld", (long long)blocks, (long long)want);
    return;
  }
  if (clone && table[have - 1] != r->table[have - 1]) {
    naive_allocated(m, table[have - 1]);
    naive_left(m, r->table[have - 1]);
    r->table[have - 1] = table[have - 1];
    ++m->run->clones;
  }
  for (int64_t j = have; j < want; ++j)
    naive_allocated(m, r->table[j] = table[j]);
  for (int64_t i = copies_before; i < m->copy_count; ++i) {
    const assay_kv_copy pair = m->copies[i];
    if (!naive_has(m, pair.source) || !naive_has(m, pair.target)) {
      naive_broken(m, RULE_COPIES, "pair %d to %d", pair.source, pair.target);
      return;
    }
    memcpy(m->block[pair.target].content, m->block[pair.source].content, sizeof m->block[0].content);
    m->block[pair.source].copied = m->block[pair.target].copied = true;
  }
  check_copies(m);
  for (int64_t t = at; t < at + n; ++t) {
    const int64_t slot = slots[t - at], b = slot / size;
    if (slot != r->table[t / size] * size + t % size)
      naive_broken(m, RULE_SLOTS, "token %lld: slot %lld, block %d", (long long)t, (long long)slot, r->table[t / size]);
    if (slot < 0 || !naive_has(m, b)) continue;
    if (m->block[b].tables > 1) naive_broken(m, RULE_SHARED_WRITE, "slot %lld", (long long)slot);
    r->token[t] = (int32_t)naive_draw(m, 0, m->vocabulary - 1);
    const int64_t like = naive_draw(m, 0, REMEMBERED - 1);
    if (naive_draw(m, 0, 3) > 0 && t < m->prompt_length[like]) r->token[t] = m->prompt[like][t];
    r->written[t] = m->block[b].content[slot % size] = naive_content(r->token, t);
  }
  r->length += n;
}

static void commit_of(naive_model *m, int32_t number, bool all) {
  naive_request *r = &m->request[number];
  const int64_t most = r->queued - r->committed, size = m->c.block_size;
  const int64_t n = !all && naive_draw(m, 0, 2) == 0 ? naive_draw(m, -1, most + 1) : most;
  const bool off = m->c.hash_bits == 0;
  if (!status_is(m, "commit", assay_kv_commit(m->kv, number, r->token + (r->open ? r->committed : 0), n, NULL),
                 !r->open || ((n < 0 || n > most) && !off) ? ASSAY_ERR_INPUT : ASSAY_OK))
    return;
  if (off) return;
  const int64_t full = r->committed / size;
  r->committed += n;
  for (int64_t j = 0; r->committed / size > full && j < r->committed / size; ++j) {
    if (naive_holder(m, r->token, (j + 1) * size) >= 0) continue;
    naive_block *b = &m->block[r->table[j]];
    b->key_length = (j + 1) * size;
    memcpy(b->key, r->token, (size_t)b->key_length * sizeof *b->key);
  }
}

static void commit(naive_model *m) {
  int32_t number;
  (void)any_request(m, &number);
  commit_of(m, number, false);
}

static void fork_request(naive_model *m) {
  int32_t number, child = -1;
  int64_t open = 0;
  naive_request *r = any_request(m, &number);
  for (int i = 0; i < m->c.max_requests; ++i)
    open += m->request[i].open;
  const bool complete = (m->c.hash_bits == 0 ? r->queued : r->committed) == r->length;
  if (!status_is(m, "fork", assay_kv_fork(m->kv, number, &child, NULL),
                 !r->open || !complete       ? ASSAY_ERR_INPUT
                 : open == m->c.max_requests ? ASSAY_ERR_MEMORY
                                             : ASSAY_OK))
    return;
  if (child < 0 || child >= m->c.max_requests || m->request[child].open) {
    naive_broken(m, RULE_STATUS, "fork: child %d", child);
    return;
  }
  m->request[child] = *r;
  for (int64_t j = 0; j < naive_blocks(m, r->length); ++j)
    ++m->block[r->table[j]].tables;
  const int64_t at = r->length % m->c.block_size;
  ++m->run->fork_at[at == 0 ? 0 : at == m->c.block_size - 1 ? 2 : 1];
}

static void release(naive_model *m) {
  int32_t number;
  naive_request *r = any_request(m, &number);
  if (!status_is(m, "release", assay_kv_release(m->kv, number, NULL), r->open ? ASSAY_OK : ASSAY_ERR_INPUT)) return;
  const int64_t slot = naive_draw(m, 0, REMEMBERED - 1);
  m->prompt_length[slot] = r->length;
  memcpy(m->prompt[slot], r->token, sizeof r->token);
  for (int64_t j = naive_blocks(m, r->length) - 1; j >= 0; --j)
    naive_left(m, r->table[j]);
  r->open = false;
}

static void evict(naive_model *m) {
  const int64_t asked = naive_draw(m, 0, 3), free_before = naive_reusable_count(m, true);
  while (naive_reusable_count(m, true) - free_before < asked && naive_least_recent(m) >= 0)
    naive_erase(m, naive_least_recent(m));
  const int64_t found = assay_kv_evict(m->kv, asked), wanted = naive_reusable_count(m, true) - free_before;
  if (found != wanted) naive_broken(m, RULE_STATES, "%lld evicted, not %lld", (long long)found, (long long)wanted);
}

static void step_begin(naive_model *m) {
  const int64_t step = assay_kv_step_begin(m->kv);
  if (step != ++m->begun) naive_broken(m, RULE_STATUS, "step %lld, not %lld", (long long)step, (long long)m->begun);
  for (int b = 0; b < m->c.num_blocks; ++b) {
    if (m->block[b].tables > 0 || m->block[b].copied) m->block[b].busy = m->begun;
    m->block[b].copied = false;
  }
  for (int i = 0; i < m->c.max_requests; ++i)
    m->request[i].queued = m->request[i].length;
  m->copy_count = 0;
}

/* The way of an engine: all that was reserved goes into a step, and is committed. */
static void step_with_commits(naive_model *m) {
  step_begin(m);
  for (int32_t i = 0; i < m->c.max_requests; ++i) {
    if (!m->request[i].open) continue;
    naive_compare(m);
    if (m->run->broken != 0) return;
    ++m->run->operations;
    commit_of(m, i, true);
  }
}

static void step_done(naive_model *m) {
  const int64_t step = naive_draw(m, 0, 9) == 0 ? naive_draw(m, m->done, m->begun + 1)
                       : m->begun > m->done     ? naive_draw(m, m->done + 1, m->begun)
                                                : m->begun;
  const bool right = step > m->done && step <= m->begun;
  if (status_is(m, "step_done", assay_kv_step_done(m->kv, step, NULL), right ? ASSAY_OK : ASSAY_ERR_INPUT))
    m->done = step;
}

void kv_model_run(const assay_kv_config *config, int32_t vocabulary, uint64_t seed, int64_t operations, uint32_t rules,
                  kv_run *run) {
  static const struct {
    void (*act)(naive_model *);
    int64_t weight;
  } choice[] = {{reserve, 24},  {open_request, 10}, {fork_request, 8}, {release, 8}, {step_with_commits, 10},
                {step_done, 9}, {step_begin, 1},    {commit, 2},       {evict, 1}};
  int64_t weights = 0;
  for (size_t i = 0; i < sizeof choice / sizeof *choice; ++i)
    weights += choice[i].weight;
  static naive_model m;
  m = (naive_model){
      .c = *config, .rng = {.seed = seed, .stream = 0x6B76}, .run = run, .vocabulary = vocabulary, .rules = rules};
  *run = (kv_run){0};
  if (assay_kv_create(config, &m.kv, NULL) != ASSAY_OK) {
    naive_broken(&m, RULE_STATUS, "create");
    return;
  }
  while (run->operations < operations && run->broken == 0 && !m.astray) {
    const int64_t refused = run->refused;
    m.different = false;
    int64_t draw = naive_draw(&m, 0, weights - 1);
    size_t which = 0;
    while (draw >= choice[which].weight)
      draw -= choice[which++].weight;
    choice[which].act(&m);
    ++run->operations;
    naive_compare(&m);
    if (m.different && run->refused > refused) naive_broken(&m, RULE_UNCHANGED, "after a call that failed");
  }
  assay_kv_destroy(m.kv);
}
