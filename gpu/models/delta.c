/* delta.c: the calls of a layer with the gated delta rule, its pools of states, and the gates of qwen3_next. Rows of
 * delta.in are all of q, k, v, z, b and a, in this order; every part is a view of them.
 *
 * A pool has one slot for each layer with states and each state. copy_blocks moves slots: it takes them for blocks of
 * block_size tokens of H_kv heads of D channels. A slot is therefore padded until it is a product of three such
 * numbers. One half of the layers stands for its keys and the other half for its values. */
#include <stdlib.h>
#include <string.h>

#include "core/dtype.h"
#include "gpu/models/pass.h"

static const pass_param no_params[] = {{NULL, 0}};

/* Returns columns first to first + count - 1 of rows. */
static assay_tensor columns(const assay_tensor *rows, int64_t first, int64_t count) {
  assay_tensor part = *rows;
  part.data = (unsigned char *)rows->data + first * assay_dtype_size(rows->dtype);
  part.shape[1] = count;
  return part;
}

/* Returns the same as heads of `width` channels. */
static assay_tensor in_heads(const assay_tensor *rows, int64_t first, int64_t heads, int64_t width) {
  assay_tensor part = columns(rows, first, heads * width);
  part.rank = 3;
  part.shape[1] = heads;
  part.shape[2] = width;
  part.stride[1] = width;
  part.stride[2] = 1;
  return part;
}

/* ---- pools of states --------------------------------------------------------------------------------- */

/* How copy_blocks sees a slot. */
typedef struct block_shape {
  int64_t tokens, heads, channels;
} block_shape;

static int64_t parts_of(int64_t count, int64_t most) {
  return count < most ? count : most;
}

/* Returns the shape of a block that holds `elements`, with as few more as can be. */
static block_shape shape_of(int64_t elements) {
  const int64_t eights = (elements + 63) / 64, channels = parts_of(eights, 32);
  const int64_t left = (eights + channels - 1) / channels, tokens = parts_of(left, 32);
  return (block_shape){8 * tokens, (left + tokens - 1) / tokens, 8 * channels};
}

static int64_t padded(int64_t elements) {
  const block_shape s = shape_of(elements);
  return s.tokens * s.heads * s.channels;
}

static int64_t conv_width(const assay_model_config *c) {
  return 2 * c->linear_key_heads * c->linear_key_size + c->linear_value_heads * c->linear_value_size;
}

state_shape pass_state_shape(const assay_model_config *c) {
  int64_t layers = 0;
  for (int64_t l = 0; l < c->layers; ++l)
    layers += assay_model_is_linear(c, l);
  return (state_shape){layers + layers % 2, padded((c->conv_taps - 1) * conv_width(c)),
                       padded(c->linear_value_heads * c->linear_key_size * c->linear_value_size)};
}

/* Returns this layer's slots of a pool, as a tensor of the given axes. */
static assay_tensor slots_of(const pass *m, const assay_tensor *pool, int32_t rank, int64_t a, int64_t b, int64_t c) {
  const int64_t shape[3] = {a, b, c};
  int64_t before = 0, stride = 1;
  for (int64_t l = 0; l < m->layer; ++l)
    before += assay_model_is_linear(&m->config, l);
  assay_tensor t = {.dtype = pool->dtype, .rank = rank};
  t.data = (unsigned char *)pool->data + before * pool->stride[0] * assay_dtype_size(pool->dtype);
  for (int32_t axis = rank - 1; axis > 0; --axis) {
    t.shape[axis] = shape[axis - 1];
    t.stride[axis] = stride;
    stride *= t.shape[axis];
  }
  t.shape[0] = pool->shape[1];
  t.stride[0] = pool->stride[1];
  return t;
}

/* Copies slots of all layers of one pool. */
static void copy_pool(pass *m, const assay_tensor *pool) {
  const block_shape s = shape_of(pool->shape[2]);
  assay_tensor half = {.data = pool->data, .dtype = pool->dtype, .rank = 5};
  const int64_t shape[5] = {pool->shape[0] / 2, pool->shape[1], s.tokens, s.heads, s.channels};
  int64_t stride = 1;
  for (int32_t axis = 4; axis >= 0; --axis) {
    half.shape[axis] = shape[axis];
    half.stride[axis] = stride;
    stride *= shape[axis];
  }
  assay_tensor other = half;
  other.data = (unsigned char *)pool->data + stride * assay_dtype_size(pool->dtype);
  const pass_arg args[] = {{"k_cache", half}, {"v_cache", other}, {"pairs", m->state_copies}, {.name = NULL}};
  pass_call(m, "copy_blocks", args, no_params);
}

