/* bench.c: assay bench: cases judged, timed and judged again; figures beside their limits. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/compare.h"
#include "bench/past.h"
#include "bench/run.h"
#include "bench_peers.h"
#include "choose.h"
#include "cli.h"
#include "conformance/suite/suite.h"
#include "conformance/trial/trial.h"
#include "conformance/planted/planted.h"
#include "conformance/report/report.h"
#include "conformance/text/text.h"
#include "core/prefer.h"
#include "core/registry.h"

typedef struct bench_state {
  const assay_case *cases;
  const int64_t *group; /* NULL: every variant is timed */
  int64_t count;
  const cli_options *options;
  text_file jsonl;
  bench_limits limits;
  bool titled;
  int64_t timed, failed, unsupported;
  char descriptor[CASE_MAX_LINE];
} bench_state;

/* ---- text -------------------------------------------------------------------------------------------- */

static void print_title(void) {
  (void)printf("%-36s %-28s %-4s %10s %21s %5s %7s %9s %8s %9s %5s %7s\n", "operator/variant", "case", "mode", "us",
               "95% of the median", "n", "empty", "GB/s", "TFLOP/s", "limit us", "by", "% limit");
}

static void print_figure(bench_state *state, const assay_case *one, const bench_result *r, bench_mode mode) {
  const bench_figure *f = &r->figure[mode];
  const bench_bound bound = bench_limit(&r->cost, &state->limits, r->factors);
  char what[160], where[80];
  if (!state->titled) print_title();
  state->titled = true;
  (void)snprintf(what, sizeof what, "%s/%s", one->op->name, one->variant);
  (void)snprintf(where, sizeof where, "%s", one->name);
  (void)printf("%-36s %-28s %-4s %10.3f [%9.3f,%9.3f] %5lld", text_shown(what), text_shown(where),
               bench_mode_name(mode), f->us.median, f->us.low, f->us.high, (long long)f->us.count);
  if (f->empty_us > 0)
    (void)printf(" %7.3f", f->empty_us);
  else
    (void)printf(" %7s", "-");
  (void)printf(" %9.1f %8.3f", r->cost.bytes / f->us.median * 1e-3, r->cost.flops / f->us.median * 1e-6);
  if (bound.us > 0)
    (void)printf(" %9.3f %5s %6.1f%%\n", bound.us, bound.by, 100 * bound.us / f->us.median);
  else
    (void)printf(" %9s %5s %7s\n", "-", "-", "-");
}

static void print_no_figure(bench_state *state, const assay_case *one, const bench_result *r) {
  char id[192];
  cli_case_id(one, id, sizeof id);
  (void)printf("%s %s/%s on %s: %s%s: no figure\n  %s: %s\n", verdict_name(r->judged.verdict), one->op->name,
               text_shown(one->variant), one->device, r->judged.check, r->after ? ", found while timed" : "",
               text_shown(id), text_shown(r->judged.message));
  if (r->judged.verdict == VERDICT_UNSUPPORTED) return;
  const char *plugin = replay_plugin(one->op->name, one->variant, one->device);
  (void)fputs("  ", stdout);
  replay_write(stdout, &(replay){.descriptor = state->descriptor,
                                 .op = one->op->name,
                                 .variant = one->variant,
                                 .device = one->device,
                                 .suite = one->suite,
                                 .name = one->name,
                                 .check = r->judged.check,
                                 .verdict = r->judged.verdict,
                                 .plugins = plugin != NULL ? plugin : "",
                                 .forced = "",
                                 .deadline_s = cli_own_deadline(state->options)});
  (void)putchar('\n');
}

static void on_begun(void *context, const bench_limits *limits) {
  bench_state *state = context;
  state->limits = *limits;
  if (state->jsonl.stream != NULL) rows_limits(state->jsonl.stream, limits);
  if (!limits->there) return;
  (void)printf("limits measured here: copy %.3f TB/s, f32 fma %.1f TFLOP/s, bf16 mma.sync %.1f TFLOP/s, e4m3 "
               "mma.sync %.1f TFLOP/s, ",
               limits->rate[ASSAY_RATE_COPY] * 1e-12, limits->rate[ASSAY_RATE_FMA] * 1e-12,
               limits->rate[ASSAY_RATE_MMA] * 1e-12, limits->rate[ASSAY_RATE_MMA8] * 1e-12);
  if (limits->rate[ASSAY_RATE_GEMM] > 0)
    (void)printf("cuBLASLt %.1f TFLOP/s, of e4m3 %.1f TFLOP/s", limits->rate[ASSAY_RATE_GEMM] * 1e-12,
                 limits->rate[ASSAY_RATE_GEMM8] * 1e-12);
  else
    (void)fputs("cuBLASLt missing", stdout);
  (void)printf("; cache %.1f MB\n", (double)limits->cache_bytes * 1e-6);
}

