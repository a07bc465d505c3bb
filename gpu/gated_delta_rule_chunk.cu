/* gated_delta_rule_chunk.cu: prompts and mixed batches in chunks of 64 rows, on tensor cores.
 *
 *   W = beta (V - exp(G) K S);    U = T W;    O = scale (exp(G) Q S + A U);    S <- exp(G_n) S + (exp(G_n - G) K)^T U
 *
 * T and A of all chunks are prepared first (gpu/lib/delta_chunk.cuh). A second launch walks the chunks of a request. A
 * warpgroup has 64 columns of S as the accumulators of S^T. They are the left factor of wgmma, rounded to bf16, and so
 * are W and U. Nothing passes from warp to warp.
 * docs/kernels/gated_delta_rule.md has the schedule. */
#include "gpu/lib/delta_chunk.cuh"
#include "gpu/lib/delta_segments.cuh"
#include "gpu/lib/ptx_wgmma.cuh"
#include "gpu/lib/warp.cuh"

namespace ASSAY_NS {
namespace {

constexpr int walk_columns = 64, walk_loaders = 64, walk_storers = 64, walk_threads = 128 + walk_loaders + walk_storers;

/* T or A in shared memory: eight runs of 64 rows, with zeros above the diagonal's blocks. */
constexpr int run_bytes = chunk_rows * 16, matrix_bytes = 8 * run_bytes, factor_bytes = chunk_factors * chunk_rows * 4;

/* One stage of a walk's shared memory: what a chunk needs. Tiles begin at multiples of 1024 bytes. */
template <int D_k> struct walk_stage {
  static constexpr int stages = 3;
  static constexpr int keys = 0, queries = chunk_rows * D_k * 2, values = 2 * queries;
  static constexpr int inverse = values + chunk_part_bytes, weights = inverse + matrix_bytes; /* T - I, and A */
  static constexpr int factors = weights + matrix_bytes, bytes = (factors + factor_bytes + 1023) / 1024 * 1024;
  static constexpr int rows = values + chunk_part_bytes; /* bytes that are rows */
};

/* Passes of walks over the segments of a call. A request may be cut into segments: see "segments" below. */
enum walk_pass { walk_whole, walk_first, walk_second };

/* The things that a block may walk: values on their state, values on a state of zeros, or no values on I. */
enum walk_kind { walk_values_all, walk_values_alone, walk_transition };

/* The work of a block: 64 columns of one value head of one request, or of one segment. `before` and `after` are states
 * in the workspace, in place of the slot's. */
struct walk_work {
  int64_t first, rows, place, slot;
  const float *before;
  float *after;
  int32_t head, key, column, columns, kind; /* columns: of the state */
  bool fresh;
};

/* `work` is read again where S is stored, so that no register holds it. */
struct walk_barriers {
  uint64_t full[3]; /* stages */
  walk_work work;
};

/* Named barriers, with the number of threads that meet. Those that give arrive, and those that take wait. No warp gives
 * what no warp will take. These barriers order what every lane has read. racecheck cannot follow an mbarrier at which
 * one lane arrives for its warp. */
constexpr uint32_t loaders_barrier = 1;                                 /* the loaders alone */
constexpr uint32_t empty_barrier = 2, empty_threads = 128 + 32;         /* three: a stage may be filled */
constexpr uint32_t made_barrier = 5, made_threads = 128 + walk_storers; /* two: a result is in its tile */
constexpr uint32_t stored_barrier = 7;                                  /* two: a result has left its tile */

template <int D_k> constexpr int walk_rooms = walk_stage<D_k>::stages *walk_stage<D_k>::bytes + 2 * chunk_part_bytes;
template <int D_k> constexpr int64_t walk_shared = walk_rooms<D_k> + static_cast<int64_t>(sizeof(walk_barriers));

/* Requests are taken from the last one on: engines put prompts after decode steps, and the longest should begin first.
 */
__device__ __forceinline__ walk_work walk_request(const rule_params &p, int32_t request, int32_t head, int32_t piece) {
  walk_work w;
  w.column = piece * walk_columns;
  w.head = head;
  w.key = w.head / (p.H_v / p.H_k);
  w.first = rule_row(p, request);
  w.rows = rule_row(p, request + 1) - w.first;
  w.place = chunk_place(w.first, request);
  w.slot = rule_slot(p, request);
  w.fresh = p.fresh[request] != 0;
  w.before = nullptr;
  w.after = nullptr;
  w.columns = p.D_v;
  w.kind = walk_values_all;
  return w;
}

/* Narrows the work to a segment. A segment that the request has not gets no rows. */
__device__ __forceinline__ void walk_segment(const rule_params &p, walk_work &w, int32_t request, int32_t segment,
                                             float *ends) {
  const segment_cut cut = segments_of(p, w.rows);
  const int64_t from = segment * cut.rows;
  const bool last = segment + 1 == cut.count;
  w.rows = segment < cut.count ? min(w.rows - from, cut.rows) : 0;
  w.first += from;
  w.place += from / chunk_rows;
  if (segment > 0) w.before = segment_end(p, ends, request, segment - 1, w.head);
  if (!last) w.after = segment_end(p, ends, request, segment, w.head);
}

template <int pass, int D_k>
__device__ __forceinline__ walk_work walk_work_of(const rule_params &p, int64_t block, float *ends) {
  const int64_t tasks = static_cast<int64_t>(p.H_v) * p.pieces; /* blocks of one request or segment */
  const int32_t pieces = p.pieces;
  if constexpr (pass == walk_whole)
    return walk_request(p, p.B - 1 - static_cast<int32_t>(block / tasks), static_cast<int32_t>(block / pieces % p.H_v),
                        static_cast<int32_t>(block % pieces));
  if constexpr (pass == walk_first) {
    if (block < p.B * tasks) { /* first segments have results, and take longest */
      const int32_t request = p.B - 1 - static_cast<int32_t>(block / tasks);
      walk_work w =
          walk_request(p, request, static_cast<int32_t>(block / pieces % p.H_v), static_cast<int32_t>(block % pieces));
      walk_segment(p, w, request, 0, ends);
      return w;
    }
    block -= p.B * tasks;
    const int32_t both = pieces + D_k / walk_columns, piece = static_cast<int32_t>(block % both);
    const int32_t head = static_cast<int32_t>(block / both % p.H_v);
    const int64_t outer = block / both / p.H_v;
    const int32_t segment = 1 + static_cast<int32_t>(outer % (p.segments - 2));
    const int32_t request = static_cast<int32_t>(outer / (p.segments - 2));
    walk_work w = walk_request(p, request, head, piece < pieces ? piece : piece - pieces);
    walk_segment(p, w, request, segment, ends);
    w.kind = walk_values_alone;
    if (w.after == nullptr) w.rows = 0; /* no segment follows the last one */
    if (piece >= pieces) {
      w.kind = walk_transition;
      w.columns = D_k;
      if (w.after != nullptr) w.after += static_cast<int64_t>(D_k) * p.D_v;
    }
    return w;
  }
  const int64_t outer = block / tasks;
  const int32_t segment = 1 + static_cast<int32_t>(outer % (p.segments - 1));
  const int32_t request = static_cast<int32_t>(outer / (p.segments - 1));
  walk_work w =
      walk_request(p, request, static_cast<int32_t>(block / pieces % p.H_v), static_cast<int32_t>(block % pieces));
  walk_segment(p, w, request, segment, ends);
  if (w.after != nullptr) w.slot = -1; /* its end is known already */
  w.after = nullptr;
  return w;
}

/* ---- loads ------------------------------------------------------------------------------------------- */

/* Loads a chunk of 64 rows: boxes of 64 columns, by the copy engine. One thread. */
template <int D_k>
__device__ __forceinline__ void load_whole(const rule_params &p, const walk_work &w, int64_t row,
                                           const tensor_map *map_q, const tensor_map *map_k, const tensor_map *map_v,
                                           char *to, uint64_t *full) {
  using stage = walk_stage<D_k>;
  const int32_t at = static_cast<int32_t>(row);
  ASSAY_UNROLL
  for (int part = 0; part < D_k / 64; ++part)
    tma_load(to + stage::keys + part * chunk_part_bytes, map_k, full, w.key * D_k + 64 * part, at);
  if (w.kind != walk_transition) tma_load(to + stage::values, map_v, full, w.head * p.D_v + w.column, at);
  ASSAY_UNROLL
  for (int part = 0; part < D_k / 64; ++part)
    if (w.kind == walk_values_all)
      tma_load(to + stage::queries + part * chunk_part_bytes, map_q, full, w.key * D_k + 64 * part, at);
}

/* Loads the last rows of a request, with zeros after them. All loaders. */
template <int D_k>
__device__ __forceinline__ void load_last(const rule_params &p, const walk_work &w, int64_t row, int rows, char *to,
                                          int thread) {
  using stage = walk_stage<D_k>;
  const int64_t channel = static_cast<int64_t>(w.key) * D_k;
  const int64_t column = static_cast<int64_t>(w.head) * p.D_v + w.column;
  load_tile<D_k, walk_loaders>(to + stage::keys, static_cast<const bf16 *>(p.k) + row * p.k_row + channel, p.k_row,
                               rows, D_k, thread);
  load_tile<64, walk_loaders>(to + stage::values, static_cast<const bf16 *>(p.v) + row * p.v_row + column, p.v_row,
                              rows, p.D_v - w.column, thread);
  load_tile<D_k, walk_loaders>(to + stage::queries, static_cast<const bf16 *>(p.q) + row * p.q_row + channel, p.q_row,
                               rows, D_k, thread);
  cp_async_commit();
  cp_async_wait<0>();
  fence_proxy_async();
  named_barrier_sync(loaders_barrier, walk_loaders);
}

/* Loads a record: a run of T or A by each of 16 lanes, and the factors. A walk without results has no use for A. One
 * warp. Copies may be complete before thread 0 has announced their bytes. The phase waits for its two arrivals, and may
 * count fewer than 0 bytes until then. */
template <int D_k>
__device__ __forceinline__ void load_record(const walk_work &w, const char *record, char *to, uint64_t *full) {
  using stage = walk_stage<D_k>;
  const int lane = static_cast<int>(lane_id()), group = lane % 8, from = chunk_run_at(group);
  const int matrix = lane / 8, rows = chunk_run_rows(group);
  if (lane < (w.kind == walk_values_all ? 16 : 8))
    bulk_load(to + stage::inverse + matrix * matrix_bytes + group * run_bytes + (chunk_rows - rows) * 16,
              record + matrix * chunk_matrix_bytes + from, static_cast<uint32_t>(rows * 16), full);
  if (lane == 16) bulk_load(to + stage::factors, record + 2 * chunk_matrix_bytes, factor_bytes, full);
}

/* Fills T and A of all stages with zeros: what is above the diagonal's blocks stays so. */
template <int D_k> __device__ __forceinline__ void clear_matrices(char *room, int thread) {
  using stage = walk_stage<D_k>;
  for (int i = thread; i < stage::stages * 2 * matrix_bytes / 16; i += walk_threads) {
    const int at = i / (2 * matrix_bytes / 16), within = i % (2 * matrix_bytes / 16);
    *reinterpret_cast<uint4 *>(room + at * stage::bytes + stage::inverse + 16 * within) = make_uint4(0u, 0u, 0u, 0u);
  }
  fence_proxy_async();
}

/* Returns the bytes of a chunk that the copy engine brings. Walks without results need no queries and no A. */
template <int D_k> __device__ __forceinline__ uint32_t loaded_bytes(const walk_work &w, bool whole) {
  using stage = walk_stage<D_k>;
  int bytes = chunk_record_bytes + (whole ? stage::rows : 0);
  if (w.kind != walk_values_all) bytes -= chunk_matrix_bytes + (whole ? chunk_rows * D_k * 2 : 0);
  if (w.kind == walk_transition) bytes -= chunk_part_bytes;
  return static_cast<uint32_t>(bytes);
}

/* Loads chunk after chunk. A stage is full when its copies are complete and its loaders have arrived. */
template <int D_k>
__device__ __forceinline__ void produce(const rule_params &p, const walk_work &w, const tensor_map *map_q,
                                        const tensor_map *map_k, const tensor_map *map_v, const char *records,
                                        char *room, walk_barriers *barriers) {
  using stage = walk_stage<D_k>;
  const int thread = static_cast<int>(threadIdx.x) - 128;
  int at = 0;
  for (int64_t c = 0; c * chunk_rows < w.rows; ++c) {
    char *const to = room + at * stage::bytes;
    uint64_t *const full = &barriers->full[at];
    const int64_t row = w.first + c * chunk_rows;
    const int rows = static_cast<int>(min(w.rows - c * chunk_rows, static_cast<int64_t>(chunk_rows)));
    const bool whole = rows == chunk_rows;
    if (thread < 32 && c >= stage::stages) named_barrier_sync(empty_barrier + at, empty_threads);
    if (!whole) named_barrier_sync(loaders_barrier, walk_loaders); /* the second warp has not seen the turns before */
    if (thread == 0) {
      mbarrier_expect(full, loaded_bytes<D_k>(w, whole));
      if (whole) load_whole<D_k>(p, w, row, map_q, map_k, map_v, to, full);
    }
    if (thread < 32) load_record<D_k>(w, records + ((w.place + c) * p.H_v + w.head) * chunk_record_bytes, to, full);
    if (!whole) load_last<D_k>(p, w, row, rows, to, thread);
    if (thread == 0) mbarrier_arrive(full);
    if (++at == stage::stages) at = 0;
  }
}

/* ---- products ---------------------------------------------------------------------------------------- */

template <int count> __device__ __forceinline__ void clear(float (&d)[count]) {
  ASSAY_UNROLL
  for (int i = 0; i < count; ++i)
    d[i] = 0.0f;
}

/* Makes fragments of A, 16 columns each, of what a product has left. */
__device__ __forceinline__ void fragments_of(uint32_t (&a)[16], const float (&d)[32]) {
  ASSAY_UNROLL
  for (int i = 0; i < 16; ++i)
    a[i] = pack_pair<bf16>(d[2 * i], d[2 * i + 1]);
}

/* The following leave the commit to the caller. */

/* Issues u = a · keys^T and o = a · queries^T in turn. Products took twice as long as the tensor cores need. Those
 * with the sums of the one before may have waited for it, which is a guess. */
template <int D_k, bool results>
__device__ __forceinline__ void issue_reads(float (&u)[32], float (&o)[32], const uint32_t (&a)[D_k / 64][16],
                                            const char *keys, const char *queries) {
  const uint64_t k = wgmma_descriptor(keys, 1024, 16, swizzle_128);
  const uint64_t q = wgmma_descriptor(queries, 1024, 16, swizzle_128);
  wgmma_fence();
  ASSAY_UNROLL
  for (int i = 0; i < D_k / 16; ++i) {
    const uint64_t ahead = static_cast<uint64_t>((i / 4 * chunk_part_bytes + i % 4 * 32) >> 4);
    wgmma_m64k16<bf16, 64>(u, a[i / 4], 4 * (i % 4), k + ahead, i > 0);
    if constexpr (results) wgmma_m64k16<bf16, 64>(o, a[i / 4], 4 * (i % 4), q + ahead, i > 0);
  }
}

/* Issues u += x T^T, without the part of T that is I. */
__device__ __forceinline__ void issue_inverse(float (&u)[32], const uint32_t (&x)[16], const char *inverse) {
  const uint64_t from = wgmma_descriptor(inverse, 128, run_bytes, swizzle_none);
  wgmma_fence();
  ASSAY_UNROLL
  for (int i = 0; i < 4; ++i)
    wgmma_m64k16<bf16, 64>(u, x, 4 * i, from + static_cast<uint64_t>(2 * run_bytes * i >> 4), true);
}

/* Issues o += x A^T and S^T += y K in turn. */
template <int D_k, bool results>
__device__ __forceinline__ void issue_updates(float (&o)[32], float (&s)[D_k / 64][32], const uint32_t (&x)[16],
                                              const uint32_t (&y)[16], const char *weights, const char *keys) {
  const uint64_t A = wgmma_descriptor(weights, 128, run_bytes, swizzle_none);
  const uint64_t k = wgmma_descriptor(keys, 1024, chunk_part_bytes, swizzle_128);
  wgmma_fence();
  ASSAY_UNROLL
  for (int i = 0; i < 4; ++i) {
    if constexpr (results) wgmma_m64k16<bf16, 64>(o, x, 4 * i, A + static_cast<uint64_t>(2 * run_bytes * i >> 4), true);
    ASSAY_UNROLL
    for (int part = 0; part < D_k / 64; ++part)
      wgmma_m64k16<bf16, 64, true>(s[part], y, 4 * i,
                                   k + static_cast<uint64_t>((part * chunk_part_bytes >> 4) + 128 * i), true);
  }
}

/* ---- between the products ---------------------------------------------------------------------------- */

/* Loads the values of this warp's columns: fragment i has rows 16 i and up. */
__device__ __forceinline__ void load_values(uint32_t (&v)[4][4], char *values, int warp) {
  const int lane = static_cast<int>(lane_id());
  ASSAY_UNROLL
  for (int i = 0; i < 4; ++i)
    ldmatrix_x4_trans(v[i], tile_at<64>(values, 16 * i + lane % 8 + lane / 16 * 8, 2 * warp + lane / 8 % 2));
}

/* The numbers of W besides k_i . S, which are loaded before: beta_i v_i, and beta_i exp(G_i) n_i. */
struct walk_values {
  float own[32];
  float2 key[8];
};

template <bool values>
__device__ __forceinline__ void weigh_values(walk_values &of, const uint32_t (&v)[4][4], const float *factors) {
  const int pair = 2 * (static_cast<int>(lane_id()) % 4);
  ASSAY_UNROLL
  for (int t = 0; t < 8; ++t) {
    const float2 beta = *reinterpret_cast<const float2 *>(factors + chunk_beta * chunk_rows + 8 * t + pair);
    of.key[t] = *reinterpret_cast<const float2 *>(factors + chunk_key * chunk_rows + 8 * t + pair);
    ASSAY_UNROLL
    for (int side = 0; side < 2; ++side) {
      float low = 0.0f, high = 0.0f;
      if constexpr (!values) {
        of.own[4 * t + 2 * side] = of.own[4 * t + 2 * side + 1] = 0.0f;
        continue;
      }
      unpack_pair<bf16>(v[t / 2][2 * (t % 2) + side], low, high);
      of.own[4 * t + 2 * side] = __fmul_rn(beta.x, low); /* not joined with what follows */
      of.own[4 * t + 2 * side + 1] = __fmul_rn(beta.y, high);
    }
  }
}

/* Replaces k_i . S by W. */
__device__ __forceinline__ void subtract_read(float (&d)[32], const walk_values &of) {
  ASSAY_UNROLL
  for (int i = 0; i < 32; ++i)
    d[i] = fmaf(i % 2 != 0 ? -of.key[i / 4].y : -of.key[i / 4].x, d[i], of.own[i]);
}

/* Makes fragments of u with column i multiplied by factor i. */
__device__ __forceinline__ void scaled_fragments(uint32_t (&y)[16], const float (&u)[32], const float *factor) {
  const int pair = 2 * (static_cast<int>(lane_id()) % 4);
  ASSAY_UNROLL
  for (int t = 0; t < 8; ++t) {
    const float2 by = *reinterpret_cast<const float2 *>(factor + 8 * t + pair);
    ASSAY_UNROLL
    for (int side = 0; side < 2; ++side)
      y[2 * t + side] = pack_pair<bf16>(by.x * u[4 * t + 2 * side], by.y * u[4 * t + 2 * side + 1]);
  }
}

/* ---- the result -------------------------------------------------------------------------------------- */

/* Multiplies column i of what was read under the queries by factor i. */
__device__ __forceinline__ void scale_read(float (&o)[32], const float *factor) {
  const int pair = 2 * (static_cast<int>(lane_id()) % 4);
  ASSAY_UNROLL
  for (int t = 0; t < 8; ++t) {
    const float2 by = *reinterpret_cast<const float2 *>(factor + 8 * t + pair);
    ASSAY_UNROLL
    for (int e = 0; e < 4; ++e)
      o[4 * t + e] *= e % 2 != 0 ? by.y : by.x;
  }
}

/* Puts the columns of a warp into a result's tile. */
__device__ __forceinline__ void give_result(const uint32_t (&pairs)[16], char *tile, int warp) {
  const int lane = static_cast<int>(lane_id());
  ASSAY_UNROLL
  for (int i = 0; i < 4; ++i) {
    const uint32_t four[4] = {pairs[4 * i], pairs[4 * i + 1], pairs[4 * i + 2], pairs[4 * i + 3]};
    stmatrix_x4_trans(tile_at<64>(tile, 16 * i + lane / 16 * 8 + lane % 8, 2 * warp + lane / 8 % 2), four);
  }
}

/* Stores the results of all chunks. Eight threads have a row, with 16 bytes each. */
template <int D_k> __device__ __forceinline__ void store_results(const rule_params &p, const walk_work &w, char *room) {
  const int thread = static_cast<int>(threadIdx.x) - 128 - walk_loaders, group = thread % 8;
  bf16 *to = static_cast<bf16 *>(p.o) + (w.first + thread / 8) * p.o_row + static_cast<int64_t>(w.head) * p.D_v +
             w.column + 8 * group;
  const bool live = w.column + 8 * group < p.D_v;
  int64_t left = w.rows - thread / 8;
  for (int c = 0; static_cast<int64_t>(c) * chunk_rows < w.rows; ++c) {
    char *const tile = room + walk_stage<D_k>::stages * walk_stage<D_k>::bytes + c % 2 * chunk_part_bytes;
    named_barrier_sync(made_barrier + c % 2, made_threads);
    uint4 eight[8];
    ASSAY_UNROLL
    for (int i = 0; i < 8; ++i)
      eight[i] = *reinterpret_cast<const uint4 *>(tile_at<64>(tile, 8 * i + thread / 8, group));
    if (static_cast<int64_t>(c + 2) * chunk_rows < w.rows) named_barrier_arrive(stored_barrier + c % 2, made_threads);
    ASSAY_UNROLL
    for (int i = 0; i < 8; ++i) {
      if (live && left > 8 * i) *reinterpret_cast<uint4 *>(to) = eight[i];
      to += 8 * p.o_row;
    }
    left -= chunk_rows;
  }
}

/* ---- the walk ---------------------------------------------------------------------------------------- */

/* Returns the address of the first element of S^T that this thread has. Four of its accumulators are two columns of two
 * rows: they are in this row and the next, in this column and 8 columns further. The next four are 8 rows further. */
template <class State> __device__ __forceinline__ State *state_at(State *state, const walk_work &w, int32_t column) {
  return state + 2 * (static_cast<int64_t>(lane_id()) % 4) * w.columns + column;
}

__device__ __forceinline__ int32_t state_column(const walk_work &w) {
  return w.column + static_cast<int32_t>(threadIdx.x) / 32 * 16 + static_cast<int32_t>(lane_id()) / 4;
}

/* Returns where the slot of a request has S of a head. */
template <class State, int D_k> __device__ __forceinline__ State *slot_of(const rule_params &p, const walk_work &w) {
  return static_cast<State *>(p.state) + (w.slot >= 0 ? w.slot : 0) * p.state_row +
         static_cast<int64_t>(w.head) * D_k * p.D_v;
}

/* Loads S. Columns that the value head has not are zeros, and so is all of S unless `old`. */
template <class State, int D_k>
__device__ __forceinline__ void load_state(const State *state, const walk_work &w, bool old, float (&s)[D_k / 64][32]) {
  const int32_t column = state_column(w);
  const State *from = state_at(state, w, column);
  ASSAY_UNROLL
  for (int i = 0; i < D_k / 2; i += 4) {
    ASSAY_UNROLL
    for (int e = 0; e < 4; ++e)
      s[i / 32][i % 32 + e] =
          old && column + e / 2 * 8 < w.columns ? to_float(from[(e % 2 != 0 ? w.columns : 0) + e / 2 * 8]) : 0.0f;
    from = separate(from + 8 * static_cast<int64_t>(w.columns));
  }
}

template <class State, int D_k>
__device__ __forceinline__ void store_state(State *state, const walk_work &w, const float (&s)[D_k / 64][32]) {
  const int32_t column = state_column(w);
  State *to = state_at(state, w, column);
  ASSAY_UNROLL
  for (int i = 0; i < D_k / 2; i += 4) {
    ASSAY_UNROLL
    for (int e = 0; e < 4; ++e)
      if (column + e / 2 * 8 < w.columns)
        to[(e % 2 != 0 ? w.columns : 0) + e / 2 * 8] = from_float<State>(s[i / 32][i % 32 + e]);
    to += 8 * static_cast<int64_t>(w.columns);
  }
}

/* Makes S where a walk begins: the slot's, the end of the segment before, zeros, or I. */
template <class State, int D_k, int pass, int kind>
__device__ __forceinline__ void begin_state(const rule_params &p, const walk_work &w, float (&s)[D_k / 64][32]) {
  if constexpr (kind == walk_values_all && pass == walk_second)
    load_state<float, D_k>(w.before, w, true, s);
  else if constexpr (kind == walk_values_all)
    load_state<State, D_k>(slot_of<State, D_k>(p, w), w, w.slot >= 0 && !w.fresh, s);
  else {
    const int32_t column = state_column(w), row = 2 * (static_cast<int32_t>(lane_id()) % 4);
    ASSAY_UNROLL
    for (int i = 0; i < D_k / 2; ++i)
      s[i / 32][i % 32] =
          kind == walk_transition && row + 2 * i - i % 4 * 2 + i % 2 == column + i % 4 / 2 * 8 ? 1.0f : 0.0f;
  }
}

/* Walks the chunks. The products are issued in the order in which the tensor cores shall take them. Those of the result
 * fill the time in which W and U are made, and are stored during the update of S. */
template <class State, int D_k, int pass, int kind>
__device__ __forceinline__ void walk(const rule_params &p, const walk_work &w, char *room, walk_barriers *barriers) {
  using stage = walk_stage<D_k>;
  constexpr int parts = D_k / 64;
  constexpr bool results = kind == walk_values_all;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int32_t chunks = of_warp(static_cast<int32_t>((w.rows + chunk_rows - 1) / chunk_rows));
  float s[parts][32];
  begin_state<State, D_k, pass, kind>(p, w, s);
  int32_t at = 0;
  uint32_t turn = 0;
  mbarrier_wait(&barriers->full[0], 0);
  for (int32_t c = 0; c < chunks; ++c) {
    char *const chunk = room + at * stage::bytes;
    const float *const factors = reinterpret_cast<const float *>(chunk + stage::factors);
    float u[32], o[32];
    uint32_t a[parts][16], v[4][4], x[16], y[16];
    walk_values values;
    clear(u);
    clear(o);
    wgmma_order(u);
    wgmma_order(o);
    ASSAY_UNROLL
    for (int part = 0; part < parts; ++part) {
      fragments_of(a[part], s[part]);
      wgmma_order(a[part]);
    }
    issue_reads<D_k, results>(u, o, a, chunk + stage::keys, chunk + stage::queries);
    wgmma_commit();
    if constexpr (kind != walk_transition) load_values(v, chunk + stage::values, warp);
    weigh_values<kind != walk_transition>(values, v, factors);
    wgmma_order(values.own);
    wgmma_wait<0>();
    wgmma_order(u);
    wgmma_order(o);
    subtract_read(u, values);
    fragments_of(x, u);
    wgmma_order(u);
    wgmma_order(x);
    issue_inverse(u, x, chunk + stage::inverse);
    wgmma_commit();
    const float decay = factors[chunk_decay * chunk_rows];
    ASSAY_UNROLL
    for (int i = 0; i < D_k / 2; ++i)
      s[i / 32][i % 32] *= decay;
    if constexpr (results) scale_read(o, factors + chunk_query * chunk_rows);
    wgmma_order(o);
    wgmma_wait<0>();
    wgmma_order(u);
    if constexpr (results) fragments_of(x, u);
    scaled_fragments(y, u, factors + chunk_update * chunk_rows);
    wgmma_order(x);
    wgmma_order(y);
    ASSAY_UNROLL
    for (int part = 0; part < parts; ++part)
      wgmma_order(s[part]);
    issue_updates<D_k, results>(o, s, x, y, chunk + stage::weights, chunk + stage::keys);
    wgmma_commit();
    const uint32_t used = empty_barrier + at;
    at = at + 1 == stage::stages ? 0 : at + 1;
    turn ^= at == 0 ? 1 : 0;
    if (results && c >= 2) named_barrier_sync(stored_barrier + c % 2, made_threads);
    if (c + 1 < chunks) mbarrier_wait(&barriers->full[at], turn);
    wgmma_wait<0>();
    wgmma_order(o);
    ASSAY_UNROLL
    for (int part = 0; part < parts; ++part)
      wgmma_order(s[part]);
    if constexpr (results) {
      fragments_of(x, o); /* pairs of rows */
      give_result(x, room + stage::stages * stage::bytes + c % 2 * chunk_part_bytes, warp);
    }
    if (results) named_barrier_arrive(made_barrier + c % 2, made_threads);
    if (c + stage::stages < chunks) named_barrier_arrive(used, empty_threads);
  }
  const walk_work again = barriers->work;
  if (pass == walk_first && again.after != nullptr)
    store_state<float, D_k>(again.after, again, s);
  else if (again.slot >= 0)
    store_state<State, D_k>(slot_of<State, D_k>(p, again), again, s);
}

/* chunk_walk: all chunks of a request, for 64 columns of one value head. One warpgroup has S, the other one loads.
 * Grid:   (B * H_v * pieces). Block: 256 threads.
 * Shared: three chunks, and the result of one: 186 KB for D_k = 128.
 * Align:  16 bytes: q, k, v, o.
 * Arch:   sm_90a.
 * Limit:  latency of the walk: the products of a chunk follow each other. */
template <class State, int D_k, int pass>
__global__ void __launch_bounds__(walk_threads, 1)
    chunk_walk(const __grid_constant__ tensor_map map_q, const __grid_constant__ tensor_map map_k,
               const __grid_constant__ tensor_map map_v, rule_params p, const char *records, float *ends) {
  ASSAY_DYNAMIC_SHARED_1024(char, room);
  const walk_work w = walk_work_of<pass, D_k>(p, blockIdx.x, ends);
  walk_barriers *const barriers = reinterpret_cast<walk_barriers *>(room + walk_rooms<D_k>);
  if (w.rows <= 0) return;
  if (threadIdx.x == 0) {
    barriers->work = w;
    for (int s = 0; s < walk_stage<D_k>::stages; ++s)
      mbarrier_init(&barriers->full[s], 2); /* the announcement of copies, and the loaders' rows */
    mbarrier_fence_init();
  }
  clear_matrices<D_k>(room, static_cast<int>(threadIdx.x));
  __syncthreads();
  dependency_wait();
  if (threadIdx.x < 128) {
    if (pass == walk_first && w.kind == walk_values_alone)
      walk<State, D_k, pass, walk_values_alone>(p, w, room, barriers);
    else if (pass == walk_first && w.kind == walk_transition)
      walk<State, D_k, pass, walk_transition>(p, w, room, barriers);
    else
      walk<State, D_k, pass, walk_values_all>(p, w, room, barriers);
  } else if (threadIdx.x >= 128 + walk_loaders) {
    if (w.kind == walk_values_all) store_results<D_k>(p, w, room);
  } else
    produce<D_k>(p, w, &map_q, &map_k, &map_v, records, room, barriers);
}

/* ---- launcher ---------------------------------------------------------------------------------------- */

/* Requests with fewer rows than this on average are left to the kernels that take row after row. */
constexpr int64_t fewest_rows = 4;
constexpr int32_t column_multiple = 32;

bool aligned(const void *data, int64_t row, int64_t elements) {
  return reinterpret_cast<uintptr_t>(data) % static_cast<uintptr_t>(2 * elements) == 0 && row % elements == 0;
}

assay_status read_chunk(const assay_call *call, rule_params *p, assay_error *error) {
  ASSAY_TRY(rule_read(call, p, error));
  if (p->type != ASSAY_BF16)
    return assay_fail(error, ASSAY_ERR_UNSUPPORTED, "q: found dtype %s, taken here: bf16", assay_dtype_name(p->type));
  if (p->D_k != 64 && p->D_k != 128)
    return assay_fail(error, ASSAY_ERR_UNSUPPORTED, "D_k: found %d, taken here: 64, 128", p->D_k);
  if (p->D_v % column_multiple != 0)
    return assay_fail(error, ASSAY_ERR_UNSUPPORTED, "D_v: found %d, taken here: multiples of %d", p->D_v,
                      column_multiple);
  if (p->N < fewest_rows * p->B)
    return assay_fail(error, ASSAY_ERR_UNSUPPORTED, "N: found %lld, taken here: %lld rows for each request and more",
                      static_cast<long long>(p->N), static_cast<long long>(fewest_rows));
  const struct {
    const char *name;
    bool good;
  } rows[] = {{"q", aligned(p->q, p->q_row, 8)},
              {"k", aligned(p->k, p->k_row, 8)},
              {"v", aligned(p->v, p->v_row, 8)},
              {"o", aligned(p->o, p->o_row, 8)}};
  for (const auto &row : rows)
    if (!row.good)
      return assay_fail(error, ASSAY_ERR_UNSUPPORTED, "%s: found rows that do not begin at multiples of 16 bytes",
                        row.name);
  p->pieces = (p->D_v + walk_columns - 1) / walk_columns;
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

/* Makes the map of rows of `channels` elements, with boxes of 64 rows and columns. */
assay_status map_rows(tensor_map *map, const void *rows, int64_t channels, int64_t row, int64_t N, assay_error *error) {
  tensor_shape shape = {};
  shape.rank = 2;
  shape.element_bytes = 2;
  shape.extent[0] = channels;
  shape.extent[1] = N;
  shape.stride[1] = 2 * row;
  shape.box[0] = 64;
  shape.box[1] = chunk_rows;
  shape.swizzle = swizzle_128;
  return tensor_map_make(map, const_cast<void *>(rows), shape, error);
}

template <class State, int D_k>
assay_status launch_chunk(const rule_params &p, char *records, assay_env *env, assay_error *error) {
  tensor_map q, k, v;
  ASSAY_TRY(map_rows(&q, p.q, static_cast<int64_t>(p.H_k) * D_k, p.q_row, p.N, error));
  ASSAY_TRY(map_rows(&k, p.k, static_cast<int64_t>(p.H_k) * D_k, p.k_row, p.N, error));
  ASSAY_TRY(map_rows(&v, p.v, static_cast<int64_t>(p.H_v) * p.D_v, p.v_row, p.N, error));
  launch_options first;
  first.followed = true;
  ASSAY_TRY(ASSAY_LAUNCH_WITH(error, (chunk_prepare<D_k>), chunk_places(p.N, p.B) * p.H_k, prepare_threads,
                              prepare_shared<D_k>, first, env->stream, p, records));
  const int64_t tasks = static_cast<int64_t>(p.H_v) * p.pieces;
  if (p.segments == 0)
    return ASSAY_LAUNCH_WITH(error, (chunk_walk<State, D_k, walk_whole>), p.B * tasks, walk_threads, walk_shared<D_k>,
                             in_turn(), env->stream, q, k, v, p, records, static_cast<float *>(nullptr));
  float *const ends = reinterpret_cast<float *>(records + segment_ends_at(p));
  const int64_t inner = static_cast<int64_t>(p.segments - 2) * p.H_v * (p.pieces + D_k / walk_columns);
  ASSAY_TRY(ASSAY_LAUNCH_WITH(error, (chunk_walk<State, D_k, walk_first>), p.B * (tasks + inner), walk_threads,
                              walk_shared<D_k>, in_turn(), env->stream, q, k, v, p, records, ends));
  ASSAY_TRY(ASSAY_LAUNCH_WITH(error, (chunk_carry<D_k>), static_cast<int64_t>(p.B) * p.H_v * (p.D_v / carry_columns),
                              carry_threads, carry_shared<D_k>, in_turn(), env->stream, p, ends));
  return ASSAY_LAUNCH_WITH(error, (chunk_walk<State, D_k, walk_second>), p.B * (p.segments - 1) * tasks, walk_threads,
                           walk_shared<D_k>, in_turn(), env->stream, q, k, v, p, records, ends);
}

assay_status launch_state(const rule_params &p, char *records, assay_env *env, assay_error *error) {
  if (p.state_type == ASSAY_F32)
    return p.D_k == 64 ? launch_chunk<float, 64>(p, records, env, error)
                       : launch_chunk<float, 128>(p, records, env, error);
  return p.D_k == 64 ? launch_chunk<bf16, 64>(p, records, env, error) : launch_chunk<bf16, 128>(p, records, env, error);
}

assay_status launch(const assay_call *call, assay_env *env, assay_error *error) {
  rule_params p;
  ASSAY_TRY(read_chunk(call, &p, error));
  ASSAY_TRY(expect_workspace(env, chunk_bytes(p), error));
  (void)snprintf(env->path, sizeof env->path, "chunk D_k=%d", p.D_k);
  return launch_state(p, static_cast<char *>(env->workspace), env, error);
}

/* ---- segments ---------------------------------------------------------------------------------------- */

/* Walks that occupy fewer multiprocessors than this leave most of them idle. */
constexpr int64_t segment_most_walks = 32, segment_blocks = 128;
constexpr int64_t segment_least_rows = 1024, segment_rows_of_walk = 128; /* for each walk of a request */
constexpr int32_t segment_most = 16;

assay_status read_segments(const assay_call *call, rule_params *p, assay_error *error) {
  ASSAY_TRY(read_chunk(call, p, error));
  const int64_t walks = static_cast<int64_t>(p->H_v) * p->pieces;
  const int64_t least = max(segment_least_rows, segment_rows_of_walk * walks);
  if (p->N < least)
    return assay_fail(error, ASSAY_ERR_UNSUPPORTED, "N: found %lld, taken here: %lld rows and more",
                      static_cast<long long>(p->N), static_cast<long long>(least));
  if (walks * p->B > segment_most_walks)
    return assay_fail(error, ASSAY_ERR_UNSUPPORTED,
                      "B * H_v * D_v / 64: found %lld, taken here: up to %lld, which leave multiprocessors idle",
                      static_cast<long long>(walks * p->B), static_cast<long long>(segment_most_walks));
  p->segments = static_cast<int32_t>(min(segment_blocks / walks + 1, static_cast<int64_t>(segment_most)));
  return ASSAY_OK;
}

assay_status supports_segments(const assay_call *call, assay_error *error) {
  rule_params p;
  return read_segments(call, &p, error);
}

assay_status workspace_segments(const assay_call *call, int64_t *bytes, assay_error *error) {
  rule_params p;
  *bytes = 0;
  ASSAY_TRY(read_segments(call, &p, error));
  *bytes = segment_bytes(p);
  return ASSAY_OK;
}

assay_status launch_segments(const assay_call *call, assay_env *env, assay_error *error) {
  rule_params p;
  ASSAY_TRY(read_segments(call, &p, error));
  ASSAY_TRY(expect_workspace(env, segment_bytes(p), error));
  (void)snprintf(env->path, sizeof env->path, "segments D_k=%d most=%d", p.D_k, p.segments);
  return launch_state(p, static_cast<char *>(env->workspace), env, error);
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

#define SEGMENTS                                                                                                       \
  {                                                                                                                    \
    sizeof(assay_variant), "gated_delta_rule", "segments" ASSAY_VARIANT_SUFFIX,                                        \
        "chunks, and long requests of few heads in segments that are walked side by side", ASSAY_DEVICE_NAME,          \
        "sm_90a", "bf16", ::ASSAY_NS::chunk_contract, ::ASSAY_NS::supports_segments, ::ASSAY_NS::workspace_segments,   \
        ::ASSAY_NS::launch_segments                                                                                    \
  }

ASSAY_VARIANTS(gated_delta_rule_chunk, SEGMENTS, CHUNK)
