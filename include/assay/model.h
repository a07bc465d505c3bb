/* model.h: a full forward pass: configuration, weights, the batch of one step, and the backends that run it. There are
 * eight families; the configuration gives all dimensions (docs/definitions.md, section 7):
 *   gpt2       learned positions, layer_norm, one fused QKV, gelu_new MLP.
 *   qwen3      rms_norm, GQA, qk_norm (without it: the Llama family), rope, SwiGLU.
 *   asynct     x <- x + post(sublayer(pre(x))) with uclip_norm, uclip qk_norm, neox rope, gate_attention, ReGLU.
 *   qwen3_moe  qwen3 with k of E experts in its sparse layers (without qk_norm: Mixtral).
 *   gpt_oss    rms_norm in f32, sinks, windows, biases, experts with a clamped gated activation.
 *   gemma2     rms_norm with 1 + g before and after each sublayer, windows, soft caps, a gated GELU.
 *   deepseek_v3  latent attention, experts in groups, an expert that all rows share, dense layers first.
 *   qwen3_next  a gated delta rule with a short convolution in most layers, gated attention in the others, experts.
 * There are two kinds of backend: "ref", f64 on the CPU, and the launchers' path on a device. */
#ifndef ASSAY_MODEL_H
#define ASSAY_MODEL_H

#include <stdbool.h>
#include <stdint.h>

#include "status.h"
#include "tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- configuration ----------------------------------------------------------------------------------- */

/* ASSAY_MODEL_FP8_BLOCK: rows and columns of a weight that share a scale, and channels of a row that do. */
enum { ASSAY_MODEL_MAX_TAPS = 8, ASSAY_MODEL_NAME = 64, ASSAY_MODEL_FP8_BLOCK = 128 };

typedef enum assay_model_arch {
  ASSAY_GPT2,
  ASSAY_QWEN3,
  ASSAY_ASYNCT,
  ASSAY_QWEN3_MOE,
  ASSAY_GPT_OSS,
  ASSAY_GEMMA2,
  ASSAY_DEEPSEEK_V3,
  ASSAY_QWEN3_NEXT,
  ASSAY_ARCH_COUNT
} assay_model_arch;
typedef enum assay_rope_style { ASSAY_ROPE_NEOX, ASSAY_ROPE_INTERLEAVED, ASSAY_ROPE_COUNT } assay_rope_style;
/* How the frequencies are stretched for a longer context: the kinds of rope_table, in its order. */
typedef enum assay_rope_kind { ASSAY_ROPE_PLAIN, ASSAY_ROPE_YARN, ASSAY_ROPE_LLAMA3, ASSAY_ROPE_KINDS } assay_rope_kind;

/* A set of layers. */
enum { ASSAY_MODEL_MAX_LAYERS = 1024 };
typedef struct assay_model_layers {
  uint64_t bits[ASSAY_MODEL_MAX_LAYERS / 64]; /* layer l is bit l % 64 of word l / 64 */
} assay_model_layers;
static inline bool assay_model_layer_in(const assay_model_layers *set, int64_t layer) {
  return layer >= 0 && layer < ASSAY_MODEL_MAX_LAYERS && (set->bits[layer / 64] >> (layer % 64) & 1) != 0;
}

