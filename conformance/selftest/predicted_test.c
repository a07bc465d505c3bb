/* predicted_test.c: the check `predicted`, its sample and its explanations; the names of a contract's fields; a sum
 * contract in a manifest. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "conformance/text/text.h"
#include "conformance/trial/predicted.h"
#include "conformance/truth/truth.h"
#include "core/dtype.h"
#include "core/registry_add.h"
#include "core/rng.h"
#include "files_fixture.h"

#define BITS ASSAY_SOURCE_DIR "/fixtures/bits/bf16_32x1024x3072."

const assay_op *assay_op_gemm(void);
const assay_op *assay_op_rms_norm(void);

static assay_error error;

static void start(void) {
  cr_assert_eq(assay_registry_add_op(assay_op_gemm(), &error), ASSAY_OK, "%s", error.text);
  cr_assert_eq(assay_registry_add_op(assay_op_rms_norm(), &error), ASSAY_OK, "%s", error.text);
}

TestSuite(predicted, .init = start, .fini = files_gone, .timeout = 60);

/* ---- a product of gemm --------------------------------------------------------------------------------- */

enum { M = 5, N = 12, K = 72 };

typedef struct product {
  float a[M * K], b[N * K], bias[N], old[M * N], got[M * N];
  assay_tensor arg[4];
  double param[2];
  assay_call call;
} product;

static assay_tensor dense(float *data, int64_t rows, int64_t columns) {
  if (rows == 0) return (assay_tensor){.data = data, .dtype = ASSAY_F32, .rank = 1, .shape = {columns}, .stride = {1}};
  return (assay_tensor){.data = data, .dtype = ASSAY_F32, .rank = 2, .shape = {rows, columns}, .stride = {columns, 1}};
}

/* Draws a product with alpha, beta and a bias, and makes its bits under the contract. */
static product *product_make(const assay_sums *sums) {
  static product p;
  double drawn[N * K];
  float *const to[] = {p.a, p.b, p.bias, p.old};
  const int64_t count[] = {M * K, N * K, N, M * N};
  for (int i = 0; i < 4; ++i) {
    assay_rng_normals(7, (uint64_t)i, drawn, count[i]);
    for (int64_t k = 0; k < count[i]; ++k)
      to[i][k] = (float)drawn[k];
  }
  p.arg[0] = dense(p.a, M, K);
  p.arg[1] = dense(p.b, N, K);
  p.arg[2] = dense(p.bias, 0, N);
  p.arg[3] = dense(p.old, M, N);
  p.param[0] = 0.7;
  p.param[1] = -1.3;
  p.call = (assay_call){assay_op_gemm(), p.arg, p.param};
  for (int64_t m = 0; m < M; ++m) {
    assay_product one;
    p.call.op->product(&p.call, m, &one);
    cr_assert_eq(assay_sums_predict(sums, &one, p.got + m * N, &error), ASSAY_OK, "%s", error.text);
  }
  return &p;
}

static predicted_finding compared(const product *p, const assay_sums *sums) {
  const assay_rows rows = {M, NULL};
  predicted_finding found;
  cr_assert_eq(predicted_compare(&p->call, sums, &rows, ASSAY_F32, p->got, 3, &found, &error), ASSAY_OK, "%s",
               error.text);
  return found;
}

#define AFTER                                                                                                          \
  { ASSAY_AFTER_ALPHA, ASSAY_AFTER_OLD, ASSAY_AFTER_BIAS }

Test(predicted, closed_form) {
  const assay_sums sums = {.unit = ASSAY_SUM_FMA, .after = AFTER};
  const product *p = product_make(&sums);
  for (int m = 0; m < M; ++m)
    for (int n = 0; n < N; ++n) {
      float sum = 0;
      for (int k = 0; k < K; ++k)
        sum = fmaf(p->a[m * K + k], p->b[n * K + k], sum);
      const float scaled = 0.7f * sum, wanted = fmaf(-1.3f, p->old[m * N + n], scaled) + p->bias[n];
      cr_expect(p->got[m * N + n] == wanted, "%d %d", m, n);
    }
  const predicted_finding found = compared(p, &sums);
  cr_expect(!found.wrong && found.compared == M * N);
}

