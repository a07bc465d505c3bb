/* allclose.c: four judges by tolerance.
 *
 * The limits, as found in the projects' tests (2025), for outputs of attention:
 *   vllm             tests/kernels/attention/test_attention.py: assert_close, atol 1e-3, rtol 1e-5. Ragged:
 *                    tests/kernels/attention/test_flash_attn.py: atol 1.5e-2, rtol 1e-2.
 *   flashinfer       tests/attention/test_batch_decode_kernels.py: assert_close, rtol 1e-3, atol 1e-3 (f16);
 *                    tests/attention/test_batch_attention.py: rtol 1e-2, atol 1e-2 (bf16).
 *   flash_attention  tests/test_flash_attn.py: largest error <= 2 times that of a PyTorch run in low precision; with a
 *                    paged cache <= 3 times + 1e-5, which is what is taken here.
 *   ggml             tests/test-backend-ops.cpp: sum of squared errors over the sum of squares <= 5e-4 for
 *                    test_flash_attn_ext (1e-7 is the default of other operators).
 * All are kinder here than in their own projects. The output is compared with the f64 reference rounded to the output's
 * type, not with another kernel. The run in low precision is drawn from the reference's own error model: normal numbers
 * times sigma. That sigma holds for a contract that rounds scores and weights to the type of q, as a chain of PyTorch
 * operators does. Memory is zero where nothing was written, as in a fresh process. */
#include "allclose.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/dtype.h"
#include "core/registry.h"
#include "core/rng.h"
#include "conformance/trial/trial.h"

const char *allclose_name(int32_t judge) {
  static const char *const name[ALLCLOSE_COUNT] = {"vllm", "flashinfer", "flash_attention", "ggml"};
  return judge >= 0 && judge < ALLCLOSE_COUNT ? name[judge] : "?";
}

static bool all_close(const double *got, const double *expected, int64_t count, double atol, double rtol) {
  for (int64_t i = 0; i < count; ++i)
    if (!(fabs(got[i] - expected[i]) <= atol + rtol * fabs(expected[i]))) return false;
  return true;
}

static bool nmse_below(const double *got, const double *expected, int64_t count, double limit) {
  double error = 0, square = 0;
  for (int64_t i = 0; i < count; ++i) {
    error += (got[i] - expected[i]) * (got[i] - expected[i]);
    square += expected[i] * expected[i];
  }
  return error <= limit * square;
}

void allclose_compare(const double *got, const double *expected, int64_t count, assay_dtype dtype, bool decode,
                      double low_error, bool caught[ALLCLOSE_COUNT]) {
  const double vllm_atol = decode ? 1e-3 : 1.5e-2, vllm_rtol = decode ? 1e-5 : 1e-2;
  const double flashinfer = dtype == ASSAY_BF16 ? 1e-2 : 1e-3;
  caught[ALLCLOSE_VLLM] |= !all_close(got, expected, count, vllm_atol, vllm_rtol);
  caught[ALLCLOSE_FLASHINFER] |= !all_close(got, expected, count, flashinfer, flashinfer);
  caught[ALLCLOSE_FLASH_ATTENTION] |= !all_close(got, expected, count, 3 * low_error + 1e-5, 0);
  caught[ALLCLOSE_GGML] |= !nmse_below(got, expected, count, 5e-4);
}

/* ---- the plain calls --------------------------------------------------------------------------------- */

/* Makes a plain case: decode has 2 requests of 512 keys, prefill 2 of 64. Everything else has the operator's defaults,
 * and so has everything of operators without requests. */
static assay_status ordinary_case(const assay_variant *variant, const assay_device *device, assay_dtype dtype,
                                  bool decode, const char *option, assay_case *one, assay_error *error) {
  const assay_op *op = assay_op_find(variant->op);
  char text[512];
  if (op != NULL && op->form == ASSAY_PLAIN) {
    (void)snprintf(text, sizeof text,
                   "%s variant=%s device=%s section=check dtype=%s values=normal dead=zero seed=1%s%s", variant->op,
                   variant->name, device->name, assay_dtype_name(dtype), option != NULL ? " " : "",
                   option != NULL ? option : "");
    return case_parse(text, one, error);
  }
  (void)snprintf(text, sizeof text,
                 "%s variant=%s device=%s section=check mode=%s dtype=%s values=normal tables=identity dead=zero "
                 "kv_len=%s seed=1",
                 variant->op, variant->name, device->name, decode ? "decode" : "prefill", assay_dtype_name(dtype),
                 decode ? "512,512" : "64,64");
  return case_parse(text, one, error);
}

typedef struct ordinary {
  image img;
  unsigned char *memory, *host; /* on the device: arena and workspace; fetched arena */
  assay_tensor arg[ASSAY_MAX_ARGS];
  int32_t output[ASSAY_MAX_OUTPUTS], count; /* arguments */
  int64_t elements[ASSAY_MAX_OUTPUTS];
  assay_expected expected[ASSAY_MAX_OUTPUTS], low[ASSAY_MAX_OUTPUTS];
} ordinary;

