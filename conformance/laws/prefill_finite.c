/* prefill_finite.c: the law `prefill_finite`: finite numbers in outputs and workspace before the call do not show in
 * the result. The other runs fill them with NaN, and maximum and minimum drop a NaN. A kernel that adds to its output
 * with fmaxf is thus right over NaN and wrong over numbers. */
#include <string.h>

#include "laws_internal.h"
#include "prefill.h"

/* A byte that makes a finite positive number of every type: 0.0115 in f32 and bf16, 1.06 in f16, 1.5 in e4m3. */
enum { FINITE_BYTE = 0x3C };

static void fill_finite(const trial *t, const outputs *base, image *img, int32_t output, unsigned char *bytes,
                        int64_t count) {
  (void)t;
  (void)base;
  (void)img;
  (void)output;
  memset(bytes, FINITE_BYTE, (size_t)count);
}

bool prefill_finite_applies(const trial *t) {
  return prefill_applies(t);
}

bool prefill_finite_check(const trial *t, const outputs *base, case_result *result) {
  return prefill_check(t, base, fill_finite, "prefill_finite",
                       "when outputs and workspace held finite numbers before the call", result);
}
