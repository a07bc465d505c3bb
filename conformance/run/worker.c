/* worker.c: a team of workers. They are forked before any device is open in the parent. Cases cross the socket as they
 * lie in memory, because addresses of operators are the same on both sides of a fork. Results cross it as plain
 * data. */
#define _POSIX_C_SOURCE 200809L
#include "worker.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "conformance/text/text.h"
#include "core/registry.h"
#include "state.h"

enum { MAX_DEVICES = 4, TEAM_LOST = 3 };

/* The devices that this thread has opened. */
static _Thread_local const assay_device *opened[MAX_DEVICES];

static assay_status open_once(const assay_device *device, assay_error *error) {
  for (int i = 0; i < MAX_DEVICES; ++i) {
    if (opened[i] == device) return ASSAY_OK;
    if (opened[i] != NULL) continue;
    const assay_status status = device->open(error);
    if (status == ASSAY_OK) opened[i] = device;
    return status;
  }
  return assay_fail(error, ASSAY_ERR_INTERNAL, "more than %d devices", MAX_DEVICES);
}

/* This process is a worker: its state is put back after each case of a plug-in. */
static bool is_worker;

static void cannot_run(case_result *result, const char *format, const char *what, const char *why) {
  *result = (case_result){.verdict = VERDICT_FAIL, .check = "launch"};
  (void)snprintf(result->message, sizeof result->message, format, what, why);
}

/* Loads the plug-in. The probe of this run could load it; if it cannot be loaded now, the host has run short. */
static bool load_plugin(const assay_variant *variant, case_result *result) {
  static pthread_mutex_t one_at_a_time = PTHREAD_MUTEX_INITIALIZER;
  static process_state before;
  assay_error error = {""};
  if (assay_plugin_origin(variant) == NULL) return true;
  (void)pthread_mutex_lock(&one_at_a_time);
  const bool restores = is_worker && !assay_plugin_here();
  if (restores) state_read(&before);
  const assay_status status = assay_plugin_bind(variant, &error);
  if (restores) state_restore(&before);
  (void)pthread_mutex_unlock(&one_at_a_time);
  if (status == ASSAY_OK) return true;
  cannot_run(result, "%s%s", "", error.text);
  if (status == ASSAY_ERR_IO || status == ASSAY_ERR_MEMORY) {
    result->verdict = VERDICT_HOST;
    (void)snprintf(result->check, sizeof result->check, "host");
  }
  return false;
}

/* Judges a case of a plug-in's variant, and looks at what its calls have left of this process. */
static void judge_outside(const assay_case *one, const assay_variant *variant, const assay_device *device,
                          case_result *result) {
  static process_state before;
  char left[120];
  const pid_t self = getpid();
  const bool looks = is_worker && strcmp(device->name, "cuda") != 0; /* CUDA has threads of its own */
  if (looks) state_read(&before);
  judge_case(one, variant, device, result);
  if (is_worker && getpid() != self) _exit(0); /* a copy of the worker, which a call has made */
  if (!looks) return;
  if (result->verdict == VERDICT_HOST && state_limits_lowered(&before))
    verdict_set(result, VERDICT_STATE, "state", "it lowered a limit of the process's memory, which then ran out");
  if (state_left_running(&before, left, sizeof left)) {
    verdict_note_state(result, left);
    result->spent = true;
  }
  state_restore(&before);
  result->spent = result->spent || result->verdict == VERDICT_STATE || !state_same(&before);
}

void worker_judge(const assay_case *one, case_result *result) {
  assay_error error = {""};
  const assay_device *device = assay_device_find(one->device);
  const assay_variant *variant = assay_variant_find(one->op->name, one->variant, one->device);
  if (device == NULL)
    cannot_run(result, "device: found '%s', there are %s", one->device, assay_device_names());
  else if (variant == NULL)
    cannot_run(result, "variant: no '%s' on device %s", one->variant, one->device);
  else if (open_once(device, &error) != ASSAY_OK) {
    cannot_run(result, "device %s: %s", one->device, error.text);
    verdict_blame_host(result, ASSAY_ERR_MEMORY); /* no kernel has been asked */
  } else if (!load_plugin(variant, result))
    return;
  else if (assay_plugin_origin(variant) != NULL)
    judge_outside(one, variant, device, result);
  else
    judge_case(one, variant, device, result);
}

