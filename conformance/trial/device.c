/* device.c: one run of a variant: memory, guards, poison, the launch, and the search for forbidden writes. */
#define _POSIX_C_SOURCE 200809L
#include <stdlib.h>
#include <time.h>

#include "core/registry.h"
#include "core/rng.h"
#include "trial.h"

/* Device memory kept between cases; it only grows. Uploads to `memory` go to `mirror` as well if the device can compare
 * the two. `host` receives downloads. */
typedef struct device_memory {
  unsigned char *memory, *mirror, *host;
  int64_t bytes;
  int32_t differ;
} device_memory;

static _Thread_local const assay_device *held_by;
static _Thread_local uint64_t epoch;
static _Thread_local device_memory held[DEVICE_PLACES];

double device_now_ms(void) {
  struct timespec now;
  (void)clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec * 1e3 + (double)now.tv_nsec * 1e-6;
}

/* Asks the device once: on cuda that takes longer than a small case. */
device_facts device_facts_of(const assay_device *device) {
  static _Thread_local const assay_device *asked;
  static _Thread_local device_facts facts = {.multiprocessors = 1};
  assay_device_info info = {.multiprocessors = 1};
  if (asked != device && device->info(&info, NULL) == ASSAY_OK) {
    asked = device;
    facts = (device_facts){info.multiprocessors, info.memory_rate};
  }
  return facts;
}

static void drop(device_memory *m) {
  if (m->memory != NULL) held_by->release(m->memory);
  free(m->host);
  *m = (device_memory){.memory = NULL};
}

uint64_t device_epoch(void) {
  return epoch;
}

void device_release(void) {
  image_memory_release();
  for (int32_t i = 0; i < DEVICE_PLACES; ++i)
    drop(&held[i]);
  held_by = NULL;
  ++epoch;
}

static const char *status_name(assay_status status) {
  switch (status) {
  case ASSAY_OK:
    return "ok";
  case ASSAY_ERR_INPUT:
    return "input error";
  case ASSAY_ERR_UNSUPPORTED:
    return "unsupported";
  case ASSAY_ERR_MEMORY:
    return "out of memory";
  case ASSAY_ERR_IO:
    return "I/O error";
  case ASSAY_ERR_DEVICE:
    return "device error";
  case ASSAY_ERR_HANG:
    return "hang";
  case ASSAY_ERR_RACE:
    return "data race";
  case ASSAY_ERR_NO_DEVICE:
    return "no such device";
  case ASSAY_ERR_INTERNAL:
    break;
  }
  return "internal error";
}

bool device_status(assay_status status, const char *step, bool waited, const assay_error *error, case_result *result) {
  if (status == ASSAY_OK) return true;
  if (status == ASSAY_ERR_HANG) {
    verdict_set(result, VERDICT_HANG, "hang", "%s", error->text);
  } else if (status == ASSAY_ERR_RACE) {
    verdict_set(result, VERDICT_FAIL, "race", "%s", error->text);
  } else if (status == ASSAY_ERR_DEVICE && waited) {
    verdict_set(result, VERDICT_CRASH, "crash", "%s: %s", step, error->text);
    result->device_lost = true;
    device_release();
  } else if (status == ASSAY_ERR_MEMORY) {
    verdict_set(result, VERDICT_HOST, "host", "%s: %s: %s", step, status_name(status), error->text);
  } else {
    verdict_set(result, VERDICT_FAIL, "launch", "%s: %s: %s", step, status_name(status), error->text);
  }
  return false;
}

/* The layout is [arena][guard][workspace][guard]. The arena's size is a multiple of the alignment. */
static int64_t workspace_offset(const image *img) {
  return img->arena_bytes + GUARD_BYTES;
}
static int64_t total_bytes(const trial *t, const image *img) {
  return workspace_offset(img) + t->workspace_bytes + GUARD_BYTES;
}

static bool can_compare(const trial *t) {
  return t->device->compare != NULL && t->device->copy != NULL;
}

enum { LARGE_WORKSPACE = 1 << 30 };

