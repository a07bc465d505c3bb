/* execute.c: hands cases to workers, keeps the order of results, replaces what dies. */
#define _POSIX_C_SOURCE 200809L
#include "execute.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "execute_worker.h"
#include "judge_parts.h"

enum { MAX_WORKERS = 256, CUDA_THREADS = 8, WINDOW = EXECUTE_WINDOW, FALLBACK_DEADLINE_S = 60 };

typedef struct executor {
  execute_next source;
  int64_t count, next, delivered;    /* how many there are, once known; first case never sent; first not delivered */
  const assay_case *pending[WINDOW]; /* sent or about to be, not delivered; by index modulo */
  double deadline_ms;
  worker *workers;      /* in teams of team_size, the last one perhaps smaller; then, if that is not 1, one alone */
  int32_t worker_count; /* in teams */
  int32_t team_size;
  int64_t suspect[MAX_WORKERS]; /* under way in a team that ended: to be run again alone */
  int32_t suspect_count;
  int64_t again[MAX_WORKERS * WORKER_QUEUE]; /* sent to a worker that died before it began them */
  int32_t again_count;
  case_result *window; /* [WINDOW] by index modulo */
  bool *ready;         /* [WINDOW] */
  execute_done done;
  void *context;
} executor;

static volatile sig_atomic_t interrupted;
static void note_signal(int number) {
  interrupted = number;
}

