/* space.c: axes and their boundary values, from the operator's tables and the table of keys; and the case of a
 * choice. */
#include "space.h"

#include <inttypes.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

#include "conformance/generate/generate.h"
#include "conformance/trial/trial.h"
#include "conformance/case/case.h"

/* ---- values worth trying ----------------------------------------------------------------------------- */

static void add_value(fuzz_axis *a, double value) {
  for (int32_t i = 0; i < a->count; ++i)
    if (!(a->value[i] < value) && !(a->value[i] > value)) return;
  if (a->count < FUZZ_MAX_VALUES) a->value[a->count++] = value;
}

static void add_in_range(fuzz_axis *a, double value) {
  const case_key *key = &a->key;
  if (value < key->min || value > key->max) return;
  if (key->kind == KEY_INTEGER && (int64_t)value % key->multiple != 0) return;
  add_value(a, value);
}

/* Lists both ends and their neighbours and the fallback. A short range is listed whole. Other ranges add powers of two
 * and, where the range is small, the numbers around them. */
static void integer_values(fuzz_axis *a) {
  const case_key *key = &a->key;
  const double step = (double)key->multiple;
  const double ends[] = {key->min, key->min + step, key->max, key->max - step, key->fallback};
  for (size_t i = 0; i < sizeof ends / sizeof ends[0]; ++i)
    add_in_range(a, ends[i]);
  if ((key->max - key->min) / step < 12) {
    for (double v = key->min; v <= key->max; v += step)
      add_in_range(a, v);
    return;
  }
  static const double some[] = {0, 1, -1, 2, 3, 4, 8, 16, 32, 64, 128, 256, 7, 15, 17, 24, 255, 257};
  for (size_t i = 0; i < sizeof some / sizeof some[0]; ++i)
    add_in_range(a, some[i]);
  static const double multiples[] = {2, 3, 5};
  for (size_t i = 0; key->multiple > 1 && i < sizeof multiples / sizeof multiples[0]; ++i)
    add_in_range(a, multiples[i] * step);
}

/* Adds larger sizes that a small case can have, where a case consists of sizes only. */
static void size_values(fuzz_axis *a) {
  static const double some[] = {5,    31,   33,   63,   65,   129,  1024, 1025,  4096,  511,   512,  513,
                                2047, 2048, 2049, 4097, 5120, 7168, 8192, 12288, 65535, 65536, 65537};
  for (size_t i = 0; i < sizeof some / sizeof some[0]; ++i)
    add_in_range(a, some[i]);
}

static void real_values(fuzz_axis *a) {
  static const double some[] = {0, 1, 0.5, 0.25, 0.125, 0.0625, 0.75, 1.5, 2, 30, -0.0625};
  add_in_range(a, a->key.min);
  add_in_range(a, a->key.max);
  add_in_range(a, a->key.fallback);
  for (size_t i = 0; i < sizeof some / sizeof some[0]; ++i)
    add_in_range(a, some[i]);
}

static void enum_values(fuzz_axis *a) {
  int32_t count = a->key.names[0] != '\0';
  for (const char *at = a->key.names; *at != '\0'; ++at)
    count += *at == ',';
  for (int32_t i = (int32_t)a->key.min; i < count; ++i)
    add_value(a, i);
}

/* Tells whether the operator can have the value. A key may have values that the operator cannot. */
static bool has_value(const assay_op *op, const case_key *key, double value) {
  return !(op->inexact && strcmp(key->name, "tier") == 0 && (int32_t)value == TIER_EXACT);
}

static void keep_possible(const assay_op *op, fuzz_axis *a) {
  int32_t kept = 0;
  for (int32_t i = 0; i < a->count; ++i)
    if (has_value(op, &a->key, a->value[i])) a->value[kept++] = a->value[i];
  a->count = kept;
}

/* Tells whether the key belongs to the place in a suite, or to the way of judging, and not to the case. */
static bool is_no_axis(const case_key *key) {
  static const char *const names[] = {"section", "break", "argument", "rows"};
  for (size_t i = 0; i < sizeof names / sizeof names[0]; ++i)
    if (strcmp(key->name, names[i]) == 0) return true;
  return key->kind > KEY_ENUM;
}

