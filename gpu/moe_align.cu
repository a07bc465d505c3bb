/* moe_align.cu: slots sorted by expert, in padded segments. The definition is in ref/moe_align.c's head and in
 * docs/definitions.md, section 10.
 *
 * by_expert: three launches. A block per expert counts its slots. One warp adds the counts up. A block per expert
 * writes its segment.
 * by_count: two launches, for few slots one. A block counts its part of the slots per expert. Then each warp writes its
 * part of the slots, each at the place that the counts before it leave.
 * A slot whose id or map is out of range has no expert: no write leaves the outputs.
 * docs/kernels/moe_align.md has the arithmetic. */
#include "gpu/lib/launch.h"
#include "gpu/lib/plain.h"
#include "gpu/lib/ptx_async.cuh"
#include "gpu/lib/warp.cuh"

namespace ASSAY_NS {
namespace {

constexpr int align_threads = 256, align_warps = align_threads / 32;

struct align_params {
  const int32_t *ids, *map; /* map NULL: the identity */
  int32_t *counts, *offsets, *order, *row_expert, *pos;
  int32_t slots, E, E_l, P, align, mark;
};

/* Returns the local expert of a slot, or -1. */
__device__ __forceinline__ int32_t align_local(const align_params &p, int32_t slot) {
  int32_t id = p.ids[slot];
  if (id < 0 || id >= p.E) return -1;
  if (p.map != nullptr) id = p.map[id];
  return id < p.E_l ? id : -1;
}

/* Returns the number of threads before this one whose flag is set, and their number in the block. `before` holds a
 * number per warp. Every thread of the block must come; between two calls there is a barrier. */
struct block_rank {
  int32_t rank, total;
};

__device__ __forceinline__ block_rank rank_in_block(bool flag, int32_t (&before)[align_warps]) {
  const int32_t lane = static_cast<int32_t>(threadIdx.x) % 32, warp = static_cast<int32_t>(threadIdx.x) / 32;
  const unsigned mask = __ballot_sync(0xffffffffu, flag);
  if (lane == 0) before[warp] = __popc(mask);
  __syncthreads(); /* every warp's number is written */
  block_rank found = {__popc(mask & ((1u << lane) - 1)), 0};
  ASSAY_UNROLL
  for (int w = 0; w < align_warps; ++w) {
    if (w < warp) found.rank += before[w];
    found.total += before[w];
  }
  __syncthreads(); /* the numbers have been read */
  return found;
}

/* align_count: counts the slots of an expert.
 * Grid:   (E_l). Block: 256 threads.
 * Shared: 32 bytes.
 * Align:  by element.
 * Arch:   any.
 * Limit:  bytes: 4 per slot and expert, from L2. */
__global__ void __launch_bounds__(align_threads) align_count(align_params p) {
  ASSAY_SHARED(int32_t, before, align_warps);
  const int32_t expert = static_cast<int32_t>(blockIdx.x);
  int32_t count = 0;
  for (int64_t first = 0; first < p.slots; first += align_threads) {
    const int64_t slot = first + static_cast<int32_t>(threadIdx.x);
    count += rank_in_block(slot < p.slots && align_local(p, static_cast<int32_t>(slot)) == expert, before).total;
  }
  if (threadIdx.x == 0) p.counts[expert] = count;
}

/* align_offsets: adds the padded counts up.
 * Grid:   1. Block: 32 threads.
 * Shared: none.
 * Align:  by element.
 * Arch:   any.
 * Limit:  bytes: 8 per expert. */
__global__ void __launch_bounds__(32) align_offsets(align_params p) {
  const int32_t lane = static_cast<int32_t>(threadIdx.x);
  int32_t total = 0;
  if (lane == 0) p.offsets[0] = 0;
  for (int32_t first = 0; first < p.E_l; first += 32) {
    const int32_t expert = first + lane;
    int32_t sum = expert < p.E_l ? (p.counts[expert] + p.align - 1) / p.align * p.align : 0;
    ASSAY_UNROLL
    for (int step = 1; step < 32; step *= 2) {
      const int32_t other = __shfl_up_sync(0xffffffffu, sum, static_cast<unsigned>(step));
      if (lane >= step) sum += other;
    }
    if (expert < p.E_l) p.offsets[expert + 1] = total + sum;
    total += __shfl_sync(0xffffffffu, sum, 31);
  }
}

/* align_scatter: writes an expert's segment, slots ascending, and its padding. The last block writes
 * the rows after the last segment, and pos of slots without an expert.
 * Grid:   (E_l + 1). Block: 256 threads.
 * Shared: 32 bytes.
 * Align:  by element.
 * Arch:   any.
 * Limit:  bytes: 4 per slot and expert, from L2; 8 per row and 4 per slot written. */
__global__ void __launch_bounds__(align_threads) align_scatter(align_params p) {
  ASSAY_SHARED(int32_t, before, align_warps);
  const int32_t expert = static_cast<int32_t>(blockIdx.x), thread = static_cast<int32_t>(threadIdx.x);
  const bool nobody = expert == p.E_l;
  int32_t row = nobody ? p.offsets[p.E_l] : p.offsets[expert];
  for (int64_t first = 0; first < p.slots; first += align_threads) {
    const int64_t slot = first + thread;
    const int32_t local = slot < p.slots ? align_local(p, static_cast<int32_t>(slot)) : -2;
    if (nobody) {
      if (local == -1) p.pos[slot] = -1;
      continue;
    }
    const block_rank at = rank_in_block(local == expert, before);
    if (local == expert) {
      p.order[row + at.rank] = static_cast<int32_t>(slot);
      p.row_expert[row + at.rank] = expert;
      p.pos[slot] = row + at.rank;
    }
    row += at.total;
  }
  const int32_t end = nobody ? p.P : p.offsets[expert + 1];
  for (int64_t padding = row + static_cast<int64_t>(thread); padding < end; padding += align_threads) {
    p.order[padding] = p.mark;
    p.row_expert[padding] = -1;
  }
}

assay_status read_call(const assay_call *call, align_params *p, assay_error *error) {
  plain_call c;
  *p = align_params();
  ASSAY_TRY(plain_read(call, &c, error));
  const int64_t slots = c.dim("T") * c.dim("k"), experts = c.dim("E_l"), align = c.integer("align");
  const int64_t least = slots + (experts < slots ? experts : slots) * (align - 1);
  if (c.dim("P") < least)
    return assay_fail(error, ASSAY_ERR_INPUT, "P: found %" PRId64 ", allowed from %" PRId64 " on", c.dim("P"), least);
  p->ids = c.data<const int32_t>("ids");
  p->map = c.data<const int32_t>("expert_map");
  p->counts = c.data<int32_t>("counts");
  p->offsets = c.data<int32_t>("offsets");
  p->order = c.data<int32_t>("order");
  p->row_expert = c.data<int32_t>("row_expert");
  p->pos = c.data<int32_t>("pos");
  p->slots = static_cast<int32_t>(slots);
  p->E_l = static_cast<int32_t>(experts);
  p->E = p->map != NULL ? c.dim32("E") : p->E_l;
  p->P = c.dim32("P");
  p->align = static_cast<int32_t>(align);
  p->mark = c.flag("padding") ? p->slots : -1;
  return ASSAY_OK;
}

assay_status launch(const assay_call *call, assay_env *env, assay_error *error) {
  align_params p;
  ASSAY_TRY(read_call(call, &p, error));
  (void)snprintf(env->path, sizeof env->path, "by_expert");
  ASSAY_TRY(ASSAY_LAUNCH(error, align_count, p.E_l, align_threads, 0, env->stream, p));
  ASSAY_TRY(ASSAY_LAUNCH(error, align_offsets, 1, 32, 0, env->stream, p));
  return ASSAY_LAUNCH(error, align_scatter, p.E_l + 1, align_threads, 0, env->stream, p);
}

/* ---- by_count ---------------------------------------------------------------------------------------- */

constexpr int sort_threads = 512, sort_warps = sort_threads / 32, sort_most_blocks = 32, sort_alone = 4;

/* Slots are cut into blocks, and these into warps, of neighbouring slots. */
struct sort_params {
  align_params a;
  int32_t *partial; /* blocks x E_l: the slots of each block by expert; not used by one block alone */
  int32_t blocks, steps, bits;
};

/* Returns the slot of a lane in a step of its warp. */
__device__ __forceinline__ int64_t sort_slot(const sort_params &p, int32_t step) {
  const int64_t block = p.blocks > 1 ? blockIdx.x : 0, warp = block * sort_warps + threadIdx.x / 32;
  return (warp * p.steps + step) * 32 + threadIdx.x % 32;
}

/* Returns its expert, or -1. */
__device__ __forceinline__ int32_t sort_local(const sort_params &p, int64_t slot) {
  return slot < p.a.slots ? align_local(p.a, static_cast<int32_t>(slot)) : -1;
}

/* sort_count: counts the slots of a block by expert.
 * Grid:   blocks of slots, 32 at most. Block: 512 threads.
 * Shared: 4 E_l bytes.
 * Align:  by element.
 * Arch:   any.
 * Limit:  bytes: 4 per slot, and 4 per block and expert. */
__global__ void __launch_bounds__(sort_threads) sort_count(sort_params p) {
  ASSAY_DYNAMIC_SHARED(int32_t, count);
  take_turn();
  for (int32_t e = static_cast<int32_t>(threadIdx.x); e < p.a.E_l; e += sort_threads)
    count[e] = 0;
  __syncthreads(); /* every count is 0 */
  for (int32_t step = 0; step < p.steps; ++step) {
    const int32_t local = sort_local(p, sort_slot(p, step));
    if (local >= 0) atomicAdd(&count[local], 1);
  }
  __syncthreads(); /* every slot is counted */
  for (int32_t e = static_cast<int32_t>(threadIdx.x); e < p.a.E_l; e += sort_threads)
    p.partial[static_cast<int64_t>(blockIdx.x) * p.a.E_l + e] = count[e];
}

/* Returns the sum of `value` over the threads up to this one. `sums` holds a number per warp, and becomes that of the
 * warps up to it. Every thread of the block must come; between two calls there is a barrier. */
__device__ __forceinline__ int32_t sum_up_to(int32_t value, int32_t (&sums)[sort_warps]) {
  const int32_t lane = static_cast<int32_t>(threadIdx.x) % 32, warp = static_cast<int32_t>(threadIdx.x) / 32;
  ASSAY_UNROLL
  for (int step = 1; step < 32; step *= 2) {
    const int32_t other = __shfl_up_sync(0xffffffffu, value, static_cast<unsigned>(step));
    if (lane >= step) value += other;
  }
  if (lane == 31) sums[warp] = value;
  __syncthreads(); /* every warp's sum is written */
  int32_t before = 0;
  ASSAY_UNROLL
  for (int w = 0; w < sort_warps; ++w)
    if (w < warp) before += sums[w];
  return value + before;
}

/* Returns the lanes whose value is that of this lane. Values have `bits` bits. */
__device__ __forceinline__ unsigned same_value(int32_t value, int32_t bits) {
  unsigned same = 0xffffffffu;
  for (int32_t bit = 0; bit < bits; ++bit) {
    const bool on = (value >> bit & 1) != 0;
    const unsigned those = __ballot_sync(0xffffffffu, on);
    same &= on ? those : ~those;
  }
  return same;
}

/* Turns row[w * E_l + e], the slots of warp w by expert, into the row of the first of them. Leaves the end of each
 * expert's slots in `end`, and returns the end of the last segment. The first block writes counts and offsets. */
__device__ __forceinline__ int32_t place_warps(const sort_params &p, int32_t *row, int32_t *end) {
  ASSAY_SHARED(int32_t, sums, sort_warps);
  ASSAY_SHARED(int32_t, all, 1);
  const int32_t block = static_cast<int32_t>(blockIdx.x), E_l = p.a.E_l;
  int32_t done = 0;
  for (int32_t first = 0; first < E_l; first += sort_threads) {
    const int32_t e = first + static_cast<int32_t>(threadIdx.x);
    int32_t total = 0, earlier = 0;
    if (e < E_l && p.blocks == 1)
      for (int32_t w = 0; w < sort_warps; ++w)
        total += row[w * E_l + e];
    if (e < E_l && p.blocks > 1) {
      ASSAY_UNROLL
      for (int32_t b = 0; b < sort_most_blocks; ++b) {
        const int32_t count = b < p.blocks ? p.partial[static_cast<int64_t>(b) * E_l + e] : 0;
        total += count;
        if (b < block) earlier += count;
      }
    }
    const int32_t padded = (total + p.a.align - 1) / p.a.align * p.a.align;
    const int32_t upto = done + sum_up_to(padded, sums);
    if (threadIdx.x == sort_threads - 1) all[0] = upto;
    if (e < E_l) {
      const int32_t start = upto - padded;
      if (block == 0) {
        p.a.counts[e] = total;
        p.a.offsets[e + 1] = upto;
      }
      end[e] = start + total;
      int32_t at = start + earlier;
      for (int32_t w = 0; w < sort_warps; ++w) {
        const int32_t count = row[w * E_l + e];
        row[w * E_l + e] = at;
        at += count;
      }
    }
    __syncthreads(); /* `all` is written, and sums have been read */
    done = all[0];
  }
  return done;
}

/* Writes padding rows: those of the segments that are this block's, and its part of those after the last segment. */
__device__ __forceinline__ void pad_rows(const sort_params &p, const int32_t *end, int32_t last) {
  const int32_t lane = static_cast<int32_t>(threadIdx.x) % 32, warp = static_cast<int32_t>(threadIdx.x) / 32;
  const int32_t align = p.a.align, blocks = static_cast<int32_t>(gridDim.x);
  for (int32_t e = static_cast<int32_t>(blockIdx.x) + blocks * warp; e < p.a.E_l; e += blocks * sort_warps) {
    const int32_t stop = (end[e] + align - 1) / align * align; /* segments begin at multiples */
    for (int32_t row = end[e] + lane; row < stop; row += 32) {
      p.a.order[row] = p.a.mark;
      p.a.row_expert[row] = -1;
    }
  }
  const int64_t thread = static_cast<int64_t>(blockIdx.x) * sort_threads + threadIdx.x;
  for (int64_t row = last + thread; row < p.a.P; row += static_cast<int64_t>(blocks) * sort_threads) {
    p.a.order[row] = p.a.mark;
    p.a.row_expert[row] = -1;
  }
}

/* sort_scatter: writes each slot to its row, and the padding.
 * Grid:   as sort_count. With one block of slots: as many as the padding needs, 32 at most. Each counts the same slots,
 *         and the first one writes them. Block: 512 threads.
 * Shared: 68 E_l bytes: the next row of each warp and expert, the end of each expert's slots.
 * Align:  by element.
 * Arch:   any.
 * Limit:  bytes: 4 per slot and per block and expert read, 8 per row and 4 per slot written. */
__global__ void __launch_bounds__(sort_threads) sort_scatter(sort_params p) {
  ASSAY_DYNAMIC_SHARED(int32_t, scratch);
  take_turn();
  const int32_t thread = static_cast<int32_t>(threadIdx.x), lane = thread % 32, E_l = p.a.E_l;
  int32_t *const row = scratch, *const own = row + thread / 32 * E_l, *const end = row + sort_warps * E_l;
  for (int32_t i = thread; i < sort_warps * E_l; i += sort_threads)
    row[i] = 0;
  if (blockIdx.x == 0 && thread == 0) p.a.offsets[0] = 0;
  __syncthreads(); /* every count is 0 */
  for (int32_t step = 0; step < p.steps; ++step) {
    const int32_t local = sort_local(p, sort_slot(p, step));
    if (local >= 0) atomicAdd(&own[local], 1);
  }
  __syncthreads(); /* every slot is counted */
  const int32_t last = place_warps(p, row, end);
  const bool writes = p.blocks > 1 || blockIdx.x == 0;
  for (int32_t step = 0; step < p.steps && writes; ++step) {
    const int64_t slot = sort_slot(p, step);
    const int32_t local = sort_local(p, slot);
    const unsigned same = same_value(local < 0 ? E_l : local, p.bits);
    const int32_t rank = __popc(same & ((1u << lane) - 1));
    const int32_t at = local >= 0 ? own[local] + rank : -1;
    __syncwarp(); /* every lane has read */
    if (local >= 0) {
      if (rank == 0) own[local] = at + __popc(same);
      p.a.order[at] = static_cast<int32_t>(slot);
      p.a.row_expert[at] = local;
    }
    if (slot < p.a.slots) p.a.pos[slot] = at;
    __syncwarp(); /* the next rows are written */
  }
  pad_rows(p, end, last);
}

assay_status read_sort(const assay_call *call, sort_params *p, assay_error *error) {
  *p = sort_params();
  ASSAY_TRY(read_call(call, &p->a, error));
  const int64_t wave = (static_cast<int64_t>(p->a.slots) + sort_threads - 1) / sort_threads;
  p->steps = static_cast<int32_t>(wave <= sort_alone ? wave : (wave + sort_most_blocks - 1) / sort_most_blocks);
  p->blocks = static_cast<int32_t>((wave + p->steps - 1) / p->steps);
  while (p->a.E_l >> p->bits != 0) /* E_l itself is the value of slots without an expert */
    ++p->bits;
  return ASSAY_OK;
}

int64_t sort_bytes(const sort_params &p) {
  return p.blocks > 1 ? static_cast<int64_t>(p.blocks) * p.a.E_l * 4 : 0;
}

assay_status sort_supports(const assay_call *call, assay_error *error) {
  sort_params p;
  return read_sort(call, &p, error);
}

assay_status sort_workspace(const assay_call *call, int64_t *bytes, assay_error *error) {
  sort_params p;
  ASSAY_TRY(read_sort(call, &p, error));
  *bytes = sort_bytes(p);
  return ASSAY_OK;
}

assay_status launch_sort(const assay_call *call, assay_env *env, assay_error *error) {
  sort_params p;
  ASSAY_TRY(read_sort(call, &p, error));
  ASSAY_TRY(expect_workspace(env, sort_bytes(p), error));
  p.partial = static_cast<int32_t *>(env->workspace);
  (void)snprintf(env->path, sizeof env->path, "by_count alone=%d", p.blocks == 1 ? 1 : 0);
  const int32_t experts = p.a.E_l * 4;
  if (p.blocks > 1)
    ASSAY_TRY(ASSAY_LAUNCH_WITH(error, sort_count, p.blocks, sort_threads, experts, in_turn(), env->stream, p));
  const int64_t pieces = (p.a.P + sort_threads - 1) / sort_threads;
  const int64_t grid = p.blocks > 1 ? p.blocks : pieces < sort_most_blocks ? pieces : sort_most_blocks;
  return ASSAY_LAUNCH_WITH(error, sort_scatter, grid, sort_threads, (sort_warps + 1) * experts, in_turn(), env->stream,
                           p);
}

constexpr assay_contract contract = {.qk_lanes = 1, .pv_lanes = 1, .run_to_run = true, .renumbering = true};

} // namespace
} // namespace ASSAY_NS

#define BY_EXPERT                                                                                                      \
  PLAIN_VARIANT("moe_align", "by_expert", "a block per expert, which looks at every slot", "minus_one,slots",          \
                contract, align_params, read_call, launch)

#define BY_COUNT                                                                                                       \
  {                                                                                                                    \
    sizeof(assay_variant), "moe_align", "by_count" ASSAY_VARIANT_SUFFIX, "slots counted and ranked by warps",          \
        ASSAY_DEVICE_NAME, "any", "minus_one,slots", ::ASSAY_NS::contract, ::ASSAY_NS::sort_supports,                  \
        ::ASSAY_NS::sort_workspace, ::ASSAY_NS::launch_sort                                                            \
  }

ASSAY_VARIANTS(moe_align, BY_COUNT, BY_EXPERT)