static const char *signal_text(int number) {
  switch (number) {
  case SIGSEGV:
    return "SIGSEGV";
  case SIGBUS:
    return "SIGBUS";
  case SIGFPE:
    return "SIGFPE";
  case SIGILL:
    return "SIGILL";
  case SIGABRT:
    return "SIGABRT";
  case SIGKILL:
    return "SIGKILL";
  case SIGTERM:
    return "SIGTERM";
  default:
    return "a signal";
  }
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

/* The next case to send; -1: none now. No case is so far ahead that its result would have no place. */
static int64_t take_case(executor *e) {
  if (e->again_count > 0) return e->again[--e->again_count];
  if (e->next >= e->count || e->next >= e->delivered + WINDOW) return -1;
  switch (e->source(e->context, e->next, &e->pending[e->next % WINDOW])) {
  case EXECUTE_CASE:
    return e->next++;
  case EXECUTE_END:
    e->count = e->next;
    break;
  case EXECUTE_WAIT:
    break;
  }
  return -1;
}

/* ---- workers ----------------------------------------------------------------------------------------- */

static void finish_first(worker *w) {
  for (int32_t i = 1; i < w->queued; ++i)
    w->queue[i - 1] = w->queue[i];
  --w->queued;
  w->started_ms = judge_now_ms();
}

/* All workers, the one alone included. */
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

/* A team is gone: nobody knows by whose fault. */
static void bury_team(executor *e, worker *team, int32_t size, bool kill_it) {
  (void)worker_stop(team, size, kill_it);
  for (int32_t m = 0; m < size; ++m) {
    if (team[m].queued > 0) e->suspect[e->suspect_count++] = team[m].queue[0];
    for (int32_t i = team[m].queued - 1; i >= 1; --i)
      e->again[e->again_count++] = team[m].queue[i];
    team[m].queued = 0;
  }
}

/* The worker is gone. The case it was running gets `verdict`; what waited behind it goes to somebody else. */
static void bury(executor *e, worker *w, bool kill_it, const char *deadline) {
  worker *team = NULL;
  const int32_t size = team_of(e, w, &team);
  if (size > 1) {
    bury_team(e, team, size, kill_it);
    return;
  }
  case_result result = {.verdict = VERDICT_CRASH, .check = "crash"};
  const bool retired = w->retiring;
  const int status = worker_stop(w, 1, kill_it);
  w->retiring = false; /* its place is free: the next case there gets a new worker */
  if (deadline != NULL) {
    result.verdict = VERDICT_HANG;
    (void)snprintf(result.check, sizeof result.check, "deadline");
    (void)snprintf(result.message, sizeof result.message, "%s", deadline);
  } else if (WIFSIGNALED(status)) {
    (void)snprintf(result.message, sizeof result.message, "the worker died of %s (%d)", signal_text(WTERMSIG(status)),
                   WTERMSIG(status));
  } else {
    (void)snprintf(result.message, sizeof result.message, "the worker ended with exit status %d", WEXITSTATUS(status));
  }
  const int32_t first = retired ? 0 : 1;
  for (int32_t i = w->queued - 1; i >= first; --i)
    e->again[e->again_count++] = w->queue[i];
  const int64_t blamed = w->queued > 0 && !retired ? w->queue[0] : -1;
  w->queued = 0;
  if (blamed >= 0) accept(e, blamed, &result);
}

static void listen_to(executor *e, worker *w) {
  int heard;
  while ((heard = worker_receive(w)) > 0) {
    const worker_answer *answer = &w->partial;
    if (w->queued == 0 || answer->index != w->queue[0]) { /* it writes nonsense: memory is gone */
      bury(e, w, true, NULL);
      return;
    }
    w->retiring = answer->result.device_lost;
    finish_first(w);
    accept(e, answer->index, &answer->result);
  }
  if (heard < 0) bury(e, w, false, NULL);
}

static assay_status feed(executor *e, int32_t self, int32_t depth, assay_error *error) {
  worker *w = &e->workers[self];
  const bool alone = self == e->worker_count;
  while (w->queued < depth && !w->retiring) {
    const int64_t index = !alone ? take_case(e) : e->suspect_count > 0 ? e->suspect[--e->suspect_count] : -1;
    if (index < 0) break;
    if (w->pid == 0) {
      worker *team = NULL;
      const int32_t size = team_of(e, w, &team);
      const assay_status status = worker_start(e->workers, everybody(e), (int32_t)(team - e->workers), size, error);
      if (status != ASSAY_OK) return status;
    }
    if (!worker_send(w, index,
                     e->pending[index % WINDOW])) { /* already dead: it is buried when its end of the socket is read */
      if (alone)
        e->suspect[e->suspect_count++] = index;
      else
        e->again[e->again_count++] = index;
      break;
    }
    if (w->queued == 0) w->started_ms = judge_now_ms();
    w->queue[w->queued++] = index;
  }
  return ASSAY_OK;
}

static void check_deadlines(executor *e) {
  char text[96];
  const double now = judge_now_ms();
  (void)snprintf(text, sizeof text, "no result within %.3g s", e->deadline_ms * 1e-3);
  for (int32_t i = 0; i < everybody(e); ++i) {
    worker *w = &e->workers[i];
    if (w->pid != 0 && w->queued > 0 && now - w->started_ms > e->deadline_ms) bury(e, w, true, text);
  }
}

/* Waits until a worker says something or the nearest deadline is over. */
static assay_status wait_for(executor *e, assay_error *error) {
  struct pollfd fds[MAX_WORKERS];
  int32_t who[MAX_WORKERS], count = 0;
  const double now = judge_now_ms();
  double nearest = e->deadline_ms;
  for (int32_t i = 0; i < everybody(e); ++i) {
    const worker *w = &e->workers[i];
    if (w->pid == 0) continue;
    fds[count] = (struct pollfd){.fd = w->socket, .events = POLLIN};
    who[count++] = i;
    if (w->queued > 0 && w->started_ms + e->deadline_ms - now < nearest) nearest = w->started_ms + e->deadline_ms - now;
  }
  const int timeout = nearest < 0     ? 0
                      : nearest > 500 ? 500
                                      : (int)nearest + 1; /* a signal may come just before poll() */
  const int events = poll(fds, (nfds_t)count, timeout);
  if (events < 0 && errno != EINTR) return assay_fail(error, ASSAY_ERR_IO, "workers: poll: %s", strerror(errno));
  for (int32_t i = 0; events > 0 && i < count; ++i)
    if (fds[i].revents != 0 && e->workers[who[i]].pid != 0) listen_to(e, &e->workers[who[i]]);
  check_deadlines(e);
  return ASSAY_OK;
}

/* Everybody gets a case before anybody gets a second, and towards the end nobody does: a case shall not wait
 * behind a long one while another worker has nothing to do. */
static assay_status run_workers(executor *e, assay_error *error) {
  assay_status status = ASSAY_OK;
  while (status == ASSAY_OK && e->delivered < e->count && !interrupted) {
    for (int32_t i = 0; i < everybody(e) && status == ASSAY_OK; ++i)
      status = feed(e, i, 1, error);
    for (int32_t i = 0;
         i < e->worker_count && status == ASSAY_OK && e->count - e->next > WORKER_QUEUE * e->worker_count; ++i)
      status = feed(e, i, WORKER_QUEUE, error);
    if (status == ASSAY_OK && e->delivered < e->count) status = wait_for(e, error);
  }
  return status;
}

static assay_status run_here(executor *e) {
  static case_result result;
  for (int64_t i; !interrupted && (i = take_case(e)) >= 0;) {
    worker_judge(e->pending[i % WINDOW], &result);
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
  struct sigaction act, before_int, before_term;
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
  memset(&act, 0, sizeof act);
  act.sa_handler = note_signal;
  (void)sigemptyset(&act.sa_mask);
  interrupted = 0;
  (void)sigaction(SIGINT, &act, &before_int);
  (void)sigaction(SIGTERM, &act, &before_term);
  if (e->workers == NULL || e->window == NULL || e->ready == NULL) {
    (void)assay_fail(error, status, "workers: out of memory");
    goto done;
  }
  status = options->in_process ? run_here(e) : run_workers(e, error);
  if (status == ASSAY_OK && interrupted && e->delivered < e->count)
    status = assay_fail(error, ASSAY_ERR_INTERNAL, "interrupted by %s after %lld cases",
                        interrupted == SIGINT ? "SIGINT" : signal_text(interrupted), (long long)e->delivered);
done:
  /* Closing the socket ends an idle worker; one that still runs a case is not waited for. */
  for (int32_t i = 0; e->workers != NULL && i < everybody(e); ++i) {
    if (e->workers[i].pid == 0) continue;
    worker *team = NULL;
    const int32_t size = team_of(e, &e->workers[i], &team);
    bool runs = false;
    for (int32_t m = 0; m < size; ++m)
      runs = runs || team[m].queued > 0;
    (void)worker_stop(team, size, runs);
  }
  (void)sigaction(SIGINT, &before_int, NULL);
  (void)sigaction(SIGTERM, &before_term, NULL);
  free(e->workers);
  free(e->window);
  free(e->ready);
  free(e);
  return status;
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
