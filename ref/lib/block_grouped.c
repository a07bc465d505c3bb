/* block_grouped.c: products of e4m3 matrices with scales, in which each row has the weights of its group. For a live
 * row r of group g, channel n, and κ a piece of 128 of K:
 *
 *   c_rn <- round(sum_κ sfa_{r κ} · sfb_{g floor(n / 128) κ} · (sum_{i in κ} a_ri · b_gni) + bias_gn)
 *
 * Source: docs/definitions.md, section 13. */
#include "ref/lib/block_grouped.h"

#include <math.h>
#include <stdlib.h>

#include "core/dtype.h"
#include "ref/lib/block_gemm.h"
#include "ref/lib/error_model.h"
#include "ref/lib/grouped.h"
#include "ref/lib/plain.h"
#include "ref/lib/rowwise.h"

/* ---- scales ------------------------------------------------------------------------------------------ */

/* Scales of rows, whichever of sfa and sfa_t holds them. Distances are in elements. */
typedef struct row_scales {
  const float *data;
  int64_t R, slab, row, piece; /* rows of a slab, and the distances of slabs, rows and pieces */
} row_scales;

static row_scales scales_of(const assay_call *call) {
  const bool turned = call->arg[BLOCK_GROUPED_SFA].data == NULL;
  const assay_tensor *t = &call->arg[turned ? BLOCK_GROUPED_SFA_T : BLOCK_GROUPED_SFA];
  const int64_t outer = t->shape[0] > 1 ? t->stride[0] : 0, first = t->rank - 2, inner = t->shape[t->rank - 1];
  row_scales s = {.data = t->data, .R = t->shape[turned ? first + 1 : first], .slab = t->rank == 3 ? outer : 0};
  const int64_t apart = t->rank == 3 ? inner : outer;
  s.row = turned ? 1 : apart;
  s.piece = turned ? apart : 1;
  return s;
}

static double scale_of_row(const row_scales *s, int64_t row, int64_t piece) {
  return (double)s->data[row / s->R * s->slab + row % s->R * s->row + piece * s->piece];
}

static int64_t blocks_of(const assay_call *call) {
  return call->arg[BLOCK_GROUPED_SFB].shape[1];
}

static double scale_of_weights(const block_grouped_run *run, int64_t group, int64_t n, int64_t piece, int64_t pieces) {
  const int64_t blocks = blocks_of(run->call), width = run->spoil == BLOCK_GROUPED_N_BLOCK_OF_64 ? 64 : BLOCK_PIECE;
  const int64_t block = n / width < blocks ? n / width : blocks - 1;
  const int64_t at = run->spoil == BLOCK_GROUPED_SCALE_TRANSPOSED ? piece * blocks + block : block * pieces + piece;
  return (double)((const float *)run->call->arg[BLOCK_GROUPED_SFB].data)[group * blocks * pieces + at];
}

/* ---- adapter ----------------------------------------------------------------------------------------- */

typedef struct buffers {
  double *a, *sfa, *b, *sfb; /* [count, K], [count, pieces], [K], [pieces] */
  int64_t N, K, pieces;
} buffers;

static void dead_row(const block_grouped_run *run, int64_t i, int64_t N, const assay_expected *to) {
  const assay_tensor *c = &run->call->arg[BLOCK_GROUPED_C];
  const int64_t number = run->number != NULL ? run->number[i] : i, at = grouped_offset(c, number);
  for (int64_t n = 0; n < N; ++n) {
    to->value[i * N + n] = run->untouched ? assay_load_f64(c->data, c->dtype, at + n) : 0;
    if (to->sigma != NULL) to->sigma[i * N + n] = run->untouched ? ASSAY_UNCHANGED : 0;
  }
}

static double bias_of(const block_grouped_run *run, int64_t group, int64_t n) {
  const assay_tensor *bias = &run->call->arg[BLOCK_GROUPED_BIAS];
  return bias->data != NULL ? assay_load_f64(bias->data, bias->dtype, group * bias->shape[1] + n) : 0;
}

static double value_of(const block_grouped_run *run, const block_element *right, int64_t pieces) {
  block_element e = *right;
  if (run->spoil == BLOCK_GROUPED_NO_PROMOTION) return block_without_promotion(&e);
  if (run->spoil == BLOCK_GROUPED_LAST_PIECE_DROPPED) e.K = (pieces - 1) * BLOCK_PIECE;
  return block_gemm(&e);
}

