/* simt_expert_mutant_test.c: a device's sparse layers with a mistake planted, one at a time. The judge of models finds
 * each of them, and names the stage. A copy of gpu/models/experts.c, which plant.sh makes by expert_mistakes.def, is
 * compiled in here, in place of the library's. */
#include "expert_mistakes.h"

#include "planted/gpu/models/experts.c"

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

TestSuite(expert_mutants, .init = setup, .timeout = 200);

/* Model 6 is bf16 and 7 is f32; both begin with a sparse layer. Model 5 has a table of llama3, 8 is gpt_oss,
 * and 9 is gemma2. */
static model_case small(int number, model_way way) {
  return (model_case){.name = "planted",
                      .model = "small",
                      .config = small_model(number),
                      .seed = 7,
                      .way = way,
                      .batch = 6,
                      .steps = 3};
}

Test(expert_mutants, are_found_and_named) {
  static const struct {
    int mistake;
    const char *check, *says;
  } mistakes[] = {
      {EXPERT_OTHER_SCALE, "stages", "layers.0.router.weights of moe_router is the first stage that departs"},
      {EXPERT_LOGIT_OF_NEXT, "routes", "layers.0.router.ids: row 0, choice 0: found expert"},
      {EXPERT_WEIGHTS_OF_NEXT, "stages", "layers.0.experts.up of gemm is the first stage that departs"},
      {EXPERT_ROWS_OF_NEXT, "stages", "layers.0.experts.up of gemm is the first stage that departs"},
      {EXPERT_NOT_WEIGHTED, "stages", "layers.0.moe.out of moe_combine is the first stage that departs"},
      {EXPERT_ONE_TOO_FEW, "stages", "layers.0.experts.up of gemm is the first stage that departs"}};
  const model_way ways[] = {WAY_PREFILL, WAY_BATCHED};
  case_result result;
  for (int number = 6; number <= 7; ++number)
    for (size_t w = 0; w < sizeof ways / sizeof *ways; ++w) {
      const model_case mc = small(number, ways[w]);
      expert_mistake = EXPERT_NO_MISTAKE;
      model_judge(&mc, "simt", NULL, NULL, &result);
      cr_expect_eq(result.verdict, VERDICT_PASS, "model %d, %s: %s", number, model_way_name(ways[w]), result.message);
      for (size_t i = 0; i < sizeof mistakes / sizeof *mistakes; ++i) {
        expert_mistake = mistakes[i].mistake;
        model_judge(&mc, "simt", NULL, NULL, &result);
        cr_expect(result.verdict == VERDICT_FAIL && strcmp(result.check, mistakes[i].check) == 0 &&
                      strstr(result.message, mistakes[i].says) != NULL,
                  "model %d, %s, mistake %d: %s: %s", number, model_way_name(ways[w]), mistakes[i].mistake,
                  result.check, result.message);
      }
    }
}

/* The products of all experts in one call. */
Test(expert_mutants, one_call_for_all_experts) {
  case_result result;
  for (int number = 6; number <= 8; ++number)
    for (int planted = 0; planted < 2; ++planted) {
      model_case mc = small(number, WAY_BATCHED);
      (void)snprintf(mc.form, sizeof mc.form, "grouped_gemm=on");
      expert_mistake = planted ? EXPERT_NOT_SORTED : EXPERT_NO_MISTAKE;
      model_judge(&mc, "simt", NULL, NULL, &result);
      cr_expect_eq(result.verdict, planted ? VERDICT_FAIL : VERDICT_PASS, "model %d: %s", number, result.message);
      cr_expect(!planted || strstr(result.message, "experts.up of gemm is the first stage that departs"),
                "model %d: %s", number, result.message);
    }
}

/* Constants of the configuration that a device has otherwise. */
Test(expert_mutants, wrong_constants_are_found_and_named) {
  case_result result;
  expert_mistake = EXPERT_NO_MISTAKE;
  for (int fault = 0; fault < 11; ++fault) {
    const model_case mc = small(fault < 2 ? 5 : fault < 3 ? 6 : fault < 7 ? 8 : 9, WAY_BATCHED);
    assay_model_config wrong = mc.config;
    const char *says = "layers.0.attn.q of rope is the first stage that departs";
    if (fault == 0) wrong.rope_kind = ASSAY_ROPE_PLAIN;
    if (fault == 1) wrong.rope_low = 2;
    if (fault == 2) {
      wrong.experts_used = 1;
      says = "layers.0.router";
    }
    if (fault == 3) wrong.rope_concentration = 1;
    if (fault == 4 || fault == 5) {
      if (fault == 4) wrong.window = 9;
      if (fault == 5) wrong.windowed = (assay_model_layers){{2}}; /* layer 1 */
      says = "layers.0.attn.out of kv_append, softmax_attention is the first stage that departs";
    }
    if (fault == 6) {
      wrong.act_limit = 7;
      says = "layers.0.experts.act of swiglu is the first stage that departs";
    }
    if (fault == 7) wrong.score_cap = 0;
    if (fault == 8) wrong.score_scale = 0;
    if (fault == 9) wrong.window = 9;
    if (fault == 10) wrong.logit_cap = 4;
    if (fault >= 7)
      says = fault < 10 ? "layers.0.attn.out of kv_append, softmax_attention is the first" : "logits of lm_head";
    model_judge(&mc, "simt", NULL, &wrong, &result);
    cr_expect(result.verdict == VERDICT_FAIL && strstr(result.message, says) != NULL, "fault %d: %s", fault,
              result.message);
  }
}
