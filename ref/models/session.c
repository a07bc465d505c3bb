/* session.c: the reference as a backend of model.h: its memory, one step, and its end. */
#ifdef _OPENMP
#include <omp.h>
#endif
#include <math.h>
#include <stdlib.h>

#include "core/dtype.h"
#include "ref/lib/rope_stretch.h"
#include "ref/models/model.h"

static int64_t larger(int64_t a, int64_t b) {
  return a > b ? a : b;
}

/* Places every array of doubles. The first call counts (memory NULL), the second hands out. */
static int64_t lay_out(model *m, double *memory) {
  const assay_model_config *c = &m->config;
  const int64_t N = m->limits.max_tokens, heads = c->heads * c->head_size, kv = c->kv_heads * c->head_size;
  const int64_t up = (c->arch == ASSAY_GPT2 ? 1 : 2) * c->intermediate, qkv = heads + 2 * kv;
  const int64_t slots = m->limits.num_blocks * c->block_size, longest = slots < c->max_pos ? slots : c->max_pos;
  const int64_t widest = larger(larger(c->hidden, up), larger(qkv, c->experts));
  const int64_t routed = N * c->experts_used, I = c->expert_size;
  const struct {
    matrix *matrix;
    int64_t width;
  } part[] = {{&m->x, c->hidden}, {&m->h, c->hidden}, {&m->y, c->hidden}, {&m->qkv, qkv}, {&m->q, heads},
              {&m->k, kv},        {&m->v, kv},        {&m->out, heads},   {&m->up, up},   {&m->gated, c->intermediate}};
  int64_t at = 0;
  for (size_t i = 0; i < sizeof part / sizeof part[0]; ++i, at += N * part[i - 1].width)
    *part[i].matrix = (matrix){memory != NULL ? memory + at : NULL, 0, part[i].width};
  const struct {
    matrix *matrix;
    int64_t rows, width;
  } sparse[] = {{&m->router, N, c->experts},    {&m->weight, N, c->experts_used}, {&m->routed, routed, c->hidden},
                {&m->routed_up, routed, 2 * I}, {&m->routed_gated, routed, I},    {&m->routed_out, routed, c->hidden}};
  for (size_t i = 0; i < sizeof sparse / sizeof sparse[0]; at += sparse[i].rows * sparse[i].width, ++i)
    *sparse[i].matrix = (matrix){memory != NULL ? memory + at : NULL, 0, sparse[i].width};
  m->scratch_size = larger(PANEL * larger(larger(c->hidden, heads), larger(c->intermediate, I)), 3 * longest);
  const struct {
    double **array;
    int64_t count;
  } array[] = {{&m->picked.value, m->limits.max_logits * c->hidden},
               {&m->cosine, N * (c->rotated / 2)},
               {&m->sine, N * (c->rotated / 2)},
               {&m->vector[0], widest},
               {&m->vector[1], widest},
               {&m->vector[2], widest},
               {&m->scratch, m->threads * m->scratch_size},
               {&m->k_pool, c->layers * slots * kv},
               {&m->v_pool, c->layers * slots * kv}};
  for (size_t i = 0; i < sizeof array / sizeof array[0]; ++i, at += array[i - 1].count)
    *array[i].array = memory != NULL ? memory + at : NULL;
  m->picked.width = c->hidden;
  return at;
}

static void close_session(assay_model_session *session) {
  model *m = (model *)session;
  if (m == NULL) return;
  free(m->memory);
  free(m->step.written);
  free(m->step.request);
  free(m->step.position);
  free(m->ids);
  free(m->place);
  free(m->first);
  free(m);
}

static assay_status open_session(const assay_model_config *config, const assay_model_weights *weights,
                                 const assay_model_limits *limits, assay_model_mode mode, assay_model_session **session,
                                 assay_error *error) {
  *session = NULL;
  assay_status status = assay_model_check(config, error);
  if (status == ASSAY_OK) status = assay_model_weights_check(config, weights, error);
  if (status == ASSAY_OK) status = model_limits_check(config, limits, error);
  if (status != ASSAY_OK) return status;
  model *m = calloc(1, sizeof *m);
  if (m == NULL) return assay_fail(error, ASSAY_ERR_MEMORY, "session: out of memory");
  m->config = *config;
  m->weights = weights;
  m->limits = *limits;
  const bool mirror = mode == ASSAY_MODEL_MIRROR;
  m->act = mirror ? config->act_dtype : ASSAY_NONE;
  m->logit = mirror ? ASSAY_F32 : ASSAY_NONE;
  m->cache = mirror && config->kv_dtype != config->act_dtype ? config->kv_dtype : ASSAY_NONE;
  m->layer = -1;
  m->threads = 1;
#ifdef _OPENMP
  m->threads = omp_get_max_threads();
#endif
  const int64_t count = lay_out(m, NULL), slots = limits->num_blocks * config->block_size;
  m->memory = calloc((size_t)count, sizeof(double));
  m->step.written = calloc((size_t)slots, sizeof *m->step.written);
  m->step.request = calloc((size_t)limits->max_tokens, sizeof *m->step.request);
  m->step.position = calloc((size_t)limits->max_tokens, sizeof *m->step.position);
  const size_t choices = (size_t)(limits->max_tokens * config->experts_used) + 1;
  m->ids = calloc(choices, sizeof *m->ids);
  m->place = calloc(choices, sizeof *m->place);
  m->first = calloc((size_t)config->experts + 1, sizeof *m->first);
  if (m->memory == NULL || m->step.written == NULL || m->step.request == NULL || m->step.position == NULL ||
      m->ids == NULL || m->place == NULL || m->first == NULL) {
    close_session((assay_model_session *)m);
    return assay_fail(error, ASSAY_ERR_MEMORY, "session: %lld bytes do not fit in memory",
                      (long long)(count * (int64_t)sizeof(double)));
  }
  (void)lay_out(m, m->memory);
  /* A key that was never written shows as NaN in every result that reads it. */
  for (int64_t i = 0; i < 2 * config->layers * slots * config->kv_heads * config->head_size; ++i)
    m->k_pool[i] = (double)NAN; /* v_pool follows k_pool */
  *session = (assay_model_session *)m;
  return ASSAY_OK;
}

