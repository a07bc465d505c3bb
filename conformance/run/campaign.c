/* campaign.c: shards by estimated cost; reading the results of an interrupted run. */
#include "campaign.h"

#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/child.h"
#include "core/hash.h"
#include "core/json.h"
#include "conformance/planted/planted.h"
#include "conformance/text/text.h"
#include "conformance/case/case.h"

/* ---- shards ------------------------------------------------------------------------------------------ */

/* Measured on simt over 7,000 cases of the suites: 0.7 ms, and 40 ns per channel of each head's row and visible key.
 * Plain operators take 100 ns per element. The window, the mask and the variant's tile are left out. */
double campaign_cost(const assay_case *one) {
  static const double FIXED_MS = 0.7, PRODUCT_MS = 40e-6, ELEMENT_MS = 100e-6;
  double products = 0, width = 1;
  for (int32_t i = 0; i < one->op->dim_count; ++i)
    if (strcmp(one->op->dims[i].name, "H") == 0 || strcmp(one->op->dims[i].name, "D") == 0)
      width *= one->dim[i] > 0 ? (double)one->dim[i] : 1.0;
  for (int32_t i = 0; i < one->batch && one->kv_len != NULL; ++i) {
    const double L = one->kv_len[i], T = one->new_len != NULL && one->mode != MODE_DECODE ? one->new_len[i] : 1;
    if (L > 0 && T > 0) products += T * (L - 0.5 * (T - 1));
  }
  if (one->section == SECTION_REFUSE) return 1;
  if (one->op->form == ASSAY_PLAIN) return 1 + ELEMENT_MS / FIXED_MS * shape_case_elements(one);
  if (!(products > 0)) return 1;
  return 1 + PRODUCT_MS / FIXED_MS * products * width;
}

typedef struct weighed {
  double cost;
  int64_t index;
} weighed;

static int dearest_first(const void *a, const void *b) {
  const weighed *x = a, *y = b;
  if (x->cost != y->cost) return x->cost < y->cost ? 1 : -1;
  return (x->index > y->index) - (x->index < y->index);
}

assay_status campaign_shard(assay_case *cases, int64_t *count, int32_t index, int32_t of, assay_error *error) {
  if (of < 1 || index < 1 || index > of)
    return assay_fail(error, ASSAY_ERR_INPUT, "--shard: found %d/%d, allowed: i/n with 1 <= i <= n", index, of);
  if (of == 1 || *count == 0) return ASSAY_OK;
  assay_status status = ASSAY_ERR_MEMORY;
  weighed *list = malloc((size_t)*count * sizeof *list);
  double *load = calloc((size_t)of, sizeof *load);
  unsigned char *mine = calloc((size_t)*count, 1);
  if (list == NULL || load == NULL || mine == NULL) {
    (void)assay_fail(error, status, "--shard: out of memory for %lld cases", (long long)*count);
    goto done;
  }
  for (int64_t i = 0; i < *count; ++i)
    list[i] = (weighed){campaign_cost(&cases[i]), i};
  qsort(list, (size_t)*count, sizeof *list, dearest_first);
  for (int64_t i = 0; i < *count; ++i) {
    int32_t least = 0;
    for (int32_t s = 1; s < of; ++s)
      if (load[s] < load[least]) least = s;
    load[least] += list[i].cost;
    mine[list[i].index] = least == index - 1;
  }
  int64_t kept = 0;
  for (int64_t i = 0; i < *count; ++i)
    if (mine[i]) cases[kept++] = cases[i];
  *count = kept;
  status = ASSAY_OK;
done:
  free(list);
  free(load);
  free(mine);
  return status;
}

uint64_t campaign_plan(const assay_case *cases, int64_t count) {
  static char line[CASE_MAX_LINE];
  uint64_t hash = HASH_OLD_START;
  for (int64_t i = 0; i < count; ++i) {
    assay_error error = {""};
    if (case_print(&cases[i], line, sizeof line, &error) != ASSAY_OK) line[0] = '\0';
    hash = hash_text(hash_text(hash, line), "\n");
  }
  return hash;
}

/* ---- a run, continued -------------------------------------------------------------------------------- */

static assay_status other_run(const char *path, const char *what, const char *found, const char *wanted,
                              assay_error *error) {
  return assay_fail(error, ASSAY_ERR_INPUT, "--resume: %s: %s is '%s', this run's is '%s'", path, what, found, wanted);
}

