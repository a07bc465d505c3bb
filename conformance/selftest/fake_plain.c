/* fake_plain.c: fake_mix and fake_code; see fake_plain.h. */
#include "fake_plain.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>

#include "core/dtype.h"
#include "core/rng.h"
#include "fake.h"

plain_fault plain_broken = PLAIN_NONE;

/* ---- what both have ---------------------------------------------------------------------------------- */

static int64_t stride_of(const assay_tensor *t) {
  return t->shape[0] > 1 ? t->stride[0] : 0; /* with one row it may be anything */
}

static double at(const assay_tensor *t, int64_t row, int64_t c) {
  return assay_load_f64(t->data, t->dtype, row * stride_of(t) + c);
}

static int64_t row_at(const assay_rows *rows, int64_t r) {
  return rows->index != NULL ? rows->index[r] : r;
}

static assay_status check(const assay_call *call, assay_error *error) {
  const assay_tensor *x = &call->arg[0];
  if (x->data == NULL) return assay_fail(error, ASSAY_ERR_INPUT, "x: is NULL");
  if (x->shape[0] < 1) return assay_fail(error, ASSAY_ERR_INPUT, "N: found %lld", (long long)x->shape[0]);
  if (x->shape[1] > 64 && x->shape[0] > 64)
    return assay_fail(error, ASSAY_ERR_INPUT, "C: found %lld, allowed 64 where N = %lld is above 64",
                      (long long)x->shape[1], (long long)x->shape[0]);
  return ASSAY_OK;
}

static void draw(const assay_fill *fill, int32_t arg, double *value, int64_t count) {
  static const double special[] = {(double)NAN, -(double)NAN, (double)INFINITY, -(double)INFINITY, 0.0,    -0.0, 448.0,
                                   464.0,       -465.0,       0x1p-9,           0x1p-10,           1.0625, 1e30, -3e-8};
  assay_rng rng = {fill->seed, (uint64_t)arg << 40, 0};
  assay_rng_normals(fill->seed, (uint64_t)arg, value, count);
  for (int64_t i = 0; i < count; ++i) {
    if (fill->values == ASSAY_LATTICE) value[i] = rint(value[i] * 4) / 4;
    if (fill->values == ASSAY_SPECIAL && assay_rng_range(&rng, 0, 2) == 0)
      value[i] = special[assay_rng_range(&rng, 0, (int64_t)(sizeof special / sizeof special[0]) - 1)];
  }
}

/* ---- fake_mix ---------------------------------------------------------------------------------------- */

enum { MIX_X, MIX_G, MIX_FROM, MIX_POOL, MIX_Y, MIX_TOP, MIX_ARGS };
enum { SPOIL_GAIN_LOST, SPOIL_LAST_DROPPED, SPOIL_NEIGHBOURS_GAIN };

static const assay_dim mix_dims[] = {
    {"N", 1, 4096, 6, 1, "rows"}, {"C", 4, 1024, 16, 4, "channels"}, {"M", 1, 64, 5, 1, "rows of the pool"}};
static const assay_arg mix_args[] = {
    {"x", ASSAY_INOUT, ASSAY_VALUES, false, "f32,f16,bf16", "N,C", "", true},
    {"g", ASSAY_IN, ASSAY_VALUES, false, "=x", "C", "", false},
    {"from", ASSAY_IN, ASSAY_VALUES, false, "i32", "M", "", false},
    {"pool", ASSAY_INOUT, ASSAY_VALUES, false, "=x", "M,C/2", "", true},
    {"y_out", ASSAY_OUT, ASSAY_RESULT, true, "=x", "N,C", "", true},
    {"top", ASSAY_OUT, ASSAY_RESULT, true, "i32", "N", "", false},
};
static const assay_param mix_params[] = {{"negate", ASSAY_BOOL, 0, 1, 0, NULL, "y = -x g"}};

