/* execute.c: hands cases to workers, keeps the order of results, and replaces workers that die. */
#define _POSIX_C_SOURCE 200809L
#include "execute.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/registry.h"
#include "worker.h"
#include "conformance/trial/trial.h"

/* AHEAD: cases that may wait for a worker of their plug-in. STARVED: so many deadlines of the clock may pass. */
enum {
  MAX_WORKERS = 256,
  CUDA_THREADS = 8,
  WINDOW = EXECUTE_WINDOW,
  AHEAD = 256,
  FALLBACK_DEADLINE_S = 60,
  STARVED = 40
};

typedef struct executor {
  execute_next source;
  /* count: number of cases, once known; next: first case never sent; delivered: first case not delivered */
  int64_t count, next, delivered;
  const assay_case *pending[WINDOW]; /* sent or about to be, not delivered; by index modulo */
  const char *origin[WINDOW];        /* origins of their variants (worker.h) */
  bool again_once[WINDOW];           /* a signal from outside may have ended it: it has been given once more */
  bool solo[WINDOW];                 /* it may have sent a signal here: its worker gets no other case meanwhile */
  int64_t waiting[AHEAD];            /* cases taken from the source and not sent, in their order */
  int32_t waiting_count;
  double deadline_ms;
  double sleep_share; /* how much of the time asleep counts */
  /* in teams of team_size, the last one perhaps smaller; then, if team_size is not 1, one worker alone */
  worker *workers;
  int32_t worker_count; /* workers in teams */
  int32_t team_size;
  int64_t suspect[MAX_WORKERS]; /* cases under way in a team that ended: to be run again alone */
  int32_t suspect_count;
  int64_t again[MAX_WORKERS * WORKER_QUEUE]; /* cases sent to a worker that died before it began them */
  int32_t again_count;
  case_result *window; /* [WINDOW] by index modulo */
  bool *ready;         /* [WINDOW] */
  execute_done done;
  void *context;
  char late[320]; /* a worker died after its last answer; "": none did */
} executor;

/* ---- signals ----------------------------------------------------------------------------------------- */

static volatile sig_atomic_t interrupted, paused;
static volatile pid_t running[MAX_WORKERS + 1];        /* processes of workers: what they send is their own fault */
static volatile sig_atomic_t accused[MAX_WORKERS + 1]; /* by place in `running`: it sent a signal to this process */
static const int caught[] = {SIGINT, SIGTERM, SIGHUP, SIGTSTP, SIGQUIT, SIGALRM, SIGUSR1, SIGUSR2};
enum { CAUGHT = sizeof caught / sizeof caught[0] };

/* Returns the place of the process in `running`; -1: it is none of a worker. */
static int32_t place_of(pid_t pid) {
  for (int32_t i = 0; i <= MAX_WORKERS; ++i)
    if (pid > 0 && running[i] == pid) return i;
  return -1;
}

static bool is_accused(pid_t pid) {
  const int32_t place = place_of(pid);
  return place >= 0 && accused[place] != 0;
}

static void on_signal(int number, siginfo_t *from, void *unused) {
  (void)unused;
  const int before = errno;
  const pid_t sender = from->si_code <= 0 ? from->si_pid : 0;
  const int32_t place = place_of(sender) < 0 && sender > 0 ? place_of(getpgid(sender)) : place_of(sender);
  if (place >= 0) {
    accused[place] = 1;
  } else if (number == SIGTSTP) {
    paused = 1;
  } else if (number == SIGINT || number == SIGTERM || number == SIGHUP) {
    interrupted = number;
  } else {
    (void)signal(number, SIG_DFL);
    (void)raise(number);
  }
  errno = before;
}

/* Takes the signals over. A signal that was ignored stays ignored, except SIGINT, which a script's job in the
 * background ignores. */
static void catch_signals(struct sigaction *before) {
  struct sigaction act;
  memset(&act, 0, sizeof act);
  act.sa_sigaction = on_signal;
  act.sa_flags = SA_SIGINFO;
  (void)sigemptyset(&act.sa_mask);
  interrupted = paused = 0;
  for (int i = 0; i < CAUGHT; ++i) {
    (void)sigaction(caught[i], NULL, &before[i]);
    if (before[i].sa_handler != SIG_IGN || caught[i] == SIGINT) (void)sigaction(caught[i], &act, NULL);
  }
}

