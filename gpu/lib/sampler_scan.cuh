/* sampler_scan.cuh: rows of logits in chunks, one block per chunk. It has loads, sums over a block, and the data that a
 * row's chunks leave for each other in the workspace. */
#ifndef ASSAY_GPU_LIB_SAMPLER_SCAN_CUH
#define ASSAY_GPU_LIB_SAMPLER_SCAN_CUH

#include "gpu/lib/sampler.cuh"
#include "gpu/lib/vectors.cuh"
#include "gpu/lib/warp.cuh"

namespace ASSAY_NS {

constexpr int scan_threads = 256, scan_warps = scan_threads / 32;
constexpr int scan_run = 8;                        /* neighbouring logits per thread */
constexpr int scan_step = scan_threads * scan_run; /* logits per block and step */
constexpr int scan_groups = scan_threads / 8;      /* groups per chunk; each reports its largest value */
constexpr int most_chunks = (1 << 20) / scan_step; /* V is at most 2^20 */
constexpr int mass_bins = 1024;
constexpr int list_capacity = 2048;

constexpr uint32_t seen_bad_token = 4; /* in addition to seen_flags */

/* The facts that the first pass leaves about a chunk. */
struct chunk_facts {
  wide best;         /* largest key; 0: no number above -inf */
  uint32_t smallest; /* ordered bits of the smallest finite value */
  uint32_t flags;
};

/* A row's part of the workspace. The first pass zeroes the parts to which later passes add. */
struct row_work {
  wide bins[mass_bins];     /* masses by distance from the largest logit */
  wide list[list_capacity]; /* keys whose being kept is not decided yet */
  uint32_t listed, arrived;
};

struct scan_params {
  sampler_params s;
  row_work *rows;     /* [B] */
  chunk_facts *facts; /* [B, chunks] */
  uint32_t *groups;   /* [B, chunks, scan_groups]: ordered bits */
  wide *sure;         /* [B, chunks]: mass of what is certainly kept */
  const void *source; /* penalised logits: the given ones, or `values` */
  float *values;      /* [B, V]; NULL: nothing is penalised */
  int64_t source_row;
  int32_t chunks;
  bool aligned, values_aligned; /* rows of the logits and of the values start at multiples of 16 bytes */
};

/* ---- loads ------------------------------------------------------------------------------------------- */

/* Loads elements i to i + 7 of a row of V, with -inf after its end. -0 becomes +0. i must be a multiple of 8. */
template <class T>
__device__ __forceinline__ void load_run(const T *row, int32_t i, int32_t V, bool aligned, float (&value)[scan_run]) {
  constexpr int width = vector_width<T>;
  if (aligned && i + scan_run <= V) {
    ASSAY_UNROLL
    for (int part = 0; part < scan_run / width; ++part) {
      float some[width];
      split_vector<T>(load_vector(row + i + part * width), some);
      ASSAY_UNROLL
      for (int e = 0; e < width; ++e)
        value[part * width + e] = some[e] + 0.0f;
    }
    return;
  }
  ASSAY_UNROLL
  for (int e = 0; e < scan_run; ++e)
    value[e] = i + e < V ? to_float(row[i + e]) + 0.0f : -INFINITY;
}

/* ---- over a block ------------------------------------------------------------------------------------ */

/* Returns the running sum over the threads of a block of 256, including the thread's own value. *whole becomes the sum
 * of all. `sums` holds 8 numbers. */
__device__ __forceinline__ wide block_scan(wide value, wide *sums, wide *whole) {
  const int32_t lane = static_cast<int32_t>(threadIdx.x) % 32, warp = static_cast<int32_t>(threadIdx.x) / 32;
  ASSAY_UNROLL
  for (int step = 1; step < 32; step *= 2) {
    const wide below = __shfl_up_sync(0xffffffffu, value, static_cast<unsigned>(step));
    if (lane >= step) value += below;
  }
  __syncthreads(); /* earlier sums have been read */
  if (lane == 31) sums[warp] = value;
  __syncthreads(); /* every warp's sum is written */
  wide before = 0;
  *whole = 0;
  ASSAY_UNROLL
  for (int i = 0; i < scan_warps; ++i) {
    if (i < warp) before += sums[i];
    *whole += sums[i];
  }
  return value + before;
}

/* The place where a running sum reaches `target`: the first i of n with weight(0) + ... + weight(i) >= target. left:
 * what is left of the target there. All threads call locate() and get the place. The sum of all weights must be at
 * least the target, which must be at least 1. */
struct found_place {
  int32_t index;
  wide left;
};

template <class Weigh>
__device__ found_place locate(int32_t n, wide target, wide *sums, found_place *found, Weigh weight) {
  const int32_t run = (n + scan_threads - 1) / scan_threads, first = static_cast<int32_t>(threadIdx.x) * run;
  const int32_t end = min(first + run, n);
  wide own = 0, whole;
  for (int32_t i = first; i < end; ++i)
    own += weight(i);
  wide before = block_scan(own, sums, &whole) - own;
  if (before < target && before + own >= target) { /* true in one thread */
    int32_t i = first;
    for (wide next = weight(i); before + next < target; next = weight(i)) {
      before += next;
      ++i;
    }
    *found = {i, target - before};
  }
  __syncthreads(); /* the place is written */
  return *found;
}

} // namespace ASSAY_NS
#endif
