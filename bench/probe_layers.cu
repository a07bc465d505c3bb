/* probe_layers.cu: all layers of a decode step in one launch (gpu/lib/layers.cuh), against plain loops, and its time.
 *
 *   probe_layers [check | repeat | time | all]
 *
 * `check` runs some batches and compares the rows, and the new keys and values, with plain sums that round at the same
 * places. Each batch is launched again after other ones: the bits must be the same. `repeat` launches batches again and
 * again, and says where bits differ. `time` prints a line per batch: the median of 30 launches whose caches were
 * overwritten. Status 1: something differs. Status 77: no GPU.
 *
 * nvcc -O3 -std=c++20 -gencode=arch=compute_90a,code=sm_90a -I . -I include -I gpu bench/probe_layers.cu
 * With simt's header forced in and -DASSAY_SIMT it runs on the CPU, with a small model. */
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

#ifndef ASSAY_SIMT
/* Clocks of two warps of each block: [stages][places][2][blocks]. */
__device__ long long *probe_clocks;
#define LAYERS_MARK(stage, place)                                                                                      \
  do {                                                                                                                 \
    const unsigned mark_warp = threadIdx.x / 32;                                                                       \
    if (probe_clocks != nullptr && threadIdx.x % 32 == 0 && (mark_warp == 0 || mark_warp == 7))                        \
      probe_clocks[(((stage)*5 + (place)) * 2 + mark_warp / 7) * 128 + blockIdx.x] = clock64();                        \
  } while (0)
#endif
#include "gpu/lib/launch_together.h"
#include "gpu/lib/layers_kernel.cuh"

using namespace ASSAY_NS;

