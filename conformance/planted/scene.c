/* scene.c: a copy of the call in which one mistake is made. The reference evaluates it, and its result is compared with
 * the wrong one. */
#include <math.h>
#include <string.h>

#include "core/dtype.h"
#include "explain_internal.h"

void scene_reset(scene *s) {
  const image *img = &s->t->first;
  memcpy(s->copy, img->host, (size_t)img->arena_bytes);
  (void)image_rebase(img, s->copy, s->arg);
  memcpy(s->param, img->param, sizeof s->param);
  s->factor = 1.0;
  memset(s->correction, 0, (size_t)s->t->output[s->where.output].width * sizeof *s->correction);
}

assay_tensor *scene_arg(scene *s, assay_content content, int32_t nth) {
  const assay_op *op = s->t->one->op;
  for (int32_t i = 0; i < op->arg_count; ++i)
    if (op->args[i].content == content && s->arg[i].data != NULL && nth-- == 0) return &s->arg[i];
  return NULL;
}

int32_t scene_cache_arg(const scene *s, bool k) {
  const assay_op *op = s->t->one->op;
  for (int32_t i = 0; i < op->arg_count; ++i)
    if (op->args[i].content == (k ? ASSAY_K_CACHE : ASSAY_V_CACHE)) return i;
  return -1;
}

/* Returns the address of channel d: block, token and head by their strides, the channel by chunks of x. */
static void *element(const scene *s, int32_t arg, int64_t token, int64_t kv_head, int64_t d) {
  const image *img = &s->t->first;
  const logical *l = img->logical;
  const cache_strides c = place_strides(img, arg);
  const int64_t identity = l->block_identity[l->block_start[s->request] + token / s->block_size];
  const int64_t block = img->first_block + img->physical[identity];
  const int64_t at =
      block * c.block + token % s->block_size * c.token + kv_head * c.head + d / c.x * c.chunk + d % c.x * c.channel;
  return (void *)((uintptr_t)s->arg[arg].data + (uintptr_t)(at * assay_dtype_size(s->arg[arg].dtype)));
}

void scene_read(scene *s, bool k, int64_t token, int64_t kv_head, double *value) {
  const int32_t arg = scene_cache_arg(s, k);
  for (int64_t d = 0; d < s->D; ++d)
    value[d] = assay_load_f64(element(s, arg, token, kv_head, d), s->arg[arg].dtype, 0);
}

void scene_write(scene *s, bool k, int64_t token, int64_t kv_head, const double *value) {
  const int32_t arg = scene_cache_arg(s, k);
  for (int64_t d = 0; d < s->D; ++d)
    assay_store_f64(element(s, arg, token, kv_head, d), s->arg[arg].dtype, 0, value[d]);
}

/* ---- comparison -------------------------------------------------------------------------------------- */

static bool same_element(const scene *s, double got, double value, double sigma) {
  const trial *t = s->t;
  const trial_output *out = &t->output[s->where.output];
  if (assay_is_nan(got) || assay_is_nan(value)) return false;
  if (!assay_is_finite(value) || !assay_is_finite(got)) return got == value;
  if (out->exact) return got == assay_round_f64(value, out->dtype);
  const double allowed = t->one->op->kappa_element * sigma + 0.5 * assay_ulp(0.0, out->dtype);
  return fabs(got - value) <= allowed;
}

bool scene_evaluate(scene *s, int64_t row, int32_t spoil) {
  const trial *t = s->t;
  const assay_op *op = t->one->op;
  const assay_call call = {op, s->arg, s->param};
  const assay_rows rows = {1, &row};
  assay_expected expected[ASSAY_MAX_OUTPUTS];
  assay_seen seen = {0};
  for (int32_t o = 0; o < t->count; ++o)
    expected[o] = (assay_expected){s->value[o], s->sigma[o]};
  /* A planted error changes the reference's values where it acts. */
  if (op->reference(&call, &t->variant->contract, &rows, false, expected, &seen, NULL) != ASSAY_OK) return false;
  if (spoil < 0) return true;
  /* The spoil gives values only; σ is that of the truth. */
  if (op->spoil(&call, &t->variant->contract, &rows, spoil, expected, NULL) != ASSAY_OK) return false;
  const int64_t width = t->output[s->where.output].width;
  memcpy(s->sigma[s->where.output], s->truth_sigma, (size_t)width * sizeof(double));
  return true;
}

bool scene_matches(scene *s, int64_t row, int64_t head) {
  return scene_evaluate(s, row, -1) && scene_agrees(s, head);
}

/* Each element must be within its bounds, and together they must be much nearer to the wrong result than the truth
 * is. */
bool scene_agrees(const scene *s, int64_t head) {
  const trial *t = s->t;
  const trial_output *out = &t->output[s->where.output];
  double before = 0, after = 0;
  const int64_t first = s->where.element / out->group * out->group;
  const int64_t from = head >= 0 && out->width > out->group ? head * out->group : first;
  if (from + out->group > out->width) return false;
  for (int64_t i = 0; i < out->group; ++i) {
    const output_place at = {s->where.output, s->row, first + i};
    const double got = values_load(t, s->got, at),
                 value = s->factor * s->value[s->where.output][from + i] + s->correction[first + i];
    if (!same_element(s, got, value, s->sigma[s->where.output][from + i] * fabs(s->factor))) return false;
    if (!assay_is_finite(got) || !assay_is_finite(s->truth[first + i])) continue;
    before += (got - s->truth[first + i]) * (got - s->truth[first + i]);
    after += (got - value) * (got - value);
  }
  return 16.0 * after < before || before == 0;
}
