/* mxfp4_gemm: a product with weights of four bits. Weight k of channel n is a code of e2m1 times a power of two that 32
 * neighbours share:
 *
 *   C_mn = round(sum_k a_mk · w_nk + bias_n),   w_nk = e2m1(code_nk) · 2^(s_{n, floor(k / 32)} - 127)
 *
 * The sum is f32, and is rounded once. w is exact in bf16 wherever |w| < 2^128. From there on it is infinite. s = 255
 * is NaN, whatever the code. Codes lie in words of 32 bits, eight in a word, and scales lie four in a word. Both begin
 * with the lowest bits. Rows of scales end with a whole word, whose other bytes are dead. Source: docs/definitions.md,
 * section 13. */
#include <math.h>
#include <stdlib.h>

#include "core/dtype.h"
#include "core/rng.h"
#include "ref/lib/error_model.h"
#include "ref/lib/gemm.h"
#include "ref/lib/lattice.h"
#include "ref/lib/plain.h"
#include "ref/lib/rowwise.h"

enum { ARG_C, ARG_A, ARG_CODES, ARG_SCALES, ARG_BIAS, ARG_COUNT };
enum { BLOCK = 32, BIAS_OF_SCALE = 127, NAN_SCALE = 255 };

const assay_op *assay_op_mxfp4_gemm(void);

typedef enum mx_spoil {
  SPOIL_NONE = -1,
  SPOIL_NIBBLES_SWAPPED,       /* the even weight is in the high half of a byte */
  SPOIL_SCALE_OF_BLOCK_BEFORE, /* the scale of the 32 weights before */
  SPOIL_SCALE_SHIFT_TOO_SMALL, /* weights are 2^-112 times what they should be */
  SPOIL_SUBNORMAL_SCALE_ZERO,  /* scale 0 counts as 0, not as 2^-127 */
  SPOIL_SIGN_LOST,             /* all weights are positive */
  SPOIL_BIAS_LOST,
  SPOIL_NAN_SCALE_LOST, /* scale 255 counts as 2^128 */
  SPOIL_LAST_BLOCK_DROPPED,
  SPOIL_SCALES_OF_ROW_BEFORE
} mx_spoil;

/* ---- the definition ---------------------------------------------------------------------------------- */

static double e2m1(uint32_t code) {
  static const double size[8] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
  return (code & 8) != 0 ? -size[code & 7] : size[code & 7];
}

static double weight(uint32_t code, uint32_t scale) {
  if (scale == NAN_SCALE) return (double)NAN;
  const double w = ldexp(e2m1(code), (int)scale - BIAS_OF_SCALE);
  return fabs(w) < 0x1p128 ? w : copysign((double)INFINITY, w);
}

/* The inputs of one element. a, w: [K]. */
typedef struct element {
  const double *a, *w;
  int64_t K;
  double bias;
} element;

static double mxfp4_gemm(const element *e) {
  return gemm_dot(e->a, e->w, e->K) + e->bias;
}

/* ---- the error model and the exact tier -------------------------------------------------------------- */

/* Returns the variance of an element: of its f32 sum, of the addition of the bias, and of the result. A sum that starts
 * from the bias adds it nowhere else. Results that are not finite have none. */
static double variance(const element *e, const gemm_sum *s, const assay_contract *contract, assay_dtype out) {
  const double y = s->sum + e->bias;
  if (!isfinite(y)) return 0;
  double total = gemm_variance(s, contract, e->a, e->w, e->K, ASSAY_BF16) + storing_variance(y, out);
  if (e->bias != 0 && s->start == 0) total += storing_variance(y, ASSAY_F32);
  return total;
}

