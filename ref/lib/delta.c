/* delta.c: requests of gated_delta_rule and their values. The exact tier takes keys from a few directions of a dyadic
 * orthonormal basis: columns of a Hadamard matrix of 1, 4 or 16 rows. Reading a key gives what was written under it. */
#include "ref/lib/delta.h"

#include <math.h>
#include <stdlib.h>

#include "core/dtype.h"
#include "core/rng.h"
#include "ref/lib/plain.h"

enum { DIRECTIONS = 3, BORDER = 16 };

delta_request delta_request_of(const assay_call *call, int64_t i) {
  const assay_tensor *arg = call->arg;
  const int64_t first = plain_integer(&arg[DELTA_CU], i);
  return (delta_request){.first = first,
                         .rows = plain_integer(&arg[DELTA_CU], i + 1) - first,
                         .slot = plain_integer(&arg[DELTA_SLOTS], i),
                         .fresh = plain_integer(&arg[DELTA_FRESH], i) != 0};
}

static assay_status check_rows(const assay_call *call, int64_t B, int64_t N, assay_error *error) {
  const assay_tensor *cu = &call->arg[DELTA_CU];
  for (int64_t i = 0; i <= B; ++i) {
    const int64_t found = plain_integer(cu, i), least = i > 0 ? plain_integer(cu, i - 1) : 0;
    if (found < least || found > N || (i == 0 && found != 0) || (i == B && found != N))
      return assay_fail(error, ASSAY_ERR_INPUT, "cu: found %lld at [%lld], allowed 0 first, then %lld to %lld, N last",
                        (long long)found, (long long)i, (long long)least, (long long)N);
  }
  return ASSAY_OK;
}

static assay_status check_slots(const assay_call *call, int64_t B, int64_t S, unsigned char *named,
                                assay_error *error) {
  for (int64_t i = 0; i < B; ++i) {
    const int64_t slot = plain_integer(&call->arg[DELTA_SLOTS], i);
    if (slot < -1 || slot >= S)
      return assay_fail(error, ASSAY_ERR_INPUT, "slots: found %lld at [%lld], allowed -1 to %lld", (long long)slot,
                        (long long)i, (long long)(S - 1));
    if (slot >= 0 && named[slot]++ != 0)
      return assay_fail(error, ASSAY_ERR_INPUT, "slots: found %lld at [%lld] again, allowed once", (long long)slot,
                        (long long)i);
  }
  return ASSAY_OK;
}

static assay_status check_gates(const assay_call *call, int64_t N, int64_t H, assay_error *error) {
  const assay_tensor *g = &call->arg[DELTA_G];
  const int64_t row = N > 1 ? g->stride[0] : 0;
  for (int64_t n = 0; n < N; ++n)
    for (int64_t h = 0; h < H; ++h) {
      const double found = assay_load_f64(g->data, g->dtype, n * row + h);
      if (!(found <= 0))
        return assay_fail(error, ASSAY_ERR_INPUT, "g: found %.9g at [%lld, %lld], allowed at most 0", found,
                          (long long)n, (long long)h);
    }
  return ASSAY_OK;
}

assay_status delta_check_contents(const assay_call *call, assay_error *error) {
  const int64_t N = call->arg[DELTA_V].shape[0], H = call->arg[DELTA_V].shape[1];
  const int64_t B = call->arg[DELTA_SLOTS].shape[0], S = call->arg[DELTA_STATE].shape[0];
  unsigned char *named = calloc((size_t)S + 1, 1);
  if (named == NULL) return assay_fail(error, ASSAY_ERR_MEMORY, "gated_delta_rule: out of memory");
  assay_status status = check_rows(call, B, N, error);
  if (status == ASSAY_OK) status = check_slots(call, B, S, named, error);
  if (status == ASSAY_OK) status = check_gates(call, N, H, error);
  free(named);
  return status;
}

/* ---- requests ---------------------------------------------------------------------------------------- */

/* Tells whether the call is a decode step of many requests: each has one row and a slot of its own, and none is
 * fresh. */
