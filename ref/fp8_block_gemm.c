/* fp8_block_gemm: a product of e4m3 matrices with a scale for 1 x 128 pieces of a and for 128 x 128 pieces of b. With
 * κ a piece of 128 of K, the last of which may be short:
 *
 *   C_mn = round(sum_κ sfa_{m κ} · sfb_{floor(n / 128) κ} · (sum_{i in κ} a_mi · b_ni) + bias_n)
 *
 * A sum over a piece is scaled, then added in f32. The result is rounded once. Exactly one of sfa [M, ceil(K/128)],
 * sfa_t, its transpose, and sfa_packed [ceil(K/512), M] is present. Likewise exactly one of sfb, sfb_t and sfb_packed
 * is. A packed word has four scales 2^(e - 127), from the lowest byte on; e = 255 is NaN. ref/lib/block_gemm.c has one
 * element, with its error model. Source: docs/definitions.md, section 13. */
#include <math.h>
#include <stdlib.h>

#include "core/dtype.h"
#include "ref/lib/block_gemm.h"
#include "ref/lib/error_model.h"
#include "ref/lib/plain.h"
#include "ref/lib/rowwise.h"

enum {
  ARG_C,
  ARG_A,
  ARG_SFA,
  ARG_SFA_T,
  ARG_B,
  ARG_SFB,
  ARG_SFB_T,
  ARG_BIAS,
  ARG_SFA_PACKED,
  ARG_SFB_PACKED,
  ARG_COUNT
};

const assay_op *assay_op_fp8_block_gemm(void);

typedef enum block_spoil {
  SPOIL_NONE = -1,
  SPOIL_B_SCALE_REUSED_SCALED,   /* the second 128 of 256 rows have sfb twice */
  SPOIL_M_TAIL_SCALE,            /* rows of a last tile of less than 64 have the scales of its first row */
  SPOIL_SCALE_OF_K_BLOCK_BEFORE, /* sfa of the piece before */
  SPOIL_LAST_K_BLOCK_DROPPED,    /* without the last piece */
  SPOIL_N_BLOCK_OF_64,           /* sfb has a row for 64 columns */
  SPOIL_NO_PROMOTION,            /* the scaled running sum is cut to 14 bits after each piece */
  SPOIL_SCALE_POW2_ROUNDED,      /* scales become powers of two */
  SPOIL_SCALE_OF_STAGE_BEFORE,   /* both scales of three pieces before */
  SPOIL_SCALE_OF_TILE_BEFORE,    /* rows from 64 on have the scales of the rows 64 before */
  SPOIL_SCALE_TRANSPOSED         /* sfb is read as its transpose */
} block_spoil;

/* ---- adapter ----------------------------------------------------------------------------------------- */

/* Returns the scales as [rows, pieces], whichever of the three arguments is given. Packed ones are i32, and a word
 * stands for four pieces. */
static assay_tensor scales_of(const assay_call *call, int32_t arg) {
  const int32_t packed = arg == ARG_SFA ? ARG_SFA_PACKED : ARG_SFB_PACKED;
  if (call->arg[arg].data != NULL) return call->arg[arg];
  const assay_tensor *t = &call->arg[call->arg[packed].data != NULL ? packed : arg + 1];
  assay_tensor turned = *t;
  turned.shape[0] = t->shape[1];
  turned.shape[1] = t->shape[0];
  turned.stride[0] = t->stride[1];
  turned.stride[1] = t->stride[0];
  return turned;
}

static double scale_at(const assay_tensor *t, int64_t row, int64_t piece) {
  if (t->dtype == ASSAY_I32) {
    const int64_t word = (t->shape[0] > 1 ? row * t->stride[0] : 0) + piece / 4 * t->stride[1];
    const int e = ((const uint8_t *)((const int32_t *)t->data + word))[piece % 4];
    return e == 255 ? (double)NAN : ldexp(1, e - 127);
  }
  const int64_t at = (t->shape[0] > 1 ? row * t->stride[0] : 0) + (t->shape[1] > 1 ? piece * t->stride[1] : 0);
  return (double)((const float *)t->data)[at];
}