/* Tells whether a variant declined a case that another one is still asked for. */
static bool asks_another(const bench_state *state, int64_t index, const bench_result *result) {
  return state->group != NULL && result->judged.verdict == VERDICT_UNSUPPORTED && index + 1 < state->count &&
         state->group[index + 1] == state->group[index];
}

static void on_done(void *context, int64_t index, const bench_result *result) {
  bench_state *state = context;
  const assay_case *one = &state->cases[index];
  assay_error error = {""};
  bool any = false;
  if (asks_another(state, index, result)) return;
  if (case_print(one, state->descriptor, sizeof state->descriptor, &error) != ASSAY_OK)
    (void)snprintf(state->descriptor, sizeof state->descriptor, "(%s)", error.text);
  for (int mode = 0; mode < BENCH_MODES && result->judged.verdict == VERDICT_PASS; ++mode)
    if (result->figure[mode].there) {
      print_figure(state, one, result, (bench_mode)mode);
      any = true;
    }
  if (!any) print_no_figure(state, one, result);
  state->timed += any;
  state->unsupported += !any && result->judged.verdict == VERDICT_UNSUPPORTED;
  state->failed += !any && result->judged.verdict != VERDICT_UNSUPPORTED;
  if (state->jsonl.stream != NULL) {
    rows_case(state->jsonl.stream, one, state->descriptor, result, &state->limits);
    text_note(&state->jsonl);
  }
  (void)fflush(stdout);
}

/* ---- cases ------------------------------------------------------------------------------------------- */

static bool chosen(const cli_options *options, const assay_case *one, bool on_host) {
  const unsigned bit = strcmp(options->device, "cuda") == 0 ? CASE_ON_CUDA : CASE_ON_SIMT;
  const char *section = options->section != NULL ? options->section : "bench";
  char id[192];
  if ((one->devices & bit) == 0 && !on_host) return false;
  if (strcmp(section, cli_section_name(one->section)) != 0) return false;
  cli_case_id(one, id, sizeof id);
  for (int32_t i = 0; i < options->filters.count; ++i)
    if (strstr(id, options->filters.item[i]) == NULL) return false;
  return true;
}

static const char *id_of(const void *context, int64_t index) {
  const case_list *list = context;
  static char id[256];
  if (index >= list->count) return NULL;
  cli_case_id(&list->cases[index], id, sizeof id);
  return id;
}

/* Says why no case is left, if the section or a filter is the reason. */
static void say_no_case(const cli_options *options, bool on_host, const case_list *list) {
  cli_options asked = *options;
  if (asked.section == NULL) asked.section = "bench";
  for (int64_t i = 0; i < list->count; ++i)
    if (chosen(options, &list->cases[i], on_host)) return;
  cli_say_no_case(&asked, id_of, list);
}

/* Pairs of a case and a variant, which are to be timed, and the number of each pair's case. */
typedef struct bench_pairs {
  assay_case *cases;
  int64_t *group;
  int64_t count;
} bench_pairs;

static assay_status push(bench_pairs *made, int64_t group, const assay_case *one, const char *variant,
                         const char *device, assay_error *error) {
  if ((made->count & (made->count - 1)) == 0) {
    const size_t room = made->count > 0 ? 2 * (size_t)made->count : 1;
    assay_case *grown = realloc(made->cases, room * sizeof *grown);
    if (grown != NULL) made->cases = grown;
    int64_t *numbers = grown != NULL ? realloc(made->group, room * sizeof *numbers) : NULL;
    if (numbers == NULL) return assay_fail(error, ASSAY_ERR_MEMORY, "bench: out of memory");
    made->group = numbers;
  }
  made->group[made->count] = group;
  assay_case *to = &made->cases[made->count++];
  *to = *one;
  (void)snprintf(to->variant, sizeof to->variant, "%s", variant);
  (void)snprintf(to->device, sizeof to->device, "%s", device);
  return ASSAY_OK;
}