typedef struct assay_model_config {
  assay_model_arch arch;
  int64_t layers;
  int64_t hidden;          /* C: width of the residual stream */
  int64_t heads, kv_heads; /* H, a multiple of H_kv */
  int64_t head_size;       /* D: a multiple of 8, at most 256; H · D need not be C. deepseek_v3: R channels are last */
  int64_t intermediate;    /* I; gpt2: usually 4 C */
  int64_t vocab, max_pos;
  double eps;                  /* eps of layer_norm and rms_norm */
  assay_rope_style rope_style; /* qwen3, asynct */
  double rope_base;            /* theta_i = base^(-2i/R) */
  int64_t rotated;             /* R: rotated channels; even, at most D; 0 in gpt2 */
  /* The rope table's other parameters, by the names of the operator rope_table. plain has none. */
  assay_rope_kind rope_kind;
  double rope_factor, rope_original;
  double rope_beta_fast, rope_beta_slow, rope_concentration; /* yarn; concentration 0: 0.1 ln(factor) + 1 */
  bool rope_truncate;                                        /* yarn */
  double rope_low, rope_high;                                /* llama3 */
  bool qk_norm;                                              /* qwen3, asynct, qwen3_moe */
  bool tied_head;                                            /* the head's weight is embed.w */
  bool qkv_bias, proj_bias, mlp_bias;                        /* biases of the linear layers */
  bool norm_bias;                                            /* layer_norm's b, uclip_norm's beta; qk_norm has none */
  /* uclip_norm: one value per channel, or a scalar. In qk_norm alpha is per channel and gamma a scalar, whatever these
   * fields say. */
  bool alpha_per_channel, gamma_per_channel;
  /* The gate of asynct. The taps and gamma_h are weights; seeded taps are made from gate_sigma. */
  int64_t gate_taps;                   /* F, 1 .. 8 */
  double gate_sigma, gate_lo, gate_hi; /* 0 <= lo <= hi */
  bool gate_relu_pre;
  /* Latent attention of deepseek_v3. The cache has one row of kv_rank + R numbers a token, and kv_heads is 1. */
  int64_t q_rank;     /* width between the two products of q; 0: one product */
  int64_t kv_rank;    /* R_kv */
  int64_t value_size; /* V: channels of a head's values */
  /* The gated delta rule of qwen3_next. Layers of `linear` have it in place of attention. Each request has a state in
   * such a layer: the last J = conv_taps - 1 rows of the convolution, and one matrix [D_k, D_v] a value head. */
  assay_model_layers linear;
  int64_t linear_key_heads, linear_value_heads; /* H_k, and H_v, a multiple of H_k */
  int64_t linear_key_size, linear_value_size;   /* D_k, D_v */
  int64_t conv_taps;                            /* J + 1, 2 .. 4 */
  /* Experts of qwen3_moe, gpt_oss, deepseek_v3 and qwen3_next. Layers that are not in `sparse` have a dense MLP. */
  int64_t experts, experts_used; /* E, 1 .. 1024, and k, 1 .. min(E, 32) */
  int64_t expert_size;           /* I of one expert */
  bool renormalise;            /* qwen3_moe, qwen3_next: weights are divided by their sum; in gpt_oss they always are */
  int64_t groups, groups_used; /* deepseek_v3: experts are chosen from the best groups */
  int64_t shared_size;         /* deepseek_v3, qwen3_next: I of the expert that all rows share; 0: no such expert */
  double route_scale;          /* deepseek_v3: factor of the weights */
  assay_model_layers sparse;
  double act_limit; /* gpt_oss: the clamp of the activation; 0: off */
  /* Attention of gpt_oss and gemma2. A layer of `windowed` sees the last `window` keys. */
  int64_t window; /* 0: all keys */
  assay_model_layers windowed;
  double score_scale;          /* gemma2, deepseek_v3; 0: 1 / sqrt(D) */
  double score_cap, logit_cap; /* gemma2: soft caps of scores and of logits; 0: off */
  assay_dtype weight_dtype;    /* f32, f16, bf16; taps, gamma_h, scales, sinks, router.bias are f32 */
  assay_dtype act_dtype;       /* dtype of activations: f32, f16, bf16 */
  bool fp8_weights;            /* products have weights of e4m3, and a scale for every 128 x 128 of them */
  assay_dtype kv_dtype;        /* act_dtype, e4m3 or e5m2 */
  int64_t block_size;          /* tokens: 8, 16, 32, 64, 128, 256 */
} assay_model_config;

/* Returns the production width of docs/definitions.md: gpt2 without GQA, qwen3 with 28 layers, asynct with 35; of
 * qwen3_moe, gpt_oss and gemma2 a published model's. bf16. */
assay_model_config assay_model_production(assay_model_arch arch);
/* Refuses an invalid configuration. ASSAY_ERR_INPUT names the field, what was found and what is allowed. */
assay_status assay_model_check(const assay_model_config *config, assay_error *error);
/* Tells whether a layer's MLP is made of experts. */
bool assay_model_is_sparse(const assay_model_config *config, int64_t layer);
/* Tells whether a layer has the gated delta rule in place of attention. */
bool assay_model_is_linear(const assay_model_config *config, int64_t layer);
/* Tells whether requests have states beside their cached keys and values. */
bool assay_model_has_states(const assay_model_config *config);
/* Returns the window of a layer; 0: it sees all keys. */
int64_t assay_model_window(const assay_model_config *config, int64_t layer);
/* Tells whether latent attention multiplies less by keys and values of every head than by entries. The request has
 * `tokens` new tokens and `length` in all. The form mla_expand=auto follows it. */
