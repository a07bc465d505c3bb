/* judge_test.c: every way to be wrong that fake.h knows gets its name; right calls pass in every layout. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "conformance/judge/judge.h"
#include "conformance/trial/trial.h"
#include "conformance/trial/kappa.h"
#include "conformance/trial/tier2.h"
#include "core/dtype.h"
#include "fake.h"

/* A device that looks for changes itself has the three runs under way at once, and their images in its memory. */
static assay_status copy_within(void *to, const void *from, int64_t bytes, assay_error *error) {
  return fake_device.upload(to, from, bytes, error);
}
static assay_status compare(const void *a, const void *b, const assay_piece *piece, int32_t count, int32_t *differ,
                            assay_error *error) {
  (void)error;
  *differ = 0;
  for (int32_t i = 0; i < count; ++i)
    if (memcmp((const char *)a + piece[i].offset, (const char *)b + piece[i].offset, (size_t)piece[i].bytes) != 0)
      *differ = 1;
  return ASSAY_OK;
}

/* As a device does that has no room left for the answer. */
static assay_status compare_in_vain(const void *a, const void *b, const assay_piece *piece, int32_t count,
                                    int32_t *differ, assay_error *error) {
  (void)a, (void)b, (void)piece, (void)count, (void)error;
  *differ = -1;
  return ASSAY_OK;
}

/* On a device that compares, one that tries to and one that does not, with the same result. */
static case_result judged(const assay_case *one) {
  static assay_device looking;
  case_result result, other;
  judge_case(one, &fake_variant, &fake_device, &result);
  looking = fake_device;
  looking.copy = copy_within;
  looking.alloc_host = fake_device.alloc;
  looking.release_host = fake_device.release;
  for (int in_vain = 0; in_vain < 2; ++in_vain) {
    looking.compare = in_vain ? compare_in_vain : compare;
    judge_case(one, &fake_variant, &looking, &other);
    cr_expect_eq(other.verdict, result.verdict, "%s: %s", other.check, other.message);
    cr_expect_str_eq(other.check, result.check);
    if (fake_broken != FAULT_RUN_TO_RUN) cr_expect_str_eq(other.message, result.message);
    if (result.verdict == VERDICT_PASS) cr_expect_str_eq(other.laws, result.laws);
    cr_expect_str_eq(other.path, result.path);
  }
  return result;
}

static void expect(fake_fault fault, case_tier tier, verdict v, const char *check, const char *text) {
  assay_case one = fake_case(tier);
  fake_broken = fault;
  const case_result r = judged(&one);
  fake_broken = FAULT_NONE;
  cr_expect_eq(r.verdict, v, "fault %d: %s %s: %s", (int)fault, verdict_name(r.verdict), r.check, r.message);
  cr_expect_str_eq(r.check, check, "fault %d: %s: %s", (int)fault, r.check, r.message);
  cr_expect_not_null(strstr(r.message, text), "fault %d: %s", (int)fault, r.message);
  case_free(&one);
}

Test(judge, right_passes_exactly) {
  assay_case one = fake_case(TIER_EXACT);
  const case_result r = judged(&one);
  cr_assert_eq(r.verdict, VERDICT_PASS, "%s: %s", r.check, r.message);
  cr_assert_eq(r.rows_judged, 4);
  cr_assert_eq(r.elements_judged, 4 * 4 * (16 + 1));
  cr_assert_gt(r.visible_keys, r.live_keys);
  cr_assert_str_eq(r.path, "rows 4");
  cr_assert_str_eq(r.laws,
                   "guard,input,unwritten,dead_bytes,zero_p_v,run_to_run,renumbering,permutation,workspace,bases");
  case_free(&one);
}

