/* judge.c: one case through all of it: the reference, three runs with everything changed that may not matter,
 * and, when something is wrong, further runs with single changes until the cause has a name. */
#include "judge.h"

#include <pthread.h>
#include <stdlib.h>

#include "core/dtype.h"
#include "core/rng.h"
#include "generate_logical.h"
#include "generate_parts.h"
#include "judge_dump.h"
#include "judge_parts.h"
#include "threads.h"

enum { STREAM_ROWS = 0x6731, STREAM_SCHEDULE = 0x6732 };

const char *verdict_name(verdict v) {
  static const char *const name[] = {"PASS", "FAIL", "HANG", "CRASH", "REFUSED", "UNSUPPORTED", "WEAK"};
  return (unsigned)v < sizeof name / sizeof name[0] ? name[v] : "?";
}

bool verdict_is_good(verdict v) {
  return v == VERDICT_PASS || v == VERDICT_REFUSED || v == VERDICT_UNSUPPORTED;
}

static bool out_of_memory(case_result *result) {
  judge_verdict(result, VERDICT_FAIL, "launch", "judge: out of memory");
  return false;
}

/* ---- before the first run ---------------------------------------------------------------------------- */

static int compare_rows(const void *a, const void *b) {
  const int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
  return (x > y) - (x < y);
}

static void take_row(int64_t row, unsigned char *taken, int64_t *index, int64_t *count) {
  if (taken[row]) return;
  taken[row] = 1;
  index[(*count)++] = row;
}

/* Of `rows` rows: the last and the first of all, first and last of requests, then those whose last key is next to an
 * edge of a split; a quarter, and what is left, at random: where there are very many requests, those behind the first
 * few have rows among them, too. */
static bool choose_rows(trial *t) {
  const logical *l = t->first.logical;
  const int64_t N = t->first.rows, wanted = t->one->rows;
  t->rows = (assay_rows){N, NULL};
  if (wanted <= 0 || wanted >= N) return true;
  int64_t *index = malloc((size_t)wanted * sizeof *index), count = 0;
  unsigned char *taken = calloc((size_t)N, 1);
  if (index == NULL || taken == NULL) {
    free(index);
    free(taken);
    return false;
  }
  take_row(N - 1, taken, index, &count);
  if (wanted > 1) take_row(0, taken, index, &count);
  for (int pass = 0; pass < 2; ++pass)
    for (int64_t row = 0; row < N && count < wanted - wanted / 4; ++row) {
      const int64_t request = t->first.request_of_row[row], n = t->first.position_of_row[row];
      const int64_t last = (int64_t)l->length[request] - l->fresh[request] + n;
      const bool last_row = t->one->op->form == ASSAY_PLAIN ? row == N - 1 : n == l->fresh[request] - 1;
      const bool ends = n == 0 || last_row, edge = last % 256 == 0 || last % 256 == 255;
      if (pass == 0 ? ends : edge) take_row(row, taken, index, &count);
    }
  assay_rng rng = {t->one->seed, STREAM_ROWS, 0};
  while (count < wanted)
    take_row(assay_rng_range(&rng, 0, N - 1), taken, index, &count);
  free(taken);
  qsort(index, (size_t)count, sizeof *index, compare_rows);
  t->row_index = index;
  t->rows = (assay_rows){count, index};
  return true;
}

static bool may_skip_v(const trial *t) {
  return t->variant->contract.zero_p_v != ASSAY_V_MULTIPLIED && t->row_index == NULL;
}

/* Only operators that take special values have live NaN or Inf; elsewhere a reference that is NaN has read what is
 * dead, and would excuse anything. */
static bool usable(const trial *t, int32_t o, double value, double sigma) {
  const trial_output *out = &t->output[o];
  const bool special = t->one->values == ASSAY_SPECIAL;
  if (sigma < 0) { /* op.h: the bits before the call */
    const double elements = (double)(out->rows * out->width);
    return out->inout && out->kind != OUTPUT_CACHE &&
           (sigma == ASSAY_UNCHANGED || (sigma == ASSAY_MOVED && value >= 0 && value < elements));
  }
  if (assay_is_nan(value)) return special;
  return !assay_is_finite(value) || assay_is_finite(sigma);
}

