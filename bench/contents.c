/* contents.c: the cases' bytes, kept from variant to variant. */
#include "contents.h"

#include <stdlib.h>
#include <string.h>

#include "core/contract.h"
#include "conformance/generate/generate.h"

enum { POISON = 0x16, SEEDS_TRIED = 400, ROOM = 4 << 20, CHUNK = 1 << 20 };

static _Thread_local bench_contents kept;

/* ---- memory of the device ---------------------------------------------------------------------------- */

assay_status contents_copy(const assay_device *device, void *to, const void *from, int64_t bytes, assay_error *error) {
  if (device->copy != NULL) return device->copy(to, from, bytes, error);
  unsigned char *host = malloc(CHUNK);
  assay_status status = host != NULL ? ASSAY_OK : assay_fail(error, ASSAY_ERR_MEMORY, "bench: out of memory");
  for (int64_t at = 0; at < bytes && status == ASSAY_OK; at += CHUNK) {
    const int64_t part = bytes - at < CHUNK ? bytes - at : CHUNK;
    status = device->download(host, (const unsigned char *)from + at, part, error);
    if (status == ASSAY_OK) status = device->synchronize(error);
    if (status == ASSAY_OK) status = device->upload((unsigned char *)to + at, host, part, error);
    if (status == ASSAY_OK) status = device->synchronize(error);
  }
  free(host);
  return status;
}

static assay_status compare_part(const assay_device *device, const unsigned char *a, const unsigned char *b,
                                 int64_t bytes, unsigned char *host, int32_t *differ, assay_error *error) {
  assay_status status = device->download(host, a, bytes, error);
  if (status == ASSAY_OK) status = device->download(host + CHUNK, b, bytes, error);
  if (status == ASSAY_OK) status = device->synchronize(error);
  if (status == ASSAY_OK && memcmp(host, host + CHUNK, (size_t)bytes) != 0) *differ = 1;
  return status;
}

assay_status contents_compare(const assay_device *device, const unsigned char *a, const unsigned char *b,
                              const assay_piece *piece, int32_t count, int32_t *differ, assay_error *error) {
  if (device->compare != NULL) return device->compare(a, b, piece, count, differ, error);
  unsigned char *host = malloc(2 * CHUNK);
  assay_status status = host != NULL ? ASSAY_OK : assay_fail(error, ASSAY_ERR_MEMORY, "bench: out of memory");
  *differ = 0;
  for (int32_t i = 0; i < count; ++i)
    for (int64_t at = 0; at < piece[i].bytes && status == ASSAY_OK && *differ == 0; at += CHUNK) {
      const int64_t from = piece[i].offset + at, left = piece[i].bytes - at;
      status = compare_part(device, a + from, b + from, left < CHUNK ? left : CHUNK, host, differ, error);
    }
  free(host);
  return status;
}

/* ---- one content ------------------------------------------------------------------------------------- */

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

/* Finds another seed with the same strides and pool sizes. A seed draws these as well, and no result may depend on
 * them. */
static bool find_seed(const bench_contents *c, assay_case *one, uint64_t stream) {
  const draw choice = {.dead = one->dead, .poison = POISON};
  const uint64_t seed = one->seed;
  for (uint64_t i = 0; i < SEEDS_TRIED; ++i) {
    image shape;
    one->seed = logical_hash(c->content[0].t.one, stream + (i << 20));
    if (one->seed == seed || image_layout(one, &choice, &shape, NULL) != ASSAY_OK) continue;
    const bool same = same_layout(&c->content[0].t.first, &shape);
    image_free(&shape);
    if (same) return true;
  }
  return false;
}

static case_dead other_dead(case_dead dead) {
  return dead == DEAD_NAN ? DEAD_STALE : DEAD_NAN;
}

