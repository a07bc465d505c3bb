/* spec.c: the kinds of values in a suite item, and their draws. Uses integer arithmetic and exact f64 only. */
#include "spec.h"

#include <stdio.h>
#include <stdlib.h>

#include "trace.h"

void spec_free(spec *s) {
  free(s->value);
  *s = (spec){0};
}

/* The context of parsing a value of one kind. */
typedef struct kind_context {
  const case_key *key;
  int32_t kinds;
  bool relaxed;
  spec *spec;
} kind_context;

static assay_status scalar_value(const kind_context *c, yaml_node node, double *value, assay_error *error) {
  const char *name = c->key->name;
  assay_error inner = {""};
  if (yaml_kind(node) != NODE_SCALAR) return yaml_fail(node, error, "%s: found a list or a map, allowed a value", name);
  if (!yaml_is_plain(node)) {
    char allowed[256];
    key_allowed(c->key, c->relaxed, allowed, sizeof allowed);
    return yaml_fail(node, error, "%s: found the text \"%.60s\", allowed %s", name, yaml_text(node), allowed);
  }
  const assay_status status = key_from_text(c->key, yaml_text(node), c->relaxed, value, &inner);
  return status == ASSAY_OK ? ASSAY_OK : yaml_fail_with(node, &inner, status, error);
}

static assay_status share_value(yaml_node node, double *pair, assay_error *error) {
  assay_error inner = {""};
  int32_t with = -1, tokens = 0;
  if (yaml_kind(node) != NODE_SCALAR) return yaml_fail(node, error, "share: found a list or a map, allowed a value");
  const assay_status status = case_share_from_text(yaml_text(node), &with, &tokens, &inner);
  if (status != ASSAY_OK) return yaml_fail_with(node, &inner, status, error);
  pair[0] = with;
  pair[1] = tokens;
  return ASSAY_OK;
}

/* Reads a non-empty list of values into spec->value. */
static assay_status take_values(const kind_context *c, yaml_node list, assay_error *error) {
  const int32_t count = yaml_count(list);
  const bool pairs = c->key->kind == KEY_SHARE;
  if (yaml_kind(list) != NODE_LIST) return yaml_fail(list, error, "%s: found no list, allowed a list", c->key->name);
  if (count < 1 || count > CASE_LISTED)
    return yaml_fail(list, error, "%s: found a list of %d, allowed 1 to %d values", c->key->name, count, CASE_LISTED);
  free(c->spec->value);
  c->spec->value = calloc((size_t)count * 2, sizeof *c->spec->value);
  if (c->spec->value == NULL) return assay_fail(error, ASSAY_ERR_MEMORY, "%s: out of memory", c->key->name);
  c->spec->count = count;
  for (int32_t i = 0; i < count; ++i) {
    const assay_status status = pairs ? share_value(yaml_item(list, i), &c->spec->value[2 * i], error)
                                      : scalar_value(c, yaml_item(list, i), &c->spec->value[i], error);
    if (status != ASSAY_OK) return status;
  }
  return ASSAY_OK;
}

/* ---- the kinds -------------------------------------------------------------------------------------------- */

static assay_status take_one_of(void *context, const yaml_field *field, yaml_node value, assay_error *error) {
  kind_context *c = context;
  c->spec->kind = *(const spec_kind *)field->about;
  return take_values(c, value, error);
}

static assay_status take_uniform(void *context, const yaml_field *field, yaml_node value, assay_error *error) {
  kind_context *c = context;
  const assay_status status = take_one_of(context, field, value, error);
  if (status != ASSAY_OK) return status;
  if (c->key->kind == KEY_ENUM || c->key->kind == KEY_BOOL)
    return yaml_fail(value, error, "%s: found uniform, allowed a value, a list, one_of", c->key->name);
  if (c->spec->count != 2 || !(c->spec->value[0] <= c->spec->value[1]))
    return yaml_fail(value, error, "%s: uniform: found %d values, allowed [low, high] with low <= high", c->key->name,
                     c->spec->count);
  return ASSAY_OK;
}

static assay_status take_fixed(void *context, const yaml_field *field, yaml_node value, assay_error *error) {
  kind_context *c = context;
  (void)field;
  c->spec->kind = SPEC_AXIS;
  free(c->spec->value);
  c->spec->value = calloc(1, sizeof *c->spec->value);
  if (c->spec->value == NULL) return assay_fail(error, ASSAY_ERR_MEMORY, "%s: out of memory", c->key->name);
  c->spec->count = 1;
  return scalar_value(c, value, c->spec->value, error);
}

static assay_status whole_number(const char *name, double low, double high, yaml_node node, int64_t *value,
                                 assay_error *error) {
  const case_key key = {.name = name, .kind = KEY_INTEGER, .min = low, .max = high, .multiple = 1, .store = STORE_F64};
  spec unused = {0};
  const kind_context c = {.key = &key, .spec = &unused};
  double number = 0;
  const assay_status status = scalar_value(&c, node, &number, error);
  *value = (int64_t)number;
  return status;
}

