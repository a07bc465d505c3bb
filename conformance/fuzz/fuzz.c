/* fuzz.c: keeps what was covered, and chooses the goal of the next draw. */
#include "fuzz.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>

#include "core/registry.h"
#include "fuzz_internal.h"

/* Draws are made one after the other. The core time that a draw takes bounds a campaign of many workers. */
static const double DRAW_MS = 0.8;

enum { FEW = 32 }; /* draws that a variant took: until then little is changed in one */

/* Purposes of draws, which take turns. A turn that finds nothing to do is one of pairs. Values and claims that were not
 * drawn come before pairs. */
typedef enum turn { TURN_PAIR, TURN_PLAIN, TURN_RANDOM, TURN_WELCOME, TURN_REFUSAL } turn;
static const turn turns[] = {TURN_PLAIN, TURN_WELCOME, TURN_RANDOM,  TURN_REFUSAL,
                             TURN_PAIR,  TURN_WELCOME, TURN_WELCOME, TURN_REFUSAL};
enum { TURNS = sizeof turns / sizeof turns[0] };

/* ---- making ------------------------------------------------------------------------------------------ */

static bool number_pairs(fuzz *f) {
  const fuzz_space *s = &f->space;
  for (int32_t a = 0; a < s->axes; ++a)
    for (int32_t b = a + 1; b < s->axes; ++b) {
      f->base[a][b] = f->pairs;
      f->block_axes[f->blocks++] = a << 8 | b;
      f->pairs += s->axis[a].count * s->axis[b].count;
    }
  f->pair = calloc((size_t)f->pairs + 1, sizeof *f->pair);
  return f->pair != NULL;
}

/* Returns the index of the value that has this name, or -1. */
static int32_t value_named(const fuzz_space *s, int32_t axis, const char *name, size_t length) {
  char text[64];
  for (int32_t i = 0; axis >= 0 && i < s->axis[axis].count; ++i) {
    space_print_value(s, axis, i, text, sizeof text);
    if (strlen(text) == length && strncmp(text, name, length) == 0) return i;
  }
  return -1;
}

static void add_claim(fuzz *f, fuzz_taker *taker, const uint8_t *value) {
  int32_t i = 0;
  while (i < f->claims && memcmp(f->claim[i].value, value, FUZZ_CLAIM_AXES) != 0)
    ++i;
  if (i == FUZZ_MAX_CLAIMS) return;
  if (i == f->claims) {
    memcpy(f->claim[i].value, value, FUZZ_CLAIM_AXES);
    f->claim[f->claims++].tried = false;
  }
  if (taker->claims < FUZZ_MAX_CLAIMS) taker->claim[taker->claims++] = (int16_t)i;
}

/* Adds the product of a claim's lists, axis by axis. */
static void read_claims(fuzz *f, fuzz_taker *taker, const char *rest, int32_t axis, uint8_t *value) {
  if (axis == f->claim_axes) {
    add_claim(f, taker, value);
    return;
  }
  const size_t end = strcspn(rest, "|");
  for (size_t at = 0; at < end;) {
    const size_t n = strcspn(rest + at, ",|");
    const int32_t found = value_named(&f->space, f->claim_axis[axis], rest + at, n);
    if (found >= 0) {
      value[axis] = (uint8_t)found;
      read_claims(f, taker, rest[end] == '|' ? rest + end + 1 : rest + end, axis + 1, value);
    }
    at += n + 1;
  }
}

static bool is_chosen(const fuzz_choice *choice, const assay_variant *v) {
  return choice->variant == NULL || choice->variant(choice->context, v);
}

