/* plans.h: the host's work for a call, kept until the next plan of the same addresses. It consists of adapters'
 * tensors, scratch buffers and the result of the plan call. Private to this folder. */
#ifndef ASSAY_CONFORMANCE_FFI_PLANS_H
#define ASSAY_CONFORMANCE_FFI_PLANS_H

#include "bind.h"
#include "runtime.h"

/* Buffers of a plan: one for each argument of the call, of the plan call, and for each scratch buffer. */
enum {
  PLAN_OF_CALL = 0,
  PLAN_OF_PLAN = BIND_ARGS,
  PLAN_SCRATCH = 2 * BIND_ARGS,
  PLAN_BUFFERS = PLAN_SCRATCH + BIND_SCRATCH
};

typedef struct plan_buffer {
  void *memory;
  int64_t bytes, used; /* used: numbers of an adapter */
  bool host, pinned;   /* pinned: from the device's own allocator */
} plan_buffer;

typedef struct ffi_plan {
  struct ffi_plan *next;
  const binding *b;
  const assay_device *device;
  const ffi_runtime *runtime;
  const void *key[ASSAY_MAX_ARGS]; /* addresses of the call */
  plan_buffer buffer[PLAN_BUFFERS];
  abi_value result; /* result of the plan call */
  bool waits;       /* planned, and not launched since */
} ffi_plan;

/* Finds the plan of a call in this thread. `make`: an unknown one is made. The oldest ones that were launched go where
 * there are too many, or they hold too much. Returns NULL if there is none, or no memory. */
ffi_plan *plans_find(const binding *b, const ffi_runtime *r, const assay_device *device, const assay_call *call,
                     bool make);
/* Makes a buffer at least that long. Its address stays as long as the size does. */
assay_status plan_room(ffi_plan *p, int32_t buffer, int64_t bytes, bool host, assay_error *error);
/* Takes all buffers that the arguments need, and fills the adapters. It waits for the device. */
assay_status plan_fill(ffi_plan *p, const assay_call *call, assay_error *error);

#endif
