/* softmax_attention_mma.cu: attention of ragged prompts with mma.sync; softmax_attention.cu has the definition,
 * gpu/lib/prefill_mma.cuh the schedule.
 *
 * The softmax is online, in base 2, over the fragment that holds S; four lanes share a row. P is rounded to the storage
 * type, its sum is not. O is rescaled only after a tile that raised some maximum of the warp's rows. */
#include "gpu/lib/prefill_mma.cuh"
#include "gpu/lib/softmax_call.h"
#include "gpu/lib/softmax_score.cuh"

namespace ASSAY_NS {
namespace {

constexpr float log2_e = 1.44269504f, ln_2 = 0.693147182f;

/* general: a soft cap or ALiBi. Not general: neither of them; unscaled scores are compared. The scale then multiplies
 * differences only, so that the largest weight is 1, however large the scores are. */
template <bool general> struct softmax_weights {
  using params = softmax_params;

  /* Values of the row and of the row 8 further. peak: in base 2 if general; total: that of this lane's keys. */
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
      const sunk_sums sunk = beside_sink(p, item.head, peak[h] * (general ? ln_2 : p.a.scale), sum);
      factor[h] = seen ? sunk.shrink / sunk.total : 0.0f;
      if (p.lse == nullptr || row + 8 * h >= item.rows || lane_id() % 4 != 0) continue;
      p.lse[(item.row + row + 8 * h) * static_cast<int64_t>(p.a.H) + item.head] =
          seen ? fmaf(peak[h], general ? ln_2 : p.a.scale, logf(sum)) : -INFINITY;
    }
  }
};

/* ---- launcher --------------------------------------------------------------------------------------- */

struct softmax_mma : softmax_operator {
  using plain = softmax_weights<false>;
  using general = softmax_weights<true>;
  static bool is_plain(const softmax_params &p) { return p.softcap <= 0.0f && p.slopes == nullptr; }
  static assay_status expect(const softmax_params &p, assay_dtype, assay_error *error) {
    return softmax_expect_dense(p, error);
  }
  static void path(const softmax_params &p, assay_env *env) {
    (void)snprintf(env->path, sizeof env->path, "mma %s D=%d%s", is_plain(p) ? "plain" : "general", p.a.D,
                   cache_word(p.a));
  }
};

} // namespace
} // namespace ASSAY_NS

/* S is in base 2; exp(score - peak) is rounded to the storage type. ex2 and tanhf: 2 ulp. */
#define MMA(name, T, dtype)                                                                                            \
  PREFILL_VARIANT("softmax_attention", name,                                                                           \
                  "prompts on tensor cores, any group and block: 64 rows of a head a block", "any", T, dtype, 2.0,     \
                  softmax_mma, mma_schedule)

PREFILL_VARIANTS(softmax_attention_mma, MMA, "mma")
