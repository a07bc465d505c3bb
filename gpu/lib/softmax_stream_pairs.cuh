/* softmax_stream_pairs.cuh: a streamed decode with a softmax whose runs of keys are merged by pairs of channels. Few
 * heads end so.
 *
 * A warp weighs the runs of a head, a lane per run, and each lane adds two channels of the head over the runs. Every
 * warp that has a head weighs its runs anew. Few heads have one or two warps each, and no barrier between weights and
 * sums. More heads end sooner by softmax_stream_end.cuh. */
#ifndef ASSAY_GPU_LIB_SOFTMAX_STREAM_PAIRS_CUH
#define ASSAY_GPU_LIB_SOFTMAX_STREAM_PAIRS_CUH

#include "gpu/lib/attention.h"
#include "gpu/lib/ptx_cluster.cuh"
#include "gpu/lib/softmax_call.h"
#include "gpu/lib/softmax_score.cuh"
#include "gpu/lib/softmax_stream_end.cuh"
#include "gpu/lib/stream.cuh"
#include "gpu/lib/warp.cuh"

namespace ASSAY_NS {

/* Sums over runs of one head. The weights of a run are relative to its own peak. */
struct softmax_sum {
  float peak, total, sum;
};

__device__ __forceinline__ float normalised(const softmax_sum &s) {
  return s.total == 0.0f ? 0.0f : s.sum / s.total;
}

__device__ __forceinline__ float lse_of(const softmax_sum &s) {
  return s.total == 0.0f ? -INFINITY : ln_2 * s.peak + logf(s.total);
}

/* Returns the sums with the sink of a head in their total. */
__device__ __forceinline__ softmax_sum with_sink(const softmax_params &p, int32_t head, const softmax_sum &s) {
  const sunk_sums sunk = beside_sink(p, head, ln_2 * s.peak, s.total);
  return {s.peak, sunk.total, s.sum * sunk.shrink};
}

/* The same sums for two channels. */
struct softmax_sums {
  softmax_sum first;
  float second;
};

/* Adds sums over other keys to `all`. */
__device__ __forceinline__ void add_sums(softmax_sums *all, const softmax_sums &more) {
  const float peak = fmaxf(all->first.peak, more.first.peak);
  const float by = power_below(all->first.peak, peak), more_by = power_below(more.first.peak, peak);
  all->first.peak = peak;
  all->first.total = by * all->first.total + more_by * more.first.total;
  all->first.sum = by * all->first.sum + more_by * more.first.sum;
  all->second = by * all->second + more_by * more.second;
}

/* Merges `runs` runs, at most `most`, that are `step` floats apart. The peaks and totals are the same for all lanes of
 * a warp and are weighted by one lane per run. Each lane has its own sums, for two channels that are `apart` from each
 * other, and adds them in the order of the runs. */
template <int most>
__device__ __forceinline__ softmax_sums joined(const float *peak, const float *total, const float *sum, int32_t runs,
                                               int32_t step, int32_t apart) {
  static_assert(most <= 16, "a run is in two lanes");
  const int32_t run = static_cast<int32_t>(threadIdx.x % 16);
  const float own = run < runs ? peak[run * step] : -INFINITY;
  float first[most], second[most];
  ASSAY_UNROLL
  for (int32_t r = 0; r < most; ++r) {
    first[r] = r < runs ? sum[r * step] : 0.0f;
    second[r] = r < runs ? sum[r * step + apart] : 0.0f;
  }
  softmax_sums all = {{groups_max<16>(own), 0.0f, 0.0f}, 0.0f};
  const float by = power_below(own, all.first.peak);
  all.first.total = groups_sum<16>(run < runs ? by * total[run * step] : 0.0f);
  ASSAY_UNROLL
  for (int32_t r = 0; r < most; ++r) {
    const float weight = __shfl_sync(all_lanes, by, r);
    if (r < runs) {
      all.first.sum += weight * first[r];
      all.second += weight * second[r];
    }
  }
  return all;
}

/* The two channels of a pair lie half a head apart. Whole warps work on the pairs of a head, since a warp merges the
 * runs of one head at a time (joined). The threads of a head after its last pair repeat that pair and write nothing. */
__device__ __forceinline__ int32_t softmax_threads_of_head(int32_t channels) {
  return (channels / 2 + 31) / 32 * 32;
}
struct softmax_pair {
  int32_t head, channel, number; /* channel: of the first of the two, among all heads; number: among all pairs */
  bool there;
};
__device__ __forceinline__ softmax_pair softmax_pair_of(int32_t i, int32_t channels) {
  const int32_t each = softmax_threads_of_head(channels), half = channels / 2;
  const int32_t head = i / each, within = min(i % each, half - 1);
  return {head, head * channels + within, head * half + within, i % each < half};
}

/* Writes two channels of a head, half of the head apart. They are pair number `pair` of the (row, kv head). */
template <class T, class KV, int D>
__device__ __forceinline__ void softmax_write(const softmax_params &p, int64_t segment, int32_t kv_head, int32_t pair,
                                              const softmax_sums &sums) {
  const attention_params &a = p.a;
  const softmax_sum all = sums.first, other = {all.peak, all.total, sums.second};
  const int32_t channels = stream_channels<D>(a), half = channels / 2;
  const int32_t head = pair / half, channel = head * channels + pair % half;
  T *const to = static_cast<T *>(a.out) + segment * a.G * channels + channel;
  const int32_t own = kv_head * a.G + head;
  to[0] = from_float<T>(stream_value<KV>(normalised(with_sink(p, own, all)), a, kv_head));
  to[half] = from_float<T>(stream_value<KV>(normalised(with_sink(p, own, other)), a, kv_head));
  if (p.lse != nullptr && pair % half == 0) p.lse[segment * a.G + head] = lse_of(all);
}

/* Merges the warps' sums of a thread block, which are in `shared`, and writes or sends the result. The whole block must
 * call it after a barrier. floats: shared memory of a warp, as [heads][channels] of sums, then peaks, then totals. */
template <class T, class KV, int D, int heads, int most_warps>
__device__ __forceinline__ void softmax_stream_end_pairs(const softmax_params &p, const stream_place &at, float *shared,
                                                         int32_t floats) {
  const attention_params &a = p.a;
  const int32_t thread = static_cast<int32_t>(threadIdx.x), threads = static_cast<int32_t>(blockDim.x);
  const int32_t channels = stream_channels<D>(a), half = channels / 2;
  const int32_t count = a.G * channels, pairs = count / 2, words = softmax_sent_words(a.G, channels);
  const float *const peaks = shared + stream_shared_floats<D, heads>;
  float2 *const sent = reinterpret_cast<float2 *>(shared + threads / 32 * floats); /* [splits][words] */
  if (p.cluster > 1) cluster_wait(); /* the cluster's thread blocks have started */
  for (int32_t at_once = thread; at_once < a.G * softmax_threads_of_head(channels); at_once += threads) {
    const softmax_pair of = softmax_pair_of(at_once, channels);
    const int32_t head = of.head, channel = of.channel, i = of.number;
    const softmax_sums pair =
        joined<most_warps>(peaks + head, peaks + heads + head, shared + channel, threads / 32, floats, half);
    const softmax_sum all = pair.first;
    if (!of.there) continue;
    if (p.cluster > 1) {
      float2 *const to = cluster_shared(sent + at.split * static_cast<uint32_t>(words), 0);
      to[i] = make_float2(all.sum, pair.second);
      if (channel % channels == 0) to[pairs + head] = make_float2(all.peak, all.total);
    } else if (p.splits > 1) {
      const int64_t part = at.segment * p.splits + at.split;
      float *const to = p.partial + part * count + channel;
      to[0] = all.sum;
      to[half] = pair.second;
      if (channel % channels == 0) p.partial_lse[part * 2 * a.G + head] = all.peak;
      if (channel % channels == 0) p.partial_lse[part * 2 * a.G + a.G + head] = all.total;
    } else {
      softmax_write<T, KV, D>(p, at.segment, at.kv_head, i, pair);
    }
  }
  if (p.cluster == 1) return;

  cluster_arrive();
  if (at.split > 0) return;
  cluster_wait(); /* all that the splits sent has arrived */
  for (int32_t i = thread; i < pairs; i += threads) {
    softmax_sums all = {{-INFINITY, 0.0f, 0.0f}, 0.0f};
    ASSAY_ROLLED
    for (int32_t split = 0; split < p.cluster; ++split) {
      const float2 sums = sent[split * words + i], peak = sent[split * words + pairs + i / half];
      add_sums(&all, {{peak.x, peak.y, sums.x}, sums.y});
    }
    softmax_write<T, KV, D>(p, at.segment, at.kv_head, i, all);
  }
}

} // namespace ASSAY_NS
#endif
