/* simt_delta_mutant_test.c: a device's layers with the gated delta rule, their states, and gated attention, with a
 * mistake planted, one at a time. The judge of models finds each of them, and names the stage. A copy of
 * gpu/models/delta.c, which plant.sh makes by delta_mistakes.def, is compiled in here, in place of the library's. */
#include "delta_mistakes.h"

#include "planted/gpu/models/delta.c"

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "conformance/builtin.h"
#include "conformance/models/suite.h"
#include "model_small.h"

static assay_error error;

static void setup(void) {
  cr_assert_eq(builtin_register(&error), ASSAY_OK, "%s", error.text);
}

TestSuite(delta_mutants, .init = setup, .timeout = 200);

/* Layers 0 and 2 of model 12 have the rule, in bf16; in model 13 layers 0 and 1 have it, in f32. */
static model_case small(int number, model_way way) {
  return (model_case){.name = "planted",
                      .model = "small",
                      .config = small_model(number),
                      .seed = 7,
                      .way = way,
                      .batch = 6,
                      .steps = 3,
                      .judged = 6,
                      .prompt = 12};
}

Test(delta_mutants, unchanged_layers_pass) {
  static const model_way ways[] = {WAY_PREFILL, WAY_DECODE, WAY_CHUNKED, WAY_BATCHED, WAY_SHARED, WAY_EAGER, WAY_GRAPH};
  case_result result;
  for (int number = 12; number <= 13; ++number)
    for (size_t w = 0; w < sizeof ways / sizeof *ways; ++w) {
      const model_case mc = small(number, ways[w]);
      model_judge(&mc, "simt", NULL, NULL, &result);
      cr_expect_eq(result.verdict, VERDICT_PASS, "model %d, %s: %s", number, model_way_name(ways[w]), result.message);
    }
}

/* The first step of a shared prefix is right. Stages with few values are one stage over all steps, and thus come first.
 */
Test(delta_mutants, are_found_and_named) {
  static const struct {
    int mistake;
    model_way way;
    const char *says;
  } mistakes[] = {{DELTA_STATES_OF_ONE_LAYER, WAY_CHUNKED, ""},
                  {DELTA_GATES_EXCHANGED, WAY_BATCHED, "layers.0.delta.g of delta_gates"},
                  {DELTA_Z_IS_V, WAY_BATCHED, "layers.0.delta.norm of rms_norm"},
                  {DELTA_Q_AND_K_EXCHANGED, WAY_BATCHED, "layers.0.delta.out of gated_delta_rule"},
                  {DELTA_ONE_MEAN, WAY_BATCHED, "layers.0.delta.norm of rms_norm"},
                  {DELTA_GATE_IS_SILU, WAY_BATCHED, ".attn.gated of swiglu"},
                  {DELTA_TILES_OF_LAYER_0, WAY_BATCHED, ".delta.norm of rms_norm"},
                  {DELTA_TURNS_EXCHANGED, WAY_BATCHED, ".attn.gated of swiglu"},
                  {DELTA_MATRICES_STAY, WAY_SHARED, "is the first stage that departs"},
                  {DELTA_ROWS_STAY, WAY_SHARED, "is the first stage that departs"},
                  {DELTA_HALF_OF_THE_LAYERS, WAY_SHARED, "is the first stage that departs"}};
  case_result result;
  for (int number = 12; number <= 13; ++number)
    for (size_t i = 0; i < sizeof mistakes / sizeof *mistakes; ++i) {
      const model_case mc = small(number, mistakes[i].way);
      delta_mistake = mistakes[i].mistake;
      model_judge(&mc, "simt", NULL, NULL, &result);
      cr_expect(result.verdict == VERDICT_FAIL && strcmp(result.check, "stages") == 0 &&
                    strstr(result.message, mistakes[i].says) != NULL,
                "model %d, mistake %d: %s: %s", number, mistakes[i].mistake, result.check, result.message);
    }
}

/* A step may have no rows and copy states alone. Two requests then go on from one place. */
Test(delta_mutants, a_step_may_only_copy_states) {
  static const int32_t cu[] = {0, 1, 2}, ids[] = {5, 9, 9}, lengths[] = {1, 2, 2}, number[] = {0, 1};
  static const int64_t slots[] = {0, 1, 9};
  static double logits[2][300];
  const assay_model_limits limits = {2, 2, 2, 2, 2};
  assay_model_config c = small_model(13);
  c.linear = (assay_model_layers){{7}}; /* all layers: nothing is read from blocks */
  assay_model_batch first = {.requests = 1, .cu_q = cu, .ids = ids, .kv_len = lengths, .slots = slots};
  assay_model_batch both = {.requests = 2, .cu_q = cu, .ids = ids + 1, .kv_len = lengths + 1, .slots = slots + 1};
  const assay_model_batch copy = {.cu_q = cu, .state_copies = number, .state_copy_count = 1, .max_blocks = 1};
  assay_model_weights w;
  assay_model_session *s = NULL;
  first.block_table = both.block_table = first.states = both.states = both.logit_rows = number;
  first.max_blocks = both.max_blocks = 1;
  both.logit_count = 2;
  cr_assert_eq(c.vocab, 300);
  cr_assert_eq(assay_model_weights_alloc(&c, &w, &error), ASSAY_OK);
  cr_assert_eq(assay_model_seed(&c, 7, &w, &error), ASSAY_OK);
  cr_assert_eq(assay_model_simt()->open(&c, &w, &limits, ASSAY_MODEL_MIRROR, &s, &error), ASSAY_OK, "%s", error.text);
  cr_assert_eq(assay_model_simt()->forward(s, &first, logits[0], NULL, &error), ASSAY_OK, "%s", error.text);
  cr_assert_eq(assay_model_simt()->forward(s, &copy, logits[0], NULL, &error), ASSAY_OK, "%s", error.text);
  cr_assert_eq(assay_model_simt()->forward(s, &both, logits[0], NULL, &error), ASSAY_OK, "%s", error.text);
  cr_expect(logits[0][0] - logits[0][0] == 0);
  cr_expect_eq(memcmp(logits[0], logits[1], sizeof logits[0]), 0);
  assay_model_simt()->close(s);
  assay_model_weights_free(&w);
}
