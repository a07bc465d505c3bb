/* mla_append: writes the entries of new tokens to their slots of a cache of multi-head latent attention. An entry is
 * (c_n, pe_n): 512 channels of the latent vector, then 64 rotated channels that all heads share. For slots_n >= 0:
 *
 *   cache[slots_n] = (c_n, pe_n)                                                       bit for bit
 *   words[slots_n] = (e4m3(c_n / s_g), s_0 ... s_3, bf16(pe_n))
 *   s_g = 2^ceil(log2(max(a_g / 448, 1e-4)))     a_g = max |c_n| over the finite numbers of channels 128 g ... 128 g +
 * 127
 *
 * The least scale is 2^-13. A division by s is exact, so that each number is rounded once: to nearest even, and at most
 * 448 in size. NaN becomes the code 0x7F, or 0x7FFF in pe. ±Inf becomes ±448 in c. Slot b S + o is entry o of block b.
 * Slot -1 writes nothing. All other entries keep their bits. A slot outside [-1, P S), or given twice, is an input
 * error. Exactly one of cache and words is present. Source: docs/definitions.md, section 14. */
#include <float.h>
#include <math.h>
#include <stdlib.h>

#include "core/dtype.h"
#include "core/rng.h"
#include "ref/lib/mla.h"
#include "ref/lib/plain.h"
#include "ref/lib/rowwise.h"

const assay_op *assay_op_mla_append(void);

enum { ARG_C, ARG_PE, ARG_SLOTS, ARG_CACHE, ARG_WORDS, ARG_COUNT };

typedef enum append_spoil {
  SPOIL_NONE = -1,
  SPOIL_PE_FIRST,             /* pe lies before c */
  SPOIL_PAD_SLOT_WRITTEN,     /* slot -1 writes the last slot, where no row has it */
  SPOIL_ROW_BEFORE,           /* c is that of the row before */
  SPOIL_OFFSET_LOST,          /* every entry goes to the beginning of its block */
  SPOIL_SCALE_OF_TILE_BEFORE, /* codes by the scale of the tile before */
  SPOIL_FLOOR_FOR_CEIL,       /* the power of two below */
  SPOIL_FLOOR_ON_AMAX,        /* 1e-4 is the least a, and no least scale */
  SPOIL_ONE_SCALE,            /* one scale for all channels */
  SPOIL_PE_QUANTISED          /* pe is rounded to e4m3 on its way (SGLang#15522) */
} append_spoil;

/* ---- the definition ---------------------------------------------------------------------------------- */

/* Computes the scales of the four tiles of c. */
static void scales_of(const double *c, append_spoil spoil, double *scale) {
  for (int g = 0; g < MLA_TILES; ++g) {
    const double a = spoil == SPOIL_ONE_SCALE ? mla_amax(c, MLA_C) : mla_amax(c + g * MLA_TILE, MLA_TILE);
    scale[g] = mla_scale(a);
    if (spoil == SPOIL_FLOOR_FOR_CEIL && 448 * scale[g] > a && scale[g] > 0x1p-13) scale[g] /= 2;
    while (spoil == SPOIL_FLOOR_ON_AMAX && 448 * scale[g] >= 2 * fmax(a, 1e-4))
      scale[g] /= 2;
  }
}

/* Makes the 164 words of an entry. */
static void words_of(const double *c, double *pe, append_spoil spoil, uint32_t *word) {
  double scale[MLA_TILES];
  scales_of(c, spoil, scale);
  for (int i = 0; i < MLA_PE && spoil == SPOIL_PE_QUANTISED; ++i)
    pe[i] = assay_round_f64(pe[i], ASSAY_E4M3);
  mla_pack(c, scale, pe, word);
  if (spoil != SPOIL_SCALE_OF_TILE_BEFORE) return;
  uint32_t stored[MLA_TILES];
  memcpy(stored, word + MLA_SCALE_WORD, sizeof stored);
  const double turned[MLA_TILES] = {scale[3], scale[0], scale[1], scale[2]};
  mla_pack(c, turned, pe, word);
  memcpy(word + MLA_SCALE_WORD, stored, sizeof stored);
}

/* ---- adapter ----------------------------------------------------------------------------------------- */