/* Computes channel n of all rows of one group, so that its weights are read once. */
static assay_status channel(const block_grouped_run *run, const buffers *at, int64_t g, int64_t n,
                            const assay_expected *to, assay_error *error) {
  const assay_tensor *B = &run->call->arg[BLOCK_GROUPED_B];
  const assay_dtype out = run->call->arg[BLOCK_GROUPED_C].dtype;
  assay_load_f64_row(B->data, B->dtype, (g * at->N + n) * at->K, 1, at->K, at->b);
  for (int64_t i = 0; i < run->count; ++i) {
    const block_grouped_row *row = &run->row[i];
    if (row->group != g) continue;
    for (int64_t p = 0; p < at->pieces; ++p)
      at->sfb[p] = scale_of_weights(run, row->sfb, n, p, at->pieces);
    const block_element e = {at->a + i * at->K, at->b, at->sfa + i * at->pieces,
                             at->sfb,           at->K, bias_of(run, row->bias, n)};
    to->value[i * at->N + n] = value_of(run, &e, at->pieces);
    if (to->sigma != NULL) to->sigma[i * at->N + n] = sqrt(block_variance(&e, run->contract, out));
    if (!run->exact) continue;
    const assay_status status = block_admit(run->call, i, n, &e, run->contract, error);
    if (status != ASSAY_OK) return status;
  }
  return ASSAY_OK;
}

/* Loads the live rows with their scales, and marks their groups. */
static void load_rows(const block_grouped_run *run, const buffers *at, unsigned char *live, const assay_expected *to) {
  const assay_tensor *A = &run->call->arg[BLOCK_GROUPED_A];
  const row_scales scales = scales_of(run->call);
  const int64_t back = run->spoil == BLOCK_GROUPED_SCALE_OF_PIECE_BEFORE;
  for (int64_t i = 0; i < run->count; ++i) {
    const block_grouped_row *row = &run->row[i];
    if (row->group < 0) {
      dead_row(run, i, at->N, to);
      continue;
    }
    live[row->group] = 1;
    assay_load_f64_row(A->data, A->dtype, grouped_offset(A, row->a), 1, at->K, at->a + i * at->K);
    for (int64_t p = 0; p < at->pieces; ++p)
      at->sfa[i * at->pieces + p] = scale_of_row(&scales, row->sfa, p >= back ? p - back : p);
  }
}

assay_status block_grouped_compute(const block_grouped_run *run, const assay_expected *expected, assay_error *error) {
  const assay_tensor *B = &run->call->arg[BLOCK_GROUPED_B];
  const int64_t G = B->shape[0], N = B->shape[1], K = B->shape[2], pieces = block_pieces(K);
  if (run->count == 0) return ASSAY_OK;
  double *memory;
  unsigned char *const live = calloc((size_t)G + 1, 1);
  if (live == NULL) return assay_fail(error, ASSAY_ERR_MEMORY, "%s: out of memory", run->call->op->name);
  assay_status status = rowwise_reserve(run->call, (run->count + 1) * (K + pieces), &memory, error);
  if (status != ASSAY_OK) {
    free(live);
    return status;
  }
  buffers at = {.a = memory, .N = N, .K = K, .pieces = pieces};
  at.sfa = at.a + run->count * K;
  at.b = at.sfa + run->count * pieces;
  at.sfb = at.b + K;
  load_rows(run, &at, live, expected);
  for (int64_t g = 0; g < G; ++g)
    for (int64_t n = 0; n < N && live[g] != 0 && status == ASSAY_OK; ++n)
      status = channel(run, &at, g, n, expected, error);
  free(memory);
  free(live);
  return status;
}

assay_status block_grouped_check(const assay_call *call, assay_error *error) {
  const assay_status status = plain_check_call(call, error);
  if (status != ASSAY_OK) return status;
  const bool empty = call->arg[BLOCK_GROUPED_C].data == NULL || call->arg[BLOCK_GROUPED_C].shape[0] == 0;
  const int given = (call->arg[BLOCK_GROUPED_SFA].data != NULL) + (call->arg[BLOCK_GROUPED_SFA_T].data != NULL);
  if (given == 1 || empty) return ASSAY_OK;
  return assay_fail(error, ASSAY_ERR_INPUT, "sfa: found %d of sfa, sfa_t, allowed exactly one", given);
}

assay_cost block_grouped_cost(const assay_call *call, double live, double groups) {
  const assay_tensor *B = &call->arg[BLOCK_GROUPED_B], *C = &call->arg[BLOCK_GROUPED_C];
  const double N = (double)B->shape[1], K = (double)B->shape[2], pieces = (double)block_pieces(B->shape[2]);
  const double weights = N * K + 4 * pieces * (double)blocks_of(call);
  return (assay_cost){2 * live * N * K,
                      live * (K + 4 * pieces) + groups * weights + live * N * (double)assay_dtype_size(C->dtype)};
}