static void length_values(fuzz_axis *a, bool large, const int32_t *splits, int32_t split_count) {
  static const int32_t tiles[] = {128, 64, 32}, longer[] = {255, 257, 450};
  for (int32_t v = 0; v <= 2; ++v)
    add_value(a, v);
  for (int32_t n = 1; n <= 2; ++n)
    for (int32_t r = -1; r <= 1; ++r)
      add_value(a, length_in_blocks(n, r));
  for (int32_t i = 0; i < split_count; ++i) {
    for (int32_t r = -1; r <= 1; ++r)
      add_value(a, splits[i] + r);
    add_value(a, 2 * splits[i] + 1);
  }
  for (size_t i = 0; i < sizeof tiles / sizeof tiles[0]; ++i)
    for (int32_t r = -1; r <= 1; ++r)
      add_value(a, tiles[i] + r);
  for (size_t i = 0; i < sizeof longer / sizeof longer[0]; ++i)
    add_value(a, longer[i]);
  if (large) add_value(a, 1000);
}

static int32_t dim_index(const assay_op *op, const char *name) {
  for (int32_t i = 0; i < op->dim_count; ++i)
    if (strcmp(op->dims[i].name, name) == 0) return i;
  return -1;
}

/* Elements between rows from which on a case is asked the law `far`. */
enum { FAR_PAD = 4096 };
enum { LONGER = 300 }; /* keys of a request, in cases of a larger effort */

static fuzz_axis *new_axis(fuzz_space *s, const char *name, axis_kind kind) {
  fuzz_axis *a = &s->axis[s->axes++];
  *a = (fuzz_axis){.name = name, .name_length = strlen(name), .kind = kind};
  return a;
}

assay_status space_make(const assay_op *op, bool large, const int32_t *splits, int32_t split_count, fuzz_space *space,
                        assay_error *error) {
  static const double batches[] = {1, 2, 3, 4, 8, 33, FUZZ_MAX_BATCH};
  fuzz_space *s = space;
  *s = (fuzz_space){.op = op,
                    .large = large,
                    .plain = op->form == ASSAY_PLAIN,
                    .typical = large ? 400 : 40,
                    .batch = -1,
                    .kv_len = -1,
                    .fresh = -1,
                    .share = -1};
  case_init(&s->base, op);
  (void)snprintf(s->base.suite, sizeof s->base.suite, "fuzz");
  const int32_t count = key_count(op);
  if (count + 4 > FUZZ_MAX_AXES)
    return assay_fail(error, ASSAY_ERR_INTERNAL, "fuzz: %s has %d keys, allowed %d", op->name, count,
                      FUZZ_MAX_AXES - 4);
  for (int32_t i = 0; i < count; ++i) {
    const case_key key = key_at(op, i);
    if (is_no_axis(&key)) continue;
    fuzz_axis *a = new_axis(s, key.name, AXIS_KEY);
    a->key = key;
    if (key.kind == KEY_BOOL)
      add_value(a, 0), add_value(a, 1);
    else if (key.kind == KEY_ENUM)
      enum_values(a);
    else if (key.kind == KEY_INTEGER)
      integer_values(a);
    else
      real_values(a);
    if (s->plain && key.store == STORE_DIM && a->count > 12) size_values(a);
    if (strstr(key.name, "_pad") != NULL) add_in_range(a, FAR_PAD);
    keep_possible(op, a);
  }
  s->dim_H = dim_index(op, "H");
  s->dim_H_kv = dim_index(op, "H_kv");
  s->dim_D = dim_index(op, "D");
  s->dim_block = dim_index(op, "block_size");
  s->dim_F = dim_index(op, "F");
  if (s->plain) return ASSAY_OK;
  s->batch = s->axes;
  s->kv_len = s->axes + 1;
  s->fresh = s->axes + 2;
  s->share = s->axes + 3;
  fuzz_axis *batch = new_axis(s, "batch", AXIS_BATCH);
  for (size_t i = 0; i < sizeof batches / sizeof batches[0]; ++i)
    add_value(batch, batches[i]);
  length_values(new_axis(s, "kv_len", AXIS_LENGTH), large, splits, split_count);
  fuzz_axis *fresh = new_axis(s, "new", AXIS_NEW), *share = new_axis(s, "share", AXIS_SHARE);
  for (int32_t i = 0; i < NEW_CHOICES; ++i)
    add_value(fresh, i);
  add_value(share, 0), add_value(share, 1);
  return ASSAY_OK;
}

