/* results.c: lines to records. Strings that repeat are kept once, so that half a million cases fit. */
#define _POSIX_C_SOURCE 200809L
#include "results.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/files/bytes.h"
#include "core/hash.h"
#include "core/json.h"
#include "core/registry.h"
#include "conformance/case/case.h"

enum { BUCKETS = 1 << 16, BLOCK = 1 << 18 };

typedef struct block {
  struct block *next;
  size_t size, used;
  char bytes[];
} block;

typedef struct interned {
  struct interned *next;
  char text[];
} interned;

struct results_memory {
  block *blocks;
  interned *bucket[BUCKETS];
  int64_t cases, notes, powers; /* where the last run began */
};

static void *take(results *r, size_t bytes) {
  bytes = (bytes + 7) / 8 * 8;
  block *b = r->memory->blocks;
  if (b == NULL || b->size - b->used < bytes) {
    const size_t size = bytes > BLOCK ? bytes : BLOCK;
    b = malloc(sizeof *b + size);
    if (b == NULL) return NULL;
    b->next = r->memory->blocks;
    b->size = size;
    b->used = 0;
    r->memory->blocks = b;
  }
  void *memory = b->bytes + b->used;
  b->used += bytes;
  return memory;
}

/* Returns a copy. Out of memory gives "" and sets `failed`, which is looked at after every line. */
static const char *keep(results *r, const char *text, bool *failed) {
  char *copy = take(r, strlen(text) + 1);
  if (copy == NULL) return *failed = true, "";
  return strcpy(copy, text);
}

static const char *intern(results *r, const char *text, bool *failed) {
  const uint64_t hash = hash_text(HASH_OLD_START, text);
  interned **bucket = &r->memory->bucket[hash % BUCKETS];
  for (interned *at = *bucket; at != NULL; at = at->next)
    if (strcmp(at->text, text) == 0) return at->text;
  interned *made = take(r, sizeof *made + strlen(text) + 1);
  if (made == NULL) return *failed = true, "";
  made->next = *bucket;
  *bucket = made;
  return strcpy(made->text, text);
}

/* Returns room for one more record of `size` bytes; NULL: out of memory. The list is doubled at powers of two. */
static void *one_more(void **list, int64_t *count, size_t size) {
  if ((*count & (*count - 1)) == 0) {
    void *grown = realloc(*list, (size_t)(*count > 0 ? 2 * *count : 1) * size);
    if (grown == NULL) return NULL;
    *list = grown;
  }
  void *at = (char *)*list + (size_t)(*count)++ * size;
  memset(at, 0, size);
  return at;
}

/* ---- the parts of a line -------------------------------------------------------------------------------- */

static const char *member(results *r, const json_value *line, const char *key, bool *failed) {
  return intern(r, json_text(line, key, ""), failed);
}

/* ["a","b"] and "a,b" alike. */
static const char *names(results *r, const json_value *line, const char *key, bool *failed) {
  char text[4096] = "";
  const json_value *list = json_member(line, key);
  if (list == NULL) return "";
  if (list->kind == JSON_STRING) return intern(r, list->text, failed);
  for (const json_value *at = list->kind == JSON_ARRAY ? list->child : NULL; at != NULL; at = at->next)
    if (at->kind == JSON_STRING)
      (void)snprintf(text + strlen(text), sizeof text - strlen(text), "%s%s", text[0] != '\0' ? "," : "", at->text);
  return intern(r, text, failed);
}

/* Returns the value of ` key=` in a descriptor; "" if the key is missing. */
static const char *token(const char *descriptor, const char *key, char *value, size_t size) {
  const size_t length = strlen(key);
  value[0] = '\0';
  for (const char *at = strchr(descriptor, ' '); at != NULL; at = strchr(at + 1, ' '))
    if (strncmp(at + 1, key, length) == 0 && at[1 + length] == '=') {
      const char *from = at + 2 + length;
      (void)snprintf(value, size, "%.*s", (int)strcspn(from, " "), from);
      break;
    }
  return value;
}

