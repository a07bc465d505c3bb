/* judge.c: one case of a model suite. The same steps are run by the device, by the reference in f64, and by the
 * reference that rounds where a device stores. The references take over which experts the device's routers chose. */
#define _POSIX_C_SOURCE 200809L
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/dtype.h"
#include "conformance/trial/trial.h"
#include "engine.h"
#include "invariant.h"
#include "open.h"
#include "steps.h"
#include "suite.h"
#include "taps.h"

typedef long long ll; /* for messages */

enum { IDS = 512, FORKED = 3, MOST_FORMS = 3 };

typedef struct judging {
  const model_case *mc;
  const char *device;
  const assay_model_config *device_config;
  assay_model_options options;
  char words[48];               /* the case's forms, each ended by NUL */
  const char *form[MOST_FORMS]; /* places in words */
  const char *form_of_ref;      /* the one among them that the reference has; NULL: none */
  assay_model_weights weights;
  assay_error error;
  case_result *result;
  model_forced *forced;        /* NULL: none */
  bool took[MODEL_MAX_FORCED]; /* this case took the variant */
} judging;

/* Returns the options of the reference. Its mirror rounds where the form's operators store. */
static assay_model_options options_of_ref(judging *j) {
  return (assay_model_options){.form = &j->form_of_ref, .forms = j->form_of_ref != NULL};
}

static void fail(judging *j, const char *check, const char *message) {
  j->result->verdict = VERDICT_FAIL;
  (void)snprintf(j->result->check, sizeof j->result->check, "%s", check);
  (void)snprintf(j->result->message, sizeof j->result->message, "%.1500s", message);
}

/* Tells whether the call is by the forced variant "op=name". */
static bool is_forced(const char *word, const assay_model_path *path) {
  const size_t op = strlen(path->op);
  return strncmp(word, path->op, op) == 0 && word[op] == '=' && strcmp(word + op + 1, path->variant) == 0;
}

static void note_path(judging *j, const assay_model_path *path) {
  for (int32_t i = 0; i < j->options.variants; ++i)
    j->took[i] = j->took[i] || (path->calls > 0 && is_forced(j->options.variant[i], path));
}

/* Checks what a session took. The whole run counts forced variants; a form is checked per case. */
static assay_status check_session(judging *j, const assay_model_backend *backend, const assay_model_session *session) {
  assay_model_path path;
  for (int32_t i = 0; backend->path(session, i, &path); ++i)
    note_path(j, &path);
  return j->options.variants > 0 ? ASSAY_OK : backend->check_forced(session, &j->error);
}

static assay_status check_engine(judging *j, const assay_engine *engine) {
  assay_model_path path;
  for (int32_t i = 0; assay_engine_path(engine, i, &path); ++i)
    note_path(j, &path);
  return j->options.variants > 0 ? ASSAY_OK : assay_engine_check_forced(engine, &j->error);
}

/* Counts the forced variants taken. A pass without any of the forced variants says nothing of them. */
static void count_taken(judging *j) {
  bool any = j->options.variants == 0;
  for (int32_t i = 0; i < j->options.variants; ++i)
    any = any || j->took[i];
  if (j->result->verdict == VERDICT_PASS && !any) {
    fail(j, "launch", "no call of the case took a forced variant");
    j->result->verdict = VERDICT_UNSUPPORTED;
  }
  for (int32_t i = 0; i < j->options.variants && j->result->verdict == VERDICT_PASS; ++i)
    j->forced->taken[i] += j->took[i];
}

/* Sets the verdict of a case that could not be run. */
static void fail_status(judging *j, assay_status status) {
  fail(j, "launch", j->error.text);
  if (status == ASSAY_ERR_UNSUPPORTED && j->options.variants > 0) j->result->verdict = VERDICT_UNSUPPORTED;
  if (status == ASSAY_ERR_DEVICE) {
    j->result->verdict = VERDICT_CRASH;
    j->result->device_lost = true;
  }
}

/* ---- ways of a session ------------------------------------------------------------------------------------ */

static void ids_of(const judging *j, int64_t request, int64_t count, int32_t *ids) {
  assay_model_prompt(&j->mc->config, j->mc->seed, request, count, ids);
}

