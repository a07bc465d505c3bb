/* foreign.h: one call of an operator over tensors from elsewhere, the reference's outputs for it, and the distance of
 * another engine's results from these. */
#ifndef ASSAY_CONFORMANCE_TRIAL_FOREIGN_H
#define ASSAY_CONFORMANCE_TRIAL_FOREIGN_H

#include "assay/op.h"

/* A call over tensors from elsewhere; foreign_free frees what it owns. */
typedef struct foreign_call {
  const assay_op *op;
  assay_contract contract; /* that of the engine with the results; foreign_begin: f32 throughout (docs/truth.md) */
  assay_sums sums;         /* the engine's sum contract; unit NONE: none */
  bool exact;              /* the exact tier judges it */
  double param[ASSAY_MAX_PARAMS];
  assay_tensor arg[ASSAY_MAX_ARGS]; /* dense, in host memory */
  void *owned[ASSAY_MAX_ARGS];
  int64_t first_block[ASSAY_MAX_ARGS]; /* caches: physical number of the first block in memory */
  assay_rows rows;
  int64_t *request_end; /* owned; paged operators: the row after each request. NULL: by cu_q, or one row each */
  int64_t requests;
  /* After foreign_reference: the given outputs, in the order of the arguments. */
  int32_t count, output[ASSAY_MAX_OUTPUTS];
  assay_expected expected[ASSAY_MAX_OUTPUTS];
} foreign_call;

/* Starts a call with default parameters and no tensors. Fails with ASSAY_ERR_INPUT if there is no such operator. */
assay_status foreign_begin(foreign_call *f, const char *op, assay_error *error);
void foreign_free(foreign_call *f);

/* Sets a parameter by its name. An enum takes the index or, with _text, the name of the value. Fails with
 * ASSAY_ERR_INPUT. */
assay_status foreign_set(foreign_call *f, const char *param, double value, assay_error *error);
assay_status foreign_set_text(foreign_call *f, const char *param, const char *value, assay_error *error);
/* Sets a dense argument by its name. `data` is copied; NULL means zeros. Fails with ASSAY_ERR_INPUT or
 * ASSAY_ERR_MEMORY. */
assay_status foreign_tensor(foreign_call *f, const char *arg, assay_dtype dtype, int32_t rank, const int64_t *shape,
                            const void *data, assay_error *error);
/* Does the same from numbers, each rounded to the type. */
assay_status foreign_values(foreign_call *f, const char *arg, assay_dtype dtype, int32_t rank, const int64_t *shape,
                            const double *value, assay_error *error);
/* Declares that a cache's tensor begins at this physical block. Tables and slots still count from block 0. */
assay_status foreign_first_block(foreign_call *f, const char *arg, int64_t block, assay_error *error);
/* Returns element `index` of a dense tensor, also of an integer one. */
double foreign_load(const void *data, assay_dtype dtype, int64_t index);

/* Checks the call and asks the reference. Fails as check() and reference() do. */
assay_status foreign_reference(foreign_call *f, assay_error *error);
/* Returns the place of an output in `output` and `expected`, or -1 where it is not given. */
int32_t foreign_output(const foreign_call *f, const char *arg);
/* Return the elements of a row, and the rows, of an output. */
int64_t foreign_width(const foreign_call *f, int32_t output);
int64_t foreign_rows(const foreign_call *f, int32_t output);

/* The verdict on one output. */
typedef struct foreign_verdict {
  bool wrong;
  int64_t elements, wrong_elements;
  double largest;                                 /* |got - expected| */
  double ratio_element, ratio_row, ratio_request; /* observed over allowed */
  /* Number of the first wrong element over the dense tensor, or of the first element of a wrong row. -1 stands for
   * none. The three values are NaN for a row. */
  int64_t first;
  double first_got, first_expected, first_allowed;
  char message[400]; /* says which element is wrong first, or which row */
} foreign_verdict;

/* Judges one output by tier 1 or 2, with the limits of elements, rows and requests of our own kernels
 * (docs/judging.md).
 * got: bits of all rows, dense, of the argument's own type. new_rows: `got` holds only the new tokens' rows [N, H_kv,
 * D] of a cache. Otherwise it holds all of the cache, and places that no slot names must have their old bits.
 * Fails with ASSAY_ERR_MEMORY; a wrong output is no failure. */
assay_status foreign_judge(const foreign_call *f, int32_t output, const void *got, bool new_rows,
                           foreign_verdict *verdict, assay_error *error);
/* Sets `fits` to whether the results of each row fit together, all of which foreign_judge has taken (core/row_rule.h).
 * `got`: by output, its bits; NULL: it is not given, and nothing is looked at. If they do not, `why` has the first row.
 * Fails with ASSAY_ERR_MEMORY. */
assay_status foreign_fits(const foreign_call *f, const void *const *got, bool *fits, char *why, size_t size,
                          assay_error *error);
/* Tells whether this output is a cache, of which only the new tokens' rows are results. */
bool foreign_is_cache(const foreign_call *f, int32_t output);

#endif
