/* npy.c: the format is https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html */
#define _POSIX_C_SOURCE 200809L
#include "npy.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "core/dtype.h"
#include "report_text.h"

typedef struct type_row {
  int type;
  const char *name, *descr; /* descr: NumPy's */
  int64_t size;
} type_row;

/* The first row with a descr is what a file of that descr holds if nothing else is said. */
static const type_row types[] = {
    {ASSAY_F32, "f32", "<f4", 4},   {ASSAY_F16, "f16", "<f2", 2},   {NPY_F64, "f64", "<f8", 8},
    {ASSAY_I32, "i32", "<i4", 4},   {ASSAY_I64, "i64", "<i8", 8},   {NPY_U8, "u8", "|u1", 1},
    {NPY_U16, "u16", "<u2", 2},     {ASSAY_BF16, "bf16", "<u2", 2}, {ASSAY_E4M3, "e4m3", "|u1", 1},
    {ASSAY_E5M2, "e5m2", "|u1", 1},
};
enum { TYPES = sizeof types / sizeof *types };
static const char type_list[] = "f64, f32, f16, bf16, e4m3, e5m2, i32, i64, u8, u16";

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
  double f64;
  uint16_t u16;
  switch (t->type) {
  case NPY_F64:
    memcpy(&f64, at, sizeof f64);
    return f64;
  case NPY_U8:
    return *at;
  case NPY_U16:
    memcpy(&u16, at, sizeof u16);
    return u16;
  default:
    break;
  }
  int32_t i32;
  int64_t i64;
  if (t->type == ASSAY_I32) return memcpy(&i32, at, sizeof i32), (double)i32;
  if (t->type == ASSAY_I64) return memcpy(&i64, at, sizeof i64), (double)i64;
  return assay_load_f64(t->data, (assay_dtype)t->type, index);
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

static assay_status add_axis(npy_tensor *t, const char *path, int64_t length, assay_error *error) {
  if (t->rank == ASSAY_MAX_RANK)
    return assay_fail(error, ASSAY_ERR_INPUT, "%s: more than %d axes", path, ASSAY_MAX_RANK);
  if (length < 0 || (length > 0 && t->count > ((int64_t)1 << NPY_MAX_BYTES_LOG2) / length))
    return assay_fail(error, ASSAY_ERR_INPUT, "%s: shape: too many elements", path);
  t->shape[t->rank++] = length;
  t->count *= length;
  return ASSAY_OK;
}

/* "2,3,4", "(2, 3, 4)", "(5,)", "()". */
static assay_status parse_shape(npy_tensor *t, const char *path, const char *text, assay_error *error) {
  t->rank = 0;
  t->count = 1;
  while (*text == '(' || *text == ' ')
    ++text;
  while (*text != '\0' && *text != ')') {
    char *end = NULL;
    errno = 0;
    const long long length = strtoll(text, &end, 10);
    if (end == text || errno != 0)
      return assay_fail(error, ASSAY_ERR_INPUT, "%s: shape: found '%.40s', allowed: lengths with commas", path, text);
    const assay_status status = add_axis(t, path, length, error);
    if (status != ASSAY_OK) return status;
    text = end;
    while (*text == ',' || *text == ' ')
      ++text;
  }
  return ASSAY_OK;
}

/* The text behind 'key': in NumPy's header, a Python dictionary. */
static const char *entry(const char *header, const char *key) {
  const char *at = strstr(header, key);
  if (at == NULL) return NULL;
  at += strlen(key);
  while (*at == '\'' || *at == '"' || *at == ':' || *at == ' ')
    ++at;
  return at;
}

