/* model.h: a full forward pass: configuration, weights, one step's batch, and what runs it. Three families, all
 * dimensions from the configuration (operator definitions, section 7):
 *   gpt2    learned positions, layer_norm, one fused QKV, gelu_new MLP
 *   qwen3   rms_norm, GQA, qk_norm (without it: the Llama family), rope, SwiGLU
 *   asynct  x <- x + post(sublayer(pre(x))) with uclip_norm, uclip qk_norm, neox rope, gate_attention, ReGLU
 * Two backends: "ref", f64 on the CPU, and the launchers' path on a device. */
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

enum { ASSAY_MODEL_MAX_TAPS = 8, ASSAY_MODEL_NAME = 64 };

typedef enum assay_model_arch { ASSAY_GPT2, ASSAY_QWEN3, ASSAY_ASYNCT, ASSAY_ARCH_COUNT } assay_model_arch;
typedef enum assay_rope_style { ASSAY_ROPE_NEOX, ASSAY_ROPE_INTERLEAVED, ASSAY_ROPE_COUNT } assay_rope_style;

typedef struct assay_model_config {
  assay_model_arch arch;
  int64_t layers;
  int64_t hidden;          /* C: width of the residual stream */
  int64_t heads, kv_heads; /* H, a multiple of H_kv */
  int64_t head_size;       /* D: a multiple of 8, at most 256; H · D need not be C */
  int64_t intermediate;    /* I; gpt2: usually 4 C */
  int64_t vocab, max_pos;
  double eps;                                /* layer_norm, rms_norm */
  assay_rope_style rope_style;               /* qwen3, asynct */
  double rope_base;                          /* theta_i = base^(-2i/R) */
  int64_t rotated;                           /* R: rotated channels, even, at most D; gpt2: 0 */
  bool qk_norm;                              /* qwen3, asynct */
  bool tied_head;                            /* the head is embed.w */
  bool qkv_bias, proj_bias, mlp_bias;        /* biases of the linear layers */
  bool norm_bias;                            /* layer_norm's b, uclip_norm's beta; qk_norm has none */
  bool alpha_per_channel, gamma_per_channel; /* uclip_norm: one a channel, or a scalar; qk_norm: alpha is per channel
                                                and gamma a scalar, whatever these say */
  /* asynct's gate. The taps and gamma_h are weights; gate_sigma is what seeded taps are made from. */
  int64_t gate_taps;                   /* F, 1 .. 8 */
  double gate_sigma, gate_lo, gate_hi; /* 0 <= lo <= hi */
  bool gate_relu_pre;
  assay_dtype weight_dtype; /* f32, f16, bf16; taps, gamma_h and scales are f32 */
  assay_dtype act_dtype;    /* f32, f16, bf16: activations */
  assay_dtype kv_dtype;     /* act_dtype, e4m3 or e5m2 */
  int64_t block_size;       /* tokens: 8, 16, 32, 64, 128, 256 */
} assay_model_config;

/* The production width of the definitions: gpt2 without GQA, qwen3 28 layers, asynct 35, bf16. */
assay_model_config assay_model_production(assay_model_arch arch);
/* ASSAY_ERR_INPUT names the field, what was found and what is allowed. */
assay_status assay_model_check(const assay_model_config *config, assay_error *error);
const char *assay_model_arch_name(assay_model_arch arch);  /* "gpt2", "qwen3", "asynct" */
const char *assay_rope_style_name(assay_rope_style style); /* "neox", "interleaved" */
/* w = (1 - sigma/F, -sigma/F, ...): the score less sigma times the mean of its last F rectified values. */
void assay_taps_from_sigma(double sigma, int64_t F, double *taps);

/* ---- weights -----------------------------------------------------------------------------------------
 *
 * One tensor a name, dense, row-major; linear layers are [out, in]. <L> is the layer, 0-based; <norm> stands for .g
 * (and .b) of layer_norm and rms_norm, .alpha, .gamma (and .beta) of uclip_norm. embed.w              [V, C]
 *   embed_pos.w          [max_pos, C]                 gpt2
 *   layers.<L>.attn.pre<norm>
 *   layers.<L>.attn.qkv.w, .b    [(H + 2 H_kv) D, C]: all heads of q, then of k, then of v
 *   layers.<L>.attn.q_norm<norm>, .k_norm<norm>       [D]; uclip: alpha [D], gamma [1]
 *   layers.<L>.attn.taps, .gamma [F], [H]             asynct, f32
 *   layers.<L>.attn.k_scale, .v_scale [H_kv]          fp8 caches, f32
 *   layers.<L>.attn.proj.w, .b   [C, H D]
 *   layers.<L>.attn.post<norm>                        asynct
 *   layers.<L>.mlp.pre<norm>
 *   layers.<L>.mlp.up.w, .b      gpt2 [I, C]; else [2 I, C], the gate half first
 *   layers.<L>.mlp.down.w, .b    [C, I]
 *   layers.<L>.mlp.post<norm>                         asynct
 *   final<norm>
 *   head.w               [V, C]                       unless tied */

