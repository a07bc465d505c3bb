/* judge_far_parts.h: what the files of the law `far` share. */
#ifndef ASSAY_CONFORMANCE_JUDGE_FAR_PARTS_H
#define ASSAY_CONFORMANCE_JUDGE_FAR_PARTS_H

#include "judge_far.h"
#include "judge_parts.h"

/* Addresses of which only some pieces are memory. */
typedef struct far_range {
  unsigned char *memory; /* NULL: none */
  int64_t bytes;
} far_range;

/* Takes r->bytes addresses. */
assay_status far_take(const trial *t, far_range *r, const assay_piece *piece, int32_t count, assay_error *error);
void far_give(const trial *t, far_range *r);

/* One argument whose rows lie apart. */
typedef struct far_row_arg {
  int32_t arg;
  int64_t rows, row_bytes, stride; /* stride in elements */
  far_range memory;                /* a guard, row 0, … */
  unsigned char *held;             /* each row between its two guards, side by side */
} far_row_arg;

typedef struct far_rows {
  int32_t count;
  far_row_arg one[ASSAY_MAX_ARGS];
} far_rows;

/* Which arguments, and how far apart. */
void far_rows_choose(const trial *t, uint64_t random, far_rows *r);
bool far_rows_has(const far_rows *r, int32_t arg);
/* Ranges; the call's arguments then point there. */
assay_status far_rows_take(const trial *t, far_rows *r, device_call *on, assay_error *error);
void far_rows_give(const trial *t, far_rows *r);
/* To the ranges; from them (what is written; to be waited for); guards, then to the arena's own places. */
assay_status far_rows_up(const trial *t, far_rows *r, assay_error *error);
assay_status far_rows_down(const trial *t, far_rows *r, assay_error *error);
bool far_rows_look(const trial *t, const far_rows *r, unsigned char *after, case_result *result);

#endif
