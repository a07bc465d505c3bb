/* sampler.cu: one token per row: penalties, temperature, top-k, softmax, top-p, min-p, draw.
 *
 *   l <- l > 0 ? l / r : l * r                      for ids in prompt or outputs
 *   l <- l - (frequency * n + presence)             for ids n times in the outputs
 *   w_i = exp((l_i - l_max) / T)                    T = 0: the lowest id of l_max
 *   the first k by (l, then lower id); of them the shortest prefix with mass >= p; of them w_i >= m
 *   the lowest id whose running mass exceeds u times the whole, u from Philox
 *
 * One variant, without a sort. Three answers are needed: the k-th key, the key at which the mass reaches p, and the id
 * at which the running mass exceeds u. One routine finds each of them and fixes eight bits of the answer per pass.
 * Masses are integers, multiples of 2^-43, so that the order of additions does not show. docs/kernels/sampler.md has
 * the arithmetic. */
#include "gpu/lib/sampler.cuh"

namespace ASSAY_NS {
namespace {

constexpr int max_threads = 1024;

/* ---- the row ---------------------------------------------------------------------------------------- */

__device__ __forceinline__ void finish(const sampler_params &p, int32_t token, int32_t status) {
  if (threadIdx.x != 0) return;
  p.token[blockIdx.x] = token;
  p.status[blockIdx.x] = status;
}

__device__ __forceinline__ void count_history(const sampler_params &p, row_shared *shared, uint32_t *words) {
  const int64_t row = blockIdx.x;
  const int32_t thread = static_cast<int32_t>(threadIdx.x), threads = static_cast<int32_t>(blockDim.x);
  bool bad = false;
  for (int32_t j = thread; p.prompt != NULL && j < p.P; j += threads) {
    const int32_t id = p.prompt[row * p.P + j];
    bad = bad || id < -1 || id >= p.V;
    if (id >= 0 && id < p.V) atomicOr(&words[id], in_prompt);
  }
  for (int32_t j = thread; p.output != NULL && j < p.O; j += threads) {
    const int32_t id = p.output[row * p.O + j];
    bad = bad || id < -1 || id >= p.V;
    if (id >= 0 && id < p.V) atomicAdd(&words[id], 1u);
  }
  if (bad) atomicOr(&shared->bad_token, 1u);
}

/* sample_row
 * Grid:   B rows. Block: 128, 256 or 1024 threads, by V alone.
 * Shared: 2.1 KB: sums of one digit, the values on which the row's steps agree.
 * Align:  by element.
 * Arch:   any.
 * Limit:  bytes: V * sizeof(T) once and 4 V of workspace per pass. There are 3 passes; top-k and top-p take up to 7
 *         each, the draw up to 3. */
template <class T> __global__ void __launch_bounds__(max_threads) sample_row(sampler_params p) {
  ASSAY_SHARED(wide, sums, digits);
  ASSAY_SHARED(row_shared, shared_word, 1);
  row_shared *const shared = shared_word;
  const int64_t row = blockIdx.x;
  const int32_t thread = static_cast<int32_t>(threadIdx.x), threads = static_cast<int32_t>(blockDim.x), V = p.V;
  uint32_t *const words = p.words + row * V;
  const row_params r = params_of_row(p, row);
  if (!is_legal(r)) {
    finish(p, -1, status_parameter);
    return;
  }

  if (thread == 0) *shared = row_shared();
  for (int32_t i = thread; i < V; i += threads)
    words[i] = 0;
  __syncthreads(); /* words and shared are 0 */
  count_history(p, shared, words);
  __syncthreads(); /* counts and the flag are written */
  if (shared->bad_token != 0) {
    finish(p, -1, status_history);
    return;
  }

  const T *const logits = static_cast<const T *>(p.logits) + row * p.logits_row;
  const key_order key_of(V);
  uint32_t flags = 0;
  wide best = 0;
  for (int32_t i = thread; i < V; i += threads) {
    const float value = penalise(r, to_float(logits[i]), words[i]);
    words[i] = bits_of(value);
    if (!(value <= 3.402823466e38f)) flags |= seen_not_finite;
    if (is_finite(value)) flags |= seen_finite;
    best = max(best, key_of(words[i], i));
  }
  atomicOr(&shared->flags, flags);
  atomicMax(&shared->best, best);
  __syncthreads(); /* values, flags and the largest are written */
  best = shared->best;
  if ((shared->flags & seen_not_finite) != 0 || (shared->flags & seen_finite) == 0) {
    finish(p, -1, (shared->flags & seen_not_finite) != 0 ? status_not_finite : status_all_banned);
    return;
  }
  if (r.temperature == 0.0f) {
    finish(p, key_of.id_of(best), status_ok);
    return;
  }

  finish(p, draw_row(p, r, row, key_of, best, words, shared, shared_sums{sums}), status_ok);
}

/* ---- launcher --------------------------------------------------------------------------------------- */

assay_status supports(const assay_call *call, assay_error *error) {
  sampler_plan plan;
  return read_sampler(call, &plan, error);
}

assay_status workspace(const assay_call *call, int64_t *bytes, assay_error *error) {
  sampler_plan plan;
  *bytes = 0;
  ASSAY_TRY(read_sampler(call, &plan, error));
  *bytes = 4 * plan.B * plan.p.V;
  return ASSAY_OK;
}

assay_status launch(const assay_call *call, assay_env *env, assay_error *error) {
  sampler_plan plan;
  ASSAY_TRY(read_sampler(call, &plan, error));
  ASSAY_TRY(expect_workspace(env, 4 * plan.B * plan.p.V, error));
  plan.p.words = static_cast<uint32_t *>(env->workspace);
  const int32_t V = plan.p.V, threads = V <= 2048 ? 128 : V <= 16384 ? 256 : max_threads;
  (void)snprintf(env->path, sizeof env->path, "row threads=%d", threads);
  return with_type(plan.type, [&](auto type) {
    using T = typename decltype(type)::type;
    return ASSAY_LAUNCH(error, (sample_row<T>), plan.B, threads, 0, env->stream, plan.p);
  });
}

} // namespace
} // namespace ASSAY_NS

#define RADIX_ROWS                                                                                                     \
  {                                                                                                                    \
    sizeof(assay_variant), "sampler", "radix_rows" ASSAY_VARIANT_SUFFIX,                                               \
        "no sort: one block a row, keys and masses selected eight bits a pass", ASSAY_DEVICE_NAME, "any",              \
        PLAIN_TYPE_CLAIMS, ::ASSAY_NS::sampler_contract, ::ASSAY_NS::supports, ::ASSAY_NS::workspace,                  \
        ::ASSAY_NS::launch                                                                                             \
  }

ASSAY_VARIANTS(sampler, RADIX_ROWS)
