/* descriptor.c: a case as one line of key=value, printed and parsed. Printing and parsing again gives the same case. */
#include "types.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "conformance/text/text.h"
#include "core/registry.h"
#include "keys.h"

/* ---- print ------------------------------------------------------------------------------------------------ */

typedef struct line {
  char *text;
  size_t size, used;
} line;

#if defined(__GNUC__)
__attribute__((format(printf, 2, 3)))
#endif
static void
put(line *to, const char *format, ...) {
  va_list list;
  va_start(list, format);
  const size_t left = to->used < to->size ? to->size - to->used : 0;
  const int n = vsnprintf(left > 0 ? to->text + to->used : NULL, left, format, list);
  va_end(list);
  if (n > 0) to->used += (size_t)n;
}

/* Tells whether two numbers are one in a call: zeros of both signs are two, since a launcher may tell them apart. */
static bool same_real(double a, double b) {
  return !(a < b) && !(a > b) && (a == a) == (b == b) && (a != a || signbit(a) == signbit(b));
}

/* Tells whether `new` is implied by the mode: 1 each in decode, all of L in prefill. */
static bool new_is_implied(const assay_case *one) {
  if (one->mode != MODE_DECODE && one->mode != MODE_PREFILL) return false;
  for (int32_t i = 0; i < one->batch; ++i)
    if (one->new_len[i] != (one->mode == MODE_DECODE ? 1 : one->kv_len[i])) return false;
  return true;
}

static bool shares_nothing(const assay_case *one) {
  for (int32_t i = 0; one->share_with != NULL && i < one->batch; ++i)
    if (one->share_with[i] >= 0) return false;
  return true;
}

static void put_list(line *to, const char *name, const int32_t *list, int32_t count) {
  put(to, " %s=", name);
  for (int32_t i = 0, run = 1; i < count; i += run) {
    for (run = 1; count > CASE_LISTED && i + run < count && list[i + run] == list[i];)
      ++run;
    put(to, "%s%" PRId32, i > 0 ? "," : "", list[i]);
    if (run > 1) put(to, "*%" PRId32, run);
  }
}

static void put_share(line *to, const assay_case *one) {
  put(to, " share=");
  for (int32_t i = 0; i < one->batch; ++i) {
    if (i > 0) put(to, ",");
    if (one->share_with[i] < 0)
      put(to, "-");
    else
      put(to, "%" PRId32 ":%" PRId32, one->share_with[i], one->share_tokens[i]);
  }
}

static void put_key(line *to, const assay_case *one, const case_key *key) {
  char number[40];
  const double value = key_get(one, key);
  if (key->kind <= KEY_ENUM && !key->always && same_real(value, key->fallback)) return;
  switch (key->kind) {
  case KEY_INTEGER:
  case KEY_REAL:
    key_print_real(value, number, sizeof number);
    put(to, " %s=%s", key->name, key->store == STORE_I32 && value < 0 ? "interleaved" : number);
    break;
  case KEY_BOOL:
    put(to, " %s=%s", key->name, value != 0 ? "true" : "false");
    break;
  case KEY_ENUM: {
    const char *name = key_name_of(key, (int64_t)value);
    put(to, " %s=%s", key->name, name != NULL ? name : "?");
    break;
  }
  case KEY_TEXT: {
    const char *text = (const char *)one + key->at;
    if (text[0] != '\0') put(to, " %s=%s", key->name, text);
    break;
  }
  case KEY_SEED:
    put(to, " %s=0x%" PRIx64, key->name, one->seed);
    break;
  case KEY_LENGTHS:
    if (strcmp(key->name, "kv_len") == 0)
      put_list(to, key->name, one->kv_len, one->batch);
    else if (!new_is_implied(one))
      put_list(to, key->name, one->new_len, one->batch);
    break;
  case KEY_SHARE:
    if (!shares_nothing(one)) put_share(to, one);
    break;
  }
}

assay_status case_print(const assay_case *one, char *text, size_t size, assay_error *error) {
  line to = {.text = text, .size = size};
  if (size > 0) text[0] = '\0';
  put(&to, "%s", one->op->name);
  const int32_t count = key_count(one->op);
  for (int32_t i = 0; i < count; ++i) {
    const case_key key = key_at(one->op, i);
    put_key(&to, one, &key);
  }
  if (to.used >= size)
    return assay_fail(error, ASSAY_ERR_INPUT, "case: a descriptor of %zu characters, allowed %zu", to.used,
                      size > 0 ? size - 1 : 0);
  return ASSAY_OK;
}

/* ---- parse ------------------------------------------------------------------------------------------------ */

/* The words of a descriptor: values by key number; NULL where the key is not given. */
enum { MAX_KEYS = 96 };
typedef struct words {
  const char *value[MAX_KEYS];
} words;

static assay_status unknown_key(const assay_op *op, const char *name, assay_error *error) {
  char list[1200], near[64];
  key_list(op, list, sizeof list);
  const char *guess = word_nearest(name, list, near, sizeof near);
  return assay_fail(error, ASSAY_ERR_INPUT, "%.60s: unknown key%s%s%s, allowed are %s", name,
                    guess != NULL ? " (nearest: " : "", guess != NULL ? guess : "", guess != NULL ? ")" : "", list);
}