static assay_status compute(const assay_call *call, const assay_rows *rows, int32_t spoil, assay_expected *to) {
  const assay_tensor *x = &call->arg[MIX_X], *g = &call->arg[MIX_G], *from = &call->arg[MIX_FROM];
  const bool apart = call->arg[MIX_Y].data != NULL, top = call->arg[MIX_TOP].data != NULL;
  const int64_t C = x->shape[1], half = call->arg[MIX_POOL].shape[1], M = call->arg[MIX_POOL].shape[0];
  assay_expected *y = &to[apart ? 2 : 0], *largest = &to[apart ? 3 : 2];
  const double sign = call->param[0] != 0 ? -1 : 1;
  for (int64_t r = 0; r < rows->count; ++r) {
    const int64_t n = row_at(rows, r);
    int64_t best = 0;
    for (int64_t c = 0; c < C; ++c) {
      const int64_t i = r * C + c, gain = spoil == SPOIL_NEIGHBOURS_GAIN ? (c ^ 1) : c;
      double value = spoil == SPOIL_GAIN_LOST ? sign * at(x, n, c) : sign * at(x, n, c) * at(g, 0, gain);
      if (spoil == SPOIL_LAST_DROPPED && c == C - 1) value = at(x, n, c);
      y->value[i] = value;
      if (y->sigma != NULL) y->sigma[i] = assay_ulp(value, x->dtype) / sqrt(12.0) + 0x1p-24 * fabs(value);
      if (apart) to[0].value[i] = at(x, n, c);
      if (apart && to[0].sigma != NULL) to[0].sigma[i] = ASSAY_UNCHANGED;
      if (fabs(at(x, n, c)) > fabs(at(x, n, best))) best = c;
    }
    if (!top) continue;
    largest->value[r] = (double)best;
    if (largest->sigma != NULL) largest->sigma[r] = 0;
  }
  for (int64_t m = 0; m < M; ++m)
    for (int64_t c = 0; c < half; ++c) {
      to[1].value[m * half + c] = (double)(((const int32_t *)from->data)[m] * half + c);
      if (to[1].sigma != NULL) to[1].sigma[m * half + c] = ASSAY_MOVED;
    }
  return ASSAY_OK;
}

static assay_status mix_reference(const assay_call *call, const assay_contract *contract, const assay_rows *rows,
                                  bool exact, assay_expected *expected, assay_seen *seen, assay_error *error) {
  (void)contract, (void)exact, (void)seen, (void)error;
  return compute(call, rows, -1, expected);
}

static assay_status mix_spoil(const assay_call *call, const assay_contract *contract, const assay_rows *rows,
                              int32_t spoil, assay_expected *expected, assay_error *error) {
  assay_expected values[ASSAY_MAX_OUTPUTS];
  (void)contract, (void)error;
  for (int32_t o = 0; o < ASSAY_MAX_OUTPUTS; ++o)
    values[o] = (assay_expected){expected[o].value, NULL};
  return compute(call, rows, spoil, values);
}

static assay_cost mix_cost(const assay_call *call, const assay_seen *seen) {
  const double elements = (double)(call->arg[0].shape[0] * call->arg[0].shape[1]);
  (void)seen;
  return (assay_cost){elements, 8 * elements};
}

/* Two channels of every row are equal and the largest. */
static assay_status mix_fill(const assay_fill *fill, int32_t arg, double *value, int64_t count, assay_error *error) {
  (void)error;
  if (arg != MIX_FROM) draw(fill, arg, value, count);
  const int64_t C = fill->call->arg[MIX_X].shape[1];
  for (int64_t n = 0; arg == MIX_X && n < count / C; ++n) {
    value[n * C + 1] = 0;
    value[n * C + n % 2] = 6;
    value[n * C + 2 + n % 2] = -6;
  }
  for (int64_t m = 0; arg == MIX_FROM && m < count; ++m)
    value[m] = (double)((m + 1 + (int64_t)(fill->seed % 3)) % count);
  return ASSAY_OK;
}

static bool mix_accepts(const assay_call *call, const assay_contract *contract, int32_t output, int64_t element,
                        double got) {
  const assay_tensor *x = &call->arg[MIX_X];
  double largest = 0;
  (void)contract;
  if (output != (call->arg[MIX_Y].data != NULL ? 3 : 2) || !(got >= 0 && got < (double)x->shape[1])) return false;
  for (int64_t c = 0; c < x->shape[1]; ++c)
    largest = fmax(largest, fabs(at(x, element, c)));
  return fabs(at(x, element, (int64_t)got)) == largest;
}

const assay_op plain_mix_op = {.name = "fake_mix",
                               .title = "rows times a gain; rows moved; the largest channel",
                               .source = "fake_plain.h",
                               .dims = mix_dims,
                               .dim_count = 3,
                               .args = mix_args,
                               .arg_count = MIX_ARGS,
                               .params = mix_params,
                               .param_count = 1,
                               .laws = "run_to_run,dead_bytes,permutation",
                               .spoils = "gain_lost,last_dropped,neighbours_gain",
                               .kappa_element = 2.5,
                               .form = ASSAY_PLAIN,
                               .row_dim = "N",
                               .axes = "dtype,y_out",
                               .confirmed_by = "the variant beside it",
                               .check = check,
                               .reference = mix_reference,
                               .cost = mix_cost,
                               .fill = mix_fill,
                               .accepts = mix_accepts,
                               .spoil = mix_spoil};

