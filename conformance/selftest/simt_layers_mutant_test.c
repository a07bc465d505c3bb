/* simt_layers_mutant_test.c: the kernel of all layers with a mistake planted, one at a time. The judge of models finds
 * each of them in an engine's steps. Packed weights are unpacked bit for bit, and what the kernel does not take is
 * refused. layers_planted.cu is the kernel with its mistakes. */
#include "layers_mistakes.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "conformance/builtin.h"
#include "conformance/models/suite.h"
#include "core/registry_add.h"
#include "model_small.h"

const assay_layers *planted_layers_simt(void);

int layers_mistake;
static assay_error error;
static const assay_device *device;

static void setup(void) {
  cr_assert_eq(builtin_register(&error), ASSAY_OK, "%s", error.text);
  assay_registry_add_layers(planted_layers_simt());
  device = assay_device_find("simt");
  cr_assert_eq(device->open(&error), ASSAY_OK, "%s", error.text);
}

TestSuite(layers_mutants, .init = setup, .timeout = 250);

/* The sizes of the kernel's small instance, with more layers than words lie beside each other. */
static assay_model_config config_for(assay_model_arch arch) {
  assay_model_config c = small_model(arch == ASSAY_QWEN3 ? 1 : 2);
  c.layers = 6;
  c.intermediate = 128;
  c.weight_dtype = c.act_dtype = c.kv_dtype = ASSAY_BF16;
  return c;
}

static assay_model_config config_of(void) {
  return config_for(ASSAY_QWEN3);
}

/* prompt: the longest. With 20 tokens each block has a whole row and head, with 150 it may have a piece. */
static model_case engine_case(assay_model_arch arch, int64_t prompt) {
  model_case mc = {.name = "planted",
                   .model = "small",
                   .config = config_for(arch),
                   .seed = 7,
                   .way = WAY_GRAPH,
                   .batch = 3,
                   .judged = 3,
                   .prompt = prompt,
                   .steps = 5};
  (void)snprintf(mc.form, sizeof mc.form, "one_launch=on");
  return mc;
}

Test(layers_mutants, are_found) {
  const model_case cases[] = {engine_case(ASSAY_QWEN3, 20), engine_case(ASSAY_QWEN3, 150),
                              engine_case(ASSAY_ASYNCT, 20), engine_case(ASSAY_ASYNCT, 150)};
  for (layers_mistake = LAYERS_NO_MISTAKE; layers_mistake < LAYERS_PIECES_BY_BATCH; ++layers_mistake) {
    const bool of_gate = layers_mistake >= LAYERS_HISTORY_LOST;
    case_result result = {.verdict = VERDICT_PASS};
    for (size_t i = of_gate ? 2 : 0; i < sizeof cases / sizeof *cases && result.verdict == VERDICT_PASS; ++i) {
      model_judge(&cases[i], "simt", NULL, NULL, &result);
      if (layers_mistake == LAYERS_NO_MISTAKE)
        cr_expect_eq(result.verdict, VERDICT_PASS, "case %zu: %s", i, result.message);
    }
    if (layers_mistake != LAYERS_NO_MISTAKE)
      cr_expect_neq(result.verdict, VERDICT_PASS, "mistake %d: %s", layers_mistake, result.message);
  }
}

/* The fixed form, with several pieces of keys: beside the reference, and a request alone and in company. */
static case_result judge_fixed(model_way way) {
  case_result result = {.verdict = VERDICT_PASS};
  model_case mc = engine_case(ASSAY_QWEN3, way == WAY_GRAPH ? 150 : 118);
  mc.way = way;
  mc.invariant = true;
  mc.config.max_pos = 1024;
  mc.batch = way == WAY_GRAPH ? 3 : 7;
  mc.steps = way == WAY_GRAPH ? 5 : 12; /* many bits: what is rounded may hide another order */
  model_judge(&mc, "simt", NULL, NULL, &result);
  return result;
}