static void release_signals(const struct sigaction *before) {
  for (int i = 0; i < CAUGHT; ++i)
    (void)sigaction(caught[i], &before[i], NULL);
}

/* ---- results in order -------------------------------------------------------------------------------- */

static void accept(executor *e, int64_t index, const case_result *result) {
  e->window[index % WINDOW] = *result;
  e->ready[index % WINDOW] = true;
  while (e->delivered < e->count && e->ready[e->delivered % WINDOW]) {
    const int64_t at = e->delivered++;
    e->ready[at % WINDOW] = false;
    if (e->done != NULL) e->done(e->context, at, e->pending[at % WINDOW], &e->window[at % WINDOW]);
  }
}

/* Takes the next case from the source into the list of those that wait. Returns false if none can be taken now. No case
 * is so far ahead that its result would have no place. */
static bool fetch(executor *e) {
  if (e->waiting_count == AHEAD || e->next >= e->count || e->next >= e->delivered + WINDOW) return false;
  const int64_t at = e->next % WINDOW;
  switch (e->source(e->context, e->next, &e->pending[at])) {
  case EXECUTE_CASE: {
    const assay_case *one = e->pending[at];
    const assay_variant *variant = assay_variant_find(one->op->name, one->variant, one->device);
    e->origin[at] = variant != NULL ? assay_plugin_origin(variant) : NULL;
    e->again_once[at] = e->solo[at] = false;
    e->waiting[e->waiting_count++] = e->next++;
    return true;
  }
  case EXECUTE_END:
    e->count = e->next;
    break;
  case EXECUTE_WAIT:
    break;
  }
  return false;
}

static int64_t take_out(int64_t *list, int32_t *count, int32_t at) {
  const int64_t index = list[at];
  --*count;
  for (int32_t i = at; i < *count; ++i)
    list[i] = list[i + 1];
  return index;
}

/* Returns the next case for a process of `origin`, or -1; for a `fresh` one of any. If `any`, the process can be
 * replaced, and another origin's case is returned where that one has none. A process that has loaded a plug-in runs no
 * variant of others. */
static int64_t take_case(executor *e, const char *origin, bool fresh, bool any) {
  for (int32_t i = e->again_count - 1; i >= 0; --i)
    if (fresh || e->origin[e->again[i] % WINDOW] == origin) return take_out(e->again, &e->again_count, i);
  for (int32_t i = 0; i < e->waiting_count || fetch(e); ++i)
    if (fresh || e->origin[e->waiting[i] % WINDOW] == origin) return take_out(e->waiting, &e->waiting_count, i);
  if (any && e->again_count > 0) return e->again[--e->again_count];
  return any && e->waiting_count > 0 ? take_out(e->waiting, &e->waiting_count, 0) : -1;
}

/* ---- workers ----------------------------------------------------------------------------------------- */

static void finish_first(worker *w) {
  for (int32_t i = 1; i < w->queued; ++i)
    w->queue[i - 1] = w->queue[i];
  --w->queued;
  patience_start(&w->time, w->pid);
}

/* Returns the number of all workers, the one alone included. */
static int32_t everybody(const executor *e) {
  return e->worker_count + (e->team_size > 1);
}

static int32_t team_of(const executor *e, const worker *w, worker **first) {
  const int32_t self = (int32_t)(w - e->workers), start = self / e->team_size * e->team_size;
  if (self == e->worker_count) { /* alone */
    *first = &e->workers[self];
    return 1;
  }
  *first = &e->workers[start];
  return start + e->team_size <= e->worker_count ? e->team_size : e->worker_count - start;
}

static void forget_process(pid_t pid) {
  for (int32_t i = 0; i <= MAX_WORKERS; ++i)
    if (running[i] == pid) running[i] = 0;
}

static int stop_team(worker *team, int32_t size, bool kill_it) {
  const pid_t pid = team->pid;
  const int status = worker_stop(team, size, kill_it);
  forget_process(pid);
  return status;
}

/* Ends a team that has died. The cause is unknown, so the cases under way are run again alone. */
static void bury_team(executor *e, worker *team, int32_t size, bool kill_it) {
  (void)stop_team(team, size, kill_it);
  for (int32_t m = 0; m < size; ++m) {
    if (team[m].queued > 0) e->suspect[e->suspect_count++] = team[m].queue[0];
    for (int32_t i = team[m].queued - 1; i >= 1; --i)
      e->again[e->again_count++] = team[m].queue[i];
    team[m].queued = 0;
  }
}