typedef struct assay_weight_spec {
  char name[ASSAY_MODEL_NAME];
  assay_dtype dtype;
  int32_t rank;
  int64_t shape[2];
} assay_weight_spec;

/* In the order above. The configuration has been checked. */
int32_t assay_model_weight_count(const assay_model_config *config);
/* false: no such weight. */
bool assay_model_weight_spec(const assay_model_config *config, int32_t index, assay_weight_spec *spec);
int32_t assay_model_weight_index(const assay_model_config *config, const char *name); /* -1: no such weight */

typedef struct assay_model_weights {
  int32_t count;
  assay_tensor *tensor; /* [count], in the order of the specs */
  void *memory;         /* all of them, if assay_model_weights_alloc made it */
} assay_model_weights;

/* Zeroed memory for every weight of a configuration, each on a 256-byte boundary. */
assay_status assay_model_weights_alloc(const assay_model_config *config, assay_model_weights *weights,
                                       assay_error *error);
void assay_model_weights_free(assay_model_weights *weights);
/* Every tensor against its spec: dtype, shape, dense. The message names the weight. */
assay_status assay_model_weights_check(const assay_model_config *config, const assay_model_weights *weights,
                                       assay_error *error);
/* Values from a seed, on any machine the same, with scales that keep a forward pass sensible; asynct: 30 ± 2 % of the
 * visible keys are live over a prompt of random ids. `weights` has been allocated. */
assay_status assay_model_seed(const assay_model_config *config, uint64_t seed, assay_model_weights *weights,
                              assay_error *error);
/* n ids of the prompt `number`, uniform over the vocabulary. */
void assay_model_prompt(const assay_model_config *config, uint64_t seed, int64_t number, int64_t n, int32_t *ids);

/* ---- one step ----------------------------------------------------------------------------------------
 *
 * Requests with new tokens, side by side: prefill, chunks of it, decode, mixed. All pointers are host memory. In one
 * step, copies come first, then every layer writes the new tokens' keys and values and attends over the tables. */
typedef struct assay_model_batch {
  int64_t requests;      /* B */
  const int32_t *cu_q;   /* [B + 1] first new token of each request; cu_q[B] = N */
  const int32_t *ids;    /* [N] */
  const int32_t *kv_len; /* [B] length after this step; the new tokens are its last ones. 0 with one new token: a pad
                            row, which touches nothing */
  const int64_t *slots;  /* [N] block · block_size + offset; -1: pad row */
  const int32_t *block_table; /* [B, max_blocks] entries past ceil(kv_len / block_size) are not looked at */
  int64_t max_blocks;
  const int32_t *copies; /* [copy_count, 2] source and target block */
  int64_t copy_count;
  const int32_t *logit_rows; /* [logit_count] which of the N rows want logits */
  int64_t logit_count;
} assay_model_batch;

/* Intermediates, for comparison layer by layer. Rows are the step's tokens unless said otherwise; values as stored.
 *   embed                                   what enters layer 0
 *   layers.<L>.attn.pre, .qkv               [C], [(H + 2 H_kv) D] with bias
 *   layers.<L>.attn.q_norm, .k_norm         [H D], [H_kv D]; with qk_norm
 *   layers.<L>.attn.q, .k, .v               rotated; k and v as they come to the cache, before it quantises them
 *   layers.<L>.attn.out                     [H D]
 *   layers.<L>.attn.proj                    [C] without bias in gpt2, whose bias_residual adds it
 *   layers.<L>.attn.post                    asynct
 *   layers.<L>.attn.residual
 *   layers.<L>.mlp.pre, .up, .act, .down, .post, .residual     likewise; gpt2's up is without bias
 *   final, logits                           logit_count rows
 * "ref" alone also has, where asked for:
 *   layers.<L>.attn.s, .p                   [N · H rows, longest kv_len]: scaled scores (-Inf where not visible), and
 *                                           what multiplies V
 *   layers.<L>.attn.proj.biased, .mlp.up.biased, .mlp.down.biased     gpt2 */
typedef struct assay_model_taps {
  void *context;
  bool (*wants)(void *context, const char *name); /* NULL: everything */
  void (*take)(void *context, const char *name, int64_t rows, int64_t width, const double *value);
} assay_model_taps;

