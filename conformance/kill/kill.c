/* kill.c: the manifest, one mutant against its suite, and the run of all mutants, each in a process of its own. */
#define _POSIX_C_SOURCE 200809L
#include "kill.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/child.h"
#include "core/files/bytes.h"
#include "core/registry.h"
#include "conformance/run/run.h"
#include "conformance/suite/suite.h"
#include "conformance/trial/trial.h"

enum { COLUMNS = 13, MAX_JOBS = 64, ALLCLOSE_SECONDS = 60, MAX_VARIANTS = 8, REPLAYS_OF_RACES = 8 };

/* ---- the manifest ------------------------------------------------------------------------------------ */

static assay_status read_text(const char *path, char **text, assay_error *error) {
  FILE *file = NULL;
  int64_t size = 0;
  assay_status status = file_open(path, &file, &size, error);
  if (status != ASSAY_OK) return status;
  size_t used = 0, capacity = 1 << 16;
  *text = NULL;
  for (;;) {
    char *grown = realloc(*text, capacity + 1);
    if (grown == NULL) {
      status = assay_fail(error, ASSAY_ERR_MEMORY, "%s: out of memory", path);
      break;
    }
    *text = grown;
    used += fread(*text + used, 1, capacity - used, file);
    (*text)[used] = '\0';
    if (ferror(file) != 0) status = assay_fail(error, ASSAY_ERR_INPUT, "%s: cannot be read: %s", path, strerror(errno));
    if (used < capacity) break;
    capacity *= 2;
  }
  if (status == ASSAY_OK && (ferror(file) || memchr(*text, '\0', used) != NULL))
    status = assay_fail(error, ASSAY_ERR_INPUT, "%s: no text file", path);
  (void)fclose(file);
  return status;
}

static assay_status read_line(const char *path, int32_t number, char *line, mutant *m, assay_error *error) {
  const char **const column[COLUMNS] = {&m->id,      &m->plugin, &m->op,      &m->variants, &m->suite,
                                        &m->section, &m->seed,   &m->filters, &m->expect,   &m->ids,
                                        &m->why,     &m->device, &m->absent};
  int found = 0;
  for (char *at = line; at != NULL; ++found) {
    char *tab = strchr(at, '\t');
    if (tab != NULL) *tab = '\0';
    if (found < COLUMNS) *column[found] = strcmp(at, "-") == 0 ? "" : at;
    at = tab != NULL ? tab + 1 : NULL;
  }
  if (found != COLUMNS)
    return assay_fail(error, ASSAY_ERR_INPUT, "%s:%d: found %d columns, allowed %d", path, number, found, COLUMNS);
  if (m->id[0] == '\0' || m->plugin[0] == '\0' || m->variants[0] == '\0' || m->expect[0] == '\0')
    return assay_fail(error, ASSAY_ERR_INPUT, "%s:%d: id, plug-in, variants and expected checks must be given", path,
                      number);
  if (strcmp(m->device, "simt") != 0 && strcmp(m->device, "cuda") != 0)
    return assay_fail(error, ASSAY_ERR_INPUT, "%s:%d: device: found '%s', allowed simt, cuda", path, number, m->device);
  if (assay_op_find(m->op) == NULL)
    return assay_fail(error, ASSAY_ERR_INPUT, "%s:%d: found operator '%s', which there is not", path, number, m->op);
  return ASSAY_OK;
}

assay_status mutants_read(const char *path, mutant_list *list, assay_error *error) {
  *list = (mutant_list){NULL, 0, NULL};
  assay_status status = read_text(path, &list->text, error);
  int32_t lines = 0;
  for (const char *at = list->text; status == ASSAY_OK && *at != '\0'; ++at)
    lines += *at == '\n';
  list->items = calloc((size_t)lines + 1, sizeof *list->items);
  if (status == ASSAY_OK && list->items == NULL)
    status = assay_fail(error, ASSAY_ERR_MEMORY, "%s: out of memory", path);
  char *at = list->text;
  for (int32_t number = 1; status == ASSAY_OK && at != NULL && *at != '\0'; ++number) {
    char *end = strchr(at, '\n');
    if (end != NULL) *end = '\0';
    if (*at != '\0') status = read_line(path, number, at, &list->items[list->count++], error);
    at = end != NULL ? end + 1 : NULL;
  }
  if (status == ASSAY_OK && list->count == 0) status = assay_fail(error, ASSAY_ERR_INPUT, "%s: names no mutant", path);
  if (status != ASSAY_OK) mutants_free(list);
  return status;
}

