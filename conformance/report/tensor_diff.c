/* tensor_diff.c: distances in ulp, their histogram, and where they are. */
#include "tensor_diff.h"

#include <math.h>
#include <string.h>

#include "core/dtype.h"

/* Upper edges of the bins. A distance above the last edge falls into the last bin; NaN has a bin of its own. */
static const double edge[DIFF_BINS - 1] = {0, 0.5, 1, 2, 4, 8, 16, 64, 256, 4096, 1048576};

/* Significand bits; integers: 64. */
static int precision(int type) {
  switch (type) {
  case ASSAY_F32:
    return 24;
  case ASSAY_F16:
    return 11;
  case ASSAY_BF16:
    return 8;
  case ASSAY_E4M3:
    return 4;
  case ASSAY_E5M2:
    return 3;
  case NPY_F64:
    return 53;
  default:
    return 64;
  }
}

static double ulp_of(double value, int type) {
  if (type == NPY_F64) {
    const double size = fabs(value), next = nextafter(size, INFINITY);
    return next - size;
  }
  const int bits = precision(type);
  return bits == 64 ? 1.0 : assay_ulp(value, (assay_dtype)type);
}

/* Returns the bits as an integer whose order is that of the values; both zeros are 0. */
static int64_t ordered(const npy_tensor *t, int64_t index) {
  const int64_t size = npy_size(t->type);
  uint64_t bits = 0;
  memcpy(&bits, t->data + index * size, (size_t)size); /* little-endian, as everything here */
  const uint64_t sign = (uint64_t)1 << (8 * size - 1), magnitude = bits & (sign - 1);
  return (bits & sign) != 0 ? -(int64_t)magnitude : (int64_t)magnitude;
}

double tensor_distance(const npy_tensor *a, const npy_tensor *b, int type, int64_t index) {
  const double x = npy_load(a, index), y = npy_load(b, index);
  const int x_nan = assay_is_nan(x), y_nan = assay_is_nan(y);
  if (x_nan || y_nan) return x_nan && y_nan ? 0 : INFINITY;
  if (x == y) return 0;
  if (a->type == b->type && precision(type) < 64) {
    const int64_t p = ordered(a, index), q = ordered(b, index);
    return fabs((double)p - (double)q);
  }
  if (!assay_is_finite(x) || !assay_is_finite(y)) return INFINITY;
  return fabs(x - y) / ulp_of(fmax(fabs(x), fabs(y)), type);
}

static int bin_of(double distance, int nan) {
  int b = 0;
  if (nan) return DIFF_BINS;
  while (b < DIFF_BINS - 1 && !(distance <= edge[b]))
    ++b;
  return b;
}

static int nan_on_one_side(const npy_tensor *a, const npy_tensor *b, int64_t i) {
  return assay_is_nan(npy_load(a, i)) != assay_is_nan(npy_load(b, i));
}

assay_status tensor_diff_make(const npy_tensor *a, const npy_tensor *b, tensor_diff *made, assay_error *error) {
  bool same = a->rank == b->rank;
  for (int32_t i = 0; i < a->rank && same; ++i)
    same = a->shape[i] == b->shape[i];
  if (!same) {
    char text[2][160] = {"", ""};
    for (int t = 0; t < 2; ++t)
      for (int32_t i = 0; i < (t == 0 ? a : b)->rank; ++i)
        (void)snprintf(text[t] + strlen(text[t]), sizeof text[t] - strlen(text[t]), "%s%lld", i > 0 ? "," : "",
                       (long long)(t == 0 ? a : b)->shape[i]);
    return assay_fail(error, ASSAY_ERR_INPUT, "shapes differ: %s and %s", text[0], text[1]);
  }
  *made = (tensor_diff){.type = precision(a->type) <= precision(b->type) ? a->type : b->type,
                        .count = a->count,
                        .first = -1,
                        .worst = -1};
  double squares = 0;
  int64_t counted = 0;
  for (int64_t i = 0; i < a->count; ++i) {
    const double distance = tensor_distance(a, b, made->type, i);
    const int nan = nan_on_one_side(a, b, i);
    ++made->bin[bin_of(distance, nan)];
    made->one_nan += nan;
    made->both_nan += !nan && assay_is_nan(npy_load(a, i));
    if (!nan && distance < INFINITY) {
      squares += distance * distance;
      ++counted;
    }
    if (!(distance > 0)) continue;
    ++made->different;
    if (made->first < 0) made->first = i;
    if (made->worst < 0 || distance > made->worst_ulp) {
      made->worst = i;
      made->worst_ulp = distance;
    }
  }
  if (made->worst >= 0) made->worst_absolute = fabs(npy_load(a, made->worst) - npy_load(b, made->worst));
  made->rms_ulp = counted > 0 ? sqrt(squares / (double)counted) : 0;
  return ASSAY_OK;
}

