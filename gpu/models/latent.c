/* latent.c: the calls of attention over a latent cache. The pool has one entry for each token: c, which is
 * normed, and the rotated pe. Rows take the absorbed form (ref/models/latent.c):
 *
 *   q'  = (q_P W_UK, q_R)     grouped_gemm, the group of row (n, h) being h
 *   u   = sum_t p_t c_t       mla_attention
 *   out = W_UV u              grouped_gemm
 *
 * With the form mla_expand, requests with several new tokens attend over keys and values of every head instead
 * (latent_expand.c). The operators have entries of 512 + 64 channels. Narrower ones are filled with zeros, which add
 * nothing to a score. The rows of W_UK and W_UV lie in kv_b head by head; the groups' weights are made from them when
 * the session opens. */
#include <stdlib.h>
#include <string.h>

#include "gpu/models/latent.h"

static const pass_param no_params[] = {{NULL, 0}};
/* Both inner norms have an eps of their own, whatever the configuration's is. */
static const pass_param inner_eps[] = {{"eps", 1e-6}, {NULL, 0}};

latent_shape pass_latent_shape(const assay_model_config *c) {
  return (latent_shape){.layers = c->layers + c->layers % 2,
                        .entry = LATENT_ENTRY,
                        .c = LATENT_C,
                        .pe = LATENT_PE,
                        .absorb = c->heads * LATENT_ENTRY * c->head_size,
                        .expand = c->heads * c->value_size * LATENT_C};
}

assay_status pass_latent_check(const assay_model_config *c, assay_error *error) {
  if (c->kv_rank > LATENT_C)
    return assay_fail(error, ASSAY_ERR_UNSUPPORTED, "kv_rank: found %lld, allowed on a device: at most %d",
                      (long long)c->kv_rank, LATENT_C);
  if (c->rotated > LATENT_PE)
    return assay_fail(error, ASSAY_ERR_UNSUPPORTED, "rotated: found %lld, allowed on a device: at most %d",
                      (long long)c->rotated, LATENT_PE);
  if (c->kv_rank + c->rotated < c->head_size)
    return assay_fail(error, ASSAY_ERR_UNSUPPORTED,
                      "head_size: found %lld, allowed on a device: at most kv_rank + rotated, %lld",
                      (long long)c->head_size, (long long)(c->kv_rank + c->rotated));
  return ASSAY_OK;
}

/* ---- weights ------------------------------------------------------------------------------------------- */

/* Writes the weights of one head: absorb [576, D], whose last rows copy pe, and expand [V, 512]. */
static void make_head(const assay_model_config *c, const assay_tensor *kv_b, int64_t head, void *absorb, void *expand) {
  const int64_t D = c->head_size, R = c->rotated, P = D - R, K = c->kv_rank, V = c->value_size;
  const assay_dtype type = kv_b->dtype;
  double row[LATENT_C];
  for (int64_t i = 0; i < P; ++i) {
    assay_load_f64_row(kv_b->data, type, (head * (P + V) + i) * K, 1, K, row);
    assay_store_f64_row(absorb, type, head * LATENT_ENTRY * D + i, D, K, row);
  }
  for (int64_t i = 0; i < R; ++i)
    assay_store_f64(absorb, type, (head * LATENT_ENTRY + LATENT_C + i) * D + P + i, 1);
  for (int64_t v = 0; v < V; ++v) {
    assay_load_f64_row(kv_b->data, type, (head * (P + V) + P + v) * K, 1, K, row);
    assay_store_f64_row(expand, type, (head * V + v) * LATENT_C, 1, K, row);
  }
}

static assay_status put(pass *m, const assay_tensor *to, int64_t first, const void *from, int64_t count,
                        assay_error *error) {
  const int64_t size = assay_dtype_size(to->dtype);
  const assay_status status = m->device->upload((unsigned char *)to->data + first * size, from, count * size, error);
  return status == ASSAY_OK ? m->device->synchronize(error) : status;
}

/* Uploads zeros where narrow entries are never written, the matrix that widens pe, and the head of each row. */
static assay_status put_constants(pass *m, assay_error *error) {
  const assay_model_config *c = &m->config;
  const int64_t N = m->limits.max_tokens, rows = N * c->heads;
  int32_t *const head = m->host;
  memset(m->host, 0, (size_t)(N * LATENT_C * assay_dtype_size(c->act_dtype)));
  assay_status status = put(m, &m->latent, 0, m->host, N * LATENT_C, error);
  for (int64_t i = 0; i < c->rotated; ++i)
    assay_store_f64(m->host, c->act_dtype, i * c->rotated + i, 1);
  if (status == ASSAY_OK) status = put(m, &m->widen, 0, m->host, LATENT_PE * c->rotated, error);
  for (int64_t i = 0; i < rows; ++i)
    head[i] = (int32_t)(i % c->heads);
  return status == ASSAY_OK ? put(m, &m->head_number, 0, head, rows, error) : status;
}

