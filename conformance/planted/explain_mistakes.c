/* explain_mistakes.c: mistakes that kernels are known for, the likelier ones first. Each is made in the copy of the
 * call through the contents of an argument: lengths, tables, factors, cached keys. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>

#include "core/dtype.h"
#include "explain_internal.h"

enum { MAX_D = 256, MOST_TRIED = 64 };

static bool found(scene *s, const char *format, ...)
#if defined(__GNUC__)
    __attribute__((format(printf, 2, 3)))
#endif
    ;
static bool found(scene *s, const char *format, ...) {
  va_list list;
  va_start(list, format);
  (void)vsnprintf(s->text, s->size, format, list);
  va_end(list);
  return true;
}

static bool matches(scene *s) {
  return scene_matches(s, s->row, -1);
}

/* ---- keys -------------------------------------------------------------------------------------------- */

/* Ways in which a key is missing: its value counts 0, or its score is so low that it has no weight. */
typedef enum lack { LACK_VALUE, LACK_SCORE, LACKS } lack;

static void lose_keys(scene *s, int64_t from, int64_t to, lack how) {
  double row[MAX_D] = {0};
  const assay_tensor *q = scene_arg(s, ASSAY_QUERY, 0), *k = scene_arg(s, ASSAY_K_CACHE, 0);
  if (how == LACK_SCORE) { /* against the query: -c Σ|q| */
    const double c = k->dtype == ASSAY_E4M3 ? 240.0 : 1e4;
    const int64_t at = s->row * q->stride[0] + s->head * q->stride[1];
    assay_load_f64_row(q->data, q->dtype, at, 1, s->D, row);
    for (int64_t d = 0; d < s->D; ++d)
      row[d] = row[d] > 0 ? -c : row[d] < 0 ? c : 0;
  }
  for (int64_t t = from; t <= to; ++t)
    scene_write(s, how == LACK_SCORE, t, s->kv_head, row);
}

static bool without(scene *s, int64_t from, int64_t to) {
  if (from < 0 || to > s->last || from > to || s->D > MAX_D) return false;
  for (lack how = LACK_VALUE; how < LACKS; ++how) {
    scene_reset(s);
    lose_keys(s, from, to, how);
    if (matches(s)) return true;
  }
  return false;
}

static bool shorter_by(scene *s, int64_t keys) {
  scene_reset(s);
  int32_t *length = scene_arg(s, ASSAY_KV_LEN, 0)->data;
  if (s->last - keys < 0 || length[s->request] - keys < 1) return false;
  length[s->request] -= (int32_t)keys;
  return matches(s);
}

/* Tells whether the row is 0: with one key alone, losing it and doing nothing are the same. */
static bool nothing(scene *s) {
  const trial_output *out = &s->t->output[s->where.output];
  const int64_t first = s->where.element / out->group * out->group;
  for (int64_t i = 0; i < out->group; ++i)
    if (!(fabs(values_load(s->t, s->got, (output_place){s->where.output, s->row, first + i})) <= 0)) return false;
  return s->last <= 0 && found(s, "nothing was added: the head's result is 0");
}

static bool last_key(scene *s) {
  if (s->last < 0 || (!without(s, s->last, s->last) && !shorter_by(s, 1))) return false;
  return found(s, "the last key (%" PRId64 ") is missing", s->last);
}

/* The keys before an edge keep their own part, but the keys after it do not see their scores. A filter over scores
 * makes this mistake at the edge of a split. The own part is what vanishes with the keys' values. */
static bool scores_unseen(scene *s, int64_t from, int64_t to) {
  double own[MAX_D];
  const trial_output *out = &s->t->output[s->where.output];
  const int64_t first = s->where.element / out->group * out->group;
  if (from < 0 || to >= s->last || s->D > MAX_D || out->group > MAX_D) return false;
  scene_reset(s);
  lose_keys(s, from, to, LACK_VALUE);
  if (!scene_evaluate(s, s->row, -1)) return false;
  for (int64_t i = 0; i < out->group; ++i)
    own[i] = s->truth[first + i] - s->value[s->where.output][first + i];
  lose_keys(s, from, to, LACK_SCORE);
  memcpy(s->correction + first, own, (size_t)out->group * sizeof *own);
  return matches(s);
}

