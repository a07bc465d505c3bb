/* norm_tables.h: rows of the tables of the operators y = norm(x) and y = norm(res <- round(x + res)). A macro is one or
 * more rows of assay_op.dims, args or params, or a list of names. Each operator lists them in its own order. */
#ifndef ASSAY_REF_NORM_TABLES_H
#define ASSAY_REF_NORM_TABLES_H

/* ---- dimensions -------------------------------------------------------------------------------------- */

#define NORM_DIM_N                                                                                                     \
  { "N", 1, 1 << 20, 4, 1, "rows" }
#define NORM_DIM_C                                                                                                     \
  { "C", 1, 16384, 64, 1, "channels" }
#define NORM_DIM_ALPHA                                                                                                 \
  { "alpha_n", 1, 16384, 1, 1, "elements of alpha: 1 or C" }
#define NORM_DIM_GAMMA                                                                                                 \
  { "gamma_n", 1, 16384, 1, 1, "elements of gamma: 1 or C" }

#define NORM_DIMS       NORM_DIM_N, NORM_DIM_C
#define NORM_UCLIP_DIMS NORM_DIMS, NORM_DIM_ALPHA, NORM_DIM_GAMMA

/* ---- arguments ----------------------------------------------------------------------------------------- */

#define NORM_X                                                                                                         \
  { "x", ASSAY_IN, ASSAY_VALUES, false, "f32,f16,bf16", "N,C", "rows; the row stride is free", true }
#define NORM_ADDED                                                                                                     \
  { "x", ASSAY_IN, ASSAY_VALUES, false, "f32,f16,bf16", "N,C", "what is added; the row stride is free", true }
#define NORM_RES                                                                                                       \
  {                                                                                                                    \
    "res", ASSAY_INOUT, ASSAY_VALUES, false, "=x", "N,C",                                                              \
        "residual; becomes the rounded sum, unless res_out is present", true                                           \
  }
#define NORM_G                                                                                                         \
  { "g", ASSAY_IN, ASSAY_VALUES, false, "=x", "C", "weight", false }
#define NORM_B                                                                                                         \
  { "b", ASSAY_IN, ASSAY_VALUES, true, "=x", "C", "bias", false }
#define NORM_ALPHA                                                                                                     \
  { "alpha", ASSAY_IN, ASSAY_VALUES, false, "=x", "alpha_n", "slope before the clip, one or one per channel", false }
#define NORM_GAMMA                                                                                                     \
  { "gamma", ASSAY_IN, ASSAY_VALUES, false, "=x", "gamma_n", "factor after the clip, one or one per channel", false }
#define NORM_BETA                                                                                                      \
  { "beta", ASSAY_IN, ASSAY_VALUES, true, "=x", "C", "offset", false }
#define NORM_Y                                                                                                         \
  { "y", ASSAY_OUT, ASSAY_RESULT, false, "=x", "N,C", "the norm", true }
#define NORM_RES_OUT                                                                                                   \
  { "res_out", ASSAY_OUT, ASSAY_RESULT, true, "=x", "N,C", "the rounded sum; res keeps its bits", true }

#define NORM_RMS_WEIGHTS   NORM_G
#define NORM_LAYER_WEIGHTS NORM_G, NORM_B
#define NORM_UCLIP_WEIGHTS NORM_ALPHA, NORM_GAMMA, NORM_BETA

/* ---- parameters ---------------------------------------------------------------------------------------- */

#define NORM_EPS(fallback, doc)                                                                                        \
  { "eps", ASSAY_REAL, 1e-12, 1, fallback, NULL, doc }
#define NORM_ROUND_INNER                                                                                               \
  { "round_inner", ASSAY_BOOL, 0, 1, 1, NULL, "n is rounded to the type of x before the weight" }

#define NORM_RMS_PARAMS   NORM_EPS(1e-6, "added to the mean square, as f32"), NORM_ROUND_INNER
#define NORM_LAYER_PARAMS NORM_EPS(1e-5, "added to the variance, as f32")

/* ---- names of planted errors ---------------------------------------------------------------------------- */

#define NORM_RMS_SPOILS                                                                                                \
  "weight_lost,neighbour_weight,eps_lost,inner_rounding_lost,sum_for_mean,factor_of_row_before,row_swapped,"           \
  "last_channel_dropped"
#define NORM_LAYER_SPOILS                                                                                              \
  "weight_lost,bias_lost,neighbour_weight,eps_lost,mean_lost,unbiased_variance,factor_of_row_before,"                  \
  "row_swapped,last_channel_dropped"
#define NORM_UCLIP_SPOILS                                                                                              \
  "weight_lost,bias_lost,alpha_lost,neighbour_weight,alpha_of_first,clip_lost,clip_one_sided,row_swapped,"             \
  "last_channel_dropped"
/* Follows the norm's own list in an operator that adds a residual. */
#define NORM_ADD_SPOILS ",residual_lost,sum_not_rounded"

#endif