/* Runs `batch` prompts of different lengths, then one token per step, or chunks. */
static void way_plain(const judging *j, model_steps *s, model_way way) {
  static const int64_t lengths[] = {13, 1, 30, 17, 8, 24};
  int32_t ids[6][IDS], number[6];
  const int64_t batch = j->mc->batch < 6 ? j->mc->batch : 6;
  int64_t done[6] = {0};
  for (int64_t i = 0; i < batch; ++i) {
    ids_of(j, i, IDS, ids[i]);
    number[i] = steps_request(s, NULL, 0, NULL);
  }
  for (bool more = true; more && s->status == ASSAY_OK;) {
    more = false;
    for (int64_t i = 0; i < batch; ++i) {
      int64_t n = lengths[i] - done[i];
      if (way == WAY_CHUNKED && n > 7) n = 7;
      if (n == 0) continue;
      steps_add(s, number[i], ids[i] + done[i], n, n);
      done[i] += n;
      more = true;
    }
    if (more) steps_run(s);
  }
  for (int64_t t = 0; t < j->mc->steps && way == WAY_DECODE; ++t) {
    for (int64_t i = 0; i < batch; ++i)
      steps_add(s, number[i], ids[i] + done[i]++, 1, 1);
    steps_run(s);
  }
}

/* Runs prompts, chunks, tokens and a pad row side by side. */
static void way_batched(const judging *j, model_steps *s) {
  int32_t ids[IDS];
  ids_of(j, 0, IDS, ids);
  const int32_t a = steps_request(s, NULL, 0, NULL), b = steps_request(s, NULL, 0, NULL);
  steps_add(s, a, ids, 13, 13);
  steps_add(s, b, ids + 13, 7, 1);
  steps_run(s);
  const int32_t c = steps_request(s, NULL, 0, NULL);
  steps_add(s, a, ids + 20, 1, 1);
  steps_add(s, b, ids + 21, 6, 6);
  steps_add(s, -1, NULL, 1, 0);
  steps_add(s, c, ids + 30, 21, 2);
  steps_run(s);
  for (int t = 0; t < 4; ++t) {
    steps_add(s, c, ids + 60 + 3 * t, 1, 1);
    steps_add(s, -1, NULL, 1, 0);
    steps_add(s, a, ids + 61 + 3 * t, 1, 1);
    steps_add(s, b, ids + 62 + 3 * t, 1, 1);
    steps_run(s);
  }
}

/* Runs two requests with one prefix, and a fork, whose block is copied before the first of the two writes. */
static void way_shared(const judging *j, model_steps *s) {
  int32_t ids[IDS];
  const int64_t size = s->config.block_size, prompt = 2 * size + size / 2 + 1;
  int64_t hit = 0;
  ids_of(j, 0, IDS, ids);
  const int32_t a = steps_request(s, ids, prompt, NULL);
  /* A state is kept where a step ends at a block's end. */
  const int64_t before = assay_model_has_states(&s->config) ? 2 * size : 0;
  if (before > 0) {
    steps_add(s, a, ids, before, before);
    steps_run(s);
  }
  steps_add(s, a, ids + before, prompt - before, prompt - before);
  steps_run(s);
  ids[2 * size + 1] = (ids[2 * size + 1] + 1) % (int32_t)s->config.vocab;
  const int32_t b = steps_request(s, ids, prompt, &hit);
  if (s->status == ASSAY_OK && hit != 2 * size)
    s->status = assay_fail(s->error, ASSAY_ERR_INTERNAL, "shared: found %lld tokens of a prefix, expected %lld",
                           (ll)hit, (ll)(2 * size));
  steps_add(s, b, ids + hit, prompt - hit, prompt - hit);
  steps_add(s, a, ids + 3 * size, 1, 1);
  steps_run(s);
  const int32_t forked = steps_fork(s, a);
  const int64_t copies = s->copy_count;
  for (int t = 0; t < FORKED; ++t) {
    steps_add(s, a, ids + 4 * size + t, 1, 1);
    steps_add(s, forked, ids + 5 * size + t, 1, 1);
    if (t == 0 && s->status == ASSAY_OK && s->copy_count == copies)
      s->status = assay_fail(s->error, ASSAY_ERR_INTERNAL, "shared: no block was copied");
    steps_add(s, b, ids + 6 * size + t, 1, 1);
    steps_run(s);
  }
  steps_release(s, b);
}

