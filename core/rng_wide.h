/* rng_wide.h: normals of LANES blocks at once, in vectors of 8 · LANES bytes. rng.c includes it for each width, with
 * LANES, TARGET, PRODUCT (an intrinsic that multiplies the lanes' lower halves), VECTOR (its type) and NAME(x)
 * defined. */
#define WIDE __attribute__((target(TARGET))) static inline

typedef uint64_t NAME(lanes) __attribute__((vector_size(8 * LANES)));
typedef double NAME(reals) __attribute__((vector_size(8 * LANES)));

WIDE NAME(lanes) NAME(low_product)(NAME(lanes) a, NAME(lanes) b) {
  return (NAME(lanes))PRODUCT((VECTOR)a, (VECTOR)b);
}

WIDE NAME(lanes) NAME(all)(uint64_t x) {
  return x - (NAME(lanes)){0};
}

/* Converts to f64; exact below 2^52. */
WIDE NAME(reals) NAME(to_reals)(NAME(lanes) x) {
  return (NAME(reals))(x | 0x4330000000000000u) - 0x1p52;
}

/* Does near_normal() for every lane. */
WIDE NAME(reals) NAME(near_normals)(NAME(lanes) word) {
  const NAME(lanes) golden = NAME(all)(0x7F4A7C15u), upper = NAME(all)(0x9E3779B9u);
  const NAME(lanes) pairs = (word & 0x0000FFFF0000FFFFu) + (word >> 16 & 0x0000FFFF0000FFFFu);
  const NAME(lanes) sum = (pairs & 0xFFFFFFFFu) + (pairs >> 32);
  const NAME(lanes) cross = NAME(low_product)(word, upper) + NAME(low_product)(word >> 32, golden);
  const NAME(lanes) fill = (NAME(low_product)(word, golden) + (cross << 32)) >> 29;
  const NAME(reals) t = NAME(to_reals)(sum) * 0x1p35 + NAME(to_reals)(fill); /* 53 bits: exact */
  return (t - 131070.5 * 0x1p35) * (1.7320508075688772 * 0x1p-51);
}

/* Makes the draws from number 2 · first on. */
WIDE void NAME(some_normals)(uint64_t seed, uint64_t stream, uint64_t first, double value[2 * LANES]) {
  NAME(lanes) block;
  for (int i = 0; i < LANES; ++i)
    block[i] = first + (uint64_t)i;
  NAME(lanes) c0 = block & 0xFFFFFFFFu, c1 = block >> 32 | normal_domain;
  NAME(lanes) c2 = NAME(all)(stream & 0xFFFFFFFFu), c3 = NAME(all)(stream >> 32);
  uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
  for (int round = 0; round < 10; ++round) {
    const NAME(lanes) a = NAME(low_product)(c0, NAME(all)(0xD2511F53u));
    const NAME(lanes) b = NAME(low_product)(c2, NAME(all)(0xCD9E8D57u));
    c0 = b >> 32 ^ c1 ^ k0;
    c1 = b;
    c2 = a >> 32 ^ c3 ^ k1;
    c3 = a;
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  const NAME(reals) even = NAME(near_normals)((c0 & 0xFFFFFFFFu) | c1 << 32);
  const NAME(reals) odd = NAME(near_normals)((c2 & 0xFFFFFFFFu) | c3 << 32);
  for (int i = 0; i < LANES; ++i) {
    value[2 * i] = even[i];
    value[2 * i + 1] = odd[i];
  }
}

/* Returns how many draws were made: all except a rest below 2 · LANES. */
__attribute__((target(TARGET))) static int64_t NAME(normals)(uint64_t seed, uint64_t stream, double *value,
                                                             int64_t count) {
  int64_t i = 0;
  for (; i + 2 * LANES <= count; i += 2 * LANES)
    NAME(some_normals)(seed, stream, (uint64_t)i / 2, value + i);
  return i;
}

#undef WIDE
#undef LANES
#undef TARGET
#undef PRODUCT
#undef VECTOR
#undef NAME