Test(judge, right_passes_in_every_shape) {
  const assay_dtype type[][2] = {{ASSAY_F32, ASSAY_F32},
                                 {ASSAY_F16, ASSAY_F16},
                                 {ASSAY_BF16, ASSAY_BF16},
                                 {ASSAY_BF16, ASSAY_E4M3},
                                 {ASSAY_F32, ASSAY_E5M2}};
  for (int i = 0; i < 5 * 3 * 3 * 3 * 2 * 5; ++i) {
    assay_case one = fake_case(i % 2 == 0 ? TIER_EXACT : TIER_CALIBRATED);
    int n = i;
    one.dtype = type[n % 5][0];
    one.kv_dtype = type[n % 5][1];
    n /= 5;
    fake_set_param(&one, "layout", n % 3);
    n /= 3;
    one.tables = (case_tables)(n % 3);
    n /= 3;
    one.kv_pad = (int32_t[]){0, 48, -1}[n % 3];
    n /= 3;
    one.mode = n % 2 == 0 ? MODE_DECODE : MODE_MIXED;
    n /= 2;
    one.dead = (case_dead)(n % 5);
    one.q_pad = i % 7 == 0 ? 40 : 0;
    one.seed = (uint64_t)i;
    if (one.mode == MODE_MIXED) memcpy(one.new_len, (int32_t[]){5, 1, 0, 7}, 16);
    if (i % 3 == 0) {
      one.share_with[3] = 1;
      one.share_tokens[3] = 11;
    }
    if (i % 4 == 1) one.present = 0;
    fake_set_param(&one, "scale_per_head", i % 2);
    const case_result r = judged(&one);
    cr_assert_eq(r.verdict, VERDICT_PASS, "case %d: %s %s: %s", i, verdict_name(r.verdict), r.check, r.message);
    cr_assert_leq(r.ratio_element, 1.0);
    case_free(&one);
  }
}

Test(judge, wrong_values_are_found) {
  expect(FAULT_LAST_KEY, TIER_EXACT, VERDICT_FAIL, "exact", "expected exactly");
  expect(FAULT_LAST_KEY, TIER_EXACT, VERDICT_FAIL, "exact", " ulp of f32; ");
  expect(FAULT_LAST_KEY, TIER_CALIBRATED, VERDICT_FAIL, "element", "times the allowed");
}

/* One ulp too much everywhere is 3 σ: in bounds for each element, not for their mean. */
Test(judge, a_small_error_of_every_element_is_found) {
  assay_case one = fake_case(TIER_CALIBRATED);
  one.dtype = one.kv_dtype = ASSAY_BF16;
  fake_broken = FAULT_ROW_BIAS;
  const case_result r = judged(&one);
  cr_expect_eq(r.verdict, VERDICT_FAIL);
  cr_expect_str_eq(r.check, "row", "%s: %s", r.check, r.message);
  cr_expect_leq(r.ratio_element, 1.0);
  cr_expect_gt(r.ratio_row, 1.0);
  case_free(&one);
}

Test(judge, nan_never_passes) {
  expect(FAULT_NAN, TIER_EXACT, VERDICT_FAIL, "exact",
         "out: request 1, row 0 of its 1, head 1, channel 3; kv_len 16, last key 15 is slot 7 of its block 1");
  expect(FAULT_NAN, TIER_CALIBRATED, VERDICT_FAIL, "element", "got nan");
}

Test(judge, memory_is_watched) {
  expect(FAULT_UNWRITTEN, TIER_EXACT, VERDICT_FAIL, "unwritten", "head 3, channel 15");
  expect(FAULT_UNWRITTEN, TIER_CALIBRATED, VERDICT_FAIL, "unwritten", "never written");
  expect(FAULT_GUARD_AFTER, TIER_EXACT, VERDICT_FAIL, "guard", "out: wrote after its end, first at byte 2 past it");
  expect(FAULT_GUARD_BEFORE, TIER_EXACT, VERDICT_FAIL, "guard",
         "out: wrote before its start, first at byte 3 before it");
  expect(FAULT_GUARD_WORKSPACE, TIER_EXACT, VERDICT_FAIL, "guard",
         "workspace: wrote after its end of 12 bytes, first at byte 1");
  expect(FAULT_INPUT, TIER_EXACT, VERDICT_FAIL, "input", "kv_len: the call changed an input, first element 1 ");
}

Test(judge, laws_are_told_apart) {
  for (case_tier tier = TIER_EXACT; tier <= TIER_CALIBRATED; ++tier) {
    expect(FAULT_DEAD_TAIL, tier, VERDICT_FAIL, "dead_bytes", "dead bytes");
    expect(FAULT_ZERO_P, tier, VERDICT_FAIL, "zero_p_v", "p = 0");
  }
  /* A last bit more is inside tier 2's bounds; only the law sees it. */
  expect(FAULT_RUN_TO_RUN, TIER_CALIBRATED, VERDICT_FAIL, "run_to_run", "called again");
  expect(FAULT_RENUMBERING, TIER_CALIBRATED, VERDICT_FAIL, "renumbering", "block numbers");
  expect(FAULT_PERMUTATION, TIER_CALIBRATED, VERDICT_FAIL, "permutation", "another order");
}

