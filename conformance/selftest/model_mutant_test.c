/* model_mutant_test.c: the reference's forward passes with a mistake planted, one at a time. The recorded results of
 * the transformers library show each of them, where they are at hand (docs/truth.md, "hf"). A seeded small model shows
 * it too: its logits leave those of the clean pass by much more than model_naive_test allows.
 *
 * Copies of the sources, which plant.sh makes by model_mistakes.def, are compiled in here, in place of the library's.
 */
#include "model_mistakes.h"

#include "planted/ref/models/deepseek_v3.c"
#include "planted/ref/models/delta.c"
#include "planted/ref/models/experts.c"
#include "planted/ref/models/gemma2.c"
#include "planted/ref/models/gpt_oss.c"
#include "planted/ref/models/heads.c"
#include "planted/ref/models/latent.c"
#include "planted/ref/models/qwen3_next.c"
#include "planted/ref/models/rows.c"
#include "planted/ref/models/session.c"
#include "planted/ref/models/stages.c"

#include "planted/ref/models/linear.c" /* the last one: it brings in the macro I */
#undef I

#include <criterion/criterion.h>
#include <unistd.h>

#include "conformance/truth/truth.h"
#include "files_fixture.h"
#include "model_driver.h"
#include "model_small.h"

enum { N = 40, LLAMA = 5, MOE = 6, OSS = 8, GEMMA = 9, LATENT = 10, NEXT = 12 };

