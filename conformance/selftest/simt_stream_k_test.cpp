/* simt_stream_k_test.cpp: even shares (stream_k.cuh): where they begin and end, records that are lost, lengths and
 * tables that the launch before had not written yet. */
#include <criterion/criterion.h>

#include "simt_fixture.h"

#include "gpu/lib/softmax_stream_k.cuh"
#include "stream_problem.h"

TestSuite(simt_stream_k, .init = open_simt, .timeout = 120);

struct problem : stream_problem {
  std::vector<uint64_t> workspace;
  using stream_problem::stream_problem;

  assay_status launch(int64_t shares, int32_t resident) {
    const int64_t words = softmax_stream_k_words(p.a);
    workspace.assign(static_cast<size_t>(3 * shares * words), UINT64_C(0x3F8000003F800000)); /* looks like a record */
    out.assign(out.size(), from_float<bf16>(NAN));
    launch_options options = in_turn();
    options.resident = resident;
    constexpr int64_t warps = stream_k_warps(D, 2), shared = 4 * 2 * warps * softmax_shared_floats<D, 2>;
    return LAUNCH_WITH((softmax_stream_k<bf16, bf16, D, 2>), shares, 32 * warps, shared, options, p,
                       stream_k_places(workspace.data(), shares, words));
  }
  std::vector<uint16_t> run(int64_t shares, int32_t resident) {
    cr_assert_eq(launch(shares, resident), ASSAY_OK, "%s", message.text);
    return bits();
  }
};

/* Pieces that begin and end anywhere: whole rows, rows over many shares, more shares than blocks, no keys at all. */
/* Two thread blocks with rings of sixteen heads of 112 channels fill a multiprocessor, and no launch can ask for more.
 */
Test(simt_stream_k, shared_memory_is_at_most_all) {
  cr_expect_eq(stream_k_shared_percent(106752), 100);
  cr_expect_eq(stream_k_shared_percent(94720), 91);
}

Test(simt_stream_k, every_key_is_in_one_share) {
  for (const int64_t shares : {1, 2, 3, 7, 8, 40})
    for (const std::vector<int32_t> &lengths : {std::vector<int32_t>{400},
                                                {1},
                                                {0},
                                                {16, 17, 0, 33},
                                                {0, 400, 1, 1, 1},
                                                {64, 64, 64, 64},
                                                {1, 0, 0, 390, 0}}) {
      schedule(static_cast<uint64_t>(shares));
      problem batch(lengths);
      batch.run(shares, shares < 8 ? static_cast<int32_t>(shares) : 8); /* some of 40 records come, some do not */
      cr_expect_leq(batch.worst(), rounding, "%g: %d shares, %zu rows of %d ... keys", batch.worst(),
                    static_cast<int>(shares), lengths.size(), lengths[0]);
    }
}

/* More rows than threads, in the second round of which there are others than in the first. */
Test(simt_stream_k, many_rows) {
  std::vector<int32_t> lengths(421);
  for (size_t i = 0; i < lengths.size(); ++i)
    lengths[i] = static_cast<int32_t>(i * 31 % 48);
  problem batch(lengths);
  batch.run(8, 8);
  cr_expect_leq(batch.worst(), rounding);
}

/* One share after the other: no record comes, and each is computed in its stead. To the same bits. */
Test(simt_stream_k, lost_records) {
  for (const std::vector<int32_t> &lengths : {std::vector<int32_t>{400, 30, 200}, {399}, {70, 70, 70, 70, 70}}) {
    problem batch(lengths);
    const std::vector<uint16_t> together = batch.run(8, 8);
    for (uint64_t seed = 0; seed < 8; ++seed) {
      schedule(seed);
      cr_expect(batch.run(8, 1) == together, "not the same bits");
      cr_expect_leq(batch.worst(), rounding);
    }
  }
}

/* The launch before writes lengths and table: what was asked for by the old ones is not used. */
__global__ static void write_words(const int32_t *from, int32_t *to, int32_t count) {
  dependents_launch();
  for (int32_t i = static_cast<int32_t>(threadIdx.x); i < count; i += static_cast<int32_t>(blockDim.x))
    to[i] = from[i];
}

static void written_before(bool lengths, const std::vector<int32_t> &old) {
  problem batch({400, 30, 0, 200, 77});
  const std::vector<uint16_t> wanted = batch.run(8, 8);
  std::vector<int32_t> &which = lengths ? batch.length : batch.table;
  const std::vector<int32_t> now = which;
  for (uint64_t seed = 0; seed < 12; ++seed) {
    schedule(seed);
    for (size_t i = 0; i < which.size(); ++i)
      which[i] = old[i % old.size()];
    launch_options first;
    first.followed = true;
    cr_assert_eq(LAUNCH_WITH(write_words, 1, 64, 0, first, now.data(), which.data(), static_cast<int32_t>(now.size())),
                 ASSAY_OK);
    cr_assert_eq(batch.launch(8, 8), ASSAY_OK, "%s", message.text);
    cr_expect(batch.bits() == wanted, "%s were %d ...", lengths ? "lengths" : "entries", old[0]);
  }
}

Test(simt_stream_k, lengths_of_the_launch_before) {
  for (const std::vector<int32_t> &old :
       {std::vector<int32_t>{400, 30, 0, 200, 76}, {400, 30, 0, 200, 90}, {0}, {-5}, {INT32_MAX}, {401}})
    written_before(true, old);
}

Test(simt_stream_k, tables_of_the_launch_before) {
  for (const std::vector<int32_t> &old : {std::vector<int32_t>{0}, {1, 2, 3}, {-1}, {INT32_MAX}})
    written_before(false, old);
}
