/* experts.c: a sparse MLP. A router chooses k of E experts for every row and weighs them. Each expert multiplies its
 * own rows. The sum of a row's results, by their weights, is its result. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/dtype.h"
#include "ref/lib/router.h"
#include "ref/lib/vector.h"
#include "ref/models/model.h"
#include "ref/models/rows.h"

/* ---- the router -------------------------------------------------------------------------------------- */

static void softmax(const double *x, int64_t count, double *s) {
  double largest = -(double)INFINITY, sum = 0;
  for (int64_t i = 0; i < count; ++i)
    if (x[i] > largest) largest = x[i];
  for (int64_t i = 0; i < count; ++i)
    sum += s[i] = exp(x[i] - largest);
  for (int64_t i = 0; i < count; ++i)
    s[i] /= sum;
}

/* Chooses by the softmax over all experts (gpt_oss: by the logits). deepseek_v3: by sigmoid(logit) + bias, among the
 * experts of the best groups. A group's score is the sum of its two largest. */
static void choose(const model *m, const double *logits, const double *bias, int32_t *ids) {
  const bool grouped = m->config.arch == ASSAY_DEEPSEEK_V3;
  const router r = {.E = m->config.experts,
                    .k = m->config.experts_used,
                    .groups = grouped ? m->config.groups : 1,
                    .topk_groups = grouped ? m->config.groups_used : 1,
                    .biased = grouped};
  double s[ROUTER_MOST_EXPERTS];
  int64_t chosen[ROUTER_MOST_CHOSEN];
  bool kept[ROUTER_MOST_EXPERTS];
  softmax(logits, r.E, s);
  for (int64_t e = 0; e < r.E && grouped; ++e)
    s[e] = sigmoid(logits[e]) + bias[e];
  router_choose(&r, m->config.arch == ASSAY_GPT_OSS ? logits : s, kept, chosen);
  for (int64_t j = 0; j < r.k; ++j)
    ids[j] = (int32_t)chosen[j];
}

/* qwen3_moe, qwen3_next: the scores of the chosen, divided by their sum if `renormalise` says so. gpt_oss: the softmax
 * over the chosen logits alone. deepseek_v3: the sigmoids of the chosen, without bias, divided by their sum if
 * `renormalise` says so, times route_scale. */
static void weigh(const model *m, const double *logits, const int32_t *ids, double *weight) {
  const int64_t k = m->config.experts_used;
  double s[ROUTER_MOST_EXPERTS], sum = 0;
  if (m->config.arch == ASSAY_GPT_OSS) {
    for (int64_t j = 0; j < k; ++j)
      s[j] = logits[ids[j]];
    softmax(s, k, weight);
    return;
  }
  const bool grouped = m->config.arch == ASSAY_DEEPSEEK_V3;
  softmax(logits, m->config.experts, s);
  for (int64_t j = 0; j < k; ++j)
    sum += weight[j] = grouped ? sigmoid(logits[ids[j]]) : s[ids[j]];
  if (grouped && sum < 1e-20) sum = 1e-20;
  for (int64_t j = 0; j < k && m->config.renormalise; ++j)
    weight[j] /= sum;
  for (int64_t j = 0; j < k && grouped; ++j)
    weight[j] *= m->config.route_scale;
}

static void take_ids(model *m, const char *name) {
  const int64_t N = m->weight.rows, k = m->weight.width;
  if (!model_wants(m, name)) return;
  /* The routed rows are not yet in use, and are as many. */
  for (int64_t i = 0; i < N * k; ++i)
    m->routed.value[i] = m->ids[i];
  model_take(m, name, &(matrix){m->routed.value, N, k});
}

void model_route(model *m, const char *name, const matrix *logits) {
  const int64_t E = logits->width, k = m->weight.width;
  const double *bias = model_vector(m, 0, name, "bias");
  char ids[ASSAY_MODEL_NAME], weights[ASSAY_MODEL_NAME];
  (void)snprintf(ids, sizeof ids, "%s.ids", name);
  (void)snprintf(weights, sizeof weights, "%s.weights", name);
  for (int64_t n = 0; n < logits->rows; ++n)
    choose(m, logits->value + n * E, bias, m->ids + n * k);
  model_replace(m, ids, logits->rows, k, m->ids);
  for (int64_t n = 0; n < logits->rows; ++n)
    weigh(m, logits->value + n * E, m->ids + n * k, m->weight.value + n * k);
  take_ids(m, ids);
  model_finish(m, weights, &m->weight, m->logit);
}

/* ---- the experts ------------------------------------------------------------------------------------- */

void model_permute(model *m, const matrix *x, matrix *routed) {
  const int64_t E = m->config.experts, k = m->config.experts_used, C = x->width;
  int32_t next = 0;
  for (int64_t e = 0; e < E; ++e) {
    m->first[e] = next;
    for (int64_t i = 0; i < x->rows * k; ++i)
      if (m->ids[i] == e) m->place[i] = next++;
  }
  m->first[E] = next;
  for (int64_t i = 0; i < x->rows * k; ++i)
    memcpy(routed->value + m->place[i] * C, x->value + i / k * C, (size_t)C * sizeof *x->value);
}

void model_expert_linear(model *m, const char *name, const matrix *x, matrix *y) {
  const assay_tensor *w = model_weight(m, name, "w"), *b = model_weight(m, name, "b");
  const int64_t out = y->width;
  const matrix factor = model_factor(m, w, x);
  for (int64_t e = 0; e < m->config.experts; ++e) {
    const int64_t begin = m->first[e], rows = m->first[e + 1] - begin;
    const matrix part = {factor.value + begin * x->width, rows, x->width};
    model_product(m, w, e * out, out, &part, y->value + begin * out);
    if (b == NULL || rows == 0) continue;
    double *bias = model_scratch(m);
    assay_load_f64_row(b->data, b->dtype, e * out, 1, out, bias);
    for (int64_t n = begin; n < begin + rows; ++n)
      vector_add(y->value + n * out, 1, bias, out);
  }
  model_finish(m, name, y, m->act);
}

void model_combine(model *m, const char *name, const matrix *routed, const matrix *shared, matrix *y) {
  const int64_t k = m->config.experts_used, C = y->width;
  if (shared != NULL)
    memcpy(y->value, shared->value, (size_t)(y->rows * C) * sizeof *y->value);
  else
    vector_zero(y->value, y->rows * C);
  for (int64_t i = 0; i < y->rows * k; ++i)
    vector_add(y->value + i / k * C, m->weight.value[i], routed->value + m->place[i] * C, C);
  model_finish(m, name, y, m->act);
}
