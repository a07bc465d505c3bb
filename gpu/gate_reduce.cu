/* gate_reduce.cu: out = sum over splits of partial[splits, N, H, D], in the order of the splits.
 *
 * vectors: four threads share the splits of a vector of channels. quads: one thread adds all splits of four channels.
 * docs/kernels/gate_reduce.md has the arithmetic. */
#include "gpu/lib/launch.h"
#include "gpu/lib/plain.h"
#include "gpu/lib/vec.cuh"
#include "gpu/lib/vectors.cuh"

namespace ASSAY_NS {
namespace {

struct reduce_params {
  const void *partial;
  void *out;
  int64_t elements; /* N * H * D, a multiple of 8 */
  int32_t splits;
  bool aligned; /* partial: quads on multiples of their size */
  assay_dtype type, out_type;
};

constexpr int reduce_threads = 256;

/* add_splits: four neighbouring channels of one row and head.
 * Grid:   (elements / 1024). Block: 256 threads.
 * Shared: none.
 * Align:  quads where the base allows, else by element; stores by element.
 * Arch:   any.
 * Limit:  bytes: sizeof(partial) * splits + sizeof(out) per element. */
template <class T, class Out> __global__ void __launch_bounds__(reduce_threads) add_splits(reduce_params p) {
  const int64_t first = (static_cast<int64_t>(blockIdx.x) * reduce_threads + threadIdx.x) * 4;
  if (first >= p.elements) return;
  float sum[4] = {0.0f, 0.0f, 0.0f, 0.0f};
  for (int32_t s = 0; s < p.splits; ++s) {
    const quad<T> part = load_quad(static_cast<const T *>(p.partial) + s * p.elements + first, p.aligned);
    ASSAY_UNROLL
    for (int e = 0; e < 4; ++e)
      sum[e] += to_float(part.element[e]);
  }
  ASSAY_UNROLL
  for (int e = 0; e < 4; ++e)
    static_cast<Out *>(p.out)[first + e] = from_float<Out>(sum[e]);
}

assay_status read_call(const assay_call *call, reduce_params *p, assay_error *error) {
  plain_call c;
  ASSAY_TRY(plain_read(call, &c, error));
  ASSAY_TRY(expect_type("partial", c.type("partial"), error));
  ASSAY_TRY(expect_type("out", c.type("out"), error));
  p->partial = c.data<const void>("partial");
  p->out = c.data<void>("out");
  p->splits = c.dim32("splits");
  p->elements = c.dim("N") * c.dim("H") * c.dim("D");
  p->type = c.type("partial");
  p->out_type = c.type("out");
  p->aligned = reinterpret_cast<uintptr_t>(p->partial) % static_cast<uintptr_t>(4 * assay_dtype_size(p->type)) == 0;
  return ASSAY_OK;
}

assay_status launch(const assay_call *call, assay_env *env, assay_error *error) {
  reduce_params p;
  ASSAY_TRY(read_call(call, &p, error));
  (void)snprintf(env->path, sizeof env->path, "quads aligned=%d", p.aligned);
  const int64_t blocks = (p.elements / 4 + reduce_threads - 1) / reduce_threads;
  return with_type(p.type, [&](auto type) {
    return with_type(p.out_type, [&](auto out) {
      using T = typename decltype(type)::type;
      using Out = typename decltype(out)::type;
      return ASSAY_LAUNCH(error, (add_splits<T, Out>), blocks, reduce_threads, 0, env->stream, p);
    });
  });
}

/* ---- whole vectors ----------------------------------------------------------------------------------- */

constexpr int share_warps = 4, in_flight = 4;

/* share_splits: warp w of a block adds the splits w, w + 4, ... of 32 vectors, and loads `in_flight` splits at once.
 * The four sums meet in shared memory. Grid:   (vectors / 32). Block: 128 threads. Shared: 1.5 KB (f32) or 3 KB. Align:
 * bases are multiples of 16 bytes; so are the splits, because N H D is a multiple of 8. Arch:   any. Limit:  bytes:
 * sizeof(partial) * splits + sizeof(out) per element. */
template <class T, class Out> __global__ void __launch_bounds__(32 * share_warps) share_splits(reduce_params p) {
  constexpr int width = vector_width<T>;
  take_turn();
  ASSAY_SHARED(float, sums, (share_warps - 1) * 32 * width);
  const int32_t warp = static_cast<int32_t>(threadIdx.x) / 32, lane = static_cast<int32_t>(threadIdx.x) % 32;
  const int64_t first = (static_cast<int64_t>(blockIdx.x) * 32 + lane) * width;
  const bool mine = first < p.elements;
  float sum[width] = {}, v[width];
  for (int32_t s = warp; s < p.splits; s += share_warps * in_flight) {
    uint4 part[in_flight] = {};
    ASSAY_UNROLL
    for (int i = 0; i < in_flight; ++i) {
      const int32_t split = s + share_warps * i;
      if (mine && split < p.splits)
        part[i] = load_vector(static_cast<const T *>(p.partial) + split * p.elements + first);
    }
    ASSAY_UNROLL
    for (int i = 0; i < in_flight; ++i) {
      split_vector<T>(part[i], v);
      ASSAY_UNROLL
      for (int e = 0; e < width; ++e)
        sum[e] += v[e];
    }
  }
  if (warp > 0) {
    ASSAY_UNROLL
    for (int e = 0; e < width; ++e)
      sums[((warp - 1) * width + e) * 32 + lane] = sum[e];
  }
  __syncthreads(); /* the other warps' sums are written */
  if (warp > 0 || !mine) return;
  ASSAY_UNROLL
  for (int w = 0; w < share_warps - 1; ++w) {
    ASSAY_UNROLL
    for (int e = 0; e < width; ++e)
      sum[e] += sums[(w * width + e) * 32 + lane];
  }
  store_rounded(static_cast<Out *>(p.out) + first, sum);
}

assay_status read_vectors(const assay_call *call, reduce_params *p, assay_error *error) {
  ASSAY_TRY(read_call(call, p, error));
  return expect_vectors(call, "N * H * D", p->elements, p->type, error);
}

assay_status launch_vectors(const assay_call *call, assay_env *env, assay_error *error) {
  reduce_params p;
  ASSAY_TRY(read_vectors(call, &p, error));
  (void)snprintf(env->path, sizeof env->path, "vectors");
  const int64_t vectors = p.elements / (16 / assay_dtype_size(p.type));
  return with_type(p.type, [&](auto type) {
    return with_type(p.out_type, [&](auto out) {
      using T = typename decltype(type)::type;
      using Out = typename decltype(out)::type;
      return ASSAY_LAUNCH_WITH(error, (share_splits<T, Out>), (vectors + 31) / 32, 32 * share_warps, 0, in_turn(),
                               env->stream, p);
    });
  });
}

/* Four running sums in f32, however many splits there are. */
constexpr assay_contract vectors_contract = {.qk_lanes = 1,
                                             .pv_lanes = 1,
                                             .zero_p_v = ASSAY_V_MULTIPLIED,
                                             .run_to_run = true,
                                             .renumbering = true,
                                             .permutation = true,
                                             .lanes = 4,
                                             .alone = true};

/* One running sum in f32. */
constexpr assay_contract contract = {.qk_lanes = 1,
                                     .pv_lanes = 1,
                                     .zero_p_v = ASSAY_V_MULTIPLIED,
                                     .run_to_run = true,
                                     .renumbering = true,
                                     .permutation = true,
                                     .lanes = 1,
                                     .alone = true};

} // namespace
} // namespace ASSAY_NS

#ifdef ASSAY_FEW_TYPES
#define REDUCE_CLAIMS "f32,bf16|same,f32,bf16"
#else
#define REDUCE_CLAIMS "f32,f16,bf16|same,f32,f16,bf16"
#endif

#define VECTORS                                                                                                        \
  PLAIN_VARIANT("gate_reduce", "vectors", "16 bytes a load, splits shared by four warps", REDUCE_CLAIMS,               \
                vectors_contract, reduce_params, read_vectors, launch_vectors)
#define QUADS                                                                                                          \
  PLAIN_VARIANT("gate_reduce", "quads", "four channels a thread, splits in their order", REDUCE_CLAIMS, contract,      \
                reduce_params, read_call, launch)

ASSAY_VARIANTS(gate_reduce, VECTORS, QUADS)