assay_status pass_latent_open(pass *m, const assay_model_weights *weights, assay_error *error) {
  const assay_model_config *c = &m->config;
  const latent_shape s = pass_latent_shape(c);
  const int64_t size = assay_dtype_size(c->weight_dtype);
  void *const absorb = calloc((size_t)s.absorb, (size_t)size), *const expand = calloc((size_t)s.expand, (size_t)size);
  assay_status status = absorb != NULL && expand != NULL
                            ? put_constants(m, error)
                            : assay_fail(error, ASSAY_ERR_MEMORY, "session: out of memory");
  for (int64_t l = 0; l < c->layers && status == ASSAY_OK; ++l) {
    char name[ASSAY_MODEL_NAME];
    (void)snprintf(name, sizeof name, "layers.%d.attn.kv_b.w", (int)l);
    const assay_tensor *kv_b = &weights->tensor[assay_model_weight_index(c, name)];
    for (int64_t head = 0; head < c->heads; ++head)
      make_head(c, kv_b, head, absorb, expand);
    status = put(m, &m->absorb, l * s.absorb, absorb, s.absorb, error);
    if (status == ASSAY_OK) status = put(m, &m->expand, l * s.expand, expand, s.expand, error);
  }
  free(absorb);
  free(expand);
  return status;
}

/* ---- views --------------------------------------------------------------------------------------------- */

/* Returns this layer's weights of all heads, [H, out, in]. */
static assay_tensor weights_of(const pass *m, const assay_tensor *all, int64_t out, int64_t in) {
  const int64_t H = m->config.heads;
  return (assay_tensor){.data = (unsigned char *)all->data + m->layer * H * out * in * assay_dtype_size(all->dtype),
                        .dtype = all->dtype,
                        .rank = 3,
                        .shape = {H, out, in},
                        .stride = {out * in, in, 1}};
}

/* Returns this layer's pool of entries, [num_blocks, block_size, 576]. */
static assay_tensor pool_of(const pass *m) {
  assay_tensor pool = m->k_pool;
  pool.data = (unsigned char *)pool.data + m->layer * pool.stride[0] * assay_dtype_size(pool.dtype);
  pool.rank = 3;
  pool.shape[0] = m->k_pool.shape[1];
  pool.shape[1] = m->k_pool.shape[2];
  pool.shape[2] = pool.stride[1] = LATENT_ENTRY;
  pool.stride[0] = m->k_pool.stride[1];
  pool.stride[2] = 1;
  return pool;
}

/* ---- the calls ----------------------------------------------------------------------------------------- */

static void inner_norm(pass *m, const char *name, const assay_tensor *x, const assay_tensor *y) {
  const pass_arg args[] = {{"x", *x}, {"g", pass_weight(m, name, "g")}, {"y", *y}, {.name = NULL}};
  m->stage = name;
  pass_call(m, "rms_norm", args, inner_eps);
  pass_take(m, name, y, 0, y->shape[1]);
}

/* Rotates the last R channels of every head of q, and pe. The operator rotates the first channels of a head, and leaves
 * the others: its heads therefore begin where ours have R channels left. Its one head of k goes on into the next row.
 */
static void rotate(pass *m) {
  const assay_model_config *c = &m->config;
  const int64_t D = c->head_size;
  const pass_arg args[] = {{"q", latent_heads(&m->qkv, D - c->rotated, c->heads, D)},
                           {"k", latent_heads(&m->kv_a, c->kv_rank, 1, D)},
                           {"cos", m->cosine},
                           {"sin", m->sine},
                           {"positions", m->positions},
                           {.name = NULL}};
  const pass_param style[] = {{"style", c->rope_style == ASSAY_ROPE_INTERLEAVED}, {NULL, 0}};
  m->stage = "attn.rope";
  pass_call(m, "rope", args, style);
  pass_take(m, "attn.q", &m->qkv, 0, m->qkv.shape[1]);
  pass_take(m, "attn.k_pe", &m->kv_a, c->kv_rank, c->rotated);
}

/* Returns the rotated channels of the new entries, 64 wide. */
static assay_tensor wide_pe(pass *m) {
  const assay_tensor pe = latent_columns(&m->kv_a, m->config.kv_rank, m->config.rotated);
  if (m->config.rotated == LATENT_PE) return pe;
  const pass_arg args[] = {{"a", pe}, {"b", m->widen}, {"c", m->pe}, {.name = NULL}};
  m->stage = "attn.widen";
  pass_call(m, "gemm", args, no_params);
  return m->pe;
}

