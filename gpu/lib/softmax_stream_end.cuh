/* softmax_stream_end.cuh: the end of a streamed decode with a softmax. It merges the runs of a thread block's warps,
 * and then the splits of a cluster.
 *
 * A thread per head turns the peaks of the runs into weights. Then every thread adds four adjacent channels of a head
 * over the runs, in their order. No thread computes a weight that another one has.
 *
 * Nothing is read from memory during an end, and a row has one per kv head. The end is therefore short. */
#ifndef ASSAY_GPU_LIB_SOFTMAX_STREAM_END_CUH
#define ASSAY_GPU_LIB_SOFTMAX_STREAM_END_CUH

#include "gpu/lib/attention.h"
#include "gpu/lib/ptx_cluster.cuh"
#include "gpu/lib/softmax_call.h"
#include "gpu/lib/softmax_score.cuh"
#include "gpu/lib/stream.cuh"

namespace ASSAY_NS {

constexpr float log2_e = 1.44269504f, ln_2 = 0.693147182f;

/* Returns 2^(x - peak); 0 for x = -inf, even if peak is -inf too. */
__device__ __forceinline__ float power_below(float x, float peak) {
  return x == -INFINITY ? 0.0f : exp2_approx(x - peak);
}

/* Returns the number of words of two f32 that a split sends. They are the sums, [G][D], and then peak and total,
 * [G][2]. */
__host__ __device__ constexpr int32_t softmax_sent_words(int32_t G, int32_t D) {
  return G * (D / 2 + 1);
}

/* Replaces the peaks of `runs` runs of a head by their weights, relative to the highest peak. Returns that peak and the
 * weighted total. The peaks are `step` floats apart, and each total lies `total_at` floats after its peak. */
__device__ __forceinline__ float2 softmax_weigh_runs(float *peak, int32_t runs, int32_t step, int32_t total_at) {
  float top = -INFINITY, total = 0.0f;
  for (int32_t r = 0; r < runs; ++r)
    top = fmaxf(top, peak[r * step]);
  for (int32_t r = 0; r < runs; ++r) {
    const float by = power_below(peak[r * step], top);
    total += by * peak[r * step + total_at];
    peak[r * step] = by;
  }
  return make_float2(top, total);
}

/* Adds `by` times x to four sums. */
__device__ __forceinline__ void softmax_add_four(float4 *sum, float by, const float4 &x) {
  sum->x += by * x.x;
  sum->y += by * x.y;
  sum->z += by * x.z;
  sum->w += by * x.w;
}

/* Returns the weighted sum of four channels over `runs` runs. The weights are `weight_step` floats apart, the sums
 * `step`. Four runs are loaded at a time. */
__device__ __forceinline__ float4 softmax_add_runs(const float *weight, int32_t weight_step, const float *sum,
                                                   int32_t step, int32_t runs) {
  constexpr int32_t at_once = 4;
  float4 all = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  for (int32_t first = 0; first < runs; first += at_once) {
    float4 of[at_once];
    float by[at_once];
    ASSAY_UNROLL
    for (int32_t u = 0; u < at_once; ++u) {
      const int32_t r = first + u;
      by[u] = r < runs ? weight[r * weight_step] : 0.0f;
      of[u] = r < runs ? *reinterpret_cast<const float4 *>(sum + r * step) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    }
    ASSAY_UNROLL
    for (int32_t u = 0; u < at_once; ++u)
      softmax_add_four(&all, by[u], of[u]);
  }
  return all;
}

/* Writes four adjacent elements of T. together: whether `to` is a multiple of 8 bytes. */
template <class T> __device__ __forceinline__ void softmax_put_four(T *to, const float4 &x, bool together) {
  if (together) {
    *reinterpret_cast<uint2 *>(to) = make_uint2(pack_pair<T>(x.x, x.y), pack_pair<T>(x.z, x.w));
    return;
  }
  const float each[4] = {x.x, x.y, x.z, x.w};
  ASSAY_UNROLL
  for (int c = 0; c < 4; ++c)
    to[c] = from_float<T>(each[c]);
}

/* Merges the warps' sums of a thread block, which are in `shared`, and writes or sends the result. The whole block must
 * call it after a barrier. floats: shared memory of a warp, as [heads][channels] of sums, then peaks, then totals. */
template <class T, class KV, int D, int heads>
__device__ __forceinline__ void softmax_stream_end(const softmax_params &p, const stream_place &at, float *shared,
                                                   int32_t floats) {
  ASSAY_SHARED(float2, joint, heads); /* per head: the factor of its sums and its total, or its peak and its total */
  const attention_params &a = p.a;
  const int32_t thread = static_cast<int32_t>(threadIdx.x), threads = static_cast<int32_t>(blockDim.x),
                runs = threads / 32, split = static_cast<int32_t>(at.split);
  const int32_t channels = stream_channels<D>(a), count = a.G * channels, quads = channels / 4;
  float *const peaks = shared + stream_shared_floats<D, heads>;
  float *const sent = shared + runs * floats;                                      /* [splits][G][channels] */
  float2 *const sent_peaks = reinterpret_cast<float2 *>(sent + p.cluster * count); /* [splits][G] */
  const bool whole = p.cluster == 1 && p.splits == 1, together = reinterpret_cast<uintptr_t>(a.out) % 8 == 0;

  /* Returns what the sums of a head are multiplied by, and its total. Writes its lse. */
  const auto finished = [&](int32_t head, float peak, float total) {
    const sunk_sums sunk = beside_sink(p, at.kv_head * a.G + head, ln_2 * peak, total);
    if (p.lse != nullptr) p.lse[at.segment * a.G + head] = lse_of(ln_2 * peak, total);
    return make_float2(sunk.total == 0.0f ? 0.0f : sunk.shrink / sunk.total, sunk.total);
  };
  /* Writes four channels of a head to out. quad: their number among those of all heads. */
  const auto write = [&](int32_t quad, const float4 &sum, const float2 &of) {
    const auto value = [&](float x) { return stream_value<KV>(of.y == 0.0f ? 0.0f : x * of.x, a, at.kv_head); };
    softmax_put_four(static_cast<T *>(a.out) + at.segment * count + 4 * quad,
                     make_float4(value(sum.x), value(sum.y), value(sum.z), value(sum.w)), together);
  };

  if (thread < a.G) {
    const float2 all = softmax_weigh_runs(peaks + thread, runs, floats, heads);
    joint[thread] = whole ? finished(thread, all.x, all.y) : all;
  }
  if (p.cluster > 1) cluster_wait(); /* the cluster's thread blocks have started */
  __syncthreads();                   /* the weights of the runs are written */
  ASSAY_ROLLED
  for (int32_t quad = thread; quad < a.G * quads; quad += threads) {
    const float4 sum = softmax_add_runs(peaks + quad / quads, floats, shared + 4 * quad, floats, runs);
    if (p.cluster > 1)
      *cluster_shared(reinterpret_cast<float4 *>(sent + split * count) + quad, 0) = sum;
    else if (p.splits > 1)
      reinterpret_cast<float4 *>(p.partial + (at.segment * p.splits + split) * count)[quad] = sum;
    else
      write(quad, sum, joint[quad / quads]);
  }
  if (whole) return;
  if (thread < a.G && p.cluster > 1) {
    *cluster_shared(sent_peaks + split * a.G + thread, 0) = joint[thread];
  } else if (thread < a.G) {
    float *const to = p.partial_lse + (at.segment * p.splits + split) * 2 * a.G + thread;
    to[0] = joint[thread].x;
    to[a.G] = joint[thread].y;
  }
  if (p.cluster == 1) return;

  cluster_arrive();
  if (split > 0) return;
  cluster_wait(); /* all that the splits sent has arrived */
  if (thread < a.G) {
    const float2 all = softmax_weigh_runs(&sent_peaks[thread].x, p.cluster, 2 * a.G, 1);
    joint[thread] = finished(thread, all.x, all.y);
  }
  __syncthreads(); /* the weights of the splits are written */
  ASSAY_ROLLED
  for (int32_t quad = thread; quad < a.G * quads; quad += threads)
    write(quad, softmax_add_runs(&sent_peaks[quad / quads].x, 2 * a.G, sent + 4 * quad, count, p.cluster),
          joint[quad / quads]);
}

} // namespace ASSAY_NS
#endif
