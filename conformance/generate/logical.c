/* logical.c: block identities, visibility and the codes of q, K and V, independent of their placement. */
#include "logical.h"

#include <math.h>
#include <stdlib.h>

#include "core/dtype.h"
#include "core/rng.h"
#include "magnitude.h"
#include "streams.h"
#include "conformance/text/text.h"

int64_t logical_dim(const assay_case *one, const char *name, int64_t fallback) {
  for (int32_t i = 0; i < one->op->dim_count; ++i)
    if (strcmp(one->op->dims[i].name, name) == 0) return one->dim[i];
  return fallback;
}

double logical_param(const assay_case *one, const char *name, double fallback) {
  for (int32_t i = 0; i < one->op->param_count; ++i)
    if (strcmp(one->op->params[i].name, name) == 0) return one->param[i];
  return fallback;
}

bool logical_appends(const assay_op *op) {
  for (int32_t i = 0; i < op->arg_count; ++i)
    if (op->args[i].content == ASSAY_SLOTS) return true;
  return false;
}

static void *take(int64_t count, int64_t size) {
  return calloc(count > 0 ? (size_t)count : 1, (size_t)size);
}

static int64_t blocks_of(const logical *l, int64_t length) {
  return length > 0 ? (length + l->block_size - 1) / l->block_size : 0;
}

/* Makes fp8 factors. Lattice: powers of two, so that code · scale is exact. Otherwise neither 1 nor a power of two, and
 * k unlike v, so that a lost or swapped factor shows. Heads differ by powers of two: 1, 2, 1/2, 1, ... */
static void make_scales(logical *l) {
  static const double step[3] = {1.0, 2.0, 0.5};
  const assay_case *one = l->origin;
  const uint64_t draw = logical_hash(one, STREAM_SCALE);
  double k = 1.0, v = 1.0;
  if (logical_is_fp8(l->kv_dtype) && one->values == ASSAY_LATTICE) {
    k = (draw & 1) != 0 ? 0.5 : 0.25;
    v = (draw & 2) != 0 ? 2.0 : 0.125;
  } else if (logical_is_fp8(l->kv_dtype)) {
    k = 0.101 + 0.0013 * (double)(draw & 63);
    v = 0.257 + 0.0031 * (double)(draw >> 8 & 63);
  }
  for (int64_t h = 0; h < l->kv_scales; ++h) {
    l->k_scale[h] = (float)(k * step[h % 3]);
    l->v_scale[h] = (float)(v * step[(h + (h > 0)) % 3]);
  }
}

/* Returns the number of shared blocks: only whole blocks of the shared prefix are shared, the rest is the request's
 * own. */
static int64_t shared_blocks(const logical *l, int64_t request) {
  const assay_case *one = l->origin;
  if (one->share_with == NULL || one->share_tokens == NULL) return 0;
  const int64_t with = one->share_with[request];
  if (with < 0 || with >= request) return 0;
  int64_t tokens = one->share_tokens[request];
  if (tokens > l->length[request]) tokens = l->length[request];
  if (tokens > l->length[with]) tokens = l->length[with];
  return tokens > 0 ? tokens / l->block_size : 0;
}

static void number_blocks(logical *l) {
  for (int64_t i = 0; i < l->B; ++i) {
    const int64_t shared = shared_blocks(l, i);
    const int64_t count = l->block_start[i + 1] - l->block_start[i];
    for (int64_t j = 0; j < count; ++j)
      l->block_identity[l->block_start[i] + j] =
          j < shared ? l->block_identity[l->block_start[l->origin->share_with[i]] + j] : l->identities++;
  }
}

static int64_t content_of(const logical *l, int64_t request, int64_t token) {
  return l->block_identity[l->block_start[request] + token / l->block_size] * l->block_size + token % l->block_size;
}

/* Marks some keys: the last key of a request; the first key of a split and the F - 1 keys before it; the edges of the
 * last two blocks. In the other half of the draws nothing is marked, and chance decides about these keys as about all
 * others. */
static void mark_important(logical *l) {
  if (l->origin->op->form == ASSAY_PLAIN || (logical_hash(l->origin, STREAM_IMPORTANT) & 1) != 0) return;
  for (int64_t i = 0; i < l->B; ++i) {
    const int64_t L = l->length[i];
    for (int64_t t = 0; t < L; ++t) {
      const bool split = t + l->F > CASE_SPLIT_KEYS && (t + l->F - 1) % CASE_SPLIT_KEYS < l->F;
      const bool edge =
          t >= L - 2 * l->block_size && (t % l->block_size == 0 || t % l->block_size == l->block_size - 1);
      if (t == L - 1 || split || edge) l->important[content_of(l, i, t)] = 1;
    }
  }
}