static assay_status check_header(const char *path, const json_value *header, const campaign_id *id,
                                 assay_error *error) {
  char found[64], wanted[64];
  const char *device = json_text(header, "device", ""), *name = json_text(header, "device_name", "");
  const char *commit = json_text(header, "commit", "");
  if (strcmp(device, id->device) != 0) return other_run(path, "device", device, id->device, error);
  if (strcmp(name, id->device_name) != 0) return other_run(path, "device_name", name, id->device_name, error);
  if (strcmp(commit, id->commit) != 0) return other_run(path, "commit", commit, id->commit, error);
  const char *binary = json_text(header, "binary", id->binary);
  if (strcmp(binary, id->binary) != 0) return other_run(path, "binary", binary, id->binary, error);
  const json_value *schema = json_member(header, "schema");
  (void)snprintf(wanted, sizeof wanted, "%d", id->schema);
  (void)snprintf(found, sizeof found, "%.40s", schema != NULL && schema->text != NULL ? schema->text : "no number");
  if (schema != NULL && (schema->kind != JSON_NUMBER || strcmp(found, wanted) != 0))
    return other_run(path, "schema", found, wanted, error);
  (void)snprintf(found, sizeof found, "%" PRIu64, json_unsigned(header, "seed", 0));
  (void)snprintf(wanted, sizeof wanted, "%" PRIu64, id->seed);
  if (strcmp(found, wanted) != 0) return other_run(path, "seed", found, wanted, error);
  (void)snprintf(found, sizeof found, "%s", json_text(header, "shard", ""));
  (void)snprintf(wanted, sizeof wanted, id->shards > 0 ? "%d/%d" : "", id->shard, id->shards);
  if (strcmp(found, wanted) != 0) return other_run(path, "shard", found, wanted, error);
  (void)snprintf(found, sizeof found, "%lld", (long long)json_integer(header, "cases", 0));
  (void)snprintf(wanted, sizeof wanted, "%lld", (long long)id->cases);
  if (strcmp(found, wanted) != 0) return other_run(path, "number of cases", found, wanted, error);
  const char *power = json_text(header, "power", "");
  if (strcmp(power, id->power) != 0) return other_run(path, "power", power, id->power, error);
  (void)snprintf(wanted, sizeof wanted, "%016" PRIx64, id->plan);
  const char *plan = json_text(header, "plan", "");
  if (strcmp(plan, wanted) != 0) return other_run(path, "hash of all cases", plan, wanted, error);
  return ASSAY_OK;
}

static void copy_text(char *to, size_t size, const char *from) {
  (void)snprintf(to, size, "%s", from);
}

/* Writes a list of names as text with commas. */
static void copy_names(char *to, size_t size, const json_value *list) {
  to[0] = '\0';
  for (const json_value *at = list != NULL && list->kind == JSON_ARRAY ? list->child : NULL; at != NULL; at = at->next)
    if (at->kind == JSON_STRING)
      (void)snprintf(to + strlen(to), size - strlen(to), "%s%s", to[0] != '\0' ? "," : "", at->text);
}

static uint32_t read_spoils(const json_value *line, const char *key, const assay_op *op) {
  char names[1600];
  copy_names(names, sizeof names, json_member(line, key));
  return power_bits(op, names);
}

static bool read_result(const json_value *line, const assay_op *op, case_result *result) {
  const char *name = json_text(line, "verdict", "");
  *result = (case_result){.verdict = VERDICT_PASS};
  int v = 0;
  while (v <= VERDICT_WEAK && strcmp(name, verdict_name((verdict)v)) != 0)
    ++v;
  if (v > VERDICT_WEAK) return false;
  result->verdict = (verdict)v;
  copy_text(result->check, sizeof result->check, json_text(line, "check", ""));
  copy_text(result->message, sizeof result->message, json_text(line, "message", ""));
  copy_text(result->path, sizeof result->path, json_text(line, "path", ""));
  result->ratio_element = json_number(line, "ratio_element", 0);
  result->ratio_row = json_number(line, "ratio_row", 0);
  result->ratio_request = json_number(line, "ratio_request", 0);
  const json_value *rms = json_member(line, "rms");
  int32_t i = 0;
  for (const json_value *at = rms != NULL ? rms->child : NULL; at != NULL && i < RESULT_MAX_RMS; at = at->next)
    result->rms[i++] = (float)at->number;
  result->rows_judged = json_integer(line, "rows", 0);
  result->elements_judged = json_integer(line, "elements", 0);
  result->visible_keys = json_integer(line, "visible_keys", 0);
  result->live_keys = json_integer(line, "live_keys", 0);
  const json_value *batch = json_member(line, "batch"), *differs = json_member(batch, "differs");
  result->batch_size = (int32_t)json_integer(batch, "size", 0);
  result->batch_differs = differs != NULL && differs->number != 0;
  result->reference_ms = json_number(line, "reference_ms", 0);
  result->run_ms = json_number(line, "run_ms", 0);
  copy_names(result->laws, sizeof result->laws, json_member(line, "laws"));
  result->spoils_seen = read_spoils(line, "spoils_seen", op);
  result->spoils_unseen = read_spoils(line, "spoils_unseen", op);
  result->spoils_void = read_spoils(line, "spoils_void", op);
  result->spoils_weak = read_spoils(line, "spoils_weak", op);
  return true;
}

/* Tells whether the case of a line is asked again: the host has decided it, or a signal that may have come from
 * outside. The cases that follow it are asked again as well. */
static bool asks_again(const json_value *line) {
  static const int number[] = {SIGTERM, SIGKILL, SIGHUP, SIGINT, SIGQUIT};
  const char *message = json_text(line, "message", "");
  if (strcmp(json_text(line, "verdict", ""), verdict_name(VERDICT_HOST)) == 0) return true;
  if (strcmp(json_text(line, "check", ""), "crash") != 0) return false;
  for (size_t i = 0; i < sizeof number / sizeof number[0]; ++i) {
    char died[40];
    (void)snprintf(died, sizeof died, "the worker died of %s ", child_signal_name(number[i]));
    if (strncmp(message, died, strlen(died)) == 0) return true;
  }
  return false;
}

