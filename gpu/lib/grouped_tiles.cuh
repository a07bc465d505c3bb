/* grouped_tiles.cuh: the list of tiles of rows that the tensor-core kernels of grouped_gemm and grouped_gemm_masked
 * walk. A launch of one block makes it in the workspace, so the host reads no array of the device. */
#ifndef ASSAY_GPU_LIB_GROUPED_TILES_CUH
#define ASSAY_GPU_LIB_GROUPED_TILES_CUH

#include "gpu/lib/grouped_dots.cuh"
#include "gpu/lib/ptx_async.cuh"

namespace ASSAY_NS {

/* Rows first .. end - 1 of one group. Rows are counted through all slabs. Group -1: dead rows. */
struct alignas(16) grouped_tile {
  int32_t first, end, group, unused;
};

/* In the workspace: the number of tiles and a counter in the first 16 bytes, then the tiles. */
__device__ __forceinline__ int32_t *grouped_count(void *list) {
  return static_cast<int32_t *>(list);
}
/* Returns the counter of tiles times columns that blocks took after their first. */
__device__ __forceinline__ unsigned long long *grouped_taken(void *list) {
  return static_cast<unsigned long long *>(list) + 1;
}
__device__ __forceinline__ grouped_tile *grouped_list(void *list) {
  return static_cast<grouped_tile *>(list) + 1;
}

constexpr int32_t grouped_planners = 512;

/* Returns what `join` makes of the values of all threads before this one; `none` for the first. `total` gets that of
 * all threads. */
template <class Join>
__device__ __forceinline__ int32_t grouped_before(int32_t own, int32_t none, int32_t *shared, int32_t *total,
                                                  Join join) {
  const int32_t thread = static_cast<int32_t>(threadIdx.x), threads = static_cast<int32_t>(blockDim.x);
  shared[thread] = own;
  __syncthreads(); /* own values are written */
  for (int32_t step = 1; step < threads; step *= 2) {
    const int32_t other = thread >= step ? shared[thread - step] : none;
    __syncthreads(); /* all have read */
    shared[thread] = join(other, shared[thread]);
    __syncthreads(); /* all have written */
  }
  const int32_t before = thread > 0 ? shared[thread - 1] : none;
  *total = shared[threads - 1];
  __syncthreads(); /* the array may be used again */
  return before;
}

/* Returns the group that a row names, or -1. A number that is no group counts as -1. */
__device__ __forceinline__ int32_t grouped_named(const grouped_params &p, int32_t row) {
  const int32_t group = p.group[row];
  return group >= 0 && group < p.G ? group : -1;
}

/* Calls use(row, group, first) for rows from .. to - 1, where `first` tells whether the row before has another group.
 * Eight groups are read at a time, so that their latencies overlap. */
template <class Use>
__device__ __forceinline__ void grouped_visit(const grouped_params &p, int32_t from, int32_t to, Use use) {
  constexpr int32_t together = 8;
  int32_t before = from > 0 && from < to ? grouped_named(p, from - 1) : -1;
  for (int32_t row = from; row < to; row += together) {
    int32_t group[together];
    ASSAY_UNROLL
    for (int32_t i = 0; i < together; ++i)
      group[i] = row + i < to ? grouped_named(p, row + i) : -1;
    ASSAY_UNROLL
    for (int32_t i = 0; i < together; ++i) {
      if (row + i >= to) break;
      use(row + i, group[i], row + i == 0 || group[i] != before);
      before = group[i];
    }
  }
}

/* Calls use(row, group) for the first row of each tile of rows from .. to - 1. A tile begins where the group changes,
 * and every `most` rows after that. `start` is where the group of the row before `from` began. */
template <class Use>
__device__ __forceinline__ void grouped_starts(const grouped_params &p, int32_t most, int32_t from, int32_t to,
                                               int32_t start, Use use) {
  grouped_visit(p, from, to, [&](int32_t row, int32_t group, bool first) {
    if (first) start = row;
    if ((row - start) % most == 0) use(row, group);
  });
}

/* grouped_plan_rows: lists the tiles of rows that name their groups. Each thread has neighbouring rows.
 * Grid:   1. Block: 128 or 512 threads.
 * Shared: 2 KB.
 * Align:  none.
 * Arch:   any.
 * Limit:  latency: each row's group is read three times, the first time from memory. */
static __global__ void __launch_bounds__(grouped_planners)
    grouped_plan_rows(grouped_params p, void *list, int32_t most) {
  ASSAY_SHARED(int32_t, shared, grouped_planners);
  take_turn();
  const int32_t thread = static_cast<int32_t>(threadIdx.x), threads = static_cast<int32_t>(blockDim.x);
  const int32_t rows = static_cast<int32_t>(p.rows), each = (rows + threads - 1) / threads;
  const int32_t from = min(thread * each, rows), to = min(from + each, rows);
  int32_t last = -1, mine = 0, total, all;
  grouped_visit(p, from, to, [&](int32_t row, int32_t, bool first) {
    if (first) last = row;
  });
  const int32_t start = grouped_before(last, -1, shared, &total, [](int32_t a, int32_t b) { return a > b ? a : b; });
  if (from < to) grouped_starts(p, most, from, to, start, [&](int32_t, int32_t) { ++mine; });
  int32_t at = grouped_before(mine, 0, shared, &all, [](int32_t a, int32_t b) { return a + b; });
  grouped_tile *const tile = grouped_list(list);
  if (from < to)
    grouped_starts(p, most, from, to, start, [&](int32_t row, int32_t group) {
      tile[at].first = row;
      tile[at].group = group;
      if (at > 0) tile[at - 1].end = row;
      ++at;
    });
  if (thread != 0) return;
  tile[all - 1].end = rows;
  *grouped_count(list) = all;
  *grouped_taken(list) = 0;
}

/* grouped_plan_slabs: lists the tiles of the live rows of slabs. Each thread has neighbouring slabs.
 * Grid:   1. Block: 128 or 512 threads.
 * Shared: 2 KB.
 * Align:  none.
 * Arch:   any.
 * Limit:  latency: each slab's number of rows is read twice. */
static __global__ void __launch_bounds__(grouped_planners)
    grouped_plan_slabs(grouped_params p, void *list, int32_t most) {
  ASSAY_SHARED(int32_t, shared, grouped_planners);
  take_turn();
  const int32_t thread = static_cast<int32_t>(threadIdx.x), threads = static_cast<int32_t>(blockDim.x);
  const int32_t slabs = static_cast<int32_t>(p.G), each = (slabs + threads - 1) / threads;
  const int32_t from = min(thread * each, slabs), to = min(from + each, slabs), room = static_cast<int32_t>(p.R);
  int32_t mine = 0, all;
  for (int32_t slab = from; slab < to; ++slab)
    mine += (min(max(p.live[slab], 0), room) + most - 1) / most;
  int32_t at = grouped_before(mine, 0, shared, &all, [](int32_t a, int32_t b) { return a + b; });
  for (int32_t slab = from; slab < to; ++slab) {
    const int32_t live = min(max(p.live[slab], 0), room);
    for (int32_t row = 0; row < live; row += most) {
      const int32_t first = slab * room + row;
      grouped_list(list)[at++] = grouped_tile{first, first + min(most, live - row), slab, 0};
    }
  }
  if (thread != 0) return;
  *grouped_count(list) = all;
  *grouped_taken(list) = 0;
}

/* Returns the bytes of a list that is long enough for any groups. */
inline int64_t grouped_list_bytes(const grouped_params &p, int32_t most) {
  const int64_t tiles = p.group != NULL ? p.rows : p.G * ((p.R + most - 1) / most);
  return (tiles + 1) * static_cast<int64_t>(sizeof(grouped_tile));
}

inline assay_status grouped_launch_plan(const grouped_params &p, void *list, int32_t most, assay_env *env,
                                        assay_error *error) {
  const int64_t counted = p.group != NULL ? p.rows / 16 : p.G;
  const int32_t threads = counted > 128 ? grouped_planners : 128;
  if (p.group != NULL)
    return ASSAY_LAUNCH_WITH(error, grouped_plan_rows, 1, threads, 0, in_turn(), env->stream, p, list, most);
  return ASSAY_LAUNCH_WITH(error, grouped_plan_slabs, 1, threads, 0, in_turn(), env->stream, p, list, most);
}

} // namespace ASSAY_NS
#endif
