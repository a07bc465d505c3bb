/* model.h: one session of the reference's forward pass, and the calls in which a forward pass is written.
 *
 * A call computes all rows of its result, rounds them to the stored form (mirror mode), and passes them to the tap.
 * `name` is the stage's name. Its tap and its weights have that name; in a layer it follows "layers.<L>.". Everything
 * is f64. Threads share rows, heads or panels of a matrix. One thread computes each element, in an order that does not
 * depend on the number of threads. Nothing here can fail: forward() has checked the step, and memory was taken at
 * open. */
#ifndef ASSAY_REF_MODELS_MODEL_H
#define ASSAY_REF_MODELS_MODEL_H

#include "assay/model.h"
#include "core/model_step.h"
#include "ref/lib/norm.h"

enum {
  PANEL = 128,     /* rows of a weight that are widened at a time */
  ALONE = 1 << 15, /* work on fewer elements than this is not worth waking threads */
};

typedef struct matrix {
  double *value; /* [rows, width] */
  int64_t rows, width;
} matrix;

/* How a request attends over a latent cache. The form mla_expand says it. */
enum latent_form {
  LATENT_USUAL,      /* exact mode: as LATENT_EXPANDED; mirror mode: as LATENT_ABSORBED */
  LATENT_ABSORBED,   /* all requests attend over entries */
  LATENT_EXPANDED,   /* requests with several new tokens attend over keys and values of every head */
  LATENT_BY_THE_COST /* those for which that needs fewer multiplications do */
};

typedef struct model {
  assay_model_config config;
  const assay_model_weights *weights;
  assay_model_limits limits;
  assay_dtype act, logit; /* the types to which stages round; exact mode: ASSAY_NONE */
  assay_dtype cache;      /* type of the cache; ASSAY_NONE: not rounded */
  int threads;
  enum latent_form latent_form;

  double *k_pool, *v_pool; /* [layers, num_blocks · block_size, H_kv, D]; latent attention: [.., R_kv + R], and none */
  model_step step;         /* rows, positions and slots of this step */

  void *memory;
  double *scratch; /* [threads, scratch_size] */
  int64_t scratch_size;
  double *vector[3]; /* weights of a norm, widened */
  /* Sparse layers: logits [N, E], chosen experts and weights [N, k]. Row place[n k + j] of the routed matrices belongs
   * to choice j of row n; the rows of expert e are first[e] .. first[e + 1] - 1. */
  matrix router, weight;
  int32_t *ids, *place, *first;
  matrix routed, routed_up, routed_gated, routed_out;
  matrix narrowed; /* rows for a product with weights of e4m3; mirror mode alone */
  /* Activations: residual stream, normalised, sublayer's result, fused qkv, its parts, attention, MLP, picked rows. */
  matrix x, h, y, qkv, q, k, v, out, up, gated, picked;
  /* Latent attention: q and kv between their products, the parts of an entry, the expert of all rows. */
  matrix q_a, kv_a, latent, k_pe, shared, shared_up, shared_gated;
  /* The gated delta rule: its products, the convolution's result, gates, result; the gates of attention and of the
   * shared expert. */
  matrix delta_in, conv, decay, share, delta_out, gate, shared_gate;
  double *conv_pool, *matrix_pool; /* [layers with states, num_states]: [J, C_conv], and [H_v, D_k, D_v] */
  double *taps_of;                 /* [C_conv, J + 1] widened */
  double *convolved;               /* [J + N, C_conv]: the rows that a request's convolution reads */
  double *matrices;                /* [H_v, D_k, D_v] of the running request */
  double *gathered, *gathered_pe;  /* one request's cached rows: [longest, R_kv], [longest, R] */
  double *expanded;                /* keys and values of one head: [longest, D - R], then [longest, V] */
  double *head_weight;             /* rows of kv_b of one head, then two rows of R_kv */
  double *cosine, *sine;           /* [N, R/2] of the rows' positions */
  double *scores;                  /* [2, N · H, longest]: s and p, for taps; NULL: not wanted */

  /* The step. */
  const assay_model_batch *batch;
  const assay_model_taps *taps;
  double *logits;
  int64_t layer; /* -1: outside the layers */
} model;

static inline bool model_is_latent(const model *m) {
  return m->config.arch == ASSAY_DEEPSEEK_V3;
}
/* Returns how many numbers k_pool has for a token. */
static inline int64_t model_entry(const model *m) {
  const assay_model_config *c = &m->config;
  return model_is_latent(m) ? c->kv_rank + c->rotated : c->kv_heads * c->head_size;
}

/* ---- calls of a forward pass (stages.c, linear.c, heads.c) ---- */

/* Computes x = embed.w[id] (+ embed_pos.w[position]). */
void model_embed(model *m, matrix *x);
/* Computes y = norm(x), with the family's norm. */
void model_norm(model *m, const char *name, const matrix *x, matrix *y);
/* Computes y = x W^T; `biased`: + b, if the configuration has one. */
void model_linear(model *m, const char *name, const matrix *x, matrix *y, bool biased);
/* Takes q, k, v from the fused rows, normalised and rotated where the family does so. k and v go to the cache. */
void model_heads(model *m, const matrix *qkv, matrix *q, matrix *k, matrix *v);
void model_softmax_attention(model *m, const matrix *q, matrix *out);
void model_gate_attention(model *m, const matrix *q, matrix *out);
/* Computes x += y. With `linear`, that stage's bias is added first, to y. */
void model_residual(model *m, const char *name, matrix *y, const char *linear, matrix *x);
/* Computes act = gelu_new(up + b), with the bias of the stage `linear`. */
void model_bias_gelu_new(model *m, const char *name, matrix *up, const char *linear, matrix *act);
void model_swiglu(model *m, const char *name, const matrix *up, matrix *act);
void model_reglu(model *m, const char *name, const matrix *up, matrix *act);
/* Computes act = gelu_new(gate) · up. */
void model_geglu(model *m, const char *name, const matrix *up, matrix *act);
/* Computes act = g sigmoid(1.702 g) (u + 1) of a gate g and an up u that are clamped, for gate and up in turn. */
void model_clamped_swiglu(model *m, const char *name, const matrix *up, matrix *act);

