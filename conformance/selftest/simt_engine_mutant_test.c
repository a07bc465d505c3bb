/* simt_engine_mutant_test.c: the engine with one planted mistake at a time. Each gives some request other tokens, in
 * every order of lanes that is named with it. The engine's sources are compiled in here, in place of the library's. */
#if defined(ASSAY_HAVE_SIMT)
#include "engine_mistakes.h"

#include "gpu/models/stages.c"
#include "gpu/models/heads.c"
#undef TRY
#include "gpu/models/call.c"
#include "gpu/models/choice.c"
#include "gpu/models/counts.c"
#include "gpu/models/engine.c"
#include "gpu/models/engine_graph.c"
#include "gpu/models/engine_step.c"
#include "gpu/models/engine_tokens.c"
#include "gpu/models/invariant.c"
#include "gpu/models/prefer.c"
#include "gpu/models/tails.c"

#include <criterion/criterion.h>

#include "conformance/builtin.h"
#include "conformance/models/suite.h"
#include "engine_scenario.h"
#include "model_small.h"

#include <math.h>

enum { OWN_LAGS = 1 << ASSAY_LANE_OWN, UP_LAGS = 1 << ASSAY_LANE_UP, DOWN_LAGS = 1 << ASSAY_LANE_DOWN };

static const struct {
  int mistake;
  const char *name;
  uint32_t lag;
  int32_t short_tail;
} mistakes[] = {
    {ENGINE_SLOT_OF_NEIGHBOUR, "a row writes to the first row's slot", 0, 0},
    {ENGINE_STALE_LENGTH, "lengths of an earlier step in a graph", 0, 0},
    {ENGINE_STALE_TABLE, "a block that was cloned stays in the table", 0, 0},
    {ENGINE_PAD_WRITES, "a pad row writes to a live block", 0, 0},
    {ENGINE_UPLOAD_TOO_EARLY, "tables are uploaded while the step before the last reads them", OWN_LAGS | DOWN_LAGS, 0},
    {ENGINE_STEP_TOO_EARLY, "a step begins before its inputs are there", UP_LAGS, 0},
    {ENGINE_PINNED_TOO_EARLY, "pinned memory is filled again before it was read", OWN_LAGS | UP_LAGS | DOWN_LAGS, 0},
    {ENGINE_TOKENS_OVERWRITTEN, "tokens are overwritten before they came down", DOWN_LAGS, 0},
    {ENGINE_ARRANGED_TOO_EARLY, "ids are arranged where tokens have not come down from", DOWN_LAGS, 0},
    {ENGINE_NOT_ARRANGED, "ids stay in the order of the step before", 0, 0},
    {ENGINE_NOT_CARRIED, "the next id of a request that waits is lost", 0, 0},
    {ENGINE_OTHER_HALF, "inputs go to the other half", 0, 0},
    {ENGINE_COPIES_LOST, "a shared block is not copied", 0, 0},
    {ENGINE_STEP_NUMBER_STALE, "every draw is the first", 0, 0},
    {ENGINE_TOKEN_OF_NEIGHBOUR, "tokens come to the neighbour's request", 0, 0},
    {ENGINE_GRAPH_OF_OTHER_HALF, "the other half's graph is replayed", 0, 0},
    {ENGINE_RESIDUAL_AFTER_NORM, "the norm is of the stream before the residual", 0, 0},
    {ENGINE_APPENDED_AGAIN, "keys that are not rotated are written over those that are", 0, 0},
    {ENGINE_NORMED_AGAIN, "heads are normed once more after their rotation", 0, 0},
    {ENGINE_TAIL_SEES_ALL, "the first row of a short tail sees the keys behind it", 0, 40},
    {ENGINE_TAIL_OF_FIRST, "rows of a short tail have the first request's table", 0, 40},
};

static assay_error test_error;
static scenario right, wrong;

Test(engine_mutants, every_mistake_shows) {
  char text[200] = "";
  bool planted[ENGINE_MISTAKES] = {true};
  cr_assert_eq(builtin_register(&test_error), ASSAY_OK, "%s", test_error.text);
  const assay_model_config config = scenario_model(1);
  assay_model_weights weights;
  cr_assert_eq(assay_model_weights_alloc(&config, &weights, &test_error), ASSAY_OK);
  cr_assert_eq(assay_model_seed(&config, 7, &weights, &test_error), ASSAY_OK);
  scenario_alone(&config, &weights, "simt", &right);
  cr_assert_eq(right.status, ASSAY_OK, "%s", right.error.text);
  for (size_t i = 0; i < sizeof mistakes / sizeof *mistakes; ++i) {
    bool clean = false; /* an earlier mistake had the same order of lanes and the same tails */
    for (size_t j = 0; j < i; ++j)
      clean = clean || (mistakes[j].lag == mistakes[i].lag && mistakes[j].short_tail == mistakes[i].short_tail);
    engine_mutant = ENGINE_NO_MISTAKE;
    if (!clean) {
      scenario_run(&config, &weights, "simt", false, mistakes[i].lag, mistakes[i].short_tail, &wrong);
      cr_assert(!scenario_differs(&wrong, &right, text, sizeof text), "%s", text);
    }
    engine_mutant = mistakes[i].mistake;
    scenario_run(&config, &weights, "simt", false, mistakes[i].lag, mistakes[i].short_tail, &wrong);
    cr_expect(scenario_differs(&wrong, &right, text, sizeof text), "not seen: %s", mistakes[i].name);
    planted[mistakes[i].mistake] = true;
  }
  engine_mutant = ENGINE_NO_MISTAKE;
  for (int m = 0; m < ENGINE_LIST_OF_ONE; ++m) /* the later ones give the same tokens */
    cr_expect(planted[m], "mistake %d is not in the list", m);
  assay_model_weights_free(&weights);
}

