/* hf.c: compares forward passes with what the transformers library computed in f64: logits, streams, routers, greedy
 * ids (docs/truth.md). */
#define _POSIX_C_SOURCE 200809L
#include <dirent.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "conformance/models/models.h"
#include "conformance/text/text.h"
#include "core/files/bytes.h"
#include "core/json.h"
#include "truth.h"

typedef long long ll; /* for messages */

/* f64 throughout: only the order of summation differs. */
static const double exact_limit = 1e-11;
enum { MOST_PROMPTS = 16 };

/* ---- what was recorded ------------------------------------------------------------------------------- */

typedef struct hf_prompt {
  int32_t *ids, *greedy;
  int64_t count, steps;
} hf_prompt;

/* One stage of one prompt: [tokens, width]. */
typedef struct hf_stage {
  char tap[ASSAY_MODEL_NAME];
  int64_t prompt, width;
  const npy_tensor *file;
  int64_t first; /* its first element in the file */
  bool ids;
} hf_stage;

typedef struct hf_recorded {
  model_file model;
  hf_prompt prompt[MOST_PROMPTS];
  int64_t prompts;
  npy_tensor *file; /* a stage's file; stages of hidden states share one */
  hf_stage *stage;  /* in the order of a pass, prompt after prompt */
  int64_t files, stages;
} hf_recorded;

static void free_recorded(hf_recorded *g) {
  for (int64_t i = 0; i < MOST_PROMPTS; ++i) {
    free(g->prompt[i].ids);
    free(g->prompt[i].greedy);
  }
  for (int64_t i = 0; i < g->files; ++i)
    npy_free(&g->file[i]);
  free(g->file);
  free(g->stage);
  model_file_free(&g->model);
  free(g);
}

static assay_status read_ids(const char *path, const char *key, int64_t number, const json_value *list, int64_t V,
                             int32_t **ids, int64_t *count, assay_error *error) {
  int64_t n = 0;
  for (const json_value *at = list != NULL && list->kind == JSON_ARRAY ? list->child : NULL; at != NULL; at = at->next)
    ++n;
  if (n == 0)
    return assay_fail(error, ASSAY_ERR_INPUT, "%s: %s: %lld: found no list of ids, allowed one", path, key, (ll)number);
  *ids = malloc((size_t)n * sizeof **ids);
  *count = 0;
  if (*ids == NULL) return assay_fail(error, ASSAY_ERR_MEMORY, "%s: out of memory", path);
  for (const json_value *at = list->child; at != NULL; at = at->next) {
    int64_t id = 0;
    if (!json_whole(at, &id) || id < 0 || id >= V)
      return assay_fail(error, ASSAY_ERR_INPUT, "%s: %s: %lld: found '%.30s' at place %lld, allowed ids from 0 to %lld",
                        path, key, (ll)number, at->text != NULL ? at->text : "no number", (ll)*count, (ll)(V - 1));
    (*ids)[(*count)++] = (int32_t)id;
  }
  return ASSAY_OK;
}