static assay_status take_family(void *context, const yaml_field *field, yaml_node value, assay_error *error) {
  spec *s = ((kind_context *)context)->spec;
  static const char *const names[] = {"split", "tile", "min", "max"};
  int64_t *const places[] = {&s->split, &s->tile, &s->min, &s->max};
  for (int32_t i = 0; i < 4; ++i)
    if (strcmp(field->key, names[i]) == 0)
      return whole_number(names[i], i < 2 ? 2 : 0, KEY_MAX_LENGTH, value, places[i], error);
  const case_key block = {.name = "block", .kind = KEY_BOOL};
  const kind_context c = {.key = &block};
  double flag = 0;
  const assay_status status = scalar_value(&c, value, &flag, error);
  s->block = flag != 0;
  return status;
}

static assay_status take_boundary(void *context, const yaml_field *field, yaml_node value, assay_error *error) {
  static const yaml_field families[] = {{"block", NODE_SCALAR, false, take_family, NULL},
                                        {"split", NODE_SCALAR, false, take_family, NULL},
                                        {"tile", NODE_SCALAR, false, take_family, NULL},
                                        {"min", NODE_SCALAR, false, take_family, NULL},
                                        {"max", NODE_SCALAR, true, take_family, NULL}};
  kind_context *c = context;
  (void)field;
  c->spec->kind = SPEC_BOUNDARY;
  c->spec->min = -1;
  if ((c->key->kind != KEY_INTEGER && c->key->kind != KEY_LENGTHS) || c->key->multiple != 1)
    return yaml_fail(value, error, "%s: found boundary, allowed for lengths and integers only", c->key->name);
  const assay_status status = yaml_walk(value, families, 5, context, error);
  if (status == ASSAY_OK && (double)c->spec->max > c->key->max)
    return yaml_fail(value, error, "max: found %lld, allowed at most %.0f, the most for %s", (long long)c->spec->max,
                     c->key->max, c->key->name);
  if (status == ASSAY_OK && c->spec->min > c->spec->max)
    return yaml_fail(value, error, "min: found %lld, allowed at most max = %lld", (long long)c->spec->min,
                     (long long)c->spec->max);
  return status;
}

static assay_status take_trace(void *context, const yaml_field *field, yaml_node value, assay_error *error) {
  spec *s = ((kind_context *)context)->spec;
  (void)field;
  s->kind = SPEC_TRACE;
  s->trace = yaml_text(value);
  if (trace_file(s->trace) == NULL)
    return yaml_fail(value, error, "trace: found '%.60s', allowed %s", s->trace, trace_names);
  return ASSAY_OK;
}

static assay_status take_cap(void *context, const yaml_field *field, yaml_node value, assay_error *error) {
  (void)field;
  return whole_number("cap", 1, KEY_MAX_LENGTH, value, &((kind_context *)context)->spec->cap, error);
}

static assay_status take_scale(void *context, const yaml_field *field, yaml_node value, assay_error *error) {
  static const case_key key = {
      .name = "scale", .kind = KEY_REAL, .min = 1e-6, .max = 16, .multiple = 1, .store = STORE_F64};
  const kind_context c = {.key = &key};
  (void)field;
  return scalar_value(&c, value, &((kind_context *)context)->spec->scale, error);
}

static assay_status take_chance(void *context, const yaml_field *field, yaml_node value, assay_error *error) {
  spec *s = ((kind_context *)context)->spec;
  (void)field;
  s->kind = SPEC_CHANCE;
  return whole_number("chance", 0, 100, value, &s->max, error);
}

static const spec_kind one_of = SPEC_ONE_OF, uniform = SPEC_UNIFORM, list = SPEC_LIST;

