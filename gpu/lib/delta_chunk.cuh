/* delta_chunk.cuh: chunks of 64 rows of a gated delta rule, and what is prepared for each before its state is known.
 *
 * Row i of a chunk has the running sum G_i of g, and key and query factors n_i, m_i: 1 / length with l2, else 1.
 *
 *   L_ij = beta_i n_i n_j (k_i . k_j) exp(G_i - G_j), j < i     T = (I + L)^-1
 *   A_ij = scale m_i n_j (q_i . k_j) exp(G_i - G_j), j <= i
 *
 * A record has T - I and A in bf16, the lower triangle alone, and rows of factors in f32. T and A are panels of 16
 * columns. Panel s has rows from 16 s on, as two runs: columns 16 s to 16 s + 7, and the next eight. */
#ifndef ASSAY_GPU_DELTA_CHUNK_CUH
#define ASSAY_GPU_DELTA_CHUNK_CUH

#include "gpu/lib/delta_rule.cuh"
#include "gpu/lib/ptx_async.cuh"
#include "gpu/lib/ptx_mma.cuh"
#include "gpu/lib/vec.cuh"

namespace ASSAY_NS {

constexpr int chunk_rows = 64, chunk_part_bytes = chunk_rows * 128; /* part: 64 columns of a tile of rows */
constexpr int chunk_matrix_bytes = 5120;
enum chunk_factor {
  chunk_beta,
  chunk_key,    /* beta_i n_i exp(G_i): of S^T k_i */
  chunk_query,  /* scale m_i exp(G_i): of S^T q_i */
  chunk_update, /* n_i exp(G_n - G_i), with n the last row: of an update of S */
  chunk_decay,  /* exp(G_n), in row 0 */
  chunk_factors
};
constexpr int chunk_record_bytes = 2 * chunk_matrix_bytes + chunk_factors * chunk_rows * 4;
/* exp of this is 0 in f32. Lower gates count as this one, so that sums stay small and -inf - -inf never occurs. */
constexpr float chunk_lowest_gate = -110.0f;

/* Returns how many chunks N rows of B requests may have at most. Request i has places from cu_i / 64 + i on. */
inline int64_t chunk_places(int64_t N, int64_t B) {
  return N / chunk_rows + B;
}

__device__ __forceinline__ int64_t chunk_place(int64_t first, int32_t request) {
  return first / chunk_rows + request;
}

/* Returns the request that owns a place: the last one whose places begin at or before it. */
__device__ __forceinline__ int32_t chunk_request(const rule_params &p, int64_t place) {
  int32_t low = 0, high = p.B - 1;
  while (low < high) {
    const int32_t middle = (low + high + 1) / 2;
    if (chunk_place(rule_row(p, middle), middle) <= place)
      low = middle;
    else
      high = middle - 1;
  }
  return low;
}

/* Returns where a run of 8 columns of T or A begins in a record, in bytes, and how many rows it has. */
__device__ __forceinline__ constexpr int chunk_run_rows(int group) {
  return chunk_rows - group / 2 * 16;
}

__device__ __forceinline__ constexpr int chunk_run_at(int group) {
  const int s = group / 2;
  return 32 * (chunk_rows * s - 8 * s * (s - 1)) + group % 2 * chunk_run_rows(group) * 16;
}

/* Returns the address of 8 neighbouring elements of T or A, on or left of the diagonal's blocks. */
__device__ __forceinline__ char *matrix_at(char *matrix, int row, int group) {
  return matrix + chunk_run_at(group) + (row - group / 2 * 16) * 16;
}

/* Returns the address of 8 neighbouring elements in a tile of rows of D elements, D a multiple of 64. A tile has parts
 * of 64 columns, each as a box of the copy engine with a swizzle of 128 bytes. Eight rows of one group lie in different
 * banks. */
template <int D> __device__ __forceinline__ char *tile_at(char *tile, int row, int group) {
  return tile + group / 8 * chunk_part_bytes + row * 128 + (group % 8 ^ (row & 7)) * 16;
}

/* Copies `rows` rows of `columns` columns to a tile of 64 rows. The other elements become zeros. */
template <int D, int threads>
__device__ __forceinline__ void load_tile(char *tile, const bf16 *from, int64_t stride, int rows, int columns,
                                          int thread) {
  constexpr int groups = D / 8;
  for (int i = thread; i < chunk_rows * groups; i += threads) {
    const int row = i / groups, group = i % groups;
    const bool live = row < rows && 8 * group < columns;
    cp_async_16(tile_at<D>(tile, row, group), from + (live ? row * stride + 8 * group : 0), live ? 16 : 0);
  }
}

/* Loads the fragments of B for two tiles of eight rows, from row `row` of a tile and elements 16 step on. */
template <int D> __device__ __forceinline__ void load_rows_b(uint32_t (&b)[4], char *tile, int row, int step) {
  const int lane = static_cast<int>(lane_id());
  ldmatrix_x4(b, tile_at<D>(tile, row + lane % 8 + lane / 16 * 8, 2 * step + lane / 8 % 2));
}

/* ---- prepare ----------------------------------------------------------------------------------------- */

constexpr int prepare_threads = 128, prepare_pitch = chunk_rows + 8; /* L: floats per row */
/* Shared memory: two tiles of rows, of which the place is that of L of two heads afterwards; then two records. */
template <int D_k>
constexpr int prepare_records = chunk_rows *(4 * D_k > 8 * prepare_pitch ? 4 * D_k : 8 * prepare_pitch);
template <int D_k> constexpr int64_t prepare_shared = prepare_records<D_k> + 2 * chunk_record_bytes;

/* Returns 1 / length of a row of a tile, or 1 without l2. */
template <int D> __device__ __forceinline__ float row_factor(const rule_params &p, char *tile, int row) {
  if (!p.l2) return 1.0f;
  float square[8] = {};
  ASSAY_ROLLED
  for (int group = 0; group < D / 8; ++group) {
    const uint4 eight = *reinterpret_cast<const uint4 *>(tile_at<D>(tile, row, group));
    const uint32_t pair[4] = {eight.x, eight.y, eight.z, eight.w};
    ASSAY_UNROLL
    for (int e = 0; e < 4; ++e) {
      float low, high;
      unpack_pair<bf16>(pair[e], low, high);
      square[2 * e] += low * low;
      square[2 * e + 1] += high * high;
    }
  }
  const float sum =
      ((square[0] + square[1]) + (square[2] + square[3])) + ((square[4] + square[5]) + (square[6] + square[7]));
  return 1.0f / sqrtf(sum + p.eps);
}

/* Writes the gates of a head: running sums of g, and beta. Rows from `rows` on have neither. One warp. */
__device__ __forceinline__ void load_gates(const rule_params &p, int64_t first, int rows, int32_t head, float *sum,
                                           float *beta) {
  const int lane = static_cast<int>(lane_id());
  float g[2];
  ASSAY_UNROLL
  for (int e = 0; e < 2; ++e) {
    const int row = 2 * lane + e;
    g[e] = row < rows ? fmaxf(p.g[(first + row) * p.g_row + head], chunk_lowest_gate) : 0.0f;
    beta[row] = row < rows ? p.beta[(first + row) * p.beta_row + head] : 0.0f;
  }
  float whole = g[0] + g[1];
  ASSAY_UNROLL
  for (int step = 1; step < 32; step *= 2) {
    const float before = __shfl_up_sync(0xffffffffu, whole, static_cast<unsigned>(step));
    if (lane >= step) whole += before;
  }
  const float before = __shfl_up_sync(0xffffffffu, whole, 1);
  sum[2 * lane] = (lane > 0 ? before : 0.0f) + g[0];
  sum[2 * lane + 1] = whole;
}

/* L is strictly lower, and so the blocks right of its diagonal are free. Inverses D_a of I plus the blocks on the
 * diagonal go there: D_1 to D_3 as they are, D_0 to D_2 transposed. */
__device__ __forceinline__ float *block_at(float *L, int a, int b) {
  return L + 16 * a * prepare_pitch + 16 * b;
}

__device__ __forceinline__ float *inverse_at(float *L, int a) {
  return block_at(L, 0, a);
}

__device__ __forceinline__ float *transposed_at(float *L, int a) {
  return block_at(L, a == 2 ? 2 : 1, a == 0 ? 2 : 3);
}

/* Solves (I + L_aa) x = e_column. Stores x - e_column as a column of T - I. One thread per row of the chunk. */
__device__ __forceinline__ void invert_diagonal(float *L, int row, char *to) {
  const int a = row / 16, column = row % 16;
  const float *const own = block_at(L, a, a);
  float x[16];
  ASSAY_UNROLL
  for (int i = 0; i < 16; ++i) {
    x[i] = i == column ? 1.0f : 0.0f;
    ASSAY_UNROLL
    for (int l = 0; l < i; l += 4) {
      const quad<float> four = load_quad(own + i * prepare_pitch + l, true);
      ASSAY_UNROLL
      for (int e = 0; e < 4 && l + e < i; ++e)
        x[i] -= four.element[e] * x[l + e];
    }
  }
  ASSAY_UNROLL
  for (int i = 0; i < 16; ++i) {
    if (a > 0) inverse_at(L, a)[i * prepare_pitch + column] = x[i];
    if (a < 3) transposed_at(L, a)[column * prepare_pitch + i] = x[i];
    *reinterpret_cast<bf16 *>(matrix_at(to, 16 * a + i, row / 8) + row % 8 * 2) =
        from_float<bf16>(i == column ? 0.0f : x[i]);
  }
}

/* Sixteen bits of a number, and sixteen of what they leave: pairs as mma takes them. */
__device__ __forceinline__ void split_pair(float low, float high, uint32_t &upper, uint32_t &rest) {
  float near_low, near_high;
  upper = pack_pair<bf16>(low, high);
  unpack_pair<bf16>(upper, near_low, near_high);
  rest = pack_pair<bf16>(low - near_low, high - near_high);
}

/* A block of 16 x 16 as a left factor. */
struct split_block {
  uint32_t upper[4], rest[4];
};

/* Makes a left factor of two tiles that a product has left. */
__device__ __forceinline__ void split_of(split_block &x, const float (&d)[2][4]) {
  ASSAY_UNROLL
  for (int i = 0; i < 4; ++i)
    split_pair(d[i / 2][2 * (i % 2)], d[i / 2][2 * (i % 2) + 1], x.upper[i], x.rest[i]);
}

/* Returns the address of two neighbours of a block's row, of those that a lane has: tile i / 2, upper or lower rows. */
__device__ __forceinline__ float2 *pair_at(float *block, int i) {
  const int lane = static_cast<int>(lane_id());
  return reinterpret_cast<float2 *>(block + (lane / 4 + i % 2 * 8) * prepare_pitch + 2 * (lane % 4) + i / 2 * 8);
}

__device__ __forceinline__ void load_split(split_block &x, float *block) {
  ASSAY_UNROLL
  for (int i = 0; i < 4; ++i) {
    const float2 two = *pair_at(block, i);
    split_pair(two.x, two.y, x.upper[i], x.rest[i]);
  }
}

/* Computes d + e += x M^T for a block M in shared memory, without the product of two rests. */
__device__ __forceinline__ void multiply_split(float (&d)[2][4], float (&e)[2][4], const split_block &x, float *M) {
  ASSAY_UNROLL
  for (int tile = 0; tile < 2; ++tile) {
    uint32_t upper[2], rest[2];
    ASSAY_UNROLL
    for (int i = 0; i < 2; ++i) {
      const float2 two = *pair_at(M, 2 * i + tile);
      split_pair(two.x, two.y, upper[i], rest[i]);
    }
    mma_m16n8k16<bf16>(d[tile], x.upper, upper);
    mma_m16n8k16<bf16>(e[tile], x.upper, rest);
    mma_m16n8k16<bf16>(e[tile], x.rest, upper);
  }
}

/* Returns where T_cb is, transposed. Blocks on the diagonal of L are free once the D are made. */
__device__ __forceinline__ float *done_at(float *L, int c, int b) {
  const int free = c + b - 1; /* 0, 1, 2: T_10, T_20, T_21 */
  return c == b ? transposed_at(L, b) : block_at(L, free, free);
}

/* Makes the blocks of T below D_b: T_ab^T = -(sum over c of T_cb^T L_ac^T) D_a^T, c from b to a - 1. One warp. A lane
 * reads of T_cb what it has written itself. */
__device__ __forceinline__ void invert_below(float *L, int b, char *to) {
  const int lane = static_cast<int>(lane_id());
  ASSAY_ROLLED
  for (int a = b + 1; a < 4; ++a) {
    float sum[2][4] = {}, sum_rest[2][4] = {}, block[2][4] = {}, block_rest[2][4] = {};
    split_block left;
    ASSAY_ROLLED
    for (int c = b; c < a; ++c) {
      load_split(left, done_at(L, c, b));
      multiply_split(sum, sum_rest, left, block_at(L, a, c));
    }
    ASSAY_UNROLL
    for (int i = 0; i < 8; ++i)
      sum[i / 4][i % 4] += sum_rest[i / 4][i % 4];
    split_of(left, sum);
    multiply_split(block, block_rest, left, inverse_at(L, a));
    ASSAY_UNROLL
    for (int i = 0; i < 8; ++i)
      block[i / 4][i % 4] = -(block[i / 4][i % 4] + block_rest[i / 4][i % 4]);
    split_of(left, block);
    stmatrix_x4_trans(matrix_at(to, 16 * a + lane / 16 * 8 + lane % 8, 2 * b + lane / 8 % 2), left.upper);
    ASSAY_UNROLL
    for (int i = 0; i < 4 && a < 3; ++i)
      *pair_at(done_at(L, a, b), i) = make_float2(block[i / 2][2 * (i % 2)], block[i / 2][2 * (i % 2) + 1]);
  }
}

/* The products of keys with keys and queries with keys: warp w has rows 16 w to 16 w + 15, up to the diagonal block. */
struct chunk_products {
  float kk[8][4], qk[8][4];
};

template <int D_k>
__device__ __forceinline__ void multiply_rows(chunk_products &of, char *keys, char *queries, int warp) {
  const int lane = static_cast<int>(lane_id()), row = 16 * warp + lane % 16;
  ASSAY_UNROLL
  for (int t = 0; t < 8; ++t) {
    ASSAY_UNROLL
    for (int e = 0; e < 4; ++e)
      of.kk[t][e] = of.qk[t][e] = 0.0f;
  }
  ASSAY_ROLLED /* code is read once by each warp, and takes longer than the products */
      for (int step = 0; step < D_k / 16; ++step) {
    uint32_t k[4], q[4];
    ldmatrix_x4(k, tile_at<D_k>(keys, row, 2 * step + lane / 16));
    ldmatrix_x4(q, tile_at<D_k>(queries, row, 2 * step + lane / 16));
    ASSAY_UNROLL
    for (int t = 0; t < 4; ++t) {
      if (t > warp) continue;
      uint32_t b[4];
      load_rows_b<D_k>(b, keys, 16 * t, step);
      ASSAY_UNROLL
      for (int half = 0; half < 2; ++half) {
        const uint32_t two[2] = {b[2 * half], b[2 * half + 1]};
        mma_m16n8k16<bf16>(of.kk[2 * t + half], k, two);
        mma_m16n8k16<bf16>(of.qk[2 * t + half], q, two);
      }
    }
  }
}

/* The numbers that one value head adds: running sums of g, beta, and the factors of keys and queries, for 64 rows. */
struct chunk_gates {
  const float *sum, *beta, *n, *m;
  float scale;
};

/* Writes L to shared memory and A to the record, for the rows of this warp. Numbers of rows and columns are loaded
 * first: the compiler does not know that stores leave them as they are. */
__device__ __forceinline__ void weigh_rows(const chunk_products &of, const chunk_gates &by, float *L, char *A,
                                           int warp) {
  const int lane = static_cast<int>(lane_id()), pair = 2 * (lane % 4);
  float2 sum[8], n[8];
  float own_sum[2], of_l[2], of_a[2];
  ASSAY_UNROLL
  for (int t = 0; t < 8; ++t) {
    sum[t] = *reinterpret_cast<const float2 *>(by.sum + 8 * t + pair);
    n[t] = *reinterpret_cast<const float2 *>(by.n + 8 * t + pair);
  }
  ASSAY_UNROLL
  for (int half = 0; half < 2; ++half) {
    const int i = 16 * warp + lane / 4 + 8 * half;
    own_sum[half] = by.sum[i];
    of_l[half] = by.beta[i] * by.n[i];
    of_a[half] = by.scale * by.m[i];
  }
  ASSAY_UNROLL
  for (int t = 0; t < 8; ++t) {
    if (t / 2 > warp) break;
    ASSAY_UNROLL
    for (int half = 0; half < 2; ++half) {
      const int i = 16 * warp + lane / 4 + 8 * half, j = 8 * t + pair;
      float l[2], a[2];
      ASSAY_UNROLL
      for (int e = 0; e < 2; ++e) {
        const float before = e != 0 ? sum[t].y : sum[t].x, factor = e != 0 ? n[t].y : n[t].x;
        /* Selects, not branches: lanes of a warp differ. */
        const float fall = expf(fminf(own_sum[half] - before, 0.0f)) * factor;
        const float decay = select_float(j + e <= i, fall, 0.0f);
        l[e] = select_float(j + e < i, of.kk[t][2 * half + e] * of_l[half] * decay, 0.0f);
        a[e] = of.qk[t][2 * half + e] * of_a[half] * decay;
      }
      *reinterpret_cast<float2 *>(L + i * prepare_pitch + j) = make_float2(l[0], l[1]);
      *reinterpret_cast<uint32_t *>(matrix_at(A, i, t) + 2 * pair) = pack_pair<bf16>(a[0], a[1]);
    }
  }
}

__device__ __forceinline__ void write_factors(const chunk_gates &by, float *to, int row) {
  const float last = by.sum[chunk_rows - 1], own = expf(by.sum[row]);
  to[chunk_beta * chunk_rows + row] = by.beta[row];
  to[chunk_key * chunk_rows + row] = by.beta[row] * by.n[row] * own;
  to[chunk_query * chunk_rows + row] = by.scale * by.m[row] * own;
  to[chunk_update * chunk_rows + row] = by.n[row] * expf(last - by.sum[row]);
  to[chunk_decay * chunk_rows + row] = row == 0 ? expf(last) : 0.0f;
}

/* chunk_prepare: the records of one chunk and the value heads of one key head, two heads at a time.
 * The last places come first. The walk then finds its first records in L2.
 * Grid:   (places * H_k). Block: 128 threads.
 * Shared: two tiles of 64 rows, afterwards L of two heads; two records: 60 KB.
 * Align:  16 bytes: q, k.
 * Arch:   sm_90.
 * Limit:  bytes: q, k once per key head; 11,520 per chunk and value head written. */
template <int D_k> __global__ void __launch_bounds__(prepare_threads, 3) chunk_prepare(rule_params p, char *records) {
  ASSAY_DYNAMIC_SHARED(char, room);
  ASSAY_SHARED(float, factor, 2 * chunk_rows);
  ASSAY_SHARED(float, sums, 2 * chunk_rows);
  ASSAY_SHARED(float, betas, 2 * chunk_rows);
  const int thread = static_cast<int>(threadIdx.x), warp = thread / 32, row = thread % chunk_rows;
  const int mine = thread / chunk_rows; /* 0 or 1: this thread's head of two */
  const int64_t place = (gridDim.x - 1 - blockIdx.x) / static_cast<unsigned>(p.H_k);
  const int32_t key = static_cast<int32_t>(blockIdx.x % static_cast<unsigned>(p.H_k)), ratio = p.H_v / p.H_k;
  const int32_t request = chunk_request(p, place);
  const int64_t begin = rule_row(p, request);
  const int64_t first = begin + (place - chunk_place(begin, request)) * chunk_rows;
  const int64_t left = rule_row(p, request + 1) - first;
  if (left <= 0) return;
  const int rows = static_cast<int>(min(left, static_cast<int64_t>(chunk_rows)));
  char *const keys = room, *const queries = room + chunk_rows * D_k * 2, *const made = room + prepare_records<D_k>;
  char *const own = made + mine * chunk_record_bytes;
  float *const matrices = reinterpret_cast<float *>(room); /* from the barrier in the loop on */
  const int64_t channel = static_cast<int64_t>(key) * D_k;
  load_tile<D_k, prepare_threads>(keys, static_cast<const bf16 *>(p.k) + first * p.k_row + channel, p.k_row, rows, D_k,
                                  thread);
  load_tile<D_k, prepare_threads>(queries, static_cast<const bf16 *>(p.q) + first * p.q_row + channel, p.q_row, rows,
                                  D_k, thread);
  cp_async_commit();
  if (warp < min(ratio, 2)) /* while the rows are on their way */
    load_gates(p, first, rows, key * ratio + warp, sums + warp * chunk_rows, betas + warp * chunk_rows);
  cp_async_wait<0>();
  __syncthreads();
  factor[thread] = row_factor<D_k>(p, thread < chunk_rows ? keys : queries, row);
  chunk_products products;
  multiply_rows<D_k>(products, keys, queries, warp);
  ASSAY_ROLLED
  for (int32_t pair = 0; pair < ratio; pair += 2) {
    const int32_t heads = min(ratio - pair, 2), head = key * ratio + pair;
    if (pair > 0 && warp < heads)
      load_gates(p, first, rows, head + warp, sums + warp * chunk_rows, betas + warp * chunk_rows);
    if (pair > 0 && thread == 0) bulk_wait_read<0>();
    __syncthreads();
    ASSAY_ROLLED
    for (int h = 0; h < heads; ++h) {
      const chunk_gates by = {sums + h * chunk_rows, betas + h * chunk_rows, factor, factor + chunk_rows, p.scale};
      char *const to = made + h * chunk_record_bytes;
      weigh_rows(products, by, matrices + h * chunk_rows * prepare_pitch, to + chunk_matrix_bytes, warp);
      if (h == mine) write_factors(by, reinterpret_cast<float *>(to + 2 * chunk_matrix_bytes), row);
    }
    __syncthreads();
    float *const L = matrices + mine * chunk_rows * prepare_pitch;
    if (mine < heads) invert_diagonal(L, row, own);
    __syncthreads();
    ASSAY_ROLLED /* one warp has b = 0; the other one of a head has 1 and 2 */
        for (int b = warp % 2; mine < heads && b <= 2 * (warp % 2); ++b) invert_below(L, b, own);
    fence_proxy_async();
    __syncthreads();
    if (thread == 0) {
      bulk_store(records + (place * p.H_v + head) * chunk_record_bytes, made,
                 static_cast<uint32_t>(heads * chunk_record_bytes));
      bulk_commit();
    }
  }
  if (thread == 0) bulk_wait<0>();
}

} // namespace ASSAY_NS
#endif
