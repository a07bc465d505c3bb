/* refusal.c: makes an illegal call of a legal draw. One thing is wrong: an argument is broken as in section refuse, or
 * a dimension or a parameter leaves its range. The definition must refuse the call, and its words must name the thing.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "conformance/judge/judge.h"
#include "conformance/text/text.h"
#include "core/hash.h"
#include "fuzz_internal.h"

enum { TRIES = 48, BREAKS = BREAK_EXTRA + 1 };

/* Breaks an argument, in the least used of six ways that are drawn. */
static void break_argument(fuzz *f, assay_rng *rng, assay_case *one, uint32_t **count) {
  const assay_op *op = f->space.op;
  for (int i = 0; i < 6; ++i) {
    const int32_t broken = (int32_t)assay_rng_range(rng, BREAK_NULL, BREAK_EXTRA);
    const int32_t argument = (int32_t)assay_rng_range(rng, 0, op->arg_count - 1);
    uint32_t *used = &f->broken[broken][argument];
    if (i > 0 && *used >= **count) continue;
    *count = used;
    one->broken = (case_break)broken;
    one->argument = argument + 1;
  }
  (void)snprintf(one->expect, sizeof one->expect, "%s", op->args[one->argument - 1].name);
}

/* Returns a value that the key does not allow. A dimension is drawn beyond both ends, and between multiples. A
 * parameter is drawn below 0, NaN or infinite: large numbers mean the same beyond the range that cases have. */
static double illegal_value(const case_key *key, assay_rng *rng) {
  const double step = (double)key->multiple;
  const double sizes[] = {key->max + step, key->min - step, key->fallback + 1, key->max + 1, 2 * key->max + step};
  const double special[] = {(double)NAN, (double)INFINITY, -(double)INFINITY, -1};
  if (key->store == STORE_DIM) return sizes[assay_rng_range(rng, 0, 4)];
  return key->kind == KEY_REAL             ? special[assay_rng_range(rng, 0, 3)]
         : assay_rng_range(rng, 0, 1) == 0 ? -1
                                           : key->min - 1;
}

static bool is_legal(const case_key *key, double value) {
  return value >= key->min && value <= key->max && (key->kind == KEY_REAL || !(fmod(value, (double)key->multiple) > 0));
}

/* Returns a hash of the reference's results. */
static uint64_t hash_of(const trial *t) {
  uint64_t hash = HASH_START;
  for (int32_t o = 0; o < t->count; ++o)
    hash = hash_bytes(hash, t->expected[o].value, (size_t)(outputs_judged(t, o) * t->output[o].width) * sizeof(double));
  return hash;
}

/* Tells whether the results of the legal case depend on the parameter. A kernel need not look at others, such as the
 * stride of a sparse mask that is off. */
static bool matters(const assay_case *legal, const case_key *key) {
  static const assay_variant anybody = {.name = "anybody"};
  const double other[] = {key->min, key->fallback, key->max, key->min + 1, key->fallback / 2};
  trial t = {.one = legal, .variant = &anybody};
  case_result result = {.verdict = VERDICT_PASS};
  bool different = false;
  if (trial_shape(&t, &result) && trial_reference(&t, &result)) {
    const uint64_t own = hash_of(&t);
    for (size_t i = 0; i < sizeof other / sizeof other[0] && !different; ++i) {
      const bool whole = key->kind == KEY_REAL || !(fmod(other[i], 1) > 0 || fmod(other[i], 1) < 0);
      t.first.param[key->at] = other[i];
      different = whole && is_legal(key, other[i]) && trial_again(&t, &result) && hash_of(&t) != own;
    }
  }
  trial_free(&t);
  return different;
}

/* Gives a number that its key does not allow, the less used of two that are drawn. */
static bool leave_range(fuzz *f, const assay_case *legal, assay_rng *rng, assay_case *one, uint32_t **count) {
  const fuzz_axis *chosen = NULL;
  for (int i = 0; i < 16; ++i) {
    const int32_t axis = (int32_t)assay_rng_range(rng, 0, f->space.axes - 1);
    const fuzz_axis *a = &f->space.axis[axis];
    const bool number = a->key.kind == KEY_INTEGER || a->key.kind == KEY_REAL;
    if (a->kind != AXIS_KEY || a->narrowed || !number || (a->key.store != STORE_DIM && a->key.store != STORE_PARAM))
      continue;
    if (chosen != NULL && f->strayed[axis] >= **count) continue;
    chosen = a;
    *count = &f->strayed[axis];
  }
  if (chosen == NULL) return false;
  const double value = illegal_value(&chosen->key, rng);
  const bool dim = chosen->key.store == STORE_DIM;
  if (is_legal(&chosen->key, value) || (dim && (value < 1 || value > KEY_MAX_REFUSED_DIM))) return false;
  if (!dim && (chosen->key.min < 0 || chosen->key.min > 1 || !matters(legal, &chosen->key))) return false;
  key_set(one, &chosen->key, value);
  (void)snprintf(one->expect, sizeof one->expect, "%s", dim ? "+" : chosen->name);
  return true;
}

/* Turns a legal draw into a case of section refuse that is still legal. There, tensors of contiguous keys have the
 * block_size that the case gives. Returns false where the definition refuses it already. */
static bool begin(const fuzz_space *s, assay_case *one) {
  static const assay_variant anybody = {.name = "anybody"};
  trial t = {.one = one, .variant = &anybody};
  case_result result = {.verdict = VERDICT_PASS};
  assay_error why = {""};
  one->section = SECTION_REFUSE;
  if (case_is_contiguous(one) && s->dim_block >= 0) one->dim[s->dim_block] = 1;
  const bool good = trial_shape(&t, &result) && s->op->check(&t.first.call, &why) == ASSAY_OK;
  trial_free(&t);
  return good;
}

/* Tells whether the definition refuses the case in words that name what is expected. A broken shape or a dimension may
 * show in any argument that has it, so that any argument or dimension may be named. */
static bool is_refused(assay_case *one) {
  static const assay_variant anybody = {.name = "anybody"};
  trial t = {.one = one, .variant = &anybody};
  case_result result = {.verdict = VERDICT_PASS};
  assay_error why = {""};
  if (one->broken == BREAK_SHAPE) (void)snprintf(one->expect, sizeof one->expect, "+");
  const bool any = strcmp(one->expect, "+") == 0;
  const bool good = trial_shape(&t, &result) && judge_must_refuse(&t, &why) &&
                    (any || word_is_in(why.text, strcspn(why.text, ":"), one->expect));
  trial_free(&t);
  return good;
}

bool fuzz_break(fuzz *f, fuzz_draw *drawn) {
  assay_rng rng = {.seed = f->seed, .stream = (uint64_t)f->draws << 8 | 0xFC};
  const assay_case legal = drawn->one;
  if (!begin(&f->space, &drawn->one)) {
    drawn->one = legal;
    return false;
  }
  const assay_case begun = drawn->one;
  for (int tries = 0; tries < TRIES; ++tries) {
    assay_case *one = &drawn->one;
    assay_error error = {""};
    uint32_t *count = NULL;
    *one = begun;
    if (assay_rng_range(&rng, 0, 2) != 0)
      break_argument(f, &rng, one, &count);
    else if (!leave_range(f, &legal, &rng, one, &count))
      continue;
    if (case_check(one, &error) != ASSAY_OK || !space_fits(&f->space, one) || !is_refused(one)) continue;
    ++*count;
    return true;
  }
  drawn->one = legal;
  return false;
}