assay_status fuzz_make(const assay_op *op, const char *device, uint64_t seed, const fuzz_choice *choice, fuzz **fuzzer,
                       assay_error *error) {
  int32_t splits[3], split_count = 0;
  fuzz *f = calloc(1, sizeof *f);
  *fuzzer = f;
  if (f != NULL) f->taker = calloc(FUZZ_MAX_TAKERS, sizeof *f->taker);
  if (f == NULL || f->taker == NULL) {
    fuzz_free(f);
    *fuzzer = NULL;
    return assay_fail(error, ASSAY_ERR_MEMORY, "fuzz: out of memory");
  }
  f->seed = seed;
  for (int32_t i = 0; i < assay_variant_count(); ++i) {
    const assay_variant *v = assay_variant_at(i);
    if (strcmp(v->op, op->name) != 0 || strcmp(v->device, device) != 0 || !is_chosen(choice, v)) continue;
    const int32_t keys = v->contract.keys_per_split;
    bool known = keys < 2 || keys > 1 << 16;
    for (int32_t k = 0; k < split_count; ++k)
      known = known || splits[k] == keys;
    if (!known && split_count < 3) splits[split_count++] = keys;
  }
  assay_status status = space_make(op, strcmp(device, "simt") != 0, splits, split_count, &f->space, error);
  if (status == ASSAY_OK) status = space_narrow(&f->space, choice->where, choice->wheres, error);
  if (status == ASSAY_OK && !number_pairs(f)) status = assay_fail(error, ASSAY_ERR_MEMORY, "fuzz: out of memory");
  char axis[32];
  while (f->claim_axes < FUZZ_CLAIM_AXES && case_axis_name(op, f->claim_axes, axis, sizeof axis))
    f->claim_axis[f->claim_axes++] = space_axis(&f->space, axis, strlen(axis));
  for (int32_t i = 0; i < assay_variant_count() && status == ASSAY_OK; ++i) {
    const assay_variant *v = assay_variant_at(i);
    uint8_t value[FUZZ_CLAIM_AXES] = {0};
    if (strcmp(v->op, op->name) != 0 || strcmp(v->device, device) != 0 || !is_chosen(choice, v)) continue;
    if (f->takers == FUZZ_MAX_TAKERS) break;
    fuzz_taker *taker = &f->taker[f->takers++];
    taker->variant = v;
    read_claims(f, taker, v->claims, 0, value);
    for (int32_t n = 0; n < taker->claims; ++n)
      for (int32_t k = 0; k < f->claim_axes; ++k)
        if (f->claim_axis[k] >= 0) taker->wanted[f->claim_axis[k]] |= (uint64_t)1 << f->claim[taker->claim[n]].value[k];
  }
  if (status == ASSAY_OK) return ASSAY_OK;
  fuzz_free(f);
  *fuzzer = NULL;
  return status;
}

void fuzz_free(fuzz *f) {
  if (f == NULL) return;
  free(f->pair);
  free(f->taker);
  free(f);
}

void fuzz_copy(const fuzz_draw *from, fuzz_draw *to) {
  *to = *from;
  to->one.kv_len = to->lists[0];
  to->one.new_len = to->lists[1];
  to->one.share_with = to->lists[2];
  to->one.share_tokens = to->lists[3];
}

bool fuzz_claimed(const assay_variant *variant, const assay_case *one) {
  const char *at = variant->claims;
  char name[32];
  for (int32_t axis = 0; case_axis_name(one->op, axis, name, sizeof name); ++axis) {
    const char *own = case_axis(one, name);
    const size_t end = strcspn(at, "|"), length = own != NULL ? strlen(own) : 0;
    bool found = own == NULL;
    for (size_t i = 0; i < end && !found;) {
      const size_t n = strcspn(at + i, ",|");
      found = n == length && strncmp(at + i, own, n) == 0;
      i += n + 1;
    }
    if (!found) return false;
    at += end + (at[end] == '|');
  }
  return true;
}

/* ---- goals ------------------------------------------------------------------------------------------- */

static void note_drawn(fuzz *f, const fuzz_draw *draw) {
  for (int32_t a = 0; a < f->space.axes; ++a) {
    fuzz_tally *value = &f->value[a][draw->choice[a]];
    ++value->drawn;
    value->impossible = false; /* the search for a value gave up too early */
    for (int32_t b = a + 1; b < f->space.axes; ++b) {
      fuzz_tally *pair = fuzz_pair(f, a, draw->choice[a], b, draw->choice[b]);
      ++pair->drawn;
      pair->impossible = false;
    }
  }
  ++f->draws;
}

