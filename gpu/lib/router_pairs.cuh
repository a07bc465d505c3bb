/* router_pairs.cuh: chooses the eight best of bf16 logits, in two rows at a time. Eight lanes have both rows. One
 * instruction takes a word with a number of each row.
 *
 * The rows lie in a narrow range: no logit is above pair_most, and the bound is pair_least at least. If the bits of
 * such numbers are read as f16, their order stays, and neighbours differ by 2^-11 at least. A product of the difference
 * and 2^11 that the instruction clamps to [0, 1] is then a comparison. */
#ifndef ASSAY_GPU_ROUTER_PAIRS_CUH
#define ASSAY_GPU_ROUTER_PAIRS_CUH

#include "gpu/lib/ptx_mma.cuh"
#include "gpu/lib/ptx_pairs.cuh"
#include "gpu/lib/vec.cuh"

namespace ASSAY_NS {

constexpr int pair_places = 16; /* candidates of a row, and slots of its ranks */

/* In both halves of a word: the bf16 2^-8 and 63.75; the f16 1024, 4, 2^11 and -2^11. */
constexpr uint32_t pair_least = 0x3b803b80u, pair_most = 0x427f427fu;
constexpr uint32_t pair_ones = 0x64006400u, pair_fours = 0x44004400u, pair_scale = 0x68006800u,
                   pair_turned = 0xe800e800u;

/* The key of a candidate is twice the bits of its logit, less this. Keys are f16 from 1 / 2 to 6, and unequal ones are
 * two steps apart or more. */
constexpr uint32_t pair_apart = 0x3f003f00u;

/* Shared memory of two rows: choices by rank, with the logit in the upper half and the id in the lower one; ids of the
 * candidates; keys of the candidates, two in a word. */
struct alignas(16) pair_room {
  uint32_t chosen[2][pair_places];
  uint32_t ids[2][pair_places];
  uint32_t keys[2][pair_places / 2];
};

/* Return the low halves, or the high ones, of two words in one word. */
__device__ __forceinline__ uint32_t pair_of_low(uint32_t a, uint32_t b) {
  return byte_permute(a, b, 0x5410);
}
__device__ __forceinline__ uint32_t pair_of_high(uint32_t a, uint32_t b) {
  return byte_permute(a, b, 0x7632);
}

/* Returns the greatest number of the low halves, and that of the high ones. NaN stays NaN. */
template <int count> __device__ __forceinline__ uint32_t pair_greatest(const uint32_t (&words)[count]) {
  uint32_t most = words[0];
  ASSAY_UNROLL
  for (int i = 1; i < count; ++i)
    most = bf16_pair_max_or_nan(most, words[i]);
  return most;
}

/* Keeps the lesser or the greater numbers. */
template <class T> __device__ __forceinline__ uint32_t pair_keep(bool lesser, uint32_t a, uint32_t b) {
  return lesser ? pair_min<T>(a, b) : pair_max<T>(a, b);
}

/* Puts the greater numbers into the first word. */
template <class T> __device__ __forceinline__ void pair_in_order(uint32_t &a, uint32_t &b) {
  const uint32_t least = pair_min<T>(a, b);
  a = pair_max<T>(a, b);
  b = least;
}

/* Keeps the lesser or the greater of this lane's numbers and those of another one. */
template <class T> __device__ __forceinline__ void pair_exchange(uint32_t (&v)[2], int lanes, bool lesser) {
  ASSAY_UNROLL
  for (int i = 0; i < 2; ++i)
    v[i] = pair_keep<T>(lesser, v[i], __shfl_xor_sync(0xffffffffu, v[i], lanes));
}

/* Does the same, but compares this lane's first number with the other lane's second one. */
template <class T> __device__ __forceinline__ void pair_exchange_across(uint32_t (&v)[2], int lanes, bool lesser) {
  const uint32_t other[2] = {__shfl_xor_sync(0xffffffffu, v[0], lanes), __shfl_xor_sync(0xffffffffu, v[1], lanes)};
  v[0] = pair_keep<T>(lesser, v[0], other[1]);
  v[1] = pair_keep<T>(lesser, v[1], other[0]);
}

/* Sorts the eight numbers of four lanes, the greatest first. The two numbers of each lane are in order before. */
template <class T> __device__ __forceinline__ void pair_sorted_lanes(uint32_t (&v)[2], bool odd, bool third) {
  pair_exchange_across<T>(v, 1, odd);
  pair_in_order<T>(v[0], v[1]);
  pair_exchange_across<T>(v, 3, third);
  pair_exchange<T>(v, 1, odd);
  pair_in_order<T>(v[0], v[1]);
}

/* Returns the eighth largest of the two numbers of all eight lanes. Each lane has the greater one in `first`. */
__device__ __forceinline__ uint32_t pair_bound(uint32_t first, uint32_t second, uint32_t eighth) {
  uint32_t v[2] = {first, second};
  pair_sorted_lanes<bf16>(v, (eighth & 1u) != 0, (eighth & 2u) != 0);
  const uint32_t other[2] = {__shfl_xor_sync(0xffffffffu, v[0], 7), __shfl_xor_sync(0xffffffffu, v[1], 7)};
  uint32_t least = pair_min<bf16>(pair_max<bf16>(v[0], other[1]), pair_max<bf16>(v[1], other[0]));
  least = pair_min<bf16>(least, __shfl_xor_sync(0xffffffffu, least, 1));
  return pair_min<bf16>(least, __shfl_xor_sync(0xffffffffu, least, 2));
}

/* Returns a bit for each expert of a row that is above a number. Both halves of `less` have that number times -2^11.
 * The first expert is bit 0. Bits from `2 count` on are undefined. */
template <int count> __device__ __forceinline__ uint32_t pair_above(const uint32_t (&words)[count], uint32_t less) {
  uint32_t bytes[count / 4]; /* even bits in bits 0 to 7 are even experts, those in bits 16 to 23 are odd ones */
  for (uint32_t &sum : bytes)
    sum = pair_ones;
  ASSAY_UNROLL
  for (int i = 0; i < count; ++i) {
    const uint32_t factor = 0x3c003c00u + 0x08000800u * static_cast<uint32_t>(i % 4); /* 4^(i mod 4) */
    uint32_t &sum = bytes[i / 4];
    sum = f16_pair_fma(f16_pair_fma_saturate(words[i], pair_scale, less), factor, sum);
  }
  uint32_t half[(count + 7) / 8];
  ASSAY_UNROLL
  for (int i = 0; i < count / 4; i += 2) {
    const uint32_t both = byte_permute(bytes[i], i + 1 < count / 4 ? bytes[i + 1] : 0, 0x6240);
    half[i / 2] = both + (both >> 15); /* no bit twice */
  }
  return count == 16 ? pair_of_low(half[0], half[(count + 7) / 8 - 1]) : half[0];
}

/* Writes the ids of a lane's candidates, ascending, in front of `to`. */
__device__ __forceinline__ void pair_list(uint32_t above, uint32_t first, uint32_t *to) {
  ASSAY_UNROLL
  for (int i = 1; i <= 4; ++i) { /* the last one first */
    const uint32_t at = highest_bit(above);
    store_if(above != 0, to - i, first + at);
    above = lower_bits(above, at);
  }
  for (to -= 4; above != 0;) { /* few lanes have more */
    const uint32_t at = highest_bit(above);
    above = lower_bits(above, at);
    *--to = first + at;
  }
}

/* Factors for comparisons with eight pairs of candidates. Places after the lane's own have 2^11, and places before it
 * have one step more. There an equal key counts as above, and a lesser one never does. */
struct pair_factors {
  uint32_t of[8];
};

__device__ __forceinline__ pair_factors pair_factors_of(uint32_t eighth) {
  pair_factors factors;
  ASSAY_UNROLL
  for (uint32_t j = 0; j < 8; ++j)
    factors.of[j] = j < eighth ? pair_scale + 0x00010001u : pair_scale;
  return factors;
}

/* Ranks a row's candidates, and writes each of the lane's two to the place of its rank. The eight best have ranks 0 to
 * 7. The lane has places 2 `eighth` and the next one. */
__device__ __forceinline__ void pair_rank(const pair_factors &factors, const uint32_t *keys, uint32_t own,
                                          const uint32_t (&word)[2], const bool (&there)[2], uint32_t *chosen) {
  const uint32_t less[2] = {f16_pair_times(pair_of_low(own, own), pair_turned),
                            f16_pair_times(pair_of_high(own, own), pair_turned)};
  /* Four times the number of those before. An equal neighbour is before the second one. */
  uint32_t sum[2] = {0x00006400u, own >> 16 == (own & 0xffffu) ? 0x00006404u : 0x00006400u};
  ASSAY_UNROLL
  for (int begin = 0; begin < 8; begin += 4) {
    const quad<uint32_t> four = load_quad(keys + begin, true);
    ASSAY_UNROLL
    for (int e = 0; e < 4; ++e) {
      const uint32_t factor = factors.of[begin + e];
      ASSAY_UNROLL
      for (int i = 0; i < 2; ++i)
        sum[i] = f16_pair_fma(f16_pair_fma_saturate(four.element[e], factor, less[i]), pair_fours, sum[i]);
    }
  }
  ASSAY_UNROLL
  for (int i = 0; i < 2; ++i)
    if (there[i]) chosen[(f16_pair_sum(sum[i]) & 0x3cu) / 4] = word[i];
}

/* Stores two words at once. The address must be a multiple of 8. */
template <class T> __device__ __forceinline__ void store_two(T *to, uint32_t first, uint32_t second) {
  static_assert(sizeof(T) == 4, "words");
#ifdef ASSAY_SIMT
  if (reinterpret_cast<uintptr_t>(to) % 8 != 0)
    assay_simt->fault("store_two: address is not a multiple of 8", __FILE__, __LINE__);
  memcpy(to, &first, sizeof first);
  memcpy(to + 1, &second, sizeof second);
#else
  *reinterpret_cast<uint2 *>(to) = make_uint2(first, second);
#endif
}

} // namespace ASSAY_NS
#endif
