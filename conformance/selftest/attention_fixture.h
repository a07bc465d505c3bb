/* attention_fixture.h: attention calls built by hand for the reference's own tests. Blocks are shuffled, and dead bytes
 * are all ones (NaN in every type). The stored values are at hand as plain f64 arrays in logical order. */
#ifndef ASSAY_SELFTEST_ATTENTION_FIXTURE_H
#define ASSAY_SELFTEST_ATTENTION_FIXTURE_H

#include "assay/op.h"

enum { FIXTURE_BATCH = 8 };

typedef struct fixture_spec {
  const assay_op *op;
  int64_t H, H_kv, D, block_size, F;
  assay_dtype dtype, kv_dtype;
  int layout; /* 0 nhd, 1 hnd, 2 x */
  int32_t batch;
  int32_t kv_len[FIXTURE_BATCH], new_len[FIXTURE_BATCH];
  bool ragged; /* false: decode, new_len is not read */
  assay_values values;
  double density;    /* negative: chance */
  int64_t important; /* tokens t with t mod important = 0 are important; 0: none */
  uint64_t seed;
  double k_scale, v_scale; /* fp8; heads differ by powers of two with per_head */
  bool per_head, slopes, lse, sink;
} fixture_spec;

typedef struct fixture {
  fixture_spec spec;
  int64_t G, N, capacity; /* capacity: tokens a table row can name */
  int64_t first_row[FIXTURE_BATCH + 1];
  double *q, *k, *v; /* as stored: [N, H, D], [batch, capacity, H_kv, D] twice */
  assay_tensor arg[ASSAY_MAX_ARGS];
  double param[ASSAY_MAX_PARAMS];
  assay_call call;
  double *out, *sigma, *lse, *lse_sigma; /* results of the last fixture_reference: [N, H, D], [N, H] */
  assay_seen seen;
} fixture;

/* Small sizes that are legal for both operators; change what matters. */
fixture_spec fixture_default(const assay_op *op);
/* Allocates and sets tables, lengths, default parameters, taps (sigma 3/4), gamma (1, -1/2, 2, 1, …), slopes. */
void fixture_make(const fixture_spec *spec, fixture *f);
void fixture_free(fixture *f);
void fixture_param(fixture *f, const char *name, double value);
assay_tensor *fixture_arg(fixture *f, const char *name);
/* Values from the operator's own recipes (spec.values). Parameters must be set before. */
void fixture_fill(fixture *f);
void fixture_set_q(fixture *f, int64_t row, int64_t head, const double *value);
void fixture_set_k(fixture *f, int64_t request, int64_t token, int64_t kv_head, const double *value);
void fixture_set_v(fixture *f, int64_t request, int64_t token, int64_t kv_head, const double *value);
const double *fixture_k(const fixture *f, int64_t request, int64_t token, int64_t kv_head);
const double *fixture_v(const fixture *f, int64_t request, int64_t token, int64_t kv_head);
/* Runs the reference over all rows into f->out and the rest. v_needed covers the whole pool. */
assay_status fixture_reference(fixture *f, const assay_contract *contract, bool exact, assay_error *error);

#endif
