/* bases.c: the law `bases`: the result does not depend on where in 256 bytes an argument begins. The definition asks
 * for multiples of an element alone. An argument begins up to 15 elements after a multiple of 256 bytes, and then the
 * next one does. In paged calls, which take longer, it is one argument, or all of them. A launcher that needs more may
 * decline the call. One that looks at another argument's base, or at the distance of rows alone, is found. */
#include "conformance/generate/generate.h"
#include "conformance/trial/trial.h"
#include "core/registry.h"
#include "laws_internal.h"

bool bases_applies(const trial *t) {
  return !assay_plugin_is_direct(t->variant);
}

/* Runs the case with bases that `bases` draws. Returns whether the results are those of the usual bases; a launcher
 * that declines has none, and *asked stays as it is. */
static bool hold(const trial *t, uint64_t bases, outputs *got, bool *asked, case_result *result) {
  static const char changed[] = "when arguments begin at multiples of their elements, and of no more";
  draw choice = t->first.chosen;
  trial moved = *t; /* shares all but the size of the workspace */
  assay_error error = {""};
  image other = {0};
  choice.bases = bases;
  bool good = image_vary(&t->first, &choice, NULL, &other, &error) == ASSAY_OK;
  if (!good) {
    (void)verdict_no_memory(result);
  } else if (trial_takes(&moved, &other, result)) {
    *asked = true;
    good = device_run(&moved, &other, t->one->seed, got, result) && rerun_within(t, got, "bases", changed, result);
  } else {
    good = result->verdict == VERDICT_PASS;
  }
  image_free(&other);
  return good;
}

bool bases_check(const trial *t, const outputs *base, case_result *result) {
  const uint64_t drawn = logical_hash(t->one, STREAM_BASES) | (uint64_t)1 << 63;
  const assay_op *op = t->first.origin->op;
  outputs got = {{NULL}};
  bool asked = false, good = true;
  (void)base;
  if (!outputs_make(t, &got)) {
    (void)verdict_no_memory(result);
    good = false;
  } else if (op->form == ASSAY_PAGED) {
    good = hold(t, drawn, &got, &asked, result);
  } else {
    uint64_t given = 0;
    for (int32_t i = 0; i < op->arg_count; ++i)
      given += t->first.arg[i].dtype != ASSAY_NONE;
    for (uint64_t i = 0; i < given && good; ++i)
      good = hold(t, (drawn & ~(uint64_t)0x1FF) | i << 1 | 1, &got, &asked, result);
  }
  if (good && asked) result_add_law(result, "bases");
  outputs_free(&got);
  return good;
}
