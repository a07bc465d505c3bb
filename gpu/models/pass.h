/* pass.h: one session of a forward pass over launchers, and the calls a forward pass is written in.
 *
 * The same pages as the reference's, but a call picks a variant of its operator from the registry, the first that takes
 * it, and launches it into the device's stream. What a variant declines goes to the next one of the table; if none is
 * left, the pass ends with the last one's reason. A failure stays: later calls do nothing.
 *
 * A residual, and in asynct the norm before it, waits for the norm that follows, and becomes one call with it where the
 * form is on and a variant takes it. */
#ifndef ASSAY_GPU_MODELS_PASS_H
#define ASSAY_GPU_MODELS_PASS_H

#include "assay/device.h"
#include "assay/engine.h"
#include "assay/model.h"
#include "assay/variant.h"
#include "core/model_step.h"

/* Mistakes that a test plants, one at a time, to see them found; a build without ASSAY_ENGINE_MUTANT has none. */
#ifdef ASSAY_ENGINE_MUTANT
enum {
  ENGINE_NO_MISTAKE,
  ENGINE_SLOT_OF_NEIGHBOUR,
  ENGINE_STALE_LENGTH,
  ENGINE_STALE_TABLE,
  ENGINE_PAD_WRITES,
  ENGINE_UPLOAD_TOO_EARLY,
  ENGINE_STEP_TOO_EARLY,
  ENGINE_PINNED_TOO_EARLY,
  ENGINE_TOKENS_OVERWRITTEN,
  ENGINE_ARRANGED_TOO_EARLY,
  ENGINE_NOT_ARRANGED,
  ENGINE_NOT_CARRIED,
  ENGINE_OTHER_HALF,
  ENGINE_COPIES_LOST,
  ENGINE_STEP_NUMBER_STALE,
  ENGINE_TOKEN_OF_NEIGHBOUR,
  ENGINE_GRAPH_OF_OTHER_HALF,
  ENGINE_RESIDUAL_AFTER_NORM,
  ENGINE_APPENDED_AGAIN, /* keys that are not rotated over those that are */
  ENGINE_TAIL_SEES_ALL,
  ENGINE_TAIL_OF_FIRST,
  ENGINE_LIST_OF_ONE,      /* the second forced variant is never looked at */
  ENGINE_FORCE_FORGOTTEN,  /* nobody asks whether what was forced was taken */
  ENGINE_WAITS_FOR_DEVICE, /* each step waits until the device has nothing to do */
  ENGINE_WAITS_FOR_TOKENS, /* each step waits for the tokens of the one before */
  ENGINE_READS_BACK,       /* each step fetches something */
  ENGINE_MISTAKES
};
#define MISTAKE(which) (ASSAY_ENGINE_MUTANT == (which))
#else
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
  const assay_variant **row;    /* this device's, by operator, */
  int32_t *first;               /* [operators + 1] from where on */
  const assay_variant **forced; /* as row: from `first` on, `wanted` of them, in the order in which they were named */
  int32_t *wanted;              /* [operators] 0: the first of `row` that takes the call */
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

/* Calls that are made in all but the launch: not told to hooks, not counted as calls. */
typedef struct pass_left_out {
  const assay_op *op;           /* NULL: none */
  const assay_variant *variant; /* NULL: whichever takes the call */
  int64_t calls;                /* so far */
} pass_left_out;

typedef struct pass {
  assay_model_config config;
  assay_model_limits limits;
  const assay_device *device;
  int32_t multiprocessors, memory_rate;
  model_step step; /* rows, positions and slots of this step, in host memory */

  /* Device memory, one allocation. Tensors of a step have its sizes; their data stay where they are. */
  void *memory;
  int64_t memory_bytes;
  assay_tensor *weight;   /* as assay_model_weight_spec orders them */
  struct pass_name *name; /* of weights, by hash */
  int64_t name_mask;
  assay_tensor cosine, sine;          /* f32 [max_pos, R/2] */
  assay_tensor k_pool, v_pool;        /* [layers, num_blocks, block_size, H_kv, D] */
  assay_tensor x, h, y, z;            /* [N, C] residual stream, normalised, result of a sublayer, that normalised */
  assay_tensor zeros, no_taps;        /* a bias of zeros; f32 for arguments that are not read */
  assay_tensor qkv, out;              /* [N, (H + 2 H_kv) D], [N, H D] */
  assay_tensor up, gated;             /* [N, I or 2 I], [N, I] */
  assay_tensor logits;                /* f32 [logit_count, V] */
  assay_tensor ids, positions, slots; /* [N] i32, i32, i64 */
  assay_tensor kv_len, cu_q, table;   /* i32 [B], [B + 1], [B, max_blocks] */
  assay_tensor rows, copies;          /* i32 [logit_count], i64 [copies, 2] */
  /* Of a step that attends row by row (tails.c). */
  void *tail_memory;
  assay_tensor tail_request, tail_len,
      tail_table;     /* i32 [N], [N], [N, max_blocks]: each row's request, length, table */
  int32_t short_tail; /* 0: no step does */
  void *workspace;
  int64_t workspace_bytes;
  void *host; /* as large as the largest tensor of a step: what is uploaded or looked at */

  pass_choices choices;
  pass_counts counts;
  pass_left_out left_out;
  assay_engine_hooks hooks;
  void *stream;   /* of launches */
  bool measuring; /* nothing is launched: measured_bytes becomes the largest workspace */
  int64_t measured_bytes;

  const assay_model_batch *batch;
  const assay_model_taps *taps;
  bool decode;                                                /* every request has one new token */
  bool tails;                                                 /* it does not, and attends row by row */
  int64_t layer;                                              /* -1: outside */
  const char *stage;                                          /* for counts and hooks */
  enum { PASS_SEPARATE, PASS_APPENDS, PASS_WHOLE } attention; /* the operator that attends also appends, also rotates */
  struct {
    const char *post, *residual, *linear; /* stages that wait; NULL: none */
    const assay_tensor *from, *y, *x;     /* of post, of the residual */
    int64_t layer;
  } waiting;
  assay_status status;
  assay_error *error;
} pass;

