/* alone.c: the law `alone`: runs some rows of a plain case (the first requests of a paged one) in a call that holds
 * nothing else. The result has the same bits where the contract promises it, else it is within the tier's limits. The
 * rows' values are copied from the case. */
#include <stdlib.h>

#include "conformance/generate/generate.h"
#include "conformance/trial/trial.h"
#include "laws_internal.h"
#include "conformance/case/case.h"

/* A smaller case with rows [first, first + count) of the case. */
typedef struct part {
  assay_case one; /* shares the case's lists */
  int64_t first, count;
} part;

/* Chooses one row in half of the cases, else any number of neighbours. Returns false where no row can be left out. */
static bool choose_part(const trial *t, part *p) {
  const assay_op *op = t->one->op;
  const logical *l = t->first.logical;
  const uint64_t random = logical_hash(t->one, STREAM_ALONE);
  const bool plain = op->form == ASSAY_PLAIN;
  const int64_t all = plain ? t->first.rows : l->B;
  p->one = *t->one;
  p->one.rows = 0;
  if (all < 2 || (plain && !trial_rows_move(t))) return false;
  const int64_t count = (random & 1) != 0 ? 1 : 1 + (int64_t)((random >> 1) % (uint64_t)(all - 1));
  if (!plain) { /* the first requests: the names of their blocks do not depend on later requests */
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

/* Returns a copy of `bytes` bytes, or NULL where there is nothing to copy or no memory. */
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

/* Copies the codes of an argument without a recipe: the part's rows, or all. Returns false where its shape depends on
 * the rows in some other way. */
static bool take_values(const trial *t, const trial *small, const part *p, int32_t arg, case_result *unused) {
  const assay_tensor *from = &t->first.arg[arg], *to = &small->first.arg[arg];
  const logical *l = t->first.logical;
  logical *own = small->first.logical;
  const int32_t axis = place_row_axis(&t->first, arg);
  if (place_axis(&t->first, arg, "mask_words") >= 0 && from->data != NULL) return false; /* requests share its words */
  const int64_t element = assay_dtype_size(from->dtype);
  if (l->values[arg] == NULL) return true;
  for (int32_t a = 0; a < from->rank; ++a)
    if (to->shape[a] != (a == axis ? p->count : from->shape[a])) return false;
  const int64_t outer = axis >= 0 ? elements_of(from, 0, axis) : 1;
  const int64_t inner = elements_of(from, axis >= 0 ? axis + 1 : 0, from->rank) * element;
  const int64_t rows = axis >= 0 ? from->shape[axis] : 1, count = axis >= 0 ? p->count : 1;
  own->values[arg] = malloc((size_t)(outer * count * inner) + 1);
  if (own->values[arg] == NULL) return verdict_no_memory(unused);
  for (int64_t o = 0; o < outer; ++o)
    memcpy(own->values[arg] + o * count * inner, l->values[arg] + (o * rows + (axis >= 0 ? p->first : 0)) * inner,
           (size_t)(count * inner));
  return true;
}

static bool take_contents(const trial *t, const trial *small, const part *p, case_result *unused) {
  const logical *l = t->first.logical;
  logical *own = small->first.logical;
  const int64_t q = assay_dtype_size(l->q_dtype), kv = assay_dtype_size(l->kv_dtype);
  const int64_t k_row = l->H_kv * l->D, v_row = l->H_kv * l->D_v, contents = own->identities * l->block_size;
  for (int32_t i = 0; i < t->one->op->arg_count; ++i)
    if (!take_values(t, small, p, i, unused)) return false;
  if (t->one->op->form == ASSAY_PAGED) {
    own->q = copied(l->q, own->N * l->H * l->D * q);
    own->k = copied(l->k, contents * k_row * kv);
    own->v = copied(l->v, contents * v_row * kv);
    own->k_new = copied(l->k_new, own->N * k_row * q);
    own->v_new = copied(l->v_new, own->N * v_row * q);
    if ((l->q != NULL && own->q == NULL) || own->k == NULL || own->v == NULL) return verdict_no_memory(unused);
    if (l->k_new != NULL && (own->k_new == NULL || own->v_new == NULL)) return verdict_no_memory(unused);
    memcpy(own->visible, l->visible, (size_t)contents);
  }
  own->filled = true;
  return true;
}

/* Makes the smaller call. Returns false where the variant does not take it. */
static bool prepare(const trial *t, trial *small, const part *p, case_result *unused) {
  assay_error error = {""};
  if (!trial_shape(small, unused) || small->count != t->count || !take_contents(t, small, p, unused)) return false;
  if (small->first.rows != p->count) return false;
  const assay_status status = image_fill(&small->first, NULL, &error);
  if (status == ASSAY_ERR_MEMORY) return verdict_no_memory(unused);
  if (status != ASSAY_OK) return false;
  if (t->one->op->check(&small->first.call, &error) != ASSAY_OK) return false;
  return trial_takes(small, &small->first, unused);
}

/* Puts the rows that the smaller call made into a copy of run 1's outputs. */
static void put_rows(const trial *t, const trial *small, const part *p, const outputs *got, outputs *mixed) {
  for (int32_t o = 0; o < t->count; ++o) {
    const trial_output *out = &t->output[o];
    const int64_t bytes = out->width * assay_dtype_size(out->dtype);
    if (out->kind == OUTPUT_WHOLE || small->output[o].width != out->width) continue;
    memcpy(mixed->bits[o] + p->first * bytes, got->bits[o], (size_t)(p->count * bytes));
  }
}

static bool same_rows(const trial *t, const part *p, const outputs *base, const outputs *mixed, case_result *result) {
  output_place first = {0, 0, 0};
  int64_t count = 0;
  char what[96];
  (void)snprintf(what, sizeof what, "in a call with %lld of the %lld rows", (long long)p->count,
                 (long long)t->first.rows);
  if (t->variant->contract.alone && t->variant->contract.run_to_run) {
    if (values_equal(t, base, mixed, &first, &count)) return true;
    rerun_set_difference(t, base, mixed, first, count, "alone", what, result);
    return false;
  }
  return rerun_within(t, mixed, "alone", what, result);
}

bool alone_applies(const trial *t) {
  (void)t;
  return true;
}

bool alone_check(const trial *t, const outputs *base, case_result *result) {
  part p;
  case_result unused = {.verdict = VERDICT_PASS};
  outputs got = {{NULL}}, mixed = {{NULL}};
  if (!choose_part(t, &p)) return true;
  trial small = {.one = &p.one, .variant = t->variant, .device = t->device, .facts = t->facts};
  bool good = true;
  if (prepare(t, &small, &p, &unused)) {
    good = outputs_make(&small, &got) && outputs_make(t, &mixed);
    if (!good) (void)verdict_no_memory(result);
    for (int32_t o = 0; o < t->count && good; ++o)
      memcpy(mixed.bits[o], base->bits[o],
             (size_t)(t->output[o].rows * t->output[o].width * assay_dtype_size(t->output[o].dtype)));
    good = good && device_run(&small, &small.first, t->one->seed, &got, result);
    if (good) {
      put_rows(t, &small, &p, &got, &mixed);
      good = same_rows(t, &p, base, &mixed, result);
    }
    if (good) result_add_law(result, "alone");
  } else {
    good = verdict_take_host(result, &unused);
  }
  outputs_free(&got);
  outputs_free(&mixed);
  trial_free(&small);
  return good;
}
