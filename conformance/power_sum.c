/* power_sum.c: see power_sum.h. */
#include "power_sum.h"

#include <stdlib.h>

enum { MAX_OPS = 64 };

typedef struct op_power {
  const assay_op *op;
  bool own_suite; /* it was among those that ran */
  int64_t asked;  /* cases in which a spoil was tried */
  int64_t seen[POWER_MAX_SPOILS], unseen[POWER_MAX_SPOILS], empty[POWER_MAX_SPOILS], weak[POWER_MAX_SPOILS];
  char example[POWER_MAX_SPOILS][240]; /* of the cases of each that neither tier sees, the least by its text */
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

/* Rows are kept by their operators' names. */
static op_power *row_of(power_sum *sum, const assay_op *op) {
  int32_t at = 0;
  while (at < sum->count && strcmp(sum->row[at].op->name, op->name) < 0)
    ++at;
  if (at < sum->count && sum->row[at].op == op) return &sum->row[at];
  if (sum->count == MAX_OPS) return NULL;
  memmove(&sum->row[at + 1], &sum->row[at], (size_t)(sum->count++ - at) * sizeof sum->row[at]);
  memset(&sum->row[at], 0, sizeof sum->row[at]);
  sum->row[at].op = op;
  return &sum->row[at];
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
    if ((result->spoils_weak & bit) == 0) continue;
    char text[sizeof row->example[i]];
    (void)snprintf(text, sizeof text, "%s/%s with %s, seed %llu", one->suite, one->name, one->variant,
                   (unsigned long long)one->seed);
    if (row->weak[i]++ == 0 || strcmp(text, row->example[i]) < 0) memcpy(row->example[i], text, sizeof text);
  }
}

/* A sample may miss most of the few cases that a spoil changes. */
static int64_t least_effective(power_mode mode) {
  return mode == POWER_ALL ? POWER_LEAST_EFFECTIVE : 1;
}

/* ---- at the end -------------------------------------------------------------------------------------- */

typedef struct teller {
  power_mode mode;
  report *out;
  power_weak weak;
  void *context;
} teller;

/* Of a part of a suite nothing is asked but that no case misses what it could see. */
static bool always_seen(const teller *to, const op_power *row, int32_t i, bool judge) {
  return row->unseen[i] == 0 && row->seen[i] >= (judge ? least_effective(to->mode) : 0);
}

/* A line of text for what was missed; for a single case, for all that it says. */
static bool is_shown(const teller *to, const op_power *row, int32_t i, bool judge) {
  return !always_seen(to, row, i, judge) || (!judge && row->asked == 1 && row->seen[i] > 0);
}

static void tell_weak(const teller *to, const op_power *row, const char *name, const char *why) {
  report_weak(to->out, row->op->name, name, why);
  if (to->weak != NULL) to->weak(to->context, row->op->name, name, why);
}

static void report_spoil(const teller *to, const op_power *row, int32_t i, bool judge) {
  char name[64], why[400];
  power_name(row->op, i, name, sizeof name);
  const int64_t effective = row->seen[i] + row->unseen[i];
  report_power(to->out, row->op->name, name, row->seen[i], row->unseen[i], row->weak[i], row->empty[i],
               is_shown(to, row, i, judge));
  if (!judge) return;
  if (effective < least_effective(to->mode)) {
    (void)snprintf(why, sizeof why, "changed the result in %lld cases, at least %lld are needed", (long long)effective,
                   (long long)least_effective(to->mode));
    tell_weak(to, row, name, why);
  } else if (row->weak[i] > 0) {
    (void)snprintf(why, sizeof why, "stays unseen in %lld cases and in their exact twins, one of them %s",
                   (long long)row->weak[i], row->example[i]);
    tell_weak(to, row, name, why);
  }
}

void power_sum_tell(const power_sum *sum, power_mode mode, bool judge, report *out, power_weak weak, void *context) {
  const teller to = {mode, out, weak, context};
  for (int32_t r = 0; r < sum->count; ++r) {
    const op_power *row = &sum->row[r];
    if (row->asked == 0) continue;
    const int32_t count = power_count(row->op);
    const bool own = judge && row->own_suite;
    int32_t always = 0;
    char line[200];
    for (int32_t i = 0; i < count; ++i)
      always += always_seen(&to, row, i, own);
    (void)snprintf(line, sizeof line, "power %s: %d spoils in %lld cases, %d seen in every effective case",
                   row->op->name, (int)count, (long long)row->asked, (int)always);
    report_line(out, line);
    for (int32_t i = 0; i < count; ++i)
      report_spoil(&to, row, i, own);
  }
}

void power_sum_report(const power_sum *sum, power_mode mode, bool judge, report *out) {
  power_sum_tell(sum, mode, judge, out, NULL, NULL);
}

bool power_sum_at(const power_sum *sum, int32_t index, power_counts *counts) {
  for (int32_t r = 0; r < sum->count; ++r) {
    const op_power *row = &sum->row[r];
    const int32_t count = row->asked > 0 ? power_count(row->op) : 0;
    if (index < count) {
      *counts =
          (power_counts){row->op, index, row->seen[index], row->unseen[index], row->weak[index], row->empty[index]};
      return true;
    }
    index -= count;
  }
  return false;
}