/* Admits an element: whatever the order, its sum with the bias has 24 bits at most and is a multiple of 2^-149. */
static assay_status admit(const assay_call *call, int64_t m, int64_t n, const element *e, const gemm_sum *s,
                          assay_error *error) {
  const double size = s->abs + fabs(e->bias);
  int low = s->abs != 0 ? lattice_low_row(e->a, e->K) + lattice_low_row(e->w, e->K) : LATTICE_ZERO;
  if (s->abs != 0 && low < -149) return rowwise_refuse(call, m, n, "exponent of a w", low, -149, error);
  if (lattice_low(e->bias) < low) low = lattice_low(e->bias);
  if (size == 0 || (size <= ldexp(1, 24 + low) && size < 0x1p127)) return ASSAY_OK;
  return rowwise_refuse(call, m, n, "sum |a w| + |bias|", size, fmin(ldexp(1, 24 + low), 0x1p127), error);
}

/* ---- adapter ----------------------------------------------------------------------------------------- */

/* Returns a part of a row of words: `bits` wide, number `at`. */
static uint32_t part_of(const assay_tensor *words, int64_t row, int64_t at, int32_t bits) {
  const int64_t each = 32 / bits, first = words->shape[0] > 1 ? row * words->stride[0] : 0;
  const uint32_t word = (uint32_t)((const int32_t *)words->data)[first + at / each];
  return word >> (at % each * bits) & ((1u << bits) - 1);
}

/* Loads the weights of channel n, with a planted error. */
static void load_weights(const assay_call *call, int64_t n, mx_spoil spoil, int64_t K, double *w) {
  const assay_tensor *codes = &call->arg[ARG_CODES], *scales = &call->arg[ARG_SCALES];
  for (int64_t k = 0; k < K; ++k) {
    const int64_t block = k / BLOCK;
    const int64_t row = spoil == SPOIL_SCALES_OF_ROW_BEFORE && n > 0 ? n - 1 : n;
    const uint32_t scale =
        part_of(scales, row, spoil == SPOIL_SCALE_OF_BLOCK_BEFORE && block > 0 ? block - 1 : block, 8);
    uint32_t code = part_of(codes, n, spoil == SPOIL_NIBBLES_SWAPPED ? k ^ 1 : k, 4);
    if (spoil == SPOIL_SIGN_LOST) code &= 7;
    w[k] = weight(code, scale);
    if (spoil == SPOIL_SCALE_SHIFT_TOO_SMALL) w[k] *= 0x1p-112;
    if (spoil == SPOIL_SUBNORMAL_SCALE_ZERO && scale == 0) w[k] = 0;
    if (spoil == SPOIL_NAN_SCALE_LOST && scale == NAN_SCALE) w[k] = e2m1(code) * 0x1p128;
    if (spoil == SPOIL_LAST_BLOCK_DROPPED && block == K / BLOCK - 1) w[k] = 0;
  }
}

static assay_status compute(const assay_call *call, const assay_contract *given, const assay_rows *rows, bool exact,
                            mx_spoil spoil, const assay_expected *expected, assay_error *error) {
  const assay_tensor *A = &call->arg[ARG_A], *bias = &call->arg[ARG_BIAS];
  const assay_contract *contract = given != NULL ? given : &default_contract;
  const int64_t M = A->shape[0], K = A->shape[1], N = call->arg[ARG_CODES].shape[0], count = rowwise_count(rows, M);
  if (count == 0) return ASSAY_OK;
  double *a;
  assay_status status = rowwise_reserve(call, (count + 1) * K, &a, error);
  if (status != ASSAY_OK) return status;
  double *const w = a + count * K;
  for (int64_t i = 0; i < count; ++i)
    plain_load_row(A, rowwise_index(rows, i), a + i * K);
  for (int64_t n = 0; n < N && status == ASSAY_OK; ++n) {
    load_weights(call, n, spoil, K, w);
    const bool added = bias->data != NULL && spoil != SPOIL_BIAS_LOST;
    for (int64_t i = 0; i < count && status == ASSAY_OK; ++i) {
      const element e = {a + i * K, w, K, added ? assay_load_f64(bias->data, bias->dtype, n) : 0};
      expected->value[i * N + n] = mxfp4_gemm(&e);
      if (expected->sigma == NULL && !exact) continue;
      const gemm_sum s = gemm_walk_from(gemm_start(contract, 1, e.bias), e.a, e.w, K);
      if (expected->sigma != NULL)
        expected->sigma[i * N + n] = sqrt(variance(&e, &s, contract, call->arg[ARG_C].dtype));
      if (exact) status = admit(call, rowwise_index(rows, i), n, &e, &s, error);
    }
  }
  free(a);
  return status;
}