/* -0 · 1 leaves -0. With padding the sum is -0 + 0 · 0, which is 0. */
Test(predicted, padding_adds_products_of_zero) {
  float a = -0.0f, b = 1, out = 5;
  const assay_product one = {.a = dense(&a, 1, 1), .b = dense(&b, 1, 1)};
  const float begun = -0.0f;
  assay_product from = one;
  from.start = dense((float *)(uintptr_t)&begun, 1, 1);
  const assay_sums bare = {.unit = ASSAY_SUM_FMA}, padded = {.unit = ASSAY_SUM_FMA, .pad = 4};
  cr_assert_eq(assay_sums_predict(&bare, &from, &out, &error), ASSAY_OK);
  cr_expect(out == 0 && signbit(out) != 0);
  cr_assert_eq(assay_sums_predict(&padded, &from, &out, &error), ASSAY_OK);
  cr_expect(out == 0 && signbit(out) == 0);
  cr_expect_eq(assay_sums_padded(&padded, 5), 8);
  cr_expect_eq(assay_sums_padded(&bare, 5), 5);
}

/* Each contract explains the bits of another one. */
Test(predicted, a_difference_has_a_neighbour) {
  const assay_sums declared = {.unit = ASSAY_SUM_FMA, .after = AFTER};
  const struct {
    assay_sums made;
    const char *says;
  } cases[] = {
      {{.unit = ASSAY_SUM_FMA, .parts = 2, .after = AFTER}, "as if K were cut into 2 equal parts"},
      {{.unit = ASSAY_SUM_FMA, .parts = 3, .tile = 16, .after = AFTER}, "3 parts of whole tiles of 16"},
      {{.unit = ASSAY_SUM_FMA, .promote = 32, .after = AFTER}, "3 parts of whole tiles of 16"},
      {{.unit = ASSAY_SUM_MULTIPLY_ADD, .after = AFTER}, "as if the unit were multiply_add"},
      {{.unit = ASSAY_SUM_FMA, .after = {ASSAY_AFTER_ALPHA, ASSAY_AFTER_OLD_ADD, ASSAY_AFTER_BIAS}},
       "beta c were added by a product and an addition"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i) {
    const product *p = product_make(&cases[i].made);
    const predicted_finding found = compared(p, &declared);
    cr_expect(found.wrong && found.differ > 0, "%s", cases[i].says);
    cr_expect_not_null(strstr(found.message, cases[i].says), "wanted %s: %s", cases[i].says, found.message);
  }
  const assay_sums parts = {.unit = ASSAY_SUM_FMA, .parts = 3, .after = AFTER};
  const assay_sums backwards = {.unit = ASSAY_SUM_FMA, .parts = 3, .join = ASSAY_JOIN_DESCENDING, .after = AFTER};
  cr_expect_not_null(strstr(compared(product_make(&backwards), &parts).message, "joined descending"));
}

Test(predicted, one_bit_and_nan) {
  const assay_sums sums = {.unit = ASSAY_SUM_FMA, .after = AFTER};
  product *p = product_make(&sums);
  p->got[3 * N + 7] = nextafterf(p->got[3 * N + 7], 100);
  predicted_finding found = compared(p, &sums);
  cr_expect(found.wrong && found.differ == 1 && found.row == 3 && found.column == 7, "%s", found.message);
  cr_expect_not_null(strstr(found.message, "1 of 60 compared elements differ"), "%s", found.message);
  p->got[3 * N + 7] = NAN;
  found = compared(p, &sums);
  cr_expect(found.wrong, "NaN is no number's bits");
  p->b[7 * K] = NAN;
  for (int m = 0; m < M; ++m)
    p->got[m * N + 7] = NAN;
  found = compared(p, &sums);
  cr_expect(!found.wrong, "every NaN is every other: %s", found.message);
}

/* Large products are sampled: the first and last row and column are always among them. */
Test(predicted, samples_are_bounded) {
  enum { ROWS = 64, COLUMNS = 64, TERMS = 4096 };
  float *a = calloc(ROWS * TERMS, sizeof *a), *b = calloc(COLUMNS * TERMS, sizeof *b);
  float *c = calloc(ROWS * COLUMNS, sizeof *c);
  cr_assert(a != NULL && b != NULL && c != NULL);
  const assay_tensor arg[4] = {
      dense(a, ROWS, TERMS), dense(b, COLUMNS, TERMS), {.data = NULL}, dense(c, ROWS, COLUMNS)};
  const double param[2] = {1, 0};
  const assay_call call = {assay_op_gemm(), arg, param};
  const assay_sums sums = {.unit = ASSAY_SUM_FMA, .after = AFTER};
  const assay_rows rows = {ROWS, NULL};
  predicted_finding found;
  cr_assert_eq(predicted_compare(&call, &sums, &rows, ASSAY_F32, c, 3, &found, &error), ASSAY_OK, "%s", error.text);
  cr_expect(!found.wrong && found.compared * TERMS <= 1 << 19 && found.compared > 8, "%d", (int)found.compared);
  c[ROWS * COLUMNS - 1] = 1;
  cr_assert_eq(predicted_compare(&call, &sums, &rows, ASSAY_F32, c, 3, &found, &error), ASSAY_OK, "%s", error.text);
  cr_expect(found.wrong && found.row == ROWS - 1 && found.column == COLUMNS - 1);
  free(a);
  free(b);
  free(c);
}

/* A contract without a term of the call fits no such call. */
Test(predicted, terms_that_the_contract_does_not_name) {
  const assay_sums whole = {.unit = ASSAY_SUM_FMA, .after = AFTER};
  const product *p = product_make(&whole);
  const struct {
    assay_sums sums;
    const char *says;
  } cases[] = {
      {{.unit = ASSAY_SUM_FMA}, "after: found no alpha"},
      {{.unit = ASSAY_SUM_FMA, .after = {ASSAY_AFTER_ALPHA, ASSAY_AFTER_BIAS}}, "old and old_add: found 0"},
      {{.unit = ASSAY_SUM_FMA, .after = {ASSAY_AFTER_ALPHA, ASSAY_AFTER_OLD}}, "bias: found 0"},
      {{.unit = ASSAY_SUM_FMA, .after = {ASSAY_AFTER_ALPHA, ASSAY_AFTER_ALPHA}}, "alpha: found 2"},
      {{.unit = ASSAY_SUM_FMA, .after = {ASSAY_AFTERS}}, "after: found 8"},
      {{.unit = ASSAY_SUM_FMA, .after = AFTER, .factor_lanes = 8},
       "factor_lanes: found 8, allowed 0: gemm has no factor"},
      {{.unit = ASSAY_SUM_FMA, .pad = -1, .after = AFTER}, "pad: found -1"},
      {{.unit = ASSAY_SUM_FMA, .parts = 5, .after = AFTER}, "parts: found 5"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i) {
    const assay_rows rows = {M, NULL};
    predicted_finding found;
    error.text[0] = '\0';
    cr_expect_eq(predicted_compare(&p->call, &cases[i].sums, &rows, ASSAY_F32, p->got, 3, &found, &error),
                 ASSAY_ERR_INPUT, "%s", cases[i].says);
    cr_expect_not_null(strstr(error.text, cases[i].says), "wanted %s: %s", cases[i].says, error.text);
  }
}

/* ---- names --------------------------------------------------------------------------------------------- */

Test(predicted, fields_are_read_as_they_are_written) {
  const assay_sums sums = {.unit = ASSAY_SUM_WGMMA_8,
                           .parts = 4,
                           .pad = 32,
                           .tile = 64,
                           .join = ASSAY_JOIN_PAIRWISE,
                           .promote = 128,
                           .scale = ASSAY_SCALE_AFTER,
                           .after = {ASSAY_AFTER_BIAS, ASSAY_AFTER_ROUND, ASSAY_AFTER_OLD_ADD, ASSAY_AFTER_ALPHA,
                                     ASSAY_AFTER_FACTOR, ASSAY_AFTER_RECTIFIED},
                           .factor_lanes = 8};
  assay_sums again = {.unit = ASSAY_SUM_NONE};
  char value[160];
  const char *name = NULL;
  int32_t count = 0;
  for (; sums_field(&sums, count, &name, value, sizeof value); ++count)
    cr_assert_eq(sums_set(&again, name, value, &error), ASSAY_OK, "%s", error.text);
  cr_expect_eq(count, 9);
  cr_expect(memcmp(&sums, &again, sizeof sums) == 0);
  static const char *const wrong[][3] = {{"unit", "wgmma_9", "unit: found 'wgmma_9', allowed: wgmma_16"},
                                         {"unit", "none", "unit: found 'none'"},
                                         {"parts", "-1", "parts: found '-1'"},
                                         {"parts", "2x", "parts: found '2x'"},
                                         {"join", "up", "join: found 'up', allowed: ascending"},
                                         {"scale", "", "scale: found ''"},
                                         {"after", "alpha, none", "after: found 'none', allowed: alpha"},
                                         {"after", "old,old,old,old,old,old,old", "more than 6 steps"},
                                         {"order", "1", "field: found 'order', allowed: unit"}};
  for (size_t i = 0; i < sizeof wrong / sizeof *wrong; ++i) {
    error.text[0] = '\0';
    cr_expect_eq(sums_set(&again, wrong[i][0], wrong[i][1], &error), ASSAY_ERR_INPUT, "%s", wrong[i][2]);
    cr_expect_not_null(strstr(error.text, wrong[i][2]), "wanted %s: %s", wrong[i][2], error.text);
  }
}

/* ---- a folder: the bits of an H100 --------------------------------------------------------------------- */

static void judge(const char *sums, const char *op, int64_t passed, int64_t failed, const char *says) {
  char manifest[900];
  (void)files_copy(BITS "a.npy", "a.npy");
  (void)files_copy(BITS "b.npy", "b.npy");
  (void)files_copy(BITS "c.npy", "c.npy");
  (void)snprintf(
      manifest, sizeof manifest,
      "{\"operator\": \"%s\", \"contract\": {\"cut\": 16}, \"sums\": {%s}, \"inputs\": {"
      "\"a\": {\"file\": \"a.npy\", \"dtype\": \"bf16\"}, \"b\": {\"file\": \"b.npy\", \"dtype\": \"bf16\"}, "
      "\"c\": \"c.npy\"}, "
      "\"outputs\": {\"c\": \"c.npy\"}}",
      op, sums);
  (void)files_put("manifest.json", manifest, strlen(manifest));
  test_output lines;
  output_open(&lines);
  truth_log log = {.to = lines.stream};
  error.text[0] = '\0';
  const assay_status status = judge_dir(files_folder(), &log, &error);
  output_close(&lines);
  cr_expect_eq(status, passed + failed > 0 ? ASSAY_OK : ASSAY_ERR_INPUT, "%s: %s", says, error.text);
  cr_expect(log.passed == passed && log.failed == failed, "%s: %s", says, lines.text);
  cr_expect(strstr(lines.text, says) != NULL || strstr(error.text, says) != NULL, "wanted %s: %s%s", says, lines.text,
            error.text);
  output_free(&lines);
}

Test(predicted, a_manifest_with_a_sum_contract) {
  judge("\"unit\": \"wgmma_16\", \"parts\": 2", "gemm", 1, 0, "4 have the bits of the sum contract");
  judge("\"unit\": \"wgmma_16\"", "gemm", 0, 1, "as if K were cut into 2 equal parts");
  judge("\"unit\": \"wgmma_16\", \"parts\": 5", "gemm", 0, 1, "the contract does not fit the call");
  judge("\"parts\": 2", "gemm", 0, 0, "sums: unit: found none");
  judge("\"unit\": \"fma\", \"part\": 2", "gemm", 0, 0, "sums: field: found 'part'");
  judge("\"unit\": \"fma\"", "rms_norm", 0, 0, "sums: found with rms_norm");
}
