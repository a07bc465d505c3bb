/* copy_blocks: copies whole blocks of the paged cache inside their pool, K and V, in every layer (copy-on-write):
 *
 *   K[l][pairs[p][1]] <- K[l][pairs[p][0]],  V likewise,   for every layer l and pair p
 *
 * The copy is bit for bit. A block may be the source of many pairs. A destination is named once and is no source;
 * otherwise the input is an error. Everything else keeps its bits. A block is block_size · H_kv · D elements, in the
 * layout's order. Source: docs/definitions.md, section 1. */
#include <stdlib.h>

#include "core/dtype.h"
#include "core/rng.h"
#include "ref/lib/plain.h"

enum { ARG_K_CACHE, ARG_V_CACHE, ARG_PAIRS, ARG_COUNT };
enum { DIM_LAYERS, DIM_NUM_BLOCKS, DIM_BLOCK_SIZE, DIM_H_KV, DIM_D, DIM_PAIRS, DIM_COUNT };

const assay_op *assay_op_copy_blocks(void);

typedef enum copy_spoil {
  SPOIL_LAST_PAIR_DROPPED,
  SPOIL_NEIGHBOUR_COPIED,  /* the block after the source is copied */
  SPOIL_TURNED_ROUND,      /* destinations overwrite sources */
  SPOIL_FIRST_LAYER_ONLY,  /* only the first layer is copied */
  SPOIL_V_FORGOTTEN,       /* only keys are copied */
  SPOIL_LAST_TOKEN_MISSED, /* the last slot of a block stays */
  SPOIL_FIRST_HEAD_ONLY,   /* only D of a token's H_kv · D elements are copied */
  SPOIL_COUNT,
  SPOIL_NONE
} copy_spoil;

static int64_t entry(const assay_tensor *pairs, int64_t pair, int64_t side) {
  return plain_integer(pairs, 2 * pair + side);
}

/* ---- the definition ---------------------------------------------------------------------------------- */

/* Writes to from[b] the block whose elements block b holds afterwards. */
static void copy_blocks(const assay_tensor *pairs, int64_t num_blocks, int64_t *from) {
  for (int64_t b = 0; b < num_blocks; ++b)
    from[b] = b;
  for (int64_t p = 0; p < pairs->shape[0]; ++p)
    from[entry(pairs, p, 1)] = entry(pairs, p, 0);
}

static void copy_spoilt(const assay_tensor *pairs, int64_t num_blocks, copy_spoil spoil, int64_t *from) {
  if (spoil == SPOIL_LAST_PAIR_DROPPED && pairs->shape[0] > 0) {
    const int64_t last = entry(pairs, pairs->shape[0] - 1, 1);
    from[last] = last;
  }
  for (int64_t p = 0; p < pairs->shape[0]; ++p) {
    const int64_t source = entry(pairs, p, 0), to = entry(pairs, p, 1);
    if (spoil == SPOIL_NEIGHBOUR_COPIED) from[to] = (source + 1) % num_blocks;
    if (spoil == SPOIL_TURNED_ROUND) {
      from[to] = to;
      from[source] = to;
    }
  }
}

/* ---- adapter ----------------------------------------------------------------------------------------- */

/* Tells whether the element at `place` of its block moves, with the planted error. */
static bool moves(const assay_tensor *cache, int which, int64_t layer, int64_t place, copy_spoil spoil) {
  const int64_t block_size = cache->shape[2], token = place / (cache->shape[3] * cache->shape[4]);
  if (spoil == SPOIL_FIRST_LAYER_ONLY) return layer == 0;
  if (spoil == SPOIL_V_FORGOTTEN) return which == 0;
  if (spoil == SPOIL_LAST_TOKEN_MISSED) return token < block_size - 1;
  if (spoil == SPOIL_FIRST_HEAD_ONLY) return place / cache->shape[4] % cache->shape[3] == 0;
  return true;
}

/* Writes which element's bits each element holds afterwards. With a planted error (`spoilt_from`), an element that
 * keeps its bits by the definition gets 0 if it also keeps them with the error. Else it gets the value it would have.
 */
