/* in_place.c: the law `in_place`: an operator that can write its result over argument X or into an optional X_out gives
 * the same bits either way. */
#include <string.h>

#include "conformance/trial/trial.h"
#include "laws_internal.h"

bool in_place_applies(const trial *t) {
  return trial_has_law(t, "in_place") && t->variant->contract.run_to_run;
}

/* Returns the optional output that takes the result of in-out argument `arg`, or -1; home_of is the inverse. */
static int32_t apart_of(const assay_op *op, int32_t arg) {
  char name[64];
  if (op->args[arg].role != ASSAY_INOUT) return -1;
  (void)snprintf(name, sizeof name, "%s_out", op->args[arg].name);
  for (int32_t i = 0; i < op->arg_count; ++i)
    if (strcmp(op->args[i].name, name) == 0 && op->args[i].role == ASSAY_OUT && op->args[i].optional) return i;
  return -1;
}

static int32_t home_of(const assay_op *op, int32_t arg) {
  for (int32_t i = 0; i < op->arg_count; ++i)
    if (apart_of(op, i) == arg) return i;
  return -1;
}

static int32_t output_of(const trial *t, int32_t arg) {
  for (int32_t o = 0; o < t->count; ++o)
    if (t->output[o].arg == arg) return o;
  return -1;
}

/* Returns the argument of the other form that takes the result of output o, or -1 where o is no result here. */
static int32_t taken_by(const trial *t, int32_t o) {
  const assay_op *op = t->one->op;
  const int32_t arg = t->output[o].arg, apart = apart_of(op, arg), home = home_of(op, arg);
  if (apart >= 0) return t->first.arg[apart].data != NULL ? -1 : apart;
  return home >= 0 ? home : arg;
}

static bool same_results(const trial *t, const trial *other, const outputs *base, const outputs *got,
                         case_result *result) {
  for (int32_t o = 0; o < t->count; ++o) {
    const int32_t arg = taken_by(t, o), there = arg >= 0 ? output_of(other, arg) : -1;
    if (there < 0 || other->output[there].rows != t->output[o].rows) continue;
    if (!rerun_same_output(t, o, base->bits[o], got->bits[there], "in_place",
                           "in the other form, in place or out of it", result))
      return false;
  }
  return true;
}

static bool ready(trial *other, case_result *unused) {
  assay_error error = {""};
  if (!trial_shape(other, unused)) return false;
  const assay_status status = image_fill(&other->first, NULL, &error);
  if (status == ASSAY_ERR_MEMORY) return verdict_no_memory(unused);
  if (status != ASSAY_OK) return false;
  if (other->one->op->check(&other->first.call, &error) != ASSAY_OK) return false;
  return trial_takes(other, &other->first, unused);
}

bool in_place_check(const trial *t, const outputs *base, case_result *result) {
  const assay_op *op = t->one->op;
  assay_case one = *t->one;
  case_result unused = {.verdict = VERDICT_PASS};
  outputs got = {{NULL}};
  bool good = true;
  for (int32_t i = 0; i < op->arg_count; ++i)
    if (apart_of(op, i) >= 0) one.present ^= UINT32_C(1) << apart_of(op, i);
  trial other = {.one = &one, .variant = t->variant, .device = t->device, .facts = t->facts};
  if (one.present != t->one->present && ready(&other, &unused)) {
    good = outputs_make(&other, &got);
    if (!good) (void)verdict_no_memory(result);
    good = good && device_run(&other, &other.first, t->one->seed, &got, result) &&
           same_results(t, &other, base, &got, result);
    if (good) result_add_law(result, "in_place");
  } else {
    good = verdict_take_host(result, &unused);
  }
  outputs_free(&got);
  trial_free(&other);
  return good;
}