static bool usable_reference(const trial *t, case_result *result) {
  for (int32_t o = 0; o < t->count; ++o)
    for (int64_t i = 0; i < outputs_judged(t, o) * t->output[o].width; ++i) {
      const double value = t->expected[o].value[i], sigma = t->expected[o].sigma[i];
      if (usable(t, o, value, sigma)) continue;
      char at[400];
      const int64_t width = t->output[o].width;
      values_describe(t, (place){o, outputs_row(t, o, i / width), i % width}, at, sizeof at);
      judge_verdict(result, VERDICT_WEAK, "admission", "%s: the reference is %g with sigma %g", at, value, sigma);
      return false;
    }
  return true;
}

/* ---- the reference, its rows shared out over threads ---- */

typedef struct rows_part {
  trial *t;
  const int64_t *index;
  bool exact;
  assay_expected *expected;
  pthread_mutex_t lock; /* of what follows */
  assay_status status;
  assay_error error;
  assay_seen seen;
} rows_part;

static void add_seen(assay_seen *all, const assay_seen *part, int64_t bytes) {
  all->visible_keys += part->visible_keys;
  all->live_keys += part->live_keys;
  for (int64_t i = 0; i < bytes && all->v_needed != NULL; ++i)
    all->v_needed[i] |= part->v_needed[i];
}

static void reference_rows(void *context, int64_t begin, int64_t end) {
  rows_part *p = context;
  trial *t = p->t;
  const assay_op *op = t->one->op;
  const int64_t bytes = p->seen.slots * t->first.logical->H_kv;
  const assay_rows rows = {end - begin, p->index + begin};
  assay_expected own[ASSAY_MAX_OUTPUTS];
  assay_seen seen = {.first_slot = p->seen.first_slot, .slots = p->seen.slots};
  assay_error error = {""};
  for (int32_t o = 0; o < t->count; ++o)
    own[o] = (assay_expected){p->expected[o].value + begin * t->output[o].width,
                              p->expected[o].sigma + begin * t->output[o].width};
  if (p->seen.v_needed != NULL) seen.v_needed = calloc((size_t)bytes + 1, 1);
  assay_status status = p->seen.v_needed != NULL && seen.v_needed == NULL
                            ? assay_fail(&error, ASSAY_ERR_MEMORY, "judge: out of memory")
                            : op->reference(&t->first.call, &t->variant->contract, &rows, p->exact, own, &seen, &error);
  (void)pthread_mutex_lock(&p->lock);
  if (status == ASSAY_OK) add_seen(&p->seen, &seen, bytes);
  if (status != ASSAY_OK && p->status == ASSAY_OK) {
    p->status = status;
    p->error = error;
  }
  (void)pthread_mutex_unlock(&p->lock);
  free(seen.v_needed);
}

/* The same call of the reference, in parts where its rows are all there is. */
static assay_status ask_rows(trial *t, const assay_call *call, bool exact, assay_expected *expected, assay_seen *seen,
                             assay_error *error) {
  const assay_op *op = t->one->op;
  bool parts = threads_used() > 1 && call == &t->first.call && (op->form == ASSAY_PAGED || op->row_dim != NULL) &&
               t->rows.count > 1;
  for (int32_t o = 0; o < t->count; ++o)
    parts = parts && t->output[o].kind == OUTPUT_ROWS;
  int64_t *index = parts && t->row_index == NULL ? malloc((size_t)t->rows.count * sizeof *index) : NULL;
  if (!parts || (t->row_index == NULL && index == NULL))
    return op->reference(call, &t->variant->contract, &t->rows, exact, expected, seen, error);
  for (int64_t r = 0; r < t->rows.count && index != NULL; ++r)
    index[r] = r;
  rows_part p = {.t = t, .index = index != NULL ? index : t->row_index, .exact = exact, .expected = expected};
  p.seen = *seen;
  p.seen.visible_keys = p.seen.live_keys = 0;
  (void)pthread_mutex_init(&p.lock, NULL);
  threads_for(t->rows.count, 1, reference_rows, &p);
  (void)pthread_mutex_destroy(&p.lock);
  free(index);
  *seen = p.seen;
  if (p.status != ASSAY_OK && error != NULL) *error = p.error;
  return p.status;
}

