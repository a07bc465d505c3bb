/* model_seed_test.c: configurations, the names of weights, and seeded weights: the same on any machine, and 30 % of
 * asynct's visible keys live. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "model_driver.h"
#include "model_small.h"

static assay_error error;

Test(model, weights_are_found_by_name) {
  for (int number = 0; number < REF_MODELS; ++number) {
    const assay_model_config c = small_model(number);
    const int32_t count = assay_model_weight_count(&c);
    assay_weight_spec spec, first;
    for (int32_t i = 0; i < count; ++i) {
      cr_assert(assay_model_weight_spec(&c, i, &spec));
      cr_assert_eq(assay_model_weight_index(&c, spec.name), i, "%s", spec.name);
      cr_assert(spec.shape[0] > 0 && spec.shape[1] > 0 && (spec.rank == 2 || spec.shape[1] == 1), "%s", spec.name);
    }
    cr_expect_not(assay_model_weight_spec(&c, count, &spec));
    cr_expect_not(assay_model_weight_spec(&c, -1, &spec));
    cr_assert(assay_model_weight_spec(&c, 0, &first));
    cr_expect_str_eq(first.name, "embed.w");
    static const char *const none[] = {
        "",       "embed",   "layers.3.attn.qkv.w", "layers.-1.attn.qkv.w", "layers.00.attn.qkv.w",
        "layers", "layers.", "layers.0.",           "layers.0.attn.qkv",    "attn.qkv.w"};
    for (size_t i = 0; i < sizeof none / sizeof none[0]; ++i)
      cr_expect_eq(assay_model_weight_index(&c, none[i]), -1, "%s", none[i]);
  }
}

Test(model, production_widths_are_legal) {
  static const int64_t millions[ASSAY_ARCH_COUNT] = {354, 507, 596, 30532, 116829, 9241, 671026, 79674};
  for (int arch = 0; arch < ASSAY_ARCH_COUNT; ++arch) {
    const assay_model_config c = assay_model_production((assay_model_arch)arch);
    cr_expect_eq(assay_model_check(&c, &error), ASSAY_OK, "%s", error.text);
    assay_weight_spec spec;
    int64_t elements = 0;
    for (int32_t i = 0; assay_model_weight_spec(&c, i, &spec); ++i)
      elements += spec.shape[0] * spec.shape[1];
    cr_expect_eq(elements / 1000000, millions[arch], "%lld", (long long)elements);
  }
}

static void refused(assay_model_config c, const char *field) {
  assay_error found = {""};
  cr_expect_eq(assay_model_check(&c, &found), ASSAY_ERR_INPUT, "%s: not refused", field);
  cr_expect_eq(strncmp(found.text, field, strlen(field)), 0, "%s: %s", field, found.text);
}

Test(model, configurations_are_refused_by_field) {
#define REFUSED(number, field, value)                                                                                  \
  do {                                                                                                                 \
    assay_model_config c = small_model(number);                                                                        \
    c.field = value;                                                                                                   \
    refused(c, strtok((char[]){#field}, "."));                                                                         \
  } while (0)
  REFUSED(0, arch, ASSAY_ARCH_COUNT);
  REFUSED(0, layers, 0);
  REFUSED(0, hidden, -1);
  REFUSED(1, heads, 3);
  REFUSED(1, kv_heads, 0);
  REFUSED(1, head_size, 12);
  REFUSED(1, head_size, 264);
  REFUSED(1, intermediate, 0);
  REFUSED(1, vocab, 0);
  REFUSED(1, max_pos, 0);
  REFUSED(1, eps, 0);
  REFUSED(1, rotated, 3);
  REFUSED(1, rotated, 18);
  REFUSED(0, rotated, 8);
  REFUSED(1, experts, 4);
  REFUSED(1, act_limit, 7);
  REFUSED(1, window, 8);
  REFUSED(5, rope_kind, ASSAY_ROPE_KINDS);
  REFUSED(5, rope_factor, 0.5);
  REFUSED(5, rope_high, 1);
  REFUSED(6, experts, 0);
  REFUSED(6, experts, 1025);
  REFUSED(6, experts_used, 7);
  REFUSED(6, expert_size, 0);
  REFUSED(6, score_cap, 1);
  REFUSED(6, norm_bias, true);
  REFUSED(8, sparse.bits[0], 3);
  REFUSED(8, window, -1);
  REFUSED(8, rope_beta_fast, 0.5);
  REFUSED(8, qk_norm, true);
  REFUSED(9, score_scale, -1);
  REFUSED(10, kv_heads, 2);
  REFUSED(10, kv_rank, 0);
  REFUSED(10, value_size, 257);
  REFUSED(10, groups, 3);
  REFUSED(10, groups_used, 5);
  REFUSED(10, route_scale, 0);
  REFUSED(10, rotated, 16);
  REFUSED(10, kv_dtype, ASSAY_E4M3);
  REFUSED(10, qkv_bias, true);
  REFUSED(12, linear_value_heads, 5);
  REFUSED(12, linear_key_heads, 0);
  REFUSED(12, linear_key_size, 257);
  REFUSED(12, linear_value_size, 0);
  REFUSED(12, conv_taps, 5);
  REFUSED(12, conv_taps, 1);
  REFUSED(12, qk_norm, false);
  REFUSED(12, proj_bias, true);
  REFUSED(12, rope_style, ASSAY_ROPE_INTERLEAVED);
  REFUSED(6, linear.bits[0], 1);
  REFUSED(6, conv_taps, 4);
  REFUSED(1, q_rank, 8);
  REFUSED(6, shared_size, 8);
  REFUSED(9, logit_cap, -1);
  REFUSED(0, qk_norm, true);
  REFUSED(1, norm_bias, true);
  REFUSED(1, rope_base, -1);
  REFUSED(1, rope_style, ASSAY_ROPE_COUNT);
  REFUSED(1, weight_dtype, ASSAY_E4M3);
  REFUSED(1, act_dtype, ASSAY_I32);
  REFUSED(1, kv_dtype, ASSAY_F16);
  REFUSED(1, block_size, 24);
  REFUSED(1, block_size, 512);
  REFUSED(2, gate_taps, 9);
  REFUSED(2, gate_lo, -0.5);
  REFUSED(2, gate_lo, 2);
  REFUSED(2, gate_sigma, (double)NAN);
  REFUSED(1, eps, (double)NAN);
}

Test(model, weights_are_refused_by_name) {
  const assay_model_config c = small_model(1);
  assay_model_weights w;
  cr_assert_eq(assay_model_weights_alloc(&c, &w, &error), ASSAY_OK);
  cr_expect_eq(assay_model_weights_check(&c, &w, &error), ASSAY_OK, "%s", error.text);
  assay_tensor *tensor = &w.tensor[assay_model_weight_index(&c, "layers.1.mlp.up.w")];
  const assay_tensor right = *tensor;
  const struct {
    assay_tensor wrong;
    const char *says;
  } bad[] = {{{.data = NULL}, "missing"},
             {{right.data, ASSAY_F32, 2, {192, 64}, {64, 1}}, "dtype"},
             {{right.data, ASSAY_BF16, 1, {192 * 64}, {1}}, "axes"},
             {{right.data, ASSAY_BF16, 2, {64, 192}, {192, 1}}, "axis 1"},
             {{right.data, ASSAY_BF16, 2, {192, 64}, {65, 1}}, "stride"}};
  for (size_t i = 0; i < sizeof bad / sizeof bad[0]; ++i) {
    *tensor = bad[i].wrong;
    assay_error found = {""};
    cr_expect_eq(assay_model_weights_check(&c, &w, &found), ASSAY_ERR_INPUT, "%s", bad[i].says);
    cr_expect(strstr(found.text, "layers.1.mlp.up.w") != NULL && strstr(found.text, bad[i].says) != NULL, "%s",
              found.text);
  }
  *tensor = right;
  --w.count;
  cr_expect_eq(assay_model_weights_check(&c, &w, &error), ASSAY_ERR_INPUT);
  ++w.count;
  assay_model_weights_free(&w);
}

/* ---- the same weights everywhere ---- */

