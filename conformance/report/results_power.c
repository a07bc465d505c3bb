/* results_power.c: the sums that a run makes of its cases, made again from its file. */
#include "results_power.h"

#include <stdio.h>
#include <string.h>

#include "core/registry.h"
#include "power_sum.h"

/* Returns true for a run of suites. Mutants, drawn cases and older programs have no plan: nothing is known of them. */
static bool is_planned(const results_run *run) {
  return run->plan[0] != '\0' && power_mode_find(run->power) >= 0;
}

static void add_case(power_sum *sum, const results_case *from) {
  const assay_op *op = assay_op_find(from->op);
  assay_case one = {.op = op, .seed = from->seed};
  case_result result = {.verdict = from->verdict};
  if (op == NULL) return;
  (void)snprintf(one.suite, sizeof one.suite, "%s", from->suite);
  (void)snprintf(one.name, sizeof one.name, "%s", from->name);
  (void)snprintf(one.variant, sizeof one.variant, "%s", from->variant);
  result.spoils_seen = power_bits(op, from->spoils_seen);
  result.spoils_unseen = power_bits(op, from->spoils_unseen);
  result.spoils_void = power_bits(op, from->spoils_void);
  result.spoils_weak = power_bits(op, from->spoils_weak);
  power_sum_note(sum, &one, &result);
}

/* ---- one file ---------------------------------------------------------------------------------------- */

static const results_power *line_of(const results *r, int64_t run, const char *op, const char *spoil) {
  for (int64_t i = 0; i < r->power_count; ++i)
    if (r->powers[i].run == run && strcmp(r->powers[i].op, op) == 0 && strcmp(r->powers[i].spoil, spoil) == 0)
      return &r->powers[i];
  return NULL;
}

static bool agrees(const results *r, int64_t run, const power_sum *sum, char *what, size_t size) {
  int64_t asked = 0, lines = 0;
  power_counts c;
  int32_t count = 0;
  for (; power_sum_at(sum, count, &c); ++count) {
    char spoil[64];
    power_name(c.op, c.spoil, spoil, sizeof spoil);
    asked += c.seen + c.unseen + c.empty;
    const results_power *line = line_of(r, run, c.op->name, spoil);
    if (line != NULL && line->seen == c.seen && line->unseen == c.unseen && line->weak == c.weak &&
        line->empty == c.empty)
      continue;
    const results_power none = {.seen = 0};
    if (line == NULL) line = &none;
    (void)snprintf(what, size,
                   "planted error %s of %s: by its cases seen in %lld, unseen in %lld, weak in %lld, void in %lld; its "
                   "own sum is %lld, %lld, %lld, %lld%s",
                   spoil, c.op->name, (long long)c.seen, (long long)c.unseen, (long long)c.weak, (long long)c.empty,
                   (long long)line->seen, (long long)line->unseen, (long long)line->weak, (long long)line->empty,
                   line == &none ? " (no line of it)" : "");
    return false;
  }
  for (int64_t i = 0; i < r->power_count; ++i)
    lines += r->powers[i].run == run;
  if (lines == count && asked == r->runs[run].spoils) return true;
  (void)snprintf(what, size,
                 "planted errors: its cases name %lld of %d kinds, its sums are of %lld kinds, its end says %lld",
                 (long long)asked, (int)count, (long long)lines, (long long)r->runs[run].spoils);
  return false;
}

int results_power_adds_up(const results *r, int64_t run, char *what, size_t size) {
  power_sum *sum = NULL;
  assay_error error = {""};
  if (!is_planned(&r->runs[run]) || !r->runs[run].ended) return 1;
  if (power_sum_open(&sum, &error) != ASSAY_OK) {
    (void)snprintf(what, size, "%s", error.text);
    return -1;
  }
  for (int64_t i = 0; i < r->case_count; ++i)
    if (r->cases[i].run == run) add_case(sum, &r->cases[i]);
  const bool good = agrees(r, run, sum, what, size);
  power_sum_close(sum);
  return good;
}

/* ---- all shards of a run ----------------------------------------------------------------------------- */

/* Returns true for shards of one run. Strings that are equal have one address. */
static bool together(const results_run *a, const results_run *b) {
  return a == b || (a->shard[0] != '\0' && b->shard[0] != '\0' && a->plan == b->plan && a->device == b->device &&
                    a->seed == b->seed);
}

typedef struct note_taker {
  results *r;
  assay_status status;
  assay_error *error;
} note_taker;

static void take_note(void *context, const char *op, const char *spoil, const char *why) {
  note_taker *to = context;
  char text[512];
  (void)snprintf(text, sizeof text, "%s: %s", spoil, why);
  if (to->status == ASSAY_OK) to->status = results_note_add(to->r, op, text, to->error);
}

static assay_status join(results *r, int64_t first, report *out, assay_error *error) {
  const results_run *head = &r->runs[first];
  const power_mode mode = (power_mode)power_mode_find(head->power);
  power_sum *sum = NULL;
  note_taker notes = {r, ASSAY_OK, error};
  power_level level = POWER_WHOLE;
  const assay_status status = power_sum_open(&sum, error);
  if (status != ASSAY_OK) return status;
  for (int64_t i = 0; i < r->case_count; ++i)
    if (together(head, &r->runs[r->cases[i].run])) add_case(sum, &r->cases[i]);
  for (int64_t i = first; i < r->run_count; ++i)
    if (together(head, &r->runs[i]) && level != POWER_TOLD)
      level = !r->runs[i].every_variant ? POWER_CHOSEN : r->runs[i].whole ? level : POWER_TOLD;
  power_sum_tell(sum, mode, level, out, take_note, &notes);
  power_sum_close(sum);
  return notes.status;
}

assay_status results_power_join(results *r, report *out, assay_error *error) {
  assay_status status = ASSAY_OK;
  int32_t groups = 0;
  for (int pass = 0; pass < 2; ++pass) /* how many there are, then one after another */
    for (int64_t i = 0; i < r->run_count && status == ASSAY_OK; ++i) {
      const results_run *run = &r->runs[i];
      bool first = is_planned(run);
      for (int64_t j = 0; j < i && first; ++j)
        first = !together(&r->runs[j], run);
      if (!first) continue;
      groups += pass == 0;
      if (pass == 0) continue;
      char line[400];
      (void)snprintf(line, sizeof line, "planted errors of seed %llu on %s, %s%s:", (unsigned long long)run->seed,
                     run->device, run->shard[0] != '\0' ? "in shards, first " : "", run->file);
      if (groups > 1) report_line(out, line);
      status = join(r, i, out, error);
    }
  return status;
}
