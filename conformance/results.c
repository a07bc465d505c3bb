/* results.c: lines to records. Strings that repeat are kept once, so that half a million cases fit. */
#define _POSIX_C_SOURCE 200809L
#include "results.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/json.h"
#include "core/registry.h"
#include "keys.h"
#include "shape.h"

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

/* Out of memory gives "", which no caller takes for a reason to go on: `failed` is looked at after every line. */
static const char *keep(results *r, const char *text, bool *failed) {
  char *copy = take(r, strlen(text) + 1);
  if (copy == NULL) return *failed = true, "";
  return strcpy(copy, text);
}

static const char *intern(results *r, const char *text, bool *failed) {
  uint64_t hash = 1469598103934665603U;
  for (const char *at = text; *at != '\0'; ++at)
    hash = (hash ^ (unsigned char)*at) * 1099511628211U;
  interned **bucket = &r->memory->bucket[hash % BUCKETS];
  for (interned *at = *bucket; at != NULL; at = at->next)
    if (strcmp(at->text, text) == 0) return at->text;
  interned *made = take(r, sizeof *made + strlen(text) + 1);
  if (made == NULL) return *failed = true, "";
  made->next = *bucket;
  *bucket = made;
  return strcpy(made->text, text);
}

/* Room for one more record of `size` bytes; NULL: out of memory. Grows by doubling, at powers of two. */
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

/* ---- what a line says -------------------------------------------------------------------------------- */

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

/* The value of ` key=` in a descriptor; "" if it is not there. */
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

/* Of an operator that this program does not know: what all had once. */
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

/* A plain case by the sizes that its descriptor gives; optional arguments by their names. */
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
  one->verdict = VERDICT_FAIL;
  for (int v = 0; v <= VERDICT_WEAK; ++v)
    if (strcmp(name, verdict_name((verdict)v)) == 0) one->verdict = (verdict)v;
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
  run->planned = json_integer(line, "cases", 0);
  run->whole = json_flag(line, "whole", false);
  run->power = member(r, line, "power", failed);
  run->plan = member(r, line, "plan", failed);
  run->every_variant = json_flag(line, "every_variant", false);
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

static bool read_line(results *r, const json_value *line, const char *path) {
  bool failed = false;
  results_run *run = r->run_count > 0 ? &r->runs[r->run_count - 1] : NULL;
  if (json_member(line, "mutant") != NULL) {
    results_mutant *m = ADD(r->mutants, r->mutant_count);
    if (m == NULL) return false;
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
  } else if (json_member(line, "assay") != NULL) {
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
    run->seconds = json_number(line, "seconds", 0);
    run->spoils = json_integer(line, "spoils", 0);
  }
  return !failed;
}

assay_status results_read(const char *path, results *r, assay_error *error) {
  assay_status status = ASSAY_OK;
  char *line = NULL;
  size_t room = 0;
  FILE *from = fopen(path, "rb");
  if (from == NULL) return assay_fail(error, ASSAY_ERR_INPUT, "%s: cannot be read: %s", path, strerror(errno));
  const int64_t before = r->run_count + r->mutant_count;
  json_reader *reader = json_open();
  if (r->memory == NULL) r->memory = calloc(1, sizeof *r->memory);
  if (reader == NULL || r->memory == NULL) status = assay_fail(error, ASSAY_ERR_MEMORY, "%s: out of memory", path);
  for (int64_t number = 1; status == ASSAY_OK; ++number) {
    const ssize_t size = getline(&line, &room, from);
    if (size <= 0 || line[size - 1] != '\n') break;
    const json_value *value = NULL;
    assay_error why = {""};
    if (json_parse(reader, line, (size_t)size, &value, &why) != ASSAY_OK || value->kind != JSON_OBJECT)
      status = assay_fail(error, ASSAY_ERR_INPUT, "%s:%lld: %s", path, (long long)number,
                          why.text[0] != '\0' ? why.text : "no JSON object");
    else if (!read_line(r, value, path))
      status = assay_fail(error, ASSAY_ERR_MEMORY, "%s: out of memory", path);
  }
  if (status == ASSAY_OK && r->run_count + r->mutant_count == before)
    status = assay_fail(error, ASSAY_ERR_INPUT, "%s: neither a run's results nor mutants", path);
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

bool results_listed(const char *list, const char *word) {
  const size_t length = strlen(word);
  for (const char *at = list; *at != '\0'; at += strcspn(at, ","), at += *at == ',')
    if (strncmp(at, word, length) == 0 && (at[length] == ',' || at[length] == '\0')) return true;
  return false;
}
