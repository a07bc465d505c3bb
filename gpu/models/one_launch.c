/* one_launch.c: all layers of a decode step in one launch (core/layers.h). It is a form of qwen3's steps with one new
 * token per request and up to ASSAY_LAYERS_ROWS rows. All other steps go operator by operator, and so do steps with
 * taps.
 *
 * The kernel has a copy of the layers' weights in its own order, made when the options are set. Its words are used
 * again from step to step, so that all its launches are in one stream. A step is a chain: nothing runs beside it. */
#include <stdlib.h>
#include <string.h>

#include "gpu/models/pass.h"

static assay_layers_weights weights_of(const pass *m) {
  static const char *const clip[] = {"attn.pre", "attn.post", "mlp.pre", "mlp.post"};
  assay_layers_weights w = {.qkv = pass_weight(m, "attn.qkv", "w").data,
                            .proj = pass_weight(m, "attn.proj", "w").data,
                            .up = pass_weight(m, "mlp.up", "w").data,
                            .down = pass_weight(m, "mlp.down", "w").data};
  if (m->config.arch == ASSAY_QWEN3) {
    w.pre = pass_weight(m, "attn.pre", "g").data;
    w.post = pass_weight(m, "mlp.pre", "g").data;
    w.q_norm = pass_weight(m, "attn.q_norm", "g").data;
    w.k_norm = pass_weight(m, "attn.k_norm", "g").data;
    return w;
  }
  for (int i = 0; i < 4; ++i)
    w.clip[i] = (assay_layers_clip){.alpha = pass_weight(m, clip[i], "alpha").data,
                                    .gamma = pass_weight(m, clip[i], "gamma").data,
                                    .beta = m->config.norm_bias ? pass_weight(m, clip[i], "beta").data : NULL};
  w.q_norm = pass_weight(m, "attn.q_norm", "alpha").data;
  w.k_norm = pass_weight(m, "attn.k_norm", "alpha").data;
  w.q_gamma = pass_weight(m, "attn.q_norm", "gamma").data;
  w.k_gamma = pass_weight(m, "attn.k_norm", "gamma").data;
  w.taps = pass_weight(m, "attn", "taps").data;
  w.gate = pass_weight(m, "attn", "gamma").data;
  return w;
}

/* Fills the memory with ones: all words are empty. It goes up in pieces of the host's memory. */
static assay_status fill(pass *m, int64_t bytes, assay_error *error) {
  enum { PIECE = 1 << 20 };
  unsigned char *const ones = malloc(PIECE);
  assay_status status = ASSAY_OK;
  if (ones == NULL) return assay_fail(error, ASSAY_ERR_MEMORY, "session: out of memory");
  memset(ones, 0xFF, PIECE);
  for (int64_t at = 0; at < bytes && status == ASSAY_OK; at += PIECE) {
    const int64_t count = bytes - at < PIECE ? bytes - at : PIECE;
    status = m->device->upload((unsigned char *)m->layers_memory + at, ones, count, error);
    if (status == ASSAY_OK) status = m->device->synchronize(error);
  }
  free(ones);
  return status;
}

/* Takes memory, and packs the weights of all layers. */
static assay_status take(pass *m, const assay_layers *kernel, assay_error *error) {
  const int64_t bytes = kernel->bytes(&m->config, m->invariant), layer = m->layer;
  assay_status status = m->device->alloc(bytes, &m->layers_memory, error);
  if (status != ASSAY_OK) return status;
  m->memory_bytes += bytes;
  m->layers_bytes = bytes;
  status = fill(m, bytes, error);
  for (m->layer = 0; m->layer < m->config.layers && status == ASSAY_OK; ++m->layer) {
    const assay_layers_weights weights = weights_of(m);
    status = kernel->pack(&m->config, m->invariant, m->layer, &weights, m->layers_memory, m->stream, error);
  }
  m->layer = layer;
  return status == ASSAY_OK ? m->device->synchronize(error) : status;
}

assay_status pass_one_launch_open(pass *m, assay_error *error) {
  const assay_layers *const kernel = assay_layers_find(m->device->name);
  pass_switch *const form = &m->choices.form[PASS_ONE_LAUNCH];
  assay_error why = {""};
  pass_one_launch_close(m);
  if (*form == PASS_OFF) return ASSAY_OK;
  if (kernel == NULL || kernel->supports(&m->config, m->invariant, m->multiprocessors, &why) != ASSAY_OK) {
    if (*form == PASS_ON)
      return assay_fail(error, ASSAY_ERR_INPUT, "form one_launch: found on, allowed off, auto: %s",
                        kernel == NULL ? "this device has no such kernel" : why.text);
    *form = PASS_OFF;
    return ASSAY_OK;
  }
  const assay_status status = take(m, kernel, error);
  if (status != ASSAY_ERR_MEMORY || *form == PASS_ON) return status;
  pass_one_launch_close(m);
  *form = PASS_OFF; /* auto: there is no room for a copy of the weights */
  if (error != NULL) error->text[0] = '\0';
  return ASSAY_OK;
}

void pass_one_launch_close(pass *m) {
  if (m->layers_memory != NULL) m->device->release(m->layers_memory);
  m->memory_bytes -= m->layers_bytes;
  m->layers_memory = NULL;
  m->layers_bytes = 0;
}

/* Tells whether the step is one that the form is for. */
static bool takes(const pass *m) {
  return m->layers_memory != NULL && m->decode && m->taps == NULL && m->x.shape[0] >= 1 &&
         m->x.shape[0] <= ASSAY_LAYERS_ROWS;
}

/* Launches, or only tells hooks and counts what it would. */
static assay_status launch(pass *m, const assay_layers *kernel) {
  const assay_layers_step step = {.rows = m->x.shape[0],
                                  .x = m->x.data,
                                  .cosine = m->cosine.data,
                                  .sine = m->sine.data,
                                  .positions = m->positions.data,
                                  .kv_len = m->kv_len.data,
                                  .table = m->table.data,
                                  .slots = m->slots.data,
                                  .table_stride = m->table.stride[0],
                                  .k_pool = m->k_pool.data,
                                  .v_pool = m->v_pool.data,
                                  .pool_layer = m->k_pool.stride[0]};
  if (m->left_out.layers) {
    ++m->left_out.calls;
    return ASSAY_OK;
  }
  assay_env env = {.stream = m->stream, .multiprocessors = m->multiprocessors, .memory_rate = m->memory_rate};
  assay_model_path told = {.op = kernel->row->op,
                           .variant = kernel->row->name,
                           .path = env.path,
                           .stage = m->stage,
                           .layer = -1,
                           .calls = 1};
  if (m->hooks.before != NULL) m->hooks.before(m->hooks.context, &told);
  const assay_status status = kernel->launch(&m->config, m->invariant, m->layers_memory, &step, &env, m->error);
  if (status == ASSAY_OK && m->hooks.after != NULL) m->hooks.after(m->hooks.context, &told);
  if (status == ASSAY_OK) pass_count_call(m, kernel->row, env.path);
  return status;
}

bool pass_one_launch_named(const pass *m, const char *op) {
  return m->layers_memory != NULL && strcmp(op, assay_layers_find(m->device->name)->row->op) == 0;
}

bool pass_one_launch(pass *m) {
  if (!takes(m)) return false;
  m->layer = -1;
  m->stage = "layers";
  if (m->status == ASSAY_OK && !m->measuring) pass_fail(m, launch(m, assay_layers_find(m->device->name)));
  return true;
}
