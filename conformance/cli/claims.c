/* claims.c: a claim is a promise; a combination that nothing confirmed is a failure, not a gap. A law of an
 * operator that no case was asked is a failure too. */
#include "claims.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "conformance/laws/laws.h"
#include "core/hash.h"
#include "core/registry.h"

/* ENOUGH: cases of which one in eight is asked a law; that none of them is has a chance of 2e-4. */
enum { MAX_SEEN = 65536, AXES = 4, KEY = 192, ENOUGH = 64 };

struct claims {
  char (*passed)[KEY]; /* "op/variant@device: bf16 same nhd decode", a set by open addressing */
  int64_t count;
  char suites[64][48]; /* operators whose own suite was run */
  int64_t suite_passed[64];
  int32_t suite_count;
};

assay_status claims_open(claims **made, assay_error *error) {
  *made = calloc(1, sizeof **made);
  if (*made != NULL) (*made)->passed = calloc(MAX_SEEN, KEY);
  if (*made == NULL || (*made)->passed == NULL) return assay_fail(error, ASSAY_ERR_MEMORY, "claims: out of memory");
  return ASSAY_OK;
}

void claims_close(claims *c) {
  if (c != NULL) free(c->passed);
  free(c);
}

/* The slot of `key`: its own, or the free one where it belongs. */
static char *slot(const claims *c, const char *key) {
  const uint64_t hash = hash_text(HASH_OLD_START, key);
  for (uint64_t i = hash % MAX_SEEN;; i = (i + 1) % MAX_SEEN)
    if (c->passed[i][0] == '\0' || strcmp(c->passed[i], key) == 0) return c->passed[i];
}

static void make_key(char *key, const char *op, const char *variant, const char *device, char value[AXES][16]) {
  int used = snprintf(key, KEY, "%s/%s on %s:", op, variant, device);
  for (int a = 0; a < AXES && value[a][0] != '\0' && used > 0 && used < KEY; ++a)
    used += snprintf(key + used, (size_t)(KEY - used), " %s", value[a]);
}

static void note(claims *c, const char *key) {
  char *at = slot(c, key);
  if (at[0] != '\0' || c->count >= MAX_SEEN / 2) return;
  (void)snprintf(at, KEY, "%s", key);
  ++c->count;
}

/* Calls of(context, law) for each of a list with commas. */
static void each_law(const char *laws, void (*of)(void *context, const char *name), void *context) {
  char one[32];
  for (const char *at = laws; *at != '\0'; at += strcspn(at, ","), at += *at == ',') {
    (void)snprintf(one, sizeof one, "%.*s", (int)strcspn(at, ","), at);
    of(context, one);
  }
}

typedef struct asked {
  claims *c;
  const char *op, *device;
  report *out;
} asked;

static void law_key(char *key, const asked *a, const char *name) {
  (void)snprintf(key, KEY, "%s on %s: law %s", a->op, a->device, name);
}

static void note_law(void *context, const char *name) {
  const asked *a = context;
  char key[KEY];
  law_key(key, a, name);
  note(a->c, key);
}

static void report_law(void *context, const char *name) {
  const asked *a = context;
  char key[KEY];
  law_key(key, a, name);
  if (slot(a->c, key)[0] != '\0') return;
  report_unasked(a->out, a->op, key);
  const law *l = law_find(name);
  char line[400];
  if (l == NULL) return;
  (void)snprintf(line, sizeof line, "    %s: %s.", name, l->text);
  report_line(a->out, line);
  (void)snprintf(line, sizeof line,
                 "    One in %u of the cases to which it applies is asked: add some (docs/judging.md, Checks).",
                 l->share);
  report_line(a->out, line);
}

void claims_note(claims *c, const assay_case *one, const case_result *result) {
  if (strcmp(one->suite, one->op->name) == 0) {
    int32_t i = 0;
    while (i < c->suite_count && strcmp(c->suites[i], one->suite) != 0)
      ++i;
    if (i == c->suite_count && i < 64)
      (void)snprintf(c->suites[c->suite_count++], sizeof c->suites[0], "%s", one->suite);
    if (i < 64 && result->verdict == VERDICT_PASS) ++c->suite_passed[i];
  }
  if (result->verdict != VERDICT_PASS) return;
  char value[AXES][16] = {""}, key[KEY], axis[32];
  for (int a = 0; a < AXES && case_axis_name(one->op, a, axis, sizeof axis); ++a) {
    const char *said = case_axis(one, axis);
    (void)snprintf(value[a], sizeof value[a], "%s", said != NULL ? said : "?");
  }
  make_key(key, one->op->name, one->variant, one->device, value);
  note(c, key);
  asked a = {c, one->op->name, one->device, NULL};
  each_law(result->laws, note_law, &a);
}

/* Walks the product of the claim's lists, axis by axis. */
static void walk(claims *c, const assay_variant *v, const char *rest, int axis, char value[AXES][16], report *out) {
  char name[32];
  const assay_op *op = assay_op_find(v->op);
  if (axis == AXES || op == NULL || !case_axis_name(op, axis, name, sizeof name)) {
    char key[KEY], said[AXES][16];
    memcpy(said, value, sizeof said);
    /* The type itself is "same". */
    for (int a = 1; op != NULL && a < axis && case_axis_name(op, a, name, sizeof name); ++a)
      if (strcmp(name, "out_dtype") == 0 && strcmp(value[a], value[0]) == 0)
        (void)snprintf(said[a], sizeof said[a], "same");
    make_key(key, v->op, v->name, v->device, said);
    if (slot(c, key)[0] == '\0') report_unclaimed(out, v->name, key);
    return;
  }
  const char *end = rest;
  while (*end != '\0' && *end != '|')
    ++end;
  for (const char *at = rest; at < end;) {
    size_t length = 0;
    while (at + length < end && at[length] != ',')
      ++length;
    (void)snprintf(value[axis], 16, "%.*s", (int)length, at);
    walk(c, v, *end == '|' ? end + 1 : end, axis + 1, value, out);
    at += length + (at + length < end ? 1 : 0);
  }
}

void claims_report(claims *c, const assay_variant *variant, report *out) {
  char value[AXES][16] = {""};
  for (int32_t i = 0; i < c->suite_count; ++i)
    if (strcmp(c->suites[i], variant->op) == 0) walk(c, variant, variant->claims, 0, value, out);
}

void claims_report_laws(claims *c, const char *device, report *out) {
  for (int32_t i = 0; i < c->suite_count; ++i) {
    const assay_op *op = assay_op_find(c->suites[i]);
    if (op == NULL || c->suite_passed[i] < ENOUGH) continue;
    asked a = {c, op->name, device, out};
    each_law(op->laws != NULL ? op->laws : "", report_law, &a);
    for (int32_t l = 0; law_at(l) != NULL; ++l)
      if (law_at(l)->owed != OWED_LISTED && law_is_owed(law_at(l), op)) report_law(&a, law_at(l)->name);
  }
}
