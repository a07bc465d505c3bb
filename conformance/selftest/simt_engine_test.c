/* simt_engine_test.c: an engine's graphs, pad rows, halves, lanes and blocks: the tokens of every request are those it
 * gets alone, call by call; logits of a graph are those of the calls, bit for bit. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "conformance/builtin.h"
#include "core/registry.h"
#include "engine_scenario.h"
#include "model_small.h"

static assay_error error;
static assay_model_config c;
static assay_model_weights w;
static scenario alone, day, other;

static void open_model(int number) {
  c = scenario_model(number);
  cr_assert_eq(assay_model_weights_alloc(&c, &w, &error), ASSAY_OK, "%s", error.text);
  cr_assert_eq(assay_model_seed(&c, 7, &w, &error), ASSAY_OK, "%s", error.text);
}

static void setup(void) {
  cr_assert_eq(builtin_register(&error), ASSAY_OK, "%s", error.text);
}

TestSuite(engine, .init = setup);

/* Dense families, then two with sparse layers, then one with states. */
static const int served[] = {0, 1, 2, 3, 4, 6, 8, 12};
enum { SERVED = sizeof served / sizeof *served };

Test(engine, tokens_are_those_of_a_request_alone) {
  char text[200] = "";
  for (int i = 0; i < SERVED; ++i) {
    const int number = served[i];
    open_model(number);
    scenario_alone(&c, &w, "simt", &alone);
    for (int eager = 0; eager < (number < SMALL_MODELS ? 2 : 1); ++eager) {
      scenario_run(&c, &w, "simt", eager != 0, 0, 0, &day);
      cr_expect(!scenario_differs(&day, &alone, text, sizeof text), "model %d, eager %d: %s", number, eager, text);
      cr_expect_eq(day.stats.replays > 25, eager == 0, "%lld replays", (long long)day.stats.replays);
      cr_expect_eq(day.stats.captures, eager ? 0 : 8);
      cr_expect_gt(day.stats.copied_blocks, 0);
      cr_expect_eq(day.stats.copied_states > 0, assay_model_has_states(&c));
      cr_expect_eq(day.request[5].hit, 16);
      cr_expect(eager != 0 || day.stats.pad_rows > 0);
    }
    assay_model_weights_free(&w);
  }
}

/* Lanes that run as late as they may, in every combination. */
Test(engine, order_of_lanes_does_not_show) {
  char text[200] = "";
  open_model(1);
  scenario_run(&c, &w, "simt", false, 0, 0, &day);
  for (uint32_t lag = 1; lag < 1u << ASSAY_LANES; ++lag) {
    scenario_run(&c, &w, "simt", false, lag, 0, &other);
    cr_expect(!scenario_differs(&other, &day, text, sizeof text), "lag %u: %s", lag, text);
  }
  assay_model_weights_free(&w);
}

/* Tokens vary: a row that got another's would show. */
Test(engine, tokens_of_the_scenario_differ) {
  open_model(2);
  scenario_alone(&c, &w, "simt", &alone);
  int64_t same = 0, all = 0;
  for (int i = 0; i < SCENARIO_REQUESTS; ++i)
    for (int j = 0; j < i; ++j)
      for (int64_t t = 0; t < SCENARIO_TOKENS; ++t, ++all)
        same += alone.request[i].token[t] == alone.request[j].token[t];
  cr_expect_lt(same, all / 2, "%lld of %lld", (long long)same, (long long)all);
  assay_model_weights_free(&w);
}

/* ---- short and long, logits ---------------------------------------------------------------------------- */

enum { LONG = 150, FORCED = 12 };

/* Logits of the last of FORCED steps with given ids, of two requests with so long prompts. */
static void force(assay_engine *e, int64_t prompt, double *logits) {
  static int32_t ids[2][LONG + FORCED];
  assay_engine_part part[2];
  for (int i = 0; i < 2; ++i) {
    assay_model_prompt(&c, 3, 10 * prompt + i, prompt + FORCED, ids[i]);
    cr_assert_eq(assay_engine_request(e, ids[i], prompt - i, NULL, &part[i].request, NULL, &error), ASSAY_OK, "%s",
                 error.text);
    part[i].tokens = assay_engine_left(e, part[i].request);
    part[i].forced = NULL;
  }
  cr_assert_eq(assay_engine_step(e, part, 2, &error), ASSAY_OK, "%s", error.text);
  for (int t = 0; t < FORCED; ++t) {
    for (int i = 0; i < 2; ++i) {
      part[i].tokens = 1;
      part[i].forced = &ids[i][prompt + t];
    }
    cr_assert_eq(assay_engine_step(e, part, 2, &error), ASSAY_OK, "%s", error.text);
  }
  cr_assert_eq(assay_engine_logits(e, 2, logits, &error), ASSAY_OK, "%s", error.text);
  for (int i = 0; i < 2; ++i)
    cr_assert_eq(assay_engine_release(e, part[i].request, &error), ASSAY_OK, "%s", error.text);
}

