/* rope_table: cosines and sines of rotary positions, for frequencies that a longer context stretches. For position n
 * and frequency i of R / 2, with p_i = base^(2 i / R):
 *
 *   cos_ni = c · cos(n · inv_i)          sin_ni = c · sin(n · inv_i)
 *
 *   plain    inv_i = 1 / p_i, c = 1
 *   yarn     d(b) = R · ln(original / (2 pi b)) / (2 ln base), lo = d(beta_fast), hi = d(beta_slow)
 *            truncate: lo = floor(lo), hi = ceil(hi)
 *            Both are cut to [0, R - 1]. Where they are equal, hi = lo + 0.001.
 *            r_i = clamp((i - lo) / (hi - lo), 0, 1), inv_i = (1 - r_i) / p_i + r_i / (factor · p_i)
 *            c = concentration, or 0.1 ln(factor) + 1 where that is 0
 *   llama3   c = 1. The wavelength w is 2 pi p_i.
 *            For w < original / high, inv_i is 1 / p_i.
 *            For w > original / low, inv_i is 1 / (factor · p_i).
 *            Between them, with s = (original / w - low) / (high - low), it is (1 - s) / (factor · p_i) + s / p_i.
 *
 * The angle is f64, and the product is rounded once. Source: docs/definitions.md, section 4. */
#include <math.h>
#include <stdlib.h>

#include "core/dtype.h"
#include "ref/lib/error_model.h"
#include "ref/lib/plain.h"
#include "ref/lib/rope_stretch.h"
#include "ref/lib/rowwise.h"

enum { ARG_COS, ARG_SIN, ARG_COUNT };
enum {
  PARAM_KIND,
  PARAM_BASE,
  PARAM_FACTOR,
  PARAM_ORIGINAL,
  PARAM_BETA_FAST,
  PARAM_BETA_SLOW,
  PARAM_TRUNCATE,
  PARAM_CONCENTRATION,
  PARAM_LOW,
  PARAM_HIGH,
  PARAM_COUNT
};

const assay_op *assay_op_rope_table(void);

typedef enum table_spoil {
  SPOIL_NONE = -1,
  SPOIL_RAMP_TURNED_ROUND,     /* low frequencies stay, and high ones are stretched */
  SPOIL_TRUNCATE_LOST,         /* the ends of the ramp are not rounded, or are where they should not be */
  SPOIL_CONCENTRATION_LOST,    /* c = 1 */
  SPOIL_CONCENTRATION_SQUARED, /* c is applied twice */
  SPOIL_TABLE_IN_BF16          /* the table is rounded to bf16 */
} table_spoil;

/* ---- adapter ----------------------------------------------------------------------------------------- */

static rope_stretch read_frequencies(const assay_call *call) {
  const double *p = call->param;
  return (rope_stretch){.R = 2 * call->arg[ARG_COS].shape[1],
                        .kind = (int32_t)p[PARAM_KIND],
                        .base = p[PARAM_BASE],
                        .factor = p[PARAM_FACTOR],
                        .original = p[PARAM_ORIGINAL],
                        .beta_fast = p[PARAM_BETA_FAST],
                        .beta_slow = p[PARAM_BETA_SLOW],
                        .concentration = p[PARAM_CONCENTRATION],
                        .low = p[PARAM_LOW],
                        .high = p[PARAM_HIGH],
                        .truncate = p[PARAM_TRUNCATE] != 0};
}

static assay_status check(const assay_call *call, assay_error *error) {
  const assay_status status = plain_check_call(call, error);
  if (status != ASSAY_OK) return status;
  const rope_stretch f = read_frequencies(call);
  if (f.kind == STRETCH_LLAMA3 && !(f.low < f.high))
    return assay_fail(error, ASSAY_ERR_INPUT, "high: found %g, allowed more than low = %g", f.high, f.low);
  if (f.kind == STRETCH_YARN && !(f.beta_slow <= f.beta_fast))
    return assay_fail(error, ASSAY_ERR_INPUT, "beta_fast: found %g, allowed from beta_slow = %g on", f.beta_fast,
                      f.beta_slow);
  return ASSAY_OK;
}

static void spoil_frequencies(rope_stretch *f, table_spoil spoil) {
  if (f->kind != STRETCH_YARN) return;
  if (spoil == SPOIL_RAMP_TURNED_ROUND) f->turned = true;
  if (spoil == SPOIL_TRUNCATE_LOST) f->truncate = !f->truncate;
  if (spoil == SPOIL_CONCENTRATION_LOST) f->concentration = 1;
  if (spoil == SPOIL_CONCENTRATION_SQUARED)
    f->concentration = rope_stretch_concentration(f) * rope_stretch_concentration(f);
}

