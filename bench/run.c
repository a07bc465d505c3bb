/* run.c: the worker and who waits for it. */
#define _POSIX_C_SOURCE 200809L
#include "run.h"

#include <errno.h>
#include <malloc.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "conformance/trial/trial.h"
#include "conformance/text/text.h"
#include "core/child.h"
#include "core/registry.h"

typedef struct message {
  int64_t index; /* -1: limits */
  bench_limits limits;
  bench_result result;
} message;

/* ---- the worker's end -------------------------------------------------------------------------------- */

static bool write_all(int fd, const void *from, size_t bytes) {
  const unsigned char *at = from;
  while (bytes > 0) {
    const ssize_t put = write(fd, at, bytes);
    if (put < 0 && errno == EINTR) continue;
    if (put <= 0) return false;
    at += put;
    bytes -= (size_t)put;
  }
  return true;
}

assay_status bench_measure(const assay_device *device, bench_limits *limits, assay_error *error) {
  assay_status status = ASSAY_OK;
  *limits = (bench_limits){.there = device != NULL && device->timing != NULL};
  if (!limits->there) return ASSAY_OK;
  for (int32_t i = 0; i < ASSAY_RATES && status == ASSAY_OK; ++i)
    status = device->timing->rate((assay_rate)i, &limits->rate[i], error);
  if (status == ASSAY_OK) status = device->timing->cache(&limits->cache_bytes, error);
  return status;
}

/* Returns the case after `index`, whose verdict is known. Other cases of a group that has its figure are left out. */
static int64_t after(const bench_job *job, int64_t index, verdict found) {
  int64_t next = index + 1;
  if (job->group == NULL || found == VERDICT_UNSUPPORTED) return next;
  while (next < job->count && job->group[next] == job->group[index])
    ++next;
  return next;
}

static void fail(bench_result *result, const char *format, const char *what, const char *why) {
  *result = (bench_result){.judged = {.verdict = VERDICT_FAIL}};
  verdict_set(&result->judged, VERDICT_FAIL, "launch", format, what, why);
}

static void time_case(const bench_job *job, int64_t index, const assay_device *device, bench_result *result) {
  assay_error error = {""};
  const assay_case *one = &job->cases[index];
  const assay_variant *variant = device != NULL ? assay_variant_find(one->op->name, one->variant, one->device) : NULL;
  if (device == NULL)
    bench_reference(one, &job->options, result);
  else if (variant == NULL)
    fail(result, "variant: no '%s' on device %s", one->variant, one->device);
  else if (assay_plugin_bind(variant, &error) != ASSAY_OK)
    fail(result, "%s%s", "", error.text);
  else
    bench_case(one, variant, device, &job->options, result);
}

/* Keeps freed memory for the next case. A case's images are hundreds of MB. To get fresh pages for each of them took
 * half of the host's time. */
static void keep_memory(void) {
  (void)mallopt(M_MMAP_MAX, 0);
  (void)mallopt(M_TRIM_THRESHOLD, -1);
}

/* `fd` < 0: no process between, results go to the job directly. */
static assay_status serve(const bench_job *job, int64_t first, int fd, message *m, assay_error *error) {
  const assay_case *one = &job->cases[first];
  const assay_device *device = strcmp(one->device, "ref") != 0 ? assay_device_find(one->device) : NULL;
  memset(m, 0, sizeof *m);
  m->index = -1;
  assay_status status = device != NULL ? device->open(error) : ASSAY_OK;
  if (status == ASSAY_OK) status = bench_measure(device, &m->limits, error);
  if (status != ASSAY_OK) return status;
  threads_use((int32_t)sysconf(_SC_NPROCESSORS_ONLN));
  keep_memory();
  if (fd < 0) job->begun(job->context, &m->limits);
  bool sent = fd < 0 || write_all(fd, m, sizeof *m);
  for (int64_t i = first; i < job->count && sent; i = after(job, i, m->result.judged.verdict)) {
    m->index = i;
    time_case(job, i, device, &m->result);
    if (fd < 0) job->done(job->context, i, &m->result);
    sent = fd < 0 || write_all(fd, m, sizeof *m);
    if (m->result.judged.device_lost) break;
  }
  bench_release();
  return ASSAY_OK;
}