static int32_t words_of(const char *laws) {
  int32_t words = laws[0] != '\0';
  for (const char *at = laws; *at != '\0'; ++at)
    words += *at == ',';
  return words;
}

/* Tells whether each word of `part` is one of `all`. */
static bool are_among(const char *part, const char *all) {
  char found[sizeof(((case_result *)NULL)->laws) + 2], wanted[80];
  (void)snprintf(found, sizeof found, ",%s,", all);
  for (const char *at = part; *at != '\0'; at += at[0] == ',') {
    const int length = (int)strcspn(at, ",");
    (void)snprintf(wanted, sizeof wanted, ",%.*s,", length, at);
    if (strstr(found, wanted) == NULL) return false;
    at += length;
  }
  return true;
}

static verdict verdict_with(fake_fault fault, const assay_case *one) {
  fake_broken = fault;
  const verdict found = judged(one).verdict;
  fake_broken = FAULT_NONE;
  return found;
}

/* A thinned case has one of its two further runs. One moves blocks and requests, and sees what depends on these. The
 * other has NaN in V. All that a thinned case is asked is part of what a whole run asks it. */
Test(judge, thinned_cases_are_asked_a_part) {
  enum { CASES = 64 };
  int32_t moved = 0, asked = 0, asked_thinned = 0;
  for (uint64_t seed = 1; seed <= CASES; ++seed) {
    assay_case one = fake_case(TIER_CALIBRATED);
    one.seed = seed;
    const case_result whole = judged(&one);
    thinned_use(true);
    const case_result thinned = judged(&one);
    const bool moves = strstr(thinned.laws, "permutation") != NULL;
    cr_expect_eq(thinned.verdict, VERDICT_PASS, "%s", thinned.message);
    cr_expect_neq(strstr(thinned.laws, "zero_p_v") != NULL, moves, "seed %d: %s", (int)seed, thinned.laws);
    cr_expect(are_among(thinned.laws, whole.laws), "%s, of %s", thinned.laws, whole.laws);
    cr_expect_eq(verdict_with(FAULT_PERMUTATION, &one), moves ? VERDICT_FAIL : VERDICT_PASS);
    cr_expect_eq(verdict_with(FAULT_ZERO_P, &one), moves ? VERDICT_PASS : VERDICT_FAIL);
    one.whole = true;
    cr_expect_str_eq(judged(&one).laws, whole.laws);
    thinned_use(false);
    moved += moves;
    asked += words_of(whole.laws) - 8; /* without those of the two further runs */
    asked_thinned += words_of(thinned.laws) - (moves ? 7 : 6);
    case_free(&one);
  }
  cr_expect(moved > CASES / 4 && moved < 3 * CASES / 4, "%d of %d", moved, CASES);
  cr_expect(asked_thinned > asked / 4 && asked_thinned < 3 * asked / 4, "%d of %d", asked_thinned, asked);
}

Test(judge, launches_that_fail) {
  expect(FAULT_HANG, TIER_EXACT, VERDICT_HANG, "hang", "all threads wait");
  expect(FAULT_LAUNCH, TIER_EXACT, VERDICT_FAIL, "launch", "grid: too large");
  assay_case one = fake_case(TIER_EXACT);
  fake_broken = FAULT_DEVICE;
  const case_result r = judged(&one);
  cr_expect_eq(r.verdict, VERDICT_CRASH);
  cr_expect(r.device_lost);
  cr_expect_not_null(strstr(r.message, "illegal address"));
  case_free(&one);
}

Test(judge, a_workspace_that_is_read_before_it_is_written) {
  assay_case one = fake_case(TIER_EXACT);
  fake_broken = FAULT_WORKSPACE;
  const case_result r = judged(&one);
  cr_expect_eq(r.verdict, VERDICT_FAIL);
  case_free(&one);
}