/* Outputs of fixed type (lse) have no exact tier. Where there are some, the proof that a case is on the lattice
 * is asked for the call without them, and their values are then asked for without a proof. */
static assay_status ask_reference(trial *t, assay_error *error) {
  const assay_op *op = t->one->op;
  const bool exact = t->one->tier == TIER_EXACT;
  assay_tensor arg[ASSAY_MAX_ARGS];
  assay_expected expected[ASSAY_MAX_OUTPUTS];
  assay_seen unused = {.first_slot = t->seen.first_slot, .slots = t->seen.slots};
  int32_t proven = 0;
  memcpy(arg, t->first.arg, sizeof arg);
  for (int32_t o = 0; o < t->count; ++o) {
    if (!exact || t->output[o].exact || op->form == ASSAY_PLAIN)
      expected[proven++] = t->expected[o];
    else
      arg[t->output[o].arg].data = NULL;
  }
  const assay_call call = {op, arg, t->first.param};
  assay_status status = ask_rows(t, proven < t->count ? &call : &t->first.call, exact, expected, &t->seen, error);
  if (status == ASSAY_OK && proven < t->count) status = ask_rows(t, &t->first.call, false, t->expected, &unused, error);
  return status;
}

static bool compute_reference(trial *t, case_result *result) {
  const logical *l = t->first.logical;
  assay_error error = {""};
  if (t->one->op->check(&t->first.call, &error) != ASSAY_OK) {
    judge_verdict(result, VERDICT_WEAK, "admission", "the reference refuses the case: %s", error.text);
    return false;
  }
  for (int32_t o = 0; o < t->count; ++o) {
    const size_t elements = (size_t)(outputs_judged(t, o) * t->output[o].width) + 1;
    t->expected[o].value = calloc(elements, sizeof(double));
    t->expected[o].sigma = malloc(elements * sizeof(double));
    if (t->expected[o].value == NULL || t->expected[o].sigma == NULL) return out_of_memory(result);
  }
  t->seen.first_slot = place_slot_at(&t->first, t->first.first_block, 0);
  t->seen.slots = place_slots(&t->first);
  if (may_skip_v(t)) {
    t->seen.v_needed = calloc((size_t)(t->seen.slots * l->H_kv) + 1, 1);
    if (t->seen.v_needed == NULL) return out_of_memory(result);
  }
  const double start = judge_now_ms();
  const assay_status status = ask_reference(t, &error);
  result->reference_ms = judge_now_ms() - start;
  result->visible_keys = t->seen.visible_keys;
  result->live_keys = t->seen.live_keys;
  result->rows_judged = t->rows.count;
  if (status != ASSAY_OK) {
    judge_verdict(result, VERDICT_WEAK, "admission", "the reference: %s", error.text);
    return false;
  }
  return usable_reference(t, result);
}

static bool ask_variant(trial *t, case_result *result) {
  assay_error error = {""};
  device_call on;
  if (!device_place(t, &t->first, 0, &on, result)) return false;
  assay_status status = t->variant->supports(&on.call, &error);
  if (status == ASSAY_ERR_UNSUPPORTED) {
    judge_verdict(result, VERDICT_UNSUPPORTED, "launch", "%s", error.text);
    return false;
  }
  if (status == ASSAY_OK) status = t->variant->workspace(&on.call, &t->workspace_bytes, &error);
  if (status == ASSAY_OK && t->workspace_bytes < 0)
    status = assay_fail(&error, ASSAY_ERR_INTERNAL, "workspace: asks for %lld bytes", (long long)t->workspace_bytes);
  if (status == ASSAY_OK) return true;
  judge_verdict(result, VERDICT_FAIL, "launch", "supports() or workspace() of a legal call: %s", error.text);
  return false;
}

