/* bind.h: a bind file: how the arguments of an exported function follow from a call of an operator (docs/doors/ffi.md).
 * Private to this folder. */
#ifndef ASSAY_CONFORMANCE_FFI_BIND_H
#define ASSAY_CONFORMANCE_FFI_BIND_H

#include <stdbool.h>
#include <stdint.h>

#include "adapt.h"
#include "assay/plugin.h"

enum { BIND_ARGS = 64, BIND_SCRATCH = 8, BIND_ONLY = 16, BIND_VALUES = 24, BIND_NAME = 64, BIND_NONE_INDEX = -1 };

typedef enum bind_kind {
  BIND_TENSOR, /* index: argument of the operator */
  BIND_PARAM,  /* index: parameter */
  BIND_DIM,    /* index: dimension */
  BIND_WHOLE,  /* constants */
  BIND_REAL,
  BIND_FLAG,
  BIND_NONE,
  BIND_WORDS,
  BIND_ADAPTER,   /* index: adapter */
  BIND_SCRATCHED, /* index: scratch buffer */
  BIND_EMPTY,     /* a tensor without elements, with the type of argument `index` */
  BIND_PLANNED    /* the result of the plan call */
} bind_kind;

typedef enum bind_cast { CAST_OWN, CAST_WHOLE, CAST_REAL, CAST_FLAG } bind_cast;

/* One argument of the exported function. */
typedef struct bind_arg {
  bind_kind kind;
  int32_t index;
  int64_t whole;
  double real;
  char words[BIND_NAME];
  /* Tensors. */
  int32_t slice;      /* this element of axis 0 alone; -1: all of it */
  int32_t columns[2]; /* these elements of the last axis, the second one excluded; 0, 0: all of them */
  int32_t instead;    /* argument that stands in where this one is absent; -1: None does */
  int32_t from;       /* argument that is copied here before the call; -1: none */
  bool base2;         /* the function takes or gives logarithms to base 2 */
  bool spare;         /* where the argument is absent, the function gets memory of its shape all the same */
  bool host;          /* adapters: in host memory */
  bind_cast cast;     /* parameters */
} bind_arg;

typedef struct bind_call {
  char symbol[128];
  bind_arg arg[BIND_ARGS];
  int32_t count;
} bind_call;

typedef struct bind_scratch {
  char name[BIND_NAME];
  int64_t bytes;
  bool host;
} bind_scratch;

typedef enum only_kind { ONLY_ARG, ONLY_PARAM, ONLY_DIM, ONLY_GROUP } only_kind;

/* The values that an argument's type, a parameter or a dimension may have. */
typedef struct bind_only {
  only_kind kind;
  int32_t index;
  double value[BIND_VALUES]; /* ONLY_ARG: assay_dtype */
  int32_t count;
} bind_only;

/* A dimension that is a multiple of `of`. */
typedef struct bind_multiple {
  int32_t dim;
  int64_t of;
} bind_multiple;

/* A bind file, read. Its texts are its own. */
typedef struct binding {
  char path[4096];
  const assay_op *op;
  char variant[BIND_NAME], why[256], claims[256], versions[BIND_NAME];
  bool simt, cuda;
  bind_call call, plan; /* plan.symbol "": none */
  bind_scratch scratch[BIND_SCRATCH];
  int32_t scratches;
  bind_only only[BIND_ONLY];
  int32_t onlys;
  int32_t needs[ASSAY_MAX_ARGS], need_count; /* optional arguments that must be present */
  uint32_t dense, alike; /* bit i: argument i has no gaps; the arguments `alike` have the same strides */
  uint32_t same_types;   /* bit i: one of the arguments that have one type */
  bind_multiple multiple[BIND_ONLY];
  int32_t multiples;
  int32_t aligned;  /* rows begin at multiples of so many bytes; 0: of their type's size */
  uint32_t ignores; /* bit i: input i is not passed, although it is present */
  bool passes_arg[ASSAY_MAX_ARGS], passes_param[ASSAY_MAX_PARAMS]; /* the function gets them, or adapters of them */
  int32_t returns; /* output that the function returns as a new tensor; -1: none */
  assay_contract contract;
  assay_sums sums; /* unit NONE: not declared */
} binding;

/* Reads a bind file. Fails with ASSAY_ERR_INPUT; the message begins with file:line:column, and names the key, what was
 * found and what is allowed. */
assay_status bind_read(const char *path, binding *made, assay_error *error);

#endif
