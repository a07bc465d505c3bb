/* gated_delta_rule_chunk.cu: prompts and mixed batches in chunks of 64 rows, on tensor cores.
 *
 *   W = beta (V - exp(G) K S);    U = T W;    O = scale (exp(G) Q S + A U);    S <- exp(G_n) S + (exp(G_n - G) K)^T U
 *
 * T and A of all chunks are prepared first (gpu/lib/delta_chunk.cuh). A second launch walks the chunks of a request. A
 * warp has 16 columns of S as the fragments of S^T, and therefore needs no other warp for its products.
 * docs/kernels/gated_delta_rule.md has the schedule. */
#include "gpu/lib/delta_chunk.cuh"

namespace ASSAY_NS {
namespace {

constexpr int walk_stages = 2, pair_columns = 16;

/* A block has 16 columns for each pair of warps: one has S, the other makes the result. One more warp loads. */
constexpr int walk_threads(int pairs) {
  return (2 * pairs + 1) * 32;
}

/* One stage of a walk's shared memory: what a chunk needs. */
template <int D_k, int pairs> struct walk_stage {
  static constexpr int keys = 0, queries = chunk_rows * D_k * 2, values = 2 * queries;
  static constexpr int record = values + chunk_rows * pairs * pair_columns * 2, bytes = record + chunk_record_bytes;
};

/* A pair's fragments that pass from warp to warp: S^T at the chunk's begin, and U^T. */
template <int D_k> constexpr int passed_bytes = (D_k / 16 + chunk_rows / 16) * 512;
/* Barriers of a walk: full and empty per stage; of each pair, whether S and U were given and taken. */
struct walk_barriers {
  uint64_t full[walk_stages], empty[walk_stages];
  uint64_t state_given[2], state_taken[2], update_given[2], update_taken[2];
};

template <int D_k, int pairs>
constexpr int walk_rooms = walk_stages *walk_stage<D_k, pairs>::bytes + pairs *passed_bytes<D_k>;
template <int D_k, int pairs>
constexpr int64_t walk_shared = walk_rooms<D_k, pairs> + static_cast<int64_t>(sizeof(walk_barriers));

/* The work of a block: some columns of one value head of one request. */
struct walk_work {
  int64_t first, rows, place, slot;
  int32_t head, key, column;
  bool fresh;
};

/* Requests are taken from the last one on: engines put prompts after decode steps, and the longest should begin first.
 */
__device__ __forceinline__ walk_work walk_work_of(const rule_params &p, int64_t block) {
  walk_work w;
  const int32_t request = p.B - 1 - static_cast<int32_t>(block / p.pieces / p.H_v);
  w.column = static_cast<int32_t>(block % p.pieces) * (p.D_v / p.pieces);
  w.head = static_cast<int32_t>(block / p.pieces % p.H_v);
  w.key = w.head / (p.H_v / p.H_k);
  w.first = rule_row(p, request);
  w.rows = rule_row(p, request + 1) - w.first;
  w.place = chunk_place(w.first, request);
  w.slot = rule_slot(p, request);
  w.fresh = p.fresh[request] != 0;
  return w;
}

/* Returns the address of 8 values of a row, in a tile with rows of 16 or 32. Eight rows lie in different banks. */
template <int pairs> __device__ __forceinline__ char *values_at(char *tile, int row, int group) {
  const int turn = pairs == 1 ? row >> 2 & 1 : row >> 1 & 3;
  return tile + row * (pairs * pair_columns * 2) + ((group ^ turn) * 16);
}

/* ---- the producer ------------------------------------------------------------------------------------ */

/* Loads chunk after chunk. Rows after the request's last one are zeros. */
template <int D_k, int pairs>
__device__ __forceinline__ void produce(const rule_params &p, const walk_work &w, const char *records, char *room,
                                        walk_barriers *barriers) {
  using stage = walk_stage<D_k, pairs>;
  const int lane = static_cast<int>(lane_id());
  const int64_t channel = static_cast<int64_t>(w.key) * D_k;
  const int64_t column = static_cast<int64_t>(w.head) * p.D_v + w.column;
  for (int64_t c = 0; c * chunk_rows < w.rows; ++c) {
    const int at = static_cast<int>(c % walk_stages);
    const uint32_t turn = static_cast<uint32_t>(c / walk_stages % 2);
    char *const to = room + at * stage::bytes;
    const int64_t row = w.first + c * chunk_rows;
    const int rows = static_cast<int>(min(w.rows - c * chunk_rows, static_cast<int64_t>(chunk_rows)));
    mbarrier_wait(&barriers->empty[at], turn ^ 1);
    if (lane == 0) {
      mbarrier_expect(&barriers->full[at], chunk_record_bytes);
      bulk_load(to + stage::record, records + ((w.place + c) * p.H_v + w.head) * chunk_record_bytes, chunk_record_bytes,
                &barriers->full[at]);
    }
    load_tile<D_k, 32>(to + stage::keys, static_cast<const bf16 *>(p.k) + row * p.k_row + channel, p.k_row, rows, lane);
    constexpr int groups = pairs * pair_columns / 8;
    for (int i = lane; i < chunk_rows * groups; i += 32) {
      const int r = i / groups, group = i % groups;
      const bool live = r < rows;
      cp_async_16(values_at<pairs>(to + stage::values, r, group),
                  static_cast<const bf16 *>(p.v) + (row + (live ? r : 0)) * p.v_row + column + 8 * group,
                  live ? 16 : 0);
    }
    load_tile<D_k, 32>(to + stage::queries, static_cast<const bf16 *>(p.q) + row * p.q_row + channel, p.q_row, rows,
                       lane);
    cp_async_arrive_noinc(&barriers->full[at]);
  }
}

/* ---- products ---------------------------------------------------------------------------------------- */

template <int tiles> __device__ __forceinline__ void clear(float (&d)[tiles][4]) {
  ASSAY_UNROLL
  for (int t = 0; t < tiles; ++t) {
    ASSAY_UNROLL
    for (int e = 0; e < 4; ++e)
      d[t][e] = 0.0f;
  }
}

/* Computes two tiles of d += a · b. */
__device__ __forceinline__ void multiply_two(float (&d0)[4], float (&d1)[4], const uint32_t (&a)[4],
                                             const uint32_t (&b)[4]) {
  const uint32_t first[2] = {b[0], b[1]}, second[2] = {b[2], b[3]};
  mma_m16n8k16<bf16>(d0, a, first);
  mma_m16n8k16<bf16>(d1, a, second);
}

/* Makes a fragment of A of two tiles that a product has left. */
__device__ __forceinline__ void fragment_of(uint32_t (&a)[4], const float (&low)[4], const float (&high)[4]) {
  a[0] = pack_pair<bf16>(low[0], low[1]);
  a[1] = pack_pair<bf16>(low[2], low[3]);
  a[2] = pack_pair<bf16>(high[0], high[1]);
  a[3] = pack_pair<bf16>(high[2], high[3]);
}

/* Calls use(i, b) for `count` fragments of B, each of which load(i, b) has loaded three products of two earlier. */
template <int count, class Load, class Use> __device__ __forceinline__ void stream_b(Load load, Use use) {
  constexpr int ahead = 3, ring = ahead + 1;
  uint32_t b[ring][4];
  ASSAY_UNROLL
  for (int i = 0; i < ahead; ++i)
    load(i, b[i]);
  ASSAY_UNROLL
  for (int i = 0; i < count; ++i) {
    if (i + ahead < count) load(i + ahead, b[(i + ahead) % ring]);
    use(i, b[i % ring]);
  }
}

constexpr int lower_blocks = 10;

/* Returns the row or the column of block i of a lower triangle, column after column. */
__device__ __forceinline__ constexpr int lower_column(int i) {
  return i < 4 ? 0 : i < 7 ? 1 : i < 9 ? 2 : 3;
}

__device__ __forceinline__ constexpr int lower_row(int i) {
  return i < 4 ? i : i < 7 ? i - 3 : i < 9 ? i - 5 : 3;
}

/* Computes d += x M^T for a lower triangle M of 64 rows; x is given by its fragments of 16 rows. */
__device__ __forceinline__ void multiply_lower(float (&d)[8][4], const char *matrix, const uint32_t (&x)[4][4]) {
  const int lane = static_cast<int>(lane_id());
  const char *const from = matrix + chunk_half_at(lane % 8 + lane / 16 * 8, lane / 8 % 2);
  stream_b<lower_blocks>(
      [&](int i, uint32_t(&b)[4]) { ldmatrix_x4(b, from + chunk_block_at(lower_row(i), lower_column(i))); },
      [&](int i, const uint32_t(&b)[4]) {
        multiply_two(d[2 * lower_row(i)], d[2 * lower_row(i) + 1], x[lower_column(i)], b);
      });
}

/* ---- the state's warps ------------------------------------------------------------------------------- */

/* Stores a fragment for the pair's other warp, which has the same lanes. */
__device__ __forceinline__ void give(char *to, const uint32_t (&a)[4]) {
  *reinterpret_cast<uint4 *>(to + lane_id() * 16) = make_uint4(a[0], a[1], a[2], a[3]);
}

__device__ __forceinline__ void take(const char *from, uint32_t (&a)[4]) {
  const uint4 four = *reinterpret_cast<const uint4 *>(from + lane_id() * 16);
  a[0] = four.x;
  a[1] = four.y;
  a[2] = four.z;
  a[3] = four.w;
}

/* Computes S^T K^T, whose element (column, row i) is k_i . S. Calls between(step) after the products of 16 elements. */
template <int D_k, class Between>
__device__ __forceinline__ void read_state(float (&d)[8][4], const uint32_t (&s)[D_k / 16][4], char *keys,
                                           Between between) {
  clear(d);
  stream_b<D_k / 4>([&](int i, uint32_t(&b)[4]) { load_rows_b<D_k>(b, keys, 16 * (i % 4), i / 4); },
                    [&](int i, const uint32_t(&b)[4]) {
                      multiply_two(d[2 * (i % 4)], d[2 * (i % 4) + 1], s[i / 4], b);
                      if (i % 4 == 3) between(i / 4);
                    });
}

/* Computes S^T += u K, with u as fragments of 16 rows. Calls between(i) after product i of two. */
template <int D_k, class Between>
__device__ __forceinline__ void update_state(float (&s)[D_k / 8][4], const uint32_t (&u)[4][4], char *keys,
                                             Between between) {
  constexpr int groups = D_k / 16;
  const int lane = static_cast<int>(lane_id());
  stream_b<4 * groups>(
      [&](int i, uint32_t(&b)[4]) {
        ldmatrix_x4_trans(b, tile_at<D_k>(keys, 16 * (i / groups) + lane % 16, 2 * (i % groups) + lane / 16));
      },
      [&](int i, const uint32_t(&b)[4]) {
        multiply_two(s[2 * (i % groups)], s[2 * (i % groups) + 1], u[i / groups], b);
        between(i);
      });
}

/* Replaces k_i . S by beta_i (v_i - exp(G_i) n_i k_i . S). `group`: of the 16 columns, in the tile of values. */
template <int pairs>
__device__ __forceinline__ void subtract_read(float (&d)[8][4], char *values, const float *factors, int group) {
  const int lane = static_cast<int>(lane_id()), pair = 2 * (lane % 4);
  ASSAY_UNROLL
  for (int two = 0; two < 4; ++two) {
    uint32_t v[4];
    ldmatrix_x4_trans(v, values_at<pairs>(values, 16 * two + lane % 8 + lane / 16 * 8, group + lane / 8 % 2));
    ASSAY_UNROLL
    for (int half = 0; half < 2; ++half) {
      const int tile = 2 * two + half, row = 8 * tile + pair;
      const float2 key = *reinterpret_cast<const float2 *>(factors + chunk_key * chunk_rows + row);
      const float2 beta = *reinterpret_cast<const float2 *>(factors + chunk_beta * chunk_rows + row);
      ASSAY_UNROLL
      for (int side = 0; side < 2; ++side) {
        float low, high;
        unpack_pair<bf16>(v[2 * half + side], low, high);
        d[tile][2 * side] = beta.x * (low - key.x * d[tile][2 * side]);
        d[tile][2 * side + 1] = beta.y * (high - key.y * d[tile][2 * side + 1]);
      }
    }
  }
}

/* Multiplies column i of u by factor i. */
__device__ __forceinline__ void scale_rows(float (&u)[8][4], const float *factor) {
  const int pair = 2 * (static_cast<int>(lane_id()) % 4);
  ASSAY_UNROLL
  for (int t = 0; t < 8; ++t) {
    const float2 by = *reinterpret_cast<const float2 *>(factor + 8 * t + pair);
    ASSAY_UNROLL
    for (int side = 0; side < 2; ++side) {
      u[t][2 * side] *= by.x;
      u[t][2 * side + 1] *= by.y;
    }
  }
}

template <class State, int D_k, int pairs>
__device__ __forceinline__ void walk_state(const rule_params &p, const walk_work &w, char *room, char *passed,
                                           walk_barriers *barriers, int own) {
  using stage = walk_stage<D_k, pairs>;
  const int lane = static_cast<int>(lane_id());
  State *const state = static_cast<State *>(p.state) + (w.slot >= 0 ? w.slot : 0) * p.state_row +
                       static_cast<int64_t>(w.head) * D_k * p.D_v + w.column + 16 * own + lane / 4;
  float s[D_k / 8][4];
  ASSAY_UNROLL
  for (int t = 0; t < D_k / 8; ++t) {
    ASSAY_UNROLL
    for (int e = 0; e < 4; ++e) {
      const int64_t row = 8 * t + 2 * (lane % 4) + e % 2;
      s[t][e] = w.slot >= 0 && !w.fresh ? to_float(state[row * p.D_v + e / 2 * 8]) : 0.0f;
    }
  }
  for (int64_t c = 0; c * chunk_rows < w.rows; ++c) {
    const int at = static_cast<int>(c % walk_stages);
    const uint32_t turn = static_cast<uint32_t>(c % 2);
    char *const chunk = room + at * stage::bytes;
    const float *const factors = reinterpret_cast<const float *>(chunk + stage::record + 2 * chunk_matrix_bytes);
    uint32_t a[D_k / 16][4], x[4][4], y[4][4];
    float u[8][4];
    ASSAY_UNROLL
    for (int step = 0; step < D_k / 16; ++step)
      fragment_of(a[step], s[2 * step], s[2 * step + 1]);
    mbarrier_wait(&barriers->state_taken[own], turn ^ 1);
    mbarrier_wait(&barriers->full[at], static_cast<uint32_t>(c / walk_stages % 2));
    const float decay = factors[chunk_decay * chunk_rows];
    /* Stores and products of plain cores hide in those of tensor cores. */
    read_state<D_k>(u, a, chunk + stage::keys, [&](int step) {
      give(passed + step * 512, a[step]);
      ASSAY_UNROLL
      for (int e = 0; e < 4; ++e) {
        s[2 * step][e] *= decay;
        s[2 * step + 1][e] *= decay;
      }
    });
    mbarrier_arrive(&barriers->state_given[own]);
    subtract_read<pairs>(u, chunk + stage::values, factors, 2 * own);
    ASSAY_UNROLL
    for (int b = 0; b < 4; ++b)
      fragment_of(x[b], u[2 * b], u[2 * b + 1]);
    multiply_lower(u, chunk + stage::record, x);
    ASSAY_UNROLL
    for (int b = 0; b < 4; ++b)
      fragment_of(x[b], u[2 * b], u[2 * b + 1]);
    scale_rows(u, factors + chunk_update * chunk_rows);
    ASSAY_UNROLL
    for (int b = 0; b < 4; ++b)
      fragment_of(y[b], u[2 * b], u[2 * b + 1]);
    mbarrier_wait(&barriers->update_taken[own], turn ^ 1);
    update_state<D_k>(s, y, chunk + stage::keys, [&](int i) {
      if (i < 4) give(passed + (D_k / 16 + i) * 512, x[i]);
      if (i == 3) mbarrier_arrive(&barriers->update_given[own]);
    });
    mbarrier_arrive(&barriers->empty[at]);
  }
  if (w.slot < 0) return;
  ASSAY_UNROLL
  for (int t = 0; t < D_k / 8; ++t) {
    ASSAY_UNROLL
    for (int e = 0; e < 4; ++e) {
      const int64_t row = 8 * t + 2 * (lane % 4) + e % 2;
      state[row * p.D_v + e / 2 * 8] = from_float<State>(s[t][e]);
    }
  }
}

/* ---- the result's warps ------------------------------------------------------------------------------ */

/* Stores the result of a chunk. Neighbouring lanes of a column trade rows, so that each stores two columns at once. */
__device__ __forceinline__ void store_rows(const rule_params &p, const float (&o)[8][4], bf16 *to, int rows) {
  const int lane = static_cast<int>(lane_id());
  const bool odd = lane / 4 % 2 != 0;
  ASSAY_UNROLL
  for (int t = 0; t < 8; ++t) {
    const int row = 8 * t + 2 * (lane % 4) + (odd ? 1 : 0);
    ASSAY_UNROLL
    for (int side = 0; side < 2; ++side) {
      const float low = p.scale * o[t][2 * side], high = p.scale * o[t][2 * side + 1];
      const float other = __shfl_xor_sync(0xffffffffu, odd ? low : high, 4);
      const uint32_t pair = odd ? pack_pair<bf16>(other, high) : pack_pair<bf16>(low, other);
      if (row < rows) *reinterpret_cast<uint32_t *>(to + row * p.o_row + 8 * side + lane / 4 - (odd ? 1 : 0)) = pair;
    }
  }
}

template <int D_k, int pairs>
__device__ __forceinline__ void walk_result(const rule_params &p, const walk_work &w, char *room, const char *passed,
                                            walk_barriers *barriers, int own) {
  using stage = walk_stage<D_k, pairs>;
  bf16 *const o = static_cast<bf16 *>(p.o) + static_cast<int64_t>(w.head) * p.D_v + w.column + 16 * own;
  for (int64_t c = 0; c * chunk_rows < w.rows; ++c) {
    const int at = static_cast<int>(c % walk_stages);
    const uint32_t turn = static_cast<uint32_t>(c % 2);
    char *const chunk = room + at * stage::bytes;
    const float *const factors = reinterpret_cast<const float *>(chunk + stage::record + 2 * chunk_matrix_bytes);
    float d[8][4];
    uint32_t a[D_k / 16][4];
    mbarrier_wait(&barriers->state_given[own], turn);
    ASSAY_UNROLL
    for (int step = 0; step < D_k / 16; ++step)
      take(passed + step * 512, a[step]);
    mbarrier_arrive(&barriers->state_taken[own]);
    mbarrier_wait(&barriers->full[at], static_cast<uint32_t>(c / walk_stages % 2));
    read_state<D_k>(d, a, chunk + stage::queries, [](int) {});
    scale_rows(d, factors + chunk_query * chunk_rows);
    mbarrier_wait(&barriers->update_given[own], turn);
    uint32_t x[4][4];
    ASSAY_UNROLL
    for (int b = 0; b < 4; ++b)
      take(passed + (D_k / 16 + b) * 512, x[b]);
    multiply_lower(d, chunk + stage::record + chunk_matrix_bytes, x);
    mbarrier_arrive(&barriers->update_taken[own]);
    mbarrier_arrive(&barriers->empty[at]);
    const int rows = static_cast<int>(min(w.rows - c * chunk_rows, static_cast<int64_t>(chunk_rows)));
    store_rows(p, d, o + (w.first + c * chunk_rows) * p.o_row, rows);
  }
}

/* ---- the walk ---------------------------------------------------------------------------------------- */

/* chunk_walk: all chunks of a request, for 32 or 16 columns of one value head. The first warps make the result, the
 * next ones have S, and the last one loads. It shares its scheduler with a warp of the result, if with any. Grid:   (B
 * * H_v * pieces). Block: 160 or 96 threads. Shared: two chunks, and what the warps pass on: 109 KB for D_k = 128 and
 * 32 columns. Align:  16 bytes: q, k, v; 4 bytes: o. Arch:   sm_90. Limit:  latency of the walk: the products of a
 * chunk and of one warp follow each other. */
template <class State, int D_k, int pairs>
__global__ void __launch_bounds__(walk_threads(pairs), 2) chunk_walk(rule_params p, const char *records) {
  ASSAY_DYNAMIC_SHARED(char, room);
  const walk_work w = walk_work_of(p, blockIdx.x);
  const int warp = static_cast<int>(threadIdx.x) / 32, own = warp % pairs;
  walk_barriers *const barriers = reinterpret_cast<walk_barriers *>(room + walk_rooms<D_k, pairs>);
  if (w.rows <= 0) return;
  if (threadIdx.x == 0) {
    for (int s = 0; s < walk_stages; ++s) {
      mbarrier_init(&barriers->full[s], 33); /* the lanes' copies, and the announcement of the record */
      mbarrier_init(&barriers->empty[s], 2 * pairs * 32);
    }
    for (int s = 0; s < pairs; ++s) {
      mbarrier_init(&barriers->state_given[s], 32);
      mbarrier_init(&barriers->state_taken[s], 32);
      mbarrier_init(&barriers->update_given[s], 32);
      mbarrier_init(&barriers->update_taken[s], 32);
    }
    mbarrier_fence_init();
  }
  __syncthreads();
  char *const passed = room + walk_stages * walk_stage<D_k, pairs>::bytes + own * passed_bytes<D_k>;
  if (warp < pairs)
    walk_result<D_k, pairs>(p, w, room, passed, barriers, own);
  else if (warp < 2 * pairs)
    walk_state<State, D_k, pairs>(p, w, room, passed, barriers, own);
  else
    produce<D_k, pairs>(p, w, records, room, barriers);
}

/* ---- launcher ---------------------------------------------------------------------------------------- */

/* Requests with fewer rows than this on average are left to the kernels that take row after row. */
constexpr int64_t fewest_rows = 4;

bool aligned(const void *data, int64_t row, int64_t elements) {
  return reinterpret_cast<uintptr_t>(data) % static_cast<uintptr_t>(2 * elements) == 0 && row % elements == 0;
}

assay_status read_chunk(const assay_call *call, rule_params *p, assay_error *error) {
  ASSAY_TRY(rule_read(call, p, error));
  if (p->type != ASSAY_BF16)
    return assay_fail(error, ASSAY_ERR_UNSUPPORTED, "q: found dtype %s, taken here: bf16", assay_dtype_name(p->type));
  if (p->D_k != 64 && p->D_k != 128)
    return assay_fail(error, ASSAY_ERR_UNSUPPORTED, "D_k: found %d, taken here: 64, 128", p->D_k);
  if (p->D_v % (2 * pair_columns) != 0)
    return assay_fail(error, ASSAY_ERR_UNSUPPORTED, "D_v: found %d, taken here: multiples of %d", p->D_v,
                      2 * pair_columns);
  if (p->N < fewest_rows * p->B)
    return assay_fail(error, ASSAY_ERR_UNSUPPORTED, "N: found %lld, taken here: %lld rows for each request and more",
                      static_cast<long long>(p->N), static_cast<long long>(fewest_rows));
  const struct {
    const char *name;
    bool good;
  } rows[] = {{"q", aligned(p->q, p->q_row, 8)},
              {"k", aligned(p->k, p->k_row, 8)},
              {"v", aligned(p->v, p->v_row, 8)},
              {"o", aligned(p->o, p->o_row, 2)}};
  for (const auto &row : rows)
    if (!row.good)
      return assay_fail(error, ASSAY_ERR_UNSUPPORTED, "%s: found rows that do not begin at multiples of %d bytes",
                        row.name, row.name[0] == 'o' ? 4 : 16);
  return ASSAY_OK;
}

int64_t chunk_bytes(const rule_params &p) {
  return chunk_places(p.N, p.B) * p.H_v * chunk_record_bytes;
}

assay_status supports(const assay_call *call, assay_error *error) {
  rule_params p;
  return read_chunk(call, &p, error);
}

assay_status workspace(const assay_call *call, int64_t *bytes, assay_error *error) {
  rule_params p;
  *bytes = 0;
  ASSAY_TRY(read_chunk(call, &p, error));
  *bytes = chunk_bytes(p);
  return ASSAY_OK;
}

template <class State, int D_k, int pairs>
assay_status launch_chunk(rule_params p, char *records, assay_env *env, assay_error *error) {
  p.pieces = p.D_v / (pairs * pair_columns);
  ASSAY_TRY(ASSAY_LAUNCH(error, (chunk_prepare<D_k>), (launch_extent{chunk_places(p.N, p.B), p.H_k}), prepare_threads,
                         prepare_shared<D_k>(), env->stream, p, records));
  return ASSAY_LAUNCH(error, (chunk_walk<State, D_k, pairs>), static_cast<int64_t>(p.B) * p.H_v * p.pieces,
                      walk_threads(pairs), (walk_shared<D_k, pairs>), env->stream, p, records);
}

template <class State, int D_k>
assay_status launch_columns(const rule_params &p, bool narrow, char *records, assay_env *env, assay_error *error) {
  return narrow ? launch_chunk<State, D_k, 1>(p, records, env, error)
                : launch_chunk<State, D_k, 2>(p, records, env, error);
}

assay_status launch(const assay_call *call, assay_env *env, assay_error *error) {
  rule_params p;
  ASSAY_TRY(read_chunk(call, &p, error));
  ASSAY_TRY(expect_workspace(env, chunk_bytes(p), error));
  char *const records = static_cast<char *>(env->workspace);
  const bool narrow = 2 * p.B * static_cast<int64_t>(p.H_v) * (p.D_v / pair_columns) <= env->multiprocessors;
  (void)snprintf(env->path, sizeof env->path, "chunk D_k=%d columns=%d", p.D_k, narrow ? 16 : 32);
  if (p.state_type == ASSAY_F32)
    return p.D_k == 64 ? launch_columns<float, 64>(p, narrow, records, env, error)
                       : launch_columns<float, 128>(p, narrow, records, env, error);
  return p.D_k == 64 ? launch_columns<bf16, 64>(p, narrow, records, env, error)
                     : launch_columns<bf16, 128>(p, narrow, records, env, error);
}

/* S is f32 and rounded to bf16 where a chunk multiplies it, as T - I, W, U, A, and U times its factors are. */
constexpr assay_contract chunk_contract = {.exp_ulp = 2.0,
                                           .qk_lanes = 1,
                                           .pv_lanes = 1,
                                           .run_to_run = true,
                                           .renumbering = true,
                                           .lanes = 8,
                                           .alone = true,
                                           .cut = tensor_core_terms,
                                           .chunk = ASSAY_BF16};

} // namespace
} // namespace ASSAY_NS

#define CHUNK                                                                                                          \
  {                                                                                                                    \
    sizeof(assay_variant), "gated_delta_rule", "chunk" ASSAY_VARIANT_SUFFIX,                                           \
        "chunks of 64 rows on tensor cores, for prompts and mixed batches", ASSAY_DEVICE_NAME, "sm_90a", "bf16",       \
        ::ASSAY_NS::chunk_contract, ::ASSAY_NS::supports, ::ASSAY_NS::workspace, ::ASSAY_NS::launch                    \
  }

ASSAY_VARIANTS(gated_delta_rule_chunk, CHUNK)
