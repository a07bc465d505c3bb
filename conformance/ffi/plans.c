/* plans.c: see plans.h. */
#include "plans.h"

#include <stdlib.h>

enum { MOST_PLANS = 256 };
static const int64_t MOST_BYTES = (int64_t)2 << 30;

/* The plans of this thread, the last one used first. */
static _Thread_local ffi_plan *plans;

static int64_t bytes_of(const ffi_plan *p) {
  int64_t bytes = 0;
  for (int32_t i = 0; i < PLAN_BUFFERS; ++i)
    bytes += p->buffer[i].bytes;
  return bytes;
}

static void drop_buffer(const ffi_plan *p, plan_buffer *buffer) {
  if (buffer->memory != NULL && !buffer->host)
    p->device->release(buffer->memory);
  else if (buffer->pinned)
    p->device->release_host(buffer->memory);
  else
    free(buffer->memory);
  *buffer = (plan_buffer){0};
}

static void drop_plan(ffi_plan *p) {
  for (int32_t i = 0; i < PLAN_BUFFERS; ++i)
    drop_buffer(p, &p->buffer[i]);
  runtime_drop(p->runtime, &p->result);
  free(p);
}

/* Drops the oldest plans while there are too many, or they hold too much. Those that wait for their launch stay: a
 * bench plans all copies of a call before it launches the first. */
static void keep_few(void) {
  int32_t count = 0;
  int64_t bytes = 0;
  for (ffi_plan **at = &plans; *at != NULL;) {
    ffi_plan *p = *at;
    ++count;
    bytes += bytes_of(p);
    if (p == plans || (count <= MOST_PLANS && (p->waits || bytes <= MOST_BYTES))) {
      at = &p->next;
      continue;
    }
    *at = p->next;
    drop_plan(p);
  }
}

ffi_plan *plans_find(const binding *b, const ffi_runtime *r, const assay_device *device, const assay_call *call,
                     bool make) {
  for (ffi_plan **at = &plans; *at != NULL; at = &(*at)->next) {
    ffi_plan *p = *at;
    bool same = p->b == b && p->device == device;
    for (int32_t i = 0; i < call->op->arg_count && same; ++i)
      same = p->key[i] == call->arg[i].data;
    if (!same) continue;
    *at = p->next;
    p->next = plans;
    plans = p;
    return p;
  }
  ffi_plan *made = make ? calloc(1, sizeof *made) : NULL;
  if (made == NULL) return NULL;
  *made = (ffi_plan){.next = plans, .b = b, .device = device, .runtime = r};
  for (int32_t i = 0; i < call->op->arg_count; ++i)
    made->key[i] = call->arg[i].data;
  plans = made;
  keep_few();
  return made;
}

assay_status plan_room(ffi_plan *p, int32_t buffer, int64_t bytes, bool host, assay_error *error) {
  plan_buffer *at = &p->buffer[buffer];
  const int64_t wanted = bytes > 0 ? bytes : 1;
  assay_status status = ASSAY_OK;
  if (at->memory != NULL && at->bytes >= wanted && at->host == host) return ASSAY_OK;
  drop_buffer(p, at);
  /* A device has few allocations of pinned memory. An adapter is read by the host, and needs none. */
  const bool pinned = host && buffer >= PLAN_SCRATCH && p->device->alloc_host != NULL;
  if (!host)
    status = p->device->alloc(wanted, &at->memory, error);
  else if (pinned)
    status = p->device->alloc_host(wanted, &at->memory, error);
  else if ((at->memory = malloc((size_t)wanted)) == NULL)
    status = assay_fail(error, ASSAY_ERR_MEMORY, "ffi: no memory for a plan's %lld bytes", (long long)wanted);
  if (status != ASSAY_OK) return status;
  at->bytes = wanted;
  at->host = host;
  at->pinned = pinned;
  return ASSAY_OK;
}

/* ---- adapters ---------------------------------------------------------------------------------------- */

/* Copies an argument, with the gaps between its rows, into host memory that the caller frees. */
static assay_status fetch(const ffi_plan *p, const assay_tensor *t, void **made, assay_error *error) {
  int64_t last = 0;
  bool empty = false;
  for (int32_t a = 0; a < t->rank; ++a) {
    empty = empty || t->shape[a] == 0;
    last += (t->shape[a] - 1) * t->stride[a];
  }
  const int64_t bytes = empty ? 0 : (last + 1) * assay_dtype_size(t->dtype);
  *made = malloc((size_t)bytes + 1);
  if (*made == NULL) return assay_fail(error, ASSAY_ERR_MEMORY, "ffi: no memory for %lld bytes", (long long)bytes);
  return bytes > 0 ? p->device->download(*made, t->data, bytes, error) : ASSAY_OK;
}

