/* lengths.c: the requests of a drawn case. */
#define _POSIX_C_SOURCE 200809L
#include "lengths.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "conformance/text/text.h"

/* ---- traces ----------------------------------------------------------------------------------------------- */

void trace_set_free(trace_set *set) {
  for (int32_t i = 0; i < set->count; ++i)
    trace_free(&set->loaded[i]);
  set->count = 0;
}

static bool has_traces(const char *fixtures) {
  char path[4096];
  struct stat about;
  const int n = snprintf(path, sizeof path, "%s/traces", fixtures);
  return n > 0 && (size_t)n < sizeof path && stat(path, &about) == 0 && S_ISDIR(about.st_mode);
}

/* conformance/suites/x.yaml finds fixtures/ two folders up, share/assay/suites/x.yaml one folder up. */
static void find_fixtures(const char *suite, char *path, size_t size) {
  static const char *const up[] = {"/../../fixtures", "/../fixtures"};
  const char *given = getenv("ASSAY_FIXTURES"), *slash = strrchr(suite, '/');
  const int folder = slash != NULL ? (int)(slash - suite) : 1;
  if (given != NULL && given[0] != '\0') {
    (void)snprintf(path, size, "%s", given);
    return;
  }
  for (int32_t i = 0; i < 2; ++i) {
    (void)snprintf(path, size, "%.*s%s", folder, slash != NULL ? suite : ".", up[i]);
    if (has_traces(path)) return;
  }
  (void)snprintf(path, size, "%s", folder_of_fixtures());
}

assay_status trace_set_get(trace_set *set, yaml_node at, const char *name, const trace **found, assay_error *error) {
  char fixtures[4096];
  assay_error inner = {""};
  for (int32_t i = 0; i < set->count; ++i)
    if (strcmp(set->loaded[i].name, name) == 0) {
      *found = &set->loaded[i];
      return ASSAY_OK;
    }
  find_fixtures(set->suite, fixtures, sizeof fixtures);
  const assay_status status = trace_load(name, fixtures, &set->loaded[set->count], &inner);
  if (status != ASSAY_OK) {
    (void)yaml_fail(at, error, "trace: %s", inner.text);
    return status;
  }
  *found = &set->loaded[set->count++];
  return ASSAY_OK;
}

/* ---- requests --------------------------------------------------------------------------------------------- */

static int64_t least(int64_t a, int64_t b) {
  return a < b ? a : b;
}
static int64_t most(int64_t a, int64_t b) {
  return a > b ? a : b;
}

static int64_t block_size_of(const assay_case *one) {
  for (int32_t i = 0; i < one->op->dim_count; ++i)
    if (strcmp(one->op->dims[i].name, "block_size") == 0) return most(one->dim[i], 1);
  return 1;
}

static assay_status make_lists(assay_case *one, int32_t batch, assay_error *error) {
  const size_t n = (size_t)batch;
  one->batch = batch;
  one->kv_len = calloc(n, sizeof *one->kv_len);
  one->new_len = calloc(n, sizeof *one->new_len);
  one->share_with = calloc(n, sizeof *one->share_with);
  one->share_tokens = calloc(n, sizeof *one->share_tokens);
  for (int32_t i = 0; one->share_with != NULL && i < batch; ++i)
    one->share_with[i] = -1;
  if (one->kv_len != NULL && one->new_len != NULL && one->share_with != NULL && one->share_tokens != NULL)
    return ASSAY_OK;
  return assay_fail(error, ASSAY_ERR_MEMORY, "case: out of memory for %d requests", batch);
}

/* Draws a row of any kind: a decode row, a whole prompt, a chunk, nothing. */
static int64_t draw_mixed(int64_t L, assay_rng *rng) {
  const int64_t kind = assay_rng_range(rng, 0, 3);
  if (L == 0) return kind & 1;
  return kind == 0 ? 1 : kind == 1 ? L : kind == 2 ? assay_rng_range(rng, 1, L) : assay_rng_range(rng, 0, 1);
}

/* T of request i. A drawn T is cut to what the mode allows; a listed one is taken as it is. */
static int64_t draw_new(const length_specs *specs, case_mode mode, int32_t i, int64_t L, int64_t block_size,
                        assay_rng *rng) {
  static const case_key key = {.name = "new", .kind = KEY_LENGTHS, .max = KEY_MAX_LENGTH, .multiple = 1};
  const spec *s = specs->new_len;
  if (mode == MODE_DECODE) return 1;
  if (mode == MODE_PREFILL) return L;
  if (s == NULL || !spec_given(s)) return mode == MODE_MIXED ? draw_mixed(L, rng) : assay_rng_range(rng, 1, L);
  if (s->kind == SPEC_LIST) return (int64_t)s->value[i];
  const int64_t T = s->kind == SPEC_AXIS ? (int64_t)specs->axis_new : (int64_t)spec_draw(s, &key, block_size, rng);
  return mode == MODE_CHUNKED ? most(least(T, L), 1) : least(T, most(L, 1));
}