int32_t space_axis(const fuzz_space *s, const char *name, size_t length) {
  for (int32_t i = 0; i < s->axes; ++i)
    if (s->axis[i].name_length == length && memcmp(s->axis[i].name, name, length) == 0) return i;
  return -1;
}

void space_print_value(const fuzz_space *s, int32_t axis, int32_t value, char *text, size_t size) {
  static const char *const new_names[NEW_CHOICES] = {"implied", "1", "all", "half", "block", "0"};
  const fuzz_axis *a = &s->axis[axis];
  const double v = a->value[value];
  if (a->kind == AXIS_NEW) {
    (void)snprintf(text, size, "%s", new_names[(int32_t)v]);
  } else if (a->kind == AXIS_LENGTH && v >= LENGTH_BLOCKS - 1) {
    const int32_t n = ((int32_t)v - LENGTH_BLOCKS + 1) / 4, r = (int32_t)v - LENGTH_BLOCKS - 4 * n;
    (void)snprintf(text, size, "%d*block%+d", n, r);
  } else if (a->kind == AXIS_KEY && a->key.kind == KEY_BOOL) {
    (void)snprintf(text, size, "%s", v > 0 ? "true" : "false");
  } else if (a->kind == AXIS_KEY && a->key.kind == KEY_ENUM) {
    const char *name = key_name_of(&a->key, (int64_t)v);
    (void)snprintf(text, size, "%s", name != NULL ? name : "?");
  } else {
    key_print_real(v, text, size);
  }
}

/* ---- values asked for -------------------------------------------------------------------------------- */

static void list_axes(const fuzz_space *s, char *text, size_t size) {
  size_t at = 0;
  text[0] = '\0';
  for (int32_t i = 0; i < s->axes && at < size; ++i)
    at += (size_t)snprintf(text + at, size - at, "%s%s", i > 0 ? ", " : "", s->axis[i].name);
}

/* The axes of requests: their number, lengths, new tokens and sharing, as the end of a campaign prints them. The first
 * two also take numbers. */
static assay_status value_by_name(const fuzz_space *s, int32_t axis, const char *text, double *value,
                                  assay_error *error) {
  const fuzz_axis *a = &s->axis[axis];
  char name[64], allowed[512] = "";
  size_t at = 0;
  for (int32_t i = 0; i < a->count; ++i) {
    space_print_value(s, axis, i, name, sizeof name);
    *value = a->value[i];
    if (strcmp(name, text) == 0) return ASSAY_OK;
    if (at < sizeof allowed) at += (size_t)snprintf(allowed + at, sizeof allowed - at, "%s%s", i > 0 ? ", " : "", name);
  }
  if (a->kind != AXIS_BATCH && a->kind != AXIS_LENGTH)
    return assay_fail(error, ASSAY_ERR_INPUT, "%s: found '%.40s', allowed %s", a->name, text, allowed);
  const int32_t least = a->kind == AXIS_BATCH ? 1 : 0, most = a->kind == AXIS_BATCH ? FUZZ_MAX_BATCH : KEY_MAX_LENGTH;
  char *end = NULL;
  *value = strtod(text, &end);
  if (end != text && *end == '\0' && *value >= least && *value <= most && floor(*value) == *value) return ASSAY_OK;
  return assay_fail(error, ASSAY_ERR_INPUT, "%s: found '%.40s', allowed an integer from %d to %d, or one of %s",
                    a->name, text, least, most, allowed);
}

