/* power.h: would the judge see a planted error? For a case that passed, the reference's result is spoiled in each of
 * the ways that the operator lists, over the whole case, rounded to the output's type, and judged as if a kernel had
 * made it. No kernel runs. */
#ifndef ASSAY_CONFORMANCE_POWER_H
#define ASSAY_CONFORMANCE_POWER_H

#include "judge.h"

enum { POWER_MAX_SPOILS = 32, POWER_SAMPLE = 4, POWER_SAMPLE_LARGE = 16, POWER_LEAST_EFFECTIVE = 20 };

/* Above this many operations a case is large, and each spoil is judged in one of POWER_SAMPLE_LARGE of such cases. */
static const double POWER_LARGE_FLOPS = 2e8;

typedef enum power_mode {
  POWER_OFF,
  POWER_SAMPLED, /* each spoil in one of POWER_SAMPLE cases, drawn by the case's seed and the variant */
  POWER_ALL
} power_mode;

/* For all cases that this process and the workers it forks judge from now on; off until then. */
void power_set(power_mode mode);
power_mode power_get(void);
/* "off", "sample", "all"; by name, or -1. */
const char *power_mode_name(power_mode mode);
int power_mode_find(const char *name);

/* Planted errors that the operator lists, and can compute. */
int32_t power_count(const assay_op *op);
/* Name of number `index`; "" behind the last. */
void power_name(const assay_op *op, int32_t index, char *name, size_t size);
/* The bits of the names, which are separated by commas; names that the operator does not list count for nothing. */
uint32_t power_bits(const assay_op *op, const char *names);

#endif
