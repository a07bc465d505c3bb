/* simt_block_test.cpp: blocks that wait for each other, clusters, dependent launches, registers that change hands. */
#include <criterion/criterion.h>

#include "simt_fixture.h"

#include "gpu/lib/ptx_cluster.cuh"

TestSuite(simt_block, .init = open_simt, .timeout = 60);

static launch_options with(int32_t cluster, int32_t resident) {
  launch_options options;
  options.cluster = cluster;
  options.resident = resident;
  return options;
}

/* ---- blocks that wait for each other ----------------------------------------------------------------------- */

/* Block i adds what it finds in slot i - 1 to i + 1: block 0 first, whatever the order they begin in. */
template <bool nanosleep> __global__ static void chain(unsigned *slot) {
  const unsigned i = blockIdx.x;
  ASSAY_SHARED(unsigned, before, 1);
  if (threadIdx.x == 0) {
    before[0] = 0;
    if (i > 0) {
      while ((before[0] = load_acquire(&slot[i - 1])) == 0)
        if (nanosleep) __nanosleep(20);
    }
  }
  __syncthreads();
  if (threadIdx.x == 33) store_release(&slot[i], before[0] + i + 1);
}

Test(simt_block, blocks_wait_for_each_other) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    std::vector<unsigned> slot(8, 0);
    schedule(seed);
    RUN_WITH(chain<false>, 8, 64, 0, with(1, 8), slot.data());
    for (unsigned i = 0; i < 8; ++i)
      cr_assert_eq(slot[i], (i + 1) * (i + 2) / 2);
  }
  int hangs = 0;
  for (uint64_t seed = 0; seed < 4; ++seed) {
    std::vector<unsigned> slot(8, 0);
    schedule(seed);
    hangs += LAUNCH_WITH(chain<true>, 8, 64, 0, with(1, 1), slot.data()) == ASSAY_ERR_HANG;
  }
  cr_expect_gt(hangs, 0);
  SAYS("load_acquire at simt_block_test.cpp:");
  std::vector<unsigned> slot(64, 0);
  cr_expect_eq(LAUNCH_WITH(chain<false>, 64, 64, 0, with(1, 9), slot.data()), ASSAY_ERR_UNSUPPORTED);
}

/* The last block to arrive sums up what all have left. */
__global__ static void last_arriver(const float *in, float *part, unsigned *ticket, float *out) {
  ASSAY_SHARED(float, mine, 64);
  ASSAY_SHARED(unsigned, place, 1);
  mine[threadIdx.x] = in[blockIdx.x * 64 + threadIdx.x];
  __syncthreads();
  if (threadIdx.x == 0) {
    float sum = 0.0f;
    for (int i = 0; i < 64; ++i)
      sum += mine[i];
    part[blockIdx.x] = sum;
    __threadfence();
    place[0] = atomicAdd(ticket, 1u);
    __threadfence();
  }
  __syncthreads();
  if (place[0] != gridDim.x - 1 || threadIdx.x != 0) return;
  float sum = 0.0f;
  for (unsigned i = 0; i < gridDim.x; ++i)
    sum += part[i];
  *out = sum;
}

Test(simt_block, last_arriver_sums_up) {
  floats in(64 * 40);
  float sum = 0.0f;
  for (size_t i = 0; i < in.size(); ++i)
    sum += in[i] = small(i);
  for (int32_t resident : {1, 3, 8})
    for (uint64_t seed = 0; seed < 20; ++seed) {
      floats part(40), out(1);
      unsigned ticket = 0;
      schedule(seed);
      RUN_WITH(last_arriver, 40, 64, 0, with(1, resident), in.data(), part.data(), &ticket, out.data());
      cr_assert_eq(out[0], sum);
      cr_assert_eq(ticket, 40u);
    }
}

/* ---- clusters ---------------------------------------------------------------------------------------------- */

