/* pages.c: the law `pages`: puts every argument and the workspace into a region of its own. The region's end is the
 * last address before unmapped ones (in other cases its begin is the first address after them). A read too far faults,
 * on a GPU at full speed. On a device that uses the host's memory the fault is caught, and the argument is named. */
#define _XOPEN_SOURCE 700
#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include "conformance/generate/generate.h"
#include "conformance/trial/trial.h"
#include "core/modes.h"
#include "core/registry.h"
#include "laws_internal.h"
#include "pages.h"

enum { NATURAL = 16, WORKSPACE = ASSAY_MAX_ARGS, REGIONS = ASSAY_MAX_ARGS + 1 };
enum { SIGNAL_STACK = 1 << 16, PAGE = 4096 };

/* One argument, or the workspace, of the running case. */
typedef struct region {
  unsigned char *memory; /* kept between cases; grows only */
  int64_t capacity;
  unsigned char *at; /* where the bytes lie now */
  int64_t bytes, slack;
} region;

static _Thread_local struct {
  const assay_device *device;
  region part[REGIONS];
  unsigned char *staging;
  int64_t staging_bytes;
  uint64_t epoch; /* device_epoch() when they were taken */
} kept;

void pages_release(void) {
  for (int i = 0; i < REGIONS; ++i)
    if (kept.part[i].memory != NULL) kept.device->release_guarded(kept.part[i].memory);
  free(kept.staging);
  memset(&kept, 0, sizeof kept);
}

/* ---- faults of the host's own memory ----------------------------------------------------------------- */

static _Thread_local struct {
  sigjmp_buf back;
  struct sigaction before[2];
  volatile sig_atomic_t armed;
  volatile int part;
  volatile int64_t offset; /* offset of the fault from the begin of the argument */
} fault;

static const int fault_signal[2] = {SIGSEGV, SIGBUS};

/* Leaves a fiber's stack and the launch by a jump; nothing of them is used again. Faults elsewhere are not handled
 * here. */
static void on_fault(int number, siginfo_t *info, void *context) {
  const uintptr_t address = (uintptr_t)info->si_addr, reach = (uintptr_t)ASSAY_UNMAPPED_BYTES;
  (void)number, (void)context;
  for (int i = 0; i < REGIONS && fault.armed; ++i) {
    const region *r = &kept.part[i];
    const uintptr_t begin = (uintptr_t)r->memory, end = begin + (uintptr_t)r->capacity;
    if (r->at == NULL || address + reach < begin || address >= end + reach || (address >= begin && address < end))
      continue;
    fault.part = i;
    fault.offset = (int64_t)(address - (uintptr_t)r->at);
    siglongjmp(fault.back, 1);
  }
  for (int i = 0; i < 2; ++i)
    (void)sigaction(fault_signal[i], &fault.before[i], NULL);
}

static void arm(void) {
  static _Thread_local unsigned char stack[SIGNAL_STACK];
  const stack_t own = {.ss_sp = stack, .ss_size = sizeof stack};
  struct sigaction action = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO | SA_ONSTACK};
  (void)sigemptyset(&action.sa_mask);
  (void)sigaltstack(&own, NULL);
  for (int i = 0; i < 2; ++i)
    (void)sigaction(fault_signal[i], &action, &fault.before[i]);
  fault.armed = 1;
}

static void disarm(void) {
  fault.armed = 0;
  for (int i = 0; i < 2; ++i)
    (void)sigaction(fault_signal[i], &fault.before[i], NULL);
}

static void say_fault(const trial *t, case_result *result) {
  const region *r = &kept.part[fault.part];
  const char *name = fault.part == WORKSPACE ? "workspace" : t->one->op->args[fault.part].name;
  const bool before = fault.offset < 0;
  verdict_set(result, VERDICT_CRASH, "crash",
              "%s: accessed byte %lld %s of its %lld; every buffer began or ended at an unmapped page", name,
              (long long)(before ? -fault.offset : fault.offset - r->bytes),
              before ? "before the first" : "past the end", (long long)r->bytes);
  result->device_lost = true; /* the launch was left halfway */
}

/* ---- placement --------------------------------------------------------------------------------------- */

static int64_t round_up(int64_t bytes, int64_t to) {
  return (bytes + to - 1) / to * to;
}

/* Returns the place of an argument's elements inside its allocation, without the padding of its last row or block. */
static span used_bytes(const image *img, int32_t i) {
  const assay_tensor *t = &img->arg[i];
  const assay_content content = img->call.op->args[i].content;
  const bool pool = content == ASSAY_K_CACHE || content == ASSAY_V_CACHE;
  const int64_t element = assay_dtype_size(t->dtype);
  const int64_t begin = img->bias[i] + (pool ? img->first_block * t->stride[0] * element : 0);
  int64_t last = 0;
  for (int32_t a = 0; a < t->rank; ++a) {
    const int64_t extent = pool && a == 0 ? img->pool_blocks : t->shape[a];
    if (extent <= 0) return (span){begin, 0};
    if (extent > 1) last += (extent - 1) * t->stride[a];
  }
  return (span){begin, (last + 1) * element};
}

