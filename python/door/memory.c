/* memory.c: copies the arguments of a call into memory that the interpreter maps, and back.
 *
 * An argument may be biased and huge. The first block of a cache may be far from its data pointer, and rows may lie
 * beyond 2^32 bytes from each other (law far). An argument may end at an unmapped page (law pages). The file of the
 * shared memory is sparse, and a whole extent has its places there. The copy is bounded by what the definition reaches.
 * pwrite() meets memory that is not there without a fault. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "door.h"

enum { AROUND = 256, PAGE = 4096, KEPT = 256 << 20 };
#define WHOLE     ((int64_t)16 << 20) /* an extent up to here is copied whole, gaps and dead bytes included */
#define MOST_ROWS ((int64_t)1 << 22)  /* most rows of an argument that is copied by rows */
#define MOST      ((int64_t)64 << 40) /* bytes of the file */

/* ---- extents ----------------------------------------------------------------------------------------- */

/* Returns the bytes from element 0 to the end of the last one, over the axes from `first` on; 0: no elements. */
static int64_t span_of(const assay_tensor *t, int32_t first) {
  int64_t last = 0;
  for (int32_t a = 0; a < t->rank; ++a)
    if (t->shape[a] <= 0) return 0;
  for (int32_t a = first; a < t->rank; ++a)
    last += (t->shape[a] - 1) * t->stride[a];
  return (last + 1) * assay_dtype_size(t->dtype);
}

static door_range around(uintptr_t from, int64_t bytes) {
  return (door_range){from > AROUND ? from - AROUND : 0, from + (uintptr_t)bytes + AROUND};
}

static int by_from(const void *a, const void *b) {
  const door_range *x = a, *y = b;
  return x->from < y->from ? -1 : x->from > y->from;
}

/* Sorts ranges and joins those that overlap or touch. Returns how many are left. */
static int64_t join(door_range *r, int64_t count) {
  int64_t kept = 0;
  if (count > 1) qsort(r, (size_t)count, sizeof *r, by_from);
  for (int64_t i = 0; i < count; ++i)
    if (kept > 0 && r[i].from <= r[kept - 1].to) {
      if (r[i].to > r[kept - 1].to) r[kept - 1].to = r[i].to;
    } else {
      r[kept++] = r[i];
    }
  return kept;
}

static const door_segment *segment_of(const door_image *image, uintptr_t address) {
  for (int32_t s = 0; s < image->segments; ++s)
    if (address >= image->segment[s].range.from && address < image->segment[s].range.to) return &image->segment[s];
  return NULL;
}

/* Gives every argument its place. Arguments that share bytes share them there. */
static assay_status place(const assay_call *call, door_image *image, assay_error *error) {
  door_range r[DOOR_SEGMENTS];
  int64_t count = 0;
  for (int32_t i = 0; i < call->op->arg_count; ++i)
    if (call->arg[i].data != NULL) r[count++] = around((uintptr_t)call->arg[i].data, span_of(&call->arg[i], 0));
  count = join(r, count);
  for (int64_t s = 0; s < count; ++s) {
    const int64_t offset = image->bytes + (int64_t)(r[s].from % PAGE);
    image->segment[image->segments++] = (door_segment){r[s], offset};
    if ((int64_t)(r[s].to - r[s].from) > MOST)
      return assay_fail(error, ASSAY_ERR_UNSUPPORTED, "python door: found an argument over %lld bytes, allowed %lld",
                        (long long)(r[s].to - r[s].from), (long long)MOST);
    image->bytes = (offset + (int64_t)(r[s].to - r[s].from) + PAGE - 1) / PAGE * PAGE;
  }
  for (int32_t i = 0; i < call->op->arg_count; ++i) {
    if (call->arg[i].data == NULL) continue;
    const door_segment *s = segment_of(image, (uintptr_t)call->arg[i].data);
    image->offset[i] = s != NULL ? s->offset + (int64_t)((uintptr_t)call->arg[i].data - s->range.from) : 0;
  }
  return ASSAY_OK;
}