static bool hold(const trial *t, int32_t number, int64_t bytes, case_result *result) {
  device_memory *m = &held[number];
  assay_error error = {""};
  if (held_by != t->device) device_release();
  if (m->memory != NULL && m->bytes >= bytes) return true;
  drop(m);
  const int64_t rounded = (bytes + bytes / 4 + (1 << 20)) / DEVICE_ALIGNMENT * DEVICE_ALIGNMENT;
  const int64_t copies = can_compare(t) ? 2 : 1;
  void *memory = NULL;
  const assay_status status = t->device->alloc(copies * rounded, &memory, &error);
  if (status == ASSAY_ERR_MEMORY && t->workspace_bytes > LARGE_WORKSPACE && t->workspace_bytes > bytes / 2) {
    verdict_set(result, VERDICT_FAIL, "launch", "workspace: asks for %lld bytes, which the device does not have",
                (long long)t->workspace_bytes);
    return false;
  }
  if (!device_status(status, "allocation", false, &error, result)) return false;
  held_by = t->device;
  m->memory = memory;
  m->mirror = copies == 2 ? m->memory + rounded : NULL;
  m->bytes = rounded;
  m->host = malloc((size_t)rounded);
  if (m->host != NULL) return true;
  drop(m);
  verdict_set(result, VERDICT_HOST, "host", "the host has no memory for the judge's %lld bytes", (long long)rounded);
  return false;
}

/* Draws the inputs of a run that are settled, as assay_env says: none in half of the runs. An input that shares its
 * memory with another argument is not among them. */
static uint64_t draw_settled(const image *img, uint64_t schedule) {
  assay_rng rng = {schedule, STREAM_SETTLED, 0};
  const uint64_t bits = assay_rng_u64(&rng);
  uint64_t settled = 0;
  if (bits >> 63 == 0) return 0;
  for (int32_t i = 0; i < img->call.op->arg_count; ++i) {
    const span s = img->extent[i];
    bool alone = img->call.op->args[i].role == ASSAY_IN && img->arg[i].data != NULL && s.bytes > 0;
    for (int32_t j = 0; j < img->call.op->arg_count; ++j)
      if (j != i && img->extent[j].bytes > 0 && img->extent[j].offset < s.offset + s.bytes &&
          s.offset < img->extent[j].offset + img->extent[j].bytes)
        alone = false;
    if (alone) settled |= bits & UINT64_C(1) << i;
  }
  return settled;
}

bool device_place(const trial *t, const image *img, int32_t number, device_call *on, case_result *result) {
  if (!hold(t, number, total_bytes(t, img), result)) return false;
  on->place = number;
  on->fetched = false;
  on->call = image_rebase(img, held[number].memory, on->arg);
  on->env = (assay_env){.stream = t->device->stream(),
                        .workspace = held[number].memory + workspace_offset(img),
                        .workspace_bytes = t->workspace_bytes,
                        .multiprocessors = t->facts.multiprocessors,
                        .memory_rate = t->facts.memory_rate};
  return true;
}

/* Puts the bytes at `source` into [from, from + bytes) of the memory and of the mirror. */
static assay_status put(const trial *t, const device_memory *m, int64_t from, const unsigned char *source,
                        int64_t bytes, assay_error *error) {
  const assay_status status = t->device->upload(m->memory + from, source, bytes, error);
  if (status != ASSAY_OK || m->mirror == NULL) return status;
  return t->device->copy(m->mirror + from, m->memory + from, bytes, error);
}

bool device_upload_arena(const trial *t, const image *img, const device_call *on, case_result *result) {
  assay_error error = {""};
  return device_status(put(t, &held[on->place], 0, img->host, img->arena_bytes, &error), "upload", true, &error,
                       result);
}

bool device_upload(const trial *t, const image *img, const device_call *on, case_result *result) {
  assay_error error = {""};
  const device_memory *m = &held[on->place];
  const int64_t tail = total_bytes(t, img) - img->arena_bytes;
  if (tail <= img->spare_bytes) { /* arena and workspace lie side by side in host memory */
    poison_fill(img->host + img->arena_bytes, tail, img->chosen.poison);
    return device_status(put(t, m, 0, img->host, img->arena_bytes + tail, &error), "upload", true, &error, result);
  }
  poison_fill(m->host + img->arena_bytes, tail, img->chosen.poison);
  return device_upload_arena(t, img, on, result) &&
         device_status(put(t, m, img->arena_bytes, m->host + img->arena_bytes, tail, &error), "upload", true, &error,
                       result);
}

