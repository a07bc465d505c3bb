/* neighbours.c: changes of a declared sum contract, one at a time, and the first that gives the bits found. */
#include "neighbours.h"

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/dtype.h"

typedef long long ll; /* for messages */

enum { MOST_PARTS = 64, MOST_SEARCHED = 1 << 13 };

typedef struct search {
  const assay_sums *sums;
  const assay_product *product;
  const neighbour_element *element;
  int32_t count;
  unsigned char *row; /* room for one row of a */
  char *text;
  size_t size;
} search;

static assay_tensor part_of(const assay_tensor *t, int64_t row, int64_t column, int64_t columns) {
  assay_tensor made = *t;
  if (t->data == NULL) return made;
  made.data = (unsigned char *)t->data + (row * t->stride[0] + column * t->stride[1]) * assay_dtype_size(t->dtype);
  made.shape[0] = 1;
  made.shape[1] = columns;
  return made;
}

/* Tells whether the contract gives one element. `from`, `to`: products that count as left out. start: NULL, or where
 * the first part starts. */
static bool gives(const search *s, const assay_sums *sums, const neighbour_element *e, int64_t from, int64_t to,
                  const float *start) {
  const assay_product *const p = s->product;
  const int64_t K = p->a.shape[1], size = assay_dtype_size(p->a.dtype);
  assay_product one = {.a = part_of(&p->a, e->m, 0, K),
                       .b = part_of(&p->b, e->n, 0, K),
                       .old = part_of(&p->old, e->m, e->n, 1),
                       .bias = part_of(&p->bias, 0, e->n, 1),
                       .second = part_of(&p->second, e->n, 0, K),
                       .factor = part_of(&p->factor, e->m, 0, 1),
                       .scale_a = part_of(&p->scale_a, e->m, 0, p->scale_a.shape[1]),
                       .scale_b = part_of(&p->scale_b, e->n, 0, p->scale_b.shape[1]),
                       .alpha = p->alpha,
                       .beta = p->beta};
  float begun = 0;
  if (start != NULL) {
    begun = *start;
    one.start = (assay_tensor){.data = &begun, .dtype = ASSAY_F32, .rank = 2, .shape = {1, 1}, .stride = {1, 1}};
    if (assay_is_nan((double)begun)) { /* stands for the bias */
      begun = (float)assay_load_f64(one.bias.data, one.bias.dtype, 0);
      one.bias.data = NULL;
    }
  }
  if (from < to) {
    memcpy(s->row, one.a.data, (size_t)(K * size));
    memset(s->row + from * size, 0, (size_t)((to - from) * size));
    one.a.data = s->row;
  }
  uint32_t bits = 0;
  if (assay_sums_predict(sums, &one, &bits, NULL) != ASSAY_OK) return false;
  if (bits == e->bits) return true;
  const double got = assay_load_f64(&e->bits, sums->output, 0), wanted = assay_load_f64(&bits, sums->output, 0);
  return assay_is_nan(got) && assay_is_nan(wanted);
}

static bool gives_all(const search *s, const assay_sums *sums, int64_t from, int64_t to, const float *start) {
  for (int32_t i = 0; i < s->count; ++i)
    if (!gives(s, sums, &s->element[i], from, to, start)) return false;
  return true;
}

#define FOUND(...) ((void)snprintf(s->text, s->size, __VA_ARGS__), true)

static int64_t backwards(int64_t i, int64_t K) {
  return K - 1 - i;
}

static bool by_join(const search *s) {
  static const char *const names[ASSAY_JOINS] = {"ascending", "descending", "pairwise"};
  for (int j = 0; j < ASSAY_JOINS && s->sums->parts > 1; ++j) {
    assay_sums sums = *s->sums;
    sums.join = (assay_sum_join)j;
    if (sums.join != s->sums->join && gives_all(s, &sums, 0, 0, NULL))
      return FOUND("as if the parts were joined %s", names[j]);
  }
  return false;
}

static bool by_parts(const search *s) {
  const int64_t tiles[] = {s->sums->tile, 0, 16, 32, 64, 128, 256};
  const int64_t K = assay_sums_padded(s->sums, s->product->a.shape[1]);
  for (size_t t = 0; t < sizeof tiles / sizeof *tiles; ++t)
    for (int64_t parts = 1; parts <= MOST_PARTS && parts <= K; ++parts) {
      assay_sums sums = *s->sums;
      sums.ends = NULL;
      sums.parts = parts;
      sums.tile = tiles[t];
      if ((sums.tile == 0 && K % parts != 0) || !gives_all(s, &sums, 0, 0, NULL)) continue;
      if (parts == 1) return FOUND("as if K were one part");
      if (sums.tile == 0) return FOUND("as if K were cut into %lld equal parts", (ll)parts);
      return FOUND("as if K were cut into %lld parts of whole tiles of %lld", (ll)parts, (ll)sums.tile);
    }
  return false;
}

static bool by_promotion(const search *s) {
  for (int64_t promote = 0; promote <= 1024; promote = promote == 0 ? 16 : 2 * promote) {
    assay_sums sums = *s->sums;
    sums.promote = promote;
    if (promote == s->sums->promote || !gives_all(s, &sums, 0, 0, NULL)) continue;
    return promote == 0 ? FOUND("as if the sum were never promoted")
                        : FOUND("as if the sum were promoted after %lld products", (ll)promote);
  }
  return false;
}

