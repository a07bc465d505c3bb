/* json.c: a recursive descent over bytes (RFC 8259). */
#include "json.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_DEPTH = 64, BLOCK = 1 << 16 };

typedef struct block {
  struct block *next;
  size_t size, used;
} block;

struct json_reader {
  block *blocks; /* the first one is in use */
  const char *start, *at, *end;
  const char *begin; /* the first byte of the line that is read */
  int64_t line;
  const char *key; /* the last key read; NULL: none yet */
  assay_error *error;
};

/* ---- memory: reused as a whole when the next text is read --------------------------------------------- */

static void *take(json_reader *r, size_t bytes) {
  bytes = (bytes + 15) / 16 * 16;
  if (r->blocks == NULL || r->blocks->size - r->blocks->used < bytes) {
    const size_t size = bytes > BLOCK ? bytes : BLOCK;
    block *added = malloc(sizeof *added + 16 + size);
    if (added == NULL) return NULL;
    *added = (block){r->blocks, size, 0};
    r->blocks = added;
  }
  unsigned char *base = (unsigned char *)r->blocks + (sizeof(block) + 15) / 16 * 16;
  void *memory = base + r->blocks->used;
  r->blocks->used += bytes;
  return memory;
}

static void forget(json_reader *r, bool all) {
  while (r->blocks != NULL && (all || r->blocks->next != NULL || r->blocks->size > BLOCK)) {
    block *next = r->blocks->next;
    free(r->blocks);
    r->blocks = next;
  }
  if (r->blocks != NULL) r->blocks->used = 0;
}

json_reader *json_open(void) {
  return calloc(1, sizeof(json_reader));
}

void json_close(json_reader *r) {
  if (r != NULL) forget(r, true);
  free(r);
}

/* ---- grammar ----------------------------------------------------------------------------------------- */

/* Writes where the reader is: the line of a text that has several, the column in bytes, and the last key. */
static void describe_place(const json_reader *r, char *text, size_t size) {
  const char *feed = memchr(r->start, '\n', (size_t)(r->end - r->start));
  size_t used = 0;
  if (feed != NULL && feed + 1 < r->end) used = (size_t)snprintf(text, size, "line %lld, ", (long long)r->line);
  used += (size_t)snprintf(text + used, size - used, "column %lld", (long long)(r->at - r->begin) + 1);
  if (r->key != NULL) (void)snprintf(text + used, size - used, ", after key \"%.60s\"", r->key);
}

static assay_status refuse(json_reader *r, const char *wanted) {
  char place[160];
  describe_place(r, place, sizeof place);
  if (r->at >= r->end) return assay_fail(r->error, ASSAY_ERR_INPUT, "%s: the text ends, expected %s", place, wanted);
  return assay_fail(r->error, ASSAY_ERR_INPUT, "%s: found byte 0x%02x, expected %s", place,
                    (unsigned)(unsigned char)*r->at, wanted);
}

static void blanks(json_reader *r) {
  for (; r->at < r->end && (*r->at == ' ' || *r->at == '\t' || *r->at == '\n' || *r->at == '\r'); ++r->at)
    if (*r->at == '\n') { /* no other place may hold one */
      ++r->line;
      r->begin = r->at + 1;
    }
}

static bool word(json_reader *r, const char *text) {
  const size_t size = strlen(text);
  if ((size_t)(r->end - r->at) < size || memcmp(r->at, text, size) != 0) return false;
  r->at += size;
  return true;
}

/* Returns four hexadecimal digits as a number; -1 if they are none. */
static int32_t hex4(json_reader *r) {
  int32_t value = 0;
  for (int i = 0; i < 4; ++i, ++r->at) {
    if (r->at >= r->end) return -1;
    const char c = *r->at;
    const int digit = c >= '0' && c <= '9'   ? c - '0'
                      : c >= 'a' && c <= 'f' ? c - 'a' + 10
                      : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                             : -1;
    if (digit < 0) return -1;
    value = 16 * value + digit;
  }
  return value;
}

static char *put_utf8(char *to, int32_t code) {
  if (code == 0 || (code >= 0xD800 && code <= 0xDFFF)) code = 0xFFFD;
  if (code < 0x80) {
    *to++ = (char)code;
  } else if (code < 0x800) {
    *to++ = (char)(0xC0 | (code >> 6));
    *to++ = (char)(0x80 | (code & 0x3F));
  } else if (code < 0x10000) {
    *to++ = (char)(0xE0 | (code >> 12));
    *to++ = (char)(0x80 | ((code >> 6) & 0x3F));
    *to++ = (char)(0x80 | (code & 0x3F));
  } else {
    *to++ = (char)(0xF0 | (code >> 18));
    *to++ = (char)(0x80 | ((code >> 12) & 0x3F));
    *to++ = (char)(0x80 | ((code >> 6) & 0x3F));
    *to++ = (char)(0x80 | (code & 0x3F));
  }
  return to;
}

