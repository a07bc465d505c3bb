/* latent_expand.c: latent attention over keys and values of every head, for requests with several new tokens. Their
 * entries are gathered from the pool, those of prefixes too:
 *
 *   entries = the blocks of the requests, one after the other   embedding, a block being a row of its table
 *   k_t     = (W_UK c_t, pe_t)                                  gemm, by weights that copy pe
 *   v_t     = W_UV c_t                                          gemm
 *   out     = sum_t p_t v_t                                     softmax_attention over contiguous rows
 *
 * Requests with one new token attend over entries (latent.c). A step is cut into runs of neighbouring requests that
 * attend in the same way. No run has more blocks than the longest request can have, and memory is taken for these.
 * Entries past a request's length become keys that no row sees, whatever they hold. Attention has values of a multiple
 * of 8 channels. Narrower ones are filled with zeros, and one product more takes the results apart. */
#include <stdlib.h>
#include <string.h>

#include "gpu/models/latent.h"

enum { EMBEDDING_MOST = 65536, SOFTMAX_HEADS = 256, SOFTMAX_CHANNELS = 8 };

static const pass_param no_params[] = {{NULL, 0}};

/* ---- weights and memory -------------------------------------------------------------------------------- */

/* Refuses a configuration that the operators of expanded attention do not have. */
static assay_status check(const assay_model_config *c, assay_error *error) {
  const int64_t most = EMBEDDING_MOST / LATENT_ENTRY;
  if (c->block_size > most)
    return assay_fail(error, ASSAY_ERR_INPUT, "block_size: found %lld beside mla_expand=on, allowed at most %lld",
                      (long long)c->block_size, (long long)most);
  if (c->heads > SOFTMAX_HEADS)
    return assay_fail(error, ASSAY_ERR_INPUT, "heads: found %lld beside mla_expand=on, allowed at most %d",
                      (long long)c->heads, SOFTMAX_HEADS);
  return ASSAY_OK;
}

/* Returns the channels of values in attention. */
static int64_t value_channels(const assay_model_config *c) {
  return (c->value_size + SOFTMAX_CHANNELS - 1) / SOFTMAX_CHANNELS * SOFTMAX_CHANNELS;
}

/* Returns rows [rows, width] at `*at`, and moves `*at` past them. With base NULL it only counts bytes. */
static assay_tensor place(const pass *m, unsigned char *base, int64_t *at, int64_t rows, int64_t width) {
  const assay_tensor t = {.data = base != NULL ? base + *at : NULL,
                          .dtype = m->config.act_dtype,
                          .rank = 2,
                          .shape = {rows, width},
                          .stride = {width, 1}};
  *at += (rows * width * assay_dtype_size(t.dtype) + 255) / 256 * 256;
  return t;
}

static int64_t larger(int64_t a, int64_t b) {
  return a > b ? a : b;
}

static int64_t lay_out(pass *m, unsigned char *base) {
  const assay_model_config *c = &m->config;
  const int64_t widest = (c->max_pos + c->block_size - 1) / c->block_size, pool = m->limits.num_blocks;
  const int64_t R = (widest < pool ? widest : pool) * c->block_size, V = value_channels(c);
  const int64_t filled = V > c->value_size, N = filled * m->limits.max_tokens;
  int64_t at = 0;
  m->unfold = place(m, base, &at, c->layers * c->heads * c->head_size, LATENT_ENTRY);
  m->entries = place(m, base, &at, R, LATENT_ENTRY);
  m->keys = place(m, base, &at, R, c->heads * c->head_size);
  m->values = place(m, base, &at, R, c->heads * V);
  m->unfold_v = place(m, base, &at, filled * c->layers * c->heads * V, LATENT_C);
  m->filled = place(m, base, &at, N, c->heads * V);
  m->narrow = place(m, base, &at, filled * c->value_size, V);
  const int64_t products = c->act_dtype == ASSAY_F32 ? larger(R, N * c->heads) : 0;
  m->one_group = place(m, base, &at, products, 1);
  m->one_group.dtype = ASSAY_I32; /* as wide as f32 */
  m->one_group.rank = 1;
  return at;
}

