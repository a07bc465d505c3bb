/* delta_gates.cu: the gates of a gated delta rule.
 *
 *   g = -exp(A_log) * (max(x, 0) + ln(1 + exp(-|x|))), x = a + dt_bias        beta = 1 / (1 + exp(-b))
 *
 * elements: a thread per row and head. docs/kernels/delta_gates.md has the arithmetic. */
#include "gpu/lib/launch.h"
#include "gpu/lib/plain.h"

namespace ASSAY_NS {
namespace {

constexpr int gates_threads = 128;

struct gates_params {
  const void *a, *b;
  const float *A_log, *dt_bias;
  float *g, *beta;
  int64_t a_row, b_row, g_row, beta_row, N;
  int32_t H, pieces;
  assay_dtype type;
};

/* gates_elements: both gates of an element per thread.
 * Grid:   (N * pieces): a row in pieces of 128 heads. Block: 128 threads.
 * Shared: none.
 * Align:  by element.
 * Arch:   any.
 * Limit:  bytes: a and b read, g and beta written. */
template <class T> __global__ void __launch_bounds__(gates_threads) gates_elements(gates_params p) {
  const int64_t n = static_cast<int64_t>(blockIdx.x) / p.pieces;
  const int32_t piece = static_cast<int32_t>(static_cast<int64_t>(blockIdx.x) % p.pieces);
  const int32_t h = piece * gates_threads + static_cast<int32_t>(threadIdx.x);
  if (h >= p.H) return;
  const float x = to_float(static_cast<const T *>(p.a)[n * p.a_row + h]) + p.dt_bias[h];
  const float b = to_float(static_cast<const T *>(p.b)[n * p.b_row + h]);
  const float softplus = fmaxf(x, 0.0f) + log1pf(expf(-fabsf(x)));
  p.g[n * p.g_row + h] = -expf(p.A_log[h]) * softplus;
  p.beta[n * p.beta_row + h] = 1.0f / (1.0f + expf(-b));
}

assay_status read_call(const assay_call *call, gates_params *p, assay_error *error) {
  plain_call c;
  *p = gates_params();
  ASSAY_TRY(plain_read(call, &c, error));
  ASSAY_TRY(expect_type("a", c.type("a"), error));
  p->a = c.data<const void>("a");
  p->b = c.data<const void>("b");
  p->A_log = c.data<const float>("A_log");
  p->dt_bias = c.data<const float>("dt_bias");
  p->g = c.data<float>("g");
  p->beta = c.data<float>("beta");
  p->a_row = c.row("a");
  p->b_row = c.row("b");
  p->g_row = c.row("g");
  p->beta_row = c.row("beta");
  p->N = c.dim("N");
  p->H = c.dim32("H");
  p->pieces = (p->H + gates_threads - 1) / gates_threads;
  p->type = c.type("a");
  return ASSAY_OK;
}

assay_status launch(const assay_call *call, assay_env *env, assay_error *error) {
  gates_params p;
  ASSAY_TRY(read_call(call, &p, error));
  (void)snprintf(env->path, sizeof env->path, "elements");
  if (p.N == 0) return ASSAY_OK;
  return with_type(p.type, [&](auto type) {
    using T = typename decltype(type)::type;
    return ASSAY_LAUNCH(error, gates_elements<T>, p.N * p.pieces, gates_threads, 0, env->stream, p);
  });
}

/* f32 throughout; expf, log1pf and the division: 2 ulp. */
constexpr assay_contract contract = {.exp_ulp = 2.0,
                                     .qk_lanes = 1,
                                     .pv_lanes = 1,
                                     .run_to_run = true,
                                     .renumbering = true,
                                     .permutation = true,
                                     .lanes = 1,
                                     .alone = true};

} // namespace
} // namespace ASSAY_NS

#define ELEMENTS                                                                                                       \
  PLAIN_VARIANT("delta_gates", "elements", "a thread per row and head", PLAIN_TYPE_CLAIMS, contract, gates_params,     \
                read_call, launch)

ASSAY_VARIANTS(delta_gates, ELEMENTS)