bool assay_model_expands(const assay_model_config *config, int64_t tokens, int64_t length);
const char *assay_model_arch_name(assay_model_arch arch);  /* "gpt2", "qwen3", "asynct", ... */
const char *assay_rope_style_name(assay_rope_style style); /* "neox", "interleaved" */
const char *assay_rope_kind_name(assay_rope_kind kind);    /* "plain", "yarn", "llama3" */
/* Writes F taps w = (1 - sigma/F, -sigma/F, ...): the score less sigma times the mean of its last F rectified
 * values. */
void assay_taps_from_sigma(double sigma, int64_t F, double *taps);

/* ---- weights -----------------------------------------------------------------------------------------
 *
 * Each name has one tensor, dense and row-major; linear layers are [out, in]. <L> is the layer, 0-based. <norm> stands
 * for .g (and .b) of layer_norm and rms_norm, and for .alpha, .gamma (and .beta) of uclip_norm.
 *   embed.w              [V, C]
 *   embed_pos.w          [max_pos, C]                 gpt2
 *   layers.<L>.attn.pre<norm>
 *   layers.<L>.attn.qkv.w, .b    [(H + 2 H_kv) D, C]: all heads of q, then of k, then of v
 *   layers.<L>.attn.q_norm<norm>, .k_norm<norm>       [D]; uclip: alpha [D], gamma [1]
 *   layers.<L>.attn.taps, .gamma [F], [H]             asynct, f32
 *   layers.<L>.attn.k_scale, .v_scale [H_kv]          fp8 caches, f32
 *   layers.<L>.attn.sinks        [H]                  gpt_oss, f32
 *   layers.<L>.attn.proj.w, .b   [C, H D]             deepseek_v3: [C, H V]
 *   layers.<L>.attn.post<norm>                        asynct, gemma2
 *   layers.<L>.mlp.pre<norm>
 *   layers.<L>.mlp.up.w, .b      gpt2 [I, C]; else [2 I, C], the gate half first
 *   layers.<L>.mlp.down.w, .b    [C, I]
 *   layers.<L>.mlp.post<norm>                         asynct, gemma2
 * A sparse layer has no mlp.up and mlp.down, but these. I is that of one expert, and .b is gpt_oss's, with mlp_bias:
 *   layers.<L>.router.w, .b      [E, C]
 *   layers.<L>.experts.up.w, .b  [E 2 I, C], expert after expert: the gate half first; gpt_oss: gate and up in turn
 *   layers.<L>.experts.down.w, .b [E C, I], expert after expert; .b [E C]
 * deepseek_v3 has these in place of attn.qkv, and more of a sparse layer. S is shared_size:
 *   layers.<L>.attn.q_a.w        [q_rank, C], with attn.q_norm.g [q_rank]; both only with q_rank
 *   layers.<L>.attn.q_b.w        [H D, q_rank]; without q_rank [H D, C]
 *   layers.<L>.attn.kv_a.w       [kv_rank + R, C], with attn.kv_norm.g [kv_rank]
 *   layers.<L>.attn.kv_b.w       [H (D - R + V), kv_rank], head after head: D - R rows of keys, V rows of values
 *   layers.<L>.router.bias       [E] f32
 *   layers.<L>.shared.up.w, .down.w [2 S, C], [C, S]; with S
 * qwen3_next has shared.up, shared.down and these. H_k, H_v, D_k and D_v are the sizes of the delta rule. Its layers of
 * `linear` have none of attn, except attn.pre:
 *   layers.<L>.attn.gate.w       [H D, C]
 *   layers.<L>.shared.gate.w     [1, C]
 *   layers.<L>.delta.in.w        [2 H_k D_k + 2 H_v D_v + 2 H_v, C]: all of q, k, v, z, b, a in this order
 *   layers.<L>.delta.conv.w      [2 H_k D_k + H_v D_v, J + 1], the oldest row's tap first
 *   layers.<L>.delta.A_log, .dt_bias [H_v] f32
 *   layers.<L>.delta.norm.g      [D_v]
 *   layers.<L>.delta.proj.w      [C, H_v D_v]
 *   final<norm>
 *   head.w               [V, C]                       unless tied
 *
 * With fp8_weights some products have codes of e4m3 in .w. They are attn.q_a, q_b, kv_a, qkv, gate and proj, delta.in
 * and proj, and up and down of mlp, experts and shared. Each is followed by its scales, f32:
 *   layers.<L>.<product>.s       [out / 128, in / 128], rounded up: w = code · scale of its block */