enum { RIGHT, NO_BARRIER, LEAVES_EARLY, BAD_RANK, NO_ARRIVE };

/* out: what the next block of the cluster has in its shared memory. */
__global__ static void neighbours(int *out, int wrong) {
  ASSAY_SHARED(int, mine, 32);
  mine[threadIdx.x] = static_cast<int>(blockIdx.x * 100 + threadIdx.x);
  if (wrong != NO_BARRIER) {
    if (wrong != NO_ARRIVE) cluster_arrive();
    cluster_wait();
  }
  const uint32_t next = (cluster_rank() + 1) % cluster_size();
  const int *there = cluster_shared(mine, wrong == BAD_RANK ? cluster_size() : next);
  if (wrong == LEAVES_EARLY && cluster_rank() == 0) return;
  if (wrong == LEAVES_EARLY) __syncthreads();
  out[blockIdx.x * 32 + threadIdx.x] = there[threadIdx.x];
  if (wrong == LEAVES_EARLY) return;
  cluster_arrive();
  cluster_wait();
}

Test(simt_block, clusters) {
  ints out(32 * 8);
  const auto right = [&out] {
    for (size_t b = 0; b < 8; ++b)
      for (size_t i = 0; i < 32; ++i)
        if (out[b * 32 + i] != static_cast<int>((b / 4 * 4 + (b + 1) % 4) * 100 + i)) return false;
    return true;
  };
  int seen[2] = {0, 0};
  for (uint64_t seed = 0; seed < 30; ++seed) {
    schedule(seed);
    RUN_WITH(neighbours, 8, 32, 0, with(4, seed % 2 == 0 ? 1 : 8), out.data(), RIGHT);
    cr_assert(right());
    for (int wrong : {NO_BARRIER, LEAVES_EARLY}) {
      out.assign(out.size(), -7);
      schedule(seed);
      seen[wrong - 1] += LAUNCH_WITH(neighbours, 8, 32, 0, with(4, 1), out.data(), wrong) != ASSAY_OK || !right();
    }
  }
  cr_expect_gt(seen[0], 25);
  cr_expect_eq(seen[1], 30);
  cr_expect_eq(LAUNCH_WITH(neighbours, 8, 32, 0, with(4, 1), out.data(), BAD_RANK), ASSAY_ERR_DEVICE);
  SAYS("has this rank at simt_block_test.cpp:");
  cr_expect_eq(LAUNCH_WITH(neighbours, 8, 32, 0, with(4, 1), out.data(), NO_ARRIVE), ASSAY_ERR_DEVICE);
  SAYS("cluster_wait without cluster_arrive");
  cr_expect_eq(LAUNCH_WITH(neighbours, 6, 32, 0, with(4, 1), out.data(), RIGHT), ASSAY_ERR_DEVICE);
}

__global__ static void one_block_waits_alone(int *out) {
  if (cluster_rank() == 1 && threadIdx.x < 32) named_barrier_sync(1, 64);
  cluster_arrive();
  cluster_wait();
  out[0] = 1;
}

Test(simt_block, clusters_that_hang) {
  ints out(1);
  cr_expect_eq(LAUNCH_WITH(one_block_waits_alone, 2, 64, 0, with(2, 1), out.data()), ASSAY_ERR_HANG);
  SAYS("named_barrier_sync 1, where 32 of 64 threads are");
  SAYS("cluster_wait at");
}

enum { ARRIVES, NEVER_ARRIVES, ARRIVES_FIRST };