/* Places `bytes` bytes at the chosen end of a region's pages. */
static bool place_part(const trial *t, int part, int64_t bytes, int64_t alignment, bool behind, case_result *result) {
  region *r = &kept.part[part];
  assay_error error = {""};
  const int64_t rounded = round_up(bytes, alignment);
  if (r->memory == NULL || r->capacity < rounded) {
    void *memory = NULL;
    if (r->memory != NULL) t->device->release_guarded(r->memory);
    *r = (region){.memory = NULL};
    if (!device_status(t->device->alloc_guarded(rounded, &memory, &r->capacity, &error), "guarded allocation", false,
                       &error, result))
      return false;
    r->memory = memory;
  }
  r->at = behind ? r->memory + r->capacity - rounded : r->memory;
  r->bytes = bytes;
  r->slack = behind ? rounded - bytes : 0;
  return true;
}

/* Uploads the bytes, then poison up to the unmapped page. `contents` NULL: poison alone. */
static bool fill(const trial *t, const region *r, const unsigned char *contents, case_result *result) {
  assay_error error = {""};
  const int64_t from = contents != NULL ? r->bytes : 0, poisoned = r->bytes + r->slack - from;
  assay_status status = from > 0 ? t->device->upload(r->at, contents, from, &error) : ASSAY_OK;
  if (poisoned > kept.staging_bytes) {
    free(kept.staging);
    kept.staging_bytes = 2 * poisoned;
    kept.staging = malloc((size_t)kept.staging_bytes);
    if (kept.staging == NULL) {
      kept.staging_bytes = 0;
      (void)verdict_no_memory(result);
      return false;
    }
  }
  if (poisoned > 0) poison_fill(kept.staging, poisoned, t->first.chosen.poison);
  if (status == ASSAY_OK && poisoned > 0) status = t->device->upload(r->at + from, kept.staging, poisoned, &error);
  return device_status(status, "upload", true, &error, result);
}

static bool place_all(const trial *t, bool behind, device_call *on, case_result *result) {
  const image *img = &t->first;
  const assay_op *op = img->call.op;
  if (kept.device != t->device || kept.epoch != device_epoch()) pages_release();
  kept.device = t->device;
  kept.epoch = device_epoch();
  for (int i = 0; i < REGIONS; ++i)
    kept.part[i].at = NULL;
  for (int32_t i = 0; i < op->arg_count; ++i) {
    on->arg[i] = img->arg[i];
    if (img->arg[i].data == NULL) continue;
    int32_t home = i; /* the argument that has the allocation; K and V may share one */
    for (int32_t j = 0; j < i && home == i; ++j)
      if (img->arg[j].data != NULL && img->extent[j].bytes > 0 && img->extent[j].offset == img->extent[i].offset)
        home = j;
    const span own = used_bytes(img, i);
    if (home == i) {
      int64_t end = own.offset + own.bytes;
      for (int32_t j = i + 1; j < op->arg_count; ++j)
        if (img->arg[j].data != NULL && img->extent[j].offset == img->extent[i].offset && img->extent[i].bytes > 0) {
          const span other = used_bytes(img, j);
          if (other.offset + other.bytes > end) end = other.offset + other.bytes;
        }
      if (!place_part(t, i, end, NATURAL, behind, result) ||
          !fill(t, &kept.part[i], img->host + img->extent[i].offset, result))
        return false;
    }
    on->arg[i].data = (void *)((uintptr_t)kept.part[home].at + (uintptr_t)img->bias[i]);
  }
  if (!place_part(t, WORKSPACE, t->workspace_bytes, 256, behind, result) ||
      !fill(t, &kept.part[WORKSPACE], NULL, result))
    return false;
  on->call = (assay_call){op, on->arg, img->param};
  on->env = (assay_env){.stream = t->device->stream(),
                        .workspace = kept.part[WORKSPACE].at,
                        .workspace_bytes = t->workspace_bytes,
                        .multiprocessors = t->facts.multiprocessors,
                        .memory_rate = t->facts.memory_rate};
  return true;
}

/* ---- the law ----------------------------------------------------------------------------------------- */

/* Tells whether the byte cannot be read. The system looks, so that no handler of the launcher is asked. */
static bool is_unmapped(const unsigned char *at) {
  return access((const char *)at, F_OK) != 0 && errno == EFAULT;
}

/* Tells whether the pages beside the buffers are what they were. A launcher from outside may handle its own faults: by
 * memory where there was none, or by a handler that stays. */
static bool same_pages(const trial *t, case_result *result) {
  for (int i = 0; i < REGIONS; ++i) {
    const region *r = &kept.part[i];
    for (int64_t at = 1; r->at != NULL && at <= ASSAY_UNMAPPED_BYTES; at += PAGE) {
      const bool before = !is_unmapped(r->memory - at);
      if (!before && is_unmapped(r->memory + r->capacity + at - 1)) continue;
      verdict_set(result, VERDICT_CRASH, "crash",
                  "%s: accessed memory %s; its launcher handles faults, and has put memory at the unmapped page there",
                  i == WORKSPACE ? "workspace" : t->one->op->args[i].name,
                  before ? "before the first" : "past the end");
      result->device_lost = true; /* these pages are no guard any more */
      return false;
    }
  }
  return true;
}