Test(judge, unsupported_says_why) {
  assay_case one = fake_case(TIER_EXACT);
  fake_set_dim(&one, "D", 24);
  const case_result r = judged(&one);
  cr_expect_eq(r.verdict, VERDICT_UNSUPPORTED);
  cr_expect_str_eq(r.message, "D: found 24, allowed 16, 32");
  case_free(&one);
}

Test(judge, off_the_lattice_is_weak) {
  assay_case one = fake_case(TIER_EXACT);
  one.values = ASSAY_NORMAL;
  const case_result r = judged(&one);
  cr_expect_eq(r.verdict, VERDICT_WEAK);
  cr_expect_str_eq(r.check, "admission");
  cr_expect_not_null(strstr(r.message, "not on the lattice"));
  case_free(&one);
}

Test(judge, some_rows) {
  assay_case one = fake_case(TIER_CALIBRATED);
  one.mode = MODE_PREFILL;
  memcpy(one.new_len, one.kv_len, 16);
  one.rows = 9;
  case_result r = judged(&one);
  cr_expect_eq(r.verdict, VERDICT_PASS, "%s: %s", r.check, r.message);
  cr_expect_eq(r.rows_judged, 9);
  cr_expect_null(strstr(r.laws, "zero_p_v"), "V of a key that an unjudged row needs may not be NaN");
  fake_broken = FAULT_LAST_KEY;
  r = judged(&one);
  cr_expect_str_eq(r.check, "element");
  case_free(&one);
}

static case_result refuse(case_break broken, const char *name, fake_fault fault) {
  assay_case one = fake_case(TIER_EXACT);
  one.section = SECTION_REFUSE;
  one.broken = broken;
  (void)snprintf(one.expect, sizeof one.expect, "%s", name);
  if (broken == BREAK_NOTHING) fake_set_dim(&one, "H_kv", 3);
  fake_broken = fault;
  const case_result r = judged(&one);
  fake_broken = FAULT_NONE;
  case_free(&one);
  return r;
}

Test(judge, refusals) {
  const struct {
    case_break broken;
    const char *name;
  } row[] = {{BREAK_NOTHING, "H"}, {BREAK_NULL, "q"},   {BREAK_MISALIGNED, "q"},       {BREAK_DTYPE, "k_cache"},
             {BREAK_SHAPE, "out"}, {BREAK_STRIDE, "q"}, {BREAK_WORKSPACE, "workspace"}};
  for (size_t i = 0; i < sizeof row / sizeof row[0]; ++i) {
    case_result r = refuse(row[i].broken, row[i].name, FAULT_NONE);
    cr_expect_eq(r.verdict, VERDICT_REFUSED, "%zu: %s %s: %s", i, verdict_name(r.verdict), r.check, r.message);
    r = refuse(row[i].broken, row[i].name, FAULT_ACCEPTS);
    cr_expect_eq(r.verdict, VERDICT_FAIL, "%zu: %s", i, r.message);
    cr_expect_str_eq(r.check, "refusal", "%zu: %s", i, r.message);
    r = refuse(row[i].broken, row[i].name, FAULT_REFUSES_MUTELY);
    cr_expect_str_eq(r.check, "refusal");
    cr_expect_not_null(strstr(r.message, "without naming"), "%zu: %s", i, r.message);
  }
  const case_result r = refuse(BREAK_DTYPE, "k_cache", FAULT_WRITES_THEN_REFUSES);
  cr_expect_eq(r.verdict, VERDICT_FAIL);
  cr_expect_str_eq(r.check, "refusal", "%s: %s", r.check, r.message);
}

static case_result refuse_argument(case_break broken, const char *argument, const char *expect) {
  assay_case one = fake_case(TIER_EXACT);
  one.section = SECTION_REFUSE;
  one.broken = broken;
  for (int32_t i = 0; i < one.op->arg_count; ++i)
    if (strcmp(one.op->args[i].name, argument) == 0) one.argument = i + 1;
  (void)snprintf(one.expect, sizeof one.expect, "%s", expect);
  const case_result r = judged(&one);
  case_free(&one);
  return r;
}

