/* causal_conv1d: a short convolution along the rows of each request, channel by channel. A state carries the last rows
 * over to the next call. Request i has rows cu_i to cu_{i+1} - 1 of x, T_i of them, and a slot of the state.
 * J = K - 1. e is the J rows of state[slot], oldest first, then the request's rows of x:
 *
 *   y_nc = round(act(bias_c + sum_{j < K} w_cj · e_{t + j, c}))      t: the row's number in its request
 *   state[slot] <- the last J rows of e, as they were stored
 *
 * Tap K - 1 falls on the row itself. act is silu(s) = s / (1 + exp(-s)), or nothing. e begins with zeros where the
 * request is fresh, and for slot -1, which writes no state. A request without rows changes nothing, fresh or not
 * (choice). The bytes of a fresh request's slot are dead. cu begins with 0, ends with N and does not fall. A slot
 * outside [-1, S), or given twice, is an input error. Source: docs/definitions.md, section 12. */
#include <math.h>
#include <stdlib.h>

#include "core/dtype.h"
#include "core/rng.h"
#include "ref/lib/error_model.h"
#include "ref/lib/lattice.h"
#include "ref/lib/plain.h"
#include "ref/lib/rowwise.h"

const assay_op *assay_op_causal_conv1d(void);

enum { ARG_X, ARG_W, ARG_BIAS, ARG_CU, ARG_SLOTS, ARG_FRESH, ARG_STATE, ARG_Y, ARG_COUNT };
enum { OUT_STATE, OUT_Y };
enum { MOST_TAPS = 4 };

typedef enum conv_spoil {
  SPOIL_NONE = -1,
  SPOIL_STALE_STATE_READ,    /* a fresh request reads its slot */
  SPOIL_SHORT_CHUNK_STATE,   /* with T < J the old rows of the state become 0 */
  SPOIL_PAD_SLOT_WRITTEN,    /* slot -1 writes the last slot */
  SPOIL_TAPS_REVERSED,       /* tap 0 falls on the row itself */
  SPOIL_STATE_AFTER_SILU,    /* the state holds silu of the rows */
  SPOIL_REQUEST_BEFORE_SEEN, /* rows of the request before stand for the state */
  SPOIL_SILU_LOST,
  SPOIL_BIAS_LOST
} conv_spoil;

typedef struct conv {
  const assay_call *call;
  const assay_contract *contract;
  int64_t N, C, J, B, S;
  bool silu, exact;
  conv_spoil spoil;
  double *w, *bias; /* [C, K], [C] */
} conv;

/* One request. */
typedef struct request {
  int64_t first, rows, slot; /* slot: -1 for none */
  bool fresh;
} request;

/* ---- the definition ---------------------------------------------------------------------------------- */

static double silu(double s) {
  return s / (1 + exp(-s));
}

static double element(const assay_tensor *t, int64_t at0, int64_t at1, int64_t at2) {
  const int64_t apart = t->shape[0] > 1 ? t->stride[0] : 0;
  return assay_load_f64(t->data, t->dtype, at0 * apart + at1 * (t->rank > 2 ? t->shape[2] : 1) + at2);
}

/* Returns row k of e, where row J is the request's first. */
static double row_of(const conv *v, const request *r, int64_t k, int64_t c) {
  const assay_tensor *x = &v->call->arg[ARG_X], *state = &v->call->arg[ARG_STATE];
  if (k >= v->J) return element(x, r->first + k - v->J, c, 0);
  const int64_t before = r->first + k - v->J;
  if (v->spoil == SPOIL_REQUEST_BEFORE_SEEN && before >= 0) return element(x, before, c, 0);
  const bool read = r->slot >= 0 && (!r->fresh || v->spoil == SPOIL_STALE_STATE_READ);
  return read ? element(state, r->slot, k, c) : 0;
}

/* Writes the terms of an element: the bias, then the taps. Returns how many there are. */
static int32_t terms_of(const conv *v, const request *r, int64_t t, int64_t c, double *term) {
  int32_t n = 0;
  if (v->bias != NULL && v->spoil != SPOIL_BIAS_LOST) term[n++] = v->bias[c];
  for (int64_t j = 0; j <= v->J; ++j) {
    const int64_t tap = v->spoil == SPOIL_TAPS_REVERSED ? v->J - j : j;
    term[n++] = v->w[c * (v->J + 1) + tap] * row_of(v, r, t + j, c);
  }
  return n;
}

