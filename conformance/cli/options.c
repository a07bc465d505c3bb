/* options.c: the command line, walked by a table. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cli.h"
#include "conformance/power.h"
#include "core/registry.h"

typedef assay_status (*handler)(cli_options *options, const char *name, const char *value, assay_error *error);

typedef struct option_row {
  const char *name;
  bool takes_value;
  handler handle;
} option_row;

static assay_status push(cli_list *list, const char *name, const char *value, assay_error *error) {
  if (list->count == CLI_MAX_LIST)
    return assay_fail(error, ASSAY_ERR_INPUT, "%s: given more than %d times", name, CLI_MAX_LIST);
  list->item[list->count++] = value;
  return ASSAY_OK;
}

static assay_status number(const char *name, const char *value, double min, double max, double *out,
                           assay_error *error) {
  char *end = NULL;
  errno = 0;
  const double parsed = strtod(value, &end);
  if (end == value || *end != '\0' || errno != 0 || !(parsed >= min && parsed <= max))
    return assay_fail(error, ASSAY_ERR_INPUT, "%s: found '%s', allowed: a number from %g to %g", name, value, min, max);
  *out = parsed;
  return ASSAY_OK;
}

static assay_status on_device(cli_options *o, const char *name, const char *value, assay_error *error) {
  if (strcmp(value, "cuda") != 0 && strcmp(value, "simt") != 0)
    return assay_fail(error, ASSAY_ERR_INPUT, "%s: found '%s', allowed: cuda, simt", name, value);
  o->device = value;
  o->device_given = true;
  return ASSAY_OK;
}

static assay_status on_section(cli_options *o, const char *name, const char *value, assay_error *error) {
  static const char *const sections[] = {"check", "edge", "refuse", "bench"};
  for (size_t i = 0; i < sizeof sections / sizeof *sections; ++i)
    if (strcmp(value, sections[i]) == 0) {
      o->section = value;
      return ASSAY_OK;
    }
  return assay_fail(error, ASSAY_ERR_INPUT, "%s: found '%s', allowed: check, edge, refuse, bench", name, value);
}

/* "op=one,other" is kept as "op=one" and "op=other". */
static assay_status on_variant(cli_options *o, const char *name, const char *value, assay_error *error) {
  static char kept[2 * CLI_MAX_LIST][128];
  static int32_t used;
  const char *equals = strchr(value, '=');
  assay_status status = ASSAY_OK;
  if (equals == NULL || equals == value || equals[1] == '\0')
    return assay_fail(error, ASSAY_ERR_INPUT, "%s: found '%s', allowed: operator=variant, operator=variant,variant",
                      name, value);
  if (strchr(equals, ',') == NULL) return push(&o->variants, name, value, error);
  for (const char *at = equals + 1; status == ASSAY_OK; ++at) {
    const size_t length = strcspn(at, ","), op = (size_t)(equals + 1 - value);
    if (length == 0 || op + length >= sizeof kept[0])
      return assay_fail(error, ASSAY_ERR_INPUT, "%s: found '%s', allowed: operator=variant,variant", name, value);
    if (used == 2 * CLI_MAX_LIST)
      return assay_fail(error, ASSAY_ERR_INPUT, "%s: more than %d names in lists", name, 2 * CLI_MAX_LIST);
    (void)snprintf(kept[used], sizeof kept[used], "%.*s%.*s", (int)op, value, (int)length, at);
    status = push(&o->variants, name, kept[used++], error);
    at += length;
    if (*at == '\0') break;
  }
  return status;
}

static assay_status on_seed(cli_options *o, const char *name, const char *value, assay_error *error) {
  char *end = NULL;
  errno = 0;
  o->seed = strtoull(value, &end, 0);
  o->seed_given = true;
  if (end == value || *end != '\0' || errno != 0 || value[0] == '-')
    return assay_fail(error, ASSAY_ERR_INPUT, "%s: found '%s', allowed: an integer from 0 to 2^64-1", name, value);
  return ASSAY_OK;
}