/* Uploads everything except the settled arguments, which are present. A late upload stands for a launch before this one
 * that still writes. */
static bool device_upload_unsettled(const trial *t, const image *img, const device_call *on, case_result *result) {
  assay_error error = {""};
  const device_memory *m = &held[on->place];
  assay_status status = ASSAY_OK;
  int64_t from = 0;
  while (from < img->arena_bytes && status == ASSAY_OK) {
    int64_t to = img->arena_bytes, next = to; /* the nearest settled argument */
    for (int32_t i = 0; i < img->call.op->arg_count; ++i) {
      const span s = img->extent[i];
      if ((on->env.settled >> i & 1) == 0 || s.offset < from || s.offset >= to) continue;
      to = s.offset;
      next = s.offset + s.bytes;
    }
    if (to > from) status = put(t, m, from, img->host + from, to - from, &error);
    from = next;
  }
  return device_status(status, "upload", true, &error, result);
}

/* ---- what may not change ----------------------------------------------------------------------------- */

static int64_t first_difference(const unsigned char *a, const unsigned char *b, int64_t from, int64_t to) {
  if (memcmp(a + from, b + from, (size_t)(to - from)) == 0) return -1;
  while (a[from] == b[from])
    ++from;
  return from;
}

static bool same_guard(const image *img, const unsigned char *after, int64_t from, int64_t to, const char *left,
                       const char *right, case_result *result) {
  const int64_t at = first_difference(img->host, after, from, to);
  if (at < 0) return true;
  int64_t changed = 0;
  for (int64_t i = from; i < to; ++i)
    changed += img->host[i] != after[i];
  if (left != NULL && (right == NULL || at - from < to - at))
    verdict_set(result, VERDICT_FAIL, "guard",
                "%s: wrote after its end, first at byte %lld past it; %lld bytes changed", left, (long long)(at - from),
                (long long)changed);
  else
    verdict_set(result, VERDICT_FAIL, "guard",
                "%s: wrote before its start, first at byte %lld before it; %lld bytes changed", right,
                (long long)(to - at), (long long)changed);
  return false;
}

static bool same_input(const image *img, const unsigned char *after, int32_t arg, case_result *result) {
  const span s = img->extent[arg];
  const int64_t at = first_difference(img->host, after, s.offset, s.offset + s.bytes);
  if (at < 0) return true;
  const int64_t element = assay_dtype_size(img->arg[arg].dtype), index = (at - s.offset) / element;
  int64_t changed = 0;
  for (int64_t i = at; i < s.offset + s.bytes; ++i)
    changed += img->host[i] != after[i];
  verdict_set(result, VERDICT_FAIL, "input",
              "%s: the call changed an input, first element %lld of its allocation of %lld (%s); %lld bytes changed",
              img->call.op->args[arg].name, (long long)index, (long long)(s.bytes / element),
              assay_dtype_name(img->arg[arg].dtype), (long long)changed);
  return false;
}

