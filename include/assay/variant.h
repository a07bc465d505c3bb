/* variant.h: one implementation of an operator, as a row of a table. Compiles alone as C17 and as C++20. */
#ifndef ASSAY_VARIANT_H
#define ASSAY_VARIANT_H

#include "op.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The resources of a launch. A launch never allocates, synchronises, or touches the default stream. */
typedef struct assay_env {
  void *stream;            /* cudaStream_t on cuda; ignored by simt */
  void *workspace;         /* device memory, 256-byte aligned */
  int64_t workspace_bytes; /* at least what workspace() asked for */
  int32_t multiprocessors; /* constant of the device */
  char path[96];           /* out: the branch, tile and split count that were taken */
  /* Constant of the device: bytes per ns that its memory could move; 0: unknown. It may decide when a kernel does
   * something, never what: results do not depend on it. */
  int32_t memory_rate;
  /* Bit i: no launch that may still run or wait before this one in the stream writes argument i of the call. A
   * dependent launch may read that argument before it waits. 0: nothing is known. Results do not depend on it. */
  uint64_t settled;
} assay_env;

#ifdef __cplusplus
#define ASSAY_NOT_GIVEN = nullptr /* rows by position may end before this field */
#else
#define ASSAY_NOT_GIVEN
#endif

/* One row: a variant of an operator. Its strings live as long as the table. */
typedef struct assay_variant {
  uint32_t struct_size; /* sizeof(assay_variant) where the row was compiled */
  const char *op;
  const char *name;   /* named by strategy: split_keys, never kernel6 */
  const char *why;    /* why it exists */
  const char *device; /* "cuda" or "simt" */
  const char *arch;   /* "sm_90a", "any" */
  /* The variant's claims: one list for each coverage axis, dtype | kv_dtype | layout | mode. Every combination
   * must be seen to PASS, or the run fails. kv_dtype "same" is the query's dtype. */
  const char *claims;
  assay_contract contract;
  assay_status (*supports)(const assay_call *call, assay_error *error); /* ASSAY_ERR_UNSUPPORTED and a reason */
  assay_status (*workspace)(const assay_call *call, int64_t *bytes, assay_error *error);
  assay_status (*launch)(const assay_call *call, assay_env *env, assay_error *error);
  /* Declares how the products of this call are summed: a claim that the judge holds to the last bit (docs/last-bit.md).
   * env has the constants of the device alone. `ends` stays valid until the next call. ASSAY_ERR_UNSUPPORTED: it is not
   * known for this call. NULL: never. */
  assay_status (*sums)(const assay_call *call, const assay_env *env, assay_sums *sums,
                       assay_error *error) ASSAY_NOT_GIVEN;
} assay_variant;

#undef ASSAY_NOT_GIVEN

#ifdef __cplusplus
}
#endif
#endif