static void expect(const assay_tensor *cache, int which, const int64_t *from, const int64_t *spoilt_from,
                   copy_spoil spoil, assay_expected *expected) {
  const int64_t num_blocks = cache->shape[1], block = cache->shape[2] * cache->shape[3] * cache->shape[4];
  const int64_t apart = cache->shape[0] > 1 ? cache->stride[0] : 0;
  int64_t i = 0;
  for (int64_t l = 0; l < cache->shape[0]; ++l)
    for (int64_t b = 0; b < num_blocks; ++b)
      for (int64_t e = 0; e < block; ++e, ++i) {
        const int64_t source = moves(cache, which, l, e, spoil) ? spoilt_from[b] : b;
        expected->value[i] = from[b] != b ? (double)((l * num_blocks + source) * block + e) : 0;
        if (from[b] == b && source != b)
          expected->value[i] = assay_load_f64(cache->data, cache->dtype, l * apart + source * block + e);
        if (expected->sigma != NULL) expected->sigma[i] = from[b] == b ? ASSAY_UNCHANGED : ASSAY_MOVED;
      }
}

static assay_status check_contents(const assay_call *call, assay_error *error) {
  const assay_tensor *pairs = &call->arg[ARG_PAIRS];
  const int64_t num_blocks = call->arg[ARG_K_CACHE].shape[1];
  enum { SOURCE = 1, DESTINATION = 2 };
  unsigned char *met = calloc((size_t)num_blocks + 1, 1);
  assay_status status = ASSAY_OK;
  if (met == NULL) return assay_fail(error, ASSAY_ERR_MEMORY, "copy_blocks reference: out of memory");
  for (int64_t i = 0; i < 2 * pairs->shape[0] && status == ASSAY_OK; ++i) {
    const int64_t block = plain_integer(pairs, i);
    const unsigned char side = i % 2 == 0 ? SOURCE : DESTINATION;
    if (block < 0 || block >= num_blocks)
      status = assay_fail(error, ASSAY_ERR_INPUT, "pairs: found block %lld in pair %lld, allowed 0 to %lld",
                          (long long)block, (long long)(i / 2), (long long)(num_blocks - 1));
    else if (met[block] != 0 && (met[block] != SOURCE || side != SOURCE))
      status = assay_fail(error, ASSAY_ERR_INPUT,
                          "pairs: found block %lld in pair %lld again, allowed once as destination or only as source",
                          (long long)block, (long long)(i / 2));
    else
      met[block] = side;
  }
  free(met);
  return status;
}

static assay_status compute(const assay_call *call, copy_spoil spoil, assay_expected *expected, assay_error *error) {
  const int64_t num_blocks = call->arg[ARG_K_CACHE].shape[1];
  assay_status status = check_contents(call, error);
  if (status != ASSAY_OK) return status;
  int64_t *from = malloc((size_t)(2 * num_blocks + 1) * sizeof *from), *spoilt_from = from;
  if (from == NULL) return assay_fail(error, ASSAY_ERR_MEMORY, "copy_blocks reference: out of memory");
  copy_blocks(&call->arg[ARG_PAIRS], num_blocks, from);
  if (spoil != SPOIL_NONE) {
    spoilt_from = from + num_blocks;
    copy_blocks(&call->arg[ARG_PAIRS], num_blocks, spoilt_from);
    copy_spoilt(&call->arg[ARG_PAIRS], num_blocks, spoil, spoilt_from);
  }
  expect(&call->arg[ARG_K_CACHE], 0, from, spoilt_from, spoil, &expected[0]);
  expect(&call->arg[ARG_V_CACHE], 1, from, spoilt_from, spoil, &expected[1]);
  free(from);
  return ASSAY_OK;
}

/* Computes the expectation. Bits are moved, so results are exact on any inputs. */
static assay_status reference(const assay_call *call, const assay_contract *contract, const assay_rows *rows,
                              bool exact, assay_expected *expected, assay_seen *seen, assay_error *error) {
  (void)contract;
  (void)rows;
  (void)exact;
  (void)seen;
  return compute(call, SPOIL_NONE, expected, error);
}

static assay_status spoil(const assay_call *call, const assay_contract *contract, const assay_rows *rows, int32_t index,
                          assay_expected *expected, assay_error *error) {
  (void)contract;
  (void)rows;
  if (index < 0 || index >= SPOIL_COUNT)
    return assay_fail(error, ASSAY_ERR_INPUT, "spoil: found number %d, allowed 0 to %d", index, SPOIL_COUNT - 1);
  assay_expected values[2] = {{expected[0].value, NULL}, {expected[1].value, NULL}};
  return compute(call, (copy_spoil)index, values, error);
}

