/* softmax_attention_wgmma.cu: attention of ragged prompts on Hopper's tensor cores; softmax_attention.cu has the
 * definition, gpu/lib/prefill_wgmma.cuh the schedule.
 *
 * An online softmax in base 2 over the fragment in which S comes: four lanes share a row. P is rounded to the storage
 * type, its sum is not. O is multiplied only after a tile that raised some maximum of the warp's rows. */
#include "gpu/lib/prefill_wgmma.cuh"
#include "gpu/lib/softmax_call.h"

namespace ASSAY_NS {
namespace {

constexpr float largest_scaled = 1024.0f; /* in base 2, rounded to within 2^-15 */
constexpr float log2_e = 1.44269504088896341f, ln_2 = 0.693147180559945309f;

/* general: a window, ALiBi; else neither. Scores are compared as they come (plain) or in base 2 (general). */
template <bool general> struct softmax_weights {
  using params = softmax_params;
  static constexpr bool masks_all = general, compact = true;
  static constexpr int registers = general ? 216 : 224;

  float scale, slope;                 /* in base 2 */
  float peak[2], total[2], shrink[2]; /* of the row and the row 8 further; total: of this lane's keys */
  int32_t last, reach; /* the last key that the thread's first row sees, counted from the thread's first token of a
                        * tile; how many it sees before that */

  PREFILL_FUNCTION void start(const softmax_params &p, int32_t head, int32_t position) {
    scale = p.a.scale * log2_e;
    last = position - 16 * (static_cast<int32_t>(lane_id()) % 4);
    if constexpr (general) {
      slope = p.slopes != nullptr ? p.slopes[head] * log2_e : 0.0f;
      reach = p.a.window > 0 ? p.a.window - 1 : 1 << 30;
    }
    ASSAY_UNROLL
    for (int h = 0; h < 2; ++h) {
      peak[h] = -INFINITY;
      total[h] = 0.0f;
    }
  }

  /* Scores become exp2(factor * score - factor * top). shrink: the peaks before, becomes by how much that takes down
   * what was there. */
  template <int groups> PREFILL_FUNCTION void raise(float (&S)[4 * groups], const float (&top)[2], float factor) {
    ASSAY_UNROLL
    for (int h = 0; h < 2; ++h) {
      const float from = top[h] * factor;
      shrink[h] = exp2_approx(__fmul_rn(shrink[h], factor) - from); /* rounded alike: 1 where the peak stays */
      float sum = 0.0f;
      ASSAY_UNROLL
      for (int i = 0; i < 2 * groups; ++i) {
        float &s = S[i / 2 * 4 + 2 * h + i % 2];
        s = exp2_approx(fmaf(s, factor, -from));
        sum += s;
      }
      total[h] = fmaf(total[h], shrink[h], sum);
    }
  }

  /* Scores become exp2(score - peak). */
  template <int groups, prefill_mask mask> PREFILL_FUNCTION void weigh(float (&S)[4 * groups], int32_t tile) {
    const int32_t stop = last - tile * keys_per_tile, begin = mask == mask_both ? stop - reach : 0;
    float top[2];
    ASSAY_UNROLL
    for (int h = 0; h < 2; ++h) {
      float most = peak[h];
      /* slope * (token - last) */
      const float bias = mask == mask_both ? -slope * static_cast<float>(stop + 8 * h) : 0.0f;
      ASSAY_UNROLL
      for (int i = 0; i < 2 * groups; ++i) {
        float &s = S[i / 2 * 4 + 2 * h + i % 2];
        const int token = 64 * (i / 16) + i % 16;
        if constexpr (mask == mask_both) s = fmaf(s, scale, fmaf(slope, static_cast<float>(token), bias));
        if (mask != mask_none && token > stop + 8 * h) s = -INFINITY;
        if (mask == mask_both && token < begin + 8 * h) s = -INFINITY;
        most = fmaxf(most, s);
      }
      most = groups_max<4>(most);
      top[h] = most == -INFINITY ? 0.0f : most;
      shrink[h] = peak[h];
      peak[h] = most;
    }
    if constexpr (mask == mask_both) {
      raise<groups>(S, top, 1.0f);
    } else {
      /* What rounding does to a scaled peak is the same for all weights of the row, and nothing beside 1; of larger
       * ones differences are scaled: the largest weight is 1, however large the scores. */
      const bool small = fabsf(top[0] * scale) <= largest_scaled && fabsf(top[1] * scale) <= largest_scaled;
      if (!__all_sync(0xffffffffu, small)) {
        ASSAY_UNROLL
        for (int i = 0; i < 4 * groups; ++i)
          S[i] -= top[i / 2 % 2];
        ASSAY_UNROLL
        for (int h = 0; h < 2; ++h) {
          shrink[h] -= top[h];
          top[h] = 0.0f;
        }
      }
      raise<groups>(S, top, scale);
    }
  }

  template <int count> PREFILL_FUNCTION void rescale(float (&O)[count]) const {
    if (__all_sync(0xffffffffu, shrink[0] >= 1.0f && shrink[1] >= 1.0f)) return;
    ASSAY_UNROLL
    for (int i = 0; i < count; ++i)
      O[i] *= shrink[i / 2 % 2];
  }

  PREFILL_FUNCTION void finish(const softmax_params &p, const prefill_item &item, int32_t row, int32_t head,
                               float (&factor)[2]) const {
    ASSAY_UNROLL
    for (int h = 0; h < 2; ++h) {
      const float sum = group_sum<4>(total[h]);
      const bool seen = sum > 0.0f;
      factor[h] = seen ? 1.0f / sum : 0.0f;
      if (p.lse == nullptr || row + 8 * h >= item.rows || lane_id() % 4 != 0) continue;
      const float lse = peak[h] * (general ? ln_2 : p.a.scale) + logf(sum);
      p.lse[(item.row + row + 8 * h) * static_cast<int64_t>(p.a.H) + head] = seen ? lse : -INFINITY;
    }
  }
};

/* ---- launchers -------------------------------------------------------------------------------------- */

bool is_plain(const softmax_params &p) {
  return p.a.window == 0 && p.slopes == nullptr;
}

template <assay_dtype dtype> assay_status plan_wgmma(const assay_call *call, softmax_plan *plan, assay_error *error) {
  ASSAY_TRY(softmax_read(call, plan, error));
  const softmax_params &p = plan->p;
  ASSAY_TRY(expect_prefill(p.a, plan->types, dtype, error));
  if (p.softcap > 0.0f)
    return assay_fail(error, ASSAY_ERR_UNSUPPORTED, "softcap: found %.9g, allowed 0: off",
                      static_cast<double>(p.softcap));
  if (p.sparse_block != 0)
    return assay_fail(error, ASSAY_ERR_UNSUPPORTED, "sparse_block: found %d, allowed 0: off", p.sparse_block);
  return ASSAY_OK;
}

template <class T, int D> assay_status launch_weights(const softmax_params &p, assay_env *env, assay_error *error) {
  if (is_plain(p)) return launch_prefill<T, D, softmax_weights<false>>(p, env, error);
  return launch_prefill<T, D, softmax_weights<true>>(p, env, error);
}

template <class T, assay_dtype dtype>
assay_status launch_wgmma(const assay_call *call, assay_env *env, assay_error *error) {
  softmax_plan plan;
  ASSAY_TRY(plan_wgmma<dtype>(call, &plan, error));
  const softmax_params &p = plan.p;
  (void)snprintf(env->path, sizeof env->path, "wgmma %s heads=%d D=%d%s", is_plain(p) ? "plain" : "general",
                 p.a.G > 1 ? 2 : 1, p.a.D, form_of(p.a));
  if (p.a.N == 0) return ASSAY_OK;
  return p.a.D == 64 ? launch_weights<T, 64>(p, env, error) : launch_weights<T, 128>(p, env, error);
}

/* S in f32, in base 2; exp(score - peak) is rounded to the storage type. Tail rows of V are multiplied by 0. */
constexpr assay_contract wgmma_contract(assay_dtype p) {
  return {ASSAY_NONE, ASSAY_NONE,         ASSAY_NONE, p,    ASSAY_NONE, 2.0, 1,          1,    0,
          0.0,        ASSAY_V_MULTIPLIED, true,       true, true,       1,   ASSAY_NONE, true, tensor_core_terms};
}
constexpr assay_contract bf16_contract = wgmma_contract(ASSAY_BF16);
#ifndef ASSAY_FEW_TYPES
constexpr assay_contract f16_contract = wgmma_contract(ASSAY_F16);
#endif

} // namespace
} // namespace ASSAY_NS

