/* rows.c: JSON lines of a bench. */
#define _POSIX_C_SOURCE 200809L
#include "rows.h"

#include <stdlib.h>
#include <string.h>

#include "conformance/text/text.h"
#include "core/dtype.h"
#include "core/files/bytes.h"
#include "core/json.h"

enum { SCHEMA = 1 };

static void text(FILE *to, const char *key, const char *value) {
  (void)fprintf(to, ",\"%s\":", key);
  text_json(to, value);
}
static void number(FILE *to, const char *key, double value) {
  (void)fprintf(to, ",\"%s\":", key);
  text_json_number(to, value);
}
static void integer(FILE *to, const char *key, int64_t value) {
  (void)fprintf(to, ",\"%s\":%lld", key, (long long)value);
}

void rows_head(FILE *to, const bench_head *head) {
  (void)fprintf(to, "{\"bench\":\"run\",\"schema\":%d", SCHEMA);
  text(to, "device", head->device);
  text(to, "device_name", head->info->name);
  text(to, "driver", head->info->driver);
  text(to, "toolkit", head->info->toolkit);
  integer(to, "multiprocessors", head->info->multiprocessors);
  integer(to, "memory_rate", head->info->memory_rate);
  text(to, "commit", head->commit);
  (void)fprintf(to, ",\"seed\":%llu", (unsigned long long)head->seed);
  number(to, "target", head->options->target);
  number(to, "budget_s", head->options->budget_s);
  integer(to, "min_samples", head->options->min_samples);
  integer(to, "max_samples", head->options->max_samples);
  (void)fputs("}\n", to);
}

void rows_limits(FILE *to, const bench_limits *limits) {
  if (!limits->there) return;
  (void)fputs("{\"bench\":\"limits\"", to);
  number(to, "copy_bytes_s", limits->rate[ASSAY_RATE_COPY]);
  number(to, "fma_f32_flops_s", limits->rate[ASSAY_RATE_FMA]);
  number(to, "mma_bf16_flops_s", limits->rate[ASSAY_RATE_MMA]);
  number(to, "gemm_bf16_flops_s", limits->rate[ASSAY_RATE_GEMM]);
  number(to, "mma_e4m3_flops_s", limits->rate[ASSAY_RATE_MMA8]);
  number(to, "gemm_e4m3_flops_s", limits->rate[ASSAY_RATE_GEMM8]);
  integer(to, "cache_bytes", limits->cache_bytes);
  (void)fputs("}\n", to);
}

static void begin(FILE *to, const assay_case *one, const char *descriptor, const bench_result *result) {
  const case_result *judged = &result->judged;
  (void)fputs("{\"bench\":\"case\"", to);
  text(to, "case", descriptor);
  text(to, "op", one->op->name);
  text(to, "variant", one->variant);
  text(to, "device", one->device);
  text(to, "suite", one->suite);
  text(to, "section", section_name(one->section));
  text(to, "name", one->name);
  text(to, "verdict", verdict_name(judged->verdict));
  text(to, "check", judged->check);
  text(to, "path", judged->path);
  text(to, "laws", judged->laws);
  integer(to, "rows_judged", judged->rows_judged);
}

static void state(FILE *to, const char *when, const assay_device_state *s) {
  if (s->core_mhz < 0 && s->memory_mhz < 0) return;
  (void)fprintf(to, ",\"%s\":{\"core_mhz\":%d,\"memory_mhz\":%d,\"celsius\":%d,\"milliwatts\":%d,\"slowed\":%lld}",
                when, (int)s->core_mhz, (int)s->memory_mhz, (int)s->celsius, (int)s->milliwatts, (long long)s->slowed);
}