static bool has_window(const assay_case *one) {
  for (int32_t i = 0; i < one->op->param_count; ++i)
    if (strcmp(one->op->params[i].name, "window") == 0) return one->param[i] > 0;
  return false;
}

static int64_t dim_of(const assay_case *one, const char *name) {
  for (int32_t i = 0; i < one->op->dim_count; ++i)
    if (strcmp(one->op->dims[i].name, name) == 0) return one->dim[i];
  return 0;
}

/* Tells whether a forward pass prefers the variant to those before it, for the lengths of this case. */
static bool preferred(const assay_case *one) {
  int64_t tokens = 0;
  if (one->op->form != ASSAY_PAGED || has_window(one)) return false;
  if (strncmp(one->variant, "stream_k", 8) == 0)
    return one->mode == MODE_DECODE && prefer_even_shares(one->kv_len, one->batch);
  if (strncmp(one->variant, "packed_wgmma", 12) != 0 || one->mode != MODE_PREFILL) return false;
  for (int32_t i = 0; i < one->batch; ++i)
    tokens += one->new_len[i];
  return prefer_packed(dim_of(one, "D"), dim_of(one, "H"), dim_of(one, "H_kv"), tokens, one->batch);
}

/* Moves the preferred pairs of the last case, from `first` on, to its front. */
static void prefer(bench_pairs *made, int64_t first) {
  int64_t front = first;
  for (int64_t i = first; i < made->count; ++i) {
    if (!preferred(&made->cases[i])) continue;
    const assay_case moved = made->cases[i];
    memmove(&made->cases[front + 1], &made->cases[front], (size_t)(i - front) * sizeof moved);
    made->cases[front++] = moved;
  }
}

/* Makes a case for each pair of a case and a variant. The reference has one variant, the definition. */
static assay_status cross(const cli_options *options, bool reference, const case_list *list, bench_pairs *made,
                          assay_error *error) {
  assay_status status = ASSAY_OK;
  for (int64_t i = 0; i < list->count && status == ASSAY_OK; ++i) {
    const assay_case *one = &list->cases[i];
    const int64_t first = made->count;
    if (!chosen(options, one, reference)) continue;
    if (reference) status = push(made, i, one, "definition", "ref", error);
    for (int32_t v = 0; v < assay_variant_count() && !reference && status == ASSAY_OK; ++v) {
      const assay_variant *variant = assay_variant_at(v);
      if (strcmp(variant->op, one->op->name) != 0 || !cli_variant_chosen(options, variant)) continue;
      status = cli_check_contract(variant, error);
      if (status == ASSAY_OK) status = push(made, i, one, variant->name, variant->device, error);
    }
    if (options->chosen && status == ASSAY_OK) prefer(made, first);
  }
  return status;
}

/* Leaves out the cases that the file has. With --chosen that is every variant of a case that one of them is in for. */
static assay_status leave_out(const cli_options *options, const bench_past *past, bench_pairs *pairs,
                              assay_error *error) {
  static char descriptor[CASE_MAX_LINE];
  int64_t kept = 0, done = -1; /* the last case that the file has */
  if (past->count == 0) return ASSAY_OK;
  for (int64_t i = 0; i < pairs->count; ++i) {
    bool found = false;
    for (int64_t k = i; k < pairs->count && !found && pairs->group[k] == pairs->group[i]; ++k) {
      const assay_status status = case_print(&pairs->cases[k], descriptor, sizeof descriptor, error);
      if (status != ASSAY_OK) return status;
      found = past_has(past, descriptor);
      if (!options->chosen) break;
    }
    if (options->chosen && found) done = pairs->group[i];
    if (found || pairs->group[i] == done) continue;
    pairs->cases[kept] = pairs->cases[i];
    pairs->group[kept++] = pairs->group[i];
  }
  pairs->count = kept;
  return ASSAY_OK;
}

/* The name of an operator is its suite; tables, short and density are folders of their own. */
static assay_status suite_of(const char *word, char *path, size_t size, assay_error *error) {
  static const char *const folder[] = {"tables", "short", "density"};
  for (size_t i = 0; i < sizeof folder / sizeof folder[0]; ++i)
    if (strcmp(word, folder[i]) == 0) {
      (void)snprintf(path, size, "%s/%s", folder_of_bench(), word);
      return ASSAY_OK;
    }
  if (assay_op_find(word) == NULL)
    return cli_suite_path(word, "tables, short, density, scenario, online", path, size, error);
  (void)snprintf(path, size, "%s/%s.yaml", cli_suites_dir(), word);
  return ASSAY_OK;
}

