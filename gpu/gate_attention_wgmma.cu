/* gate_attention_wgmma.cu: gate attention of ragged prompts on Hopper's tensor cores; gate_attention.cu has the
 * definition, gpu/lib/prefill_wgmma.cuh the schedule.
 *
 * The filter runs on the fragment that holds S. A thread has 16 neighbouring tokens of every 64. The two scores left of
 * them come from the thread's left neighbour by a shuffle. The first thread of four takes them from the block before.
 * The scale is part of the taps, gamma a factor of the sum. P is rounded to the storage type. */
#include "gpu/lib/gate_call.h"
#include "gpu/lib/gate_rows.cuh"
#include "gpu/lib/prefill_step.cuh"
#include "gpu/lib/prefill_wgmma.cuh"

namespace ASSAY_NS {
namespace {

constexpr int wgmma_taps = 3;

/* general: any lo and hi, with relu_pre and without, and a window. Not general: lo = 0, hi = 1, relu_pre, no window. */
template <bool general> struct gate_weights {
  using params = gate_params;
  static constexpr bool masks_all = general;
  static constexpr bool compact = false;
  static constexpr int registers = 216;

  float tap[wgmma_taps]; /* times the scale */
  float gamma, least, lo, hi;
  float left[4];       /* the lane's last two scores in the block before: of the row, of the row 8 further */
  int32_t last, reach; /* the last key that the thread's first row sees, counted from the thread's first token of
                        * a tile; how many it sees before that */

  PREFILL_FUNCTION void start(const gate_params &p, int32_t head, int32_t position) {
    const int32_t mine = 16 * (static_cast<int32_t>(lane_id()) % 4);
    ASSAY_UNROLL
    for (int j = 0; j < wgmma_taps; ++j)
      tap[j] = j < p.F ? p.taps[j] * p.a.scale : 0.0f;
    gamma = p.gamma[head];
    last = position - mine;
    if constexpr (general) {
      least = p.relu_pre ? 0.0f : -INFINITY;
      lo = p.lo;
      hi = p.hi;
      reach = p.a.window > 0 ? p.a.window - 1 : 1 << 30;
    }
    ASSAY_UNROLL
    for (int i = 0; i < 4; ++i)
      left[i] = 0.0f;
  }

  /* Scores become p / gamma. */
  template <int groups, prefill_mask mask> PREFILL_FUNCTION void weigh(float (&S)[4 * groups], int32_t tile) {
    const unsigned lane = lane_id(), neighbour = (lane & 28u) | ((lane + 3) & 3u);
    const bool wraps = (lane & 3u) == 3;
    const int32_t stop = last - tile * keys_per_tile, begin = mask == mask_both ? stop - reach : 0;
    ASSAY_UNROLL
    for (int block = 0; block < groups / 8; ++block) {
      ASSAY_UNROLL
      for (int h = 0; h < 2; ++h) {
        float *const s = S + 32 * block + 2 * h; /* token 2 i + b at s[4 i + b] */
        ASSAY_UNROLL
        for (int i = 0; i < 8; ++i) {
          ASSAY_UNROLL
          for (int b = 0; b < 2; ++b) {
            const float r = fmaxf(s[4 * i + b], mask == mask_both ? least : 0.0f);
            s[4 * i + b] = mask != mask_both || 64 * block + 2 * i + b >= begin + 8 * h ? r : 0.0f;
          }
        }
        const float before2 = select_float(wraps, left[2 * h], s[28]);
        const float before1 = select_float(wraps, left[2 * h + 1], s[29]);
        left[2 * h] = s[28];
        left[2 * h + 1] = s[29];
        float r2 = __shfl_sync(0xffffffffu, before2, static_cast<int>(neighbour));
        float r1 = __shfl_sync(0xffffffffu, before1, static_cast<int>(neighbour));
        ASSAY_UNROLL
        for (int i = 0; i < 8; ++i) {
          ASSAY_UNROLL
          for (int b = 0; b < 2; ++b) {
            const float r = s[4 * i + b], rest = fmaf(tap[1], r1, tap[2] * r2);
            float weight;
            if constexpr (mask == mask_both)
              weight = fminf(fmaxf(fmaf(tap[0], r, rest), lo), hi);
            else
              weight = fma_saturate(tap[0], r, rest);
            const int32_t token = 64 * block + 2 * i + b;
            if (mask != mask_none && token > stop + 8 * h) weight = 0.0f;
            if (mask == mask_both && token < begin + 8 * h) weight = 0.0f;
            s[4 * i + b] = weight;
            r2 = r1;
            r1 = r;
          }
        }
      }
    }
  }

  template <int count> PREFILL_FUNCTION void rescale(float (&)[count]) const {}

  PREFILL_FUNCTION void finish(const gate_params &, const prefill_item &, int32_t, int32_t, float (&factor)[2]) const {
    factor[0] = factor[1] = gamma;
  }
};

/* ---- launcher --------------------------------------------------------------------------------------- */

struct gate_wgmma : gate_operator {
  using plain = gate_weights<false>;
  using general = gate_weights<true>;
  static bool is_plain(const gate_params &p) {
    return p.a.window == 0 && p.relu_pre && p.lo >= 0.0f && p.lo <= 0.0f && p.hi >= 1.0f && p.hi <= 1.0f;
  }
  static assay_status expect(const gate_params &p, assay_dtype dtype, assay_error *error) {
    if (p.F > wgmma_taps)
      return assay_fail(error, ASSAY_ERR_UNSUPPORTED, "F: found %d, allowed 1 to %d", p.F, wgmma_taps);
    return gate_expect_bounds(p, dtype, error);
  }
  /* Returns whether the call has no more rows than requests, a step of single tokens, which has kernels of its own. The
   * bits are the same. */
  static bool is_single(const gate_params &p) {
    return is_plain(p) && p.a.N <= p.a.B && step_is_faster(p.a) && p.a.N * p.a.H <= INT32_MAX / 2;
  }
  static void path(const gate_params &p, assay_env *env) {
    if (!is_single(p)) return wgmma_path(p.a, is_plain(p), env);
    step_path<gate_rule>(p, env);
  }
};

struct gate_wgmma_schedule : wgmma_schedule {
  template <class T, class Weights>
  static assay_status start(const gate_params &p, assay_env *env, assay_error *error) {
    if (gate_wgmma::is_single(p)) return step_start<T, gate_rule>(p, env, error);
    return wgmma_schedule::start<T, Weights>(p, env, error);
  }
};

} // namespace
} // namespace ASSAY_NS

/* p / gamma is rounded to the storage type. There is no exp. */
#define WGMMA(name, T, dtype)                                                                                          \
  PREFILL_VARIANT("gate_attention", name, "prompts on Hopper's tensor cores: 64 rows of two heads a block", "sm_90a",  \
                  T, dtype, 0.0, gate_wgmma, gate_wgmma_schedule)

PREFILL_VARIANTS(gate_attention_wgmma, WGMMA, "wgmma")
