/* judge.c: one case from the reference to the verdict: three runs that change everything that must not matter. If a
 * result is wrong, further runs with single changes follow until the cause has a name. */
#include "judge.h"

#include <stdio.h>

#include "conformance/laws/laws.h"
#include "conformance/planted/planted.h"
#include "core/dtype.h"
#include "core/registry.h"
#include "judge_internal.h"
#include "conformance/generate/generate.h"
#include "conformance/trial/trial.h"
#include "conformance/text/text.h"

/* No device has more, and sums of sizes stay inside 64 bits. */
static const int64_t MOST_WORKSPACE = (int64_t)1 << 46;

/* Asks how the products of the call are summed. A variant need not know. */
static bool ask_sums(trial *t, const device_call *on, case_result *result) {
  const assay_env env = {.multiprocessors = t->facts.multiprocessors, .memory_rate = t->facts.memory_rate};
  assay_error error = {""};
  const assay_status status = variant_sums(t->variant, &on->call, &env, &t->sums, &error);
  if (status == ASSAY_ERR_UNSUPPORTED) t->sums.unit = ASSAY_SUM_NONE;
  if (status == ASSAY_ERR_UNSUPPORTED || (status == ASSAY_OK && t->one->op->product != NULL)) return true;
  verdict_set(result, VERDICT_FAIL, "predicted", "sums() of a legal call: %s",
              status == ASSAY_OK ? "the operator is no product" : error.text);
  verdict_blame_host(result, status);
  return false;
}

static bool ask_variant(trial *t, case_result *result) {
  assay_error error = {""};
  device_call on;
  if (!device_place(t, &t->first, 0, &on, result)) return false;
  assay_status status = variant_supports(t->variant, &on.call, &error);
  if (status == ASSAY_ERR_UNSUPPORTED) {
    verdict_set(result, VERDICT_UNSUPPORTED, "launch", "%s", error.text);
    return false;
  }
  if (status == ASSAY_OK) status = variant_workspace(t->variant, &on.call, &t->workspace_bytes, &error);
  if (status == ASSAY_OK && (t->workspace_bytes < 0 || t->workspace_bytes > MOST_WORKSPACE))
    status = assay_fail(&error, ASSAY_ERR_INTERNAL, "workspace: asks for %lld bytes", (long long)t->workspace_bytes);
  if (status == ASSAY_OK) return ask_sums(t, &on, result);
  if (status == ASSAY_ERR_MEMORY) return device_status(status, "supports() or workspace()", false, &error, result);
  verdict_set(result, VERDICT_FAIL, "launch", "supports() or workspace() of a legal call: %s", error.text);
  return false;
}

/* ---- laws -------------------------------------------------------------------------------------------- */

static void set_unwritten(const trial *t, output_place where, case_result *result) {
  char at[400];
  values_describe(t, where, at, sizeof at);
  verdict_set(result, VERDICT_FAIL, "unwritten", "%s: never written", at);
}

/* Notes the kind of wrong number, so that a shrunk case is wrong in the same way. */
static void set_kind(const trial *t, const outputs *got, const finding *found, case_result *result) {
  const double value = values_load(t, got, found->first);
  (void)snprintf(result->kind, sizeof result->kind, "%s",
                 assay_is_nan(value)       ? "nan"
                 : !assay_is_finite(value) ? "inf"
                                           : "value");
}

/* Finds the cause if run 1 is wrong: an element never written, a dependence on the order of threads, a dependence on
 * dead bytes. Otherwise the value is simply wrong. */
static void attribute_first(const trial *t, const outputs *base, const finding *found, case_result *result) {
  const draw own = t->first.chosen;
  outputs again;
  finding benign;
  case_result unused = {0};
  draw choice = own;
  verdict_set(result, VERDICT_FAIL, found->check, "%s", found->message);
  if (!outputs_make(t, &again)) goto done;
  choice.poison = (uint8_t)(own.poison ^ 0x15);
  if (values_poisoned(t, base, found->first, own.poison) && rerun(t, &choice, 0, &again, &unused) &&
      values_poisoned(t, &again, found->first, choice.poison)) {
    set_unwritten(t, found->first, result);
    goto done;
  }
  if (t->variant->contract.run_to_run && rerun_blame_repetition(t, base, 1, result)) goto done;
  set_kind(t, base, found, result);
  choice = own;
  choice.dead = DEAD_ZERO;
  if (own.dead != DEAD_ZERO && rerun(t, &choice, 0, &again, &unused)) {
    values_judge(t, &again, &benign);
    if (!benign.wrong) {
      verdict_set(result, VERDICT_FAIL, "dead_bytes", "%s; right when all dead bytes are 0", found->message);
      goto done;
    }
  }
  explain_values(t, base, found, result);
done:
  result->device_lost = result->device_lost || unused.device_lost;
  outputs_free(&again);
}

