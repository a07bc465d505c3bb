/* simt_explain_test.cpp: the search for a sum contract, over products that simt's tensor cores and loops written here
 * have made under known contracts. The search predicts; nothing here does. ASSAY_EXPLAIN_ALL=1: all contracts; else a
 * few of them. */
#include <criterion/criterion.h>

#include <chrono>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "simt/products.h"
#include "simt_fixture.h"

extern "C" {
#include "conformance/explain/explain.h"
#include "conformance/text/npy.h"
#include "core/dtype.h"
#include "core/rng.h"
#include "files_fixture.h"
}

static void open_all() {
  open_simt();
}

TestSuite(simt_explain, .init = open_all, .fini = files_gone, .timeout = 280);

constexpr int64_t M = 16, N = 8;          /* the tile of mma.sync */
constexpr double most_seconds = 60;       /* the search for one contract may take */
enum Unit { TENSOR, TENSOR_BY_F16, FMA }; /* TENSOR: 16 or 8 bits, as the types say */
enum Join { ASCENDING, DESCENDING, PAIRWISE };
enum Scale { NONE, BY_FMA, BY_PRODUCT, AFTER };

struct Contract {
  const char *finds; /* the line of assay explain */
  bool in_ci;
  Unit unit;
  assay_dtype a, b, out;
  int64_t K, parts, tile;
  Join join;
  int64_t promote;
  Scale scale;
};