static assay_status expand_words(const cli_options *options, case_list *list, assay_error *error) {
  assay_status status = ASSAY_OK;
  if (options->words.count == 0)
    return assay_fail(error, ASSAY_ERR_INPUT, "bench: needs at least one suite file, folder or operator");
  for (int32_t i = 0; i < options->words.count && status == ASSAY_OK; ++i) {
    char path[4096];
    status = suite_of(options->words.item[i], path, sizeof path, error);
    if (status == ASSAY_OK) status = expand_suite(path, options->seed, list, error);
  }
  return status;
}

/* ---- the command ------------------------------------------------------------------------------------- */

static assay_status read_baseline(const char *path, bench_rows_list *base, assay_error *error) {
  bool is_bench = false;
  const assay_status status = rows_read(path, base, &is_bench, error);
  if (status != ASSAY_OK || is_bench) return status;
  return assay_fail(error, ASSAY_ERR_INPUT, "--baseline: %s: is no JSONL of assay bench", path);
}

/* Compares the baseline with the file that was just written, so that figures are compared as recorded. `worse`: some
 * are. */
static assay_status against(const cli_options *options, const bench_rows_list *base, bool *worse, assay_error *error) {
  bench_rows_list now = {.row = NULL};
  bench_comparison made = {.pair = NULL};
  bool is_bench = false;
  assay_status status = rows_read(options->jsonl, &now, &is_bench, error);
  if (status == ASSAY_OK) status = bench_compare(base, &now, BENCH_CARDS, &made, error);
  if (status == ASSAY_OK) bench_compare_print(&made, stdout);
  *worse = made.count[BENCH_SLOWER] > 0 || made.broken > 0;
  bench_compare_free(&made);
  rows_free(&now);
  return status;
}

static assay_status prepare(cli_options *options, bool reference, case_list *list, bench_pairs *pairs,
                            bench_rows_list *base, assay_device_info *info, assay_error *error) {
  assay_status status = cli_load_plugins(options, error);
  if (status == ASSAY_OK && options->resume != NULL && options->jsonl != NULL)
    status = assay_fail(error, ASSAY_ERR_INPUT, "--resume: names the JSONL itself, --jsonl is not given with it");
  if (options->resume != NULL) options->jsonl = options->resume;
  if (status == ASSAY_OK && options->baseline != NULL && options->jsonl == NULL)
    status = assay_fail(error, ASSAY_ERR_INPUT, "--baseline: needs --jsonl, where the figures of this run go");
  if (status == ASSAY_OK && options->peers && options->jsonl == NULL)
    status = assay_fail(error, ASSAY_ERR_INPUT, "--peers: needs --jsonl, where their figures go");
  if (status == ASSAY_OK && reference && options->variants.count > 0)
    status = assay_fail(error, ASSAY_ERR_INPUT, "--variant: found with --device ref, which has no variants");
  if (status == ASSAY_OK) status = cli_check_variants(options, error);
  if (status == ASSAY_OK) status = cli_check_writable("--jsonl", options->jsonl, error);
  if (status == ASSAY_OK && options->baseline != NULL) status = read_baseline(options->baseline, base, error);
  if (status == ASSAY_OK) status = expand_words(options, list, error);
  if (status == ASSAY_OK) status = cli_refuse_idle_in(options, list, error);
  if (status == ASSAY_OK) status = cross(options, reference, list, pairs, error);
  if (status == ASSAY_OK && pairs->count == 0) say_no_case(options, reference, list);
  if (status != ASSAY_OK) return status;
  if (!reference) return cli_probe(options->device, info, error);
  *info = (assay_device_info){.name = "host", .multiprocessors = 1};
  return ASSAY_OK;
}

