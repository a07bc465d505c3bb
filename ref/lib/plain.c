/* plain.c: checks calls of plain operators against their tables. */
#include "ref/lib/plain.h"

#include <math.h>
#include <stdlib.h>

#include "core/dtype.h"
#include "core/rng.h"

typedef long long ll; /* for messages */

assay_status check_params(const assay_call *call, assay_error *error) {
  for (int32_t i = 0; i < call->op->param_count; ++i) {
    const assay_param *p = &call->op->params[i];
    const double value = call->param[i];
    const bool inside = value >= p->min && value <= p->max;
    const bool whole = p->kind == ASSAY_REAL || (inside && floor(value) == value);
    if (inside && whole) continue;
    if (p->kind == ASSAY_ENUM)
      return assay_fail(error, ASSAY_ERR_INPUT, "%s: found %g, allowed the index of one of %s", p->name, value,
                        p->names);
    char found[32], least[32], most[32];
    return assay_fail(error, ASSAY_ERR_INPUT, "%s: found %s, allowed %s from %s to %s", p->name,
                      assay_shortest(value, found), p->kind == ASSAY_REAL ? "a number" : "a whole number",
                      assay_shortest(p->min, least), assay_shortest(p->max, most));
  }
  return ASSAY_OK;
}

assay_status check_reach(const assay_call *call, int32_t arg, assay_error *error) {
  const assay_tensor *t = &call->arg[arg];
  int64_t left = INT64_MAX / (assay_dtype_size(t->dtype) > 0 ? assay_dtype_size(t->dtype) : 1);
  for (int32_t a = 0; a < t->rank && a < ASSAY_MAX_RANK; ++a) {
    if (t->shape[a] <= 1 || t->stride[a] <= 0) continue; /* refused elsewhere, or irrelevant */
    if (t->stride[a] > left / (t->shape[a] - 1))
      return assay_fail(
          error, ASSAY_ERR_INPUT,
          "%s: found %lld at axis %d of its shape with stride %lld, allowed what 63-bit byte offsets reach",
          call->op->args[arg].name, (ll)t->shape[a], a, (ll)t->stride[a]);
    left -= (t->shape[a] - 1) * t->stride[a];
  }
  return ASSAY_OK;
}

/* ---- shapes by name ---------------------------------------------------------------------------------- */

static const int64_t unbound = INT64_MIN;

static int32_t dim_index(const assay_op *op, const char *name, size_t size) {
  for (int32_t i = 0; i < op->dim_count; ++i)
    if (strlen(op->dims[i].name) == size && strncmp(op->dims[i].name, name, size) == 0) return i;
  return -1;
}

/* Evaluates one axis of a shape string: a sum of NAME, k*NAME, NAME/k, NAME^k and whole numbers. `term` ends at ',' or
 * the end. Returns false if a dimension in it is not known yet. */
static bool evaluate(const assay_op *op, const plain_dims *dims, const char *term, size_t size, int64_t *value) {
  const char *const end = term + size;
  *value = 0;
  while (term < end) {
    int64_t product = 1;
    if (*term >= '0' && *term <= '9') {
      char *after = NULL;
      product = strtoll(term, &after, 10);
      term = *after == '*' ? after + 1 : after;
    }
    const size_t name = strcspn(term, ",*/^+");
    const size_t used = name < (size_t)(end - term) ? name : (size_t)(end - term);
    if (used > 0) {
      const int32_t i = dim_index(op, term, used);
      if (i < 0 || dims->dim[i] == unbound) return false;
      product *= dims->dim[i];
      term += used;
    }
    if (term < end && (*term == '/' || *term == '^')) {
      char *after = NULL;
      const int64_t divisor = strtoll(term + 1, &after, 10);
      product = (product + (*term == '^' ? divisor - 1 : 0)) / divisor;
      term = after;
    }
    *value += product;
    if (term < end && *term == '+') ++term;
  }
  return true;
}

static bool listed(const char *list, const char *word) {
  const size_t n = strlen(word);
  for (const char *at = list; *at != '\0'; at += strspn(at, ",")) {
    const size_t m = strcspn(at, ",");
    if (m == n && memcmp(at, word, n) == 0) return true;
    at += m;
  }
  return false;
}

/* Checks a type: "=x,f32" is that of x, or f32. */
static assay_status check_type(const assay_call *call, int32_t arg, assay_error *error) {
  const assay_arg *about = &call->op->args[arg];
  const char *name = assay_dtype_name(call->arg[arg].dtype);
  if (listed(about->dtypes, name)) return ASSAY_OK;
  if (about->dtypes[0] == '=') {
    const size_t n = strcspn(about->dtypes + 1, ",");
    for (int32_t i = 0; i < call->op->arg_count; ++i)
      if (strlen(call->op->args[i].name) == n && strncmp(call->op->args[i].name, about->dtypes + 1, n) == 0 &&
          call->arg[i].dtype == call->arg[arg].dtype)
        return ASSAY_OK;
  }
  return assay_fail(error, ASSAY_ERR_INPUT, "%s: found type %s, allowed %s", about->name, name, about->dtypes);
}

