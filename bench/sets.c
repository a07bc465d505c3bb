/* sets.c: input sets and what becomes of them. */
#include "sets.h"

#include <stdlib.h>
#include <string.h>

#include "conformance/generate_logical.h"

enum { ALIGNMENT = 256, POISON = 0x16, STREAM_CONTENT = 0x6741, SEEDS_TRIED = 400 };

static bool out_of_memory(case_result *result) {
  judge_verdict(result, VERDICT_FAIL, "launch", "bench: out of memory");
  return false;
}

/* A status of the device or of a launch as a verdict. */
static bool good(assay_status status, const char *step, bool waited, const assay_error *error, case_result *result) {
  return device_status(status, step, waited, error, result);
}

static bool can_compare(const bench_sets *s) {
  return s->device->compare != NULL && s->device->copy != NULL;
}

/* ---- one content ------------------------------------------------------------------------------------- */

/* Memory of the judge's layout, the image's bytes in front, poison behind. */
static unsigned char *bytes_of(const bench_sets *s, const image *img) {
  unsigned char *made = malloc((size_t)s->bytes);
  if (made == NULL) return NULL;
  memcpy(made, img->host, (size_t)img->arena_bytes);
  poison_fill(made + img->arena_bytes, s->bytes - img->arena_bytes, img->chosen.poison);
  return made;
}

/* The stride of an axis of one element is anybody's, and the first content's counts. */
static bool same_tensor(const assay_tensor *a, const assay_tensor *b) {
  bool same = (a->data == NULL) == (b->data == NULL) && a->dtype == b->dtype && a->rank == b->rank;
  for (int32_t i = 0; i < a->rank && same; ++i)
    same = a->shape[i] == b->shape[i] && (a->stride[i] == b->stride[i] || a->shape[i] == 1);
  return same;
}

static bool same_layout(const image *a, const image *b) {
  bool same = a->arena_bytes == b->arena_bytes;
  for (int32_t i = 0; i < a->call.op->arg_count && same; ++i)
    same = a->extent[i].offset == b->extent[i].offset && a->extent[i].bytes == b->extent[i].bytes &&
           a->bias[i] == b->bias[i] && same_tensor(&a->arg[i], &b->arg[i]);
  return same;
}

static bool ask_workspace(bench_sets *s, trial *t, case_result *result) {
  assay_error error = {""};
  const assay_status status = s->variant->workspace(&t->first.call, &t->workspace_bytes, &error);
  if (status == ASSAY_OK && t->workspace_bytes >= 0) return true;
  judge_verdict(result, VERDICT_FAIL, "launch", "workspace() of a legal call: %s", error.text);
  return false;
}

/* A seed draws strides that nobody may look at, and sizes of the pool as well: another one with the same of these. */
static bool find_seed(const bench_sets *s, assay_case *one, uint64_t stream) {
  const draw choice = {.dead = one->dead, .poison = POISON};
  const uint64_t seed = one->seed;
  for (uint64_t i = 0; i < SEEDS_TRIED; ++i) {
    image shape;
    one->seed = logical_hash(s->content[0].t.one, stream + (i << 20));
    if (one->seed == seed || image_shape(one, &choice, &shape, NULL) != ASSAY_OK) continue;
    const bool same = same_layout(&s->content[0].img, &shape);
    image_free(&shape);
    if (same) return true;
  }
  return false;
}

