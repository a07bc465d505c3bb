/* pass.h: one session of a forward pass over launchers, and the calls in which a forward pass is written.
 *
 * The pages are the same as the reference's. A call here picks a variant of its operator from the registry, the first
 * that takes the call, and launches it into the device's stream. A call that one variant declines goes to the next one
 * of the table. If none is left, the pass ends with the last variant's reason. A failure stays: later calls do nothing.
 *
 * A residual waits for the norm that follows it, and in asynct so does the norm before the residual. The waiting stages
 * become one call with that norm where the form is on and a variant takes the call. The product mlp.up waits for its
 * activation in the same way, and so does the last product of a sublayer of asynct or qwen3. In qwen3 the norm's
 * division then waits for the product after it. */
#ifndef ASSAY_GPU_MODELS_PASS_H
#define ASSAY_GPU_MODELS_PASS_H

#include "assay/device.h"
#include "assay/engine.h"
#include "assay/model.h"
#include "assay/variant.h"
#include "core/layers.h"
#include "core/model_step.h"

/* Marks a place where a test may plant a mistake. Tests define it before they compile these sources in
 * (conformance/selftest/engine_mistakes.h, which lists the mistakes); every other build has none. */
#ifndef MISTAKE
#define MISTAKE(which) 0
#endif

/* ---- which operators and variants (choice.c) ---- */

typedef enum pass_form {
  PASS_QK_NORM,
  PASS_APPEND,
  PASS_MMHA,
  PASS_ROPE_APPEND,
  PASS_NORM_ROPE_APPEND,
  PASS_ADD_NORM,
  PASS_POST_PRE_UCLIP,
  PASS_BIAS_GELU_NEW,
  PASS_BIAS_RESIDUAL,
  PASS_GEMM_GLU,
  PASS_GEMM_SEAM,
  PASS_GEMM_NORM,
  PASS_GROUPED_GEMM,
  PASS_MLA_EXPAND,
  PASS_EVEN_SHARES,
  PASS_LM_HEAD_ARGMAX,
  PASS_ONE_LAUNCH,
  PASS_FORMS
} pass_form;
typedef enum pass_switch { PASS_OFF, PASS_ON, PASS_AUTO } pass_switch;

typedef struct pass_choices {
  pass_switch form[PASS_FORMS];
  const assay_variant **row; /* the variants of this device, ordered by operator */
  int32_t *first;            /* [operators + 1]: index in `row` of each operator's first variant */
  /* Forced variants, laid out as `row`: an operator's begin at `first`, in the order in which they were named. */
  const assay_variant **forced;
  int32_t *wanted; /* [operators]: number of forced variants; 0: the first of `row` that takes the call is used */
} pass_choices;

typedef struct pass_count {
  const assay_variant *variant;
  char path[96], stage[ASSAY_MODEL_NAME];
  int64_t layer, calls;
} pass_count;

typedef struct pass_counts {
  pass_count *row;
  int32_t count, capacity;
} pass_counts;

/* Calls that do everything except launch. They are neither told to hooks nor counted as calls. */
typedef struct pass_left_out {
  const assay_op *op;           /* NULL: none */
  const assay_variant *variant; /* NULL: every variant */
  int64_t calls;                /* left out so far */
  bool layers;                  /* the launch of all layers is left out, which is no operator's */
} pass_left_out;

/* Neighbouring requests of a step that attend over a latent cache in the same way. */
typedef struct latent_run {
  int64_t request, requests, row, rows; /* the first one and how many; likewise rows */
  int64_t at;                           /* its first place in the lists cu_q and cu_k; it has requests + 1 */
  int64_t block, blocks;                /* its blocks in the list of blocks; 0: it attends over entries */
} latent_run;