/* The first stage that departs in the recorded results; for the model of this number. */
static const struct {
  int mistake, model;
  const char *stage;
} mistakes[] = {
    {MODEL_WEIGHTS_EXCHANGED, MOE, "layers.1.router.weights"},
    {MODEL_WEIGHTS_EXCHANGED, OSS, "layers.0.router.weights"},
    {MODEL_NOT_RENORMALISED, MOE, "layers.1.router.weights"},
    {MODEL_OVER_ALL_LOGITS, OSS, "layers.0.router.weights"},
    {MODEL_NEXT_EXPERT, MOE, "layers.1.mlp.residual"},
    {MODEL_NEXT_EXPERT, OSS, "layers.0.mlp.residual"},
    {MODEL_DOWN_BIAS_LOST, OSS, "layers.0.mlp.residual"},
    {MODEL_ROUTER_BIAS_LOST, OSS, "layers.0.router"},
    {MODEL_SUM_NOT_WEIGHTED, MOE, "layers.1.mlp.residual"},
    {MODEL_PLAIN_TABLE, LLAMA, "layers.0.mlp.residual"},
    {MODEL_PLAIN_TABLE, OSS, "layers.0.router"},
    {MODEL_RAMP_TURNED, OSS, "layers.0.router"},
    {MODEL_RAMP_TRUNCATED, OSS, "layers.0.router"},
    {MODEL_CONCENTRATION_LOST, OSS, "layers.0.router"},
    {MODEL_CONCENTRATION_SQUARED, OSS, "layers.0.router"},
    {MODEL_WINDOW_ON_ODD, OSS, "layers.0.router"},
    {MODEL_WINDOW_ON_ODD, GEMMA, "layers.0.mlp.residual"},
    {MODEL_WINDOW_ONE_MORE, OSS, "layers.0.router"},
    {MODEL_WINDOW_ONE_MORE, GEMMA, "layers.0.mlp.residual"},
    {MODEL_SCORE_CAP_LOST, GEMMA, "layers.0.mlp.residual"},
    {MODEL_LOGIT_CAP_LOST, GEMMA, "logits"},
    {MODEL_SCALE_OF_D, GEMMA, "layers.0.mlp.residual"},
    {MODEL_SINK_LOST, OSS, "layers.0.router"},
    {MODEL_SINK_SCALED, OSS, "layers.0.router"},
    {MODEL_HALVES_FOR_INTERLEAVED, OSS, "layers.0.mlp.residual"},
    {MODEL_LIMIT_LOST, OSS, "layers.0.mlp.residual"},
    {MODEL_LIMIT_SYMMETRIC, OSS, ""}, /* few gates lie there */
    {MODEL_SIGMOID_NOT_SCALED, OSS, "layers.0.mlp.residual"},
    {MODEL_UP_WITHOUT_ONE, OSS, "layers.0.mlp.residual"},
    {MODEL_ONE_PLUS_LOST, GEMMA, "layers.0.mlp.residual"},
    {MODEL_EMBEDDING_NOT_SCALED, GEMMA, "embed"},
    {MODEL_SILU_FOR_GELU, GEMMA, "layers.0.mlp.residual"},
    {MODEL_POST_NORM_LOST, GEMMA, "layers.0.mlp.residual"},
    {MODEL_DROPPED_GROUP_ZERO, LATENT, ""}, /* layer 2, whose biases are below 0 */
    {MODEL_GROUP_BY_MAX, LATENT, ""},
    {MODEL_WEIGHT_IS_BIASED, LATENT, "layers.1.router.weights"},
    {MODEL_NOT_RENORMALISED, LATENT, "layers.1.router.weights"},
    {MODEL_ROUTE_SCALE_LOST, LATENT, "layers.1.router.weights"},
    {MODEL_NEXT_EXPERT, LATENT, "layers.1.mlp.residual"},
    {MODEL_SHARED_LOST, LATENT, "layers.1.mlp.residual"},
    {MODEL_PLAIN_TABLE, LATENT, "layers.0.mlp.residual"},
    {MODEL_CONCENTRATION_LOST, LATENT, "layers.0.mlp.residual"},
    {MODEL_M_SQUARED_LOST, LATENT, "layers.0.mlp.residual"},
    {MODEL_INNER_EPS_OF_MODEL, LATENT, "layers.0.mlp.residual"},
    {MODEL_KV_NORM_LOST, LATENT, "layers.0.mlp.residual"},
    {MODEL_HALVES_ROTATED, LATENT, "layers.0.mlp.residual"},
    {MODEL_VALUES_FIRST, LATENT, "layers.0.mlp.residual"},
    {MODEL_K_PE_LOST, LATENT, "layers.0.mlp.residual"},
    {MODEL_SCALE_OF_CACHE, LATENT, "id 1 of 24"}, /* the absorbed form alone, which the first step takes */
    {MODEL_VALUE_OF_NEXT_HEAD, LATENT, "layers.0.mlp.residual"}, /* the same; a prompt of one token has it too */
    {MODEL_GATE_LOST, NEXT, "layers.3.router"},
    {MODEL_GATE_IS_SILU, NEXT, "layers.3.router"},
    {MODEL_SHARED_LOST, NEXT, "layers.0.mlp.residual"},
    {MODEL_SHARED_GATE_LOST, NEXT, "layers.0.mlp.residual"},
    {MODEL_NOT_RENORMALISED, NEXT, "layers.0.router.weights"},
    {MODEL_NEXT_EXPERT, NEXT, "layers.0.mlp.residual"},
    {MODEL_ONE_PLUS_LOST, NEXT, "layers.0.router"},
    {MODEL_DELTA_NORM_PLUS_ONE, NEXT, "layers.0.router"},
    {MODEL_EXPONENTS_OF_D, NEXT, "layers.3.router"},
    {MODEL_Z_LOST, NEXT, "layers.0.router"},
    {MODEL_Z_BEFORE_NORM, NEXT, "layers.0.router"},
    {MODEL_CONV_SILU_LOST, NEXT, "layers.0.router"},
    {MODEL_TAPS_REVERSED, NEXT, "layers.0.router"},
    {MODEL_CONV_STATE_LOST, NEXT, "id 1 of 24"}, /* the prompt itself is one step, without a state before */
    {MODEL_SHORT_CONV_STATE, NEXT, "id 2 of 24"},
    {MODEL_CONV_STATE_AFTER_SILU, NEXT, "id 1 of 24"},
    {MODEL_STATE_LOST, NEXT, "id 1 of 24"},
    {MODEL_DECAY_LOST, NEXT, "layers.0.router"},
    {MODEL_DECAY_AFTER, NEXT, "layers.0.router"},
    {MODEL_BETA_LOST, NEXT, "layers.0.router"},
    {MODEL_BETA_ON_V, NEXT, "layers.0.router"},
    {MODEL_NO_DELTA, NEXT, "layers.0.router"},
    {MODEL_OUTPUT_BEFORE_UPDATE, NEXT, "layers.0.router"},
    {MODEL_DELTA_SCALE_LOST, NEXT, "layers.0.router"},
    {MODEL_LENGTHS_LOST, NEXT, "layers.0.router"},
    {MODEL_LENGTH_IS_MEAN, NEXT, "layers.0.router"},
    {MODEL_HEADS_TILED, NEXT, "layers.0.router"},
    {MODEL_DT_BIAS_LOST, NEXT, "layers.0.router"},
    {MODEL_A_NOT_EXP, NEXT, "layers.0.router"},
    {MODEL_GATES_SWAPPED, NEXT, "layers.0.router"},
};
enum { PLANTED = sizeof mistakes / sizeof *mistakes };

