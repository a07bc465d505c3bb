/* simt_key_lanes_test.cpp: what the host decides of key_lanes: lanes of a key, splits on the tables' capacity, which
 * loads are whole; what is declined. */
#include <criterion/criterion.h>

#include "simt_fixture.h"

#include "gpu/lib/key_lanes.cuh"
#include "gpu/lib/query_tile.cuh"

TestSuite(simt_key_lanes, .init = open_simt, .timeout = 60);

alignas(16) static char memory[64];
static const attention_types bf16s = {ASSAY_BF16, ASSAY_BF16}, f32s = {ASSAY_F32, ASSAY_F32},
                             codes = {ASSAY_BF16, ASSAY_E4M3};

/* Layout nhd, blocks of 16. */
static attention_params rows_of(int64_t N, int64_t keys, int32_t D = 128) {
  attention_params a = {};
  a.N = N;
  a.H = 8;
  a.H_kv = 4;
  a.G = 2;
  a.D = D;
  a.capacity = keys;
  a.cache.k = a.cache.v = memory;
  a.cache.block_shift = 4;
  a.cache.k_token = a.cache.v_token = 4 * D;
  a.cache.k_head = a.cache.v_head = D;
  a.cache.k_block = a.cache.v_block = 64 * D;
  a.cache.v_channel = 1;
  a.cache.chunk_shift = 2;
  a.cache.k_chunk = 4;
  return a;
}

static key_lanes_shape shape_of(const attention_params &a, const attention_types &types) {
  return key_lanes_shape_of(a, types);
}

Test(simt_key_lanes, lanes_of_a_key) {
  const auto lanes_of = [](int32_t G, int32_t D) {
    attention_params a = rows_of(1, 1024, D);
    a.G = G;
    a.H = a.H_kv * G;
    return shape_of(a, bf16s).lanes;
  };
  /* The whole group in one pass, or four heads of it. */
  for (const int32_t G : {1, 2, 3, 4, 8})
    cr_expect_eq(lanes_of(G, 64), 4);
  cr_expect_eq(lanes_of(2, 128), 4);
  cr_expect_eq(lanes_of(3, 128), 8);
  cr_expect_eq(lanes_of(8, 128), 8);
  cr_expect_eq(lanes_of(1, 256), 8, "of four lanes each would have 64 channels");
  cr_expect_eq(lanes_of(2, 256), 8);
  cr_expect_eq(lanes_of(3, 256), 16);
}

Test(simt_key_lanes, splits_on_capacity) {
  const auto expect = [](int64_t N, int64_t keys, int32_t tiles, int32_t splits) {
    const key_lanes_shape s = shape_of(rows_of(N, keys), bf16s);
    cr_expect(s.tiles == tiles && s.splits == splits, "%d rows of %lld keys: %d tiles, %d splits", static_cast<int>(N),
              static_cast<long long>(keys), s.tiles, s.splits);
  };
  expect(1, 0, 1, 1);
  expect(1, 128, 1, 1);
  expect(1, 129, 1, 2);
  expect(1, 131072, 4, 256); /* 264 blocks for each (row, kv head) keep a device busy */
  expect(32, 4096, 4, 8);    /* 32 tiles, eight blocks per tile */
  expect(264, 4096, 32, 1);
  expect(1000, 4096, 32, 1);
  expect(0, 4096, 32, 1);
  expect(1, static_cast<int64_t>(1) << 40, 63551, 264); /* as many as 32 bits can name: 2^24 tiles */
}

Test(simt_key_lanes, threads_and_classes) {
  cr_expect_eq(shape_of(rows_of(1, 16), bf16s).threads, 32);
  cr_expect_eq(shape_of(rows_of(1, 64), bf16s).threads, 64);
  cr_expect_eq(shape_of(rows_of(1, 65), bf16s).threads, 128);
  cr_expect_eq(shape_of(rows_of(1, 16, 256), f32s).threads, 64, "a thread has four of 256 channels");
  cr_expect_eq(shape_of(rows_of(1, 16, 64), bf16s).channels, 64);
  cr_expect_eq(shape_of(rows_of(1, 16, 72), bf16s).channels, 128);
  cr_expect_eq(shape_of(rows_of(1, 16, 136), bf16s).channels, 256);
}