namespace {

#ifdef ASSAY_SIMT
#ifndef PROBE_SHAPE
#define PROBE_SHAPE 64, 4, 2, 16, 128, 8, 2, 2, 1024, 6
#endif
#ifndef PROBE_LAYERS
#define PROBE_LAYERS 3
#endif
constexpr int most_layers = PROBE_LAYERS;
#else
#define PROBE_SHAPE 1024, 8, 4, 128, 3072, 128, 8, 4, 16384, 10
constexpr int most_layers = 28;
#endif
using shape = layers_shape<PROBE_SHAPE>;
constexpr int block_size = 16, most_keys = shape::blocks == 128 ? 2112 : 320;

/* ---- the device ---------------------------------------------------------------------------------------- */

void fail(const char *what, const char *why) {
  std::printf("FAILED %s: %s\n", what, why);
  std::exit(1);
}

#ifdef ASSAY_SIMT
template <class T> T *device_memory(size_t count) {
  return static_cast<T *>(std::aligned_alloc(256, (count * sizeof(T) + 255) / 256 * 256));
}
void to_device(void *to, const void *from, size_t bytes) {
  std::memcpy(to, from, bytes);
}
void from_device(void *to, const void *from, size_t bytes) {
  std::memcpy(to, from, bytes);
}
void fill_device(void *to, int byte, size_t bytes) {
  std::memset(to, byte, bytes);
}
void finish() {}
#else
void cuda(cudaError_t code, const char *what) {
  if (code != cudaSuccess) fail(what, cudaGetErrorString(code));
}
template <class T> T *device_memory(size_t count) {
  void *memory = nullptr;
  cuda(cudaMalloc(&memory, count * sizeof(T)), "memory");
  return static_cast<T *>(memory);
}
void to_device(void *to, const void *from, size_t bytes) {
  cuda(cudaMemcpy(to, from, bytes, cudaMemcpyHostToDevice), "upload");
}
void from_device(void *to, const void *from, size_t bytes) {
  cuda(cudaMemcpy(to, from, bytes, cudaMemcpyDeviceToHost), "download");
}
void fill_device(void *to, int byte, size_t bytes) {
  cuda(cudaMemset(to, byte, bytes), "fill");
}
void finish() {
  cuda(cudaDeviceSynchronize(), "launch");
}
#endif

/* ---- numbers --------------------------------------------------------------------------------------------- */

uint64_t random_state = 88172645463325252u;
float uniform() { /* -1 to 1 */
  random_state ^= random_state << 13;
  random_state ^= random_state >> 7;
  random_state ^= random_state << 17;
  return static_cast<float>(static_cast<int32_t>(random_state >> 32)) * 0x1p-31f;
}
bf16 rounded(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  return bf16{static_cast<uint16_t>((bits + 0x7FFFu + (bits >> 16 & 1u)) >> 16)};
}
float value(bf16 x) {
  const uint32_t bits = static_cast<uint32_t>(x.bits) << 16;
  float y;
  std::memcpy(&y, &bits, 4);
  return y;
}
float round_to(float x) {
  return value(rounded(x));
}
std::vector<bf16> draw(size_t count, float size, float middle = 0.0f) {
  std::vector<bf16> v(count);
  for (bf16 &x : v)
    x = rounded(middle + size * uniform());
  return v;
}

/* Draws up to 2^22 + 1 values, and repeats them. */
std::vector<bf16> draw_often(size_t count, float size) {
  std::vector<bf16> v = draw(std::min(count, (size_t{1} << 22) + 1), size);
  const size_t drawn = v.size();
  v.resize(count);
  for (size_t at = drawn; at < count; at += drawn)
    std::copy_n(v.begin(), std::min(drawn, count - at), v.begin() + static_cast<std::ptrdiff_t>(at));
  return v;
}

/* ---- the model --------------------------------------------------------------------------------------------- */

constexpr int hidden = shape::hidden, D = shape::channels, I = shape::intermediate, QKV = shape::qkv;
constexpr int H = shape::heads, KV = shape::kv_heads, A = shape::attended;

struct layer_weights {
  std::vector<bf16> qkv, proj, up, down, pre, post, q, k;
};

struct model {
  std::vector<layer_weights> layer;
  std::vector<float> cosine, sine;
  int blocks = 0;
  uint4 *packed = nullptr, *words = nullptr;
  bf16 *norms = nullptr, *x = nullptr, *y = nullptr, *k_pool = nullptr, *v_pool = nullptr;
  uint32_t *done = nullptr;
  float *cos_on = nullptr, *sin_on = nullptr;
  int32_t *positions = nullptr, *kv_len = nullptr, *table = nullptr;
  int64_t *slots = nullptr;
  std::vector<bf16> k_host, v_host; /* as before every launch */
};

constexpr int table_width = most_keys / block_size;

layer_weights draw_layer() {
  layer_weights w;
  w.qkv = draw(static_cast<size_t>(QKV) * hidden, 1.7f / std::sqrt(static_cast<float>(hidden)));
  w.proj = draw(static_cast<size_t>(hidden) * A, 0.9f / std::sqrt(static_cast<float>(A)));
  w.up = draw(static_cast<size_t>(2) * I * hidden, 1.7f / std::sqrt(static_cast<float>(hidden)));
  w.down = draw(static_cast<size_t>(hidden) * I, 0.9f / std::sqrt(static_cast<float>(I)));
  w.pre = draw(hidden, 0.3f, 1.0f);
  w.post = draw(hidden, 0.3f, 1.0f);
  w.q = draw(D, 0.3f, 1.5f);
  w.k = draw(D, 0.3f, 1.5f);
  return w;
}

/* Returns a pair of weights as a word. */
uint32_t pair_at(const std::vector<bf16> &w, int64_t width, int64_t row, int64_t k) {
  const size_t at = static_cast<size_t>(row * width + k);
  return static_cast<uint32_t>(w[at].bits) | static_cast<uint32_t>(w[at + 1].bits) << 16;
}

void check_packed(const model &m, int layer) {
  std::vector<uint32_t> packed(static_cast<size_t>(shape::blocks) * shape::block_bytes / 4);
  from_device(packed.data(), reinterpret_cast<const char *>(m.packed) + layer * packed.size() * 4, packed.size() * 4);
  const layer_weights &w = m.layer[layer];
  size_t at = 0, wrong = 0;
  const auto stage = [&](const std::vector<bf16> &from, int64_t width, int64_t first, int pairs, int columns,
                         auto row) {
    for (int pair = 0; pair < pairs; ++pair)
      for (int n = 0; n < columns; ++n)
        for (int lane = 0; lane < 32; ++lane)
          for (int j = 0; j < 4; ++j)
            wrong +=
                packed[at++] != pair_at(from, width, row(n * 8 + lane / 4), first + pair * 32 + 8 * j + lane % 4 * 2);
  };
  for (int b = 0; b < shape::blocks; ++b) {
    const int gates = shape::act_tiles * 8;
    stage(w.qkv, hidden, 0, hidden / 32, shape::qkv_tiles, [&](int n) { return b * shape::qkv_tiles * 8 + n; });
    stage(w.proj, A, 0, A / 32, 1, [&](int n) { return b * 8 + n; });
    stage(w.up, hidden, 0, hidden / 32, shape::up_tiles,
          [&](int n) { return n < gates ? b * gates + n : I + b * gates + n - gates; });
    stage(w.down, I, b % shape::parts * shape::part_terms, shape::part_terms / 32, shape::parts,
          [&](int n) { return b / shape::parts * shape::parts * 8 + n; });
  }
  if (wrong > 0) fail("packing", "words differ");
}

void make(model &m, int layers) {
  const size_t angles = static_cast<size_t>(most_keys) * (D / 2);
  m.blocks = 32 * table_width + 1;
  const size_t pool = static_cast<size_t>(layers) * m.blocks * block_size * KV * D;
  m.cosine.resize(angles);
  m.sine.resize(angles);
  for (int p = 0; p < most_keys; ++p)
    for (int i = 0; i < D / 2; ++i) {
      const double angle = p * std::pow(1e6, -2.0 * i / D);
      m.cosine[static_cast<size_t>(p) * (D / 2) + i] = static_cast<float>(std::cos(angle));
      m.sine[static_cast<size_t>(p) * (D / 2) + i] = static_cast<float>(std::sin(angle));
    }
  m.packed = device_memory<uint4>(static_cast<size_t>(layers) * shape::blocks * shape::block_bytes / 16);
  m.norms = device_memory<bf16>(static_cast<size_t>(layers) * shape::norms);
  m.words = device_memory<uint4>(static_cast<size_t>(layers_sets) * shape::set_units);
  m.done = device_memory<uint32_t>(shape::blocks);
  m.x = device_memory<bf16>(32 * hidden);
  m.y = device_memory<bf16>(32 * hidden);
  m.k_pool = device_memory<bf16>(pool);
  m.v_pool = device_memory<bf16>(pool);
  m.cos_on = device_memory<float>(angles);
  m.sin_on = device_memory<float>(angles);
  m.positions = device_memory<int32_t>(32);
  m.kv_len = device_memory<int32_t>(32);
  m.table = device_memory<int32_t>(32 * table_width);
  m.slots = device_memory<int64_t>(32);
  to_device(m.cos_on, m.cosine.data(), angles * 4);
  to_device(m.sin_on, m.sine.data(), angles * 4);
  fill_device(m.words, 0xFF, static_cast<size_t>(layers_sets) * shape::set_units * 16);
  fill_device(m.done, 0xFF, shape::blocks * 4);
  m.k_host = draw_often(pool, 2.0f);
  m.v_host = draw_often(pool, 1.0f);
  bf16 *raw = device_memory<bf16>(static_cast<size_t>(QKV) * hidden + static_cast<size_t>(hidden) * A +
                                  3 * static_cast<size_t>(I) * hidden + 2 * hidden + 2 * D);
  assay_error error = {""};
  for (int l = 0; l < layers; ++l) {
    m.layer.push_back(draw_layer());
    const layer_weights &w = m.layer.back();
    bf16 *at = raw;
    const auto put = [&](const std::vector<bf16> &v) {
      bf16 *const here = at;
      to_device(here, v.data(), v.size() * 2);
      at += v.size();
      return static_cast<const bf16 *>(here);
    };
    layers_pack_params p = {};
    p.qkv = put(w.qkv);
    p.proj = put(w.proj);
    p.up = put(w.up);
    p.down = put(w.down);
    p.pre = put(w.pre);
    p.post = put(w.post);
    p.q = put(w.q);
    p.k = put(w.k);
    p.packed = m.packed + static_cast<size_t>(l) * shape::blocks * shape::block_bytes / 16;
    p.norms = m.norms + static_cast<size_t>(l) * shape::norms;
    const int64_t units = static_cast<int64_t>(shape::blocks) * (shape::block_bytes / 16);
    if (ASSAY_LAUNCH(&error, layers_pack<shape>, (units + 255) / 256, 256, 0, nullptr, p) != ASSAY_OK)
      fail("pack", error.text);
    finish();
    if (l == 0 || l + 1 == layers) check_packed(m, l);
  }
}

/* ---- a batch --------------------------------------------------------------------------------------------------- */

struct batch {
  int M = 0, layers = 0;
  std::vector<int32_t> kv_len, table, positions;
  std::vector<int64_t> slots;
  std::vector<bf16> x;
};

/* The keys of a row: fixed, or drawn up to -keys. */
batch draw_batch(const model &m, int M, int layers, int keys) {
  batch b;
  b.M = M;
  b.layers = layers;
  b.x = draw(static_cast<size_t>(M) * hidden, 1.7f);
  std::vector<int> order(m.blocks - 1);
  for (size_t i = 0; i < order.size(); ++i)
    order[i] = static_cast<int>(i) + 1;
  for (size_t i = order.size(); i > 1; --i)
    std::swap(order[i - 1], order[static_cast<size_t>((uniform() + 1) * 0.49999f * static_cast<float>(i))]);
  b.table.assign(32 * table_width, 0);
  for (int i = 0; i < M; ++i) {
    const int drawn = 1 + static_cast<int>((uniform() + 1) * 0.5f * static_cast<float>(-keys - 1));
    const bool pad = keys < 0 && M > 2 && i == M / 2;
    const int length = pad ? 0 : keys > 0 ? keys : drawn;
    b.kv_len.push_back(length);
    b.positions.push_back(length > 0 ? length - 1 : 0);
    for (int j = 0; j < table_width; ++j)
      b.table[i * table_width + j] = order[static_cast<size_t>(i * table_width + j)];
    const int at = length - 1;
    b.slots.push_back(length > 0 ? static_cast<int64_t>(b.table[i * table_width + at / block_size]) * block_size +
                                       at % block_size
                                 : -1);
  }
  return b;
}

size_t pool_at(const model &m, int layer, int64_t slot, int kv_head) {
  return ((static_cast<size_t>(layer) * m.blocks * block_size + static_cast<size_t>(slot)) * KV + kv_head) * D;
}

struct result {
  std::vector<bf16> y, k, v; /* k, v: [layers][M][KV][D], of the new tokens */
};

layers_params params_of(const model &m, const batch &b) {
  layers_params p = {};
  p.packed = m.packed;
  p.norms = m.norms;
  p.words = m.words;
  p.done = m.done;
  p.x = m.x;
  p.y = m.y;
  p.cosine = m.cos_on;
  p.sine = m.sin_on;
  p.positions = m.positions;
  p.kv_len = m.kv_len;
  p.table = m.table;
  p.slots = m.slots;
  p.k_pool = m.k_pool;
  p.v_pool = m.v_pool;
  p.pool_layer = static_cast<int64_t>(m.blocks) * block_size * KV * D;
  p.table_stride = table_width;
  p.block_size = block_size;
  p.M = b.M;
  p.layers = b.layers;
  p.eps = 1e-6f;
  p.scale = 1.44269504f / std::sqrt(static_cast<float>(D));
  return p;
}

void upload(const model &m, const batch &b) {
  to_device(m.x, b.x.data(), b.x.size() * 2);
  to_device(m.positions, b.positions.data(), b.positions.size() * 4);
  to_device(m.kv_len, b.kv_len.data(), b.kv_len.size() * 4);
  to_device(m.table, b.table.data(), b.table.size() * 4);
  to_device(m.slots, b.slots.data(), b.slots.size() * 8);
}

void start(const layers_params &p, void *stream) {
  assay_error error = {""};
  layers_maps maps;
  if (layers_map<shape>(&maps.k, p.k_pool, p.pool_layer, p.layers, &error) != ASSAY_OK ||
      layers_map<shape>(&maps.v, p.v_pool, p.pool_layer, p.layers, &error) != ASSAY_OK)
    fail("maps", error.text);
  const assay_status status =
      p.M <= 16 ? launch_together(&error, "all_layers", &all_layers<shape, 1>, shape::blocks, shape::threads,
                                  static_cast<int64_t>(sizeof(layers_memory<shape, 1>)), stream, maps, p)
                : launch_together(&error, "all_layers", &all_layers<shape, 2>, shape::blocks, shape::threads,
                                  static_cast<int64_t>(sizeof(layers_memory<shape, 2>)), stream, maps, p);
  if (status != ASSAY_OK) fail("launch", error.text);
}

void upload_pools(const model &m) {
  to_device(m.k_pool, m.k_host.data(), m.k_host.size() * 2);
  to_device(m.v_pool, m.v_host.data(), m.v_host.size() * 2);
}

result run_batch(const model &m, const batch &b) {
  upload(m, b);
  fill_device(m.y, 0x11, 32 * hidden * 2);
  start(params_of(m, b), nullptr);
  finish();
  result r;
  r.y.resize(static_cast<size_t>(b.M) * hidden);
  from_device(r.y.data(), m.y, r.y.size() * 2);
  for (int l = 0; l < b.layers; ++l)
    for (int i = 0; i < b.M; ++i)
      for (int h = 0; h < KV; ++h) {
        const size_t to = r.k.size();
        r.k.resize(to + D);
        r.v.resize(to + D);
        if (b.slots[i] < 0) continue;
        from_device(r.k.data() + to, m.k_pool + pool_at(m, l, b.slots[i], h), D * 2);
        from_device(r.v.data() + to, m.v_pool + pool_at(m, l, b.slots[i], h), D * 2);
      }
  for (int l = 0; l < b.layers; ++l) /* caches become what they were */
    for (int i = 0; i < b.M; ++i)
      if (b.slots[i] >= 0) {
        const size_t at = pool_at(m, l, b.slots[i], 0);
        to_device(m.k_pool + at, m.k_host.data() + at, KV * D * 2);
        to_device(m.v_pool + at, m.v_host.data() + at, KV * D * 2);
      }
  return r;
}

/* ---- plain sums ---------------------------------------------------------------------------------------------------
 */

using floats = std::vector<float>;

floats as_floats(const std::vector<bf16> &v) {
  floats f(v.size());
  for (size_t i = 0; i < v.size(); ++i)
    f[i] = value(v[i]);
  return f;
}

/* y[M, N] = x[M, K] w[N, K]. */
floats multiply(const floats &x, const std::vector<bf16> &weights, int M, int N, int K) {
  floats y(static_cast<size_t>(M) * N);
  const floats w = as_floats(weights);
  const int workers = std::max(1u, std::thread::hardware_concurrency());
  std::vector<std::thread> threads;
  for (int t = 0; t < workers; ++t)
    threads.emplace_back([&, t] {
      for (int n = t; n < N; n += workers)
        for (int i = 0; i < M; ++i) {
          float sum[16] = {};
          for (int k = 0; k < K; k += 16)
            for (int j = 0; j < 16; ++j)
              sum[j] += x[static_cast<size_t>(i) * K + k + j] * w[static_cast<size_t>(n) * K + k + j];
          float all = 0;
          for (int j = 0; j < 16; ++j)
            all += sum[j];
          y[static_cast<size_t>(i) * N + n] = all;
        }
    });
  for (std::thread &t : threads)
    t.join();
  return y;
}

/* Rows times g, rounded, and the factor of each row. */
floats normed(const floats &x, const std::vector<bf16> &g, int M, floats &factor) {
  floats y(x.size());
  factor.assign(M, 0);
  for (int i = 0; i < M; ++i) {
    double sum = 0;
    for (int k = 0; k < hidden; ++k) {
      const size_t at = static_cast<size_t>(i) * hidden + k;
      sum += static_cast<double>(x[at]) * x[at];
      y[at] = round_to(x[at] * value(g[k]));
    }
    factor[i] = static_cast<float>(1 / std::sqrt(sum / hidden + 1e-6));
  }
  return y;
}

void head_norm(float *x, const std::vector<bf16> &g) {
  double sum = 0;
  for (int i = 0; i < D; ++i)
    sum += static_cast<double>(x[i]) * x[i];
  const float factor = static_cast<float>(1 / std::sqrt(sum / D + 1e-6));
  for (int i = 0; i < D; ++i)
    x[i] = round_to(x[i] * factor * value(g[i]));
}

void turn(const model &m, float *x, int position) {
  for (int i = 0; i < D / 2; ++i) {
    const float c = m.cosine[static_cast<size_t>(position) * (D / 2) + i];
    const float s = m.sine[static_cast<size_t>(position) * (D / 2) + i], a = x[i], b = x[i + D / 2];
    x[i] = round_to(a * c - b * s);
    x[i + D / 2] = round_to(b * c + a * s);
  }
}

/* wrong_page: the first row's values of its second page are taken from another one. */
result plain(const model &m, const batch &b, bool wrong_page = false) {
  floats x = as_floats(b.x), factor;
  result r;
  const int M = b.M;
  for (int l = 0; l < b.layers; ++l) {
    const layer_weights &w = m.layer[l];
    floats qkv = multiply(normed(x, w.pre, M, factor), w.qkv, M, QKV, hidden);
    floats out(static_cast<size_t>(M) * A);
    for (int i = 0; i < M; ++i) {
      float *const row = qkv.data() + static_cast<size_t>(i) * QKV;
      for (int n = 0; n < QKV; ++n)
        row[n] = round_to(row[n] * factor[i]);
      for (int h = 0; h < H + KV; ++h) {
        head_norm(row + h * D, h < H ? w.q : w.k);
        turn(m, row + h * D, b.positions[i]);
      }
      for (int h = 0; h < KV; ++h)
        for (int d = 0; d < D; ++d) {
          r.k.push_back(rounded(b.slots[i] < 0 ? 0 : row[(H + h) * D + d]));
          r.v.push_back(rounded(b.slots[i] < 0 ? 0 : row[(H + KV + h) * D + d]));
        }
      const int keys = b.kv_len[i];
      for (int h = 0; h < H && keys > 0; ++h) {
        const int kv = h / shape::group;
        std::vector<double> p(keys);
        double total = 0;
        const auto slot_of = [&](int t, bool values) {
          const bool wrong = wrong_page && values && i == 0 && t / block_size == 1;
          const int page = b.table[i * table_width + (wrong ? 0 : t / block_size)];
          return static_cast<int64_t>(page) * block_size + t % block_size;
        };
        for (int t = 0; t < keys; ++t) {
          const bf16 *const key = m.k_host.data() + pool_at(m, l, slot_of(t, false), kv);
          double s = 0;
          for (int d = 0; d < D; ++d)
            s += static_cast<double>(row[h * D + d]) * (t + 1 == keys ? row[(H + kv) * D + d] : value(key[d]));
          p[t] = std::exp(s / std::sqrt(static_cast<double>(D)));
          total += p[t];
        }
        std::vector<double> sum(D);
        for (int t = 0; t < keys; ++t) {
          const bf16 *const at = m.v_host.data() + pool_at(m, l, slot_of(t, true), kv);
          for (int d = 0; d < D; ++d)
            sum[d] += p[t] * (t + 1 == keys ? row[(H + KV + kv) * D + d] : value(at[d]));
        }
        for (int d = 0; d < D; ++d)
          out[static_cast<size_t>(i) * A + h * D + d] = round_to(static_cast<float>(sum[d] / total));
      }
    }
    const auto add = [&](const floats &y) {
      for (size_t i = 0; i < x.size(); ++i)
        x[i] = round_to(x[i] + y[i]);
    };
    add(multiply(out, w.proj, M, hidden, A));
    const floats up = multiply(normed(x, w.post, M, factor), w.up, M, 2 * I, hidden);
    floats act(static_cast<size_t>(M) * I);
    for (int i = 0; i < M; ++i)
      for (int n = 0; n < I; ++n) {
        const float gate = up[static_cast<size_t>(i) * 2 * I + n] * factor[i];
        act[static_cast<size_t>(i) * I + n] =
            round_to(gate / (1 + std::exp(-gate)) * up[static_cast<size_t>(i) * 2 * I + I + n] * factor[i]);
      }
    add(multiply(act, w.down, M, hidden, I));
  }
  for (const float v : x)
    r.y.push_back(rounded(v));
  return r;
}

/* Returns RMS(a - b) / RMS(b). NaN stays. */
double distance(const std::vector<bf16> &a, const std::vector<bf16> &b) {
  double sum = 0, size = 0;
  for (size_t i = 0; i < b.size(); ++i) {
    const double d = static_cast<double>(value(a[i])) - value(b[i]);
    sum += d * d;
    size += static_cast<double>(value(b[i])) * value(b[i]);
  }
  return std::sqrt(sum / size);
}

bool same(const std::vector<bf16> &a, const std::vector<bf16> &b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * 2) == 0;
}

