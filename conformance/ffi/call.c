/* call.c: see call.h. */
#include "call.h"

#include "around.h"

/* The arguments of one call, with the memory that their tensors need. */
typedef struct staged {
  abi_value value[BIND_ARGS];
  abi_tensor tensor[BIND_ARGS];
  int64_t shape[BIND_ARGS][ASSAY_MAX_RANK], stride[BIND_ARGS][ASSAY_MAX_RANK];
} staged;

/* ---- what the bind file covers ----------------------------------------------------------------------- */

static assay_status check_only(const binding *b, const bind_only *only, const assay_call *call, assay_error *error) {
  const assay_op *op = b->op;
  const char *name = only->kind == ONLY_ARG     ? op->args[only->index].name
                     : only->kind == ONLY_PARAM ? op->params[only->index].name
                     : only->kind == ONLY_DIM   ? op->dims[only->index].name
                                                : "group";
  double found = only->kind == ONLY_ARG ? (double)call->arg[only->index].dtype : 0;
  char allowed[256] = "";
  size_t used = 0;
  if (only->kind == ONLY_ARG && call->arg[only->index].data == NULL) return ASSAY_OK;
  if (only->kind == ONLY_PARAM) found = call->param[only->index];
  if (only->kind == ONLY_DIM || only->kind == ONLY_GROUP) found = (double)adapt_dim(call, name);
  for (int32_t v = 0; v < only->count; ++v) {
    if (only->value[v] == found) return ASSAY_OK;
    if (used < sizeof allowed && only->kind == ONLY_ARG)
      used += (size_t)snprintf(allowed + used, sizeof allowed - used, "%s%s", v > 0 ? ", " : "",
                               assay_dtype_name((assay_dtype)only->value[v]));
    else if (used < sizeof allowed)
      used += (size_t)snprintf(allowed + used, sizeof allowed - used, "%s%g", v > 0 ? ", " : "", only->value[v]);
  }
  if (only->kind == ONLY_ARG)
    return assay_fail(error, ASSAY_ERR_UNSUPPORTED, "%s: found %s, allowed %s by the bind file", name,
                      assay_dtype_name(call->arg[only->index].dtype), allowed);
  return assay_fail(error, ASSAY_ERR_UNSUPPORTED, "%s: found %g, allowed %s by the bind file", name, found, allowed);
}

/* A parameter that the function does not get has its usual value, or one that `only` allows. */
static assay_status check_params(const ffi_function *f, const assay_call *call, assay_error *error) {
  const binding *b = f->b;
  for (int32_t i = 0; i < b->op->param_count; ++i) {
    bool known = f->b->passes_param[i];
    for (int32_t o = 0; o < b->onlys; ++o)
      known = known || (b->only[o].kind == ONLY_PARAM && b->only[o].index == i);
    if (!known && call->param[i] != b->op->params[i].fallback)
      return assay_fail(error, ASSAY_ERR_UNSUPPORTED, "%s: found %g, allowed %g: the bind file does not pass it",
                        b->op->params[i].name, call->param[i], b->op->params[i].fallback);
  }
  return ASSAY_OK;
}

