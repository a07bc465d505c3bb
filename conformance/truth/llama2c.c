/* llama2c.c: compares recorded greedy ids and logits of a checkpoint, with prompts cut into steps in every way. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/files/bytes.h"
#include "core/json.h"
#include "conformance/models/models.h"
#include "truth.h"

typedef long long ll; /* for messages */

enum { MOST_CASES = 256 };

/* f64 throughout: only the order of summation differs. */
static const double exact_limit = 1e-9;
/* The most that a device's distance from f64 may be, relative to a forward pass that rounds where the device stores.
 * f32 needs another yardstick, because sums inside operators round as much as what is stored. There it is the distance
 * that the file records of another program in f32, the largest over all logits. */
static const double device_limit = 1.5;
/* The case whose logits lie beside the ids. */
static const char recorded_prompt[] = "Once upon a time";

typedef struct golden_case {
  char name[80];
  int32_t *prompt, *expected;
  int64_t prompt_count, steps;
  bool recorded;
  double f32_error; /* error of a program in f32, as recorded; 0: not recorded */
  /* The results over all plans. */
  int32_t ways;
  double worst, limit; /* for the logits; limit 0: they are not recorded */
  bool by_rms;         /* worst and limit are RMS values; else largest errors */
  char wrong[200];     /* the first plan that differs, and where */
} golden_case;

typedef struct golden {
  golden_case list[MOST_CASES];
  int64_t count;
  double *logits, *residual; /* the recorded case's: [positions, V], [layers + 1, positions, C]; NULL: none */
} golden;

/* ---- files ------------------------------------------------------------------------------------------- */

static assay_status read_ids(const char *path, const char *who, const json_value *entry, const char *key, int32_t **ids,
                             int64_t *count, assay_error *error) {
  const json_value *list = json_member(entry, key);
  int64_t n = 0;
  if (list == NULL || list->kind != JSON_ARRAY || list->child == NULL)
    return assay_fail(error, ASSAY_ERR_INPUT, "%s: %s: %s: found no list of ids, allowed one", path, who, key);
  for (const json_value *at = list->child; at != NULL; at = at->next)
    ++n;
  *ids = malloc((size_t)n * sizeof **ids);
  if (*ids == NULL) return assay_fail(error, ASSAY_ERR_MEMORY, "%s: out of memory", path);
  *count = 0;
  for (const json_value *at = list->child; at != NULL; at = at->next) {
    int64_t id = 0;
    if (!json_whole(at, &id) || id < 0 || id > INT32_MAX)
      return assay_fail(error, ASSAY_ERR_INPUT, "%s: %s: %s: found '%.30s' at place %lld, allowed ids from 0 on", path,
                        who, key, at->text != NULL ? at->text : "no number", (ll)*count);
    (*ids)[(*count)++] = (int32_t)id;
  }
  return ASSAY_OK;
}

static assay_status read_cases(const char *path, golden *g, assay_error *error) {
  unsigned char *text = NULL;
  int64_t size = 0;
  const json_value *root = NULL;
  assay_error inner = {""};
  json_reader *reader = json_open();
  assay_status status = reader != NULL ? file_bytes(path, (int64_t)1 << 28, &text, &size, error)
                                       : assay_fail(error, ASSAY_ERR_MEMORY, "%s: out of memory", path);
  if (status == ASSAY_OK && json_parse(reader, (const char *)text, (size_t)size, &root, &inner) != ASSAY_OK)
    status = assay_fail(error, ASSAY_ERR_INPUT, "%s: JSON: %s", path, inner.text);
  const json_value *list = status == ASSAY_OK ? json_member(root, "cases") : NULL;
  if (status == ASSAY_OK && (list == NULL || list->kind != JSON_ARRAY))
    status = assay_fail(error, ASSAY_ERR_INPUT, "%s: cases: found none, allowed a list", path);
  for (const json_value *at = list != NULL && status == ASSAY_OK ? list->child : NULL; at != NULL && status == ASSAY_OK;
       at = at->next) {
    golden_case *gold = &g->list[g->count];
    if (g->count == MOST_CASES) {
      status = assay_fail(error, ASSAY_ERR_INPUT, "%s: cases: found more than %d, allowed up to %d", path, MOST_CASES,
                          MOST_CASES);
      break;
    }
    (void)snprintf(gold->name, sizeof gold->name, "case %lld", (ll)json_integer(at, "id", g->count));
    gold->recorded = strcmp(json_text(at, "prompt", ""), recorded_prompt) == 0;
    gold->f32_error = json_number(at, "max_abs_logit_diff_runc_f32_vs_f64", 0);
    ++g->count;
    status = read_ids(path, gold->name, at, "prompt_ids", &gold->prompt, &gold->prompt_count, error);
    if (status == ASSAY_OK)
      status = read_ids(path, gold->name, at, "generated_ids", &gold->expected, &gold->steps, error);
  }
  free(text);
  json_close(reader);
  return status;
}

