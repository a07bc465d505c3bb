/* runtime.c: see runtime.h. */
#define _POSIX_C_SOURCE 200809L
#include "runtime.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/json.h"

enum { PATH_ROOM = 4200 };

/* ---- loading ----------------------------------------------------------------------------------------- */

/* The loader would search the system's folders for a path without a slash. */
static void *load(const char *path, int flags) {
  char local[PATH_ROOM + 8];
  (void)snprintf(local, sizeof local, "%s%.*s", strchr(path, '/') != NULL ? "" : "./", PATH_ROOM, path);
  return dlopen(local, RTLD_NOW | flags);
}

static assay_status load_runtime(ffi_runtime *r, const char *library, const char *runtime, assay_error *error) {
  char beside[PATH_ROOM];
  const char *slash = strrchr(library, '/');
  const char *named = runtime != NULL ? runtime : getenv("ASSAY_FFI_RUNTIME");
  if (named != NULL && named[0] != '\0') {
    r->runtime = load(named, RTLD_GLOBAL);
    if (r->runtime != NULL) return ASSAY_OK;
    return assay_fail(error, ASSAY_ERR_IO, "%s: cannot be loaded: %s: %s",
                      runtime != NULL ? "--ffi-runtime" : "ASSAY_FFI_RUNTIME", named, dlerror());
  }
  (void)snprintf(beside, sizeof beside, "%.*slibtvm_ffi.so", slash != NULL ? (int)(slash + 1 - library) : 0, library);
  r->runtime = load(beside, RTLD_GLOBAL);
  if (r->runtime == NULL) r->runtime = dlopen("libtvm_ffi.so", RTLD_NOW | RTLD_GLOBAL);
  if (r->runtime != NULL) return ASSAY_OK;
  return assay_fail(error, ASSAY_ERR_IO,
                    "ffi: libtvm_ffi.so: found none beside %s or on the loader's path, allowed: --ffi-runtime FILE, or "
                    "its path in ASSAY_FFI_RUNTIME (pip install apache-tvm-ffi brings it)",
                    library);
}

/* ISO C has no cast from an object to a function pointer. */
static bool find(void *object, const char *name, void *to) {
  void *symbol = dlsym(object, name);
  memcpy(to, &symbol, sizeof symbol);
  return symbol != NULL;
}

assay_status runtime_open(ffi_runtime *r, const char *library, const char *runtime, assay_error *error) {
  *r = (ffi_runtime){.name = library};
  const assay_status status = load_runtime(r, library, runtime, error);
  if (status != ASSAY_OK) return status;
  if (!find(r->runtime, "TVMFFIObjectDecRef", &r->drop) ||
      !find(r->runtime, "TVMFFIErrorMoveFromRaised", &r->take_error) ||
      !find(r->runtime, "TVMFFIEnvSetStream", &r->set_stream) ||
      !find(r->runtime, "TVMFFIEnvSetDLPackManagedTensorAllocator", &r->set_allocator))
    return assay_fail(error, ASSAY_ERR_INPUT, "ffi: %s: libtvm_ffi lacks a function: %s (tvm-ffi 0.1 has it)", library,
                      dlerror());
  r->library = load(library, RTLD_LOCAL);
  if (r->library != NULL) return ASSAY_OK;
  return assay_fail(error, ASSAY_ERR_IO, "ffi: %s: cannot be loaded: %s", library, dlerror());
}

void runtime_close(ffi_runtime *r) {
  if (r->library != NULL) (void)dlclose(r->library);
  if (r->runtime != NULL) (void)dlclose(r->runtime);
  *r = (ffi_runtime){.name = r->name};
}

abi_dtype abi_dtype_of(assay_dtype dtype) {
  switch (dtype) {
  case ASSAY_F32:
    return (abi_dtype){ABI_CODE_FLOAT, 32, 1};
  case ASSAY_F16:
    return (abi_dtype){ABI_CODE_FLOAT, 16, 1};
  case ASSAY_BF16:
    return (abi_dtype){ABI_CODE_BFLOAT, 16, 1};
  case ASSAY_E4M3:
    return (abi_dtype){ABI_CODE_E4M3FN, 8, 1};
  case ASSAY_E5M2:
    return (abi_dtype){ABI_CODE_E5M2, 8, 1};
  case ASSAY_I32:
    return (abi_dtype){ABI_CODE_INT, 32, 1};
  case ASSAY_I64:
    return (abi_dtype){ABI_CODE_INT, 64, 1};
  case ASSAY_NONE:
  case ASSAY_DTYPE_COUNT:
    break;
  }
  return (abi_dtype){ABI_CODE_UINT, 8, 1};
}

