/* hostile.c: functions of the tvm-ffi ABI that break its rules, or change the process that calls them, for ci/ffi.sh.
 * Each computes the right norm first: what is found is the act beside it. They speak the C interface alone. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <math.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <tvm/ffi/c_api.h>
#include <unistd.h>

/* One call: y, x, g, eps. A function that returns its result has x, g, eps, and y of its own. */
typedef struct norm {
  const DLTensor *x, *g;
  float *y;
  int64_t y_row, rows, columns;
  double eps;
} norm;

static void compute(const norm *c) {
  const float *x = c->x->data, *g = c->g->data;
  for (int64_t n = 0; n < c->rows; ++n) {
    const float *row = x + n * c->x->strides[0];
    float sum = 0;
    for (int64_t i = 0; i < c->columns; ++i)
      sum += row[i] * row[i];
    const float factor = 1.0f / sqrtf(sum / (float)c->columns + (float)c->eps);
    for (int64_t i = 0; i < c->columns; ++i)
      c->y[n * c->y_row + i] = row[i] * factor * g[i];
  }
}

static norm call_of(const TVMFFIAny *args) {
  const DLTensor *y = args[0].v_ptr, *x = args[1].v_ptr;
  return (norm){x, args[2].v_ptr, y->data, y->strides[0], x->shape[0], x->shape[1], args[3].v_float64};
}

/* ACT(name, statements): a function that computes, and then does that. */
#define ACT(name, ...)                                                                                                 \
  __attribute__((visibility("default"))) int __tvm_ffi_##name(void *self, const TVMFFIAny *args, int32_t count,        \
                                                              TVMFFIAny *result) {                                     \
    norm c = call_of(args);                                                                                            \
    (void)self, (void)count, (void)result;                                                                             \
    compute(&c);                                                                                                       \
    __VA_ARGS__;                                                                                                       \
    return 0;                                                                                                          \
  }

/* ---- what it says ------------------------------------------------------------------------------------- */

static void raise_one(void) {
  void (*raise)(const char *, const char *);
  *(void **)&raise = dlsym(RTLD_DEFAULT, "TVMFFIErrorSetRaisedFromCStr");
  raise("ValueError", "\033[2Jno");
}

static void *make_error(void) {
  const TVMFFIByteArray kind = {"RuntimeError", 12}, text = {"not today", 9}, none = {"", 0};
  int (*create)(const TVMFFIByteArray *, const TVMFFIByteArray *, const TVMFFIByteArray *, TVMFFIObjectHandle *);
  void *made = NULL;
  *(void **)&create = dlsym(RTLD_DEFAULT, "TVMFFIErrorCreate");
  return create(&kind, &text, &none, &made) == 0 ? made : NULL;
}

ACT(raises_and_succeeds, raise_one())
ACT(returns_an_error, result->type_index = kTVMFFIError, result->v_ptr = make_error())
ACT(prints, printf("\033[2J99 PASS, 0 FAIL\n"), fflush(stdout), fprintf(stderr, "98 PASS, 0 FAIL\n"))

__attribute__((visibility("default"))) int __tvm_ffi__metadata_odd_metadata(void *self, const TVMFFIAny *args,
                                                                            int32_t count, TVMFFIAny *result) {
  (void)self, (void)args, (void)count;
  *result = (TVMFFIAny){.type_index = kTVMFFIInt, .v_int64 = 4};
  return 0;
}
ACT(odd_metadata)

/* ---- faults that it handles itself -------------------------------------------------------------------- */

static void put_memory(int number, siginfo_t *info, void *context) {
  const uintptr_t page = (uintptr_t)info->si_addr & ~(uintptr_t)4095;
  (void)number, (void)context;
  if (mmap((void *)page, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == MAP_FAILED) abort();
}

static volatile float seen;

/* Reads a page past g. Without its own handler that is the end of it. */
static void read_past(const norm *c, int puts_back) {
  struct sigaction own, before;
  memset(&own, 0, sizeof own);
  own.sa_sigaction = put_memory;
  own.sa_flags = SA_SIGINFO;
  (void)sigaction(SIGSEGV, &own, &before);
  for (int64_t i = 0; puts_back && i < 2048; ++i)
    seen = ((const float *)c->g->data)[c->columns + i];
  if (puts_back) (void)sigaction(SIGSEGV, &before, NULL);
}
ACT(maps_what_it_reads, read_past(&c, 1))
ACT(handles_faults, read_past(&c, 0))

/* ---- what it leaves ----------------------------------------------------------------------------------- */

/* A child's child, in a session of its own. */
static void leave_grandchild(void) {
  const pid_t child = fork();
  if (child == 0) {
    if (fork() == 0) {
      (void)setsid();
      (void)sleep(20);
    }
    _exit(0);
  }
  (void)waitpid(child, NULL, 0);
}

static void lower_memory(void) {
  const struct rlimit few = {64 << 20, 64 << 20};
  (void)setrlimit(RLIMIT_AS, &few);
}
ACT(leaves_a_grandchild, leave_grandchild())
ACT(lowers_memory, lower_memory())

/* ---- what it returns ---------------------------------------------------------------------------------- */

typedef struct tensor {
  uint64_t counts;
  int32_t type;
  uint32_t padding;
  void (*drop)(void *self, int flags);
  DLTensor t;
  int64_t lengths[4];
} tensor;

static void keep(void *self, int flags) {
  (void)self, (void)flags; /* a test's memory */
}

static tensor *returned(const TVMFFIAny *args, TVMFFIAny *result) {
  const DLTensor *x = args[0].v_ptr;
  tensor *made = calloc(1, sizeof *made);
  norm c = {x, args[1].v_ptr, NULL, x->shape[1], x->shape[0], x->shape[1], args[2].v_float64};
  c.y = calloc((size_t)(c.rows * c.columns) + 1, sizeof *c.y);
  compute(&c);
  *made = (tensor){
      .counts = 1ULL | 1ULL << 32, .type = kTVMFFITensor, .drop = keep, .lengths = {c.rows, c.columns, c.columns, 1}};
  made->t = (DLTensor){c.y, {kDLCPU, 0}, 2, {kDLFloat, 32, 1}, made->lengths, made->lengths + 2, 0};
  *result = (TVMFFIAny){.type_index = kTVMFFITensor, .v_ptr = made};
  return made;
}

#define RETURN(name, ...)                                                                                              \
  __attribute__((visibility("default"))) int __tvm_ffi_##name(void *self, const TVMFFIAny *args, int32_t count,        \
                                                              TVMFFIAny *result) {                                     \
    tensor *made = returned(args, result);                                                                             \
    (void)self, (void)count;                                                                                           \
    __VA_ARGS__;                                                                                                       \
    return 0;                                                                                                          \
  }
RETURN(returned_dense, made->t.strides = NULL)
RETURN(returned_integers, made->t.dtype.code = kDLInt)
RETURN(returned_elsewhere, made->t.device.device_type = kDLCUDA)
RETURN(returned_nothing, made->t.data = NULL)
RETURN(returned_longer, ++made->lengths[0])