typedef struct assay_weight_spec {
  char name[ASSAY_MODEL_NAME];
  assay_dtype dtype;
  int32_t rank;
  int64_t shape[2];
} assay_weight_spec;

/* Returns the number of weights, counted in the order above. The configuration must have been checked. */
int32_t assay_model_weight_count(const assay_model_config *config);
/* Describes weight number `index`. Returns false if there is no such weight. */
bool assay_model_weight_spec(const assay_model_config *config, int32_t index, assay_weight_spec *spec);
/* Returns the number of the weight with this name; -1 if there is no such weight. */
int32_t assay_model_weight_index(const assay_model_config *config, const char *name);

typedef struct assay_model_weights {
  int32_t count;
  assay_tensor *tensor; /* [count], in the order of the specs */
  void *memory;         /* holds all tensors, if assay_model_weights_alloc made them */
} assay_model_weights;

/* Allocates zeroed memory for every weight of a configuration, each on a 256-byte boundary. The caller frees it with
 * assay_model_weights_free(). ASSAY_ERR_MEMORY: it does not fit. */
assay_status assay_model_weights_alloc(const assay_model_config *config, assay_model_weights *weights,
                                       assay_error *error);
/* Frees what assay_model_weights_alloc() made and zeroes the struct. */
void assay_model_weights_free(assay_model_weights *weights);
/* Checks every tensor against its spec: dtype, shape, dense. The message names the weight. */
assay_status assay_model_weights_check(const assay_model_config *config, const assay_model_weights *weights,
                                       assay_error *error);
/* Fills allocated weights with values from a seed, the same on any machine. Their scales keep a forward pass sensible.
 * In asynct 30 ± 2 % of the visible keys are live over a prompt of random ids. */
assay_status assay_model_seed(const assay_model_config *config, uint64_t seed, assay_model_weights *weights,
                              assay_error *error);
/* Makes a configuration with fp8_weights, and its weights, of a model without. The scale of a block is its largest
 * absolute value / 448, in f32; a block of zeros has scale 1. The caller frees *narrow. ASSAY_ERR_INPUT: a size is not
 * a multiple of 128, a weight is not finite, or the model has such weights already. */
assay_status assay_model_narrow(const assay_model_config *config, const assay_model_weights *weights,
                                assay_model_config *narrow_config, assay_model_weights *narrow, assay_error *error);
/* Writes the n ids of prompt `number`, uniform over the vocabulary. */
void assay_model_prompt(const assay_model_config *config, uint64_t seed, int64_t number, int64_t n, int32_t *ids);

/* ---- one step ----------------------------------------------------------------------------------------
 *
 * A batch holds requests with new tokens side by side: prefill, chunks of it, decode, mixed. All pointers are host
 * memory. A step makes its copies first. Then every layer writes the new tokens' keys and values and attends over the
 * tables. */
typedef struct assay_model_batch {
  int64_t requests;    /* B */
  const int32_t *cu_q; /* [B + 1] first new token of each request; cu_q[B] = N */
  const int32_t *ids;  /* [N] */
  /* [B] length after this step; the new tokens are the last ones. 0 with one new token: a pad row, which touches
   * nothing. */
  const int32_t *kv_len;
  const int64_t *slots; /* [N] block · block_size + offset; -1: pad row */
  /* [B, max_blocks] Entries past ceil(kv_len / block_size) are not read. */
  const int32_t *block_table;
  int64_t max_blocks;
  const int32_t *copies; /* [copy_count, 2] source and target block */
  int64_t copy_count;
  const int32_t *logit_rows; /* [logit_count] which of the N rows get logits */
  int64_t logit_count;
  /* Families with states alone. The slot of each request's state, in the pool of num_states; -1: a pad row. A request
   * whose new tokens are its first ones starts from zeros, and reads nothing of its slot. */
  const int32_t *states; /* [B] */
  /* [state_copy_count, 2] source and target slot: states that are kept or restored. They are copied first. No target
   * may be another pair's source or target. */
  const int32_t *state_copies;
  int64_t state_copy_count;
} assay_model_batch;