/* The argument that the case names is the one that is broken, and the one that the message is about. */
Test(judge, refusals_of_an_argument) {
  const struct {
    case_break broken;
    const char *argument, *expect, *message; /* NULL: refused as it should be */
  } row[] = {{BREAK_DTYPE, "k_cache", "k_cache", NULL},
             {BREAK_DTYPE, "k_cache", "cache", "launch() refuses without naming 'cache': k_cache: dtype i32"},
             {BREAK_DTYPE, "k_cache", "i32", "launch() refuses without naming 'i32'"},
             {BREAK_NEGATIVE, "out", "out", NULL},
             {BREAK_SHAPE, "q", "out", NULL},
             {BREAK_SHAPE, "q", "k_cache", "launch() refuses without naming 'k_cache': out: shape"},
             {BREAK_SHAPE, "q", "q", "launch() refuses without naming 'q': out: shape"},
             {BREAK_STRIDE, "out", "out", "the reference accepts a call that must be refused for 'out'"},
             {BREAK_OVERFLOW, "out", "out", "the reference accepts a call that must be refused for 'out'"},
             {BREAK_WORKSPACE_NULL, "", "workspace", NULL}};
  for (size_t i = 0; i < sizeof row / sizeof row[0]; ++i) {
    const case_result r = refuse_argument(row[i].broken, row[i].argument, row[i].expect);
    cr_expect_eq(r.verdict, row[i].message == NULL ? VERDICT_REFUSED : VERDICT_FAIL, "%zu: %s", i, r.message);
    cr_expect_str_eq(r.check, "refusal", "%zu: %s", i, r.message);
    if (row[i].message != NULL) cr_expect_not_null(strstr(r.message, row[i].message), "%zu: %s", i, r.message);
  }
}

/* Every comparison of tier 2 fails on NaN, also where σ is 0 or the reference is -Inf. */
Test(judge, nan_in_every_comparison) {
  assay_error error = {""};
  assay_case one = fake_case(TIER_CALIBRATED);
  const draw choice = {.poison = 1};
  trial t = {.one = &one, .variant = &fake_variant, .device = &fake_device};
  cr_assert_eq(image_make(&one, &choice, NULL, &t.first, &error), ASSAY_OK, "%s", error.text);
  double value[4] = {1.0, 0.0, -(double)INFINITY, 1e30}, sigma[4] = {0.5, 0.0, 0.0, 1e40};
  t.count = 1;
  t.output[0] = (trial_output){.arg = 9, .width = 1, .group = 1, .dtype = ASSAY_F32};
  t.rows.count = 4;
  t.expected[0] = (assay_expected){value, sigma};
  float got[4] = {1.0f, 0.0f, -INFINITY, 1e30f};
  const outputs seen = {{(unsigned char *)got}};
  finding f;
  values_judge(&t, &seen, &f);
  cr_expect(!f.wrong, "%s", f.message);
  const float wrong[] = {NAN, INFINITY, -NAN};
  for (int i = 0; i < 4; ++i)
    for (int k = 0; k < 3; ++k)
      for (int exact = 0; exact < 2; ++exact) {
        const float kept = got[i];
        got[i] = wrong[k];
        t.output[0].exact = exact != 0;
        if (exact) value[3] = (double)1e30f;
        values_judge(&t, &seen, &f);
        /* A bound that reaches past the largest f32 admits Inf, and no NaN. */
        const bool admitted = !exact && i == 3 && k == 1;
        cr_expect_eq(f.wrong, !admitted, "row %d, value %g: %s", i, (double)wrong[k], f.message);
        if (!admitted) cr_expect_gt(f.ratio_element, 1.0);
        got[i] = kept;
      }
  image_free(&t.first);
  case_free(&one);
}

Test(judge, limits_have_a_row_for_every_width) {
  const char *const op[] = {"gate_attention", "softmax_attention", "fake_gate"};
  const assay_dtype type[] = {ASSAY_F32, ASSAY_F16, ASSAY_BF16};
  for (int i = 0; i < 9; ++i)
    for (int64_t n = 1; n < 5000; ++n) {
      const int32_t row = kappa_row(op[i / 3], type[i % 3], n), next = kappa_row(op[i / 3], type[i % 3], n + 1);
      cr_assert(row >= 0 && next >= 0);
      cr_assert_gt(kappa_table[row].rms, 1.0);
      cr_assert_leq(kappa_table[next].rms, kappa_table[row].rms);
    }
}

