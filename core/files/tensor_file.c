/* tensor_file.c: a flat manifest (docs/models.md) and safetensors (https://github.com/huggingface/safetensors). */
#include "tensor_file.h"

#include <stdlib.h>
#include <string.h>

#include "bytes.h"

typedef long long ll; /* for messages */

static const int64_t most_manifest = (int64_t)1 << 28, most_data = (int64_t)1 << 40;

void tensor_file_free(tensor_file *file) {
  for (int32_t i = 0; i < file->count && file->tensor != NULL; ++i)
    free(file->tensor[i].copy);
  free(file->tensor);
  free(file->bytes);
  json_close(file->reader);
  memset(file, 0, sizeof *file);
}

const file_tensor *tensor_file_find(const tensor_file *file, const char *name) {
  for (int32_t i = 0; i < file->count; ++i)
    if (strcmp(file->tensor[i].name, name) == 0) return &file->tensor[i];
  return NULL;
}

void tensor_file_shape(int32_t rank, const int64_t *shape, char *text, size_t size) {
  size_t used = (size_t)snprintf(text, size, "[");
  for (int32_t a = 0; a < rank && used < size; ++a)
    used += (size_t)snprintf(text + used, size - used, "%s%lld", a > 0 ? ", " : "", (ll)shape[a]);
  if (used < size) (void)snprintf(text + used, size - used, "]");
}

assay_status tensor_file_get(const tensor_file *file, const char *name, assay_dtype dtype, int32_t rank,
                             const int64_t *shape, const file_tensor **found, assay_error *error) {
  const file_tensor *t = tensor_file_find(file, name);
  *found = t;
  if (t == NULL) {
    char names[300] = "";
    size_t used = 0;
    for (int32_t i = 0; i < file->count && used < 200; ++i)
      used += (size_t)snprintf(names + used, sizeof names - used, "%s%.60s", i > 0 ? ", " : "", file->tensor[i].name);
    return assay_fail(error, ASSAY_ERR_INPUT, "%s: found no such tensor in the file, allowed: %s%s", name,
                      used > 0 ? names : "none", used >= 200 ? ", ..." : "");
  }
  if (t->unread[0] != '\0')
    return assay_fail(error, ASSAY_ERR_INPUT, "%s: found %s, allowed F32, F16, BF16, F8_E4M3, F8_E5M2, I32, I64", name,
                      t->unread);
  if (dtype != ASSAY_NONE && t->dtype != dtype)
    return assay_fail(error, ASSAY_ERR_INPUT, "%s: dtype: found %s, allowed %s", name, assay_dtype_name(t->dtype),
                      assay_dtype_name(dtype));
  bool same = t->rank == rank;
  for (int32_t a = 0; a < rank && same; ++a)
    same = t->shape[a] == shape[a];
  if (same) return ASSAY_OK;
  char is[160], wanted[160];
  tensor_file_shape(t->rank, t->shape, is, sizeof is);
  tensor_file_shape(rank, shape, wanted, sizeof wanted);
  return assay_fail(error, ASSAY_ERR_INPUT, "%s: shape: found %s, allowed %s", name, is, wanted);
}

/* ---- what both formats share ------------------------------------------------------------------------- */

static assay_status take_name(tensor_file *file, const char *path, const char *name, file_tensor **tensor,
                              assay_error *error) {
  if (tensor_file_find(file, name) != NULL)
    return assay_fail(error, ASSAY_ERR_INPUT, "%s: %s: found twice, allowed once", path, name);
  *tensor = &file->tensor[file->count];
  **tensor = (file_tensor){.name = name};
  return ASSAY_OK;
}

