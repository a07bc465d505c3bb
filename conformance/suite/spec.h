/* spec.h: the value that a suite item gives to one key: one value, an axis of the product, or a way to draw.
 * docs/suites.md documents the kinds. */
#ifndef ASSAY_CONFORMANCE_SUITE_SPEC_H
#define ASSAY_CONFORMANCE_SUITE_SPEC_H

#include "core/rng.h"
#include "conformance/case/case.h"
#include "conformance/text/text.h"

typedef enum spec_kind {
  SPEC_AXIS = 1,     /* `v` or `[v, v]`: one value after the other, in product with the other axes */
  SPEC_ONE_OF = 2,   /* `{one_of: [v, v]}` */
  SPEC_UNIFORM = 4,  /* `{uniform: [low, high]}` */
  SPEC_BOUNDARY = 8, /* `{boundary: {block: true, split: 256, tile: 128, min: 0, max: 600}}` */
  SPEC_LIST = 16,    /* `{list: [v, v]}`: one per request */
  SPEC_TRACE = 32,   /* `{trace: mooncake, cap: 512, scale: 0.05}` */
  SPEC_CHANCE = 64,  /* `{chance: percent}` */
  SPEC_FIXED = 128   /* `{fixed: v}`, the same as `v` */
} spec_kind;

enum { SPEC_FOR_VALUES = SPEC_AXIS | SPEC_ONE_OF | SPEC_UNIFORM | SPEC_BOUNDARY };

typedef struct spec {
  yaml_node at; /* file == NULL: the item does not give the key */
  spec_kind kind;
  double *value; /* AXIS, ONE_OF, LIST: `count` values (pairs for share). UNIFORM: low, high. CHANCE: not used */
  int32_t count;
  bool block;
  int64_t split, tile, min, max; /* 0: the family is not used; CHANCE: max is the percent */
  const char *trace;
  int64_t cap;
  double scale;
} spec;

static inline bool spec_given(const spec *s) {
  return s->at.file != NULL;
}

/* Reads one key's value. `kinds` holds the spec_kinds this key may have. The caller frees `s`; after a failure it is
 * empty. */
assay_status spec_parse(const case_key *key, int32_t kinds, bool relaxed, yaml_node node, spec *s, assay_error *error);
void spec_free(spec *s);
/* Draws one value by a kind that draws (not AXIS, LIST, TRACE). */
double spec_draw(const spec *s, const case_key *key, int64_t block_size, assay_rng *rng);

#endif
