/* far_internal.h: declarations that the files of the law `far` share. */
#ifndef ASSAY_CONFORMANCE_LAWS_FAR_PARTS_H
#define ASSAY_CONFORMANCE_LAWS_FAR_PARTS_H

#include "far.h"
#include "conformance/trial/trial.h"

/* A range of addresses of which only some pieces are memory. */
typedef struct far_range {
  unsigned char *memory; /* NULL: none */
  int64_t bytes;
} far_range;

/* Takes r->bytes addresses with memory at the `count` pieces. far_give gives them back, also after a failure. */
assay_status far_take(const trial *t, far_range *r, const assay_piece *piece, int32_t count, assay_error *error);
void far_give(const trial *t, far_range *r);

/* Returns the source of ranges of the trial's device; NULL: its memory is the host's. */
const assay_sparse *far_sparse(const trial *t);

/* One argument whose rows lie apart. */
typedef struct far_row_arg {
  int32_t arg;
  int64_t rows, row_bytes, stride; /* stride in elements */
  far_range memory;                /* a guard, row 0, a guard, ... */
  unsigned char *held;             /* each row between its two guards, side by side */
} far_row_arg;

typedef struct far_rows {
  int32_t count;
  far_row_arg list[ASSAY_MAX_ARGS];
} far_rows;

/* Chooses the arguments whose rows lie apart, and the strides. */
void far_rows_choose(const trial *t, uint64_t random, far_rows *r);
bool far_rows_has(const far_rows *r, int32_t arg);
/* Takes the ranges and points the call's arguments there. far_rows_give gives them back, also after a failure. */
assay_status far_rows_take(const trial *t, far_rows *r, device_call *on, assay_error *error);
void far_rows_give(const trial *t, far_rows *r);
/* Copies rows and guards to the ranges. */
assay_status far_rows_up(const trial *t, far_rows *r, assay_error *error);
/* Copies the rows that the call writes back; the caller waits for the copies. */
assay_status far_rows_down(const trial *t, far_rows *r, assay_error *error);
/* Checks the guards, then copies the rows to their own places in the arena `after`. */
bool far_rows_look(const trial *t, const far_rows *r, unsigned char *after, case_result *result);

#endif
