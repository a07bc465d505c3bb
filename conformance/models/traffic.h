/* traffic.h: one engine under drawn traffic. Requests come with prefixes that are present, run in chunks and beside
 * each other, pause, fork, leave and return. It keeps for the reference what the engine
 * gave for each text. */
#ifndef ASSAY_CONFORMANCE_MODELS_TRAFFIC_H
#define ASSAY_CONFORMANCE_MODELS_TRAFFIC_H

#include "assay/engine.h"

enum { TRAFFIC_TEXTS = 20, TRAFFIC_LENGTH = 256, TRAFFIC_BATCH = 6 };

/* One text: a prompt, then ids that were given or that the engine chose. Place p is that of the id ids[p]. */
typedef struct traffic_text {
  int32_t ids[TRAFFIC_LENGTH];
  int64_t prompt, known, own;     /* ids of the drawn prompt, all ids, ids before a fork's own */
  int32_t chosen[TRAFFIC_LENGTH]; /* by the row of place p; -1: the row was not asked for */
  float *row[TRAFFIC_LENGTH];     /* the logits of place p, [V]; NULL: they were not fetched */
  bool given;                     /* the ids after the prompt were given, whatever was chosen */
  assay_engine_sampling sampling;
  int64_t opened[TRAFFIC_LENGTH];    /* how many ids the prompt had whose step chose `chosen` of the place */
  int64_t prompt_of[TRAFFIC_LENGTH]; /* how many ids the prompt had whose step gave `row` of the place */
} traffic_text;

typedef struct traffic_plan {
  const char *device;
  const assay_model_config *config;
  const assay_model_weights *weights;
  const assay_model_options *model;
  uint64_t seed;
  int64_t prompt, steps, batch; /* longest drawn prompt, steps, and most open requests: 2 at least */
  bool by_role;                 /* a row's bits may depend on how many of its ids were the prompt */
} traffic_plan;

typedef struct traffic {
  traffic_text text[TRAFFIC_TEXTS];
  int64_t texts;
  int64_t hits, forks, preempted, ended, rows; /* ended: texts as long as a request can be; rows: of logits */
} traffic;

/* Runs the day that the seed draws. The caller frees *t with traffic_free, whatever the status is. check(context,
 * engine) is called at the end. */
assay_status traffic_run(const traffic_plan *plan, traffic *t,
                         assay_status (*check)(void *context, const assay_engine *engine), void *context,
                         assay_error *error);
void traffic_free(traffic *t);

/* Runs each text of the day alone, id after id, and compares the bits of the rows that were kept. By role it runs once
 * for each length of a prompt, and compares the rows that were kept after such a prompt. The plan's model is
 * `invariant`. `differs` becomes "" or names the first logit with other bits. *rows: how many were compared. */
assay_status traffic_alone(const traffic_plan *plan, const traffic *t, char *differs, size_t size, int64_t *rows,
                           assay_error *error);

#endif
