/* ledger_test.c: what a ledger may say, whom an entry names, and when it is out of date. */
#include <criterion/criterion.h>
#include <stdio.h>

#include "conformance/run/ledger.h"
#include "conformance/report/run_report.h"
#include "fake.h"
#include "suite_fixture.h"

static const char good[] = "expected:\n"
                           "  - op: fake_gate\n"
                           "    variant: one\n"
                           "    check: element\n"
                           "    filter: s/check\n"
                           "    reason: partial sums in f16\n"
                           "  - {op: fake_gate, variant: two, check: crash, reason: known}\n";

static ledger *open_good(void) {
  ledger *l = NULL;
  assay_error error = {""};
  fake_register();
  cr_assert_eq(ledger_open(suite_fixture_write("good.yaml", good, -1), &l, &error), ASSAY_OK, "%s", error.text);
  return l;
}

static const ledger_entry *note(ledger *l, const char *variant, const char *suite, verdict v, const char *check) {
  assay_case one = fake_case(TIER_CALIBRATED);
  case_result result = {.verdict = v};
  (void)snprintf(one.variant, sizeof one.variant, "%s", variant);
  (void)snprintf(one.suite, sizeof one.suite, "%s", suite);
  (void)snprintf(result.check, sizeof result.check, "%s", check);
  const ledger_entry *entry = ledger_note(l, &one, &result);
  case_free(&one);
  return entry;
}

Test(ledger, a_failure_is_expected_by_operator_variant_check_and_filter) {
  ledger *l = open_good();
  const ledger_entry *entry = note(l, "one", "s", VERDICT_FAIL, "element");
  cr_assert_not_null(entry);
  cr_assert_str_eq(entry->reason, "partial sums in f16");
  cr_assert(strstr(entry->where, "good.yaml:2:5") != NULL, "%s", entry->where);
  cr_assert_null(note(l, "one", "s", VERDICT_FAIL, "row"), "another check");
  cr_assert_null(note(l, "one", "t", VERDICT_FAIL, "element"), "another suite");
  cr_assert_null(note(l, "two", "s", VERDICT_FAIL, "element"), "another variant");
  cr_assert_null(note(l, "one", "s", VERDICT_PASS, ""));
  cr_assert_not_null(note(l, "two", "anything", VERDICT_CRASH, "crash"));
  cr_assert_null(note(NULL, "one", "s", VERDICT_FAIL, "element"), "no ledger expects nothing");
  ledger_close(l);
}

Test(ledger, an_entry_whose_cases_pass_is_stale) {
  ledger *l = open_good();
  cr_assert_not(ledger_is_stale(ledger_at(l, 0)), "nothing of it ran");
  (void)note(l, "one", "s", VERDICT_UNSUPPORTED, "launch");
  (void)note(l, "one", "t", VERDICT_PASS, "");
  cr_assert_not(ledger_is_stale(ledger_at(l, 0)), "nothing of it was judged");
  (void)note(l, "one", "s", VERDICT_PASS, "");
  cr_assert(ledger_is_stale(ledger_at(l, 0)));
  (void)note(l, "one", "s", VERDICT_FAIL, "row");
  cr_assert(ledger_is_stale(ledger_at(l, 0)), "it fails, but not as it says");
  (void)note(l, "one", "s", VERDICT_FAIL, "element");
  cr_assert_not(ledger_is_stale(ledger_at(l, 0)));
  cr_assert_eq(ledger_at(l, 0)->ran, 3);
  cr_assert_eq(ledger_at(l, 0)->failed, 1);
  cr_assert_null(ledger_at(l, 2));
  ledger_close(l);
}

static void refused(const char *text, const char *where, const char *what) {
  ledger *l = NULL;
  assay_error error = {""};
  cr_assert_eq(ledger_open(suite_fixture_write("bad.yaml", text, -1), &l, &error), ASSAY_ERR_INPUT, "%s", text);
  cr_assert(strstr(error.text, where) != NULL && strstr(error.text, what) != NULL, "%s", error.text);
  cr_assert_null(l);
}

Test(ledger, what_is_wrong_is_refused_with_its_place) {
  fake_register();
  refused("expected:\n  - {op: fake_gate, variant: v, check: row}\n", "bad.yaml:2:5", "reason");
  refused("expected:\n  - {op: fake_gate, variant: v, check: row, reason: ''}\n", "bad.yaml:2:53", "reason");
  refused("expected:\n  - {op: nobody, variant: v, check: row, reason: r}\n", "bad.yaml:2:10", "nobody");
  refused("expected:\n  - {op: fake_gate, variant: v, check: rows, reason: r}\n", "bad.yaml:2:40", "rows");
  refused("expected:\n  - {op: fake_gate, variant: v, check: row, reason: r, tolerance: 2}\n",
          "bad.yaml:2:", "tolerance");
  refused("expected:\n  - fake_gate\n", "bad.yaml:2:5", "map");
  refused("expected: []\nmore: 1\n", "bad.yaml:2:1", "more");
  refused("{}\n", "bad.yaml:1:1", "expected");
  refused("expected:\n  - {op: fake_gate, variant: v, check: row, reason: r}\n"
          "  - {op: fake_gate, variant: v, check: row, reason: r}\n",
          "bad.yaml:3:5", "once");
  ledger *l = NULL;
  assay_error error = {""};
  cr_assert_eq(ledger_open("/nowhere/ledger.yaml", &l, &error), ASSAY_ERR_INPUT, "%s", error.text);
}

/* Expected failures alone are a good run; one that is not expected is none. */
Test(ledger, reports) {
  for (int bad = 0; bad < 2; ++bad) {
    const report_options options = {.device = "fake"};
    report *r = NULL;
    assay_error error = {""};
    assay_case one = fake_case(TIER_CALIBRATED);
    const case_result result = {.verdict = VERDICT_FAIL, .check = "element"};
    cr_assert_eq(report_open(&options, &r, &error), ASSAY_OK);
    report_expected(r, &one, &result, "known");
    if (bad == 1) report_add(r, &one, &result);
    cr_assert_eq(report_close(r, &error), bad);
    case_free(&one);
  }
}