static assay_status take_shape(const char *path, const json_value *shape, file_tensor *t, assay_error *error) {
  if (shape == NULL || shape->kind != JSON_ARRAY)
    return assay_fail(error, ASSAY_ERR_INPUT, "%s: %s: shape: found %s, allowed a list of lengths", path, t->name,
                      shape == NULL ? "nothing" : "no list");
  t->count = 1;
  for (const json_value *at = shape->child; at != NULL; at = at->next) {
    int64_t length = 0;
    if (t->rank == ASSAY_MAX_RANK)
      return assay_fail(error, ASSAY_ERR_INPUT, "%s: %s: shape: found more than %d axes, allowed up to %d", path,
                        t->name, ASSAY_MAX_RANK, ASSAY_MAX_RANK);
    if (!json_whole(at, &length) || length < 0 || (length > 0 && t->count > most_data / length))
      return assay_fail(error, ASSAY_ERR_INPUT, "%s: %s: shape: found '%.40s', allowed lengths from 0 on, %lld in all",
                        path, t->name, at->text != NULL ? at->text : "no number", (ll)most_data);
    t->shape[t->rank++] = length;
    t->count *= length;
  }
  return ASSAY_OK;
}

/* Takes bytes [begin, end) of the data, as the file declares them. any_place: they may lie where their type cannot be
 * read; they are copied then. */
static assay_status take_extent(tensor_file *file, const char *path, int64_t begin, int64_t end, bool any_place,
                                file_tensor *t, assay_error *error) {
  const int64_t size = assay_dtype_size(t->dtype), bytes = t->count * size;
  char shape[160];
  tensor_file_shape(t->rank, t->shape, shape, sizeof shape);
  if (begin < 0 || begin > file->size)
    return assay_fail(error, ASSAY_ERR_INPUT, "%s: %s: offset: found %lld, allowed 0 to %lld, the bytes of the data",
                      path, t->name, (ll)begin, (ll)file->size);
  if (end - begin != bytes)
    return assay_fail(error, ASSAY_ERR_INPUT, "%s: %s: nbytes: found %lld, allowed %lld for %s of %s", path, t->name,
                      (ll)(end - begin), (ll)bytes, shape, assay_dtype_name(t->dtype));
  if (bytes > file->size - begin)
    return assay_fail(error, ASSAY_ERR_INPUT,
                      "%s: %s: offset: found %lld with %lld bytes, allowed what ends at or before %lld, where the data "
                      "end",
                      path, t->name, (ll)begin, (ll)bytes, (ll)file->size);
  if (begin % size != 0 && !any_place)
    return assay_fail(error, ASSAY_ERR_INPUT, "%s: %s: offset: found %lld, allowed multiples of the %lld bytes of %s",
                      path, t->name, (ll)begin, (ll)size, assay_dtype_name(t->dtype));
  t->begin = begin;
  t->data = file->bytes + begin;
  if (begin % size != 0) {
    t->copy = malloc((size_t)bytes + 1);
    if (t->copy == NULL) return assay_fail(error, ASSAY_ERR_MEMORY, "%s: %s: out of memory", path, t->name);
    t->data = memcpy(t->copy, t->data, (size_t)bytes);
  }
  ++file->count;
  return ASSAY_OK;
}

static assay_status take_manifest(tensor_file *file, const char *path, const char *text, int64_t size,
                                  assay_error *error) {
  assay_error inner = {""};
  file->reader = json_open();
  if (file->reader == NULL) return assay_fail(error, ASSAY_ERR_MEMORY, "%s: out of memory", path);
  const assay_status status = json_parse(file->reader, text, (size_t)size, &file->manifest, &inner);
  if (status != ASSAY_OK) return assay_fail(error, status, "%s: JSON: %s", path, inner.text);
  if (file->manifest->kind != JSON_OBJECT)
    return assay_fail(error, ASSAY_ERR_INPUT, "%s: JSON: found no object, allowed one", path);
  return ASSAY_OK;
}

static assay_status take_room(tensor_file *file, const char *path, const json_value *list, assay_error *error) {
  int64_t count = 0;
  for (const json_value *at = list->child; at != NULL; at = at->next)
    ++count;
  if (count > TENSOR_FILE_MOST)
    return assay_fail(error, ASSAY_ERR_INPUT, "%s: tensors: found %lld, allowed up to %d", path, (ll)count,
                      TENSOR_FILE_MOST);
  file->tensor = calloc((size_t)count + 1, sizeof *file->tensor);
  return file->tensor != NULL ? ASSAY_OK : assay_fail(error, ASSAY_ERR_MEMORY, "%s: out of memory", path);
}

/* ---- the flat format --------------------------------------------------------------------------------- */