static bool filter_at_edges(scene *s) {
  for (int64_t edge = s->split; s->split > 0 && edge <= s->last && edge <= MOST_TRIED * s->split; edge += s->split)
    for (int64_t keys = 1; keys <= 8; ++keys)
      if (scores_unseen(s, edge - keys, edge - 1))
        return found(s, "split %" PRId64 " does not see the scores before it (keys %" PRId64 " to %" PRId64 ")",
                     edge / s->split, edge - keys, edge - 1);
  for (int64_t edge = 8; edge <= s->last && edge <= 8 * MOST_TRIED; edge += 8)
    for (int64_t keys = 1; keys <= 8; ++keys)
      if (scores_unseen(s, edge - keys, edge - 1))
        return found(s, "key %" PRId64 " and those behind it do not see the scores of keys %" PRId64 " to %" PRId64,
                     edge, edge - keys, edge - 1);
  return false;
}

/* Tries the errors that the operator itself lists for its suite to notice. */
static bool planted_errors(scene *s) {
  const assay_op *op = s->t->one->op;
  if (op->spoil == NULL || op->spoils == NULL) return false;
  const char *at = op->spoils;
  for (int32_t i = 0; *at != '\0'; ++i) {
    const size_t n = strcspn(at, ",");
    scene_reset(s);
    if (scene_evaluate(s, s->row, i) && scene_agrees(s, -1)) {
      (void)found(s, "%.*s", (int)n, at);
      for (char *c = s->text; *c != '\0'; ++c)
        if (*c == '_') *c = ' ';
      return true;
    }
    at += n + (at[n] == ',');
  }
  return false;
}

static bool keys_at_splits(scene *s) {
  for (int64_t edge = s->split; s->split > 0 && edge <= s->last && edge <= MOST_TRIED * s->split; edge += s->split) {
    if (without(s, edge - 1, edge - 1))
      return found(s, "the key before split %" PRId64 " (%" PRId64 ") is missing", edge / s->split, edge - 1);
    if (without(s, edge, edge))
      return found(s, "the first key of split %" PRId64 " (%" PRId64 ") is missing", edge / s->split, edge);
  }
  return false;
}

static bool first_key(scene *s) {
  return without(s, 0, 0) && found(s, "the first key (0) is missing");
}

static bool whole_splits(scene *s) {
  for (int64_t i = 0; s->split > 0 && s->last >= s->split && i * s->split <= s->last && i < MOST_TRIED; ++i) {
    const int64_t end = (i + 1) * s->split - 1;
    if (without(s, i * s->split, end < s->last ? end : s->last))
      return found(s, "split %" PRId64 " is skipped (keys %" PRId64 " to %" PRId64 ")", i, i * s->split,
                   end < s->last ? end : s->last);
  }
  return false;
}

static bool whole_blocks(scene *s) {
  for (int64_t i = s->last / s->block_size, n = 0; s->last >= s->block_size && i >= 0 && n < MOST_TRIED; --i, ++n) {
    const int64_t end = (i + 1) * s->block_size - 1, to = end < s->last ? end : s->last;
    if (without(s, i * s->block_size, to))
      return found(s, "%s is skipped (block %" PRId64 ", keys %" PRId64 " to %" PRId64 ")",
                   n == 0 ? "the last block" : "a block", i, i * s->block_size, to);
  }
  return false;
}

static bool any_key(scene *s) {
  for (int64_t t = s->last - 1, n = 0; t > 0 && n < MOST_TRIED; --t, ++n)
    if (without(s, t, t)) return found(s, "key %" PRId64 " is missing", t);
  return false;
}

/* Adds a key of the future or, after the last one, a dead slot of the last block. */
static bool key_too_many(scene *s) {
  if (s->last + 1 >= s->blocks * s->block_size) return false;
  scene_reset(s);
  int32_t *length = scene_arg(s, ASSAY_KV_LEN, 0)->data;
  length[s->request] += 1;
  return matches(s) && found(s, "one key too many: key %" PRId64 " is counted as well", s->last + 1);
}

static bool key_twice(scene *s) {
  double row[MAX_D];
  if (s->D > MAX_D) return false;
  for (int64_t t = s->last, n = 0; t >= 0 && n < MOST_TRIED; --t, ++n) {
    scene_reset(s);
    scene_read(s, false, t, s->kv_head, row);
    for (int64_t d = 0; d < s->D; ++d)
      row[d] *= 2;
    scene_write(s, false, t, s->kv_head, row);
    if (matches(s)) return found(s, "key %" PRId64 " counts twice", t);
  }
  return false;
}

