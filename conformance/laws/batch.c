/* batch.c: the law `batch`: rows of the case in a call of another size, at another place, beside other rows. A paged
 * case gives its first requests. Sizes lie about powers of two and tile edges, or anywhere between, from 1 to 4096. The
 * result has the same bits where the contract promises it (`alone`), else it is within the tier's limits. The result
 * says whether bits changed. */
#include <stdlib.h>

#include "conformance/case/case.h"
#include "conformance/generate/generate.h"
#include "conformance/trial/trial.h"
#include "laws_internal.h"

static const int32_t sizes[] = {1,   2,   3,   4,    5,    7,    8,    9,    15,   16,   17,  31,  32,
                                33,  63,  64,  65,   127,  128,  129,  191,  192,  193,  255, 256, 257,
                                511, 512, 513, 1023, 1024, 1025, 2047, 2048, 2049, 4095, 4096};
enum { SIZES = sizeof sizes / sizeof *sizes };

/* simt runs thousands of times slower than a GPU: its calls stay small. */
static const double simt_flops = 0x1p19, cuda_flops = 0x1p32;
static const int64_t simt_bytes = 1 << 17, cuda_bytes = 1 << 26;

/* A call of another size. Rows [first, first + count) of the case are rows [at, at + count) of the call. */
typedef struct other {
  assay_case one;
  int32_t *lists; /* owned; paged: [4][batch] */
  int64_t size, first, at, count;
} other;

static void *list_of(other *o, int32_t number) {
  return o->lists + (size_t)number * (size_t)o->size;
}

/* Makes a paged case of `size` requests: the case's own first, then others of its lengths. A decoded request may have
 * any length up to the longest. */
static bool other_requests(const trial *t, other *o, uint64_t random) {
  const assay_case *own = t->one;
  const logical *l = t->first.logical;
  const int64_t B = l->B, kept = o->size < B ? o->size : B;
  int32_t longest = 1;
  for (int64_t b = 0; b < B; ++b)
    longest = own->kv_len[b] > longest ? own->kv_len[b] : longest;
  o->lists = malloc((size_t)o->size * 4 * sizeof *o->lists);
  if (o->lists == NULL) return false;
  o->one.kv_len = list_of(o, 0);
  o->one.new_len = list_of(o, 1);
  o->one.share_with = list_of(o, 2);
  o->one.share_tokens = list_of(o, 3);
  for (int64_t b = 0; b < o->size; ++b) {
    const bool drawn = b >= kept && own->mode == MODE_DECODE;
    o->one.kv_len[b] = drawn ? 1 + (int32_t)((random >> b % 32) % (uint64_t)longest) : own->kv_len[b % B];
    o->one.new_len[b] = own->new_len[b % B];
    o->one.share_with[b] = b < kept ? own->share_with[b] : -1;
    o->one.share_tokens[b] = b < kept ? own->share_tokens[b] : 0;
  }
  o->one.batch = (int32_t)o->size;
  o->first = o->at = 0;
  o->count = l->row_start[kept];
  return true;
}

/* Makes a plain case of `size` rows. Returns false for sizes that the operator does not have. */
static bool other_rows(const trial *t, other *o, uint64_t random) {
  const assay_op *op = t->one->op;
  const int64_t rows = t->first.rows;
  for (int32_t i = 0; i < op->dim_count; ++i) {
    if (strcmp(op->dims[i].name, op->row_dim) != 0) continue;
    if (o->size < op->dims[i].min || o->size > op->dims[i].max || o->size % op->dims[i].multiple != 0) return false;
    o->one.dim[i] = o->size;
  }
  o->count = o->size < rows ? o->size : rows;
  o->first = (int64_t)((random >> 8) % (uint64_t)(rows - o->count + 1));
  o->at = (int64_t)((random >> 24) % (uint64_t)(o->size - o->count + 1));
  return true;
}

static int64_t elements_of(const assay_tensor *t, int32_t from, int32_t to) {
  int64_t count = 1;
  for (int32_t a = from; a < to; ++a)
    count *= t->shape[a];
  return count;
}

/* Copies the case's codes of one argument over those that were made: its rows, or all. Returns false where the shape
 * depends on the size in another way. */
