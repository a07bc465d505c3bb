/* simt_stream_k_test.cpp: even shares (stream_k.cuh): where they begin and end, records that are lost, lengths and
 * tables that the launch before had not written yet. */
#include <criterion/criterion.h>

#include "simt_fixture.h"

#include "gpu/lib/softmax_stream_k.cuh"

TestSuite(simt_stream_k, .init = open_simt, .timeout = 120);

constexpr int32_t D = 128, G = 2, H_kv = 2, capacity = 400, block = 16, entries = capacity / block;

/* Whole numbers from -8 to 7, no block like another. */
static std::vector<bf16> values(size_t count, uint64_t salt) {
  std::vector<bf16> v(count);
  for (size_t i = 0; i < count; ++i)
    v[i] = from_float<bf16>(
        static_cast<float>(static_cast<int>((i + 1 + salt * 1000003) * UINT64_C(0x9E3779B97F4A7C15) >> 60) - 8));
  return v;
}

/* Rows of these lengths, blocks of 16 keys in order. */
struct problem {
  std::vector<int32_t> length, table;
  std::vector<bf16> q, k, v, out;
  std::vector<uint64_t> workspace;
  softmax_params p = {};

  problem(const problem &) = delete;
  explicit problem(std::vector<int32_t> lengths) : length(lengths) {
    const size_t N = length.size();
    table.resize(N * entries);
    for (size_t i = 0; i < table.size(); ++i)
      table[i] = static_cast<int32_t>(i * 7 % table.size());
    q = values(N * H_kv * G * D, 1);
    k = values(table.size() * block * H_kv * D, 2);
    v = values(table.size() * block * H_kv * D, 3);
    out.resize(q.size());
    attention_params &a = p.a;
    paged_cache &cache = a.cache;
    cache.k = k.data();
    cache.v = v.data();
    cache.k_block = cache.v_block = block * H_kv * D;
    cache.k_head = cache.v_head = D;
    cache.k_token = cache.v_token = H_kv * D;
    cache.v_channel = 1;
    cache.table = table.data();
    cache.table_row = entries;
    cache.blocks = static_cast<int64_t>(table.size());
    cache.block_shift = 4;
    a.q = q.data();
    a.out = out.data();
    a.length = length.data();
    a.q_row = H_kv * G * D;
    a.N = a.B = static_cast<int32_t>(N);
    a.capacity = capacity;
    a.H = H_kv * G;
    a.H_kv = H_kv;
    a.G = G;
    a.D = D;
    a.scale = 0.125f;
  }

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
  std::vector<uint16_t> bits() const {
    std::vector<uint16_t> all(out.size());
    memcpy(all.data(), out.data(), 2 * all.size());
    return all;
  }
  /* The largest difference from the formula, in f64. */
  double worst() const {
    double largest = 0.0;
    for (int32_t row = 0; row < p.a.N; ++row)
      for (int32_t head = 0; head < H_kv * G; ++head) {
        const size_t at = static_cast<size_t>(row * H_kv * G + head) * D;
        std::vector<double> sum(D, 0.0);
        double total = 0.0, peak = -1e300;
        for (const bool second : {false, true})
          for (int32_t t = 0; t < length[static_cast<size_t>(row)]; ++t) {
            const size_t slot =
                static_cast<size_t>(table[static_cast<size_t>(row * entries + t / block)] * block + t % block);
            const size_t key = (slot * H_kv + static_cast<size_t>(head / G)) * D;
            double s = 0.0;
            for (size_t d = 0; d < D; ++d)
              s += static_cast<double>(to_float(q[at + d])) * static_cast<double>(to_float(k[key + d]));
            s *= 0.125;
            if (!second) {
              peak = s > peak ? s : peak;
              continue;
            }
            total += exp(s - peak);
            for (size_t d = 0; d < D; ++d)
              sum[d] += exp(s - peak) * static_cast<double>(to_float(v[key + d]));
          }
        for (size_t d = 0; d < D; ++d) {
          const double error = fabs(static_cast<double>(to_float(out[at + d])) - (total > 0.0 ? sum[d] / total : 0.0));
          if (!(error <= largest)) largest = error;
        }
      }
    return largest;
  }
};

constexpr double rounding = 0.0157; /* of values up to 8 as bf16: half of 2^-5, and what f32 adds */

/* Pieces that begin and end anywhere: whole rows, rows over many shares, more shares than blocks, no keys at all. */
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
      problem one(lengths);
      one.run(shares, shares < 8 ? static_cast<int32_t>(shares) : 8); /* of 40 some records come and some do not */
      cr_expect_leq(one.worst(), rounding, "%g: %d shares, %zu rows of %d ... keys", one.worst(),
                    static_cast<int>(shares), lengths.size(), lengths[0]);
    }
}

/* More rows than threads, in the second round of which there are others than in the first. */
Test(simt_stream_k, many_rows) {
  std::vector<int32_t> lengths(421);
  for (size_t i = 0; i < lengths.size(); ++i)
    lengths[i] = static_cast<int32_t>(i * 31 % 48);
  problem one(lengths);
  one.run(8, 8);
  cr_expect_leq(one.worst(), rounding);
}

/* One share after the other: no record comes, and each is computed in its stead. To the same bits. */
Test(simt_stream_k, lost_records) {
  for (const std::vector<int32_t> &lengths : {std::vector<int32_t>{400, 30, 200}, {399}, {70, 70, 70, 70, 70}}) {
    problem one(lengths);
    const std::vector<uint16_t> together = one.run(8, 8);
    for (uint64_t seed = 0; seed < 8; ++seed) {
      schedule(seed);
      cr_expect(one.run(8, 1) == together, "not the same bits");
      cr_expect_leq(one.worst(), rounding);
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
  problem one({400, 30, 0, 200, 77});
  const std::vector<uint16_t> wanted = one.run(8, 8);
  std::vector<int32_t> &which = lengths ? one.length : one.table;
  const std::vector<int32_t> now = which;
  for (uint64_t seed = 0; seed < 12; ++seed) {
    schedule(seed);
    for (size_t i = 0; i < which.size(); ++i)
      which[i] = old[i % old.size()];
    launch_options first;
    first.followed = true;
    cr_assert_eq(LAUNCH_WITH(write_words, 1, 64, 0, first, now.data(), which.data(), static_cast<int32_t>(now.size())),
                 ASSAY_OK);
    cr_assert_eq(one.launch(8, 8), ASSAY_OK, "%s", message.text);
    cr_expect(one.bits() == wanted, "%s were %d ...", lengths ? "lengths" : "entries", old[0]);
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