static assay_status read_prompts(const char *folder, hf_recorded *g, assay_error *error) {
  char path[4096];
  unsigned char *text = NULL;
  int64_t size = 0;
  const json_value *root = NULL;
  assay_error inner = {""};
  json_reader *reader = json_open();
  (void)snprintf(path, sizeof path, "%.3000s/golden.json", folder);
  assay_status status = reader != NULL ? file_bytes(path, (int64_t)1 << 28, &text, &size, error)
                                       : assay_fail(error, ASSAY_ERR_MEMORY, "%s: out of memory", path);
  if (status == ASSAY_OK && json_parse(reader, (const char *)text, (size_t)size, &root, &inner) != ASSAY_OK)
    status = assay_fail(error, ASSAY_ERR_INPUT, "%s: JSON: %s", path, inner.text);
  const json_value *prompts = json_member(root, "prompts"), *greedy = json_member(root, "greedy");
  const bool lists = prompts != NULL && prompts->kind == JSON_ARRAY && greedy != NULL && greedy->kind == JSON_ARRAY;
  if (status == ASSAY_OK && !lists)
    status = assay_fail(error, ASSAY_ERR_INPUT, "%s: prompts, greedy: found none, allowed two lists", path);
  const json_value *p = lists ? prompts->child : NULL, *s = lists ? greedy->child : NULL;
  const int64_t V = g->model.config.vocab;
  for (; p != NULL && status == ASSAY_OK; p = p->next, s = s != NULL ? s->next : NULL) {
    hf_prompt *to = &g->prompt[g->prompts];
    if (g->prompts == MOST_PROMPTS)
      status = assay_fail(error, ASSAY_ERR_INPUT, "%s: prompts: found more than %d, allowed up to %d", path,
                          MOST_PROMPTS, MOST_PROMPTS);
    else
      status = read_ids(path, "prompts", g->prompts, p, V, &to->ids, &to->count, error);
    if (status == ASSAY_OK) status = read_ids(path, "greedy", g->prompts++, s, V, &to->greedy, &to->steps, error);
  }
  if (status == ASSAY_OK && g->prompts == 0)
    status = assay_fail(error, ASSAY_ERR_INPUT, "%s: prompts: found none, allowed 1 to %d", path, MOST_PROMPTS);
  free(text);
  json_close(reader);
  return status;
}

/* Reads a file of `count` numbers, whose type is f64, or i64 for ids. */
static assay_status read_file(const char *folder, const char *name, int type, int64_t count, hf_recorded *g,
                              assay_error *error) {
  char path[4096];
  npy_tensor *t = &g->file[g->files];
  (void)snprintf(path, sizeof path, "%.3000s/%.200s", folder, name);
  const assay_status status = npy_read(path, NULL, NULL, t, error);
  if (status != ASSAY_OK) return status;
  ++g->files;
  if (t->type == type && t->count == count) return ASSAY_OK;
  return assay_fail(error, ASSAY_ERR_INPUT, "%s: found %lld elements of %s, allowed %lld of %s", path, (ll)t->count,
                    npy_type_name(t->type), (ll)count, npy_type_name(type));
}

static void add_stage(hf_recorded *g, int64_t prompt, const char *tap, int64_t width, const npy_tensor *file,
                      int64_t first, bool ids) {
  hf_stage *s = &g->stage[g->stages++];
  *s = (hf_stage){.prompt = prompt, .width = width, .file = file, .first = first, .ids = ids};
  (void)snprintf(s->tap, sizeof s->tap, "%s", tap);
}

/* Reads what a sparse layer's router returned: logits, weights, ids. */
static assay_status read_router(const char *folder, hf_recorded *g, int64_t prompt, int64_t layer, assay_error *error) {
  const assay_model_config *c = &g->model.config;
  const int64_t T = g->prompt[prompt].count, width[3] = {c->experts, c->experts_used, c->experts_used};
  static const char *const taps[3] = {"", ".weights", ".ids"};
  static const int order[3] = {0, 2, 1}; /* ids before weights, as in a pass */
  assay_status status = ASSAY_OK;
  for (int i = 0; i < 3 && status == ASSAY_OK; ++i) {
    const int o = order[i];
    char name[200], tap[ASSAY_MODEL_NAME];
    (void)snprintf(name, sizeof name, "model_layers_%lld_mlp_%s_%lld_out%d.%s.npy", (ll)layer,
                   c->arch == ASSAY_GPT_OSS ? "router" : "gate", (ll)prompt, o, o == 2 ? "i64" : "f64");
    (void)snprintf(tap, sizeof tap, "layers.%d.router%s", (int)layer, taps[o]);
    status = read_file(folder, name, o == 2 ? ASSAY_I64 : (int)NPY_F64, T * width[o], g, error);
    if (status == ASSAY_OK) add_stage(g, prompt, tap, width[o], &g->file[g->files - 1], 0, o == 2);
  }
  return status;
}

