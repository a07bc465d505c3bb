/* hf_file.c: a model's folder as the transformers library writes it. Each of our weights is put together from one or
 * more of its tensors; every tensor must be used, and every weight filled. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bytes.h"
#include "core/dtype.h"
#include "hf_config.h"
#include "model_file.h"

typedef long long ll; /* for messages */

/* ---- the files --------------------------------------------------------------------------------------- */

/* The tensors of all files of a folder. */
typedef struct hf_tensors {
  char path[MODEL_FILE_PARTS][512];
  tensor_file file[MODEL_FILE_PARTS];
  int32_t count;
  bool *used; /* [all tensors], file after file */
} hf_tensors;

static void close_tensors(hf_tensors *t) {
  if (t == NULL) return;
  for (int32_t i = 0; i < t->count; ++i)
    tensor_file_free(&t->file[i]);
  free(t->used);
  free(t);
}

/* Opens a file of tensors, unless it is open already. */
static assay_status open_part(hf_tensors *t, const char *folder, const char *name, assay_error *error) {
  char path[512];
  if (snprintf(path, sizeof path, "%s/%s", folder, name) >= (int)sizeof path || strchr(name, '/') != NULL)
    return assay_fail(error, ASSAY_ERR_INPUT, "%.200s: found file name '%.100s', allowed names in this folder", folder,
                      name);
  for (int32_t i = 0; i < t->count; ++i)
    if (strcmp(t->path[i], path) == 0) return ASSAY_OK;
  if (t->count == MODEL_FILE_PARTS)
    return assay_fail(error, ASSAY_ERR_INPUT, "%.200s: found more than %d files of tensors, allowed up to %d", folder,
                      MODEL_FILE_PARTS, MODEL_FILE_PARTS);
  const assay_status status = tensor_file_safetensors(path, &t->file[t->count], error);
  if (status == ASSAY_OK) (void)snprintf(t->path[t->count++], sizeof path, "%s", path);
  return status;
}

static assay_status read_json(const char *path, json_reader *reader, const json_value **root, assay_error *error) {
  unsigned char *text = NULL;
  int64_t size = 0;
  assay_error inner = {""};
  if (reader == NULL) return assay_fail(error, ASSAY_ERR_MEMORY, "%s: out of memory", path);
  assay_status status = file_bytes(path, (int64_t)1 << 28, &text, &size, error);
  if (status == ASSAY_OK && json_parse(reader, (const char *)text, (size_t)size, root, &inner) != ASSAY_OK)
    status = assay_fail(error, ASSAY_ERR_INPUT, "%s: JSON: %s", path, inner.text);
  free(text);
  return status;
}

static assay_status open_index(hf_tensors *t, const char *folder, assay_error *error) {
  char path[512];
  const json_value *root = NULL;
  json_reader *reader = json_open();
  (void)snprintf(path, sizeof path, "%.400s/model.safetensors.index.json", folder);
  assay_status status = read_json(path, reader, &root, error);
  const json_value *map = status == ASSAY_OK ? json_member(root, "weight_map") : NULL;
  if (status == ASSAY_OK && (map == NULL || map->kind != JSON_OBJECT))
    status = assay_fail(error, ASSAY_ERR_INPUT, "%s: weight_map: found none, allowed an object", path);
  for (const json_value *at = map != NULL ? map->child : NULL; at != NULL && status == ASSAY_OK; at = at->next)
    status = at->kind == JSON_STRING
                 ? open_part(t, folder, at->text, error)
                 : assay_fail(error, ASSAY_ERR_INPUT, "%s: %.80s: found no file name, allowed one", path, at->key);
  json_close(reader);
  return status;
}