assay_status logical_make(const assay_case *one, logical **contents, assay_error *error) {
  assay_status status = ASSAY_ERR_MEMORY;
  const bool plain = one->op->form == ASSAY_PLAIN;
  const int64_t plain_rows = plain && one->op->row_dim != NULL ? logical_dim(one, one->op->row_dim, 0) : 0;
  logical *l = calloc(1, sizeof *l);
  if (l == NULL) goto done;
  l->origin = one;
  l->references = 1;
  l->B = one->batch;
  l->H = plain ? 1 : logical_dim(one, "H", 1);
  l->H_kv = plain ? 1 : logical_dim(one, "H_kv", 1);
  l->D = plain ? 1 : logical_dim(one, "D", 1);
  l->block_size = plain ? 1 : logical_dim(one, "block_size", 16);
  l->F = logical_dim(one, "F", 1);
  /* A refuse case may carry an illegal size. Its tensors show it; the arithmetic here must not. */
  if (l->block_size < 1) l->block_size = 1;
  if (l->H < 1) l->H = 1;
  if (l->H_kv < 1) l->H_kv = 1;
  if (l->D < 1) l->D = 1;
  l->D_v = plain ? 1 : logical_dim(one, "D_v", 0);
  if (l->D_v < 1) l->D_v = l->D;
  if (l->F < 1) l->F = 1;
  l->kv_scales = logical_param(one, "scale_per_head", 0) != 0 ? l->H_kv : 1;
  l->q_dtype = one->dtype;
  l->kv_dtype = one->kv_dtype != ASSAY_NONE ? one->kv_dtype : one->dtype;
  l->out_dtype = one->out_dtype != ASSAY_NONE ? one->out_dtype : one->dtype;
  l->length = take(l->B, sizeof *l->length);
  l->fresh = take(l->B, sizeof *l->fresh);
  l->row_start = take(l->B + 1, sizeof *l->row_start);
  l->block_start = take(l->B + 1, sizeof *l->block_start);
  l->k_scale = take(l->kv_scales, sizeof *l->k_scale);
  l->v_scale = take(l->kv_scales, sizeof *l->v_scale);
  if (l->length == NULL || l->fresh == NULL || l->row_start == NULL || l->block_start == NULL || l->k_scale == NULL ||
      l->v_scale == NULL)
    goto done;
  make_scales(l);
  for (int64_t i = 0; i < l->B; ++i) {
    l->length[i] = one->kv_len[i] > 0 ? one->kv_len[i] : 0;
    l->fresh[i] = one->mode == MODE_DECODE ? 1 : one->new_len[i] > 0 ? one->new_len[i] : 0;
    if (plain) l->length[i] = l->fresh[i] = (int32_t)plain_rows;
    l->row_start[i + 1] = l->row_start[i] + l->fresh[i];
    const int64_t blocks = plain ? 0 : blocks_of(l, l->length[i]);
    l->block_start[i + 1] = l->block_start[i] + blocks;
    if (blocks > l->widest) l->widest = blocks;
  }
  l->N = l->row_start[l->B];
  l->block_identity = take(l->block_start[l->B], sizeof *l->block_identity);
  if (l->block_identity == NULL) goto done;
  number_blocks(l);
  l->visible = take(l->identities * l->block_size, 1);
  l->important = take(l->identities * l->block_size, 1);
  if (l->visible == NULL || l->important == NULL) goto done;
  mark_important(l);
  status = ASSAY_OK;
done:
  if (status != ASSAY_OK) {
    (void)assay_fail(error, status, "generator: out of memory");
    logical_drop(l);
    l = NULL;
  }
  *contents = l;
  return status;
}

static int64_t ask_content(void *context, int64_t request, int64_t token) {
  return content_of(context, request, token);
}
static int64_t ask_length(void *context, int64_t request) {
  return ((logical *)context)->length[request];
}
static int64_t ask_first(void *context, int64_t request) {
  const logical *l = context;
  return (int64_t)l->length[request] - l->fresh[request];
}
static bool ask_important(void *context, int64_t content) {
  return ((logical *)context)->important[content] != 0;
}

/* Stores codes[first + d] = round(value[d] / scale), and changes `value`. Finite values become finite codes: the case
 * is about values. */