/* Where one element has the variance, the mean over the row is that element's, and so is the limit. In 16 bits each
 * element has a rounding of its own: the wider of both limits counts, unless that rounding is all there is. */
Test(judge, a_mean_is_worth_its_variances) {
  for (int i = 0; i < 8; ++i) {
    const bool outlier = i & 1, f32 = i & 2, alone = i & 4;
    const assay_dtype dtype = f32 ? ASSAY_F32 : ASSAY_BF16;
    tier2_sums sums = {0};
    int32_t row;
    double seen;
    for (int c = 0; c < 128; ++c) {
      const double value = outlier && c == 5 ? 1000 : 1, sigma = assay_ulp(value, dtype) / (alone ? 3.46 : 3.2);
      tier2_note(&sums, sigma, sigma, value, dtype);
    }
    cr_expect_gt(tier2_mean(&sums, "rms_norm", dtype, sums.count, 0, &row, &seen), 0);
    const bool single = outlier && (f32 || !alone);
    cr_expect_eq(row, kappa_row("rms_norm", single ? ASSAY_F32 : dtype, single ? 1 : 128), "%d", i);
  }
  cr_expect_neq(kappa_row("rms_norm", ASSAY_F32, 1), kappa_row("rms_norm", ASSAY_F32, 128));
}

/* One value cancels against its bias, and its error in f32 is above its ulp; all others are known exactly. */
Test(judge, a_cancelled_value_among_exact_ones_is_a_single_draw) {
  const double ulps[] = {0.5, 0.9, 0.999, 1, 1.2, 5};
  for (int i = 0; i < 6; ++i) {
    tier2_sums sums = {0};
    int32_t row;
    double seen;
    for (int c = 0; c < 63; ++c) {
      const double value = c == 7 ? 0x1.7p-17 : 1, sigma = c == 7 ? ulps[i] * assay_ulp(value, ASSAY_BF16) : 0;
      tier2_note(&sums, 2.2 * sigma, sigma, value, ASSAY_BF16);
    }
    const double ratio = tier2_mean(&sums, "layer_norm", ASSAY_BF16, sums.count, 0, &row, &seen);
    cr_expect(fabs(seen - 2.2) < 1e-6 && ratio > 0, "%g", seen);
    const bool wide = ulps[i] < 1 || ulps[i] > 1; /* an ulp for sigma: off by one or none, which is narrow */
    cr_expect_eq(row, kappa_row("layer_norm", wide ? ASSAY_F32 : ASSAY_BF16, wide ? 1 : 63), "%g ulp", ulps[i]);
  }
}

/* Elements that are known exactly do not tell how the others scatter. Three, or 300, that share most of their error
 * have the limit of as many in f32. Three that are off by an ulp or not keep the limit of rows. */
Test(judge, a_row_of_which_most_is_exact_is_worth_the_rest) {
  for (int i = 0; i < 3; ++i) {
    const bool flips = i == 1, many = i == 2;
    tier2_sums sums = {0};
    int32_t row;
    double seen;
    for (int c = 0; c < 1024; ++c) {
      const double sigma = assay_ulp(1, ASSAY_BF16) * (flips ? 1 : 0.6);
      tier2_note(&sums, 0, c < (many ? 300 : 3) ? sigma : 0, 1, ASSAY_BF16);
    }
    (void)tier2_mean(&sums, "layer_norm", ASSAY_BF16, sums.count, 0, &row, &seen);
    const int32_t wanted =
        flips ? kappa_row("layer_norm", ASSAY_BF16, 1024) : kappa_row("layer_norm", ASSAY_F32, many ? 300 : 3);
    cr_expect_eq(row, wanted, "%d", i);
  }
}

/* A limit that clean runs nearly reach fails some day; one far above what they reach sees too little. */
Test(judge, limits_are_neither_tight_nor_loose) {
  for (int32_t i = 0; i < kappa_count; ++i) {
    if (kappa_table[i].clean == 0) continue;
    cr_expect_leq(kappa_table[i].clean, 0.85 * kappa_table[i].rms, "row %d", i);
    cr_expect_geq(1.5 * kappa_table[i].clean, kappa_table[i].rms, "row %d", i);
  }
}
