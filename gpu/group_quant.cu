/* group_quant.cu: rows as e4m3, with one f32 scale for every 128 channels or for every row.
 *
 *   a = max(max |x|, eps) over the finite numbers of a group, s = fl(a / 448), q = e4m3(fl(x / s))
 *   ue8m0: s becomes the least power of two from there on
 *
 * vectors: 16 bytes per load, groups of 128; groups: a block per group, rows of any width. docs/kernels/group_quant.md
 * has the arithmetic. */
#include "gpu/lib/vectors.cuh"
#include "gpu/lib/warp.cuh"

namespace ASSAY_NS {
namespace {

constexpr int32_t quant_group = 128;

struct quant_params {
  const void *x;
  e4m3 *q;
  float *scale;
  int64_t x_row, q_row, scale_row, scale_group; /* scale of (m, g): m scale_row + g scale_group */
  int64_t M;
  int32_t C, width, S; /* width: channels of a group */
  float eps;
  bool ue8m0;
  assay_dtype type;
};

/* Returns |x|, or 0 if x is not finite. */
__device__ __forceinline__ float quant_size(float x) {
  const float size = fabsf(x);
  return size < INFINITY ? size : 0.0f;
}

/* Returns the scale of a group with the largest finite size `amax`. */
__device__ __forceinline__ float quant_scale(const quant_params &p, float amax) {
  const float s = fmaxf(amax, p.eps) / 448.0f;
  if (!p.ue8m0) return s;
  const uint32_t bits = bits_of(s), field = (bits >> 23) + ((bits & 0x7FFFFFu) != 0 ? 1u : 0u);
  return float_of((field < 1 ? 1u : field) << 23);
}

__device__ __forceinline__ void quant_store_scale(const quant_params &p, int64_t m, int32_t g, float s) {
  p.scale[m * p.scale_row + g * p.scale_group] = s;
}

/* group_quant_groups: computes one group of one row.
 * Grid:   M S. Block: 128 threads.
 * Shared: 16 bytes.
 * Align:  by element.
 * Arch:   any.
 * Limit:  bytes: M C (sizeof(T) + 1). */
template <class T> __global__ void __launch_bounds__(quant_group) group_quant_groups(quant_params p) {
  ASSAY_SHARED(float, largest, 4);
  const int64_t m = static_cast<int64_t>(blockIdx.x) / p.S;
  const int32_t g = static_cast<int32_t>(static_cast<int64_t>(blockIdx.x) % p.S),
                thread = static_cast<int32_t>(threadIdx.x);
  const int32_t first = g * p.width, end = min(first + p.width, p.C);
  const T *const x = static_cast<const T *>(p.x) + m * p.x_row;
  float amax = 0.0f;
  for (int32_t c = first + thread; c < end; c += quant_group)
    amax = fmaxf(amax, quant_size(to_float(x[c])));
  amax = warp_max(amax);
  if (thread % 32 == 0) largest[thread / 32] = amax;
  __syncthreads(); /* the warps' maxima are written */
  amax = fmaxf(fmaxf(largest[0], largest[1]), fmaxf(largest[2], largest[3]));
  const float s = quant_scale(p, amax);
  if (thread == 0) quant_store_scale(p, m, g, s);
  for (int32_t c = first + thread; c < end; c += quant_group)
    p.q[m * p.q_row + c] = from_float<e4m3>(to_float(x[c]) / s);
}

assay_status read_call(const assay_call *call, quant_params *p, assay_error *error) {
  plain_call c;
  *p = quant_params();
  ASSAY_TRY(plain_read(call, &c, error));
  p->M = c.dim("M");
  p->C = c.dim32("C");
  const int32_t given = (c.has("scale") ? 1 : 0) + (c.has("scale_t") ? 1 : 0) + (c.has("scale_row") ? 1 : 0);
  if (given != 1 && p->M > 0)
    return assay_fail(error, ASSAY_ERR_INPUT, "scale: found %d of scale, scale_t, scale_row, allowed exactly one",
                      given);
  p->x = c.data<const void>("x");
  p->q = c.data<e4m3>("q");
  p->x_row = c.row("x");
  p->q_row = c.row("q");
  p->type = c.type("x");
  p->eps = c.real("eps");
  p->ue8m0 = c.flag("ue8m0");
  p->width = c.has("scale_row") ? p->C : quant_group;
  p->S = (p->C + p->width - 1) / p->width;
  p->scale = c.data<float>(c.has("scale") ? "scale" : c.has("scale_t") ? "scale_t" : "scale_row");
  p->scale_row = c.has("scale") ? c.row("scale") : 1;
  p->scale_group = c.has("scale_t") ? c.row("scale_t") : 1;
  if (p->M > INT32_MAX / p->S)
    return assay_fail(error, ASSAY_ERR_UNSUPPORTED,
                      "M: found %" PRId64 " rows of %d groups, taken here: fewer than 2^31 groups", p->M, p->S);
  return expect_type("x", p->type, error);
}

assay_status launch_groups(const assay_call *call, assay_env *env, assay_error *error) {
  quant_params p;
  ASSAY_TRY(read_call(call, &p, error));
  (void)snprintf(env->path, sizeof env->path, "groups");
  if (p.M == 0) return ASSAY_OK;
  return with_type(p.type, [&](auto tag) {
    return ASSAY_LAUNCH(error, group_quant_groups<typename decltype(tag)::type>, p.M * p.S, quant_group, 0, env->stream,
                        p);
  });
}

/* ---- whole vectors ----------------------------------------------------------------------------------- */

/* Returns fl(x / s), from r = fl(1 / s). The first estimate is off by up to 1.5 ulp, the second by less than one, and
 * the last step rounds correctly (Markstein). It needs s from 2^-90 on: all that could underflow then has the code 0.
 * Where the estimate is infinite, or far above 448, it is the result: all of these saturate. */
__device__ __forceinline__ float quant_quotient(float x, float s, float r) {
  const float guess = __fmul_rn(x, r);
  const float near = fmaf(fmaf(-guess, s, x), r, guess);
  const float right = fmaf(fmaf(-near, s, x), r, near);
  return fabsf(guess) > 1024.0f ? guess : copysignf(right, x); /* a zero keeps its sign */
}

/* Stores 4 or 8 codes. The address must be a multiple of their number. */
template <int words> __device__ __forceinline__ void quant_store(e4m3 *to, const uint32_t (&word)[words]) {
#ifdef ASSAY_SIMT
  if (reinterpret_cast<uintptr_t>(to) % (4 * words) != 0)
    assay_simt->fault("the address of codes is not a multiple of their number", __FILE__, __LINE__);
  memcpy(to, word, sizeof word);
#else
  if constexpr (words == 2)
    *reinterpret_cast<uint2 *>(to) = make_uint2(word[0], word[1]);
  else
    *reinterpret_cast<uint32_t *>(to) = word[0];
#endif
}

constexpr int32_t quant_threads = 256;

/* group_quant_vectors: one vector per thread; 16 threads have a group of 16-bit elements, 32 have one of f32.
 * Grid:   M S / (256 / threads of a group). Block: 256 threads.
 * Shared: none.
 * Align:  rows of x begin at multiples of 16 bytes, rows of q at whole vectors' codes; C is whole vectors.
 * Arch:   any.
 * Limit:  bytes: M C (sizeof(T) + 1). */
template <class T> __global__ void __launch_bounds__(quant_threads) group_quant_vectors(quant_params p) {
  constexpr int width = vector_width<T>, lanes = quant_group / width;
  take_turn();
  const int32_t thread = static_cast<int32_t>(threadIdx.x), lane = thread % lanes;
  const int64_t unit = static_cast<int64_t>(blockIdx.x) * (quant_threads / lanes) + thread / lanes;
  const int32_t m = static_cast<int32_t>(unit) / p.S, g = static_cast<int32_t>(unit) % p.S;
  const int32_t c = g * quant_group + lane * width;
  if (unit >= p.M * p.S) return; /* whole groups */
  float x[width] = {};
  if (c < p.C) split_vector<T>(load_vector(static_cast<const T *>(p.x) + m * p.x_row + c), x);
  float amax = 0.0f;
  ASSAY_UNROLL
  for (int i = 0; i < width; ++i)
    amax = fmaxf(amax, quant_size(x[i]));
  const float s = quant_scale(p, group_max<lanes>(amax));
  if (lane == 0) quant_store_scale(p, m, g, s);
  if (c >= p.C) return;
  const float r = 1.0f / s;
  const bool usual = s >= 0x1p-90f;
  uint32_t word[width / 4];
  ASSAY_UNROLL
  for (int i = 0; i < width / 4; ++i) {
    float y[4];
    ASSAY_UNROLL
    for (int k = 0; k < 4; ++k)
      y[k] = usual ? quant_quotient(x[4 * i + k], s, r) : x[4 * i + k] / s;
    word[i] = e4m3_pair(y[0], y[1]) | e4m3_pair(y[2], y[3]) << 16;
  }
  quant_store(p.q + m * p.q_row + c, word);
}

assay_status read_vectors(const assay_call *call, quant_params *p, assay_error *error) {
  ASSAY_TRY(read_call(call, p, error));
  const int64_t width = 16 / assay_dtype_size(p->type);
  if (p->width != quant_group || p->scale == nullptr)
    return assay_fail(error, ASSAY_ERR_UNSUPPORTED, "scale_row: found a tensor, taken here: none");
  if (p->C % width != 0)
    return assay_fail(error, ASSAY_ERR_UNSUPPORTED, "C: found %d, taken here: multiples of %" PRId64, p->C, width);
  if (reinterpret_cast<uintptr_t>(p->x) % 16 != 0 || p->x_row % width != 0)
    return assay_fail(error, ASSAY_ERR_UNSUPPORTED,
                      "x: found a base or a distance of rows that is no multiple of 16 bytes, taken here: multiples");
  if (reinterpret_cast<uintptr_t>(p->q) % static_cast<uintptr_t>(width) != 0 || p->q_row % width != 0)
    return assay_fail(error, ASSAY_ERR_UNSUPPORTED,
                      "q: found a base or a distance of rows that is no multiple of %" PRId64 " bytes, taken here: "
                      "multiples",
                      width);
  return ASSAY_OK;
}

assay_status launch_vectors(const assay_call *call, assay_env *env, assay_error *error) {
  quant_params p;
  ASSAY_TRY(read_vectors(call, &p, error));
  const int64_t each = quant_threads / (quant_group * assay_dtype_size(p.type) / 16);
  (void)snprintf(env->path, sizeof env->path, "vectors");
  if (p.M == 0) return ASSAY_OK;
  return with_type(p.type, [&](auto tag) {
    return ASSAY_LAUNCH_WITH(error, group_quant_vectors<typename decltype(tag)::type>, (p.M * p.S + each - 1) / each,
                             quant_threads, 0, in_turn(), env->stream, p);
  });
}

constexpr assay_contract contract = {
    .qk_lanes = 1, .pv_lanes = 1, .run_to_run = true, .renumbering = true, .permutation = true, .alone = true};

} // namespace
} // namespace ASSAY_NS

#define GROUPS                                                                                                         \
  PLAIN_VARIANT("group_quant", "groups", "a block a group, any width", PLAIN_TYPE_CLAIMS "|false,true", contract,      \
                quant_params, read_call, launch_groups)
#define VECTORS                                                                                                        \
  PLAIN_VARIANT("group_quant", "vectors", "16 bytes a load", PLAIN_TYPE_CLAIMS "|false,true", contract, quant_params,  \
                read_vectors, launch_vectors)

ASSAY_VARIANTS(group_quant, VECTORS, GROUPS)
