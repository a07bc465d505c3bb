/* explain.h: a known mistake whose result is the one that was found. */
#ifndef ASSAY_CONFORMANCE_EXPLAIN_H
#define ASSAY_CONFORMANCE_EXPLAIN_H

#include <stdbool.h>

/* Costs some hundred runs of the reference on one row; so only where it is asked for. Workers inherit it. */
void explain_enable(bool on);

#endif
