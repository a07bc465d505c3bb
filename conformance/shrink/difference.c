/* difference.c: finds the condition of the failure. Each number of the smallest case is moved up and down, and each
 * name is exchanged. The plainest condition that agrees with all answers is printed. */
#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>

#include "conformance/generate/generate.h"
#include "shrink_internal.h"

enum { SAMPLES = 24, SEEDS = 8, MAX_QUANTITIES = 24 };

typedef struct sample {
  int64_t value;
  answer said;
} sample;

typedef struct sentence {
  char *text;
  size_t size, used;
} sentence;

#if defined(__GNUC__)
__attribute__((format(printf, 2, 3)))
#endif
static void
say(sentence *to, const char *format, ...) {
  va_list list;
  if (to->used >= to->size) return;
  va_start(list, format);
  const int n = vsnprintf(to->text + to->used, to->size - to->used, format, list);
  va_end(list);
  if (n > 0) to->used += (size_t)n;
}

static void join(sentence *to) {
  if (to->used > 0) say(to, " and ");
}

/* ---- numbers ----------------------------------------------------------------------------------------- */

static int compare_samples(const void *a, const void *b) {
  const int64_t x = ((const sample *)a)->value, y = ((const sample *)b)->value;
  return (x > y) - (x < y);
}

static bool allowed(const quantity *what, int64_t value) {
  return value >= what->least && value <= what->most && value % what->step == 0;
}

/* Asks for the values that have not been asked for, and keeps the list sorted. */
static int32_t ask_values(shrinker *s, const quantity *what, const int64_t *values, int32_t count, sample *samples,
                          int32_t known) {
  assay_case list[SAMPLES];
  answer said[SAMPLES];
  int64_t value[SAMPLES];
  int32_t fresh = 0;
  for (int32_t i = 0; i < count && known + fresh < SAMPLES; ++i) {
    bool new_one = allowed(what, values[i]);
    for (int32_t k = 0; k < known; ++k)
      new_one = new_one && samples[k].value != values[i];
    for (int32_t k = 0; k < fresh; ++k)
      new_one = new_one && value[k] != values[i];
    if (!new_one || case_copy(&s->now, &list[fresh], NULL) != ASSAY_OK) continue;
    quantity_set(&list[fresh], what, values[i]);
    value[fresh++] = values[i];
  }
  if (fresh > 0) shrink_ask_seeds(s, list, fresh, said);
  for (int32_t i = 0; i < fresh; ++i) {
    samples[known++] = (sample){value[i], said[i]};
    case_free(&list[i]);
  }
  qsort(samples, (size_t)known, sizeof *samples, compare_samples);
  return known;
}

static int32_t sample_around(shrinker *s, const quantity *what, sample *samples) {
  const int64_t m = quantity_get(&s->now, what), bs = logical_dim(&s->now, "block_size", 1), step = what->step;
  const bool lengths = what->kind <= QUANTITY_NEW;
  int64_t values[SAMPLES];
  int32_t count = 0;
  samples[0] = (sample){m, ANSWER_SAME};
  const int64_t plain[] = {m - step,     m - 2 * step, m / 2 / step * step, what->least, m + step,
                           m + 2 * step, 2 * m,        2 * m + step,        m + 3 * step};
  for (size_t i = 0; i < sizeof plain / sizeof plain[0]; ++i)
    values[count++] = plain[i];
  const int64_t units[] = {bs, s->split};
  for (int32_t u = 0; u < 2 && lengths; ++u)
    for (int64_t d = 0; d <= 1 && units[u] > 0; ++d) {
      values[count++] = (m + units[u] - 1) / units[u] * units[u] + d;
      values[count++] = m + units[u] - d;
    }
  return ask_values(s, what, values, count, samples, 1);
}

typedef bool (*condition)(int64_t value, int64_t a, int64_t b);
static bool at_least(int64_t value, int64_t a, int64_t b) {
  (void)b;
  return value >= a;
}
static bool within(int64_t value, int64_t a, int64_t b) {
  return value >= a && value <= b;
}
static bool no_multiple(int64_t value, int64_t a, int64_t b) {
  (void)b;
  return value % a != 0;
}
static bool rest_is(int64_t value, int64_t a, int64_t b) {
  return value % a == b;
}

static bool agrees(const sample *samples, int32_t count, condition holds, int64_t a, int64_t b) {
  for (int32_t i = 0; i < count; ++i) {
    if (samples[i].said != ANSWER_SAME && samples[i].said != ANSWER_PASS) continue;
    if (holds(samples[i].value, a, b) != (samples[i].said == ANSWER_SAME)) return false;
  }
  return true;
}

