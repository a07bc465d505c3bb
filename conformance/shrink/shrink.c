/* shrink.c: shrinks greedily, from large steps to small ones. It ends when no step leads to a smaller case that fails
 * for the same reason, or when the budget is spent. */
#include "shrink.h"

#include <stdlib.h>

#include "core/hash.h"
#include "core/registry.h"
#include "conformance/planted/planted.h"
#include "conformance/generate/generate.h"
#include "conformance/trial/trial.h"
#include "shrink_internal.h"

enum { FALLBACK_CASES = 2000, FALLBACK_SECONDS = 60 };

static bool spent(const shrinker *s) {
  return s->status != ASSAY_OK || s->ran >= s->most || device_now_ms() > s->stop_ms;
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
  int32_t count = 0;
  for (uint64_t v = 0; v < shrink_seeds(s) && copy_now(s, &list[count]); ++v) {
    quantity_set(&list[count], what, value);
    list[count++].seed += v;
  }
  return shrink_try(s, list, count);
}

/* Lowers a quantity to the least marked value that fails, then bisects down to the marked value before it, which does
 * not. */
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

/* Lowers some kinds of quantities. The list is made anew each time, since requests may be gone. */
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

/* Gives pad rows one key instead of none. */
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

/* Tries plainer keys: all at once, one by one, shared prefixes, the seed. */
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

/* Runs the case alone before anything is changed. All candidates are compared with that result. A case that does not
 * end in a candidate's deadline has the whole one, unless it failed by that. Candidates then have twice its time. */
static assay_status reproduce(shrinker *s, shrink_options *own, const case_result *failure, shrink_outcome *outcome) {
  assay_status status = run_one(s, &s->now, &outcome->result, s->error);
  const bool slow = failure == NULL || strcmp(failure->check, "deadline") != 0;
  ++s->ran;
  if (status == ASSAY_OK && slow && strcmp(outcome->result.check, "deadline") == 0 &&
      own->whole_deadline_s > own->execution.deadline_s) {
    const double short_s = own->execution.deadline_s, start = device_now_ms();
    own->execution.deadline_s = own->whole_deadline_s;
    status = run_one(s, &s->now, &outcome->result, s->error);
    ++s->ran;
    const double twice = 2e-3 * (device_now_ms() - start);
    if (strcmp(outcome->result.check, "deadline") == 0)
      own->execution.deadline_s = short_s;
    else if (twice < own->whole_deadline_s)
      own->execution.deadline_s = twice;
    outcome->deadline_s = own->execution.deadline_s;
  }
  outcome->failure = failure != NULL ? *failure : outcome->result;
  if (status != ASSAY_OK) return status;
  s->target = outcome->result;
  outcome->reproduced = !verdict_is_good(outcome->result.verdict) &&
                        (failure == NULL || (failure->verdict == outcome->result.verdict &&
                                             strcmp(failure->check, outcome->result.check) == 0));
  return ASSAY_OK;
}

/* Runs the smallest case several times. A case may fail only sometimes if it reads beyond its bounds, or depends on the
 * order of a device's threads. */
static void confirm(shrinker *s, shrink_outcome *outcome) {
  const int32_t most = strcmp(s->target.check, "deadline") == 0 ? 1 : 3;
  for (outcome->runs = 0; outcome->runs < most && s->status == ASSAY_OK; ++outcome->runs) {
    case_result again;
    memset(&again, 0, sizeof again);
    s->status = run_one(s, &s->now, &again, s->error);
    if (s->status != ASSAY_OK) return;
    const bool same = shrink_same_reason(&s->target, &again);
    outcome->fails += same;
    if (same || outcome->runs == 0) outcome->result = again;
  }
}

/* Explains the original where the smallest case has no explanation: it may be too small for its mistake to have a
 * name. */
static void explain_origin(shrinker *s, const assay_case *one, shrink_outcome *outcome) {
  char *text = outcome->result.explanation;
  case_result again;
  if (s->status != ASSAY_OK || outcome->result.kind[0] == '\0') return;
  if (text[0] != '\0' && strncmp(text, "nothing", 7) != 0) return;
  memset(&again, 0, sizeof again);
  s->status = run_one(s, one, &again, s->error);
  if (again.explanation[0] == '\0' || strncmp(again.explanation, "nothing", 7) == 0) return;
  (void)snprintf(text, sizeof outcome->result.explanation, "%.190s (in the case as it was)", again.explanation);
}

assay_status shrink_case(const assay_case *one, const case_result *failure, const shrink_options *options,
                         shrink_outcome *outcome, assay_error *error) {
  *outcome = (shrink_outcome){.reproduced = false, .deadline_s = options->execution.deadline_s};
  shrink_options own = *options;
  shrinker s = {.options = &own,
                .most = options->cases > 0 ? options->cases : FALLBACK_CASES,
                .stop_ms = device_now_ms() + 1e3 * (options->seconds > 0 ? options->seconds : FALLBACK_SECONDS),
                .error = error};
  const assay_variant *variant = assay_variant_find(one->op->name, one->variant, one->device);
  s.split = variant != NULL ? variant->contract.keys_per_split : 0;
  s.line = malloc(CASE_MAX_LINE);
  if (s.line == NULL) return assay_fail(error, ASSAY_ERR_MEMORY, "shrink: out of memory");
  s.status = case_copy(one, &s.now, error);
  if (s.status == ASSAY_OK) s.status = reproduce(&s, &own, failure, outcome);
  if (s.status == ASSAY_OK && outcome->reproduced) {
    while (pass(&s) && !spent(&s))
      continue;
    outcome->exhausted = spent(&s);
    /* The search for the condition has a budget of its own. */
    s.most = s.ran + FALLBACK_CASES;
    if (device_now_ms() > s.stop_ms - 5e3) s.stop_ms = device_now_ms() + 5e3;
    shrink_difference(&s, outcome->difference, sizeof outcome->difference);
    explain_enable(true);
    confirm(&s, outcome);
    explain_origin(&s, one, outcome);
    explain_enable(false);
  }
  outcome->cases = s.ran;
  outcome->smallest = s.now;
  free(s.known);
  free(s.line);
  return s.status;
}

void shrink_free(shrink_outcome *outcome) {
  case_free(&outcome->smallest);
}
