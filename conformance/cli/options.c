/* options.c: the table of options, and how their values are read. */
#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "conformance/planted/planted.h"
#include "conformance/run/run.h"
#include "core/child.h"
#include "conformance/text/text.h"
#include "core/registry.h"
#include "table.h"

/* ---- values ------------------------------------------------------------------------------------------ */

/* Memory that options refer to stays in one list until the process ends. */
typedef struct cli_memory {
  struct cli_memory *next;
  max_align_t memory[];
} cli_memory;

void *cli_keep(size_t size) {
  static cli_memory *first;
  cli_memory *const added = malloc(sizeof *added + size);
  if (added == NULL) return NULL;
  added->next = first;
  first = added;
  return added->memory;
}

/* Adds a value. The list is doubled at powers of two. */
static assay_status push_any(cli_list *list, const char *name, const char *value, assay_error *error) {
  if ((list->count & (list->count - 1)) == 0) {
    const size_t room = list->count > 0 ? 2 * (size_t)list->count : 1;
    const char **const grown = cli_keep(room * sizeof *grown);
    if (grown == NULL) return assay_fail(error, ASSAY_ERR_MEMORY, "%s: out of memory", name);
    for (int32_t i = 0; i < list->count; ++i)
      grown[i] = list->item[i];
    list->item = grown;
  }
  list->item[list->count++] = value;
  return ASSAY_OK;
}

static assay_status push(cli_list *list, const char *name, const char *value, assay_error *error) {
  if (list->count == CLI_MAX_LIST)
    return assay_fail(error, ASSAY_ERR_INPUT, "%s: given more than %d times", name, CLI_MAX_LIST);
  return push_any(list, name, value, error);
}

static assay_status not_among(const char *name, const char *value, const char *words, assay_error *error) {
  char near[CLI_NEAR];
  return assay_fail(error, ASSAY_ERR_INPUT, "%s: found '%s'%s, allowed: %s", name, value,
                    cli_did_you_mean(value, words, near), words);
}

static assay_status take_real(const cli_option *option, const char *name, const char *value, double *to,
                              assay_error *error) {
  char *end = NULL;
  errno = 0;
  const double parsed = strtod(value, &end);
  if (end == value || *end != '\0' || errno != 0 || !(parsed >= option->min && parsed <= option->max))
    return assay_fail(error, ASSAY_ERR_INPUT, "%s: found '%s', allowed: a number from %g to %g", name, value,
                      option->min, option->max);
  *to = parsed;
  return ASSAY_OK;
}

static assay_status take_whole(const cli_option *option, const char *name, const char *value, int64_t *to,
                               assay_error *error) {
  double parsed = 0;
  assay_error other = {""};
  const assay_status status = take_real(option, name, value, &parsed, &other);
  *to = status == ASSAY_OK ? (int64_t)parsed : 0;
  if (status == ASSAY_OK && (double)*to == parsed) return ASSAY_OK;
  return assay_fail(error, ASSAY_ERR_INPUT, "%s: found '%s', allowed: an integer from %.15g to %.15g", name, value,
                    option->min, option->max);
}

static assay_status take_word(const cli_option *option, const char *name, const char *value, const char **to,
                              assay_error *error) {
  const size_t length = strlen(value);
  for (const char *at = option->words; *at != '\0';) {
    at += strspn(at, ", ");
    const size_t n = strcspn(at, ", ");
    if (n == length && strncmp(at, value, n) == 0) {
      *to = value;
      return ASSAY_OK;
    }
    at += n;
  }
  return not_among(name, value, option->words, error);
}

