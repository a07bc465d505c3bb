/* lm_head_argmax.cu: the id of the largest logit of selected rows.
 *
 *   l_rv = sum_c x[row_index_r, c] w_vc        token_r = the lowest v of the largest l_rv
 *
 * A row_index outside [0, T) counts as a row of zeros: nothing outside x is read. One variant: a warp per token id, its
 * lanes along the channels. docs/kernels/lm_head_argmax.md has the arithmetic. */
#include "gpu/lib/best_logit.cuh"
#include "gpu/lib/rowwise.cuh"

namespace ASSAY_NS {
namespace {

struct dots_params {
  best_params best;
  const void *x, *w;
  const int32_t *select;
  int64_t V, C, x_row, x_rows;
  assay_dtype type;
};

constexpr int dots_threads = 256, dots_warps = dots_threads / 32, dots_ids = 512; /* token ids of a block */

/* argmax_clear: clears the keys.
 * Grid:   R in pieces of 128. Block: 128 threads.
 * Shared: none.
 * Align:  by element.
 * Arch:   any.
 * Limit:  the launch. */
__global__ void __launch_bounds__(best_threads) argmax_clear(best_params p) {
  take_turn();
  const int64_t r = static_cast<int64_t>(blockIdx.x) * best_threads + threadIdx.x;
  if (r < p.R) p.keys[r] = 0;
}

/* argmax_dots: the best of 512 token ids of one row. Each warp has every eighth of them.
 * Grid:   (R, pieces of 512 token ids). Block: 256 threads.
 * Shared: none.
 * Align:  by element.
 * Arch:   any.
 * Limit:  bytes: R V C sizeof(T) from the L2. */
template <class T> __global__ void __launch_bounds__(dots_threads) argmax_dots(dots_params p) {
  take_turn();
  const int32_t lane = static_cast<int32_t>(threadIdx.x) % 32, warp = static_cast<int32_t>(threadIdx.x) / 32;
  const int64_t r = blockIdx.x, row = p.select[r], first = static_cast<int64_t>(blockIdx.y) * dots_ids;
  const bool there = row >= 0 && row < p.x_rows;
  const T *const x = static_cast<const T *>(p.x) + (there ? row : 0) * p.x_row;
  best_logit best;
  for (int64_t v = first + warp; v < first + dots_ids && v < p.V; v += dots_warps) {
    const T *const w = static_cast<const T *>(p.w) + v * p.C;
    float sum = 0.0f;
    for (int64_t c = lane; c < p.C && there; c += 32)
      sum = fmaf(to_float(x[c]), to_float(w[c]), sum);
    best.take(warp_sum(sum), static_cast<int32_t>(v));
  }
  if (lane == 0) atomicMax(p.best.keys + r, best.key());
}

assay_status read_call(const assay_call *call, dots_params *p, assay_error *error) {
  plain_call c;
  ASSAY_TRY(plain_read(call, &c, error));
  *p = dots_params();
  p->type = c.type("x");
  ASSAY_TRY(expect_type("x", p->type, error));
  p->best = best_read(c);
  p->x = c.data<const void>("x");
  p->w = c.data<const void>("w");
  p->select = c.data<const int32_t>("row_index");
  p->V = c.dim("V");
  p->C = c.dim("C");
  p->x_row = c.row("x");
  p->x_rows = c.dim("T");
  return ASSAY_OK;
}

assay_status supports(const assay_call *call, assay_error *error) {
  dots_params p;
  return read_call(call, &p, error);
}

assay_status workspace(const assay_call *call, int64_t *bytes, assay_error *error) {
  dots_params p;
  *bytes = 0;
  ASSAY_TRY(read_call(call, &p, error));
  *bytes = p.best.R * static_cast<int64_t>(sizeof(wide));
  return ASSAY_OK;
}

assay_status launch(const assay_call *call, assay_env *env, assay_error *error) {
  dots_params p;
  ASSAY_TRY(read_call(call, &p, error));
  (void)snprintf(env->path, sizeof env->path, "dots");
  if (p.best.R == 0) return ASSAY_OK;
  ASSAY_TRY(expect_workspace(env, p.best.R * static_cast<int64_t>(sizeof(wide)), error));
  p.best.keys = static_cast<wide *>(env->workspace);
  launch_options first = in_turn();
  first.followed = true;
  ASSAY_TRY(ASSAY_LAUNCH_WITH(error, argmax_clear, (p.best.R + best_threads - 1) / best_threads, best_threads, 0, first,
                              env->stream, p.best));
  const launch_extent grid(p.best.R, (p.V + dots_ids - 1) / dots_ids);
  ASSAY_TRY(with_type(p.type, [&](auto tag) {
    return ASSAY_LAUNCH_WITH(error, argmax_dots<typename decltype(tag)::type>, grid, dots_threads, 0, first,
                             env->stream, p);
  }));
  return best_launch_end(p.best, env, error);
}

constexpr assay_contract contract = rowwise_contract(0.0, 32);

} // namespace
} // namespace ASSAY_NS

#define DOTS                                                                                                           \
  {                                                                                                                    \
    sizeof(assay_variant), "lm_head_argmax", "dots" ASSAY_VARIANT_SUFFIX, "any shape: a warp per token id",            \
        ASSAY_DEVICE_NAME, "any", PLAIN_TYPE_CLAIMS, ::ASSAY_NS::contract, ::ASSAY_NS::supports,                       \
        ::ASSAY_NS::workspace, ::ASSAY_NS::launch                                                                      \
  }

ASSAY_VARIANTS(lm_head_argmax, DOTS)
