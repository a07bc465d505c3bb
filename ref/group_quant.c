/* group_quant: stores rows as e4m3 with one f32 scale for every 128 channels, or for every row. For a group G of row m,
 * the last of which may be short:
 *
 *   a = max(max_{c in G} |x_c|, eps)        over the finite x_c
 *   s = fl(a / 448);  with ue8m0 the least power of two from there on: exponent + 1 if the fraction is not 0
 *   q_c = e4m3(fl(x_c / s))                 nearest, ties to even, at most 448 in size
 *
 * NaN becomes the code 0x7F, and ±Inf becomes ±448. Exactly one of scale [M, S], scale_t [S, M] and scale_row [M] is
 * present. With scale_row a group is a row. Source: docs/definitions.md, section 13. */
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/dtype.h"
#include "core/rng.h"
#include "ref/lib/plain.h"
#include "ref/lib/rowwise.h"

enum { ARG_X, ARG_Q, ARG_SCALE, ARG_SCALE_T, ARG_SCALE_ROW, ARG_COUNT };
enum { PARAM_UE8M0, PARAM_EPS, PARAM_COUNT };
enum { GROUP = 128 };

const assay_op *assay_op_group_quant(void);

typedef enum quant_spoil {
  SPOIL_NONE = -1,
  SPOIL_SCALE_OF_GROUP_BEFORE, /* codes by the scale of the group before in the row */
  SPOIL_TIE_AWAY,              /* ties away from zero */
  SPOIL_SCALE_POW2_CODES_NOT,  /* ue8m0: codes by the scale before it becomes a power of two */
  SPOIL_UE8M0_FLOOR_FOR_CEIL,  /* ue8m0: the power of two below */
  SPOIL_LEAST_SCALE_LOST,      /* no scale below 2^-33 */
  SPOIL_ZERO_AMAX_NAN,         /* a group of zeros is divided by 0 */
  SPOIL_SHORT_GROUP_READS_ON   /* a short group takes in the beginning of the next row */
} quant_spoil;

/* ---- the definition ---------------------------------------------------------------------------------- */

/* Returns the largest |x| among the finite numbers. */
static float finite_amax(const double *x, int64_t count) {
  float a = 0;
  for (int64_t c = 0; c < count; ++c)
    if (fabs(x[c]) <= (double)FLT_MAX) a = fmaxf(a, (float)fabs(x[c]));
  return a;
}

/* Returns the least power of two that is not below s > 0, of exponent fields 1 to 254. */
static float power_of_two_from(float s, bool floor_instead) {
  uint32_t bits;
  memcpy(&bits, &s, sizeof bits);
  uint32_t field = bits >> 23;
  if ((bits & 0x7FFFFFu) != 0 && !floor_instead) ++field;
  bits = (field < 1 ? 1 : field > 254 ? 254 : field) << 23;
  memcpy(&s, &bits, sizeof s);
  return s;
}

/* Returns the scale before ue8m0, as the contract stores it. */
static float scale_of(float a, assay_stored_scale stored) {
  if (stored == ASSAY_STORED_PRODUCT) return a * (1.0f / 448.0f);
  if (stored == ASSAY_STORED_INVERSE) return 1.0f / (448.0f / a);
  return a / 448.0f;
}

/* Returns x divided by the scale s of a group with this a, in the contract's chain of roundings. */
static float quotient(float x, float a, float s, bool ue8m0, assay_quotient chain) {
  if (chain == ASSAY_QUOTIENT_RECIPROCAL) return x * (1.0f / s);
  if (chain == ASSAY_QUOTIENT_INVERSE_AMAX) return x * (ue8m0 ? 1.0f / s : 448.0f / a);
  return x / s;
}

/* ---- adapter ----------------------------------------------------------------------------------------- */

typedef struct quantiser {
  int64_t M, C, width, S; /* width: channels of a group */
  bool ue8m0;
  float eps;
  assay_quotient chain;
  assay_stored_scale stored;
  quant_spoil spoil;
} quantiser;

