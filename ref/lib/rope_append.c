/* rope_append.c: see rope_append.h. */
#include "ref/lib/rope_append.h"

#include <string.h>

#include "core/dtype.h"
#include "ref/lib/append.h"
#include "ref/lib/paged_check.h"
#include "ref/lib/paged_tables.h"
#include "ref/lib/plain.h"
#include "ref/lib/rope.h"
#include "ref/lib/rowwise.h"

static const assay_tensor *arg_of(const assay_call *call, const char *name) {
  return &call->arg[append_arg(call, name)];
}

/* ---- refusals ---------------------------------------------------------------------------------------- */

static assay_status check_tables(const assay_call *call, assay_error *error) {
  const assay_tensor *cosine = arg_of(call, "cos"), *positions = arg_of(call, "positions");
  assay_status status = check_rank(call, append_arg(call, "cos"), 2, error);
  if (status == ASSAY_OK) status = check_range("R", 2 * cosine->shape[1], 2, arg_of(call, "q")->shape[2], 2, error);
  if (status == ASSAY_OK) status = check_range("max_pos", cosine->shape[0], 1, INT32_MAX, 1, error);
  if (status == ASSAY_OK) status = check_dense(call, append_arg(call, "cos"), ASSAY_F32, 2, cosine->shape, error);
  if (status == ASSAY_OK) status = check_dense(call, append_arg(call, "sin"), ASSAY_F32, 2, cosine->shape, error);
  if (status != ASSAY_OK) return status;
  if (positions->dtype != ASSAY_I32 && positions->dtype != ASSAY_I64)
    return assay_fail(error, ASSAY_ERR_INPUT, "positions: found type %s, allowed i32, i64",
                      assay_dtype_name(positions->dtype));
  return check_dense(call, append_arg(call, "positions"), positions->dtype, 1, arg_of(call, "q")->shape, error);
}

static assay_status check_cache_of(const assay_call *call, assay_error *error) {
  const check_cache cache = {.rows = append_arg(call, "k"),
                             .k = append_arg(call, "k_cache"),
                             .v = append_arg(call, "v_cache"),
                             .k_scale = append_arg(call, "k_scale"),
                             .v_scale = append_arg(call, "v_scale"),
                             .layout = (paged_layout)(int)assay_find_param(call, "layout"),
                             .scale_per_head = assay_find_param(call, "scale_per_head") != 0};
  assay_status status = check_pools(call, &cache, error);
  if (status != ASSAY_OK) return status;
  const int64_t H_kv = arg_of(call, "k")->shape[1];
  const int64_t found = arg_of(call, "k_cache")->shape[cache.layout == LAYOUT_NHD ? 2 : 1];
  if (found != H_kv)
    return assay_fail(error, ASSAY_ERR_INPUT, "H_kv: found %lld in k_cache, allowed %lld, that of k", (long long)found,
                      (long long)H_kv);
  return check_scales(call, &cache, error);
}

assay_status rope_append_check(const assay_call *call, assay_error *error) {
  const assay_tensor *q = arg_of(call, "q"), *k = arg_of(call, "k");
  assay_status status = check_params(call, error);
  if (status != ASSAY_OK) return status;
  if (q->dtype != ASSAY_F32 && q->dtype != ASSAY_F16 && q->dtype != ASSAY_BF16)
    return assay_fail(error, ASSAY_ERR_INPUT, "q: found type %s, allowed f32, f16, bf16", assay_dtype_name(q->dtype));
  status = check_rank(call, append_arg(call, "q"), 3, error);
  if (status == ASSAY_OK) status = check_rank(call, append_arg(call, "k"), 3, error);
  const int64_t N = q->shape[0], H = q->shape[1], D = q->shape[2], H_kv = k->shape[1];
  if (status == ASSAY_OK) status = check_range("N", N, 0, INT32_MAX, 1, error);
  if (status == ASSAY_OK) status = check_range("H", H, 1, 256, 1, error);
  if (status == ASSAY_OK) status = check_range("H_kv", H_kv, 1, 256, 1, error);
  if (status == ASSAY_OK) status = check_range("D", D, 8, PAGED_MAX_D, 8, error);
  if (status == ASSAY_OK) status = append_check_rows(call, "q", q->dtype, N, H, D, error);
  if (status == ASSAY_OK) status = append_check_rows(call, "k", q->dtype, N, H_kv, D, error);
  if (status == ASSAY_OK) status = append_check_rows(call, "v", q->dtype, N, H_kv, D, error);
  if (status == ASSAY_OK) status = check_tables(call, error);
  if (status == ASSAY_OK) status = append_check_slots(call, N, error);
  if (status == ASSAY_OK) status = check_cache_of(call, error);
  const int64_t q_shape[3] = {N, H, D}, k_shape[3] = {N, H_kv, D};
  if (status == ASSAY_OK && arg_of(call, "q_out")->data != NULL)
    status = check_dense(call, append_arg(call, "q_out"), q->dtype, 3, q_shape, error);
  if (status == ASSAY_OK && arg_of(call, "k_out")->data != NULL)
    status = check_dense(call, append_arg(call, "k_out"), q->dtype, 3, k_shape, error);
  return status;
}

