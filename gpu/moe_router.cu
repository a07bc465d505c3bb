/* moe_router.cu: the k best of E experts for every token, and their weights. The definition is in ref/moe_router.c's
 * head and in docs/definitions.md, section 10.
 *
 * warp_rows: a warp per token, its scores in shared memory, k rounds of the warp's maximum.
 * docs/kernels/moe_router.md has the arithmetic. */
#include "gpu/lib/channels.cuh"
#include "gpu/lib/plain.h"
#include "gpu/lib/warp.cuh"

namespace ASSAY_NS {
namespace {

constexpr int router_warps = 4, router_most_groups = 64;

enum router_score { score_softmax, score_sigmoid, score_sqrt_softplus };

struct router_params {
  const void *x;
  const float *bias;    /* NULL: none */
  const int32_t *valid; /* NULL: all */
  int32_t *ids;
  float *weights;
  int64_t x_row, T;
  int32_t E, k, groups, topk_groups, score;
  bool on_logits, renormalise;
  float floor, route_scale;
  assay_dtype type;
};

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

/* Returns ln(1 + e^x) without overflow, and without losing what is small beside 1. */
__device__ __forceinline__ float softplus(float x) {
  return fmaxf(x, 0.0f) + log1pf(expf(-fabsf(x)));
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
    if (p.score == score_sqrt_softplus) s[e] = sqrtf(softplus(x));
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

assay_status read_call(const assay_call *call, router_params *p, assay_error *error) {
  plain_call c;
  *p = router_params();
  ASSAY_TRY(plain_read(call, &c, error));
  ASSAY_TRY(expect_type("x", c.type("x"), error));
  p->x = c.data<const void>("x");
  p->bias = c.data<const float>("bias");
  p->valid = c.data<const int32_t>("valid");
  p->ids = c.data<int32_t>("ids");
  p->weights = c.data<float>("weights");
  p->x_row = c.row("x");
  p->T = c.dim("T");
  p->E = c.dim32("E");
  p->k = c.dim32("k");
  p->groups = static_cast<int32_t>(c.integer("groups"));
  p->topk_groups = static_cast<int32_t>(c.integer("topk_groups"));
  p->score = static_cast<int32_t>(c.integer("score"));
  p->on_logits = c.flag("select_on");
  p->renormalise = c.flag("renormalise");
  p->floor = c.real("floor");
  p->route_scale = c.real("route_scale");
  p->type = c.type("x");
  if (p->k > p->E) return assay_fail(error, ASSAY_ERR_INPUT, "k: found %d, allowed up to E = %d", p->k, p->E);
  if (p->E % p->groups != 0)
    return assay_fail(error, ASSAY_ERR_INPUT, "groups: found %d, allowed a divisor of E = %d", p->groups, p->E);
  if (p->topk_groups > p->groups || p->topk_groups * (p->E / p->groups) < p->k)
    return assay_fail(error, ASSAY_ERR_INPUT, "topk_groups: found %d, allowed up to groups, with k experts in them",
                      p->topk_groups);
  if (p->groups > 1 && p->bias != NULL && p->E / p->groups < 2)
    return assay_fail(error, ASSAY_ERR_INPUT, "groups: found one expert a group, allowed two with bias");
  return ASSAY_OK;
}

assay_status launch(const assay_call *call, assay_env *env, assay_error *error) {
  router_params p;
  ASSAY_TRY(read_call(call, &p, error));
  (void)snprintf(env->path, sizeof env->path, "warp_rows groups=%d", p.groups > 1 ? 1 : 0);
  if (p.T == 0) return ASSAY_OK;
  const int32_t bytes = router_warps * 2 * p.E * static_cast<int32_t>(sizeof(float));
  return with_type(p.type, [&](auto type) {
    using T = typename decltype(type)::type;
    return ASSAY_LAUNCH(error, (router_rows<T>), (p.T + router_warps - 1) / router_warps, 32 * router_warps, bytes,
                        env->stream, p);
  });
}

/* expf and log1pf are within 2 ulp; a score has two functions and a quotient or root. */
constexpr assay_contract contract = {.exp_ulp = 2.0,
                                     .qk_lanes = 1,
                                     .pv_lanes = 1,
                                     .run_to_run = true,
                                     .renumbering = true,
                                     .permutation = true,
                                     .lanes = 32,
                                     .alone = true};

} // namespace
} // namespace ASSAY_NS

#define WARP_ROWS                                                                                                      \
  PLAIN_VARIANT("moe_router", "warp_rows", "a warp per token, k rounds of its maximum",                                \
                PLAIN_TYPE_CLAIMS "|softmax,sigmoid,sqrt_softplus", contract, router_params, read_call, launch)

ASSAY_VARIANTS(moe_router, WARP_ROWS)
