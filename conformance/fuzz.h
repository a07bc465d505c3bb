/* fuzz.h: cases of one operator that nobody wrote down. First every combination that a variant claims, every
 * boundary value of every key, and every pair of two such values; then random ones, weighted towards what was
 * drawn least and towards paths seldom taken.
 *
 * Draw i takes its random numbers from (seed, i) alone, and its weights from the draws before it and from the
 * paths that fuzz_path() had been told of by then: who tells at fixed places of the sequence gets the same
 * sequence again. Every draw has a descriptor, which says all there is to know of it. */
#ifndef ASSAY_CONFORMANCE_FUZZ_H
#define ASSAY_CONFORMANCE_FUZZ_H

#include "case.h"

enum { FUZZ_MAX_AXES = 64, FUZZ_MAX_VALUES = 32, FUZZ_MAX_BATCH = 8 };

typedef struct fuzz fuzz;

typedef enum fuzz_phase { FUZZ_VALUES, FUZZ_CLAIMS, FUZZ_PAIRS, FUZZ_RANDOM } fuzz_phase;

/* One draw: which value each axis has, and the case. `one` points into this struct and is not freed: copy with
 * fuzz_copy. */
typedef struct fuzz_draw {
  uint8_t choice[FUZZ_MAX_AXES];
  fuzz_phase phase;
  double cost_ms; /* what finding it took, roughly: contents and reference of what was asked about, by size */
  assay_case one; /* variant and device still empty */
  int32_t lists[4][FUZZ_MAX_BATCH];
} fuzz_draw;

typedef struct fuzz_counts {
  int64_t draws, values, values_judged, values_impossible;
  int64_t pairs, pairs_judged, pairs_impossible; /* `pairs`: the impossible ones not among them; `values` likewise */
  int64_t claims, claims_judged, paths;
} fuzz_counts;

/* What draws are for: these variants (NULL: all), and these values of some keys alone. */
typedef struct fuzz_choice {
  bool (*variant)(const void *context, const assay_variant *variant);
  const void *context;
  const char *const *where; /* "key=value"; a key may come again, with another value */
  int32_t wheres;
} fuzz_choice;

/* `device`: cases for simt are smaller. The operator's variants on that device give split sizes and claims. Fails where
 * `choice` names a key or a value that the operator does not have. */
assay_status fuzz_make(const assay_op *op, const char *device, uint64_t seed, const fuzz_choice *choice, fuzz **made,
                       assay_error *error);
void fuzz_free(fuzz *f);
/* The next draw. Fails only where no legal case is found at all. */
assay_status fuzz_next(fuzz *f, fuzz_draw *made, assay_error *error);
void fuzz_copy(const fuzz_draw *from, fuzz_draw *to);
/* This draw was judged (not refused as unsupported). */
void fuzz_judged(fuzz *f, const fuzz_draw *draw);
/* ... and took this path. Numbers above 4 count by powers of two, so that paths are classes. */
void fuzz_path(fuzz *f, const fuzz_draw *draw, const char *variant, const char *path);

void fuzz_count(const fuzz *f, fuzz_counts *counts);
/* Axis `index`: its name, how many of its possible values were judged, and, in `missing`, the others. False: no
 * such axis. */
bool fuzz_axis_reached(const fuzz *f, int32_t index, const char **name, int32_t *judged, int32_t *possible,
                       char *missing, size_t size);
/* Path class `index` in the order of discovery, and how often it was taken. */
bool fuzz_path_reached(const fuzz *f, int64_t index, const char **path, int64_t *count);
/* Does the variant claim what the case is along the operator's axes (case_axes)? */
bool fuzz_claimed(const assay_variant *variant, const assay_case *one);

#endif
