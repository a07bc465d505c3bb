/* spec.h: what a suite item says of one key: one value, an axis of the product, or how to draw. The forms are
 * documented in docs/suites.md. */
#ifndef ASSAY_CONFORMANCE_SPEC_H
#define ASSAY_CONFORMANCE_SPEC_H

#include "core/rng.h"
#include "keys.h"
#include "yaml.h"

typedef enum spec_kind {
  SPEC_AXIS = 1,     /* v | [v, v]: one value after the other, in product with the other axes */
  SPEC_ONE_OF = 2,   /* {one_of: [v, v]} */
  SPEC_UNIFORM = 4,  /* {uniform: [low, high]} */
  SPEC_BOUNDARY = 8, /* {boundary: {block: true, split: 256, tile: 128, min: 0, max: 600}} */
  SPEC_LIST = 16,    /* {list: [v, v]}: one for each request */
  SPEC_TRACE = 32,   /* {trace: mooncake, cap: 512, scale: 0.05} */
  SPEC_CHANCE = 64,  /* {chance: percent} */
  SPEC_FIXED = 128   /* {fixed: v}, the same as v */
} spec_kind;

enum { SPEC_FOR_VALUES = SPEC_AXIS | SPEC_ONE_OF | SPEC_UNIFORM | SPEC_BOUNDARY };

typedef struct spec {
  yaml_node at; /* file == NULL: not given */
  spec_kind kind;
  double *value; /* AXIS, ONE_OF, LIST: count values (share: pairs); UNIFORM: low, high; CHANCE: one */
  int32_t count;
  bool block;
  int64_t split, tile, min, max; /* 0: no such family */
  const char *trace;
  int64_t cap;
  double scale;
} spec;

static inline bool spec_given(const spec *s) {
  return s->at.file != NULL;
}

/* `forms`: the spec_kinds this key may have. */
assay_status spec_parse(const case_key *key, int32_t forms, bool relaxed, yaml_node node, spec *made,
                        assay_error *error);
void spec_free(spec *s);
/* One value by a drawing form (not AXIS, LIST, TRACE). */
double spec_draw(const spec *s, const case_key *key, int64_t block_size, assay_rng *rng);

#endif
