/* sums_words.c: reads and writes the fields of a sum contract. */
#include "sums_words.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const joins[ASSAY_JOINS] = {"ascending", "descending", "pairwise"};
static const char *const scales[ASSAY_SCALES] = {"none", "fma_product", "product_then_add", "after",
                                                 "product_then_fma"};
static const char *const afters[ASSAY_AFTERS] = {"none", "alpha", "old",    "old_add",
                                                 "bias", "round", "factor", "rectified"};

enum {
  FIELD_UNIT,
  FIELD_PARTS,
  FIELD_PAD,
  FIELD_TILE,
  FIELD_JOIN,
  FIELD_PROMOTE,
  FIELD_SCALE,
  FIELD_AFTER,
  FIELD_FACTOR_LANES,
  FIELDS
};
static const char *const fields[FIELDS] = {"unit",    "parts", "pad",   "tile",        "join",
                                           "promote", "scale", "after", "factor_lanes"};

static const char *const *units(void) {
  static const char *name[ASSAY_SUM_UNITS];
  for (int i = 0; i < ASSAY_SUM_UNITS; ++i)
    name[i] = assay_sum_unit_name((assay_sum_unit)i);
  return name;
}

static assay_status unknown(const char *field, const char *found, const char *const *words, int first, int count,
                            assay_error *error) {
  char list[320] = "";
  for (int i = first; i < count; ++i) {
    const size_t used = strlen(list);
    (void)snprintf(list + used, sizeof list - used, "%s%s", used > 0 ? ", " : "", words[i]);
  }
  return assay_fail(error, ASSAY_ERR_INPUT, "sums: %s: found '%.40s', allowed: %s", field, found, list);
}

static int index_of(const char *word, size_t length, const char *const *words, int first, int count) {
  for (int i = first; i < count; ++i)
    if (strlen(words[i]) == length && strncmp(words[i], word, length) == 0) return i;
  return -1;
}

static assay_status set_after(assay_sums *sums, const char *value, assay_error *error) {
  int count = 0;
  memset(sums->after, 0, sizeof sums->after);
  for (const char *at = value + strspn(value, ", "); *at != '\0'; at += strspn(at, ", ")) {
    const size_t length = strcspn(at, ", ");
    const int step = index_of(at, length, afters, 1, ASSAY_AFTERS);
    char word[48];
    (void)snprintf(word, sizeof word, "%.*s", (int)(length < 40 ? length : 40), at);
    if (step < 0) return unknown("after", word, afters, 1, ASSAY_AFTERS, error);
    if (count == ASSAY_SUM_MOST_AFTER)
      return assay_fail(error, ASSAY_ERR_INPUT, "sums: after: found more than %d steps, allowed %d",
                        ASSAY_SUM_MOST_AFTER, ASSAY_SUM_MOST_AFTER);
    sums->after[count++] = (assay_sum_after)step;
    at += length;
  }
  return ASSAY_OK;
}

static assay_status set_count(int64_t *to, const char *field, const char *value, assay_error *error) {
  char *end = NULL;
  const long long count = strtoll(value, &end, 10);
  if (end == value || *end != '\0' || count < 0 || count > 1LL << 32)
    return assay_fail(error, ASSAY_ERR_INPUT, "sums: %s: found '%.40s', allowed whole numbers from 0 to 2^32", field,
                      value);
  *to = count;
  return ASSAY_OK;
}

assay_status sums_set(assay_sums *sums, const char *field, const char *value, assay_error *error) {
  const int which = index_of(field, strlen(field), fields, 0, FIELDS);
  const char *given = value != NULL ? value : "";
  int word = -1;
  switch (which) {
  case FIELD_UNIT:
    word = index_of(given, strlen(given), units(), 1, ASSAY_SUM_UNITS);
    if (word < 0) return unknown(field, given, units(), 1, ASSAY_SUM_UNITS, error);
    sums->unit = (assay_sum_unit)word;
    return ASSAY_OK;
  case FIELD_JOIN:
    word = index_of(given, strlen(given), joins, 0, ASSAY_JOINS);
    if (word < 0) return unknown(field, given, joins, 0, ASSAY_JOINS, error);
    sums->join = (assay_sum_join)word;
    return ASSAY_OK;
  case FIELD_SCALE:
    word = index_of(given, strlen(given), scales, 0, ASSAY_SCALES);
    if (word < 0) return unknown(field, given, scales, 0, ASSAY_SCALES, error);
    sums->scale = (assay_sum_scale)word;
    return ASSAY_OK;
  case FIELD_PARTS:
    return set_count(&sums->parts, field, given, error);
  case FIELD_PAD:
    return set_count(&sums->pad, field, given, error);
  case FIELD_TILE:
    return set_count(&sums->tile, field, given, error);
  case FIELD_PROMOTE:
    return set_count(&sums->promote, field, given, error);
  case FIELD_FACTOR_LANES:
    return set_count(&sums->factor_lanes, field, given, error);
  case FIELD_AFTER:
    return set_after(sums, given, error);
  default:
    return unknown("field", field, fields, 0, FIELDS, error);
  }
}

bool sums_field(const assay_sums *sums, int32_t index, const char **name, char *value, size_t size) {
  const int64_t count[FIELDS] = {[FIELD_PARTS] = sums->parts,
                                 [FIELD_PAD] = sums->pad,
                                 [FIELD_TILE] = sums->tile,
                                 [FIELD_PROMOTE] = sums->promote,
                                 [FIELD_FACTOR_LANES] = sums->factor_lanes};
  if (index < 0 || index >= FIELDS) return false;
  *name = fields[index];
  value[0] = '\0';
  if (index == FIELD_UNIT)
    (void)snprintf(value, size, "%s", assay_sum_unit_name(sums->unit));
  else if (index == FIELD_JOIN)
    (void)snprintf(value, size, "%s", joins[sums->join]);
  else if (index == FIELD_SCALE)
    (void)snprintf(value, size, "%s", scales[sums->scale]);
  else if (index != FIELD_AFTER)
    (void)snprintf(value, size, "%lld", (long long)count[index]);
  for (int i = 0; index == FIELD_AFTER && i < ASSAY_SUM_MOST_AFTER && sums->after[i] != ASSAY_AFTER_NONE; ++i) {
    const size_t used = strlen(value);
    (void)snprintf(value + used, size - used, "%s%s", used > 0 ? ", " : "", afters[sums->after[i]]);
  }
  return true;
}

bool sums_is_plain(const assay_sums *sums) {
  return sums->order == NULL && sums->ends == NULL;
}