/* Reads the character after "\u"; takes a pair of surrogates together. */
static bool escaped_code(json_reader *r, int32_t *code) {
  *code = hex4(r);
  if (*code < 0) return false;
  if (*code >= 0xD800 && *code <= 0xDBFF && r->end - r->at >= 6 && r->at[0] == '\\' && r->at[1] == 'u') {
    const char *before = r->at;
    r->at += 2;
    const int32_t low = hex4(r);
    if (low >= 0xDC00 && low <= 0xDFFF)
      *code = 0x10000 + ((*code - 0xD800) << 10) + (low - 0xDC00);
    else
      r->at = before;
  }
  return true;
}

static assay_status read_string(json_reader *r, const char **text) {
  if (r->at >= r->end || *r->at != '"') return refuse(r, "a string");
  ++r->at;
  const char *close = r->at;
  while (close < r->end && *close != '"')
    close += *close == '\\' && close + 1 < r->end ? 2 : 1;
  /* No escape is shorter than its character: U+FFFD for \u0000 has 3 bytes of 6. */
  char *to = take(r, (size_t)(close - r->at) + 1);
  if (to == NULL) return assay_fail(r->error, ASSAY_ERR_MEMORY, "JSON: out of memory");
  *text = to;
  while (r->at < r->end && *r->at != '"') {
    if ((unsigned char)*r->at < 0x20) return refuse(r, "no control character in a string");
    if (*r->at != '\\') {
      *to++ = *r->at++;
      continue;
    }
    static const char from[] = "\"\\/bfnrt", into[] = "\"\\/\b\f\n\r\t";
    ++r->at;
    const char *known = r->at < r->end && *r->at != '\0' ? strchr(from, *r->at) : NULL;
    int32_t code = 0;
    if (known != NULL) {
      *to++ = into[known - from];
      ++r->at;
    } else if (r->at < r->end && *r->at == 'u') {
      ++r->at;
      if (!escaped_code(r, &code)) return refuse(r, "four hexadecimal digits");
      to = put_utf8(to, code);
    } else {
      return refuse(r, "an escape");
    }
  }
  if (r->at >= r->end) return refuse(r, "the end of a string");
  ++r->at;
  *to = '\0';
  return ASSAY_OK;
}

static bool digits(json_reader *r) {
  const char *start = r->at;
  while (r->at < r->end && *r->at >= '0' && *r->at <= '9')
    ++r->at;
  return r->at > start;
}

static assay_status read_number(json_reader *r, json_value *value) {
  const char *start = r->at;
  if (r->at < r->end && *r->at == '-') ++r->at;
  const bool zero = r->at < r->end && *r->at == '0';
  const char *first = r->at;
  if (!digits(r) || (zero && r->at - first > 1)) return refuse(r, "a value");
  if (r->at < r->end && *r->at == '.' && (++r->at, !digits(r))) return refuse(r, "a digit");
  if (r->at < r->end && (*r->at == 'e' || *r->at == 'E')) {
    ++r->at;
    if (r->at < r->end && (*r->at == '+' || *r->at == '-')) ++r->at;
    if (!digits(r)) return refuse(r, "a digit");
  }
  char *text = take(r, (size_t)(r->at - start) + 1);
  if (text == NULL) return assay_fail(r->error, ASSAY_ERR_MEMORY, "JSON: out of memory");
  memcpy(text, start, (size_t)(r->at - start));
  text[r->at - start] = '\0';
  value->kind = JSON_NUMBER;
  value->text = text;
  value->number = strtod(text, NULL);
  return ASSAY_OK;
}

static assay_status read_value(json_reader *r, int depth, const char *key, const json_value **result);

