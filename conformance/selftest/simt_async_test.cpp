/* simt_async_test.cpp: mbarriers, the copy engine and its view of shared memory. */
#include <criterion/criterion.h>

#include "simt_fixture.h"

TestSuite(simt_async, .init = open_simt, .timeout = 60);

/* ---- loads ----------------------------------------------------------------------------------------------- */

enum { NO_WAIT = 1, NO_FENCE_INIT = 2, WRONG_PARITY = 4, EXPECT_MORE = 8, EXPECT_LESS = 16, NO_INIT = 32 };

/* The box at `at`, as it lies in shared memory. */
__global__ static void load_box(const __grid_constant__ tensor_map map, int rank, int4 at, int at4, uint32_t bytes,
                                uint16_t *out, int wrong) {
  ASSAY_DYNAMIC_SHARED_1024(uint16_t, box);
  ASSAY_SHARED(uint64_t, full, 1);
  if (threadIdx.x == 0) {
    if ((wrong & NO_INIT) == 0) mbarrier_init(full, 1);
    if ((wrong & NO_FENCE_INIT) == 0) mbarrier_fence_init();
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    mbarrier_expect(full, bytes + ((wrong & EXPECT_MORE) != 0 ? 16 : 0) - ((wrong & EXPECT_LESS) != 0 ? 16 : 0));
    if (rank == 2) tma_load(box, &map, full, at.x, at.y);
    if (rank == 3) tma_load(box, &map, full, at.x, at.y, at.z);
    if (rank == 4) tma_load(box, &map, full, at.x, at.y, at.z, at.w);
    if (rank == 5) tma_load(box, &map, full, at.x, at.y, at.z, at.w, at4);
  }
  if ((wrong & NO_WAIT) == 0) mbarrier_wait(full, (wrong & WRONG_PARITY) != 0 ? 1 : 0);
  for (uint32_t i = threadIdx.x; i < bytes / 2; i += blockDim.x)
    out[i] = box[i];
  if ((wrong & (NO_WAIT | WRONG_PARITY)) != 0) mbarrier_wait(full, 0);
}

struct Box {
  tensor_shape shape;
  int at[5];
};

/* Returns the byte at `offset` of the box, by definition. */
static uint16_t in_box(const Box &b, const std::vector<uint16_t> &data, size_t element) {
  int64_t index = 0;
  for (int k = 0; k < b.shape.rank; ++k) {
    const int64_t c = static_cast<int64_t>(element) % b.shape.box[k] + b.at[k];
    element /= static_cast<size_t>(b.shape.box[k]);
    if (c < 0 || c >= b.shape.extent[k]) return 0;
    index += k == 0 ? c : c * b.shape.stride[k] / 2;
  }
  return data[static_cast<size_t>(index)];
}

static assay_status load(const Box &b, const std::vector<uint16_t> &data, std::vector<uint16_t> *out, int wrong) {
  tensor_map map;
  uint32_t bytes = 2;
  for (int k = 0; k < b.shape.rank; ++k)
    bytes *= static_cast<uint32_t>(b.shape.box[k]);
  out->assign(bytes / 2, 0);
  cr_assert_eq(tensor_map_make(&map, const_cast<uint16_t *>(data.data()), b.shape, &message), ASSAY_OK, "%s",
               message.text);
  return LAUNCH(load_box, 1, 64, bytes, map, b.shape.rank, int4{b.at[0], b.at[1], b.at[2], b.at[3]}, b.at[4], bytes,
                out->data(), wrong);
}

static std::vector<uint16_t> numbered(size_t count) {
  std::vector<uint16_t> v(count);
  for (size_t i = 0; i < count; ++i)
    v[i] = static_cast<uint16_t>(i % 60000 + 1);
  return v;
}

