/* model_latent_form_test.c: the two forms of latent attention in the reference. They agree in exact mode. In mirror
 * mode each rounds at places of its own. Words that it does not know are refused. Also: which form has fewer
 * multiplications. */
#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#include "model_driver.h"
#include "model_small.h"

enum { IDS = 40, CHUNK = 15, EXACT = 11, MIRROR = 10 };

static assay_error error;

/* Computes the logits [IDS, V] of a prompt in chunks of 15 and single tokens. form NULL: no options. */
static double *logits_of(int number, assay_model_mode mode, const char *form) {
  const assay_model_config c = small_model(number);
  assay_model_weights w;
  model_driver d;
  int32_t ids[IDS];
  double *const all = malloc((size_t)(IDS * c.vocab) * sizeof *all);
  cr_assert_eq(assay_model_weights_alloc(&c, &w, &error), ASSAY_OK);
  cr_assert_eq(assay_model_seed(&c, 3, &w, &error), ASSAY_OK);
  assay_model_prompt(&c, 9, 0, IDS, ids);
  driver_open(&d, &c, &w, 16, IDS, 2, mode);
  const assay_model_options options = {.form = &form, .forms = 1};
  if (form != NULL) cr_assert_eq(d.backend->set_options(d.session, &options, &error), ASSAY_OK, "%s", error.text);
  const int32_t request = driver_request(&d, NULL, 0, NULL);
  for (int64_t n = 0; n < IDS;) {
    const int64_t count = n < 2 * CHUNK ? CHUNK : 1;
    driver_add(&d, request, ids + n, count, true);
    memcpy(all + n * c.vocab, driver_step(&d, NULL), (size_t)(count * c.vocab) * sizeof *all);
    n += count;
  }
  driver_close(&d);
  assay_model_weights_free(&w);
  return all;
}

static double difference(const double *a, const double *b, int64_t count) {
  double largest = 0;
  for (int64_t i = 0; i < count; ++i)
    if (!(fabs(a[i] - b[i]) <= largest)) largest = fabs(a[i] - b[i]);
  return largest;
}

Test(model_latent_form, exact_runs_agree) {
  const int64_t count = IDS * small_model(EXACT).vocab;
  double *const usual = logits_of(EXACT, ASSAY_MODEL_EXACT, NULL),
                *const on = logits_of(EXACT, ASSAY_MODEL_EXACT, "mla_expand=on"),
                *const off = logits_of(EXACT, ASSAY_MODEL_EXACT, "mla_expand=off"),
                *const by_cost = logits_of(EXACT, ASSAY_MODEL_EXACT, "mla_expand=auto");
  cr_expect(difference(usual, on, count) == 0);
  cr_expect(difference(on, off, count) <= 1e-11, "%g", difference(on, off, count));
  cr_expect(difference(on, off, count) > 0, "the form is not followed");
  cr_expect(difference(by_cost, off, count) <= 1e-11);
  free(usual);
  free(on);
  free(off);
  free(by_cost);
}

Test(model_latent_form, mirrors_round_where_the_form_stores) {
  const assay_model_config c = small_model(MIRROR);
  const int64_t count = IDS * c.vocab;
  double *const usual = logits_of(MIRROR, ASSAY_MODEL_MIRROR, NULL),
                *const on = logits_of(MIRROR, ASSAY_MODEL_MIRROR, "mla_expand=on"),
                *const off = logits_of(MIRROR, ASSAY_MODEL_MIRROR, "mla_expand=off"),
                *const by_cost = logits_of(MIRROR, ASSAY_MODEL_MIRROR, "mla_expand=auto");
  cr_expect(difference(usual, off, count) == 0);
  cr_expect(difference(on, off, count) > 1e-4, "%g", difference(on, off, count));
  /* By the cost the first chunk is as with `on`; the second, with its prefix, need not be. */
  cr_expect(assay_model_expands(&c, CHUNK, CHUNK));
  cr_expect(difference(by_cost, on, CHUNK * c.vocab) == 0);
  free(usual);
  free(on);
  free(off);
  free(by_cost);
}

Test(model_latent_form, other_words_are_refused) {
  static const struct {
    int model;
    const char *word, *says;
  } wrong[] = {{EXACT, "append=on", "form: found 'append=on', allowed on ref: mla_expand=off"},
               {EXACT, "mla_expand=yes", "form: found 'mla_expand=yes', allowed on ref"},
               {1, "mla_expand=on", "form mla_expand: found on, which this qwen3 model cannot have"}};
  for (size_t i = 0; i < sizeof wrong / sizeof *wrong; ++i) {
    const assay_model_config c = small_model(wrong[i].model);
    const assay_model_options options = {.form = &wrong[i].word, .forms = 1};
    assay_model_weights w;
    model_driver d;
    cr_assert_eq(assay_model_weights_alloc(&c, &w, &error), ASSAY_OK);
    driver_open(&d, &c, &w, 4, 8, 1, ASSAY_MODEL_EXACT);
    error.text[0] = '\0';
    cr_expect_eq(d.backend->set_options(d.session, &options, &error), ASSAY_ERR_INPUT);
    cr_expect_not_null(strstr(error.text, wrong[i].says), "%s", error.text);
    driver_close(&d);
    assay_model_weights_free(&w);
  }
}

/* DeepSeek-V3: a whole prompt is cheaper by keys and values, and a short chunk after a long prefix by entries. */
Test(model_latent_form, the_cheaper_form) {
  const assay_model_config c = assay_model_production(ASSAY_DEEPSEEK_V3);
  cr_expect(!assay_model_expands(&c, 1, 1));
  cr_expect(!assay_model_expands(&c, 1, 4096));
  cr_expect(assay_model_expands(&c, 4096, 4096));
  cr_expect(!assay_model_expands(&c, 128, 8192));
  cr_expect(assay_model_expands(&c, 192, 8192));
}