typedef struct pass {
  assay_model_config config;
  assay_model_limits limits;
  const assay_device *device;
  int32_t multiprocessors, memory_rate;
  model_step step; /* rows, positions and slots of this step, in host memory */

  /* Device memory, one allocation. Tensors of a step take the step's sizes; their data do not move. */
  void *memory;
  int64_t memory_bytes;
  /* The inputs that an engine copies to the device before a step, and no launch writes; 0, 0 without an engine. */
  uintptr_t inputs_begin, inputs_end;
  assay_tensor *weight;   /* as assay_model_weight_spec orders them */
  struct pass_name *name; /* names of weights, by hash */
  int64_t name_mask;
  assay_tensor cosine, sine;   /* f32 [max_pos, R/2] */
  assay_tensor k_pool, v_pool; /* [layers, num_blocks, block_size, H_kv, D] */
  assay_tensor x, h, y, z;     /* [N, C] residual stream, x normalised, result of a sublayer, y normalised */
  assay_tensor squares;        /* f32 [N, C/8]: sums of squares of the stream, for form gemm_norm */
  assay_tensor embed_scale;    /* gemma2: f32 [N, 1], sqrt(C) */
  assay_tensor zeros, no_taps; /* a bias of zeros; f32 for arguments that are not read */
  assay_tensor qkv, out;       /* [N, (H + 2 H_kv) D], [N, H D] */
  assay_tensor up, gated;      /* [N, I or 2 I], [N, I] */
  /* Sparse layers, with P = N k rows sorted by expert. first: where each expert's rows begin, in host memory. */
  assay_tensor router, chosen, shares;           /* [N, E] logits, i32 [N, k] ids, f32 [N, k] weights */
  assay_tensor counted, offsets, order, experts; /* i32 [E], [E + 1], [P], [P] */
  assay_tensor place;                            /* i32 [N, k] */
  assay_tensor routed, routed_up, routed_gated;  /* [P, C], [P, 2 I], [P, I] of one expert */
  assay_tensor routed_out;                       /* [P, C] */
  int64_t *first;                                /* [E + 1] */
  assay_tensor codes, code_scales;               /* e4m3, f32: rows of a product with weights of e4m3 (narrow.c) */
  /* qwen3_next. `gates` holds a row's gates of attention, then its results; `out` has 2 N rows. Pools have one more
   * layer where the number of layers with states is odd (delta.c). */
  assay_tensor gates;                                     /* [N, 2 H D] */
  assay_tensor delta_in, conv, delta_out;                 /* [N, all products], [N, C_conv], [N, H_v D_v] */
  assay_tensor decay, share;                              /* f32 [N, H_v] */
  assay_tensor shared_up, shared_gated, shared, weighted; /* [N, 2 S], [N, S], [N, C], [N, C] */
  assay_tensor shared_gate, shared_weight, shared_rest;   /* [N, 1], f32 [N, 1], f32 [N, 1] that nothing reads */
  /* Both are filled once. In in_turn N is max_tokens, where the gates of attention begin in `out`. */
  assay_tensor in_turn;                          /* i32 [2 N]: N, 0, N + 1, 1 ... */
  assay_tensor row_number;                       /* i32 [N, 1]: n */
  assay_tensor tiled;                            /* [layers, widest]: a norm's weights, once for each head */
  assay_tensor conv_pool, matrix_pool;           /* [layers with states, num_states, elements]; f32 */
  assay_tensor state_slots, fresh, state_copies; /* i32 [B], i32 [B], i64 [copies, 2] */
  /* deepseek_v3. `qkv` holds q alone, [N, H D]; qkv and kv_a have a row more, and the pool an even number of layers
   * (latent.c). */
  assay_tensor q_a, kv_a, latent, pe; /* [N, q_rank], [N, kv_rank + R], [N, 512], [N, 64] */
  assay_tensor wide, mixed;           /* [N, H 576], [N, H 512] */
  assay_tensor absorb, expand, widen; /* [layers, H 576 D], [layers, H V 512], [64, R] */
  assay_tensor head_number;           /* i32 [N H]: h of row (n, h) */
  /* For a step in which some requests attend over keys and values of every head (latent_expand.c). */
  void *expand_memory;                         /* NULL: no step has such requests */
  latent_run *run;                             /* [max_requests] */
  int64_t runs;                                /* in this step; 0: all requests attend over entries */
  assay_tensor run_cu_q, run_cu_k, run_blocks; /* i32 [2 B], [2 B], [B max_blocks], as far as the runs go */
  assay_tensor unfold, entries, keys, values;  /* [layers H D, 576], [R, 576], [R, H D], [R, H V] */
  assay_tensor unfold_v, filled, narrow;       /* V not a multiple of 8: [layers H V', 512], [N, H V'], [V, V'] */
  assay_tensor one_group;                      /* i32: zeros; f32 models alone */
  assay_tensor logits;                         /* f32 [logit_count, V] */
  assay_tensor ids, positions, slots;          /* [N] i32, i32, i64 */
  assay_tensor kv_len, cu_q, table;            /* i32 [B], [B + 1], [B, max_blocks] */
  assay_tensor rows, copies;                   /* i32 [logit_count], i64 [copies, 2] */
  /* For a step that attends row by row (tails.c). */
  void *tail_memory;
  assay_tensor tail_request, tail_len,
      tail_table;      /* i32 [N], [N], [N, max_blocks]: each row's request, length, table */
  int32_t short_tail;  /* 0: no step attends row by row */
  void *layers_memory; /* weights and words of the form one_launch; NULL: off */
  int64_t layers_bytes;
  void *workspace;
  int64_t workspace_bytes;
  void *host; /* as large as the largest tensor of a step: holds what is uploaded or inspected */

  pass_choices choices;
  pass_counts counts;
  pass_left_out left_out;
  assay_engine_hooks hooks;
  void *stream;   /* takes the launches */
  bool measuring; /* nothing is launched; measured_bytes becomes the largest workspace */
  int64_t measured_bytes;

  const assay_model_batch *batch;
  const assay_model_taps *taps;
  bool no_host;                     /* the host reads nothing during a step, so that steps can be captured */
  bool invariant;                   /* a row's bits do not depend on the batch (invariant.c) */
  int64_t served;                   /* most requests of the engine that has this pass; 0: no engine has it */
  bool decode;                      /* every request has one new token */
  bool ragged;                      /* lengths of this step differ much (pass_ragged) */
  bool evenly;                      /* a call went to even shares of the keys, and would have gone to another variant */
  bool greedy;                      /* every row that wants logits takes the largest, and its id goes to `token` */
  bool argmax;                      /* the product has chosen the tokens: there are no logits */
  assay_tensor token, token_status; /* i32 [logit_count] of a greedy step */
  bool tails;                       /* some request has more; the step attends row by row */
  int64_t layer;                    /* -1: outside of the layers */
  const char *stage;                /* for counts and hooks */
  enum {
    PASS_SEPARATE,
    PASS_APPENDS,
    PASS_WHOLE
  } attention; /* the operator that attends does only that, appends
                * besides, or appends and rotates besides */
  struct {
    const char *post, *residual, *linear; /* stages that wait; NULL: none */
    const assay_tensor *from, *y, *x;     /* from: input of post; y, x: those of the residual */
    int64_t layer;
    const assay_tensor *product; /* input of mlp.up, which waits for its activation; NULL: none */
    const char *last;            /* the last product of a sublayer, which waits for the norm; NULL: none */
    const assay_tensor *last_x, *last_y;
    bool division; /* the rows of h lack their norm's factor, which `squares` give */
  } waiting;
  assay_status status;
  assay_error *error;
} pass;

