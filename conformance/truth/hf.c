/* hf.c: compares forward passes with what the transformers library computed in f64: logits, streams, routers, greedy
 * ids (docs/truth.md). */
#define _POSIX_C_SOURCE 200809L
#include <dirent.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/dtype.h"
#include "hf_recorded.h"
#include "truth.h"

typedef long long ll; /* for messages */

/* f64 throughout: only the order of summation differs. */
static const double exact_limit = 1e-11;

/* ---- runs -------------------------------------------------------------------------------------------- */

typedef struct plan_row {
  const char *name;
  int64_t chunk;
  bool shuffled, together;
} plan_row;

static const plan_row plans[] = {{"one prefill", 0, false, false},
                                 {"chunks of 1", 1, true, false},
                                 {"chunks of 7", 7, true, false},
                                 {"chunks of 16", 16, false, false},
                                 {"a batch", 0, true, true}};
enum { PLANS = sizeof plans / sizeof *plans };

/* The results of one prompt over all plans, or on a device of all prompts in one plan. */
typedef struct hf_result {
  int64_t ways, values, routed, rerouted;
  char wrong_id[100]; /* the first id that is not the recorded one, of the present plan */
  double worst;       /* largest error, or on a device the largest ratio */
  char worst_at[96], wrong[400];
  char choice[300], choice_at[ASSAY_MODEL_NAME]; /* a device's first choice that is none, and its stage */
} hf_result;

typedef struct checking {
  const assay_model_backend *backend;
  const assay_model_options *options;
  assay_model_options of_ref; /* beside a device: the form among them that the reference has */
  bool rounded;               /* the weights are not those of the record */
  hf_recorded *recorded;
  truth_log *log;
  hf_result prompt[HF_PROMPTS], plan[PLANS];
  assay_error *error;
} checking;

static void note_wrong(hf_result *r, const char *where, const char *text) {
  if (r->wrong[0] == '\0') (void)snprintf(r->wrong, sizeof r->wrong, "%s: %.300s", where, text);
}

/* Tells whether some step has several tokens of a prompt. Without one, no call takes the form mla_expand. */
static bool has_prompts(const checking *c, const plan_row *plan, int64_t first, int64_t count) {
  for (int64_t i = first; i < first + count; ++i)
    if (c->recorded->prompt[i].count > 1 && plan->chunk != 1) return true;
  return false;
}

/* Runs prompts `first` to first + count - 1 side by side, and compares the ids where `steps` are wanted. */
static assay_status run(checking *c, const plan_row *plan, const assay_model_backend *backend, assay_model_mode mode,
                        int64_t first, int64_t count, bool steps, model_record *record) {
  const hf_recorded *g = c->recorded;
  const int64_t V = g->model.config.vocab;
  run_request request[HF_PROMPTS];
  assay_model_taps taps;
  run_plan how = {.mode = mode, .chunk = plan->chunk, .shuffled = plan->shuffled};
  if (c->of_ref.forms == 0 || has_prompts(c, plan, first, count))
    how.model = backend == c->backend ? c->options : &c->of_ref;
  assay_status status = ASSAY_OK;
  if (record != NULL) {
    taps = record_taps(record);
    how.taps = &taps;
  }
  memset(request, 0, sizeof request);
  for (int64_t i = 0; i < count; ++i) {
    const hf_prompt *p = &g->prompt[first + i];
    request[i] = (run_request){.prompt = p->ids, .prompt_count = p->count, .steps = steps ? p->steps : 1};
    request[i].ids = malloc((size_t)request[i].steps * sizeof *request[i].ids);
    request[i].logits = malloc((size_t)((p->count + request[i].steps) * V) * sizeof *request[i].logits);
    if (request[i].ids == NULL || request[i].logits == NULL)
      status = assay_fail(c->error, ASSAY_ERR_MEMORY, "truth: out of memory");
  }
  if (status == ASSAY_OK)
    status = run_requests(backend, &g->model.config, &g->model.weights, &how, request, count, c->error);
  for (int64_t i = 0; i < count; ++i) {
    const hf_prompt *p = &g->prompt[first + i];
    for (int64_t s = 0; s < request[i].steps && steps && status == ASSAY_OK; ++s) {
      char *wrong = c->prompt[first + i].wrong_id;
      if (request[i].ids[s] == p->greedy[s] || wrong[0] != '\0') continue;
      (void)snprintf(wrong, sizeof c->prompt->wrong_id, "id %lld of %lld: got %d, recorded %d", (ll)s, (ll)p->steps,
                     request[i].ids[s], p->greedy[s]);
    }
    free(request[i].ids);
    free(request[i].logits);
  }
  return status;
}

