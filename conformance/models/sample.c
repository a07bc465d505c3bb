/* sample.c: one row of the sampler operator. */
#include "sample.h"

#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "conformance/trial/trial.h"

typedef struct option_row {
  const char *name;
  double min, max;
  bool open;  /* min itself is not allowed */
  bool whole; /* an int64_t */
  size_t at;
} option_row;

#define AT(field) offsetof(sample_options, field)
static const option_row rows[] = {
    {"repetition", 0, 1e6, true, false, AT(repetition)},
    {"frequency", -1e6, 1e6, false, false, AT(frequency)},
    {"presence", -1e6, 1e6, false, false, AT(presence)},
    {"temperature", 0, 1e6, false, false, AT(temperature)},
    {"top_p", 0, 1, true, false, AT(top_p)},
    {"min_p", 0, 1, false, false, AT(min_p)},
    {"top_k", 0, INT32_MAX, false, true, AT(top_k)},
    {"seed", 0, 9007199254740992.0, false, true, AT(seed)},
};

static assay_status take(const option_row *row, const char *text, sample_options *options, assay_error *error) {
  char *end = NULL;
  errno = 0;
  const double value = strtod(text, &end);
  const bool number = end != text && *end == '\0' && errno == 0 && value >= row->min && value <= row->max;
  const bool fits = number && !(row->open && value == row->min) && (!row->whole || value == (double)(int64_t)value);
  if (!fits)
    return assay_fail(error, ASSAY_ERR_INPUT, "--sampler: %s: found '%s', allowed %s %s %.10g, up to %.10g", row->name,
                      text, row->whole ? "a whole number" : "a number", row->open ? "above" : "from", row->min,
                      row->max);
  if (row->whole)
    *(int64_t *)(void *)((char *)options + row->at) = (int64_t)value;
  else
    *(double *)(void *)((char *)options + row->at) = value;
  return ASSAY_OK;
}

assay_status sample_parse(const char *text, sample_options *options, assay_error *error) {
  static const char names[] = "temperature, top_k, top_p, min_p, repetition, frequency, presence, seed";
  *options = (sample_options){.repetition = 1, .temperature = 1, .top_p = 1};
  while (*text != '\0') {
    char word[80], *equals;
    const size_t length = strcspn(text, ",");
    (void)snprintf(word, sizeof word, "%.*s", length < sizeof word ? (int)length : (int)sizeof word - 1, text);
    text += length + (text[length] == ',');
    equals = strchr(word, '=');
    if (equals == NULL)
      return assay_fail(error, ASSAY_ERR_INPUT, "--sampler: found '%s', allowed: name=value with %s", word, names);
    *equals = '\0';
    const option_row *row = NULL;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; ++i)
      if (strcmp(rows[i].name, word) == 0) row = &rows[i];
    if (row == NULL) return assay_fail(error, ASSAY_ERR_INPUT, "--sampler: found '%s', allowed: %s", word, names);
    const assay_status status = take(row, equals + 1, options, error);
    if (status != ASSAY_OK) return status;
  }
  return ASSAY_OK;
}

assay_status sample_token(const sample_options *o, const double *logits, int64_t V, int64_t request, int64_t step,
                          const int32_t *prompt, int64_t prompt_count, const int32_t *output, int32_t *token,
                          assay_error *error) {
  const int64_t single = 1, row[2] = {1, V}, before[2] = {1, prompt_count}, after[2] = {1, step};
  const int64_t seed = (int64_t)o->seed;
  const int32_t counter = (int32_t)step;
  const struct {
    const char *name;
    double value;
  } real[] = {{"repetition", o->repetition},   {"frequency", o->frequency}, {"presence", o->presence},
              {"temperature", o->temperature}, {"top_p", o->top_p},         {"min_p", o->min_p}};
  const double top_k = (double)o->top_k;
  foreign_call f = {0};
  assay_status status = foreign_begin(&f, "sampler", error);
  if (status == ASSAY_OK) status = foreign_values(&f, "logits", ASSAY_F32, 2, row, logits, error);
  if (status == ASSAY_OK) status = foreign_tensor(&f, "seed", ASSAY_I64, 1, &single, &seed, error);
  if (status == ASSAY_OK) status = foreign_tensor(&f, "step", ASSAY_I32, 1, &single, &counter, error);
  if (status == ASSAY_OK) status = foreign_tensor(&f, "request", ASSAY_I64, 1, &single, &request, error);
  for (size_t i = 0; i < sizeof real / sizeof *real && status == ASSAY_OK; ++i)
    status = foreign_values(&f, real[i].name, ASSAY_F32, 1, &single, &real[i].value, error);
  if (status == ASSAY_OK) status = foreign_values(&f, "top_k", ASSAY_I32, 1, &single, &top_k, error);
  if (status == ASSAY_OK) status = foreign_tensor(&f, "prompt", ASSAY_I32, 2, before, prompt, error);
  if (status == ASSAY_OK && step > 0) status = foreign_tensor(&f, "output", ASSAY_I32, 2, after, output, error);
  if (status == ASSAY_OK) status = foreign_tensor(&f, "token", ASSAY_I32, 1, &single, NULL, error);
  if (status == ASSAY_OK) status = foreign_tensor(&f, "status", ASSAY_I32, 1, &single, NULL, error);
  if (status == ASSAY_OK) status = foreign_reference(&f, error);
  if (status == ASSAY_OK) {
    *token = (int32_t)f.expected[foreign_output(&f, "token")].value[0];
    if (*token < 0)
      status = assay_fail(error, ASSAY_ERR_INPUT, "sampler: request %lld, step %lld: status %d, no token",
                          (long long)request, (long long)step, (int)f.expected[foreign_output(&f, "status")].value[0]);
  }
  foreign_free(&f);
  return status;
}