/* Moves the weights of a layer through the host. `make` writes `to` from `from`, for all heads. */
static assay_status remake(pass *m, const assay_tensor *from, int64_t from_count, const assay_tensor *to,
                           int64_t to_count,
                           void (*make)(const assay_model_config *, const unsigned char *, unsigned char *),
                           assay_error *error) {
  const int64_t size = assay_dtype_size(m->config.weight_dtype);
  const int64_t from_bytes = from_count * size, to_bytes = to_count * size;
  unsigned char *const host = calloc(1, (size_t)(from_bytes + to_bytes));
  assay_status status = host != NULL ? ASSAY_OK : assay_fail(error, ASSAY_ERR_MEMORY, "session: out of memory");
  for (int64_t l = 0; l < m->config.layers && status == ASSAY_OK; ++l) {
    status = m->device->download(host, (unsigned char *)from->data + l * from_bytes, from_bytes, error);
    if (status == ASSAY_OK) status = m->device->synchronize(error);
    if (status == ASSAY_OK) make(&m->config, host, host + from_bytes);
    if (status == ASSAY_OK)
      status = m->device->upload((unsigned char *)to->data + l * to_bytes, host + from_bytes, to_bytes, error);
    if (status == ASSAY_OK) status = m->device->synchronize(error);
  }
  free(host);
  return status;
}

/* Makes the weights of keys [H D, 576] from those that absorb [H, 576, D]: each head is transposed. */
static void make_keys(const assay_model_config *c, const unsigned char *from, unsigned char *to) {
  const assay_dtype type = c->weight_dtype;
  const int64_t D = c->head_size;
  for (int64_t h = 0; h < c->heads; ++h)
    for (int64_t e = 0; e < LATENT_ENTRY; ++e)
      for (int64_t d = 0; d < D; ++d)
        assay_store_f64(to, type, (h * D + d) * LATENT_ENTRY + e,
                        assay_load_f64(from, type, (h * LATENT_ENTRY + e) * D + d));
}

/* Makes the weights of filled values [H, channels, 512] from those of values [H, V, 512]. */
static void make_values(const assay_model_config *c, const unsigned char *from, unsigned char *to) {
  const int64_t row = LATENT_C * assay_dtype_size(c->weight_dtype);
  const int64_t channels = value_channels(c);
  for (int64_t h = 0; h < c->heads; ++h)
    memcpy(to + h * channels * row, from + h * c->value_size * row, (size_t)(c->value_size * row));
}

static assay_status upload_zeros(pass *m, const assay_tensor *to, assay_error *error) {
  const int64_t bytes = to->shape[0] * (int64_t)sizeof(int32_t);
  void *const zeros = calloc(1, (size_t)bytes + 1);
  assay_status status = zeros != NULL ? ASSAY_OK : assay_fail(error, ASSAY_ERR_MEMORY, "session: out of memory");
  if (status == ASSAY_OK && bytes > 0) status = m->device->upload(to->data, zeros, bytes, error);
  if (status == ASSAY_OK) status = m->device->synchronize(error);
  free(zeros);
  return status;
}

static assay_status make_weights(pass *m, assay_error *error) {
  const assay_model_config *c = &m->config;
  const int64_t absorb = c->heads * LATENT_ENTRY * c->head_size, expand = c->heads * c->value_size * LATENT_C;
  const int64_t V = value_channels(c), bytes = c->value_size * V * assay_dtype_size(c->weight_dtype);
  assay_status status = upload_zeros(m, &m->one_group, error);
  if (status == ASSAY_OK) status = remake(m, &m->absorb, absorb, &m->unfold, absorb, make_keys, error);
  if (V == c->value_size || status != ASSAY_OK) return status;
  status = remake(m, &m->expand, expand, &m->unfold_v, c->heads * V * LATENT_C, make_values, error);
  void *const one = calloc(1, (size_t)bytes);
  if (one == NULL) return assay_fail(error, ASSAY_ERR_MEMORY, "session: out of memory");
  for (int64_t v = 0; v < c->value_size; ++v)
    assay_store_f64(one, c->weight_dtype, v * V + v, 1);
  if (status == ASSAY_OK) status = m->device->upload(m->narrow.data, one, bytes, error);
  if (status == ASSAY_OK) status = m->device->synchronize(error);
  free(one);
  return status;
}

