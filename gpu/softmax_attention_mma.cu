/* softmax_attention_mma.cu: attention of ragged prompts with mma.sync; softmax_attention.cu has the definition,
 * gpu/lib/prefill_mma.cuh the schedule.
 *
 * An online softmax in base 2 over the fragment in which S comes: four lanes share a row. P is rounded to the storage
 * type, its sum is not. O is multiplied only after a tile that raised some maximum of the warp's rows. */
#include "gpu/lib/prefill_mma.cuh"
#include "gpu/lib/softmax_call.h"

namespace ASSAY_NS {
namespace {

constexpr float log2_e = 1.44269504f, ln_2 = 0.693147182f;

/* general: a soft cap, ALiBi; else neither, and scores are compared as they come: the scale multiplies differences
 * only, so that the largest weight is 1, however large the scores. */
template <bool general> struct softmax_weights {
  using params = softmax_params;

  /* Of the row and the row 8 further. peak: in base 2 if general; total: of this lane's keys. */
  float peak[2], total[2], shrink[2];
  float slope;  /* general: in base 2 */
  int32_t last; /* the last key that the thread's first row sees, counted from the thread's first token of tile 0 */

  PREFILL_FUNCTION void start(const softmax_params &p, int32_t head, int32_t position) {
    if constexpr (general) slope = p.slopes != nullptr ? p.slopes[head] * log2_e : 0.0f;
    last = position - 16 * (static_cast<int32_t>(lane_id()) % 4);
    ASSAY_UNROLL
    for (int h = 0; h < 2; ++h) {
      peak[h] = -INFINITY;
      total[h] = 0.0f;
      shrink[h] = 1.0f;
    }
  }

  /* Scores become exp2(score - peak). */
  template <bool masked> PREFILL_FUNCTION void weigh(const softmax_params &p, float (&S)[8][4], int32_t tile) {
    const bool capped = general && p.softcap > 0.0f;
    const float scale = capped ? p.a.scale / p.softcap : p.a.scale * log2_e, cap = p.softcap * log2_e;
    const float factor = general ? 1.0f : scale;
    ASSAY_UNROLL
    for (int h = 0; h < 2; ++h) {
      const int32_t stop = last - tile * mma_keys + 8 * h, begin = stop - reach_of(p.a);
      float most = -INFINITY;
      ASSAY_UNROLL
      for (int t = 0; t < 16; ++t) {
        float &s = S[t / 2][2 * h + t % 2];
        if constexpr (general) {
          s *= scale;
          if (capped) s = cap * tanhf(s);
          s = fmaf(slope, static_cast<float>(t - stop), s);
        }
        if (masked && (t > stop || t < begin)) s = -INFINITY;
        most = fmaxf(most, s);
      }
      const float top = fmaxf(peak[h], group_max<4>(most));
      const float base = top == -INFINITY ? 0.0f : top; /* -inf less -inf is never formed */
      shrink[h] = exp2_approx((peak[h] - base) * factor);
      peak[h] = top;
      float sum = 0.0f;
      ASSAY_UNROLL
      for (int t = 0; t < 16; ++t) {
        float &s = S[t / 2][2 * h + t % 2];
        s = exp2_approx((s - base) * factor);
        sum += s;
      }
      total[h] = fmaf(total[h], shrink[h], sum);
    }
  }

  template <int count> PREFILL_FUNCTION void rescale(float (&O)[count][4]) const {
    if (__all_sync(0xffffffffu, shrink[0] >= 1.0f && shrink[1] >= 1.0f)) return;
    ASSAY_UNROLL
    for (int i = 0; i < count; ++i) {
      ASSAY_UNROLL
      for (int c = 0; c < 4; ++c)
        O[i][c] *= shrink[c / 2];
    }
  }

  PREFILL_FUNCTION void finish(const softmax_params &p, const prefill_item &item, int32_t row,
                               float (&factor)[2]) const {
    ASSAY_UNROLL
    for (int h = 0; h < 2; ++h) {
      const float sum = group_sum<4>(total[h]);
      const bool seen = sum > 0.0f;
      factor[h] = seen ? 1.0f / sum : 0.0f;
      if (p.lse == nullptr || row + 8 * h >= item.rows || lane_id() % 4 != 0) continue;
      p.lse[(item.row + row + 8 * h) * static_cast<int64_t>(p.a.H) + item.head] =
          seen ? fmaf(peak[h], general ? ln_2 : p.a.scale, logf(sum)) : -INFINITY;
    }
  }
};

/* ---- launchers -------------------------------------------------------------------------------------- */

bool is_plain(const softmax_params &p) {
  return p.softcap <= 0.0f && p.slopes == nullptr;
}

template <assay_dtype dtype> assay_status plan_mma(const assay_call *call, softmax_plan *plan, assay_error *error) {
  ASSAY_TRY(softmax_read(call, plan, error));
  ASSAY_TRY(expect_mma(plan->p.a, plan->types, dtype, error));
  if (plan->p.sparse_block != 0)
    return assay_fail(error, ASSAY_ERR_UNSUPPORTED, "sparse_block: found %d, allowed 0: off", plan->p.sparse_block);
  return ASSAY_OK;
}

template <class T, assay_dtype dtype>
assay_status launch_softmax(const assay_call *call, assay_env *env, assay_error *error) {
  softmax_plan plan;
  ASSAY_TRY(plan_mma<dtype>(call, &plan, error));
  const softmax_params &p = plan.p;
  (void)snprintf(env->path, sizeof env->path, "mma %s D=%d%s", is_plain(p) ? "plain" : "general", p.a.D, form_of(p.a));
  if (p.a.N == 0) return ASSAY_OK;
  return mma_with_size(p.a.D, [&](auto size) {
    constexpr int D = decltype(size)::value;
    if (is_plain(p)) return launch_mma<T, D, softmax_weights<false>>(p, env, error);
    return launch_mma<T, D, softmax_weights<true>>(p, env, error);
  });
}

/* S in f32, in base 2; exp(score - peak) is rounded to the storage type. ex2 and tanhf: 2 ulp. Tail rows of V are
 * multiplied by 0. */
constexpr assay_contract mma_contract(assay_dtype p) {
  return {ASSAY_NONE, ASSAY_NONE,         ASSAY_NONE, p,    ASSAY_NONE, 2.0, 1,          1,    0,
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
    sizeof(assay_variant), "softmax_attention", name ASSAY_VARIANT_SUFFIX,                                             \
        "prompts on tensor cores, any group and block: 64 rows of a head a block", ASSAY_DEVICE_NAME, "any",           \
        #type "|same|nhd,hnd|prefill,chunked,mixed", ::ASSAY_NS::contract,                                             \
        ::ASSAY_NS::supports_by<::ASSAY_NS::softmax_params, ::ASSAY_NS::plan_mma<dtype>>,                              \
        ::ASSAY_NS::workspace_by<::ASSAY_NS::softmax_params, ::ASSAY_NS::plan_mma<dtype>>,                             \
        ::ASSAY_NS::launch_softmax<::ASSAY_NS::type, dtype>                                                            \
  }

#ifdef ASSAY_FEW_TYPES
ASSAY_VARIANTS(softmax_attention_mma, MMA("mma", bf16, ASSAY_BF16, bf16_contract))
#else
ASSAY_VARIANTS(softmax_attention_mma, MMA("mma", bf16, ASSAY_BF16, bf16_contract),
               MMA("mma_f16", f16, ASSAY_F16, f16_contract))
#endif