assay_status space_narrow(fuzz_space *s, const char *const *where, int32_t wheres, assay_error *error) {
  double kept[FUZZ_MAX_AXES][FUZZ_MAX_VALUES];
  int32_t count[FUZZ_MAX_AXES] = {0};
  assay_error why = {""};
  for (int32_t i = 0; i < wheres; ++i) {
    const size_t n = strcspn(where[i], "=");
    const int32_t axis = space_axis(s, where[i], n);
    double value = 0;
    if (where[i][n] != '=' || axis < 0) {
      char known[1024];
      list_axes(s, known, sizeof known);
      return assay_fail(error, ASSAY_ERR_INPUT, "--where: %s: found '%.60s', allowed key=value, key one of %s",
                        s->op->name, where[i], known);
    }
    const fuzz_axis *a = &s->axis[axis];
    const char *text = where[i] + n + 1;
    assay_status status = a->kind == AXIS_KEY ? key_from_text(&a->key, text, false, &value, &why)
                                              : value_by_name(s, axis, text, &value, &why);
    if (status == ASSAY_OK && a->kind == AXIS_KEY && !has_value(s->op, &a->key, value))
      status = assay_fail(&why, ASSAY_ERR_INPUT, "%s: found '%.40s', which this operator does not have", a->name, text);
    if (status == ASSAY_OK && count[axis] == FUZZ_MAX_VALUES)
      status = assay_fail(&why, ASSAY_ERR_INPUT, "%s: given more than %d times", a->name, FUZZ_MAX_VALUES);
    if (status != ASSAY_OK) return assay_fail(error, status, "--where: %s: %s", s->op->name, why.text);
    kept[axis][count[axis]++] = value;
  }
  for (int32_t i = 0; i < s->axes; ++i) {
    fuzz_axis *a = &s->axis[i];
    if (count[i] == 0) continue;
    a->count = 0;
    a->narrowed = true;
    for (int32_t v = 0; v < count[i]; ++v)
      add_value(a, kept[i][v]);
  }
  return ASSAY_OK;
}

/* ---- requests ---------------------------------------------------------------------------------------- */

static int32_t length_of(double value, int64_t block_size) {
  if (value < LENGTH_BLOCKS - 1) return (int32_t)value;
  const int32_t n = ((int32_t)value - LENGTH_BLOCKS + 1) / 4, r = (int32_t)value - LENGTH_BLOCKS - 4 * n;
  return (int32_t)(n * block_size) + r;
}

/* Returns T of a request that no axis sets. */
static int32_t other_new(const assay_case *one, int32_t L, assay_rng *rng) {
  if (one->mode == MODE_DECODE) return 1;
  if (one->mode == MODE_PREFILL) return L;
  if (one->mode == MODE_CHUNKED) return (int32_t)assay_rng_range(rng, 1, L);
  const int64_t kind = assay_rng_range(rng, 0, 3);
  if (L == 0) return kind & 1;
  return kind == 0 ? 1 : kind == 1 ? L : kind == 2 ? (int32_t)assay_rng_range(rng, 1, L) : 0;
}

static int32_t chosen_new(const assay_case *one, new_choice choice, int32_t L, int64_t block_size) {
  switch (choice) {
  case NEW_IMPLIED:
    return one->mode == MODE_DECODE ? 1 : L;
  case NEW_ONE:
    return 1;
  case NEW_ALL:
    return L;
  case NEW_HALF:
    return (L + 1) / 2;
  case NEW_BLOCK:
    return L < block_size ? L : (int32_t)block_size;
  case NEW_NONE:
  case NEW_CHOICES:
    break;
  }
  return 0;
}

/* Lets half of the requests that can share a prefix of whole blocks with an earlier one do so. */
static bool draw_share(assay_case *one, int64_t block_size, assay_rng *rng) {
  bool any = false;
  for (int32_t i = 1; i < one->batch; ++i) {
    const int32_t j = (int32_t)assay_rng_range(rng, 0, i - 1), most = case_shareable(one, i, j);
    if (most < block_size || (any && assay_rng_range(rng, 0, 1) == 0)) continue;
    one->share_with[i] = j;
    one->share_tokens[i] = (int32_t)(assay_rng_range(rng, 1, most / block_size) * block_size);
    any = true;
  }
  return any;
}

static int64_t dim_or(const assay_case *one, int32_t index, int64_t absent) {
  return index >= 0 ? one->dim[index] : absent;
}

