/* simt_model_suite_test.c: suites of models: what the files may say; a device with another constant is found, and the
 * operator that has it is named. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "conformance/builtin.h"
#include "conformance/models/suite.h"
#include "engine_scenario.h"

static assay_error error;

static void setup(void) {
  cr_assert_eq(builtin_register(&error), ASSAY_OK, "%s", error.text);
}

TestSuite(model_suite, .init = setup);

static model_case small(int number, model_way way) {
  return (model_case){.name = "planted",
                      .model = "small",
                      .config = scenario_model(number),
                      .seed = 7,
                      .way = way,
                      .batch = 3,
                      .steps = 6,
                      .judged = 3,
                      .prompt = 20};
}

Test(model_suite, a_wrong_constant_is_found_and_its_operator_named) {
  const model_way ways[] = {WAY_PREFILL, WAY_DECODE, WAY_CHUNKED, WAY_BATCHED, WAY_SHARED};
  case_result result;
  for (size_t w = 0; w < sizeof ways / sizeof *ways; ++w)
    for (int fault = 0; fault < 5; ++fault) {
      const model_case mc = small(fault == 0 ? 0 : fault < 3 ? 1 : 2, ways[w]);
      assay_model_config wrong = mc.config;
      const char *says = "layers.0.attn.pre of layer_norm is the first stage that departs";
      if (fault == 0) wrong.eps = 0.05;
      if (fault == 1) {
        wrong.rope_base *= 1.01;
        says = "layers.0.attn.q of rope is the first stage that departs";
      }
      if (fault == 2) {
        wrong.eps *= 1.5;
        says = "layers.0.attn.pre of rms_norm is the first stage that departs";
      }
      if (fault == 3) {
        wrong.gate_hi = 0.9;
        says = "layers.0.attn.out of kv_append, gate_attention is the first stage that departs";
      }
      if (fault == 4) {
        wrong.gate_relu_pre = !wrong.gate_relu_pre;
        says = "layers.0.attn.out of kv_append, gate_attention is the first stage that departs";
      }
      model_judge(&mc, "simt", NULL, &wrong, &result);
      cr_expect(result.verdict == VERDICT_FAIL && strstr(result.message, says) != NULL, "%s, fault %d: %s",
                model_way_name(ways[w]), fault, result.message);
    }
  for (int eager = 0; eager < 2; ++eager) {
    const model_case mc = small(1, eager ? WAY_EAGER : WAY_GRAPH);
    assay_model_config wrong = mc.config;
    wrong.eps = 1e-4;
    model_judge(&mc, "simt", NULL, &wrong, &result);
    cr_expect(result.verdict == VERDICT_FAIL && strcmp(result.check, "logits") == 0, "%s: %s", result.check,
              result.message);
  }
}

static verdict judge_forced(const model_case *mc, model_forced *forced, case_result *result) {
  model_judge(mc, "simt", forced, NULL, result);
  return result->verdict;
}

/* small(1) is f32, heads of 16: `mma` is for 16-bit prefill. */
Test(model_suite, a_forced_variant_that_declines_is_no_failure_and_an_unknown_one_is) {
  const model_case mc = small(1, WAY_DECODE);
  case_result result;
  model_forced unknown = {.word = {"gemm=none_such"}, .count = 1}, declines = {{"softmax_attention=mma"}, 1, {0}};
  cr_expect_eq(judge_forced(&mc, &unknown, &result), VERDICT_FAIL);
  cr_expect_not_null(strstr(result.message, "none_such"), "%s", result.message);
  cr_expect_eq(judge_forced(&mc, &declines, &result), VERDICT_UNSUPPORTED, "%s", result.message);
  cr_expect_not_null(strstr(result.message, "the forced variant does not take the call; mma: "), "%s", result.message);
  cr_expect_eq(declines.taken[0], 0);
}

Test(model_suite, forced_variants_are_tried_in_turn_and_what_took_nothing_is_known) {
  const model_case mc = small(1, WAY_DECODE);
  case_result result;
  model_forced tiles = {{"gemm=tiles"}, 1, {0}}, never = {{"gate_attention=split_keys"}, 1, {0}};
  model_forced list = {
      {"softmax_attention=mma", "softmax_attention=decode_rows", "softmax_attention=prefill_as_decode", "gemm=tiles"},
      4,
      {0}};
  cr_expect_eq(judge_forced(&mc, &tiles, &result), VERDICT_PASS, "%s", result.message);
  cr_expect_eq(tiles.taken[0], 1);
  cr_expect_eq(judge_forced(&mc, &list, &result), VERDICT_PASS, "%s", result.message);
  cr_expect(list.taken[0] == 0 && list.taken[1] == 1 && list.taken[2] == 1 && list.taken[3] == 1);
  /* The model has no gate: its case says nothing of gate_attention's variants. */
  cr_expect_eq(judge_forced(&mc, &never, &result), VERDICT_UNSUPPORTED, "%s", result.message);
  cr_expect_not_null(strstr(result.message, "no call of the case took a forced variant"), "%s", result.message);
  cr_expect_eq(never.taken[0], 0);
}

