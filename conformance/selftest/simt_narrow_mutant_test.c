/* simt_narrow_mutant_test.c: a device's products with weights of e4m3, with a mistake planted, one at a time. The judge
 * of models finds each of them, and names the stage. A copy of gpu/models/narrow.c, which plant.sh makes by
 * narrow_mistakes.def, is compiled in here, in place of the library's. */
#include "narrow_mistakes.h"

#include "planted/gpu/models/narrow.c"

#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "conformance/builtin.h"
#include "conformance/models/suite.h"
#include "core/dtype.h"

static assay_error error;

static void setup(void) {
  cr_assert_eq(builtin_register(&error), ASSAY_OK, "%s", error.text);
}

TestSuite(narrow, .init = setup, .timeout = 300);

/* A dense layer, and with `sparse` one whose experts are all used, in f32. */
static model_case small(bool sparse, model_way way) {
  assay_model_config c = assay_model_production(ASSAY_DEEPSEEK_V3);
  c.layers = sparse ? 2 : 1;
  c.hidden = 256;
  c.heads = 8;
  c.head_size = 24;
  c.rotated = 8;
  c.q_rank = 128;
  c.kv_rank = 32;
  c.value_size = 16;
  c.intermediate = 128;
  c.vocab = 60;
  c.max_pos = 64;
  c.block_size = 8;
  c.experts = c.experts_used = 4;
  c.groups = c.groups_used = 2;
  c.expert_size = c.shared_size = 128;
  c.sparse = (assay_model_layers){{2}};
  c.score_scale = 0.1;
  c.fp8_weights = true;
  c.weight_dtype = c.act_dtype = c.kv_dtype = ASSAY_F32;
  return (model_case){.name = "planted", .model = "small", .config = c, .seed = 7, .way = way, .batch = 3, .steps = 2};
}

/* A layer of another family, whose products have biases. */
static model_case biased(void) {
  assay_model_config c = assay_model_production(ASSAY_QWEN3);
  c.layers = 1;
  c.hidden = 128;
  c.heads = 8;
  c.kv_heads = 2;
  c.head_size = c.rotated = 16;
  c.intermediate = 128;
  c.vocab = 60;
  c.max_pos = 64;
  c.block_size = 8;
  c.qkv_bias = c.fp8_weights = true;
  c.weight_dtype = c.act_dtype = c.kv_dtype = ASSAY_F32;
  return (model_case){
      .name = "planted", .model = "biased", .config = c, .seed = 7, .way = WAY_BATCHED, .batch = 3, .steps = 2};
}

static void passes(const model_case *mc) {
  case_result result;
  model_judge(mc, "simt", NULL, NULL, &result);
  cr_expect_eq(result.verdict, VERDICT_PASS, "%s: %s", mc->model, result.message);
}

Test(narrow, unchanged_products_pass) {
  model_case cases[] = {small(true, WAY_BATCHED), small(true, WAY_GRAPH), biased()};
  cases[1].prompt = 20;
  for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i)
    passes(&cases[i]);
}

static void is_found(const model_case *mc, int mistake, const char *says) {
  case_result result;
  narrow_mistake = mistake;
  model_judge(mc, "simt", NULL, NULL, &result);
  narrow_mistake = NARROW_NO_MISTAKE;
  cr_expect(result.verdict == VERDICT_FAIL && strstr(result.message, says) != NULL, "mistake %d: %s: %s", mistake,
            result.check, result.message);
}

Test(narrow, mistakes_are_found_and_named) {
  const model_case dense = small(false, WAY_BATCHED), sparse = small(true, WAY_BATCHED), with_bias = biased();
  is_found(&dense, NARROW_NEXT_BLOCK, "layers.0.attn");
  is_found(&dense, NARROW_TRANSPOSED, "layers.0.mlp.up of group_quant, fp8_block_gemm");
  is_found(&dense, NARROW_NEXT_GROUP, "layers.0.attn");
  is_found(&sparse, NARROW_FIRST_EXPERT, "layers.1.experts.up of group_quant, fp8_grouped_gemm");
  is_found(&sparse, NARROW_HALF_OF_EXPERTS, "layers.1.experts.up");
  is_found(&sparse, NARROW_UNSCALED, "layers.1.experts.up of group_quant");
  is_found(&with_bias, NARROW_BIAS_LOST, "layers.0.attn.qkv");
}

/* ---- weights --------------------------------------------------------------------------------------------- */

/* A matrix of 130 x 200 numbers: four blocks, three of which are cut off, and one of zeros. */
static float wide[130 * 200];
static unsigned char codes[130 * 200];
static float scales[4];

static double number_of(int r, int c) {
  if (r < 128 && c >= 128) return 0;
  return (r % 7 - 3) * 0.37 * (c % 5 - 2) * (r < 128 ? 1 : 64);
}