/* Marks a value that no legal case has as impossible, and all its pairs. */
static void rule_out(fuzz *f, int32_t a, int32_t value) {
  f->value[a][value].impossible = true;
  for (int32_t b = 0; b < f->space.axes; ++b)
    for (int32_t y = 0; b != a && y < f->space.axis[b].count; ++y)
      fuzz_pair(f, a, value, b, y)->impossible = true;
}

static bool next_value(fuzz *f, fuzz_draw *drawn) {
  for (int32_t a = 0; a < f->space.axes; ++a)
    for (int32_t v = 0; v < f->space.axis[a].count; ++v) {
      if (f->value[a][v].drawn > 0 || f->value[a][v].impossible) continue;
      const fuzz_goal goal = {.fixed = 1, .axis = {a}, .value = {v}, .greedy = true};
      if (fuzz_reach(f, &goal, f->draws, drawn)) return true;
      rule_out(f, a, v);
    }
  f->values_done = true;
  return false;
}

static bool next_claim(fuzz *f, fuzz_draw *drawn) {
  for (int32_t i = 0; i < f->claims; ++i) {
    if (f->claim[i].tried) continue;
    f->claim[i].tried = true;
    fuzz_goal goal = {.greedy = true};
    for (int32_t k = 0; k < f->claim_axes; ++k)
      if (f->claim_axis[k] >= 0) {
        goal.axis[goal.fixed] = f->claim_axis[k];
        goal.value[goal.fixed++] = f->claim[i].value[k];
      }
    if (fuzz_reach(f, &goal, f->draws, drawn)) return true;
  }
  f->claims_done = true;
  return false;
}

/* Returns the axes and values of pair number `index` as a goal. */
static fuzz_goal goal_of_pair(const fuzz *f, int32_t index) {
  int32_t low = 0, high = f->blocks - 1;
  while (low < high) { /* the last block that begins at or before it */
    const int32_t middle = (low + high + 1) / 2, axes = f->block_axes[middle];
    if (f->base[axes >> 8][axes & 255] <= index)
      low = middle;
    else
      high = middle - 1;
  }
  const int32_t a = f->block_axes[low] >> 8, b = f->block_axes[low] & 255, at = index - f->base[a][b];
  const int32_t values = f->space.axis[b].count;
  return (fuzz_goal){.fixed = 2, .axis = {a, b}, .value = {at / values, at % values}, .greedy = true};
}

static bool next_pair(fuzz *f, fuzz_draw *drawn) {
  for (; f->cursor < f->pairs; ++f->cursor) {
    fuzz_tally *pair = &f->pair[f->cursor];
    if (pair->drawn > 0 || pair->impossible) continue;
    const fuzz_goal goal = goal_of_pair(f, f->cursor);
    if (fuzz_reach(f, &goal, f->draws, drawn)) return true;
    pair->impossible = true;
  }
  return false;
}

/* Makes a random draw. One in four begins with the last draw that took a seldom path; the others have the rarest of a
 * few pairs. */
static bool next_random(fuzz *f, fuzz_draw *drawn) {
  for (int tries = 0; tries < 64; ++tries) {
    assay_rng rng = {.seed = f->seed, .stream = (uint64_t)f->draws << 8 | 0xFF, .index = (uint64_t)tries * 32};
    fuzz_goal goal = {.fixed = 0};
    if (f->paths > 0 && assay_rng_range(&rng, 0, 3) == 0) {
      const fuzz_path_class *best = NULL;
      for (int i = 0; i < 4; ++i) {
        const fuzz_path_class *p = &f->path[assay_rng_range(&rng, 0, f->paths - 1)];
        if (best == NULL || p->count < best->count) best = p;
      }
      goal.start = best->choice;
    } else {
      int32_t rarest = -1;
      for (int i = 0; i < 8; ++i) {
        const int32_t p = (int32_t)assay_rng_range(&rng, 0, f->pairs - 1);
        if (!f->pair[p].impossible && (rarest < 0 || f->pair[p].drawn < f->pair[rarest].drawn)) rarest = p;
      }
      if (rarest >= 0) goal = goal_of_pair(f, rarest);
      goal.greedy = false;
    }
    if (fuzz_reach(f, &goal, f->draws, drawn)) return true;
  }
  return false;
}

