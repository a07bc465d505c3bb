/* bases.c: the law `bases`: the result does not depend on where in 256 bytes an argument begins. The definition asks
 * for multiples of an element alone. One argument, or all of them, begin up to 15 elements after a multiple of 256
 * bytes. A launcher that needs more may decline the call. One that looks at another argument's base, or at the distance
 * of rows alone, is found. */
#include "conformance/generate/generate.h"
#include "conformance/trial/trial.h"
#include "laws_internal.h"

bool bases_applies(const trial *t) {
  return !assay_plugin_is_direct(t->variant);
}

bool bases_check(const trial *t, const outputs *base, case_result *result) {
  static const char changed[] = "when arguments begin at multiples of their elements, and of no more";
  draw choice = t->first.chosen;
  trial moved = *t; /* shares all but the size of the workspace */
  assay_error error = {""};
  image other = {0};
  outputs got = {{NULL}};
  (void)base;
  choice.bases = logical_hash(t->one, STREAM_BASES) | (uint64_t)1 << 63;
  bool good = outputs_make(t, &got) && image_vary(&t->first, &choice, NULL, &other, &error) == ASSAY_OK;
  if (!good) {
    (void)verdict_no_memory(result);
  } else if (trial_takes(&moved, &other, result)) {
    good = device_run(&moved, &other, t->one->seed, &got, result) && rerun_within(t, &got, "bases", changed, result);
    if (good) result_add_law(result, "bases");
  } else {
    good = result->verdict == VERDICT_PASS;
  }
  image_free(&other);
  outputs_free(&got);
  return good;
}
