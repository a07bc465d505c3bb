/* norm_forms.cuh: rms_norm with a gate z, groups of channels, a weight of 1 + g, or a weight of f32:
 *
 *   v = x, or x silu(z)     n = v / sqrt(mean over the group of v^2 + eps)     y = round(n) w, or round(n) w silu(z)
 *
 * A group of channels is a row of its own to these kernels. */
#ifndef ASSAY_GPU_LIB_NORM_FORMS_CUH
#define ASSAY_GPU_LIB_NORM_FORMS_CUH

#include "gpu/lib/norm.cuh"

namespace ASSAY_NS {

enum norm_gate { norm_ungated, norm_gate_after, norm_gate_before };

constexpr int64_t norm_form_blocks = 1 << 30;

struct norm_form_params {
  norm_params row; /* C: channels of a group; N: rows, without groups */
  const void *z;   /* NULL: no gate */
  int64_t z_row;
  int32_t groups; /* groups of a row */
  norm_gate gate;
  assay_dtype weight_type;
  bool plus_one, form; /* form: the call is not that of the plain operator */
};

__device__ __forceinline__ float norm_silu(float z) {
  return z / (1.0f + expf(-z));
}

/* Returns n w factor. n w may leave the range of f32 where the whole product does not. */
__device__ __forceinline__ float norm_gated(float n, float w, float factor) {
  const float value = n * w;
  return isinf(value) ? n * (w * 0x1p-64f) * factor * 0x1p64f : value * factor;
}

/* Loads v of channels c to c + 3 of a group, times `scale`. */
template <class T>
__device__ __forceinline__ void load_gated(const norm_form_params &p, const T *x, const T *z, int32_t c, float scale,
                                           float (&v)[4]) {
  load_channels(x, c, p.row.C, p.row.quads, v);
  if (p.gate == norm_gate_before) {
    float gate[4];
    load_channels(z, c, p.row.C, p.row.quads, gate);
    ASSAY_UNROLL
    for (int i = 0; i < 4; ++i)
      v[i] *= norm_silu(gate[i]);
  }
  ASSAY_UNROLL
  for (int i = 0; i < 4; ++i)
    v[i] *= scale;
}

/* Returns the sum of squares of a group, whose channels count `scale` times. */
template <class T, int lanes>
__device__ __forceinline__ float gated_squares(const norm_form_params &p, const T *x, const T *z, float scale) {
  const int32_t lane = static_cast<int32_t>(threadIdx.x) % lanes;
  float v[4], square = 0.0f;
  for (int32_t c = 4 * lane; c < p.row.C; c += 4 * lanes) {
    load_gated(p, x, z, c, scale, v);
    ASSAY_UNROLL
    for (int i = 0; i < 4; ++i)
      square += v[i] * v[i];
  }
  return row_sum<lanes>(square);
}

/* Normalises one group of a row in two passes over it, by `lanes` threads. */
template <class T, class G, int lanes>
__device__ __forceinline__ void norm_group(const norm_form_params &p, int64_t row, int32_t first) {
  const norm_params &r = p.row;
  const int32_t lane = static_cast<int32_t>(threadIdx.x) % lanes;
  const T *const x = static_cast<const T *>(r.x) + row * r.x_row + first;
  const T *const z = p.gate != norm_ungated ? static_cast<const T *>(p.z) + row * p.z_row + first : nullptr;
  const G *const weight = static_cast<const G *>(r.g) + first;
  T *const y = static_cast<T *>(r.y) + row * r.y_row + first;
  const float C = static_cast<float>(r.C);

  float factor = 1.0f / sqrtf(gated_squares<T, lanes>(p, x, z, 1.0f) / C + r.eps), scale = 1.0f;
  if (norm_overflowed<T>(factor)) { /* the same for all lanes of the group */
    scale = norm_rescale;
    factor = 1.0f / sqrtf(gated_squares<T, lanes>(p, x, z, scale) / C);
  }

  for (int32_t c = 4 * lane; c < r.C; c += 4 * lanes) {
    float v[4], w[4], gate[4];
    load_gated(p, x, z, c, 1.0f, v);
    load_channels(weight, c, r.C, r.quads, w);
    if (p.gate == norm_gate_after) load_channels(z, c, r.C, r.quads, gate);
    ASSAY_UNROLL
    for (int i = 0; i < 4; ++i) {
      float n = v[i] * factor * scale;
      if (r.round_inner) n = round_to<T>(n);
      const float g = p.plus_one ? 1.0f + w[i] : w[i];
      v[i] = p.gate == norm_gate_after ? norm_gated(n, g, norm_silu(gate[i])) : n * g;
    }
    store_channels(y, c, r.C, r.quads, v);
  }
}

/* norm_form_rows: normalises groups of rows, each by `lanes` threads. A block takes every gridDim.x-th share of them.
 * Grid:   ceil(N groups / rows), at most norm_form_blocks. rows = 128 with 1 lane per group, 4 with 32, 1 with 256.
 * Block:  128 or 256 threads. A lane takes quads of channels 4 * lanes apart.
 * Shared: 32 bytes with 256 lanes, else none.
 * Align:  quads if every base, row stride and group is a multiple of 4 elements, else by element.
 * Arch:   any.
 * Limit:  bytes: 2 C sizeof(T) per row, 3 C with a gate; the second pass finds the group in L1 or L2. */
template <class T, class G, int lanes>
__global__ void __launch_bounds__(lanes > 128 ? lanes : 128) norm_form_rows(norm_form_params p) {
  constexpr int rows = lanes > 128 ? 1 : 128 / lanes;
  const int64_t step = static_cast<int64_t>(gridDim.x) * rows, groups = p.row.N * p.groups;
  int64_t group = static_cast<int64_t>(blockIdx.x) * rows + static_cast<int32_t>(threadIdx.x) / lanes;
  for (; group < groups; group += step) /* whole warps leave: blocks of several groups have no barrier */
    norm_group<T, G, lanes>(p, group / p.groups, static_cast<int32_t>(group % p.groups) * p.row.C);
}

inline assay_status read_norm_form(const assay_call *call, norm_form_params *p, assay_error *error) {
  plain_call c;
  *p = norm_form_params();
  ASSAY_TRY(read_norm(call, &p->row, error));
  ASSAY_TRY(plain_read(call, &c, error));
  const int32_t C = p->row.C, group = static_cast<int32_t>(c.integer("group"));
  p->z = c.data<const void>("z");
  p->z_row = c.row("z");
  p->gate = p->z == nullptr ? norm_ungated : c.flag("gate") ? norm_gate_before : norm_gate_after;
  p->plus_one = c.flag("plus_one");
  p->weight_type = c.type("g");
  p->form = p->z != nullptr || p->plus_one || group > 0 || p->weight_type != p->row.type;
  p->groups = 1;
  if (p->plus_one && p->row.round_inner)
    return assay_fail(error, ASSAY_ERR_INPUT, "plus_one: found true with round_inner, allowed without it");
  if (group == 0) return ASSAY_OK;
  if (C % group != 0)
    return assay_fail(error, ASSAY_ERR_INPUT, "group: found %d, allowed 0 and divisors of C = %d", group, C);
  p->groups = C / group;
  p->row.C = group;
  p->row.quads = p->row.quads && (group % 4 == 0 || p->groups == 1);
  return ASSAY_OK;
}

template <int lanes> assay_status start_norm_form(const norm_form_params &p, assay_env *env, assay_error *error) {
  constexpr int rows = lanes > 128 ? 1 : 128 / lanes;
  const int64_t wanted = (p.row.N * p.groups + rows - 1) / rows;
  const int64_t blocks = wanted < norm_form_blocks ? wanted : norm_form_blocks;
  return with_type(p.row.type, [&](auto type) {
    using T = typename decltype(type)::type;
    if (p.weight_type == ASSAY_F32)
      return ASSAY_LAUNCH(error, (norm_form_rows<T, float, lanes>), blocks, rows * lanes, 0, env->stream, p);
    return ASSAY_LAUNCH(error, (norm_form_rows<T, T, lanes>), blocks, rows * lanes, 0, env->stream, p);
  });
}

/* A thread normalises a group of at most 8 channels: most lanes of a warp would idle. */
template <int lanes> assay_status launch_norm_form(const assay_call *call, assay_env *env, assay_error *error) {
  norm_form_params p;
  ASSAY_TRY(read_norm_form(call, &p, error));
  const bool few = p.row.C <= 8;
  (void)snprintf(env->path, sizeof env->path, "%s form lanes=%d quads=%d", lanes > 32 ? "block_rows" : "warp_rows",
                 few ? 1 : lanes, p.row.quads ? 1 : 0);
  return few ? start_norm_form<1>(p, env, error) : start_norm_form<lanes>(p, env, error);
}

} // namespace ASSAY_NS
#endif
