/* moe_router_octets.cu: the k best of 64, 128 or 256 experts, four rows per warp.
 *
 * Eight lanes have a row, and a lane has an eighth of its experts in registers. A shuffle then serves four rows at
 * once. docs/kernels/moe_router.md has the arithmetic. */
#include "gpu/lib/channels.cuh"
#include "gpu/lib/ptx_async.cuh"
#include "gpu/lib/ptx_edge.cuh"
#include "gpu/lib/ptx_mma.cuh"
#include "gpu/lib/router.cuh"
#include "gpu/lib/router_bound.cuh"
#include "gpu/lib/router_pairs.cuh"
#include "gpu/lib/vectors.cuh"
#include "gpu/lib/warp.cuh"

namespace ASSAY_NS {
namespace {

constexpr int octet_warps = 4, octet_rows = 4, octet_most = 8, octet_places = 32;
/* Floats from row to row of candidates, so that lanes of four rows read 16 bytes from different banks. */
constexpr int octet_pitch = octet_places + 4;

/* Blocks per multiprocessor that registers leave room for. With eight, 16,384 rows are one wave. */
template <int U, bool sigmoid> constexpr int octet_blocks = U == 32 && !sigmoid ? 5 : 8;

constexpr float octet_largest = 3.402823466e38f;

struct octet_params {
  router_params r;
  uint32_t rows, row_bytes; /* tokens, and bytes from token to token */
  bool total;               /* weights need the sum of a softmax */
  float most, least;        /* no logit may be above, and lower ones count as `least`: -inf for a softmax */
};

/* Returns b of a logit, without its bias. Logits stand for their scores where those have the same order. +inf becomes
 * the largest number, so that differences tell the order. */
template <bool sigmoid> __device__ __forceinline__ float octet_b(float x, float least) {
  if (sigmoid) return reciprocal_approx(1.0f + exp2_approx(-log2_e * x));
  return fminf(fmaxf(x, least), octet_largest);
}

/* Returns a / b for b >= 0, within 2 ulp. It is exact where b is a power of two. */
__device__ __forceinline__ float octet_divided(float a, float b) {
  if (b < 0x1p-100f) return a / b;
  return a * reciprocal_approx(b);
}

/* Returns the number before `value`, which is not -inf: whatever is greater is at least as great as `value`. */
__device__ __forceinline__ float octet_before(float value) {
  const int32_t bits = __float_as_int(value);
  return __int_as_float(bits > 0 ? bits - 1 : (bits | INT32_MIN) + 1);
}

/* Returns 1 if a > b, else 0: the sign of a difference, which the sum of several takes in one instruction. Neither is
 * NaN or -0, and they are not the same infinity. */
__device__ __forceinline__ int32_t octet_greater(float a, float b) {
  return static_cast<int32_t>(bits_of(b - a) >> 31);
}

/* Tells whether the lane's group stays. The lane's experts are its group. */
__device__ __forceinline__ bool octet_stays(const router_params &r, int32_t lane, float score) {
  const float own = fminf(fmaxf(score, -octet_largest), octet_largest), as_great = octet_before(own);
  int32_t before = 0;
  ASSAY_UNROLL
  for (int step = 1; step < 8; ++step) { /* the highest bit of the step tells which lane is the lower one */
    const int highest = step < 2 ? 1 : step < 4 ? 2 : 4;
    before += octet_greater(__shfl_xor_sync(0xffffffffu, own, step), (lane & highest) != 0 ? as_great : own);
  }
  return before < r.topk_groups;
}

/* Chooses in k rounds of the largest among eight lanes. `left` has a bit for each expert of the lane. */
template <int U>
__device__ __forceinline__ void octet_rounds(int32_t k, int32_t lane, uint32_t left, const float (&b)[U],
                                             uint32_t *chosen) {
  ASSAY_ROLLED
  for (int32_t j = 0; j < k; ++j) {
    float best = -INFINITY;
    int32_t id = 8 * U; /* none */
    ASSAY_UNROLL
    for (int i = 0; i < U; ++i)
      if ((left >> i & 1u) != 0 && (b[i] > best || id == 8 * U)) {
        best = b[i];
        id = lane % 8 * U + i;
      }
    for (int step = 1; step < 8; step *= 2) {
      const float other = __shfl_xor_sync(0xffffffffu, best, step);
      const int32_t other_id = __shfl_xor_sync(0xffffffffu, id, step);
      if (other_id < 8 * U && (id == 8 * U || other > best || (other == best && other_id < id))) {
        best = other;
        id = other_id;
      }
    }
    if (id / U == lane % 8) {
      left &= ~(1u << (id % U));
      chosen[j] = static_cast<uint32_t>(id);
    }
  }
}

/* Gives every candidate its rank, which is the number of those before it, and keeps those whose rank is below k. The
 * places of a row from its count on are -inf. */
__device__ __forceinline__ void octet_ranks(int32_t k, int32_t lane, int32_t count, int32_t most, const float *values,
                                            const uint32_t *numbers, uint32_t *chosen) {
  for (int32_t at = lane % 8; at - lane % 8 < most; at += 16) {
    const float first = values[at], second = values[at + 8];
    int32_t rank = 0, second_rank = 0;
    ASSAY_ROLLED
    for (int32_t begin = 0; begin < most; begin += 4) {
      const quad<float> four = load_quad(values + begin, true);
      ASSAY_UNROLL
      for (int e = 0; e < 4; ++e) {
        const float other = four.element[e];
        const int32_t j = begin + e;
        rank += other > first || (other == first && j < at) ? 1 : 0;
        second_rank += other > second || (other == second && j < at + 8) ? 1 : 0;
      }
    }
    if (at < count && rank < k) chosen[rank] = numbers[at];
    if (at + 8 < count && second_rank < k) chosen[second_rank] = numbers[at + 8];
  }
}

/* Numbers in a narrow range have differences that, times octet_scale, are 1 at least or 0. A multiplication that clamps
 * its sum to [0, 1] then compares, and takes no unit of integers. */
constexpr float octet_scale = 0x1p80f, octet_low = 0x1p-50f, octet_high = 0x1p40f, octet_ones = 0x1p23f;

/* Returns the ranks of a lane's two candidates among 16 places, if no two candidates are equal. */
__device__ __forceinline__ void octet_ranks_apart(const float *values, const float (&own)[2], int32_t (&rank)[2]) {
  const float less[2] = {-own[0] * octet_scale, -own[1] * octet_scale};
  float sum[2] = {octet_ones, octet_ones}; /* the last bits are a count */
  ASSAY_UNROLL
  for (int begin = 0; begin < 16; begin += 4) {
    const quad<float> four = load_quad(values + begin, true);
    ASSAY_UNROLL
    for (int e = 0; e < 4; ++e) {
      sum[0] += fma_saturate(four.element[e], octet_scale, less[0]);
      sum[1] += fma_saturate(four.element[e], octet_scale, less[1]);
    }
  }
  rank[0] = static_cast<int32_t>(bits_of(sum[0]) & 31u);
  rank[1] = static_cast<int32_t>(bits_of(sum[1]) & 31u);
}

/* The same, where of equal candidates the first one comes first. A lane has places `eighth` and `eighth + 8`. */
__device__ __forceinline__ void octet_ranks_of_16(int32_t eighth, const float *values, const float (&own)[2],
                                                  int32_t (&rank)[2]) {
  const float as_great[2] = {octet_before(own[0]), octet_before(own[1])};
  rank[0] = rank[1] = 0;
  ASSAY_UNROLL
  for (int begin = 0; begin < 16; begin += 4) {
    const quad<float> four = load_quad(values + begin, true);
    ASSAY_UNROLL
    for (int e = 0; e < 4; ++e) {
      const int j = begin + e;
      const bool lower = j % 8 < eighth;
      rank[0] += octet_greater(four.element[e], j < 8 && lower ? as_great[0] : own[0]);
      rank[1] += octet_greater(four.element[e], j < 8 || lower ? as_great[1] : own[1]);
    }
  }
}

/* Floats of bias per lane: eight lanes read 16 bytes from different banks. */
template <int U> constexpr int octet_apart = U + 4;
template <int U> constexpr uint32_t octet_all = U == 32 ? 0xffffffffu : (1u << (U % 32)) - 1; /* a bit per expert */

/* Returns a bit for each expert that reaches the bound. The first one is bit 0. */
template <int U> __device__ __forceinline__ uint32_t octet_above(const float (&b)[U], float bound) {
  uint32_t below = 0;
  ASSAY_UNROLL
  for (int i = U - 1; i >= 0; --i)
    below = below << 1 | bits_of(b[i] - bound) >> 31;
  return ~below & octet_all<U>;
}

/* The same for a bound from octet_low to octet_high. */
template <int U> __device__ __forceinline__ uint32_t octet_above_narrow(const float (&b)[U], float bound) {
  const float less = -octet_before(bound) * octet_scale;
  float half[2] = {octet_ones, octet_ones}; /* the last 16 bits of each are those of 16 experts */
  ASSAY_UNROLL
  for (int i = 0; i < U; ++i)
    half[i / 16] = fmaf(fma_saturate(b[i], octet_scale, less), static_cast<float>(1 << i % 16), half[i / 16]);
  const uint32_t low = bits_of(half[0]);
  return U == 32 ? byte_permute(low, bits_of(half[1]), 0x5410) : low & octet_all<U>;
}

/* The same for pairs of bf16, the first one in the low half. The bound is a bf16. */
template <int U> __device__ __forceinline__ uint32_t octet_above_pairs(const uint32_t (&pairs)[U / 2], float bound) {
  const uint32_t twice = byte_permute(bits_of(bound), 0, 0x3232);
  uint32_t half[2] = {0, 0}; /* even experts of 16, and from bit 16 on odd ones */
  ASSAY_UNROLL
  for (int i = 0; i < U / 2; ++i)
    half[i / 8] |= bf16_pair_reaches(pairs[i], twice) & 0x00010001u << 2 * (i % 8);
  half[0] |= half[0] >> 15;
  half[1] |= half[1] >> 15;
  return U == 32 ? byte_permute(half[0], half[1], 0x5410) : half[0] & octet_all<U>;
}

/* Adds up `mine` through a row's lanes: up to each lane, and, in `count`, all of them. */
__device__ __forceinline__ int32_t octet_places_to(int32_t mine, int32_t *count) {
  int32_t place = mine;
  ASSAY_UNROLL
  for (int step = 1; step < 8; step *= 2)
    place = add_from_below<8>(place, step);
  *count = __shfl_sync(0xffffffffu, place, 7, 8);
  return place;
}

/* Shared memory of a row: values and ids of its candidates, choices with their scores or logits, all logits. Lanes'
 * parts of x lie `apart` elements apart, so that eight lanes read 16 bytes from different banks. */
template <class T, int U> struct octet_room {
  static constexpr int apart = U + vector_width<T>;
  float values[octet_pitch];
  uint32_t ids[octet_places];
  uint32_t chosen[octet_most];
  float scores[octet_most];
  T x[8 * apart];

  __device__ __forceinline__ float logit(uint32_t id) const { return to_float(x[id + id / U * (apart - U)]); }
};

/* Returns a number that is greater for a greater logit, which is bf16 and above 0, and for a lower id of equal ones. It
 * is from 1 / 2 to 2. */
__device__ __forceinline__ float octet_key(float logit, uint32_t id) {
  return float_of((bits_of(logit) >> 8) + (0x3f0000ffu - id));
}

/* Returns b of a candidate, and its score without bias: a logit, where those have the order of the scores. */
template <bool sigmoid, class T, int U>
__device__ __forceinline__ float octet_value(const octet_room<T, U> &room, uint32_t id, const float *biases,
                                             bool with_bias, float least, float *score) {
  const float logit = room.logit(id), b = octet_b<sigmoid>(logit, least);
  *score = sigmoid ? b : logit;
  return b + (with_bias ? biases[id + id / U * (octet_apart<U> - U)] : 0.0f); /* no -0 */
}

/* Chooses among any numbers: up to 32 candidates by comparisons, more by rounds. */
template <bool sigmoid, class T, int U>
__device__ __forceinline__ void octet_choose(int32_t k, int32_t lane, bool takes, bool bad, const float (&b)[U],
                                             float bound, const float *biases, bool with_bias, float least,
                                             octet_room<T, U> &room) {
  const int32_t eighth = lane % 8;
  const uint32_t above = takes && !bad ? octet_above<U>(b, bound) : 0u;
  int32_t count;
  const int32_t place = octet_places_to(__popc(above), &count);
  const bool many = !bad && (count > octet_places || bound == -INFINITY);
  if (__any_sync(0xffffffffu, many) != 0) {
    octet_rounds<U>(k, lane, takes ? octet_all<U> : 0u, b, room.chosen);
  } else {
    pair_list(above, static_cast<uint32_t>(eighth * U), room.ids + place);
    int32_t most = count;
    most = max(most, __shfl_xor_sync(0xffffffffu, most, 8));
    most = max(most, __shfl_xor_sync(0xffffffffu, most, 16));
    __syncwarp(); /* the numbers of candidates are written */
    ASSAY_ROLLED
    for (int32_t at = eighth; at < octet_places; at += 8) {
      float score, value = -INFINITY;
      if (at < count) value = octet_value<sigmoid>(room, room.ids[at], biases, with_bias, least, &score);
      room.values[at] = value;
    }
    __syncwarp(); /* the candidates are written */
    octet_ranks(k, lane, count, most, room.values, room.ids, room.chosen);
  }
  __syncwarp(); /* the choice is written */
  if (eighth < k && !bad)
    (void)octet_value<sigmoid>(room, room.chosen[eighth], biases, false, least, room.scores + eighth);
}

/* Chooses among numbers in a narrow range: up to 16 candidates, whose ids are listed. */
template <bool sigmoid, class T, int U>
__device__ __forceinline__ void octet_choose_narrow(int32_t k, int32_t eighth, int32_t count, const float *biases,
                                                    bool with_bias, float least, octet_room<T, U> &room) {
  const bool keyed = !sigmoid && std::is_same<T, bf16>::value && !with_bias;
  float value[2], score[2];
  uint32_t id[2];
  int32_t rank[2];
  ASSAY_UNROLL
  for (int i = 0; i < 2; ++i) {
    const int32_t at = eighth + 8 * i;
    id[i] = at < count ? room.ids[at] : 0;
    if (keyed) {
      score[i] = room.logit(id[i]);
      value[i] = octet_key(score[i], id[i]);
    } else {
      value[i] = octet_value<sigmoid>(room, id[i], biases, with_bias, least, score + i);
    }
    room.values[at] = at < count ? value[i] : -INFINITY;
  }
  __syncwarp();                      /* the candidates are written */
  bool ties = sigmoid && !with_bias; /* 16 bits have few numbers */
  if (!ties) octet_ranks_apart(room.values, value, rank);
  if (!ties && !keyed) {
    int32_t less = 0; /* a pair of equal candidates lacks 1 */
    ASSAY_UNROLL
    for (int i = 0; i < 2; ++i)
      if (eighth + 8 * i < count) less += eighth + 8 * i - rank[i];
    ties = __reduce_add_sync(0xffffffffu, less) != 0;
  }
  if (ties) octet_ranks_of_16(eighth, room.values, value, rank);
  ASSAY_UNROLL
  for (int i = 0; i < 2; ++i)
    if (eighth + 8 * i < count && rank[i] < k) {
      room.chosen[rank[i]] = id[i];
      room.scores[rank[i]] = score[i];
    }
}

/* Asks for the logits of a warp's four rows, a whole row after the other. Rows past the last one become 0. */
template <class T, int U>
__device__ __forceinline__ void octet_ask(const octet_params &p, uint32_t first, uint32_t lane,
                                          octet_room<T, U> *rooms) {
  constexpr uint32_t width = vector_width<T>, per_lane = U / width, per_row = 8 * per_lane; /* vectors of 16 bytes */
  const uint32_t vector = lane % per_row, row = first + lane / per_row; /* that the first copy takes */
  T *const to = rooms[lane / per_row].x + vector / per_lane * rooms->apart + vector % per_lane * width;
  const char *const from = static_cast<const char *>(p.r.x) + 16 * vector;
  ASSAY_UNROLL
  for (uint32_t i = 0; i < per_lane; ++i) {
    const uint32_t rows_on = 32 * i / per_row, vectors_on = 32 * i % per_row;
    const bool there = row + rows_on < p.rows;
    const uint64_t bytes = static_cast<uint64_t>(row + rows_on) * p.row_bytes + 16 * vectors_on;
    cp_async_16(to + rows_on * (sizeof *rooms / sizeof(T)) + vectors_on / per_lane * rooms->apart, from + bytes,
                there ? 16 : 0);
  }
  cp_async_commit();
}

/* Adds up the weights of a row. All kernels of this file add them in this order. */
template <int width> __device__ __forceinline__ float octet_sum(float weight) {
  ASSAY_UNROLL
  for (int step = 1; step < width; step *= 2)
    weight += __shfl_xor_sync(0xffffffffu, weight, step);
  return weight;
}

/* Chooses for a row whose logits are in shared memory, and writes what it chose. `bad` rows choose nothing. */
template <class T, int U, bool sigmoid, bool grouped>
__device__ __forceinline__ void octet_row(const octet_params &p, uint32_t row, bool bad, bool with_bias,
                                          const float *all_biases, octet_room<T, U> &room) {
  constexpr int width = vector_width<T>, part = U / 4;
  constexpr bool in_pairs = !sigmoid && std::is_same<T, bf16>::value; /* logits are compared two at a time */
  constexpr int apart = octet_apart<U>;
  const router_params &r = p.r;
  const int32_t lane = static_cast<int32_t>(threadIdx.x % 32), eighth = lane % 8;
  const float *const bias = all_biases + eighth * apart;
  float b[U];
  uint32_t words[U * sizeof(T) / 4];
  ASSAY_UNROLL
  for (int at = 0; at < U; at += width) {
    const uint4 vector = load_vector(room.x + eighth * room.apart + at);
    float value[width];
    split_vector<T>(vector, value);
    ASSAY_UNROLL
    for (int i = 0; i < width; ++i)
      b[at + i] = value[i];
    uint32_t *const word = words + at / width * 4;
    word[0] = vector.x, word[1] = vector.y, word[2] = vector.z, word[3] = vector.w;
  }
  float first[4], second = -INFINITY; /* the largest of each quarter, and the second of all */
  float largest = 0.0f, total = 1.0f, least = p.least;
  if (!sigmoid) {
    if constexpr (in_pairs) { /* any quarters do: even or odd experts of a half */
      uint32_t most[2] = {words[0], words[U / 4]};
      ASSAY_UNROLL
      for (int i = 1; i < U / 4; ++i) {
        most[0] = bf16_pair_max_or_nan(most[0], words[i]);
        most[1] = bf16_pair_max_or_nan(most[1], words[U / 4 + i]);
      }
      split_word<T>(most[0], first);
      split_word<T>(most[1], first + 2);
    } else {
      ASSAY_UNROLL
      for (int i = 0; i < U; ++i)
        first[i / part] = i % part == 0 ? b[i] : max_or_nan(first[i / part], b[i]);
    }
    const float any = max_or_nan(max_or_nan(first[0], first[1]), max_or_nan(first[2], first[3]));
    bad = bad || !(any <= p.most);
    if (r.score == score_softmax) { /* a softmax of scores needs the largest */
      largest = groups_max<8>(any);
      bad = bad || largest == -INFINITY;
      if (!r.on_logits) least = least_logit(r, largest);
      if (p.total) {
        total = 0.0f;
        ASSAY_UNROLL
        for (int i = 0; i < U; ++i)
          total += expf(b[i] - largest);
        total = groups_sum<8>(total);
      }
    }
  }
  if (sigmoid || with_bias) {
    ASSAY_UNROLL
    for (int begin = 0; begin < U; begin += 4) {
      quad<float> four = {{0.0f, 0.0f, 0.0f, 0.0f}}; /* adding 0 makes one zero of both */
      if (with_bias) four = load_quad(bias + begin, true);
      ASSAY_UNROLL
      for (int e = 0; e < 4; ++e) {
        const int i = begin + e, q = i / part;
        const float value = octet_b<sigmoid>(b[i], least) + four.element[e];
        b[i] = value;
        if (i % part == 0) {
          first[q] = value;
          continue;
        }
        if (grouped) second = fmaxf(second, fminf(first[q], value));
        first[q] = sigmoid ? max_or_nan(first[q], value) : fmaxf(first[q], value);
      }
    }
  } else { /* the others stay logits: a bound above `least` tells them apart as well */
    ASSAY_UNROLL
    for (int q = 0; q < 4; ++q)
      first[q] = octet_b<sigmoid>(first[q], least) + 0.0f;
  }
  if (sigmoid) { /* the score of NaN is NaN */
    const float any = max_or_nan(max_or_nan(first[0], first[1]), max_or_nan(first[2], first[3]));
    bad = bad || any != any;
  }
  bad = (__ballot_sync(0xffffffffu, bad) >> (lane / 8 * 8) & 0xffu) != 0;
  bool stays = true;
  float greatest = 0.0f; /* the lane's largest b, also where its group is dropped */
  if (grouped) {
    float most = fmaxf(first[0], first[1]), rest = fminf(first[0], first[1]);
    ASSAY_UNROLL
    for (int q = 2; q < 4; ++q) {
      rest = fmaxf(rest, fminf(most, first[q]));
      most = fmaxf(most, first[q]);
    }
    second = fmaxf(second, rest);
    greatest = most;
    stays = octet_stays(r, lane, with_bias ? most + second : most);
    ASSAY_UNROLL
    for (int q = 0; q < 4; ++q)
      first[q] = stays ? first[q] : -INFINITY;
  }
  float bound;
  const bool by_halves = (sigmoid || with_bias) && r.k == 8 && (!grouped || r.topk_groups > 1);
  if (by_halves) {
    if (!grouped) greatest = fmaxf(fmaxf(first[0], first[1]), fmaxf(first[2], first[3]));
    bound = octet_bound_by_halves(first, static_cast<uint32_t>(eighth));
  } else {
    bound = octet_bound(first, lane, r.k, &greatest);
  }
  uint32_t above = 0;
  if constexpr (in_pairs) {
    if (!with_bias) above = octet_above_pairs<U>(words, bound);
    if (with_bias) above = octet_above_narrow<U>(b, bound);
    above = stays && !bad ? above : 0u;
  } else {
    above = stays && !bad ? octet_above_narrow<U>(b, bound) : 0u;
  }
  int32_t count;
  const int32_t place = octet_places_to(__popc(above), &count);
  bool wide = !(bound >= octet_low && greatest < octet_high) || count > 16;
  if (!sigmoid) wide = wide || !(bound > least);
  if (__any_sync(0xffffffffu, wide && !bad) != 0) {
    if (by_halves) bound = octet_bound(first, lane, r.k, &greatest);
    ASSAY_UNROLL
    for (int i = 0; i < U && !sigmoid; ++i)
      b[i] = with_bias ? b[i] : octet_b<sigmoid>(b[i], least) + 0.0f;
    octet_choose<sigmoid>(r.k, lane, stays, bad, b, bound, all_biases, with_bias, least, room);
  } else {
    pair_list(above, static_cast<uint32_t>(eighth * U), room.ids + place);
    __syncwarp(); /* the numbers of candidates are written */
    octet_choose_narrow<sigmoid>(r.k, eighth, count, all_biases, with_bias, least, room);
  }
  __syncwarp(); /* the choice and its scores are written */
  const bool here = eighth < r.k && !bad;
  const int32_t id = here ? static_cast<int32_t>(room.chosen[eighth]) : -1;
  float weight = here ? room.scores[eighth] : 0.0f;
  if (!sigmoid) weight = router_weight(r, 8, weight, here, largest, 1.0f);
  if (!sigmoid && p.total && here) weight /= total;
  /* The score is good enough as a weight, unless the approximation has lost it: then it is e^x. */
  if (sigmoid && here && weight < 0x1p-100f) weight = expf(room.logit(room.chosen[eighth]));
  if (r.renormalise) {
    const float sum = octet_sum<8>(weight);
    if (here) weight = octet_divided(weight, fmaxf(sum, r.floor)); /* a row without choice has weights 0 */
  }
  if (row < p.rows && eighth < r.k) {
    const uint32_t at = row * static_cast<uint32_t>(r.k) + static_cast<uint32_t>(eighth);
    r.ids[at] = id;
    r.weights[at] = weight * r.route_scale;
  }
}

/* router_octets: eight lanes per row, an eighth of its experts each.
 * Grid:   ceil(T / 16). Block: 128 threads.
 * Shared: 16 rows of logits, candidates and choices, and the bias: 17 KB for 256 experts of 16 bits.
 * Align:  16 bytes: rows of logits, bias.
 * Arch:   any.
 * Limit:  bytes: E sizeof(T) + 8 k per token. */
template <class T, int U, bool sigmoid, bool grouped>
__global__ void __launch_bounds__(32 * octet_warps, (octet_blocks<U, sigmoid>)) router_octets(octet_params p) {
  using room_of_row = octet_room<T, U>;
  constexpr int apart = octet_apart<U>;
  ASSAY_SHARED(room_of_row, rooms, octet_warps * octet_rows);
  ASSAY_SHARED(float4, biases, 2 * apart);
  take_turn();
  const router_params &r = p.r;
  const bool with_bias = r.bias != nullptr;
  float *const all_biases = reinterpret_cast<float *>(biases);
  const uint32_t warp_row = threadIdx.x / 32 * octet_rows, local = threadIdx.x / 8;
  const uint32_t first_row = blockIdx.x * (octet_warps * octet_rows), row = first_row + local;
  room_of_row &room = rooms[local];
  octet_ask<T, U>(p, first_row + warp_row, threadIdx.x % 32, rooms + warp_row);
  if (with_bias) { /* while the logits are on their way */
    const uint32_t e = threadIdx.x * 4;
    if (e < 8 * U) store_quad(all_biases + e / U * apart + e % U, load_quad(r.bias + e, true), true);
    __syncthreads();
  }
  bool bad = row >= p.rows;
  if (r.valid != nullptr && !bad) bad = r.valid[row] == 0;
  cp_async_wait<0>();
  __syncwarp(); /* the logits are here */
  octet_row<T, U, sigmoid, grouped>(p, row, bad, with_bias, all_biases, room);
}

/* Rows of a block of pairs, blocks per multiprocessor that registers leave room for, and bounds that are tried. */
constexpr int pair_rows = octet_warps * octet_rows * 2;
template <int U> constexpr int pair_blocks = U == 32 ? 8 : 10;
constexpr int pair_tries = 5;
/* Rows per multiprocessor from which on half the warps are enough: 8,184 rows on an H200. */
constexpr int64_t pair_rows_from = 62;

/* Tells whether router_pairs takes the call: eight of bf16 logits, and a softmax over the chosen ones. */
bool takes_pairs(const octet_params &p, int64_t multiprocessors) {
  const router_params &r = p.r;
  return r.type == ASSAY_BF16 && r.T >= pair_rows_from * multiprocessors && r.k == 8 && r.groups == 1 &&
         r.bias == NULL && r.valid == NULL && r.score == score_softmax && r.renormalise && !p.total &&
         reinterpret_cast<uintptr_t>(r.ids) % 8 == 0 && reinterpret_cast<uintptr_t>(r.weights) % 8 == 0;
}

/* router_pairs: eight lanes per two rows, an eighth of the experts of both.
 * Grid:   ceil(T / 32). Block: 128 threads.
 * Shared: candidates and choices of 32 rows, or 16 rows as router_octets has them: 12 KB for 128 experts.
 * Align:  16 bytes: rows of logits; 8 bytes: ids, weights.
 * Arch:   any.
 * Limit:  bytes: 2 E + 64 per token. */
template <int U> __global__ void __launch_bounds__(32 * octet_warps, (pair_blocks<U>)) router_pairs(octet_params p) {
  using room_of_row = octet_room<bf16, U>;
  union either {
    pair_room pair;
    room_of_row whole;
  };
  ASSAY_SHARED(either, rooms, octet_warps * octet_rows);
  take_turn();
  const router_params &r = p.r;
  const uint32_t local = threadIdx.x / 8, eighth = threadIdx.x % 8;
  const uint32_t row = blockIdx.x * pair_rows + 2 * local;
  pair_room &room = rooms[local].pair;
  const bf16 *logits[2];
  uint32_t words[2][U / 2];
  ASSAY_UNROLL
  for (uint32_t i = 0; i < 2; ++i) { /* rows past the last one are the last one */
    const uint64_t bytes = static_cast<uint64_t>(min(row + i, p.rows - 1)) * p.row_bytes;
    logits[i] = reinterpret_cast<const bf16 *>(static_cast<const char *>(r.x) + bytes);
    ASSAY_UNROLL
    for (int at = 0; at < U; at += 8) {
      const uint4 vector = load_vector(logits[i] + eighth * U + at);
      uint32_t *const word = words[i] + at / 2;
      word[0] = vector.x, word[1] = vector.y, word[2] = vector.z, word[3] = vector.w;
    }
  }
  const uint32_t most[2] = {pair_greatest(words[0]), pair_greatest(words[1])};
  uint32_t first = pair_of_low(most[0], most[1]), second = pair_of_high(most[0], most[1]);
  const uint32_t greatest = bf16_pair_max_or_nan(first, second);
  second = pair_min<bf16>(first, second);
  uint32_t bound = pair_bound(greatest, second, eighth), above[2], places;
  const bool narrow = (bf16_pair_reaches(pair_most, greatest) & bf16_pair_reaches(bound, pair_least)) == 0xffffffffu;
  constexpr uint32_t all = octet_all<U>;
  int32_t counts;
  ASSAY_ROLLED
  for (int32_t tries = 1;; ++tries) {
    const uint32_t less = f16_pair_times(bound - 0x00010001u, pair_turned); /* the numbers before the bounds */
    above[0] = pair_above(words[0], pair_of_low(less, less)) & all;
    above[1] = pair_above(words[1], pair_of_high(less, less)) & all;
    places = static_cast<uint32_t>(octet_places_to(__popc(above[0]) | __popc(above[1]) << 16, &counts));
    const bool wide = !narrow || ((counts - 0x00080008) & 0x7ff87ff8) != 0; /* 8 to 15 are taken */
    if (__any_sync(0xffffffffu, wide) == 0) break;
    /* Rows with more get a greater bound: by a sixteenth of its power of two each time. */
    const uint32_t low = static_cast<uint32_t>(counts) & 0xffffu, high = static_cast<uint32_t>(counts) >> 16;
    if (__any_sync(0xffffffffu, !narrow || low < 8 || high < 8) != 0 || tries == pair_tries) {
      ASSAY_ROLLED
      for (uint32_t i = 0; i < 2; ++i) {
        room_of_row &whole = rooms[local].whole;
        const bf16 *const part = i == 0 ? logits[0] : logits[1];
        ASSAY_UNROLL
        for (int at = 0; at < U; at += 8)
          store_vector(whole.x + eighth * whole.apart + at, load_vector(part + eighth * U + at));
        __syncwarp(); /* the logits are here */
        octet_row<bf16, U, false, false>(p, row + i, row + i >= p.rows, false, nullptr, whole);
        __syncwarp(); /* all have read what they chose */
      }
      return;
    }
    bound += (low > 15 ? 8u : 0u) | (high > 15 ? 8u << 16 : 0u);
  }
  pair_list(above[0], eighth * U, room.ids[0] + (places & 0xffffu));
  pair_list(above[1], eighth * U, room.ids[1] + (places >> 16));
  __syncwarp(); /* the numbers of candidates are written */
  uint32_t own[2], id[2][2], bits[2][2];
  bool there[2][2];
  ASSAY_UNROLL
  for (int i = 0; i < 2; ++i) {
    const uint32_t count = i == 0 ? static_cast<uint32_t>(counts) & 0xffffu : static_cast<uint32_t>(counts) >> 16;
    ASSAY_UNROLL
    for (uint32_t j = 0; j < 2; ++j) {
      there[i][j] = 2 * eighth + j < count;
      id[i][j] = there[i][j] ? room.ids[i][2 * eighth + j] : 0;
    }
  }
  ASSAY_UNROLL
  for (int i = 0; i < 2; ++i) {
    ASSAY_UNROLL
    for (int j = 0; j < 2; ++j)
      bits[i][j] = there[i][j] ? logits[i][id[i][j]].bits : 0u;
  }
  ASSAY_UNROLL
  for (int i = 0; i < 2; ++i) {
    own[i] = 2 * pair_of_low(bits[i][0], bits[i][1]) - pair_apart;
    room.keys[i][eighth] = own[i];
  }
  const pair_factors factors = pair_factors_of(eighth);
  __syncwarp(); /* the candidates are written */
  ASSAY_UNROLL
  for (int i = 0; i < 2; ++i) {
    const uint32_t choice[2] = {pair_of_low(id[i][0], bits[i][0]), pair_of_low(id[i][1], bits[i][1])};
    pair_rank(factors, room.keys[i], own[i], choice, there[i], room.chosen[i]);
  }
  __syncwarp(); /* the choice is written */
  /* Four lanes have a row, and two of its choices each. */
  const uint32_t *const chosen = room.chosen[eighth / 4], at = eighth % 4 * 2;
  const uint32_t taken[2] = {chosen[at], chosen[at + 1]};
  const float largest = float_of(chosen[0] & 0xffff0000u);
  float weight[2];
  ASSAY_UNROLL
  for (int j = 0; j < 2; ++j)
    weight[j] = expf(float_of(taken[j] & 0xffff0000u) - largest);
  const float sum = octet_sum<4>(weight[0] + weight[1]);
  const float part = reciprocal_approx(fmaxf(sum, r.floor)); /* the sum is 1 at least */
  const uint32_t row_of_four = row + eighth / 4;
  if (row_of_four >= p.rows) return;
  const uint64_t to = static_cast<uint64_t>(row_of_four) * 8 + at;
  store_two(r.ids + to, taken[0] & 0xffffu, taken[1] & 0xffffu);
  store_two(r.weights + to, bits_of(weight[0] * part * r.route_scale), bits_of(weight[1] * part * r.route_scale));
}

assay_status read_octets(const assay_call *call, octet_params *p, assay_error *error) {
  *p = octet_params();
  router_params &r = p->r;
  ASSAY_TRY(read_router(call, &r, error));
  const int64_t width = 16 / assay_dtype_size(r.type);
  if (r.x_row >= 1 << 28)
    return assay_fail(error, ASSAY_ERR_UNSUPPORTED, "x: found %lld elements from row to row, taken here: below 2^28",
                      static_cast<long long>(r.x_row));
  if (r.E != 64 && r.E != 128 && r.E != 256)
    return assay_fail(error, ASSAY_ERR_UNSUPPORTED, "E: found %d, taken here: 64, 128, 256", r.E);
  if (r.k > octet_most)
    return assay_fail(error, ASSAY_ERR_UNSUPPORTED, "k: found %d, taken here: up to %d", r.k, octet_most);
  if (reinterpret_cast<uintptr_t>(r.x) % 16 != 0 || r.x_row % width != 0)
    return assay_fail(error, ASSAY_ERR_UNSUPPORTED,
                      "x: found a base or a distance of rows that is no multiple of 16 bytes, taken here: multiples");
  if (reinterpret_cast<uintptr_t>(r.bias) % 16 != 0)
    return assay_fail(error, ASSAY_ERR_UNSUPPORTED,
                      "bias: found a base that is no multiple of 16 bytes, taken here: multiples");
  if (r.groups != 1 && r.groups != 8)
    return assay_fail(error, ASSAY_ERR_UNSUPPORTED, "groups: found %d, taken here: 1, 8", r.groups);
  const bool by_score = !r.on_logits && (r.bias != NULL || r.groups > 1);
  if (by_score && r.score != score_sigmoid)
    return assay_fail(error, ASSAY_ERR_UNSUPPORTED, "score: found one that b needs, taken here: sigmoid");
  const bool over_chosen = r.on_logits && r.score == score_softmax && r.renormalise;
  /* The largest score of a row is chosen, and is 1 / 256 at least: more than the floor. */
  const bool quotient = !r.on_logits && r.renormalise && r.floor < 0x1p-11f;
  p->rows = static_cast<uint32_t>(r.T);
  p->row_bytes = static_cast<uint32_t>(r.x_row * static_cast<int64_t>(assay_dtype_size(r.type)));
  p->most = r.score == score_sigmoid ? INFINITY : octet_largest;
  p->least = r.on_logits || r.score == score_softmax ? -INFINITY
             : r.score == score_sigmoid              ? least_exponent
                                                     : 2.0f * least_exponent;
  p->total = r.score == score_softmax && !over_chosen && !quotient;
  return ASSAY_OK;
}

template <class T, int U> assay_status launch_eighth(const octet_params &p, assay_env *env, assay_error *error) {
  const router_params &r = p.r;
  if constexpr (std::is_same<T, bf16>::value)
    if (takes_pairs(p, env->multiprocessors))
      return ASSAY_LAUNCH_WITH(error, router_pairs<U>, (r.T + pair_rows - 1) / pair_rows, 32 * octet_warps, 0,
                               in_turn(), env->stream, p);
  const bool by_score = !r.on_logits && (r.bias != NULL || r.groups > 1);
  const int64_t blocks = (r.T + octet_warps * octet_rows - 1) / (octet_warps * octet_rows);
  const int32_t threads = 32 * octet_warps;
  if (by_score && r.groups > 1)
    return ASSAY_LAUNCH_WITH(error, (router_octets<T, U, true, true>), blocks, threads, 0, in_turn(), env->stream, p);
  if (by_score)
    return ASSAY_LAUNCH_WITH(error, (router_octets<T, U, true, false>), blocks, threads, 0, in_turn(), env->stream, p);
  if (r.groups > 1)
    return ASSAY_LAUNCH_WITH(error, (router_octets<T, U, false, true>), blocks, threads, 0, in_turn(), env->stream, p);
  return ASSAY_LAUNCH_WITH(error, (router_octets<T, U, false, false>), blocks, threads, 0, in_turn(), env->stream, p);
}

assay_status launch_octets(const assay_call *call, assay_env *env, assay_error *error) {
  octet_params p;
  ASSAY_TRY(read_octets(call, &p, error));
  (void)snprintf(env->path, sizeof env->path, "octets experts=%d groups=%d%s", p.r.E / 8, p.r.groups,
                 takes_pairs(p, env->multiprocessors) ? " pairs" : "");
  if (p.r.T == 0) return ASSAY_OK;
  return with_type(p.r.type, [&](auto type) {
    using T = typename decltype(type)::type;
    if (p.r.E == 64) return launch_eighth<T, 8>(p, env, error);
    if (p.r.E == 128) return launch_eighth<T, 16>(p, env, error);
    return launch_eighth<T, 32>(p, env, error);
  });
}

} // namespace
} // namespace ASSAY_NS

#define OCTETS                                                                                                         \
  PLAIN_VARIANT("moe_router", "octets", "eight lanes per token, candidates above a bound",                             \
                PLAIN_TYPE_CLAIMS "|softmax,sigmoid,sqrt_softplus", router_contract, octet_params, read_octets,        \
                launch_octets)

ASSAY_VARIANTS(moe_router_octets, OCTETS)