void pass_expand_close(pass *m) {
  if (m->expand_memory != NULL) m->device->release(m->expand_memory);
  free(m->run);
  m->expand_memory = NULL;
  m->run = NULL;
  m->runs = 0;
}

assay_status pass_expand_open(pass *m, assay_error *error) {
  pass_switch *const form = &m->choices.form[PASS_MLA_EXPAND];
  assay_error why = {""};
  pass_expand_close(m);
  if (*form == PASS_OFF || m->config.arch != ASSAY_DEEPSEEK_V3) return ASSAY_OK;
  if (*form == PASS_AUTO && check(&m->config, &why) != ASSAY_OK) {
    *form = PASS_OFF;
    return ASSAY_OK;
  }
  assay_status status = check(&m->config, error);
  if (status == ASSAY_OK) status = m->device->alloc(lay_out(m, NULL), &m->expand_memory, error);
  if (status != ASSAY_OK) return status;
  (void)lay_out(m, m->expand_memory);
  m->run = calloc((size_t)m->limits.max_requests, sizeof *m->run);
  if (m->run == NULL) return assay_fail(error, ASSAY_ERR_MEMORY, "session: out of memory");
  return make_weights(m, error);
}

/* ---- runs ---------------------------------------------------------------------------------------------- */

static bool expands(const pass *m, int64_t tokens, int64_t length) {
  const bool always = m->choices.form[PASS_MLA_EXPAND] == PASS_ON;
  return always ? tokens > 1 : assay_model_expands(&m->config, tokens, length);
}

int64_t pass_expand_plan(pass *m, const latent_batch *b, const latent_lists *to) {
  const int64_t size = m->config.block_size, most = m->entries.shape[0] / size;
  int64_t at = 0, block = 0;
  m->runs = 0;
  for (int64_t i = 0; i < b->requests; ++i) {
    const int64_t tokens = b->cu_q[i + 1] - b->cu_q[i], length = b->kv_len[i];
    const int64_t blocks = expands(m, tokens, length) ? (length + size - 1) / size : 0;
    latent_run *r = m->runs > 0 ? &m->run[m->runs - 1] : NULL;
    if (r == NULL || (blocks > 0) != (r->blocks > 0) || r->blocks + blocks > most) {
      r = &m->run[m->runs++];
      *r = (latent_run){.request = i, .row = b->cu_q[i], .at = at, .block = block};
      to->cu_q[at] = to->cu_k[at] = 0;
      ++at;
    }
    for (int64_t j = 0; j < blocks; ++j)
      to->blocks[block++] = b->table[i * b->width + j];
    ++r->requests;
    r->rows += tokens;
    r->blocks += blocks;
    to->cu_q[at] = (int32_t)r->rows;
    to->cu_k[at++] = (int32_t)(r->blocks * size);
  }
  return block;
}

/* ---- the calls ----------------------------------------------------------------------------------------- */

/* Copies the blocks of a run. */
static void gather(pass *m, const latent_run *r, const assay_tensor *pool, const assay_tensor *entries) {
  const int64_t width = m->config.block_size * LATENT_ENTRY;
  assay_tensor blocks = *pool, to = *entries;
  blocks.rank = 2;
  blocks.shape[1] = to.shape[1] = to.stride[0] = width;
  blocks.stride[1] = 1;
  to.shape[0] = r->blocks;
  const pass_arg args[] = {
      {"table", blocks}, {"ids", latent_rows(&m->run_blocks, r->block, r->blocks)}, {"y", to}, {.name = NULL}};
  m->stage = "attn.gather";
  pass_call(m, "embedding", args, no_params);
}