static uint64_t mix(uint64_t hash, const void *data, int64_t bytes) {
  const unsigned char *at = data;
  for (int64_t i = 0; i < bytes; ++i)
    hash = (hash ^ at[i]) * 0x100000001B3u;
  return hash;
}

Test(model, seeded_weights_are_the_same_on_every_machine) {
  static const uint64_t known[REF_MODELS] = {
      0x2FE1CE98CEF65C66, 0xA6DB037A6BC91082, 0xDAC6C6F445F42F13, 0x315579D6B15F2DA7, 0x5A13C6D2C720A9C6,
      0x6657B1B7FB33F522, 0x0977173AFD628E07, 0x7E1E29C3720BE41C, 0x8AECA386BE7AA44A, 0x15E2B9B9190EF4EC,
      0xE144446D272AD0CB, 0x80EEE5DCB821B567, 0xC0F5515CE14DBD8F, 0x66815CF470AFB30D, 0xF37EC37E819340CB};
  for (int number = 0; number < REF_MODELS; ++number) {
    const assay_model_config c = small_model(number);
    assay_model_weights w;
    cr_assert_eq(assay_model_weights_alloc(&c, &w, &error), ASSAY_OK);
    cr_assert_eq(assay_model_seed(&c, 1, &w, &error), ASSAY_OK, "%s", error.text);
    uint64_t hash = 0xCBF29CE484222325u;
    for (int32_t i = 0; i < w.count; ++i) {
      const assay_tensor *t = &w.tensor[i];
      hash = mix(hash, t->data, t->shape[0] * (t->rank == 2 ? t->shape[1] : 1) * assay_dtype_size(t->dtype));
    }
    int32_t ids[100];
    assay_model_prompt(&c, 1, 3, 100, ids);
    hash = mix(hash, ids, sizeof ids);
    cr_expect_eq(hash, known[number], "model %d: 0x%016llX", number, (unsigned long long)hash);
    assay_model_weights_free(&w);
  }
}

