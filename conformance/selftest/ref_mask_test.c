/* ref_mask_test.c: softmax_attention's reference with masks of packed bits and V of another width than K. The second
 * computation here writes the bits out as numbers 0 and 1, and shares nothing with it. */
#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#include "assay/op.h"

const assay_op *assay_op_softmax_attention(void);

/* Two requests with contiguous keys: 2 new rows of 5 keys, 3 of 7. */
enum { B = 2, N = 5, H = 4, H_KV = 2, D = 8, D_V = 24, KEYS = 12 };
static int32_t lengths[B] = {5, 7}, cu_q[B + 1] = {0, 2, 5}, cu_k[B + 1] = {0, 5, 12};
static float q[N * H * D], k[KEYS * H_KV * D], v[KEYS * H_KV * D_V], out[N * H * D_V];

/* Rows as the definition counts them. The first request has 10 bits and a spare byte, the second 21 bits. */
static const char *const rows[N] = {"11011", "10100", "1111111", "0000000", "0110010"};
static uint32_t words[2];
static int64_t starts[B + 1] = {0, 3, 6};

static assay_tensor args[ASSAY_MAX_ARGS];
static double params[ASSAY_MAX_PARAMS], result[N * H * D_V];

static void set(const char *name, void *data, assay_dtype dtype, int32_t rank, const int64_t *shape) {
  const assay_op *op = assay_op_softmax_attention();
  for (int32_t i = 0; i < op->arg_count; ++i) {
    if (strcmp(op->args[i].name, name) != 0) continue;
    args[i] = (assay_tensor){.data = data, .dtype = dtype, .rank = rank};
    int64_t stride = 1;
    for (int32_t a = rank - 1; a >= 0; stride *= shape[a--]) {
      args[i].shape[a] = shape[a];
      args[i].stride[a] = stride;
    }
  }
}

static void fill(float *to, int64_t count, int64_t seed) {
  for (int64_t i = 0; i < count; ++i)
    to[i] = (float)((i * 37 + seed * 11) % 29 - 14) / 8;
}

static assay_call make_call(void) {
  const assay_op *op = assay_op_softmax_attention();
  unsigned char bytes[8] = {0, 0, 0xFF, 0, 0, 0, 0, 0};
  memset(args, 0, sizeof args);
  fill(q, N * H * D, 1);
  fill(k, KEYS * H_KV * D, 2);
  fill(v, KEYS * H_KV * D_V, 3);
  for (int64_t i = 0, row = 0; i < B; ++i)
    for (int64_t bit = 0; row < cu_q[i + 1]; ++row)
      for (const char *at = rows[row]; *at != '\0'; ++at, ++bit)
        if (*at == '1') bytes[starts[i] + bit / 8] = (unsigned char)(bytes[starts[i] + bit / 8] | 1 << bit % 8);
  memcpy(words, bytes, sizeof words);
  set("q", q, ASSAY_F32, 3, (int64_t[]){N, H, D});
  set("k_cache", k, ASSAY_F32, 4, (int64_t[]){KEYS, 1, H_KV, D});
  set("v_cache", v, ASSAY_F32, 4, (int64_t[]){KEYS, 1, H_KV, D_V});
  set("kv_len", lengths, ASSAY_I32, 1, (int64_t[]){B});
  set("cu_q", cu_q, ASSAY_I32, 1, (int64_t[]){B + 1});
  set("cu_k", cu_k, ASSAY_I32, 1, (int64_t[]){B + 1});
  set("out", out, ASSAY_F32, 3, (int64_t[]){N, H, D_V});
  set("mask", words, ASSAY_I32, 1, (int64_t[]){2});
  set("mask_ptr", starts, ASSAY_I64, 1, (int64_t[]){B + 1});
  for (int32_t i = 0; i < op->param_count; ++i)
    params[i] = op->params[i].fallback;
  return (assay_call){op, args, params};
}

static assay_status reference(const assay_call *call, assay_error *error) {
  assay_expected expected[2] = {{result, NULL}, {NULL, NULL}};
  assay_status status = call->op->check(call, error);
  if (status == ASSAY_OK) status = call->op->reference(call, NULL, NULL, false, expected, NULL, error);
  return status;
}

Test(ref_mask, bits_and_widths_equal_zeros_and_ones) {
  const assay_call call = make_call();
  assay_error error = {""};
  cr_assert(reference(&call, &error) == ASSAY_OK, "%s", error.text);
  for (int64_t row = 0; row < N; ++row)
    for (int64_t h = 0; h < H; ++h) {
      const int64_t first = row < cu_q[1] ? 0 : cu_k[1], g = h / (H / H_KV);
      double weight[8] = {0}, total = 0;
      for (int64_t t = 0; rows[row][t] != '\0'; ++t) {
        double dot = 0;
        for (int64_t d = 0; d < D; ++d)
          dot += (double)q[(row * H + h) * D + d] * (double)k[((first + t) * H_KV + g) * D + d];
        weight[t] = rows[row][t] == '1' ? exp(dot * (double)(float)(1 / sqrt((double)D))) : 0;
        total += weight[t];
      }
      for (int64_t d = 0; d < D_V; ++d) {
        double sum = 0;
        for (int64_t t = 0; rows[row][t] != '\0'; ++t)
          sum += weight[t] * (double)v[((first + t) * H_KV + g) * D_V + d];
        const double wanted = total > 0 ? sum / total : 0, got = result[(row * H + h) * D_V + d];
        cr_assert(fabs(got - wanted) <= 1e-12 * (1 + fabs(wanted)), "row %d head %d channel %d: %.17g, wanted %.17g",
                  (int)row, (int)h, (int)d, got, wanted);
      }
    }
}

Test(ref_mask, contents_that_do_not_fit_are_refused) {
  static const struct {
    int64_t starts[B + 1];
    const char *names;
  } wrong[] = {{{0, 1, 6}, "mask_ptr"},
               {{0, 3, 5}, "mask_ptr"},
               {{0, 3, 2}, "mask_ptr"},
               {{0, 3, 9}, "mask_ptr"},
               {{-1, 3, 6}, "mask_ptr"}};
  for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; ++i) {
    const assay_call call = make_call();
    assay_error error = {""};
    int64_t other[B + 1];
    memcpy(other, wrong[i].starts, sizeof other);
    set("mask_ptr", other, ASSAY_I64, 1, (int64_t[]){B + 1});
    cr_assert(reference(&call, &error) == ASSAY_ERR_INPUT, "start %d is taken", (int)i);
    cr_assert(strstr(error.text, wrong[i].names) != NULL, "%s", error.text);
  }
}

Test(ref_mask, one_without_the_other_is_refused) {
  static const char *const names[] = {"mask", "mask_ptr"};
  for (int i = 0; i < 2; ++i) {
    const assay_call call = make_call();
    assay_error error = {""};
    set(names[i], NULL, ASSAY_NONE, 0, NULL);
    cr_assert(call.op->check(&call, &error) == ASSAY_ERR_INPUT, "%s may be missing", names[i]);
    cr_assert(strstr(error.text, names[i]) != NULL, "%s", error.text);
  }
}
