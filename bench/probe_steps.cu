/* probe_steps.cu: single steps of this GPU's tensor cores against the predictor (docs/last-bit.md), bit for bit.
 *
 *   probe_steps STEPS [JSONL] [plant]
 *
 * Draws STEPS steps of each instruction and type, and compares each with assay_sums_predict. Prints a line per form,
 * and the two steps that tell which exponent a small sum of f16 has. Where f16 sums are 0 or subnormal, it counts the
 * steps that each of several rules misses. JSONL gets the counts and the first steps that differ. `plant` changes a bit
 * of each form: the status must then be 1. Status 1: a step differs. Status 77: no Hopper GPU. ci/probe.sh builds it.
 */
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "assay/sums.h"

extern "C" {
#include "core/dtype.h"
}

namespace {

/* ---- forms --------------------------------------------------------------------------------------------- */

enum Kind { BF16, F16, F16_SUMS, TF32, E4M3, E5M2_E4M3, E4M3_E5M2, E5M2, KINDS };

struct Format {
  assay_dtype dtype;
  int bytes, exponent_bits, fraction_bits, bias;
};

constexpr Format of_bf16 = {ASSAY_BF16, 2, 8, 7, 127}, of_f16 = {ASSAY_F16, 2, 5, 10, 15};
constexpr Format of_tf32 = {ASSAY_F32, 4, 8, 23, 127};
constexpr Format of_e4m3 = {ASSAY_E4M3, 1, 4, 3, 7}, of_e5m2 = {ASSAY_E5M2, 1, 5, 2, 15};

struct Form {
  const char *name;
  bool wgmma;
  Kind kind;
  assay_sum_unit unit;
  Format a, b;
};

constexpr Form forms[] = {
    {"mma bf16", false, BF16, ASSAY_SUM_MMA_16, of_bf16, of_bf16},
    {"mma f16", false, F16, ASSAY_SUM_MMA_16, of_f16, of_f16},
    {"mma f16, f16 sums", false, F16_SUMS, ASSAY_SUM_MMA_16_F16, of_f16, of_f16},
    {"mma tf32", false, TF32, ASSAY_SUM_MMA_TF32, of_tf32, of_tf32},
    {"mma e4m3", false, E4M3, ASSAY_SUM_MMA_8, of_e4m3, of_e4m3},
    {"mma e5m2 e4m3", false, E5M2_E4M3, ASSAY_SUM_MMA_8, of_e5m2, of_e4m3},
    {"mma e4m3 e5m2", false, E4M3_E5M2, ASSAY_SUM_MMA_8, of_e4m3, of_e5m2},
    {"mma e5m2", false, E5M2, ASSAY_SUM_MMA_8, of_e5m2, of_e5m2},
    {"wgmma bf16", true, BF16, ASSAY_SUM_WGMMA_16, of_bf16, of_bf16},
    {"wgmma f16", true, F16, ASSAY_SUM_WGMMA_16, of_f16, of_f16},
    {"wgmma f16, f16 sums", true, F16_SUMS, ASSAY_SUM_WGMMA_16_F16, of_f16, of_f16},
    {"wgmma tf32", true, TF32, ASSAY_SUM_WGMMA_TF32, of_tf32, of_tf32},
    {"wgmma e4m3", true, E4M3, ASSAY_SUM_WGMMA_8, of_e4m3, of_e4m3},
    {"wgmma e5m2 e4m3", true, E5M2_E4M3, ASSAY_SUM_WGMMA_8, of_e5m2, of_e4m3},
    {"wgmma e4m3 e5m2", true, E4M3_E5M2, ASSAY_SUM_WGMMA_8, of_e4m3, of_e5m2},
    {"wgmma e5m2", true, E5M2, ASSAY_SUM_WGMMA_8, of_e5m2, of_e5m2},
};

/* A row of factors has 32 bytes in every form: 8 words. A tile has 16 or 64 rows, 8 columns, and one step per element.
 * Sums are f32 bits, or f16 bits in the lower half. */
constexpr int words = 8, columns = 8, most_rows = 64;

int rows_of(const Form &f) {
  return f.wgmma ? 64 : 16;
}

int depth_of(const Form &f) {
  return 32 / f.a.bytes;
}

struct Tile {
  uint32_t a[most_rows * words], b[columns * words], c[most_rows * columns], d[most_rows * columns];
};

/* ---- kernels ------------------------------------------------------------------------------------------- */

#define MMA_F32(shape, types)                                                                                          \
  asm volatile("mma.sync.aligned." shape ".row.col.f32." types                                                         \
               ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"                                  \
               : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])                                                        \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]))

template <Kind kind> __device__ void mma(uint32_t (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  if constexpr (kind == BF16) MMA_F32("m16n8k16", "bf16.bf16");
  if constexpr (kind == F16) MMA_F32("m16n8k16", "f16.f16");
  if constexpr (kind == TF32) MMA_F32("m16n8k8", "tf32.tf32");
  if constexpr (kind == E4M3) MMA_F32("m16n8k32", "e4m3.e4m3");
  if constexpr (kind == E5M2_E4M3) MMA_F32("m16n8k32", "e5m2.e4m3");
  if constexpr (kind == E4M3_E5M2) MMA_F32("m16n8k32", "e4m3.e5m2");
  if constexpr (kind == E5M2) MMA_F32("m16n8k32", "e5m2.e5m2");
  if constexpr (kind == F16_SUMS)
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16 {%0, %1}, {%2, %3, %4, %5}, {%6, %7}, {%0, %1};"
                 : "+r"(d[0]), "+r"(d[1])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

#define WGMMA_F32(shape, types, more)                                                                                  \
  asm volatile("wgmma.mma_async.sync.aligned." shape ".f32." types " {%0, %1, %2, %3}, %4, %5, 1, 1, 1" more ";"       \
               : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])                                                        \
               : "l"(a), "l"(b))

template <Kind kind> __device__ void wgmma(uint32_t (&d)[4], uint64_t a, uint64_t b) {
  if constexpr (kind == BF16) WGMMA_F32("m64n8k16", "bf16.bf16", ", 0, 0");
  if constexpr (kind == F16) WGMMA_F32("m64n8k16", "f16.f16", ", 0, 0");
  if constexpr (kind == TF32) WGMMA_F32("m64n8k8", "tf32.tf32", "");
  if constexpr (kind == E4M3) WGMMA_F32("m64n8k32", "e4m3.e4m3", "");
  if constexpr (kind == E5M2_E4M3) WGMMA_F32("m64n8k32", "e5m2.e4m3", "");
  if constexpr (kind == E4M3_E5M2) WGMMA_F32("m64n8k32", "e4m3.e5m2", "");
  if constexpr (kind == E5M2) WGMMA_F32("m64n8k32", "e5m2.e5m2", "");
  if constexpr (kind == F16_SUMS)
    asm volatile("wgmma.mma_async.sync.aligned.m64n8k16.f16.f16.f16 {%0, %1}, %2, %3, 1, 1, 1, 0, 0;"
                 : "+r"(d[0]), "+r"(d[1])
                 : "l"(a), "l"(b));
}

/* Returns a descriptor of rows of 32 bytes without swizzle. A core matrix has 8 rows of 16 bytes. The second half of k
 * lies 128 bytes after the first, and the next 8 rows lie 256 bytes after. */
__device__ uint64_t descriptor(const void *shared) {
  const uint64_t address = static_cast<uint64_t>(__cvta_generic_to_shared(shared));
  return (address & 0x3FFFFu) >> 4 | static_cast<uint64_t>(128 >> 4) << 16 | static_cast<uint64_t>(256 >> 4) << 32;
}

__device__ int place_in_core(int row, int word) {
  return row / 8 * 64 + word / 4 * 32 + row % 8 * 4 + word % 4;
}

/* Does one step per element of a tile; a block per tile, of a warp or of a warpgroup. */
template <Kind kind, bool with_wgmma> __global__ void step(Tile *tiles) {
  Tile &t = tiles[blockIdx.x];
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int g = lane / 4, q = lane % 4, row = warp * 16 + g, at = row * columns + 2 * q, below = at + 8 * columns;
  uint32_t d[4] = {t.c[at], t.c[at + 1], t.c[below], t.c[below + 1]};
  if constexpr (kind == F16_SUMS) {
    d[0] = (d[0] & 0xFFFFu) | d[1] << 16;
    d[1] = (d[2] & 0xFFFFu) | d[3] << 16;
  }
  if constexpr (with_wgmma) {
    __shared__ alignas(1024) uint32_t a[most_rows * words];
    __shared__ alignas(1024) uint32_t b[columns * words];
    for (int i = static_cast<int>(threadIdx.x); i < most_rows * words; i += 128)
      a[place_in_core(i / words, i % words)] = t.a[i];
    if (threadIdx.x < columns * words)
      b[place_in_core(static_cast<int>(threadIdx.x) / words, static_cast<int>(threadIdx.x) % words)] = t.b[threadIdx.x];
    asm volatile("fence.proxy.async;" ::: "memory");
    __syncthreads();
    asm volatile("" : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])::"memory");
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
    wgmma<kind>(d, descriptor(a), descriptor(b));
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
    asm volatile("" : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])::"memory");
  } else {
    const uint32_t a[4] = {t.a[row * words + q], t.a[(row + 8) * words + q], t.a[row * words + q + 4],
                           t.a[(row + 8) * words + q + 4]};
    const uint32_t b[2] = {t.b[g * words + q], t.b[g * words + q + 4]};
    mma<kind>(d, a, b);
  }
  if constexpr (kind == F16_SUMS) {
    d[3] = d[1] >> 16;
    d[2] = d[1] & 0xFFFFu;
    d[1] = d[0] >> 16;
    d[0] &= 0xFFFFu;
  }
  t.d[at] = d[0];
  t.d[at + 1] = d[1];
  t.d[below] = d[2];
  t.d[below + 1] = d[3];
}

