/* bench_words.h: assay bench scenario and assay bench online: what they share. */
#ifndef ASSAY_CONFORMANCE_CLI_BENCH_WORDS_H
#define ASSAY_CONFORMANCE_CLI_BENCH_WORDS_H

#include "bench/online.h"
#include "bench/rows.h"
#include "conformance/report.h"
#include "core/files/model_file.h"

enum { BENCH_WORDS = 16, BENCH_MODELS = 4 };

typedef struct bench_words {
  const char *word[BENCH_WORDS], *model[BENCH_MODELS], *form[BENCH_WORDS], *variant[BENCH_WORDS];
  int32_t words, models, forms, variants;
  const char *device, *jsonl, *expected;
  uint64_t seed;
  double scale[BENCH_WORDS], seconds;
  int32_t scales;
  int64_t part, requests, blocks, batch, tokens, length, short_tail;
} bench_words;

assay_status bench_words_read(int argc, char **argv, const char *allowed, bench_words *given, assay_error *error);

/* A model that stands open: weights of the production width from the seed, or of a file. */
typedef struct bench_model {
  assay_model_config config;
  assay_model_weights weights;
  model_file file;
  bool of_file;
  assay_model_options options;
  scenario_setup setup;
} bench_model;

/* `name`: asynct, qwen3, gpt2, or a file. */
assay_status bench_model_open(const char *name, const bench_words *given, const bench_limits *limits, bench_model *made,
                              assay_error *error);
void bench_model_close(bench_model *m);

/* The device opened in this process, its limits measured, the head of the file written. */
typedef struct bench_session {
  bench_limits limits;
  FILE *jsonl; /* NULL: none wanted */
  int64_t there, missing;
} bench_session;

assay_status bench_session_open(const bench_words *given, bench_session *made, assay_error *error);
/* The file's last line, and the exit status. */
int bench_session_close(bench_session *s, const bench_words *given, assay_status status, const assay_error *error);

int cli_bench_scenario(int argc, char **argv);
int cli_bench_online(int argc, char **argv);

#endif
