/* item.c: the cases of one item of a suite: the product of its axes, with `cases` draws of each combination. */
#include "item.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

/* The keys that a suite has in addition to those of a case. */
enum { EXTRA_BATCH, EXTRA_G, EXTRA_SPARSE, EXTRAS };

static const case_key extra_keys[EXTRAS] = {
    [EXTRA_BATCH] = {.name = "batch",
                     .kind = KEY_INTEGER,
                     .min = 1,
                     .max = CASE_MAX_BATCH,
                     .multiple = 1,
                     .store = STORE_F64,
                     .doc = "requests"},
    [EXTRA_G] = {.name = "G",
                 .kind = KEY_INTEGER,
                 .min = 1,
                 .max = 256,
                 .multiple = 1,
                 .store = STORE_F64,
                 .doc = "query heads per kv head: H = G * H_kv"},
    [EXTRA_SPARSE] = {.name = "sparse_blocks",
                      .kind = KEY_INTEGER,
                      .min = 0,
                      .max = 4096,
                      .multiple = 1,
                      .store = STORE_F64,
                      .doc = "sparse_block = sparse_blocks * block_size"},
};

typedef struct item {
  suite *owner;
  const assay_op *op;
  case_section section;
  yaml_node map;
  char name[64], expect[32], night[96]; /* night: variants that a thinned run does not ask, separated by commas */
  bool own_draws;                       /* drawn from streams of its own; indices of other items do not count it */
  bool whole;                           /* a thinned run asks its cases all that a whole run asks them */
  bool seeded;                          /* the item gives the seed of the values; it is not drawn */
  uint64_t seed;
  int64_t cases, drawn;
  int64_t thin; /* a thinned run has one of so many draws; 1: all */
  uint32_t devices;
  int32_t count; /* keys of the operator, then the extra ones */
  case_key key[ITEM_MAX_KEYS];
  spec spec[ITEM_MAX_KEYS];
  int32_t position[ITEM_MAX_KEYS]; /* position of each axis in the current combination */
} item;

static spec *spec_of(item *it, const char *name) {
  for (int32_t i = 0; i < it->count; ++i)
    if (strcmp(it->key[i].name, name) == 0) return &it->spec[i];
  return NULL;
}

static bool is_given(item *it, const char *name) {
  const spec *s = spec_of(it, name);
  return s != NULL && spec_given(s);
}

/* Returns the value of an axis in this combination, or a drawn value. */
static double value_of(item *it, int32_t i, int64_t block_size, assay_rng *rng) {
  const spec *s = &it->spec[i];
  if (s->kind == SPEC_AXIS) return s->value[it->position[i]];
  return spec_draw(s, &it->key[i], block_size, rng);
}

/* ---- reading ---------------------------------------------------------------------------------------------- */

static assay_status take_text(item *it, const char *key, char *to, yaml_node value, assay_error *error) {
  assay_error inner = {""};
  const case_key about = key_at(it->op, key_find(it->op, key));
  const assay_status status = key_text_check(&about, yaml_text(value), &inner);
  if (status != ASSAY_OK) return yaml_fail_with(value, &inner, status, error);
  (void)snprintf(to, about.size, "%s", yaml_text(value));
  return ASSAY_OK;
}

static assay_status take_name(void *context, const yaml_field *field, yaml_node value, assay_error *error) {
  return take_text(context, field->key, ((item *)context)->name, value, error);
}

static assay_status take_expect(void *context, const yaml_field *field, yaml_node value, assay_error *error) {
  return take_text(context, field->key, ((item *)context)->expect, value, error);
}

static assay_status take_count(const char *name, int32_t max, yaml_node value, int64_t *count, assay_error *error) {
  const case_key key = {.name = name, .kind = KEY_INTEGER, .min = 1, .max = max, .multiple = 1, .store = STORE_F64};
  assay_error inner = {""};
  double number = 0;
  const assay_status status = yaml_is_plain(value)
                                  ? key_from_text(&key, yaml_text(value), false, &number, &inner)
                                  : assay_fail(&inner, ASSAY_ERR_INPUT, "%s: found the text \"%.60s\", allowed 1 to %d",
                                               name, yaml_text(value), max);
  if (status != ASSAY_OK) return yaml_fail_with(value, &inner, status, error);
  *count = (int64_t)number;
  return ASSAY_OK;
}