/* Makes the table of theta_i = base^(-2i/R), stretched where the model's is; a device keeps it in f32. */
static void make_rope_table(model *m, int64_t N) {
  const assay_model_config *c = &m->config;
  const int64_t half = c->rotated / 2;
  const rope_stretch stretch = {.R = c->rotated,
                                .kind = (int32_t)c->rope_kind,
                                .base = c->rope_base,
                                .factor = c->rope_factor,
                                .original = c->rope_original,
                                .beta_fast = c->rope_beta_fast,
                                .beta_slow = c->rope_beta_slow,
                                .truncate = c->rope_truncate,
                                .concentration = c->rope_concentration,
                                .low = c->rope_low,
                                .high = c->rope_high};
  const double factor = rope_stretch_concentration(&stretch);
  for (int64_t i = 0; i < half; ++i) {
    const double theta = c->rope_kind != ASSAY_ROPE_PLAIN ? rope_stretch_inverse(&stretch, i)
                                                          : pow(c->rope_base, -2 * (double)i / (double)c->rotated);
    for (int64_t n = 0; n < N; ++n) {
      const double angle = (double)(m->step.position[n] < 0 ? 0 : m->step.position[n]) * theta;
      m->cosine[n * half + i] = assay_round_f64(factor * cos(angle), m->logit);
      m->sine[n * half + i] = assay_round_f64(factor * sin(angle), m->logit);
    }
  }
}

static bool wants_scores(model *m) {
  bool wants = false;
  for (m->layer = 0; m->layer < m->config.layers && !wants; ++m->layer)
    wants = model_wants(m, "attn.s") || model_wants(m, "attn.p");
  m->layer = -1;
  return wants;
}

static assay_status forward(assay_model_session *session, const assay_model_batch *batch, double *logits,
                            const assay_model_taps *taps, assay_error *error) {
  model *m = (model *)session;
  const assay_status status = model_step_check(&m->config, &m->limits, batch, &m->step, error);
  if (status != ASSAY_OK) return status;
  const int64_t N = batch->cu_q[batch->requests];
  m->batch = batch;
  m->taps = taps;
  m->logits = logits;
  if (wants_scores(m)) {
    m->scores = malloc((size_t)(2 * N * m->config.heads * m->step.longest + 1) * sizeof *m->scores);
    if (m->scores == NULL) return assay_fail(error, ASSAY_ERR_MEMORY, "taps: scores do not fit in memory");
  }
  matrix *const all[] = {&m->x, &m->h,   &m->y,  &m->qkv,   &m->q,      &m->k,
                         &m->v, &m->out, &m->up, &m->gated, &m->router, &m->weight};
  matrix *const routed[] = {&m->routed, &m->routed_up, &m->routed_gated, &m->routed_out};
  for (size_t i = 0; i < sizeof all / sizeof all[0]; ++i)
    all[i]->rows = N;
  for (size_t i = 0; i < sizeof routed / sizeof routed[0]; ++i)
    routed[i]->rows = N * m->config.experts_used;
  m->picked.rows = batch->logit_count;
  make_rope_table(m, N);
  model_copy_blocks(m);
  switch (m->config.arch) {
  case ASSAY_GPT2:
    gpt2_forward(m);
    break;
  case ASSAY_QWEN3:
    qwen3_forward(m);
    break;
  case ASSAY_QWEN3_MOE:
    qwen3_moe_forward(m);
    break;
  case ASSAY_GPT_OSS:
    gpt_oss_forward(m);
    break;
  case ASSAY_GEMMA2:
    gemma2_forward(m);
    break;
  case ASSAY_ASYNCT:
  case ASSAY_ARCH_COUNT:
    asynct_forward(m);
    break;
  }
  free(m->scores);
  m->scores = NULL;
  m->taps = NULL;
  return ASSAY_OK;
}

const assay_model_backend *assay_model_ref(void) {
  static const assay_model_backend backend = {
      .name = "ref", .open = open_session, .forward = forward, .close = close_session};
  return &backend;
}