template <Kind kind> void launch_kind(bool with_wgmma, Tile *tiles, int count) {
  if (with_wgmma)
    step<kind, true><<<count, 128>>>(tiles);
  else
    step<kind, false><<<count, 32>>>(tiles);
}

void launch(const Form &f, Tile *tiles, int count) {
  switch (f.kind) {
  case BF16:
    return launch_kind<BF16>(f.wgmma, tiles, count);
  case F16:
    return launch_kind<F16>(f.wgmma, tiles, count);
  case F16_SUMS:
    return launch_kind<F16_SUMS>(f.wgmma, tiles, count);
  case TF32:
    return launch_kind<TF32>(f.wgmma, tiles, count);
  case E4M3:
    return launch_kind<E4M3>(f.wgmma, tiles, count);
  case E5M2_E4M3:
    return launch_kind<E5M2_E4M3>(f.wgmma, tiles, count);
  case E4M3_E5M2:
    return launch_kind<E4M3_E5M2>(f.wgmma, tiles, count);
  default:
    return launch_kind<E5M2>(f.wgmma, tiles, count);
  }
}

/* Runs the tiles on the GPU. Ends the program if the GPU fails. */
void run(const Form &f, Tile *device, std::vector<Tile> &tiles, int count) {
  const size_t bytes = static_cast<size_t>(count) * sizeof(Tile);
  cudaError_t status = cudaMemcpy(device, tiles.data(), bytes, cudaMemcpyHostToDevice);
  if (status == cudaSuccess) {
    launch(f, device, count);
    status = cudaGetLastError();
  }
  if (status == cudaSuccess) status = cudaMemcpy(tiles.data(), device, bytes, cudaMemcpyDeviceToHost);
  if (status == cudaSuccess) return;
  (void)printf("probe_steps: FAIL: %s: %s\n", f.name, cudaGetErrorString(status));
  exit(1);
}