/* Counts every copied block as read and written. */
static assay_cost cost(const assay_call *call, const assay_seen *seen) {
  (void)seen;
  const assay_tensor *k = &call->arg[ARG_K_CACHE];
  const double pairs = (double)call->arg[ARG_PAIRS].shape[0];
  const double block = (double)(k->shape[0] * k->shape[2] * k->shape[3] * k->shape[4] * assay_dtype_size(k->dtype));
  return (assay_cost){.bytes = 4 * pairs * block + 16 * pairs};
}

/* ---- values for the generator ------------------------------------------------------------------------ */

/* Draws an order of the blocks. The first `pairs` of them are destinations; sources are drawn from the others. If there
 * are two pairs, the first of the others is drawn twice. */
static assay_status fill_pairs(const assay_fill *fill, double *value, int64_t count, assay_error *error) {
  const int64_t num_blocks = fill->call->arg[ARG_K_CACHE].shape[1], pairs = count / 2;
  if (pairs >= num_blocks)
    return assay_fail(error, ASSAY_ERR_INPUT, "pairs: found %lld, allowed fewer than num_blocks = %lld",
                      (long long)pairs, (long long)num_blocks);
  int64_t *block = malloc((size_t)num_blocks * sizeof *block);
  if (block == NULL) return assay_fail(error, ASSAY_ERR_MEMORY, "copy_blocks: out of memory");
  assay_rng rng = {fill->seed, 0x636F7079, 0};
  for (int64_t b = 0; b < num_blocks; ++b) {
    const int64_t other = assay_rng_range(&rng, 0, b);
    block[b] = block[other];
    block[other] = b;
  }
  for (int64_t p = 0; p < pairs; ++p) {
    const int64_t source = p < 2 ? pairs : assay_rng_range(&rng, pairs, num_blocks - 1);
    value[2 * p] = (double)block[source];
    value[2 * p + 1] = (double)block[p];
  }
  free(block);
  return ASSAY_OK;
}

static assay_status fill(const assay_fill *from, int32_t arg, double *value, int64_t count, assay_error *error) {
  if (arg == ARG_PAIRS) return fill_pairs(from, value, count, error);
  plain_fill(from, (uint64_t)arg, value, count);
  return ASSAY_OK;
}

/* ---- the table --------------------------------------------------------------------------------------- */

static const assay_dim dims[DIM_COUNT] = {
    {"layers", 1, 1024, 2, 1, "layers, each with a pool of its own"},
    {"num_blocks", 1, 1 << 20, 8, 1, "blocks of a pool"},
    {"block_size", 8, 256, 16, 8, "tokens of a block"},
    {"H_kv", 1, 256, 4, 1, "key/value heads"},
    {"D", 8, 256, 128, 8, "channels of a head"},
    {"pairs", 0, 1 << 20, 3, 1, "copies, fewer than num_blocks"},
};

static const assay_arg args[ARG_COUNT] = {
    {"k_cache", ASSAY_INOUT, ASSAY_VALUES, false, "f32,f16,bf16", "layers,num_blocks,block_size,H_kv,D",
     "pools of keys; layers may lie apart", true},
    {"v_cache", ASSAY_INOUT, ASSAY_VALUES, false, "=k_cache", "layers,num_blocks,block_size,H_kv,D",
     "pools of values; layers may lie apart", true},
    {"pairs", ASSAY_IN, ASSAY_VALUES, false, "i64", "pairs,2", "source block, destination block", false},
};

static const assay_op op = {
    .name = "copy_blocks",
    .title = "copies of whole cache blocks, K and V, every layer",
    .source = "docs/definitions.md, section 1",
    .dims = dims,
    .dim_count = DIM_COUNT,
    .args = args,
    .arg_count = ARG_COUNT,
    .laws = "run_to_run,dead_bytes",
    .spoils = "last_pair_dropped,neighbour_copied,turned_round,first_layer_only,v_forgotten,last_token_missed,"
              "first_head_only",
    .kappa_element = 2.5,
    .form = ASSAY_PLAIN,
    .takes_special = true,
    .confirmed_by = "memcpy of blocks, one pair after the other (ref_cache_test)",
    .largest = 0x1.fffffep127,
    .check = plain_check_call,
    .reference = reference,
    .cost = cost,
    .fill = fill,
    .spoil = spoil,
};

const assay_op *assay_op_copy_blocks(void) {
  return &op;
}