static const Contract contracts[] = {
    {"parts=1 promote=0 unit=wgmma_16", true, TENSOR, ASSAY_BF16, ASSAY_BF16, ASSAY_F32, 512, 1, 0, ASCENDING, 0, NONE},
    {"parts=1 promote=0 unit=wgmma_16", false, TENSOR, ASSAY_F16, ASSAY_F16, ASSAY_F32, 512, 1, 0, ASCENDING, 0, NONE},
    {"parts=2 promote=0 unit=wgmma_16", true, TENSOR, ASSAY_BF16, ASSAY_BF16, ASSAY_BF16, 1024, 2, 0, ASCENDING, 0,
     NONE},
    {"parts=4 promote=0 unit=wgmma_16 join=ascending", false, TENSOR, ASSAY_BF16, ASSAY_BF16, ASSAY_F32, 1024, 4, 0,
     ASCENDING, 0, NONE},
    {"parts=4 promote=0 unit=wgmma_16 join=descending", false, TENSOR, ASSAY_BF16, ASSAY_BF16, ASSAY_F32, 1024, 4, 0,
     DESCENDING, 0, NONE},
    {"parts=8 promote=0 unit=wgmma_16 join=pairwise", true, TENSOR, ASSAY_BF16, ASSAY_BF16, ASSAY_F32, 1024, 8, 0,
     PAIRWISE, 0, NONE},
    {"parts=3 promote=0 unit=wgmma_16 tile=64 join=ascending", true, TENSOR, ASSAY_F16, ASSAY_F16, ASSAY_F32, 1024, 3,
     64, ASCENDING, 0, NONE},
    {"parts=5 promote=0 unit=wgmma_16 tile=32 join=descending", false, TENSOR, ASSAY_BF16, ASSAY_BF16, ASSAY_F32, 1792,
     5, 128, DESCENDING, 0, NONE},
    {"parts=16 promote=0 unit=wgmma_16 join=pairwise", false, TENSOR, ASSAY_BF16, ASSAY_BF16, ASSAY_F32, 2048, 16, 0,
     PAIRWISE, 0, NONE},
    {"parts=64 promote=0 unit=wgmma_16 join=descending", false, TENSOR, ASSAY_F16, ASSAY_F16, ASSAY_F32, 2048, 64, 0,
     DESCENDING, 0, NONE},
    /* A promoted sum has the bits of equal parts. Parts of three tiles of 128 are parts of twelve of 32, above. */
    {"parts=8 promote=0 unit=wgmma_16 join=ascending", false, TENSOR, ASSAY_BF16, ASSAY_BF16, ASSAY_F32, 1024, 1, 0,
     ASCENDING, 128, NONE},
    {"parts=2 promote=64 unit=wgmma_16", false, TENSOR, ASSAY_BF16, ASSAY_BF16, ASSAY_F32, 1024, 2, 0, ASCENDING, 64,
     NONE},
    {"parts=1 promote=0 unit=wgmma_8", false, TENSOR, ASSAY_E4M3, ASSAY_E4M3, ASSAY_F32, 1024, 1, 0, ASCENDING, 0,
     NONE},
    {"parts=1 promote=128 unit=wgmma_8", true, TENSOR, ASSAY_E4M3, ASSAY_E4M3, ASSAY_F32, 1024, 1, 0, ASCENDING, 128,
     NONE},
    {"parts=1 promote=32 unit=wgmma_8", false, TENSOR, ASSAY_E5M2, ASSAY_E4M3, ASSAY_F32, 512, 1, 0, ASCENDING, 32,
     NONE},
    {"parts=1 promote=512 unit=wgmma_8", false, TENSOR, ASSAY_E5M2, ASSAY_E5M2, ASSAY_F32, 2048, 1, 0, ASCENDING, 512,
     NONE},
    {"parts=2 promote=0 unit=wgmma_8", false, TENSOR, ASSAY_E4M3, ASSAY_E5M2, ASSAY_F32, 7168, 2, 0, ASCENDING, 0,
     NONE},
    {"parts=4 promote=128 unit=wgmma_8 join=descending", false, TENSOR, ASSAY_E5M2, ASSAY_E4M3, ASSAY_F32, 2048, 4, 0,
     DESCENDING, 128, NONE},
    {"parts=1 promote=128 unit=wgmma_8 scale=fma_product", true, TENSOR, ASSAY_E4M3, ASSAY_E4M3, ASSAY_F32, 1024, 1, 0,
     ASCENDING, 128, BY_FMA},
    {"parts=1 promote=128 unit=wgmma_8 scale=product_then_add", false, TENSOR, ASSAY_E4M3, ASSAY_E4M3, ASSAY_F32, 1024,
     1, 0, ASCENDING, 128, BY_PRODUCT},
    {"parts=1 promote=0 unit=wgmma_8 scale=after", true, TENSOR, ASSAY_E4M3, ASSAY_E4M3, ASSAY_F32, 1024, 1, 0,
     ASCENDING, 0, AFTER},
    {"parts=1 promote=0 unit=mma_8", true, TENSOR_BY_F16, ASSAY_E4M3, ASSAY_E4M3, ASSAY_F32, 512, 1, 0, ASCENDING, 0,
     NONE},
    {"parts=4 promote=0 unit=mma_8 join=descending", false, TENSOR_BY_F16, ASSAY_E5M2, ASSAY_E4M3, ASSAY_F32, 2048, 4,
     0, DESCENDING, 0, NONE},
    {"parts=1 promote=0 unit=fma", true, FMA, ASSAY_F32, ASSAY_F32, ASSAY_F32, 512, 1, 0, ASCENDING, 0, NONE},
    {"parts=1 promote=0 unit=fma", false, FMA, ASSAY_BF16, ASSAY_BF16, ASSAY_F32, 512, 1, 0, ASCENDING, 0, NONE},
    {"parts=8 promote=0 unit=fma join=pairwise", false, FMA, ASSAY_F16, ASSAY_F16, ASSAY_F32, 1024, 8, 0, PAIRWISE, 0,
     NONE},
    {"parts=7 promote=0 unit=fma join=descending", false, FMA, ASSAY_F32, ASSAY_F32, ASSAY_F32, 1792, 7, 0, DESCENDING,
     0, NONE},
    {"parts=4 promote=0 unit=wgmma_16 join=descending", false, TENSOR, ASSAY_F16, ASSAY_F16, ASSAY_F16, 2048, 4, 0,
     DESCENDING, 0, NONE},
};

/* ---- products ------------------------------------------------------------------------------------------- */

struct Product {
  const Contract &c;
  std::vector<unsigned char> codes[2]; /* a [M, K] and b [N, K] */
  std::vector<float> a, b, scale_a, scale_b;
};

static int32_t least(assay_dtype type) {
  return type == ASSAY_E4M3 ? -6 : -14;
}

