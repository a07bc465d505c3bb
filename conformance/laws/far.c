/* far.c: the law `far`: repeats the call over huge ranges of addresses. The pool reaches from block 0 to beyond 2^32
 * bytes and beyond 2^31 elements, in half the cases 2^32. The case's blocks lie at both ends. The rows of every
 * argument whose rows may lie apart are as far from each other (far_rows.c). Only these are memory; an access between
 * them faults. */
#include "far_internal.h"

#include <stdlib.h>

#include "conformance/generate/generate.h"
#include "laws_internal.h"

enum { CACHES = 2 };

/* ---- where blocks are ----------------------------------------------------------------------------------- */

typedef struct far_pool {
  const image *img;
  bool pool; /* blocks move, not only rows */
  far_rows rows;
  int32_t cache[CACHES];    /* indices of the arguments */
  far_range memory[CACHES]; /* the second is empty where both caches share one */
  /* the first `low` blocks keep their places from 0 on; the others lie from block `high` + `low` on */
  int64_t low, high;
  unsigned char *after; /* the arena after the call */
} far_pool;

static int64_t far_block(const far_pool *p, int64_t near) {
  return near < p->low ? near : p->high + near;
}

static int64_t block_bytes(const far_pool *p, int32_t c) {
  const assay_tensor *t = &p->img->arg[p->cache[c]];
  return t->stride[0] * assay_dtype_size(t->dtype);
}

static bool is_shared(const image *img, const far_pool *p) {
  return img->extent[p->cache[0]].offset == img->extent[p->cache[1]].offset;
}

static bool find_caches(const trial *t, far_pool *p) {
  const assay_op *op = t->one->op;
  int32_t found = 0;
  if (op->form != ASSAY_PAGED || t->first.pool_blocks < 2) return false; /* with one block the stride may be anything */
  for (int32_t i = 0; i < op->arg_count && found < CACHES; ++i)
    if ((op->args[i].content == ASSAY_K_CACHE || op->args[i].content == ASSAY_V_CACHE) && t->first.arg[i].data != NULL)
      p->cache[found++] = i;
  return found == CACHES;
}

static void choose_places(const trial *t, far_pool *p) {
  const uint64_t random = logical_hash(t->one, STREAM_FAR);
  const int64_t reach = (random & 1) != 0 ? (int64_t)1 << 32 : (int64_t)1 << 31;
  int64_t least = INT64_MAX;
  for (int32_t c = 0; c < CACHES; ++c) {
    const assay_tensor *own = &p->img->arg[p->cache[c]];
    const int64_t bytes = ((int64_t)1 << 32) / block_bytes(p, c) + 1, elements = reach / own->stride[0] + 1;
    const int64_t blocks = elements > bytes ? elements : bytes;
    if (c == 0 || blocks > least) least = blocks;
  }
  p->low = p->img->pool_blocks / 2;
  if (p->img->contiguous) { /* a request's rows stay together */
    p->low = p->img->first_row[p->img->logical->B / 2];
    if (p->low >= p->img->pool_blocks) p->low = p->img->pool_blocks - 1;
  }
  p->high = least > INT32_MAX - p->img->pool_blocks - 1 ? INT32_MAX - p->img->pool_blocks - 1 : least;
}

static assay_status take_ranges(const trial *t, far_pool *p, assay_error *error) {
  const int64_t blocks = p->img->pool_blocks;
  if (!p->pool) return ASSAY_OK;
  for (int32_t c = 0; c < (is_shared(p->img, p) ? 1 : CACHES); ++c) {
    const int64_t bytes = block_bytes(p, c);
    const assay_piece piece[2] = {{0, p->low * bytes}, {far_block(p, p->low) * bytes, (blocks - p->low) * bytes}};
    const int32_t skip = p->low == 0;
    p->memory[c].bytes = (p->high + blocks) * bytes;
    const assay_status status = far_take(t, &p->memory[c], piece + skip, 2 - skip, error);
    if (status != ASSAY_OK) return status;
  }
  return ASSAY_OK;
}

