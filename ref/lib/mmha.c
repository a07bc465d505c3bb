/* mmha.c: bias and rotation of one decode row. */
#include "ref/lib/mmha.h"

#include <math.h>

#include "core/dtype.h"
#include "core/rng.h"
#include "ref/lib/append.h"
#include "ref/lib/error_model.h"
#include "ref/lib/rope.h"

enum { MOST_D = 256 };

mmha mmha_of(const assay_call *call) {
  const assay_tensor *qkv = &call->arg[append_arg(call, "qkv")], *k = &call->arg[append_arg(call, "k_cache")];
  mmha m = {.D = qkv->shape[2],
            .H_kv = k->shape[(int)assay_find_param(call, "layout") == LAYOUT_NHD ? 2 : 1],
            .interleaved = assay_find_param(call, "style") != 0,
            .qkv = qkv,
            .bias = assay_find_arg(call, "bias"),
            .cosine = &call->arg[append_arg(call, "cos")],
            .sine = &call->arg[append_arg(call, "sin")]};
  m.H = qkv->shape[1] - 2 * m.H_kv;
  m.R = 2 * m.cosine->shape[1];
  return m;
}

/* Computes the error of x c + z s. x and z are sums with the bias, rounded; two products and a sum follow. */
static void rotated_error(double x, double c, double z, double s, double *bound, double *variance) {
  const double y = x * c + z * s;
  *bound = fabs(c) * rounding_bound(x, ASSAY_F32) + fabs(s) * rounding_bound(z, ASSAY_F32) +
           rounding_bound(x * c, ASSAY_F32) + rounding_bound(z * s, ASSAY_F32) + rounding_bound(y, ASSAY_F32);
  *variance = c * c * rounding_variance(x, ASSAY_F32) + s * s * rounding_variance(z, ASSAY_F32) +
              rounding_variance(x * c, ASSAY_F32) + rounding_variance(z * s, ASSAY_F32) +
              rounding_variance(y, ASSAY_F32);
}

void mmha_head(const mmha *m, int64_t n, int64_t head, int64_t position, mmha_spoil spoil, double *value, double *bound,
               double *variance) {
  double x[MOST_D], b[MOST_D] = {0}, cosine[MOST_D], sine[MOST_D];
  const int64_t D = m->D, pairs = m->R / 2;
  const bool is_q = head < m->H, is_v = head >= m->H + m->H_kv;
  bool rotates = !is_v;
  if (spoil == MMHA_Q_NOT_ROTATED && is_q) rotates = false;
  if (spoil == MMHA_K_NOT_ROTATED && !is_q) rotates = false;
  if (spoil == MMHA_V_ROTATED) rotates = true;
  if (spoil == MMHA_POSITION_ONE_OFF) position = (position + 1) % m->cosine->shape[0];
  assay_load_f64_row(m->qkv->data, m->qkv->dtype, n * m->qkv->stride[0] + head * D, 1, D, x);
  if (m->bias != NULL && spoil != MMHA_BIAS_LOST) assay_load_f64_row(m->bias->data, m->bias->dtype, head * D, 1, D, b);
  assay_load_f64_row(m->cosine->data, ASSAY_F32, position * pairs, 1, pairs, cosine);
  assay_load_f64_row(m->sine->data, ASSAY_F32, position * pairs, 1, pairs, sine);
  for (int64_t i = 0; i < pairs && spoil == MMHA_TURNED_BACK; ++i)
    sine[i] = -sine[i];
  for (int64_t d = 0; d < D && spoil != MMHA_BIAS_AFTER; ++d)
    x[d] += b[d];
  const bool interleaved = spoil == MMHA_OTHER_STYLE ? !m->interleaved : m->interleaved;
  rope_rotate(x, cosine, sine, rotates ? m->R : 0, D, interleaved, value);
  for (int64_t d = 0; d < D && spoil == MMHA_BIAS_AFTER; ++d)
    value[d] += b[d];
  if (bound == NULL) return;
  for (int64_t d = 0; d < D; ++d) {
    bound[d] = rounding_bound(x[d], ASSAY_F32);
    variance[d] = rounding_variance(x[d], ASSAY_F32);
  }
  for (int64_t i = 0; i < pairs && rotates; ++i) {
    int64_t a, z;
    rope_pair(i, m->R, interleaved, &a, &z);
    rotated_error(x[a], cosine[i], -x[z], sine[i], &bound[a], &variance[a]);
    rotated_error(x[z], cosine[i], x[a], sine[i], &bound[z], &variance[z]);
  }
}

void mmha_turn(const assay_fill *fill, int64_t position, int64_t pair, double *cosine, double *sine) {
  static const double right[4][2] = {{1, 0}, {0, 1}, {-1, 0}, {0, -1}};
  const assay_philox word = assay_philox4x32(fill->seed, (uint32_t)position, (uint32_t)pair, 0x6D6D6861, 0);
  const double *quarter = right[position == 0 ? 0 : word.x[0] & 3];
  assay_rng own = {fill->seed, 0x636F6E63, 0};
  const bool stretched = position == 0 && fill->values != ASSAY_LATTICE && assay_rng_range(&own, 0, 1) == 1;
  const double factor = stretched ? 1.25 : 1; /* that of a concentration */
  *cosine = factor * quarter[0];
  *sine = quarter[1];
  if (fill->values == ASSAY_LATTICE || position == 0) return;
  const double t = (double)word.x[1] * 0x1p-32, size = 1 + t * t, c = (1 - t * t) / size, s = 2 * t / size;
  *cosine = c * quarter[0] - s * quarter[1];
  *sine = s * quarter[0] + c * quarter[1];
}
