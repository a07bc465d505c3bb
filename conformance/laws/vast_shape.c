/* vast_shape.c: calls in which one dimension is so large that a dense tensor leaves 31 bits in elements. The case's own
 * elements lie at both ends of the dimension. */
#include <stdlib.h>
#include <string.h>

#include "conformance/case/case.h"
#include "conformance/generate/generate.h"
#include "vast_internal.h"

/* STEP: a dimension grows by a multiple of it, so that rows along another axis keep their alignment. PIECES: the most
 * pieces of a range. TILES: the rows of all tiles and groups divide it. */
enum { STEP = 256, PIECES = 8192, TILES = 1024 };

static const int64_t most_bytes = (int64_t)1 << 37; /* the largest range */

/* The dimensions that may grow in addition to the rows of every plain operator whose rows may move. An operator without
 * a row here is asked its rows alone. */
static const struct {
  const char *op;
  vast_axis axis;
} table[] = {
    {"copy_blocks", {"num_blocks", "pairs", NULL}},
    {"embedding", {"V", "ids", NULL}},
    {"embedding", {"max_pos", "positions", NULL}},
    {"fp8_grouped_gemm", {"E", "group", NULL}},
    {"gemm", {"N", NULL, NULL}},
    {"grouped_gemm", {"E", "group", NULL}},
    {"lm_head", {"V", NULL, NULL}},
    {"lm_head", {"T", "row_index", NULL}},
    {"mla_attention", {"P", "table", NULL}},
    {"moe_combine", {"P", "pos", NULL}},
    {"rope", {"max_pos", "positions", "positions_hw"}},
};

int32_t vast_axes(const assay_op *op, vast_axis *axis) {
  int32_t count = 0;
  const bool moves = op->laws != NULL && strstr(op->laws, "permutation") != NULL;
  if (op->form == ASSAY_PLAIN && op->row_dim != NULL && moves) axis[count++] = (vast_axis){op->row_dim, NULL, NULL};
  for (size_t i = 0; i < sizeof table / sizeof table[0] && count < VAST_AXES; ++i)
    if (strcmp(table[i].op, op->name) == 0) axis[count++] = table[i].axis;
  return count;
}

/* ---- the large call ---------------------------------------------------------------------------------------- */

static int32_t find_arg(const assay_op *op, const char *name) {
  for (int32_t i = 0; i < op->arg_count && name != NULL; ++i)
    if (strcmp(op->args[i].name, name) == 0) return i;
  return -1;
}

static int64_t largest_extent(const assay_op *op, const char *dim) {
  for (int32_t i = 0; i < op->dim_count; ++i)
    if (strcmp(op->dims[i].name, dim) == 0) return op->dims[i].max;
  return 0;
}

/* Returns the largest extent of the dimension named by the first `size` characters. */
static int64_t largest_named(const void *context, const char *name, size_t size) {
  const assay_op *op = context;
  for (int32_t i = 0; i < op->dim_count; ++i)
    if (strncmp(op->dims[i].name, name, size) == 0 && op->dims[i].name[size] == '\0') return op->dims[i].max;
  return 1;
}

/* Returns the most elements that an argument with this dimension can have; 0: it has no such axis. */
static double most_elements(const assay_op *op, const assay_arg *arg, const char *dim) {
  double elements = 1;
  bool has = false;
  for (const char *term = arg->shape; *term != '\0' && *term != '|'; term += *term == ',') {
    const size_t size = strcspn(term, ",|");
    has = has || (strlen(dim) == size && strncmp(term, dim, size) == 0);
    elements *= (double)shape_axis(term, size, 1, largest_named, op);
    term += size;
  }
  return has ? elements : 0;
}

bool vast_is_possible(const assay_op *op) {
  vast_axis axis[VAST_AXES];
  const int32_t count = vast_axes(op, axis);
  for (int32_t i = 0; i < count; ++i)
    for (int32_t a = 0; a < op->arg_count; ++a)
      if (most_elements(op, &op->args[a], axis[i].dim) > 0x1p31) return true;
  return false;
}

/* Returns the elements from one end of the tensor to the other, rows that lie apart included. */
static int64_t reach(const assay_tensor *t) {
  return t->shape[0] * t->stride[0];
}

