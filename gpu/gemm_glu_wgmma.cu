/* gemm_glu_wgmma.cu: a product with gates and ups of a gated MLP, and its activation, of many rows.
 *
 *   g = f_m sum_k a_mk b_ik        u = f_m sum_k a_mk b_(I+i)k        y_mi = round(act(g) * u)
 *
 * f_m is 1, or the factor of a row whose rms_norm is deferred.
 * One variant: the tiles of gemm's variant wgmma (gpu/lib/gemm_wgmma.cuh), half gates and half ups of the same
 * channels. A thread has both of a channel, so that neither is written. docs/kernels/gemm_glu.md has the arithmetic. */
#include "gpu/lib/glu_read.cuh"
#include "gpu/lib/ptx_mma.cuh"

namespace ASSAY_NS {
namespace {

template <int channels, int stages> struct glu_tile : wide_tile<128, 2 * channels, 2, stages> {
  static constexpr bool paired = true;
};

/* The use of sums: the activation of gates times their ups is stored. Base says whether rows have factors. Lanes
 * exchange results as wide_store_all does. */
template <class Base> struct glu_sums : Base {
  template <class T, int own>
  __device__ __forceinline__ void take(const wide_params &p, int64_t m, int64_t n, int32_t lane,
                                       const float (&sum)[own / 2]) {
    const int32_t source = lane / 4 * 4 + lane % 2 * 2;
    ASSAY_UNROLL
    for (int j = 0; j < own / 16; j += 2)
      ASSAY_UNROLL
    for (int half = 0; half < 2; ++half) {
      uint32_t pair[2], four[2];
      ASSAY_UNROLL
      for (int i = 0; i < 2; ++i) {
        const float *const g = sum + 4 * (j + i) + 2 * half, *const u = g + own / 4;
        pair[i] = pack_pair<T>(activated(p, half, g[0], u[0]), activated(p, half, g[1], u[1]));
      }
      ASSAY_UNROLL
      for (int i = 0; i < 2; ++i) {
        const uint32_t low = __shfl_sync(0xffffffffu, pair[0], source + i);
        const uint32_t high = __shfl_sync(0xffffffffu, pair[1], source + i);
        four[i] = lane % 4 < 2 ? low : high;
      }
      store<T>(p, m + 8 * half, n / 2 + 8 * j + 4 * (lane % 4), four);
    }
  }

private:
  __device__ __forceinline__ float activated(const wide_params &p, int half, float g, float u) const {
    if constexpr (Base::scaled) {
      g = Base::product(half, g);
      u = Base::product(half, u);
    }
    return glu_activated(p.rectified, g, u);
  }
  template <class T>
  __device__ __forceinline__ void store(const wide_params &p, int64_t m, int64_t channel, const uint32_t (&four)[2]) {
    const int64_t I = p.N / 2;
    if (m >= p.M) return;
    uint16_t *const to = static_cast<uint16_t *>(p.c) + m * p.c_row + channel;
    if (!p.quads || channel + 4 > I) {
      ASSAY_UNROLL
      for (int i = 0; i < 4; ++i)
        if (channel + i < I) to[i] = static_cast<uint16_t>(four[i / 2] >> (16 * (i % 2)));
      return;
    }
#ifdef ASSAY_SIMT
    if (reinterpret_cast<uintptr_t>(to) % 8 != 0)
      assay_simt->fault("the address of four neighbours is not a multiple of their size", __FILE__, __LINE__);
#endif
    *reinterpret_cast<uint2 *>(to) = make_uint2(four[0], four[1]);
  }
};

assay_status read_call(const assay_call *call, glu_plan *plan, assay_error *error) {
  ASSAY_TRY(glu_read(call, plan, error));
  return wide_expect(plan->p, plan->type, error);
}

/* Launches tiles of 64 channels where they need one wave, and else tiles of 96
 * (docs/log/2026-11-28-h200-greedy-head.md). */
assay_status launch(const assay_call *call, assay_env *env, assay_error *error) {
  glu_plan plan;
  ASSAY_TRY(read_call(call, &plan, error));
  plan.p.early = is_settled(call, *env, "b");
  (void)snprintf(env->path, sizeof env->path, "wgmma");
  if (plan.p.M == 0 || plan.p.N == 0) return ASSAY_OK;
  return wide_with_type(plan.type, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const bool one_wave = wide_tiles(plan.p, 128, 128) <= env->multiprocessors;
    if (plan.p.squares == NULL)
      return one_wave ? wide_start<T, glu_tile<64, 6>, glu_sums<wide_plain_sums>>(plan.p, env, error)
                      : wide_start<T, glu_tile<96, 5>, glu_sums<wide_plain_sums>>(plan.p, env, error);
    return one_wave ? wide_start<T, glu_tile<64, 6>, glu_sums<wide_scaled_sums>>(plan.p, env, error)
                    : wide_start<T, glu_tile<96, 5>, glu_sums<wide_scaled_sums>>(plan.p, env, error);
  });
}

assay_status declare_sums(const assay_call *call, const assay_env *env, assay_sums *sums, assay_error *error) {
  glu_plan plan;
  ASSAY_TRY(read_call(call, &plan, error));
  ASSAY_TRY(glu_expect_reglu(plan, error));
  ASSAY_TRY(wide_sums(call, env, sums, error));
  glu_after_sums(plan, sums);
  return ASSAY_OK;
}

constexpr assay_contract contract = glu_contract(wide_contract);

} // namespace
} // namespace ASSAY_NS

#define WGMMA GLU_VARIANT("wgmma", "many rows: gates and ups in one tile", WIDE_TYPE_CLAIMS "|swiglu,reglu")

ASSAY_VARIANTS(gemm_glu_wgmma, WGMMA)
