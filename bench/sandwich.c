/* sandwich.c: judge, time, judge. */
#include "sandwich.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/registry.h"
#include "limit.h"
#include "ranges.h"
#include "sets.h"

enum { MOST_ELEMENTS = 1 << 21, FEW_SAMPLES = 6, WARM_UPS = 3, EMPTY_SAMPLES = 11, HOLD_US = 60 };

/* The stream of the launches may be done while the device is not. Work that outlasts the sample by this share, and by
 * this time, is called work of the launches. */
static const double OTHER_SHARE = 0.25, OTHER_US = 60;

/* A sample need not be longer. */
static const double LONG_US = 1000;

const char *bench_mode_name(bench_mode mode) {
  static const char *const name[] = {"cold", "warm", "host"};
  return name[mode];
}

/* ---- a sample ---------------------------------------------------------------------------------------- */

typedef struct sampling {
  bench_sets sets;
  const assay_device *device;
  bench_mode mode;
  int32_t launches;
  void *graph; /* NULL: launched one by one */
  int64_t turn;
  bool counts;         /* samples are no warm-up */
  double us, other_us; /* last sample's time per launch; its whole wait for other streams */
} sampling;

static bool capture(sampling *s, bool empty, void **graph, case_result *result) {
  assay_error error = {""};
  void *stream = NULL;
  *graph = NULL;
  if (!sets_plan(&s->sets, s->launches, result)) return false;
  if (!device_status(s->device->graph_capture_begin(&stream, &error), "begin of a capture", false, &error, result))
    return false;
  bool fine = true;
  for (int32_t i = 0; i < s->launches && fine; ++i)
    fine = empty ? device_status(s->device->timing->empty(stream, &error), "launch", false, &error, result)
                 : sets_launch(&s->sets, i, stream, result);
  const assay_status ended = s->device->graph_capture_end(graph, &error);
  if (fine && ended == ASSAY_OK) return true;
  if (ended == ASSAY_OK) s->device->graph_release(*graph);
  *graph = NULL;
  return fine ? device_status(ended, "end of a capture", false, &error, result) : false;
}

static bool launch_all(sampling *s, void *graph, case_result *result) {
  assay_error error = {""};
  if (graph != NULL)
    return device_status(s->device->graph_replay(graph, &error), "graph: replay", false, &error, result);
  for (int32_t i = 0; i < s->launches; ++i)
    if (!sets_launch(&s->sets, i, s->device->stream(), result)) return false;
  return true;
}

/* Work that keeps the device from reaching the first mark before the last launch is in its queue. */
static assay_status prepare(const sampling *s, assay_error *error) {
  const assay_device_timing *timing = s->device->timing;
  assay_status status = timing->wait_all(error);
  if (status == ASSAY_OK && s->mode == BENCH_COLD) status = timing->flush(error);
  if (s->counts) ranges_profiler(true);
  if (status == ASSAY_OK && s->device->keep_busy != NULL)
    status = s->device->keep_busy(s->device->stream(), 1, HOLD_US, error);
  return status == ASSAY_OK ? timing->mark(0, error) : status;
}

/* Between the marks lies nothing but the launches. The device's clock counts where there is one. */
static bool time_all(sampling *s, void *graph, case_result *result) {
  const assay_device_timing *timing = s->device->timing;
  assay_error error = {""};
  double between = 0;
  assay_status status = timing != NULL ? prepare(s, &error) : ASSAY_OK;
  const double start = device_now_ms();
  if (!device_status(status, "before the launches", true, &error, result) || !launch_all(s, graph, result))
    return false;
  if (timing != NULL) status = timing->mark(1, &error);
  if (status == ASSAY_OK) status = s->device->synchronize(&error);
  const double own = device_now_ms();
  if (s->counts && timing != NULL) ranges_profiler(false);
  if (timing != NULL && status == ASSAY_OK) status = timing->wait_all(&error);
  s->other_us = (device_now_ms() - own) * 1e3;
  if (timing != NULL && status == ASSAY_OK) status = timing->between(&between, &error);
  if (!device_status(status, "after the launches", true, &error, result)) return false;
  s->us = timing != NULL ? between / s->launches : (own - start) * 1e3 / s->launches;
  return true;
}

