/* grouped_draw.c: which rows of a grouped product are of which group, for the generator. */
#include <stdlib.h>

#include "core/rng.h"
#include "ref/lib/grouped.h"

enum { SORTED_FROM = 1024 };

typedef enum draw_kind { ANY, NOT_FIRST, NOT_LAST, ONE_ALONE, FEW, NO_ORDER, KINDS } draw_kind;

/* Draws a group of those that the kind has. */
static int64_t draw_group(const assay_fill *fill, draw_kind kind, int64_t G, int64_t row) {
  assay_rng rng = {fill->seed, 0x67726F75, 8 * (uint64_t)row}, one = {fill->seed, 0x6F6E65, 0};
  const int64_t alone = assay_rng_range(&one, 0, G - 1);
  if (kind == ONE_ALONE || G == 1) return alone;
  if (kind == NOT_FIRST) return assay_rng_range(&rng, 1, G - 1);
  if (kind == NOT_LAST) return assay_rng_range(&rng, 0, G - 2);
  if (kind == FEW) return assay_rng_range(&rng, 0, 1) == 0 ? alone : G - 1 - alone;
  return assay_rng_range(&rng, 0, G - 1);
}

static int by_number(const void *a, const void *b) {
  const int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
  return (x > y) - (x < y);
}

assay_status grouped_draw_groups(const assay_fill *fill, int64_t M, int64_t G, int32_t **groups, assay_error *error) {
  assay_rng rng = {fill->seed, 0x6B696E64, 0};
  const draw_kind kind = M >= SORTED_FROM ? ANY : (draw_kind)assay_rng_range(&rng, 0, KINDS - 1);
  int32_t *const group = *groups = malloc((size_t)(M + 1) * sizeof *group);
  if (group == NULL) return assay_fail(error, ASSAY_ERR_MEMORY, "%s: out of memory", fill->call->op->name);
  for (int64_t m = 0; m < M; ++m) {
    assay_rng own = {fill->seed, 0x64656164, 4 * (uint64_t)m};
    const bool dead = M < SORTED_FROM && assay_rng_range(&own, 0, 5) == 0;
    group[m] = (int32_t)(2 * draw_group(fill, kind, G, m) + dead);
  }
  if (kind != NO_ORDER) qsort(group, (size_t)M, sizeof *group, by_number);
  for (int64_t m = 0; m < M; ++m)
    group[m] = group[m] % 2 != 0 ? -1 : group[m] / 2;
  return ASSAY_OK;
}

int64_t grouped_draw_live(const assay_fill *fill, int64_t G, int64_t R, int64_t g) {
  assay_rng all = {fill->seed, 0x6B696E64, 0}, own = {fill->seed, 0x726F7773, 4 * (uint64_t)g};
  const bool single = assay_rng_range(&all, 0, 3) == 0;
  if (single && assay_rng_range(&all, 0, G - 1) != g) return 0;
  const int64_t kind = assay_rng_range(&own, 0, 3);
  if (kind == 0 && !single) return 0;
  return kind == 1 ? R : assay_rng_range(&own, 1, R);
}
