/* simt_test.cpp: the kernels of simt_kernels.cuh, run by simt. */
#include <criterion/criterion.h>

#include "simt/cuda.h"

#include <unistd.h>

#include <algorithm>
#include <numeric>
#include <vector>

#include <assay/device.h>

#include "simt_kernels.cuh"

extern "C" const assay_device *assay_device_simt(void);

#if defined(__SANITIZE_ADDRESS__)
#define UNDER_ASAN
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define UNDER_ASAN
#endif
#endif

using namespace ASSAY_NS;
using ints = std::vector<int>;

static assay_error message;

static void open_simt() {
  cr_assert_eq(assay_device_simt()->open(&message), ASSAY_OK);
}

TestSuite(simt, .init = open_simt, .timeout = 60);

#define LAUNCH(kernel, grid, block, shared, ...)                                                                       \
  (message.text[0] = '\0', ASSAY_LAUNCH(&message, kernel, grid, block, shared, nullptr, __VA_ARGS__))
#define RUN(kernel, grid, block, shared, ...)                                                                          \
  cr_assert_eq(LAUNCH(kernel, grid, block, shared, __VA_ARGS__), ASSAY_OK, "%s", message.text)

static void expect_text(const char *format, ...) {
  char text[256];
  va_list list;
  va_start(list, format);
  (void)vsnprintf(text, sizeof text, format, list);
  va_end(list);
  cr_expect(strstr(message.text, text) != nullptr, "no '%s' in: %s", text, message.text);
}

static void schedule(uint64_t seed) {
  assay_device_simt()->schedule(seed);
}

Test(simt, barriers_order_shared_memory) {
  for (unsigned threads = 32; threads <= 256; threads *= 2)
    for (uint64_t seed = 0; seed < 20; ++seed) {
      std::vector<float> in(threads), out(threads);
      std::iota(in.begin(), in.end(), 1.0f);
      schedule(seed);
      RUN(block_sum, 1, threads, 0, in.data(), out.data());
      for (float v : out)
        cr_assert_eq(v, static_cast<float>(threads * (threads + 1) / 2));
    }
}

Test(simt, missing_barrier_shows_as_two_answers) {
  const auto answers = [](auto kernel) {
    std::vector<ints> seen;
    for (uint64_t seed = 0; seed < 10; ++seed) {
      ints out(128);
      schedule(seed);
      RUN(kernel, 1, 128, 0, out.data());
      if (std::find(seen.begin(), seen.end(), out) == seen.end()) seen.push_back(out);
    }
    return seen.size();
  };
  cr_expect_eq(answers(neighbour<true>), 1u);
  cr_expect_gt(answers(neighbour<false>), 1u);
}

/* The lane that CUDA's definition says is read. */
static int source_lane(int kind, int lane, int operand, int width) {
  const int first = lane / width * width;
  int source = lane;
  if (kind == 0) source = first + ((operand % width) + width) % width;
  if (kind == 1) source = lane - operand < first ? lane : lane - operand;
  if (kind == 2) source = lane + operand >= first + width ? lane : lane + operand;
  if (kind == 3) source = (lane ^ operand) >= first + width ? lane : lane ^ operand;
  return source;
}

template <class T> static void check_shuffles() {
  std::vector<T> in(32), out(32);
  for (int i = 0; i < 32; ++i)
    in[static_cast<size_t>(i)] = static_cast<T>(1000 + i);
  for (int kind = 0; kind < 4; ++kind)
    for (int width = 1; width <= 32; width *= 2)
      for (int operand = 0; operand < 32; ++operand) {
        RUN(shuffle<T>, 1, 32, 0, kind, operand, width, in.data(), out.data());
        for (int lane = 0; lane < 32; ++lane)
          cr_assert_eq(out[static_cast<size_t>(lane)], static_cast<T>(1000 + source_lane(kind, lane, operand, width)),
                       "kind %d, lane %d, operand %d, width %d", kind, lane, operand, width);
      }
}

Test(simt, shuffles_follow_the_definition) {
  check_shuffles<int>();
  check_shuffles<float>();
  check_shuffles<double>();
  check_shuffles<unsigned long long>();
}

Test(simt, illegal_shuffle_width) {
  ints in(32), out(32);
  cr_expect_eq(LAUNCH(shuffle<int>, 1, 32, 0, 0, 0, 24, in.data(), out.data()), ASSAY_ERR_DEVICE);
  expect_text("width");
}