/* Draws the requests. `value` [axes] holds the chosen values. Few requests of a larger effort may all be long. */
static assay_status draw_requests(const fuzz_space *s, const double *value, int32_t effort, assay_rng *rng,
                                  fuzz_draw *drawn, assay_error *error) {
  assay_case *one = &drawn->one;
  const int64_t block_size = dim_or(one, s->dim_block, 16);
  const new_choice fresh = (new_choice)(int32_t)value[s->fresh];
  const bool share = value[s->share] > 0;
  one->batch = (int32_t)value[s->batch];
  one->kv_len = drawn->lists[0];
  one->new_len = drawn->lists[1];
  one->share_with = drawn->lists[2];
  one->share_tokens = drawn->lists[3];
  const int32_t chosen = (int32_t)assay_rng_range(rng, 0, one->batch - 1);
  const int32_t typical = effort >= 2 && one->batch <= 4 && s->typical < LONGER ? LONGER : s->typical;
  int32_t most = one->mode == MODE_DECODE ? typical : typical / 2;
  const int32_t own = length_of(value[s->kv_len], block_size);
  if (assay_rng_range(rng, 0, 3) == 0 && own < most) most = own > 0 ? own : 1; /* no request is longer */
  for (int32_t i = 0; i < one->batch; ++i) {
    int32_t L = own;
    const bool edge = assay_rng_range(rng, 0, 3) == 0;
    const int64_t anywhere = assay_rng_range(rng, one->mode == MODE_CHUNKED ? 1 : 0, most);
    if (i != chosen) L = (int32_t)(edge && block_size <= most ? anywhere / block_size * block_size : anywhere);
    if (i != chosen && one->mode == MODE_CHUNKED && L < 1) L = 1;
    one->kv_len[i] = L;
    one->new_len[i] = i == chosen ? chosen_new(one, fresh, L, block_size) : other_new(one, L, rng);
    one->share_with[i] = -1;
    one->share_tokens[i] = 0;
  }
  const bool implied = one->mode == MODE_DECODE || one->mode == MODE_PREFILL;
  if (implied != (fresh == NEW_IMPLIED))
    return assay_fail(error, ASSAY_ERR_INPUT, "new: implied in mode decode and prefill, and only there");
  if (share && !draw_share(one, block_size, rng))
    return assay_fail(error, ASSAY_ERR_INPUT, "share: nobody can; see kv_len, batch, block_size");
  return ASSAY_OK;
}

/* Makes the lists of case_plain_lists in the draw. */
static void draw_no_requests(fuzz_draw *drawn) {
  assay_case *one = &drawn->one;
  one->batch = 1;
  one->mode = MODE_PREFILL;
  one->kv_len = drawn->lists[0];
  one->new_len = drawn->lists[1];
  one->share_with = drawn->lists[2];
  one->share_tokens = drawn->lists[3];
  one->kv_len[0] = one->new_len[0] = 1;
  one->share_with[0] = -1;
  one->share_tokens[0] = 0;
}

/* ---- the case ---------------------------------------------------------------------------------------- */

/* Refuses a case whose run costs too much, roughly: products of q·k and p·v, and threads; elements generated and
 * copied. */
static assay_status check_size(const fuzz_space *s, int32_t effort, const assay_case *one, assay_error *error) {
  static const double work_limit[2][FUZZ_EFFORTS] = {{1 << 17, 1 << 19, 1 << 22, 1 << 24},
                                                     {1 << 20, 1 << 22, 1 << 24, 1 << 24}};
  static const double element_limit[2][FUZZ_EFFORTS] = {{1 << 17, 1 << 20, 1 << 23, 1 << 23},
                                                        {1 << 18, 1 << 21, 1 << 24, 1 << 24}};
  const double H = (double)dim_or(one, s->dim_H, 1), H_kv = (double)dim_or(one, s->dim_H_kv, 1);
  const double D = (double)dim_or(one, s->dim_D, 1), block = (double)dim_or(one, s->dim_block, 1);
  double work = 0, blocks = 3, rows = 0;
  for (int32_t i = 0; i < one->batch; ++i) {
    const double L = one->kv_len[i], T = one->new_len[i];
    work += T * H * (L * D + 2048);
    blocks += ceil(L / block);
    rows += T;
  }
  double elements = 0; /* elements of tables and weights */
  for (int32_t i = 0; i < s->op->arg_count; ++i)
    if (s->op->args[i].content == ASSAY_VALUES) elements += shape_arg_elements(one, i);
  const double pad = one->kv_pad > 0 ? 3 * (double)one->kv_pad : 0;
  const double given = (double)dim_or(one, dim_index(s->op, "D_v"), 0), D_v = given > 0 ? given : D;
  elements += blocks * (block * H_kv * (D + D_v) + pad) + rows * (H * (D + D_v) + (double)one->q_pad);
  if (work <= work_limit[s->large][effort] && elements <= element_limit[s->large][effort]) return ASSAY_OK;
  return assay_fail(error, ASSAY_ERR_INPUT, "size: found %.3g products and %.3g elements", work, elements);
}

