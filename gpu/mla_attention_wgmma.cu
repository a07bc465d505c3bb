/* mla_attention_wgmma.cu: absorbed attention over a latent cache on Hopper's tensor cores. A block has 64 rows of one
 * request, and all or a run of its keys. With few requests the keys are split over blocks, and a second launch merges
 * the partial results. docs/kernels/mla_attention.md has the schedule. */
#include "gpu/lib/mla_wgmma.cuh"

namespace ASSAY_NS {
namespace {

constexpr int32_t merge_threads = 512;

/* latent_wgmma: 64 rows of one request over a run of its keys.
 * Grid:   splits · places, places = N H / 64 and one more a request where 64 does not divide H. Block: 384 threads:
 * loading, scoring and lower sums, upper sums. Shared: 230 KB: queries, two tiles of 64 entries, weights; swizzled by
 * 128 bytes. Align:  q, cache and words by multiples of 16 bytes. out by pairs of 4 bytes. Arch:   sm_90a. Limit:
 * flops: 2 · 1088 a key, row and head; with few heads bytes: 1152 or 656 an entry. */
template <class T, bool words>
__global__ void __launch_bounds__(latent_threads, 1)
    latent_wgmma(const __grid_constant__ tensor_map map_q, const __grid_constant__ tensor_map map_k, latent_params p) {
  constexpr int loading = words ? 88 : 24, computing = (504 - loading) / 2; /* 384 threads begin with 168 */
  ASSAY_DYNAMIC_SHARED_1024(unsigned char, shared);
  latent_control *const control = reinterpret_cast<latent_control *>(shared + control_at);
  if (threadIdx.x == 0) {
    mbarrier_init(&control->q_full, 1);
    for (int i = 0; i < stages; ++i) {
      mbarrier_init(&control->full[i], words ? 128 : 1);
      mbarrier_init(&control->free[i], 8); /* the warps that multiply */
    }
    mbarrier_init(&control->p_full, 128);
    mbarrier_init(&control->p_free, 4);
    mbarrier_init(&control->done, 128);
    mbarrier_fence_init();
    tensor_map_prefetch(&map_q);
    tensor_map_prefetch(&map_k);
  }
  __syncthreads(); /* the barriers are made */
  take_turn();
  const latent_item item = item_of(p);
  if (item.tiles == 0) {
    store_nothing<T>(p, item);
    return;
  }
  if (threadIdx.x < 128) {
    registers_fewer<loading>();
    if (threadIdx.x == 0) load_queries(p, item, &map_q, shared, control);
    if constexpr (words)
      load_words<T>(p, item, shared, control);
    else if (threadIdx.x == 0)
      load_entries(p, item, &map_k, shared, control);
  } else {
    registers_more<computing>();
    if (threadIdx.x < 256) {
      latent_scorer<T> scorer(p, item, shared, control);
      scorer.run();
    } else {
      sum_upper_half<T>(p, item, shared, control);
    }
  }
}

/* ---- merging ----------------------------------------------------------------------------------------- */

/* latent_merge: the result of one row from its splits. A split without keys of the row has lse -inf, and is not read.
 * Grid:   N H. Block: 512 threads: 4 channels of every fourth split each.
 * Shared: 8.7 KB: the splits' weights, and the sums of the four groups of threads.
 * Align:  partial results by 16 bytes, out by 4 bytes.
 * Arch:   any.
 * Limit:  bytes: splits · 2 KB a row. */
template <class T> __global__ void __launch_bounds__(merge_threads) latent_merge(latent_params p) {
  constexpr int32_t groups = merge_threads / 128, together = 4; /* loads in flight */
  ASSAY_SHARED(float, weights, blocks_wanted);
  ASSAY_SHARED(float, whole, 2); /* the largest lse, and the sum of weights */
  ASSAY_SHARED(float, sums, groups *mla_c);
  take_turn();
  const int64_t place = blockIdx.x, all = static_cast<int64_t>(p.m.N) * p.m.H;
  const int32_t thread = static_cast<int32_t>(threadIdx.x), group = thread / 128, channel = thread % 128 * 4;
  if (thread < 32) {
    float lse[(blocks_wanted + 31) / 32], peak = -INFINITY, total = 0.0f;
    ASSAY_UNROLL
    for (int i = 0; i < (blocks_wanted + 31) / 32; ++i) {
      const int32_t s = thread + 32 * i;
      lse[i] = s < p.splits ? p.partial_lse[s * all + place] : -INFINITY;
      peak = fmaxf(peak, lse[i]);
    }
    peak = warp_max(peak);
    ASSAY_UNROLL
    for (int i = 0; i < (blocks_wanted + 31) / 32; ++i) {
      const float weight = lse[i] == -INFINITY ? 0.0f : expf(lse[i] - peak);
      total += weight;
      if (thread + 32 * i < p.splits) weights[thread + 32 * i] = weight;
    }
    total = warp_sum(total);
    if (thread == 0) {
      whole[0] = peak;
      whole[1] = total;
    }
  }
  __syncthreads(); /* the weights are written */
  float sum[4] = {};
  for (int32_t first = group; first < p.splits; first += groups * together) {
    quad<float> part[together] = {};
    float weight[together] = {};
    ASSAY_UNROLL
    for (int i = 0; i < together; ++i) {
      const int32_t s = first + groups * i;
      if (s < p.splits) weight[i] = weights[s];
      if (weight[i] != 0.0f) part[i] = load_quad(p.partial + (s * all + place) * mla_c + channel, true);
    }
    ASSAY_UNROLL
    for (int i = 0; i < together; ++i)
      ASSAY_UNROLL
    for (int k = 0; k < 4; ++k)
      sum[k] += weight[i] * part[i].element[k];
  }
  ASSAY_UNROLL
  for (int k = 0; k < 4; ++k)
    sums[group * mla_c + channel + k] = sum[k];
  __syncthreads(); /* the groups' sums are written */
  const float total = whole[1];
  if (thread == 0 && p.m.lse != nullptr) p.m.lse[place] = total != 0.0f ? whole[0] + logf(total) : -INFINITY;
  if (thread >= mla_c / 2) return;
  float y[2] = {};
  ASSAY_UNROLL
  for (int k = 0; k < 2; ++k) {
    ASSAY_UNROLL
    for (int i = 0; i < groups; ++i)
      y[k] += sums[i * mla_c + 2 * thread + k];
    y[k] = total != 0.0f ? y[k] / total : 0.0f;
  }
  T *const to = static_cast<T *>(p.m.out) + place / p.m.H * p.m.out_row + place % p.m.H * mla_c + 2 * thread;
  *reinterpret_cast<uint32_t *>(to) = round_pair<T>(y[0], y[1]);
}

/* ---- launch ------------------------------------------------------------------------------------------ */

/* Refuses a tensor whose base or distance of rows is no multiple of `bytes`, or too large for a tensor map. */
assay_status expect_vectors_of(const char *name, const void *base, int64_t row, int64_t size, int64_t bytes,
                               assay_error *error) {
  const int64_t elements = bytes / size;
  if (reinterpret_cast<uintptr_t>(base) % static_cast<uintptr_t>(bytes) == 0 && row % elements == 0 &&
      row < INT64_C(1) << 38)
    return ASSAY_OK;
  return assay_fail(error, ASSAY_ERR_UNSUPPORTED,
                    "%s: found a base or a distance of rows that is no multiple of %" PRId64 " bytes, taken here: "
                    "multiples",
                    name, bytes);
}

template <assay_dtype type> assay_status read_call(const assay_call *call, latent_params *p, assay_error *error) {
  *p = latent_params();
  ASSAY_TRY(mla_read(call, &p->m, error));
  const mla_params &m = p->m;
  if (m.type != type)
    return assay_fail(error, ASSAY_ERR_UNSUPPORTED, "q: found dtype %s, taken here: %s", assay_dtype_name(m.type),
                      assay_dtype_name(type));
  if (m.cache == nullptr && type != ASSAY_BF16)
    return assay_fail(error, ASSAY_ERR_UNSUPPORTED, "words: found a tensor with q of %s, taken here: with bf16",
                      assay_dtype_name(type));
  ASSAY_TRY(expect_vectors_of("q", m.q, m.q_row, 2, 16, error));
  if (m.cache != nullptr)
    ASSAY_TRY(expect_vectors_of("cache", m.cache, m.block_row, 2, 16, error));
  else
    ASSAY_TRY(expect_vectors_of("words", m.words, m.block_row, 4, 16, error));
  ASSAY_TRY(expect_vectors_of("out", m.out, m.out_row, 2, 4, error));
  const int64_t rows = static_cast<int64_t>(m.N) * m.H, keys = static_cast<int64_t>(m.W) * m.S;
  const int64_t items = rows / tile_rows + (m.H % tile_rows != 0 ? m.B : 0);
  for (p->box = tile_keys; m.S % p->box != 0;)
    p->box /= 2;
  for (p->heads = tile_rows; m.H % p->heads != 0;)
    p->heads /= 2;
  p->scale_2 = m.scale * 1.44269504f;
  /* Places with rows: no fewer than these where each request has a row. Empty ones end at once, and do not count. */
  const int64_t least = m.N < m.B ? m.N : m.B, filled = (rows + tile_rows - 1) / tile_rows;
  const int64_t busy = filled > least ? filled : least;
  const int64_t room = busy > 0 ? blocks_wanted / busy : 1, most = (keys + least_split - 1) / least_split;
  p->splits = static_cast<int32_t>(room < 2 || most < 2 ? 1 : room < most ? room : most);
  if (rows > INT32_MAX || items * p->splits > INT32_MAX)
    return assay_fail(error, ASSAY_ERR_UNSUPPORTED, "N: found %d rows of %d heads, taken here: fewer than 2^31", m.N,
                      m.H);
  p->places = static_cast<int32_t>(items);
  return ASSAY_OK;
}

template <assay_dtype type> assay_status supports(const assay_call *call, assay_error *error) {
  latent_params p;
  return read_call<type>(call, &p, error);
}

template <assay_dtype type> assay_status workspace(const assay_call *call, int64_t *bytes, assay_error *error) {
  latent_params p;
  *bytes = 0;
  ASSAY_TRY(read_call<type>(call, &p, error));
  const int64_t rows = static_cast<int64_t>(p.m.N) * p.m.H;
  if (p.splits > 1) *bytes = p.splits * rows * (mla_c + 1) * static_cast<int64_t>(sizeof(float));
  return ASSAY_OK;
}

/* Makes the map of a tensor [outer, rows, 576] whose outermost parts are `apart` elements apart. */
assay_status map_of(tensor_map *map, const void *base, int64_t outer, int64_t rows, int64_t apart, int32_t box,
                    assay_error *error) {
  tensor_shape shape = {};
  shape.rank = 3;
  shape.element_bytes = 2;
  shape.extent[0] = mla_entry;
  shape.extent[1] = rows;
  shape.extent[2] = outer;
  shape.stride[1] = 2 * mla_entry;
  shape.stride[2] = outer > 1 ? 2 * apart : 2 * mla_entry * rows;
  shape.box[0] = 64;
  shape.box[1] = box;
  shape.box[2] = 1;
  shape.swizzle = swizzle_128;
  return tensor_map_make(map, const_cast<void *>(base), shape, error);
}

template <class T, assay_dtype type> assay_status launch(const assay_call *call, assay_env *env, assay_error *error) {
  latent_params p;
  plain_call c;
  tensor_map map_q, map_k;
  ASSAY_TRY(read_call<type>(call, &p, error));
  ASSAY_TRY(plain_read(call, &c, error));
  (void)snprintf(env->path, sizeof env->path, "wgmma %s box=%d%s", p.m.cache != nullptr ? "entries" : "words", p.box,
                 p.splits > 1 ? " split" : "");
  if (p.m.N == 0) return ASSAY_OK;
  ASSAY_TRY(map_of(&map_q, p.m.q, p.m.N, p.m.H, p.m.q_row, p.heads, error));
  map_k = map_q; /* words are not copied by a map */
  if (p.m.cache != nullptr) ASSAY_TRY(map_of(&map_k, p.m.cache, c.dim("P"), p.m.S, p.m.block_row, p.box, error));
  const int64_t rows = static_cast<int64_t>(p.m.N) * p.m.H;
  p.partial = static_cast<float *>(env->workspace);
  p.partial_lse = p.partial != nullptr ? p.partial + p.splits * rows * mla_c : nullptr;
  const int64_t blocks = static_cast<int64_t>(p.places) * p.splits;
  assay_status status = ASSAY_OK;
  if (p.m.cache != nullptr)
    status = ASSAY_LAUNCH_WITH(error, (latent_wgmma<T, false>), blocks, latent_threads, latent_bytes, in_turn(),
                               env->stream, map_q, map_k, p);
  else if constexpr (type == ASSAY_BF16)
    status = ASSAY_LAUNCH_WITH(error, (latent_wgmma<T, true>), blocks, latent_threads, latent_bytes, in_turn(),
                               env->stream, map_q, map_k, p);
  if (status != ASSAY_OK || p.splits == 1) return status;
  return ASSAY_LAUNCH_WITH(error, latent_merge<T>, rows, merge_threads, 0, in_turn(), env->stream, p);
}

/* Weights are rounded to the type of q. The number of splits depends on the number of requests, so `alone` is not
 * promised. */
constexpr assay_contract wgmma_contract(assay_dtype type) {
  return {.k = type,
          .v = type,
          .p = type,
          .exp_ulp = 2.0,
          .qk_lanes = 1,
          .pv_lanes = 1,
          .keys_per_split = least_split,
          .zero_p_v = ASSAY_V_MULTIPLIED,
          .run_to_run = true,
          .renumbering = true,
          .permutation = true,
          .cut = tensor_core_terms};
}

} // namespace
} // namespace ASSAY_NS

#define WGMMA(name, T, dtype, claims)                                                                                  \
  {                                                                                                                    \
    sizeof(assay_variant), "mla_attention", name ASSAY_VARIANT_SUFFIX,                                                 \
        "64 rows share each entry on Hopper's tensor cores", ASSAY_DEVICE_NAME, "sm_90a", #T claims,                   \
        ::ASSAY_NS::wgmma_contract(dtype), ::ASSAY_NS::supports<dtype>, ::ASSAY_NS::workspace<dtype>,                  \
        ::ASSAY_NS::launch<::ASSAY_NS::T, dtype>                                                                       \
  }

#ifdef ASSAY_FEW_TYPES
ASSAY_VARIANTS(mla_attention_wgmma, WGMMA("wgmma", bf16, ASSAY_BF16, "|false,true"))
#else
ASSAY_VARIANTS(mla_attention_wgmma, WGMMA("wgmma", bf16, ASSAY_BF16, "|false,true"),
               WGMMA("wgmma_f16", f16, ASSAY_F16, "|false"))
#endif