static const assay_tensor *pool_of(const assay_call *call) {
  return &call->arg[call->arg[ARG_CACHE].data != NULL ? ARG_CACHE : ARG_WORDS];
}

static assay_status check(const assay_call *call, assay_error *error) {
  const assay_status status = plain_check_call(call, error);
  if (status != ASSAY_OK) return status;
  const int32_t given = (call->arg[ARG_CACHE].data != NULL) + (call->arg[ARG_WORDS].data != NULL);
  if (given == 1) return ASSAY_OK;
  return assay_fail(error, ASSAY_ERR_INPUT, "cache: found %d of cache, words, allowed exactly one", given);
}

/* Checks slots and marks those that are written. */
static assay_status check_contents(const assay_call *call, unsigned char *named, assay_error *error) {
  const assay_tensor *pool = pool_of(call), *slots = &call->arg[ARG_SLOTS];
  const int64_t count = pool->shape[0] * pool->shape[1];
  for (int64_t n = 0; n < slots->shape[0]; ++n) {
    const int64_t slot = plain_integer(slots, n);
    if (slot < -1 || slot >= count)
      return assay_fail(error, ASSAY_ERR_INPUT, "slots: found %lld at [%lld], allowed -1 to %lld", (long long)slot,
                        (long long)n, (long long)(count - 1));
    if (slot >= 0 && named[slot]++ != 0)
      return assay_fail(error, ASSAY_ERR_INPUT, "slots: found %lld at [%lld] again, allowed once", (long long)slot,
                        (long long)n);
  }
  return ASSAY_OK;
}

/* Expects that no entry changes. */
static void keep_all(const assay_tensor *pool, const assay_expected *to) {
  const int64_t count = pool->shape[0] * pool->shape[1], width = pool->shape[2];
  for (int64_t slot = 0; slot < count; ++slot) {
    assay_load_f64_row(pool->data, pool->dtype, mla_entry(pool, slot), 1, width, to->value + slot * width);
    for (int64_t i = 0; i < width && to->sigma != NULL; ++i)
      to->sigma[slot * width + i] = ASSAY_UNCHANGED;
  }
}

/* Writes the expectation of an entry: `width` values at `value`. */
static void put_entry(const assay_call *call, int64_t n, append_spoil spoil, double *value) {
  double c[MLA_C], pe[MLA_PE];
  uint32_t word[MLA_WORDS];
  plain_load_row(&call->arg[ARG_C], spoil == SPOIL_ROW_BEFORE && n > 0 ? n - 1 : n, c);
  plain_load_row(&call->arg[ARG_PE], n, pe);
  if (call->arg[ARG_CACHE].data != NULL) {
    const int64_t at_c = spoil == SPOIL_PE_FIRST ? MLA_PE : 0, at_pe = spoil == SPOIL_PE_FIRST ? 0 : MLA_C;
    memcpy(value + at_c, c, sizeof c);
    memcpy(value + at_pe, pe, sizeof pe);
    return;
  }
  words_of(c, pe, spoil, word);
  const int turn = spoil == SPOIL_PE_FIRST ? MLA_PE / 2 : 0;
  for (int i = 0; i < MLA_WORDS; ++i)
    value[(i + turn) % MLA_WORDS] = (double)(int32_t)word[i];
}

static assay_status compute(const assay_call *call, append_spoil spoil, const assay_expected *to, assay_error *error) {
  const assay_tensor *pool = pool_of(call), *slots = &call->arg[ARG_SLOTS];
  const int64_t count = pool->shape[0] * pool->shape[1], width = pool->shape[2];
  unsigned char *named = calloc((size_t)count + 1, 1);
  assay_status status = named != NULL ? check_contents(call, named, error)
                                      : assay_fail(error, ASSAY_ERR_MEMORY, "mla_append reference: out of memory");
  if (status == ASSAY_OK) keep_all(pool, to);
  for (int64_t n = 0; n < slots->shape[0] && status == ASSAY_OK; ++n) {
    int64_t slot = plain_integer(slots, n);
    if (spoil == SPOIL_PAD_SLOT_WRITTEN && slot < 0 && named[count - 1] == 0) slot = count - 1;
    if (spoil == SPOIL_OFFSET_LOST && slot >= 0) slot -= slot % pool->shape[1];
    if (slot < 0) continue;
    put_entry(call, n, spoil, to->value + slot * width);
    for (int64_t i = 0; i < width && to->sigma != NULL; ++i)
      to->sigma[slot * width + i] = 0;
  }
  free(named);
  return status;
}

