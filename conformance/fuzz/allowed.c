/* allowed.c: reads from a refusal which values of an axis would have been taken. Refusals say "NAME: found X, allowed
 * Y". Y lists numbers or names, or says "multiples of N", "up to N", "N and above" or the like. */
#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "conformance/text/text.h"
#include "fuzz_internal.h"

enum { MOST = 16 };

typedef enum relation { ONE_OF, MULTIPLES, AT_MOST, BELOW, AT_LEAST } relation;

typedef struct rule {
  relation kind;
  double number[MOST];
  int32_t numbers;
} rule;

static bool holds(const rule *r, double value) {
  for (int32_t i = 0; i < r->numbers; ++i) {
    const double n = r->number[i];
    const bool same = !(value < n) && !(value > n);
    if (r->kind == ONE_OF && same) return true;
    if (r->kind == MULTIPLES && value > 0 && !(fmod(value, n) > 0)) return true;
    if (r->kind == AT_MOST && value <= n) return true;
    if (r->kind == BELOW && value < n) return true;
    if (r->kind == AT_LEAST && value >= n) return true;
  }
  return false;
}

/* Returns the text after the last of the words that begin what is allowed, or NULL. */
static const char *allowed_part(const char *message) {
  static const char *const words[] = {"allowed", "taken here"};
  const char *part = NULL;
  for (size_t i = 0; i < sizeof words / sizeof words[0]; ++i) {
    const char *at = strstr(message, words[i]);
    if (at != NULL) part = at + strlen(words[i]);
  }
  return part;
}

/* Returns the length of the part before a condition or an exception. The numbers after it are of something else. */
static size_t before_conditions(const char *part) {
  static const char *const words[] = {" with ", " in ", " for ", " except ", " where "};
  size_t size = strlen(part);
  for (size_t i = 0; i < sizeof words / sizeof words[0]; ++i) {
    const char *at = strstr(part, words[i]);
    if (at != NULL && (size_t)(at - part) < size) size = (size_t)(at - part);
  }
  return size;
}

static bool says(const char *text, const char *words) {
  return strstr(text, words) != NULL;
}

static rule read_rule(const char *text) {
  rule r = {.kind = says(text, "multiples of")                          ? MULTIPLES
                    : says(text, "up to") || says(text, "at most")      ? AT_MOST
                    : says(text, "fewer than") || says(text, "below")   ? BELOW
                    : says(text, "and above") || says(text, "and more") ? AT_LEAST
                    : says(text, "at least") || says(text, "or more")   ? AT_LEAST
                                                                        : ONE_OF};
  for (const char *at = text; *at != '\0' && r.numbers < MOST;) {
    const bool begins =
        isdigit((unsigned char)*at) && (at == text || (!isalnum((unsigned char)at[-1]) && at[-1] != '_'));
    char *end = NULL;
    const double number = begins ? strtod(at, &end) : 0;
    if (begins && !isalpha((unsigned char)*end)) r.number[r.numbers++] = number;
    at += begins ? end - at : 1;
  }
  if (r.kind != ONE_OF && r.numbers > 1) r.numbers = 1;
  if (r.kind == MULTIPLES && r.numbers > 0 && !(r.number[0] > 0)) r.numbers = 0;
  return r;
}

uint64_t fuzz_allowed(const fuzz_axis *axis, const char *message) {
  char text[160];
  const char *part = allowed_part(message);
  uint64_t set = 0;
  if (part == NULL || axis->kind != AXIS_KEY || strncmp(message, axis->name, axis->name_length) != 0) return 0;
  if (message[axis->name_length] != ':') return 0;
  (void)snprintf(text, sizeof text, "%.*s", (int)before_conditions(part), part);
  rule r = read_rule(text);
  if (r.kind == ONE_OF && (says(part, "and more") || says(part, "and above"))) r.kind = AT_LEAST;
  for (int32_t v = 0; v < axis->count; ++v) {
    const char *name = axis->key.kind == KEY_ENUM ? key_name_of(&axis->key, (int64_t)axis->value[v]) : NULL;
    const bool number = axis->key.kind == KEY_INTEGER || axis->key.kind == KEY_REAL;
    if (name != NULL ? word_is_in(text, strlen(text), name) : number && holds(&r, axis->value[v]))
      set |= (uint64_t)1 << v;
  }
  return set;
}
