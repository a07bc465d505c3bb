/* fuzz.h: drawn cases of one operator. First comes every combination that a variant claims, every boundary value of
 * every key, and every pair of two such values. Random draws follow, weighted towards what was drawn least and towards
 * paths seldom taken. While a variant refuses most of its draws as unsupported, three draws of eight are made for it.
 *
 * Draw i takes its random numbers from (seed, i) alone. Its weights come from the draws before it, and from what
 * fuzz_path() and fuzz_told() heard before. A caller that tells them at fixed places of the sequence gets the same
 * sequence again. Every draw has a descriptor, which is all that is needed to repeat it. */
#ifndef ASSAY_CONFORMANCE_FUZZ_FUZZ_H
#define ASSAY_CONFORMANCE_FUZZ_FUZZ_H

#include "conformance/case/case.h"

enum { FUZZ_MAX_AXES = 64, FUZZ_MAX_VALUES = 64, FUZZ_MAX_BATCH = 300, FUZZ_EFFORTS = 4 };

typedef struct fuzz fuzz;

typedef enum fuzz_phase { FUZZ_VALUES, FUZZ_CLAIMS, FUZZ_PAIRS, FUZZ_RANDOM, FUZZ_REFUSALS } fuzz_phase;

/* A draw: the value that each axis has, and the case. `one` points into this struct and is not freed: copy with
 * fuzz_copy. */
typedef struct fuzz_draw {
  uint8_t choice[FUZZ_MAX_AXES];
  fuzz_phase phase;
  int64_t most;   /* made for a variant that was judged seldom: variants judged more often than that are left out */
  bool for_all;   /* a variant that does not claim it must refuse it, or be right */
  double cost_ms; /* rough cost of finding it: contents and reference of the questions asked, by size */
  double run_ms;  /* rough cost of judging it on one core */
  int32_t effort; /* the size that it was allowed, below FUZZ_EFFORTS */
  assay_case one; /* variant and device are still empty */
  int32_t lists[4][FUZZ_MAX_BATCH];
} fuzz_draw;

typedef struct fuzz_counts {
  int64_t draws, values, values_judged, values_impossible;
  int64_t pairs, pairs_judged, pairs_impossible; /* pairs and values count without the impossible ones */
  int64_t claims, claims_judged, paths;
  int64_t refusals, broken_drawn; /* draws of illegal calls; arguments broken, each way by itself */
} fuzz_counts;

/* The variants to draw for (NULL: all), and the values to which some keys are restricted. */
typedef struct fuzz_choice {
  bool (*variant)(const void *context, const assay_variant *variant);
  const void *context;
  const char *const *where; /* "key=value"; a key may come again, with another value */
  int32_t wheres;
} fuzz_choice;

/* Makes a fuzzer, which the caller frees. The operator's variants on `device` give split sizes and claims; cases for
 * simt are smaller. Fails with ASSAY_ERR_INPUT where `choice` names a key or a value that the operator does not
 * have. */
assay_status fuzz_make(const assay_op *op, const char *device, uint64_t seed, const fuzz_choice *choice, fuzz **fuzzer,
                       assay_error *error);
void fuzz_free(fuzz *f);
/* Makes the next draw. Fails only where no legal case is found at all. */
assay_status fuzz_next(fuzz *f, fuzz_draw *drawn, assay_error *error);
void fuzz_copy(const fuzz_draw *from, fuzz_draw *to);
/* Notes that this draw was judged (not refused as unsupported). */
void fuzz_judged(fuzz *f, const fuzz_draw *draw);
/* Notes what a variant said to a draw: judged, or unsupported, with its message. From then on, draws for a variant that
 * was seldom judged keep away from values that it refused and never took. */
void fuzz_told(fuzz *f, const fuzz_draw *draw, const char *variant, bool judged, const char *message);
/* Notes that this draw took a path. Numbers above 4 count by powers of two, so that paths are classes. */
void fuzz_path(fuzz *f, const fuzz_draw *draw, const char *variant, const char *path);

void fuzz_count(const fuzz *f, fuzz_counts *counts);
/* Returns the name of axis `index` and the number of its possible values that were judged; writes the others into
 * `missing`. Returns false where there is no such axis. */
bool fuzz_axis_reached(const fuzz *f, int32_t index, const char **name, int32_t *judged, int32_t *possible,
                       char *missing, size_t size);
/* Returns path class `index` in the order of discovery, and how often it was taken. Returns false after the last. */
bool fuzz_path_reached(const fuzz *f, int64_t index, const char **path, int64_t *count);
/* Returns variant `index`, how many draws it was given, as far as fuzz_told() says, and how many of them were judged.
 * Returns false after the last. */
bool fuzz_variant_reached(const fuzz *f, int32_t index, const char **name, int64_t *given, int64_t *judged);
/* Tells whether the variant is given the draw. It must claim the case, unless the draw is for all. It must not have
 * been judged often where the draw is made for one that was not. */
bool fuzz_is_for(const fuzz *f, const fuzz_draw *draw, const assay_variant *variant);
/* Tells whether the variant claims the case along the operator's axes (case_axes). */
bool fuzz_claimed(const assay_variant *variant, const assay_case *one);

#endif