/* Tells whether a process may have ended in this way because of somebody outside: a first time is no verdict. */
static bool may_be_from_outside(int status) {
  if (!WIFSIGNALED(status)) return false;
  const int number = WTERMSIG(status);
  return number == SIGKILL || number == SIGTERM || number == SIGHUP || number == SIGINT || number == SIGQUIT;
}

static void set_end(const worker *w, int status, case_result *result) {
  char end[80];
  child_end_text(status, end, sizeof end);
  verdict_set(result, VERDICT_CRASH, "crash", "the worker %s", end);
  if (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL && worker_oom_kills() > w->oom_kills)
    verdict_set(result, VERDICT_HOST, "host", "the system ended the worker for lack of memory (SIGKILL)");
  else if (WIFSIGNALED(status) && WTERMSIG(status) == SIGXCPU)
    verdict_set(result, VERDICT_HOST, "host", "the limit of processor time ended the worker (SIGXCPU, ulimit -t)");
  else if (WIFEXITED(status) && WEXITSTATUS(status) == WORKER_NO_MEMORY)
    verdict_set(result, VERDICT_HOST, "host", "the worker could not begin: the host has no memory (ulimit -v)");
}

/* Notes a worker that died when it had nothing to do: something that a kernel has left ended it. */
static void note_late(executor *e, const worker *w, int status) {
  char end[80];
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return;
  child_end_text(status, end, sizeof end);
  if (e->late[0] == '\0')
    (void)snprintf(e->late, sizeof e->late, "a worker %s after its last answer (variants %s%.100s)", end,
                   w->origin != NULL ? "of " : "", w->origin != NULL ? w->origin : "built in");
}

/* Ends a worker. The case that it was running gets a verdict; `why` NULL: the one of the worker's end. Cases queued
 * after it go to other workers. */
static void bury(executor *e, worker *w, bool kill_it, const case_result *why) {
  worker *team = NULL;
  const int32_t size = team_of(e, w, &team);
  if (size > 1) {
    bury_team(e, team, size, kill_it);
    return;
  }
  case_result result = {.verdict = VERDICT_CRASH};
  const bool retired = w->retiring;
  const int status = stop_team(w, 1, kill_it);
  w->retiring = false; /* its place is free: the next case there gets a new worker */
  if (why != NULL)
    result = *why;
  else
    set_end(w, status, &result);
  const bool begun = w->queued > 0 && !retired;
  if (!begun && !retired && !kill_it) note_late(e, w, status);
  for (int32_t i = w->queued - 1; i >= (begun ? 1 : 0); --i)
    e->again[e->again_count++] = w->queue[i];
  const int64_t blamed = begun ? w->queue[0] : -1;
  w->queued = 0;
  if (blamed < 0) return;
  bool *once = &e->again_once[blamed % WINDOW];
  if (why == NULL && may_be_from_outside(status) && result.verdict == VERDICT_CRASH && !*once) {
    *once = true;
    e->again[e->again_count++] = blamed;
  } else {
    accept(e, blamed, &result);
  }
}

/* Ends a worker that sent a signal to this process. Which of its cases did so is known if it had only that one. The
 * others are given once more, each as its worker's only case. */
static void accuse(executor *e, worker *w) {
  case_result why = {.verdict = VERDICT_STATE};
  worker *team = NULL;
  const bool known = w->queued == 1 && (e->solo[w->queue[0] % WINDOW] || w == &e->workers[e->worker_count]);
  verdict_set(&why, VERDICT_STATE, "state", "it sent a signal to the process that judges");
  if (w->queued == 0 && e->late[0] == '\0')
    (void)snprintf(e->late, sizeof e->late, "a worker sent a signal to the process that judges, after its last answer");
  for (int32_t i = 0; i < w->queued; ++i)
    e->solo[w->queue[i] % WINDOW] = true;
  if (!known && team_of(e, w, &team) == 1) w->retiring = true; /* all its cases are given again */
  bury(e, w, true, &why);
}