static assay_status open_tensors(const char *folder, hf_tensors **made, assay_error *error) {
  char path[512];
  hf_tensors *t = calloc(1, sizeof *t);
  *made = t;
  if (t == NULL) return assay_fail(error, ASSAY_ERR_MEMORY, "%s: out of memory", folder);
  (void)snprintf(path, sizeof path, "%.400s/model.safetensors", folder);
  const bool single = access(path, F_OK) == 0;
  const assay_status status = single ? open_part(t, folder, "model.safetensors", error) : open_index(t, folder, error);
  int64_t all = 0;
  for (int32_t i = 0; i < t->count; ++i)
    all += t->file[i].count;
  if (status != ASSAY_OK) return status;
  t->used = calloc((size_t)all + 1, sizeof *t->used);
  return t->used != NULL ? ASSAY_OK : assay_fail(error, ASSAY_ERR_MEMORY, "%s: out of memory", folder);
}

/* Finds a tensor; NULL: no file has it. It counts as used. */
static const file_tensor *find(hf_tensors *t, const char *name, const char **path) {
  int64_t before = 0;
  for (int32_t i = 0; i < t->count; before += t->file[i++].count) {
    const file_tensor *found = tensor_file_find(&t->file[i], name);
    if (found == NULL) continue;
    t->used[before + (found - t->file[i].tensor)] = true;
    *path = t->path[i];
    return found;
  }
  return NULL;
}

/* ---- our weights from their tensors ------------------------------------------------------------------ */

/* How a tensor lies in one of our weights. */
typedef enum hf_layout {
  WHOLE,   /* all of the weight */
  ROWS,    /* some rows of it: heads of q, k, v; gate or up */
  EXPERTS, /* all experts, [E, out, in] */
  TURNED,  /* all experts, [E, in, out]: each is transposed */
  EACH,    /* one tensor per expert */
  PIECES,  /* some rows of each head's rows, head after head */
  TAPS     /* [C, 1, K] */
} hf_layout;

typedef enum hf_rows {
  ALL_ROWS,
  Q_ROWS,
  K_ROWS,
  V_ROWS,
  GATE_ROWS,
  UP_ROWS,
  GATED_Q, /* pieces of a gated attention's q */
  GATED_GATE,
  DELTA_Q, /* pieces of a gated delta rule's products */
  DELTA_K,
  DELTA_V,
  DELTA_Z,
  DELTA_B,
  DELTA_A
} hf_rows;

enum {
  LLAMA = 1 << HF_LLAMA | 1 << HF_QWEN3,
  MOE = 1 << HF_QWEN3_MOE,
  MIXTRAL = 1 << HF_MIXTRAL,
  OSS = 1 << HF_GPT_OSS,
  GEMMA = 1 << HF_GEMMA2,
  LATENT = 1 << HF_DEEPSEEK_V3,
  NEXT = 1 << HF_QWEN3_NEXT,
  ALL = LLAMA | MOE | MIXTRAL | OSS | GEMMA | LATENT | NEXT
};

typedef struct hf_row {
  const char *ours, *theirs; /* in a layer they follow "layers.L." and "model.layers.L." */
  int kinds;
  hf_layout layout;
  hf_rows rows;
  bool older; /* a name of older files, which is read where the newer one is missing */
} hf_row;

