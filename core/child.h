/* child.h: processes that run code from outside. Their end and their modes are no part of the process that judges. */
#ifndef ASSAY_CORE_CHILD_H
#define ASSAY_CORE_CHILD_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#include "assay/status.h"

/* Forks, after all streams are written out: a child that calls exit() writes nothing twice. In the child pid is 0. The
 * child has a process group of its own, default signals and no standard input. Its standard output is standard error.
 * It has no file that the parent writes, and dies with its parent. Fails with ASSAY_ERR_IO and a text that names
 * the host; pid is then -1. `who` names the child in it. */
assay_status child_fork(const char *who, pid_t *pid, assay_error *error);
/* Kills the child and its process group. */
void child_kill(pid_t pid);
/* Waits for the child's end. Returns its wait status. */
int child_wait(pid_t pid);
/* Writes "died of SIGSEGV (11)" or "ended with exit status 0". */
void child_end_text(int status, char *text, size_t size);
const char *child_signal_name(int number);

/* How long a child has had for its work on a host that may be loaded, or that may pause it. */
typedef struct patience {
  pid_t pid;
  double cpu_ms, seen_ms; /* at the last look */
  double worked_ms;       /* processor time, and at most the time of the clock */
  double asleep_ms;       /* time in which no thread of it ran, or waited for a processor or a disk */
  double passed_ms;       /* time of the clock, without the time in which this process was stopped */
} patience;

void patience_start(patience *p, pid_t pid);
/* Leaves out the time since the last look: this process was paused. */
void patience_skip(patience *p);
/* Adds the time since the last look. It may be called at any time, and looks no more often than is useful. */
void patience_look(patience *p);

#endif