/* ---- draws --------------------------------------------------------------------------------------------- */

struct Random {
  uint64_t state;
  uint64_t next() {
    uint64_t z = state += 0x9E3779B97F4A7C15u;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
  }
  int between(int low, int high) { return low + static_cast<int>(next() % static_cast<uint64_t>(high - low + 1)); }
};

enum Mode { NARROW, ANY_CODE, LEAST, ZEROS, SPECIAL, CANCELS, LARGEST, TINY, MODES };

uint32_t code_of(const Format &f, int field, uint64_t random) {
  const uint32_t fraction = static_cast<uint32_t>(random) & ((1u << f.fraction_bits) - 1);
  return static_cast<uint32_t>(random >> 32 & 1) << (8 * f.bytes - 1) |
         static_cast<uint32_t>(field) << f.fraction_bits | fraction;
}

uint32_t draw_factor(Random &random, const Format &f, Mode mode, int base) {
  const int top = (1 << f.exponent_bits) - 1, most = f.dtype == ASSAY_E4M3 ? top : top - 1;
  const auto clipped = [&](int field) { return field < 0 ? 0 : field > most ? most : field; };
  const uint64_t bits = random.next();
  int field = random.between(0, most);
  if (mode == NARROW || mode == CANCELS || mode == TINY) field = clipped(base + random.between(-6, 6));
  if (mode == LEAST) field = random.between(0, 3) == 0 ? clipped(base + random.between(-4, 4)) : random.between(0, 2);
  if (mode == ZEROS && random.between(0, 2) != 0) return code_of(f, 0, bits & 1ull << 32);
  if (mode == LARGEST) field = clipped(most - random.between(0, 2));
  if (mode == SPECIAL && random.between(0, 40) == 0)
    return code_of(f, top, random.between(0, 4) == 0 || f.dtype == ASSAY_E4M3 ? bits | 0x7F : bits & 1ull << 32);
  /* Many factors of few bits: their products tie and cancel. */
  return code_of(f, field, random.between(0, 5) == 0 ? bits & ~0xFFFFFFFFull : bits);
}