static const hf_row table[] = {
    {"embed.w", "model.embed_tokens.weight", ALL, WHOLE, ALL_ROWS, false},
    {"final.g", "model.norm.weight", ALL, WHOLE, ALL_ROWS, false},
    {"head.w", "lm_head.weight", ALL, WHOLE, ALL_ROWS, false},
    {"attn.pre.g", "input_layernorm.weight", ALL, WHOLE, ALL_ROWS, false},
    {"attn.qkv.w", "self_attn.q_proj.weight", ALL & ~NEXT, ROWS, Q_ROWS, false},
    {"attn.qkv.w", "self_attn.q_proj.weight", NEXT, PIECES, GATED_Q, false},
    {"attn.gate.w", "self_attn.q_proj.weight", NEXT, PIECES, GATED_GATE, false},
    {"delta.in.w", "linear_attn.in_proj_qkvz.weight", NEXT, PIECES, DELTA_Q, false},
    {"delta.in.w", "linear_attn.in_proj_qkvz.weight", NEXT, PIECES, DELTA_K, false},
    {"delta.in.w", "linear_attn.in_proj_qkvz.weight", NEXT, PIECES, DELTA_V, false},
    {"delta.in.w", "linear_attn.in_proj_qkvz.weight", NEXT, PIECES, DELTA_Z, false},
    {"delta.in.w", "linear_attn.in_proj_ba.weight", NEXT, PIECES, DELTA_B, false},
    {"delta.in.w", "linear_attn.in_proj_ba.weight", NEXT, PIECES, DELTA_A, false},
    {"delta.conv.w", "linear_attn.conv1d.weight", NEXT, TAPS, ALL_ROWS, false},
    {"delta.A_log", "linear_attn.A_log", NEXT, WHOLE, ALL_ROWS, false},
    {"delta.dt_bias", "linear_attn.dt_bias", NEXT, WHOLE, ALL_ROWS, false},
    {"delta.norm.g", "linear_attn.norm.weight", NEXT, WHOLE, ALL_ROWS, false},
    {"delta.proj.w", "linear_attn.out_proj.weight", NEXT, WHOLE, ALL_ROWS, false},
    {"shared.up.w", "mlp.shared_expert.gate_proj.weight", NEXT, ROWS, GATE_ROWS, false},
    {"shared.up.w", "mlp.shared_expert.up_proj.weight", NEXT, ROWS, UP_ROWS, false},
    {"shared.down.w", "mlp.shared_expert.down_proj.weight", NEXT, WHOLE, ALL_ROWS, false},
    {"shared.gate.w", "mlp.shared_expert_gate.weight", NEXT, WHOLE, ALL_ROWS, false},
    {"attn.qkv.w", "self_attn.k_proj.weight", ALL, ROWS, K_ROWS, false},
    {"attn.qkv.w", "self_attn.v_proj.weight", ALL, ROWS, V_ROWS, false},
    {"attn.qkv.b", "self_attn.q_proj.bias", ALL, ROWS, Q_ROWS, false},
    {"attn.qkv.b", "self_attn.k_proj.bias", ALL, ROWS, K_ROWS, false},
    {"attn.qkv.b", "self_attn.v_proj.bias", ALL, ROWS, V_ROWS, false},
    {"attn.q_norm.g", "self_attn.q_norm.weight", ALL & ~LATENT, WHOLE, ALL_ROWS, false},
    {"attn.k_norm.g", "self_attn.k_norm.weight", ALL, WHOLE, ALL_ROWS, false},
    {"attn.q_a.w", "self_attn.q_a_proj.weight", LATENT, WHOLE, ALL_ROWS, false},
    {"attn.q_norm.g", "self_attn.q_a_layernorm.weight", LATENT, WHOLE, ALL_ROWS, false},
    {"attn.q_b.w", "self_attn.q_b_proj.weight", LATENT, WHOLE, ALL_ROWS, false},
    {"attn.q_b.w", "self_attn.q_proj.weight", LATENT, WHOLE, ALL_ROWS, true},
    {"attn.kv_a.w", "self_attn.kv_a_proj_with_mqa.weight", LATENT, WHOLE, ALL_ROWS, false},
    {"attn.kv_norm.g", "self_attn.kv_a_layernorm.weight", LATENT, WHOLE, ALL_ROWS, false},
    {"attn.kv_b.w", "self_attn.kv_b_proj.weight", LATENT, WHOLE, ALL_ROWS, false},
    {"attn.sinks", "self_attn.sinks", ALL, WHOLE, ALL_ROWS, false},
    {"attn.proj.w", "self_attn.o_proj.weight", ALL, WHOLE, ALL_ROWS, false},
    {"attn.proj.b", "self_attn.o_proj.bias", ALL, WHOLE, ALL_ROWS, false},
    {"attn.post.g", "post_attention_layernorm.weight", GEMMA, WHOLE, ALL_ROWS, false},
    {"mlp.pre.g", "post_attention_layernorm.weight", ALL & ~GEMMA, WHOLE, ALL_ROWS, false},
    {"mlp.pre.g", "pre_feedforward_layernorm.weight", GEMMA, WHOLE, ALL_ROWS, false},
    {"mlp.post.g", "post_feedforward_layernorm.weight", GEMMA, WHOLE, ALL_ROWS, false},
    {"mlp.up.w", "mlp.gate_proj.weight", ALL, ROWS, GATE_ROWS, false},
    {"mlp.up.w", "mlp.up_proj.weight", ALL, ROWS, UP_ROWS, false},
    {"mlp.down.w", "mlp.down_proj.weight", ALL, WHOLE, ALL_ROWS, false},
    {"router.bias", "mlp.gate.e_score_correction_bias", LATENT, WHOLE, ALL_ROWS, false},
    {"shared.up.w", "mlp.shared_experts.gate_proj.weight", LATENT, ROWS, GATE_ROWS, false},
    {"shared.up.w", "mlp.shared_experts.up_proj.weight", LATENT, ROWS, UP_ROWS, false},
    {"shared.down.w", "mlp.shared_experts.down_proj.weight", LATENT, WHOLE, ALL_ROWS, false},
    {"router.w", "mlp.gate.weight", MOE | MIXTRAL | LATENT | NEXT, WHOLE, ALL_ROWS, false},
    {"router.w", "block_sparse_moe.gate.weight", MIXTRAL, WHOLE, ALL_ROWS, true},
    {"router.w", "mlp.router.weight", OSS, WHOLE, ALL_ROWS, false},
    {"router.b", "mlp.router.bias", OSS, WHOLE, ALL_ROWS, false},
    {"experts.up.w", "mlp.experts.gate_up_proj", MOE | MIXTRAL | LATENT | NEXT, EXPERTS, ALL_ROWS, false},
    {"experts.up.w", "mlp.experts.%d.gate_proj.weight", MOE | LATENT | NEXT, EACH, GATE_ROWS, true},
    {"experts.up.w", "mlp.experts.%d.up_proj.weight", MOE | LATENT | NEXT, EACH, UP_ROWS, true},
    {"experts.up.w", "block_sparse_moe.experts.%d.w1.weight", MIXTRAL, EACH, GATE_ROWS, true},
    {"experts.up.w", "block_sparse_moe.experts.%d.w3.weight", MIXTRAL, EACH, UP_ROWS, true},
    {"experts.up.w", "mlp.experts.gate_up_proj", OSS, TURNED, ALL_ROWS, false},
    {"experts.up.b", "mlp.experts.gate_up_proj_bias", OSS, EXPERTS, ALL_ROWS, false},
    {"experts.down.w", "mlp.experts.down_proj", MOE | MIXTRAL | LATENT | NEXT, EXPERTS, ALL_ROWS, false},
    {"experts.down.w", "mlp.experts.%d.down_proj.weight", MOE | LATENT | NEXT, EACH, ALL_ROWS, true},
    {"experts.down.w", "block_sparse_moe.experts.%d.w2.weight", MIXTRAL, EACH, ALL_ROWS, true},
    {"experts.down.w", "mlp.experts.down_proj", OSS, TURNED, ALL_ROWS, false},
    {"experts.down.b", "mlp.experts.down_proj_bias", OSS, EXPERTS, ALL_ROWS, false},
};
enum { ROWS_OF_TABLE = sizeof table / sizeof *table };

