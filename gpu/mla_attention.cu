/* mla_attention.cu: absorbed attention over a cache of latent entries. The definition is in ref/mla_attention.c's head
 * and in docs/definitions.md, section 14.
 *
 * warps: a block per row and head; each warp takes every fourth key, and a lane has 16 channels of it.
 * docs/kernels/mla_attention.md has the arithmetic. */
#include "gpu/lib/mla.cuh"
#include "gpu/lib/warp.cuh"

namespace ASSAY_NS {
namespace {

constexpr int32_t mla_warps = 4, mla_lane_c = mla_c / 32, mla_lane_pe = mla_pe / 32;

/* Loads a lane's share of an entry of type T: 16 neighbouring channels of c, and 2 of pe. */
template <class T>
__device__ __forceinline__ void load_entry(const T *entry, int32_t lane, float (&c)[mla_lane_c],
                                           float (&pe)[mla_lane_pe]) {
  ASSAY_UNROLL
  for (int i = 0; i < mla_lane_c; ++i)
    c[i] = to_float(entry[lane * mla_lane_c + i]);
  ASSAY_UNROLL
  for (int i = 0; i < mla_lane_pe; ++i)
    pe[i] = to_float(entry[mla_c + lane * mla_lane_pe + i]);
}

/* Loads the same of an entry of 656 bytes. All 16 channels have one scale. */
__device__ __forceinline__ void load_words(const uint32_t *word, int32_t lane, float (&c)[mla_lane_c],
                                           float (&pe)[mla_lane_pe]) {
  const float scale = float_of(word[mla_scale_word + lane * mla_lane_c / mla_tile]);
  ASSAY_UNROLL
  for (int i = 0; i < mla_lane_c; ++i) {
    const uint32_t four = word[lane * mla_lane_c / 4 + i / 4];
    c[i] = to_float(e4m3{static_cast<uint8_t>(four >> 8 * (i % 4))}) * scale;
  }
  const uint32_t both = word[mla_pe_word + lane];
  pe[0] = float_of(both << 16);
  pe[1] = float_of(both & 0xFFFF0000u);
}

/* mla_attention_warps: one row of one head.
 * Grid:   N H. Block: 128 threads.
 * Shared: 4 (512 + 2) f32: the running sums, maxima and sums of weights of the warps.
 * Align:  by element.
 * Arch:   any.
 * Limit:  each head reads every entry again: H times the bytes. */
template <class T> __global__ void __launch_bounds__(32 * mla_warps) mla_attention_warps(mla_params p) {
  ASSAY_SHARED(float, sums, mla_warps *mla_c);
  ASSAY_SHARED(float, maxima, mla_warps);
  ASSAY_SHARED(float, weights, mla_warps);
  const int32_t thread = static_cast<int32_t>(threadIdx.x), warp = thread / 32, lane = thread % 32;
  const int64_t block = blockIdx.x;
  const int32_t head = static_cast<int32_t>(block % p.H), row = static_cast<int32_t>(block / p.H);
  const mla_chunk chunk = mla_chunk_of(p, mla_request_of(p, row));
  const int32_t request = chunk.request;
  const int32_t keys = mla_seen(mla_length(p, request), chunk.T, row - chunk.first);
  float q[mla_lane_c], q_pe[mla_lane_pe], c[mla_lane_c], pe[mla_lane_pe], sum[mla_lane_c] = {};
  float most = -INFINITY, weight = 0.0f;
  load_entry(static_cast<const T *>(p.q) + row * p.q_row + static_cast<int64_t>(head) * mla_entry, lane, q, q_pe);
  for (int32_t t = warp; t < keys; t += mla_warps) {
    if (p.cache != nullptr)
      load_entry(element_at<T>(p.cache, mla_entry_begin(p, request, t, mla_entry)), lane, c, pe);
    else
      load_words(element_at<uint32_t>(p.words, mla_entry_begin(p, request, t, mla_words)), lane, c, pe);
    float dot = 0.0f;
    ASSAY_UNROLL
    for (int i = 0; i < mla_lane_c; ++i)
      dot += q[i] * c[i];
    ASSAY_UNROLL
    for (int i = 0; i < mla_lane_pe; ++i)
      dot += q_pe[i] * pe[i];
    const float s = warp_sum(dot) * p.scale, next = fmaxf(most, s);
    const float kept = expf(most - next), added = expf(s - next);
    weight = weight * kept + added;
    ASSAY_UNROLL
    for (int i = 0; i < mla_lane_c; ++i)
      sum[i] = sum[i] * kept + added * c[i];
    most = next;
  }
  ASSAY_UNROLL
  for (int i = 0; i < mla_lane_c; ++i)
    sums[warp * mla_c + lane * mla_lane_c + i] = sum[i];
  if (lane == 0) {
    maxima[warp] = most;
    weights[warp] = weight;
  }
  __syncthreads(); /* the warps' states are written */
  float whole = -INFINITY, total = 0.0f;
  for (int w = 0; w < mla_warps; ++w)
    whole = fmaxf(whole, maxima[w]);
  for (int w = 0; w < mla_warps; ++w)
    if (maxima[w] > -INFINITY) total += weights[w] * expf(maxima[w] - whole);
  T *const out = static_cast<T *>(p.out) + row * p.out_row + static_cast<int64_t>(head) * mla_c;
  for (int32_t d = thread; d < mla_c; d += 32 * mla_warps) {
    float y = 0.0f;
    for (int w = 0; w < mla_warps; ++w)
      if (maxima[w] > -INFINITY) y += sums[w * mla_c + d] * expf(maxima[w] - whole);
    out[d] = from_float<T>(keys > 0 ? y / total : 0.0f);
  }
  if (thread == 0 && p.lse != nullptr) p.lse[block] = keys > 0 ? whole + logf(total) : -INFINITY;
}

assay_status launch_warps(const assay_call *call, assay_env *env, assay_error *error) {
  mla_params p;
  ASSAY_TRY(mla_read(call, &p, error));
  (void)snprintf(env->path, sizeof env->path, "warps %s", p.cache != nullptr ? "entries" : "words");
  if (p.N == 0) return ASSAY_OK;
  const int64_t blocks = static_cast<int64_t>(p.N) * p.H;
  return with_type(p.type, [&](auto type) {
    return ASSAY_LAUNCH(error, mla_attention_warps<typename decltype(type)::type>, blocks, 32 * mla_warps, 0,
                        env->stream, p);
  });
}

/* f32 throughout. A score is 32 running sums of 18 products; expf, logf and the division: 2 ulp. */
constexpr assay_contract warps_contract = {.exp_ulp = 2.0,
                                           .qk_lanes = 32,
                                           .pv_lanes = mla_warps,
                                           .run_to_run = true,
                                           .renumbering = true,
                                           .permutation = true,
                                           .alone = true};

} // namespace
} // namespace ASSAY_NS

#define WARPS                                                                                                          \
  PLAIN_VARIANT("mla_attention", "warps", "a block for each row and head", PLAIN_TYPE_CLAIMS "|false,true",            \
                warps_contract, mla_params, mla_read, launch_warps)

ASSAY_VARIANTS(mla_attention, WARPS)