/* gemma2 has parts that no other family has: each is missed at its own stage. */
Test(engine_mutants, gemma2_is_held_stage_by_stage) {
  static const struct {
    int mistake;
    const char *says;
  } seen[] = {{ENGINE_EMBED_UNSCALED, "embed of embedding is the first stage that departs"},
              {ENGINE_ONE_PLUS_LOST, "layers.0.attn.pre of rms_norm is the first stage that departs"},
              {ENGINE_CUBIC_LOST, "layers.0.mlp.act of geglu is the first stage that departs"},
              {ENGINE_LOGITS_UNCAPPED, "logits of lm_head is the first stage that departs"}};
  cr_assert_eq(builtin_register(&test_error), ASSAY_OK, "%s", test_error.text);
  const model_case mc = {.name = "planted",
                         .model = "small",
                         .config = small_model(9),
                         .seed = 7,
                         .way = WAY_BATCHED,
                         .batch = 4,
                         .steps = 3};
  case_result result;
  engine_mutant = ENGINE_NO_MISTAKE;
  model_judge(&mc, "simt", NULL, NULL, &result);
  cr_expect_eq(result.verdict, VERDICT_PASS, "%s", result.message);
  for (size_t i = 0; i < sizeof seen / sizeof *seen; ++i) {
    engine_mutant = seen[i].mistake;
    model_judge(&mc, "simt", NULL, NULL, &result);
    cr_expect(result.verdict == VERDICT_FAIL && strstr(result.message, seen[i].says) != NULL, "mistake %d: %s: %s",
              seen[i].mistake, result.check, result.message);
  }
  engine_mutant = ENGINE_NO_MISTAKE;
}

/* A model suite's verdict on them: the check, and what the message names. */
Test(engine_mutants, a_model_suite_sees_them) {
  static const struct {
    int mistake;
    model_way way;
    const char *check, *says;
  } seen[] = {
      {ENGINE_SLOT_OF_NEIGHBOUR, WAY_GRAPH, "launch", "a NaN"},
      {ENGINE_STALE_LENGTH, WAY_EAGER, "logits", "request"},
      {ENGINE_STALE_LENGTH, WAY_GRAPH, "logits", "request"},
      {ENGINE_TOKEN_OF_NEIGHBOUR, WAY_EAGER, "choices", "f64 has"},
      {ENGINE_GRAPH_OF_OTHER_HALF, WAY_GRAPH, "graph", "not the bits of its calls"},
      {ENGINE_GRAPH_OF_OTHER_HALF, WAY_LENGTHS, "graph", "prompts of 2, number 0"},
      {ENGINE_APPENDED_AGAIN, WAY_EAGER, "logits", "request"},
      {ENGINE_APPENDED_AGAIN, WAY_PREFILL, "stages", "layers.0.attn.out of kv_append, softmax_attention is the first"},
      {ENGINE_RESIDUAL_AFTER_NORM, WAY_GRAPH, "logits", "request"},
      {ENGINE_RESIDUAL_AFTER_NORM, WAY_PREFILL, "stages", "layers.0.mlp.pre of rms_norm is the first"},
      {ENGINE_OTHER_ACTIVATION, WAY_GRAPH, "logits", "request"},
      {ENGINE_OTHER_ACTIVATION, WAY_PREFILL, "stages", "layers.0.mlp.act of swiglu is the first"},
      {ENGINE_OFFSET_LOST, WAY_GRAPH, "logits", "request"},
      {ENGINE_OFFSET_LOST, WAY_PREFILL, "stages", "layers.0.mlp.pre of uclip_norm is the first"},
      {ENGINE_DIVISION_LOST, WAY_GRAPH, "logits", "request"},
      {ENGINE_DIVISION_LOST, WAY_PREFILL, "stages", "layers.0.mlp.up of gemm is the first"},
      {ENGINE_LOGITS_NOT_GIVEN, WAY_DECODE, "stages", "logits: the device gave 0 of 13 stages"},
      {ENGINE_ONE_COPY, WAY_SHARED, "stages", "layers.0.attn.out of kv_append, softmax_attention is the first"}};
  static model_case asked[sizeof seen / sizeof *seen];
  cr_assert_eq(builtin_register(&test_error), ASSAY_OK, "%s", test_error.text);
  for (size_t i = 0; i < sizeof seen / sizeof *seen; ++i) {
    model_case mc = {.name = "planted",
                     .model = "small",
                     .config = scenario_model(seen[i].mistake == ENGINE_OFFSET_LOST ? 2 : 1),
                     .seed = 7,
                     .way = seen[i].way,
                     .batch = 3,
                     .steps = 12,
                     .judged = 3,
                     .prompt = 20};
    case_result result;
    bool clean = false; /* an earlier mistake had the same case */
    if (seen[i].mistake == ENGINE_OTHER_ACTIVATION) (void)snprintf(mc.form, sizeof mc.form, "gemm_glu=on");
    if (seen[i].mistake == ENGINE_OFFSET_LOST) (void)snprintf(mc.form, sizeof mc.form, "gemm_seam=on");
    if (seen[i].mistake == ENGINE_DIVISION_LOST) (void)snprintf(mc.form, sizeof mc.form, "gemm_norm=on");
    for (size_t j = 0; j < i; ++j)
      clean = clean ||
              (asked[j].way == mc.way && asked[j].config.arch == mc.config.arch && strcmp(asked[j].form, mc.form) == 0);
    asked[i] = mc;
    engine_mutant = ENGINE_NO_MISTAKE;
    if (!clean) {
      model_judge(&mc, "simt", NULL, NULL, &result);
      cr_expect_eq(result.verdict, VERDICT_PASS, "%s", result.message);
    }
    engine_mutant = seen[i].mistake;
    model_judge(&mc, "simt", NULL, NULL, &result);
    cr_expect(result.verdict == VERDICT_FAIL && strcmp(result.check, seen[i].check) == 0 &&
                  strstr(result.message, seen[i].says) != NULL,
              "mistake %d: %s: %s", seen[i].mistake, result.check, result.message);
  }
  engine_mutant = ENGINE_NO_MISTAKE;
}

static model_case day_of_traffic(uint64_t seed) {
  return (model_case){.name = "planted",
                      .model = "small",
                      .config = scenario_model(1),
                      .seed = seed,
                      .way = WAY_TRAFFIC,
                      .batch = 5,
                      .steps = 64,
                      .prompt = 36};
}

