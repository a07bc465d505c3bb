/* state.h: what a worker process is like, apart from its memory: folder, masks, handlers, timers, limits, environment,
 * descriptors, threads and children. Code from outside may change all of it. Private to the workers. */
#ifndef ASSAY_CONFORMANCE_RUN_STATE_H
#define ASSAY_CONFORMANCE_RUN_STATE_H

#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

enum { STATE_FDS = 64, STATE_LIMITS = 16, STATE_SIGNALS = 64, STATE_TIMERS = 3 };

typedef struct process_state {
  uint64_t folder[2], environment, fds;
  mode_t umask;
  sigset_t blocked;
  struct sigaction handler[STATE_SIGNALS];
  uint64_t limit[STATE_LIMITS][2];
  int64_t threads; /* 0: not known */
} process_state;

/* Opens the folder that state_restore goes back to. Once for each worker, before any code from outside. */
void state_open(void);
void state_read(process_state *s);
/* Goes back to the folder, umask, masks, handlers and soft limits of `s`, and stops all timers. */
void state_restore(const process_state *s);
/* Tells whether the process is as it was at `s`. */
bool state_same(const process_state *s);
/* Tells whether a limit of memory is below the one of `s`. */
bool state_limits_lowered(const process_state *s);
/* Tells whether threads have been left since `s`, or child processes; writes how many to `text`. It waits a little for
 * a thread that is about to end, and ends the children. */
bool state_left_running(const process_state *s, char *text, size_t size);

#endif
