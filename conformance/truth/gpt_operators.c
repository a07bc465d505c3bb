/* gpt_operators.c: asks every operator's reference with the operator's recorded inputs and judges the recorded output
 * as a kernel's, with f32 throughout. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/dtype.h"
#include "gpt.h"
#include "onnx.h"

static assay_status out_of_memory(assay_error *error) {
  return assay_fail(error, ASSAY_ERR_MEMORY, "truth: out of memory");
}

static double at(const file_tensor *t, int64_t i) {
  return assay_load_f64(t->data, t->dtype, i);
}

static double *numbers(const file_tensor *t) {
  double *value = malloc((size_t)t->count * sizeof *value + 1);
  for (int64_t i = 0; value != NULL && i < t->count; ++i)
    value[i] = at(t, i);
  return value;
}

/* Compares, and keeps the largest noise of all operators. Noise is one RMS over another: of what the error model
 * allows an f32 implementation, over that of the one rounding that stores the result. */
static void compare(recorded *g, truth_report *r, const foreign_call *f, const char *output, const double *value) {
  const int32_t o = foreign_output(f, output);
  double own = 0, stored = 0;
  truth_compare(r, f, output, value);
  for (int64_t i = 0; o >= 0 && i < foreign_rows(f, o) * foreign_width(f, o); ++i) {
    const double sigma = f->expected[o].sigma[i], ulp = assay_ulp(f->expected[o].value[i], ASSAY_F32);
    own += sigma * sigma;
    stored += ulp * ulp / 12;
  }
  if (stored > 0 && sqrt(own / stored) > g->noise) g->noise = sqrt(own / stored);
}

/* ---- operators whose arguments are rows -------------------------------------------------------------- */

typedef struct row_step {
  const char *recorded, *op, *out;
  struct {
    const char *arg, *from; /* "0": zeros */
  } in[4];
} row_step;

static const row_step steps[] = {
    {"ln1", "layer_norm", "y", {{"x", "x"}, {"g", "h.0.ln_1.weight"}, {"b", "h.0.ln_1.bias"}}},
    {"qkv", "gemm", "c", {{"a", "ln1"}, {"b", "h.0.attn.c_attn.weight"}, {"bias", "h.0.attn.c_attn.bias"}}},
    {"yProj", "gemm", "c", {{"a", "y"}, {"b", "h.0.attn.c_proj.weight"}, {"bias", "h.0.attn.c_proj.bias"}}},
    {"attnResid", "bias_residual", "res", {{"res", "x"}, {"y", "yProj"}}},
    {"ln2", "layer_norm", "y", {{"x", "attnResid"}, {"g", "h.0.ln_2.weight"}, {"b", "h.0.ln_2.bias"}}},
    {"fc", "gemm", "c", {{"a", "ln2"}, {"b", "h.0.mlp.c_fc.weight"}, {"bias", "h.0.mlp.c_fc.bias"}}},
    {"gelu", "bias_gelu_new", "x", {{"x", "fc"}, {"b", "0"}}},
    {"mlp", "gemm", "c", {{"a", "gelu"}, {"b", "h.0.mlp.c_proj.weight"}, {"bias", "h.0.mlp.c_proj.bias"}}},
    {"mlpResid", "bias_residual", "res", {{"res", "attnResid"}, {"y", "mlp"}}},
    {"ln_f", "layer_norm", "y", {{"x", "block2"}, {"g", "ln_f.weight"}, {"b", "ln_f.bias"}}},
    {"lm_head", "gemm", "c", {{"a", "ln_f"}, {"b", "lm_head.weight"}}},
};

/* [B, T, C] as rows. */
static int32_t row_shape(const file_tensor *t, int64_t *shape) {
  const int64_t last = t->rank > 0 ? t->shape[t->rank - 1] : 1;
  if (t->rank < 3) {
    memcpy(shape, t->shape, (size_t)t->rank * sizeof *shape);
    return t->rank;
  }
  shape[0] = last > 0 ? t->count / last : 0;
  shape[1] = last;
  return 2;
}