/* Captured with lengths of 0; replayed with short ones, long ones, and short ones again. */
Test(engine, a_graph_gives_the_bits_of_its_calls_at_any_length) {
  static const int64_t prompts[] = {2, 140, 9, 75, 2};
  static const int captured[] = {0, 1, 2, 3, 4, 12};
  for (size_t i = 0; i < sizeof captured / sizeof *captured; ++i) {
    const int number = captured[i];
    open_model(number);
    const assay_engine_options options = {
        .device = "simt", .num_blocks = 48, .max_batch = 2, .max_tokens = 300, .max_length = 160, .no_prefix = true};
    assay_engine *e = NULL;
    cr_assert_eq(assay_engine_open(&c, &w, &options, &e, &error), ASSAY_OK, "%s", error.text);
    double *graph = calloc(2 * (size_t)c.vocab, sizeof *graph), *calls = calloc(2 * (size_t)c.vocab, sizeof *calls);
    for (size_t p = 0; p < sizeof prompts / sizeof *prompts; ++p) {
      cr_assert_eq(assay_engine_set_eager(e, false, &error), ASSAY_OK);
      force(e, prompts[p], graph);
      cr_assert_eq(assay_engine_set_eager(e, true, &error), ASSAY_OK);
      force(e, prompts[p], calls);
      cr_expect_eq(memcmp(graph, calls, 2 * (size_t)c.vocab * sizeof *graph), 0, "model %d, prompt of %d", number,
                   (int)prompts[p]);
    }
    assay_engine_stats stats;
    assay_engine_get_stats(e, &stats);
    cr_expect_eq(stats.replays, 5 * FORCED);
    free(graph);
    free(calls);
    assay_engine_close(e);
    assay_model_weights_free(&w);
  }
}

/* ---- counts, refusals ------------------------------------------------------------------------------------ */

static int64_t calls_of(const assay_engine *e, const char *op) {
  assay_model_path path;
  int64_t calls = 0;
  for (int32_t i = 0; assay_engine_path(e, i, &path); ++i)
    calls += strcmp(path.op, op) == 0 ? path.calls : 0;
  return calls;
}

Test(engine, replays_count_as_calls) {
  open_model(1);
  for (int eager = 0; eager < 2; ++eager) {
    const assay_engine_options options = {
        .device = "simt", .num_blocks = 8, .max_batch = 1, .max_tokens = 8, .eager = eager != 0};
    assay_engine *e = NULL;
    const int32_t prompt[3] = {1, 2, 3};
    assay_engine_part part = {.tokens = 3};
    cr_assert_eq(assay_engine_open(&c, &w, &options, &e, &error), ASSAY_OK, "%s", error.text);
    cr_assert_eq(assay_engine_request(e, prompt, 3, NULL, &part.request, NULL, &error), ASSAY_OK);
    for (int t = 0; t < 6; ++t) {
      cr_assert_eq(assay_engine_step(e, &part, 1, &error), ASSAY_OK, "%s", error.text);
      part.tokens = 1;
    }
    cr_expect_eq(calls_of(e, "gemm"), 6 * 3 * c.layers, "%lld", (long long)calls_of(e, "gemm"));
    cr_expect_eq(calls_of(e, "gemm_glu"), 6 * c.layers, "%lld", (long long)calls_of(e, "gemm_glu"));
    cr_expect_eq(calls_of(e, "lm_head"), 6);
    cr_expect_eq(calls_of(e, "sampler"), 6);
    assay_engine_close(e);
  }
  assay_model_weights_free(&w);
}

/* ---- short tails ------------------------------------------------------------------------------------- */

/* Chunks of up to 16 tokens, beside tokens of others, and the rest after a prefix. */
Test(engine, short_tails_give_the_same_tokens) {
  char text[200] = "";
  for (int number = 0; number < SMALL_MODELS; ++number) {
    open_model(number);
    scenario_alone(&c, &w, "simt", &alone);
    scenario_run(&c, &w, "simt", false, 0, 16, &day);
    cr_expect(!scenario_differs(&day, &alone, text, sizeof text), "model %d: %s", number, text);
    assay_model_weights_free(&w);
  }
}

