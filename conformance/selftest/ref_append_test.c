/* ref_append_test.c: attention_append against the attention over a cache that holds the new token; mmha against complex
 * numbers, then attention_append. */
#include <complex.h>
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>

#include "attention_fixture.h"
#include "core/dtype.h"
#include "core/rng.h"

const assay_op *assay_op_gate_attention(void);
const assay_op *assay_op_softmax_attention(void);
const assay_op *assay_op_attention_append(void);
const assay_op *assay_op_mmha(void);

static const assay_contract contract = {.k = ASSAY_F32, .v = ASSAY_F32, .qk_lanes = 4, .pv_lanes = 1, .exp_ulp = 2};

enum { MOST = 4096, R = 16, POSITIONS = 32 };

/* A decode step: the fixture's cache holds the new tokens; the call's copy of it holds all ones in their slots. */
typedef struct step {
  fixture f;
  assay_tensor arg[ASSAY_MAX_ARGS];
  double param[ASSAY_MAX_PARAMS];
  assay_call call;
  int64_t slots[FIXTURE_BATCH];
  double k[MOST], v[MOST], out[MOST], k_sigma[MOST], v_sigma[MOST], sigma[MOST];
  assay_expected expected[3];
} step;

static int64_t bytes_of(const assay_tensor *t) {
  return t->shape[0] * t->stride[0] * assay_dtype_size(t->dtype);
}

static assay_tensor *arg_of(step *s, const char *name) {
  for (int32_t i = 0; i < s->call.op->arg_count; ++i)
    if (strcmp(s->call.op->args[i].name, name) == 0) return &s->arg[i];
  abort();
}

static void set_param(step *s, const char *name, double value) {
  for (int32_t i = 0; i < s->call.op->param_count; ++i)
    if (strcmp(s->call.op->params[i].name, name) == 0) s->param[i] = value;
}

static assay_tensor rows(assay_dtype dtype, int64_t N, int64_t heads, int64_t D, int64_t pad) {
  assay_tensor t = {.dtype = dtype, .rank = 3, .shape = {N, heads, D}, .stride = {heads * D + pad, D, 1}};
  t.data = calloc((size_t)(N * t.stride[0]), (size_t)assay_dtype_size(dtype));
  memset(t.data, 0xFF, (size_t)(N * t.stride[0] * assay_dtype_size(dtype)));
  return t;
}

/* The slot of the last token of request i, and the codes there replaced by all ones. */
static void forget_step(step *s, int64_t i) {
  const fixture *f = &s->f;
  const int64_t t = f->spec.kv_len[i] - 1, bs = f->spec.block_size, D = f->spec.D;
  const assay_tensor *table = fixture_arg(&s->f, "block_table");
  s->slots[i] = -1;
  if (t < 0) return;
  s->slots[i] = ((const int32_t *)table->data)[i * table->stride[0] + t / bs] * bs + t % bs;
  const int64_t size = assay_dtype_size(f->spec.kv_dtype), row = f->spec.H_kv * D * size;
  memset((char *)arg_of(s, "k_cache")->data + s->slots[i] * row, 0xFF, (size_t)row);
  memset((char *)arg_of(s, "v_cache")->data + s->slots[i] * row, 0xFF, (size_t)row);
}

