/* elsewhere.c: the law `elsewhere`: the result does not depend on where the call's memory is, nor on the constants of
 * the device. The call runs in other memory, while the memory of its first run holds poison. A launcher that keeps
 * pointers of an earlier call of these shapes reads the poison. On simt the device has another number of
 * multiprocessors and another memory rate as well. A kernel may split its work otherwise then, and the result is within
 * the tier's limits. */
#include "conformance/generate/generate.h"
#include "conformance/trial/trial.h"
#include "core/registry.h"
#include "laws_internal.h"

/* Constants of devices: of none that is usual, of H20, H100 and H200, and of larger ones. */
static const struct {
  int32_t multiprocessors, memory_rate;
} devices[] = {{1, 0}, {2, 4000}, {7, 1000}, {78, 4000}, {114, 2000}, {132, 3352}, {132, 4800}, {148, 8000}};

enum { DEVICES = sizeof devices / sizeof devices[0], STREAM_DEVICE = 0x64657669, FIRST = 0, OTHER = 1 };

bool elsewhere_applies(const trial *t) {
  return !assay_plugin_is_direct(t->variant);
}

/* Fills the memory of the first run with poison, the workspace included. */
static bool poison_first(const trial *t, case_result *result) {
  image spoilt = t->first;
  device_call on;
  spoilt.host = image_take(spoilt.arena_bytes, &spoilt.spare_bytes);
  if (spoilt.host == NULL) {
    (void)verdict_no_memory(result);
    return false;
  }
  poison_fill(spoilt.host, spoilt.arena_bytes, spoilt.chosen.poison);
  assay_error error = {""};
  const bool good = device_place(t, &spoilt, FIRST, &on, result) && device_upload(t, &spoilt, &on, result) &&
                    device_status(t->device->synchronize(&error), "upload", true, &error, result);
  image_give(spoilt.host);
  return good;
}

bool elsewhere_check(const trial *t, const outputs *base, case_result *result) {
  const bool simt = strcmp(t->one->device, "simt") == 0;
  const uint64_t which = logical_hash(t->one, STREAM_DEVICE) % DEVICES;
  const unsigned char *after = NULL;
  char changed[128] = "in other memory, while its first memory holds poison";
  outputs got = {{NULL}};
  device_call on;
  if (simt)
    (void)snprintf(changed, sizeof changed, "in other memory, on a device of %d multiprocessors and %d bytes per ns",
                   devices[which].multiprocessors, devices[which].memory_rate);
  (void)base;
  bool good = outputs_make(t, &got);
  if (!good) {
    (void)verdict_no_memory(result);
    return false;
  }
  good = poison_first(t, result) && device_place(t, &t->first, OTHER, &on, result);
  if (good && simt) {
    on.env.multiprocessors = devices[which].multiprocessors;
    on.env.memory_rate = devices[which].memory_rate;
  }
  good = good && device_upload(t, &t->first, &on, result) &&
         device_launch(t, &on, t->one->seed, "launch in other memory", result) &&
         device_collect(t, &t->first, false, &on, &after, result);
  if (good) {
    outputs_gather(t, &t->first, after, &got);
    good = rerun_within(t, &got, "elsewhere", changed, result);
  }
  if (good) result_add_law(result, "elsewhere");
  outputs_free(&got);
  return good;
}
