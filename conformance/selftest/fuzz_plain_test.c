/* fuzz_plain_test.c: drawn cases of operators that are no attention over a cache they only read. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "conformance/fuzz/fuzz.h"
#include "conformance/judge/judge.h"
#include "conformance/case/shape.h"
#include "fake.h"
#include "fake_plain.h"

const assay_op *assay_op_mla_attention(void);

static const fuzz_choice anything = {.wheres = 0};

static fuzz *make(const assay_op *op) {
  fuzz *f = NULL;
  assay_error error = {""};
  plain_register();
  cr_assert_eq(fuzz_make(op, "simt", 5, &anything, &f, &error), ASSAY_OK, "%s", error.text);
  return f;
}

/* Every draw: legal or to be refused, small, the same from its descriptor, right when judged. */
static fuzz_counts run(const assay_op *op, const assay_variant *variant, int32_t draws,
                       void (*look)(const assay_case *one)) {
  fuzz *f = make(op);
  fuzz_draw drawn = {0};
  assay_error error = {""};
  fuzz_counts n;
  char *text = malloc(CASE_MAX_LINE), *again = malloc(CASE_MAX_LINE);
  for (int32_t i = 0; i < draws; ++i) {
    assay_case back;
    case_result r;
    cr_assert_eq(fuzz_next(f, &drawn, &error), ASSAY_OK, "%s", error.text);
    cr_assert(fuzz_claimed(variant, &drawn.one) || op == &plain_append_op);
    cr_assert_eq(case_print(&drawn.one, text, CASE_MAX_LINE, &error), ASSAY_OK);
    cr_assert_eq(case_parse(text, &back, &error), ASSAY_OK, "%s: %s", text, error.text);
    cr_assert_eq(case_print(&back, again, CASE_MAX_LINE, &error), ASSAY_OK);
    cr_assert_str_eq(text, again);
    case_free(&back);
    if (op->form == ASSAY_PLAIN) cr_assert_leq(shape_case_elements(&drawn.one), 1 << 20);
    judge_case(&drawn.one, variant, &fake_device, &r);
    if (drawn.phase == FUZZ_REFUSALS) {
      cr_assert_eq(r.verdict, VERDICT_REFUSED, "%s: %s: %s", text, r.check, r.message);
      continue;
    }
    const bool given_up = r.verdict == VERDICT_WEAK && drawn.one.tier == TIER_EXACT;
    cr_assert(r.verdict == VERDICT_PASS || given_up, "%s: %s: %s", text, r.check, r.message);
    look(&drawn.one);
    fuzz_judged(f, &drawn);
  }
  fuzz_count(f, &n);
  fuzz_free(f);
  free(text);
  free(again);
  return n;
}

static bool rows[5000], channels[2000], pads, exact, calibrated, present[4], special, dtypes[8], modes[4], appended;

static void look_at_mix(const assay_case *one) {
  rows[one->dim[0]] = channels[one->dim[1]] = true;
  pads = pads || one->row_pad > 0;
  exact = exact || one->tier == TIER_EXACT;
  calibrated = calibrated || one->tier == TIER_CALIBRATED;
  present[one->present >> 4 & 3] = true;
  dtypes[one->dtype] = true;
}

Test(fuzz_plain, boundaries_tiers_options_and_claims) {
  const fuzz_counts n = run(&plain_mix_op, &plain_mix, 1500, look_at_mix);
  static const int N[] = {1, 2, 3, 31, 32, 33, 63, 64, 65, 255, 256, 257};
  static const int C[] = {4, 8, 12, 20, 64, 128, 256, 1020, 1024};
  for (size_t i = 0; i < sizeof N / sizeof N[0]; ++i)
    cr_expect(rows[N[i]], "N = %d", N[i]);
  for (size_t i = 0; i < sizeof C / sizeof C[0]; ++i)
    cr_expect(channels[C[i]], "C = %d", C[i]);
  cr_expect(pads && exact && calibrated && present[0] && present[1] && present[2] && present[3]);
  cr_expect(dtypes[ASSAY_F32] && dtypes[ASSAY_F16] && dtypes[ASSAY_BF16]);
  cr_expect_eq(n.claims, 6, "types, and with and without y_out");
  cr_expect_eq(n.claims_judged, 6);
  cr_expect_eq(n.values_judged, n.values);
}