/* A form that is on is taken, or the case fails: prefill has no step of one token per request. */
Test(model_suite, a_form_that_is_on_and_never_taken_is_a_failure) {
  model_case mc = small(1, WAY_PREFILL);
  case_result result;
  (void)snprintf(mc.form, sizeof mc.form, "append=on");
  cr_expect_eq(judge_forced(&mc, NULL, &result), VERDICT_FAIL);
  cr_expect_not_null(strstr(result.message, "form append: found on"), "%s", result.message);
  mc.way = WAY_DECODE;
  cr_expect_eq(judge_forced(&mc, NULL, &result), VERDICT_PASS, "%s", result.message);
  (void)snprintf(mc.form, sizeof mc.form, "post_pre_uclip=on");
  cr_expect_eq(judge_forced(&mc, NULL, &result), VERDICT_FAIL);
  cr_expect_not_null(strstr(result.message, "this qwen3 model cannot have"), "%s", result.message);
}

/* ---- files ----------------------------------------------------------------------------------------------- */

static const char path[] = "model_suite_test_tmp.yaml";

static assay_status read_text(const char *text, model_cases *cases) {
  FILE *file = fopen(path, "w");
  cr_assert_not_null(file);
  (void)fputs(text, file);
  (void)fclose(file);
  error.text[0] = '\0';
  const assay_status status = model_suite_read(path, cases, &error);
  (void)remove(path);
  return status;
}

#define HEAD "models:\n  a: {arch: qwen3, layers: 1}\n  b: {arch: gpt2, layers: 1}\n"

Test(model_suite, files_expand) {
  model_cases cases;
  char folder[] = "/tmp/model_suite_XXXXXX";
  cr_assert(mkdtemp(folder) != NULL && chdir(folder) == 0);
  cr_assert_eq(read_text(HEAD "check:\n  - {name: x, model: [a, b], dtype: [f32, bf16], run: [prefill, graph]}\n"
                              "  - {name: y, model: a, dtype: f16, run: decode, form: [append=on, append=off], "
                              "devices: cuda, nightly: true, steps: 3}\n",
                         &cases),
               ASSAY_OK, "%s", error.text);
  cr_assert_eq(cases.count, 10);
  cr_expect_str_eq(cases.list[3].name, "x_graph_bf16");
  cr_expect_eq(cases.list[3].config.weight_dtype, ASSAY_BF16);
  cr_expect_str_eq(cases.list[9].name, "y_decode_f16_append=off");
  cr_expect(cases.list[9].nightly && cases.list[9].devices == CASE_ON_CUDA && cases.list[9].steps == 3);
  const assay_case as = model_as_case(&cases.list[0], "some/models.yaml", "simt");
  const assay_case other = model_as_case(&cases.list[1], "some/models.yaml", "simt");
  cr_expect_str_eq(as.suite, "models");
  cr_expect_neq(as.seed, other.seed);
  model_cases_free(&cases);
  cr_expect(chdir("/") == 0 && rmdir(folder) == 0);
}

Test(model_suite, files_are_refused_by_place) {
  static const struct {
    const char *text, *says;
  } wrong[] = {
      {"models: {}\ncheck: []\n", "found no case"},
      {"models:\n  a: {arch: bert}\ncheck: []\n", "bert"},
      {"models:\n  a: {arch: gpt2, layers: none}\ncheck: []\n", "layers"},
      {"models:\n  a: {layers: 2}\ncheck: []\n", "arch: found none"},
      {HEAD "check:\n  - {name: x, model: c, dtype: f32, run: decode}\n", "model: found 'c', allowed a, b"},
      {HEAD "check:\n  - {name: x, model: a, dtype: f64, run: decode}\n", "dtype: found 'f64'"},
      {HEAD "check:\n  - {name: x, model: a, dtype: f32, run: sideways}\n", "run: found 'sideways', allowed prefill"},
      {HEAD "check:\n  - {name: x, model: a, dtype: f32, run: decode, devices: tpu}\n", "devices: found 'tpu'"},
      {HEAD "check:\n  - {name: x, model: a, dtype: f32, run: decode, steps: 0}\n", "steps: found '0'"},
      {HEAD "check:\n  - {name: x, model: a, dtype: f32, run: decode, nightly: yes}\n", "nightly: found 'yes'"},
      {HEAD "check:\n  - {model: a, dtype: f32, run: decode}\n", "name"},
      {HEAD "check:\n  - {name: x, model: a, dtype: f32, run: decode, colour: red}\n", "colour"}};
  char folder[] = "/tmp/model_suite_XXXXXX";
  model_cases cases;
  cr_assert(mkdtemp(folder) != NULL && chdir(folder) == 0);
  for (size_t i = 0; i < sizeof wrong / sizeof *wrong; ++i) {
    cr_expect_neq(read_text(wrong[i].text, &cases), ASSAY_OK, "%s", wrong[i].text);
    cr_expect(strstr(error.text, wrong[i].says) != NULL && strncmp(error.text, path, strlen(path)) == 0, "%s",
              error.text);
    cr_expect_eq(cases.count, 0);
  }
  cr_expect(chdir("/") == 0 && rmdir(folder) == 0);
}

/* Chunks of 7: with a variant of decode alone forced, the case passes where all of them are short tails, and only
 * there. */
Test(model_suite, short_tails_are_taken_row_by_row) {
  const struct {
    int32_t short_tail;
    verdict wanted;
  } tails[] = {{7, VERDICT_PASS}, {6, VERDICT_UNSUPPORTED}, {0, VERDICT_UNSUPPORTED}};
  for (size_t i = 0; i < sizeof tails / sizeof *tails; ++i) {
    model_case mc = small(2, WAY_CHUNKED);
    model_forced rows = {{"gate_attention=decode_rows"}, 1, {0}};
    case_result result;
    mc.short_tail = tails[i].short_tail;
    cr_expect_eq(judge_forced(&mc, &rows, &result), tails[i].wanted, "short_tail %d: %s", (int)mc.short_tail,
                 result.message);
  }
}