static int by_text(const void *a, const void *b) {
  return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* Refuses an object that has a key twice: readers would take the first value, and others the last. */
static assay_status check_keys(json_reader *r, const json_value *parent, size_t count) {
  const char *few[32], **keys = count <= sizeof few / sizeof *few ? few : take(r, count * sizeof *keys);
  size_t used = 0;
  if (keys == NULL) return assay_fail(r->error, ASSAY_ERR_MEMORY, "JSON: out of memory");
  for (const json_value *at = parent->child; at != NULL; at = at->next)
    keys[used++] = at->key;
  if (used > 1) qsort(keys, used, sizeof *keys, by_text);
  for (size_t i = 1; i < used; ++i)
    if (strcmp(keys[i - 1], keys[i]) == 0)
      return assay_fail(r->error, ASSAY_ERR_INPUT, "line %lld: found key \"%.60s\" twice in one object, allowed once",
                        (long long)parent->line, keys[i]);
  return ASSAY_OK;
}

static assay_status read_members(json_reader *r, int depth, bool object, json_value *parent) {
  const char close = object ? '}' : ']';
  const json_value **link = &parent->child;
  size_t count = 0;
  ++r->at;
  blanks(r);
  if (r->at < r->end && *r->at == close) return ++r->at, ASSAY_OK;
  for (;;) {
    const char *key = NULL;
    const json_value *child = NULL;
    assay_status status = ASSAY_OK;
    blanks(r);
    if (object) {
      status = read_string(r, &key);
      if (status != ASSAY_OK) return status;
      r->key = key;
      blanks(r);
      if (r->at >= r->end || *r->at != ':') return refuse(r, "':'");
      ++r->at;
    }
    status = read_value(r, depth + 1, key, &child);
    if (status != ASSAY_OK) return status;
    *link = child;
    link = &((json_value *)(uintptr_t)child)->next;
    ++count;
    blanks(r);
    if (r->at < r->end && *r->at == close) return ++r->at, object ? check_keys(r, parent, count) : ASSAY_OK;
    if (r->at >= r->end || *r->at != ',') return refuse(r, object ? "',' or '}'" : "',' or ']'");
    ++r->at;
  }
}

static assay_status read_value(json_reader *r, int depth, const char *key, const json_value **result) {
  json_value *value = take(r, sizeof *value);
  if (value == NULL) return assay_fail(r->error, ASSAY_ERR_MEMORY, "JSON: out of memory");
  *value = (json_value){.kind = JSON_NULL, .key = key};
  *result = value;
  if (depth > MAX_DEPTH) return refuse(r, "at most 64 levels");
  blanks(r);
  value->line = r->line;
  if (r->at >= r->end) return refuse(r, "a value");
  if (*r->at == '{' || *r->at == '[') {
    value->kind = *r->at == '{' ? JSON_OBJECT : JSON_ARRAY;
    return read_members(r, depth, *r->at == '{', value);
  }
  if (*r->at == '"') {
    value->kind = JSON_STRING;
    return read_string(r, &value->text);
  }
  if (word(r, "null")) return ASSAY_OK;
  const bool yes = word(r, "true");
  if (yes || word(r, "false")) {
    value->kind = JSON_BOOL;
    value->number = yes ? 1 : 0;
    return ASSAY_OK;
  }
  return read_number(r, value);
}

assay_status json_parse(json_reader *r, const char *text, size_t size, const json_value **value, assay_error *error) {
  forget(r, false);
  r->start = r->at = r->begin = text;
  r->line = 1;
  r->end = text + size;
  r->key = NULL;
  r->error = error;
  assay_status status = read_value(r, 0, NULL, value);
  if (status != ASSAY_OK) return status;
  blanks(r);
  return r->at == r->end ? ASSAY_OK : refuse(r, "the end");
}

/* ---- look-ups ---------------------------------------------------------------------------------------- */

const json_value *json_member(const json_value *object, const char *key) {
  if (object == NULL || object->kind != JSON_OBJECT) return NULL;
  for (const json_value *at = object->child; at != NULL; at = at->next)
    if (strcmp(at->key, key) == 0) return at;
  return NULL;
}

const char *json_text(const json_value *object, const char *key, const char *fallback) {
  const json_value *at = json_member(object, key);
  return at != NULL && at->kind == JSON_STRING ? at->text : fallback;
}

double json_number(const json_value *object, const char *key, double fallback) {
  const json_value *at = json_member(object, key);
  return at != NULL && at->kind == JSON_NUMBER ? at->number : fallback;
}

int64_t json_integer(const json_value *object, const char *key, int64_t fallback) {
  const json_value *at = json_member(object, key);
  return at != NULL && at->kind == JSON_NUMBER ? strtoll(at->text, NULL, 10) : fallback;
}

uint64_t json_unsigned(const json_value *object, const char *key, uint64_t fallback) {
  const json_value *at = json_member(object, key);
  return at != NULL && at->kind == JSON_NUMBER ? strtoull(at->text, NULL, 10) : fallback;
}

bool json_whole(const json_value *value, int64_t *whole) {
  char *end = NULL;
  if (value == NULL || value->kind != JSON_NUMBER) return false;
  errno = 0;
  *whole = strtoll(value->text, &end, 10);
  return errno == 0 && *end == '\0';
}

bool json_flag(const json_value *object, const char *key, bool fallback) {
  const json_value *at = json_member(object, key);
  return at != NULL && at->kind == JSON_BOOL ? at->number != 0 : fallback;
}
