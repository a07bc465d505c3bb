/* state.c: reads and restores what a process is like. */
#define _GNU_SOURCE /* O_PATH, unshare */
#include "state.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "core/hash.h"

extern char **environ;

static int home = -1;

void state_open(void) {
  (void)prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); /* a grandchild whose parent ends is a child that is left */
  home = open(".", O_PATH | O_DIRECTORY | O_CLOEXEC);
}

/* Returns the number of threads; 0: not known. Without /proc it is 1, or 2 for more. The system takes this flag from a
 * process of one thread alone, where it changes nothing. */
static int64_t thread_count(void) {
  struct stat is;
  if (stat("/proc/self/task", &is) == 0 && is.st_nlink > 2) return (int64_t)is.st_nlink - 2;
  if (unshare(CLONE_THREAD) == 0) return 1;
  return errno == EINVAL ? 2 : 0;
}

static uint64_t hash_of_environment(void) {
  uint64_t hash = HASH_START;
  for (char **at = environ; at != NULL && *at != NULL; ++at)
    hash = hash_text(hash_text(hash, *at), "\n");
  return hash;
}

static uint64_t hash_of_fds(void) {
  uint64_t hash = HASH_START;
  for (int fd = 0; fd < STATE_FDS; ++fd) {
    struct stat is;
    char line[64];
    if (fstat(fd, &is) != 0) continue;
    (void)snprintf(line, sizeof line, "%d %llx %llx", fd, (unsigned long long)is.st_dev, (unsigned long long)is.st_ino);
    hash = hash_text(hash, line);
  }
  return hash;
}

void state_read(process_state *s) {
  struct stat is;
  memset(s, 0, sizeof *s);
  if (stat(".", &is) == 0) s->folder[0] = (uint64_t)is.st_dev, s->folder[1] = (uint64_t)is.st_ino;
  s->environment = hash_of_environment();
  s->fds = hash_of_fds();
  s->umask = umask(0);
  (void)umask(s->umask);
  (void)sigprocmask(SIG_SETMASK, NULL, &s->blocked);
  for (int number = 1; number < STATE_SIGNALS; ++number)
    (void)sigaction(number, NULL, &s->handler[number]);
  for (int i = 0; i < STATE_LIMITS; ++i) {
    struct rlimit limit;
    if (getrlimit((__rlimit_resource_t)i, &limit) != 0) continue;
    s->limit[i][0] = limit.rlim_cur;
    s->limit[i][1] = limit.rlim_max;
  }
  s->threads = thread_count();
}

void state_restore(const process_state *s) {
  static const int timers[STATE_TIMERS] = {ITIMER_REAL, ITIMER_VIRTUAL, ITIMER_PROF};
  const struct itimerval never = {{0, 0}, {0, 0}};
  for (int i = 0; i < STATE_TIMERS; ++i)
    (void)setitimer((__itimer_which_t)timers[i], &never, NULL);
  if (home >= 0 && fchdir(home) != 0) return; /* state_same sees it */
  (void)umask(s->umask);
  for (int number = 1; number < STATE_SIGNALS; ++number)
    (void)sigaction(number, &s->handler[number], NULL);
  (void)sigprocmask(SIG_SETMASK, &s->blocked, NULL);
  for (int i = 0; i < STATE_LIMITS; ++i) {
    struct rlimit limit;
    if (getrlimit((__rlimit_resource_t)i, &limit) != 0 || limit.rlim_cur == s->limit[i][0]) continue;
    limit.rlim_cur = s->limit[i][0];
    (void)setrlimit((__rlimit_resource_t)i, &limit);
  }
}

bool state_same(const process_state *s) {
  static process_state now;
  state_read(&now);
  bool same = memcmp(now.folder, s->folder, sizeof now.folder) == 0 && now.environment == s->environment &&
              now.fds == s->fds && now.umask == s->umask && memcmp(now.limit, s->limit, sizeof now.limit) == 0;
  for (int number = 1; number < STATE_SIGNALS; ++number)
    same = same && sigismember(&now.blocked, number) == sigismember(&s->blocked, number) &&
           now.handler[number].sa_handler == s->handler[number].sa_handler &&
           now.handler[number].sa_flags == s->handler[number].sa_flags;
  return same;
}

/* Ends the children that are left. They may have a session of their own, so that no signal to the group reaches them.
 */
static void end_children(void) {
  char path[64], line[4096];
  (void)snprintf(path, sizeof path, "/proc/self/task/%lld/children", (long long)getpid());
  FILE *file = fopen(path, "r");
  const bool read = file != NULL && fgets(line, sizeof line, file) != NULL;
  if (file != NULL) (void)fclose(file);
  for (char *at = line, *end = NULL; read; at = end) {
    const long pid = strtol(at, &end, 10);
    if (end == at || pid <= 1) return;
    (void)kill((pid_t)pid, SIGKILL);
  }
}

bool state_limits_lowered(const process_state *s) {
  static const int memory[] = {RLIMIT_AS, RLIMIT_DATA, RLIMIT_STACK};
  for (size_t i = 0; i < sizeof memory / sizeof *memory; ++i) {
    struct rlimit limit;
    if (getrlimit((__rlimit_resource_t)memory[i], &limit) == 0 && limit.rlim_cur < s->limit[memory[i]][0]) return true;
  }
  return false;
}

bool state_left_running(const process_state *s, char *text, size_t size) {
  const struct timespec moment = {0, 2000000};
  int64_t threads = thread_count();
  for (int i = 0; i < 50 && s->threads > 0 && threads > s->threads; ++i) {
    (void)nanosleep(&moment, NULL);
    threads = thread_count();
  }
  const bool children = waitpid(-1, NULL, WNOHANG) >= 0 || errno != ECHILD;
  if (children) end_children();
  if (children)
    (void)snprintf(text, size, "a child process is left");
  else if (s->threads > 0 && threads > s->threads)
    (void)snprintf(text, size, "%lld %s left, which outlive%s the call", (long long)(threads - s->threads),
                   threads - s->threads == 1 ? "thread is" : "threads are", threads - s->threads == 1 ? "s" : "");
  else
    return false;
  return true;
}
