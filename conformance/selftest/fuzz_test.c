/* fuzz_test.c: coverage that covers, draws that are legal and the same again, and the stream that carries them. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>

#include "conformance/judge/judge.h"
#include "conformance/run/execute.h"
#include "conformance/fuzz/fuzz.h"
#include "fake.h"

static const fuzz_choice anything = {.wheres = 0};

static fuzz *make(uint64_t seed) {
  fuzz *f = NULL;
  assay_error error = {""};
  fake_register();
  cr_assert_eq(fuzz_make(&fake_op, fake_variant.device, seed, &anything, &f, &error), ASSAY_OK, "%s", error.text);
  return f;
}

static void draw_one(fuzz *f, fuzz_draw *drawn) {
  assay_error error = {""};
  cr_assert_eq(fuzz_next(f, drawn, &error), ASSAY_OK, "%s", error.text);
}

static int64_t dim(const assay_case *one, const char *name) {
  for (int32_t i = 0; i < one->op->dim_count; ++i)
    if (strcmp(one->op->dims[i].name, name) == 0) return one->dim[i];
  cr_assert_fail("%s", name);
  return 0;
}

static int64_t longest(const assay_case *one) {
  int64_t L = 0;
  for (int32_t i = 0; i < one->batch; ++i)
    if (one->kv_len[i] > L) L = one->kv_len[i];
  return L;
}

/* Counts the draws from 128 to 512 that a variant would take which refuses all but one head, one D and one block size.
 */
static int32_t taken_of(bool told) {
  fuzz *f = make(3);
  int32_t taken = 0;
  for (int32_t i = 0; i < 512; ++i) {
    fuzz_draw drawn;
    do
      draw_one(f, &drawn);
    while (drawn.phase == FUZZ_REFUSALS);
    const int64_t D = dim(&drawn.one, "D"), H = dim(&drawn.one, "H"), block = dim(&drawn.one, "block_size");
    const char *const why = D != 16      ? "D: found another, allowed 16"
                            : H != 2     ? "H: found another, allowed 2"
                            : block < 16 ? "block_size: found less, allowed 16 and above"
                                         : "";
    taken += i >= 128 && why[0] == '\0';
    if (told) fuzz_told(f, &drawn, fake_variant.name, why[0] == '\0', why);
  }
  const char *name = NULL;
  int64_t given = 0, judged = 0;
  cr_assert(fuzz_variant_reached(f, 0, &name, &given, &judged));
  cr_assert_eq(given, told ? 512 : 0);
  cr_assert(judged >= (told ? taken : 0));
  cr_assert_not(fuzz_variant_reached(f, 1, &name, &given, &judged));
  fuzz_free(f);
  return taken;
}

Test(fuzz, learns_what_a_variant_takes) {
  const int32_t without = taken_of(false), with = taken_of(true);
  cr_assert(without < 384 / 16, "%d of 384 draws are taken by chance", without);
  cr_assert(with > 384 / 8, "%d of 384 draws are taken by a variant that says what it refuses", with);
}

/* Reads the cases themselves, not the fuzzer's words about them. */
typedef struct seen {
  bool H[300], H_kv[300], D[300], block[300], length[4096], batch[FUZZ_MAX_BATCH + 1];
  bool below_block, at_block, above_block, shared, permuted[4][3][5];
} seen;

static void look(seen *s, const assay_case *one) {
  assay_error error = {""};
  cr_assert_eq(case_check(one, &error), ASSAY_OK, "%s", error.text);
  const int64_t block = dim(one, "block_size");
  s->H[dim(one, "H")] = s->H_kv[dim(one, "H_kv")] = s->D[dim(one, "D")] = s->block[block] = true;
  s->batch[one->batch] = true;
  s->permuted[one->mode][(int)one->param[0]][one->dead] = true;
  for (int32_t i = 0; i < one->batch; ++i) {
    s->length[one->kv_len[i]] = true;
    s->below_block |= one->kv_len[i] == block - 1;
    s->at_block |= one->kv_len[i] == block;
    s->above_block |= one->kv_len[i] == block + 1;
    s->shared |= one->share_with[i] >= 0;
  }
}

