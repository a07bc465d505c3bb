/* error_model.c: how far a correct implementation may be off, as standard deviations. */
#include "ref/lib/error_model.h"

#include "core/dtype.h"
#include "ref/lib/lattice.h"

const assay_contract plain_contract = {.qk_lanes = 1, .pv_lanes = 1, .exp_ulp = 2, .zero_p_v = ASSAY_V_MULTIPLIED};

double storing_variance(double value, assay_dtype dtype) {
  const double ulp = assay_ulp(value, dtype);
  return ulp * ulp / 12;
}

double rounding_variance(double value, assay_dtype dtype) {
  if (dtype == ASSAY_NONE || assay_round_f64(value, dtype) == value) return 0;
  return storing_variance(value, dtype);
}

double accumulation_variance(double terms, double lanes) {
  const double chain = terms / lanes;
  return f32_variance * (chain / (3 * lanes) + 2);
}

double key_sum_variance(const assay_contract *contract, int64_t keys, int64_t terms) {
  const double lanes = contract->pv_lanes > 0 ? contract->pv_lanes : 1;
  double splits = 1;
  if (contract->keys_per_split > 0) splits = (double)((keys + contract->keys_per_split - 1) / contract->keys_per_split);
  return accumulation_variance((double)terms, lanes * (splits > 1 ? splits : 1));
}

/* A relative rounding of every k_d adds sum (q_d k_d)^2 of its relative variance. */
double dot_variance(const assay_contract *contract, int64_t D, double abs_dot, double square_dot, bool k_is_rounded) {
  const double lanes = contract->qk_lanes > 0 ? contract->qk_lanes : 1;
  double variance = abs_dot * abs_dot * accumulation_variance((double)D, lanes);
  if (k_is_rounded) {
    /* f32_variance belongs to 24 bits; each bit less is four times as much. */
    const int lost = 24 - lattice_width(contract->k);
    variance += square_dot * f32_variance * (double)(1ull << (2 * lost));
  }
  return variance;
}
