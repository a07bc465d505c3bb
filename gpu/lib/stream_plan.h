/* stream_plan.h: what the host decides of a streamed decode: what it takes, how many warps a block, how many splits.
 * All of it follows from batch, heads and the keys that a row is planned for, never from lengths. */
#ifndef ASSAY_GPU_LIB_STREAM_PLAN_H
#define ASSAY_GPU_LIB_STREAM_PLAN_H

#include "gpu/lib/attention.h"
#include "gpu/lib/schedules.cuh"
#include "gpu/lib/stream.cuh"
#include "gpu/lib/stream_pace.cuh"

namespace ASSAY_NS {

constexpr int64_t stream_multiprocessors = 132; /* an H200; elsewhere right, and not as fast */

/* 64 KB a multiprocessor, which hold the blocks of every shape (up to 33 KB); the other 192 KB are L1, for K and V on
 * their way. */
constexpr int32_t stream_shared_percent = 28;

/* Of what joins splits: an element a thread, and as many groups of them as share the splits. */
inline int64_t stream_merge_block(int32_t splits) {
  return stream_merge_threads * (splits < stream_merge_groups ? splits : stream_merge_groups);
}
inline launch_extent stream_merge_grid(const attention_params &a) {
  return launch_extent(a.N * a.H_kv, (a.G * a.D + stream_merge_threads - 1) / stream_merge_threads);
}

/* Keys that a row is planned for: what its table can name; contiguous, where the host knows the rows of all requests
 * alone, an even share of them, which in a dense cache is what each holds. A row with more is slower, and right. */
inline int64_t stream_planned(const attention_params &a) {
  return is_contiguous(a) && a.B > 0 ? (a.capacity + a.B - 1) / a.B : a.capacity;
}

/* warps: of a thread block, of which `places` are on a multiprocessor at a time. cluster: thread blocks of one, which
 * join the splits; 1: there are none, and another launch joins them. */
struct stream_shape {
  int32_t warps, splits, cluster, places;
};

inline bool stream_merges(const stream_shape &shape) {
  return shape.splits > 1 && shape.cluster == 1;
}

/* As many warps as it takes, where rows have the keys that they are planned for, to have no run longer than with
 * `most`: runs of `splits` blocks that are all as long end together. */
inline int32_t stream_even_warps(int64_t keys, int64_t splits, int32_t most) {
  const int64_t blocks = (keys + stream_keys - 1) / stream_keys, runs = splits * most;
  const int64_t each = (blocks + runs - 1) / runs;
  if (each == 0) return most;
  return static_cast<int32_t>((blocks + each * splits - 1) / (each * splits));
}

/* Warps that share a row, or a split of it, in a thread block of at most `most`. Runs that are all as long are of use
 * where there are many rounds; lengths that are a little below what the tables hold would need one round more, which
 * counts where there are few. */
inline int32_t stream_warps(int64_t keys, int64_t splits, int32_t most) {
  constexpr int64_t many = 5;
  const int64_t blocks = (keys + stream_keys - 1) / stream_keys, each = (blocks + splits - 1) / splits;
  if (blocks > (many - 1) * splits * most || each == 0) return stream_even_warps(keys, splits, most);
  return static_cast<int32_t>(each < most ? each : most);
}

/* What a multiprocessor reads at most, in (row, kv head)s, if `places` thread blocks are on it at a time. */
inline int64_t stream_most_read(int64_t segments, int64_t places) {
  const int64_t wave = places * stream_multiprocessors;
  return (segments + wave - 1) / wave * places;
}

/* Thread blocks of a multiprocessor, each with its part of `most` warps: of 4 and 3, where there are more than two
 * (row, kv head)s a multiprocessor, what leaves it less to read. */
inline int32_t stream_places(int64_t segments, int32_t most) {
  if (segments <= 2 * stream_multiprocessors) return 2;
  return most % 3 == 0 && stream_most_read(segments, 3) < stream_most_read(segments, 4) ? 3 : 4;
}

/* Are so many clusters of `splits` thread blocks on the multiprocessors together? Pairs leave no room between them. Of
 * three and four, 82 % of the places were taken at once on an H200, and 91 % were not. */
inline bool stream_clusters_fit(int64_t segments, int64_t splits, int64_t places) {
  const int64_t all = places * stream_multiprocessors;
  return splits == 2 ? segments * 2 <= all : 100 * segments * splits <= 82 * all;
}

/* A thread block a (row, kv head), or splits that a cluster joins if that takes fewer rounds of blocks of 16 keys. To
 * be joined in a cluster takes as long as 0.3 of a round. For as many segments as are under way together, two a
 * multiprocessor. */
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

/* At most `most` warps a multiprocessor: 12, or 8. Few segments are split so that each multiprocessor has one, and a
 * split a block of 16 keys for every warp where rows are as long as planned; more than two splits are joined by another
 * launch. */
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

/* How fast a streamed decode may go (stream_pace.cuh), in ns: what memory takes for K and V of 16 keys of a kv head,
 * and what a round of all warps of a multiprocessor takes at least. 0, 0: as fast as it can. */
struct stream_speed {
  float block_ns, round_ns;
};

/* Bytes a ns that are read at most: measured on an H200, whose memory could move 4,917, and taken where it is not
 * known; slower memory holds nobody then. Measured on an H100, which could move 3,352: the same share of that. What
 * lies between is taken to be an H200's. memory_rate: assay_env's. */
inline double stream_rate(int32_t memory_rate) {
  constexpr double of_h200 = 4550.0, share = 0.9254;
  constexpr int32_t slower = 3900;
  return memory_rate > 0 && memory_rate < slower ? share * memory_rate : of_h200;
}

/* If all thread blocks are under way together, since those that come later would have the pace of the first, and rows
 * are planned for rounds enough for one, and no more blocks than 32 bits count, whatever the lengths, nor a pace longer
 * than stream_pace::hold() has bits for. A multiprocessor that has whole rows reads 40 bytes a ns at most while others
 * read too; of rows that clusters share it was 45. element: bytes of one of the cache. */
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

/* shared: bytes of a thread block. */
inline launch_options stream_options(const stream_shape &shape, int64_t shared) {
  constexpr int64_t all = 228 * 1024, others = 2048; /* what the system keeps, and what is not in `shared` */
  const int64_t percent = (100 * shape.places * (shared + others) + all - 1) / all;
  launch_options options = in_turn();
  options.cluster = shape.cluster;
  options.followed = stream_merges(shape);
  options.shared_percent =
      shape.cluster > 1 && percent > stream_shared_percent ? static_cast<int32_t>(percent) : stream_shared_percent;
  return options;
}

/* How much of what the multiprocessors could read meanwhile is read, where rows are as long as planned: 1 if they end
 * together. */
inline double stream_fill(const attention_params &a, int32_t most) {
  const int64_t segments = a.N * a.H_kv, mp = stream_multiprocessors;
  if (segments == 0) return 1.0;
  const stream_shape shape = stream_shape_of(a, most);
  const int64_t reads = stream_most_read(segments * shape.splits, shape.places);
  return static_cast<double>(segments * shape.splits) / static_cast<double>(reads * mp);
}

/* Do warps of one split keep a pace on an H200, where rows have the keys that they are planned for? */
inline bool stream_keeps_pace(const attention_params &a, const stream_shape &shape, int64_t element) {
  const int64_t blocks = (stream_planned(a) + stream_keys - 1) / stream_keys;
  const double all = stream_speed_of(a, shape, element, 0).block_ns * static_cast<double>(a.N * a.H_kv * blocks);
  return shape.splits == 1 && all > stream_pace::small;
}

/* How much of the multiprocessors `stream` must fill to keep a call, whatever would be gained elsewhere. */
inline double stream_enough(const stream_shape &shape, bool paced) {
  return paced && shape.places == 1 ? 0.77 : 0.92;
}

/* Would even shares of the keys (stream_k) be faster? They take 0.3 to 2.5 us more, and half of what is left idle was
 * gained on an H200, or 1.6 us less than that where `stream` keeps a pace; with a row a multiprocessor that keeps it,
 * it is the share alone that counts (docs/kernels/softmax_attention.md). Where little is idle, lengths that differ
 * decide, and are not known here. */
inline bool stream_leaves_idle(const attention_params &a, int32_t most, int64_t element) {
  constexpr double rate = 4.3e12, costs = 1.45e-6, costs_pace = 3.1e-6; /* bytes/s; s */
  const stream_shape shape = stream_shape_of(a, most);
  const double fill = stream_fill(a, most);
  const double bytes = 2.0 * static_cast<double>(a.N * a.H_kv * a.D * element) * static_cast<double>(stream_planned(a));
  const bool paced = stream_keeps_pace(a, shape, element);
  if (fill >= stream_enough(shape, paced)) return false;
  return 0.5 * (1.0 / fill - 1.0) * bytes / rate > (paced ? costs_pace : costs);
}

/* Columns of the mma that differ. */
inline int32_t stream_heads(int32_t G) {
  return G <= 2 ? 2 : G;
}

/* Can its rows be read 16 bytes at a time? Strides of axes with one element mean nothing. */
inline bool stream_aligned(const assay_tensor *tensor) {
  bool aligned = reinterpret_cast<uintptr_t>(tensor->data) % 16 == 0;
  for (int32_t i = 0; i + 1 < tensor->rank; ++i)
    aligned = aligned && (tensor->shape[i] <= 1 || tensor->stride[i] * assay_dtype_size(tensor->dtype) % 16 == 0);
  return aligned;
}

/* Types of q and the cache: 16 bits, one for both. */
inline assay_status expect_stream_same(const attention_types &types, assay_error *error) {
  if (types.q != ASSAY_BF16 && types.q != ASSAY_F16)
    return assay_fail(error, ASSAY_ERR_UNSUPPORTED, "q: found dtype %s, allowed bf16, f16", assay_dtype_name(types.q));
  if (types.kv != types.q)
    return assay_fail(error, ASSAY_ERR_UNSUPPORTED, "k_cache: found dtype %s, allowed %s", assay_dtype_name(types.kv),
                      assay_dtype_name(types.q));
  return ASSAY_OK;
}

/* Types of q and the cache: bf16, and fp8 with factors. */
inline assay_status expect_stream_fp8(const attention_types &types, assay_error *error) {
  if (types.q != ASSAY_BF16)
    return assay_fail(error, ASSAY_ERR_UNSUPPORTED, "q: found dtype %s, allowed bf16", assay_dtype_name(types.q));
  if (types.kv != ASSAY_E4M3 && types.kv != ASSAY_E5M2)
    return assay_fail(error, ASSAY_ERR_UNSUPPORTED, "k_cache: found dtype %s, allowed e4m3, e5m2",
                      assay_dtype_name(types.kv));
  return ASSAY_OK;
}

/* Refuses what no streamed decode takes, whatever the types. query: the argument that the walk reads its queries from;
 * NULL: none. */
inline assay_status expect_stream(const assay_call *call, const attention_params &a, assay_error *error,
                                  const char *query = "q") {
  int64_t layout;
  ASSAY_TRY(attention_integer(call, "layout", 0, 2, &layout, error));
  if (layout == 2) return assay_fail(error, ASSAY_ERR_UNSUPPORTED, "layout: found x, allowed nhd, hnd");
  if (a.D != 64 && a.D != 128) return assay_fail(error, ASSAY_ERR_UNSUPPORTED, "D: found %d, allowed 64, 128", a.D);
  if (a.G != 1 && a.G != 2 && a.G != 4 && a.G != 8)
    return assay_fail(error, ASSAY_ERR_UNSUPPORTED, "G: found %d, allowed 1, 2, 4, 8", a.G);
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

constexpr int32_t stream_k_most_rows = 1024; /* whose lengths fit shared memory */

/* What it costs a thread block to end a piece and begin another, in blocks of keys. On an H200 batches of lengths that
 * differ are 5 to 14 % faster with 9 than with 0, and with 6 to 16 within 2 % of that. */
constexpr uint32_t stream_k_opening = 9;

/* What even shares do not take beyond what no streamed decode takes. */
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

/* Leaves calls to stream_k that are faster there, if it takes them. element: bytes of one of the cache. */
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

/* Bytes of `floats` f32 for each (row, head, split); none where the keys are not split. */
inline int64_t stream_workspace(const attention_params &a, stream_shape shape, int32_t floats) {
  return stream_merges(shape) ? a.N * a.H * shape.splits * floats * static_cast<int64_t>(sizeof(float)) : 0;
}

/* Types that a file compiles its kernels for. of(types, use) calls use(type_tag<T>, type_tag<KV>). */
struct stream_same {
  template <class Use> static assay_status of([[maybe_unused]] const attention_types &types, Use use) {
#ifndef ASSAY_FEW_TYPES
    if (types.q == ASSAY_F16) return use(type_tag<f16>(), type_tag<f16>());
#endif
    return use(type_tag<bf16>(), type_tag<bf16>());
  }
};
struct stream_fp8 {
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

/* Calls use(type_tag<T>, type_tag<KV>, D, heads as integral constants). */
template <int value> struct number { static constexpr int is = value; };

template <class Types, class Use>
assay_status stream_with(const attention_types &types, int32_t D, int32_t G, Use use) {
  const auto with_heads = [&](auto type, auto cached, auto channels) {
    if (stream_heads(G) == 2) return use(type, cached, channels, number<2>());
    if (stream_heads(G) == 4) return use(type, cached, channels, number<4>());
    return use(type, cached, channels, number<8>());
  };
  return Types::of(types, [&](auto type, auto cached) {
    return D == 64 ? with_heads(type, cached, number<64>()) : with_heads(type, cached, number<128>());
  });
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