int check(const model &m, int layers) {
  struct wanted {
    int M, layers, keys;
  };
  std::vector<wanted> list = {{1, 1, 33},   {2, 1, 1},          {32, 1, -most_keys},
                              {16, 2, -40}, {17, layers, -100}, {5, 3, -140}};
  if (layers > 3) list.push_back({32, layers, 192});
  std::vector<batch> batches;
  std::vector<result> results;
  int bad = 0;
  upload_pools(m);
  for (const wanted &w : list) {
    batches.push_back(draw_batch(m, w.M, w.layers, w.keys));
    results.push_back(run_batch(m, batches.back()));
    const result &got = results.back(), expected = plain(m, batches.back());
    const double y = distance(got.y, expected.y), k = distance(got.k, expected.k), v = distance(got.v, expected.v);
    const double limit = w.layers > 3 ? 3e-2 : 6e-3;
    const bool good = y <= limit && k <= limit && v <= limit;
    std::printf("%s check M %d layers %d keys %d: rows %.2e, new keys %.2e, new values %.2e, limit %.0e\n",
                good ? "good" : "FAILED", w.M, w.layers, w.keys, y, k, v, limit);
    std::fflush(stdout);
    bad += !good;
  }
  const double planted = distance(results[2].y, plain(m, batches[2], true).y);
  std::printf("%s planted: one wrong page: rows %.2e\n", planted > 0 ? "good" : "FAILED", planted);
  for (int round = 0; round < 3; ++round)
    for (size_t i = batches.size(); i-- > 0;) {
      const result again = run_batch(m, batches[i]);
      const bool good = same(again.y, results[i].y) && same(again.k, results[i].k) && same(again.v, results[i].v);
      if (!good) std::printf("FAILED again, round %d: batch %d has other bits\n", round, static_cast<int>(i));
      bad += !good;
    }
  if (bad == 0) std::printf("good again: three rounds have the same bits\n");
  return bad;
}