/* How the name of a weight's scales ends. */
static const char scale_end[] = "_scale_inv";

static bool ends_with(const char *name, const char *end) {
  const size_t n = strlen(name), m = strlen(end);
  return n >= m && strcmp(name + n - m, end) == 0;
}

typedef struct reading {
  const char *folder;
  hf_kind kind;
  const assay_model_config *config;
  hf_tensors *tensors;
  assay_error *error;
} reading;

/* Returns the tensor of that name, type and shape. A weight that is f32 in every model may have the type of the
 * others in the file. */
static assay_status get(const reading *r, const char *name, assay_dtype type, int32_t rank, const int64_t *shape,
                        const file_tensor **found) {
  const char *path = "";
  char is[160], wanted[160];
  const file_tensor *t = find(r->tensors, name, &path);
  *found = t;
  if (t == NULL)
    return assay_fail(r->error, ASSAY_ERR_INPUT, "%s: tensor %s: found none, allowed one", r->folder, name);
  const assay_dtype of_all = r->config->weight_dtype;
  const bool scales = ends_with(name, scale_end), either = type == ASSAY_F32 && !scales;
  if (t->unread[0] != '\0' || (t->dtype != type && !(either && t->dtype == of_all)))
    return assay_fail(r->error, ASSAY_ERR_INPUT, "%s: %s: dtype: found %s, allowed %s%s", path, name,
                      t->unread[0] != '\0' ? t->unread : assay_dtype_name(t->dtype),
                      assay_dtype_name(either ? of_all : type),
                      scales               ? ""
                      : type == ASSAY_E4M3 ? ", by quantization_config"
                                           : ", as model.embed_tokens.weight has");
  bool same = t->rank == rank;
  for (int32_t a = 0; a < rank && same; ++a)
    same = t->shape[a] == shape[a];
  if (same) return ASSAY_OK;
  tensor_file_shape(t->rank, t->shape, is, sizeof is);
  tensor_file_shape(rank, shape, wanted, sizeof wanted);
  return assay_fail(r->error, ASSAY_ERR_INPUT, "%s: %s: shape: found %s, allowed %s", path, name, is, wanted);
}

