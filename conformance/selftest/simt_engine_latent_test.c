/* simt_engine_latent_test.c: an engine with a latent cache. Requests find prefixes, fork, and are preempted where the
 * pool has no block left: the youngest one goes, and comes back with what it has. Prompts attend over entries, or over
 * keys and values of every head. Their tokens are those that each request gets alone. The same days are run with one
 * mistake at a time, each of which gives some request other tokens. The engine's sources are compiled in here, in place
 * of the library's. */
#include "engine_mistakes.h"

#include "gpu/models/engine.c"
#include "gpu/models/engine_graph.c"
#include "gpu/models/engine_step.c"
#include "gpu/models/engine_tokens.c"

#include <criterion/criterion.h>
#include <stdio.h>

#include "conformance/builtin.h"
#include "core/registry.h"
#include "engine_scenario.h"
#include "engine_world.h"

enum { TOKENS = 16, LENGTH = PROMPT + TOKENS, CHUNK = 10 };

static assay_error test_error;
static assay_model_config config;
static assay_model_weights weights;

/* A dense layer and a sparse one, in f32. Values have 12 channels. */
static void setup(void) {
  cr_assert_eq(builtin_register(&test_error), ASSAY_OK, "%s", test_error.text);
  config = scenario_model(10);
  config.groups = config.groups_used = 2;
  config.sparse = (assay_model_layers){{2}};
  cr_assert_eq(config.block_size, BLOCK);
  cr_assert_eq(assay_model_weights_alloc(&config, &weights, &test_error), ASSAY_OK);
  cr_assert_eq(assay_model_seed(&config, 7, &weights, &test_error), ASSAY_OK, "%s", test_error.text);
}

TestSuite(engine_latent, .init = setup);

static const assay_engine_sampling greedy = {0, 1, 0, 0, 5, 0};

static void open_one(world *w, int i) {
  if (w->status == ASSAY_OK) w->order[w->open++] = i;
  open_text(w, i, &greedy);
}

static void release(world *w, int i) {
  release_text(w, i);
  int at = 0;
  while (at < w->open && w->order[at] != i)
    ++at;
  for (--w->open; at < w->open; ++at)
    w->order[at] = w->order[at + 1];
}

static void add(world *w, int i, int64_t tokens) {
  const int32_t number = w->request[i].number;
  if (w->status != ASSAY_OK) return;
  const int64_t left = assay_engine_left(w->e, number);
  w->part[w->parts++] = (assay_engine_part){number, left > tokens ? tokens : left > 0 ? left : 1, NULL};
}

static void open_engine(world *w, const char *form, bool eager, uint32_t lag, int64_t blocks) {
  const assay_model_options model = {.form = &form, .forms = form != NULL};
  const assay_engine_options options = {.device = "simt",
                                        .num_blocks = blocks,
                                        .max_batch = BATCH,
                                        .max_tokens = 64,
                                        .max_length = LENGTH,
                                        .eager = eager,
                                        .model = &model};
  assay_device_find("simt")->flow->lag(lag);
  note(w, assay_engine_open(&config, &weights, &options, &w->e, &w->error));
}

static void close_engine(world *w) {
  while (w->open > 0)
    release(w, w->order[0]);
  if (w->e != NULL) {
    if (w->status == ASSAY_OK) note(w, assay_engine_check_forced(w->e, &w->error));
    assay_engine_get_stats(w->e, &w->stats);
    w->books = assay_kv_check(w->e->kv, NULL);
  }
  assay_engine_close(w->e);
  w->e = NULL;
  assay_device_find("simt")->flow->lag(0);
}

/* ---- prefixes and forks ---------------------------------------------------------------------------------- */

static void fork_one(world *w, int i, int other) {
  one *from = &w->request[i], *to = &w->request[other];
  if (w->status != ASSAY_OK) return;
  fetch(w, i);
  *to = *from;
  note(w, assay_engine_fork(w->e, from->number, &greedy, &to->number, &w->error));
  w->order[w->open++] = other;
}