static void encode(unsigned char *codes, assay_dtype dtype, int64_t first, double *value, int64_t count, double scale) {
  for (int64_t d = 0; d < count && scale != 1.0; ++d) {
    const bool finite = assay_is_finite(value[d]);
    value[d] /= scale;
    if (finite && dtype == ASSAY_F16) value[d] = fmin(fmax(value[d], -65504), 65504); /* fp8 saturates by itself */
  }
  assay_store_f64_row(codes, dtype, first, 1, count, value);
}

static void mark_visible(logical *l, const assay_call *call) {
  for (int64_t i = 0; i < l->B; ++i)
    for (int64_t t = 0; t < l->length[i]; ++t) {
      unsigned char *seen = &l->visible[content_of(l, i, t)];
      if (*seen == 0 && (call->op->visible == NULL || call->op->visible(call, i, l->length[i], ask_first(l, i), t)))
        *seen = 1;
    }
}

static uint64_t vector_of(const logical *l, int64_t content, int64_t kv_head) {
  return (uint64_t)(content * l->H_kv + kv_head);
}

/* Makes the codes of the new tokens, with rows in the case's order, and hides their keys in the cache. */
static void fill_new(logical *l, const assay_fill *fill, const assay_fill *fill_v, double *value) {
  const assay_op *op = l->origin->op;
  for (int64_t i = 0; i < l->B; ++i)
    for (int64_t n = 0; n < l->fresh[i]; ++n) {
      const int64_t token = ask_first(l, i) + n;
      if (token < 0) continue; /* a pad row */
      const int64_t content = content_of(l, i, token);
      l->visible[content] = 0;
      for (int64_t h = 0; h < l->H_kv; ++h) {
        const int64_t vector = (l->row_start[i] + n) * l->H_kv + h;
        op->fill_k(fill, content, h, value);
        magnitude_vector(l->origin, MAGNITUDE_K, vector_of(l, content, h), l->q_dtype, value, l->D);
        encode(l->k_new, l->q_dtype, vector * l->D, value, l->D, 1.0);
        op->fill_v(fill_v, content, h, value);
        magnitude_vector(l->origin, MAGNITUDE_V, vector_of(l, content, h), l->q_dtype, value, l->D_v);
        encode(l->v_new, l->q_dtype, vector * l->D_v, value, l->D_v, 1.0);
      }
    }
}

/* Takes the values that fill() gives for arguments without a recipe. */
static assay_status fill_values(logical *l, const assay_fill *fill, assay_error *error) {
  const assay_call *call = fill->call;
  const assay_op *op = call->op;
  assay_status status = ASSAY_OK;
  for (int32_t i = 0; i < op->arg_count && status == ASSAY_OK; ++i) {
    const assay_tensor *t = &call->arg[i];
    if (op->args[i].content != ASSAY_VALUES || t->data == NULL) continue;
    int64_t count = 1;
    for (int32_t a = 0; a < t->rank; ++a)
      count *= t->shape[a];
    double *value = take(count, sizeof *value);
    l->values[i] = take(count, assay_dtype_size(t->dtype));
    if (value == NULL || l->values[i] == NULL)
      status = assay_fail(error, ASSAY_ERR_MEMORY, "generator: out of memory for %s", op->args[i].name);
    if (status == ASSAY_OK) status = op->fill(fill, i, value, count, error);
    const bool wide = t->dtype == ASSAY_I64 && op->fill_wide != NULL;
    if (status == ASSAY_OK && t->rank > 0) magnitude_apply(l->origin, i, t->dtype, t->shape[t->rank - 1], value, count);
    if (status == ASSAY_OK && !(wide && op->fill_wide(fill, i, (int64_t *)(void *)l->values[i], count)))
      assay_store_f64_row(l->values[i], t->dtype, 0, 1, count, value);
    free(value);
  }
  return status;
}

/* The work of making the codes of the cache; fill_keys does contents [begin, end). */
typedef struct key_codes {
  logical *l;
  const assay_fill *fill, *fill_v; /* fill_v: the same with D_v in place of D */
  _Atomic bool failed;
} key_codes;

static int64_t widest_head(const logical *l) {
  return l->D > l->D_v ? l->D : l->D_v;
}