Test(layers_mutants, of_the_fixed_form_are_found) {
  static const struct {
    int mistake;
    model_way way;
  } seen[] = {{LAYERS_PIECES_BY_BATCH, WAY_INVARIANT},
              {LAYERS_OWN_PIECE_LOST, WAY_GRAPH},
              {LAYERS_PIECE_LOST, WAY_GRAPH},
              {LAYERS_PIECES_STAY, WAY_GRAPH}};
  for (size_t i = 0; i < sizeof seen / sizeof *seen; ++i) {
    layers_mistake = LAYERS_NO_MISTAKE;
    case_result result = {.verdict = VERDICT_PASS};
    if (i < 2) result = judge_fixed(seen[i].way);
    cr_expect_eq(result.verdict, VERDICT_PASS, "%s", result.message);
    layers_mistake = seen[i].mistake;
    result = judge_fixed(seen[i].way);
    cr_expect_neq(result.verdict, VERDICT_PASS, "mistake %d: %s", layers_mistake, result.message);
  }
  layers_mistake = LAYERS_NO_MISTAKE;
}

/* Beside invariant the form is for all generated tokens of an engine. Nothing else knows which these are. */
Test(layers_mutants, beside_invariant_it_is_for_engines_of_few_requests) {
  static const char *const form[] = {"one_launch=on"};
  const assay_model_options model = {.form = form, .forms = 1, .invariant = true};
  const assay_model_config c = config_of();
  const assay_model_limits limits = {.num_blocks = 8, .max_tokens = 8, .max_requests = 2, .max_logits = 2};
  assay_engine_options options = {
      .device = "simt", .num_blocks = 8, .max_batch = 33, .max_tokens = 33, .max_length = 16, .model = &model};
  assay_model_weights weights;
  assay_model_session *session = NULL;
  assay_engine *e = NULL;
  layers_mistake = LAYERS_NO_MISTAKE;
  cr_assert_eq(assay_model_weights_alloc(&c, &weights, &error), ASSAY_OK);
  cr_assert_eq(assay_model_seed(&c, 7, &weights, &error), ASSAY_OK);
  cr_expect_eq(assay_engine_open(&c, &weights, &options, &e, &error), ASSAY_ERR_INPUT);
  cr_expect_not_null(strstr(error.text, "with max_batch 33, allowed in an engine with max_batch 1 to 32"), "%s",
                     error.text);
  options.max_batch = 32;
  error.text[0] = '\0';
  cr_expect_eq(assay_engine_open(&c, &weights, &options, &e, &error), ASSAY_OK, "%s", error.text);
  assay_engine_close(e);
  const assay_model_backend *const simt = assay_model_simt();
  cr_assert_eq(simt->open(&c, &weights, &limits, ASSAY_MODEL_EXACT, &session, &error), ASSAY_OK, "%s", error.text);
  cr_expect_eq(simt->set_options(session, &model, &error), ASSAY_ERR_INPUT);
  cr_expect_not_null(strstr(error.text, "with max_batch 0, allowed in an engine"), "%s", error.text);
  simt->close(session);
  assay_model_weights_free(&weights);
}

/* ---- packed weights --------------------------------------------------------------------------------------- */

enum { HIDDEN = 64, HEADS = 4, KV = 2, D = 16, I = 128, BLOCKS = 8, PARTS = 2, QKV = (HEADS + 2 * KV) * D };

typedef struct stage {
  const uint16_t *w;
  int64_t width, first, pairs, columns;
  int64_t column[4]; /* row of w that is the first of each tile of 8 */
} stage;

/* Counts the words that differ from the stage's weights in the order of fragments. */
static int64_t wrong_words(const uint32_t **at, const stage *s) {
  int64_t wrong = 0;
  for (int64_t pair = 0; pair < s->pairs; ++pair)
    for (int64_t tile = 0; tile < s->columns; ++tile)
      for (int64_t lane = 0; lane < 32; ++lane)
        for (int64_t octet = 0; octet < 4; ++octet) {
          const int64_t row = s->column[tile] + lane / 4;
          const uint16_t *const from = s->w + row * s->width + s->first + 32 * pair + 8 * octet + 2 * (lane % 4);
          wrong += *(*at)++ != ((uint32_t)from[0] | (uint32_t)from[1] << 16);
        }
  return wrong;
}

static int64_t wrong_blocks(const uint32_t *packed, const assay_layers_weights *w) {
  int64_t wrong = 0;
  for (int64_t b = 0; b < BLOCKS; ++b) {
    const int64_t group = b / PARTS * PARTS * 8;
    const stage stages[] = {{w->qkv, HIDDEN, 0, HIDDEN / 32, 2, {16 * b, 16 * b + 8}},
                            {w->proj, HEADS * D, 0, HEADS * D / 32, 1, {8 * b}},
                            {w->up, HIDDEN, 0, HIDDEN / 32, 4, {16 * b, 16 * b + 8, I + 16 * b, I + 16 * b + 8}},
                            {w->down, I, b % PARTS * (I / PARTS), I / PARTS / 32, PARTS, {group, group + 8}}};
    for (size_t s = 0; s < sizeof stages / sizeof *stages; ++s)
      wrong += wrong_words(&packed, &stages[s]);
  }
  return wrong;
}

