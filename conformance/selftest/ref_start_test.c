/* ref_start_test.c: products whose running sums start from the bias. They are right, but only a contract that says so
 * has limits for them. Sums are made here, in f32 and as tensor cores make them. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>

#include "core/dtype.h"
#include "linear_fixture.h"

const assay_op *assay_op_gemm(void);
const assay_op *assay_op_mxfp4_gemm(void);
const assay_op *assay_op_fp8_block_gemm(void);

enum { MOST_LANES = 32, MOST_K = 1024 };

static const assay_contract from_zero = {.exp_ulp = 2, .lanes = 1}, from_bias = {.lanes = 1, .start = ASSAY_START_BIAS};

/* ---- sums ----------------------------------------------------------------------------------------------- */

/* One element's factors, and what its sum starts from. */
typedef struct terms {
  double a[MOST_K], b[MOST_K];
  int K, lanes;
  bool fused;     /* a product is rounded with its addition alone */
  bool backwards; /* the last term comes first */
} terms;

/* Adds in f32 on lanes, the first of which starts from `start`, and combines the lanes in a butterfly. */
static float summed(const terms *t, float start) {
  float lane[MOST_LANES] = {start};
  for (int k = 0; k < t->K; ++k) {
    const int at = t->backwards ? t->K - 1 - k : k;
    float *const sum = &lane[k % t->lanes];
    if (t->fused)
      *sum = fmaf((float)t->a[at], (float)t->b[at], *sum);
    else
      *sum += (float)t->a[at] * (float)t->b[at];
  }
  for (int apart = t->lanes / 2; apart > 0; apart /= 2)
    for (int i = 0; i < apart; ++i)
      lane[i] += lane[i + apart];
  return lane[0];
}

/* Returns 2^e of x; 0 for 0. */
static double binade(double x) {
  int e;
  return x != 0 ? ldexp(0.5, (frexp(x, &e), e)) : 0;
}

/* Adds sixteen bf16 products a step and the sum, cut at 2^-25 of the largest exponent, then to 24 bits. */
static double cut_sum(const terms *t, double start) {
  double sum = start;
  for (int k = 0; k < t->K; k += 16) {
    double top = binade(sum), next;
    for (int i = k; i < k + 16; ++i)
      top = fmax(top, binade(t->a[i]) * binade(t->b[i]));
    const double unit = 0x1p-25 * top;
    if (unit == 0) continue;
    next = trunc(sum / unit);
    for (int i = k; i < k + 16; ++i)
      next += trunc(t->a[i] * t->b[i] / unit);
    const double last = binade(next * unit) * 0x1p-23;
    sum = last > 0 ? trunc(next * unit / last) * last : 0;
  }
  return sum;
}

/* ---- gemm ----------------------------------------------------------------------------------------------- */

enum { ROWS = 24, CHANNELS = 128 };

/* A set of drawn products. Sums are as large as normal numbers, bias and the old c `size` times as large. */
typedef struct drawn_set {
  const char *name;
  int K, lanes;
  double size, beta;
  assay_dtype dtype;
  int32_t cut;
} drawn_set;

typedef struct outcome {
  double largest; /* the largest error over its limit */
  double mean;    /* root of the mean square of errors over their sigma */
} outcome;

typedef enum mistake { RIGHT, BIAS_LOST, BIAS_IN_BF16 } mistake;

static void open_set(linear_call *c, const drawn_set *d) {
  linear_open(c, assay_op_gemm());
  linear_tensor(c, "a", d->dtype, 0, ROWS, d->K, 0);
  linear_tensor(c, "b", d->dtype, 0, CHANNELS, d->K, 0);
  linear_tensor(c, "bias", d->dtype, 0, CHANNELS, 0, 0);
  linear_tensor(c, "c", ASSAY_F32, 0, ROWS, CHANNELS, 0);
  linear_param(c, "beta", d->beta);
  linear_normals(c, "a", 1);
  linear_normals(c, "b", 2);
  linear_normals(c, "bias", 3);
  linear_normals(c, "c", 4);
  for (int i = 0; i < CHANNELS * d->K; ++i)
    linear_set(c, "b", i, linear_get(c, "b", i) / sqrt(d->K));
  for (int n = 0; n < CHANNELS; ++n)
    linear_set(c, "bias", n, d->size * linear_get(c, "bias", n));
  for (int i = 0; i < ROWS * CHANNELS; ++i)
    linear_set(c, "c", i, d->size * linear_get(c, "c", i));
}