/* A key that the descriptor does not name is at its default. */
static const char *axis(results *r, const char *descriptor, const assay_op *op, const char *name, bool *failed) {
  char value[64];
  const int32_t index = op != NULL ? key_find(op, name) : -1;
  (void)token(descriptor, name, value, sizeof value);
  if (value[0] == '\0' && index >= 0) {
    const case_key key = key_at(op, index);
    const char *fallback = key.kind == KEY_BOOL   ? (key.fallback > 0 ? "true" : "false")
                           : key.kind == KEY_ENUM ? key_name_of(&key, (int64_t)key.fallback)
                                                  : NULL;
    if (fallback != NULL) (void)snprintf(value, sizeof value, "%s", fallback);
  }
  return intern(r, value, failed);
}

/* An operator that this program does not know has the axes that all operators had once. */
static void read_axes(results *r, const assay_op *op, results_case *one, bool *failed) {
  static const char *const unknown[RESULTS_AXES] = {"dtype", "kv_dtype", "layout", "mode"};
  for (int32_t a = 0; a < RESULTS_AXES; ++a) {
    char name[32] = "";
    if (op == NULL)
      one->axis[a] = axis(r, one->descriptor, NULL, unknown[a], failed);
    else
      one->axis[a] = case_axis_name(op, a, name, sizeof name) ? axis(r, one->descriptor, op, name, failed) : "";
  }
}

/* Returns a size that the descriptor of a plain case gives; an optional argument is named there as well. */
static int64_t dim_token(const void *context, const char *name, size_t size) {
  char key[64], value[64];
  (void)snprintf(key, sizeof key, "%.*s", (int)size, name);
  return strtoll(token(context, key, value, sizeof value), NULL, 10);
}

static void read_elements(const assay_op *op, results_case *one) {
  char value[64];
  uint32_t present = 0;
  for (int32_t i = 0; i < op->arg_count; ++i)
    if (strcmp(token(one->descriptor, op->args[i].name, value, sizeof value), "true") == 0) present |= 1u << i;
  one->batch = 1;
  one->size = (int64_t)shape_elements(op, present, 0, dim_token, one->descriptor);
}

static void read_lengths(const char *descriptor, results_case *one) {
  const char *at = strstr(descriptor, " kv_len=");
  for (at = at != NULL ? at + 8 : NULL; at != NULL && *at >= '0' && *at <= '9';) {
    char *end = NULL;
    const int64_t length = strtoll(at, &end, 10);
    if (length > one->size) one->size = length;
    ++one->batch;
    at = *end == ',' ? end + 1 : end;
  }
}

/* null stands for a ratio that is no number: as bad as can be. */
static double ratio(const json_value *line, const char *key) {
  const json_value *at = json_member(line, key);
  return at != NULL && at->kind == JSON_NULL ? (double)INFINITY : json_number(line, key, 0);
}

static void read_case(results *r, const json_value *line, results_case *one, bool *failed) {
  const char *name = json_text(line, "verdict", "");
  one->descriptor = keep(r, json_text(line, "case", ""), failed);
  one->message = intern(r, json_text(line, "message", ""), failed);
  one->op = member(r, line, "op", failed);
  one->variant = member(r, line, "variant", failed);
  one->device = member(r, line, "device", failed);
  one->suite = member(r, line, "suite", failed);
  one->section = member(r, line, "section", failed);
  one->name = member(r, line, "name", failed);
  one->tier = member(r, line, "tier", failed);
  one->check = member(r, line, "check", failed);
  one->path = member(r, line, "path", failed);
  one->laws = names(r, line, "laws", failed);
  one->spoils_seen = names(r, line, "spoils_seen", failed);
  one->spoils_unseen = names(r, line, "spoils_unseen", failed);
  one->spoils_void = names(r, line, "spoils_void", failed);
  one->spoils_weak = names(r, line, "spoils_weak", failed);
  const assay_op *op = assay_op_find(one->op);
  read_axes(r, op, one, failed);
  bool known = false;
  one->verdict = VERDICT_FAIL;
  for (int v = 0; v <= VERDICT_WEAK && !known; ++v) {
    known = strcmp(name, verdict_name((verdict)v)) == 0;
    if (known) one->verdict = (verdict)v;
  }
  if (!known && r->strange++ == 0) r->strange_names = intern(r, name, failed);
  one->ratio_element = ratio(line, "ratio_element");
  one->ratio_row = ratio(line, "ratio_row");
  one->ratio_request = ratio(line, "ratio_request");
  one->reference_ms = json_number(line, "reference_ms", 0);
  one->run_ms = json_number(line, "run_ms", 0);
  one->expected = json_text(line, "expected", NULL) != NULL;
  one->live_keys = json_integer(line, "live_keys", 0);
  one->seed = json_unsigned(line, "seed", 0);
  if (op != NULL && op->form == ASSAY_PLAIN)
    read_elements(op, one);
  else
    read_lengths(one->descriptor, one);
}