static assay_status ask_step(recorded *g, const row_step *step, foreign_call *f, assay_error *error) {
  int64_t shape[ASSAY_MAX_RANK];
  const file_tensor *y = recorded_tensor(g, step->recorded);
  int32_t rank = row_shape(y, shape);
  assay_status status = foreign_begin(f, step->op, error);
  if (status == ASSAY_OK) status = foreign_tensor(f, step->out, ASSAY_F32, rank, shape, NULL, error);
  for (int i = 0; i < 4 && step->in[i].arg != NULL && status == ASSAY_OK; ++i) {
    if (strcmp(step->in[i].from, "0") == 0) {
      status = foreign_tensor(f, step->in[i].arg, ASSAY_F32, 1, &shape[rank - 1], NULL, error);
      continue;
    }
    int64_t own[ASSAY_MAX_RANK];
    const file_tensor *t = recorded_tensor(g, step->in[i].from);
    if (t == NULL) return assay_fail(error, ASSAY_ERR_INPUT, "%s: found no such tensor", step->in[i].from);
    rank = row_shape(t, own);
    status = foreign_tensor(f, step->in[i].arg, t->dtype, rank, own, t->data, error);
  }
  if (status == ASSAY_OK && strcmp(step->op, "layer_norm") == 0)
    status = foreign_set(f, "eps", g->model.config.eps, error);
  return status == ASSAY_OK ? foreign_reference(f, error) : status;
}

static assay_status judge_steps(recorded *g, assay_error *error) {
  for (size_t i = 0; i < sizeof steps / sizeof *steps; ++i) {
    foreign_call f = {0};
    truth_report report;
    assay_error inner = {""};
    char name[100];
    memset(&report, 0, sizeof report);
    const file_tensor *y = recorded_tensor(g, steps[i].recorded);
    if (y == NULL)
      return assay_fail(error, ASSAY_ERR_INPUT, "%s/golden_pytorch_manifest.json: %s: found no such tensor", g->folder,
                        steps[i].recorded);
    double *value = numbers(y);
    if (value == NULL) return out_of_memory(error);
    (void)snprintf(name, sizeof name, "%s, %s", steps[i].recorded, steps[i].op);
    if (ask_step(g, &steps[i], &f, &inner) == ASSAY_OK)
      compare(g, &report, &f, steps[i].out, value);
    else
      truth_failed(&report, &inner);
    truth_line(g->log, name, &report);
    foreign_free(&f);
    free(value);
  }
  return ASSAY_OK;
}

/* ---- embeddings, attention, probabilities ------------------------------------------------------------ */

static assay_status ask_embedding(recorded *g, const char *table, const char *positions, bool by_place, foreign_call *f,
                                  assay_error *error) {
  const file_tensor *w = recorded_tensor(g, table), *p = positions != NULL ? recorded_tensor(g, positions) : NULL;
  const int64_t rows = by_place ? g->T : g->B * g->T, shape[2] = {rows, w->shape[1]};
  int32_t *place = malloc((size_t)rows * sizeof *place);
  if (place == NULL) return out_of_memory(error);
  for (int64_t n = 0; n < rows; ++n)
    place[n] = (int32_t)(n % g->T);
  assay_status status = foreign_begin(f, "embedding", error);
  if (status == ASSAY_OK) status = foreign_tensor(f, "table", w->dtype, 2, w->shape, w->data, error);
  if (status == ASSAY_OK) status = foreign_tensor(f, "ids", ASSAY_I32, 1, &rows, by_place ? place : g->ids, error);
  if (status == ASSAY_OK && p != NULL)
    status = foreign_tensor(f, "position_table", p->dtype, 2, p->shape, p->data, error);
  if (status == ASSAY_OK && p != NULL) status = foreign_tensor(f, "positions", ASSAY_I32, 1, &rows, place, error);
  if (status == ASSAY_OK) status = foreign_tensor(f, "y", w->dtype, 2, shape, NULL, error);
  if (status == ASSAY_OK) status = foreign_reference(f, error);
  free(place);
  return status;
}

static assay_status judge_embedding(recorded *g, const char *name, const char *table, const char *positions,
                                    bool by_place, assay_error *error) {
  foreign_call f = {0};
  truth_report report;
  assay_error inner = {""};
  char line[100];
  double *value = numbers(recorded_tensor(g, name));
  if (value == NULL) return out_of_memory(error);
  memset(&report, 0, sizeof report);
  (void)snprintf(line, sizeof line, "%s, embedding", name);
  if (ask_embedding(g, table, positions, by_place, &f, &inner) == ASSAY_OK)
    compare(g, &report, &f, "y", value);
  else
    truth_failed(&report, &inner);
  truth_line(g->log, line, &report);
  foreign_free(&f);
  free(value);
  return ASSAY_OK;
}

/* Copies [B, H, T, width] to rows [B · T, H, room]. */
static void by_rows(recorded *g, const file_tensor *t, int64_t width, int64_t room, double *rows) {
  for (int64_t b = 0; b < g->B; ++b)
    for (int64_t h = 0; h < g->H; ++h)
      for (int64_t n = 0; n < g->T; ++n)
        for (int64_t d = 0; d < width; ++d)
          rows[((b * g->T + n) * g->H + h) * room + d] = at(t, ((b * g->H + h) * g->T + n) * width + d);
}