/* Reads a file of f64 beside the JSON; NULL where there is none. */
static assay_status read_beside(const char *path, const char *name, int64_t count, double **values,
                                assay_error *error) {
  char full[4096];
  const char *slash = strrchr(path, '/');
  unsigned char *bytes = NULL;
  int64_t size = 0;
  (void)snprintf(full, sizeof full, "%.*s%s", slash != NULL ? (int)(slash + 1 - path) : 0, path, name);
  if (access(full, F_OK) != 0) return ASSAY_OK;
  const assay_status status = file_bytes(full, (int64_t)1 << 36, &bytes, &size, error);
  if (status != ASSAY_OK) return status;
  *values = (double *)(void *)bytes;
  if (size == count * (int64_t)sizeof(double)) return ASSAY_OK;
  return assay_fail(error, ASSAY_ERR_INPUT, "%s: size: found %lld bytes, allowed %lld, %lld f64", full, (ll)size,
                    (ll)(count * (int64_t)sizeof(double)), (ll)count);
}

static assay_status read_golden(const char *path, const assay_model_config *config, golden *g, assay_error *error) {
  assay_status status = read_cases(path, g, error);
  for (int64_t i = 0; i < g->count && status == ASSAY_OK; ++i) {
    const golden_case *gold = &g->list[i];
    if (!gold->recorded) continue;
    const int64_t positions = gold->prompt_count + gold->steps - 1;
    status = read_beside(path, "golden_logits_once_f64.bin", positions * config->vocab, &g->logits, error);
    if (status == ASSAY_OK)
      status = read_beside(path, "golden_residual_once_f64.bin", (config->layers + 1) * positions * config->hidden,
                           &g->residual, error);
  }
  return status;
}

static void free_golden(golden *g) {
  for (int64_t i = 0; i < g->count; ++i) {
    free(g->list[i].prompt);
    free(g->list[i].expected);
  }
  free(g->logits);
  free(g->residual);
}

/* ---- plans ------------------------------------------------------------------------------------------- */

/* forced: the recorded ids are the prompt, and every position's choice is compared. */
typedef struct plan_row {
  const char *name;
  int64_t chunk;
  bool shuffled, together, forced;
} plan_row;

static const plan_row plans[] = {
    {"greedy, contiguous", 0, false, false, false},
    {"greedy, paged", 0, true, false, false},
    {"one prefill, contiguous", 0, false, false, true},
    {"chunks of 1, paged", 1, true, false, true},
    {"chunks of 7, paged", 7, true, false, true},
    {"chunks of 16, paged", 16, true, false, true},
    {"greedy, batch, contiguous", 0, false, true, false},
    {"greedy, batch, paged", 0, true, true, false},
    {"one prefill, batch, paged", 0, true, true, true},
    {"chunks of 7, batch, paged", 7, true, true, true},
    {"chunks of 16, batch, contiguous", 16, false, true, true},
};

typedef struct checking {
  const assay_model_backend *backend;
  const model_file *model;
  golden *golden;
  double mirror_rms; /* for the recorded case; 0: exact mode, which has its own limit */
  truth_log *log;
} checking;

static double rms_of(const double *a, const double *b, int64_t count, double *largest) {
  double sum = 0;
  *largest = 0;
  for (int64_t i = 0; i < count; ++i) {
    const double error = fabs(a[i] - b[i]);
    sum += error * error;
    if (!(error <= *largest)) *largest = error;
  }
  return sqrt(sum / (double)count);
}

static int64_t positions_of(const golden_case *gold) {
  return gold->prompt_count + gold->steps - 1;
}

static void judge_one(const checking *c, golden_case *gold, const run_request *r, const plan_row *row) {
  const int64_t V = c->model->config.vocab, positions = positions_of(gold), first = gold->prompt_count - 1;
  ++gold->ways;
  for (int64_t i = 0; i < gold->steps && gold->wrong[0] == '\0'; ++i) {
    const int32_t id = row->forced ? run_largest(r->logits + (first + i) * V, V) : r->ids[i];
    if (id != gold->expected[i])
      (void)snprintf(gold->wrong, sizeof gold->wrong, "%s: id %lld of %lld: got %d, expected %d", row->name, (ll)i,
                     (ll)gold->steps, id, gold->expected[i]);
  }
  if (r->logits == NULL || !gold->recorded || c->golden->logits == NULL) return;
  double largest;
  const double rms = rms_of(r->logits, c->golden->logits, positions * V, &largest);
  const bool in_f32 = c->model->config.act_dtype == ASSAY_F32 && gold->f32_error > 0;
  gold->by_rms = c->mirror_rms > 0 && !in_f32;
  const double found = gold->by_rms ? rms : largest;
  gold->limit = c->mirror_rms <= 0 ? exact_limit : device_limit * (in_f32 ? gold->f32_error : c->mirror_rms);
  if (!(found <= gold->worst)) gold->worst = found;
  if (!(found <= gold->limit) && gold->wrong[0] == '\0')
    (void)snprintf(gold->wrong, sizeof gold->wrong, "%s: logits [%lld, %lld]: %s error %.3g, allowed %.3g", row->name,
                   (ll)positions, (ll)V, gold->by_rms ? "RMS of the" : "largest", found, gold->limit);
}

