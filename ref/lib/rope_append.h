/* rope_append.h: what operators share that rotate q and k and append k and v to the paged cache: rows, stored numbers,
 * refusals, costs and contents. Arguments and parameters are found by their names, which are those of rope_append. */
#ifndef ASSAY_REF_ROPE_APPEND_H
#define ASSAY_REF_ROPE_APPEND_H

#include "assay/op.h"

/* Returns the number of slots of the pool. */
int64_t rope_append_slots(const assay_call *call);

assay_status rope_append_check(const assay_call *call, assay_error *error);
assay_cost rope_append_cost(const assay_call *call, const assay_seen *seen);

/* Where the results of a row go. */
typedef struct rope_append_results {
  assay_expected *q, *k_out, *cache[2]; /* cache: K, V; k_out NULL: absent */
  int64_t slot;                         /* slot of the row */
} rope_append_results;

/* The functions of an operator that compute a head. `at` is its first element in the result, `run` the operator's
 * own. */
typedef struct rope_append_heads {
  assay_status (*q)(const void *run, int64_t n, int64_t h, int64_t at, assay_error *error);
  assay_status (*k)(const void *run, int64_t n, int64_t h, int64_t at, assay_error *error);
  void (*v)(const void *run, int64_t n, int64_t h, int64_t at);
} rope_append_heads;

/* Computes all heads of the rows, row by row. `to` is part of `run`; it is set before any head is computed, and its
 * slot before each row. exchanged: k and v of two neighbouring rows go to each other's slots, a planted error. Refuses
 * positions outside the table, and two rows of one slot. */
assay_status rope_append_rows(const assay_call *call, const assay_rows *rows, const rope_append_heads *heads,
                              const void *run, rope_append_results *to, bool exchanged, assay_expected *expected,
                              assay_error *error);
/* Copies the outputs without sigma, for planted errors. */
void rope_append_values(const assay_call *call, const assay_expected *expected, assay_expected *values);

/* The parts of a stored number that are lost: planted errors. */
typedef struct rope_append_loss {
  bool scale;      /* fp8: not divided */
  bool head_scale; /* fp8: every head takes the factor of head 0 */
  bool rounding;   /* k: quantised before it is rounded to its type */
} rope_append_loss;

/* Returns what is expected of the cache for y, a channel of head h of k. In an f32 cache it is the result of the
 * arithmetic, which sigma is about. Rounded, it could lie half an ulp beside that, and a right number an ulp beside. */
double rope_append_expected_k(const assay_call *call, int64_t h, double y, rope_append_loss loss);
/* Return the number that the cache holds for y, a channel of head h of k or of v. */
double rope_append_stored_k(const assay_call *call, int64_t h, double y, rope_append_loss loss);
double rope_append_stored_v(const assay_call *call, int64_t h, double y, rope_append_loss loss);

/* Fills cosines, sines or positions. Returns false for other arguments. */
bool rope_append_fill_angles(const assay_fill *fill, int32_t arg, double *value, int64_t count);
/* Returns how large the numbers must be that are stored as keys in fp8, so that they fill the codes; else 1. */
double rope_append_key_size(const assay_fill *fill);

/* Fill keys and values of the pool and of the rows: no key of the pool is read. */
void rope_append_fill_k(const assay_fill *fill, int64_t content, int64_t kv_head, double *value);
void rope_append_fill_v(const assay_fill *fill, int64_t content, int64_t kv_head, double *value);
bool rope_append_visible(const assay_call *call, int64_t request, int64_t length, int64_t first_position,
                         int64_t token);

#endif
