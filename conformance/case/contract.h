/* contract.h: contracts as words: the keys of manifests (assay judge) and of bind files (assay run --ffi). */
#ifndef ASSAY_CONFORMANCE_CASE_CONTRACT_H
#define ASSAY_CONFORMANCE_CASE_CONTRACT_H

#include "assay/op.h"

/* The contract of an engine about which nothing is said: f32 throughout, plain sums, a good exp. */
extern const assay_contract contract_usual;

/* Sets one field by its key. `text`: the value as written; NULL: it is neither a number nor a word. Fails with
 * ASSAY_ERR_INPUT and the keys or values that are allowed: those of core/contract.h. */
assay_status contract_set(assay_contract *c, const char *key, const char *text, assay_error *error);

#endif