/* Repeats batches, and says where bits differ first. */
int repeat(const model &m) {
  int bad = 0;
  const int list[][3] = {{32, 1, 192}, {16, 1, 192},  {16, 2, 192}, {16, 3, 192}, {16, 8, 192},
                         {16, 8, 1},   {16, 8, 60},   {32, 8, 192}, {32, 8, 1},   {8, 8, 192},
                         {17, 28, 96}, {32, 28, 192}, {16, 28, 192}};
  upload_pools(m);
  for (const auto &of : list) {
    if (of[1] > most_layers) continue;
    const batch b = draw_batch(m, of[0], of[1], of[2]);
    const result first = run_batch(m, b);
    int other = 0;
    for (int i = 0; i < 8; ++i) {
      const result r = run_batch(m, b);
      if (same(r.y, first.y) && same(r.k, first.k) && same(r.v, first.v)) continue;
      if (++other > 2) continue;
      std::printf("differs M %d layers %d keys %d, run %d: rows %.1e;", of[0], of[1], of[2], i, distance(r.y, first.y));
      int shown = 0;
      for (int l = 0; l < of[1] && shown < 2; ++l) {
        int keys = 0, values = 0, row = -1, head = -1, channel = -1, rows = 0;
        for (int n = 0; n < of[0]; ++n) {
          bool in_row = false;
          for (int h = 0; h < KV; ++h)
            for (int d = 0; d < D; ++d) {
              const size_t at = ((static_cast<size_t>(l) * of[0] + n) * KV + h) * D + d;
              const bool k = r.k[at].bits != first.k[at].bits, v = r.v[at].bits != first.v[at].bits;
              keys += k;
              values += v;
              in_row = in_row || k || v;
              if ((k || v) && row < 0) row = n, head = h, channel = d;
            }
          rows += in_row;
        }
        if (rows == 0) continue;
        ++shown;
        std::printf(" layer %d: %d rows, %d keys, %d values, first row %d head %d channel %d;", l, rows, keys, values,
                    row, head, channel);
      }
      std::printf("\n");
    }
    std::printf("%s repeat M %d layers %d keys %d: %d of 8 differ\n", other == 0 ? "good" : "FAILED", of[0], of[1],
                of[2], other);
    std::fflush(stdout);
    bad += other > 0;
  }
  return bad;
}