static void day(world *w, const char *form, bool eager, uint32_t lag) {
  prompts(w, &config, LENGTH);
  open_engine(w, form, eager, lag, 32);
  open_one(w, FIRST);
  open_one(w, COLD);
  for (int t = 0; t < 3; ++t) { /* chunks, the last one beside a token of the other request */
    add(w, FIRST, CHUNK);
    add(w, COLD, CHUNK);
    send(w);
  }
  open_one(w, WARM); /* two blocks are found, and the rest is computed between tokens of others */
  add(w, FIRST, 1);
  add(w, WARM, CHUNK);
  add(w, COLD, 1);
  send(w);
  fork_one(w, FIRST, TWIN);
  for (int t = 0; t < 4; ++t) {
    add(w, FIRST, 1); /* it writes first, to a copy of its last block */
    add(w, TWIN, 1);
    add(w, WARM, 1);
    send(w);
  }
  release(w, COLD);
  open_one(w, THIRD);
  for (int t = 0; t < 4; ++t) {
    add(w, THIRD, CHUNK);
    add(w, TWIN, 1);
    add(w, FIRST, 1);
    send(w);
  }
  close_engine(w);
}

/* ---- under load ------------------------------------------------------------------------------------------ */

/* The youngest gives its blocks back. It comes again some steps later. */
static void preempt(world *w, int step) {
  w->status = ASSAY_OK;
  w->error.text[0] = '\0';
  release(w, w->order[w->open - 1]);
  ++w->preempted;
  w->closed_until = step + 5;
}

/* Serves all requests, except TWIN, in a pool that holds less than two of full length. */
static void load(world *w, const char *form, bool eager, uint32_t lag, int64_t blocks) {
  static const int all[] = {FIRST, COLD, WARM, THIRD};
  prompts(w, &config, LENGTH);
  open_engine(w, form, eager, lag, blocks);
  for (int step = 0; step < 400 && w->status == ASSAY_OK; ++step) {
    for (int a = 0; a < 4; ++a) {
      one *r = &w->request[all[a]];
      if (r->number >= 0 || r->have >= TOKENS || step < w->closed_until) continue;
      open_one(w, all[a]);
      if (r->have > 0) w->returned += r->hit;
    }
    if (w->open == 0 && w->closed_until <= step) break;
    if (w->open == 0) continue;
    for (int o = 0; o < w->open; ++o)
      add(w, w->order[o], CHUNK);
    send(w);
    if (w->status == ASSAY_ERR_MEMORY && strstr(w->error.text, "pool exhausted") != NULL && w->open > 1)
      preempt(w, step);
    for (int o = w->open - 1; o >= 0 && w->status == ASSAY_OK; --o) {
      const int i = w->order[o];
      if (assay_engine_left(w->e, w->request[i].number) > 0) continue;
      fetch(w, i);
      if (w->request[i].have >= TOKENS) release(w, i);
    }
  }
  close_engine(w);
}

/* ---- each request alone ---------------------------------------------------------------------------------- */

/* Runs each request alone, call by call, over entries. */
static void alone(world *w) {
  prompts(w, &config, LENGTH);
  for (int i = 0; i < ALL; ++i) {
    if (i == TWIN) continue;
    open_engine(w, NULL, true, 0, 32);
    open_one(w, i);
    for (int t = 0; t < TOKENS; ++t) {
      add(w, i, PROMPT);
      send(w);
    }
    close_engine(w);
  }
  w->request[TWIN] = w->request[FIRST];
}

static world right, got;
static const char *const forms[] = {NULL, "mla_expand=on", "mla_expand=auto"};
enum { FORMS = sizeof forms / sizeof *forms };

static void tokens_are_those_of_a_request_alone(void) {
  static const struct {
    int form;
    bool eager;
    uint32_t lag;
  } runs[] = {{0, false, 0}, {1, false, 0}, {2, false, 0}, {1, true, 0}, {1, false, 7}};
  char text[200] = "";
  for (size_t i = 0; i < sizeof runs / sizeof *runs; ++i) {
    day(&got, forms[runs[i].form], runs[i].eager, runs[i].lag);
    cr_expect(!differs(&got, &right, text, sizeof text), "run %zu: %s", i, text);
    cr_expect_eq(got.books, ASSAY_OK);
    cr_expect_eq(got.stats.replays > 3, !runs[i].eager, "%d", (int)got.stats.replays);
    cr_expect_gt(got.stats.copied_blocks, 0);
    cr_expect_eq(got.request[WARM].hit, 2 * BLOCK);
    cr_expect_eq(got.request[THIRD].hit, 3 * BLOCK);
    for (int r = 0; r < ALL; ++r)
      cr_expect_gt(got.request[r].have, 2, "request %d: %d tokens", r, (int)got.request[r].have);
  }
}