/* Computes c = a b^T. In f32 it is one group of grouped_gemm, whose variant there adds in lanes, as the absorbed form's
 * products do. gemm's f32 tiles add one term after the other, and this error goes through the scores. */
static void product(pass *m, const char *stage, const assay_tensor *a, const assay_tensor *b, const assay_tensor *c) {
  const bool grouped = a->dtype == ASSAY_F32;
  assay_tensor weights = *b;
  if (grouped)
    weights = (assay_tensor){.data = b->data,
                             .dtype = b->dtype,
                             .rank = 3,
                             .shape = {1, b->shape[0], b->shape[1]},
                             .stride = {b->shape[0] * b->stride[0], b->stride[0], 1}};
  const assay_tensor group = grouped ? latent_rows(&m->one_group, 0, a->shape[0]) : (assay_tensor){.data = NULL};
  const pass_arg args[] = {{"a", *a}, {"b", weights}, {"c", *c}, {grouped ? "group" : NULL, group}, {.name = NULL}};
  m->stage = stage;
  pass_call(m, grouped ? "grouped_gemm" : "gemm", args, no_params);
}

/* Returns rows [R, H width] as a pool of blocks of one token, [R, 1, H, width]. */
static assay_tensor as_pool(const assay_tensor *rows, int64_t heads) {
  const int64_t width = rows->shape[1] / heads;
  assay_tensor pool = *rows;
  pool.rank = 4;
  pool.shape[1] = 1;
  pool.shape[2] = heads;
  pool.shape[3] = pool.stride[2] = width;
  pool.stride[1] = rows->stride[0];
  pool.stride[3] = 1;
  return pool;
}

/* Returns this layer's weights of values, [H V, 512]. */
static assay_tensor value_weights(const pass *m, int64_t V) {
  const int64_t rows = m->config.heads * V;
  const bool filled = V > m->config.value_size;
  assay_tensor w = filled ? m->unfold_v : m->expand;
  w.stride[0] = w.shape[1] = LATENT_C;
  return latent_rows(&w, m->layer * rows, rows);
}

void pass_expand_attend(pass *m, const latent_run *r, const assay_tensor *pool, const assay_tensor *q,
                        const assay_tensor *out) {
  const assay_model_config *c = &m->config;
  const int64_t H = c->heads, D = c->head_size, V = value_channels(c), R = r->blocks * c->block_size;
  const assay_tensor entries = latent_rows(&m->entries, 0, R), latent = latent_columns(&entries, 0, LATENT_C);
  const assay_tensor keys = latent_rows(&m->keys, 0, R), values = latent_rows(&m->values, 0, R);
  const assay_tensor w_k = latent_rows(&m->unfold, m->layer * H * D, H * D), w_v = value_weights(m, V);
  const bool filled = V > c->value_size;
  const assay_tensor to = filled ? latent_rows(&m->filled, 0, r->rows) : *out;
  gather(m, r, pool, &entries);
  product(m, "attn.keys", &entries, &w_k, &keys);
  product(m, "attn.values", &latent, &w_v, &values);
  const pass_arg args[] = {{"q", latent_heads(q, 0, H, D)},
                           {"k_cache", as_pool(&keys, H)},
                           {"v_cache", as_pool(&values, H)},
                           {"kv_len", latent_rows(&m->kv_len, r->request, r->requests)},
                           {"cu_q", latent_rows(&m->run_cu_q, r->at, r->requests + 1)},
                           {"cu_k", latent_rows(&m->run_cu_k, r->at, r->requests + 1)},
                           {"out", latent_heads(&to, 0, H, V)},
                           {.name = NULL}};
  const pass_param scale[] = {{"scale", latent_scale(m)}, {NULL, 0}};
  m->stage = "attn.out";
  pass_call(m, "softmax_attention", args, scale);
  if (!filled) return;
  const assay_tensor wide = latent_by_head(&to, H), narrow = latent_by_head(out, H);
  product(m, "attn.narrow", &wide, &m->narrow, &narrow);
}