/* Takes the row of a neighbour token in K, in V or in both, for one token or throughout. */
static bool neighbour_rows(scene *s) {
  static const char *const whose[] = {"V", "K", "K and V"};
  double row[MAX_D];
  if (s->D > MAX_D) return false;
  for (int32_t which = 0; which < 3; ++which)
    for (int64_t by = -1; by <= 1; by += 2)
      for (int64_t t = -1, n = 0; t <= s->last && n < MOST_TRIED; ++t, ++n) {
        scene_reset(s);
        for (int64_t to = t < 0 ? 0 : t; to <= (t < 0 ? s->last : t); ++to) {
          if (to + by < 0 || to + by > s->last) continue;
          for (int32_t k = 0; k < 2; ++k) {
            if (which != 2 && which != k) continue;
            const int64_t from = to + by; /* in the call as it was: the copy is being changed */
            scene source = *s;
            source.copy = s->t->first.host;
            (void)image_rebase(&s->t->first, source.copy, source.arg);
            scene_read(&source, k == 1, from, s->kv_head, row);
            scene_write(s, k == 1, to, s->kv_head, row);
          }
        }
        if (!matches(s)) continue;
        return t < 0 ? found(s, "%s of the token %s each key's own", whose[which], by < 0 ? "before" : "behind")
                     : found(s, "%s of token %" PRId64 " is read for token %" PRId64, whose[which], t + by, t);
      }
  return false;
}

/* ---- tables ------------------------------------------------------------------------------------------ */

static bool other_table(scene *s) {
  const logical *l = s->t->first.logical;
  const int64_t used = s->last / s->block_size + 1;
  for (int64_t i = 0, n = 0; s->last >= 0 && i < l->B && n < MOST_TRIED; ++i, ++n) {
    const int64_t other = i == 0 ? s->request - 1 : i == s->request ? 0 : i; /* the previous one first */
    if (other < 0 || other == s->request || l->block_start[other + 1] - l->block_start[other] < used) continue;
    scene_reset(s);
    const assay_tensor *table = scene_arg(s, ASSAY_BLOCK_TABLE, 0);
    if (table == NULL) return false;
    int32_t *entry = table->data;
    memcpy(entry + s->request * table->stride[0], entry + other * table->stride[0], (size_t)used * sizeof *entry);
    if (!matches(s)) continue;
    return other == s->request - 1 ? found(s, "the previous request's table (%" PRId64 ") is used", other)
                                   : found(s, "the table of request %" PRId64 " is used", other);
  }
  return false;
}

static bool other_block(scene *s) {
  const int64_t used = s->last >= 0 ? s->last / s->block_size + 1 : 0;
  for (int64_t i = 0; i < used && i < 16; ++i)
    for (int64_t j = 0; j < used && j < 16; ++j) {
      if (i == j) continue;
      scene_reset(s);
      const assay_tensor *table = scene_arg(s, ASSAY_BLOCK_TABLE, 0);
      if (table == NULL) return false;
      int32_t *entry = (int32_t *)table->data + s->request * table->stride[0];
      entry[i] = entry[j];
      if (matches(s)) return found(s, "block %" PRId64 " is read in the place of block %" PRId64, j, i);
    }
  return false;
}

/* Contiguous: takes the rows of another request. */
static bool other_rows(scene *s) {
  const image *img = &s->t->first;
  double row[MAX_D];
  if (!img->contiguous || s->D > MAX_D || s->last < 0) return false;
  for (int64_t i = 0, n = 0; i < img->logical->B && n < MOST_TRIED; ++i, ++n) {
    const int64_t other = i == 0 ? s->request - 1 : i == s->request ? 0 : i; /* the previous one first */
    if (other < 0 || other == s->request || img->logical->length[other] <= s->last) continue;
    scene_reset(s);
    scene source = *s;
    source.request = other;
    for (int64_t t = 0; t <= s->last; ++t)
      for (int32_t k = 0; k < 2; ++k) {
        scene_read(&source, k == 1, t, s->kv_head, row);
        scene_write(s, k == 1, t, s->kv_head, row);
      }
    if (matches(s)) return found(s, "the rows of request %" PRId64 " are read", other);
  }
  return false;
}