void block_grouped_product(const assay_call *call, int64_t row, int64_t group, assay_product *p) {
  const assay_tensor *A = &call->arg[BLOCK_GROUPED_A], *B = &call->arg[BLOCK_GROUPED_B];
  const assay_tensor *bias = &call->arg[BLOCK_GROUPED_BIAS];
  const int64_t N = B->shape[1], K = B->shape[2], pieces = block_pieces(K), blocks = blocks_of(call);
  const row_scales s = scales_of(call);
  *p = (assay_product){.alpha = 1, .scale_b_columns = BLOCK_PIECE};
  p->a = p->b = (assay_tensor){.dtype = B->dtype, .rank = 2, .shape = {1, K}, .stride = {K, 1}};
  p->scale_a = (assay_tensor){.dtype = ASSAY_F32, .rank = 2, .shape = {1, pieces}, .stride = {pieces, s.piece}};
  p->scale_b = (assay_tensor){.dtype = ASSAY_F32, .rank = 2, .shape = {blocks, pieces}, .stride = {pieces, 1}};
  p->b.shape[0] = N;
  /* A dead row has scales too, so that all rows have the same form. */
  p->scale_a.data = (void *)(uintptr_t)(s.data + row / s.R * s.slab + row % s.R * s.row);
  p->scale_b.data = (float *)call->arg[BLOCK_GROUPED_SFB].data + (group > 0 ? group : 0) * blocks * pieces;
  if (group < 0) return;
  p->a.data = (unsigned char *)A->data + grouped_offset(A, row);
  p->b.data = (unsigned char *)B->data + group * N * K;
  if (bias->data == NULL) return;
  p->bias = (assay_tensor){.dtype = bias->dtype, .rank = 2, .shape = {1, N}, .stride = {0, 1}};
  p->bias.data = (unsigned char *)bias->data + group * N * assay_dtype_size(bias->dtype);
}

/* ---- values for the generator ------------------------------------------------------------------------ */

/* Gives the scales of rows or of weights. Those of a row are a row of the array, or a column in a slab of sfa_t. */
static void fill_scales(const assay_fill *fill, int32_t arg, double *value, int64_t count) {
  const assay_tensor *t = &fill->call->arg[arg];
  const int64_t K = fill->call->arg[BLOCK_GROUPED_B].shape[2], pieces = block_pieces(K), R = t->shape[t->rank - 1];
  for (int64_t i = 0; i < count; ++i) {
    const int64_t row = arg == BLOCK_GROUPED_SFA_T ? i / (pieces * R) * R + i % R : i / pieces;
    const int64_t piece = arg == BLOCK_GROUPED_SFA_T ? i / R % pieces : i % pieces;
    value[i] = block_fill_scale(fill, arg != BLOCK_GROUPED_SFB, row, piece, K);
  }
}

/* Returns the row of a that element i of a, sfa or sfa_t belongs to. */
static int64_t row_of_element(const assay_call *call, int32_t arg, int64_t i, int64_t rows, int64_t count) {
  const assay_tensor *t = &call->arg[arg];
  const int64_t R = t->shape[t->rank - 1];
  if (arg != BLOCK_GROUPED_SFA_T) return i / (count / rows);
  return i / (count / rows * R) * R + i % R;
}

assay_status block_grouped_fill(const assay_fill *fill, int32_t arg, const int32_t *group, int64_t rows, double *value,
                                int64_t count, assay_error *error) {
  const int64_t G = fill->call->arg[BLOCK_GROUPED_B].shape[0], K = fill->call->arg[BLOCK_GROUPED_B].shape[2];
  const bool of_row = arg == BLOCK_GROUPED_A || arg == BLOCK_GROUPED_SFA || arg == BLOCK_GROUPED_SFA_T;
  if (arg == BLOCK_GROUPED_A || arg == BLOCK_GROUPED_B)
    block_fill_codes(fill, arg, arg == BLOCK_GROUPED_A, K, value, count);
  else if (of_row || arg == BLOCK_GROUPED_SFB)
    fill_scales(fill, arg, value, count);
  else
    plain_fill(fill, (uint64_t)arg, value, count);
  if (arg == BLOCK_GROUPED_C) return ASSAY_OK;
  unsigned char *const live = calloc((size_t)G + 1, 1);
  if (live == NULL) return assay_fail(error, ASSAY_ERR_MEMORY, "%s: out of memory", fill->call->op->name);
  for (int64_t r = 0; r < rows; ++r)
    if (group[r] >= 0) live[group[r]] = 1;
  for (int64_t i = 0; i < count; ++i) {
    const bool alive =
        of_row ? group[row_of_element(fill->call, arg, i, rows, count)] >= 0 : live[i / (count / G)] != 0;
    if (!alive) value[i] = (double)NAN;
  }
  free(live);
  return ASSAY_OK;
}