/* A store beside a multiple of the vector's size is a fault, wherever its parts come from. */
Test(simt, vectors_are_stored_at_multiples_of_their_size) {
  alignas(16) static unsigned char to[64];
  for (int beside = 0; beside <= 32; beside += 4) {
    cr_expect_eq(LAUNCH(store_vector_at<uint4>, 1, 1, 0, to + beside), beside % 16 == 0 ? ASSAY_OK : ASSAY_ERR_DEVICE);
    if (beside % 16 != 0) expect_text("thread 0: a vector is stored beside a multiple of its size");
    cr_expect_eq(LAUNCH(store_vector_at<float2>, 1, 1, 0, to + beside), beside % 8 == 0 ? ASSAY_OK : ASSAY_ERR_DEVICE);
  }
}

Test(simt, votes_of_a_warp) {
  for (unsigned pattern : {0u, 1u, 0x80000000u, 0x12345678u, all_lanes}) {
    ints in(32), any(32), all(32);
    std::vector<unsigned> ballot(32);
    for (size_t i = 0; i < 32; ++i)
      in[i] = static_cast<int>(pattern >> i & 1u) * 5;
    RUN(votes, 1, 32, 0, in.data(), ballot.data(), any.data(), all.data());
    for (size_t i = 0; i < 32; ++i) {
      cr_assert_eq(ballot[i], pattern);
      cr_assert_eq(any[i], pattern != 0);
      cr_assert_eq(all[i], pattern == all_lanes);
    }
  }
}

Test(simt, reductions_of_integers) {
  for (int lanes : {1, 7, 32}) {
    for (int offset : {0, -1000, INT_MAX - 30, INT_MIN}) { /* sums may wrap round */
      ints in(32), sum(32, 77), most(32, 77);
      unsigned expected = 0;
      for (int i = 0; i < 32; ++i) {
        in[static_cast<size_t>(i)] = offset + i * 29 % 31;
        if (i < lanes) expected += static_cast<unsigned>(in[static_cast<size_t>(i)]);
      }
      RUN(reductions, 1, 32, 0, lanes, in.data(), sum.data(), most.data());
      for (int i = 0; i < 32; ++i) {
        cr_assert_eq(sum[static_cast<size_t>(i)], i < lanes ? static_cast<int>(expected) : 77);
        cr_assert_eq(most[static_cast<size_t>(i)], i < lanes ? *std::max_element(in.begin(), in.begin() + lanes) : 77);
      }
    }
  }
}

Test(simt, votes_at_a_barrier_count_only_who_is_there) {
  ints in(64, 0), count(40), all(40), any(40);
  for (size_t i = 0; i < 40; ++i)
    in[i] = i % 3 == 0;
  for (uint64_t seed = 0; seed < 20; ++seed) {
    schedule(seed);
    RUN(barrier_votes, 1, 64, 0, in.data(), count.data(), all.data(), any.data());
    cr_assert_eq(count, ints(40, 14));
    cr_assert_eq(all, ints(40, 0));
    cr_assert_eq(any, ints(40, 1));
  }
  std::fill(in.begin(), in.end(), 1);
  RUN(barrier_votes, 1, 64, 0, in.data(), count.data(), all.data(), any.data());
  cr_assert_eq(all, ints(40, 1));
}

Test(simt, a_barrier_without_ended_threads_is_noted) {
  const auto note = assay_device_simt()->note;
  ints in(64), count(40), all(40), any(40), out(128);
  RUN(neighbour<true>, 1, 128, 0, out.data());
  (void)note();
  RUN(neighbour<true>, 1, 128, 0, out.data());
  cr_expect(note() == nullptr, "all threads meet");
  for (uint64_t seed = 0; seed < 20; ++seed) {
    schedule(seed);
    RUN(barrier_votes, 2, 64, 0, in.data(), count.data(), all.data(), any.data());
    const char *said = note();
    cr_assert_not_null(said);
    cr_expect(strstr(said, "threads ended without the barrier at simt_kernels.cuh:") != nullptr, "%s", said);
    cr_expect(strncmp(said, "24 of 64 ", 9) == 0 && strstr(said, ", thread 40 first") != nullptr, "%s", said);
    cr_expect(note() == nullptr, "said twice");
  }
}

