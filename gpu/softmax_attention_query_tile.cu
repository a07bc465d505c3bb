/* softmax_attention_query_tile.cu: attention of ragged prompts on CUDA cores; softmax_attention.cu has the definition,
 * gpu/lib/query_tile.cuh the schedule.
 *
 * The softmax is online from tile to tile, in base e. All lanes of the warp have a line's maximum; each lane has its
 * own part of the total until the end. Every score, weight and sum is f32. */
#include "gpu/lib/query_tile.cuh"
#include "gpu/lib/softmax_call.h"
#include "gpu/lib/softmax_trees.cuh"

namespace ASSAY_NS {
namespace {

struct softmax_lines {
  using params = softmax_params;
  static constexpr int32_t blocks = 3;
  struct line {
    int32_t first, last;
    float slope;
    uint32_t phase;
    row_tree tree; /* the row's, if there are trees or a mask */
  };

  float peaks;               /* lane l holds that of line l: one register for all lines */
  float total[lines_a_warp]; /* the total of this lane's keys */

  static __device__ __forceinline__ void prepare(const softmax_params &p, int64_t row, int32_t head, line &to) {
    to.slope = p.slopes != nullptr ? p.slopes[head] : 0.0f;
    to.phase = sparse_phase(p, head);
    to.first = first_of_chunk(p, to.first, to.last);
    if (!has_trees(p) || to.last < 0) return;
    to.tree = tree_of_row(p, keys_of_row(p.a, row), row);
    if (p.mask != nullptr) {
      to.last = to.tree.keys - 1;
    } else { /* the same for all rows of a request: what a root sees */
      const int32_t root = to.tree.cached;
      to.first = first_of_chunk(p, p.a.window > 0 ? max(root - p.a.window + 1, 0) : 0, root);
    }
  }
  static __device__ __forceinline__ bool sparse(const softmax_params &p) { return p.sparse_block != 0 || has_trees(p); }
  static __device__ __forceinline__ bool sees(const softmax_params &p, const line &own, int32_t t) {
    return has_trees(p) ? place_of(p, own.tree, t) >= 0 : kept(p, own.phase, t, own.last);
  }

  __device__ __forceinline__ void start() {
    peaks = -INFINITY;
    ASSAY_UNROLL
    for (int l = 0; l < lines_a_warp; ++l)
      total[l] = 0.0f;
  }

  /* The score of a key; -inf where the line does not see it. */
  static __device__ __forceinline__ float score(const softmax_params &p, const line &own, float dot, int32_t t) {
    if (t < own.first || t > own.last) return -INFINITY;
    if (has_trees(p)) {
      const int32_t place = place_of(p, own.tree, t);
      return place < 0 ? -INFINITY : score_of(p, dot, own.slope, place, own.tree.last);
    }
    return kept(p, own.phase, t, own.last) ? score_of(p, dot, own.slope, t, own.last) : -INFINITY;
  }

  __device__ __forceinline__ void weigh(const softmax_params &p, const line &own, int l, int32_t t, float (&s)[2],
                                        line_sums &O) {
    const float low = score(p, own, s[0], t), high = score(p, own, s[1], t + 32);
    const float peak = __shfl_sync(0xffffffffu, peaks, l);
    const float top = fmaxf(peak, groups_max<32>(fmaxf(low, high))), shrink = exp_below(peak, top);
    if (static_cast<int32_t>(lane_id()) == l) peaks = top;
    s[0] = exp_below(low, top);
    s[1] = exp_below(high, top);
    total[l] = total[l] * shrink + (s[0] + s[1]);
    if (shrink == 1.0f) return;
    ASSAY_UNROLL
    for (int i = 0; i < most_pieces; ++i) {
      O[i][0] *= shrink;
      O[i][1] *= shrink;
    }
  }

  __device__ __forceinline__ void finish(const softmax_params &p, int l, int64_t at, line_sums &O) const {
    const float sum = groups_sum<32>(total[l]), peak = __shfl_sync(0xffffffffu, peaks, l);
    const sunk_sums sunk = beside_sink(p, static_cast<int32_t>(at % p.a.H), peak, sum);
    ASSAY_UNROLL
    for (int i = 0; i < most_pieces; ++i) {
      O[i][0] = normalised(O[i][0] * sunk.shrink, sunk.total);
      O[i][1] = normalised(O[i][1] * sunk.shrink, sunk.total);
    }
    if (p.lse != nullptr && static_cast<int32_t>(lane_id()) == l) p.lse[at] = lse_of(peaks, sum);
  }
};

/* ---- launcher --------------------------------------------------------------------------------------- */

struct softmax_tile : softmax_operator {
  using weights = softmax_lines;
  static assay_status read(const assay_call *call, plan *made, assay_error *error) {
    return softmax_read(call, made, error);
  }
};

} // namespace
} // namespace ASSAY_NS

/* expf and tanhf: 2 ulp. */
#define QUERY_TILE QUERY_TILE_VARIANT("softmax_attention", 2.0, softmax_tile)

ASSAY_VARIANTS(softmax_attention_query_tile, QUERY_TILE)