/* ---- calls of a forward pass (stages.c, heads.c) ----
 *
 * `name` is the name of the stage; its weights and its tap have the same name. */

void pass_embed(pass *m, const assay_tensor *x);
/* Computes y = norm(x) with the norm of the model's family; y may be x. */
void pass_norm(pass *m, const char *name, const assay_tensor *x, const assay_tensor *y);
void pass_linear(pass *m, const char *name, const assay_tensor *x, const assay_tensor *y, bool biased);
/* Normalises and rotates the heads of q and k in place, if the family does so, and writes k and v to the cache. */
void pass_heads(pass *m, const assay_tensor *qkv);
void pass_softmax_attention(pass *m, const assay_tensor *qkv, const assay_tensor *out);
void pass_gate_attention(pass *m, const assay_tensor *qkv, const assay_tensor *out);
/* Adds y, and the bias of the stage `linear` (NULL: none), to x. */
void pass_residual(pass *m, const char *name, const assay_tensor *y, const char *linear, const assay_tensor *x);
void pass_bias_gelu_new(pass *m, const char *name, const assay_tensor *up, const char *linear, const assay_tensor *act);
void pass_swiglu(pass *m, const char *name, const assay_tensor *up, const assay_tensor *act);
/* Computes g sigmoid(1.702 g) (u + 1) of clamped gates and ups, which lie in turn. */
void pass_clamped_swiglu(pass *m, const char *name, const assay_tensor *up, const assay_tensor *act);
void pass_reglu(pass *m, const char *name, const assay_tensor *up, const assay_tensor *act);
/* Computes gelu(g) u, with the GELU that has a tanh. */
void pass_geglu(pass *m, const char *name, const assay_tensor *up, const assay_tensor *act);
/* Chooses the experts of every row, and weighs them. */
void pass_route(pass *m, const char *name, const assay_tensor *logits);
/* Copies every row to the places of its experts, sorted by expert. Reads where each expert's rows begin, unless the
 * host may not read during a step. */
