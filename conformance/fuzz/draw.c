/* draw.c: finds a legal case for a goal. Values are chosen axis by axis without regard to legality. While the case is
 * refused, the key that the message names gets another value. If that key is part of the goal, another key that the
 * message mentions gets one. */
#include <ctype.h>

#include "fuzz_internal.h"

enum { ATTEMPTS = 9, REPAIRS = 96, QUESTIONS = 12 /* to the operator, in one attempt */ };

typedef struct drawing {
  const fuzz *f;
  const fuzz_space *space;
  assay_rng rng;
  bool fixed[FUZZ_MAX_AXES];
  const fuzz_taker *taker;
  fuzz_draw *drawn;
} drawing;

/* Tells whether the variant that the draw is for never took the value, and refused it or named others as allowed. */
static bool is_unwelcome(const drawing *d, int32_t axis, int32_t value) {
  const fuzz_taker *t = d->taker;
  if (t == NULL || t->taken[axis][value] > 0) return false;
  return t->refused[axis][value] > 0 || (t->wanted[axis] != 0 && (t->wanted[axis] >> value & 1) == 0);
}

/* Returns one of the values that the variant called allowed, or -1. */
static int32_t wanted_value(drawing *d, int32_t axis) {
  const uint64_t wanted = d->taker != NULL ? d->taker->wanted[axis] : 0;
  if (wanted == 0 || assay_rng_range(&d->rng, 0, 7) == 0) return -1;
  int32_t left = (int32_t)assay_rng_range(&d->rng, 0, __builtin_popcountll(wanted) - 1), value = 0;
  while ((wanted >> value & 1) == 0 || left-- > 0)
    ++value;
  return d->f->value[axis][value].impossible ? -1 : value;
}

static int32_t any_value(drawing *d, int32_t axis) {
  const int32_t count = d->space->axis[axis].count;
  int32_t value = wanted_value(d, axis);
  if (value >= 0) return value;
  for (int tries = 0; tries < 8; ++tries) {
    value = (int32_t)assay_rng_range(&d->rng, 0, count - 1);
    if (!d->f->value[axis][value].impossible && !is_unwelcome(d, axis, value)) break;
  }
  return value;
}

/* Returns one of two drawn values: the one that was drawn less. */
static int32_t rare_value(drawing *d, int32_t axis) {
  const int32_t x = any_value(d, axis), y = any_value(d, axis);
  return d->f->value[axis][x].drawn <= d->f->value[axis][y].drawn ? x : y;
}

/* Returns the value with most pairs not yet drawn, given the axes chosen so far. */
static int32_t greedy_value(drawing *d, int32_t axis, const int32_t *chosen, int32_t count) {
  int32_t best = -1, best_gain = 0;
  const int32_t values = d->space->axis[axis].count;
  const int32_t first = (int32_t)assay_rng_range(&d->rng, 0, values - 1);
  for (int32_t i = 0; i < values; ++i) {
    const int32_t value = (first + i) % values;
    int32_t gain = 0;
    if (d->f->value[axis][value].impossible || is_unwelcome(d, axis, value)) continue;
    for (int32_t k = 0; k < count; ++k) {
      const fuzz_tally *pair = fuzz_pair(d->f, axis, value, chosen[k], d->drawn->choice[chosen[k]]);
      gain += pair->drawn == 0 && !pair->impossible;
    }
    if (gain > best_gain) {
      best = value;
      best_gain = gain;
    }
  }
  return best >= 0 ? best : rare_value(d, axis);
}

/* Proposes values: fixed axes first, then the others in a drawn order. */
static void propose(drawing *d, const fuzz_goal *goal, bool greedy) {
  int32_t order[FUZZ_MAX_AXES], count = 0, chosen = 0;
  uint8_t *choice = d->drawn->choice;
  for (int32_t i = 0; i < d->space->axes; ++i)
    d->fixed[i] = false;
  for (int32_t i = 0; i < goal->fixed; ++i) {
    d->fixed[goal->axis[i]] = true;
    choice[goal->axis[i]] = (uint8_t)goal->value[i];
    order[count++] = goal->axis[i];
  }
  chosen = count;
  for (int32_t i = 0; i < d->space->axes; ++i)
    if (!d->fixed[i]) order[count++] = i;
  for (int32_t i = count - 1; i > chosen; --i) {
    const int32_t j = (int32_t)assay_rng_range(&d->rng, chosen, i), kept = order[i];
    order[i] = order[j];
    order[j] = kept;
  }
  /* Starting from another draw, a few axes are changed and the others kept. */
  const int32_t most = goal->changes > 0 ? goal->changes : 6;
  const int64_t changed = goal->start != NULL ? assay_rng_range(&d->rng, 1, most) : count;
  for (int32_t i = chosen; i < count; ++i)
    choice[order[i]] =
        (uint8_t)(i - chosen >= changed && !is_unwelcome(d, order[i], goal->start[order[i]]) ? goal->start[order[i]]
                  : greedy ? greedy_value(d, order[i], order, i)
                           : rare_value(d, order[i]));
}