/* Shapes, contents and a second image; no reference yet. */
static bool make_content(bench_contents *c, const assay_case *one, int32_t number, case_result *result) {
  bench_content *made = &c->content[number];
  assay_error error = {""};
  case_result said = {.verdict = VERDICT_PASS};
  if (case_copy(one, &made->one, &error) != ASSAY_OK) {
    verdict_set(result, VERDICT_FAIL, "launch", "%s", error.text);
    return false;
  }
  if (number > 0 && !find_seed(c, &made->one, STREAM_CONTENT + (uint64_t)number)) {
    verdict_set(result, VERDICT_UNSUPPORTED, "bench", "no other seed gives tensors of the same layout");
    return false;
  }
  made->t = (trial){.one = &made->one, .device = c->device};
  made->t.facts = device_facts_of(c->device);
  const draw choice = {.dead = other_dead(one->dead), .poison = POISON};
  if (!trial_shape(&made->t, &said) || !trial_contents(&made->t, &said)) {
    verdict_set(result, said.verdict, said.check, "content %d: %s", number, said.message);
    return false;
  }
  assay_status status = image_vary(&made->t.first, &choice, NULL, &made->img, &error);
  if (status == ASSAY_OK && !same_layout(&c->content[0].t.first, &made->img))
    status = assay_fail(&error, ASSAY_ERR_INTERNAL, "bench: two draws of a case differ in layout");
  if (status == ASSAY_OK) return true;
  verdict_set(result, VERDICT_FAIL, "launch", "%s", error.text);
  return false;
}

/* ---- on the device ----------------------------------------------------------------------------------- */

static void drop_device(bench_contents *c, bool lost) {
  for (int32_t i = 0; i < BENCH_CONTENTS; ++i) {
    bench_content *one = &c->content[i];
    if (one->first != NULL && !lost) c->device->release(one->first);
    one->first = one->there = one->golden = NULL;
  }
  free(c->host);
  c->host = NULL;
  c->bytes = 0;
}

static assay_status upload(const bench_contents *c, unsigned char *to, const image *img, assay_error *error) {
  const int64_t rest = c->bytes - img->arena_bytes;
  assay_status status = c->device->upload(to, img->host, img->arena_bytes, error);
  poison_fill(c->host, rest, img->chosen.poison);
  if (status == ASSAY_OK) status = c->device->upload(to + img->arena_bytes, c->host, rest, error);
  return status == ASSAY_OK ? c->device->synchronize(error) : status;
}

/* Images with at least so much room for a workspace. */
static bool put_on_device(bench_contents *c, int64_t workspace, case_result *result) {
  const int64_t arena = c->content[0].t.first.arena_bytes;
  assay_error error = {""};
  if (c->bytes >= arena + 2 * GUARD_BYTES + workspace) return true;
  drop_device(c, false);
  c->bytes = (arena + 2 * GUARD_BYTES + workspace + ROOM) / DEVICE_ALIGNMENT * DEVICE_ALIGNMENT;
  c->host = malloc((size_t)c->bytes);
  assay_status status = c->host != NULL ? ASSAY_OK : assay_fail(&error, ASSAY_ERR_MEMORY, "bench: out of memory");
  for (int32_t i = 0; i < BENCH_CONTENTS && status == ASSAY_OK; ++i) {
    bench_content *one = &c->content[i];
    void *memory = NULL;
    status = c->device->alloc(3 * c->bytes, &memory, &error);
    if (status != ASSAY_OK) break;
    one->first = memory;
    one->there = one->first + c->bytes;
    one->golden = one->there + c->bytes;
    status = upload(c, one->first, &one->t.first, &error);
    if (status == ASSAY_OK) status = upload(c, one->there, &one->img, &error);
  }
  return device_status(status, "contents", true, &error, result);
}

/* ---- of a case --------------------------------------------------------------------------------------- */

void contents_release(bool device_lost) {
  if (kept.device == NULL) return;
  drop_device(&kept, device_lost);
  for (int32_t i = 0; i < BENCH_CONTENTS; ++i) {
    bench_content *one = &kept.content[i];
    image_free(&one->img);
    if (one->t.one != NULL) trial_free(&one->t);
    case_free(&one->one);
  }
  kept = (bench_contents){.device = NULL};
}

