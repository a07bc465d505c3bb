/* simt_stream_plan_test.cpp: what the host decides of a streamed decode (stream_plan.h): warps, splits, clusters; and
 * which calls `stream` leaves to even shares. */
#include <criterion/criterion.h>

#include "simt_fixture.h"

#include "gpu/lib/stream_plan.h"

TestSuite(simt_stream_plan, .init = open_simt, .timeout = 60);

static attention_params rows_of(int64_t N, int64_t keys) {
  attention_params a = {};
  a.N = N;
  a.H_kv = 4;
  a.G = 2;
  a.D = 128;
  a.capacity = keys;
  return a;
}

Test(simt_stream_plan, places_of_a_multiprocessor) {
  cr_expect_eq(stream_places(264, 12), 2);
  cr_expect_eq(stream_places(265, 12), 3); /* three each at most, not four */
  cr_expect_eq(stream_places(396, 12), 3);
  cr_expect_eq(stream_places(397, 12), 4);
  cr_expect_eq(stream_places(528, 12), 4);
  cr_expect_eq(stream_places(640, 12), 3); /* six, not eight */
  cr_expect_eq(stream_places(1024, 12), 4);
  cr_expect_eq(stream_places(320, 8), 4); /* eight warps do not part in three */
}

static void expect_shape(int64_t N, int64_t keys, int32_t most, stream_shape wanted) {
  const stream_shape is = stream_shape_of(rows_of(N, keys), most);
  cr_expect(is.warps == wanted.warps && is.splits == wanted.splits && is.cluster == wanted.cluster &&
                is.places == wanted.places,
            "%d rows of %d keys, %d warps: %d warps, %d splits, clusters of %d, %d places", static_cast<int>(N),
            static_cast<int>(keys), most, is.warps, is.splits, is.cluster, is.places);
}

/* Four kv heads a row. */
Test(simt_stream_plan, splits_that_a_cluster_joins) {
  expect_shape(16, 2048, 12, {11, 2, 2, 1}); /* six rounds of 22 warps as of 24 */
  expect_shape(16, 512, 12, {12, 2, 2, 1});  /* with few rounds none is given away */
  expect_shape(16, 256, 12, {8, 2, 2, 1});   /* one block per row */
  expect_shape(16, 192, 12, {12, 1, 1, 1});  /* one round already */
  expect_shape(20, 520, 12, {4, 4, 4, 3});
  expect_shape(18, 2048, 12, {6, 3, 3, 2});
  expect_shape(20, 2048, 12, {4, 4, 4, 3});
  expect_shape(25, 2048, 12, {12, 1, 1, 1}); /* three of four warps make no fewer rounds */
  expect_shape(33, 2048, 12, {12, 1, 1, 1});
  expect_shape(34, 2048, 12, {3, 3, 3, 4});
  expect_shape(36, 2048, 12, {3, 3, 3, 4});
  expect_shape(36, 512, 12, {3, 3, 3, 4}); /* four rounds as with eight warps, of which there are fewer */
  expect_shape(37, 2048, 12, {4, 2, 2, 3});
  expect_shape(49, 2048, 12, {4, 2, 2, 3});
  expect_shape(50, 2048, 12, {6, 1, 1, 2}); /* two of four warps do not fit */
  expect_shape(66, 2048, 12, {6, 1, 1, 2});
  expect_shape(67, 2048, 12, {4, 1, 1, 3});
  expect_shape(18, 2048, 8, {4, 3, 3, 2});
  expect_shape(40, 2048, 8, {4, 1, 1, 2}); /* eight warps do not part in three */
}

