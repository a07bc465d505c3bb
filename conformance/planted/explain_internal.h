/* explain_internal.h: the parts of the explainer: a copy of the call, in which mistakes are made. */
#ifndef ASSAY_CONFORMANCE_PLANTED_EXPLAIN_PARTS_H
#define ASSAY_CONFORMANCE_PLANTED_EXPLAIN_PARTS_H

#include "conformance/generate/generate.h"
#include "conformance/trial/trial.h"

/* The first wrong row, and one head of it. The call in it is a copy; scene_reset undoes every change. */
typedef struct scene {
  const trial *t;
  const outputs *got;
  output_place where;
  int64_t request, row, n; /* row: of the batch; n: of the request's new tokens */
  int64_t length, last;    /* L; the last key that the row sees, < 0 for none */
  int64_t head, kv_head, heads, kv_heads, D, block_size, blocks, split;
  const double *truth, *truth_sigma; /* [width] of the row */
  double *correction;                /* [width] added to the result; 0 after scene_reset */
  unsigned char *copy;
  assay_tensor arg[ASSAY_MAX_ARGS];
  double param[ASSAY_MAX_PARAMS];
  double *value[ASSAY_MAX_OUTPUTS], *sigma[ASSAY_MAX_OUTPUTS];
  double factor; /* the factor of the truth, where a mistake has one */
  char *text;    /* the explanation */
  size_t size;
} scene;

void scene_reset(scene *s);
/* Makes the copy equal to the call again. */
/* Computes the copy's reference at `row` into value and sigma; spoil >= 0: with that planted error of the operator.
 * Returns false where the operator refuses. */
bool scene_evaluate(scene *s, int64_t row, int32_t spoil);
/* Tells whether value and sigma agree with the wrong result in the channels of `head` (-1: the head that is wrong). */
bool scene_agrees(const scene *s, int64_t head);
/* Tells whether the wrong result is the f64 result of the copy, at `row`, in all of the head's channels. `head` names
 * the head of that row to look at; -1: the same one. A mistake that leaves the result as it was explains nothing. */
bool scene_matches(scene *s, int64_t row, int64_t head);
/* Returns the argument number `nth` (from 0) that holds `content`, or NULL where none is given. */
assay_tensor *scene_arg(scene *s, assay_content content, int32_t nth);

/* Returns the index of the K (or V) cache argument, or -1. */
int32_t scene_cache_arg(const scene *s, bool k);
/* Read and write the channels of one token and kv head of K (or V) in the copy. */
void scene_read(scene *s, bool k, int64_t token, int64_t kv_head, double *value);
void scene_write(scene *s, bool k, int64_t token, int64_t kv_head, const double *value);

/* ---- explain_planted.c ---- */

/* Explains by the operator's own spoils, for operators whose mistakes explain_mistakes.c does not know. Leaves `text`
 * unchanged where none fits. */
void explain_planted(const trial *t, const outputs *got, output_place where, char *text, size_t size);

/* ---- explain_mistakes.c ---- */

/* Makes its mistake in all its forms until one matches, and then writes which one. Returns whether one matched. */
typedef bool (*mistake)(scene *s);
extern const mistake explain_mistakes[];
extern const int32_t explain_mistake_count;

#endif
