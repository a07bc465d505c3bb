/* Sums in f32 against the error model's A: what independent roundings miss. Each case shows that the formula alone
 * would call a plain loop wrong, and that A does not. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>

#include "core/dtype.h"
#include "core/rng.h"
#include "ref/lib/error_model.h"
#include "ref/lib/gemm.h"

enum { MOST = 2000 };
static const double kappa = 7;

typedef struct outcome {
  double miss, sigma, formula; /* error of the loop, sqrt(A), square root of the formula */
} outcome;

static assay_contract contract_of(int32_t lanes, int32_t split) {
  return (assay_contract){.qk_lanes = 1, .pv_lanes = lanes, .keys_per_split = split, .exp_ulp = 2};
}

/* A loop over x[n] with the contract's lanes and splits; terms of one channel. */
static outcome sum_in_f32(const double *x, int64_t n, int32_t lanes, int32_t split) {
  const assay_contract contract = contract_of(lanes, split);
  const int64_t each = split > 0 ? split : n;
  double whole = 0, variance = 0, abs = 0, memory[64];
  const double one = 1;
  float total = 0;
  void *slots = malloc((size_t)equal_terms_room(n));
  cr_assert(slots != NULL && key_sum_room(&contract, 1) <= 64);
  for (int64_t begin = 0; begin < n; begin += each) {
    float lane[8] = {0}, part = 0;
    for (int64_t t = begin; t < n && t < begin + each; ++t)
      lane[t % lanes] += (float)x[t];
    for (int32_t i = 0; i < lanes; ++i)
      part += lane[i];
    total += part;
  }
  for (int64_t t = 0; t < n; ++t) {
    whole += x[t];
    abs += fabs(x[t]);
  }
  key_sum sum;
  equal_terms equal;
  key_sum_place(&sum, &contract, 1, memory);
  key_sum_start(&sum, &whole, 1);
  equal_terms_start(&equal, n, slots);
  for (int64_t t = 0; t < n; ++t) {
    key_sum_add(&sum, t, x[t], &one);
    equal_terms_add(&equal, x[t], key_sum_running(&sum));
  }
  key_sum_finish(&sum, n, &variance);
  const double alike = equal_terms_additions(&equal);
  cr_assert(alike >= 0);
  free(slots);
  return (outcome){fabs((double)total - whole), sqrt(variance + alike), abs * sqrt(key_sum_variance(&contract, n, n))};
}

/* Weights that double precision holds and f32 holds too: no error but that of the additions. */
static double stored(double x) {
  return (double)(float)x;
}

Test(error_model, small_terms_behind_a_large_one_are_lost) {
  double x[MOST];
  for (int32_t split = 0; split <= 256; split += 256) {
    x[0] = 1;
    for (int t = 1; t < MOST; ++t)
      x[t] = stored(0x1p-25 * (0.5 + 0.4 * (double)(t % 7) / 7));
    const outcome o = sum_in_f32(x, split > 0 ? 200 : MOST, 1, split);
    cr_assert(o.miss > kappa * o.formula / 4 && o.miss <= 2 * o.sigma, "split %d: miss %g, sigma %g, formula %g", split,
              o.miss, o.sigma, o.formula);
  }
  const outcome all = sum_in_f32(x, MOST, 1, 0);
  cr_assert(all.miss > kappa * all.formula, "miss %g, formula %g", all.miss, all.formula);
}

/* The large one last: in this order nothing is lost, in the other everything is; the limit is that of both. */
Test(error_model, order_of_the_keys_is_nobodys_promise) {
  double x[MOST], y[MOST];
  for (int t = 0; t < MOST; ++t)
    x[t] = t == 0 ? 1 : 0x1.8p-26;
  for (int t = 0; t < MOST; ++t)
    y[t] = x[MOST - 1 - t];
  const outcome first = sum_in_f32(x, MOST, 1, 0), last = sum_in_f32(y, MOST, 1, 0);
  cr_assert(first.miss > kappa * first.formula && first.miss <= 2 * first.sigma && first.miss <= kappa * last.sigma);
}