/* {"op/variant":"file"}: as lines, and the files alone, each once. */
static void read_plugins(results *r, const json_value *line, results_run *run, bool *failed) {
  size_t size = 1;
  const json_value *all = json_member(line, "plugins");
  const json_value *first = all != NULL && all->kind == JSON_OBJECT ? all->child : NULL;
  for (const json_value *at = first; at != NULL; at = at->next)
    if (at->kind == JSON_STRING) size += strlen(at->key) + strlen(at->text) + 2;
  run->plugins = run->files = "";
  char *plugins = first != NULL ? take(r, size) : NULL, *files = first != NULL ? take(r, size) : NULL;
  if (first == NULL) return;
  if (plugins == NULL || files == NULL) {
    *failed = true;
    return;
  }
  const char *last = "";
  plugins[0] = files[0] = '\0';
  for (const json_value *at = first; at != NULL; at = at->next) {
    if (at->kind != JSON_STRING) continue;
    (void)strcat(strcat(strcat(strcat(plugins, at->key), "="), at->text), "\n");
    if (strcmp(at->text, last) != 0) (void)strcat(strcat(files, at->text), "\n");
    last = at->text;
  }
  run->plugins = plugins;
  run->files = files;
}

static void read_run(results *r, const json_value *line, const char *path, results_run *run, bool *failed) {
  run->file = intern(r, path, failed);
  run->version = member(r, line, "assay", failed);
  run->device = member(r, line, "device", failed);
  run->device_name = member(r, line, "device_name", failed);
  run->driver = member(r, line, "driver", failed);
  run->toolkit = member(r, line, "toolkit", failed);
  run->commit = member(r, line, "commit", failed);
  run->binary = member(r, line, "binary", failed);
  run->shard = member(r, line, "shard", failed);
  run->seed = json_unsigned(line, "seed", 0);
  run->end_cases = -1;
  run->planned = json_integer(line, "cases", 0);
  run->whole = json_flag(line, "whole", false);
  run->power = member(r, line, "power", failed);
  run->plan = member(r, line, "plan", failed);
  run->every_variant = json_flag(line, "every_variant", false);
  run->forced = member(r, line, "forced", failed);
  run->deadline_s = json_number(line, "deadline_s", 0);
  read_plugins(r, line, run, failed);
}

static void read_mutant(results *r, const json_value *line, results_mutant *m, bool *failed) {
  char text[1024] = "";
  m->id = member(r, line, "mutant", failed);
  m->op = member(r, line, "op", failed);
  m->variant = names(r, line, "variant", failed);
  m->ids = names(r, line, "ids", failed);
  m->check = member(r, line, "check", failed);
  m->expected = names(r, line, "expected", failed);
  m->replay = keep(r, json_text(line, "replay", ""), failed);
  m->killed = json_flag(line, "killed", false);
  m->control = json_flag(line, "control", false);
  m->good = json_flag(line, "good", m->killed != m->control);
  m->cases = json_integer(line, "cases", 0);
  m->seconds = json_number(line, "seconds", 0);
  const json_value *all = json_member(line, "allclose");
  for (const json_value *at = all != NULL && all->kind == JSON_OBJECT ? all->child : NULL; at != NULL; at = at->next)
    if (at->kind == JSON_BOOL)
      (void)snprintf(text + strlen(text), sizeof text - strlen(text), "%s%s=%d", text[0] != '\0' ? "," : "", at->key,
                     at->number != 0);
  m->allclose = intern(r, text, failed);
}

static void read_note(results *r, const json_value *line, const char *key, const char *what, results_note *note,
                      bool *failed) {
  char text[512];
  (void)snprintf(text, sizeof text, "%s%s%s", json_text(line, "spoil", ""),
                 json_member(line, "spoil") != NULL ? ": " : "", json_text(line, "message", what));
  note->subject = member(r, line, key, failed);
  note->text = intern(r, text, failed);
}