/* Gives the argument an extent along its axis. Rows keep the elements between them. */
static void grow(const vast *v, vast_arg *a, int64_t extent) {
  const assay_tensor *own = &v->img->arg[a->arg];
  int64_t dense = 1;
  a->grown = *own;
  a->grown.shape[a->axis] = extent;
  a->outer = a->inner = 1;
  for (int32_t i = own->rank - 1; i >= 0; --i) {
    a->grown.stride[i] = dense;
    dense *= a->grown.shape[i];
    if (i > a->axis) a->inner *= own->shape[i];
    if (i < a->axis) a->outer *= own->shape[i];
  }
  if (v->close || !v->img->origin->op->args[a->arg].strided || own->shape[0] < 2) return;
  int64_t row = 1;
  for (int32_t i = 1; i < own->rank; ++i)
    row *= own->shape[i];
  a->grown.stride[0] += own->stride[0] - row;
}

/* Tells whether the dimension counts rows of every argument that has it. */
static bool counts_rows(const vast *v) {
  for (int32_t i = 0; i < v->count; ++i)
    if (v->list[i].axis != 0) return false;
  return true;
}

/* Returns the least extent at which all that lies at the dimension's end begins after so many elements; 0: the
 * definition allows none. Where the elements of a row divide that number, an offset that wraps around meets the rows at
 * the begin. */
static int64_t extent_for(const vast *v, vast_arg *a, int64_t elements, int64_t largest) {
  grow(v, a, STEP);
  const int64_t each = reach(&a->grown) / STEP, step = counts_rows(v) ? 1 : STEP;
  if (each <= 0) return 0;
  const int64_t begin = (elements + each - 1) / each, extent = v->extent + (begin - v->low + step - 1) / step * step;
  return extent <= largest ? extent : 0;
}

static bool fits(vast *v, int64_t extent) {
  for (int32_t i = 0; i < v->count; ++i) {
    vast_arg *a = &v->list[i];
    grow(v, a, extent);
    if (reach(&a->grown) > most_bytes / assay_dtype_size(a->grown.dtype) || a->outer > PIECES / 2) return false;
  }
  return true;
}

/* Gives every tensor its extent, and notes the largest one's elements. */
static void note_elements(vast *v) {
  for (int32_t i = 0; i < v->count; ++i) {
    grow(v, &v->list[i], v->grown);
    if (reach(&v->list[i].grown) > v->elements) v->elements = reach(&v->list[i].grown);
  }
}

/* Chooses a call of at most `most` extent, whose rows lie side by side if `close`. */
static bool choose(const trial *t, const vast_axis *axis, int64_t elements, int64_t most, bool close, vast *v) {
  const assay_op *op = t->one->op;
  const int64_t largest = largest_extent(op, axis->dim);
  *v = (vast){.img = &t->first, .dim = axis->dim, .close = close, .index = find_arg(op, axis->index)};
  v->also = find_arg(op, axis->also);
  if (v->also >= 0 && v->img->arg[v->also].data == NULL) v->also = -1;
  if (v->index >= 0 && v->img->arg[v->index].data == NULL) return false;
  for (int32_t i = 0; i < op->arg_count; ++i) {
    const assay_tensor *own = &v->img->arg[i];
    const int32_t at = own->data != NULL ? place_axis(v->img, i, axis->dim) : -1;
    if (at < 0) continue;
    v->list[v->count++] = (vast_arg){.arg = i, .axis = at};
    v->extent = own->shape[at];
  }
  if (v->extent < 1) return false;
  v->low = v->extent / 2;
  for (int32_t i = 0; i < v->count; ++i) {
    int64_t extent = extent_for(v, &v->list[i], elements, largest);
    if (extent > most) extent = most;
    if (extent > v->grown && fits(v, extent)) v->grown = extent;
  }
  note_elements(v);
  return v->grown > 0;
}

bool vast_choose(const trial *t, const vast_axis *axis, int64_t elements, vast *v) {
  return choose(t, axis, elements, INT64_MAX, false, v);
}

/* Gives the small call as many rows in its last tile as the large call has, for tiles whose rows divide TILES. As many
 * rows are then in the blocks at the end of the grid. */
bool vast_choose_small(const trial *t, const vast_axis *axis, int64_t elements, const vast *large, vast *v) {
  if (!choose(t, axis, elements, large->grown, true, v)) return false;
  const int64_t extent = v->grown - ((v->grown - large->grown) % TILES + TILES) % TILES;
  if (extent <= v->extent || extent == v->grown) return true;
  v->grown = extent;
  v->elements = 0;
  note_elements(v);
  return true;
}

