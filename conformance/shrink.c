/* shrink.c: greedy, from large steps to small ones, until no step leads to a smaller case that fails for the same
 * reason, or the budget is spent. */
#include "shrink.h"

#include <stdlib.h>

#include "core/registry.h"
#include "explain.h"
#include "generate_logical.h"
#include "judge_parts.h"
#include "shrink_parts.h"

enum { FALLBACK_CASES = 2000, FALLBACK_SECONDS = 60 };

/* ---- the reason -------------------------------------------------------------------------------------- */

/* Up to the first figure, comma or ". ": what was said before anything was counted. */
static size_t beginning(const char *message) {
  return strcspn(message, "0123456789,(");
}

bool shrink_same_reason(const case_result *a, const case_result *b) {
  static const char *const by_message[] = {"guard", "input", "refusal", "launch", "admission"};
  if (a->verdict != b->verdict || strcmp(a->check, b->check) != 0 || strcmp(a->kind, b->kind) != 0) return false;
  for (size_t i = 0; i < sizeof by_message / sizeof by_message[0]; ++i) {
    if (strcmp(a->check, by_message[i]) != 0) continue;
    const size_t n = beginning(a->message);
    return n == beginning(b->message) && strncmp(a->message, b->message, n) == 0;
  }
  return true;
}

/* ---- asking ------------------------------------------------------------------------------------------ */

static uint64_t hash_of(const char *text) {
  uint64_t hash = 1469598103934665603U;
  for (; *text != '\0'; ++text)
    hash = (hash ^ (unsigned char)*text) * 1099511628211U;
  return hash & ~(uint64_t)7;
}

static uint64_t name_of(shrinker *s, const assay_case *one) {
  return case_print(one, s->line, CASE_MAX_LINE, NULL) == ASSAY_OK ? hash_of(s->line) : 0;
}

static answer recall(const shrinker *s, uint64_t name) {
  for (int64_t i = 0; i < s->known_count; ++i)
    if ((s->known[i] & ~(uint64_t)7) == name) return (answer)(s->known[i] & 7);
  return ANSWER_NONE;
}

static void learn(shrinker *s, uint64_t name, answer a) {
  if (s->known_count == s->known_room) {
    const int64_t room = s->known_room > 0 ? 2 * s->known_room : 512;
    uint64_t *grown = realloc(s->known, (size_t)room * sizeof *grown);
    if (grown == NULL) return; /* asked again, no more */
    s->known = grown;
    s->known_room = room;
  }
  s->known[s->known_count++] = name | (uint64_t)a;
}

static answer judge_answer(const shrinker *s, const case_result *result) {
  if (shrink_same_reason(&s->target, result)) return ANSWER_SAME;
  return result->verdict == VERDICT_PASS || result->verdict == VERDICT_REFUSED ? ANSWER_PASS : ANSWER_OTHER;
}

typedef struct collected {
  const shrinker *s;
  answer answers[SHRINK_LIST];
} collected;

static void collect(void *context, int64_t index, const assay_case *one, const case_result *result) {
  collected *c = context;
  (void)one;
  c->answers[index] = judge_answer(c->s, result);
}

void shrink_ask(shrinker *s, const assay_case *list, int32_t count, answer *answers) {
  assay_case unknown[SHRINK_LIST];
  int32_t origin[SHRINK_LIST], wanted = 0;
  uint64_t names[SHRINK_LIST];
  collected got = {.s = s};
  for (int32_t i = 0; i < count; ++i) {
    names[i] = name_of(s, &list[i]);
    answers[i] = recall(s, names[i]);
    if (answers[i] != ANSWER_NONE) continue;
    if (names[i] == 0 || case_check(&list[i], NULL) != ASSAY_OK) {
      answers[i] = ANSWER_OTHER;
      continue;
    }
    origin[wanted] = i;
    unknown[wanted++] = list[i]; /* shallow: lists stay the caller's */
  }
  if (wanted == 0 || s->status != ASSAY_OK) return;
  if (s->ran + wanted > s->most || judge_now_ms() > s->stop_ms) {
    s->ran = s->ran + wanted > s->most ? s->most : s->ran;
    return;
  }
  s->ran += wanted;
  s->status = execute_cases(unknown, wanted, &s->options->execution, collect, &got, s->error);
  for (int32_t i = 0; i < wanted && s->status == ASSAY_OK; ++i) {
    answers[origin[i]] = got.answers[i];
    learn(s, names[origin[i]], got.answers[i]);
  }
}