static fuzz_counts cover(fuzz *f, seen *s, int32_t most) {
  fuzz_counts n;
  fuzz_draw drawn = {0};
  do {
    draw_one(f, &drawn);
    fuzz_count(f, &n);
    if (drawn.phase == FUZZ_REFUSALS) continue;
    look(s, &drawn.one);
    fuzz_judged(f, &drawn);
    fuzz_count(f, &n);
  } while (n.pairs_judged < n.pairs && n.draws < most);
  return n;
}

Test(fuzz, every_boundary_value_and_pair_is_drawn) {
  static const int lengths[] = {0, 1, 2, 31, 32, 33, 63, 64, 65, 127, 128, 129}; /* split 32 of the fake, tiles */
  static const int blocks[] = {8, 16, 32, 64, 128, 256};
  static seen s;
  fuzz *f = make(3);
  const fuzz_counts n = cover(f, &s, 5000);
  cr_assert(s.H[1] && s.H[2] && s.H[255] && s.H[256] && s.H[4], "ends of H, their neighbours, the fallback");
  cr_assert(s.H_kv[1] && s.H_kv[2] && s.H_kv[255] && s.H_kv[256]);
  cr_assert(s.D[8] && s.D[16] && s.D[248] && s.D[256]);
  for (size_t i = 0; i < sizeof blocks / sizeof blocks[0]; ++i)
    cr_assert(s.block[blocks[i]], "block_size %d", blocks[i]);
  for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; ++i)
    cr_assert(s.length[lengths[i]], "kv_len %d", lengths[i]);
  cr_assert(s.below_block && s.at_block && s.above_block && s.shared && s.batch[1] && s.batch[8] && s.batch[300]);
  for (int m = 0; m < 4; ++m)
    for (int l = 0; l < 3; ++l) {
      bool any = false;
      for (int d = 0; d < 5; ++d)
        any = any || s.permuted[m][l][d];
      cr_assert(any, "mode %d in layout %d", m, l);
    }
  cr_assert_eq(n.values_judged, n.values);
  cr_assert_eq(n.pairs_judged, n.pairs);
  cr_assert_eq(n.claims, 1);
  cr_assert_eq(n.claims_judged, 1);
  cr_assert_gt(n.values_impossible, 0, "255 and others are no block sizes");
  cr_assert_lt(n.pairs_impossible, n.pairs / 4, "%lld of %lld", (long long)n.pairs_impossible, (long long)n.pairs);
  cr_assert_lt(n.draws, 2500, "%lld draws for %lld pairs", (long long)n.draws, (long long)n.pairs);
  fuzz_free(f);
}

/* Draws until `wanted` calls were to be refused, and judges them. Returns how many failed. */
static int32_t failed_refusals(int32_t wanted, fuzz_counts *n) {
  fuzz *f = make(3);
  int32_t failed = 0;
  char *x = malloc(CASE_MAX_LINE);
  for (int32_t found = 0; found < wanted;) {
    fuzz_draw drawn = {0};
    assay_case back;
    case_result r;
    assay_error error = {""};
    draw_one(f, &drawn);
    cr_assert_eq(drawn.phase == FUZZ_REFUSALS, drawn.one.section == SECTION_REFUSE);
    if (drawn.phase != FUZZ_REFUSALS) continue;
    cr_assert_eq(case_print(&drawn.one, x, CASE_MAX_LINE, &error), ASSAY_OK);
    cr_assert_eq(case_parse(x, &back, &error), ASSAY_OK, "%s: %s", x, error.text);
    judge_case(&back, &fake_variant, &fake_device, &r);
    case_free(&back);
    if (r.verdict == VERDICT_UNSUPPORTED) continue;
    ++found;
    cr_assert(r.verdict == VERDICT_REFUSED || r.verdict == VERDICT_FAIL, "%s: %s", x, r.message);
    failed += r.verdict == VERDICT_FAIL;
  }
  fuzz_count(f, n);
  free(x);
  fuzz_free(f);
  return failed;
}

Test(fuzz, calls_that_must_be_refused) {
  enum { WANTED = 60 };
  fuzz_counts n;
  cr_assert_eq(failed_refusals(WANTED, &n), 0);
  cr_assert_geq(n.refusals, WANTED);
  cr_assert(n.draws < 80 * WANTED, "%lld draws", (long long)n.draws);
  cr_assert(n.broken_drawn >= 5, "%lld kinds", (long long)n.broken_drawn);
  fake_broken = FAULT_ACCEPTS;
  cr_assert_eq(failed_refusals(12, &n), 12);
  fake_broken = FAULT_REFUSES_MUTELY;
  cr_assert_eq(failed_refusals(12, &n), 12);
  fake_broken = FAULT_NONE;
}

