/* prefill_wgmma_items.cuh: the work list of a prefill over a ragged batch, made on the device by every warp that needs
 * it from cu_q and the lengths alone, so that a captured graph may be replayed with others: no list in memory, no
 * counter, no order of arrival.
 *
 * An item is a run of query rows of one request, for a pair of heads that share its keys or for one head. Items are
 * numbered from the most key tiles to the fewest (levels), in a level by request and row, and at last by heads.
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
  return ((a.N >> Form::run_shift(a)) + a.B) * Form::items_a_run(a);
}

/* A request's rows, and the keys before them. */
struct prefill_request {
  int32_t row, rows, cached;
};

PREFILL_FUNCTION prefill_request prefill_request_of(const attention_params &a, int32_t request) {
  prefill_request r = {0, 0, 0};
  if (request >= a.B) return r;
  r.row = a.cu_q[request];
  r.rows = a.cu_q[request + 1] - r.row;
  r.cached = a.length[request] - r.rows;
  return r;
}

/* Tiles of keys that a run of rows needs whose last position is `last`; at least one. */
template <class Form> PREFILL_FUNCTION int32_t tiles_up_to(int32_t last) {
  return max((last >> Form::tile_shift) + 1, 1);
}

/* Runs of 2^shift rows. */
PREFILL_FUNCTION int32_t runs_of(int32_t rows, int32_t shift) {
  return (rows + (1 << shift) - 1) >> shift;
}

/* First run of 2^shift rows of the request that needs `level` tiles or more; the number of runs where none does. */
template <class Form> PREFILL_FUNCTION int32_t first_run(const prefill_request &r, int32_t shift, int32_t level) {
  if (level <= 1) return 0;
  if (level > tiles_up_to<Form>(r.cached + r.rows - 1)) return runs_of(r.rows, shift);
  const int32_t needed = ((level - 1) << Form::tile_shift) + 1 - r.cached; /* rows that reach so far */
  return needed <= 0 ? 0 : (needed - 1) >> shift;
}

/* A warp's place in the list, the same in every lane. `own` is what prefill_request_of has for the lane's number, for
 * whoever keeps it: only requests from 32 on are read again. */
template <class Form> struct prefill_walk {
  int32_t level;        /* tiles of keys; before the first item one more than any has, behind the last 0 */
  int32_t before, upto; /* runs of rows above this level, and with it */

  static PREFILL_FUNCTION prefill_request request_of(const attention_params &a, const prefill_request &own,
                                                     int32_t first) {
    return first == 0 ? own : prefill_request_of(a, first + static_cast<int32_t>(lane_id()));
  }

  PREFILL_FUNCTION void start(const attention_params &a, const prefill_request &own) {
    int32_t highest = 1;
    ASSAY_ROLLED
    for (int32_t first = 0; first < a.B; first += 32) {
      const prefill_request r = request_of(a, own, first);
      if (r.rows > 0) highest = max(highest, tiles_up_to<Form>(r.cached + r.rows - 1));
    }
    level = __reduce_max_sync(0xffffffffu, highest) + 1;
    before = upto = 0;
  }

  /* Runs of `from` or above. */
  PREFILL_FUNCTION int32_t runs_from(const attention_params &a, const prefill_request &own, int32_t from) const {
    const int32_t shift = Form::run_shift(a);
    int32_t count = 0;
    ASSAY_ROLLED
    for (int32_t first = 0; first < a.B; first += 32) {
      const prefill_request r = request_of(a, own, first);
      count += runs_of(r.rows, shift) - first_run<Form>(r, shift, from);
    }
    return __reduce_add_sync(0xffffffffu, count);
  }

  /* To the level of run number `run`, which does not lie above this one: down in steps that double until it is passed,
   * then by halves. */
  PREFILL_FUNCTION void find(const attention_params &a, const prefill_request &own, int32_t run) {
    if (run < upto) return;
    int32_t low = 0, above = level;
    before = upto;
    ASSAY_ROLLED
    for (int32_t step = 1; above - low > 1; step *= 2) {
      const int32_t middle = max(above - step, (above + low) / 2), count = runs_from(a, own, middle);
      if (count > run) {
        low = middle;
        upto = count;
      } else {
        above = middle;
        before = count;
      }
    }
    level = low;
  }

  /* Item number `number`, which does not fall from call to call. */
  PREFILL_FUNCTION prefill_item item(const attention_params &a, const prefill_request &own, int32_t number) {
    const int32_t shift = Form::run_shift(a), heads = Form::items_a_run(a);
    prefill_item found = {0, 0, 0, 0, 0, 0, 0};
    const int32_t run = number / heads;
    find(a, own, run);
    if (level <= 0) return found;
    const int32_t lane = static_cast<int32_t>(lane_id());
    int32_t at = run - before; /* among the runs of this level that are left */
    ASSAY_ROLLED
    for (int32_t first = 0; first < a.B; first += 32) {
      const prefill_request r = request_of(a, own, first);
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
