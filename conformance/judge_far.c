/* judge_far.c: the law `far`: the same call once more, with a pool that reaches from block 0 to beyond 2^31 elements
 * (in half the cases 2^32) and beyond 2^32 bytes, the case's blocks at both of its ends. Only these are memory; between
 * them an access faults. */
#include "judge_far.h"

#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "generate_logical.h"
#include "generate_parts.h"
#include "judge_parts.h"

enum { STREAM_FAR = 0x6744, CACHES = 2 };

static const assay_sparse *device_memory;
static const char *device_name = "";

void far_memory(const char *device, const assay_sparse *sparse) {
  device_name = device;
  device_memory = sparse;
}

/* ---- a range of addresses ---------------------------------------------------------------------------- */

/* One allocation of K, of V, or of both. */
typedef struct range {
  unsigned char *memory; /* NULL: none */
  int64_t bytes;
} range;

static assay_status take_host(range *r, const assay_piece *piece, int32_t count, assay_error *error) {
  const int64_t page = sysconf(_SC_PAGESIZE);
  void *memory = mmap(NULL, (size_t)r->bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED)
    return assay_fail(error, ASSAY_ERR_MEMORY, "no range of %lld addresses", (long long)r->bytes);
  r->memory = memory;
  for (int32_t i = 0; i < count; ++i) {
    const int64_t begin = piece[i].offset / page * page, end = piece[i].offset + piece[i].bytes;
    if (mprotect(r->memory + begin, (size_t)(end - begin), PROT_READ | PROT_WRITE) != 0)
      return assay_fail(error, ASSAY_ERR_MEMORY, "no memory for a piece of a range");
  }
  return ASSAY_OK;
}

static void give_range(const trial *t, range *r) {
  if (r->memory == NULL) return;
  if (strcmp(t->device->name, device_name) == 0)
    device_memory->release(r->memory);
  else
    (void)munmap(r->memory, (size_t)r->bytes);
  r->memory = NULL;
}

/* ---- where blocks are ----------------------------------------------------------------------------------- */

typedef struct far_pool {
  const image *img;
  int32_t cache[CACHES]; /* arguments */
  range memory[CACHES];  /* that of the second is empty where both share one */
  int64_t low, high;     /* the first `low` blocks keep their places from 0 on; the others are behind block `high` */
  unsigned char *after;  /* the arena after the call */
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
  if (op->form != ASSAY_PAGED || t->first.pool_blocks < 2) return false; /* of one block the stride is anything */
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
  for (int32_t c = 0; c < (is_shared(p->img, p) ? 1 : CACHES); ++c) {
    const int64_t bytes = block_bytes(p, c);
    const assay_piece piece[2] = {{0, p->low * bytes}, {far_block(p, p->low) * bytes, (blocks - p->low) * bytes}};
    const int32_t skip = p->low == 0;
    p->memory[c].bytes = (p->high + blocks) * bytes;
    if (strcmp(t->device->name, device_name) != 0) {
      const assay_status status = take_host(&p->memory[c], piece + skip, 2 - skip, error);
      if (status != ASSAY_OK) return status;
      continue;
    }
    void *memory = NULL;
    const assay_status status = device_memory->alloc(p->memory[c].bytes, piece + skip, 2 - skip, &memory, error);
    if (status != ASSAY_OK) return status;
    p->memory[c].memory = memory;
  }
  return ASSAY_OK;
}

/* The blocks of allocation c, to (up) or from where they are. */
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