assay_status option_take(const cli_option *option, cli_options *o, const char *name, const char *value,
                         assay_error *error) {
  void *to = (char *)o + option->at;
  assay_status status = ASSAY_OK;
  int64_t whole = 0;
  switch (option->kind) {
  case TAKES_NOTHING:
    *(bool *)to = true;
    return ASSAY_OK;
  case TAKES_TEXT:
    *(const char **)to = value;
    return ASSAY_OK;
  case TAKES_WORD:
    return take_word(option, name, value, to, error);
  case TAKES_LIST:
    if (option->max > 0 && ((cli_list *)to)->count >= (int32_t)option->max)
      return assay_fail(error, ASSAY_ERR_INPUT, "%s: given more than %g times", name, option->max);
    return push(to, name, value, error);
  case TAKES_I32:
    status = take_whole(option, name, value, &whole, error);
    *(int32_t *)to = (int32_t)whole;
    return status;
  case TAKES_I64:
    status = take_whole(option, name, value, &whole, error);
    *(int64_t *)to = whole;
    return status;
  case TAKES_REAL:
    return take_real(option, name, value, to, error);
  case TAKES_OWN:
    break;
  }
  return option->take(o, name, value, error);
}

assay_status option_word(cli_options *o, const char *word, assay_error *error) {
  return push_any(&o->words, "arguments", word, error);
}

static assay_status on_device(cli_options *o, const char *name, const char *value, assay_error *error) {
  if (strcmp(value, "cuda") != 0 && strcmp(value, "simt") != 0) return not_among(name, value, "cuda, simt", error);
  o->device = value;
  o->device_given = true;
  return ASSAY_OK;
}

/* The reference is a device of bench, and has no variants. */
static assay_status on_bench_device(cli_options *o, const char *name, const char *value, assay_error *error) {
  if (strcmp(value, "ref") == 0) {
    o->reference = true;
    return ASSAY_OK;
  }
  return strcmp(value, "cuda") == 0 || strcmp(value, "simt") == 0 ? on_device(o, name, value, error)
                                                                  : not_among(name, value, "cuda, simt, ref", error);
}