static void start(step *s, const assay_op *op, bool softmax, assay_dtype dtype, assay_dtype kv) {
  memset(s, 0, sizeof *s);
  fixture_spec spec = fixture_default(softmax ? assay_op_softmax_attention() : assay_op_gate_attention());
  spec.dtype = dtype;
  spec.kv_dtype = kv;
  spec.per_head = kv != dtype;
  const int32_t length[4] = {13, 0, 24, 1};
  spec.batch = 4;
  memcpy(spec.kv_len, length, sizeof length);
  fixture_make(&spec, &s->f);
  fixture_fill(&s->f);
  s->call = (assay_call){op, s->arg, s->param};
  for (int32_t i = 0; i < op->param_count; ++i)
    s->param[i] = op->params[i].fallback;
  set_param(s, "kind", softmax);
  set_param(s, "scale_per_head", spec.per_head);
  for (int32_t i = 0; i < s->f.spec.op->arg_count; ++i)
    for (int32_t j = 0; j < op->arg_count; ++j)
      if (strcmp(op->args[j].name, s->f.spec.op->args[i].name) == 0) s->arg[j] = s->f.arg[i];
  for (int i = 0; i < 2; ++i) {
    assay_tensor *pool = arg_of(s, i == 0 ? "k_cache" : "v_cache");
    void *copy = malloc((size_t)bytes_of(pool));
    memcpy(copy, pool->data, (size_t)bytes_of(pool));
    pool->data = copy;
  }
  for (int64_t i = 0; i < spec.batch; ++i)
    forget_step(s, i);
  *arg_of(s, "slots") =
      (assay_tensor){.data = s->slots, .dtype = ASSAY_I64, .rank = 1, .shape = {spec.batch}, .stride = {1}};
  s->expected[0] = (assay_expected){s->k, s->k_sigma};
  s->expected[1] = (assay_expected){s->v, s->v_sigma};
  s->expected[2] = (assay_expected){s->out, s->sigma};
}

static void finish(step *s) {
  free(arg_of(s, "k_cache")->data);
  free(arg_of(s, "v_cache")->data);
  fixture_free(&s->f);
}

static assay_status ask_by(step *s, const assay_contract *c, const assay_rows *subset, assay_error *error) {
  assay_seen seen = {0};
  *error = (assay_error){0};
  assay_status status = s->call.op->check(&s->call, error);
  if (status == ASSAY_OK) status = s->call.op->reference(&s->call, c, subset, false, s->expected, &seen, error);
  return status;
}

static assay_status ask(step *s, const assay_rows *subset, assay_error *error) {
  return ask_by(s, &contract, subset, error);
}

/* The stored tokens of the step, from the fixture, as new rows that become the same codes. */
static void give_rows(step *s, int64_t pad) {
  const fixture *f = &s->f;
  const int64_t D = f->spec.D, H_kv = f->spec.H_kv;
  for (int which = 0; which < 2; ++which) {
    assay_tensor *t = arg_of(s, which == 0 ? "k_new" : "v_new");
    *t = rows(f->spec.dtype, f->spec.batch, H_kv, D, pad);
    for (int64_t i = 0; i < f->spec.batch; ++i)
      for (int64_t h = 0; h < H_kv && f->spec.kv_len[i] > 0; ++h) {
        const int64_t last = f->spec.kv_len[i] - 1;
        assay_store_f64_row(t->data, t->dtype, i * t->stride[0] + h * D, 1, D,
                            which == 0 ? fixture_k(f, i, last, h) : fixture_v(f, i, last, h));
      }
  }
}

static double factor(const step *s, const char *name, int64_t h) {
  const assay_tensor *scale = arg_of((step *)(uintptr_t)s, name);
  return scale->data != NULL ? (double)((const float *)scale->data)[scale->shape[0] > 1 ? h : 0] : 1;
}

/* The same bits as the attention over the whole cache; the codes of the step are those of the fixture. */
static void compare_with_attention(step *s) {
  const fixture *f = &s->f;
  const int64_t D = f->spec.D, H_kv = f->spec.H_kv, width = f->spec.H * D;
  assay_error error = {0};
  cr_assert(fixture_reference(&s->f, &contract, false, &error) == ASSAY_OK, "%s", error.text);
  for (int64_t i = 0; i < f->spec.batch * width; ++i)
    cr_assert(s->out[i] == f->out[i] && s->sigma[i] == f->sigma[i], "%lld: %g, not %g", (long long)i, s->out[i],
              f->out[i]);
  for (int64_t i = 0; i < f->spec.batch; ++i)
    for (int64_t h = 0; h < H_kv; ++h)
      for (int64_t d = 0; d < D; ++d) {
        const int64_t at = (i * H_kv + h) * D + d, last = f->spec.kv_len[i] - 1;
        const double k = last < 0 ? 0 : fixture_k(f, i, last, h)[d] / factor(s, "k_scale", h);
        const double v = last < 0 ? 0 : fixture_v(f, i, last, h)[d] / factor(s, "v_scale", h);
        cr_assert(s->k[at] == k && s->v[at] == v && s->k_sigma[at] == 0 && s->v_sigma[at] == 0);
      }
}

