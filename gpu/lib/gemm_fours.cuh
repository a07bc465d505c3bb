/* gemm_fours.cuh: ends of products that change a residual, by four neighbouring columns of a row.
 *
 * Lanes of the tensor cores have pairs of neighbours. Two lanes exchange pairs, so that each has four neighbours: one
 * of the first of two groups of 8 columns, the other of the second. Residuals are loaded and stored in the same fours,
 * some of them at once. A chain (gemm_chain.cuh) loads its residuals before its products. */
#ifndef ASSAY_GPU_LIB_GEMM_FOURS_CUH
#define ASSAY_GPU_LIB_GEMM_FOURS_CUH

#include "gpu/lib/gemm_chain.cuh"

namespace ASSAY_NS {

/* c is the result. */
struct fours_params : wide_params {
  void *res;
  int64_t res_row;
  bool fours; /* four neighbours of res and of the result may be loaded and stored at once */
};

/* Four neighbours of T, which has 16 bits, as they are stored. */
template <class T> struct fours_of {
  uint2 word;

  /* Loads those of four that are among `left`. The others are 0. */
  static __device__ __forceinline__ fours_of load(const T *from, int64_t left, bool at_once) {
    if (at_once && left >= 4) return {*reinterpret_cast<const uint2 *>(from)};
    uint32_t element[4] = {};
    ASSAY_UNROLL
    for (int i = 0; i < 4; ++i)
      if (i < left) element[i] = reinterpret_cast<const uint16_t *>(from)[i];
    return {make_uint2(element[0] | element[1] << 16, element[2] | element[3] << 16)};
  }
  static __device__ __forceinline__ fours_of rounded(float a, float b, float c, float d) {
    return {make_uint2(pack_pair<T>(a, b), pack_pair<T>(c, d))};
  }
  __device__ __forceinline__ void read(float (&value)[4]) const {
    unpack_pair<T>(word.x, value[0], value[1]);
    unpack_pair<T>(word.y, value[2], value[3]);
  }
  __device__ __forceinline__ void store(T *to, int64_t left, bool at_once) const {
    if (at_once && left >= 4) {
#ifdef ASSAY_SIMT
      if (reinterpret_cast<uintptr_t>(to) % 8 != 0)
        assay_simt->fault("the address of four neighbours is not a multiple of their size", __FILE__, __LINE__);
#endif
      *reinterpret_cast<uint2 *>(to) = word;
      return;
    }
    ASSAY_UNROLL
    for (int i = 0; i < 4; ++i)
      if (i < left)
        reinterpret_cast<uint16_t *>(to)[i] = static_cast<uint16_t>((i < 2 ? word.x : word.y) >> (16 * (i % 2)));
  }
};

/* Four columns of a row: the first one, and how many of them and of those after them exist in the tensor. None exist in
 * rows past the last. */
struct fours_place {
  int64_t row, column, left, room; /* left: without regard to the row */
};

/* The use of sums. `End` is what happens to four sums, and its `params` begin with fours_params. Its `weights<T>` are
 * loaded once for two rows, and finish() has the sums and what the residual held. All lanes of a warp call it together.
 */
template <class End, bool ahead> struct fours_sums : wide_plain_sums {
  using params = typename End::params;
  static constexpr bool begins = ahead;
  static constexpr int most = 4; /* pairs of groups whose residuals are loaded at once */

  template <class T, int own>
  __device__ __forceinline__ void begin(const params &p, int64_t m, int64_t n, int32_t lane) {
    static_assert(own <= 16 * most, "a chain's columns");
    load<T, own>(p, 0, m, n, lane);
  }
  template <class T, int own>
  __device__ __forceinline__ void take(const params &p, int64_t m, int64_t n, int32_t lane,
                                       const float (&sum)[own / 2]) {
    ASSAY_UNROLL
    for (int first = 0; first < own / 16; first += most) {
      if constexpr (!ahead) load<T, own>(p, first, m, n, lane);
      store<T, own>(p, first, m, n, lane, sum);
    }
  }

private:
  uint2 old_[most][2];

  static __device__ __forceinline__ fours_place place(const params &p, int64_t m, int64_t n, int32_t lane) {
    const int64_t column = n + lane % 2 * 8 + lane % 4 / 2 * 4, left = p.N - column;
    return {m, column, left, m < p.M ? left : 0};
  }
  template <class T, int own>
  __device__ __forceinline__ void load(const params &p, int first, int64_t m, int64_t n, int32_t lane) {
    ASSAY_UNROLL
    for (int pair = 0; pair < most && first + pair < own / 16; ++pair)
      ASSAY_UNROLL
    for (int half = 0; half < 2; ++half) {
      const fours_place at = place(p, m + 8 * half, n + 16 * (first + pair), lane);
      const T *const res = static_cast<const T *>(p.res) + at.row * p.res_row + at.column;
      old_[pair][half] = fours_of<T>::load(res, at.room, p.fours).word;
    }
  }
  template <class T, int own>
  __device__ __forceinline__ void store(const params &p, int first, int64_t m, int64_t n, int32_t lane,
                                        const float (&sum)[own / 2]) {
    const bool second = lane % 2 != 0; /* this lane has the second group of each pair */
    ASSAY_UNROLL
    for (int pair = 0; pair < most && first + pair < own / 16; ++pair) {
      const int64_t begin_n = n + 16 * (first + pair);
      typename End::template weights<T> weights;
      weights.load(p, place(p, m, begin_n, lane));
      ASSAY_UNROLL
      for (int half = 0; half < 2; ++half) {
        const float *const low = sum + 8 * (first + pair) + 2 * half, *const high = low + 4;
        float four[4], old[4];
        ASSAY_UNROLL
        for (int i = 0; i < 2; ++i) {
          const float other = __shfl_xor_sync(0xffffffffu, second ? low[i] : high[i], 1);
          four[i] = second ? other : low[i];
          four[2 + i] = second ? high[i] : other;
        }
        fours_of<T>{old_[pair][half]}.read(old);
        End::template finish<T>(p, place(p, m + 8 * half, begin_n, lane), lane, weights, four, old);
      }
    }
  }
};

/* Launches chains of 64 rows, where there are at most 64 or nearly 128, and else tiles. The order of sums is the same.
 */
template <class T, class End>
assay_status fours_start(const typename End::params &p, assay_env *env, assay_error *error) {
  using tiles = fours_sums<End, false>;
  const int64_t mp = env->multiprocessors;
  if (p.M <= chain_max_rows || chain_pairs(p, mp)) return chain_columns<T, 64, fours_sums<End, true>>(p, env, error);
  if (4 * wide_tiles(p, 128, 128) >= 3 * mp) return wide_start<T, wide_tile<128, 128, 2, 6>, tiles>(p, env, error);
  if (5 * wide_tiles(p, 64, 64) < 2 * mp) return wide_start<T, wide_tile<64, 16, 1, 20>, tiles>(p, env, error);
  return wide_start<T, wide_tile<64, 64, 2, 12>, tiles>(p, env, error);
}

} // namespace ASSAY_NS
#endif