static bool take_values(const trial *t, const trial *big, const other *o, int32_t arg) {
  const assay_tensor *from = &t->first.arg[arg], *to = &big->first.arg[arg];
  const logical *l = t->first.logical;
  unsigned char *const own = big->first.logical->values[arg];
  const int32_t axis = place_row_axis(&t->first, arg);
  if (place_axis(&t->first, arg, "mask_words") >= 0 && from->data != NULL) return false; /* requests share its words */
  if (l->values[arg] == NULL || own == NULL) return l->values[arg] == own;
  if (to->dtype != from->dtype) return false;
  for (int32_t a = 0; a < from->rank; ++a)
    if (a != axis && to->shape[a] != from->shape[a]) return false;
  const int64_t outer = axis >= 0 ? elements_of(from, 0, axis) : 1;
  const int64_t inner = elements_of(from, axis + 1, from->rank) * assay_dtype_size(from->dtype);
  const int64_t rows = axis >= 0 ? from->shape[axis] : 1, others = axis >= 0 ? to->shape[axis] : 1;
  const int64_t first = axis >= 0 ? o->first : 0, at = axis >= 0 ? o->at : 0, count = axis >= 0 ? o->count : 1;
  for (int64_t i = 0; i < outer; ++i)
    memcpy(own + (i * others + at) * inner, l->values[arg] + (i * rows + first) * inner, (size_t)(count * inner));
  return true;
}

static void take(unsigned char *to, const unsigned char *from, int64_t bytes) {
  if (to != NULL && from != NULL) memcpy(to, from, (size_t)bytes);
}

/* Copies the tokens of the first requests. Returns false where their blocks have other identities. */
static bool take_tokens(const trial *t, const trial *big, const other *o) {
  const logical *l = t->first.logical;
  logical *own = big->first.logical;
  const int64_t q = assay_dtype_size(l->q_dtype), kv = assay_dtype_size(l->kv_dtype);
  const int64_t kept = o->size < l->B ? o->size : l->B, k_row = l->H_kv * l->D, v_row = l->H_kv * l->D_v;
  const int64_t k_block = l->block_size * k_row * kv, v_block = l->block_size * v_row * kv;
  for (int64_t i = 0; i < l->block_start[kept]; ++i) {
    const int64_t identity = l->block_identity[i];
    if (identity != own->block_identity[i]) return false;
    if (own->k != NULL) take(own->k + identity * k_block, l->k + identity * k_block, k_block);
    if (own->v != NULL) take(own->v + identity * v_block, l->v + identity * v_block, v_block);
  }
  take(own->q, l->q, o->count * l->H * l->D * q);
  take(own->k_new, l->k_new, o->count * k_row * q);
  take(own->v_new, l->v_new, o->count * v_row * q);
  return true;
}

static int64_t most_bytes(const trial *t) {
  return strcmp(t->one->device, "simt") == 0 ? simt_bytes : cuda_bytes;
}

/* Returns bytes that the call surely has, before anything of it is made: 4,096 requests of 131,072 keys would fill the
 * host's memory. */
static int64_t least_bytes(const trial *t, const other *o) {
  const logical *l = t->first.logical;
  int64_t bytes = 0;
  if (t->one->op->form == ASSAY_PAGED) {
    for (int64_t b = 0; b < o->size; ++b)
      bytes += o->one.kv_len[b] * l->H_kv * (l->D + l->D_v) * assay_dtype_size(l->kv_dtype);
    return bytes;
  }
  for (int32_t i = 0; i < t->one->op->arg_count; ++i) {
    const assay_tensor *arg = &t->first.arg[i];
    if (arg->data == NULL || arg->rank == 0 || place_row_axis(&t->first, i) < 0) continue;
    bytes += elements_of(arg, 0, arg->rank) * assay_dtype_size(arg->dtype) / t->first.rows * o->size;
  }
  return bytes;
}

/* Makes the call. Returns false where there is no such call, where it is too large, or where the variant declines. */
static bool prepare(const trial *t, trial *big, const other *o, case_result *unused) {
  const bool simt = strcmp(t->one->device, "simt") == 0;
  const assay_seen seen = {.visible_keys = 0};
  assay_error error = {""};
  if (!trial_shape(big, unused) || big->count != t->count) return false;
  if (big->first.arena_bytes > most_bytes(t)) return false;
  const assay_op *op = t->one->op;
  if (op->cost != NULL && op->cost(&big->first.call, &seen).flops > (simt ? simt_flops : cuda_flops)) return false;
  assay_status status = image_fill(&big->first, NULL, &error);
  for (int32_t i = 0; i < op->arg_count && status == ASSAY_OK; ++i)
    if (!take_values(t, big, o, i)) return false;
  if (status == ASSAY_OK && op->form == ASSAY_PAGED && !take_tokens(t, big, o)) return false;
  if (status == ASSAY_OK) status = image_fill(&big->first, NULL, &error);
  if (status == ASSAY_ERR_MEMORY) return verdict_no_memory(unused);
  if (status != ASSAY_OK || op->check(&big->first.call, &error) != ASSAY_OK) return false;
  return trial_takes(big, &big->first, unused);
}