Test(attention_append, is_append_then_attention) {
  static step s;
  const assay_dtype types[][2] = {
      {ASSAY_F32, ASSAY_F32}, {ASSAY_BF16, ASSAY_BF16}, {ASSAY_F32, ASSAY_E4M3}, {ASSAY_F32, ASSAY_E5M2}};
  for (int softmax = 0; softmax < 2; ++softmax)
    for (size_t t = 0; t < sizeof types / sizeof types[0]; ++t) {
      assay_error error;
      start(&s, assay_op_attention_append(), softmax != 0, types[t][0], types[t][1]);
      give_rows(&s, softmax != 0 ? 0 : 24);
      cr_assert(ask(&s, NULL, &error) == ASSAY_OK, "%s", error.text);
      compare_with_attention(&s);
      free(arg_of(&s, "k_new")->data);
      free(arg_of(&s, "v_new")->data);
      finish(&s);
    }
}

Test(attention_append, some_rows_are_those_of_all) {
  static step s;
  static double out[MOST], k[MOST];
  assay_error error;
  const int64_t index[2] = {1, 2};
  const assay_rows subset = {2, index};
  start(&s, assay_op_attention_append(), false, ASSAY_F32, ASSAY_E4M3);
  give_rows(&s, 8);
  cr_assert(ask(&s, NULL, &error) == ASSAY_OK, "%s", error.text);
  memcpy(out, s.out, sizeof out);
  memcpy(k, s.k, sizeof k);
  cr_assert(ask(&s, &subset, &error) == ASSAY_OK, "%s", error.text);
  const int64_t width = s.f.spec.H * s.f.spec.D, kv_width = s.f.spec.H_kv * s.f.spec.D;
  cr_assert(memcmp(s.out, out + width, 2 * (size_t)width * sizeof *out) == 0);
  cr_assert(memcmp(s.k, k + kv_width, 2 * (size_t)kv_width * sizeof *k) == 0);
  free(arg_of(&s, "k_new")->data);
  free(arg_of(&s, "v_new")->data);
  finish(&s);
}

Test(attention_append, bad_contents_are_refused) {
  static step s;
  assay_error error;
  start(&s, assay_op_attention_append(), false, ASSAY_F32, ASSAY_F32);
  give_rows(&s, 0);
  const int64_t right = s.slots[0];
  s.slots[0] = right - 1;
  cr_assert(ask(&s, NULL, &error) == ASSAY_ERR_INPUT);
  cr_assert(strstr(error.text, "slots: found") != NULL, "%s", error.text);
  s.slots[0] = right;
  s.slots[1] = 0; /* a pad row */
  cr_assert(ask(&s, NULL, &error) == ASSAY_ERR_INPUT);
  cr_assert(strstr(error.text, "for row 1, allowed -1") != NULL, "%s", error.text);
  s.slots[1] = -1;
  assay_tensor *table = arg_of(&s, "block_table");
  int32_t *entry = table->data;
  entry[2 * table->stride[0]] = entry[1]; /* request 2 reads the block that row 0 writes */
  cr_assert(ask(&s, NULL, &error) == ASSAY_ERR_INPUT);
  cr_assert(strstr(error.text, "which row 0 writes") != NULL, "%s", error.text);
  free(arg_of(&s, "k_new")->data);
  free(arg_of(&s, "v_new")->data);
  finish(&s);
}

/* ---- mmha ---- */

typedef struct fused {
  assay_tensor qkv;
  float bias[1024], cosine[POSITIONS * R / 2], sine[POSITIONS * R / 2];
} fused;

