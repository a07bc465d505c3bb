/* rng.c: Philox4x32-10, streams, and near-normal draws. All arithmetic is on integers up to the last conversion, so
 * that every machine draws the same numbers.
 *
 * Source: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011. */
#include "core/rng.h"

#include "core/wide.h"

#if defined(__SSE2__)
#include <immintrin.h>
#endif

/* The high half of c1 keeps the normals apart from the 64-bit draws of the same (seed, stream). */
static const uint32_t normal_domain = 0x80000000u;

static inline assay_philox philox(uint64_t seed, uint32_t c0, uint32_t c1, uint32_t c2, uint32_t c3) {
  uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = (uint64_t)c0 * 0xD2511F53u, b = (uint64_t)c2 * 0xCD9E8D57u;
    c0 = (uint32_t)(b >> 32) ^ c1 ^ k0;
    c1 = (uint32_t)b;
    c2 = (uint32_t)(a >> 32) ^ c3 ^ k1;
    c3 = (uint32_t)a;
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return (assay_philox){{c0, c1, c2, c3}};
}

assay_philox assay_philox4x32(uint64_t seed, uint32_t c0, uint32_t c1, uint32_t c2, uint32_t c3) {
  return philox(seed, c0, c1, c2, c3);
}

/* Makes the next draw. Draw i is half (i & 1) of block i / 2. The counter is (block low, block high, stream low, stream
 * high). */
uint64_t assay_rng_u64(assay_rng *rng) {
  const uint64_t i = rng->index++, block = i >> 1;
  const assay_philox r =
      philox(rng->seed, (uint32_t)block, (uint32_t)(block >> 32), (uint32_t)rng->stream, (uint32_t)(rng->stream >> 32));
  const int half = (int)(i & 1) * 2;
  return (uint64_t)r.x[half + 1] << 32 | r.x[half];
}

/* Discards draws below 2^64 mod span, so that every value is equally likely. */
int64_t assay_rng_range(assay_rng *rng, int64_t low, int64_t high) {
  const uint64_t span = (uint64_t)high - (uint64_t)low + 1;
  uint64_t draw = assay_rng_u64(rng);
  if (span == 0) return (int64_t)draw;
  const uint64_t reject = (0 - span) % span;
  while (draw < reject)
    draw = assay_rng_u64(rng);
  return (int64_t)((uint64_t)low + draw % span);
}

double assay_rng_unit(assay_rng *rng) {
  return (double)(assay_rng_u64(rng) >> 11) * 0x1p-53;
}

/* Makes one draw from 64 random bits. The sum s of the four 16-bit fields gives the upper bits; 35 bits of a hash of
 * the same word stand below it. The mantissa is thus full, and roundings in the storage types are not all the same. t =
 * s·2^35 + fill has 53 bits; its mean is (131070 + 1/2)·2^35, its deviation 2^16/sqrt(3)·2^35. */
static inline double near_normal(uint64_t word) {
  const uint64_t pairs = (word & 0x0000FFFF0000FFFFu) + (word >> 16 & 0x0000FFFF0000FFFFu);
  const uint64_t sum = (pairs & 0xFFFFFFFFu) + (pairs >> 32);
  const uint64_t fill = word * 0x9E3779B97F4A7C15u >> 29;
  return ((double)(int64_t)(sum << 35 | fill) - 131070.5 * 0x1p35) * (1.7320508075688772 * 0x1p-51);
}

enum { BLOCKS = 4, WORDS = 2 * BLOCKS };

#if defined(__SSE2__)
/* Two blocks in one register for each counter word. A word has 64 bits of room, which the widening multiplication
 * needs. */
typedef struct philox_pair {
  __m128i c0, c1, c2, c3;
} philox_pair;

static inline philox_pair pair_start(uint64_t even, uint64_t stream) {
  const uint64_t odd = even + 1;
  return (philox_pair){
      _mm_set_epi64x((int64_t)(odd & 0xFFFFFFFFu), (int64_t)(even & 0xFFFFFFFFu)),
      _mm_set_epi64x((int64_t)(odd >> 32 | normal_domain), (int64_t)(even >> 32 | normal_domain)),
      _mm_set1_epi64x((int64_t)(stream & 0xFFFFFFFFu)),
      _mm_set1_epi64x((int64_t)(stream >> 32)),
  };
}

