/* child_test.c: the time that a child process has had, its end, and the modes around a call of a launcher. */
#include <criterion/criterion.h>
#include <fenv.h>
#include <locale.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/child.h"
#include "core/calls.h"
#include "core/modes.h"
#include "conformance/trial/trial.h"

/* ---- time -------------------------------------------------------------------------------------------- */

typedef enum doing { SPINS, SLEEPS } doing;

static pid_t start(doing what) {
  pid_t pid = -1;
  assay_error error = {""};
  cr_assert_eq(child_fork("test", &pid, &error), ASSAY_OK, "%s", error.text);
  if (pid > 0) return pid;
  for (volatile int i = 0;; ++i)
    if (what == SLEEPS) (void)pause();
}

/* Looks at the child every 50 ms, for that long. */
static patience watch(pid_t pid, int milliseconds) {
  patience p;
  patience_start(&p, pid);
  for (int i = 0; i < milliseconds / 50; ++i) {
    (void)poll(NULL, 0, 50);
    patience_look(&p);
  }
  return p;
}

static void stop(pid_t pid) {
  child_kill(pid);
  const int status = child_wait(pid);
  cr_expect(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
}

Test(child, work_is_processor_time) {
  const pid_t pid = start(SPINS);
  const patience p = watch(pid, 600);
  stop(pid);
  cr_expect_gt(p.worked_ms, 50);
  cr_expect_leq(p.worked_ms, p.passed_ms + 1, "worked %g of %g", p.worked_ms, p.passed_ms);
  cr_expect_lt(p.asleep_ms, 100, "it waits for a processor at most: %g", p.asleep_ms);
}

Test(child, sleep_is_no_work) {
  const pid_t pid = start(SLEEPS);
  const patience p = watch(pid, 400);
  stop(pid);
  cr_expect_lt(p.worked_ms, 50);
  cr_expect_gt(p.asleep_ms, 200);
}

Test(child, stopped_is_asleep) {
  const pid_t pid = start(SPINS);
  (void)kill(pid, SIGSTOP);
  (void)poll(NULL, 0, 50);
  const patience p = watch(pid, 400);
  stop(pid);
  cr_expect_lt(p.worked_ms, 50);
  cr_expect_gt(p.asleep_ms, 200);
}

/* A gap between two looks is time in which this process did not run. */
Test(child, a_gap_does_not_count) {
  const pid_t pid = start(SLEEPS);
  patience p;
  patience_start(&p, pid);
  (void)poll(NULL, 0, 1300);
  patience_look(&p);
  stop(pid);
  cr_expect_lt(p.asleep_ms, 1);
  cr_expect_lt(p.passed_ms, 1);
}

/* ---- the end ----------------------------------------------------------------------------------------- */

static int end_of(int number) {
  pid_t pid = -1;
  assay_error error = {""};
  cr_assert_eq(child_fork("test", &pid, &error), ASSAY_OK);
  if (pid == 0) {
    if (number > 0) (void)raise(number);
    _exit(3);
  }
  return child_wait(pid);
}

Test(child, its_end_has_a_name) {
  char text[80];
  child_end_text(end_of(SIGSEGV), text, sizeof text);
  cr_expect_str_eq(text, "died of SIGSEGV (11)");
  child_end_text(end_of(0), text, sizeof text);
  cr_expect_str_eq(text, "ended with exit status 3");
}

/* A child inherits nothing that this process has changed. */
Test(child, begins_anew) {
  sigset_t all;
  (void)sigfillset(&all);
  (void)sigprocmask(SIG_BLOCK, &all, NULL);
  (void)signal(SIGTERM, SIG_IGN);
  const int status = end_of(SIGTERM);
  (void)sigemptyset(&all);
  (void)sigprocmask(SIG_SETMASK, &all, NULL);
  cr_expect(WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM);
}

/* ---- modes ------------------------------------------------------------------------------------------- */

static int harm;

static assay_status do_harm(const assay_call *call, assay_env *env, assay_error *error) {
  (void)call, (void)env, (void)error;
  if (harm == 1) (void)fesetround(FE_DOWNWARD);
  if (harm == 2) (void)setlocale(LC_ALL, "C.UTF-8");
#if defined(__x86_64__) && defined(__GLIBC__)
  if (harm == 3) {
    fenv_t now;
    (void)fegetenv(&now);
    now.__mxcsr |= 0x8040;
    (void)fesetenv(&now);
  }
#endif
  return ASSAY_OK;
}

static assay_status do_ask(const assay_call *call, assay_error *error) {
  return do_harm(call, NULL, error);
}

static const assay_variant harmful = {.launch = do_harm, .supports = do_ask};

Test(modes, what_a_launch_changes_is_noted_and_undone) {
  const char *const wanted[] = {NULL, "rounding", "locale", "subnormal"};
  for (harm = 0; harm < 4; ++harm) {
#if !defined(__x86_64__)
    if (harm == 3) continue;
#endif
    modes_forget();
    (void)variant_launch(&harmful, NULL, NULL, NULL);
    const char *found = modes_noted();
    if (wanted[harm] == NULL)
      cr_expect_null(found, "%s", found);
    else
      cr_expect(found != NULL && strstr(found, wanted[harm]) != NULL, "%d: %s", harm,
                found != NULL ? found : "nothing");
    cr_expect_eq(fegetround(), FE_TONEAREST);
    cr_expect_str_eq(setlocale(LC_ALL, NULL), "C");
    char text[200];
    cr_expect_not(modes_changed(text, sizeof text), "%s", text);
  }
  modes_forget();
  harm = 1;
  (void)variant_supports(&harmful, NULL, NULL);
  cr_expect_not_null(modes_noted());
}

Test(modes, a_state_replaces_all_but_a_lost_result) {
  static const verdict stays[] = {VERDICT_CRASH, VERDICT_HANG, VERDICT_HOST};
  for (int v = 0; v <= VERDICT_WEAK; ++v) {
    case_result r = {.verdict = (verdict)v, .check = "exact", .message = "was wrong"};
    bool kept = false;
    for (size_t i = 0; i < sizeof stays / sizeof stays[0]; ++i)
      kept = kept || r.verdict == stays[i];
    verdict_note_state(&r, NULL);
    cr_expect_eq((int)r.verdict, v);
    verdict_note_state(&r, "it rounds up");
    cr_expect_eq(r.verdict, kept ? (verdict)v : VERDICT_STATE);
    if (v == VERDICT_FAIL) cr_expect_not_null(strstr(r.message, "FAIL exact: was wrong"), "%s", r.message);
  }
  case_result r = {.verdict = VERDICT_FAIL};
  verdict_blame_host(&r, ASSAY_ERR_DEVICE);
  cr_expect_eq(r.verdict, VERDICT_FAIL);
  verdict_blame_host(&r, ASSAY_ERR_MEMORY);
  cr_expect_eq(r.verdict, VERDICT_HOST);
  cr_expect(!verdict_is_good(VERDICT_STATE) && !verdict_is_good(VERDICT_HOST));
}
