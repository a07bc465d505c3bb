/* gpt.c: takes the tensors that PyTorch recorded in a forward pass of a GPT-2 model. Compares them with the whole
 * forward pass in f64 from the ids on. gpt_operators.c compares them operator by operator. */
#define _POSIX_C_SOURCE 200809L
#include "gpt.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/dtype.h"
#include "core/files/bytes.h"
#include "conformance/models/models.h"

typedef long long ll; /* for messages */

/* The most that the error of a composite result may be, relative to a forward pass that rounds f32 at the operators'
 * boundaries alone. It is multiplied by how much noisier than such a rounding an operator may be (noise). */
static const double forward_limit = 1.5;

/* ---- what is recorded -------------------------------------------------------------------------------- */

/* HEADS: [B, H, T, width], where the forward pass has rows [B · T, H · width]. SCORES: [B, H, T, T], rows [B · T · H,
 * T]. */
typedef enum layout { ROWS, HEADS, SCORES, PLACES } layout;

/* tap: NULL where the row is not part of the forward pass as it runs. width: C, I (4 C), Q (3 C), D, T, V. */
typedef struct row {
  const char *name;
  layout layout;
  char width;
  const char *tap;
} row;

static const row rows[] = {
    {"tok_emb", ROWS, 'C', NULL},
    {"pos_emb", PLACES, 'C', NULL},
    {"x", ROWS, 'C', "embed"},
    {"ln1", ROWS, 'C', "layers.0.attn.pre"},
    {"qkv", ROWS, 'Q', "layers.0.attn.qkv"},
    {"q", HEADS, 'D', "layers.0.attn.q"},
    {"k", HEADS, 'D', "layers.0.attn.k"},
    {"v", HEADS, 'D', "layers.0.attn.v"},
    {"att", SCORES, 'T', "layers.0.attn.s"},
    {"attSm", SCORES, 'T', "layers.0.attn.p"},
    {"y", ROWS, 'C', "layers.0.attn.out"},
    {"yProj", ROWS, 'C', "layers.0.attn.proj.biased"},
    {"attnResid", ROWS, 'C', "layers.0.attn.residual"},
    {"ln2", ROWS, 'C', "layers.0.mlp.pre"},
    {"fc", ROWS, 'I', "layers.0.mlp.up.biased"},
    {"gelu", ROWS, 'I', "layers.0.mlp.act"},
    {"mlp", ROWS, 'C', "layers.0.mlp.down.biased"},
    {"mlpResid", ROWS, 'C', "layers.0.mlp.residual"},
    {"block0", ROWS, 'C', "layers.0.mlp.residual"},
    {"block1", ROWS, 'C', "layers.1.mlp.residual"},
    {"block2", ROWS, 'C', "layers.2.mlp.residual"},
    {"ln_f", ROWS, 'C', "final"},
    {"lm_head", ROWS, 'V', "logits"},
    {"probs", ROWS, 'V', NULL},
};
enum { RECORDED = sizeof rows / sizeof *rows };

static int64_t width_of(const recorded *g, const row *r) {
  return r->width == 'C'   ? g->C
         : r->width == 'I' ? g->I
         : r->width == 'Q' ? 3 * g->C
         : r->width == 'D' ? g->D
         : r->width == 'T' ? g->T
                           : g->V;
}

