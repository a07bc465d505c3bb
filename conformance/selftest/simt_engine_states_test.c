/* simt_engine_states_test.c: an engine whose requests have states. Requests start from kept states, fork, are preempted
 * and return, in a pool with few slots. Their tokens are those that each request gets alone. The same day is run with
 * one mistake at a time, in the engine or in the pool of states. Each mistake gives some request other tokens. The
 * engine's sources are compiled in here, in place of the library's, and so is the pool's planted copy. */
#include "engine_mistakes.h"

#include "gpu/models/engine.c"
#include "gpu/models/engine_graph.c"
#include "gpu/models/engine_step.c"
#include "gpu/models/engine_tokens.c"

#undef MISTAKE
#include "kv_states_mistakes.h"
#include "planted/core/kv_states.c"

#include <criterion/criterion.h>
#include <stdio.h>

#include "conformance/builtin.h"
#include "core/registry.h"
#include "engine_scenario.h"
#include "engine_world.h"

enum { TOKENS = 24, LENGTH = PROMPT + TOKENS };

static assay_error test_error;
static assay_model_config config;
static assay_model_weights weights;

static void setup(void) {
  cr_assert_eq(builtin_register(&test_error), ASSAY_OK, "%s", test_error.text);
  config = scenario_model(12);
  cr_assert_eq(config.block_size, BLOCK);
  cr_assert_eq(assay_model_weights_alloc(&config, &weights, &test_error), ASSAY_OK);
  cr_assert_eq(assay_model_seed(&config, 7, &weights, &test_error), ASSAY_OK);
}

TestSuite(engine_states, .init = setup);

static assay_engine_sampling sampling_of(int i) {
  return (assay_engine_sampling){0, 1, 0, 0, 5, (uint64_t)i};
}

static void open_one(world *w, int i) {
  const assay_engine_sampling sampling = sampling_of(i);
  open_text(w, i, &sampling);
}

static void add(world *w, int i, int64_t tokens) {
  const one *r = &w->request[i];
  if (w->status != ASSAY_OK) return;
  const int64_t chunk = assay_engine_chunk(w->e, r->number, tokens);
  w->part[w->parts++] = (assay_engine_part){.request = r->number, .tokens = chunk > 0 ? chunk : 1};
}

/* Sends steps in which a request and, unless it is -1, another one have up to `tokens` tokens. */
static void run(world *w, int a, int b, int64_t tokens, int times) {
  for (int t = 0; t < times; ++t) {
    add(w, a, tokens);
    if (b >= 0) add(w, b, tokens);
    send(w);
  }
}

static void open_engine(world *w, bool eager, uint32_t lag, int64_t num_states) {
  const assay_engine_options options = {.device = "simt",
                                        .num_blocks = 24,
                                        .max_batch = 4,
                                        .max_tokens = 64,
                                        .max_length = LENGTH,
                                        .eager = eager,
                                        .num_states = num_states};
  assay_device_find("simt")->flow->lag(lag);
  note(w, assay_engine_open(&config, &weights, &options, &w->e, &w->error));
}

static void close_engine(world *w) {
  for (int i = 0; i < ALL; ++i)
    if (w->request[i].number >= 0) fetch(w, i);
  if (w->e != NULL) {
    assay_engine_get_stats(w->e, &w->stats);
    w->books = assay_kv_check(w->e->kv, NULL);
  }
  assay_engine_close(w->e);
  assay_device_find("simt")->flow->lag(0);
}