/* Draws a sum near 2^middle, or any. */
uint32_t draw_sum(Random &random, bool f16, Mode mode, int middle) {
  const Format f = f16 ? of_f16 : of_tf32;
  const int top = (1 << f.exponent_bits) - 1;
  int field = middle + f.bias + random.between(-30, 30);
  switch (random.between(0, mode == SPECIAL ? 11 : 9)) {
  case 0:
    return code_of(f, 0, random.next() & 1ull << 32);
  case 1:
    field = 0;
    break;
  case 2:
    field = random.between(0, top - 1);
    break;
  case 10:
    return code_of(f, top, random.next() & 1ull << 32);
  case 11:
    return code_of(f, top, random.next() | 1);
  default:
    break;
  }
  return code_of(f, field < 0 ? 0 : field > top - 1 ? top - 1 : field, random.next());
}

void put(uint32_t *at, const Format &f, int i, uint32_t code) {
  memcpy(reinterpret_cast<unsigned char *>(at) + static_cast<size_t>(i * f.bytes), &code, static_cast<size_t>(f.bytes));
}

/* Draws steps whose f16 sum is near a tie below the least subnormal number. Products are about 2^-25 or about 2^-45:
 * the latter count only where e is small. Sums are 0 or a few times 2^-24. */
void draw_ties(const Form &f, Tile &t, Random &random) {
  memset(&t, 0, sizeof t);
  for (int k = 0; k < 16; ++k) {
    const int kind = random.between(0, 3), up = random.between(0, 1) == 0 ? 0 : random.between(-3, 3);
    const int subnormal = random.between(0, 2) == 0 ? 1023 : 15;
    const auto code = [&](int field) {
      const uint64_t bits = random.next();
      if (kind == 1) return code_of(of_f16, field, random.between(0, 1) == 0 ? bits & 1ull << 32 : bits & 0x100000300u);
      return code_of(of_f16, 0, (bits & 1ull << 32) | (bits & static_cast<uint64_t>(subnormal)));
    };
    for (int r = 0; kind > 0 && r < rows_of(f); ++r)
      put(t.a + r * words, of_f16, k, random.between(0, 3) == 0 ? 0 : code(3));
    for (int n = 0; kind > 0 && n < columns; ++n)
      put(t.b + n * words, of_f16, k, random.between(0, 3) == 0 ? 0 : code(2 + up > 0 ? 2 + up : 1));
  }
  for (int i = 0; i < rows_of(f) * columns; ++i)
    t.c[i] =
        random.between(0, 2) == 0 ? 0 : code_of(of_f16, 0, random.next() & (i % 2 == 0 ? 0x100000003u : 0x1000003FFu));
}

void draw_tile(const Form &f, Tile &t, uint64_t seed) {
  Random random = {seed};
  if (f.kind == F16_SUMS && random.between(0, 1) == 0) return draw_ties(f, t, random);
  const Mode mode = static_cast<Mode>(random.between(0, MODES - 1));
  const int top_a = (1 << f.a.exponent_bits) - 1, top_b = (1 << f.b.exponent_bits) - 1, depth = depth_of(f);
  const int base_a = mode == TINY ? top_a / 4 : random.between(0, top_a);
  const int base_b = mode == TINY ? top_b / 5 - random.between(0, 8) : random.between(0, top_b);
  const bool f16 = f.kind == F16_SUMS;
  for (int r = 0; r < rows_of(f); ++r)
    for (int k = 0; k < depth; ++k) {
      const uint32_t x = draw_factor(random, f.a, mode, base_a);
      put(t.a + r * words, f.a, k, x);
      if (mode == CANCELS && k % 2 == 0) /* the next product is this one with the other sign, or nearly */
        put(t.a + r * words, f.a, ++k, x ^ 1u << (8 * f.a.bytes - 1) ^ (random.between(0, 3) == 0 ? 1u : 0u));
    }
  for (int n = 0; n < columns; ++n)
    for (int k = 0; k < depth; ++k) {
      const uint32_t y = draw_factor(random, f.b, mode, base_b);
      put(t.b + n * words, f.b, k, y);
      if (mode == CANCELS && k % 2 == 0) put(t.b + n * words, f.b, ++k, y);
    }
  for (int i = 0; i < rows_of(f) * columns; ++i) {
    const bool anywhere = mode == LARGEST || mode == LEAST || mode == ANY_CODE;
    const int middle = anywhere ? random.between(-150, 127) : base_a + base_b - f.a.bias - f.b.bias;
    if (mode == TINY) /* zero, or as small as can be */
      t.c[i] = random.between(0, 1) == 0 ? 0 : code_of(f16 ? of_f16 : of_tf32, 0, random.next());
    else
      t.c[i] = draw_sum(random, f16, mode, f16 && anywhere ? random.between(-24, 15) : middle);
  }
}