static int32_t scale_arg(const assay_call *call) {
  for (int32_t i = ARG_SCALE; i < ARG_SCALE_ROW; ++i)
    if (call->arg[i].data != NULL) return i;
  return ARG_SCALE_ROW;
}

static quantiser quantiser_of(const assay_call *call, const assay_contract *contract, quant_spoil spoil) {
  quantiser z = {.M = call->arg[ARG_X].shape[0], .C = call->arg[ARG_X].shape[1], .spoil = spoil};
  z.width = scale_arg(call) == ARG_SCALE_ROW ? z.C : GROUP;
  z.S = (z.C + z.width - 1) / z.width;
  z.ue8m0 = call->param[PARAM_UE8M0] != 0;
  z.eps = (float)call->param[PARAM_EPS];
  if (contract != NULL) z.chain = contract->quotient;
  if (contract != NULL) z.stored = contract->stored_scale;
  return z;
}

static assay_status check(const assay_call *call, assay_error *error) {
  const assay_status status = plain_check_call(call, error);
  if (status != ASSAY_OK) return status;
  int32_t given = 0;
  for (int32_t i = ARG_SCALE; i <= ARG_SCALE_ROW; ++i)
    given += call->arg[i].data != NULL;
  if (given == 1 || call->arg[ARG_X].shape[0] == 0) return ASSAY_OK;
  return assay_fail(error, ASSAY_ERR_INPUT, "scale: found %d of scale, scale_t, scale_row, allowed exactly one", given);
}

/* Computes a and s of the groups of a row x [C]. next: the row after it, or NULL. */
static void scales(const quantiser *z, const double *x, const double *next, float *a, float *s) {
  for (int64_t g = 0; g < z->S; ++g) {
    const int64_t first = g * z->width, left = z->C - first, count = left < z->width ? left : z->width;
    float amax = finite_amax(x + first, count);
    if (z->spoil == SPOIL_SHORT_GROUP_READS_ON && next != NULL && count < z->width)
      amax = fmaxf(amax, finite_amax(next, z->width - count < z->C ? z->width - count : z->C));
    const bool none = z->spoil == SPOIL_ZERO_AMAX_NAN && !(amax > 0);
    a[g] = none ? 0 : fmaxf(amax, z->eps);
    s[g] = scale_of(a[g], z->stored);
    if (z->spoil == SPOIL_LEAST_SCALE_LOST) s[g] = fmaxf(s[g], 0x1p-33f);
    if (z->ue8m0 && !none) s[g] = power_of_two_from(s[g], z->spoil == SPOIL_UE8M0_FLOOR_FOR_CEIL);
  }
}

/* Returns the code nearest to y, ties away from zero. */
static double tie_away(double y) {
  const double code = assay_round_f64(y, ASSAY_E4M3), beyond = y + (y < 0 ? -0x1p-30 : 0x1p-30) * fabs(y);
  return fabs(code) < fabs(y) ? assay_round_f64(beyond, ASSAY_E4M3) : code;
}

static double code_of(const quantiser *z, const float *a, const float *s, int64_t c, double x) {
  const int64_t own = c / z->width, g = z->spoil == SPOIL_SCALE_OF_GROUP_BEFORE ? (own + z->S - 1) % z->S : own;
  const bool exact_scale = z->spoil == SPOIL_SCALE_POW2_CODES_NOT && z->ue8m0;
  const float by = exact_scale ? scale_of(a[g], z->stored) : s[g];
  const double y = (double)quotient((float)x, a[g], by, z->ue8m0, z->chain);
  return z->spoil == SPOIL_TIE_AWAY ? tie_away(y) : assay_round_f64(y, ASSAY_E4M3);
}

/* The memory of one row: x, the row after it, a and s of its groups. */
typedef struct quant_row {
  double *x, *next;
  float *a, *s;
} quant_row;