/* ---- laws -------------------------------------------------------------------------------------------- */

static uint64_t schedule_of(const trial *t, uint64_t run) {
  return logical_hash(t->one, STREAM_SCHEDULE + (run << 16));
}

/* One draw of the case, begun. `said`: what went wrong if it was not; that counts only when its turn comes. */
typedef struct draw_run {
  draw choice;
  uint64_t schedule;
  bool same_bits; /* as run 1 */
  bool tried, begun;
  image img;
  device_call on;
  case_result said;
} draw_run;

static void begin_draw(const trial *t, int32_t number, draw_run *run) {
  assay_error error = {""};
  run->tried = true;
  run->said = (case_result){.verdict = VERDICT_PASS};
  if (image_vary(&t->first, &run->choice, t->seen.v_needed, &run->img, &error) != ASSAY_OK)
    judge_verdict(&run->said, VERDICT_FAIL, "launch", "%s", error.text);
  else
    run->begun = device_begin(t, &run->img, schedule_of(t, run->schedule), number, &run->on, &run->said);
}

/* False: the run itself failed, and the verdict is set. */
static bool end_draw(const trial *t, draw_run *run, outputs *made, case_result *result) {
  if (run->begun) return device_end(t, &run->img, &run->on, made, result);
  judge_verdict(result, run->said.verdict, run->said.check, "%s", run->said.message);
  result->device_lost = result->device_lost || run->said.device_lost;
  return false;
}

static bool run_draw(const trial *t, const draw *choice, uint64_t schedule, outputs *made, case_result *result) {
  draw_run run = {.choice = *choice, .schedule = schedule};
  begin_draw(t, 0, &run);
  const bool ran = end_draw(t, &run, made, result);
  image_free(&run.img);
  return ran;
}

void judge_add_law(case_result *result, const char *law) {
  const size_t used = strlen(result->laws);
  (void)snprintf(result->laws + used, sizeof result->laws - used, "%s%s", used > 0 ? "," : "", law);
}

bool judge_has_law(const trial *t, const char *law) {
  return t->one->op->laws != NULL && strstr(t->one->op->laws, law) != NULL;
}

/* Two runs that must have the same bits have not: the first place, both values, and what was changed. */
static void set_difference(const trial *t, const outputs *before, const outputs *after, place first, int64_t count,
                           const char *check, const char *changed, case_result *result) {
  char at[400];
  values_describe(t, first, at, sizeof at);
  judge_verdict(result, VERDICT_FAIL, check, "%s: %.9g, and %.9g %s; %lld elements differ", at,
                values_load(t, before, first), values_load(t, after, first), changed, (long long)count);
}

/* Does this single change show? Sets the verdict if so. */
static bool blame(const trial *t, const outputs *plain, const draw *choice, uint64_t schedule, const char *check,
                  const char *changed, case_result *result) {
  outputs again;
  place first = {0, 0, 0};
  int64_t count = 0;
  case_result unused = {0};
  bool shows = false;
  if (outputs_make(t, &again) && run_draw(t, choice, schedule, &again, &unused) &&
      !values_equal(t, plain, &again, &first, &count)) {
    set_difference(t, plain, &again, first, count, check, changed, result);
    shows = true;
  }
  outputs_free(&again);
  result->device_lost = result->device_lost || unused.device_lost;
  return shows;
}