/* Drawn traffic shows mistakes that no other way of a suite shows. No other one has forks, pauses, requests that
 * return, draws, or chosen ids beside given ones. One of some days shows each. */
Test(engine_mutants, days_of_traffic_show_them) {
  enum { DAYS = 6 };
  static const struct {
    int mistake;
    const char *check;
  } seen[] = {{ENGINE_COPIES_APART, "launch"},       {ENGINE_ONE_COPY, "launch"},
              {ENGINE_SAMPLING_OF_PART, "choices"},  {ENGINE_GIVEN_IDS_LOST, "logits"},
              {ENGINE_FORK_KEEPS_SAMPLING, "draws"}, {ENGINE_LAST_POSITION_REFUSED, "launch"},
              {ENGINE_STALE_TABLE, "launch"},        {ENGINE_NOT_ARRANGED, "logits"},
              {ENGINE_NOT_CARRIED, "logits"},        {ENGINE_COPIES_LOST, "launch"},
              {ENGINE_STEP_NUMBER_STALE, "draws"},   {ENGINE_TOKEN_OF_NEIGHBOUR, "logits"},
              {ENGINE_SERIAL_FORGOTTEN, "choices"}};
  cr_assert_eq(builtin_register(&test_error), ASSAY_OK, "%s", test_error.text);
  bool clean[DAYS + 1] = {false};
  for (size_t i = 0; i < sizeof seen / sizeof *seen; ++i) {
    case_result result = {.verdict = VERDICT_PASS};
    for (uint64_t day = 1; day <= DAYS && result.verdict == VERDICT_PASS; ++day) {
      const model_case mc = day_of_traffic(day);
      engine_mutant = ENGINE_NO_MISTAKE;
      if (!clean[day]) model_judge(&mc, "simt", NULL, NULL, &result);
      cr_expect_eq(result.verdict, VERDICT_PASS, "day %d: %s", (int)day, result.message);
      clean[day] = true;
      engine_mutant = seen[i].mistake;
      model_judge(&mc, "simt", NULL, NULL, &result);
    }
    cr_expect(result.verdict == VERDICT_FAIL && strcmp(result.check, seen[i].check) == 0, "mistake %d: %s: %s",
              seen[i].mistake, result.check, result.message);
  }
  engine_mutant = ENGINE_NO_MISTAKE;
}

/* A day of drawn traffic compares invariant rows with those of its texts alone. */
Test(engine_mutants, days_of_traffic_show_rows_that_depend_on_company) {
  enum { DAYS = 3 };
  static const int of_invariance[] = {ENGINE_INVARIANT_BY_DECODE, ENGINE_INVARIANT_BY_FORM};
  cr_assert_eq(builtin_register(&test_error), ASSAY_OK, "%s", test_error.text);
  bool clean[DAYS + 1] = {false};
  for (size_t i = 0; i < sizeof of_invariance / sizeof *of_invariance; ++i) {
    case_result result = {.verdict = VERDICT_PASS};
    for (uint64_t day = 1; day <= DAYS && result.verdict == VERDICT_PASS; ++day) {
      model_case mc = day_of_traffic(day);
      mc.invariant = true;
      engine_mutant = ENGINE_NO_MISTAKE;
      if (!clean[day]) model_judge(&mc, "simt", NULL, NULL, &result);
      cr_expect_eq(result.verdict, VERDICT_PASS, "day %d: %s", (int)day, result.message);
      clean[day] = true;
      engine_mutant = of_invariance[i];
      model_judge(&mc, "simt", NULL, NULL, &result);
    }
    cr_expect(result.verdict == VERDICT_FAIL && strcmp(result.check, "invariant") == 0, "mistake %d: %s: %s",
              of_invariance[i], result.check, result.message);
  }
  engine_mutant = ENGINE_NO_MISTAKE;
}

/* An invariant engine takes any variant, lets single tokens attend as decode does, or fuses products of few rows. The
 * suite names the company in which the bits change. */
Test(engine_mutants, a_row_that_depends_on_its_batch_shows) {
  static const struct {
    int mistake;
    const char *says;
  } seen[] = {{ENGINE_INVARIANT_ANY_VARIANT, "has other bits than alone"},
              {ENGINE_INVARIANT_BY_DECODE, "batch of 2, whole, graph: step 1 has other bits than alone"},
              {ENGINE_INVARIANT_BY_FORM, "has other bits than alone"},
              {ENGINE_INVARIANT_BUT_FOR_FIVE, "batch of 7, in chunks of 1, graph"}};
  cr_assert_eq(builtin_register(&test_error), ASSAY_OK, "%s", test_error.text);
  for (size_t i = 0; i < sizeof seen / sizeof *seen; ++i) {
    model_case mc = {.name = "planted",
                     .model = "small",
                     .config = scenario_model(seen[i].mistake == ENGINE_INVARIANT_BUT_FOR_FIVE ? 0 : 1),
                     .seed = 7,
                     .way = WAY_INVARIANT,
                     .batch = 7,
                     .steps = 1,
                     .prompt = 200};
    mc.config.max_pos = 1024;
    case_result result;
    engine_mutant = ENGINE_NO_MISTAKE;
    if (i == 0 || seen[i].mistake == ENGINE_INVARIANT_BUT_FOR_FIVE) { /* the others have the first one's case */
      model_judge(&mc, "simt", NULL, NULL, &result);
      cr_expect_eq(result.verdict, VERDICT_PASS, "%s", result.message);
    }
    engine_mutant = seen[i].mistake;
    model_judge(&mc, "simt", NULL, NULL, &result);
    cr_expect(result.verdict == VERDICT_FAIL && strcmp(result.check, "invariant") == 0 &&
                  strstr(result.message, seen[i].says) != NULL,
              "mistake %d: %s: %s", seen[i].mistake, result.check, result.message);
  }
  engine_mutant = ENGINE_NO_MISTAKE;
}

/* By role: an invariant engine with one launch for generated tokens. A request's company or a day of traffic shows
 * which of its tokens took another way. */
