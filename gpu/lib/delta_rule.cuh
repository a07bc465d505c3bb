/* delta_rule.cuh: the call of gated_delta_rule as its kernels read it. */
#ifndef ASSAY_GPU_DELTA_RULE_CUH
#define ASSAY_GPU_DELTA_RULE_CUH

#include "gpu/lib/launch.h"
#include "gpu/lib/plain.h"

namespace ASSAY_NS {

struct rule_params {
  const void *q, *k, *v;
  const float *g, *beta;
  const int32_t *cu, *slots, *fresh;
  void *state, *o;
  int64_t q_row, k_row, v_row, g_row, beta_row, o_row, state_row, N, S;
  int32_t H_k, H_v, D_k, D_v, B, pieces; /* pieces: blocks per head */
  int32_t segments;                      /* most segments per request; 0: requests are not cut */
  float scale, eps;
  bool l2;
  assay_dtype type, state_type;
};

/* Returns the first row of a request, inside the tensors. */
__device__ __forceinline__ int64_t rule_row(const rule_params &p, int32_t request) {
  return min(max(static_cast<int64_t>(p.cu[request]), static_cast<int64_t>(0)), p.N);
}

/* Returns the slot of a request, or -1 if it has none. */
__device__ __forceinline__ int64_t rule_slot(const rule_params &p, int32_t request) {
  const int64_t slot = p.slots[request];
  return slot >= 0 && slot < p.S ? slot : -1;
}

/* Reads a call and refuses what is wrong with it. It leaves `pieces` to the variant. */
inline assay_status rule_read(const assay_call *call, rule_params *p, assay_error *error) {
  plain_call c;
  *p = rule_params();
  ASSAY_TRY(plain_read(call, &c, error));
  ASSAY_TRY(expect_type("q", c.type("q"), error));
  p->q = c.data<const void>("q");
  p->k = c.data<const void>("k");
  p->v = c.data<const void>("v");
  p->g = c.data<const float>("g");
  p->beta = c.data<const float>("beta");
  p->cu = c.data<const int32_t>("cu");
  p->slots = c.data<const int32_t>("slots");
  p->fresh = c.data<const int32_t>("fresh");
  p->state = c.data<void>("state");
  p->o = c.data<void>("o");
  p->q_row = c.row("q");
  p->k_row = c.row("k");
  p->v_row = c.row("v");
  p->g_row = c.row("g");
  p->beta_row = c.row("beta");
  p->o_row = c.row("o");
  p->state_row = c.row("state");
  p->N = c.dim("N");
  p->S = c.dim("S");
  p->H_k = c.dim32("H_k");
  p->H_v = c.dim32("H_v");
  p->D_k = c.dim32("D_k");
  p->D_v = c.dim32("D_v");
  p->B = c.dim32("B");
  p->eps = c.real("l2_eps");
  p->l2 = c.flag("l2");
  p->scale = c.number("scale") > 0 ? c.real("scale") : static_cast<float>(1.0 / sqrt(static_cast<double>(p->D_k)));
  p->type = c.type("q");
  p->state_type = c.type("state");
  if (p->H_v % p->H_k != 0)
    return assay_fail(error, ASSAY_ERR_INPUT, "H_v: found %d, allowed multiples of H_k, %d", p->H_v, p->H_k);
  return ASSAY_OK;
}

} // namespace ASSAY_NS
#endif
