/* ref_gemm_seam_test.c: gemm_post_pre_uclip against another library's product, clipped, added and clipped again; and
 * its kernels against those of gemm and post_attn_pre_mlp_uclip, one after the other. */
#include <cblas.h>
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "assay/variant.h"
#include "core/dtype.h"
#include "linear_fixture.h"

const assay_op *assay_op_gemm_post_pre_uclip(void);
const assay_op *assay_op_gemm(void);
const assay_op *assay_op_post_attn_pre_mlp_uclip(void);

static const assay_contract contract = {.lanes = 1};

typedef struct seam_shape {
  int M, N, K;
  bool per_channel, betas;
} seam_shape;

static const char *const vectors[] = {"post_alpha", "post_gamma", "post_beta", "pre_alpha", "pre_gamma", "pre_beta"};

/* Gives both norms weights by a rule of this test. */
static void norms(linear_call *c, assay_dtype dtype, seam_shape s) {
  for (int v = 0; v < 6; ++v) {
    const bool beta = v % 3 == 2;
    const int count = beta || s.per_channel ? s.N : 1;
    if (beta && !s.betas) continue;
    linear_tensor(c, vectors[v], dtype, 0, count, 0, 0);
    for (int i = 0; i < count; ++i)
      linear_set(c, vectors[v], i, 0.25 + 0.125 * ((i * 5 + v * 3) % 11));
  }
}

static void open_whole(linear_call *c, assay_dtype dtype, seam_shape s, int64_t pad) {
  linear_open(c, assay_op_gemm_post_pre_uclip());
  linear_tensor(c, "a", dtype, pad, s.M, s.K, 0);
  linear_tensor(c, "b", dtype, 0, s.N, s.K, 0);
  linear_tensor(c, "res", dtype, pad, s.M, s.N, 0);
  linear_tensor(c, "out", dtype, pad, s.M, s.N, 0);
  norms(c, dtype, s);
  linear_normals(c, "a", 1);
  linear_normals(c, "res", 3);
  for (int i = 0; i < s.N * s.K; ++i)
    linear_set(c, "b", i, (i * 7919 % 4001 - 2000) / 1000.0 / sqrt(s.K));
}

static double weight(linear_call *c, const char *name, int n, double otherwise) {
  const assay_tensor *t = linear_arg(c, name);
  return t->data == NULL ? otherwise : linear_get(c, name, t->shape[0] == 1 ? 0 : n);
}

static double clipped(linear_call *c, int norm, int n, double x) {
  const double a = weight(c, vectors[3 * norm], n, 1) * x, g = weight(c, vectors[3 * norm + 1], n, 1);
  return (fabs(a + 1) - fabs(a - 1)) / 2 * g + weight(c, vectors[3 * norm + 2], n, 0);
}

Test(gemm_post_pre_uclip, equals_another_librarys_product_clipped_twice) {
  enum { M = 6, N = 11, K = 29 };
  for (int run = 0; run < 8; ++run) {
    linear_call c;
    double a[M * K], b[N * K], product[M * N];
    open_whole(&c, ASSAY_F32, (seam_shape){M, N, K, run % 2 != 0, run / 2 % 2 != 0}, run / 4 * 5);
    linear_run(&c, &contract, false);
    for (int i = 0; i < M * K; ++i)
      a[i] = linear_get(&c, "a", i);
    for (int i = 0; i < N * K; ++i)
      b[i] = linear_get(&c, "b", i);
    cblas_dgemm(CblasRowMajor, CblasNoTrans, CblasTrans, M, N, K, 1, a, K, b, K, 0, product, N);
    for (int i = 0; i < M * N; ++i) {
      const double r = clipped(&c, 0, i % N, product[i]) + linear_get(&c, "res", i);
      cr_assert(linear_close_to(linear_result(&c, "res")->value[i], r), "res, element %d", i);
      cr_assert(linear_close_to(linear_result(&c, "out")->value[i], clipped(&c, 1, i % N, r)), "out, element %d", i);
    }
    linear_close(&c);
  }
}

Test(gemm_post_pre_uclip, exact_tier_is_proven) {
  linear_call c;
  assay_error error = {""};
  open_whole(&c, ASSAY_F32, (seam_shape){1, 1, 2, false, false}, 0);
  linear_all(&c, "a", 1);
  linear_all(&c, "b", 0.25);
  linear_all(&c, "res", 3);
  cr_expect_eq(linear_try(&c, &contract, true, &error), ASSAY_OK, "%s", error.text);
  linear_set(&c, "res", 0, 0x1p30 + 128);
  cr_expect_eq(linear_try(&c, &contract, true, &error), ASSAY_ERR_INPUT);
  cr_expect(strstr(error.text, "which f32 must hold") != NULL, "%s", error.text);
  linear_set(&c, "res", 0, 3);
  linear_set(&c, "b", 0, 0x1p26);
  cr_expect_eq(linear_try(&c, &contract, true, &error), ASSAY_ERR_INPUT);
  cr_expect(strstr(error.text, "sum |a b|") != NULL, "%s", error.text);
  linear_close(&c);
}

