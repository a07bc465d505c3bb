/* suite.h: suites of forward passes over small seeded models: types, and ways to run them. docs/models.md has the
 * keys. */
#ifndef ASSAY_CONFORMANCE_MODELS_SUITE_H
#define ASSAY_CONFORMANCE_MODELS_SUITE_H

#include "assay/engine.h"
#include "conformance/judge/judge.h"

typedef enum model_way {
  WAY_PREFILL,   /* whole prompts */
  WAY_DECODE,    /* then tokens one by one */
  WAY_CHUNKED,   /* prompts in chunks */
  WAY_BATCHED,   /* prompts, chunks, tokens and a pad row in one step */
  WAY_SHARED,    /* a prefix that is in the cache already; a fork, and the block that it copies */
  WAY_EAGER,     /* an engine, call by call, over given ids: logits and choices */
  WAY_GRAPH,     /* the same by graphs: logits also have the bits of the calls */
  WAY_LENGTHS,   /* one engine: short prompts, long ones and short ones again; graphs give the bits of the calls */
  WAY_INVARIANT, /* an invariant engine: one request alone and in other company has the same bits */
  WAY_TRAFFIC,   /* an engine under drawn traffic: prefixes, chunks, pauses, forks, requests that leave and return */
  WAYS
} model_way;

typedef struct model_case {
  char name[64], model[32], form[48]; /* form "": the default */
  assay_model_config config;
  uint64_t seed;
  model_way way;
  uint32_t devices;                     /* CASE_ON_ bits */
  bool nightly;                         /* runs only where a filter names it */
  int64_t batch, steps, judged, prompt; /* for engines; judged: requests that are compared with the reference */
  int32_t short_tail;                   /* as assay_model_options has it */
  bool invariant;                       /* steps are invariant; a day of traffic is compared with texts alone */
} model_case;

typedef struct model_cases {
  model_case *list;
  int64_t count;
} model_cases;

/* Reads a suite, which the caller frees. Fails with file:line:column, the key, the value found and the values
 * allowed. */
assay_status model_suite_read(const char *path, model_cases *cases, assay_error *error);
void model_cases_free(model_cases *cases);

enum { MODEL_MAX_FORCED = 64 };

/* Forced variants, each as "op=name"; those of one operator form its list. */
typedef struct model_forced {
  const char *word[MODEL_MAX_FORCED];
  int32_t count;
  int64_t taken[MODEL_MAX_FORCED]; /* cases that passed and took the variant; a judgement adds to it */
} model_forced;

/* Runs and judges a case. forced: NULL or some variants; a case that takes none of them is UNSUPPORTED. `planted`:
 * another configuration for the device alone, for tests; NULL: the case's own. Never fails itself. check: stages logits
 * choices graph launch. */
void model_judge(const model_case *mc, const char *device, model_forced *forced, const assay_model_config *planted,
                 case_result *result);
/* Returns the case in the form that reports print. */
assay_case model_as_case(const model_case *mc, const char *suite, const char *device);
const char *model_way_name(model_way way);

#endif
