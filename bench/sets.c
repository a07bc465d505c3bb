/* sets.c: input sets and what becomes of them. */
#include "sets.h"

#include <stdlib.h>
#include <string.h>

#include "core/registry.h"

static bool out_of_memory(case_result *result) {
  verdict_set(result, VERDICT_FAIL, "launch", "bench: out of memory");
  return false;
}

/* A status of the device or of a launch as a verdict. */
static bool good(assay_status status, const char *step, bool waited, const assay_error *error, case_result *result) {
  return device_status(status, step, waited, error, result);
}

static bench_content *content_of(const bench_sets *s, int32_t set, int64_t turn) {
  return &s->contents->content[(set + turn) % BENCH_CONTENTS];
}

/* ---- what may not change ----------------------------------------------------------------------------- */

static bool written(const image *img, int32_t arg) {
  return img->arg[arg].data != NULL && img->call.op->args[arg].role != ASSAY_IN;
}

/* Runs of bytes that must be as before, whatever the call computes: all but outputs and the workspace. `all`: outputs
 * as well. */
static int32_t list_pieces(const bench_sets *s, const image *img, bool all, assay_piece *piece) {
  int32_t count = 0;
  int64_t from = 0;
  for (int32_t i = 0; i < img->call.op->arg_count && !all; ++i) {
    const span e = img->extent[i];
    if (!written(img, i) || e.offset < from) continue;
    piece[count++] = (assay_piece){from, e.offset - from};
    from = e.offset + e.bytes;
  }
  piece[count++] = (assay_piece){from, s->workspace - from};
  from = s->workspace + s->contents->content[0].t.workspace_bytes;
  piece[count++] = (assay_piece){from, s->bytes - from};
  return count;
}

/* Where an image on the device and what became of it differ, in the host's memory: whose byte it is. */
static void blame_byte(const bench_sets *s, const image *img, const unsigned char *before, case_result *result) {
  assay_piece piece[ASSAY_MAX_PIECES];
  const assay_op *op = img->call.op;
  const unsigned char *after = s->contents->host;
  const int32_t count = list_pieces(s, img, false, piece);
  int64_t at = -1;
  for (int32_t i = 0; i < count && at < 0; ++i)
    for (int64_t k = piece[i].offset; k < piece[i].offset + piece[i].bytes && at < 0; ++k)
      if (before[k] != after[k]) at = k;
  for (int32_t i = 0; i < op->arg_count; ++i) {
    const span e = img->extent[i];
    if (img->arg[i].data == NULL || at < e.offset || at >= e.offset + e.bytes) continue;
    verdict_set(result, VERDICT_FAIL, "input", "%s: the call changed an input, first at byte %lld of its %lld",
                op->args[i].name, (long long)(at - e.offset), (long long)e.bytes);
    return;
  }
  verdict_set(result, VERDICT_FAIL, "guard", "wrote where nothing is, first at byte %lld; the tensors end at %lld",
              (long long)at, (long long)img->arena_bytes);
}

static bool download(const bench_sets *s, unsigned char *to, const unsigned char *from, int64_t bytes,
                     case_result *result) {
  assay_error error = {""};
  assay_status status = s->device->download(to, from, bytes, &error);
  if (status == ASSAY_OK) status = s->device->synchronize(&error);
  return good(status, "download", true, &error, result);
}

/* Reads the call's outputs back. The rest of the host's memory is not filled. */
static bool fetch_written(const bench_sets *s, int32_t set, const image *img, case_result *result) {
  for (int32_t i = 0; i < img->call.op->arg_count; ++i) {
    const span e = img->extent[i];
    if (written(img, i) && !download(s, s->contents->host + e.offset, s->memory[set] + e.offset, e.bytes, result))
      return false;
  }
  return true;
}

/* Compares with the earlier image, on the device. Outputs are in the host's memory. */
static bool same_around(const bench_sets *s, int32_t set, const bench_content *c, const image *img,
                        const unsigned char *image_there, case_result *result) {
  assay_piece piece[ASSAY_MAX_PIECES];
  assay_error error = {""};
  int32_t differs = 0;
  const int32_t count = list_pieces(s, img, false, piece);
  assay_status status = contents_compare(s->device, s->memory[set], image_there, piece, count, &differs, &error);
  if (status == ASSAY_OK) status = s->device->synchronize(&error);
  if (!good(status, "comparing", true, &error, result)) return false;
  if (differs == 0) return outputs_rest(&c->t, img, s->contents->host, result);
  unsigned char *before = malloc((size_t)s->bytes);
  if (before == NULL) return out_of_memory(result);
  if (download(s, before, image_there, s->bytes, result) &&
      download(s, s->contents->host, s->memory[set], s->bytes, result))
    blame_byte(s, img, before, result);
  free(before);
  return false;
}

