/* explain.c: computes the first wrong row again by the reference, from a call with one mistake in it. If that gives the
 * wrong result, the mistake has a name. The file knows contents (op.h) and no operator. */
#include "explain.h"

#include <math.h>
#include <stdlib.h>

#include "core/dtype.h"
#include "explain_internal.h"

static bool enabled;

void explain_enable(bool on) {
  enabled = on;
}

static bool find_truth(scene *s) {
  const trial *t = s->t;
  for (int64_t r = 0; r < t->rows.count; ++r)
    if ((t->row_index != NULL ? t->row_index[r] : r) == s->row) {
      s->truth = t->expected[s->where.output].value + r * t->output[s->where.output].width;
      s->truth_sigma = t->expected[s->where.output].sigma + r * t->output[s->where.output].width;
      return true;
    }
  return false;
}

static bool scene_make(scene *s) {
  const trial *t = s->t;
  const logical *l = t->first.logical;
  const trial_output *out = &t->output[s->where.output];
  s->row = s->where.row;
  s->request = t->first.request_of_row[s->row];
  s->n = s->row - l->row_start[s->request];
  s->length = l->length[s->request];
  s->last = s->length - l->fresh[s->request] + s->n;
  s->heads = l->H;
  s->kv_heads = l->H_kv;
  s->D = l->D;
  s->block_size = l->block_size;
  s->blocks = l->block_start[s->request + 1] - l->block_start[s->request];
  s->split = t->variant->contract.keys_per_split;
  s->head = out->width > out->group ? s->where.element / out->group : s->where.element;
  if (s->head >= s->heads) s->head = 0;
  s->kv_head = s->heads % s->kv_heads == 0 ? s->head / (s->heads / s->kv_heads) : 0;
  s->copy = malloc((size_t)t->first.arena_bytes);
  s->correction = calloc((size_t)out->width + 1, sizeof *s->correction);
  bool ready = s->copy != NULL && s->correction != NULL && scene_cache_arg(s, true) >= 0 &&
               scene_cache_arg(s, false) >= 0 && find_truth(s);
  for (int32_t o = 0; o < t->count; ++o) {
    const size_t width = (size_t)t->output[o].width + 1;
    s->value[o] = calloc(width, sizeof(double));
    s->sigma[o] = calloc(width, sizeof(double));
    ready = ready && s->value[o] != NULL && s->sigma[o] != NULL;
  }
  return ready;
}

void explain_values(const trial *t, const outputs *got, const finding *found, case_result *result) {
  scene s = {.t = t, .got = got, .where = found->first, .text = result->explanation};
  s.size = sizeof result->explanation;
  if (!enabled || t->first.chosen.order != 0) return;
  /* The known mistakes are those of attention over a cache that it only reads. */
  if (t->one->op->form != ASSAY_PAGED || logical_appends(t->one->op)) {
    explain_planted(t, got, s.where, s.text, s.size);
    return;
  }
  if (scene_make(&s))
    for (int32_t i = 0; i < explain_mistake_count && result->explanation[0] == '\0'; ++i)
      (void)explain_mistakes[i](&s);
  free(s.copy);
  free(s.correction);
  for (int32_t o = 0; o < ASSAY_MAX_OUTPUTS; ++o) {
    free(s.value[o]);
    free(s.sigma[o]);
  }
}
