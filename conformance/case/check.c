/* check.c: rules over several keys of a case. */
#include <inttypes.h>
#include <stdio.h>

#include "types.h"
#include "core/dtype.h"
#include "keys.h"

/* Returns a dimension by name, or `absent` where the operator has none of that name. */
static int64_t dim_of(const assay_case *one, const char *name, int64_t absent) {
  for (int32_t i = 0; i < one->op->dim_count; ++i)
    if (strcmp(one->op->dims[i].name, name) == 0) return one->dim[i];
  return absent;
}

static const double *param_of(const assay_case *one, const char *name) {
  for (int32_t i = 0; i < one->op->param_count; ++i)
    if (strcmp(one->op->params[i].name, name) == 0) return &one->param[i];
  return NULL;
}

static const assay_arg *arg_of(const assay_case *one, assay_content content, int32_t *index) {
  for (int32_t i = 0; i < one->op->arg_count; ++i)
    if (one->op->args[i].content == content) {
      *index = i;
      return &one->op->args[i];
    }
  return NULL;
}

bool case_is_contiguous(const assay_case *one) {
  int32_t index = 0;
  return arg_of(one, ASSAY_CU_K, &index) != NULL && ((one->present >> index) & 1) != 0;
}

/* Tells a power of two from its bits: a normal number with an empty fraction. */
static bool is_power_of_two(double value) {
  uint64_t bits = 0;
  memcpy(&bits, &value, sizeof bits);
  const uint64_t exponent = bits >> 52;
  return exponent > 0 && exponent < 0x7FF && (bits & ((UINT64_C(1) << 52) - 1)) == 0;
}

/* Tells whether the value has at most `bits` significant bits. */
static bool is_short(double value, int bits) {
  uint64_t image = 0;
  memcpy(&image, &value, sizeof image);
  return assay_is_finite(value) && (image & ((UINT64_C(1) << (53 - bits)) - 1)) == 0;
}

static bool listed(const char *list, const char *word) {
  const size_t n = strlen(word);
  for (const char *at = list; *at != '\0'; at += strspn(at, ",")) {
    const size_t m = strcspn(at, ",");
    if (m == n && memcmp(at, word, n) == 0) return true;
    at += m;
  }
  return false;
}

/* Returns the argument whose type is the key dtype: the first with a list of types of its own. */
static const assay_arg *typed_arg(const assay_op *op) {
  for (int32_t i = 0; i < op->arg_count; ++i)
    if (op->args[i].dtypes[0] != '=' && strchr(op->args[i].dtypes, ',') != NULL) return &op->args[i];
  return NULL;
}

static assay_status check_out_dtype(const assay_case *one, assay_error *error) {
  for (int32_t i = 0; i < one->op->arg_count; ++i) {
    const assay_arg *arg = &one->op->args[i];
    if (arg->dtypes[0] != '=' || strchr(arg->dtypes, ',') == NULL || one->out_dtype == one->dtype) continue;
    if (!listed(strchr(arg->dtypes, ','), assay_dtype_name(one->out_dtype)))
      return assay_fail(error, ASSAY_ERR_INPUT, "out_dtype: found %s, allowed same (%s)%s",
                        assay_dtype_name(one->out_dtype), assay_dtype_name(one->dtype), strchr(arg->dtypes, ','));
  }
  return ASSAY_OK;
}

static assay_status check_types(const assay_case *one, assay_error *error) {
  int32_t index = 0;
  const assay_arg *q = typed_arg(one->op), *k = arg_of(one, ASSAY_K_CACHE, &index);
  if (one->op->form == ASSAY_PLAIN) k = NULL;
  if (q != NULL && !listed(q->dtypes, assay_dtype_name(one->dtype)))
    return assay_fail(error, ASSAY_ERR_INPUT, "dtype: found %s, allowed %s", assay_dtype_name(one->dtype), q->dtypes);
  if (one->op->form == ASSAY_PLAIN) return check_out_dtype(one, error);
  if (k != NULL && one->kv_dtype != one->dtype && !listed(k->dtypes, assay_dtype_name(one->kv_dtype)))
    return assay_fail(error, ASSAY_ERR_INPUT, "kv_dtype: found %s, allowed same (%s), e4m3, e5m2",
                      assay_dtype_name(one->kv_dtype), assay_dtype_name(one->dtype));
  return ASSAY_OK;
}