/* Draws numbers of either sign between 2^-3 and 2^3 in size, so that parts and orders show. Sums of fp8 products have
 * few bits, and f32 adds them without rounding unless their sizes are far apart. Those of e5m2 are: each 128 neighbours
 * have a power of two of their own. */
static void draw(assay_rng *rng, assay_dtype type, int64_t count, std::vector<unsigned char> &codes,
                 std::vector<float> &values) {
  codes.resize(static_cast<size_t>(count * assay_dtype_size(type)));
  values.resize(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) {
    const double fraction = 1 + static_cast<double>(assay_rng_range(rng, 0, (1 << 23) - 1)) * 0x1p-23;
    const int power = type == ASSAY_E5M2 ? static_cast<int>(i / 128 * 7 % 13) - 6 : 0;
    const double value = ldexp(fraction, power + static_cast<int>(assay_rng_range(rng, -3, 2)));
    assay_store_f64(codes.data(), type, i, assay_rng_range(rng, 0, 1) != 0 ? value : -value);
    values[static_cast<size_t>(i)] = static_cast<float>(assay_load_f64(codes.data(), type, i));
  }
}

using Sums = std::vector<float>; /* [M, N] */

/* Adds the products from `from` to `to` to the sums. */
static void add_products(const Product &p, int64_t from, int64_t to, Sums &sum) {
  const Contract &c = p.c;
  const bool eight = assay_dtype_size(c.a) == 1;
  const int64_t depth = c.unit == FMA ? to - from : eight ? 32 : 16;
  for (int64_t k = from; k < to; k += depth) {
    std::vector<float> a(static_cast<size_t>(M * depth)), b(static_cast<size_t>(depth * N));
    for (int64_t i = 0; i < depth; ++i) {
      for (int64_t m = 0; m < M; ++m)
        a[static_cast<size_t>(m * depth + i)] = p.a[static_cast<size_t>(m * c.K + k + i)];
      for (int64_t n = 0; n < N; ++n)
        b[static_cast<size_t>(i * N + n)] = p.b[static_cast<size_t>(n * c.K + k + i)];
    }
    if (c.unit == TENSOR_BY_F16) assay_simt_host::tensor_products_eight_by_f16(a.data(), b.data(), sum.data());
    if (c.unit == TENSOR && eight)
      assay_simt_host::tensor_products_eight(M, N, a.data(), b.data(), least(c.a), least(c.b), sum.data());
    if (c.unit == TENSOR && !eight)
      assay_simt_host::tensor_products(M, N, a.data(), b.data(), c.a == ASSAY_F16, sum.data());
    for (int64_t i = 0; c.unit == FMA && i < depth; ++i)
      for (int64_t e = 0; e < M * N; ++e)
        sum[static_cast<size_t>(e)] = fmaf(a[static_cast<size_t>(e / N * depth + i)],
                                           b[static_cast<size_t>(i * N + e % N)], sum[static_cast<size_t>(e)]);
  }
}

/* Returns the sums of one part, promoted and scaled as the contract says. */
static Sums part_of(const Product &p, int64_t from, int64_t to) {
  const Contract &c = p.c;
  Sums whole(M * N, 0.0f);
  if (c.promote == 0) {
    add_products(p, from, to, whole);
    return whole;
  }
  const int64_t groups = c.K / c.promote;
  for (int64_t k = from; k < to; k += c.promote) {
    Sums own(M * N, 0.0f);
    add_products(p, k, k + c.promote, own);
    for (int64_t e = 0; e < M * N; ++e) {
      float &sum = whole[static_cast<size_t>(e)];
      const float x = own[static_cast<size_t>(e)];
      if (c.scale != BY_FMA && c.scale != BY_PRODUCT) {
        sum += x;
        continue;
      }
      const float s = p.scale_a[static_cast<size_t>(e / N * groups + k / c.promote)] *
                      p.scale_b[static_cast<size_t>(e % N * groups + k / c.promote)];
      const float product = x * s;
      sum = c.scale == BY_FMA ? fmaf(x, s, sum) : sum + product;
    }
  }
  return whole;
}