/* ---- the worker's end -------------------------------------------------------------------------------- */

static bool read_all(int fd, void *to, size_t bytes) {
  unsigned char *at = to;
  while (bytes > 0) {
    const ssize_t got = recv(fd, at, bytes, 0);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    at += got;
    bytes -= (size_t)got;
  }
  return true;
}

static bool write_all(int fd, const void *from, size_t bytes) {
  const unsigned char *at = from;
  while (bytes > 0) {
    const ssize_t put = send(fd, at, bytes, MSG_NOSIGNAL);
    if (put < 0 && errno == EINTR) continue;
    if (put <= 0) return false;
    at += put;
    bytes -= (size_t)put;
  }
  return true;
}

/* A question: its head, followed by the case's lists, [LISTS][batch]. */
enum { LISTS = 4 };
typedef struct worker_question {
  int64_t index;
  assay_case one;
} worker_question;

typedef struct member {
  int fd;
  bool alone;
} member;

/* Tells whether the device can no longer be used. In a team, the kernel that broke the shared context cannot be
 * named. */
static bool device_is_lost(const assay_case *one, const case_result *result) {
  assay_error error = {""};
  const assay_device *device = assay_device_find(one->device);
  if (result->device_lost) return true;
  return !verdict_is_good(result->verdict) && device != NULL && device->synchronize(&error) != ASSAY_OK;
}

/* Serves until the parent closes the socket or the device is lost. A worker alone then reports the loss. A team ends as
 * a whole without an answer, and its cases are run again one by one. */
static void serve(const member *self) {
  worker_answer *answer = calloc(1, sizeof *answer); /* padding crosses the socket as well, and must be defined */
  worker_question *question = calloc(1, sizeof *question);
  int32_t(*list)[CASE_MAX_BATCH] = calloc(LISTS, sizeof *list);
  while (answer != NULL && question != NULL && list != NULL && read_all(self->fd, question, sizeof *question)) {
    assay_case *one = &question->one;
    int32_t **const lists[LISTS] = {&one->kv_len, &one->new_len, &one->share_with, &one->share_tokens};
    bool whole = true;
    for (int i = 0; i < LISTS && whole; ++i)
      if (*lists[i] != NULL) {
        whole = read_all(self->fd, list[i], (size_t)one->batch * sizeof list[i][0]);
        *lists[i] = list[i];
      }
    if (!whole) break;
    answer->index = question->index;
    worker_judge(one, &answer->result);
    if (!self->alone && device_is_lost(one, &answer->result)) _exit(TEAM_LOST);
    if (!write_all(self->fd, answer, sizeof *answer) || answer->result.device_lost || answer->result.spent) break;
  }
  if (answer == NULL || question == NULL || list == NULL) _exit(WORKER_NO_MEMORY);
  free(answer);
  free(question);
  free(list);
}

static void *serve_thread(void *context) {
  serve(context);
  return NULL;
}

/* Ignores a signal from outside: the parent decides what its own end means. A process that sends one to itself dies of
 * it. */
static void on_signal(int number, siginfo_t *from, void *unused) {
  (void)unused;
  if (from->si_pid != getpid()) return;
  (void)signal(number, SIG_DFL);
  (void)raise(number);
}