static assay_status check_recorded(recorded *g, assay_error *error) {
  const file_tensor *idx = tensor_file_find(&g->golden, "idx"), *found = NULL;
  if (idx == NULL || idx->dtype != ASSAY_F32 || idx->rank != 2 || idx->count < 1)
    return assay_fail(error, ASSAY_ERR_INPUT, "idx: found no f32 tensor of 2 axes, allowed [sequences, tokens]");
  g->B = idx->shape[0];
  g->T = idx->shape[1];
  if (g->T > g->model.config.max_pos)
    return assay_fail(error, ASSAY_ERR_INPUT, "idx: found %lld tokens, allowed up to %lld positions", (ll)g->T,
                      (ll)g->model.config.max_pos);
  for (int i = 0; i < RECORDED; ++i) {
    const int64_t W = width_of(g, &rows[i]), four[4] = {g->B, g->H, g->T, W}, three[3] = {g->B, g->T, W};
    const int64_t places[3] = {1, g->T, W};
    const bool heads = rows[i].layout == HEADS || rows[i].layout == SCORES;
    const int64_t *shape = heads ? four : rows[i].layout == PLACES ? places : three;
    const assay_status status =
        tensor_file_get(&g->golden, rows[i].name, ASSAY_F32, heads ? 4 : 3, shape, &found, error);
    if (status != ASSAY_OK) return status;
  }
  g->ids = malloc((size_t)idx->count * sizeof *g->ids);
  if (g->ids == NULL) return assay_fail(error, ASSAY_ERR_MEMORY, "out of memory");
  for (int64_t i = 0; i < idx->count; ++i) {
    const double id = assay_load_f64(idx->data, ASSAY_F32, i);
    if (!(id >= 0 && id < (double)g->V) || id != floor(id))
      return assay_fail(error, ASSAY_ERR_INPUT, "idx: found %g at place %lld, allowed ids from 0 to %lld", id, (ll)i,
                        (ll)(g->V - 1));
    g->ids[i] = (int32_t)id;
  }
  return ASSAY_OK;
}

/* ---- the forward pass -------------------------------------------------------------------------------- */

typedef struct capture {
  const recorded *g;
  double *value[RECORDED]; /* as the recording has it */
  bool seen[RECORDED];
} capture;

static bool wants(void *context, const char *name) {
  (void)context;
  for (int i = 0; i < RECORDED; ++i)
    if (rows[i].tap != NULL && strcmp(rows[i].tap, name) == 0) return true;
  return false;
}

/* Returns the element of the recording that corresponds to element (row, column) of a tap. */
static int64_t place_of(const recorded *g, const row *r, int64_t n, int64_t width, int64_t column) {
  const int64_t W = width_of(g, r);
  if (r->layout == SCORES) { /* n counts tokens and heads */
    const int64_t token = n / g->H, h = n % g->H;
    return ((token / g->T * g->H + h) * g->T + token % g->T) * W + column;
  }
  if (r->layout == HEADS) return ((n / g->T * g->H + column / W) * g->T + n % g->T) * W + column % W;
  return n * width + column;
}

static void take(void *context, const char *name, int64_t count, int64_t width, const double *value) {
  capture *c = context;
  for (int i = 0; i < RECORDED; ++i) {
    const file_tensor *t = tensor_file_find(&c->g->golden, rows[i].name);
    if (rows[i].tap == NULL || strcmp(rows[i].tap, name) != 0 || count * width != t->count) continue;
    for (int64_t n = 0; n < count; ++n)
      for (int64_t column = 0; column < width; ++column)
        c->value[i][place_of(c->g, &rows[i], n, width, column)] = value[n * width + column];
    c->seen[i] = true;
  }
}

static void free_capture(capture *c) {
  for (int i = 0; i < RECORDED; ++i)
    free(c->value[i]);
}

static assay_status forward(const recorded *g, assay_model_mode mode, capture *c, assay_error *error) {
  const assay_model_taps taps = {c, wants, take, NULL};
  const run_plan plan = {.mode = mode, .taps = &taps};
  run_request *request = calloc((size_t)g->B, sizeof *request);
  double *logits = malloc((size_t)(g->B * g->T * g->V) * sizeof *logits);
  int32_t *ids = malloc((size_t)g->B * sizeof *ids);
  assay_status status = ASSAY_OK;
  *c = (capture){.g = g};
  for (int i = 0; i < RECORDED; ++i) {
    const file_tensor *t = tensor_file_find(&g->golden, rows[i].name);
    c->value[i] = malloc((size_t)t->count * sizeof(double));
    if (c->value[i] == NULL) status = assay_fail(error, ASSAY_ERR_MEMORY, "truth: out of memory");
  }
  if (request == NULL || logits == NULL || ids == NULL)
    status = assay_fail(error, ASSAY_ERR_MEMORY, "truth: out of memory");
  for (int64_t b = 0; b < g->B && status == ASSAY_OK; ++b)
    request[b] = (run_request){g->ids + b * g->T, g->T, 1, ids + b, logits + b * g->T * g->V};
  if (status == ASSAY_OK)
    status = run_requests(assay_model_ref(), &g->model.config, &g->model.weights, &plan, request, g->B, error);
  free(request);
  free(logits);
  free(ids);
  return status;
}