static void give_fused(step *s, fused *x, bool interleaved) {
  const fixture *f = &s->f;
  const int64_t heads = f->spec.H + 2 * f->spec.H_kv, D = f->spec.D;
  double value[256];
  x->qkv = rows(ASSAY_F32, f->spec.batch, heads, D, 16);
  for (int64_t i = 0; i < f->spec.batch; ++i)
    for (int64_t h = 0; h < heads && f->spec.kv_len[i] > 0; ++h) {
      assay_rng_normals(21, (uint64_t)(i * heads + h), value, D);
      assay_store_f64_row(x->qkv.data, ASSAY_F32, i * x->qkv.stride[0] + h * D, 1, D, value);
    }
  for (int64_t i = 0; i < heads * D; ++i)
    x->bias[i] = (float)(i % 13 - 6) * 0.1F;
  for (int64_t i = 0; i < POSITIONS * R / 2; ++i) {
    const double angle = (double)(i / (R / 2)) * pow(10, -(double)(i % (R / 2)) / 4);
    x->cosine[i] = (float)cos(angle);
    x->sine[i] = (float)sin(angle);
  }
  *arg_of(s, "qkv") = x->qkv;
  *arg_of(s, "bias") =
      (assay_tensor){.data = x->bias, .dtype = ASSAY_F32, .rank = 2, .shape = {heads, D}, .stride = {D, 1}};
  const assay_tensor table = {.dtype = ASSAY_F32, .rank = 2, .shape = {POSITIONS, R / 2}, .stride = {R / 2, 1}};
  *arg_of(s, "cos") = *arg_of(s, "sin") = table;
  arg_of(s, "cos")->data = x->cosine;
  arg_of(s, "sin")->data = x->sine;
  set_param(s, "style", interleaved);
}

/* Bias, then pairs of channels as complex numbers times cos + i sin, rounded to f32. */
static void rotate(const fused *x, int64_t row, int64_t head, int64_t D, int64_t position, bool interleaved, bool turns,
                   double *y) {
  const float *from = (const float *)x->qkv.data + row * x->qkv.stride[0] + head * D;
  for (int64_t d = 0; d < D; ++d)
    y[d] = (double)from[d] + (double)x->bias[head * D + d];
  for (int64_t i = 0; i < R / 2 && turns; ++i) {
    const int64_t a = interleaved ? 2 * i : i, b = interleaved ? 2 * i + 1 : i + R / 2, at = position * (R / 2) + i;
    const double complex z = CMPLX(y[a], y[b]) * CMPLX((double)x->cosine[at], (double)x->sine[at]);
    y[a] = creal(z);
    y[b] = cimag(z);
  }
  for (int64_t d = 0; d < D; ++d)
    y[d] = (double)(float)y[d];
}

Test(mmha, is_rotation_then_attention_append) {
  static step m, s;
  static fused x;
  for (int softmax = 0; softmax < 2; ++softmax)
    for (int style = 0; style < 2; ++style) {
      assay_error error;
      double y[256];
      const assay_dtype kv = style == 0 ? ASSAY_F32 : ASSAY_E4M3;
      start(&m, assay_op_mmha(), softmax != 0, ASSAY_F32, kv);
      give_fused(&m, &x, style != 0);
      cr_assert(ask(&m, NULL, &error) == ASSAY_OK, "%s", error.text);

      start(&s, assay_op_attention_append(), softmax != 0, ASSAY_F32, kv);
      give_rows(&s, 0);
      const int64_t H = s.f.spec.H, H_kv = s.f.spec.H_kv, D = s.f.spec.D;
      assay_tensor *const q = arg_of(&s, "q"), *const k = arg_of(&s, "k_new"), *const v = arg_of(&s, "v_new");
      for (int64_t i = 0; i < s.f.spec.batch; ++i)
        for (int64_t h = 0; h < H + 2 * H_kv && s.f.spec.kv_len[i] > 0; ++h) {
          rotate(&x, i, h, D, s.f.spec.kv_len[i] - 1, style != 0, h < H + H_kv, y);
          const assay_tensor *to = h < H ? q : h < H + H_kv ? k : v;
          const int64_t head = h < H ? h : (h - H) % H_kv;
          assay_store_f64_row(to->data, ASSAY_F32, i * to->stride[0] + head * D, 1, D, y);
        }
      cr_assert(ask(&s, NULL, &error) == ASSAY_OK, "%s", error.text);
      for (int64_t i = 0; i < s.f.spec.batch * H * D; ++i) {
        cr_assert(fabs(m.out[i] - s.out[i]) <= 1e-12 * (1 + fabs(s.out[i])), "%g, not %g", m.out[i], s.out[i]);
        cr_assert(m.sigma[i] >= s.sigma[i] && m.sigma[i] <= 4 * s.sigma[i] + 1e-5 * fabs(s.out[i]));
      }
      for (int64_t i = 0; i < s.f.spec.batch * H_kv * D; ++i) {
        cr_assert(m.k[i] == s.k[i] && m.v[i] == s.v[i]);
        cr_assert(kv == ASSAY_F32 ? m.k_sigma[i] <= 1e-6 : m.k_sigma[i] >= 0);
      }
      free(k->data);
      free(v->data);
      free(x.qkv.data);
      finish(&s);
      finish(&m);
    }
}

