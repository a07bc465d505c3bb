/* bench_session.h: models and results that assay bench scenario and assay bench online share. */
#ifndef ASSAY_CONFORMANCE_CLI_BENCH_SESSION_H
#define ASSAY_CONFORMANCE_CLI_BENCH_SESSION_H

#include "bench/online.h"
#include "bench/rows.h"
#include "cli.h"
#include "conformance/report/report.h"
#include "core/files/model_file.h"

/* An open model: weights of the production width from the seed, or those of a file. */
typedef struct bench_model {
  assay_model_config config;
  assay_model_weights weights;
  model_file file;
  bool of_file;
  assay_model_options options;
  scenario_setup setup;
} bench_model;

/* Opens the model `name`: asynct, qwen3, gpt2, or a file. The caller closes it, also after a failure. */
assay_status bench_model_open(const char *name, const cli_options *given, const bench_limits *limits, bench_model *made,
                              assay_error *error);
void bench_model_close(bench_model *m);

/* A session on a device: it is open in this process, its limits are measured, the head of the file is written. */
typedef struct bench_session {
  bench_limits limits;
  FILE *jsonl; /* NULL: none wanted */
  int64_t there, missing;
} bench_session;

assay_status bench_session_open(const cli_options *given, bench_session *made, assay_error *error);
/* Writes the file's last line and closes it. Returns the exit status. */
int bench_session_close(bench_session *s, const cli_options *given, assay_status status, const assay_error *error);

#endif