assay_status mutants_read_kills(const char *path, mutant_list *list, assay_error *error) {
  char *text = NULL;
  int32_t named = 0, number = 1;
  assay_status status = read_text(path, &text, error);
  for (char *at = text; status == ASSAY_OK && at != NULL && *at != '\0'; ++number) {
    char *end = strchr(at, '\n');
    int32_t i = 0;
    if (end != NULL) *end = '\0';
    while (i < list->count && strcmp(list->items[i].id, at) != 0)
      ++i;
    mutant *m = i < list->count ? &list->items[i] : NULL;
    const char *wrong = m == NULL              ? "which the manifest does not have"
                        : m->by_list           ? "a second time"
                        : mutant_is_control(m) ? "a control"
                        : mutant_is_absent(m)  ? "which this device does not show"
                                               : NULL;
    const bool name = *at != '\0' && *at != '#';
    if (name && wrong != NULL)
      status = assay_fail(error, ASSAY_ERR_INPUT, "%s:%d: found '%.60s', %s; allowed: mutants of this device", path,
                          number, at, wrong);
    else if (name)
      ++named, m->by_list = true;
    at = end != NULL ? end + 1 : NULL;
  }
  free(text);
  if (status == ASSAY_OK && named == 0) status = assay_fail(error, ASSAY_ERR_INPUT, "%s: names no mutant", path);
  return status;
}

void mutants_free(mutant_list *list) {
  free(list->items);
  free(list->text);
  *list = (mutant_list){NULL, 0, NULL};
}

bool mutants_list_has(const char *list, const char *word) {
  const size_t length = strlen(word);
  for (const char *at = list; length > 0 && *at != '\0';) {
    const size_t size = strcspn(at, ",");
    if (size == length && strncmp(at, word, size) == 0) return true;
    at += size + (at[size] == ',');
  }
  return false;
}

bool mutant_is_control(const mutant *m) {
  return strcmp(m->expect, "pass") == 0;
}

bool mutant_is_absent(const mutant *m) {
  return m->absent[0] != '\0';
}

/* ---- one mutant -------------------------------------------------------------------------------------- */

typedef struct hunt {
  char host[520]; /* why the host could not judge a case; "": it could */
  const mutant *mutant;
  mutant_result *result;
  const assay_case *cases;
  int64_t count;
  bool first; /* the first case that is not good is enough */
  bool stop;  /* enough is known */
} hunt;

/* Each death costs a process and a newly opened device. After so many, further ones would tell nothing new. */
enum { MOST_DEATHS = 6 };

static execute_more next_case(void *context, int64_t index, const assay_case **one) {
  const hunt *h = context;
  if (h->stop || index >= h->count) return EXECUTE_END;
  *one = &h->cases[index];
  return EXECUTE_CASE;
}

static void on_result(void *context, int64_t index, const assay_case *one, const case_result *found) {
  hunt *h = context;
  mutant_result *r = h->result;
  (void)index;
  if (h->stop || found->verdict == VERDICT_UNSUPPORTED) return;
  if (found->verdict == VERDICT_HOST) { /* says nothing of the kernel */
    h->stop = true;
    (void)snprintf(h->host, sizeof h->host, "%.500s", found->message);
    return;
  }
  if (!r->expected) ++r->cases;
  if (verdict_is_good(found->verdict)) {
    ++r->passes;
    return;
  }
  const bool control = mutant_is_control(h->mutant);
  const bool expected = !control && mutants_list_has(h->mutant->expect, found->check);
  if (found->verdict == VERDICT_CRASH || found->verdict == VERDICT_HANG) ++r->deaths;
  h->stop = control || expected || h->first || r->deaths >= MOST_DEATHS;
  if (r->killed && !expected) return; /* one kill by an unexpected check is enough */
  r->killed = true;
  r->expected = expected;
  r->verdict = found->verdict;
  memcpy(r->check, found->check, sizeof r->check);
  (void)snprintf(r->variant, sizeof r->variant, "%s", one->variant);
  (void)snprintf(r->name, sizeof r->name, "%s", one->name);
  memcpy(r->message, found->message, sizeof r->message);
  assay_error error = {""};
  if (case_print(one, r->replay, sizeof r->replay, &error) != ASSAY_OK) r->replay[0] = '\0';
}

