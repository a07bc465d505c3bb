/* npy_header.c: a strict reader of the literals that NumPy writes. They are strings in either quotes, True, False, and
 * a tuple of whole numbers, which Python 2 ended in L. */
#include "npy_header.h"

#include <stdio.h>
#include <string.h>

typedef long long ll; /* for messages */

typedef struct cursor {
  const char *path, *start, *at, *end;
  assay_error *error;
} cursor;

static assay_status refuse(const cursor *c, const char *field, const char *allowed) {
  char found[24];
  const char *from = c->at + (c->at < c->end && (*c->at == '\'' || *c->at == '"'));
  const size_t left = (size_t)(c->end - from), size = left < sizeof found - 1 ? left : sizeof found - 1;
  memcpy(found, from, size);
  found[size] = '\0';
  found[strcspn(found, "\n'\"")] = '\0';
  return assay_fail(c->error, ASSAY_ERR_INPUT, "%s: header, byte %lld: %s: found '%s', allowed %s", c->path,
                    (ll)(c->at - c->start) + 1, field, found, allowed);
}

static void blanks(cursor *c) {
  while (c->at < c->end && strchr(" \t\r\n", *c->at) != NULL && *c->at != '\0')
    ++c->at;
}

static bool take(cursor *c, const char *text) {
  const size_t size = strlen(text);
  blanks(c);
  if ((size_t)(c->end - c->at) < size || memcmp(c->at, text, size) != 0) return false;
  c->at += size;
  return true;
}

/* Reads a string in either quotes; Python 2 may have put a u before it. */
static bool take_string(cursor *c, char *text, size_t room) {
  blanks(c);
  const char *at = c->at + (c->end - c->at > 1 && (*c->at == 'u' || *c->at == 'b') ? 1 : 0);
  if (at >= c->end || (*at != '\'' && *at != '"')) return false;
  const char *close = memchr(at + 1, *at, (size_t)(c->end - at - 1));
  if (close == NULL || (size_t)(close - at) > room || memchr(at, '\0', (size_t)(close - at)) != NULL) return false;
  memcpy(text, at + 1, (size_t)(close - at - 1));
  text[close - at - 1] = '\0';
  c->at = close + 1;
  return true;
}

/* Reads a whole number from 0 on; -1: there is none, or it does not fit. */
static int64_t take_length(cursor *c) {
  int64_t value = 0;
  blanks(c);
  if (c->at >= c->end || *c->at < '0' || *c->at > '9') return -1;
  for (; c->at < c->end && *c->at >= '0' && *c->at <= '9'; ++c->at) {
    if (value > (INT64_MAX - 9) / 10) return -1;
    value = 10 * value + (*c->at - '0');
  }
  if (c->at < c->end && *c->at == 'L') ++c->at;
  return value;
}

assay_status npy_header_axis(const char *path, npy_header *made, int64_t length, assay_error *error) {
  if (made->rank == ASSAY_MAX_RANK)
    return assay_fail(error, ASSAY_ERR_INPUT, "%s: shape: found more than %d axes, allowed up to %d", path,
                      ASSAY_MAX_RANK, ASSAY_MAX_RANK);
  if (length < 0 || (length > 0 && made->count > ((int64_t)1 << NPY_HEADER_MOST_LOG2) / length))
    return assay_fail(error, ASSAY_ERR_INPUT, "%s: shape: found too many elements, allowed up to 2^%d", path,
                      NPY_HEADER_MOST_LOG2);
  made->shape[made->rank++] = length;
  made->count *= length;
  return ASSAY_OK;
}

static assay_status take_shape(cursor *c, npy_header *made) {
  static const char allowed[] = "a tuple of lengths from 0 on, such as (2, 3), (5,) or ()";
  made->rank = 0;
  made->count = 1;
  if (!take(c, "(")) return refuse(c, "shape", allowed);
  while (!take(c, ")")) {
    const int64_t length = take_length(c);
    if (length < 0) return refuse(c, "shape", allowed);
    const assay_status status = npy_header_axis(c->path, made, length, c->error);
    if (status != ASSAY_OK) return status;
    const bool comma = take(c, ",");
    blanks(c);
    if (!comma && (c->at >= c->end || *c->at != ')')) return refuse(c, "shape", allowed);
  }
  return ASSAY_OK;
}

static assay_status take_descr(cursor *c, npy_header *made) {
  static const char allowed[] =
      "f8, f4, f2, i8, i4, i2, i1, u8, u4, u2, u1, b1, and f1, V1, V2 of ml_dtypes, after <, > or |";
  if (!take_string(c, made->descr, sizeof made->descr)) return refuse(c, "descr", allowed);
  const char *at = made->descr;
  made->big = *at == '>';
  made->generic = *at == '|';
  at += *at == '<' || *at == '>' || *at == '|' || *at == '=';
  static const char known[] = "f8 f4 f2 f1 i8 i4 i2 i1 u8 u4 u2 u1 b1 V1 V2";
  bool is = strlen(at) == 2;
  for (const char *k = known; is && strncmp(k, at, 2) != 0; k += 3)
    is = k[2] != '\0';
  if (!is)
    return assay_fail(c->error, ASSAY_ERR_INPUT, "%s: header: descr: found '%s', allowed %s", c->path, made->descr,
                      allowed);
  made->kind = at[0];
  made->size = at[1] - '0';
  return ASSAY_OK;
}

static assay_status take_order(cursor *c, npy_header *made) {
  made->fortran = take(c, "True");
  return made->fortran || take(c, "False") ? ASSAY_OK : refuse(c, "fortran_order", "True, False");
}

assay_status npy_header_read(const char *path, const char *text, size_t size, npy_header *made, assay_error *error) {
  static const struct {
    const char *key;
    assay_status (*take)(cursor *c, npy_header *made);
  } fields[] = {{"descr", take_descr}, {"fortran_order", take_order}, {"shape", take_shape}};
  enum { FIELDS = sizeof fields / sizeof *fields };
  cursor c = {path, text, text, text + size, error};
  bool there[FIELDS] = {false};
  *made = (npy_header){.count = 1};
  if (!take(&c, "{")) return refuse(&c, "dictionary", "{");
  while (!take(&c, "}")) {
    char key[32];
    int f = 0;
    const cursor before = c;
    const bool is = take_string(&c, key, sizeof key);
    while (is && f < FIELDS && strcmp(fields[f].key, key) != 0)
      ++f;
    if (!is || f == FIELDS || there[f]) {
      blanks((c = before, &c));
      return refuse(&c, "key", "descr, fortran_order, shape, each once");
    }
    there[f] = true;
    if (!take(&c, ":")) return refuse(&c, key, "a colon");
    const assay_status status = fields[f].take(&c, made);
    if (status != ASSAY_OK) return status;
    const bool comma = take(&c, ",");
    blanks(&c);
    if (!comma && (c.at >= c.end || *c.at != '}')) return refuse(&c, key, "a comma or the end");
  }
  for (int f = 0; f < FIELDS; ++f)
    if (!there[f])
      return assay_fail(error, ASSAY_ERR_INPUT, "%s: header: %s: missing, allowed descr, fortran_order, shape", path,
                        fields[f].key);
  blanks(&c);
  return c.at == c.end ? ASSAY_OK : refuse(&c, "end", "blanks after the dictionary");
}