/* ---- calls ------------------------------------------------------------------------------------------- */

void runtime_drop(const ffi_runtime *r, abi_value *value) {
  if (value->type >= ABI_OBJECT) (void)r->drop(value->as.pointer);
  *value = (abi_value){.type = ABI_NONE};
}

assay_status runtime_call(const ffi_runtime *r, const char *symbol, abi_function function, const abi_value *args,
                          int32_t count, abi_value *result, assay_error *error) {
  void *raised = NULL;
  *result = (abi_value){.type = ABI_NONE};
  r->take_error(&raised); /* an error of an earlier call */
  if (raised != NULL) (void)r->drop(raised);
  raised = NULL;
  const int answer = function(NULL, args, count, result);
  const bool returned = answer == 0 && result->type == ABI_ERROR && result->as.pointer != NULL;
  r->take_error(&raised);
  if (answer == 0 && raised == NULL && !returned) return ASSAY_OK;
  if (raised == NULL && !returned) {
    *result = (abi_value){.type = ABI_NONE};
    return assay_fail(error, ASSAY_ERR_INPUT, "%s: returned %d and raised no error", symbol, answer);
  }
  void *object = raised != NULL ? raised : result->as.pointer;
  const abi_error *why = (const abi_error *)((const unsigned char *)object + sizeof(abi_head));
  const assay_status status = assay_fail(
      error, ASSAY_ERR_INPUT, "%s: %s%.*s: %.*s", symbol,
      answer != 0      ? ""
      : raised != NULL ? "returned 0, and raised "
                       : "returned the error ",
      why->kind.size < 80 ? (int)why->kind.size : 80, why->kind.data != NULL ? why->kind.data : "",
      why->message.size < 800 ? (int)why->message.size : 800, why->message.data != NULL ? why->message.data : "");
  if (raised != NULL) (void)r->drop(raised);
  if (answer == 0) runtime_drop(r, result);
  *result = (abi_value){.type = ABI_NONE};
  return status;
}

/* Returns the text in a result, or NULL. */
static const char *text_of(const abi_value *value, size_t *size) {
  if (value->type == ABI_SHORT_TEXT) {
    *size = value->small_size;
    return value->as.small;
  }
  if (value->type != ABI_TEXT) return NULL;
  const abi_bytes *bytes = (const abi_bytes *)((const unsigned char *)value->as.pointer + sizeof(abi_head));
  *size = bytes->size;
  return bytes->data;
}

static int32_t length_of(const json_value *list) {
  int32_t count = list != NULL && list->kind == JSON_ARRAY ? 0 : -1;
  for (const json_value *at = count == 0 ? list->child : NULL; at != NULL; at = at->next)
    ++count;
  return count;
}

/* Counts the arguments that metadata names. -1: it says nothing of them. -2: it is no JSON object. The text in
 * "type_schema" is JSON itself. It has "args", a list with the result first. Newer versions have "named_args" with a
 * list "params" instead. */
static int32_t arity_of(const char *text, size_t size) {
  json_reader *outer = json_open(), *inner = json_open();
  const json_value *root = NULL, *schema = NULL;
  assay_error unused = {""};
  int32_t count = -1;
  if (outer != NULL && (json_parse(outer, text, size, &root, &unused) != ASSAY_OK || root->kind != JSON_OBJECT))
    count = -2;
  if (count == -1 && outer != NULL && inner != NULL && root != NULL) {
    const char *of = json_text(root, "type_schema", NULL);
    if (of != NULL && json_parse(inner, of, strlen(of), &schema, &unused) == ASSAY_OK) {
      const int32_t all = length_of(json_member(schema, "args"));
      count = all > 0 ? all - 1 : length_of(json_member(json_member(schema, "named_args"), "params"));
    }
  }
  if (outer != NULL) json_close(outer);
  if (inner != NULL) json_close(inner);
  return count;
}