static void tokens_stay_under_load(void) {
  char text[200] = "";
  for (int f = 0; f < FORMS; ++f) {
    load(&got, forms[f], f == 2, 0, 10);
    cr_expect(!differs(&got, &right, text, sizeof text), "form %d: %s", f, text);
    cr_expect_eq(got.books, ASSAY_OK);
    cr_expect_gt(got.preempted, 2, "%d", (int)got.preempted);
    cr_expect_gt(got.returned, BLOCK, "%d", (int)got.returned);
    for (int r = 0; r < ALL; ++r)
      cr_expect(r == TWIN || got.request[r].have >= TOKENS, "request %d: %d tokens", r, (int)got.request[r].have);
  }
}

/* Products with weights of e4m3, in graphs: rows are stored as codes each by itself, so that steps of other requests do
 * not change them. */
Test(engine_latent, tokens_stay_with_weights_of_8_bits) {
  char text[200] = "";
  assay_model_weights_free(&weights);
  config.fp8_weights = true;
  config.hidden = config.q_rank = config.intermediate = config.expert_size = 128;
  config.heads = 8;
  config.value_size = 16;
  config.shared_size = 128;
  cr_assert_eq(assay_model_weights_alloc(&config, &weights, &test_error), ASSAY_OK);
  cr_assert_eq(assay_model_seed(&config, 7, &weights, &test_error), ASSAY_OK, "%s", test_error.text);
  alone(&right);
  day(&got, NULL, false, 0);
  cr_expect(!differs(&got, &right, text, sizeof text), "%s", text);
  cr_expect_gt(got.stats.replays, 3);
  load(&got, "mla_expand=auto", false, 0, 10);
  cr_expect(!differs(&got, &right, text, sizeof text), "under load: %s", text);
  cr_expect_gt(got.preempted, 2, "%d", (int)got.preempted);
  engine_mutant = ENGINE_SLOT_OF_NEIGHBOUR;
  day(&got, NULL, false, 0);
  engine_mutant = ENGINE_NO_MISTAKE;
  cr_expect(differs(&got, &right, text, sizeof text), "a row that writes to the first row's slot is not seen");
}

static const struct {
  int mistake;
  bool under_load, expanded, eager;
  const char *name;
} mistakes[] = {
    {ENGINE_SLOT_OF_NEIGHBOUR, false, false, false, "a row writes to the first row's slot"},
    {ENGINE_PAD_WRITES, false, false, false, "a pad row writes to a live block"},
    {ENGINE_COPIES_LOST, false, false, false, "a shared block is not copied"},
    {ENGINE_RUNS_STAY, false, true, true, "single tokens attend by the runs of the step before"},
    {ENGINE_RUNS_OF_OTHER_HALF, false, true, false, "a step attends by the lists of the other half"},
    {ENGINE_RUNS_OF_ONE_STEP, true, true, false, "lists are those of the first steps"},
};

static void every_mistake_shows(void) {
  char text[200] = "";
  for (size_t i = 0; i < sizeof mistakes / sizeof *mistakes; ++i) {
    const char *form = mistakes[i].expanded ? "mla_expand=on" : NULL;
    engine_mutant = mistakes[i].mistake;
    if (mistakes[i].under_load)
      load(&got, form, mistakes[i].eager, 0, 10);
    else
      day(&got, form, mistakes[i].eager, 0);
    engine_mutant = ENGINE_NO_MISTAKE;
    cr_expect(differs(&got, &right, text, sizeof text), "not seen: %s", mistakes[i].name);
  }
}

/* Each request alone takes a third of the time, and so it is run once for all three. */
Test(engine_latent, tokens_of_days_and_loads) {
  alone(&right);
  tokens_are_those_of_a_request_alone();
  tokens_stay_under_load();
  every_mistake_shows();
}