static assay_status on_workers(cli_options *o, const char *name, const char *value, assay_error *error) {
  double n = 0;
  const assay_status status = number(name, value, 1, 256, &n, error);
  o->workers = (int32_t)n;
  if (status == ASSAY_OK && (double)o->workers != n)
    return assay_fail(error, ASSAY_ERR_INPUT, "%s: found '%s', allowed: an integer from 1 to 256", name, value);
  return status;
}

static assay_status on_threads(cli_options *o, const char *name, const char *value, assay_error *error) {
  double n = 0;
  const assay_status status = number(name, value, 1, 32, &n, error);
  o->threads = (int32_t)n;
  if (status == ASSAY_OK && (double)o->threads != n)
    return assay_fail(error, ASSAY_ERR_INPUT, "%s: found '%s', allowed: an integer from 1 to 32", name, value);
  return status;
}

static assay_status on_deadline(cli_options *o, const char *name, const char *value, assay_error *error) {
  return number(name, value, 0.1, 86400, &o->deadline_s, error);
}
static assay_status on_shrink(cli_options *o, const char *name, const char *value, assay_error *error) {
  (void)name, (void)error;
  o->shrink = value;
  return ASSAY_OK;
}
static assay_status on_shrink_budget(cli_options *o, const char *name, const char *value, assay_error *error) {
  return number(name, value, 0.1, 86400, &o->shrink_budget_s, error);
}
static assay_status on_filter(cli_options *o, const char *name, const char *value, assay_error *error) {
  return push(&o->filters, name, value, error);
}
static assay_status on_where(cli_options *o, const char *name, const char *value, assay_error *error) {
  return push(&o->where, name, value, error);
}
static assay_status on_plugin(cli_options *o, const char *name, const char *value, assay_error *error) {
  return push(&o->plugins, name, value, error);
}
static assay_status on_jsonl(cli_options *o, const char *name, const char *value, assay_error *error) {
  (void)name, (void)error;
  o->jsonl = value;
  return ASSAY_OK;
}
static assay_status on_junit(cli_options *o, const char *name, const char *value, assay_error *error) {
  (void)name, (void)error;
  o->junit = value;
  return ASSAY_OK;
}
static assay_status on_html(cli_options *o, const char *name, const char *value, assay_error *error) {
  (void)name, (void)error;
  o->html = value;
  return ASSAY_OK;
}
static assay_status on_resume(cli_options *o, const char *name, const char *value, assay_error *error) {
  (void)name, (void)error;
  o->resume = value;
  return ASSAY_OK;
}
static assay_status on_output(cli_options *o, const char *name, const char *value, assay_error *error) {
  (void)name, (void)error;
  o->output = value;
  return ASSAY_OK;
}
static assay_status on_dump(cli_options *o, const char *name, const char *value, assay_error *error) {
  (void)name, (void)error;
  o->dump = value;
  return ASSAY_OK;
}
static assay_status on_dtype(cli_options *o, const char *name, const char *value, assay_error *error) {
  (void)name, (void)error;
  o->dtype = value;
  return ASSAY_OK;
}
static assay_status on_shape(cli_options *o, const char *name, const char *value, assay_error *error) {
  (void)name, (void)error;
  o->shape = value;
  return ASSAY_OK;
}

/* "3/8": the third of eight. */
static assay_status on_shard(cli_options *o, const char *name, const char *value, assay_error *error) {
  int used = 0;
  if (sscanf(value, "%6d/%6d%n", &o->shard, &o->shards, &used) != 2 || value[used] != '\0' || o->shards < 1 ||
      o->shard < 1 || o->shard > o->shards)
    return assay_fail(error, ASSAY_ERR_INPUT, "%s: found '%s', allowed: i/n with 1 <= i <= n", name, value);
  return ASSAY_OK;
}
static assay_status on_in_process(cli_options *o, const char *name, const char *value, assay_error *error) {
  (void)name, (void)value, (void)error;
  o->in_process = true;
  return ASSAY_OK;
}

static assay_status on_markdown(cli_options *o, const char *name, const char *value, assay_error *error) {
  (void)name, (void)value, (void)error;
  o->markdown = true;
  return ASSAY_OK;
}