/* ---- the predictor ------------------------------------------------------------------------------------- */

/* Predicts a tile. Sums of f16 are f16 bits, as the GPU's. */
void predict(const Form &f, const Tile &t, uint32_t *sums) {
  const int rows = rows_of(f), depth = depth_of(f);
  const bool f16 = f.kind == F16_SUMS;
  float start[most_rows * columns];
  uint16_t narrow[most_rows * columns];
  for (int i = 0; i < rows * columns; ++i) {
    if (f16)
      start[i] = assay_f16_to_f32(static_cast<uint16_t>(t.c[i]));
    else
      memcpy(start + i, t.c + i, sizeof *start);
  }
  const assay_sums contract = {.unit = f.unit, .output = f16 ? ASSAY_F16 : ASSAY_F32};
  assay_product product = {};
  product.a = {const_cast<uint32_t *>(t.a), f.a.dtype, 2, {rows, depth}, {depth, 1}};
  product.b = {const_cast<uint32_t *>(t.b), f.b.dtype, 2, {columns, depth}, {depth, 1}};
  product.start = {start, ASSAY_F32, 2, {rows, columns}, {columns, 1}};
  assay_error error = {""};
  if (assay_sums_predict(&contract, &product, f16 ? static_cast<void *>(narrow) : sums, &error) != ASSAY_OK) {
    (void)printf("probe_steps: FAIL: %s: %s\n", f.name, error.text);
    exit(1);
  }
  for (int i = 0; f16 && i < rows * columns; ++i)
    sums[i] = narrow[i];
}

/* ---- other rules of f16 sums ---------------------------------------------------------------------------- */

/* A rule says with which exponent c counts where it is subnormal (that of the number, or -14) and where it is 0. */
struct Rule {
  bool subnormal_as_number;
  int zero;
};

constexpr int rules_count = 2 * 13;

Rule rule_of(int i) {
  return {i / 13 == 0, i % 13 == 0 ? -133 : -13 - i % 13}; /* -133, then -14 to -25 */
}

struct Parts {
  int size, exponent; /* significand with its sign; exponent, of a normal number or the least one */
};

Parts parts_of_f16(uint32_t code) {
  const int field = static_cast<int>(code >> 10 & 31), fraction = static_cast<int>(code & 1023);
  const int size = field == 0 ? fraction : fraction | 1024;
  return {(code & 0x8000u) != 0 ? -size : size, (field == 0 ? 1 : field) - 15};
}

int64_t cut(int64_t value, int up) {
  const int64_t size = value < 0 ? -value : value;
  const int64_t moved = up >= 0 ? size << up : -up > 62 ? 0 : size >> -up;
  return value < 0 ? -moved : moved;
}

/* Returns the f16 bits of a step of finite factors by a rule. Written apart from the predictor. */
uint32_t step_by(const Rule &rule, const uint16_t *a, const uint16_t *b, uint32_t c) {
  Parts of_c = parts_of_f16(c);
  int exponent_c = of_c.exponent;
  if (of_c.size == 0) exponent_c = rule.zero;
  if (of_c.size != 0 && (c >> 10 & 31) == 0 && rule.subnormal_as_number)
    exponent_c = static_cast<int>(std::log2(std::abs(of_c.size))) - 24;
  int e = exponent_c;
  for (int k = 0; k < 16; ++k) {
    const Parts x = parts_of_f16(a[k]), y = parts_of_f16(b[k]);
    if (x.size != 0 && y.size != 0 && x.exponent + y.exponent > e) e = x.exponent + y.exponent;
  }
  int64_t total = cut(of_c.size, of_c.exponent - 10 - (e - 25));
  for (int k = 0; k < 16; ++k) {
    const Parts x = parts_of_f16(a[k]), y = parts_of_f16(b[k]);
    total += cut(static_cast<int64_t>(x.size) * y.size, x.exponent + y.exponent - 20 - (e - 25));
  }
  const uint32_t sum = assay_f16_from_f64(std::ldexp(static_cast<double>(total), e - 25));
  return sum == 0x8000u ? 0 : sum; /* a sum of zero is +0 */
}

