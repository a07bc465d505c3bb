/* around.c: see around.h. */
#include "around.h"

static const double LN_2 = 0.693147180559945309417, LOG2_E = 1.442695040888963407360;

static assay_status copy_rows(const ffi_plan *p, void *stream, const assay_device_rows *rows, assay_error *error) {
  if (rows->width == 0 || rows->count == 0) return ASSAY_OK;
  if (p->device->door != NULL) return p->device->door->copy_rows(stream, rows, error);
  for (int64_t r = 0; r < rows->count; ++r)
    memcpy((unsigned char *)rows->to + r * rows->to_pitch, (const unsigned char *)rows->from + r * rows->from_pitch,
           (size_t)rows->width);
  return ASSAY_OK;
}

/* Multiplies in f64 and rounds once. */
static assay_status scale(const ffi_plan *p, void *stream, float *to, const float *from, int64_t count, double factor,
                          assay_error *error) {
  if (count == 0) return ASSAY_OK;
  if (p->device->door != NULL) return p->device->door->scale(stream, to, from, count, factor, error);
  for (int64_t i = 0; i < count; ++i)
    to[i] = (float)(from[i] * factor);
  return ASSAY_OK;
}

/* Returns the elements of a row; -1 where the axes after the first are not dense. */
static int64_t row_elements(int32_t rank, const int64_t *shape, const int64_t *stride) {
  int64_t count = 1;
  for (int32_t a = rank - 1; a > 0; --a) {
    if (shape[a] > 1 && stride[a] != count) return -1;
    count *= shape[a];
  }
  return count;
}

static int64_t elements(const assay_tensor *t) {
  int64_t count = 1;
  for (int32_t a = 0; a < t->rank; ++a)
    count *= t->shape[a];
  return count;
}

static bool is_dense(const assay_tensor *t) {
  const int64_t row = row_elements(t->rank, t->shape, t->stride);
  return row >= 0 && (t->rank == 0 || t->shape[0] <= 1 || t->stride[0] == row);
}

/* Copies one tensor of the operator to another of the same shape, row by row. */
static assay_status copy_tensor(const ffi_plan *p, void *stream, const assay_tensor *to, const assay_tensor *from,
                                const char *name, assay_error *error) {
  const int64_t size = assay_dtype_size(to->dtype), row = row_elements(to->rank, to->shape, to->stride);
  bool same = to->rank == from->rank && to->dtype == from->dtype && row >= 0 && to->rank > 0 &&
              row == row_elements(from->rank, from->shape, from->stride);
  for (int32_t a = 0; a < to->rank && same; ++a)
    same = to->shape[a] == from->shape[a];
  if (!same)
    return assay_fail(error, ASSAY_ERR_INTERNAL, "%s: cannot be copied: another type or shape, or gaps inside rows",
                      name);
  const assay_device_rows rows = {to->data,   to->stride[0] * size, from->data, from->stride[0] * size,
                                  row * size, to->shape[0]};
  return copy_rows(p, stream, &rows, error);
}

static assay_status join_cos_sin(const ffi_plan *p, const assay_call *call, int32_t buffer, void *stream,
                                 assay_error *error) {
  assay_status status = ASSAY_OK;
  for (int side = 0; side < 2 && status == ASSAY_OK; ++side) {
    const assay_tensor *t = assay_find_arg(call, side == 0 ? "cos" : "sin");
    const int64_t half = t->shape[1] * (int64_t)sizeof(float);
    const assay_device_rows rows = {(unsigned char *)p->buffer[buffer].memory + side * half,
                                    2 * half,
                                    t->data,
                                    t->stride[0] * (int64_t)sizeof(float),
                                    half,
                                    t->shape[0]};
    status = copy_rows(p, stream, &rows, error);
  }
  return status;
}

assay_status around_before(const ffi_plan *p, const assay_call *call, void *stream, assay_error *error) {
  assay_status status = ASSAY_OK;
  for (int32_t i = 0; i < p->b->call.count && status == ASSAY_OK; ++i) {
    const bind_arg *a = &p->b->call.arg[i];
    if (a->kind == BIND_ADAPTER && a->index == ADAPT_COS_SIN) status = join_cos_sin(p, call, i, stream, error);
    if (a->kind != BIND_TENSOR) continue;
    const assay_tensor *t = &call->arg[a->index];
    if (t->data == NULL) continue;
    if (a->from >= 0 && call->arg[a->from].data != NULL)
      status = copy_tensor(p, stream, t, &call->arg[a->from], call->op->args[a->index].name, error);
    if (!a->base2 || call->op->args[a->index].role != ASSAY_IN) continue;
    if (!is_dense(t))
      return assay_fail(error, ASSAY_ERR_UNSUPPORTED, "%s: found gaps, allowed none: its base changes",
                        call->op->args[a->index].name);
    status = scale(p, stream, p->buffer[i].memory, t->data, elements(t), LOG2_E, error);
  }
  return status;
}