/* ---- f64 against the record -------------------------------------------------------------------------- */

static int by_value(const void *a, const void *b) {
  const double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

/* Returns the largest error of a row. Both sides of an unordered row are sorted; which weight belongs to which id shows
 * in the stream. */
static double row_error(const hf_stage *s, int64_t row, const double *value) {
  enum { MOST = 32 };
  double wanted[MOST], got[MOST], largest = 0;
  const bool sorted = s->unordered && s->width <= MOST;
  for (int64_t w = 0; w < s->width && sorted; ++w) {
    wanted[w] = npy_load(s->file, s->first + row * s->width + w);
    got[w] = value[w];
  }
  if (sorted) {
    qsort(wanted, (size_t)s->width, sizeof *wanted, by_value);
    qsort(got, (size_t)s->width, sizeof *got, by_value);
  }
  for (int64_t w = 0; w < s->width; ++w) {
    const double x = sorted ? wanted[w] : npy_load(s->file, s->first + row * s->width + w),
                 y = sorted ? got[w] : value[w];
    const double error = s->ids ? (x == y ? 0 : 1) : fabs(x - y);
    if (!(error <= largest)) largest = error;
  }
  return largest;
}

/* Returns the largest error of a stage, or of its ids the number of wrong ones. The prompt's rows come after `before`
 * other rows of the first step. Infinity: the run has no such stage. */
static double stage_error(const hf_stage *s, int64_t T, const model_record *r, int64_t before) {
  int64_t done = 0;
  double largest = 0;
  for (int64_t i = 0; i < r->count && done < T; ++i) {
    const model_tap *tap = &r->tap[i];
    if (strcmp(tap->name, s->tap) != 0 || tap->width != s->width) continue;
    for (int64_t n = before; n < tap->rows && done < T; ++n, ++done) {
      const double error = row_error(s, done, tap->value + n * s->width);
      if (!(error <= largest)) largest = error;
    }
  }
  return done == T ? largest : (double)INFINITY;
}

static void judge_exact(checking *c, const char *where, int64_t prompt, const model_record *r, int64_t before,
                        hf_result *result) {
  const hf_recorded *g = c->recorded;
  for (int64_t i = 0; i < g->stages; ++i) {
    const hf_stage *s = &g->stage[i];
    char text[200];
    if (s->prompt != prompt) continue;
    const double error = stage_error(s, g->prompt[prompt].count, r, before);
    result->values += g->prompt[prompt].count * s->width;
    if (!s->ids && !(error <= result->worst)) {
      result->worst = error;
      (void)snprintf(result->worst_at, sizeof result->worst_at, "%s", s->tap);
    }
    if (error <= (s->ids ? 0 : exact_limit)) continue;
    (void)snprintf(text, sizeof text,
                   s->ids ? "%s: other ids than the recorded ones" : "%s: largest error %.3g, allowed %.3g", s->tap,
                   error, exact_limit);
    note_wrong(result, where, text);
  }
  if (r->full) note_wrong(result, where, "out of memory: stages are missing");
}

static assay_status check_ref(checking *c, const plan_row *plan, int64_t first, int64_t count) {
  model_record exact = {.tap = NULL};
  int64_t before = 0;
  const assay_status status = run(c, plan, c->backend, ASSAY_MODEL_EXACT, first, count, true, &exact);
  for (int64_t i = first; i < first + count && status == ASSAY_OK; before += c->recorded->prompt[i++].count) {
    hf_result *result = &c->prompt[i];
    judge_exact(c, plan->name, i, &exact, before, result);
    ++result->ways;
    if (result->wrong_id[0] != '\0') note_wrong(result, plan->name, result->wrong_id);
  }
  record_free(&exact);
  return status;
}

/* ---- a device against f64 ---------------------------------------------------------------------------- */

/* The same stages of all prompts and steps of a plan, as one stage each: a single row has too few values for a mean. */
typedef struct hf_runs {
  model_record exact, mirror, device;
} hf_runs;

static void free_runs(hf_runs *r) {
  record_free(&r->exact);
  record_free(&r->mirror);
  record_free(&r->device);
}

/* Notes the first choice of a router that is none. Later stages of the pass follow from it. */
static void note_choice(hf_result *result, const char *where, const model_record *device,
                        const routes_verdict *routes) {
  if (routes->wrong[0] == '\0' || result->choice[0] != '\0') return;
  (void)snprintf(result->choice, sizeof result->choice, "%s: %.250s", where, routes->wrong);
  (void)snprintf(result->choice_at, sizeof result->choice_at, "%s", device->tap[routes->wrong_at].name);
}

/* Holds the runs of some prompts against each other where choices are made, and against the record. */
static void check_choices(checking *c, const hf_runs *r, int64_t first, int64_t count, hf_result *result) {
  routes_verdict routes;
  int64_t before = 0;
  routes_check(&c->recorded->model.config, &c->recorded->model.weights, &r->exact, &r->mirror, &r->device, &routes);
  result->routed += routes.rows;
  result->rerouted += routes.differ;
  for (int64_t i = first; i < first + count; before += c->recorded->prompt[i++].count) {
    char where[40];
    hf_result recorded = {.ways = 0};
    (void)snprintf(where, sizeof where, "prompt of %lld", (ll)c->recorded->prompt[i].count);
    note_choice(result, where, &r->device, &routes);
    /* Where the exact run chose as the record did, it must be the record. */
    if (routes.differ == 0 && !c->rounded) judge_exact(c, where, i, &r->exact, before, &recorded);
    if (recorded.wrong[0] != '\0') note_wrong(result, "f64", recorded.wrong);
  }
}

static assay_status run_device(checking *c, const plan_row *plan, int64_t first, int64_t count, hf_runs *pooled,
                               hf_result *result) {
  hf_runs r = {.exact = {.tap = NULL}};
  r.exact.chosen = r.mirror.chosen = &r.device;
  r.exact.experts = r.mirror.experts = c->recorded->model.config.experts;
  assay_status status = run(c, plan, c->backend, ASSAY_MODEL_MIRROR, first, count, false, &r.device);
  if (status == ASSAY_OK) status = run(c, plan, assay_model_ref(), ASSAY_MODEL_EXACT, first, count, false, &r.exact);
  if (status == ASSAY_OK) status = run(c, plan, assay_model_ref(), ASSAY_MODEL_MIRROR, first, count, false, &r.mirror);
  if (status == ASSAY_OK && !c->rounded)
    status = run(c, plan, c->backend, ASSAY_MODEL_MIRROR, first, count, true, NULL);
  if (status == ASSAY_OK) {
    check_choices(c, &r, first, count, result);
    record_pool(&r.exact, &r.device, false, &pooled->exact);
    record_pool(&r.mirror, &r.device, false, &pooled->mirror);
    record_pool(&r.device, &r.device, false, &pooled->device);
  }
  free_runs(&r);
  return status;
}

static assay_status check_device(checking *c, int plan) {
  const plan_row *row = &plans[plan];
  const int64_t prompts = c->recorded->prompts, count = row->together ? prompts : 1;
  hf_result *result = &c->plan[plan];
  hf_runs pooled = {.exact = {.tap = NULL}};
  assay_status status = ASSAY_OK;
  taps_verdict v;
  for (int64_t i = 0; i < prompts && status == ASSAY_OK; i += count)
    status = run_device(c, row, i, count, &pooled, result);
  if (status == ASSAY_OK) {
    taps_compare(&c->recorded->model.config, &pooled.exact, &pooled.mirror, &pooled.device, &v);
    result->values = v.values;
    result->worst = v.worst;
    (void)snprintf(result->worst_at, sizeof result->worst_at, "%s", v.worst_at);
    int64_t at = 0;
    while (at < pooled.device.count && strcmp(pooled.device.tap[at].name, result->choice_at) != 0)
      ++at;
    if (v.first[0] != '\0' && v.first_at < at) note_wrong(result, "all prompts", v.first);
    if (result->choice[0] != '\0') note_wrong(result, "router", result->choice);
    if (v.first[0] != '\0') note_wrong(result, "all prompts", v.first);
  }
  for (int64_t i = 0; i < prompts && status == ASSAY_OK; ++i) {
    char where[40];
    (void)snprintf(where, sizeof where, "prompt of %lld", (ll)c->recorded->prompt[i].count);
    if (c->prompt[i].wrong_id[0] != '\0') note_wrong(result, where, c->prompt[i].wrong_id);
    c->prompt[i].wrong_id[0] = '\0';
  }
  free_runs(&pooled);
  return status;
}

/* ---- a folder ---------------------------------------------------------------------------------------- */

/* Tells whether a prompt of these has failed. Further plans would say the same. */
static bool any_wrong(const checking *c, int64_t first, int64_t count) {
  for (int64_t i = first; i < first + count; ++i)
    if (c->prompt[i].wrong[0] != '\0') return true;
  return false;
}

static void print_prompts(checking *c, const char *type) {
  for (int64_t i = 0; i < c->recorded->prompts; ++i) {
    const hf_result *r = &c->prompt[i];
    const hf_prompt *p = &c->recorded->prompt[i];
    char name[100];
    (void)snprintf(name, sizeof name, "%s, prompt of %lld", type, (ll)p->count);
    if (r->wrong[0] != '\0')
      truth_fail(c->log, name, "%s", r->wrong);
    else
      truth_pass(c->log, name, "%lld ids, %lld values, %lld ways; largest error %.3g, allowed %.3g", (ll)p->steps,
                 (ll)r->values, (ll)r->ways, r->worst, exact_limit);
  }
}

static void print_plans(checking *c, const char *type) {
  for (int p = 0; p < PLANS; ++p) {
    const hf_result *r = &c->plan[p];
    char name[100];
    (void)snprintf(name, sizeof name, "%s, %s", type, plans[p].name);
    if (r->wrong[0] != '\0')
      truth_fail(c->log, name, "%s", r->wrong);
    else
      truth_pass(c->log, name,
                 "%lld prompts, %s%lld values; %.2f of the allowed at %s; %lld of %lld rows routed otherwise",
                 (ll)c->recorded->prompts, c->rounded ? "" : "their ids, ", (ll)r->values, r->worst, r->worst_at,
                 (ll)r->rerouted, (ll)r->routed);
  }
}

/* Rounds the weights, and makes activations and cache of their type. */
static assay_status round_weights(model_file *m, assay_dtype dtype, assay_error *error) {
  model_file made = {.config = m->config};
  made.config.weight_dtype = made.config.act_dtype = made.config.kv_dtype = dtype;
  const assay_status status = assay_model_weights_alloc(&made.config, &made.weights, error);
  if (status != ASSAY_OK) return status;
  for (int32_t i = 0; i < made.weights.count; ++i) {
    const assay_tensor *from = &m->weights.tensor[i], *to = &made.weights.tensor[i];
    const int64_t count = from->shape[0] * (from->rank == 2 ? from->shape[1] : 1);
    for (int64_t e = 0; e < count; ++e)
      assay_store_f64(to->data, to->dtype, e, assay_load_f64(from->data, from->dtype, e));
  }
  (void)snprintf(made.type, sizeof made.type, "%s", m->type);
  model_file_free(m);
  *m = made;
  return ASSAY_OK;
}

static assay_status check_folder(const char *folder, const char *backend, const assay_model_options *options,
                                 const char *dtype, truth_log *log, assay_error *error) {
  assay_error inner = {""};
  checking *c = calloc(1, sizeof *c);
  hf_recorded *g = calloc(1, sizeof *g);
  if (c == NULL || g == NULL) {
    free(c);
    free(g);
    return assay_fail(error, ASSAY_ERR_MEMORY, "truth: out of memory");
  }
  *c = (checking){.options = options, .recorded = g, .log = log, .error = &inner};
  if (options->forms > 0 && strncmp(options->form[0], "mla_expand=", strlen("mla_expand=")) == 0) c->of_ref = *options;
  c->backend = model_backend(backend, &inner);
  assay_status status = c->backend != NULL ? hf_recorded_read(folder, g, &inner) : ASSAY_ERR_INPUT;
  if (status == ASSAY_OK && dtype != NULL && c->backend == assay_model_ref())
    status = assay_fail(&inner, ASSAY_ERR_INPUT, "--dtype: found %s with --device ref, allowed with simt, cuda", dtype);
  if (status == ASSAY_OK && dtype != NULL) {
    c->rounded = true;
    status = round_weights(&g->model, strcmp(dtype, "bf16") == 0 ? ASSAY_BF16 : ASSAY_F16, &inner);
  }
  if (status == ASSAY_OK && options->forms > 1)
    status = assay_fail(&inner, ASSAY_ERR_INPUT, "--form: found %d forms, allowed one", options->forms);
  const bool ref = c->backend == assay_model_ref();
  for (int p = 0; p < PLANS && status == ASSAY_OK && !ref; ++p)
    status = check_device(c, p);
  for (int p = 0; p < PLANS && status == ASSAY_OK && ref; ++p)
    for (int64_t i = 0; i < (plans[p].together ? 1 : g->prompts) && status == ASSAY_OK; ++i) {
      const int64_t count = plans[p].together ? g->prompts : 1;
      if (!any_wrong(c, i, count)) status = check_ref(c, &plans[p], i, count);
    }
  if (status == ASSAY_OK && ref)
    print_prompts(c, g->model.type);
  else if (status == ASSAY_OK)
    print_plans(c, g->model.type);
  else if (status == ASSAY_ERR_UNSUPPORTED)
    truth_uncovered(log, folder, "%.800s", inner.text);
  else
    (void)assay_fail(error, status, "%.1800s", inner.text);
  hf_recorded_free(g);
  free(c);
  return status == ASSAY_ERR_UNSUPPORTED ? ASSAY_OK : status;
}

static int visible(const struct dirent *entry) {
  return entry->d_name[0] != '.';
}

assay_status truth_hf(const char *folder, const char *backend, const assay_model_options *options, const char *dtype,
                      truth_log *log, assay_error *error) {
  char path[4096];
  struct dirent **entry = NULL;
  int64_t found = 0;
  (void)snprintf(path, sizeof path, "%.3000s/config.json", folder);
  if (access(path, F_OK) == 0) return check_folder(folder, backend, options, dtype, log, error);
  const int count = scandir(folder, &entry, visible, alphasort);
  assay_status status = ASSAY_OK;
  if (count < 0) return assay_fail(error, ASSAY_ERR_INPUT, "%s: cannot be read as a folder", folder);
  for (int i = 0; i < count; ++i) {
    char inner[4096];
    (void)snprintf(inner, sizeof inner, "%.3000s/%.500s", folder, entry[i]->d_name);
    (void)snprintf(path, sizeof path, "%.3600s/config.json", inner);
    if (status == ASSAY_OK && access(path, F_OK) == 0) {
      ++found;
      status = check_folder(inner, backend, options, dtype, log, error);
    }
    free(entry[i]);
  }
  free(entry);
  if (status != ASSAY_OK || found > 0) return status;
  return assay_fail(error, ASSAY_ERR_INPUT, "%s: found no config.json here or one folder below, allowed one", folder);
}