static void print_cases(const checking *c) {
  for (int64_t i = 0; i < c->golden->count; ++i) {
    const golden_case *gold = &c->golden->list[i];
    if (gold->wrong[0] != '\0')
      truth_fail(c->log, gold->name, "%s", gold->wrong);
    else if (gold->limit > 0)
      truth_pass(c->log, gold->name, "%lld ids, %lld logits each, %d ways; %s error %.3g, allowed %.3g",
                 (ll)gold->steps, (ll)c->model->config.vocab, gold->ways, gold->by_rms ? "RMS of the" : "largest",
                 gold->worst, gold->limit);
    else
      truth_pass(c->log, gold->name, "%lld ids, %d ways", (ll)gold->steps, gold->ways);
  }
}

/* Prepares a request. If the case is forced, `prompt` is the recorded sequence, which the caller frees. */
static assay_status prepare(const checking *c, const golden_case *gold, bool forced, run_request *r, int32_t **prompt,
                            assay_error *error) {
  const int64_t positions = positions_of(gold);
  const bool logits = forced || (gold->recorded && c->golden->logits != NULL);
  *r = (run_request){.prompt = gold->prompt, .prompt_count = gold->prompt_count, .steps = gold->steps};
  *prompt = malloc((size_t)positions * sizeof **prompt);
  r->ids = malloc((size_t)gold->steps * sizeof *r->ids);
  if (logits) r->logits = malloc((size_t)(positions * c->model->config.vocab) * sizeof *r->logits);
  if (r->ids == NULL || *prompt == NULL || (logits && r->logits == NULL))
    return assay_fail(error, ASSAY_ERR_MEMORY, "truth: out of memory");
  if (!forced) return ASSAY_OK;
  memcpy(*prompt, gold->prompt, (size_t)gold->prompt_count * sizeof **prompt);
  memcpy(*prompt + gold->prompt_count, gold->expected, (size_t)(gold->steps - 1) * sizeof **prompt);
  r->prompt = *prompt;
  r->prompt_count = positions;
  r->steps = 1;
  return ASSAY_OK;
}

static assay_status run_plan_row(const checking *c, const plan_row *row, int64_t first, int64_t count,
                                 assay_error *error) {
  static run_request request[MOST_CASES];
  static int32_t *prompt[MOST_CASES];
  const run_plan plan = {.mode = ASSAY_MODEL_EXACT, .chunk = row->chunk, .shuffled = row->shuffled};
  assay_status status = ASSAY_OK;
  memset(request, 0, sizeof request);
  memset(prompt, 0, sizeof prompt);
  for (int64_t i = 0; i < count && status == ASSAY_OK; ++i)
    status = prepare(c, &c->golden->list[first + i], row->forced, &request[i], &prompt[i], error);
  if (status == ASSAY_OK)
    status = run_requests(c->backend, &c->model->config, &c->model->weights, &plan, request, count, error);
  for (int64_t i = 0; i < count; ++i) {
    if (status == ASSAY_OK) judge_one(c, &c->golden->list[first + i], &request[i], row);
    free(request[i].ids);
    free(request[i].logits);
    free(prompt[i]);
  }
  return status;
}

/* ---- residual streams ----------------------------------------------------------------------------------- */

typedef struct stream {
  const assay_model_config *config;
  int64_t positions;
  int64_t *at;   /* [layers + 1] next position */
  double *value; /* [layers + 1, positions, C] */
} stream;

/* Returns 0 for the input of layer 0, l + 1 for the output of layer l, -1 for another stage. */
static int64_t stream_of(const char *name) {
  int layer = 0, used = 0;
  if (strcmp(name, "embed") == 0) return 0;
  if (sscanf(name, "layers.%d.mlp.residual%n", &layer, &used) == 1 && used > 0 && name[used] == '\0') return layer + 1;
  return -1;
}

static bool wants_stream(void *context, const char *name) {
  (void)context;
  return stream_of(name) >= 0;
}

static void take_stream(void *context, const char *name, int64_t rows, int64_t width, const double *value) {
  const stream *s = context;
  const int64_t l = stream_of(name);
  if (l < 0 || l > s->config->layers || width != s->config->hidden || s->at[l] + rows > s->positions) return;
  memcpy(s->value + (l * s->positions + s->at[l]) * width, value, (size_t)(rows * width) * sizeof *value);
  s->at[l] += rows;
}