static assay_status read_stages(const char *folder, hf_recorded *g, int64_t prompt, assay_error *error) {
  const assay_model_config *c = &g->model.config;
  const int64_t T = g->prompt[prompt].count, L = c->layers, C = c->hidden;
  char name[200], tap[ASSAY_MODEL_NAME];
  (void)snprintf(name, sizeof name, "hidden_%lld.f64.npy", (ll)prompt);
  assay_status status = read_file(folder, name, (int)NPY_F64, (L + 1) * T * C, g, error);
  const npy_tensor *hidden = &g->file[g->files - 1];
  for (int64_t l = 0; l < L && status == ASSAY_OK; ++l) {
    (void)snprintf(tap, sizeof tap, "layers.%d.mlp.residual", (int)l - 1);
    add_stage(g, prompt, l == 0 ? "embed" : tap, C, hidden, l * T * C, false);
    if (assay_model_is_sparse(c, l)) status = read_router(folder, g, prompt, l, error);
  }
  if (status != ASSAY_OK) return status;
  add_stage(g, prompt, "final", C, hidden, L * T * C, false);
  (void)snprintf(name, sizeof name, "logits_%lld.f64.npy", (ll)prompt);
  status = read_file(folder, name, (int)NPY_F64, T * c->vocab, g, error);
  if (status == ASSAY_OK) add_stage(g, prompt, "logits", c->vocab, &g->file[g->files - 1], 0, false);
  return status;
}

static assay_status read_recorded(const char *folder, hf_recorded *g, assay_error *error) {
  assay_status status = model_file_hf(folder, &g->model, error);
  if (status == ASSAY_OK) status = read_prompts(folder, g, error);
  if (status != ASSAY_OK) return status;
  const int64_t most = g->prompts * (2 + 4 * (g->model.config.layers + 1));
  g->file = calloc((size_t)most, sizeof *g->file);
  g->stage = calloc((size_t)most, sizeof *g->stage);
  if (g->file == NULL || g->stage == NULL) return assay_fail(error, ASSAY_ERR_MEMORY, "%s: out of memory", folder);
  for (int64_t i = 0; i < g->prompts && status == ASSAY_OK; ++i)
    status = read_stages(folder, g, i, error);
  return status;
}

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

/* The results of one prompt over all plans. */
typedef struct hf_result {
  int64_t ways, values, routed, rerouted;
  char wrong_id[100]; /* the first id that is not the recorded one, of the present plan */
  double worst;       /* largest error, or on a device the largest ratio */
  char worst_at[96], wrong[400];
} hf_result;

typedef struct checking {
  const assay_model_backend *backend;
  hf_recorded *recorded;
  truth_log *log;
  hf_result result[MOST_PROMPTS];
  assay_error *error;
} checking;

static void note_wrong(hf_result *r, const plan_row *plan, const char *text) {
  if (r->wrong[0] == '\0') (void)snprintf(r->wrong, sizeof r->wrong, "%s: %.300s", plan->name, text);
}

/* Runs prompts `first` to first + count - 1 side by side, and compares the ids where `steps` are wanted. */
static assay_status run(checking *c, const plan_row *plan, const assay_model_backend *backend, assay_model_mode mode,
                        int64_t first, int64_t count, bool steps, model_record *record) {
  const hf_recorded *g = c->recorded;
  const int64_t V = g->model.config.vocab;
  run_request request[MOST_PROMPTS];
  assay_model_taps taps;
  run_plan how = {.mode = mode, .chunk = plan->chunk, .shuffled = plan->shuffled};
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
      char *wrong = c->result[first + i].wrong_id;
      if (request[i].ids[s] == p->greedy[s] || wrong[0] != '\0') continue;
      (void)snprintf(wrong, sizeof c->result->wrong_id, "id %lld of %lld: got %d, recorded %d", (ll)s, (ll)p->steps,
                     request[i].ids[s], p->greedy[s]);
    }
    free(request[i].ids);
    free(request[i].logits);
  }
  return status;
}

/* ---- f64 against the record -------------------------------------------------------------------------- */

/* Returns the largest error of a stage, or of its ids the number of wrong ones. The prompt's rows come after `before`
 * other rows of the first step. Infinity: the run has no such stage. */