static void figure(FILE *to, const bench_result *result, bench_mode mode, const bench_limits *limits) {
  const bench_figure *f = &result->figure[mode];
  const bench_bound bound = bench_limit(&result->cost, limits, result->factors);
  text(to, "mode", bench_mode_name(mode));
  number(to, "median_us", f->us.median);
  number(to, "low_us", f->us.low);
  number(to, "high_us", f->us.high);
  number(to, "q1_us", f->us.q1);
  number(to, "q3_us", f->us.q3);
  number(to, "min_us", f->us.min);
  number(to, "max_us", f->us.max);
  integer(to, "samples", f->us.count);
  integer(to, "launches", f->launches);
  number(to, "halves", f->halves);
  if (f->empty_us > 0) number(to, "empty_launch_us", f->empty_us);
  number(to, "bytes", result->cost.bytes);
  number(to, "flops", result->cost.flops);
  if (result->judged.visible_keys > 0)
    number(to, "live_keys", (double)result->judged.live_keys / (double)result->judged.visible_keys);
  if (bound.us > 0) {
    number(to, "limit_us", bound.us);
    text(to, "limit_by", bound.by);
    number(to, "percent_of_limit", 100 * bound.us / f->us.median);
  }
  state(to, "before", &result->before);
  state(to, "behind", &result->behind);
  number(to, "judged_s", result->judged_s);
  number(to, "contents_s", result->contents_s);
  number(to, "timed_s", result->timed_s);
}

void rows_case(FILE *to, const assay_case *one, const char *descriptor, const bench_result *result,
               const bench_limits *limits) {
  bool any = false;
  for (int mode = 0; mode < BENCH_MODES; ++mode) {
    if (!result->figure[mode].there || result->judged.verdict != VERDICT_PASS) continue;
    any = true;
    begin(to, one, descriptor, result);
    figure(to, result, (bench_mode)mode, limits);
    (void)fputs("}\n", to);
  }
  if (any) return;
  begin(to, one, descriptor, result);
  text(to, "message", result->judged.message);
  text(to, "found", result->after ? "while timed" : "by the judge");
  (void)fputs("}\n", to);
}

void rows_end(FILE *to, int64_t timed, int64_t failed, int64_t unsupported, double seconds) {
  (void)fputs("{\"bench\":\"end\"", to);
  integer(to, "timed", timed);
  integer(to, "failed", failed);
  integer(to, "unsupported", unsupported);
  number(to, "seconds", seconds);
  (void)fputs("}\n", to);
}

/* ---- back -------------------------------------------------------------------------------------------- */

void rows_free(bench_rows_list *list) {
  for (int64_t i = 0; i < list->count; ++i)
    free(list->row[i].descriptor);
  free(list->row);
  *list = (bench_rows_list){.row = NULL};
}

static void copy(char *to, size_t size, const json_value *line, const char *key) {
  (void)snprintf(to, size, "%s", json_text(line, key, ""));
}

static assay_status add(const char *path, int64_t number_of, const json_value *line, bench_rows_list *list,
                        assay_error *error) {
  const verdict unsupported = VERDICT_UNSUPPORTED;
  const char *mode = json_text(line, "mode", "");
  const double median = json_number(line, "median_us", 0), low = json_number(line, "low_us", 0),
               high = json_number(line, "high_us", 0);
  if (strcmp(json_text(line, "verdict", ""), verdict_name(unsupported)) == 0) return ASSAY_OK;
  if (json_text(line, "case", "")[0] == '\0')
    return assay_fail(error, ASSAY_ERR_INPUT, "%s:%lld: a case without its descriptor", path, (long long)number_of);
  if (mode[0] != '\0' && !(low > 0 && low <= median && median <= high && high < 1e300))
    return assay_fail(error, ASSAY_ERR_INPUT,
                      "%s:%lld: found median %g in [%g, %g] us, allowed: 0 < low <= median <= high", path,
                      (long long)number_of, median, low, high);
  bench_row *grown = realloc(list->row, (size_t)(list->count + 1) * sizeof *grown);
  if (grown == NULL) return assay_fail(error, ASSAY_ERR_MEMORY, "bench: out of memory");
  list->row = grown;
  bench_row *row = &list->row[list->count];
  *row = (bench_row){.descriptor = strdup(json_text(line, "case", "")),
                     .median = median,
                     .low = low,
                     .high = high,
                     .halves = json_number(line, "halves", 1),
                     .empty = json_number(line, "empty_launch_us", 0),
                     .samples = json_integer(line, "samples", 0),
                     .failed = mode[0] == '\0'};
  if (row->descriptor == NULL) return assay_fail(error, ASSAY_ERR_MEMORY, "bench: out of memory");
  ++list->count;
  copy(row->op, sizeof row->op, line, "op");
  copy(row->variant, sizeof row->variant, line, "variant");
  copy(row->mode, sizeof row->mode, line, "mode");
  (void)snprintf(row->name, sizeof row->name, "%.60s/%.60s/%.60s", json_text(line, "suite", ""),
                 json_text(line, "section", ""), json_text(line, "name", ""));
  return ASSAY_OK;
}

