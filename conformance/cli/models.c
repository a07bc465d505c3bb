/* models.c: assay run with suites of models, one case after the other in a process of their own, on one device. */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cli.h"
#include "conformance/models/models.h"
#include "conformance/report/report.h"
#include "core/child.h"
#include "core/modes.h"
#include "core/registry.h"

static bool chosen(const cli_options *options, const model_case *mc, const char *suite) {
  const assay_case as = model_as_case(mc, suite, options->device);
  const unsigned bit = strcmp(options->device, "cuda") == 0 ? CASE_ON_CUDA : CASE_ON_SIMT;
  char id[256];
  (void)snprintf(id, sizeof id, "%s/check/%s/%s", as.suite, as.name, as.variant);
  for (int32_t i = 0; i < options->filters.count; ++i)
    if (strstr(id, options->filters.item[i]) == NULL) return false;
  return (mc->devices & bit) != 0 && (!mc->nightly || options->filters.count > 0);
}

typedef struct chosen_case {
  const model_case *mc;
  const char *suite;
} chosen_case;

static assay_status choose(const cli_options *options, const model_cases *suites, chosen_case **cases, int64_t *count,
                           assay_error *error) {
  int64_t room = 1;
  for (int32_t s = 0; s < options->words.count; ++s)
    room += suites[s].count;
  *count = 0;
  *cases = calloc((size_t)room, sizeof **cases);
  if (*cases == NULL) return assay_fail(error, ASSAY_ERR_MEMORY, "run: out of memory");
  for (int32_t s = 0; s < options->words.count; ++s)
    for (int64_t i = 0; i < suites[s].count; ++i)
      if (chosen(options, &suites[s].list[i], options->words.item[s]))
        (*cases)[(*count)++] = (chosen_case){&suites[s].list[i], options->words.item[s]};
  return ASSAY_OK;
}

typedef struct all_suites {
  const cli_options *options;
  const model_cases *suites;
} all_suites;

static const char *id_of(const void *context, int64_t index) {
  const all_suites *all = context;
  static char id[256];
  for (int32_t s = 0; s < all->options->words.count; ++s) {
    if (index < all->suites[s].count) {
      const assay_case as =
          model_as_case(&all->suites[s].list[index], all->options->words.item[s], all->options->device);
      (void)snprintf(id, sizeof id, "%s/check/%s/%s", as.suite, as.name, as.variant);
      return id;
    }
    index -= all->suites[s].count;
  }
  return NULL;
}

/* Reports forced variants that no case took: nothing was learnt about them. */
static void report_forced(const model_forced *forced, report *out) {
  for (int32_t i = 0; i < forced->count; ++i) {
    char op[64];
    const char *equals = strchr(forced->word[i], '=');
    (void)snprintf(op, sizeof op, "%.*s", (int)(equals - forced->word[i]), forced->word[i]);
    if (forced->taken[i] == 0) report_untaken(out, op, equals + 1);
  }
}

_Static_assert((int)CLI_MAX_LIST <= (int)MODEL_MAX_FORCED, "every --variant has a place");

/* ---- cases in a process of their own ----------------------------------------------------------------- */

enum {
  CASE_SECONDS = 3600
}; /* The process has that much time of its own per case; a large model takes minutes on simt. */

typedef struct model_answer {
  int64_t index;
  case_result result;
  int64_t taken[MODEL_MAX_FORCED];
} model_answer;

static bool put_answer(int fd, const model_answer *answer) {
  const unsigned char *at = (const unsigned char *)answer;
  for (size_t bytes = sizeof *answer; bytes > 0;) {
    const ssize_t put = write(fd, at, bytes);
    if (put < 0 && errno == EINTR) continue;
    if (put <= 0) return false;
    at += put;
    bytes -= (size_t)put;
  }
  return true;
}

/* Judges cases from number `first` on, and answers each. It ends early when a case has left the process another. */
static void serve(const cli_options *options, const chosen_case *cases, int64_t first, int64_t count, int fd) {
  static model_answer answer;
  static model_forced forced;
  assay_error error = {""};
  forced.count = options->variants.count;
  for (int32_t i = 0; i < forced.count; ++i)
    forced.word[i] = options->variants.item[i];
  const assay_status bound = assay_plugin_bind_all(&error);
  const char *change = NULL;
  for (int32_t v = 0; v < assay_variant_count() && change == NULL; ++v)
    if (cli_variant_chosen(options, assay_variant_at(v))) change = assay_plugin_change(assay_variant_at(v));
  for (int64_t i = first; i < count; ++i) {
    modes_set();
    modes_forget();
    memset(forced.taken, 0, sizeof forced.taken);
    memset(&answer, 0, sizeof answer);
    answer.index = i;
    if (bound == ASSAY_OK)
      model_judge(cases[i].mc, options->device, &forced, NULL, &answer.result);
    else
      verdict_set(&answer.result, VERDICT_HOST, "host", "%s", error.text);
    verdict_note_state(&answer.result, modes_noted() != NULL ? modes_noted() : forced.count > 0 ? change : NULL);
    memcpy(answer.taken, forced.taken, sizeof answer.taken);
    if (!put_answer(fd, &answer) || answer.result.device_lost || answer.result.verdict == VERDICT_STATE) break;
  }
  _exit(0);
}