/* Returns the sum of element i as a kernel gives it that starts from its bias. */
static double started(linear_call *c, const drawn_set *d, terms *t, int i, mistake made) {
  const int m = i / CHANNELS, n = i % CHANNELS;
  for (int k = 0; k < d->K; ++k) {
    t->a[k] = linear_get(c, "a", m * d->K + k);
    t->b[k] = linear_get(c, "b", n * d->K + k);
  }
  float bias = (float)linear_get(c, "bias", n);
  if (made == BIAS_LOST) bias = 0;
  if (made == BIAS_IN_BF16) bias = (float)assay_round_f64((double)bias, ASSAY_BF16);
  const float old = d->beta != 0 ? (float)d->beta * (float)linear_get(c, "c", i) : 0;
  return d->cut > 0 ? cut_sum(t, (double)(old + bias)) : (double)summed(t, old + bias);
}

/* Returns the outcome of all elements and, where gemm starts from its bias, in two orders, fused and not. */
static outcome judged(const drawn_set *d, assay_start start, mistake made) {
  static terms t;
  const assay_contract contract = {.exp_ulp = 2, .lanes = d->lanes, .cut = d->cut, .start = start};
  linear_call c;
  outcome o = {0, 0};
  int count = 0;
  open_set(&c, d);
  linear_run(&c, &contract, false);
  const assay_expected *y = linear_result(&c, "c");
  for (int i = 0; i < ROWS * CHANNELS; ++i)
    for (int way = 0; way < (d->cut > 0 ? 1 : 4); ++way, ++count) {
      t.K = d->K;
      t.lanes = d->lanes;
      t.fused = way % 2 != 0;
      t.backwards = way / 2 != 0;
      const double off = fabs(started(&c, d, &t, i, made) - y->value[i]) / y->sigma[i];
      o.largest = fmax(o.largest, off / c.op->kappa_element);
      o.mean += off * off;
    }
  o.mean = sqrt(o.mean / count);
  linear_close(&c);
  return o;
}

static const drawn_set sets[] = {
    {"K 256", 256, 1, 1, 0, ASSAY_F32, 0},
    {"K 1024, bias of 16", 1024, 1, 16, 0, ASSAY_F32, 0},
    {"K 1024, bias of 16, 32 lanes", 1024, 32, 16, 0, ASSAY_F32, 0},
    {"K 1024, bias and old c of 16", 1024, 1, 16, 1.7, ASSAY_F32, 0},
    {"K 1024, bias of 1024, 32 lanes", 1024, 32, 1024, 0, ASSAY_F32, 0},
    {"K 1024, bias of 1024 on tensor cores", 1024, 1, 1024, 0, ASSAY_BF16, 16},
};

Test(start, only_the_declaration_has_limits_for_it) {
  for (size_t i = 0; i < sizeof sets / sizeof *sets; ++i) {
    const outcome silent = judged(&sets[i], ASSAY_START_ZERO, RIGHT), said = judged(&sets[i], ASSAY_START_BIAS, RIGHT);
    cr_expect_gt(silent.largest, 1, "%s: %.3g of the limit", sets[i].name, silent.largest);
    /* Tensor cores lose half an ulp of the bias in every step, always towards zero. That is one sigma, without scatter.
     */
    const double least = sets[i].cut > 0 ? 0.1 : 0.2;
    cr_expect(said.largest > least && said.largest <= 1, "%s: %.3g of the limit", sets[i].name, said.largest);
    cr_expect(said.mean > 0.3 && said.mean < 1.2, "%s: %.3g sigma", sets[i].name, said.mean);
  }
}

Test(start, limits_still_notice_a_lost_or_rounded_bias) {
  for (size_t i = 0; i < sizeof sets / sizeof *sets; ++i)
    for (int made = BIAS_LOST; made <= BIAS_IN_BF16; ++made) {
      if (made == BIAS_IN_BF16 && sets[i].dtype == ASSAY_BF16) continue;
      const outcome wrong = judged(&sets[i], ASSAY_START_BIAS, (mistake)made);
      cr_expect(wrong.largest > 20 && wrong.mean > 20, "%s, mistake %d: %.3g of the limit, %.3g sigma", sets[i].name,
                made, wrong.largest, wrong.mean);
    }
}

