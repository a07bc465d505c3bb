/* foreign.h: one call of an operator over tensors that came from elsewhere, what the reference says of its outputs,
 * and how far somebody else's results are from that. */
#ifndef ASSAY_CONFORMANCE_FOREIGN_H
#define ASSAY_CONFORMANCE_FOREIGN_H

#include "assay/op.h"

typedef struct foreign_call {
  const assay_op *op;
  assay_contract contract; /* of whoever made the results; foreign_begin: f32 throughout (docs/truth.md) */
  bool exact;              /* judged by the exact tier */
  double param[ASSAY_MAX_PARAMS];
  assay_tensor arg[ASSAY_MAX_ARGS]; /* dense, in host memory */
  void *owned[ASSAY_MAX_ARGS];
  int64_t first_block[ASSAY_MAX_ARGS]; /* of a cache: physical number of the first block that is there */
  assay_rows rows;
  /* After foreign_reference: the outputs that are there, in the order of the arguments. */
  int32_t count, output[ASSAY_MAX_OUTPUTS];
  assay_expected expected[ASSAY_MAX_OUTPUTS];
} foreign_call;

/* Parameters at their defaults, no tensors. ASSAY_ERR_INPUT: no such operator. */
assay_status foreign_begin(foreign_call *f, const char *op, assay_error *error);
void foreign_free(foreign_call *f);

/* A parameter by its name. Enums by the index or, with _text, by the name of the value. */
assay_status foreign_set(foreign_call *f, const char *param, double value, assay_error *error);
assay_status foreign_set_text(foreign_call *f, const char *param, const char *value, assay_error *error);
/* A dense argument by its name; `data` is copied, NULL: zeros. */
assay_status foreign_tensor(foreign_call *f, const char *arg, assay_dtype dtype, int32_t rank, const int64_t *shape,
                            const void *data, assay_error *error);
/* The same from numbers, each rounded to the type. */
assay_status foreign_values(foreign_call *f, const char *arg, assay_dtype dtype, int32_t rank, const int64_t *shape,
                            const double *value, assay_error *error);
/* A cache whose tensor begins at this physical block: tables and slots count from 0 nevertheless. */
assay_status foreign_first_block(foreign_call *f, const char *arg, int64_t block, assay_error *error);
/* Element `index` of a dense tensor, integers too. */
double foreign_load(const void *data, assay_dtype dtype, int64_t index);

/* check() and reference(). */
assay_status foreign_reference(foreign_call *f, assay_error *error);
/* Place of an output in `output` and `expected`; -1: not there. */
int32_t foreign_output(const foreign_call *f, const char *arg);
/* Elements of a row, rows, and elements judged together (one head's output, one row). */
int64_t foreign_width(const foreign_call *f, int32_t output);
int64_t foreign_rows(const foreign_call *f, int32_t output);

typedef struct foreign_verdict {
  bool wrong;
  int64_t elements, wrong_elements;
  double largest;                                 /* |got - expected| */
  double ratio_element, ratio_row, ratio_request; /* observed over allowed */
  char message[400];                              /* the first wrong element, or the row */
} foreign_verdict;

/* Bits of one output, dense, of the argument's own type, all rows of it. By tier 1 or 2, limits of elements, rows and
 * requests as for our own kernels (docs/judging.md). new_rows: of a cache, `got` holds the new tokens' rows
 * [N, H_kv, D] alone; else all of it, and what no slot names must have its old bits. */
assay_status foreign_judge(const foreign_call *f, int32_t output, const void *got, bool new_rows, foreign_verdict *made,
                           assay_error *error);
/* Is this output a cache, of which only the new tokens' rows are results? */
bool foreign_is_cache(const foreign_call *f, int32_t output);

#endif
