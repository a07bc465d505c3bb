/* plain.h: reads a call of a plain operator for its launcher, by the operator's table. It checks every tensor's
 * presence, rank, type, shape and strides, and every dimension and parameter against its range. It looks only at what
 * the host can see, and never at the data that a pointer refers to. All functions are inline, so that a kernel file is
 * complete by itself.
 *
 *   plain_call c;
 *   ASSAY_TRY(plain_read(call, &c, error));      refuses with the name, what was found, what is allowed
 *   p->C = c.dim("C");                           a dimension
 *   p->x = c.data<const void>("x");              the data of a tensor
 *   p->x_row = c.row("x");                       its row stride
 *   p->eps = c.real("eps");                      a parameter
 *   return with_type(c.type("x"), [&](auto x) { using T = typename decltype(x)::type; ... }); */
#ifndef ASSAY_GPU_LIB_PLAIN_H
#define ASSAY_GPU_LIB_PLAIN_H

#include <math.h>
#include <stdlib.h>

#include "gpu/lib/read.h"
#include "gpu/lib/types.cuh"

namespace ASSAY_NS {

constexpr int64_t plain_unknown = INT64_MIN;

/* A call that plain_read has accepted. Names are those of the operator's table. */
struct plain_call {
  const assay_call *call;
  int64_t dims[ASSAY_MAX_DIMS]; /* plain_unknown: only in absent arguments */

  int64_t dim(const char *name) const {
    for (int32_t i = 0; i < call->op->dim_count; ++i)
      if (strcmp(call->op->dims[i].name, name) == 0) return dims[i];
    return plain_unknown;
  }
  int32_t dim32(const char *name) const { return static_cast<int32_t>(dim(name)); }

