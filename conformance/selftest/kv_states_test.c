/* kv_states_test.c: the pool of states of the block manager. A model of the device has one number in each slot: a hash
 * of the tokens that the state has seen. Drawn operations open, fork, keep, release and evict. Before every step the
 * pairs are copied, and after it every request's slot must hold the hash of its own tokens. The same is asked of the
 * manager with mistakes planted, and each must show. */
#include "kv_states_mistakes.h"

#include "planted/core/kv_states.c"

#include <criterion/criterion.h>
#include <string.h>

#include "core/rng.h"

enum { STATES = 7, REQUESTS = 4, BLOCK = 3, LONGEST = 30, PROMPTS = 3, STEPS = 400 };

static assay_error error;

/* An open request: its tokens, of which `done` are in its state, and the ids of `known` are committed. */
typedef struct open_request {
  bool open;
  int32_t number, tokens[LONGEST];
  int64_t count, done, known;
} open_request;

typedef struct world {
  assay_kv *kv;
  assay_rng rng;
  uint64_t slot[STATES];
  open_request request[REQUESTS];
  int64_t hits, kept, early; /* early: kept before ids were known */
  const char *wrong;         /* NULL: nothing so far */
} world;

static uint64_t folded(uint64_t hash, const int32_t *tokens, int64_t n) {
  for (int64_t i = 0; i < n; ++i)
    hash = (hash ^ (uint64_t)(tokens[i] + 1)) * 0x9E3779B97F4A7C15u;
  return hash;
}

static void note(world *w, bool good, const char *what) {
  if (!good && w->wrong == NULL) w->wrong = what;
}

/* Opens a request whose prompt is one of a few, with its own end. */
static void open_one(world *w, open_request *r) {
  int64_t hit = -1;
  const int64_t prompt = assay_rng_range(&w->rng, 0, PROMPTS - 1), own = assay_rng_range(&w->rng, 0, LONGEST);
  r->count = assay_rng_range(&w->rng, 1, LONGEST);
  for (int64_t i = 0; i < r->count; ++i)
    r->tokens[i] = (int32_t)(i < own ? 100 * prompt + i : assay_rng_range(&w->rng, 0, 1));
  if (assay_kv_open(w->kv, r->tokens, r->count, &r->number, &hit, &error) != ASSAY_OK) return;
  r->open = true;
  r->done = r->known = hit;
  w->hits += hit > 0;
}

static void fork_one(world *w, const open_request *from, open_request *to) {
  *to = *from;
  to->open = assay_kv_fork(w->kv, from->number, &to->number, &error) == ASSAY_OK;
  if (to->open && to->count < LONGEST) to->tokens[to->count++] = (int32_t)assay_rng_range(&w->rng, 0, 99);
}

static void copy_states(world *w) {
  int64_t count = -1;
  uint64_t before[STATES];
  const assay_kv_copy *pair = assay_kv_state_copies(w->kv, &count);
  memcpy(before, w->slot, sizeof before);
  note(w, count >= 0 && count <= STATES, "number of pairs");
  for (int64_t i = 0; i < count && w->wrong == NULL; ++i) {
    for (int64_t j = 0; j < count; ++j)
      note(w, pair[i].target != pair[j].source && (i == j || pair[i].target != pair[j].target), "order of pairs");
    w->slot[pair[i].target] = before[pair[i].source];
  }
}

static void commit(open_request *r, assay_kv *kv) {
  if (assay_kv_commit(kv, r->number, r->tokens + r->known, r->done - r->known, &error) == ASSAY_OK) r->known = r->done;
}

