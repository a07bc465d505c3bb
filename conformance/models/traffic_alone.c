/* traffic_alone.c: the texts of a day again, each alone in an engine, id after id. Invariant steps give the rows that
 * were kept the same bits. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "traffic.h"

/* Names the first logit of the row with other bits. Returns false if there is one. */
static bool same_bits(const float *kept, const double *alone, int64_t V, int64_t text, int64_t place, char *differs,
                      size_t size) {
  for (int64_t v = 0; v < V; ++v) {
    const float value = (float)alone[v];
    if (memcmp(&value, kept + v, sizeof value) == 0) continue;
    (void)snprintf(differs, size, "text %lld, place %lld, id %lld: %a in company, %a alone", (long long)text,
                   (long long)place, (long long)v, (double)kept[v], (double)value);
    return false;
  }
  return true;
}

/* Tells whether a row was kept that counts: any, or with `prompt` above 0 one whose prompt had so many ids. */
static bool counts(const traffic_text *x, int64_t place, int64_t prompt) {
  return x->row[place] != NULL && (prompt == 0 || x->prompt_of[place] == prompt);
}

/* Finds the first and the last place of a text whose row counts. -1: none does. */
static void kept_places(const traffic_text *x, int64_t prompt, int64_t *first, int64_t *last) {
  *first = *last = -1;
  for (int64_t p = 0; p < TRAFFIC_LENGTH; ++p) {
    if (!counts(x, p, prompt)) continue;
    if (*first < 0) *first = p;
    *last = p;
  }
}

/* Runs a text up to its last row that counts, and compares those rows. prompt: how many ids the prompt has; 0: up to
 * the first such row. */
static assay_status compare_text(assay_engine *e, const traffic_text *x, int64_t prompt, int64_t number, int64_t V,
                                 double *logits, char *differs, size_t size, int64_t *rows, assay_error *error) {
  int64_t first, last;
  kept_places(x, prompt, &first, &last);
  if (first < 0) return ASSAY_OK;
  if (prompt > 0) first = prompt - 1;
  assay_engine_part part = {.tokens = first + 1};
  assay_status status = assay_engine_request(e, x->ids, first + 1, NULL, &part.request, NULL, error);
  for (int64_t p = first; p <= last && status == ASSAY_OK && differs[0] == '\0'; ++p) {
    status = assay_engine_step(e, &part, 1, error);
    if (status == ASSAY_OK && counts(x, p, prompt)) {
      status = assay_engine_logits(e, 1, logits, error);
      if (status == ASSAY_OK) *rows += same_bits(x->row[p], logits, V, number, p, differs, size);
    }
    part.tokens = 1;
    part.forced = p < last ? &x->ids[p + 1] : NULL;
  }
  return status == ASSAY_OK ? assay_engine_release(e, part.request, error) : status;
}

assay_status traffic_alone(const traffic_plan *plan, const traffic *t, char *differs, size_t size, int64_t *rows,
                           assay_error *error) {
  const int64_t block = plan->config->block_size, V = plan->config->vocab;
  int64_t longest = 1, first, last;
  for (int64_t i = 0; i < t->texts; ++i) {
    kept_places(&t->text[i], 0, &first, &last);
    if (last + 1 > longest) longest = last + 1;
  }
  const assay_engine_options options = {.device = plan->device,
                                        .num_blocks = (longest + block - 1) / block,
                                        .max_batch = 1,
                                        .max_tokens = longest,
                                        .max_length = longest,
                                        .no_prefix = true,
                                        .model = plan->model};
  assay_engine *e = NULL;
  double *logits = malloc((size_t)V * sizeof *logits);
  assay_status status = logits != NULL ? assay_engine_open(plan->config, plan->weights, &options, &e, error)
                                       : assay_fail(error, ASSAY_ERR_MEMORY, "traffic: out of memory");
  differs[0] = '\0';
  *rows = 0;
  const int64_t lengths = plan->by_role ? TRAFFIC_LENGTH : 0;
  for (int64_t i = 0; i < t->texts && status == ASSAY_OK && differs[0] == '\0'; ++i)
    for (int64_t prompt = lengths > 0; prompt <= lengths && status == ASSAY_OK && differs[0] == '\0'; ++prompt)
      status = compare_text(e, &t->text[i], prompt, i, V, logits, differs, size, rows, error);
  assay_engine_close(e);
  free(logits);
  return status;
}