static assay_status check_args(const ffi_function *f, const assay_call *call, assay_error *error) {
  const binding *b = f->b;
  for (int32_t i = 0; i < b->op->arg_count; ++i)
    if (call->arg[i].data != NULL && !b->passes_arg[i] && (b->ignores >> i & 1) == 0)
      return assay_fail(error, ASSAY_ERR_UNSUPPORTED,
                        "%s: found a tensor, allowed none: the bind file does not pass it", b->op->args[i].name);
  for (int32_t n = 0; n < b->need_count; ++n)
    if (call->arg[b->needs[n]].data == NULL)
      return assay_fail(error, ASSAY_ERR_UNSUPPORTED, "%s: found none, allowed a tensor: the bind file needs it",
                        b->op->args[b->needs[n]].name);
  for (int32_t i = 0; i < b->call.count; ++i) {
    const bind_arg *a = &b->call.arg[i];
    double unused = 0;
    if (a->kind == BIND_ADAPTER && a->index >= ADAPT_SCALARS) {
      const assay_status status = adapt_scalar(a->index, call, &unused, error);
      if (status != ASSAY_OK) return status;
    }
    if (a->kind == BIND_TENSOR && a->slice >= 0 && call->arg[a->index].data != NULL &&
        a->slice >= call->arg[a->index].shape[0])
      return assay_fail(error, ASSAY_ERR_UNSUPPORTED, "%s: found %lld along its first axis, allowed more than %d",
                        b->op->args[a->index].name, (long long)call->arg[a->index].shape[0], a->slice);
    const assay_tensor *t = a->kind == BIND_TENSOR ? &call->arg[a->index] : NULL;
    if (t != NULL && t->data != NULL && a->columns[1] > 0 && a->slice >= 0 && t->rank < 2)
      return assay_fail(error, ASSAY_ERR_UNSUPPORTED,
                        "%s: found %d axes, allowed 2 and more: slice takes the first, %s", b->op->args[a->index].name,
                        t->rank, "columns are of the last");
    if (t != NULL && t->data != NULL && a->columns[1] > 0 && (t->rank == 0 || a->columns[1] > t->shape[t->rank - 1]))
      return assay_fail(error, ASSAY_ERR_UNSUPPORTED, "%s: found %lld along its last axis, allowed %d and more",
                        b->op->args[a->index].name, (long long)(t->rank > 0 ? t->shape[t->rank - 1] : 0),
                        a->columns[1]);
  }
  return ASSAY_OK;
}

static bool has_gaps(const assay_tensor *t) {
  int64_t count = 1;
  for (int32_t a = t->rank - 1; a >= 0; --a) {
    if (t->shape[a] > 1 && t->stride[a] != count) return true;
    count *= t->shape[a];
  }
  return false;
}

/* Tells whether rows, and what else has a stride of its own, lie at multiples of `aligned` bytes. Rows that are not as
 * long as that need multiples of the largest power of two in their length. */
static bool is_aligned(const assay_tensor *t, int64_t aligned) {
  const int64_t size = assay_dtype_size(t->dtype), row = t->rank > 0 ? t->shape[t->rank - 1] * size : 0;
  const int64_t power = row & -row, wanted = power < aligned ? power : aligned;
  for (int32_t a = 0; a + 1 < t->rank && wanted > 0; ++a)
    if (t->shape[a] > 1 && t->stride[a] * size % wanted != 0) return false;
  return true;
}

static assay_status check_strides(const binding *b, const assay_call *call, assay_error *error) {
  const assay_tensor *first = NULL;
  for (int32_t i = 0; i < b->op->arg_count; ++i) {
    const assay_tensor *t = &call->arg[i];
    if (t->data == NULL) continue;
    if ((b->dense >> i & 1) != 0 && has_gaps(t))
      return assay_fail(error, ASSAY_ERR_UNSUPPORTED, "%s: found gaps, allowed none by the bind file",
                        b->op->args[i].name);
    if (b->aligned > 0 && b->passes_arg[i] && !is_aligned(t, b->aligned))
      return assay_fail(error, ASSAY_ERR_UNSUPPORTED,
                        "%s: found strides that are no multiples of %d bytes, allowed such", b->op->args[i].name,
                        b->aligned);
    if ((b->alike >> i & 1) == 0) continue;
    if (first != NULL && memcmp(first->stride, t->stride, (size_t)t->rank * sizeof t->stride[0]) != 0)
      return assay_fail(error, ASSAY_ERR_UNSUPPORTED, "%s: found strides of its own, allowed the same by the bind file",
                        b->op->args[i].name);
    first = t;
  }
  return ASSAY_OK;
}

