/* npy.c: NumPy's format, https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html */
#define _POSIX_C_SOURCE 200809L
#include "npy.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/dtype.h"
#include "core/files/bytes.h"
#include "npy_header.h"
#include "print.h"

typedef struct type_row {
  int type;
  const char *name, *descr; /* descr: NumPy's name, as it is written */
  int64_t size;
} type_row;

static const type_row types[] = {
    {ASSAY_F32, "f32", "<f4", 4},   {ASSAY_F16, "f16", "<f2", 2},   {NPY_F64, "f64", "<f8", 8},
    {ASSAY_I32, "i32", "<i4", 4},   {ASSAY_I64, "i64", "<i8", 8},   {NPY_U8, "u8", "|u1", 1},
    {NPY_U16, "u16", "<u2", 2},     {ASSAY_BF16, "bf16", "<u2", 2}, {ASSAY_E4M3, "e4m3", "|u1", 1},
    {ASSAY_E5M2, "e5m2", "|u1", 1}, {NPY_I8, "i8", "|i1", 1},       {NPY_I16, "i16", "<i2", 2},
    {NPY_U32, "u32", "<u4", 4},     {NPY_U64, "u64", "<u8", 8},
};
enum { TYPES = sizeof types / sizeof *types };
static const char type_list[] = "f64, f32, f16, bf16, e4m3, e5m2, i8, i16, i32, i64, u8, u16, u32, u64";

static const type_row *row_of(int type) {
  for (int i = 0; i < TYPES; ++i)
    if (types[i].type == type) return &types[i];
  return NULL;
}

int64_t npy_size(int type) {
  const type_row *row = row_of(type);
  return row != NULL ? row->size : 0;
}

const char *npy_type_name(int type) {
  const type_row *row = row_of(type);
  return row != NULL ? row->name : "?";
}

int npy_type_find(const char *name) {
  for (int i = 0; i < TYPES; ++i)
    if (strcmp(types[i].name, name) == 0) return types[i].type;
  return -1;
}

void npy_free(npy_tensor *t) {
  free(t->data);
  t->data = NULL;
}

double npy_load(const npy_tensor *t, int64_t index) {
  const unsigned char *at = t->data + index * npy_size(t->type);
  union {
    double f64;
    uint64_t u64;
    int64_t i64;
    uint32_t u32;
    int32_t i32;
    uint16_t u16;
    int16_t i16;
    uint8_t u8;
    int8_t i8;
  } as;
  memcpy(&as, at, (size_t)npy_size(t->type));
  switch (t->type) {
  case NPY_F64:
    return as.f64;
  case NPY_U8:
    return as.u8;
  case NPY_U16:
    return as.u16;
  case NPY_U32:
    return as.u32;
  case NPY_U64:
    return (double)as.u64;
  case NPY_I8:
    return as.i8;
  case NPY_I16:
    return as.i16;
  case ASSAY_I32:
    return as.i32;
  case ASSAY_I64:
    return (double)as.i64;
  default:
    return assay_load_f64(t->data, (assay_dtype)t->type, index);
  }
}

/* ---- writing ----------------------------------------------------------------------------------------- */

assay_status npy_write(const char *path, int type, int32_t rank, const int64_t *shape, const void *data,
                       assay_error *error) {
  text_file file;
  char header[512];
  int64_t count = 1;
  const assay_status status = text_open(&file, path, error);
  if (status != ASSAY_OK) return status;
  int used = snprintf(header, sizeof header, "{'descr': '%s', 'fortran_order': False, 'shape': (", row_of(type)->descr);
  for (int32_t i = 0; i < rank; ++i) {
    used +=
        snprintf(header + used, sizeof header - (size_t)used, "%lld,%s", (long long)shape[i], i + 1 < rank ? " " : "");
    count *= shape[i];
  }
  used += snprintf(header + used, sizeof header - (size_t)used, "), }");
  while ((10 + used + 1) % 64 != 0)
    header[used++] = ' ';
  header[used++] = '\n';
  const unsigned char lead[10] = {
      0x93, 'N', 'U', 'M', 'P', 'Y', 1, 0, (unsigned char)(used & 0xFF), (unsigned char)(used >> 8)};
  (void)fwrite(lead, 1, sizeof lead, file.stream);
  (void)fwrite(header, 1, (size_t)used, file.stream);
  if (count > 0) (void)fwrite(data, (size_t)npy_size(type), (size_t)count, file.stream);
  return text_close(&file, error);
}

/* ---- reading ----------------------------------------------------------------------------------------- */

/* Reads a shape: "2,3,4", "(2, 3, 4)", "(5,)" or "()". */
static assay_status parse_shape(npy_header *h, const char *who, const char *text, assay_error *error) {
  h->rank = 0;
  h->count = 1;
  while (*text == '(' || *text == ' ')
    ++text;
  while (*text != '\0' && *text != ')') {
    char *end = NULL;
    errno = 0;
    const long long length = strtoll(text, &end, 10);
    if (end == text || errno != 0)
      return assay_fail(error, ASSAY_ERR_INPUT, "%s: shape: found '%.40s', allowed: lengths with commas", who, text);
    const assay_status status = npy_header_axis(who, h, length, error);
    if (status != ASSAY_OK) return status;
    text = end;
    while (*text == ',' || *text == ' ')
      ++text;
  }
  return ASSAY_OK;
}

