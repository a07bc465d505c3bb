/* contracts.c: see contracts.h. */
#include "contracts.h"

#include <math.h>

static const assay_contract *asked;
static int32_t asked_count;

void contracts_ask(const assay_contract *list, int32_t count) {
  asked = list;
  asked_count = count <= CONTRACTS_MOST ? count : CONTRACTS_MOST;
}

int32_t contracts_asked(void) {
  return asked_count;
}

static double largest(const finding *found) {
  const double ratio[] = {found->ratio_element, found->ratio_row, found->ratio_request};
  double most = 0;
  for (int i = 0; i < 3; ++i)
    if (!(ratio[i] <= most)) most = ratio[i];
  return found->wrong && most <= 1 ? (double)INFINITY : most;
}

/* A ratio above 1 stays above 1. */
static float as_float(double ratio) {
  const float narrow = (float)ratio;
  return ratio > 1 && narrow <= 1 ? nextafterf(1, 2) : narrow;
}

/* Judges the outputs under one contract. Returns false where the host has no memory. */
static bool judge_under(trial *t, const assay_contract *contract, const outputs *got, finding *found,
                        case_result *result) {
  assay_variant other = *t->variant;
  const assay_variant *own = t->variant;
  case_result unused = {.verdict = VERDICT_PASS};
  other.contract = *contract;
  t->variant = &other;
  *found = (finding){.wrong = true, .check = "admission", .ratio_element = (double)INFINITY};
  if (trial_again(t, &unused))
    values_judge(t, got, found);
  else
    (void)snprintf(found->message, sizeof found->message, "%.1100s", unused.message);
  t->variant = own;
  if (found->no_memory) return verdict_no_memory(result);
  return verdict_take_host(result, &unused);
}

void contracts_judge(trial *t, case_result *result) {
  outputs got;
  if (!outputs_make(t, &got)) {
    (void)verdict_no_memory(result);
  } else if (device_run(t, &t->first, rerun_schedule(t, 0), &got, result)) {
    finding found;
    for (int32_t i = 0; i < asked_count && judge_under(t, &asked[i], &got, &found, result); ++i) {
      result->rms[i] = as_float(largest(&found));
      if (found.elements > result->elements_judged) result->elements_judged = found.elements;
      if (i > 0) continue;
      result->ratio_element = found.ratio_element;
      result->ratio_row = found.ratio_row;
      result->ratio_request = found.ratio_request;
      if (found.wrong) verdict_set(result, VERDICT_FAIL, found.check, "%s", found.message);
    }
    if (result->verdict == VERDICT_HOST) result->elements_judged = 0;
  }
  outputs_free(&got);
}