/* A message says what would have been taken. */
Test(fuzz, refusals_are_read) {
  static const char *const why[] = {"D: found 8, allowed 16, 32", "D: found 8, taken here: multiples of 64",
                                    "D: found 256, allowed up to 16", "D: found 8, allowed 16, 32 with H of 7",
                                    "D: found 8, taken here: 128 and more"};
  for (size_t i = 0; i < sizeof why / sizeof why[0]; ++i) {
    fuzz *f = make(3);
    int32_t with = 0;
    fuzz_draw drawn;
    for (int32_t k = 0; k < 400; ++k) {
      draw_one(f, &drawn);
      const int64_t D = dim(&drawn.one, "D");
      const bool allowed[] = {D == 16 || D == 32, D % 64 == 0, D <= 16, D == 16 || D == 32, D >= 128};
      if (drawn.phase == FUZZ_REFUSALS) continue;
      with += k >= 200 && allowed[i];
      fuzz_told(f, &drawn, fake_variant.name, false, why[i]); /* nothing is ever taken */
    }
    cr_assert(with > 80, "%d of 200 draws heed \"%s\"", with, why[i]);
    fuzz_free(f);
  }
}

/* Cases that were not judged are reported as missing. */
Test(fuzz, a_short_run_is_seen_to_be_short) {
  static seen s;
  fuzz *f = make(3);
  const char *name = NULL;
  char missing[400];
  int32_t judged = 0, possible = 0;
  bool any = false;
  const fuzz_counts n = cover(f, &s, 5);
  cr_assert_lt(n.values_judged, n.values);
  cr_assert_lt(n.pairs_judged, n.pairs);
  for (int32_t i = 0; fuzz_axis_reached(f, i, &name, &judged, &possible, missing, sizeof missing); ++i) {
    cr_assert_eq(judged == possible, missing[0] == '\0', "%s: %d of %d, missing '%s'", name, judged, possible, missing);
    any = any || missing[0] != '\0';
  }
  cr_assert(any);
  fuzz_free(f);
}

Test(fuzz, same_seed_same_draws) {
  enum { DRAWS = 3000 };
  fuzz *a = make(7), *b = make(7), *c = make(8);
  char *x = malloc(CASE_MAX_LINE), *y = malloc(CASE_MAX_LINE);
  fuzz_draw first = {0}, second = {0}, third = {0}, copy = {0};
  int32_t different = 0;
  for (int32_t i = 0; i < DRAWS; ++i) {
    draw_one(a, &first);
    draw_one(b, &second);
    draw_one(c, &third);
    fuzz_copy(&first, &copy);
    cr_assert_eq(case_print(&copy.one, x, CASE_MAX_LINE, NULL), ASSAY_OK);
    cr_assert_eq(case_print(&second.one, y, CASE_MAX_LINE, NULL), ASSAY_OK);
    cr_assert_str_eq(x, y, "draw %d", i);
    different += first.one.seed != third.one.seed;
    if (i % 2 == 0) { /* judging says nothing to the drawing */
      fuzz_judged(a, &first);
      continue;
    }
    fuzz_path(a, &first, "v", "tile=16");
    fuzz_path(b, &second, "v", "tile=16");
  }
  cr_assert_gt(different, DRAWS / 2);
  free(x);
  free(y);
  fuzz_free(a), fuzz_free(b), fuzz_free(c);
}

/* A descriptor says all there is: a draw comes back from it. */
Test(fuzz, draws_parse_back) {
  fuzz *f = make(11);
  char *x = malloc(CASE_MAX_LINE), *y = malloc(CASE_MAX_LINE);
  for (int32_t i = 0; i < 400; ++i) {
    fuzz_draw drawn = {0};
    assay_case back;
    assay_error error = {""};
    draw_one(f, &drawn);
    cr_assert_eq(case_print(&drawn.one, x, CASE_MAX_LINE, &error), ASSAY_OK);
    cr_assert_eq(case_parse(x, &back, &error), ASSAY_OK, "%s: %s", x, error.text);
    cr_assert_eq(case_print(&back, y, CASE_MAX_LINE, &error), ASSAY_OK);
    cr_assert_str_eq(x, y);
    cr_assert_leq(longest(&back), 4096);
    case_free(&back);
  }
  free(x);
  free(y);
  fuzz_free(f);
}