/* With contiguous keys the host knows the rows of all requests. Each is planned for an even share of them. */
Test(simt_stream_plan, contiguous_keys) {
  const auto packed = [](int64_t N, int64_t rows) {
    attention_params a = rows_of(N, rows);
    a.B = static_cast<int32_t>(N);
    a.cache.block_shift = contiguous_shift;
    return a;
  };
  cr_expect_eq(stream_planned(packed(18, 18 * 2048 - 5)), 2048);
  cr_expect_eq(stream_planned(packed(0, 9)), 9);
  const stream_shape is = stream_shape_of(packed(18, 18 * 2048 - 5), 12);
  cr_expect(is.warps == 6 && is.splits == 3 && is.cluster == 3 && is.places == 2);
  cr_expect(stream_leaves_idle(packed(40, 40 * 2048), 12, 2));
  cr_expect_not(stream_leaves_idle(packed(64, 64 * 2048), 12, 2));
  const attention_params many = packed(64, 64 * 2048), most = packed(64, INT64_C(1) << contiguous_shift);
  const stream_shape of_many = stream_shape_of(many, 12);
  cr_expect_eq(stream_speed_of(many, of_many, 2, 0).block_ns,
               stream_speed_of(rows_of(64, 2048), of_many, 2, 0).block_ns);
  cr_expect_gt(stream_speed_of(many, of_many, 2, 0).block_ns, 0.0f);
  cr_expect_eq(stream_speed_of(most, of_many, 2, 0).block_ns, 0.0f, "each length may be as long as all rows");
}

Test(simt_stream_plan, splits_that_another_launch_joins) {
  expect_shape(1, 16384, 12, {11, 33, 1, 1});
  expect_shape(11, 2048, 12, {11, 3, 1, 1});
  cr_expect(stream_merges({12, 3, 1, 1}));
  cr_expect_not(stream_merges({12, 2, 2, 1}));
  cr_expect_not(stream_merges({12, 1, 1, 1}));
  attention_params a = rows_of(11, 2048);
  a.H = 8;
  cr_expect_eq(stream_workspace(a, {11, 3, 1, 1}, 130), 11 * 8 * 3 * 130 * 4);
  cr_expect_eq(stream_workspace(a, {12, 2, 2, 1}, 130), 0);
}

Test(simt_stream_plan, grids_and_options) {
  const launch_extent pairs = stream_grid(rows_of(16, 2048), {11, 2, 2, 1});
  cr_expect(pairs.x == 128 && pairs.y == 1);
  const launch_extent apart = stream_grid(rows_of(11, 2048), {11, 3, 1, 1});
  cr_expect(apart.x == 44 && apart.y == 3);
  cr_expect_eq(stream_options({11, 2, 2, 1}, 1000).cluster, 2);
  cr_expect_not(stream_options({11, 2, 2, 1}, 1000).followed);
  cr_expect(stream_options({11, 3, 1, 1}, 1000).followed);
  cr_expect_eq(stream_options({3, 3, 3, 4}, 1000).shared_percent, stream_shared_percent);
  cr_expect_eq(stream_options({2, 3, 3, 4}, 20 * 1024).shared_percent, 39); /* four of 22 KB of 228 */
}

Test(simt_stream_plan, left_idle) {
  cr_expect_float_eq(stream_fill(rows_of(64, 2048), 12), 256.0 / 264.0, 1e-9);
  cr_expect_float_eq(stream_fill(rows_of(56, 2048), 12), 224.0 / 264.0, 1e-9);
  cr_expect_float_eq(stream_fill(rows_of(40, 2048), 12), 320.0 / 396.0, 1e-9); /* two splits each */
  cr_expect_float_eq(stream_fill(rows_of(25, 2048), 12), 100.0 / 132.0, 1e-9);
  cr_expect_float_eq(stream_fill(rows_of(80, 2048), 12), 320.0 / 396.0, 1e-9);
  cr_expect_float_eq(stream_fill(rows_of(1, 16384), 12), 1.0, 1e-9); /* 33 splits each */
  cr_expect_float_eq(stream_fill(rows_of(0, 2048), 12), 1.0, 1e-9);
  for (const int64_t full : {1, 32, 64, 128})
    cr_expect_not(stream_leaves_idle(rows_of(full, 16384), 12, 2), "%d rows", static_cast<int>(full));
  cr_expect(stream_leaves_idle(rows_of(40, 2048), 12, 2));
  cr_expect_not(stream_leaves_idle(rows_of(40, 256), 12, 2), "short rows end before even shares begin");
  /* On both sides of what even shares cost. */
  cr_expect(stream_leaves_idle(rows_of(37, 512), 12, 2));
  cr_expect_not(stream_leaves_idle(rows_of(40, 512), 12, 2));
  cr_expect(stream_leaves_idle(rows_of(52, 512), 12, 2));
  cr_expect_not(stream_leaves_idle(rows_of(30, 2064), 12, 2));
  cr_expect_not(stream_leaves_idle(rows_of(56, 528), 12, 2));
  /* On both sides of what they cost where `stream` keeps a pace. */
  for (const int64_t rows : {27, 28, 30, 62})
    cr_expect_not(stream_leaves_idle(rows_of(rows, 2064), 12, 2), "%d rows", static_cast<int>(rows));
  cr_expect_not(stream_leaves_idle(rows_of(56, 1040), 12, 2));
  cr_expect_not(stream_leaves_idle(rows_of(120, 1040), 12, 2));
  cr_expect(stream_leaves_idle(rows_of(52, 1024), 12, 2));
  cr_expect(stream_leaves_idle(rows_of(56, 2048), 12, 2));
  cr_expect(stream_leaves_idle(rows_of(72, 512), 12, 2));
  /* With one row per multiprocessor the share decides, whatever the lengths. */
  for (const int64_t keys : {2048, 4096, 32768}) {
    cr_expect(stream_leaves_idle(rows_of(25, keys), 12, 2), "%d keys", static_cast<int>(keys));
    cr_expect_not(stream_leaves_idle(rows_of(26, keys), 12, 2), "%d keys", static_cast<int>(keys));
  }
}

