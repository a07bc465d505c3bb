/* sections.h: the names of a suite's sections, in the order of case_section. */
#ifndef ASSAY_CONFORMANCE_CASE_SECTIONS_H
#define ASSAY_CONFORMANCE_CASE_SECTIONS_H

#include "types.h"

enum { SECTION_COUNT = SECTION_BENCH + 1 };
/* As a key's list of names, and for messages. */
#define SECTION_NAMES "check,edge,refuse,bench"
#define SECTION_LIST  "check, edge, refuse, bench"

/* Returns the name, "?" for no section. */
const char *section_name(case_section section);
/* Returns the section of that name, or -1. */
int32_t section_find(const char *name);
/* Returns "exact" or "calibrated". */
const char *tier_name(case_tier tier);

#endif
