/* foreign.c: builds a call by name from the operator's own table. */
#include "foreign.h"

#include <stdlib.h>
#include <string.h>

#include "conformance/case/case.h"
#include "core/dtype.h"
#include "core/registry.h"
#include "flush.h"
#include "foreign_internal.h"

typedef long long ll; /* for messages */

assay_status foreign_begin(foreign_call *f, const char *op, assay_error *error) {
  memset(f, 0, sizeof *f);
  f->contract = contract_usual;
  f->op = assay_op_find(op);
  if (f->op == NULL) {
    char names[1024];
    case_op_list(names, sizeof names);
    return assay_fail(error, ASSAY_ERR_INPUT, "operator: found '%.60s', allowed: %s", op, names);
  }
  for (int32_t i = 0; i < f->op->param_count; ++i)
    f->param[i] = f->op->params[i].fallback;
  return ASSAY_OK;
}

void foreign_free(foreign_call *f) {
  for (int32_t i = 0; i < ASSAY_MAX_ARGS; ++i)
    free(f->owned[i]);
  for (int32_t o = 0; o < ASSAY_MAX_OUTPUTS; ++o) {
    free(f->expected[o].value);
    free(f->expected[o].sigma);
  }
  free(f->request_end);
  memset(f, 0, sizeof *f);
}

/* ---- by name ----------------------------------------------------------------------------------------- */

static assay_status find_param(const foreign_call *f, const char *name, int32_t *index, assay_error *error) {
  char names[512] = "";
  for (int32_t i = 0; i < f->op->param_count; ++i) {
    if (strcmp(f->op->params[i].name, name) == 0) {
      *index = i;
      return ASSAY_OK;
    }
    const size_t used = strlen(names);
    (void)snprintf(names + used, sizeof names - used, "%s%s", i > 0 ? ", " : "", f->op->params[i].name);
  }
  return assay_fail(error, ASSAY_ERR_INPUT, "params: found '%.60s', allowed for %s: %s", name, f->op->name,
                    names[0] != '\0' ? names : "none");
}

assay_status foreign_set(foreign_call *f, const char *param, double value, assay_error *error) {
  int32_t i = 0;
  const assay_status status = find_param(f, param, &i, error);
  if (status == ASSAY_OK) f->param[i] = value;
  return status;
}

assay_status foreign_set_text(foreign_call *f, const char *param, const char *value, assay_error *error) {
  int32_t i = 0, index = 0;
  const assay_status status = find_param(f, param, &i, error);
  if (status != ASSAY_OK) return status;
  const assay_param *p = &f->op->params[i];
  const size_t length = strlen(value);
  for (const char *at = p->kind == ASSAY_ENUM ? p->names : ""; *at != '\0'; ++index) {
    const size_t n = strcspn(at, ",");
    if (n == length && memcmp(at, value, n) == 0) {
      f->param[i] = index;
      return ASSAY_OK;
    }
    at += n + (at[n] == ',');
  }
  return assay_fail(error, ASSAY_ERR_INPUT, "%s: found '%.60s', allowed: %s", param, value,
                    p->kind == ASSAY_ENUM ? p->names : "a number");
}

static assay_status find_arg(const foreign_call *f, const char *name, int32_t *index, assay_error *error) {
  char names[512] = "";
  for (int32_t i = 0; i < f->op->arg_count; ++i) {
    if (strcmp(f->op->args[i].name, name) == 0) {
      *index = i;
      return ASSAY_OK;
    }
    const size_t used = strlen(names);
    (void)snprintf(names + used, sizeof names - used, "%s%s", i > 0 ? ", " : "", f->op->args[i].name);
  }
  return assay_fail(error, ASSAY_ERR_INPUT, "tensors: found '%.60s', allowed for %s: %s", name, f->op->name, names);
}

assay_status foreign_tensor(foreign_call *f, const char *arg, assay_dtype dtype, int32_t rank, const int64_t *shape,
                            const void *data, assay_error *error) {
  int32_t i = 0;
  int64_t count = 1;
  const assay_status status = find_arg(f, arg, &i, error);
  if (status != ASSAY_OK) return status;
  if (rank < 0 || rank > ASSAY_MAX_RANK)
    return assay_fail(error, ASSAY_ERR_INPUT, "%s: shape: found %d axes, allowed up to %d", arg, rank, ASSAY_MAX_RANK);
  assay_tensor t = {.dtype = dtype, .rank = rank};
  for (int32_t a = rank - 1; a >= 0; --a) {
    t.shape[a] = shape[a];
    t.stride[a] = count;
    count *= shape[a];
  }
  const size_t bytes = (size_t)(count * assay_dtype_size(dtype));
  free(f->owned[i]);
  f->owned[i] = calloc(bytes + 1, 1); /* an argument without elements is still given */
  if (f->owned[i] == NULL) return assay_fail(error, ASSAY_ERR_MEMORY, "%s: out of memory", arg);
  if (data != NULL) memcpy(f->owned[i], data, bytes);
  t.data = f->owned[i];
  f->arg[i] = t;
  return ASSAY_OK;
}