static assay_status run_session(judging *j, const assay_model_backend *backend, assay_model_mode mode,
                                model_record *record) {
  const bool device = backend != assay_model_ref();
  const assay_model_taps taps = record_taps(record);
  const assay_model_limits limits = {64, 160, 6, 160, 0};
  const assay_model_options of_ref = options_of_ref(j);
  model_steps s;
  steps_open(&s, backend, device ? j->device_config : &j->mc->config, &j->weights, &limits, mode,
             device ? &j->options : &of_ref, &taps, &j->error);
  if (j->mc->way == WAY_BATCHED)
    way_batched(j, &s);
  else if (j->mc->way == WAY_SHARED)
    way_shared(j, &s);
  else
    way_plain(j, &s, j->mc->way);
  if (device && s.status == ASSAY_OK) s.status = check_session(j, backend, s.session);
  steps_close(&s);
  return s.status;
}

static void judge_session(judging *j) {
  model_record exact = {.tap = NULL}, mirror = {.tap = NULL}, device = {.tap = NULL};
  taps_verdict v;
  routes_verdict routes;
  exact.chosen = mirror.chosen = &device;
  exact.experts = mirror.experts = j->mc->config.experts;
  const double begun = device_now_ms();
  const assay_model_backend *backend = model_backend(j->device, &j->error);
  assay_status status = backend != NULL ? run_session(j, backend, ASSAY_MODEL_MIRROR, &device) : ASSAY_ERR_INPUT;
  const double between = device_now_ms();
  if (status == ASSAY_OK) status = run_session(j, assay_model_ref(), ASSAY_MODEL_EXACT, &exact);
  if (status == ASSAY_OK) status = run_session(j, assay_model_ref(), ASSAY_MODEL_MIRROR, &mirror);
  j->result->run_ms = between - begun;
  j->result->reference_ms = device_now_ms() - between;
  if (status != ASSAY_OK) {
    fail_status(j, status);
  } else {
    taps_compare(&j->mc->config, &exact, &mirror, &device, &v);
    routes_check(&j->mc->config, &j->weights, &exact, &mirror, &device, &routes);
    j->result->ratio_element = v.worst;
    j->result->elements_judged = v.values;
    (void)snprintf(j->result->path, sizeof j->result->path, "%lld stages; worst %.60s", (ll)v.stages, v.worst_at);
    if (routes.wrong[0] != '\0' && (v.first[0] == '\0' || routes.wrong_at < v.first_at))
      fail(j, "routes", routes.wrong);
    else if (v.first[0] != '\0')
      fail(j, "stages", v.first);
    else if (routes.rows == 0)
      (void)snprintf(j->result->message, sizeof j->result->message, "error of the stream by layer:%s", v.growth);
    else
      (void)snprintf(j->result->message, sizeof j->result->message,
                     "error of the stream by layer:%s; %lld of %lld rows routed otherwise", v.growth, (ll)routes.differ,
                     (ll)routes.rows);
  }
  record_free(&exact);
  record_free(&mirror);
  record_free(&device);
}

/* ---- engines over given ids --------------------------------------------------------------------------------- */

typedef struct given {
  int64_t batch, judged, steps, V;
  int32_t **ids; /* [batch] prompt, then the ids of the steps */
  int64_t *prompt;
  float *logits;   /* [judged, steps + 1, V] from the device */
  int32_t *chosen; /* [judged, steps + 1] */
} given;

static float *logits_at(const given *g, int64_t request, int64_t step) {
  return g->logits + (request * (g->steps + 1) + step) * g->V;
}