/* Intermediates, for a comparison layer by layer. Rows are the step's tokens unless stated otherwise. Values are as
 * stored.
 *   embed                                   the input of layer 0
 *   layers.<L>.attn.pre, .qkv               [C], [(H + 2 H_kv) D] with bias
 *   layers.<L>.attn.q_norm, .k_norm         [H D], [H_kv D]; with qk_norm
 *   layers.<L>.attn.q, .k, .v               rotated; k and v as the cache receives them, before it quantises them
 *   layers.<L>.attn.out                     [H D]
 *   layers.<L>.attn.proj                    [C] without bias in gpt2, whose bias_residual adds it
 *   layers.<L>.attn.post                    asynct, gemma2
 *   layers.<L>.attn.residual
 *   layers.<L>.mlp.pre, .up, .act, .down, .post, .residual     likewise; gpt2's up is without bias
 *   layers.<L>.router, .router.ids, .router.weights            sparse layers, for up, act and down: the logits [E], the
 *                                           chosen ids [k], their weights [k]
 *   layers.<L>.moe.out                      [C] the weighted sum of the experts, and the shared expert's result
 *   layers.<L>.attn.q_a, .q_norm, .q_b, .kv_a, .kv_norm      deepseek_v3, for qkv, q_norm and k_norm
 *   layers.<L>.attn.k_pe                    [R] deepseek_v3, for k and v: rotated; the cache has it after kv_norm's row
 *   layers.<L>.shared.up, .act, .down       deepseek_v3: sparse layers
 *   layers.<L>.attn.gate, .gated            [H D] qwen3_next: the gate before its sigmoid; attn.out times the sigmoid
 *   layers.<L>.delta.in, .conv              qwen3_next, layers of `linear`, for qkv: see the weights; conv: of q, k, v
 *   layers.<L>.delta.g, .beta               [H_v] the decay's logarithm, and the share of an update
 *   layers.<L>.delta.out, .norm             [H_v D_v]; norm: times silu(z)
 *   layers.<L>.delta.proj                   [C] for attn.proj
 *   layers.<L>.shared.gate, .weight, .weighted  [1], [1], [C] qwen3_next: the gate before its sigmoid, the sigmoid, the
 *                                           expert's result times it
 *   final, logits                           logit_count rows
 * "ref" alone also has these, where asked for:
 *   layers.<L>.attn.s, .p                   [N · H rows, longest kv_len]: scaled scores (-Inf where not visible), and
 *                                           the factors of V
 *   layers.<L>.attn.proj.biased, .mlp.up.biased, .mlp.down.biased     gpt2 */
typedef struct assay_model_taps {
  void *context;
  bool (*wants)(void *context, const char *name); /* NULL: everything */
  void (*take)(void *context, const char *name, int64_t rows, int64_t width, const double *value);
  /* "ref" alone: may replace the ids [rows, k] that a router has chosen; the weights follow from them. The ids of a row
   * must differ and be in [0, E). NULL: no ids are replaced. */
  void (*choose)(void *context, const char *name, int64_t rows, int64_t k, int32_t *ids);
} assay_model_taps;

/* ---- backends ----------------------------------------------------------------------------------------- */

/* How a backend rounds. EXACT: f64 from the stored weights on, keys and values too. MIRROR: f64 inside operators,
 * rounded where a device stores. That is every operator's output to act_dtype, new keys and values to kv_dtype, the
 * rope table, and logits to f32. A device path rounds in its own way and ignores both modes. */
typedef enum assay_model_mode { ASSAY_MODEL_EXACT, ASSAY_MODEL_MIRROR } assay_model_mode;

/* Which operators a device path uses, to compare one choice with another. All words are "name=value". A form is a fused
 * operator that stands in for others. off: the others are called. on: the fused operator is called, or the call is
 * refused with the reason. auto: the fused operator is called where a variant takes the call. A form that is on takes
 * the calls of a form that is auto. In the table the fused operator stands before '|', the others after it.
 *   qk_norm                  qk_norm | rms_norm or uclip_norm, head by head
 *   append                   attention_append | kv_append, then attention; steps of one token per request
 *   mmha                     mmha | rope and the operators of append, the bias apart; same steps, without qk_norm
 *   add_norm                 add_rms_norm, add_layer_norm, add_uclip_norm | bias_residual, then the norm; in gpt2 only
 *                            where there is no bias
 *   post_pre_uclip           post_attn_pre_mlp_uclip | uclip_norm, bias_residual, uclip_norm; asynct
 *   bias_gelu_new            gemm, bias_gelu_new | gemm with the bias, bias_gelu_new with zeros; gpt2
 *   bias_residual            gemm, bias_residual | gemm with the bias, bias_residual without; gpt2
 *   gemm_glu                 gemm_glu | gemm, then swiglu or reglu; dense MLPs without biases, auto up to 32 rows
 *   gemm_seam                gemm_post_pre_uclip | gemm, then as post_pre_uclip; asynct without biases, auto likewise
 *   gemm_norm                gemm_residual, then rms_gemm or gemm_glu | gemm, add_norm, gemm; qwen3 likewise
 *   mla_expand               softmax_attention over keys and values of every head | mla_attention over entries;
 *                            deepseek_v3 alone. It takes requests with several new tokens.
 * Forced variants are "op=name" or "op=name,other". Every call of the operator goes to the first of them that takes it.
 * A call that none of them takes is an error. Words of the same operator add to one list. */