static assay_status check_dims(const assay_case *one, assay_error *error) {
  const int64_t H_kv = dim_of(one, "H_kv", 1), H = dim_of(one, "H", H_kv), block_size = dim_of(one, "block_size", 8);
  const double *sparse_block = param_of(one, "sparse_block"), *lo = param_of(one, "lo"), *hi = param_of(one, "hi");
  if (H % H_kv != 0)
    return assay_fail(error, ASSAY_ERR_INPUT, "H: found %" PRId64 ", allowed multiples of H_kv = %" PRId64, H, H_kv);
  if ((block_size & (block_size - 1)) != 0 || block_size == 2 || block_size == 4)
    return assay_fail(error, ASSAY_ERR_INPUT, "block_size: found %" PRId64 ", allowed 8, 16, 32, 64, 128, 256",
                      block_size);
  const char *layout = case_axis(one, "layout");
  if (block_size == 1 && layout != NULL && strcmp(layout, "x") == 0)
    return assay_fail(error, ASSAY_ERR_INPUT, "block_size: found 1 in layout x, allowed 8, 16, 32, 64, 128, 256");
  const int64_t x = 16 / (assay_dtype_size(one->kv_dtype) > 0 ? assay_dtype_size(one->kv_dtype) : 16);
  const int64_t D = dim_of(one, "D", 0);
  if (layout != NULL && strcmp(layout, "x") == 0 && case_is_contiguous(one))
    return assay_fail(error, ASSAY_ERR_INPUT, "layout: found x, allowed nhd, hnd with cu_k");
  if (layout != NULL && strcmp(layout, "x") == 0 && D % x != 0)
    return assay_fail(error, ASSAY_ERR_INPUT,
                      "D: found %" PRId64 ", allowed multiples of x = %" PRId64 " in layout x with %s", D, x,
                      assay_dtype_name(one->kv_dtype));
  if (sparse_block != NULL && (int64_t)*sparse_block % block_size != 0)
    return assay_fail(error, ASSAY_ERR_INPUT,
                      "sparse_block: found %.0f, allowed 0 and multiples of block_size = %" PRId64, *sparse_block,
                      block_size);
  if (lo != NULL && hi != NULL && !(*lo <= *hi))
    return assay_fail(error, ASSAY_ERR_INPUT, "lo: found %g, allowed at most hi = %g", *lo, *hi);
  return ASSAY_OK;
}

/* Checks L and T of each request against the mode (see case_mode). A row of a request with L = 0 is a pad row. */
static assay_status check_lengths(const assay_case *one, assay_error *error) {
  int64_t rows = 0;
  int32_t index = 0;
  /* Without cu_q, each request has exactly one attending row. */
  if (one->mode != MODE_DECODE && arg_of(one, ASSAY_KV_LEN, &index) != NULL && arg_of(one, ASSAY_CU_Q, &index) == NULL)
    return assay_fail(error, ASSAY_ERR_INPUT, "mode: found %s, allowed decode: %s has no cu_q", case_axis(one, "mode"),
                      one->op->name);
  if (one->batch < 1 || one->batch > CASE_MAX_BATCH)
    return assay_fail(error, ASSAY_ERR_INPUT, "kv_len: found %d requests, allowed 1 to %d", one->batch, CASE_MAX_BATCH);
  for (int32_t i = 0; i < one->batch; ++i) {
    const int32_t L = one->kv_len[i], T = one->new_len[i];
    int32_t low = 1, high = L;
    if (L < 0 || L > KEY_MAX_LENGTH)
      return assay_fail(error, ASSAY_ERR_INPUT, "kv_len: found %d for request %d, allowed 0 to %d", L, i,
                        KEY_MAX_LENGTH);
    switch (one->mode) {
    case MODE_DECODE:
      high = 1;
      break;
    case MODE_PREFILL:
      low = L;
      break;
    case MODE_CHUNKED:
      if (L < 1)
        return assay_fail(error, ASSAY_ERR_INPUT, "kv_len: found 0 for request %d, allowed 1 to %d in mode chunked", i,
                          KEY_MAX_LENGTH);
      break;
    case MODE_MIXED:
      low = 0;
      high = L > 1 ? L : 1;
      break;
    }
    if (T < low || T > high)
      return assay_fail(error, ASSAY_ERR_INPUT,
                        "new: found %d for request %d of %d tokens, allowed %d to %d in mode %s", T, i, L, low, high,
                        case_axis(one, "mode"));
    rows += T;
  }
  if (rows < 1) return assay_fail(error, ASSAY_ERR_INPUT, "new: found no row in the whole batch, allowed 1 or more");
  return ASSAY_OK;
}

