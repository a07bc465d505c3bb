/* interpreter.c: the interpreter of a worker, and the process that keeps it.
 *
 * The door makes two processes when it is loaded. The first one forks the keeper and ends, so that the worker has no
 * child. The keeper waits for the first question, starts the interpreter by exec, and waits for its end. It ends with
 * the worker, and the interpreter ends with it. All are in the worker's process group, which the runner kills. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "door.h"

enum { LOOK_MS = 20, SAY_MS = 10000 };

static int talk = -1;   /* the worker's end of the questions */
static int memory = -1; /* the shared memory */
static int ending = -1; /* from the keeper: the wait status of the interpreter */

/* A keeper, prepared before the fork. No allocation happens after the fork. */
typedef struct keeper {
  const char *python;
  char *argv[8];
  char fds[2][16];
  int talk, memory, life, status; /* life: ends when the worker ends */
} keeper;

/* ---- the keeper -------------------------------------------------------------------------------------- */

static void close_others(const keeper *k) {
  for (int fd = 3; fd < 4096; ++fd)
    if (fd != k->talk && fd != k->memory && fd != k->life && fd != k->status) (void)close(fd);
}

static void become_interpreter(const keeper *k, pid_t parent) {
  static const int usual[] = {SIGINT, SIGTERM, SIGHUP, SIGPIPE, SIGXFSZ, SIGTTOU, SIGTTIN};
  sigset_t none;
  (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(1);
  for (size_t i = 0; i < sizeof usual / sizeof *usual; ++i)
    (void)signal(usual[i], SIG_DFL);
  (void)sigemptyset(&none);
  (void)sigprocmask(SIG_SETMASK, &none, NULL);
  (void)close(k->life);
  (void)close(k->status);
  (void)fcntl(k->talk, F_SETFD, 0);
  (void)fcntl(k->memory, F_SETFD, 0);
  (void)execv(k->python, k->argv);
  static const char text[] = "assay: the interpreter cannot be started\n";
  if (write(STDERR_FILENO, text, sizeof text - 1) < 0) _exit(126);
  _exit(127);
}

/* Waits until the interpreter or the worker has ended. Returns whether it was the interpreter. */
static bool wait_for_end(const keeper *k, pid_t child, int *status) {
  const int end = (int)syscall(SYS_pidfd_open, child, 0);
  for (;;) {
    struct pollfd on[2] = {{k->life, 0, 0}, {end, POLLIN, 0}};
    (void)poll(on, end >= 0 ? 2 : 1, end >= 0 ? -1 : LOOK_MS);
    if (waitpid(child, status, WNOHANG) == child) return true;
    if ((on[0].revents & (POLLHUP | POLLERR)) != 0) return false;
  }
}

static void keep(keeper *k) {
  int status = 0;
  struct pollfd on[2] = {{k->talk, POLLIN, 0}, {k->life, 0, 0}};
  close_others(k);
  while (poll(on, 2, -1) < 0 && errno == EINTR)
    continue;
  if ((on[0].revents & POLLIN) == 0) _exit(0); /* nothing was asked */
  char none;
  if (recv(k->talk, &none, 1, MSG_PEEK) <= 0) _exit(0);
  const pid_t self = getpid(), child = fork();
  if (child == 0) become_interpreter(k, self);
  (void)close(k->talk);
  if (child < 0) _exit(0);
  if (wait_for_end(k, child, &status)) {
    if (write(k->status, &status, sizeof status) < 0) _exit(1);
  } else {
    (void)kill(child, SIGKILL);
  }
  _exit(0);
}

/* Forks twice: the keeper is no child of the worker. A worker takes over the children of its children, so that none is
 * left by a kernel; it does not take over this one. */
static assay_status start_keeper(keeper *k, assay_error *error) {
  int takes_over = 0;
  (void)prctl(PR_GET_CHILD_SUBREAPER, &takes_over);
  (void)prctl(PR_SET_CHILD_SUBREAPER, 0);
  const pid_t first = fork();
  if (first < 0) {
    (void)assay_fail(error, ASSAY_ERR_IO, "python door: no process: %s", strerror(errno));
    (void)prctl(PR_SET_CHILD_SUBREAPER, takes_over);
    return ASSAY_ERR_IO;
  }
  if (first == 0) {
    const pid_t second = fork();
    if (second == 0) keep(k);
    _exit(second < 0);
  }
  int status = 0;
  while (waitpid(first, &status, 0) < 0 && errno == EINTR)
    continue;
  (void)prctl(PR_SET_CHILD_SUBREAPER, takes_over);
  if (status != 0) return assay_fail(error, ASSAY_ERR_IO, "python door: no process for the interpreter");
  return ASSAY_OK;
}

/* ---- the worker's end -------------------------------------------------------------------------------- */

static void close_all(const int *fd, int count) {
  for (int i = 0; i < count; ++i)
    if (fd[i] >= 0) (void)close(fd[i]);
}

assay_status door_open(const char *python, assay_error *error) {
  int fd[7] = {-1, -1, -1, -1, -1, -1, -1}; /* questions, life, status, memory */
  static char at_once[] = "-u", option[] = "-m",
              module[] = "assay._worker"; /* -u: a killed interpreter loses no output */
  keeper k = {.python = python};
  if (talk >= 0) return ASSAY_OK;
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fd) != 0 || pipe2(fd + 2, O_CLOEXEC) != 0 ||
      pipe2(fd + 4, O_CLOEXEC) != 0 || (fd[6] = memfd_create("assay", MFD_CLOEXEC)) < 0) {
    const int why = errno;
    close_all(fd, 7);
    return assay_fail(error, ASSAY_ERR_IO, "python door: no pipes or no shared memory: %s", strerror(why));
  }
  k.talk = fd[1], k.life = fd[2], k.status = fd[5], k.memory = fd[6];
  (void)snprintf(k.fds[0], sizeof k.fds[0], "%d", k.talk);
  (void)snprintf(k.fds[1], sizeof k.fds[1], "%d", k.memory);
  char *const argv[] = {(char *)(uintptr_t)python, at_once, option, module, k.fds[0], k.fds[1], NULL};
  memcpy(k.argv, argv, sizeof argv);
  const assay_status status = start_keeper(&k, error);
  (void)close(fd[1]);
  (void)close(fd[2]);
  (void)close(fd[5]);
  if (status != ASSAY_OK) {
    close_all((int[]){fd[0], fd[3], fd[4], fd[6]}, 4);
    return status;
  }
  talk = fd[0], ending = fd[4], memory = fd[6]; /* fd[3] stays open as long as this process lives */
  return ASSAY_OK;
}