/* Returns the type of a file that says nothing else. Void bytes are numbers without a sign, except those of two bytes
 * in the order "<": ml_dtypes writes bfloat16 so. */
static int type_of(const npy_header *h) {
  if (h->kind == 'V' && h->size == 2) return h->generic ? (int)NPY_U16 : (int)ASSAY_BF16;
  if (h->kind == 'V' || h->kind == 'b' || (h->kind == 'f' && h->size == 1)) return NPY_U8;
  for (int i = 0; i < TYPES; ++i)
    if (types[i].descr[1] == h->kind && types[i].size == h->size) return types[i].type;
  return -1;
}

static assay_status read_header(FILE *from, const char *path, npy_header *h, assay_error *error) {
  enum { MOST = 1 << 16 };
  unsigned char lead[12];
  if (fread(lead, 1, 10, from) != 10 || memcmp(lead, "\x93NUMPY", 6) != 0)
    return assay_fail(error, ASSAY_ERR_INPUT, "%s: not a .npy file: its first bytes are others", path);
  if (lead[6] < 1 || lead[6] > 3 || lead[7] != 0)
    return assay_fail(error, ASSAY_ERR_INPUT, "%s: .npy version: found %d.%d, allowed 1.0, 2.0, 3.0", path, lead[6],
                      lead[7]);
  uint32_t size = (uint32_t)lead[8] | (uint32_t)lead[9] << 8;
  if (lead[6] > 1) {
    if (fread(lead + 10, 1, 2, from) != 2) return assay_fail(error, ASSAY_ERR_INPUT, "%s: header: cut off", path);
    size |= (uint32_t)lead[10] << 16 | (uint32_t)lead[11] << 24;
  }
  if (size > MOST)
    return assay_fail(error, ASSAY_ERR_INPUT, "%s: header: found %u bytes, allowed up to %d", path, size, MOST);
  char *text = malloc(size + 1);
  if (text == NULL) return assay_fail(error, ASSAY_ERR_MEMORY, "%s: out of memory", path);
  const size_t got = fread(text, 1, size, from);
  const assay_status status =
      got == size ? npy_header_read(path, text, size, h, error)
                  : assay_fail(error, ASSAY_ERR_INPUT, "%s: header: cut off after %zu of %u bytes", path, got, size);
  free(text);
  return status;
}

/* Returns the type in "out.bf16.npy", or -1. */
static int type_in_name(const char *path) {
  char name[16] = "";
  const char *slash = strrchr(path, '/'), *base = slash != NULL ? slash + 1 : path, *last = strrchr(base, '.');
  if (last == NULL) return -1;
  const char *before = last;
  while (before > base && before[-1] != '.')
    --before;
  if (before == base || (size_t)(last - before) >= sizeof name) return -1;
  memcpy(name, before, (size_t)(last - before));
  return npy_type_find(name);
}

static void swap_bytes(unsigned char *data, int64_t count, int64_t size) {
  for (int64_t i = 0; i < count; ++i)
    for (int64_t a = 0, b = size - 1; a < b; ++a, --b) {
      const unsigned char kept = data[i * size + a];
      data[i * size + a] = data[i * size + b];
      data[i * size + b] = kept;
    }
}

/* Puts elements whose first axis is the fastest into row-major order. */
static assay_status to_rows(npy_tensor *t, const char *path, assay_error *error) {
  const int64_t size = npy_size(t->type);
  int64_t index[ASSAY_MAX_RANK] = {0}, stride[ASSAY_MAX_RANK], from = 0;
  if (t->rank < 2 || t->count < 2) return ASSAY_OK;
  unsigned char *rows = malloc((size_t)(t->count * size));
  if (rows == NULL) return assay_fail(error, ASSAY_ERR_MEMORY, "%s: out of memory", path);
  for (int32_t a = 0; a < t->rank; ++a)
    stride[a] = a == 0 ? 1 : stride[a - 1] * t->shape[a - 1];
  for (int64_t i = 0; i < t->count; ++i) {
    memcpy(rows + i * size, t->data + from * size, (size_t)size);
    for (int32_t a = t->rank - 1; a >= 0; --a) {
      from += stride[a];
      if (++index[a] < t->shape[a]) break;
      from -= stride[a] * t->shape[a];
      index[a] = 0;
    }
  }
  free(t->data);
  t->data = rows;
  return ASSAY_OK;
}