/* How full is enough, of one kv head a row: 101 and 102 of 132 with a row a multiprocessor, 242 and 243 of 264. */
Test(simt_stream_plan, enough) {
  const auto leaves_idle = [](int64_t N) {
    attention_params a = rows_of(N, 8192);
    a.H_kv = 1;
    return stream_leaves_idle(a, 12, 2);
  };
  cr_expect(leaves_idle(101));
  cr_expect_not(leaves_idle(102));
  cr_expect(leaves_idle(242));
  cr_expect_not(leaves_idle(243));
}

/* Shapes whose thread blocks are all under way together. */
Test(simt_stream_plan, speeds) {
  const auto speed = [](int64_t N, int64_t keys, int64_t element) {
    const attention_params a = rows_of(N, keys);
    return stream_speed_of(a, stream_shape_of(a, 12), element, 0);
  };
  const stream_speed whole = speed(64, 2048, 2), codes = speed(64, 2048, 1), split = speed(40, 2048, 2);
  cr_expect_float_eq(whole.block_ns, 8192.0f / 4550.0f, 1e-5f);
  cr_expect_float_eq(whole.round_ns, 12.0f * 8192.0f / 40.0f, 1e-2f);
  cr_expect_float_eq(codes.block_ns, whole.block_ns / 2.0f, 1e-5f);
  cr_expect_float_eq(speed(28, 2048, 2).round_ns, whole.round_ns, 1e-2f);
  cr_expect_float_eq(speed(132, 2048, 2).round_ns, whole.round_ns, 1e-2f); /* four of three warps */
  cr_expect_float_eq(split.block_ns, whole.block_ns, 1e-5f);
  cr_expect_eq(split.round_ns, 0.0f);
  cr_expect_gt(speed(132, 2048, 2).block_ns, 0.0f);
  cr_expect_eq(speed(133, 2048, 2).block_ns, 0.0f, "four more than there is room for");
  cr_expect_eq(speed(133, 2048, 2).round_ns, 0.0f);
  cr_expect_eq(speed(64, 0, 2).block_ns, 0.0f);
  cr_expect_float_eq(speed(28, 97 * 16, 2).round_ns, 11.0f * 8192.0f / 40.0f, 1e-2f); /* eleven warps */
  attention_params half = rows_of(64, 2048);
  half.D = 64;
  const stream_speed narrow = stream_speed_of(half, stream_shape_of(half, 12), 2, 0);
  cr_expect_float_eq(narrow.block_ns, whole.block_ns / 2.0f, 1e-5f);
  cr_expect_float_eq(narrow.round_ns, whole.round_ns / 2.0f, 1e-2f);
  cr_expect_gt(speed(64, 768, 2).block_ns, 0.0f, "eight rounds of six warps");
  cr_expect_eq(speed(64, 752, 2).block_ns, 0.0f, "and one block less: nothing to count for");
  cr_expect_gt(speed(40, 1024, 2).block_ns, 0.0f, "of two splits with four warps");
  cr_expect_eq(speed(40, 1008, 2).block_ns, 0.0f);
  const int64_t most = INT32_MAX / (64 * rows_of(64, 16).H_kv); /* blocks a row that 32 bits count */
  cr_expect_gt(speed(64, 16 * most, 2).block_ns, 0.0f);
  cr_expect_eq(speed(64, 16 * most + 1, 2).block_ns, 0.0f);
}