static void draw_lengths(const length_specs *specs, assay_rng *rng, assay_case *one) {
  const spec *s = specs->kv_len;
  const int64_t block_size = block_size_of(one);
  int64_t rows = 0;
  for (int32_t i = 0; i < one->batch; ++i) {
    int64_t L = 0;
    if (s->kind == SPEC_LIST)
      L = (int64_t)s->value[i];
    else if (s->kind == SPEC_AXIS)
      L = (int64_t)specs->axis_kv_len;
    else
      L = (int64_t)spec_draw(s, specs->kv_len_key, block_size, rng);
    if (one->mode == MODE_CHUNKED && s->kind != SPEC_LIST) L = most(L, 1);
    one->kv_len[i] = (int32_t)L;
    one->new_len[i] = (int32_t)draw_new(specs, one->mode, i, L, block_size, rng);
    rows += one->new_len[i];
  }
  /* A batch has at least one row. */
  if (rows > 0 || s->kind == SPEC_LIST || (specs->new_len != NULL && spec_given(specs->new_len))) return;
  if (one->mode == MODE_PREFILL) one->kv_len[0] = (int32_t)most(one->kv_len[0], 1);
  one->new_len[0] = 1;
}

/* ---- sharing ---------------------------------------------------------------------------------------------- */

static void draw_share(const spec *s, assay_rng *rng, assay_case *one) {
  const int64_t block_size = block_size_of(one);
  for (int32_t i = 1; i < one->batch; ++i) {
    if (assay_rng_range(rng, 1, 100) > s->max) continue;
    const int32_t j = (int32_t)assay_rng_range(rng, 0, i - 1);
    const int64_t blocks = case_shareable(one, i, j) / block_size;
    if (blocks < 1) continue;
    one->share_with[i] = j;
    one->share_tokens[i] = (int32_t)(assay_rng_range(rng, 1, blocks) * block_size);
  }
}

/* ---- requests of a trace ---------------------------------------------------------------------------------- */

static int64_t scaled(const spec *s, int64_t tokens) {
  return (int64_t)((double)tokens * s->scale);
}

/* Takes `batch` consecutive requests from a drawn start, each at a drawn moment of its life. In decode that is
 * somewhere in its output, in prefill its whole prompt, in chunked a chunk that ends the prompt. In mixed, half are
 * decode rows, a quarter whole prompts, a quarter chunks. */
static void draw_traced(const length_specs *specs, const trace *t, int32_t start, assay_rng *rng, assay_case *one) {
  const spec *s = specs->kv_len;
  for (int32_t i = 0; i < one->batch; ++i) {
    const trace_request *r = &t->request[start + i];
    const int64_t kind = one->mode == MODE_MIXED ? assay_rng_range(rng, 0, 3) : 0;
    const bool decodes = one->mode == MODE_DECODE || (one->mode == MODE_MIXED && kind < 2);
    const int64_t whole = r->prompt + (decodes ? assay_rng_range(rng, 1, r->output) : 0);
    const int64_t L = most(least(scaled(s, whole), s->cap), 1);
    one->kv_len[i] = (int32_t)L;
    if (one->mode == MODE_MIXED)
      one->new_len[i] = (int32_t)(decodes ? 1 : kind == 2 ? L : assay_rng_range(rng, 1, L));
    else
      one->new_len[i] = (int32_t)draw_new(specs, one->mode, i, L, block_size_of(one), rng);
  }
}

/* Lets each request share with the earlier one that has most in common with it, the first among equals. */
static void share_traced(const spec *s, const trace *t, int32_t start, assay_case *one) {
  const int64_t block_size = block_size_of(one);
  for (int32_t i = 1; i < one->batch; ++i) {
    int64_t best = 0;
    for (int32_t j = 0; j < i; ++j) {
      const int64_t common = least(scaled(s, trace_common(t, start + j, start + i)), case_shareable(one, i, j));
      const int64_t whole = common / block_size * block_size;
      if (whole <= best) continue;
      best = whole;
      one->share_with[i] = j;
      one->share_tokens[i] = (int32_t)whole;
    }
  }
}

assay_status lengths_draw(const length_specs *specs, trace_set *traces, assay_rng *rng, assay_case *one,
                          assay_error *error) {
  const spec *lists[] = {specs->kv_len, specs->new_len, specs->share};
  int32_t batch = specs->batch;
  for (int32_t i = 0; i < 3; ++i) {
    if (lists[i] == NULL || !spec_given(lists[i]) || lists[i]->kind != SPEC_LIST) continue;
    if (batch >= 0 && batch != lists[i]->count)
      return yaml_fail(lists[i]->at, error, "list: found %d values, allowed %d, one for each request", lists[i]->count,
                       batch);
    batch = lists[i]->count;
  }
  assay_status status = make_lists(one, batch < 0 ? 1 : batch, error);
  if (status != ASSAY_OK) return status;
  if (specs->kv_len->kind == SPEC_TRACE) {
    const trace *t = NULL;
    status = trace_set_get(traces, specs->kv_len->at, specs->kv_len->trace, &t, error);
    if (status != ASSAY_OK) return status;
    if (t->count < one->batch)
      return yaml_fail(specs->kv_len->at, error, "batch: found %d, allowed at most the %d requests of %s", one->batch,
                       t->count, t->name);
    const int32_t start = (int32_t)assay_rng_range(rng, 0, t->count - one->batch);
    draw_traced(specs, t, start, rng, one);
    share_traced(specs->kv_len, t, start, one);
    return ASSAY_OK;
  }
  draw_lengths(specs, rng, one);
  if (specs->share == NULL || !spec_given(specs->share)) return ASSAY_OK;
  if (specs->share->kind == SPEC_CHANCE) {
    draw_share(specs->share, rng, one);
    return ASSAY_OK;
  }
  for (int32_t i = 0; i < one->batch; ++i) {
    one->share_with[i] = (int32_t)specs->share->value[2 * i];
    one->share_tokens[i] = (int32_t)specs->share->value[2 * i + 1];
  }
  return ASSAY_OK;
}