/* Makes a draw that costs little, whatever it covers. */
static bool next_small(fuzz *f, fuzz_draw *drawn) {
  const fuzz_goal goal = {.small = true};
  return fuzz_reach(f, &goal, f->draws, drawn);
}

/* Returns the variant that was judged least, or NULL. Variants count that refuse most of what they are given, or were
 * judged four times less often than another. */
static const fuzz_taker *neglected(const fuzz *f) {
  const fuzz_taker *least = NULL;
  int64_t most = 0;
  for (int32_t i = 0; i < f->takers; ++i)
    if (f->taker[i].judged > most) most = f->taker[i].judged;
  for (int32_t i = 0; i < f->takers; ++i) {
    const fuzz_taker *t = &f->taker[i];
    if (t->given < 4 || (2 * t->judged >= t->given && 4 * t->judged >= most) || t->claims == 0) continue;
    if (least == NULL || t->judged < least->judged) least = t;
  }
  return least;
}

/* Writes the value of each axis that a caller has who says nothing of it. Requests and lengths have no such value, and
 * are drawn. */
static void set_defaults(const fuzz *f, assay_rng *rng, uint8_t *choice) {
  for (int32_t a = 0; a < f->space.axes; ++a) {
    const fuzz_axis *axis = &f->space.axis[a];
    choice[a] = axis->kind == AXIS_KEY ? 0 : (uint8_t)assay_rng_range(rng, 0, axis->count - 1);
    for (int32_t v = 0; v < axis->count && axis->kind == AXIS_KEY; ++v)
      if (!(axis->value[v] < axis->key.fallback) && !(axis->value[v] > axis->key.fallback)) choice[a] = (uint8_t)v;
  }
}

/* Fixes the values of a claim that is drawn of those of the taker. */
static void fix_claim(const fuzz *f, const fuzz_taker *taker, assay_rng *rng, fuzz_goal *goal) {
  const fuzz_claim *claim = &f->claim[taker->claim[assay_rng_range(rng, 0, taker->claims - 1)]];
  for (int32_t k = 0; k < f->claim_axes; ++k)
    if (f->claim_axis[k] >= 0) {
      goal->axis[goal->fixed] = f->claim_axis[k];
      goal->value[goal->fixed++] = claim->value[k];
    }
}

/* Tells whether draws of an effort took more than half of the estimated time. */
static bool is_overspent(const fuzz *f, int32_t effort) {
  double all = 0;
  for (int32_t i = 0; i < FUZZ_EFFORTS; ++i)
    all += f->spent_ms[i];
  return 2 * f->spent_ms[effort] > all;
}

/* Makes a draw for a variant that refuses most: a few changes away from one that it took. Where it took none, and in
 * one draw of eight, the draw is a few changes away from the defaults, with one of its claims. */
static bool next_welcome(fuzz *f, const fuzz_taker *taker, bool small, fuzz_draw *drawn) {
  assay_rng rng = {.seed = f->seed, .stream = (uint64_t)f->draws << 8 | 0xFE};
  fuzz_goal goal = {.small = small, .taker = taker};
  uint8_t defaults[FUZZ_MAX_AXES];
  const int64_t kept = taker->judged < FUZZ_KEPT ? taker->judged : FUZZ_KEPT;
  if (kept > 0 && assay_rng_range(&rng, 0, 7) != 0) {
    const int64_t number = assay_rng_range(&rng, 0, kept - 1);
    goal.start = taker->kept[number];
    goal.changes = taker->judged < FEW ? 2 : 6;
    const int32_t wanted = taker->kept_effort[number];
    if (f->effort < wanted && !is_overspent(f, wanted)) f->effort = wanted;
    return fuzz_reach(f, &goal, f->draws, drawn);
  }
  fix_claim(f, taker, &rng, &goal);
  set_defaults(f, &rng, defaults);
  goal.start = defaults;
  goal.changes = 3;
  if (taker->judged == 0) f->effort = (int32_t)assay_rng_range(&rng, 0, FUZZ_EFFORTS - 1); /* is it the size? */
  return fuzz_reach(f, &goal, f->draws, drawn);
}