static void read_power(results *r, const json_value *line, results_power *power, bool *failed) {
  power->op = member(r, line, "power", failed);
  power->spoil = member(r, line, "spoil", failed);
  power->seen = json_integer(line, "seen", 0);
  power->unseen = json_integer(line, "unseen", 0);
  power->weak = json_integer(line, "weak", 0);
  power->empty = json_integer(line, "void", 0);
}

#define ADD(list, count) one_more((void **)&(list), &(count), sizeof *(list))

bool results_shard(const char *text, int32_t *shard, int32_t *shards) {
  int32_t *const to[2] = {shard, shards};
  for (int i = 0; i < 2; ++i) {
    *to[i] = 0;
    if (*text < '1' || *text > '9') return false;
    for (; *text >= '0' && *text <= '9' && *to[i] <= RESULTS_MOST_SHARDS; ++text)
      *to[i] = 10 * *to[i] + (*text - '0');
    if (*to[i] > RESULTS_MOST_SHARDS || *text != (i == 0 ? '/' : '\0')) return false;
    text += i == 0;
  }
  return *shard <= *shards;
}

void results_lacks(const results_run *run, char *text, size_t size) {
  const long long cases = (long long)run->cases, planned = (long long)run->planned, end = (long long)run->end_cases;
  text[0] = '\0';
  if (run->stopped)
    (void)snprintf(text, size, "was stopped by --maxfail: %lld of %lld cases", cases, planned);
  else if (!run->ended)
    (void)snprintf(text, size, "did not end, it has no end line: %lld of %lld cases", cases, planned);
  else if (cases < planned)
    (void)snprintf(text, size, "lacks %lld cases: it has %lld of %lld", planned - cases, cases, planned);
  else if (planned > 0 && cases > planned)
    (void)snprintf(text, size, "has %lld cases, its first line says %lld", cases, planned);
  else if (end >= 0 && cases != end)
    (void)snprintf(text, size, "has %lld cases, its end line says %lld", cases, end);
}

/* Refuses a header of another schema, and a shard that is none. */
static assay_status check_header(const json_value *line, const char *path, int64_t number, assay_error *error) {
  int64_t schema = RESULTS_SCHEMA;
  int32_t shard, shards;
  const json_value *given = json_member(line, "schema"), *part = json_member(line, "shard");
  if (given != NULL && (!json_whole(given, &schema) || schema != RESULTS_SCHEMA))
    return assay_fail(error, ASSAY_ERR_INPUT, "%s:%lld: schema: found '%.40s', allowed %d", path, (long long)number,
                      given->text != NULL ? given->text : "no number", RESULTS_SCHEMA);
  if (part != NULL && (part->kind != JSON_STRING || !results_shard(part->text, &shard, &shards)))
    return assay_fail(error, ASSAY_ERR_INPUT, "%s:%lld: shard: found '%.40s', allowed i/n with 1 <= i <= n <= %d", path,
                      (long long)number, part->text != NULL ? part->text : "no text", RESULTS_MOST_SHARDS);
  return ASSAY_OK;
}

/* Tells whether a line begins a run. */
static bool is_header(const json_value *line) {
  return json_member(line, "mutant") == NULL && json_member(line, "case") == NULL && json_member(line, "assay") != NULL;
}

/* Refuses a member of a line of results; what was found is its own text. */
static assay_status refuse_member(const json_value *line, const char *key, const char *allowed, assay_error *error) {
  const json_value *at = json_member(line, key);
  return assay_fail(error, ASSAY_ERR_INPUT, "%s: found %s%.60s%s, allowed %s", key,
                    at != NULL && at->kind == JSON_STRING ? "'" : "",
                    at == NULL              ? "none"
                    : at->text != NULL      ? at->text
                    : at->kind == JSON_NULL ? "null"
                                            : "another value",
                    at != NULL && at->kind == JSON_STRING ? "'" : "", allowed);
}

static assay_status check_count(const json_value *line, const char *key, assay_error *error) {
  int64_t count = 0;
  if (json_whole(json_member(line, key), &count) && count >= 0) return ASSAY_OK;
  return refuse_member(line, key, "a whole number from 0 on", error);
}

