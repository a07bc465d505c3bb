/* simt_stream_pace_test.cpp: the pace of a streamed decode (stream_pace.cuh): when a warp is held, and when it is not;
 * and that no result depends on it. On simt a microsecond goes by from look to look at the clock. */
#include <criterion/criterion.h>

#include "simt_fixture.h"

#include "gpu/lib/softmax_stream.cuh"
#include "stream_problem.h"

TestSuite(simt_stream_pace, .init = open_simt, .timeout = 120);

constexpr float ms = 1e6f;          /* ns */
constexpr int32_t rounds_most = 16; /* in a test */
constexpr uint32_t looked = 3000;   /* ns: of a round that is not held */

/* Times seen by lane 0 of a warp, from its beginning: when it went on in each round, and how long it was held. The last
 * field is the final pace. */
struct seen {
  uint32_t begun, passed[rounds_most], held[rounds_most];
  float each;
  int32_t common;
};

/* Two warps of `blocks` blocks that look at the clock `looks` times in each round without a pace, and once in others.
 */
__global__ static void walk(int32_t blocks, int32_t row, int32_t all, float block_ns, float round_ns, int32_t looks,
                            int32_t looks_later, seen *to) {
  ASSAY_SHARED(int32_t, all_blocks, 1);
  if (threadIdx.x == 0) all_blocks[0] = all;
  const int32_t warp = static_cast<int32_t>(threadIdx.x / 32), warps = static_cast<int32_t>(blockDim.x / 32);
  const stream_run run = {row, 0, 0, stream_keys * blocks - 1, 0, warp, blocks, warps};
  stream_pace pace;
  pace.begin(run, all_blocks, block_ns, round_ns);
  seen mine = {pace.begun, {}, {}, 0.0f, 0};
  for (int32_t n = run.begin, round = 0; n < run.end; n += run.step, ++round) {
    for (int32_t i = 0; i < (round < stream_pace::free ? looks : looks_later); ++i)
      (void)clock_ns();
    if (round < blocks / warps) __syncthreads(); /* all threads have looked: time goes by for all alike */
    const uint32_t before = clock_ns();
    pace.hold(n + run.step < run.end);
    const uint32_t now = clock_ns();
    mine.passed[round] = now - mine.begun;
    mine.held[round] = now - before;
    pace.abreast();
  }
  mine.each = pace.each;
  mine.common = pace.common;
  if (threadIdx.x % 32 == 0) to[warp] = mine;
}

/* Nineteen blocks: ten rounds and nine. 60 looks of 64 lanes are 3.84 ms. */
static std::vector<seen> walked(int32_t row, int32_t all, float round_ns, int32_t looks = 60, int32_t looks_later = 0,
                                int32_t blocks = 19, float block_ns = 1000.0f) {
  std::vector<seen> warps(2);
  RUN(walk, 1, 64, 0, blocks, row, all, block_ns, round_ns, looks, looks_later, warps.data());
  return warps;
}

/* 50 ms in ten rounds, and nine: no round ends sooner than even, but the free ones and the last. */
Test(simt_stream_pace, no_sooner_than_even) {
  const float phases[] = {-0.5f, 7.0f / 16.0f - 0.5f, 14.0f / 16.0f - 0.5f, 5.0f / 16.0f - 0.5f};
  for (int32_t row = 0; row < 4; ++row) {
    const std::vector<seen> warps = walked(row, 50000, 0.0f);
    for (int32_t warp = 0; warp < 2; ++warp) {
      const seen &warp_seen = warps[static_cast<size_t>(warp)];
      const int32_t own = 10 - warp;
      const float each = (50.0f * ms - 1000.0f) / static_cast<float>(own); /* a microsecond early */
      cr_expect_float_eq(warp_seen.each, each, 10.0f, "%g", static_cast<double>(warp_seen.each));
      for (int32_t round = 1; round <= own; ++round) {
        const float passed = static_cast<float>(warp_seen.passed[round - 1]),
                    due = each * (static_cast<float>(round) + phases[row]);
        if (round < stream_pace::free || round == own)
          cr_expect_leq(warp_seen.held[round - 1], looked, "row %d, warp %d, round %d", row, warp, round);
        else
          cr_expect(passed >= 0.999f * due && passed < due + 0.6f * each, "row %d, warp %d, round %d: %g, due %g", row,
                    warp, round, static_cast<double>(passed), static_cast<double>(due));
      }
    }
  }
}