static assay_status on_peers(cli_options *o, const char *name, const char *value, assay_error *error) {
  (void)name, (void)value, (void)error;
  o->peers = true;
  return ASSAY_OK;
}

static assay_status on_cases(cli_options *o, const char *name, const char *value, assay_error *error) {
  double n = 0;
  const assay_status status = number(name, value, 1, 1e12, &n, error);
  o->cases = (int64_t)n;
  if (status == ASSAY_OK && (double)o->cases != n)
    return assay_fail(error, ASSAY_ERR_INPUT, "%s: found '%s', allowed: an integer from 1 to 1e12", name, value);
  return status;
}

/* "60s", "5m", "1h". */
static assay_status on_budget(cli_options *o, const char *name, const char *value, assay_error *error) {
  char *end = NULL;
  const double count = strtod(value, &end);
  const double unit = strcmp(end, "s") == 0 ? 1 : strcmp(end, "m") == 0 ? 60 : strcmp(end, "h") == 0 ? 3600 : 0;
  if (end == value || value[0] < '0' || value[0] > '9' || !(count * unit > 0 && count * unit <= 1e7))
    return assay_fail(error, ASSAY_ERR_INPUT, "%s: found '%s', allowed: a time such as 60s, 5m, 1h", name, value);
  o->budget_s = count * unit;
  return ASSAY_OK;
}
static assay_status on_ledger(cli_options *o, const char *name, const char *value, assay_error *error) {
  (void)name, (void)error;
  o->ledger = value;
  return ASSAY_OK;
}
static assay_status on_regressions(cli_options *o, const char *name, const char *value, assay_error *error) {
  (void)name, (void)error;
  o->regressions = value;
  return ASSAY_OK;
}

static assay_status on_baseline(cli_options *o, const char *name, const char *value, assay_error *error) {
  (void)name, (void)error;
  o->baseline = value;
  return ASSAY_OK;
}

static assay_status on_power(cli_options *o, const char *name, const char *value, assay_error *error) {
  o->power = power_mode_find(value);
  if (o->power >= 0) return ASSAY_OK;
  return assay_fail(error, ASSAY_ERR_INPUT, "%s: found '%s', allowed: off, sample, all", name, value);
}

static const option_row rows[] = {
    {"--shrink", true, on_shrink},
    {"--shrink-budget", true, on_shrink_budget},
    {"--budget", true, on_budget},
    {"--where", true, on_where},
    {"--cases", true, on_cases},
    {"--regressions", true, on_regressions},
    {"--ledger", true, on_ledger},
    {"--baseline", true, on_baseline},
    {"--device", true, on_device},
    {"--section", true, on_section},
    {"--variant", true, on_variant},
    {"--filter", true, on_filter},
    {"--seed", true, on_seed},
    {"--jsonl", true, on_jsonl},
    {"--junit", true, on_junit},
    {"--plugin", true, on_plugin},
    {"--workers", true, on_workers},
    {"--jobs", true, on_workers},
    {"--threads", true, on_threads},
    {"--deadline", true, on_deadline},
    {"--in-process", false, on_in_process},
    {"--power", true, on_power},
    {"--html", true, on_html},
    {"--resume", true, on_resume},
    {"--shard", true, on_shard},
    {"--dump", true, on_dump},
    {"--dtype", true, on_dtype},
    {"--shape", true, on_shape},
    {"-o", true, on_output},
    {"--markdown", false, on_markdown},
    {"--peers", false, on_peers},
};

/* Is `name` one of the words of `allowed`, which are separated by blanks? */
static bool permitted(const char *allowed, const char *name) {
  const size_t length = strlen(name);
  for (const char *at = strstr(allowed, name); at != NULL; at = strstr(at + 1, name))
    if ((at == allowed || at[-1] == ' ') && (at[length] == ' ' || at[length] == '\0')) return true;
  return false;
}