/* Every block sends numbers to all blocks of its cluster, and arrives at their barriers. out: what has come. */
__global__ static void sent_around(int *out, int wrong) {
  ASSAY_SHARED(int, come, 32 * 4);
  ASSAY_SHARED(uint64_t, there, 1);
  const uint32_t lane = threadIdx.x, size = cluster_size(), rank = cluster_rank();
  if (lane == 0) {
    mbarrier_init(there, size);
    mbarrier_fence_init();
  }
  cluster_arrive();
  cluster_wait();
  if (wrong == ARRIVES_FIRST && lane < size) mbarrier_arrive_at(there, lane);
  for (uint32_t to = 0; to < size; ++to)
    *cluster_shared(come + 32 * rank + lane, to) = static_cast<int>(100 * blockIdx.x + lane);
  __syncwarp();
  if (wrong != ARRIVES_FIRST && wrong != NEVER_ARRIVES && lane < size) mbarrier_arrive_at(there, lane);
  mbarrier_wait_cluster(there, 0);
  for (uint32_t from = 0; from < size; ++from)
    out[(blockIdx.x * 4 + from) * 32 + lane] = come[32 * from + lane];
  cluster_arrive();
  cluster_wait();
}

Test(simt_block, blocks_arrive_for_each_other) {
  ints out(8 * 4 * 32);
  const auto right = [&out] {
    for (size_t b = 0; b < 8; ++b)
      for (size_t i = 0; i < 128; ++i)
        if (out[b * 128 + i] != static_cast<int>((b / 4 * 4 + i / 32) * 100 + i % 32)) return false;
    return true;
  };
  int seen = 0;
  for (uint64_t seed = 0; seed < 30; ++seed) {
    schedule(seed);
    out.assign(out.size(), -7);
    RUN_WITH(sent_around, 8, 32, 0, with(4, 1), out.data(), ARRIVES);
    cr_assert(right());
    schedule(seed);
    seen += LAUNCH_WITH(sent_around, 8, 32, 0, with(4, 1), out.data(), ARRIVES_FIRST) != ASSAY_OK || !right();
  }
  cr_expect_gt(seen, 20, "%d", seen);
  cr_expect_eq(LAUNCH_WITH(sent_around, 8, 32, 0, with(4, 1), out.data(), NEVER_ARRIVES), ASSAY_ERR_HANG);
  SAYS("(4 of 4 arrivals");
}

__global__ static void announced_elsewhere(uint32_t bytes) {
  ASSAY_SHARED(uint64_t, there, 1);
  if (threadIdx.x == 0) {
    mbarrier_init(there, 1);
    mbarrier_fence_init();
  }
  cluster_arrive();
  cluster_wait();
  if (threadIdx.x == 0) mbarrier_expect(cluster_shared(there, 1 - cluster_rank()), bytes);
  cluster_arrive();
  cluster_wait();
}

Test(simt_block, bytes_are_announced_at_home) {
  cr_expect_eq(LAUNCH_WITH(announced_elsewhere, 2, 32, 0, with(2, 1), 16u), ASSAY_ERR_DEVICE);
  SAYS("bytes announced to another block at simt_block_test.cpp:");
}

/* ---- dependent launches ------------------------------------------------------------------------------------ */

__global__ static void produce(int *data, int value) {
  ASSAY_SHARED(int, tile, 64);
  dependents_launch();
  tile[threadIdx.x] = value;
  __syncthreads();
  data[blockIdx.x * 64 + threadIdx.x] = tile[63 - threadIdx.x];
}

template <bool wait> __global__ static void consume(const int *data, int *out) {
  ASSAY_SHARED(int, tile, 64);
  tile[threadIdx.x] = 1;
  __syncthreads();
  if (wait) dependency_wait();
  out[blockIdx.x * 64 + threadIdx.x] = data[blockIdx.x * 64 + threadIdx.x] + tile[threadIdx.x];
}

__global__ static void never_ends() {
  if (threadIdx.x == 0) __syncwarp(3);
}

template <bool wait> static assay_status pair(ints *data, ints *out, int32_t resident) {
  launch_options first, second = with(1, resident);
  first.followed = true;
  second.dependent = true;
  const assay_status status = LAUNCH_WITH(produce, 6, 64, 0, first, data->data(), 41);
  if (status != ASSAY_OK) return status;
  return LAUNCH_WITH(consume<wait>, 6, 64, 0, second, data->data(), out->data());
}