/* 300 looks a round are 19 ms, more than the pace has. */
Test(simt_stream_pace, who_is_late_is_not_held) {
  const std::vector<seen> warps = walked(1, 50000, 0.0f, 300, 300);
  for (const seen &warp_seen : warps) {
    cr_expect_gt(warp_seen.each, 0.0f);
    for (const uint32_t held : warp_seen.held)
      cr_expect_leq(held, looked);
  }
}

Test(simt_stream_pace, rounds_that_a_multiprocessor_cannot_have_sooner) {
  const float even = 5.0f * ms; /* the warp with ten rounds */
  cr_expect_float_eq(walked(0, 50000, 4.0f * ms)[0].each, even, 0.001f * even);
  cr_expect_float_eq(walked(0, 50000, 5.2f * ms)[0].each, 5.2f * ms, 0.001f * even);
  cr_expect_float_eq(walked(0, 50000, 9.0f * ms)[0].each, 1.08f * even, 0.001f * even);
}

/* Nothing makes a round twice as long as the free ones were, whatever the lengths said. */
Test(simt_stream_pace, not_below_half_the_speed) {
  const std::vector<seen> warps = walked(0, 50000000, 0.0f, 10);
  for (const seen &warp_seen : warps) {
    const float free = static_cast<float>(warp_seen.passed[stream_pace::free - 2]); /* after it the clock goes on */
    cr_expect_gt(warp_seen.each, 0.0f);
    cr_expect(warp_seen.each >= 0.5f * free && warp_seen.each < 0.5f * free + ms, "%g after %g",
              static_cast<double>(warp_seen.each), static_cast<double>(free)); /* four rounds, times two */
  }
}

/* Without a pace no warp waits for others, and both warps are alike. */
Test(simt_stream_pace, none_to_keep) {
  const auto none = [](const std::vector<seen> &warps, const char *why) {
    for (const seen &warp_seen : warps) {
      cr_expect_eq(warp_seen.each, 0.0f, "%s", why);
      cr_expect_eq(warp_seen.common, 0, "%s: waits in %d rounds", why, warp_seen.common);
    }
  };
  none(walked(0, 50000, ms, 60, 0, 14), "seven rounds");
  none(walked(0, 50000, ms, 60, 0, 15), "eight rounds, and seven");
  none(walked(0, 0, ms), "no blocks were counted");
  none(walked(0, 50000, ms, 60, 0, 19, 0.0f), "not asked for");
  for (const seen &warp_seen : walked(0, 50000, ms, 60, 0, 16)) {
    cr_expect_gt(warp_seen.each, 0.0f, "eight rounds");
    cr_expect_eq(warp_seen.common, 8);
  }
}

/* Returns by how many rounds at most the first warp is ahead of the last. They are the warps of `blocks` blocks from
 * block `origin` on, and wait for nothing else. */
__global__ static void run_on(int32_t blocks, int32_t origin, int32_t *lead) {
  constexpr int32_t most_warps = 4;
  ASSAY_SHARED(int32_t, all_blocks, 1);
  ASSAY_SHARED(int32_t, rounds, most_warps);
  const int32_t warp = static_cast<int32_t>(threadIdx.x / 32), warps = static_cast<int32_t>(blockDim.x / 32);
  const bool leader = threadIdx.x % 32 == 0;
  if (threadIdx.x == 0) all_blocks[0] = 50000;
  if (leader) rounds[warp] = 0;
  __syncthreads();
  const stream_run run = {
      0, 0, stream_keys * origin, stream_keys * (origin + blocks) - 1, origin, origin + warp, origin + blocks, warps};
  stream_pace pace;
  pace.begin(run, all_blocks, 1000.0f, 0.0f);
  for (int32_t n = run.begin; n < run.end; n += run.step) {
    if (leader) {
      const int32_t mine = atomicAdd(rounds + warp, 1) + 1;
      for (int32_t other = 0; other < warps; ++other)
        atomicMax(lead, mine - atomicAdd(rounds + other, 0));
    }
    pace.hold(n + run.step < run.end);
    pace.abreast();
  }
}

/* Two rounds, in either order, wherever the row begins. */
Test(simt_stream_pace, warps_of_a_thread_block_stay_together) {
  for (uint64_t seed = 0; seed < 4; ++seed)
    for (const int32_t origin : {0, 1, 7, 40}) {
      int32_t lead = 0;
      schedule(seed);
      RUN(run_on, 1, 96, 0, 28, origin, &lead);
      cr_expect_eq(lead, 2, "from block %d on", origin);
    }
}

