/* explain.h: the search for a known mistake that gives a wrong result. */
#ifndef ASSAY_CONFORMANCE_PLANTED_EXPLAIN_H
#define ASSAY_CONFORMANCE_PLANTED_EXPLAIN_H

#include "conformance/trial/trial.h"

/* Turns the search on or off; it is off at first. It costs some hundred runs of the reference on one row. Workers
 * inherit the setting. */
void explain_enable(bool on);

/* Looks for a known mistake that gives the first wrong row, and writes it into the result's explanation. Does nothing
 * where the search is off. */
void explain_values(const trial *t, const outputs *got, const finding *found, case_result *result);

#endif