Test(simt_block, dependent_launches) {
  for (int32_t resident : {1, 4})
    for (uint64_t seed = 0; seed < 10; ++seed) {
      ints data(64 * 6, 7), out(64 * 6);
      schedule(seed);
      cr_assert_eq(pair<true>(&data, &out, resident), ASSAY_OK, "%s", message.text);
      cr_assert_eq(data, ints(64 * 6, 41));
      cr_assert_eq(out, ints(64 * 6, 42));
      data.assign(64 * 6, 7);
      cr_assert_eq(pair<false>(&data, &out, resident), ASSAY_OK, "%s", message.text);
      cr_assert_eq(data, ints(64 * 6, 41));
      cr_assert_neq(out, ints(64 * 6, 42), "a missing dependency_wait is not seen");
    }
}

Test(simt_block, launches_put_off_run_at_last) {
  ints data(64, 7), out(64), host(64);
  launch_options first;
  first.followed = true;
  cr_assert_eq(LAUNCH_WITH(produce, 1, 64, 0, first, data.data(), 5), ASSAY_OK);
  cr_expect_eq(data[0], 7);
  cr_assert_eq(assay_device_simt()->synchronize(&message), ASSAY_OK);
  cr_expect_eq(data[0], 5);
  cr_assert_eq(LAUNCH_WITH(produce, 1, 64, 0, first, data.data(), 6), ASSAY_OK);
  RUN(consume<true>, 1, 64, 0, data.data(), out.data()); /* not a dependent one: the other runs before it begins */
  cr_expect_eq(out, ints(64, 7));
  /* An error of the one before ends both. */
  message.text[0] = '\0';
  cr_assert_eq(ASSAY_LAUNCH_WITH(&message, never_ends, 1, 64, 0, first, nullptr), ASSAY_OK);
  launch_options second;
  second.dependent = true;
  cr_expect_eq(LAUNCH_WITH(consume<true>, 1, 64, 0, second, data.data(), out.data()), ASSAY_ERR_HANG);
  SAYS("never_ends");
  RUN(consume<true>, 1, 64, 0, data.data(), out.data());
}

/* Three launches of one call, as launchers make them: `which` of them does not wait. */
template <int which> static assay_status three(ints *data, ints *middle, ints *out) {
  launch_options behind;
  behind.dependent = true;
  assay_status status = LAUNCH_WITH(consume<which != 0>, 6, 64, 0, behind, data->data(), middle->data());
  if (status == ASSAY_OK) status = LAUNCH_WITH(consume<which != 1>, 6, 64, 0, behind, middle->data(), data->data());
  if (status == ASSAY_OK) status = LAUNCH_WITH(consume<which != 2>, 6, 64, 0, behind, data->data(), out->data());
  return status;
}

template <int which> static int seen_in(int seeds) {
  const assay_device *const device = assay_device_simt();
  int wrong = 0;
  for (int seed = 0; seed < seeds; ++seed) {
    ints data(64 * 6, 7), middle(64 * 6, 7), out(64 * 6), given(64 * 6, 40);
    device->schedule(static_cast<uint64_t>(seed));
    (void)device->late(true, &message);
    cr_assert_eq(device->upload(data.data(), given.data(), static_cast<int64_t>(given.size() * sizeof(int)), &message),
                 ASSAY_OK);
    given.assign(64 * 6, 1); /* the caller's again */
    assay_status status = three<which>(&data, &middle, &out);
    if (status == ASSAY_OK) status = device->late(false, &message);
    cr_assert_eq(status, ASSAY_OK, "%s", message.text);
    wrong += out != ints(64 * 6, 43);
  }
  return wrong;
}