Test(simt_async, boxes) {
  const std::vector<uint16_t> data = numbered(64 * 40 * 6);
  std::vector<uint16_t> out;
  const Box boxes[] = {
      {{2, 2, {64, 200}, {0, 128}, {64, 16}, swizzle_128}, {0, 8}},
      {{2, 2, {64, 200}, {0, 128}, {64, 16}, swizzle_none}, {0, 190}},
      {{2, 2, {60, 200}, {0, 128}, {32, 24}, swizzle_64}, {32, -3}},
      {{2, 2, {64, 200}, {0, 128}, {16, 8}, swizzle_32}, {-8, 5}},
      {{2, 2, {64, 200}, {0, 128}, {24, 3}, swizzle_none}, {50, 5}},
      {{3, 2, {64, 3, 40}, {0, 128, 384}, {64, 2, 9}, swizzle_128}, {0, 1, 33}},
      {{4, 2, {32, 2, 5, 12}, {0, 64, 128, 640}, {32, 1, 5, 4}, swizzle_64}, {0, 1, 0, 10}},
      {{5, 2, {16, 2, 2, 5, 12}, {0, 32, 64, 128, 640}, {16, 2, 1, 3, 4}, swizzle_none}, {0, 0, 1, 3, 2}},
  };
  for (const Box &b : boxes) {
    cr_assert_eq(load(b, data, &out, 0), ASSAY_OK, "%s", message.text);
    const size_t mask = b.shape.swizzle == swizzle_128  ? 7
                        : b.shape.swizzle == swizzle_64 ? 3
                        : b.shape.swizzle == swizzle_32 ? 1
                                                        : 0;
    for (size_t i = 0; i < out.size(); ++i) {
      const size_t byte = 2 * i, place = byte ^ ((byte >> 7 & mask) << 4);
      cr_assert_eq(out[place / 2], in_box(b, data, i), "rank %d, element %zu", b.shape.rank, i);
    }
  }
}

Test(simt_async, maps_are_checked) {
  tensor_map map;
  float data[64];
  const tensor_shape right = {2, 2, {64, 200}, {0, 128}, {64, 16}, swizzle_128};
  tensor_shape wrong = right;
  wrong.stride[1] = 120;
  cr_expect_eq(tensor_map_make(&map, data, wrong, &message), ASSAY_ERR_INPUT);
  wrong = right;
  wrong.box[0] = 32;
  cr_expect_eq(tensor_map_make(&map, data, wrong, &message), ASSAY_ERR_INPUT);
  wrong = right;
  wrong.box[1] = 257;
  cr_expect_eq(tensor_map_make(&map, data, wrong, &message), ASSAY_ERR_INPUT);
  wrong = right;
  wrong.rank = 1;
  cr_expect_eq(tensor_map_make(&map, data, wrong, &message), ASSAY_ERR_INPUT);
}

/* Tells whether a word of shared memory is as it was when the block began. */
static bool fresh(uint16_t word) {
  return word == 0xFFFF || word == 0x7F7F;
}

Test(simt_async, mistakes_of_loads) {
  const std::vector<uint16_t> data = numbered(64 * 200);
  std::vector<uint16_t> out;
  const Box b = {{2, 2, {64, 200}, {0, 128}, {64, 16}, swizzle_none}, {0, 8}};
  int late = 0;
  for (uint64_t seed = 0; seed < 20; ++seed) {
    schedule(seed);
    cr_assert_eq(load(b, data, &out, NO_WAIT), ASSAY_OK, "%s", message.text);
    late += fresh(out[100]);
    const assay_status status = load(b, data, &out, WRONG_PARITY); /* the phase before, or one that is over */
    cr_assert(status == ASSAY_ERR_HANG || (status == ASSAY_OK && fresh(out[100])), "%s", message.text);
    cr_assert_eq(load(b, data, &out, NO_INIT), ASSAY_ERR_DEVICE, "seed %d", static_cast<int>(seed));
    SAYS("used before it was made");
  }
  cr_assert(late >= 4 && late <= 16, "bytes that were not waited for: late with %d of 20 seeds", late);
  cr_expect_eq(load(b, data, &out, NO_FENCE_INIT), ASSAY_ERR_DEVICE);
  SAYS("no mbarrier_fence_init");
  cr_expect_eq(load(b, data, &out, EXPECT_MORE), ASSAY_ERR_HANG);
  SAYS("mbarrier_wait for parity 0 of full, byte");
  SAYS("16 bytes missing");
  SAYS("simt_async_test.cpp:");
  cr_expect_eq(load(b, data, &out, EXPECT_LESS), ASSAY_ERR_HANG);
}