void pass_permute(pass *m, const assay_tensor *x, const assay_tensor *routed);
/* Computes the product of each expert's rows: one call for all experts if the form is on, else one for each. */
void pass_expert_linear(pass *m, const char *name, const assay_tensor *x, const assay_tensor *y);
/* Adds a row's results by its weights, and `shared` unless it is NULL. */
void pass_combine(pass *m, const char *name, const assay_tensor *routed, const assay_tensor *shared,
                  const assay_tensor *y);
/* Runs the gated delta rule of a layer, from m->h to m->delta_out. */
void pass_delta(pass *m);
/* Multiplies attention's result by the sigmoid of its gate, in m->out. */
void pass_gate_result(pass *m);
/* Computes the expert that all rows share, times the sigmoid of its gate, into m->weighted. */
void pass_shared(pass *m);
void pass_copy_states(pass *m);
/* Computes q and the new entries of a layer of deepseek_v3 from m->h, rotates them, and writes the entries. */
void pass_latent_heads(pass *m);
/* Attends over the entries with q absorbed, and takes the results back to the heads' values. */
void pass_latent_attention(pass *m, const assay_tensor *out);
void pass_copy_entries(pass *m);
void pass_copy_blocks(pass *m);
/* Computes the final norm of every row, and the logits of the rows that want them, or the tokens of a greedy step. */
void pass_head(pass *m, const assay_tensor *x, const assay_tensor *h);
/* Computes logits of the rows that want them, from rows of the final norm. */
void pass_logits(pass *m, const assay_tensor *h);

void pass_gpt2(pass *m);
void pass_qwen3(pass *m);
void pass_asynct(pass *m);
void pass_qwen3_moe(pass *m);
void pass_gpt_oss(pass *m);
void pass_gemma2(pass *m);
void pass_qwen3_next(pass *m);
void pass_deepseek_v3(pass *m);
/* Runs the pass of the model's family. */
void pass_forward(pass *m);

/* ---- what the calls share (call.c) ---- */

typedef struct pass_arg {
  const char *name; /* NULL: the end */
  assay_tensor tensor;
} pass_arg;

typedef struct pass_param {
  const char *name; /* NULL: the end */
  double value;
} pass_param;

/* Calls an operator. Arguments without data are absent; parameters that are not given have the operator's fallback. */
void pass_call(pass *m, const char *op, const pass_arg *args, const pass_param *params);
/* Calls an operator as a form. Returns false where the form is off, and where it is auto and no variant takes the call.
 * Nothing has happened then. */
