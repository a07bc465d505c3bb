/* simt_sampler_test.cpp: rows that no suite may hold, since the reference refuses their parameters or histories. The
 * kernel gives them a status and token -1, writes nothing else, and leaves the other rows as they are. */
#include <criterion/criterion.h>

#include <math.h>

#include <vector>

#include <assay/device.h>
#include <assay/variant.h>

extern "C" {
#include "ref/lib/sampler.h"
const assay_op *assay_op_sampler(void);
const assay_device *assay_device_simt(void);
const assay_variant *assay_variants_simt_sampler(int32_t *count);
}

enum { B = 24, V = 37, O = 5, GUARD = 16 };

struct batch {
  std::vector<float> logits, repetition, frequency, presence, temperature, top_p, min_p;
  std::vector<int32_t> step, top_k, prompt, output, token, status;
  std::vector<int64_t> seed, request;
};

static batch good() {
  batch b = {std::vector<float>(B * V),
             std::vector<float>(B, 1.25f),
             std::vector<float>(B, 0.25f),
             std::vector<float>(B, 0.5f),
             std::vector<float>(B, 0.75f),
             std::vector<float>(B, 0.9f),
             std::vector<float>(B, 0.01f),
             std::vector<int32_t>(B, 3),
             std::vector<int32_t>(B, 20),
             std::vector<int32_t>(B * O, -1),
             std::vector<int32_t>(B * O, -1),
             std::vector<int32_t>(B + 2 * GUARD, 0x5A5A5A5A),
             std::vector<int32_t>(B + 2 * GUARD, 0x5A5A5A5A),
             std::vector<int64_t>(B, 99),
             std::vector<int64_t>(B)};
  for (int i = 0; i < B * V; ++i)
    b.logits[static_cast<size_t>(i)] = static_cast<float>(i * 37 % 101) / 16.0f;
  for (int i = 0; i < B; ++i) {
    b.request[static_cast<size_t>(i)] = 1000 + i;
    b.output[static_cast<size_t>(i * O)] = i % V;
    b.prompt[static_cast<size_t>(i * O + 1)] = (i + 5) % V;
  }
  return b;
}

static void put(std::vector<assay_tensor> *args, const char *name, void *data, assay_dtype dtype, int64_t width) {
  const assay_op *const op = assay_op_sampler();
  for (int32_t i = 0; i < op->arg_count; ++i)
    if (strcmp(op->args[i].name, name) == 0)
      (*args)[static_cast<size_t>(i)] = {data, dtype, width > 0 ? 2 : 1, {B, width}, {width > 0 ? width : 1, 1}};
}

static void launch(batch *b) {
  static assay_error error;
  const assay_device *const device = assay_device_simt();
  int32_t count = 0;
  const assay_variant *const variant = assay_variants_simt_sampler(&count);
  std::vector<assay_tensor> args(ASSAY_MAX_ARGS);
  put(&args, "logits", b->logits.data(), ASSAY_F32, V);
  put(&args, "seed", b->seed.data(), ASSAY_I64, 0);
  put(&args, "step", b->step.data(), ASSAY_I32, 0);
  put(&args, "request", b->request.data(), ASSAY_I64, 0);
  put(&args, "repetition", b->repetition.data(), ASSAY_F32, 0);
  put(&args, "frequency", b->frequency.data(), ASSAY_F32, 0);
  put(&args, "presence", b->presence.data(), ASSAY_F32, 0);
  put(&args, "temperature", b->temperature.data(), ASSAY_F32, 0);
  put(&args, "top_k", b->top_k.data(), ASSAY_I32, 0);
  put(&args, "top_p", b->top_p.data(), ASSAY_F32, 0);
  put(&args, "min_p", b->min_p.data(), ASSAY_F32, 0);
  put(&args, "prompt", b->prompt.data(), ASSAY_I32, O);
  put(&args, "output", b->output.data(), ASSAY_I32, O);
  put(&args, "token", b->token.data() + GUARD, ASSAY_I32, 0);
  put(&args, "status", b->status.data() + GUARD, ASSAY_I32, 0);
  const double none = 0;
  const assay_call call = {assay_op_sampler(), args.data(), &none};
  int64_t bytes = 0;
  cr_assert(count > 0 && device->open(&error) == ASSAY_OK);
  cr_assert(variant->workspace(&call, &bytes, &error) == ASSAY_OK, "%s", error.text);
  void *memory = nullptr;
  cr_assert(device->alloc(bytes, &memory, &error) == ASSAY_OK);
  assay_env env = {};
  env.workspace = memory;
  env.workspace_bytes = bytes;
  env.multiprocessors = 1;
  cr_assert(variant->launch(&call, &env, &error) == ASSAY_OK, "%s", error.text);
  cr_assert(device->synchronize(&error) == ASSAY_OK, "%s", error.text);
  device->release(memory);
}