typedef struct assay_model_options {
  const char *const *form; /* "append=on" */
  int32_t forms;
  const char *const *variant; /* "gemm=tiles", "gate_attention=stream,wgmma" */
  int32_t variants;
  /* Steps with prompt tokens attend row by row, as decode does, where no request has more than `short_tail` new tokens.
   * Each row then is a request of its own. 0: no step does. At most ASSAY_MODEL_SHORT_TAIL. */
  int32_t short_tail;
  /* A row's results have the same bits in every batch, chunk and order. A prefix may be found or computed, and a graph
   * or single calls may run. Only variants whose contract promises `alone` are called. A decoded token attends as a
   * prompt of one token, unless one_launch is on. Then an engine takes that kernel for all generated tokens, and its
   * max_batch is 32 at most. Refused beside short_tail, beside the forms append, mmha and mla_expand, and beside forced
   * variants without the promise. */
  bool invariant;
} assay_model_options;
enum { ASSAY_MODEL_SHORT_TAIL = 64 };

/* The calls of one operator that took one variant and, inside it, one path. */
typedef struct assay_model_path {
  const char *op, *variant, *path; /* path: as the launch reports it, "" if it reports none */
  const char *stage;               /* stage of the last call: "attn.qkv" */
  int64_t layer;                   /* layer of the last call; -1: outside the layers */
  int64_t calls;
} assay_model_path;

/* Limits of one session; its memory is allocated at open(). */
typedef struct assay_model_limits {
  int64_t num_blocks;   /* pool */
  int64_t max_tokens;   /* N of a step */
  int64_t max_requests; /* B of a step */
  int64_t max_logits;   /* logit_count of a step */
  int64_t num_states;   /* slots of the state pool: 1 and more in families with states, 0 in others */
} assay_model_limits;

typedef struct assay_model_session assay_model_session;

/* A backend: one way to run the forward pass. */
typedef struct assay_model_backend {
  const char *name; /* "ref", "simt", "cuda" */
  /* Opens a session. "ref" does not copy the weights: they must outlive the session. */
  assay_status (*open)(const assay_model_config *config, const assay_model_weights *weights,
                       const assay_model_limits *limits, assay_model_mode mode, assay_model_session **made,
                       assay_error *error);
  /* Runs one step and writes logits [logit_count, V]. taps may be NULL. ASSAY_ERR_INPUT names the request or row (id,
   * slot, table entry, length, duplicate slot); nothing was written then. */
  assay_status (*forward)(assay_model_session *session, const assay_model_batch *batch, double *logits,
                          const assay_model_taps *taps, assay_error *error);
  void (*close)(assay_model_session *session); /* NULL is allowed */
  /* set_options() comes before the first step and replaces earlier options. ASSAY_ERR_INPUT names an unknown word and
   * lists the known ones. It also refuses a form that is on although the model cannot have it, or beside another form
   * that takes its calls. "ref" knows the form mla_expand alone, which says where its mirror rounds. */
  assay_status (*set_options)(assay_model_session *session, const assay_model_options *options, assay_error *error);
  /* NULL for "ref". Describes calls; `index` counts from 0. Returns false past the last entry. */
  bool (*path)(const assay_model_session *session, int32_t index, assay_model_path *path);
  /* NULL for "ref". Checks, at the end of a run, that forced variants and forms were used. ASSAY_ERR_INPUT names the
   * forced variants, or the form that is on, that no call took so far. */
  assay_status (*check_forced)(const assay_model_session *session, assay_error *error);
} assay_model_backend;

const assay_model_backend *assay_model_ref(void);
/* Return a device's backend. Its open() returns ASSAY_ERR_NO_DEVICE where the build or the machine has no such
 * device. */
const assay_model_backend *assay_model_simt(void);
const assay_model_backend *assay_model_cuda(void);

#ifdef __cplusplus
}
#endif
#endif
