/* simt_latent_mutant_test.c: a device's latent attention with a mistake planted, one at a time. The judge of models
 * finds each of them, and names the stage. Copies of gpu/models/latent.c and latent_expand.c, which plant.sh makes by
 * latent_mistakes.def, are compiled in here, in place of the library's. */
#include "latent_mistakes.h"

#include "planted/gpu/models/latent.c"
#define no_params no_params_of_expand
#include "planted/gpu/models/latent_expand.c"
#undef no_params

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

/* The same with prompts and chunks by keys and values of every head. With `narrow` values, 12 channels are filled up.
 */
static model_case expanded(bool narrow, model_way way) {
  model_case mc = small(false, way);
  if (narrow) {
    mc.config.value_size = 12;
    mc.seed = 4; /* by seed 7 a clean f32 run goes past the limit, in the absorbed form too */
  }
  (void)snprintf(mc.form, sizeof mc.form, "mla_expand=on");
  return mc;
}

Test(latent_mutants, unchanged_layers_pass) {
  static const model_way ways[] = {WAY_BATCHED, WAY_CHUNKED, WAY_SHARED};
  case_result result;
  for (int kind = 0; kind < 4; ++kind)
    for (size_t w = 0; w < sizeof ways / sizeof *ways; ++w) {
      const model_case mc = kind < 2 ? small(kind == 1, ways[w]) : expanded(kind == 3, ways[w]);
      model_judge(&mc, "simt", NULL, NULL, &result);
      cr_expect_eq(result.verdict, VERDICT_PASS, "kind %d, %s: %s", kind, model_way_name(ways[w]), result.message);
    }
}

static void is_found(const model_case *mc, int mistake, const char *check, const char *says) {
  case_result result;
  latent_mistake = mistake;
  model_judge(mc, "simt", NULL, NULL, &result);
  latent_mistake = LATENT_NO_MISTAKE;
  cr_expect(result.verdict == VERDICT_FAIL && strcmp(result.check, check) == 0 && strstr(result.message, says) != NULL,
            "mistake %d: %s: %s", mistake, result.check, result.message);
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
  for (size_t i = 0; i < sizeof mistakes / sizeof *mistakes; ++i) {
    const model_case mc = small(false, mistakes[i].way);
    is_found(&mc, mistakes[i].mistake, "stages", mistakes[i].says);
  }
}

/* WAY_BATCHED has prompts, tokens and a pad row in one step, WAY_CHUNKED has prefixes, and WAY_SHARED has a token after
 * a chunk. Where a mistake shows in a later step alone, a stage with few channels is named first: it is judged over all
 * steps. */
Test(latent_mutants, are_found_by_keys_and_values_of_every_head) {
  static const char any[] = "is the first stage that departs";
  static const struct {
    int mistake;
    model_way way;
    bool narrow;
    const char *says;
  } mistakes[] = {{LATENT_RUN_FROM_ROW_0, WAY_BATCHED, false, any},
                  {LATENT_TABLE_FROM_0, WAY_SHARED, false, any},
                  {LATENT_KEYS_WITHOUT_PE, WAY_BATCHED, false, "layers.0.attn.out of mla_append, grouped_gemm"},
                  {LATENT_VALUES_OF_LAYER_0, WAY_BATCHED, false, "layers.1.attn.out"},
                  {LATENT_BLOCKS_OF_FIRST, WAY_CHUNKED, false, any},
                  {LATENT_NO_PREFIX, WAY_CHUNKED, false, any},
                  {LATENT_KEYS_FROM_0, WAY_CHUNKED, false, any},
                  {LATENT_LENGTHS_FROM_0, WAY_BATCHED, false, any},
                  {LATENT_FILLED_SHIFTED, WAY_CHUNKED, true, "layers.0.attn.out"}};
  for (size_t i = 0; i < sizeof mistakes / sizeof *mistakes; ++i) {
    const model_case mc = expanded(mistakes[i].narrow, mistakes[i].way);
    is_found(&mc, mistakes[i].mistake, "stages", mistakes[i].says);
  }
}