/* Finds the cause if run 2 or 3 differs from run 1, which was right. `choice` is that run's draw. */
static void attribute_later(const trial *t, const outputs *base, const outputs *later, const draw *choice,
                            uint64_t schedule, output_place first, int64_t count, case_result *result) {
  const draw own = t->first.chosen;
  draw single = own;
  if (values_poisoned(t, base, first, own.poison) && values_poisoned(t, later, first, choice->poison)) {
    set_unwritten(t, first, result);
    return;
  }
  if (rerun_blame_repetition(t, base, schedule, result)) return;
  single.dead = choice->dead;
  if (rerun_blame(t, base, &single, 0, "dead_bytes", "with other dead bytes", result)) return;
  single = own;
  single.dead_v = choice->dead_v;
  if (choice->dead_v && rerun_blame(t, base, &single, 0, "zero_p_v", "with NaN in V of keys that have p = 0", result))
    return;
  single = own;
  single.poison = choice->poison;
  if (rerun_blame(t, base, &single, 0, "dead_bytes", "with other bytes in outputs, workspace and guards", result))
    return;
  single = own;
  single.placement = choice->placement;
  if (choice->placement != 0 && rerun_blame(t, base, &single, 0, "renumbering", "with other block numbers", result))
    return;
  single = own;
  single.order = choice->order;
  if (choice->order != 0 &&
      rerun_blame(t, base, &single, 0, "permutation", "with the requests in another order", result))
    return;
  rerun_set_difference(t, base, later, first, count, choice->order != 0 ? "permutation" : "dead_bytes",
                       "with all of it changed at once", result);
}