static void put(const assay_tensor *t, int64_t row, int64_t c, double value) {
  assay_store_f64(t->data, t->dtype, row * stride_of(t) + c, value);
}

static void mix_pool(const assay_tensor *pool, const int32_t *from) {
  const int64_t M = pool->shape[0], element = assay_dtype_size(pool->dtype), bytes = pool->shape[1] * element;
  unsigned char *kept = malloc((size_t)(M * bytes) + 1), *data = pool->data;
  if (kept == NULL) return;
  for (int64_t m = 0; m < M; ++m)
    memcpy(kept + m * bytes, data + m * stride_of(pool) * element, (size_t)bytes);
  for (int64_t m = 0; m < M; ++m) {
    const int64_t source = plain_broken == PLAIN_MOVES_NEIGHBOUR ? (from[m] + 1) % M : from[m];
    const unsigned char *row =
        plain_broken == PLAIN_MOVES_LATE ? data + source * stride_of(pool) * element : kept + source * bytes;
    memmove(data + m * stride_of(pool) * element, row, (size_t)bytes);
  }
  free(kept);
}

static assay_status mix_launch(const assay_call *call, assay_env *env, assay_error *error) {
  const assay_tensor *x = &call->arg[MIX_X], *g = &call->arg[MIX_G], *top = &call->arg[MIX_TOP];
  const assay_tensor *y = call->arg[MIX_Y].data != NULL ? &call->arg[MIX_Y] : x;
  const assay_status status = check(call, error);
  const int64_t N = x->shape[0], C = x->shape[1];
  if (status != ASSAY_OK) return status;
  (void)snprintf(env->path, sizeof env->path, "%s", y == x ? "in place" : "apart");
  for (int64_t n = 0; n < N; ++n) {
    int64_t best = 0;
    for (int64_t c = 1; c < C; ++c)
      if (fabs(at(x, n, c)) > fabs(at(x, n, best)) ||
          (plain_broken == PLAIN_OTHER_TOP && fabs(at(x, n, c)) >= fabs(at(x, n, best))))
        best = c;
    if (plain_broken == PLAIN_WRONG_TOP && n == N - 1) best = best == 0 ? 1 : 0;
    if (top->data != NULL && !(plain_broken == PLAIN_TOP_UNWRITTEN && n == N - 1))
      assay_store_f64(top->data, top->dtype, n, (double)best);
    for (int64_t c = 0; c < C; ++c) {
      double value = (call->param[0] != 0 ? -1 : 1) * at(x, n, c) * at(g, 0, c);
      if (plain_broken == PLAIN_GAIN_LOST) value = at(x, n, c);
      if (plain_broken == PLAIN_ROWS_IN_PLACE && n % 2 == 1) value = -value;
      if (plain_broken == PLAIN_PLACE_SHOWS && n == 0 && value != 0) value += assay_ulp(value, x->dtype);
      if (plain_broken == PLAIN_LAST_DROPPED && c == C - 1) value = at(x, n, c);
      if (plain_broken == PLAIN_WIDE_ONLY && c >= 32) value = at(x, n, c);
      put(y, n, c, value);
    }
  }
  if (plain_broken == PLAIN_BETWEEN_ROWS && stride_of(y) > C) put(y, 0, C, 1.0);
  if (plain_broken == PLAIN_CHANGES_X && y != x) put(x, N - 1, 2, at(x, N - 1, 2) + 1);
  for (int64_t c = 0; plain_broken == PLAIN_LOSES_NAN_BITS && y != x && c < C; ++c)
    if (at(x, 0, c) == 0) put(x, 0, c, -0.0);
  mix_pool(&call->arg[MIX_POOL], call->arg[MIX_FROM].data);
  return ASSAY_OK;
}

static assay_status supports(const assay_call *call, assay_error *error) {
  (void)call, (void)error;
  return ASSAY_OK;
}

static assay_status workspace(const assay_call *call, int64_t *bytes, assay_error *error) {
  (void)call, (void)error;
  *bytes = 0;
  return ASSAY_OK;
}

const assay_variant plain_mix = {.struct_size = sizeof(assay_variant),
                                 .op = "fake_mix",
                                 .name = "loops",
                                 .why = "selftest",
                                 .device = "simt",
                                 .arch = "any",
                                 .claims = "f32,f16,bf16|false,true",
                                 .contract = {.run_to_run = true, .permutation = true},
                                 .supports = supports,
                                 .workspace = workspace,
                                 .launch = mix_launch};