/* The same limits in bf16, where mirror mode says what a device may be off. */
Test(latent_mutants, are_found_in_bf16) {
  static const int mistakes[] = {LATENT_KEYS_WITHOUT_PE, LATENT_VALUES_OF_LAYER_0};
  case_result result;
  model_case mc = expanded(false, WAY_PREFILL);
  mc.batch = 6;
  mc.config.weight_dtype = mc.config.act_dtype = mc.config.kv_dtype = ASSAY_BF16;
  model_judge(&mc, "simt", NULL, NULL, &result);
  cr_expect_eq(result.verdict, VERDICT_PASS, "%s", result.message);
  for (size_t i = 0; i < sizeof mistakes / sizeof *mistakes; ++i)
    is_found(&mc, mistakes[i], "stages", "attn.out of mla_append, grouped_gemm");
}

/* Cuts five requests of 5, 1, 20, 0 and 30 keys into runs, with memory for four blocks of eight. */
static int64_t plan(pass *m, latent_run run[5], int32_t list[3][10]) {
  static const int32_t cu_q[] = {0, 3, 4, 14, 15, 21}, kv_len[] = {5, 1, 20, 0, 30};
  static const int32_t table[5][4] = {{9}, {8}, {7, 6, 5}, {-1}, {4, 3, 2, 1}};
  const latent_batch b = {5, cu_q, kv_len, table[0], 4};
  const latent_lists lists = {list[0], list[1], list[2]};
  memset(m, 0, sizeof *m);
  memset(list, 0, 3 * sizeof *list);
  m->config = small(false, WAY_BATCHED).config;
  m->choices.form[PASS_MLA_EXPAND] = PASS_ON;
  m->entries.shape[0] = 4 * m->config.block_size;
  m->run = run;
  return pass_expand_plan(m, &b, &lists);
}

static pass session;

Test(latent_mutants, steps_are_cut_into_runs) {
  static const int64_t first[] = {0, 1, 2, 3, 4}, rows[] = {3, 1, 10, 1, 6}, blocks[] = {1, 0, 3, 0, 4};
  static const int32_t starts[] = {0, 3, 0, 1, 0, 10, 0, 1, 0, 6}, keys[] = {0, 8, 0, 0, 0, 24, 0, 0, 0, 32};
  static const int32_t listed[] = {9, 7, 6, 5, 4, 3, 2, 1};
  latent_run run[5];
  int32_t list[3][10];
  cr_expect_eq(plan(&session, run, list), 8);
  cr_assert_eq(session.runs, 5);
  for (int i = 0; i < 5; ++i) {
    cr_expect_eq(run[i].request, first[i]);
    cr_expect_eq(run[i].requests, 1);
    cr_expect_eq(run[i].rows, rows[i], "run %d", i);
    cr_expect_eq(run[i].blocks, blocks[i], "run %d", i);
    cr_expect_eq(run[i].at, 2 * i);
  }
  cr_expect_arr_eq(list[0], starts, sizeof starts);
  cr_expect_arr_eq(list[1], keys, sizeof keys);
  cr_expect_arr_eq(list[2], listed, sizeof listed);
}

/* Two prompts of 3 and 2 blocks do not fit in one run of four; a third one joins the second. */
static int64_t runs_of_three(void) {
  static const int32_t cu_q[] = {0, 20, 32, 40}, kv_len[] = {20, 12, 8}, table[3][4] = {{0, 1, 2}, {3, 4}, {5}};
  const latent_batch b = {3, cu_q, kv_len, table[0], 4};
  latent_run run[5];
  int32_t list[3][10];
  const latent_lists lists = {list[0], list[1], list[2]};
  (void)plan(&session, run, list);
  (void)pass_expand_plan(&session, &b, &lists);
  for (int64_t r = 0; r < session.runs; ++r)
    if (run[r].blocks > 4) return -1;
  return session.runs;
}

Test(latent_mutants, runs_fit_in_memory_and_leave_single_tokens) {
  latent_run run[5];
  int32_t list[3][10];
  cr_expect_eq(runs_of_three(), 2);
  latent_mistake = LATENT_RUN_TOO_LONG;
  cr_expect_eq(runs_of_three(), -1);
  latent_mistake = LATENT_ALWAYS_EXPANDED;
  (void)plan(&session, run, list);
  cr_expect_neq(session.runs > 1 && run[1].blocks == 0, true);
  latent_mistake = LATENT_NO_MISTAKE;
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