static assay_status compute(const assay_call *call, const assay_rows *rows, table_spoil spoil, assay_expected *expected,
                            assay_error *error) {
  const int64_t half = call->arg[ARG_COS].shape[1], count = rowwise_count(rows, call->arg[ARG_COS].shape[0]);
  rope_stretch f = read_frequencies(call);
  double *inverse;
  const assay_status status = rowwise_reserve(call, half, &inverse, error);
  if (status != ASSAY_OK) return status;
  spoil_frequencies(&f, spoil);
  const double c = rope_stretch_concentration(&f);
  for (int64_t i = 0; i < half; ++i)
    inverse[i] = rope_stretch_inverse(&f, i);
  for (int64_t r = 0; r < count; ++r) {
    const double position = (double)rowwise_index(rows, r);
    for (int64_t i = 0; i < half; ++i)
      for (int32_t o = 0; o < ARG_COUNT; ++o) {
        const double angle = position * inverse[i], value = c * (o == ARG_COS ? cos(angle) : sin(angle));
        const int64_t at = r * half + i;
        expected[o].value[at] = spoil == SPOIL_TABLE_IN_BF16 ? assay_round_f64(value, ASSAY_BF16) : value;
        /* f64 knows the angle within 2^-51 of it, and the functions within an ulp. */
        const double off = c * (fabs(angle) * 0x1p-51 + 0x1p-52);
        if (expected[o].sigma != NULL)
          expected[o].sigma[at] = position > 0 ? sqrt(rounding_variance(value, ASSAY_F32) + off * off) : 0;
      }
  }
  free(inverse);
  return ASSAY_OK;
}

static assay_status reference(const assay_call *call, const assay_contract *contract, const assay_rows *rows,
                              bool exact, assay_expected *expected, assay_seen *seen, assay_error *error) {
  (void)contract;
  (void)seen;
  if (exact)
    return assay_fail(error, ASSAY_ERR_INPUT, "exact tier: rope_table has none: cosines and sines are rounded");
  return compute(call, rows, SPOIL_NONE, expected, error);
}

static assay_status spoil(const assay_call *call, const assay_contract *contract, const assay_rows *rows, int32_t index,
                          assay_expected *expected, assay_error *error) {
  (void)contract;
  assay_expected values[ARG_COUNT] = {{expected[0].value, NULL}, {expected[1].value, NULL}};
  return compute(call, rows, (table_spoil)index, values, error);
}

static assay_cost cost(const assay_call *call, const assay_seen *seen) {
  (void)seen;
  const double elements = (double)(call->arg[ARG_COS].shape[0] * call->arg[ARG_COS].shape[1]);
  return (assay_cost){4 * elements, 8 * elements};
}

/* No argument holds values. */
static assay_status fill(const assay_fill *from, int32_t arg, double *value, int64_t count, assay_error *error) {
  (void)from;
  (void)arg;
  (void)error;
  for (int64_t i = 0; i < count; ++i)
    value[i] = 0;
  return ASSAY_OK;
}

/* ---- the table --------------------------------------------------------------------------------------- */

static const assay_dim dims[] = {
    {"max_pos", 1, 1 << 20, 64, 1, "positions"},
    {"R", 2, 1024, 64, 2, "rotated channels: two per frequency"},
};

static const assay_arg args[ARG_COUNT] = {
    {"cos", ASSAY_OUT, ASSAY_RESULT, false, "f32", "max_pos,R/2", "cosines", true},
    {"sin", ASSAY_OUT, ASSAY_RESULT, false, "f32", "max_pos,R/2", "sines", true},
};

static const assay_param params[PARAM_COUNT] = {
    {"kind", ASSAY_ENUM, 0, 2, 0, "plain,yarn,llama3", "how frequencies are stretched"},
    {"base", ASSAY_REAL, 2, 1e9, 10000, NULL, "base of the frequencies"},
    {"factor", ASSAY_REAL, 1, 1024, 1, NULL, "how many times the context is longer"},
    {"original", ASSAY_REAL, 1, 1 << 24, 4096, NULL, "the context that the model was trained for"},
    {"beta_fast", ASSAY_REAL, 0.01, 1024, 32, NULL, "yarn: rotations from which frequencies stay"},
    {"beta_slow", ASSAY_REAL, 0.01, 1024, 1, NULL, "yarn: rotations up to which they are stretched"},
    {"truncate", ASSAY_BOOL, 0, 1, 1, NULL, "yarn: the ramp begins and ends at whole frequencies"},
    {"concentration", ASSAY_REAL, 0, 16, 0, NULL, "yarn: factor of the table; 0: 0.1 ln(factor) + 1"},
    {"low", ASSAY_REAL, 0.01, 1024, 1, NULL, "llama3: wavelengths beyond original / low are stretched"},
    {"high", ASSAY_REAL, 0.01, 1024, 4, NULL, "llama3: wavelengths below original / high stay"},
};

static const assay_op op = {
    .name = "rope_table",
    .title = "cosines and sines of rotary positions, for stretched contexts",
    .source = "docs/definitions.md, section 4",
    .dims = dims,
    .dim_count = (int32_t)(sizeof dims / sizeof dims[0]),
    .args = args,
    .arg_count = ARG_COUNT,
    .params = params,
    .param_count = PARAM_COUNT,
    .laws = "run_to_run,dead_bytes",
    .spoils = "ramp_turned_round,truncate_lost,concentration_lost,concentration_squared,table_in_bf16",
    .kappa_element = 3.2,
    .form = ASSAY_PLAIN,
    .inexact = true,
    .axes = "kind",
    .confirmed_by = "powers of a complex number, and the frequencies of gpt-oss and Llama 3.1 worked out by hand "
                    "(ref_rope_table_test)",
    .check = check,
    .reference = reference,
    .cost = cost,
    .fill = fill,
    .spoil = spoil,
};

const assay_op *assay_op_rope_table(void) {
  return &op;
}