#define WGMMA(name, type, dtype, contract)                                                                             \
  {                                                                                                                    \
    sizeof(assay_variant), "softmax_attention", name ASSAY_VARIANT_SUFFIX,                                             \
        "prompts on Hopper's tensor cores: 64 rows of two heads a block", ASSAY_DEVICE_NAME, "sm_90a",                 \
        #type "|same|nhd,hnd|prefill,chunked,mixed", ::ASSAY_NS::contract,                                             \
        ::ASSAY_NS::supports_by<::ASSAY_NS::softmax_params, ::ASSAY_NS::plan_wgmma<dtype>>,                            \
        ::ASSAY_NS::workspace_by<::ASSAY_NS::softmax_params, ::ASSAY_NS::plan_wgmma<dtype>>,                           \
        ::ASSAY_NS::launch_wgmma<::ASSAY_NS::type, dtype>                                                              \
  }

#ifdef ASSAY_FEW_TYPES
ASSAY_VARIANTS(softmax_attention_wgmma, WGMMA("wgmma", bf16, ASSAY_BF16, bf16_contract))
#else
ASSAY_VARIANTS(softmax_attention_wgmma, WGMMA("wgmma", bf16, ASSAY_BF16, bf16_contract),
               WGMMA("wgmma_f16", f16, ASSAY_F16, f16_contract))
#endif