/* ---- the parent's end -------------------------------------------------------------------------------- */

/* 1: a message; 0: the worker's own time is used up; -1: the other end is gone. Time in which the host does not run the
 * worker, or this process, does not count. */
static int read_message(int fd, pid_t pid, double deadline_s, message *m) {
  patience time;
  size_t have = 0;
  patience_start(&time, pid);
  while (have < sizeof *m) {
    struct pollfd ready = {fd, POLLIN, 0};
    patience_look(&time);
    if (time.worked_ms + time.asleep_ms > deadline_s * 1e3) return 0;
    const int found = poll(&ready, 1, deadline_s < 2 ? (int)(deadline_s * 250) + 1 : 500);
    if (found <= 0) continue;
    const ssize_t got = read(fd, (unsigned char *)m + have, sizeof *m - have);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return -1;
    have += (size_t)got;
  }
  return 1;
}

/* Reports the case that the worker died of. Returns the case to go on with. */
static int64_t give_up(const bench_job *job, int64_t index, int how, int status) {
  bench_result *result = calloc(1, sizeof *result);
  if (result == NULL) return index + 1;
  result->judged.verdict = VERDICT_CRASH;
  if (how == 0)
    verdict_set(&result->judged, VERDICT_HANG, "deadline", "no answer after %g s", job->deadline_s);
  else if (WIFSIGNALED(status))
    verdict_set(&result->judged, VERDICT_CRASH, "crash", "the process died of signal %d", WTERMSIG(status));
  else
    verdict_set(&result->judged, VERDICT_CRASH, "crash", "the process ended with status %d", WEXITSTATUS(status));
  job->done(job->context, index, result);
  const int64_t next = after(job, index, result->judged.verdict);
  free(result);
  return next;
}

/* From case `*next` on, until all are done or the worker is: then *next is the first case without a result. */
static assay_status one_worker(const bench_job *job, int64_t *next, message *m, assay_error *error) {
  int ends[2];
  if (pipe(ends) != 0) return assay_fail(error, ASSAY_ERR_IO, "bench: no pipe: %s", strerror(errno));
  pid_t pid = -1;
  const assay_status started = child_fork("bench", &pid, error);
  if (started != ASSAY_OK) {
    (void)close(ends[0]), (void)close(ends[1]);
    return started;
  }
  if (pid == 0) {
    assay_error why = {""};
    (void)close(ends[0]);
    if (serve(job, *next, ends[1], m, &why) != ASSAY_OK) {
      memset(m, 0, sizeof *m);
      m->index = -2;
      (void)snprintf(m->result.judged.message, sizeof m->result.judged.message, "%s", why.text);
      (void)write_all(ends[1], m, sizeof *m);
    }
    _exit(0);
  }
  (void)close(ends[1]);
  assay_status status = ASSAY_OK;
  int how = 1, ended = 0;
  bool lost = false;
  while (*next < job->count && !lost && (how = read_message(ends[0], pid, job->deadline_s, m)) > 0) {
    if (m->index == -2) {
      status = assay_fail(error, ASSAY_ERR_DEVICE, "bench: %s", m->result.judged.message);
      break;
    }
    if (m->index == -1) {
      job->begun(job->context, &m->limits);
      continue;
    }
    job->done(job->context, *next, &m->result);
    *next = after(job, *next, m->result.judged.verdict);
    lost = m->result.judged.device_lost;
  }
  if (how == 0) child_kill(pid);
  (void)close(ends[0]);
  ended = child_wait(pid);
  if (status == ASSAY_OK && how <= 0 && *next < job->count) *next = give_up(job, *next, how, ended);
  return status;
}

assay_status bench_run(const bench_job *job, assay_error *error) {
  assay_status status = ASSAY_OK;
  message *m = calloc(1, sizeof *m);
  if (m == NULL) return assay_fail(error, ASSAY_ERR_MEMORY, "bench: out of memory");
  if (job->in_process && job->count > 0)
    status = serve(job, 0, -1, m, error);
  else
    for (int64_t next = 0; next < job->count && status == ASSAY_OK;)
      status = one_worker(job, &next, m, error);
  free(m);
  return status;
}