Test(layers_mutants, weights_are_packed_bit_for_bit) {
  const assay_layers *const kernel = planted_layers_simt();
  const assay_model_config c = config_of();
  uint16_t *const drawn = malloc(2 * HIDDEN * (QKV + HEADS * D + 3 * I) + 4 * (HIDDEN + D));
  void *memory = NULL;
  cr_assert_not_null(drawn);
  cr_assert_eq(device->alloc(kernel->bytes(&c, false), &memory, &error), ASSAY_OK, "%s", error.text);
  for (int64_t i = 0; i < HIDDEN * (QKV + HEADS * D + 3 * I) + 2 * (HIDDEN + D); ++i)
    drawn[i] = (uint16_t)(i * 40503 % 65521); /* NaN and infinity too */
  assay_layers_weights w = {.qkv = drawn};
  w.proj = (const uint16_t *)w.qkv + HIDDEN * QKV;
  w.up = (const uint16_t *)w.proj + HIDDEN * HEADS * D;
  w.down = (const uint16_t *)w.up + 2 * HIDDEN * I;
  w.pre = (const uint16_t *)w.down + HIDDEN * I;
  w.post = (const uint16_t *)w.pre + HIDDEN;
  w.q_norm = (const uint16_t *)w.post + HIDDEN;
  w.k_norm = (const uint16_t *)w.q_norm + D;
  const int64_t words = BLOCKS * 4 * HIDDEN * (2 + 1 + 4) + BLOCKS * PARTS * 4 * (I / PARTS);
  for (int planted = 0; planted < 2; ++planted) {
    layers_mistake = planted ? LAYERS_PACKED_OTHERWISE : LAYERS_NO_MISTAKE;
    cr_assert_eq(kernel->pack(&c, false, 1, &w, memory, device->stream(), &error), ASSAY_OK, "%s", error.text);
    cr_assert_eq(device->synchronize(&error), ASSAY_OK, "%s", error.text);
    const int64_t wrong = wrong_blocks((const uint32_t *)memory + words, &w);
    cr_expect((wrong > 0) == planted, "planted %d: %lld words differ", planted, (long long)wrong);
  }
  layers_mistake = LAYERS_NO_MISTAKE;
  device->release(memory);
  free(drawn);
}

/* ---- refusals ---------------------------------------------------------------------------------------------- */