/* Restored before, looked at after; each time the sets hold other contents. */
static bool take_sample(sampling *s, bool last, case_result *result) {
  const bool fine = sets_restore(&s->sets, s->launches, s->turn, result) && sets_plan(&s->sets, s->launches, result) &&
                    time_all(s, s->graph, result) && sets_check(&s->sets, s->launches, s->turn, last, result);
  ++s->turn;
  return fine;
}

/* ---- a mode ------------------------------------------------------------------------------------------ */

static double median_of(double *list, int64_t count) {
  bench_spread all;
  bench_spread_of(list, count, &all);
  return all.median;
}

/* Empty launches in the same form; what a launch costs before it does anything. */
static bool measure_empty(sampling *s, bench_figure *figure, case_result *result) {
  double us[EMPTY_SAMPLES];
  void *graph = NULL;
  if (s->device->timing == NULL || s->graph == NULL) return true;
  assay_error error = {""};
  assay_status status = s->device->timing->empty(s->device->stream(), &error); /* loads it */
  if (status == ASSAY_OK) status = s->device->synchronize(&error);
  bool fine = device_status(status, "an empty launch", true, &error, result) && capture(s, true, &graph, result);
  for (int32_t i = -1; i < EMPTY_SAMPLES && fine; ++i) {
    fine = time_all(s, graph, result);
    if (i >= 0) us[i] = s->us;
  }
  if (graph != NULL) s->device->graph_release(graph);
  if (fine) figure->empty_us = median_of(us, EMPTY_SAMPLES);
  return fine;
}

static bool sample_until(sampling *s, const bench_options *options, bench_figure *figure, case_result *result) {
  static _Thread_local double us[BENCH_MAX_SAMPLES], sorted[BENCH_MAX_SAMPLES], other[BENCH_MAX_SAMPLES];
  const double start = device_now_ms();
  const int32_t most = options->max_samples < BENCH_MAX_SAMPLES ? options->max_samples : BENCH_MAX_SAMPLES;
  int32_t count = 0;
  for (bool done = false; !done; ++count) {
    const double budgets = (device_now_ms() - start) / (options->budget_s * 1e3);
    done = count + 1 >= most || (count + 1 >= options->min_samples && budgets > 1) ||
           (count + 1 >= FEW_SAMPLES && budgets > 4); /* a slow kernel has its interval from fewer samples */
    if (!done && count >= options->min_samples) {     /* the interval without this sample */
      memcpy(sorted, us, (size_t)count * sizeof *us);
      bench_spread_of(sorted, count, &figure->us);
      done = bench_half_width(&figure->us) <= options->target;
    }
    if (!take_sample(s, done, result)) {
      char said[sizeof result->message];
      memcpy(said, result->message, sizeof said);
      (void)snprintf(result->message, sizeof result->message, "%s, sample %d: %.1500s", bench_mode_name(s->mode),
                     count + 1, said);
      return false;
    }
    us[count] = s->us;
    other[count] = s->other_us;
  }
  const double waited = median_of(other, count);
  figure->halves = bench_halves(us, count);
  bench_spread_of(us, count, &figure->us);
  figure->launches = s->launches;
  if (s->device->timing == NULL || !(waited > OTHER_US && waited > OTHER_SHARE * figure->us.median * s->launches))
    return figure->there = true;
  verdict_set(result, VERDICT_FAIL, "stream",
              "%s: the launches' own stream is done after %.1f us, the device %.1f us later: work on another stream, "
              "which no time on this one counts",
              bench_mode_name(s->mode), figure->us.median * s->launches, waited);
  return false;
}

/* A replay costs a few microseconds before its first launch: short launches share them, each over a set of its own. */
static bool lengthen(sampling *s, const bench_options *options, case_result *result) {
  const int32_t had = s->launches;
  if (s->mode != BENCH_COLD || had >= BENCH_GRAPH_SETS || !(s->us * had < LONG_US)) return true;
  const double wanted = s->us * BENCH_GRAPH_SETS < LONG_US ? BENCH_GRAPH_SETS : ceil(LONG_US / s->us);
  if (!sets_add(&s->sets, (int64_t)wanted, options, result)) return false;
  s->launches = s->sets.count;
  if (s->launches == had || s->graph == NULL) return true;
  s->device->graph_release(s->graph);
  s->graph = NULL;
  return capture(s, false, &s->graph, result);
}