static void listen_to(executor *e, worker *w) {
  int heard;
  while ((heard = worker_receive(w)) > 0) {
    worker_answer *answer = &w->partial;
    if (w->queued == 0 || answer->index != w->queue[0]) { /* it writes nonsense: its memory is damaged */
      bury(e, w, true, NULL);
      return;
    }
    if (is_accused(w->pid)) {
      accuse(e, w);
      return;
    }
    const bool spent = answer->result.spent;
    w->retiring = answer->result.device_lost || spent;
    finish_first(w);
    accept(e, answer->index, &answer->result);
    if (spent) { /* a process that it has left may hold its end of the socket */
      bury(e, w, true, NULL);
      return;
    }
  }
  if (heard < 0) bury(e, w, false, NULL);
}

static bool is_idle(const worker *team, int32_t size) {
  for (int32_t m = 0; m < size; ++m)
    if (team[m].queued > 0) return false;
  return true;
}

/* Puts a case back that could not be sent. */
static void put_back(executor *e, int64_t index, bool alone) {
  if (alone)
    e->suspect[e->suspect_count++] = index;
  else
    e->again[e->again_count++] = index;
}

/* Gives the worker a process for variants of `origin`. Without one, others that are at work go on alone, and `later`
 * is set: it is tried again when one of them has answered. */
static assay_status have_process(executor *e, worker *w, const char *origin, bool *later, assay_error *error) {
  worker *team = NULL;
  const int32_t size = team_of(e, w, &team);
  *later = false;
  if (w->pid != 0 && w->origin == origin) return ASSAY_OK;
  if (w->pid != 0) {
    const worker was = *w;
    note_late(e, &was, stop_team(team, size, false));
  }
  assay_error why = {""};
  const assay_status status = worker_start(e->workers, everybody(e), (int32_t)(team - e->workers), size, origin, &why);
  if (status == ASSAY_OK) {
    int32_t free_place = 0;
    while (free_place < MAX_WORKERS && running[free_place] != 0)
      ++free_place;
    accused[free_place] = 0;
    running[free_place] = team->pid;
    return ASSAY_OK;
  }
  for (int32_t i = 0; i < everybody(e) && !*later; ++i)
    *later = e->workers[i].pid != 0 && e->workers[i].queued > 0;
  if (*later) return ASSAY_OK;
  return assay_fail(error, status, "%s", why.text);
}

static assay_status feed(executor *e, int32_t self, int32_t depth, assay_error *error) {
  worker *w = &e->workers[self];
  worker *team = NULL;
  const bool alone = self == e->worker_count;
  const int32_t size = team_of(e, w, &team);
  while (w->queued < depth && !w->retiring && !(w->queued > 0 && e->solo[w->queue[0] % WINDOW])) {
    const bool replaceable = is_idle(team, size);
    const int64_t index = !alone                 ? take_case(e, w->origin, w->pid == 0, replaceable)
                          : e->suspect_count > 0 ? e->suspect[--e->suspect_count]
                                                 : -1;
    if (index < 0) break;
    const assay_case *one = e->pending[index % WINDOW];
    bool later = w->queued > 0 && (e->solo[index % WINDOW] || worker_question_bytes(one) > WORKER_SMALL);
    const assay_status status = later ? ASSAY_OK : have_process(e, w, e->origin[index % WINDOW], &later, error);
    if (status != ASSAY_OK) return status;
    /* Not sent: it is already dead, and bury() follows when its end of the socket is read. */
    if (later || !worker_send(w, index, one)) {
      put_back(e, index, alone);
      break;
    }
    if (w->queued == 0) patience_start(&w->time, w->pid);
    w->queue[w->queued++] = index;
  }
  return ASSAY_OK;
}

/* The deadline is one of the worker's own time: of its processor, and of sleep. A host that does not run it is no fault
 * of a kernel. */
static void check_deadlines(executor *e) {
  for (int32_t i = 0; i < everybody(e); ++i) {
    worker *w = &e->workers[i];
    case_result why = {.verdict = VERDICT_HANG};
    if (w->pid == 0) continue;
    if (is_accused(w->pid)) {
      accuse(e, w);
      continue;
    }
    if (w->queued == 0 && !w->retiring) continue;
    patience_look(&w->time);
    const double spent = w->time.worked_ms + e->sleep_share * w->time.asleep_ms, limit = e->deadline_ms;
    if (spent > limit) {
      verdict_set(&why, VERDICT_HANG, "deadline", "no result within %.3g s", limit * 1e-3);
      bury(e, w, true, &why);
    } else if (w->time.passed_ms > STARVED * limit) {
      verdict_set(&why, VERDICT_HOST, "host", "the host gave the worker %.3g s of processor time in %.3g s",
                  w->time.worked_ms * 1e-3, w->time.passed_ms * 1e-3);
      bury(e, w, true, &why);
    } else if (worker_has_ended(w)) {
      listen_to(e, w); /* a process that it has left holds its end of the socket */
      if (w->pid != 0 && worker_has_ended(w)) bury(e, w, false, NULL);
    }
  }
}

