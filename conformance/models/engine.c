/* engine.c: requests of an engine, from their prompts to their last tokens; nothing waits in between. */
#include "engine.h"

#include <stdlib.h>
#include <string.h>

typedef long long ll; /* for messages */

bool sample_has_penalties(const sample_options *s) {
  return s->repetition != 1 || s->frequency != 0 || s->presence != 0;
}

void engine_print_paths(const assay_engine *engine, FILE *to) {
  assay_model_path path;
  for (int32_t i = 0; assay_engine_path(engine, i, &path); ++i)
    if (path.calls > 0)
      (void)fprintf(to, "path %-24s %-24s %10lld  %s\n", path.op, path.variant, (ll)path.calls,
                    path.path[0] != '\0' ? path.path : "-");
}

static int64_t smaller(int64_t a, int64_t b) {
  return a < b ? a : b;
}

/* Puts the remaining tokens of every request together as one step. Returns 0 where nothing remains. */
static int64_t next_parts(const assay_engine *e, const engine_plan *plan, const run_request *request,
                          const int32_t *number, int64_t *done, int64_t count, assay_engine_part *part) {
  int64_t parts = 0;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t left = assay_engine_left(e, number[i]);
    const int64_t tokens = left == 0 ? 1 : plan->chunk > 0 ? smaller(plan->chunk, left) : left;
    if (done[i] == request[i].steps) continue;
    part[parts++] = (assay_engine_part){.request = number[i], .tokens = tokens};
    done[i] += tokens >= left;
  }
  return parts;
}

static assay_status open_requests(assay_engine *e, const engine_plan *plan, const run_request *request, int32_t *number,
                                  int64_t count, assay_error *error) {
  assay_status status = ASSAY_OK;
  for (int64_t i = 0; i < count && status == ASSAY_OK; ++i) {
    const sample_options *s = plan->sampler;
    assay_engine_sampling sampling = {.temperature = 0};
    if (s != NULL)
      sampling = (assay_engine_sampling){s->temperature, s->top_p, s->min_p, s->top_k, s->seed, (uint64_t)i};
    status = assay_engine_request(e, request[i].prompt, request[i].prompt_count, s != NULL ? &sampling : NULL,
                                  &number[i], NULL, error);
  }
  return status;
}

static assay_status run_all(assay_engine *e, const engine_plan *plan, run_request *request, int32_t *number,
                            int64_t *done, assay_engine_part *part, int64_t count, assay_error *error) {
  assay_status status = open_requests(e, plan, request, number, count, error);
  while (status == ASSAY_OK) {
    const int64_t parts = next_parts(e, plan, request, number, done, count, part);
    if (parts == 0) break;
    status = assay_engine_step(e, part, parts, error);
  }
  if (status == ASSAY_OK) status = assay_engine_wait(e, error);
  for (int64_t i = 0; i < count && status == ASSAY_OK; ++i) {
    const int32_t *ids = NULL;
    int64_t have = 0;
    status = assay_engine_tokens(e, number[i], &ids, &have, error);
    if (status == ASSAY_OK && have != request[i].steps)
      status = assay_fail(error, ASSAY_ERR_INTERNAL, "generate: request %lld: %lld of %lld tokens came", (ll)i,
                          (ll)have, (ll)request[i].steps);
    if (status == ASSAY_OK) memcpy(request[i].ids, ids, (size_t)have * sizeof *ids);
  }
  if (status == ASSAY_OK && plan->paths != NULL) engine_print_paths(e, plan->paths);
  return status == ASSAY_OK ? assay_engine_check_forced(e, error) : status;
}

assay_status run_engine(const assay_model_config *config, const assay_model_weights *weights, const engine_plan *plan,
                        run_request *request, int64_t count, assay_error *error) {
  const int64_t size = config->block_size;
  int64_t blocks = 0, tokens = 0, longest = 1;
  assay_status status = run_check(config, request, count, error);
  for (int64_t i = 0; i < count; ++i) {
    const int64_t first = request[i].prompt_count, positions = first + request[i].steps - 1;
    tokens += plan->chunk > 0 ? smaller(plan->chunk, first) : first;
    blocks += (positions + size - 1) / size;
    if (positions > longest) longest = positions;
  }
  const assay_engine_options options = {.device = plan->device,
                                        .num_blocks = blocks,
                                        .max_batch = count,
                                        .max_tokens = tokens,
                                        .max_length = longest,
                                        .eager = plan->eager,
                                        .model = plan->model};
  int32_t *number = calloc((size_t)count + 1, sizeof *number);
  int64_t *done = calloc((size_t)count + 1, sizeof *done);
  assay_engine_part *part = calloc((size_t)count + 1, sizeof *part);
  assay_engine *e = NULL;
  if (number == NULL || done == NULL || part == NULL)
    status = assay_fail(error, ASSAY_ERR_MEMORY, "generate: out of memory");
  if (status == ASSAY_OK) status = assay_engine_open(config, weights, &options, &e, error);
  if (status == ASSAY_OK) status = run_all(e, plan, request, number, done, part, count, error);
  assay_engine_close(e);
  free(number);
  free(done);
  free(part);
  return status;
}