static double activated(const conv *v, double sum) {
  return v->silu && v->spoil != SPOIL_SILU_LOST ? silu(sum) : sum;
}

/* ---- the error model --------------------------------------------------------------------------------- */

/* Returns the variance of an element. Each product is rounded, and so is each running sum. Terms come in any order, the
 * bias first or last. No running sum is then beyond the sum of the terms of one sign, which may come first. silu
 * follows the sum by its slope, and has exp, an addition, a quotient of its own. Under `partial` the sum is rounded to
 * that type before. */
static double variance(const conv *v, const double *term, int32_t count, assay_dtype out) {
  double sum = 0, above = 0, below = 0, inner = 0;
  for (int32_t i = 0; i < count; ++i) {
    sum += term[i];
    above += fmax(term[i], 0);
    below += fmax(-term[i], 0);
    inner += rounding_variance(term[i], ASSAY_F32);
  }
  const double most = fmax(above, below), size = above + below;
  const bool exact = lattice_admits(size, lattice_low_row(term, count), 24) != 0;
  inner = exact ? 0 : inner + count * storing_variance(most, ASSAY_F32);
  if (v->contract->partial != ASSAY_NONE) inner += storing_variance(sum, v->contract->partial);
  if (!v->silu) return inner > 0 ? inner + storing_variance(sum, out) : rounding_variance(sum, out);
  const double s = 1 / (1 + exp(-sum)), y = silu(sum), slope = s * (1 + sum * (1 - s));
  const double function = function_variance(v->contract->exp_ulp);
  double relative = (1 - s) * (1 - s) * function + function + 2 * f32_variance;
  if (s < 0x1p-126) relative += 1;
  if (y == 0 && inner == 0) return 0;
  return slope * slope * inner + y * y * relative + storing_variance(y, out);
}

/* Admits an element whose terms are of one lattice. With silu the sum is 0, at least 200, or at most -500. */
static assay_status admit(const conv *v, const double *term, int32_t count, int64_t row, int64_t c,
                          assay_error *error) {
  double sum = 0, size = 0;
  for (int32_t i = 0; i < count; ++i) {
    sum += term[i];
    size += fabs(term[i]);
  }
  const int low = lattice_low_row(term, count), bits = lattice_width(v->contract->partial);
  if (!lattice_admits(size, low, bits))
    return rowwise_refuse(v->call, row, c, "sum of |term|, which the sum's type must hold", size, ldexp(1, low + bits),
                          error);
  if (v->silu && sum != 0 && !(sum >= 200) && !(sum <= -500))
    return rowwise_refuse(v->call, row, c, "a sum between -500 and 200", sum, 0, error);
  return ASSAY_OK;
}

/* ---- adapter ----------------------------------------------------------------------------------------- */

static request request_of(const assay_call *call, int64_t i) {
  const assay_tensor *arg = call->arg;
  const int64_t first = plain_integer(&arg[ARG_CU], i);
  return (request){.first = first,
                   .rows = plain_integer(&arg[ARG_CU], i + 1) - first,
                   .slot = plain_integer(&arg[ARG_SLOTS], i),
                   .fresh = plain_integer(&arg[ARG_FRESH], i) != 0};
}

static assay_status check_contents(const conv *v, assay_error *error) {
  const assay_tensor *cu = &v->call->arg[ARG_CU], *slots = &v->call->arg[ARG_SLOTS];
  unsigned char *named = calloc((size_t)v->S + 1, 1);
  assay_status status = named != NULL ? ASSAY_OK : assay_fail(error, ASSAY_ERR_MEMORY, "causal_conv1d: out of memory");
  for (int64_t i = 0; i <= v->B && status == ASSAY_OK; ++i) {
    const int64_t found = plain_integer(cu, i), least = i > 0 ? plain_integer(cu, i - 1) : 0;
    const bool wrong = i == 0 ? found != 0 : i == v->B ? found != v->N : found < least || found > v->N;
    if (wrong || found < least)
      status = assay_fail(error, ASSAY_ERR_INPUT, "cu: found %lld at [%lld], allowed 0 first, then %lld to %lld",
                          (long long)found, (long long)i, (long long)least, (long long)v->N);
  }
  for (int64_t i = 0; i < v->B && status == ASSAY_OK; ++i) {
    const int64_t slot = plain_integer(slots, i);
    if (slot < -1 || slot >= v->S)
      status = assay_fail(error, ASSAY_ERR_INPUT, "slots: found %lld at [%lld], allowed -1 to %lld", (long long)slot,
                          (long long)i, (long long)(v->S - 1));
    else if (slot >= 0 && named[slot]++ != 0)
      status = assay_fail(error, ASSAY_ERR_INPUT, "slots: found %lld at [%lld] again, allowed once", (long long)slot,
                          (long long)i);
  }
  free(named);
  return status;
}