/* A ring of two stages between a producer warp and a consumer warp. early: the consumer gives a stage back before it
 * has read it; once: the consumer forgets that parities turn. */
__global__ static void ring(const float *in, float *out, int count, bool early, bool once) {
  ASSAY_SHARED(float, stage, 2 * 64);
  ASSAY_SHARED(uint64_t, full, 2);
  ASSAY_SHARED(uint64_t, empty, 2);
  if (threadIdx.x == 0) {
    for (int i = 0; i < 2; ++i) {
      mbarrier_init(full + i, 1);
      mbarrier_init(empty + i, 32);
    }
    mbarrier_fence_init();
  }
  __syncthreads();
  if (threadIdx.x >= 32) {
    if (threadIdx.x != 32) return;
    for (int i = 0; i < count; ++i) {
      const int s = i % 2;
      mbarrier_wait(empty + s, (static_cast<uint32_t>(i / 2) & 1u) ^ 1u);
      mbarrier_expect(full + s, 256);
      bulk_load(stage + s * 64, in + i * 64, 256, full + s);
    }
    return;
  }
  for (int i = 0; i < count; ++i) {
    const int s = i % 2, t = static_cast<int>(threadIdx.x);
    mbarrier_wait(full + s, once ? 0 : static_cast<uint32_t>(i / 2) & 1u);
    if (early) mbarrier_arrive(empty + s);
    if (early) __syncwarp();
    if (early) __nanosleep(1);
    out[i * 64 + t] = stage[s * 64 + t];
    out[i * 64 + t + 32] = stage[s * 64 + t + 32];
    if (!early) mbarrier_arrive(empty + s);
  }
}

Test(simt_async, rings) {
  const int count = 9;
  floats in(64 * count), out(64 * count);
  for (size_t i = 0; i < in.size(); ++i)
    in[i] = static_cast<float>(i + 1);
  int early = 0, once = 0;
  for (uint64_t seed = 0; seed < 30; ++seed) {
    schedule(seed);
    RUN(ring, 1, 64, 0, in.data(), out.data(), count, false, false);
    cr_assert_eq(in, out);
    RUN(ring, 1, 64, 0, in.data(), out.data(), count, true, false);
    early += in != out;
    const assay_status status = LAUNCH(ring, 1, 64, 0, in.data(), out.data(), count, false, true);
    once += status != ASSAY_OK || in != out;
  }
  cr_expect_eq(early, 30);
  cr_expect_eq(once, 30);
}

__global__ static void arrive_too_often(int *out) {
  ASSAY_SHARED(uint64_t, done, 1);
  ASSAY_SHARED(uint64_t, never, 1);
  if (threadIdx.x == 0) {
    mbarrier_init(done, 40);
    mbarrier_init(never, 1);
  }
  __syncthreads();
  mbarrier_arrive(done);
  if (threadIdx.x == 0) mbarrier_expect(never, 16);
  if (threadIdx.x == 1) mbarrier_arrive(never);
  out[threadIdx.x] = 0;
}

Test(simt_async, too_many_arrivals) {
  ints out(32);
  for (uint64_t seed = 0; seed < 4; ++seed) {
    schedule(seed);
    const assay_status status = LAUNCH(arrive_too_often, 1, 32, 0, out.data());
    cr_expect(status == ASSAY_OK || status == ASSAY_ERR_DEVICE);
    if (status != ASSAY_OK) SAYS("more arrivals than its count");
  }
}

/* Makes a barrier by `makers` threads, or once more after its use. */
__global__ static void make_twice(int *out, unsigned makers, bool later) {
  ASSAY_SHARED(uint64_t, done, 1);
  if (threadIdx.x < makers) mbarrier_init(done, 32);
  __syncthreads();
  mbarrier_arrive(done);
  mbarrier_wait(done, 0);
  __syncthreads();
  if (threadIdx.x == 0 && later) mbarrier_init(done, 32);
  out[threadIdx.x] = 0;
}