/* ---- text -------------------------------------------------------------------------------------------- */

static void print_element(const char *what, const tensor_diff *d, const npy_tensor *a, const npy_tensor *b, int64_t at,
                          FILE *to) {
  int64_t index[ASSAY_MAX_RANK] = {0}, rest = at;
  for (int32_t i = a->rank - 1; i >= 0; --i) {
    index[i] = a->shape[i] > 0 ? rest % a->shape[i] : 0;
    rest = a->shape[i] > 0 ? rest / a->shape[i] : 0;
  }
  const double distance = tensor_distance(a, b, d->type, at);
  (void)fprintf(to, "%-6s [", what);
  for (int32_t i = 0; i < a->rank; ++i)
    (void)fprintf(to, "%s%lld", i > 0 ? ", " : "", (long long)index[i]);
  (void)fprintf(to, "]: %.9g and %.9g", npy_load(a, at), npy_load(b, at));
  if (nan_on_one_side(a, b, at))
    (void)fputs(", NaN on one side\n", to);
  else
    (void)fprintf(to, ", %.4g ulp\n", distance);
}

static void print_histogram(const tensor_diff *d, FILE *to) {
  static const char bar[] = "########################################";
  int64_t most = 1;
  for (int b = 0; b <= DIFF_BINS; ++b)
    most = d->bin[b] > most ? d->bin[b] : most;
  for (int b = 0; b <= DIFF_BINS; ++b) {
    char label[32];
    if (d->bin[b] == 0) continue;
    if (b == DIFF_BINS)
      (void)snprintf(label, sizeof label, "one NaN");
    else if (b == DIFF_BINS - 1)
      (void)snprintf(label, sizeof label, "> %g", edge[b - 1]);
    else
      (void)snprintf(label, sizeof label, "%s%g", b > 0 ? "<= " : "", edge[b]);
    const double share = log((double)d->bin[b] + 1) / log((double)most + 1);
    (void)fprintf(to, "  %10s ulp %12lld %.*s\n", label, (long long)d->bin[b], (int)(share * 40 + 0.5), bar);
  }
}

void tensor_diff_print(const tensor_diff *d, const npy_tensor *a, const npy_tensor *b, int64_t show, FILE *to) {
  (void)fprintf(to, "%lld elements (%s and %s), %lld differ", (long long)d->count, npy_type_name(a->type),
                npy_type_name(b->type), (long long)d->different);
  if (d->one_nan > 0) (void)fprintf(to, ", %lld of them NaN on one side", (long long)d->one_nan);
  if (d->both_nan > 0) (void)fprintf(to, ", %lld NaN on both", (long long)d->both_nan);
  (void)fprintf(to, "; RMS %.4g ulp of %s\n", d->rms_ulp, npy_type_name(d->type));
  print_histogram(d, to);
  if (d->first < 0) return;
  print_element("first", d, a, b, d->first, to);
  print_element("worst", d, a, b, d->worst, to);
  for (int64_t i = d->first + 1; i < d->count && show > 0; ++i)
    if (tensor_distance(a, b, d->type, i) > 0) {
      print_element("", d, a, b, i, to);
      --show;
    }
}