static double rms_of(const double *a, const double *b, int64_t count) {
  double sum = 0;
  for (int64_t i = 0; i < count; ++i)
    if (!(a[i] == b[i])) sum += (a[i] - b[i]) * (a[i] - b[i]); /* -inf above the diagonal of both */
  return sqrt(sum / (double)count);
}

static assay_status judge_forward(const recorded *g, assay_error *error) {
  capture exact = {0}, mirror = {0};
  assay_status status = forward(g, ASSAY_MODEL_EXACT, &exact, error);
  if (status == ASSAY_OK) status = forward(g, ASSAY_MODEL_MIRROR, &mirror, error);
  for (int i = 0; i < RECORDED && status == ASSAY_OK; ++i) {
    char name[100];
    const file_tensor *t = tensor_file_find(&g->golden, rows[i].name);
    if (rows[i].tap == NULL) continue;
    double *theirs = malloc((size_t)t->count * sizeof *theirs);
    if (theirs == NULL) status = assay_fail(error, ASSAY_ERR_MEMORY, "truth: out of memory");
    for (int64_t e = 0; e < t->count && theirs != NULL; ++e)
      theirs[e] = assay_load_f64(t->data, ASSAY_F32, e);
    if (theirs == NULL) continue;
    (void)snprintf(name, sizeof name, "%s, forward pass", rows[i].name);
    const double error_rms = rms_of(theirs, exact.value[i], t->count);
    const double mirror_rms = rms_of(mirror.value[i], exact.value[i], t->count);
    const double limit = forward_limit * g->noise * mirror_rms;
    if (!exact.seen[i] || !mirror.seen[i])
      truth_fail(g->log, name, "the forward pass gives no %s of this size", rows[i].tap);
    else if (!(error_rms <= limit))
      truth_fail(g->log, name, "%lld elements, RMS error %.3g, allowed %.3g", (ll)t->count, error_rms, limit);
    else
      truth_pass(g->log, name, "%lld elements, RMS error %.3g, %.2f of the allowed", (ll)t->count, error_rms,
                 error_rms / limit);
    free(theirs);
  }
  free_capture(&exact);
  free_capture(&mirror);
  return status;
}

assay_status truth_gpt(const char *folder, truth_log *log, assay_error *error) {
  char manifest[4096], data[4096], weights[4096];
  assay_error inner = {""};
  recorded g = {.folder = folder, .log = log};
  (void)snprintf(manifest, sizeof manifest, "%.3000s/golden_pytorch_manifest.json", folder);
  (void)snprintf(data, sizeof data, "%.3000s/golden_pytorch_f32.bin", folder);
  (void)snprintf(weights, sizeof weights, "%.3000s/manifest.json", folder);
  assay_status status = model_open(weights, &g.model, error);
  if (status == ASSAY_OK) status = tensor_file_flat(manifest, data, &g.golden, error);
  if (status == ASSAY_OK) {
    const assay_model_config *c = &g.model.config;
    g.H = c->heads;
    g.D = c->head_size;
    g.C = c->hidden;
    g.I = c->intermediate;
    g.V = c->vocab;
    if (c->arch != ASSAY_GPT2 || c->layers != 3)
      status = assay_fail(error, ASSAY_ERR_INPUT, "%s: config: found %s with %lld layers, allowed gpt2 with 3", weights,
                          assay_model_arch_name(c->arch), (ll)c->layers);
    else if ((status = check_recorded(&g, &inner)) != ASSAY_OK)
      (void)assay_fail(error, status, "%s: %.1800s", manifest, inner.text);
  }
  if (status == ASSAY_OK) status = gpt_operators(&g, error);
  if (status == ASSAY_OK) status = judge_forward(&g, error);
  (void)snprintf(data, sizeof data, "%.3000s/golden_greedy.json", folder);
  if (status == ASSAY_OK && access(data, F_OK) == 0) status = truth_llama2c(weights, data, "ref", log, error);
  free(g.ids);
  tensor_file_free(&g.golden);
  model_file_free(&g.model);
  return status;
}