/* Serves with all workers of a team. The parent handles interrupts. */
static void serve_team(const int *fd, int32_t size) {
  static const int ends[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT};
  static member members[WORKER_MAX_TEAM];
  pthread_t thread[WORKER_MAX_TEAM];
  struct sigaction act;
  memset(&act, 0, sizeof act);
  act.sa_sigaction = on_signal;
  act.sa_flags = SA_SIGINFO | SA_RESTART;
  (void)sigemptyset(&act.sa_mask);
  for (size_t i = 0; i < sizeof ends / sizeof ends[0]; ++i)
    (void)sigaction(ends[i], &act, NULL);
  is_worker = true;
  state_open();
  for (int32_t i = 0; i < size; ++i)
    members[i] = (member){fd[i], size == 1};
  for (int32_t i = 1; i < size; ++i)
    if (pthread_create(&thread[i], NULL, serve_thread, &members[i]) != 0) _exit(TEAM_LOST);
  serve(&members[0]);
  for (int32_t i = 1; i < size; ++i)
    (void)pthread_join(thread[i], NULL);
}

/* ---- the parent's end -------------------------------------------------------------------------------- */

static void close_all(const int *fd, int32_t count) {
  for (int32_t i = 0; i < count; ++i)
    (void)close(fd[i]);
}

static void print_line(worker *w) {
  static int64_t printed;
  w->line[w->line_used] = '\0';
  w->line_used = 0;
  if (printed > WORKER_MOST_TEXT) return;
  printed += (int64_t)strlen(w->line) + 1;
  if (printed > WORKER_MOST_TEXT)
    (void)fprintf(stderr, "kernel: more than %d bytes are not shown\n", WORKER_MOST_TEXT);
  else
    (void)fprintf(stderr, "kernel: %s\n", text_shown(w->line));
}

void worker_hear(worker *w) {
  char got[4096];
  ssize_t size = 0;
  for (int pass = 0; w->text >= 0 && pass < 64 && (size = read(w->text, got, sizeof got)) > 0; ++pass)
    for (ssize_t i = 0; i < size; ++i) {
      if (got[i] != '\n') w->line[w->line_used++] = got[i] != '\0' ? got[i] : ' ';
      if (got[i] == '\n' || w->line_used == sizeof w->line - 1) print_line(w);
    }
  if (w->text < 0 || size > 0 || (size < 0 && (errno == EAGAIN || errno == EINTR))) return;
  (void)close(w->text);
  w->text = -1;
}

/* Makes the pipe that catches what a worker prints. Without one the text goes where ours goes. */
static void open_text(const char *origin, int text[2]) {
  text[0] = text[1] = -1;
  if (origin == NULL || pipe(text) != 0) return;
  (void)fcntl(text[0], F_SETFL, O_NONBLOCK);
  (void)fcntl(text[0], F_SETFD, FD_CLOEXEC);
}

static void close_text(const int text[2]) {
  for (int i = 0; i < 2; ++i)
    if (text[i] >= 0) (void)close(text[i]);
}

assay_status worker_start(worker *all, int32_t count, int32_t first, int32_t size, const char *origin,
                          assay_error *error) {
  int ours[WORKER_MAX_TEAM], theirs[WORKER_MAX_TEAM];
  for (int32_t i = 0; i < size; ++i) {
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair) != 0) {
      const int why = errno;
      close_all(ours, i);
      close_all(theirs, i);
      return assay_fail(error, ASSAY_ERR_IO, "host: worker: no socket: %s (ulimit -n)", strerror(why));
    }
    ours[i] = pair[0];
    theirs[i] = pair[1];
  }
  pid_t pid = -1;
  int text[2];
  const int64_t oom_kills = worker_oom_kills();
  open_text(origin, text);
  const assay_status status = child_fork("worker", &pid, error);
  if (status != ASSAY_OK) {
    close_text(text);
    close_all(ours, size);
    close_all(theirs, size);
    return status;
  }
  if (pid == 0) {
    close_all(ours, size);
    for (int32_t i = 0; i < count; ++i)
      if (all[i].pid != 0) {
        (void)close(all[i].socket);
        if (all[i].text >= 0) (void)close(all[i].text);
      }
    if (text[1] >= 0) {
      (void)dup2(text[1], STDOUT_FILENO);
      (void)dup2(text[1], STDERR_FILENO);
      close_text(text);
    }
    serve_team(theirs, size);
    _exit(0); /* nothing that the parent has in its buffers is written twice */
  }
  close_all(theirs, size);
  if (text[1] >= 0) (void)close(text[1]);
  for (int32_t i = 0; i < size; ++i)
    all[first + i] = (worker){
        .pid = pid, .origin = origin, .oom_kills = oom_kills, .socket = ours[i], .text = i == 0 ? text[0] : -1};
  return ASSAY_OK;
}