assay_status foreign_values(foreign_call *f, const char *arg, assay_dtype dtype, int32_t rank, const int64_t *shape,
                            const double *value, assay_error *error) {
  int32_t i = 0;
  int64_t count = 1;
  assay_status status = foreign_tensor(f, arg, dtype, rank, shape, NULL, error);
  if (status == ASSAY_OK) status = find_arg(f, arg, &i, error);
  if (status != ASSAY_OK) return status;
  for (int32_t a = 0; a < rank; ++a)
    count *= shape[a];
  for (int64_t n = 0; n < count; ++n) {
    if (dtype == ASSAY_I32)
      ((int32_t *)f->owned[i])[n] = (int32_t)value[n];
    else if (dtype == ASSAY_I64)
      ((int64_t *)f->owned[i])[n] = (int64_t)value[n];
    else
      assay_store_f64(f->owned[i], dtype, n, value[n]);
  }
  return ASSAY_OK;
}

assay_status foreign_first_block(foreign_call *f, const char *arg, int64_t block, assay_error *error) {
  int32_t i = 0;
  const assay_status status = find_arg(f, arg, &i, error);
  if (status != ASSAY_OK) return status;
  assay_tensor *t = &f->arg[i];
  const assay_content content = f->op->args[i].content;
  if ((content != ASSAY_K_CACHE && content != ASSAY_V_CACHE) || t->data == NULL || t->rank < 1)
    return assay_fail(error, ASSAY_ERR_INPUT, "%s: first_block: found one, allowed for caches only", arg);
  if (block < 0 || block > INT32_MAX - t->shape[0])
    return assay_fail(error, ASSAY_ERR_INPUT, "%s: first_block: found %lld, allowed 0 to %lld", arg, (ll)block,
                      (ll)(INT32_MAX - t->shape[0]));
  /* The address where block 0 would be. Only addresses of blocks in memory are ever formed from it. */
  const uintptr_t bytes = (uintptr_t)(block * t->stride[0] * assay_dtype_size(t->dtype));
  t->data = (void *)((uintptr_t)f->owned[i] - bytes);
  t->shape[0] += block;
  f->first_block[i] = block;
  return ASSAY_OK;
}

double foreign_load(const void *data, assay_dtype dtype, int64_t index) {
  if (dtype == ASSAY_I32) return ((const int32_t *)data)[index];
  if (dtype == ASSAY_I64) return (double)((const int64_t *)data)[index];
  return assay_load_f64(data, dtype, index);
}

/* ---- the reference ----------------------------------------------------------------------------------- */

/* Returns the argument with these contents, or -1. */
static int32_t arg_holding(const foreign_call *f, assay_content content) {
  for (int32_t i = 0; i < f->op->arg_count; ++i)
    if (f->op->args[i].content == content && f->arg[i].data != NULL) return i;
  return -1;
}

bool foreign_is_cache(const foreign_call *f, int32_t output) {
  const assay_arg *about = &f->op->args[f->output[output]];
  return (about->content == ASSAY_K_CACHE || about->content == ASSAY_V_CACHE) && foreign_slots(f) != NULL;
}

const assay_tensor *foreign_slots(const foreign_call *f) {
  const int32_t arg = arg_holding(f, ASSAY_SLOTS);
  return arg >= 0 ? &f->arg[arg] : NULL;
}

pool_axes foreign_pool(const foreign_call *f, int32_t arg) {
  const assay_tensor *t = &f->arg[arg];
  const int layout = (int)assay_find_param(&(assay_call){f->op, f->arg, f->param}, "layout");
  if (layout == 0) return (pool_axes){t->shape[1], t->shape[2], t->shape[3], 0, true};
  if (layout == 1) return (pool_axes){t->shape[2], t->shape[1], t->shape[3], 0, false};
  if (t->rank == 5) return (pool_axes){t->shape[3], t->shape[1], t->shape[2] * t->shape[4], t->shape[4], false};
  return (pool_axes){t->shape[3], t->shape[1], t->shape[2], 1, false};
}