#ifdef ASSAY_HAVE_SIMT
const assay_variant *assay_variants_simt_gemm_post_pre_uclip(int32_t *count);
const assay_variant *assay_variants_simt_gemm(int32_t *count);
const assay_variant *assay_variants_simt_gemm_skinny(int32_t *count);
const assay_variant *assay_variants_simt_post_attn_pre_mlp_uclip(int32_t *count);

static void launch(const assay_variant *variant, linear_call *c) {
  assay_env env = {.multiprocessors = 4};
  assay_error error = {""};
  const assay_status status = variant->launch(&c->call, &env, &error);
  cr_assert(status == ASSAY_OK, "%s %s: %s", variant->op, variant->name, error.text);
}

static void copy(linear_call *from, const char *name, linear_call *to, const char *as, int count) {
  for (int i = 0; i < count; ++i)
    linear_set(to, as, i, linear_get(from, name, i));
}

/* Runs gemm, and the seam in f32 after it, and compares with one launch that has 16-bit residuals. The rounding of r is
 * the only one that parts them. out may be as far off as r, times the slope of the second norm. */
static void against_parts(const assay_variant *whole, const assay_variant *product, assay_dtype dtype, seam_shape s) {
  linear_call c, gemm, seam;
  int32_t count = 0;
  open_whole(&c, dtype, s, 0);
  linear_open(&gemm, assay_op_gemm());
  linear_tensor(&gemm, "a", dtype, 0, s.M, s.K, 0);
  linear_tensor(&gemm, "b", dtype, 0, s.N, s.K, 0);
  linear_tensor(&gemm, "c", ASSAY_F32, 0, s.M, s.N, 0);
  copy(&c, "a", &gemm, "a", s.M * s.K);
  copy(&c, "b", &gemm, "b", s.N * s.K);
  launch(product, &gemm);
  linear_open(&seam, assay_op_post_attn_pre_mlp_uclip());
  linear_tensor(&seam, "a", ASSAY_F32, 0, s.M, s.N, 0);
  linear_tensor(&seam, "res", ASSAY_F32, 0, s.M, s.N, 0);
  linear_tensor(&seam, "out", ASSAY_F32, 0, s.M, s.N, 0);
  norms(&seam, ASSAY_F32, s);
  copy(&gemm, "c", &seam, "a", s.M * s.N);
  copy(&c, "res", &seam, "res", s.M * s.N);
  const assay_variant *const last = assay_variants_simt_post_attn_pre_mlp_uclip(&count);
  launch(last + count - 1, &seam);
  launch(whole, &c);
  for (int i = 0; i < s.M * s.N; ++i) {
    const double r = linear_get(&seam, "res", i), out = linear_get(&seam, "out", i), small = 1e-5;
    const double far = dtype == ASSAY_F32 ? small : 0.51 * assay_ulp(r, dtype) + small;
    const double slope = fabs(weight(&c, "pre_alpha", i % s.N, 1) * weight(&c, "pre_gamma", i % s.N, 1));
    const double further = slope * far + (dtype == ASSAY_F32 ? small : 0.51 * assay_ulp(out, dtype) + small);
    cr_assert(fabs(linear_get(&c, "res", i) - r) <= far, "%s, element %d of res", whole->name, i);
    cr_assert(fabs(linear_get(&c, "out", i) - out) <= further, "%s, element %d of out", whole->name, i);
  }
  linear_close(&c);
  linear_close(&gemm);
  linear_close(&seam);
}

Test(gemm_post_pre_uclip, kernels_agree_with_those_of_the_parts) {
  int32_t count = 0;
  const assay_variant *const skinny = assay_variants_simt_gemm_post_pre_uclip(&count), *const dots = skinny + 1;
  cr_assert_eq(count, 2);
  const assay_variant *const few = assay_variants_simt_gemm_skinny(&count), *any = assay_variants_simt_gemm(&count);
  against_parts(dots, any, ASSAY_F32, (seam_shape){3, 19, 70, true, false});
  against_parts(dots, any, ASSAY_BF16, (seam_shape){3, 20, 72, false, true});
  against_parts(skinny, few, ASSAY_BF16, (seam_shape){9, 40, 136, true, true});
  against_parts(skinny, few, ASSAY_F16, (seam_shape){17, 200, 72, false, false});
}
#endif