static void ordinary_free(ordinary *p, const assay_device *device) {
  for (int32_t o = 0; o < ASSAY_MAX_OUTPUTS; ++o) {
    free(p->expected[o].value);
    free(p->low[o].value);
    free(p->low[o].sigma);
  }
  if (p->memory != NULL) device->release(p->memory);
  free(p->host);
  image_free(&p->img);
}

/* Computes the values of the reference, and sigma of a run in low precision. */
static assay_status ordinary_reference(ordinary *p, const assay_variant *variant, assay_error *error) {
  const assay_op *op = p->img.call.op;
  const assay_rows rows = {p->img.rows, NULL};
  assay_dtype q = ASSAY_NONE;
  for (int32_t i = 0; i < op->arg_count; ++i) {
    const assay_tensor *arg = &p->img.arg[i];
    if (op->args[i].content == ASSAY_QUERY) q = arg->dtype;
    if (op->args[i].role == ASSAY_IN || arg->data == NULL || p->count == ASSAY_MAX_OUTPUTS) continue;
    const int32_t o = p->count++;
    p->output[o] = i;
    p->elements[o] = 1;
    for (int32_t a = 0; a < arg->rank; ++a)
      p->elements[o] *= arg->shape[a];
    const size_t bytes = (size_t)(p->elements[o] + 1) * sizeof(double);
    p->expected[o].value = malloc(bytes);
    p->low[o] = (assay_expected){malloc(bytes), malloc(bytes)};
    if (p->expected[o].value == NULL || p->low[o].value == NULL || p->low[o].sigma == NULL)
      return assay_fail(error, ASSAY_ERR_MEMORY, "allclose: out of memory");
  }
  assay_contract low = variant->contract;
  low.score = low.p = q == ASSAY_F32 ? ASSAY_NONE : q;
  assay_seen seen = {.slots = 0};
  assay_status status = op->reference(&p->img.call, &variant->contract, &rows, false, p->expected, &seen, error);
  if (status == ASSAY_OK) status = op->reference(&p->img.call, &low, &rows, false, p->low, &seen, error);
  return status;
}

/* Runs the call; its outputs are then in p->host. `taken` is false where the variant does not support the call. */
static assay_status ordinary_run(ordinary *p, const assay_variant *variant, const assay_device *device, bool *taken,
                                 assay_error *error) {
  int64_t workspace = 0;
  assay_status status = variant_supports(variant, &p->img.call, error);
  *taken = status == ASSAY_OK;
  if (!*taken) return status == ASSAY_ERR_UNSUPPORTED ? ASSAY_OK : status;
  status = variant_workspace(variant, &p->img.call, &workspace, error);
  if (status != ASSAY_OK) return status;
  const int64_t arena = (p->img.arena_bytes + DEVICE_ALIGNMENT - 1) / DEVICE_ALIGNMENT * DEVICE_ALIGNMENT;
  const int64_t bytes = arena + workspace + (1 << 20); /* allocators round up: an overrun stays in spare memory */
  void *memory = NULL;
  p->host = calloc(1, (size_t)bytes);
  if (p->host == NULL) return assay_fail(error, ASSAY_ERR_MEMORY, "allclose: out of memory");
  status = device->alloc(bytes, &memory, error);
  if (status != ASSAY_OK) return status;
  p->memory = memory;
  memcpy(p->host, p->img.host, (size_t)p->img.arena_bytes);
  for (int32_t o = 0; o < p->count; ++o) {
    const span s = p->img.extent[p->output[o]];
    if (p->img.call.op->args[p->output[o]].role == ASSAY_INOUT) continue;
    memset(p->host + s.offset, 0, (size_t)s.bytes);
  }
  status = device->upload(p->memory, p->host, bytes, error);
  if (status != ASSAY_OK) return status;
  const assay_call call = image_rebase(&p->img, p->memory, p->arg);
  assay_env env = {
      .stream = device->stream(), .workspace = p->memory + arena, .workspace_bytes = workspace, .multiprocessors = 1};
  device->schedule(1);
  status = variant_launch(variant, &call, &env, error);
  if (status == ASSAY_OK) status = device->synchronize(error);
  if (status == ASSAY_OK) status = device->download(p->host, p->memory, p->img.arena_bytes, error);
  if (status == ASSAY_OK) status = device->synchronize(error);
  return status;
}