/* Passes q, k, v of all sequences as one ragged call. one_hot: V of key t is 1 in channel t, and the output is p. */
static assay_status ask_attention(recorded *g, bool one_hot, foreign_call *f, assay_error *error) {
  enum { BLOCK = 16 };
  const int64_t blocks = (g->T + BLOCK - 1) / BLOCK, places = blocks * BLOCK, rows = g->B * g->T;
  const int64_t room = one_hot && g->T > g->D ? (g->T + 7) / 8 * 8 : g->D, row = g->H * room;
  const int64_t q_shape[3] = {rows, g->H, room}, pool[4] = {g->B * blocks, BLOCK, g->H, room};
  const int64_t table_shape[2] = {g->B, blocks}, bounds = g->B + 1;
  double *memory = calloc((size_t)(2 * rows + 2 * g->B * places) * (size_t)row + 1, sizeof *memory);
  int32_t *integers = calloc((size_t)(g->B * (blocks + 2) + 1), sizeof *integers);
  if (memory == NULL || integers == NULL) {
    free(memory);
    free(integers);
    return out_of_memory(error);
  }
  double *q = memory, *fresh = q + rows * row, *k = fresh + rows * row, *v = k + g->B * places * row;
  int32_t *length = integers, *cu_q = length + g->B, *table = cu_q + bounds;
  by_rows(g, recorded_tensor(g, "q"), g->D, room, q);
  for (int which = 0; which < 2; ++which) {
    double *to = which == 0 ? k : v;
    by_rows(g, recorded_tensor(g, which == 0 ? "k" : "v"), g->D, room, fresh);
    for (int64_t n = 0; n < rows; ++n)
      memcpy(to + (n / g->T * places + n % g->T) * row, fresh + n * row, (size_t)row * sizeof *to);
  }
  for (int64_t i = 0; i < g->B * places * row && one_hot; ++i)
    v[i] = i / row % places == i % room ? 1 : 0;
  for (int64_t b = 0; b <= g->B; ++b)
    cu_q[b] = (int32_t)(b * g->T);
  for (int64_t b = 0; b < g->B; ++b)
    length[b] = (int32_t)g->T;
  for (int64_t i = 0; i < g->B * blocks; ++i)
    table[i] = (int32_t)i;
  assay_status status = foreign_begin(f, "softmax_attention", error);
  if (status == ASSAY_OK) status = foreign_values(f, "q", ASSAY_F32, 3, q_shape, q, error);
  if (status == ASSAY_OK) status = foreign_values(f, "k_cache", ASSAY_F32, 4, pool, k, error);
  if (status == ASSAY_OK) status = foreign_values(f, "v_cache", ASSAY_F32, 4, pool, v, error);
  if (status == ASSAY_OK) status = foreign_tensor(f, "block_table", ASSAY_I32, 2, table_shape, table, error);
  if (status == ASSAY_OK) status = foreign_tensor(f, "kv_len", ASSAY_I32, 1, &g->B, length, error);
  if (status == ASSAY_OK) status = foreign_tensor(f, "cu_q", ASSAY_I32, 1, &bounds, cu_q, error);
  if (status == ASSAY_OK) status = foreign_tensor(f, "out", ASSAY_F32, 3, q_shape, NULL, error);
  if (status == ASSAY_OK) status = foreign_set(f, "scale", 1 / sqrt((double)g->D), error);
  if (status == ASSAY_OK) status = foreign_reference(f, error);
  free(memory);
  free(integers);
  return status;
}

static assay_status judge_attention(recorded *g, const char *name, bool one_hot, assay_error *error) {
  foreign_call f = {0};
  truth_report report;
  assay_error inner = {""};
  char line[100];
  const file_tensor *y = recorded_tensor(g, name);
  const int64_t room = one_hot && g->T > g->D ? (g->T + 7) / 8 * 8 : g->D;
  double *value = calloc((size_t)(g->B * g->T * g->H * room) + 1, sizeof *value);
  if (value == NULL) return out_of_memory(error);
  memset(&report, 0, sizeof report);
  if (one_hot)
    by_rows(g, y, g->T, room, value); /* [B, H, T, T] */
  else
    for (int64_t i = 0; i < y->count; ++i) /* [B, T, H · D] */
      value[i] = at(y, i);
  (void)snprintf(line, sizeof line, "%s, softmax_attention", name);
  if (ask_attention(g, one_hot, &f, &inner) == ASSAY_OK)
    compare(g, &report, &f, "out", value);
  else
    truth_failed(&report, &inner);
  truth_line(g->log, line, &report);
  foreign_free(&f);
  free(value);
  return ASSAY_OK;
}

