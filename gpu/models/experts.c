/* experts.c: the calls of a sparse layer: the router, rows sorted by expert, their products, the weighted sum. The
 * products of all experts are one call, in which each row names its expert. Without the form, each expert's product is
 * a call of its own, and the host reads where each expert's rows begin. Only the first way can be captured as a graph.
 */
#include "core/dtype.h"
#include "gpu/models/pass.h"

static const pass_param no_params[] = {{NULL, 0}};

void pass_route(pass *m, const char *name, const assay_tensor *logits) {
  const pass_arg args[] = {{"x", *logits},
                           {"bias", pass_weight(m, name, "bias")},
                           {"ids", m->chosen},
                           {"weights", m->shares},
                           {.name = NULL}};
  const bool over_chosen = m->config.arch == ASSAY_GPT_OSS; /* the softmax over the chosen logits */
  const bool grouped = m->config.arch == ASSAY_DEEPSEEK_V3; /* sigmoids, and experts of the best groups alone */
  const bool divided = over_chosen || m->config.renormalise;
  const pass_param params[] = {{"score", grouped},
                               {"select_on", over_chosen},
                               {"renormalise", divided},
                               {"groups", grouped ? (double)m->config.groups : 1},
                               {"topk_groups", grouped ? (double)m->config.groups_used : 1},
                               {"route_scale", grouped ? m->config.route_scale : 1},
                               {NULL, 0}};
  m->stage = name;
  pass_call(m, "moe_router", args, params);
  pass_take(m, "router.ids", &m->chosen, 0, m->chosen.shape[1]);
  pass_take(m, "router.weights", &m->shares, 0, m->shares.shape[1]);
}

/* Reads where the rows of each expert begin; after a failure no expert has rows. */
static void read_offsets(pass *m) {
  const int64_t E = m->config.experts, bytes = (E + 1) * (int64_t)sizeof(int32_t);
  const int32_t *offsets = m->host;
  for (int64_t e = 0; e <= E; ++e)
    m->first[e] = 0;
  if (m->status == ASSAY_OK) pass_fail(m, m->device->download(m->host, m->offsets.data, bytes, m->error));
  if (m->status == ASSAY_OK) pass_fail(m, m->device->synchronize(m->error));
  for (int64_t e = 0; e <= E && m->status == ASSAY_OK; ++e)
    m->first[e] = offsets[e];
}

void pass_permute(pass *m, const assay_tensor *x, const assay_tensor *routed) {
  const pass_arg sort[] = {{"ids", m->chosen},  {"counts", m->counted},     {"offsets", m->offsets},
                           {"order", m->order}, {"row_expert", m->experts}, {"pos", m->place},
                           {.name = NULL}};
  const pass_arg copy[] = {{"x", *x}, {"order", m->order}, {"y", *routed}, {.name = NULL}};
  const pass_param k[] = {{"k", (double)m->config.experts_used}, {NULL, 0}};
  m->stage = "experts.align";
  pass_call(m, "moe_align", sort, no_params);
  m->stage = "experts.permute";
  pass_call(m, "moe_permute", copy, k);
  if (!m->no_host) read_offsets(m);
}

/* Returns `count` rows of a tensor from row `first` on. */
static assay_tensor rows_of(const assay_tensor *t, int64_t first, int64_t count) {
  assay_tensor part = *t;
  if (t->data == NULL) return part;
  part.data = (unsigned char *)t->data + first * t->stride[0] * assay_dtype_size(t->dtype);
  part.shape[0] = count;
  return part;
}

/* Splits the first axis of a weight: one matrix, or one vector, for each expert. */
static assay_tensor by_expert(const assay_tensor *w, int64_t experts, int64_t out) {
  assay_tensor part = *w;
  if (w->data == NULL) return part;
  const int64_t width = w->rank == 2 ? w->shape[1] : 1;
  part.rank = w->rank + 1;
  part.shape[0] = experts;
  part.shape[1] = out;
  part.shape[2] = width;
  part.stride[0] = out * width;
  part.stride[1] = width;
  part.stride[2] = 1;
  return part;
}

/* Computes the products of all experts in one call. Returns false where the form does not do so. */
static bool linear_at_once(pass *m, const char *name, const assay_tensor *x, const assay_tensor *y) {
  const assay_tensor w = pass_weight(m, name, "w"), b = pass_weight(m, name, "b");
  const assay_tensor weights = by_expert(&w, m->config.experts, y->shape[1]);
  const assay_tensor biases = by_expert(&b, m->config.experts, y->shape[1]);
  const assay_tensor group = m->experts;
  const pass_arg args[] = {{"a", *x}, {"b", weights}, {"bias", biases}, {"group", group}, {"c", *y}, {.name = NULL}};
  if (!m->no_host) return pass_call_form(m, PASS_GROUPED_GEMM, "grouped_gemm", args, no_params);
  pass_call(m, "grouped_gemm", args, no_params);
  return true;
}

void pass_expert_linear(pass *m, const char *name, const assay_tensor *x, const assay_tensor *y) {
  const assay_tensor w = pass_weight(m, name, "w"), b = pass_weight(m, name, "b");
  const int64_t out = y->shape[1];
  m->stage = name;
  const bool narrow = pass_is_narrow(m, name), done = narrow || linear_at_once(m, name, x, y);
  if (narrow) pass_narrow_experts(m, name, x, y);
  for (int64_t e = 0; e < m->config.experts && m->status == ASSAY_OK && !done; ++e) {
    const int64_t first = m->first[e], rows = m->first[e + 1] - first;
    const pass_arg args[] = {{"a", rows_of(x, first, rows)},
                             {"b", rows_of(&w, e * out, out)},
                             {"bias", rows_of(&b, e * out, out)},
                             {"c", rows_of(y, first, rows)},
                             {.name = NULL}};
    if (rows > 0) pass_call(m, "gemm", args, no_params);
  }
  pass_take(m, name, y, 0, out);
}

void pass_combine(pass *m, const char *name, const assay_tensor *routed, const assay_tensor *shared,
                  const assay_tensor *y) {
  const assay_tensor absent = {.data = NULL}, added = shared != NULL ? *shared : absent, w = m->shares;
  const pass_arg args[] = {{"z", *routed}, {"pos", m->place}, {"w", w}, {"shared", added}, {"y", *y}, {.name = NULL}};
  m->stage = name;
  pass_call(m, "moe_combine", args, no_params);
  pass_take(m, name, y, 0, y->shape[1]);
}