/* The clock begins anew while the warps walk. */
__global__ static void late(uint32_t to) {
  while (clock_ns() < to) {
  }
}
Test(simt_stream_pace, clock_that_begins_anew) {
  RUN(late, 1, 1, 0, 0u - 30000000u);
  const std::vector<seen> warps = walked(3, 50000, 0.0f);
  cr_expect_gt(warps[0].begun, warps[0].begun + warps[0].passed[8], "it has begun anew");
  for (int32_t warp = 0; warp < 2; ++warp) {
    const seen &warp_seen = warps[static_cast<size_t>(warp)];
    for (int32_t round = stream_pace::free; round < 10 - warp; ++round)
      cr_expect(static_cast<float>(warp_seen.passed[round - 1]) >=
                        0.999f * warp_seen.each * (static_cast<float>(round) - 0.1875f) &&
                    static_cast<float>(warp_seen.passed[round - 1]) <
                        warp_seen.each * (static_cast<float>(round) + 0.5f),
                "warp %d, round %d", warp, round);
  }
}

/* ---- blocks of all rows ------------------------------------------------------------------------------ */

__global__ static void count(attention_params a, int32_t *to) {
  const int32_t blocks = stream_all_blocks(a, stream_place_of(a, 1));
  if (threadIdx.x == 0) to[blockIdx.x] = blocks;
}

static ints counted(const stream_problem &batch) {
  ints blocks(static_cast<size_t>(batch.p.a.N * H_kv), -1);
  RUN(count, batch.p.a.N * H_kv, 32, 0, batch.p.a, blocks.data());
  return blocks;
}

Test(simt_stream_pace, blocks_of_all_rows) {
  /* 25, 3, 0, 1, and 1 blocks; -5 and 401 keys are none that a table can name */
  stream_problem batch({400, 33, 0, 16, -5, capacity + 1, 1, 0});
  for (const int32_t blocks : counted(batch))
    cr_expect_eq(blocks, H_kv * 30);
  batch.p.a.window = 20; /* 2, 3, 0, 1, 1 */
  for (const int32_t blocks : counted(batch))
    cr_expect_eq(blocks, H_kv * 7);
  stream_problem many(std::vector<int32_t>(70, 17));
  cr_expect_eq(counted(many)[0], H_kv * 140);
  stream_problem alone({400});
  cr_expect_eq(counted(alone)[1], H_kv * 25, "its first block is its own");
}

/* Rows 1 and 2 begin with the same block: row 1 finds it in the next row. The last row looks at the first. */
Test(simt_stream_pace, rows_that_share_their_first_block) {
  stream_problem batch({100, 100, 100});
  batch.table[2 * row_entries] = batch.table[row_entries];
  const ints blocks = counted(batch);
  for (int32_t head = 0; head < H_kv; ++head) {
    const size_t at = static_cast<size_t>(head);
    cr_expect_gt(blocks[at], 0);
    cr_expect_eq(blocks[at + H_kv], 0);
    cr_expect_gt(blocks[at + 2 * H_kv], 0);
  }
  batch.table[2 * row_entries] = batch.table[0];
  cr_expect_eq(counted(batch)[2 * H_kv], 0);
}

/* ---- the kernel -------------------------------------------------------------------------------------- */

static std::vector<uint16_t> decoded(stream_problem *batch, float block_ns, float round_ns) {
  constexpr int64_t warps = 3, shared = 4 * warps * softmax_shared_floats<D, 2>;
  softmax_params &p = batch->p;
  p.splits = p.cluster = 1;
  p.block_ns = block_ns;
  p.round_ns = round_ns;
  batch->out.assign(batch->out.size(), from_float<bf16>(NAN));
  RUN_WITH((softmax_stream<bf16, bf16, D, 2>), p.a.N * H_kv, 32 * warps, shared, in_turn(), p);
  return batch->bits();
}

/* Up to nine rounds of three warps. */
Test(simt_stream_pace, results_do_not_depend_on_it) {
  for (uint64_t seed = 0; seed < 4; ++seed) {
    schedule(seed);
    stream_problem batch({400, 399, 386, 100, 16, 0});
    const std::vector<uint16_t> as_fast_as_it_can = decoded(&batch, 0.0f, 0.0f);
    cr_expect_leq(batch.worst(), rounding);
    cr_expect(decoded(&batch, 1000.0f, 0.0f) == as_fast_as_it_can);
    cr_expect(decoded(&batch, 1000.0f, 1e6f) == as_fast_as_it_can);
    cr_expect(decoded(&batch, 1e9f, 0.0f) == as_fast_as_it_can);
  }
}