/* Does the same where dimensions are the only sizes: all elements are moved. */
static assay_status check_plain_size(const fuzz_space *s, int32_t effort, const assay_case *one, assay_error *error) {
  static const double limit[2][FUZZ_EFFORTS] = {{1 << 13, 1 << 15, 1 << 18, 1 << 20},
                                                {1 << 14, 1 << 19, 1 << 22, 1 << 22}};
  const double elements = shape_case_elements(one);
  if (elements <= limit[s->large][effort]) return ASSAY_OK;
  return assay_fail(error, ASSAY_ERR_INPUT, "size: found %.3g elements", elements);
}

bool space_fits(const fuzz_space *s, const assay_case *one) {
  assay_error error = {""};
  return (s->plain ? check_plain_size(s, 2, one, &error) : check_size(s, 2, one, &error)) == ASSAY_OK;
}

/* Refuses a plain call on simt whose rows may see too many keys: blocks of their table times entries of a block. The
 * lengths are not drawn yet, so that the operator's own cost has none. A key takes a kernel about 5 ms of a core. */
static assay_status check_keys(const fuzz_space *s, const trial *t, assay_error *error) {
  static const double most = 4096;
  const int32_t blocks = dim_index(s->op, "W"), entries = dim_index(s->op, "S");
  if (s->large || blocks < 0 || entries < 0) return ASSAY_OK;
  const double keys = (double)t->first.rows * (double)dim_or(t->one, blocks, 1) * (double)dim_or(t->one, entries, 1);
  return keys <= most ? ASSAY_OK : assay_fail(error, ASSAY_ERR_INPUT, "size: found %.3g keys of all rows", keys);
}

static assay_status check_work(const fuzz_space *s, int32_t effort, const trial *t, assay_error *error) {
  static const double limit[2][FUZZ_EFFORTS] = {{1 << 16, 1 << 18, 1 << 20, 1 << 26},
                                                {1 << 17, 1 << 24, 1 << 28, 1 << 28}};
  enum { ROW = 1024 }; /* cost of a row, or of a request without rows: its threads, and their waits */
  const assay_seen nothing = {.visible_keys = 0};
  if (!s->plain || s->op->cost == NULL) return ASSAY_OK;
  if (check_keys(s, t, error) != ASSAY_OK) return ASSAY_ERR_INPUT;
  const double requests = (double)dim_or(t->one, dim_index(s->op, "B"), 0);
  const double work = s->op->cost(&t->first.call, &nothing).flops + ROW * fmax((double)t->first.rows, requests);
  if (work <= limit[s->large][effort]) return ASSAY_OK;
  return assay_fail(error, ASSAY_ERR_INPUT, "size: found %.3g operations", work);
}

/* Returns roughly the time of check_call and of a core when the case is judged. Measured on one core of an AMD EPYC: 40
 * ns per element that is drawn and stored, 8 ns per operation of the reference. `run_ms` receives roughly the time of
 * the judge alone, with the reference and the runs on simt. */
static double question_ms(const fuzz_space *s, const trial *t, double *run_ms) {
  static const double CASE_MS = 2, RUN_MS = 20e-6;
  static const double ELEMENT_MS = 40e-6, OPERATION_MS = 8e-6;
  enum { WORKERS = 16, RUNS = 3 };
  const assay_case *one = t->one;
  const assay_seen nothing = {.visible_keys = 0};
  const double rows = t->first.rows > 1 ? (double)t->first.rows : 1, elements = (double)t->first.arena_bytes / 2;
  double work = 0;
  if (s->plain && s->op->cost != NULL) work = s->op->cost(&t->first.call, &nothing).flops;
  for (int32_t i = 0; i < one->batch && !s->plain; ++i)
    work += 4.0 * one->new_len[i] * one->kv_len[i] * (double)(dim_or(one, s->dim_H, 1) * dim_or(one, s->dim_D, 1));
  const double own = elements * ELEMENT_MS + (one->tier == TIER_EXACT ? work : work / rows) * OPERATION_MS;
  *run_ms = CASE_MS + RUNS * elements * ELEMENT_MS + work * RUN_MS;
  return own + (RUNS * elements * ELEMENT_MS + work * OPERATION_MS) / WORKERS;
}

/* Refuses a case that the operator itself refuses: sizes that do not fit together. Where contents may be wrong (slots,
 * ids, positions), the reference is asked as well, and also whether the case is on the lattice. */