/* Cuts `text` (changed in place) at blanks into key=value. Refuses unknown and repeated keys. */
static assay_status split_words(char *text, const assay_op *op, words *found, assay_error *error) {
  char *rest = NULL;
  for (char *word = strtok_r(text, " \t\r\n", &rest); word != NULL; word = strtok_r(NULL, " \t\r\n", &rest)) {
    char *equals = strchr(word, '=');
    if (equals == NULL || equals == word)
      return assay_fail(error, ASSAY_ERR_INPUT, "descriptor: found '%.60s', allowed key=value", word);
    *equals = '\0';
    const int32_t index = key_find(op, word);
    if (index < 0) return unknown_key(op, word, error);
    if (found->value[index] != NULL) return assay_fail(error, ASSAY_ERR_INPUT, "%s: given twice, allowed once", word);
    found->value[index] = equals + 1;
  }
  return ASSAY_OK;
}

/* Returns the number of values that an item stands for: 1 for "V", N for "V*N"; 0 if N is not a number from 1 on. Cuts
 * the asterisk off. */
static int32_t run_of(char *item) {
  char *star = strchr(item, '*'), *end = NULL;
  if (star == NULL) return 1;
  const bool digit = star[1] >= '1' && star[1] <= '9';
  const long count = digit ? strtol(star + 1, &end, 10) : 0;
  *star = '\0';
  return digit && *end == '\0' && count <= CASE_MAX_BATCH ? (int32_t)count : 0;
}

/* Cuts the next item off a list. Returns false after the last. */
static bool next_item(const char **text, char *item, size_t size, int32_t *run) {
  if (*text == NULL) return false;
  const size_t n = strcspn(*text, ",");
  (void)snprintf(item, size, "%.*s", (int)(n < size ? n : size - 1), *text);
  *run = run_of(item);
  *text = (*text)[n] == ',' ? *text + n + 1 : NULL;
  return true;
}

static int64_t count_items(const char *text) {
  char item[48];
  int64_t count = 0;
  for (int32_t run = 0; next_item(&text, item, sizeof item, &run);)
    count += run > 0 ? run : 1;
  return count;
}

/* Reads a list of values into `first`; with `second` a list of shares into both. The case owns the lists. */
static assay_status parse_list(const case_key *key, const char *text, int32_t expected, int32_t **first,
                               int32_t **second, assay_error *error) {
  const int64_t count = count_items(text);
  char allowed[128], item[48];
  key_allowed(key, false, allowed, sizeof allowed);
  if (count > CASE_MAX_BATCH || (expected >= 0 && count != expected))
    return assay_fail(error, ASSAY_ERR_INPUT, "%s: found %" PRId64 " values, allowed %s%d (one for each request)",
                      key->name, count, expected >= 0 ? "" : "1 to ", expected >= 0 ? expected : CASE_MAX_BATCH);
  *first = calloc((size_t)count, sizeof **first);
  if (second != NULL) *second = calloc((size_t)count, sizeof **second);
  if (*first == NULL || (second != NULL && *second == NULL))
    return assay_fail(error, ASSAY_ERR_MEMORY, "%s: out of memory for %" PRId64 " requests", key->name, count);
  int64_t i = 0;
  for (int32_t run = 0; next_item(&text, item, sizeof item, &run); i += run) {
    if (run == 0)
      return assay_fail(error, ASSAY_ERR_INPUT,
                        "%s: found a bad count behind %.20s*, allowed VALUE*COUNT with a COUNT from 1 to %d", key->name,
                        item, CASE_MAX_BATCH);
    if (second == NULL) {
      double value = 0;
      const assay_status status = key_from_text(key, item, false, &value, error);
      if (status != ASSAY_OK) return status;
      (*first)[i] = (int32_t)value;
    } else if (case_share_from_text(item, &(*first)[i], &(*second)[i], error) != ASSAY_OK) {
      return ASSAY_ERR_INPUT;
    }
    for (int32_t k = 1; k < run; ++k) {
      (*first)[i + k] = (*first)[i];
      if (second != NULL) (*second)[i + k] = (*second)[i];
    }
  }
  return ASSAY_OK;
}

assay_status case_share_from_text(const char *text, int32_t *with, int32_t *tokens, assay_error *error) {
  int n = 0;
  *with = -1;
  *tokens = 0;
  if (strcmp(text, "-") == 0) return ASSAY_OK;
  if (strlen(text) <= 16 && text[0] >= '0' && text[0] <= '9' &&
      sscanf(text, "%5" SCNd32 ":%7" SCNd32 "%n", with, tokens, &n) == 2 && text[n] == '\0' && *tokens > 0)
    return ASSAY_OK;
  return assay_fail(error, ASSAY_ERR_INPUT, "share: found '%.40s', allowed - or EARLIER:TOKENS", text);
}