/* ---- live keys ---- */

typedef struct share {
  int64_t heads, n, live, visible;
} share;

static bool wants(void *context, const char *name) {
  (void)context;
  const char *end = strstr(name, ".attn.p");
  return end != NULL && strcmp(end, ".attn.p") == 0;
}

static void take(void *context, const char *name, int64_t rows, int64_t width, const double *value) {
  (void)name;
  share *s = context;
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t t = 0; t <= i / s->heads % s->n; ++t, ++s->visible)
      s->live += value[i * width + t] != 0;
}

static double live_share(const assay_model_config *c, uint64_t seed, int64_t n) {
  assay_model_weights w;
  cr_assert_eq(assay_model_weights_alloc(c, &w, &error), ASSAY_OK, "%s", error.text);
  cr_assert_eq(assay_model_seed(c, seed, &w, &error), ASSAY_OK, "%s", error.text);
  model_driver d;
  driver_open(&d, c, &w, n / c->block_size + 1, n, 1, ASSAY_MODEL_MIRROR);
  int32_t *ids = malloc((size_t)n * sizeof *ids);
  assay_model_prompt(c, seed, 0, n, ids);
  driver_add(&d, driver_request(&d, NULL, 0, NULL), ids, n, false);
  share s = {.heads = c->heads, .n = n};
  const assay_model_taps taps = {&s, wants, take, NULL};
  (void)driver_step(&d, &taps);
  cr_expect_eq(s.visible, c->layers * c->heads * n * (n + 1) / 2);
  driver_close(&d);
  free(ids);
  assay_model_weights_free(&w);
  return (double)s.live / (double)s.visible;
}

Test(model, three_keys_in_ten_are_live) {
  for (uint64_t seed = 1; seed <= 3; ++seed) {
    assay_model_config c = small_model(2);
    c.layers = 12;
    static const int64_t n[] = {48, 96, 256};
    for (size_t i = 0; i < sizeof n / sizeof n[0]; ++i) {
      const double live = live_share(&c, seed, n[i]);
      cr_expect(live >= 0.28 && live <= 0.32, "small, seed %llu, %lld ids: %.4f", (unsigned long long)seed,
                (long long)n[i], live);
    }
  }
  /* The production width, fewer layers and ids; bench/ref_speed runs all of it. */
  assay_model_config c = assay_model_production(ASSAY_ASYNCT);
  c.layers = 4;
  c.vocab = 4096;
  const double live = live_share(&c, 1, 64);
  cr_expect(live >= 0.28 && live <= 0.32, "production width: %.4f", live);
}
