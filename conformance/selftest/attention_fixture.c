/* attention_fixture.c: attention calls built by hand. Addresses are computed here anew, from the shapes alone. */
#include "attention_fixture.h"

#include <stdlib.h>

#include "core/dtype.h"

fixture_spec fixture_default(const assay_op *op) {
  return (fixture_spec){.op = op,
                        .H = 4,
                        .H_kv = 2,
                        .D = 32,
                        .block_size = 8,
                        .F = 3,
                        .dtype = ASSAY_F32,
                        .kv_dtype = ASSAY_F32,
                        .batch = 3,
                        .kv_len = {13, 1, 24},
                        .new_len = {13, 1, 5},
                        .values = ASSAY_NORMAL,
                        .density = -1,
                        .seed = 7,
                        .k_scale = 0.25,
                        .v_scale = 0.5};
}

assay_tensor *fixture_arg(fixture *f, const char *name) {
  for (int32_t i = 0; i < f->spec.op->arg_count; ++i)
    if (strcmp(f->spec.op->args[i].name, name) == 0) return &f->arg[i];
  abort();
}

void fixture_param(fixture *f, const char *name, double value) {
  for (int32_t i = 0; i < f->spec.op->param_count; ++i)
    if (strcmp(f->spec.op->params[i].name, name) == 0) {
      f->param[i] = value;
      return;
    }
  abort();
}

static void *zeroed(int64_t count, size_t size) {
  void *memory = calloc((size_t)(count > 0 ? count : 1), size);
  if (memory == NULL) abort();
  return memory;
}

static void *dense(fixture *f, const char *name, assay_dtype dtype, int32_t rank, const int64_t *shape) {
  assay_tensor *t = fixture_arg(f, name);
  *t = (assay_tensor){.dtype = dtype, .rank = rank};
  int64_t count = 1;
  for (int32_t axis = rank - 1; axis >= 0; --axis) {
    t->shape[axis] = shape[axis];
    t->stride[axis] = count;
    count *= shape[axis];
  }
  t->data = zeroed(count, (size_t)assay_dtype_size(dtype));
  memset(t->data, 0xFF, (size_t)(count * assay_dtype_size(dtype)));
  return t->data;
}

static bool is_fp8(const fixture *f) {
  return f->spec.kv_dtype == ASSAY_E4M3 || f->spec.kv_dtype == ASSAY_E5M2;
}

static double head_scale(const fixture *f, double scale, int64_t kv_head) {
  if (!is_fp8(f)) return 1;
  static const double step[4] = {1, 2, 0.5, 4};
  return (double)(float)(f->spec.per_head ? scale * step[kv_head % 4] : scale);
}

static void make_pools(fixture *f, int64_t blocks) {
  const int64_t D = f->spec.D, bs = f->spec.block_size, h = f->spec.H_kv, x = 16 / assay_dtype_size(f->spec.kv_dtype);
  const int64_t nhd[] = {blocks, bs, h, D}, hnd[] = {blocks, h, bs, D};
  const int64_t kx[] = {blocks, h, D / x, bs, x}, vx[] = {blocks, h, D, bs};
  const int layout = f->spec.layout;
  dense(f, "k_cache", f->spec.kv_dtype, layout == 2 ? 5 : 4, layout == 0 ? nhd : layout == 1 ? hnd : kx);
  dense(f, "v_cache", f->spec.kv_dtype, 4, layout == 0 ? nhd : layout == 1 ? hnd : vx);
  f->seen.slots = blocks * bs;
  f->seen.v_needed = zeroed(blocks * bs * h, 1);
}

static void make_scales(fixture *f) {
  if (!is_fp8(f)) return;
  const int64_t count = f->spec.per_head ? f->spec.H_kv : 1;
  float *k = dense(f, "k_scale", ASSAY_F32, 1, &count), *v = dense(f, "v_scale", ASSAY_F32, 1, &count);
  for (int64_t i = 0; i < count; ++i) {
    k[i] = (float)head_scale(f, f->spec.k_scale, i);
    v[i] = (float)head_scale(f, f->spec.v_scale, i);
  }
  fixture_param(f, "scale_per_head", f->spec.per_head);
}