/* Waits for an answer. Returns 1 with it, 0 when the process has used up its time, -1 when it has ended. */
static int get_answer(int fd, pid_t pid, model_answer *answer) {
  size_t have = 0;
  patience time;
  patience_start(&time, pid);
  while (have < sizeof *answer) {
    struct pollfd ready = {fd, POLLIN, 0};
    if (poll(&ready, 1, 400) > 0) {
      const ssize_t got = read(fd, (unsigned char *)answer + have, sizeof *answer - have);
      if (got < 0 && errno == EINTR) continue;
      if (got <= 0) return -1;
      have += (size_t)got;
    }
    patience_look(&time);
    if (time.worked_ms + time.asleep_ms > 1e3 * CASE_SECONDS) return 0;
  }
  return 1;
}

/* Runs the cases. The process that calls the kernels is another one: this one goes on when it ends. */
static assay_status run_all(const cli_options *options, const chosen_case *cases, int64_t count, report *out,
                            assay_error *error) {
  static model_answer answer;
  model_forced forced = {.count = options->variants.count};
  int64_t next = 0;
  for (int32_t i = 0; i < forced.count; ++i)
    forced.word[i] = options->variants.item[i];
  while (next < count && !report_is_full(out)) {
    int ends[2], how = 1;
    pid_t pid = -1;
    if (pipe(ends) != 0) return assay_fail(error, ASSAY_ERR_IO, "host: models: no pipe: %s", strerror(errno));
    const assay_status status = child_fork("models", &pid, error);
    if (status == ASSAY_OK && pid == 0) {
      (void)close(ends[0]);
      serve(options, cases, next, count, ends[1]);
    }
    (void)close(ends[1]);
    const int64_t first = next;
    while (status == ASSAY_OK && next < count && !report_is_full(out) &&
           (how = get_answer(ends[0], pid, &answer)) > 0) {
      const assay_case as = model_as_case(cases[next].mc, cases[next].suite, options->device);
      report_add(out, &as, &answer.result);
      for (int32_t i = 0; i < forced.count; ++i)
        forced.taken[i] += answer.taken[i];
      ++next;
      if (answer.result.device_lost || answer.result.verdict == VERDICT_STATE) break;
    }
    (void)close(ends[0]);
    if (status != ASSAY_OK) return status;
    if (how >= 0) child_kill(pid);
    const int ended = child_wait(pid);
    if (how > 0 || next == count) continue;
    if (how < 0 && next > first && WIFEXITED(ended) && WEXITSTATUS(ended) == 0) continue; /* a new one is needed */
    const assay_case as = model_as_case(cases[next].mc, cases[next].suite, options->device);
    case_result result = {.verdict = VERDICT_CRASH};
    char end[80];
    child_end_text(ended, end, sizeof end);
    if (how == 0)
      verdict_set(&result, VERDICT_HANG, "deadline", "no result within %d s", (int)CASE_SECONDS);
    else
      verdict_set(&result, VERDICT_CRASH, "crash", "the process that ran it %s", end);
    report_add(out, &as, &result);
    ++next;
  }
  if (!report_is_stopped(out)) report_forced(&forced, out);
  return ASSAY_OK;
}

/* Every --variant, one per line: a replay forces them as well. */
static void list_forced(const cli_options *options, char *text, size_t size) {
  text[0] = '\0';
  for (int32_t i = 0; i < options->variants.count; ++i)
    (void)snprintf(text + strlen(text), size - strlen(text), "%s\n", options->variants.item[i]);
}

int cli_models_command(const cli_options *options) {
  int code = EXIT_BAD;
  assay_error error = {""};
  assay_device_info info = {.name = ""};
  model_cases *suites = calloc((size_t)options->words.count + 1, sizeof *suites);
  chosen_case *cases = NULL;
  int64_t count = 0;
  report *out = NULL;
  assay_status status = suites != NULL ? ASSAY_OK : assay_fail(&error, ASSAY_ERR_MEMORY, "run: out of memory");
  for (int32_t i = 0; i < options->words.count && status == ASSAY_OK; ++i)
    status = model_suite_read(options->words.item[i], &suites[i], &error);
  if (status == ASSAY_OK) status = choose(options, suites, &cases, &count, &error);
  if (status == ASSAY_OK) status = cli_probe(options->device, &info, &error);
  const all_suites all = {options, suites};
  if (status == ASSAY_OK && count == 0 && options->filters.count > 0) cli_say_no_case(options, id_of, &all);
  char forced[CLI_MAX_LIST * 130];
  list_forced(options, forced, sizeof forced);
  const report_options choice = {.text = stdout,
                                 .colour = cli_colour(options),
                                 .all = options->all,
                                 .maxfail = options->maxfail,
                                 .forced = forced,
                                 .progress = isatty(STDERR_FILENO) != 0 && isatty(STDOUT_FILENO) != 0,
                                 .jsonl = options->jsonl,
                                 .junit = options->junit,
                                 .device = options->device,
                                 .info = &info,
                                 .seed = options->seed,
                                 .total = count,
                                 .whole = options->filters.count == 0};
  if (status == ASSAY_OK) status = report_open(&choice, &out, &error);
  if (status != ASSAY_OK) {
    code = cli_leave(status, &error);
    goto done;
  }
  status = run_all(options, cases, count, out, &error);
  if (status != ASSAY_OK) {
    report_abandon(out);
    code = cli_leave_run(status, &error);
    goto done;
  }
  code = report_close(out, &error);
  if (error.text[0] != '\0') code = cli_leave(ASSAY_ERR_IO, &error);
  code = cli_written(code);
done:
  for (int32_t i = 0; i < options->words.count && suites != NULL; ++i)
    model_cases_free(&suites[i]);
  free(suites);
  free(cases);
  return code;
}
