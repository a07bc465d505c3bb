/* worker.h: one worker, seen from both ends. Workers are threads. Those of a team share a process and its device
 * context, so that several of their cases are on the device at once. Private to the executor. */
#ifndef ASSAY_CONFORMANCE_RUN_WORKER_H
#define ASSAY_CONFORMANCE_RUN_WORKER_H

#include <sys/types.h>

#include "core/child.h"
#include "execute.h"

/* The queue has the running case and a few more, so that the worker never waits for the parent and both wake up less
 * often. */
enum { WORKER_QUEUE = 4, WORKER_MAX_TEAM = 32 };

/* A message from a worker to the parent. */
typedef struct worker_answer {
  int64_t index;
  case_result result;
} worker_answer;

typedef struct worker {
  pid_t pid;          /* process of its team; 0: none */
  const char *origin; /* the plug-in whose variants the team calls, and no others; NULL: the built-in ones */
  int64_t oom_kills;  /* number of them in the whole system, when the team was started */
  int socket;
  int64_t queue[WORKER_QUEUE]; /* cases sent and not answered; [0] is the one being run */
  int32_t queued;
  patience time;         /* the time that queue[0] has had */
  worker_answer partial; /* an answer of which `received` bytes have arrived */
  size_t received;
  int text;       /* a pipe with the text of its process; -1: none. The first of a team has it. */
  char line[400]; /* the line that it is printing, so far */
  size_t line_used;
  bool retiring; /* it said that its device is gone, or that its process is no longer as it was */
} worker;

/* The exit status of a worker that could not begin, because the host has no memory. */
enum { WORKER_NO_MEMORY = 75 };

/* Forks the team of `size` workers that begins at number `first` of `count`, for variants of `origin`. The child closes
 * its copies of the other sockets. Fails with ASSAY_ERR_IO. */
assay_status worker_start(worker *all, int32_t count, int32_t first, int32_t size, const char *origin,
                          assay_error *error);
/* Kills the team if `kill_it`, waits, closes the sockets, and kills what it has left. Returns the wait status. */
int worker_stop(worker *team, int32_t size, bool kill_it);
/* Writes what the process has printed to standard error, line by line, escaped. A word stands before each line: it is
 * the kernel's and not ours. A run writes up to WORKER_MOST_TEXT bytes. */
enum { WORKER_MOST_TEXT = 1 << 18 };
void worker_hear(worker *w);
/* Tells whether the process has ended. A child of it may hold its socket open. */
bool worker_has_ended(const worker *w);
/* Returns how often the system has killed a process for lack of memory; 0: not known. */
int64_t worker_oom_kills(void);
/* Returns the bytes of a question. One of more than WORKER_SMALL is sent to an idle worker alone, which reads it. */
enum { WORKER_SMALL = 1 << 15 };
int64_t worker_question_bytes(const assay_case *one);
/* Sends a case. Returns false where the worker's end is closed. */
bool worker_send(worker *w, int64_t index, const assay_case *one);
/* Reads the bytes that have arrived. Returns 1 if an answer is complete in `partial`, 0 if not yet, -1 if the other end
 * is closed. */
int worker_receive(worker *w);

/* Judges one case in this process: finds variant and device, opens the device on first use. Every failure becomes a
 * verdict. */
void worker_judge(const assay_case *one, case_result *result);

#endif
