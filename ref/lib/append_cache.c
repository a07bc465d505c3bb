/* append_cache.c: the cache as some requests see it after the append. */
#include <stdlib.h>

#include "core/dtype.h"
#include "ref/lib/append.h"
#include "ref/lib/attention.h"

int64_t append_cache_row(const append_cache *c, int64_t i) {
  return c->rows != NULL && c->rows->index != NULL ? c->rows->index[i] : i;
}

static void *take(int64_t count, int64_t size) {
  return calloc((size_t)(count > 0 ? count : 1), (size_t)size);
}

/* Copies the codes of one token and head unchanged. */
static void copy_codes(const paged_pool *pool, int64_t block, int64_t offset, int64_t head, int64_t D,
                       unsigned char *to) {
  const int64_t size = assay_dtype_size(pool->dtype);
  const int64_t row = block * pool->s_block + head * pool->s_head + offset * pool->s_token;
  for (int64_t d = 0; d < D; d += pool->x) {
    const unsigned char *from = (const unsigned char *)pool->data + (row + d / pool->x * pool->s_chunk) * size;
    if (pool->s_element == 1) {
      memcpy(to + d * size, from, (size_t)(pool->x * size));
      continue;
    }
    for (int64_t i = 0; i < pool->x; ++i)
      memcpy(to + (d + i) * size, from + i * pool->s_element * size, (size_t)size);
  }
}

static void copy_tokens(append_cache *c, const attention *a) {
  const paged_pool k = paged_k_pool(a->k, a->layout, a->D), v = paged_v_pool(a->v, a->layout, a->D);
  const int64_t bytes = a->D * assay_dtype_size(a->k->dtype);
  for (int64_t i = 0; i < c->count; ++i) {
    const int64_t request = append_cache_row(c, i);
    const int32_t *table = (const int32_t *)a->table->data + request * a->table->stride[0];
    for (int64_t t = 0; t + 1 < c->length[i]; ++t)
      for (int64_t h = 0; h < a->H_kv; ++h) {
        const int64_t to = ((c->first_block[i] * a->block_size + t) * a->H_kv + h) * bytes;
        copy_codes(&k, table[t / a->block_size], t % a->block_size, h, a->D, c->k + to);
        copy_codes(&v, table[t / a->block_size], t % a->block_size, h, a->D, c->v + to);
      }
  }
}

static assay_tensor dense(void *data, assay_dtype dtype, int32_t rank, const int64_t *shape) {
  assay_tensor t = {.data = data, .dtype = dtype, .rank = rank};
  int64_t stride = 1;
  for (int32_t axis = rank - 1; axis >= 0; --axis) {
    t.shape[axis] = shape[axis];
    t.stride[axis] = stride;
    stride *= shape[axis];
  }
  return t;
}

assay_status append_cache_make(const assay_call *outer, const assay_rows *rows, assay_dtype q_dtype, append_cache *c,
                               assay_error *error) {
  *c = (append_cache){.outer = outer, .rows = rows};
  append_attention_of(outer, &c->inner);
  const attention a = attention_of(&c->inner.call);
  const assay_dtype kv = a.k->dtype;
  c->count = rows != NULL && rows->index != NULL ? rows->count : a.N;
  c->H = a.H;
  c->H_kv = a.H_kv;
  c->D = a.D;
  c->block_size = a.block_size;
  c->length = take(c->count, sizeof *c->length);
  c->first_block = take(c->count + 1, sizeof *c->first_block);
  if (c->length == NULL || c->first_block == NULL) goto full;
  int64_t widest = 1;
  for (int64_t i = 0; i < c->count; ++i) {
    const int64_t L = attention_length(&a, append_cache_row(c, i)), blocks = (L + a.block_size - 1) / a.block_size;
    c->length[i] = (int32_t)L;
    c->first_block[i + 1] = c->first_block[i] + blocks;
    if (blocks > widest) widest = blocks;
  }
  const int64_t blocks = c->first_block[c->count], codes = blocks * a.block_size * a.H_kv * a.D;
  c->k = take(codes, assay_dtype_size(kv));
  c->v = take(codes, assay_dtype_size(kv));
  c->q = take(c->count * a.H * a.D, assay_dtype_size(q_dtype));
  c->v_needed = take(blocks * a.block_size * a.H_kv, 1);
  c->table = take(c->count * widest, sizeof *c->table);
  if (c->k == NULL || c->v == NULL || c->q == NULL || c->v_needed == NULL || c->table == NULL) goto full;
  for (int64_t i = 0; i < c->count; ++i)
    for (int64_t b = c->first_block[i]; b < c->first_block[i + 1]; ++b)
      c->table[i * widest + b - c->first_block[i]] = (int32_t)b;
  copy_tokens(c, &a);

  const int64_t q_shape[3] = {c->count, a.H, a.D}, pool[4] = {blocks, a.block_size, a.H_kv, a.D};
  const int64_t table[2] = {c->count, widest};
  c->inner.arg[ARG_Q] = dense(c->q, q_dtype, 3, q_shape);
  c->inner.arg[ARG_K] = dense(c->k, kv, 4, pool);
  c->inner.arg[ARG_V] = dense(c->v, kv, 4, pool);
  c->inner.arg[ARG_TABLE] = dense(c->table, ASSAY_I32, 2, table);
  c->inner.arg[ARG_KV_LEN] = dense(c->length, ASSAY_I32, 1, table);
  c->inner.param[PARAM_LAYOUT] = LAYOUT_NHD;
  return ASSAY_OK;
full:
  return assay_fail(error, ASSAY_ERR_MEMORY, "%s reference: the cache of %lld rows does not fit in memory",
                    outer->op->name, (long long)c->count);
}

