/* stream_pace.cuh: keeps the warps of a streamed decode abreast, so that they end together.
 *
 * Memory serves some multiprocessors up to a fifth faster than others, the same ones in every launch, and some warps of
 * a thread block faster than the rest. They would end early, and what is left would be read by too few to keep memory
 * busy. So the warps of a thread block wait for each other every few rounds, and a warp asks for its next block no
 * sooner than an even pace has it: what memory takes for the keys of all rows, over the blocks that this warp has.
 * Whoever is late waits for nothing. A row that is shorter than others goes on more slowly.
 *
 * It decides when something is read, and nothing else: lengths are looked at before it is the launch's turn. */
#ifndef ASSAY_GPU_LIB_STREAM_PACE_CUH
#define ASSAY_GPU_LIB_STREAM_PACE_CUH

#include "gpu/lib/stream.cuh"

namespace ASSAY_NS {

/* Blocks of 16 keys of all rows and kv heads, before it is the launch's turn; 0 where rows share their first block:
 * what many rows share comes from L2, and has no pace to keep. By a whole warp. */
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
  static constexpr int32_t together = 2; /* rounds, behind which the warps of a thread block wait for each other */
  static constexpr int32_t few = 8;      /* rounds; with fewer in common the warps keep no pace, and wait for nobody */
  static constexpr int32_t free = 4;     /* rounds without it, which show how fast the warp is */
  static constexpr int32_t phases = 16, apart = 7;
  static constexpr float early = 1000.0f;  /* ns: the last round is so much sooner than even */
  static constexpr float behind = 1.08f;   /* of even: round_ns makes a round no longer */
  static constexpr float slowest = 2.0f;   /* times a free round: no pace is slower, whatever the lengths said */
  static constexpr float small = 14000.0f; /* ns; L2 may still hold what is read in less, and that has no pace */

#ifdef ASSAY_SIMT
  static constexpr bool on_simt = true; /* where all cases are small */
#else
  static constexpr bool on_simt = false;
#endif

  const int32_t *blocks;    /* stream_all_blocks, in shared memory */
  float block_ns, round_ns; /* stream_speed */
  int32_t own, common;      /* rounds: of this warp, that all warps of the thread block have; common 0: no pace */
  int32_t row, done;
  uint32_t begun; /* clock_ns() */
  float each;     /* ns a round; 0: it keeps no pace */

  __device__ __forceinline__ void begin(const stream_run &run, const int32_t *all_blocks, float of_block,
                                        float of_round) {
    blocks = all_blocks;
    block_ns = of_block;
    round_ns = of_round;
    own = run.begin < run.end ? (run.end - run.begin + run.step - 1) / run.step : 0;
    common = (run.end - run.origin) / run.step;
    if (common < few) common = 0; /* asking for block_ns here as well makes a call up to 2 us slower on an H200 */
    row = run.request;
    done = 0;
    each = 0.0f;
    begun = clock_ns();
  }

  /* Between the loads of a round; more: there is a next one. */
  __device__ __forceinline__ void hold(bool more) {
    ++done;
    if (!more || done < free || each == 0.0f) return;
    if (done == free) {
      each = fminf(each, slowest / free * static_cast<float>(clock_ns() - begun));
      /* Rows one after the other, heads of a row together: they read the same lines of memory. */
      const float phase = static_cast<float>(apart * row % phases) / phases - 0.5f;
      begun += static_cast<uint32_t>(static_cast<int32_t>(each * phase));
    }
    /* stream_plan.h sees to it that the product fits. Who is 2^31 ns late or more is taken to be early. */
    const uint32_t due = begun + static_cast<uint32_t>(each * static_cast<float>(done));
    while (static_cast<int32_t>(clock_ns() - due) < 0)
      __nanosleep(20);
  }

  /* Behind a round's loads. */
  __device__ __forceinline__ void abreast() {
    if (done > common || done % together != 0) return;
    __syncthreads(); /* all warps have come so far; the blocks have been counted */
    if (done != together) return;
    const float all = block_ns > 0.0f ? static_cast<float>(blocks[0]) * block_ns : 0.0f;
    const float even = all / static_cast<float>(own);
    if (all > (on_simt ? 0.0f : small))
      each = fminf(fmaxf(even - early / static_cast<float>(own), round_ns), behind * even);
    else
      common = 0; /* for all warps alike */
  }
};

/* None is held. */
struct stream_no_pace {
  __device__ __forceinline__ void hold(bool) const {}
  __device__ __forceinline__ void abreast() const {}
};

} // namespace ASSAY_NS
#endif
