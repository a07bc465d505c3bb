/* simt_latent_mutant_test.c: a device's latent attention with a mistake planted, one at a time. The judge of models
 * finds each of them, and names the stage. A copy of gpu/models/latent.c, which plant.sh makes by latent_mistakes.def,
 * is compiled in here, in place of the library's. */
#include "latent_mistakes.h"

#include "planted/gpu/models/latent.c"

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "conformance/builtin.h"
#include "conformance/models/suite.h"

static assay_error error;

static void setup(void) {
  cr_assert_eq(builtin_register(&error), ASSAY_OK, "%s", error.text);
}

TestSuite(latent_mutants, .init = setup, .timeout = 200);

/* Two dense layers in f32. With `full` entries, 512 + 64 channels, nothing is filled up. */
static model_case small(bool full, model_way way) {
  assay_model_config c = assay_model_production(ASSAY_DEEPSEEK_V3);
  c.layers = 2;
  c.hidden = 32;
  c.heads = 2;
  c.rotated = full ? 64 : 8;
  c.head_size = c.rotated + 16;
  c.q_rank = full ? 0 : 24;
  c.kv_rank = full ? 512 : 32;
  c.value_size = 16;
  c.intermediate = 40;
  c.vocab = 60;
  c.max_pos = 64;
  c.block_size = 8;
  c.score_scale = 0.5;
  c.sparse = (assay_model_layers){{0}};
  c.weight_dtype = c.act_dtype = c.kv_dtype = ASSAY_F32;
  return (model_case){.name = "planted", .model = "small", .config = c, .seed = 7, .way = way, .batch = 3, .steps = 2};
}

Test(latent_mutants, unchanged_layers_pass) {
  static const model_way ways[] = {WAY_BATCHED, WAY_SHARED};
  case_result result;
  for (int full = 0; full < 2; ++full)
    for (size_t w = 0; w < sizeof ways / sizeof *ways; ++w) {
      const model_case mc = small(full != 0, ways[w]);
      model_judge(&mc, "simt", NULL, NULL, &result);
      cr_expect_eq(result.verdict, VERDICT_PASS, "full %d, %s: %s", full, model_way_name(ways[w]), result.message);
    }
}

Test(latent_mutants, are_found_and_named) {
  static const struct {
    int mistake;
    model_way way;
    const char *says;
  } mistakes[] = {{LATENT_HEADS_BY_ROW, WAY_BATCHED, "layers.0.attn.out of mla_append, grouped_gemm, mla_attention"},
                  {LATENT_FIRST_ROTATED, WAY_BATCHED, "layers.0.attn.q of rope"},
                  {LATENT_VALUES_ARE_KEYS, WAY_BATCHED, "layers.0.attn.out"},
                  {LATENT_PE_LOST, WAY_BATCHED, "layers.0.attn.out"},
                  {LATENT_USUAL_SCALE, WAY_BATCHED, "layers.0.attn.out"},
                  {LATENT_WEIGHTS_OF_LAYER_0, WAY_BATCHED, "layers.1.attn.out"},
                  {LATENT_POOL_OF_LAYER_0, WAY_SHARED, "is the first stage that departs"},
                  {LATENT_HALF_OF_THE_LAYERS, WAY_SHARED, "layers.1.attn.out"}};
  case_result result;
  for (size_t i = 0; i < sizeof mistakes / sizeof *mistakes; ++i) {
    const model_case mc = small(false, mistakes[i].way);
    latent_mistake = mistakes[i].mistake;
    model_judge(&mc, "simt", NULL, NULL, &result);
    cr_expect(result.verdict == VERDICT_FAIL && strcmp(result.check, "stages") == 0 &&
                  strstr(result.message, mistakes[i].says) != NULL,
              "mistake %d: %s: %s", mistakes[i].mistake, result.check, result.message);
  }
}

/* A session refuses to open where entries of 512 + 64 channels cannot hold the model's. */
Test(latent_mutants, wide_entries_are_refused) {
  assay_model_config c = small(true, WAY_BATCHED).config;
  assay_error why = {""};
  c.kv_rank = 520;
  cr_expect_eq(pass_latent_check(&c, &error), ASSAY_ERR_UNSUPPORTED);
  cr_expect_not_null(strstr(error.text, "kv_rank: found 520"), "%s", error.text);
  c.kv_rank = 512;
  c.rotated = 72;
  cr_expect_eq(pass_latent_check(&c, &why), ASSAY_ERR_UNSUPPORTED);
  cr_expect_not_null(strstr(why.text, "rotated: found 72"), "%s", why.text);
}