static bool time_mode(sampling *s, const bench_options *options, bench_figure *figure, case_result *result) {
  const bool records = s->device->graph_capture_begin != NULL && !assay_plugin_is_direct(s->sets.variant);
  bool fine = !records || capture(s, false, &s->graph, result);
  for (int32_t i = 0; i < WARM_UPS && fine; ++i) {
    fine = take_sample(s, false, result);
    if (!fine) {
      char said[sizeof result->message];
      memcpy(said, result->message, sizeof said);
      (void)snprintf(result->message, sizeof result->message, "%s, warm-up %d: %.1500s", bench_mode_name(s->mode),
                     i + 1, said);
    }
    fine = fine && (i > 0 || lengthen(s, options, result));
  }
  fine = fine && measure_empty(s, figure, result);
  ranges_push(s->sets.variant->op, s->sets.variant->name);
  s->counts = true;
  fine = fine && sample_until(s, options, figure, result);
  s->counts = false;
  ranges_pop();
  if (s->graph != NULL && !result->device_lost) s->device->graph_release(s->graph);
  s->graph = NULL;
  return fine;
}

/* ---- the case ---------------------------------------------------------------------------------------- */

static bool note_state(const assay_device *device, assay_device_state *state, case_result *result) {
  assay_error error = {""};
  *state = (assay_device_state){-1, -1, -1, -1, -1};
  if (device->timing == NULL) return true;
  return device_status(device->timing->state(state, &error), "asking for the clocks", false, &error, result);
}

static bool time_modes(sampling *s, const bench_options *options, bench_result *result) {
  const assay_device *device = s->device;
  case_result *said = &result->judged;
  assay_error error = {""};
  int64_t cache = 0;
  if (device->timing == NULL) {
    s->mode = BENCH_HOST;
    s->launches = s->sets.count;
    return time_mode(s, options, &result->figure[BENCH_HOST], said);
  }
  if (!device_status(device->timing->cache(&cache, &error), "asking for the cache", false, &error, said)) return false;
  s->mode = BENCH_COLD;
  s->launches = s->sets.count;
  if (!time_mode(s, options, &result->figure[BENCH_COLD], said)) return false;
  /* The copies that restored them are in the cache as well. */
  bench_figure *warm = &result->figure[BENCH_WARM];
  const int64_t fits = cache / 2 / s->sets.bytes - BENCH_CONTENTS;
  s->mode = BENCH_WARM;
  s->launches = fits < s->sets.count ? (int32_t)fits : s->sets.count;
  if (s->launches >= BENCH_CONTENTS) return time_mode(s, options, warm, said);
  (void)snprintf(warm->why, sizeof warm->why, "sets of %.1f MB do not fit half the cache of %.1f MB",
                 (double)s->sets.bytes * 1e-6, (double)cache * 1e-6);
  return true;
}

int32_t bench_rows(const assay_op *op, const assay_call *call, int64_t rows, double flops) {
  const assay_seen nothing = {.visible_keys = 0};
  if (op->cost == NULL || !(flops > 0) || rows < 1) return 0;
  double all = op->cost(call, &nothing).flops;
  if (op->form == ASSAY_PAGED) { /* a row's keys are not known yet: count every key of the table */
    const assay_tensor *q = assay_find_arg(call, "q"), *table = assay_find_arg(call, "block_table");
    const assay_tensor *k = assay_find_arg(call, "k_cache");
    if (q == NULL || table == NULL || k == NULL || q->rank < 3) return 0;
    all = 4 * (double)(q->shape[0] * q->shape[1] * q->shape[2]) * (double)table->shape[1] * 16;
  }
  double wanted = (double)rows * flops / (all > 1 ? all : 1), elements = 0;
  for (int32_t i = 0; i < op->arg_count; ++i) { /* outputs are compared one by one */
    double count = op->args[i].role == ASSAY_OUT && call->arg[i].data != NULL ? 1 : 0;
    for (int32_t a = 0; a < call->arg[i].rank; ++a)
      count *= (double)call->arg[i].shape[a];
    elements += count;
  }
  if (elements > MOST_ELEMENTS && wanted > (double)rows * MOST_ELEMENTS / elements)
    wanted = (double)rows * MOST_ELEMENTS / elements;
  if (wanted >= (double)rows) return 0;
  return wanted < 8 ? (rows > 8 ? 8 : 0) : (int32_t)wanted;
}