/* Looks at guards, inputs and workspace. Allocations lie in the order of the arguments. */
static bool look_around(const trial *t, const image *img, bool untouched, const unsigned char *after,
                        case_result *result) {
  const assay_op *op = img->call.op;
  const char *left = NULL;
  int64_t end = 0;
  for (int32_t i = 0; i < op->arg_count; ++i) {
    const span s = img->extent[i];
    if (img->arg[i].data == NULL || s.offset < end) continue; /* absent, or inside the allocation of K */
    if (!same_guard(img, after, end, s.offset, left, op->args[i].name, result)) return false;
    left = op->args[i].name;
    end = s.offset + s.bytes;
  }
  if (!same_guard(img, after, end, img->arena_bytes, left, NULL, result)) return false;
  for (int32_t i = 0; i < op->arg_count; ++i)
    if (img->arg[i].data != NULL && (untouched || op->args[i].role == ASSAY_IN) && !same_input(img, after, i, result))
      return false;

  unsigned char guard[GUARD_BYTES];
  const unsigned char *start = after + img->arena_bytes;
  poison_fill(guard, GUARD_BYTES, img->chosen.poison);
  const int64_t before = first_difference(guard, start, 0, GUARD_BYTES);
  if (before >= 0) {
    verdict_set(result, VERDICT_FAIL, "guard", "workspace: wrote before its start, first at byte %lld before it",
                (long long)(GUARD_BYTES - before));
    return false;
  }
  /* The poison runs through the workspace, so the pattern after it starts where an odd size left it. */
  const unsigned char *behind = start + GUARD_BYTES + t->workspace_bytes;
  for (int64_t i = 0; i < GUARD_BYTES; ++i)
    if (behind[i] != guard[(t->workspace_bytes + i) & 1]) {
      verdict_set(result, VERDICT_FAIL, "guard",
                  "workspace: wrote after its end of %lld bytes, first at byte %lld past it",
                  (long long)t->workspace_bytes, (long long)i);
      return false;
    }
  for (int64_t i = 0; untouched && i < t->workspace_bytes; ++i)
    if (start[GUARD_BYTES + i] != guard[i & 1]) {
      verdict_set(result, VERDICT_FAIL, "refusal", "the refused call wrote to its workspace, first at byte %lld",
                  (long long)i);
      return false;
    }
  return true;
}

/* ---- what comes back --------------------------------------------------------------------------------- */

/* Lists the pieces that may not change: all but the outputs and the workspace between its guards. Allocations lie in
 * the order of the arguments. */
static int32_t list_pieces(const trial *t, const image *img, assay_piece *piece) {
  const assay_op *op = img->call.op;
  const int64_t workspace = workspace_offset(img), behind = workspace + t->workspace_bytes;
  int32_t count = 0;
  int64_t from = 0;
  for (int32_t i = 0; i < op->arg_count; ++i) {
    const span s = img->extent[i];
    if (img->arg[i].data == NULL || op->args[i].role == ASSAY_IN || s.offset < from) continue;
    piece[count++] = (assay_piece){from, s.offset - from};
    from = s.offset + s.bytes;
  }
  piece[count++] = (assay_piece){from, workspace - from};
  piece[count++] = (assay_piece){behind, total_bytes(t, img) - behind};
  return count;
}

static bool fetch_all(const trial *t, const image *img, device_memory *m, case_result *result) {
  assay_error error = {""};
  assay_status status = t->device->download(m->host, m->memory, total_bytes(t, img), &error);
  if (status == ASSAY_OK) status = t->device->synchronize(&error);
  return device_status(status, "download", true, &error, result);
}

/* Fetches the outputs after the launch, and asks the device whether anything else has changed. */
static bool fetch_outputs(const trial *t, const image *img, device_call *on, case_result *result) {
  const assay_op *op = img->call.op;
  device_memory *m = &held[on->place];
  assay_piece piece[ASSAY_MAX_PIECES];
  assay_error error = {""};
  int64_t from = 0;
  if (m->mirror == NULL) return true;
  const int32_t count = list_pieces(t, img, piece);
  assay_status status = t->device->compare(m->memory, m->mirror, piece, count, &m->differ, &error);
  for (int32_t i = 0; i < op->arg_count && status == ASSAY_OK; ++i) {
    const span s = img->extent[i];
    if (img->arg[i].data == NULL || op->args[i].role == ASSAY_IN || s.offset < from) continue;
    status = t->device->download(m->host + s.offset, m->memory + s.offset, s.bytes, &error);
    from = s.offset + s.bytes;
  }
  on->fetched = status == ASSAY_OK;
  return device_status(status, "download", true, &error, result);
}

/* Looks for changes after the wait. If the device found one, or could not be asked, everything is fetched and the
 * change is named. */
static bool look(const trial *t, const image *img, bool untouched, const device_call *on, case_result *result) {
  device_memory *m = &held[on->place];
  if (on->fetched && m->differ == 0) return true;
  if (!fetch_all(t, img, m, result) || !look_around(t, img, untouched, m->host, result)) return false;
  if (!on->fetched || m->differ < 0) return true;
  verdict_set(result, VERDICT_FAIL, "guard",
              "memory that the call may not write differs from what was uploaded, and from its copy on the device");
  return false;
}