/* Request i may begin with the first n tokens of an earlier request j. These are whole blocks, inside both requests,
 * and contain none of i's new tokens. A request that is new as a whole (P = 0) may share them all. Attention only reads
 * the cache, and two equal prompts in one step are legal. An operator that writes new tokens shares only tokens cached
 * before in both, so that no write hits a shared block. */
int32_t case_shareable(const assay_case *one, int32_t i, int32_t j) {
  int32_t slots = 0;
  const bool appends = arg_of(one, ASSAY_SLOTS, &slots) != NULL;
  const int32_t cached = one->kv_len[i] - one->new_len[i];
  const int32_t own = cached > 0 || appends ? cached : one->kv_len[i];
  const int32_t other = one->kv_len[j] - (appends ? one->new_len[j] : 0);
  const int32_t most = own < other ? own : other;
  return most > 0 ? most : 0;
}

static assay_status check_share(const assay_case *one, assay_error *error) {
  const int64_t block_size = dim_of(one, "block_size", 1);
  for (int32_t i = 0; i < one->batch; ++i) {
    const int32_t j = one->share_with[i], n = one->share_tokens[i];
    if (j < 0) continue;
    if (case_is_contiguous(one))
      return assay_fail(error, ASSAY_ERR_INPUT, "share: found request %d sharing with %d, allowed none with cu_k", i,
                        j);
    if (j >= i)
      return assay_fail(error, ASSAY_ERR_INPUT, "share: request %d shares with %d, allowed an earlier request", i, j);
    const int32_t most = case_shareable(one, i, j);
    if (n < 1 || n > most || n % block_size != 0)
      return assay_fail(error, ASSAY_ERR_INPUT,
                        "share: found %d tokens for request %d, allowed whole blocks of %" PRId64 " up to %d", n, i,
                        block_size, most);
  }
  return ASSAY_OK;
}

/* Checks the enum parameter that the operator's exact tier needs at one value (op.h, exact_with). */
static assay_status check_exact_with(const assay_case *one, assay_error *error) {
  const char *wanted = one->op->exact_with, *value = wanted != NULL ? strchr(wanted, '=') : NULL;
  for (int32_t i = 0; value != NULL && i < one->op->param_count; ++i) {
    const assay_param *p = &one->op->params[i];
    if (strlen(p->name) != (size_t)(value - wanted) || strncmp(p->name, wanted, strlen(p->name)) != 0) continue;
    const char *at = p->names;
    for (int32_t skip = (int32_t)one->param[i]; skip > 0 && strchr(at, ',') != NULL; --skip)
      at = strchr(at, ',') + 1;
    const size_t size = strcspn(at, ",");
    if (strlen(value + 1) == size && strncmp(at, value + 1, size) == 0) return ASSAY_OK;
    return assay_fail(error, ASSAY_ERR_INPUT, "%s: found %.*s, allowed %s in tier exact", p->name, (int)size, at,
                      value + 1);
  }
  return ASSAY_OK;
}

/* Checks the needs of the exact tier, before admission can prove anything (docs/judging.md): values on the lattice, a
 * dyadic scale, dyadic taps. Softmax also needs 16-bit results, no soft cap, no slopes and no LSE. */
static assay_status check_exact(const assay_case *one, assay_error *error) {
  const double *scale = param_of(one, "scale"), *cap = param_of(one, "softcap");
  const double *clip[] = {param_of(one, "lo"), param_of(one, "hi")};
  const int64_t F = dim_of(one, "F", 0);
  char number[32], other[32];
  if (one->op->inexact)
    return assay_fail(error, ASSAY_ERR_INPUT, "tier: found exact, allowed calibrated: no inputs of %s are exact",
                      one->op->name);
  if (one->values != ASSAY_LATTICE)
    return assay_fail(error, ASSAY_ERR_INPUT, "values: found %s, allowed lattice in tier exact",
                      case_axis(one, "values"));
  if (one->magnitude != ASSAY_USUAL)
    return assay_fail(error, ASSAY_ERR_INPUT, "magnitude: found %s, allowed usual in tier exact",
                      case_axis(one, "magnitude"));
  const assay_status status = check_exact_with(one, error);
  if (status != ASSAY_OK || one->op->form == ASSAY_PLAIN) return status;
  if (scale != NULL && !is_power_of_two(*scale))
    return assay_fail(error, ASSAY_ERR_INPUT, "scale: found %s, allowed a power of two in tier exact",
                      assay_shortest(*scale, number));
  for (int32_t i = 0; i < 2; ++i)
    if (clip[i] != NULL && !is_short(*clip[i], 8))
      return assay_fail(error, ASSAY_ERR_INPUT, "%s: found %s, allowed at most 8 significant bits in tier exact",
                        i == 0 ? "lo" : "hi", assay_shortest(*clip[i], number));
  if (F > 0 && (!is_short(one->sigma / (double)F, 8) || !is_short(one->tap_skew, 8)))
    return assay_fail(error, ASSAY_ERR_INPUT,
                      "sigma: found %s and tap_skew %s, allowed in tier exact: sigma/F (F = %" PRId64
                      ") and tap_skew of at most 8 significant bits",
                      assay_shortest(one->sigma, number), assay_shortest(one->tap_skew, other), F);
  if (cap == NULL) return ASSAY_OK;
  if (*cap != 0) return assay_fail(error, ASSAY_ERR_INPUT, "softcap: found %g, allowed 0 in tier exact", *cap);
  if (one->dtype == ASSAY_F32)
    return assay_fail(error, ASSAY_ERR_INPUT, "dtype: found f32, allowed f16, bf16 in tier exact");
  for (int32_t i = 0; i < one->op->arg_count; ++i) {
    const assay_content content = one->op->args[i].content;
    if (((one->present >> i) & 1) != 0 && (content == ASSAY_SLOPES || content == ASSAY_RESULT))
      return assay_fail(error, ASSAY_ERR_INPUT, "%s: found true, allowed false in tier exact", one->op->args[i].name);
  }
  return ASSAY_OK;
}