static assay_status check_metadata(const ffi_runtime *r, const char *symbol, int32_t count, assay_error *error) {
  char name[160];
  abi_function about = NULL;
  abi_value result;
  size_t size = 0;
  (void)snprintf(name, sizeof name, "__tvm_ffi__metadata_%s", symbol);
  if (!find(r->library, name, &about)) return ASSAY_OK;
  assay_error inner = {""};
  const assay_status status = runtime_call(r, name, about, NULL, 0, &result, &inner);
  if (status != ASSAY_OK) return assay_fail(error, status, "%s: metadata of %s: %s", r->name, symbol, inner.text);
  const char *text = text_of(&result, &size);
  const int32_t wanted = text != NULL ? arity_of(text, size) : -2;
  const int32_t type = result.type;
  runtime_drop(r, &result);
  if (wanted == -2)
    return assay_fail(error, ASSAY_ERR_INPUT,
                      "%s: metadata of %s: found %s (type %d), allowed the text of a JSON object", r->name, symbol,
                      text != NULL ? "another text" : "no text", type);
  if (wanted < 0 || wanted == count) return ASSAY_OK;
  return assay_fail(error, ASSAY_ERR_INPUT,
                    "%s: args: found %d, allowed %d: the library's metadata of %s says so; the bind file may be for "
                    "another version",
                    r->name, count, wanted, symbol);
}

assay_status runtime_find(const ffi_runtime *r, const char *symbol, int32_t count, abi_function *made,
                          assay_error *error) {
  char name[160];
  (void)snprintf(name, sizeof name, "__tvm_ffi_%s", symbol);
  if (!find(r->library, name, made))
    return assay_fail(error, ASSAY_ERR_INPUT, "%s: symbol: found no %s, allowed a function that the library exports",
                      r->name, name);
  return check_metadata(r, symbol, count, error);
}

/* ---- the allocator ----------------------------------------------------------------------------------- */

/* libtvm_ffi keeps one allocator; a process has one device at work. */
static const assay_device *giver;

typedef struct owned_tensor {
  abi_managed managed;
  const assay_device *device; /* NULL: the host's memory */
  void *memory;
  int64_t shape[2 * 16];
} owned_tensor;

static void release(abi_managed *self) {
  owned_tensor *t = self->context;
  if (t->device != NULL)
    t->device->release(t->memory);
  else
    free(t->memory);
  free(t);
}

static int allocate(abi_tensor *wanted, abi_managed **made, void *context,
                    void (*refuse)(void *context, const char *kind, const char *message)) {
  owned_tensor *t = wanted->rank >= 0 && wanted->rank <= 16 ? calloc(1, sizeof *t) : NULL;
  assay_error error = {""};
  int64_t count = 1;
  for (int32_t a = wanted->rank - 1; t != NULL && a >= 0; --a) {
    t->shape[a] = wanted->shape[a];
    t->shape[16 + a] = count;
    count *= wanted->shape[a];
  }
  const int64_t bytes = (count * wanted->dtype.bits * wanted->dtype.lanes + 7) / 8 + 1;
  if (t != NULL && wanted->device_type == ABI_CUDA) {
    t->device = giver;
    if (giver == NULL || giver->alloc(bytes, &t->memory, &error) != ASSAY_OK) t->memory = NULL;
  } else if (t != NULL) {
    t->memory = aligned_alloc(256, (size_t)(bytes + 255) / 256 * 256);
    if (t->memory != NULL) memset(t->memory, 0x7F, (size_t)bytes); /* results are written, not found */
  }
  if (t == NULL || t->memory == NULL) {
    free(t);
    refuse(context, "MemoryError", error.text[0] != '\0' ? error.text : "assay: no memory for a tensor");
    return -1;
  }
  t->managed = (abi_managed){.major = 1, .context = t, .deleter = release, .tensor = *wanted};
  t->managed.tensor.data = t->memory;
  t->managed.tensor.shape = t->shape;
  t->managed.tensor.strides = t->shape + 16;
  t->managed.tensor.byte_offset = 0;
  *made = &t->managed;
  return 0;
}

assay_status runtime_allocate_on(const ffi_runtime *r, const assay_device *device, assay_error *error) {
  giver = device;
  if (r->set_allocator(allocate, 1, NULL) == 0) return ASSAY_OK;
  return assay_fail(error, ASSAY_ERR_INTERNAL, "%s: libtvm_ffi takes no allocator", r->name);
}