static assay_status on_model_device(cli_options *o, const char *name, const char *value, assay_error *error) {
  if (strcmp(value, "ref") != 0 && strcmp(value, "cuda") != 0 && strcmp(value, "simt") != 0)
    return not_among(name, value, "ref, simt, cuda", error);
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
  return not_among(name, value, "check, edge, refuse, bench", error);
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

/* "3/8": the third of eight. */
static assay_status on_shard(cli_options *o, const char *name, const char *value, assay_error *error) {
  int used = 0;
  if (sscanf(value, "%6d/%6d%n", &o->shard, &o->shards, &used) != 2 || value[used] != '\0' || o->shards < 1 ||
      o->shard < 1 || o->shard > o->shards)
    return assay_fail(error, ASSAY_ERR_INPUT, "%s: found '%s', allowed: i/n with 1 <= i <= n", name, value);
  return ASSAY_OK;
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

/* "0.01,0.01": relative and absolute. */
static assay_status on_tolerance(cli_options *o, const char *name, const char *value, assay_error *error) {
  int used = 0;
  double *t = o->tolerance;
  if (sscanf(value, "%lf,%lf%n", &t[0], &t[1], &used) == 2 && value[used] == '\0' && t[0] >= 0 && t[1] >= 0 &&
      t[0] + t[1] > 0 && t[0] + t[1] <= 1e6)
    return ASSAY_OK;
  return assay_fail(error, ASSAY_ERR_INPUT, "%s: found '%s', allowed: RTOL,ATOL such as 0.01,0.01", name, value);
}

/* "0.4,1,1.6" */
static assay_status on_scales(cli_options *o, const char *name, const char *value, assay_error *error) {
  const char *at = value;
  for (o->scales = 0; o->scales < CLI_MAX_SCALES;) {
    char *end = NULL;
    const double one = strtod(at, &end);
    if (end == at || !(one > 0 && one <= 1000) || (*end != ',' && *end != '\0')) break;
    o->scale[o->scales++] = one;
    if (*end == '\0') return ASSAY_OK;
    at = end + 1;
  }
  return assay_fail(error, ASSAY_ERR_INPUT, "%s: found '%s', allowed: up to %d numbers above 0, with commas", name,
                    value, CLI_MAX_SCALES);
}

static assay_status on_power(cli_options *o, const char *name, const char *value, assay_error *error) {
  o->power = power_mode_find(value);
  if (o->power >= 0) return ASSAY_OK;
  return not_among(name, value, "off, sample, all", error);
}

static assay_status on_color(cli_options *o, const char *name, const char *value, assay_error *error) {
  static const char *const when[] = {"auto", "always", "never"};
  for (int i = 0; i < 3; ++i)
    if (strcmp(value, when[i]) == 0) {
      o->color = i;
      return ASSAY_OK;
    }
  return not_among(name, value, "auto, always, never", error);
}

/* ---- the table --------------------------------------------------------------------------------------- */

#define AT(field) offsetof(cli_options, field)
static const double most_whole = 1099511627776; /* 2^40 */

static const cli_option rows[] = {
    {"filter", "TEXT", TOPIC_CASES, TAKES_LIST, AT(filters), 0, 0, NULL,
     "only cases whose suite/section/name contains TEXT; may come again, then all must occur", NULL},
    {"filter:mutants", "TEXT", TOPIC_CASES, TAKES_LIST, AT(filters), 0, 0, NULL,
     "only mutants whose name contains TEXT, or that have TEXT among their catalogue ids; may come again", NULL},
    {"section", "NAME", TOPIC_CASES, TAKES_OWN, 0, 0, 0, "check, edge, refuse, bench",
     "only this section of the suites: check, edge, refuse or bench", on_section},
    {"only", "FILE", TOPIC_CASES, TAKES_TEXT, AT(only), 0, 0, "@file",
     "only the cases whose descriptors are lines of FILE, as assay list cases and failures print them", NULL},
    {"list", "NAME|FILE", TOPIC_CASES, TAKES_TEXT, AT(list), 0, 0, "@file",
     "the cases of a list of descriptors, instead of suites: mustpass-4, or a file (docs/conformance.md)", NULL},
    {"list:mutants", "NAME|FILE", TOPIC_CASES, TAKES_TEXT, AT(list), 0, 0, "@file",
     "tries the cases of a list first, and prints what share of the mutants they kill (docs/conformance.md)", NULL},
    {"kills", "FILE", TOPIC_CASES, TAKES_TEXT, AT(kills), 0, 0, "@file",
     "only the mutants that FILE names, by the cases of the list alone, which must kill each of them", NULL},
    {"thin", NULL, TOPIC_CASES, TAKES_NOTHING, AT(thin), 0, 0, NULL,
     "leaves out the draws that an item with thin: K leaves to the night (docs/suites.md)", NULL},
    {"seed", "N", TOPIC_CASES, TAKES_OWN, 0, 0, 0, NULL, "the seed of every draw, from 0 to 2^64-1 (1)", on_seed},
    {"shard", "I/N", TOPIC_CASES, TAKES_OWN, 0, 0, 0, NULL,
     "the I-th of N parts of the cases, for runs spread over hosts", on_shard},
    {"shard:mutants", "I/N", TOPIC_CASES, TAKES_OWN, 0, 0, 0, NULL, "every N-th mutant, from the I-th on", on_shard},
    {"cases", "N", TOPIC_CASES, TAKES_I64, AT(cases), 1, 1e12, NULL, "ends after N drawn cases", NULL},
    {"cases:contract", "N", TOPIC_CASES, TAKES_I64, AT(cases), 1, 100000, NULL,
     "judges N cases of each variant, spread over those chosen (32)", NULL},
    {"where", "KEY=VALUE", TOPIC_CASES, TAKES_LIST, AT(where), 0, 0, NULL,
     "draws only this value of a key; a key may come again with another value", NULL},
    {"over", "m=LEAST..MOST", TOPIC_CASES, TAKES_TEXT, AT(over), 0, 0, NULL,
     "prints which contract holds for which rows", NULL},
    {"regressions", "DIR", TOPIC_CASES, TAKES_TEXT, AT(regressions), 0, 0, "@folder",
     "suites of past failures, which run first (fixtures/regressions)", NULL},
    {"part", "N", TOPIC_CASES, TAKES_I64, AT(part), 1, most_whole, NULL,
     "an N-th of the batch, the prompts and the output (1)", NULL},
    {"requests", "N", TOPIC_CASES, TAKES_I64, AT(requests), 1, most_whole, NULL, "ends after N requests of the trace",
     NULL},
    {"seconds", "S", TOPIC_CASES, TAKES_REAL, AT(seconds), 1e-6, 1e9, NULL,
     "only requests that arrive in the first S seconds of the trace", NULL},
    {"scales", "X,...", TOPIC_CASES, TAKES_OWN, 0, 0, 0, NULL,
     "factors of the trace's rate, one run for each (0.4,0.7,1,1.3,1.6)", on_scales},

    {"device", "NAME", TOPIC_WHERE, TAKES_OWN, 0, 0, 0, "cuda, simt",
     "where the variants run: simt (the CPU) or cuda (simt)", on_device},
    {"device:bench", "NAME", TOPIC_WHERE, TAKES_OWN, 0, 0, 0, "cuda, simt, ref",
     "what is timed: the kernels on cuda or simt, or the reference, ref (simt)", on_bench_device},
    {"device:list", "NAME", TOPIC_WHERE, TAKES_OWN, 0, 0, 0, "cuda, simt",
     "list cases: only cases that are for simt or cuda (both)", on_device},
    {"device:model", "NAME", TOPIC_WHERE, TAKES_OWN, 0, 0, 0, "ref, simt, cuda",
     "what runs the model: ref, simt or cuda, as far as this build has them (ref)", on_model_device},
    {"variant", "OP=NAME[,NAME]", TOPIC_WHERE, TAKES_OWN, 0, 0, 0, "@variant",
     "only these variants of the operator; may come again; in suites of models they are forced (docs/models.md)",
     on_variant},
    {"variant:model", "OP=NAME[,NAME]", TOPIC_WHERE, TAKES_LIST, AT(variants), 0, 32, "@variant",
     "forces variants of an operator: each call runs the first of them that takes it; a call that none takes, and a "
     "variant that no call took, are errors; may come again and adds to the list",
     NULL},
    {"plugin", "FILE", TOPIC_WHERE, TAKES_LIST, AT(plugins), 0, 0, "@plugin",
     "loads variants from a shared object (docs/adding.md); may come again", NULL},
    {"ffi", "FILE", TOPIC_WHERE, TAKES_LIST, AT(ffi), 0, 0, "@plugin",
     "loads a library of the tvm-ffi ABI; needs --bind (docs/doors/ffi.md); may come again", NULL},
    {"bind", "FILE", TOPIC_WHERE, TAKES_LIST, AT(binds), 0, 0, "@file",
     "says how a function of --ffi is called for an operator; may come again, for one library or for one each", NULL},
    {"ffi-runtime", "FILE", TOPIC_WHERE, TAKES_TEXT, AT(ffi_runtime), 0, 0, "@plugin",
     "libtvm_ffi.so ($ASSAY_FFI_RUNTIME, else beside the library, else what the loader finds)", NULL},
    {"peers", NULL, TOPIC_WHERE, TAKES_NOTHING, AT(peers), 0, 0, NULL,
     "times other libraries in the same run; needs --jsonl", NULL},
    {"chosen", NULL, TOPIC_WHERE, TAKES_NOTHING, AT(chosen), 0, 0, NULL,
     "times of each case only the first variant that takes it, as a forward pass would", NULL},
    {"in-process", NULL, TOPIC_WHERE, TAKES_NOTHING, AT(in_process), 0, 0, NULL,
     "runs cases in this process, for a debugger, a profiler or compute-sanitizer", NULL},

    {"model", "FILE", TOPIC_MODEL, TAKES_TEXT, AT(model), 0, 0, "@file @folder",
     "F.json: a flat manifest; F.yaml: a configuration with a seed; any other file: a llama2.c checkpoint; a "
     "folder: a model of the transformers library",
     NULL},
    {"model:bench", "NAME", TOPIC_MODEL, TAKES_LIST, AT(models), 0, CLI_MAX_MODELS, "asynct, qwen3, gpt2",
     "asynct, qwen3 or gpt2 at the production width, or the file of a model; may come again", NULL},
    {"ids", "N,...", TOPIC_MODEL, TAKES_TEXT, AT(ids), 0, 0, NULL, "the ids of one prompt, with commas", NULL},
    {"prompt-ids-file", "FILE", TOPIC_MODEL, TAKES_TEXT, AT(ids_file), 0, 0, "@file",
     "instead of --ids: one prompt per line, all in one batch", NULL},
    {"steps", "N", TOPIC_MODEL, TAKES_I64, AT(steps), 1, INT32_MAX, NULL, "ids to generate per prompt", NULL},
    {"chunk", "N", TOPIC_MODEL, TAKES_I64, AT(chunk), 1, INT32_MAX, NULL, "prompt tokens per step", NULL},
    {"mode", "NAME", TOPIC_MODEL, TAKES_WORD, AT(mode), 0, 0, "exact, mirror",
     "ref: f64 throughout (exact), or rounded where a device stores (mirror)", NULL},
    {"sampler", "CHOICE", TOPIC_MODEL, TAKES_TEXT, AT(sampler), 0, 0, NULL,
     "NAME=VALUE with commas, as in temperature=0.8,top_k=40,seed=1; names: temperature, top_k, top_p, min_p, "
     "repetition, frequency, presence, seed; without this option the largest logit is taken",
     NULL},
    {"form", "NAME=off|on|auto", TOPIC_MODEL, TAKES_LIST, AT(forms), 0, 16, NULL,
     "fused operators, for A/B; on is an error where the model cannot have the form, or no step is for it", NULL},
    {"short-tail", "N", TOPIC_MODEL, TAKES_I64, AT(short_tail), 1, INT32_MAX, NULL,
     "simt, cuda: steps of up to N new tokens per request attend row by row, as decode does", NULL},
    {"invariant", NULL, TOPIC_MODEL, TAKES_NOTHING, AT(invariant), 0, 0, NULL,
     "simt, cuda: logits have the same bits in every batch and chunk (docs/models.md)", NULL},
    {"weights", "NAME", TOPIC_MODEL, TAKES_WORD, AT(weights), 0, 0, "fp8",
     "fp8: weights of products are e4m3 with a scale for every 128 x 128, and so are the rows that they multiply",
     NULL},
    {"eager", NULL, TOPIC_MODEL, TAKES_NOTHING, AT(eager), 0, 0, NULL, "simt, cuda: no graphs", NULL},
    {"paths", NULL, TOPIC_MODEL, TAKES_NOTHING, AT(paths), 0, 0, NULL,
     "simt, cuda: prints on standard error which variants were called how often", NULL},
    {"tokens", "N", TOPIC_MODEL, TAKES_I64, AT(tokens), 1, most_whole, NULL, "rows of one step at most", NULL},
    {"batch", "N", TOPIC_MODEL, TAKES_I64, AT(batch), 1, most_whole, NULL, "open requests at most (128)", NULL},
    {"blocks", "N", TOPIC_MODEL, TAKES_I64, AT(blocks), 1, most_whole, NULL, "blocks of the cache (65536)", NULL},
    {"length", "N", TOPIC_MODEL, TAKES_I64, AT(length), 2, most_whole, NULL, "tokens of one request at most (16384)",
     NULL},

    {"workers", "N", TOPIC_LIMITS, TAKES_I32, AT(workers), 1, 256, NULL,
     "cases under way at once, from 1 to 256 (one per core)", NULL},
    {"jobs", "N", TOPIC_LIMITS, TAKES_I32, AT(workers), 1, 256, NULL, "mutants at a time, from 1 to 256 (one per core)",
     NULL},
    {"controls", "N", TOPIC_CASES, TAKES_I32, AT(controls), 1, 1000, NULL,
     "controls, which are unchanged copies, judge every N-th of their cases (1)", NULL},
    {"again", "N", TOPIC_CASES, TAKES_I32, AT(again), 1, 1000, NULL,
     "runs the kill of every N-th mutant again, and asks tests by tolerance about it (1)", NULL},
    {"threads", "N", TOPIC_LIMITS, TAKES_I32, AT(threads), 1, 32, NULL,
     "cases under way at once in one process, from 1 to 32 (8 on cuda; 1 on simt, which can do no more)", NULL},
    {"deadline", "S", TOPIC_LIMITS, TAKES_REAL, AT(deadline_s), 0.1, 86400, NULL,
     "seconds of its own time after which a case is a HANG: processor time, and half of its sleep on simt (120)", NULL},
    {"budget", "TIME", TOPIC_LIMITS, TAKES_OWN, 0, 0, 0, NULL, "how long to draw: 60s, 5m, 1h (60s)", on_budget},
    {"budget:bench", "TIME", TOPIC_LIMITS, TAKES_OWN, 0, 0, 0, NULL, "how long to sample one figure (1s)", on_budget},
    {"power", "MODE", TOPIC_LIMITS, TAKES_OWN, 0, 0, 0, "all, sample, off",
     "planted errors that the judge must see: all: in every case; sample: each in a quarter of the cases; off: none "
     "(run: all; replay: off)",
     on_power},
    {"shrink-budget", "S", TOPIC_LIMITS, TAKES_REAL, AT(shrink_budget_s), 0.1, 86400, NULL,
     "seconds to shrink one failure (60)", NULL},

    {"maxfail", "N", TOPIC_LIMITS, TAKES_I64, AT(maxfail), 1, 1e12, NULL, "ends the run after N failures", NULL},
    {"all", NULL, TOPIC_LIMITS, TAKES_NOTHING, AT(all), 0, 0, NULL, "prints every failure, not the first of each kind",
     NULL},
    {"color", "WHEN", TOPIC_LIMITS, TAKES_OWN, 0, 0, 0, "auto, always, never",
     "colours: auto (on a terminal, without NO_COLOR), always or never", on_color},

    {"jsonl", "FILE", TOPIC_FILES, TAKES_TEXT, AT(jsonl), 0, 0, "@file", "writes results as JSON lines", NULL},
    {"junit", "FILE", TOPIC_FILES, TAKES_TEXT, AT(junit), 0, 0, "@file", "writes results as JUnit XML", NULL},
    {"html", "FILE", TOPIC_FILES, TAKES_TEXT, AT(html), 0, 0, "@file",
     "writes a page (docs/campaigns.md); its data are the JSON lines of --jsonl, or of FILE.jsonl", NULL},
    {"resume", "FILE", TOPIC_FILES, TAKES_TEXT, AT(resume), 0, 0, "@file",
     "goes on where the run with --jsonl FILE was interrupted", NULL},
    {"ledger", "FILE", TOPIC_FILES, TAKES_TEXT, AT(ledger), 0, 0, "@file",
     "failures that are expected of a variant, with their reasons", NULL},
    {"shrink", "DIR", TOPIC_FILES, TAKES_TEXT, AT(shrink), 0, 0, "@folder",
     "makes the first failures minimal, and writes them as suites into DIR", NULL},
    {"baseline", "FILE", TOPIC_FILES, TAKES_TEXT, AT(baseline), 0, 0, "@file",
     "compares with an earlier --jsonl; a slower row is a failure; needs --jsonl", NULL},
    {"expected", "FILE", TOPIC_FILES, TAKES_TEXT, AT(expected), 0, 0, "@file",
     "the reference's tokens, computed before (bench/expected.jsonl)", NULL},
    {"expected:judge", NULL, TOPIC_FILES, TAKES_NOTHING, AT(write_expected), 0, 0, NULL,
     "writes the reference's values and sigma of each output into DIR, as OUTPUT.expected.f64.npy and "
     "OUTPUT.sigma.f64.npy",
     NULL},
    {"tolerance", "RTOL,ATOL", TOPIC_LIMITS, TAKES_OWN, 0, 0, 0, NULL,
     "says which planted errors a comparison by this tolerance would let through", on_tolerance},
    {"dump", "DIR", TOPIC_FILES, TAKES_TEXT, AT(dump), 0, 0, "@folder",
     "writes the tensors, the expectation and sigma as .npy files, and manifest.json for assay judge", NULL},
    {"dtype", "TYPE", TOPIC_FILES, TAKES_TEXT, AT(dtype), 0, 0, "f32, f16, bf16, e4m3, e5m2, i32, i64",
     "the element type of raw files, or in place of the one that a .npy file names", NULL},
    {"dtype:model", "TYPE", TOPIC_MODEL, TAKES_WORD, AT(dtype), 0, 0, "f16, bf16",
     "simt, cuda: rounds the weights to TYPE, in which the device computes; its results are held against f64 and "
     "mirror "
     "mode by these weights, and not against the record",
     NULL},
    {"shape", "N,...", TOPIC_FILES, TAKES_TEXT, AT(shape), 0, 0, NULL, "the shape of raw files", NULL},
    {"o", "FILE", TOPIC_FILES, TAKES_TEXT, AT(output), 0, 0, "@file", "writes to FILE", NULL},
    {"markdown", NULL, TOPIC_FILES, TAKES_NOTHING, AT(markdown), 0, 0, NULL, "list ops: prints docs/operators.md",
     NULL},
    {"json", NULL, TOPIC_FILES, TAKES_NOTHING, AT(json), 0, 0, NULL, "list ops: prints an object per operator", NULL},
};

const cli_option *option_at(int32_t index) {
  return index >= 0 && (size_t)index < sizeof rows / sizeof *rows ? &rows[index] : NULL;
}

const char *option_topic(cli_topic topic) {
  static const char *const names[] = {[TOPIC_CASES] = "Which cases:", [TOPIC_WHERE] = "What runs, and where:",
                                      [TOPIC_MODEL] = "The model:",   [TOPIC_LIMITS] = "How much, how long:",
                                      [TOPIC_FILES] = "Files:",       [TOPIC_HELP] = "Help:"};
  return names[topic];
}

void option_typed(const cli_option *option, char *text, size_t size) {
  const int length = (int)strcspn(option->name, ":");
  (void)snprintf(text, size, "%s%.*s", length == 1 ? "-" : "--", length, option->name);
}

/* ---- what else the commands share -------------------------------------------------------------------- */

int cli_leave(assay_status status, const assay_error *error) {
  fprintf(stderr, "assay: %s\n", error->text[0] != '\0' ? text_shown(error->text) : "failed without a message");
  switch (status) {
  case ASSAY_ERR_INPUT:
  case ASSAY_ERR_UNSUPPORTED: /* nothing here does what was asked for */
    return EXIT_INPUT;
  case ASSAY_ERR_NO_DEVICE:
    return EXIT_NO_DEVICE;
  default:
    return EXIT_BAD;
  }
}

int cli_written(int code) {
  static bool said;
  errno = 0;
  if (fflush(stdout) == 0 && !ferror(stdout)) return code;
  if (!said) {
    const int why = errno != 0 ? errno : EIO; /* an earlier write that failed has left no reason */
    (void)fprintf(stderr, "assay: standard output: cannot be written: %s\n", strerror(why));
  }
  said = true;
  return code == EXIT_GOOD ? EXIT_BAD : code;
}

int cli_leave_run(assay_status status, const assay_error *error) {
  const int code = cli_leave(status, error), number = execute_interrupted();
  return number != 0 ? 128 + number : code;
}

typedef struct probe_answer {
  assay_status status;
  assay_device_info info;
  assay_error error;
} probe_answer;

assay_status cli_check_device(const char *name, assay_error *error) {
  if (assay_device_find(name) != NULL) return ASSAY_OK;
  return assay_fail(error, ASSAY_ERR_NO_DEVICE, "device: found '%s', this build has: %s", name, assay_device_names());
}

assay_status cli_probe(const char *name, assay_device_info *info, assay_error *error) {
  int ends[2];
  const assay_status here = cli_check_device(name, error);
  if (here != ASSAY_OK) return here;
  const assay_device *device = assay_device_find(name);
  if (pipe(ends) != 0) return assay_fail(error, ASSAY_ERR_IO, "host: device %s: no pipe: %s", name, strerror(errno));
  probe_answer answer;
  memset(&answer, 0, sizeof answer);
  pid_t child = -1;
  const assay_status started = child_fork(name, &child, error);
  if (started != ASSAY_OK) {
    (void)close(ends[0]), (void)close(ends[1]);
    return started;
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
  (void)child_wait(child);
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
