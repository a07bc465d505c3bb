/* vast.c: the law `vast`: repeats the call with one large dimension. A dense tensor has more than 2^32 elements, or
 * 2^31 where the definition allows no more. The case's own rows are at both ends of the dimension. Their results must
 * be right; those of all other rows are ignored.
 *
 * Where a call computes the whole dimension, simt runs the blocks at the ends of its grid alone. Blocks of another kind
 * of kernel may not do the rows at the ends. Such a kernel shows itself by a small call, from which the same blocks are
 * left out: where that is not right, nothing was asked. */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "conformance/generate/generate.h"
#include "core/registry.h"
#include "laws_internal.h"
#include "vast_internal.h"

/* MANY: multiprocessors of a device whose grid leaves no block a second turn. SMALL: elements of the small call. */
enum { MANY = 1 << 20, SMALL = 1 << 28 };

/* The numbers of blocks that run at each end of the grid. The next is tried where one is not enough. */
static const int64_t ends[] = {2, 24, 128};
enum { ENDS = sizeof ends / sizeof ends[0] };

/* Processor time of a window that is still tried, in seconds. Blocks that take longer have long sums, or tiles that are
 * mostly empty. */
static const double longest = 4;

/* Limits of a call on a device that runs all blocks. */
static const int64_t most_workspace = (int64_t)3 << 33;
static const double most_flops = 1e12;

/* Renumbers what argument `arg` holds, in a copy of the arena, and uploads it. */
static assay_status upload_index(const trial *t, const vast *v, int32_t arg, const device_call *on,
                                 assay_error *error) {
  const assay_tensor *index = &v->img->arg[arg];
  const span s = v->img->extent[arg];
  unsigned char *own = v->after + s.offset;
  for (int64_t n = 0; n < s.bytes / assay_dtype_size(index->dtype); ++n) {
    int32_t *narrow = (int32_t *)(void *)own + n;
    int64_t *wide = (int64_t *)(void *)own + n;
    if (index->dtype == ASSAY_I32)
      *narrow = (int32_t)vast_place(v, *narrow);
    else
      *wide = vast_place(v, *wide);
  }
  return t->device->upload(on->arg[arg].data, own, s.bytes, error);
}

double vast_flops(const trial *t, const device_call *on) {
  const assay_op *op = t->one->op;
  assay_tensor arg[ASSAY_MAX_ARGS];
  for (int32_t i = 0; i < op->arg_count; ++i) {
    arg[i] = on->call.arg[i];
    if (arg[i].dtype == ASSAY_I32 || arg[i].dtype == ASSAY_I64) arg[i].data = NULL;
  }
  return op->cost(&(assay_call){op, arg, on->call.param}, &t->seen).flops;
}

/* Places the call. Returns false with an untouched verdict where the variant does not take such a call. */
static bool prepare(const trial *t, vast *v, device_call *on, bool windowed, case_result *result) {
  assay_error error = {""};
  int64_t bytes = 0;
  v->after = malloc((size_t)v->img->arena_bytes);
  if (v->after == NULL) return verdict_no_memory(result);
  if (!device_place(t, v->img, 0, on, result)) return false;
  if (!device_status(vast_make(t, v, on, &error), "vast range", false, &error, result)) return false;
  assay_status status = variant_supports(t->variant, &on->call, &error);
  if (status == ASSAY_OK) status = variant_workspace(t->variant, &on->call, &bytes, &error);
  if (status == ASSAY_ERR_MEMORY) return verdict_no_memory(result);
  if (status != ASSAY_OK || bytes > most_workspace) return false;
  if (windowed)
    on->env.multiprocessors = MANY;
  else if (vast_flops(t, on) > most_flops)
    return false;
  if (bytes <= t->workspace_bytes) return true;
  const assay_piece all = {0, bytes};
  v->workspace.bytes = bytes;
  if (!device_status(vast_take(t, &v->workspace, &all, 1, &error), "vast workspace", false, &error, result))
    return false;
  on->env.workspace = v->workspace.memory;
  on->env.workspace_bytes = bytes;
  return true;
}

static bool run(const trial *t, vast *v, device_call *on, int64_t window, outputs *got, case_result *result) {
  const image *img = v->img;
  assay_error error = {""};
  if (!device_upload(t, img, on, result)) return false;
  memcpy(v->after, img->host, (size_t)img->arena_bytes);
  assay_status status = v->index >= 0 ? upload_index(t, v, v->index, on, &error) : ASSAY_OK;
  if (status == ASSAY_OK && v->also >= 0) status = upload_index(t, v, v->also, on, &error);
  if (status == ASSAY_OK) status = vast_copy(t, v, true, &error);
  if (status == ASSAY_OK) status = t->device->synchronize(&error);
  if (!device_status(status, "upload", true, &error, result)) return false;
  if (window > 0) t->device->window(window);
  const bool launched = device_launch(t, on, t->one->seed, "launch over vast tensors", result);
  if (launched) status = t->device->synchronize(&error);
  if (window > 0) t->device->window(0);
  if (!launched || !device_status(status, "over vast tensors", true, &error, result)) return false;
  for (int32_t i = 0; i < t->one->op->arg_count && status == ASSAY_OK; ++i) {
    const span s = img->extent[i];
    if (img->arg[i].data != NULL && t->one->op->args[i].role != ASSAY_IN && !vast_has(v, i))
      status = t->device->download(
          v->after + s.offset, (const void *)((uintptr_t)on->arg[i].data - (uintptr_t)img->bias[i]), s.bytes, &error);
  }
  if (status == ASSAY_OK) status = vast_copy(t, v, false, &error);
  if (status == ASSAY_OK) status = t->device->synchronize(&error);
  if (!device_status(status, "download", true, &error, result)) return false;
  outputs_gather(t, img, v->after, got);
  return outputs_rest(t, img, v->after, result);
}