/* Returns the plain function's answer for row i. */
static sampler_code expected(const batch &b, int i, int32_t *token) {
  const size_t at = static_cast<size_t>(i);
  std::vector<double> logit(b.logits.begin() + i * V, b.logits.begin() + (i + 1) * V);
  sampler_row row = sampler_row_neutral;
  row.V = V;
  row.logit = logit.data();
  row.prompt = b.prompt.data() + i * O;
  row.output = b.output.data() + i * O;
  row.prompt_count = row.output_count = O;
  row.repetition = static_cast<double>(b.repetition[at]);
  row.frequency = static_cast<double>(b.frequency[at]);
  row.presence = static_cast<double>(b.presence[at]);
  row.temperature = static_cast<double>(b.temperature[at]);
  row.top_k = b.top_k[at];
  row.top_p = static_cast<double>(b.top_p[at]);
  row.min_p = static_cast<double>(b.min_p[at]);
  row.seed = static_cast<uint64_t>(b.seed[at]);
  row.request = static_cast<uint64_t>(b.request[at]);
  row.step = static_cast<uint32_t>(b.step[at]);
  sampler_scratch scratch;
  assay_error error = {};
  cr_assert(sampler_scratch_make(V, &scratch, &error) == ASSAY_OK);
  const sampler_code code = sampler_token(&row, &scratch, token);
  sampler_scratch_free(&scratch);
  return code;
}

static void compare(const batch &b) {
  for (int i = 0; i < B + 2 * GUARD; ++i) {
    const size_t at = static_cast<size_t>(i);
    if (i < GUARD || i >= B + GUARD) {
      cr_assert(b.token[at] == 0x5A5A5A5A && b.status[at] == 0x5A5A5A5A, "written beside the outputs, %d", i - GUARD);
      continue;
    }
    int32_t token = 0;
    const sampler_code code = expected(b, i - GUARD, &token);
    cr_assert(b.status[at] == code && b.token[at] == token, "row %d: token %d, status %d, not %d, %d", i - GUARD,
              b.token[at], b.status[at], token, code);
  }
}

TestSuite(simt_sampler, .timeout = 60);

Test(simt_sampler, good_rows) {
  batch b = good();
  launch(&b);
  compare(b);
  for (size_t i = 0; i < B; ++i)
    cr_assert(b.status[GUARD + i] == SAMPLER_OK);
}

Test(simt_sampler, illegal_rows_are_their_own_business) {
  batch b = good();
  b.repetition[0] = 0.0f;
  b.repetition[1] = -1.0f;
  b.repetition[2] = NAN;
  b.temperature[3] = -0.5f;
  b.temperature[4] = INFINITY;
  b.top_k[5] = -1;
  b.top_p[6] = 0.0f;
  b.top_p[7] = 1.5f;
  b.top_p[8] = NAN;
  b.min_p[9] = -0.25f;
  b.min_p[10] = 2.0f;
  b.frequency[11] = INFINITY;
  b.presence[12] = NAN;
  b.output[13 * O + 2] = V;
  b.output[14 * O + 4] = -2;
  b.prompt[15 * O] = 2147483647;
  b.prompt[16 * O + 3] = INT32_MIN;
  b.logits[17 * V + 9] = NAN;
  b.logits[18 * V] = INFINITY;
  for (size_t i = 19 * V; i < 20 * V; ++i)
    b.logits[i] = -INFINITY;
  b.temperature[21] = 0.0f;
  launch(&b);
  compare(b);
  int seen[5] = {0};
  for (size_t i = 0; i < B; ++i)
    ++seen[b.status[GUARD + i]];
  cr_assert(seen[SAMPLER_OK] == 4 && seen[SAMPLER_NOT_FINITE] == 2 && seen[SAMPLER_ALL_BANNED] == 1);
  cr_assert(seen[SAMPLER_PARAMETER] == 13 && seen[SAMPLER_HISTORY] == 4);
}