/* Returns the rows of one weight, or of one expert of `all` rows, that a tensor has. */
static void range(const assay_model_config *c, hf_rows rows, int64_t all, int64_t *first, int64_t *count) {
  const int64_t q = c->heads * c->head_size, kv = c->kv_heads * c->head_size;
  *first = rows == K_ROWS ? q : rows == V_ROWS ? q + kv : rows == UP_ROWS ? all / 2 : 0;
  *count = rows == ALL_ROWS ? all : rows == Q_ROWS ? q : rows == K_ROWS || rows == V_ROWS ? kv : all / 2;
}

/* Copies `count` rows of `width` elements. A weight that is f32 whatever the others are is widened. */
static void copy(const assay_tensor *to, int64_t first, const file_tensor *from, int64_t count, int64_t width) {
  const int64_t size = assay_dtype_size(to->dtype);
  for (int64_t i = 0; i < count * width && to->dtype != from->dtype; ++i)
    assay_store_f64(to->data, to->dtype, first * width + i, assay_load_f64(from->data, from->dtype, i));
  if (to->dtype != from->dtype) return;
  memcpy((unsigned char *)to->data + first * width * size, from->data, (size_t)(count * width * size));
}

/* Copies experts [in, out] as [out, in]. */
static void turn(const assay_tensor *to, const file_tensor *from, int64_t experts, int64_t out, int64_t in) {
  const int64_t size = assay_dtype_size(to->dtype);
  for (int64_t e = 0; e < experts; ++e)
    for (int64_t o = 0; o < out; ++o)
      for (int64_t i = 0; i < in; ++i)
        memcpy((unsigned char *)to->data + ((e * out + o) * in + i) * size,
               from->data + ((e * in + i) * out + o) * size, (size_t)size);
}

/* One piece: `count` of `size` rows of each of `heads` heads. In our weight they are rows `first` and on. */
typedef struct piece {
  int64_t heads, size, offset, count, first;
} piece;

static piece piece_of(const assay_model_config *c, hf_rows rows) {
  const int64_t D = c->head_size, H = c->linear_key_heads, D_k = c->linear_key_size;
  const int64_t values = c->linear_value_heads / H, V = values * c->linear_value_size, size = 2 * D_k + 2 * V;
  switch (rows) {
  case GATED_Q:
    return (piece){c->heads, 2 * D, 0, D, 0};
  case GATED_GATE:
    return (piece){c->heads, 2 * D, D, D, 0};
  case DELTA_Q:
    return (piece){H, size, 0, D_k, 0};
  case DELTA_K:
    return (piece){H, size, D_k, D_k, H * D_k};
  case DELTA_V:
    return (piece){H, size, 2 * D_k, V, 2 * H * D_k};
  case DELTA_Z:
    return (piece){H, size, 2 * D_k + V, V, 2 * H * D_k + H * V};
  case DELTA_B:
    return (piece){H, 2 * values, 0, values, 2 * H * (D_k + V)};
  default: /* DELTA_A */
    return (piece){H, 2 * values, values, values, 2 * H * (D_k + V) + H * values};
  }
}