static bool case_wanted(const mutant *m, const assay_case *one, bool listed) {
  if (!case_runs_on(one, m->device) || one->section == SECTION_BENCH || strcmp(one->op->name, m->op) != 0) return false;
  if (listed) return true;
  if (m->section[0] != '\0' && strcmp(m->section, section_name(one->section)) != 0) return false;
  char id[192], filter[128];
  (void)snprintf(id, sizeof id, "%s/%s/%s", one->suite, section_name(one->section), one->name);
  for (const char *at = m->filters; *at != '\0';) {
    const size_t size = strcspn(at, ",");
    (void)snprintf(filter, sizeof filter, "%.*s", (int)size, at);
    if (strstr(id, filter) == NULL) return false;
    at += size + (at[size] == ',');
  }
  return true;
}

static assay_status find_variants(const mutant *m, const assay_variant **found, int32_t *count, assay_error *error) {
  *count = 0;
  for (const char *at = m->variants; *at != '\0' && *count < MAX_VARIANTS;) {
    const size_t size = strcspn(at, ",");
    char name[128];
    (void)snprintf(name, sizeof name, "%.*s@%s", (int)size, at, m->id);
    found[*count] = assay_variant_find(m->op, name, m->device);
    if (found[(*count)++] == NULL)
      return assay_fail(error, ASSAY_ERR_INPUT, "mutant %s: its plug-in has no variant '%s'", m->id, name);
    at += size + (at[size] == ',');
  }
  return ASSAY_OK;
}

/* Makes the cases of the suite, or of the list, times the variants; they are shallow copies. */
static assay_status make_cases(const mutant *m, const case_list *list, bool listed, assay_case **cases, int64_t *count,
                               assay_error *error) {
  const assay_variant *variant[MAX_VARIANTS];
  int32_t variants;
  assay_status status = find_variants(m, variant, &variants, error);
  if (status != ASSAY_OK) return status;
  *cases = malloc(((size_t)(list->count * variants) + 1) * sizeof **cases);
  if (*cases == NULL) return assay_fail(error, ASSAY_ERR_MEMORY, "mutant %s: out of memory", m->id);
  *count = 0;
  for (int64_t i = 0; i < list->count; ++i)
    for (int32_t v = 0; v < variants && case_wanted(m, &list->cases[i], listed); ++v) {
      if (m->thin && !listed && case_leaves(&list->cases[i], variant[v]->name)) continue;
      assay_case *one = &(*cases)[(*count)++];
      *one = list->cases[i];
      (void)snprintf(one->variant, sizeof one->variant, "%s", variant[v]->name);
      (void)snprintf(one->device, sizeof one->device, "%s", m->device);
    }
  /* Short lists stay whole: some of a control's few cases must be such as it takes. */
  int64_t every = mutant_is_control(m) ? m->every : 1;
  while (every > 1 && *count / every < 24)
    --every;
  for (int64_t i = 0; every > 1 && i * every < *count; ++i)
    (*cases)[i] = (*cases)[i * every];
  if (every > 1) *count = (*count + every - 1) / every;
  if (*count > 0 || listed) return ASSAY_OK;
  return assay_fail(error, ASSAY_ERR_INPUT, "mutant %s: no case of its suite is chosen", m->id);
}

static void replay_kill(const mutant *m, double deadline_s, mutant_result *result) {
  mutant_result again;
  assay_case one;
  assay_error error = {""};
  if (case_parse(result->replay, &one, &error) != ASSAY_OK) return;
  /* Where blocks race on a GPU, another of the expected checks may decide first, or none this time. simt repeats
   * itself. */
  const bool races = result->expected && strcmp(m->device, "simt") != 0;
  const mutant same = {.expect = races ? m->expect : result->check};
  const execute_options options = {.workers = 1, .deadline_s = deadline_s};
  for (int32_t i = 0; i < (races ? REPLAYS_OF_RACES : 1) && !result->replayed; ++i) {
    hunt h = {.mutant = &same, .result = &again, .cases = &one, .count = 1};
    memset(&again, 0, sizeof again);
    result->replayed =
        execute_stream(next_case, m->device, &options, on_result, &h, &error) == ASSAY_OK && again.expected;
  }
  case_free(&one);
}