static assay_status take_memory(const assay_call *call, const quantiser *z, quant_row *row, assay_error *error) {
  const assay_status status = rowwise_reserve(call, 2 * z->C + z->S, &row->x, error);
  if (status != ASSAY_OK) return status;
  row->next = row->x + z->C;
  row->a = (float *)(row->next + z->C);
  row->s = row->a + z->S;
  return ASSAY_OK;
}

static void load(const assay_call *call, const quantiser *z, int64_t m, quant_row *row) {
  const bool reads_on = z->spoil == SPOIL_SHORT_GROUP_READS_ON && m + 1 < z->M;
  plain_load_row(&call->arg[ARG_X], m, row->x);
  if (reads_on) plain_load_row(&call->arg[ARG_X], m + 1, row->next);
  scales(z, row->x, reads_on ? row->next : NULL, row->a, row->s);
}

/* Writes the scales of row m: at place i of the rows asked for, or of all rows in scale_t. */
static void put_scales(const quantiser *z, int32_t arg, int64_t i, int64_t m, const quant_row *row,
                       assay_expected *to) {
  for (int64_t g = 0; g < z->S; ++g) {
    const int64_t at = arg == ARG_SCALE_T ? g * z->M + m : i * z->S + g;
    to->value[at] = (double)row->s[g];
    if (to->sigma != NULL) to->sigma[at] = 0;
  }
}

static assay_status compute(const assay_call *call, const assay_contract *contract, const assay_rows *rows,
                            quant_spoil spoil, assay_expected *expected, assay_error *error) {
  const quantiser z = quantiser_of(call, contract, spoil);
  const int32_t arg = scale_arg(call);
  const int64_t count = rowwise_count(rows, z.M);
  quant_row row;
  const assay_status status = take_memory(call, &z, &row, error);
  if (status != ASSAY_OK) return status;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t m = rowwise_index(rows, i);
    load(call, &z, m, &row);
    for (int64_t c = 0; c < z.C; ++c) {
      expected[0].value[i * z.C + c] = code_of(&z, row.a, row.s, c, row.x[c]);
      if (expected[0].sigma != NULL) expected[0].sigma[i * z.C + c] = 0;
    }
    if (arg != ARG_SCALE_T) put_scales(&z, arg, i, m, &row, &expected[1]);
  }
  for (int64_t m = 0; m < z.M && arg == ARG_SCALE_T; ++m) { /* computed whole */
    load(call, &z, m, &row);
    put_scales(&z, arg, m, m, &row, &expected[1]);
  }
  free(row.x);
  return ASSAY_OK;
}

/* Computes the expectation. f32 division and one rounding to a code are the same everywhere. Thus every result is
 * exact, on any inputs. */
static assay_status reference(const assay_call *call, const assay_contract *contract, const assay_rows *rows,
                              bool exact, assay_expected *expected, assay_seen *seen, assay_error *error) {
  (void)exact;
  (void)seen;
  return compute(call, contract, rows, SPOIL_NONE, expected, error);
}

static assay_status spoil(const assay_call *call, const assay_contract *contract, const assay_rows *rows, int32_t index,
                          assay_expected *expected, assay_error *error) {
  assay_expected values[2] = {{expected[0].value, NULL}, {expected[1].value, NULL}};
  return compute(call, contract, rows, (quant_spoil)index, values, error);
}

/* Accepts the code on the other side of a tie if x / s is within 2 u of it, u = 2^-23. The chain of roundings must be
 * undeclared, or the stored scale must not be the definition's. */
