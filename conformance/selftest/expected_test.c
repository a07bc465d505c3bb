/* expected_test.c: what a scenario's tokens are held to: the right ones pass, wrong ones do not, near ties do. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "bench/expected.h"
#include "bench/online.h"

enum { NUMBER = 1, LENGTHS = 2 };

static assay_model_config small(assay_model_arch arch) {
  assay_model_config c = assay_model_production(arch);
  c.layers = 2;
  c.hidden = 64;
  c.heads = 4;
  c.kv_heads = 2;
  c.head_size = 16;
  c.rotated = 16;
  c.intermediate = 96;
  c.vocab = 300;
  c.max_pos = 64;
  if (arch != ASSAY_QWEN3_NEXT) return c;
  c.experts = 6;
  c.experts_used = 2;
  c.expert_size = c.shared_size = 24;
  c.linear = (assay_model_layers){{1}};
  c.linear_key_heads = 2;
  c.linear_value_heads = 4;
  c.linear_key_size = 8;
  c.linear_value_size = 12;
  return c;
}

static void make(assay_model_arch arch, expected *wanted, assay_model_config *config) {
  static const int64_t length[LENGTHS] = {5, 21};
  assay_model_weights weights;
  assay_error error = {""};
  *config = small(arch);
  cr_assert_eq(assay_model_weights_alloc(config, &weights, &error), ASSAY_OK, "%s", error.text);
  cr_assert_eq(assay_model_seed(config, 3, &weights, &error), ASSAY_OK, "%s", error.text);
  cr_assert_eq(expected_compute(config, &weights, 3, NUMBER, length, LENGTHS, wanted, &error), ASSAY_OK, "%s",
               error.text);
  expected alone;
  cr_assert_eq(expected_compute(config, &weights, 3, NUMBER, length + 1, 1, &alone, &error), ASSAY_OK, "%s",
               error.text);
  for (int s = 0; s < EXPECTED_STEPS; ++s) /* a shorter prompt on the way changes nothing */
    cr_assert_float_eq(alone.logit[s][0], wanted[1].logit[s][0], 1e-9);
  assay_model_weights_free(&weights);
}

static void first_of_each(const expected *wanted, int32_t *ids) {
  for (int s = 0; s < EXPECTED_STEPS; ++s)
    ids[s] = wanted->id[s][0];
}

Test(expected, tokens) {
  for (int arch = ASSAY_QWEN3; arch <= ASSAY_ASYNCT; ++arch) {
    expected wanted[LENGTHS];
    assay_model_config config;
    char why[400] = "";
    int32_t ids[EXPECTED_STEPS];
    int64_t agreed = 0;
    make((assay_model_arch)arch, wanted, &config);
    cr_expect((arch == ASSAY_ASYNCT) == (wanted[0].live > 0), "%g", wanted[0].live);
    cr_expect_gt(wanted[1].rms, 0);
    first_of_each(&wanted[1], ids);
    cr_expect(expected_check(&wanted[1], ids, EXPECTED_STEPS, &agreed, why, sizeof why), "%s", why);
    cr_expect_eq(agreed, EXPECTED_STEPS);
    ids[3] = wanted[1].id[3][1]; /* the second, far below the first */
    wanted[1].logit[3][1] = wanted[1].logit[3][0] - 5 * wanted[1].rms;
    cr_expect(!expected_check(&wanted[1], ids, EXPECTED_STEPS, &agreed, why, sizeof why));
    cr_expect_eq(agreed, 3);
    cr_expect_not_null(strstr(why, "token 4: found"), "%s", why);
    wanted[1].logit[3][1] = wanted[1].logit[3][0] - 3 * wanted[1].rms; /* a near tie: another text from here on */
    cr_expect(expected_check(&wanted[1], ids, EXPECTED_STEPS, &agreed, why, sizeof why));
    cr_expect_eq(agreed, 3);
    ids[0] = (ids[0] + 7) % 300;
    cr_expect(!expected_check(&wanted[1], ids, EXPECTED_STEPS, &agreed, why, sizeof why));
  }
}