void fixture_make(const fixture_spec *spec, fixture *f) {
  memset(f, 0, sizeof *f);
  f->spec = *spec;
  f->call = (assay_call){.op = spec->op, .arg = f->arg, .param = f->param};
  for (int32_t i = 0; i < spec->op->param_count; ++i)
    f->param[i] = spec->op->params[i].fallback;
  fixture_param(f, "layout", spec->layout);
  const int64_t B = spec->batch, H = spec->H, bs = spec->block_size, bounds = B + 1;
  f->G = H / spec->H_kv;
  int64_t longest = 0, used = 0;
  for (int64_t i = 0; i < B; ++i) {
    const int64_t count = (spec->kv_len[i] + bs - 1) / bs;
    longest = count > longest ? count : longest;
    used += count;
    f->first_row[i + 1] = f->first_row[i] + (spec->ragged ? spec->new_len[i] : 1);
  }
  f->N = f->first_row[B];
  f->capacity = (longest + 1) * bs; /* one dead entry at least */
  const int64_t blocks = used + 2;

  const int64_t q_shape[] = {f->N, H, spec->D}, table_shape[] = {B, longest + 1};
  dense(f, "q", spec->dtype, 3, q_shape);
  make_pools(f, blocks);
  make_scales(f);
  int32_t *table = dense(f, "block_table", ASSAY_I32, 2, table_shape), *length = dense(f, "kv_len", ASSAY_I32, 1, &B);
  /* Physical blocks in reverse order; blocks 0 and used + 1 belong to no request. */
  int64_t next = used;
  for (int64_t i = 0; i < B; ++i) {
    length[i] = spec->kv_len[i];
    for (int64_t j = 0; j * bs < spec->kv_len[i]; ++j)
      table[i * (longest + 1) + j] = (int32_t)next--;
  }
  if (spec->ragged) {
    int32_t *cu = dense(f, "cu_q", ASSAY_I32, 1, &bounds);
    for (int64_t i = 0; i <= B; ++i)
      cu[i] = (int32_t)f->first_row[i];
  }
  dense(f, "out", spec->dtype, 3, q_shape);
  if (strcmp(spec->op->name, "gate_attention") == 0) {
    float *taps = dense(f, "taps", ASSAY_F32, 1, &spec->F), *gamma = dense(f, "gamma", ASSAY_F32, 1, &H);
    for (int64_t j = 0; j < spec->F; ++j)
      taps[j] = j == 0 ? 0.75F : -0.25F;
    for (int64_t h = 0; h < H; ++h)
      gamma[h] = h % 3 == 0 ? 1.0F : h % 3 == 1 ? -0.5F : 2.0F;
  } else {
    if (spec->slopes) {
      float *slope = dense(f, "slopes", ASSAY_F32, 1, &H);
      for (int64_t h = 0; h < H; ++h)
        slope[h] = 0.05F * (float)(h + 1);
    }
    if (spec->lse) dense(f, "lse", ASSAY_F32, 2, q_shape);
    float *sink = spec->sink ? dense(f, "sink", ASSAY_F32, 1, &H) : NULL;
    for (int64_t h = 0; h < H && sink != NULL; ++h)
      sink[h] = h == 1 ? -1.5F : 0.5F + 0.25F * (float)h;
  }
  f->q = zeroed(f->N * H * spec->D, sizeof *f->q);
  f->k = zeroed(B * f->capacity * spec->H_kv * spec->D, sizeof *f->k);
  f->v = zeroed(B * f->capacity * spec->H_kv * spec->D, sizeof *f->v);
  f->out = zeroed(f->N * H * spec->D, sizeof *f->out);
  f->sigma = zeroed(f->N * H * spec->D, sizeof *f->sigma);
  f->lse = zeroed(f->N * H, sizeof *f->lse);
  f->lse_sigma = zeroed(f->N * H, sizeof *f->lse_sigma);
}

void fixture_free(fixture *f) {
  for (int32_t i = 0; i < f->spec.op->arg_count; ++i)
    free(f->arg[i].data);
  double *const owned[] = {f->q, f->k, f->v, f->out, f->sigma, f->lse, f->lse_sigma};
  for (size_t i = 0; i < sizeof owned / sizeof owned[0]; ++i)
    free(owned[i]);
  free(f->seen.v_needed);
}

void fixture_set_q(fixture *f, int64_t row, int64_t head, const double *value) {
  const assay_tensor *q = fixture_arg(f, "q");
  for (int64_t d = 0; d < f->spec.D; ++d) {
    const int64_t at = (row * f->spec.H + head) * f->spec.D + d;
    assay_store_f64(q->data, q->dtype, at, value[d]);
    f->q[at] = assay_round_f64(value[d], q->dtype);
  }
}

static int64_t logical(const fixture *f, int64_t request, int64_t token, int64_t kv_head) {
  return ((request * f->capacity + token) * f->spec.H_kv + kv_head) * f->spec.D;
}

const double *fixture_k(const fixture *f, int64_t request, int64_t token, int64_t kv_head) {
  return f->k + logical(f, request, token, kv_head);
}

const double *fixture_v(const fixture *f, int64_t request, int64_t token, int64_t kv_head) {
  return f->v + logical(f, request, token, kv_head);
}