Test(engine_mutants, a_token_that_has_another_role_shows) {
  static const struct {
    int mistake;
    model_way way;
  } seen[] = {{ENGINE_ROLES_FORGOTTEN, WAY_INVARIANT},
              {ENGINE_ONE_IS_GENERATED, WAY_INVARIANT},
              {ENGINE_LOGITS_TURNED, WAY_TRAFFIC},
              {ENGINE_ROLES_SHARE, WAY_TRAFFIC}};
  cr_assert_eq(builtin_register(&test_error), ASSAY_OK, "%s", test_error.text);
  for (size_t i = 0; i < sizeof seen / sizeof *seen; ++i) {
    enum { DAYS = 4 };
    case_result result = {.verdict = VERDICT_PASS};
    for (uint64_t day = 1; day <= DAYS && result.verdict == VERDICT_PASS; ++day) {
      model_case mc = day_of_traffic(day);
      mc.config = small_model(1);
      mc.config.intermediate = 128;
      mc.config.weight_dtype = mc.config.act_dtype = mc.config.kv_dtype = ASSAY_BF16;
      mc.way = seen[i].way;
      mc.invariant = true;
      mc.batch = 4;
      if (mc.way == WAY_INVARIANT) mc.steps = 2;
      (void)snprintf(mc.form, sizeof mc.form, "one_launch=on");
      engine_mutant = ENGINE_NO_MISTAKE;
      if (i % 2 == 0) model_judge(&mc, "simt", NULL, NULL, &result);
      cr_expect_eq(result.verdict, VERDICT_PASS, "day %d: %s", (int)day, result.message);
      engine_mutant = seen[i].mistake;
      model_judge(&mc, "simt", NULL, NULL, &result);
    }
    cr_expect(result.verdict == VERDICT_FAIL, "mistake %d: %s: %s", seen[i].mistake, result.check, result.message);
  }
  engine_mutant = ENGINE_NO_MISTAKE;
}

/* An invariant engine in f32 whose attention follows the number of rows. 65 rows of 64 heads go to query_tile. The
 * last five come one by one, and go to split_keys. */
Test(engine_mutants, attention_by_the_number_of_rows_shows) {
  cr_assert_eq(builtin_register(&test_error), ASSAY_OK, "%s", test_error.text);
  for (int number = 1; number <= 2; ++number) { /* softmax_attention and gate_attention */
    model_case mc = {.name = "planted",
                     .model = "small",
                     .config = scenario_model(number),
                     .seed = 7,
                     .way = WAY_INVARIANT,
                     .batch = 1,
                     .steps = 1,
                     .prompt = 70};
    mc.config.layers = 1;
    mc.config.heads = 64;
    mc.config.head_size = mc.config.rotated = 64;
    mc.config.kv_dtype = ASSAY_F32;
    case_result result;
    engine_mutant = ENGINE_NO_MISTAKE;
    model_judge(&mc, "simt", NULL, NULL, &result);
    cr_expect_eq(result.verdict, VERDICT_PASS, "%s", result.message);
    engine_mutant = ENGINE_INVARIANT_BY_ROWS;
    model_judge(&mc, "simt", NULL, NULL, &result);
    cr_expect(result.verdict == VERDICT_FAIL && strcmp(result.check, "invariant") == 0 &&
                  strstr(result.message, "batch of 1, in chunks of 1, call by call: step 0 has other bits") != NULL,
              "%s: %s", result.check, result.message);
  }
  engine_mutant = ENGINE_NO_MISTAKE;
}

/* An invariant engine in bf16 with a forced product, which sums in another order than gemm_glu/chain. Few rows must not
 * go to the chain. */
Test(engine_mutants, a_chain_beside_a_forced_product_shows) {
  cr_assert_eq(builtin_register(&test_error), ASSAY_OK, "%s", test_error.text);
  for (int planted = 0; planted < 2; ++planted) {
    model_case mc = {.name = "planted",
                     .model = "small",
                     .config = scenario_model(1),
                     .seed = 7,
                     .way = WAY_INVARIANT,
                     .batch = 2,
                     .steps = 1,
                     .prompt = 125}; /* fewer rows than chain takes, with others more */
    model_forced list = {{"gemm=tiles"}, 1, {0}};
    mc.config.max_pos = 512;
    mc.config.intermediate = 512; /* with many sums, the order of some shows in bf16 */
    mc.config.kv_dtype = mc.config.act_dtype = mc.config.weight_dtype = ASSAY_BF16;
    case_result result;
    engine_mutant = planted ? ENGINE_CHAIN_BESIDE_FORCED : ENGINE_NO_MISTAKE;
    model_judge(&mc, "simt", &list, NULL, &result);
    cr_expect_eq(result.verdict, planted ? VERDICT_FAIL : VERDICT_PASS, "%s: %s", result.check, result.message);
    cr_expect(!planted || strcmp(result.check, "invariant") == 0, "%s: %s", result.check, result.message);
  }
  engine_mutant = ENGINE_NO_MISTAKE;
}

/* Forces that are not followed: a decode with a variant for each kind of step has none for one of them; a variant that
 * nothing calls, and a form that no step is for, are let through. */
