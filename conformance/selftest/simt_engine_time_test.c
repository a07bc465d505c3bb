/* simt_engine_time_test.c: a decode step's graph without an operator, on simt with a clock of the test's own: a replay
 * takes what its launches weigh. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "bench/scenario.h"
#include "conformance/builtin.h"
#include "core/registry.h"
#include "gpu/models/engine_parts.h"
#include "model_small.h"

enum { BATCH = 4, TOKENS = 12, TIMED_AT = 5, EVERY = 23, PATHS = 64 };

static assay_error error;
static assay_model_config c;
static assay_model_weights w;
static assay_engine *e;
static assay_engine_part part[BATCH];

/* ---- a clock ------------------------------------------------------------------------------------------- */

static const assay_device *simt;
static assay_device clocked;
static assay_device_timing timing;
static assay_device_flow flow;
static double clock_us, marked[2];
static int64_t replays, captured[PATHS]; /* launches of the last capture, by operator */
static double captured_us;
static int halves;                             /* bits: whose graphs were replayed */
static int32_t alive;                          /* graphs of captures since the clock began */
static bool runs, break_capture, break_replay; /* runs: a replay does what it should, else it takes its time alone */

/* The launch of all layers is no operator, and has the number after theirs. */
static int32_t number_of(const char *op) {
  int32_t i = 0;
  while (i < assay_op_count() && strcmp(assay_op_at(i)->name, op) != 0)
    ++i;
  return i;
}

/* Time of one launch, in us. */
static double weight(const char *op, const char *variant) {
  return 1 + number_of(op) + 0.25 * (double)(strlen(variant) % 4);
}

static void after_call(void *context, const assay_model_path *call) {
  (void)context;
  ++captured[number_of(call->op)];
  captured_us += weight(call->op, call->variant);
}

static assay_status begin_capture(void **stream, assay_error *why) {
  memset(captured, 0, sizeof captured);
  captured_us = 0;
  return simt->graph_capture_begin(stream, why);
}

static assay_status end_capture(void **graph, assay_error *why) {
  const assay_status status = simt->graph_capture_end(graph, why);
  if (status == ASSAY_OK && break_capture) {
    simt->graph_release(*graph);
    *graph = NULL;
    return assay_fail(why, ASSAY_ERR_DEVICE, "planted: end of a capture");
  }
  alive += status == ASSAY_OK;
  return status;
}

static void release_graph(void *graph) {
  --alive;
  simt->graph_release(graph);
}

/* The engine's own graphs weigh what a replay of them counts; every so often one takes far longer. */
static assay_status replay(void *graph, assay_error *why) {
  double us = captured_us;
  for (int32_t b = 0; b < e->buckets; ++b)
    for (int half = 0; half < 2; ++half) {
      const engine_graph *g = &e->bucket[b].graph[0][half];
      if (g->graph != graph) continue;
      halves |= 1 << half;
      us = 0;
      for (int32_t i = 0; i < g->count; ++i)
        us += (double)g->calls[i] * weight(e->m->counts.row[i].variant->op, e->m->counts.row[i].variant->name);
    }
  clock_us += us + (++replays % EVERY == 0 ? 1e4 : 0);
  if (break_replay) return assay_fail(why, ASSAY_ERR_DEVICE, "planted: a replay");
  return runs ? simt->flow->replay(graph, why) : ASSAY_OK;
}

static assay_status mark(int32_t number, assay_error *why) {
  (void)why;
  marked[number] = clock_us;
  return ASSAY_OK;
}
static assay_status between(double *us, assay_error *why) {
  (void)why;
  *us = marked[1] - marked[0];
  return ASSAY_OK;
}

static void give_clock(bool replays_run) {
  static const assay_engine_hooks hooks = {NULL, NULL, after_call};
  clocked = *simt;
  flow = *simt->flow;
  timing = (assay_device_timing){.mark = mark, .between = between, .wait_all = simt->synchronize};
  flow.replay = replay;
  clocked.timing = &timing;
  clocked.flow = &flow;
  clocked.graph_capture_begin = begin_capture;
  clocked.graph_capture_end = end_capture;
  clocked.graph_release = release_graph;
  e->device = e->m->device = &clocked;
  e->flow = &flow;
  alive = halves = 0;
  runs = replays_run;
  break_capture = break_replay = false;
  assay_engine_set_hooks(e, &hooks);
}

static void take_clock(void) {
  e->device = e->m->device = simt;
  e->flow = simt->flow;
  assay_engine_set_hooks(e, NULL);
}

/* ---- an engine that decodes ---------------------------------------------------------------------------- */

static void step(int64_t rows) {
  for (int i = 0; i < BATCH; ++i)
    part[i].tokens = 1;
  cr_assert_eq(assay_engine_step(e, part, rows, &error), ASSAY_OK, "%s", error.text);
}

