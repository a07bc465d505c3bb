/* selected.h: what lm_head and lm_head_argmax share: the rows of x that row_index [R] selects. */
#ifndef ASSAY_REF_SELECTED_H
#define ASSAY_REF_SELECTED_H

#include "assay/op.h"

/* Other rows than the selected ones, as a planted error. */
typedef enum selected_spoil {
  SELECTED_RIGHT,
  SELECTED_NOT,      /* the first rows of x */
  SELECTED_ONE_OFF,  /* the row after the selected one */
  SELECTED_EXCHANGED /* the row of the neighbour in row_index */
} selected_spoil;

/* Refuses a row_index outside [0, T), where x is [T, C]. */
assay_status selected_check(const assay_tensor *x, const assay_tensor *index, assay_error *error);

/* Returns the row of x for selected row r. */
int64_t selected_row(const assay_tensor *x, const assay_tensor *index, int64_t r, selected_spoil spoil);

#endif
