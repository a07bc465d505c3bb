/* judge.c: one case of a model suite. The same steps are run by the device, by the reference in f64, and by the
 * reference that rounds where a device stores. The references take over which experts the device's routers chose. */
#define _POSIX_C_SOURCE 200809L
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/dtype.h"
#include "core/hash.h"
#include "conformance/trial/trial.h"
#include "engine.h"
#include "invariant.h"
#include "open.h"
#include "steps.h"
#include "suite.h"
#include "taps.h"
#include "traffic.h"

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

/* Runs two requests with one prefix, and two forks. Their block is copied twice, before the first of the three writes.
 */
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
  const int32_t forked = steps_fork(s, a), other = steps_fork(s, a);
  const int64_t copies = s->copy_count;
  for (int t = 0; t < FORKED; ++t) {
    steps_add(s, a, ids + 4 * size + t, 1, 1);
    steps_add(s, forked, ids + 5 * size + t, 1, 1);
    steps_add(s, other, ids + 7 * size + t, 1, 1);
    if (t == 0 && s->status == ASSAY_OK && s->copy_count != copies + 2)
      s->status = assay_fail(s->error, ASSAY_ERR_INTERNAL, "shared: a block was not copied twice");
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

/* The first step whose logits have other bits the second time. */
typedef struct other_bits {
  int64_t step;             /* -1: none has */
  int64_t requests, logits; /* how many differ */
  int64_t request, id;      /* the first */
  float before, now;
} other_bits;

/* Keeps the logits of one step. */
static void keep_logits(const given *g, int64_t step, const double *logits) {
  for (int64_t i = 0; i < g->judged; ++i)
    for (int64_t v = 0; v < g->V; ++v)
      logits_at(g, i, step)[v] = (float)logits[i * g->V + v];
}

/* Compares the bits of a step's logits with those that were kept, unless an earlier step had other ones. */
static void compare_logits(const given *g, int64_t step, const double *logits, other_bits *other) {
  if (other->step >= 0) return;
  for (int64_t i = 0; i < g->judged; ++i) {
    const int64_t before = other->logits;
    for (int64_t v = 0; v < g->V; ++v) {
      const float value = (float)logits[i * g->V + v], kept = logits_at(g, i, step)[v];
      if (memcmp(&value, &kept, sizeof value) == 0 || other->logits++ > 0) continue;
      other->request = i;
      other->id = v;
      other->before = kept;
      other->now = value;
    }
    other->requests += other->logits > before;
  }
  if (other->logits > 0) other->step = step;
}

/* Runs all prompts in one step, then one given id per step. Keeps the logits if `other` is NULL, else compares them. */
static assay_status run_given(judging *j, given *g, bool eager, other_bits *other) {
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
  for (int64_t t = 0; t <= g->steps && status == ASSAY_OK; ++t) {
    for (int64_t i = 0; i < g->batch && t > 0; ++i) {
      part[i].tokens = 1;
      part[i].forced = &g->ids[i][g->prompt[i] + t - 1];
    }
    status = assay_engine_step(e, part, g->batch, &j->error);
    if (status == ASSAY_OK) status = assay_engine_logits(e, g->batch, logits, &j->error);
    if (status == ASSAY_OK && other == NULL) keep_logits(g, t, logits);
    if (status == ASSAY_OK && other != NULL) compare_logits(g, t, logits, other);
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

/* Computes the logits [wanted, V] of the last ids of a text, all of it in one step. */
static assay_status run_reference(judging *j, const int32_t *ids, int64_t tokens, int64_t wanted, assay_model_mode mode,
                                  double *logits) {
  const int64_t size = j->mc->config.block_size;
  const assay_model_limits limits = {(tokens + size - 1) / size, tokens, 1, wanted, 0};
  const assay_model_options of_ref = options_of_ref(j);
  model_steps s;
  steps_open(&s, assay_model_ref(), &j->mc->config, &j->weights, &limits, mode, &of_ref, NULL, &j->error);
  const int32_t request = steps_request(&s, NULL, 0, NULL);
  steps_add(&s, request, ids, tokens, wanted);
  steps_run(&s);
  if (s.status == ASSAY_OK) memcpy(logits, s.logits, (size_t)(wanted * j->mc->config.vocab) * sizeof *logits);
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
  const int64_t count = (g->steps + 1) * g->V, tokens = g->prompt[i] + g->steps;
  char message[320];
  double ratio = 0, rms = 0;
  assay_status status = run_reference(j, g->ids[i], tokens, g->steps + 1, ASSAY_MODEL_EXACT, exact);
  if (status == ASSAY_OK) status = run_reference(j, g->ids[i], tokens, g->steps + 1, ASSAY_MODEL_MIRROR, mirror);
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
  char message[240];
  other_bits other = {.step = -1};
  assay_status status = make_given(j, &g);
  const double begun = device_now_ms();
  if (status == ASSAY_OK) status = run_given(j, &g, true, NULL);
  if (status == ASSAY_OK && j->mc->way == WAY_GRAPH) status = run_given(j, &g, false, &other);
  const double between = device_now_ms();
  const size_t count = (size_t)((g.steps + 1) * g.V);
  double *value = status == ASSAY_OK ? malloc(3 * count * sizeof *value) : NULL;
  if (status == ASSAY_OK && value == NULL) status = assay_fail(&j->error, ASSAY_ERR_MEMORY, "model: out of memory");
  if (status != ASSAY_OK) {
    fail_status(j, status);
  } else if (other.step >= 0) {
    (void)snprintf(message, sizeof message,
                   "step %lld: logits of the graph are not the bits of its calls: %lld of %lld requests, %lld logits; "
                   "first request %lld, id %lld: calls %a, graph %a",
                   (ll)other.step, (ll)other.requests, (ll)g.judged, (ll)other.logits, (ll)other.request, (ll)other.id,
                   (double)other.before, (double)other.now);
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

/* ---- an engine under drawn traffic -------------------------------------------------------------------------- */

static assay_status check_traffic(void *context, const assay_engine *engine) {
  return check_engine(context, engine);
}

/* Returns how many ids of a text have rows of their own that chose something. */
static int64_t judged_ids(const traffic_text *x) {
  int64_t ids = 0;
  for (int64_t p = 0; p < TRAFFIC_LENGTH; ++p)
    if (x->chosen[p] >= 0 || x->row[p] != NULL) ids = p + 1;
  return ids;
}

/* Holds the rows of a text that were fetched against the reference, and keeps the exact logits. rms: of the error. */
static void judge_rows(judging *j, const traffic_text *x, int64_t number, double *exact, double *rms) {
  const int64_t ids = judged_ids(x), V = j->mc->config.vocab;
  double *const mirror = malloc((size_t)(3 * ids * V + 1) * sizeof *mirror), ratio = 0;
  double *const kept = mirror + ids * V, *const device = kept + ids * V; /* kept: exact rows; mirror's are moved */
  int64_t count = 0;
  assay_status status = mirror != NULL ? run_reference(j, x->ids, ids, ids, ASSAY_MODEL_EXACT, exact)
                                       : assay_fail(&j->error, ASSAY_ERR_MEMORY, "model: out of memory");
  if (status == ASSAY_OK) status = run_reference(j, x->ids, ids, ids, ASSAY_MODEL_MIRROR, mirror);
  for (int64_t p = 0; p < ids && status == ASSAY_OK; ++p) {
    if (x->row[p] == NULL) continue;
    memmove(mirror + count, mirror + p * V, (size_t)V * sizeof *mirror);
    memcpy(kept + count, exact + p * V, (size_t)V * sizeof *kept);
    for (int64_t v = 0; v < V; ++v)
      device[count++] = (double)x->row[p][v];
  }
  if (status != ASSAY_OK) {
    fail_status(j, status);
  } else if (count > 0) {
    const bool good =
        taps_within(&j->mc->config, (double)j->mc->config.layers, kept, mirror, device, count, &ratio, rms);
    char message[200];
    j->result->elements_judged += count;
    j->result->rows_judged += count / V;
    if (!(ratio <= j->result->ratio_element)) j->result->ratio_element = ratio;
    (void)snprintf(message, sizeof message, "text %lld: logits of %lld rows: RMS of the error %.3g, ratio %.2f",
                   (ll)number, (ll)(count / V), *rms, ratio);
    if (!good) fail(j, "logits", message);
  }
  free(mirror);
}

/* Holds what was chosen at a place: the largest logit, unless f64's two are closer than `near`; or what the sampler's
 * reference draws from the row that was fetched. */
static void judge_choice(judging *j, const traffic_text *x, int64_t number, int64_t p, const double *exact,
                         double near) {
  const int64_t V = j->mc->config.vocab;
  const int32_t found = x->chosen[p], best = run_largest(exact, V);
  int32_t drawn = -1;
  char message[200];
  if (x->sampling.temperature == 0) {
    if (found == best || (found < V && exact[best] - exact[found] <= near)) return;
    (void)snprintf(message, sizeof message, "text %lld, place %lld: chosen %d, f64 has %d, apart by %.3g, 4 RMS %.3g",
                   (ll)number, (ll)p, found, best, found < V ? exact[best] - exact[found] : INFINITY, near);
    fail(j, "choices", message);
    return;
  }
  const assay_engine_sampling *s = &x->sampling;
  const sample_options options = {1, 0, 0, s->temperature, s->top_p, s->min_p, s->top_k, s->seed};
  const int64_t prompt = x->opened[p], step = p - (prompt - 1);
  double *const logits = x->row[p] != NULL ? malloc((size_t)V * sizeof *logits) : NULL;
  if (logits == NULL) return;
  for (int64_t v = 0; v < V; ++v)
    logits[v] = (double)x->row[p][v];
  const assay_status status =
      sample_token(&options, logits, V, (int64_t)s->id, step, x->ids, prompt, x->ids + prompt, &drawn, &j->error);
  free(logits);
  if (status != ASSAY_OK) {
    fail_status(j, status);
  } else if (drawn != found) {
    (void)snprintf(message, sizeof message, "text %lld, place %lld: drew %d, the sampler's reference draws %d",
                   (ll)number, (ll)p, found, drawn);
    fail(j, "draws", message);
  }
}

static void judge_texts(judging *j, const traffic *t) {
  const int64_t V = j->mc->config.vocab;
  double *exact[TRAFFIC_TEXTS] = {NULL}, worst = 0;
  for (int64_t i = 0; i < t->texts && j->result->verdict == VERDICT_PASS; ++i) {
    double rms = 0;
    exact[i] = malloc((size_t)(judged_ids(&t->text[i]) * V + 1) * sizeof *exact[i]);
    if (exact[i] == NULL)
      fail_status(j, assay_fail(&j->error, ASSAY_ERR_MEMORY, "model: out of memory"));
    else if (judged_ids(&t->text[i]) > 0)
      judge_rows(j, &t->text[i], i, exact[i], &rms);
    if (rms > worst) worst = rms;
  }
  for (int64_t i = 0; i < t->texts; ++i)
    for (int64_t p = 0; p < judged_ids(&t->text[i]) && j->result->verdict == VERDICT_PASS; ++p)
      if (t->text[i].chosen[p] >= 0) judge_choice(j, &t->text[i], i, p, exact[i] + p * V, 4 * worst);
  for (int64_t i = 0; i < t->texts; ++i)
    free(exact[i]);
}

/* Compares the rows of a day of invariant steps with those of each text alone. */
static void judge_alone(judging *j, const traffic_plan *plan, const traffic *t) {
  char differs[200];
  int64_t rows = 0;
  const assay_status status = traffic_alone(plan, t, differs, sizeof differs, &rows, &j->error);
  if (status != ASSAY_OK)
    fail_status(j, status);
  else if (differs[0] != '\0')
    fail(j, "invariant", differs);
  else if (rows == 0)
    fail(j, "invariant", "no row of the day was kept");
}

/* Runs and judges the day. Each model and type has a day of its own. */
static void judge_traffic(judging *j) {
  const uint64_t day = hash_text(hash_text(HASH_START, j->mc->model), j->mc->name);
  const traffic_plan plan = {.device = j->device,
                             .config = j->device_config,
                             .weights = &j->weights,
                             .model = &j->options,
                             .seed = j->mc->seed ^ day,
                             .prompt = j->mc->prompt,
                             .steps = j->mc->steps,
                             .batch = j->mc->batch < TRAFFIC_BATCH ? j->mc->batch : TRAFFIC_BATCH,
                             .by_role = strstr(j->mc->form, "one_launch=on") != NULL};
  traffic *t = malloc(sizeof *t);
  const double begun = device_now_ms();
  assay_status status = t != NULL ? traffic_run(&plan, t, check_traffic, j, &j->error)
                                  : assay_fail(&j->error, ASSAY_ERR_MEMORY, "model: out of memory");
  const double between = device_now_ms();
  if (status != ASSAY_OK)
    fail_status(j, status);
  else
    judge_texts(j, t);
  if (j->mc->invariant && j->result->verdict == VERDICT_PASS) judge_alone(j, &plan, t);
  if (t != NULL) {
    (void)snprintf(j->result->path, sizeof j->result->path, "texts=%lld hits=%lld forks=%lld preempted=%lld ended=%lld",
                   (ll)t->texts, (ll)t->hits, (ll)t->forks, (ll)t->preempted, (ll)t->ended);
    traffic_free(t);
  }
  free(t);
  j->result->run_ms = between - begun;
  j->result->reference_ms = device_now_ms() - between;
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
                 : mc->way == WAY_TRAFFIC   ? "logits"
                 : mc->way == WAY_INVARIANT ? "invariant"
                                            : "stages");
  j.result = result;
  const int32_t forms = read_forms(&j);
  j.options = (assay_model_options){.form = j.form,
                                    .forms = forms,
                                    .short_tail = mc->short_tail,
                                    .invariant = mc->invariant || mc->way == WAY_INVARIANT};
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
  else if (mc->way == WAY_TRAFFIC)
    judge_traffic(&j);
  else
    judge_session(&j);
  count_taken(&j);
  assay_model_weights_free(&j.weights);
}
