/* power.h: tells whether the judge would see a planted error. It takes the reference's result of a case that passed and
 * spoils it over the whole case. It does so in each of the ways that the operator lists, rounds to the output's type,
 * and judges the result as a kernel's. No kernel runs. */
#ifndef ASSAY_CONFORMANCE_PLANTED_POWER_H
#define ASSAY_CONFORMANCE_PLANTED_POWER_H

#include "conformance/trial/trial.h"

enum { POWER_MAX_SPOILS = 32, POWER_SAMPLE = 4, POWER_SAMPLE_LARGE = 16, POWER_LEAST_EFFECTIVE = 20 };

/* A case of more operations is large, and each spoil is judged in one of POWER_SAMPLE_LARGE such cases. */
static const double POWER_LARGE_FLOPS = 2e8;

typedef enum power_mode {
  POWER_OFF,
  POWER_SAMPLED, /* each spoil in one of POWER_SAMPLE cases, drawn by the case's seed and the variant */
  POWER_ALL
} power_mode;

/* Sets the mode for all cases that this process, and the workers it forks, judge from now on. It is off at first. */
void power_set(power_mode mode);
power_mode power_get(void);
/* Returns "off", "sample" or "all"; power_mode_find returns the mode of a name, or -1. */
const char *power_mode_name(power_mode mode);
int power_mode_find(const char *name);

/* Returns the number of planted errors that the operator lists and can compute. */
int32_t power_count(const assay_op *op);
/* Writes the name of error number `index`, or "" after the last. */
void power_name(const assay_op *op, int32_t index, char *name, size_t size);
/* Returns the bits of the names, which are separated by commas. Names that the operator does not list are ignored. */
uint32_t power_bits(const assay_op *op, const char *names);

/* Tries the operator's planted errors on a case that passed, and notes in the result which ones would be seen. A spoil
 * that the reference cannot compute makes the case WEAK. */
void power_judge(const trial *t, case_result *result);

#endif