int door_memory(void) {
  return memory;
}

static bool send_all(const void *from, size_t bytes) {
  const char *at = from;
  while (bytes > 0) {
    const ssize_t put = send(talk, at, bytes, MSG_NOSIGNAL);
    if (put < 0 && errno == EINTR) continue;
    if (put <= 0) return false;
    at += put;
    bytes -= (size_t)put;
  }
  return true;
}

static bool receive_all(void *to, size_t bytes) {
  char *at = to;
  while (bytes > 0) {
    const ssize_t got = recv(talk, at, bytes, 0);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    at += got;
    bytes -= (size_t)got;
  }
  return true;
}

/* Ends this process as the interpreter ended, so that the runner sees a crash of the kernel. */
static void end_alike(void) {
  struct pollfd on = {ending, POLLIN, 0};
  int status = 0;
  (void)poll(&on, 1, SAY_MS);
  if (read(ending, &status, sizeof status) != (ssize_t)sizeof status) _exit(1);
  if (WIFSIGNALED(status)) {
    sigset_t one;
    const int number = WTERMSIG(status);
    (void)fprintf(stderr, "assay: the interpreter died of signal %d\n", number);
    (void)fflush(stderr);
    (void)signal(number, SIG_DFL);
    (void)sigemptyset(&one);
    (void)sigaddset(&one, number);
    (void)sigprocmask(SIG_UNBLOCK, &one, NULL);
    (void)raise(number);
    _exit(1);
  }
  /* 75 would say that the host has no memory for a worker. */
  _exit(WEXITSTATUS(status) != 75 ? WEXITSTATUS(status) : 1);
}

assay_status door_ask(const door_text *question, char *answer, size_t size, assay_error *error) {
  const uint32_t bytes = (uint32_t)question->size;
  uint32_t length = 0;
  if (question->full) return assay_fail(error, ASSAY_ERR_MEMORY, "python door: out of memory");
  if (!send_all(&bytes, sizeof bytes) || !send_all(question->at, bytes) || !receive_all(&length, sizeof length)) {
    end_alike();
    return ASSAY_ERR_INTERNAL;
  }
  size_t kept = 0;
  for (uint32_t at = 0; at < length;) {
    char piece[512];
    const uint32_t n = length - at < sizeof piece ? length - at : (uint32_t)sizeof piece;
    if (!receive_all(piece, n)) end_alike();
    for (uint32_t i = 0; i < n && kept + 1 < size; ++i)
      answer[kept++] = piece[i];
    at += n;
  }
  answer[kept] = '\0';
  return ASSAY_OK;
}