/* ---- what is reached --------------------------------------------------------------------------------- */

static bool add(door_image *image, uintptr_t from, int64_t bytes) {
  if (image->copies == image->room) {
    const int64_t room = image->room > 0 ? 2 * image->room : 64;
    door_range *grown = realloc(image->copied, (size_t)room * sizeof *grown);
    if (grown == NULL) return false;
    image->copied = grown;
    image->room = room;
  }
  image->copied[image->copies++] = around(from, bytes);
  return true;
}

static bool add_row(door_image *image, const assay_tensor *t, int64_t row) {
  if (row < 0 || row >= t->shape[0]) return true;
  return add(image, (uintptr_t)t->data + (uintptr_t)(row * t->stride[0] * assay_dtype_size(t->dtype)), span_of(t, 1));
}

static const assay_tensor *holding(const assay_call *call, assay_content content) {
  for (int32_t i = 0; i < call->op->arg_count; ++i)
    if (call->op->args[i].content == content && call->arg[i].data != NULL) return &call->arg[i];
  return NULL;
}

/* Returns the tokens of a block of this cache, from the axis that has that name. */
static int64_t block_size_of(const assay_call *call, int32_t arg) {
  const double layout = assay_find_param(call, "layout");
  const char *at = call->op->args[arg].shape;
  for (int skip = 0; strchr(at, '|') != NULL && skip < (int)layout; ++skip)
    at = strchr(at, '|') + 1;
  for (int32_t a = 0; a < call->arg[arg].rank; ++a) {
    const size_t n = strcspn(at, ",|");
    if (n == strlen("block_size") && strncmp(at, "block_size", n) == 0) return call->arg[arg].shape[a];
    at += n + (at[n] == ',');
  }
  return 1;
}

/* Adds the blocks of a cache that tables and slots name; of contiguous keys those that lengths reach. */
static bool add_blocks(const assay_call *call, int32_t arg, door_image *image) {
  const assay_tensor *cache = &call->arg[arg], *table = holding(call, ASSAY_BLOCK_TABLE);
  const assay_tensor *length = holding(call, ASSAY_KV_LEN), *slots = holding(call, ASSAY_SLOTS);
  const assay_tensor *rows = holding(call, ASSAY_CU_K);
  const int64_t size = block_size_of(call, arg);
  bool good = true;
  for (int64_t b = 0; table != NULL && length != NULL && b < table->shape[0]; ++b) {
    const int64_t keys = ((const int32_t *)length->data)[b * length->stride[0]];
    for (int64_t j = 0; j * size < keys && j < table->shape[1] && good; ++j)
      good = add_row(image, cache, ((const int32_t *)table->data)[b * table->stride[0] + j * table->stride[1]]);
  }
  for (int64_t n = 0; slots != NULL && n < slots->shape[0] && good; ++n) {
    const int64_t slot = ((const int64_t *)slots->data)[n * slots->stride[0]];
    if (slot >= 0) good = add_row(image, cache, slot / size);
  }
  for (int64_t b = 0; table == NULL && rows != NULL && length != NULL && b < length->shape[0]; ++b) {
    const int64_t first = ((const int32_t *)rows->data)[b * rows->stride[0]];
    const int64_t keys = ((const int32_t *)length->data)[b * length->stride[0]];
    for (int64_t k = 0; k < keys && good; ++k)
      good = add_row(image, cache, first + k);
  }
  return good;
}

/* Lists the arguments themselves, from ranges that are not joined yet. */
static bool list_own(door_image *image) {
  image->own = malloc((size_t)(image->copies + 1) * sizeof *image->own);
  if (image->own == NULL) return false;
  for (int64_t i = 0; i < image->copies; ++i)
    image->own[i] = (door_range){image->copied[i].from + AROUND, image->copied[i].to - AROUND};
  image->owns = join(image->own, image->copies);
  return true;
}

