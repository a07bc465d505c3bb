/* simt_engine_long_test.c: with one_launch=auto a decode step has all layers in one launch until a row is long. Steps
 * go by calls and by graph, and rows are greedy or draw. An engine that does not look at lengths shows. The engine's
 * sources are compiled in here, in place of the library's. */
#include "engine_mistakes.h"

#include "gpu/models/engine.c"
#include "gpu/models/engine_graph.c"
#include "gpu/models/engine_step.c"
#include "gpu/models/engine_tokens.c"

#include <criterion/criterion.h>

#include "conformance/builtin.h"
#include "model_small.h"

enum { ONE_LAUNCH = 256, STEPS = 4, ROWS = 2, SHORT = 5 }; /* ONE_LAUNCH: keys of a row (core/prefer.c) */

static assay_error test_error;

/* The sizes of the kernel's small instance. */
static assay_model_config config_of(void) {
  assay_model_config c = small_model(1);
  c.layers = 2;
  c.intermediate = 128;
  c.max_pos = 512;
  c.weight_dtype = c.act_dtype = c.kv_dtype = ASSAY_BF16;
  return c;
}

/* Decodes STEPS tokens after prompts of `longest` and SHORT tokens. Returns the steps in one launch. */
static int64_t steps_in_one(const assay_model_config *config, const assay_model_weights *weights, const char *form,
                            bool eager, double temperature, int64_t longest) {
  const assay_model_options model = {.form = &form, .forms = 1};
  const assay_engine_options options = {.device = "simt",
                                        .num_blocks = 120,
                                        .max_batch = ROWS,
                                        .max_tokens = 512,
                                        .max_length = 400,
                                        .eager = eager,
                                        .model = &model};
  const assay_engine_sampling sampling = {temperature, 1, 0, 0, 5, 1};
  static int32_t prompt[512];
  assay_engine *e = NULL;
  assay_engine_part part[ROWS] = {{.tokens = longest}, {.tokens = SHORT}};
  assay_model_path path;
  int64_t hit = 0, calls = 0;
  cr_assert_eq(assay_engine_open(config, weights, &options, &e, &test_error), ASSAY_OK, "%s", test_error.text);
  for (int i = 0; i < ROWS; ++i) {
    assay_model_prompt(config, 11, i, part[i].tokens, prompt);
    cr_assert_eq(assay_engine_request(e, prompt, part[i].tokens, &sampling, &part[i].request, &hit, &test_error),
                 ASSAY_OK, "%s", test_error.text);
  }
  for (int step = 0; step <= STEPS; ++step) {
    cr_assert_eq(assay_engine_step(e, part, ROWS, &test_error), ASSAY_OK, "%s", test_error.text);
    part[0].tokens = part[1].tokens = 1;
  }
  cr_assert_eq(assay_engine_wait(e, &test_error), ASSAY_OK, "%s", test_error.text);
  for (int32_t i = 0; assay_engine_path(e, i, &path); ++i)
    if (strcmp(path.op, "one_launch") == 0) calls += path.calls;
  assay_engine_close(e);
  return calls;
}

Test(engine_long, one_launch_ends_where_a_row_is_long) {
  static const struct {
    const char *form;
    bool eager;
    double temperature;
    int64_t longest, in_one;
  } asked[] = {
      {"one_launch=auto", false, 0, ONE_LAUNCH - 2, 2}, {"one_launch=auto", true, 0, ONE_LAUNCH - 2, 2},
      {"one_launch=auto", false, 2, ONE_LAUNCH - 2, 2}, {"one_launch=auto", false, 0, ONE_LAUNCH, 0},
      {"one_launch=auto", false, 0, SHORT, STEPS},      {"one_launch=on", false, 0, ONE_LAUNCH - 2, STEPS},
      {"one_launch=on", true, 0, ONE_LAUNCH, STEPS},    {"one_launch=off", false, 0, SHORT, 0},
  };
  const assay_model_config config = config_of();
  assay_model_weights weights;
  cr_assert_eq(builtin_register(&test_error), ASSAY_OK, "%s", test_error.text);
  cr_assert_eq(assay_model_weights_alloc(&config, &weights, &test_error), ASSAY_OK);
  cr_assert_eq(assay_model_seed(&config, 7, &weights, &test_error), ASSAY_OK, "%s", test_error.text);
  for (size_t i = 0; i < sizeof asked / sizeof *asked; ++i)
    cr_expect_eq(steps_in_one(&config, &weights, asked[i].form, asked[i].eager, asked[i].temperature, asked[i].longest),
                 asked[i].in_one, "row %zu", i);
  engine_mutant = ENGINE_NEVER_LONG;
  cr_expect_eq(steps_in_one(&config, &weights, "one_launch=auto", false, 0, ONE_LAUNCH), STEPS,
               "the mistake is not seen");
  engine_mutant = ENGINE_NO_MISTAKE;
  assay_model_weights_free(&weights);
}