/* Compares the outputs. For a written cache these are its new rows, where slots say. */
static assay_status ordinary_compare(const ordinary *p, const assay_case *one, bool decode, allclose_verdict *found,
                                     assay_error *error) {
  trial t = {.one = one, .first = p->img}; /* shares it */
  outputs dense, before;
  outputs_list(&t);
  const bool ready = outputs_make(&t, &dense);
  if (!outputs_make(&t, &before) || !ready) {
    outputs_free(&dense);
    outputs_free(&before);
    return assay_fail(error, ASSAY_ERR_MEMORY, "allclose: out of memory");
  }
  outputs_gather(&t, &p->img, p->host, &dense);
  outputs_gather(&t, &p->img, p->img.host, &before);
  assay_status status = ASSAY_OK;
  for (int32_t o = 0; o < p->count && status == ASSAY_OK; ++o) {
    const assay_dtype dtype = t.output[o].dtype;
    const int64_t count = t.output[o].rows * t.output[o].width;
    double *got = malloc((size_t)(count + 1) * sizeof *got), *normal = malloc((size_t)(count + 1) * sizeof *normal);
    if (got == NULL || normal == NULL) {
      status = assay_fail(error, ASSAY_ERR_MEMORY, "allclose: out of memory");
    } else {
      double low = 0;
      assay_rng_normals(1, STREAM_LOW, normal, count);
      for (int64_t i = 0; i < count; ++i) {
        got[i] = assay_load_f64(dense.bits[o], dtype, i);
        const double sigma = p->low[o].sigma[i];
        if (sigma < 0) { /* a bit copy of an old element, its own or another */
          const int64_t from = sigma == ASSAY_MOVED ? (int64_t)p->expected[o].value[i] : i;
          p->low[o].value[i] = assay_load_f64(before.bits[o], dtype, from);
          continue;
        }
        p->low[o].value[i] = assay_round_f64(p->expected[o].value[i], dtype);
        low = fmax(low, fabs(normal[i]) * p->low[o].sigma[i]);
      }
      allclose_compare(got, p->low[o].value, count, dtype, decode, low, found->caught);
    }
    free(got);
    free(normal);
  }
  outputs_free(&dense);
  outputs_free(&before);
  return status;
}

/* Makes the first legal call: without options, or with one of them, where an operator needs one of several arguments.
 * If none is legal, the call is the one without options. */
static assay_status ordinary_image(const assay_variant *variant, const assay_device *device, assay_dtype dtype,
                                   bool decode, assay_case *one, image *img, assay_error *error) {
  const assay_op *op = assay_op_find(variant->op);
  const draw choice = {.dead = DEAD_ZERO};
  const bool plain = op != NULL && op->form == ASSAY_PLAIN;
  for (int32_t i = -1; plain && i < op->arg_count; ++i) {
    char option[64];
    assay_error refusal = {""};
    if (i >= 0 && !op->args[i].optional) continue;
    (void)snprintf(option, sizeof option, "%s=true", i >= 0 ? op->args[i].name : "");
    assay_status status = ordinary_case(variant, device, dtype, decode, i >= 0 ? option : NULL, one, &refusal);
    if (status != ASSAY_OK) continue;
    status = image_make(one, &choice, NULL, img, &refusal);
    if (status == ASSAY_OK && op->check(&img->call, &refusal) == ASSAY_OK) return ASSAY_OK;
    image_free(img);
    case_free(one);
    memset(img, 0, sizeof *img);
  }
  const assay_status status = ordinary_case(variant, device, dtype, decode, NULL, one, error);
  return status == ASSAY_OK ? image_make(one, &choice, NULL, img, error) : status;
}

static assay_status judge_one(const assay_variant *variant, const assay_device *device, assay_dtype dtype, bool decode,
                              allclose_verdict *found, assay_error *error) {
  ordinary p;
  assay_case one;
  bool taken = false;
  memset(&p, 0, sizeof p);
  assay_status status = ordinary_image(variant, device, dtype, decode, &one, &p.img, error);
  if (status == ASSAY_OK) status = ordinary_reference(&p, variant, error);
  if (status == ASSAY_OK) status = ordinary_run(&p, variant, device, &taken, error);
  if (status == ASSAY_ERR_HANG || status == ASSAY_ERR_DEVICE || (status != ASSAY_OK && p.count > 0)) {
    /* An error or a timeout: every test sees it. */
    for (int32_t j = 0; j < ALLCLOSE_COUNT; ++j)
      found->caught[j] = true;
    ++found->cases;
    status = ASSAY_OK;
  } else if (status == ASSAY_OK && taken) {
    ++found->cases;
    status = ordinary_compare(&p, &one, decode, found, error);
  }
  ordinary_free(&p, device);
  case_free(&one);
  return status;
}

static bool takes_ragged(const assay_op *op) {
  for (int32_t i = 0; i < op->arg_count; ++i)
    if (op->args[i].content == ASSAY_CU_Q) return true;
  return false;
}

assay_status allclose_judge(const assay_variant *variant, const assay_device *device, allclose_verdict *found,
                            assay_error *error) {
  static const assay_dtype types[] = {ASSAY_F32, ASSAY_F16, ASSAY_BF16};
  assay_status status = ASSAY_OK;
  for (size_t t = 0; t < sizeof types / sizeof *types && status == ASSAY_OK; ++t) {
    const int32_t before = found->cases;
    status = judge_one(variant, device, types[t], true, found, error);
    /* The variant may take only ragged batches. */
    if (status == ASSAY_OK && found->cases == before && takes_ragged(assay_op_find(variant->op)))
      status = judge_one(variant, device, types[t], false, found, error);
  }
  return status;
}