static assay_status check(const assay_call *call, assay_error *error) {
  const assay_status status = plain_check_call(call, error);
  if (status != ASSAY_OK) return status;
  const bool empty = call->arg[ARG_C].shape[0] == 0;
  for (int32_t i = ARG_SFA; i <= ARG_SFB; i += ARG_SFB - ARG_SFA) {
    const int32_t packed = i == ARG_SFA ? ARG_SFA_PACKED : ARG_SFB_PACKED;
    const int given = (call->arg[i].data != NULL) + (call->arg[i + 1].data != NULL) + (call->arg[packed].data != NULL);
    if (given == 1 || (empty && i == ARG_SFA)) continue;
    return assay_fail(error, ASSAY_ERR_INPUT, "%s: found %d of %s, %s_t, %s_packed, allowed exactly one",
                      call->op->args[i].name, given, call->op->args[i].name, call->op->args[i].name,
                      call->op->args[i].name);
  }
  return ASSAY_OK;
}

typedef struct block_run {
  const assay_call *call;
  const assay_contract *contract;
  assay_tensor sfa, sfb;
  block_spoil spoil;
  int64_t M, N, K, pieces;
} block_run;

static void load_sfa(const block_run *run, int64_t m, double *to) {
  const int64_t tail = run->M / 64 * 64;
  const int64_t row = run->spoil == SPOIL_M_TAIL_SCALE && m > tail          ? tail
                      : run->spoil == SPOIL_SCALE_OF_TILE_BEFORE && m >= 64 ? m - 64
                                                                            : m;
  const int64_t back = run->spoil == SPOIL_SCALE_OF_K_BLOCK_BEFORE ? 1
                       : run->spoil == SPOIL_SCALE_OF_STAGE_BEFORE ? 3
                                                                   : 0;
  for (int64_t p = 0; p < run->pieces; ++p) {
    to[p] = scale_at(&run->sfa, row, p >= back ? p - back : p);
    if (run->spoil == SPOIL_SCALE_POW2_ROUNDED) to[p] = block_power_of_two(to[p]);
  }
}

static void load_sfb(const block_run *run, int64_t n, double *to) {
  const int64_t rows = run->sfb.shape[0], own = n / (run->spoil == SPOIL_N_BLOCK_OF_64 ? 64 : BLOCK_PIECE);
  const int64_t back = run->spoil == SPOIL_SCALE_OF_STAGE_BEFORE ? 3 : 0;
  for (int64_t p = 0; p < run->pieces; ++p) {
    const int64_t row = own < rows ? own : rows - 1, at = p >= back ? p - back : p, turned = at * rows + row;
    to[p] = run->spoil == SPOIL_SCALE_TRANSPOSED ? scale_at(&run->sfb, turned / run->pieces, turned % run->pieces)
                                                 : scale_at(&run->sfb, row, at);
    if (run->spoil == SPOIL_SCALE_POW2_ROUNDED) to[p] = block_power_of_two(to[p]);
  }
}

static double spoiled(const block_run *run, int64_t m, const block_element *right, double *twice) {
  block_element e = *right;
  if (run->spoil == SPOIL_LAST_K_BLOCK_DROPPED) e.K = (run->pieces - 1) * BLOCK_PIECE;
  if (run->spoil == SPOIL_NO_PROMOTION) return block_without_promotion(&e);
  if (run->spoil == SPOIL_B_SCALE_REUSED_SCALED && m % 256 >= 128) {
    for (int64_t p = 0; p < run->pieces; ++p)
      twice[p] = e.sfb[p] * e.sfb[p];
    e.sfb = twice;
  }
  return block_gemm(&e);
}