/* Opens the file, whose beginning may be there, and takes up what it says. */
static assay_status open_file(bench_state *state, const bench_head *head, bench_past *past, bench_pairs *pairs,
                              assay_error *error) {
  const cli_options *options = state->options;
  assay_status status = ASSAY_OK;
  if (options->resume != NULL) status = past_read(options->resume, head, past, error);
  if (status == ASSAY_OK) status = leave_out(options, past, pairs, error);
  state->timed = past->timed;
  state->failed = past->failed;
  state->unsupported = past->unsupported;
  if (past->count > 0)
    (void)printf("%s has %lld of the cases already\n", text_shown(options->resume), (long long)past->count);
  if (status != ASSAY_OK || past->complete) return status;
  status = text_open_partial(&state->jsonl, options->jsonl, past->bytes, error);
  if (status == ASSAY_OK && past->bytes == 0) rows_head(state->jsonl.stream, head);
  return status;
}

/* Keeps what was timed before the run failed. */
static void abandon(bench_state *state) {
  if (state->timed + state->failed == 0) {
    text_discard(&state->jsonl);
    return;
  }
  text_keep(&state->jsonl);
  if (state->options->jsonl != NULL)
    (void)fprintf(stderr, "assay: %s" TEXT_PARTIAL " holds what was done; the same command with --resume %s goes on\n",
                  text_shown(state->options->jsonl), text_shown(state->options->jsonl));
}

static int finish(bench_state *state, double seconds, const bench_rows_list *base, assay_error *error) {
  bool worse = false, wrong = false, absent = false;
  assay_status status = ASSAY_OK;
  if (state->jsonl.stream != NULL) {
    rows_end(state->jsonl.stream, state->timed, state->failed, state->unsupported, seconds);
    status = text_close(&state->jsonl, error);
  }
  /* They add lines to the file. A missing peer is named there, and is no failure. */
  if (status == ASSAY_OK && state->options->peers)
    status = bench_peers_run("run.py", state->options->jsonl, &absent, &wrong, error);
  if (status == ASSAY_OK && base != NULL) status = against(state->options, base, &worse, error);
  (void)printf("%lld timed, %lld without a figure because they are wrong, %lld unsupported, %.1f s\n",
               (long long)state->timed, (long long)state->failed, (long long)state->unsupported, seconds);
  if (status != ASSAY_OK) return cli_leave(status, error);
  return cli_written(state->failed > 0 || worse || wrong ? EXIT_BAD : state->timed > 0 ? EXIT_GOOD : EXIT_NOTHING);
}

int cli_bench_command(int argc, char **argv) {
  static bench_state state;
  int code = EXIT_BAD;
  assay_error error = {""};
  cli_options options;
  case_list list = {NULL, 0};
  bench_pairs pairs = {NULL, NULL, 0};
  bench_past past = {.descriptor = NULL};
  bench_rows_list base = {.row = NULL};
  assay_device_info info;
  memset(&info, 0, sizeof info);
  assay_status status = cli_parse(argc, argv, "bench", &options, &error);
  const bool reference = options.reference;
  if (status == ASSAY_OK) status = prepare(&options, reference, &list, &pairs, &base, &info, &error);
  bench_job job = {.options = bench_usual()};
  if (options.budget_s > 0) job.options.budget_s = options.budget_s;
  const char *device = reference ? "ref" : options.device;
  const bench_head head = {device, report_commit(), &info, &job.options, options.seed};
  state.options = &options;
  if (status == ASSAY_OK && options.jsonl != NULL) status = open_file(&state, &head, &past, &pairs, &error);
  if (status != ASSAY_OK) {
    code = cli_leave(status, &error);
    goto done;
  }
  (void)printf("%s: %s%s%s%s%s; commit %s\n", device, info.name, info.driver[0] != '\0' ? ", driver " : "", info.driver,
               info.toolkit[0] != '\0' ? ", CUDA " : "", info.toolkit, report_commit());
  (void)fflush(stdout);
  state.cases = job.cases = pairs.cases;
  state.count = job.count = pairs.count;
  if (options.chosen) state.group = job.group = pairs.group;
  job.deadline_s = options.deadline_s;
  job.in_process = options.in_process;
  job.begun = on_begun;
  job.done = on_done;
  job.context = &state;
  power_set(POWER_OFF);
  const double start = device_now_ms();
  status = bench_run(&job, &error);
  if (status != ASSAY_OK) {
    abandon(&state);
    code = cli_leave(status, &error);
  } else {
    code = finish(&state, (device_now_ms() - start) * 1e-3, options.baseline != NULL ? &base : NULL, &error);
  }
done:
  past_free(&past);
  rows_free(&base);
  free(pairs.cases);
  free(pairs.group);
  case_list_free(&list);
  return code;
}
