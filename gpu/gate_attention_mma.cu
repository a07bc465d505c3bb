/* gate_attention_mma.cu: gate attention of ragged prompts with mma.sync: what the wgmma variant declines.
 * gate_attention.cu has the definition, gpu/lib/prefill_mma.cuh the schedule.
 *
 * The filter runs on the fragment in which S comes: a thread has 16 neighbouring tokens of a tile for each of its two
 * rows, so that the F - 1 scores left of them come from its left neighbour by a shuffle each, and from the tile before
 * for the first of four. The scale is part of the taps, gamma a factor of the sum. P is rounded to the storage type. */
#include "gpu/lib/gate_call.h"
#include "gpu/lib/prefill_mma.cuh"

namespace ASSAY_NS {
namespace {

/* taps: F of them, 0 beyond. */
template <int taps> struct gate_weights {
  using params = gate_params;
  static constexpr int halo = taps - 1;

  float gamma;
  float left[2][halo]; /* the lane's last scores in the tile before, the last first: of the row, of the row 8 further */
  int32_t last; /* the last key that the thread's first row sees, counted from the thread's first token of tile 0 */

  PREFILL_FUNCTION void start(const gate_params &p, int32_t head, int32_t position) {
    gamma = p.gamma[head];
    last = position - 16 * (static_cast<int32_t>(lane_id()) % 4);
    ASSAY_UNROLL
    for (int h = 0; h < 2; ++h)
      ASSAY_UNROLL
    for (int k = 0; k < halo; ++k)
      left[h][k] = 0.0f;
  }

  /* Scores become p / gamma. */
  template <bool masked> PREFILL_FUNCTION void weigh(const gate_params &p, float (&S)[8][4], int32_t tile) {
    const float least = p.relu_pre ? 0.0f : -INFINITY;
    const unsigned lane = lane_id(), neighbour = (lane & 28u) | ((lane + 3) & 3u);
    const bool wraps = (lane & 3u) == 3;
    float tap[taps]; /* times the scale */
    ASSAY_UNROLL
    for (int j = 0; j < taps; ++j)
      tap[j] = j < p.F ? p.taps[j] * p.a.scale : 0.0f;
    const int32_t stop = last - tile * mma_keys, begin = stop - reach_of(p.a);
    ASSAY_UNROLL
    for (int h = 0; h < 2; ++h) {
      ASSAY_UNROLL
      for (int t = 0; t < 16; ++t) {
        float &s = S[t / 2][2 * h + t % 2];
        s = !masked || t >= begin + 8 * h ? fmaxf(s, least) : 0.0f;
      }
      float before[halo]; /* scores left of token 0, the nearest first */
      ASSAY_UNROLL
      for (int k = 0; k < halo; ++k) {
        const float mine = S[(15 - k) / 2][2 * h + (15 - k) % 2];
        const float given = select_float(wraps, left[h][k], mine);
        left[h][k] = mine;
        before[k] = __shfl_sync(0xffffffffu, given, static_cast<int>(neighbour));
      }
      /* From the last token to the first: weights take the places of scores that no token needs any more. */
      ASSAY_UNROLL
      for (int t = 15; t >= 0; --t) {
        float z = 0.0f;
        ASSAY_UNROLL
        for (int j = taps - 1; j >= 0; --j) {
          const float r = t >= j ? S[(t + 16 - j) / 2 - 8][2 * h + (t + 16 - j) % 2] : before[j - t - 1];
          z = fmaf(tap[j], r, z);
        }
        float weight = fminf(fmaxf(z, p.lo), p.hi);
        if (masked && (t > stop + 8 * h || t < begin + 8 * h)) weight = 0.0f;
        S[t / 2][2 * h + t % 2] = weight;
      }
    }
  }

  template <int count> PREFILL_FUNCTION void rescale(float (&)[count][4]) const {}

  PREFILL_FUNCTION void finish(const gate_params &, const prefill_item &, int32_t, float (&factor)[2]) const {
    factor[0] = factor[1] = gamma;
  }
};

/* ---- launchers -------------------------------------------------------------------------------------- */

constexpr int few_taps = 3;

template <assay_dtype dtype> assay_status plan_mma(const assay_call *call, gate_plan *plan, assay_error *error) {
  ASSAY_TRY(gate_read(call, plan, error));
  ASSAY_TRY(expect_mma(plan->p.a, plan->types, dtype, error));
  const float most = fmaxf(fabsf(plan->p.lo), fabsf(plan->p.hi));
  if (dtype == ASSAY_F16 && most > 65504.0f)
    return assay_fail(error, ASSAY_ERR_UNSUPPORTED, "lo, hi: found %.9g, allowed up to 65504, the largest f16",
                      static_cast<double>(most));
  return ASSAY_OK;
}

template <class T, assay_dtype dtype>
assay_status launch_gate(const assay_call *call, assay_env *env, assay_error *error) {
  gate_plan plan;
  ASSAY_TRY(plan_mma<dtype>(call, &plan, error));
  const gate_params &p = plan.p;
  (void)snprintf(env->path, sizeof env->path, "mma D=%d taps=%d%s", p.a.D, p.F <= few_taps ? few_taps : max_taps,
                 form_of(p.a));
  if (p.a.N == 0) return ASSAY_OK;
  return mma_with_size(p.a.D, [&](auto size) {
    constexpr int D = decltype(size)::value;
    if (p.F > few_taps) return launch_mma<T, D, gate_weights<max_taps>>(p, env, error);
    return launch_mma<T, D, gate_weights<few_taps>>(p, env, error);
  });
}

/* S in f32; p / gamma is rounded to the storage type. Tail rows of V are multiplied by 0. */
constexpr assay_contract mma_contract(assay_dtype p) {
  return {ASSAY_NONE, ASSAY_NONE,         ASSAY_NONE, p,    ASSAY_NONE, 0.0, 1,          1,    0,
          0.0,        ASSAY_V_MULTIPLIED, true,       true, true,       1,   ASSAY_NONE, true, tensor_core_terms};
}
constexpr assay_contract bf16_contract = mma_contract(ASSAY_BF16);
#ifndef ASSAY_FEW_TYPES
constexpr assay_contract f16_contract = mma_contract(ASSAY_F16);
#endif

} // namespace
} // namespace ASSAY_NS

#define MMA(name, type, dtype, contract)                                                                               \
  {                                                                                                                    \
    sizeof(assay_variant), "gate_attention", name ASSAY_VARIANT_SUFFIX,                                                \
        "prompts on tensor cores, any group, taps and block: 64 rows of a head a block", ASSAY_DEVICE_NAME, "any",     \
        #type "|same|nhd,hnd|prefill,chunked,mixed", ::ASSAY_NS::contract,                                             \
        ::ASSAY_NS::supports_by<::ASSAY_NS::gate_params, ::ASSAY_NS::plan_mma<dtype>>,                                 \
        ::ASSAY_NS::workspace_by<::ASSAY_NS::gate_params, ::ASSAY_NS::plan_mma<dtype>>,                                \
        ::ASSAY_NS::launch_gate<::ASSAY_NS::type, dtype>                                                               \
  }

#ifdef ASSAY_FEW_TYPES
ASSAY_VARIANTS(gate_attention_mma, MMA("mma", bf16, ASSAY_BF16, bf16_contract))
#else
ASSAY_VARIANTS(gate_attention_mma, MMA("mma", bf16, ASSAY_BF16, bf16_contract),
               MMA("mma_f16", f16, ASSAY_F16, f16_contract))
#endif
