/* prefill_wgmma_items.cuh: the work list of a prefill over a ragged batch. Every warp that needs the list computes it
 * on the device, from cu_q and the lengths alone. A captured graph may therefore be replayed with other lengths. There
 * is no list in memory, no counter and no order of arrival.
 *
 * An item is a run of query rows of one request, for a pair of heads that share its keys or for one head. Items are
 * numbered from the most key tiles to the fewest (levels), within a level by request and row, and finally by heads.
 *
 * A run has lines. A line is a query row. Where a group of heads is packed, a line is a query row and a head of the
 * group: line = row * lines(a) + head.
 *
 * A schedule provides its Form:
 *
 *   tile_keys           keys per tile
 *   run(a)              lines per run: run_shifted or run_fixed
 *   lines(a)            lines per query row
 *   row_of(a, line)     line / lines(a)
 *   heads_an_item(a), items_a_run(a)   query heads beside each other per item, or kv heads; items of one run */
#ifndef ASSAY_GPU_LIB_PREFILL_WGMMA_ITEMS_CUH
#define ASSAY_GPU_LIB_PREFILL_WGMMA_ITEMS_CUH

#include <type_traits>

#include "gpu/lib/attention.h"
#include "gpu/lib/warp.cuh"

/* Inlined for the device, where arrays that are passed on must stay in registers. On simt, inlining would only slow the
 * compiler down. */
#ifdef ASSAY_SIMT
#define PREFILL_FUNCTION inline
#else
#define PREFILL_FUNCTION __device__ __forceinline__
#endif

namespace ASSAY_NS {

struct prefill_item {
  int32_t row, rows;     /* first query row of the batch, and number of rows */
  int32_t position;      /* place of the first row among the request's keys; negative: it sees none */
  int32_t begin, end;    /* tiles of keys: begin <= tile < end, at least one */
  int32_t head, request; /* first query head; end 0: there are no more items */
};

/* A run of lines, which may begin within a row. */
struct packed_item : prefill_item {
  int32_t skip; /* lines of the first query row that belong to the run before; rows counts lines, head is a kv head */
  int32_t low;  /* whether no line sees the upper half of the last tile */
};

/* The number of lines of a run: a power of two, or a constant. whole(): whole runs of so many lines. */
struct run_shifted {
  int32_t shift;
  template <class Count> __host__ __device__ Count whole(Count lines) const { return lines >> shift; }
  __host__ __device__ int32_t lines() const { return 1 << shift; }
};
template <int32_t count> struct run_fixed {
  template <class Count> __host__ __device__ Count whole(Count lines) const { return lines / count; }
  __host__ __device__ int32_t lines() const { return count; }
};

/* Returns an upper limit for the number of items, whatever cu_q and the lengths are. */
template <class Form> inline int64_t most_items(const attention_params &a) {
  return (Form::run(a).whole(a.N * Form::lines(a)) + a.B) * Form::items_a_run(a);
}

/* A request's rows, and the number of keys before them. */
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

/* Returns the number of tiles of keys, at least one, that a run of rows needs whose last position is `last`. */
template <class Form> PREFILL_FUNCTION int32_t tiles_up_to(int32_t last) {
  return max(last / Form::tile_keys + 1, 1);
}

/* Returns the number of runs that so many lines are. */
template <class Run> PREFILL_FUNCTION int32_t runs_of(int32_t lines, Run run) {
  return run.whole(lines + run.lines() - 1);
}

/* Returns the request's first run that needs `level` tiles or more, or the number of runs if none does. lines: per
 * query row. */
template <class Form, class Run>
PREFILL_FUNCTION int32_t first_run(const prefill_request &r, int32_t lines, Run run, int32_t level) {
  if (level <= 1) return 0;
  if (level > tiles_up_to<Form>(r.cached + r.rows - 1)) return runs_of(r.rows * lines, run);
  const int32_t needed = (level - 1) * Form::tile_keys + 1 - r.cached; /* rows that reach this far */
  return needed <= 0 ? 0 : run.whole((needed - 1) * lines);
}

/* A warp's place in the list, the same in every lane. `own` is the result of prefill_request_of for the lane's number,
 * kept by the caller. Only requests from 32 on are read again. */
template <class Form> struct prefill_walk {
  int32_t level;        /* tiles of keys; one more than any item has before the first item, 0 after the last */
  int32_t before, upto; /* runs of rows above this level, and including it */

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

  /* Returns the number of runs of level `from` or above. */
  PREFILL_FUNCTION int32_t runs_from(const attention_params &a, const prefill_request &own, int32_t from) const {
    const auto size = Form::run(a);
    const int32_t lines = Form::lines(a);
    int32_t count = 0;
    ASSAY_ROLLED
    for (int32_t first = 0; first < a.B; first += 32) {
      const prefill_request r = request_of(a, own, first);
      count += runs_of(r.rows * lines, size) - first_run<Form>(r, lines, size, from);
    }
    return __reduce_add_sync(0xffffffffu, count);
  }

  /* Moves to the level of run number `run`, which must not lie above the current level. It goes down in steps that
   * double until the level is passed, then by halves. */
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

  PREFILL_FUNCTION typename Form::item item(const attention_params &a, const prefill_request &own, int32_t number) {
    return item(a, own, number, Form::items_a_run(a));
  }

  /* Returns item number `number`, which must not decrease from call to call. heads: items per run. */
  PREFILL_FUNCTION typename Form::item item(const attention_params &a, const prefill_request &own, int32_t number,
                                            int32_t heads) {
    const auto size = Form::run(a);
    const int32_t lines = Form::lines(a);
    typename Form::item found = {};
    const int32_t run = number / heads;
    find(a, own, run);
    if (level <= 0) return found;
    const int32_t lane = static_cast<int32_t>(lane_id());
    int32_t at = run - before; /* index among the remaining runs of this level */
    ASSAY_ROLLED
    for (int32_t first = 0; first < a.B; first += 32) {
      const prefill_request r = request_of(a, own, first);
      const int32_t low = first_run<Form>(r, lines, size, level);
      const int32_t mine = first_run<Form>(r, lines, size, level + 1) - low;
      int32_t sum = mine; /* sum of this lane and the lanes below it */
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
      const int32_t offset = (low + at - (sum - mine)) * size.lines(), row = Form::row_of(a, offset);
      found.row = __shfl_sync(0xffffffffu, r.row + row, owner);
      found.rows = __shfl_sync(0xffffffffu, min(r.rows * lines - offset, size.lines()), owner);
      found.position = __shfl_sync(0xffffffffu, r.cached + row, owner);
      if constexpr (std::is_same_v<typename Form::item, packed_item>)
        found.skip = __shfl_sync(0xffffffffu, offset - row * lines, owner);
      found.request = first + owner;
      break;
    }
    found.head = (number - run * heads) * Form::heads_an_item(a);
    found.end = level;
    if (a.window > 0) found.begin = max(found.position - a.window + 1, 0) / Form::tile_keys;
    found.begin = min(found.begin, found.end - 1);
    return found;
  }
};

} // namespace ASSAY_NS
#endif