/* Numbers of blocks in tables and slots, in a copy of the arena. */
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
    } else if (t->one->op->args[i].content == ASSAY_CU_K) { /* the last is behind the pool */
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

/* False with an empty verdict: the variant does not take such a call. */
static bool prepare(const trial *t, far_pool *p, device_call *on, case_result *result) {
  const image *img = p->img;
  assay_error error = {""};
  int64_t workspace = 0;
  if (!device_place(t, img, 0, on, result)) return false;
  if (!device_status(take_ranges(t, p, &error), "huge pool", false, &error, result)) return false;
  for (int32_t c = 0; c < CACHES; ++c) {
    const range *r = &p->memory[is_shared(img, p) ? 0 : c];
    const int64_t inside =
        img->bias[p->cache[c]] + img->first_block * block_bytes(p, c); /* without the number's part */
    on->arg[p->cache[c]].data = r->memory + inside;
    on->arg[p->cache[c]].shape[0] = p->high + img->pool_blocks;
  }
  return t->variant->supports(&on->call, &error) == ASSAY_OK &&
         t->variant->workspace(&on->call, &workspace, &error) == ASSAY_OK && workspace <= t->workspace_bytes;
}

static bool run(const trial *t, far_pool *p, device_call *on, outputs *got, case_result *result) {
  const image *img = p->img;
  const int32_t allocations = is_shared(img, p) ? 1 : CACHES;
  assay_error error = {""};
  assay_status status = ASSAY_OK;
  if (!device_upload(t, img, on, result)) return false;
  memcpy(p->after, img->host, (size_t)img->arena_bytes);
  for (int32_t c = 0; c < allocations && status == ASSAY_OK; ++c)
    status = move_blocks(t, p, c, p->after, true, &error);
  renumber(t, p, p->after);
  for (int32_t i = 0; i < t->one->op->arg_count && status == ASSAY_OK; ++i) {
    const assay_content content = t->one->op->args[i].content;
    if (img->arg[i].data != NULL && (content == ASSAY_BLOCK_TABLE || content == ASSAY_CU_K || content == ASSAY_SLOTS))
      status = t->device->upload(on->arg[i].data, p->after + img->extent[i].offset, img->extent[i].bytes, &error);
  }
  if (status == ASSAY_OK) status = t->device->synchronize(&error);
  if (!device_status(status, "upload", true, &error, result)) return false;
  if (!laws_launch(t, on, t->one->seed, "launch over a huge pool", result)) return false;
  status = t->device->synchronize(&error);
  for (int32_t i = 0; i < t->one->op->arg_count && status == ASSAY_OK; ++i) {
    const span s = img->extent[i];
    const bool cache = i == p->cache[0] || i == p->cache[1];
    if (img->arg[i].data != NULL && t->one->op->args[i].role != ASSAY_IN && !cache)
      status = t->device->download(p->after + s.offset, on->arg[i].data, s.bytes, &error);
  }
  for (int32_t c = 0; c < allocations && status == ASSAY_OK; ++c)
    status = move_blocks(t, p, c, p->after, false, &error);
  if (status == ASSAY_OK) status = t->device->synchronize(&error);
  if (!device_status(status, "over a huge pool", true, &error, result)) return false;
  outputs_gather(t, img, p->after, got);
  return outputs_rest(t, img, p->after, result);
}

static bool same(const trial *t, const outputs *plain, const outputs *got, case_result *result) {
  static const char changed[] = "when its blocks lie at both ends of a huge pool";
  finding found;
  if (t->variant->contract.renumbering) return judge_same(t, plain, got, "far", changed, result);
  values_judge(t, got, &found);
  if (found.wrong) judge_verdict(result, VERDICT_FAIL, "far", "%s; %s", found.message, changed);
  return !found.wrong;
}

bool far_check(const trial *t, const outputs *plain, case_result *result) {
  far_pool p = {.img = &t->first};
  device_call on;
  outputs got = {{NULL}};
  bool good = true;
  if (!find_caches(t, &p)) return true;
  choose_places(t, &p);
  p.after = malloc((size_t)t->first.arena_bytes);
  good = p.after != NULL && outputs_make(t, &got);
  if (!good) judge_verdict(result, VERDICT_FAIL, "launch", "judge: out of memory");
  if (good && prepare(t, &p, &on, result)) {
    good = run(t, &p, &on, &got, result) && same(t, plain, &got, result);
    if (good) judge_add_law(result, "far");
  } else if (good) {
    good = result->verdict == VERDICT_PASS;
  }
  for (int32_t c = 0; c < CACHES; ++c)
    give_range(t, &p.memory[c]);
  free(p.after);
  outputs_free(&got);
  return good;
}
