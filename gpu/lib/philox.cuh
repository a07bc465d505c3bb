/* philox.cuh: Philox4x32-10 on the device (Salmon, Moraes, Dror, Shaw, SC 2011). It uses integers only. */
#ifndef ASSAY_GPU_LIB_PHILOX_CUH
#define ASSAY_GPU_LIB_PHILOX_CUH

#include <stdint.h>

#include "gpu/lib/launch.h"

namespace ASSAY_NS {

struct philox_block {
  uint32_t word[4];
};

/* Returns the block after ten rounds. The Weyl constants are added to the key between the rounds. */
__device__ __forceinline__ philox_block philox4x32_10(philox_block counter, uint32_t key_low, uint32_t key_high) {
  constexpr uint64_t multiplier_0 = 0xD2511F53u, multiplier_2 = 0xCD9E8D57u;
  for (int round = 0; round < 10; ++round) {
    const uint64_t from_0 = multiplier_0 * counter.word[0], from_2 = multiplier_2 * counter.word[2];
    const philox_block next = {
        {static_cast<uint32_t>(from_2 >> 32) ^ counter.word[1] ^ key_low, static_cast<uint32_t>(from_2),
         static_cast<uint32_t>(from_0 >> 32) ^ counter.word[3] ^ key_high, static_cast<uint32_t>(from_0)}};
    counter = next;
    key_low += 0x9E3779B9u;
    key_high += 0xBB67AE85u;
  }
  return counter;
}

/* Returns the upper 24 bits of a word as a number in [0, 1). */
__device__ __forceinline__ float philox_unit(uint32_t word) {
  return static_cast<float>(word >> 8) * 0x1p-24f;
}

} // namespace ASSAY_NS
#endif