static assay_status make_given(judging *j, given *g) {
  const model_case *mc = j->mc;
  *g = (given){.batch = mc->batch,
               .judged = mc->judged < mc->batch ? mc->judged : mc->batch,
               .steps = mc->steps,
               .V = mc->config.vocab};
  g->ids = calloc((size_t)g->batch, sizeof *g->ids);
  g->prompt = calloc((size_t)g->batch, sizeof *g->prompt);
  g->logits = malloc((size_t)(g->judged * (g->steps + 1) * g->V) * sizeof *g->logits);
  g->chosen = calloc((size_t)(g->judged * (g->steps + 1)), sizeof *g->chosen);
  bool whole = g->ids != NULL && g->prompt != NULL && g->logits != NULL && g->chosen != NULL;
  for (int64_t i = 0; i < g->batch && whole; ++i) {
    g->prompt[i] = 1 + (mc->prompt - 1) * (i % 3 + 1) / 3;
    g->ids[i] = calloc((size_t)(g->prompt[i] + g->steps), sizeof **g->ids);
    whole = g->ids[i] != NULL;
    if (whole) ids_of(j, i, g->prompt[i] + g->steps, g->ids[i]);
  }
  return whole ? ASSAY_OK : assay_fail(&j->error, ASSAY_ERR_MEMORY, "model: out of memory");
}

static void free_given(given *g) {
  for (int64_t i = 0; i < g->batch && g->ids != NULL; ++i)
    free(g->ids[i]);
  free(g->ids);
  free(g->prompt);
  free(g->logits);
  free(g->chosen);
}

/* Keeps the logits of one step. The second time, compares their bits instead. */
static bool keep_logits(given *g, int64_t step, const double *logits, bool compare) {
  bool same = true;
  for (int64_t i = 0; i < g->judged; ++i)
    for (int64_t v = 0; v < g->V; ++v) {
      const float value = (float)logits[i * g->V + v];
      same = same && (!compare || memcmp(&value, logits_at(g, i, step) + v, sizeof value) == 0);
      if (!compare) logits_at(g, i, step)[v] = value;
    }
  return same;
}

/* Runs all prompts in one step, then one given id per step. differs: the first step with other bits; -1: none. */
static assay_status run_given(judging *j, given *g, bool eager, bool compare, int64_t *differs) {
  const assay_model_config *c = j->device_config;
  int64_t tokens = 0, blocks = 0, longest = 0;
  for (int64_t i = 0; i < g->batch; ++i) {
    const int64_t length = g->prompt[i] + g->steps;
    tokens += g->prompt[i];
    blocks += (length + c->block_size - 1) / c->block_size;
    if (length > longest) longest = length;
  }
  const assay_engine_options options = {.device = j->device,
                                        .num_blocks = blocks,
                                        .max_batch = g->batch,
                                        .max_tokens = tokens,
                                        .max_length = longest,
                                        .eager = eager,
                                        .no_prefix = true,
                                        .model = &j->options};
  assay_engine *e = NULL;
  assay_engine_part *part = calloc((size_t)g->batch, sizeof *part);
  double *logits = malloc((size_t)(g->batch * g->V) * sizeof *logits);
  assay_status status = part != NULL && logits != NULL
                            ? assay_engine_open(c, &j->weights, &options, &e, &j->error)
                            : assay_fail(&j->error, ASSAY_ERR_MEMORY, "model: out of memory");
  for (int64_t i = 0; i < g->batch && status == ASSAY_OK; ++i) {
    status = assay_engine_request(e, g->ids[i], g->prompt[i], NULL, &part[i].request, NULL, &j->error);
    part[i].tokens = g->prompt[i];
  }
  *differs = -1;
  for (int64_t t = 0; t <= g->steps && status == ASSAY_OK; ++t) {
    for (int64_t i = 0; i < g->batch && t > 0; ++i) {
      part[i].tokens = 1;
      part[i].forced = &g->ids[i][g->prompt[i] + t - 1];
    }
    status = assay_engine_step(e, part, g->batch, &j->error);
    if (status == ASSAY_OK) status = assay_engine_logits(e, g->batch, logits, &j->error);
    if (status == ASSAY_OK && !keep_logits(g, t, logits, compare) && *differs < 0) *differs = t;
  }
  for (int64_t i = 0; i < g->judged && status == ASSAY_OK; ++i) {
    const int32_t *ids = NULL;
    int64_t count = 0;
    status = assay_engine_tokens(e, part[i].request, &ids, &count, &j->error);
    if (status == ASSAY_OK) memcpy(g->chosen + i * (g->steps + 1), ids, (size_t)count * sizeof *ids);
  }
  if (status == ASSAY_OK) status = check_engine(j, e);
  assay_engine_close(e);
  free(part);
  free(logits);
  return status;
}