/* Computes the expectation. Bits are moved, or numbers are rounded once: results are exact on any inputs. */
static assay_status reference(const assay_call *call, const assay_contract *contract, const assay_rows *rows,
                              bool exact, assay_expected *expected, assay_seen *seen, assay_error *error) {
  (void)contract;
  (void)rows; /* the pool is computed whole */
  (void)exact;
  (void)seen;
  return compute(call, SPOIL_NONE, &expected[0], error);
}

static assay_status spoil(const assay_call *call, const assay_contract *contract, const assay_rows *rows, int32_t index,
                          assay_expected *expected, assay_error *error) {
  (void)contract;
  (void)rows;
  const assay_expected values = {expected[0].value, NULL};
  return compute(call, (append_spoil)index, &values, error);
}

static bool copies(const assay_call *call, int32_t output, int64_t element) {
  (void)call;
  (void)output;
  (void)element;
  return true;
}

/* Counts c and pe as read and entries as written, for the rows that have a slot. */
static assay_cost cost(const assay_call *call, const assay_seen *seen) {
  (void)seen;
  const assay_tensor *pool = pool_of(call), *slots = &call->arg[ARG_SLOTS];
  double rows = 0;
  for (int64_t n = 0; n < slots->shape[0] && slots->data != NULL; ++n)
    rows += plain_integer(slots, n) >= 0;
  const double entry = (double)(MLA_ENTRY * assay_dtype_size(call->arg[ARG_C].dtype));
  return (assay_cost){.flops = rows * MLA_C,
                      .bytes = rows * (entry + (double)(pool->shape[2] * assay_dtype_size(pool->dtype))) +
                               8 * (double)slots->shape[0]};
}

/* ---- values for the generator ------------------------------------------------------------------------ */

/* Draws distinct slots in a random order, and -1 for one row in six and where no slot is left. */
static double slot_of(const assay_fill *fill, int64_t n) {
  const assay_tensor *pool = pool_of(fill->call);
  const int64_t count = pool->shape[0] * pool->shape[1];
  assay_rng rng = {fill->seed, 0x6D6C6173, 0}, own = {fill->seed, 0x6D6C6170, 4 * (uint64_t)n};
  const int64_t turn = assay_rng_range(&rng, 0, count - 1);
  if (n >= count || assay_rng_range(&own, 0, 5) == 0) return -1;
  return (double)(count - 1 - (n + turn) % count);
}

/* Fills a tile of c: codes and exact midpoints of neighbouring codes, times 2^j. Its largest number is 448, one unit of
 * bf16 or of f32 above it or below it, or 230. A logarithm in f32 cannot tell neighbours of f32 apart. */
static void fill_codes(assay_rng *rng, int j, double *value) {
  const int64_t largest = assay_rng_range(rng, 0, MLA_TILE - 1), kind = assay_rng_range(rng, 0, 5);
  static const double sizes[] = {448, 450, 446, 230, 448 * (1 + 0x1p-23), 448 * (1 - 0x1p-24)};
  for (int64_t i = 0; i < MLA_TILE; ++i) {
    const uint8_t code = (uint8_t)assay_rng_range(rng, 0, 117), next = (uint8_t)(code + 1);
    double size = assay_load_f64(&code, ASSAY_E4M3, 0);
    if (assay_rng_range(rng, 0, 1) != 0) size = (size + assay_load_f64(&next, ASSAY_E4M3, 0)) / 2;
    if (i == largest) size = sizes[kind];
    value[i] = ldexp(assay_rng_range(rng, 0, 1) != 0 ? size : -size, j);
  }
}