/* Makes a draw with few features: up to five changes away from the defaults. Where many features meet, one hides the
 * other. Half of these draws have a claim of a variant. The others are for all variants, whatever they claim. */
static bool next_plain(fuzz *f, fuzz_draw *drawn) {
  assay_rng rng = {.seed = f->seed, .stream = (uint64_t)f->draws << 8 | 0xFD};
  fuzz_goal goal = {.changes = 5};
  uint8_t defaults[FUZZ_MAX_AXES];
  const fuzz_taker *taker = f->takers > 0 ? &f->taker[assay_rng_range(&rng, 0, f->takers - 1)] : NULL;
  drawn->for_all = assay_rng_range(&rng, 0, 1) == 0;
  if (!drawn->for_all && taker != NULL && taker->claims > 0) fix_claim(f, taker, &rng, &goal);
  set_defaults(f, &rng, defaults);
  goal.start = defaults;
  return fuzz_reach(f, &goal, f->draws, drawn);
}

/* Makes an illegal call of a draw that a variant takes, the variants in turn. */
static bool next_refusal(fuzz *f, fuzz_draw *drawn) {
  const int32_t first = (int32_t)(f->draws / (TURNS / 2) % (f->takers > 0 ? f->takers : 1));
  f->effort = 0;
  if (f->takers == 0 || f->taker[first].claims == 0) return false;
  if (!next_welcome(f, &f->taker[first], f->space.large, drawn) || !fuzz_break(f, drawn)) return false;
  ++f->refusals;
  return true;
}

/* Gives each effort its share of the estimated time: 4, 3, 2 and 1 parts of ten. */
static int32_t next_effort(const fuzz *f) {
  int32_t best = 0;
  for (int32_t i = 1; i < FUZZ_EFFORTS; ++i)
    if (f->spent_ms[i] * (FUZZ_EFFORTS - best) < f->spent_ms[best] * (FUZZ_EFFORTS - i)) best = i;
  return best;
}

assay_status fuzz_next(fuzz *f, fuzz_draw *drawn, assay_error *error) {
  const char *const names[] = {"values", "claims", "pairs", "random", "refusals"};
  bool found = false;
  drawn->cost_ms = 0;
  f->debt_ms = f->debt_ms > DRAW_MS ? f->debt_ms - DRAW_MS : 0;
  const bool indebted = f->space.large && f->debt_ms > 0;
  const turn now = turns[f->draws % TURNS];
  const fuzz_taker *taker = now == TURN_WELCOME ? neglected(f) : NULL;
  const bool covered = f->values_done && f->claims_done; /* the other kinds of draws take turns */
  f->effort = covered || taker != NULL ? next_effort(f) : 0;
  drawn->for_all = false;
  drawn->most = INT64_MAX;
  if (now == TURN_REFUSAL && (found = next_refusal(f, drawn))) drawn->phase = FUZZ_REFUSALS;
  if (!found && taker != NULL && (found = next_welcome(f, taker, indebted, drawn))) {
    drawn->phase = FUZZ_RANDOM;
    drawn->most = 4 * taker->judged + 8;
  }
  if (!found && indebted && (found = next_small(f, drawn))) drawn->phase = FUZZ_RANDOM;
  if (!found && !f->values_done && (found = next_value(f, drawn))) drawn->phase = FUZZ_VALUES;
  if (!found && !f->claims_done && (found = next_claim(f, drawn))) drawn->phase = FUZZ_CLAIMS;
  if (!found && covered && now == TURN_PLAIN && (found = next_plain(f, drawn))) drawn->phase = FUZZ_RANDOM;
  if (!found && covered && now == TURN_RANDOM && (found = next_random(f, drawn))) drawn->phase = FUZZ_RANDOM;
  if (!found && f->cursor < f->pairs && (found = next_pair(f, drawn))) drawn->phase = FUZZ_PAIRS;
  if (!found && (found = next_random(f, drawn))) drawn->phase = FUZZ_RANDOM;
  if (!found) return assay_fail(error, ASSAY_ERR_INTERNAL, "fuzz: no legal case of %s was found", f->space.op->name);
  f->debt_ms += drawn->cost_ms;
  drawn->effort = f->effort;
  f->spent_ms[f->effort] += drawn->run_ms;
  (void)snprintf(drawn->one.name, sizeof drawn->one.name, "%s", names[drawn->phase]);
  if (drawn->phase == FUZZ_REFUSALS)
    ++f->draws; /* it says nothing of the values' results */
  else
    note_drawn(f, drawn);
  return ASSAY_OK;
}

