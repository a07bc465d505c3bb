/* golden_test.c: what a user sees of every kind of failure: printed text, replay line, shrunk suite (golden_fixture.h).
 */
#include <criterion/criterion.h>
#include <stdio.h>

#include "conformance/shrink/shrink.h"
#include "core/registry.h"
#include "fake.h"
#include "golden_fixture.h"

/* ---- an operator whose reference finds the case inadmissible ------------------------------------------ */

static assay_op weak_op;
static assay_variant weak_variant;

static assay_status off_lattice(const assay_call *call, const assay_contract *contract, const assay_rows *rows,
                                bool exact, assay_expected *expected, assay_seen *seen, assay_error *error) {
  if (call->arg[FAKE_ARG_Q].shape[1] > 2) return assay_fail(error, ASSAY_ERR_INPUT, "v: 0.3 is not on the lattice");
  return fake_op.reference(call, contract, rows, exact, expected, seen, error);
}

static void register_weak(void) {
  assay_error error = {""};
  if (assay_op_find("fake_weak") != NULL) return;
  weak_op = fake_op;
  weak_op.name = "fake_weak";
  weak_op.reference = off_lattice;
  weak_variant = fake_variant;
  weak_variant.op = "fake_weak";
  (void)assay_registry_add_op(&weak_op, &error);
  (void)assay_registry_add_variants(&weak_variant, 1, "built-in", &error);
}

static void broken(const char *kind, fake_fault fault) {
  fake_register();
  fake_broken = fault;
  golden_case(kind, fake_case(TIER_EXACT), 20);
}

Test(golden, wrong_value) {
  broken("wrong_value", FAULT_LAST_KEY);
}
/* Each element in bounds, their mean not. */
Test(golden, wrong_mean) {
  fake_register();
  fake_broken = FAULT_ROW_BIAS;
  assay_case one = fake_case(TIER_CALIBRATED);
  one.dtype = one.kv_dtype = ASSAY_BF16;
  golden_case("wrong_mean", one, 20);
}
Test(golden, nan) {
  broken("nan", FAULT_NAN);
}
Test(golden, hang) {
  broken("hang", FAULT_HANG);
}
Test(golden, deadline) {
  fake_register();
  fake_broken = FAULT_SPIN;
  golden_case("deadline", fake_case(TIER_EXACT), 0.05);
}
Test(golden, crash) {
  broken("crash", FAULT_SEGV);
}
Test(golden, overrun) {
  broken("overrun", FAULT_GUARD_AFTER);
}
Test(golden, workspace_overrun) {
  broken("workspace_overrun", FAULT_GUARD_WORKSPACE);
}
Test(golden, input_changed) {
  broken("input_changed", FAULT_INPUT);
}
Test(golden, unwritten) {
  broken("unwritten", FAULT_UNWRITTEN);
}
Test(golden, nondeterministic) {
  broken("nondeterministic", FAULT_RUN_TO_RUN);
}
Test(golden, dead_bytes) {
  broken("dead_bytes", FAULT_DEAD_TAIL);
}
Test(golden, launch) {
  broken("launch", FAULT_LAUNCH);
}
Test(golden, refused) {
  fake_register();
  fake_broken = FAULT_ACCEPTS;
  assay_case one = fake_case(TIER_CALIBRATED);
  one.section = SECTION_REFUSE;
  one.broken = BREAK_NULL;
  (void)snprintf(one.expect, sizeof one.expect, "q");
  golden_case("refused", one, 20);
}
Test(golden, weak) {
  fake_register();
  register_weak();
  fake_broken = FAULT_NONE;
  assay_case one = fake_case(TIER_EXACT);
  one.op = &weak_op;
  golden_case("weak", one, 20);
}

/* Another check, another kind, another beginning of a message: another reason. */
Test(golden, same_reason) {
  const case_result a = {.verdict = VERDICT_FAIL, .check = "exact", .kind = "value", .message = "out: request 1"};
  case_result b = a;
  (void)snprintf(b.message, sizeof b.message, "out: request 0");
  cr_assert(shrink_same_reason(&a, &b));
  (void)snprintf(b.kind, sizeof b.kind, "nan");
  cr_assert_not(shrink_same_reason(&a, &b));
  b = a;
  (void)snprintf(b.check, sizeof b.check, "element");
  cr_assert_not(shrink_same_reason(&a, &b));
  b = a;
  b.verdict = VERDICT_CRASH;
  cr_assert_not(shrink_same_reason(&a, &b));
  case_result c = {.verdict = VERDICT_FAIL, .check = "refusal", .message = "launch() accepts a call"}, d = c;
  (void)snprintf(d.message, sizeof d.message, "the reference accepts a call");
  cr_assert(shrink_same_reason(&c, &c));
  cr_assert_not(shrink_same_reason(&c, &d));
}

/* A case that passes is not shrunk, and a spent budget is said to be. */
Test(golden, nothing_to_shrink) {
  static shrink_outcome outcome;
  assay_error error = {""};
  fake_register();
  fake_broken = FAULT_NONE;
  assay_case one = fake_case(TIER_EXACT);
  shrink_options options = {.execution = {.workers = 1, .deadline_s = 20}};
  cr_assert_eq(shrink_case(&one, NULL, &options, &outcome, &error), ASSAY_OK);
  cr_assert_not(outcome.reproduced);
  cr_assert_eq(outcome.cases, 1);
  shrink_free(&outcome);
  fake_broken = FAULT_LAST_KEY;
  options.cases = 5;
  cr_assert_eq(shrink_case(&one, NULL, &options, &outcome, &error), ASSAY_OK);
  cr_assert(outcome.reproduced && outcome.exhausted);
  cr_assert_eq(outcome.result.verdict, VERDICT_FAIL);
  shrink_free(&outcome);
  /* A case that does not end in a candidate's deadline is no HANG. */
  fake_broken = FAULT_SLOW_LAST_KEY;
  options = (shrink_options){
      .execution = {.workers = 1, .deadline_s = 0.1}, .whole_deadline_s = 20, .cases = 2, .seconds = 1};
  cr_assert_eq(shrink_case(&one, NULL, &options, &outcome, &error), ASSAY_OK);
  cr_assert(outcome.reproduced);
  cr_assert_eq(outcome.failure.verdict, VERDICT_FAIL, "%s", outcome.failure.check);
  shrink_free(&outcome);
  case_free(&one);
}
