/* magnitude.c: the numbers of magnitudes small, large and mixed. All draws have a stream of their own. */
#include "magnitude.h"

#include <math.h>
#include <string.h>

#include "core/dtype.h"
#include "core/rng.h"
#include "logical.h"
#include "streams.h"

enum { far_by = 92 }; /* binary orders of q·k; the scale may add 20, and tails and their sums 14 */

static double least_normal(assay_dtype dtype) {
  return dtype == ASSAY_F16 ? 0x1p-14 : dtype == ASSAY_E4M3 ? 0x1p-6 : dtype == ASSAY_E5M2 ? 0x1p-14 : 0x1p-126;
}

static double largest_of(const assay_op *op, assay_dtype dtype) {
  const bool added = op->largest >= 0x1p126 && op->largest < 0x1p127; /* two such numbers add up to a finite one */
  if (dtype == ASSAY_F16) return added ? 32752 : 65504;
  return op->largest > 0 ? op->largest : 0x1p100;
}

/* Returns the number, or the last finite one of f16 or bf16. The end of f32 becomes Inf there. */
static double held(double value, assay_dtype dtype) {
  const double most = dtype == ASSAY_F16 ? 65504 : 0x1.FEp127;
  return dtype == ASSAY_F16 || dtype == ASSAY_BF16 ? fmin(fmax(value, -most), most) : value;
}

static bool is_listed(const char *list, const char *name) {
  const size_t n = strlen(name);
  for (const char *at = list; *at != '\0'; at += *at == ',') {
    const size_t m = strcspn(at, ",");
    if (m == n && memcmp(at, name, n) == 0) return true;
    at += m;
  }
  return false;
}

/* Tells whether magnitudes have a meaning for the argument. */
static bool may_take(const assay_case *one, int32_t arg) {
  const assay_arg *about = &one->op->args[arg];
  const bool given = !about->optional || ((one->present >> arg) & 1) != 0;
  if (about->content != ASSAY_VALUES || !given) return false;
  if (one->op->extreme_args != NULL) return is_listed(one->op->extreme_args, about->name);
  return strstr(about->dtypes, "i32") == NULL && strstr(about->dtypes, "i64") == NULL;
}

/* Several arguments at once may have large numbers where the operator's definition multiplies none of them. */
static bool may_have_all(const assay_case *one) {
  return one->magnitude != ASSAY_LARGE || one->op->largest >= 0x1p126;
}

static bool paged_takes(const assay_case *one, int32_t tensor) {
  const uint64_t draw = logical_hash(one, STREAM_MAGNITUDE);
  if (one->magnitude != ASSAY_SMALL) return tensor == MAGNITUDE_V;
  return (draw & 3) == 0 || (int32_t)(draw >> 2 & 3) % 3 == tensor - MAGNITUDE_Q;
}

bool magnitude_takes(const assay_case *one, int32_t arg) {
  int32_t count = 0, place = -1;
  if (one->magnitude == ASSAY_USUAL) return false;
  if (arg >= MAGNITUDE_Q) return paged_takes(one, arg);
  for (int32_t i = 0; i < one->op->arg_count; ++i) {
    if (i == arg && may_take(one, i)) place = count;
    count += may_take(one, i);
  }
  const uint64_t draw = logical_hash(one, STREAM_MAGNITUDE);
  if (place < 0) return false;
  return ((draw & 3) == 0 && may_have_all(one)) || (int32_t)((draw >> 2) % (uint64_t)count) == place;
}

/* Returns zeros of both signs, the least numbers, and numbers on both sides of the least normal one. */
static double small_number(uint64_t word, assay_dtype dtype, double value) {
  const double normal = least_normal(dtype), least = assay_ulp(0, dtype);
  const double sign = (word & 1) != 0 ? -1 : 1;
  switch (word >> 1 & 7) {
  case 0:
    return sign * 0.0;
  case 1:
    return sign * least;
  case 2:
    return sign * (double)(1 + (word >> 8 & 15)) * least;
  case 3:
    return sign * (normal - ((word & 16) != 0 ? least : 0));
  case 4:
    return value * normal * 64;
  default:
    return value * normal;
  }
}

/* Returns numbers near `top`, and some up to 2^-16 of it. */
static double large_number(uint64_t word, double top) {
  const double sign = (word & 1) != 0 ? -1 : 1, unit = (double)(word >> 40) * 0x1p-24;
  if ((word & 6) != 0) return sign * top * (1 - unit * 0x1p-4);
  return sign * ldexp(top * (0.5 + 0.5 * unit), -(int)(word >> 3 & 15));
}

static double mixed_number(uint64_t word, assay_dtype dtype, double value) {
  const int reach = dtype == ASSAY_F16 ? 6 : 20;
  switch (word >> 60) {
  case 0:
    return (word & 1) != 0 ? -0.0 : 0.0;
  case 1:
  case 2:
    return small_number(word, dtype, value);
  case 3:
    return ldexp(value, reach);
  case 4:
  case 5:
    return ldexp(value, -reach);
  default:
    return value;
  }
}

