/* channels.cuh: four neighbouring channels of a row at once, as f32. The end of a row whose length is no multiple of
 * four is taken by element; nothing after it is touched. */
#ifndef ASSAY_GPU_LIB_CHANNELS_CUH
#define ASSAY_GPU_LIB_CHANNELS_CUH

#include "gpu/lib/types.cuh"
#include "gpu/lib/vec.cuh"

namespace ASSAY_NS {

/* Loads channels c to c + 3 of a row of C; 0 after its end. */
template <class T>
__device__ __forceinline__ void load_channels(const T *row, int32_t c, int32_t C, bool quads, float (&value)[4]) {
  if (c + 4 <= C) {
    const quad<T> from = load_quad(row + c, quads);
    ASSAY_UNROLL
    for (int i = 0; i < 4; ++i)
      value[i] = to_float(from.element[i]);
    return;
  }
  ASSAY_UNROLL
  for (int i = 0; i < 4; ++i)
    value[i] = c + i < C ? to_float(row[c + i]) : 0.0f;
}

template <class T>
__device__ __forceinline__ void store_channels(T *row, int32_t c, int32_t C, bool quads, const float (&value)[4]) {
  if (c + 4 <= C) {
    quad<T> to;
    ASSAY_UNROLL
    for (int i = 0; i < 4; ++i)
      to.element[i] = from_float<T>(value[i]);
    store_quad(row + c, to, quads);
    return;
  }
  ASSAY_UNROLL
  for (int i = 0; i < 4; ++i)
    if (c + i < C) row[c + i] = from_float<T>(value[i]);
}

/* A vector of weights that may be absent, or one number for all channels. load_weights gives `otherwise` for an absent
 * one. */
struct channel_weight {
  const void *data; /* NULL: absent */
  bool one;
};

template <class T>
__device__ __forceinline__ void load_weights(const channel_weight &weight, int32_t c, int32_t C, bool quads,
                                             float otherwise, float (&value)[4]) {
  const T *const data = static_cast<const T *>(weight.data);
  if (data != nullptr && !weight.one) {
    load_channels(data, c, C, quads, value);
    return;
  }
  const float all = data != nullptr ? to_float(data[0]) : otherwise;
  ASSAY_UNROLL
  for (int i = 0; i < 4; ++i)
    value[i] = all;
}

} // namespace ASSAY_NS
#endif