/* The very same call, with its threads in another order, more than once: two runs may agree by chance. */
static bool blame_repetition(const trial *t, const outputs *plain, uint64_t schedule, case_result *result) {
  for (uint64_t i = 0; i < 3; ++i)
    if (blame(t, plain, &t->first.chosen, schedule + 16 * i, "run_to_run",
              "when called again with its threads in another order", result))
      return true;
  return false;
}

bool judge_same(const trial *t, const outputs *plain, const outputs *got, const char *check, const char *changed,
                case_result *result) {
  place first = {0, 0, 0};
  int64_t count = 0;
  finding found;
  if (t->variant->contract.run_to_run) {
    if (values_equal(t, plain, got, &first, &count)) return true;
    if (!blame_repetition(t, plain, 1, result)) set_difference(t, plain, got, first, count, check, changed, result);
    return false;
  }
  values_judge(t, got, &found);
  if (found.wrong) judge_verdict(result, VERDICT_FAIL, check, "%s; %s", found.message, changed);
  return !found.wrong;
}

static void set_unwritten(const trial *t, place where, case_result *result) {
  char at[400];
  values_describe(t, where, at, sizeof at);
  judge_verdict(result, VERDICT_FAIL, "unwritten", "%s: never written", at);
}

/* What sort of wrong number it is, so that a shrunk case is wrong in the same way. */
static void set_kind(const trial *t, const outputs *got, const finding *found, case_result *result) {
  const double value = values_load(t, got, found->first);
  (void)snprintf(result->kind, sizeof result->kind, "%s",
                 assay_is_nan(value)       ? "nan"
                 : !assay_is_finite(value) ? "inf"
                                           : "value");
}

/* Run 1 is wrong. Unwritten? Another answer under another order of threads? Right with harmless dead bytes?
 * If none of these, wrong as it stands. */
static void attribute_first(const trial *t, const outputs *plain, const finding *found, case_result *result) {
  const draw own = t->first.chosen;
  outputs again;
  finding benign;
  case_result unused = {0};
  draw choice = own;
  judge_verdict(result, VERDICT_FAIL, found->check, "%s", found->message);
  if (!outputs_make(t, &again)) goto done;
  choice.poison = (uint8_t)(own.poison ^ 0x15);
  if (values_poisoned(t, plain, found->first, own.poison) && run_draw(t, &choice, 0, &again, &unused) &&
      values_poisoned(t, &again, found->first, choice.poison)) {
    set_unwritten(t, found->first, result);
    goto done;
  }
  if (t->variant->contract.run_to_run && blame_repetition(t, plain, 1, result)) goto done;
  set_kind(t, plain, found, result);
  choice = own;
  choice.dead = DEAD_ZERO;
  if (own.dead != DEAD_ZERO && run_draw(t, &choice, 0, &again, &unused)) {
    values_judge(t, &again, &benign);
    if (!benign.wrong) {
      judge_verdict(result, VERDICT_FAIL, "dead_bytes", "%s; right when all dead bytes are 0", found->message);
      goto done;
    }
  }
  explain_values(t, plain, found, result);
done:
  result->device_lost = result->device_lost || unused.device_lost;
  outputs_free(&again);
}

/* Run 2 or 3 differs from run 1, which was right. `choice` is that run's draw. */
static void attribute_later(const trial *t, const outputs *plain, const outputs *later, const draw *choice,
                            uint64_t schedule, place first, int64_t count, case_result *result) {
  const draw own = t->first.chosen;
  draw single = own;
  if (values_poisoned(t, plain, first, own.poison) && values_poisoned(t, later, first, choice->poison)) {
    set_unwritten(t, first, result);
    return;
  }
  if (blame_repetition(t, plain, schedule, result)) return;
  single.dead = choice->dead;
  if (blame(t, plain, &single, 0, "dead_bytes", "with other dead bytes", result)) return;
  single = own;
  single.dead_v = choice->dead_v;
  if (choice->dead_v && blame(t, plain, &single, 0, "zero_p_v", "with NaN in V of keys that have p = 0", result))
    return;
  single = own;
  single.poison = choice->poison;
  if (blame(t, plain, &single, 0, "dead_bytes", "with other bytes in outputs, workspace and guards", result)) return;
  single = own;
  single.placement = choice->placement;
  if (choice->placement != 0 && blame(t, plain, &single, 0, "renumbering", "with other block numbers", result)) return;
  single = own;
  single.order = choice->order;
  if (choice->order != 0 && blame(t, plain, &single, 0, "permutation", "with the requests in another order", result))
    return;
  set_difference(t, plain, later, first, count, choice->order != 0 ? "permutation" : "dead_bytes",
                 "with all of it changed at once", result);
}