/* Computes the logits [steps + 1, V] of one request, all of it in one step. */
static assay_status run_reference(judging *j, const given *g, int64_t i, assay_model_mode mode, double *logits) {
  const int64_t tokens = g->prompt[i] + g->steps, size = j->mc->config.block_size;
  const assay_model_limits limits = {(tokens + size - 1) / size, tokens, 1, g->steps + 1, 0};
  const assay_model_options of_ref = options_of_ref(j);
  model_steps s;
  steps_open(&s, assay_model_ref(), &j->mc->config, &j->weights, &limits, mode, &of_ref, NULL, &j->error);
  const int32_t request = steps_request(&s, NULL, 0, NULL);
  steps_add(&s, request, g->ids[i], tokens, g->steps + 1);
  steps_run(&s);
  if (s.status == ASSAY_OK) memcpy(logits, s.logits, (size_t)((g->steps + 1) * g->V) * sizeof *logits);
  steps_close(&s);
  return s.status;
}

/* Returns the first step whose choice is wrong: its f64 logit is more than 4 times the error below the largest one.
 * Returns -1 if none is wrong. */
static int64_t wrong_choice(const given *g, int64_t i, const double *exact, double rms) {
  for (int64_t t = 0; t <= g->steps; ++t) {
    const double *row = exact + t * g->V;
    const int32_t best = run_largest(row, g->V), found = g->chosen[i * (g->steps + 1) + t];
    if (best != found && (found < 0 || !(row[best] - row[found] <= 4 * rms))) return t;
  }
  return -1;
}

static void judge_request(judging *j, const given *g, int64_t i, double *exact, double *mirror, double *device) {
  const int64_t count = (g->steps + 1) * g->V;
  char message[320];
  double ratio = 0, rms = 0;
  assay_status status = run_reference(j, g, i, ASSAY_MODEL_EXACT, exact);
  if (status == ASSAY_OK) status = run_reference(j, g, i, ASSAY_MODEL_MIRROR, mirror);
  if (status != ASSAY_OK) {
    fail_status(j, status);
    return;
  }
  for (int64_t v = 0; v < count; ++v)
    device[v] = (double)logits_at(g, i, 0)[v];
  const bool good =
      taps_within(&j->mc->config, (double)j->mc->config.layers, exact, mirror, device, count, &ratio, &rms);
  const int64_t wrong = wrong_choice(g, i, exact, rms);
  j->result->elements_judged += count;
  j->result->rows_judged += g->steps + 1;
  if (!(ratio <= j->result->ratio_element)) j->result->ratio_element = ratio;
  if (j->result->verdict != VERDICT_PASS) return;
  if (!good) {
    (void)snprintf(message, sizeof message, "request %lld: logits of %lld steps: RMS of the error %.3g, ratio %.2f",
                   (ll)i, (ll)(g->steps + 1), rms, ratio);
    fail(j, "logits", message);
  } else if (wrong >= 0) {
    const double *row = exact + wrong * g->V;
    const int32_t best = run_largest(row, g->V), found = g->chosen[i * (g->steps + 1) + wrong];
    (void)snprintf(message, sizeof message, "request %lld, step %lld: chosen %d, f64 has %d, apart by %.3g, 4 RMS %.3g",
                   (ll)i, (ll)wrong, found, best, found >= 0 ? row[best] - row[found] : INFINITY, 4 * rms);
    fail(j, "choices", message);
  }
}