/* ---- runs -------------------------------------------------------------------------------------------- */

/* Makes the call over the set's memory; the environment lies in `stream`. */
static assay_call call_of(const bench_sets *s, int32_t set, void *stream, assay_env *env) {
  const trial *t = &s->contents->content[0].t;
  *env = (assay_env){.stream = stream,
                     .workspace = s->memory[set] + s->workspace,
                     .workspace_bytes = t->workspace_bytes,
                     .multiprocessors = t->facts.multiprocessors,
                     .memory_rate = t->facts.memory_rate};
  return (assay_call){assay_op_shown(t->first.call.op), s->arg[set], t->first.param};
}

bool sets_plan(const bench_sets *s, int32_t count, case_result *result) {
  assay_error error = {""};
  assay_env env;
  for (int32_t i = 0; i < count; ++i) {
    const assay_call call = call_of(s, i, s->device->stream(), &env);
    if (!good(variant_plan(s->variant, &call, &env, &error), "plan", false, &error, result)) return false;
  }
  return true;
}

bool sets_launch(bench_sets *s, int32_t set, void *stream, case_result *result) {
  assay_error error = {""};
  assay_env env;
  const assay_call call = call_of(s, set, stream, &env);
  const bool fine = good(s->variant->launch(&call, &env, &error), "launch", false, &error, result);
  env.path[sizeof env.path - 1] = '\0';
  if (fine) (void)snprintf(s->path, sizeof s->path, "%s", env.path);
  return fine;
}

/* Directly, over the first set, from an image on the device; the outputs in the case's order. */
static bool run_once(bench_sets *s, bench_content *c, const image *img, const unsigned char *image_there, outputs *made,
                     case_result *result) {
  assay_error error = {""};
  s->device->schedule(c->one.seed);
  if (!good(contents_copy(s->device, s->memory[0], image_there, s->bytes, &error), "copy", false, &error, result) ||
      !sets_plan(s, 1, result) || !sets_launch(s, 0, s->device->stream(), result) ||
      !good(s->device->synchronize(&error), "after the launch", true, &error, result) ||
      !fetch_written(s, 0, img, result))
    return false;
  outputs_gather(&c->t, img, s->contents->host, made);
  return same_around(s, 0, c, img, image_there, result);
}

static bool judge_values(const bench_content *c, const outputs *got, case_result *result) {
  finding found;
  values_judge(&c->t, got, &found);
  if (found.ratio_element > result->ratio_element) result->ratio_element = found.ratio_element;
  if (found.ratio_row > result->ratio_row) result->ratio_row = found.ratio_row;
  if (found.ratio_request > result->ratio_request) result->ratio_request = found.ratio_request;
  if (found.wrong) verdict_set(result, VERDICT_FAIL, found.check, "%s", found.message);
  return !found.wrong;
}

/* Two runs with different poison and dead bytes: an element that neither writes differs, judged or not. */
static bool run_content(bench_sets *s, bench_content *c, case_result *result) {
  outputs a = {{NULL}}, b = {{NULL}};
  output_place first = {0, 0, 0};
  int64_t count = 0;
  assay_error error = {""};
  bool fine = (outputs_make(&c->t, &a) && outputs_make(&c->t, &b)) || out_of_memory(result);
  fine = fine && run_once(s, c, &c->t.first, c->first, &a, result) && judge_values(c, &a, result) &&
         run_once(s, c, &c->img, c->there, &b, result) && judge_values(c, &b, result);
  if (fine && s->variant->contract.run_to_run && !values_equal(&c->t, &a, &b, &first, &count)) {
    char at[400];
    values_describe(&c->t, first, at, sizeof at);
    verdict_set(result, VERDICT_FAIL, "run_to_run",
                "%s: other bits when called again with other dead bytes; %lld elements differ", at, (long long)count);
    fine = false;
  }
  fine =
      fine && good(contents_copy(s->device, c->golden, s->memory[0], s->bytes, &error), "copy", false, &error, result);
  outputs_free(&a);
  outputs_free(&b);
  return fine;
}

/* ---- all of them ------------------------------------------------------------------------------------- */

static bool add_set(bench_sets *s, case_result *result) {
  assay_error error = {""};
  void *memory = NULL;
  if (!good(s->device->alloc(s->bytes, &memory, &error), "allocation", false, &error, result)) return false;
  s->memory[s->count] = memory;
  (void)image_rebase(&s->contents->content[0].t.first, memory, s->arg[s->count]);
  ++s->count;
  return true;
}