static void day(world *w, bool eager, uint32_t lag, int64_t num_states) {
  prompts(w, &config, LENGTH);
  open_engine(w, eager, lag, num_states);
  open_one(w, FIRST);
  open_one(w, COLD);
  run(w, FIRST, COLD, 2 * BLOCK, 1); /* states are kept after two blocks, and after one */
  run(w, FIRST, COLD, BLOCK, 1);     /* after three, beside the rest of the other prompt */
  run(w, FIRST, COLD, 2, 4);
  open_one(w, WARM); /* starts from the state after two blocks */
  for (int t = 0; t < 3; ++t) {
    add(w, WARM, 2);
    add(w, FIRST, 1);
    send(w);
  }
  release_text(w, COLD);       /* preempted */
  if (w->status == ASSAY_OK) { /* two go on from one place */
    one *from = &w->request[FIRST], *to = &w->request[TWIN];
    const assay_engine_sampling sampling = sampling_of(TWIN);
    fetch(w, FIRST);
    memcpy(to->text, from->text, sizeof to->text);
    to->prompt = from->prompt;
    to->have = from->have;
    to->opened = from->opened;
    note(w, assay_engine_fork(w->e, from->number, &sampling, &to->number, &w->error));
  }
  for (int t = 0; t < 3; ++t) { /* a bucket of four has one pad row */
    add(w, TWIN, 1);
    add(w, FIRST, 1);
    add(w, WARM, 1);
    send(w);
  }
  release_text(w, TWIN);
  open_one(w, THIRD); /* takes the slot; starts from the state after three blocks */
  run(w, THIRD, FIRST, 4, 3);
  release_text(w, WARM); /* preempted */
  open_one(w, COLD);     /* returns, into the slot that another one left */
  run(w, COLD, THIRD, 2 * BLOCK, 5);
  release_text(w, THIRD);
  open_one(w, WARM); /* returns */
  open_one(w, TWIN); /* returns: more of its blocks are present than states */
  for (int t = 0; t < 5; ++t) {
    add(w, WARM, 2 * BLOCK);
    add(w, COLD, 2 * BLOCK);
    add(w, TWIN, 2 * BLOCK);
    send(w);
  }
  close_engine(w);
}

/* Runs each request alone, call by call, without a prefix index. */
static void alone(world *w) {
  prompts(w, &config, LENGTH);
  for (int i = 0; i < ALL; ++i) {
    if (i == TWIN) continue;
    open_engine(w, true, 0, 0);
    open_one(w, i);
    w->part[0] = (assay_engine_part){.request = w->request[i].number, .tokens = w->request[i].prompt};
    w->parts = 1;
    send(w);
    run(w, i, -1, 1, TOKENS - 2);
    release_text(w, i);
    close_engine(w);
  }
  w->request[TWIN] = w->request[FIRST];
}

static world right, got;

/* With many slots, with the fewest, and with lanes that lag. */
Test(engine_states, tokens_are_those_of_a_request_alone) {
  static const struct {
    bool eager;
    uint32_t lag;
    int64_t num_states;
  } runs[] = {{false, 0, 0}, {true, 0, 0}, {false, 0, 5}, {false, 7, 6}, {false, 7, 16}};
  char text[200] = "";
  alone(&right);
  for (size_t i = 0; i < sizeof runs / sizeof *runs; ++i) {
    day(&got, runs[i].eager, runs[i].lag, runs[i].num_states);
    cr_expect(!differs(&got, &right, text, sizeof text), "run %zu: %s", i, text);
    cr_expect_eq(got.books, ASSAY_OK);
    cr_expect_eq(got.stats.replays > 5, !runs[i].eager);
    cr_expect_eq(got.stats.pad_rows > 0, !runs[i].eager);
    cr_expect_gt(got.stats.copied_states, 5);
    for (int r = 0; r < ALL; ++r)
      cr_expect_gt(got.request[r].have, 3, "request %d: %d tokens", r, (int)got.request[r].have);
    if (runs[i].num_states > 0 && runs[i].num_states < 16) continue;
    cr_expect_eq(got.request[TWIN].hit, 32, "%d", (int)got.request[TWIN].hit); /* a block that ended while decoding */
    cr_expect_eq(got.request[THIRD].hit, 24);
    cr_expect_gt(got.request[WARM].hit, 15);
    cr_expect_gt(got.request[COLD].hit, 7);
  }
}

/* One request at a time and two slots. When the second one opens, the first one's slot still waits to be copied, and
 * the other slot is what the second one starts from. */
