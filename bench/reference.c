/* reference.c: the reference itself, timed on the host. */
#include <stdlib.h>
#include <string.h>

#include "conformance/trial/trial.h"
#include "limit.h"

static bool same_values(const trial *t, const assay_expected *again) {
  for (int32_t o = 0; o < t->count; ++o) {
    const size_t bytes = (size_t)(outputs_judged(t, o) * t->output[o].width) * sizeof(double);
    if (memcmp(t->expected[o].value, again[o].value, bytes) != 0) return false;
  }
  return true;
}

static bool run(const trial *t, assay_expected *again, double *us, case_result *result) {
  assay_error error = {""};
  const assay_contract contract = t->variant->contract;
  const double start = device_now_ms();
  const assay_status status = t->one->op->reference(&t->first.call, &contract, &t->rows, false, again, NULL, &error);
  *us = (device_now_ms() - start) * 1e3;
  if (status != ASSAY_OK)
    verdict_set(result, VERDICT_FAIL, "reference", "%s", error.text);
  else if (!same_values(t, again))
    verdict_set(result, VERDICT_FAIL, "run_to_run", "the reference gave other bits when it was called again");
  return result->verdict == VERDICT_PASS;
}

void bench_reference(const assay_case *one, const bench_options *options, bench_result *result) {
  static const assay_variant definition = {.contract = {.qk_lanes = 1, .pv_lanes = 1, .lanes = 1}};
  static double us[BENCH_MAX_SAMPLES];
  bench_figure *figure = &result->figure[BENCH_HOST];
  assay_expected again[ASSAY_MAX_OUTPUTS] = {{NULL, NULL}};
  trial t = {.one = one, .variant = &definition};
  *result = (bench_result){.judged = {.verdict = VERDICT_PASS}};
  case_result *said = &result->judged;
  bool fine = trial_shape(&t, said) && trial_reference(&t, said);
  for (int32_t o = 0; o < t.count && fine; ++o) {
    const size_t elements = (size_t)(outputs_judged(&t, o) * t.output[o].width) + 1;
    again[o].value = malloc(elements * sizeof(double));
    again[o].sigma = malloc(elements * sizeof(double));
    fine = again[o].value != NULL && again[o].sigma != NULL;
    if (!fine) verdict_set(said, VERDICT_FAIL, "launch", "bench: out of memory");
  }
  double unused = 0;
  const double start = device_now_ms();
  fine = fine && run(&t, again, &unused, said);
  int32_t count = 0;
  while (fine && count < options->max_samples && count < BENCH_MAX_SAMPLES &&
         (count < 5 || device_now_ms() - start < options->budget_s * 1e3))
    fine = run(&t, again, &us[count++], said);
  if (fine) {
    figure->there = true;
    figure->launches = 1;
    figure->halves = bench_halves(us, count);
    bench_spread_of(us, count, &figure->us);
    result->factors = bench_factors(one, &t.first.call);
    if (one->op->cost != NULL) result->cost = one->op->cost(&t.first.call, &t.seen);
  }
  for (int32_t o = 0; o < ASSAY_MAX_OUTPUTS; ++o) {
    free(again[o].value);
    free(again[o].sigma);
  }
  trial_free(&t);
}
