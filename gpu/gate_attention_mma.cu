/* gate_attention_mma.cu: gate attention of ragged prompts with mma.sync, for calls that the wgmma variant declines.
 * gate_attention.cu has the definition, gpu/lib/prefill_mma.cuh the schedule.
 *
 * The filter runs on the fragment that holds S. A thread has 16 neighbouring tokens of a tile for each of its two rows.
 * The F - 1 scores left of them come from the thread's left neighbour, by one shuffle each. The first thread of four
 * takes them from the tile before. The scale is part of the taps, gamma a factor of the sum. P is rounded to the
 * storage type. */
#include "gpu/lib/gate_call.h"
#include "gpu/lib/prefill_mma.cuh"

namespace ASSAY_NS {
namespace {

/* A filter of `taps` taps: F of them are the call's, the others are 0. */
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

/* ---- launcher --------------------------------------------------------------------------------------- */

constexpr int few_taps = 3;

/* Plain: few taps. */
struct gate_mma : gate_operator {
  using plain = gate_weights<few_taps>;
  using general = gate_weights<max_taps>;
  static bool is_plain(const gate_params &p) { return p.F <= few_taps; }
  static assay_status expect(const gate_params &p, assay_dtype dtype, assay_error *error) {
    return gate_expect_bounds(p, dtype, error);
  }
  static void path(const gate_params &p, assay_env *env) {
    (void)snprintf(env->path, sizeof env->path, "mma D=%d taps=%d%s", p.a.D, is_plain(p) ? few_taps : max_taps,
                   cache_word(p.a));
  }
};

} // namespace
} // namespace ASSAY_NS

/* p / gamma is rounded to the storage type. There is no exp. */
#define MMA(name, T, dtype)                                                                                            \
  PREFILL_VARIANT("gate_attention", name,                                                                              \
                  "prompts on tensor cores, any group, taps and block: 64 rows of a head a block", "any", T, dtype,    \
                  0.0, gate_mma, mma_schedule)

PREFILL_VARIANTS(gate_attention_mma, MMA, "mma")
