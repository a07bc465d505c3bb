/* delta.h: the call of gated_delta_rule: its arguments by number, its requests, the check of their contents, and the
 * values that the generator takes. */
#ifndef ASSAY_REF_DELTA_H
#define ASSAY_REF_DELTA_H

#include "assay/op.h"

enum {
  DELTA_Q,
  DELTA_K,
  DELTA_V,
  DELTA_G,
  DELTA_BETA,
  DELTA_CU,
  DELTA_SLOTS,
  DELTA_FRESH,
  DELTA_STATE,
  DELTA_O,
  DELTA_ARGS
};
enum { DELTA_SCALE, DELTA_L2, DELTA_L2_EPS };

typedef struct delta_request {
  int64_t first, rows, slot; /* slot: -1 for none */
  bool fresh;
} delta_request;

delta_request delta_request_of(const assay_call *call, int64_t i);
/* Refuses requests whose rows or slots are out of range, and gates above 0. */
assay_status delta_check_contents(const assay_call *call, assay_error *error);
/* The operator's fill(). */
assay_status delta_fill(const assay_fill *fill, int32_t arg, double *value, int64_t count, assay_error *error);

#endif
