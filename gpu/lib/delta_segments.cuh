/* delta_segments.cuh: requests of a gated delta rule cut into segments that are walked side by side.
 *
 * The end of a segment is M S + L: S is its beginning, L its end from zeros, and M its end from I without values. All L
 * and M are made at once. One pass then carries S from segment to segment, and all segments are walked with their S. */
#ifndef ASSAY_GPU_DELTA_SEGMENTS_CUH
#define ASSAY_GPU_DELTA_SEGMENTS_CUH

#include "gpu/lib/delta_chunk.cuh"

namespace ASSAY_NS {

constexpr int segment_least_chunks = 4;

/* How a request is cut: rows of a segment, a multiple of a chunk's, and how many there are. */
struct segment_cut {
  int64_t rows;
  int32_t count;
};

/* Cuts a request by its own rows alone, so that its bits do not depend on the others. */
__device__ __forceinline__ segment_cut segments_of(const rule_params &p, int64_t rows) {
  const int64_t chunks = (rows + chunk_rows - 1) / chunk_rows;
  const int64_t share = max((chunks + p.segments - 1) / p.segments, static_cast<int64_t>(segment_least_chunks));
  return {share * chunk_rows, static_cast<int32_t>((chunks + share - 1) / share)};
}

/* Returns where L and then M of a segment are in the workspace. A request's last segment has neither. */
__device__ __forceinline__ float *segment_end(const rule_params &p, float *ends, int32_t request, int32_t segment,
                                              int32_t head) {
  const int64_t index = (static_cast<int64_t>(request) * (p.segments - 1) + segment) * p.H_v + head;
  return ends + index * p.D_k * (p.D_v + p.D_k);
}

/* Returns where the ends begin in the workspace, after the records. */
inline int64_t segment_ends_at(const rule_params &p) {
  return (chunk_places(p.N, p.B) * p.H_v * chunk_record_bytes + 255) / 256 * 256;
}

inline int64_t segment_bytes(const rule_params &p) {
  return segment_ends_at(p) + static_cast<int64_t>(p.B) * (p.segments - 1) * p.H_v * p.D_k * (p.D_v + p.D_k) *
                                  static_cast<int64_t>(sizeof(float));
}

constexpr int carry_columns = 8, carry_threads = 256;
/* Floats per row of M in shared memory: lanes read 16 bytes of neighbouring rows from different banks. */
template <int D_k> constexpr int carry_pitch = D_k + 4;
template <int D_k> constexpr int64_t carry_shared = 4 * D_k *(carry_pitch<D_k> + carry_columns);

/* chunk_carry: S from segment to segment, S <- M S + L, for eight columns of a head. It replaces L by S.
 * Grid:   (B * H_v * D_v / 8). Block: 256 threads.
 * Shared: M of a segment, and S: 71 KB for D_k = 128.
 * Align:  16 bytes: the ends.
 * Arch:   any.
 * Limit:  latency of M's loads: D_k^2 floats per segment, eight columns after the other. */
template <int D_k> __global__ void __launch_bounds__(carry_threads) chunk_carry(rule_params p, float *ends) {
  ASSAY_DYNAMIC_SHARED(char, memory);
  float *const room = reinterpret_cast<float *>(memory);
  constexpr int pitch = carry_pitch<D_k>, rows = carry_threads / 2, loads = D_k * D_k / 4 / carry_threads;
  static_assert(rows >= D_k, "a thread has a row and four columns");
  const int slices = p.D_v / carry_columns, thread = static_cast<int>(threadIdx.x), row = thread / 2;
  const int four = thread % 2 * 4; /* this thread's columns of the eight */
  const int64_t block = static_cast<int64_t>(blockIdx.x);
  const int32_t column = static_cast<int32_t>(block % slices) * carry_columns;
  const int32_t head = static_cast<int32_t>(block / slices % p.H_v),
                request = static_cast<int32_t>(block / slices / p.H_v);
  float *const M = room, *const S = room + D_k * pitch;
  dependency_wait();
  const segment_cut cut = segments_of(p, rule_row(p, request + 1) - rule_row(p, request));
  if (cut.count < 3) return;
  float4 own = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  if (row < D_k)
    own = *reinterpret_cast<const float4 *>(segment_end(p, ends, request, 0, head) + static_cast<int64_t>(row) * p.D_v +
                                            column + four);
  for (int32_t segment = 1; segment + 1 < cut.count; ++segment) {
    float *const end = segment_end(p, ends, request, segment, head);
    float *const place = end + static_cast<int64_t>(row) * p.D_v + column + four;
    float4 piece[loads], sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    ASSAY_UNROLL
    for (int i = 0; i < loads; ++i)
      piece[i] = reinterpret_cast<const float4 *>(end + static_cast<int64_t>(D_k) * p.D_v)[thread + i * carry_threads];
    if (row < D_k) sum = *reinterpret_cast<const float4 *>(place);
    __syncthreads(); /* the last segment's M and S have been read */
    if (row < D_k) *reinterpret_cast<float4 *>(S + row * carry_columns + four) = own;
    ASSAY_UNROLL
    for (int i = 0; i < loads; ++i) {
      const int at = 4 * (thread + i * carry_threads);
      *reinterpret_cast<float4 *>(M + at / D_k * pitch + at % D_k) = piece[i];
    }
    __syncthreads();
    if (row >= D_k) continue;
    for (int l = 0; l < D_k; l += 4) {
      const float4 m = *reinterpret_cast<const float4 *>(M + row * pitch + l);
      const float by[4] = {m.x, m.y, m.z, m.w};
      ASSAY_UNROLL
      for (int e = 0; e < 4; ++e) {
        const float4 s = *reinterpret_cast<const float4 *>(S + (l + e) * carry_columns + four);
        sum.x = fmaf(by[e], s.x, sum.x);
        sum.y = fmaf(by[e], s.y, sum.y);
        sum.z = fmaf(by[e], s.z, sum.z);
        sum.w = fmaf(by[e], s.w, sum.w);
      }
    }
    *reinterpret_cast<float4 *>(place) = sum;
    own = sum;
  }
}

} // namespace ASSAY_NS
#endif