Test(engine_mutants, forces_that_are_not_followed_show) {
  const char *const never = "gate_attention=split_keys";
  model_case mc = {.name = "planted",
                   .model = "small",
                   .config = scenario_model(1),
                   .seed = 7,
                   .way = WAY_DECODE,
                   .batch = 2,
                   .steps = 2,
                   .judged = 2,
                   .prompt = 8};
  const assay_model_options model = {.variant = &never, .variants = 1};
  const assay_engine_options options = {
      .device = "simt", .num_blocks = 4, .max_batch = 1, .max_tokens = 8, .eager = true, .model = &model};
  assay_model_weights weights;
  cr_assert_eq(builtin_register(&test_error), ASSAY_OK, "%s", test_error.text);
  cr_assert_eq(assay_model_weights_alloc(&mc.config, &weights, &test_error), ASSAY_OK);
  cr_assert_eq(assay_model_seed(&mc.config, 7, &weights, &test_error), ASSAY_OK);
  for (int planted = 0; planted < 2; ++planted) {
    model_forced list = {{"softmax_attention=decode_rows", "softmax_attention=prefill_as_decode"}, 2, {0}};
    case_result result;
    assay_engine *e = NULL;
    engine_mutant = planted ? ENGINE_LIST_OF_ONE : ENGINE_NO_MISTAKE;
    mc.way = WAY_DECODE;
    mc.form[0] = '\0';
    model_judge(&mc, "simt", &list, NULL, &result);
    cr_expect_eq(result.verdict, planted ? VERDICT_UNSUPPORTED : VERDICT_PASS, "%s", result.message);
    cr_expect(list.taken[0] == !planted && list.taken[1] == !planted);
    engine_mutant = planted ? ENGINE_FORCE_FORGOTTEN : ENGINE_NO_MISTAKE;
    mc.way = WAY_PREFILL;
    (void)snprintf(mc.form, sizeof mc.form, "append=on");
    model_judge(&mc, "simt", NULL, NULL, &result);
    cr_expect_eq(result.verdict, planted ? VERDICT_PASS : VERDICT_FAIL, "%s", result.message);
    cr_assert_eq(assay_engine_open(&mc.config, &weights, &options, &e, &test_error), ASSAY_OK, "%s", test_error.text);
    cr_expect_eq(assay_engine_check_forced(e, &test_error), planted ? ASSAY_OK : ASSAY_ERR_INPUT);
    assay_engine_close(e);
  }
  engine_mutant = ENGINE_NO_MISTAKE;
  assay_model_weights_free(&weights);
}

/* ---- what the host waits for ---- */

enum { WATCHED = 6 }; /* fewer than ENGINE_RING: no token need be taken */

/* Runs decode steps of three requests, all lanes as late as they may be. Is there a step in which the host waited for
 * anything except the inputs of the step before the last? */
static bool a_step_waits(const assay_engine_options *options, const assay_model_config *config,
                         const assay_model_weights *weights) {
  const assay_device_flow *flow = assay_device_find("simt")->flow;
  assay_engine *e = NULL;
  assay_engine_part part[3];
  int64_t hit = 0;
  bool waits = false;
  cr_assert_eq(assay_engine_open(config, weights, options, &e, &test_error), ASSAY_OK, "%s", test_error.text);
  for (int i = 0; i < 3; ++i) {
    int32_t prompt[8];
    const assay_engine_sampling sampling = {0, 1, 0, 0, 5, (uint64_t)i};
    assay_model_prompt(config, 11, i, 8, prompt);
    part[i].tokens = 8;
    part[i].forced = NULL;
    cr_assert_eq(assay_engine_request(e, prompt, 8, &sampling, &part[i].request, &hit, &test_error), ASSAY_OK);
  }
  cr_assert_eq(assay_engine_step(e, part, 3, &test_error), ASSAY_OK, "%s", test_error.text);
  for (int i = 0; i < 3; ++i)
    part[i].tokens = 1;
  for (int step = 0; step < 4; ++step) /* makes everything that is made once */
    cr_assert_eq(assay_engine_step(e, part, 3, &test_error), ASSAY_OK, "%s", test_error.text);
  cr_assert_eq(assay_engine_wait(e, &test_error), ASSAY_OK);
  flow->lag(OWN_LAGS | UP_LAGS | DOWN_LAGS);
  for (int step = 0; step < WATCHED; ++step) {
    assay_device_waits before, after;
    flow->waits(&before);
    cr_assert_eq(assay_engine_step(e, part, 3, &test_error), ASSAY_OK, "%s", test_error.text);
    flow->waits(&after);
    waits = waits || after.synchronized != before.synchronized || after.copied != before.copied ||
            after.allocated != before.allocated || after.marks - before.marks > (step >= 2);
  }
  assay_engine_close(e);
  flow->lag(0);
  return waits;
}

Test(engine_mutants, a_decode_step_waits_for_nothing) {
  static const int waiting[] = {ENGINE_WAITS_FOR_DEVICE, ENGINE_WAITS_FOR_TOKENS, ENGINE_READS_BACK};
  assay_engine_options options = {
      .device = "simt", .num_blocks = 64, .max_batch = 4, .max_tokens = 64, .max_length = 120};
  const assay_model_config config = scenario_model(1);
  assay_model_weights weights;
  cr_assert_eq(builtin_register(&test_error), ASSAY_OK, "%s", test_error.text);
  cr_assert_eq(assay_model_weights_alloc(&config, &weights, &test_error), ASSAY_OK);
  cr_assert_eq(assay_model_seed(&config, 7, &weights, &test_error), ASSAY_OK);
  for (int eager = 0; eager < 2; ++eager) {
    options.eager = eager != 0;
    engine_mutant = ENGINE_NO_MISTAKE;
    cr_expect(!a_step_waits(&options, &config, &weights), "eager %d", eager);
    for (size_t i = 0; i < sizeof waiting / sizeof *waiting; ++i) {
      engine_mutant = waiting[i];
      cr_expect(a_step_waits(&options, &config, &weights), "eager %d: not seen: mistake %d", eager, waiting[i]);
    }
  }
  engine_mutant = ENGINE_NO_MISTAKE;
  assay_model_weights_free(&weights);
}

/* Counts the paths of a variant, in *all, and those that read early what is settled. */
static int paths_early(const assay_model_config *config, const assay_model_weights *weights, const char *op,
                       const char *variant, const char *early_word, int *all) {
  const assay_engine_options options = {
      .device = "simt", .num_blocks = 64, .max_batch = 4, .max_tokens = 64, .max_length = 120, .eager = true};
  const assay_engine_sampling sampling = {0, 1, 0, 0, 5, 1};
  assay_engine *e = NULL;
  assay_engine_part part = {.tokens = 8};
  assay_model_path path;
  int32_t prompt[8];
  int64_t hit = 0;
  int early = 0;
  *all = 0;
  assay_model_prompt(config, 11, 1, 8, prompt);
  cr_assert_eq(assay_engine_open(config, weights, &options, &e, &test_error), ASSAY_OK, "%s", test_error.text);
  cr_assert_eq(assay_engine_request(e, prompt, 8, &sampling, &part.request, &hit, &test_error), ASSAY_OK);
  for (int step = 0; step < 2; ++step) { /* the prompt, and a decode */
    cr_assert_eq(assay_engine_step(e, &part, 1, &test_error), ASSAY_OK, "%s", test_error.text);
    part.tokens = 1;
  }
  for (int32_t i = 0; assay_engine_path(e, i, &path); ++i) {
    if (strcmp(path.op, op) != 0 || strcmp(path.variant, variant) != 0) continue;
    ++*all;
    early += strstr(path.path, early_word) != NULL;
  }
  assay_engine_close(e);
  return early;
}

