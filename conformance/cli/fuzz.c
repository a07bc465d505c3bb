/* fuzz.c: assay fuzz: past failures first, then drawn cases through the executor until the budget is spent. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "choose.h"
#include "conformance/run/run.h"
#include "conformance/suite/suite.h"
#include "conformance/text/text.h"
#include "conformance/fuzz/fuzz.h"
#include "conformance/planted/planted.h"
#include "conformance/report/report.h"
#include "conformance/shrink/shrink.h"
#include "shrink_set.h"
#include "core/registry.h"

enum {
  MAX_OPS = 64,
  MAX_VARIANTS = 64,
  MAX_KINDS = 64,      /* failures told apart: operator, variant, check */
  EPOCH = 1024,        /* drawn cases from one time that results are told to the next */
  TOLD_AT_ONCE = 4096, /* up to that many drawn cases nothing is told late, so that a short campaign learns early */
  FIRST_EPOCH = 32,
  MAX_EMPTY = 10000,
  SHRINK_SECONDS = 20
};
static const double fallback_budget_s = 60;

/* A draw with a variant: what runs. */
typedef struct flight {
  assay_case one;
  fuzz_draw draw; /* the case's lists are here */
  int32_t op;     /* -1: a past failure, or a call that must be refused: the fuzzer hears nothing of it */
} flight;

/* A flight's result, kept until the end of its epoch. */
typedef struct told {
  fuzz_draw draw;
  int64_t made; /* its number among the drawn cases */
  int32_t op;
  bool judged;
  char variant[64], path[96], message[160];
} told;

typedef struct failure {
  assay_case one; /* owned */
  case_result result;
  int64_t count;
} failure;

typedef struct campaign {
  const cli_options *options;
  int32_t ops;
  const assay_op *op[MAX_OPS];
  fuzz *fuzz[MAX_OPS];
  const assay_variant *variant[MAX_OPS][MAX_VARIANTS];
  int32_t variants[MAX_OPS];
  case_list past; /* fixtures/regressions */
  int64_t past_case;
  int32_t past_variant;
  int64_t past_run, made, delivered;
  flight *ring; /* [EXECUTE_WINDOW] by index modulo */
  fuzz_draw current;
  int32_t current_op, current_variant; /* next variant for the draw; -1: a new draw is needed */
  int64_t turn;
  told *heard; /* [EPOCH + EXECUTE_WINDOW], in the order of their numbers */
  int32_t heard_count;
  int64_t judged, unsupported, inadmissible, exact, expected;
  failure kind[MAX_KINDS];
  int32_t kinds;
  double started, until;
  report *out;
  ledger *known;
  bool progress;
  double shown;
  assay_status status;
  assay_error error;
} campaign;