Test(error_model, equal_terms_err_alike) {
  double x[MOST];
  int beyond = 0;
  for (int i = 0; i < 64; ++i) {
    const double value = stored(0.5 + 0.0076 * (i + 0.37));
    for (int t = 0; t < MOST; ++t)
      x[t] = value;
    const outcome o = sum_in_f32(x, MOST, 1, 0);
    cr_assert(o.miss <= 2.5 * o.sigma, "%a: miss %g, sigma %g", value, o.miss, o.sigma);
    beyond += o.miss > kappa * o.formula;
  }
  cr_assert(beyond > 0, "none beyond the formula");
}

/* Terms between half an ulp and one are taken for a whole one, whatever they are. */
Test(error_model, small_terms_round_alike) {
  double x[MOST];
  for (int32_t split = 0; split <= 256; split += 256) {
    for (int t = 0; t < MOST; ++t)
      x[t] = t == 0 ? 1 : stored(0x1p-23 * (0.7 + 0.2 * (double)t / MOST)); /* no two alike */
    const outcome o = sum_in_f32(x, split > 0 ? 200 : MOST, 1, split);
    cr_assert(o.miss > kappa * o.formula && o.miss <= 2.5 * o.sigma, "split %d: miss %g, sigma %g, formula %g", split,
              o.miss, o.sigma, o.formula);
  }
}

/* One term outweighs the others of its lane and all other lanes: each step of the butterfly rounds at its ulp. */
Test(error_model, an_outlier_is_rounded_in_every_step) {
  enum { LANES = 32, N = 256 };
  double misses = 0, formula = 0, outlier = 0;
  for (int turn = 0; turn < 500; ++turn) {
    double x[N], size = 0, square = 0;
    float lane[LANES] = {0};
    assay_rng_normals((uint64_t)turn, 9, x, N);
    for (int c = 0; c < N; ++c) {
      x[c] = stored(c == turn % N ? 1.05e5 : x[c] * x[c]);
      size += x[c];
      square += x[c] * x[c];
      lane[c / 4 % LANES] += (float)x[c];
    }
    for (int apart = LANES / 2; apart > 0; apart /= 2)
      for (int i = 0; i < apart; ++i)
        lane[i] += lane[i + apart];
    misses += ((double)lane[0] - size) * ((double)lane[0] - size) / (size * size);
    formula += accumulation_variance(N, LANES);
    outlier += outlier_variance(size, square, N, LANES);
  }
  cr_assert(misses > 1.5 * formula && misses < 1.2 * outlier && misses > 0.3 * outlier,
            "%g, formula %g, with outlier %g", misses, formula, outlier);
  cr_expect_eq(outlier_variance(0, 0, N, LANES), accumulation_variance(N, LANES));
  cr_expect_eq(outlier_variance(0.99 * N, N, N, LANES), accumulation_variance(N, LANES));
}

/* Lanes share a sum alike. On the way to a sum just above a power of two all are just above one, and round as coarsely
 * as f32 does. Just below, they round half as coarsely, and the mean over a binade remains. */
Test(error_model, sums_just_above_a_power_of_two) {
  enum { LANES = 32, N = 2048, TURNS = 500 };
  const double wanted[] = {1.03, 1.97};
  for (int above = 0; above < 2; ++above) {
    double misses = 0, formula = 0, model = 0;
    for (int turn = 0; turn < TURNS; ++turn) {
      double x[N], size = 0, square = 0;
      float lane[LANES] = {0};
      assay_rng_normals((uint64_t)turn, 10, x, N);
      for (int c = 0; c < N; ++c)
        size += x[c] * x[c];
      const double scale = wanted[above] * 1024 / size;
      size = 0;
      for (int c = 0; c < N; ++c) {
        x[c] = stored(x[c] * x[c] * scale);
        size += x[c];
        square += x[c] * x[c];
      }
      for (int l = 0; l < LANES; ++l) { /* a lane's own sum is exact here: only combining counts */
        double sum = 0;
        for (int c = l; c < N; c += LANES)
          sum += x[c];
        lane[l] = (float)sum;
        size += (double)lane[l] - sum;
      }
      for (int apart = LANES / 2; apart > 0; apart /= 2)
        for (int i = 0; i < apart; ++i)
          lane[i] += lane[i + apart];
      misses += ((double)lane[0] - size) * ((double)lane[0] - size) / (size * size);
      formula += accumulation_variance(LANES, LANES);
      model += outlier_variance(size, square, LANES, LANES);
    }
    cr_expect(misses < 1.15 * model && misses > 0.35 * model, "%g: %g, model %g", wanted[above], misses, model);
    cr_expect(above == 0 ? model > 1.8 * formula : model == formula, "%g: %g, formula %g", wanted[above], model,
              formula);
  }
}