Test(simt_async, barriers_that_are_made_twice) {
  ints out(32);
  for (uint64_t seed = 0; seed < 4; ++seed) {
    schedule(seed);
    cr_assert_eq(LAUNCH(make_twice, 1, 32, 0, out.data(), 1, false), ASSAY_OK);
    cr_assert_eq(LAUNCH(make_twice, 1, 32, 0, out.data(), 2, false), ASSAY_ERR_DEVICE);
    SAYS("made again");
    cr_assert_eq(LAUNCH(make_twice, 1, 32, 0, out.data(), 1, true), ASSAY_ERR_DEVICE);
    SAYS("made again");
  }
}

/* cp.async that arrives by itself. */
__global__ static void copies_arrive(const float *in, float *out, bool wait) {
  ASSAY_SHARED(float, data, 256);
  ASSAY_SHARED(uint64_t, full, 1);
  if (threadIdx.x == 0) mbarrier_init(full, 64);
  __syncthreads();
  cp_async_16(data + threadIdx.x * 4, in + threadIdx.x * 4, 16);
  cp_async_arrive_noinc(full);
  if (wait) mbarrier_wait(full, 0);
  for (unsigned i = 0; i < 4; ++i)
    out[threadIdx.x * 4 + i] = data[255 - threadIdx.x * 4 - i];
  mbarrier_wait(full, 0);
}

Test(simt_async, copies_that_arrive) {
  floats in(256), out(256);
  for (size_t i = 0; i < 256; ++i)
    in[i] = static_cast<float>(i);
  for (uint64_t seed = 0; seed < 10; ++seed) {
    schedule(seed);
    RUN(copies_arrive, 1, 64, 0, in.data(), out.data(), true);
    for (size_t i = 0; i < 256; ++i)
      cr_assert_eq(out[i], in[255 - i]);
    RUN(copies_arrive, 1, 64, 0, in.data(), out.data(), false);
    bool same = true;
    for (size_t i = 0; i < 256; ++i)
      same = same && out[i] == in[255 - i];
    cr_assert_not(same);
  }
}

/* ---- stores and the proxy fence -------------------------------------------------------------------------- */

enum {
  RIGHT,
  NO_FENCE,
  FENCE_BY_ONE_AFTER,
  FENCE_BY_ONE_BEFORE,
  REUSED,
  NO_READ_WAIT,
  CALM, /* many turns without a store come first, after which simt leaves most looks out */
  CALM_FENCE_BY_ONE_AFTER,
  LATE, /* those below are right in the first rounds, after which simt leaves most fences of a warp to its last lane */
  LATE_NO_FENCE,
  LATE_FENCE_FIRST,
  LATE_FENCE_BY_ONE_LANE_FIRST,
};
constexpr int right_rounds = 2, late_rounds = 5;

__device__ static bool one_after(int wrong) {
  return wrong == FENCE_BY_ONE_AFTER || wrong == CALM_FENCE_BY_ONE_AFTER;
}

/* Returns whether the thread calls the fence, before its stores or after them. */
__device__ static bool fences(int wrong, int round, bool first) {
  const bool late = wrong > LATE && round >= right_rounds;
  if (!late || wrong == LATE_NO_FENCE)
    return !first && !late && wrong != NO_FENCE && !one_after(wrong) &&
           (wrong != FENCE_BY_ONE_BEFORE || threadIdx.x == 0);
  return first && (wrong == LATE_FENCE_FIRST || threadIdx.x % 32 == 0);
}

