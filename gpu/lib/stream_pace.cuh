/* stream_pace.cuh: keeps the warps of a streamed decode abreast, so that they finish together.
 *
 * Memory serves some multiprocessors up to a fifth faster than others, and they are the same ones in every launch. It
 * also serves some warps of a thread block faster than the rest. These would finish early, and then too few would read
 * the rest to keep memory busy. Therefore the warps of a thread block wait for each other every few rounds. A warp also
 * asks for its next block no sooner than an even pace allows. An even pace is the time that memory takes for the keys
 * of all rows, divided by the number of blocks of this warp. A warp that is late does not wait. A row that is shorter
 * than others goes on more slowly.
 *
 * The pace decides only when something is read. Lengths are therefore read before it is the launch's turn. */
#ifndef ASSAY_GPU_LIB_STREAM_PACE_CUH
#define ASSAY_GPU_LIB_STREAM_PACE_CUH

#include "gpu/lib/stream.cuh"

namespace ASSAY_NS {

/* Returns the number of blocks of 16 keys of all rows and kv heads, counted before it is the launch's turn. Returns 0
 * if rows share their first block: what many rows share comes from L2, and has no pace to keep. The whole warp must
 * call it. */
__device__ __forceinline__ int32_t stream_all_blocks(const attention_params &a, const stream_place &at) {
  const int32_t lane = static_cast<int32_t>(threadIdx.x % 32), N = static_cast<int32_t>(a.N);
  const int32_t *const table = a.cache.table;
  const int32_t other = at.row + 1 < N ? at.row + 1 : 0;
  const int32_t first = load_early(table + at.row * a.cache.table_row),
                same = load_early(table + other * a.cache.table_row);
  int32_t blocks = 0;
  ASSAY_ROLLED
  for (int32_t row = lane; row < N; row += 32) {
    const row_keys keys = early_keys_of_row(a, row);
    blocks += keys.last < keys.first ? 0 : keys.last / stream_keys + 1 - keys.first / stream_keys;
  }
  blocks = __reduce_add_sync(all_lanes, blocks);
  return N > 1 && first == same ? 0 : blocks * a.H_kv;
}

/* The pace of a warp's run. */
struct stream_pace {
  static constexpr int32_t together = 2; /* rounds after which the warps of a thread block wait for each other */
  static constexpr int32_t few = 8;      /* rounds; with fewer in common the warps keep no pace and do not wait */
  static constexpr int32_t free = 4;     /* rounds without a pace, which show how fast the warp is */
  static constexpr int32_t phases = 16, apart = 7;
  static constexpr float early = 1000.0f;  /* ns; the last round comes this much sooner than even */
  static constexpr float behind = 1.08f;   /* times even; round_ns never makes a round longer */
  static constexpr float slowest = 2.0f;   /* times a free round; no pace is slower, whatever the lengths are */
  static constexpr float small = 14000.0f; /* ns; L2 may still hold a smaller amount, and that has no pace */

#ifdef ASSAY_SIMT
  static constexpr bool on_simt = true; /* on simt all cases are small */
#else
  static constexpr bool on_simt = false;
#endif

  const int32_t *blocks;    /* result of stream_all_blocks, in shared memory */
  float block_ns, round_ns; /* as in stream_speed */
  int32_t own, common;      /* rounds of this warp; rounds that all warps of the block have, 0: no pace */
  int32_t row, done;
  uint32_t begun; /* clock_ns() */
  float each;     /* ns per round; 0: keeps no pace */

  __device__ __forceinline__ void begin(const stream_run &run, const int32_t *all_blocks, float of_block,
                                        float of_round) {
    blocks = all_blocks;
    block_ns = of_block;
    round_ns = of_round;
    own = run.begin < run.end ? (run.end - run.begin + run.step - 1) / run.step : 0;
    common = (run.end - run.origin) / run.step;
    if (common < few) common = 0; /* testing block_ns here as well makes a call up to 2 us slower on an H200 */
    row = run.request;
    done = 0;
    each = 0.0f;
    begun = clock_ns();
  }

  /* Waits until the pace allows the next round. It is called between the loads of a round. more: there is a next
   * round. */
  __device__ __forceinline__ void hold(bool more) {
    ++done;
    if (!more || done < free || each == 0.0f) return;
    if (done == free) {
      each = fminf(each, slowest / free * static_cast<float>(clock_ns() - begun));
      /* Rows are offset in time. Heads of a row are not, since they read the same lines of memory. */
      const float phase = static_cast<float>(apart * row % phases) / phases - 0.5f;
      begun += static_cast<uint32_t>(static_cast<int32_t>(each * phase));
    }
    /* stream_plan.h ensures that the product fits. A warp that is 2^31 ns late or more is taken to be early. */
    const uint32_t due = begun + static_cast<uint32_t>(each * static_cast<float>(done));
    while (static_cast<int32_t>(clock_ns() - due) < 0)
      __nanosleep(20);
  }

  /* Waits for the other warps of the thread block after a round's loads, and sets the pace after round `together`. */
  __device__ __forceinline__ void abreast() {
    if (done > common || done % together != 0) return;
    __syncthreads(); /* all warps have reached this round; the blocks are counted */
    if (done != together) return;
    const float all = block_ns > 0.0f ? static_cast<float>(blocks[0]) * block_ns : 0.0f;
    const float even = all / static_cast<float>(own);
    if (all > (on_simt ? 0.0f : small))
      each = fminf(fmaxf(even - early / static_cast<float>(own), round_ns), behind * even);
    else
      common = 0; /* the same for all warps */
  }
};

/* Keeps no pace. */
struct stream_no_pace {
  __device__ __forceinline__ void hold(bool) const {}
  __device__ __forceinline__ void abreast() const {}
};

} // namespace ASSAY_NS
#endif