/* The descriptor without the variant. */
static bool describe(const assay_case *one, char *text) {
  assay_case plain = *one;
  plain.variant[0] = '\0';
  return case_print(&plain, text, CASE_MAX_LINE, NULL) == ASSAY_OK;
}

static bool make(const assay_case *one, const assay_device *device, const char *of, case_result *result) {
  static const assay_device heap = {.name = "heap"};
  contents_release(false);
  image_memory(&heap); /* a single upload does not pay for pinned memory */
  kept.device = device;
  bool fine = true;
  for (int32_t i = 0; i < BENCH_CONTENTS && fine; ++i)
    fine = make_content(&kept, one, i, result);
  if (fine) (void)snprintf(kept.of, sizeof kept.of, "%s", of);
  return fine;
}

/* supports() and workspace() see addresses of the device. */
static bool ask_variant(bench_contents *c, const assay_variant *variant, int64_t *workspace, case_result *result) {
  assay_tensor arg[ASSAY_MAX_ARGS];
  assay_error error = {""};
  for (int32_t i = 0; i < BENCH_CONTENTS; ++i) {
    bench_content *one = &c->content[i];
    const assay_call call = image_rebase(&one->t.first, one->first, arg);
    assay_status status = variant_supports(variant, &call, &error);
    if (status == ASSAY_ERR_UNSUPPORTED) {
      verdict_set(result, VERDICT_UNSUPPORTED, "launch", "%s", error.text);
      return false;
    }
    if (status == ASSAY_OK) status = variant_workspace(variant, &call, &one->t.workspace_bytes, &error);
    if (status == ASSAY_OK && one->t.workspace_bytes < 0)
      status =
          assay_fail(&error, ASSAY_ERR_INTERNAL, "workspace: asks for %lld bytes", (long long)one->t.workspace_bytes);
    if (status != ASSAY_OK) {
      verdict_set(result, VERDICT_FAIL, "launch", "supports() or workspace() of a legal call: %s", error.text);
      return false;
    }
  }
  *workspace = c->content[0].t.workspace_bytes;
  if (*workspace == c->content[1].t.workspace_bytes) return true;
  verdict_set(result, VERDICT_FAIL, "launch", "workspace() gives %lld bytes, and %lld for the same shapes",
              (long long)*workspace, (long long)c->content[1].t.workspace_bytes);
  return false;
}

/* Values and bounds under the variant's contract. */
static bool ask_reference(bench_contents *c, const assay_variant *variant, case_result *result) {
  for (int32_t i = 0; i < BENCH_CONTENTS; ++i) {
    trial *t = &c->content[i].t;
    const assay_variant *before = t->variant;
    t->variant = variant;
    const assay_contract *old = before != NULL ? &before->contract : NULL;
    if (old != NULL && contract_same(old, &variant->contract)) continue;
    if (trial_again(t, result)) continue;
    t->variant = NULL;
    return false;
  }
  return true;
}

bench_contents *contents_for(const assay_case *one, const assay_variant *variant, const assay_device *device,
                             int64_t *workspace, case_result *result) {
  static _Thread_local char of[CASE_MAX_LINE];
  if (!describe(one, of)) {
    verdict_set(result, VERDICT_FAIL, "launch", "bench: the case has no descriptor");
    return NULL;
  }
  const bool here = kept.device == device && strcmp(kept.of, of) == 0;
  if ((here || make(one, device, of, result)) && put_on_device(&kept, 0, result) &&
      ask_variant(&kept, variant, workspace, result) && put_on_device(&kept, *workspace, result) &&
      ask_reference(&kept, variant, result))
    return &kept;
  if (result->verdict != VERDICT_UNSUPPORTED) contents_release(result->device_lost);
  return NULL;
}
