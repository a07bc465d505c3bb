/* judge_device.c: one run of a variant: memory, guards, poison, launch, and what it may not have touched. */
#define _POSIX_C_SOURCE 200809L
#include <stdlib.h>
#include <time.h>

#include "judge_parts.h"

enum { ALIGNMENT = 256 };

/* Kept between cases; grows only. `host` mirrors it. */
static _Thread_local struct {
  const assay_device *device;
  unsigned char *memory, *host;
  int64_t bytes;
} held;

double judge_now_ms(void) {
  struct timespec now;
  (void)clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec * 1e3 + (double)now.tv_nsec * 1e-6;
}

/* Asked once: on cuda it takes longer than a small case. */
int32_t device_multiprocessors(const assay_device *device) {
  static _Thread_local const assay_device *asked;
  static _Thread_local int32_t count = 1;
  assay_device_info info = {.multiprocessors = 1};
  if (asked != device && device->info(&info, NULL) == ASSAY_OK) {
    asked = device;
    count = info.multiprocessors;
  }
  return count;
}

void judge_verdict(case_result *result, verdict v, const char *check, const char *format, ...) {
  va_list list;
  result->verdict = v;
  (void)snprintf(result->check, sizeof result->check, "%s", check);
  va_start(list, format);
  (void)vsnprintf(result->message, sizeof result->message, format, list);
  va_end(list);
}

void judge_release(void) {
  pages_release();
  if (held.memory != NULL) held.device->release(held.memory);
  free(held.host);
  held.device = NULL;
  held.memory = NULL;
  held.host = NULL;
  held.bytes = 0;
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
  case ASSAY_ERR_INTERNAL:
    break;
  }
  return "internal error";
}

bool device_status(assay_status status, const char *step, bool waited, const assay_error *error, case_result *result) {
  if (status == ASSAY_OK) return true;
  if (status == ASSAY_ERR_HANG) {
    judge_verdict(result, VERDICT_HANG, "hang", "%s", error->text);
  } else if (status == ASSAY_ERR_RACE) {
    judge_verdict(result, VERDICT_FAIL, "race", "%s", error->text);
  } else if (status == ASSAY_ERR_DEVICE && waited) {
    judge_verdict(result, VERDICT_CRASH, "crash", "%s: %s", step, error->text);
    result->device_lost = true;
    judge_release();
  } else {
    judge_verdict(result, VERDICT_FAIL, "launch", "%s: %s: %s", step, status_name(status), error->text);
  }
  return false;
}

/* [arena][guard][workspace][guard]; the arena's size is a multiple of the alignment. */
static int64_t workspace_offset(const image *img) {
  return img->arena_bytes + GUARD_BYTES;
}
static int64_t total_bytes(const trial *t, const image *img) {
  return workspace_offset(img) + t->workspace_bytes + GUARD_BYTES;
}

static bool hold(const trial *t, int64_t bytes, case_result *result) {
  assay_error error = {""};
  if (held.device != t->device) judge_release();
  if (held.memory != NULL && held.bytes >= bytes) return true;
  judge_release();
  const int64_t rounded = (bytes + bytes / 4 + (1 << 20)) / ALIGNMENT * ALIGNMENT;
  void *memory = NULL;
  if (!device_status(t->device->alloc(rounded, &memory, &error), "allocation", false, &error, result)) return false;
  held.device = t->device;
  held.memory = memory;
  held.bytes = rounded;
  held.host = malloc((size_t)rounded);
  if (held.host != NULL) return true;
  judge_release();
  judge_verdict(result, VERDICT_FAIL, "launch", "judge: no memory for %lld bytes", (long long)rounded);
  return false;
}

bool device_place(const trial *t, const image *img, device_call *made, case_result *result) {
  if (!hold(t, total_bytes(t, img), result)) return false;
  made->arena = held.memory;
  made->call = image_rebase(img, held.memory, made->arg);
  made->env = (assay_env){.stream = t->device->stream(),
                          .workspace = held.memory + workspace_offset(img),
                          .workspace_bytes = t->workspace_bytes,
                          .multiprocessors = t->multiprocessors};
  return true;
}