static assay_status check_sizes(const binding *b, const assay_call *call, assay_error *error) {
  const assay_tensor *first = NULL;
  for (int32_t m = 0; m < b->multiples; ++m) {
    const char *name = b->op->dims[b->multiple[m].dim].name;
    const int64_t found = adapt_dim(call, name);
    if (found % b->multiple[m].of != 0)
      return assay_fail(error, ASSAY_ERR_UNSUPPORTED, "%s: found %lld, allowed multiples of %lld by the bind file",
                        name, (long long)found, (long long)b->multiple[m].of);
  }
  for (int32_t i = 0; i < b->op->arg_count; ++i) {
    const assay_tensor *t = &call->arg[i];
    if ((b->same_types >> i & 1) == 0 || t->data == NULL) continue;
    if (first != NULL && first->dtype != t->dtype)
      return assay_fail(error, ASSAY_ERR_UNSUPPORTED, "%s: found %s, allowed %s: the bind file wants one type",
                        b->op->args[i].name, assay_dtype_name(t->dtype), assay_dtype_name(first->dtype));
    if (first == NULL) first = t;
  }
  return ASSAY_OK;
}

/* Refuses lengths below 0 by the argument's name; the operator's own check may name the dimension. */
static assay_status check_lengths(const assay_call *call, assay_error *error) {
  for (int32_t i = 0; i < call->op->arg_count; ++i)
    for (int32_t a = 0; call->arg[i].data != NULL && a < call->arg[i].rank && a < ASSAY_MAX_RANK; ++a)
      if (call->arg[i].shape[a] < 0)
        return assay_fail(error, ASSAY_ERR_INPUT, "%s: shape: found %lld on axis %d, allowed 0 and more",
                          call->op->args[i].name, (long long)call->arg[i].shape[a], a);
  return ASSAY_OK;
}

assay_status call_supports(const ffi_function *f, const assay_call *call, assay_error *error) {
  assay_status status = check_lengths(call, error);
  if (status == ASSAY_OK) status = f->b->op->check(call, error);
  for (int32_t o = 0; o < f->b->onlys && status == ASSAY_OK; ++o)
    status = check_only(f->b, &f->b->only[o], call, error);
  if (status == ASSAY_OK) status = check_sizes(f->b, call, error);
  if (status == ASSAY_OK) status = check_params(f, call, error);
  if (status == ASSAY_OK) status = check_args(f, call, error);
  if (status == ASSAY_OK) status = check_strides(f->b, call, error);
  return status;
}

/* ---- arguments --------------------------------------------------------------------------------------- */

static bool is_cuda(const assay_device *device) {
  return strcmp(device->name, "cuda") == 0;
}

/* Makes argument i a tensor. An axis of one element gets the stride that it has in a tensor without gaps. Any stride
 * is right there, but functions look at it. */
static void put_tensor(staged *s, int32_t i, const assay_tensor *t, abi_dtype dtype, int32_t device_type) {
  int64_t dense = 1;
  for (int32_t a = t->rank - 1; a >= 0; --a) {
    s->shape[i][a] = t->shape[a];
    s->stride[i][a] = t->shape[a] > 1 ? t->stride[a] : dense;
    dense = s->stride[i][a] * (t->shape[a] > 0 ? t->shape[a] : 1);
  }
  s->tensor[i] = (abi_tensor){.data = t->data,
                              .device_type = device_type,
                              .rank = t->rank,
                              .dtype = dtype,
                              .shape = s->shape[i],
                              .strides = s->stride[i]};
  s->value[i] = (abi_value){.type = ABI_DL_TENSOR, .as.pointer = &s->tensor[i]};
}

/* Makes argument i a vector of that many elements. */
static void put_vector(staged *s, int32_t i, void *data, int64_t count, abi_dtype dtype, int32_t device_type) {
  const assay_tensor t = {.data = data, .rank = 1, .shape = {count}, .stride = {1}};
  put_tensor(s, i, &t, dtype, device_type);
}

static void put_number(staged *s, int32_t i, bind_cast cast, double number) {
  if (cast == CAST_REAL)
    s->value[i] = (abi_value){.type = ABI_FLOAT, .as.real = number};
  else
    s->value[i] = (abi_value){.type = cast == CAST_FLAG ? ABI_BOOL : ABI_INT, .as.whole = (int64_t)number};
}