static bool one_launch; /* engines have all layers in one launch, and graphs of one kind */

static void open_engine(int number, bool eager) {
  static const char *const form[] = {"one_launch=on", "lm_head_argmax=off"};
  static const assay_model_options model = {.form = form, .forms = 2};
  const assay_engine_options options = {.device = "simt",
                                        .num_blocks = 32,
                                        .max_batch = BATCH,
                                        .max_tokens = 64,
                                        .max_length = 48,
                                        .eager = eager,
                                        .model = one_launch ? &model : NULL};
  static int32_t prompt[BATCH][8];
  c = small_model(number);
  c.layers = 2;
  c.vocab = 61;
  c.max_pos = 160;
  if (c.kv_dtype == c.act_dtype) c.kv_dtype = ASSAY_F32;
  c.weight_dtype = c.act_dtype = ASSAY_F32;
  if (one_launch) {
    c.intermediate = 128;
    c.weight_dtype = c.act_dtype = c.kv_dtype = ASSAY_BF16;
  }
  cr_assert_eq(assay_model_weights_alloc(&c, &w, &error), ASSAY_OK, "%s", error.text);
  cr_assert_eq(assay_model_seed(&c, 7, &w, &error), ASSAY_OK, "%s", error.text);
  cr_assert_eq(assay_engine_open(&c, &w, &options, &e, &error), ASSAY_OK, "%s", error.text);
  for (int i = 0; i < BATCH; ++i) {
    assay_model_prompt(&c, 3, i, 3 + i, prompt[i]);
    part[i] = (assay_engine_part){.tokens = 3 + i};
    cr_assert_eq(assay_engine_request(e, prompt[i], 3 + i, NULL, &part[i].request, NULL, &error), ASSAY_OK);
  }
  cr_assert_eq(assay_engine_step(e, part, BATCH, &error), ASSAY_OK, "%s", error.text);
}

static void close_engine(void) {
  assay_engine_close(e);
  e = NULL;
  assay_model_weights_free(&w);
}

/* Operators and variants of the last bucket's graph, with the calls of one replay. */
static int32_t calls_of_step(assay_model_path *path) {
  const engine_graph *g = &e->bucket[e->buckets - 1].graph[0][0];
  int32_t count = 0;
  for (int32_t i = 0; i < g->count; ++i) {
    assay_model_path taken;
    cr_assert(assay_engine_path(e, i, &taken));
    int32_t at = 0;
    while (at < count && (strcmp(path[at].op, taken.op) != 0 || strcmp(path[at].variant, taken.variant) != 0))
      ++at;
    if (g->calls[i] == 0 && at == count) continue;
    if (at == count) {
      path[count] = taken;
      path[count++].calls = 0;
    }
    path[at].calls += g->calls[i];
  }
  return count;
}

static void setup(void) {
  cr_assert_eq(builtin_register(&error), ASSAY_OK, "%s", error.text);
  simt = assay_device_find("simt");
}

TestSuite(engine_time, .init = setup);

/* ---- tests --------------------------------------------------------------------------------------------- */

Test(engine_time, refusals_name_what_is_wrong) {
  assay_engine_graph_time time;
  open_engine(2, false);
  step(BATCH);
  const int32_t before = e->m->counts.count;
  cr_expect_eq(assay_engine_time_without(e, "none_such", NULL, &time, &error), ASSAY_ERR_INPUT);
  cr_expect_not_null(strstr(error.text, "found operator 'none_such', allowed: "), "%s", error.text);
  error.text[0] = '\0';
  cr_expect_eq(assay_engine_time_without(e, "gemm", "nobody", &time, &error), ASSAY_ERR_INPUT);
  cr_expect_not_null(strstr(error.text, "found gemm variant 'nobody', allowed on simt: "), "%s", error.text);
  error.text[0] = '\0';
  cr_expect_eq(assay_engine_time_without(e, "gemm", NULL, &time, &error), ASSAY_ERR_UNSUPPORTED);
  cr_expect_not_null(strstr(error.text, "device simt has no clock"), "%s", error.text);
  cr_expect(time.whole_us == 0 && time.without_us == 0 && time.calls == 0 && e->m->counts.count == before);
  close_engine();
}