/* ---- results ----------------------------------------------------------------------------------------- */

void fuzz_judged(fuzz *f, const fuzz_draw *draw) {
  for (int32_t a = 0; a < f->space.axes; ++a) {
    ++f->value[a][draw->choice[a]].judged;
    for (int32_t b = a + 1; b < f->space.axes; ++b)
      ++fuzz_pair(f, a, draw->choice[a], b, draw->choice[b])->judged;
  }
  for (int32_t i = 0; i < f->claims; ++i) {
    bool same = true;
    for (int32_t k = 0; k < f->claim_axes; ++k)
      same = same && (f->claim_axis[k] < 0 || draw->choice[f->claim_axis[k]] == f->claim[i].value[k]);
    if (same) f->claim[i].judged = true;
  }
}

static void count_up(uint8_t *count) {
  if (*count < UINT8_MAX) ++*count;
}

/* Returns the axis that a message is about: its first word, or the first that it names; -1: none. */
static int32_t axis_of(const fuzz *f, const char *message) {
  for (const char *at = message; *at != '\0';) {
    size_t n = 0;
    while (isalnum((unsigned char)at[n]) || at[n] == '_')
      ++n;
    const int32_t axis = n > 0 ? space_axis(&f->space, at, n) : -1;
    if (axis >= 0) return axis;
    at += n > 0 ? n : 1;
  }
  return -1;
}

void fuzz_told(fuzz *f, const fuzz_draw *draw, const char *variant, bool judged, const char *message) {
  int32_t i = 0;
  while (i < f->takers && strcmp(f->taker[i].variant->name, variant) != 0)
    ++i;
  if (i == f->takers) return;
  fuzz_taker *t = &f->taker[i];
  ++t->given;
  if (!judged) {
    const int32_t axis = axis_of(f, message);
    if (axis < 0) return;
    count_up(&t->refused[axis][draw->choice[axis]]);
    const uint64_t allowed = fuzz_allowed(&f->space.axis[axis], message);
    if (allowed != 0) t->wanted[axis] = (t->wanted[axis] & allowed) != 0 ? t->wanted[axis] & allowed : allowed;
    return;
  }
  t->kept_effort[t->judged % FUZZ_KEPT] = draw->effort;
  memcpy(t->kept[t->judged++ % FUZZ_KEPT], draw->choice, sizeof draw->choice);
  for (int32_t a = 0; a < f->space.axes; ++a)
    count_up(&t->taken[a][draw->choice[a]]);
}

