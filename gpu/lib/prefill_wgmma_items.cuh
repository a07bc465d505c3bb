/* prefill_wgmma_items.cuh: the work list of a prefill over a ragged batch, made on the device by every warp that needs
 * it from cu_q and the lengths alone, so that a captured graph may be replayed with others: no list in memory, no
 * counter, no order of arrival.
 *
 * An item is a run of query rows of one request, for a pair of heads that share its keys or for one head. Items are
 * numbered from the most key tiles to the fewest (levels), in a level by request and row, and at last by heads. Rows
 * behind the last request form one more request that sees no key.
 *
 * Form: what a schedule makes of a batch.
 *   tile_shift          keys of a tile, 2^tile_shift
 *   run_shift(a)        query rows of a run, 2^run_shift
 *   heads_an_item(a), items_a_run(a)   1 or 2; heads of the call by them */
#ifndef ASSAY_GPU_LIB_PREFILL_WGMMA_ITEMS_CUH
#define ASSAY_GPU_LIB_PREFILL_WGMMA_ITEMS_CUH

#include "gpu/lib/attention.h"
#include "gpu/lib/warp.cuh"

/* Inlined for the device, where arrays that are passed on must stay in registers; on simt that would only take long to
 * compile. */
#ifdef ASSAY_SIMT
#define PREFILL_FUNCTION inline
#else
#define PREFILL_FUNCTION __device__ __forceinline__
#endif

namespace ASSAY_NS {

struct prefill_item {
  int32_t row, rows;     /* first query row of the batch, and how many */
  int32_t position;      /* of the first row among the request's keys; below 0: it sees none */
  int32_t begin, end;    /* tiles of keys: begin <= tile < end, at least one */
  int32_t head, request; /* first query head; end 0: there is no more item */
};

/* No more items than these, whatever cu_q and the lengths say. */
template <class Form> inline int64_t most_items(const attention_params &a) {
  return ((a.N >> Form::run_shift(a)) + a.B + 1) * Form::items_a_run(a);
}

/* A request's rows, and the keys before them. */
struct prefill_request {
  int32_t row, rows, cached;
};

PREFILL_FUNCTION prefill_request prefill_request_of(const attention_params &a, int32_t request) {
  prefill_request r = {0, 0, 0};
  if (request > a.B) return r;
  r.row = a.cu_q[request];
  r.rows = (request < a.B ? a.cu_q[request + 1] : static_cast<int32_t>(a.N)) - r.row;
  r.cached = (request < a.B ? a.length[request] : 0) - r.rows;
  return r;
}

/* Tiles of keys that a run of rows needs whose last position is `last`; at least one. */
template <class Form> PREFILL_FUNCTION int32_t tiles_up_to(int32_t last) {
  return max((last >> Form::tile_shift) + 1, 1);
}

/* First run of 2^shift rows of the request that needs `level` tiles or more; the number of runs where none does. */
template <class Form> PREFILL_FUNCTION int32_t first_run(const prefill_request &r, int32_t shift, int32_t level) {
  if (level <= 1) return 0;
  if (level > tiles_up_to<Form>(r.cached + r.rows - 1)) return (r.rows + (1 << shift) - 1) >> shift;
  const int32_t needed = ((level - 1) << Form::tile_shift) + 1 - r.cached; /* rows that reach so far */
  return needed <= 0 ? 0 : (needed - 1) >> shift;
}

template <class Form> struct prefill_walk {
  int32_t level;        /* tiles of keys */
  int32_t before, runs; /* runs of rows above this level, and in it */

  /* The highest level below `above` that has a run, and its runs. Warp. */
  PREFILL_FUNCTION void descend(const attention_params &a, int32_t above) {
    const int32_t shift = Form::run_shift(a);
    const int32_t lane = static_cast<int32_t>(lane_id());
    int32_t next = 0;
    ASSAY_ROLLED
    for (int32_t first = 0; first <= a.B; first += 32) {
      const prefill_request r = prefill_request_of(a, first + lane);
      const int32_t run = first_run<Form>(r, shift, above); /* runs below `above` */
      if (run > 0) next = max(next, tiles_up_to<Form>(r.cached + min(run << shift, r.rows) - 1));
    }
    level = warp_max(next);
    int32_t count = 0;
    ASSAY_ROLLED
    for (int32_t first = 0; first <= a.B && level > 0; first += 32) {
      const prefill_request r = prefill_request_of(a, first + lane);
      count += first_run<Form>(r, shift, level + 1) - first_run<Form>(r, shift, level);
    }
    runs = warp_sum(count);
  }

  PREFILL_FUNCTION void start(const attention_params &a) {
    before = 0;
    descend(a, INT32_MAX);
  }

  /* Item number `number`, which does not fall from call to call. Warp; the same in every lane. */
  PREFILL_FUNCTION prefill_item item(const attention_params &a, int32_t number) {
    const int32_t shift = Form::run_shift(a), heads = Form::items_a_run(a);
    prefill_item found = {0, 0, 0, 0, 0, 0, 0};
    const int32_t run = number / heads;
    while (level > 0 && run >= before + runs) {
      before += runs;
      descend(a, level);
    }
    if (level <= 0) return found;
    const int32_t lane = static_cast<int32_t>(lane_id());
    int32_t at = run - before;
    ASSAY_ROLLED
    for (int32_t first = 0; first <= a.B; first += 32) {
      const prefill_request r = prefill_request_of(a, first + lane);
      const int32_t low = first_run<Form>(r, shift, level), mine = first_run<Form>(r, shift, level + 1) - low;
      int32_t sum = mine; /* of this lane and those below */
      ASSAY_UNROLL
      for (unsigned step = 1; step < 32; step *= 2) {
        const int32_t below = __shfl_up_sync(0xffffffffu, sum, step);
        if (lane >= static_cast<int32_t>(step)) sum += below;
      }
      const unsigned past = __ballot_sync(0xffffffffu, at < sum);
      if (past == 0) {
        at -= __shfl_sync(0xffffffffu, sum, 31);
        continue;
      }
      const int owner = __ffs(static_cast<int>(past)) - 1;
      const int32_t offset = (low + at - (sum - mine)) << shift;
      found.row = __shfl_sync(0xffffffffu, r.row + offset, owner);
      found.rows = __shfl_sync(0xffffffffu, min(r.rows - offset, 1 << shift), owner);
      found.position = __shfl_sync(0xffffffffu, r.cached + offset, owner);
      found.request = first + owner;
      break;
    }
    found.head = (number - run * heads) * Form::heads_an_item(a);
    found.end = level;
    if (a.window > 0) found.begin = max(found.position - a.window + 1, 0) >> Form::tile_shift;
    found.begin = min(found.begin, found.end - 1);
    return found;
  }
};

} // namespace ASSAY_NS
#endif
