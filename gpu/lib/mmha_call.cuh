/* mmha_call.cuh: the parameters of every kernel of mmha, filled once from a call, and the source of its rows with bias
 * and rotation. */
#ifndef ASSAY_GPU_LIB_MMHA_CALL_CUH
#define ASSAY_GPU_LIB_MMHA_CALL_CUH

#include "gpu/lib/rope.cuh"
#include "gpu/lib/step.cuh"

namespace ASSAY_NS {

struct fused_rows {
  new_rows qkv;
  const void *bias; /* NULL: none */
  const float *cosine, *sine;
  const int32_t *length;
  int64_t max_pos;
  int32_t H, H_kv, D, R;
  bool interleaved;
};

/* A source of rows after bias and rotation. q stays in f32; k and v are rounded to the type of qkv. */
template <class Q> struct fused_source {
  fused_rows rows;

  /* Returns an element with bias, before rotation. The heads are those of q, then k, then v. */
  __device__ __forceinline__ float raw(int64_t row, int32_t head, int32_t d) const {
    const int64_t channel = static_cast<int64_t>(head) * rows.D + d;
    const float x = to_float(*element_at<Q>(rows.qkv.data, row * rows.qkv.apart + channel));
    return rows.bias != nullptr ? x + to_float(static_cast<const Q *>(rows.bias)[channel]) : x;
  }

  /* Returns an element after rotation. Channel d is the first or the second of a pair. A row whose length is beyond the
   * tables is not rotated, since it may not read there. */
  __device__ __forceinline__ float rotated(int64_t row, int32_t head, int32_t d) const {
    const int64_t position = rows.length[row] - 1;
    const float x = raw(row, head, d);
    if (d >= rows.R || position < 0 || position >= rows.max_pos) return x;
    const int32_t half = rows.R / 2, pair = rows.interleaved ? d / 2 : d % half;
    const bool second = rows.interleaved ? d % 2 == 1 : d >= half;
    const int32_t apart = rows.interleaved ? 1 : half;
    const float other = raw(row, head, second ? d - apart : d + apart);
    const float c = rows.cosine[position * half + pair], s = rows.sine[position * half + pair];
    return second ? x * c + other * s : x * c - other * s;
  }

  __device__ __forceinline__ float q(int64_t row, int32_t head, int32_t d) const { return rotated(row, head, d); }
  __device__ __forceinline__ Q k(int64_t row, int32_t head, int32_t d) const {
    return from_float<Q>(rotated(row, rows.H + head, d));
  }
  __device__ __forceinline__ Q v(int64_t row, int32_t head, int32_t d) const {
    return from_float<Q>(raw(row, rows.H + rows.H_kv + head, d));
  }
};

/* The plan that a launcher makes from a call. */
struct mmha_plan {
  step_params p;
  fused_rows rows;
  attention_types types;
  int64_t workspace; /* bytes */
};

/* Reads qkv and out, and the sizes that they define. It replaces attention_read's first part, for queries among the
 * heads of a fused row. */
inline assay_status read_fused(const assay_call *call, mmha_plan *plan, assay_error *error) {
  attention_params *const a = &plan->p.a;
  const assay_tensor *qkv, *out;
  int64_t layout;
  ASSAY_TRY(find_tensor(call, "qkv", 3, false, &qkv, error));
  if (qkv->dtype != ASSAY_F32 && qkv->dtype != ASSAY_F16 && qkv->dtype != ASSAY_BF16)
    return assay_fail(error, ASSAY_ERR_INPUT, "qkv: found dtype %s, allowed f32, f16, bf16",
                      assay_dtype_name(qkv->dtype));
  ASSAY_TRY(attention_integer(call, "layout", 0, 2, &layout, error));
  const cache_axes axis = axes_of_layout(layout);
  const assay_tensor *k;
  ASSAY_TRY(find_tensor(call, "k_cache", axis.rank, false, &k, error));
  const int64_t N = qkv->shape[0], H_kv = k->shape[axis.k_head], H = qkv->shape[1] - 2 * H_kv, D = qkv->shape[2];
  ASSAY_TRY(expect_range("N", N, 0, INT32_MAX, 1, error));
  ASSAY_TRY(expect_range("H_kv", H_kv, 1, 256, 1, error));
  ASSAY_TRY(expect_range("H", H, 1, 256, 1, error));
  ASSAY_TRY(expect_range("D", D, 8, attention_max_D, 8, error));
  ASSAY_TRY(read_new_rows(call, "qkv", qkv->dtype, N, qkv->shape[1], D, &plan->rows.qkv, error));
  ASSAY_TRY(find_tensor(call, "out", 3, false, &out, error));
  ASSAY_TRY(expect_dtype(out, "out", qkv->dtype, error));
  const int64_t shape[3] = {N, H, D}, stride[3] = {H * D, D, 1};
  for (int32_t i = 0; i < 3; ++i) {
    ASSAY_TRY(expect_extent(out, "out", i, shape[i], error));
    ASSAY_TRY(expect_stride(out, "out", i, stride[i], error));
  }
  plan->types.q = qkv->dtype;
  a->N = N;
  a->H = static_cast<int32_t>(H);
  a->D = static_cast<int32_t>(D);
  a->out = out->data;
  return ASSAY_OK;
}

inline assay_status read_tables(const assay_call *call, mmha_plan *plan, assay_error *error) {
  const attention_params &a = plan->p.a;
  const assay_tensor *bias;
  fused_rows *const rows = &plan->rows;
  rope_angles angles = rope_angles();
  ASSAY_TRY(read_angles(call, a.D, &angles, error));
  ASSAY_TRY(find_tensor(call, "bias", 2, true, &bias, error));
  if (bias != NULL) {
    ASSAY_TRY(expect_dtype(bias, "bias", plan->types.q, error));
    ASSAY_TRY(expect_extent(bias, "bias", 0, a.H + 2 * a.H_kv, error));
    ASSAY_TRY(expect_extent(bias, "bias", 1, a.D, error));
    ASSAY_TRY(expect_stride(bias, "bias", 1, 1, error));
    ASSAY_TRY(expect_stride(bias, "bias", 0, a.D, error));
  }
  rows->bias = bias != NULL ? bias->data : nullptr;
  rows->cosine = angles.cosine;
  rows->sine = angles.sine;
  rows->length = a.length;
  rows->max_pos = angles.max_pos;
  rows->H = a.H;
  rows->H_kv = a.H_kv;
  rows->D = a.D;
  rows->R = 2 * angles.half;
  rows->interleaved = angles.interleaved;
  return ASSAY_OK;
}

inline assay_status mmha_read(const assay_call *call, mmha_plan *plan, assay_error *error) {
  if (call == NULL || call->op == NULL || call->arg == NULL || call->param == NULL)
    return assay_fail(error, ASSAY_ERR_INPUT, "call: found no operator, arguments or parameters, allowed all three");
  *plan = mmha_plan();
  attention_params *const a = &plan->p.a;
  double scale;
  int64_t window;
  ASSAY_TRY(read_fused(call, plan, error));
  ASSAY_TRY(read_cache(call, a, &plan->types, error));
  ASSAY_TRY(read_scales(call, a, &plan->types, error));
  ASSAY_TRY(read_requests(call, a, error));
  ASSAY_TRY(attention_real(call, "scale", 0.0, 3e38, &scale, error));
  ASSAY_TRY(attention_integer(call, "window", 0, INT32_MAX, &window, error));
  a->scale = static_cast<float>(scale == 0.0 ? 1.0 / sqrt(static_cast<double>(a->D)) : scale);
  a->window = window >= a->capacity ? 0 : static_cast<int32_t>(window);
  ASSAY_TRY(read_tables(call, plan, error));
  return read_step(call, plan->types, &plan->p, error);
}

/* The operator, as step.cuh and step_stream.cuh ask for it. */
struct mmha_step {
  using plan = mmha_plan;
  template <class Q> using source = fused_source<Q>;
  static constexpr const char *query = nullptr; /* made by the step */
  static assay_status read(const assay_call *call, plan *made, assay_error *error) {
    return mmha_read(call, made, error);
  }
};

} // namespace ASSAY_NS
#endif