/* Calls of attention by variants that take only one row per request, or only others. */
static void calls_by_form(const assay_engine *e, int64_t *decode, int64_t *prefill) {
  assay_model_path path;
  *decode = *prefill = 0;
  for (int32_t i = 0; assay_engine_path(e, i, &path); ++i) {
    if (strcmp(path.op, "gate_attention") != 0) continue;
    for (int32_t v = 0; v < assay_variant_count(); ++v) {
      const assay_variant *variant = assay_variant_at(v);
      if (strcmp(variant->op, path.op) != 0 || strcmp(variant->name, path.variant) != 0 ||
          strcmp(variant->device, "simt") != 0)
        continue;
      *(strcmp(strrchr(variant->claims, '|'), "|decode") == 0 ? decode : prefill) += path.calls;
    }
  }
}

/* Two requests; the step's longer part decides. Forced are two variants of which each takes one form alone: others take
 * both. */
Test(engine, a_short_tail_is_one_up_to_the_threshold) {
  const char *const forced[] = {"gate_attention=decode_rows,prefill_as_decode"};
  const struct {
    int32_t short_tail;
    int64_t tokens[2];
    bool by_rows;
  } steps[] = {{4, {4, 1}, true},  {4, {1, 4}, true}, {4, {5, 1}, false}, {4, {2, 5}, false},
               {0, {2, 1}, false}, {1, {1, 1}, true}, {1, {2, 1}, false}, {64, {7, 7}, true}};
  int32_t prompt[16];
  open_model(2);
  cr_assert_eq((int)c.arch, (int)ASSAY_ASYNCT);
  assay_model_prompt(&c, 1, 0, 16, prompt);
  for (size_t i = 0; i < sizeof steps / sizeof *steps; ++i) {
    const assay_model_options model = {.variant = forced, .variants = 1, .short_tail = steps[i].short_tail};
    const assay_engine_options options = {
        .device = "simt", .num_blocks = 8, .max_batch = 2, .max_tokens = 16, .eager = true, .model = &model};
    assay_engine *e = NULL;
    assay_engine_part part[2];
    int64_t decode = 0, prefill = 0;
    cr_assert_eq(assay_engine_open(&c, &w, &options, &e, &error), ASSAY_OK, "%s", error.text);
    for (int r = 0; r < 2; ++r) {
      part[r] = (assay_engine_part){.tokens = steps[i].tokens[r]};
      cr_assert_eq(assay_engine_request(e, prompt + r, 9, NULL, &part[r].request, NULL, &error), ASSAY_OK);
    }
    cr_assert_eq(assay_engine_step(e, part, 2, &error), ASSAY_OK, "%s", error.text);
    calls_by_form(e, &decode, &prefill);
    cr_expect_eq(decode, steps[i].by_rows ? c.layers : 0, "step %zu: %lld", i, (long long)decode);
    cr_expect_eq(prefill, steps[i].by_rows ? 0 : c.layers, "step %zu: %lld", i, (long long)prefill);
    assay_engine_close(e);
  }
  assay_model_weights_free(&w);
}

Test(engine, an_exhausted_pool_changes_nothing) {
  open_model(0);
  const assay_engine_options options = {.device = "simt", .num_blocks = 3, .max_batch = 2, .max_tokens = 32};
  assay_engine *e = NULL;
  int32_t prompt[17];
  assay_engine_part part[2];
  assay_model_prompt(&c, 1, 0, 17, prompt);
  cr_assert_eq(assay_engine_open(&c, &w, &options, &e, &error), ASSAY_OK, "%s", error.text);
  for (int i = 0; i < 2; ++i) {
    cr_assert_eq(assay_engine_request(e, prompt + i, 8 + 8 * i, NULL, &part[i].request, NULL, &error), ASSAY_OK);
    part[i] = (assay_engine_part){.request = part[i].request, .tokens = 8 + 8 * i};
  }
  cr_assert_eq(assay_engine_step(e, part, 2, &error), ASSAY_OK, "%s", error.text);
  part[0].tokens = part[1].tokens = 1;
  cr_expect_eq(assay_engine_step(e, part, 2, &error), ASSAY_ERR_MEMORY);
  cr_expect_not_null(strstr(error.text, "2 blocks needed, 0 of 3"), "%s", error.text);
  cr_assert_eq(assay_engine_release(e, part[1].request, &error), ASSAY_OK);
  cr_expect_eq(assay_engine_step(e, part, 1, &error), ASSAY_OK, "%s", error.text);
  cr_expect_eq(assay_engine_wait(e, &error), ASSAY_OK);
  assay_engine_close(e);
  assay_model_weights_free(&w);
}

