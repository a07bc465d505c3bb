/* contract.c: assay contract: the narrowest contract that explains a variant's errors. */
#include <stdlib.h>
#include <string.h>

#include "choose.h"
#include "conformance/report/report.h"
#include "conformance/run/run.h"
#include "conformance/text/text.h"
#include "core/contract.h"
#include "core/registry.h"

enum { USUAL_CASES = 32 };

/* The cases that one variant is judged by. */
typedef struct sample {
  const cli_options *options;
  const assay_variant *variant;
  assay_case *cases; /* all that could be taken, in the order in which they are tried; then those kept */
  int64_t count, kept, wanted, next;
  bool chosen; /* the first call has chosen the cases */
  int32_t contracts;
  narrow_seen *seen;
  int64_t judged;
  double worst; /* the largest ratio of the declared contract */
  assay_case worst_case;
  char worst_message[1600];
  int64_t unjudged; /* cases without values */
  assay_case unjudged_case;
  char unjudged_message[1700], host[1600];
} sample;

static void note(sample *s, const case_result *result) {
  for (int32_t i = 0; i < s->contracts; ++i) {
    const double ratio = (double)result->rms[i];
    if (!(ratio <= s->seen[i].largest)) s->seen[i].largest = ratio;
    s->seen[i].mean += ratio < 1e6 ? ratio : 1e6;
  }
  ++s->judged;
}

static void note_unjudged(sample *s, const assay_case *one, const case_result *result) {
  if (s->unjudged++ > 0) return;
  s->unjudged_case = *one;
  (void)snprintf(s->unjudged_message, sizeof s->unjudged_message, "%s %s: %s", verdict_name(result->verdict),
                 result->check, result->message);
}

/* Keeps the case if it has values to judge and cases are wanted. */
static void choose(sample *s, const assay_case *one, const case_result *result) {
  if (s->kept == s->wanted || result->verdict == VERDICT_UNSUPPORTED || result->verdict == VERDICT_WEAK) return;
  if (result->elements_judged == 0 && verdict_is_good(result->verdict)) return;
  if (result->elements_judged == 0) {
    note_unjudged(s, one, result);
    return;
  }
  if (!((double)result->rms[0] <= s->worst)) {
    s->worst = (double)result->rms[0];
    s->worst_case = *one;
    (void)snprintf(s->worst_message, sizeof s->worst_message, "%s", result->message);
  }
  note(s, result);
  s->cases[s->kept++] = *one; /* not after the one that is judged */
}

static void on_done(void *context, int64_t index, const assay_case *one, const case_result *result) {
  sample *s = context;
  (void)index;
  if (result->verdict == VERDICT_HOST && s->host[0] == '\0')
    (void)snprintf(s->host, sizeof s->host, "host: %.1500s", result->message);
  const assay_case copy = *one;
  if (!s->chosen)
    choose(s, &copy, result);
  else if (result->elements_judged > 0)
    note(s, result);
}

static execute_more next_case(void *context, int64_t index, const assay_case **one) {
  const sample *s = context;
  if (s->kept == s->wanted || index >= s->count) return EXECUTE_END;
  *one = &s->cases[index];
  return EXECUTE_CASE;
}

static assay_status ask(void *context, const assay_contract *list, int32_t count, narrow_seen *seen,
                        assay_error *error) {
  sample *s = context;
  const cli_options *options = s->options;
  const execute_options execution = {options->workers, options->deadline_s, false, options->threads};
  s->contracts = count;
  s->seen = seen;
  s->judged = 0;
  memset(seen, 0, (size_t)count * sizeof *seen);
  contracts_ask(list, count);
  assay_status status = s->chosen ? execute_cases(s->cases, s->kept, &execution, on_done, s, error)
                                  : execute_stream(next_case, options->device, &execution, on_done, s, error);
  contracts_ask(NULL, 0);
  s->chosen = true;
  if (status == ASSAY_OK && s->host[0] != '\0') status = assay_fail(error, ASSAY_ERR_IO, "%s", s->host);
  for (int32_t i = 0; i < count && s->judged > 0; ++i)
    seen[i].mean /= (double)s->judged;
  return status;
}