/* Expects that no slot changes. */
static void keep_state(const conv *v, const assay_expected *to) {
  const int64_t width = v->J * v->C;
  for (int64_t s = 0; s < v->S; ++s)
    for (int64_t at = 0; at < width; ++at) {
      to->value[s * width + at] = element(&v->call->arg[ARG_STATE], s, at / v->C, at % v->C);
      if (to->sigma != NULL) to->sigma[s * width + at] = ASSAY_UNCHANGED;
    }
}

static void move_state(const conv *v, const request *r, const assay_expected *to) {
  const int64_t slot = r->slot < 0 && v->spoil == SPOIL_PAD_SLOT_WRITTEN ? v->S - 1 : r->slot;
  if (slot < 0 || r->rows == 0) return;
  for (int64_t k = 0; k < v->J; ++k)
    for (int64_t c = 0; c < v->C; ++c) {
      const int64_t at = (slot * v->J + k) * v->C + c, from = r->rows + k;
      double value = row_of(v, r, from, c);
      if (v->spoil == SPOIL_SHORT_CHUNK_STATE && from < v->J) value = 0;
      if (v->spoil == SPOIL_STATE_AFTER_SILU && from >= v->J) value = silu(value);
      to->value[at] = value;
      if (to->sigma != NULL) to->sigma[at] = 0;
    }
}

static assay_status make_rows(const conv *v, const request *r, const assay_expected *to, assay_error *error) {
  const assay_dtype out = v->call->arg[ARG_Y].dtype;
  double term[MOST_TAPS + 1];
  for (int64_t t = 0; t < r->rows; ++t)
    for (int64_t c = 0; c < v->C; ++c) {
      const int64_t at = (r->first + t) * v->C + c;
      const int32_t count = terms_of(v, r, t, c, term);
      double sum = 0;
      for (int32_t i = 0; i < count; ++i)
        sum += term[i];
      to->value[at] = activated(v, sum);
      if (fabs(to->value[at]) < 0.5 * assay_ulp(0, ASSAY_F32)) to->value[at] = 0;
      if (to->sigma != NULL) to->sigma[at] = sqrt(variance(v, term, count, out));
      const assay_status status = v->exact ? admit(v, term, count, r->first + t, c, error) : ASSAY_OK;
      if (status != ASSAY_OK) return status;
    }
  return ASSAY_OK;
}

static assay_status compute(const assay_call *call, const assay_contract *contract, bool exact, conv_spoil spoil,
                            assay_expected *expected, assay_error *error) {
  const assay_tensor *x = &call->arg[ARG_X], *w = &call->arg[ARG_W], *bias = &call->arg[ARG_BIAS];
  conv v = {.call = call,
            .contract = contract != NULL ? contract : &default_contract,
            .N = x->shape[0],
            .C = x->shape[1],
            .J = call->arg[ARG_STATE].shape[1],
            .B = call->arg[ARG_SLOTS].shape[0],
            .S = call->arg[ARG_STATE].shape[0],
            .silu = call->param[0] != 0,
            .exact = exact,
            .spoil = spoil};
  double *memory;
  assay_status status = check_contents(&v, error);
  if (status == ASSAY_OK) status = rowwise_reserve(call, v.C * (v.J + 2), &memory, error);
  if (status != ASSAY_OK) return status;
  v.w = memory;
  assay_load_f64_row(w->data, w->dtype, 0, 1, v.C * (v.J + 1), v.w);
  if (bias->data != NULL) {
    v.bias = memory + v.C * (v.J + 1);
    assay_load_f64_row(bias->data, bias->dtype, 0, 1, v.C, v.bias);
  }
  keep_state(&v, &expected[OUT_STATE]);
  for (int64_t i = 0; i < v.B && status == ASSAY_OK; ++i) {
    const request r = request_of(call, i);
    status = make_rows(&v, &r, &expected[OUT_Y], error);
    move_state(&v, &r, &expected[OUT_STATE]);
  }
  free(memory);
  return status;
}

static assay_status reference(const assay_call *call, const assay_contract *contract, const assay_rows *rows,
                              bool exact, assay_expected *expected, assay_seen *seen, assay_error *error) {
  (void)rows; /* both outputs are computed whole */
  (void)seen;
  return compute(call, contract, exact, SPOIL_NONE, expected, error);
}

