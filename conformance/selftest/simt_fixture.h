/* simt_fixture.h: launches of small kernels on simt, for the tests of what Hopper has beyond plain CUDA. After
 * criterion.h. */
#ifndef ASSAY_SELFTEST_SIMT_FIXTURE_H
#define ASSAY_SELFTEST_SIMT_FIXTURE_H

#include "simt/cuda.h"

#include <vector>

#include <assay/device.h>

#include "gpu/lib/ptx_async.cuh"
#include "gpu/lib/ptx_mma.cuh"
#include "gpu/lib/ptx_wgmma.cuh"

extern "C" const assay_device *assay_device_simt(void);

using namespace ASSAY_NS;
using floats = std::vector<float>;
using ints = std::vector<int>;

static assay_error message;

static void open_simt() {
  cr_assert_eq(assay_device_simt()->open(&message), ASSAY_OK);
}

[[maybe_unused]] static void schedule(uint64_t seed) {
  assay_device_simt()->schedule(seed);
}

#define LAUNCH(kernel, grid, block, shared, ...)                                                                       \
  (message.text[0] = '\0', ASSAY_LAUNCH(&message, kernel, grid, block, shared, nullptr, __VA_ARGS__))
#define LAUNCH_WITH(kernel, grid, block, shared, options, ...)                                                         \
  (message.text[0] = '\0', ASSAY_LAUNCH_WITH(&message, kernel, grid, block, shared, options, nullptr, __VA_ARGS__))
#define RUN(...)      cr_assert_eq(LAUNCH(__VA_ARGS__), ASSAY_OK, "%s", message.text)
#define RUN_WITH(...) cr_assert_eq(LAUNCH_WITH(__VA_ARGS__), ASSAY_OK, "%s", message.text)
#define SAYS(wanted)  cr_expect(strstr(message.text, wanted) != nullptr, "no '%s' in: %s", wanted, message.text)

/* Small whole numbers, exact in every type and in every order of summation. */
inline float small(size_t i) {
  return static_cast<float>(static_cast<int>(i * 2654435761u >> 7 & 15u) - 8);
}

template <class T> std::vector<T> small_values(size_t count, size_t salt) {
  std::vector<T> v(count);
  for (size_t i = 0; i < count; ++i)
    v[i] = from_float<T>(small(i + salt * 977));
  return v;
}

#endif