static assay_status reach(const assay_call *call, door_image *image, assay_error *error) {
  bool good = true;
  for (int32_t i = 0; i < call->op->arg_count && good; ++i) {
    const assay_tensor *t = &call->arg[i];
    const int64_t bytes = t->data != NULL ? span_of(t, 0) : 0;
    const assay_content content = call->op->args[i].content;
    const bool paged = call->op->form == ASSAY_PAGED && (content == ASSAY_K_CACHE || content == ASSAY_V_CACHE);
    int64_t dense = assay_dtype_size(t->dtype);
    for (int32_t a = 0; a < t->rank; ++a)
      dense *= t->shape[a];
    if (bytes == 0) continue;
    if (bytes <= WHOLE || (!paged && bytes <= 2 * dense))
      good = add(image, (uintptr_t)t->data, bytes);
    else if (paged)
      good = add_blocks(call, i, image);
    else if (t->shape[0] > MOST_ROWS)
      return assay_fail(error, ASSAY_ERR_UNSUPPORTED, "python door: %s: found %lld rows apart, allowed %lld",
                        call->op->args[i].name, (long long)t->shape[0], (long long)MOST_ROWS);
    else
      for (int64_t row = 0; row < t->shape[0] && good; ++row)
        good = add_row(image, t, row);
  }
  if (good) good = list_own(image);
  if (!good) return assay_fail(error, ASSAY_ERR_MEMORY, "python door: out of memory");
  image->copies = join(image->copied, image->copies);
  return ASSAY_OK;
}

/* ---- copies ------------------------------------------------------------------------------------------ */

/* Writes [from, to) into the file; keeps the part that was memory in `done`. Returns the address where it went on. */
static uintptr_t write_some(const door_segment *s, uintptr_t from, uintptr_t to, int file, door_range *done) {
  const off_t at = (off_t)(s->offset + (int64_t)(from - s->range.from));
  ssize_t put = -1;
  do
    put = pwrite(file, (const void *)from, to - from, at);
  while (put < 0 && errno == EINTR);
  *done = (door_range){from, from + (uintptr_t)(put > 0 ? put : 0)};
  return put > 0 ? from + (uintptr_t)put : (from / PAGE + 1) * PAGE;
}

/* Returns the piece of a copied range that begins at `at`, and whether it is inside an argument or around one. `own` is
 * the argument that comes next, and goes on. */
static door_range piece_of(const door_image *image, uintptr_t at, uintptr_t end, int64_t *own, bool *inside) {
  while (*own < image->owns && image->own[*own].to <= at)
    ++*own;
  const door_range *next = *own < image->owns ? &image->own[*own] : NULL;
  *inside = next != NULL && next->from <= at;
  const uintptr_t stop = next == NULL ? end : *inside ? next->to : next->from;
  return (door_range){at, stop < end ? stop : end};
}

static bool read_all(int file, unsigned char *to, size_t bytes, off_t at) {
  while (bytes > 0) {
    const ssize_t got = pread(file, to, bytes, at);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    to += got;
    at += got;
    bytes -= (size_t)got;
  }
  return true;
}

/* Keeps what the file has of the bytes around the arguments. */
static assay_status keep_around(door_image *image, int file, assay_error *error) {
  size_t bytes = 0, room = 1;
  for (int pass = 0; pass < 2; ++pass) {
    int64_t own = 0;
    bytes = 0;
    for (int64_t i = 0; i < image->copies; ++i) {
      const door_segment *s = segment_of(image, image->copied[i].from);
      for (uintptr_t at = image->copied[i].from; s != NULL && at < image->copied[i].to;) {
        bool inside = false;
        const door_range piece = piece_of(image, at, image->copied[i].to, &own, &inside);
        const size_t n = piece.to - piece.from;
        if (!inside && pass > 0 &&
            !read_all(file, image->before + bytes, n, (off_t)(s->offset + (int64_t)(at - s->range.from))))
          return assay_fail(error, ASSAY_ERR_IO, "python door: shared memory: %s", strerror(errno));
        if (!inside) bytes += n;
        at = piece.to;
      }
    }
    room += bytes;
    if (pass == 0 && (image->before = malloc(room)) == NULL)
      return assay_fail(error, ASSAY_ERR_MEMORY, "python door: out of memory");
  }
  return ASSAY_OK;
}

