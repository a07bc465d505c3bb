/* laws.c: the table of laws, and the draw of the laws that a case is asked. Only the case's seed draws them, so that a
 * shrunk case is asked the same laws. */
#include "laws.h"

#include <string.h>

#include "conformance/generate/generate.h"
#include "laws_internal.h"
#include "pages.h"
#include "vast_internal.h"

/* FAR_PAD: cases whose rows are padded by at least this many elements are always asked the law `far`. VAST_BYTES: cases
 * whose tensors have at most this many bytes are always asked the law `vast`. */
enum { FAR_PAD = 4096, VAST_BYTES = 1 << 21 };

static const law table[] = {
#define LAW(name, id, share, owed, text) {#name, id, share, owed, text, name##_applies, name##_check},
#include "laws.def"
#undef LAW
};

enum { LAWS = sizeof table / sizeof table[0] };

const law *law_at(int32_t index) {
  return index >= 0 && index < LAWS ? &table[index] : NULL;
}

const law *law_find(const char *name) {
  for (int32_t i = 0; i < LAWS; ++i)
    if (strcmp(table[i].name, name) == 0) return &table[i];
  return NULL;
}

static bool is_drawn(const trial *t, const law *l) {
  const bool padded = l->check == far_check && t->one->q_pad + t->one->row_pad >= FAR_PAD;
  const bool small = l->check == vast_check && t->first.arena_bytes <= VAST_BYTES;
  const uint64_t hash = logical_hash(t->one, STREAM_LAWS + ((uint64_t)l->id << 16));
  const uint64_t halves = thinned_case(t->one) && l->owed != OWED_LISTED ? 2 : 1;
  return hash % ((padded || small ? 1 : l->share) * halves) == 0;
}

/* A law may run other calls, whose paths replace the result's. Each law finds the first run's path there, and so does
 * the report. */
bool laws_check(const trial *t, const outputs *base, case_result *result) {
  char path[sizeof result->path];
  memcpy(path, result->path, sizeof path);
  for (int32_t i = 0; i < LAWS; ++i) {
    if (table[i].applies(t) && is_drawn(t, &table[i]) && !table[i].check(t, base, result)) return false;
    memcpy(result->path, path, sizeof path);
  }
  return true;
}

/* Tells whether the operator has a pool of blocks, or an argument whose rows need not follow each other. */
static bool may_lie_apart(const assay_op *op) {
  for (int32_t i = 0; i < op->arg_count; ++i)
    if (op->args[i].strided || op->args[i].content == ASSAY_K_CACHE) return true;
  return false;
}

/* Tells whether the operator has a required argument that is written and not read. */
static bool has_output(const assay_op *op) {
  for (int32_t i = 0; i < op->arg_count; ++i)
    if (op->args[i].role == ASSAY_OUT && !op->args[i].optional) return true;
  return false;
}

static bool is_listed(const assay_op *op, const char *name) {
  const size_t length = strlen(name);
  for (const char *at = op->laws != NULL ? op->laws : ""; *at != '\0'; at += *at == ',') {
    const size_t item = strcspn(at, ",");
    if (item == length && strncmp(at, name, length) == 0) return true;
    at += item;
  }
  return false;
}

bool law_is_owed(const law *l, const assay_op *op) {
  switch (l->owed) {
  case OWED_ALWAYS:
    return true;
  case OWED_LISTED:
    return is_listed(op, l->name);
  case OWED_PERMUTED:
    return is_listed(op, "permutation");
  case OWED_APART:
    return may_lie_apart(op);
  case OWED_OUTPUT:
    return has_output(op);
  case OWED_VAST:
    return vast_is_possible(op);
  case OWED_NEVER:
    break;
  }
  return false;
}

void laws_release(void) {
  pages_release();
}
