/* prefill_results.c: the law `prefill_results`: what outputs and workspace held before the call does not show. It was
 * infinities, every kind of number side by side, the results of other rows, or the right results. A kernel may read
 * what it should overwrite, act only where it sees a NaN, or turn NaN into 0 and forget infinity. */
#include <math.h>
#include <string.h>

#include "conformance/generate/generate.h"
#include "core/dtype.h"
#include "laws_internal.h"
#include "prefill.h"

typedef enum old_kind { OLD_INFINITE, OLD_MIXED, OLD_NEIGHBOURS, OLD_RIGHT, OLD_KINDS } old_kind;

enum { LAW_ID = 10 };

static old_kind kind_of(const trial *t) {
  return (old_kind)(logical_hash(t->one, STREAM_LAWS + ((uint64_t)LAW_ID << 16)) >> 32 & (OLD_KINDS - 1));
}

static double old_number(old_kind kind, int64_t i) {
  static const double mixed[] = {(double)INFINITY, 1, (double)NAN, -0.0, -(double)INFINITY, 65504, 0, 0x1p-24, -1};
  if (kind == OLD_INFINITE) return i % 2 == 0 ? (double)INFINITY : -(double)INFINITY;
  return mixed[i % (int64_t)(sizeof mixed / sizeof mixed[0])];
}

static int64_t old_integer(int64_t i) {
  static const int64_t mixed[] = {0, 1, -1, INT32_MAX, 7, INT32_MIN};
  return mixed[i % (int64_t)(sizeof mixed / sizeof mixed[0])];
}

static void fill_numbers(old_kind kind, assay_dtype dtype, unsigned char *bytes, int64_t count) {
  const int64_t size = assay_dtype_size(dtype);
  for (int64_t i = 0; i < count / size; ++i) {
    if (dtype == ASSAY_I32)
      ((int32_t *)(void *)bytes)[i] = (int32_t)old_integer(i);
    else if (dtype == ASSAY_I64)
      ((int64_t *)(void *)bytes)[i] = old_integer(i);
    else
      assay_store_f64(bytes, dtype, i, old_number(kind, i));
  }
}

/* Fills one output, with what lies between its rows, or the workspace. A workspace has no results: it holds numbers, or
 * nothing but zeros, as fresh memory does. */
static void fill_old(const trial *t, const outputs *base, image *img, int32_t output, unsigned char *bytes,
                     int64_t count) {
  const old_kind kind = kind_of(t);
  if (output < 0) {
    memset(bytes, 0, (size_t)count);
    if (kind != OLD_RIGHT) fill_numbers(kind, ASSAY_F32, bytes, count);
    return;
  }
  fill_numbers(kind == OLD_INFINITE ? OLD_INFINITE : OLD_MIXED, t->output[output].dtype, bytes, count);
  if (kind == OLD_NEIGHBOURS || kind == OLD_RIGHT)
    outputs_scatter(t, img, output, base->bits[output], kind == OLD_NEIGHBOURS ? 1 : 0);
}

bool prefill_results_applies(const trial *t) {
  return prefill_applies(t);
}

bool prefill_results_check(const trial *t, const outputs *base, case_result *result) {
  static const char *const when[OLD_KINDS] = {
      "when outputs and workspace held infinities before the call",
      "when outputs and workspace held numbers, NaN and infinities side by side before the call",
      "when outputs held the results of the next rows before the call",
      "when outputs held the right results before the call"};
  return prefill_check(t, base, fill_old, "prefill_results", when[kind_of(t)], result);
}