static void put_param(staged *s, int32_t i, const bind_arg *a, const assay_call *call) {
  const assay_kind kind = call->op->params[a->index].kind;
  const bind_cast own = kind == ASSAY_REAL ? CAST_REAL : kind == ASSAY_BOOL ? CAST_FLAG : CAST_WHOLE;
  put_number(s, i, a->cast != CAST_OWN ? a->cast : own, call->param[a->index]);
}

static assay_status put_adapter(staged *s, int32_t i, const bind_arg *a, const ffi_plan *p, int32_t buffer,
                                const assay_call *call, int32_t device_type, assay_error *error) {
  double number = 0;
  if (a->index < ADAPT_COS_SIN) {
    put_vector(s, i, p->buffer[buffer].memory, p->buffer[buffer].used, abi_dtype_of(ASSAY_I32),
               a->host ? ABI_CPU : device_type);
    return ASSAY_OK;
  }
  if (a->index == ADAPT_COS_SIN) {
    const assay_tensor *cos = assay_find_arg(call, "cos");
    const int64_t width = 2 * cos->shape[1];
    const assay_tensor t = {p->buffer[buffer].memory, ASSAY_F32, 2, {cos->shape[0], width}, {width, 1}};
    put_tensor(s, i, &t, abi_dtype_of(ASSAY_F32), device_type);
    return ASSAY_OK;
  }
  const assay_status status = adapt_scalar(a->index, call, &number, error);
  put_number(s, i, a->index == ADAPT_SCALE ? CAST_REAL : CAST_WHOLE, number);
  return status;
}

/* Puts a tensor of the operator, or what stands in for it. */
static assay_status put_argument(staged *s, int32_t i, const bind_arg *a, const ffi_plan *p, int32_t buffer,
                                 const assay_call *call, int32_t device_type, assay_error *error) {
  assay_tensor t = call->arg[a->index];
  if (t.data == NULL && a->instead >= 0) t = call->arg[a->instead];
  if (t.data == NULL && a->spare) {
    const assay_status status = adapt_shape(call, a->index, &t, error);
    if (status != ASSAY_OK) return status;
    t.data = p->buffer[buffer].memory;
  } else if (t.data != NULL && a->base2 && call->op->args[a->index].role == ASSAY_IN) {
    t.data = p->buffer[buffer].memory; /* dense, as the operator's vectors of f32 are */
  }
  s->value[i] = (abi_value){.type = ABI_NONE};
  if (t.data == NULL) return ASSAY_OK;
  if (a->slice >= 0) {
    t.data = (unsigned char *)t.data + a->slice * t.stride[0] * assay_dtype_size(t.dtype);
    memmove(t.shape, t.shape + 1, (size_t)(t.rank - 1) * sizeof t.shape[0]);
    memmove(t.stride, t.stride + 1, (size_t)(t.rank - 1) * sizeof t.stride[0]);
    --t.rank;
  }
  if (a->columns[1] > 0) {
    t.data = (unsigned char *)t.data + a->columns[0] * t.stride[t.rank - 1] * assay_dtype_size(t.dtype);
    t.shape[t.rank - 1] = a->columns[1] - a->columns[0];
  }
  put_tensor(s, i, &t, abi_dtype_of(t.dtype), device_type);
  return ASSAY_OK;
}

