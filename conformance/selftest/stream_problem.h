/* stream_problem.h: a small decode with a softmax, its caches in blocks of 16 keys, and how far a result is from the
 * formula. After simt_fixture.h. */
#ifndef ASSAY_SELFTEST_STREAM_PROBLEM_H
#define ASSAY_SELFTEST_STREAM_PROBLEM_H

#include <math.h>
#include <string.h>

#include "gpu/lib/softmax_call.h"

constexpr int32_t D = 128, G = 2, H_kv = 2, capacity = 400, block = 16, row_entries = capacity / block;

/* Whole numbers from -8 to 7, no block like another. */
static std::vector<bf16> values(size_t count, uint64_t salt) {
  std::vector<bf16> v(count);
  for (size_t i = 0; i < count; ++i)
    v[i] = from_float<bf16>(
        static_cast<float>(static_cast<int>((i + 1 + salt * 1000003) * UINT64_C(0x9E3779B97F4A7C15) >> 60) - 8));
  return v;
}

/* Rows of these lengths, blocks of 16 keys in order. */
struct stream_problem {
  std::vector<int32_t> length, table;
  std::vector<bf16> q, k, v, out;
  softmax_params p = {};

  stream_problem(const stream_problem &) = delete;
  explicit stream_problem(std::vector<int32_t> lengths) : length(lengths) {
    const size_t N = length.size();
    table.resize(N * row_entries);
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
    cache.table_row = row_entries;
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
                static_cast<size_t>(table[static_cast<size_t>(row * row_entries + t / block)] * block + t % block);
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

constexpr double rounding = 0.0157; /* for values up to 8 as bf16: half of 2^-5, and the rounding of f32 */

#endif