/* Moves the blocks of allocation c to the far range (up) or back. */
static assay_status move_blocks(const trial *t, const far_pool *p, int32_t c, unsigned char *arena, bool up,
                                assay_error *error) {
  const int64_t bytes = block_bytes(p, c), blocks = p->img->pool_blocks;
  unsigned char *own = arena + p->img->extent[p->cache[c]].offset;
  assay_status status = ASSAY_OK;
  for (int32_t half = 0; half < 2 && status == ASSAY_OK; ++half) {
    const int64_t from = half == 0 ? 0 : p->low, count = half == 0 ? p->low : blocks - p->low;
    unsigned char *far = p->memory[c].memory + far_block(p, from) * bytes;
    if (count == 0) continue;
    status = up ? t->device->upload(far, own + from * bytes, count * bytes, error)
                : t->device->download(own + from * bytes, far, count * bytes, error);
  }
  return status;
}

/* ---- the call ---------------------------------------------------------------------------------------- */

/* Renumbers blocks in tables and slots, in a copy of the arena. */
static void renumber(const trial *t, const far_pool *p, unsigned char *arena) {
  const image *img = p->img;
  const int64_t begin = img->first_block, end = begin + img->pool_blocks, size = img->logical->block_size;
  for (int32_t i = 0; i < t->one->op->arg_count; ++i) {
    const span s = img->extent[i];
    if (img->arg[i].data == NULL) continue;
    if (t->one->op->args[i].content == ASSAY_BLOCK_TABLE) {
      int32_t *entry = (int32_t *)(void *)(arena + s.offset);
      for (int64_t n = 0; n < s.bytes / (int64_t)sizeof *entry; ++n)
        if (entry[n] >= begin && entry[n] < end) entry[n] = (int32_t)far_block(p, entry[n] - begin);
    } else if (t->one->op->args[i].content == ASSAY_CU_K) { /* the last entry is the end of the pool */
      int32_t *entry = (int32_t *)(void *)(arena + s.offset);
      for (int64_t n = 0; n < s.bytes / (int64_t)sizeof *entry; ++n)
        entry[n] = (int32_t)far_block(p, entry[n] - begin);
    } else if (t->one->op->args[i].content == ASSAY_SLOTS) {
      int64_t *slot = (int64_t *)(void *)(arena + s.offset);
      for (int64_t n = 0; n < s.bytes / (int64_t)sizeof *slot; ++n)
        if (slot[n] >= begin * size && slot[n] < end * size)
          slot[n] = far_block(p, slot[n] / size - begin) * size + slot[n] % size;
    }
  }
}

/* Places the call. Returns false with an untouched verdict where the variant does not take such a call. */
static bool prepare(const trial *t, far_pool *p, device_call *on, case_result *result) {
  const image *img = p->img;
  assay_error error = {""};
  int64_t workspace = 0;
  if (!device_place(t, img, 0, on, result)) return false;
  assay_status status = take_ranges(t, p, &error);
  if (status == ASSAY_OK) status = far_rows_take(t, &p->rows, on, &error);
  if (!device_status(status, "huge range", false, &error, result)) return false;
  for (int32_t c = 0; c < CACHES && p->pool; ++c) {
    const far_range *r = &p->memory[is_shared(img, p) ? 0 : c];
    const int64_t inside =
        img->bias[p->cache[c]] + img->first_block * block_bytes(p, c); /* without the number's part */
    on->arg[p->cache[c]].data = r->memory + inside;
    on->arg[p->cache[c]].shape[0] = p->high + img->pool_blocks;
  }
  status = variant_supports(t->variant, &on->call, &error);
  if (status == ASSAY_OK) status = variant_workspace(t->variant, &on->call, &workspace, &error);
  if (status == ASSAY_ERR_MEMORY) return verdict_no_memory(result);
  return status == ASSAY_OK && workspace <= t->workspace_bytes;
}

