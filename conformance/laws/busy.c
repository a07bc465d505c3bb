/* busy.c: the law `busy`: a call gives the same result while another stream keeps the device busy. */
#include "conformance/trial/trial.h"
#include "laws_internal.h"

enum { BUSY_US = 200 };

bool busy_applies(const trial *t) {
  return t->device->side_stream != NULL;
}

bool busy_check(const trial *t, const outputs *base, case_result *result) {
  const int32_t blocks = t->facts.multiprocessors > 1 ? t->facts.multiprocessors / 2 : 1;
  assay_error error = {""};
  outputs got;
  bool good = outputs_make(t, &got) || verdict_no_memory(result);
  good = good &&
         device_status(t->device->keep_busy(NULL, blocks, BUSY_US, &error), "busy stream", false, &error, result) &&
         device_run(t, &t->first, t->one->seed, &got, result) &&
         device_status(t->device->side_synchronize(&error), "busy stream", true, &error, result);
  good = good && rerun_same(t, base, &got, "run_to_run", "when another stream keeps the device busy", result);
  if (good) result_add_law(result, "busy");
  outputs_free(&got);
  return good;
}