static assay_status spoil(const assay_call *call, const assay_contract *contract, const assay_rows *rows, int32_t index,
                          assay_expected *expected, assay_error *error) {
  (void)rows;
  assay_expected values[2] = {{expected[OUT_STATE].value, NULL}, {expected[OUT_Y].value, NULL}};
  return compute(call, contract, false, (conv_spoil)index, values, error);
}

static bool copies(const assay_call *call, int32_t output, int64_t element) {
  (void)call;
  (void)element;
  return output == OUT_STATE;
}

/* Counts x as read, y as written, and the state as both; a product and a sum per tap, and silu as 3. */
/* Counts how often a slot's state is read or written: a fresh request only writes it, and slot -1 has none. */
static double state_passes(const assay_call *call) {
  double passes = 0;
  for (int64_t i = 0; i < call->arg[ARG_SLOTS].shape[0] && call->arg[ARG_SLOTS].data != NULL; ++i) {
    const bool has_rows = plain_integer(&call->arg[ARG_CU], i + 1) > plain_integer(&call->arg[ARG_CU], i);
    if (plain_integer(&call->arg[ARG_SLOTS], i) < 0 || !has_rows) continue;
    passes += plain_integer(&call->arg[ARG_FRESH], i) != 0 ? 1 : 2;
  }
  return passes;
}

static assay_cost cost(const assay_call *call, const assay_seen *seen) {
  (void)seen;
  const assay_tensor *x = &call->arg[ARG_X];
  const double C = (double)x->shape[1], elements = (double)x->shape[0] * C;
  const double J = (double)call->arg[ARG_STATE].shape[1];
  return (assay_cost){(2 * (J + 1) + 3) * elements,
                      (2 * elements + state_passes(call) * J * C) * (double)assay_dtype_size(x->dtype)};
}

/* ---- values for the generator ------------------------------------------------------------------------ */

/* Cuts N rows into B requests. Most are short, and some have no rows; the last one has the rest. */
static void fill_cu(const assay_fill *fill, double *value, int64_t count) {
  const int64_t N = fill->call->arg[ARG_X].shape[0], B = count - 1;
  assay_rng rng = {fill->seed, 0x637573, 0};
  int64_t left = N;
  for (int64_t i = 0; i < B; ++i) {
    const int64_t share = left / (B - i), kind = assay_rng_range(&rng, 0, 3);
    const int64_t wanted = kind == 0 ? assay_rng_range(&rng, 0, 3) : assay_rng_range(&rng, 0, 2 * share + 1);
    value[i] = (double)(N - left);
    left -= wanted < left ? wanted : left;
  }
  value[B] = (double)N;
}

/* Draws distinct slots in a random order, and -1 for one request in six and where no slot is left. */
static double slot_of(const assay_fill *fill, int64_t i) {
  const int64_t S = fill->call->arg[ARG_STATE].shape[0];
  assay_rng rng = {fill->seed, 0x736C6F74, 0}, own = {fill->seed, 0x70616473, 4 * (uint64_t)i};
  const int64_t turn = assay_rng_range(&rng, 0, S - 1);
  if (i >= S || assay_rng_range(&own, 0, 5) == 0) return -1;
  return (double)(S - 1 - (i + turn) % S);
}

static bool is_fresh(const assay_fill *fill, int64_t i) {
  assay_rng rng = {fill->seed, 0x66726573, 4 * (uint64_t)i};
  return assay_rng_range(&rng, 0, 2) == 0;
}

/* Numbers of the exact tier: rows and bias are multiples of 1024 and 512, taps halves from 1 to 7/2. Every sum is a
 * multiple of 512. */
static double exact_number(int32_t arg, assay_rng *rng) {
  if (arg == ARG_W) return 0.5 * (double)assay_rng_range(rng, 2, 7) * (assay_rng_range(rng, 0, 3) == 0 ? -1 : 1);
  return (arg == ARG_BIAS ? 512.0 : 1024.0) * (double)assay_rng_range(rng, -2, 2);
}