/* One product is nearly all of a dot product on 32 lanes. Each addition to it rounds at its ulp. Just above a power of
 * two, the ulp is twice as large a share of it as just below. */
Test(error_model, largest_product_just_above_a_power_of_two) {
  enum { LANES = 32, K = 128, TURNS = 2000 };
  const assay_contract contract = {.lanes = LANES};
  const double large[] = {1.02, 1.96};
  double relative[2];
  for (int above = 0; above < 2; ++above) {
    double misses = 0, model = 0;
    for (int turn = 0; turn < TURNS; ++turn) {
      double x[K], ones[K];
      float lane[LANES] = {0};
      assay_rng_normals((uint64_t)turn, 11, x, K);
      for (int k = 0; k < K; ++k) {
        x[k] = stored(k == turn % K ? large[above] : 1e-3 * x[k]);
        ones[k] = 1;
        lane[k / 4 % LANES] += (float)x[k];
      }
      for (int apart = LANES / 2; apart > 0; apart /= 2)
        for (int i = 0; i < apart; ++i)
          lane[i] += lane[i + apart];
      const gemm_sum s = gemm_walk(x, ones, K);
      misses += ((double)lane[0] - s.sum) * ((double)lane[0] - s.sum);
      model += gemm_variance(&s, &contract, x, ones, K, ASSAY_F32);
    }
    cr_expect(misses < 1.15 * model && misses > 0.3 * model, "%g: %g, model %g", large[above], misses, model);
    relative[above] = model / (large[above] * large[above]);
  }
  cr_expect(relative[0] > 1.8 * relative[1], "%g, %g", relative[0], relative[1]);
}

/* Whole numbers below 2^24, and equal terms among others, are no reason for a wider limit. */
Test(error_model, exact_additions_add_nothing) {
  double x[MOST];
  for (int t = 0; t < MOST; ++t)
    x[t] = 1;
  const outcome o = sum_in_f32(x, MOST, 1, 0);
  cr_assert(o.miss == 0 && o.sigma <= o.formula * 1.01, "sigma %g, formula %g", o.sigma, o.formula);
}

/* The running sum is large from the first term on: every addition rounds at its ulp. And terms of both signs, on lanes
 * and splits: the mean over many sums is what A says. */
Test(error_model, mean_over_many_sums) {
  static const int32_t lanes[] = {1, 1, 4, 8}, splits[] = {0, 256, 0, 256};
  for (int heavy = 0; heavy < 2; ++heavy)
    for (int k = 0; k < 4; ++k) {
      double miss = 0, sigma = 0, x[MOST];
      for (int turn = 0; turn < 200; ++turn) {
        assay_rng_normals((uint64_t)(turn + 1000 * k), 7, x, 800);
        for (int t = 0; t < 800; ++t)
          x[t] = heavy ? stored(fabs(x[t]) * 0x1p-12) : stored(x[t]);
        if (heavy) x[0] = stored(1 + 0.0009 * turn);
        const outcome o = sum_in_f32(x, 800, lanes[k], splits[k]);
        cr_assert(o.miss <= kappa * o.sigma, "turn %d: miss %g, sigma %g", turn, o.miss, o.sigma);
        miss += o.miss * o.miss;
        sigma += o.sigma * o.sigma;
      }
      const double ratio = sqrt(miss / sigma);
      cr_assert(ratio < 1.4 && (!heavy || lanes[k] > 1 || splits[k] > 0 || ratio > 0.5), "heavy %d, lanes %d: %g",
                heavy, lanes[k], ratio);
    }
}

