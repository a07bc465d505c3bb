/* faults.c: runs a program and makes one of its system calls fail.
 *
 *   faults KIND N COMMAND...   KIND: read, write, fork, mmap, open. The N-th call of that kind fails; 0: none.
 *
 * Calls of the program and of all its children count together. A filter stops them at these calls alone. The exit
 * status is that of the program, or 128 plus the number of the signal that ended it. The last line on standard error is
 * "faults: COUNT calls". */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MOST = 4 };

static const struct kind {
  const char *name;
  int error, count;
  int call[MOST];
} kinds[] = {
    {"read", EIO, 3, {SYS_read, SYS_pread64, SYS_readv}},  {"write", ENOSPC, 3, {SYS_write, SYS_pwrite64, SYS_writev}},
    {"fork", EAGAIN, 3, {SYS_clone, SYS_fork, SYS_vfork}}, {"mmap", ENOMEM, 2, {SYS_mmap, SYS_mremap}},
    {"open", EMFILE, 2, {SYS_openat, SYS_open}},
};

static int bad(const char *what) {
  fprintf(stderr, "faults: %s: %s\n", what, strerror(errno));
  return 125;
}

/* Stops the program at the calls of a kind. */
static int filter(const struct kind *k) {
  struct sock_filter code[2 * MOST + 2];
  unsigned short n = 0;
  code[n++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr));
  for (int i = 0; i < k->count; ++i) {
    code[n++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)k->call[i], 0, 1);
    code[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRACE);
  }
  code[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
  struct sock_fprog program = {n, code};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0 ? 0
                                                                                                                  : 1;
}

/* Makes the call at which the process stands fail. */
static void fail(pid_t pid, int error) {
  struct user_regs_struct regs;
  if (ptrace(PTRACE_GETREGS, pid, NULL, &regs) != 0) return;
  regs.orig_rax = (unsigned long long)-1; /* no call */
  regs.rax = (unsigned long long)-(long long)error;
  (void)ptrace(PTRACE_SETREGS, pid, NULL, &regs);
}

int main(int argc, char **argv) {
  const struct kind *k = NULL;
  for (size_t i = 0; argc > 3 && i < sizeof kinds / sizeof kinds[0]; ++i)
    if (strcmp(kinds[i].name, argv[1]) == 0) k = &kinds[i];
  if (k == NULL) return fprintf(stderr, "usage: faults read|write|fork|mmap|open N COMMAND...\n"), 125;
  const long wanted = atol(argv[2]);
  long count = 0;
  const pid_t first = fork();
  if (first < 0) return bad("fork");
  if (first == 0) {
    if (ptrace(PTRACE_TRACEME, 0, NULL, NULL) != 0) _exit(bad("ptrace"));
    (void)raise(SIGSTOP);
    if (filter(k) != 0) _exit(bad("seccomp"));
    (void)execvp(argv[3], argv + 3);
    _exit(bad(argv[3]));
  }
  int status = 0, end = 125;
  if (waitpid(first, &status, 0) != first || !WIFSTOPPED(status)) return bad("waitpid");
  if (ptrace(PTRACE_SETOPTIONS, first, NULL,
             PTRACE_O_TRACESECCOMP | PTRACE_O_TRACEFORK | PTRACE_O_TRACEVFORK | PTRACE_O_TRACECLONE |
                 PTRACE_O_EXITKILL) != 0)
    return bad("ptrace");
  (void)ptrace(PTRACE_CONT, first, NULL, NULL);
  for (;;) {
    const pid_t pid = waitpid(-1, &status, __WALL);
    if (pid < 0) break; /* all have ended */
    if (WIFEXITED(status) || WIFSIGNALED(status)) {
      if (pid == first) end = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
      continue;
    }
    const int event = status >> 16, number = WSTOPSIG(status);
    if (event == PTRACE_EVENT_SECCOMP && ++count == wanted) fail(pid, k->error);
    /* A signal goes on to the process; the stop of a new process and other events do not. */
    const bool passes = event == 0 && number != SIGSTOP && number != SIGTRAP;
    (void)ptrace(PTRACE_CONT, pid, NULL, passes ? (void *)(long)number : NULL);
  }
  fprintf(stderr, "faults: %ld calls\n", count);
  return end;
}
