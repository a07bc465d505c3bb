/* json.h: reads JSON, written by the runner or by others, into a tree of values. The tree's memory is reused. */
#ifndef ASSAY_CORE_JSON_H
#define ASSAY_CORE_JSON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "assay/status.h"

typedef enum json_kind { JSON_NULL, JSON_BOOL, JSON_NUMBER, JSON_STRING, JSON_ARRAY, JSON_OBJECT } json_kind;

typedef struct json_value {
  json_kind kind;
  const char *key;  /* inside an object, else NULL */
  const char *text; /* strings: unescaped, with U+FFFD for \u0000; numbers: as written */
  double number;    /* booleans: 0 or 1 */
  int64_t line;     /* where it begins, from 1 on */
  const struct json_value *child, *next;
} json_value;

typedef struct json_reader json_reader;

json_reader *json_open(void); /* NULL: out of memory */
void json_close(json_reader *r);
/* Parses one value with only blanks after it. The value lives until the next call. Refuses more than 64 levels, and a
 * key twice in one object. */
assay_status json_parse(json_reader *r, const char *text, size_t size, const json_value **value, assay_error *error);

/* Look up a member. `object` may be NULL. A missing member, or one of another kind, gives the fallback. */
const json_value *json_member(const json_value *object, const char *key);
const char *json_text(const json_value *object, const char *key, const char *fallback);
double json_number(const json_value *object, const char *key, double fallback);
int64_t json_integer(const json_value *object, const char *key, int64_t fallback);
/* Looks up an unsigned integer; it is exact above 2^53, because it is read from its digits. */
uint64_t json_unsigned(const json_value *object, const char *key, uint64_t fallback);
/* Tells whether the value is a number without fraction and exponent that fits. NULL: no. */
bool json_whole(const json_value *value, int64_t *whole);
bool json_flag(const json_value *object, const char *key, bool fallback);

#endif