/* A smaller case may be right by chance with these very values: a few other seeds are tried as well, unless each
 * costs a deadline. */
static uint64_t seeds_of(const shrinker *s) {
  return strcmp(s->target.check, "deadline") == 0 ? 1 : SHRINK_SEEDS;
}

/* A PASS counts only after many of them. */
void shrink_ask_seeds(shrinker *s, const assay_case *list, int32_t count, answer *answers) {
  const uint64_t seeds = seeds_of(s) > 1 ? 3 * seeds_of(s) : 1;
  for (int32_t i = 0; i < count; ++i) {
    answers[i] = ANSWER_NONE;
    for (uint64_t v = 0; v < seeds && answers[i] != ANSWER_SAME; v += SHRINK_SEEDS) {
      assay_case same[SHRINK_SEEDS];
      answer again[SHRINK_SEEDS];
      int32_t some = 0;
      for (; some < SHRINK_SEEDS && v + (uint64_t)some < seeds; ++some) {
        same[some] = list[i]; /* shallow */
        same[some].seed = s->now.seed + v + (uint64_t)some;
      }
      shrink_ask(s, same, some, again);
      for (int32_t k = 0; k < some; ++k)
        if (answers[i] == ANSWER_NONE || again[k] == ANSWER_SAME ||
            (answers[i] == ANSWER_OTHER && again[k] == ANSWER_PASS))
          answers[i] = again[k];
      if (answers[i] != ANSWER_PASS) break; /* unsupported once is unsupported for ever */
    }
  }
}

static bool spent(const shrinker *s) {
  return s->status != ASSAY_OK || s->ran >= s->most || judge_now_ms() > s->stop_ms;
}

static void take(shrinker *s, assay_case *better) {
  case_free(&s->now);
  s->now = *better;
  memset(better, 0, sizeof *better);
}

bool shrink_try(shrinker *s, assay_case *list, int32_t count) {
  bool taken = false;
  for (int32_t first = 0; first < count; first += SHRINK_BATCH) {
    answer answers[SHRINK_BATCH];
    const int32_t some = count - first < SHRINK_BATCH ? count - first : SHRINK_BATCH;
    if (!taken) shrink_ask(s, list + first, some, answers);
    for (int32_t i = 0; i < some; ++i) {
      if (!taken && answers[i] == ANSWER_SAME) {
        take(s, &list[first + i]);
        taken = true;
      } else {
        case_free(&list[first + i]);
      }
    }
  }
  return taken;
}

static bool copy_now(shrinker *s, assay_case *to) {
  assay_error unused = {""};
  memset(to, 0, sizeof *to);
  return s->status == ASSAY_OK && case_copy(&s->now, to, &unused) == ASSAY_OK;
}

/* ---- steps ------------------------------------------------------------------------------------------- */

static bool fewer_requests(shrinker *s) {
  bool better = false;
  for (int32_t part = s->now.batch / 2; part >= 1 && !spent(s);) {
    assay_case list[SHRINK_LIST];
    bool taken = false;
    for (int32_t first = 0; first + part <= s->now.batch && s->now.batch > part && !taken && !spent(s);) {
      int32_t count = 0;
      for (; count < SHRINK_BATCH && first + part <= s->now.batch; first += part)
        if (copy_now(s, &list[count])) drop_requests(&list[count++], first, part);
      if (count == 0) break;
      taken = shrink_try(s, list, count);
    }
    better = better || taken;
    if (!taken || part >= s->now.batch) part = part > 1 && part >= s->now.batch ? s->now.batch / 2 : part / 2;
  }
  return better;
}

static bool plainer_mode(shrinker *s) {
  assay_case list[2];
  int32_t count = 0;
  const bool plain = s->now.op->form == ASSAY_PLAIN; /* has no mode */
  if (plain || s->now.mode == MODE_DECODE || s->now.section == SECTION_REFUSE) return false;
  if (copy_now(s, &list[count])) set_mode(&list[count++], MODE_DECODE);
  if (s->now.mode == MODE_MIXED && copy_now(s, &list[count])) set_mode(&list[count++], MODE_PREFILL);
  return shrink_try(s, list, count);
}