/* Launches batches many times, and counts results with other bits than the first one's. Fewer than 0 keys: up to so
 * many in each row. Slots that the copy engine overwrote too early had shown where rows have few keys. */
int launch_often(const model &m) {
  constexpr int runs = most_layers == 28 ? 150 : 3;
  int bad = 0;
  upload_pools(m);
  for (const int keys : {1, 9, 26, 60, 100, 192, -24}) {
    const batch b = draw_batch(m, 32, most_layers, keys);
    std::vector<bf16> first(static_cast<size_t>(32) * hidden), now(first.size());
    int other = 0;
    upload(m, b);
    for (int i = 0; i < runs; ++i) {
      start(params_of(m, b), nullptr);
      finish();
      from_device(now.data(), m.y, now.size() * 2);
      if (i == 0) first = now;
      other += !same(first, now);
    }
    std::printf("%s often M 32 layers %d keys %d: %d of %d differ\n", other == 0 ? "good" : "FAILED", most_layers, keys,
                other, runs);
    std::fflush(stdout);
    bad += other > 0;
  }
  return bad;
}

/* ---- times --------------------------------------------------------------------------------------------------- */

#ifndef ASSAY_SIMT
void time_batch(const model &m, int M, int keys, int layers) {
  constexpr int runs = 31;
  constexpr size_t flush_bytes = size_t{1} << 28;
  static unsigned char *const flush = device_memory<unsigned char>(flush_bytes);
  cudaEvent_t begin, end;
  cuda(cudaEventCreate(&begin), "event");
  cuda(cudaEventCreate(&end), "event");
  cudaStream_t stream;
  cuda(cudaStreamCreate(&stream), "stream");
  const batch b = draw_batch(m, M, layers, keys);
  upload(m, b);
  finish();
  const layers_params p = params_of(m, b);
  cudaGraph_t graph;
  cudaGraphExec_t replay;
  cuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "capture");
  start(p, stream);
  cuda(cudaStreamEndCapture(stream, &graph), "capture");
  cuda(cudaGraphInstantiate(&replay, graph, 0), "graph");
  std::vector<float> us;
  for (int i = 0; i < runs; ++i) {
    cuda(cudaMemsetAsync(flush, i, flush_bytes, stream), "flush");
    cuda(cudaEventRecord(begin, stream), "event");
    cuda(cudaGraphLaunch(replay, stream), "replay");
    cuda(cudaEventRecord(end, stream), "event");
    cuda(cudaStreamSynchronize(stream), "replay");
    float ms = 0;
    cuda(cudaEventElapsedTime(&ms, begin, end), "event");
    if (i > 0) us.push_back(ms * 1000);
  }
  std::sort(us.begin(), us.end());
  std::printf("time M %d keys %d layers %d: %.1f us (%.1f to %.1f)\n", M, keys, layers, us[us.size() / 2], us.front(),
              us.back());
  std::fflush(stdout);
}