static assay_status check_base(const assay_call *call, int32_t arg, assay_error *error) {
  const assay_tensor *t = &call->arg[arg];
  const assay_arg *about = &call->op->args[arg];
  int32_t rank = 1;
  for (const char *at = about->shape; *at != '\0'; ++at)
    rank += *at == ',';
  if (t->rank != rank)
    return assay_fail(error, ASSAY_ERR_INPUT, "%s: found rank %d, allowed %d: [%s]", about->name, t->rank, rank,
                      about->shape);
  const int64_t size = assay_dtype_size(t->dtype);
  if (size > 0 && (uintptr_t)t->data % (uintptr_t)size != 0)
    return assay_fail(error, ASSAY_ERR_INPUT,
                      "%s: found data %lld bytes off, allowed multiples of its %lld-byte element", about->name,
                      (ll)((uintptr_t)t->data % (uintptr_t)size), (ll)size);
  const assay_status status = check_type(call, arg, error);
  return status == ASSAY_OK ? check_reach(call, arg, error) : status;
}

static bool is_empty(const assay_tensor *t) {
  for (int32_t a = 0; a < t->rank && a < ASSAY_MAX_RANK; ++a)
    if (t->shape[a] == 0) return true;
  return false;
}

/* Learns dimensions from axes that name one dimension and nothing else. */
static void bind(const assay_call *call, plain_dims *dims) {
  for (int32_t i = 0; i < call->op->arg_count; ++i) {
    if (call->arg[i].dtype == ASSAY_NONE) continue;
    const char *term = call->op->args[i].shape;
    for (int32_t a = 0; a < call->arg[i].rank && a < ASSAY_MAX_RANK; ++a) {
      const size_t size = strcspn(term, ",");
      const int32_t d = dim_index(call->op, term, size);
      if (d >= 0 && dims->dim[d] == unbound) dims->dim[d] = call->arg[i].shape[a];
      term += size + (term[size] == ',');
    }
  }
}

static assay_status check_shape(const assay_call *call, int32_t arg, const plain_dims *dims, assay_error *error) {
  const assay_arg *about = &call->op->args[arg];
  const assay_tensor *t = &call->arg[arg];
  const char *term = about->shape;
  for (int32_t a = 0; a < t->rank; ++a) {
    const size_t size = strcspn(term, ",");
    int64_t wanted = 0;
    if (evaluate(call->op, dims, term, size, &wanted) && t->shape[a] != wanted)
      return assay_fail(error, ASSAY_ERR_INPUT, "%s: found %lld at axis %d of its shape, allowed %lld: [%s]",
                        about->name, (ll)t->shape[a], a, (ll)wanted, about->shape);
    term += size + (term[size] == ',');
  }
  int64_t dense = 1;
  for (int32_t a = t->rank - 1; a >= 0; --a) {
    const bool used = t->shape[a] > 1, apart = a == 0 && about->strided && t->rank > 1;
    if (used && (apart ? t->stride[a] < dense : t->stride[a] != dense))
      return assay_fail(error, ASSAY_ERR_INPUT, "%s: found stride %lld at axis %d, allowed %lld%s", about->name,
                        (ll)t->stride[a], a, (ll)dense, apart ? " or more" : "");
    dense *= t->shape[a] > 0 ? t->shape[a] : 1;
  }
  return ASSAY_OK;
}

static assay_status check_dims(const assay_call *call, const plain_dims *dims, assay_error *error) {
  for (int32_t i = 0; i < call->op->dim_count; ++i) {
    const assay_dim *d = &call->op->dims[i];
    const int64_t value = dims->dim[i], multiple = d->multiple > 0 ? d->multiple : 1;
    if (d->max == 0 || value == unbound || (value >= d->min && value <= d->max && value % multiple == 0)) continue;
    if (multiple > 1)
      return assay_fail(error, ASSAY_ERR_INPUT, "%s: found %lld, allowed %lld to %lld, a multiple of %lld", d->name,
                        (ll)value, (ll)d->min, (ll)d->max, (ll)multiple);
    return assay_fail(error, ASSAY_ERR_INPUT, "%s: found %lld, allowed %lld to %lld", d->name, (ll)value, (ll)d->min,
                      (ll)d->max);
  }
  return ASSAY_OK;
}

assay_status plain_check(const assay_call *call, plain_dims *dims, assay_error *error) {
  const assay_op *op = call->op;
  for (int32_t i = 0; i < ASSAY_MAX_DIMS; ++i)
    dims->dim[i] = unbound;
  assay_status status = check_params(call, error);
  for (int32_t i = 0; status == ASSAY_OK && i < op->arg_count; ++i) {
    const assay_tensor *t = &call->arg[i];
    const bool absent = t->data == NULL && (op->args[i].optional || !is_empty(t));
    if (absent && !op->args[i].optional)
      return assay_fail(error, ASSAY_ERR_INPUT, "%s: found no data (NULL), allowed a valid pointer", op->args[i].name);
    if (!absent) status = check_base(call, i, error);
  }
  if (status != ASSAY_OK) return status;
  bind(call, dims);
  status = check_dims(call, dims, error);
  for (int32_t i = 0; status == ASSAY_OK && i < op->arg_count; ++i)
    if (call->arg[i].data != NULL) status = check_shape(call, i, dims, error);
  return status;
}