static void fill_keys(void *context, int64_t begin, int64_t end) {
  key_codes *keys = context;
  logical *l = keys->l;
  const assay_op *op = l->origin->op;
  double *value = take(widest_head(l), sizeof *value);
  if (value == NULL) keys->failed = true;
  for (int64_t c = begin; c < end && value != NULL; ++c) {
    if (l->visible[c] == 0) continue;
    for (int64_t h = 0; h < l->H_kv; ++h) {
      const int64_t vector = c * l->H_kv + h, s = l->kv_scales > 1 ? h : 0;
      op->fill_k(keys->fill, c, h, value);
      magnitude_vector(l->origin, MAGNITUDE_K, vector_of(l, c, h), l->kv_dtype, value, l->D);
      encode(l->k, l->kv_dtype, vector * l->D, value, l->D, (double)l->k_scale[s]);
      op->fill_v(keys->fill_v, c, h, value);
      magnitude_vector(l->origin, MAGNITUDE_V, vector_of(l, c, h), l->kv_dtype, value, l->D_v);
      encode(l->v, l->kv_dtype, vector * l->D_v, value, l->D_v, (double)l->v_scale[s]);
    }
  }
  free(value);
}

assay_status logical_fill(logical *l, const assay_call *call, assay_error *error) {
  assay_status status = ASSAY_ERR_MEMORY;
  const assay_case *one = l->origin;
  const assay_op *op = one->op;
  const int64_t contents = l->identities * l->block_size;
  const bool appends = logical_appends(op);
  double *value = take(widest_head(l), sizeof *value);
  if (op->fill_q != NULL) l->q = take(l->N * l->H * l->D, assay_dtype_size(l->q_dtype));
  l->k = take(contents * l->H_kv * l->D, assay_dtype_size(l->kv_dtype));
  l->v = take(contents * l->H_kv * l->D_v, assay_dtype_size(l->kv_dtype));
  if (appends) l->k_new = take(l->N * l->H_kv * l->D, assay_dtype_size(l->q_dtype));
  if (appends) l->v_new = take(l->N * l->H_kv * l->D_v, assay_dtype_size(l->q_dtype));
  if (value == NULL || (op->fill_q != NULL && l->q == NULL) || l->k == NULL || l->v == NULL) goto done;
  if (appends && (l->k_new == NULL || l->v_new == NULL)) goto done;
  const assay_fill fill = {
      .call = call,
      .values = one->values,
      .density = one->density,
      .cluster = one->cluster,
      .seed = one->seed,
      .H = l->H,
      .H_kv = l->H_kv,
      .D = l->D,
      .q_dtype = l->q_dtype,
      .kv_dtype = l->kv_dtype,
      .k_scale = (double)l->k_scale[0],
      .v_scale = (double)l->v_scale[0],
      .context = l,
      .content = ask_content,
      .kv_length = ask_length,
      .first_position = ask_first,
      .important = ask_important,
      .magnitude = one->magnitude,
  };
  assay_fill fill_v = fill;
  fill_v.D = l->D_v;
  status = fill_values(l, &fill, error);
  if (status != ASSAY_OK) {
    free(value);
    return status;
  }
  if (op->form == ASSAY_PLAIN) {
    l->filled = true;
    goto done;
  }
  mark_visible(l, call);
  if (appends) fill_new(l, &fill, &fill_v, value);
  for (int64_t i = 0; i < l->B && op->fill_q != NULL; ++i)
    for (int64_t n = 0; n < l->fresh[i]; ++n)
      for (int64_t h = 0; h < l->H; ++h) {
        op->fill_q(&fill, i, n, h, value);
        magnitude_vector(one, MAGNITUDE_Q, (uint64_t)((l->row_start[i] + n) * l->H + h), l->q_dtype, value, l->D);
        encode(l->q, l->q_dtype, ((l->row_start[i] + n) * l->H + h) * l->D, value, l->D, 1.0);
      }
  key_codes keys = {.l = l, .fill = &fill, .fill_v = &fill_v};
  threads_for(contents, 1024, fill_keys, &keys);
  if (keys.failed) {
    status = ASSAY_ERR_MEMORY;
    goto done;
  }
  l->filled = true;
done:
  free(value);
  return status == ASSAY_OK ? status : assay_fail(error, status, "generator: out of memory");
}

logical *logical_keep(logical *l) {
  ++l->references;
  return l;
}

void logical_drop(logical *l) {
  if (l == NULL || --l->references > 0) return;
  free(l->length);
  free(l->fresh);
  free(l->row_start);
  free(l->block_start);
  free(l->block_identity);
  free(l->k_scale);
  free(l->v_scale);
  free(l->visible);
  free(l->important);
  free(l->q);
  free(l->k);
  free(l->v);
  free(l->k_new);
  free(l->v_new);
  for (int32_t i = 0; i < ASSAY_MAX_ARGS; ++i)
    free(l->values[i]);
  free(l);
}
