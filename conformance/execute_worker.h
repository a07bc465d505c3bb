/* execute_worker.h: one worker, seen from both ends. Workers are threads; those of a team share a process and its
 * device context, so that cases of several are on the device at once. Private to the executor. */
#ifndef ASSAY_CONFORMANCE_EXECUTE_WORKER_H
#define ASSAY_CONFORMANCE_EXECUTE_WORKER_H

#include <sys/types.h>

#include "execute.h"

/* The case being run, and more so that the worker never waits for the parent, and both wake up less often. */
enum { WORKER_QUEUE = 4, WORKER_MAX_TEAM = 32 };

/* What crosses the socket to the parent. */
typedef struct worker_answer {
  int64_t index;
  case_result result;
} worker_answer;

typedef struct worker {
  pid_t pid; /* of its team's process; 0: none */
  int socket;
  int64_t queue[WORKER_QUEUE]; /* cases sent and not answered; [0] is the one being run */
  int32_t queued;
  double started_ms;     /* of queue[0] */
  worker_answer partial; /* an answer of which `received` bytes are here */
  size_t received;
  bool retiring; /* it said that its device is gone */
} worker;

/* Forks the team of `size` workers from `first` on, of `count`. Its copy of the other sockets is closed. */
assay_status worker_start(worker *all, int32_t count, int32_t first, int32_t size, assay_error *error);
/* Kills the team if asked, waits, closes. Returns the wait status. */
int worker_stop(worker *team, int32_t size, bool kill_it);
bool worker_send(worker *w, int64_t index, const assay_case *one);
/* Reads what is there. 1: an answer is complete in `partial`; 0: not yet; -1: the other end is gone. */
int worker_receive(worker *w);

/* One case in this process: finds variant and device, opens the device at first need, judges. */
void worker_judge(const assay_case *one, case_result *result);

#endif
