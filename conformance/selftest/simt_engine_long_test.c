/* simt_engine_long_test.c: with one_launch=auto, which is the default, a decode step has all layers in one launch,
 * whatever its lengths are. Steps go by calls and by graph, and rows are greedy or draw. A caller that
 * chooses how a layer is computed gets the operators of the layers. */
#include <criterion/criterion.h>

#include "assay/engine.h"
#include "conformance/builtin.h"
#include "model_small.h"

enum { LONG = 256, STEPS = 4, ROWS = 2, SHORT = 5 };

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

/* The model's options. */
typedef struct {
  const char *form, *variant;
  bool invariant;
} choices;

/* Decodes STEPS tokens after prompts of `longest` and SHORT tokens. choice: NULL: there are no options. Returns the
 * steps in one launch. */
static int64_t steps_in_one(const assay_model_config *config, const assay_model_weights *weights, const choices *choice,
                            bool eager, double temperature, int64_t longest) {
  const assay_model_options model = {.form = choice != NULL ? &choice->form : NULL,
                                     .forms = choice != NULL && choice->form != NULL,
                                     .variant = choice != NULL ? &choice->variant : NULL,
                                     .variants = choice != NULL && choice->variant != NULL,
                                     .invariant = choice != NULL && choice->invariant};
  const assay_engine_options options = {.device = "simt",
                                        .num_blocks = 120,
                                        .max_batch = ROWS,
                                        .max_tokens = 512,
                                        .max_length = 400,
                                        .eager = eager,
                                        .model = choice != NULL ? &model : NULL};
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

Test(engine_long, one_launch_takes_steps_of_all_lengths) {
  static const choices on = {.form = "one_launch=on"}, automatic = {.form = "one_launch=auto"},
                       off = {.form = "one_launch=off"}, none = {.form = NULL};
  static const choices greedy = {.form = "lm_head_argmax=off"}, head = {.variant = "lm_head=skinny"};
  static const choices form = {.form = "gemm_glu=off"}, variant = {.variant = "swiglu=vectors"},
                       invariant = {.invariant = true};
  static const struct {
    const choices *choice;
    bool eager;
    double temperature;
    int64_t longest, in_one;
  } asked[] = {
      {&automatic, false, 0, LONG - 2, STEPS},
      {&automatic, true, 0, LONG - 2, STEPS},
      {&automatic, false, 2, LONG, STEPS},
      {&automatic, false, 0, SHORT, STEPS},
      {&on, false, 0, LONG - 2, STEPS},
      {&on, true, 0, LONG, STEPS},
      {&off, false, 0, SHORT, 0},
      {NULL, false, 0, LONG, STEPS},
      {NULL, true, 0, SHORT, STEPS},
      {&none, false, 0, SHORT, STEPS},
      {&greedy, false, 0, SHORT, STEPS},
      {&head, true, 0, SHORT, STEPS},
      {&form, false, 0, SHORT, 0},
      {&variant, false, 0, SHORT, 0},
      {&invariant, false, 0, SHORT, 0},
  };
  const assay_model_config config = config_of();
  assay_model_weights weights;
  cr_assert_eq(builtin_register(&test_error), ASSAY_OK, "%s", test_error.text);
  cr_assert_eq(assay_model_weights_alloc(&config, &weights, &test_error), ASSAY_OK);
  cr_assert_eq(assay_model_seed(&config, 7, &weights, &test_error), ASSAY_OK, "%s", test_error.text);
  for (size_t i = 0; i < sizeof asked / sizeof *asked; ++i)
    cr_expect_eq(
        steps_in_one(&config, &weights, asked[i].choice, asked[i].eager, asked[i].temperature, asked[i].longest),
        asked[i].in_one, "row %zu", i);
  assay_model_weights_free(&weights);
}
