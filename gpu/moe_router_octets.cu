/* moe_router_octets.cu: the k best of 64, 128 or 256 experts, four rows per warp.
 *
 * Eight lanes have a row, and a lane has an eighth of its experts in registers. A shuffle then serves four rows at
 * once. docs/kernels/moe_router.md has the arithmetic. */
#include "gpu/lib/channels.cuh"
#include "gpu/lib/ptx_edge.cuh"
#include "gpu/lib/router.cuh"
#include "gpu/lib/vectors.cuh"
#include "gpu/lib/warp.cuh"

namespace ASSAY_NS {
namespace {

constexpr int octet_warps = 4, octet_rows = 4, octet_most = 8, octet_places = 32;
/* Floats from row to row of candidates, so that lanes of four rows read 16 bytes from different banks. */
constexpr int octet_pitch = octet_places + 4;

/* Blocks per multiprocessor that registers leave room for. With eight, 16,384 rows are one wave. */
template <int U, bool sigmoid> constexpr int octet_blocks = U == 32 && !sigmoid ? 5 : 8;

struct octet_params {
  router_params r;
  bool total; /* weights need the sum of a softmax */
};

constexpr float octet_largest = 3.402823466e38f;

/* Returns b of a logit, without its bias. Logits stand for their scores where those have the same order. +inf becomes
 * the largest number, so that differences tell the order. */
template <bool sigmoid> __device__ __forceinline__ float octet_b(float x, float least) {
  if (sigmoid) return reciprocal_approx(1.0f + exp2_approx(-log2_e * x));
  return fminf(fmaxf(x, least), octet_largest);
}

/* Puts the greater of two numbers into the first. */
__device__ __forceinline__ void in_order(float &a, float &b) {
  const float least = fminf(a, b);
  a = fmaxf(a, b);
  b = least;
}

/* Sorts what falls and then rises, or rises and then falls: the greatest first. */
template <int count> __device__ __forceinline__ void sort_bitonic(float *v) {
  ASSAY_UNROLL
  for (int step = count / 2; step > 0; step /= 2) {
    ASSAY_UNROLL
    for (int i = 0; i < count; ++i)
      if ((i & step) == 0) in_order(v[i], v[i + step]);
  }
}

/* Returns the k-th largest of the four numbers of all eight lanes, k up to 8. */
__device__ __forceinline__ float octet_bound(const float (&own)[4], int32_t k) {
  float v[8], other[8];
  ASSAY_UNROLL
  for (int i = 0; i < 4; ++i)
    v[i] = own[i];
  in_order(v[0], v[1]);
  in_order(v[2], v[3]);
  in_order(v[0], v[2]);
  in_order(v[1], v[3]);
  in_order(v[1], v[2]);
  ASSAY_UNROLL
  for (int i = 0; i < 4; ++i)
    v[7 - i] = __shfl_xor_sync(0xffffffffu, v[i], 1);
  sort_bitonic<8>(v);
  ASSAY_UNROLL
  for (int lanes = 2; lanes < 8; lanes *= 2) {
    ASSAY_UNROLL
    for (int i = 0; i < 8; ++i)
      other[i] = __shfl_xor_sync(0xffffffffu, v[7 - i], lanes);
    ASSAY_UNROLL
    for (int i = 0; i < 8; ++i)
      v[i] = fmaxf(v[i], other[i]);
    if (lanes == 2) sort_bitonic<8>(v);
  }
  if (k == 8) return fminf(fminf(fminf(v[0], v[1]), fminf(v[2], v[3])), fminf(fminf(v[4], v[5]), fminf(v[6], v[7])));
  sort_bitonic<8>(v);
  float bound = v[0];
  ASSAY_UNROLL
  for (int i = 1; i < 8; ++i)
    bound = i < k ? v[i] : bound;
  return bound;
}

/* Tells whether the lane's group stays. The lane's experts are its group. */
__device__ __forceinline__ bool octet_stays(const router_params &r, int32_t lane, float own) {
  int32_t before = 0;
  ASSAY_UNROLL
  for (int other = 0; other < 8; ++other) {
    const float value = __shfl_sync(0xffffffffu, own, lane / 8 * 8 + other);
    before += value > own || (value == own && other < lane % 8) ? 1 : 0;
  }
  return before < r.topk_groups;
}

/* Chooses in k rounds of the largest among eight lanes. `left` has a bit for each expert of the lane. */
template <int U>
__device__ __forceinline__ void octet_rounds(int32_t k, int32_t lane, uint32_t left, const float (&b)[U],
                                             int32_t *chosen) {
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
      chosen[j] = id;
    }
  }
}