template <int lanes> static void check_groups() {
  ints in(128), sum(128), most(128);
  for (size_t i = 0; i < 128; ++i)
    in[i] = static_cast<int>(i * 37 % 101);
  for (uint64_t seed = 0; seed < 10; ++seed) {
    schedule(seed);
    RUN(group_sums<lanes>, 1, 128, 0, in.data(), sum.data(), most.data());
    for (size_t i = 0; i < 128; ++i) {
      const auto first = in.begin() + static_cast<ptrdiff_t>(i / lanes * lanes);
      cr_assert_eq(sum[i], std::accumulate(first, first + lanes, 0));
      cr_assert_eq(most[i], *std::max_element(first, first + lanes));
    }
  }
}

Test(simt, lane_groups_go_their_own_ways) {
  check_groups<4>();
  check_groups<8>();
  check_groups<16>();
  check_groups<32>();
}

Test(simt, lanes_outside_the_mask_give_nan) {
  std::vector<float> out(32);
  RUN(read_outside_mask, 1, 32, 0, out.data());
  for (size_t i = 0; i < 28; ++i)
    cr_assert_eq(std::isnan(out[i]), i % 8 >= 4);
}

Test(simt, overlapping_masks_in_turn_are_legal) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    ints out(32);
    schedule(seed);
    RUN(chained_pairs, 1, 32, 0, out.data());
    cr_assert_eq(out[0], 1);
    cr_assert_eq(out[1], 2);
    cr_assert_eq(out[2], 3);
  }
}

Test(simt, indices_of_threads_and_blocks) {
  const dim3 grid(3, 5, 2), block(5, 7, 3);
  ints out(3 * 5 * 2 * 105);
  RUN(indices, grid, block, 0, out.data());
  for (int i = 0; i < static_cast<int>(out.size()); ++i)
    cr_assert_eq(out[static_cast<size_t>(i)], i + i % 105 % 32 * 0x10000);
}

Test(simt, exited_threads_do_not_count_at_barriers) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    ints out(128, -1);
    schedule(seed);
    RUN(some_leave, 1, 128, 0, out.data());
    for (size_t i = 0; i < 128; ++i)
      cr_assert_eq(out[i], i % 64 < 32 ? 64 : -1);
  }
}

static std::vector<unsigned> order_of(uint64_t seed, unsigned blocks, unsigned threads) {
  unsigned next = 0;
  std::vector<unsigned> order(blocks * threads);
  schedule(seed);
  RUN(who_comes_first, blocks, threads, 0, &next, order.data());
  cr_assert_eq(next, blocks * threads);
  return order;
}

Test(simt, schedules_follow_the_seed) {
  for (unsigned threads : {1u, 100u, 256u}) {
    std::vector<unsigned> first = order_of(1, 12, threads);
    cr_expect(first == order_of(1, 12, threads));
    cr_expect(first != order_of(2, 12, threads));
    std::sort(first.begin(), first.end());
    for (unsigned i = 0; i < 12 * threads; ++i)
      cr_assert_eq(first[i], i);
  }
}

/* Either of any two threads or blocks can come first. */
Test(simt, either_of_two_comes_first) {
  ints before(64 * 64);
  for (uint64_t seed = 0; seed < 200; ++seed) {
    const std::vector<unsigned> order = order_of(seed, 1, 64);
    for (size_t i = 0; i < 64; ++i)
      for (size_t j = i + 1; j < 64; ++j)
        ++before[order[i] * 64 + order[j]];
  }
  for (size_t i = 0; i < 64; ++i)
    for (size_t j = 0; j < 64; ++j)
      cr_assert(i == j || before[i * 64 + j] >= 20, "%zu before %zu", i, j);
}

Test(simt, shared_memory_starts_as_nan) {
  std::vector<float> a(64), b(64);
  for (int again = 0; again < 3; ++again) {
    RUN(fresh_shared<float>, 2, 64, 64 * sizeof(float), a.data(), b.data());
    for (size_t i = 0; i < 64; ++i)
      cr_assert(std::isnan(a[i]) && std::isnan(b[i]));
  }
  std::vector<double> c(64), d(64);
  RUN(fresh_shared<double>, 2, 64, 64 * sizeof(double), c.data(), d.data());
  for (size_t i = 0; i < 64; ++i)
    cr_assert(std::isnan(c[i]) && std::isnan(d[i]));
}

/* NaN would not be seen in a maximum. Under a seed, half of the launches have the largest numbers. */
Test(simt, shared_memory_starts_as_large_numbers_too) {
  std::vector<float> a(64), b(64);
  int large = 0;
  for (uint64_t seed = 1; seed <= 64; ++seed) {
    schedule(seed);
    RUN(fresh_shared<float>, 2, 64, 64 * sizeof(float), a.data(), b.data());
    for (size_t i = 0; i < 64; ++i)
      cr_assert(std::isnan(a[i]) == std::isnan(a[0]) && std::isnan(b[i]) == std::isnan(a[0]));
    large += a[63] > 3e38f && b[63] > 3e38f;
  }
  schedule(0);
  cr_assert(large >= 16 && large <= 48, "%d of 64", large);
}

