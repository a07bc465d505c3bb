/* generate.c: assay generate: prompts through a forward pass, ids on standard output. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"
#include "conformance/models/models.h"
#include "core/files/bytes.h"

enum { MOST_PROMPTS = 1024, MOST_BYTES = 1 << 26 };

typedef struct generation {
  run_request request[MOST_PROMPTS];
  int32_t *prompt[MOST_PROMPTS];
  int64_t count;
  sample_options sampler;
} generation;

/* Reads "1,2, 3"; the caller frees `ids`. */
static assay_status read_ids(const char *name, const char *text, int32_t **ids, int64_t *count, assay_error *error) {
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

static assay_status add_prompt(generation *g, const char *name, const char *text, int64_t steps, assay_error *error) {
  run_request *one = &g->request[g->count];
  if (g->count == MOST_PROMPTS)
    return assay_fail(error, ASSAY_ERR_INPUT, "%s: found more than %d prompts, allowed up to %d", name, MOST_PROMPTS,
                      MOST_PROMPTS);
  const assay_status status = read_ids(name, text, &g->prompt[g->count], &one->prompt_count, error);
  if (status != ASSAY_OK) return status;
  one->prompt = g->prompt[g->count++];
  one->steps = steps;
  one->ids = calloc((size_t)steps, sizeof *one->ids);
  return one->ids != NULL ? ASSAY_OK : assay_fail(error, ASSAY_ERR_MEMORY, "--steps: out of memory");
}

/* Adds one prompt per line; empty lines are none. */
static assay_status add_file(generation *g, const char *path, int64_t steps, assay_error *error) {
  unsigned char *bytes = NULL;
  int64_t size = 0;
  assay_status status = file_bytes(path, MOST_BYTES, &bytes, &size, error);
  char *line = (char *)bytes;
  while (status == ASSAY_OK && *line != '\0') {
    char *end = line + strcspn(line, "\n"), *next = end + (*end != '\0');
    *end = '\0';
    if (line[strspn(line, " \t\r")] != '\0') status = add_prompt(g, path, line, steps, error);
    line = next;
  }
  free(bytes);
  if (status == ASSAY_OK && g->count == 0)
    status =
        assay_fail(error, ASSAY_ERR_INPUT, "--prompt-ids-file: found no ids in %s, allowed: a prompt a line", path);
  return status;
}

static assay_status pick(void *context, int64_t request, int64_t step, const double *logits, int32_t *id,
                         assay_error *error) {
  const generation *g = ((const void **)context)[0];
  const assay_model_config *config = ((const void **)context)[1];
  const run_request *r = &g->request[request];
  return sample_token(&g->sampler, logits, config->vocab, request, step, r->prompt, r->prompt_count, r->ids, id, error);
}

static assay_status read_words(const cli_options *w, generation *g, assay_model_mode *mode, assay_error *error) {
  assay_status status = ASSAY_OK;
  if (w->words.count > 0)
    status = assay_fail(error, ASSAY_ERR_INPUT, "generate: found '%s', allowed: options alone", w->words.item[0]);
  else if (w->model == NULL)
    status = assay_fail(error, ASSAY_ERR_INPUT, "--model: not given, needed");
  else if (w->steps == 0)
    status = assay_fail(error, ASSAY_ERR_INPUT, "--steps: not given, needed");
  else if ((w->ids == NULL) == (w->ids_file == NULL))
    status = assay_fail(error, ASSAY_ERR_INPUT, "--ids, --prompt-ids-file: found %s, allowed one of the two",
                        w->ids == NULL ? "none" : "both");
  const bool ref = strcmp(w->device, "ref") == 0;
  if (status == ASSAY_OK && ref &&
      (w->eager || w->paths || w->short_tail > 0 || w->invariant || w->variants.count > 0 || w->forms.count > 0))
    status = assay_fail(error, ASSAY_ERR_INPUT, "%s: not with --device ref, allowed with simt, cuda",
                        w->eager                ? "--eager"
                        : w->paths              ? "--paths"
                        : w->short_tail         ? "--short-tail"
                        : w->invariant          ? "--invariant"
                        : w->variants.count > 0 ? "--variant"
                                                : "--form");
  *mode = w->mode != NULL && strcmp(w->mode, "mirror") == 0 ? ASSAY_MODEL_MIRROR : ASSAY_MODEL_EXACT;
  if (status == ASSAY_OK && w->sampler != NULL) status = sample_parse(w->sampler, &g->sampler, error);
  if (status == ASSAY_OK)
    status =
        w->ids != NULL ? add_prompt(g, "--ids", w->ids, w->steps, error) : add_file(g, w->ids_file, w->steps, error);
  return status;
}

/* Draws tokens on the host, from logits, step by step: penalties need the tokens before. */
static assay_status run_on_host(const cli_options *w, const assay_model_backend *backend, const model_file *model,
                                const run_plan *plan, generation *g, assay_error *error) {
  if (w->paths || w->eager)
    return assay_fail(error, ASSAY_ERR_INPUT,
                      "--sampler: found repetition, frequency or presence, which are drawn on the host: not with %s",
                      w->paths ? "--paths" : "--eager");
  return run_requests(backend, &model->config, &model->weights, plan, g->request, g->count, error);
}

static assay_status run_model(const cli_options *w, const assay_model_backend *backend, const model_file *model,
                              run_plan *plan, generation *g, assay_error *error) {
  const assay_model_options options = {.form = w->forms.item,
                                       .forms = w->forms.count,
                                       .variant = w->variants.item,
                                       .variants = w->variants.count,
                                       .short_tail = (int32_t)w->short_tail,
                                       .invariant = w->invariant};
  plan->chunk = w->chunk;
  plan->pick = w->sampler != NULL ? pick : NULL;
  plan->model = &options;
  if (strcmp(w->device, "ref") == 0)
    return run_requests(backend, &model->config, &model->weights, plan, g->request, g->count, error);
  if (w->sampler != NULL && sample_has_penalties(&g->sampler)) return run_on_host(w, backend, model, plan, g, error);
  const engine_plan on = {.device = w->device,
                          .eager = w->eager,
                          .chunk = w->chunk,
                          .sampler = w->sampler != NULL ? &g->sampler : NULL,
                          .model = &options,
                          .paths = w->paths ? stderr : NULL};
  return run_engine(&model->config, &model->weights, &on, g->request, g->count, error);
}

int cli_generate_command(int argc, char **argv) {
  assay_error error = {""};
  cli_options given;
  static generation g;
  model_file model = {.weights = {0}};
  assay_model_mode mode = ASSAY_MODEL_EXACT;
  const void *context[2] = {&g, &model.config};
  run_plan plan = {.context = (void *)context};
  const assay_model_backend *backend = NULL;
  assay_status status = cli_parse(argc, argv, "generate", &given, &error);
  if (!given.device_given) given.device = "ref";
  if (status == ASSAY_OK) status = read_words(&given, &g, &mode, &error);
  if (status == ASSAY_OK && (backend = model_backend(given.device, &error)) == NULL) status = ASSAY_ERR_INPUT;
  if (status == ASSAY_OK) status = model_open(given.model, &model, &error);
  if (status == ASSAY_OK && given.weights != NULL) status = model_open_narrow(&model, &error);
  if (status == ASSAY_OK) {
    plan.mode = mode;
    status = run_model(&given, backend, &model, &plan, &g, &error);
  }
  for (int64_t i = 0; i < g.count; ++i) {
    for (int64_t n = 0; n < g.request[i].steps && status == ASSAY_OK; ++n)
      (void)printf("%d%c", g.request[i].ids[n], n + 1 < g.request[i].steps ? ',' : '\n');
    free(g.request[i].ids);
    free(g.prompt[i]);
  }
  model_file_free(&model);
  if (status != ASSAY_OK) return cli_leave(status, &error);
  return cli_written(EXIT_GOOD);
}