static Sums join(const Contract &c, std::vector<Sums> part) {
  const auto add = [](const Sums &x, const Sums &y) {
    Sums sum(x);
    for (size_t e = 0; e < sum.size(); ++e)
      sum[e] += y[e];
    return sum;
  };
  while (part.size() > 1 && c.join == PAIRWISE) {
    std::vector<Sums> half;
    for (size_t i = 0; i < part.size(); i += 2)
      half.push_back(i + 1 < part.size() ? add(part[i], part[i + 1]) : part[i]);
    part = half;
  }
  if (c.join == DESCENDING) part = std::vector<Sums>(part.rbegin(), part.rend());
  Sums sum = part[0];
  for (size_t i = 1; i < part.size(); ++i)
    sum = add(sum, part[i]);
  return sum;
}

static Sums make(const Product &p) {
  const Contract &c = p.c;
  const int64_t tile = c.tile > 0 ? c.tile : c.K / c.parts;
  const int64_t tiles = (c.K + tile - 1) / tile, each = (tiles + c.parts - 1) / c.parts * tile;
  std::vector<Sums> part;
  for (int64_t k = 0; k < c.K; k += each)
    part.push_back(part_of(p, k, k + each < c.K ? k + each : c.K));
  Sums sum = join(c, part);
  for (int64_t e = 0; c.scale == AFTER && e < M * N; ++e)
    sum[static_cast<size_t>(e)] =
        sum[static_cast<size_t>(e)] * p.scale_a[static_cast<size_t>(e / N)] * p.scale_b[static_cast<size_t>(e % N)];
  return sum;
}

/* ---- folders -------------------------------------------------------------------------------------------- */

static void put(const char *name, assay_dtype type, int64_t rows, int64_t columns, const void *data) {
  const int64_t shape[] = {rows, columns};
  cr_assert_eq(npy_write(files_path(name), type, 2, shape, data, &message), ASSAY_OK, "%s", message.text);
}

/* Writes the product as a folder of assay judge. */
static void put_product(const Product &p, const Sums &sum) {
  const Contract &c = p.c;
  const int64_t groups = c.scale == AFTER ? 1 : c.promote > 0 ? c.K / c.promote : 0;
  std::vector<unsigned char> out(M * N * 4);
  char text[900], scales[200] = "";
  for (int64_t e = 0; e < M * N; ++e)
    assay_store_f64(out.data(), c.out, e, static_cast<double>(sum[static_cast<size_t>(e)]));
  put("a.npy", c.a, M, c.K, p.codes[0].data());
  put("b.npy", c.b, N, c.K, p.codes[1].data());
  put("c.npy", c.out, M, N, out.data());
  if (c.scale != NONE) {
    put("sa.npy", ASSAY_F32, M, groups, p.scale_a.data());
    put("sb.npy", ASSAY_F32, N, groups, p.scale_b.data());
    (void)snprintf(scales, sizeof scales, ", \"scale_a\": {\"file\": \"sa.npy\"}, \"scale_b\": {\"file\": \"sb.npy\"}");
  }
  (void)snprintf(text, sizeof text,
                 "{\"name\": \"made\", \"operator\": \"gemm\", \"inputs\": {\"a\": {\"file\": \"a.npy\", \"dtype\": "
                 "\"%s\"}, \"b\": {\"file\": \"b.npy\", \"dtype\": \"%s\"}%s}, \"outputs\": {\"c\": {\"file\": "
                 "\"c.npy\", \"dtype\": \"%s\"}}}",
                 assay_dtype_name(c.a), assay_dtype_name(c.b), scales, assay_dtype_name(c.out));
  (void)files_put("manifest.json", text, strlen(text));
}

/* Makes the second half of K the first one in another order, with the other sign in b. The exact sum is zero, and what
 * is left shows how it was cut. A narrow output rounds a larger sum to the same number under most contracts. */
