/* session.c: the reference as a backend of model.h: its memory, one step, and its end. */
#ifdef _OPENMP
#include <omp.h>
#endif
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/dtype.h"
#include "core/model_narrow.h"
#include "ref/lib/rope_stretch.h"
#include "ref/models/model.h"

static int64_t larger(int64_t a, int64_t b) {
  return a > b ? a : b;
}

static int64_t layers_with_states(const assay_model_config *c) {
  int64_t count = 0;
  for (int64_t l = 0; l < c->layers; ++l)
    count += assay_model_is_linear(c, l);
  return count;
}

/* Places every array of doubles. The first call counts (memory NULL), the second hands out. */
static int64_t lay_out(model *m, double *memory) {
  const assay_model_config *c = &m->config;
  const int64_t N = m->limits.max_tokens, heads = c->heads * c->head_size, kv = model_entry(m);
  const bool latent = model_is_latent(m);
  const int64_t out = latent ? c->heads * c->value_size : heads, P = c->head_size - c->rotated;
  const int64_t up = (c->arch == ASSAY_GPT2 ? 1 : 2) * c->intermediate, qkv = heads + 2 * kv;
  const int64_t slots = m->limits.num_blocks * c->block_size, longest = slots < c->max_pos ? slots : c->max_pos;
  const int64_t widest =
      larger(larger(larger(c->hidden, up), larger(qkv, larger(c->experts, c->linear_value_heads))), c->q_rank);
  const int64_t routed = N * c->experts_used, I = c->expert_size;
  const struct {
    matrix *matrix;
    int64_t width;
  } part[] = {{&m->x, c->hidden},
              {&m->h, c->hidden},
              {&m->y, c->hidden},
              {&m->qkv, qkv},
              {&m->q, heads},
              {&m->k, kv},
              {&m->v, kv},
              {&m->out, out},
              {&m->up, up},
              {&m->gated, c->intermediate},
              {&m->q_a, c->q_rank},
              {&m->kv_a, latent ? kv : 0},
              {&m->latent, c->kv_rank},
              {&m->k_pe, latent ? c->rotated : 0},
              {&m->shared_up, 2 * c->shared_size},
              {&m->shared_gated, c->shared_size},
              {&m->shared, c->shared_size > 0 ? c->hidden : 0}};
  const int64_t H_v = c->linear_value_heads, values = H_v * c->linear_value_size;
  const int64_t conv = 2 * c->linear_key_heads * c->linear_key_size + values, J = c->conv_taps - 1;
  const int64_t states = layers_with_states(c) * m->limits.num_states;
  const bool next = assay_model_has_states(c);
  const struct {
    matrix *matrix;
    int64_t width;
  } linear[] = {{&m->delta_in, conv + values + 2 * H_v},
                {&m->conv, conv},
                {&m->decay, H_v},
                {&m->share, H_v},
                {&m->delta_out, values},
                {&m->gate, next ? heads : 0},
                {&m->shared_gate, next}};
  int64_t at = 0;
  for (size_t i = 0; i < sizeof part / sizeof part[0]; ++i, at += N * part[i - 1].width)
    *part[i].matrix = (matrix){memory != NULL ? memory + at : NULL, 0, part[i].width};
  for (size_t i = 0; i < sizeof linear / sizeof linear[0]; at += N * linear[i++].width)
    *linear[i].matrix = (matrix){memory != NULL ? memory + at : NULL, 0, linear[i].width};
  const struct {
    matrix *matrix;
    int64_t rows, width;
  } sparse[] = {{&m->router, N, c->experts},
                {&m->weight, N, c->experts_used},
                {&m->routed, routed, c->hidden},
                {&m->routed_up, routed, 2 * I},
                {&m->routed_gated, routed, I},
                {&m->routed_out, routed, c->hidden},
                {&m->narrowed, larger(N, routed), m->act != ASSAY_NONE ? model_narrow_width(c) : 0}};
  for (size_t i = 0; i < sizeof sparse / sizeof sparse[0]; at += sparse[i].rows * sparse[i].width, ++i)
    *sparse[i].matrix = (matrix){memory != NULL ? memory + at : NULL, 0, sparse[i].width};
  const int64_t in = larger(larger(c->q_rank, c->kv_rank), larger(larger(out, values), c->shared_size));
  m->scratch_size =
      larger(PANEL * larger(larger(larger(c->hidden, heads), larger(c->intermediate, I)), in), 3 * longest);
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
               {&m->gathered, latent ? longest * c->kv_rank : 0},
               {&m->gathered_pe, latent ? longest * c->rotated : 0},
               {&m->expanded, latent ? longest * (P + c->value_size) : 0},
               {&m->head_weight, latent ? (P + c->value_size + 2) * c->kv_rank : 0},
               {&m->taps_of, conv * c->conv_taps},
               {&m->convolved, next ? (N + J) * conv : 0},
               {&m->matrices, values * c->linear_key_size},
               {&m->conv_pool, next ? states * J * conv : 0},
               {&m->matrix_pool, states * values * c->linear_key_size},
               {&m->k_pool, c->layers * slots * kv},
               {&m->v_pool, latent ? 0 : c->layers * slots * kv}};
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
  free(m->step.stated);
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
  m->step.stated = calloc((size_t)limits->num_states + 1, sizeof *m->step.stated);
  m->step.request = calloc((size_t)limits->max_tokens, sizeof *m->step.request);
  m->step.position = calloc((size_t)limits->max_tokens, sizeof *m->step.position);
  const size_t choices = (size_t)(limits->max_tokens * config->experts_used) + 1;
  m->ids = calloc(choices, sizeof *m->ids);
  m->place = calloc(choices, sizeof *m->place);
  m->first = calloc((size_t)config->experts + 1, sizeof *m->first);
  if (m->memory == NULL || m->step.written == NULL || m->step.stated == NULL || m->step.request == NULL ||
      m->step.position == NULL || m->ids == NULL || m->place == NULL || m->first == NULL) {
    close_session((assay_model_session *)m);
    return assay_fail(error, ASSAY_ERR_MEMORY, "session: %lld bytes do not fit in memory",
                      (long long)(count * (int64_t)sizeof(double)));
  }
  (void)lay_out(m, m->memory);
  /* A key that was never written shows as NaN in every result that reads it. */
  for (int64_t i = 0; i < (model_is_latent(m) ? 1 : 2) * config->layers * slots * model_entry(m); ++i)
    m->k_pool[i] = (double)NAN; /* v_pool follows k_pool */
  for (double *state = m->conv_pool; state < m->k_pool; ++state)
    *state = (double)NAN; /* the same for states; the pools follow each other */
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
  matrix *const all[] = {&m->x,          &m->h,      &m->y,         &m->qkv,          &m->q,
                         &m->k,          &m->v,      &m->out,       &m->up,           &m->gated,
                         &m->router,     &m->weight, &m->q_a,       &m->kv_a,         &m->latent,
                         &m->k_pe,       &m->shared, &m->shared_up, &m->shared_gated, &m->delta_in,
                         &m->conv,       &m->decay,  &m->share,     &m->delta_out,    &m->gate,
                         &m->shared_gate};
  matrix *const routed[] = {&m->routed, &m->routed_up, &m->routed_gated, &m->routed_out};
  for (size_t i = 0; i < sizeof all / sizeof all[0]; ++i)
    all[i]->rows = N;
  for (size_t i = 0; i < sizeof routed / sizeof routed[0]; ++i)
    routed[i]->rows = N * m->config.experts_used;
  m->picked.rows = batch->logit_count;
  make_rope_table(m, N);
  model_copy_blocks(m);
  model_copy_states(m);
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
  case ASSAY_DEEPSEEK_V3:
    deepseek_v3_forward(m);
    break;
  case ASSAY_QWEN3_NEXT:
    qwen3_next_forward(m);
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