/* ---- repair ------------------------------------------------------------------------------------------ */

/* Lowers the value of one of the axes that make a case large. The first half of the tries leaves dimensions alone. */
static void shrink(drawing *d, int32_t repair) {
  static const char *const sizes[] = {"batch", "kv_len", "new", "H", "H_kv", "D", "block_size", "q_pad", "kv_pad"};
  enum { SIZES = sizeof sizes / sizeof sizes[0] };
  for (int tries = 0; tries < (d->space->plain ? 96 : 16); ++tries) {
    const char *name = sizes[assay_rng_range(&d->rng, 0, repair < 8 ? 3 : SIZES - 1)];
    const int32_t axis = d->space->plain ? (int32_t)assay_rng_range(&d->rng, 0, d->space->axes - 1)
                                         : space_axis(d->space, name, strlen(name));
    if (axis < 0 || d->fixed[axis]) continue;
    const fuzz_axis *a = &d->space->axis[axis];
    const bool size = a->key.store == STORE_DIM || a->key.kind == KEY_BOOL || strcmp(a->name, "row_pad") == 0;
    if (d->space->plain && !size) continue;
    const int32_t value = any_value(d, axis);
    if (!(a->value[value] < a->value[d->drawn->choice[axis]]) || is_unwelcome(d, axis, value)) continue;
    d->drawn->choice[axis] = (uint8_t)value;
    return;
  }
}

static void change(drawing *d, int32_t axis) {
  const int32_t count = d->space->axis[axis].count, old = d->drawn->choice[axis];
  int32_t value = any_value(d, axis);
  if (value == old) value = (value + 1) % count;
  d->drawn->choice[axis] = (uint8_t)value;
}

/* Lists up to `most` axes that may be changed and whose names occur as words in the message. */
static int32_t axes_named(const drawing *d, const char *text, int32_t *axis, int32_t most) {
  int32_t count = 0;
  for (const char *at = text; *at != '\0' && count < most;) {
    size_t n = 0;
    while (isalnum((unsigned char)at[n]) || at[n] == '_')
      ++n;
    const int32_t found = n > 0 ? space_axis(d->space, at, n) : -1;
    if (found >= 0 && !d->fixed[found]) axis[count++] = found;
    at += n > 0 ? n : 1;
  }
  return count;
}

static void repair_once(drawing *d, const char *message, int32_t repair) {
  int32_t named[8];
  const size_t n = strcspn(message, ":");
  if (n == 4 && strncmp(message, "size", n) == 0) {
    shrink(d, repair);
    return;
  }
  const int32_t axis = space_axis(d->space, message, n);
  const int32_t count = axes_named(d, message, named, 8);
  if (axis >= 0 && !d->fixed[axis] && assay_rng_range(&d->rng, 0, 3) != 0)
    change(d, axis);
  else if (count > 0)
    change(d, named[assay_rng_range(&d->rng, 0, count - 1)]);
  else
    change(d, (int32_t)assay_rng_range(&d->rng, 0, d->space->axes - 1));
}

bool fuzz_reach(const fuzz *f, const fuzz_goal *goal, int64_t index, fuzz_draw *drawn) {
  drawing d = {.f = f,
               .space = &f->space,
               .rng = {.seed = f->seed, .stream = (uint64_t)index << 8},
               .taker = goal->taker != NULL || f->takers > 1 || index % 8 == 0 ? goal->taker : f->taker,
               .drawn = drawn};
  for (int32_t attempt = 0; attempt < ATTEMPTS; ++attempt) {
    const assay_rng lists = {.seed = f->seed, .stream = (uint64_t)index << 8 | (uint64_t)(attempt + 1)};
    const int32_t effort = goal->small ? 0 : attempt / 3 > f->effort ? attempt / 3 : f->effort;
    propose(&d, goal, goal->greedy && attempt < 6);
    for (int32_t i = 0, asked = 0; i < REPAIRS && asked < QUESTIONS; ++i) {
      assay_error why = {""};
      const assay_status status = space_case(&f->space, lists, effort, drawn, &why);
      if (status == ASSAY_OK) return true;
      asked += status == ASSAY_ERR_UNSUPPORTED;
      repair_once(&d, why.text, i);
      for (int32_t g = 0; g < goal->fixed; ++g) /* a random change may have hit fixed axes */
        drawn->choice[goal->axis[g]] = (uint8_t)goal->value[g];
    }
  }
  return false;
}