static assay_status flat_dtype(const char *path, const char *who, const char *name, assay_dtype *dtype,
                               assay_error *error) {
  for (int d = ASSAY_F32; d < ASSAY_DTYPE_COUNT; ++d)
    if (strcmp(assay_dtype_name((assay_dtype)d), name) == 0) {
      *dtype = (assay_dtype)d;
      return ASSAY_OK;
    }
  return assay_fail(error, ASSAY_ERR_INPUT,
                    "%s: %s: dtype: found '%.40s', allowed f32, f16, bf16, e4m3, e5m2, i32, i64", path, who, name);
}

static assay_status flat_tensor(tensor_file *file, const char *path, assay_dtype fallback, const json_value *entry,
                                assay_error *error) {
  static const char *const known[] = {"name", "shape", "dtype", "offset", "nbytes"};
  file_tensor *t = NULL;
  if (entry->kind != JSON_OBJECT)
    return assay_fail(error, ASSAY_ERR_INPUT, "%s: tensors: found an entry %d that is no object, allowed objects", path,
                      file->count);
  const json_value *name = json_member(entry, "name"), *type = json_member(entry, "dtype");
  if (name == NULL || name->kind != JSON_STRING)
    return assay_fail(error, ASSAY_ERR_INPUT, "%s: tensors: entry %d: name: found none, allowed a text", path,
                      file->count);
  for (const json_value *at = entry->child; at != NULL; at = at->next) {
    bool is = false;
    for (size_t k = 0; k < sizeof known / sizeof *known; ++k)
      is = is || strcmp(at->key, known[k]) == 0;
    if (!is)
      return assay_fail(error, ASSAY_ERR_INPUT,
                        "%s: %s: found key '%.60s', allowed: name, shape, dtype, offset, nbytes", path, name->text,
                        at->key);
  }
  if (name->text[0] == '\0')
    return assay_fail(error, ASSAY_ERR_INPUT, "%s: tensors: entry %d: name: found 0 bytes, allowed a text", path,
                      file->count);
  assay_status status = take_name(file, path, name->text, &t, error);
  if (status != ASSAY_OK) return status;
  t->dtype = fallback;
  if (type != NULL && type->kind != JSON_STRING)
    return assay_fail(error, ASSAY_ERR_INPUT, "%s: %s: dtype: found no text, allowed f32, bf16 and so on", path,
                      t->name);
  if (type != NULL) status = flat_dtype(path, t->name, type->text, &t->dtype, error);
  if (status == ASSAY_OK) status = take_shape(path, json_member(entry, "shape"), t, error);
  if (status != ASSAY_OK) return status;
  int64_t offset = 0, bytes = t->count * assay_dtype_size(t->dtype);
  if (!json_whole(json_member(entry, "offset"), &offset))
    return assay_fail(error, ASSAY_ERR_INPUT, "%s: %s: offset: found no whole number, allowed one from 0 on", path,
                      t->name);
  const json_value *declared = json_member(entry, "nbytes");
  if (declared != NULL && !json_whole(declared, &bytes))
    return assay_fail(error, ASSAY_ERR_INPUT, "%s: %s: nbytes: found no whole number, allowed one from 0 on", path,
                      t->name);
  if (offset < 0 || offset > most_data || bytes < 0 || bytes > 8 * most_data)
    return assay_fail(error, ASSAY_ERR_INPUT, "%s: %s: offset: found %lld with %lld bytes, allowed 0 to %lld", path,
                      t->name, (ll)offset, (ll)bytes, (ll)most_data);
  return take_extent(file, path, offset, offset + bytes, false, t, error);
}

/* Makes the path of a file beside the manifest: from "weights.json" and "weights.bin". */
static assay_status beside(const char *manifest, const char *name, char *path, size_t size, assay_error *error) {
  const char *slash = strrchr(manifest, '/');
  const int folder = slash != NULL ? (int)(slash + 1 - manifest) : 0;
  if (name[0] == '/' || strstr(name, "..") != NULL || name[0] == '\0')
    return assay_fail(error, ASSAY_ERR_INPUT,
                      "%s: data: found '%.100s', allowed the name of a file beside the manifest", manifest, name);
  if (snprintf(path, size, "%.*s%s", folder, manifest, name) >= (int)size)
    return assay_fail(error, ASSAY_ERR_INPUT, "%s: data: the path is too long, allowed up to %zu bytes", manifest,
                      size - 1);
  return ASSAY_OK;
}