void pass_copy_states(pass *m) {
  if (m->state_copies.shape[0] == 0 || m->conv_pool.shape[0] == 0) return;
  m->stage = "state_copies";
  copy_pool(m, &m->conv_pool);
  copy_pool(m, &m->matrix_pool);
}

/* ---- weights of norms of heads ----------------------------------------------------------------------- */

int64_t pass_tiled_width(const assay_model_config *c) {
  const int64_t linear = c->linear_value_heads * c->linear_value_size, full = (c->heads + c->kv_heads) * c->head_size;
  return linear > full ? linear : full;
}

/* Writes a weight `times` times. Returns the place after it. */
static unsigned char *repeat(const pass *m, const assay_model_weights *weights, int64_t layer, const char *name,
                             int64_t times, unsigned char *to) {
  char full[ASSAY_MODEL_NAME];
  (void)snprintf(full, sizeof full, "layers.%d.%s", (int)layer, name);
  const assay_tensor *g = &weights->tensor[assay_model_weight_index(&m->config, full)];
  const size_t bytes = (size_t)(g->shape[0] * assay_dtype_size(g->dtype));
  for (int64_t i = 0; i < times; ++i, to += bytes)
    memcpy(to, g->data, bytes);
  return to;
}

assay_status pass_tile_norms(pass *m, const assay_model_weights *weights, assay_error *error) {
  const assay_model_config *c = &m->config;
  const int64_t bytes = m->tiled.shape[1] * assay_dtype_size(m->tiled.dtype);
  unsigned char *row = calloc(1, (size_t)bytes);
  assay_status status = row != NULL ? ASSAY_OK : assay_fail(error, ASSAY_ERR_MEMORY, "session: out of memory");
  for (int64_t l = 0; l < c->layers && status == ASSAY_OK; ++l) {
    if (assay_model_is_linear(c, l))
      (void)repeat(m, weights, l, "delta.norm.g", c->linear_value_heads, row);
    else
      (void)repeat(m, weights, l, "attn.k_norm.g", c->kv_heads, repeat(m, weights, l, "attn.q_norm.g", c->heads, row));
    status = m->device->upload((unsigned char *)m->tiled.data + l * bytes, row, bytes, error);
    if (status == ASSAY_OK) status = m->device->synchronize(error);
  }
  free(row);
  return status;
}

/* ---- the calls --------------------------------------------------------------------------------------- */

static void convolve(pass *m) {
  const assay_model_config *c = &m->config;
  const pass_arg args[] = {{"x", columns(&m->delta_in, 0, m->conv.shape[1])},
                           {"w", pass_weight(m, "delta.conv", "w")},
                           {"cu", m->cu_q},
                           {"slots", m->state_slots},
                           {"fresh", m->fresh},
                           {"state", slots_of(m, &m->conv_pool, 3, c->conv_taps - 1, m->conv.shape[1], 0)},
                           {"y", m->conv},
                           {.name = NULL}};
  m->stage = "delta.conv";
  pass_call(m, "causal_conv1d", args, no_params);
  pass_take(m, "delta.conv", &m->conv, 0, m->conv.shape[1]);
}

static void open_gates(pass *m) {
  const int64_t H = m->config.linear_value_heads, b = m->delta_in.shape[1] - 2 * H;
  const pass_arg args[] = {{"a", columns(&m->delta_in, b + H, H)},
                           {"b", columns(&m->delta_in, b, H)},
                           {"A_log", pass_weight(m, "delta", "A_log")},
                           {"dt_bias", pass_weight(m, "delta", "dt_bias")},
                           {"g", m->decay},
                           {"beta", m->share},
                           {.name = NULL}};
  m->stage = "delta.gates";
  pass_call(m, "delta_gates", args, no_params);
  pass_take(m, "delta.g", &m->decay, 0, H);
  pass_take(m, "delta.beta", &m->share, 0, H);
}