bool device_upload(const trial *t, const image *img, case_result *result) {
  assay_error error = {""};
  const int64_t tail = total_bytes(t, img) - img->arena_bytes;
  poison_fill(held.host + img->arena_bytes, tail, img->chosen.poison);
  assay_status status = t->device->upload(held.memory, img->host, img->arena_bytes, &error);
  if (status == ASSAY_OK)
    status = t->device->upload(held.memory + img->arena_bytes, held.host + img->arena_bytes, tail, &error);
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
    judge_verdict(result, VERDICT_FAIL, "guard",
                  "%s: wrote after its end, first at byte %lld past it; %lld bytes changed", left,
                  (long long)(at - from), (long long)changed);
  else
    judge_verdict(result, VERDICT_FAIL, "guard",
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
  judge_verdict(result, VERDICT_FAIL, "input",
                "%s: the call changed an input, first element %lld of its allocation of %lld (%s); %lld bytes changed",
                img->call.op->args[arg].name, (long long)index, (long long)(s.bytes / element),
                assay_dtype_name(img->arg[arg].dtype), (long long)changed);
  return false;
}

/* Allocations lie in the order of the arguments. */
static bool look_around(const trial *t, const image *img, bool untouched, const unsigned char *after,
                        case_result *result) {
  const assay_op *op = img->call.op;
  const char *left = NULL;
  int64_t end = 0;
  for (int32_t i = 0; i < op->arg_count; ++i) {
    const span s = img->extent[i];
    if (img->arg[i].data == NULL || s.offset < end) continue; /* absent, or inside K's allocation */
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
    judge_verdict(result, VERDICT_FAIL, "guard", "workspace: wrote before its start, first at byte %lld before it",
                  (long long)(GUARD_BYTES - before));
    return false;
  }
  /* The poison runs through the workspace, so the pattern after it starts where an odd size left it. */
  const unsigned char *behind = start + GUARD_BYTES + t->workspace_bytes;
  for (int64_t i = 0; i < GUARD_BYTES; ++i)
    if (behind[i] != guard[(t->workspace_bytes + i) & 1]) {
      judge_verdict(result, VERDICT_FAIL, "guard",
                    "workspace: wrote after its end of %lld bytes, first at byte %lld past it",
                    (long long)t->workspace_bytes, (long long)i);
      return false;
    }
  for (int64_t i = 0; untouched && i < t->workspace_bytes; ++i)
    if (start[GUARD_BYTES + i] != guard[i & 1]) {
      judge_verdict(result, VERDICT_FAIL, "refusal", "the refused call wrote to its workspace, first at byte %lld",
                    (long long)i);
      return false;
    }
  return true;
}

bool device_collect(const trial *t, const image *img, bool untouched, const unsigned char **after,
                    case_result *result) {
  assay_error error = {""};
  if (!device_status(t->device->synchronize(&error), "after the launch", true, &error, result)) return false;
  const assay_status status = t->device->download(held.host, held.memory, total_bytes(t, img), &error);
  if (!device_status(status, "download", true, &error, result)) return false;
  if (!device_status(t->device->synchronize(&error), "download", true, &error, result)) return false;
  *after = held.host;
  return look_around(t, img, untouched, held.host, result) && (untouched || outputs_rest(t, img, held.host, result));
}

/* ---- a run ------------------------------------------------------------------------------------------- */

bool device_run(const trial *t, const image *img, uint64_t schedule, outputs *made, case_result *result) {
  device_call on;
  const unsigned char *after = NULL;
  assay_error error = {""};
  if (!device_place(t, img, &on, result) || !device_upload(t, img, result)) return false;
  t->device->schedule(schedule);
  const double start = judge_now_ms();
  const assay_status status = t->variant->launch(&on.call, &on.env, &error);
  const bool launched = device_status(status, "launch", false, &error, result);
  if (launched && !device_status(t->device->synchronize(&error), "after the launch", true, &error, result))
    return false;
  if (!launched) return false;
  result->run_ms = judge_now_ms() - start;
  on.env.path[sizeof on.env.path - 1] = '\0';
  (void)snprintf(result->path, sizeof result->path, "%s", on.env.path);
  if (!device_collect(t, img, false, &after, result)) return false;
  outputs_gather(t, img, after, made);
  return true;
}