static int64_t common_factor(int64_t a, int64_t b) {
  while (b > 0) {
    const int64_t rest = a % b;
    a = b;
    b = rest;
  }
  return a;
}

/* Takes the variant's calibrated cases in an order that spreads any first part of them over all. */
static assay_status gather(sample *s, const assay_case *cases, int64_t count, assay_error *error) {
  assay_case *mine = malloc(((size_t)count + 1) * sizeof *mine);
  s->cases = malloc(((size_t)count + 1) * sizeof *s->cases);
  s->count = 0;
  if (mine == NULL || s->cases == NULL) {
    free(mine);
    return assay_fail(error, ASSAY_ERR_MEMORY, "contract: out of memory for %lld cases", (long long)count);
  }
  for (int64_t i = 0; i < count; ++i)
    if (strcmp(cases[i].op->name, s->variant->op) == 0 && strcmp(cases[i].variant, s->variant->name) == 0 &&
        cases[i].tier != TIER_EXACT && cases[i].section != SECTION_REFUSE)
      mine[s->count++] = cases[i];
  int64_t step = (int64_t)(0.6180339887 * (double)s->count) + 1;
  while (common_factor(step, s->count) > 1)
    ++step;
  for (int64_t i = 0; i < s->count; ++i)
    s->cases[i] = mine[i * step % s->count];
  free(mine);
  return ASSAY_OK;
}

/* ---- what is printed --------------------------------------------------------------------------------- */

static void print_replay(const sample *s, const assay_case *one) {
  static char line[CASE_MAX_LINE];
  assay_error error = {""};
  const char *origin = assay_plugin_origin(s->variant);
  if (case_print(one, line, sizeof line, &error) != ASSAY_OK) return;
  const replay again = {.descriptor = line,
                        .op = one->op->name,
                        .variant = one->variant,
                        .device = one->device,
                        .suite = one->suite,
                        .name = one->name,
                        .check = "element",
                        .verdict = VERDICT_FAIL,
                        .plugins = origin != NULL ? origin : "",
                        .forced = "",
                        .deadline_s = cli_own_deadline(s->options)};
  (void)printf("  ");
  replay_write(stdout, &again);
  (void)printf("\n");
}

/* Prints the fields that matter for these cases. */
static void print_fields(const assay_contract *declared, const narrow_result *r) {
  (void)printf("  %-16s %-12s %s\n", "field", "declared", r->found ? "narrowest" : "widest");
  for (int32_t i = 0; i < NARROW_FIELDS; ++i) {
    char own[40], found[40];
    const contract_field *field = contract_field_find(narrow_field(i));
    contract_value(declared, field, own, sizeof own);
    contract_value(&r->contract, field, found, sizeof found);
    if (r->matters[i]) (void)printf("  %-16s %-12s %s\n", field->name, own, found);
  }
}

static void print_ratios(const narrow_seen *declared, const narrow_seen *other) {
  (void)printf("  %-16s %-12.3g %.3g\n", "largest ratio", declared->largest, other->largest);
  (void)printf("  %-16s %-12.3g %.3g\n", "mean ratio", declared->mean, other->mean);
}

/* Prints the fields in which a contract differs from the one that was found. */
static void print_other(const narrow_result *r, int32_t index) {
  (void)printf("  holds as well:");
  for (int32_t i = 0; i < NARROW_FIELDS; ++i) {
    char found[40], other[40];
    const contract_field *field = contract_field_find(narrow_field(i));
    contract_value(&r->contract, field, found, sizeof found);
    contract_value(&r->other[index], field, other, sizeof other);
    if (strcmp(found, other) != 0) (void)printf(" %s %s,", field->name, other);
  }
  (void)printf(" largest ratio %.3g, mean %.3g\n", r->other_seen[index].largest, r->other_seen[index].mean);
}