/* ---- calls of a sparse layer (experts.c) ---- */

/* Chooses k experts for every row by its logits, and computes their weights. */
void model_route(model *m, const char *name, const matrix *logits);
/* Copies every row to the places of its experts, and sorts these places by expert. */
void model_permute(model *m, const matrix *x, matrix *routed);
/* Computes y = x W_e^T (+ b_e) for the rows of every expert e. */
void model_expert_linear(model *m, const char *name, const matrix *x, matrix *y);
/* Computes y = the sum over a row's experts of weight times result, and `shared` where it is not NULL. */
void model_combine(model *m, const char *name, const matrix *routed, const matrix *shared, matrix *y);
/* Computes y = x W^T, which a device keeps in f32. */
void model_router(model *m, const char *name, const matrix *x, matrix *y);

/* ---- calls of latent attention (latent.c) ---- */

/* Computes q, not yet rotated. */
void model_latent_query(model *m, const matrix *x, matrix *q);
/* Computes the new entries of the cache: c normed, and pe not yet rotated. */
void model_latent_entry(model *m, const matrix *x);
/* Rotates the last R channels of each head of q, and pe. */
void model_latent_rotate(model *m, matrix *q);
void model_latent_append(model *m);
void model_latent_attention(model *m, const matrix *q, matrix *out);

/* ---- calls of a layer with the gated delta rule, and gates (delta.c) ---- */

/* Convolves the rows of q, k and v of each request, and moves its state on. */
void model_conv(model *m, const char *name, const matrix *in, matrix *y);
/* Computes g and beta of every row and value head. */
void model_delta_gates(model *m, const matrix *in, matrix *g, matrix *beta);
void model_delta_rule(model *m, const char *name, const matrix *c, const matrix *g, const matrix *beta, matrix *out);
/* Computes out = norm(out) silu(z), head by head, in place. */
void model_delta_norm(model *m, const char *name, const matrix *in, matrix *out);
/* Computes out = out · sigmoid(gate), in place. */
void model_sigmoid_gate(model *m, const char *name, const matrix *gate, matrix *out);
/* Replaces a row's gate by its sigmoid, and multiplies the shared expert's row by it. */
void model_weigh_shared(model *m, matrix *gate, matrix *shared);

/* Picks the rows whose logits are wanted. */
void model_pick(model *m, const matrix *x, matrix *picked);
/* Computes logits = rows · head^T. */
void model_head(model *m, const matrix *rows);

void gpt2_forward(model *m);
void qwen3_forward(model *m);
void asynct_forward(model *m);
void qwen3_moe_forward(model *m);
void gpt_oss_forward(model *m);
void gemma2_forward(model *m);
void deepseek_v3_forward(model *m);
void qwen3_next_forward(model *m);

/* ---- shared parts of the calls ---- */

/* Returns a weight; NULL if the configuration has none. The name is a stage's and a weight's: ("attn.qkv", "b"). */
const assay_tensor *model_weight(const model *m, const char *name, const char *part);
/* Returns the same in f64, in m->vector[place]. */
const double *model_vector(model *m, int place, const char *name, const char *part);
/* Returns the family's norm with the weights of a stage, over rows of C channels. Its weights live until the next
 * call. */
norm model_norm_of(model *m, const char *name, int64_t C);
/* Rounds to `dtype`, then passes the matrix to the tap under the stage's name. */
void model_finish(model *m, const char *name, matrix *y, assay_dtype dtype);
void model_take(model *m, const char *name, const matrix *y);
bool model_wants(const model *m, const char *name);
/* Lets the taps replace the ids that a router has chosen. */
void model_replace(const model *m, const char *name, int64_t rows, int64_t k, int32_t *ids);
/* Returns the running thread's memory: scratch_size doubles. */
double *model_scratch(const model *m);

/* Returns the rows that a product with this weight multiplies. They are x, except for a weight of e4m3 in mirror mode.
 * Then they are x as a device stores it: codes of e4m3, with a scale for every 128 channels of a row. */
matrix model_factor(model *m, const assay_tensor *weight, const matrix *x);
/* Computes y = x W^T with rows first .. first + count - 1 of a weight; y has `count` columns. The scales of a weight of
 * e4m3 are the tensor after it. */
void model_product(model *m, const assay_tensor *weight, int64_t first, int64_t count, const matrix *x, double *y);

/* Returns a token's place in the layer's part of k_pool. */
double *model_slot(const model *m, int64_t slot);
void model_copy_blocks(model *m);
void model_copy_states(model *m);
/* Writes keys and values of the step's tokens to their slots, as stored. */
void model_append(model *m, const matrix *k, const matrix *v);

#endif