/* Runs the call, and compares its rows with the case's. */
static bool compare(const trial *t, const trial *big, const other *o, const outputs *base, case_result *result) {
  outputs got = {{NULL}}, mixed = {{NULL}};
  output_place first = {0, 0, 0};
  int64_t count = 0;
  char what[120];
  bool good = (outputs_make(big, &got) && outputs_make(t, &mixed)) || verdict_no_memory(result);
  (void)snprintf(what, sizeof what, "in a call of %lld %s", (long long)o->size,
                 t->one->op->form == ASSAY_PLAIN ? "rows" : "requests");
  if (good && !device_run(big, &big->first, t->one->seed, &got, result)) {
    const size_t used = strlen(result->message);
    (void)snprintf(result->message + used, sizeof result->message - used, "; %s", what);
    if (result->verdict == VERDICT_FAIL) (void)snprintf(result->check, sizeof result->check, "batch");
    good = false;
  }
  for (int32_t i = 0; i < t->count && good; ++i) {
    const trial_output *out = &t->output[i];
    const int64_t bytes = out->width * assay_dtype_size(out->dtype);
    memcpy(mixed.bits[i], base->bits[i], (size_t)(out->rows * bytes));
    if (out->kind == OUTPUT_WHOLE || big->output[i].width != out->width) continue;
    memcpy(mixed.bits[i] + o->first * bytes, got.bits[i] + o->at * bytes, (size_t)(o->count * bytes));
  }
  if (good) {
    const assay_contract *contract = &t->variant->contract;
    const bool same = values_equal(t, base, &mixed, &first, &count);
    result->batch_size = (int32_t)o->size;
    result->batch_differs = !same;
    if (!same && contract->alone && contract->run_to_run) {
      rerun_set_difference(t, base, &mixed, first, count, "batch", what, result);
      good = false;
    } else if (!same) {
      good = rerun_within(t, &mixed, "batch", what, result);
    }
  }
  if (good) result_add_law(result, "batch");
  outputs_free(&got);
  outputs_free(&mixed);
  return good;
}

bool batch_applies(const trial *t) {
  return t->one->op->form == ASSAY_PAGED ? t->first.logical->B > 0 : trial_rows_move(t) && t->first.rows > 0;
}

/* Returns a size: one of the list, or in two of three cases any up to the next one. */
static int64_t size_at(int32_t i, uint64_t random) {
  const int64_t next = i + 1 < SIZES ? sizes[i + 1] : sizes[i] + 1;
  return random / SIZES % 3 == 0 ? sizes[i] : sizes[i] + (int64_t)((random >> 40) % (uint64_t)(next - sizes[i]));
}

/* Begins at a drawn size and goes down to the first that can be asked. */
bool batch_check(const trial *t, const outputs *base, case_result *result) {
  const uint64_t random = logical_hash(t->one, STREAM_BATCH);
  const bool plain = t->one->op->form == ASSAY_PLAIN;
  bool good = true, done = false;
  for (int32_t i = (int32_t)(random % SIZES); i >= 0 && !done && good; i -= 3) {
    other o = {.one = *t->one, .size = size_at(i, random)};
    case_result unused = {.verdict = VERDICT_PASS};
    o.one.rows = 0;
    trial big = {.one = &o.one, .variant = t->variant, .device = t->device, .facts = t->facts};
    const bool made = plain ? other_rows(t, &o, random) : other_requests(t, &o, random);
    done = made && least_bytes(t, &o) <= most_bytes(t) && prepare(t, &big, &o, &unused);
    if (done) good = compare(t, &big, &o, base, result);
    if (!done) good = verdict_take_host(result, &unused);
    trial_free(&big);
    free(o.lists);
  }
  return good;
}