static int print_result(const sample *s, const narrow_result *r) {
  const bool declared = r->declared.largest <= 1 && s->unjudged == 0;
  (void)printf("contract %s/%s (%s): %lld cases, %d contracts\n", s->variant->op, text_shown(s->variant->name),
               s->variant->device, (long long)s->kept, r->asked);
  print_fields(&s->variant->contract, r);
  print_ratios(&r->declared, &r->seen);
  for (int32_t i = 0; i < r->others && r->found; ++i)
    print_other(r, i);
  if (s->unjudged > 0) {
    (void)printf("  %lld cases have no values: %s\n", (long long)s->unjudged, text_shown(s->unjudged_message));
    print_replay(s, &s->unjudged_case);
  }
  if (!(r->declared.largest <= 1)) {
    (void)printf("  under the declared contract: %s\n", text_shown(s->worst_message));
    print_replay(s, &s->worst_case);
  }
  if (declared)
    (void)printf("the declared contract holds\n");
  else if (r->found)
    (void)printf("the declared contract does not hold%s\n", r->declared.largest <= 1 ? ": cases have no values" : "");
  else
    (void)printf("no contract explains the results: this is no rounding\n");
  return declared ? EXIT_GOOD : r->found ? EXIT_BAD : EXIT_UNEXPLAINED;
}

/* Searches for one variant. `code` gets the exit status; EXIT_NOTHING: it took no case. */
static assay_status judge_variant(const cli_options *options, const assay_variant *v, const assay_case *cases,
                                  int64_t count, int *code, assay_error *error) {
  static sample s;
  narrow_result found;
  memset(&s, 0, sizeof s);
  s.options = options;
  s.variant = v;
  s.wanted = options->cases > 0 ? options->cases : USUAL_CASES;
  *code = EXIT_NOTHING;
  assay_status status = gather(&s, cases, count, error);
  if (status == ASSAY_OK && s.count > 0) status = narrow_search(&v->contract, ask, &s, &found, error);
  if (status == ASSAY_OK && s.kept > 0) *code = print_result(&s, &found);
  if (status == ASSAY_OK && s.kept == 0 && s.unjudged > 0) {
    (void)printf("contract %s/%s: no case has values: %s\n", v->op, text_shown(v->name),
                 text_shown(s.unjudged_message));
    print_replay(&s, &s.unjudged_case);
    *code = EXIT_UNEXPLAINED;
  }
  free(s.cases);
  return status;
}

/* Orders exit statuses: a worse one wins. */
static int worse(int a, int b) {
  static const int order[] = {EXIT_NOTHING, EXIT_GOOD, EXIT_BAD, EXIT_UNEXPLAINED};
  int x = 0, y = 0;
  while (order[x] != a)
    ++x;
  while (order[y] != b)
    ++y;
  return x > y ? a : b;
}

int cli_contract_command(int argc, char **argv) {
  int code = EXIT_NOTHING;
  assay_error error = {""};
  cli_options options;
  case_list list = {NULL, 0};
  assay_case *cases = NULL;
  int64_t count = 0;
  assay_device_info info;
  assay_status status = cli_parse(argc, argv, "contract", &options, &error);
  if (status == ASSAY_OK && options.words.count == 0)
    status = assay_fail(&error, ASSAY_ERR_INPUT, "contract: needs at least one suite or operator, found none");
  if (status == ASSAY_OK) status = cli_load_plugins(&options, &error);
  if (status == ASSAY_OK) status = cli_check_variants(&options, &error);
  if (status == ASSAY_OK) status = cli_suite_words(&options.words, 0, &error);
  for (int32_t i = 0; i < options.words.count && status == ASSAY_OK; ++i)
    status = expand_suite(options.words.item[i], options.seed, &list, &error);
  if (status == ASSAY_OK) status = cli_cross(&options, &list, &cases, &count, &error);
  if (status == ASSAY_OK && count == 0) cli_say_none(&options, &list);
  if (status == ASSAY_OK) status = cli_probe(options.device, &info, &error);
  for (int32_t v = 0; v < assay_variant_count() && status == ASSAY_OK; ++v) {
    int own = EXIT_NOTHING;
    const assay_variant *variant = assay_variant_at(v);
    if (!cli_variant_chosen(&options, variant)) continue;
    status = judge_variant(&options, variant, cases, count, &own, &error);
    code = worse(code, own);
  }
  if (status != ASSAY_OK) code = cli_leave_run(status, &error);
  if (status == ASSAY_OK && code == EXIT_NOTHING)
    (void)fprintf(stderr, "assay: contract: no variant took a calibrated case of these suites\n");
  free(cases);
  case_list_free(&list);
  return cli_written(code);
}
