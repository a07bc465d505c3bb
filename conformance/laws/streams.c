/* streams.c: the law `streams`: two calls at the same time on two streams, each with its own workspace, give what each
 * gives alone. */
#include "conformance/generate/generate.h"
#include "conformance/trial/trial.h"
#include "laws_internal.h"

enum { HOLD_US = 40 };

bool streams_applies(const trial *t) {
  return t->device->side_stream != NULL;
}

/* Launches both calls; both streams are held until both calls are in them. */
static bool run_both(const trial *t, device_call *one, device_call *two, case_result *result) {
  const assay_device *device = t->device;
  assay_error error = {""};
  assay_status status = device->side_stream(0, &one->env.stream, &error);
  if (status == ASSAY_OK) status = device->side_stream(1, &two->env.stream, &error);
  if (status == ASSAY_OK) status = device->synchronize(&error);
  if (status == ASSAY_OK) status = device->keep_busy(one->env.stream, 1, HOLD_US, &error);
  if (status == ASSAY_OK) status = device->keep_busy(two->env.stream, 1, HOLD_US, &error);
  return device_status(status, "two streams", true, &error, result) && device_launch(t, one, 1, "launch", result) &&
         device_launch(t, two, 2, "launch on a second stream", result) &&
         device_status(device->side_synchronize(&error), "after launches on two streams", true, &error, result);
}

bool streams_check(const trial *t, const outputs *base, case_result *result) {
  /* Another order and other numbers, so that data taken from the other call shows. */
  const draw choice = {.dead = DEAD_STALE,
                       .placement = t->variant->contract.renumbering ? 3 : 0,
                       .order = t->variant->contract.permutation && trial_has_law(t, "permutation") ? 3 : 0,
                       .poison = (uint8_t)(t->first.chosen.poison ^ 0x0C)};
  static const char changed[] = "when two calls run at once on two streams, each with its own workspace";
  assay_error error = {""};
  image other = {0};
  outputs got = {{NULL}};
  device_call one, two;
  const unsigned char *after = NULL;
  bool good = outputs_make(t, &got) && image_vary(&t->first, &choice, NULL, &other, &error) == ASSAY_OK;
  if (!good) {
    (void)verdict_no_memory(result);
    goto done;
  }
  good = device_place(t, &t->first, 0, &one, result) && device_upload(t, &t->first, &one, result) &&
         device_place(t, &other, 1, &two, result) && device_upload(t, &other, &two, result) &&
         run_both(t, &one, &two, result) && device_collect(t, &t->first, false, &one, &after, result);
  if (!good) goto done;
  outputs_gather(t, &t->first, after, &got);
  good =
      rerun_same(t, base, &got, "streams", changed, result) && device_collect(t, &other, false, &two, &after, result);
  if (!good) goto done;
  outputs_gather(t, &other, after, &got);
  good = rerun_same(t, base, &got, "streams", changed, result);
  if (good) result_add_law(result, "streams");
done:
  image_free(&other);
  outputs_free(&got);
  return good;
}