static bool is_decode(const assay_fill *fill) {
  enum { MANY = 32 };
  const int64_t N = fill->call->arg[DELTA_V].shape[0], B = fill->call->arg[DELTA_SLOTS].shape[0];
  return N == B && B >= MANY && fill->call->arg[DELTA_STATE].shape[0] >= B;
}

/* Cuts N rows into B requests. Some have no rows or one, and the last one has the rest. */
static void fill_cu(const assay_fill *fill, double *value, int64_t count) {
  const int64_t N = fill->call->arg[DELTA_V].shape[0], B = count - 1;
  assay_rng rng = {fill->seed, 0x64637573, 0};
  int64_t left = N;
  for (int64_t i = 0; i < B; ++i) {
    const int64_t share = left / (B - i), kind = assay_rng_range(&rng, 0, 3);
    const int64_t drawn = kind == 0 ? assay_rng_range(&rng, 0, 2) : assay_rng_range(&rng, 0, 2 * share + 1);
    const int64_t wanted = is_decode(fill) ? 1 : drawn;
    value[i] = (double)(N - left);
    left -= wanted < left ? wanted : left;
  }
  value[B] = (double)N;
}

/* Draws distinct slots in a random order, and -1 for one request in six and where no slot is left. */
static double slot_of(const assay_fill *fill, int64_t i) {
  const int64_t S = fill->call->arg[DELTA_STATE].shape[0];
  assay_rng rng = {fill->seed, 0x64736C6F, 0}, own = {fill->seed, 0x64706164, 4 * (uint64_t)i};
  const int64_t turn = assay_rng_range(&rng, 0, S - 1);
  if (i >= S || (assay_rng_range(&own, 0, 5) == 0 && !is_decode(fill))) return -1;
  return (double)(S - 1 - (i + turn) % S);
}

static bool is_fresh(const assay_fill *fill, int64_t i) {
  assay_rng rng = {fill->seed, 0x64667265, 4 * (uint64_t)i};
  return assay_rng_range(&rng, 0, 2) == 0 && !is_decode(fill);
}

/* ---- the exact tier ---------------------------------------------------------------------------------- */

/* The directions of one key head: columns `column` of a Hadamard matrix of `rows` rows, whose row i is channel
 * (offset + i · step) mod D. */
typedef struct basis {
  int64_t D, rows, offset, step, column[DIRECTIONS];
} basis;

static basis basis_of(const assay_fill *fill, int64_t head) {
  static const int64_t steps[] = {1, 3, 5, 7}, sizes[] = {1, 4, 16};
  assay_rng rng = {fill->seed, 0x62617369, 64 * (uint64_t)head};
  basis b = {.D = fill->call->arg[DELTA_K].shape[2], .rows = 1, .step = 1};
  const int64_t size = sizes[assay_rng_range(&rng, 0, 2)], step = steps[assay_rng_range(&rng, 0, 3)];
  if (size <= b.D) b.rows = size;
  if (b.D % step != 0 || step == 1) b.step = step;
  b.offset = assay_rng_range(&rng, 0, b.D - 1);
  const int64_t first = assay_rng_range(&rng, 0, 15);
  for (int64_t i = 0; i < DIRECTIONS; ++i)
    b.column[i] = (first + i) % (b.rows > 1 ? b.rows : b.D);
  return b;
}

static bool is_odd(int64_t bits) {
  bool odd = false;
  for (; bits != 0; bits &= bits - 1)
    odd = !odd;
  return odd;
}

/* Adds sign times a direction, of length 1, to D channels. */
static void add_direction(const basis *b, int64_t direction, double sign, double *value) {
  const int64_t column = b->column[direction];
  if (b->rows == 1) {
    value[(b->offset + column * b->step) % b->D] += sign;
    return;
  }
  const double part = b->rows == 4 ? 0.5 : 0.25;
  for (int64_t i = 0; i < b->rows; ++i)
    value[(b->offset + i * b->step) % b->D] += is_odd(i & column) ? -sign * part : sign * part;
}

/* The numbers of a row in the exact tier. */
typedef struct choice {
  int64_t key, query, second; /* directions */
  bool no_key, clear, border;
  int64_t share; /* wanted: beta in halves */
} choice;

