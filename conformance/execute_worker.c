/* execute_worker.c: a team of workers: born by fork before any device is open here, fed with cases as they lie in
 * memory (addresses of operators are the same on both sides of a fork), answers with plain results. */
#define _POSIX_C_SOURCE 200809L
#include "execute_worker.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/registry.h"

enum { MAX_DEVICES = 4, TEAM_LOST = 3 };

/* Devices open in this thread. */
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

static void cannot_run(case_result *result, const char *format, const char *what, const char *why) {
  *result = (case_result){.verdict = VERDICT_FAIL, .check = "launch"};
  (void)snprintf(result->message, sizeof result->message, format, what, why);
}

void worker_judge(const assay_case *one, case_result *result) {
  assay_error error = {""};
  const assay_device *device = assay_device_find(one->device);
  const assay_variant *variant = assay_variant_find(one->op->name, one->variant, one->device);
  if (device == NULL)
    cannot_run(result, "device: found '%s', there are %s", one->device, assay_device_names());
  else if (variant == NULL)
    cannot_run(result, "variant: no '%s' on device %s", one->variant, one->device);
  else if (open_once(device, &error) != ASSAY_OK)
    cannot_run(result, "device %s: %s", one->device, error.text);
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

/* A question: its head, then the case's lists, [LISTS][batch]. */
enum { LISTS = 4 };
typedef struct worker_question {
  int64_t index;
  assay_case one;
} worker_question;

typedef struct member {
  int fd;
  bool alone;
} member;

/* In a team nobody can tell whose kernel broke the context they share. */
static bool device_is_lost(const assay_case *one, const case_result *result) {
  assay_error error = {""};
  const assay_device *device = assay_device_find(one->device);
  if (result->device_lost) return true;
  return !verdict_is_good(result->verdict) && device != NULL && device->synchronize(&error) != ASSAY_OK;
}

/* Until the parent closes the socket, or the device is lost: then a worker alone says so, and a team ends as a whole
 * without a word; its cases are run again one by one. */
static void serve(const member *self) {
  worker_answer *answer = calloc(1, sizeof *answer); /* padding crosses the socket as well, and shall be defined */
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
    if (!write_all(self->fd, answer, sizeof *answer) || answer->result.device_lost) break;
  }
  free(answer);
  free(question);
  free(list);
}

static void *serve_thread(void *context) {
  serve(context);
  return NULL;
}

/* Interrupts are the parent's business. */
static void serve_team(const int *fd, int32_t size) {
  static member members[WORKER_MAX_TEAM];
  pthread_t thread[WORKER_MAX_TEAM];
  (void)signal(SIGINT, SIG_IGN);
  (void)signal(SIGTERM, SIG_DFL);
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

assay_status worker_start(worker *all, int32_t count, int32_t first, int32_t size, assay_error *error) {
  int ours[WORKER_MAX_TEAM], theirs[WORKER_MAX_TEAM];
  for (int32_t i = 0; i < size; ++i) {
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair) != 0) {
      const int why = errno;
      close_all(ours, i);
      close_all(theirs, i);
      return assay_fail(error, ASSAY_ERR_IO, "worker: no socket: %s", strerror(why));
    }
    ours[i] = pair[0];
    theirs[i] = pair[1];
  }
  const pid_t pid = fork();
  if (pid < 0) {
    const int why = errno;
    close_all(ours, size);
    close_all(theirs, size);
    return assay_fail(error, ASSAY_ERR_IO, "worker: no process: %s", strerror(why));
  }
  if (pid == 0) {
    close_all(ours, size);
    for (int32_t i = 0; i < count; ++i)
      if (all[i].pid != 0) (void)close(all[i].socket);
    serve_team(theirs, size);
    _exit(0); /* nothing that the parent has in its buffers is written twice */
  }
  close_all(theirs, size);
  for (int32_t i = 0; i < size; ++i)
    all[first + i] = (worker){.pid = pid, .socket = ours[i]};
  return ASSAY_OK;
}

int worker_stop(worker *team, int32_t size, bool kill_it) {
  int status = 0;
  if (kill_it) (void)kill(team->pid, SIGKILL);
  for (int32_t i = 0; i < size; ++i)
    (void)close(team[i].socket);
  while (waitpid(team->pid, &status, 0) < 0 && errno == EINTR) {
  }
  for (int32_t i = 0; i < size; ++i)
    team[i].pid = 0;
  return status;
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
  if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair) != 0)
    return assay_fail(error, ASSAY_ERR_IO, "device %s: no socket: %s", device->name, strerror(errno));
  memset(&answer, 0, sizeof answer);
  const pid_t pid = fork();
  if (pid == 0) {
    (void)close(pair[0]);
    answer.status = device->open(&answer.error);
    if (answer.status == ASSAY_OK) answer.status = device->info(&answer.info, &answer.error);
    (void)write_all(pair[1], &answer, sizeof answer);
    _exit(0);
  }
  (void)close(pair[1]);
  const bool answered = pid > 0 && read_all(pair[0], &answer, sizeof answer);
  (void)close(pair[0]);
  while (pid > 0 && waitpid(pid, NULL, 0) < 0 && errno == EINTR) {
  }
  if (!answered)
    return assay_fail(error, ASSAY_ERR_DEVICE, "device %s: asking who it is ended the process", device->name);
  if (answer.status != ASSAY_OK) return assay_fail(error, answer.status, "%s", answer.error.text);
  *info = answer.info;
  return ASSAY_OK;
}
