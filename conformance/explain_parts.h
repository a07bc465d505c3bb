/* explain_parts.h: the explainer's own pieces: a copy of the call that mistakes are made in. */
#ifndef ASSAY_CONFORMANCE_EXPLAIN_PARTS_H
#define ASSAY_CONFORMANCE_EXPLAIN_PARTS_H

#include "generate_parts.h"
#include "judge_parts.h"

/* The first wrong row, and one head of it. The call below is a copy: whatever is done to it is undone by
 * scene_reset. */
typedef struct scene {
  const trial *t;
  const outputs *got;
  place where;
  int64_t request, row, n; /* row of the batch; row of the request's new tokens */
  int64_t length, last;    /* L; the last key that the row sees, < 0: none */
  int64_t head, kv_head, heads, kv_heads, D, block_size, blocks, split;
  const double *truth, *truth_sigma; /* [width] of the row */
  double *correction;                /* [width] added to the result; 0 after scene_reset */
  unsigned char *copy;
  assay_tensor arg[ASSAY_MAX_ARGS];
  double param[ASSAY_MAX_PARAMS];
  double *value[ASSAY_MAX_OUTPUTS], *sigma[ASSAY_MAX_OUTPUTS];
  double factor; /* what truth must be multiplied by, where a mistake has one */
  char *text;    /* the explanation */
  size_t size;
} scene;

void scene_reset(scene *s);
/* The reference of the copy at `row`, or, spoil >= 0, with the operator's planted error, into value and sigma. */
bool scene_evaluate(scene *s, int64_t row, int32_t spoil);
/* Are these what was found, in the channels of `head` (-1: the one that is wrong)? */
bool scene_agrees(const scene *s, int64_t head);
/* Is what was found the f64 result of the copy, at `row`, in all of the head's channels? `head`: whose channels of
 * that row are looked at; -1: the same. A mistake that leaves the result as it was explains nothing. */
bool scene_matches(scene *s, int64_t row, int64_t head);
/* The argument that holds `content` (the first, the second …); NULL: none given. */
assay_tensor *scene_arg(scene *s, assay_content content, int32_t nth);

/* Channels of one token and kv head of K (or V) in the copy. */
void scene_read(scene *s, bool k, int64_t token, int64_t kv_head, double *value);
void scene_write(scene *s, bool k, int64_t token, int64_t kv_head, const double *value);

/* ---- explain_planted.c ---- */

/* For operators whose mistakes explain_mistakes.c does not know: by their own spoils. Leaves `text` where none fits. */
void explain_planted(const trial *t, const outputs *got, place where, char *text, size_t size);

/* ---- explain_mistakes.c ---- */

/* Makes its mistake in all its forms until one matches; writes which. */
typedef bool (*mistake)(scene *s);
extern const mistake explain_mistakes[];
extern const int32_t explain_mistake_count;

#endif
