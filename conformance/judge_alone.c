/* judge_alone.c: the law `alone`: some rows of a plain case (of a paged one: its first requests) once more, in a call
 * that holds nothing else. Where the contract promises it, the same bits; else within the tier's limits. The rows'
 * values are those of the case, copied. */
#include <stdlib.h>

#include "generate_logical.h"
#include "generate_parts.h"
#include "judge_parts.h"
#include "shape.h"

enum { STREAM_ALONE = 0x6743 };

/* Rows [first, first + count) of the case, which are all rows of the smaller one. */
typedef struct part {
  assay_case one; /* shares the case's lists */
  int64_t first, count;
} part;

/* One row in half of the cases, else any number of neighbours. False: there is nothing to leave out. */
static bool choose_part(const trial *t, part *p) {
  const assay_op *op = t->one->op;
  const logical *l = t->first.logical;
  const uint64_t random = logical_hash(t->one, STREAM_ALONE);
  const bool plain = op->form == ASSAY_PLAIN;
  const int64_t all = plain ? t->first.rows : l->B;
  p->one = *t->one;
  p->one.rows = 0;
  if (all < 2 || (plain && op->row_dim == NULL)) return false;
  const int64_t count = (random & 1) != 0 ? 1 : 1 + (int64_t)((random >> 1) % (uint64_t)(all - 1));
  if (!plain) { /* the first requests: what blocks are called does not depend on those behind them */
    p->one.batch = (int32_t)count;
    p->first = 0;
    p->count = l->row_start[count];
    return p->count > 0;
  }
  p->first = (int64_t)((random >> 32) % (uint64_t)(all - count + 1));
  p->count = count;
  for (int32_t i = 0; i < op->dim_count; ++i)
    if (strcmp(op->dims[i].name, op->row_dim) == 0) p->one.dim[i] = count;
  return true;
}

/* A copy of `bytes` bytes, or NULL where there is nothing to copy or no memory. */
static unsigned char *copied(const unsigned char *from, int64_t bytes) {
  unsigned char *to = from != NULL ? malloc(bytes > 0 ? (size_t)bytes : 1) : NULL;
  if (to != NULL) memcpy(to, from, (size_t)bytes);
  return to;
}

static int64_t elements_of(const assay_tensor *t, int32_t from, int32_t to) {
  int64_t count = 1;
  for (int32_t a = from; a < to; ++a)
    count *= t->shape[a];
  return count;
}

/* Codes of an argument without a recipe: the part's rows of it, or all. False: its shape depends on the rows in some
 * other way. */
static bool take_values(const trial *t, const trial *small, const part *p, int32_t arg) {
  const assay_tensor *from = &t->first.arg[arg], *to = &small->first.arg[arg];
  const logical *l = t->first.logical;
  logical *own = small->first.logical;
  const int32_t axis = place_row_axis(&t->first, arg);
  const int64_t element = assay_dtype_size(from->dtype);
  if (l->values[arg] == NULL) return true;
  for (int32_t a = 0; a < from->rank; ++a)
    if (to->shape[a] != (a == axis ? p->count : from->shape[a])) return false;
  const int64_t outer = axis >= 0 ? elements_of(from, 0, axis) : 1;
  const int64_t inner = elements_of(from, axis >= 0 ? axis + 1 : 0, from->rank) * element;
  const int64_t rows = axis >= 0 ? from->shape[axis] : 1, count = axis >= 0 ? p->count : 1;
  own->values[arg] = malloc((size_t)(outer * count * inner) + 1);
  if (own->values[arg] == NULL) return false;
  for (int64_t o = 0; o < outer; ++o)
    memcpy(own->values[arg] + o * count * inner, l->values[arg] + (o * rows + (axis >= 0 ? p->first : 0)) * inner,
           (size_t)(count * inner));
  return true;
}

