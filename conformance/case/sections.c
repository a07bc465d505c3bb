/* sections.c: the names of a suite's sections and of the tiers. */
#include "sections.h"

#include <string.h>

static const char *const names[SECTION_COUNT] = {"check", "edge", "refuse", "bench"};

const char *section_name(case_section section) {
  return (uint32_t)section < SECTION_COUNT ? names[section] : "?";
}

int32_t section_find(const char *name) {
  for (int32_t i = 0; i < SECTION_COUNT; ++i)
    if (strcmp(names[i], name) == 0) return i;
  return -1;
}

const char *tier_name(case_tier tier) {
  return tier == TIER_EXACT ? "exact" : "calibrated";
}