/* AddressSanitizer stops at the store itself. */
#ifndef UNDER_ASAN
Test(simt, redzones_name_the_array) {
  int out = 0;
  RUN(two_arrays, 1, 32, 128, &out, 31);
  RUN(two_arrays, 1, 32, 128, &out, 2031);
  RUN(two_arrays, 1, 32, 128, &out, 4031);
  cr_expect_eq(LAUNCH(two_arrays, 1, 32, 128, &out, 32), ASSAY_ERR_DEVICE);
  expect_text("two_arrays, block (0,0,0): shared memory overrun: byte 128 of first (simt_kernels.cuh:");
  cr_expect_eq(LAUNCH(two_arrays, 1, 32, 128, &out, 2040), ASSAY_ERR_DEVICE);
  expect_text("byte 160 of second (simt_kernels.cuh:");
  cr_expect_eq(LAUNCH(two_arrays, 1, 32, 128, &out, 4032), ASSAY_ERR_DEVICE);
  expect_text("byte 128 of dynamic shared memory was written, which has 128 bytes");
  RUN(two_arrays, 1, 32, 128, &out, 31);
}
#endif

Test(simt, shared_memory_limits) {
  std::vector<unsigned char> out(32);
  RUN(big_shared<48 * 1024>, 1, 32, 0, out.data());
  RUN(big_shared<48 * 1024>, 1, 32, 179 * 1024, out.data());
  cr_expect_eq(LAUNCH(big_shared<48 * 1024>, 1, 32, 179 * 1024 + 1, out.data()), ASSAY_ERR_DEVICE);
  expect_text("232448");
  cr_expect_eq(LAUNCH(big_shared<48 * 1024 + 1>, 1, 32, 0, out.data()), ASSAY_ERR_DEVICE);
  expect_text("big at simt_kernels.cuh:");
  cr_expect_eq(LAUNCH(big_shared<64>, 1, 32, 227 * 1024 + 1, out.data()), ASSAY_ERR_DEVICE);
  expect_text("found 232449 bytes, allowed 0 to 232448");
}

Test(simt, grid_and_block_limits) {
  unsigned next = 0;
  std::vector<unsigned> order(70000);
  RUN(who_comes_first, (launch_extent{1, 1, 65535}), 1, 0, &next, order.data());
  const auto refused = [&](launch_extent grid, launch_extent block, const char *text) {
    cr_expect_eq(LAUNCH(who_comes_first, grid, block, 0, &next, order.data()), ASSAY_ERR_DEVICE);
    expect_text("%s", text);
  };
  refused({1, 65536}, 32, "grid.y: found 65536, allowed 1 to 65535");
  refused({1, 1, 65536}, 32, "grid.z: found 65536, allowed 1 to 65535");
  refused(INT64_C(5000000000), 32, "grid.x: found 5000000000, allowed 1 to 2147483647");
  refused(0, 32, "grid.x: found 0");
  refused(1, 0, "block.x: found 0");
  refused(1, {1, -1}, "block.y: found -1");
  refused(1, 1025, "block.x: found 1025, allowed 1 to 1024");
  refused(1, {33, 32}, "threads a block: found 1056, allowed 1 to 1024");
  refused(1, {1, 1, 65}, "block.z: found 65, allowed 1 to 64");
  cr_expect_eq(next, 65535u);
}

/* After each error the next launch works. */
static void works() {
  std::vector<float> in(128, 1.0f), out(128);
  RUN(block_sum, 3, 128, 0, in.data(), out.data());
  cr_assert_eq(out[77], 128.0f);
}

Test(simt, illegal_masks_are_reported_with_lines) {
  ints out(64);
  cr_expect_eq(LAUNCH(not_in_mask, 1, 32, 0, out.data()), ASSAY_ERR_HANG);
  expect_text(
      "not_in_mask, block (0,0,0): illegal mask: thread 31 (lane 31) calls __shfl_xor_sync with mask 0x7fffffff");
  expect_text("at simt_kernels.cuh:%d", LINE_NOT_IN_MASK);
  works();
  for (uint64_t seed = 0; seed < 10; ++seed) {
    schedule(seed);
    cr_expect_eq(LAUNCH(exited_lane, 1, 32, 0, out.data()), ASSAY_ERR_HANG);
    expect_text("at simt_kernels.cuh:%d, which names a lane that has exited: lane 9", LINE_EXITED_LANE);
    works();
  }
  cr_expect_eq(LAUNCH(exited_lane, 1, 24, 0, out.data()), ASSAY_ERR_HANG);
  works();
}

