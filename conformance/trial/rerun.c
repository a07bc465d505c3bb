/* rerun.c: further runs of a trial with other draws, and the search for the cause of a difference from the first
 * run. */
#include <string.h>

#include "core/dtype.h"
#include "trial.h"

uint64_t rerun_schedule(const trial *t, uint64_t run) {
  return logical_hash(t->one, STREAM_SCHEDULE + (run << 16));
}

void rerun_begin(const trial *t, int32_t number, draw_run *run) {
  assay_error error = {""};
  run->tried = true;
  run->failure = (case_result){.verdict = VERDICT_PASS};
  const assay_status status = image_vary(&t->first, &run->choice, t->seen.v_needed, &run->img, &error);
  if (status != ASSAY_OK) verdict_set(&run->failure, VERDICT_FAIL, "launch", "%s", error.text);
  verdict_blame_host(&run->failure, status);
  if (status == ASSAY_OK)
    run->begun = device_begin(t, &run->img, rerun_schedule(t, run->schedule), number, &run->on, &run->failure);
}

bool rerun_end(const trial *t, draw_run *run, outputs *got, case_result *result) {
  if (run->begun) return device_end(t, &run->img, &run->on, got, result);
  verdict_set(result, run->failure.verdict, run->failure.check, "%s", run->failure.message);
  result->device_lost = result->device_lost || run->failure.device_lost;
  return false;
}

bool rerun(const trial *t, const draw *choice, uint64_t schedule, outputs *got, case_result *result) {
  draw_run run = {.choice = *choice, .schedule = schedule};
  rerun_begin(t, 0, &run);
  const bool ran = rerun_end(t, &run, got, result);
  image_free(&run.img);
  return ran;
}

void rerun_set_difference(const trial *t, const outputs *before, const outputs *after, output_place first,
                          int64_t count, const char *check, const char *changed, case_result *result) {
  char at[400];
  values_describe(t, first, at, sizeof at);
  verdict_set(result, VERDICT_FAIL, check, "%s: %.9g, and %.9g %s; %lld elements differ", at,
              values_load(t, before, first), values_load(t, after, first), changed, (long long)count);
}

bool rerun_blame(const trial *t, const outputs *base, const draw *choice, uint64_t schedule, const char *check,
                 const char *changed, case_result *result) {
  outputs again;
  output_place first = {0, 0, 0};
  int64_t count = 0;
  case_result unused = {0};
  bool shows = false;
  if (outputs_make(t, &again) && rerun(t, choice, schedule, &again, &unused) &&
      !values_equal(t, base, &again, &first, &count)) {
    rerun_set_difference(t, base, &again, first, count, check, changed, result);
    shows = true;
  }
  outputs_free(&again);
  result->device_lost = result->device_lost || unused.device_lost;
  return shows;
}

bool rerun_blame_repetition(const trial *t, const outputs *base, uint64_t schedule, case_result *result) {
  for (uint64_t i = 0; i < 3; ++i)
    if (rerun_blame(t, base, &t->first.chosen, schedule + 16 * i, "run_to_run",
                    "when called again with its threads in another order", result))
      return true;
  return false;
}

bool rerun_within(const trial *t, const outputs *got, const char *check, const char *changed, case_result *result) {
  finding found;
  values_judge(t, got, &found);
  if (found.no_memory) return verdict_no_memory(result);
  if (found.wrong) verdict_set(result, VERDICT_FAIL, check, "%s; %s", found.message, changed);
  return !found.wrong;
}

bool rerun_same(const trial *t, const outputs *base, const outputs *got, const char *check, const char *changed,
                case_result *result) {
  output_place first = {0, 0, 0};
  int64_t count = 0;
  if (t->variant->contract.run_to_run) {
    if (values_equal(t, base, got, &first, &count)) return true;
    if (!rerun_blame_repetition(t, base, 1, result))
      rerun_set_difference(t, base, got, first, count, check, changed, result);
    return false;
  }
  return rerun_within(t, got, check, changed, result);
}

bool rerun_same_output(const trial *t, int32_t o, const unsigned char *base, const unsigned char *got,
                       const char *check, const char *changed, case_result *result) {
  const trial_output *out = &t->output[o];
  const int64_t size = assay_dtype_size(out->dtype), elements = out->rows * out->width;
  int64_t first = -1, count = 0;
  char at[400];
  for (int64_t i = 0; i < elements; ++i) {
    if (memcmp(base + i * size, got + i * size, (size_t)size) == 0) continue;
    if (first < 0) first = i;
    ++count;
  }
  if (first < 0) return true;
  values_describe(t, (output_place){o, first / out->width, first % out->width}, at, sizeof at);
  verdict_set(result, VERDICT_FAIL, check, "%s: %.9g, and %.9g %s; %lld elements differ", at,
              assay_load_f64(base, out->dtype, first), assay_load_f64(got, out->dtype, first), changed,
              (long long)count);
  return false;
}