/* ---- tensor cores ------------------------------------------------------------------------------------- */

/* 2^e of x as a tensor core of f16 takes it: not below the least normal number; 0 for 0. */
static double exponent_of(double x, double least) {
  int e;
  if (x == 0) return 0;
  (void)frexp(x, &e);
  return fmax(ldexp(1, e - 1), least);
}

/* Sixteen products a step and the sum, cut at 2^-25 of the largest exponent, then to 24 bits. */
static double sum_on_tensor_cores(const double *a, const double *b, int64_t n) {
  double sum = 0;
  for (int64_t k = 0; k < n; k += 16) {
    double top = exponent_of(sum, 0), next;
    for (int64_t i = k; i < k + 16; ++i)
      top = fmax(top, exponent_of(a[i], 0x1p-14) * exponent_of(b[i], 0x1p-14));
    const double unit = 0x1p-25 * top;
    if (unit == 0) continue;
    next = trunc(sum / unit);
    for (int64_t i = k; i < k + 16; ++i)
      next += trunc(a[i] * b[i] / unit);
    const double last = exponent_of(next * unit, 0) * 0x1p-23;
    sum = last > 0 ? trunc(next * unit / last) * last : 0;
  }
  return sum;
}

typedef struct cut_outcome {
  double miss, sigma, rounded; /* error of the sum, its sigma with the cut, its sigma without */
} cut_outcome;

static cut_outcome cut_case(const double *a, const double *b, int64_t n) {
  assay_contract contract = contract_of(1, 0);
  contract.lanes = 1;
  const gemm_sum s = gemm_walk(a, b, n);
  const double rounded = sqrt(gemm_variance(&s, &contract, a, b, n, ASSAY_F16));
  contract.cut = 16;
  const double miss = fabs(sum_on_tensor_cores(a, b, n) - s.sum);
  return (cut_outcome){miss, sqrt(gemm_variance(&s, &contract, a, b, n, ASSAY_F16)), rounded};
}

/* f16 numbers of one sign: every product loses what lies below 2^-25 of a sum that is a thousand times as large. */
Test(error_model, tensor_cores_cut_terms_of_one_sign) {
  enum { N = 4096 };
  static double a[N], b[N];
  for (int64_t k = 0; k < N; ++k) {
    a[k] = assay_round_f64(1 + (double)(k * 37 % 1000) / 1000, ASSAY_F16);
    b[k] = assay_round_f64(1 + (double)(k * 91 % 999) / 999, ASSAY_F16);
  }
  const cut_outcome o = cut_case(a, b, N);
  cr_assert(o.miss > kappa * o.rounded && o.miss <= 1.5 * o.sigma, "miss %g, sigma %g, %g", o.miss, o.sigma, o.rounded);
}

/* Subnormal numbers have the exponent of the least normal one. */
Test(error_model, tensor_cores_cut_products_of_subnormal_numbers) {
  double a[64], b[64];
  for (int64_t k = 0; k < 64; ++k) {
    a[k] = (double)(k % 5 - 2) * 0x1p-24;
    b[k] = k == 1 ? 512 : assay_round_f64(1 + (double)(k * 37 % 1001) / 1001, ASSAY_F16);
  }
  const cut_outcome o = cut_case(a, b, 64);
  cr_assert(o.miss > kappa * o.rounded && o.miss <= 2 * o.sigma, "miss %g, sigma %g, %g", o.miss, o.sigma, o.rounded);
}

/* f32 operands never go there, and where nothing is cut nothing is added. */
Test(error_model, only_products_of_16_bits_are_cut) {
  assay_contract contract = contract_of(1, 0);
  const double a[2] = {1, 2}, b[2] = {0.3, 0.7};
  const gemm_sum s = gemm_walk(a, b, 2);
  const double plain = gemm_variance(&s, &contract, a, b, 2, ASSAY_F32);
  contract.cut = 16;
  cr_expect_eq(gemm_variance(&s, &contract, a, b, 2, ASSAY_F32), plain);
  cr_expect(gemm_variance(&s, &contract, a, b, 2, ASSAY_BF16) > plain);
}