/* Stops with the terminal's job, workers first, and goes on with them. */
static void pause_all(executor *e) {
  paused = 0;
  for (int32_t i = 0; i < everybody(e); ++i)
    if (e->workers[i].pid != 0) (void)kill(-e->workers[i].pid, SIGSTOP);
  (void)raise(SIGSTOP);
  for (int32_t i = 0; i < everybody(e); ++i)
    if (e->workers[i].pid != 0) {
      (void)kill(-e->workers[i].pid, SIGCONT);
      patience_skip(&e->workers[i].time);
    }
}

/* Waits until a worker answers or the nearest deadline is over. */
static assay_status wait_for(executor *e, assay_error *error) {
  struct pollfd fds[2 * MAX_WORKERS];
  int32_t who[2 * MAX_WORKERS], count = 0;
  double nearest = e->deadline_ms / 4;
  for (int32_t i = 0; i < everybody(e); ++i) {
    const worker *w = &e->workers[i];
    if (w->pid == 0) continue;
    fds[count] = (struct pollfd){.fd = w->socket, .events = POLLIN};
    who[count++] = i;
    if (w->text < 0) continue;
    fds[count] = (struct pollfd){.fd = w->text, .events = POLLIN};
    who[count++] = i;
  }
  if (nearest > 500) nearest = 500; /* a signal may come just before poll() */
  const int timeout = (int)nearest + 1;
  const int events = poll(fds, (nfds_t)count, timeout);
  if (events < 0 && errno != EINTR) return assay_fail(error, ASSAY_ERR_IO, "workers: poll: %s", strerror(errno));
  for (int32_t i = 0; events > 0 && i < count; ++i)
    if (fds[i].revents != 0 && e->workers[who[i]].pid != 0) {
      if (fds[i].fd == e->workers[who[i]].text)
        worker_hear(&e->workers[who[i]]);
      else
        listen_to(e, &e->workers[who[i]]);
    }
  if (!interrupted) check_deadlines(e);
  return ASSAY_OK;
}

/* Runs all cases. Each worker gets a case before any gets a second. Towards the end none gets a second: no case may
 * wait for a long one while another worker is idle. */
static assay_status run_workers(executor *e, assay_error *error) {
  assay_status status = ASSAY_OK;
  while (status == ASSAY_OK && e->delivered < e->count && !interrupted) {
    if (paused) pause_all(e);
    for (int32_t i = 0; i < everybody(e) && status == ASSAY_OK; ++i)
      status = feed(e, i, 1, error);
    for (int32_t i = 0; i < e->worker_count && status == ASSAY_OK &&
                        e->count - e->next + e->waiting_count > WORKER_QUEUE * e->worker_count;
         ++i)
      status = feed(e, i, WORKER_QUEUE, error);
    if (status == ASSAY_OK && e->delivered < e->count) status = wait_for(e, error);
  }
  return status;
}

/* A kernel that calls exit() in this process would end the run with its own status, and nothing said. */
static volatile sig_atomic_t inside;
static void on_exit_inside(void) {
  static const char text[] = "assay: a kernel of --in-process has ended the process\n";
  if (!inside) return;
  if (write(STDERR_FILENO, text, sizeof text - 1) < 0) _exit(1);
  _exit(1);
}

static assay_status run_here(executor *e) {
  static case_result result;
  static bool registered;
  registered = registered || atexit(on_exit_inside) == 0;
  for (int64_t i; !interrupted && (i = take_case(e, NULL, true, true)) >= 0;) {
    inside = 1;
    worker_judge(e->pending[i % WINDOW], &result);
    inside = 0;
    accept(e, i, &result);
  }
  judge_release();
  return ASSAY_OK;
}