bool is_finite_f16(const uint16_t *codes) {
  bool finite = true;
  for (int k = 0; k < 16; ++k)
    finite &= (codes[k] >> 10 & 31) != 31;
  return finite;
}

/* ---- counts -------------------------------------------------------------------------------------------- */

struct Counts {
  int64_t steps = 0, differ = 0, small = 0, zeros = 0, subnormal = 0, infinities = 0, nans = 0;
  int64_t missed[rules_count] = {};
  std::vector<std::string> examples;
};

std::string shown(const Form &f, const Tile &t, int i, uint32_t predicted) {
  char part[64];
  (void)snprintf(part, sizeof part, "\"c\": \"%08x\", \"gpu\": \"%08x\", \"predicted\": \"%08x\", ", t.c[i], t.d[i],
                 predicted);
  std::string text = std::string("{\"form\": \"") + f.name + "\", " + part + "\"products\": \"";
  const int depth = depth_of(f);
  for (int k = 0; k < depth; ++k) {
    uint32_t x = 0, y = 0;
    memcpy(&x, reinterpret_cast<const unsigned char *>(t.a + i / columns * words) + k * f.a.bytes,
           static_cast<size_t>(f.a.bytes));
    memcpy(&y, reinterpret_cast<const unsigned char *>(t.b + i % columns * words) + k * f.b.bytes,
           static_cast<size_t>(f.b.bytes));
    (void)snprintf(part, sizeof part, "%s%x*%x", k > 0 ? " " : "", x, y);
    text += part;
  }
  return text + "\"}";
}

void compare(const Form &f, const Tile &t, Counts &counts) {
  uint32_t predicted[most_rows * columns];
  predict(f, t, predicted);
  const bool f16 = f.kind == F16_SUMS;
  const uint32_t infinity = f16 ? 0x7C00u : 0x7F800000u, least = f16 ? 0x400u : 0x800000u;
  for (int i = 0; i < rows_of(f) * columns; ++i) {
    const uint32_t size = t.d[i] & (f16 ? 0x7FFFu : 0x7FFFFFFFu);
    ++counts.steps;
    counts.zeros += size == 0;
    counts.subnormal += size != 0 && size < least;
    counts.infinities += size == infinity;
    counts.nans += size > infinity;
    if (t.d[i] != predicted[i]) {
      ++counts.differ;
      if (counts.examples.size() < 40) counts.examples.push_back(shown(f, t, i, predicted[i]));
    }
    if (!f16 || (t.c[i] & 0x7C00u) != 0) continue;
    const uint16_t *const a = reinterpret_cast<const uint16_t *>(t.a + i / columns * words);
    const uint16_t *const b = reinterpret_cast<const uint16_t *>(t.b + i % columns * words);
    if (!is_finite_f16(a) || !is_finite_f16(b)) continue;
    ++counts.small;
    for (int r = 0; r < rules_count; ++r)
      counts.missed[r] += step_by(rule_of(r), a, b, t.c[i]) != t.d[i];
  }
}

/* Calls work(i, thread) for each i below count, in several threads. */
template <class Work> void in_threads(int count, int threads, const Work &work) {
  std::vector<std::thread> all;
  for (int w = 0; w < threads; ++w)
    all.emplace_back([=, &work] {
      for (int i = w; i < count; i += threads)
        work(i, w);
    });
  for (std::thread &one : all)
    one.join();
}