static int64_t narrow_wide(void) {
  const assay_tensor from = {.data = wide, .dtype = ASSAY_F32, .rank = 2, .shape = {130, 200}, .stride = {200, 1}};
  const assay_tensor to = {.data = codes, .dtype = ASSAY_E4M3, .rank = 2, .shape = {130, 200}, .stride = {200, 1}};
  const assay_tensor by = {.data = scales, .dtype = ASSAY_F32, .rank = 2, .shape = {2, 2}, .stride = {2, 1}};
  return model_narrow_matrix(&from, &to, &by);
}

Test(narrow, blocks_have_their_own_scales) {
  for (int i = 0; i < 130 * 200; ++i)
    wide[i] = (float)number_of(i / 200, i % 200);
  cr_assert_eq(narrow_wide(), -1);
  cr_expect_eq(scales[0], (float)((double)(float)(3 * 0.37 * 2) / 448));
  cr_expect_eq(scales[1], 1.0f, "a block of zeros");
  for (int r = 0; r < 130; ++r)
    for (int c = 0; c < 200; ++c) {
      const double w = wide[r * 200 + c], s = scales[r / 128 * 2 + c / 128];
      const double got = assay_load_f64(codes, ASSAY_E4M3, r * 200 + c) * s;
      cr_assert(fabs(got - w) <= fmax(fabs(w) / 16, s * 0x1p-10), "%d, %d: %g is %g", r, c, w, got);
    }
  wide[129 * 200 + 5] = NAN;
  cr_expect_eq(narrow_wide(), 129 * 200 + 5);
}

/* Weights of another type become codes and scales, and all others keep their bits. */
Test(narrow, a_model_becomes_narrow) {
  assay_model_config c = small(true, WAY_BATCHED).config, made;
  assay_model_weights from, to;
  assay_weight_spec spec;
  c.fp8_weights = false;
  cr_assert_eq(assay_model_weights_alloc(&c, &from, &error), ASSAY_OK);
  cr_assert_eq(assay_model_seed(&c, 3, &from, &error), ASSAY_OK);
  cr_assert_eq(assay_model_narrow(&c, &from, &made, &to, &error), ASSAY_OK, "%s", error.text);
  cr_expect(made.fp8_weights);
  for (int32_t i = 0; assay_model_weight_spec(&made, i, &spec); ++i) {
    const int32_t old = assay_model_weight_index(&c, spec.name);
    const assay_tensor *t = &to.tensor[i];
    if (old < 0) continue;
    const assay_tensor *was = &from.tensor[old];
    const int64_t count = spec.shape[0] * spec.shape[1];
    if (spec.dtype != ASSAY_E4M3) {
      cr_expect_arr_eq(t->data, was->data, (size_t)(count * assay_dtype_size(spec.dtype)), "%s", spec.name);
      continue;
    }
    for (int64_t at = 0; at < count; at += 97) {
      const double w = assay_load_f64(was->data, was->dtype, at);
      const int64_t block = at / spec.shape[1] / 128 * t[1].shape[1] + at % spec.shape[1] / 128;
      const double s = assay_load_f64(t[1].data, ASSAY_F32, block);
      const double got = s * assay_load_f64(t->data, ASSAY_E4M3, at);
      cr_assert(fabs(got - w) <= fmax(fabs(w) / 16, s * 0x1p-10), "%s[%lld]", spec.name, (long long)at);
    }
  }
  assay_model_config twice;
  assay_model_weights none;
  cr_expect_eq(assay_model_narrow(&made, &to, &twice, &none, &error), ASSAY_ERR_INPUT);
  cr_expect_not_null(strstr(error.text, "fp8_weights: found true"), "%s", error.text);
  assay_model_weights_free(&from);
  assay_model_weights_free(&to);
}

Test(narrow, sizes_that_are_no_multiples_are_refused) {
  static const struct {
    size_t at;
    int64_t value;
    const char *says;
  } wrong[] = {
      {offsetof(assay_model_config, hidden), 192, "hidden: found 192, allowed with fp8_weights: multiples of 128"},
      {offsetof(assay_model_config, q_rank), 64, "q_rank: found 64"},
      {offsetof(assay_model_config, value_size), 24, "heads · value_size: found 192"},
      {offsetof(assay_model_config, intermediate), 96, "intermediate: found 96"},
      {offsetof(assay_model_config, expert_size), 64, "expert_size: found 64"},
      {offsetof(assay_model_config, shared_size), 130, "shared_size: found 130"}};
  for (size_t i = 0; i < sizeof wrong / sizeof *wrong; ++i) {
    assay_model_config c = small(true, WAY_BATCHED).config;
    cr_assert_eq(assay_model_check(&c, &error), ASSAY_OK, "%s", error.text);
    error.text[0] = '\0'; /* the first message stays */
    memcpy((char *)&c + wrong[i].at, &wrong[i].value, sizeof wrong[i].value);
    cr_expect_eq(assay_model_check(&c, &error), ASSAY_ERR_INPUT, "%s", wrong[i].says);
    cr_expect_not_null(strstr(error.text, wrong[i].says), "%s", error.text);
    c.fp8_weights = false;
    cr_expect_eq(assay_model_check(&c, &error), ASSAY_OK, "%s", error.text);
  }
}
