/* model_words.c: options by a table; lists of ids. */
#include "model_words.h"

#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

/* LIST: at names the first item, count how many there are. */
typedef enum word_kind { TEXT, NUMBER, FLAG, LIST } word_kind;

typedef struct word_row {
  const char *name;
  word_kind kind;
  size_t at, count;
} word_row;

#define AT(field) offsetof(model_words, field)
static const word_row rows[] = {
    {"--device", TEXT, AT(device), 0},
    {"--model", TEXT, AT(model), 0},
    {"--ids", TEXT, AT(ids), 0},
    {"--prompt-ids-file", TEXT, AT(ids_file), 0},
    {"--sampler", TEXT, AT(sampler), 0},
    {"--mode", TEXT, AT(mode), 0},
    {"--steps", NUMBER, AT(steps), 0},
    {"--chunk", NUMBER, AT(chunk), 0},
    {"--short-tail", NUMBER, AT(short_tail), 0},
    {"--eager", FLAG, AT(eager), 0},
    {"--paths", FLAG, AT(paths), 0},
    {"--variant", LIST, AT(variant), AT(variants)},
    {"--form", LIST, AT(form), AT(forms)},
};

static bool permitted(const char *allowed, const char *name) {
  const size_t length = strlen(name);
  for (const char *at = strstr(allowed, name); at != NULL; at = strstr(at + 1, name))
    if ((at == allowed || at[-1] == ' ') && (at[length] == ' ' || at[length] == '\0')) return true;
  return false;
}

static assay_status take_number(const char *name, const char *text, int64_t *to, assay_error *error) {
  char *end = NULL;
  errno = 0;
  *to = strtoll(text, &end, 10);
  if (end != text && *end == '\0' && errno == 0 && *to >= 1 && *to <= INT32_MAX) return ASSAY_OK;
  return assay_fail(error, ASSAY_ERR_INPUT, "%s: found '%s', allowed: an integer from 1 to %d", name, text, INT32_MAX);
}

assay_status model_words_read(int argc, char **argv, const char *allowed, model_words *given, assay_error *error) {
  memset(given, 0, sizeof *given);
  given->device = "ref";
  for (int i = 0; i < argc; ++i) {
    const word_row *row = NULL;
    char name[32];
    const char *equals = strchr(argv[i], '=');
    if (argv[i][0] != '-') {
      if (given->file_count == MODEL_WORDS_FILES)
        return assay_fail(error, ASSAY_ERR_INPUT, "arguments: more than %d", MODEL_WORDS_FILES);
      given->file[given->file_count++] = argv[i];
      continue;
    }
    (void)snprintf(name, sizeof name, "%.*s", equals != NULL ? (int)(equals - argv[i]) : (int)sizeof name - 1, argv[i]);
    for (size_t r = 0; r < sizeof rows / sizeof *rows; ++r)
      if (strcmp(rows[r].name, name) == 0 && permitted(allowed, name)) row = &rows[r];
    if (row == NULL)
      return assay_fail(error, ASSAY_ERR_INPUT, "option '%s' is unknown here, allowed: %s", argv[i],
                        allowed[0] != '\0' ? allowed : "none");
    if (row->kind == FLAG) {
      if (equals != NULL)
        return assay_fail(error, ASSAY_ERR_INPUT, "%s: takes no value, found '%.40s'", row->name, equals + 1);
      *(bool *)((char *)given + row->at) = true;
      continue;
    }
    const char *value = equals != NULL ? equals + 1 : i + 1 < argc ? argv[++i] : NULL;
    if (value == NULL) return assay_fail(error, ASSAY_ERR_INPUT, "%s: needs a value", row->name);
    void *to = (char *)given + row->at;
    if (row->kind == LIST) {
      int32_t *count = (int32_t *)(void *)((char *)given + row->count);
      if (*count == MODEL_WORDS_LIST)
        return assay_fail(error, ASSAY_ERR_INPUT, "%s: found more than %d", row->name, MODEL_WORDS_LIST);
      ((const char **)to)[(*count)++] = value;
    } else if (row->kind == TEXT)
      *(const char **)to = value;
    else if (take_number(row->name, value, to, error) != ASSAY_OK)
      return ASSAY_ERR_INPUT;
  }
  return ASSAY_OK;
}

assay_status model_words_ids(const char *name, const char *text, int32_t **ids, int64_t *count, assay_error *error) {
  size_t room = strlen(text) / 2 + 2;
  *count = 0;
  *ids = malloc(room * sizeof **ids);
  if (*ids == NULL) return assay_fail(error, ASSAY_ERR_MEMORY, "%s: out of memory", name);
  for (const char *at = text + strspn(text, " \t\r\n"); *at != '\0';) {
    char *end = NULL;
    errno = 0;
    const long value = strtol(at, &end, 10);
    const char *next = end + strspn(end, " \t\r\n");
    const bool apart = *next == '\0' || *next == ',' || next > end;
    if (end == at || errno != 0 || value < 0 || value > INT32_MAX || !apart) {
      free(*ids);
      *ids = NULL;
      return assay_fail(error, ASSAY_ERR_INPUT, "%s: found '%.30s', allowed: ids from 0 on with commas or blanks", name,
                        at);
    }
    (*ids)[(*count)++] = (int32_t)value;
    at = next + (*next == ',');
    at += strspn(at, " \t\r\n");
  }
  if (*count > 0) return ASSAY_OK;
  free(*ids);
  *ids = NULL;
  return assay_fail(error, ASSAY_ERR_INPUT, "%s: found no ids, allowed: 1 and more", name);
}