int64_t rope_append_slots(const assay_call *call) {
  const assay_tensor *k = arg_of(call, "k_cache");
  const int layout = (int)assay_find_param(call, "layout");
  return k->shape[0] * k->shape[layout == LAYOUT_NHD ? 1 : layout == LAYOUT_HND ? 2 : 3];
}

/* ---- rows -------------------------------------------------------------------------------------------- */

/* Returns the row whose k and v are stored in row n's slot. */
static int64_t source_row(const assay_tensor *slots, int64_t n, bool exchanged) {
  const int64_t other = n ^ 1;
  const bool both = append_slot(slots, n) >= 0 && other < slots->shape[0] && append_slot(slots, other) >= 0;
  return exchanged && both ? other : n;
}

assay_status rope_append_rows(const assay_call *call, const assay_rows *rows, const rope_append_heads *heads,
                              const void *run, rope_append_results *to, bool exchanged, assay_expected *expected,
                              assay_error *error) {
  const assay_tensor *q = arg_of(call, "q"), *k = arg_of(call, "k"), *slots = arg_of(call, "slots");
  const int64_t N = q->shape[0], H = q->shape[1], H_kv = k->shape[1], D = q->shape[2];
  const bool apart = arg_of(call, "q_out")->data != NULL;
  assay_status status = rope_check_positions(arg_of(call, "positions"), arg_of(call, "cos")->shape[0], error);
  if (status == ASSAY_OK) status = append_check_distinct(slots, rope_append_slots(call), error);
  to->q = &expected[rowwise_output(call, append_arg(call, apart ? "q_out" : "q"))];
  to->cache[0] = &expected[rowwise_output(call, append_arg(call, "k_cache"))];
  to->cache[1] = &expected[rowwise_output(call, append_arg(call, "v_cache"))];
  if (arg_of(call, "k_out")->data != NULL) to->k_out = &expected[rowwise_output(call, append_arg(call, "k_out"))];
  for (int64_t i = 0; i < rowwise_count(rows, N) && status == ASSAY_OK; ++i) {
    const int64_t n = rowwise_index(rows, i), from = source_row(slots, n, exchanged);
    to->slot = append_slot(slots, n);
    for (int64_t h = 0; h < H && status == ASSAY_OK; ++h)
      status = heads->q(run, n, h, (i * H + h) * D, error);
    for (int64_t h = 0; h < H_kv && status == ASSAY_OK; ++h) {
      status = heads->k(run, from, h, (i * H_kv + h) * D, error);
      heads->v(run, from, h, (i * H_kv + h) * D);
    }
  }
  if (status == ASSAY_OK && apart) rowwise_unchanged(q, rows, &expected[rowwise_output(call, append_arg(call, "q"))]);
  return status;
}

void rope_append_values(const assay_call *call, const assay_expected *expected, assay_expected *values) {
  for (int32_t i = 0; i < rowwise_output(call, call->op->arg_count); ++i)
    values[i] = (assay_expected){expected[i].value, NULL};
}

static double stored(const assay_call *call, const char *scale, const char *cache, int64_t h, double y,
                     rope_append_loss loss) {
  const float own = append_scale(arg_of(call, scale), loss.head_scale ? 0 : h);
  return append_stored(y, loss.scale ? 1.0f : own, arg_of(call, cache)->dtype);
}

double rope_append_stored_k(const assay_call *call, int64_t h, double y, rope_append_loss loss) {
  const double k = loss.rounding ? y : assay_round_f64(y, arg_of(call, "k")->dtype);
  return stored(call, "k_scale", "k_cache", h, k, loss);
}

