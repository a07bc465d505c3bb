/* neutral.c: the law `neutral`: an argument that says nothing does not show. A sink of -inf for every head gives the
 * bits of the call without a sink. */
#include <math.h>

#include "core/dtype.h"
#include "conformance/trial/trial.h"
#include "laws_internal.h"

/* Returns the argument that can say nothing, or -1 where the case does not give it. */
static int32_t sink_of(const trial *t) {
  for (int32_t i = 0; i < t->one->op->arg_count; ++i)
    if (strcmp(t->one->op->args[i].name, "sink") == 0 && t->first.arg[i].data != NULL) return i;
  return -1;
}

bool neutral_applies(const trial *t) {
  return trial_has_law(t, "neutral") && t->variant->contract.run_to_run && sink_of(t) >= 0;
}

/* Runs the case with sinks of -inf, or without the argument. Returns false with the verdict set if nothing came of it;
 * `taken` tells whether the variant takes the call. */
static bool run_neutral(const trial *t, bool given, outputs *got, bool *taken, case_result *result) {
  const int32_t arg = sink_of(t);
  trial other = *t; /* shares all but the size of the workspace */
  assay_error error = {""};
  image img = {0};
  if (image_vary(&t->first, &t->first.chosen, NULL, &img, &error) != ASSAY_OK) return verdict_no_memory(result);
  for (int64_t h = 0; h < img.arg[arg].shape[0]; ++h)
    assay_store_f64(img.host + img.extent[arg].offset, img.arg[arg].dtype, h, -(double)INFINITY);
  if (!given) img.arg[arg].data = NULL;
  *taken = trial_takes(&other, &img, result);
  bool good = result->verdict == VERDICT_PASS;
  if (*taken) good = device_run(&other, &img, t->one->seed, got, result);
  image_free(&img);
  return good;
}

bool neutral_check(const trial *t, const outputs *base, case_result *result) {
  outputs with = {{NULL}}, without = {{NULL}};
  bool taken = false, good = outputs_make(t, &with) && outputs_make(t, &without);
  (void)base; /* the case has sinks */
  if (!good) (void)verdict_no_memory(result);
  good = good && run_neutral(t, false, &without, &taken, result);
  if (good && taken) good = run_neutral(t, true, &with, &taken, result);
  if (good && taken) {
    for (int32_t o = 0; o < t->count && good; ++o)
      good = rerun_same_output(t, o, without.bits[o], with.bits[o], "neutral", "with a sink of -inf for every head",
                               result);
    if (good) result_add_law(result, "neutral");
  }
  outputs_free(&with);
  outputs_free(&without);
  return good;
}