/* Reads a line. Its case must be the list's next one. Its result is kept as it is, whatever its message looks like. */
static assay_status take_line(const char *path, int64_t number, const json_value *line, const assay_case *cases,
                              const campaign_id *id, char *descriptor, campaign_past *past, assay_error *error) {
  if (past->count == id->cases)
    return assay_fail(error, ASSAY_ERR_INPUT, "--resume: %s:%lld: more cases than this run's %lld", path,
                      (long long)number, (long long)id->cases);
  const assay_status status = case_print(&cases[past->count], descriptor, CASE_MAX_LINE, error);
  if (status != ASSAY_OK) return status;
  const char *found = json_text(line, "case", "");
  if (strcmp(found, descriptor) != 0)
    return assay_fail(error, ASSAY_ERR_INPUT, "--resume: %s:%lld: found case '%.300s', this run has '%.300s' there",
                      path, (long long)number, found, descriptor);
  if (!read_result(line, cases[past->count].op, &past->results[past->count]))
    return assay_fail(error, ASSAY_ERR_INPUT, "--resume: %s:%lld: a case without a known verdict", path,
                      (long long)number);
  ++past->count;
  return ASSAY_OK;
}

static assay_status read_lines(const char *path, FILE *from, const campaign_id *id, const assay_case *cases,
                               campaign_past *past, assay_error *error) {
  assay_status status = ASSAY_OK;
  char *line = NULL, *descriptor = malloc(CASE_MAX_LINE);
  size_t room = 0;
  json_reader *reader = json_open();
  past->results = calloc((size_t)id->cases + 1, sizeof *past->results);
  if (descriptor == NULL || reader == NULL || past->results == NULL)
    status = assay_fail(error, ASSAY_ERR_MEMORY, "--resume: out of memory for %lld cases", (long long)id->cases);
  for (int64_t number = 1; status == ASSAY_OK; ++number) {
    const ssize_t size = getline(&line, &room, from);
    if (ferror(from)) {
      status = assay_fail(error, ASSAY_ERR_INPUT, "--resume: %s: cannot be read: %s", path, strerror(errno));
      break;
    }
    if (size <= 0 || line[size - 1] != '\n') break; /* the end, or an incomplete line */
    const json_value *value = NULL;
    assay_error why = {""};
    if (json_parse(reader, line, (size_t)size, &value, &why) != ASSAY_OK || value->kind != JSON_OBJECT) {
      status = assay_fail(error, ASSAY_ERR_INPUT, "--resume: %s:%lld: %s", path, (long long)number,
                          why.text[0] != '\0' ? why.text : "no object");
    } else if (number == 1) {
      status = json_member(value, "assay") == NULL
                   ? assay_fail(error, ASSAY_ERR_INPUT, "--resume: %s:1: not the header of a run", path)
                   : check_header(path, value, id, error);
    } else if (asks_again(value)) {
      past->asks_again = true;
      break;
    } else if (json_member(value, "case") != NULL) {
      status = take_line(path, number, value, cases, id, descriptor, past, error);
    } else {
      break; /* the end of a run (claims, power, the last line), which is made again */
    }
    past->keep_bytes += (int64_t)size;
  }
  json_close(reader);
  free(descriptor);
  free(line);
  return status;
}

assay_status campaign_resume(const char *path, const campaign_id *id, const assay_case *cases, campaign_past *past,
                             assay_error *error) {
  char partial[4200];
  *past = (campaign_past){.results = NULL};
  (void)snprintf(partial, sizeof partial, "%s" TEXT_PARTIAL, path);
  const char *name = partial;
  FILE *from = fopen(partial, "rb");
  if (from == NULL && errno == ENOENT) {
    name = path;
    from = fopen(path, "rb");
    past->complete = from != NULL;
  }
  if (from == NULL && errno == ENOENT) return ASSAY_OK;
  if (from == NULL)
    return assay_fail(error, ASSAY_ERR_INPUT, "--resume: %s: cannot be read: %s", name, strerror(errno));
  assay_status status = read_lines(name, from, id, cases, past, error);
  (void)fclose(from);
  if (status == ASSAY_OK && past->complete && past->asks_again) {
    past->complete = false;
    if (rename(path, partial) != 0)
      status = assay_fail(error, ASSAY_ERR_IO, "--resume: %s: cannot be renamed: %s", path, strerror(errno));
  }
  if (status == ASSAY_OK && past->complete && past->count < id->cases)
    status = assay_fail(error, ASSAY_ERR_INPUT, "--resume: %s: ends after %lld of %lld cases, and is no .partial file",
                        path, (long long)past->count, (long long)id->cases);
  if (status != ASSAY_OK) campaign_free(past);
  return status;
}

void campaign_free(campaign_past *past) {
  free(past->results);
  past->results = NULL;
}