/* A later run: same bits as run 1 where that is promised, else within the same bounds. */
static bool check_later(const trial *t, const outputs *plain, draw_run *run, case_result *result) {
  outputs later;
  place first = {0, 0, 0};
  int64_t count = 0;
  bool good = outputs_make(t, &later) || out_of_memory(result);
  if (good && !run->tried) begin_draw(t, 0, run);
  good = good && end_draw(t, run, &later, result);
  image_free(&run->img);
  if (good && run->same_bits && !values_equal(t, plain, &later, &first, &count)) {
    attribute_later(t, plain, &later, &run->choice, run->schedule, first, count, result);
    good = false;
  } else if (good && !run->same_bits) {
    finding found;
    values_judge(t, &later, &found);
    good = !found.wrong;
    if (!good) judge_verdict(result, VERDICT_FAIL, found.check, "%s", found.message);
    if (!good) set_kind(t, &later, &found, result);
  }
  outputs_free(&later);
  return good;
}

static case_dead other_dead(case_dead dead) {
  return dead == DEAD_NAN ? DEAD_STALE : DEAD_NAN;
}
static case_dead third_dead(case_dead dead) {
  return dead == DEAD_INF ? DEAD_LARGEST : DEAD_INF;
}

/* Run 2: other dead bytes, NaN in V that is not needed, other poison. Run 3: these again, and blocks and requests
 * elsewhere. */
static void plan_draws(const trial *t, draw_run run[2]) {
  const assay_contract *contract = &t->variant->contract;
  const draw own = t->first.chosen;
  const bool renumbering = judge_has_law(t, "renumbering"), permutation = judge_has_law(t, "permutation");
  const bool claimed = (!renumbering || contract->renumbering) && (!permutation || contract->permutation);
  run[0] = (draw_run){
      .choice = {.dead = other_dead(own.dead), .dead_v = may_skip_v(t), .poison = (uint8_t)(own.poison ^ 0x2A)},
      .schedule = 1,
      .same_bits = contract->run_to_run};
  run[1] = (draw_run){.choice = {.dead = third_dead(own.dead),
                                 .placement = renumbering ? 1 : 0,
                                 .order = permutation ? 1 : 0,
                                 .poison = (uint8_t)(own.poison ^ 0x15)},
                      .schedule = 2,
                      .same_bits = contract->run_to_run && claimed};
}

static void check_laws(const trial *t, const outputs *plain, draw_run run[2], case_result *result) {
  if (!check_later(t, plain, &run[0], result)) return;
  judge_add_law(result, "guard,input,unwritten,dead_bytes");
  if (run[0].choice.dead_v) judge_add_law(result, "zero_p_v");
  if (run[0].same_bits) judge_add_law(result, "run_to_run");
  if (!check_later(t, plain, &run[1], result)) return;
  if (judge_has_law(t, "renumbering")) judge_add_law(result, "renumbering");
  if (judge_has_law(t, "permutation")) judge_add_law(result, "permutation");
  (void)laws_further(t, plain, result);
}

/* ---- the case ---------------------------------------------------------------------------------------- */

