/* narrow.c: products with weights of e4m3, which have a scale for every 128 x 128 (config.fp8_weights). A row is stored
 * as e4m3 with a scale for every 128 channels before it is multiplied:
 *
 *   a, sfa = group_quant(x)
 *   y      = fp8_block_gemm(a, sfa, w, scales of w), or fp8_grouped_gemm for the rows of experts
 *
 * Embedding, head, routers, norms and attn.kv_b keep the type of the others. */
#include "core/model_narrow.h"
#include "gpu/models/pass.h"

enum { BLOCK = ASSAY_MODEL_FP8_BLOCK };

static const pass_param no_params[] = {{NULL, 0}};

bool pass_is_narrow(const pass *m, const char *name) {
  return pass_weight(m, name, "w").dtype == ASSAY_E4M3;
}

int64_t pass_narrow_rows(const pass *m) {
  const int64_t N = m->limits.max_tokens, k = m->config.experts_used;
  return k > 1 ? N * k : N;
}

/* Returns the first rows of memory for rows of `width` elements. */
static assay_tensor rows_in(const assay_tensor *memory, int64_t rows, int64_t width) {
  assay_tensor part = *memory;
  part.rank = 2;
  part.shape[0] = rows;
  part.shape[1] = part.stride[0] = width;
  part.stride[1] = 1;
  return part;
}

/* Stores rows as codes and scales. */
static void narrow(pass *m, const assay_tensor *x, assay_tensor *codes, assay_tensor *scales) {
  const int64_t rows = x->shape[0], width = x->shape[1];
  *codes = rows_in(&m->codes, rows, width);
  *scales = rows_in(&m->code_scales, rows, (width + BLOCK - 1) / BLOCK);
  const pass_arg args[] = {{"x", *x}, {"q", *codes}, {"scale", *scales}, {.name = NULL}};
  pass_call(m, "group_quant", args, no_params);
}

void pass_narrow_linear(pass *m, const char *name, const assay_tensor *x, const assay_tensor *bias,
                        const assay_tensor *y) {
  assay_tensor a, sfa;
  const assay_tensor w = pass_weight(m, name, "w"), sfb = pass_weight(m, name, "s");
  m->stage = name;
  narrow(m, x, &a, &sfa);
  const pass_arg args[] = {{"a", a}, {"sfa", sfa}, {"b", w}, {"sfb", sfb}, {"bias", *bias}, {"c", *y}, {.name = NULL}};
  pass_call(m, "fp8_block_gemm", args, no_params);
}

/* Splits the first axis of a matrix: `rows` rows for each expert. */
static assay_tensor by_expert(const assay_tensor *t, int64_t experts, int64_t rows) {
  const int64_t width = t->rank == 2 ? t->shape[1] : 1;
  assay_tensor part = *t;
  if (t->data == NULL) return part;
  part.rank = t->rank + 1;
  part.shape[0] = experts;
  part.shape[1] = rows;
  part.shape[2] = width;
  part.stride[0] = rows * width;
  part.stride[1] = width;
  part.stride[2] = 1;
  return part;
}

void pass_narrow_experts(pass *m, const char *name, const assay_tensor *x, const assay_tensor *y) {
  assay_tensor a, sfa;
  const int64_t E = m->config.experts, out = y->shape[1];
  const assay_tensor w = pass_weight(m, name, "w"), s = pass_weight(m, name, "s"), b = pass_weight(m, name, "b");
  const assay_tensor weights = by_expert(&w, E, out), biases = by_expert(&b, E, out);
  const assay_tensor sfb = by_expert(&s, E, out / BLOCK);
  m->stage = name;
  narrow(m, x, &a, &sfa);
  const pass_arg args[] = {{"a", a},         {"sfa", sfa},          {"b", weights}, {"sfb", sfb},
                           {"bias", biases}, {"group", m->experts}, {"c", *y},      {.name = NULL}};
  pass_call(m, "fp8_grouped_gemm", args, no_params);
}