static bool try_value(shrinker *s, const quantity *what, int64_t value) {
  assay_case list[SHRINK_SEEDS];
  int32_t made = 0;
  for (uint64_t v = 0; v < seeds_of(s) && copy_now(s, &list[made]); ++v) {
    quantity_set(&list[made], what, value);
    list[made++].seed += v;
  }
  return shrink_try(s, list, made);
}

/* Down to the least of the marked values that fails, then halving the way to the one before it, which does not. */
static bool less_of(shrinker *s, const quantity *what) {
  int64_t steps[SHRINK_LIST], low = what->least - what->step;
  const int64_t value = quantity_get(&s->now, what);
  const int32_t count = quantity_steps(&s->now, what, value, s->split, steps, SHRINK_LIST);
  bool better = false;
  for (int32_t i = 0; i < count && !better && !spent(s); ++i)
    better = try_value(s, what, steps[i]);
  int64_t high = quantity_get(&s->now, what);
  for (int32_t i = 0; i < count; ++i)
    if (steps[i] < high) low = steps[i];
  if (low < what->least) return better;
  while (high - low > what->step && !spent(s)) {
    const int64_t middle = low + (high - low) / 2 / what->step * what->step;
    if (middle <= low) break;
    if (try_value(s, what, middle)) {
      better = true;
      high = middle;
    } else {
      low = middle;
    }
  }
  return better;
}

/* Some kinds of quantities; the list is made anew each time, since requests may be gone. */
static bool less_of_all(shrinker *s, quantity_kind from, quantity_kind to) {
  bool better = false;
  const int32_t room = 2 * s->now.batch + 64;
  quantity *list = calloc((size_t)room, sizeof *list);
  if (list == NULL) return false;
  const int32_t count = quantity_list(&s->now, list, room);
  for (int32_t i = 0; i < count && !spent(s); ++i)
    if (list[i].kind >= from && list[i].kind <= to && less_of(s, &list[i])) better = true;
  free(list);
  return better;
}

/* Pad rows: one key rather than none. */
static bool no_pads(shrinker *s) {
  bool better = false;
  for (int32_t i = 0; i < s->now.batch && !spent(s); ++i) {
    assay_case one;
    if (s->now.kv_len[i] != 0 || !copy_now(s, &one)) continue;
    const quantity length = {.kind = QUANTITY_LENGTH, .index = i};
    quantity_set(&one, &length, 1);
    better = shrink_try(s, &one, 1) || better;
  }
  return better;
}

static bool is_plain(const assay_case *one, const case_key *key, double plain) {
  const double value = key_get(one, key);
  return !(value < plain) && !(value > plain);
}

/* All keys at once, then one by one; then shared prefixes; then the seed. */
static bool plainer_keys(shrinker *s) {
  const int32_t keys = key_count(s->now.op);
  assay_case list[1];
  bool better = false, one_at_least = false;
  double plain = 0;
  if (copy_now(s, &list[0])) {
    for (int32_t k = 0; k < keys; ++k) {
      const case_key key = key_at(s->now.op, k);
      if (!plain_value(&s->now, &key, &plain) || is_plain(&s->now, &key, plain)) continue;
      key_set(&list[0], &key, plain);
      one_at_least = true;
    }
    if (one_at_least)
      better = shrink_try(s, list, 1);
    else
      case_free(&list[0]);
  }
  for (int32_t k = 0; k < keys && !spent(s); ++k) {
    const case_key key = key_at(s->now.op, k);
    if (!plain_value(&s->now, &key, &plain) || is_plain(&s->now, &key, plain) || !copy_now(s, &list[0])) continue;
    key_set(&list[0], &key, plain);
    better = shrink_try(s, list, 1) || better;
  }
  for (int32_t i = 0; i < s->now.batch && !spent(s); ++i) {
    if (s->now.share_with[i] < 0 || !copy_now(s, &list[0])) continue;
    list[0].share_with[i] = -1;
    list[0].share_tokens[i] = 0;
    better = shrink_try(s, list, 1) || better;
  }
  if (s->now.seed != 1 && !spent(s) && copy_now(s, &list[0])) {
    list[0].seed = 1;
    better = shrink_try(s, list, 1) || better;
  }
  return better;
}

static bool pass(shrinker *s) {
  bool better = fewer_requests(s);
  better = plainer_mode(s) || better;
  better = less_of_all(s, QUANTITY_LENGTHS, QUANTITY_NEW) || better;
  better = no_pads(s) || better;
  better = plainer_keys(s) || better;
  better = less_of_all(s, QUANTITY_HEADS, QUANTITY_DIM) || better;
  better = less_of_all(s, QUANTITY_PARAM, QUANTITY_PARAM) || better;
  return better;
}