static void cancel(Product &p) {
  const int64_t K = p.c.K, half = K / 2;
  for (int operand = 0; operand < 2; ++operand) {
    std::vector<float> &values = operand == 0 ? p.a : p.b;
    for (int64_t row = 0; row < (operand == 0 ? M : N); ++row)
      for (int64_t i = 0; i < half; ++i) {
        const float x = values[static_cast<size_t>(row * K + (i * 5 + 3) % half)];
        float &to = values[static_cast<size_t>(row * K + half + i)];
        to = operand == 0 ? x : -x;
        assay_store_f64(p.codes[operand].data(), operand == 0 ? p.c.a : p.c.b, row * K + half + i,
                        static_cast<double>(to));
      }
  }
}

static Product draw_product(const Contract &c, uint64_t seed) {
  Product p = {c, {}, {}, {}, {}, {}};
  assay_rng rng = {seed, 0x6578706C, 0};
  std::vector<unsigned char> unused;
  draw(&rng, c.a, M * c.K, p.codes[0], p.a);
  draw(&rng, c.b, N * c.K, p.codes[1], p.b);
  const int64_t groups = c.scale == AFTER ? 1 : c.promote > 0 ? c.K / c.promote : 0;
  if (c.out != ASSAY_F32) cancel(p);
  if (c.scale == NONE) return p;
  draw(&rng, ASSAY_F32, M * groups, unused, p.scale_a);
  draw(&rng, ASSAY_F32, N * groups, unused, p.scale_b);
  return p;
}

/* ---- the tests ------------------------------------------------------------------------------------------ */

/* Runs the search over the product, with an element changed by one bit if `spoilt`. Returns seconds. */
static double search(const Contract &c, uint64_t seed, bool spoilt, explain_log *log, test_output *output) {
  const Product p = draw_product(c, seed);
  Sums sum = make(p);
  if (spoilt) sum[M * N / 2 + 1] *= 1.25f;
  put_product(p, sum);
  output_open(output);
  *log = explain_log{};
  log->to = static_cast<FILE *>(output->stream);
  const auto begun = std::chrono::steady_clock::now();
  cr_assert_eq(explain_dir(files_folder(), log, &message), ASSAY_OK, "%s", message.text);
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count();
  output_close(output);
  return seconds;
}

Test(simt_explain, finds_every_contract) {
  const bool all = getenv("ASSAY_EXPLAIN_ALL") != nullptr;
  const char *const path = getenv("ASSAY_EXPLAIN_COUNTS");
  FILE *const counts = path != nullptr ? fopen(path, "a") : nullptr;
  uint64_t seed = 20261127;
  for (const Contract &c : contracts) {
    ++seed;
    if (!c.in_ci && !all) continue;
    char wanted[200];
    explain_log log;
    test_output output;
    const double seconds = search(c, seed, false, &log, &output);
    (void)snprintf(wanted, sizeof wanted, "made: %s; all of %d elements", c.finds, static_cast<int>(M * N));
    cr_expect(log.explained == 1 && strstr(output.text, wanted) != nullptr, "no '%s' in: %s", wanted, output.text);
    cr_expect(seconds <= most_seconds, "%s: %.1f s", c.finds, seconds);
    if (counts != nullptr)
      (void)fprintf(counts,
                    "{\"contract\": \"%s\", \"a\": \"%s\", \"b\": \"%s\", \"c\": \"%s\", \"K\": %lld, \"explained\": "
                    "%d, \"seconds\": %.2f}\n",
                    c.finds, assay_dtype_name(c.a), assay_dtype_name(c.b), assay_dtype_name(c.out),
                    static_cast<long long>(c.K), static_cast<int>(log.explained), seconds);
    output_free(&output);
  }
  if (counts != nullptr) (void)fclose(counts);
}

/* The whole search ends without a contract, in time. */
Test(simt_explain, another_bit_is_not_explained) {
  const Contract &c = contracts[0];
  explain_log log;
  test_output output;
  const double seconds = search(c, 7, true, &log, &output);
  cr_expect(log.explained == 0 && log.unexplained == 1, "%s", output.text);
  cr_expect_not_null(strstr(output.text, "made: not explained (99.2 % by parts=1 promote=0 unit=wgmma_16)"), "%s",
                     output.text);
  cr_expect(seconds <= most_seconds, "%.1f s", seconds);
  output_free(&output);
}
