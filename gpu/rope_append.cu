/* rope_append.cu: turns q by the angles of its position; turns k, rounds it to its type and writes it with v to its
 * slot of the paged cache. The results are those of rope and then kv_append, bit for bit.
 *
 * vectors: 16 bytes per load, any layout. rows: one block per row, any layout and alignment. A row without a slot
 * writes nothing to the cache; its q is turned all the same. A position outside the tables turns nothing, and nothing
 * outside them is read. docs/kernels/rope_append.md has the arithmetic. */
#include "gpu/lib/rope_append.cuh"

namespace ASSAY_NS {
namespace {

constexpr int max_threads = 256;

/* ---- by element -------------------------------------------------------------------------------------- */

template <class T> __device__ __forceinline__ void turn_q(const rope_append_params &p, int64_t row, int64_t at) {
  const int32_t thread = static_cast<int32_t>(threadIdx.x), threads = static_cast<int32_t>(blockDim.x);
  const int32_t half = p.angles.half, rest = p.q_apart ? p.D - 2 * half : 0, apart = pair_apart(p.angles);
  for (int32_t item = thread; item < p.H * half; item += threads) {
    const int32_t head = item / half, i = item - head * half, a = first_of_pair(p.angles, i);
    const T *const from = head_of<T>(p, p.q, row, head);
    T *const to = head_of<T>(p, p.q_to, row, head);
    const float2 pair = turned_pair(p.angles, at, i, from[a], from[a + apart]);
    to[a] = from_float<T>(pair.x);
    to[a + apart] = from_float<T>(pair.y);
  }
  for (int32_t item = thread; item < p.H * rest; item += threads) {
    const int32_t head = item / rest, d = 2 * half + (item - head * rest);
    head_of<T>(p, p.q_to, row, head)[d] = head_of<T>(p, p.q, row, head)[d];
  }
}

template <class T, class KV>
__device__ __forceinline__ void turn_k(const rope_append_params &p, int64_t row, int64_t at, const slot_place &to) {
  const int32_t thread = static_cast<int32_t>(threadIdx.x), threads = static_cast<int32_t>(blockDim.x);
  const int32_t half = p.angles.half, rest = p.D - 2 * half, apart = pair_apart(p.angles);
  for (int32_t item = thread; item < p.H_kv * half; item += threads) {
    const int32_t head = item / half, i = item - head * half, a = first_of_pair(p.angles, i);
    const T *const from = head_of<T>(p, p.k, row, head);
    const float2 pair = turned_pair(p.angles, at, i, from[a], from[a + apart]);
    store_k<T, KV>(p, row, to, head, a, from_float<T>(pair.x));
    store_k<T, KV>(p, row, to, head, a + apart, from_float<T>(pair.y));
  }
  for (int32_t item = thread; item < p.H_kv * rest; item += threads) {
    const int32_t head = item / rest, d = 2 * half + (item - head * rest);
    store_k<T, KV>(p, row, to, head, d, head_of<T>(p, p.k, row, head)[d]);
  }
}

/* rope_append_rows: q, then k, then v of a row.
 * Grid:   (N rows). Block: 32 to 256 threads: one per pair of a head, then one per channel that is not rotated, or of
 * v. Shared: none. Align:  by element; neighbouring threads take neighbouring pairs and channels. Arch:   any. Limit:
 * bytes: 4 * sizeof(T) per pair of q, D * (sizeof(T) + sizeof(KV)) a head of k and of v. */
template <class T, class KV> __global__ void __launch_bounds__(max_threads) rope_append_rows(rope_append_params p) {
  const int64_t row = blockIdx.x, at = angles_of(p.angles, position_of(p.angles, row));
  const slot_place to = place_of_slot(p.cache, p.slots[row], p.pool_slots);
  turn_q<T>(p, row, at);
  if (to.block < 0 && p.k_out == nullptr) return;
  turn_k<T, KV>(p, row, at, to);
  if (to.block < 0) return;
  for (int32_t item = static_cast<int32_t>(threadIdx.x); item < p.H_kv * p.D;
       item += static_cast<int32_t>(blockDim.x)) {
    const int32_t head = item / p.D, d = item - head * p.D;
    *element_to<KV>(p.cache.v, v_offset(p.cache, to.block, to.offset, head) + d * p.cache.v_channel) =
        stored<KV>(head_of<T>(p, p.v, row, head)[d], v_scale_of(p.cache, head));
  }
}

/* ---- whole vectors ----------------------------------------------------------------------------------- */

/* The items of a row. A head of q and of k has `turned` items (neox: two vectors each), then its unrotated vectors. */
struct vector_items {
  int32_t turned, q, k, v;
};

template <class T, bool interleaved>
__host__ __device__ __forceinline__ vector_items items_of(const rope_append_params &p) {
  constexpr int width = vector_width<T>;
  const int32_t half = p.angles.half, rest = (p.D - 2 * half) / width;
  const int32_t turned = (interleaved ? 2 * half : half) / width;
  return {turned, turned + (p.q_apart ? rest : 0), turned + rest, p.D / width};
}

/* rope_append_vectors. neox: a vector of the first half and its partners in the second; interleaved: the pairs of one
 * vector. Vectors that are copied follow, then those of v. Values are loaded before position and slot.
 * Grid:   (N rows, pieces of a row). Block: 32 to 256 threads: heads of q, then of k, then of v.
 * Shared: none.
 * Align:  every base and distance of rows is a multiple of 16 bytes; halves (neox) or R (interleaved) of whole vectors;
 *         K, and V where its channels are neighbours, multiples of as many elements.
 * Arch:   any.
 * Limit:  bytes: 4 * sizeof(T) per pair of q, D * (sizeof(T) + sizeof(KV)) a head of k and of v. */
template <class T, class KV, bool interleaved>
__global__ void __launch_bounds__(max_threads) rope_append_vectors(rope_append_params p) {
  constexpr int width = vector_width<T>;
  take_turn();
  const int64_t row = blockIdx.x;
  const vector_items items = items_of<T, interleaved>(p);
  const int32_t q_items = p.H * items.q, k_items = p.H_kv * items.k;
  int32_t item = vector_of_thread();
  if (item >= q_items + k_items) { /* v */
    item -= q_items + k_items;
    if (item >= p.H_kv * items.v) return;
    const int32_t head = item / items.v, d = (item - head * items.v) * width;
    const T *const from = head_of<T>(p, p.v, row, head) + d;
    const uint4 v = load_vector(from);
    const slot_place to = place_of_slot(p.cache, p.slots[row], p.pool_slots);
    if (to.block >= 0) store_v_vector<T, KV>(p, to, head, d, from, v);
    return;
  }
  const bool is_q = item < q_items;
  if (!is_q) item -= q_items;
  const int32_t head = item / (is_q ? items.q : items.k), place = item - head * (is_q ? items.q : items.k);
  const bool turns = place < items.turned;
  const int32_t d = turns ? place * width : 2 * p.angles.half + (place - items.turned) * width;
  const T *const from = head_of<T>(p, is_q ? p.q : p.k, row, head) + d;
  rope_vectors_of pairs = {};
  if (turns)
    pairs = load_pairs<T, interleaved>(p.angles, from);
  else
    pairs.low = load_vector(from);
  if (turns) pairs = turn_vectors<T, interleaved>(p.angles, angles_of(p.angles, position_of(p.angles, row)), d, pairs);
  if (is_q) {
    T *const to = head_of<T>(p, p.q_to, row, head) + d;
    if (turns)
      store_pairs<T, interleaved>(p.angles, to, pairs);
    else
      store_vector(to, pairs.low);
    return;
  }
  const slot_place to = place_of_slot(p.cache, p.slots[row], p.pool_slots);
  store_k_vector<T, KV>(p, row, to, head, d, pairs.low);
  if (turns && !interleaved) store_k_vector<T, KV>(p, row, to, head, d + p.angles.half, pairs.high);
}

/* ---- launchers --------------------------------------------------------------------------------------- */

assay_status launch(const assay_call *call, assay_env *env, assay_error *error) {
  rope_append_plan plan;
  ASSAY_TRY(read_rope_append(call, &plan, error));
  const rope_append_params &p = plan.p;
  const int64_t warps = (static_cast<int64_t>(p.H) * p.angles.half + 31) / 32;
  const int64_t threads = warps * 32 < max_threads ? warps * 32 : max_threads;
  (void)snprintf(env->path, sizeof env->path, "rows style=%s R=%d D=%d", rope_style_name(p.angles), 2 * p.angles.half,
                 p.D);
  if (p.N == 0) return ASSAY_OK;
  return with_types(plan.types.q, plan.types.kv, [&](auto t, auto kv) {
    using T = typename decltype(t)::type;
    using KV = typename decltype(kv)::type;
    return ASSAY_LAUNCH(error, (rope_append_rows<T, KV>), p.N, threads, 0, env->stream, p);
  });
}

assay_status read_vectors(const assay_call *call, rope_append_plan *plan, assay_error *error) {
  ASSAY_TRY(read_rope_append(call, plan, error));
  const rope_append_params &p = plan->p;
  const assay_dtype type = plan->types.q;
  const int32_t width = static_cast<int32_t>(16 / assay_dtype_size(type));
  const int32_t pairs = p.angles.interleaved ? 2 * p.angles.half : p.angles.half;
  if (p.D % width != 0 || pairs % width != 0)
    return assay_fail(error, ASSAY_ERR_UNSUPPORTED, "R: found %d of %d, taken here: %s of whole vectors of %d",
                      2 * p.angles.half, p.D, p.angles.interleaved ? "R" : "halves", width);
  return expect_append_vectors(*plan, error);
}

assay_status launch_vectors(const assay_call *call, assay_env *env, assay_error *error) {
  rope_append_plan plan;
  ASSAY_TRY(read_vectors(call, &plan, error));
  const rope_append_params &p = plan.p;
  (void)snprintf(env->path, sizeof env->path, "vectors style=%s R=%d D=%d v=%s", rope_style_name(p.angles),
                 2 * p.angles.half, p.D, p.cache.v_channel == 1 ? "vectors" : "elements");
  if (p.N == 0) return ASSAY_OK;
  return with_types(plan.types.q, plan.types.kv, [&](auto t, auto kv) {
    using T = typename decltype(t)::type;
    using KV = typename decltype(kv)::type;
    const auto start = [&](auto kernel, const vector_items &items) {
      const int32_t all = p.H * items.q + p.H_kv * (items.k + items.v);
      const vector_grid grid = split_vectors(p.N, all * vector_width<T>, plan.types.q, 1);
      return ASSAY_LAUNCH_WITH(error, kernel, launch_extent(grid.groups, grid.pieces), grid.threads, 0, in_turn(),
                               env->stream, p);
    };
    return p.angles.interleaved ? start(rope_append_vectors<T, KV, true>, items_of<T, true>(p))
                                : start(rope_append_vectors<T, KV, false>, items_of<T, false>(p));
  });
}

} // namespace
} // namespace ASSAY_NS

#define ROWS                                                                                                           \
  PLAIN_VARIANT("rope_append", "rows", "one block a row, any layout",                                                  \
                ASSAY_TYPE_CLAIMS "|nhd,hnd,x|decode,prefill,chunked,mixed", rope_append_contract, rope_append_plan,   \
                read_rope_append, launch)
#define VECTORS                                                                                                        \
  PLAIN_VARIANT("rope_append", "vectors", "16 bytes a load, q, k and v in one launch",                                 \
                ASSAY_TYPE_CLAIMS "|nhd,hnd,x|decode,prefill,chunked,mixed", rope_append_contract, rope_append_plan,   \
                read_vectors, launch_vectors)

ASSAY_VARIANTS(rope_append, VECTORS, ROWS)