static assay_status check_call(const fuzz_space *s, int32_t effort, fuzz_draw *drawn, assay_error *error) {
  const assay_case *one = &drawn->one;
  static const assay_variant anybody = {.name = "anybody"};
  assay_case some = *one; /* shares its lists */
  trial t = {.one = &some, .variant = &anybody};
  case_result result = {.verdict = VERDICT_PASS};
  some.rows = one->tier == TIER_EXACT ? 0 : 1;
  assay_status status = trial_shape(&t, &result) ? ASSAY_OK : assay_fail(error, ASSAY_ERR_INPUT, "%s", result.message);
  if (status == ASSAY_OK) status = s->op->check(&t.first.call, error);
  if (status == ASSAY_OK) status = check_work(s, effort, &t, error);
  const bool asked = status == ASSAY_OK && (s->plain || logical_appends(s->op));
  if (status == ASSAY_OK) {
    const double question = question_ms(s, &t, &drawn->run_ms);
    if (asked) drawn->cost_ms += question;
  }
  if (asked && !trial_reference(&t, &result)) {
    static const char prefix[] = "the reference: ";
    const char *why = result.message;
    if (strncmp(why, prefix, sizeof prefix - 1) == 0) why += sizeof prefix - 1;
    status = assay_fail(error, ASSAY_ERR_INPUT, "%s", why);
  }
  trial_free(&t);
  return status == ASSAY_OK ? status : ASSAY_ERR_UNSUPPORTED;
}

/* Refuses values that leave no room for the sums of the exact tier: sixteenths below 2 do. The tier's proof is made
 * when the case runs. */
static assay_status check_dyadic(const fuzz_space *s, const double *value, assay_error *error) {
  for (int32_t i = 0; i < s->axes; ++i) {
    const fuzz_axis *a = &s->axis[i];
    if (a->kind != AXIS_KEY || a->key.kind != KEY_REAL) continue;
    const bool short_enough = fabs(value[i]) < 2 && floor(16 * value[i]) == 16 * value[i];
    const bool own = s->plain && !(value[i] < a->key.fallback) && !(value[i] > a->key.fallback);
    if (!short_enough && !own)
      return assay_fail(error, ASSAY_ERR_INPUT, "%s: found %g, allowed sixteenths below 2 in tier exact", a->name,
                        value[i]);
  }
  return ASSAY_OK;
}

assay_status space_case(const fuzz_space *s, assay_rng rng, int32_t effort, fuzz_draw *drawn, assay_error *error) {
  assay_case *one = &drawn->one;
  double value[FUZZ_MAX_AXES];
  *one = s->base;
  one->seed = assay_rng_u64(&rng);
  for (int32_t i = 0; i < s->axes; ++i) {
    const fuzz_axis *a = &s->axis[i];
    value[i] = a->value[drawn->choice[i]];
    if (a->kind == AXIS_KEY) key_set(one, &a->key, value[i]);
  }
  for (int32_t i = 0; i < s->axes; ++i) {
    const fuzz_axis *a = &s->axis[i];
    if (a->kind != AXIS_KEY) continue;
    const double kept = key_get(one, &a->key);
    if (kept < value[i] || kept > value[i])
      return assay_fail(error, ASSAY_ERR_INPUT, "%s: another key says otherwise", a->name);
  }
  assay_status status = ASSAY_OK;
  if (s->plain) {
    draw_no_requests(drawn);
    status = check_plain_size(s, effort, one, error);
  } else {
    status = draw_requests(s, value, effort, &rng, drawn, error);
    if (status == ASSAY_OK) status = check_size(s, effort, one, error);
  }
  if (status == ASSAY_OK && one->tier == TIER_EXACT) {
    status = check_dyadic(s, value, error);
    /* Taps are sigma / F: the axis gives them, so that they are sixteenths whatever F is. */
    if (s->dim_F >= 0) one->sigma = floor(4 * one->sigma) / 4 / 2 * (double)one->dim[s->dim_F];
  }
  /* Tier 2 is about real values: on the lattice equal terms round the same way again and again. */
  if (status == ASSAY_OK && one->tier == TIER_CALIBRATED && one->values == ASSAY_LATTICE)
    status = assay_fail(error, ASSAY_ERR_INPUT, "values: found lattice, allowed in tier exact only");
  if (status == ASSAY_OK) status = case_check(one, error);
  return status == ASSAY_OK ? check_call(s, effort, drawn, error) : status;
}
