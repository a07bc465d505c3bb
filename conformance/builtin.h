/* builtin.h: fills the registry with the operators of ops.def and the variants this build has. */
#ifndef ASSAY_CONFORMANCE_BUILTIN_H
#define ASSAY_CONFORMANCE_BUILTIN_H

#include "assay/status.h"

/* Fails as the registry does where an entry breaks its rules. */
assay_status builtin_register(assay_error *error);

#endif