/* Copies one piece of each head. */
static void copy_pieces(const assay_tensor *to, const file_tensor *from, piece p, int64_t width) {
  const int64_t bytes = width * assay_dtype_size(to->dtype);
  for (int64_t h = 0; h < p.heads; ++h)
    memcpy((unsigned char *)to->data + (p.first + h * p.count) * bytes, from->data + (h * p.size + p.offset) * bytes,
           (size_t)(p.count * bytes));
}

/* Refuses scales of rows that share a block with another piece's. */
static assay_status check_split(const reading *r, const char *name, hf_rows rows) {
  const int64_t q = r->config->heads * r->config->head_size, kv = r->config->kv_heads * r->config->head_size;
  const bool split = rows == Q_ROWS || rows == K_ROWS || rows == V_ROWS;
  if (!split || (q % ASSAY_MODEL_FP8_BLOCK == 0 && kv % ASSAY_MODEL_FP8_BLOCK == 0)) return ASSAY_OK;
  return assay_fail(r->error, ASSAY_ERR_INPUT,
                    "%s: %s: found %lld rows of q and %lld of k, allowed multiples of 128: they are one product",
                    r->folder, name, (ll)q, (ll)kv);
}

/* Refuses scales that are no finite numbers from 0 on. */
static assay_status check_scales(const reading *r, const char *name, const void *scales, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    const double s = assay_load_f64(scales, ASSAY_F32, i);
    if (!(s >= 0 && s <= 3.4028234663852886e38))
      return assay_fail(r->error, ASSAY_ERR_INPUT, "%s: %s: found %g, allowed numbers from 0 on", r->folder, name, s);
  }
  return ASSAY_OK;
}

/* Fills a weight that has the type of the others, although the file has codes and scales of it. */
static assay_status widen(const reading *r, const char *name, const assay_tensor *to) {
  const int64_t B = ASSAY_MODEL_FP8_BLOCK, groups = (to->shape[1] + B - 1) / B;
  const int64_t shape[2] = {(to->shape[0] + B - 1) / B, groups};
  const file_tensor *codes = NULL, *scales = NULL;
  char full[TENSOR_FILE_NAME + sizeof scale_end];
  (void)snprintf(full, sizeof full, "%s%s", name, scale_end);
  assay_status status = get(r, name, ASSAY_E4M3, 2, to->shape, &codes);
  if (status == ASSAY_OK) status = get(r, full, ASSAY_F32, 2, shape, &scales);
  if (status == ASSAY_OK) status = check_scales(r, full, scales->data, shape[0] * shape[1]);
  for (int64_t i = 0; i < to->shape[0] * to->shape[1] && status == ASSAY_OK; ++i) {
    const int64_t block = i / to->shape[1] / B * groups + i % to->shape[1] / B;
    const double s = assay_load_f64(scales->data, ASSAY_F32, block);
    assay_store_f64(to->data, to->dtype, i, s * assay_load_f64(codes->data, ASSAY_E4M3, i));
  }
  return status;
}