/* Runs the set under both contracts, and tells whether each sigma is the same. */
static bool same_sigma(const drawn_set *d, double alpha, bool biased) {
  linear_call zero, bias;
  bool same = true;
  open_set(&zero, d);
  open_set(&bias, d);
  linear_param(&zero, "alpha", alpha);
  linear_param(&bias, "alpha", alpha);
  for (int n = 0; n < CHANNELS && !biased; ++n) {
    linear_set(&zero, "bias", n, 0);
    linear_set(&bias, "bias", n, 0);
  }
  linear_run(&zero, &from_zero, false);
  linear_run(&bias, &from_bias, false);
  for (int i = 0; i < ROWS * CHANNELS; ++i) {
    same = same && linear_result(&zero, "c")->sigma[i] == linear_result(&bias, "c")->sigma[i];
    cr_assert_eq(linear_result(&zero, "c")->value[i], linear_result(&bias, "c")->value[i]);
  }
  linear_close(&zero);
  linear_close(&bias);
  return same;
}

/* A sum cannot start from the bias if alpha multiplies it afterwards. Without a bias there is nothing to start from. */
Test(start, says_nothing_beside_alpha_and_without_a_bias) {
  cr_expect_not(same_sigma(&sets[0], 1, true));
  cr_expect(same_sigma(&sets[0], 0.5, true));
  cr_expect(same_sigma(&sets[0], -1, true));
  cr_expect(same_sigma(&sets[0], 1, false));
}

/* Where all products are 0, the result is the bias. */
Test(start, nothing_is_rounded_beside_zeros) {
  const drawn_set d = sets[1];
  linear_call c;
  open_set(&c, &d);
  linear_all(&c, "a", 0);
  linear_run(&c, &from_bias, false);
  for (int i = 0; i < ROWS * CHANNELS; ++i) {
    const double bias = linear_get(&c, "bias", i % CHANNELS);
    cr_assert_eq(linear_result(&c, "c")->value[i], bias);
    cr_assert_leq(linear_result(&c, "c")->sigma[i], assay_ulp(bias, ASSAY_F32), "element %d", i);
  }
  linear_close(&c);
}

/* Sums of splits in 16 bits hold the bias too: it counts in the proof that a case is exact. */
Test(start, exact_cases_count_the_bias_in_narrow_partials) {
  for (int narrow = 0; narrow < 2; ++narrow)
    for (int start = ASSAY_START_ZERO; start <= ASSAY_START_BIAS; ++start) {
      const assay_contract contract = {
          .lanes = 1, .partial = narrow ? ASSAY_BF16 : ASSAY_NONE, .start = (assay_start)start};
      linear_call c;
      assay_error error = {""};
      linear_open(&c, assay_op_gemm());
      linear_tensor(&c, "a", ASSAY_F32, 0, 1, 4, 0);
      linear_tensor(&c, "b", ASSAY_F32, 0, 1, 4, 0);
      linear_tensor(&c, "bias", ASSAY_F32, 0, 1, 0, 0);
      linear_tensor(&c, "c", ASSAY_F32, 0, 1, 1, 0);
      linear_all(&c, "a", 1);
      linear_all(&c, "b", 3);
      linear_all(&c, "bias", 1024);
      const assay_status wanted = narrow && start == ASSAY_START_BIAS ? ASSAY_ERR_INPUT : ASSAY_OK;
      cr_expect_eq(linear_try(&c, &contract, true, &error), wanted, "narrow %d, start %d: %s", narrow, start,
                   error.text);
      linear_close(&c);
    }
}

/* ---- products with scales ------------------------------------------------------------------------------- */

/* Returns the worst of CHANNELS rows of a call with one column. `found` makes the sum of a row. */
static double worst(linear_call *c, const assay_contract *contract, float (*found)(linear_call *c, int n)) {
  double largest = 0;
  linear_run(c, contract, false);
  const assay_expected *y = linear_result(c, "c");
  for (int n = 0; n < CHANNELS; ++n)
    largest = fmax(largest, fabs((double)found(c, n) - y->value[n]) / y->sigma[n] / c->op->kappa_element);
  return largest;
}