static void look_at_code(const assay_case *one) {
  exact = exact || one->tier == TIER_EXACT;
  special = special || one->values == ASSAY_SPECIAL;
}

Test(fuzz_plain, no_exact_tier_and_special_values) {
  const fuzz_counts n = run(&plain_code_op, &plain_code, 300, look_at_code);
  cr_expect(!exact && special);
  cr_expect_eq(n.claims_judged, 3);
}

static void look_at_append(const assay_case *one) {
  modes[one->mode] = true;
  appended = appended || one->share_with[one->batch - 1] >= 0;
}

Test(fuzz_plain, caches_that_are_written) {
  const fuzz_counts n = run(&plain_append_op, &plain_append, 600, look_at_append);
  cr_expect(modes[MODE_DECODE] && modes[MODE_PREFILL] && modes[MODE_CHUNKED] && modes[MODE_MIXED] && appended);
  cr_expect_gt(n.pairs_judged, n.pairs / 2);
  cr_expect_eq(n.claims, 6);
}

/* Draws for a GPU: some are large, few enough that one thread keeps up with many workers. */
Test(fuzz_plain, large_ones_are_paid_for, .timeout = 120) {
  fuzz *f = NULL;
  fuzz_draw drawn = {0};
  assay_error error = {""};
  double cost = 0, first = 0, largest = 0;
  enum { DRAWS = 3000, BEGIN = 40 };
  cr_assert_eq(fuzz_make(&plain_mix_op, "cuda", 5, &anything, &f, &error), ASSAY_OK, "%s", error.text);
  for (int i = 0; i < DRAWS; ++i) {
    cr_assert_eq(fuzz_next(f, &drawn, &error), ASSAY_OK, "%s", error.text);
    cost += drawn.cost_ms;
    if (i < BEGIN) first += drawn.cost_ms;
    if (drawn.cost_ms > largest) largest = drawn.cost_ms;
  }
  fuzz_free(f);
  cr_log_info("%.2f ms a draw, of the first %d %.2f, the largest %.1f", cost / DRAWS, (int)BEGIN, first / BEGIN,
              largest);
  cr_expect_gt(largest, 10.0, "none is large");
  cr_expect_lt(cost / DRAWS, 1.6, "%g ms a draw", cost / DRAWS);
}

/* Tables of many blocks are not read whole on simt: their lengths are unknown when the size of a case is looked at. */
Test(fuzz_plain, few_keys_of_a_table_on_simt, .timeout = 120) {
  fuzz *f = NULL;
  fuzz_draw drawn = {0};
  assay_error error = {""};
  int64_t most = 0;
  const assay_op *op = assay_op_mla_attention();
  cr_assert_eq(fuzz_make(op, "simt", 5, &anything, &f, &error), ASSAY_OK, "%s", error.text);
  for (int i = 0; i < 300; ++i) {
    cr_assert_eq(fuzz_next(f, &drawn, &error), ASSAY_OK, "%s", error.text);
    const int64_t N = drawn.one.dim[0], S = drawn.one.dim[4], W = drawn.one.dim[5];
    if (drawn.phase != FUZZ_REFUSALS && N * S * W > most) most = N * S * W;
  }
  fuzz_free(f);
  cr_expect_gt(most, 512, "none is large");
  cr_expect_leq(most, 4096);
}

/* ---- values asked for -------------------------------------------------------------------------------- */

static const char *refusal(const assay_op *op, const char *where) {
  static assay_error error;
  fuzz *f = NULL;
  const fuzz_choice choice = {.where = &where, .wheres = 1};
  plain_register();
  error.text[0] = '\0';
  cr_expect_eq(fuzz_make(op, "simt", 5, &choice, &f, &error), ASSAY_ERR_INPUT, "%s", where);
  cr_expect(f == NULL);
  return error.text;
}