/* ---- backends ----------------------------------------------------------------------------------------- */

/* EXACT: f64 from the stored weights on, keys and values too. MIRROR: f64 inside operators, rounded where a device
 * stores: every operator's output to act_dtype, new keys and values to kv_dtype, the rope table, logits to f32.
 * A device path computes as it does and takes neither seriously. */
typedef enum assay_model_mode { ASSAY_MODEL_EXACT, ASSAY_MODEL_MIRROR } assay_model_mode;

/* Which operators a device path uses, for comparing one with another. All words are "name=value".
 * A form is a fused operator that others could stand for: off: the others; on: it, or the call is refused with the
 * reason; auto: it where a variant takes the call. A form that is on takes the calls of one that is auto.
 *   qk_norm                  qk_norm | rms_norm or uclip_norm, head by head
 *   append                   attention_append | kv_append, then attention; steps of one token a request
 *   mmha                     mmha | rope and the above, bias apart; likewise, without qk_norm
 *   add_norm                 add_rms_norm, add_layer_norm, add_uclip_norm | bias_residual, then the norm; gpt2: only
 *                            without a bias there
 *   post_pre_uclip           post_attn_pre_mlp_uclip | uclip_norm, bias_residual, uclip_norm; asynct
 *   bias_gelu_new            gemm, bias_gelu_new | gemm with the bias, bias_gelu_new with zeros; gpt2
 *   bias_residual            gemm, bias_residual | gemm with the bias, bias_residual without; gpt2
 * Forced variants, "op=name" or "op=name,other": every call of that operator goes to the first of them that takes it,
 * which is an error where none does; words of one operator add to its list. */
typedef struct assay_model_options {
  const char *const *form; /* "append=on" */
  int32_t forms;
  const char *const *variant; /* "gemm=tiles", "gate_attention=stream,wgmma" */
  int32_t variants;
  /* Steps with prompt tokens in which no request has more than so many new ones attend row by row, as decode does, each
   * row a request of its own; 0: none. Up to ASSAY_MODEL_SHORT_TAIL. */
  int32_t short_tail;
} assay_model_options;
enum { ASSAY_MODEL_SHORT_TAIL = 64 };

/* Calls of one operator that took one variant and, in it, one path. */
typedef struct assay_model_path {
  const char *op, *variant, *path; /* path: as the launch says it, "" if it does not */
  const char *stage;               /* of the last call: "attn.qkv" */
  int64_t layer;                   /* of the last call; -1: outside */
  int64_t calls;
} assay_model_path;

/* What one session can hold; memory is taken at open. */
typedef struct assay_model_limits {
  int64_t num_blocks;   /* pool */
  int64_t max_tokens;   /* N of a step */
  int64_t max_requests; /* B of a step */
  int64_t max_logits;   /* logit_count of a step */
} assay_model_limits;

typedef struct assay_model_session assay_model_session;

typedef struct assay_model_backend {
  const char *name; /* "ref", "simt", "cuda" */
  /* Weights are not copied by "ref": they outlive the session. */
  assay_status (*open)(const assay_model_config *config, const assay_model_weights *weights,
                       const assay_model_limits *limits, assay_model_mode mode, assay_model_session **made,
                       assay_error *error);
  /* logits [logit_count, V]. taps may be NULL. ASSAY_ERR_INPUT names the request or row (id, slot, table entry, length,
   * duplicate slot): then nothing was written. */
  assay_status (*forward)(assay_model_session *session, const assay_model_batch *batch, double *logits,
                          const assay_model_taps *taps, assay_error *error);
  void (*close)(assay_model_session *session); /* NULL is allowed */
  /* NULL for "ref". set_options comes before the first step, and what it says is in place of what it said before;
   * ASSAY_ERR_INPUT: an unknown word, and the message says which there are; or a form that is on and that the model
   * cannot have, or beside another that takes its calls. path: index from 0, false behind the last. */
  assay_status (*set_options)(assay_model_session *session, const assay_model_options *options, assay_error *error);
  bool (*path)(const assay_model_session *session, int32_t index, assay_model_path *path);
  /* NULL for "ref". At the end of a run: ASSAY_ERR_INPUT names the forced variants, or the form that is on, that no
   * call so far took. */
  assay_status (*check_forced)(const assay_model_session *session, assay_error *error);
} assay_model_backend;

const assay_model_backend *assay_model_ref(void);
/* open() is ASSAY_ERR_NO_DEVICE where the build or the machine has no such device. */
const assay_model_backend *assay_model_simt(void);
const assay_model_backend *assay_model_cuda(void);

#ifdef __cplusplus
}
#endif
#endif