/* Writes the class of a path: "splits=7" becomes "splits=5..8". */
static void class_of(const char *variant, const char *path, char *text, size_t size) {
  size_t used = (size_t)snprintf(text, size, "%.40s: ", variant);
  for (const char *at = path; *at != '\0' && used + 24 < size;) {
    if (!isdigit((unsigned char)*at)) {
      text[used++] = *at++;
      continue;
    }
    char *end = NULL;
    const unsigned long long number = strtoull(at, &end, 10);
    unsigned long long high = 4;
    while (high < number && high < 1ull << 62)
      high *= 2;
    used += (size_t)(number <= 4 ? snprintf(text + used, size - used, "%llu", number)
                                 : snprintf(text + used, size - used, "%llu..%llu", high / 2 + 1, high));
    at = end;
  }
  text[used < size ? used : size - 1] = '\0';
}

void fuzz_path(fuzz *f, const fuzz_draw *draw, const char *variant, const char *path) {
  char text[FUZZ_PATH_TEXT];
  int32_t i = 0;
  class_of(variant, path, text, sizeof text);
  while (i < f->paths && strcmp(f->path[i].text, text) != 0)
    ++i;
  if (i == FUZZ_MAX_PATHS) return;
  if (i == f->paths) memcpy(f->path[f->paths++].text, text, sizeof text);
  ++f->path[i].count;
  memcpy(f->path[i].choice, draw->choice, sizeof draw->choice);
}

bool fuzz_is_for(const fuzz *f, const fuzz_draw *draw, const assay_variant *variant) {
  for (int32_t i = 0; i < f->takers; ++i)
    if (f->taker[i].variant == variant && f->taker[i].judged > draw->most) return false;
  return draw->for_all || fuzz_claimed(variant, &draw->one);
}

/* ---- what was reached -------------------------------------------------------------------------------- */

void fuzz_count(const fuzz *f, fuzz_counts *counts) {
  *counts = (fuzz_counts){.draws = f->draws, .claims = f->claims, .paths = f->paths, .refusals = f->refusals};
  for (int32_t b = 0; b <= BREAK_EXTRA; ++b)
    for (int32_t i = 0; i < f->space.op->arg_count; ++i)
      counts->broken_drawn += f->broken[b][i] > 0;
  for (int32_t a = 0; a < f->space.axes; ++a)
    for (int32_t v = 0; v < f->space.axis[a].count; ++v) {
      ++*(f->value[a][v].impossible ? &counts->values_impossible : &counts->values);
      counts->values_judged += f->value[a][v].judged > 0;
    }
  for (int32_t p = 0; p < f->pairs; ++p) {
    ++*(f->pair[p].impossible ? &counts->pairs_impossible : &counts->pairs);
    counts->pairs_judged += f->pair[p].judged > 0;
  }
  for (int32_t i = 0; i < f->claims; ++i)
    counts->claims_judged += f->claim[i].judged;
}

bool fuzz_axis_reached(const fuzz *f, int32_t index, const char **name, int32_t *judged, int32_t *possible,
                       char *missing, size_t size) {
  if (index < 0 || index >= f->space.axes) return false;
  const fuzz_axis *a = &f->space.axis[index];
  size_t used = 0;
  char text[64];
  *name = a->name;
  *judged = *possible = 0;
  if (size > 0) missing[0] = '\0';
  for (int32_t v = 0; v < a->count; ++v) {
    if (f->value[index][v].impossible) continue;
    ++*possible;
    *judged += f->value[index][v].judged > 0;
    if (f->value[index][v].judged > 0 || used >= size) continue;
    space_print_value(&f->space, index, v, text, sizeof text);
    used += (size_t)snprintf(missing + used, size - used, "%s%s", used > 0 ? " " : "", text);
  }
  return true;
}

bool fuzz_path_reached(const fuzz *f, int64_t index, const char **path, int64_t *count) {
  if (index < 0 || index >= f->paths) return false;
  *path = f->path[index].text;
  *count = f->path[index].count;
  return true;
}

bool fuzz_variant_reached(const fuzz *f, int32_t index, const char **name, int64_t *given, int64_t *judged) {
  if (index < 0 || index >= f->takers) return false;
  *name = f->taker[index].variant->name;
  *given = f->taker[index].given;
  *judged = f->taker[index].judged;
  return true;
}