/* Fills what one row of the table gives of one weight, or of its scales. */
static assay_status fill(const reading *r, const hf_row *row, const char *prefix, bool scales, const assay_tensor *to) {
  const int64_t E = r->config->experts, width = to->rank == 2 ? to->shape[1] : 1;
  const bool of_experts = row->layout == EXPERTS || row->layout == TURNED || row->layout == EACH;
  const int64_t all = of_experts ? to->shape[0] / E : to->shape[0];
  const file_tensor *from = NULL;
  char name[TENSOR_FILE_NAME], full[TENSOR_FILE_NAME];
  int64_t first, count;
  assay_status status = ASSAY_OK;
  range(r->config, row->rows, scales ? all * ASSAY_MODEL_FP8_BLOCK : all, &first, &count);
  if (scales && (status = check_split(r, row->theirs, row->rows)) != ASSAY_OK) return status;
  if (scales) {
    first /= ASSAY_MODEL_FP8_BLOCK;
    count = (count + ASSAY_MODEL_FP8_BLOCK - 1) / ASSAY_MODEL_FP8_BLOCK;
  }
  const int64_t shape[2] = {count, width}, experts[3] = {E, all, width}, turned[3] = {E, width, all};
  (void)snprintf(full, sizeof full, "%s%s%s", prefix, row->theirs, scales ? scale_end : "");
  if (r->config->fp8_weights && strcmp(row->ours, "attn.kv_b.w") == 0) return widen(r, full, to);
  const piece part = row->layout == PIECES ? piece_of(r->config, row->rows) : (piece){0};
  const int64_t heads[2] = {part.heads * part.size, width}, taps[3] = {all, 1, width};
  switch (row->layout) {
  case PIECES:
    status = get(r, full, to->dtype, 2, heads, &from);
    if (status == ASSAY_OK) copy_pieces(to, from, part, width);
    break;
  case TAPS:
    status = get(r, full, to->dtype, 3, taps, &from);
    if (status == ASSAY_OK) copy(to, 0, from, all, width);
    break;
  case WHOLE:
  case ROWS:
    status = get(r, full, to->dtype, to->rank, shape, &from);
    if (status == ASSAY_OK) copy(to, first, from, count, width);
    break;
  case EXPERTS:
    status = get(r, full, to->dtype, to->rank + 1, experts, &from);
    if (status == ASSAY_OK) copy(to, 0, from, to->shape[0], width);
    break;
  case TURNED:
    status = get(r, full, to->dtype, 3, turned, &from);
    if (status == ASSAY_OK) turn(to, from, E, all, width);
    break;
  case EACH:
    for (int64_t e = 0; e < E && status == ASSAY_OK; ++e) {
      const char *number = strchr(row->theirs, '%');
      (void)snprintf(name, sizeof name, "%s%.*s%d%s%s", prefix, (int)(number - row->theirs), row->theirs, (int)e,
                     number + 2, scales ? scale_end : "");
      status = get(r, name, to->dtype, 2, shape, &from);
      if (status == ASSAY_OK) copy(to, e * all + first, from, count, width);
    }
    break;
  }
  return status == ASSAY_OK && scales ? check_scales(r, full, to->data, to->shape[0] * width) : status;
}

/* Tells whether the tensors have a weight under its newer name, or under none of the older ones. */
static bool is_newer(const reading *r, const char *prefix, const char *ours) {
  char full[TENSOR_FILE_NAME];
  const char *path;
  for (int i = 0; i < ROWS_OF_TABLE; ++i) {
    const hf_row *row = &table[i];
    if (!row->older || (row->kinds & 1 << r->kind) == 0 || strcmp(row->ours, ours) != 0) continue;
    const char *number = strchr(row->theirs, '%');
    if (number == NULL)
      (void)snprintf(full, sizeof full, "%s%s", prefix, row->theirs);
    else
      (void)snprintf(full, sizeof full, "%s%.*s0%s", prefix, (int)(number - row->theirs), row->theirs, number + 2);
    if (find(r->tensors, full, &path) != NULL) return false;
  }
  return true;
}

static assay_status fill_weights(const reading *r, const assay_model_weights *weights) {
  assay_weight_spec spec;
  assay_status status = ASSAY_OK;
  for (int32_t i = 0; status == ASSAY_OK && assay_model_weight_spec(r->config, i, &spec); ++i) {
    char prefix[64] = "", *ours = spec.name;
    if (strncmp(spec.name, "layers.", 7) == 0) {
      const long layer = strtol(spec.name + 7, &ours, 10);
      ++ours;
      (void)snprintf(prefix, sizeof prefix, "model.layers.%ld.", layer);
    }
    const bool scales = spec.dtype == ASSAY_F32 && ends_with(ours, ".s");
    if (scales) ours[strlen(ours) - 1] = 'w';
    const bool newer = is_newer(r, prefix, ours);
    for (int t = 0; t < ROWS_OF_TABLE && status == ASSAY_OK; ++t)
      if ((table[t].kinds & 1 << r->kind) != 0 && table[t].older != newer && strcmp(table[t].ours, ours) == 0)
        status = fill(r, &table[t], prefix, scales, &weights->tensor[i]);
  }
  return status;
}