/* Fills c by tiles, each with an exponent of its own. One tile in twelve is zero, and one lies below every scale. */
static void fill_latent(const assay_fill *from, double *value, int64_t count) {
  const assay_dtype type = from->call->arg[ARG_C].dtype;
  for (int64_t g = 0; g < count / MLA_TILE; ++g) {
    assay_rng rng = {from->seed, 0x6D6C6163, 1024 * (uint64_t)g};
    double *const to = value + g * MLA_TILE;
    const int64_t kind = assay_rng_range(&rng, 0, 11);
    int j = (int)assay_rng_range(&rng, -14, type == ASSAY_F16 ? 7 : 12);
    if (kind == 1 && type != ASSAY_F16) j = -40;
    if (from->values == ASSAY_LATTICE && kind != 0) fill_codes(&rng, j, to);
    const double factor = kind == 0 ? 0 : ldexp(1, kind == 1 ? -12 : (int)assay_rng_range(&rng, -6, 8));
    for (int64_t i = 0; i < MLA_TILE && (kind == 0 || from->values != ASSAY_LATTICE); ++i)
      to[i] *= factor;
  }
}

/* Makes one tile of special numbers in two small, beside its NaN and infinities. */
static void fill_special(const assay_fill *from, double *value, int64_t count) {
  for (int64_t g = 0; g < count / MLA_TILE; ++g) {
    assay_rng rng = {from->seed, 0x6D6C6173, 1024 * (uint64_t)g + 512};
    if (assay_rng_range(&rng, 0, 1) != 0) plain_make_small(value + g * MLA_TILE, MLA_TILE);
  }
}

static assay_status fill(const assay_fill *from, int32_t arg, double *value, int64_t count, assay_error *error) {
  (void)error;
  assay_rng rng = {from->seed, 0x6D6C6177, 0};
  if (arg == ARG_SLOTS || arg == ARG_WORDS) {
    for (int64_t n = 0; n < count; ++n)
      value[n] = arg == ARG_SLOTS ? slot_of(from, n) : (double)(int32_t)(uint32_t)assay_rng_u64(&rng);
    return ASSAY_OK;
  }
  plain_fill(from, (uint64_t)arg, value, count);
  if (arg == ARG_C && from->values == ASSAY_SPECIAL) fill_special(from, value, count);
  if (arg == ARG_C && from->values != ASSAY_SPECIAL) fill_latent(from, value, count);
  return ASSAY_OK;
}

/* ---- the table --------------------------------------------------------------------------------------- */

static const assay_dim dims[] = {
    {"N", 1, 1 << 24, 4, 1, "new tokens"},
    {"P", 1, INT32_MAX, 3, 1, "blocks of the pool"},
    {"S", 1, 1024, 4, 1, "entries of a block"},
};

static const assay_arg args[ARG_COUNT] = {
    {"c", ASSAY_IN, ASSAY_VALUES, false, "f32,f16,bf16", "N,512", "latent vectors", true},
    {"pe", ASSAY_IN, ASSAY_VALUES, false, "=c", "N,64", "rotated channels", true},
    {"slots", ASSAY_IN, ASSAY_VALUES, false, "i64", "N", "the slot of each row; -1: none", false},
    {"cache", ASSAY_INOUT, ASSAY_VALUES, true, "=c", "P,S,576", "entries of one type", true},
    {"words", ASSAY_INOUT, ASSAY_VALUES, true, "i32", "P,S,164", "entries of 656 bytes: codes, scales, bf16", true},
};

static const assay_op op = {
    .name = "mla_append",
    .title = "entries of latent attention written to their slots of a cache",
    .source = "docs/definitions.md, section 14",
    .dims = dims,
    .dim_count = (int32_t)(sizeof dims / sizeof dims[0]),
    .args = args,
    .arg_count = ARG_COUNT,
    .laws = "run_to_run,dead_bytes",
    .spoils = "pe_first,pad_slot_written,row_before,offset_lost,scale_of_tile_before,floor_for_ceil,floor_on_amax,"
              "one_scale,pe_quantised",
    .kappa_element = 2.5,
    .form = ASSAY_PLAIN,
    .axes = "dtype,words",
    .takes_special = true,
    .confirmed_by = "entries read back by another loader; scales by frexp; a nearest search over codes (ref_mla_test)",
    .extreme_args = "c,pe",
    .largest = 0x1.fffffep127,
    .check = check,
    .reference = reference,
    .cost = cost,
    .fill = fill,
    .spoil = spoil,
    .copies = copies,
};

const assay_op *assay_op_mla_append(void) {
  return &op;
}
