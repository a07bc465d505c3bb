/* simt_philox_test.cpp: the kernels' Philox against its published answers (Random123, kat_vectors), and against the
 * host's over many keys and counters. */
#include <criterion/criterion.h>

#include "simt/cuda.h"

#include "gpu/lib/philox.cuh"

extern "C" {
#include "core/rng.h"
}

using namespace ASSAY_NS;

static void expect(philox_block counter, uint32_t key_low, uint32_t key_high, philox_block wanted) {
  const philox_block r = philox4x32_10(counter, key_low, key_high);
  for (int i = 0; i < 4; ++i)
    cr_assert_eq(r.word[i], wanted.word[i], "word %d: %08x, not %08x", i, r.word[i], wanted.word[i]);
}

Test(simt_philox, known_answers) {
  expect({{0, 0, 0, 0}}, 0, 0, {{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}});
  expect({{0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF}}, 0xFFFFFFFF, 0xFFFFFFFF,
         {{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}});
  expect({{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}}, 0xa4093822, 0x299f31d0,
         {{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}});
}

Test(simt_philox, agrees_with_the_host) {
  uint64_t state = 1;
  for (int turn = 0; turn < 20000; ++turn) {
    uint32_t word[6];
    for (uint32_t &w : word) {
      state = state * 6364136223846793005u + 1442695040888963407u;
      w = static_cast<uint32_t>(state >> 32);
    }
    const uint64_t seed = static_cast<uint64_t>(word[5]) << 32 | word[4];
    const assay_philox host = assay_philox4x32(seed, word[0], word[1], word[2], word[3]);
    expect({{word[0], word[1], word[2], word[3]}}, word[4], word[5], {{host.x[0], host.x[1], host.x[2], host.x[3]}});
  }
}

Test(simt_philox, numbers_below_one) {
  cr_assert(philox_unit(0) == 0.0f && philox_unit(0xFF) == 0.0f);
  cr_assert(philox_unit(0x100) == 0x1p-24f && philox_unit(0xFFFFFFFF) == 1.0f - 0x1p-24f);
}