/* Reads the form of latent attention. No other form changes where the mirror rounds, and there are no variants. */
static assay_status set_options(assay_model_session *session, const assay_model_options *options, assay_error *error) {
  static const char *const words[] = {[LATENT_ABSORBED] = "mla_expand=off",
                                      [LATENT_EXPANDED] = "mla_expand=on",
                                      [LATENT_BY_THE_COST] = "mla_expand=auto"};
  model *m = (model *)session;
  m->latent_form = LATENT_USUAL;
  for (int32_t i = 0; i < options->forms; ++i) {
    int w = LATENT_ABSORBED;
    while (w <= LATENT_BY_THE_COST && strcmp(options->form[i], words[w]) != 0)
      ++w;
    if (w > LATENT_BY_THE_COST)
      return assay_fail(error, ASSAY_ERR_INPUT,
                        "form: found '%.60s', allowed on ref: mla_expand=off, mla_expand=on, mla_expand=auto",
                        options->form[i]);
    if (w == LATENT_EXPANDED && !model_is_latent(m))
      return assay_fail(error, ASSAY_ERR_INPUT,
                        "form mla_expand: found on, which this %s model cannot have, allowed in deepseek_v3",
                        assay_model_arch_name(m->config.arch));
    m->latent_form = (enum latent_form)w;
  }
  return ASSAY_OK;
}

const assay_model_backend *assay_model_ref(void) {
  static const assay_model_backend backend = {
      .name = "ref", .open = open_session, .forward = forward, .close = close_session, .set_options = set_options};
  return &backend;
}