/* Adds the lists that the descriptor leaves out: T by the mode, and no sharing. */
static assay_status imply_lists(assay_case *one, assay_error *error) {
  const size_t n = (size_t)(one->batch > 0 ? one->batch : 1);
  if (one->new_len == NULL) {
    if (one->mode != MODE_DECODE && one->mode != MODE_PREFILL)
      return assay_fail(error, ASSAY_ERR_INPUT, "new: missing, needed in mode %s", case_axis(one, "mode"));
    one->new_len = malloc(n * sizeof *one->new_len);
    for (int32_t i = 0; one->new_len != NULL && i < one->batch; ++i)
      one->new_len[i] = one->mode == MODE_DECODE ? 1 : one->kv_len[i];
  }
  if (one->share_with == NULL) {
    one->share_with = malloc(n * sizeof *one->share_with);
    one->share_tokens = calloc(n, sizeof *one->share_tokens);
    for (int32_t i = 0; one->share_with != NULL && i < one->batch; ++i)
      one->share_with[i] = -1;
  }
  if (one->new_len == NULL || one->share_with == NULL || one->share_tokens == NULL)
    return assay_fail(error, ASSAY_ERR_MEMORY, "case: out of memory for %d requests", one->batch);
  return ASSAY_OK;
}

static assay_status set_word(assay_case *one, const case_key *key, const char *text, bool relaxed, assay_error *error) {
  assay_status status = ASSAY_OK;
  double value = 0;
  switch (key->kind) {
  case KEY_TEXT:
    status = key_text_check(key, text, error);
    if (status == ASSAY_OK) (void)snprintf((char *)one + key->at, key->size, "%s", text);
    return status;
  case KEY_SEED:
    return key_seed_from_text(key->name, text, &one->seed, error);
  case KEY_LENGTHS:
    if (key->at == offsetof(assay_case, kv_len)) {
      status = parse_list(key, text, -1, &one->kv_len, NULL, error);
      one->batch = (int32_t)count_items(text);
      return status;
    }
    return parse_list(key, text, one->batch, &one->new_len, NULL, error);
  case KEY_SHARE:
    return parse_list(key, text, one->batch, &one->share_with, &one->share_tokens, error);
  case KEY_INTEGER:
  case KEY_REAL:
  case KEY_BOOL:
  case KEY_ENUM:
    break;
  }
  status = key_from_text(key, text, relaxed, &value, error);
  if (status == ASSAY_OK) key_set(one, key, value);
  return status;
}

static assay_status parse_words(const words *found, const assay_op *op, assay_case *one, assay_error *error) {
  const int32_t count = key_count(op);
  bool relaxed = false;
  for (int32_t i = 0; i < count; ++i) {
    const case_key key = key_at(op, i);
    if (found->value[i] == NULL) continue;
    const assay_status status = set_word(one, &key, found->value[i], relaxed, error);
    if (status != ASSAY_OK) return status;
    relaxed = one->section == SECTION_REFUSE; /* `section` precedes all dimensions and parameters */
  }
  if (op->form == ASSAY_PLAIN) {
    const assay_status lists = case_plain_lists(one, error);
    if (lists != ASSAY_OK) return lists;
  }
  if (one->kv_len == NULL)
    return assay_fail(error, ASSAY_ERR_INPUT, "kv_len: missing, needed: one length for each request");
  const int32_t values = key_find(op, "values");
  if (found->value[values] == NULL && one->tier == TIER_EXACT) one->values = ASSAY_LATTICE;
  case_imply_expect(one);
  const assay_status status = imply_lists(one, error);
  return status == ASSAY_OK ? case_check(one, error) : status;
}

assay_status case_parse(const char *text, assay_case *one, assay_error *error) {
  words found = {{NULL}};
  char *copy = NULL, *rest = NULL;
  assay_status status = ASSAY_OK;
  *one = (assay_case){0};
  const size_t length = strlen(text);
  if (length >= CASE_MAX_LINE)
    return assay_fail(error, ASSAY_ERR_INPUT, "descriptor: %zu characters, allowed %d", length, CASE_MAX_LINE - 1);
  copy = malloc(length + 1);
  if (copy == NULL) return assay_fail(error, ASSAY_ERR_MEMORY, "descriptor: out of memory for %zu bytes", length + 1);
  memcpy(copy, text, length + 1);

  const char *name = strtok_r(copy, " \t\r\n", &rest);
  const assay_op *op = name != NULL ? assay_op_find(name) : NULL;
  if (op == NULL) {
    char list[512];
    case_op_list(list, sizeof list);
    status = assay_fail(error, ASSAY_ERR_INPUT, "operator: found '%.60s', allowed %s", name != NULL ? name : "", list);
    goto done;
  }
  case_init(one, op);
  status = split_words(rest, op, &found, error);
  if (status == ASSAY_OK) status = parse_words(&found, op, one, error);
done:
  if (status != ASSAY_OK) {
    case_free(one);
    *one = (assay_case){0};
  }
  free(copy);
  return status;
}