int worker_stop(worker *team, int32_t size, bool kill_it) {
  const pid_t pid = team->pid;
  if (kill_it) child_kill(pid);
  for (int32_t i = 0; i < size; ++i)
    (void)close(team[i].socket);
  const int status = child_wait(pid);
  (void)kill(-pid, SIGKILL); /* processes that its kernels have left */
  worker_hear(team);
  if (team->line_used > 0) print_line(team);
  if (team->text >= 0) (void)close(team->text);
  team->text = -1;
  for (int32_t i = 0; i < size; ++i)
    team[i].pid = 0;
  return status;
}

bool worker_has_ended(const worker *w) {
  siginfo_t info;
  memset(&info, 0, sizeof info);
  return waitid(P_PID, (id_t)w->pid, &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid == w->pid;
}

int64_t worker_oom_kills(void) {
  char line[128];
  long long count = 0;
  FILE *file = fopen("/proc/vmstat", "r");
  while (file != NULL && fgets(line, sizeof line, file) != NULL)
    if (strncmp(line, "oom_kill ", 9) == 0) count = strtoll(line + 9, NULL, 10);
  if (file != NULL) (void)fclose(file);
  return count;
}

int64_t worker_question_bytes(const assay_case *one) {
  return (int64_t)sizeof(worker_question) + (int64_t)LISTS * one->batch * (int64_t)sizeof *one->kv_len;
}

bool worker_send(worker *w, int64_t index, const assay_case *one) {
  static worker_question question; /* static: its padding is defined */
  const int32_t *const lists[LISTS] = {one->kv_len, one->new_len, one->share_with, one->share_tokens};
  question.index = index;
  question.one = *one;
  bool sent = write_all(w->socket, &question, sizeof question);
  for (int i = 0; i < LISTS && sent; ++i)
    if (lists[i] != NULL) sent = write_all(w->socket, lists[i], (size_t)one->batch * sizeof *lists[i]);
  return sent;
}

int worker_receive(worker *w) {
  for (;;) {
    const ssize_t got =
        recv(w->socket, (unsigned char *)&w->partial + w->received, sizeof w->partial - w->received, MSG_DONTWAIT);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return 0;
    if (got <= 0) return -1;
    w->received += (size_t)got;
    if (w->received < sizeof w->partial) continue;
    w->received = 0;
    return 1;
  }
}

assay_status execute_probe(const assay_device *device, assay_device_info *info, assay_error *error) {
  static struct {
    assay_status status;
    assay_device_info info;
    assay_error error;
  } answer;
  int pair[2];
  pid_t pid = -1;
  if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair) != 0)
    return assay_fail(error, ASSAY_ERR_IO, "host: device %s: no socket: %s", device->name, strerror(errno));
  memset(&answer, 0, sizeof answer);
  const assay_status started = child_fork(device->name, &pid, error);
  if (started == ASSAY_OK && pid == 0) {
    (void)close(pair[0]);
    answer.status = device->open(&answer.error);
    if (answer.status == ASSAY_OK) answer.status = device->info(&answer.info, &answer.error);
    (void)write_all(pair[1], &answer, sizeof answer);
    _exit(0);
  }
  (void)close(pair[1]);
  const bool answered = started == ASSAY_OK && read_all(pair[0], &answer, sizeof answer);
  (void)close(pair[0]);
  if (started != ASSAY_OK) return started;
  (void)child_wait(pid);
  if (!answered)
    return assay_fail(error, ASSAY_ERR_DEVICE, "device %s: asking who it is ended the process", device->name);
  if (answer.status != ASSAY_OK) return assay_fail(error, answer.status, "%s", answer.error.text);
  *info = answer.info;
  return ASSAY_OK;
}