static bool by_scale(const search *s) {
  assay_sums sums = *s->sums;
  static const struct {
    assay_sum_scale scale;
    const char *text;
  } others[] = {{ASSAY_SCALE_FMA_PRODUCT, "one FMA"},
                {ASSAY_SCALE_PRODUCT_THEN_ADD, "a product and an addition"},
                {ASSAY_SCALE_PRODUCT_THEN_FMA, "one FMA after a product with scale_a"}};
  if (sums.scale == ASSAY_SCALE_NONE || sums.scale == ASSAY_SCALE_AFTER) return false;
  for (size_t i = 0; i < sizeof others / sizeof *others; ++i) {
    sums.scale = others[i].scale;
    if (sums.scale != s->sums->scale && gives_all(s, &sums, 0, 0, NULL))
      return FOUND("as if a scaled sum were added by %s", others[i].text);
  }
  return false;
}

static bool by_unit(const search *s) {
  for (int u = ASSAY_SUM_NONE + 1; u < ASSAY_SUM_UNITS; ++u) {
    assay_sums sums = *s->sums;
    sums.unit = (assay_sum_unit)u;
    if (sums.unit != s->sums->unit && gives_all(s, &sums, 0, 0, NULL))
      return FOUND("as if the unit were %s", assay_sum_unit_name(sums.unit));
  }
  return false;
}

static bool by_order(const search *s) {
  assay_sums sums = *s->sums;
  sums.order = NULL;
  if (s->sums->order != NULL && gives_all(s, &sums, 0, 0, NULL)) return FOUND("as if K were taken in ascending order");
  sums.order = backwards;
  return gives_all(s, &sums, 0, 0, NULL) && FOUND("as if K were taken in descending order");
}

static bool by_after(const search *s) {
  for (int i = 0; i < ASSAY_SUM_MOST_AFTER; ++i) {
    assay_sums sums = *s->sums;
    if (sums.after[i] == ASSAY_AFTER_OLD || sums.after[i] == ASSAY_AFTER_OLD_ADD) {
      const bool fused = sums.after[i] == ASSAY_AFTER_OLD;
      sums.after[i] = fused ? ASSAY_AFTER_OLD_ADD : ASSAY_AFTER_OLD;
      if (gives_all(s, &sums, 0, 0, NULL))
        return FOUND("as if beta c were added by %s", fused ? "a product and an addition" : "one FMA");
    }
    if (sums.after[i] == ASSAY_AFTER_NONE) break;
  }
  for (int i = 0; i < ASSAY_SUM_MOST_AFTER && s->sums->after[ASSAY_SUM_MOST_AFTER - 1] == ASSAY_AFTER_NONE; ++i) {
    assay_sums sums = *s->sums;
    memmove(&sums.after[i + 1], &sums.after[i], (size_t)(ASSAY_SUM_MOST_AFTER - 1 - i) * sizeof sums.after[0]);
    sums.after[i] = ASSAY_AFTER_ROUND;
    if (gives_all(s, &sums, 0, 0, NULL))
      return FOUND("as if the sum were rounded to %s before it is whole", assay_dtype_name(sums.output));
    if (s->sums->after[i] == ASSAY_AFTER_NONE) break;
  }
  return false;
}

static bool by_start(const search *s) {
  static const float minus_zero = -0.0f, bias = NAN;
  if (s->product->bias.data != NULL && gives_all(s, s->sums, 0, 0, &bias))
    return FOUND("as if the sum began from the bias");
  return gives_all(s, s->sums, 0, 0, &minus_zero) && FOUND("as if the sum began from -0");
}

/* Tries every product, and every step, as if it had been left out. */
static bool by_loss(const search *s) {
  const int64_t K = s->product->a.shape[1], step = assay_sum_step(s->sums->unit);
  const int64_t widths[] = {1, step, 2 * step, 64};
  for (size_t w = 0; w < sizeof widths / sizeof *widths && s->row != NULL; ++w)
    for (int64_t k = 0; k < K && K <= MOST_SEARCHED; k += widths[w]) {
      const int64_t end = k + widths[w] < K ? k + widths[w] : K;
      if (!gives_all(s, s->sums, k, end, NULL)) continue;
      return end - k == 1 ? FOUND("as if product %lld of K were left out", (ll)k)
                          : FOUND("as if products %lld to %lld of K were left out", (ll)k, (ll)(end - 1));
    }
  return false;
}

void neighbours_explain(const assay_sums *sums, const assay_product *product, const neighbour_element *element,
                        int32_t count, char *text, size_t size) {
  static bool (*const ways[])(const search *) = {by_join,  by_parts, by_promotion, by_scale, by_unit,
                                                 by_order, by_after, by_start,     by_loss};
  unsigned char *const row = malloc((size_t)(product->a.shape[1] * assay_dtype_size(product->a.dtype)) + 1);
  const search s = {sums, product, element, count, row, text, size};
  text[0] = '\0';
  for (size_t i = 0; i < sizeof ways / sizeof *ways; ++i)
    if (ways[i](&s)) break;
  free(row);
}