Test(fuzz, paths_are_classes) {
  fuzz *f = make(1);
  fuzz_draw drawn = {0};
  const char *path = NULL;
  int64_t count = 0;
  fuzz_counts n;
  draw_one(f, &drawn);
  fuzz_path(f, &drawn, "v", "split splits=3 D=64");
  fuzz_path(f, &drawn, "v", "split splits=4 D=64");
  fuzz_path(f, &drawn, "v", "split splits=5 D=64");
  fuzz_path(f, &drawn, "v", "split splits=8 D=64");
  fuzz_path(f, &drawn, "w", "split splits=8 D=64");
  fuzz_count(f, &n);
  cr_assert_eq(n.paths, 4);
  cr_assert(fuzz_path_reached(f, 2, &path, &count));
  cr_assert_str_eq(path, "v: split splits=5..8 D=33..64");
  cr_assert_eq(count, 2);
  cr_assert_not(fuzz_path_reached(f, 4, &path, &count));
  for (int32_t i = 0; i < 5000; ++i) { /* a plug-in's text is cut to the room for it */
    char text[200];
    (void)snprintf(text, sizeof text, "%0150d %c%c%c", 1, 'a' + i % 26, 'a' + i / 26 % 26, 'a' + i / 676);
    fuzz_path(f, &drawn, text + 140, text + 149);
  }
  fuzz_count(f, &n);
  cr_assert_leq(n.paths, 1024);
  fuzz_free(f);
}

Test(fuzz, claims) {
  assay_case one = fake_case(TIER_CALIBRATED);
  cr_assert(fuzz_claimed(&fake_variant, &one));
  one.dtype = one.kv_dtype = ASSAY_BF16;
  cr_assert_not(fuzz_claimed(&fake_variant, &one));
  one.dtype = ASSAY_F32;
  one.kv_dtype = ASSAY_E4M3;
  cr_assert_not(fuzz_claimed(&fake_variant, &one));
  one.kv_dtype = ASSAY_F32;
  one.param[0] = 1;
  cr_assert_not(fuzz_claimed(&fake_variant, &one));
  case_free(&one);
}

/* ---- the stream -------------------------------------------------------------------------------------- */

enum { STREAMED = 2500, EVERY = 100 };

typedef struct stream {
  assay_case one[EXECUTE_WINDOW];
  int64_t handed, delivered, waited, killed;
} stream;

static execute_more next(void *context, int64_t index, const assay_case **one) {
  stream *s = context;
  cr_assert_eq(index, s->handed);
  if (index == STREAMED) return EXECUTE_END;
  if (index % EVERY == 0 && s->delivered < index) {
    ++s->waited;
    return EXECUTE_WAIT;
  }
  assay_case *at = &s->one[index % EXECUTE_WINDOW];
  case_free(at);
  *at = fake_case(TIER_EXACT);
  at->seed = (uint64_t)index;
  if (index % 1000 == 7) at->kv_len[0] = 3;
  ++s->handed;
  *one = at;
  return EXECUTE_CASE;
}

static void done(void *context, int64_t index, const assay_case *one, const case_result *result) {
  stream *s = context;
  cr_assert_eq(index, s->delivered);
  cr_assert_eq(one->seed, (uint64_t)index, "the case is still there");
  ++s->delivered;
  s->killed += result->verdict == VERDICT_CRASH;
  cr_assert_eq(result->verdict, index % 1000 == 7 ? VERDICT_CRASH : VERDICT_PASS, "%s", result->message);
}

Test(fuzz, cases_made_while_others_run) {
  static stream s;
  assay_error error = {""};
  const execute_options options = {.workers = 2, .deadline_s = 20};
  fake_register();
  fake_broken = FAULT_SEGV;
  fake_broken_length = 3;
  cr_assert_eq(execute_stream(next, fake_device.name, &options, done, &s, &error), ASSAY_OK, "%s", error.text);
  cr_assert_eq(s.delivered, STREAMED);
  cr_assert_eq(s.killed, 3);
  cr_assert_gt(s.waited, 0);
  for (int32_t i = 0; i < EXECUTE_WINDOW; ++i)
    case_free(&s.one[i]);
}
