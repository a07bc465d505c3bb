/* truth_internal.h: the report of one case or tensor, part by part. */
#ifndef ASSAY_CONFORMANCE_TRUTH_TRUTH_PARTS_H
#define ASSAY_CONFORMANCE_TRUTH_TRUTH_PARTS_H

#include "conformance/trial/trial.h"
#include "truth.h"

typedef struct truth_report {
  int64_t covered, elements;
  bool failed;
  bool elements_only;    /* means over rows and requests are not judged: roundings are shared by whole rows */
  double largest, ratio; /* over the parts: error; the larger of error over allowed, elements and means */
  char message[500];     /* the first failure */
  char left[300];        /* outputs that no operator gives, and why */
  char reason[300];      /* the reason why nothing was covered */
} truth_report;

/* Compares one output of a call whose reference was asked with numbers in the operator's own layout. */
void truth_compare(truth_report *r, const foreign_call *f, const char *output, const double *value);
/* Notes an error on the way, with the message of `error`. */
void truth_failed(truth_report *r, const assay_error *error);
/* Finds the planted errors of the operator that a tolerance (relative, absolute) lets through, and those that our
 * limits miss. They are planted into the results of this call, whose reference was asked. Prints one line. Outputs that
 * keep bits are left out. */
assay_status truth_tolerance(const foreign_call *f, const char *name, const double tolerance[2], truth_log *log,
                             assay_error *error);
/* Prints the line of the whole report. */
void truth_line(truth_log *log, const char *name, const truth_report *r);

#endif
