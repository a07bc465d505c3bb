/* truth_parts.h: what became of one case or tensor, part by part. */
#ifndef ASSAY_CONFORMANCE_TRUTH_PARTS_H
#define ASSAY_CONFORMANCE_TRUTH_PARTS_H

#include "foreign.h"
#include "truth.h"

typedef struct truth_report {
  int64_t covered, elements;
  bool failed;
  double largest, ratio; /* over the parts: error; the larger of error over allowed, elements and means */
  char message[500];     /* the first failure */
  char left[300];        /* outputs that no operator gives, and why */
  char reason[300];      /* nothing was covered: why */
} truth_report;

/* One output of a call whose reference has been asked, against numbers in the operator's own layout. */
void truth_compare(truth_report *r, const foreign_call *f, const char *output, const double *value);
/* Something went wrong on the way: the message of `error`. */
void truth_failed(truth_report *r, const assay_error *error);
/* The line of all of it. */
void truth_line(truth_log *log, const char *name, const truth_report *r);

#endif