static assay_status take_cases(void *context, const yaml_field *field, yaml_node value, assay_error *error) {
  return take_count(field->key, ITEM_MAX_CASES, value, &((item *)context)->cases, error);
}

static assay_status take_thin(void *context, const yaml_field *field, yaml_node value, assay_error *error) {
  return take_count(field->key, ITEM_MAX_THIN, value, &((item *)context)->thin, error);
}

/* Takes night: the variants that a thinned run does not ask. That they exist is looked at where variants are known. */
static assay_status take_night(void *context, const yaml_field *field, yaml_node value, assay_error *error) {
  item *it = context;
  size_t used = 0;
  (void)field;
  for (int32_t i = 0; i < yaml_count(value); ++i) {
    const yaml_node node = yaml_item(value, i);
    const char *name = yaml_kind(node) == NODE_SCALAR ? yaml_text(node) : "a list or a map";
    if (strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789_") != strlen(name) || name[0] == '\0')
      return yaml_fail(node, error, "night: found '%.60s', allowed the name of a variant", name);
    if (strlen(name) + used + 2 > sizeof it->night)
      return yaml_fail(node, error, "night: found more than %zu characters of names, allowed up to these",
                       sizeof it->night - 1);
    used += (size_t)snprintf(it->night + used, sizeof it->night - used, "%s%s", used > 0 ? "," : "", name);
  }
  if (used == 0) return yaml_fail(value, error, "night: found an empty list, allowed one variant or more");
  return ASSAY_OK;
}

static assay_status take_devices(void *context, const yaml_field *field, yaml_node value, assay_error *error) {
  item *it = context;
  const bool many = yaml_kind(value) == NODE_LIST;
  (void)field;
  it->devices = 0;
  for (int32_t i = 0; i < yaml_count(value); ++i) {
    const yaml_node node = many ? yaml_item(value, i) : value;
    const char *name = yaml_kind(node) == NODE_SCALAR ? yaml_text(node) : "a list or a map";
    const uint32_t bit = strcmp(name, "simt") == 0 ? CASE_ON_SIMT : strcmp(name, "cuda") == 0 ? CASE_ON_CUDA : 0;
    if (bit == 0) return yaml_fail(node, error, "devices: found '%.60s', allowed simt, cuda", name);
    it->devices |= bit;
  }
  if (it->devices == 0) return yaml_fail(value, error, "devices: found none, allowed simt, cuda");
  return ASSAY_OK;
}

/* Takes the seed of the values, so that they do not depend on the item's place in the suite. */
static assay_status take_seed(void *context, const yaml_field *field, yaml_node value, assay_error *error) {
  item *it = context;
  assay_error inner = {""};
  const assay_status status = key_seed_from_text(field->key, yaml_text(value), &it->seed, &inner);
  it->seeded = true;
  return status == ASSAY_OK ? ASSAY_OK : yaml_fail_with(value, &inner, status, error);
}

static assay_status take_bool(const yaml_field *field, yaml_node value, bool *to, assay_error *error) {
  const case_key key = {.name = field->key, .kind = KEY_BOOL, .max = 1, .multiple = 1, .store = STORE_F64};
  assay_error inner = {""};
  double number = 0;
  const assay_status status = key_from_text(&key, yaml_text(value), false, &number, &inner);
  if (status != ASSAY_OK) return yaml_fail_with(value, &inner, status, error);
  *to = number != 0;
  return ASSAY_OK;
}

/* Takes own_draws: the item's cases are drawn from streams of its own, so that it moves no other item's draws. */
static assay_status take_own_draws(void *context, const yaml_field *field, yaml_node value, assay_error *error) {
  return take_bool(field, value, &((item *)context)->own_draws, error);
}

static assay_status take_whole(void *context, const yaml_field *field, yaml_node value, assay_error *error) {
  return take_bool(field, value, &((item *)context)->whole, error);
}

static int32_t forms_of(const case_key *key) {
  if (key->kind == KEY_SHARE) return SPEC_CHANCE | SPEC_LIST;
  if (key->kind != KEY_LENGTHS) return SPEC_FOR_VALUES | SPEC_FIXED;
  const bool lengths = strcmp(key->name, "kv_len") == 0;
  return SPEC_FOR_VALUES | SPEC_FIXED | SPEC_LIST | (lengths ? SPEC_TRACE : 0);
}

static assay_status take_key(void *context, const yaml_field *field, yaml_node value, assay_error *error) {
  item *it = context;
  const int64_t i = (const case_key *)field->about - it->key;
  return spec_parse(&it->key[i], forms_of(&it->key[i]), it->section == SECTION_REFUSE, value, &it->spec[i], error);
}

/* Tells whether a key is set by the suite around the item, or read on its own, and not by the table of keys. */
static bool is_reserved(const char *name) {
  static const char *const reserved[] = {"suite", "section", "name", "variant", "device", "seed", "expect"};
  for (size_t i = 0; i < sizeof reserved / sizeof reserved[0]; ++i)
    if (strcmp(reserved[i], name) == 0) return true;
  return false;
}

static bool has_param(const assay_op *op, const char *name) {
  for (int32_t i = 0; i < op->param_count; ++i)
    if (strcmp(op->params[i].name, name) == 0) return true;
  return false;
}

/* Checks rules over several keys of the item. */
static assay_status check_item(item *it, assay_error *error) {
  static const char *const either[][2] = {{"H", "G"}, {"sparse_block", "sparse_blocks"}};
  for (int32_t i = 0; i < 2; ++i)
    if (is_given(it, either[i][0]) && is_given(it, either[i][1]))
      return yaml_fail(spec_of(it, either[i][1])->at, error, "%s: found beside %s, allowed one of them", either[i][1],
                       either[i][0]);
  if (it->op->form == ASSAY_PLAIN) return ASSAY_OK;
  if (!is_given(it, "kv_len")) return yaml_fail(it->map, error, "kv_len: missing");
  if (spec_of(it, "kv_len")->kind == SPEC_TRACE && is_given(it, "share"))
    return yaml_fail(spec_of(it, "share")->at, error, "share: found beside a trace, which says itself what is shared");
  return ASSAY_OK;
}

static assay_status read_item(item *it, assay_error *error) {
  yaml_field fields[ITEM_MAX_KEYS + 9] = {{"name", NODE_SCALAR, true, take_name, NULL},
                                          {"cases", NODE_SCALAR, false, take_cases, NULL},
                                          {"devices", NODE_SCALAR | NODE_LIST, false, take_devices, NULL},
                                          {"expect", NODE_SCALAR, false, take_expect, NULL},
                                          {"seed", NODE_SCALAR, false, take_seed, NULL},
                                          {"own_draws", NODE_SCALAR, false, take_own_draws, NULL},
                                          {"thin", NODE_SCALAR, false, take_thin, NULL},
                                          {"night", NODE_LIST, false, take_night, NULL},
                                          {"whole", NODE_SCALAR, false, take_whole, NULL}};
  int32_t fields_used = 9;
  const int32_t keys = key_count(it->op);
  for (int32_t i = 0; i < keys + EXTRAS && it->count < ITEM_MAX_KEYS; ++i) {
    const case_key key = i < keys ? key_at(it->op, i) : extra_keys[i - keys];
    if (is_reserved(key.name) || (i >= keys && it->op->form == ASSAY_PLAIN)) continue;
    if (i == keys + EXTRA_SPARSE && !has_param(it->op, "sparse_block")) continue;
    it->key[it->count] = key;
    const int32_t kinds = key.kind == KEY_SHARE ? NODE_MAP : NODE_SCALAR | NODE_LIST | NODE_MAP;
    fields[fields_used++] = (yaml_field){it->key[it->count].name, kinds, false, take_key, &it->key[it->count]};
    ++it->count;
  }
  const assay_status status = yaml_walk(it->map, fields, fields_used, it, error);
  return status == ASSAY_OK ? check_item(it, error) : status;
}

/* ---- one case --------------------------------------------------------------------------------------------- */

static int64_t dim_of(const assay_case *one, const char *name) {
  for (int32_t i = 0; i < one->op->dim_count; ++i)
    if (strcmp(one->op->dims[i].name, name) == 0) return one->dim[i];
  return 0;
}

/* Sets another key of the case from a computed number, checked against that key's range. */
static assay_status set_derived(item *it, assay_case *one, const char *name, int64_t value, const spec *from,
                                assay_error *error) {
  char text[32];
  assay_error inner = {""};
  double number = 0;
  const int32_t index = key_find(it->op, name);
  if (index < 0) return yaml_fail(from->at, error, "%s has no %s", it->op->name, name);
  const case_key key = key_at(it->op, index);
  (void)snprintf(text, sizeof text, "%" PRId64, value);
  const assay_status status = key_from_text(&key, text, it->section == SECTION_REFUSE, &number, &inner);
  if (status != ASSAY_OK) return yaml_fail_with(from->at, &inner, status, error);
  key_set(one, &key, number);
  return ASSAY_OK;
}

static assay_status set_keys(item *it, assay_rng *rng, assay_case *one, length_specs *lengths, assay_error *error) {
  double extra[EXTRAS] = {-1, -1, -1};
  for (int32_t i = 0; i < it->count; ++i) {
    const case_key *key = &it->key[i];
    if (!spec_given(&it->spec[i]) || key->kind > KEY_ENUM) continue;
    const double value = value_of(it, i, dim_of(one, "block_size"), rng);
    int32_t e = 0;
    while (e < EXTRAS && strcmp(extra_keys[e].name, key->name) != 0)
      ++e;
    if (e < EXTRAS)
      extra[e] = value;
    else
      key_set(one, key, value);
  }
  if (!is_given(it, "values") && one->tier == TIER_EXACT) one->values = ASSAY_LATTICE;
  lengths->batch = (int32_t)extra[EXTRA_BATCH];
  assay_status status = ASSAY_OK;
  if (extra[EXTRA_G] > 0)
    status = set_derived(it, one, "H", (int64_t)extra[EXTRA_G] * dim_of(one, "H_kv"), spec_of(it, "G"), error);
  if (status == ASSAY_OK && extra[EXTRA_SPARSE] >= 0)
    status = set_derived(it, one, "sparse_block", (int64_t)extra[EXTRA_SPARSE] * dim_of(one, "block_size"),
                         spec_of(it, "sparse_blocks"), error);
  return status;
}

static double axis_value(item *it, const char *name) {
  const spec *s = spec_of(it, name);
  return spec_given(s) && s->kind == SPEC_AXIS ? s->value[it->position[s - it->spec]] : 0;
}

static assay_status make_case(item *it, int64_t index, assay_case *one, assay_error *error) {
  assay_rng rng = {.seed = it->owner->seed, .stream = (uint64_t)index};
  assay_error inner = {""};
  case_init(one, it->op);
  memcpy(one->suite, it->owner->name, sizeof one->suite);
  memcpy(one->name, it->name, sizeof one->name);
  memcpy(one->expect, it->expect, sizeof one->expect);
  one->section = it->section;
  one->devices = it->devices;
  one->seed = assay_rng_u64(&rng);
  if (it->seeded) one->seed = it->seed;
  length_specs lengths = {.batch = 1};
  if (it->op->form == ASSAY_PAGED)
    lengths = (length_specs){.kv_len = spec_of(it, "kv_len"),
                             .new_len = spec_of(it, "new"),
                             .share = spec_of(it, "share"),
                             .kv_len_key = &it->key[spec_of(it, "kv_len") - it->spec],
                             .axis_kv_len = axis_value(it, "kv_len"),
                             .axis_new = axis_value(it, "new")};
  assay_status status = set_keys(it, &rng, one, &lengths, error);
  if (status == ASSAY_OK && it->op->form == ASSAY_PLAIN) status = case_plain_lists(one, error);
  if (status == ASSAY_OK && it->op->form == ASSAY_PAGED)
    status = lengths_draw(&lengths, &it->owner->traces, &rng, one, error);
  if (status != ASSAY_OK) return status;
  case_imply_expect(one);
  status = case_check(one, &inner);
  return status == ASSAY_OK ? ASSAY_OK : yaml_fail_with(it->map, &inner, status, error);
}

/* ---- the product ------------------------------------------------------------------------------------------ */

/* Returns the first stream of an item with own_draws: beyond all indices, by operator, section and name. */
static int64_t own_stream(const item *it) {
  const char *const words[] = {it->op->name, it->name};
  uint64_t hash = 0xCBF29CE484222325u + (uint64_t)it->section;
  for (size_t w = 0; w < sizeof words / sizeof words[0]; ++w)
    for (const char *at = words[w]; *at != '\0'; ++at)
      hash = (hash ^ (unsigned char)*at) * 0x100000001B3u;
  return (int64_t)((hash & 0x3FFFFFFFu) << 32 | 0x4000000000000000u);
}

/* Tells whether a thinned run has this draw of the item: whether `thin` divides the sum of the digits of its index,
 * base `thin`. One of each `thin` draws in a row stays, and its place among them changes, so that axes stay mixed. */
static bool stays(const item *it) {
  int64_t sum = 0;
  for (int64_t rest = it->thin > 1 ? it->drawn : 0; rest > 0; rest /= it->thin)
    sum += rest % it->thin;
  return sum % it->thin == 0;
}

static assay_status append(item *it, assay_error *error) {
  suite *s = it->owner;
  case_list *list = s->list;
  if (list->count >= EXPAND_MAX_CASES)
    return yaml_fail(it->map, error, "found more than %d cases in all", EXPAND_MAX_CASES);
  if (list->count >= s->room) {
    const int64_t room = list->count * 2 > 256 ? list->count * 2 : 256;
    assay_case *bigger = realloc(list->cases, (size_t)room * sizeof *bigger);
    if (bigger == NULL) return assay_fail(error, ASSAY_ERR_MEMORY, "out of memory for %" PRId64 " cases", room);
    list->cases = bigger;
    s->room = room;
  }
  assay_case *one = &list->cases[list->count];
  const assay_status status = make_case(it, it->own_draws ? own_stream(it) + it->drawn : s->next, one, error);
  if (status != ASSAY_OK) {
    case_free(one);
    return status;
  }
  one->thinned = !stays(it);
  one->whole = it->whole;
  memcpy(one->night, it->night, sizeof one->night);
  ++it->drawn;
  if (!it->own_draws) ++s->next;
  ++list->count;
  return ASSAY_OK;
}

/* Moves to the next combination of the axes, the last key fastest. Returns false after the last combination. */
static bool advance(item *it) {
  for (int32_t i = it->count - 1; i >= 0; --i) {
    if (!spec_given(&it->spec[i]) || it->spec[i].kind != SPEC_AXIS) continue;
    if (++it->position[i] < it->spec[i].count) return true;
    it->position[i] = 0;
  }
  return false;
}

assay_status item_expand(suite *s, const assay_op *op, case_section section, yaml_node map, assay_error *error) {
  item *it = calloc(1, sizeof *it);
  if (it == NULL) return assay_fail(error, ASSAY_ERR_MEMORY, "item: out of memory");
  it->owner = s;
  it->op = op;
  it->section = section;
  it->map = map;
  it->cases = 1;
  it->thin = 1;
  it->devices = CASE_ON_ANY;
  assay_status status = read_item(it, error);
  if (status != ASSAY_OK) goto done;
  do {
    for (int64_t i = 0; i < it->cases && status == ASSAY_OK; ++i)
      status = append(it, error);
  } while (status == ASSAY_OK && advance(it));
done:
  for (int32_t i = 0; i < it->count; ++i)
    spec_free(&it->spec[i]);
  free(it);
  return status;
}