static assay_status read_line(const char *path, int64_t number_of, const json_value *line, bench_rows_list *list,
                              bool *is_bench, assay_error *error) {
  const char *kind = json_text(line, "bench", "");
  if (number_of == 1) {
    *is_bench = strcmp(kind, "run") == 0;
    if (*is_bench && json_integer(line, "schema", 0) != SCHEMA)
      return assay_fail(error, ASSAY_ERR_INPUT, "%s:1: schema: found %lld, allowed %d", path,
                        (long long)json_integer(line, "schema", 0), SCHEMA);
    copy(list->device, sizeof list->device, line, "device");
    copy(list->device_name, sizeof list->device_name, line, "device_name");
    copy(list->commit, sizeof list->commit, line, "commit");
    return ASSAY_OK;
  }
  list->ended = list->ended || strcmp(kind, "end") == 0;
  return strcmp(kind, "case") == 0 ? add(path, number_of, line, list, error) : ASSAY_OK;
}

/* ---- several runs in one file ---- */

enum { MOST_RUNS = 64 };

static int by_value(const void *a, const void *b) {
  const double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

static bool same_row(const bench_row *a, const bench_row *b) {
  return a->failed == b->failed && strcmp(a->mode, b->mode) == 0 && strcmp(a->descriptor, b->descriptor) == 0;
}

/* Joins the rows of one case from several runs. The joined row has the median of the medians and an interval that holds
 * all of theirs. The difference between the runs counts as a difference between halves. */
static void join_runs(bench_rows_list *list) {
  int64_t kept = 0;
  for (int64_t i = 0; i < list->count; ++i) {
    bench_row *row = &list->row[i];
    double median[MOST_RUNS] = {row->median};
    int32_t runs = 1;
    if (row->descriptor == NULL) continue;
    for (int64_t k = i + 1; k < list->count && runs < MOST_RUNS; ++k) {
      bench_row *other = &list->row[k];
      if (other->descriptor == NULL || !same_row(row, other)) continue;
      median[runs++] = other->median;
      row->low = other->low < row->low ? other->low : row->low;
      row->high = other->high > row->high ? other->high : row->high;
      row->samples += other->samples;
      row->empty += other->empty;
      free(other->descriptor);
      other->descriptor = NULL;
    }
    qsort(median, (size_t)runs, sizeof *median, by_value);
    row->median = (median[(runs - 1) / 2] + median[runs / 2]) / 2;
    row->empty /= runs;
    if (runs > 1 && !row->failed && median[0] > 0) row->halves = median[runs - 1] / median[0];
    list->row[kept++] = *row;
  }
  list->count = kept;
}

assay_status rows_read(const char *path, bench_rows_list *made, bool *is_bench, assay_error *error) {
  *made = (bench_rows_list){.row = NULL};
  *is_bench = false;
  FILE *file = NULL;
  int64_t size = 0;
  assay_status status = file_open(path, &file, &size, error);
  if (status != ASSAY_OK) return status;
  json_reader *reader = json_open();
  char *line = NULL;
  size_t room = 0;
  if (reader == NULL) status = assay_fail(error, ASSAY_ERR_MEMORY, "bench: out of memory");
  int64_t number_of = 0;
  while (status == ASSAY_OK) {
    status = file_line(file, path, &line, &room, &size, error);
    if (status != ASSAY_OK || size == 0) break;
    const json_value *value = NULL;
    assay_error why = {""};
    if (json_parse(reader, line, (size_t)size, &value, &why) != ASSAY_OK) {
      if (++number_of > 1)
        status = assay_fail(error, ASSAY_ERR_INPUT, "%s:%lld: %s", path, (long long)number_of, why.text);
      break; /* a first line that is no JSON is no bench's */
    }
    status = read_line(path, ++number_of, value, made, is_bench, error);
    if (!*is_bench) break;
  }
  free(line);
  if (reader != NULL) json_close(reader);
  (void)fclose(file);
  if (status == ASSAY_OK && *is_bench && !made->ended)
    status = assay_fail(error, ASSAY_ERR_INPUT, "%s: is not whole: its last line is missing", path);
  if (status != ASSAY_OK)
    rows_free(made);
  else
    join_runs(made);
  return status;
}
