/* truth.h: compares references and forward passes with results that others have computed and published
 * (docs/truth.md). */
#ifndef ASSAY_CONFORMANCE_TRUTH_TRUTH_H
#define ASSAY_CONFORMANCE_TRUTH_TRUTH_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "assay/model.h"

struct junit; /* conformance/report/junit.h */
struct foreign_verdict;

/* A log with one line per case, written as soon as it is known. */
typedef struct truth_log {
  FILE *to;
  int64_t passed, failed, uncovered;
  FILE *jsonl;         /* an object per line as well; NULL: none */
  struct junit *junit; /* NULL: none */
  const char *folder;  /* that is judged; NULL: none */
  bool several;        /* lines name the folder */
  bool expected;       /* judge_dir writes the reference's results beside the files */
  /* relative, absolute: judge_dir says which planted errors such a tolerance lets through; 0, 0: it does not */
  double tolerance[2];
  /* The figures of the next line, and the output that they are of, for the JSONL; NULL: it has none. */
  const struct foreign_verdict *figures;
  const char *output;
} truth_log;

#if defined(__GNUC__)
#define TRUTH_TEXT __attribute__((format(printf, 3, 4)))
#else
#define TRUTH_TEXT
#endif
TRUTH_TEXT void truth_pass(truth_log *log, const char *name, const char *format, ...);
TRUTH_TEXT void truth_fail(truth_log *log, const char *name, const char *format, ...);
TRUTH_TEXT void truth_uncovered(truth_log *log, const char *name, const char *format, ...);
/* Prints how many of the planted errors that change a call pass the tolerance, and which; and which our limits miss. */
void truth_planted(truth_log *log, const char *name, const double tolerance[2], int32_t effective, int32_t passed,
                   const char *passed_names, int32_t unseen, const char *unseen_names);
/* Prints "12 passed, 0 failed, 3 not covered". */
void truth_sum(const truth_log *log);

/* Compares the node cases of DIR/index.json and DIR/packed.bin. Fails where the files are not as they should be. */
assay_status truth_onnx(const char *folder, truth_log *log, assay_error *error);
/* Compares recorded tensors. DIR is a folder of one model, or holds such folders. */
assay_status truth_tensors(const char *folder, truth_log *log, assay_error *error);
/* Compares greedy ids and logits of a llama2.c checkpoint. */
assay_status truth_llama2c(const char *model, const char *golden, const char *backend, truth_log *log,
                           assay_error *error);
/* Compares forward passes with what the transformers library computed in f64: logits, streams, routers, greedy ids. DIR
 * is a model's folder with recorded results, or holds such folders. A model that is not read here is not covered.
 * options: at most one form, of the backend's session. The reference beside a device takes mla_expand as well. dtype:
 * NULL, or for a device "f16" or "bf16". Weights are rounded to this type, which the device computes in. It is then
 * held against f64 and mirror mode by these weights, and not against the record. */
assay_status truth_hf(const char *folder, const char *backend, const assay_model_options *options, const char *dtype,
                      truth_log *log, assay_error *error);

/* judge_dir.c: judges results of another engine, given as files in a folder (trial/trial.h, DUMP_MANIFEST), like our
 * own (docs/truth.md). Prints one line per output. With log->expected it also writes OUTPUT.expected.f64.npy and
 * OUTPUT.sigma.f64.npy into the folder, for later cases of a folder with the case's number before the name. Fails where
 * the manifest or a file is not as it should be; nothing was judged then. */
assay_status judge_dir(const char *folder, truth_log *log, assay_error *error);
/* Judges `count` folders. All of them are read before the first line is printed. */
assay_status judge_dirs(const char *const *folder, int32_t count, truth_log *log, assay_error *error);

#endif