/* Those steps alone whose inputs are all where a graph reads them. */
Test(engine_time, the_last_step_is_one_that_a_graph_can_do_again) {
  assay_engine_graph_time time;
  const struct {
    bool opened_eager, eager;
    int64_t rows; /* 0: the prompts are the last step */
    assay_status status;
  } steps[] = {{false, false, 0, ASSAY_ERR_INPUT}, {false, false, BATCH, ASSAY_OK},
               {false, false, 3, ASSAY_OK},        {false, true, BATCH, ASSAY_OK},
               {false, true, 3, ASSAY_ERR_INPUT},  {true, true, BATCH, ASSAY_ERR_INPUT}};
  for (size_t i = 0; i < sizeof steps / sizeof *steps; ++i) {
    open_engine(1, steps[i].opened_eager);
    if (steps[i].rows > 0) step(BATCH);
    if (!steps[i].opened_eager) cr_assert_eq(assay_engine_set_eager(e, steps[i].eager, &error), ASSAY_OK);
    if (steps[i].rows > 0) step(steps[i].rows);
    give_clock(false);
    error.text[0] = '\0';
    cr_expect_eq(assay_engine_time_without(e, "gemm", NULL, &time, &error), steps[i].status, "%zu: %s", i, error.text);
    cr_expect(steps[i].status == ASSAY_OK || strstr(error.text, "no graph can do again") != NULL, "%s", error.text);
    cr_expect_eq(alive, 0);
    take_clock();
    close_engine();
  }
}

Test(engine_time, a_replay_loses_what_the_left_out_launches_take) {
  for (int number = 0; number < SMALL_MODELS; ++number) {
    assay_model_path path[PATHS];
    assay_engine_graph_time time, all;
    assay_engine_stats before, after;
    open_engine(number, false);
    step(BATCH);
    give_clock(false);
    const int32_t count = calls_of_step(path), rows = e->m->counts.count;
    double whole = 0;
    int64_t of_op[PATHS] = {0}, calls = 0;
    for (int32_t i = 0; i < count; ++i) {
      whole += (double)path[i].calls * weight(path[i].op, path[i].variant);
      of_op[number_of(path[i].op)] += path[i].calls;
    }
    for (int32_t i = 0; i < rows; ++i)
      calls += e->m->counts.row[i].calls;
    pass_count *kept = calloc((size_t)rows, sizeof *kept);
    memcpy(kept, e->m->counts.row, (size_t)rows * sizeof *kept);
    assay_engine_get_stats(e, &before);
    cr_expect_gt(count, 5);
    for (int32_t i = 0; i < count; ++i) {
      const int32_t op = number_of(path[i].op);
      cr_assert_eq(assay_engine_time_without(e, path[i].op, path[i].variant, &time, &error), ASSAY_OK, "%s",
                   error.text);
      const double lost = (double)path[i].calls * weight(path[i].op, path[i].variant);
      cr_expect_eq(time.calls, path[i].calls, "%s: %lld", path[i].op, (long long)time.calls);
      cr_expect_float_eq(time.whole_us, whole, 1e-6);
      cr_expect_float_eq(time.whole_us - time.without_us, lost, 1e-6, "%s %s: %g, %g", path[i].op, path[i].variant,
                         time.whole_us - time.without_us, lost);
      for (int32_t o = 0; o < assay_op_count(); ++o) /* the others were launched */
        cr_expect_eq(captured[o], of_op[o] - (o == op ? path[i].calls : 0), "%s without %s", assay_op_at(o)->name,
                     path[i].op);
      cr_assert_eq(assay_engine_time_without(e, path[i].op, NULL, &all, &error), ASSAY_OK, "%s", error.text);
      cr_expect_eq(all.calls, of_op[op]);
    }
    cr_assert_eq(assay_engine_time_without(e, "copy_blocks", NULL, &time, &error), ASSAY_OK, "%s", error.text);
    cr_expect(time.calls == 0 && fabs(time.whole_us - time.without_us) < 1e-6);
    assay_engine_get_stats(e, &after);
    cr_expect_eq(memcmp(&before, &after, sizeof before), 0);
    cr_expect(rows == e->m->counts.count && memcmp(kept, e->m->counts.row, (size_t)rows * sizeof *kept) == 0);
    cr_expect_eq(alive, 0);
    const int half = (int)((after.steps - 1) & 1);
    cr_expect(halves == 1 << half && e->m->ids.data == e->ids + half * e->N, "model %d: another half's", number);
    free(kept);
    take_clock();
    close_engine();
  }
}

/* Decode goes on as if its times had not been read. */
Test(engine_time, tokens_stay_those_of_the_step) {
  static const char *const left_out[] = {"sampler", "norm_rope_append", "gemm"};
  static int32_t token[2][BATCH][TOKENS];
  for (int number = 1; number < 3; ++number)
    for (int timed = 0; timed < 2; ++timed) {
      open_engine(number, false);
      for (int t = 0; t + 1 < TOKENS; ++t) {
        assay_engine_graph_time time;
        step(BATCH);
        if (timed == 0 || t != TIMED_AT + number % 2) continue; /* one of either half */
        give_clock(true);
        for (size_t i = 0; i < sizeof left_out / sizeof *left_out; ++i)
          cr_assert_eq(assay_engine_time_without(e, left_out[i], NULL, &time, &error), ASSAY_OK, "%s", error.text);
        take_clock();
      }
      cr_assert_eq(assay_engine_wait(e, &error), ASSAY_OK, "%s", error.text);
      for (int i = 0; i < BATCH; ++i) {
        const int32_t *ids = NULL;
        int64_t count = 0;
        cr_assert_eq(assay_engine_tokens(e, part[i].request, &ids, &count, &error), ASSAY_OK, "%s", error.text);
        cr_assert_eq(count, TOKENS);
        memcpy(token[timed][i], ids, sizeof token[timed][i]);
        cr_expect(timed == 0 || memcmp(token[0][i], ids, sizeof token[0][i]) == 0, "model %d, request %d", number, i);
      }
      close_engine();
    }
}