/* Bisects between the last value that fails and the first one above it that passes. */
static int32_t find_upper(shrinker *s, const quantity *what, sample *samples, int32_t count) {
  const int64_t m = quantity_get(&s->now, what);
  while (count < SAMPLES) {
    int64_t low = m, high = -1;
    for (int32_t i = 0; i < count; ++i) {
      if (samples[i].value <= m) continue;
      if (samples[i].said == ANSWER_SAME && high < 0) low = samples[i].value;
      if (samples[i].said == ANSWER_PASS && high < 0) high = samples[i].value;
    }
    const int64_t middle = high < 0 ? low : low + (high - low) / 2 / what->step * what->step;
    if (middle <= low) break;
    const int32_t before = count;
    count = ask_values(s, what, &middle, 1, samples, count);
    if (count == before) break;
    for (int32_t i = 0; i < count; ++i)
      if (samples[i].value == middle && samples[i].said != ANSWER_SAME && samples[i].said != ANSWER_PASS) return count;
  }
  return count;
}

static int64_t last_same(const sample *samples, int32_t count) {
  int64_t value = 0;
  for (int32_t i = 0; i < count; ++i)
    if (samples[i].said == ANSWER_SAME) value = samples[i].value;
  return value;
}

/* Tells whether the threshold counts blocks: with blocks of twice the size it moves then. */
static bool depends_on_blocks(shrinker *s) {
  assay_case one;
  answer said = ANSWER_NONE;
  if (case_copy(&s->now, &one, NULL) != ASSAY_OK) return false;
  for (int32_t i = 0; i < one.op->dim_count; ++i)
    if (strcmp(one.op->dims[i].name, "block_size") == 0) one.dim[i] *= 2;
  shrink_ask_seeds(s, &one, 1, &said);
  case_free(&one);
  return said == ANSWER_PASS;
}

static void say_at_least(shrinker *s, const quantity *what, int64_t m, sentence *to) {
  const int64_t bs = logical_dim(&s->now, "block_size", 1), before = m - what->step;
  const bool length = what->kind == QUANTITY_LENGTH || what->kind == QUANTITY_LENGTHS;
  if (length && s->split > 0 && before > 0 && before % s->split == 0)
    say(to, "%s > %" PRId64 " and splits >= %" PRId64, what->name, before, before / s->split + 1);
  else if (length && before > 0 && before % bs == 0 && depends_on_blocks(s))
    say(to, "%s > %" PRId64 " and blocks >= %" PRId64, what->name, before, before / bs + 1);
  else if (what->kind == QUANTITY_DIM && before > 0 && before % 16 == 0)
    say(to, "%s > %" PRId64, what->name, before);
  else
    say(to, "%s >= %" PRId64, what->name, m);
}

static void say_number(shrinker *s, const quantity *what, sentence *to) {
  sample samples[SAMPLES];
  const int64_t m = quantity_get(&s->now, what), bs = logical_dim(&s->now, "block_size", 1);
  int32_t count = sample_around(s, what, samples), passes = 0;
  for (int32_t i = 0; i < count; ++i)
    passes += samples[i].said == ANSWER_PASS;
  if (passes == 0) return;
  const int64_t units[] = {bs, s->split, 2, 16};
  if (agrees(samples, count, at_least, m, 0)) {
    if (what->kind <= QUANTITY_NEW && m == 1) return; /* every case has a key and a row */
    join(to);
    say_at_least(s, what, m, to);
    return;
  }
  for (size_t u = 0; u < sizeof units / sizeof units[0]; ++u) {
    const bool rest = units[u] > 1 && !agrees(samples, count, no_multiple, units[u], 0);
    if (units[u] < 2 || (rest && !agrees(samples, count, rest_is, units[u], m % units[u])) || count < 6) continue;
    join(to);
    if (rest)
      say(to, "%s %% %" PRId64 " == %" PRId64, what->name, units[u], m % units[u]);
    else
      say(to, "%s %% %" PRId64 " != 0", what->name, units[u]);
    return;
  }
  count = find_upper(s, what, samples, count);
  const int64_t upper = last_same(samples, count);
  join(to);
  if (agrees(samples, count, within, m, upper)) {
    if (upper == m)
      say(to, "%s = %" PRId64, what->name, m);
    else if (m - what->step < what->least)
      say(to, "%s <= %" PRId64, what->name, upper);
    else
      say(to, "%" PRId64 " <= %s <= %" PRId64, m, what->name, upper);
    return;
  }
  say(to, "%s among", what->name);
  for (int32_t i = 0; i < count; ++i)
    if (samples[i].said == ANSWER_SAME) say(to, " %" PRId64, samples[i].value);
}

/* ---- names ------------------------------------------------------------------------------------------- */

static const char *value_name(const case_key *key, int64_t value) {
  const char *name = key->kind == KEY_BOOL ? (value != 0 ? "true" : "false") : key_name_of(key, value);
  return name != NULL ? name : "?";
}

/* Writes the answers for all other values of the key. A value that gives no case, or an unsupported one, says
 * nothing. */