static assay_status reference(const assay_call *call, const assay_contract *contract, const assay_rows *rows,
                              bool exact, assay_expected *expected, assay_seen *seen, assay_error *error) {
  (void)seen;
  return compute(call, contract, rows, exact, SPOIL_NONE, expected, error);
}

static assay_status spoil(const assay_call *call, const assay_contract *contract, const assay_rows *rows, int32_t index,
                          assay_expected *expected, assay_error *error) {
  const assay_expected values = {expected->value, NULL};
  return compute(call, contract, rows, false, (mx_spoil)index, &values, error);
}

/* Describes the weights as bf16, which holds each of them. product_weights writes them. */
static void product(const assay_call *call, int64_t row, assay_product *p) {
  const assay_tensor *codes = &call->arg[ARG_CODES], *bias = &call->arg[ARG_BIAS];
  const int64_t K = call->arg[ARG_A].shape[1], N = codes->shape[0];
  *p = (assay_product){.a = rowwise_row(&call->arg[ARG_A], row), .alpha = 1};
  p->b = (assay_tensor){.data = codes->data, .dtype = ASSAY_BF16, .rank = 2, .shape = {N, K}, .stride = {K, 1}};
  if (bias->data != NULL)
    p->bias = (assay_tensor){.data = bias->data, .dtype = bias->dtype, .rank = 2, .shape = {1, N}, .stride = {0, 1}};
}

static void product_weights(const assay_call *call, int64_t column, void *to) {
  const assay_tensor *codes = &call->arg[ARG_CODES], *scales = &call->arg[ARG_SCALES];
  for (int64_t k = 0; k < call->arg[ARG_A].shape[1]; ++k)
    ((uint16_t *)to)[k] =
        assay_bf16_from_f64(weight(part_of(codes, column, k, 4), part_of(scales, column, k / BLOCK, 8)));
}

static assay_cost cost(const assay_call *call, const assay_seen *seen) {
  (void)seen;
  const assay_tensor *C = &call->arg[ARG_C];
  const double M = (double)C->shape[0], N = (double)C->shape[1], K = (double)call->arg[ARG_A].shape[1];
  return (assay_cost){2 * M * N * K, 2 * M * K + N * K * 17 / 32 + M * N * (double)assay_dtype_size(C->dtype)};
}

/* ---- values for the generator ------------------------------------------------------------------------ */

/* Tells whether a call's contents are exact. Special values are those of the exact tier with NaN and infinities. Beside
 * large numbers in a, weights near the end of f32 would leave it. */
static bool has_exact(const assay_fill *fill) {
  if (fill->magnitude == ASSAY_LARGE || fill->magnitude == ASSAY_MIXED) return false;
  return fill->values == ASSAY_LATTICE || fill->values == ASSAY_SPECIAL;
}

/* The exact contents of a call. Mixed: scales 124 to 130, and a is 0, ±1, ±2 or ±4. Window: seven neighbouring
 * scales from `first` on, and a is 0 or ±2^power. All products are multiples of 2^low. */
typedef struct contents {
  bool mixed;
  int first, power, low;
} contents;