/* All layers in one launch are a part of their own. */
Test(engine_time, one_launch_is_a_part) {
  assay_engine_graph_time time;
  one_launch = true;
  open_engine(1, false);
  step(BATCH);
  give_clock(false);
  cr_assert_eq(assay_engine_time_without(e, "one_launch", "words", &time, &error), ASSAY_OK, "%s", error.text);
  cr_expect(time.calls == 1 && captured[number_of("one_launch")] == 0 && captured[number_of("embedding")] == 1);
  cr_expect_gt(time.whole_us, time.without_us);
  cr_assert_eq(assay_engine_time_without(e, "embedding", NULL, &time, &error), ASSAY_OK, "%s", error.text);
  cr_expect(time.calls == 1 && captured[number_of("one_launch")] == 1 && captured[number_of("gemm")] == 0);
  take_clock();
  close_engine();
  one_launch = false;
}

Test(engine_time, what_fails_leaves_no_graph) {
  assay_engine_graph_time time;
  open_engine(1, false);
  step(BATCH);
  give_clock(false);
  break_capture = true;
  cr_expect_eq(assay_engine_time_without(e, "gemm", NULL, &time, &error), ASSAY_ERR_DEVICE);
  cr_expect_not_null(strstr(error.text, "planted: end of a capture"), "%s", error.text);
  cr_expect_eq(alive, 0);
  break_capture = false;
  cr_expect_eq(assay_engine_time_without(e, "gemm", NULL, &time, &error), ASSAY_OK, "%s", error.text);
  break_replay = true;
  cr_expect_eq(assay_engine_time_without(e, "gemm", NULL, &time, &error), ASSAY_ERR_DEVICE);
  cr_expect_eq(alive, 0);
  cr_expect_null(e->m->left_out.op);
  break_replay = false;
  cr_expect_eq(assay_engine_step(e, part, BATCH, &error), ASSAY_ERR_DEVICE); /* rows may be those of half a step */
  take_clock();
  close_engine();
}

/* A scenario's parts, with one that the graph has not. */
Test(engine_time, parts_of_a_scenario) {
  static scenario_result result;
  assay_model_path path[PATHS];
  open_engine(2, false);
  step(BATCH);
  const int32_t count = calls_of_step(path);
  for (int32_t i = 0; i < count; ++i) {
    scenario_part *p = &result.part[result.parts++];
    (void)snprintf(p->op, sizeof p->op, "%s", path[i].op);
    (void)snprintf(p->variant, sizeof p->variant, "%s", path[i].variant);
  }
  cr_expect_eq(scenario_graph(e, &result, &error), ASSAY_OK, "%s", error.text);
  cr_expect(result.graph_us == 0 && result.part[0].graph_calls == 0); /* without a clock */
  give_clock(false);
  scenario_part *none = &result.part[result.parts++];
  const assay_op *copies = assay_op_find("copy_blocks");
  (void)snprintf(none->op, sizeof none->op, "%s", copies->name);
  for (int32_t v = 0; v < assay_variant_count(); ++v)
    if (strcmp(assay_variant_at(v)->op, copies->name) == 0 && strcmp(assay_variant_at(v)->device, "simt") == 0)
      (void)snprintf(none->variant, sizeof none->variant, "%s", assay_variant_at(v)->name);
  cr_assert_eq(scenario_graph(e, &result, &error), ASSAY_OK, "%s", error.text);
  double whole = 0;
  for (int32_t i = 0; i < count; ++i) {
    const double us = (double)path[i].calls * weight(path[i].op, path[i].variant);
    cr_expect_eq(result.part[i].graph_calls, path[i].calls);
    cr_expect_float_eq(result.part[i].graph_us, us, 1e-6, "%s: %g", path[i].op, result.part[i].graph_us);
    whole += us;
  }
  cr_expect_eq(none->graph_calls, 0);
  cr_expect_float_eq(result.graph_us, whole, 1e-6);
  cr_expect_float_eq(result.graph_rest_us, 0, 1e-6);
  take_clock();
  close_engine();
}