/* Replaces the slots of fresh requests that have rows by NaN. Nothing may depend on them. */
static assay_status poison_fresh(const assay_fill *fill, double *value, assay_error *error) {
  const assay_tensor *state = &fill->call->arg[ARG_STATE];
  const int64_t B = fill->call->arg[ARG_SLOTS].shape[0], width = state->shape[1] * state->shape[2];
  double *cu = malloc((size_t)(B + 1) * sizeof *cu);
  if (cu == NULL) return assay_fail(error, ASSAY_ERR_MEMORY, "causal_conv1d: out of memory");
  fill_cu(fill, cu, B + 1);
  for (int64_t i = 0; i < B; ++i) {
    const double slot = slot_of(fill, i);
    const bool dead = slot >= 0 && is_fresh(fill, i) && cu[i + 1] > cu[i];
    for (int64_t at = 0; dead && at < width; ++at)
      value[(int64_t)slot * width + at] = (double)NAN;
  }
  free(cu);
  return ASSAY_OK;
}

static assay_status fill(const assay_fill *from, int32_t arg, double *value, int64_t count, assay_error *error) {
  if (arg == ARG_CU) {
    fill_cu(from, value, count);
    return ASSAY_OK;
  }
  for (int64_t i = 0; i < count && (arg == ARG_SLOTS || arg == ARG_FRESH); ++i)
    value[i] = arg == ARG_SLOTS ? slot_of(from, i) : plain_flag(from, ARG_FRESH, i, is_fresh(from, i));
  if (arg == ARG_SLOTS || arg == ARG_FRESH) return ASSAY_OK;
  plain_fill(from, (uint64_t)arg, value, count);
  assay_rng rng = {from->seed, 0x636F6E76 + ((uint64_t)arg << 32), 0};
  for (int64_t i = 0; i < count && from->values == ASSAY_LATTICE; ++i)
    value[i] = exact_number(arg, &rng);
  return arg == ARG_STATE ? poison_fresh(from, value, error) : ASSAY_OK;
}

/* ---- the table --------------------------------------------------------------------------------------- */

static const assay_dim dims[] = {
    {"N", 1, 1 << 20, 8, 1, "rows of all requests"},
    {"C", 1, 65536, 64, 1, "channels"},
    {"J", 1, MOST_TAPS - 1, 3, 1, "rows of a state: one less than taps"},
    {"B", 1, 65536, 3, 1, "requests"},
    {"S", 1, 65536, 4, 1, "slots of the state"},
};

static const assay_arg args[ARG_COUNT] = {
    {"x", ASSAY_IN, ASSAY_VALUES, false, "f32,f16,bf16", "N,C", "rows of all requests, one request after the other",
     true},
    {"w", ASSAY_IN, ASSAY_VALUES, false, "=x,f32", "C,J+1", "taps, the oldest row's first", false},
    {"bias", ASSAY_IN, ASSAY_VALUES, true, "=x,f32", "C", "added to the sum", false},
    {"cu", ASSAY_IN, ASSAY_VALUES, false, "i32", "B+1", "first row of each request, and N", false},
    {"slots", ASSAY_IN, ASSAY_VALUES, false, "i32", "B", "slot of each request; -1: none", false},
    {"fresh", ASSAY_IN, ASSAY_VALUES, false, "i32", "B", "not 0: the request starts from zeros", false},
    {"state", ASSAY_INOUT, ASSAY_VALUES, false, "=x", "S,J,C", "the last rows of each slot, oldest first", true},
    {"y", ASSAY_OUT, ASSAY_RESULT, false, "=x", "N,C", "the result", true},
};

static const assay_param params[] = {
    {"silu", ASSAY_BOOL, 0, 1, 1, NULL, "the result is silu of the sum"},
};

static const assay_op op = {
    .name = "causal_conv1d",
    .title = "a short causal convolution with a state for each request",
    .source = "docs/definitions.md, section 12",
    .dims = dims,
    .dim_count = (int32_t)(sizeof dims / sizeof dims[0]),
    .args = args,
    .arg_count = ARG_COUNT,
    .params = params,
    .param_count = (int32_t)(sizeof params / sizeof params[0]),
    .laws = "run_to_run,dead_bytes,cut,slots",
    .spoils = "stale_state_read,short_chunk_state,pad_slot_written,taps_reversed,state_after_silu,request_before_seen,"
              "silu_lost,bias_lost",
    .kappa_element = 3.2,
    .form = ASSAY_PLAIN,
    .confirmed_by = "one request cut into pieces anywhere, and polynomials multiplied (ref_conv_test)",
    .extreme_args = "x",
    .check = plain_check_call,
    .reference = reference,
    .cost = cost,
    .fill = fill,
    .spoil = spoil,
    .copies = copies,
};

const assay_op *assay_op_causal_conv1d(void) {
  return &op;
}