/* Returns the top of a row: the largest number, far less, or close to the root of 2^128 over the row's length, on
 * either side. There a sum of squares leaves the range of f32. */
static double top_of_row(uint64_t word, double largest, assay_dtype dtype, int64_t row) {
  if (dtype == ASSAY_F16) return largest;
  const double border = 0x1p64 / sqrt((double)row), side = (word & 16) != 0 ? 1.06 : 0.97;
  switch (word & 3) {
  case 0:
    return border < largest ? border * side : largest;
  case 1:
    return ldexp(largest, -(int)(word >> 8 & 63));
  default:
    return largest;
  }
}

static void change(const assay_case *one, uint64_t stream, assay_dtype dtype, double top, double *value,
                   int64_t count) {
  assay_rng rng = {one->seed, stream, 0};
  for (int64_t i = 0; i < count; ++i) {
    const uint64_t word = assay_rng_u64(&rng);
    if (!assay_is_finite(value[i])) continue;
    value[i] = one->magnitude == ASSAY_SMALL   ? small_number(word, dtype, value[i])
               : one->magnitude == ASSAY_LARGE ? held(large_number(word, top), dtype)
                                               : mixed_number(word, dtype, value[i]);
  }
}

void magnitude_apply(const assay_case *one, int32_t arg, assay_dtype dtype, int64_t row, double *value, int64_t count) {
  if (!magnitude_takes(one, arg) || row < 1) return;
  const double largest = largest_of(one->op, dtype);
  for (int64_t i = 0; i < count; i += row) {
    const uint64_t stream = STREAM_MAGNITUDE + ((uint64_t)arg << 16) + ((uint64_t)(i / row + 1) << 24);
    change(one, stream, dtype, top_of_row(logical_hash(one, stream ^ 1), largest, dtype, row), value + i,
           row < count - i ? row : count - i);
  }
}

static int32_t gamma_of(const assay_op *op) {
  for (int32_t i = 0; i < op->arg_count; ++i)
    if (op->args[i].content == ASSAY_GAMMA) return i;
  return -1;
}

/* Gates are sums of scores. In half of their small cases scores are about 2^-24, and v is 2^10 times as large. The
 * tails of v would become Inf in f16, and end at its largest number. */
static bool small_gates(const assay_case *one) {
  return one->magnitude == ASSAY_SMALL && gamma_of(one->op) >= 0 && (logical_hash(one, STREAM_MAGNITUDE) >> 8 & 1) != 0;
}

static bool has_scores(const assay_op *op) {
  for (int32_t i = 0; i < op->param_count; ++i)
    if (strcmp(op->params[i].name, "scale") == 0) return true;
  return false;
}

/* Tells whether q and K are large, in place of V: in three of four large cases of a softmax. Scores are then about
 * 2^95, and in three quarters of these cases all are negative. f16 has no such numbers, and beside fp8 q has all of it.
 */
static bool far_scores(const assay_case *one) {
  const int32_t gamma = gamma_of(one->op);
  const bool gates = gamma >= 0 && (!one->op->args[gamma].optional || ((one->present >> gamma) & 1) != 0);
  return one->magnitude == ASSAY_LARGE && (logical_hash(one, STREAM_MAGNITUDE) >> 8 & 3) != 0 && has_scores(one->op) &&
         !gates && one->dtype != ASSAY_F16;
}

void magnitude_vector(const assay_case *one, int32_t tensor, uint64_t identity, assay_dtype dtype, double *value,
                      int64_t count) {
  if (one->magnitude == ASSAY_USUAL) return;
  if (small_gates(one)) {
    for (int64_t i = 0; i < count; ++i)
      value[i] = held(ldexp(value[i], tensor == MAGNITUDE_V ? 10 : -12), dtype);
    return;
  }
  if (far_scores(one)) {
    const bool below = (logical_hash(one, STREAM_MAGNITUDE) >> 10 & 3) != 0, both = one->kv_dtype == one->dtype;
    const int own = both ? far_by / 2 : tensor == MAGNITUDE_Q ? far_by : 0;
    for (int64_t i = 0; i < count && tensor != MAGNITUDE_V; ++i) {
      const double far = ldexp(value[i], own), size = tensor == MAGNITUDE_Q ? fabs(far) : -fabs(far);
      value[i] = held(below ? size : far, dtype);
    }
    return;
  }
  if (!magnitude_takes(one, tensor)) return;
  change(one, STREAM_MAGNITUDE + ((uint64_t)tensor << 16) + (identity + 1) * 0x9E3779B97F4A7C15u, dtype,
         largest_of(one->op, dtype), value, count);
}