int64_t foreign_pool_place(const pool_axes *p, int64_t slot, int64_t head, int64_t channel) {
  const int64_t block = slot / p->block_size, offset = slot % p->block_size;
  if (p->token_first) return ((block * p->block_size + offset) * p->heads + head) * p->channels + channel;
  const int64_t first = (block * p->heads + head) * p->channels * p->block_size;
  if (p->x == 0) return first + offset * p->channels + channel;
  return first + (channel / p->x * p->block_size + offset) * p->x + channel % p->x;
}

int32_t foreign_output(const foreign_call *f, const char *arg) {
  for (int32_t o = 0; o < f->count; ++o)
    if (strcmp(f->op->args[f->output[o]].name, arg) == 0) return o;
  return -1;
}

int64_t foreign_width(const foreign_call *f, int32_t output) {
  const assay_tensor *t = &f->arg[f->output[output]];
  int64_t width = 1;
  if (foreign_is_cache(f, output)) {
    const pool_axes p = foreign_pool(f, f->output[output]);
    return p.heads * p.channels;
  }
  for (int32_t a = 1; a < t->rank; ++a)
    width *= t->shape[a];
  return width;
}

int64_t foreign_rows(const foreign_call *f, int32_t output) {
  const assay_tensor *t = &f->arg[f->output[output]];
  if (foreign_is_cache(f, output)) return foreign_slots(f)->shape[0];
  return t->rank > 0 ? t->shape[0] : 1;
}

/* Tells whether the first axis of the output is the dimension along which rows run. */
static bool has_rows(const foreign_call *f, int32_t arg) {
  const char *rows = f->op->form == ASSAY_PAGED ? "N" : f->op->row_dim, *shape = f->op->args[arg].shape;
  return rows != NULL && strncmp(shape, rows, strlen(rows)) == 0 && strchr(",|", shape[strlen(rows)]) != NULL;
}

/* Refuses a slot, or a table entry in use, before the first block of a given cache. */
static assay_status check_first_blocks(const foreign_call *f, assay_error *error) {
  for (int which = 0; which < 2; ++which) {
    const int32_t cache = arg_holding(f, which == 0 ? ASSAY_K_CACHE : ASSAY_V_CACHE);
    if (cache < 0 || f->first_block[cache] == 0) continue;
    const int64_t first = f->first_block[cache], block_size = foreign_pool(f, cache).block_size;
    const int32_t slots = arg_holding(f, ASSAY_SLOTS), table = arg_holding(f, ASSAY_BLOCK_TABLE);
    const int32_t lengths = arg_holding(f, ASSAY_KV_LEN);
    for (int64_t n = 0; slots >= 0 && n < f->arg[slots].shape[0]; ++n) {
      const int64_t slot = ((const int64_t *)f->owned[slots])[n];
      if (slot >= 0 && slot < first * block_size)
        return assay_fail(error, ASSAY_ERR_INPUT, "%s: found %lld at %lld, allowed %lld and more: first_block is %lld",
                          f->op->args[slots].name, (ll)slot, (ll)n, (ll)(first * block_size), (ll)first);
    }
    for (int64_t b = 0; table >= 0 && lengths >= 0 && b < f->arg[table].shape[0]; ++b)
      for (int64_t j = 0; j < f->arg[table].shape[1]; ++j) {
        const int32_t block = ((const int32_t *)f->owned[table])[b * f->arg[table].shape[1] + j];
        if (j * block_size < ((const int32_t *)f->owned[lengths])[b] && block >= 0 && block < first)
          return assay_fail(error, ASSAY_ERR_INPUT, "%s: found %d at [%lld, %lld], allowed %lld and more: first_block",
                            f->op->args[table].name, block, (ll)b, (ll)j, (ll)first);
      }
  }
  return ASSAY_OK;
}

/* Asks the reference. Outputs of fixed type (lse) of a paged operator have no exact tier. The proof is asked of the
 * call without them, and their values then without a proof. */
static assay_status ask(foreign_call *f, assay_error *error) {
  assay_tensor arg[ASSAY_MAX_ARGS];
  assay_expected expected[ASSAY_MAX_OUTPUTS];
  assay_seen seen = {0};
  int32_t proven = 0;
  memcpy(arg, f->arg, sizeof arg);
  for (int32_t o = 0; o < f->count; ++o) {
    const bool fixed = f->op->form == ASSAY_PAGED && f->op->args[f->output[o]].dtypes[0] != '=';
    if (f->exact && fixed && !foreign_is_cache(f, o))
      arg[f->output[o]].data = NULL;
    else
      expected[proven++] = f->expected[o];
  }
  const assay_call part = {f->op, arg, f->param}, whole = {f->op, f->arg, f->param};
  assay_status status = f->op->reference(&part, &f->contract, &f->rows, f->exact, expected, &seen, error);
  if (status == ASSAY_OK && proven < f->count)
    status = f->op->reference(&whole, &f->contract, &f->rows, false, f->expected, &seen, error);
  return status;
}