Test(simt_block, launches_that_are_late_on_request) {
  cr_expect_eq(seen_in<3>(40), 0, "all wait");
  cr_expect_gt(seen_in<0>(40), 5, "the first reads what is being uploaded");
  cr_expect_gt(seen_in<1>(40), 5);
  cr_expect_gt(seen_in<2>(40), 5);
}

Test(simt_block, what_is_late_runs_in_its_order) {
  const assay_device *const device = assay_device_simt();
  const int64_t bytes = 64 * sizeof(int);
  ints data(64, 7), out(64), given(64, 1);
  (void)device->late(true, &message);
  cr_assert_eq(device->upload(data.data(), given.data(), bytes, &message), ASSAY_OK);
  cr_expect_eq(data, ints(64, -1), "undefined until then");
  given.assign(64, 2);
  cr_assert_eq(device->upload(data.data(), given.data(), bytes / 2, &message), ASSAY_OK);
  cr_assert_eq(LAUNCH_WITH(consume<true>, 1, 64, 0, launch_options(), data.data(), out.data()), ASSAY_OK);
  cr_expect_eq(out, ints(64), "put off");
  cr_assert_eq(device->upload(data.data(), given.data(), bytes, &message), ASSAY_OK);
  for (int i = 0; i < 64; ++i)
    cr_expect_eq(out[static_cast<size_t>(i)], i < 32 ? 3 : 2, "before the upload behind it");
  ints back(64);
  cr_assert_eq(device->download(back.data(), data.data(), bytes, &message), ASSAY_OK);
  cr_expect_eq(back, ints(64, 2));
  cr_assert_eq(ASSAY_LAUNCH_WITH(&message, never_ends, 1, 64, 0, launch_options(), nullptr), ASSAY_OK);
  cr_expect_eq(device->late(false, &message), ASSAY_ERR_HANG, "its status is that of what was put off");
  RUN(consume<true>, 1, 64, 0, data.data(), out.data());
  cr_expect_eq(out, ints(64, 3), "at once again");
}

/* ---- registers, election ----------------------------------------------------------------------------------- */

template <int fewer, int more> __global__ static void hand_over_registers(int *out) {
  if (threadIdx.x < 128)
    registers_fewer<fewer>();
  else
    registers_more<more>();
  out[threadIdx.x] = 1;
}

__global__ static void half_a_warpgroup_gives(int *out) {
  if (threadIdx.x < 64) registers_fewer<24>();
  out[threadIdx.x] = 1;
}

Test(simt_block, registers) {
  ints out(384);
  for (uint64_t seed = 0; seed < 10; ++seed) {
    schedule(seed);
    RUN((hand_over_registers<24, 240>), 1, 384, 0, out.data());
  }
  cr_expect_eq(LAUNCH((hand_over_registers<40, 240>), 1, 384, 0, out.data()), ASSAY_ERR_HANG);
  SAYS("registers_more");
  cr_expect_eq(LAUNCH((hand_over_registers<24, 160>), 1, 384, 0, out.data()), ASSAY_ERR_DEVICE);
  SAYS("registers_more: the warp has more");
  cr_expect_eq(LAUNCH(half_a_warpgroup_gives, 1, 128, 0, out.data()), ASSAY_ERR_DEVICE);
  SAYS("different numbers of registers");
}

__global__ static void elect(int *count, int *who) {
  const bool first = elect_one(), again = elect_one();
  if (first) atomicAdd(count, 1);
  if (first != again) atomicAdd(count, 100);
  if (first) *who = static_cast<int>(threadIdx.x);
}

Test(simt_block, one_lane_is_elected) {
  ints seen;
  for (uint64_t seed = 0; seed < 20; ++seed) {
    int count = 0, who = -1;
    schedule(seed);
    RUN(elect, 1, 32, 0, &count, &who);
    cr_assert_eq(count, 1);
    if (seen.empty() || seen.back() != who) seen.push_back(who);
  }
  cr_expect_gt(seen.size(), 1u);
}