/* The pace is that of the memory; a multiprocessor reads as fast beside a slower one. */
Test(simt_stream_plan, speeds_of_memories) {
  const attention_params a = rows_of(64, 2048);
  const stream_shape shape = stream_shape_of(a, 12);
  const stream_speed h200 = stream_speed_of(a, shape, 2, 4917), h100 = stream_speed_of(a, shape, 2, 3352);
  cr_expect_float_eq(h200.block_ns, 8192.0f / 4550.0f, 1e-5f);
  cr_expect_float_eq(h100.block_ns, 8192.0f / 3101.9f, 1e-4f);
  cr_expect_eq(h100.round_ns, h200.round_ns);
  for (const int32_t rate : {0, 3900, 4097, 6556})
    cr_expect_eq(stream_speed_of(a, shape, 2, rate).block_ns, h200.block_ns);
  cr_expect_float_eq(stream_speed_of(a, shape, 2, 3899).block_ns, 8192.0f / 3608.1f, 1e-4f);
  /* 2^31 blocks at 2.64 ns are more than 2^32 ns, and less at 1.80. */
  const attention_params most = rows_of(64, 16 * (INT32_MAX / (64 * a.H_kv)));
  cr_expect_gt(stream_speed_of(most, shape, 2, 4917).block_ns, 0.0f);
  cr_expect_eq(stream_speed_of(most, shape, 2, 3352).block_ns, 0.0f);
  cr_expect_eq(stream_speed_of(most, shape, 2, 3352).round_ns, 0.0f);
}

Test(simt_stream_plan, who_keeps_a_pace) {
  const auto keeps = [](int64_t N, int64_t keys) {
    const attention_params a = rows_of(N, keys);
    return stream_keeps_pace(a, stream_shape_of(a, 12), 2);
  };
  cr_expect(keeps(64, 2048));
  cr_expect(keeps(128, 512));     /* eleven rounds of three warps */
  cr_expect_not(keeps(32, 1024)); /* six of eleven */
  cr_expect_not(keeps(64, 512));
  cr_expect_not(keeps(40, 2048), "clusters");
  cr_expect_not(keeps(133, 2048), "not under way together");
  cr_expect_not(keeps(128, 240), "four rounds");
  attention_params few = rows_of(67, 1024); /* 67 x 64 blocks of 8 KB: L2 holds them */
  few.H_kv = 1;
  cr_expect_not(stream_keeps_pace(few, {6, 1, 1, 2}, 2));
  few.H_kv = 3;
  cr_expect(stream_keeps_pace(few, {6, 1, 1, 2}, 2));
}

Test(simt_stream_plan, stream_leaves_calls_to_even_shares) {
  message.text[0] = '\0';
  cr_expect_eq(expect_filled(rows_of(25, 2048), 12, 2, &message), ASSAY_ERR_UNSUPPORTED);
  SAYS("N: found 25 rows of 4 kv heads, which leave 24 % of the multiprocessors idle, allowed 23 % with 2048 keys a "
       "row");
  message.text[0] = '\0';
  cr_expect_eq(expect_filled(rows_of(40, 2048), 12, 2, &message), ASSAY_ERR_UNSUPPORTED);
  SAYS(
      "N: found 40 rows of 4 kv heads, which leave 19 % of the multiprocessors idle, allowed 8 % with 2048 keys a row");
  cr_expect_eq(expect_filled(rows_of(64, 2048), 12, 2, &message), ASSAY_OK);
  attention_params many = rows_of(1200, 2048);
  many.H_kv = 1;
  cr_expect(stream_leaves_idle(many, 12, 2));
  cr_expect_eq(expect_filled(many, 12, 2, &message), ASSAY_OK, "more rows than stream_k takes");
  message.text[0] = '\0';
  cr_expect_eq(expect_stream_k(rows_of(1100, 2048), &message), ASSAY_ERR_UNSUPPORTED);
  SAYS("N: found 1100 rows, allowed 1024");
  cr_expect_eq(expect_stream_k(rows_of(1000, INT64_C(1) << 26), &message), ASSAY_ERR_UNSUPPORTED);
}