bool sets_add(bench_sets *s, int64_t wanted, const bench_options *options, case_result *result) {
  if (wanted > BENCH_MAX_SETS) wanted = BENCH_MAX_SETS;
  while (wanted > BENCH_MIN_SETS && (wanted + 2 * BENCH_CONTENTS) * s->bytes > options->memory_bytes)
    --wanted;
  while (s->count < wanted)
    if (!add_set(s, result)) return false;
  return true;
}

bool sets_make(bench_sets *s, const assay_case *one, const assay_variant *variant, const assay_device *device,
               const bench_options *options, case_result *result) {
  assay_error error = {""};
  int64_t cache = 0, workspace = 0;
  *s = (bench_sets){.device = device, .variant = variant};
  s->contents = contents_for(one, variant, device, &workspace, result);
  if (s->contents == NULL) return false;
  s->workspace = s->contents->content[0].t.first.arena_bytes + GUARD_BYTES;
  s->bytes = (s->workspace + workspace + GUARD_BYTES + DEVICE_ALIGNMENT - 1) / DEVICE_ALIGNMENT * DEVICE_ALIGNMENT;
  s->arg = calloc(BENCH_MAX_SETS, sizeof *s->arg);
  if (s->arg == NULL) return out_of_memory(result);
  int64_t wanted = BENCH_MIN_SETS;
  if (device->timing != NULL) {
    if (!good(device->timing->cache(&cache, &error), "asking for the cache", false, &error, result)) return false;
    wanted = (2 * cache + s->bytes - 1) / s->bytes; /* all of them are twice what the cache holds */
    if (wanted < BENCH_MIN_SETS) wanted = BENCH_MIN_SETS;
  }
  if (!sets_add(s, wanted, options, result)) return false;
  for (int32_t i = 0; i < BENCH_CONTENTS; ++i)
    if (!run_content(s, &s->contents->content[i], result)) return false;
  return true;
}

/* Memory of a device that was lost is gone with it. */
void sets_free(bench_sets *s, const case_result *result) {
  for (int32_t i = 0; i < s->count && !result->device_lost; ++i)
    s->device->release(s->memory[i]);
  free(s->arg);
  if (result->device_lost) contents_release(true);
}

bool sets_restore(bench_sets *s, int32_t count, int64_t turn, case_result *result) {
  assay_error error = {""};
  assay_status status = ASSAY_OK;
  for (int32_t i = 0; i < count && status == ASSAY_OK; ++i)
    status = contents_copy(s->device, s->memory[i], content_of(s, i, turn)->there, s->bytes, &error);
  if (status == ASSAY_OK) status = s->device->synchronize(&error);
  return good(status, "upload", true, &error, result);
}

/* Which sets the device finds other than they were after the judged run. */
static bool find_differing(bench_sets *s, int32_t count, int64_t turn, int32_t *differs, case_result *result) {
  assay_piece piece[ASSAY_MAX_PIECES];
  assay_error error = {""};
  const int32_t pieces = list_pieces(s, &s->contents->content[0].img, true, piece);
  assay_status status = ASSAY_OK;
  for (int32_t i = 0; i < count && status == ASSAY_OK; ++i) {
    differs[i] = 1;
    status =
        contents_compare(s->device, s->memory[i], content_of(s, i, turn)->golden, piece, pieces, &differs[i], &error);
    if (status == ASSAY_OK && i % 16 == 15) status = s->device->synchronize(&error);
  }
  if (status == ASSAY_OK) status = s->device->synchronize(&error);
  return good(status, "after the launches", true, &error, result);
}

static bool look_closely(bench_sets *s, int32_t set, const bench_content *c, bool same, case_result *result) {
  outputs got = {{NULL}};
  bool fine = fetch_written(s, set, &c->img, result) && (outputs_make(&c->t, &got) || out_of_memory(result));
  if (fine) outputs_gather(&c->t, &c->img, s->contents->host, &got);
  fine = fine && judge_values(c, &got, result) && same_around(s, set, c, &c->img, c->there, result);
  if (fine && !same && s->variant->contract.run_to_run) {
    verdict_set(result, VERDICT_FAIL, "run_to_run", "within the limits, but other bits than the judged run gave");
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
    if ((differs[i] == 0 && !closer) || look_closely(s, i, content_of(s, i, turn), differs[i] == 0, &said)) continue;
    result->device_lost = result->device_lost || said.device_lost;
    verdict_set(result, said.verdict, said.check, "launch %d of %d: %s", i + 1, count, said.message);
    return false;
  }
  return true;
}