void pass_latent_heads(pass *m) {
  const assay_model_config *c = &m->config;
  const bool two = c->q_rank > 0;
  if (two) {
    pass_linear(m, "attn.q_a", &m->h, &m->q_a, true);
    inner_norm(m, "attn.q_norm", &m->q_a, &m->q_a);
  }
  pass_linear(m, "attn.q_b", two ? &m->q_a : &m->h, &m->qkv, true);
  pass_linear(m, "attn.kv_a", &m->h, &m->kv_a, true);
  const assay_tensor from = latent_columns(&m->kv_a, 0, c->kv_rank), to = latent_columns(&m->latent, 0, c->kv_rank);
  inner_norm(m, "attn.kv_norm", &from, &to);
  rotate(m);
  const pass_arg args[] = {
      {"c", m->latent}, {"pe", wide_pe(m)}, {"slots", m->slots}, {"cache", pool_of(m)}, {.name = NULL}};
  m->stage = "attn.append";
  pass_call(m, "mla_append", args, no_params);
}

/* Multiplies each head's row by its head's weights. */
static void by_heads(pass *m, const char *stage, const assay_tensor *x, const assay_tensor *w, const assay_tensor *y) {
  const int64_t H = m->config.heads;
  const assay_tensor a = latent_by_head(x, H), c = latent_by_head(y, H),
                     group = latent_rows(&m->head_number, 0, a.shape[0]);
  const pass_arg args[] = {
      {"a", a}, {"b", weights_of(m, w, c.shape[1], a.shape[1])}, {"group", group}, {"c", c}, {.name = NULL}};
  m->stage = stage;
  pass_call(m, "grouped_gemm", args, no_params);
}

/* Attends over entries with requests `first`, first + 1, ..., to which the rows of q belong. */
static void attend(pass *m, int64_t first, int64_t requests, const assay_tensor *cu_q, const assay_tensor *q,
                   const assay_tensor *out) {
  const int64_t H = m->config.heads, N = q->shape[0];
  const assay_tensor wide = latent_rows(&m->wide, 0, N), mixed = latent_rows(&m->mixed, 0, N);
  by_heads(m, "attn.absorb", q, &m->absorb, &wide);
  const pass_arg args[] = {{"q", latent_heads(&wide, 0, H, LATENT_ENTRY)},
                           {"cache", pool_of(m)},
                           {"cu_q", *cu_q},
                           {"table", latent_rows(&m->table, first, requests)},
                           {"kv_len", latent_rows(&m->kv_len, first, requests)},
                           {"out", latent_heads(&mixed, 0, H, LATENT_C)},
                           {.name = NULL}};
  const pass_param scale[] = {{"scale", latent_scale(m)}, {NULL, 0}};
  m->stage = "attn.latent";
  pass_call(m, "mla_attention", args, scale);
  by_heads(m, "attn.out", &mixed, &m->expand, out);
}

void pass_latent_attention(pass *m, const assay_tensor *out) {
  const assay_tensor pool = pool_of(m);
  if (m->runs == 0) attend(m, 0, m->kv_len.shape[0], &m->cu_q, &m->qkv, out);
  for (int64_t i = 0; i < m->runs; ++i) {
    const latent_run *r = &m->run[i];
    const assay_tensor q = latent_rows(&m->qkv, r->row, r->rows), to = latent_rows(out, r->row, r->rows);
    const assay_tensor cu_q = latent_rows(&m->run_cu_q, r->at, r->requests + 1);
    if (r->rows == 0) continue;
    if (r->blocks > 0)
      pass_expand_attend(m, r, &pool, &q, &to);
    else
      attend(m, r->request, r->requests, &cu_q, &q, &to);
  }
  pass_take(m, "attn.out", out, 0, out->shape[1]);
}

/* Copies whole entries of all layers. copy_blocks takes a pool of keys and one of values, and here each is half of the
 * layers. An entry is 9 heads of 64 channels. */
void pass_copy_entries(pass *m) {
  assay_tensor half = m->k_pool;
  half.shape[0] /= 2;
  half.shape[3] = LATENT_ENTRY / LATENT_PE;
  half.shape[4] = half.stride[3] = LATENT_PE;
  assay_tensor other = half;
  other.data = (unsigned char *)half.data + half.shape[0] * half.stride[0] * assay_dtype_size(half.dtype);
  const pass_arg args[] = {{"k_cache", half}, {"v_cache", other}, {"pairs", m->copies}, {.name = NULL}};
  m->stage = "copies";
  pass_call(m, "copy_blocks", args, no_params);
}