/* Does one round. The upper 32 bits of a lane gather garbage, which the multiplication does not read. */
static inline philox_pair pair_round(philox_pair c, __m128i key0, __m128i key1) {
  const __m128i a = _mm_mul_epu32(c.c0, _mm_set1_epi64x(0xD2511F53));
  const __m128i b = _mm_mul_epu32(c.c2, _mm_set1_epi64x(0xCD9E8D57));
  return (philox_pair){_mm_xor_si128(_mm_xor_si128(_mm_srli_epi64(b, 32), c.c1), key0), b,
                       _mm_xor_si128(_mm_xor_si128(_mm_srli_epi64(a, 32), c.c3), key1), a};
}

static inline void pair_words(philox_pair c, uint64_t *word) {
  const __m128i low = _mm_set1_epi64x(0xFFFFFFFF);
  const __m128i head = _mm_or_si128(_mm_and_si128(c.c0, low), _mm_slli_epi64(c.c1, 32));
  const __m128i tail = _mm_or_si128(_mm_and_si128(c.c2, low), _mm_slli_epi64(c.c3, 32));
  _mm_storeu_si128((__m128i *)word, _mm_unpacklo_epi64(head, tail));
  _mm_storeu_si128((__m128i *)(word + 2), _mm_unpackhi_epi64(head, tail));
}
#endif

/* Writes the 64-bit words of blocks first to first + 3 of the normals' domain. */
static inline void words_of_blocks(uint64_t seed, uint64_t stream, uint64_t first, uint64_t word[WORDS]) {
#if defined(__SSE2__)
  philox_pair a = pair_start(first, stream), b = pair_start(first + 2, stream);
  uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
  for (int round = 0; round < 10; ++round) {
    const __m128i key0 = _mm_set1_epi64x(k0), key1 = _mm_set1_epi64x(k1);
    a = pair_round(a, key0, key1);
    b = pair_round(b, key0, key1);
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  pair_words(a, word);
  pair_words(b, word + 4);
#else
  for (int j = 0; j < BLOCKS; ++j) {
    const uint64_t block = first + (uint64_t)j;
    const assay_philox r = philox(seed, (uint32_t)block, (uint32_t)(block >> 32) | normal_domain, (uint32_t)stream,
                                  (uint32_t)(stream >> 32));
    word[2 * j] = (uint64_t)r.x[1] << 32 | r.x[0];
    word[2 * j + 1] = (uint64_t)r.x[3] << 32 | r.x[2];
  }
#endif
}

#if defined(ASSAY_HAVE_WIDE)
#define LANES   4
#define TARGET  "avx2"
#define PRODUCT _mm256_mul_epu32
#define VECTOR  __m256i
#define NAME(x) x##_4
#include "core/rng_wide.h"

#define LANES   8
#define TARGET  "avx512f"
#define PRODUCT _mm512_mul_epu32
#define VECTOR  __m512i
#define NAME(x) x##_8
#include "core/rng_wide.h"
#endif

void assay_rng_normals(uint64_t seed, uint64_t stream, double *value, int64_t count) {
  uint64_t word[WORDS];
  int64_t i = 0;
#if defined(ASSAY_HAVE_WIDE)
  if (__builtin_cpu_supports("avx512f"))
    i = normals_8(seed, stream, value, count);
  else if (__builtin_cpu_supports("avx2"))
    i = normals_4(seed, stream, value, count);
#endif
  for (; i < count; i += WORDS) {
    words_of_blocks(seed, stream, (uint64_t)i / 2, word);
    if (count - i >= WORDS)
      for (int j = 0; j < WORDS; ++j)
        value[i + j] = near_normal(word[j]);
    else
      for (int64_t j = 0; j < count - i; ++j)
        value[i + j] = near_normal(word[j]);
  }
}
