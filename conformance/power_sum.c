/* power_sum.c: see power_sum.h. */
#include "power_sum.h"

#include <stdlib.h>

enum { MAX_OPS = 64 };

typedef struct op_power {
  const assay_op *op;
  bool own_suite; /* it was among those that ran */
  int64_t asked;  /* cases in which a spoil was tried */
  int64_t seen[POWER_MAX_SPOILS], unseen[POWER_MAX_SPOILS], empty[POWER_MAX_SPOILS], weak[POWER_MAX_SPOILS];
  char example[POWER_MAX_SPOILS][240]; /* the first case of each that neither tier sees */
} op_power;

struct power_sum {
  op_power row[MAX_OPS];
  int32_t count;
};

assay_status power_sum_open(power_sum **made, assay_error *error) {
  *made = calloc(1, sizeof **made);
  return *made != NULL ? ASSAY_OK : assay_fail(error, ASSAY_ERR_MEMORY, "power: out of memory");
}

void power_sum_close(power_sum *sum) {
  free(sum);
}

static op_power *row_of(power_sum *sum, const assay_op *op) {
  for (int32_t i = 0; i < sum->count; ++i)
    if (sum->row[i].op == op) return &sum->row[i];
  if (sum->count == MAX_OPS) return NULL;
  sum->row[sum->count].op = op;
  return &sum->row[sum->count++];
}

void power_sum_note(power_sum *sum, const assay_case *one, const case_result *result) {
  const int32_t count = power_count(one->op);
  op_power *row = count > 0 ? row_of(sum, one->op) : NULL;
  if (row == NULL) return;
  row->own_suite = row->own_suite || strcmp(one->suite, one->op->name) == 0;
  row->asked += (result->spoils_seen | result->spoils_unseen | result->spoils_void) != 0;
  for (int32_t i = 0; i < count; ++i) {
    const uint32_t bit = 1u << i;
    row->seen[i] += (result->spoils_seen & bit) != 0;
    row->unseen[i] += (result->spoils_unseen & bit) != 0;
    row->empty[i] += (result->spoils_void & bit) != 0;
    if ((result->spoils_weak & bit) == 0 || row->weak[i]++ > 0) continue;
    (void)snprintf(row->example[i], sizeof row->example[i], "%s/%s with %s, seed %llu", one->suite, one->name,
                   one->variant, (unsigned long long)one->seed);
  }
}

/* A sample may miss most of the few cases that a spoil changes. */
static int64_t least_effective(void) {
  return power_get() == POWER_ALL ? POWER_LEAST_EFFECTIVE : 1;
}

/* ---- at the end -------------------------------------------------------------------------------------- */

/* Of a part of a suite nothing is asked but that no case misses what it could see. */
static bool always_seen(const op_power *row, int32_t i, bool judge) {
  return row->unseen[i] == 0 && row->seen[i] >= (judge ? least_effective() : 0);
}

/* A line of text for what was missed; for a single case, for all that it says. */
static bool is_shown(const op_power *row, int32_t i, bool judge) {
  return !always_seen(row, i, judge) || (!judge && row->asked == 1 && row->seen[i] > 0);
}

static void report_spoil(const op_power *row, int32_t i, bool judge, report *out) {
  char name[64], why[400];
  power_name(row->op, i, name, sizeof name);
  const int64_t effective = row->seen[i] + row->unseen[i];
  report_power(out, row->op->name, name, row->seen[i], row->unseen[i], row->weak[i], row->empty[i],
               is_shown(row, i, judge));
  if (!judge) return;
  if (effective < least_effective()) {
    (void)snprintf(why, sizeof why, "changed the result in %lld cases, at least %lld are needed", (long long)effective,
                   (long long)least_effective());
    report_weak(out, row->op->name, name, why);
  } else if (row->weak[i] > 0) {
    (void)snprintf(why, sizeof why, "stays unseen in %lld cases and in their exact twins, first in %s",
                   (long long)row->weak[i], row->example[i]);
    report_weak(out, row->op->name, name, why);
  }
}

void power_sum_report(const power_sum *sum, bool judge, report *out) {
  for (int32_t r = 0; r < sum->count; ++r) {
    const op_power *row = &sum->row[r];
    if (row->asked == 0) continue;
    const int32_t count = power_count(row->op);
    const bool own = judge && row->own_suite;
    int32_t always = 0;
    char line[200];
    for (int32_t i = 0; i < count; ++i)
      always += always_seen(row, i, own);
    (void)snprintf(line, sizeof line, "power %s: %d spoils in %lld cases, %d seen in every effective case",
                   row->op->name, (int)count, (long long)row->asked, (int)always);
    report_line(out, line);
    for (int32_t i = 0; i < count; ++i)
      report_spoil(row, i, own, out);
  }
}