static assay_status read_elements(FILE *from, int64_t left, const char *path, const npy_header *h, npy_tensor *t,
                                  assay_error *error) {
  const int64_t size = npy_size(t->type), bytes = t->count * size;
  /* Compares with the file's size first, so that a false header cannot demand memory. */
  if (left != bytes)
    return assay_fail(error, ASSAY_ERR_INPUT, "%s: too %s, expected %lld bytes of elements, found %lld", path,
                      left < bytes ? "short" : "long", (long long)bytes, (long long)left);
  t->data = malloc((size_t)bytes + 1);
  if (t->data == NULL) return assay_fail(error, ASSAY_ERR_MEMORY, "%s: out of memory", path);
  if (fread(t->data, 1, (size_t)bytes, from) != (size_t)bytes)
    return assay_fail(error, ASSAY_ERR_INPUT, "%s: cannot be read: fewer bytes than its size", path);
  if (h->big && size > 1) swap_bytes(t->data, t->count, size);
  return h->fortran ? to_rows(t, path, error) : ASSAY_OK;
}

/* Tells whether elements of one type may be called another. Unsigned integers stand for the bits of any type. Signed
 * ones may be bf16 or fp8, which NumPy lacks. A float says itself what it is. */
static bool may_be_called(int own, int name) {
  static const int floats[] = {NPY_F64, ASSAY_F32, ASSAY_F16}, signs[] = {NPY_I8, NPY_I16, ASSAY_I32, ASSAY_I64};
  bool from_float = false, to_float = false, is_signed = false;
  for (size_t i = 0; i < sizeof floats / sizeof *floats; ++i) {
    from_float = from_float || floats[i] == own;
    to_float = to_float || floats[i] == name;
  }
  for (size_t i = 0; i < sizeof signs / sizeof *signs; ++i)
    is_signed = is_signed || signs[i] == own;
  return own == name || (!from_float && !(is_signed && to_float) && npy_size(own) == npy_size(name));
}

assay_status npy_rename(npy_tensor *tensor, const char *path, const char *dtype, assay_error *error) {
  const int wanted = npy_type_find(dtype);
  if (wanted < 0) return assay_fail(error, ASSAY_ERR_INPUT, "--dtype: found '%.40s', allowed: %s", dtype, type_list);
  if (npy_size(wanted) != npy_size(tensor->type))
    return assay_fail(error, ASSAY_ERR_INPUT, "--dtype: found %s of %lld bytes, %s has elements of %lld", dtype,
                      (long long)npy_size(wanted), path, (long long)npy_size(tensor->type));
  if (!may_be_called(tensor->type, wanted))
    return assay_fail(error, ASSAY_ERR_INPUT, "--dtype: found %s, the header of %s says %s: allowed that", dtype, path,
                      npy_type_name(tensor->type));
  tensor->type = wanted;
  return ASSAY_OK;
}

assay_status npy_read(const char *path, const char *dtype, const char *shape, npy_tensor *tensor, assay_error *error) {
  FILE *from = NULL;
  int64_t size = 0;
  npy_header h = {.count = 1};
  *tensor = (npy_tensor){.type = -1, .count = 1};
  assay_status status = file_open(path, &from, &size, error);
  if (status != ASSAY_OK) return status;
  const char *dot = strrchr(path, '.');
  const bool raw = dot == NULL || strcmp(dot, ".npy") != 0;
  const int named = type_in_name(path);
  if (dtype != NULL && npy_type_find(dtype) < 0) status = npy_rename(tensor, path, dtype, error);
  if (status == ASSAY_OK && raw && ((dtype == NULL && named < 0) || shape == NULL))
    status = assay_fail(error, ASSAY_ERR_INPUT, "%s: raw bytes need --dtype and --shape", path);
  if (status == ASSAY_OK && !raw) status = read_header(from, path, &h, error);
  if (status == ASSAY_OK && raw) tensor->type = dtype != NULL ? npy_type_find(dtype) : named;
  if (status == ASSAY_OK && !raw) {
    tensor->type = type_of(&h);
    if (dtype != NULL)
      status = npy_rename(tensor, path, dtype, error);
    else if (named >= 0 && may_be_called(tensor->type, named))
      tensor->type = named;
  }
  memcpy(tensor->shape, h.shape, sizeof h.shape);
  tensor->rank = h.rank;
  tensor->count = h.count;
  const int64_t left = size - (int64_t)ftell(from);
  if (status == ASSAY_OK && raw) {
    status = parse_shape(&h, "--shape", shape, error);
    memcpy(tensor->shape, h.shape, sizeof h.shape);
    tensor->rank = h.rank;
    tensor->count = h.count;
  }
  if (status == ASSAY_OK) status = read_elements(from, left, path, &h, tensor, error);
  if (status == ASSAY_OK && !raw && shape != NULL) {
    status = parse_shape(&h, "--shape", shape, error);
    if (status == ASSAY_OK && h.count != tensor->count)
      status = assay_fail(error, ASSAY_ERR_INPUT, "--shape: found %lld elements, %s has %lld", (long long)h.count, path,
                          (long long)tensor->count);
    memcpy(tensor->shape, h.shape, sizeof h.shape);
    tensor->rank = h.rank;
  }
  (void)fclose(from);
  if (status != ASSAY_OK) npy_free(tensor);
  return status;
}