Test(simt_key_lanes, whole_loads) {
  attention_params a = rows_of(1, 1024);
  cr_expect(shape_of(a, bf16s).k_units && shape_of(a, bf16s).v_units);
  cr_expect(shape_of(rows_of(1, 1024, 72), bf16s).k_units);
  cr_expect_not(shape_of(rows_of(1, 1024, 72), codes).k_units, "loads of 16 channels");
  a.cache.k_block += 4;
  a.cache.v_block += 2;
  cr_expect_not(shape_of(a, bf16s).k_units);
  cr_expect_not(shape_of(a, bf16s).v_units);
  cr_expect(shape_of(a, f32s).k_units, "16 bytes are four of f32");
  a = rows_of(1, 1024);
  a.cache.k = memory + 8;
  cr_expect_not(shape_of(a, bf16s).k_units);
  cr_expect(shape_of(a, bf16s).v_units);
}

Test(simt_key_lanes, what_is_declined) {
  const auto plan = [](const attention_params &a) {
    int64_t bytes = -1;
    message.text[0] = '\0';
    return key_lanes_plan(a, shape_of(a, bf16s), a.D, &bytes, &message) == ASSAY_OK ? bytes : -1;
  };
  cr_expect_eq(plan(rows_of(32, 4096)), 4 * 128 * 32 * 8 * 8, "an f32 a channel, row, head and split");
  cr_expect_eq(plan(rows_of(1000, 4096)), 0);
  const int32_t cu_q[1] = {0};
  attention_params ragged = rows_of(15, 1024);
  ragged.cu_q = cu_q;
  cr_expect_eq(plan(ragged), -1);
  SAYS("cu_q: found a tensor, allowed none with D = 128: split_keys takes ragged rows");
  ragged.D = 96;
  cr_expect_neq(plan(ragged), -1, "split_keys does not take it");
  ragged.N = 511;
  cr_expect_neq(plan(ragged), -1);
  ragged.N = 512;
  cr_expect_eq(plan(ragged), -1);
  SAYS("N: found 512 ragged rows of 8 heads, allowed fewer than 4096 rows and heads");
  ragged.cu_q = NULL;
  cr_expect_neq(plan(ragged), -1, "a decode of as many");
  attention_params by_token = rows_of(16, 1024);
  by_token.cache.v_channel = 16;
  cr_expect_eq(plan(by_token), -1);
  SAYS("N: found 16 rows of 4 kv heads in layout x, allowed fewer than 64 rows and kv heads where split_keys takes "
       "them");
  by_token.D = 96;
  cr_expect_neq(plan(by_token), -1, "split_keys does not take it");
  by_token.D = 128;
  by_token.N = 15;
  cr_expect_neq(plan(by_token), -1);
  by_token.H = by_token.H_kv = 3;
  by_token.G = 1;
  by_token.N = 21;
  cr_expect_neq(plan(by_token), -1, "63");
  by_token.N = 22;
  cr_expect_eq(plan(by_token), -1, "66");
}

/* split_keys and query_tile, which takes all, part at 4096 rows and heads. */
Test(simt_key_lanes, who_takes_prompts) {
  const int32_t cu_q[2] = {0, 0};
  const auto splits = [&](int64_t N) {
    attention_params a = rows_of(N, 1024);
    a.cu_q = cu_q;
    a.B = 1;
    cr_expect_eq(expect_query_tile(a, &message), ASSAY_OK);
    message.text[0] = '\0';
    int32_t count;
    int64_t bytes;
    return expect_split(a, a.D, &count, &bytes, &message) == ASSAY_OK;
  };
  cr_expect(splits(511));
  cr_expect_not(splits(512));
  SAYS("N: found 512 ragged rows of 8 heads, allowed fewer than 4096 rows and heads");
}