/* ---- heads and rows ---------------------------------------------------------------------------------- */

static bool other_kv_head(scene *s) {
  static const char *const whose[] = {"V", "K", "K and V"};
  double row[MAX_D];
  if (s->D > MAX_D || s->last < 0) return false;
  for (int64_t other = 0; other < s->kv_heads && other < MOST_TRIED; ++other)
    for (int32_t which = 2; which >= 0; --which) {
      if (other == s->kv_head) continue;
      scene_reset(s);
      for (int64_t t = 0; t <= s->last; ++t)
        for (int32_t k = 0; k < 2; ++k) {
          if (which != 2 && which != k) continue;
          scene_read(s, k == 1, t, other, row);
          scene_write(s, k == 1, t, s->kv_head, row);
        }
      if (matches(s)) return found(s, "%s of kv head %" PRId64 " instead of %" PRId64, whose[which], other, s->kv_head);
    }
  return false;
}

static bool other_query(scene *s) {
  const assay_tensor *original = scene_arg(s, ASSAY_QUERY, 0);
  const int64_t size = assay_dtype_size(original->dtype);
  for (int64_t by_row = -1; by_row <= 1; ++by_row)
    for (int64_t by_head = -1; by_head <= 1; ++by_head) {
      const int64_t row = s->row + by_row, head = s->head + by_head;
      if ((by_row == 0) == (by_head == 0) || row < 0 || row >= s->t->first.rows || head < 0 || head >= s->heads)
        continue;
      scene_reset(s);
      const assay_tensor *q = scene_arg(s, ASSAY_QUERY, 0);
      unsigned char *data = q->data;
      memcpy(data + (s->row * q->stride[0] + s->head * q->stride[1]) * size,
             data + (row * q->stride[0] + head * q->stride[1]) * size, (size_t)(s->D * size));
      if (!matches(s)) continue;
      return by_row != 0 ? found(s, "the query of row %" PRId64 " of the batch instead of %" PRId64, row, s->row)
                         : found(s, "the query of head %" PRId64 " instead of %" PRId64, head, s->head);
    }
  return false;
}

static bool other_place(scene *s) {
  for (int64_t by = -1; by <= 1; by += 2) {
    scene_reset(s);
    const int64_t row = s->row + by, head = s->head + by;
    if (row >= 0 && row < s->t->first.rows && scene_matches(s, row, -1))
      return found(s, "this is the result of row %" PRId64 " of the batch", row);
    if (head >= 0 && head < s->heads && scene_matches(s, s->row, head))
      return found(s, "this is the result of head %" PRId64, head);
  }
  return false;
}

/* ---- factors ----------------------------------------------------------------------------------------- */

static void set_all(const assay_tensor *t, int64_t from, double value) {
  for (int64_t i = from; i < t->shape[0]; ++i)
    ((float *)t->data)[i] = (float)value;
}

static bool lost_factors(scene *s) {
  static const struct {
    assay_content content;
    int32_t nth;
    double value;
    const char *what;
  } lost[] = {
      {ASSAY_KV_SCALE, 0, 1.0, "the scale of K is missing"},
      {ASSAY_KV_SCALE, 1, 1.0, "the scale of V is missing"},
      {ASSAY_GAMMA, 0, 1.0, "gamma is missing"},
      {ASSAY_SLOPES, 0, 0.0, "the slopes are missing"},
      {ASSAY_TAPS, 0, 0.0, "all taps but the first are missing"},
  };
  for (size_t i = 0; i < sizeof lost / sizeof lost[0]; ++i) {
    scene_reset(s);
    const assay_tensor *t = scene_arg(s, lost[i].content, lost[i].nth);
    if (t == NULL) continue;
    set_all(t, lost[i].content == ASSAY_TAPS ? 1 : 0, lost[i].value);
    if (matches(s)) return found(s, "%s", lost[i].what);
  }
  return false;
}