Test(simt, disagreeing_lanes_are_reported_with_both_lines) {
  ints out(32);
  for (uint64_t seed = 0; seed < 10; ++seed) {
    schedule(seed);
    cr_expect_eq(LAUNCH(different_operations, 1, 32, 0, out.data()), ASSAY_ERR_HANG);
    expect_text("illegal mask: lanes of one mask meet in different operations");
    expect_text("threads 0-15: __shfl_xor_sync with mask 0xffffffff at simt_kernels.cuh:%d", LINE_SHUFFLE_A);
    expect_text("threads 16-31: __shfl_down_sync with mask 0xffffffff at simt_kernels.cuh:%d", LINE_SHUFFLE_B);
    works();
    cr_expect_eq(LAUNCH(different_masks, 1, 32, 0, out.data()), ASSAY_ERR_HANG);
    expect_text("illegal mask: lanes name each other with different masks");
    expect_text("simt_kernels.cuh:%d", LINE_MASK_A);
    expect_text("simt_kernels.cuh:%d", LINE_MASK_B);
    works();
  }
}

Test(simt, hangs_are_reported_with_lines) {
  ints out(64);
  for (uint64_t seed = 0; seed < 10; ++seed) {
    schedule(seed);
    cr_expect_eq(LAUNCH(hangs, 2, 64, 0, out.data()), ASSAY_ERR_HANG);
    expect_text("hang: every thread waits: threads 0-15: __shfl_xor_sync with mask 0xffffffff at simt_kernels.cuh:%d, "
                "waiting for 16-31; threads 16-63: __syncthreads at simt_kernels.cuh:%d",
                LINE_HANG_SHUFFLE, LINE_HANG_BARRIER);
    works();
  }
}

Test(simt, two_barriers_for_one_block_are_reported_with_both_lines) {
  ints out(64);
  cr_expect_eq(LAUNCH(two_barriers, 1, 64, 0, out.data()), ASSAY_ERR_HANG);
  expect_text("simt_kernels.cuh:%d", LINE_BARRIER_A);
  expect_text("simt_kernels.cuh:%d", LINE_BARRIER_B);
  works();
}

static long resident_pages() {
  long size = 0, resident = 0;
  FILE *file = fopen("/proc/self/statm", "r");
  cr_assert_not_null(file);
  cr_assert_eq(fscanf(file, "%ld %ld", &size, &resident), 2);
  (void)fclose(file);
  return resident;
}

Test(simt, ten_thousand_launches_do_not_grow) {
  /* Allocated once: AddressSanitizer keeps freed memory for a while. */
  std::vector<float> in(128, 1.0f), sum(128);
  ints out(64);
  const auto launches = [&](int count) {
    for (int i = 0; i < count; ++i)
      if (i % 2 == 0)
        RUN(block_sum, 3, 128, 0, in.data(), sum.data());
      else
        cr_assert_eq(LAUNCH(hangs, 1, 64, 0, out.data()), ASSAY_ERR_HANG);
  };
  launches(1000);
  const long before = resident_pages();
  launches(10000);
  const long grown = resident_pages() - before;
  cr_expect_leq(grown, 64, "%ld pages", grown);
}

Test(simt, device_memory_and_facts) {
  const assay_device *device = assay_device_simt();
  assay_device_info info;
  cr_assert_eq(device->info(&info, &message), ASSAY_OK);
  cr_expect_gt(strlen(info.name), 0u);
  cr_expect_gt(info.multiprocessors, 0);
  void *memory = nullptr;
  cr_assert_eq(device->alloc(1000, &memory, &message), ASSAY_OK);
  cr_expect_eq(reinterpret_cast<uintptr_t>(memory) % 256, 0u);
  const char text[] = "there and back";
  char back[sizeof text];
  cr_expect_eq(device->upload(memory, text, sizeof text, &message), ASSAY_OK);
  cr_expect_eq(device->download(back, memory, sizeof text, &message), ASSAY_OK);
  cr_expect_eq(device->synchronize(&message), ASSAY_OK);
  cr_expect_str_eq(back, text);
  device->release(memory);
}
