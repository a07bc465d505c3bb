/* calls.h: calls of variants. Code from outside may change the modes of its thread (core/modes.h). */
#ifndef ASSAY_CORE_CALLS_H
#define ASSAY_CORE_CALLS_H

#include "assay/variant.h"

/* Call the variant with the modes set, and note what it has changed. The variant sees the operator as assay_op_shown
 * gives it. supports() is not called, and the result is ASSAY_ERR_INPUT, if the contract is not believed
 * (core/contract.h). */
assay_status variant_supports(const assay_variant *v, const assay_call *call, assay_error *error);
assay_status variant_workspace(const assay_variant *v, const assay_call *call, int64_t *bytes, assay_error *error);
/* Asks for the sum contract of the call (docs/last-bit.md). ASSAY_ERR_UNSUPPORTED: the variant declares none. */
assay_status variant_sums(const assay_variant *v, const assay_call *call, const assay_env *env, assay_sums *sums,
                          assay_error *error);
/* Plans the call, then launches it. */
assay_status variant_launch(const assay_variant *v, const assay_call *call, assay_env *env, assay_error *error);
/* The two halves of variant_launch. The first is for the host's work of doors (core/registry.h), outside clock and
 * capture; without a door it does nothing. The second launches a call that is planned. A graph that is replayed over
 * other lengths or tables needs the plan of these. */
assay_status variant_plan(const assay_variant *v, const assay_call *call, assay_env *env, assay_error *error);
assay_status variant_launch_planned(const assay_variant *v, const assay_call *call, assay_env *env, assay_error *error);

#endif