/* Notes a handler of faults that the launcher has put in place of ours. To ignore a fault is no way to survive it. */
static void look_at_handlers(void) {
  for (int i = 0; i < 2; ++i) {
    struct sigaction now;
    if (sigaction(fault_signal[i], NULL, &now) != 0 || now.sa_sigaction == on_fault) continue;
    if (now.sa_handler != SIG_DFL && now.sa_handler != SIG_IGN)
      modes_note("launch()", "it handles the faults of this process");
  }
}

static bool launch(const trial *t, device_call *on, case_result *result) {
  assay_error error = {""};
  if (sigsetjmp(fault.back, 1) != 0) {
    disarm();
    say_fault(t, result);
    return false;
  }
  const bool host_memory = strcmp(t->device->name, "cuda") != 0;
  if (host_memory) arm();
  t->device->schedule(t->one->seed);
  const assay_status launched = variant_launch(t->variant, &on->call, &on->env, &error);
  const assay_status status = launched == ASSAY_OK ? t->device->synchronize(&error) : launched;
  const bool outside = assay_plugin_origin(t->variant) != NULL;
  if (host_memory && outside) look_at_handlers();
  if (host_memory) disarm();
  if (host_memory && outside && !same_pages(t, result)) return false;
  if (device_status(status, "launch", launched == ASSAY_OK, &error, result)) return true;
  if (result->verdict == VERDICT_CRASH)
    verdict_set(result, VERDICT_CRASH, "crash", "every buffer began or ended at an unmapped page: %s", error.text);
  return false;
}

/* Checks the poison after each buffer whose size is no multiple of its alignment. */
static bool same_slack(const trial *t, case_result *result) {
  unsigned char found[REGIONS][NATURAL * NATURAL], poison[512];
  assay_error error = {""};
  assay_status status = ASSAY_OK;
  poison_fill(poison, sizeof poison, t->first.chosen.poison);
  for (int i = 0; i < REGIONS && status == ASSAY_OK; ++i) {
    const region *r = &kept.part[i];
    if (r->at != NULL && r->slack > 0) status = t->device->download(found[i], r->at + r->bytes, r->slack, &error);
  }
  if (status == ASSAY_OK) status = t->device->synchronize(&error);
  if (!device_status(status, "download", true, &error, result)) return false;
  for (int i = 0; i < REGIONS; ++i) {
    const region *r = &kept.part[i];
    if (r->at == NULL || r->slack == 0) continue;
    if (memcmp(found[i], poison + (i == WORKSPACE ? r->bytes & 1 : 0), (size_t)r->slack) == 0) continue;
    verdict_set(result, VERDICT_FAIL, "guard", "%s: wrote after its end, into the %lld bytes before an unmapped page",
                i == WORKSPACE ? "workspace" : t->one->op->args[i].name, (long long)r->slack);
    return false;
  }
  return true;
}

/* Fetches what was written to the places that it has in the image. */
static bool fetch(const trial *t, outputs *got, case_result *result) {
  assay_error error = {""};
  assay_status status = ASSAY_OK;
  unsigned char *after = malloc((size_t)t->first.arena_bytes);
  if (after == NULL) {
    (void)verdict_no_memory(result);
    return false;
  }
  for (int32_t i = 0; i < t->one->op->arg_count && status == ASSAY_OK; ++i) {
    const region *r = &kept.part[i];
    const span s = t->first.extent[i];
    if (t->one->op->args[i].role == ASSAY_IN || t->first.arg[i].data == NULL) continue;
    if (r->at != NULL) memcpy(after + s.offset, t->first.host + s.offset, (size_t)s.bytes);
    if (r->at != NULL && r->bytes > 0) status = t->device->download(after + s.offset, r->at, r->bytes, &error);
  }
  if (status == ASSAY_OK) status = t->device->synchronize(&error);
  const bool good = device_status(status, "download", true, &error, result);
  if (good) outputs_gather(t, &t->first, after, got);
  const bool rest = good && outputs_rest(t, &t->first, after, result);
  free(after);
  return rest;
}

bool pages_applies(const trial *t) {
  return t->device->alloc_guarded != NULL;
}

bool pages_check(const trial *t, const outputs *base, case_result *result) {
  const bool behind = (logical_hash(t->one, STREAM_SIDE) & 1) == 0;
  outputs got;
  static _Thread_local device_call on; /* static: alive after a jump */
  bool good = outputs_make(t, &got);
  if (!good) (void)verdict_no_memory(result);
  good = good && place_all(t, behind, &on, result) && launch(t, &on, result) && same_slack(t, result) &&
         fetch(t, &got, result);
  good = good && rerun_same(t, base, &got, "pages",
                            behind ? "when every buffer ends at an unmapped page"
                                   : "when every buffer begins at an unmapped page",
                            result);
  if (good) result_add_law(result, "pages");
  outputs_free(&got);
  return good;
}