static assay_status stage(staged *s, const bind_call *of, const ffi_plan *p, int32_t first, const assay_call *call,
                          assay_error *error) {
  const int32_t device_type = is_cuda(p->device) ? ABI_CUDA : ABI_CPU;
  assay_status status = ASSAY_OK;
  for (int32_t i = 0; i < of->count && status == ASSAY_OK; ++i) {
    const bind_arg *a = &of->arg[i];
    switch (a->kind) {
    case BIND_TENSOR:
      status = put_argument(s, i, a, p, first + i, call, device_type, error);
      break;
    case BIND_PARAM:
      put_param(s, i, a, call);
      break;
    case BIND_DIM:
      put_number(s, i, a->cast != CAST_OWN ? a->cast : CAST_WHOLE,
                 (double)adapt_dim(call, call->op->dims[a->index].name));
      break;
    case BIND_WHOLE:
    case BIND_FLAG:
      s->value[i] = (abi_value){.type = a->kind == BIND_WHOLE ? ABI_INT : ABI_BOOL, .as.whole = a->whole};
      break;
    case BIND_REAL:
      s->value[i] = (abi_value){.type = ABI_FLOAT, .as.real = a->real};
      break;
    case BIND_NONE:
      s->value[i] = (abi_value){.type = ABI_NONE};
      break;
    case BIND_WORDS:
      s->value[i] = (abi_value){.type = ABI_RAW_TEXT, .as.text = a->words};
      break;
    case BIND_ADAPTER:
      status = put_adapter(s, i, a, p, first + i, call, device_type, error);
      break;
    case BIND_SCRATCHED: {
      const bind_scratch *scratch = &p->b->scratch[a->index];
      put_vector(s, i, p->buffer[PLAN_SCRATCH + a->index].memory, scratch->bytes, abi_dtype_of(ASSAY_NONE),
                 scratch->host ? ABI_CPU : device_type);
      break;
    }
    case BIND_EMPTY:
      put_vector(s, i, NULL, 0, abi_dtype_of(call->arg[a->index].dtype), device_type);
      break;
    case BIND_PLANNED:
      s->value[i] = p->result;
      break;
    }
  }
  return status;
}

/* Calls a function with the given stream set. */
static assay_status call_in(const ffi_function *f, const bind_call *of, abi_function function, const staged *s,
                            const assay_device *device, void *stream, abi_value *result, assay_error *error) {
  void *before = NULL;
  const bool cuda = is_cuda(device);
  if (cuda && f->runtime->set_stream(ABI_CUDA, 0, stream, &before) != 0)
    return assay_fail(error, ASSAY_ERR_INTERNAL, "%s: libtvm_ffi takes no stream", of->symbol);
  const assay_status status = runtime_call(f->runtime, of->symbol, function, s->value, of->count, result, error);
  if (cuda) (void)f->runtime->set_stream(ABI_CUDA, 0, before, NULL);
  return status;
}

/* ---- plan and launch --------------------------------------------------------------------------------- */

assay_status call_plan(const ffi_function *f, const assay_device *device, const assay_call *call, assay_error *error) {
  assay_status status = call_supports(f, call, error);
  if (status != ASSAY_OK) return status;
  ffi_plan *p = plans_find(f->b, f->runtime, device, call, true);
  if (p == NULL) return assay_fail(error, ASSAY_ERR_MEMORY, "ffi: no memory for a plan");
  status = plan_fill(p, call, error);
  p->waits = status == ASSAY_OK;
  if (status != ASSAY_OK || f->plan == NULL) return status;
  staged s;
  runtime_drop(f->runtime, &p->result);
  status = stage(&s, &f->b->plan, p, PLAN_OF_PLAN, call, error);
  if (status == ASSAY_OK) status = call_in(f, &f->b->plan, f->plan, &s, device, device->stream(), &p->result, error);
  p->waits = status == ASSAY_OK;
  return status == ASSAY_OK ? device->synchronize(error) : status;
}

assay_status call_launch(const ffi_function *f, const assay_device *device, const assay_call *call, assay_env *env,
                         assay_error *error) {
  ffi_plan *p = plans_find(f->b, f->runtime, device, call, false);
  staged s;
  abi_value result = {.type = ABI_NONE};
  if (p == NULL) return assay_fail(error, ASSAY_ERR_INTERNAL, "ffi: a launch without a plan");
  p->waits = false;
  (void)snprintf(env->path, sizeof env->path, "tvm-ffi %.80s", f->b->call.symbol);
  assay_status status = stage(&s, &f->b->call, p, PLAN_OF_CALL, call, error);
  if (status == ASSAY_OK) status = around_before(p, call, env->stream, error);
  if (status == ASSAY_OK) status = call_in(f, &f->b->call, f->call, &s, device, env->stream, &result, error);
  if (status == ASSAY_OK) status = around_after(p, call, &result, env->stream, error);
  runtime_drop(f->runtime, &result);
  return status;
}
