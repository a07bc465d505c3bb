/* rope.cuh: rotary position embedding: the angles of a row, the rotation of a pair and of a vector of channels. It also
 * reads the tables for launchers. Every kernel that rotates a pair by turned() gets the same bits. */
#ifndef ASSAY_GPU_LIB_ROPE_CUH
#define ASSAY_GPU_LIB_ROPE_CUH

#include "gpu/lib/attention.h"
#include "gpu/lib/types.cuh"
#include "gpu/lib/vectors.cuh"

namespace ASSAY_NS {

struct rope_angles {
  const float *cosine, *sine; /* [max_pos, half] */
  const void *positions;      /* [N] */
  int64_t max_pos;
  int32_t half;           /* R / 2 */
  bool interleaved, wide; /* wide: positions are i64 */
};

__device__ __forceinline__ int64_t position_of(const rope_angles &t, int64_t row) {
  return t.wide ? static_cast<const int64_t *>(t.positions)[row] : static_cast<const int32_t *>(t.positions)[row];
}

/* Returns the place of a position's angles in the tables. A negative result means that the position is outside them,
 * and nothing is rotated. */
__device__ __forceinline__ int64_t angles_of(const rope_angles &t, int64_t position) {
  return position >= 0 && position < t.max_pos ? position * t.half : -1;
}

/* Returns x c - y s, y c + x s. In each, one product is rounded and the other is not, whatever the compiler would
 * fuse. */
__device__ __forceinline__ float2 turned(float x, float y, float c, float s) {
  return make_float2(__fmaf_rn(x, c, -__fmul_rn(y, s)), __fmaf_rn(y, c, __fmul_rn(x, s)));
}

/* ---- by pairs ---------------------------------------------------------------------------------------- */

/* Return the first channel of pair i of a head, and the distance to the second. */
__device__ __forceinline__ int32_t first_of_pair(const rope_angles &t, int32_t i) {
  return t.interleaved ? 2 * i : i;
}
__device__ __forceinline__ int32_t pair_apart(const rope_angles &t) {
  return t.interleaved ? 1 : t.half;
}

/* Returns pair i rotated by the angles at `at`. */
template <class T>
__device__ __forceinline__ float2 turned_pair(const rope_angles &t, int64_t at, int32_t i, T first, T second) {
  const float c = at >= 0 ? t.cosine[at + i] : 1.0f, s = at >= 0 ? t.sine[at + i] : 0.0f;
  return turned(to_float(first), to_float(second), c, s);
}

/* ---- whole vectors ----------------------------------------------------------------------------------- */

/* Loads `count` angles of the table from entry i on: cos 1 and sin 0 outside the table. */
template <int count>
__device__ __forceinline__ void load_angles(const rope_angles &t, int64_t at, int32_t i, float (&c)[count],
                                            float (&s)[count]) {
  static_assert(count == 2 || count % 4 == 0, "angles come in pairs or in vectors");
  ASSAY_UNROLL
  for (int e = 0; e < count; ++e) {
    c[e] = 1.0f;
    s[e] = 0.0f;
  }
  if (at < 0) return;
  if constexpr (count == 2) {
    const float2 both[2] = {*reinterpret_cast<const float2 *>(t.cosine + at + i),
                            *reinterpret_cast<const float2 *>(t.sine + at + i)};
    c[0] = both[0].x, c[1] = both[0].y;
    s[0] = both[1].x, s[1] = both[1].y;
  } else {
    ASSAY_UNROLL
    for (int e = 0; e < count; e += 4) {
      float four[4];
      split_vector<float>(load_vector(t.cosine + at + i + e), four);
      ASSAY_UNROLL
      for (int j = 0; j < 4; ++j)
        c[e + j] = four[j];
      split_vector<float>(load_vector(t.sine + at + i + e), four);
      ASSAY_UNROLL
      for (int j = 0; j < 4; ++j)
        s[e + j] = four[j];
    }
  }
}

/* Channels of a head from channel i on, before or after their rotation. high: their partners; not used if
 * interleaved. */
struct rope_vectors_of {
  uint4 low, high;
};

template <class T, bool interleaved>
__device__ __forceinline__ rope_vectors_of load_pairs(const rope_angles &t, const T *from) {
  rope_vectors_of v = {load_vector(from), {}};
  if constexpr (!interleaved) v.high = load_vector(from + t.half);
  return v;
}

template <class T, bool interleaved>
__device__ __forceinline__ rope_vectors_of turn_vectors(const rope_angles &t, int64_t at, int32_t i,
                                                        const rope_vectors_of &v) {
  constexpr int width = vector_width<T>, angles = interleaved ? width / 2 : width;
  float c[angles], s[angles], x[width], y[width];
  load_angles(t, at, interleaved ? i / 2 : i, c, s);
  split_vector<T>(v.low, x);
  if constexpr (interleaved) {
    ASSAY_UNROLL
    for (int e = 0; e < width; e += 2) {
      const float2 pair = turned(x[e], x[e + 1], c[e / 2], s[e / 2]);
      x[e] = pair.x;
      x[e + 1] = pair.y;
    }
    return {round_vector<T>(x), {}};
  } else {
    split_vector<T>(v.high, y);
    ASSAY_UNROLL
    for (int e = 0; e < width; ++e) {
      const float2 pair = turned(x[e], y[e], c[e], s[e]);
      x[e] = pair.x;
      y[e] = pair.y;
    }
    return {round_vector<T>(x), round_vector<T>(y)};
  }
}

template <class T, bool interleaved>
__device__ __forceinline__ void store_pairs(const rope_angles &t, T *to, const rope_vectors_of &v) {
  store_vector(to, v.low);
  if constexpr (!interleaved) store_vector(to + t.half, v.high);
}

/* ---- launchers --------------------------------------------------------------------------------------- */

/* Reads cos, sin and style, for operators whose dimensions are not read from a table: f32 [max_pos, R / 2], R at most
 * D. */
inline assay_status read_angles(const assay_call *call, int32_t D, rope_angles *made, assay_error *error) {
  const assay_tensor *cosine, *sine;
  int64_t style;
  ASSAY_TRY(find_tensor(call, "cos", 2, false, &cosine, error));
  ASSAY_TRY(find_tensor(call, "sin", 2, false, &sine, error));
  const int64_t max_pos = cosine->shape[0], half = cosine->shape[1];
  ASSAY_TRY(expect_range("R", 2 * half, 2, D, 2, error));
  ASSAY_TRY(expect_range("max_pos", max_pos, 1, INT32_MAX, 1, error));
  const assay_tensor *const tables[] = {cosine, sine};
  const char *const names[] = {"cos", "sin"};
  for (int i = 0; i < 2; ++i) {
    ASSAY_TRY(expect_dtype(tables[i], names[i], ASSAY_F32, error));
    ASSAY_TRY(expect_extent(tables[i], names[i], 0, max_pos, error));
    ASSAY_TRY(expect_extent(tables[i], names[i], 1, half, error));
    ASSAY_TRY(expect_stride(tables[i], names[i], 1, 1, error));
    ASSAY_TRY(expect_stride(tables[i], names[i], 0, half, error));
  }
  ASSAY_TRY(attention_integer(call, "style", 0, 1, &style, error));
  made->cosine = static_cast<const float *>(cosine->data);
  made->sine = static_cast<const float *>(sine->data);
  made->max_pos = max_pos;
  made->half = static_cast<int32_t>(half);
  made->interleaved = style == 1;
  return ASSAY_OK;
}

/* Reads the positions of N rows, i32 or i64. */
inline assay_status read_positions(const assay_call *call, int64_t N, rope_angles *made, assay_error *error) {
  const assay_tensor *positions;
  ASSAY_TRY(find_tensor(call, "positions", 1, false, &positions, error));
  if (positions->dtype != ASSAY_I32 && positions->dtype != ASSAY_I64)
    return assay_fail(error, ASSAY_ERR_INPUT, "positions: found dtype %s, allowed i32, i64",
                      assay_dtype_name(positions->dtype));
  ASSAY_TRY(expect_extent(positions, "positions", 0, N, error));
  ASSAY_TRY(expect_stride(positions, "positions", 0, 1, error));
  made->positions = positions->data;
  made->wide = positions->dtype == ASSAY_I64;
  return ASSAY_OK;
}

inline const char *rope_style_name(const rope_angles &t) {
  return t.interleaved ? "interleaved" : "neox";
}

} // namespace ASSAY_NS
#endif