assay_status tensor_file_flat(const char *manifest, const char *data, tensor_file *file, assay_error *error) {
  unsigned char *text = NULL;
  int64_t size = 0;
  char path[4096] = "";
  assay_dtype fallback = ASSAY_F32;
  memset(file, 0, sizeof *file);
  assay_status status = file_bytes(manifest, most_manifest, &text, &size, error);
  if (status == ASSAY_OK) status = take_manifest(file, manifest, (const char *)text, size, error);
  free(text);
  const json_value *type = json_member(file->manifest, "dtype"), *list = json_member(file->manifest, "tensors");
  const json_value *named = json_member(file->manifest, "data");
  if (status == ASSAY_OK && (list == NULL || list->kind != JSON_ARRAY))
    status = assay_fail(error, ASSAY_ERR_INPUT, "%s: tensors: found none, allowed a list", manifest);
  if (status == ASSAY_OK &&
      ((type != NULL && type->kind != JSON_STRING) || (named != NULL && named->kind != JSON_STRING)))
    status = assay_fail(error, ASSAY_ERR_INPUT, "%s: %s: found no text, allowed one", manifest,
                        named != NULL && named->kind != JSON_STRING ? "data" : "dtype");
  if (status == ASSAY_OK && type != NULL) status = flat_dtype(manifest, "the manifest", type->text, &fallback, error);
  if (status == ASSAY_OK && data == NULL) {
    char usual[64];
    (void)snprintf(usual, sizeof usual, "weights_%s.bin", assay_dtype_name(fallback));
    status = beside(manifest, named != NULL ? named->text : usual, path, sizeof path, error);
  }
  if (status == ASSAY_OK) status = file_bytes(data != NULL ? data : path, most_data, &file->bytes, &file->size, error);
  if (status == ASSAY_OK) status = take_room(file, manifest, list, error);
  for (const json_value *at = status == ASSAY_OK ? list->child : NULL; at != NULL && status == ASSAY_OK; at = at->next)
    status = flat_tensor(file, manifest, fallback, at, error);
  if (status != ASSAY_OK) tensor_file_free(file);
  return status;
}

/* ---- safetensors ------------------------------------------------------------------------------------- */

/* Returns ASSAY_NONE for a type that nothing here takes. */
static assay_dtype safe_dtype(const char *name) {
  static const struct {
    const char *name;
    assay_dtype dtype;
  } types[] = {{"F32", ASSAY_F32},      {"F16", ASSAY_F16},      {"BF16", ASSAY_BF16}, {"I32", ASSAY_I32},
               {"F8_E4M3", ASSAY_E4M3}, {"F8_E5M2", ASSAY_E5M2}, {"I64", ASSAY_I64}};
  for (size_t i = 0; i < sizeof types / sizeof *types; ++i)
    if (strcmp(types[i].name, name) == 0) return types[i].dtype;
  return ASSAY_NONE;
}

/* Notes a tensor that cannot be read, and why. Returns true if it is one. */
static bool note_unread(tensor_file *file, const json_value *type, const json_value *shape, file_tensor *t) {
  int64_t axes = 0;
  for (const json_value *at = shape != NULL && shape->kind == JSON_ARRAY ? shape->child : NULL; at != NULL;
       at = at->next)
    ++axes;
  t->dtype = safe_dtype(type->text);
  if (t->dtype == ASSAY_NONE)
    (void)snprintf(t->unread, sizeof t->unread, "dtype %.30s", type->text);
  else if (axes > ASSAY_MAX_RANK)
    (void)snprintf(t->unread, sizeof t->unread, "%lld axes", (ll)axes);
  if (t->unread[0] == '\0') return false;
  t->dtype = ASSAY_NONE;
  ++file->count;
  return true;
}

