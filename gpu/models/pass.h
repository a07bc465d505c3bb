/* pass.h: one session of a forward pass over launchers, and the calls in which a forward pass is written.
 *
 * The pages are the same as the reference's. A call here picks a variant of its operator from the registry, the first
 * that takes the call, and launches it into the device's stream. A call that one variant declines goes to the next one
 * of the table. If none is left, the pass ends with the last variant's reason. A failure stays: later calls do nothing.
 *
 * A residual waits for the norm that follows it, and in asynct so does the norm before the residual. The waiting stages
 * become one call with that norm where the form is on and a variant takes the call. */
#ifndef ASSAY_GPU_MODELS_PASS_H
#define ASSAY_GPU_MODELS_PASS_H

#include "assay/device.h"
#include "assay/engine.h"
#include "assay/model.h"
#include "assay/variant.h"
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
  PASS_ADD_NORM,
  PASS_POST_PRE_UCLIP,
  PASS_BIAS_GELU_NEW,
  PASS_BIAS_RESIDUAL,
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
} pass_left_out;

typedef struct pass {
  assay_model_config config;
  assay_model_limits limits;
  const assay_device *device;
  int32_t multiprocessors, memory_rate;
  model_step step; /* rows, positions and slots of this step, in host memory */

  /* Device memory, one allocation. Tensors of a step take the step's sizes; their data do not move. */
  void *memory;
  int64_t memory_bytes;
  assay_tensor *weight;   /* as assay_model_weight_spec orders them */
  struct pass_name *name; /* names of weights, by hash */
  int64_t name_mask;
  assay_tensor cosine, sine;   /* f32 [max_pos, R/2] */
  assay_tensor k_pool, v_pool; /* [layers, num_blocks, block_size, H_kv, D] */
  assay_tensor x, h, y, z;     /* [N, C] residual stream, x normalised, result of a sublayer, y normalised */
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
  assay_tensor logits;                           /* f32 [logit_count, V] */
  assay_tensor ids, positions, slots;            /* [N] i32, i32, i64 */
  assay_tensor kv_len, cu_q, table;              /* i32 [B], [B + 1], [B, max_blocks] */
  assay_tensor rows, copies;                     /* i32 [logit_count], i64 [copies, 2] */
  /* For a step that attends row by row (tails.c). */
  void *tail_memory;
  assay_tensor tail_request, tail_len,
      tail_table;     /* i32 [N], [N], [N, max_blocks]: each row's request, length, table */
  int32_t short_tail; /* 0: no step attends row by row */
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
  bool decode;       /* every request has one new token */
  bool tails;        /* some request has more; the step attends row by row */
  int64_t layer;     /* -1: outside of the layers */
  const char *stage; /* for counts and hooks */
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
/* Chooses the experts of every row, and weighs them. */
void pass_route(pass *m, const char *name, const assay_tensor *logits);
/* Copies every row to the places of its experts, sorted by expert, and reads where each expert's rows begin. */
void pass_permute(pass *m, const assay_tensor *x, const assay_tensor *routed);
/* Computes the product of each expert's rows. */
void pass_expert_linear(pass *m, const char *name, const assay_tensor *x, const assay_tensor *y);
/* Adds a row's results by its weights. */
void pass_combine(pass *m, const char *name, const assay_tensor *routed, const assay_tensor *y);
void pass_copy_blocks(pass *m);
/* Computes the final norm of every row, and the logits of the rows that want them. */
void pass_head(pass *m, const assay_tensor *x, const assay_tensor *h);

void pass_gpt2(pass *m);
void pass_qwen3(pass *m);
void pass_asynct(pass *m);
void pass_qwen3_moe(pass *m);
void pass_gpt_oss(pass *m);
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

/* ---- session.c ---- */

assay_status pass_open(const char *device, const assay_model_config *config, const assay_model_weights *weights,
                       const assay_model_limits *limits, pass **made, assay_error *error);
void pass_close(pass *m);
/* Gives the tensors with one row per token N rows from here on, and the logits `count` rows. */
void pass_resize(pass *m, int64_t N, int64_t requests, int64_t count);

#endif