static choice choice_of(const assay_fill *fill, int64_t n, int64_t head, bool of_value_head) {
  assay_rng rng = {fill->seed, of_value_head ? 0x64766865 : 0x646B6865, 1024 * (uint64_t)n + 4 * (uint64_t)head};
  const uint64_t bits = assay_rng_u64(&rng), more = assay_rng_u64(&rng);
  return (choice){.key = (int64_t)(bits % DIRECTIONS),
                  .query = (int64_t)(bits / 8 % DIRECTIONS),
                  .second = (int64_t)(bits / 64 % DIRECTIONS),
                  .no_key = bits / 1024 % 12 == 0,
                  .clear = more % 9 == 0,
                  .border = more / 16 % 2 == 0,
                  .share = (int64_t)(more / 64 % 5)};
}

static double sign_of(const assay_fill *fill, int64_t n, int64_t head, uint64_t of) {
  assay_rng rng = {fill->seed, 0x7369676E + (of << 32), 1024 * (uint64_t)n + 4 * (uint64_t)head};
  return assay_rng_range(&rng, 0, 1) != 0 ? 1 : -1;
}

static void fill_keys(const assay_fill *fill, double *value, int64_t count) {
  const int64_t H = fill->call->arg[DELTA_K].shape[1], D = fill->call->arg[DELTA_K].shape[2];
  for (int64_t i = 0; i < count; ++i)
    value[i] = 0;
  for (int64_t i = 0; i < count / D; ++i) {
    const int64_t n = i / H, head = i % H;
    const basis b = basis_of(fill, head);
    const choice c = choice_of(fill, n, head, false);
    if (!c.no_key) add_direction(&b, c.key, sign_of(fill, n, head, 1), value + i * D);
  }
}

/* A query is a sum of two directions, or one where queries are divided by their lengths. */
static void fill_queries(const assay_fill *fill, double *value, int64_t count) {
  const int64_t H = fill->call->arg[DELTA_Q].shape[1], D = fill->call->arg[DELTA_Q].shape[2];
  for (int64_t i = 0; i < count; ++i)
    value[i] = 0;
  for (int64_t i = 0; i < count / D; ++i) {
    const int64_t n = i / H, head = i % H;
    const basis b = basis_of(fill, head);
    const choice c = choice_of(fill, n, head, false);
    add_direction(&b, c.query, sign_of(fill, n, head, 2), value + i * D);
    if (fill->call->param[DELTA_L2] == 0) add_direction(&b, c.second, sign_of(fill, n, head, 3), value + i * D);
  }
}

/* Returns how many halvings of a direction may follow each other. Chunks round to 16 bits, and with more than two their
 * numbers need more. */
static int64_t most_halvings(const assay_fill *fill) {
  return fill->call->arg[DELTA_Q].dtype == ASSAY_F32 ? 4 : 2;
}

/* Fills both gates of one value head: g is 0 or -800, beta 0, 1/2 or 1. Few halvings of a direction follow each other
 * without a row that clears S. Rows where chunks begin clear S more often. */
static void fill_gates(const assay_fill *fill, int32_t arg, const double *cu, int64_t h, double *value) {
  const int64_t N = fill->call->arg[DELTA_V].shape[0], H = fill->call->arg[DELTA_V].shape[1];
  const int64_t ratio = H / fill->call->arg[DELTA_K].shape[1];
  int64_t halvings[DIRECTIONS] = {0}, request = 0;
  for (int64_t n = 0; n < N; ++n) {
    bool first = n == 0;
    for (; (double)n >= cu[request + 1]; ++request)
      first = true;
    const choice c = choice_of(fill, n, h, true), key = choice_of(fill, n, h / (ratio > 0 ? ratio : 1), false);
    const bool begins = (n - (int64_t)cu[request]) % BORDER == 0 && c.border;
    const bool clear = c.clear || begins;
    for (int64_t i = 0; i < DIRECTIONS && (first || clear); ++i)
      halvings[i] = 0;
    double beta = c.share == 0 ? 0 : c.share < 3 ? 0.5 : 1;
    if (beta == 0.5 && halvings[key.key]++ >= most_halvings(fill)) beta = 1;
    value[n * H + h] = arg == DELTA_BETA ? beta : clear ? -800 : 0;
  }
}