/* Takes factors of another head or of the other cache, or taps backwards or one short. */
static bool swapped_factors(scene *s) {
  static const struct {
    assay_content content;
    const char *what;
  } each[] = {{ASSAY_KV_SCALE, "the scale of K"},
              {ASSAY_KV_SCALE, "the scale of V"},
              {ASSAY_GAMMA, "gamma"},
              {ASSAY_SLOPES, "the slope"}};
  for (int32_t i = 0; i < 4; ++i) {
    for (int64_t other = 0; other < s->heads; ++other) {
      scene_reset(s);
      const assay_tensor *t = scene_arg(s, each[i].content, i == 1 ? 1 : 0);
      const int64_t own = i < 2 ? s->kv_head : s->head;
      if (t == NULL || other >= t->shape[0] || own >= t->shape[0] || other == own) continue;
      ((float *)t->data)[own] = ((const float *)t->data)[other];
      if (matches(s)) return found(s, "%s of head %" PRId64 " instead of %" PRId64, each[i].what, other, own);
    }
  }
  scene_reset(s);
  const assay_tensor *k = scene_arg(s, ASSAY_KV_SCALE, 0), *v = scene_arg(s, ASSAY_KV_SCALE, 1);
  if (k != NULL && v != NULL) {
    memcpy(v->data, k->data, (size_t)k->shape[0] * sizeof(float));
    if (matches(s)) return found(s, "V has the scale of K");
  }
  scene_reset(s);
  const assay_tensor *taps = scene_arg(s, ASSAY_TAPS, 0);
  if (taps == NULL || taps->shape[0] < 2) return false;
  float *tap = taps->data;
  const int64_t F = taps->shape[0];
  tap[F - 1] = 0.0f;
  if (matches(s)) return found(s, "the last tap is missing");
  scene_reset(s);
  for (int64_t j = 0; j < F / 2; ++j) {
    const float kept = tap[j];
    tap[j] = tap[F - 1 - j];
    tap[F - 1 - j] = kept;
  }
  return matches(s) && found(s, "the taps are read backwards");
}

static bool other_params(scene *s) {
  const assay_op *op = s->t->one->op;
  for (int32_t i = 0; i < op->param_count; ++i) {
    const assay_param *p = &op->params[i];
    const double own = s->t->first.param[i];
    const bool at_default = !(own < p->fallback) && !(own > p->fallback);
    if (p->kind == ASSAY_ENUM || strcmp(p->name, "scale_per_head") == 0) continue;
    scene_reset(s);
    s->param[i] = p->fallback;
    if (!at_default && matches(s)) return found(s, "%s = %g has no effect", p->name, own);
    for (int step = -1; step <= 1 && p->kind == ASSAY_INTEGER && !at_default; step += 2) {
      scene_reset(s);
      s->param[i] = own + step;
      if (s->param[i] < p->min || s->param[i] > p->max || !matches(s)) continue;
      return found(s, "%s counts as %g instead of %g", p->name, s->param[i], own);
    }
    scene_reset(s);
    s->param[i] = p->kind == ASSAY_BOOL ? 1.0 - own : 1.0;
    if (p->kind == ASSAY_REAL && strcmp(p->name, "scale") == 0 && matches(s)) return found(s, "the scale is missing");
    if (p->kind == ASSAY_BOOL && matches(s)) return found(s, "%s counts as %s", p->name, own != 0 ? "false" : "true");
  }
  return false;
}

/* Tries a result of 0, and the truth times one number. */
static bool one_factor(scene *s) {
  const trial_output *out = &s->t->output[s->where.output];
  const int64_t first = s->where.element / out->group * out->group;
  double largest = 0, got = 0;
  bool zero = true;
  for (int64_t i = 0; i < out->group; ++i) {
    const double value = values_load(s->t, s->got, (output_place){s->where.output, s->row, first + i});
    zero = zero && fabs(value) <= 0;
    if (!(fabs(s->truth[first + i]) > largest)) continue;
    largest = fabs(s->truth[first + i]);
    got = value / s->truth[first + i];
  }
  if (zero) return found(s, "nothing was added: the head's result is 0");
  scene_reset(s);
  s->factor = got;
  return out->group > 1 && largest > 0 && matches(s) && found(s, "the right result times %.6g", got);
}

const mistake explain_mistakes[] = {nothing,         last_key,       keys_at_splits, first_key,       whole_splits,
                                    whole_blocks,    key_too_many,   other_table,    other_rows,      other_block,
                                    other_kv_head,   lost_factors,   other_params,   swapped_factors, other_query,
                                    filter_at_edges, planted_errors, other_place,    one_factor,      any_key,
                                    key_twice,       neighbour_rows};
const int32_t explain_mistake_count = sizeof explain_mistakes / sizeof explain_mistakes[0];
