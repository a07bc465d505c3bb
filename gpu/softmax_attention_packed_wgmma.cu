/* softmax_attention_packed_wgmma.cu: attention of ragged prompts on Hopper's tensor cores, for groups of any size,
 * heads of up to 256 channels, and V of another width; softmax_attention.cu has the definition,
 * gpu/lib/prefill_packed.cuh the schedule.
 *
 * The softmax is online, in base 2, over the fragment that holds S; four lanes share a line. P is rounded to the
 * storage type, its sum is not. O is rescaled only after a tile that raised some maximum of the warp's lines. */
#include "gpu/lib/prefill_packed.cuh"
#include "gpu/lib/softmax_call.h"
#include "gpu/lib/softmax_score.cuh"

namespace ASSAY_NS {
namespace {

constexpr float largest_scaled = 1024.0f; /* in base 2, rounded to within 2^-15 */
constexpr float low_peak = 8.0f; /* in base 2: how far a maximum may lie above the peak that weights are relative to */
constexpr float log2_e = 1.44269504088896341f, ln_2 = 0.693147180559945309f;

/* general: a soft cap or ALiBi. Not general: neither of them. Scores are compared in base 2 if general, else unscaled.
 * Window and chunk hide keys in both. */
template <bool general> struct packed_weights {
  using params = softmax_params;
  static constexpr bool bends = general;

  /* Values of the thread's two lines. total: that of this lane's keys; last: the last key that they see. */
  float peak[2], total[2], shrink[2], slope[2];
  int32_t last[2];

  static PREFILL_FUNCTION int32_t first_key(const softmax_params &p, int32_t position) {
    return first_of_chunk(p, p.a.window > 0 ? max(position - p.a.window + 1, 0) : 0, position);
  }

  PREFILL_FUNCTION void start(const softmax_params &p, const int32_t (&head)[2], const int32_t (&position)[2]) {
    ASSAY_UNROLL
    for (int h = 0; h < 2; ++h) {
      if constexpr (general) slope[h] = p.slopes != nullptr ? p.slopes[head[h]] * log2_e : 0.0f;
      last[h] = position[h];
      peak[h] = -INFINITY;
      total[h] = 0.0f;
    }
  }

  /* Turns scores into exp2(factor * score - factor * top). shrink holds the peaks before; it becomes the factor by
   * which the sums so far shrink. */
  template <int count> PREFILL_FUNCTION void raise(float (&S)[count], const float (&top)[2], float factor) {
    ASSAY_UNROLL
    for (int h = 0; h < 2; ++h) {
      const float from = top[h] * factor;
      shrink[h] = exp2_approx(__fmul_rn(shrink[h], factor) - from); /* rounded alike: 1 where the peak stays */
      float sum = 0.0f;
      ASSAY_UNROLL
      for (int i = 0; i < count / 2; ++i) {
        float &s = S[i / 2 * 4 + 2 * h + i % 2];
        s = exp2_approx(fmaf(s, factor, -from));
        sum += s;
      }
      total[h] = fmaf(total[h], shrink[h], sum);
    }
  }

  /* Brings scores to base 2. The soft cap comes before the slope. */
  template <int count> PREFILL_FUNCTION void bend(const softmax_params &p, float (&S)[count], int32_t key) const {
    const bool capped = p.softcap > 0.0f;
    const float scale = capped ? p.a.scale / p.softcap : p.a.scale * log2_e, cap = p.softcap * log2_e;
    if (capped) {
      ASSAY_UNROLL
      for (int i = 0; i < count; ++i)
        S[i] = cap * tanhf(S[i] * scale);
    } else {
      ASSAY_UNROLL
      for (int i = 0; i < count; ++i)
        S[i] *= scale;
    }
    ASSAY_UNROLL
    for (int i = 0; i < count; ++i) {
      const int h = i / 2 % 2, token = i / 4 * 8 + i % 2;
      S[i] = fmaf(slope[h], static_cast<float>(token + key - last[h]), S[i]);
    }
  }

  /* Hides the keys before the lines' windows and chunks. Most tiles have none of them. */
  template <int count> PREFILL_FUNCTION void hide_begin(const softmax_params &p, float (&S)[count], int32_t key) const {
    const int32_t begin[2] = {first_key(p, last[0]) - key, first_key(p, last[1]) - key};
    if (begin[0] <= 0 && begin[1] <= 0) return;
    ASSAY_UNROLL
    for (int i = 0; i < count; ++i) {
      const int token = i / 4 * 8 + i % 2;
      if (token < begin[i / 2 % 2]) S[i] = -INFINITY;
    }
  }

  /* Scores become exp2(score - peak). A peak stays while no score is far above it, and so do the sums. */
  template <bool masked, int count>
  PREFILL_FUNCTION void weigh(const softmax_params &p, float (&S)[count], int32_t key) {
    const float scale = p.a.scale * log2_e;
    if constexpr (general) bend(p, S, key);
    if constexpr (masked) hide_begin(p, S, key);
    float top[2];
    ASSAY_UNROLL
    for (int h = 0; h < 2; ++h) {
      const int32_t stop = last[h] - key;
      float most = peak[h];
      ASSAY_UNROLL
      for (int i = 0; i < count / 2; ++i) {
        float &s = S[i / 2 * 4 + 2 * h + i % 2];
        const int token = i / 2 * 8 + i % 2;
        if (masked && token > stop) s = -INFINITY;
        most = fmaxf(most, s);
      }
      most = groups_max<4>(most);
      if ((most - peak[h]) * (general ? 1.0f : scale) <= low_peak) most = peak[h];
      top[h] = most == -INFINITY ? 0.0f : most;
      shrink[h] = peak[h];
      peak[h] = most;
    }
    if constexpr (general) {
      raise(S, top, 1.0f);
    } else {
      /* The rounding of a scaled peak is the same for all weights of the line, and negligible beside 1. With larger
       * peaks, differences are scaled: the largest weight is 1, however large the scores are. Each line decides for
       * itself, so that its bits do not depend on the other lines of the warp; the vote only saves the work. */
      const bool large[2] = {!(fabsf(top[0] * scale) <= largest_scaled), !(fabsf(top[1] * scale) <= largest_scaled)};
      if (__any_sync(0xffffffffu, large[0] || large[1])) {
        const float less[2] = {large[0] ? top[0] : 0.0f, large[1] ? top[1] : 0.0f};
        ASSAY_UNROLL
        for (int i = 0; i < count; ++i)
          S[i] -= less[i / 2 % 2];
        ASSAY_UNROLL
        for (int h = 0; h < 2; ++h) {
          shrink[h] -= less[h];
          top[h] -= less[h];
        }
      }
      raise(S, top, scale);
    }
  }

  template <int count> PREFILL_FUNCTION void rescale(float (&O)[count]) const {
    if (__all_sync(0xffffffffu, shrink[0] >= 1.0f && shrink[1] >= 1.0f)) return;
    ASSAY_UNROLL
    for (int i = 0; i < count; ++i)
      O[i] *= shrink[i / 2 % 2];
  }

  /* The product and the sum of lse are not joined to an FMA. This function is compiled in several places. If they were
   * joined in some of them, the bits of a row would depend on the tiles beside it. */
  PREFILL_FUNCTION void finish(const softmax_params &p, const bool (&exists)[2], const int64_t (&row)[2],
                               const int32_t (&head)[2], float (&factor)[2]) const {
    ASSAY_UNROLL
    for (int h = 0; h < 2; ++h) {
      const float sum = group_sum<4>(total[h]);
      const bool seen = sum > 0.0f;
      const float largest = __fmul_rn(peak[h], general ? ln_2 : p.a.scale);
      const sunk_sums sunk = beside_sink(p, head[h], largest, sum);
      factor[h] = seen ? sunk.shrink / sunk.total : 0.0f;
      if (p.lse == nullptr || !exists[h] || lane_id() % 4 != 0) continue;
      p.lse[row[h] * p.a.H + head[h]] = seen ? __fadd_rn(largest, logf(sum)) : -INFINITY;
    }
  }
};

/* ---- launcher --------------------------------------------------------------------------------------- */

struct softmax_packed {
  using plan = softmax_plan;
  using plain = packed_weights<false>;
  using general = packed_weights<true>;
  static assay_status read(const assay_call *call, plan *made, assay_error *error) {
    return softmax_read(call, made, error);
  }
  static bool is_plain(const softmax_params &p) { return p.softcap <= 0.0f && p.slopes == nullptr; }
  static assay_status expect(const softmax_params &p, assay_dtype, assay_error *error) {
    if (p.sparse_block != 0)
      return assay_fail(error, ASSAY_ERR_UNSUPPORTED, "sparse_block: found %d, allowed 0: off", p.sparse_block);
    return softmax_expect_no_trees(p, error);
  }
  static void path(const softmax_params &p, assay_env *env) {
    (void)snprintf(env->path, sizeof env->path, "packed_wgmma %s D=%d D_v=%d%s", is_plain(p) ? "plain" : "general",
                   p.a.D, p.a.D_v, cache_word(p.a));
  }
};

} // namespace
} // namespace ASSAY_NS

/* S is in base 2; exp(score - peak) is rounded to the storage type. ex2 and tanhf: 2 ulp. */
#define PACKED(name, T, dtype)                                                                                         \
  PREFILL_VARIANT("softmax_attention", name,                                                                           \
                  "prompts on Hopper's tensor cores, any group: 128 rows and heads a block", "sm_90a", T, dtype, 2.0,  \
                  softmax_packed, packed_schedule)

PREFILL_VARIANTS(softmax_attention_packed_wgmma, PACKED, "packed_wgmma")