/* Chooses `power` so that products stay multiples of 2^-149 and sums below 2^126, or in the range of f16. */
static contents contents_of(const assay_fill *fill) {
  assay_rng rng = {fill->seed, 0x6D786670, 0};
  contents c = {.mixed = assay_rng_range(&rng, 0, 2) == 0, .first = BIAS_OF_SCALE - 3, .low = -4};
  if (c.mixed) return c;
  const int64_t kind = assay_rng_range(&rng, 0, 2);
  c.first = kind == 0 ? 0 : kind == 1 ? 248 : (int)assay_rng_range(&rng, 1, 247);
  int least = -149 + 128 - c.first, most = 126 - 17 - (c.first + 9 - BIAS_OF_SCALE);
  if (least < -120) least = -120;
  if (most > 120) most = 120;
  c.power = (int)assay_rng_range(&rng, least, most);
  if (c.first == 0 && assay_rng_range(&rng, 0, 3) != 0) c.power = (int)assay_rng_range(&rng, 100, 120);
  if (fill->call->arg[ARG_C].dtype == ASSAY_F16) {
    c.power = (int)assay_rng_range(&rng, -12, -5) + 128 - c.first;
    if (c.power < -126) c.power = -126;
  }
  c.low = c.power + c.first - 128;
  return c;
}

static assay_rng stream_of(const assay_fill *fill, uint64_t stream, int64_t row, int64_t at) {
  return (assay_rng){fill->seed, 0x6D7800 + stream + ((uint64_t)row << 24), 4 * (uint64_t)at};
}

/* Returns the scale of a block. One channel in six of special values has a block of NaN. */
static uint32_t scale_at(const assay_fill *fill, const contents *c, int64_t n, int64_t block, int64_t blocks) {
  assay_rng rng = stream_of(fill, 0, n, block), of_row = stream_of(fill, 1, n, 0);
  const int64_t drawn = assay_rng_range(&rng, 0, 6), kind = assay_rng_range(&of_row, 0, 5);
  if (!has_exact(fill)) return (uint32_t)(BIAS_OF_SCALE - 9 + drawn % 5);
  if (fill->values == ASSAY_SPECIAL && kind == 0 && block == assay_rng_range(&of_row, 0, blocks - 1)) return NAN_SCALE;
  return (uint32_t)(c->first + (block + drawn % 2 * 3 + n) % 7);
}

/* Returns the code of a weight whose scale is NaN. In half of the channels all are 0, in the others all are positive.
 * An infinite scale in its place would then give an infinite sum. */
static uint32_t code_of_nan(const assay_fill *fill, int64_t n, uint32_t code) {
  assay_rng rng = stream_of(fill, 4, n, 0);
  return assay_rng_range(&rng, 0, 1) == 0 ? 0 : code % 7 + 1;
}

/* Returns the code of a weight. |w| stays below 2^128, except in one channel in four of special values. */
static uint32_t code_at(const assay_fill *fill, const contents *c, int64_t n, int64_t k, int64_t blocks) {
  assay_rng rng = stream_of(fill, 2, n, k), of_row = stream_of(fill, 3, n, 0);
  const uint32_t code = (uint32_t)assay_rng_range(&rng, 0, 15);
  if (!has_exact(fill)) return code;
  const uint32_t scale = scale_at(fill, c, n, k / BLOCK, blocks);
  if (scale == NAN_SCALE) return code_of_nan(fill, n, code);
  if (fill->values == ASSAY_SPECIAL && assay_rng_range(&of_row, 0, 3) == 0) return code;
  if (scale == 254) return code & 0xB; /* up to 1.5 */
  return scale == 253 && (code & 7) > 5 ? code & 0xD : code;
}

static void fill_words(const assay_fill *fill, int32_t arg, double *value, int64_t count) {
  const assay_call *call = fill->call;
  const int64_t blocks = call->arg[ARG_A].shape[1] / BLOCK, width = call->arg[arg].shape[1];
  const contents c = contents_of(fill);
  for (int64_t i = 0; i < count; ++i) {
    const int64_t n = i / width, at = i % width;
    uint32_t word = 0;
    for (int64_t j = 0; j < 8 && arg == ARG_CODES; ++j)
      word |= code_at(fill, &c, n, 8 * at + j, blocks) << 4 * j;
    for (int64_t j = 0; j < 4 && arg == ARG_SCALES; ++j)
      word |= (4 * at + j < blocks ? scale_at(fill, &c, n, 4 * at + j, blocks) : NAN_SCALE) << 8 * j;
    value[i] = (double)(int32_t)word;
  }
}

