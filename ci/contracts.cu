/* contracts.cu: a plug-in whose variants differ in their contracts. It is built by contracts.sh.
 *
 *   honest    f32 sums, as it says
 *   wild      the same with exp_ulp 1e9, which is refused
 *   wide      bias_gelu_new with the largest exp_ulp that is believed
 *   widens    2 % off; it widens its contract in its own table when it is called
 *   returns   gives another contract each time it is loaded, if ODD says so
 *   asks      calls the reference of its operator
 *   flushes   flushes subnormal numbers, as it says
 *   flushes2  does the same and does not say so
 *   starts    gemm whose sums start from beta c + bias where alpha is 1, as it says
 *   starts2   does the same and does not say so */
#include <stdlib.h>
#include <string.h>

#include "gpu/lib/plain.h"

namespace ASSAY_NS {

struct normed {
  const float *x, *g;
  float *y;
  int64_t x_row, y_row, N;
  int32_t C;
  float eps, factor;
  bool flush;
};

__device__ float flushed(float value, bool flush) {
  return flush && fabsf(value) < 0x1p-126f ? 0.0f : value;
}

__global__ void row(normed p) {
  const float *x = p.x + blockIdx.x * p.x_row;
  float *y = p.y + blockIdx.x * p.y_row;
  float sum = 0.0f;
  for (int32_t c = 0; c < p.C; ++c)
    sum += flushed(flushed(x[c], p.flush) * flushed(x[c], p.flush), p.flush);
  const float factor = p.factor / sqrtf(sum / static_cast<float>(p.C) + p.eps);
  for (int32_t c = 0; c < p.C; ++c)
    y[c] = flushed(flushed(x[c], p.flush) * factor * flushed(p.g[c], p.flush), p.flush);
}

static assay_status supports(const assay_call *call, assay_error *error) {
  plain_call c;
  ASSAY_TRY(plain_read(call, &c, error));
  if (c.type("x") == ASSAY_F32) return ASSAY_OK;
  (void)snprintf(error->text, sizeof error->text, "dtype: f32 alone");
  return ASSAY_ERR_UNSUPPORTED;
}

static assay_status workspace(const assay_call *call, int64_t *bytes, assay_error *error) {
  *bytes = 0;
  return supports(call, error);
}

static assay_status start(const assay_call *call, assay_env *env, float factor, bool flush, assay_error *error) {
  plain_call c;
  ASSAY_TRY(plain_read(call, &c, error));
  const normed p = {c.data<const float>("x"),
                    c.data<const float>("g"),
                    c.data<float>("y"),
                    c.row("x"),
                    c.row("y"),
                    c.dim("N"),
                    c.dim32("C"),
                    static_cast<float>(c.real("eps")),
                    factor,
                    flush};
  if (p.N == 0) return ASSAY_OK;
  return ASSAY_LAUNCH(error, row, p.N, 1, 0, env->stream, p);
}

static assay_status honest(const assay_call *call, assay_env *env, assay_error *error) {
  return start(call, env, 1.0f, false, error);
}

static assay_status flushes(const assay_call *call, assay_env *env, assay_error *error) {
  return start(call, env, 1.0f, true, error);
}

static assay_status widens(const assay_call *call, assay_env *env, assay_error *error);

/* Asks for the right results, into memory of its own. */
static assay_status asks(const assay_call *call, assay_env *env, assay_error *error) {
  if (call->op->reference != nullptr || call->op->spoil != nullptr || call->op->accepts != nullptr) abort();
  return start(call, env, 1.0f, false, error);
}

struct biased {
  const float *x, *b;
  float *y;
  int64_t x_row, y_row, N;
  int32_t C;
};

__global__ void gelu_row(biased p) {
  for (int32_t c = 0; c < p.C; ++c) {
    const float v = p.x[blockIdx.x * p.x_row + c] + p.b[c];
    const float u = 0.7978845608f * (v + 0.044715f * v * v * v);
    p.y[blockIdx.x * p.y_row + c] = 0.5f * v * (1.0f + tanhf(u));
  }
}

static assay_status gelu(const assay_call *call, assay_env *env, assay_error *error) {
  plain_call c;
  ASSAY_TRY(plain_read(call, &c, error));
  const char *const to = assay_find_arg(call, "x_out") != nullptr ? "x_out" : "x"; /* in place */
  const biased p = {c.data<const float>("x"),
                    c.data<const float>("b"),
                    c.data<float>(to),
                    c.row("x"),
                    c.row(to),
                    c.dim("N"),
                    c.dim32("C")};
  if (p.N == 0) return ASSAY_OK;
  return ASSAY_LAUNCH(error, gelu_row, p.N, 1, 0, env->stream, p);
}

struct product {
  const float *a, *b, *bias;
  float *c;
  int64_t a_row, M, N, K;
  float alpha, beta;
};

__global__ void product_row(product p) {
  for (int64_t n = 0; n < p.N; ++n) {
    float *const c = p.c + blockIdx.x * p.N + n;
    const float old = p.beta != 0.0f ? p.beta * *c : 0.0f, added = old + (p.bias != nullptr ? p.bias[n] : 0.0f);
    float sum = p.alpha == 1.0f ? added : 0.0f;
    for (int64_t k = 0; k < p.K; ++k)
      sum += p.a[blockIdx.x * p.a_row + k] * p.b[n * p.K + k];
    *c = p.alpha == 1.0f ? sum : p.alpha * sum + added;
  }
}

static assay_status multiplies(const assay_call *call, assay_env *env, assay_error *error) {
  plain_call c;
  ASSAY_TRY(plain_read(call, &c, error));
  const product p = {c.data<const float>("a"),
                     c.data<const float>("b"),
                     c.data<const float>("bias"),
                     c.data<float>("c"),
                     c.row("a"),
                     c.dim("M"),
                     c.dim("N"),
                     c.dim("K"),
                     c.real("alpha"),
                     c.real("beta")};
  if (p.M == 0) return ASSAY_OK;
  return ASSAY_LAUNCH(error, product_row, p.M, 1, 0, env->stream, p);
}

static assay_status supports_product(const assay_call *call, assay_error *error) {
  plain_call c;
  ASSAY_TRY(plain_read(call, &c, error));
  if (c.type("a") == ASSAY_F32) return ASSAY_OK;
  (void)snprintf(error->text, sizeof error->text, "dtype: f32 alone");
  return ASSAY_ERR_UNSUPPORTED;
}

static assay_status workspace_of_product(const assay_call *call, int64_t *bytes, assay_error *error) {
  *bytes = 0;
  return supports_product(call, error);
}

constexpr assay_contract starting(assay_start start) {
  assay_contract c = {.run_to_run = true, .renumbering = true, .permutation = true, .lanes = 1};
  c.alone = true;
  c.start = start;
  return c;
}

constexpr assay_contract with(double exp_ulp, bool ftz) {
  assay_contract c = {.exp_ulp = exp_ulp, .run_to_run = true, .renumbering = true, .permutation = true, .lanes = 1};
  c.alone = true;
  c.ftz = ftz;
  return c;
}

#define ROW(op, name, ulp, ftz, launch)                                                                                \
  {                                                                                                                    \
    sizeof(assay_variant), op, name, "a test", ASSAY_DEVICE_NAME, "any", "f32", with(ulp, ftz), supports, workspace,   \
        launch                                                                                                         \
  }
#define PRODUCT(name, start)                                                                                           \
  {                                                                                                                    \
    sizeof(assay_variant), "gemm", name, "a test", ASSAY_DEVICE_NAME, "any", "f32", starting(start), supports_product, \
        workspace_of_product, multiplies                                                                               \
  }
#define NORM "rms_norm"
static assay_variant rows[] = {
    ROW(NORM, "honest", 2, false, honest),    ROW(NORM, "wild", 1e9, false, honest),
    ROW(NORM, "widens", 2, false, widens),    ROW(NORM, "returns", 2, false, honest),
    ROW(NORM, "asks", 2, false, asks),        ROW(NORM, "flushes", 2, true, flushes),
    ROW(NORM, "flushes2", 2, false, flushes), ROW("bias_gelu_new", "wide", 0x1p16, false, gelu),
    PRODUCT("starts", ASSAY_START_BIAS),      PRODUCT("starts2", ASSAY_START_ZERO)};
static const assay_plugin_table table = {ASSAY_ABI, sizeof table, "contracts", rows, sizeof rows / sizeof rows[0]};

static assay_status widens(const assay_call *call, assay_env *env, assay_error *error) {
  rows[2].contract.exp_ulp = 0x1p16;
  return start(call, env, 1.02f, false, error);
}

} // namespace ASSAY_NS

extern "C" __attribute__((visibility("default"))) const assay_plugin_table *assay_plugin(const assay_host *host) {
  /* A file counts the times that it was entered. */
  const char *count = getenv("COUNT");
  if (count != nullptr) {
    FILE *file = fopen(count, "a+");
    if (file != nullptr) {
      (void)fputc('x', file);
      (void)fseek(file, 0, SEEK_END);
      if (ftell(file) > 1) ASSAY_NS::rows[3].contract.exp_ulp = 3;
      (void)fclose(file);
    }
  }
  return ASSAY_NS::plugin_accepts(host) ? &ASSAY_NS::table : nullptr;
}