static assay_error error;

static void clean(void) {
  model_mistake = MODEL_NO_MISTAKE;
}

TestSuite(model_mutants, .init = clean, .fini = files_gone, .timeout = 200);

static void logits_of(int number, int mistake, double *logits) {
  const assay_model_config c = small_model(number);
  assay_model_weights w;
  model_driver d;
  int32_t ids[N];
  cr_assert_eq(assay_model_weights_alloc(&c, &w, &error), ASSAY_OK);
  cr_assert_eq(assay_model_seed(&c, 11, &w, &error), ASSAY_OK, "%s", error.text);
  assay_model_prompt(&c, 11, 0, N, ids);
  model_mistake = mistake;
  driver_open(&d, &c, &w, 16, N, 1, ASSAY_MODEL_EXACT);
  driver_prompt(&d, ids, N, number == NEXT ? 2 : 13, logits); /* the last one of 13 has one token */
  driver_close(&d);
  assay_model_weights_free(&w);
}

/* Two prompts with the same 16 tokens, of a model with states. The first one's state is kept there, and the second one
 * starts from it, beside the first. */
static void logits_of_two(int mistake, double *logits) {
  const assay_model_config c = small_model(NEXT);
  assay_model_weights w;
  model_driver d;
  int64_t hit = -1;
  int32_t ids[N];
  cr_assert_eq(assay_model_weights_alloc(&c, &w, &error), ASSAY_OK);
  cr_assert_eq(assay_model_seed(&c, 11, &w, &error), ASSAY_OK, "%s", error.text);
  assay_model_prompt(&c, 11, 0, N, ids);
  model_mistake = mistake;
  driver_open(&d, &c, &w, 16, N, 2, ASSAY_MODEL_EXACT);
  const int32_t first = driver_request(&d, ids, 16, NULL);
  driver_add(&d, first, ids, 16, false);
  (void)driver_step(&d, NULL);
  const int32_t second = driver_request(&d, ids, 20, &hit);
  cr_assert_eq(hit, 16);
  driver_add(&d, first, ids + 20, 4, true);
  driver_add(&d, second, ids + 16, 4, true);
  memcpy(logits, driver_step(&d, NULL), (size_t)(8 * c.vocab) * sizeof *logits);
  driver_close(&d);
  assay_model_weights_free(&w);
}

static const int of_states[] = {MODEL_STATE_OF_OTHER_SLOT, MODEL_MATRICES_NOT_RESTORED, MODEL_ROWS_NOT_RESTORED};
enum { OF_STATES = sizeof of_states / sizeof *of_states };