  /* Returns a tensor, or NULL for an optional argument that is absent. */
  const assay_tensor *tensor(const char *name) const {
    const assay_tensor *const found = named_tensor(call, name);
    return found != NULL && found->data != NULL ? found : NULL;
  }
  bool has(const char *name) const { return tensor(name) != NULL; }
  template <class T> T *data(const char *name) const {
    const assay_tensor *const found = tensor(name);
    return found != NULL ? static_cast<T *>(found->data) : NULL;
  }
  /* Returns the elements from row to row (axis 0), or 0 if there is at most one row, or no tensor. */
  int64_t row(const char *name) const {
    const assay_tensor *const found = tensor(name);
    return found != NULL && found->shape[0] > 1 ? found->stride[0] : 0;
  }
  /* Returns a tensor's type, or ASSAY_NONE if it is absent. */
  assay_dtype type(const char *name) const {
    const assay_tensor *const found = named_tensor(call, name);
    return found != NULL ? found->dtype : ASSAY_NONE;
  }
  /* Return a parameter as a number, rounded to f32, as a whole number, and as a flag. */
  double number(const char *name) const { return assay_find_param(call, name); }
  float real(const char *name) const { return static_cast<float>(number(name)); }
  int64_t integer(const char *name) const { return static_cast<int64_t>(number(name)); }
  bool flag(const char *name) const { return number(name) != 0.0; }
};

/* ---- shapes of the table ----------------------------------------------------------------------------- */

inline int32_t plain_find_dim(const assay_op *op, const char *name, size_t size) {
  for (int32_t i = 0; i < op->dim_count; ++i)
    if (strncmp(op->dims[i].name, name, size) == 0 && op->dims[i].name[size] == '\0') return i;
  return -1;
}

/* One product of a shape string: k, NAME, k*NAME, NAME/k, and NAME^k, which is NAME/k rounded up. */
struct plain_product {
  int64_t factor, divisor;
  int32_t dim; /* -1: only a number */
  bool up;     /* the quotient is rounded up */
};

/* Reads the product at *at and moves *at past it: to '+', ',' or the end. */
inline plain_product plain_next_product(const assay_op *op, const char **at) {
  plain_product product = {1, 1, -1, false};
  bool divide = false;
  while (**at != '\0' && **at != ',' && **at != '+') {
    const char c = **at;
    if (c >= '0' && c <= '9') {
      char *end = NULL;
      (divide ? product.divisor : product.factor) = strtoll(*at, &end, 10);
      *at = end;
    } else if (c == '*' || c == '/' || c == '^') {
      divide = c != '*';
      product.up = c == '^';
      ++*at;
    } else {
      const size_t size = strcspn(*at, "*/^+,");
      product.dim = plain_find_dim(op, *at, size);
      *at += size;
    }
  }
  return product;
}

/* Returns the extent of the axis at *at, or plain_unknown while one of its dimensions is unknown. Moves *at to the next
 * axis. An axis that is one product of one unknown dimension defines that dimension, from `found`, the extent of the
 * axis. */
inline int64_t plain_axis(const assay_op *op, const char **at, int64_t *dims, int64_t found) {
  int64_t extent = 0;
  plain_product alone = {1, 1, -1, false};
  int32_t products = 0;
  for (;; ++*at) {
    const plain_product product = plain_next_product(op, at);
    const int64_t value = product.dim >= 0 ? dims[product.dim] : 1;
    alone = product;
    ++products;
    if (value == plain_unknown || extent == plain_unknown)
      extent = plain_unknown;
    else
      extent += (product.factor * value + (product.up ? product.divisor - 1 : 0)) / product.divisor;
    if (**at != '+') break;
  }
  if (**at == ',') ++*at;
  if (extent != plain_unknown || products > 1 || alone.up || found < 0 || found > INT64_MAX / alone.divisor)
    return extent;
  if (found % alone.factor != 0) return extent;
  dims[alone.dim] = found / alone.factor * alone.divisor;
  return found;
}

inline int32_t plain_rank(const char *shape) {
  int32_t rank = 1;
  for (; *shape != '\0'; ++shape)
    rank += *shape == ',' ? 1 : 0;
  return rank;
}

/* ---- refusals ---------------------------------------------------------------------------------------- */

/* Checks an argument's type against the table's string: "f32,f16,bf16" | "=x" | "=x,f32". */
inline assay_status plain_expect_type(const assay_call *call, int32_t arg, assay_error *error) {
  const char *const name = assay_dtype_name(call->arg[arg].dtype);
  const size_t size = strlen(name);
  for (const char *at = call->op->args[arg].dtypes; *at != '\0';) {
    const size_t word = strcspn(at, ",");
    if (*at != '=' && word == size && memcmp(at, name, size) == 0) return ASSAY_OK;
    for (int32_t i = 0; *at == '=' && i < arg; ++i) {
      const char *const other = call->op->args[i].name;
      if (strlen(other) + 1 == word && memcmp(at + 1, other, word - 1) == 0 &&
          call->arg[i].dtype == call->arg[arg].dtype)
        return ASSAY_OK;
    }
    at += word + (at[word] == ',' ? 1 : 0);
  }
  return assay_fail(error, ASSAY_ERR_INPUT, "%s: found dtype %s, allowed %s", call->op->args[arg].name, name,
                    call->op->args[arg].dtypes);
}

inline assay_status plain_expect_shape(const assay_call *call, int32_t arg, int64_t *dims, assay_error *error) {
  const assay_arg *const about = &call->op->args[arg];
  const assay_tensor *tensor;
  const int32_t rank = plain_rank(about->shape);
  ASSAY_TRY(find_tensor(call, about->name, rank, about->optional, &tensor, error));
  if (tensor == NULL) return ASSAY_OK;
  ASSAY_TRY(plain_expect_type(call, arg, error));
  const char *at = about->shape;
  for (int32_t axis = 0; axis < rank; ++axis) {
    const int64_t extent = plain_axis(call->op, &at, dims, tensor->shape[axis]);
    if (extent != plain_unknown) ASSAY_TRY(expect_extent(tensor, about->name, axis, extent, error));
  }
  int64_t dense = 1;
  for (int32_t axis = rank - 1; axis >= 0; --axis) {
    if (axis == 0 && rank > 1 && about->strided)
      ASSAY_TRY(expect_row_stride(tensor, about->name, dense, error));
    else
      ASSAY_TRY(expect_stride(tensor, about->name, axis, dense, error));
    if (tensor->shape[axis] > 0 && !multiply(&dense, tensor->shape[axis]))
      return assay_fail(error, ASSAY_ERR_INPUT, "%s: found a shape of more than 2^63 elements, allowed fewer",
                        about->name);
  }
  return ASSAY_OK;
}

inline assay_status plain_expect_params(const assay_call *call, assay_error *error) {
  for (int32_t i = 0; i < call->op->param_count; ++i) {
    const assay_param *const about = &call->op->params[i];
    const double found = call->param[i];
    const bool whole = about->kind == ASSAY_REAL || floor(found) - found == 0.0;
    if (!(found >= about->min && found <= about->max && whole))
      return assay_fail(error, ASSAY_ERR_INPUT, "%s: found %.9g, allowed %s%.9g to %.9g", about->name, found,
                        about->kind == ASSAY_REAL ? "" : "integers from ", about->min, about->max);
  }
  return ASSAY_OK;
}

inline assay_status plain_read(const assay_call *call, plain_call *plain, assay_error *error) {
  if (call == NULL || call->op == NULL || call->arg == NULL || call->param == NULL)
    return assay_fail(error, ASSAY_ERR_INPUT, "call: found no operator, arguments or parameters, allowed all three");
  const assay_op *const op = call->op;
  plain->call = call;
  for (int64_t &dim : plain->dims)
    dim = plain_unknown;
  ASSAY_TRY(plain_expect_params(call, error));
  for (int32_t pass = 0; pass < 2; ++pass) /* the second pass knows every dimension */
    for (int32_t i = 0; i < op->arg_count; ++i)
      ASSAY_TRY(plain_expect_shape(call, i, plain->dims, error));
  for (int32_t i = 0; i < op->dim_count; ++i) {
    const assay_dim *const about = &op->dims[i];
    if (about->max != 0 && plain->dims[i] != plain_unknown)
      ASSAY_TRY(expect_range(about->name, plain->dims[i], about->min, about->max,
                             about->multiple > 0 ? about->multiple : 1, error));
  }
  return ASSAY_OK;
}

/* Returns whether rows of every tensor may be read four elements at once, that is, whether bases and row strides are
 * multiples of four elements. */
inline bool plain_quads(const plain_call &plain) {
  for (int32_t i = 0; i < plain.call->op->arg_count; ++i) {
    const assay_tensor &t = plain.call->arg[i];
    const uintptr_t bytes = static_cast<uintptr_t>(4 * assay_dtype_size(t.dtype));
    if (t.data == NULL) continue;
    if (reinterpret_cast<uintptr_t>(t.data) % bytes != 0) return false;
    if (t.rank > 1 && t.shape[0] > 1 && t.stride[0] % 4 != 0) return false;
  }
  return true;
}

/* ---- types ------------------------------------------------------------------------------------------- */

/* Calls use(type_tag<T>) for a storage type of plain operators. Returns ASSAY_ERR_INTERNAL for other types, which the
 * launcher has refused before. ASSAY_FEW_TYPES leaves f16 out, to compile faster. */
template <class Use> assay_status with_type(assay_dtype type, Use use) {
  if (type == ASSAY_F32) return use(type_tag<float>());
  if (type == ASSAY_BF16) return use(type_tag<bf16>());
#ifndef ASSAY_FEW_TYPES
  if (type == ASSAY_F16) return use(type_tag<f16>());
#endif
  return ASSAY_ERR_INTERNAL;
}

/* Refuses types that are not among those above. */
inline assay_status expect_type(const char *name, assay_dtype type, assay_error *error) {
  if (with_type(type, [](auto) { return ASSAY_OK; }) == ASSAY_OK) return ASSAY_OK;
  return assay_fail(error, ASSAY_ERR_UNSUPPORTED, "%s: found dtype %s, which this build leaves out", name,
                    assay_dtype_name(type));
}

#ifdef ASSAY_FEW_TYPES
#define PLAIN_TYPE_CLAIMS "f32,bf16"
#else
#define PLAIN_TYPE_CLAIMS "f32,f16,bf16"
#endif

/* ---- the variant table ------------------------------------------------------------------------------- */

/* supports and workspace (none) of a variant whose function `read` fills `params` or refuses the call. */
template <class params, assay_status (*read)(const assay_call *, params *, assay_error *)>
assay_status plain_supports(const assay_call *call, assay_error *error) {
  params made;
  return read(call, &made, error);
}

template <class params, assay_status (*read)(const assay_call *, params *, assay_error *)>
assay_status plain_no_workspace(const assay_call *call, int64_t *bytes, assay_error *error) {
  *bytes = 0;
  return plain_supports<params, read>(call, error);
}

/* A row of the variant table, from this operator's `params`, `read`, contract and launch; the launch may be a template
 * with commas. It has no workspace. */
#define PLAIN_VARIANT(op, name, why, claims, contract, params, read, ...)                                              \
  {                                                                                                                    \
    sizeof(assay_variant), op, name ASSAY_VARIANT_SUFFIX, why, ASSAY_DEVICE_NAME, "any", claims, ::ASSAY_NS::contract, \
        ::ASSAY_NS::plain_supports<::ASSAY_NS::params, ::ASSAY_NS::read>,                                              \
        ::ASSAY_NS::plain_no_workspace<::ASSAY_NS::params, ::ASSAY_NS::read>, ::ASSAY_NS::__VA_ARGS__                  \
  }

} // namespace ASSAY_NS
#endif