/* Refuses a case that contradicts itself: another operator, variant or device than its descriptor has, or a PASS beyond
 * a limit. Lines that were cut to some of their members are read. */
static assay_status check_case(const json_value *line, assay_error *error) {
  static const char *const keys[] = {"variant", "device"}, *const ratios[] = {"ratio_element", "ratio_row",
                                                                              "ratio_request"};
  const char *descriptor = json_text(line, "case", ""), *op = json_text(line, "op", NULL);
  const size_t size = op != NULL ? strlen(op) : 0;
  if (descriptor[0] == '\0') return refuse_member(line, "case", "a descriptor", error);
  if (op != NULL && (strncmp(descriptor, op, size) != 0 || (descriptor[size] != ' ' && descriptor[size] != '\0')))
    return refuse_member(line, "op", "the operator that its case begins with", error);
  for (size_t k = 0; k < sizeof keys / sizeof *keys; ++k) {
    char value[128];
    const char *said = json_text(line, keys[k], NULL), *is = token(descriptor, keys[k], value, sizeof value);
    if (said != NULL && is[0] != '\0' && strcmp(said, is) != 0) return refuse_member(line, keys[k], is, error);
  }
  const bool passes = strcmp(json_text(line, "verdict", ""), verdict_name(VERDICT_PASS)) == 0;
  if (passes && json_text(line, "check", "")[0] != '\0') return refuse_member(line, "check", "none of a PASS", error);
  for (size_t k = 0; passes && k < sizeof ratios / sizeof *ratios; ++k) {
    const json_value *at = json_member(line, ratios[k]);
    if (at != NULL && !(at->kind == JSON_NUMBER && at->number >= 0 && at->number <= 1))
      return refuse_member(line, ratios[k], "0 to 1 of a PASS", error);
  }
  return ASSAY_OK;
}

/* Refuses a line that contradicts itself or its place. */
static assay_status check_line(const results *r, const json_value *line, bool in_run, assay_error *error) {
  const results_run *run = in_run ? &r->runs[r->run_count - 1] : NULL;
  if (is_header(line))
    return json_member(line, "schema") != NULL || json_member(line, "cases") != NULL ? check_count(line, "cases", error)
                                                                                     : ASSAY_OK;
  if (json_member(line, "mutant") != NULL || run == NULL) return ASSAY_OK;
  if (json_member(line, "case") != NULL) {
    if (run->ended) return assay_fail(error, ASSAY_ERR_INPUT, "case: found one after the end line of its run");
    return check_case(line, error);
  }
  return json_member(line, "end") != NULL ? check_count(line, "end", error) : ASSAY_OK;
}

static int by_hash(const void *a, const void *b) {
  const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
  return x < y ? -1 : x > y;
}

/* Refuses a run that has a case twice: another one is missing then, where the number is right. */
static assay_status check_twice(const results *r, const char *path, assay_error *error) {
  const int64_t first = r->memory->cases, count = r->case_count - first;
  uint64_t *hash = malloc(((size_t)count + 1) * sizeof *hash);
  assay_status status = hash != NULL ? ASSAY_OK : assay_fail(error, ASSAY_ERR_MEMORY, "%s: out of memory", path);
  for (int64_t i = 0; hash != NULL && i < count; ++i)
    hash[i] = hash_text(HASH_START, r->cases[first + i].descriptor);
  if (hash != NULL && count > 1) qsort(hash, (size_t)count, sizeof *hash, by_hash);
  for (int64_t i = 1; i < count && status == ASSAY_OK; ++i) {
    if (hash[i - 1] != hash[i]) continue;
    const char *which = "";
    for (int64_t k = first; k < r->case_count; ++k)
      if (hash_text(HASH_START, r->cases[k].descriptor) == hash[i]) which = r->cases[k].descriptor;
    status = assay_fail(error, ASSAY_ERR_INPUT, "%s: case: found '%.300s' twice in one run, allowed once", path, which);
  }
  free(hash);
  return status;
}

