/* power_sum.c: see power_sum.h. */
#include "power_sum.h"

#include <stdlib.h>

enum { MAX_OPS = 64 };

typedef struct op_power {
  const assay_op *op;
  bool own_suite; /* the suite of its name was among those that ran */
  int64_t asked;  /* cases in which a spoil was tried */
  int64_t seen[POWER_MAX_SPOILS], unseen[POWER_MAX_SPOILS], empty[POWER_MAX_SPOILS], weak[POWER_MAX_SPOILS];
  char example[POWER_MAX_SPOILS][240]; /* a case that neither tier sees: the least by its text */
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
    (void)snprintf(text, sizeof text, "%s/%s with %s, seed=0x%llx", one->suite, one->name, one->variant,
                   (unsigned long long)one->seed);
    if (row->weak[i]++ == 0 || strcmp(text, row->example[i]) < 0) memcpy(row->example[i], text, sizeof text);
  }
}

/* Returns the number of cases that a spoil must change. A sample may miss most of them. */
static int64_t least_effective(power_mode mode) {
  return mode == POWER_ALL ? POWER_LEAST_EFFECTIVE : 1;
}

/* ---- at the end -------------------------------------------------------------------------------------- */

typedef struct teller {
  power_mode mode;
  report *out;
  power_weak weak;
  void *context;
  bool any_shown, any_weak; /* lines that a reader may not know */
} teller;

/* A part of a suite is asked one thing alone: no case misses what it could see. */
static bool always_seen(const teller *to, const op_power *row, int32_t i, bool judge) {
  return row->unseen[i] == 0 && row->seen[i] >= (judge ? least_effective(to->mode) : 0);
}

/* Returns true for an error that was missed, and for every error that a single case sees: these have a line of text. */
static bool is_shown(const teller *to, const op_power *row, int32_t i, bool judge) {
  return !always_seen(to, row, i, judge) || (!judge && row->asked == 1 && row->seen[i] > 0);
}

static void tell_weak(teller *to, const op_power *row, const char *name, const char *why) {
  to->any_weak = true;
  report_weak(to->out, row->op->name, name, why);
  if (to->weak != NULL) to->weak(to->context, row->op->name, name, why);
}

/* Says what the lines mean and what to do, for a reader who has not met them. */
static void explain(const teller *to) {
  if (to->any_shown) {
    report_line(to->out,
                "    A spoil is an error planted in the expected result. It is void in a case that it does not "
                "change, and unseen");
    report_line(to->out, "    where the judge would pass it: sharpen the cases that it changes if many miss it "
                         "(docs/judging.md, Power).");
  }
  if (to->any_weak) {
    report_line(to->out, "    WEAK: a kernel with this error would pass the suite. Add cases that the error changes by "
                         "more than the limits");
    report_line(to->out,
                "    allow, or sharpen those that miss it: assay list cases SUITE has them by their seeds, and "
                "the JSONL has all");
    report_line(to->out, "    as spoils_weak and spoils_void (docs/judging.md, Power).");
  }
}

static void report_spoil(teller *to, const op_power *row, int32_t i, power_level level) {
  const bool judge = level == POWER_WHOLE;
  char name[64], why[400];
  power_name(row->op, i, name, sizeof name);
  const int64_t effective = row->seen[i] + row->unseen[i];
  const bool shown = is_shown(to, row, i, judge);
  to->any_shown = to->any_shown || shown;
  report_power(to->out, row->op->name, name, row->seen[i], row->unseen[i], row->weak[i], row->empty[i], shown);
  if (level == POWER_TOLD) return;
  if (judge && effective < least_effective(to->mode)) {
    (void)snprintf(why, sizeof why, "changed the result in %lld cases, at least %lld are needed", (long long)effective,
                   (long long)least_effective(to->mode));
    tell_weak(to, row, name, why);
  } else if (row->weak[i] > (judge ? 0 : row->seen[i])) {
    (void)snprintf(why, sizeof why, "stays unseen in %lld cases%s, one of them %s", (long long)row->weak[i],
                   row->op->inexact ? ", which have no exact twins" : " and in their exact twins", row->example[i]);
    tell_weak(to, row, name, why);
  }
}

/* Says that the limits are wider than every planted error, if so. */
static void report_blind(teller *to, const op_power *row) {
  int64_t seen = 0, unseen = 0;
  char why[200];
  for (int32_t i = 0; i < power_count(row->op); ++i) {
    seen += row->seen[i];
    unseen += row->unseen[i];
  }
  if (seen > 0 || unseen == 0) return;
  (void)snprintf(why, sizeof why, "are unseen, all that change a result, %lld times: the contract allows too much",
                 (long long)unseen);
  tell_weak(to, row, "planted errors", why);
}

void power_sum_tell(const power_sum *sum, power_mode mode, power_level level, report *out, power_weak weak,
                    void *context) {
  teller to = {mode, out, weak, context, false, false};
  for (int32_t r = 0; r < sum->count; ++r) {
    const op_power *row = &sum->row[r];
    if (row->asked == 0) continue;
    const int32_t count = power_count(row->op);
    const power_level own = row->own_suite ? level : POWER_TOLD;
    int32_t always = 0;
    char line[200];
    for (int32_t i = 0; i < count; ++i)
      always += always_seen(&to, row, i, own == POWER_WHOLE);
    (void)snprintf(line, sizeof line, "power %s: %d spoils in %lld cases, %d seen in every effective case",
                   row->op->name, (int)count, (long long)row->asked, (int)always);
    report_line(out, line);
    for (int32_t i = 0; i < count; ++i)
      report_spoil(&to, row, i, own);
    if (level == POWER_CHOSEN) report_blind(&to, row);
  }
  explain(&to);
}

void power_sum_report(const power_sum *sum, power_mode mode, power_level level, report *out) {
  power_sum_tell(sum, mode, level, out, NULL, NULL);
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