/* Checks a later run: it has the same bits as run 1 where that is promised, else it is within the same bounds. */
static bool check_later(const trial *t, const outputs *base, draw_run *run, case_result *result) {
  outputs later;
  output_place first = {0, 0, 0};
  int64_t count = 0;
  bool good = outputs_make(t, &later) || verdict_no_memory(result);
  if (good && !run->tried) rerun_begin(t, 0, run);
  good = good && rerun_end(t, run, &later, result);
  image_free(&run->img);
  if (good && run->same_bits && !values_equal(t, base, &later, &first, &count)) {
    attribute_later(t, base, &later, &run->choice, run->schedule, first, count, result);
    good = false;
  } else if (good && !run->same_bits) {
    finding found;
    values_judge(t, &later, &found);
    good = !found.wrong;
    if (found.no_memory)
      (void)verdict_no_memory(result);
    else if (!good)
      verdict_set(result, VERDICT_FAIL, found.check, "%s", found.message);
    if (!good && !found.no_memory) set_kind(t, &later, &found, result);
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

/* Plans run 2 with other dead bytes, NaN in V that is not needed, and other poison. Plans run 3 with yet other bytes
 * and with blocks and requests in other places. */
static void plan_draws(const trial *t, draw_run run[2]) {
  const assay_contract *contract = &t->variant->contract;
  const draw own = t->first.chosen;
  const bool renumbering = trial_has_law(t, "renumbering"), permutation = trial_has_law(t, "permutation");
  const bool claimed = (!renumbering || contract->renumbering) && (!permutation || contract->permutation);
  run[0] = (draw_run){
      .choice = {.dead = other_dead(own.dead), .dead_v = trial_may_skip_v(t), .poison = (uint8_t)(own.poison ^ 0x2A)},
      .schedule = 1,
      .same_bits = contract->run_to_run};
  run[1] = (draw_run){.choice = {.dead = third_dead(own.dead),
                                 .placement = renumbering ? 1 : 0,
                                 .order = permutation ? 1 : 0,
                                 .poison = (uint8_t)(own.poison ^ 0x15)},
                      .schedule = 2,
                      .same_bits = contract->run_to_run && claimed};
  if (thinned_case(t->one)) run[logical_hash(t->one, STREAM_THINNED) & 1].left_out = true;
}

static void check_laws(const trial *t, const outputs *base, draw_run run[2], case_result *result) {
  bool same_bits = false;
  for (int32_t i = 0; i < 2; ++i) {
    if (run[i].left_out) continue;
    if (!check_later(t, base, &run[i], result)) return;
    same_bits = same_bits || run[i].same_bits;
  }
  result_add_law(result, "guard,input,unwritten,dead_bytes");
  if (!run[0].left_out && run[0].choice.dead_v) result_add_law(result, "zero_p_v");
  if (same_bits) result_add_law(result, "run_to_run");
  if (!run[1].left_out && trial_has_law(t, "renumbering")) result_add_law(result, "renumbering");
  if (!run[1].left_out && trial_has_law(t, "permutation")) result_add_law(result, "permutation");
  (void)laws_check(t, base, result);
}

/* Compares bits with those that the variant's sum contract gives. */
static bool check_predicted(const trial *t, const outputs *base, case_result *result) {
  predicted_finding found;
  assay_error error = {""};
  if (t->sums.unit == ASSAY_SUM_NONE || !predicted_used()) return true;
  const assay_status status = predicted_compare(&t->first.call, &t->sums, &t->rows, t->output[0].dtype, base->bits[0],
                                                t->one->seed, &found, &error);
  if (status == ASSAY_OK && !found.wrong) {
    result_add_law(result, "predicted");
    return true;
  }
  char at[400];
  const int64_t width = t->output[0].width, place = found.row * t->output[0].group + found.column;
  values_describe(t, (output_place){0, place / (width > 0 ? width : 1), place % (width > 0 ? width : 1)}, at,
                  sizeof at);
  if (status == ASSAY_OK)
    verdict_set(result, VERDICT_FAIL, "predicted", "%s: %s", at, found.message);
  else
    verdict_set(result, VERDICT_FAIL, "predicted", "the contract does not fit the call: %s", error.text);
  verdict_blame_host(result, status);
  return false;
}

/* ---- the case ---------------------------------------------------------------------------------------- */

static void judge_first(const trial *t, const outputs *base, draw_run run[2], case_result *result) {
  const double first_ms = result->run_ms;
  char path[sizeof result->path];
  finding found;
  memcpy(path, result->path, sizeof path);
  values_judge(t, base, &found);
  result->ratio_element = found.ratio_element;
  result->ratio_row = found.ratio_row;
  result->ratio_request = found.ratio_request;
  memcpy(result->rms, found.rms, sizeof result->rms);
  result->elements_judged = found.elements;
  if (found.no_memory)
    (void)verdict_no_memory(result);
  else if (found.wrong)
    attribute_first(t, base, &found, result);
  else if (check_predicted(t, base, result))
    check_laws(t, base, run, result);
  result->run_ms = first_ms;
  memcpy(result->path, path, sizeof path);
}

/* Runs and judges the case. If the device itself can look for changes, the three runs are under way together. Each has
 * a place of its own, and there is one wait. They are judged in order, as if each had followed the one before. */
static void judge_runs(trial *t, case_result *result) {
  const bool together = t->device->compare != NULL;
  outputs base;
  device_call on;
  draw_run run[2];
  plan_draws(t, run);
  if (!outputs_make(t, &base)) {
    (void)verdict_no_memory(result);
  } else if (trial_dump(t, NULL, result) && device_begin(t, &t->first, rerun_schedule(t, 0), 0, &on, result)) {
    for (int32_t i = 0; i < 2 && together; ++i)
      if (!run[i].left_out) rerun_begin(t, 1 + i, &run[i]);
    if (device_end(t, &t->first, &on, &base, result) && trial_dump(t, &base, result))
      judge_first(t, &base, run, result);
  }
  for (int32_t i = 0; i < 2; ++i)
    image_free(&run[i].img);
  outputs_free(&base);
}

/* Adds what the device noticed in the launches to the message of a wrong result, or forgets it. */
static void take_note(const assay_device *device, case_result *result) {
  const char *note = device->note != NULL ? device->note() : NULL;
  const size_t length = strlen(result->message);
  if (note == NULL || result->verdict != VERDICT_FAIL) return;
  (void)snprintf(result->message + length, sizeof result->message - length, "; %s", note);
}

void judge_case(const assay_case *one, const assay_variant *variant, const assay_device *device, case_result *result) {
  trial t = {.one = one, .variant = variant, .device = device};
  assay_error error = {""};
  *result = (case_result){.verdict = VERDICT_PASS};
  modes_set();
  modes_forget();
  image_memory(device);
  take_note(device, result);
  t.facts = device_facts_of(device);
  if (!trial_shape(&t, result)) goto done;
  if (one->section == SECTION_REFUSE) {
    const assay_status filled = image_fill(&t.first, NULL, &error);
    if (filled == ASSAY_OK)
      refuse_judge(&t, result);
    else
      verdict_set(result, VERDICT_FAIL, "launch", "%s", error.text);
    verdict_blame_host(result, filled);
    goto done;
  }
  if (!ask_variant(&t, result) || !trial_reference(&t, result)) goto done;
  if (contracts_asked() > 0) {
    contracts_judge(&t, result);
    goto done;
  }
  judge_runs(&t, result);
  power_judge(&t, result);
done:
  trial_free(&t);
  take_note(device, result);
  verdict_note_state(result, modes_noted() != NULL ? modes_noted() : assay_plugin_change(variant));
}

void judge_release(void) {
  laws_release();
  device_release();
}