static void judge_given(judging *j) {
  given g;
  char message[160];
  int64_t differs = -1;
  assay_status status = make_given(j, &g);
  const double begun = device_now_ms();
  if (status == ASSAY_OK) status = run_given(j, &g, true, false, &differs);
  if (status == ASSAY_OK && j->mc->way == WAY_GRAPH) status = run_given(j, &g, false, true, &differs);
  const double between = device_now_ms();
  const size_t count = (size_t)((g.steps + 1) * g.V);
  double *value = status == ASSAY_OK ? malloc(3 * count * sizeof *value) : NULL;
  if (status == ASSAY_OK && value == NULL) status = assay_fail(&j->error, ASSAY_ERR_MEMORY, "model: out of memory");
  if (status != ASSAY_OK) {
    fail_status(j, status);
  } else if (differs >= 0) {
    (void)snprintf(message, sizeof message, "step %lld: logits of the graph are not the bits of its calls",
                   (ll)differs);
    fail(j, "graph", message);
  }
  for (int64_t i = 0; i < g.judged && j->result->verdict == VERDICT_PASS; ++i)
    judge_request(j, &g, i, value, value + count, value + 2 * count);
  (void)snprintf(j->result->path, sizeof j->result->path, "%s batch=%lld steps=%lld judged=%lld",
                 j->mc->way == WAY_GRAPH ? "graph" : "calls", (ll)g.batch, (ll)g.steps, (ll)g.judged);
  j->result->run_ms = between - begun;
  j->result->reference_ms = device_now_ms() - between;
  free(value);
  free_given(&g);
}

/* ---- one engine, other lengths ------------------------------------------------------------------------------ */

/* Computes the logits [batch, V] after `steps` given ids, for requests with prompts of about that length. */
static assay_status run_length(judging *j, assay_engine *e, int64_t length, bool eager, double *logits) {
  const model_case *mc = j->mc;
  assay_engine_part part[6];
  const int64_t batch = mc->batch < 6 ? mc->batch : 6;
  int32_t *ids = calloc((size_t)(batch * (length + mc->steps)), sizeof *ids);
  assay_status status = ids != NULL ? assay_engine_set_eager(e, eager, &j->error)
                                    : assay_fail(&j->error, ASSAY_ERR_MEMORY, "model: out of memory");
  for (int64_t i = 0; i < batch && status == ASSAY_OK; ++i) {
    int32_t *own = ids + i * (length + mc->steps);
    const int64_t prompt = length > 2 * i ? length - 2 * i : 1;
    ids_of(j, 7 * length + i, length + mc->steps, own);
    part[i] = (assay_engine_part){.tokens = prompt};
    status = assay_engine_request(e, own, prompt, NULL, &part[i].request, NULL, &j->error);
  }
  for (int64_t t = 0; t <= mc->steps && status == ASSAY_OK; ++t) {
    status = assay_engine_step(e, part, batch, &j->error);
    for (int64_t i = 0; i < batch; ++i) {
      part[i].tokens = 1;
      part[i].forced = ids + i * (length + mc->steps) + (length > 2 * i ? length - 2 * i : 1) + t;
    }
  }
  if (status == ASSAY_OK) status = assay_engine_logits(e, batch, logits, &j->error);
  for (int64_t i = 0; i < batch && status == ASSAY_OK; ++i)
    status = assay_engine_release(e, part[i].request, &j->error);
  free(ids);
  return status;
}

static void judge_lengths(judging *j) {
  const model_case *mc = j->mc;
  const int64_t lengths[] = {2, mc->prompt, 1 + mc->prompt / 40, mc->prompt / 2, 2}, V = mc->config.vocab;
  const int64_t batch = mc->batch < 6 ? mc->batch : 6, longest = mc->prompt + mc->steps + 1;
  const int64_t blocks = batch * ((longest + mc->config.block_size - 1) / mc->config.block_size);
  const assay_engine_options options = {.device = j->device,
                                        .num_blocks = blocks,
                                        .max_batch = batch,
                                        .max_tokens = batch * mc->prompt,
                                        .max_length = longest,
                                        .no_prefix = true,
                                        .model = &j->options};
  const double begun = device_now_ms();
  char message[160];
  assay_engine *e = NULL;
  double *graph = malloc((size_t)(2 * batch * V) * sizeof *graph), *calls = graph + batch * V;
  assay_status status = graph != NULL ? assay_engine_open(j->device_config, &j->weights, &options, &e, &j->error)
                                      : assay_fail(&j->error, ASSAY_ERR_MEMORY, "model: out of memory");
  for (size_t i = 0; i < sizeof lengths / sizeof *lengths && status == ASSAY_OK; ++i) {
    status = run_length(j, e, lengths[i], false, graph);
    if (status == ASSAY_OK) status = run_length(j, e, lengths[i], true, calls);
    if (status != ASSAY_OK || memcmp(graph, calls, (size_t)(batch * V) * sizeof *graph) == 0) continue;
    (void)snprintf(message, sizeof message,
                   "prompts of %lld, number %d: logits of the graph are not the bits of its calls", (ll)lengths[i],
                   (int)i);
    fail(j, "graph", message);
    break;
  }
  if (status == ASSAY_OK) status = check_engine(j, e);
  if (status != ASSAY_OK) fail_status(j, status);
  (void)snprintf(j->result->path, sizeof j->result->path, "graph prompts=2,%lld,%lld,%lld,2 steps=%lld", (ll)lengths[1],
                 (ll)lengths[2], (ll)lengths[3], (ll)mc->steps);
  j->result->run_ms = device_now_ms() - begun;
  assay_engine_close(e);
  free(graph);
}

