/* golden_test.c: what a user sees of every kind of failure: printed text, replay line, shrunk suite, byte for byte as
 * in golden/KIND.txt. ASSAY_GOLDEN_WRITE=1 writes the files instead, for a change that is meant. The suite is read
 * back and its case fails in the same way. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "conformance/expand.h"
#include "conformance/shrink.h"
#include "core/registry.h"
#include "fake.h"

enum { ROOM = 1 << 16 };

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

/* ---- text -------------------------------------------------------------------------------------------- */

static void read_text(FILE *from, char *text) {
  const size_t n = fread(text, 1, ROOM - 1, from);
  text[n] = '\0';
}

/* The sign of a NaN is the compiler's. */
static void no_signs_of_nan(char *text) {
  for (char *at = strstr(text, "-nan"); at != NULL; at = strstr(at, "-nan"))
    memmove(at, at + 1, strlen(at));
}

/* A suite of its own in a folder of its own; expands to one case. */
static void read_back(const char *yaml, const char *kind, assay_case *one) {
  char folder[] = "/tmp/golden.XXXXXX", path[256];
  assay_error error = {""};
  case_list list = {NULL, 0};
  cr_assert_not_null(mkdtemp(folder));
  (void)snprintf(path, sizeof path, "%s/%s.yaml", folder, kind);
  FILE *file = fopen(path, "w");
  cr_assert_not_null(file);
  (void)fputs(yaml, file);
  cr_assert_eq(fclose(file), 0);
  cr_assert_eq(expand_suite(path, 99, &list, &error), ASSAY_OK, "%s", error.text);
  cr_assert_eq(list.count, 1);
  cr_assert_eq(case_copy(&list.cases[0], one, &error), ASSAY_OK);
  case_list_free(&list);
  (void)unlink(path);
  (void)rmdir(folder);
}

static void keep(void *context, int64_t index, const assay_case *one, const case_result *result) {
  (void)index, (void)one;
  *(case_result *)context = *result;
}

static void compare(const char *kind, const char *text) {
  static char expected[ROOM];
  char path[512];
  (void)snprintf(path, sizeof path, "%s/conformance/selftest/golden/%s.txt", ASSAY_SOURCE_DIR, kind);
  if (getenv("ASSAY_GOLDEN_WRITE") != NULL) {
    FILE *to = fopen(path, "w");
    cr_assert_not_null(to, "%s", path);
    (void)fputs(text, to);
    cr_assert_eq(fclose(to), 0);
    return;
  }
  FILE *from = fopen(path, "r");
  cr_assert_not_null(from, "%s: ASSAY_GOLDEN_WRITE=1 %s writes it", path, "golden_test");
  read_text(from, expected);
  (void)fclose(from);
  cr_assert_str_eq(text, expected, "%s is not what is printed now:\n%s", path, text);
  /* The comparison itself: one other byte, one less. */
  const size_t n = strlen(expected);
  cr_assert_gt(n, 100);
  expected[n / 2] ^= 1;
  cr_assert_str_neq(text, expected);
  expected[n / 2] ^= 1;
  expected[n - 1] = '\0';
  cr_assert_str_neq(text, expected);
}

/* Shrinks, prints, compares, and runs the written suite again. Takes the case. */
static void golden(const char *kind, assay_case one, double deadline_s) {
  static char text[ROOM], yaml[ROOM];
  static shrink_outcome made;
  static case_result again;
  assay_error error = {""};
  assay_case back;
  char name[64], file[80];
  const shrink_options options = {.execution = {.workers = 2, .deadline_s = deadline_s}};
  cr_assert_eq(shrink_case(&one, NULL, &options, &made, &error), ASSAY_OK, "%s", error.text);
  cr_assert(made.reproduced);
  cr_assert_not(made.exhausted);
  shrink_name(&made.smallest, made.result.check, name, sizeof name);
  (void)snprintf(file, sizeof file, "DIR/%s.yaml", name);
  FILE *to = tmpfile();
  cr_assert_not_null(to);
  shrink_yaml(to, &made, NULL);
  rewind(to);
  read_text(to, yaml);
  rewind(to);
  cr_assert_eq(ftruncate(fileno(to), 0), 0);
  shrink_print(to, &made, NULL, file);
  (void)fprintf(to, "---- %s\n%s", file, yaml);
  rewind(to);
  read_text(to, text);
  (void)fclose(to);
  no_signs_of_nan(text);
  compare(kind, text);

  read_back(yaml, name, &back);
  (void)snprintf(back.variant, sizeof back.variant, "%s", made.smallest.variant);
  (void)snprintf(back.device, sizeof back.device, "%s", made.smallest.device);
  cr_assert_eq(back.seed, made.smallest.seed);
  cr_assert_eq(execute_cases(&back, 1, &options.execution, keep, &again, &error), ASSAY_OK, "%s", error.text);
  cr_assert(shrink_same_reason(&again, &made.result), "%s %s: %s", verdict_name(again.verdict), again.check,
            again.message);
  case_free(&back);
  case_free(&one);
  shrink_free(&made);
}

static void broken(const char *kind, fake_fault fault) {
  fake_register();
  fake_broken = fault;
  golden(kind, fake_case(TIER_EXACT), 20);
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
  golden("wrong_mean", one, 20);
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
  golden("deadline", fake_case(TIER_EXACT), 0.05);
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
  golden("refused", one, 20);
}
Test(golden, weak) {
  fake_register();
  register_weak();
  fake_broken = FAULT_NONE;
  assay_case one = fake_case(TIER_EXACT);
  one.op = &weak_op;
  golden("weak", one, 20);
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
  static shrink_outcome made;
  assay_error error = {""};
  fake_register();
  fake_broken = FAULT_NONE;
  assay_case one = fake_case(TIER_EXACT);
  shrink_options options = {.execution = {.workers = 1, .deadline_s = 20}};
  cr_assert_eq(shrink_case(&one, NULL, &options, &made, &error), ASSAY_OK);
  cr_assert_not(made.reproduced);
  cr_assert_eq(made.cases, 1);
  shrink_free(&made);
  fake_broken = FAULT_LAST_KEY;
  options.cases = 5;
  cr_assert_eq(shrink_case(&one, NULL, &options, &made, &error), ASSAY_OK);
  cr_assert(made.reproduced && made.exhausted);
  cr_assert_eq(made.result.verdict, VERDICT_FAIL);
  shrink_free(&made);
  case_free(&one);
}