static assay_status safe_tensor(tensor_file *file, const char *path, const json_value *entry, assay_error *error) {
  file_tensor *t = NULL;
  if (strcmp(entry->key, "__metadata__") == 0) return ASSAY_OK;
  assay_status status = take_name(file, path, entry->key, &t, error);
  if (status != ASSAY_OK) return status;
  const json_value *type = json_member(entry, "dtype"), *extent = json_member(entry, "data_offsets");
  if (type == NULL || type->kind != JSON_STRING)
    return assay_fail(error, ASSAY_ERR_INPUT, "%s: %s: dtype: found no text, allowed F32, BF16 and so on", path,
                      t->name);
  if (note_unread(file, type, json_member(entry, "shape"), t)) return ASSAY_OK;
  status = take_shape(path, json_member(entry, "shape"), t, error);
  if (status != ASSAY_OK) return status;
  int64_t begin = 0, end = 0;
  const bool pair = extent != NULL && extent->kind == JSON_ARRAY && extent->child != NULL &&
                    extent->child->next != NULL && extent->child->next->next == NULL &&
                    json_whole(extent->child, &begin) && json_whole(extent->child->next, &end);
  if (!pair || begin < 0 || end < begin)
    return assay_fail(error, ASSAY_ERR_INPUT,
                      "%s: %s: data_offsets: found no two ascending numbers, allowed [begin, end]", path, t->name);
  return take_extent(file, path, begin, end, true, t, error);
}

static int by_begin(const void *a, const void *b) {
  const file_tensor *x = *(file_tensor *const *)a, *y = *(file_tensor *const *)b;
  return (x->begin > y->begin) - (x->begin < y->begin);
}

static assay_status refuse_shared_bytes(const tensor_file *file, const char *path, assay_error *error) {
  assay_status status = ASSAY_OK;
  int32_t count = 0;
  const file_tensor **order = malloc(((size_t)file->count + 1) * sizeof *order);
  if (order == NULL) return assay_fail(error, ASSAY_ERR_MEMORY, "%s: out of memory", path);
  for (int32_t i = 0; i < file->count; ++i)
    if (file->tensor[i].unread[0] == '\0' && file->tensor[i].count > 0) order[count++] = &file->tensor[i];
  qsort(order, (size_t)count, sizeof *order, by_begin);
  for (int32_t i = 0; i + 1 < count && status == ASSAY_OK; ++i) {
    const file_tensor *t = order[i], *next = order[i + 1];
    if (t->begin + t->count * assay_dtype_size(t->dtype) > next->begin)
      status = assay_fail(error, ASSAY_ERR_INPUT, "%s: %s: offset: found %lld, where the bytes of %s have not ended",
                          path, next->name, (ll)next->begin, t->name);
  }
  free(order);
  return status;
}

assay_status tensor_file_safetensors(const char *path, tensor_file *file, assay_error *error) {
  unsigned char *all = NULL;
  int64_t size = 0;
  uint64_t header = 0;
  memset(file, 0, sizeof *file);
  assay_status status = file_bytes(path, most_data, &all, &size, error);
  if (status != ASSAY_OK) return status;
  for (int i = 0; i < 8 && size >= 8; ++i)
    header |= (uint64_t)all[i] << (8 * i);
  if (size < 8 || header > (uint64_t)(size - 8) || header > (uint64_t)most_manifest)
    status = assay_fail(error, ASSAY_ERR_INPUT,
                        "%s: header length: found %llu, allowed up to %lld with a file of %lld bytes", path,
                        (unsigned long long)header, (ll)(size < 8 ? 0 : size - 8), (ll)size);
  if (status == ASSAY_OK) status = take_manifest(file, path, (const char *)all + 8, (int64_t)header, error);
  if (status == ASSAY_OK) {
    /* Moves the data to the front, where it is aligned. */
    file->size = size - 8 - (int64_t)header;
    memmove(all, all + 8 + header, (size_t)file->size);
    file->bytes = all;
    all = NULL;
    status = take_room(file, path, file->manifest, error);
  }
  free(all);
  for (const json_value *at = status == ASSAY_OK ? file->manifest->child : NULL; at != NULL && status == ASSAY_OK;
       at = at->next)
    status = safe_tensor(file, path, at, error);
  if (status == ASSAY_OK) status = refuse_shared_bytes(file, path, error);
  if (status != ASSAY_OK) tensor_file_free(file);
  return status;
}