Test(engine_mutants, kernels_read_early_what_is_settled) {
  static const struct {
    const char *op, *variant, *early;
  } reads[] = {{"gemm", "skinny", " early"},
               {"norm_rope_append", "vectors", " early weights"},
               {"add_rms_norm", "vectors", " early"},
               {"softmax_attention", "stream", " settled"}};
  assay_model_config config = scenario_model(1);
  assay_model_weights weights;
  int all = 0;
  config.hidden = 256; /* a block per row of the norms */
  config.heads = config.kv_heads = 1;
  config.head_size = config.rotated = 64;
  config.block_size = 16;
  config.weight_dtype = config.act_dtype = config.kv_dtype = ASSAY_BF16;
  cr_assert_eq(builtin_register(&test_error), ASSAY_OK, "%s", test_error.text);
  cr_assert_eq(assay_model_weights_alloc(&config, &weights, &test_error), ASSAY_OK);
  cr_assert_eq(assay_model_seed(&config, 7, &weights, &test_error), ASSAY_OK);
  for (size_t i = 0; i < sizeof reads / sizeof *reads; ++i) {
    engine_mutant = ENGINE_NO_MISTAKE;
    cr_expect_eq(paths_early(&config, &weights, reads[i].op, reads[i].variant, reads[i].early, &all), all);
    cr_expect_gt(all, 0, "%s", reads[i].op);
    engine_mutant = ENGINE_SETTLED_LOST;
    cr_expect_eq(paths_early(&config, &weights, reads[i].op, reads[i].variant, reads[i].early, &all), 0);
    cr_expect_gt(all, 0, "%s", reads[i].op);
  }
  engine_mutant = ENGINE_NO_MISTAKE;
  assay_model_weights_free(&weights);
}

/* ---- lengths that differ ---- */

enum { LONG_PROMPT = 1030, SHORT_PROMPT = 12, RAGGED_STEPS = 3 };

/* Decodes beside each other three prompts of these lengths. Returns the calls in even shares, and the logits of the
 * last step. */
static int64_t calls_of_ragged(const assay_model_config *config, const assay_model_weights *weights, bool eager,
                               const char *form, const int32_t lengths[3], double *logits) {
  const assay_model_options model = {.form = &form, .forms = form != NULL};
  const assay_engine_options options = {.device = "simt",
                                        .num_blocks = 160,
                                        .max_batch = 3,
                                        .max_tokens = LONG_PROMPT + 2 * SHORT_PROMPT,
                                        .max_length = LONG_PROMPT + 16,
                                        .eager = eager,
                                        .model = &model};
  assay_engine *e = NULL;
  assay_engine_part part[3] = {{.tokens = lengths[0]}, {.tokens = lengths[1]}, {.tokens = lengths[2]}};
  static int32_t prompt[LONG_PROMPT];
  int64_t hit = 0, calls = 0;
  assay_model_path path;
  cr_assert_eq(assay_engine_open(config, weights, &options, &e, &test_error), ASSAY_OK, "%s", test_error.text);
  for (int i = 0; i < 3; ++i) {
    assay_model_prompt(config, 11, i, lengths[i], prompt);
    cr_assert_eq(assay_engine_request(e, prompt, lengths[i], NULL, &part[i].request, &hit, &test_error), ASSAY_OK);
  }
  for (int step = 0; step <= RAGGED_STEPS; ++step) {
    cr_assert_eq(assay_engine_step(e, part, 3, &test_error), ASSAY_OK, "%s", test_error.text);
    part[0].tokens = part[1].tokens = part[2].tokens = 1;
  }
  cr_assert_eq(assay_engine_wait(e, &test_error), ASSAY_OK, "%s", test_error.text);
  cr_assert_eq(assay_engine_logits(e, 3, logits, &test_error), ASSAY_OK, "%s", test_error.text);
  for (int32_t i = 0; assay_engine_path(e, i, &path); ++i)
    if (strcmp(path.variant, "stream_k") == 0) calls += path.calls;
  assay_engine_close(e);
  return calls;
}

Test(engine_mutants, lengths_that_differ_attend_in_even_shares) {
  static const int32_t ragged[3] = {SHORT_PROMPT, LONG_PROMPT, SHORT_PROMPT};
  static const int32_t even[3] = {SHORT_PROMPT, SHORT_PROMPT, SHORT_PROMPT};
  assay_model_config config = scenario_model(1);
  assay_model_weights weights;
  config.layers = 1;
  config.heads = config.kv_heads = 1;
  config.head_size = config.rotated = 64;
  config.max_pos = 2048;
  config.block_size = 16;
  config.weight_dtype = config.act_dtype = config.kv_dtype = ASSAY_BF16;
  cr_assert_eq(builtin_register(&test_error), ASSAY_OK, "%s", test_error.text);
  cr_assert_eq(assay_model_weights_alloc(&config, &weights, &test_error), ASSAY_OK);
  cr_assert_eq(assay_model_seed(&config, 7, &weights, &test_error), ASSAY_OK);
  const size_t count = 3 * (size_t)config.vocab;
  double *graph = calloc(count, sizeof *graph), *calls = calloc(count, sizeof *calls);
  cr_assert(graph != NULL && calls != NULL);
  engine_mutant = ENGINE_NO_MISTAKE;
  cr_expect_eq(calls_of_ragged(&config, &weights, false, NULL, ragged, graph), RAGGED_STEPS);
  cr_expect_eq(calls_of_ragged(&config, &weights, true, NULL, ragged, calls), RAGGED_STEPS);
  cr_expect_eq(memcmp(graph, calls, count * sizeof *graph), 0, "a graph has other bits than its calls");
  cr_expect_eq(calls_of_ragged(&config, &weights, false, "even_shares=off", ragged, calls), 0);
  for (size_t i = 0; i < count; ++i)
    cr_expect(fabs(graph[i] - calls[i]) <= 0.05, "logit %zu: %g and %g", i, graph[i], calls[i]);
  cr_expect_eq(calls_of_ragged(&config, &weights, false, NULL, even, graph), 0);
  cr_expect_eq(calls_of_ragged(&config, &weights, false, "even_shares=on", even, graph), RAGGED_STEPS);
  engine_mutant = ENGINE_NEVER_EVEN;
  cr_expect_eq(calls_of_ragged(&config, &weights, false, NULL, ragged, graph), 0);
  engine_mutant = ENGINE_GRAPH_OF_OTHER_HALF;
  (void)calls_of_ragged(&config, &weights, false, NULL, ragged, graph);
  (void)calls_of_ragged(&config, &weights, true, NULL, ragged, calls);
  cr_expect_neq(memcmp(graph, calls, count * sizeof *graph), 0, "not seen: the other half's graph in even shares");
  engine_mutant = ENGINE_NO_MISTAKE;
  free(graph);
  free(calls);
  assay_model_weights_free(&weights);
}