/* A dimension that is asked, the call with it, and its result. */
typedef struct question {
  const trial *t;
  const vast_axis *axis;
  vast v;
  device_call on;
  outputs got, small; /* outputs of the large call and of the small one */
} question;

/* Tells whether so many blocks at the ends of the grid do the rows at the ends. It asks a call of usual size that has
 * as many rows. */
static bool ends_are_enough(question *q, int64_t window) {
  case_result unused = {.verdict = VERDICT_PASS};
  device_call on;
  finding found = {.wrong = true};
  vast v;
  if (!vast_choose_small(q->t, q->axis, SMALL, &q->v, &v)) return false;
  if (prepare(q->t, &v, &on, true, &unused) && run(q->t, &v, &on, window, &q->small, &unused))
    values_judge(q->t, &q->small, &found);
  vast_free(q->t, &v);
  return !found.wrong;
}

/* Tells whether the first wrong element is as it was before the call. */
static bool is_untouched(const question *q, const finding *found) {
  const trial_output *o = &q->t->output[found->first.output];
  const int64_t size = assay_dtype_size(o->dtype);
  const int64_t at = (found->first.row * o->width + found->first.element) * size;
  if (!o->inout) return values_poisoned(q->t, &q->got, found->first, q->t->first.chosen.poison);
  return memcmp(q->got.bits[found->first.output] + at, q->t->initial.bits[found->first.output] + at, (size_t)size) == 0;
}

/* Tells whether the window after number i takes too long, by the processor time of the one before it. */
static bool is_too_long(int32_t i, clock_t taken) {
  if (i + 1 >= ENDS) return false;
  return (double)taken / CLOCKS_PER_SEC * (double)ends[i + 1] / (double)ends[i] > longest;
}

/* Runs the call, under windows of more and more blocks, until the result is right or was to be. Sets *asked where it
 * was. */
static bool run_until_asked(question *q, bool windowed, bool *asked, case_result *result) {
  finding found = {.wrong = true};
  for (int32_t i = 0; i < (windowed ? ENDS : 1) && !*asked; ++i) {
    const int64_t window = windowed ? ends[i] : 0;
    const clock_t begin = clock();
    if (!run(q->t, &q->v, &q->on, window, &q->got, result)) return false;
    values_judge(q->t, &q->got, &found);
    *asked = !found.wrong || !windowed;
    const clock_t taken = clock() - begin;
    if (!*asked && (i == ENDS - 1 || !is_untouched(q, &found))) *asked = ends_are_enough(q, window);
    if (!*asked && is_too_long(i, taken)) break;
  }
  if (!found.wrong || !*asked) return true;
  char changed[160];
  (void)snprintf(changed, sizeof changed, "when %s is %lld, and a tensor has %lld elements", q->v.dim,
                 (long long)q->v.grown, (long long)q->v.elements);
  return rerun_within(q->t, &q->got, "vast", changed, result);
}

/* Asks one dimension. */
static bool ask(question *q, bool *asked, case_result *result) {
  const bool windowed = q->axis->index == NULL && q->t->device->window != NULL;
  bool good = outputs_make(q->t, &q->got);
  good = outputs_make(q->t, &q->small) && good;
  if (!good) (void)verdict_no_memory(result);
  if (good && prepare(q->t, &q->v, &q->on, windowed, result))
    good = run_until_asked(q, windowed, asked, result);
  else
    good = good && result->verdict == VERDICT_PASS;
  vast_free(q->t, &q->v);
  outputs_free(&q->got);
  outputs_free(&q->small);
  return good;
}

/* Code that runs on a CPU without the scheduler does every row, which takes minutes. */
bool vast_applies(const trial *t) {
  vast_axis axis[VAST_AXES];
  return vast_axes(t->one->op, axis) > 0 && !assay_plugin_is_direct(t->variant);
}

bool vast_check(const trial *t, const outputs *base, case_result *result) {
  static const int64_t reach[] = {(int64_t)1 << 32, (int64_t)1 << 31};
  vast_axis axis[VAST_AXES];
  const int32_t count = vast_axes(t->one->op, axis);
  bool any = false;
  (void)base;
  for (int32_t i = 0; i < count; ++i) {
    question q = {.t = t, .axis = &axis[i]};
    bool asked = false;
    if (!vast_choose(t, q.axis, reach[0], &q.v) && !vast_choose(t, q.axis, reach[1], &q.v)) continue;
    if (!ask(&q, &asked, result)) return false;
    any = any || asked;
  }
  if (any) result_add_law(result, "vast");
  return true;
}