static bool take_contents(const trial *t, const trial *small, const part *p) {
  const logical *l = t->first.logical;
  logical *own = small->first.logical;
  const int64_t q = assay_dtype_size(l->q_dtype), kv = assay_dtype_size(l->kv_dtype);
  const int64_t row = l->H_kv * l->D, contents = own->identities * l->block_size;
  for (int32_t i = 0; i < t->one->op->arg_count; ++i)
    if (!take_values(t, small, p, i)) return false;
  if (t->one->op->form == ASSAY_PAGED) {
    own->q = copied(l->q, own->N * l->H * l->D * q);
    own->k = copied(l->k, contents * row * kv);
    own->v = copied(l->v, contents * row * kv);
    own->k_new = copied(l->k_new, own->N * row * q);
    own->v_new = copied(l->v_new, own->N * row * q);
    if ((l->q != NULL && own->q == NULL) || own->k == NULL || own->v == NULL) return false;
    if (l->k_new != NULL && (own->k_new == NULL || own->v_new == NULL)) return false;
    memcpy(own->visible, l->visible, (size_t)contents);
  }
  own->filled = true;
  return true;
}

/* The smaller call, as far as it is one that the variant takes. */
static bool prepare(const trial *t, trial *small, const part *p, case_result *unused) {
  assay_error error = {""};
  device_call on;
  if (!trial_shape(small, unused) || small->count != t->count || !take_contents(t, small, p)) return false;
  if (small->first.rows != p->count || image_fill(&small->first, NULL, &error) != ASSAY_OK) return false;
  if (t->one->op->check(&small->first.call, &error) != ASSAY_OK) return false;
  if (!device_place(small, &small->first, 0, &on, unused)) return false;
  return t->variant->supports(&on.call, &error) == ASSAY_OK &&
         t->variant->workspace(&on.call, &small->workspace_bytes, &error) == ASSAY_OK && small->workspace_bytes >= 0;
}

/* What run 1 made, with the part's rows as the smaller call made them. */
static void put_rows(const trial *t, const trial *small, const part *p, const outputs *got, outputs *mixed) {
  for (int32_t o = 0; o < t->count; ++o) {
    const trial_output *out = &t->output[o];
    const int64_t bytes = out->width * assay_dtype_size(out->dtype);
    if (out->kind == OUTPUT_WHOLE || small->output[o].width != out->width) continue;
    memcpy(mixed->bits[o] + p->first * bytes, got->bits[o], (size_t)(p->count * bytes));
  }
}

static bool same_rows(const trial *t, const part *p, const outputs *plain, const outputs *mixed, case_result *result) {
  place first = {0, 0, 0};
  int64_t count = 0;
  finding found;
  char what[96];
  (void)snprintf(what, sizeof what, "in a call with %lld of the %lld rows", (long long)p->count,
                 (long long)t->first.rows);
  if (t->variant->contract.alone && t->variant->contract.run_to_run) {
    if (values_equal(t, plain, mixed, &first, &count)) return true;
    char at[400];
    values_describe(t, first, at, sizeof at);
    judge_verdict(result, VERDICT_FAIL, "alone", "%s: %.9g, and %.9g %s; %lld elements differ", at,
                  values_load(t, plain, first), values_load(t, mixed, first), what, (long long)count);
    return false;
  }
  values_judge(t, mixed, &found);
  if (found.wrong) judge_verdict(result, VERDICT_FAIL, "alone", "%s; %s", found.message, what);
  return !found.wrong;
}

bool alone_check(const trial *t, const outputs *plain, case_result *result) {
  part p;
  case_result unused = {.verdict = VERDICT_PASS};
  outputs got = {{NULL}}, mixed = {{NULL}};
  if (!choose_part(t, &p)) return true;
  trial small = {.one = &p.one, .variant = t->variant, .device = t->device, .facts = t->facts};
  bool good = true;
  if (prepare(t, &small, &p, &unused)) {
    good = outputs_make(&small, &got) && outputs_make(t, &mixed);
    if (!good) judge_verdict(result, VERDICT_FAIL, "launch", "judge: out of memory");
    for (int32_t o = 0; o < t->count && good; ++o)
      memcpy(mixed.bits[o], plain->bits[o],
             (size_t)(t->output[o].rows * t->output[o].width * assay_dtype_size(t->output[o].dtype)));
    good = good && device_run(&small, &small.first, t->one->seed, &got, result);
    if (good) {
      put_rows(t, &small, &p, &got, &mixed);
      good = same_rows(t, &p, plain, &mixed, result);
    }
    if (good) judge_add_law(result, "alone");
  }
  outputs_free(&got);
  outputs_free(&mixed);
  trial_free(&small);
  return good;
}