static bool make_content(bench_sets *s, const assay_case *one, int32_t number, case_result *result) {
  bench_content *c = &s->content[number];
  assay_error error = {""};
  case_result said = {.verdict = VERDICT_PASS};
  c->one = *one;
  if (number > 0 && !find_seed(s, &c->one, STREAM_CONTENT + (uint64_t)number)) {
    judge_verdict(result, VERDICT_UNSUPPORTED, "bench", "no other seed gives tensors of the same layout");
    return false;
  }
  c->t = (trial){.one = &c->one, .variant = s->variant, .device = s->device};
  c->t.multiprocessors = device_multiprocessors(s->device);
  const draw choice = {.dead = one->dead, .poison = POISON};
  if (!trial_shape(&c->t, &said) || !ask_workspace(s, &c->t, &said) || !trial_reference(&c->t, &said)) {
    judge_verdict(result, VERDICT_FAIL, said.check, "content %d: %s", number, said.message);
    return false;
  }
  if (image_vary(&c->t.first, &choice, c->t.seen.v_needed, &c->img, &error) != ASSAY_OK) {
    judge_verdict(result, VERDICT_FAIL, "launch", "%s", error.text);
    return false;
  }
  const image *first = &s->content[0].img;
  if (!same_layout(first, &c->img) || s->content[0].t.workspace_bytes != c->t.workspace_bytes) {
    judge_verdict(result, VERDICT_FAIL, "launch", "workspace() gives %lld bytes, and %lld for the same shapes",
                  (long long)s->content[0].t.workspace_bytes, (long long)c->t.workspace_bytes);
    return false;
  }
  s->workspace = first->arena_bytes + GUARD_BYTES;
  s->bytes = (s->workspace + c->t.workspace_bytes + GUARD_BYTES + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
  return true;
}

/* ---- what may not change ----------------------------------------------------------------------------- */

static bool written(const image *img, int32_t arg) {
  return img->arg[arg].data != NULL && img->call.op->args[arg].role != ASSAY_IN;
}

/* Runs of bytes that must be as before, whatever the call computes: all but outputs and the workspace. `all`: outputs
 * as well. */
static int32_t list_pieces(const bench_sets *s, const trial *t, const image *img, bool all, assay_piece *piece) {
  int32_t count = 0;
  int64_t from = 0;
  for (int32_t i = 0; i < img->call.op->arg_count && !all; ++i) {
    const span e = img->extent[i];
    if (!written(img, i) || e.offset < from) continue;
    piece[count++] = (assay_piece){from, e.offset - from};
    from = e.offset + e.bytes;
  }
  piece[count++] = (assay_piece){from, s->workspace - from};
  from = s->workspace + t->workspace_bytes;
  piece[count++] = (assay_piece){from, s->bytes - from};
  return count;
}

static bool same_pieces(const unsigned char *a, const unsigned char *b, const assay_piece *piece, int32_t count,
                        int64_t *at) {
  for (int32_t i = 0; i < count; ++i)
    for (int64_t k = 0; k < piece[i].bytes; ++k) {
      *at = piece[i].offset + k;
      if (a[*at] == b[*at]) continue;
      return false;
    }
  return true;
}

static bool same_around(const bench_sets *s, const bench_content *c, const unsigned char *after, case_result *result) {
  assay_piece piece[ASSAY_MAX_PIECES];
  const assay_op *op = c->img.call.op;
  const int32_t count = list_pieces(s, &c->t, &c->img, false, piece);
  int64_t at = 0;
  bool whole = true;
  for (int32_t i = 0; i < count; ++i)
    whole = whole && memcmp(c->before + piece[i].offset, after + piece[i].offset, (size_t)piece[i].bytes) == 0;
  if (whole || same_pieces(c->before, after, piece, count, &at)) return outputs_rest(&c->t, &c->img, after, result);
  for (int32_t i = 0; i < op->arg_count; ++i) {
    const span e = c->img.extent[i];
    if (c->img.arg[i].data == NULL || at < e.offset || at >= e.offset + e.bytes) continue;
    judge_verdict(result, VERDICT_FAIL, "input", "%s: the call changed an input, first at byte %lld of its %lld",
                  op->args[i].name, (long long)(at - e.offset), (long long)e.bytes);
    return false;
  }
  judge_verdict(result, VERDICT_FAIL, "guard", "wrote where nothing is, first at byte %lld; the tensors end at %lld",
                (long long)at, (long long)c->img.arena_bytes);
  return false;
}

/* ---- runs -------------------------------------------------------------------------------------------- */

static bool upload(const bench_sets *s, void *to, const unsigned char *from, case_result *result) {
  assay_error error = {""};
  assay_status status = s->device->upload(to, from, s->bytes, &error);
  if (status == ASSAY_OK) status = s->device->synchronize(&error);
  return good(status, "upload", true, &error, result);
}

static bool download(bench_sets *s, int32_t set, case_result *result) {
  assay_error error = {""};
  assay_status status = s->device->download(s->host, s->memory[set], s->bytes, &error);
  if (status == ASSAY_OK) status = s->device->synchronize(&error);
  return good(status, "download", true, &error, result);
}

bool sets_launch(bench_sets *s, int32_t set, void *stream, case_result *result) {
  assay_error error = {""};
  const assay_call call = {s->content[0].img.call.op, s->arg[set], s->content[0].img.param};
  assay_env env = {.stream = stream,
                   .workspace = s->memory[set] + s->workspace,
                   .workspace_bytes = s->content[0].t.workspace_bytes,
                   .multiprocessors = s->content[0].t.multiprocessors};
  return good(s->variant->launch(&call, &env, &error), "launch", false, &error, result);
}

/* Directly, over the first set, from an image with `before`; the outputs in the case's order. */
static bool run_once(bench_sets *s, bench_content *c, const image *img, const unsigned char *before, outputs *made,
                     case_result *result) {
  assay_error error = {""};
  s->device->schedule(c->one.seed);
  if (!upload(s, s->memory[0], before, result) || !sets_launch(s, 0, s->device->stream(), result) ||
      !good(s->device->synchronize(&error), "after the launch", true, &error, result) || !download(s, 0, result))
    return false;
  outputs_gather(&c->t, img, s->host, made);
  return true;
}

static bool judge_values(const bench_content *c, const outputs *got, case_result *result) {
  finding found;
  values_judge(&c->t, got, &found);
  if (found.wrong) judge_verdict(result, VERDICT_FAIL, found.check, "%s", found.message);
  return !found.wrong;
}

/* Two runs with different poison: an element that neither writes differs, judged or not. */
static bool run_content(bench_sets *s, bench_content *c, case_result *result) {
  outputs a = {{NULL}}, b = {{NULL}};
  place first = {0, 0, 0};
  int64_t count = 0;
  unsigned char *plain = bytes_of(s, &c->t.first);
  c->before = bytes_of(s, &c->img);
  c->after = malloc((size_t)s->bytes);
  bool fine =
      (plain != NULL && c->before != NULL && c->after != NULL && outputs_make(&c->t, &a) && outputs_make(&c->t, &b)) ||
      out_of_memory(result);
  fine = fine && run_once(s, c, &c->t.first, plain, &a, result) && judge_values(c, &a, result) &&
         run_once(s, c, &c->img, c->before, &b, result) && judge_values(c, &b, result) &&
         same_around(s, c, s->host, result);
  if (fine && s->variant->contract.run_to_run && !values_equal(&c->t, &a, &b, &first, &count)) {
    char at[400];
    values_describe(&c->t, first, at, sizeof at);
    judge_verdict(result, VERDICT_FAIL, "run_to_run", "%s: other bits when called again; %lld elements differ", at,
                  (long long)count);
    fine = false;
  }
  if (fine) memcpy(c->after, s->host, (size_t)s->bytes);
  free(plain);
  outputs_free(&a);
  outputs_free(&b);
  return fine;
}

static bool keep_on_device(bench_sets *s, bench_content *c, case_result *result) {
  assay_error error = {""};
  void *memory = NULL;
  if (!can_compare(s)) return true;
  if (!good(s->device->alloc(2 * s->bytes, &memory, &error), "allocation", false, &error, result)) return false;
  c->there = memory;
  c->golden = c->there + s->bytes;
  return upload(s, c->there, c->before, result) && upload(s, c->golden, c->after, result);
}

/* ---- all of them ------------------------------------------------------------------------------------- */

static bool add_set(bench_sets *s, case_result *result) {
  assay_error error = {""};
  void *memory = NULL;
  if (!good(s->device->alloc(s->bytes, &memory, &error), "allocation", false, &error, result)) return false;
  s->memory[s->count] = memory;
  (void)image_rebase(&s->content[0].img, memory, s->arg[s->count]);
  ++s->count;
  return true;
}

bool sets_make(bench_sets *s, const assay_case *one, const assay_variant *variant, const assay_device *device,
               const bench_options *options, case_result *result) {
  assay_error error = {""};
  int64_t cache = 0;
  *s = (bench_sets){.device = device, .variant = variant};
  for (int32_t i = 0; i < BENCH_CONTENTS; ++i)
    if (!make_content(s, one, i, result)) return false;
  s->host = malloc((size_t)s->bytes);
  s->arg = calloc(BENCH_MAX_SETS, sizeof *s->arg);
  if (s->host == NULL || s->arg == NULL) return out_of_memory(result);
  int64_t wanted = BENCH_MIN_SETS;
  if (device->timing != NULL) {
    if (!good(device->timing->cache(&cache, &error), "asking for the cache", false, &error, result)) return false;
    wanted = (2 * cache + s->bytes - 1) / s->bytes; /* all of them are twice what the cache holds */
    if (wanted < BENCH_MIN_SETS) wanted = BENCH_MIN_SETS;
    if (wanted > BENCH_MAX_SETS) wanted = BENCH_MAX_SETS;
    while (wanted > BENCH_MIN_SETS && (wanted + 2 * BENCH_CONTENTS) * s->bytes > options->memory_bytes)
      --wanted;
  }
  for (int64_t i = 0; i < wanted; ++i)
    if (!add_set(s, result)) return false;
  for (int32_t i = 0; i < BENCH_CONTENTS; ++i)
    if (!run_content(s, &s->content[i], result) || !keep_on_device(s, &s->content[i], result)) return false;
  return true;
}

/* Memory of a device that was lost is gone with it. */
void sets_free(bench_sets *s, const case_result *result) {
  for (int32_t i = 0; i < s->count && !result->device_lost; ++i)
    s->device->release(s->memory[i]);
  for (int32_t i = 0; i < BENCH_CONTENTS; ++i) {
    bench_content *c = &s->content[i];
    if (c->there != NULL && !result->device_lost) s->device->release(c->there);
    image_free(&c->img);
    if (c->t.one != NULL) trial_free(&c->t);
    free(c->before);
    free(c->after);
  }
  free(s->host);
  free(s->arg);
}

static const bench_content *content_of(const bench_sets *s, int32_t set, int64_t turn) {
  return &s->content[(set + turn) % BENCH_CONTENTS];
}

bool sets_restore(bench_sets *s, int32_t count, int64_t turn, case_result *result) {
  assay_error error = {""};
  assay_status status = ASSAY_OK;
  for (int32_t i = 0; i < count && status == ASSAY_OK; ++i) {
    const bench_content *c = content_of(s, i, turn);
    status = c->there != NULL ? s->device->copy(s->memory[i], c->there, s->bytes, &error)
                              : s->device->upload(s->memory[i], c->before, s->bytes, &error);
  }
  if (status == ASSAY_OK) status = s->device->synchronize(&error);
  return good(status, "upload", true, &error, result);
}

/* Which sets the device finds other than they were after the judged run. */
static bool find_differing(bench_sets *s, int32_t count, int64_t turn, int32_t *differs, case_result *result) {
  assay_piece piece[ASSAY_MAX_PIECES];
  assay_error error = {""};
  const int32_t pieces = list_pieces(s, &s->content[0].t, &s->content[0].img, true, piece);
  assay_status status = ASSAY_OK;
  for (int32_t i = 0; i < count && status == ASSAY_OK; ++i) {
    const bench_content *c = content_of(s, i, turn);
    differs[i] = 1;
    if (c->golden == NULL) continue;
    status = s->device->compare(s->memory[i], c->golden, piece, pieces, &differs[i], &error);
    if (status == ASSAY_OK && i % 16 == 15) status = s->device->synchronize(&error);
  }
  if (status == ASSAY_OK) status = s->device->synchronize(&error);
  return good(status, "after the launches", true, &error, result);
}

static bool look_closely(bench_sets *s, int32_t set, const bench_content *c, bool all, case_result *result) {
  assay_piece piece[ASSAY_MAX_PIECES];
  outputs got = {{NULL}};
  if (!download(s, set, result)) return false;
  const int32_t pieces = list_pieces(s, &c->t, &c->img, true, piece);
  bool same = true;
  for (int32_t i = 0; i < pieces; ++i)
    same = same && memcmp(s->host + piece[i].offset, c->after + piece[i].offset, (size_t)piece[i].bytes) == 0;
  if (same && !all) return true;
  bool fine = outputs_make(&c->t, &got) || out_of_memory(result);
  if (fine) outputs_gather(&c->t, &c->img, s->host, &got);
  fine = fine && judge_values(c, &got, result) && same_around(s, c, s->host, result);
  if (fine && !same && s->variant->contract.run_to_run) {
    judge_verdict(result, VERDICT_FAIL, "run_to_run", "within the limits, but other bits than the judged run gave");
    fine = false;
  }
  outputs_free(&got);
  return fine;
}

bool sets_check(bench_sets *s, int32_t count, int64_t turn, bool all, case_result *result) {
  int32_t differs[BENCH_MAX_SETS];
  case_result said = {.verdict = VERDICT_PASS};
  if (!find_differing(s, count, turn, differs, result)) return false;
  for (int32_t i = 0; i < count; ++i) {
    const bool closer = all && i >= count - BENCH_CONTENTS;
    if ((differs[i] == 0 && !closer) || look_closely(s, i, content_of(s, i, turn), closer, &said)) continue;
    result->device_lost = result->device_lost || said.device_lost;
    judge_verdict(result, said.verdict, said.check, "launch %d of %d: %s", i + 1, count, said.message);
    return false;
  }
  return true;
}