/* A contract that rounds q: the attention sees rounded queries, and a query that may round either way is in sigma. */
Test(mmha, q_rounded_by_contract) {
  static step m, s;
  static fused x;
  assay_contract rounds = contract;
  rounds.rotated = ASSAY_BF16;
  assay_error error;
  double y[256];
  start(&m, assay_op_mmha(), true, ASSAY_F32, ASSAY_F32);
  give_fused(&m, &x, false);
  cr_assert(ask_by(&m, &rounds, NULL, &error) == ASSAY_OK, "%s", error.text);
  start(&s, assay_op_attention_append(), true, ASSAY_F32, ASSAY_F32);
  give_rows(&s, 0);
  const int64_t H = s.f.spec.H, H_kv = s.f.spec.H_kv, D = s.f.spec.D;
  assay_tensor *const q = arg_of(&s, "q"), *const k = arg_of(&s, "k_new"), *const v = arg_of(&s, "v_new");
  for (int64_t i = 0; i < s.f.spec.batch; ++i)
    for (int64_t h = 0; h < H + 2 * H_kv && s.f.spec.kv_len[i] > 0; ++h) {
      rotate(&x, i, h, D, s.f.spec.kv_len[i] - 1, false, h < H + H_kv, y);
      for (int64_t d = 0; d < D && h < H; ++d)
        y[d] = assay_round_f64(y[d], ASSAY_BF16);
      const assay_tensor *to = h < H ? q : h < H + H_kv ? k : v;
      assay_store_f64_row(to->data, ASSAY_F32, i * to->stride[0] + (h < H ? h : (h - H) % H_kv) * D, 1, D, y);
    }
  cr_assert(ask(&s, NULL, &error) == ASSAY_OK, "%s", error.text);
  for (int64_t i = 0; i < s.f.spec.batch * H * D; ++i)
    cr_assert(fabs(m.out[i] - s.out[i]) <= 1e-12 * (1 + fabs(s.out[i])) && m.sigma[i] >= s.sigma[i]);
  free(k->data);
  free(v->data);
  free(x.qkv.data);
  finish(&s);
  finish(&m);
}

Test(mmha, lengths_beyond_the_tables_are_refused) {
  static step m;
  static fused x;
  assay_error error;
  start(&m, assay_op_mmha(), false, ASSAY_F32, ASSAY_F32);
  give_fused(&m, &x, false);
  arg_of(&m, "cos")->shape[0] = arg_of(&m, "sin")->shape[0] = 23; /* the longest request has 24 */
  cr_assert(ask(&m, NULL, &error) == ASSAY_ERR_INPUT);
  cr_assert(strstr(error.text, "allowed up to max_pos = 23") != NULL, "%s", error.text);
  free(x.qkv.data);
  finish(&m);
}