static bool is_needed(const ffi_plan *p, const char *name) {
  const bind_call *const calls[] = {&p->b->call, &p->b->plan};
  for (int c = 0; c < 2; ++c)
    for (int32_t i = 0; i < calls[c]->count; ++i) {
      const bind_arg *a = &calls[c]->arg[i];
      if (a->kind == BIND_ADAPTER && a->index < ADAPT_COS_SIN && adapt_uses(a->index, name)) return true;
    }
  return false;
}

/* Fills one adapter in host memory, and brings it to where the function reads it. Places that are not used hold 0. */
static assay_status fill_adapter(ffi_plan *p, const assay_call *call, const bind_arg *a, int32_t buffer,
                                 void *const *host, assay_error *error) {
  const int64_t bytes = adapt_room(a->index, call) * (int64_t)sizeof(int32_t);
  int32_t *made = calloc((size_t)bytes + sizeof *made, 1);
  if (made == NULL) return assay_fail(error, ASSAY_ERR_MEMORY, "ffi: no memory for %lld bytes", (long long)bytes);
  assay_status status = plan_room(p, buffer, bytes, a->host, error);
  if (status == ASSAY_OK) status = adapt_fill(a->index, call, host, made, &p->buffer[buffer].used, error);
  if (status == ASSAY_OK && a->host) memcpy(p->buffer[buffer].memory, made, (size_t)bytes);
  if (status == ASSAY_OK && !a->host && bytes > 0)
    status = p->device->upload(p->buffer[buffer].memory, made, bytes, error);
  if (status == ASSAY_OK) status = p->device->synchronize(error); /* before `made` goes */
  free(made);
  return status;
}

/* Returns the bytes of a tensor without gaps. */
static int64_t dense_bytes(const assay_tensor *t) {
  int64_t count = assay_dtype_size(t->dtype);
  for (int32_t a = 0; a < t->rank; ++a)
    count *= t->shape[a];
  return count;
}

/* Takes the buffers of one call's arguments. */
static assay_status fill_call(ffi_plan *p, const assay_call *call, const bind_call *of, int32_t first,
                              void *const *host, assay_error *error) {
  assay_status status = ASSAY_OK;
  for (int32_t i = 0; i < of->count && status == ASSAY_OK; ++i) {
    const bind_arg *a = &of->arg[i];
    const assay_tensor *t = a->index >= 0 && a->index < call->op->arg_count ? &call->arg[a->index] : NULL;
    const bool input = a->kind == BIND_TENSOR && call->op->args[a->index].role == ASSAY_IN;
    if (a->kind == BIND_ADAPTER && a->index < ADAPT_COS_SIN)
      status = fill_adapter(p, call, a, first + i, host, error);
    else if (a->kind == BIND_ADAPTER && a->index == ADAPT_COS_SIN)
      status = plan_room(p, first + i, 2 * dense_bytes(assay_find_arg(call, "cos")), false, error);
    else if (a->kind == BIND_TENSOR && a->base2 && input && t->data != NULL)
      status = plan_room(p, first + i, dense_bytes(t), false, error);
    else if (a->kind == BIND_TENSOR && a->spare && t->data == NULL) {
      assay_tensor shape;
      status = adapt_shape(call, a->index, &shape, error);
      if (status == ASSAY_OK) status = plan_room(p, first + i, dense_bytes(&shape), false, error);
    }
  }
  return status;
}

assay_status plan_fill(ffi_plan *p, const assay_call *call, assay_error *error) {
  void *host[ASSAY_MAX_ARGS] = {NULL};
  assay_status status = ASSAY_OK;
  bool waits = false;
  for (int32_t i = 0; i < call->op->arg_count && status == ASSAY_OK; ++i) {
    if (call->arg[i].data == NULL || !is_needed(p, call->op->args[i].name)) continue;
    if (strcmp(call->op->args[i].name, "q") == 0) continue; /* its shape is enough */
    status = fetch(p, &call->arg[i], &host[i], error);
    waits = true;
  }
  if (status == ASSAY_OK && waits) status = p->device->synchronize(error);
  if (status == ASSAY_OK) status = fill_call(p, call, &p->b->call, PLAN_OF_CALL, host, error);
  if (status == ASSAY_OK) status = fill_call(p, call, &p->b->plan, PLAN_OF_PLAN, host, error);
  for (int32_t s = 0; s < p->b->scratches && status == ASSAY_OK; ++s)
    status = plan_room(p, PLAN_SCRATCH + s, p->b->scratch[s].bytes, p->b->scratch[s].host, error);
  for (int32_t i = 0; i < ASSAY_MAX_ARGS; ++i)
    free(host[i]);
  return status;
}