/* Tells whether products of small whole numbers are exact: whether operands lie where the instruction reads them. */
bool layout_is_right(const Form &f, Tile *device) {
  std::vector<Tile> tiles(1);
  Random random = {17};
  const int depth = depth_of(f), rows = rows_of(f);
  std::vector<int> a(static_cast<size_t>(rows * depth)), b(static_cast<size_t>(columns * depth));
  const auto code = [](const Format &of, int x) {
    uint32_t bits = 0;
    unsigned char room[8] = {};
    assay_store_f64(room, of.dtype, 0, x);
    memcpy(&bits, room, static_cast<size_t>(of.bytes));
    return bits;
  };
  for (int i = 0; i < rows * depth; ++i)
    put(tiles[0].a + i / depth * words, f.a, i % depth, code(f.a, a[static_cast<size_t>(i)] = random.between(-3, 3)));
  for (int i = 0; i < columns * depth; ++i)
    put(tiles[0].b + i / depth * words, f.b, i % depth, code(f.b, b[static_cast<size_t>(i)] = random.between(-3, 3)));
  const Format sum = f.kind == F16_SUMS ? of_f16 : of_tf32;
  for (int i = 0; i < rows * columns; ++i)
    tiles[0].c[i] = code(sum, i % 50);
  run(f, device, tiles, 1);
  for (int i = 0; i < rows * columns; ++i) {
    int whole = i % 50;
    for (int k = 0; k < depth; ++k)
      whole += a[static_cast<size_t>(i / columns * depth + k)] * b[static_cast<size_t>(i % columns * depth + k)];
    if (tiles[0].d[i] == code(sum, whole)) continue;
    (void)printf("%s: FAIL: layout: row %d, column %d: found %08x, wanted %08x\n", f.name, i / columns, i % columns,
                 tiles[0].d[i], code(sum, whole));
    return false;
  }
  return true;
}

/* Asks the steps that tell which exponent a small sum of f16 has. */
void ask(const Form &f, Tile *device) {
  struct Question {
    const char *text;
    uint16_t a0, b0, a1, b1, c;
  };
  /* 2^-12 is 0x0C00 and 2^-13 is 0x0800; subnormal: 2^-21 is 8, 2^-23 is 2, 2^-24 is 1 */
  constexpr Question questions[] = {
      {"c = 2^-23, 2^-12 2^-13 + 2^-24 2^-21: 2 where a subnormal c counts as -14, 3 where as the number", 0x0C00,
       0x0800, 1, 8, 2},
      {"c = 0, 2^-12 2^-13 + 2^-24 2^-24: 0 where a c of 0 counts as -21, 1 where as -133", 0x0C00, 0x0800, 1, 1, 0},
      {"c = 0, 2^-12 2^-13 alone, a tie", 0x0C00, 0x0800, 0, 0, 0},
      {"c = 2^-23, 2^-12 2^-13 alone, a tie", 0x0C00, 0x0800, 0, 0, 2},
  };
  for (const Question &q : questions) {
    std::vector<Tile> tiles(1);
    memset(tiles.data(), 0, sizeof(Tile));
    put(tiles[0].a, of_f16, 0, q.a0);
    put(tiles[0].a, of_f16, 1, q.a1);
    put(tiles[0].b, of_f16, 0, q.b0);
    put(tiles[0].b, of_f16, 1, q.b1);
    tiles[0].c[0] = q.c;
    run(f, device, tiles, 1);
    uint32_t predicted[most_rows * columns];
    predict(f, tiles[0], predicted);
    (void)printf("%s: %s: found %04x, predicted %04x\n", f.name, q.text, tiles[0].d[0], predicted[0]);
  }
}

void print_rules(const Form &f, const Counts &all, FILE *jsonl) {
  for (int r = 0; r < rules_count; ++r) {
    const Rule rule = rule_of(r);
    (void)printf("%s: c subnormal counts as %s, 0 as %d: misses %lld of %lld\n", f.name,
                 rule.subnormal_as_number ? "the number" : "-14", rule.zero, static_cast<long long>(all.missed[r]),
                 static_cast<long long>(all.small));
    if (jsonl != nullptr)
      (void)fprintf(jsonl,
                    "{\"form\": \"%s\", \"subnormal\": \"%s\", \"zero\": %d, \"small_sums\": %lld, \"missed\": %lld}\n",
                    f.name, rule.subnormal_as_number ? "number" : "-14", rule.zero, static_cast<long long>(all.small),
                    static_cast<long long>(all.missed[r]));
  }
}