static void expect_both(linear_call *c, float (*found)(linear_call *c, int n)) {
  const double silent = worst(c, &from_zero, found), said = worst(c, &from_bias, found);
  cr_expect_gt(silent, 1, "%s: %.3g of the limit", c->op->name, silent);
  cr_expect(said > 0.2 && said <= 1, "%s: %.3g of the limit", c->op->name, said);
  linear_close(c);
}

enum { MX_K = 1024 };

/* Weights are 1.5 or -3, with a scale of 1. */
static float mxfp4_started(linear_call *c, int n) {
  float sum = (float)linear_get(c, "bias", n);
  for (int k = 0; k < MX_K; ++k)
    sum += (float)linear_get(c, "a", k) * ((k ^ n) % 3 == 0 ? 1.5F : -3.0F);
  return sum;
}

Test(start, mxfp4_gemm) {
  linear_call c;
  linear_open(&c, assay_op_mxfp4_gemm());
  linear_tensor(&c, "c", ASSAY_F32, 0, 1, CHANNELS, 0);
  linear_tensor(&c, "a", ASSAY_BF16, 0, 1, MX_K, 0);
  linear_tensor(&c, "codes", ASSAY_I32, 0, CHANNELS, MX_K / 8, 0);
  linear_tensor(&c, "scales", ASSAY_I32, 0, CHANNELS, MX_K / 128, 0);
  linear_tensor(&c, "bias", ASSAY_F32, 0, CHANNELS, 0, 0);
  linear_normals(&c, "a", 1);
  linear_normals(&c, "bias", 2);
  linear_all(&c, "scales", 0x7F7F7F7F);
  for (int n = 0; n < CHANNELS; ++n) {
    linear_set(&c, "bias", n, 0x1p18 * linear_get(&c, "bias", n));
    for (int word = 0; word < MX_K / 8; ++word) {
      uint32_t codes = 0;
      for (int i = 0; i < 8; ++i)
        codes |= (((8 * word + i) ^ n) % 3 == 0 ? 3U : 13U) << (4 * i);
      ((uint32_t *)linear_arg(&c, "codes")->data)[n * MX_K / 8 + word] = codes;
    }
  }
  expect_both(&c, mxfp4_started);
}

enum { PIECE = 128, PIECES = 64 };

/* A piece is a sum of whole numbers, so that it is exact. Its scales and its addition round. */
static float block_started(linear_call *c, int n) {
  float sum = (float)linear_get(c, "bias", n);
  for (int p = 0; p < PIECES; ++p) {
    double piece = 0;
    for (int k = p * PIECE; k < (p + 1) * PIECE; ++k)
      piece += linear_get(c, "a", k) * linear_get(c, "b", n * PIECE * PIECES + k);
    sum += (float)linear_get(c, "sfa", p) * (float)linear_get(c, "sfb", p) * (float)piece;
  }
  return sum;
}

Test(start, fp8_block_gemm) {
  linear_call c;
  linear_open(&c, assay_op_fp8_block_gemm());
  linear_tensor(&c, "c", ASSAY_F32, 0, 1, CHANNELS, 0);
  linear_tensor(&c, "a", ASSAY_E4M3, 0, 1, PIECE * PIECES, 0);
  linear_tensor(&c, "b", ASSAY_E4M3, 0, CHANNELS, PIECE * PIECES, 0);
  linear_tensor(&c, "sfa", ASSAY_F32, 0, 1, PIECES, 0);
  linear_tensor(&c, "sfb", ASSAY_F32, 0, 1, PIECES, 0);
  linear_tensor(&c, "bias", ASSAY_F32, 0, CHANNELS, 0, 0);
  linear_integers(&c, "a", 1, 8);
  linear_integers(&c, "b", 2, 8);
  linear_normals(&c, "bias", 3);
  for (int p = 0; p < PIECES; ++p) {
    linear_set(&c, "sfa", p, 0.013 + 0.0007 * p);
    linear_set(&c, "sfb", p, 0.021 - 0.0002 * p);
  }
  for (int n = 0; n < CHANNELS; ++n)
    linear_set(&c, "bias", n, 4096 * linear_get(&c, "bias", n));
  expect_both(&c, block_started);
}