/* ---- fake_code --------------------------------------------------------------------------------------- */

static const assay_dim code_dims[] = {{"N", 1, 64, 6, 1, "rows"}, {"C", 1, 64, 16, 1, "channels"}};
static const assay_arg code_args[] = {
    {"x", ASSAY_IN, ASSAY_VALUES, false, "f32,f16,bf16", "N,C", "", true},
    {"code", ASSAY_OUT, ASSAY_RESULT, false, "e4m3", "N,C", "", false},
};

static assay_status code_reference(const assay_call *call, const assay_contract *contract, const assay_rows *rows,
                                   bool exact, assay_expected *expected, assay_seen *seen, assay_error *error) {
  const int64_t C = call->arg[0].shape[1];
  (void)contract, (void)exact, (void)seen, (void)error, (void)rows;
  for (int64_t i = 0; i < call->arg[0].shape[0] * C; ++i) {
    expected[0].value[i] = at(&call->arg[0], i / C, i % C);
    if (expected[0].sigma != NULL) expected[0].sigma[i] = 0;
  }
  return ASSAY_OK;
}

static assay_status code_fill(const assay_fill *fill, int32_t arg, double *value, int64_t count, assay_error *error) {
  (void)error;
  draw(fill, arg, value, count);
  return ASSAY_OK;
}

const assay_op plain_code_op = {.name = "fake_code",
                                .title = "rows as e4m3",
                                .source = "fake_plain.h",
                                .dims = code_dims,
                                .dim_count = 2,
                                .args = code_args,
                                .arg_count = 2,
                                .laws = "run_to_run,dead_bytes",
                                .spoils = "",
                                .kappa_element = 2.5,
                                .form = ASSAY_PLAIN,
                                .inexact = true,
                                .takes_special = true,
                                .check = check,
                                .reference = code_reference,
                                .fill = code_fill};

static assay_status code_launch(const assay_call *call, assay_env *env, assay_error *error) {
  const assay_tensor *x = &call->arg[0];
  unsigned char *code = call->arg[1].data;
  const assay_status status = check(call, error);
  if (status != ASSAY_OK) return status;
  (void)env;
  for (int64_t i = 0; i < x->shape[0] * x->shape[1]; ++i) {
    const int64_t row = i / x->shape[1], from = plain_broken == PLAIN_ROW_BEFORE && row > 0 ? row - 1 : row;
    const double value = at(x, from, i % x->shape[1]);
    assay_store_f64(code, ASSAY_E4M3, i, value);
    if (assay_is_nan(value) && plain_broken == PLAIN_NUMBER_FOR_NAN) code[i] = 0;
    if (assay_is_nan(value) && plain_broken == PLAIN_NAN_SIGN) code[i] = 0xFF;
    if (!assay_is_nan(value) && plain_broken == PLAIN_NAN_FOR_NUMBER && i % 7 == 3) code[i] = 0x7F;
    if (fabs(value) > 448 && plain_broken == PLAIN_WRAPS) code[i] = 0x7F;
  }
  return ASSAY_OK;
}

const assay_variant plain_code = {.struct_size = sizeof(assay_variant),
                                  .op = "fake_code",
                                  .name = "loops",
                                  .why = "selftest",
                                  .device = "simt",
                                  .arch = "any",
                                  .claims = "f32,f16,bf16",
                                  .contract = {.run_to_run = true},
                                  .supports = supports,
                                  .workspace = workspace,
                                  .launch = code_launch};

/* ---- both -------------------------------------------------------------------------------------------- */

void plain_register(void) {
  const assay_op *const op[] = {&plain_mix_op, &plain_code_op, &plain_append_op};
  const assay_variant *const variant[] = {&plain_mix, &plain_code, &plain_append};
  assay_error error = {""};
  fake_register();
  if (assay_op_find(plain_mix_op.name) != NULL) return;
  for (int i = 0; i < 3; ++i) {
    cr_assert_eq(assay_registry_add_op(op[i], &error), ASSAY_OK, "%s", error.text);
    cr_assert_eq(assay_registry_add_variants(variant[i], 1, "built-in", &error), ASSAY_OK, "%s", error.text);
  }
}

assay_case plain_case(const char *descriptor) {
  assay_case one;
  assay_error error = {""};
  plain_register();
  cr_assert_eq(case_parse(descriptor, &one, &error), ASSAY_OK, "%s: %s", descriptor, error.text);
  return one;
}