static void judge_first(const trial *t, const outputs *plain, draw_run run[2], case_result *result) {
  const double first_ms = result->run_ms;
  char path[sizeof result->path];
  finding found;
  memcpy(path, result->path, sizeof path);
  values_judge(t, plain, &found);
  result->ratio_element = found.ratio_element;
  result->ratio_row = found.ratio_row;
  result->ratio_request = found.ratio_request;
  memcpy(result->rms, found.rms, sizeof result->rms);
  result->elements_judged = found.elements;
  if (found.wrong)
    attribute_first(t, plain, &found, result);
  else
    check_laws(t, plain, run, result);
  result->run_ms = first_ms;
  memcpy(result->path, path, sizeof path);
}

/* Where the device can look for changes itself, the three runs are under way together, each in a place of its own:
 * there is one wait. They are judged in order, as if each had followed the one before. */
static void judge_runs(trial *t, case_result *result) {
  const bool together = t->device->compare != NULL;
  outputs plain;
  device_call on;
  draw_run run[2];
  plan_draws(t, run);
  if (!outputs_make(t, &plain)) {
    (void)out_of_memory(result);
  } else if (judge_dump(t, NULL, result) && device_begin(t, &t->first, schedule_of(t, 0), 0, &on, result)) {
    for (int32_t i = 0; i < 2 && together; ++i)
      begin_draw(t, 1 + i, &run[i]);
    if (device_end(t, &t->first, &on, &plain, result) && judge_dump(t, &plain, result))
      judge_first(t, &plain, run, result);
  }
  for (int32_t i = 0; i < 2; ++i)
    image_free(&run[i].img);
  outputs_free(&plain);
}

bool trial_shape(trial *t, case_result *result) {
  assay_error error = {""};
  const draw choice = {.dead = t->one->dead, .poison = 0x03};
  if (image_shape(t->one, &choice, &t->first, &error) != ASSAY_OK) {
    judge_verdict(result, VERDICT_FAIL, "launch", "%s", error.text);
    return false;
  }
  outputs_list(t);
  return true;
}

bool trial_contents(trial *t, case_result *result) {
  assay_error error = {""};
  const assay_status status = image_fill(&t->first, NULL, &error);
  if (status != ASSAY_OK) {
    judge_verdict(result, status == ASSAY_ERR_INPUT ? VERDICT_WEAK : VERDICT_FAIL, "admission", "%s", error.text);
    return false;
  }
  if (!choose_rows(t) || !outputs_make(t, &t->initial)) return out_of_memory(result);
  outputs_gather(t, &t->first, t->first.host, &t->initial);
  return true;
}

bool trial_reference(trial *t, case_result *result) {
  return trial_contents(t, result) && compute_reference(t, result);
}

static void forget_reference(trial *t) {
  for (int32_t o = 0; o < ASSAY_MAX_OUTPUTS; ++o) {
    free(t->expected[o].value);
    free(t->expected[o].sigma);
    t->expected[o] = (assay_expected){NULL, NULL};
  }
  free(t->seen.v_needed);
  t->seen = (assay_seen){.v_needed = NULL};
}

bool trial_again(trial *t, case_result *result) {
  forget_reference(t);
  return compute_reference(t, result);
}

void trial_free(trial *t) {
  forget_reference(t);
  outputs_free(&t->initial);
  free(t->row_index);
  image_free(&t->first);
}

void judge_case(const assay_case *one, const assay_variant *variant, const assay_device *device, case_result *result) {
  trial t = {.one = one, .variant = variant, .device = device};
  assay_error error = {""};
  *result = (case_result){.verdict = VERDICT_PASS};
  image_memory(device);
  t.facts = device_facts_of(device);
  if (!trial_shape(&t, result)) goto done;
  if (one->section == SECTION_REFUSE) {
    if (image_fill(&t.first, NULL, &error) != ASSAY_OK)
      judge_verdict(result, VERDICT_FAIL, "launch", "%s", error.text);
    else
      refuse_judge(&t, result);
    goto done;
  }
  if (!ask_variant(&t, result) || !trial_reference(&t, result)) goto done;
  judge_runs(&t, result);
  power_judge(&t, result);
done:
  trial_free(&t);
}