static int32_t worker_count(int64_t count, const execute_options *options) {
  const long cores = sysconf(_SC_NPROCESSORS_ONLN);
  int64_t wanted = options->workers > 0 ? options->workers : cores > 0 ? cores : 1;
  if (wanted >= MAX_WORKERS) wanted = MAX_WORKERS - 1;
  return (int32_t)(wanted > count ? count : wanted);
}

static int32_t team_size(const char *device, int32_t workers, const execute_options *options) {
  const bool cuda = strcmp(device, "cuda") == 0;
  int32_t size = !cuda ? 1 : options->threads > 0 ? options->threads : CUDA_THREADS;
  if (size > WORKER_MAX_TEAM) size = WORKER_MAX_TEAM;
  return size > workers ? workers : size;
}

/* A list as a source. */
typedef struct case_source {
  const assay_case *cases;
  int64_t count;
  execute_done done;
  void *context;
} case_source;

static execute_more next_of_list(void *context, int64_t index, const assay_case **one) {
  const case_source *list = context;
  if (index >= list->count) return EXECUTE_END;
  *one = &list->cases[index];
  return EXECUTE_CASE;
}

static void done_of_list(void *context, int64_t index, const assay_case *one, const case_result *result) {
  const case_source *list = context;
  if (list->done != NULL) list->done(list->context, index, one, result);
}

static assay_status execute(execute_next source, int64_t count, const char *device, const execute_options *options,
                            execute_done done, void *context, assay_error *error) {
  assay_status status = ASSAY_ERR_MEMORY;
  struct sigaction before[CAUGHT];
  executor *e = calloc(1, sizeof *e);
  if (e == NULL) return assay_fail(error, status, "workers: out of memory");
  e->source = source;
  e->count = count;
  e->done = done;
  e->context = context;
  e->deadline_ms = (options->deadline_s > 0 ? options->deadline_s : FALLBACK_DEADLINE_S) * 1e3;
  e->worker_count = worker_count(count, options);
  e->team_size = team_size(device, e->worker_count, options);
  e->workers = calloc((size_t)everybody(e), sizeof *e->workers);
  e->window = malloc(WINDOW * sizeof *e->window);
  e->ready = calloc(WINDOW, sizeof *e->ready);
  e->sleep_share = strcmp(device, "cuda") == 0 ? 1 : 0.5;
  catch_signals(before);
  if (e->workers == NULL || e->window == NULL || e->ready == NULL) {
    (void)assay_fail(error, status, "workers: out of memory");
    goto done;
  }
  memset(e->window, 0, WINDOW * sizeof *e->window); /* its pages are there from the start: memory does not grow */
  status = options->in_process ? run_here(e) : run_workers(e, error);
  if (status == ASSAY_OK && interrupted && e->delivered < e->count)
    status = assay_fail(error, ASSAY_ERR_INTERNAL, "interrupted by %s after %lld cases", child_signal_name(interrupted),
                        (long long)e->delivered);
done:
  /* Closing the socket ends an idle worker. A worker that still runs a case is killed instead. */
  for (int32_t i = 0; e->workers != NULL && i < everybody(e); ++i) {
    if (e->workers[i].pid == 0) continue;
    worker *team = NULL;
    const int32_t size = team_of(e, &e->workers[i], &team);
    bool runs = false;
    for (int32_t m = 0; m < size; ++m)
      runs = runs || team[m].queued > 0;
    const worker was = *team;
    const int ended = stop_team(team, size, runs);
    if (!runs) note_late(e, &was, ended);
  }
  release_signals(before);
  if (status == ASSAY_OK && e->late[0] != '\0') status = assay_fail(error, ASSAY_ERR_INTERNAL, "%s", e->late);
  free(e->workers);
  free(e->window);
  free(e->ready);
  free(e);
  return status;
}

int execute_interrupted(void) {
  return interrupted;
}

assay_status execute_cases(const assay_case *cases, int64_t count, const execute_options *options, execute_done done,
                           void *context, assay_error *error) {
  case_source list = {cases, count, done, context};
  const char *device = "";
  if (count <= 0) return ASSAY_OK;
  for (int64_t i = 0; i < count && strcmp(device, "cuda") != 0; ++i)
    device = cases[i].device;
  return execute(next_of_list, count, device, options, done_of_list, &list, error);
}

assay_status execute_stream(execute_next next, const char *device, const execute_options *options, execute_done done,
                            void *context, assay_error *error) {
  return execute(next, INT64_MAX, device, options, done, context, error);
}