/* Channel d of a slot, from the shapes of the three layouts. */
static int64_t address(const fixture *f, bool is_v, int64_t block, int64_t offset, int64_t h, int64_t d) {
  const int64_t D = f->spec.D, bs = f->spec.block_size, H = f->spec.H_kv, x = 16 / assay_dtype_size(f->spec.kv_dtype);
  if (f->spec.layout == 0) return ((block * bs + offset) * H + h) * D + d;
  if (f->spec.layout == 1) return ((block * H + h) * bs + offset) * D + d;
  if (is_v) return ((block * H + h) * D + d) * bs + offset;
  return (((block * H + h) * (D / x) + d / x) * bs + offset) * x + d % x;
}

static void set(fixture *f, bool is_v, int64_t request, int64_t token, int64_t kv_head, const double *value) {
  const assay_tensor *pool = fixture_arg(f, is_v ? "v_cache" : "k_cache"), *table = fixture_arg(f, "block_table");
  const int64_t bs = f->spec.block_size;
  const int64_t block = ((const int32_t *)table->data)[request * table->stride[0] + token / bs];
  const double scale = head_scale(f, is_v ? f->spec.v_scale : f->spec.k_scale, kv_head);
  double *copy = (is_v ? f->v : f->k) + logical(f, request, token, kv_head);
  for (int64_t d = 0; d < f->spec.D; ++d) {
    const double code = assay_round_f64(value[d] / scale, f->spec.kv_dtype);
    assay_store_f64(pool->data, f->spec.kv_dtype, address(f, is_v, block, token % bs, kv_head, d), code);
    copy[d] = code * scale;
  }
}

void fixture_set_k(fixture *f, int64_t request, int64_t token, int64_t kv_head, const double *value) {
  set(f, false, request, token, kv_head, value);
}

void fixture_set_v(fixture *f, int64_t request, int64_t token, int64_t kv_head, const double *value) {
  set(f, true, request, token, kv_head, value);
}

/* ---- the operator's recipes: content = request · capacity + token, nothing shared ---- */

static int64_t ask_content(void *context, int64_t request, int64_t token) {
  return request * ((const fixture *)context)->capacity + token;
}

static int64_t ask_length(void *context, int64_t request) {
  return ((const fixture *)context)->spec.kv_len[request];
}

static int64_t ask_first(void *context, int64_t request) {
  const fixture *f = context;
  return f->spec.kv_len[request] - (f->first_row[request + 1] - f->first_row[request]);
}

static bool ask_important(void *context, int64_t content) {
  const fixture *f = context;
  return f->spec.important > 0 && content % f->capacity % f->spec.important == 0;
}

void fixture_fill(fixture *f) {
  const fixture_spec *s = &f->spec;
  const assay_fill fill = {.call = &f->call,
                           .values = s->values,
                           .density = s->density,
                           .seed = s->seed,
                           .H = s->H,
                           .H_kv = s->H_kv,
                           .D = s->D,
                           .q_dtype = s->dtype,
                           .kv_dtype = s->kv_dtype,
                           .k_scale = head_scale(f, s->k_scale, 0),
                           .v_scale = head_scale(f, s->v_scale, 0),
                           .context = f,
                           .content = ask_content,
                           .kv_length = ask_length,
                           .first_position = ask_first,
                           .important = ask_important};
  double value[256];
  for (int64_t i = 0; i < s->batch; ++i) {
    for (int64_t n = f->first_row[i]; n < f->first_row[i + 1]; ++n)
      for (int64_t h = 0; h < s->H; ++h) {
        s->op->fill_q(&fill, i, n - f->first_row[i], h, value);
        fixture_set_q(f, n, h, value);
      }
    for (int64_t t = 0; t < s->kv_len[i]; ++t)
      for (int64_t h = 0; h < s->H_kv; ++h) {
        s->op->fill_k(&fill, ask_content(f, i, t), h, value);
        fixture_set_k(f, i, t, h, value);
        s->op->fill_v(&fill, ask_content(f, i, t), h, value);
        fixture_set_v(f, i, t, h, value);
      }
  }
}

assay_status fixture_reference(fixture *f, const assay_contract *contract, bool exact, assay_error *error) {
  assay_expected expected[2] = {{f->out, f->sigma}, {f->lse, f->lse_sigma}};
  const assay_rows all = {.count = f->N, .index = NULL};
  memset(f->seen.v_needed, 0, (size_t)(f->seen.slots * f->spec.H_kv));
  const assay_status status = f->spec.op->check(&f->call, error);
  if (status != ASSAY_OK) return status;
  return f->spec.op->reference(&f->call, contract, &all, exact, expected, &f->seen, error);
}
