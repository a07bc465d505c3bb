/* scenario_cost.c: the scenarios, and what a forward pass must move and do at least. */
#include <math.h>
#include <string.h>

#include "core/dtype.h"
#include "scenario.h"

static const scenario all[] = {
    {"decode_heavy_b32", 32, {64}, 256, 0.575},
    {"large_batch_short_b128", 128, {48}, 64, 0.220},
    {"balanced_b32", 32, {256}, 128, 0.367},
    {"prefill_heavy_b16", 16, {1024}, 16, 0},
    {"long_prefill_b4", 4, {2048}, 8, 0},
    {"mixed_prefill_b32", 32, {32, 64, 96, 128, 192, 256, 384, 512}, 64, 0.199},
    {"long_decode_b32", 32, {1024}, 256, 0},
    {"offline_256x512", 256, {512}, 128, 0},
};

bool scenario_at(int32_t index, scenario *one) {
  if (index < 0 || (size_t)index >= sizeof all / sizeof all[0]) return false;
  *one = all[index];
  return true;
}

static int64_t part_of(int64_t n, int64_t part) {
  return n <= 0 ? 0 : n / part > 0 ? n / part : 1;
}

bool scenario_find(const char *name, int64_t part, scenario *one) {
  for (int32_t i = 0; scenario_at(i, one); ++i) {
    if (strcmp(one->name, name) != 0) continue;
    one->batch = part_of(one->batch, part);
    one->output = part_of(one->output, part);
    if (part > 1) one->published_s = 0;
    for (int p = 0; p < SCENARIO_MIXED; ++p)
      one->prompt[p] = part_of(one->prompt[p], part);
    return true;
  }
  return false;
}

double scenario_published(const scenario *one, const assay_model_config *config) {
  const assay_model_config wide = assay_model_production(ASSAY_ASYNCT);
  const bool same = config->arch == wide.arch && config->layers == wide.layers && config->hidden == wide.hidden;
  return same ? one->published_s : 0;
}

int64_t scenario_prompt(const scenario *one, int64_t request) {
  int64_t count = 0;
  while (count < SCENARIO_MIXED && one->prompt[count] > 0)
    ++count;
  return count > 0 ? one->prompt[request % count] : 0;
}

assay_cost scenario_step_cost(const assay_model_config *config, const int64_t *before, const int64_t *tokens,
                              int64_t requests, int64_t logits, double live) {
  const double C = (double)config->hidden, D = (double)config->head_size, H = (double)config->heads;
  const double H_kv = (double)config->kv_heads, I = (double)config->intermediate, V = (double)config->vocab;
  const double up = config->arch == ASSAY_GPT2 ? I : 2 * I;
  const double layer = C * (H + 2 * H_kv) * D + H * D * C + C * up + I * C; /* weights of its products */
  const double weight = (double)assay_dtype_size(config->weight_dtype), layers = (double)config->layers;
  const double product = config->fp8_weights ? 1 : weight;
  const double key = H_kv * D * (double)assay_dtype_size(config->kv_dtype);
  /* V of a key is needed where some head of the group has it live. */
  const bool gate = config->arch == ASSAY_ASYNCT && live > 0;
  const double needed = gate ? 1 - pow(1 - live, H / H_kv) : 1;
  double rows = 0, read = 0, seen = 0, written = 0;
  for (int64_t i = 0; i < requests; ++i) {
    const double P = (double)before[i], T = (double)tokens[i];
    rows += T;
    written += T;
    read += (P + T) * key * (1 + (T > 1 ? 1 : needed)); /* rows of one prompt need nearly every V between them */
    seen += T * P + T * (T + 1) / 2;
  }
  assay_cost cost;
  cost.flops = layers * (2 * rows * layer + (gate ? 2 + 2 * live : 4) * seen * H * D) + 2 * (double)logits * V * C;
  cost.bytes =
      layers * (layer * product + read + written * 2 * key) + (logits > 0 ? V * C * weight : 0) + rows * C * weight;
  return cost;
}
