/* norm_rope_append.cu: norms every head of q and k and turns it by the angles of its position. k is then rounded to its
 * type and written with v to its slot of the paged cache. The results are those of qk_norm and then
 * rope_append, bit for bit.
 *
 * vectors: a head by 8 to 32 lanes, 16 bytes per load. heads: one warp per head, any layout and alignment. A row
 * without a slot writes nothing to the cache; its q is normed and turned all the same. docs/kernels/norm_rope_append.md
 * has the arithmetic. */
#include "gpu/lib/rope_append.cuh"
#include "gpu/lib/uclip_vector.cuh"

namespace ASSAY_NS {
namespace {

constexpr int warps = 4; /* heads per block of norm_rope_heads */

struct norm_rope_params {
  rope_append_params at;
  uclip_weights q, k; /* rms: gamma alone; there is no beta */
  float eps;
  bool rms, round_inner;
  bool angles_early, weights_early; /* settled: they are read before the wait */
};

/* Says which tensor a head of a row belongs to: heads of q come first, then those of k, then those of v. */
struct head_place {
  bool is_q, is_k, is_v;
  int32_t head;
};

__device__ __forceinline__ head_place place_of_head(const rope_append_params &p, int32_t place) {
  if (place < p.H) return {true, false, false, place};
  if (place < p.H + p.H_kv) return {false, true, false, place - p.H};
  return {false, false, place < p.H + 2 * p.H_kv, place - p.H - p.H_kv};
}

/* ---- by element -------------------------------------------------------------------------------------- */

/* Returns the channel of element e of a lane. The lanes add their squares in the order in which lanes with whole
 * vectors add them. */
template <class T> __device__ __forceinline__ int32_t channel_of(int32_t lane, int e) {
  return sizeof(T) == 4 ? 4 * (lane + 32 * (e / 4)) + e % 4 : 8 * lane + e;
}

template <class T> __device__ __forceinline__ float weight_at(const channel_weight &w, int32_t d, float otherwise) {
  if (w.data == nullptr) return otherwise;
  return to_float(static_cast<const T *>(w.data)[w.one ? 0 : d]);
}

/* Writes the norm of a head to `to`, rounded to the type. Each lane of the warp takes eight channels. */
template <class T>
__device__ __forceinline__ void norm_by_warp(const norm_rope_params &p, const T *from, const uclip_weights &w,
                                             float *to) {
  const int32_t lane = static_cast<int32_t>(threadIdx.x) % 32, D = p.at.D;
  float v[8], square = 0.0f, factor = 1.0f, scale = 1.0f;
  ASSAY_UNROLL
  for (int e = 0; e < 8; ++e) {
    const int32_t d = channel_of<T>(lane, e);
    v[e] = d < D ? to_float(from[d]) : 0.0f;
    square += v[e] * v[e];
  }
  if (p.rms) factor = 1.0f / sqrtf(warp_sum(square) / static_cast<float>(D) + p.eps);
  if (norm_overflowed<T>(factor)) { /* the same for all lanes */
    scale = norm_rescale;
    square = 0.0f;
    ASSAY_UNROLL
    for (int e = 0; e < 8; ++e)
      square += v[e] * scale * (v[e] * scale);
    factor = 1.0f / sqrtf(warp_sum(square) / static_cast<float>(D));
  }
  ASSAY_UNROLL
  for (int e = 0; e < 8; ++e) {
    const int32_t d = channel_of<T>(lane, e);
    if (d >= D) continue;
    const float gamma = weight_at<T>(w.gamma, d, 1.0f);
    if (p.rms) {
      const float n = v[e] * factor * scale;
      v[e] = (p.round_inner ? round_to<T>(n) : n) * gamma;
    } else {
      v[e] = gamma * fminf(fmaxf(weight_at<T>(w.alpha, d, 1.0f) * v[e], -1.0f), 1.0f) + 0.0f;
    }
    to[d] = round_to<T>(v[e]);
  }
}

/* norm_rope_heads: one head per warp. All of a head is read before any of it is written.
 * Grid:   ceil(N (H + 2 H_kv) / 4). Block: 128 threads: four heads, of q, then k, then v, row by row.
 * Shared: 4 KB: the heads after their norm.
 * Align:  by element.
 * Arch:   any.
 * Limit:  bytes: 2 D sizeof(T) per head of q, D * (sizeof(T) + sizeof(KV)) per head of k and v. */
template <class T, class KV> __global__ void __launch_bounds__(32 * warps) norm_rope_heads(norm_rope_params p) {
  ASSAY_SHARED(float, normed, warps *attention_max_D);
  const rope_append_params &at = p.at;
  const int32_t warp = static_cast<int32_t>(threadIdx.x) / 32, lane = static_cast<int32_t>(threadIdx.x) % 32;
  const int64_t index = static_cast<int64_t>(blockIdx.x) * warps + warp;
  const int32_t all = at.H + 2 * at.H_kv;
  const int64_t row = index / all;
  if (row >= at.N) return; /* whole warps */
  const head_place mine = place_of_head(at, static_cast<int32_t>(index % all));
  const slot_place to = place_of_slot(at.cache, at.slots[row], at.pool_slots);
  if (mine.is_v) {
    for (int32_t d = lane; d < at.D && to.block >= 0; d += 32)
      *element_to<KV>(at.cache.v, v_offset(at.cache, to.block, to.offset, mine.head) + d * at.cache.v_channel) =
          stored<KV>(head_of<T>(at, at.v, row, mine.head)[d], v_scale_of(at.cache, mine.head));
    return;
  }
  float *const head = normed + warp * attention_max_D;
  norm_by_warp<T>(p, head_of<T>(at, mine.is_q ? at.q : at.k, row, mine.head), mine.is_q ? p.q : p.k, head);
  __syncwarp(); /* the head is read, and its norm written */
  const auto store = [&](int32_t d, float value) {
    if (mine.is_q)
      head_of<T>(at, at.q_to, row, mine.head)[d] = from_float<T>(value);
    else
      store_k<T, KV>(at, row, to, mine.head, d, from_float<T>(value));
  };
  const int64_t angles = angles_of(at.angles, position_of(at.angles, row));
  const int32_t apart = pair_apart(at.angles);
  for (int32_t i = lane; i < at.angles.half; i += 32) {
    const int32_t a = first_of_pair(at.angles, i);
    const float2 pair = turned_pair(at.angles, angles, i, head[a], head[a + apart]);
    store(a, pair.x);
    store(a + apart, pair.y);
  }
  for (int32_t d = 2 * at.angles.half + lane; d < at.D; d += 32)
    store(d, head[d]);
}

/* ---- whole vectors ----------------------------------------------------------------------------------- */

/* Returns a vector of a head after its norm, rounded to the type. `lanes` neighbouring lanes have one vector each. */
template <class T, int lanes>
__device__ __forceinline__ uint4 normed_by_lanes(const norm_rope_params &p, const uclip_vector<T> &w, const uint4 &x) {
  constexpr int width = vector_width<T>;
  float v[width], square = 0.0f, factor = 1.0f, scale = 1.0f;
  split_vector<T>(x, v);
  if (!p.rms) {
    w.apply(v);
    return round_vector<T>(v);
  }
  ASSAY_UNROLL
  for (int i = 0; i < width; ++i)
    square += v[i] * v[i];
  factor = 1.0f / sqrtf(group_sum<lanes>(square) / static_cast<float>(p.at.D) + p.eps);
  if (norm_overflowed<T>(factor)) { /* the same for all lanes of the head */
    scale = norm_rescale;
    square = 0.0f;
    ASSAY_UNROLL
    for (int i = 0; i < width; ++i)
      square += v[i] * scale * (v[i] * scale);
    factor = 1.0f / sqrtf(group_sum<lanes>(square) / static_cast<float>(p.at.D));
  }
  ASSAY_UNROLL
  for (int i = 0; i < width; ++i)
    v[i] = v[i] * factor * scale;
  if (p.round_inner) split_vector<T>(round_vector<T>(v), v);
  ASSAY_UNROLL
  for (int i = 0; i < width; ++i)
    v[i] *= w.gamma[i];
  return round_vector<T>(v);
}

/* The angles of a lane's vector: those of its channels (neox) or of its pairs (interleaved, the first half). */
template <class T> struct lane_angles { float c[vector_width<T>], s[vector_width<T>]; };

/* Returns the first pair of the vector from channel d on. */
__device__ __forceinline__ int32_t pair_of_channel(const rope_angles &t, int32_t d) {
  if (t.interleaved) return d / 2;
  return d < t.half ? d : d - t.half;
}

template <class T>
__device__ __forceinline__ void load_lane_angles(const rope_angles &t, int64_t row, int32_t d, lane_angles<T> &a) {
  constexpr int width = vector_width<T>;
  if (d >= 2 * t.half) return;
  const int64_t at = angles_of(t, position_of(t, row));
  if (!t.interleaved) {
    load_angles(t, at, pair_of_channel(t, d), a.c, a.s);
    return;
  }
  float c[width / 2], s[width / 2];
  load_angles(t, at, pair_of_channel(t, d), c, s);
  ASSAY_UNROLL
  for (int i = 0; i < width / 2; ++i) {
    a.c[i] = c[i];
    a.s[i] = s[i];
  }
}

/* Returns a lane's vector after its rotation. With neox the other vector of its pairs is that of another lane of the
 * head. Channels that are not rotated stay. */
template <class T, int lanes>
__device__ __forceinline__ uint4 turned_by_lanes(const rope_angles &t, int32_t d, const lane_angles<T> &a,
                                                 const uint4 &mine) {
  constexpr int width = vector_width<T>;
  const bool low = d < t.half, turns = d < 2 * t.half;
  float x[width];
  split_vector<T>(mine, x);
  if (t.interleaved) {
    if (!turns) return mine;
    ASSAY_UNROLL
    for (int e = 0; e < width; e += 2) {
      const float2 pair = turned(x[e], x[e + 1], a.c[e / 2], a.s[e / 2]);
      x[e] = pair.x;
      x[e + 1] = pair.y;
    }
    return round_vector<T>(x);
  }
  const int32_t from = (turns ? low ? d + t.half : d - t.half : d) / width;
  const unsigned mask = group_mask<lanes>();
  const uint4 other = make_uint4(__shfl_sync(mask, mine.x, from, lanes), __shfl_sync(mask, mine.y, from, lanes),
                                 __shfl_sync(mask, mine.z, from, lanes), __shfl_sync(mask, mine.w, from, lanes));
  if (!turns) return mine;
  float y[width];
  split_vector<T>(other, y);
  ASSAY_UNROLL
  for (int e = 0; e < width; ++e) {
    const float2 pair = turned(low ? x[e] : y[e], low ? y[e] : x[e], a.c[e], a.s[e]);
    x[e] = low ? pair.x : pair.y;
  }
  return round_vector<T>(x);
}

/* norm_rope_vectors: `lanes` neighbouring lanes per head, one vector of its channels each. Angles and weights that are
 * settled are read before the wait.
 * Grid:   (N rows, pieces of a row). Block: 32 to 128 threads: heads of q, then of k, then of v.
 * Shared: none.
 * Align:  every base and distance of rows is a multiple of 16 bytes; halves (neox) or R (interleaved) of whole vectors;
 *         K, and V where its channels are neighbours, multiples of as many elements.
 * Arch:   any.
 * Limit:  bytes: 2 D sizeof(T) per head of q, D * (sizeof(T) + sizeof(KV)) per head of k and v. */
template <class T, class KV, int lanes> __global__ void __launch_bounds__(128) norm_rope_vectors(norm_rope_params p) {
  constexpr int width = vector_width<T>;
  const rope_append_params &at = p.at;
  const int32_t thread = vector_of_thread(), lane = thread % lanes, d = width * lane;
  const int64_t row = blockIdx.x;
  const head_place mine = place_of_head(at, thread / lanes);
  const bool there = d < at.D && (mine.is_q || mine.is_k);
  lane_angles<T> angles;
  dependents_launch();
  if (!p.angles_early) dependency_wait();
  if (there) load_lane_angles<T>(at.angles, row, d, angles);
  if (p.angles_early && !p.weights_early) dependency_wait();
  const uclip_vector<T> weights(mine.is_q ? p.q : p.k, there ? d : 0);
  if (p.angles_early && p.weights_early) dependency_wait();

  const slot_place to = place_of_slot(at.cache, at.slots[row], at.pool_slots);
  if (!mine.is_q && !mine.is_k) { /* v; the same for all lanes of the head */
    const T *const from = head_of<T>(at, at.v, row, mine.head) + d;
    if (mine.is_v && d < at.D && to.block >= 0) store_v_vector<T, KV>(at, to, mine.head, d, from, load_vector(from));
    return;
  }
  uint4 x = {};
  if (there) x = load_vector(head_of<T>(at, mine.is_q ? at.q : at.k, row, mine.head) + d);
  x = turned_by_lanes<T, lanes>(at.angles, d, angles, normed_by_lanes<T, lanes>(p, weights, x));
  if (!there) return;
  if (mine.is_q)
    store_vector(head_of<T>(at, at.q_to, row, mine.head) + d, x);
  else
    store_k_vector<T, KV>(at, row, to, mine.head, d, x);
}

/* ---- launchers --------------------------------------------------------------------------------------- */

struct norm_rope_plan {
  norm_rope_params p;
  attention_types types;
};

/* Reads a weight of 1 or D elements; alpha may be absent, and is absent with kind rms. */
assay_status read_weight_of(const assay_call *call, const char *name, assay_dtype type, int32_t D, bool optional,
                            channel_weight *made, assay_error *error) {
  const assay_tensor *tensor;
  *made = channel_weight();
  ASSAY_TRY(find_tensor(call, name, 1, optional, &tensor, error));
  if (tensor == NULL) return ASSAY_OK;
  ASSAY_TRY(expect_dtype(tensor, name, type, error));
  if (tensor->shape[0] != 1 && tensor->shape[0] != D)
    return assay_fail(error, ASSAY_ERR_INPUT, "%s: found %" PRId64 " elements, allowed 1 or %d", name, tensor->shape[0],
                      D);
  ASSAY_TRY(expect_stride(tensor, name, 0, 1, error));
  made->data = tensor->data;
  made->one = tensor->shape[0] == 1;
  return ASSAY_OK;
}

assay_status read_call(const assay_call *call, norm_rope_plan *plan, assay_error *error) {
  rope_append_plan append;
  int64_t kind, round_inner;
  double eps;
  ASSAY_TRY(read_rope_append(call, &append, error));
  *plan = norm_rope_plan();
  norm_rope_params *const p = &plan->p;
  p->at = append.p;
  plan->types = append.types;
  ASSAY_TRY(attention_integer(call, "kind", 0, 1, &kind, error));
  ASSAY_TRY(attention_real(call, "eps", 1e-12, 1, &eps, error));
  ASSAY_TRY(attention_integer(call, "round_inner", 0, 1, &round_inner, error));
  p->rms = kind == 0;
  p->eps = static_cast<float>(eps);
  p->round_inner = round_inner != 0;
  const assay_dtype type = plan->types.q;
  const int32_t D = p->at.D;
  const char *const none_with_rms[] = {"q_alpha", "k_alpha"};
  for (const char *name : none_with_rms) {
    const assay_tensor *const alpha = named_tensor(call, name);
    if (p->rms && alpha != NULL && alpha->data != NULL)
      return assay_fail(error, ASSAY_ERR_INPUT, "%s: found a tensor, allowed none with kind rms", name);
  }
  ASSAY_TRY(read_weight_of(call, "q_gamma", type, D, false, &p->q.gamma, error));
  ASSAY_TRY(read_weight_of(call, "k_gamma", type, D, false, &p->k.gamma, error));
  ASSAY_TRY(read_weight_of(call, "q_alpha", type, D, true, &p->q.alpha, error));
  return read_weight_of(call, "k_alpha", type, D, true, &p->k.alpha, error);
}

assay_status launch(const assay_call *call, assay_env *env, assay_error *error) {
  norm_rope_plan plan;
  ASSAY_TRY(read_call(call, &plan, error));
  const rope_append_params &at = plan.p.at;
  const int64_t heads = at.N * (at.H + 2 * static_cast<int64_t>(at.H_kv));
  (void)snprintf(env->path, sizeof env->path, "heads %s style=%s R=%d D=%d", plan.p.rms ? "rms" : "uclip",
                 rope_style_name(at.angles), 2 * at.angles.half, at.D);
  if (at.N == 0) return ASSAY_OK;
  return with_types(plan.types.q, plan.types.kv, [&](auto t, auto kv) {
    using T = typename decltype(t)::type;
    using KV = typename decltype(kv)::type;
    return ASSAY_LAUNCH(error, (norm_rope_heads<T, KV>), (heads + warps - 1) / warps, 32 * warps, 0, env->stream,
                        plan.p);
  });
}

assay_status read_vectors(const assay_call *call, norm_rope_plan *plan, assay_error *error) {
  ASSAY_TRY(read_call(call, plan, error));
  const norm_rope_params &p = plan->p;
  const int32_t width = static_cast<int32_t>(16 / assay_dtype_size(plan->types.q));
  const int32_t pairs = p.at.angles.interleaved ? 2 * p.at.angles.half : p.at.angles.half;
  if (p.at.D % width != 0 || pairs % width != 0)
    return assay_fail(error, ASSAY_ERR_UNSUPPORTED, "R: found %d of %d, taken here: %s of whole vectors of %d",
                      2 * p.at.angles.half, p.at.D, p.at.angles.interleaved ? "R" : "halves", width);
  if (p.at.D > 32 * width)
    return assay_fail(error, ASSAY_ERR_UNSUPPORTED, "D: found %d, taken here: up to %d", p.at.D, 32 * width);
  const channel_weight *const weights[] = {&p.q.gamma, &p.k.gamma, &p.q.alpha, &p.k.alpha};
  for (const channel_weight *w : weights)
    if (!w->one && reinterpret_cast<uintptr_t>(w->data) % 16 != 0)
      return assay_fail(error, ASSAY_ERR_UNSUPPORTED,
                        "call: found weights whose base is no whole vector, taken here: multiples of 16 bytes");
  return expect_append_vectors({p.at, plan->types}, error);
}

/* Says whether all of these arguments are settled. Those that are absent do not count. */
bool all_settled(const assay_call *call, const assay_env &env, const char *const (&names)[4]) {
  for (const char *name : names) {
    const assay_tensor *const found = named_tensor(call, name);
    if (found != NULL && found->data != NULL && !is_settled(call, env, name)) return false;
  }
  return true;
}

assay_status launch_vectors(const assay_call *call, assay_env *env, assay_error *error) {
  norm_rope_plan plan;
  ASSAY_TRY(read_vectors(call, &plan, error));
  norm_rope_params *const p = &plan.p;
  const rope_append_params &at = p->at;
  const int32_t vectors = at.D / static_cast<int32_t>(16 / assay_dtype_size(plan.types.q));
  const int32_t lanes = vectors <= 8 ? 8 : vectors <= 16 ? 16 : 32, threads = (at.H + 2 * at.H_kv) * lanes;
  p->angles_early = all_settled(call, *env, {"cos", "sin", "positions", "positions"});
  p->weights_early = all_settled(call, *env, {"q_gamma", "k_gamma", "q_alpha", "k_alpha"});
  (void)snprintf(env->path, sizeof env->path, "vectors %s style=%s R=%d D=%d v=%s%s%s", p->rms ? "rms" : "uclip",
                 rope_style_name(at.angles), 2 * at.angles.half, at.D, at.cache.v_channel == 1 ? "vectors" : "elements",
                 p->angles_early ? " early" : "", p->angles_early && p->weights_early ? " weights" : "");
  if (at.N == 0) return ASSAY_OK;
  const int32_t block = threads < 128 ? (threads + 31) / 32 * 32 : 128;
  return with_types(plan.types.q, plan.types.kv, [&](auto t, auto kv) {
    using T = typename decltype(t)::type;
    using KV = typename decltype(kv)::type;
    const auto start = [&](auto kernel) {
      return ASSAY_LAUNCH_WITH(error, kernel, launch_extent(at.N, (threads + block - 1) / block), block, 0, in_turn(),
                               env->stream, *p);
    };
    if (lanes == 8) return start(norm_rope_vectors<T, KV, 8>);
    if (lanes == 16) return start(norm_rope_vectors<T, KV, 16>);
    return start(norm_rope_vectors<T, KV, 32>);
  });
}

/* Sums over a head run on 8, 16 or 32 lanes. */
constexpr assay_contract contract = {.exp_ulp = 1.5,
                                     .qk_lanes = 1,
                                     .pv_lanes = 1,
                                     .zero_p_v = ASSAY_V_MULTIPLIED,
                                     .run_to_run = true,
                                     .renumbering = true,
                                     .permutation = true,
                                     .lanes = 8,
                                     .alone = true,
                                     .rescales = true};

} // namespace
} // namespace ASSAY_NS

#define HEADS                                                                                                          \
  PLAIN_VARIANT("norm_rope_append", "heads", "one warp a head, any layout",                                            \
                ASSAY_TYPE_CLAIMS "|nhd,hnd,x|decode,prefill,chunked,mixed", contract, norm_rope_plan, read_call,      \
                launch)
#define VECTORS                                                                                                        \
  PLAIN_VARIANT("norm_rope_append", "vectors", "16 bytes a load, q, k and v in one launch",                            \
                ASSAY_TYPE_CLAIMS "|nhd,hnd,x|decode,prefill,chunked,mixed", contract, norm_rope_plan, read_vectors,   \
                launch_vectors)

ASSAY_VARIANTS(norm_rope_append, VECTORS, HEADS)