/* Prints where the clocks of a layer go: means over blocks and layers except the first. In brackets: means over layers
 * of the slowest block's. */
void print_clocks(const model &m, int keys) {
  static const char *const stage_name[] = {"qkv", "attention", "proj", "up", "down"};
  static const char *const product_place[] = {"begin to weights", "words and product", "squares", "barrier", "sums"};
  static const char *const attention_place[] = {"begin", "heads", "keys", "barrier", "merge"};
  const size_t count = static_cast<size_t>(most_layers) * 5 * 5 * 2 * 128;
  long long *const on = device_memory<long long>(count);
  std::vector<long long> clocks(count);
  cuda(cudaMemcpyToSymbol(probe_clocks, &on, sizeof on), "clocks");
  const batch b = draw_batch(m, 32, most_layers, keys);
  for (int i = 0; i < 2; ++i)
    (void)run_batch(m, b);
  from_device(clocks.data(), on, count * sizeof clocks[0]);
  const long long *const none = nullptr;
  cuda(cudaMemcpyToSymbol(probe_clocks, &none, sizeof none), "clocks");
  for (int w = 0; w < 2; ++w) {
    double whole = 0;
    for (int s = 0; s < 5; ++s) {
      double part[5] = {}, most[5] = {};
      for (int l = 1; l < most_layers; ++l)
        for (int place = 0; place < 5; ++place) {
          long long slowest = 0;
          for (int block = 0; block < 128; ++block) {
            const size_t at = (((static_cast<size_t>(l) * 5 + s) * 5 + place) * 2 + w) * 128 + block;
            part[place] += static_cast<double>(clocks[at] - clocks[at - 256]);
            slowest = std::max(slowest, clocks[at] - clocks[at - 256]);
          }
          most[place] += static_cast<double>(slowest) / (most_layers - 1);
        }
      std::printf("clocks keys %d warp %d %s:", keys, 7 * w, stage_name[s]);
      double all = 0;
      for (int place = 0; place < 5; ++place) {
        part[place] /= 128.0 * (most_layers - 1);
        all += part[place];
        std::printf(" %s %.0f (%.0f)", s == 1 ? attention_place[place] : product_place[place], part[place],
                    most[place]);
      }
      std::printf(", all %.0f\n", all);
      whole += all;
    }
    std::printf("clocks keys %d warp %d layer: %.0f\n", keys, 7 * w, whole);
  }
}