static assay_status read_header(FILE *from, const char *path, npy_tensor *t, assay_error *error) {
  unsigned char lead[12];
  if (fread(lead, 1, 10, from) != 10 || memcmp(lead, "\x93NUMPY", 6) != 0)
    return assay_fail(error, ASSAY_ERR_INPUT, "%s: not a .npy file: its first bytes are others", path);
  if (lead[6] != 1 && lead[6] != 2)
    return assay_fail(error, ASSAY_ERR_INPUT, "%s: .npy version %d, allowed: 1, 2", path, lead[6]);
  uint32_t size = (uint32_t)lead[8] | (uint32_t)lead[9] << 8;
  if (lead[6] == 2) {
    if (fread(lead + 10, 1, 2, from) != 2) size = UINT32_MAX;
    size |= (uint32_t)lead[10] << 16 | (uint32_t)lead[11] << 24;
  }
  char header[4096];
  if (size >= sizeof header || fread(header, 1, size, from) != size)
    return assay_fail(error, ASSAY_ERR_INPUT, "%s: .npy header of %u bytes, allowed: up to %zu, all there", path, size,
                      sizeof header - 1);
  header[size] = '\0';
  const char *descr = entry(header, "'descr'"), *order = entry(header, "'fortran_order'");
  const char *shape = entry(header, "'shape'");
  if (descr == NULL || order == NULL || shape == NULL)
    return assay_fail(error, ASSAY_ERR_INPUT, "%s: .npy header without descr, fortran_order or shape", path);
  if (strncmp(order, "False", 5) != 0)
    return assay_fail(error, ASSAY_ERR_INPUT, "%s: fortran_order: found %.4s, allowed: False", path, order);
  t->type = -1;
  for (int i = 0; i < TYPES && t->type < 0; ++i)
    if (strncmp(descr, types[i].descr, 3) == 0 && descr[3] == '\'') t->type = types[i].type;
  if (t->type < 0 && strncmp(descr, "<V2'", 4) == 0) t->type = NPY_U16; /* how ml_dtypes writes bfloat16 */
  if (t->type < 0 && strncmp(descr, "|V2'", 4) == 0) t->type = NPY_U16;
  if (t->type < 0 && strncmp(descr, "|V1'", 4) == 0) t->type = NPY_U8;
  if (t->type < 0)
    return assay_fail(error, ASSAY_ERR_INPUT, "%s: descr: found %.6s, allowed: <f8 <f4 <f2 <i8 <i4 <u2 |u1", path,
                      descr);
  return parse_shape(t, path, shape, error);
}

/* The type in "out.bf16.npy"; -1: none. */
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

assay_status npy_read(const char *path, const char *dtype, const char *shape, npy_tensor *made, assay_error *error) {
  assay_status status = ASSAY_OK;
  *made = (npy_tensor){.type = -1, .count = 1};
  FILE *from = fopen(path, "rb");
  if (from == NULL) return assay_fail(error, ASSAY_ERR_INPUT, "%s: cannot be read: %s", path, strerror(errno));
  const char *dot = strrchr(path, '.');
  const bool raw = dot == NULL || strcmp(dot, ".npy") != 0;
  const int wanted = dtype != NULL ? npy_type_find(dtype) : type_in_name(path);
  if (dtype != NULL && wanted < 0)
    status = assay_fail(error, ASSAY_ERR_INPUT, "--dtype: found '%s', allowed: %s", dtype, type_list);
  if (status == ASSAY_OK && raw && (wanted < 0 || shape == NULL))
    status = assay_fail(error, ASSAY_ERR_INPUT, "%s: raw bytes need --dtype and --shape", path);
  if (status == ASSAY_OK && !raw) status = read_header(from, path, made, error);
  if (status == ASSAY_OK && !raw && wanted >= 0 && npy_size(wanted) != npy_size(made->type) && dtype != NULL)
    status = assay_fail(error, ASSAY_ERR_INPUT, "--dtype: found %s of %lld bytes, %s has elements of %lld", dtype,
                        (long long)npy_size(wanted), path, (long long)npy_size(made->type));
  if (status == ASSAY_OK && wanted >= 0 && (raw || npy_size(wanted) == npy_size(made->type))) made->type = wanted;
  if (status == ASSAY_OK && shape != NULL) {
    const int64_t before = made->count;
    status = parse_shape(made, "--shape", shape, error);
    if (status == ASSAY_OK && !raw && made->count != before)
      status = assay_fail(error, ASSAY_ERR_INPUT, "--shape: found %lld elements, %s has %lld", (long long)made->count,
                          path, (long long)before);
  }
  if (status == ASSAY_OK) {
    const size_t bytes = (size_t)(made->count * npy_size(made->type));
    struct stat about;
    /* What a header claims is not asked of memory before the file has it. */
    if (fstat(fileno(from), &about) == 0 && S_ISREG(about.st_mode) && (size_t)about.st_size < bytes)
      status = assay_fail(error, ASSAY_ERR_INPUT, "%s: too short, expected %zu bytes of elements", path, bytes);
    else if ((made->data = malloc(bytes + 1)) == NULL)
      status = assay_fail(error, ASSAY_ERR_MEMORY, "%s: out of memory", path);
    const size_t got = status == ASSAY_OK ? fread(made->data, 1, bytes, from) : bytes;
    if (status == ASSAY_OK && (got != bytes || fgetc(from) != EOF))
      status = assay_fail(error, ASSAY_ERR_INPUT, "%s: %s, expected %zu bytes of elements", path,
                          got != bytes ? "too short" : "too long", bytes);
  }
  (void)fclose(from);
  if (status != ASSAY_OK) npy_free(made);
  return status;
}