/* ---- greedy steps ---- */

enum { GREEDY_ROWS = 3, GREEDY_STEPS = 6 };

typedef struct greedy_day {
  int32_t id[GREEDY_ROWS][GREEDY_STEPS + 1];
  int64_t by_argmax, by_sampler; /* calls */
  double *logits;                /* [GREEDY_ROWS, V] of the last step */
} greedy_day;

/* Decodes three requests beside each other. With `draws` the second one draws its tokens. */
static void decode_greedily(const assay_model_config *config, const assay_model_weights *weights, bool eager,
                            const char *form, bool draws, greedy_day *day) {
  const assay_model_options model = {.form = &form, .forms = form != NULL};
  const assay_engine_options options = {.device = "simt",
                                        .num_blocks = 24,
                                        .max_batch = GREEDY_ROWS,
                                        .max_tokens = 24,
                                        .max_length = 24,
                                        .eager = eager,
                                        .model = &model};
  const assay_engine_sampling drawn = {.temperature = 3, .top_p = 1, .seed = 5, .id = 9};
  assay_engine *e = NULL;
  assay_engine_part part[GREEDY_ROWS] = {{.tokens = 8}, {.tokens = 8}, {.tokens = 8}};
  assay_model_path path;
  int64_t hit = 0;
  day->by_argmax = day->by_sampler = 0;
  cr_assert_eq(assay_engine_open(config, weights, &options, &e, &test_error), ASSAY_OK, "%s", test_error.text);
  for (int i = 0; i < GREEDY_ROWS; ++i) {
    int32_t prompt[8];
    assay_model_prompt(config, 11, i, 8, prompt);
    cr_assert_eq(
        assay_engine_request(e, prompt, 8, draws && i == 1 ? &drawn : NULL, &part[i].request, &hit, &test_error),
        ASSAY_OK);
  }
  for (int step = 0; step <= GREEDY_STEPS; ++step) {
    cr_assert_eq(assay_engine_step(e, part, GREEDY_ROWS, &test_error), ASSAY_OK, "%s", test_error.text);
    part[0].tokens = part[1].tokens = part[2].tokens = 1;
  }
  cr_assert_eq(assay_engine_wait(e, &test_error), ASSAY_OK, "%s", test_error.text);
  for (int32_t i = 0; assay_engine_path(e, i, &path); ++i) {
    if (strcmp(path.op, "lm_head_argmax") == 0) day->by_argmax += path.calls;
    if (strcmp(path.op, "sampler") == 0) day->by_sampler += path.calls;
  }
  for (int i = 0; i < GREEDY_ROWS; ++i) {
    const int32_t *id = NULL;
    int64_t count = 0;
    cr_assert_eq(assay_engine_tokens(e, part[i].request, &id, &count, &test_error), ASSAY_OK, "%s", test_error.text);
    cr_assert_eq(count, GREEDY_STEPS + 1);
    memcpy(day->id[i], id, sizeof day->id[i]);
  }
  cr_assert_eq(assay_engine_logits(e, GREEDY_ROWS, day->logits, &test_error), ASSAY_OK, "%s", test_error.text);
  assay_engine_close(e);
}