/* ---- one request in other company ---------------------------------------------------------------------------- */

static void judge_invariant(judging *j) {
  const invariant_plan plan = {.device = j->device,
                               .config = j->device_config,
                               .weights = &j->weights,
                               .model = &j->options,
                               .seed = j->mc->seed,
                               .prompt = j->mc->prompt,
                               .steps = j->mc->steps,
                               .batch = j->mc->batch};
  const double begun = device_now_ms();
  char differs[200];
  const assay_status status = invariant_judge(&plan, differs, sizeof differs, &j->result->rows_judged, &j->error);
  j->result->elements_judged = j->result->rows_judged * j->mc->config.vocab;
  if (status != ASSAY_OK)
    fail_status(j, status);
  else if (differs[0] != '\0')
    fail(j, "invariant", differs);
  for (int32_t i = 0; i < j->options.variants; ++i)
    j->took[i] = status == ASSAY_OK; /* each engine has checked that it took all of them */
  (void)snprintf(j->result->path, sizeof j->result->path, "invariant batch=%lld prompt=%lld steps=%lld",
                 (ll)j->mc->batch, (ll)j->mc->prompt, (ll)j->mc->steps);
  j->result->run_ms = device_now_ms() - begun;
}

/* ---- a case --------------------------------------------------------------------------------------------------- */

/* Reads the forms of the case: "gemm_norm=on+gemm_glu=on". Returns their number. */
static int32_t read_forms(judging *j) {
  int32_t count = 0;
  (void)snprintf(j->words, sizeof j->words, "%s", j->mc->form);
  for (char *at = j->words; *at != '\0' && count < MOST_FORMS;) {
    j->form[count++] = at;
    if (strncmp(at, "mla_expand=", strlen("mla_expand=")) == 0) j->form_of_ref = at;
    at += strcspn(at, "+");
    if (*at == '+') *at++ = '\0';
  }
  return count;
}

void model_judge(const model_case *mc, const char *device, model_forced *forced, const assay_model_config *planted,
                 case_result *result) {
  judging j = {.mc = mc, .device = device, .device_config = planted != NULL ? planted : &mc->config, .forced = forced};
  memset(result, 0, sizeof *result);
  result->verdict = VERDICT_PASS;
  (void)snprintf(result->check, sizeof result->check, "%s",
                 mc->way == WAY_GRAPH       ? "graph"
                 : mc->way == WAY_EAGER     ? "logits"
                 : mc->way == WAY_INVARIANT ? "invariant"
                                            : "stages");
  j.result = result;
  const int32_t forms = read_forms(&j);
  j.options = (assay_model_options){
      .form = j.form, .forms = forms, .short_tail = mc->short_tail, .invariant = mc->way == WAY_INVARIANT};
  if (forced != NULL) {
    j.options.variant = forced->word;
    j.options.variants = forced->count;
  }
  assay_status status = assay_model_weights_alloc(&mc->config, &j.weights, &j.error);
  if (status == ASSAY_OK) status = assay_model_seed(&mc->config, mc->seed, &j.weights, &j.error);
  if (status != ASSAY_OK)
    fail_status(&j, status);
  else if (mc->way == WAY_EAGER || mc->way == WAY_GRAPH)
    judge_given(&j);
  else if (mc->way == WAY_LENGTHS)
    judge_lengths(&j);
  else if (mc->way == WAY_INVARIANT)
    judge_invariant(&j);
  else
    judge_session(&j);
  count_taken(&j);
  assay_model_weights_free(&j.weights);
}