static assay_status compute(const assay_call *call, const assay_contract *contract, const assay_rows *rows, bool exact,
                            block_spoil spoil, const assay_expected *expected, assay_error *error) {
  const assay_tensor *A = &call->arg[ARG_A], *B = &call->arg[ARG_B], *bias = &call->arg[ARG_BIAS];
  block_run run = {.call = call, .spoil = spoil, .M = A->shape[0], .N = B->shape[0], .K = A->shape[1]};
  const int64_t count = rowwise_count(rows, run.M), K = run.K;
  run.contract = contract != NULL ? contract : &default_contract;
  run.pieces = block_pieces(K);
  if (count == 0) return ASSAY_OK;
  run.sfa = scales_of(call, ARG_SFA);
  run.sfb = scales_of(call, ARG_SFB);
  double *a;
  assay_status status = rowwise_reserve(call, (count + 1) * (K + run.pieces) + run.pieces, &a, error);
  if (status != ASSAY_OK) return status;
  double *const b = a + count * K, *const sfa = b + K, *const sfb = sfa + count * run.pieces;
  for (int64_t i = 0; i < count; ++i) {
    plain_load_row(A, rowwise_index(rows, i), a + i * K);
    load_sfa(&run, rowwise_index(rows, i), sfa + i * run.pieces);
  }
  for (int64_t n = 0; n < run.N && status == ASSAY_OK; ++n) {
    plain_load_row(B, n, b);
    load_sfb(&run, n, sfb);
    for (int64_t i = 0; i < count && status == ASSAY_OK; ++i) {
      const int64_t m = rowwise_index(rows, i), at = i * run.N + n;
      const double added = bias->data != NULL ? assay_load_f64(bias->data, bias->dtype, n) : 0;
      const block_element e = {a + i * K, b, sfa + i * run.pieces, sfb, K, added};
      expected->value[at] = spoil == SPOIL_NONE ? block_gemm(&e) : spoiled(&run, m, &e, sfb + run.pieces);
      if (expected->sigma != NULL) expected->sigma[at] = sqrt(block_variance(&e, run.contract, call->arg[ARG_C].dtype));
      if (exact) status = block_admit(call, m, n, &e, run.contract, error);
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
  return compute(call, contract, rows, false, (block_spoil)index, &values, error);
}

static assay_tensor row_of(const assay_tensor *t, int64_t row) {
  assay_tensor made = *t;
  made.data = (unsigned char *)t->data + (t->shape[0] > 1 ? row * t->stride[0] : 0) * assay_dtype_size(t->dtype);
  made.shape[0] = 1;
  return made;
}

static void product(const assay_call *call, int64_t row, assay_product *p) {
  const assay_tensor *bias = &call->arg[ARG_BIAS], sfa = scales_of(call, ARG_SFA);
  const int64_t pieces = block_pieces(call->arg[ARG_A].shape[1]);
  *p = (assay_product){.a = row_of(&call->arg[ARG_A], row),
                       .b = call->arg[ARG_B],
                       .scale_a = row_of(&sfa, row),
                       .scale_b = scales_of(call, ARG_SFB),
                       .scale_b_columns = BLOCK_PIECE,
                       .alpha = 1};
  p->scale_a.shape[1] = p->scale_b.shape[1] = pieces;
  if (bias->data != NULL)
    p->bias = (assay_tensor){
        .data = bias->data, .dtype = bias->dtype, .rank = 2, .shape = {1, bias->shape[0]}, .stride = {0, 1}};
}

static assay_cost cost(const assay_call *call, const assay_seen *seen) {
  (void)seen;
  const assay_tensor *C = &call->arg[ARG_C];
  const double M = (double)C->shape[0], N = (double)C->shape[1], K = (double)call->arg[ARG_A].shape[1];
  const double scales = 4 * (double)block_pieces(call->arg[ARG_A].shape[1]) * (M + ceil(N / BLOCK_PIECE));
  return (assay_cost){2 * M * N * K, M * K + N * K + scales + M * N * (double)assay_dtype_size(C->dtype)};
}

/* ---- values for the generator ------------------------------------------------------------------------ */

/* Packs the exponents of four scales, which become powers of two. Bytes past the last piece are NaN: nothing reads
 * them. A single piece has the least ones too. */
static double packed_word(const assay_fill *fill, bool of_a, int64_t row, int64_t first, int64_t K) {
  const bool alone = K <= BLOCK_PIECE;
  uint32_t word = 0;
  for (int64_t i = 0; i < 4; ++i) {
    int e = 128;
    const bool there = first + i < block_pieces(K);
    const double scale = there ? block_fill_scale(fill, of_a, row, first + i, K) : 1;
    (void)frexp(block_power_of_two(fabs(scale)), &e);
    uint32_t code = (uint32_t)(e + 126);
    if (!there) code = 255;
    if (there && alone && scale == 0) code = of_a ? 0 : 64;
    word |= code << (8 * i);
  }
  return (double)(int32_t)word;
}

static assay_status fill(const assay_fill *from, int32_t arg, double *value, int64_t count, assay_error *error) {
  (void)error;
  const assay_tensor *t = &from->call->arg[arg];
  const int64_t width = t->rank > 1 ? t->shape[1] : 1, K = from->call->arg[ARG_A].shape[1];
  const bool turned = arg == ARG_SFA_T || arg == ARG_SFB_T, of_a = arg == ARG_SFA || arg == ARG_SFA_T;
  if (arg == ARG_A || arg == ARG_B)
    block_fill_codes(from, arg, arg == ARG_A, K, value, count);
  else if (arg == ARG_C || arg == ARG_BIAS)
    plain_fill(from, (uint64_t)arg, value, count);
  else if (arg == ARG_SFA_PACKED || arg == ARG_SFB_PACKED)
    for (int64_t i = 0; i < count; ++i)
      value[i] = packed_word(from, arg == ARG_SFA_PACKED, i % width, i / width * 4, K);
  else
    for (int64_t i = 0; i < count; ++i)
      value[i] = turned ? block_fill_scale(from, of_a, i % width, i / width, K)
                        : block_fill_scale(from, of_a, i / width, i % width, K);
  return ASSAY_OK;
}

/* ---- the table --------------------------------------------------------------------------------------- */

static const assay_dim dims[] = {
    {"M", 1, 1 << 20, 4, 1, "rows"},
    {"N", 1, 1 << 20, 64, 1, "output channels"},
    {"K", 1, 65536, 256, 1, "input channels: terms of each sum"},
};

static const assay_arg args[ARG_COUNT] = {
    {"c", ASSAY_OUT, ASSAY_RESULT, false, "f32,f16,bf16", "M,N", "the result", true},
    {"a", ASSAY_IN, ASSAY_VALUES, false, "e4m3", "M,K", "activations", true},
    {"sfa", ASSAY_IN, ASSAY_VALUES, true, "f32", "M,K^128", "scales of 128 channels of a row of a", true},
    {"sfa_t", ASSAY_IN, ASSAY_VALUES, true, "f32", "K^128,M", "the same, a row for each 128 channels", true},
    {"b", ASSAY_IN, ASSAY_VALUES, false, "e4m3", "N,K", "weights, one row an output channel", true},
    {"sfb", ASSAY_IN, ASSAY_VALUES, true, "f32", "N^128,K^128", "scales of 128 x 128 weights", true},
    {"sfb_t", ASSAY_IN, ASSAY_VALUES, true, "f32", "K^128,N^128", "the same, transposed", true},
    {"bias", ASSAY_IN, ASSAY_VALUES, true, "=c", "N", "one for each output channel", false},
    {"sfa_packed", ASSAY_IN, ASSAY_VALUES, true, "i32", "K^512,M", "scales 2^(e - 127) of a, four a word", true},
    {"sfb_packed", ASSAY_IN, ASSAY_VALUES, true, "i32", "K^512,N^128", "the same of b", true},
};

static const assay_op op = {
    .name = "fp8_block_gemm",
    .title = "e4m3 product with scales of 1 x 128 and 128 x 128",
    .source = "docs/definitions.md, section 13",
    .dims = dims,
    .dim_count = (int32_t)(sizeof dims / sizeof dims[0]),
    .args = args,
    .arg_count = ARG_COUNT,
    .laws = "run_to_run,dead_bytes,permutation",
    .spoils = "b_scale_reused_scaled,m_tail_scale,scale_of_k_block_before,last_k_block_dropped,n_block_of_64,"
              "no_promotion,scale_pow2_rounded,scale_of_stage_before,scale_of_tile_before,scale_transposed",
    .kappa_element = 7, /* sums of many cuts, close to normal: docs/decisions/0016-kappa-of-combined-slots.md */
    .form = ASSAY_PLAIN,
    .row_dim = "M",
    .confirmed_by = "dgemm of another library on dequantised matrices; pieces of K alone (ref_block_gemm_test)",
    .extreme_args = "bias",
    .largest = 0x1p88,
    .check = check,
    .reference = reference,
    .cost = cost,
    .fill = fill,
    .spoil = spoil,
    .product = product,
};

const assay_op *assay_op_fp8_block_gemm(void) {
  return &op;
}