/* Takes the last run away again if it is the same as an earlier one. Returns false if there is no memory. */
static bool end_run(results *r) {
  const results_run *run = &r->runs[r->run_count - 1];
  for (int64_t i = 0; i + 1 < r->run_count; ++i) {
    const results_run *first = &r->runs[i];
    if (first->hash != run->hash || first->cases != run->cases) continue;
    results_copy *copy = ADD(r->copies, r->copy_count);
    if (copy == NULL) return false;
    *copy = (results_copy){run->file, first->file};
    r->case_count = r->memory->cases;
    r->note_count = r->memory->notes;
    r->power_count = r->memory->powers;
    --r->run_count;
    return true;
  }
  return true;
}

static void begin_run(results *r) {
  r->memory->cases = r->case_count;
  r->memory->notes = r->note_count;
  r->memory->powers = r->power_count;
}

static bool mutant_is_there(const results *r, uint64_t hash) {
  for (int64_t i = 0; i < r->mutant_count; ++i)
    if (r->mutants[i].hash == hash) return true;
  return false;
}

/* in_run: a run of this file has begun. */
static bool read_line(results *r, const json_value *line, uint64_t hash, bool in_run, const char *path) {
  bool failed = false;
  results_run *run = in_run && r->run_count > 0 ? &r->runs[r->run_count - 1] : NULL;
  if (json_member(line, "mutant") != NULL) {
    if (mutant_is_there(r, hash)) return true;
    results_mutant *m = ADD(r->mutants, r->mutant_count);
    if (m == NULL) return false;
    m->hash = hash;
    read_mutant(r, line, m, &failed);
  } else if (json_member(line, "case") != NULL && run != NULL) {
    results_case *one = ADD(r->cases, r->case_count);
    if (one == NULL) return false;
    one->run = (int32_t)(r->run_count - 1);
    ++run->cases;
    read_case(r, line, one, &failed);
  } else if (json_text(line, "spoil", NULL) != NULL && json_text(line, "power", NULL) != NULL && run != NULL) {
    results_power *power = ADD(r->powers, r->power_count);
    if (power == NULL) return false;
    power->run = (int32_t)(r->run_count - 1);
    read_power(r, line, power, &failed);
  } else if (is_header(line)) {
    run = ADD(r->runs, r->run_count);
    if (run == NULL) return false;
    read_run(r, line, path, run, &failed);
  } else if (json_text(line, "unclaimed", NULL) != NULL || json_text(line, "weak", NULL) != NULL) {
    const bool claim = json_text(line, "unclaimed", NULL) != NULL; /* as numbers they are counts */
    results_note *note = ADD(r->notes, r->note_count);
    if (note == NULL) return false;
    read_note(r, line, claim ? "unclaimed" : "weak", "claimed, but no case of it passed", note, &failed);
  } else if (json_member(line, "end") != NULL && run != NULL) {
    run->ended = true;
    run->end_cases = json_integer(line, "end", -1);
    run->seconds = json_number(line, "seconds", 0);
    run->stopped = json_flag(line, "stopped", false);
    run->spoils = json_integer(line, "spoils", 0);
  }
  return !failed;
}