Test(engine_mutants, greedy_steps_write_no_logits) {
  cr_assert_eq(builtin_register(&test_error), ASSAY_OK, "%s", test_error.text);
  for (int bf16 = 0; bf16 < 2; ++bf16) {
    assay_model_config config = scenario_model(1);
    assay_model_weights weights;
    if (bf16) config.weight_dtype = config.act_dtype = config.kv_dtype = ASSAY_BF16;
    cr_assert_eq(assay_model_weights_alloc(&config, &weights, &test_error), ASSAY_OK);
    cr_assert_eq(assay_model_seed(&config, 7, &weights, &test_error), ASSAY_OK);
    const size_t count = GREEDY_ROWS * (size_t)config.vocab;
    greedy_day two = {.logits = calloc(count, sizeof(double))}, one = {.logits = calloc(count, sizeof(double))};
    cr_assert(two.logits != NULL && one.logits != NULL);
    const char *const form = bf16 ? NULL : "lm_head_argmax=on"; /* auto takes wgmma alone */
    engine_mutant = ENGINE_NO_MISTAKE;
    for (int eager = 0; eager < 2; ++eager) {
      decode_greedily(&config, &weights, eager != 0, "lm_head_argmax=off", false, &two);
      decode_greedily(&config, &weights, eager != 0, form, false, &one);
      cr_expect_eq(two.by_argmax, 0);
      cr_expect_eq(two.by_sampler, GREEDY_STEPS + 1);
      cr_expect_eq(one.by_argmax, GREEDY_STEPS + 1);
      cr_expect_eq(one.by_sampler, 0);
      cr_expect_eq(memcmp(two.id, one.id, sizeof two.id), 0, "bf16 %d, eager %d: other tokens", bf16, eager);
      cr_expect_eq(memcmp(two.logits, one.logits, count * sizeof(double)), 0, "bf16 %d, eager %d: other logits", bf16,
                   eager);
    }
    decode_greedily(&config, &weights, false, "lm_head_argmax=off", true, &two);
    decode_greedily(&config, &weights, false, form, true, &one);
    cr_expect_eq(one.by_argmax, 0);
    cr_expect_eq(memcmp(two.id, one.id, sizeof two.id), 0, "bf16 %d: other tokens beside a drawn one", bf16);
    engine_mutant = ENGINE_ALWAYS_GREEDY;
    decode_greedily(&config, &weights, false, form, true, &one);
    cr_expect_neq(memcmp(two.id, one.id, sizeof two.id), 0, "not seen: a request that draws has greedy tokens");
    engine_mutant = ENGINE_NO_MISTAKE;
    decode_greedily(&config, &weights, false, form, false, &two);
    engine_mutant = ENGINE_GREEDY_STAYS;
    decode_greedily(&config, &weights, false, form, false, &one);
    cr_expect_neq(memcmp(two.id, one.id, sizeof two.id), 0, "not seen: greedy tokens in the other half's ids");
    engine_mutant = ENGINE_LOGITS_OLD;
    decode_greedily(&config, &weights, false, form, false, &one);
    cr_expect_neq(memcmp(two.logits, one.logits, count * sizeof(double)), 0, "not seen: logits of an earlier step");
    engine_mutant = ENGINE_NO_MISTAKE;
    free(two.logits);
    free(one.logits);
    assay_model_weights_free(&weights);
  }
}

/* Long prompts of eight heads per group prefer packed_wgmma; whatever else differs, none is preferred. */
Test(engine_mutants, long_prompts_of_many_heads_prefer_packed) {
  static const struct {
    int64_t heads, head_size, rows, requests;
    double window;
    bool decode, invariant, wanted;
  } asked[] = {
      {64, 64, 8192, 4, 0, false, false, true},    {64, 64, 8191, 4, 0, false, false, false},
      {56, 64, 8192, 4, 0, false, false, false},   {64, 128, 8192, 4, 0, false, false, false},
      {64, 64, 8192, 4, 128, false, false, false}, {64, 64, 8192, 1, 0, true, false, false},
      {64, 64, 8192, 4, 0, false, true, false},
  };
  cr_assert_eq(builtin_register(&test_error), ASSAY_OK, "%s", test_error.text);
  const assay_op *op = assay_op_find("softmax_attention");
  cr_assert(op != NULL);
  for (size_t i = 0; i < sizeof asked / sizeof *asked; ++i) {
    static pass m;
    double value[ASSAY_MAX_PARAMS] = {0};
    const assay_call call = {.op = op, .param = value};
    int64_t preferred = 0;
    memset(&m, 0, sizeof m);
    m.config.heads = asked[i].heads;
    m.config.kv_heads = 8;
    m.config.head_size = asked[i].head_size;
    m.x.shape[0] = asked[i].rows;
    m.cu_q.shape[0] = asked[i].requests + 1;
    m.decode = asked[i].decode;
    m.invariant = asked[i].invariant;
    for (int32_t p = 0; p < op->param_count; ++p)
      if (strcmp(op->params[p].name, "window") == 0) value[p] = asked[i].window;
    for (int32_t v = 0; v < assay_variant_count(); ++v) {
      const assay_variant *variant = assay_variant_at(v);
      if (strcmp(variant->op, op->name) != 0 || strcmp(variant->device, "simt") != 0) continue;
      const bool prefers = pass_prefers(&m, &call, variant);
      cr_expect(!prefers || strncmp(variant->name, "packed_wgmma", 12) == 0, "row %zu: %s", i, variant->name);
      preferred += prefers;
    }
    cr_expect_eq(preferred > 0, asked[i].wanted, "row %zu", i);
  }
}
/* Products of nearly 128 rows prefer wgmma where sums are short. */
Test(engine_mutants, products_of_some_rows_prefer_wgmma) {
  static const struct {
    const char *op;
    int64_t rows, channels, terms;
    bool invariant, wanted;
  } asked[] = {
      {"gemm", 128, 4096, 3072, false, true},  {"gemm", 120, 1024, 1024, false, true},
      {"gemm", 119, 1024, 1024, false, false}, {"gemm", 129, 1024, 1024, false, false},
      {"gemm", 128, 4104, 1024, false, false}, {"gemm", 128, 1024, 3080, false, false},
      {"gemm", 128, 1024, 1024, true, false},  {"gemm_post_pre_uclip", 128, 1024, 1024, false, false},
  };
  cr_assert_eq(builtin_register(&test_error), ASSAY_OK, "%s", test_error.text);
  for (size_t i = 0; i < sizeof asked / sizeof *asked; ++i) {
    static pass m;
    double value[ASSAY_MAX_PARAMS] = {0};
    assay_tensor arg[ASSAY_MAX_ARGS] = {{0}};
    const assay_call call = {.op = assay_op_find(asked[i].op), .arg = arg, .param = value};
    cr_assert(call.op != NULL);
    arg[0].shape[0] = asked[i].rows;
    arg[0].shape[1] = arg[1].shape[1] = asked[i].terms;
    arg[1].shape[0] = asked[i].channels;
    memset(&m, 0, sizeof m);
    m.invariant = asked[i].invariant;
    int64_t preferred = 0;
    for (int32_t v = 0; v < assay_variant_count(); ++v) {
      const assay_variant *variant = assay_variant_at(v);
      if (strcmp(variant->op, asked[i].op) != 0 || strcmp(variant->device, "simt") != 0) continue;
      const bool prefers = pass_prefers(&m, &call, variant);
      cr_expect(!prefers || strcmp(variant->name, "wgmma") == 0, "row %zu: %s", i, variant->name);
      preferred += prefers;
    }
    cr_expect_eq(preferred > 0, asked[i].wanted, "row %zu", i);
  }
}
#endif
