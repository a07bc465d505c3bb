/* execute_test.c: workers that crash, hang, exit or lose their device cost one case each, and no other. */
#include <criterion/criterion.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "conformance/run/execute.h"
#include "conformance/trial/trial.h"
#include "fake.h"

enum { MANY = 400 };

typedef struct seen {
  int64_t next, bad;
  verdict verdicts[MANY];
  char check[MANY][24], message[MANY][200];
} seen;

static void note(void *context, int64_t index, const assay_case *one, const case_result *result) {
  seen *s = context;
  cr_assert_eq(index, s->next, "results come in order");
  cr_assert_eq(one->seed, (uint64_t)index);
  ++s->next;
  s->bad += !verdict_is_good(result->verdict);
  s->verdicts[index] = result->verdict;
  (void)snprintf(s->check[index], sizeof s->check[index], "%s", result->check);
  (void)snprintf(s->message[index], sizeof s->message[index], "%.199s", result->message);
}

/* Case `broken` has a length of its own, by which the fake knows that it shall be broken there. */
static assay_case *some_cases(int64_t count, int64_t broken) {
  assay_case *list = calloc((size_t)count, sizeof *list);
  fake_register();
  for (int64_t i = 0; i < count; ++i) {
    list[i] = fake_case(TIER_EXACT);
    list[i].seed = (uint64_t)i;
    if (i == broken) list[i].kv_len[0] = 3;
  }
  fake_broken_length = 3;
  return list;
}

static void free_cases(assay_case *list, int64_t count) {
  for (int64_t i = 0; i < count; ++i)
    case_free(&list[i]);
  free(list);
}

static void run(fake_fault fault, int32_t workers, double deadline_s, int64_t count, int64_t broken, seen *s) {
  assay_error error = {""};
  const execute_options options = {.workers = workers, .deadline_s = deadline_s};
  assay_case *list = some_cases(count, broken);
  memset(s, 0, sizeof *s);
  fake_broken = fault;
  cr_assert_eq(execute_cases(list, count, &options, note, s, &error), ASSAY_OK, "%s", error.text);
  cr_assert_eq(s->next, count);
  cr_assert_eq(waitpid(-1, NULL, WNOHANG), -1, "no child is left");
  free_cases(list, count);
}

static seen s;

Test(execute, all_pass_in_order) {
  for (int workers = 1; workers <= 5; ++workers) {
    run(FAULT_NONE, workers, 30, MANY, -1, &s);
    cr_assert_eq(s.bad, 0, "%s", s.message[0]);
  }
}

Test(execute, one_crash_costs_one_case) {
  for (int64_t broken = 0; broken < 12; ++broken) {
    run(FAULT_SEGV, 2, 30, 12, broken, &s);
    cr_assert_eq(s.bad, 1);
    cr_assert_eq(s.verdicts[broken], VERDICT_CRASH);
    cr_assert_not_null(strstr(s.message[broken], "SIGSEGV"), "%s", s.message[broken]);
  }
  run(FAULT_SEGV, 1, 30, 12, 3, &s);
  cr_assert_eq(s.bad, 1);
  cr_assert_eq(s.verdicts[3], VERDICT_CRASH);
}

Test(execute, an_exit_is_a_crash) {
  run(FAULT_EXIT, 2, 30, 9, 4, &s);
  cr_assert_eq(s.bad, 1);
  cr_assert_eq(s.verdicts[4], VERDICT_CRASH);
  cr_assert_not_null(strstr(s.message[4], "exit status 7"), "%s", s.message[4]);
}

Test(execute, every_case_may_crash) {
  assay_error error = {""};
  const execute_options options = {.workers = 3, .deadline_s = 30};
  assay_case *list = some_cases(40, -1);
  memset(&s, 0, sizeof s);
  fake_broken = FAULT_SEGV;
  fake_broken_length = -1;
  cr_assert_eq(execute_cases(list, 40, &options, note, &s, &error), ASSAY_OK);
  cr_assert_eq(s.bad, 40);
  free_cases(list, 40);
}

Test(execute, a_deadline_is_a_hang) {
  run(FAULT_SPIN, 2, 0.3, 20, 5, &s);
  cr_assert_eq(s.bad, 1);
  cr_assert_eq(s.verdicts[5], VERDICT_HANG);
  cr_assert_str_eq(s.check[5], "deadline");
}

Test(execute, a_lost_device_takes_its_worker_along) {
  run(FAULT_DEVICE, 2, 30, 20, 5, &s);
  cr_assert_eq(s.bad, 1);
  cr_assert_eq(s.verdicts[5], VERDICT_CRASH);
  cr_assert_not_null(strstr(s.message[5], "illegal address"));
}

Test(execute, in_process) {
  assay_error error = {""};
  const execute_options options = {.in_process = true};
  assay_case *list = some_cases(10, 2);
  memset(&s, 0, sizeof s);
  fake_broken = FAULT_LAST_KEY;
  cr_assert_eq(execute_cases(list, 10, &options, note, &s, &error), ASSAY_OK);
  cr_assert_eq(s.next, 10);
  cr_assert_eq(s.bad, 1);
  cr_assert_str_eq(s.check[2], "exact");
  free_cases(list, 10);
}

Test(execute, unknown_names_fail) {
  assay_error error = {""};
  const execute_options options = {.workers = 1, .deadline_s = 30};
  assay_case *list = some_cases(2, -1);
  memset(&s, 0, sizeof s);
  (void)snprintf(list[0].variant, sizeof list[0].variant, "nobody");
  (void)snprintf(list[1].device, sizeof list[1].device, "nowhere");
  cr_assert_eq(execute_cases(list, 2, &options, note, &s, &error), ASSAY_OK);
  cr_expect_not_null(strstr(s.message[0], "nobody"));
  cr_expect_not_null(strstr(s.message[1], "nowhere"));
  cr_expect_eq(s.bad, 2);
  free_cases(list, 2);
}

static void interrupt(void *context, int64_t index, const assay_case *one, const case_result *result) {
  (void)context, (void)one, (void)result;
  if (index == 7) (void)raise(SIGINT);
}

Test(execute, an_interrupt_stops_it) {
  assay_error error = {""};
  const execute_options options = {.workers = 2, .deadline_s = 30};
  assay_case *list = some_cases(MANY, -1);
  cr_assert_neq(execute_cases(list, MANY, &options, interrupt, NULL, &error), ASSAY_OK);
  cr_expect_not_null(strstr(error.text, "SIGINT"), "%s", error.text);
  cr_expect_eq(waitpid(-1, NULL, WNOHANG), -1, "no child is left");
  free_cases(list, MANY);
}

Test(execute, probe_asks_in_another_process) {
  assay_error error = {""};
  assay_device_info info;
  cr_assert_eq(execute_probe(&fake_device, &info, &error), ASSAY_OK);
  cr_assert_str_eq(info.name, "fake \"device\"");
  cr_assert_eq(waitpid(-1, NULL, WNOHANG), -1);
}