assay_status results_read(const char *path, results *r, assay_error *error) {
  char *line = NULL;
  size_t room = 0;
  FILE *from = NULL;
  int64_t size = 0;
  assay_status status = file_open(path, &from, &size, error);
  if (status != ASSAY_OK) return status;
  bool any = false, in_run = false;
  json_reader *reader = json_open();
  if (r->memory == NULL) r->memory = calloc(1, sizeof *r->memory);
  if (reader == NULL || r->memory == NULL) status = assay_fail(error, ASSAY_ERR_MEMORY, "%s: out of memory", path);
  for (int64_t number = 1; status == ASSAY_OK; ++number) {
    status = file_line(from, path, &line, &room, &size, error);
    if (status != ASSAY_OK || size == 0 || line[size - 1] != '\n') break;
    const json_value *value = NULL;
    assay_error why = {""};
    if (json_parse(reader, line, (size_t)size, &value, &why) != ASSAY_OK || value->kind != JSON_OBJECT)
      status = assay_fail(error, ASSAY_ERR_INPUT, "%s:%lld: %s", path, (long long)number,
                          why.text[0] != '\0' ? why.text : "no JSON object");
    const bool header = status == ASSAY_OK && is_header(value);
    if (header) status = check_header(value, path, number, error);
    if (status == ASSAY_OK && header && in_run) status = check_twice(r, path, error);
    if (status == ASSAY_OK) {
      assay_error inner = {""};
      status = check_line(r, value, in_run, &inner);
      if (status != ASSAY_OK) (void)assay_fail(error, status, "%s:%lld: %s", path, (long long)number, inner.text);
    }
    if (status != ASSAY_OK) break;
    bool fits = !header || !in_run || end_run(r);
    if (header) begin_run(r);
    in_run = in_run || header;
    any = any || header || json_member(value, "mutant") != NULL;
    const uint64_t hash = hash_bytes(HASH_OLD_START, line, (size_t)size);
    fits = fits && read_line(r, value, hash, in_run, path);
    if (!fits) status = assay_fail(error, ASSAY_ERR_MEMORY, "%s: out of memory", path);
    if (in_run && fits) r->runs[r->run_count - 1].hash = hash_bytes(r->runs[r->run_count - 1].hash, line, (size_t)size);
  }
  if (status == ASSAY_OK && in_run) status = check_twice(r, path, error);
  if (status == ASSAY_OK && in_run && !end_run(r))
    status = assay_fail(error, ASSAY_ERR_MEMORY, "%s: out of memory", path);
  if (status == ASSAY_OK && !any)
    status = assay_fail(error, ASSAY_ERR_INPUT,
                        "%s: found no line of results, allowed: the JSONL of assay run, fuzz, mutants or bench", path);
  json_close(reader);
  free(line);
  (void)fclose(from);
  return status;
}

assay_status results_note_add(results *r, const char *subject, const char *text, assay_error *error) {
  for (int64_t i = 0; i < r->note_count; ++i)
    if (strcmp(r->notes[i].subject, subject) == 0 && strcmp(r->notes[i].text, text) == 0) return ASSAY_OK;
  bool failed = false;
  results_note *note = ADD(r->notes, r->note_count);
  if (note != NULL) *note = (results_note){intern(r, subject, &failed), intern(r, text, &failed)};
  return note != NULL && !failed ? ASSAY_OK : assay_fail(error, ASSAY_ERR_MEMORY, "results: out of memory");
}

void results_free(results *r) {
  while (r->memory != NULL && r->memory->blocks != NULL) {
    block *next = r->memory->blocks->next;
    free(r->memory->blocks);
    r->memory->blocks = next;
  }
  free(r->memory);
  free(r->runs);
  free(r->cases);
  free(r->mutants);
  free(r->notes);
  free(r->powers);
  free(r->copies);
  memset(r, 0, sizeof *r);
}

bool results_good(const results_case *one) {
  return one->expected || verdict_is_good(one->verdict);
}

int64_t results_count(const results *r, verdict v) {
  int64_t count = 0;
  for (int64_t i = 0; i < r->case_count; ++i)
    count += r->cases[i].verdict == v;
  return count;
}

void results_replay(const results *r, const results_case *one, char *file, size_t size, replay *made) {
  const results_run *run = &r->runs[one->run];
  char name[160];
  const size_t length =
      (size_t)snprintf(name, sizeof name, "%s/%s=", one->op, one->variant); /* as a line of `plugins` begins */
  file[0] = '\0';
  for (const char *at = run->plugins; *at != '\0'; at += strcspn(at, "\n"), at += *at == '\n')
    if (length < sizeof name && strncmp(at, name, length) == 0)
      (void)snprintf(file, size, "%.*s", (int)strcspn(at + length, "\n"), at + length);
  *made = (replay){.descriptor = one->descriptor,
                   .op = one->op,
                   .variant = one->variant,
                   .device = one->device,
                   .suite = one->suite,
                   .name = one->name,
                   .check = one->check,
                   .verdict = one->verdict,
                   .plugins = strcmp(one->op, "model") == 0 ? run->files : file,
                   .forced = run->forced,
                   .deadline_s = run->deadline_s};
}

bool results_listed(const char *list, const char *word) {
  const size_t length = strlen(word);
  for (const char *at = list; *at != '\0'; at += strcspn(at, ","), at += *at == ',')
    if (strncmp(at, word, length) == 0 && (at[length] == ',' || at[length] == '\0')) return true;
  return false;
}