bool pass_call_form(pass *m, pass_form form, const char *op, const pass_arg *args, const pass_param *params);
/* Says whether pass_call_form would make the call, by a variant whose name begins with `variant`; NULL: by any. */
bool pass_would_call_by(pass *m, pass_form form, const char *op, const pass_arg *args, const pass_param *params,
                        const char *variant);
/* Says whether pass_call_form would make the call. */
bool pass_would_call(pass *m, pass_form form, const char *op, const pass_arg *args, const pass_param *params);
/* Returns the stage's weight, or a tensor without data where the configuration has none. */
assay_tensor pass_weight(const pass *m, const char *name, const char *part);
/* Returns a view [N, heads, D] of fused rows, beginning at channel `first`. */
assay_tensor pass_view(const pass *m, const assay_tensor *rows, int64_t first, int64_t heads);
/* Says whether a tap wants the stage. */
bool pass_wants(const pass *m, const char *name);
/* Gives the tap every row's channels first to first + width - 1, if a tap wants the stage. */
void pass_take(pass *m, const char *name, const assay_tensor *y, int64_t first, int64_t width);
/* Gives the tap the rows that want logits. */
void pass_take_picked(pass *m, const char *name, const assay_tensor *y);

assay_status pass_names_open(pass *m, assay_error *error);

/* ---- narrow.c ---- */

/* Tells whether a product has weights of e4m3. */
bool pass_is_narrow(const pass *m, const char *name);
/* Returns the most rows that such a product has. */
int64_t pass_narrow_rows(const pass *m);
void pass_narrow_linear(pass *m, const char *name, const assay_tensor *x, const assay_tensor *bias,
                        const assay_tensor *y);
/* Computes the products of all experts in one call. */
void pass_narrow_experts(pass *m, const char *name, const assay_tensor *x, const assay_tensor *y);

/* ---- tails.c ---- */

/* Allocates memory for steps that attend row by row; with short_tail 0 there are no such steps. */
assay_status pass_tails_open(pass *m, int32_t short_tail, assay_error *error);
void pass_tails_close(pass *m);
/* Says whether a step attends row by row; cu_q [requests + 1] gives the new tokens of each request. */
bool pass_short(const pass *m, const int32_t *cu_q, int64_t requests);
/* Writes the lengths of a request's rows. The request has `length` keys, its `count` new tokens included; with 0 the
 * rows are pad rows. */
void pass_tail_lengths(int32_t length, int64_t count, int32_t *to);
/* Copies the tables of the step's requests to those of the rows. The caller has filled tail_request and tail_len. */
void pass_tails(pass *m);

/* ---- prefer.c ---- */

/* Says whether lengths differ so much that even shares of all keys are faster than a row for each block. */
bool pass_ragged(const int32_t *kv_len, int64_t requests);
/* Says whether the variant divides the keys of all rows evenly. */
bool pass_shares_evenly(const assay_variant *variant);
/* Says whether the variant comes before all others that take the call, by the step's lengths and the form even_shares.
 */
bool pass_prefers(const pass *m, const assay_call *call, const assay_variant *variant);
/* Tells whether gemm_glu has to have the bits of gemm and the activation: in an invariant step, where it is auto. */
bool pass_wants_chain(const pass *m);

/* ---- one_launch.c ---- */

/* Takes memory and packs weights where the form one_launch is not off. A form `auto` becomes off where the device has
 * no kernel for the model or no memory for the copy, and `on` is refused. */
assay_status pass_one_launch_open(pass *m, assay_error *error);
void pass_one_launch_close(pass *m);
/* Computes all layers of the step, from m->x to m->x, if the form takes it. Returns false if nothing was done. */
bool pass_one_launch(pass *m);
/* Tells whether calls are counted under this name because all layers are one launch. */
bool pass_one_launch_named(const pass *m, const char *op);

/* ---- invariant.c ---- */

/* Settles the forms for steps whose rows do not depend on the batch, or refuses what was asked for besides. */
assay_status pass_invariant_open(pass *m, const assay_model_options *options, assay_error *error);
/* Says whether a call of an operator may go to the variant. */
bool pass_may_take(const pass *m, const assay_variant *variant);