/* Tells whether a tensor may stand in a file although no weight has used it. It may belong to a layer that the
 * model does not run. It may be a table of frequencies, or the head of a model whose head is the embedding. */
static bool is_left(const assay_model_config *c, const char *name) {
  static const char layers[] = "model.layers.", table_of[] = "rotary_emb.inv_freq";
  const size_t n = strlen(name), m = sizeof table_of - 1;
  if (strncmp(name, layers, sizeof layers - 1) == 0 && strtol(name + sizeof layers - 1, NULL, 10) >= c->layers)
    return true;
  if (c->tied_head && strcmp(name, "lm_head.weight") == 0) return true;
  return n >= m && strcmp(name + n - m, table_of) == 0;
}

static assay_status check_used(const reading *r) {
  int64_t at = 0;
  for (int32_t i = 0; i < r->tensors->count; ++i)
    for (int32_t n = 0; n < r->tensors->file[i].count; ++n) {
      const char *name = r->tensors->file[i].tensor[n].name;
      if (!r->tensors->used[at++] && !is_left(r->config, name))
        return assay_fail(r->error, ASSAY_ERR_INPUT,
                          "%s: %.120s: found a tensor that a %s model does not have, allowed none", r->tensors->path[i],
                          name, assay_model_arch_name(r->config->arch));
    }
  return ASSAY_OK;
}

/* All weights have the type of the embedding. */
static assay_status take_type(const reading *r, assay_model_config *c) {
  const char *path = "";
  const file_tensor *embed = find(r->tensors, "model.embed_tokens.weight", &path);
  if (embed == NULL)
    return assay_fail(r->error, ASSAY_ERR_INPUT, "%s: tensor model.embed_tokens.weight: found none, allowed one",
                      r->folder);
  if (embed->dtype != ASSAY_F32 && embed->dtype != ASSAY_F16 && embed->dtype != ASSAY_BF16)
    return assay_fail(r->error, ASSAY_ERR_INPUT,
                      "%s: model.embed_tokens.weight: dtype: found %s, allowed f32, f16, bf16", path,
                      embed->unread[0] != '\0' ? embed->unread : assay_dtype_name(embed->dtype));
  c->weight_dtype = c->act_dtype = c->kv_dtype = embed->dtype;
  return ASSAY_OK;
}

assay_status model_file_hf(const char *folder, model_file *model, assay_error *error) {
  char path[512];
  const json_value *root = NULL;
  assay_error inner = {""};
  hf_tensors *tensors = NULL;
  reading r = {.folder = folder, .config = &model->config, .error = error};
  memset(model, 0, sizeof *model);
  if (strlen(folder) > 400)
    return assay_fail(error, ASSAY_ERR_INPUT, "%.100s...: found a name of %zu bytes, allowed up to 400", folder,
                      strlen(folder));
  (void)snprintf(path, sizeof path, "%s/config.json", folder);
  json_reader *reader = json_open();
  assay_status status = read_json(path, reader, &root, error);
  if (status == ASSAY_OK) {
    status = hf_config_read(root, &r.kind, &model->config, &inner);
    (void)snprintf(model->type, sizeof model->type, "%s", json_text(root, "model_type", ""));
    if (status != ASSAY_OK) (void)assay_fail(error, status, "%s: %.1500s", path, inner.text);
  }
  json_close(reader);
  if (status == ASSAY_OK) status = open_tensors(folder, &tensors, error);
  r.tensors = tensors;
  if (status == ASSAY_OK) status = take_type(&r, &model->config);
  if (status == ASSAY_OK && (status = assay_model_check(&model->config, &inner)) != ASSAY_OK)
    (void)assay_fail(error, status, "%s: %.1500s", path, inner.text);
  if (status == ASSAY_OK) status = assay_model_weights_alloc(&model->config, &model->weights, error);
  if (status == ASSAY_OK) status = fill_weights(&r, &model->weights);
  if (status == ASSAY_OK) status = check_used(&r);
  close_tensors(tensors);
  if (status != ASSAY_OK) model_file_free(model);
  return status;
}