static bool accepts(const assay_call *call, const assay_contract *contract, int32_t output, int64_t element,
                    double got) {
  const quantiser z = quantiser_of(call, contract, SPOIL_NONE);
  if (output != 0 || (z.chain != ASSAY_QUOTIENT_ANY && z.stored == ASSAY_STORED_QUOTIENT)) return false;
  quant_row row;
  if (take_memory(call, &z, &row, NULL) != ASSAY_OK) return false;
  load(call, &z, element / z.C, &row);
  const double y = row.x[element % z.C] / (double)row.s[element % z.C / z.width];
  free(row.x);
  return got == assay_round_f64(y * (1 - 0x1p-22), ASSAY_E4M3) || got == assay_round_f64(y * (1 + 0x1p-22), ASSAY_E4M3);
}

/* A code keeps the sign of a zero. */
static bool copies(const assay_call *call, int32_t output, int64_t element) {
  (void)call;
  (void)element;
  return output == 0;
}

static assay_cost cost(const assay_call *call, const assay_seen *seen) {
  (void)seen;
  const quantiser z = quantiser_of(call, NULL, SPOIL_NONE);
  const double elements = (double)z.M * (double)z.C;
  return (assay_cost){.flops = elements,
                      .bytes = elements * (double)(assay_dtype_size(call->arg[ARG_X].dtype) + 1) +
                               4 * (double)z.M * (double)z.S};
}

/* ---- values for the generator ------------------------------------------------------------------------ */

/* Fills a group of the exact tier: 2^j times codes and exact midpoints of neighbouring codes, one of them ±448. */
static void fill_codes(assay_rng *rng, int j, int64_t count, double *value) {
  const int64_t largest = assay_rng_range(rng, 0, count - 1);
  for (int64_t c = 0; c < count; ++c) {
    const uint8_t code = (uint8_t)(c == largest ? 126 : assay_rng_range(rng, 0, 125)), next = (uint8_t)(code + 1);
    double size = assay_load_f64(&code, ASSAY_E4M3, 0);
    if (c != largest && assay_rng_range(rng, 0, 1) != 0) size = (size + assay_load_f64(&next, ASSAY_E4M3, 0)) / 2;
    value[c] = ldexp(assay_rng_range(rng, 0, 1) != 0 ? size : -size, j);
  }
}

/* Makes the largest number of a group 448 times a power of two, or a neighbour of that in f32. With ue8m0 the scale is
 * this power then, and the next one for the upper neighbour. A logarithm in f32 cannot tell them apart. */
static void move_to_border(assay_rng *rng, int64_t count, double *value) {
  int64_t largest = 0;
  int exponent = 0;
  for (int64_t c = 1; c < count; ++c)
    if (fabs(value[c]) > fabs(value[largest])) largest = c;
  (void)frexp(fabs(value[largest]) / 448, &exponent);
  const float border = ldexpf(448, exponent);
  const int64_t kind = assay_rng_range(rng, 0, 2);
  const double size = (double)(kind == 0 ? border : nextafterf(border, kind == 1 ? 0 : INFINITY));
  value[largest] = value[largest] < 0 ? -size : size;
}

/* Makes one row of special numbers in two small, beside its NaN and infinities. */
static void fill_special(const assay_fill *from, int64_t rows, int64_t C, double *value) {
  for (int64_t m = 0; m < rows; ++m) {
    assay_rng rng = {from->seed, 0x6771756E, 1024 * (uint64_t)m + 512};
    if (assay_rng_range(&rng, 0, 1) != 0) plain_make_small(value + m * C, C);
  }
}

/* Fills x by groups. One group in twelve is zero, and one in twelve lies below eps. With ue8m0 one in four lies at the
 * border of two scales. */
