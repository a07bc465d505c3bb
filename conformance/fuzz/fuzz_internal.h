/* fuzz_internal.h: the fuzzer's memory of drawn and judged values. Private to the fuzzer. */
#ifndef ASSAY_CONFORMANCE_FUZZ_FUZZ_PARTS_H
#define ASSAY_CONFORMANCE_FUZZ_FUZZ_PARTS_H

#include "space.h"

enum {
  FUZZ_MAX_CLAIMS = 1024,
  FUZZ_MAX_PATHS = 1024,
  FUZZ_CLAIM_AXES = 4,
  FUZZ_PATH_TEXT = 112,
  FUZZ_MAX_TAKERS = 64,
  FUZZ_KEPT = 8
};

_Static_assert(FUZZ_MAX_VALUES <= 64, "a set of values is a word of 64 bits");

/* Counts of a pair or a value. It is impossible if no legal case was found for it. */
typedef struct fuzz_tally {
  uint32_t drawn, judged;
  bool impossible;
} fuzz_tally;

typedef struct fuzz_claim {
  uint8_t value[FUZZ_CLAIM_AXES]; /* along the operator's axes */
  bool tried, judged;
} fuzz_claim;

typedef struct fuzz_path_class {
  char text[FUZZ_PATH_TEXT];
  int64_t count;
  uint8_t choice[FUZZ_MAX_AXES]; /* the last draw that took it */
} fuzz_path_class;

/* A variant, and what it said to draws. */
typedef struct fuzz_taker {
  const assay_variant *variant;
  int64_t given, judged;
  uint8_t kept[FUZZ_KEPT][FUZZ_MAX_AXES]; /* the last draws that it took, number judged % FUZZ_KEPT next */
  int32_t kept_effort[FUZZ_KEPT];
  uint8_t refused[FUZZ_MAX_AXES][FUZZ_MAX_VALUES], taken[FUZZ_MAX_AXES][FUZZ_MAX_VALUES]; /* up to 255 */
  uint64_t wanted[FUZZ_MAX_AXES]; /* bit v: value v is claimed, or called allowed by refusals; 0: nothing is known */
  int16_t claim[FUZZ_MAX_CLAIMS]; /* indices into the claims of the fuzzer */
  int32_t claims;
} fuzz_taker;

struct fuzz {
  fuzz_space space;
  uint64_t seed;
  int64_t draws;
  uint32_t broken[BREAK_EXTRA + 1][ASSAY_MAX_ARGS]; /* draws of illegal calls, by break and argument */
  uint32_t strayed[FUZZ_MAX_AXES];                  /* and by the number that leaves its range */
  int64_t refusals;
  double debt_ms; /* cost of the draws above their share; while it is positive, draws are small and random */
  double spent_ms[FUZZ_EFFORTS]; /* rough cost of judging the draws of each effort */
  int32_t effort;                /* the size that the draw being made may have */
  fuzz_tally value[FUZZ_MAX_AXES][FUZZ_MAX_VALUES];
  fuzz_tally *pair;                                  /* all pairs of values of two axes */
  int32_t base[FUZZ_MAX_AXES][FUZZ_MAX_AXES];        /* [a][b], a < b: first pair of two axes */
  int32_t pairs, cursor;                             /* pairs before the cursor are drawn or impossible */
  int32_t block_axes[FUZZ_MAX_AXES * FUZZ_MAX_AXES]; /* axes of the block of pairs number i */
  int32_t blocks;
  bool values_done, claims_done;
  int32_t claim_axis[FUZZ_CLAIM_AXES], claim_axes; /* -1: no axis of the space has that name */
  fuzz_claim claim[FUZZ_MAX_CLAIMS];
  int32_t claims;
  fuzz_path_class path[FUZZ_MAX_PATHS];
  int32_t paths;
  fuzz_taker *taker; /* [FUZZ_MAX_TAKERS] */
  int32_t takers;
};

/* Returns the pair of value x of axis a and value y of axis b, in either order. */
static inline fuzz_tally *fuzz_pair(const fuzz *f, int32_t a, int32_t x, int32_t b, int32_t y) {
  return a < b ? &f->pair[f->base[a][b] + x * f->space.axis[b].count + y]
               : &f->pair[f->base[b][a] + y * f->space.axis[a].count + x];
}

/* A goal of draw.c: a legal case with the values of the `fixed` axes. The other axes take the value that covers most
 * pairs not yet drawn (greedy), or a random one, rare values first.
 * start: values to begin with, or NULL; up to `changes` axes are changed (0: six). small: the case has the lowest
 * effort. taker: values that it refused and never took are avoided. NULL: those of
 * the only variant, if there is one, in seven draws of eight. */
typedef struct fuzz_goal {
  int32_t fixed, axis[FUZZ_CLAIM_AXES];
  int32_t value[FUZZ_CLAIM_AXES];
  bool greedy, small;
  const uint8_t *start;
  int32_t changes;
  const fuzz_taker *taker;
} fuzz_goal;
/* Looks for a case that reaches the goal. Returns false where none was found. */
/* Makes the call of a legal draw illegal in one way. Returns false, with the draw as it was, where no way was found. */
bool fuzz_break(fuzz *f, fuzz_draw *drawn);
/* Returns the set of values of the axis that a refusal calls allowed, as "D_k: found 15, taken here: 64, 128" does; 0
 * where it says nothing of that kind. */
uint64_t fuzz_allowed(const fuzz_axis *axis, const char *message);
bool fuzz_reach(const fuzz *f, const fuzz_goal *goal, int64_t index, fuzz_draw *drawn);

#endif