double rope_append_expected_k(const assay_call *call, int64_t h, double y, rope_append_loss loss) {
  return arg_of(call, "k_cache")->dtype == ASSAY_F32 ? y : rope_append_stored_k(call, h, y, loss);
}

double rope_append_stored_v(const assay_call *call, int64_t h, double y, rope_append_loss loss) {
  return stored(call, "v_scale", "v_cache", h, y, loss);
}

/* ---- cost -------------------------------------------------------------------------------------------- */

/* Counts four products and two sums per pair, and a division per fp8 code. In place only the rotated channels of q
 * move. */
assay_cost rope_append_cost(const assay_call *call, const assay_seen *seen) {
  (void)seen;
  const assay_tensor *q = arg_of(call, "q"), *k = arg_of(call, "k"), *cosine = arg_of(call, "cos");
  const double N = (double)q->shape[0], D = (double)q->shape[2], R = 2 * (double)cosine->shape[1];
  const double size = (double)assay_dtype_size(q->dtype),
               code = (double)assay_dtype_size(arg_of(call, "k_cache")->dtype);
  const double q_heads = N * (double)q->shape[1], k_heads = N * (double)k->shape[1];
  double written = 0;
  for (int64_t n = 0; n < q->shape[0]; ++n)
    written += append_slot(arg_of(call, "slots"), n) >= 0;
  const double stored = 2 * written * (double)k->shape[1] * D;
  double bytes = 2 * q_heads * (arg_of(call, "q_out")->data != NULL ? D : R) * size + stored * (size + code);
  if (arg_of(call, "k_out")->data != NULL) bytes += k_heads * D * size;
  const double table = (double)cosine->shape[0] < N ? (double)cosine->shape[0] : N;
  bytes += table * R * 4 + N * (8 + (double)assay_dtype_size(arg_of(call, "positions")->dtype));
  return (assay_cost){.flops = 3 * R * (q_heads + k_heads) + (code < 2 ? stored : 0), .bytes = bytes};
}

/* ---- values for the generator ------------------------------------------------------------------------ */

bool rope_append_fill_angles(const assay_fill *fill, int32_t arg, double *value, int64_t count) {
  const assay_tensor *cosine = arg_of(fill->call, "cos");
  const char *name = fill->call->op->args[arg].name;
  const bool sine = strcmp(name, "sin") == 0;
  if (sine || strcmp(name, "cos") == 0)
    rope_fill_table(fill, cosine->shape[1], sine, value, count);
  else if (strcmp(name, "positions") == 0)
    rope_fill_positions(fill, cosine->shape[0], value, count);
  else
    return false;
  return true;
}

double rope_append_key_size(const assay_fill *fill) {
  const bool fp8 = fill->kv_dtype == ASSAY_E4M3 || fill->kv_dtype == ASSAY_E5M2;
  const double size = fill->values == ASSAY_SPECIAL ? 400 : fill->values == ASSAY_NORMAL ? 16 : 1;
  return fp8 ? size * fill->k_scale : 1;
}

void rope_append_fill_v(const assay_fill *fill, int64_t content, int64_t kv_head, double *value) {
  plain_fill(fill, (uint64_t)(fill->call->op->arg_count + content * 256 + kv_head), value, fill->D);
  const bool fp8 = fill->kv_dtype == ASSAY_E4M3 || fill->kv_dtype == ASSAY_E5M2;
  const double size = !fp8 ? 1 : fill->values == ASSAY_NORMAL ? 16 * fill->v_scale : fill->v_scale;
  for (int64_t d = 0; d < fill->D; ++d)
    value[d] *= size;
}

/* Fills keys of the cache: none is read. fill() makes the keys of the rows. */
void rope_append_fill_k(const assay_fill *fill, int64_t content, int64_t kv_head, double *value) {
  (void)content;
  (void)kv_head;
  for (int64_t d = 0; d < fill->D; ++d)
    value[d] = 0;
}

/* Returns false: nothing depends on the pool's contents. */
bool rope_append_visible(const assay_call *call, int64_t request, int64_t length, int64_t first_position,
                         int64_t token) {
  (void)call;
  (void)request;
  (void)length;
  (void)first_position;
  (void)token;
  return false;
}