void append_cache_free(append_cache *c) {
  void *const all[] = {c->k, c->v, c->q, c->v_needed, c->table, c->length, c->first_block};
  for (size_t i = 0; i < sizeof all / sizeof all[0]; ++i)
    free(all[i]);
}

void append_cache_put_q(append_cache *c, int64_t i, int64_t head, const double *q) {
  assay_store_f64_row(c->q, c->inner.arg[ARG_Q].dtype, (i * c->H + head) * c->D, 1, c->D, q);
}

static void put(const append_cache *c, unsigned char *pool, int64_t i, int64_t kv_head, const double *value) {
  if (c->length[i] <= 0) return;
  const int64_t slot = c->first_block[i] * c->block_size + c->length[i] - 1;
  assay_store_f64_row(pool, c->inner.arg[ARG_K].dtype, (slot * c->H_kv + kv_head) * c->D, 1, c->D, value);
}

void append_cache_put_k(append_cache *c, int64_t i, int64_t kv_head, const double *k) {
  put(c, c->k, i, kv_head, k);
}

void append_cache_put_v(append_cache *c, int64_t i, int64_t kv_head, const double *v) {
  put(c, c->v, i, kv_head, v);
}

/* Translates the needed slots of the compact pool to slots of the outer call. */
static void spread_needed(const append_cache *c, assay_seen *seen) {
  append_attention inner;
  append_attention_of(c->outer, &inner);
  const attention a = attention_of(&inner.call);
  for (int64_t i = 0; i < c->count; ++i) {
    const int32_t *table = (const int32_t *)a.table->data + append_cache_row(c, i) * a.table->stride[0];
    for (int64_t t = 0; t < c->length[i]; ++t) {
      const int64_t slot = table[t / a.block_size] * a.block_size + t % a.block_size - seen->first_slot;
      const int64_t own = c->first_block[i] * a.block_size + t;
      for (int64_t h = 0; h < a.H_kv && slot >= 0 && slot < seen->slots; ++h)
        if (c->v_needed[own * a.H_kv + h]) seen->v_needed[slot * a.H_kv + h] = 1;
    }
  }
}

assay_status append_cache_reference(append_cache *c, const assay_contract *contract, bool exact, int64_t only,
                                    assay_expected *out, assay_seen *seen, assay_error *error) {
  const assay_rows only_row = {.count = 1, .index = &only};
  assay_seen own = {.slots = c->first_block[c->count] * c->block_size};
  if (seen != NULL && seen->v_needed != NULL) own.v_needed = c->v_needed;
  const assay_status status = c->inner.op->reference(&c->inner.call, contract, only >= 0 ? &only_row : NULL, exact, out,
                                                     seen != NULL ? &own : NULL, error);
  if (status != ASSAY_OK || seen == NULL) return status;
  seen->visible_keys = own.visible_keys;
  seen->live_keys = own.live_keys;
  if (seen->v_needed != NULL) spread_needed(c, seen);
  return status;
}

assay_status append_cache_spoil(append_cache *c, const assay_contract *contract, const char *name, assay_expected *out,
                                bool *known, assay_error *error) {
  char found[64];
  *known = false;
  for (int32_t i = 0;; ++i) {
    append_spoil_name(c->inner.op->spoils, i, found, sizeof found);
    if (found[0] == '\0') return ASSAY_OK;
    if (strcmp(found, name) != 0) continue;
    *known = true;
    return c->inner.op->spoil(&c->inner.call, contract, NULL, i, out, error);
  }
}