static bool run(const trial *t, far_pool *p, device_call *on, outputs *got, case_result *result) {
  const image *img = p->img;
  const int32_t allocations = !p->pool ? 0 : is_shared(img, p) ? 1 : CACHES;
  assay_error error = {""};
  assay_status status = ASSAY_OK;
  if (!device_upload(t, img, on, result)) return false;
  memcpy(p->after, img->host, (size_t)img->arena_bytes);
  for (int32_t c = 0; c < allocations && status == ASSAY_OK; ++c)
    status = move_blocks(t, p, c, p->after, true, &error);
  if (p->pool) renumber(t, p, p->after);
  if (status == ASSAY_OK) status = far_rows_up(t, &p->rows, &error);
  for (int32_t i = 0; i < t->one->op->arg_count && status == ASSAY_OK; ++i) {
    const assay_content content = t->one->op->args[i].content;
    if (img->arg[i].data != NULL && (content == ASSAY_BLOCK_TABLE || content == ASSAY_CU_K || content == ASSAY_SLOTS))
      status = t->device->upload(on->arg[i].data, p->after + img->extent[i].offset, img->extent[i].bytes, &error);
  }
  if (status == ASSAY_OK) status = t->device->synchronize(&error);
  if (!device_status(status, "upload", true, &error, result)) return false;
  if (!device_launch(t, on, t->one->seed, "launch over a huge range", result)) return false;
  status = t->device->synchronize(&error);
  for (int32_t i = 0; i < t->one->op->arg_count && status == ASSAY_OK; ++i) {
    const span s = img->extent[i];
    const bool moved = far_rows_has(&p->rows, i) || (p->pool && (i == p->cache[0] || i == p->cache[1]));
    if (img->arg[i].data != NULL && t->one->op->args[i].role != ASSAY_IN && !moved)
      status = t->device->download(
          p->after + s.offset, (const void *)((uintptr_t)on->arg[i].data - (uintptr_t)img->bias[i]), s.bytes, &error);
  }
  for (int32_t c = 0; c < allocations && status == ASSAY_OK; ++c)
    status = move_blocks(t, p, c, p->after, false, &error);
  if (status == ASSAY_OK) status = far_rows_down(t, &p->rows, &error);
  if (status == ASSAY_OK) status = t->device->synchronize(&error);
  if (!device_status(status, "over a huge range", true, &error, result)) return false;
  if (!far_rows_look(t, &p->rows, p->after, result)) return false;
  outputs_gather(t, img, p->after, got);
  return outputs_rest(t, img, p->after, result);
}

/* Compares the results. A plain operator may take another path where rows lie apart. A paged operator with contiguous
 * keys may do so, too: this call has more key rows, and the host may plan by that number. Comparing `path`, the path of
 * the call over the huge range, with the first run's path tells. */
static bool same(const trial *t, const char *path, const outputs *base, const outputs *got, case_result *result) {
  const bool paged = t->one->op->form == ASSAY_PAGED;
  const char *changed =
      paged ? "when blocks and rows lie at both ends of huge ranges" : "when rows lie more than 2^31 elements apart";
  const bool planned_alike = !t->first.contiguous || strcmp(result->path, path) == 0;
  if (paged && t->variant->contract.renumbering && planned_alike)
    return rerun_same(t, base, got, "far", changed, result);
  return rerun_within(t, got, "far", changed, result);
}

bool far_applies(const trial *t) {
  (void)t;
  return true;
}

bool far_check(const trial *t, const outputs *base, case_result *result) {
  far_pool p = {.img = &t->first};
  device_call on;
  outputs got = {{NULL}};
  bool good = true;
  p.pool = find_caches(t, &p);
  far_rows_choose(t, logical_hash(t->one, STREAM_FAR) >> 1, &p.rows);
  if (!p.pool && p.rows.count == 0) return true;
  if (p.pool) choose_places(t, &p);
  p.after = malloc((size_t)t->first.arena_bytes);
  good = p.after != NULL && outputs_make(t, &got);
  if (!good) (void)verdict_no_memory(result);
  if (good && prepare(t, &p, &on, result)) {
    good = run(t, &p, &on, &got, result) && same(t, on.env.path, base, &got, result);
    if (good) result_add_law(result, "far");
  } else if (good) {
    good = result->verdict == VERDICT_PASS;
  }
  for (int32_t c = 0; c < CACHES; ++c)
    far_give(t, &p.memory[c]);
  far_rows_give(t, &p.rows);
  free(p.after);
  outputs_free(&got);
  return good;
}