/* ---- calls of a forward pass (stages.c, heads.c); `name`: the stage's, which its weights and its tap bear ---- */

void pass_embed(pass *m, const assay_tensor *x);
/* y = norm(x), whichever norm the family has; y may be x */
void pass_norm(pass *m, const char *name, const assay_tensor *x, const assay_tensor *y);
void pass_linear(pass *m, const char *name, const assay_tensor *x, const assay_tensor *y, bool biased);
/* Heads of q and k normalised and rotated where they lie, if the family does so; k and v to the cache. */
void pass_heads(pass *m, const assay_tensor *qkv);
void pass_softmax_attention(pass *m, const assay_tensor *qkv, const assay_tensor *out);
void pass_gate_attention(pass *m, const assay_tensor *qkv, const assay_tensor *out);
/* x += y, and the bias of the stage `linear` (NULL: none) */
void pass_residual(pass *m, const char *name, const assay_tensor *y, const char *linear, const assay_tensor *x);
void pass_bias_gelu_new(pass *m, const char *name, const assay_tensor *up, const char *linear, const assay_tensor *act);
void pass_swiglu(pass *m, const char *name, const assay_tensor *up, const assay_tensor *act);
void pass_reglu(pass *m, const char *name, const assay_tensor *up, const assay_tensor *act);
void pass_copy_blocks(pass *m);
/* The final norm of every row, and logits of those that want them. */
void pass_head(pass *m, const assay_tensor *x, const assay_tensor *h);

void pass_gpt2(pass *m);
void pass_qwen3(pass *m);
void pass_asynct(pass *m);
/* The family's. */
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

/* One operator. Arguments without data are absent; parameters that are not given have the operator's fallback. */
void pass_call(pass *m, const char *op, const pass_arg *args, const pass_param *params);
/* The same as a form: false where it is off, or auto and no variant takes the call; then nothing happened. */
bool pass_call_form(pass *m, pass_form form, const char *op, const pass_arg *args, const pass_param *params);
/* Would it be taken? */
bool pass_would_call(pass *m, pass_form form, const char *op, const pass_arg *args, const pass_param *params);
/* The stage's weight, or a tensor without data where the configuration has none. */
assay_tensor pass_weight(const pass *m, const char *name, const char *part);
/* [N, heads, D]: heads of fused rows, from channel `first` on. */
assay_tensor pass_view(const pass *m, const assay_tensor *rows, int64_t first, int64_t heads);
/* Does somebody want the stage? */
bool pass_wants(const pass *m, const char *name);
/* Gives `count` rows of `width` channels from `first` on away, if somebody wants the stage. */
void pass_take(pass *m, const char *name, const assay_tensor *y, int64_t first, int64_t width);
/* The rows that want logits. */
void pass_take_picked(pass *m, const char *name, const assay_tensor *y);
void pass_fail(pass *m, assay_status status);

assay_status pass_names_open(pass *m, assay_error *error);

/* ---- tails.c ---- */

/* Memory for steps that attend row by row; short_tail 0: for none. */
assay_status pass_tails_open(pass *m, int32_t short_tail, assay_error *error);
void pass_tails_close(pass *m);
/* Does a step with so many new tokens of each request, as cu_q [requests + 1] has them, attend row by row? */
bool pass_short(const pass *m, const int32_t *cu_q, int64_t requests);
/* Lengths of the rows of a request that has `length` keys behind its `count` new tokens; 0: pad rows. */
void pass_tail_lengths(int32_t length, int64_t count, int32_t *to);
/* The rows' tables, of those of the step's requests; tail_request and tail_len are there. */
void pass_tails(pass *m);

/* ---- choice.c ---- */

assay_status pass_choices_open(pass *m, assay_error *error);
/* In place of what was set before. ASSAY_ERR_INPUT: also a form that is on and that the model cannot have. */
assay_status pass_choices_set(pass *m, const assay_model_options *options, assay_error *error);
/* ASSAY_ERR_INPUT names the forced variants, or the form that is on, that no call so far took. */
assay_status pass_check_forced(const pass *m, assay_error *error);
void pass_choices_close(pass *m);
/* An operator and its variant on this device, by name; name NULL: *variant is NULL. */
assay_status pass_find_variant(const pass *m, const char *op, const char *name, const assay_op **found,
                               const assay_variant **variant, assay_error *error);
/* One call more. */
void pass_count_call(pass *m, const assay_variant *variant, const char *path);
bool pass_path(const pass *m, int32_t index, assay_model_path *path);

/* ---- session.c ---- */

assay_status pass_open(const char *device, const assay_model_config *config, const assay_model_weights *weights,
                       const assay_model_limits *limits, pass **made, assay_error *error);
void pass_close(pass *m);
/* The tensors that have a row a token have N rows from here on; with count rows of logits. */
void pass_resize(pass *m, int64_t N, int64_t requests, int64_t count);

#endif