/* Waits for the answer, or for the end of the process. Returns false when its own time is used up. */
static bool wait_for_answer(pid_t pid, int fd) {
  patience time;
  patience_start(&time, pid);
  for (;;) {
    struct pollfd ready = {fd, POLLIN, 0};
    if (poll(&ready, 1, 400) > 0) return true;
    patience_look(&time);
    if (time.worked_ms + time.asleep_ms > 1e3 * ALLCLOSE_SECONDS) return false;
  }
}

/* Asks allclose in a process of its own, because the variant may do anything. No answer counts as caught: a test that
 * dies fails. */
static void ask_allclose(const mutant *m, mutant_result *result) {
  const assay_variant *variant[MAX_VARIANTS];
  int32_t variants, fds[2];
  assay_error error = {""};
  struct {
    assay_status status;
    allclose_verdict verdict;
    assay_error error;
  } answer;
  memset(&answer, 0, sizeof answer);
  if (find_variants(m, variant, &variants, &error) != ASSAY_OK || pipe(fds) != 0) return;
  pid_t pid = -1;
  if (child_fork(m->plugin, &pid, &error) == ASSAY_OK && pid == 0) {
    (void)close(fds[0]);
    const assay_device *device = assay_device_find(m->device);
    answer.status = device->open(&answer.error);
    for (int32_t v = 0; v < variants && answer.status == ASSAY_OK; ++v) {
      answer.status = assay_plugin_bind(variant[v], &answer.error);
      if (answer.status == ASSAY_OK) answer.status = allclose_judge(variant[v], device, &answer.verdict, &answer.error);
    }
    _exit(write(fds[1], &answer, sizeof answer) == (ssize_t)sizeof answer ? 0 : 1);
  }
  (void)close(fds[1]);
  const bool answered =
      pid > 0 && wait_for_answer(pid, fds[0]) && read(fds[0], &answer, sizeof answer) == (ssize_t)sizeof answer;
  (void)close(fds[0]);
  child_kill(pid);
  if (pid > 0) (void)child_wait(pid);
  result->compared = pid > 0;
  if (!answered) {
    for (int32_t j = 0; j < ALLCLOSE_COUNT; ++j)
      result->allclose.caught[j] = true;
    result->allclose.cases = 1;
  } else if (answer.status != ASSAY_OK) {
    result->status = answer.status;
    (void)snprintf(result->message, sizeof result->message, "allclose: %.1500s", answer.error.text);
  } else {
    result->allclose = answer.verdict;
  }
}

/* Runs the cases without the check `predicted`, which alone is to see the mutant. Returns whether all are good. */
static bool slips_through(const mutant *m, const assay_case *cases, int64_t count, double deadline_s,
                          assay_error *error) {
  mutant_result found;
  hunt h = {.mutant = m, .result = &found, .cases = cases, .count = count};
  const execute_options options = {.workers = 1, .deadline_s = deadline_s};
  memset(&found, 0, sizeof found);
  predicted_use(false);
  const assay_status status = execute_stream(next_case, m->device, &options, on_result, &h, error);
  predicted_use(true);
  return status == ASSAY_OK && !found.killed && found.passes > 0;
}

/* Tries the cases of a list. `result` gets what they found. */
static assay_status try_list(const mutant *m, const case_list *listed, double deadline_s, mutant_result *result,
                             assay_error *error) {
  assay_case *cases = NULL;
  int64_t count = 0;
  const execute_options options = {.workers = 1, .deadline_s = deadline_s};
  assay_status status = make_cases(m, listed, true, &cases, &count, error);
  hunt h = {.mutant = m, .result = result, .cases = cases, .count = count, .first = true};
  if (status == ASSAY_OK) status = execute_stream(next_case, m->device, &options, on_result, &h, error);
  if (status == ASSAY_OK && h.host[0] != '\0') status = assay_fail(error, ASSAY_ERR_IO, "host: %s", h.host);
  result->listed = status == ASSAY_OK && result->killed;
  free(cases);
  return status;
}