/* ---- the whole --------------------------------------------------------------------------------------- */

static void keep_result(void *context, int64_t index, const assay_case *one, const case_result *result) {
  (void)index, (void)one;
  *(case_result *)context = *result;
}

static assay_status run_one(const shrinker *s, const assay_case *one, case_result *result, assay_error *error) {
  return execute_cases(one, 1, &s->options->execution, keep_result, result, error);
}

/* The case alone, before anything is changed: that is what all candidates are compared with. */
static assay_status reproduce(shrinker *s, const case_result *failure, shrink_outcome *made) {
  const assay_status status = run_one(s, &s->now, &made->result, s->error);
  ++s->ran;
  made->failure = failure != NULL ? *failure : made->result;
  if (status != ASSAY_OK) return status;
  s->target = made->result;
  made->reproduced = !verdict_is_good(made->result.verdict) &&
                     (failure == NULL ||
                      (failure->verdict == made->result.verdict && strcmp(failure->check, made->result.check) == 0));
  return ASSAY_OK;
}

/* What reads beyond its bounds, or depends on the order of threads of a device, may fail at one time only. */
static void confirm(shrinker *s, shrink_outcome *made) {
  const int32_t most = strcmp(s->target.check, "deadline") == 0 ? 1 : 3;
  for (made->runs = 0; made->runs < most && s->status == ASSAY_OK; ++made->runs) {
    case_result again;
    memset(&again, 0, sizeof again);
    s->status = run_one(s, &s->now, &again, s->error);
    if (s->status != ASSAY_OK) return;
    const bool same = shrink_same_reason(&s->target, &again);
    made->fails += same;
    if (same || made->runs == 0) made->result = again;
  }
}

/* The smallest case may be too small for its mistake to have a name; the one that it came from may not. */
static void explain_origin(shrinker *s, const assay_case *one, shrink_outcome *made) {
  char *text = made->result.explanation;
  case_result again;
  if (s->status != ASSAY_OK || made->result.kind[0] == '\0') return;
  if (text[0] != '\0' && strncmp(text, "nothing", 7) != 0) return;
  memset(&again, 0, sizeof again);
  s->status = run_one(s, one, &again, s->error);
  if (again.explanation[0] == '\0' || strncmp(again.explanation, "nothing", 7) == 0) return;
  (void)snprintf(text, sizeof made->result.explanation, "%.190s (in the case as it was)", again.explanation);
}

assay_status shrink_case(const assay_case *one, const case_result *failure, const shrink_options *options,
                         shrink_outcome *made, assay_error *error) {
  *made = (shrink_outcome){.reproduced = false};
  shrinker s = {.options = options,
                .most = options->cases > 0 ? options->cases : FALLBACK_CASES,
                .stop_ms = judge_now_ms() + 1e3 * (options->seconds > 0 ? options->seconds : FALLBACK_SECONDS),
                .error = error};
  const assay_variant *variant = assay_variant_find(one->op->name, one->variant, one->device);
  s.split = variant != NULL ? variant->contract.keys_per_split : 0;
  s.line = malloc(CASE_MAX_LINE);
  if (s.line == NULL) return assay_fail(error, ASSAY_ERR_MEMORY, "shrink: out of memory");
  s.status = case_copy(one, &s.now, error);
  if (s.status == ASSAY_OK) s.status = reproduce(&s, failure, made);
  if (s.status == ASSAY_OK && made->reproduced) {
    while (pass(&s) && !spent(&s))
      continue;
    made->exhausted = spent(&s);
    /* What makes the difference has a budget of its own. */
    s.most = s.ran + FALLBACK_CASES;
    if (judge_now_ms() > s.stop_ms - 5e3) s.stop_ms = judge_now_ms() + 5e3;
    shrink_difference(&s, made->difference, sizeof made->difference);
    explain_enable(true);
    confirm(&s, made);
    explain_origin(&s, one, made);
    explain_enable(false);
  }
  made->cases = s.ran;
  made->smallest = s.now;
  free(s.known);
  free(s.line);
  return s.status;
}

void shrink_free(shrink_outcome *made) {
  case_free(&made->smallest);
}