static void say_name(shrinker *s, const case_key *key, sentence *to) {
  assay_case list[16];
  answer said[16];
  int32_t value[16], count = 0, passes = 0, fails = 0;
  const int32_t own = (int32_t)key_get(&s->now, key);
  const bool mode = strcmp(key->name, "mode") == 0;
  for (int32_t v = 0; v < 16 && (key->kind == KEY_BOOL ? v < 2 : key_name_of(key, v) != NULL); ++v) {
    if (v == own || case_copy(&s->now, &list[count], NULL) != ASSAY_OK) continue;
    if (mode)
      set_mode(&list[count], (case_mode)v);
    else
      key_set(&list[count], key, v);
    /* "same" and the type's own name mean one type. */
    if (strcmp(key->name, "kv_dtype") == 0 && list[count].kv_dtype == s->now.kv_dtype) {
      case_free(&list[count]);
      continue;
    }
    value[count++] = v;
  }
  shrink_ask_seeds(s, list, count, said);
  for (int32_t i = 0; i < count; ++i) {
    passes += said[i] == ANSWER_PASS;
    fails += said[i] == ANSWER_SAME;
    case_free(&list[i]);
  }
  if (passes == 0) return;
  join(to);
  if (passes < fails) { /* the exceptions are fewer */
    say(to, "%s is not", key->name);
    for (int32_t i = 0, n = 0; i < count; ++i)
      if (said[i] == ANSWER_PASS) say(to, "%s %s", n++ > 0 ? " or" : "", value_name(key, value[i]));
    return;
  }
  say(to, "%s = %s", key->name, value_name(key, own));
  for (int32_t i = 0; i < count; ++i)
    if (said[i] == ANSWER_SAME) say(to, " or %s", value_name(key, value[i]));
}

static bool is_name(const case_key *key) {
  static const char *const kept[] = {"section", "tier", "break", "argument"};
  for (size_t i = 0; i < sizeof kept / sizeof kept[0]; ++i)
    if (strcmp(key->name, kept[i]) == 0) return false;
  return key->kind == KEY_BOOL || key->kind == KEY_ENUM;
}

/* ---- the whole --------------------------------------------------------------------------------------- */

static void say_requests(shrinker *s, sentence *to) {
  assay_case list[1];
  answer said[1];
  if (s->now.batch < 2) return;
  int32_t passes = 0;
  for (int32_t i = 0; i < s->now.batch && i < 4; ++i) {
    if (case_copy(&s->now, &list[0], NULL) != ASSAY_OK) return;
    drop_requests(&list[0], i, 1);
    shrink_ask_seeds(s, list, 1, said);
    passes += said[0] == ANSWER_PASS;
    case_free(&list[0]);
  }
  if (passes == 0) return;
  join(to);
  say(to, "requests >= %d", s->now.batch);
}

static void say_shares(shrinker *s, sentence *to) {
  for (int32_t i = 0; i < s->now.batch; ++i) {
    if (s->now.share_with[i] < 0) continue;
    join(to);
    say(to, "request %d shares %d tokens with request %d", i, s->now.share_tokens[i], s->now.share_with[i]);
    return;
  }
}

static void say_seeds(shrinker *s, sentence *to) {
  assay_case list[SEEDS];
  answer said[SEEDS];
  int32_t count = 0, fails = 0;
  while (count < SEEDS && case_copy(&s->now, &list[count], NULL) == ASSAY_OK) {
    list[count].seed = s->now.seed + (uint64_t)count + 1;
    ++count;
  }
  shrink_ask(s, list, count, said);
  for (int32_t i = 0; i < count; ++i) {
    fails += said[i] == ANSWER_SAME;
    case_free(&list[i]);
  }
  if (count == SEEDS && said[SEEDS - 1] != ANSWER_NONE)
    say(to, "; with %d of %d other seeds it fails as well", fails, count);
}

void shrink_difference(shrinker *s, char *text, size_t size) {
  sentence to = {.text = text, .size = size};
  quantity list[MAX_QUANTITIES];
  text[0] = '\0';
  say_requests(s, &to);
  const int32_t count = quantity_list(&s->now, list, MAX_QUANTITIES);
  for (int32_t i = 0; i < count && s->status == ASSAY_OK; ++i)
    if (list[i].kind != QUANTITY_LENGTHS) say_number(s, &list[i], &to);
  say_shares(s, &to);
  const int32_t keys = key_count(s->now.op);
  for (int32_t k = 0; k < keys && s->status == ASSAY_OK; ++k) {
    const case_key key = key_at(s->now.op, k);
    if (is_name(&key)) say_name(s, &key, &to);
  }
  char conditions[1400];
  (void)snprintf(conditions, sizeof conditions, "%s", text);
  to.used = 0;
  if (conditions[0] != '\0')
    say(&to, "fails when %s; passes otherwise", conditions);
  else
    say(&to, "fails with everything that was tried in its place");
  say_seeds(s, &to);
}
