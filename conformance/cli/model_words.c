/* model_words.c: options by a table; lists of ids. */
#include "model_words.h"

#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

typedef struct word_row {
  const char *name;
  bool number;
  size_t at;
} word_row;

static const word_row rows[] = {
    {"--device", false, offsetof(model_words, device)},   {"--model", false, offsetof(model_words, model)},
    {"--ids", false, offsetof(model_words, ids)},         {"--prompt-ids-file", false, offsetof(model_words, ids_file)},
    {"--sampler", false, offsetof(model_words, sampler)}, {"--mode", false, offsetof(model_words, mode)},
    {"--steps", true, offsetof(model_words, steps)},      {"--chunk", true, offsetof(model_words, chunk)},
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
    const char *value = equals != NULL ? equals + 1 : i + 1 < argc ? argv[++i] : NULL;
    if (value == NULL) return assay_fail(error, ASSAY_ERR_INPUT, "%s: needs a value", row->name);
    void *to = (char *)given + row->at;
    if (!row->number)
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