/* Tries the cases of a list, and keeps only whether they kill: what the suites find is the result. */
static assay_status try_list_before(const mutant *m, const case_list *listed, double deadline_s, bool *killed,
                                    assay_error *error) {
  mutant_result *result = calloc(1, sizeof *result);
  if (result == NULL) return assay_fail(error, ASSAY_ERR_MEMORY, "mutant %s: out of memory", m->id);
  const assay_status status = try_list(m, listed, deadline_s, result, error);
  *killed = result->listed;
  free(result);
  return status;
}

/* Judges a mutant by the cases of a list alone. */
static void run_listed(const mutant *m, const case_list *listed, double deadline_s, mutant_result *result) {
  assay_error error = {""};
  const double start = device_now_ms();
  result->status = assay_plugin_load(m->plugin, &error);
  if (result->status == ASSAY_OK) result->status = try_list(m, listed, deadline_s, result, &error);
  result->seconds = (device_now_ms() - start) * 1e-3;
  if (result->status != ASSAY_OK) (void)snprintf(result->message, sizeof result->message, "%s", error.text);
}

void mutant_run(const mutant *m, const char *suites, const case_list *listed, double deadline_s,
                mutant_result *result) {
  assay_error error = {""};
  case_list list = {NULL, 0};
  assay_case *cases = NULL;
  int64_t count = 0;
  char path[4096];
  memset(result, 0, sizeof *result);
  if (mutant_is_absent(m)) return;
  if (m->by_list) {
    run_listed(m, listed, deadline_s, result);
    return;
  }
  hunt h = {.mutant = m, .result = result};
  const double start = device_now_ms();
  const uint64_t seed = m->seed[0] != '\0' ? strtoull(m->seed, NULL, 0) : 1;
  (void)snprintf(path, sizeof path, "%s/%s.yaml", suites, m->suite[0] != '\0' ? m->suite : m->op);
  assay_status status = assay_plugin_load(m->plugin, &error);
  if (status == ASSAY_OK && listed != NULL) status = try_list_before(m, listed, deadline_s, &result->listed, &error);
  if (status == ASSAY_OK) status = expand_suite(path, seed, &list, &error);
  if (status == ASSAY_OK && m->thin) case_list_thin(&list);
  if (status == ASSAY_OK) status = make_cases(m, &list, false, &cases, &count, &error);
  const execute_options options = {.workers = 1, .deadline_s = deadline_s};
  h.cases = cases;
  h.count = count;
  thinned_use(m->thin); /* not for the list before, and not for the replay */
  if (status == ASSAY_OK) status = execute_stream(next_case, m->device, &options, on_result, &h, &error);
  thinned_use(false);
  if (status == ASSAY_OK && h.host[0] != '\0') status = assay_fail(&error, ASSAY_ERR_IO, "host: %s", h.host);
  result->seconds = (device_now_ms() - start) * 1e-3;
  if (status == ASSAY_OK && result->killed && result->replay[0] != '\0' && !m->brief)
    replay_kill(m, deadline_s, result);
  if (status == ASSAY_OK && strcmp(m->expect, "predicted") == 0)
    result->seen_otherwise = !slips_through(m, cases, count, deadline_s, &error);
  result->status = status;
  if (status != ASSAY_OK)
    (void)snprintf(result->message, sizeof result->message, "%s", error.text);
  else if (!m->brief)
    ask_allclose(m, result);
  free(cases);
  case_list_free(&list);
}

/* ---- all of them ------------------------------------------------------------------------------------- */

typedef struct job {
  pid_t pid; /* 0: none */
  int fd;
  int32_t index;
  size_t received;
} job;

