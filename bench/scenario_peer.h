/* scenario_peer.h: scenarios for a peer (bench/peers/step.py). A folder has the model, the prompts, the expected tokens
 * and the figures of this project. The peer leaves its lines there. */
#ifndef ASSAY_BENCH_SCENARIO_PEER_H
#define ASSAY_BENCH_SCENARIO_PEER_H

#include "scenario.h"

typedef struct scenario_folder {
  char path[256]; /* "": none */
  FILE *asked;    /* scenarios.json */
  int64_t count;  /* scenarios in it */
} scenario_folder;

/* Makes a new folder below TMPDIR, or /tmp. The caller removes it with scenario_folder_remove(), also after a
 * failure. */
assay_status scenario_folder_make(scenario_folder *made, assay_error *error);
/* Adds a scenario that has a figure. */
assay_status scenario_folder_add(scenario_folder *to, const scenario_setup *setup, const scenario *one,
                                 const scenario_result *result, assay_error *error);
/* Writes the model beside the scenarios, and ends their file. */
assay_status scenario_folder_finish(scenario_folder *to, const scenario_setup *setup, assay_error *error);
/* Copies the peer's lines to `jsonl`. Refuses what is no line of a peer. *whole: the peer is missing, or there is one
 * line per scenario. */
assay_status scenario_folder_take(const scenario_folder *from, FILE *jsonl, bool *whole, assay_error *error);
void scenario_folder_remove(scenario_folder *made);

#endif