static bool wait_for(const trial *t, case_result *result) {
  assay_error error = {""};
  return device_status(t->device->synchronize(&error), "after the launch", true, &error, result);
}

static bool collect_waited(const trial *t, const image *img, bool untouched, const device_call *on,
                           const unsigned char **after, case_result *result) {
  if (!look(t, img, untouched, on, result)) return false;
  *after = held[on->place].host;
  return untouched || outputs_rest(t, img, *after, result);
}

bool device_collect(const trial *t, const image *img, bool untouched, device_call *on, const unsigned char **after,
                    case_result *result) {
  if (!untouched && !fetch_outputs(t, img, on, result)) return false;
  return wait_for(t, result) && collect_waited(t, img, untouched, on, after, result);
}

bool device_plan(const trial *t, device_call *on, case_result *result) {
  assay_error error = {""};
  const assay_status status = variant_plan(t->variant, &on->call, &on->env, &error);
  if (status != ASSAY_ERR_UNSUPPORTED) return device_status(status, "plan", false, &error, result);
  verdict_set(result, VERDICT_UNSUPPORTED, "launch", "%s", error.text);
  return false;
}

/* ---- a run ------------------------------------------------------------------------------------------- */

bool device_begin(const trial *t, const image *img, uint64_t schedule, int32_t number, device_call *on,
                  case_result *result) {
  assay_error error = {""};
  if (!device_place(t, img, number, on, result)) return false;
  t->device->schedule(schedule);
  /* Code that reads memory by itself, and a plan that waits, would not see what is late. */
  const bool late = t->device->late != NULL && assay_plugin_door_of(t->variant) == NULL;
  on->env.settled = draw_settled(img, schedule);
  const bool twice = late && on->env.settled != 0;
  if (twice && !device_upload(t, img, on, result)) return false;
  if (late) (void)t->device->late(true, &error);
  if (!(twice ? device_upload_unsettled(t, img, on, result) : device_upload(t, img, on, result))) {
    if (late) (void)t->device->late(false, &error);
    return false;
  }
  if (!device_plan(t, on, result)) return false;
  const double start = device_now_ms();
  assay_status status = variant_launch_planned(t->variant, &on->call, &on->env, &error);
  if (late) { /* late work belongs to the call */
    assay_error unused = {""};
    const assay_status rest = t->device->late(false, status == ASSAY_OK ? &error : &unused);
    if (status == ASSAY_OK) status = rest;
  }
  on->launch_ms = device_now_ms() - start;
  return device_status(status, "launch", false, &error, result) && fetch_outputs(t, img, on, result);
}

bool device_end(const trial *t, const image *img, device_call *on, outputs *got, case_result *result) {
  const unsigned char *after = NULL;
  const double start = device_now_ms();
  if (!wait_for(t, result)) return false;
  result->run_ms = on->launch_ms + device_now_ms() - start;
  on->env.path[sizeof on->env.path - 1] = '\0';
  (void)snprintf(result->path, sizeof result->path, "%s", on->env.path);
  if (held[on->place].memory == NULL) { /* released because another call lost the device */
    verdict_set(result, VERDICT_CRASH, "crash", "the device was lost while the call was under way");
    result->device_lost = true;
    return false;
  }
  if (!collect_waited(t, img, false, on, &after, result)) return false;
  outputs_gather(t, img, after, got);
  return true;
}

bool device_run(const trial *t, const image *img, uint64_t schedule, outputs *got, case_result *result) {
  device_call on;
  return device_begin(t, img, schedule, 0, &on, result) && device_end(t, img, &on, got, result);
}

bool device_launch(const trial *t, device_call *on, uint64_t schedule, const char *step, case_result *result) {
  assay_error error = {""};
  t->device->schedule(schedule);
  if (!device_plan(t, on, result)) return false;
  return device_status(variant_launch_planned(t->variant, &on->call, &on->env, &error), step, false, &error, result);
}