static assay_status start_job(job *j, const job *all, int32_t count, const mutant_list *list, int32_t index,
                              const char *suites, const case_list *listed, double deadline_s, mutant_result *answer,
                              assay_error *error) {
  int fds[2];
  if (pipe(fds) != 0) return assay_fail(error, ASSAY_ERR_IO, "mutants: no pipe: %s", strerror(errno));
  pid_t pid = -1;
  const assay_status started = child_fork("mutants", &pid, error);
  if (started != ASSAY_OK) {
    (void)close(fds[0]), (void)close(fds[1]);
    return started;
  }
  if (pid == 0) {
    (void)close(fds[0]);
    for (int32_t i = 0; i < count; ++i)
      if (all[i].pid != 0) (void)close(all[i].fd);
    mutant_run(&list->items[index], suites, listed, deadline_s, answer);
    const unsigned char *bytes = (const unsigned char *)answer;
    for (size_t sent = 0; sent < sizeof *answer;) {
      const ssize_t put = write(fds[1], bytes + sent, sizeof *answer - sent);
      if (put < 0 && errno != EINTR) _exit(1);
      if (put > 0) sent += (size_t)put;
    }
    _exit(0);
  }
  (void)close(fds[1]);
  *j = (job){pid, fds[0], index, 0};
  return ASSAY_OK;
}

static void end_job(job *j, mutant_result *answer) {
  int how = 0;
  (void)close(j->fd);
  while (waitpid(j->pid, &how, 0) < 0 && errno == EINTR) {
  }
  j->pid = 0;
  if (j->received == sizeof *answer) return;
  memset(answer, 0, sizeof *answer);
  answer->status = ASSAY_ERR_INTERNAL;
  (void)snprintf(answer->message, sizeof answer->message, "the process that ran it ended with wait status %d", how);
}

/* Reads the bytes that have arrived. Returns true when the answer is complete or will never be. */
static bool hear_job(job *j, mutant_result *answer) {
  const ssize_t got = read(j->fd, (unsigned char *)answer + j->received, sizeof *answer - j->received);
  if (got < 0) return errno != EINTR;
  j->received += (size_t)got;
  return got == 0 || j->received == sizeof *answer;
}

static int32_t next_chosen(const mutant_list *list, const bool *chosen, int32_t from) {
  while (from < list->count && !chosen[from])
    ++from;
  return from;
}

assay_status mutants_run_all(const mutant_list *list, const bool *chosen, const char *suites, const case_list *listed,
                             int32_t jobs, double deadline_s, mutants_done done, void *context, assay_error *error) {
  assay_status status = ASSAY_OK;
  job job_of[MAX_JOBS];
  memset(job_of, 0, sizeof job_of);
  if (jobs > MAX_JOBS) jobs = MAX_JOBS;
  bool *ready = calloc((size_t)list->count, sizeof *ready);
  mutant_result *answer = calloc((size_t)list->count, sizeof *answer);
  if (ready == NULL || answer == NULL) {
    status = assay_fail(error, ASSAY_ERR_MEMORY, "mutants: out of memory");
    goto done;
  }
  int32_t next = next_chosen(list, chosen, 0), told = next;
  while (status == ASSAY_OK && told < list->count) {
    struct pollfd fds[MAX_JOBS];
    for (int32_t i = 0; i < jobs; ++i) {
      if (job_of[i].pid == 0 && next < list->count && status == ASSAY_OK) {
        status = start_job(&job_of[i], job_of, jobs, list, next, suites, listed, deadline_s, &answer[next], error);
        next = next_chosen(list, chosen, next + 1);
      }
      fds[i] = (struct pollfd){.fd = job_of[i].pid != 0 ? job_of[i].fd : -1, .events = POLLIN};
    }
    if (status == ASSAY_OK && poll(fds, (nfds_t)jobs, -1) < 0 && errno != EINTR)
      status = assay_fail(error, ASSAY_ERR_IO, "mutants: poll: %s", strerror(errno));
    for (int32_t i = 0; i < jobs && status == ASSAY_OK; ++i) {
      job *j = &job_of[i];
      if (j->pid == 0 || fds[i].revents == 0 || !hear_job(j, &answer[j->index])) continue;
      end_job(j, &answer[j->index]);
      ready[j->index] = true;
    }
    while (told < list->count && ready[told]) {
      done(context, told, &list->items[told], &answer[told]);
      told = next_chosen(list, chosen, told + 1);
    }
  }
done:
  for (int32_t i = 0; i < jobs; ++i)
    if (job_of[i].pid != 0) end_job(&job_of[i], &answer[job_of[i].index]);
  free(ready);
  free(answer);
  return status;
}
