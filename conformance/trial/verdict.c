/* verdict.c: sets and names verdicts, and notes the laws that a case was asked. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "trial.h"

const char *verdict_name(verdict v) {
  static const char *const name[] = {"PASS", "FAIL",    "HANG",        "CRASH", "STATE",
                                     "HOST", "REFUSED", "UNSUPPORTED", "WEAK"};
  return (unsigned)v < sizeof name / sizeof name[0] ? name[v] : "?";
}

bool verdict_is_good(verdict v) {
  return v == VERDICT_PASS || v == VERDICT_REFUSED || v == VERDICT_UNSUPPORTED;
}

bool verdict_is_rare(verdict v) {
  return v == VERDICT_STATE || v == VERDICT_HOST;
}

void verdict_set(case_result *result, verdict v, const char *check, const char *format, ...) {
  va_list list;
  result->verdict = v;
  (void)snprintf(result->check, sizeof result->check, "%s", check);
  va_start(list, format);
  (void)vsnprintf(result->message, sizeof result->message, format, list);
  va_end(list);
}

bool verdict_no_memory(case_result *result) {
  verdict_set(result, VERDICT_HOST, "host", "the host has no memory left for the judge");
  return false;
}

void verdict_blame_host(case_result *result, assay_status status) {
  if (status != ASSAY_ERR_MEMORY) return;
  result->verdict = VERDICT_HOST;
  (void)snprintf(result->check, sizeof result->check, "host");
}

bool verdict_take_host(case_result *result, const case_result *unused) {
  if (unused->verdict != VERDICT_HOST) return true;
  verdict_set(result, VERDICT_HOST, unused->check, "%s", unused->message);
  return false;
}

void verdict_note_state(case_result *result, const char *change) {
  char was[sizeof result->message];
  if (change == NULL) return;
  if (result->verdict == VERDICT_CRASH || result->verdict == VERDICT_HANG || result->verdict == VERDICT_HOST) return;
  memcpy(was, result->message, sizeof was);
  const bool good = verdict_is_good(result->verdict);
  const char *before = verdict_name(result->verdict);
  char check[sizeof result->check];
  memcpy(check, result->check, sizeof check);
  verdict_set(result, VERDICT_STATE, "state", "%s%s%s%s%s%s%.1000s", change, good ? "" : "; besides, ",
              good ? "" : before, good ? "" : " ", good ? "" : check, good ? "" : ": ", good ? "" : was);
}

void result_add_law(case_result *result, const char *law) {
  const size_t used = strlen(result->laws);
  (void)snprintf(result->laws + used, sizeof result->laws - used, "%s%s", used > 0 ? "," : "", law);
}