/* Computes some tokens of each open request, and looks at all slots. Some ids become known later. */
static void step(world *w) {
  int64_t fresh[REQUESTS] = {0}, slots[LONGEST], copied = 0;
  assay_kv_copy copies[REQUESTS];
  for (int i = 0; i < REQUESTS; ++i) {
    open_request *r = &w->request[i];
    if (!r->open || r->done == r->count) continue;
    fresh[i] = assay_rng_range(&w->rng, 0, 1) == 0 ? BLOCK - r->done % BLOCK : assay_rng_range(&w->rng, 1, 7);
    if (fresh[i] > r->count - r->done) fresh[i] = r->count - r->done;
    copied = 0;
    if (assay_kv_reserve_append(w->kv, r->number, fresh[i], slots, copies, &copied, &error) != ASSAY_OK) fresh[i] = 0;
  }
  copy_states(w);
  for (int i = 0; i < REQUESTS; ++i) {
    open_request *r = &w->request[i];
    const int32_t slot = r->open ? assay_kv_state_slot(w->kv, r->number) : -1;
    if (fresh[i] == 0) continue;
    w->slot[slot] = folded(r->done == 0 ? 0 : w->slot[slot], r->tokens + r->done, fresh[i]);
  }
  const int64_t number = assay_kv_step_begin(w->kv);
  for (int i = 0; i < REQUESTS; ++i) {
    open_request *r = &w->request[i];
    bool kept = false;
    r->done += fresh[i];
    if (!r->open) continue;
    if (assay_rng_range(&w->rng, 0, 2) > 0) commit(r, w->kv);
    const uint64_t holds = w->slot[assay_kv_state_slot(w->kv, r->number)];
    note(w, r->done == 0 || holds == folded(0, r->tokens, r->done), "a request's state");
    if (fresh[i] > 0 && assay_rng_range(&w->rng, 0, 2) > 0) (void)assay_kv_keep_state(w->kv, r->number, &kept, &error);
    w->kept += kept;
    w->early += kept && r->known < r->done;
    if (assay_rng_range(&w->rng, 0, 1) > 0) commit(r, w->kv);
    note(w, !kept || r->done % BLOCK == 0, "kept before a block's end");
  }
  (void)assay_kv_step_done(w->kv, number, &error);
}

static const char *run(uint64_t seed, world *w) {
  const assay_kv_config config = {40, BLOCK, REQUESTS, LONGEST / BLOCK, 64, STATES};
  *w = (world){.rng = {seed, 0, 0}};
  cr_assert_eq(assay_kv_create(&config, &w->kv, &error), ASSAY_OK, "%s", error.text);
  for (int i = 0; i < STEPS && w->wrong == NULL; ++i) {
    for (int k = 0; k < REQUESTS; ++k) {
      open_request *r = &w->request[k];
      const int64_t drawn = assay_rng_range(&w->rng, 0, 11);
      if (!r->open && drawn < 6) open_one(w, r);
      if (!r->open && drawn == 6 && w->request[0].open) fork_one(w, &w->request[0], r);
      if (r->open && (drawn == 7 || r->done == r->count))
        r->open = assay_kv_release(w->kv, r->number, &error) != ASSAY_OK;
      if (drawn == 8 && k == 0) (void)assay_kv_evict(w->kv, 3);
    }
    step(w);
    note(w, assay_kv_check(w->kv, &error) == ASSAY_OK, "kv_check");
  }
  assay_kv_destroy(w->kv);
  return w->wrong;
}

TestSuite(kv_states, .timeout = 60);

Test(kv_states, every_request_has_the_state_of_its_tokens) {
  int64_t hits = 0, kept = 0, early = 0;
  for (uint64_t seed = 0; seed < 60; ++seed) {
    world w;
    const char *wrong = run(seed, &w);
    cr_assert_null(wrong, "seed %d: %s", (int)seed, wrong);
    hits += w.hits;
    kept += w.kept;
    early += w.early;
  }
  cr_expect(hits > 1000 && kept > 1000 && early > 300, "hits %lld, kept %lld, %lld of them early", (long long)hits,
            (long long)kept, (long long)early);
}

/* The one that loses the newest state first gives right states: it shows by what it hits. */
Test(kv_states, mistakes_show) {
  for (int mistake = 1; mistake < STATES_MISTAKES; ++mistake) {
    int shown = 0;
    if (mistake == STATES_NEWEST_LOST) continue;
    for (uint64_t seed = 0; seed < 60; ++seed) {
      world w;
      states_mistake = mistake;
      shown += run(seed, &w) != NULL;
    }
    cr_expect_gt(shown, 0, "mistake %d", mistake);
  }
}

/* ---- by hand ---- */

static int32_t computed(assay_kv *kv, const int32_t *tokens, int64_t n, int64_t wanted, bool keeps) {
  int32_t request = -1;
  int64_t hit = -1, slots[LONGEST];
  bool kept = false;
  cr_assert_eq(assay_kv_open(kv, tokens, n, &request, &hit, &error), ASSAY_OK, "%s", error.text);
  cr_expect_eq(hit, wanted, "hit %lld, not %lld", (long long)hit, (long long)wanted);
  cr_assert_eq(assay_kv_reserve_append(kv, request, n - hit, slots, NULL, NULL, &error), ASSAY_OK, "%s", error.text);
  const int64_t step = assay_kv_step_begin(kv);
  cr_assert_eq(assay_kv_commit(kv, request, tokens + hit, n - hit, &error), ASSAY_OK, "%s", error.text);
  if (keeps) cr_assert_eq(assay_kv_keep_state(kv, request, &kept, &error), ASSAY_OK, "%s", error.text);
  cr_expect_eq(kept, keeps && n % BLOCK == 0);
  cr_assert_eq(assay_kv_step_done(kv, step, &error), ASSAY_OK, "%s", error.text);
  return request;
}

