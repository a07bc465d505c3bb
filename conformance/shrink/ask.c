/* ask.c: asks whether a candidate fails for the same reason as the original; answers are kept by descriptor. */
#include <stdlib.h>
#include <string.h>

#include "conformance/run/run.h"
#include "conformance/trial/trial.h"
#include "core/hash.h"
#include "shrink_internal.h"

/* Returns the length of the text before the first figure, comma or ". ": the part before any count. */
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

static uint64_t hash_of(const char *text) {
  return hash_text(HASH_OLD_START, text) & ~(uint64_t)7;
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
    if (grown == NULL) return; /* the answer is not kept and may be asked again */
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
  if (s->ran + wanted > s->most || device_now_ms() > s->stop_ms) {
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

/* Returns the number of seeds per candidate. A smaller case may be right by chance with the original values. A few
 * other seeds are therefore tried as well, unless each costs a deadline. */
uint64_t shrink_seeds(const shrinker *s) {
  return strcmp(s->target.check, "deadline") == 0 ? 1 : SHRINK_SEEDS;
}

/* A PASS counts only after many of them. */
void shrink_ask_seeds(shrinker *s, const assay_case *list, int32_t count, answer *answers) {
  const uint64_t seeds = shrink_seeds(s) > 1 ? 3 * shrink_seeds(s) : 1;
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
      if (answers[i] != ANSWER_PASS) break; /* a case that is unsupported with one seed is so with all */
    }
  }
}