assay_status cli_parse(int argc, char **argv, const char *allowed, cli_options *options, assay_error *error) {
  memset(options, 0, sizeof *options);
  options->device = "simt";
  options->seed = 1;
  options->deadline_s = 120;
  options->shrink_budget_s = 60;
  options->power = -1;
  for (int i = 0; i < argc; ++i) {
    const char *word = argv[i];
    if (word[0] != '-') {
      const assay_status status = push(&options->words, "arguments", word, error);
      if (status != ASSAY_OK) return status;
      continue;
    }
    const char *equals = strchr(word, '=');
    char name[32];
    (void)snprintf(name, sizeof name, "%.*s", equals != NULL ? (int)(equals - word) : (int)sizeof name - 1, word);
    const option_row *row = NULL;
    for (size_t r = 0; r < sizeof rows / sizeof *rows; ++r)
      if (strcmp(name, rows[r].name) == 0 && permitted(allowed, name)) row = &rows[r];
    if (row == NULL)
      return assay_fail(error, ASSAY_ERR_INPUT, "option '%s' is unknown here, allowed: %s", word, allowed);
    const char *value = equals != NULL ? equals + 1 : NULL;
    if (row->takes_value && value == NULL && i + 1 < argc) value = argv[++i];
    if (row->takes_value && value == NULL) return assay_fail(error, ASSAY_ERR_INPUT, "%s: needs a value", row->name);
    if (!row->takes_value && value != NULL)
      return assay_fail(error, ASSAY_ERR_INPUT, "%s: takes no value, found '%s'", row->name, value);
    const assay_status status = row->handle(options, row->name, value, error);
    if (status != ASSAY_OK) return status;
  }
  return ASSAY_OK;
}

int cli_leave(assay_status status, const assay_error *error) {
  fprintf(stderr, "assay: %s\n", error->text[0] != '\0' ? error->text : "failed without a message");
  switch (status) {
  case ASSAY_ERR_INPUT:
  case ASSAY_ERR_UNSUPPORTED: /* what was asked for, nothing here does */
    return EXIT_INPUT;
  case ASSAY_ERR_NO_DEVICE:
    return EXIT_NO_DEVICE;
  default:
    return EXIT_BAD;
  }
}

typedef struct probe_answer {
  assay_status status;
  assay_device_info info;
  assay_error error;
} probe_answer;

assay_status cli_probe(const char *name, assay_device_info *info, assay_error *error) {
  const assay_device *device = assay_device_find(name);
  if (device == NULL)
    return assay_fail(error, ASSAY_ERR_NO_DEVICE, "--device: found '%s', this build has: %s", name,
                      assay_device_names());
  int ends[2];
  if (pipe(ends) != 0) return assay_fail(error, ASSAY_ERR_IO, "pipe: %s", strerror(errno));
  probe_answer answer;
  memset(&answer, 0, sizeof answer);
  const pid_t child = fork();
  if (child < 0) {
    (void)close(ends[0]), (void)close(ends[1]);
    return assay_fail(error, ASSAY_ERR_IO, "fork: %s", strerror(errno));
  }
  if (child == 0) {
    (void)close(ends[0]);
    answer.status = device->open(&answer.error);
    if (answer.status == ASSAY_OK) answer.status = device->info(&answer.info, &answer.error);
    const ssize_t sent = write(ends[1], &answer, sizeof answer);
    _exit(sent == (ssize_t)sizeof answer ? 0 : 1);
  }
  (void)close(ends[1]);
  size_t have = 0;
  while (have < sizeof answer) {
    const ssize_t got = read(ends[0], (char *)&answer + have, sizeof answer - have);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    have += (size_t)got;
  }
  (void)close(ends[0]);
  while (waitpid(child, NULL, 0) < 0 && errno == EINTR)
    continue;
  if (have < sizeof answer) return assay_fail(error, ASSAY_ERR_DEVICE, "device %s: died while being opened", name);
  if (answer.status != ASSAY_OK) return assay_fail(error, answer.status, "device %s: %s", name, answer.error.text);
  *info = answer.info;
  return ASSAY_OK;
}

const char *cli_section_name(case_section section) {
  static const char *const names[] = {"check", "edge", "refuse", "bench"};
  return names[section];
}

void cli_case_id(const assay_case *one, char *text, size_t size) {
  (void)snprintf(text, size, "%s/%s/%s", one->suite, cli_section_name(one->section), one->name);
}