/* Releases a request, and begins a step, which ends the queued pairs. */
static void release(assay_kv *kv, int32_t request) {
  cr_assert_eq(assay_kv_release(kv, request, &error), ASSAY_OK, "%s", error.text);
  cr_assert_eq(assay_kv_step_done(kv, assay_kv_step_begin(kv), &error), ASSAY_OK, "%s", error.text);
}

/* Three slots: two requests at most beside one state that is kept. Two are kept after releases, and the third pushes
 * out the one that was used least recently. */
static bool oldest_is_lost(void) {
  const assay_kv_config config = {40, BLOCK, REQUESTS, LONGEST / BLOCK, 64, 3};
  int32_t prompt[3][7];
  assay_kv *kv = NULL;
  int64_t hit[3] = {-1, -1, -1};
  cr_assert_eq(assay_kv_create(&config, &kv, &error), ASSAY_OK, "%s", error.text);
  for (int i = 0; i < 21; ++i)
    prompt[i / 7][i % 7] = i;
  for (int i = 0; i < 3; ++i)
    release(kv, computed(kv, prompt[i], 6, 0, true));
  for (int i = 0; i < 3; ++i) {
    int32_t request = -1;
    cr_assert_eq(assay_kv_open(kv, prompt[i], 7, &request, &hit[i], &error), ASSAY_OK, "%s", error.text);
    release(kv, request);
  }
  assay_kv_stats s;
  assay_kv_get_stats(kv, &s);
  cr_expect_geq(s.cut_tokens, 6);
  assay_kv_destroy(kv);
  return hit[0] == 0 && hit[2] == 6;
}

Test(kv_states, blocks_without_a_state_are_no_hit) {
  const assay_kv_config config = {40, BLOCK, REQUESTS, LONGEST / BLOCK, 64, STATES};
  int32_t tokens[10];
  assay_kv *kv = NULL;
  for (int i = 0; i < 10; ++i)
    tokens[i] = i;
  cr_assert_eq(assay_kv_create(&config, &kv, &error), ASSAY_OK, "%s", error.text);
  release(kv, computed(kv, tokens, 9, 0, false));
  release(kv, computed(kv, tokens, 6, 0, true));
  release(kv, computed(kv, tokens, 10, 6, true)); /* 10 tokens do not fill their blocks: nothing is kept */
  release(kv, computed(kv, tokens, 10, 6, false));
  assay_kv_destroy(kv);
  cr_expect(oldest_is_lost());
  states_mistake = STATES_NEWEST_LOST;
  cr_expect_not(oldest_is_lost());
}

Test(kv_states, refusals) {
  const assay_kv_config config = {40, BLOCK, REQUESTS, LONGEST / BLOCK, 64, 1};
  const assay_kv_config bad = {40, BLOCK, REQUESTS, LONGEST / BLOCK, 64, 65537};
  int32_t request = -1, other = -1, tokens[3] = {1, 2, 3};
  int64_t hit = -1;
  bool kept = true;
  assay_kv *kv = NULL;
  cr_expect_eq(assay_kv_create(&bad, &kv, &error), ASSAY_ERR_INPUT);
  cr_expect_not_null(strstr(error.text, "num_states: found 65537, allowed 0 to 65536"), "%s", error.text);
  cr_assert_eq(assay_kv_create(&config, &kv, &error), ASSAY_OK, "%s", error.text);
  cr_expect_eq(assay_kv_keep_state(kv, 0, &kept, &error), ASSAY_ERR_INPUT);
  cr_expect_not(kept);
  request = computed(kv, tokens, 3, 0, false);
  cr_assert_eq(assay_kv_keep_state(kv, request, &kept, &error), ASSAY_OK);
  cr_expect_not(kept);
  error.text[0] = '\0';
  cr_expect_eq(assay_kv_open(kv, tokens, 3, &other, &hit, &error), ASSAY_ERR_MEMORY);
  cr_expect_not_null(strstr(error.text, "kv_open: num_states: none of 1 is left"), "%s", error.text);
  error.text[0] = '\0';
  cr_expect_eq(assay_kv_fork(kv, request, &other, &error), ASSAY_ERR_MEMORY);
  cr_expect_not_null(strstr(error.text, "kv_fork: num_states: none of 1 is left"), "%s", error.text);
  cr_expect_eq(assay_kv_check(kv, &error), ASSAY_OK, "%s", error.text);
  cr_expect_eq(assay_kv_state_slot(kv, request), 0);
  cr_expect_eq(assay_kv_state_slot(kv, 3), -1);
  assay_kv_destroy(kv);
}