Test(fuzz_plain, only_the_values_asked_for) {
  static const char *const where[] = {"N=77", "dtype=bf16", "dtype=f32", "tier=calibrated", "N=77", "N=3"};
  const fuzz_choice choice = {.where = where, .wheres = 6};
  fuzz *f = NULL;
  fuzz_draw drawn = {0};
  fuzz_counts n;
  assay_error error = {""};
  int32_t found[2][2] = {{0}};
  plain_register();
  cr_assert_eq(fuzz_make(&plain_mix_op, "simt", 5, &choice, &f, &error), ASSAY_OK, "%s", error.text);
  /* With N = 77 most widths are too large, so that N = 3 is drawn more often. */
  for (int i = 0; i < 800; ++i) {
    cr_assert_eq(fuzz_next(f, &drawn, &error), ASSAY_OK, "%s", error.text);
    const assay_case *one = &drawn.one;
    cr_assert(one->dim[0] == 77 || one->dim[0] == 3, "N = %d", (int)one->dim[0]);
    cr_assert(one->dtype == ASSAY_BF16 || one->dtype == ASSAY_F32);
    cr_assert_eq(one->tier, TIER_CALIBRATED);
    ++found[one->dim[0] == 77][one->dtype == ASSAY_F32];
    fuzz_judged(f, &drawn);
  }
  cr_expect(found[0][0] > 20 && found[0][1] > 20 && found[1][0] > 20 && found[1][1] > 20, "%d %d %d %d", found[0][0],
            found[0][1], found[1][0], found[1][1]);
  fuzz_count(f, &n);
  cr_expect_eq(n.values, n.values_judged, "%d of %d", (int)n.values_judged, (int)n.values);
  fuzz_free(f);
}

Test(fuzz_plain, requests_asked_for) {
  static const char *const where[] = {"batch=6", "kv_len=37", "mode=decode", "block_size=16"};
  const fuzz_choice choice = {.where = where, .wheres = 4};
  fuzz *f = NULL;
  fuzz_draw drawn = {0};
  assay_error error = {""};
  plain_register();
  cr_assert_eq(fuzz_make(&plain_append_op, "simt", 5, &choice, &f, &error), ASSAY_OK, "%s", error.text);
  for (int i = 0; i < 100; ++i) {
    bool any = false;
    cr_assert_eq(fuzz_next(f, &drawn, &error), ASSAY_OK, "%s", error.text);
    for (int32_t b = 0; b < drawn.one.batch; ++b)
      any = any || drawn.one.kv_len[b] == 37;
    cr_assert(drawn.one.batch == 6 && drawn.one.mode == MODE_DECODE && any);
  }
  fuzz_free(f);
}

Test(fuzz_plain, what_cannot_be_asked_for) {
  static const char *const wrong[][2] = {
      {"width=3", "--where: fake_mix: found 'width=3', allowed key=value, key one of "},
      {"N", "--where: fake_mix: found 'N', allowed key=value"},
      {"=3", "found '=3', allowed key=value"},
      {"section=edge", "found 'section=edge', allowed key=value"},
      {"N=0", "--where: fake_mix: N: found"},
      {"N=many", "--where: fake_mix: N: found"},
      {"dtype=f8", "--where: fake_mix: dtype: found"},
  };
  for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; ++i) {
    const char *text = refusal(&plain_mix_op, wrong[i][0]);
    cr_expect(strstr(text, wrong[i][1]) != NULL, "%s: %s", wrong[i][0], text);
  }
  const char *text = refusal(&plain_code_op, "tier=exact");
  cr_expect(strstr(text, "tier: found 'exact'") != NULL, "%s", text);
  text = refusal(&plain_append_op, "batch=301");
  cr_expect(strstr(text, "batch: found '301', allowed an integer from 1 to 300, or one of 1, 2, 3, 4, 8, 33, 300") !=
                NULL,
            "%s", text);
  const char *many[FUZZ_MAX_VALUES + 1];
  for (int i = 0; i <= FUZZ_MAX_VALUES; ++i)
    many[i] = "N=5";
  const fuzz_choice choice = {.where = many, .wheres = FUZZ_MAX_VALUES + 1};
  assay_error error = {""};
  fuzz *f = NULL;
  cr_expect(fuzz_make(&plain_mix_op, "simt", 5, &choice, &f, &error) == ASSAY_ERR_INPUT && f == NULL);
  cr_expect(strstr(error.text, "N: given more than 64 times") != NULL, "%s", error.text);
  text = refusal(&plain_append_op, "new=2");
  cr_expect(strstr(text, "new: found '2', allowed implied, 1, all, half, block, 0") != NULL, "%s", text);
}
