/* kv_append.cu: writes new keys and values to their slots of the paged cache, K[slot] = store(k), V[slot] = store(v).
 *
 * vectors_to_slots: 16 bytes per load; rows_to_slots: one block per row, any layout and alignment.
 * docs/kernels/kv_append.md has the arithmetic. */
#include "gpu/lib/append.cuh"
#include "gpu/lib/append_vectors.cuh"
#include "gpu/lib/launch.h"
#include "gpu/lib/schedules.cuh"
#include "gpu/lib/vectors.cuh"

namespace ASSAY_NS {
namespace {

struct append_params {
  paged_cache cache;
  new_rows k, v;
  const int64_t *slots;
  int64_t N, pool_slots;
  int32_t H_kv, D, D_v;
  bool quads, v_quads; /* quads: of the new rows and of K; v_quads: of V */
};

constexpr int append_threads = 128;

/* rows_to_slots: one new token, K and V of every kv head.
 * Grid:   (N rows). Block: 128 threads, one per quad of channels of K, then of V. A row with slot -1, or one outside
 * the pool, writes nothing. Shared: none. Align:  quads where base and strides allow, else by element. In layout x the
 * channels of V lie block_size apart and are written one by one. Arch:   any. Limit:  bytes: H_kv * (D + D_v) *
 * (sizeof(T) + sizeof(KV)) per row; layout x writes 16 bytes of K and one element of V at a time. */
template <class T, class KV> __global__ void __launch_bounds__(append_threads) rows_to_slots(append_params p) {
  const int64_t row = blockIdx.x;
  const slot_place at = place_of_slot(p.cache, p.slots[row], p.pool_slots);
  if (at.block < 0) return;
  const int32_t k_quads = p.D / 4, quads = p.D_v / 4;
  for (int32_t i = static_cast<int32_t>(threadIdx.x); i < p.H_kv * k_quads; i += append_threads) {
    const int32_t head = i / k_quads, d = i % k_quads * 4;
    const int64_t channel = static_cast<int64_t>(head) * p.D + d;
    const quad<T> k = load_quad(element_at<T>(p.k.data, row * p.k.apart + channel), p.quads);
    const float k_scale = k_scale_of(p.cache, head);
    quad<KV> k_code;
    ASSAY_UNROLL
    for (int e = 0; e < 4; ++e)
      k_code.element[e] = stored<KV>(k.element[e], k_scale);
    const int64_t k_to = k_offset(p.cache, at.block, at.offset, head) + k_channel(p.cache, d);
    store_quad(element_to<KV>(p.cache.k, k_to), k_code, p.cache.quads);
  }
  for (int32_t i = static_cast<int32_t>(threadIdx.x); i < p.H_kv * quads; i += append_threads) {
    const int32_t head = i / quads, d = i % quads * 4;
    const int64_t channel = static_cast<int64_t>(head) * p.D_v + d;
    const quad<T> v = load_quad(element_at<T>(p.v.data, row * p.v.apart + channel), p.quads);
    const float v_scale = v_scale_of(p.cache, head);
    quad<KV> v_code;
    ASSAY_UNROLL
    for (int e = 0; e < 4; ++e)
      v_code.element[e] = stored<KV>(v.element[e], v_scale);
    const int64_t v_to = v_offset(p.cache, at.block, at.offset, head) + d * p.cache.v_channel;
    if (p.cache.v_channel == 1) {
      store_quad(element_to<KV>(p.cache.v, v_to), v_code, p.v_quads);
    } else {
      ASSAY_UNROLL
      for (int e = 0; e < 4; ++e)
        *element_to<KV>(p.cache.v, v_to + e * p.cache.v_channel) = v_code.element[e];
    }
  }
}

/* ---- launcher ---------------------------------------------------------------------------------------- */

struct append_plan {
  append_params p;
  attention_types types;
};

assay_status read_call(const assay_call *call, append_plan *plan, assay_error *error) {
  *plan = append_plan();
  append_params *const p = &plan->p;
  attention_params a = attention_params(); /* the part that knows the cache */
  const assay_tensor *k, *v;
  ASSAY_TRY(find_tensor(call, "k", 3, false, &k, error));
  if (k->dtype != ASSAY_F32 && k->dtype != ASSAY_F16 && k->dtype != ASSAY_BF16)
    return assay_fail(error, ASSAY_ERR_INPUT, "k: found dtype %s, allowed f32, f16, bf16", assay_dtype_name(k->dtype));
  ASSAY_TRY(expect_range("N", k->shape[0], 0, INT32_MAX, 1, error));
  ASSAY_TRY(expect_range("H_kv", k->shape[1], 1, 256, 1, error));
  ASSAY_TRY(expect_range("D", k->shape[2], 8, attention_max_D, 8, error));
  p->N = a.N = k->shape[0];
  p->H_kv = a.H = static_cast<int32_t>(k->shape[1]);
  p->D = a.D = static_cast<int32_t>(k->shape[2]);
  plan->types.q = k->dtype;
  ASSAY_TRY(read_new_rows(call, "k", k->dtype, p->N, p->H_kv, p->D, &p->k, error));
  ASSAY_TRY(find_tensor(call, "v", 3, false, &v, error));
  ASSAY_TRY(expect_range("D_v, v", v->shape[2], 8, attention_max_D, 8, error));
  p->D_v = static_cast<int32_t>(v->shape[2]);
  ASSAY_TRY(read_new_rows(call, "v", k->dtype, p->N, p->H_kv, p->D_v, &p->v, error));
  ASSAY_TRY(read_cache(call, &a, &plan->types, error));
  ASSAY_TRY(expect_range("D_v, v_cache", a.D_v, p->D_v, p->D_v, 1, error)); /* the channels of v */
  ASSAY_TRY(expect_range("H_kv", a.H_kv, p->H_kv, p->H_kv, 1, error));      /* the cache has the heads of k */
  ASSAY_TRY(read_scales(call, &a, &plan->types, error));
  ASSAY_TRY(expect_types(plan->types.q, plan->types.kv, error));
  ASSAY_TRY(read_slots(call, p->N, a.cache, &p->slots, &p->pool_slots, error));
  p->cache = a.cache;
  p->quads = rows_in_quads(p->k, k->dtype) && rows_in_quads(p->v, k->dtype);
  p->v_quads = v_in_quads(a.cache, plan->types.kv);
  return ASSAY_OK;
}

assay_status supports(const assay_call *call, assay_error *error) {
  append_plan plan;
  return read_call(call, &plan, error);
}

assay_status workspace(const assay_call *call, int64_t *bytes, assay_error *error) {
  *bytes = 0;
  return supports(call, error);
}

assay_status launch(const assay_call *call, assay_env *env, assay_error *error) {
  append_plan plan;
  ASSAY_TRY(read_call(call, &plan, error));
  const append_params &p = plan.p;
  (void)snprintf(env->path, sizeof env->path, "rows_to_slots quads=%d v_quads=%d", p.quads, p.v_quads);
  if (p.N == 0) return ASSAY_OK;
  return with_types(plan.types.q, plan.types.kv, [&](auto t, auto kv) {
    using T = typename decltype(t)::type;
    using KV = typename decltype(kv)::type;
    return ASSAY_LAUNCH(error, (rows_to_slots<T, KV>), p.N, append_threads, 0, env->stream, p);
  });
}

/* ---- whole vectors ----------------------------------------------------------------------------------- */

/* vectors_to_slots: one new token, K and V of every kv head, 16 bytes of each per thread. Both are loaded before the
 * slot is known. A row with slot -1, or one outside the pool, writes nothing.
 * Grid:   (N rows, pieces of a row). Block: 32 to 256 threads, one vector each.
 * Shared: none.
 * Align:  bases and rows of the new tokens are multiples of 16 bytes, those of K and V of as many elements. Channels
 *         of V are neighbours.
 * Arch:   any.
 * Limit:  bytes: 2 * H_kv * D * (sizeof(T) + sizeof(KV)) per row. */
template <class T, class KV> __global__ void __launch_bounds__(256) vectors_to_slots(append_params p) {
  constexpr int width = vector_width<T>;
  take_turn();
  const int64_t row = blockIdx.x, channel = static_cast<int64_t>(width) * vector_of_thread();
  if (channel >= static_cast<int64_t>(p.H_kv) * p.D) return;
  const uint4 k = load_vector(element_at<T>(p.k.data, row * p.k.apart + channel));
  const uint4 v = load_vector(element_at<T>(p.v.data, row * p.v.apart + channel));
  const slot_place at = place_of_slot(p.cache, p.slots[row], p.pool_slots);
  if (at.block < 0) return;
  const int32_t head = static_cast<int32_t>(channel) / p.D, d = static_cast<int32_t>(channel) - head * p.D;
  const int64_t k_to = k_offset(p.cache, at.block, at.offset, head) + k_channel(p.cache, d);
  const int64_t v_to = v_offset(p.cache, at.block, at.offset, head) + d;
  store_channels<T>(element_to<KV>(p.cache.k, k_to), k, k_scale_of(p.cache, head));
  store_channels<T>(element_to<KV>(p.cache.v, v_to), v, v_scale_of(p.cache, head));
}

/* Says whether rows, slots and heads lie whole vectors of the new type apart. */
bool in_vectors(const append_params &p, assay_dtype type, assay_dtype kv) {
  return p.D % (16 / assay_dtype_size(type)) == 0 && rows_in_vectors(p.k, type) && rows_in_vectors(p.v, type) &&
         k_in_vectors(p.cache, type, kv) && v_in_vectors(p.cache, type, kv);
}

assay_status read_vectors(const assay_call *call, append_plan *plan, assay_error *error) {
  ASSAY_TRY(read_call(call, plan, error));
  if (plan->p.D_v != plan->p.D)
    return assay_fail(error, ASSAY_ERR_UNSUPPORTED, "D_v: found %d, taken here: D = %d", plan->p.D_v, plan->p.D);
  if (plan->p.cache.v_channel != 1)
    return assay_fail(error, ASSAY_ERR_UNSUPPORTED, "layout: found x, taken here: nhd, hnd");
  if (!in_vectors(plan->p, plan->types.q, plan->types.kv))
    return assay_fail(error, ASSAY_ERR_UNSUPPORTED,
                      "call: found a base or a distance of rows that is no whole vector, taken here: multiples");
  return ASSAY_OK;
}

assay_status supports_vectors(const assay_call *call, assay_error *error) {
  append_plan plan;
  return read_vectors(call, &plan, error);
}

assay_status workspace_vectors(const assay_call *call, int64_t *bytes, assay_error *error) {
  *bytes = 0;
  return supports_vectors(call, error);
}

assay_status launch_vectors(const assay_call *call, assay_env *env, assay_error *error) {
  append_plan plan;
  ASSAY_TRY(read_vectors(call, &plan, error));
  const append_params &p = plan.p;
  const vector_grid grid = split_vectors(p.N, p.H_kv * p.D, plan.types.q, 1);
  (void)snprintf(env->path, sizeof env->path, "vectors_to_slots");
  if (p.N == 0) return ASSAY_OK;
  return with_types(plan.types.q, plan.types.kv, [&](auto t, auto kv) {
    using T = typename decltype(t)::type;
    using KV = typename decltype(kv)::type;
    return ASSAY_LAUNCH_WITH(error, (vectors_to_slots<T, KV>), launch_extent(grid.groups, grid.pieces), grid.threads, 0,
                             in_turn(), env->stream, p);
  });
}

/* There is one division and one rounding, as the definition has them; nothing is left to the contract. */
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

#define ROWS_TO_SLOTS                                                                                                  \
  {                                                                                                                    \
    sizeof(assay_variant), "kv_append", "rows_to_slots" ASSAY_VARIANT_SUFFIX, "one block a new token, any layout",     \
        ASSAY_DEVICE_NAME, "any", ASSAY_TYPE_CLAIMS "|nhd,hnd,x|decode,prefill,chunked,mixed", ::ASSAY_NS::contract,   \
        ::ASSAY_NS::supports, ::ASSAY_NS::workspace, ::ASSAY_NS::launch                                                \
  }
#define VECTORS_TO_SLOTS                                                                                               \
  {                                                                                                                    \
    sizeof(assay_variant), "kv_append", "vectors_to_slots" ASSAY_VARIANT_SUFFIX, "16 bytes a load, K and V together",  \
        ASSAY_DEVICE_NAME, "any", ASSAY_TYPE_CLAIMS "|nhd,hnd|decode,prefill,chunked,mixed", ::ASSAY_NS::contract,     \
        ::ASSAY_NS::supports_vectors, ::ASSAY_NS::workspace_vectors, ::ASSAY_NS::launch_vectors                        \
  }

ASSAY_VARIANTS(kv_append, VECTORS_TO_SLOTS, ROWS_TO_SLOTS)