__global__ static void store_rows(const __grid_constant__ tensor_map map, int wrong, int rounds, bool split) {
  ASSAY_SHARED(uint16_t, tile, 64 * 16 + 64);
  uint16_t *box = tile + (128 - reinterpret_cast<uintptr_t>(tile) % 128) % 128 / 2;
  const bool calm = wrong == CALM || wrong == CALM_FENCE_BY_ONE_AFTER;
  if (calm) fence_proxy_async();
  for (int i = 0; calm && i < 64; ++i)
    __nanosleep(1);
  for (int r = 0; r < rounds; ++r) {
    if (r > 0 && wrong != REUSED) {
      if (threadIdx.x == 0) bulk_wait_read<0>();
      __syncthreads();
    }
    for (bool first : {true, false}) { /* one call, so that simt sees one site */
      for (unsigned i = threadIdx.x; !first && i < 64 * 16; i += blockDim.x) {
        box[i] = static_cast<uint16_t>(static_cast<unsigned>(r) * 1024 + i + 1);
        if (split) __syncwarp();
      }
      if (fences(wrong, r, first)) fence_proxy_async();
    }
    __syncthreads();
    if (threadIdx.x == 0) {
      if (one_after(wrong)) fence_proxy_async();
      tma_store(&map, box, 0, r * 16);
      bulk_commit();
    }
  }
  if (threadIdx.x == 0 && wrong != NO_READ_WAIT) bulk_wait_read<0>();
}

static assay_status store(int wrong, bool split, bool *right) {
  /* The last one is cut. The first store after many turns alone is looked at. */
  const int rounds = wrong < CALM ? 3 : wrong < LATE ? 1 : late_rounds;
  std::vector<uint16_t> to(64 * static_cast<size_t>(16 * rounds - 8), 0);
  const tensor_shape shape = {2, 2, {64, 16 * rounds - 8}, {0, 128}, {64, 16}, swizzle_none};
  tensor_map map;
  cr_assert_eq(tensor_map_make(&map, to.data(), shape, &message), ASSAY_OK);
  const assay_status status = LAUNCH(store_rows, 1, 128, 0, map, wrong, rounds, split);
  *right = true;
  for (size_t i = 0; i < to.size(); ++i)
    *right = *right && to[i] == i + 1;
  return status;
}

Test(simt_async, stores_need_the_fence_of_every_writer) {
  bool right;
  for (uint64_t seed = 0; seed < 10; ++seed)
    for (bool split : {false, true}) {
      schedule(seed);
      cr_assert_eq(store(RIGHT, split, &right), ASSAY_OK, "%s", message.text);
      cr_assert(right);
      for (int good : {CALM, LATE}) {
        cr_assert_eq(store(good, split, &right), ASSAY_OK, "%s", message.text);
        cr_assert(right);
      }
      for (int wrong : {NO_FENCE, FENCE_BY_ONE_AFTER, FENCE_BY_ONE_BEFORE, REUSED, CALM_FENCE_BY_ONE_AFTER,
                        LATE_NO_FENCE, LATE_FENCE_FIRST, LATE_FENCE_BY_ONE_LANE_FIRST}) {
        if (wrong == CALM_FENCE_BY_ONE_AFTER && split) continue; /* nothing looks between its stores */
        cr_assert_eq(store(wrong, split, &right), ASSAY_OK, "%s", message.text);
        cr_assert_not(right, "mistake %d was not seen, seed %d, split %d", wrong, static_cast<int>(seed), split);
      }
    }
  cr_expect_eq(store(NO_READ_WAIT, false, &right), ASSAY_ERR_DEVICE);
  SAYS("still reads its shared memory");
}

__global__ static void bulk_round_trip(const float *in, float *out, bool wait) {
  ASSAY_SHARED(float, data, 64);
  ASSAY_SHARED(uint64_t, full, 1);
  if (threadIdx.x != 0) return;
  mbarrier_init(full, 1);
  mbarrier_fence_init();
  mbarrier_expect(full, 256);
  bulk_load(data, in, 256, full);
  if (wait) mbarrier_wait(full, 0);
  bulk_store(out, data, 256);
  bulk_commit();
  bulk_wait<0>();
  mbarrier_wait(full, 0);
}

Test(simt_async, bulk_copies) {
  floats in(64), out(64);
  for (size_t i = 0; i < 64; ++i)
    in[i] = static_cast<float>(i);
  RUN(bulk_round_trip, 1, 32, 0, in.data(), out.data(), true);
  cr_expect_eq(in, out);
  RUN(bulk_round_trip, 1, 32, 0, in.data(), out.data(), false);
  cr_expect_neq(in, out);
}
