/* stream_plan.h: what the host decides for a streamed decode: which calls it takes, the warps per thread block and the
 * number of splits. All of it follows from the batch, the heads and the keys that a row is planned for, never from
 * lengths. */
#ifndef ASSAY_GPU_LIB_STREAM_PLAN_H
#define ASSAY_GPU_LIB_STREAM_PLAN_H

#include "gpu/lib/attention.h"
#include "gpu/lib/schedules.cuh"
#include "gpu/lib/stream.cuh"
#include "gpu/lib/stream_merge.cuh"
#include "gpu/lib/stream_pace.cuh"

namespace ASSAY_NS {

/* Percentage of a multiprocessor's memory that is shared memory. It is 64 KB, which hold the thread blocks of every
 * shape of up to eight heads and 128 channels (up to 33 KB). Larger ones ask for more. The other 192 KB are L1 and hold
 * the K and V that are being loaded. */
constexpr int32_t stream_shared_percent = 28;

/* Returns the block size of the merge kernel. It is one thread per output element of the block, times the number of
 * groups that divide the splits among them. */
inline int64_t stream_merge_block(int32_t splits) {
  return stream_merge_threads * (splits < stream_merge_groups ? splits : stream_merge_groups);
}
inline launch_extent stream_merge_grid(const attention_params &a) {
  return launch_extent(a.N * a.H_kv, (a.G * a.D + stream_merge_threads - 1) / stream_merge_threads);
}

/* Returns the number of keys that a row is planned for. With a block table it is the number of keys that the row's
 * table can name. With contiguous keys the host knows only the total rows of all requests, so it is an even share of
 * that total. In a dense cache every request holds exactly that share. A row with more keys is slower, but correct. */
inline int64_t stream_planned(const attention_params &a) {
  return is_contiguous(a) && a.B > 0 ? (a.capacity + a.B - 1) / a.B : a.capacity;
}

/* The shape of a streamed decode. warps: number per thread block. places: thread blocks that are on a multiprocessor at
 * a time. cluster: thread blocks per cluster, which merges the splits; 1 means that there are no clusters and another
 * launch merges the splits. */
struct stream_shape {
  int32_t warps, splits, cluster, places;
};

inline bool stream_merges(const stream_shape &shape) {
  return shape.splits > 1 && shape.cluster == 1;
}

/* Returns the fewest warps per thread block whose longest run is no longer than with `most` warps, assuming rows have
 * their planned length. There are `splits` thread blocks per row. Equal runs finish together. */
inline int32_t stream_even_warps(int64_t keys, int64_t splits, int32_t most) {
  const int64_t blocks = (keys + stream_keys - 1) / stream_keys, runs = splits * most;
  const int64_t each = (blocks + runs - 1) / runs;
  if (each == 0) return most;
  return static_cast<int32_t>((blocks + each * splits - 1) / (each * splits));
}

/* Returns the number of warps, at most `most`, that share a row or a split of it in a thread block. With many rounds,
 * runs of equal length are worth having. With few rounds they are not: lengths slightly below the tables' capacity
 * would then need one more round, and that would count. */
inline int32_t stream_warps(int64_t keys, int64_t splits, int32_t most) {
  constexpr int64_t many = 5;
  const int64_t blocks = (keys + stream_keys - 1) / stream_keys, each = (blocks + splits - 1) / splits;
  if (blocks > (many - 1) * splits * most || each == 0) return stream_even_warps(keys, splits, most);
  return static_cast<int32_t>(each < most ? each : most);
}

/* Returns the most (row, kv head) pairs that one multiprocessor reads if `places` thread blocks are on it at a time. */
inline int64_t stream_most_read(int64_t segments, int64_t places) {
  const int64_t wave = places * stream_multiprocessors;
  return (segments + wave - 1) / wave * places;
}

/* Returns the number of thread blocks per multiprocessor; they divide `most` warps among them. With more than two (row,
 * kv head) pairs per multiprocessor it is 4 or 3, whichever leaves a multiprocessor less to read. */
inline int32_t stream_places(int64_t segments, int32_t most) {
  if (segments <= 2 * stream_multiprocessors) return 2;
  return most % 3 == 0 && stream_most_read(segments, 3) < stream_most_read(segments, 4) ? 3 : 4;
}

/* Returns whether `segments` clusters of `splits` thread blocks each are on the multiprocessors at the same time.
 * Clusters of two leave no gaps. On an H200, clusters of three and four that took 82 % of the places all started at
 * once; clusters that took 91 % did not. */
inline bool stream_clusters_fit(int64_t segments, int64_t splits, int64_t places) {
  const int64_t all = places * stream_multiprocessors;
  return splits == 2 ? segments * 2 <= all : 100 * segments * splits <= 82 * all;
}

/* Returns the shape for segments that all run at the same time, at most two per multiprocessor. Each (row, kv head) has
 * one thread block, or splits that a cluster merges if that takes fewer rounds of blocks of 16 keys. Merging in a
 * cluster costs as much as 0.3 of a round. */
inline stream_shape stream_together(int64_t segments, int64_t keys, int32_t most) {
  constexpr double joining = 0.3;
  const int64_t blocks = (keys + stream_keys - 1) / stream_keys;
  const auto rounds = [&](int32_t warps) {
    return warps < blocks ? static_cast<double>(blocks) / static_cast<double>(warps) : 1.0;
  };
  const int32_t alone = segments > stream_multiprocessors ? 2 : 1;
  stream_shape best = {most / alone, 1, 1, alone};
  double least = rounds(best.warps);
  for (int32_t splits = 2; splits <= 4; ++splits)
    for (int32_t places = 1; places <= 4; ++places) {
      const int32_t warps = most / places;
      const double takes = rounds(splits * warps) + joining;
      if (most % places != 0 || !stream_clusters_fit(segments, splits, places) || !(takes < least)) continue;
      least = takes;
      best = {warps, splits, splits, places};
    }
  best.warps = stream_warps(keys, best.splits, best.warps);
  return best;
}

/* Returns the shape of a call, with at most `most` warps per multiprocessor: 16, 12 or 8. Few segments are split so
 * that each multiprocessor has a split. A split of a row of planned length still has a block of 16 keys for every
 * warp. More than two splits are merged by another launch. */
inline stream_shape stream_shape_of(const attention_params &a, int32_t most) {
  const int64_t segments = a.N * a.H_kv, mp = stream_multiprocessors, planned = stream_planned(a);
  if (segments > 2 * mp) {
    const int32_t places = stream_places(segments, most);
    return {stream_warps(planned, 1, most / places), 1, 1, places};
  }
  const int64_t useful = planned / stream_keys / most, fit = segments > 0 ? mp / segments : 1;
  const int64_t splits = fit < useful ? fit : useful;
  if (splits <= 2) return stream_together(segments, planned, most);
  return {stream_even_warps(planned, splits, most), static_cast<int32_t>(splits), 1, 1};
}

/* The limit on the speed of a streamed decode (stream_pace.cuh), in ns. block_ns: the time that memory takes for K and
 * V of 16 keys of one kv head. round_ns: the least time that one round of all warps of a multiprocessor takes. Both 0:
 * as fast as possible. */
struct stream_speed {
  float block_ns, round_ns;
};

/* Returns the most bytes per ns that are read. The H200's value was measured where memory could move 4,917. It is also
 * used where the memory rate is unknown; slower memory then makes no warp wait. On an H100, whose memory could move
 * 3,352, the same share of that rate was measured. Devices with a rate in between get the H200's value. memory_rate: as
 * in assay_env. */
inline double stream_rate(int32_t memory_rate) {
  constexpr double of_h200 = 4550.0, share = 0.9254;
  constexpr int32_t slower = 3900;
  return memory_rate > 0 && memory_rate < slower ? share * memory_rate : of_h200;
}

/* Returns the pace of a call, or 0, 0 if it has none. A call has a pace if all of the following hold.
 *
 *   - Rows are planned for at least as many rounds as a pace needs.
 *   - All thread blocks run at the same time, since later ones would get the pace of the first.
 *   - The number of blocks of keys fits 32 bits, whatever the lengths.
 *   - The pace is no longer than stream_pace::hold() has bits for.
 *
 * A multiprocessor that has whole rows reads at most 40 bytes per ns while others read too. With rows that clusters
 * share it was 45. element: bytes of one element of the cache. */
inline stream_speed stream_speed_of(const attention_params &a, const stream_shape &shape, int64_t element,
                                    int32_t memory_rate) {
  constexpr double of_one = 40.0;
  const int64_t blocks = (stream_planned(a) + stream_keys - 1) / stream_keys;
  const int64_t most_blocks = (a.capacity + stream_keys - 1) / stream_keys;
  if (blocks < stream_pace::few * shape.splits * shape.warps) return {0.0f, 0.0f};
  if (a.N * a.H_kv * shape.splits > shape.places * stream_multiprocessors) return {0.0f, 0.0f};
  if (a.N * a.H_kv * most_blocks > INT32_MAX) return {0.0f, 0.0f};
  const double rate = stream_rate(memory_rate);
  const double bytes = static_cast<double>(2 * stream_keys * a.D * element);
  const double most_ns = bytes / rate * static_cast<double>(a.N * a.H_kv * most_blocks);
  if (!(static_cast<double>(stream_pace::behind) * most_ns < 4294967296.0)) return {0.0f, 0.0f};
  const double round = shape.splits > 1 ? 0.0 : static_cast<double>(shape.places * shape.warps) * bytes / of_one;
  return {static_cast<float>(bytes / rate), static_cast<float>(round)};
}

inline launch_extent stream_grid(const attention_params &a, const stream_shape &shape) {
  const int64_t segments = a.N * a.H_kv;
  return shape.cluster > 1 ? launch_extent(segments * shape.splits) : launch_extent(segments, shape.splits);
}

/* Returns the launch options of a shape. shared: bytes of shared memory of a thread block. */
inline launch_options stream_options(const stream_shape &shape, int64_t shared) {
  constexpr int64_t all = 228 * 1024, others = 2048; /* reserved by the system, and not part of `shared` */
  const int64_t wanted = (100 * shape.places * (shared + others) + all - 1) / all,
                percent = wanted < 100 ? wanted : 100;
  launch_options options = in_turn();
  options.cluster = shape.cluster;
  options.followed = stream_merges(shape);
  options.shared_percent = percent > stream_shared_percent ? static_cast<int32_t>(percent) : stream_shared_percent;
  return options;
}

/* Returns the share of the multiprocessors' reading capacity that the call uses, if rows are as long as planned. It is
 * 1 if all multiprocessors finish together. */
inline double stream_fill(const attention_params &a, int32_t most) {
  const int64_t segments = a.N * a.H_kv, mp = stream_multiprocessors;
  if (segments == 0) return 1.0;
  const stream_shape shape = stream_shape_of(a, most);
  const int64_t reads = stream_most_read(segments * shape.splits, shape.places);
  return static_cast<double>(segments * shape.splits) / static_cast<double>(reads * mp);
}

/* Returns whether unsplit rows keep a pace on an H200, if they have their planned length. */
inline bool stream_keeps_pace(const attention_params &a, const stream_shape &shape, int64_t element) {
  const int64_t blocks = (stream_planned(a) + stream_keys - 1) / stream_keys;
  const double all = stream_speed_of(a, shape, element, 0).block_ns * static_cast<double>(a.N * a.H_kv * blocks);
  return shape.splits == 1 && all > stream_pace::small;
}

/* Returns the share of the multiprocessors above which `stream` keeps a call, whatever another variant would gain. */
inline double stream_enough(const stream_shape &shape, bool paced) {
  return paced && shape.places == 1 ? 0.77 : 0.92;
}

/* Returns whether even shares of the keys (stream_k) would be faster. They cost 0.3 to 2.5 us. On an H200 they gained
 * half of the time that `stream` left idle, or 1.6 us less than that half where `stream` keeps a pace. Where it keeps a
 * pace with one row per multiprocessor, only the share that it fills counts (docs/kernels/softmax_attention.md). Where
 * little is idle, differing lengths decide, and the lengths are not known here. */
inline bool stream_leaves_idle(const attention_params &a, int32_t most, int64_t element) {
  constexpr double rate = 4.3e12, costs = 1.45e-6, costs_pace = 3.1e-6; /* rate in bytes/s, costs in s */
  const stream_shape shape = stream_shape_of(a, most);
  const double fill = stream_fill(a, most);
  const double bytes = 2.0 * static_cast<double>(a.N * a.H_kv * a.D * element) * static_cast<double>(stream_planned(a));
  const bool paced = stream_keeps_pace(a, shape, element);
  if (fill >= stream_enough(shape, paced)) return false;
  return 0.5 * (1.0 / fill - 1.0) * bytes / rate > (paced ? costs_pace : costs);
}

/* Whether the program has fewer shapes, to compile faster. A call of another shape then takes more columns than it
 * needs, so that every call still runs. Kernels of 2, 4, 8 and 16 heads remain, and K in halves and whole. */
#ifdef ASSAY_FEW_TYPES
constexpr bool stream_few_shapes = true;
#else
constexpr bool stream_few_shapes = false;
#endif

/* Returns how many heads the columns of the mma are compiled for. Groups of other sizes take the next larger number.
 * Few heads of 96 channels take four. */
inline int32_t stream_heads(int32_t G, int32_t D) {
  if (stream_few_shapes && D == 64) return G <= 4 ? 4 : 16;
  if (stream_few_shapes && D == 128) return G <= 2 ? 2 : G <= 8 ? 8 : 16;
  if (G <= 2 && (D == 64 || D == 128)) return 2;
  return G <= 4 ? 4 : G <= 8 ? 8 : 16;
}

/* Returns whether the rows of a tensor can be read 16 bytes at a time. The stride of an axis with one element has no
 * meaning and is not checked. */
inline bool stream_aligned(const assay_tensor *tensor) {
  bool aligned = reinterpret_cast<uintptr_t>(tensor->data) % 16 == 0;
  for (int32_t i = 0; i + 1 < tensor->rank; ++i)
    aligned = aligned && (tensor->shape[i] <= 1 || tensor->stride[i] * assay_dtype_size(tensor->dtype) % 16 == 0);
  return aligned;
}

/* Refuses dtypes unless q and the cache have the same 16-bit type. */
inline assay_status expect_stream_same(const attention_types &types, assay_error *error) {
  if (types.q != ASSAY_BF16 && types.q != ASSAY_F16)
    return assay_fail(error, ASSAY_ERR_UNSUPPORTED, "q: found dtype %s, allowed bf16, f16", assay_dtype_name(types.q));
  if (types.kv != types.q)
    return assay_fail(error, ASSAY_ERR_UNSUPPORTED, "k_cache: found dtype %s, allowed %s", assay_dtype_name(types.kv),
                      assay_dtype_name(types.q));
  return ASSAY_OK;
}

/* Refuses dtypes unless q is bf16 and the cache is fp8 with scale factors. */
inline assay_status expect_stream_fp8(const attention_types &types, assay_error *error) {
  if (types.q != ASSAY_BF16)
    return assay_fail(error, ASSAY_ERR_UNSUPPORTED, "q: found dtype %s, allowed bf16", assay_dtype_name(types.q));
  if (types.kv != ASSAY_E4M3 && types.kv != ASSAY_E5M2)
    return assay_fail(error, ASSAY_ERR_UNSUPPORTED, "k_cache: found dtype %s, allowed e4m3, e5m2",
                      assay_dtype_name(types.kv));
  return ASSAY_OK;
}

/* Refuses calls in a layout that no streamed decode reads. */
inline assay_status expect_stream_layout(const assay_call *call, assay_error *error) {
  int64_t layout;
  ASSAY_TRY(attention_integer(call, "layout", 0, 2, &layout, error));
  if (layout != 2) return ASSAY_OK;
  return assay_fail(error, ASSAY_ERR_UNSUPPORTED, "layout: found x, allowed nhd, hnd");
}

/* Refuses calls whose memory or rows no streamed decode can take. query: name of the argument that the walk reads its
 * queries from; NULL if there is none. */
inline assay_status expect_stream_places(const assay_call *call, const attention_params &a, assay_error *error,
                                         const char *query) {
  if (a.cache.block_shift < 4)
    return assay_fail(error, ASSAY_ERR_UNSUPPORTED, "block_size: found %d, allowed 16 and above",
                      1 << a.cache.block_shift);
  const char *const streamed[] = {query, "k_cache", "v_cache"};
  for (const char *name : streamed)
    if (name != NULL && !stream_aligned(named_tensor(call, name)))
      return assay_fail(error, ASSAY_ERR_UNSUPPORTED,
                        "%s: found a base or stride that is no multiple of 16 bytes, allowed multiples", name);
  if (a.N * a.H_kv > launch_max_grid_x)
    return assay_fail(error, ASSAY_ERR_UNSUPPORTED, "N: found %" PRId64 " rows, allowed %" PRId64 " with %d kv heads",
                      a.N, launch_max_grid_x / a.H_kv, a.H_kv);
  return expect_decode(a, error);
}

/* Refuses calls that the streamed decodes of 64, 96 and 128 channels cannot run, whatever the types. query: as above.
 */
inline assay_status expect_stream(const assay_call *call, const attention_params &a, assay_error *error,
                                  const char *query = "q") {
  ASSAY_TRY(expect_stream_layout(call, error));
  const assay_tensor *const keys = named_tensor(call, "k_cache");
  const bool codes = keys != NULL && assay_dtype_size(keys->dtype) == 1;
  if (a.D != 64 && a.D != 128 && (codes || a.D != 96))
    return assay_fail(error, ASSAY_ERR_UNSUPPORTED, "D: found %d, allowed 64, %s128%s", a.D, codes ? "" : "96, ",
                      codes ? " with fp8 caches" : "");
  const int32_t most = a.D == 96 ? 8 : 16;
  if (a.G > most)
    return assay_fail(error, ASSAY_ERR_UNSUPPORTED, "G: found %d, allowed up to %d with D %d", a.G, most, a.D);
  return expect_stream_places(call, a, error, query);
}

constexpr int32_t stream_k_most_rows = 1024; /* the lengths of so many rows fit in shared memory */

/* Cost, in blocks of keys, of ending one piece and beginning another in a thread block. On an H200, batches of
 * differing lengths are 5 to 14 % faster with 9 than with 0. With 6 to 16 they are within 2 % of that. */
constexpr uint32_t stream_k_opening = 9;

/* Refuses calls that stream_k cannot run although the other streamed decodes can. */
inline assay_status expect_stream_k(const attention_params &a, assay_error *error) {
  const int64_t most = INT32_MAX, blocks = ((a.capacity + stream_keys - 1) / stream_keys + stream_k_opening) * a.H_kv;
  const int64_t in_line = blocks > 0 ? most / blocks : most;
  const int64_t rows = in_line < stream_k_most_rows ? in_line : stream_k_most_rows;
  if (a.N > rows)
    return assay_fail(error, ASSAY_ERR_UNSUPPORTED,
                      "N: found %" PRId64 " rows, allowed %" PRId64 " with %d kv heads and tables of %" PRId64 " keys",
                      a.N, rows, a.H_kv, a.capacity);
  return ASSAY_OK;
}

/* Refuses calls that are faster with stream_k, if stream_k can run them. element: bytes of one element of the cache.
 */
inline assay_status expect_filled(const attention_params &a, int32_t most, int64_t element, assay_error *error) {
  if (!stream_leaves_idle(a, most, element) || expect_stream_k(a, NULL) != ASSAY_OK) return ASSAY_OK;
  const stream_shape shape = stream_shape_of(a, most);
  const double enough = stream_enough(shape, stream_keeps_pace(a, shape, element));
  return assay_fail(error, ASSAY_ERR_UNSUPPORTED,
                    "N: found %" PRId64
                    " rows of %d kv heads, which leave %.0f %% of the multiprocessors idle, allowed "
                    "%.0f %% with %" PRId64 " keys a row: stream_k shares them out",
                    a.N, a.H_kv, 100.0 * (1.0 - stream_fill(a, most)), 100.0 * (1.0 - enough), stream_planned(a));
}

/* Returns the workspace in bytes: `floats` f32 for each (row, head, split), or 0 if the keys are not split or a cluster
 * merges the splits. */
inline int64_t stream_workspace(const attention_params &a, stream_shape shape, int32_t floats) {
  return stream_merges(shape) ? a.N * a.H * shape.splits * floats * static_cast<int64_t>(sizeof(float)) : 0;
}

/* Types that a file compiles its kernels for. expect(types) refuses the others; of(types, use) calls use(type_tag<T>,
 * type_tag<KV>). */
struct stream_same {
  static assay_status expect(const attention_types &types, assay_error *error) {
    return expect_stream_same(types, error);
  }
  template <class Use> static assay_status of([[maybe_unused]] const attention_types &types, Use use) {
#ifndef ASSAY_FEW_TYPES
    if (types.q == ASSAY_F16) return use(type_tag<f16>(), type_tag<f16>());
#endif
    return use(type_tag<bf16>(), type_tag<bf16>());
  }
};
struct stream_fp8 {
  static assay_status expect(const attention_types &types, assay_error *error) {
    return expect_stream_fp8(types, error);
  }
  template <class Use> static assay_status of([[maybe_unused]] const attention_types &types, Use use) {
#ifndef ASSAY_FEW_TYPES
    if (types.kv == ASSAY_E5M2) return use(type_tag<bf16>(), type_tag<e5m2>());
#endif
    return use(type_tag<bf16>(), type_tag<e4m3>());
  }
};

struct stream_bf16 {
  template <class Use> static assay_status of([[maybe_unused]] const attention_types &types, Use use) {
    if (types.kv == ASSAY_BF16) return use(type_tag<bf16>(), type_tag<bf16>());
    return stream_fp8::of(types, use);
  }
};

/* An integral constant. stream_with() calls use(type_tag<T>, type_tag<KV>, D, heads), with D and heads as such
 * constants. */
template <int value> struct number { static constexpr int is = value; };

template <class Types, class Use>
assay_status stream_with(const attention_types &types, int32_t D, int32_t G, Use use) {
  const auto with_heads = [&](auto type, auto cached, auto channels) {
    constexpr int of = decltype(channels)::is;
    const int32_t heads = stream_heads(G, D);
    if constexpr (of == 64 || of == 128)
      if (heads == 16) return use(type, cached, channels, number<16>());
    if constexpr (of == 128 || (of == 64 && !stream_few_shapes))
      if (heads == 2) return use(type, cached, channels, number<2>());
    if constexpr (of != 128 || !stream_few_shapes)
      if (heads == 4) return use(type, cached, channels, number<4>());
    return use(type, cached, channels, number < (of == 64 && stream_few_shapes) ? 4 : 8 > ());
  };
  return Types::of(types, [&](auto type, auto cached) {
    if constexpr (!is_fp8<typename decltype(cached)::type>::value) {
      if (D == 96) return with_heads(type, cached, number<96>());
    }
    return D == 64 ? with_heads(type, cached, number<64>()) : with_heads(type, cached, number<128>());
  });
}

/* The contract of every streamed decode over stored queries. Scores, weights and sums stay in f32; codes of fp8 caches
 * are decoded exactly. q . k is two chains of mma, of 16 products a step; sum p v is spread over at least two lanes of
 * a warp. V of a key that a row sees is always multiplied, however small p is. */
constexpr assay_contract streamed_contract(double exp_ulp) {
  return {.exp_ulp = exp_ulp,
          .qk_lanes = 2,
          .pv_lanes = 2,
          .zero_p_v = ASSAY_V_SKIPPED_FOR_GROUP,
          .run_to_run = true,
          .renumbering = true,
          .permutation = true,
          .lanes = 1,
          .cut = tensor_core_terms};
}

/* dtype | kv_dtype | layout | mode. */
#ifdef ASSAY_FEW_TYPES
#define STREAM_CLAIMS     "bf16|same|nhd,hnd|decode"
#define STREAM_FP8_CLAIMS "bf16|e4m3|nhd,hnd|decode"
#else
#define STREAM_CLAIMS     "f16,bf16|same|nhd,hnd|decode"
#define STREAM_FP8_CLAIMS "bf16|e4m3,e5m2|nhd,hnd|decode"
#endif

} // namespace ASSAY_NS
#endif