Test(engine, refusals_name_what_is_wrong) {
  static const char *const words[] = {"append=perhaps"}, *const unknown[] = {"gemm=none_such"};
  const assay_model_options form = {.form = words, .forms = 1}, variant = {.variant = unknown, .variants = 1},
                            tail = {.short_tail = 65}, negative = {.short_tail = -1};
  static const char *const decodes[] = {"append=on"}, *const split[] = {"gemm=skinny"};
  const assay_model_options short_too = {.short_tail = 4, .invariant = true},
                            form_too = {.form = decodes, .forms = 1, .invariant = true},
                            variant_too = {.variant = split, .variants = 1, .invariant = true};
  const struct {
    assay_engine_options options;
    const char *says;
  } wrong[] = {{{.device = "simt", .num_blocks = 0, .max_batch = 2, .max_tokens = 32}, "num_blocks: found 0"},
               {{.device = "simt", .num_blocks = 4, .max_batch = 0, .max_tokens = 32}, "max_batch: found 0"},
               {{.device = "simt", .num_blocks = 4, .max_batch = 4, .max_tokens = 3}, "max_tokens: found 3"},
               {{.device = "simt", .num_blocks = 4, .max_batch = 4, .max_tokens = 4, .max_length = 999}, "max_length"},
               {{.device = "none", .num_blocks = 4, .max_batch = 4, .max_tokens = 4}, "found none"},
               {{.device = "simt", .num_blocks = 4, .max_batch = 4, .max_tokens = 4, .model = &form}, "append"},
               {{.device = "simt", .num_blocks = 4, .max_batch = 4, .max_tokens = 4, .model = &variant}, "none_such"},
               {{.device = "simt", .num_blocks = 4, .max_batch = 4, .max_tokens = 4, .model = &tail},
                "short_tail: found 65, allowed 0 to 64"},
               {{.device = "simt", .num_blocks = 4, .max_batch = 4, .max_tokens = 4, .model = &negative},
                "short_tail: found -1, allowed 0 to 64"},
               {{.device = "simt", .num_blocks = 4, .max_batch = 4, .max_tokens = 4, .model = &short_too},
                "short_tail: found 4 beside invariant, allowed 0"},
               {{.device = "simt", .num_blocks = 4, .max_batch = 4, .max_tokens = 4, .model = &form_too},
                "form append: found on beside invariant, allowed off"},
               {{.device = "simt", .num_blocks = 4, .max_batch = 4, .max_tokens = 4, .model = &variant_too},
                "variant: found gemm=skinny beside invariant, allowed variants"}};
  open_model(0);
  for (size_t i = 0; i < sizeof wrong / sizeof *wrong; ++i) {
    assay_engine *e = NULL;
    error.text[0] = '\0';
    cr_expect_neq(assay_engine_open(&c, &w, &wrong[i].options, &e, &error), ASSAY_OK);
    cr_expect_not_null(strstr(error.text, wrong[i].says), "%s", error.text);
    cr_expect_null(e);
  }
  const assay_engine_options options = {.device = "simt", .num_blocks = 4, .max_batch = 2, .max_tokens = 8};
  assay_engine *e = NULL;
  const int32_t prompt[] = {1, 2, 999};
  assay_engine_part part[2] = {{.request = -1, .tokens = 1}, {.request = 0, .tokens = 1}};
  int32_t request = -1;
  cr_assert_eq(assay_engine_open(&c, &w, &options, &e, &error), ASSAY_OK, "%s", error.text);
  error.text[0] = '\0';
  cr_expect_eq(assay_engine_request(e, prompt, 3, NULL, &request, NULL, &error), ASSAY_ERR_INPUT);
  cr_expect_not_null(strstr(error.text, "found id 999 at place 2"), "%s", error.text);
  cr_expect_eq(assay_engine_request(e, prompt, 0, NULL, &request, NULL, &error), ASSAY_ERR_INPUT);
  const assay_engine_sampling cold = {-1, 1, 0, 0, 0, 0};
  cr_expect_eq(assay_engine_request(e, prompt, 2, &cold, &request, NULL, &error), ASSAY_ERR_INPUT);
  cr_assert_eq(assay_engine_request(e, prompt, 2, NULL, &part[0].request, NULL, &error), ASSAY_OK);
  cr_expect_eq(assay_engine_step(e, part, 0, &error), ASSAY_ERR_INPUT);
  part[0].tokens = 3;
  error.text[0] = '\0';
  cr_expect_eq(assay_engine_step(e, part, 1, &error), ASSAY_ERR_INPUT);
  cr_expect_not_null(strstr(error.text, "tokens: found 3, allowed 1 to 2"), "%s", error.text);
  part[0].tokens = 2;
  part[1] = part[0];
  error.text[0] = '\0';
  cr_expect_eq(assay_engine_step(e, part, 2, &error), ASSAY_ERR_INPUT);
  cr_expect_not_null(strstr(error.text, "in part 0 already"), "%s", error.text);
  part[1].request = 1;
  cr_expect_eq(assay_engine_step(e, part, 2, &error), ASSAY_ERR_INPUT);
  cr_expect_eq(assay_engine_step(e, part, 1, &error), ASSAY_OK, "%s", error.text);
  assay_engine_close(e);
  assay_model_weights_free(&w);
}