/* ---- counts.c ---- */

/* Ends the pass with this status, unless a failure has ended it already. */
void pass_fail(pass *m, assay_status status);
/* Counts one more call. */
void pass_count_call(pass *m, const assay_variant *variant, const char *path);
bool pass_path(const pass *m, int32_t index, assay_model_path *path);

/* ---- choice.c ---- */

assay_status pass_choices_open(pass *m, assay_error *error);
/* Replaces what was set before. Refuses with ASSAY_ERR_INPUT unknown words, and a form set to on that the model cannot
 * have. */
assay_status pass_choices_set(pass *m, const assay_model_options *options, assay_error *error);
/* Returns ASSAY_ERR_INPUT if no call so far took a forced variant or a form that is on; the message names them. */
assay_status pass_check_forced(const pass *m, assay_error *error);
void pass_choices_close(pass *m);
/* Finds an operator and its variant on this device by name. With name NULL, *variant becomes NULL. */
assay_status pass_find_variant(const pass *m, const char *op, const char *name, const assay_op **found,
                               const assay_variant **variant, assay_error *error);
const char *pass_form_name(pass_form form);

/* ---- delta.c ---- */

typedef struct state_shape {
  int64_t layers, conv, matrix; /* layers with states, one more if odd; elements of a slot */
} state_shape;
/* Returns the sizes of the pools of states. */
state_shape pass_state_shape(const assay_model_config *config);
/* Returns the largest number of channels of a layer whose norm is tiled. */
int64_t pass_tiled_width(const assay_model_config *config);
/* Uploads the weights of norms of heads, once for each head. `host` has room for one layer. */
assay_status pass_tile_norms(pass *m, const assay_model_weights *weights, assay_error *error);

/* ---- latent.c ---- */

typedef struct latent_shape {
  int64_t layers, entry, c, pe; /* layers of the pool; channels of an entry, and of its two parts */
  int64_t absorb, expand;       /* elements of a layer's weights */
} latent_shape;
latent_shape pass_latent_shape(const assay_model_config *config);
/* Refuses a configuration whose entries or heads the calls cannot have. */
assay_status pass_latent_check(const assay_model_config *config, assay_error *error);
/* Makes and uploads the weights of absorbed attention, and the tensors that do not change. */
assay_status pass_latent_open(pass *m, const assay_model_weights *weights, assay_error *error);

/* ---- latent_expand.c ---- */

/* A step's requests, in host memory. */
typedef struct latent_batch {
  int64_t requests;
  const int32_t *cu_q, *kv_len, *table; /* [requests + 1], [requests], [requests, width] */
  int64_t width;
} latent_batch;

/* Lists that a plan fills, in host memory: [2 B], [2 B], [B max_blocks]. */
typedef struct latent_lists {
  int32_t *cu_q, *cu_k, *blocks;
} latent_lists;

/* Takes memory and makes weights where the form mla_expand is not off. A form `auto` becomes off where the operators do
 * not have the model's sizes. */
assay_status pass_expand_open(pass *m, assay_error *error);
void pass_expand_close(pass *m);
/* Cuts a step into runs. The caller uploads the lists to run_cu_q, run_cu_k and run_blocks before the step computes.
 * Returns the number of blocks in the list. */
int64_t pass_expand_plan(pass *m, const latent_batch *b, const latent_lists *to);
/* Attends with a run's rows of q over keys and values of every head. pool: the layer's entries. */
void pass_expand_attend(pass *m, const latent_run *r, const assay_tensor *pool, const assay_tensor *q,
                        const assay_tensor *out);

/* ---- session.c ---- */

assay_status pass_open(const char *device, const assay_model_config *config, const assay_model_weights *weights,
                       const assay_model_limits *limits, pass **made, assay_error *error);
void pass_close(pass *m);
/* Gives the tensors with one row per token N rows from here on, and the logits `count` rows. */
void pass_resize(pass *m, int64_t N, int64_t requests, int64_t count);

#endif
