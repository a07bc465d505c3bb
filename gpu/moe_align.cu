/* moe_align.cu: slots sorted by expert, in padded segments. The definition is in ref/moe_align.c's head and in
 * docs/definitions.md, section 10.
 *
 * by_expert: three launches. A block per expert counts its slots. One warp adds the counts up. A block per expert
 * writes its segment. A slot whose id or map is out of range has no expert: no write leaves the outputs.
 * docs/kernels/moe_align.md has the arithmetic. */
#include "gpu/lib/launch.h"
#include "gpu/lib/plain.h"
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

constexpr assay_contract contract = {.qk_lanes = 1, .pv_lanes = 1, .run_to_run = true, .renumbering = true};

} // namespace
} // namespace ASSAY_NS

#define BY_EXPERT                                                                                                      \
  PLAIN_VARIANT("moe_align", "by_expert", "a block per expert, which looks at every slot", "minus_one,slots",          \
                contract, align_params, read_call, launch)

ASSAY_VARIANTS(moe_align, BY_EXPERT)