static assay_status fill(const assay_fill *from, int32_t arg, double *value, int64_t count, assay_error *error) {
  (void)error;
  plain_fill(from, (uint64_t)arg, value, count);
  if (arg != ARG_X) return ASSAY_OK;
  const assay_tensor *x = &from->call->arg[ARG_X];
  const int64_t C = x->shape[1], rows = C > 0 ? count / C : 0, S = (C + GROUP - 1) / GROUP;
  if (from->values == ASSAY_SPECIAL) {
    fill_special(from, rows, C, value);
    return ASSAY_OK;
  }
  const double below = from->call->param[PARAM_EPS] / 64;
  const bool borders = from->call->param[PARAM_UE8M0] != 0 && x->dtype != ASSAY_F16;
  for (int64_t g = 0; g < rows * S; ++g) {
    assay_rng rng = {from->seed, 0x6771756E, 1024 * (uint64_t)g};
    double *const to = value + g / S * C + g % S * GROUP;
    const int64_t left = C - g % S * GROUP, width = left < GROUP ? left : GROUP;
    const int64_t kind = assay_rng_range(&rng, 0, 11);
    int j = (int)assay_rng_range(&rng, x->dtype == ASSAY_F16 ? -14 : -20, 7);
    if (kind == 1 && x->dtype != ASSAY_F16) j = -60;
    if (from->values == ASSAY_LATTICE && kind != 0) fill_codes(&rng, j, width, to);
    const double factor = kind == 0 ? 0 : kind == 1 ? below : ldexp(1, (int)assay_rng_range(&rng, -6, 6));
    for (int64_t c = 0; c < width && (kind == 0 || from->values != ASSAY_LATTICE); ++c)
      to[c] *= factor;
    if (borders && kind > 8) move_to_border(&rng, width, to);
  }
  return ASSAY_OK;
}

/* ---- the table --------------------------------------------------------------------------------------- */

static const assay_dim dims[] = {
    {"M", 1, 1 << 24, 4, 1, "rows"},
    {"C", 1, 1 << 17, 256, 1, "channels of a row"},
};

static const assay_arg args[ARG_COUNT] = {
    {"x", ASSAY_IN, ASSAY_VALUES, false, "f32,f16,bf16", "M,C", "the row stride is free", true},
    {"q", ASSAY_OUT, ASSAY_RESULT, false, "e4m3", "M,C", "codes", true},
    {"scale", ASSAY_OUT, ASSAY_RESULT, true, "f32", "M,C^128", "scales of groups of 128 channels", true},
    {"scale_t", ASSAY_OUT, ASSAY_RESULT, true, "f32", "C^128,M", "the same, a row for each group", true},
    {"scale_row", ASSAY_OUT, ASSAY_RESULT, true, "f32", "M", "one scale for each row", false},
};

static const assay_param params[PARAM_COUNT] = {
    {"ue8m0", ASSAY_BOOL, 0, 1, 0, NULL, "scales are powers of two, rounded up"},
    {"eps", ASSAY_REAL, 448 * 0x1p-126, 1e6, 1e-4, NULL, "the least a: 1e-4 in DeepSeek's code, 1e-10 in vLLM's"},
};

static const assay_op op = {
    .name = "group_quant",
    .title = "rows as e4m3 with a scale for every 128 channels or every row",
    .source = "docs/definitions.md, section 13",
    .dims = dims,
    .dim_count = (int32_t)(sizeof dims / sizeof dims[0]),
    .args = args,
    .arg_count = ARG_COUNT,
    .params = params,
    .param_count = PARAM_COUNT,
    .laws = "run_to_run,dead_bytes,permutation",
    .spoils = "scale_of_group_before,tie_away,scale_pow2_codes_not,ue8m0_floor_for_ceil,least_scale_lost,"
              "zero_amax_nan,short_group_reads_on",
    .kappa_element = 2.5,
    .form = ASSAY_PLAIN,
    .row_dim = "M",
    .axes = "dtype,ue8m0",
    .takes_special = true,
    .confirmed_by =
        "a nearest search over all codes with quotients in f64; powers of two by frexp; x times powers of two "
        "(ref_quant_test)",
    .largest = 0x1.fffffep127,
    .check = check,
    .reference = reference,
    .cost = cost,
    .fill = fill,
    .accepts = accepts,
    .spoil = spoil,
    .copies = copies,
};

const assay_op *assay_op_group_quant(void) {
  return &op;
}
