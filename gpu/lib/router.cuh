/* router.cuh: the call of moe_router as its kernels read it, and arithmetic that they share. */
#ifndef ASSAY_GPU_ROUTER_CUH
#define ASSAY_GPU_ROUTER_CUH

#include "gpu/lib/plain.h"
#include "gpu/lib/vec.cuh"

namespace ASSAY_NS {

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

constexpr float log2_e = 1.44269504f, least_exponent = -103.972084f; /* ln 2^-150: scores below are 0 */

/* Returns sqrt(ln(1 + e^x)) without overflow, and without losing what is small beside 1. Far below 0 it is e^(x / 2),
 * which has all its bits where e^x has few or none. */
__device__ __forceinline__ float sqrt_softplus(float x) {
  if (x < -40.0f) return expf(0.5f * x);
  return sqrtf(fmaxf(x, 0.0f) + log1pf(expf(-fabsf(x))));
}

/* Returns a number that is greater where `value` is, and the same for both zeros. */
__device__ __forceinline__ int32_t key_of(float value) {
  const int32_t bits = __float_as_int(value + 0.0f);
  return bits ^ ((bits >> 31) & 0x7fffffff);
}

__device__ __forceinline__ float value_of(int32_t key) {
  return __int_as_float(key ^ ((key >> 31) & 0x7fffffff));
}

/* Returns the least logit that can be told from others by its score: scores of lower ones are 0. For a softmax it is
 * below the largest one, also where f32 rounds the sum to that. */
__device__ __forceinline__ float least_logit(const router_params &r, float largest) {
  if (r.on_logits) return -INFINITY;
  if (r.score == score_softmax) return fminf(largest + least_exponent, value_of(key_of(largest) - 1));
  return r.score == score_sigmoid ? least_exponent : 2.0f * least_exponent;
}

/* Returns the score of a chosen logit, or its part of the softmax over the chosen ones. Those of a row are in `width`
 * neighbouring lanes. */
__device__ __forceinline__ float router_weight(const router_params &r, int32_t width, float x, bool chosen,
                                               float largest, float total) {
  if (r.on_logits && r.score == score_softmax && r.renormalise) {
    largest = chosen ? x : -INFINITY;
    for (int32_t step = width / 2; step > 0; step /= 2)
      largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, step));
  }
  if (!chosen) return 0.0f;
  if (r.score == score_softmax) return expf(x - largest) / total;
  if (r.score == score_sigmoid) return 1.0f / (1.0f + expf(-x));
  return sqrt_softplus(x);
}

inline assay_status read_router(const assay_call *call, router_params *p, assay_error *error) {
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

/* expf and log1pf are within 2 ulp; a score has two functions and a quotient or root. */
constexpr assay_contract router_contract = {.exp_ulp = 2.0,
                                            .qk_lanes = 1,
                                            .pv_lanes = 1,
                                            .run_to_run = true,
                                            .renumbering = true,
                                            .permutation = true,
                                            .lanes = 32,
                                            .alone = true};

} // namespace ASSAY_NS
#endif