static assay_status parse_map(kind_context *c, yaml_node node, assay_error *error) {
  static const struct {
    int32_t kind;
    yaml_field field;
  } all[] = {
      {SPEC_ONE_OF, {"one_of", NODE_LIST, false, take_one_of, &one_of}},
      {SPEC_UNIFORM, {"uniform", NODE_LIST, false, take_uniform, &uniform}},
      {SPEC_BOUNDARY, {"boundary", NODE_MAP, false, take_boundary, NULL}},
      {SPEC_LIST, {"list", NODE_LIST, false, take_one_of, &list}},
      {SPEC_FIXED, {"fixed", NODE_SCALAR, false, take_fixed, NULL}},
      {SPEC_CHANCE, {"chance", NODE_SCALAR, false, take_chance, NULL}},
      {SPEC_TRACE, {"trace", NODE_SCALAR, false, take_trace, NULL}},
      {SPEC_TRACE, {"cap", NODE_SCALAR, false, take_cap, NULL}},
      {SPEC_TRACE, {"scale", NODE_SCALAR, false, take_scale, NULL}},
  };
  enum { ALL = sizeof all / sizeof all[0] };
  yaml_field fields[ALL];
  int32_t count = 0;
  for (int32_t i = 0; i < ALL; ++i)
    if ((all[i].kind & c->kinds) != 0) fields[count++] = all[i].field;
  c->spec->cap = KEY_MAX_LENGTH;
  c->spec->scale = 1;
  /* Only one kind is allowed; cap and scale belong to trace. */
  bool traced = false;
  int32_t kinds = 0;
  for (int32_t i = 0; i < yaml_count(node); ++i) {
    const yaml_node key = yaml_key(node, i);
    if (yaml_kind(key) != NODE_SCALAR) break;
    traced = traced || strcmp(yaml_text(key), "trace") == 0;
    kinds += strcmp(yaml_text(key), "cap") != 0 && strcmp(yaml_text(key), "scale") != 0;
  }
  const assay_status status = yaml_walk(node, fields, count, c, error);
  if (status != ASSAY_OK) return status;
  if (kinds != 1 || (!traced && yaml_count(node) != 1))
    return yaml_fail(node, error, "%s: found %d forms of drawing, allowed one (cap and scale belong to trace)",
                     c->key->name, kinds);
  return ASSAY_OK;
}

assay_status spec_parse(const case_key *key, int32_t kinds, bool relaxed, yaml_node node, spec *s, assay_error *error) {
  kind_context c = {.key = key, .kinds = kinds, .relaxed = relaxed, .spec = s};
  assay_status status = ASSAY_OK;
  *s = (spec){.at = node, .kind = SPEC_AXIS};
  switch (yaml_kind(node)) {
  case NODE_MAP:
    status = parse_map(&c, node, error);
    break;
  case NODE_LIST:
    if ((kinds & SPEC_AXIS) == 0)
      status = yaml_fail(node, error, "%s: found a list, allowed a map", key->name);
    else
      status = take_values(&c, node, error);
    break;
  case NODE_SCALAR:
    if ((kinds & SPEC_AXIS) == 0)
      status = yaml_fail(node, error, "%s: found a value, allowed a map", key->name);
    else
      status = take_fixed(&c, NULL, node, error);
    break;
  }
  if (status != ASSAY_OK) spec_free(s);
  return status;
}

/* ---- draws ------------------------------------------------------------------------------------------------ */

/* Draws a value one below, at, or one above a multiple of `step`; the multiple is uniform up to max. */
static int64_t draw_around(int64_t step, int64_t max, assay_rng *rng) {
  const int64_t most = (max + 1) / step;
  const int64_t multiple = assay_rng_range(rng, 1, most > 1 ? most : 1) * step;
  return multiple + assay_rng_range(rng, -1, 1);
}

/* Draws from families in equal shares: the ends {0, 1}, any value, and ±1 around multiples of block, split and tile
 * where they fit. */
static int64_t draw_boundary(const spec *s, int64_t low, int64_t block_size, assay_rng *rng) {
  const int64_t steps[] = {s->block ? block_size : 0, s->split, s->tile};
  int64_t family[5] = {0, -1}, value = 0;
  int32_t families = 2;
  for (int32_t i = 0; i < 3; ++i)
    if (steps[i] > 0 && steps[i] <= s->max + 1) family[families++] = steps[i];
  const int64_t chosen = family[assay_rng_range(rng, 0, families - 1)];
  if (chosen == 0)
    value = assay_rng_range(rng, 0, 1);
  else if (chosen < 0)
    value = assay_rng_range(rng, low, s->max);
  else
    value = draw_around(chosen, s->max, rng);
  return value < low ? low : value > s->max ? s->max : value;
}

double spec_draw(const spec *s, const case_key *key, int64_t block_size, assay_rng *rng) {
  const double *v = s->value;
  switch (s->kind) {
  case SPEC_ONE_OF:
    return v[assay_rng_range(rng, 0, s->count - 1)];
  case SPEC_UNIFORM:
    if (key->kind == KEY_REAL) return v[0] + (v[1] - v[0]) * (double)assay_rng_range(rng, 0, 64) / 64;
    return v[0] + (double)(key->multiple * assay_rng_range(rng, 0, (int64_t)(v[1] - v[0]) / key->multiple));
  case SPEC_BOUNDARY: {
    const int64_t least = key->min > 0 ? (int64_t)key->min : 0;
    return (double)draw_boundary(s, s->min >= 0 ? s->min : least, block_size, rng);
  }
  case SPEC_AXIS:
  case SPEC_LIST:
  case SPEC_TRACE:
  case SPEC_CHANCE:
  case SPEC_FIXED:
    break;
  }
  return v != NULL ? v[0] : 0;
}
