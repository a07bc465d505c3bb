/* session.c: the launchers' path as backends of assay/model.h: device memory, one step, the end. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/dtype.h"
#include "core/model_narrow.h"
#include "core/registry.h"
#include "gpu/models/pass.h"

enum { ALIGNMENT = 256, POISONED_BYTES = 1 << 26 };

static int64_t larger(int64_t a, int64_t b) {
  return a > b ? a : b;
}

static assay_tensor dense(assay_dtype dtype, int32_t rank, const int64_t *shape) {
  assay_tensor t = {.dtype = dtype, .rank = rank};
  int64_t stride = 1;
  for (int32_t a = rank - 1; a >= 0; --a) {
    t.shape[a] = shape[a];
    t.stride[a] = stride;
    stride *= shape[a];
  }
  return t;
}

static int64_t bytes_of(const assay_tensor *t) {
  int64_t count = assay_dtype_size(t->dtype);
  for (int32_t a = 0; a < t->rank; ++a)
    count *= t->shape[a];
  return count;
}

/* ---- device memory ----------------------------------------------------------------------------------- */

typedef struct layout {
  unsigned char *base; /* NULL: only counts */
  int64_t bytes, largest;
} layout;

static void place(layout *l, assay_tensor *t, assay_dtype dtype, int32_t rank, int64_t a, int64_t b, int64_t c,
                  int64_t d, int64_t e) {
  const int64_t shape[5] = {a, b, c, d, e};
  *t = dense(dtype, rank, shape);
  if (l->base != NULL) t->data = l->base + l->bytes;
  const int64_t bytes = bytes_of(t);
  l->bytes += (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
  if (bytes > l->largest) l->largest = bytes;
}

static void place_rows(layout *l, assay_tensor *t, assay_dtype dtype, int64_t rows, int64_t width) {
  place(l, t, dtype, 2, rows, width, 0, 0, 0);
}
static void place_vector(layout *l, assay_tensor *t, assay_dtype dtype, int64_t count) {
  place(l, t, dtype, 1, count, 0, 0, 0, 0);
}

/* Returns the number of blocks of the longest request. */
static int64_t widest_table(const assay_model_config *c) {
  return larger((c->max_pos + c->block_size - 1) / c->block_size, 1);
}

/* Places the tensors of sparse layers. Segments have no padding, so that P is N k. */
static void place_experts(pass *m, layout *l) {
  const assay_model_config *c = &m->config;
  const int64_t N = m->limits.max_tokens, k = c->experts_used, P = N * k;
  place_rows(l, &m->router, c->act_dtype, N, c->experts);
  place_rows(l, &m->chosen, ASSAY_I32, N, k);
  place_rows(l, &m->shares, ASSAY_F32, N, k);
  place_vector(l, &m->counted, ASSAY_I32, c->experts);
  place_vector(l, &m->offsets, ASSAY_I32, c->experts + 1);
  place_vector(l, &m->order, ASSAY_I32, P);
  place_vector(l, &m->experts, ASSAY_I32, P);
  place_rows(l, &m->place, ASSAY_I32, N, k);
  place_rows(l, &m->routed, c->act_dtype, P, c->hidden);
  place_rows(l, &m->routed_up, c->act_dtype, P, 2 * c->expert_size);
  place_rows(l, &m->routed_gated, c->act_dtype, P, c->expert_size);
  place_rows(l, &m->routed_out, c->act_dtype, P, c->hidden);
}

/* Places the tensors of qwen3_next that belong to a step. */
static void place_next(pass *m, layout *l) {
  const assay_model_config *c = &m->config;
  const int64_t N = m->limits.max_tokens, B = m->limits.max_requests, heads = c->heads * c->head_size;
  const int64_t H = c->linear_value_heads, values = H * c->linear_value_size;
  const int64_t conv = 2 * c->linear_key_heads * c->linear_key_size + values;
  place_rows(l, &m->gates, c->act_dtype, N, 2 * heads);
  place_rows(l, &m->delta_in, c->act_dtype, N, conv + values + 2 * H);
  place_rows(l, &m->conv, c->act_dtype, N, conv);
  place_rows(l, &m->delta_out, c->act_dtype, N, values);
  place_rows(l, &m->decay, ASSAY_F32, N, H);
  place_rows(l, &m->share, ASSAY_F32, N, H);
  place_rows(l, &m->shared_up, c->act_dtype, N, 2 * c->shared_size);
  place_rows(l, &m->shared_gated, c->act_dtype, N, c->shared_size);
  place_rows(l, &m->shared, c->act_dtype, N, c->hidden);
  place_rows(l, &m->weighted, c->act_dtype, N, c->hidden);
  place_rows(l, &m->shared_gate, c->act_dtype, N, 1);
  place_rows(l, &m->shared_weight, ASSAY_F32, N, 1);
  place_rows(l, &m->shared_rest, ASSAY_F32, N, 1);
  place_rows(l, &m->row_number, ASSAY_I32, N, 1);
  place_vector(l, &m->in_turn, ASSAY_I32, 2 * N);
  place_vector(l, &m->state_slots, ASSAY_I32, B);
  place_vector(l, &m->fresh, ASSAY_I32, B);
  place_rows(l, &m->state_copies, ASSAY_I64, m->limits.num_states, 2);
}

/* Places the tensors of deepseek_v3 that belong to a step. */
static void place_latent(pass *m, layout *l) {
  const assay_model_config *c = &m->config;
  const latent_shape s = pass_latent_shape(c);
  const int64_t N = m->limits.max_tokens, B = m->limits.max_requests, H = c->heads;
  place_rows(l, &m->qkv, c->act_dtype, N + 1, H * c->head_size);
  place_rows(l, &m->out, c->act_dtype, N, H * c->value_size);
  place_rows(l, &m->q_a, c->act_dtype, N, c->q_rank);
  place_rows(l, &m->kv_a, c->act_dtype, N + 1, c->kv_rank + c->rotated);
  place_rows(l, &m->latent, c->act_dtype, N, s.c);
  place_rows(l, &m->pe, c->act_dtype, N, s.pe);
  place_rows(l, &m->wide, c->act_dtype, N, H * s.entry);
  place_rows(l, &m->mixed, c->act_dtype, N, H * s.c);
  place_rows(l, &m->widen, c->weight_dtype, s.pe, c->rotated);
  place_vector(l, &m->head_number, ASSAY_I32, N * H);
  place_vector(l, &m->run_cu_q, ASSAY_I32, 2 * B);
  place_vector(l, &m->run_cu_k, ASSAY_I32, 2 * B);
  place_vector(l, &m->run_blocks, ASSAY_I32, B * widest_table(c));
  place_rows(l, &m->shared_up, c->act_dtype, N, 2 * c->shared_size);
  place_rows(l, &m->shared_gated, c->act_dtype, N, c->shared_size);
  place_rows(l, &m->shared, c->act_dtype, N, c->hidden);
}

/* Places what lives as long as the session: tiled weights and the pools of states. */
static void place_states(pass *m, layout *l) {
  const assay_model_config *c = &m->config;
  const state_shape s = pass_state_shape(c);
  place_rows(l, &m->tiled, c->weight_dtype, c->layers, pass_tiled_width(c));
  place(l, &m->conv_pool, c->act_dtype, 3, s.layers, m->limits.num_states, s.conv, 0, 0);
  place(l, &m->matrix_pool, ASSAY_F32, 3, s.layers, m->limits.num_states, s.matrix, 0, 0);
}

/* Places every tensor of the session. It is called once to count and once to hand out. */
static layout lay_out(pass *m, unsigned char *base) {
  const assay_model_config *c = &m->config;
  const int64_t N = m->limits.max_tokens, B = m->limits.max_requests, blocks = m->limits.num_blocks;
  const int64_t heads = c->heads * c->head_size, kv = c->kv_heads * c->head_size;
  const bool latent = c->arch == ASSAY_DEEPSEEK_V3;
  layout l = {.base = base};
  for (int32_t i = 0; i < assay_model_weight_count(c); ++i) {
    assay_weight_spec spec;
    (void)assay_model_weight_spec(c, i, &spec);
    place(&l, &m->weight[i], spec.dtype, spec.rank, spec.shape[0], spec.shape[1], 0, 0, 0);
  }
  place_rows(&l, &m->cosine, ASSAY_F32, c->max_pos, c->rotated / 2);
  place_rows(&l, &m->sine, ASSAY_F32, c->max_pos, c->rotated / 2);
  l.largest = 0; /* from here on: the tensors for which host memory is needed */
  place_rows(&l, &m->x, c->act_dtype, N, c->hidden);
  place_rows(&l, &m->h, c->act_dtype, N, c->hidden);
  place_rows(&l, &m->y, c->act_dtype, N, c->hidden);
  place_rows(&l, &m->z, c->act_dtype, c->arch == ASSAY_ASYNCT || c->arch == ASSAY_GEMMA2 ? N : 1, c->hidden);
  place_rows(&l, &m->squares, ASSAY_F32, c->arch == ASSAY_QWEN3 ? N : 1, (c->hidden + 7) / 8);
  if (c->arch == ASSAY_GEMMA2) place_rows(&l, &m->embed_scale, ASSAY_F32, N, 1);
  place_vector(&l, &m->zeros, c->act_dtype, c->intermediate);
  place_vector(&l, &m->no_taps, ASSAY_F32, c->heads);
  if (latent)
    place_latent(m, &l);
  else {
    place_rows(&l, &m->qkv, c->act_dtype, N, heads + 2 * kv);
    place_rows(&l, &m->out, c->act_dtype, c->arch == ASSAY_QWEN3_NEXT ? 2 * N : N, heads);
  }
  place_rows(&l, &m->up, c->act_dtype, N, (c->arch == ASSAY_GPT2 ? 1 : 2) * c->intermediate);
  place_rows(&l, &m->gated, c->act_dtype, N, c->intermediate);
  if (c->experts > 0) place_experts(m, &l);
  if (c->arch == ASSAY_QWEN3_NEXT) place_next(m, &l);
  if (c->fp8_weights) {
    const int64_t width = model_narrow_width(c), groups = (width + ASSAY_MODEL_FP8_BLOCK - 1) / ASSAY_MODEL_FP8_BLOCK;
    place_rows(&l, &m->codes, ASSAY_E4M3, pass_narrow_rows(m), width);
    place_rows(&l, &m->code_scales, ASSAY_F32, pass_narrow_rows(m), groups);
  }
  place_rows(&l, &m->logits, ASSAY_F32, m->limits.max_logits, c->vocab);
  place_vector(&l, &m->ids, ASSAY_I32, N);
  place_vector(&l, &m->positions, ASSAY_I32, N);
  place_vector(&l, &m->slots, ASSAY_I64, N);
  place_vector(&l, &m->kv_len, ASSAY_I32, B);
  place_vector(&l, &m->cu_q, ASSAY_I32, B + 1);
  place_rows(&l, &m->table, ASSAY_I32, B, widest_table(c));
  place_vector(&l, &m->rows, ASSAY_I32, m->limits.max_logits);
  place_rows(&l, &m->copies, ASSAY_I64, blocks, 2);
  const int64_t host = l.largest;
  if (c->arch == ASSAY_QWEN3_NEXT) place_states(m, &l);
  if (latent) {
    const latent_shape s = pass_latent_shape(c);
    place_rows(&l, &m->absorb, c->weight_dtype, c->layers, s.absorb);
    place_rows(&l, &m->expand, c->weight_dtype, c->layers, s.expand);
    place(&l, &m->k_pool, c->kv_dtype, 5, s.layers, blocks, c->block_size, 1, s.entry);
  } else {
    place(&l, &m->k_pool, c->kv_dtype, 5, c->layers, blocks, c->block_size, c->kv_heads, c->head_size);
    place(&l, &m->v_pool, c->kv_dtype, 5, c->layers, blocks, c->block_size, c->kv_heads, c->head_size);
  }
  l.largest = host;
  return l;
}

/* Makes the tables of rotation for a stretched context, by the operator. */
static assay_status stretch_rope(pass *m, assay_error *error) {
  const assay_model_config *c = &m->config;
  const pass_arg args[] = {{"cos", m->cosine}, {"sin", m->sine}, {.name = NULL}};
  const pass_param params[] = {{"kind", (double)c->rope_kind},
                               {"base", c->rope_base},
                               {"factor", c->rope_factor},
                               {"original", c->rope_original},
                               {"beta_fast", c->rope_beta_fast},
                               {"beta_slow", c->rope_beta_slow},
                               {"truncate", c->rope_truncate},
                               {"concentration", c->rope_concentration},
                               {"low", c->rope_low},
                               {"high", c->rope_high},
                               {NULL, 0}};
  m->error = error;
  m->status = ASSAY_OK;
  m->stage = "rope_table";
  pass_call(m, "rope_table", args, params);
  return m->status == ASSAY_OK ? m->device->synchronize(error) : m->status;
}

/* Uploads the tables of rotation, theta_i = base^(-2i/R). */
static assay_status upload_rope(pass *m, assay_error *error) {
  const int64_t half = m->config.rotated / 2, count = m->config.max_pos * half;
  if (count == 0) return ASSAY_OK;
  if (m->config.rope_kind != ASSAY_ROPE_PLAIN) return stretch_rope(m, error);
  float *table = malloc((size_t)count * 2 * sizeof *table);
  if (table == NULL) return assay_fail(error, ASSAY_ERR_MEMORY, "session: no memory for the rope table");
  for (int64_t p = 0; p < m->config.max_pos; ++p)
    for (int64_t i = 0; i < half; ++i) {
      const double angle = (double)p * pow(m->config.rope_base, -2 * (double)i / (double)m->config.rotated);
      table[p * half + i] = (float)cos(angle);
      table[count + p * half + i] = (float)sin(angle);
    }
  const int64_t bytes = count * (int64_t)sizeof *table;
  assay_status status = m->device->upload(m->cosine.data, table, bytes, error);
  if (status == ASSAY_OK) status = m->device->upload(m->sine.data, table + count, bytes, error);
  if (status == ASSAY_OK) status = m->device->synchronize(error);
  free(table);
  return status;
}

/* Uploads the numbers of rows, and the order that takes gates and results in turn. No step changes them. */
static assay_status upload_numbers(pass *m, assay_error *error) {
  const int64_t N = m->limits.max_tokens, four = (int64_t)sizeof(int32_t);
  int32_t *const number = malloc((size_t)(2 * N * four));
  if (number == NULL) return assay_fail(error, ASSAY_ERR_MEMORY, "session: out of memory");
  for (int64_t n = 0; n < N; ++n)
    number[n] = (int32_t)n;
  assay_status status = m->device->upload(m->row_number.data, number, N * four, error);
  if (status == ASSAY_OK) status = m->device->synchronize(error);
  for (int64_t n = 0; n < N; ++n) {
    number[2 * n] = (int32_t)(N + n);
    number[2 * n + 1] = (int32_t)n;
  }
  if (status == ASSAY_OK) status = m->device->upload(m->in_turn.data, number, 2 * N * four, error);
  if (status == ASSAY_OK) status = m->device->synchronize(error);
  free(number);
  return status;
}

/* Uploads the factor of every row of the embedding. */
static assay_status upload_scale(pass *m, assay_error *error) {
  float *const factor = m->host;
  const int64_t N = m->limits.max_tokens;
  for (int64_t n = 0; n < N; ++n)
    factor[n] = (float)sqrt((double)m->config.hidden);
  const assay_status status = m->device->upload(m->embed_scale.data, factor, N * (int64_t)sizeof *factor, error);
  return status == ASSAY_OK ? m->device->synchronize(error) : status;
}

/* Uploads the tensors that are read and never written. */
static assay_status upload_zeros(pass *m, assay_error *error) {
  const assay_tensor *const of[] = {&m->zeros, &m->no_taps};
  assay_status status = ASSAY_OK;
  for (size_t i = 0; i < sizeof of / sizeof of[0] && status == ASSAY_OK; ++i) {
    memset(m->host, 0, (size_t)bytes_of(of[i]));
    status = m->device->upload(of[i]->data, m->host, bytes_of(of[i]), error);
    if (status == ASSAY_OK) status = m->device->synchronize(error);
  }
  return status;
}

/* Fills the pools with NaN, so that an unwritten key shows in whatever reads it. Large pools are left as they are. */
static assay_status upload_pools(pass *m, assay_error *error) {
  const assay_tensor *const of[] = {&m->k_pool, &m->v_pool, &m->conv_pool, &m->matrix_pool};
  assay_status status = ASSAY_OK;
  for (size_t i = 0; i < sizeof of / sizeof of[0] && status == ASSAY_OK; ++i) {
    if (of[i]->data == NULL || bytes_of(of[i]) > POISONED_BYTES) continue;
    void *nans = malloc((size_t)bytes_of(of[i]));
    if (nans == NULL) return assay_fail(error, ASSAY_ERR_MEMORY, "session: out of memory");
    memset(nans, 0xFF, (size_t)bytes_of(of[i]));
    status = m->device->upload(of[i]->data, nans, bytes_of(of[i]), error);
    if (status == ASSAY_OK) status = m->device->synchronize(error);
    free(nans);
  }
  return status;
}

void pass_close(pass *m) {
  if (m == NULL) return;
  pass_choices_close(m);
  if (m->device != NULL) pass_tails_close(m);
  if (m->device != NULL) pass_expand_close(m);
  if (m->device != NULL) pass_one_launch_close(m);
  free(m->name);
  if (m->memory != NULL) m->device->release(m->memory);
  if (m->workspace != NULL) m->device->release(m->workspace);
  free(m->step.written);
  free(m->step.stated);
  free(m->step.request);
  free(m->step.position);
  free(m->weight);
  free(m->first);
  free(m->host);
  free(m);
}

static assay_status fill(pass *m, const assay_model_weights *weights, assay_error *error) {
  void *memory = NULL;
  const layout wanted = lay_out(m, NULL);
  assay_status status = m->device->alloc(wanted.bytes, &memory, error);
  if (status != ASSAY_OK) return status;
  m->memory = memory;
  m->memory_bytes = wanted.bytes;
  (void)lay_out(m, memory);
  m->host = malloc((size_t)wanted.largest);
  if (m->host == NULL) return assay_fail(error, ASSAY_ERR_MEMORY, "session: out of memory");
  for (int32_t i = 0; i < weights->count && status == ASSAY_OK; ++i)
    status = m->device->upload(m->weight[i].data, weights->tensor[i].data, bytes_of(&m->weight[i]), error);
  if (status == ASSAY_OK) status = m->device->synchronize(error);
  if (status == ASSAY_OK) status = upload_zeros(m, error);
  if (status == ASSAY_OK && m->embed_scale.data != NULL) status = upload_scale(m, error);
  if (status == ASSAY_OK) status = upload_pools(m, error);
  if (status == ASSAY_OK && m->tiled.data != NULL) status = pass_tile_norms(m, weights, error);
  if (status == ASSAY_OK && m->in_turn.data != NULL) status = upload_numbers(m, error);
  if (status == ASSAY_OK && m->absorb.data != NULL) status = pass_latent_open(m, weights, error);
  return status == ASSAY_OK ? upload_rope(m, error) : status;
}

assay_status pass_open(const char *device, const assay_model_config *config, const assay_model_weights *weights,
                       const assay_model_limits *limits, pass **made, assay_error *error) {
  assay_device_info info = {.multiprocessors = 1};
  *made = NULL;
  assay_status status = assay_model_check(config, error);
  if (status == ASSAY_OK) status = assay_model_weights_check(config, weights, error);
  if (status == ASSAY_OK) status = model_limits_check(config, limits, error);
  const assay_device *found = assay_device_find(device);
  if (status == ASSAY_OK && found == NULL)
    status =
        assay_fail(error, ASSAY_ERR_NO_DEVICE, "device: found %s, this build has %s", device, assay_device_names());
  if (status == ASSAY_OK && config->arch == ASSAY_DEEPSEEK_V3) status = pass_latent_check(config, error);
  if (status == ASSAY_OK && config->weight_dtype != config->act_dtype)
    status =
        assay_fail(error, ASSAY_ERR_UNSUPPORTED,
                   "weight_dtype: found %s, allowed on %s: act_dtype's %s (embedding, gemm, norms and lm_head take "
                   "weights of the type of what they are applied to)",
                   assay_dtype_name(config->weight_dtype), device, assay_dtype_name(config->act_dtype));
  if (status == ASSAY_OK) status = found->open(error);
  if (status == ASSAY_OK) status = found->info(&info, error);
  if (status != ASSAY_OK) return status;
  pass *m = calloc(1, sizeof *m);
  if (m == NULL) return assay_fail(error, ASSAY_ERR_MEMORY, "session: out of memory");
  m->config = *config;
  m->limits = *limits;
  m->device = found;
  m->multiprocessors = info.multiprocessors;
  m->memory_rate = info.memory_rate;
  m->layer = -1;
  m->stage = "";
  m->stream = found->stream();
  m->weight = calloc((size_t)assay_model_weight_count(config), sizeof *m->weight);
  m->step.written = calloc((size_t)(limits->num_blocks * config->block_size), sizeof *m->step.written);
  m->step.stated = calloc((size_t)limits->num_states + 1, sizeof *m->step.stated);
  m->step.request = calloc((size_t)limits->max_tokens, sizeof *m->step.request);
  m->step.position = calloc((size_t)limits->max_tokens, sizeof *m->step.position);
  m->first = calloc((size_t)config->experts + 1, sizeof *m->first);
  if (m->weight == NULL || m->step.written == NULL || m->step.stated == NULL || m->step.request == NULL ||
      m->step.position == NULL || m->first == NULL)
    status = assay_fail(error, ASSAY_ERR_MEMORY, "session: out of memory");
  if (status == ASSAY_OK) status = pass_choices_open(m, error);
  if (status == ASSAY_OK) status = pass_names_open(m, error);
  if (status == ASSAY_OK) status = fill(m, weights, error);
  if (status == ASSAY_OK)
    *made = m;
  else
    pass_close(m);
  return status;
}

/* ---- one step ---------------------------------------------------------------------------------------- */

void pass_resize(pass *m, int64_t N, int64_t requests, int64_t count) {
  assay_tensor *const by_token[] = {&m->x,
                                    &m->h,
                                    &m->y,
                                    &m->z,
                                    &m->qkv,
                                    &m->out,
                                    &m->up,
                                    &m->gated,
                                    &m->ids,
                                    &m->positions,
                                    &m->slots,
                                    &m->router,
                                    &m->chosen,
                                    &m->shares,
                                    &m->place,
                                    &m->gates,
                                    &m->delta_in,
                                    &m->conv,
                                    &m->delta_out,
                                    &m->decay,
                                    &m->share,
                                    &m->shared_up,
                                    &m->shared_gated,
                                    &m->shared,
                                    &m->weighted,
                                    &m->shared_gate,
                                    &m->shared_weight,
                                    &m->shared_rest,
                                    &m->row_number,
                                    &m->q_a,
                                    &m->kv_a,
                                    &m->latent,
                                    &m->pe,
                                    &m->wide,
                                    &m->mixed};
  assay_tensor *const by_choice[] = {&m->order,     &m->experts,      &m->routed,
                                     &m->routed_up, &m->routed_gated, &m->routed_out};
  for (size_t i = 0; i < sizeof by_token / sizeof by_token[0]; ++i)
    by_token[i]->shape[0] = N;
  m->squares.shape[0] = N;
  for (size_t i = 0; i < sizeof by_choice / sizeof by_choice[0]; ++i)
    by_choice[i]->shape[0] = N * m->config.experts_used;
  m->logits.shape[0] = m->rows.shape[0] = count;
  m->kv_len.shape[0] = requests;
  m->cu_q.shape[0] = requests + 1;
  m->in_turn.shape[0] = 2 * N;
  m->head_number.shape[0] = N * m->config.heads;
  m->state_slots.shape[0] = m->fresh.shape[0] = requests;
}

void pass_forward(pass *m) {
  if (m->config.arch == ASSAY_GPT2) pass_gpt2(m);
  if (m->config.arch == ASSAY_QWEN3) pass_qwen3(m);
  if (m->config.arch == ASSAY_ASYNCT) pass_asynct(m);
  if (m->config.arch == ASSAY_QWEN3_MOE) pass_qwen3_moe(m);
  if (m->config.arch == ASSAY_GPT_OSS) pass_gpt_oss(m);
  if (m->config.arch == ASSAY_GEMMA2) pass_gemma2(m);
  if (m->config.arch == ASSAY_QWEN3_NEXT) pass_qwen3_next(m);
  if (m->config.arch == ASSAY_DEEPSEEK_V3) pass_deepseek_v3(m);
}

/* Uploads one tensor. The upload is complete before the next one uses m->host. */
static void put(pass *m, const assay_tensor *to, const void *from, int64_t bytes) {
  if (m->status != ASSAY_OK || bytes == 0) return;
  pass_fail(m, m->device->upload(to->data, from, bytes, m->error));
  if (m->status == ASSAY_OK) pass_fail(m, m->device->synchronize(m->error));
}

static void put_table(pass *m) {
  const assay_model_batch *b = m->batch;
  int32_t *table = m->host;
  int64_t width = 1;
  for (int64_t i = 0; i < b->requests; ++i)
    width = larger(width, (b->kv_len[i] + m->config.block_size - 1) / m->config.block_size);
  for (int64_t i = 0; i < b->requests; ++i)
    for (int64_t j = 0; j < width; ++j)
      table[i * width + j] = j < b->max_blocks ? b->block_table[i * b->max_blocks + j] : -1;
  m->table.shape[0] = b->requests;
  m->table.shape[1] = m->table.stride[0] = width;
  put(m, &m->table, table, b->requests * width * (int64_t)sizeof *table);
}

/* Uploads which state each request has, and which begin anew. */
static void put_states(pass *m) {
  const assay_model_batch *b = m->batch;
  const int64_t four = (int64_t)sizeof(int32_t);
  int32_t *const number = m->host;
  int64_t *const pairs = m->host;
  for (int64_t i = 0; i < b->requests; ++i)
    number[i] = b->kv_len[i] > 0 && b->cu_q[i + 1] > b->cu_q[i] ? b->states[i] : -1;
  put(m, &m->state_slots, number, b->requests * four);
  for (int64_t i = 0; i < b->requests; ++i)
    number[i] = b->kv_len[i] <= b->cu_q[i + 1] - b->cu_q[i];
  put(m, &m->fresh, number, b->requests * four);
  m->state_copies.shape[0] = b->state_copy_count;
  for (int64_t i = 0; i < 2 * b->state_copy_count; ++i)
    pairs[i] = b->state_copies[i];
  put(m, &m->state_copies, pairs, 2 * b->state_copy_count * (int64_t)sizeof *pairs);
}

/* Cuts the step into runs, and uploads their lists. */
static void put_runs(pass *m) {
  const assay_model_batch *b = m->batch;
  const int64_t B = m->limits.max_requests, four = (int64_t)sizeof(int32_t);
  int32_t *const list = calloc(1, (size_t)((4 * B + m->run_blocks.shape[0]) * four));
  if (list == NULL) {
    pass_fail(m, assay_fail(m->error, ASSAY_ERR_MEMORY, "session: out of memory"));
    return;
  }
  const latent_batch step = {b->requests, b->cu_q, b->kv_len, b->block_table, b->max_blocks};
  const latent_lists lists = {list, list + 2 * B, list + 4 * B};
  const int64_t blocks = pass_expand_plan(m, &step, &lists);
  put(m, &m->run_cu_q, lists.cu_q, 2 * B * four);
  put(m, &m->run_cu_k, lists.cu_k, 2 * B * four);
  put(m, &m->run_blocks, lists.blocks, blocks * four);
  free(list);
}

static void put_batch(pass *m) {
  const assay_model_batch *b = m->batch;
  const int64_t N = b->cu_q[b->requests], four = (int64_t)sizeof(int32_t), eight = (int64_t)sizeof(int64_t);
  pass_resize(m, N, b->requests, b->logit_count);
  m->copies.shape[0] = b->copy_count;
  m->decode = N == b->requests;
  for (int64_t i = 0; i < b->requests && m->decode; ++i)
    m->decode = b->cu_q[i + 1] - b->cu_q[i] == 1;
  put(m, &m->ids, b->ids, N * four);
  int32_t *position = m->host;
  for (int64_t n = 0; n < N; ++n)
    position[n] = (int32_t)larger(m->step.position[n], 0);
  put(m, &m->positions, position, N * four);
  put(m, &m->slots, b->slots, N * eight);
  put(m, &m->kv_len, b->kv_len, b->requests * four);
  put(m, &m->cu_q, b->cu_q, (b->requests + 1) * four);
  put(m, &m->rows, b->logit_rows, b->logit_count * four);
  int64_t *copies = m->host;
  for (int64_t i = 0; i < 2 * b->copy_count; ++i)
    copies[i] = b->copies[i];
  put(m, &m->copies, copies, 2 * b->copy_count * eight);
  if (assay_model_has_states(&m->config)) put_states(m);
  put_table(m);
  if (m->expand_memory != NULL) put_runs(m);
  m->tails = !m->decode && pass_short(m, b->cu_q, b->requests);
  if (!m->tails) return;
  int32_t *const one = m->host;
  for (int64_t n = 0; n < N; ++n)
    one[n] = (int32_t)m->step.request[n];
  put(m, &m->tail_request, one, N * four);
  for (int64_t i = 0; i < b->requests; ++i)
    pass_tail_lengths(b->kv_len[i], b->cu_q[i + 1] - b->cu_q[i], one + b->cu_q[i]);
  put(m, &m->tail_len, one, N * four);
  pass_tails(m);
}

static void get_logits(pass *m, double *logits) {
  const int64_t count = m->batch->logit_count * m->config.vocab;
  if (m->status != ASSAY_OK) return;
  if (count > 0) pass_fail(m, m->device->download(m->host, m->logits.data, count * (int64_t)sizeof(float), m->error));
  if (m->status == ASSAY_OK) pass_fail(m, m->device->synchronize(m->error));
  if (m->status == ASSAY_OK) assay_load_f64_row(m->host, ASSAY_F32, 0, 1, count, logits);
}

static assay_status forward(assay_model_session *session, const assay_model_batch *batch, double *logits,
                            const assay_model_taps *taps, assay_error *error) {
  pass *m = (pass *)session;
  const assay_status status = model_step_check(&m->config, &m->limits, batch, &m->step, error);
  if (status != ASSAY_OK) return status;
  m->batch = batch;
  m->taps = taps;
  m->error = error;
  m->status = ASSAY_OK;
  m->layer = -1;
  m->waiting.post = m->waiting.residual = NULL;
  if (batch->cu_q[batch->requests] == 0 && batch->copy_count == 0 && batch->state_copy_count == 0) return ASSAY_OK;
  m->waiting.product = NULL;
  m->waiting.last = NULL;
  m->waiting.division = false;
  put_batch(m);
  pass_copy_blocks(m);
  if (assay_model_has_states(&m->config)) pass_copy_states(m);
  if (batch->cu_q[batch->requests] > 0) pass_forward(m);
  get_logits(m, logits);
  m->layer = -1;
  m->taps = NULL;
  return m->status;
}

/* ---- the two backends -------------------------------------------------------------------------------- */

static assay_status open_session(const char *device, const assay_model_config *config,
                                 const assay_model_weights *weights, const assay_model_limits *limits,
                                 assay_model_session **made, assay_error *error) {
  pass *m = NULL;
  const assay_status status = pass_open(device, config, weights, limits, &m, error);
  *made = (assay_model_session *)m;
  return status;
}

static assay_status open_simt(const assay_model_config *config, const assay_model_weights *weights,
                              const assay_model_limits *limits, assay_model_mode mode, assay_model_session **made,
                              assay_error *error) {
  (void)mode;
  return open_session("simt", config, weights, limits, made, error);
}

static assay_status open_cuda(const assay_model_config *config, const assay_model_weights *weights,
                              const assay_model_limits *limits, assay_model_mode mode, assay_model_session **made,
                              assay_error *error) {
  (void)mode;
  return open_session("cuda", config, weights, limits, made, error);
}

static void close_session(assay_model_session *session) {
  pass_close((pass *)session);
}

static assay_status set_options(assay_model_session *session, const assay_model_options *options, assay_error *error) {
  return pass_choices_set((pass *)session, options, error);
}

static assay_status check_forced(const assay_model_session *session, assay_error *error) {
  return pass_check_forced((const pass *)session, error);
}

static bool path_of(const assay_model_session *session, int32_t index, assay_model_path *path) {
  return pass_path((const pass *)session, index, path);
}

#define BACKEND(device)                                                                                                \
  {                                                                                                                    \
    .name = #device, .open = open_##device, .forward = forward, .close = close_session, .set_options = set_options,    \
    .path = path_of, .check_forced = check_forced                                                                      \
  }

const assay_model_backend *assay_model_simt(void) {
  static const assay_model_backend backend = BACKEND(simt);
  return &backend;
}

const assay_model_backend *assay_model_cuda(void) {
  static const assay_model_backend backend = BACKEND(cuda);
  return &backend;
}