/* Refuses a tensor of another type, device, number of axes or shape than the output has, and one without memory. */
static assay_status check_returned(const ffi_plan *p, const abi_tensor *t, const assay_tensor *to, const char *name,
                                   assay_error *error) {
  const abi_dtype wanted = abi_dtype_of(to->dtype);
  const int32_t device = strcmp(p->device->name, "cuda") == 0 ? ABI_CUDA : ABI_CPU;
  if (t->dtype.code != wanted.code || t->dtype.bits != wanted.bits || t->dtype.lanes != wanted.lanes)
    return assay_fail(error, ASSAY_ERR_INPUT,
                      "%s: dtype: found a returned tensor of code %d, %d bits, %d lanes, allowed %d, %d, %d: %s", name,
                      t->dtype.code, t->dtype.bits, t->dtype.lanes, wanted.code, wanted.bits, wanted.lanes,
                      assay_dtype_name(to->dtype));
  if (t->device_type != device)
    return assay_fail(error, ASSAY_ERR_INPUT, "%s: device: found a returned tensor of kind %d, allowed %d", name,
                      t->device_type, device);
  if (t->rank != to->rank || t->shape == NULL)
    return assay_fail(error, ASSAY_ERR_INPUT, "%s: shape: found a returned tensor of %d axes%s, allowed %d", name,
                      t->rank, t->shape == NULL ? " without lengths" : "", to->rank);
  for (int32_t a = 0; a < t->rank; ++a)
    if (t->shape[a] != to->shape[a])
      return assay_fail(error, ASSAY_ERR_INPUT, "%s: shape: found %lld returned on axis %d, allowed %lld", name,
                        (long long)t->shape[a], a, (long long)to->shape[a]);
  if (t->data == NULL && elements(to) > 0)
    return assay_fail(error, ASSAY_ERR_INPUT, "%s: found a returned tensor without memory", name);
  return ASSAY_OK;
}

/* Copies a returned tensor to the output that the bind file names. */
static assay_status copy_returned(const ffi_plan *p, const assay_call *call, const abi_value *result, void *stream,
                                  assay_error *error) {
  const assay_tensor *to = &call->arg[p->b->returns];
  const char *name = call->op->args[p->b->returns].name;
  if (to->data == NULL) return ASSAY_OK;
  if (result->type != ABI_TENSOR || result->as.pointer == NULL)
    return assay_fail(error, ASSAY_ERR_INPUT, "%s: found no returned tensor (type %d), allowed one: returns: %s",
                      p->b->call.symbol, result->as.pointer == NULL ? ABI_NONE : result->type, name);
  const abi_tensor *t = (const abi_tensor *)((const unsigned char *)result->as.pointer + sizeof(abi_head));
  const assay_status fits = check_returned(p, t, to, name, error);
  if (fits != ASSAY_OK) return fits;
  assay_tensor from = {.data = (unsigned char *)t->data + t->byte_offset, .dtype = to->dtype, .rank = t->rank};
  for (int32_t a = 0; a < t->rank; ++a) {
    from.shape[a] = t->shape[a];
  }
  /* DLPack: a tensor without strides has no gaps. */
  for (int32_t a = t->rank - 1, count = 0; a >= 0; --a)
    from.stride[a] = t->strides != NULL ? t->strides[a] : count++ == 0 ? 1 : from.stride[a + 1] * from.shape[a + 1];
  return copy_tensor(p, stream, to, &from, name, error);
}

assay_status around_after(const ffi_plan *p, const assay_call *call, const abi_value *result, void *stream,
                          assay_error *error) {
  assay_status status = ASSAY_OK;
  for (int32_t i = 0; i < p->b->call.count && status == ASSAY_OK; ++i) {
    const bind_arg *a = &p->b->call.arg[i];
    const assay_tensor *t = a->kind == BIND_TENSOR ? &call->arg[a->index] : NULL;
    if (t == NULL || !a->base2 || t->data == NULL || call->op->args[a->index].role == ASSAY_IN) continue;
    if (!is_dense(t))
      return assay_fail(error, ASSAY_ERR_UNSUPPORTED, "%s: found gaps, allowed none: its base changes",
                        call->op->args[a->index].name);
    status = scale(p, stream, t->data, t->data, elements(t), LN_2, error);
  }
  if (status == ASSAY_OK && p->b->returns >= 0) status = copy_returned(p, call, result, stream, error);
  return status;
}