static assay_status judge_residual(const checking *c, const golden_case *gold, assay_error *error) {
  const assay_model_config *config = &c->model->config;
  stream s = {.config = config, .positions = positions_of(gold)};
  const int64_t count = (config->layers + 1) * s.positions * config->hidden;
  const assay_model_taps taps = {&s, wants_stream, take_stream, NULL};
  const run_plan plan = {.mode = ASSAY_MODEL_EXACT, .taps = &taps};
  run_request request = {.prompt = gold->prompt, .prompt_count = gold->prompt_count, .steps = gold->steps};
  s.at = calloc((size_t)config->layers + 1, sizeof *s.at);
  s.value = malloc((size_t)count * sizeof *s.value);
  request.ids = malloc((size_t)gold->steps * sizeof *request.ids);
  assay_status status = s.at != NULL && s.value != NULL && request.ids != NULL
                            ? ASSAY_OK
                            : assay_fail(error, ASSAY_ERR_MEMORY, "truth: out of memory");
  for (int64_t i = 0; i < count && status == ASSAY_OK; ++i)
    s.value[i] = (double)NAN;
  if (status == ASSAY_OK) status = run_requests(c->backend, config, &c->model->weights, &plan, &request, 1, error);
  for (int64_t l = 0; l <= config->layers && status == ASSAY_OK; ++l) {
    char name[100];
    double largest;
    const int64_t at = l * s.positions * config->hidden;
    (void)snprintf(name, sizeof name, "%s, residual stream %lld", gold->name, (ll)l);
    (void)rms_of(s.value + at, c->golden->residual + at, s.positions * config->hidden, &largest);
    if (!(largest <= exact_limit))
      truth_fail(c->log, name, "largest error %.3g, allowed %.3g", largest, exact_limit);
    else
      truth_pass(c->log, name, "[%lld, %lld]: largest error %.3g, allowed %.3g", (ll)s.positions, (ll)config->hidden,
                 largest, exact_limit);
  }
  free(s.at);
  free(s.value);
  free(request.ids);
  return status;
}

/* Measures how far rounding where a device stores takes the recorded case from f64. */
static assay_status measure_mirror(checking *c, assay_error *error) {
  assay_status status = ASSAY_OK;
  for (int64_t i = 0; i < c->golden->count && status == ASSAY_OK; ++i) {
    const golden_case *gold = &c->golden->list[i];
    const run_plan plan = {.mode = ASSAY_MODEL_MIRROR};
    run_request request;
    int32_t *prompt = NULL;
    double largest;
    if (!gold->recorded || c->golden->logits == NULL) continue;
    status = prepare(c, gold, true, &request, &prompt, error);
    if (status == ASSAY_OK)
      status = run_requests(assay_model_ref(), &c->model->config, &c->model->weights, &plan, &request, 1, error);
    if (status == ASSAY_OK)
      c->mirror_rms = rms_of(request.logits, c->golden->logits, positions_of(gold) * c->model->config.vocab, &largest);
    free(request.ids);
    free(request.logits);
    free(prompt);
  }
  return status;
}

assay_status truth_llama2c(const char *model, const char *path, const char *backend, truth_log *log,
                           assay_error *error) {
  model_file file = {.weights = {0}};
  static golden g;
  memset(&g, 0, sizeof g);
  checking c = {.model = &file, .golden = &g, .log = log};
  c.backend = model_backend(backend, error);
  if (c.backend == NULL) return ASSAY_ERR_INPUT;
  const bool exact = strcmp(backend, "ref") == 0;
  assay_status status = model_open(model, &file, error);
  if (status == ASSAY_OK) status = read_golden(path, &file.config, &g, error);
  if (status == ASSAY_OK && !exact) status = measure_mirror(&c, error);
  for (size_t p = 0; p < sizeof plans / sizeof *plans && status == ASSAY_OK; ++p) {
    if (plans[p].together) {
      status = run_plan_row(&c, &plans[p], 0, g.count, error);
      continue;
    }
    for (int64_t i = 0; i < g.count && status == ASSAY_OK; ++i)
      status = run_plan_row(&c, &plans[p], i, 1, error);
  }
  if (status == ASSAY_OK) print_cases(&c);
  for (int64_t i = 0; i < g.count && status == ASSAY_OK && exact; ++i)
    if (g.list[i].recorded && g.residual != NULL) status = judge_residual(&c, &g.list[i], error);
  for (int64_t i = 0; i < g.count && status == ASSAY_OK && g.logits == NULL; ++i)
    if (g.list[i].recorded)
      truth_uncovered(log, g.list[i].name, "its logits: no golden_logits_once_f64.bin beside the ids");
  free_golden(&g);
  model_file_free(&file);
  return status;
}