/* Judges scores, the product of q and k, head by head. Entries above the diagonal are no numbers and are left out. */
static assay_status judge_scores(recorded *g, assay_error *error) {
  truth_report report;
  const file_tensor *q = recorded_tensor(g, "q"), *k = recorded_tensor(g, "k"), *att = recorded_tensor(g, "att");
  const int64_t in[2] = {g->T, g->D}, out[2] = {g->T, g->T};
  double *value = malloc((size_t)(g->T * g->T) * sizeof *value);
  if (value == NULL) return out_of_memory(error);
  memset(&report, 0, sizeof report);
  for (int64_t i = 0; i < g->B * g->H; ++i) {
    foreign_call f = {0};
    assay_error inner = {""};
    const int64_t first = i * g->T * g->D * (int64_t)sizeof(float);
    assay_status status = foreign_begin(&f, "gemm", &inner);
    if (status == ASSAY_OK) status = foreign_tensor(&f, "a", ASSAY_F32, 2, in, q->data + first, &inner);
    if (status == ASSAY_OK) status = foreign_tensor(&f, "b", ASSAY_F32, 2, in, k->data + first, &inner);
    if (status == ASSAY_OK) status = foreign_tensor(&f, "c", ASSAY_F32, 2, out, NULL, &inner);
    if (status == ASSAY_OK) status = foreign_set(&f, "alpha", 1 / sqrt((double)g->D), &inner);
    if (status == ASSAY_OK) status = foreign_reference(&f, &inner);
    for (int64_t e = 0; e < g->T * g->T && status == ASSAY_OK; ++e) {
      const bool above = e % g->T > e / g->T;
      value[e] = above ? assay_round_f64(f.expected[0].value[e], ASSAY_F32) : at(att, i * g->T * g->T + e);
      if (above && at(att, i * g->T * g->T + e) != -(double)INFINITY)
        status = assay_fail(&inner, ASSAY_ERR_INPUT, "att: found a number above the diagonal, allowed -inf");
    }
    if (status == ASSAY_OK)
      compare(g, &report, &f, "c", value);
    else
      truth_failed(&report, &inner);
    foreign_free(&f);
  }
  truth_line(g->log, "att, gemm", &report);
  free(value);
  return ASSAY_OK;
}

/* Judges probs = softmax(lm_head), asked like an ONNX case. */
static assay_status judge_probs(recorded *g, assay_error *error) {
  const file_tensor *x = recorded_tensor(g, "lm_head"), *y = recorded_tensor(g, "probs");
  truth_report report;
  assay_error inner = {""};
  onnx_case c = {.name = "probs", .op = "Softmax", .count = 2};
  c.tensor[0] = (onnx_tensor){.name = "x", .dtype = ASSAY_F32, .rank = 3, .count = x->count, .value = numbers(x)};
  c.tensor[1] = (onnx_tensor){.name = "y", .dtype = ASSAY_F32, .rank = 3, .count = y->count, .value = numbers(y)};
  if (c.tensor[0].value == NULL || c.tensor[1].value == NULL) return out_of_memory(error);
  memcpy(c.tensor[0].shape, x->shape, sizeof x->shape);
  memcpy(c.tensor[1].shape, y->shape, sizeof y->shape);
  memset(&report, 0, sizeof report);
  if (onnx_softmax(&c, &report, &inner) != ASSAY_OK) truth_failed(&report, &inner);
  truth_line(g->log, "probs, softmax_attention", &report);
  free(c.tensor[0].value);
  free(c.tensor[1].value);
  return ASSAY_OK;
}

assay_status gpt_operators(recorded *g, assay_error *error) {
  assay_status status = judge_embedding(g, "tok_emb", "wte.weight", NULL, false, error);
  if (status == ASSAY_OK) status = judge_embedding(g, "pos_emb", "wpe.weight", NULL, true, error);
  if (status == ASSAY_OK) status = judge_embedding(g, "x", "wte.weight", "wpe.weight", false, error);
  if (status == ASSAY_OK) status = judge_scores(g, error);
  if (status == ASSAY_OK) status = judge_attention(g, "attSm", true, error);
  if (status == ASSAY_OK) status = judge_attention(g, "y", false, error);
  if (status == ASSAY_OK) status = judge_steps(g, error);
  if (status == ASSAY_OK) status = judge_probs(g, error);
  return status;
}
