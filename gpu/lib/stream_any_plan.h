/* stream_any_plan.h: what the host decides for a streamed decode of heads of any size (stream_any.cuh). */
#ifndef ASSAY_GPU_LIB_STREAM_ANY_PLAN_H
#define ASSAY_GPU_LIB_STREAM_ANY_PLAN_H

#include "gpu/lib/stream_plan.h"

namespace ASSAY_NS {

constexpr int stream_any_warps = 8; /* per multiprocessor: with so many a thread may have 255 registers */

/* Return the head size and the number of heads that the kernel of a call is compiled for. Four heads or fewer read
 * whole lines of K; the larger size alone has a kernel for them. */
inline int32_t stream_any_size(int32_t D) {
  return D <= 112 ? 112 : 256;
}
inline int32_t stream_any_heads(int32_t G, int32_t D) {
  if (G <= 4 && stream_any_size(D) == 256) return 4;
  return G <= 8 ? 8 : 16;
}

/* Refuses calls that stream_any does not take, whatever the types. query: as for expect_stream_places. */
inline assay_status expect_stream_any(const assay_call *call, const attention_params &a, assay_error *error,
                                      const char *query = "q") {
  ASSAY_TRY(expect_stream_layout(call, error));
  if (a.D % 16 != 0 || a.D == 128)
    return assay_fail(error, ASSAY_ERR_UNSUPPORTED, "D: found %d, allowed multiples of 16 except 128", a.D);
  if (a.G > 16) return assay_fail(error, ASSAY_ERR_UNSUPPORTED, "G: found %d, allowed up to 16", a.G);
  return expect_stream_places(call, a, error, query);
}

inline void stream_any_path(const attention_params &a, int32_t warps, int32_t splits, int32_t cluster, assay_env *env,
                            const char *name) {
  (void)snprintf(env->path, sizeof env->path, "%s warps=%d splits=%d cluster=%d D=%d G=%d%s", name, warps, splits,
                 cluster, a.D, a.G, cache_word(a));
}

/* Calls use(D, heads), with both as `number`. lean: whether there are kernels of sixteen heads of more than 112
 * channels. */
template <bool lean, class Use> assay_status stream_any_sizes(int32_t D, int32_t G, Use use) {
  const int32_t heads = stream_any_heads(G, D);
  if (stream_any_size(D) == 112) return heads == 8 ? use(number<112>(), number<8>()) : use(number<112>(), number<16>());
  if (heads == 4) return use(number<256>(), number<4>());
  if constexpr (lean)
    if (heads == 16) return use(number<256>(), number<16>());
  return use(number<256>(), number<8>());
}

/* As stream_with(). */
template <class Types, bool lean, class Use>
assay_status stream_any_with(const attention_types &types, int32_t D, int32_t G, Use use) {
  return Types::of(types, [&](auto type, auto cached) {
    return stream_any_sizes<lean>(D, G,
                                  [&](auto channels, auto columns) { return use(type, cached, channels, columns); });
  });
}

} // namespace ASSAY_NS
#endif