Test(model_mutants, change_a_prefix_with_a_state) {
  static double wanted[8 * 300], got[8 * 300];
  logits_of_two(MODEL_NO_MISTAKE, wanted);
  for (int i = 0; i < OF_STATES; ++i) {
    double most = 0;
    logits_of_two(of_states[i], got);
    for (int n = 0; n < 8 * 300; ++n)
      if (!(fabs(got[n] - wanted[n]) <= most)) most = fabs(got[n] - wanted[n]);
    cr_expect(!(most <= 1e-6), "mistake %d: %g", of_states[i], most);
  }
}

Test(model_mutants, change_seeded_models) {
  static double wanted[N * 300], got[N * 300];
  bool planted[MODEL_MISTAKES] = {true};
  for (int i = 0; i < PLANTED; ++i) {
    double most = 0;
    logits_of(mistakes[i].model, MODEL_NO_MISTAKE, wanted);
    logits_of(mistakes[i].model, mistakes[i].mistake, got);
    for (int n = 0; n < N * 300; ++n)
      if (!(fabs(got[n] - wanted[n]) <= most)) most = fabs(got[n] - wanted[n]);
    cr_expect(most > 1e-6, "mistake %d, model %d: %g", mistakes[i].mistake, mistakes[i].model, most);
    planted[mistakes[i].mistake] = true;
  }
  for (int i = 0; i < OF_STATES; ++i) /* see change_a_prefix_with_a_state */
    planted[of_states[i]] = true;
  for (int m = 0; m < MODEL_MISTAKES; ++m)
    cr_expect(planted[m], "mistake %d is not planted", m);
}

/* The folder of the recorded models: ASSAY_HF_DATA, or else in or beside the checkout. */
static const char *data(void) {
  const char *given = getenv("ASSAY_HF_DATA");
  const char *in = ASSAY_SOURCE_DIR "/shared/data/hf", *beside = ASSAY_SOURCE_DIR "/../shared/data/hf";
  return given != NULL ? given : access(in, F_OK) == 0 ? in : beside;
}

static void truth_of(int number, truth_log *log, test_output *lines) {
  static const char *const names[REF_MODELS] = {
      [LLAMA] = "llama3-rope", [MOE] = "qwen3-moe",      [OSS] = "gpt-oss",
      [GEMMA] = "gemma2",      [LATENT] = "deepseek-v3", [NEXT] = "qwen3-next"};
  char folder[1000];
  (void)snprintf(folder, sizeof folder, "%s/%s", data(), names[number]);
  output_open(lines);
  *log = (truth_log){.to = lines->stream};
  error.text[0] = '\0';
  const assay_model_options usual = {.forms = 0};
  cr_assert_eq(truth_hf(folder, "ref", &usual, NULL, log, &error), ASSAY_OK, "%s", error.text);
  output_close(lines);
}

Test(model_mutants, are_shown_by_recorded_results) {
  truth_log log;
  test_output lines;
  if (access(data(), F_OK) != 0) cr_skip("SKIP: no recorded models in %s", data());
  for (int i = 0; i < PLANTED; ++i) {
    char first[200];
    model_mistake = MODEL_NO_MISTAKE;
    if (i == 0 || mistakes[i].model != mistakes[i - 1].model) {
      truth_of(mistakes[i].model, &log, &lines);
      cr_expect(log.failed == 0 && log.passed == 5, "%s", lines.text);
      output_free(&lines);
    }
    model_mistake = mistakes[i].mistake;
    truth_of(mistakes[i].model, &log, &lines);
    cr_expect_gt(log.failed, 0, "mistake %d, model %d: not shown", mistakes[i].mistake, mistakes[i].model);
    (void)snprintf(first, sizeof first, ": one prefill: %s", mistakes[i].stage);
    cr_expect_not_null(strstr(lines.text, first), "mistake %d, model %d: wanted %s: %s", mistakes[i].mistake,
                       mistakes[i].model, mistakes[i].stage, lines.text);
    output_free(&lines);
  }
}
