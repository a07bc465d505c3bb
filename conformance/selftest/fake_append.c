/* fake_append.c: see fake_plain.h. Knows the layout nhd, by address arithmetic of its own. */
#include <math.h>

#include "core/dtype.h"
#include "core/rng.h"
#include "fake_plain.h"

enum { ARG_K_NEW, ARG_V_NEW, ARG_K, ARG_V, ARG_TABLE, ARG_KV_LEN, ARG_CU_Q, ARG_SLOTS, ARGS };

static const assay_dim dims[] = {
    {"B", 0, 0, 0, 1, ""},          {"N", 0, 0, 0, 1, ""},          {"H", 1, 8, 2, 1, ""},
    {"H_kv", 1, 8, 2, 1, ""},       {"D", 8, 64, 16, 8, ""},        {"block_size", 8, 256, 8, 1, ""},
    {"num_blocks", 0, 0, 0, 1, ""}, {"max_blocks", 0, 0, 0, 1, ""},
};
static const assay_arg args[] = {
    {"k_new", ASSAY_IN, ASSAY_K_NEW, false, "f32,f16,bf16", "N,H_kv,D", "", true},
    {"v_new", ASSAY_IN, ASSAY_V_NEW, false, "=k_new", "N,H_kv,D", "", true},
    {"k_cache", ASSAY_INOUT, ASSAY_K_CACHE, false, "=k_new", "num_blocks,block_size,H_kv,D", "", false},
    {"v_cache", ASSAY_INOUT, ASSAY_V_CACHE, false, "=k_new", "num_blocks,block_size,H_kv,D", "", false},
    {"block_table", ASSAY_IN, ASSAY_BLOCK_TABLE, false, "i32", "B,max_blocks", "", false},
    {"kv_len", ASSAY_IN, ASSAY_KV_LEN, false, "i32", "B", "", false},
    {"cu_q", ASSAY_IN, ASSAY_CU_Q, true, "i32", "B+1", "", false},
    {"slots", ASSAY_IN, ASSAY_SLOTS, false, "i64", "N", "", false},
};

static assay_status check(const assay_call *call, assay_error *error) {
  return call->arg[ARG_K_NEW].data != NULL ? ASSAY_OK : assay_fail(error, ASSAY_ERR_INPUT, "k_new: is NULL");
}

static double new_at(const assay_call *call, int32_t arg, int64_t row, int64_t i) {
  const assay_tensor *t = &call->arg[arg];
  return assay_load_f64(t->data, t->dtype, (t->shape[0] > 1 ? row * t->stride[0] : 0) + i);
}

static assay_status compute(const assay_call *call, const assay_rows *rows, int32_t spoil, assay_expected *to) {
  const int64_t width = call->arg[ARG_K_NEW].shape[1] * call->arg[ARG_K_NEW].shape[2];
  const int64_t *slot = call->arg[ARG_SLOTS].data;
  for (int64_t r = 0; r < rows->count; ++r) {
    const int64_t row = rows->index != NULL ? rows->index[r] : r;
    for (int32_t o = 0; o < 2; ++o)
      for (int64_t i = 0; i < width; ++i) {
        const int32_t from = spoil == 0 ? ARG_K_NEW : ARG_K_NEW + o;
        to[o].value[r * width + i] = slot[row] >= 0 ? new_at(call, from, row, i) : 0;
        if (to[o].sigma != NULL) to[o].sigma[r * width + i] = 0;
      }
  }
  return ASSAY_OK;
}

static assay_status reference(const assay_call *call, const assay_contract *contract, const assay_rows *rows,
                              bool exact, assay_expected *expected, assay_seen *seen, assay_error *error) {
  (void)contract, (void)exact, (void)seen, (void)error;
  return compute(call, rows, -1, expected);
}

static assay_status spoil(const assay_call *call, const assay_contract *contract, const assay_rows *rows, int32_t index,
                          assay_expected *expected, assay_error *error) {
  assay_expected values[2] = {{expected[0].value, NULL}, {expected[1].value, NULL}};
  (void)contract, (void)error;
  return compute(call, rows, index, values);
}