static assay_status fill(const assay_fill *from, int32_t arg, double *value, int64_t count, assay_error *error) {
  (void)error;
  if (arg == ARG_CODES || arg == ARG_SCALES) {
    fill_words(from, arg, value, count);
    return ASSAY_OK;
  }
  plain_fill(from, (uint64_t)arg, value, count);
  if (!has_exact(from)) return ASSAY_OK;
  const contents c = contents_of(from);
  assay_rng rng = {from->seed, 0x6D786100 + (uint64_t)arg, 0};
  const bool positive = arg == ARG_A && assay_rng_range(&rng, 0, 1) == 0; /* for special values */
  const double unit = c.mixed ? 1 : ldexp(1, c.power);
  for (int64_t i = 0; i < count; ++i) {
    const int64_t drawn = assay_rng_range(&rng, -16, 16), power = assay_rng_range(&rng, 0, 2);
    const double sign = drawn % 4 == 0 ? 0 : drawn < 0 ? -1 : 1;
    value[i] = arg == ARG_A ? sign * ldexp(1, c.mixed ? (int)power : c.power)
                            : (double)drawn * ldexp(1, c.low + 2 > -130 ? c.low + 2 : -130);
    if (from->values == ASSAY_SPECIAL && positive) value[i] = value[i] == 0 ? unit : fabs(value[i]);
    if (from->values != ASSAY_SPECIAL || arg != ARG_A) continue;
    const int64_t kind = assay_rng_range(&rng, 0, 2047);
    if (kind < 2) value[i] = kind == 0 ? (double)NAN : (double)INFINITY;
  }
  return ASSAY_OK;
}

/* ---- the table --------------------------------------------------------------------------------------- */

static const assay_dim dims[] = {
    {"M", 1, 1 << 20, 4, 1, "rows"},
    {"N", 1, 1 << 20, 64, 1, "output channels"},
    {"K", BLOCK, 65536, 256, BLOCK, "input channels: terms of each sum"},
};

static const assay_arg args[ARG_COUNT] = {
    {"c", ASSAY_OUT, ASSAY_RESULT, false, "f32,f16,bf16", "M,N", "the result", true},
    {"a", ASSAY_IN, ASSAY_VALUES, false, "bf16", "M,K", "activations", true},
    {"codes", ASSAY_IN, ASSAY_VALUES, false, "i32", "N,K/8", "e2m1, eight a word, the lowest bits first", true},
    {"scales", ASSAY_IN, ASSAY_VALUES, false, "i32", "N,K^128", "UE8M0 of 32 weights, four a word", true},
    {"bias", ASSAY_IN, ASSAY_VALUES, true, "=c", "N", "one for each output channel", false},
};

static const assay_op op = {
    .name = "mxfp4_gemm",
    .title = "product with e2m1 weights and a power of two for every 32",
    .source = "docs/definitions.md, section 13",
    .dims = dims,
    .dim_count = (int32_t)(sizeof dims / sizeof dims[0]),
    .args = args,
    .arg_count = ARG_COUNT,
    .laws = "run_to_run,dead_bytes,permutation",
    .spoils = "nibbles_swapped,scale_of_block_before,scale_shift_too_small,subnormal_scale_zero,sign_lost,bias_lost,"
              "nan_scale_lost,last_block_dropped,scales_of_row_before",
    .kappa_element = 7,
    .form = ASSAY_PLAIN,
    .row_dim = "M",
    .confirmed_by = "dgemm of another library on weights of a table; scales of all 255 values (ref_mxfp4_test)",
    .takes_special = true,
    .extreme_args = "a,bias",
    .largest = 0x1p88,
    .check = plain_check_call,
    .reference = reference,
    .cost = cost,
    .fill = fill,
    .spoil = spoil,
    .product = product,
    .product_weights = product_weights,
};

const assay_op *assay_op_mxfp4_gemm(void) {
  return &op;
}