assay_status door_copy_in(const assay_call *call, int file, door_image *image, assay_error *error) {
  memset(image, 0, sizeof *image);
  assay_status status = place(call, image, error);
  if (status == ASSAY_OK && image->bytes > 0 && ftruncate(file, (off_t)image->bytes) != 0)
    status = assay_fail(error, ASSAY_ERR_IO, "python door: shared memory of %lld bytes: %s", (long long)image->bytes,
                        strerror(errno));
  if (status == ASSAY_OK) status = reach(call, image, error);
  if (status != ASSAY_OK) return status;
  door_range *const wanted = image->copied;
  const int64_t count = image->copies;
  image->copied = NULL;
  image->copies = image->room = 0;
  for (int64_t i = 0; i < count && status == ASSAY_OK; ++i) {
    const door_segment *s = segment_of(image, wanted[i].from);
    for (uintptr_t at = wanted[i].from; s != NULL && at < wanted[i].to && status == ASSAY_OK;) {
      door_range done;
      at = write_some(s, at, wanted[i].to, file, &done);
      if (done.to > done.from) {
        if (!add(image, done.from + AROUND, (int64_t)(done.to - done.from) - 2 * AROUND))
          status = assay_fail(error, ASSAY_ERR_MEMORY, "python door: out of memory");
        else
          image->copied[image->copies - 1] = done;
      }
    }
  }
  free(wanted);
  return status == ASSAY_OK ? keep_around(image, file, error) : status;
}

/* Memory that has not changed is not written: it may be read-only. */
static void put_back(unsigned char *to, const unsigned char *made, size_t bytes) {
  for (size_t at = 0; at < bytes; at += PAGE) {
    const size_t n = bytes - at < PAGE ? bytes - at : PAGE;
    if (memcmp(to + at, made + at, n) != 0) memcpy(to + at, made + at, n);
  }
}

assay_status door_copy_out(const door_image *image, int file, assay_error *error) {
  if (image->bytes == 0) return ASSAY_OK;
  unsigned char *shared = mmap(NULL, (size_t)image->bytes, PROT_READ, MAP_SHARED | MAP_NORESERVE, file, 0);
  if (shared == MAP_FAILED)
    return assay_fail(error, ASSAY_ERR_MEMORY, "python door: no mapping of %lld bytes: %s", (long long)image->bytes,
                      strerror(errno));
  const unsigned char *before = image->before;
  int64_t own = 0;
  for (int64_t i = 0; i < image->copies; ++i) {
    const door_segment *s = segment_of(image, image->copied[i].from);
    for (uintptr_t at = image->copied[i].from; s != NULL && at < image->copied[i].to;) {
      bool inside = false;
      const door_range piece = piece_of(image, at, image->copied[i].to, &own, &inside);
      const unsigned char *made = shared + s->offset + (at - s->range.from);
      const size_t n = piece.to - piece.from;
      if (inside) put_back((unsigned char *)at, made, n);
      for (size_t j = 0; j < n && !inside; ++j)
        if (made[j] != before[j]) ((unsigned char *)at)[j] = made[j];
      before += inside ? 0 : n;
      at = piece.to;
    }
  }
  (void)munmap(shared, (size_t)image->bytes);
  return ASSAY_OK;
}

void door_image_end(door_image *image, int file) {
  if (image->bytes > KEPT) (void)fallocate(file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, (off_t)image->bytes);
  free(image->copied);
  free(image->own);
  free(image->before);
  image->copied = image->own = NULL;
  image->before = NULL;
}