/* ---- the calibrated tier ----------------------------------------------------------------------------- */

/* A third of the heads decays slowly, a third by a tenth a row, and a third at once. One head of four has shares up to
 * 2, with which an update turns the sign of what a key holds. */
static double gate_number(int32_t arg, int64_t h, assay_rng *rng) {
  static const double rate[] = {0.001, 0.2, 3};
  const double unit = assay_rng_unit(rng);
  return arg == DELTA_BETA ? (h % 4 == 1 ? 2 * unit : unit) : -unit * rate[h % 3];
}

/* Without l2, keys are divided by their lengths here: longer keys let S grow without bound. */
static void shorten_keys(const assay_fill *fill, double *value, int64_t count) {
  const int64_t D = fill->call->arg[DELTA_K].shape[2];
  for (int64_t i = 0; i < count / D; ++i) {
    double sum = 0x1p-100;
    for (int64_t d = 0; d < D; ++d)
      sum += value[i * D + d] * value[i * D + d];
    for (int64_t d = 0; d < D; ++d)
      value[i * D + d] /= 1.01 * sqrt(sum);
  }
}

/* Replaces the slots of fresh requests that have rows by NaN. Nothing may depend on them. */
static void poison_fresh(const assay_fill *fill, const double *cu, double *value) {
  const assay_tensor *state = &fill->call->arg[DELTA_STATE];
  const int64_t B = fill->call->arg[DELTA_SLOTS].shape[0], width = state->shape[1] * state->shape[2] * state->shape[3];
  for (int64_t i = 0; i < B; ++i) {
    const double slot = slot_of(fill, i);
    const bool dead = slot >= 0 && is_fresh(fill, i) && cu[i + 1] > cu[i];
    for (int64_t at = 0; dead && at < width; ++at)
      value[(int64_t)slot * width + at] = (double)NAN;
  }
}

static void fill_numbers(const assay_fill *fill, int32_t arg, const double *cu, double *value, int64_t count) {
  const bool exact = fill->values == ASSAY_LATTICE;
  const int64_t H = fill->call->arg[DELTA_V].shape[1];
  assay_rng rng = {fill->seed, 0x64656C74 + ((uint64_t)arg << 32), 0};
  if (arg == DELTA_G || arg == DELTA_BETA) {
    for (int64_t i = 0; i < count && !exact; ++i)
      value[i] = gate_number(arg, i % H, &rng);
    for (int64_t h = 0; h < H && exact; ++h)
      fill_gates(fill, arg, cu, h, value);
    return;
  }
  if (exact && arg == DELTA_K) fill_keys(fill, value, count);
  if (exact && arg == DELTA_Q) fill_queries(fill, value, count);
  for (int64_t i = 0; i < count && exact && (arg == DELTA_V || arg == DELTA_STATE); ++i)
    value[i] = (double)assay_rng_range(&rng, -8, 8);
  if (!exact) plain_fill(fill, (uint64_t)arg, value, count);
  if (!exact && arg == DELTA_K && fill->call->param[DELTA_L2] == 0) shorten_keys(fill, value, count);
  if (arg == DELTA_STATE) poison_fresh(fill, cu, value);
}

assay_status delta_fill(const assay_fill *fill, int32_t arg, double *value, int64_t count, assay_error *error) {
  const int64_t B = fill->call->arg[DELTA_SLOTS].shape[0];
  double *cu = malloc((size_t)(B + 1) * sizeof *cu);
  if (cu == NULL) return assay_fail(error, ASSAY_ERR_MEMORY, "gated_delta_rule: out of memory");
  fill_cu(fill, cu, B + 1);
  for (int64_t i = 0; i < count; ++i) {
    if (arg == DELTA_CU) value[i] = cu[i];
    if (arg == DELTA_SLOTS) value[i] = slot_of(fill, i);
    if (arg == DELTA_FRESH) value[i] = plain_flag(fill, DELTA_FRESH, i, is_fresh(fill, i));
  }
  if (arg != DELTA_CU && arg != DELTA_SLOTS && arg != DELTA_FRESH) fill_numbers(fill, arg, cu, value, count);
  free(cu);
  return ASSAY_OK;
}