static void fill_k(const assay_fill *fill, int64_t content, int64_t kv_head, double *value) {
  assay_rng_normals(fill->seed, (uint64_t)(content << 8 | kv_head), value, fill->D);
}
static void fill_v(const assay_fill *fill, int64_t content, int64_t kv_head, double *value) {
  assay_rng_normals(fill->seed, (uint64_t)(content << 8 | kv_head) | (uint64_t)1 << 60, value, fill->D);
}
static bool visible(const assay_call *call, int64_t request, int64_t length, int64_t first_position, int64_t token) {
  (void)call, (void)request, (void)first_position;
  return token < length;
}

const assay_op plain_append_op = {.name = "fake_append",
                                  .title = "new keys and values to their slots",
                                  .source = "fake_plain.h",
                                  .dims = dims,
                                  .dim_count = sizeof dims / sizeof dims[0],
                                  .args = args,
                                  .arg_count = ARGS,
                                  .laws = "renumbering,permutation,run_to_run,dead_bytes",
                                  .spoils = "keys_as_values",
                                  .kappa_element = 2.5,
                                  .inexact = true,
                                  .axes = "dtype,mode",
                                  .check = check,
                                  .reference = reference,
                                  .fill_k = fill_k,
                                  .fill_v = fill_v,
                                  .visible = visible,
                                  .spoil = spoil};

static void put(const assay_tensor *cache, int64_t slot, int64_t head, int64_t d, double value) {
  const int64_t block_size = cache->shape[1];
  const int64_t to = slot / block_size * cache->stride[0] + slot % block_size * cache->stride[1] +
                     head * (cache->shape[2] > 1 ? cache->stride[2] : 0) + d;
  assay_store_f64((void *)((uintptr_t)cache->data + (uintptr_t)(to * assay_dtype_size(cache->dtype))), cache->dtype, 0,
                  value);
}

static assay_status launch(const assay_call *call, assay_env *env, assay_error *error) {
  const int64_t N = call->arg[ARG_K_NEW].shape[0], heads = call->arg[ARG_K_NEW].shape[1];
  const int64_t D = call->arg[ARG_K_NEW].shape[2], *slots = call->arg[ARG_SLOTS].data;
  const plain_fault f = plain_broken;
  const assay_status status = check(call, error);
  if (status != ASSAY_OK) return status;
  (void)env;
  for (int64_t row = 0; row < N; ++row)
    for (int32_t o = 0; o < 2; ++o)
      for (int64_t h = 0; h < heads; ++h)
        for (int64_t d = 0; d < D; ++d) {
          const bool last = row == N - 1, pad = slots[row] < 0;
          const int64_t own =
              pad ? ((const int32_t *)call->arg[ARG_TABLE].data)[0] * call->arg[ARG_K].shape[1] : slots[row];
          const int64_t from = f == PLAIN_HEADS_SWAPPED ? heads - 1 - h : h;
          const double value = new_at(call, f == PLAIN_KEYS_AS_VALUES ? ARG_K_NEW : ARG_K_NEW + o, row, from * D + d);
          if (pad && f != PLAIN_PAD_WRITTEN) continue;
          const int64_t beside = own % call->arg[ARG_K].shape[1] == 0 ? own + 1 : own - 1;
          if (!(f == PLAIN_OTHER_SLOT && last)) put(&call->arg[ARG_K + o], own, h, d, value);
          if ((f == PLAIN_OTHER_SLOT || f == PLAIN_SECOND_SLOT) && last)
            put(&call->arg[ARG_K + o], beside, h, d, value);
        }
  return ASSAY_OK;
}

static assay_status supports(const assay_call *call, assay_error *error) {
  (void)call, (void)error;
  return ASSAY_OK;
}

static assay_status workspace(const assay_call *call, int64_t *bytes, assay_error *error) {
  (void)call, (void)error;
  *bytes = 0;
  return ASSAY_OK;
}

const assay_variant plain_append = {.struct_size = sizeof(assay_variant),
                                    .op = "fake_append",
                                    .name = "loops",
                                    .why = "selftest",
                                    .device = "simt",
                                    .arch = "any",
                                    .claims = "f32,f16,bf16|decode,chunked",
                                    .contract = {.run_to_run = true, .renumbering = true, .permutation = true},
                                    .supports = supports,
                                    .workspace = workspace,
                                    .launch = launch};