static double stage_error(const hf_stage *s, int64_t T, const model_record *r, int64_t before) {
  int64_t done = 0;
  double largest = 0;
  for (int64_t i = 0; i < r->count && done < T; ++i) {
    const model_tap *tap = &r->tap[i];
    if (strcmp(tap->name, s->tap) != 0 || tap->width != s->width) continue;
    for (int64_t n = before; n < tap->rows && done < T; ++n, ++done)
      for (int64_t w = 0; w < s->width; ++w) {
        const double wanted = npy_load(s->file, s->first + done * s->width + w), got = tap->value[n * s->width + w];
        const double error = s->ids ? (got == wanted ? 0 : 1) : fabs(got - wanted);
        if (!(error <= largest)) largest = error;
      }
  }
  return done == T ? largest : (double)INFINITY;
}

static void judge_exact(checking *c, const plan_row *plan, int64_t prompt, const model_record *r, int64_t before) {
  const hf_recorded *g = c->recorded;
  hf_result *result = &c->result[prompt];
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
    note_wrong(result, plan, text);
  }
  if (r->full) note_wrong(result, plan, "out of memory: stages are missing");
}

/* ---- a device against f64 ---------------------------------------------------------------------------- */

static void judge_device(checking *c, const plan_row *plan, int64_t first, int64_t count, const model_record *exact,
                         const model_record *mirror, const model_record *device) {
  const assay_model_config *config = &c->recorded->model.config;
  taps_verdict v;
  routes_verdict routes;
  int64_t before = 0;
  routes_check(config, exact, mirror, device, &routes);
  taps_compare(config, exact, mirror, device, &v);
  for (int64_t i = first; i < first + count; ++i) {
    hf_result *result = &c->result[i];
    result->routed += routes.rows;
    result->rerouted += routes.differ;
    if (routes.differ == 0) {
      /* The exact run chose as the record did: it must be the record. Its errors are no ratios. */
      const hf_result kept = *result;
      judge_exact(c, plan, i, exact, before);
      result->worst = kept.worst;
      memcpy(result->worst_at, kept.worst_at, sizeof result->worst_at);
      result->values = kept.values;
    }
    before += c->recorded->prompt[i].count;
    result->values += v.values;
    if (!(v.worst <= result->worst)) {
      result->worst = v.worst;
      (void)snprintf(result->worst_at, sizeof result->worst_at, "%s", v.worst_at);
    }
    if (routes.wrong[0] != '\0') note_wrong(result, plan, routes.wrong);
    if (v.first[0] != '\0') note_wrong(result, plan, v.first);
  }
}

static assay_status check_part(checking *c, const plan_row *plan, int64_t first, int64_t count) {
  model_record exact = {.tap = NULL}, mirror = {.tap = NULL}, device = {.tap = NULL};
  const bool ref = c->backend == assay_model_ref();
  assay_status status;
  int64_t before = 0;
  if (ref) {
    status = run(c, plan, c->backend, ASSAY_MODEL_EXACT, first, count, true, &exact);
    for (int64_t i = first; i < first + count && status == ASSAY_OK; before += c->recorded->prompt[i++].count)
      judge_exact(c, plan, i, &exact, before);
  } else {
    exact.chosen = mirror.chosen = &device;
    exact.experts = mirror.experts = c->recorded->model.config.experts;
    status = run(c, plan, c->backend, ASSAY_MODEL_MIRROR, first, count, false, &device);
    if (status == ASSAY_OK) status = run(c, plan, assay_model_ref(), ASSAY_MODEL_EXACT, first, count, false, &exact);
    if (status == ASSAY_OK) status = run(c, plan, assay_model_ref(), ASSAY_MODEL_MIRROR, first, count, false, &mirror);
    if (status == ASSAY_OK) judge_device(c, plan, first, count, &exact, &mirror, &device);
    if (status == ASSAY_OK) status = run(c, plan, c->backend, ASSAY_MODEL_MIRROR, first, count, true, NULL);
  }
  for (int64_t i = first; i < first + count && status == ASSAY_OK; ++i) {
    ++c->result[i].ways;
    if (c->result[i].wrong_id[0] != '\0') note_wrong(&c->result[i], plan, c->result[i].wrong_id);
  }
  record_free(&exact);
  record_free(&mirror);
  record_free(&device);
  return status;
}

