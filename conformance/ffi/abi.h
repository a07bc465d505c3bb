/* abi.h: the C interface of tvm-ffi, as far as the door uses it, in declarations of our own. The layouts are those of
 * tvm-ffi 0.1 and DLPack 1; tvm-ffi keeps them stable. Private to this folder. */
#ifndef ASSAY_CONFORMANCE_FFI_ABI_H
#define ASSAY_CONFORMANCE_FFI_ABI_H

#include <stddef.h>
#include <stdint.h>

/* Kinds of abi_value. Values from ABI_OBJECT on are counted objects. */
enum {
  ABI_NONE = 0,
  ABI_INT = 1,
  ABI_BOOL = 2,
  ABI_FLOAT = 3,
  ABI_DL_TENSOR = 7,
  ABI_RAW_TEXT = 8,
  ABI_SHORT_TEXT = 11, /* up to 7 bytes, in the value itself */
  ABI_OBJECT = 64,
  ABI_TEXT = 65,
  ABI_ERROR = 67,
  ABI_TENSOR = 70
};

/* Kinds of devices and of numbers, as DLPack numbers them. */
enum { ABI_CPU = 1, ABI_CUDA = 2 };
enum {
  ABI_CODE_INT = 0,
  ABI_CODE_UINT = 1,
  ABI_CODE_FLOAT = 2,
  ABI_CODE_BFLOAT = 4,
  ABI_CODE_E4M3FN = 10,
  ABI_CODE_E5M2 = 12
};

typedef struct abi_dtype {
  uint8_t code, bits;
  uint16_t lanes;
} abi_dtype;

typedef struct abi_tensor {
  void *data;
  int32_t device_type, device_id;
  int32_t rank;
  abi_dtype dtype;
  int64_t *shape, *strides; /* in elements */
  uint64_t byte_offset;
} abi_tensor;

/* An argument or a result. */
typedef struct abi_value {
  int32_t type;
  uint32_t small_size; /* bytes of a short text; else 0 */
  union {
    int64_t whole;
    double real;
    void *pointer;
    const char *text;
    char small[8];
  } as;
} abi_value;

/* Every counted object begins with this head; its contents follow. */
typedef struct abi_head {
  uint64_t counts;
  int32_t type;
  uint32_t padding;
  void (*deleter)(void *self, int flags);
} abi_head;

typedef struct abi_bytes {
  const char *data;
  size_t size;
} abi_bytes;

/* The contents of an error, as far as they are read. */
typedef struct abi_error {
  abi_bytes kind, message;
} abi_error;

/* A tensor with an owner. */
typedef struct abi_managed {
  uint32_t major, minor; /* DLPack's version */
  void *context;
  void (*deleter)(struct abi_managed *self);
  uint64_t flags;
  abi_tensor tensor;
} abi_managed;

/* An exported function. Returns 0, or -1 after raising an error. */
typedef int (*abi_function)(void *self, const abi_value *args, int32_t count, abi_value *result);
/* An allocator for tensors. Returns 0. Returns -1 after a call of `refuse`. */
typedef int (*abi_allocator)(abi_tensor *prototype, abi_managed **made, void *context,
                             void (*refuse)(void *context, const char *kind, const char *message));

_Static_assert(sizeof(abi_value) == 16 && sizeof(abi_head) == 24 && sizeof(abi_tensor) == 48, "layouts of tvm-ffi");
_Static_assert(offsetof(abi_managed, tensor) == 32, "layout of DLPack");

#endif