static void follow(pass *m) {
  const assay_model_config *c = &m->config;
  const int64_t H_k = c->linear_key_heads, H_v = c->linear_value_heads, D_k = c->linear_key_size,
                D_v = c->linear_value_size;
  const pass_arg args[] = {{"q", in_heads(&m->conv, 0, H_k, D_k)},
                           {"k", in_heads(&m->conv, H_k * D_k, H_k, D_k)},
                           {"v", in_heads(&m->conv, 2 * H_k * D_k, H_v, D_v)},
                           {"g", m->decay},
                           {"beta", m->share},
                           {"cu", m->cu_q},
                           {"slots", m->state_slots},
                           {"fresh", m->fresh},
                           {"state", slots_of(m, &m->matrix_pool, 4, H_v, D_k, D_v)},
                           {"o", in_heads(&m->delta_out, 0, H_v, D_v)},
                           {.name = NULL}};
  m->stage = "delta.out";
  pass_call(m, "gated_delta_rule", args, no_params);
  pass_take(m, "delta.out", &m->delta_out, 0, H_v * D_v);
}

/* Normalises the result head by head, and multiplies it by silu(z). */
static void finish(pass *m) {
  const int64_t width = m->delta_out.shape[1];
  assay_tensor g = {.dtype = m->tiled.dtype, .rank = 1, .shape = {width}, .stride = {1}};
  g.data = (unsigned char *)m->tiled.data + m->layer * m->tiled.stride[0] * assay_dtype_size(m->tiled.dtype);
  const pass_arg args[] = {{"x", m->delta_out},
                           {"g", g},
                           {"z", columns(&m->delta_in, m->conv.shape[1], width)},
                           {"y", m->delta_out},
                           {.name = NULL}};
  const pass_param params[] = {{"eps", m->config.eps}, {"group", (double)m->config.linear_value_size}, {NULL, 0}};
  m->stage = "delta.norm";
  pass_call(m, "rms_norm", args, params);
  pass_take(m, "delta.norm", &m->delta_out, 0, width);
}

void pass_delta(pass *m) {
  pass_linear(m, "delta.in", &m->h, &m->delta_in, true);
  convolve(m);
  open_gates(m);
  follow(m);
  finish(m);
}

/* swiglu wants gates and ups in one row. The gates' rows are written after all that attention can have. One copy takes
 * rows of both in turn: gates of a row, then its results. */
void pass_gate_result(pass *m) {
  const int64_t N = m->limits.max_tokens, width = m->out.shape[1];
  assay_tensor gate = m->out, both = m->out, turns = m->gates;
  gate.data = (unsigned char *)m->out.data + N * width * assay_dtype_size(m->out.dtype);
  both.shape[0] = 2 * N;
  turns.shape[0] = 2 * m->out.shape[0];
  turns.shape[1] = turns.stride[0] = width;
  const pass_arg copy[] = {{"x", both}, {"order", m->in_turn}, {"y", turns}, {.name = NULL}};
  const pass_arg multiply[] = {{"x", m->gates}, {"y", m->out}, {.name = NULL}};
  const pass_param one[] = {{"k", 1}, {NULL, 0}}, sigmoid[] = {{"sigmoid", 1}, {NULL, 0}};
  pass_linear(m, "attn.gate", &m->h, &gate, true);
  m->stage = "attn.gated";
  pass_call(m, "moe_permute", copy, one);
  pass_call(m, "swiglu", multiply, sigmoid);
  pass_take(m, "attn.gated", &m->out, 0, width);
}

/* The sigmoid of a row's gate is the beta that delta_gates makes of it. moe_combine multiplies a row by its weight. */
void pass_shared(pass *m) {
  pass_linear(m, "shared.up", &m->h, &m->shared_up, true);
  pass_swiglu(m, "shared.act", &m->shared_up, &m->shared_gated);
  pass_linear(m, "shared.down", &m->shared_gated, &m->shared, true);
  pass_linear(m, "shared.gate", &m->h, &m->shared_gate, true);
  assay_tensor zero = m->no_taps;
  zero.shape[0] = 1;
  const pass_arg gates[] = {{"a", m->shared_gate}, {"b", m->shared_gate},      {"A_log", zero}, {"dt_bias", zero},
                            {"g", m->shared_rest}, {"beta", m->shared_weight}, {.name = NULL}};
  const pass_arg weighed[] = {
      {"z", m->shared}, {"pos", m->row_number}, {"w", m->shared_weight}, {"y", m->weighted}, {.name = NULL}};
  m->stage = "shared.weight";
  pass_call(m, "delta_gates", gates, no_params);
  pass_take(m, "shared.weight", &m->shared_weight, 0, 1);
  m->stage = "shared.weighted";
  pass_call(m, "moe_combine", weighed, no_params);
  pass_take(m, "shared.weighted", &m->weighted, 0, m->weighted.shape[1]);
}