void time_all(const model &m) {
  for (const int keys : {1, 192, 193, 1100})
    print_clocks(m, keys);
  const int list[][2] = {{32, 1},    {32, 96},   {32, 192},   {32, 320},   {32, 600}, {32, 1100}, {32, 2048},
                         {32, -128}, {32, -576}, {32, -2048}, {1, 192},    {8, 192},  {16, 192},  {1, 2048},
                         {4, 2052},  {8, 1100},  {16, 1040},  {16, -1040}, {24, 600}};
  for (const auto &of : list)
    time_batch(m, of[0], of[1], most_layers);
  time_batch(m, 32, 192, 1);
}
#endif

} // namespace

int main(int count, char **word) {
  const char *const what = count > 1 ? word[1] : "all";
  int bad = 0;
#ifdef ASSAY_SIMT
  (void)assay_simt_host_api();
#else
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) return 77;
  int fit = 0, multiprocessors = 0;
  cuda(launch_allow_shared(reinterpret_cast<const void *>(all_layers<shape, 2>), sizeof(layers_memory<shape, 2>)),
       "shared memory");
  cuda(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&fit, all_layers<shape, 2>, shape::threads,
                                                     sizeof(layers_memory<shape, 2>)),
       "occupancy");
  cuda(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, 0), "multiprocessors");
  std::printf("blocks %d, fit %d, shared %zu bytes\n", shape::blocks, fit * multiprocessors,
              sizeof(layers_memory<shape, 2>));
  if (fit * multiprocessors < shape::blocks) fail("blocks", "they do not fit");
#endif
  model m;
  make(m, most_layers);
  std::printf("good packing\n");
  if (std::strcmp(what, "repeat") == 0) {
    bad = repeat(m) + launch_often(m);
    std::printf("%s\n", bad == 0 ? "all good" : "FAILED");
    return bad == 0 ? 0 : 1;
  }
  if (std::strcmp(what, "time") != 0) bad = check(m, most_layers);
#ifndef ASSAY_SIMT
  if (std::strcmp(what, "check") != 0) time_all(m);
#endif
  std::printf("%s\n", bad == 0 ? "all good" : "FAILED");
  return bad == 0 ? 0 : 1;
}