/* Gives every candidate its rank, which is the number of those before it, and keeps those whose rank is below k. The
 * places of a row from its count on are -inf. */
__device__ __forceinline__ void octet_ranks(int32_t k, int32_t lane, int32_t count, int32_t most, const float *values,
                                            const int32_t *numbers, int32_t *chosen) {
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

/* router_octets: eight lanes per row, an eighth of its experts each.
 * Grid:   ceil(T / 16). Block: 128 threads.
 * Shared: 6.3 KB: candidates and choices of 16 rows, and the bias.
 * Align:  16 bytes: rows of logits, bias.
 * Arch:   any.
 * Limit:  bytes: E sizeof(T) + 8 k per token. */
template <class T, int U, bool sigmoid, bool grouped>
__global__ void __launch_bounds__(32 * octet_warps, (octet_blocks<U, sigmoid>)) router_octets(octet_params p) {
  constexpr int width = vector_width<T>, part = U / 4;
  constexpr int apart = U + 4; /* floats of bias per lane: eight lanes read 16 bytes from different banks */
  ASSAY_SHARED(float4, lists, octet_warps * octet_rows * octet_pitch / 4);
  ASSAY_SHARED(float4, biases, 2 * apart);
  ASSAY_SHARED(int32_t, numbers, octet_warps * octet_rows * octet_places);
  ASSAY_SHARED(int32_t, choices, octet_warps * octet_rows * octet_most);
  take_turn();
  const router_params &r = p.r;
  const int32_t lane = static_cast<int32_t>(threadIdx.x) % 32, warp = static_cast<int32_t>(threadIdx.x) / 32;
  const int32_t eighth = lane % 8, local = warp * octet_rows + lane / 8;
  const int64_t wanted = static_cast<int64_t>(blockIdx.x) * octet_warps * octet_rows + local;
  const int64_t row = min(wanted, r.T - 1);
  float *const list = reinterpret_cast<float *>(lists) + local * octet_pitch;
  float *const all_biases = reinterpret_cast<float *>(biases), *const bias = all_biases + eighth * apart;
  int32_t *const ids = numbers + local * octet_places;
  int32_t *const chosen = choices + local * octet_most;
  const T *const x = static_cast<const T *>(r.x) + row * r.x_row, *const own = x + eighth * U;
  float b[U];
  uint4 logits[U / width];
  ASSAY_UNROLL
  for (int i = 0; i < U / width; ++i)
    logits[i] = load_vector(own + i * width);
  if (r.bias != nullptr) { /* while the logits are on their way */
    ASSAY_ROLLED
    for (int32_t e = static_cast<int32_t>(threadIdx.x); e < 8 * U; e += 32 * octet_warps)
      all_biases[e / U * apart + e % U] = r.bias[e];
    __syncthreads();
  }
  ASSAY_UNROLL
  for (int at = 0; at < U; at += width) {
    float value[width];
    split_vector<T>(logits[at / width], value);
    ASSAY_UNROLL
    for (int i = 0; i < width; ++i)
      b[at + i] = value[i];
  }
  bool bad = r.valid != nullptr && r.valid[row] == 0;
  float largest = 0.0f, total = 1.0f;
  if (sigmoid || r.score == score_sigmoid) {
    ASSAY_UNROLL
    for (int i = 0; i < U; ++i)
      bad = bad || b[i] != b[i];
  } else {
    ASSAY_UNROLL
    for (int i = 0; i < U; ++i)
      bad = bad || !(b[i] <= octet_largest);
  }
  if (!sigmoid && r.score == score_softmax) { /* a softmax of scores needs the largest */
    largest = b[0];
    ASSAY_UNROLL
    for (int i = 1; i < U; ++i)
      largest = fmaxf(largest, b[i]);
    largest = groups_max<8>(largest);
    bad = bad || largest == -INFINITY;
    if (p.total) {
      total = 0.0f;
      ASSAY_UNROLL
      for (int i = 0; i < U; ++i)
        total += expf(b[i] - largest);
      total = groups_sum<8>(total);
    }
  }
  const float least = least_logit(r, largest);
  bad = (__ballot_sync(0xffffffffu, bad) >> (lane / 8 * 8) & 0xffu) != 0;
  float first[4], second = -INFINITY; /* the largest of each quarter, and the second of all */
  ASSAY_UNROLL
  for (int i = 0; i < U; i += 4) {
    quad<float> four = {{0.0f, 0.0f, 0.0f, 0.0f}}; /* adding 0 makes one zero of both */
    if (r.bias != nullptr) four = load_quad(bias + i, true);
    ASSAY_UNROLL
    for (int e = 0; e < 4; ++e)
      b[i + e] = octet_b<sigmoid>(b[i + e], least) + four.element[e];
  }
  ASSAY_UNROLL
  for (int q = 0; q < 4; ++q) {
    first[q] = b[part * q];
    ASSAY_UNROLL
    for (int i = 1; i < part; ++i) {
      const float value = b[part * q + i];
      if (grouped) second = fmaxf(second, fminf(first[q], value));
      first[q] = fmaxf(first[q], value);
    }
  }
  bool stays = true;
  if (grouped) {
    float most = fmaxf(first[0], first[1]), rest = fminf(first[0], first[1]);
    ASSAY_UNROLL
    for (int q = 2; q < 4; ++q) {
      rest = fmaxf(rest, fminf(most, first[q]));
      most = fmaxf(most, first[q]);
    }
    second = fmaxf(second, rest);
    stays = octet_stays(r, lane, r.bias != nullptr ? most + second : most);
    ASSAY_UNROLL
    for (int q = 0; q < 4; ++q)
      first[q] = stays ? first[q] : -INFINITY;
  }
  const float bound = octet_bound(first, r.k);
  uint32_t below = 0; /* a bit for each expert: the last one is bit 0 */
  ASSAY_UNROLL
  for (int i = 0; i < U; ++i)
    below = below << 1 | bits_of(b[i] - bound) >> 31;
  uint32_t above = stays ? ~below << (32 - U) : 0u; /* the first expert is bit 31 */
  const int32_t mine = __popc(above);
  int32_t place = mine;
  ASSAY_UNROLL
  for (int step = 1; step < 8; step *= 2) {
    const int32_t other = __shfl_up_sync(0xffffffffu, place, static_cast<unsigned>(step));
    if (eighth >= step) place += other;
  }
  const int32_t count = __shfl_sync(0xffffffffu, place, lane | 7);
  place -= mine;
  const bool many = !bad && (count > octet_places || bound == -INFINITY);
  if (__any_sync(0xffffffffu, many) != 0) {
    octet_rounds<U>(r.k, lane, !stays ? 0u : U == 32 ? 0xffffffffu : (1u << (U % 32)) - 1, b, chosen);
  } else {
    ASSAY_UNROLL
    for (int i = 0; i < octet_places; i += 8)
      if (eighth + i >= count) list[eighth + i] = -INFINITY;
    for (; above != 0 && !bad; ++place) {
      const int32_t i = __clz(static_cast<int>(above));
      above &= ~(0x80000000u >> i);
      float value = octet_b<sigmoid>(to_float(own[i]), least);
      if (r.bias != nullptr) value += r.bias[eighth * U + i];
      list[place] = value;
      ids[place] = eighth * U + i;
    }
    int32_t most = bad ? 0 : count;
    most = max(most, __shfl_xor_sync(0xffffffffu, most, 8));
    most = max(most, __shfl_xor_sync(0xffffffffu, most, 16));
    __syncwarp(); /* the candidates are written */
    octet_ranks(r.k, lane, bad ? 0 : count, most, list, ids, chosen);
  }
  __syncwarp(); /* the choice is written */
  const bool here = eighth < r.k && !bad;
  const int32_t id = here ? chosen[eighth] : -1;
  const float logit = here ? to_float(x[id]) : 0.0f;
  float weight = router_weight(r, 8, logit, here, largest, total);
  if (r.renormalise) {
    const float sum = groups_sum<8>(weight);
    if (here) weight = weight / fmaxf(sum, r.floor); /* a row without choice has weights 0, with floor 0 too */
  }
  if (wanted >= r.T || eighth >= r.k) return;
  r.ids[row * r.k + eighth] = id;
  r.weights[row * r.k + eighth] = weight * r.route_scale;
}

assay_status read_octets(const assay_call *call, octet_params *p, assay_error *error) {
  *p = octet_params();
  router_params &r = p->r;
  ASSAY_TRY(read_router(call, &r, error));
  const int64_t width = 16 / assay_dtype_size(r.type);
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
  p->total = r.score == score_softmax && !over_chosen && !quotient;
  return ASSAY_OK;
}

template <class T, int U> assay_status launch_eighth(const octet_params &p, assay_env *env, assay_error *error) {
  const router_params &r = p.r;
  const int64_t blocks = (r.T + octet_warps * octet_rows - 1) / (octet_warps * octet_rows);
  const int32_t threads = 32 * octet_warps;
  const bool by_score = !r.on_logits && (r.bias != NULL || r.groups > 1);
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
  (void)snprintf(env->path, sizeof env->path, "octets experts=%d groups=%d", p.r.E / 8, p.r.groups);
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