/* Tells whether the call of this case has the argument. */
static bool is_given(const assay_case *one, int32_t index) {
  const assay_arg *arg = &one->op->args[index];
  if (!arg->optional) return true;
  if (arg->content == ASSAY_KV_SCALE) return one->kv_dtype == ASSAY_E4M3 || one->kv_dtype == ASSAY_E5M2;
  if (arg->content == ASSAY_CU_Q) return one->mode != MODE_DECODE;
  if (arg->content == ASSAY_BLOCK_TABLE) return !case_is_contiguous(one);
  if (strcmp(arg->name, "mask_ptr") == 0) index -= 1; /* it follows mask, and is given with it */
  return ((one->present >> index) & 1) != 0;
}

static assay_status check_argument(const assay_case *one, assay_error *error) {
  const bool extra = one->broken == BREAK_EXTRA;
  if (one->argument == 0 && extra)
    return assay_fail(error, ASSAY_ERR_INPUT, "argument: missing, needed with break extra: the one that is given");
  if (one->argument == 0) return ASSAY_OK;
  const char *name = one->op->args[one->argument - 1].name;
  if (one->section != SECTION_REFUSE)
    return assay_fail(error, ASSAY_ERR_INPUT, "argument: found %s, allowed in section refuse only", name);
  if (one->broken == BREAK_NOTHING || one->broken >= BREAK_WORKSPACE)
    return assay_fail(
        error, ASSAY_ERR_INPUT,
        "argument: found %s with break %s, allowed with null, misaligned, dtype, shape, stride, negative, "
        "overflow, extra",
        name, case_axis(one, "break"));
  if (is_given(one, one->argument - 1) == extra)
    return assay_fail(error, ASSAY_ERR_INPUT, "argument: found %s, allowed one that the case %s", name,
                      extra ? "does not give" : "gives");
  return ASSAY_OK;
}

assay_status case_check(const assay_case *one, assay_error *error) {
  const bool refuse = one->section == SECTION_REFUSE;
  assay_status status = check_lengths(one, error);
  if (status == ASSAY_OK && refuse != (one->expect[0] != '\0'))
    status = assay_fail(error, ASSAY_ERR_INPUT, "expect: %s",
                        refuse ? "missing, needed in section refuse: the name that the refusal must contain"
                               : "found outside section refuse");
  if (status == ASSAY_OK && !refuse && one->broken != BREAK_NOTHING)
    status =
        assay_fail(error, ASSAY_ERR_INPUT, "break: found %s, allowed in section refuse only", case_axis(one, "break"));
  if (status == ASSAY_OK) status = check_argument(one, error);
  if (status != ASSAY_OK || refuse) return status;
  status = check_types(one, error);
  if (status == ASSAY_OK && one->op->form == ASSAY_PLAIN)
    return one->tier == TIER_EXACT ? check_exact(one, error) : ASSAY_OK;
  if (status == ASSAY_OK) status = check_dims(one, error);
  if (status == ASSAY_OK) status = check_share(one, error);
  if (status == ASSAY_OK && one->tier == TIER_EXACT) status = check_exact(one, error);
  return status;
}
