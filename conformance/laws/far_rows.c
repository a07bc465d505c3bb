/* far_rows.c: puts rows of an argument so far apart that the last offset leaves 31 bits in elements and 32 bits in
 * bytes. In half the cases it leaves 32 bits in elements. Only a row and a guard on each side are memory. */
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "far_internal.h"

/* MOST: the most rows of an argument on a host. STEP: a stride grows by a multiple of so many elements, so that rows
 * keep their alignment. */
enum { MOST = 64, STEP = 4096 };

static const assay_sparse *device_memory;
static const char *device_name = "";

void far_memory(const char *device, const assay_sparse *sparse) {
  device_name = device;
  device_memory = sparse;
}

static bool is_device(const trial *t) {
  return strcmp(t->device->name, device_name) == 0;
}

const assay_sparse *far_sparse(const trial *t) {
  return is_device(t) ? device_memory : NULL;
}

/* ---- a range of addresses ---------------------------------------------------------------------------- */

static assay_status take_host(far_range *r, const assay_piece *piece, int32_t count, assay_error *error) {
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

assay_status far_take(const trial *t, far_range *r, const assay_piece *piece, int32_t count, assay_error *error) {
  void *memory = NULL;
  if (!is_device(t)) return take_host(r, piece, count, error);
  const assay_status status = device_memory->alloc(r->bytes, piece, count, &memory, error);
  r->memory = memory;
  return status;
}

void far_give(const trial *t, far_range *r) {
  if (r->memory == NULL) return;
  if (is_device(t))
    device_memory->release(r->memory);
  else
    (void)munmap(r->memory, (size_t)r->bytes);
  r->memory = NULL;
}

/* ---- where rows are -------------------------------------------------------------------------------------- */

void far_rows_choose(const trial *t, uint64_t random, far_rows *r) {
  const image *img = &t->first;
  const int64_t reach = (random & 1) != 0 ? (int64_t)1 << 32 : (int64_t)1 << 31;
  const int32_t most = is_device(t) ? ASSAY_SPARSE_PIECES : MOST;
  r->count = 0;
  for (int32_t i = 0; i < t->one->op->arg_count; ++i) {
    const assay_tensor *own = &img->arg[i];
    const int64_t element = assay_dtype_size(own->dtype);
    if (!t->one->op->args[i].strided || own->data == NULL || own->rank < 2) continue;
    if (own->shape[0] < 2 || own->shape[0] > most) continue; /* with one row the stride may be anything */
    int64_t width = 1;
    for (int32_t a = 1; a < own->rank; ++a)
      width *= own->shape[a];
    const int64_t bytes = ((int64_t)1 << 32) / element + 1, least = reach > bytes ? reach : bytes;
    /* No two arguments have one stride. */
    const int64_t steps = least / (own->shape[0] - 1) / STEP + 1 + r->count;
    if (width > 0)
      r->list[r->count++] = (far_row_arg){
          .arg = i, .rows = own->shape[0], .row_bytes = width * element, .stride = own->stride[0] + steps * STEP};
  }
}

bool far_rows_has(const far_rows *r, int32_t arg) {
  for (int32_t i = 0; i < r->count; ++i)
    if (r->list[i].arg == arg) return true;
  return false;
}

static int64_t held_bytes(const far_row_arg *a) {
  return GUARD_BYTES + a->row_bytes + GUARD_BYTES;
}

/* Returns the offset in bytes of a row's first guard in the range. */
static int64_t far_at(const trial *t, const far_row_arg *a, int64_t row) {
  return row * a->stride * assay_dtype_size(t->first.arg[a->arg].dtype);
}

assay_status far_rows_take(const trial *t, far_rows *r, device_call *on, assay_error *error) {
  for (int32_t i = 0; i < r->count; ++i) {
    far_row_arg *a = &r->list[i];
    assay_piece piece[MOST];
    for (int64_t row = 0; row < a->rows; ++row)
      piece[row] = (assay_piece){far_at(t, a, row), held_bytes(a)};
    a->memory.bytes = far_at(t, a, a->rows - 1) + held_bytes(a);
    a->held = malloc((size_t)(a->rows * held_bytes(a)));
    if (a->held == NULL) return assay_fail(error, ASSAY_ERR_MEMORY, "judge: out of memory");
    const assay_status status = far_take(t, &a->memory, piece, (int32_t)a->rows, error);
    if (status != ASSAY_OK) return status;
    on->arg[a->arg].data = a->memory.memory + GUARD_BYTES;
    on->arg[a->arg].stride[0] = a->stride;
  }
  return ASSAY_OK;
}

void far_rows_give(const trial *t, far_rows *r) {
  for (int32_t i = 0; i < r->count; ++i) {
    far_give(t, &r->list[i].memory);
    free(r->list[i].held);
  }
  r->count = 0;
}

/* ---- to them and back -------------------------------------------------------------------------------------- */

/* Returns the offset in bytes of a row in the image's own arena. */
static int64_t near_at(const trial *t, const far_row_arg *a, int64_t row) {
  const image *img = &t->first;
  return img->extent[a->arg].offset + row * img->arg[a->arg].stride[0] * assay_dtype_size(img->arg[a->arg].dtype);
}

assay_status far_rows_up(const trial *t, far_rows *r, assay_error *error) {
  assay_status status = ASSAY_OK;
  for (int32_t i = 0; i < r->count; ++i) {
    const far_row_arg *a = &r->list[i];
    poison_fill(a->held, a->rows * held_bytes(a), t->first.chosen.poison);
    for (int64_t row = 0; row < a->rows && status == ASSAY_OK; ++row) {
      unsigned char *held = a->held + row * held_bytes(a);
      memcpy(held + GUARD_BYTES, t->first.host + near_at(t, a, row), (size_t)a->row_bytes);
      status = t->device->upload(a->memory.memory + far_at(t, a, row), held, held_bytes(a), error);
    }
  }
  return status;
}

assay_status far_rows_down(const trial *t, far_rows *r, assay_error *error) {
  assay_status status = ASSAY_OK;
  for (int32_t i = 0; i < r->count; ++i) {
    const far_row_arg *a = &r->list[i];
    for (int64_t row = 0; row < a->rows && status == ASSAY_OK && t->one->op->args[a->arg].role != ASSAY_IN; ++row)
      status = t->device->download(a->held + row * held_bytes(a), a->memory.memory + far_at(t, a, row), held_bytes(a),
                                   error);
  }
  return status;
}

/* Tells whether the guard at `from` still holds the poison of far_rows_up(): one pattern of two bytes from held's begin
 * on. */
static bool is_guard(const far_row_arg *a, int64_t from, uint8_t poison) {
  unsigned char expected[GUARD_BYTES + 1];
  poison_fill(expected, sizeof expected - 1, poison);
  expected[GUARD_BYTES] = expected[0];
  return memcmp(a->held + from, expected + (from & 1), GUARD_BYTES) == 0;
}

bool far_rows_look(const trial *t, const far_rows *r, unsigned char *after, case_result *result) {
  for (int32_t i = 0; i < r->count; ++i) {
    const far_row_arg *a = &r->list[i];
    if (t->one->op->args[a->arg].role == ASSAY_IN) continue;
    for (int64_t row = 0; row < a->rows; ++row) {
      const int64_t from = row * held_bytes(a), behind = from + GUARD_BYTES + a->row_bytes;
      if (!is_guard(a, from, t->first.chosen.poison) || !is_guard(a, behind, t->first.chosen.poison)) {
        verdict_set(result, VERDICT_FAIL, "guard", "%s: the call changed what is beside row %lld of rows far apart",
                    t->one->op->args[a->arg].name, (long long)row);
        return false;
      }
      memcpy(after + near_at(t, a, row), a->held + from + GUARD_BYTES, (size_t)a->row_bytes);
    }
  }
  return true;
}
