/* moe_router.cu: the k best of E experts for every token, and their weights. The definition is in ref/moe_router.c's
 * head and in docs/definitions.md, section 10.
 *
 * lanes: a warp per token, its scores in registers. Only experts that can be chosen are compared with each other.
 * warp_rows: a warp per token, its scores in shared memory, k rounds of the warp's maximum.
 * docs/kernels/moe_router.md has the arithmetic. */
#include "gpu/lib/channels.cuh"
#include "gpu/lib/ptx_edge.cuh"
#include "gpu/lib/router.cuh"
#include "gpu/lib/vectors.cuh"
#include "gpu/lib/warp.cuh"

namespace ASSAY_NS {
namespace {

constexpr int router_warps = 4, router_most_groups = 64;

/* A candidate: its value and number. Higher values come first, then lower numbers. Number -1 stands for none. */
struct candidate {
  float value;
  int32_t id;
};

__device__ __forceinline__ candidate better(const candidate &a, const candidate &b) {
  if (a.id < 0) return b;
  if (b.id < 0) return a;
  if (a.value > b.value || (a.value == b.value && a.id < b.id)) return a;
  return b;
}

__device__ __forceinline__ candidate warp_best(candidate own) {
  ASSAY_UNROLL
  for (int step = 16; step > 0; step /= 2) {
    candidate other;
    other.value = __shfl_xor_sync(0xffffffffu, own.value, step);
    other.id = __shfl_xor_sync(0xffffffffu, own.id, step);
    own = better(own, other);
  }
  return own;
}

/* The facts that a warp finds out about its row. */
struct router_row {
  float largest, total;
  bool chooses;
};

/* Loads the logits into s, and finds the largest and whether the row chooses anybody. */
template <class T>
__device__ __forceinline__ router_row load_row(const router_params &p, int64_t row, int32_t lane, float *s) {
  const T *const x = static_cast<const T *>(p.x) + row * p.x_row;
  float largest = -INFINITY;
  bool bad = p.valid != nullptr && p.valid[row] == 0;
  for (int32_t e = lane; e < p.E; e += 32) {
    const float value = to_float(x[e]);
    s[e] = value;
    bad = bad || !(value <= 3.402823466e38f || (p.score == score_sigmoid && value > 0.0f));
    largest = fmaxf(largest, value);
  }
  largest = warp_max(largest);
  bad = bad || (p.score == score_softmax && largest == -INFINITY);
  return {largest, 0.0f, __any_sync(0xffffffffu, bad) == 0};
}

/* Turns logits into scores in place, and writes b. */
__device__ __forceinline__ void score_row(const router_params &p, router_row *row, int32_t lane, float *s, float *b) {
  float sum = 0.0f;
  for (int32_t e = lane; e < p.E && p.score == score_softmax; e += 32)
    sum += expf(s[e] - row->largest);
  row->total = warp_sum(sum);
  for (int32_t e = lane; e < p.E; e += 32) {
    const float x = s[e];
    if (p.score == score_softmax) s[e] = expf(x - row->largest) / row->total;
    if (p.score == score_sigmoid) s[e] = 1.0f / (1.0f + expf(-x));
    if (p.score == score_sqrt_softplus) s[e] = sqrt_softplus(x);
    b[e] = (p.on_logits ? x : s[e]) + (p.bias != nullptr ? p.bias[e] : 0.0f);
  }
}

/* Marks b of every group that does not stay: NaN, which no legal b is. Lane g holds group g and group g + 32. */
__device__ __forceinline__ void drop_groups(const router_params &p, int32_t lane, float *b) {
  const int32_t size = p.E / p.groups;
  float own[router_most_groups / 32];
  for (int32_t part = 0; part < router_most_groups / 32; ++part) {
    const int32_t group = lane + 32 * part;
    float first = -INFINITY, second = -INFINITY;
    for (int32_t i = 0; i < size && group < p.groups; ++i) {
      const float value = b[group * size + i];
      if (value > first) {
        second = first;
        first = value;
      } else if (value > second) {
        second = value;
      }
    }
    own[part] = p.bias != nullptr && size > 1 ? first + second : first;
  }
  int32_t before[router_most_groups / 32] = {};
  for (int32_t other = 0; other < p.groups; ++other) {
    const float value = __shfl_sync(0xffffffffu, other < 32 ? own[0] : own[1], other % 32);
    for (int32_t part = 0; part < router_most_groups / 32; ++part)
      before[part] += value > own[part] || (value == own[part] && other < lane + 32 * part) ? 1 : 0;
  }
  for (int32_t part = 0; part < router_most_groups / 32; ++part) {
    const int32_t group = lane + 32 * part;
    for (int32_t i = 0; i < size && group < p.groups && before[part] >= p.topk_groups; ++i)
      b[group * size + i] = NAN;
  }
}

/* Chooses k experts. Lane j keeps the j-th. */
__device__ __forceinline__ candidate choose(const router_params &p, int32_t lane, float *b) {
  candidate mine = {0.0f, -1};
  for (int32_t j = 0; j < p.k; ++j) {
    candidate best = {0.0f, -1};
    for (int32_t e = lane; e < p.E; e += 32)
      if (b[e] == b[e]) best = better(best, {b[e], e});
    best = warp_best(best);
    if (lane == j) mine = best;
    if (best.id >= 0 && best.id % 32 == lane) b[best.id] = NAN; /* only this lane reads it again */
  }
  return mine;
}

/* router_rows: a warp per token.
 * Grid:   ceil(T / 4). Block: 128 threads.
 * Shared: 32 E bytes: scores and b of four rows.
 * Align:  by element.
 * Arch:   any.
 * Limit:  bytes: E sizeof(T) + 8 k per token. */
template <class T> __global__ void __launch_bounds__(32 * router_warps) router_rows(router_params p) {
  ASSAY_DYNAMIC_SHARED(float, scratch);
  const int32_t lane = static_cast<int32_t>(threadIdx.x) % 32, warp = static_cast<int32_t>(threadIdx.x) / 32;
  const int64_t row = static_cast<int64_t>(blockIdx.x) * router_warps + warp;
  float *const s = scratch + 2 * warp * p.E, *const b = s + p.E;
  if (row >= p.T) return; /* whole warps leave, and no barrier of the block follows */
  router_row about = load_row<T>(p, row, lane, s);
  candidate mine = {0.0f, -1};
  float weight = 0.0f;
  if (about.chooses) { /* the same for all lanes */
    const bool over_chosen = p.on_logits && p.score == score_softmax && p.renormalise;
    score_row(p, &about, lane, s, b);
    __syncwarp(); /* every score is written */
    if (p.groups > 1) drop_groups(p, lane, b);
    __syncwarp(); /* every b is final */
    mine = choose(p, lane, b);
    const bool chosen = lane < p.k && mine.id >= 0;
    if (chosen) weight = s[mine.id];
    if (over_chosen) {
      const float x = chosen ? to_float(static_cast<const T *>(p.x)[row * p.x_row + mine.id]) : -INFINITY;
      const float largest = warp_max(x);
      weight = chosen ? expf(x - largest) : 0.0f;
    }
    const float sum = warp_sum(weight);
    if (p.renormalise) weight = weight / fmaxf(sum, p.floor);
    weight *= p.route_scale;
  }
  if (lane >= p.k) return;
  p.ids[row * p.k + lane] = mine.id;
  p.weights[row * p.k + lane] = weight;
}

assay_status launch(const assay_call *call, assay_env *env, assay_error *error) {
  router_params p;
  ASSAY_TRY(read_router(call, &p, error));
  (void)snprintf(env->path, sizeof env->path, "warp_rows groups=%d", p.groups > 1 ? 1 : 0);
  if (p.T == 0) return ASSAY_OK;
  const int32_t bytes = router_warps * 2 * p.E * static_cast<int32_t>(sizeof(float));
  return with_type(p.type, [&](auto type) {
    using T = typename decltype(type)::type;
    return ASSAY_LAUNCH(error, (router_rows<T>), (p.T + router_warps - 1) / router_warps, 32 * router_warps, bytes,
                        env->stream, p);
  });
}

/* ---- lanes ------------------------------------------------------------------------------------------- */

constexpr int lanes_rows = 4;           /* most rows per warp */
constexpr int32_t key_none = INT32_MIN; /* below the key of every number */

struct lanes_params {
  router_params r;
  int32_t rows;       /* per warp: 1, 2 or 4 */
  int32_t width;      /* places per row where weights are made: a power of two, k at least */
  int32_t group_size; /* lanes per group, a power of two; 0: one group */
  bool by_score;      /* b needs the scores; without, logits have the same order */
  bool total;         /* weights need the sum of a softmax */
};

/* Elements per load: 16 bytes, or a lane's four. */
template <class T, int V> constexpr int lanes_unit = V < vector_width<T> ? V : vector_width<T>;

/* Loads a lane's V logits, from `first` on; those from E on are -inf. */
template <class T, int V>
__device__ __forceinline__ void load_logits(const T *x, int32_t first, int32_t E, float (&to)[V]) {
  constexpr int unit = lanes_unit<T, V>;
  ASSAY_UNROLL
  for (int at = 0; at < V; at += unit) {
    float value[unit];
    ASSAY_UNROLL
    for (int i = 0; i < unit; ++i)
      value[i] = -INFINITY;
    if constexpr (unit == vector_width<T>) {
      if (first + at < E) split_vector<T>(load_vector(x + first + at), value);
    } else {
      if (first + at < E) load_channels(x, first + at, E, true, value);
    }
    ASSAY_UNROLL
    for (int i = 0; i < unit; ++i)
      to[at + i] = value[i];
  }
}

/* Makes b of logits. A sigmoid or softmax is good to a few ulp here: it only ranks. Weights are made again of the
 * logits. */
template <int V>
__device__ __forceinline__ void make_b(const lanes_params &p, const router_row &row, int32_t first, float (&b)[V]) {
  const router_params &r = p.r;
  if (p.by_score && r.score == score_sigmoid) {
    ASSAY_UNROLL
    for (int i = 0; i < V; ++i)
      b[i] = reciprocal_approx(1.0f + exp2_approx(-log2_e * b[i]));
  } else if (p.by_score && r.score == score_softmax) {
    const float factor = reciprocal_approx(row.total);
    ASSAY_UNROLL
    for (int i = 0; i < V; ++i)
      b[i] = factor * exp2_approx(log2_e * (b[i] - row.largest));
  } else if (p.by_score) {
    if constexpr (V < 32) { /* with 32 the compiler runs out of registers */
      ASSAY_UNROLL
      for (int i = 0; i < V; ++i)
        b[i] = sqrt_softplus(b[i]);
    }
  } else if (!r.on_logits) {
    const float least = least_logit(r, row.largest);
    ASSAY_UNROLL
    for (int i = 0; i < V; ++i)
      b[i] = fmaxf(b[i], least);
  }
  if (r.bias == nullptr) return;
  ASSAY_UNROLL
  for (int at = 0; at < V; at += 4) {
    if (first + at >= r.E) continue;
    float bias[4];
    load_channels(r.bias, first + at, r.E, true, bias);
    ASSAY_UNROLL
    for (int i = 0; i < 4; ++i)
      b[at + i] += bias[i];
  }
}

/* Returns whether the lane's group stays. */
template <int V>
__device__ __forceinline__ bool group_stays(const lanes_params &p, int32_t lane, const int32_t (&key)[V]) {
  int32_t first = key_none, second = key_none;
  ASSAY_UNROLL
  for (int i = 0; i < V; ++i) {
    second = max(second, min(first, key[i]));
    first = max(first, key[i]);
  }
  for (int32_t step = 1; step < p.group_size; step *= 2) {
    const int32_t other = __shfl_xor_sync(0xffffffffu, first, step);
    const int32_t other_second = __shfl_xor_sync(0xffffffffu, second, step);
    second = max(max(second, other_second), min(first, other));
    first = max(first, other);
  }
  const float own = p.r.bias != nullptr && p.r.E > p.r.groups ? value_of(first) + value_of(second) : value_of(first);
  const int32_t group = lane / p.group_size;
  int32_t before = 0;
  for (int32_t other = 0; other < p.r.groups; ++other) {
    const float value = __shfl_sync(0xffffffffu, own, other * p.group_size);
    before += value > own || (value == own && other < group) ? 1 : 0;
  }
  return group < p.r.groups && before < p.r.topk_groups;
}

/* Chooses in k rounds of the warp's maximum. `most` is the lane's largest key. */
template <int V>
__device__ __forceinline__ void choose_in_rounds(int32_t k, int32_t lane, int32_t first, int32_t most,
                                                 int32_t (&key)[V], int32_t *chosen) {
  for (int32_t j = 0; j < k; ++j) {
    const int32_t best = __reduce_max_sync(0xffffffffu, most);
    const unsigned with = __ballot_sync(0xffffffffu, most == best);
    if (lane != __ffs(static_cast<int>(with)) - 1) continue; /* the lowest lane has the lowest id */
    bool found = false;
    most = key_none;
    ASSAY_UNROLL
    for (int i = 0; i < V; ++i) {
      const bool hit = !found && key[i] == best;
      if (hit) chosen[j] = first + i;
      if (hit) key[i] = key_none;
      found = found || hit;
      most = max(most, key[i]);
    }
  }
}

/* Chooses k experts by their keys. The k-th largest of the lanes' largest keys is a bound that k experts reach. Experts
 * at the bound or above are the candidates. They lie in ascending order of their ids, one per lane. The rank of a
 * candidate is the number of those before it. If there are more candidates than lanes, the choice is made in rounds. */
template <int V>
__device__ __forceinline__ void choose_keys(int32_t k, int32_t lane, int32_t first, bool stays, int32_t (&key)[V],
                                            int2 *candidates, int32_t *chosen) {
  int32_t most = key_none;
  ASSAY_UNROLL
  for (int i = 0; i < V; ++i)
    most = max(most, key[i]);
  if (!stays) most = key_none;
  int32_t left = most, bound = key_none;
  for (int32_t j = 0; j < k; ++j) {
    bound = __reduce_max_sync(0xffffffffu, left);
    if (left == bound) left = key_none;
  }
  bound = stays ? max(bound, key_none + 1) : INT32_MAX;
  int32_t own = 0;
  ASSAY_UNROLL
  for (int i = 0; i < V; ++i)
    own += key[i] >= bound ? 1 : 0;
  int32_t place = own;
  ASSAY_UNROLL
  for (int step = 1; step < 32; step *= 2) {
    const int32_t other = __shfl_up_sync(0xffffffffu, place, static_cast<unsigned>(step));
    if (lane >= step) place += other;
  }
  const int32_t count = __shfl_sync(0xffffffffu, place, 31);
  if (count > 32) {
    choose_in_rounds(k, lane, first, most, key, chosen);
    return;
  }
  place -= own;
  ASSAY_UNROLL
  for (int i = 0; i < V; ++i)
    if (key[i] >= bound) candidates[place++] = make_int2(key[i], first + i);
  __syncwarp(); /* the candidates are written */
  const int2 mine = candidates[lane < count ? lane : 0];
  int32_t rank = 0;
  for (int32_t j = 0; j < count; ++j) {
    const int32_t other = __shfl_sync(0xffffffffu, mine.x, j);
    rank += other > mine.x || (other == mine.x && j < lane) ? 1 : 0;
  }
  if (lane < count && rank < k) chosen[rank] = mine.y;
}

/* Chooses the experts of a row. Returns what its weights need. */
template <class T, int V>
__device__ __forceinline__ router_row choose_row(const lanes_params &p, int64_t row, int32_t lane, int2 *candidates,
                                                 int32_t *chosen) {
  const router_params &r = p.r;
  const int32_t first = V * lane;
  float b[V];
  int32_t key[V];
  load_logits<T, V>(static_cast<const T *>(r.x) + row * r.x_row, first, r.E, b);
  router_row about = {0.0f, 1.0f, true};
  bool bad = r.valid != nullptr && r.valid[row] == 0;
  if (r.score == score_sigmoid) {
    ASSAY_UNROLL
    for (int i = 0; i < V; ++i)
      bad = bad || b[i] != b[i];
  } else {
    ASSAY_UNROLL
    for (int i = 0; i < V; ++i)
      bad = bad || !(b[i] <= 3.402823466e38f);
  }
  if (r.score == score_softmax) {
    float largest = b[0];
    ASSAY_UNROLL
    for (int i = 1; i < V; ++i)
      largest = fmaxf(largest, b[i]);
    about.largest = value_of(__reduce_max_sync(0xffffffffu, key_of(largest)));
    bad = bad || about.largest == -INFINITY;
  }
  about.chooses = __any_sync(0xffffffffu, bad) == 0;
  if (!about.chooses) { /* the same for all lanes */
    if (lane < r.k) chosen[lane] = -1;
    return about;
  }
  if (p.total) {
    float sum = 0.0f;
    ASSAY_UNROLL
    for (int i = 0; i < V; ++i)
      sum += expf(b[i] - about.largest);
    about.total = warp_sum(sum);
  }
  make_b<V>(p, about, first, b);
  ASSAY_UNROLL
  for (int i = 0; i < V; ++i)
    key[i] = first + i / lanes_unit<T, V> * lanes_unit<T, V> < r.E ? key_of(b[i]) : key_none;
  const bool stays = p.group_size == 0 || group_stays<V>(p, lane, key);
  choose_keys<V>(r.k, lane, first, stays, key, candidates, chosen);
  return about;
}

/* router_lanes: a warp per row at a time, V neighbouring experts per lane. Weights of several rows are made at once.
 * Grid:   ceil(T / (4 rows)). Block: 128 threads.
 * Shared: 3.1 KB: candidates, choices and the sums of the rows of four warps.
 * Align:  logits by 16 bytes, or by four elements where a lane has no more; bias by 16 bytes.
 * Arch:   any.
 * Limit:  bytes: E sizeof(T) + 8 k per token. */
template <class T, int V> __global__ void __launch_bounds__(32 * router_warps) router_lanes(lanes_params p) {
  ASSAY_SHARED(int2, candidates, router_warps * 32);
  ASSAY_SHARED(int32_t, chosen, router_warps * lanes_rows * 32);
  ASSAY_SHARED(float2, sums, router_warps * lanes_rows);
  take_turn();
  const router_params &r = p.r;
  const int32_t lane = static_cast<int32_t>(threadIdx.x) % 32, warp = static_cast<int32_t>(threadIdx.x) / 32;
  const int64_t first = (static_cast<int64_t>(blockIdx.x) * router_warps + warp) * p.rows;
  int32_t *const ids = chosen + warp * lanes_rows * 32;
  float2 *const facts = sums + warp * lanes_rows;
  ASSAY_ROLLED
  for (int32_t i = 0; i < p.rows && first + i < r.T; ++i) {
    const router_row about = choose_row<T, V>(p, first + i, lane, candidates + warp * 32, ids + 32 * i);
    if (lane == 0) facts[i] = make_float2(about.largest, about.total);
    __syncwarp(); /* the choice is written, and the candidates have been read */
  }
  for (int32_t begin = 0; begin < p.rows * p.width; begin += 32) { /* width divides 32: a row is in one pass */
    const int32_t i = (begin + lane) / p.width, j = (begin + lane) % p.width;
    const int64_t row = first + i;
    const bool here = i < p.rows && j < r.k && row < r.T;
    const int32_t id = here ? ids[32 * i + j] : -1;
    const float x = id >= 0 ? to_float(static_cast<const T *>(r.x)[row * r.x_row + id]) : 0.0f;
    float weight = router_weight(r, p.width, x, id >= 0, here ? facts[i].x : 0.0f, here ? facts[i].y : 1.0f);
    if (r.renormalise) {
      float sum = weight;
      for (int32_t step = p.width / 2; step > 0; step /= 2)
        sum += __shfl_xor_sync(0xffffffffu, sum, step);
      if (id >= 0) weight = weight / fmaxf(sum, r.floor); /* a row without choice has weights 0, with floor 0 too */
    }
    if (!here) continue;
    r.ids[row * r.k + j] = id;
    r.weights[row * r.k + j] = weight * r.route_scale;
  }
}

int32_t lanes_per_thread(int32_t E) {
  return E <= 128 ? 4 : E <= 256 ? 8 : E <= 512 ? 16 : 32;
}

assay_status read_lanes(const assay_call *call, lanes_params *p, assay_error *error) {
  *p = lanes_params();
  router_params &r = p->r;
  ASSAY_TRY(read_router(call, &r, error));
  const int64_t size = assay_dtype_size(r.type);
  const int32_t V = lanes_per_thread(r.E), unit = V * size < 16 ? V : static_cast<int32_t>(16 / size);
  if (r.E % unit != 0)
    return assay_fail(error, ASSAY_ERR_UNSUPPORTED, "E: found %d, taken here: multiples of %d", r.E, unit);
  if (reinterpret_cast<uintptr_t>(r.x) % static_cast<uintptr_t>(unit * size) != 0 || r.x_row % unit != 0)
    return assay_fail(error, ASSAY_ERR_UNSUPPORTED,
                      "x: found a base or a distance of rows that is no multiple of %d elements, taken here: multiples",
                      unit);
  if (reinterpret_cast<uintptr_t>(r.bias) % 16 != 0)
    return assay_fail(error, ASSAY_ERR_UNSUPPORTED,
                      "bias: found a base that is no multiple of 16 bytes, taken here: multiples");
  const int32_t lanes = r.E / r.groups / V;
  if (r.groups > 1 && (r.E / r.groups % V != 0 || (lanes & (lanes - 1)) != 0))
    return assay_fail(error, ASSAY_ERR_UNSUPPORTED,
                      "groups: found %d of %d experts, taken here: %d times a power of two", r.groups, r.E / r.groups,
                      V);
  p->group_size = r.groups > 1 ? lanes : 0;
  p->rows = r.T >= 16384 ? 4 : r.T >= 8192 ? 2 : 1;
  for (p->width = 1; p->width < r.k;)
    p->width *= 2;
  const bool over_chosen = r.on_logits && r.score == score_softmax && r.renormalise;
  p->by_score = !r.on_logits && (r.bias != NULL || r.groups > 1);
  /* The largest score of a row is chosen, and is 1 / 1024 at least: more than the floor. */
  const bool quotient = !p->by_score && !r.on_logits && r.renormalise && r.floor < 0x1p-11f;
  if (p->by_score && r.score == score_sqrt_softplus && V == 32)
    return assay_fail(error, ASSAY_ERR_UNSUPPORTED, "E: found %d, taken here with sqrt_softplus: up to 512", r.E);
  p->total = r.score == score_softmax && !over_chosen && !quotient;
  return ASSAY_OK;
}

template <class T> assay_status launch_width(const lanes_params &p, assay_env *env, assay_error *error) {
  const int64_t warps = (p.r.T + p.rows - 1) / p.rows, blocks = (warps + router_warps - 1) / router_warps;
  const int32_t V = lanes_per_thread(p.r.E), threads = 32 * router_warps;
  if (V == 4) return ASSAY_LAUNCH_WITH(error, (router_lanes<T, 4>), blocks, threads, 0, in_turn(), env->stream, p);
  if (V == 8) return ASSAY_LAUNCH_WITH(error, (router_lanes<T, 8>), blocks, threads, 0, in_turn(), env->stream, p);
  if (V == 16) return ASSAY_LAUNCH_WITH(error, (router_lanes<T, 16>), blocks, threads, 0, in_turn(), env->stream, p);
  return ASSAY_LAUNCH_WITH(error, (router_lanes<T, 32>), blocks, threads, 0, in_turn(), env->stream, p);
}

assay_status launch_lanes(const assay_call *call, assay_env *env, assay_error *error) {
  lanes_params p;
  ASSAY_TRY(read_lanes(call, &p, error));
  (void)snprintf(env->path, sizeof env->path, "lanes experts=%d rows=%d", lanes_per_thread(p.r.E), p.rows);
  if (p.r.T == 0) return ASSAY_OK;
  return with_type(p.r.type, [&](auto type) { return launch_width<typename decltype(type)::type>(p, env, error); });
}

} // namespace
} // namespace ASSAY_NS

#define WARP_ROWS                                                                                                      \
  PLAIN_VARIANT("moe_router", "warp_rows", "a warp per token, k rounds of its maximum",                                \
                PLAIN_TYPE_CLAIMS "|softmax,sigmoid,sqrt_softplus", router_contract, router_params, read_router,       \
                launch)

#define LANES                                                                                                          \
  PLAIN_VARIANT("moe_router", "lanes", "a warp per token in registers, candidates above a bound",                      \
                PLAIN_TYPE_CLAIMS "|softmax,sigmoid,sqrt_softplus", router_contract, lanes_params, read_lanes,         \
                launch_lanes)

ASSAY_VARIANTS(moe_router, LANES, WARP_ROWS)