/* Returns the bytes of a given argument; a pool has those from its first block on. */
static int64_t owned_bytes(const foreign_call *f, int32_t arg) {
  int64_t count = assay_dtype_size(f->arg[arg].dtype);
  for (int32_t a = 0; a < f->arg[arg].rank; ++a)
    count *= f->arg[arg].shape[a] - (a == 0 ? f->first_block[arg] : 0);
  return count;
}

/* Widens sigma as a run does under a contract that says ftz. */
static assay_status allow_flushing(foreign_call *f, assay_error *error) {
  assay_tensor arg[ASSAY_MAX_ARGS];
  assay_expected other[ASSAY_MAX_OUTPUTS] = {{NULL, NULL}};
  void *copy[ASSAY_MAX_ARGS] = {NULL};
  assay_seen unused = {0};
  bool room = true;
  memcpy(arg, f->arg, sizeof arg);
  for (int32_t i = 0; i < f->op->arg_count; ++i) {
    if (f->op->args[i].role == ASSAY_OUT || f->owned[i] == NULL) continue;
    const int64_t bytes = owned_bytes(f, i);
    copy[i] = malloc((size_t)bytes + 1);
    room = room && copy[i] != NULL;
    if (copy[i] == NULL) continue;
    memcpy(copy[i], f->owned[i], (size_t)bytes);
    flush_numbers(arg[i].dtype, copy[i], bytes);
    arg[i].data = (void *)((uintptr_t)f->arg[i].data - (uintptr_t)f->owned[i] + (uintptr_t)copy[i]);
  }
  for (int32_t o = 0; o < f->count; ++o) {
    const size_t elements = (size_t)(foreign_rows(f, o) * foreign_width(f, o)) + 1;
    other[o] = (assay_expected){calloc(elements, sizeof(double)), calloc(elements, sizeof(double))};
    room = room && other[o].value != NULL && other[o].sigma != NULL;
  }
  const assay_call call = {f->op, arg, f->param};
  assay_status status = room ? f->op->reference(&call, &f->contract, &f->rows, false, other, &unused, error)
                             : assay_fail(error, ASSAY_ERR_MEMORY, "%s: out of memory", f->op->name);
  for (int32_t o = 0; o < f->count; ++o) {
    if (status == ASSAY_OK) flush_widen(&f->expected[o], &other[o], foreign_rows(f, o) * foreign_width(f, o));
    free(other[o].value);
    free(other[o].sigma);
  }
  for (int32_t i = 0; i < f->op->arg_count; ++i)
    free(copy[i]);
  return status;
}

assay_status foreign_reference(foreign_call *f, assay_error *error) {
  const assay_call call = {f->op, f->arg, f->param};
  assay_status status = f->op->check(&call, error);
  if (status == ASSAY_OK) status = check_first_blocks(f, error);
  f->count = 0;
  f->rows = (assay_rows){0, NULL};
  bool found = false;
  for (int32_t i = 0; i < f->op->arg_count && f->count < ASSAY_MAX_OUTPUTS; ++i) {
    if (f->op->args[i].role == ASSAY_IN || f->arg[i].data == NULL) continue;
    f->output[f->count++] = i;
    if (found && !has_rows(f, i)) continue;
    f->rows.count = f->arg[i].rank > 0 ? f->arg[i].shape[0] : 1;
    found = has_rows(f, i);
  }
  if (status == ASSAY_OK && f->count == 0)
    status = assay_fail(error, ASSAY_ERR_INPUT, "outputs: found none, %s has some", f->op->name);
  for (int32_t o = 0; o < f->count && status == ASSAY_OK; ++o) {
    const size_t elements = (size_t)(foreign_rows(f, o) * foreign_width(f, o)) + 1;
    f->expected[o].value = malloc(elements * sizeof(double));
    f->expected[o].sigma = malloc(elements * sizeof(double));
    if (f->expected[o].value == NULL || f->expected[o].sigma == NULL)
      status = assay_fail(error, ASSAY_ERR_MEMORY, "%s: out of memory", f->op->name);
  }
  if (status == ASSAY_OK) status = ask(f, error);
  return status == ASSAY_OK && f->contract.ftz && !f->exact ? allow_flushing(f, error) : status;
}
