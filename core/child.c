/* child.c: the first steps of a child process, its end, and the time that it has had. */
#define _GNU_SOURCE /* SCHED and process clocks of Linux */
#include "core/child.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "core/modes.h"

/* ---- the first steps --------------------------------------------------------------------------------- */

/* Closes regular files that are open for writing: reports belong to the parent. Other descriptors stay, because they
 * may be a debugger's. */
static void close_files(void) {
  struct rlimit limit;
  long most = getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < 4096 ? (long)limit.rlim_cur : 4096;
  for (int fd = 3; fd < most; ++fd) {
    struct stat is;
    const int flags = fcntl(fd, F_GETFL);
    if (flags < 0 || (flags & O_ACCMODE) == O_RDONLY) continue;
    if (fstat(fd, &is) == 0 && S_ISREG(is.st_mode)) (void)close(fd);
  }
}

static void set_signals(void) {
  sigset_t none;
  for (int number = 1; number < NSIG; ++number)
    if (number != SIGKILL && number != SIGSTOP) (void)signal(number, SIG_DFL);
  (void)signal(SIGPIPE, SIG_IGN);
  (void)signal(SIGXFSZ, SIG_IGN); /* a file that may not grow is a failed write */
  (void)signal(SIGTTOU, SIG_IGN); /* it may write to the terminal from its own group */
  (void)signal(SIGTTIN, SIG_IGN);
  (void)sigemptyset(&none);
  (void)sigprocmask(SIG_SETMASK, &none, NULL);
}

static void begin(pid_t parent) {
  (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(1); /* it died before it could be watched */
  (void)setpgid(0, 0);
  const int nothing = open("/dev/null", O_RDONLY);
  if (nothing > 0) {
    (void)dup2(nothing, STDIN_FILENO);
    (void)close(nothing);
  }
  (void)dup2(STDERR_FILENO, STDOUT_FILENO);
  close_files();
  set_signals();
  modes_set();
}

assay_status child_fork(const char *who, pid_t *pid, assay_error *error) {
  const pid_t parent = getpid();
  (void)fflush(NULL);
  *pid = fork();
  if (*pid < 0)
    return assay_fail(error, ASSAY_ERR_IO, "host: %s: no process: %s (limits of memory and processes: ulimit -a)", who,
                      strerror(errno));
  if (*pid == 0) begin(parent);
  return ASSAY_OK;
}

/* ---- its end ----------------------------------------------------------------------------------------- */

void child_kill(pid_t pid) {
  if (pid <= 0) return;
  (void)kill(-pid, SIGKILL);
  (void)kill(pid, SIGKILL); /* it may not have its group yet */
}

int child_wait(pid_t pid) {
  int status = 0;
  while (waitpid(pid, &status, 0) < 0)
    if (errno != EINTR) return 0;
  return status;
}

const char *child_signal_name(int number) {
  static const struct {
    int number;
    const char *name;
  } known[] = {{SIGSEGV, "SIGSEGV"}, {SIGBUS, "SIGBUS"},   {SIGFPE, "SIGFPE"},   {SIGILL, "SIGILL"},
               {SIGABRT, "SIGABRT"}, {SIGKILL, "SIGKILL"}, {SIGTERM, "SIGTERM"}, {SIGINT, "SIGINT"},
               {SIGHUP, "SIGHUP"},   {SIGQUIT, "SIGQUIT"}, {SIGALRM, "SIGALRM"}, {SIGXCPU, "SIGXCPU"},
               {SIGXFSZ, "SIGXFSZ"}, {SIGSYS, "SIGSYS"},   {SIGTRAP, "SIGTRAP"}, {SIGUSR1, "SIGUSR1"},
               {SIGUSR2, "SIGUSR2"}, {SIGPIPE, "SIGPIPE"}};
  for (size_t i = 0; i < sizeof known / sizeof known[0]; ++i)
    if (known[i].number == number) return known[i].name;
  return "a signal";
}

void child_end_text(int status, char *text, size_t size) {
  if (WIFSIGNALED(status))
    (void)snprintf(text, size, "died of %s (%d)", child_signal_name(WTERMSIG(status)), WTERMSIG(status));
  else
    (void)snprintf(text, size, "ended with exit status %d", WEXITSTATUS(status));
}

/* ---- its time ---------------------------------------------------------------------------------------- */

enum { LOOK_MS = 40, LONGEST_MS = 1000 }; /* a longer gap between two looks means that this process did not run */

static double clock_ms(clockid_t clock) {
  struct timespec now;
  if (clock_gettime(clock, &now) != 0) return -1;
  return (double)now.tv_sec * 1e3 + (double)now.tv_nsec * 1e-6;
}

static double cpu_of(pid_t pid) {
  clockid_t clock;
  return clock_getcpuclockid(pid, &clock) == 0 ? clock_ms(clock) : -1;
}

/* Returns the letter of a thread's state from its file "stat"; 0: it cannot be read. */
static char state_in(const char *path) {
  char line[512];
  FILE *file = fopen(path, "re");
  if (file == NULL) return 0;
  const size_t size = fread(line, 1, sizeof line - 1, file);
  (void)fclose(file);
  line[size] = '\0';
  const char *end = strrchr(line, ')');
  return end != NULL && end[1] == ' ' ? end[2] : 0;
}

/* Returns how much of its idle time a process was asleep for. 0: a thread waits for a processor or a disk. 1: none
 * does. Without /proc that is not known, and half of the time counts. */
static double asleep(pid_t pid) {
  char path[64];
  (void)snprintf(path, sizeof path, "/proc/%ld/task", (long)pid);
  DIR *threads = opendir(path);
  double share = threads != NULL ? 1 : 0.5;
  for (const struct dirent *e; threads != NULL && (e = readdir(threads)) != NULL;) {
    if (e->d_name[0] < '0' || e->d_name[0] > '9') continue;
    char stat[128];
    (void)snprintf(stat, sizeof stat, "%s/%.20s/stat", path, e->d_name);
    const char state = state_in(stat);
    if (state == 'R' || state == 'D') share = 0;
  }
  if (threads != NULL) (void)closedir(threads);
  return share;
}

void patience_start(patience *p, pid_t pid) {
  *p = (patience){.pid = pid, .cpu_ms = cpu_of(pid), .seen_ms = clock_ms(CLOCK_MONOTONIC)};
}

void patience_skip(patience *p) {
  p->cpu_ms = cpu_of(p->pid);
  p->seen_ms = clock_ms(CLOCK_MONOTONIC);
}

void patience_look(patience *p) {
  const double now = clock_ms(CLOCK_MONOTONIC), passed = now - p->seen_ms;
  if (passed < LOOK_MS) return;
  const double cpu = cpu_of(p->pid), ran = passed < LONGEST_MS ? passed : 0;
  double worked = cpu >= 0 && p->cpu_ms >= 0 && cpu > p->cpu_ms ? cpu - p->cpu_ms : 0;
  if (worked > passed) worked = passed;
  p->worked_ms += worked;
  p->passed_ms += ran;
  if (ran > worked) p->asleep_ms += (ran - worked) * asleep(p->pid);
  if (cpu >= 0) p->cpu_ms = cpu;
  p->seen_ms = now;
}