/* Compares `steps` drawn steps of a form. Returns how many differ; -1 if operands lie wrong. */
int64_t probe(const Form &f, Tile *device, std::vector<Tile> &tiles, int64_t steps, bool plant, FILE *jsonl) {
  const int threads =
      static_cast<int>(std::thread::hardware_concurrency() > 0 ? std::thread::hardware_concurrency() : 1);
  const int of_tile = rows_of(f) * columns, count = static_cast<int>(tiles.size());
  if (!layout_is_right(f, device)) return -1;
  if (f.kind == F16_SUMS) ask(f, device);
  std::vector<Counts> counts(static_cast<size_t>(threads));
  Counts all;
  for (int64_t done = 0; done < steps; done += static_cast<int64_t>(count) * of_tile) {
    in_threads(count, threads, [&](int i, int) {
      const uint64_t number = static_cast<uint64_t>(done) / static_cast<uint64_t>(of_tile) + static_cast<uint64_t>(i);
      draw_tile(f, tiles[static_cast<size_t>(i)],
                20261128u + (number << 8) + static_cast<uint64_t>(&f - forms) * 0x1000003u);
    });
    run(f, device, tiles, count);
    if (plant && done == 0) tiles[0].d[0] ^= 1;
    in_threads(count, threads,
               [&](int i, int w) { compare(f, tiles[static_cast<size_t>(i)], counts[static_cast<size_t>(w)]); });
  }
  for (const Counts &one : counts) {
    all.steps += one.steps;
    all.differ += one.differ;
    all.small += one.small;
    all.zeros += one.zeros;
    all.subnormal += one.subnormal;
    all.infinities += one.infinities;
    all.nans += one.nans;
    for (int r = 0; r < rules_count; ++r)
      all.missed[r] += one.missed[r];
    for (const std::string &example : one.examples)
      if (all.examples.size() < 40) all.examples.push_back(example);
  }
  const long long shows[] = {all.steps, all.differ, all.zeros, all.subnormal, all.infinities, all.nans};
  (void)printf("%s: %lld steps, %lld differ; %lld zeros, %lld subnormal, %lld infinities, %lld NaN\n", f.name, shows[0],
               shows[1], shows[2], shows[3], shows[4], shows[5]);
  for (size_t i = 0; i < all.examples.size() && i < 3; ++i)
    (void)printf("  %s\n", all.examples[i].c_str());
  if (jsonl != nullptr) {
    (void)fprintf(jsonl,
                  "{\"form\": \"%s\", \"unit\": \"%s\", \"steps\": %lld, \"differ\": %lld, \"zeros\": %lld, "
                  "\"subnormal\": %lld, \"infinities\": %lld, \"nans\": %lld}\n",
                  f.name, assay_sum_unit_name(f.unit), shows[0], shows[1], shows[2], shows[3], shows[4], shows[5]);
    for (const std::string &example : all.examples)
      (void)fprintf(jsonl, "%s\n", example.c_str());
  }
  if (f.kind == F16_SUMS) print_rules(f, all, jsonl);
  (void)fflush(stdout);
  return all.differ;
}

} // namespace

int main(int argc, char **argv) {
  const int64_t steps = argc > 1 ? atoll(argv[1]) : 0;
  if (steps < 1 || argc > 4 || (argc == 4 && strcmp(argv[3], "plant") != 0)) {
    (void)fprintf(stderr, "usage: probe_steps STEPS [JSONL] [plant]\n");
    return 2;
  }
  cudaDeviceProp gpu = {};
  if (cudaGetDeviceProperties(&gpu, 0) != cudaSuccess || gpu.major != 9) {
    (void)printf("probe_steps: no Hopper GPU here: skipped\n");
    return 77;
  }
  FILE *const jsonl = argc > 2 ? fopen(argv[2], "w") : nullptr;
  if (argc > 2 && jsonl == nullptr) {
    (void)fprintf(stderr, "probe_steps: cannot write %s\n", argv[2]);
    return 2;
  }
  (void)printf("%s\n", gpu.name);
  if (jsonl != nullptr)
    (void)fprintf(jsonl, "{\"what\": \"bench/probe_steps.cu: drawn steps against the predictor\", \"gpu\": \"%s\"}\n",
                  gpu.name);
  std::vector<Tile> tiles(2048);
  Tile *device = nullptr;
  if (cudaMalloc(&device, tiles.size() * sizeof(Tile)) != cudaSuccess) {
    (void)printf("probe_steps: FAIL: no memory on the GPU\n");
    return 1;
  }
  int64_t differ = 0, wrong = 0;
  for (const Form &f : forms) {
    const int64_t found = probe(f, device, tiles, steps, argc == 4, jsonl);
    differ += found > 0 ? found : 0;
    wrong += found < 0;
  }
  (void)cudaFree(device);
  if (jsonl != nullptr && fclose(jsonl) != 0) return 2;
  (void)printf("%lld steps differ; %lld forms could not be asked\n", static_cast<long long>(differ),
               static_cast<long long>(wrong));
  return differ > 0 || wrong > 0 ? 1 : 0;
}