static double now_s(void) {
  struct timespec now;
  (void)clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

/* ---- cases ------------------------------------------------------------------------------------------- */

static int32_t op_index(const campaign *c, const assay_op *op) {
  for (int32_t i = 0; i < c->ops; ++i)
    if (c->op[i] == op) return i;
  return -1;
}

static const assay_case *take_off(campaign *c, int64_t index, const assay_case *one, const fuzz_draw *drawn, int32_t op,
                                  const assay_variant *variant) {
  flight *f = &c->ring[index % EXECUTE_WINDOW];
  f->op = op;
  if (drawn != NULL) fuzz_copy(drawn, &f->draw);
  f->one = drawn != NULL ? f->draw.one : *one;
  (void)snprintf(f->one.variant, sizeof f->one.variant, "%s", variant->name);
  (void)snprintf(f->one.device, sizeof f->one.device, "%s", variant->device);
  return &f->one;
}

/* Past failures of the operators asked for, each with every variant chosen. */
static const assay_case *next_past(campaign *c, int64_t index) {
  for (; c->past_case < c->past.count; ++c->past_case, c->past_variant = 0) {
    const assay_case *one = &c->past.cases[c->past_case];
    const int32_t op = op_index(c, one->op);
    if (op < 0 || !case_runs_on(one, c->options->device) || c->past_variant == c->variants[op]) continue;
    ++c->past_run;
    return take_off(c, index, one, NULL, -1, c->variant[op][c->past_variant++]);
  }
  return NULL;
}

/* Operators take turns; a draw goes to every variant that claims what it is. */
static const assay_case *next_drawn(campaign *c, int64_t index) {
  for (int32_t empty = 0; empty < MAX_EMPTY;) {
    if (c->current_variant < 0) {
      c->current_op = (int32_t)(c->turn++ % c->ops);
      c->status = fuzz_next(c->fuzz[c->current_op], &c->current, &c->error);
      if (c->status != ASSAY_OK) return NULL;
      c->current_variant = 0;
      ++empty;
    }
    while (c->current_variant < c->variants[c->current_op]) {
      const assay_variant *v = c->variant[c->current_op][c->current_variant++];
      if (!fuzz_is_for(c->fuzz[c->current_op], &c->current, v)) continue;
      ++c->made;
      return take_off(c, index, NULL, &c->current, c->current.phase == FUZZ_REFUSALS ? -1 : c->current_op, v);
    }
    c->current_variant = -1;
  }
  c->status = assay_fail(&c->error, ASSAY_ERR_INPUT, "fuzz: %d draws in turn that no chosen variant claims", MAX_EMPTY);
  return NULL;
}

/* Tells the fuzzers the results of drawn cases below number `end`, and keeps those of later cases. */
static void tell_fuzzers(campaign *c, int64_t end) {
  int32_t told_count = 0;
  for (; told_count < c->heard_count && c->heard[told_count].made < end; ++told_count) {
    const told *t = &c->heard[told_count];
    fuzz_told(c->fuzz[t->op], &t->draw, t->variant, t->judged, t->message);
    if (t->judged) fuzz_path(c->fuzz[t->op], &t->draw, t->variant, t->path);
  }
  c->heard_count -= told_count;
  if (told_count == 0) return;
  for (int32_t i = 0; i < c->heard_count; ++i) {
    c->heard[i] = c->heard[told_count + i];
    fuzz_copy(&c->heard[told_count + i].draw, &c->heard[i].draw); /* a draw points into itself */
  }
}

/* Returns the number of the first drawn case whose result is not told before case number `made`. Later than
 * TOLD_AT_ONCE it lies a window back. The executor has delivered everything before it, so that no worker waits for
 * the slowest case. */
static int64_t told_before(int64_t made) {
  return made <= TOLD_AT_ONCE ? made : made - EXECUTE_WINDOW;
}

/* Tells whether results are told before drawn case number `made`: at 32, 48, 64, 96 and so on, then once per epoch. */
static bool is_epoch(int64_t made) {
  const int64_t third = made % 3 == 0 ? made / 3 : made;
  return made > 0 && (made % EPOCH == 0 || (made >= FIRST_EPOCH && made < EPOCH && (third & (third - 1)) == 0));
}

static execute_more on_next(void *context, int64_t index, const assay_case **one) {
  campaign *c = context;
  if (c->status != ASSAY_OK || report_is_full(c->out)) return EXECUTE_END;
  *one = next_past(c, index);
  if (*one != NULL) return EXECUTE_CASE;
  if ((c->options->cases > 0 && c->made >= c->options->cases) || now_s() >= c->until) return EXECUTE_END;
  const int64_t made = index - c->past_run;
  if (is_epoch(made)) { /* the epoch's results first */
    if (c->delivered < c->past_run + told_before(made)) return EXECUTE_WAIT;
    tell_fuzzers(c, told_before(made));
  }
  *one = next_drawn(c, index);
  return *one != NULL ? EXECUTE_CASE : EXECUTE_END;
}

/* ---- results ----------------------------------------------------------------------------------------- */

/* Counts a failure by its kind; the first of each kind is kept, and made small in the end. */
static void keep_kind(campaign *c, const assay_case *one, const case_result *result) {
  for (int32_t i = 0; i < c->kinds; ++i) {
    failure *k = &c->kind[i];
    if (k->one.op != one->op || strcmp(k->one.variant, one->variant) != 0 || k->result.verdict != result->verdict ||
        strcmp(k->result.check, result->check) != 0)
      continue;
    ++k->count;
    return;
  }
  if (c->kinds == MAX_KINDS) return;
  failure *k = &c->kind[c->kinds];
  if (case_copy(one, &k->one, NULL) != ASSAY_OK) return;
  k->result = *result;
  k->count = 1;
  ++c->kinds;
}

/* Until the budget is spent or the cases are done, whichever is first. */
static double seconds_left(const campaign *c, double now) {
  double left = c->until - now;
  const int64_t done = c->delivered - c->past_run, wanted = c->options->cases;
  if (wanted > 0 && done > 0) {
    const double rest = (now - c->started) * (double)(wanted - done) / (double)c->delivered;
    if (rest < left) left = rest;
  }
  return left > 0 ? left : 0;
}

static void show_progress(campaign *c) {
  const double now = now_s();
  if (!c->progress || now - c->shown < 0.2) return;
  int64_t failed = 0, pairs = 0, reached = 0, paths = 0;
  for (int32_t i = 0; i < c->kinds; ++i)
    failed += c->kind[i].count;
  for (int32_t i = 0; i < c->ops; ++i) {
    fuzz_counts n;
    fuzz_count(c->fuzz[i], &n);
    pairs += n.pairs;
    reached += n.pairs_judged;
    paths += n.paths;
  }
  (void)fprintf(stderr,
                "\r\033[K%lld cases, %lld failed, %.0f cases/s, %.1f %% of pairs, %lld paths, about %.0f s left",
                (long long)c->delivered, (long long)failed, (double)c->delivered / (now - c->started + 1e-3),
                pairs > 0 ? 100.0 * (double)reached / (double)pairs : 0.0, (long long)paths, seconds_left(c, now));
  c->shown = now;
}

static void clear_progress(const campaign *c) {
  if (c->progress) (void)fputs("\r\033[K", stderr);
}

/* A drawn case of the exact tier may have values that do not lie on the lattice. It says nothing about the variant, and
 * is counted apart. */
static bool is_inadmissible(const flight *f, const case_result *result) {
  return f->op >= 0 && f->one.tier == TIER_EXACT && result->verdict == VERDICT_WEAK &&
         strcmp(result->check, "admission") == 0;
}

static void on_done(void *context, int64_t index, const assay_case *one, const case_result *result) {
  campaign *c = context;
  const flight *f = &c->ring[index % EXECUTE_WINDOW];
  ++c->delivered;
  if (report_is_full(c->out)) return; /* it was under way when the last failure that counts came in */
  c->exact += f->op >= 0 && one->tier == TIER_EXACT;
  if (is_inadmissible(f, result)) {
    ++c->inadmissible;
    show_progress(c);
    return;
  }
  const bool judged = result->verdict != VERDICT_UNSUPPORTED;
  c->judged += judged;
  c->unsupported += !judged;
  if (f->op >= 0) {
    if (judged) fuzz_judged(c->fuzz[f->op], &f->draw);
    told *t = &c->heard[c->heard_count++];
    fuzz_copy(&f->draw, &t->draw);
    t->made = index - c->past_run;
    t->op = f->op;
    t->judged = judged;
    (void)snprintf(t->message, sizeof t->message, "%.*s", (int)sizeof t->message - 1, judged ? "" : result->message);
    (void)snprintf(t->variant, sizeof t->variant, "%s", one->variant);
    (void)snprintf(t->path, sizeof t->path, "%s", result->path);
  }
  const ledger_entry *entry = ledger_note(c->known, one, result);
  const bool failed = entry == NULL && !verdict_is_good(result->verdict);
  if (failed) {
    keep_kind(c, one, result);
    clear_progress(c);
  }
  if (entry != NULL) {
    ++c->expected;
    report_expected(c->out, one, result, entry->reason);
  } else {
    report_add(c->out, one, result);
  }
  show_progress(c);
}

/* ---- the end ----------------------------------------------------------------------------------------- */

static void print_axes(const fuzz *f) {
  const char *name = NULL;
  char missing[256];
  int32_t judged = 0, possible = 0, column = 0;
  for (int32_t i = 0; fuzz_axis_reached(f, i, &name, &judged, &possible, missing, sizeof missing); ++i) {
    char text[400];
    (void)snprintf(text, sizeof text, "%s %d/%d%s%s%s", name, judged, possible, missing[0] != '\0' ? " (not " : "",
                   missing, missing[0] != '\0' ? ")" : "");
    if (column > 0 && column + (int32_t)strlen(text) > 104) {
      (void)printf("\n");
      column = 0;
    }
    column += (int32_t)printf("%s%s", column > 0 ? ", " : "    ", text);
  }
  (void)printf("\n");
}

/* Prints how often each variant was judged; one that never was says so in capitals. */
static void print_variants(const fuzz *f) {
  const char *name = NULL;
  int64_t given = 0, judged = 0;
  for (int32_t i = 0; fuzz_variant_reached(f, i, &name, &given, &judged); ++i)
    (void)printf("    variant %s: %lld of %lld judged%s\n", text_shown(name), (long long)judged, (long long)given,
                 judged == 0 ? ": NEVER JUDGED" : "");
}

static void print_coverage(const campaign *c) {
  for (int32_t i = 0; i < c->ops; ++i) {
    const char *path = NULL;
    int64_t count = 0;
    fuzz_counts n;
    fuzz_count(c->fuzz[i], &n);
    (void)printf("%s: %lld draws; claims %lld of %lld, values %lld of %lld, pairs %lld of %lld (%lld have no legal "
                 "case), %lld path classes\n",
                 c->op[i]->name, (long long)n.draws, (long long)n.claims_judged, (long long)n.claims,
                 (long long)n.values_judged, (long long)n.values, (long long)n.pairs_judged, (long long)n.pairs,
                 (long long)n.pairs_impossible, (long long)n.paths);
    (void)printf("    %lld draws of calls that must be refused, with %lld kinds of broken arguments\n",
                 (long long)n.refusals, (long long)n.broken_drawn);
    print_variants(c->fuzz[i]);
    print_axes(c->fuzz[i]);
    for (int64_t p = 0; fuzz_path_reached(c->fuzz[i], p, &path, &count); ++p)
      (void)printf("    %8lld  %s\n", (long long)count, text_shown(path));
  }
}

/* Each kind of failure once more, made small. */
static void print_failures(campaign *c) {
  for (int32_t i = 0; i < c->kinds; ++i) {
    const failure *k = &c->kind[i];
    assay_error error = {""};
    shrink_outcome small;
    (void)printf("%lld times %s %s/%s: %s\n", (long long)k->count, verdict_name(k->result.verdict), k->one.op->name,
                 text_shown(k->one.variant), k->result.check);
    (void)fflush(stdout);
    const shrink_options options = {.execution = {1, c->options->deadline_s, false}, .seconds = SHRINK_SECONDS};
    if (k->result.verdict == VERDICT_WEAK || shrink_case(&k->one, &k->result, &options, &small, &error) != ASSAY_OK)
      continue;
    if (small.reproduced)
      shrink_print(stdout, &small, replay_plugin(k->one.op->name, k->one.variant, k->one.device), NULL);
    shrink_free(&small);
  }
}

static void print_ledger(const campaign *c) {
  const ledger_entry *entry = NULL;
  for (int32_t i = 0; (entry = ledger_at(c->known, i)) != NULL; ++i)
    (void)printf("expected %s/%s: %s: %lld of %lld cases (%s)%s\n", entry->op, text_shown(entry->variant), entry->check,
                 (long long)entry->failed, (long long)entry->ran, text_shown(entry->reason),
                 ledger_is_stale(entry) ? ": did not fail here" : "");
}

/* ---- the command ------------------------------------------------------------------------------------- */

static bool variant_wanted(const void *context, const assay_variant *v) {
  return cli_variant_chosen(context, v);
}

static assay_status choose_ops(campaign *c, assay_error *error) {
  const cli_options *o = c->options;
  if (o->words.count == 0)
    return assay_fail(error, ASSAY_ERR_INPUT, "fuzz: needs at least one operator, see: assay list ops");
  for (int32_t i = 0; i < o->words.count; ++i) {
    const assay_op *op = assay_op_find(o->words.item[i]);
    if (op == NULL) return cli_unknown_op("fuzz", o->words.item[i], error);
    if (op_index(c, op) >= 0) continue;
    if (c->ops == MAX_OPS)
      return assay_fail(error, ASSAY_ERR_INPUT, "fuzz: found more than %d operators, allowed %d", MAX_OPS, MAX_OPS);
    c->op[c->ops] = op;
    for (int32_t k = 0; k < assay_variant_count() && c->variants[c->ops] < MAX_VARIANTS; ++k) {
      const assay_variant *v = assay_variant_at(k);
      if (strcmp(v->op, op->name) != 0 || !cli_variant_chosen(o, v)) continue;
      const assay_status believed = cli_check_contract(v, error);
      if (believed != ASSAY_OK) return believed;
      c->variant[c->ops][c->variants[c->ops]++] = v;
    }
    if (c->variants[c->ops] == 0)
      return assay_fail(error, ASSAY_ERR_UNSUPPORTED, "fuzz: %s has no variant on device %s", op->name, o->device);
    const fuzz_choice choice = {variant_wanted, o, o->where.item, o->where.count};
    const assay_status status = fuzz_make(op, o->device, o->seed, &choice, &c->fuzz[c->ops], error);
    if (status != ASSAY_OK) return status;
    ++c->ops;
  }
  return cli_refuse_idle(o, c->op, c->ops, error);
}

/* The folder may be missing or empty, unless it was asked for. */
static assay_status load_past(campaign *c, assay_error *error) {
  char beside[4096];
  struct stat about;
  (void)snprintf(beside, sizeof beside, "%s/regressions", folder_of_fixtures());
  const char *folder = c->options->regressions != NULL ? c->options->regressions : beside;
  if (c->options->regressions == NULL && (stat(folder, &about) != 0 || !S_ISDIR(about.st_mode))) return ASSAY_OK;
  assay_error why = {""};
  const assay_status status = expand_suite(folder, c->options->seed, &c->past, &why);
  if (status == ASSAY_OK || (c->options->regressions == NULL && strstr(why.text, "found no suite") != NULL))
    return ASSAY_OK;
  return assay_fail(error, status, "%s", why.text);
}

/* Too many draws off the lattice mean that the drawing is wrong, and that the exact tier goes unchecked. */
static int check_admission(const campaign *c, int code) {
  if (c->inadmissible < 20 || 10 * c->inadmissible < c->exact) return code;
  (void)printf("FAIL %lld of %lld cases of the exact tier are not on its lattice\n", (long long)c->inadmissible,
               (long long)c->exact);
  return code == EXIT_GOOD || code == EXIT_NOTHING ? EXIT_BAD : code;
}

static int finish(campaign *c, assay_status status, assay_error *error) {
  clear_progress(c);
  if (status != ASSAY_OK) {
    report_abandon(c->out);
    return cli_leave_run(status, error);
  }
  tell_fuzzers(c, INT64_MAX);
  print_coverage(c);
  print_ledger(c);
  print_failures(c);
  (void)printf("seed %llu; %lld past failures and %lld drawn cases; %lld judged, %lld unsupported, %lld off the "
               "lattice, %lld failed as expected\n",
               (unsigned long long)c->options->seed, (long long)c->past_run, (long long)c->made, (long long)c->judged,
               (long long)c->unsupported, (long long)c->inadmissible, (long long)c->expected);
  const int code = report_close(c->out, error);
  if (error->text[0] != '\0') return cli_leave(ASSAY_ERR_IO, error);
  return check_admission(c, code);
}

int cli_fuzz_command(int argc, char **argv) {
  int code = EXIT_BAD;
  assay_error error = {""};
  cli_options options;
  assay_device_info info;
  campaign *c = calloc(1, sizeof *c);
  memset(&info, 0, sizeof info);
  assay_status status = cli_parse(argc, argv, "fuzz", &options, &error);
  if (c == NULL) return cli_leave(ASSAY_ERR_MEMORY, &error);
  c->options = &options;
  c->current_variant = -1;
  c->ring = calloc(EXECUTE_WINDOW, sizeof *c->ring);
  c->heard = calloc(EPOCH + EXECUTE_WINDOW, sizeof *c->heard);
  if (status == ASSAY_OK && (c->ring == NULL || c->heard == NULL))
    status = assay_fail(&error, ASSAY_ERR_MEMORY, "fuzz: out of memory");
  if (status == ASSAY_OK) status = cli_load_plugins(&options, &error);
  if (status == ASSAY_OK) status = cli_check_variants(&options, &error);
  if (status == ASSAY_OK) status = cli_check_writable("--jsonl", options.jsonl, &error);
  if (status == ASSAY_OK) status = cli_check_writable("--junit", options.junit, &error);
  if (status == ASSAY_OK && options.ledger != NULL) status = ledger_open(options.ledger, &c->known, &error);
  if (status == ASSAY_OK) status = cli_probe(options.device, &info, &error);
  if (status == ASSAY_OK) status = choose_ops(c, &error);
  if (status == ASSAY_OK) status = load_past(c, &error);
  if (status == ASSAY_OK) {
    const report_options report_choice = {.text = stdout,
                                          .colour = cli_colour(&options),
                                          .all = options.all,
                                          .maxfail = options.maxfail,
                                          .deadline_s = cli_own_deadline(&options),
                                          .jsonl = options.jsonl,
                                          .junit = options.junit,
                                          .device = options.device,
                                          .info = &info,
                                          .seed = options.seed,
                                          .total = options.cases};
    status = report_open(&report_choice, &c->out, &error);
  }
  if (status != ASSAY_OK) {
    code = cli_leave(status, &error);
    goto done;
  }
  power_set(POWER_OFF);
  c->progress = isatty(STDERR_FILENO) != 0 && isatty(STDOUT_FILENO) != 0;
  c->started = now_s();
  c->until = c->started + (options.budget_s > 0 ? options.budget_s : options.cases > 0 ? 1e9 : fallback_budget_s);
  const execute_options execution = {options.workers, options.deadline_s, options.in_process, options.threads};
  status = execute_stream(on_next, options.device, &execution, on_done, c, &error);
  if (status == ASSAY_OK && c->status != ASSAY_OK) status = assay_fail(&error, c->status, "%s", c->error.text);
  code = finish(c, status, &error);
done:
  for (int32_t i = 0; i < MAX_OPS; ++i)
    fuzz_free(c->fuzz[i]);
  for (int32_t i = 0; i < c->kinds; ++i)
    case_free(&c->kind[i].one);
  case_list_free(&c->past);
  ledger_close(c->known);
  free(c->ring);
  free(c->heard);
  free(c);
  return code;
}