/* Tells whether a prompt of these has failed. Further plans would say the same. */
static bool any_wrong(const checking *c, int64_t first, int64_t count) {
  for (int64_t i = first; i < first + count; ++i)
    if (c->result[i].wrong[0] != '\0') return true;
  return false;
}

/* ---- folders ----------------------------------------------------------------------------------------- */

static void print_results(checking *c, const char *type) {
  const bool ref = c->backend == assay_model_ref();
  for (int64_t i = 0; i < c->recorded->prompts; ++i) {
    const hf_result *r = &c->result[i];
    const hf_prompt *p = &c->recorded->prompt[i];
    char name[100];
    (void)snprintf(name, sizeof name, "%s, prompt of %lld", type, (ll)p->count);
    if (r->wrong[0] != '\0')
      truth_fail(c->log, name, "%s", r->wrong);
    else if (ref)
      truth_pass(c->log, name, "%lld ids, %lld values, %lld ways; largest error %.3g, allowed %.3g", (ll)p->steps,
                 (ll)r->values, (ll)r->ways, r->worst, exact_limit);
    else
      truth_pass(c->log, name,
                 "%lld ids, %lld values, %lld ways; %.2f of the allowed at %s; %lld of %lld rows routed otherwise",
                 (ll)p->steps, (ll)r->values, (ll)r->ways, r->worst, r->worst_at, (ll)r->rerouted, (ll)r->routed);
  }
}

static assay_status check_folder(const char *folder, const char *backend, truth_log *log, assay_error *error) {
  assay_error inner = {""};
  checking *c = calloc(1, sizeof *c);
  hf_recorded *g = calloc(1, sizeof *g);
  if (c == NULL || g == NULL) {
    free(c);
    free(g);
    return assay_fail(error, ASSAY_ERR_MEMORY, "truth: out of memory");
  }
  *c = (checking){.recorded = g, .log = log, .error = &inner};
  c->backend = model_backend(backend, &inner);
  assay_status status = c->backend != NULL ? read_recorded(folder, g, &inner) : ASSAY_ERR_INPUT;
  for (int p = 0; p < PLANS && status == ASSAY_OK; ++p)
    for (int64_t i = 0; i < (plans[p].together ? 1 : g->prompts) && status == ASSAY_OK; ++i) {
      const int64_t count = plans[p].together ? g->prompts : 1;
      if (!any_wrong(c, i, count)) status = check_part(c, &plans[p], i, count);
    }
  if (status == ASSAY_OK)
    print_results(c, g->model.type);
  else if (status == ASSAY_ERR_UNSUPPORTED)
    truth_uncovered(log, folder, "%.800s", inner.text);
  else
    (void)assay_fail(error, status, "%.1800s", inner.text);
  free_recorded(g);
  free(c);
  return status == ASSAY_ERR_UNSUPPORTED ? ASSAY_OK : status;
}

static int visible(const struct dirent *entry) {
  return entry->d_name[0] != '.';
}

assay_status truth_hf(const char *folder, const char *backend, truth_log *log, assay_error *error) {
  char path[4096];
  struct dirent **entry = NULL;
  int64_t found = 0;
  (void)snprintf(path, sizeof path, "%.3000s/config.json", folder);
  if (access(path, F_OK) == 0) return check_folder(folder, backend, log, error);
  const int count = scandir(folder, &entry, visible, alphasort);
  assay_status status = ASSAY_OK;
  if (count < 0) return assay_fail(error, ASSAY_ERR_INPUT, "%s: cannot be read as a folder", folder);
  for (int i = 0; i < count; ++i) {
    char inner[4096];
    (void)snprintf(inner, sizeof inner, "%.3000s/%.500s", folder, entry[i]->d_name);
    (void)snprintf(path, sizeof path, "%.3600s/config.json", inner);
    if (status == ASSAY_OK && access(path, F_OK) == 0) {
      ++found;
      status = check_folder(inner, backend, log, error);
    }
    free(entry[i]);
  }
  free(entry);
  if (status != ASSAY_OK || found > 0) return status;
  return assay_fail(error, ASSAY_ERR_INPUT, "%s: found no config.json here or one folder below, allowed one", folder);
}