/* Visible and live keys are known for the judged rows alone. The others see as many on average. */
static assay_cost cost_of(const trial *t) {
  assay_seen seen = t->seen;
  if (t->one->op->cost == NULL) return (assay_cost){0, 0};
  if (t->row_index != NULL && t->rows.count > 0) {
    const double more = (double)t->first.rows / (double)t->rows.count;
    seen.visible_keys = (int64_t)((double)seen.visible_keys * more);
    seen.live_keys = (int64_t)((double)seen.live_keys * more);
  }
  return t->one->op->cost(&t->first.call, &seen);
}

/* The case with rows for the reference that it can do in time. Rows that are not judged by element
 * must still have the bits of every other run. bytes: of its tensors. */
static assay_case with_rows(const assay_case *one, const bench_options *options, int64_t *bytes) {
  static _Thread_local struct {
    char of[CASE_MAX_LINE];
    double flops;
    int32_t rows;
    int64_t bytes;
  } last; /* the variants of a case follow each other, and a shape takes as long to make as its bytes */
  static _Thread_local char of[CASE_MAX_LINE];
  assay_case made = *one;
  const draw choice = {.dead = one->dead, .poison = 1};
  image shape;
  *bytes = 0;
  made.variant[0] = '\0';
  const bool named = case_print(&made, of, sizeof of, NULL) == ASSAY_OK;
  made = *one;
  if (named && last.flops == options->flops && strcmp(last.of, of) == 0) {
    made.rows = last.rows;
    *bytes = last.bytes;
    return made;
  }
  if (image_shape(one, &choice, &shape, NULL) != ASSAY_OK) return made; /* lengths too: the cost depends on them */
  if (one->rows == 0) made.rows = bench_rows(one->op, &shape.call, shape.rows, options->flops);
  *bytes = shape.arena_bytes;
  image_free(&shape);
  if (named) {
    memcpy(last.of, of, sizeof of);
    last.flops = options->flops;
    last.rows = made.rows;
    last.bytes = *bytes;
  }
  return made;
}

static void time_case(const assay_case *one, const assay_variant *variant, const assay_device *device,
                      const bench_options *options, bench_result *result) {
  case_result *said = &result->judged;
  sampling *s = calloc(1, sizeof *s);
  if (s == NULL) {
    verdict_set(said, VERDICT_FAIL, "launch", "bench: out of memory");
    return;
  }
  s->device = device;
  const double start = device_now_ms();
  bool fine = sets_make(&s->sets, one, variant, device, options, said);
  result->contents_s = (device_now_ms() - start) * 1e-3;
  if (fine && said->path[0] == '\0') memcpy(said->path, s->sets.path, sizeof said->path);
  if (fine) said->rows_judged = s->sets.contents->content[0].t.rows.count;
  result->after = fine;
  fine = fine && note_state(device, &result->before, said);
  fine = fine && time_modes(s, options, result) && note_state(device, &result->behind, said);
  result->timed_s = (device_now_ms() - start) * 1e-3 - result->contents_s;
  if (fine) {
    const trial *t = &s->sets.contents->content[0].t;
    result->cost = cost_of(t);
    result->factors = bench_factors(one, &t->first.call);
    said->visible_keys = t->seen.visible_keys;
    said->live_keys = t->seen.live_keys;
    result->after = false;
  }
  if (said->verdict != VERDICT_PASS) memset(result->figure, 0, sizeof result->figure);
  sets_free(&s->sets, said);
  free(s);
}

void bench_case(const assay_case *one, const assay_variant *variant, const assay_device *device,
                const bench_options *options, bench_result *result) {
  *result = (bench_result){.judged = {.verdict = VERDICT_PASS}};
  int64_t bytes = 0;
  const assay_case limited = with_rows(one, options, &bytes);
  const double start = device_now_ms();
  if (bytes <= options->large_bytes) {
    judge_case(&limited, variant, device, &result->judged);
    if (result->judged.verdict != VERDICT_PASS) return;
    judge_release();
  } else {
    (void)snprintf(result->judged.laws, sizeof result->judged.laws, "guard,input,unwritten,dead_bytes%s",
                   variant->contract.run_to_run ? ",run_to_run" : "");
  }
  result->judged_s = (device_now_ms() - start) * 1e-3;
  time_case(&limited, variant, device, options, result);
}

void bench_release(void) {
  contents_release(false);
}