/* A walk goes on from the state that the shorter prompt left, not from that after its tokens. */
Test(expected, states) {
  expected wanted[LENGTHS];
  assay_model_config config;
  make(ASSAY_QWEN3_NEXT, wanted, &config);
  cr_expect(assay_model_has_states(&config));
  cr_expect_gt(wanted[1].rms, 0);
}

Test(expected, logits) {
  expected wanted[LENGTHS];
  assay_model_config config;
  char why[400] = "";
  double logits[300] = {0};
  make(ASSAY_QWEN3, wanted, &config);
  for (int i = 0; i < EXPECTED_BEST; ++i)
    logits[wanted[0].id[2][i]] = wanted[0].logit[2][i] + wanted[0].rms;
  cr_expect(expected_check_logits(&wanted[0], 2, logits, why, sizeof why), "%s", why);
  logits[wanted[0].id[2][5]] += 6 * wanted[0].rms;
  cr_expect(!expected_check_logits(&wanted[0], 2, logits, why, sizeof why));
  logits[wanted[0].id[2][5]] = NAN;
  cr_expect(!expected_check_logits(&wanted[0], 2, logits, why, sizeof why));
}

Test(expected, file) {
  expected wanted[LENGTHS], back;
  assay_model_config config;
  assay_error error = {""};
  bool found = false;
  const char *path = "/tmp/assay_expected_test.jsonl";
  make(ASSAY_ASYNCT, wanted, &config);
  FILE *file = fopen(path, "w");
  cr_assert_not_null(file);
  for (int i = 0; i < LENGTHS; ++i)
    expected_write(file, &config, 3, &wanted[i]);
  (void)fputs(
      "{\"arch\":\"asynct\",\"layers\":2,\"hidden\":64,\"vocab\":300,\"seed\":3,\"number\":7,\"prompt\":9,\"rms\":1}\n",
      file);
  (void)fclose(file);
  cr_assert_eq(expected_read(path, &config, 3, NUMBER, 21, &back, &found, &error), ASSAY_OK, "%s", error.text);
  cr_assert(found);
  cr_expect_eq(back.id[7][7], wanted[1].id[7][7]);
  cr_expect_float_eq(back.logit[7][7], wanted[1].logit[7][7], 1e-6);
  cr_assert_eq(expected_read(path, &config, 4, NUMBER, 21, &back, &found, &error), ASSAY_OK);
  cr_expect(!found);
  cr_expect_eq(expected_read(path, &config, 3, 7, 9, &back, &found, &error), ASSAY_ERR_INPUT);
  cr_expect_not_null(strstr(error.text, ":3: allowed"), "%s", error.text);
  (void)remove(path);
}

Test(expected, percentiles) {
  double ms[100];
  online_points p;
  for (int i = 0; i < 100; ++i)
    ms[i] = 100 - i;
  online_points_of(ms, 100, &p);
  cr_expect_float_eq(p.p50, 50, 1e-12);
  cr_expect_float_eq(p.p90, 90, 1e-12);
  cr_expect_float_eq(p.p99, 99, 1e-12);
  cr_expect_float_eq(p.mean, 50.5, 1e-12);
  online_points_of(ms, 1, &p);
  cr_expect_float_eq(p.p99, 1, 1e-12);
}

Test(expected, costs) {
  const assay_model_config c = assay_model_production(ASSAY_QWEN3);
  int64_t before[32], tokens[32];
  for (int i = 0; i < 32; ++i) {
    before[i] = 0;
    tokens[i] = 1;
  }
  const assay_cost cost = scenario_step_cost(&c, before, tokens, 32, 32, 0);
  /* weights of 28 layers and the head, once: 25.2 MB per layer and 311 MB */
  cr_expect_float_eq(cost.bytes, 28 * 25.17e6 + 311.2e6, 5e6, "%g", cost.bytes);
  cr_expect_float_eq(cost.flops, 2 * 32 * (28 * 12.58e6 + 155.6e6), 1e9, "%g", cost.flops);
}