Test(layers_mutants, what_it_does_not_take_is_refused) {
  const assay_layers *const kernel = planted_layers_simt();
  const char *const says[] = {"arch: found gpt2, allowed qwen3, asynct",
                              "qk_norm: found false, allowed true",
                              "qkv_bias: found true, allowed false",
                              "proj_bias: found true, allowed false",
                              "mlp_bias: found true, allowed false",
                              "fp8_weights: found true, allowed false",
                              "weight_dtype, act_dtype, kv_dtype: found bf16, bf16, e4m3, allowed bf16",
                              "weight_dtype, act_dtype, kv_dtype: found f16, f16, f16, allowed bf16",
                              "rope_style, rotated: found interleaved, 16, allowed neox and head_size's 16",
                              "rope_style, rotated: found neox, 8, allowed neox and head_size's 16",
                              "score_scale, score_cap: found 0.5, 0, allowed 0",
                              "found 64, 4, 2, 16, 96, allowed those that the kernel is compiled for on simt",
                              "found 64, 4, 4, 16, 128, allowed those that the kernel is compiled for on simt"};
  assay_model_config c = config_of();
  cr_expect_eq(kernel->supports(&c, false, 1, &error), ASSAY_OK, "%s", error.text);
  for (size_t i = 0; i < sizeof says / sizeof *says; ++i) {
    c = config_of();
    if (i == 0) c.arch = ASSAY_GPT2;
    c.qk_norm = i != 1;
    c.qkv_bias = i == 2;
    c.proj_bias = i == 3;
    c.mlp_bias = i == 4;
    c.fp8_weights = i == 5;
    if (i == 6) c.kv_dtype = ASSAY_E4M3;
    if (i == 7) c.weight_dtype = c.act_dtype = c.kv_dtype = ASSAY_F16;
    if (i == 8) c.rope_style = ASSAY_ROPE_INTERLEAVED;
    if (i == 9) c.rotated = 8;
    if (i == 10) c.score_scale = 0.5;
    if (i == 11) c.intermediate = 96;
    if (i == 12) c.kv_heads = 4;
    error.text[0] = 0;
    cr_expect_eq(kernel->supports(&c, false, 1, &error), ASSAY_ERR_UNSUPPORTED, "%s", says[i]);
    cr_expect_not_null(strstr(error.text, says[i]), "found '%s', expected '%s'", error.text, says[i]);
  }
  c = config_for(ASSAY_ASYNCT);
  cr_expect_eq(kernel->supports(&c, false, 1, &error), ASSAY_OK, "%s", error.text);
  for (int i = 0; i < 2; ++i) {
    c.gate_taps = i == 0 ? 4 : 3;
    c.gate_relu_pre = i == 0;
    error.text[0] = 0;
    cr_expect_eq(kernel->supports(&c, false, 1, &error), ASSAY_ERR_UNSUPPORTED);
    cr_expect_not_null(strstr(error.text, "allowed up to 3, true"), "%s", error.text);
  }
  c = config_of();
  for (int64_t rows = 0; rows <= ASSAY_LAYERS_ROWS + 1; rows += ASSAY_LAYERS_ROWS + 1) {
    const assay_layers_step step = {.rows = rows};
    assay_env env = {.stream = NULL};
    error.text[0] = 0;
    cr_expect_eq(kernel->launch(&c, false, NULL, &step, &env, &error), ASSAY_ERR_UNSUPPORTED);
    cr_expect_not_null(strstr(error.text, "allowed 1 to 32"), "%s", error.text);
  }
  const assay_layers_step large = {.rows = 1, .pool_layer = (INT64_C(1) << 31) * 2 * 16};
  assay_env env = {.stream = NULL};
  error.text[0] = 0;
  cr_expect_eq(kernel->launch(&c, false, NULL, &large, &env, &error), ASSAY_ERR_UNSUPPORTED);
  cr_expect_not_null(strstr(error.text, "tokens of the cache: found 2147483648, allowed"), "%s", error.text);
}

/* ---- memory ------------------------------------------------------------------------------------------------ */

static int64_t more_than_there_is(const assay_model_config *config, bool fixed) {
  (void)config, (void)fixed;
  return INT64_C(1) << 60;
}

static assay_status packs_no_more(const assay_model_config *config, bool fixed, int64_t layer,
                                  const assay_layers_weights *weights, void *memory, void *stream, assay_error *out) {
  (void)config, (void)fixed, (void)layer, (void)weights, (void)memory, (void)stream;
  return assay_fail(out, ASSAY_ERR_DEVICE, "the device is lost");
}

static case_result judged_with(const assay_layers *kernel, const char *form) {
  model_case mc = engine_case(ASSAY_QWEN3, 20);
  case_result result = {.verdict = VERDICT_PASS};
  (void)snprintf(mc.form, sizeof mc.form, "%s", form);
  assay_registry_add_layers(kernel);
  model_judge(&mc, "simt", NULL, NULL, &result);
  return result;
}

/* auto goes operator by operator where the copy of the weights has no room. Nothing else may turn it off. */
Test(layers_mutants, without_room_for_the_copy_auto_is_off) {
  static assay_layers large, lost;
  layers_mistake = LAYERS_NO_MISTAKE;
  large = lost = *planted_layers_simt();
  large.bytes = more_than_there_is;
  lost.pack = packs_no_more;
  case_result result = judged_with(&large, "one_launch=auto");
  cr_expect_eq(result.verdict, VERDICT_PASS, "%s", result.message);
  result = judged_with(&large, "one_launch=on");
  cr_expect_neq(result.verdict, VERDICT_PASS);
  cr_expect_not_null(strstr(result.message, "alloc of 1152921504606846976 bytes"), "%s", result.message);
  result = judged_with(&lost, "one_launch=auto");
  cr_expect_neq(result.verdict, VERDICT_PASS);
  cr_expect_not_null(strstr(result.message, "the device is lost"), "%s", result.message);
}
