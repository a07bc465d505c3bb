/* softmax_attention_wgmma.cu: attention of ragged prompts on Hopper's tensor cores; softmax_attention.cu has the
 * definition, gpu/lib/prefill_wgmma.cuh the schedule.
 *
 * The softmax is online, in base 2, over the fragment that holds S; four lanes share a row. P is rounded to the storage
 * type, its sum is not. O is rescaled only after a tile that raised some maximum of the warp's rows. */
#include "gpu/lib/prefill_step.cuh"
#include "gpu/lib/prefill_wgmma.cuh"
#include "gpu/lib/softmax_call.h"
#include "gpu/lib/softmax_rows.cuh"
#include "gpu/lib/softmax_score.cuh"
#include "gpu/lib/softmax_tile.cuh"

namespace ASSAY_NS {
namespace {

constexpr float log2_e = softmax_log2_e, ln_2 = 0.693147180559945309f;

/* general: a window or ALiBi. Not general: neither of them. With ALiBi scores are compared in base 2, else unscaled. A
 * window only hides keys: it may hide none of a request, and the call beside others is general then. */
template <bool general> struct softmax_weights {
  using params = softmax_params;
  static constexpr bool masks_all = general, compact = true;
  static constexpr int registers = general ? 216 : 224;

  float scale, slope;                 /* in base 2; scale: what is left to multiply when scores are compared */
  float step;                         /* general: factor of scores before they are compared */
  float peak[2], total[2], shrink[2]; /* values of the row and of the row 8 further; total: that of this lane's keys */
  int32_t last, reach; /* the last key that the thread's first row sees, counted from the thread's first token of a
                        * tile; how many it sees before that */

  PREFILL_FUNCTION void start(const softmax_params &p, int32_t head, int32_t position) {
    scale = p.a.scale * log2_e;
    last = position - 16 * (static_cast<int32_t>(lane_id()) % 4);
    if constexpr (general) {
      const bool sloped = p.slopes != nullptr;
      slope = sloped ? p.slopes[head] * log2_e : 0.0f;
      step = sloped ? scale : 1.0f;
      scale = sloped ? 1.0f : scale;
      reach = p.a.window > 0 ? p.a.window - 1 : 1 << 30;
    }
    ASSAY_UNROLL
    for (int h = 0; h < 2; ++h) {
      peak[h] = -INFINITY;
      total[h] = 0.0f;
    }
  }

  /* Turns scores into exp2(factor * score - factor * top). shrink holds the peaks before; it becomes the factor by
   * which the sums so far shrink. */
  template <int groups> PREFILL_FUNCTION void raise(float (&S)[4 * groups], const float (&top)[2], float factor) {
    ASSAY_UNROLL
    for (int h = 0; h < 2; ++h) {
      const float from = __fmul_rn(top[h], factor);
      shrink[h] = exp2_approx(__fadd_rn(__fmul_rn(shrink[h], factor), -from)); /* 1 where the peak stays */
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
        if constexpr (mask == mask_both) s = fmaf(s, step, fmaf(slope, static_cast<float>(token), bias));
        if (mask != mask_none && token > stop + 8 * h) s = -INFINITY;
        if (mask == mask_both && token < begin + 8 * h) s = -INFINITY;
        most = fmaxf(most, s);
      }
      most = groups_max<4>(most);
      top[h] = most == -INFINITY ? 0.0f : most;
      shrink[h] = peak[h];
      peak[h] = most;
    }
    /* The rounding of a scaled peak is the same for all weights of the row, and negligible beside 1. With larger
     * peaks, differences are scaled: the largest weight is 1, however large the scores are. Each row decides for
     * itself, so that its bits do not depend on the other rows of the warp; the vote only saves the work. */
    const bool large[2] = {!(fabsf(top[0] * scale) <= softmax_largest_scaled),
                           !(fabsf(top[1] * scale) <= softmax_largest_scaled)};
    if (__any_sync(0xffffffffu, large[0] || large[1])) {
      const float less[2] = {large[0] ? top[0] : 0.0f, large[1] ? top[1] : 0.0f};
      ASSAY_UNROLL
      for (int i = 0; i < 4 * groups; ++i)
        S[i] -= less[i / 2 % 2];
      ASSAY_UNROLL
      for (int h = 0; h < 2; ++h) {
        shrink[h] -= less[h];
        top[h] -= less[h];
      }
    }
    raise<groups>(S, top, scale);
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
      const softmax_end end(p, head, peak[h], group_sum<4>(total[h]), p.slopes != nullptr ? ln_2 : p.a.scale);
      factor[h] = end.factor;
      if (p.lse == nullptr || row + 8 * h >= item.rows || lane_id() % 4 != 0) continue;
      p.lse[(item.row + row + 8 * h) * static_cast<int64_t>(p.a.H) + head] = end.lse;
    }
  }
};

/* ---- launcher --------------------------------------------------------------------------------------- */

struct softmax_wgmma : softmax_operator {
  using plain = softmax_weights<false>;
  using general = softmax_weights<true>;
  static bool is_plain(const softmax_params &p) { return p.a.window == 0 && p.slopes == nullptr; }
  static assay_status expect(const softmax_params &p, assay_dtype, assay_error *error) {
    if (p.softcap > 0.0f)
      return assay_fail(error, ASSAY_ERR_UNSUPPORTED, "softcap: found %.9g, allowed 0: off",
                        static_cast<double>(p.softcap));
    return softmax_expect_dense(p, error);
  }
  /* Returns whether the call has no more rows than requests, a step of single tokens, which has kernels of its own. The
   * bits are the same. */
  static bool is_single(const softmax_params &p) {
    return is_plain(p) && p.a.N <= p.a.B && step_is_faster(p.a) && p.a.N * p.a.H <= INT32_MAX / 2;
  }
  static void path(const softmax_params &p, assay_env *env) {
    if (!is_single(p)) return wgmma_path(p.a, is_plain(p), env);
    step_path<softmax_rule>(p, env);
  }
};

struct softmax_wgmma_schedule : wgmma_schedule {
  template <class T, class Weights>
  static assay_status start(const softmax_params &p, assay_env *env, assay_error *error) {
    if (softmax_wgmma::is_single(p)) return step_start<T, softmax_rule>(p, env, error);
    return wgmma_schedule::start<T, Weights>(p, env, error);
  }
};

} // namespace
} // namespace ASSAY_NS

/* S is in base 2; exp(score - peak) is rounded to the storage type. */
#define WGMMA(name, T, dtype)                                                                                          \
  PREFILL_VARIANT("softmax_attention", name, "prompts on Hopper's tensor cores: 64 rows of two heads a block",         \
                  "sm_90a", T, dtype, 2.0, softmax_wgmma, softmax_wgmma_schedule)

PREFILL_VARIANTS(softmax_attention_wgmma, WGMMA, "wgmma")
