/* item.h: one item of a suite. All its keys are read and checked before any case is drawn. */
#ifndef ASSAY_CONFORMANCE_SUITE_ITEM_H
#define ASSAY_CONFORMANCE_SUITE_ITEM_H

#include "expand.h"
#include "lengths.h"

enum { ITEM_MAX_KEYS = 90, ITEM_MAX_CASES = 100000, ITEM_MAX_THIN = 64, EXPAND_MAX_CASES = 1000000 };

/* A suite being expanded. */
typedef struct suite {
  char name[48];
  uint64_t seed;
  int64_t next; /* index of the next case in this suite */
  trace_set traces;
  case_list *list;
  int64_t room; /* allocated cases */
} suite;

/* Reads a map of a section and appends its cases for one operator. Fails with file:line:column. */
assay_status item_expand(suite *s, const assay_op *op, case_section section, yaml_node map, assay_error *error);

#endif
