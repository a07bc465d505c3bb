/* bases.c: the law `bases`: the result depends neither on where in 256 bytes an argument begins, nor on how far apart
 * its rows lie. The definition asks for multiples of an element alone. An argument begins up to 15 elements after a
 * multiple of 256 bytes, and then the next one does. Then rows lie up to 12 elements further apart, in one argument
 * after the other. In paged calls, which take longer, it is one argument, or the bases of all. A launcher that needs
 * more may decline the call. One that looks at another argument's base or rows is found. */
#include "conformance/generate/generate.h"
#include "conformance/trial/trial.h"
#include "core/registry.h"
#include "laws_internal.h"

bool bases_applies(const trial *t) {
  return !assay_plugin_is_direct(t->variant);
}

/* A run of the law: what is asked for, the results, and whether a launcher took a call. */
typedef struct bases_run {
  const trial *of;
  outputs got;
  bool asked;
} bases_run;

/* Runs the case with another draw. Returns whether the results are those of the usual one; a launcher that declines has
 * none, and run->asked stays as it is. */
static bool hold(bases_run *run, const draw *choice, const char *changed, case_result *result) {
  const trial *t = run->of;
  trial moved = *t; /* shares all but the size of the workspace */
  assay_error error = {""};
  image other = {0};
  bool good = image_vary(&t->first, choice, NULL, &other, &error) == ASSAY_OK;
  if (!good) {
    (void)verdict_no_memory(result);
  } else if (trial_takes(&moved, &other, result)) {
    run->asked = true;
    good = device_run(&moved, &other, t->one->seed, &run->got, result) &&
           rerun_within(t, &run->got, "bases", changed, result);
  } else {
    good = result->verdict == VERDICT_PASS;
  }
  image_free(&other);
  return good;
}

/* Runs the case with the bases that `bases` draws. */
static bool hold_bases(bases_run *run, uint64_t bases, case_result *result) {
  draw choice = run->of->first.chosen;
  choice.bases = bases;
  return hold(run, &choice, "when arguments begin at multiples of their elements, and of no more", result);
}

/* Returns whether rows, or blocks, of an argument are there and may lie further apart. */
static bool may_lie_apart(const trial *t, int32_t argument) {
  const assay_arg *about = &t->one->op->args[argument];
  const assay_tensor *own = &t->first.arg[argument];
  const bool cache = about->content == ASSAY_K_CACHE || about->content == ASSAY_V_CACHE;
  if (own->dtype == ASSAY_NONE || own->rank < 2 || own->shape[0] < 2) return false;
  return cache ? t->one->kv_pad >= 0 : about->strided;
}

/* Runs the case with the rows of one argument further apart. The distances that are left are multiples of 1 element, of
 * 2, of 4 and of 8. */
static bool hold_apart(bases_run *run, int32_t argument, uint64_t drawn, case_result *result) {
  static const int32_t more[] = {1, 2, 2, 3, 4, 4, 8, 12};
  draw choice = run->of->first.chosen;
  choice.apart = more[(drawn >> 8 ^ drawn >> (16 + argument)) % (sizeof more / sizeof more[0])];
  choice.apart_argument = argument;
  return hold(run, &choice, "when rows of one argument lie a few elements further apart", result);
}

bool bases_check(const trial *t, const outputs *base, case_result *result) {
  const uint64_t drawn = logical_hash(t->one, STREAM_BASES) | (uint64_t)1 << 63;
  const assay_op *op = t->first.origin->op;
  const bool paged = op->form == ASSAY_PAGED;
  bases_run run = {.of = t};
  bool good = true;
  uint64_t given = 0, apart = 0;
  (void)base;
  if (!outputs_make(t, &run.got)) {
    (void)verdict_no_memory(result);
    good = false;
  }
  for (int32_t i = 0; i < op->arg_count; ++i) {
    given += t->first.arg[i].dtype != ASSAY_NONE;
    apart += may_lie_apart(t, i);
  }
  if (good && paged) good = hold_bases(&run, drawn, result);
  for (uint64_t i = 0; i < given && good && !paged; ++i)
    good = hold_bases(&run, (drawn & ~(uint64_t)0x1FF) | i << 1 | 1, result);
  uint64_t before = 0;
  for (int32_t i = 0; i < op->arg_count && good; ++i) {
    if (!may_lie_apart(t, i)) continue;
    if (!paged || before == (drawn >> 32) % apart) good = hold_apart(&run, i, drawn, result);
    ++before;
  }
  if (good && run.asked) result_add_law(result, "bases");
  outputs_free(&run.got);
  return good;
}