assay_status plain_check_call(const assay_call *call, assay_error *error) {
  plain_dims dims;
  return plain_check(call, &dims, error);
}

int64_t plain_dim(const assay_call *call, const plain_dims *dims, const char *name) {
  const int32_t i = dim_index(call->op, name, strlen(name));
  return i >= 0 ? dims->dim[i] : 0;
}

/* ---- contents ---------------------------------------------------------------------------------------- */

int64_t plain_row_elements(const assay_tensor *tensor) {
  int64_t count = 1;
  for (int32_t a = 1; a < tensor->rank; ++a)
    count *= tensor->shape[a];
  return count;
}

void plain_load_row(const assay_tensor *tensor, int64_t row, double *value) {
  const int64_t first = tensor->shape[0] > 1 ? row * tensor->stride[0] : 0;
  assay_load_f64_row(tensor->data, tensor->dtype, first, 1, plain_row_elements(tensor), value);
}

int64_t plain_integer(const assay_tensor *tensor, int64_t index) {
  if (tensor->dtype == ASSAY_I32) return ((const int32_t *)tensor->data)[index];
  return ((const int64_t *)tensor->data)[index];
}

/* ---- values for the generator ------------------------------------------------------------------------ */

enum { STREAM_VALUES = 0x706C61, STREAM_KIND = 0x706C62, STREAM_FLAG = 0x706C63 };

static double special(uint64_t word, double value) {
  static const double list[] = {0.0,
                                -0.0,
                                0x1p-149,
                                -0x1p-149,
                                0x1p-126,
                                0x1p-133,
                                0x1p-24,
                                0x1p-25,
                                0x1p-10,
                                0x1p-9,
                                448,
                                464,
                                -480,
                                57344,
                                -61440,
                                65504,
                                65520,
                                3e38,
                                -3e38,
                                0x1.8p-10,
                                0x1.4p-16,
                                0x1.cp-17,
                                1.0625,
                                1.1875,
                                (double)NAN,
                                (double)INFINITY,
                                -(double)INFINITY,
                                17,
                                19,
                                0.0703125,
                                -0.06640625,
                                2.125};
  const size_t count = sizeof list / sizeof list[0];
  return (word & 1) != 0 ? value : list[(word >> 1) % count];
}

void plain_fill(const assay_fill *fill, uint64_t stream, double *value, int64_t count) {
  assay_rng_normals(fill->seed, STREAM_VALUES + (stream << 24), value, count);
  if (fill->values == ASSAY_NORMAL) return;
  assay_rng rng = {fill->seed, STREAM_KIND + (stream << 24), 0};
  for (int64_t i = 0; i < count; ++i) {
    const uint64_t word = assay_rng_u64(&rng);
    switch (fill->values) {
    case ASSAY_HEAVY_TAILED: /* one in 64 is 30 times as large */
      if (word % 64 == 0) value[i] *= 30;
      break;
    case ASSAY_LATTICE:
      value[i] = ((double)(word % 65) - 32) * 0.125;
      break;
    case ASSAY_NEEDLES: /* mostly small */
      if (word % 16 != 0) value[i] *= 0.001;
      break;
    case ASSAY_SPECIAL:
      value[i] = special(word, value[i]);
      break;
    case ASSAY_NORMAL:
      break;
    }
  }
}

void plain_make_small(double *value, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    int exponent = 0;
    const double part = frexp(value[i], &exponent);
    if (isfinite(value[i]) && exponent > -8) value[i] = ldexp(part, -8);
  }
}

void plain_fill_integers(const assay_fill *fill, uint64_t stream, int64_t bound, double *value, int64_t count) {
  assay_rng rng = {fill->seed, STREAM_KIND + (stream << 24), 0};
  for (int64_t i = 0; i < count; ++i)
    value[i] = bound > 0 ? (double)assay_rng_range(&rng, 0, bound - 1) : 0;
}

double plain_flag(const assay_fill *fill, uint64_t stream, int64_t i, bool yes) {
  static const int32_t list[] = {1, 1, 1, 2, 256, 65536, -1, INT32_MIN, INT32_MAX, 0x1000000};
  assay_rng rng = {fill->seed, STREAM_FLAG + (stream << 24), 4 * (uint64_t)i};
  return yes ? (double)list[assay_rng_range(&rng, 0, (int64_t)(sizeof list / sizeof list[0]) - 1)] : 0;
}

static int64_t common_divisor(int64_t a, int64_t b) {
  while (b != 0) {
    const int64_t rest = a % b;
    a = b;
    b = rest;
  }
  return a;
}

int64_t plain_place(const assay_fill *fill, uint64_t stream, int64_t i, int64_t count) {
  assay_rng rng = {fill->seed, STREAM_KIND + (stream << 24), 0};
  const int64_t first = assay_rng_range(&rng, 0, count - 1);
  int64_t step = assay_rng_range(&rng, 1, count);
  while (common_divisor(step, count) != 1)
    step = step % count + 1;
  return (first + i * step) % count;
}
