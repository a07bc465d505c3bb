/* rope_append.c: refusals, costs and contents of the operators that rotate q and k and append k and v. */
#include "ref/lib/rope_append.h"

#include "core/dtype.h"
#include "ref/lib/append.h"
#include "ref/lib/paged_check.h"
#include "ref/lib/paged_tables.h"
#include "ref/lib/plain.h"

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