Test(engine_states, copies_are_made_at_once_where_a_slot_is_needed) {
  const assay_engine_options options = {
      .device = "simt", .num_blocks = 8, .max_batch = 1, .max_tokens = 32, .max_length = LENGTH, .num_states = 2};
  char text[200] = "";
  alone(&right);
  prompts(&got, &config, LENGTH);
  note(&got, assay_engine_open(&config, &weights, &options, &got.e, &got.error));
  open_one(&got, FIRST);
  run(&got, FIRST, -1, 3 * BLOCK, 1); /* three blocks, whose state is to be kept */
  if (got.status == ASSAY_OK) note(&got, assay_engine_release(got.e, got.request[FIRST].number, &got.error));
  got.request[FIRST].number = -1;
  open_one(&got, THIRD);
  cr_expect_eq(got.request[THIRD].hit, 3 * BLOCK);
  run(&got, THIRD, -1, BLOCK, 8);
  close_engine(&got);
  cr_expect(!differs(&got, &right, text, sizeof text), "%s", text);
  cr_expect_eq(got.books, ASSAY_OK);
  cr_expect_eq(got.request[THIRD].have, 8);
}

static const struct {
  int in_engine, in_pool;
  const char *name;
} mistakes[] = {
    {ENGINE_STATE_OF_FIRST, 0, "all rows have the first row's state"},
    {ENGINE_STATE_NEVER_FRESH, 0, "a new request goes on from what its slot holds"},
    {ENGINE_STATE_FRESH_CHUNKS, 0, "each chunk of a prompt begins with zeros"},
    {ENGINE_PAD_HAS_STATE, 0, "pad rows of a graph write a request's state"},
    {ENGINE_STATE_COPIES_LOST, 0, "forks, hits and kept states are not copied"},
    {0, STATES_NOT_STARTED_FROM, "a hit or a fork does not start from the state"},
    {0, STATES_KEPT_WITHOUT_COPY, "a kept state is what its slot held"},
    {0, STATES_OF_ANOTHER_BLOCK, "a hit starts from the state of another block's end"},
    {0, STATES_TAKEN_GIVEN_AWAY, "a slot is given away while its request is open"},
};

Test(engine_states, every_mistake_shows) {
  char text[200] = "";
  alone(&right);
  for (size_t i = 0; i < sizeof mistakes / sizeof *mistakes; ++i) {
    engine_mutant = mistakes[i].in_engine;
    states_mistake = mistakes[i].in_pool;
    day(&got, false, 0, 0);
    engine_mutant = states_mistake = 0;
    cr_expect(differs(&got, &right, text, sizeof text), "not seen: %s", mistakes[i].name);
  }
}

Test(engine_states, refusals_name_what_is_wrong) {
  static const struct {
    int model;
    int64_t num_states;
    bool no_prefix;
    const char *says;
  } wrong[] = {{12, 3, false, "num_states: found 3, allowed 4 to 65536"},
               {12, 2, true, "num_states: found 2, allowed 3 to 65536"},
               {12, 65537, false, "num_states: found 65537, allowed 4 to 65536"},
               {1, 4, false, "num_states: found 4, allowed 0 to 0"}};
  for (size_t i = 0; i < sizeof wrong / sizeof *wrong; ++i) {
    const assay_model_config c = scenario_model(wrong[i].model);
    const assay_engine_options options = {.device = "simt",
                                          .num_blocks = 8,
                                          .max_batch = 3,
                                          .max_tokens = 16,
                                          .no_prefix = wrong[i].no_prefix,
                                          .num_states = wrong[i].num_states};
    assay_engine *e = NULL;
    test_error.text[0] = '\0';
    cr_expect_eq(assay_engine_open(&c, &weights, &options, &e, &test_error), ASSAY_ERR_INPUT);
    cr_expect_not_null(strstr(test_error.text, wrong[i].says), "%s", test_error.text);
  }
}