bool vast_has(const vast *v, int32_t arg) {
  for (int32_t i = 0; i < v->count; ++i)
    if (v->list[i].arg == arg) return true;
  return false;
}

int64_t vast_place(const vast *v, int64_t number) {
  return number < v->low ? number : v->grown - v->extent + number;
}

/* ---- its memory ---------------------------------------------------------------------------------------------- */

/* Returns the offset in elements of row (outer, number) in the image's tensor, or in the large one. */
static int64_t row_at(const vast *v, const vast_arg *a, int64_t outer, int64_t number, bool far) {
  const assay_tensor *t = far ? &a->grown : &v->img->arg[a->arg];
  int64_t at = t->shape[a->axis] > 1 ? (far ? vast_place(v, number) : number) * t->stride[a->axis] : 0;
  for (int32_t i = a->axis - 1; i >= 0; --i) {
    at += t->shape[i] > 1 ? outer % t->shape[i] * t->stride[i] : 0;
    outer /= t->shape[i];
  }
  return at;
}

static assay_status take(const trial *t, const vast *v, vast_arg *a, assay_error *error) {
  const int64_t element = assay_dtype_size(a->grown.dtype);
  assay_piece *piece = malloc((size_t)(2 * a->outer) * sizeof *piece);
  int32_t count = 0;
  if (piece == NULL) return assay_fail(error, ASSAY_ERR_MEMORY, "judge: out of memory");
  for (int64_t outer = 0; outer < a->outer; ++outer)
    for (int32_t half = v->low == 0; half < 2; ++half) {
      const int64_t from = row_at(v, a, outer, half == 0 ? 0 : v->low, true);
      const int64_t last = row_at(v, a, outer, half == 0 ? v->low - 1 : v->extent - 1, true);
      piece[count++] = (assay_piece){from * element, (last + a->inner - from) * element};
    }
  a->memory.bytes = reach(&a->grown) * element;
  const assay_status status = vast_take(t, &a->memory, piece, count, error);
  free(piece);
  return status;
}

assay_status vast_make(const trial *t, vast *v, device_call *on, assay_error *error) {
  for (int32_t i = 0; i < v->count; ++i) {
    const assay_status status = take(t, v, &v->list[i], error);
    if (status != ASSAY_OK) return status;
    on->arg[v->list[i].arg] = v->list[i].grown;
    on->arg[v->list[i].arg].data = v->list[i].memory.memory;
  }
  return ASSAY_OK;
}

void vast_free(const trial *t, vast *v) {
  for (int32_t i = 0; i < v->count; ++i)
    vast_give(t, &v->list[i].memory);
  vast_give(t, &v->workspace);
  free(v->after);
  v->after = NULL;
}

/* Copies rows [from, to) of one part, at once where they lie side by side in both tensors. */
static assay_status copy_rows(const trial *t, const vast *v, const vast_arg *a, int64_t outer, int64_t from, int64_t to,
                              bool up, assay_error *error) {
  const assay_tensor *own = &v->img->arg[a->arg];
  const int64_t element = assay_dtype_size(own->dtype), offset = v->img->extent[a->arg].offset;
  const bool dense =
      a->grown.stride[a->axis] == a->inner && (own->shape[a->axis] < 2 || own->stride[a->axis] == a->inner);
  assay_status status = ASSAY_OK;
  for (int64_t row = from; row < to && status == ASSAY_OK; row = dense ? to : row + 1) {
    const int64_t bytes = (dense ? to - from : 1) * a->inner * element;
    const int64_t near = offset + row_at(v, a, outer, row, false) * element;
    unsigned char *far = a->memory.memory + row_at(v, a, outer, row, true) * element;
    status = up ? t->device->upload(far, v->img->host + near, bytes, error)
                : t->device->download(v->after + near, far, bytes, error);
  }
  return status;
}

assay_status vast_copy(const trial *t, const vast *v, bool up, assay_error *error) {
  assay_status status = ASSAY_OK;
  for (int32_t i = 0; i < v->count; ++i) {
    const vast_arg *a = &v->list[i];
    if (!up && t->one->op->args[a->arg].role == ASSAY_IN) continue;
    for (int64_t outer = 0; outer < a->outer && status == ASSAY_OK; ++outer) {
      status = copy_rows(t, v, a, outer, 0, v->low, up, error);
      if (status == ASSAY_OK) status = copy_rows(t, v, a, outer, v->low, v->extent, up, error);
    }
  }
  return status;
}
