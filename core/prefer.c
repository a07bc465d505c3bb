/* prefer.c: the rules of prefer.h, and what they were measured by. */
#include "prefer.h"

/* Batches with such lengths gained 18 to 62 % by even shares, and shorter or more even ones gained nothing
 * (docs/log/2026-11-28-h200-even-shares.md). */
enum { RAGGED_LENGTH = 1024, RAGGED_RATIO = 2 };

bool prefer_even_shares(const int32_t *kv_len, int64_t requests) {
  int64_t longest = 0, sum = 0;
  for (int64_t i = 0; i < requests; ++i) {
    longest = kv_len[i] > longest ? kv_len[i] : longest;
    sum += kv_len[i];
  }
  return longest >= RAGGED_LENGTH && longest * requests >= RAGGED_RATIO * sum;
}

/* Prompts of 2,048 and 8,192 tokens took 0.83 and 0.81 of wgmma's time, of 1,024 the same, and of 256 1.11 (the same
 * log). */
enum { PACKED_TOKENS = 2048, PACKED_GROUP = 8, PACKED_CHANNELS = 64 };

bool prefer_packed(int64_t D, int64_t H, int64_t H_kv, int64_t tokens, int64_t requests) {
  return D == PACKED_CHANNELS && H >= PACKED_GROUP * H_kv && requests > 0 && tokens >= PACKED_TOKENS * requests;
}
